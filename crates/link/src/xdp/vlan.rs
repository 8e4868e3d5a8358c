//! The interface that an XDP program is attached to: the one that was named or, if that is a VLAN device,
//! the one below it, whose frames of that VLAN have a tag.
//!
//! It refuses a VLAN whose frames XDP cannot tell from others: one within a VLAN, one whose lower
//! interface is in another network namespace, and one below which the device removes the tags. Bounds: a
//! few queries at the start; for a VLAN device one socket, asked by two system calls for its state.

use std::os::fd::{AsFd as _, OwnedFd};

use crate::error::SetupError;
use crate::features;
use crate::interface::InterfaceName;
use crate::netlink::{InterfaceDescription, Lower, Netlink, VlanTag};
use crate::sys;

/// Bytes of a VLAN's tag, behind the MAC addresses of a frame.
pub(super) const TAG_BYTES: usize = 4;

/// Where frames arrive, before a VLAN's tag is removed.
#[derive(Clone, Debug)]
pub(super) struct Device {
    /// What the program is attached to, and the sockets are bound to.
    pub(super) name: InterfaceName,
    pub(super) index: i32,
    /// Largest IP packet of one frame, whatever its tag, bytes.
    pub(super) mtu_bytes: u32,
    /// Whether other interfaces of this host, or its own stack, are at the other end, so that frames may
    /// have unfinished checksums.
    pub(super) is_virtual: bool,
    /// The tag that our frames have.
    pub(super) tag: Option<VlanTag>,
}

impl Device {
    /// Below the interface that `found` describes; `tag` is for one that is no VLAN device.
    pub(super) fn find(
        name: InterfaceName,
        found: &InterfaceDescription,
        tag: Option<VlanTag>,
    ) -> Result<Self, SetupError> {
        let device = match found.vlan {
            Some(tag) => Self::below(name, found.lower, tag)?,
            None => Self::new(name, found, tag),
        };
        device.refuse_removed_tags()?;
        Ok(device)
    }

    fn new(name: InterfaceName, found: &InterfaceDescription, tag: Option<VlanTag>) -> Self {
        Self {
            name,
            index: found.index,
            mtu_bytes: found.mtu_bytes,
            is_virtual: found.kind.is_some(),
            tag,
        }
    }

    /// The interface below a VLAN device.
    fn below(vlan: InterfaceName, lower: Option<Lower>, tag: VlanTag) -> Result<Self, SetupError> {
        let refuse = |reason| SetupError::VlanDevice {
            name: vlan.as_str().to_owned(),
            reason,
        };
        let Some(Lower {
            index,
            is_elsewhere: false,
        }) = lower
        else {
            return Err(refuse(
                "the interface below it is in another network namespace",
            ));
        };
        let describe = |mut netlink: Netlink| netlink.describe_index(index);
        let failed = |errno| vlan.error("describing the interface below", "cap_net_admin", errno);
        let found = Netlink::open().and_then(describe).map_err(failed)?;
        if found.vlan.is_some() {
            return Err(refuse("its frames have two tags"));
        }
        let name = InterfaceName::parse(&found.name)?;
        found.ethernet_mac(name)?;
        Ok(Self::new(name, &found, Some(tag)))
    }

    fn refuse_removed_tags(&self) -> Result<(), SetupError> {
        let Some(VlanTag { protocol, .. }) = self.tag else {
            return Ok(());
        };
        let failed = |errno| {
            self.name
                .error("asking for the device's features", "cap_net_admin", errno)
        };
        let socket = sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0).map_err(failed)?;
        match features::removes_vlan_tags(socket.as_fd(), self.name, protocol) {
            Some(false) => Ok(()),
            Some(true) => Err(SetupError::VlanTagsRemoved {
                device: self.name.as_str().to_owned(),
                feature: features::vlan_feature(protocol).0,
            }),
            // Every kernel that has AF_XDP tells.
            None => Err(failed(libc::EOPNOTSUPP)),
        }
    }

    /// The tag as it stands in a frame, priority 0.
    pub(super) fn tag_bytes(&self) -> Option<[u8; TAG_BYTES]> {
        let VlanTag { protocol, id } = self.tag?;
        let ([a, b], [c, d]) = (protocol.to_be_bytes(), id.to_be_bytes());
        Some([a, b, c, d])
    }
}

/// A VLAN device, whose state is not that of the interface below it.
#[derive(Debug)]
pub(super) struct VlanDevice {
    /// A packet socket that receives nothing.
    socket: OwnedFd,
}

impl VlanDevice {
    /// Watches the device of this index.
    ///
    /// # Errors
    /// The errno of the call that failed.
    pub(super) fn open(index: i32) -> Result<Self, i32> {
        let socket = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
        sys::bind_to_interface(socket.as_fd(), index, 0)?;
        Ok(Self { socket })
    }

    /// `ENETDOWN` if it is down, `ENODEV` if it was removed.
    pub(super) fn check(&self) -> Result<(), i32> {
        let fd = self.socket.as_fd();
        let index = sys::bound_interface(fd)?;
        if index <= 0 {
            return Err(libc::ENODEV);
        }
        let flags = sys::interface_flags(fd, index)?;
        if i32::from(flags) & libc::IFF_UP == 0 {
            return Err(libc::ENETDOWN);
        }
        Ok(())
    }
}
