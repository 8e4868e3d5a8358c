//! Why a link could not be opened, why a frame was not taken, why receiving ended.
//!
//! Errors at start are read by a person and end in what to do; they own strings. Errors at run
//! time are `Copy` and carry the errno.

use std::net::{IpAddr, SocketAddr};

use thiserror::Error;

/// Why a frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TransmitError {
    /// Nothing was sent: offer the same frame again later, see [`crate::Link::transmit`].
    #[error("the transmit queue is full")]
    Full,
    /// The frame is lost (interface down, too large, kernel error): counted, TCP recovers.
    /// Carries the errno.
    #[error("the frame is lost: {}", std::io::Error::from_raw_os_error(*.0))]
    Lost(i32),
}

/// Why a link copies each frame instead of sending it from the slot it is in.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CopyReason {
    /// This kind of link always copies.
    #[error("this kind of link copies")]
    Unsupported,
    /// So it was chosen.
    #[error("switched off")]
    Off,
    /// The kernel would segment frames in software, and read every byte for that.
    #[error("the device does not segment TCP")]
    NoSegmentation,
    /// The driver is not known to release a frame only when its device has read it.
    #[error("driver {driver:?} is not known to complete frames when they have been read")]
    UnknownDriver {
        /// As ethtool names it; empty if the device has none.
        driver: String,
    },
    /// The device does not access the socket's memory itself, or takes only frames of one buffer.
    #[error("the device does not read frames of several buffers itself")]
    OneBuffer,
    /// The socket's memory has the slots of the process that this one took over from.
    #[error("the socket was taken over, and lends the slots of the process that made it")]
    OtherProcess,
    /// The kernel made no transmit ring of the slots, or did not map them. Carries the errno.
    #[error("the slots cannot be lent: {}", std::io::Error::from_raw_os_error(*.0))]
    NoRing(i32),
}

/// A device failure that receiving cannot go on after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The interface was removed. Carries the errno that told.
    #[error("the interface is gone: {}", std::io::Error::from_raw_os_error(*.0))]
    Gone(i32),
}

/// Why a link could not be opened. The text ends in what the operator can do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The name cannot be an interface's.
    #[error(
        "{name:?} cannot name an interface: {reason}; use 1 to 15 bytes without '/', ':', '%' or \
         spaces"
    )]
    BadName {
        /// The name as given.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// No interface has this name here.
    #[error("there is no interface {name:?} in this network namespace; `ip link` lists them")]
    NoInterface {
        /// The name as given.
        name: String,
    },
    /// The name belongs to an interface of another kind.
    #[error("{name:?} is an interface of kind {kind:?}, not a tap; choose another name")]
    NotATap {
        /// The name as given.
        name: String,
        /// What the kernel calls its kind, `"device"` if it has none.
        kind: String,
    },
    /// The interface does not carry Ethernet frames.
    #[error(
        "{name:?} does not carry Ethernet frames (hardware type {hardware_type}); choose one that \
         does"
    )]
    NotEthernet {
        /// The name as given.
        name: String,
        /// Its `ARPHRD_` number.
        hardware_type: u16,
    },
    /// The process lacks a capability.
    #[error(
        "{operation} for {name:?} is not permitted: it needs {capability}; run as root, or `setcap \
         {capability}+ep` the binary"
    )]
    NotPermitted {
        /// What was tried.
        operation: &'static str,
        /// The interface.
        name: String,
        /// The capability in the form `setcap` takes.
        capability: &'static str,
    },
    /// A device node does not exist.
    #[error("{path} is missing: {remedy}")]
    NoDevice {
        /// The node's path.
        path: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A device node exists and this process may not open it.
    #[error(
        "{path} cannot be opened: {}; {}",
        std::io::Error::from_raw_os_error(*.errno),
        node_permission_remedy(*.errno)
    )]
    NodeNotPermitted {
        /// The node's path.
        path: String,
        /// `EACCES`: its mode; `EPERM`: a container's or service's list of devices.
        errno: i32,
    },
    /// A device node exists and is another interface's.
    #[error(
        "{path} belongs to an interface of another network namespace, not to {name:?}; make the \
         interface again with a free number (`ip link add ... index NUMBER type macvtap`)"
    )]
    WrongDevice {
        /// The node's path.
        path: String,
        /// The interface.
        name: String,
    },
    /// Another process holds the interface.
    #[error("{name:?} is in use by another process; stop it or choose another name")]
    Busy {
        /// The name as given.
        name: String,
    },
    /// A packet link was given no address, or more than its filter holds.
    #[error("{count} addresses given; between 1 and {max} are possible")]
    AddressCount {
        /// How many were given.
        count: usize,
        /// How many are possible.
        max: usize,
    },
    /// No queue, or more than a link opens.
    #[error("{count} queues asked for; between 1 and {max} are possible")]
    QueueCount {
        /// How many were asked for.
        count: usize,
        /// How many are possible.
        max: usize,
    },
    /// The kernel did not join the queues of an interface.
    #[error(
        "the queues of {name:?} cannot be joined: {}; before Linux 6.13 the interface must be up \
         (`ip link set {name} up`)",
        std::io::Error::from_raw_os_error(*.errno)
    )]
    Fanout {
        /// The interface.
        name: String,
        /// The kernel's answer.
        errno: i32,
    },
    /// An existing tap was made for one queue and several are asked for, or the other way round.
    #[error("{}", tap_queues_text(.name, *.is_multi_queue))]
    TapQueues {
        /// The tap.
        name: String,
        /// Whether it was made for several queues.
        is_multi_queue: bool,
    },
    /// The host's end could not be given its address.
    #[error(
        "{address}/{prefix_bits} cannot be given to {name:?}: {}; for IPv6 see that the sysctl \
         net.ipv6.conf.{name}.disable_ipv6 is 0",
        std::io::Error::from_raw_os_error(*.errno)
    )]
    Address {
        /// The interface.
        name: String,
        /// The address.
        address: IpAddr,
        /// Its prefix length.
        prefix_bits: u8,
        /// The kernel's answer.
        errno: i32,
    },
    /// An AF_XDP link was given no port at an address that the host also has, or too many.
    #[error("{count} ports given for a shared address; between 1 and {max} are possible")]
    PortCount {
        /// How many were given.
        count: usize,
        /// How many are possible.
        max: usize,
    },
    /// An AF_XDP link was given a number of cells that its rings cannot have.
    #[error("{cells} cells given; a power of two from {min} to {max} is possible")]
    CellCount {
        /// How many were given.
        cells: u32,
        /// The fewest that are possible.
        min: u32,
        /// The most that are possible.
        max: u32,
    },
    /// The kernel has no AF_XDP sockets.
    #[error(
        "this kernel has no AF_XDP sockets (CONFIG_XDP_SOCKETS) or none that this needs (Linux 5.11); \
         use a packet link"
    )]
    NoXdp,
    /// There is an XDP program on the interface already.
    #[error(
        "{name:?} has another XDP program; see `ip link show dev {name}`, and stop what attached it or \
         remove it (`ip link set dev {name} xdp off`)"
    )]
    ProgramAttached {
        /// The interface.
        name: String,
    },
    /// The driver runs no XDP programs, and only the driver was to run it.
    #[error(
        "the driver of {name:?} runs no XDP program: {}; let the kernel run it (attach mode auto or \
         generic), or lower the MTU",
        std::io::Error::from_raw_os_error(*.errno)
    )]
    NoDriverMode {
        /// The interface.
        name: String,
        /// The kernel's answer.
        errno: i32,
    },
    /// The device cannot access the cells of a socket itself, and was to.
    #[error(
        "receive queue {queue} of {name:?} has no zero-copy mode: {}; let the kernel copy (zero copy \
         auto or off)",
        std::io::Error::from_raw_os_error(*.errno)
    )]
    NoZeroCopy {
        /// The interface.
        name: String,
        /// The receive queue.
        queue: u32,
        /// The kernel's answer.
        errno: i32,
    },
    /// A frame cannot be sent from slots, and was to.
    #[error(
        "receive queue {queue} of {name:?} takes no frames of several buffers: {} (Linux 6.6 does); let \
         frames be copied (zero copy auto or off)",
        std::io::Error::from_raw_os_error(*.errno)
    )]
    NoLoans {
        /// The interface.
        name: String,
        /// The receive queue.
        queue: u32,
        /// The kernel's answer.
        errno: i32,
    },
    /// The kernel cannot poll the receive queues on our behalf, and was to.
    #[error("the receive queues of {name:?} cannot be polled: {reason}; switch busy polling off")]
    NoBusyPoll {
        /// The interface.
        name: String,
        /// Why not.
        reason: &'static str,
    },
    /// Another socket has a receive queue of the interface.
    #[error(
        "receive queue {queue} of {name:?} belongs to another AF_XDP socket; stop its process or \
         choose another interface"
    )]
    QueueBusy {
        /// The interface.
        name: String,
        /// The receive queue.
        queue: u32,
    },
    /// The interface has more receive queues than there can be links.
    #[error(
        "{name:?} has {queues} receive queues, and {max} can be served; lower their number (`ethtool \
         -L {name} combined {max}`)"
    )]
    ReceiveQueueCount {
        /// The interface.
        name: String,
        /// How many it has.
        queues: u32,
        /// How many are possible.
        max: u32,
    },
    /// A VLAN's frames cannot be taken where the interface below it receives them.
    #[error("{name:?} is a VLAN device that XDP cannot serve: {reason}; use a packet link")]
    VlanDevice {
        /// The VLAN device.
        name: String,
        /// Why not.
        reason: &'static str,
    },
    /// The device below a VLAN takes the tags off frames, so that XDP cannot tell the VLAN.
    #[error(
        "{device:?} removes the tags of VLANs before XDP can see them: let it leave them in the frames \
         (`ethtool -K {device} {feature} off`) or use a packet link"
    )]
    VlanTagsRemoved {
        /// The interface below the VLAN device.
        device: String,
        /// The feature as `ethtool -K` takes it.
        feature: &'static str,
    },
    /// The process may not lock the memory that the device is to access.
    #[error(
        "{bytes} bytes of memory cannot be locked: raise the limit (`ulimit -l`, LimitMEMLOCK=, docker \
         --ulimit memlock), or grant cap_ipc_lock"
    )]
    LockedMemory {
        /// How much for one receive queue.
        bytes: u64,
    },
    /// A relay cannot take clients there.
    #[error("the host cannot listen at {address}: {}", listen_text(*.errno))]
    Listen {
        /// Where clients were to be taken.
        address: SocketAddr,
        /// The kernel's answer.
        errno: i32,
    },
    /// A system call failed in a way that has no better name.
    #[error("{operation} for {name:?} failed: {}", std::io::Error::from_raw_os_error(*.errno))]
    Kernel {
        /// What was tried.
        operation: &'static str,
        /// The interface.
        name: String,
        /// The kernel's answer.
        errno: i32,
    },
}

impl SetupError {
    /// Whether it may be otherwise soon, though nobody changes a setting: an interface that comes late,
    /// or something that another process has now.
    #[must_use]
    pub const fn may_pass(&self) -> bool {
        match self {
            Self::NoInterface { .. }
            | Self::Busy { .. }
            | Self::Fanout { .. }
            | Self::ProgramAttached { .. }
            | Self::QueueBusy { .. } => true,
            Self::Listen { errno, .. } => {
                matches!(*errno, libc::EADDRINUSE | libc::EADDRNOTAVAIL)
            }
            Self::Kernel { errno, .. } => matches!(
                *errno,
                libc::EAGAIN | libc::EINTR | libc::ENETDOWN | libc::ENOBUFS
            ),
            _ => false,
        }
    }
}

/// Why the host cannot listen, and what to do.
fn listen_text(errno: i32) -> String {
    let remedy = match errno {
        libc::EADDRINUSE => "stop what listens there (`ss -ltnp` names it), or use another port",
        libc::EACCES | libc::EPERM => "use a port from 1024 on, as in --http 8080",
        libc::EADDRNOTAVAIL => "use an address of this host's",
        _ => "use another address",
    };
    format!("{}; {remedy}", std::io::Error::from_raw_os_error(errno))
}

/// What is wrong with a tap of the other kind, and what to do.
fn tap_queues_text(name: &str, is_multi_queue: bool) -> String {
    let (kind, wanted, words) = if is_multi_queue {
        ("several queues", "one is asked for", "")
    } else {
        ("one queue", "several are asked for", " multi_queue")
    };
    format!(
        "{name:?} was made for {kind} and {wanted}: make it again (`ip tuntap del dev {name} mode \
         tap`, then `ip tuntap add dev {name} mode tap{words}`), or let the server make it"
    )
}

/// What to do about a device node that may not be opened. Only capabilities that override file
/// modes would help.
const fn node_permission_remedy(errno: i32) -> &'static str {
    match errno {
        libc::EPERM => {
            "let the container or service have the device (`--device /dev/net/tun`, \
             `DeviceAllow=/dev/net/tun rw`)"
        }
        _ => {
            "run as root, or let this user open it (`chmod 0666 /dev/net/tun`: using it takes \
             cap_net_admin besides)"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SetupError;

    #[test]
    fn what_comes_late_or_is_in_use_may_pass_and_what_is_wrong_does_not() {
        let name = || "eth0".to_owned();
        let kernel = |errno| SetupError::Kernel {
            operation: "opening",
            name: name(),
            errno,
        };
        let listen = |errno| SetupError::Listen {
            address: ([127, 0, 0, 1], 80).into(),
            errno,
        };
        for error in [
            SetupError::NoInterface { name: name() },
            SetupError::Busy { name: name() },
            SetupError::ProgramAttached { name: name() },
            kernel(libc::ENETDOWN),
            listen(libc::EADDRINUSE),
        ] {
            assert!(error.may_pass(), "{error}");
        }
        for error in [
            SetupError::NoXdp,
            SetupError::AddressCount { count: 0, max: 16 },
            kernel(libc::EINVAL),
            listen(libc::EACCES),
        ] {
            assert!(!error.may_pass(), "{error}");
        }
    }
}
