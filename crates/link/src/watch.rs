//! The state of an interface (up, carrier, MTU, GSO limit), notifications of its changes, and of changes of
//! the host's addresses and routes.
//!
//! The server asks before it serves, until the interface carries frames, and then once in a while:
//! an operator may change the interface, and its carrier may fail. It refuses to say what changed:
//! a netlink notification only triggers a new query, and the answer is the state at that moment. It asks by the
//! interface's index, since that stays the same when the interface is renamed.
//!
//! Bounds: two netlink sockets; the kernel bounds their queues.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use wire::MacAddress;

use crate::error::SetupError;
use crate::interface::{InterfaceName, clamp_mtu};
use crate::netlink::{InterfaceDescription, Netlink, Notifications};
use crate::segmentation_bytes_max;

/// The state of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceState {
    /// An operator has set it up.
    pub is_up: bool,
    /// There is something at the other end. An interface that is down has none.
    pub has_carrier: bool,
    /// It is a port of a bridge or a bond, so that others are behind it.
    pub has_master: bool,
    /// Largest IP packet of one frame, bytes; 65,535 if it is larger.
    pub mtu_bytes: u16,
    /// Largest IP packet it takes in one piece to cut it, bytes.
    pub segmentation_bytes_max: u32,
}

impl InterfaceState {
    /// Whether frames can pass.
    #[must_use]
    pub const fn carries_frames(&self) -> bool {
        self.is_up && self.has_carrier
    }

    fn new(found: &InterfaceDescription) -> Self {
        let has = |flag: i32| found.flags & flag.cast_unsigned() != 0;
        Self {
            is_up: has(libc::IFF_UP),
            has_carrier: has(libc::IFF_LOWER_UP),
            has_master: found.has_master,
            mtu_bytes: clamp_mtu(found.mtu_bytes),
            segmentation_bytes_max: segmentation_bytes_max(found.gso_bytes_max),
        }
    }
}

/// Watches one interface.
#[derive(Debug)]
pub struct InterfaceWatch {
    name: InterfaceName,
    index: i32,
    notifications: Notifications,
    netlink: Netlink,
    state: InterfaceState,
    /// A change was notified since the state was last told by the kernel.
    is_interface_changed: bool,
    /// Addresses or routes have changed since they were asked for.
    is_address_changed: bool,
}

impl InterfaceWatch {
    /// Begins to watch the interface called `name`, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`SetupError`]: there is no such interface, or the kernel does not answer.
    pub fn open(name: &str) -> Result<Self, SetupError> {
        let name = InterfaceName::parse(name)?;
        let failed = |errno| name.error(OPERATION, CAPABILITY, errno);
        // In this order: a change after the answer is then notified.
        let notifications = Notifications::open().map_err(failed)?;
        let mut netlink = Netlink::open().map_err(failed)?;
        let found = netlink.describe(name.as_str()).map_err(failed)?;
        Ok(Self {
            name,
            index: found.index,
            notifications,
            netlink,
            state: InterfaceState::new(&found),
            is_interface_changed: false,
            is_address_changed: false,
        })
    }

    /// The interface's name at the last query.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The interface's index, which stays the same when it is renamed.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.index.cast_unsigned()
    }

    /// The state at the last query.
    #[must_use]
    pub const fn state(&self) -> InterfaceState {
        self.state
    }

    /// Asks again if the kernel has notified a change; `None` if the state is the same.
    ///
    /// # Errors
    /// [`SetupError`]: the interface was removed or moved to another network namespace, or the kernel does not
    /// answer. The next call asks again.
    pub fn take_change(&mut self) -> Result<Option<InterfaceState>, SetupError> {
        let notified = self.notifications.take(self.index);
        self.is_address_changed |= notified.is_address;
        self.is_interface_changed |= notified.is_interface;
        if !self.is_interface_changed {
            return Ok(None);
        }
        let name = self.name;
        let failed = |errno| name.error(OPERATION, CAPABILITY, errno);
        let found = self.netlink.describe_index(self.index).map_err(failed)?;
        self.is_interface_changed = false;
        self.name = InterfaceName::parse(&found.name).unwrap_or(name);
        let state = InterfaceState::new(&found);
        let is_changed = state != self.state;
        self.state = state;
        Ok(is_changed.then_some(state))
    }

    /// Follows the host's addresses and routes, too, of all interfaces.
    ///
    /// # Errors
    /// [`SetupError`]: the kernel does not let us.
    pub fn follow_addresses(&mut self) -> Result<(), SetupError> {
        let failed = |errno| self.name.error("following addresses", CAPABILITY, errno);
        self.notifications.follow_addresses().map_err(failed)?;
        // What changed before is not notified.
        self.is_address_changed = true;
        Ok(())
    }

    /// Whether addresses or routes may have changed since the last call, as [`InterfaceWatch::take_change`]
    /// has heard.
    pub const fn take_address_change(&mut self) -> bool {
        std::mem::replace(&mut self.is_address_changed, false)
    }

    /// The MAC address at which the kernel has this neighbour on the interface; `None`: it knows none.
    ///
    /// # Errors
    /// [`SetupError`]: the kernel does not answer.
    pub fn neighbor(&mut self, address: IpAddr) -> Result<Option<MacAddress>, SetupError> {
        let failed = |errno| self.name.error("asking for a neighbour", CAPABILITY, errno);
        let answer = self.netlink.neighbor(self.index, address);
        answer.map_err(failed)
    }

    /// Readable when [`InterfaceWatch::take_change`] may have something.
    #[must_use]
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.notifications.fd()
    }
}

const OPERATION: &str = "describing the interface";
const CAPABILITY: &str = "cap_net_admin";

#[cfg(test)]
mod tests {
    use super::{InterfaceState, InterfaceWatch, Netlink, SetupError};

    #[test]
    fn loopback_carries_frames_and_a_missing_interface_is_refused() {
        let mut watch = InterfaceWatch::open("lo").unwrap();
        assert!(watch.state().carries_frames());
        assert!(!watch.state().has_master);
        assert_eq!(watch.state().mtu_bytes, u16::MAX);
        assert_eq!(watch.take_change(), Ok(None));
        let refusal = InterfaceWatch::open("no-such-link").unwrap_err();
        assert!(matches!(refusal, SetupError::NoInterface { .. }));
    }

    #[test]
    fn a_change_that_could_not_be_looked_at_is_looked_at_again() {
        let mut watch = InterfaceWatch::open("lo").unwrap();
        let real = watch.state;
        watch.is_interface_changed = true;
        watch.state.mtu_bytes = 1;
        let netlink = std::mem::replace(&mut watch.netlink, Netlink::silent());
        assert!(watch.take_change().is_err());
        watch.netlink = netlink;
        assert_eq!(watch.take_change(), Ok(Some(real)));
        watch.state.mtu_bytes = 1;
        assert_eq!(watch.take_change(), Ok(None), "nothing was notified since");
    }

    #[test]
    fn frames_pass_where_it_is_up_and_has_carrier() {
        let lo = InterfaceWatch::open("lo").unwrap().state();
        for (is_up, has_carrier) in [(false, false), (true, false), (false, true), (true, true)] {
            let state = InterfaceState {
                is_up,
                has_carrier,
                ..lo
            };
            assert_eq!(state.carries_frames(), is_up && has_carrier);
        }
    }
}
