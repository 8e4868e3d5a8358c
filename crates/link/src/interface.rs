//! Names, addresses and descriptions of the host's interfaces, asked at start only. It refuses names
//! that the kernel would refuse or read as a pattern. Bound: one netlink request per question.

use std::net::IpAddr;

use wire::MacAddress;

use crate::error::SetupError;
use crate::netlink::{InterfaceDescription, Netlink};

/// An address and its prefix length, as given to the host's end of a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The address.
    pub address: IpAddr,
    /// Bits of it that name the network: up to 32 for IPv4, 128 for IPv6.
    pub prefix_bits: u8,
}

/// Whether an interface of this name exists in the network namespace of the calling thread.
///
/// # Errors
/// [`SetupError`] for a name that none can have, or when the kernel does not answer.
pub fn interface_exists(name: &str) -> Result<bool, SetupError> {
    match describe(InterfaceName::parse(name)?) {
        Ok(_) => Ok(true),
        Err(SetupError::NoInterface { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The largest IP packet of one frame of an interface, bytes; 65,535 if it is larger.
///
/// # Errors
/// [`SetupError`] if there is no such interface.
pub fn interface_mtu_bytes(name: &str) -> Result<u16, SetupError> {
    Ok(clamp_mtu(describe(InterfaceName::parse(name)?)?.mtu_bytes))
}

/// The MAC address of an interface; `None` if it has none of six bytes.
///
/// # Errors
/// [`SetupError`] if there is no such interface.
pub fn interface_mac(name: &str) -> Result<Option<MacAddress>, SetupError> {
    Ok(describe(InterfaceName::parse(name)?)?.mac.map(MacAddress))
}

/// Whether an existing interface is a macvtap, which [`crate::Tap`] opens in its own way.
///
/// # Errors
/// [`SetupError`] if there is no such interface.
pub fn is_macvtap(name: &str) -> Result<bool, SetupError> {
    Ok(describe(InterfaceName::parse(name)?)?.is_macvtap())
}

/// An interface name as the kernel takes it: checked, and with room for its final NUL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InterfaceName([u8; libc::IFNAMSIZ]);

impl InterfaceName {
    pub(crate) fn parse(name: &str) -> Result<Self, SetupError> {
        let bad = |reason| SetupError::BadName {
            name: name.to_owned(),
            reason,
        };
        if name.is_empty() {
            return Err(bad("it is empty"));
        }
        if name.len() >= libc::IFNAMSIZ {
            return Err(bad("it is longer than 15 bytes"));
        }
        if name == "." || name == ".." {
            return Err(bad("it is reserved"));
        }
        // A '%' would make the kernel choose a number and us another interface than named.
        let forbidden = |c: char| c.is_whitespace() || c.is_control() || "/:%".contains(c);
        if name.contains(forbidden) {
            return Err(bad("it contains a forbidden character"));
        }
        let mut bytes = [0; libc::IFNAMSIZ];
        for (place, byte) in bytes.iter_mut().zip(name.bytes()) {
            *place = byte;
        }
        Ok(Self(bytes))
    }

    /// A name that the kernel told; `None` if it is not UTF-8.
    pub(crate) fn of_kernel(bytes: [u8; libc::IFNAMSIZ]) -> Option<Self> {
        let name = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        std::str::from_utf8(name).is_ok().then_some(Self(bytes))
    }

    pub(crate) const fn to_bytes(self) -> [u8; libc::IFNAMSIZ] {
        self.0
    }

    pub(crate) fn as_str(&self) -> &str {
        let bytes = self.0.split(|&byte| byte == 0).next().unwrap_or_default();
        std::str::from_utf8(bytes).expect("invariant: names are checked to be UTF-8")
    }

    /// The error of a failed operation on this interface, with the remedies that are known.
    pub(crate) fn error(
        &self,
        operation: &'static str,
        capability: &'static str,
        errno: i32,
    ) -> SetupError {
        let name = self.as_str().to_owned();
        match errno {
            libc::EPERM | libc::EACCES => SetupError::NotPermitted {
                operation,
                name,
                capability,
            },
            libc::ENODEV | libc::ENXIO => SetupError::NoInterface { name },
            libc::EBUSY => SetupError::Busy { name },
            errno => SetupError::Kernel {
                operation,
                name,
                errno,
            },
        }
    }
}

/// Asks the kernel about an interface.
pub(crate) fn describe(name: InterfaceName) -> Result<InterfaceDescription, SetupError> {
    let describe = |mut netlink: Netlink| netlink.describe(name.as_str());
    let failed = |errno| name.error("describing the interface", "cap_net_admin", errno);
    Netlink::open().and_then(describe).map_err(failed)
}

/// The interface whose driver sends and receives the frames: below a VLAN device, another one. Itself, if
/// that cannot be told.
pub(crate) fn device_of(name: InterfaceName, found: &InterfaceDescription) -> InterfaceName {
    let lower = found.lower.filter(|lower| !lower.is_elsewhere);
    let (Some(_), Some(lower)) = (found.vlan, lower) else {
        return name;
    };
    let describe = |mut netlink: Netlink| netlink.describe_index(lower.index);
    let below = Netlink::open().and_then(describe).ok();
    let below = below.and_then(|below| InterfaceName::parse(&below.name).ok());
    below.unwrap_or(name)
}

/// An MTU as [`crate::Capabilities`] says it.
pub(crate) fn clamp_mtu(mtu_bytes: u32) -> u16 {
    u16::try_from(mtu_bytes).unwrap_or(u16::MAX)
}

impl InterfaceDescription {
    pub(crate) fn is_macvtap(&self) -> bool {
        self.kind.as_deref() == Some("macvtap")
    }

    /// The interface's own MAC, if it carries Ethernet frames.
    pub(crate) fn ethernet_mac(&self, name: InterfaceName) -> Result<MacAddress, SetupError> {
        match self.mac {
            Some(mac) if self.hardware_type == libc::ARPHRD_ETHER => Ok(MacAddress(mac)),
            _ => Err(SetupError::NotEthernet {
                name: name.as_str().to_owned(),
                hardware_type: self.hardware_type,
            }),
        }
    }
}

/// A unicast, locally administered MAC address derived from `parts`: the same at every start, so
/// that neighbours' ARP caches stay valid over a restart.
pub(crate) fn derived_mac(parts: &[&[u8]]) -> MacAddress {
    // FNV-1a, 64 bits. A chosen collision gains nothing: a user who can name our interfaces can
    // also set their addresses.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        // The separator keeps ("ab", "c") apart from ("a", "bc"); no part contains it alone.
        for &byte in part.iter().chain(&[0xff]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    let [a, b, c, d, e, f, g, h] = hash.to_be_bytes();
    // IEEE 802 s8.2: bit 0 of the first byte is "group", bit 1 is "local".
    MacAddress([(a ^ g) & 0xfc | 0x02, b ^ h, c, d, e, f])
}

#[cfg(test)]
mod tests {
    use super::{InterfaceName, clamp_mtu, derived_mac, interface_exists, interface_mtu_bytes};
    use crate::error::SetupError;

    #[test]
    fn names_are_checked_on_both_sides_of_their_limits() {
        for good in ["a", "tap0", "fifteen-bytes-x", "v.lan_2", "ü"] {
            assert_eq!(InterfaceName::parse(good).unwrap().as_str(), good);
        }
        let bad = [
            "",
            "sixteen-bytes-xx",
            ".",
            "..",
            "a/b",
            "a b",
            "a:1",
            "tap%d",
            "a\0b",
            "a\n",
        ];
        for name in bad {
            let error = InterfaceName::parse(name).unwrap_err();
            assert!(
                matches!(error, SetupError::BadName { .. }),
                "{name:?}: {error}"
            );
        }
    }

    #[test]
    fn errors_name_their_remedy() {
        let name = InterfaceName::parse("atlas0").unwrap();
        let text = |errno| name.error("opening", "cap_net_admin", errno).to_string();
        assert!(text(libc::EPERM).contains("run as root, or `setcap cap_net_admin+ep`"));
        assert!(text(libc::EBUSY).contains("in use by another process"));
        assert!(text(libc::ENODEV).contains("`ip link` lists them"));
        assert!(text(libc::ENOMEM).contains("opening for \"atlas0\" failed"));
    }

    #[test]
    fn derived_macs_are_local_stable_and_distinct() {
        let mac = derived_mac(&[b"atlas0"]);
        assert_eq!(mac, derived_mac(&[b"atlas0"]));
        assert_ne!(mac, derived_mac(&[b"atlas1"]));
        assert_ne!(derived_mac(&[b"ab", b"c"]), derived_mac(&[b"a", b"bc"]));
        for number in 0..=255_u8 {
            assert_eq!(
                derived_mac(&[&[number]]).0[0] & 0x03,
                0x02,
                "local, not group"
            );
        }
    }

    #[test]
    fn interface_queries_work_for_loopback_and_a_missing_interface() {
        assert_eq!(interface_exists("lo"), Ok(true));
        assert_eq!(interface_exists("no-such-link"), Ok(false));
        assert!(interface_exists("").is_err());
        assert_eq!(
            interface_mtu_bytes("lo"),
            Ok(u16::MAX),
            "65,536 is more than can be said"
        );
        assert_eq!(clamp_mtu(1_500), 1_500);
    }
}
