//! The requests this room makes of rtnetlink (describe an interface, set its flags, add or remove an address,
//! where a neighbour is), and the notifications that something has changed. `netdev` makes its own with the
//! same messages.
//!
//! One request, one answer, each in one datagram. The kernel answers within the `send`, so the
//! `read` after it never waits. Answers are parsed as bytes from outside: it refuses a malformed one
//! with `EPROTO`, never a panic. Bound: [`ANSWER_BYTES_MAX`] for each answer.
//! Reading first: netlink(7), rtnetlink(7).

use std::fs::File;
use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use wire::MacAddress;

use crate::sys;

/// Larger than any single answer: the kernel builds them in buffers of at most 32 KB.
const ANSWER_BYTES_MAX: usize = 32 * 1024;

const HEADER_BYTES: usize = 16;
/// `struct ifinfomsg`.
const INTERFACE_MESSAGE_BYTES: usize = 16;
/// Attributes start at multiples of this.
const ALIGNMENT: usize = 4;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_TUN_MULTI_QUEUE: u16 = 7;
const IFLA_TUN_NUM_QUEUES: u16 = 8;
const IFLA_VLAN_ID: u16 = 1;
const IFLA_VLAN_PROTOCOL: u16 = 5;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_GSO_MAX_SIZE: u16 = 41;
const IFLA_GSO_IPV4_MAX_SIZE: u16 = 63;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// `struct ndmsg`.
const NEIGHBOR_MESSAGE_BYTES: usize = 12;

/// The fields of an answer to `RTM_GETLINK` that this room uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InterfaceDescription {
    pub(crate) index: i32,
    pub(crate) name: String,
    /// `ARPHRD_` number.
    pub(crate) hardware_type: u16,
    /// `IFF_` flags, `IFF_LOWER_UP` among them.
    pub(crate) flags: u32,
    pub(crate) mtu_bytes: u32,
    /// It is a port of another interface: of a bridge, a bond.
    pub(crate) has_master: bool,
    /// Present on interfaces with six-byte addresses.
    pub(crate) mac: Option<[u8; 6]>,
    /// `tun`, `veth`, `macvtap`...; `None` for hardware.
    pub(crate) kind: Option<String>,
    /// The smallest of the sizes from which the kernel cuts a large frame itself, bytes; `None`
    /// if it does not tell.
    pub(crate) gso_bytes_max: Option<u32>,
    /// Of a tap: what it says of its queues (since Linux 4.16).
    pub(crate) tap: Option<TapDescription>,
    /// Of a VLAN device (8021q): the tag of its frames.
    pub(crate) vlan: Option<VlanTag>,
    /// The interface below it, if it has one.
    pub(crate) lower: Option<Lower>,
}

/// The tag of a VLAN (IEEE 802.1Q).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanTag {
    /// The Ethernet type of the tag (TPID): 0x8100, or 0x88a8 of a service VLAN (802.1ad).
    pub protocol: u16,
    /// The VLAN's number (VID), below 4,096.
    pub id: u16,
}

/// The interface below another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lower {
    pub(crate) index: i32,
    /// Whether it is in another network namespace, where the index means another interface.
    pub(crate) is_elsewhere: bool,
}

/// What a tap says of its queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TapDescription {
    /// Whether it was made for several queues.
    pub(crate) is_multi_queue: bool,
    /// How many queues are open, if it was made for several.
    pub(crate) queue_count: u32,
}

/// A socket for requests to rtnetlink, or to generic netlink.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: File,
}

impl Netlink {
    /// Opens the socket in the network namespace of the calling thread.
    pub(crate) fn open() -> Result<Self, i32> {
        Self::open_protocol(libc::NETLINK_ROUTE)
    }

    /// The same for requests to generic netlink.
    pub(crate) fn open_generic() -> Result<Self, i32> {
        Self::open_protocol(libc::NETLINK_GENERIC)
    }

    /// The same for questions about sockets.
    pub(crate) fn open_diagnosis() -> Result<Self, i32> {
        Self::open_protocol(libc::NETLINK_SOCK_DIAG)
    }

    /// A socket that takes requests and answers none.
    #[cfg(test)]
    pub(crate) fn silent() -> Self {
        let null = File::options().read(true).write(true).open("/dev/null");
        Self {
            socket: null.expect("a device that is always there"),
        }
    }

    fn open_protocol(protocol: i32) -> Result<Self, i32> {
        let socket = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, protocol)?;
        Ok(Self {
            socket: File::from(socket),
        })
    }

    /// Describes the interface called `name`. `ENODEV` if there is none.
    pub(crate) fn describe(&mut self, name: &str) -> Result<InterfaceDescription, i32> {
        let mut body = interface_message(0, 0, 0);
        let mut name_z = name.as_bytes().to_vec();
        name_z.push(0);
        push_attribute(&mut body, IFLA_IFNAME, &name_z);
        let answer = self.request(libc::RTM_GETLINK, 0, &body)?;
        parse_description(&answer).ok_or(libc::EPROTO)
    }

    /// Describes the interface of this index. `ENODEV` if there is none.
    pub(crate) fn describe_index(&mut self, index: i32) -> Result<InterfaceDescription, i32> {
        let body = interface_message(index, 0, 0);
        let answer = self.request(libc::RTM_GETLINK, 0, &body)?;
        parse_description(&answer).ok_or(libc::EPROTO)
    }

    /// Sets the given `IFF_` flags of an interface and leaves the others.
    pub(crate) fn set_flags(&mut self, index: i32, flags: u32) -> Result<(), i32> {
        let body = interface_message(index, flags, flags);
        self.request(libc::RTM_NEWLINK, libc::NLM_F_ACK, &body)
            .map(drop)
    }

    /// Adds an address to an interface, usable at once. `EEXIST` if the interface has it.
    pub(crate) fn add_address(&mut self, index: i32, address: IpAddr, bits: u8) -> Result<(), i32> {
        let flags = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        self.request(
            libc::RTM_NEWADDR,
            flags,
            &address_message(index, address, bits),
        )
        .map(drop)
    }

    /// Removes an address from an interface.
    pub(crate) fn remove_address(
        &mut self,
        index: i32,
        address: IpAddr,
        bits: u8,
    ) -> Result<(), i32> {
        let body = address_message(index, address, bits);
        self.request(libc::RTM_DELADDR, libc::NLM_F_ACK, &body)
            .map(drop)
    }

    /// The MAC address at which the kernel has this neighbour of an interface; `None`: it does not know one.
    pub(crate) fn neighbor(
        &mut self,
        index: i32,
        address: IpAddr,
    ) -> Result<Option<MacAddress>, i32> {
        match self.request(libc::RTM_GETNEIGH, 0, &neighbor_message(index, address)) {
            Ok(answer) => Ok(parse_neighbor(&answer)),
            Err(libc::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Sends one request and returns the body of its answer, empty for an acknowledgment.
    pub(crate) fn request(&mut self, kind: u16, flags: i32, body: &[u8]) -> Result<Vec<u8>, i32> {
        let length = u32::try_from(HEADER_BYTES + body.len()).map_err(|_| libc::EMSGSIZE)?;
        let flags = u16::try_from(flags | libc::NLM_F_REQUEST).map_err(|_| libc::EINVAL)?;
        let mut message = Vec::with_capacity(HEADER_BYTES + body.len());
        message.extend_from_slice(&length.to_ne_bytes());
        message.extend_from_slice(&kind.to_ne_bytes());
        message.extend_from_slice(&flags.to_ne_bytes());
        // One request at a time on a socket of its own: sequence and port may be 0.
        message.extend_from_slice(&[0; 8]);
        message.extend_from_slice(body);
        self.socket
            .write_all(&message)
            .map_err(|error| sys::errno_of(&error))?;
        let mut answer = vec![0; ANSWER_BYTES_MAX];
        let length = self
            .socket
            .read(&mut answer)
            .map_err(|error| sys::errno_of(&error))?;
        answer.truncate(length);
        parse_answer(&answer)
    }
}

/// What the kernel has notified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Notified {
    /// The interface has changed.
    pub(crate) is_interface: bool,
    /// Addresses of some interface, or routes, have.
    pub(crate) is_address: bool,
}

/// A socket that receives the kernel's notifications about interfaces, and about addresses and routes if it
/// is to.
#[derive(Debug)]
pub(crate) struct Notifications {
    socket: OwnedFd,
}

impl Notifications {
    /// Most notifications read in one call; on a host that adds and removes interfaces all the time,
    /// the others wait for the next call.
    const AT_ONCE_MAX: usize = 256;

    /// Subscribes to interface changes in the network namespace of the calling thread.
    pub(crate) fn open() -> Result<Self, i32> {
        let socket = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
        sys::bind_netlink(socket.as_fd(), libc::RTMGRP_LINK.cast_unsigned())?;
        Ok(Self { socket })
    }

    /// Subscribes to changes of addresses and routes, too.
    pub(crate) fn follow_addresses(&self) -> Result<(), i32> {
        for group in ADDRESS_GROUPS {
            let (fd, group) = (self.socket.as_fd(), group.cast_signed());
            sys::set_integer(fd, libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, group)?;
        }
        Ok(())
    }

    /// What the kernel has notified since the last call, of this interface and of all addresses. All, when
    /// notifications were lost for lack of room in the socket.
    pub(crate) fn take(&mut self, index: i32) -> Notified {
        let mut notified = Notified::default();
        for _ in 0..Self::AT_ONCE_MAX {
            let mut head = [0; HEADER_BYTES + INTERFACE_MESSAGE_BYTES];
            match sys::receive(self.socket.as_fd(), &mut head) {
                Ok(_) => notified.note(&head, index),
                Err(libc::ENOBUFS) => {
                    notified = Notified {
                        is_interface: true,
                        is_address: true,
                    };
                }
                Err(_) => break,
            }
        }
        notified
    }

    /// Readable when a notification waits.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Groups of notifications about addresses and routes, of both families.
const ADDRESS_GROUPS: [u32; 4] = [
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV6_ROUTE,
];

impl Notified {
    /// Notes the message that begins so.
    fn note(&mut self, head: &[u8], index: i32) {
        match read_u16(head, 4) {
            Some(libc::RTM_NEWLINK | libc::RTM_DELLINK) => {
                let is_ours = read_u32(head, HEADER_BYTES + 4) == Some(index.cast_unsigned());
                self.is_interface |= is_ours;
            }
            _ => self.is_address = true,
        }
    }
}

/// Unpacks the one message of an answer: its body, or the errno it carries.
fn parse_answer(answer: &[u8]) -> Result<Vec<u8>, i32> {
    let malformed = libc::EPROTO;
    let length = read_u32(answer, 0)
        .and_then(|n| usize::try_from(n).ok())
        .ok_or(malformed)?;
    let kind = read_u16(answer, 4).ok_or(malformed)?;
    let body = answer.get(HEADER_BYTES..length).ok_or(malformed)?;
    if i32::from(kind) != libc::NLMSG_ERROR {
        return Ok(body.to_vec());
    }
    match read_u32(body, 0).map(u32::cast_signed) {
        Some(0) => Ok(Vec::new()),
        Some(errno) if errno < 0 && errno > i32::MIN => Err(-errno),
        _ => Err(malformed),
    }
}

fn parse_description(body: &[u8]) -> Option<InterfaceDescription> {
    let mut description = InterfaceDescription {
        hardware_type: read_u16(body, 2)?,
        index: read_u32(body, 4)?.cast_signed(),
        flags: read_u32(body, 8)?,
        ..InterfaceDescription::default()
    };
    let mut is_lower_elsewhere = false;
    for (kind, value) in Attributes(body.get(INTERFACE_MESSAGE_BYTES..)?) {
        match kind {
            IFLA_IFNAME => description.name = text(value),
            IFLA_LINK => {
                description.lower = Some(Lower {
                    index: read_u32(value, 0)?.cast_signed(),
                    is_elsewhere: false,
                });
            }
            IFLA_LINK_NETNSID => is_lower_elsewhere = true,
            IFLA_ADDRESS => description.mac = value.try_into().ok(),
            IFLA_MTU => description.mtu_bytes = read_u32(value, 0)?,
            IFLA_MASTER => description.has_master = true,
            IFLA_GSO_MAX_SIZE | IFLA_GSO_IPV4_MAX_SIZE => {
                let bytes = read_u32(value, 0)?;
                let smallest = description
                    .gso_bytes_max
                    .map_or(bytes, |other| other.min(bytes));
                description.gso_bytes_max = Some(smallest);
            }
            IFLA_LINKINFO => parse_link_info(value, &mut description),
            _ => {}
        }
    }
    if let Some(lower) = &mut description.lower {
        lower.is_elsewhere = is_lower_elsewhere;
    }
    Some(description)
}

/// What kind of interface it is, of a tap its queues, and of a VLAN device its tag.
fn parse_link_info(info: &[u8], description: &mut InterfaceDescription) {
    let find = |wanted: u16| Attributes(info).find(|(kind, _)| *kind == wanted);
    description.kind = find(IFLA_INFO_KIND).map(|(_, value)| text(value));
    let Some((_, data)) = find(IFLA_INFO_DATA) else {
        return;
    };
    let find = |wanted: u16| Attributes(data).find(|(kind, _)| *kind == wanted);
    if description.kind.as_deref() == Some("vlan") {
        let id = find(IFLA_VLAN_ID).and_then(|(_, value)| read_u16(value, 0));
        let protocol = find(IFLA_VLAN_PROTOCOL).and_then(|(_, value)| read_u16(value, 0));
        description.vlan = id.zip(protocol).map(|(id, protocol)| VlanTag {
            protocol: u16::from_be(protocol),
            id,
        });
    }
    if description.kind.as_deref() == Some("tun") {
        let is_multi_queue = find(IFLA_TUN_MULTI_QUEUE).and_then(|(_, value)| value.first());
        description.tap = is_multi_queue.map(|&value| TapDescription {
            is_multi_queue: value != 0,
            queue_count: find(IFLA_TUN_NUM_QUEUES)
                .and_then(|(_, value)| read_u32(value, 0))
                .unwrap_or(0),
        });
    }
}

/// The text of a string attribute, without its terminating NUL.
fn text(value: &[u8]) -> String {
    let end = value
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(value.len());
    String::from_utf8_lossy(value.get(..end).unwrap_or_default()).into_owned()
}

/// Walks `struct rtattr`s; ends at the first that does not fit.
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::from(read_u16(self.0, 0)?);
        // The two top bits of the type are flags (nested, byte order).
        let kind = read_u16(self.0, 2)? & 0x3fff;
        let value = self.0.get(4..length)?;
        self.0 = self
            .0
            .get(length.next_multiple_of(ALIGNMENT)..)
            .unwrap_or_default();
        Some((kind, value))
    }
}

/// `struct ifinfomsg`: for any family, the flags in `change` set to those in `flags`.
fn interface_message(index: i32, flags: u32, change: u32) -> Vec<u8> {
    let mut body = vec![0; 4];
    body.extend_from_slice(&index.to_ne_bytes());
    body.extend_from_slice(&flags.to_ne_bytes());
    body.extend_from_slice(&change.to_ne_bytes());
    body
}

fn family_of(address: IpAddr) -> u8 {
    let family = if address.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    u8::try_from(family).expect("invariant: address families are small")
}

/// `struct ndmsg` and the address.
fn neighbor_message(index: i32, address: IpAddr) -> Vec<u8> {
    let mut body = vec![family_of(address), 0, 0, 0];
    body.extend_from_slice(&index.to_ne_bytes());
    body.resize(NEIGHBOR_MESSAGE_BYTES, 0);
    match address {
        IpAddr::V4(address) => push_attribute(&mut body, NDA_DST, &address.octets()),
        IpAddr::V6(address) => push_attribute(&mut body, NDA_DST, &address.octets()),
    }
    body
}

/// The MAC address in an answer about a neighbour, which the kernel tells only if it is valid.
fn parse_neighbor(body: &[u8]) -> Option<MacAddress> {
    let mut attributes = Attributes(body.get(NEIGHBOR_MESSAGE_BYTES..)?);
    let (_, value) = attributes.find(|(kind, _)| *kind == NDA_LLADDR)?;
    value.try_into().ok().map(MacAddress)
}

/// `struct ifaddrmsg` and its attributes.
fn address_message(index: i32, address: IpAddr, prefix_bits: u8) -> Vec<u8> {
    let mut body = vec![family_of(address), prefix_bits, 0, 0];
    body.extend_from_slice(&index.to_ne_bytes());
    match address {
        IpAddr::V4(address) => {
            push_attribute(&mut body, IFA_LOCAL, &address.octets());
            push_attribute(&mut body, IFA_ADDRESS, &address.octets());
        }
        IpAddr::V6(address) => {
            push_attribute(&mut body, IFA_LOCAL, &address.octets());
            push_attribute(&mut body, IFA_ADDRESS, &address.octets());
            // Duplicate address detection would make the address unusable for a second or more. It
            // can find nothing: Atlas is the only other host on this link.
            push_attribute(&mut body, IFA_FLAGS, &libc::IFA_F_NODAD.to_ne_bytes());
        }
    }
    body
}

pub(crate) fn push_attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).expect("invariant: attributes are small");
    body.extend_from_slice(&length.to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(ALIGNMENT), 0);
}

pub(crate) fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..)?
        .first_chunk()
        .copied()
        .map(u16::from_ne_bytes)
}

pub(crate) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .copied()
        .map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::{
        HEADER_BYTES, IFLA_ADDRESS, IFLA_GSO_IPV4_MAX_SIZE, IFLA_GSO_MAX_SIZE, IFLA_IFNAME,
        IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINK, IFLA_LINK_NETNSID, IFLA_LINKINFO, IFLA_MASTER,
        IFLA_MTU, IFLA_TUN_MULTI_QUEUE, IFLA_TUN_NUM_QUEUES, IFLA_VLAN_ID, IFLA_VLAN_PROTOCOL,
        InterfaceDescription, Lower, MacAddress, NDA_LLADDR, Netlink, TapDescription, VlanTag,
        address_message, interface_message, neighbor_message, parse_answer, parse_description,
        parse_neighbor, push_attribute,
    };

    fn answer(kind: i32, body: &[u8]) -> Vec<u8> {
        let mut bytes = u32::try_from(HEADER_BYTES + body.len())
            .unwrap()
            .to_ne_bytes()
            .to_vec();
        bytes.extend_from_slice(&u16::try_from(kind).unwrap().to_ne_bytes());
        bytes.resize(HEADER_BYTES, 0);
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn an_error_answer_becomes_its_errno_and_zero_an_acknowledgment() {
        let refused = answer(libc::NLMSG_ERROR, &(-libc::EPERM).to_ne_bytes());
        assert_eq!(parse_answer(&refused), Err(libc::EPERM));
        assert_eq!(
            parse_answer(&answer(libc::NLMSG_ERROR, &[0; 4])),
            Ok(vec![])
        );
        assert_eq!(parse_answer(&answer(16, b"body")), Ok(b"body".to_vec()));
    }

    #[test]
    fn malformed_answers_are_refused() {
        assert_eq!(parse_answer(&[]), Err(libc::EPROTO));
        assert_eq!(
            parse_answer(&answer(libc::NLMSG_ERROR, &[0; 3])),
            Err(libc::EPROTO)
        );
        let absurd = answer(libc::NLMSG_ERROR, &i32::MIN.to_ne_bytes());
        assert_eq!(parse_answer(&absurd), Err(libc::EPROTO));
        let mut too_long = answer(16, b"body");
        too_long[0] += 1;
        assert_eq!(parse_answer(&too_long), Err(libc::EPROTO));
    }

    #[test]
    fn a_description_is_read_with_the_smaller_gso_size() {
        let mut body = interface_message(7, 0x1_0043, 0);
        body[2] = 1;
        push_attribute(&mut body, IFLA_IFNAME, b"eth0\0");
        push_attribute(&mut body, IFLA_MASTER, &9_u32.to_ne_bytes());
        push_attribute(&mut body, IFLA_ADDRESS, &[2, 0, 0, 0, 0, 9]);
        push_attribute(&mut body, IFLA_MTU, &1_500_u32.to_ne_bytes());
        push_attribute(&mut body, IFLA_GSO_MAX_SIZE, &200_000_u32.to_ne_bytes());
        push_attribute(&mut body, IFLA_GSO_IPV4_MAX_SIZE, &65_536_u32.to_ne_bytes());
        let mut kind = Vec::new();
        push_attribute(&mut kind, IFLA_INFO_KIND, b"veth\0");
        push_attribute(&mut body, IFLA_LINKINFO, &kind);
        let expected = InterfaceDescription {
            index: 7,
            name: "eth0".to_owned(),
            hardware_type: 1,
            flags: 0x1_0043,
            mtu_bytes: 1_500,
            has_master: true,
            mac: Some([2, 0, 0, 0, 0, 9]),
            kind: Some("veth".to_owned()),
            gso_bytes_max: Some(65_536),
            tap: None,
            vlan: None,
            lower: None,
        };
        assert_eq!(parse_description(&body), Some(expected));
        for length in 0..body.len() {
            // Whatever is missing: no panic.
            let _ = parse_description(&body[..length]);
        }
    }

    #[test]
    fn a_tap_s_queues_are_read_and_those_of_other_kinds_are_not() {
        let body = |kind: &[u8], is_multi_queue: u8| {
            let (mut data, mut info) = (Vec::new(), Vec::new());
            push_attribute(&mut data, IFLA_TUN_MULTI_QUEUE, &[is_multi_queue]);
            push_attribute(&mut data, IFLA_TUN_NUM_QUEUES, &3_u32.to_ne_bytes());
            push_attribute(&mut info, IFLA_INFO_KIND, kind);
            push_attribute(&mut info, IFLA_INFO_DATA, &data);
            let mut body = interface_message(7, 0, 0);
            push_attribute(&mut body, IFLA_LINKINFO, &info);
            parse_description(&body).unwrap().tap
        };
        let tap = |is_multi_queue| TapDescription {
            is_multi_queue,
            queue_count: 3,
        };
        assert_eq!(body(b"tun\0", 1), Some(tap(true)));
        assert_eq!(body(b"tun\0", 0), Some(tap(false)));
        assert_eq!(body(b"veth\0", 1), None);
    }

    #[test]
    fn a_vlan_device_s_tag_and_lower_interface_are_read() {
        let body = |kind: &[u8], is_elsewhere: bool| {
            let (mut data, mut info) = (Vec::new(), Vec::new());
            push_attribute(&mut data, IFLA_VLAN_ID, &100_u16.to_ne_bytes());
            push_attribute(&mut data, IFLA_VLAN_PROTOCOL, &0x88a8_u16.to_be_bytes());
            push_attribute(&mut info, IFLA_INFO_KIND, kind);
            push_attribute(&mut info, IFLA_INFO_DATA, &data);
            let mut body = interface_message(7, 0, 0);
            push_attribute(&mut body, IFLA_LINKINFO, &info);
            push_attribute(&mut body, IFLA_LINK, &2_u32.to_ne_bytes());
            if is_elsewhere {
                push_attribute(&mut body, IFLA_LINK_NETNSID, &0_u32.to_ne_bytes());
            }
            let found = parse_description(&body).unwrap();
            (found.vlan, found.lower)
        };
        let tag = VlanTag {
            protocol: 0x88a8,
            id: 100,
        };
        for is_elsewhere in [false, true] {
            let lower = Lower {
                index: 2,
                is_elsewhere,
            };
            let found = body(b"vlan\0", is_elsewhere);
            assert_eq!(found, (Some(tag), Some(lower)));
            // A macvlan has a lower interface, too, and no tag.
            let found = body(b"macvlan\0", is_elsewhere);
            assert_eq!(found, (None, Some(lower)));
        }
    }

    #[test]
    fn an_ipv6_address_is_added_without_duplicate_detection() {
        let v4 = address_message(3, "10.0.0.1".parse().unwrap(), 24);
        let v6 = address_message(3, "fd00::1".parse().unwrap(), 64);
        assert_eq!(v4.len(), 8 + 2 * 8);
        assert_eq!(v6.len(), 8 + 2 * 20 + 8);
        assert_eq!(v6[v6.len() - 4..], libc::IFA_F_NODAD.to_ne_bytes());
    }

    #[test]
    fn a_neighbour_s_mac_is_read_and_what_is_cut_short_is_none() {
        let mut body = neighbor_message(3, "10.0.0.1".parse().unwrap());
        assert_eq!(parse_neighbor(&body), None, "an entry without a valid MAC");
        push_attribute(&mut body, NDA_LLADDR, &[2, 0, 0, 0, 0, 9]);
        assert_eq!(parse_neighbor(&body), Some(MacAddress([2, 0, 0, 0, 0, 9])));
        for length in 0..body.len() - 2 {
            assert_eq!(parse_neighbor(&body[..length]), None, "{length}");
        }
    }

    #[test]
    fn the_kernel_describes_loopback_and_refuses_an_unknown_name() {
        let mut netlink = Netlink::open().unwrap();
        let loopback = netlink.describe("lo").unwrap();
        assert_eq!(
            (loopback.index, loopback.hardware_type),
            (1, libc::ARPHRD_LOOPBACK)
        );
        assert_eq!(loopback.name, "lo");
        assert_eq!(netlink.describe_index(1), Ok(loopback));
        assert_eq!(netlink.describe_index(i32::MAX), Err(libc::ENODEV));
        assert_eq!(netlink.describe("no-such-link"), Err(libc::ENODEV));
    }
}
