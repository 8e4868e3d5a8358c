//! An interface as the middlebox uses it: a socket that receives, and one that sends.
//!
//! Both carry virtio-net headers, so that what a sender left unfinished travels along: a checksum
//! still to be computed, a large frame still to be cut. On a veth pair the other end's kernel
//! takes both as they are.
//!
//! Neither sees what leaves through its own interface: the receiver ignores outgoing frames, the
//! sender is bound to no protocol. Frames are received from every station (promiscuous mode),
//! since none is addressed to a middlebox.
//!
//! **The sender bypasses the queueing discipline** of its interface, and with it the interface's
//! tc filters on the way out. Where such a filter is what hands us the frames, nothing else would
//! end the circle. The price: a device that cannot cut large frames itself refuses them.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketType};
use thiserror::Error;

use crate::sys;

/// Kernel memory for frames that wait to be received: some milliseconds of 64 KB frames. `[guess]`
const RECEIVE_BUFFER_BYTES: i32 = 32 << 20;

/// Kernel memory for frames sent that the other end has not looked at. `[guess]`
const SEND_BUFFER_BYTES: i32 = 32 << 20;

/// A protocol that nothing sends (`ETH_P_LOOPBACK`), to bind a probe to.
const PROTOCOL_OF_NOBODY: i32 = 0x0060;

/// Why an interface cannot be used. The text ends in what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PortError {
    /// No interface has this name here.
    #[error("there is no interface {0:?} in this network namespace; `ip link` lists them")]
    NoInterface(String),
    /// It does not carry Ethernet frames.
    #[error(
        "{name:?} does not carry Ethernet frames (hardware type {hardware_type}); use one that does"
    )]
    NotEthernet {
        /// The interface.
        name: String,
        /// Its `ARPHRD_` number.
        hardware_type: u16,
    },
    /// It is not up.
    #[error("{0:?} is down; `ip link set {0} up`")]
    Down(String),
    /// The process may not open packet sockets.
    #[error(
        "a packet socket on {0:?} is not permitted: it needs CAP_NET_RAW; run as root, or \
         `setcap cap_net_raw,cap_net_admin+ep` the binary"
    )]
    NotPermitted(String),
    /// Any other refusal.
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

/// An interface that was there, up and Ethernet when it was looked at.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    pub(crate) name: String,
    index: i32,
}

impl Interface {
    /// Looks at an interface of the calling thread's network namespace.
    pub(crate) fn find(name: &str) -> Result<Self, PortError> {
        let failed = |operation| move |errno| failed(name, operation, errno);
        let no_interface = || PortError::NoInterface(name.to_owned());
        // Any socket will do to ask; this one needs no right, so that a wrong name is told first.
        let any = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)
            .map_err(|errno| failed("opening a socket")(errno.raw_os_error()))?;
        let index =
            rustix::net::netdevice::name_to_index(&any, name).map_err(|_| no_interface())?;
        let index = i32::try_from(index).map_err(|_| no_interface())?;
        let probe = sys::packet_socket().map_err(failed("opening a packet socket"))?;
        sys::bind_to_interface(probe.as_fd(), index, PROTOCOL_OF_NOBODY)
            .map_err(failed("binding a packet socket"))?;
        let (_, hardware_type) =
            sys::bound_interface(probe.as_fd()).map_err(failed("looking at a packet socket"))?;
        // The loopback has Ethernet headers too.
        if ![libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK].contains(&hardware_type) {
            return Err(PortError::NotEthernet {
                name: name.to_owned(),
                hardware_type,
            });
        }
        // A socket bound to an interface that is down has this error waiting.
        match rustix::net::sockopt::socket_error(&probe) {
            Ok(Err(rustix::io::Errno::NETDOWN)) => Err(PortError::Down(name.to_owned())),
            _ => Ok(Self {
                name: name.to_owned(),
                index,
            }),
        }
    }

    /// Opens the side that receives whatever arrives there.
    pub(crate) fn receiver(&self) -> Result<Receiver, PortError> {
        let open = || {
            let socket = sys::packet_socket()?;
            let fd = socket.as_fd();
            sys::set_integer(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
            sys::set_integer(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
            sys::set_integer(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
            set_buffer(
                fd,
                libc::SO_RCVBUFFORCE,
                libc::SO_RCVBUF,
                RECEIVE_BUFFER_BYTES,
            )?;
            sys::set_promiscuous(fd, self.index)?;
            sys::bind_to_interface(fd, self.index, libc::ETH_P_ALL)?;
            Ok(Receiver { socket })
        };
        open().map_err(|errno| failed(&self.name, "opening a receiving socket", errno))
    }

    /// Opens the side that sends. `bypass`: past the queueing discipline.
    pub(crate) fn sender(&self, bypass: bool) -> Result<Sender, PortError> {
        let open = || {
            let socket = sys::packet_socket()?;
            let fd = socket.as_fd();
            sys::set_integer(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
            let bypass = i32::from(bypass);
            sys::set_integer(fd, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, bypass)?;
            set_buffer(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_BUFFER_BYTES)?;
            sys::bind_to_interface(fd, self.index, 0)?;
            Ok(Sender { socket })
        };
        open().map_err(|errno| failed(&self.name, "opening a sending socket", errno))
    }
}

/// Receives the frames that arrive on an interface.
#[derive(Debug)]
pub(crate) struct Receiver {
    socket: OwnedFd,
}

impl Receiver {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether the interface was removed.
    pub(crate) fn is_gone(&self) -> bool {
        !matches!(sys::bound_interface(self.fd()), Ok((index, _)) if index > 0)
    }
}

/// Sends frames out of an interface.
#[derive(Debug)]
pub(crate) struct Sender {
    socket: OwnedFd,
}

impl Sender {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn failed(name: &str, operation: &'static str, errno: i32) -> PortError {
    let name = name.to_owned();
    match errno {
        libc::EPERM | libc::EACCES => PortError::NotPermitted(name),
        libc::ENODEV | libc::ENXIO => PortError::NoInterface(name),
        libc::ENETDOWN => PortError::Down(name),
        errno => PortError::Kernel {
            operation,
            name,
            errno,
        },
    }
}

/// Sets a buffer size past the system's limit, or up to it without `CAP_NET_ADMIN`.
fn set_buffer(fd: BorrowedFd<'_>, forced: i32, limited: i32, bytes: i32) -> Result<(), i32> {
    sys::set_integer(fd, libc::SOL_SOCKET, forced, bytes)
        .or_else(|_| sys::set_integer(fd, libc::SOL_SOCKET, limited, bytes))
}

#[cfg(test)]
mod tests {
    use super::{Interface, PortError, failed};

    #[test]
    fn errors_name_their_remedy() {
        let text = |errno| failed("hold1", "opening", errno).to_string();
        assert!(text(libc::EPERM).contains("needs CAP_NET_RAW; run as root, or `setcap"));
        assert!(text(libc::ENODEV).contains("`ip link` lists them"));
        assert!(text(libc::ENETDOWN).contains("`ip link set hold1 up`"));
        assert!(text(libc::ENOMEM).contains("opening for \"hold1\" failed"));
    }

    #[test]
    fn a_name_of_nothing_is_told_without_any_right() {
        for name in ["no-such-link", "", "much-longer-than-any-name"] {
            let error = Interface::find(name).unwrap_err();
            assert_eq!(error, PortError::NoInterface(name.to_owned()));
        }
    }
}
