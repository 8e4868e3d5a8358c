//! The XDP program: which frames go to our sockets, and which to the kernel.
//!
//! It runs in the driver (or right behind it) on every frame that the interface receives, before
//! the kernel's own stack. All frames it does not take pass on as if it were not there.
//!
//! **Own addresses**: it takes what the filter of a packet socket takes:
//!
//! - to our MAC: ARP about our IPv4 addresses, IPv4 and IPv6 to our addresses;
//! - to a group MAC or ours: ARP about our IPv4 addresses, and neighbour solicitations (RFC 4861 s4.3)
//!   sent to an IPv6 multicast group that are about one of our addresses;
//! - what any station says of itself to all, and multicast listener queries.
//!
//! Neighbour messages about a virtual address, which another station answers for, are not taken.
//!
//! **Shared addresses**, which the kernel has as well and which come and go, are in a map. It takes, to our
//! MAC and one of these addresses,
//!
//! - TCP to one of our ports;
//! - ICMP errors that `wire` acts on (type 3; of ICMPv6, types 1 and 2), if they quote a TCP segment
//!   from the address they are sent to and from one of our ports.
//!
//! **In a VLAN** it takes these frames only if they have this VLAN's tag and no other; its priority does
//! not matter. Without a VLAN it takes frames without a tag, and those with one that has a priority only
//! (VLAN number 0). (A tag that the device has removed cannot be seen here.)
//!
//! It refuses, which leaves it to the kernel: fragments and IPv6 extension headers with shared addresses, and frames too
//! short for the fields it looks at. IPv4 options are skipped, also those of a quoted packet. It does
//! not check what the parser checks: lengths, checksums. Bounds: [`ADDRESSES_MAX`] addresses and
//! [`PORTS_MAX`] ports make at most 2,000 instructions; there is no loop.
//!
//! A frame that arrives at a queue without a socket passes to the kernel, too.
//!
//! **A frame that is longer than an acknowledgment** ([`ACK_FRAME_BYTES_MAX`]), a request that is, also puts a record into
//! the queue's ring, so that who waits for requests is not woken by acknowledgments (`request_ring`).
//!
//! Reading first: Documentation/bpf/map_xskmap.rst; the verifier's rules for packet access in
//! Documentation/bpf/verifier.rst.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::RawFd;

use wire::MacAddress;

use super::address_table::AddressTable;
use super::assembler::{Assembler, Condition, Instruction, Label, Register, Size};
use crate::VlanTag;
use crate::packet::ADDRESSES_MAX;

/// Ports that one link can take at an address it shares with the kernel.
pub const PORTS_MAX: usize = 16;

/// The verdict that lets the kernel have the frame (linux/bpf.h).
pub(super) const XDP_PASS: u32 = 2;
/// The verdict of a frame that went to a socket.
#[cfg(test)]
pub(super) const XDP_REDIRECT: u32 = 4;
/// `bpf_map_lookup_elem`: map, address of the key; the value's address or none.
pub(super) const MAP_LOOKUP_ELEM: i32 = 1;
/// `bpf_redirect_map`: context or map, key, verdict if the map has nothing there.
pub(super) const REDIRECT_MAP: i32 = 51;
/// `bpf_ringbuf_output`: ring, address and bytes of the record, flags. Without flags it wakes if the reader has read
/// all before.
pub(super) const RINGBUF_OUTPUT: i32 = 130;

/// Most bytes of a frame that only acknowledges: Ethernet and a tag, IPv6, TCP with all options.
pub(super) const ACK_FRAME_BYTES_MAX: i32 = 14 + 4 + 40 + 60;

// `struct xdp_md`
const CONTEXT_DATA: i16 = 0;
const CONTEXT_DATA_END: i16 = 4;
const CONTEXT_QUEUE: i16 = 16;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;
/// Of a tag's second half word: the VLAN's number, without priority and drop eligibility.
const VLAN_ID_BITS: u16 = 0x0fff;
const PROTOCOL_ICMP: u32 = 1;
const PROTOCOL_TCP: u32 = 6;
const PROTOCOL_ICMPV6: u32 = 58;
const ICMP_UNREACHABLE: u32 = 3;
const ICMPV6_UNREACHABLE: u32 = 1;
const ICMPV6_PACKET_TOO_BIG: u32 = 2;
const HOP_BY_HOP: u32 = 0;
const HOP_BY_HOP_BYTES: i16 = 8;
const LISTENER_QUERY: u32 = 130;
const NEIGHBOR_SOLICITATION: u32 = 135;
const NEIGHBOR_ADVERTISEMENT: u32 = 136;
/// First byte of every IPv6 multicast address.
const IPV6_MULTICAST: u32 = 0xff;
/// Of IPv4's flags and fragment offset: more fragments, and any offset.
const FRAGMENT_BITS: u16 = 0x3fff;

// Where fields begin, from the start of the frame.
const TAG_PROTOCOL: i16 = 12;
const TAG_CONTROL: i16 = 14;
const TAG_BYTES: i32 = 4;

// Where fields begin, from the start of the frame, if it has no tag.
const ETHERTYPE: i16 = 12;
const IP: i16 = 14;
const ARP_SENDER: i16 = IP + 14;
const ARP_TARGET: i16 = IP + 24;
const ARP_END: i16 = IP + 28;
const IPV4_DESTINATION: i16 = IP + 16;
const IPV4_END: i16 = IP + IPV4_BYTES;
const IPV6_DESTINATION: i16 = IP + 24;
const IPV6_END: i16 = IP + IPV6_BYTES;
const ND_TARGET: i16 = IPV6_END + 8;
const ND_END: i16 = ND_TARGET + 16;

// Where fields begin, from the start of an IP header.
const IPV4_FRAGMENT: i16 = 6;
const IPV4_PROTOCOL: i16 = 9;
const IPV4_SOURCE: i16 = 12;
const IPV6_NEXT_HEADER: i16 = 6;
const IPV6_SOURCE: i16 = 8;

/// Bytes of an IPv4 header without options.
const IPV4_BYTES: i16 = 20;
const IPV6_BYTES: i16 = 40;
/// Bytes of an ICMP header, before what it quotes.
const ICMP_BYTES: i16 = 8;
/// Bytes of a TCP header that have both ports.
const TCP_PORTS_BYTES: i16 = 4;
const TCP_DESTINATION_PORT: i16 = 2;

// What registers hold throughout.
const CONTEXT: Register = Register::R6;
/// What follows the MAC addresses, and the tag if there is one, is at the offsets of a frame without a
/// tag from here.
const FRAME: Register = Register::R2;
const FRAME_END: Register = Register::R3;
/// Behind what is compared with the end of the frame; later a loaded field.
const FIELD: Register = Register::R4;
const OTHER_FIELD: Register = Register::R5;
/// The addresses that are shared; then the frame's start, moved on by the IP options: what follows the IP
/// header is at the offsets of a frame without options.
const BEHIND: Register = Register::R7;
/// The frame's start.
const START: Register = Register::R8;
/// Where the queue's number is, from the end of the stack, and its bytes: the key of the ring, and what a record has.
const KEY: i16 = -4;
const KEY_BYTES: i32 = 4;

/// What is ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules<'a> {
    /// The MAC our frames are sent to.
    pub(super) mac: MacAddress,
    pub(super) addresses: Addresses<'a>,
    /// The tag that our frames have; `None`: none, or one with a priority only.
    pub(super) vlan: Option<VlanTag>,
}

/// Our addresses.
#[derive(Clone, Copy, Debug)]
pub(super) enum Addresses<'a> {
    /// Ours alone.
    Own {
        all: &'a [IpAddr],
        /// Those that neighbour messages are taken about.
        answered: &'a [IpAddr],
    },
    /// The kernel's as well.
    Shared {
        /// Descriptor of the map that has them, in an [`AddressTable`].
        map: RawFd,
        ports: &'a [u16],
    },
}

/// What happens to a frame that is ours.
#[derive(Clone, Copy, Debug)]
pub(super) enum Take {
    /// It goes to the socket that one map has for the queue; the other has the ring for requests.
    Redirect { sockets: RawFd, rings: RawFd },
    /// Nothing: the program only answers so.
    #[cfg(test)]
    Verdict(u32),
}

/// The program for these rules.
///
/// # Panics
/// With more than [`ADDRESSES_MAX`] addresses or [`PORTS_MAX`] ports: the caller refuses them first.
pub(super) fn assemble(rules: &Rules<'_>, take: Take) -> Vec<Instruction> {
    let (addresses, ports) = match rules.addresses {
        Addresses::Own { all, .. } => (all.len(), 0),
        Addresses::Shared { ports, .. } => (0, ports.len()),
    };
    assert!(
        addresses <= ADDRESSES_MAX && ports <= PORTS_MAX,
        "{addresses} addresses, {ports} ports"
    );
    let mut code = Assembler::default();
    let (pass, taken) = (code.label(), code.label());
    let mut program = Program {
        code,
        rules: *rules,
        pass,
        taken,
    };
    program.classify();
    program.finish(take)
}

/// The program in the making: each method adds a part that ends in a jump, unless it says where it goes
/// on.
struct Program<'a> {
    code: Assembler,
    rules: Rules<'a>,
    pass: Label,
    taken: Label,
}

impl Program<'_> {
    fn classify(&mut self) {
        let code = &mut self.code;
        let (group, arp, v4, v6) = (code.label(), code.label(), code.label(), code.label());
        code.move_register(CONTEXT, Register::R1);
        code.load(Size::Word, FRAME, CONTEXT, CONTEXT_DATA);
        code.load(Size::Word, FRAME_END, CONTEXT, CONTEXT_DATA_END);
        code.move_register(START, FRAME);
        match self.rules.vlan {
            Some(tag) => self.skip_tag(tag),
            None => self.skip_priority_tag(),
        }
        let is_own = matches!(self.rules.addresses, Addresses::Own { .. });
        let otherwise = if is_own { group } else { self.pass };
        self.skip_unless_mac(otherwise);
        self.code.load(Size::Half, FIELD, FRAME, ETHERTYPE);
        if is_own {
            self.jump_if_half(ETHERTYPE_ARP, arp);
        }
        self.jump_if_half(ETHERTYPE_IPV4, v4);
        self.jump_if_half(ETHERTYPE_IPV6, v6);
        self.code.jump(self.pass);
        match self.rules.addresses {
            Addresses::Own { all, answered } => {
                let neighbor = self.code.label();
                self.code.bind(group);
                self.classify_other_mac(arp, neighbor);
                self.code.bind(arp);
                self.arp(answered);
                self.code.bind(v4);
                self.own_v4(all);
                self.code.bind(v6);
                self.own_v6(all);
                self.code.bind(neighbor);
                self.neighbor(answered);
            }
            Addresses::Shared { map, ports } => {
                self.code.bind(v4);
                self.shared_v4(map, ports);
                self.code.bind(v6);
                self.shared_v6(map, ports);
            }
        }
    }

    fn finish(mut self, take: Take) -> Vec<Instruction> {
        let code = &mut self.code;
        code.bind(self.taken);
        match take {
            Take::Redirect { sockets, rings } => {
                tell_of_request(code, rings);
                code.load(Size::Word, Register::R2, CONTEXT, CONTEXT_QUEUE);
                code.load_map(Register::R1, sockets);
                code.move_immediate(Register::R3, XDP_PASS.cast_signed());
                code.call(REDIRECT_MAP);
            }
            #[cfg(test)]
            Take::Verdict(verdict) => {
                code.move_immediate(Register::R0, verdict.cast_signed());
            }
        }
        code.exit();
        code.bind(self.pass);
        code.move_immediate(Register::R0, XDP_PASS.cast_signed());
        code.exit();
        self.code.finish()
    }

    /// Passes frames to neither our MAC nor a group on; goes on with none.
    fn classify_other_mac(&mut self, arp: Label, neighbor: Label) {
        let not_a_group = self.code.label();
        self.code.load(Size::Byte, FIELD, START, 0);
        // The group bit of the first byte.
        self.code.and_immediate(FIELD, 1);
        self.code.jump_if(Condition::Equal, FIELD, 0, not_a_group);
        self.code.load(Size::Half, FIELD, FRAME, ETHERTYPE);
        self.jump_if_half(ETHERTYPE_ARP, arp);
        self.jump_if_half(ETHERTYPE_IPV6, neighbor);
        self.code.bind(not_a_group);
        self.code.jump(self.pass);
    }

    /// ARP is about an address if that is its target or sender address: a host that claims one of
    /// our addresses must be detected (RFC 5227 s2.1.1). In an announcement both are the same.
    fn arp(&mut self, addresses: &[IpAddr]) {
        self.need(FRAME, ARP_END);
        for place in [ARP_TARGET, ARP_SENDER] {
            self.jump_if_v4_at(addresses, place, self.taken);
        }
        self.code.load(Size::Word, OTHER_FIELD, FRAME, ARP_TARGET);
        self.code
            .jump_if_register(Condition::Equal, FIELD, OTHER_FIELD, self.taken);
        self.code.jump(self.pass);
    }

    fn own_v4(&mut self, addresses: &[IpAddr]) {
        self.need(FRAME, IPV4_END);
        self.jump_if_v4_at(addresses, IPV4_DESTINATION, self.taken);
        self.code.jump(self.pass);
    }

    /// IPv6 to one of our addresses; goes on with what is to another: RFC 6085 s3 lets a multicast
    /// packet be sent to a unicast MAC.
    fn own_v6(&mut self, addresses: &[IpAddr]) {
        self.need(FRAME, IPV6_END);
        self.jump_if_v6_at(addresses, IPV6_DESTINATION, self.taken);
    }

    /// Multicast neighbour solicitations of one of these addresses, multicast neighbour advertisements, and
    /// multicast listener queries.
    ///
    /// Fixed offsets are right: RFC 6980 s5 forbids fragments, and senders put no extension header before
    /// neighbour messages, and before queries one of eight bytes with the router alert (RFC 3810 s5).
    fn neighbor(&mut self, addresses: &[IpAddr]) {
        let (icmp, solicitation) = (self.code.label(), self.code.label());
        // A query is as long as a neighbour message.
        self.need(FRAME, ND_END);
        self.pass_unless_byte(FRAME, IPV6_DESTINATION, IPV6_MULTICAST);
        let code = &mut self.code;
        code.load(Size::Byte, FIELD, FRAME, IP + IPV6_NEXT_HEADER);
        code.jump_if(Condition::Equal, FIELD, PROTOCOL_ICMPV6, icmp);
        code.jump_if(Condition::NotEqual, FIELD, HOP_BY_HOP, self.pass);
        self.pass_unless_byte(FRAME, IPV6_END, PROTOCOL_ICMPV6);
        // Its length beyond eight bytes.
        self.pass_unless_byte(FRAME, IPV6_END + 1, 0);
        self.pass_unless_byte(FRAME, IPV6_END + HOP_BY_HOP_BYTES, LISTENER_QUERY);
        let code = &mut self.code;
        code.jump(self.taken);
        code.bind(icmp);
        code.load(Size::Byte, FIELD, FRAME, IPV6_END);
        code.jump_if(Condition::Equal, FIELD, NEIGHBOR_ADVERTISEMENT, self.taken);
        code.jump_if(Condition::Equal, FIELD, NEIGHBOR_SOLICITATION, solicitation);
        code.jump(self.pass);
        code.bind(solicitation);
        self.jump_if_v6_at(addresses, ND_TARGET, self.taken);
        self.code.jump(self.pass);
    }

    fn shared_v4(&mut self, map: RawFd, ports: &[u16]) {
        let code = &mut self.code;
        let (ours, tcp, icmp) = (code.label(), code.label(), code.label());
        self.need(FRAME, IPV4_END);
        self.jump_if_shared_v4(map, ours);
        self.code.jump(self.pass);

        self.code.bind(ours);
        self.code.move_register(BEHIND, FRAME);
        self.skip_v4_options(IP);
        self.code.load(Size::Byte, FIELD, FRAME, IP + IPV4_PROTOCOL);
        let code = &mut self.code;
        code.jump_if(Condition::Equal, FIELD, PROTOCOL_TCP, tcp);
        code.jump_if(Condition::Equal, FIELD, PROTOCOL_ICMP, icmp);
        code.jump(self.pass);

        self.code.bind(tcp);
        self.need(BEHIND, IPV4_END + TCP_PORTS_BYTES);
        self.take_if_port(ports, BEHIND, IPV4_END + TCP_DESTINATION_PORT);

        self.code.bind(icmp);
        const QUOTE: i16 = IPV4_END + ICMP_BYTES;
        self.need(BEHIND, QUOTE + IPV4_BYTES);
        self.pass_unless_byte(BEHIND, IPV4_END, ICMP_UNREACHABLE);
        self.pass_unless_byte(BEHIND, QUOTE + IPV4_PROTOCOL, PROTOCOL_TCP);
        self.pass_unless_same(QUOTE + IPV4_SOURCE, IPV4_DESTINATION);
        self.skip_v4_options(QUOTE);
        self.need(BEHIND, QUOTE + IPV4_BYTES + TCP_PORTS_BYTES);
        self.take_if_port(ports, BEHIND, QUOTE + IPV4_BYTES);
    }

    fn shared_v6(&mut self, map: RawFd, ports: &[u16]) {
        let code = &mut self.code;
        let (ours, tcp, icmp, error) = (code.label(), code.label(), code.label(), code.label());
        self.need(FRAME, IPV6_END);
        self.jump_if_shared_v6(map, ours);
        self.code.jump(self.pass);

        self.code.bind(ours);
        self.code
            .load(Size::Byte, FIELD, FRAME, IP + IPV6_NEXT_HEADER);
        let code = &mut self.code;
        code.jump_if(Condition::Equal, FIELD, PROTOCOL_TCP, tcp);
        code.jump_if(Condition::Equal, FIELD, PROTOCOL_ICMPV6, icmp);
        code.jump(self.pass);

        self.code.bind(tcp);
        self.need(FRAME, IPV6_END + TCP_PORTS_BYTES);
        self.take_if_port(ports, FRAME, IPV6_END + TCP_DESTINATION_PORT);

        self.code.bind(icmp);
        const QUOTE: i16 = IPV6_END + ICMP_BYTES;
        self.need(FRAME, QUOTE + IPV6_BYTES + TCP_PORTS_BYTES);
        self.code.load(Size::Byte, FIELD, FRAME, IPV6_END);
        for kind in [ICMPV6_UNREACHABLE, ICMPV6_PACKET_TOO_BIG] {
            self.code.jump_if(Condition::Equal, FIELD, kind, error);
        }
        self.code.jump(self.pass);
        self.code.bind(error);
        self.pass_unless_byte(FRAME, QUOTE + IPV6_NEXT_HEADER, PROTOCOL_TCP);
        self.code.move_register(BEHIND, FRAME);
        for word in [0, 4, 8, 12] {
            self.pass_unless_same(QUOTE + IPV6_SOURCE + word, IPV6_DESTINATION + word);
        }
        self.take_if_port(ports, FRAME, QUOTE + IPV6_BYTES);
    }

    /// Jumps if the map has the IPv4 address that the frame is to; goes on behind otherwise.
    fn jump_if_shared_v4(&mut self, map: RawFd, to: Label) {
        let code = &mut self.code;
        code.load_map_value(BEHIND, map);
        code.load(Size::Word, FIELD, FRAME, IPV4_DESTINATION);
        for place in AddressTable::v4_places() {
            code.load(Size::Word, OTHER_FIELD, BEHIND, place);
            code.jump_if_register(Condition::Equal, FIELD, OTHER_FIELD, to);
        }
    }

    /// The same for IPv6.
    fn jump_if_shared_v6(&mut self, map: RawFd, to: Label) {
        let code = &mut self.code;
        code.load_map_value(BEHIND, map);
        for place in AddressTable::v6_places() {
            let next = code.label();
            // Addresses of a host differ in their ends, as a rule.
            for word in [12, 8, 4, 0] {
                code.load(Size::Word, FIELD, FRAME, IPV6_DESTINATION + word);
                code.load(Size::Word, OTHER_FIELD, BEHIND, place + word);
                code.jump_if_register(Condition::NotEqual, FIELD, OTHER_FIELD, next);
            }
            code.jump(to);
            code.bind(next);
        }
    }

    /// Passes the frame if it has fewer than `bytes` behind `from`; afterwards the verifier knows that
    /// it has them.
    fn need(&mut self, from: Register, bytes: i16) {
        self.code.move_register(FIELD, from);
        self.code.add_immediate(FIELD, bytes.into());
        self.code
            .jump_if_register(Condition::Above, FIELD, FRAME_END, self.pass);
    }

    /// Jumps if the half word in `FIELD` has this value on the wire.
    fn jump_if_half(&mut self, value: u16, to: Label) {
        self.code.jump_if(Condition::Equal, FIELD, half(value), to);
    }

    fn pass_unless_byte(&mut self, from: Register, offset: i16, value: u32) {
        self.code.load(Size::Byte, FIELD, from, offset);
        self.code
            .jump_if(Condition::NotEqual, FIELD, value, self.pass);
    }

    /// Passes the frame if a word behind the options is another than one of the frame.
    fn pass_unless_same(&mut self, behind: i16, frame: i16) {
        self.code.load(Size::Word, FIELD, BEHIND, behind);
        self.code.load(Size::Word, OTHER_FIELD, FRAME, frame);
        self.code
            .jump_if_register(Condition::NotEqual, FIELD, OTHER_FIELD, self.pass);
    }

    /// Passes the frame if it has not the tag that ours have; moves [`FRAME`] on by it. What is behind the
    /// tag is looked at as in a frame without one, so that a second tag is a type that is not ours.
    fn skip_tag(&mut self, tag: VlanTag) {
        self.code.add_immediate(FRAME, TAG_BYTES);
        self.need(FRAME, IP);
        let (code, pass) = (&mut self.code, self.pass);
        code.load(Size::Half, FIELD, START, TAG_PROTOCOL);
        code.jump_if(Condition::NotEqual, FIELD, half(tag.protocol), pass);
        self.pass_unless_vlan(tag.id);
    }

    /// Moves [`FRAME`] on by a tag that names no VLAN; passes the frame if its tag names one.
    fn skip_priority_tag(&mut self) {
        let (tag, behind) = (self.code.label(), self.code.label());
        self.need(FRAME, IP);
        self.code.load(Size::Half, FIELD, START, TAG_PROTOCOL);
        self.jump_if_half(ETHERTYPE_VLAN, tag);
        self.jump_if_half(ETHERTYPE_SERVICE_VLAN, tag);
        self.code.jump(behind);
        self.code.bind(tag);
        self.code.add_immediate(FRAME, TAG_BYTES);
        self.need(FRAME, IP);
        self.pass_unless_vlan(0);
        self.code.bind(behind);
    }

    /// Passes the frame if its tag names another VLAN than `id`.
    fn pass_unless_vlan(&mut self, id: u16) {
        let (code, pass) = (&mut self.code, self.pass);
        code.load(Size::Half, FIELD, START, TAG_CONTROL);
        code.and_immediate(FIELD, half(VLAN_ID_BITS).cast_signed());
        code.jump_if(Condition::NotEqual, FIELD, half(id), pass);
    }

    fn skip_unless_mac(&mut self, otherwise: Label) {
        let [a, b, c, d, e, f] = self.rules.mac.0;
        self.code.load(Size::Word, FIELD, START, 0);
        let first = u32::from_ne_bytes([a, b, c, d]);
        self.code
            .jump_if(Condition::NotEqual, FIELD, first, otherwise);
        self.code.load(Size::Half, FIELD, START, 4);
        let rest = u32::from(u16::from_ne_bytes([e, f]));
        self.code
            .jump_if(Condition::NotEqual, FIELD, rest, otherwise);
    }

    /// Moves `BEHIND` on by the options of the IPv4 header at `BEHIND + header`; passes the frame if
    /// that header is no IPv4, too short, or a fragment's.
    ///
    /// By a constant for each length: without `CAP_PERFMON`, the verifier refuses to add a register to a
    /// pointer into the frame.
    fn skip_v4_options(&mut self, header: i16) {
        let code = &mut self.code;
        code.load(Size::Byte, FIELD, BEHIND, header);
        // Version 4 and 5 to 15 words of header.
        code.jump_if(Condition::Below, FIELD, 0x45, self.pass);
        code.jump_if(Condition::Above, FIELD, 0x4f, self.pass);
        code.load(Size::Half, OTHER_FIELD, BEHIND, header + IPV4_FRAGMENT);
        let bits = half(FRAGMENT_BITS);
        code.jump_if(Condition::AnyBit, OTHER_FIELD, bits, self.pass);
        let behind_options = code.label();
        // 5 words are the header without options.
        for words in 1..=10_u8 {
            let next = code.label();
            code.jump_if(Condition::NotEqual, FIELD, u32::from(0x45 + words), next);
            code.add_immediate(BEHIND, 4 * i32::from(words));
            code.jump(behind_options);
            code.bind(next);
        }
        code.bind(behind_options);
    }

    /// Takes the frame if the port at `offset` is one of ours, passes it otherwise.
    fn take_if_port(&mut self, ports: &[u16], from: Register, offset: i16) {
        self.code.load(Size::Half, FIELD, from, offset);
        for port in ports {
            self.jump_if_half(*port, self.taken);
        }
        self.code.jump(self.pass);
    }

    /// Jumps if one of these, an IPv4 address, is at `offset`; goes on behind otherwise.
    fn jump_if_v4_at(&mut self, addresses: &[IpAddr], offset: i16, to: Label) {
        self.code.load(Size::Word, FIELD, FRAME, offset);
        let v4 = addresses.iter().filter_map(|address| match address {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        });
        for address in v4 {
            let [word] = v4_words(*address);
            self.code.jump_if(Condition::Equal, FIELD, word, to);
        }
    }

    /// Jumps if one of these, an IPv6 address, is at `offset`; goes on behind otherwise.
    fn jump_if_v6_at(&mut self, addresses: &[IpAddr], offset: i16, to: Label) {
        for address in addresses {
            let IpAddr::V6(address) = address else {
                continue;
            };
            let next = self.code.label();
            for (word, place) in v6_words(*address).into_iter().zip([0, 4, 8, 12]) {
                self.code.load(Size::Word, FIELD, FRAME, offset + place);
                self.code.jump_if(Condition::NotEqual, FIELD, word, next);
            }
            self.code.jump(to);
            self.code.bind(next);
        }
    }
}

/// Puts a record into the queue's ring if the frame is longer than an acknowledgment, if it has a ring, and if that
/// has room: one that has none has a record already.
fn tell_of_request(code: &mut Assembler, rings: RawFd) {
    let told = code.label();
    let load_key = |code: &mut Assembler| {
        code.move_register(Register::R2, Register::R10);
        code.add_immediate(Register::R2, KEY.into());
    };
    code.load(Size::Word, FRAME_END, CONTEXT, CONTEXT_DATA_END);
    code.move_register(FIELD, START);
    code.add_immediate(FIELD, ACK_FRAME_BYTES_MAX + 1);
    code.jump_if_register(Condition::Above, FIELD, FRAME_END, told);
    code.load(Size::Word, Register::R2, CONTEXT, CONTEXT_QUEUE);
    code.store_word(Register::R10, KEY, Register::R2);
    load_key(code);
    code.load_map(Register::R1, rings);
    code.call(MAP_LOOKUP_ELEM);
    code.jump_if_null(Register::R0, told);
    code.move_register(Register::R1, Register::R0);
    load_key(code);
    code.move_immediate(Register::R3, KEY_BYTES);
    code.move_immediate(Register::R4, 0);
    code.call(RINGBUF_OUTPUT);
    code.bind(told);
}

/// A half word as a load of its bytes on the wire gives it.
fn half(value: u16) -> u32 {
    value.to_be().into()
}

/// An address as loads of its bytes on the wire give it.
const fn v4_words(address: Ipv4Addr) -> [u32; 1] {
    [u32::from_ne_bytes(address.octets())]
}

/// An address as loads of its bytes on the wire give it.
fn v6_words(address: Ipv6Addr) -> [u32; 4] {
    let octets = address.octets();
    let (words, _) = octets.as_chunks::<4>();
    let mut all = [0; 4];
    for (word, bytes) in all.iter_mut().zip(words) {
        *word = u32::from_ne_bytes(*bytes);
    }
    all
}

#[cfg(test)]
mod tests;
