//! Opens a tap or macvtap, and undoes its changes to the host when dropped.
//!
//! It sets the virtio-net header and its length, the offloads we accept (large TCP segments and
//! partial checksums, so that the host neither segments nor computes checksums for us), a large send
//! buffer, the link up, and the host's addresses. It uses ioctls and rtnetlink and runs no program.
//! It refuses interfaces of other kinds, and a tap with several queues that another process also has
//! queues of: it would get a share of our frames. Bound: the addresses in [`TapConfig`].
//!
//! Each queue is a descriptor of its own. A tap is made for one queue or for several
//! (`IFF_MULTI_QUEUE`), and takes descriptors of that kind only; a macvtap takes any number.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use wire::MacAddress;

use super::{SEND_BUFFER_BYTES, TapConfig};
use crate::error::SetupError;
use crate::interface::{InterfaceAddress, InterfaceName, clamp_mtu, derived_mac, describe};
use crate::netlink::{InterfaceDescription, Netlink};
use crate::sys::{self, errno_of};
use crate::vnet::VNET_HEADER_BYTES;
use crate::{Capabilities, IP_PACKET_BYTES_MAX, InterfaceState, segmentation_bytes_max};

/// Ethernet frames, no extra header but virtio-net's.
const MODE: i32 = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;

/// We take unfinished checksums and large TCP segments of both IP versions.
const OFFLOADS: u32 = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;

const TUN_PATH: &str = "/dev/net/tun";
const TUN_REMEDY: &str = "load it with `modprobe tun`; in a container pass it in \
                          (`--device /dev/net/tun`)";
const MACVTAP_REMEDY: &str = "udev makes it when the macvtap is made; in a container pass it in";
const CAPABILITY: &str = "cap_net_admin";

/// The interface behind descriptors: its capabilities, and what to undo when the last is closed.
#[derive(Clone, Debug)]
pub(super) struct Device {
    is_macvtap: bool,
    capabilities: Capabilities,
    host_addresses: Arc<HostAddresses>,
}

/// Addresses to remove from an interface that outlives this process.
#[derive(Debug)]
struct HostAddresses {
    index: i32,
    to_remove: Vec<InterfaceAddress>,
    /// Another process has them.
    is_left: AtomicBool,
}

impl Device {
    /// Opens the interface and as many descriptors of it, one for each queue.
    pub(super) fn open(config: &TapConfig, queues: usize) -> Result<(Vec<File>, Self), SetupError> {
        let name = InterfaceName::parse(&config.name)?;
        match find(name, queues)? {
            Some(found) if found.is_macvtap() => Self::open_macvtap(name, &found, queues),
            _ => Self::open_tap(name, config, queues),
        }
    }

    /// The same with descriptors that another process opened, one for each queue.
    pub(super) fn of_shared(
        config: &TapConfig,
        files: Vec<File>,
    ) -> Result<(Vec<File>, Self), SetupError> {
        let name = InterfaceName::parse(&config.name)?;
        let found = describe(name)?;
        if found.is_macvtap() {
            Self::of_macvtap(name, &found, files)
        } else {
            Self::of_tap(name, config, &found, files)
        }
    }

    /// The host's addresses are another process's from now on.
    pub(super) fn leave_host_addresses(&self) {
        self.host_addresses.is_left.store(true, Ordering::Relaxed);
    }

    pub(super) const fn is_macvtap(&self) -> bool {
        self.is_macvtap
    }

    pub(super) const fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// See [`crate::Link::apply_interface_state`]. The host's stack takes what we write to a tap in any size.
    pub(super) const fn apply_interface_state(&mut self, state: &InterfaceState) -> Capabilities {
        self.capabilities.mtu_bytes = state.mtu_bytes;
        if self.is_macvtap {
            self.capabilities.segmentation_bytes_max = state.segmentation_bytes_max;
        }
        self.capabilities
    }

    fn open_tap(
        name: InterfaceName,
        config: &TapConfig,
        queues: usize,
    ) -> Result<(Vec<File>, Self), SetupError> {
        let mode = if queues == 1 {
            MODE
        } else {
            MODE | libc::IFF_MULTI_QUEUE
        };
        let files = (0..queues).map(|_| {
            let file = open_node(name, TUN_PATH, TUN_REMEDY)?;
            attach(name, &file, mode)?;
            Ok(file)
        });
        let files: Vec<File> = files.collect::<Result<_, SetupError>>()?;
        let found = describe(name)?;
        // Another process may have come between.
        if found
            .tap
            .is_some_and(|tap| tap.queue_count as usize > queues)
        {
            return Err(name.error("attaching to the tap", CAPABILITY, libc::EBUSY));
        }
        Self::of_tap(name, config, &found, files)
    }

    fn of_tap(
        name: InterfaceName,
        config: &TapConfig,
        found: &InterfaceDescription,
        files: Vec<File>,
    ) -> Result<(Vec<File>, Self), SetupError> {
        let host_mac = found.ethernet_mac(name)?;
        let capabilities = Capabilities {
            mac: mac_differing_from(name, host_mac),
            mtu_bytes: clamp_mtu(found.mtu_bytes),
            // The host's stack receives what we write: no device's limits apply.
            segmentation_bytes_max: IP_PACKET_BYTES_MAX,
            checksum_offload: true,
        };
        let failed = |errno| name.error("setting the link up", CAPABILITY, errno);
        let mut netlink = Netlink::open().map_err(failed)?;
        netlink
            .set_flags(found.index, libc::IFF_UP.cast_unsigned())
            .map_err(failed)?;
        let failed = |errno| name.error("reading the mode of the tap", CAPABILITY, errno);
        let mode = files
            .first()
            .map_or(Ok(0), |file| sys::tun_flags(file.as_fd()));
        let persistent = i32::from(mode.map_err(failed)?) & libc::IFF_PERSIST != 0;
        let mut host_addresses = HostAddresses {
            index: found.index,
            to_remove: Vec::new(),
            is_left: AtomicBool::new(false),
        };
        for &address in &config.host_addresses {
            let added = add_address(&mut netlink, name, found.index, address)?;
            if added && persistent {
                host_addresses.to_remove.push(address);
            }
        }
        let device = Self {
            is_macvtap: false,
            capabilities,
            host_addresses: Arc::new(host_addresses),
        };
        Ok((files, device))
    }

    fn open_macvtap(
        name: InterfaceName,
        found: &InterfaceDescription,
        queues: usize,
    ) -> Result<(Vec<File>, Self), SetupError> {
        let path = format!("/dev/tap{}", found.index);
        let mac = found.ethernet_mac(name)?;
        let files = (0..queues).map(|_| {
            let file = open_node(name, &path, MACVTAP_REMEDY)?;
            check_owner(name, &file, &path, mac)?;
            attach(name, &file, MODE)?;
            Ok(file)
        });
        let files: Vec<File> = files.collect::<Result<_, SetupError>>()?;
        Self::of_macvtap(name, found, files)
    }

    fn of_macvtap(
        name: InterfaceName,
        found: &InterfaceDescription,
        files: Vec<File>,
    ) -> Result<(Vec<File>, Self), SetupError> {
        let mac = found.ethernet_mac(name)?;
        let failed = |errno| name.error("setting the link up", CAPABILITY, errno);
        // The host joins no multicast group for our IPv6 addresses. So the interface has to receive
        // all groups, or neighbour solicitations would not arrive.
        let flags = (libc::IFF_UP | libc::IFF_ALLMULTI).cast_unsigned();
        let set_up = |mut netlink: Netlink| netlink.set_flags(found.index, flags);
        Netlink::open().and_then(set_up).map_err(failed)?;
        let capabilities = Capabilities {
            // The macvlan driver hands us only frames to this address.
            mac,
            mtu_bytes: clamp_mtu(found.mtu_bytes),
            segmentation_bytes_max: segmentation_bytes_max(found.gso_bytes_max),
            checksum_offload: true,
        };
        let device = Self {
            is_macvtap: true,
            capabilities,
            host_addresses: Arc::new(HostAddresses {
                index: found.index,
                to_remove: Vec::new(),
                is_left: AtomicBool::new(false),
            }),
        };
        Ok((files, device))
    }
}

impl Drop for HostAddresses {
    fn drop(&mut self) {
        if self.to_remove.is_empty() || *self.is_left.get_mut() {
            return;
        }
        // A failure cannot be reported any more; at worst an address stays.
        if let Ok(mut netlink) = Netlink::open() {
            for InterfaceAddress {
                address,
                prefix_bits,
            } in self.to_remove.drain(..)
            {
                let _ = netlink.remove_address(self.index, address, prefix_bits);
            }
        }
    }
}

/// See [`super::Tap::check`].
pub(super) fn check(name: &str, queues: usize) -> Result<(), SetupError> {
    let name = InterfaceName::parse(name)?;
    match find(name, queues)? {
        Some(found) if found.is_macvtap() => {
            let path = format!("/dev/tap{}", found.index);
            let file = open_node(name, &path, MACVTAP_REMEDY)?;
            check_owner(name, &file, &path, found.ethernet_mac(name)?)
        }
        _ => open_node(name, TUN_PATH, TUN_REMEDY).map(drop),
    }
}

/// The interface, if there is one of the name: a macvtap, or a tap that takes descriptors for as many
/// queues. `None`: it is to be made.
fn find(name: InterfaceName, queues: usize) -> Result<Option<InterfaceDescription>, SetupError> {
    match describe(name) {
        Ok(found) if found.is_macvtap() => Ok(Some(found)),
        Ok(found) if found.kind.as_deref() != Some("tun") => Err(SetupError::NotATap {
            name: name.as_str().to_owned(),
            kind: found.kind.unwrap_or_else(|| "device".to_owned()),
        }),
        Ok(found) => check_kind(name, &found, queues).map(|()| Some(found)),
        Err(SetupError::NoInterface { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Refuses an existing tap that takes no descriptor for one of `queues` queues, or has others already.
fn check_kind(
    name: InterfaceName,
    found: &InterfaceDescription,
    queues: usize,
) -> Result<(), SetupError> {
    match found.tap {
        Some(tap) if tap.is_multi_queue != (queues > 1) => Err(SetupError::TapQueues {
            name: name.as_str().to_owned(),
            is_multi_queue: tap.is_multi_queue,
        }),
        Some(tap) if tap.queue_count > 0 => {
            Err(name.error("attaching to the tap", CAPABILITY, libc::EBUSY))
        }
        _ => Ok(()),
    }
}

/// Opens a tap's character device.
fn open_node(name: InterfaceName, path: &str, remedy: &'static str) -> Result<File, SetupError> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
    options.open(path).map_err(|error| match errno_of(&error) {
        // ENODEV and ENXIO: the node is there and no driver behind it.
        libc::ENOENT | libc::ENODEV | libc::ENXIO => SetupError::NoDevice {
            path: path.to_owned(),
            remedy,
        },
        // No capability is asked for before the node is open.
        errno @ (libc::EACCES | libc::EPERM) => SetupError::NodeNotPermitted {
            path: path.to_owned(),
            errno,
        },
        errno => name.error("opening the tap device", CAPABILITY, errno),
    })
}

/// Refuses a node that belongs to another interface. Nodes are numbered by interface index, every
/// network namespace counts its indexes from 1, and all namespaces share `/dev`.
fn check_owner(
    name: InterfaceName,
    file: &File,
    path: &str,
    mac: MacAddress,
) -> Result<(), SetupError> {
    let failed = |errno| name.error("asking whose node it is", CAPABILITY, errno);
    if sys::macvtap_mac(file.as_fd()).map_err(failed)? == mac {
        return Ok(());
    }
    Err(SetupError::WrongDevice {
        path: path.to_owned(),
        name: name.as_str().to_owned(),
    })
}

/// Makes the descriptor one of the interface's, with our header, offloads and send buffer.
fn attach(name: InterfaceName, file: &File, mode: i32) -> Result<(), SetupError> {
    let mode = u16::try_from(mode).expect("invariant: mode flags fit 16 bits");
    let header_bytes = i32::try_from(VNET_HEADER_BYTES).expect("invariant: 10 fits");
    let fd = file.as_fd();
    sys::tun_attach(fd, name, mode)
        .and_then(|()| sys::tun_vnet_header_bytes(fd, header_bytes))
        .and_then(|()| sys::tun_offload(fd, OFFLOADS))
        .and_then(|()| sys::tun_send_buffer_bytes(fd, SEND_BUFFER_BYTES))
        .map_err(|errno| name.error("attaching to the tap", CAPABILITY, errno))
}

/// Gives the host's end an address; `false` if it already had it.
fn add_address(
    netlink: &mut Netlink,
    name: InterfaceName,
    index: i32,
    address: InterfaceAddress,
) -> Result<bool, SetupError> {
    let InterfaceAddress {
        address,
        prefix_bits,
    } = address;
    match netlink.add_address(index, address, prefix_bits) {
        Ok(()) => Ok(true),
        Err(libc::EEXIST) => Ok(false),
        Err(errno) => {
            let name = name.as_str().to_owned();
            Err(SetupError::Address {
                name,
                address,
                prefix_bits,
                errno,
            })
        }
    }
}

/// Our MAC on a tap: from the name, and never the one at the host's end.
fn mac_differing_from(name: InterfaceName, host_mac: MacAddress) -> MacAddress {
    let mut mac = derived_mac(&[b"tap", name.as_str().as_bytes()]);
    if mac == host_mac {
        mac.0[5] ^= 1;
    }
    mac
}

#[cfg(test)]
mod tests {
    use super::{InterfaceName, SetupError, mac_differing_from, open_node};
    use wire::MacAddress;

    #[test]
    fn our_mac_is_never_the_host_s() {
        let name = InterfaceName::parse("atlas0").unwrap();
        let usual = mac_differing_from(name, MacAddress([2, 0, 0, 0, 0, 1]));
        assert_eq!(
            usual,
            mac_differing_from(name, MacAddress([2, 0, 0, 0, 0, 2]))
        );
        assert_ne!(usual, mac_differing_from(name, usual));
    }

    #[test]
    fn the_error_for_a_missing_device_node_has_its_remedy() {
        let name = InterfaceName::parse("atlas0").unwrap();
        let error = open_node(name, "/dev/no-such-tun", "make it").unwrap_err();
        let expected = SetupError::NoDevice {
            path: "/dev/no-such-tun".to_owned(),
            remedy: "make it",
        };
        assert_eq!(error, expected);
        assert_eq!(error.to_string(), "/dev/no-such-tun is missing: make it");
    }
}
