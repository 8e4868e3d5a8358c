//! What a device and its driver can do, and whether it has carrier, asked by ethtool ioctls.
//!
//! The kernel has one bit for each feature of a device; a table of strings maps a feature's name to
//! its bit. The bit numbers are looked up once; each later query is one ioctl.
//!
//! It refuses tables of more than [`FEATURES_MAX`] names. Bound: one such table on the stack.
#![allow(
    unsafe_code,
    reason = "UNSAFETY: ethtool commands are arrays the kernel fills in"
)]

use std::os::fd::BorrowedFd;

use crate::interface::InterfaceName;
use crate::sys;

// linux/ethtool.h
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GLINK: u32 = 0x0a;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETH_SS_FEATURES: u32 = 4;

/// Bytes of one name in the string table.
const NAME_BYTES: usize = 32;
const NAME_WORDS: usize = NAME_BYTES / 4;
/// Most features we can take the names of; Linux 6.18 has 64.
const FEATURES_MAX: usize = 128;
/// `struct ethtool_get_features_block`: available, requested, active, never changed.
const BLOCK_WORDS: usize = 4;
const BLOCK_ACTIVE: usize = 2;
const BLOCKS_MAX: usize = FEATURES_MAX / 32;

/// Drivers that hold a frame until its device has read it: what they send may be overwritten when they
/// release it. Others release it when they queue it, or copy it, and cannot tell.
const COMPLETING_DRIVERS: [&str; 8] = [
    "bnxt_en",
    "e1000e",
    "i40e",
    "ice",
    "igb",
    "igc",
    "ixgbe",
    "mlx5_core",
];

/// Whether the driver is known to release a frame only when its device has read it.
pub(crate) fn is_completing_driver(driver: &str) -> bool {
    COMPLETING_DRIVERS.contains(&driver)
}

/// Both IP versions, or large segments of one of them would be refused for ever.
const NAMES: [&[u8]; 2] = [b"tx-tcp-segmentation", b"tx-tcp6-segmentation"];

/// Whether the device is up and has carrier now; `None` if it does not tell. The interface's flags
/// say so, too, but up to a second later.
pub(crate) fn has_carrier(fd: BorrowedFd<'_>, name: InterfaceName) -> Option<bool> {
    // struct ethtool_value: cmd, data
    let mut value = [ETHTOOL_GLINK, 0];
    // SAFETY: the kernel writes one word of data.
    unsafe { sys::ethtool(fd, name, &mut value) }.ok()?;
    Some(value[1] != 0)
}

/// The name of the device's driver; `None` if the kernel does not tell.
pub(crate) fn driver(fd: BorrowedFd<'_>, name: InterfaceName) -> Option<String> {
    // struct ethtool_drvinfo: cmd, driver[32], four more texts of 32 bytes, reserved[12], five
    // counts.
    let mut info = [0_u32; 1 + 5 * NAME_WORDS + 3 + 5];
    info[0] = ETHTOOL_GDRVINFO;
    // SAFETY: the kernel writes one `struct ethtool_drvinfo`, 196 bytes, which is `info`'s size.
    unsafe { sys::ethtool(fd, name, &mut info) }.ok()?;
    let bytes = info.get(1..1 + NAME_WORDS)?.iter();
    let bytes = bytes.flat_map(|word| word.to_ne_bytes());
    let bytes: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
    String::from_utf8(bytes).ok()
}

/// Whether the device takes the tags off frames of VLANs before anything else sees them; `None` if the
/// kernel does not tell. `protocol` is the tag's Ethernet type.
pub(crate) fn removes_vlan_tags(
    fd: BorrowedFd<'_>,
    name: InterfaceName,
    protocol: u16,
) -> Option<bool> {
    let (_, feature) = vlan_feature(protocol);
    let [bit] = bits(fd, name, [feature])?;
    are_active(fd, name, &[bit])
}

/// The feature that removes tags of this Ethernet type: as `ethtool -K` takes it, and as the kernel does.
pub(crate) const fn vlan_feature(protocol: u16) -> (&'static str, &'static [u8]) {
    const ETHERTYPE_VLAN: u16 = 0x8100;
    match protocol {
        ETHERTYPE_VLAN => ("rxvlan", b"rx-vlan-hw-parse"),
        _ => ("rx-vlan-stag-hw-parse", b"rx-vlan-stag-hw-parse"),
    }
}

/// The bit numbers of the two segmentation features.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentationFeatures {
    bits: [usize; 2],
}

impl SegmentationFeatures {
    /// Looks the bit numbers up. `None` if the kernel does not report them.
    pub(crate) fn look_up(fd: BorrowedFd<'_>, name: InterfaceName) -> Option<Self> {
        bits(fd, name, NAMES).map(|bits| Self { bits })
    }

    /// Whether both are known to be switched on now.
    pub(crate) fn are_active(self, fd: BorrowedFd<'_>, name: InterfaceName) -> bool {
        are_active(fd, name, &self.bits) == Some(true)
    }
}

/// The bit numbers of features. `None` if the kernel does not report them.
fn bits<const N: usize>(
    fd: BorrowedFd<'_>,
    name: InterfaceName,
    wanted: [&[u8]; N],
) -> Option<[usize; N]> {
    // struct ethtool_sset_info: cmd, reserved, sset_mask (u64), data[1]
    let mut info = [ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 0, 0];
    // SAFETY: one bit of the mask is set, so the kernel writes one word of data.
    unsafe { sys::ethtool(fd, name, &mut info) }.ok()?;
    let count = usize::try_from(info[4])
        .ok()
        .filter(|&count| count <= FEATURES_MAX)?;

    // struct ethtool_gstrings: cmd, string_set, len, data[len * 32]
    let mut strings = [0_u32; 3 + FEATURES_MAX * NAME_WORDS];
    strings[..2].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_FEATURES]);
    // SAFETY: the kernel writes `count` names of 32 bytes, and FEATURES_MAX of them fit.
    unsafe { sys::ethtool(fd, name, &mut strings) }.ok()?;
    let names = strings.get(3..3 + count * NAME_WORDS)?;
    let mut bits = [0; N];
    for (bit, wanted) in bits.iter_mut().zip(wanted) {
        *bit = names.chunks_exact(NAME_WORDS).position(|words| {
            let bytes = words.iter().flat_map(|word| word.to_ne_bytes());
            bytes
                .take_while(|&byte| byte != 0)
                .eq(wanted.iter().copied())
        })?;
    }
    Some(bits)
}

/// Whether all of these features are switched on now; `None` if the kernel does not tell.
fn are_active(fd: BorrowedFd<'_>, name: InterfaceName, bits: &[usize]) -> Option<bool> {
    // struct ethtool_gfeatures: cmd, size in blocks, blocks[size]
    let mut features = [0_u32; 2 + BLOCKS_MAX * BLOCK_WORDS];
    features[0] = ETHTOOL_GFEATURES;
    features[1] = u32::try_from(BLOCKS_MAX).expect("invariant: a small constant");
    // SAFETY: the kernel writes at most as many blocks as the size says, and they fit.
    unsafe { sys::ethtool(fd, name, &mut features) }.ok()?;
    let is_active = |bit: &usize| {
        let word = features.get(2 + bit / 32 * BLOCK_WORDS + BLOCK_ACTIVE);
        word.is_some_and(|word| word >> (bit % 32) & 1 == 1)
    };
    Some(bits.iter().all(is_active))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::{SegmentationFeatures, driver, has_carrier, removes_vlan_tags};
    use crate::interface::InterfaceName;
    use crate::sys;

    #[test]
    fn loopback_has_both_features_and_a_missing_interface_none() {
        let socket = sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0).unwrap();
        let loopback = InterfaceName::parse("lo").unwrap();
        let missing = InterfaceName::parse("no-such-link").unwrap();
        let features = SegmentationFeatures::look_up(socket.as_fd(), loopback).unwrap();
        assert!(features.are_active(socket.as_fd(), loopback));
        assert!(!features.are_active(socket.as_fd(), missing));
        assert!(SegmentationFeatures::look_up(socket.as_fd(), missing).is_none());
        assert_eq!(has_carrier(socket.as_fd(), loopback), Some(true));
        assert_eq!(has_carrier(socket.as_fd(), missing), None);
        assert_eq!(driver(socket.as_fd(), missing), None);
        for protocol in [0x8100, 0x88a8] {
            let removes = |name| removes_vlan_tags(socket.as_fd(), name, protocol);
            assert_eq!((removes(loopback), removes(missing)), (Some(false), None));
        }
    }
}
