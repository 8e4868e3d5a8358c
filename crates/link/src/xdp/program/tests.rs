//! The program, run by a small eBPF interpreter on hand-made frames; the kernel runs it in
//! `tests/xdp.rs` and, on the frames of these tests, in `the_kernel_agrees`.

use std::net::IpAddr;
use std::os::fd::AsRawFd as _;

use wire::MacAddress;

use super::super::assembler::{INSTRUCTIONS_MAX, Instruction};
use super::{
    ACK_FRAME_BYTES_MAX, ADDRESSES_MAX, Addresses, MAP_LOOKUP_ELEM, PORTS_MAX, REDIRECT_MAP,
    RINGBUF_OUTPUT, Rules, Take, XDP_PASS, XDP_REDIRECT, assemble,
};
use crate::VlanTag;
use crate::xdp::address_table::AddressTable;
use crate::xdp::bpf;

const OURS: MacAddress = MacAddress([0x02, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5]);
const OTHER: [u8; 6] = [0x02, 0xa1, 0xa2, 0xa3, 0xa4, 0xa6];
const BROADCAST: [u8; 6] = [0xff; 6];
const V4: &str = "10.1.2.3";
const V6: &str = "fd00::a1:b2c3";
const PORTS: [u16; 2] = [80, 443];
/// The group MAC of the solicited-node group of [`V6`].
const SOLICITED: [u8; 6] = [0x33, 0x33, 0xff, 0xa1, 0xb2, 0xc3];
/// The group MAC of all IPv6 nodes.
const ALL_NODES: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

/// Where the interpreter has the context, the table of addresses and the frame.
const CONTEXT: u64 = 0x100;
const TABLE: u64 = 0x8000;
const DATA: u64 = 0x1_0000;
/// Where the stack ends, and where the queue's ring is.
const STACK: u64 = 0x4000;
const RING: u64 = 0x5000;
/// The queue a frame arrives at, and the descriptors of the maps of sockets, of addresses and of rings.
const QUEUE: u64 = 3;
const MAP: i32 = 9;
const RINGS: i32 = 11;
const TAKE: Take = Take::Redirect {
    sockets: MAP,
    rings: RINGS,
};
const ADDRESS_MAP: i32 = 10;

/// A frame and the program's machine.
struct Machine<'a> {
    frame: &'a [u8],
    registers: [u64; 11],
    /// The addresses in the map.
    table: Vec<u8>,
    /// The stack's last word.
    key: u64,
    /// Whether the queue has a ring, and the records in it.
    has_ring: bool,
    records: usize,
}

impl Machine<'_> {
    /// Runs a program as the kernel does, with these addresses in the map; a load outside the frame, which the
    /// verifier refuses, panics.
    fn run(program: &[Instruction], shared: &[IpAddr], frame: &[u8]) -> u32 {
        Self::run_with(program, shared, frame, true).0
    }

    /// The same for a queue with or without a ring; the verdict, and the records.
    fn run_with(
        program: &[Instruction],
        shared: &[IpAddr],
        frame: &[u8],
        has_ring: bool,
    ) -> (u32, usize) {
        let mut machine = Machine {
            frame,
            registers: [0; 11],
            table: table(shared).bytes(),
            key: u64::MAX,
            has_ring,
            records: 0,
        };
        machine.registers[1] = CONTEXT;
        machine.registers[10] = STACK;
        let mut at = 0;
        loop {
            let instruction = program[at];
            at += 1;
            let Instruction {
                code,
                registers,
                offset,
                immediate,
            } = instruction;
            let (to, from) = (usize::from(registers & 15), usize::from(registers >> 4));
            let wide = i64::from(immediate).cast_unsigned();
            let (left, right) = (machine.registers[to], machine.registers[from]);
            let is_taken = match code {
                0xbf => machine.set(to, right),
                0xb7 => machine.set(to, wide),
                0x07 => machine.set(to, left.wrapping_add(wide)),
                0x57 => machine.set(to, left & wide),
                0x61 | 0x69 | 0x71 => {
                    let bytes = match code {
                        0x61 => 4,
                        0x69 => 2,
                        _ => 1,
                    };
                    let value = machine.load(right, offset, bytes);
                    machine.set(to, value)
                }
                0x18 => {
                    at += 1;
                    let is_value = from == 2;
                    assert_eq!(immediate == ADDRESS_MAP, is_value);
                    machine.set(to, if is_value { TABLE } else { wide })
                }
                0x63 => {
                    assert_eq!((left, offset), (STACK, -4));
                    machine.key = right;
                    false
                }
                0x85 => machine.call(immediate),
                0x95 => {
                    let verdict = u32::try_from(machine.registers[0]).unwrap();
                    return (verdict, machine.records);
                }
                0x05 => true,
                0x15 => left == wide,
                0x1d => left == right,
                0x2d => left > right,
                0x5d => left != right,
                0x16 | 0x26 | 0x46 | 0x56 | 0xa6 => {
                    let (left, right) = (low(left), immediate.cast_unsigned());
                    match code {
                        0x16 => left == right,
                        0x26 => left > right,
                        0x46 => left & right != 0,
                        0x56 => left != right,
                        _ => left < right,
                    }
                }
                code => panic!("instruction {code:#x} is not one the program has"),
            };
            if is_taken {
                at += usize::try_from(offset).unwrap();
            }
        }
    }

    /// A function of the kernel's, which overwrites its arguments.
    fn call(&mut self, function: i32) -> bool {
        let [_, map, second, third, fourth, ..] = self.registers;
        let is_map = |number: i32| map == u64::try_from(number).unwrap();
        let result = match function {
            MAP_LOOKUP_ELEM => {
                assert!(is_map(RINGS) && second == STACK - 4 && self.key == QUEUE);
                if self.has_ring { RING } else { 0 }
            }
            RINGBUF_OUTPUT => {
                assert_eq!((map, second, third, fourth), (RING, STACK - 4, 4, 0));
                self.records += 1;
                0
            }
            REDIRECT_MAP => {
                assert!(is_map(MAP));
                assert_eq!((second, third), (QUEUE, u64::from(XDP_PASS)));
                u64::from(XDP_REDIRECT)
            }
            other => panic!("function {other} is not one the program calls"),
        };
        self.registers[1..=5].fill(u64::MAX);
        self.set(0, result)
    }

    /// Never a jump.
    fn set(&mut self, register: usize, value: u64) -> bool {
        self.registers[register] = value;
        false
    }

    fn load(&self, base: u64, offset: i16, bytes: usize) -> u64 {
        let address = base.wrapping_add_signed(offset.into());
        let end = DATA + u64::try_from(self.frame.len()).unwrap();
        if base == CONTEXT {
            return match address - CONTEXT {
                0 => DATA,
                4 => end,
                16 => QUEUE,
                other => panic!("the context has nothing of ours at {other}"),
            };
        }
        let (bytes_of, start) = if base == TABLE {
            (self.table.as_slice(), TABLE)
        } else {
            (self.frame, DATA)
        };
        let at = usize::try_from(address.checked_sub(start).unwrap()).unwrap();
        let field = bytes_of.get(at..at + bytes);
        let field = field.unwrap_or_else(|| panic!("byte {at} of {}", self.frame.len()));
        match *field {
            [byte] => byte.into(),
            [a, b] => u16::from_ne_bytes([a, b]).into(),
            [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
            _ => unreachable!("loads have one, two or four bytes"),
        }
    }
}

fn low(value: u64) -> u32 {
    u32::try_from(value & 0xffff_ffff).unwrap()
}

fn table(addresses: &[IpAddr]) -> AddressTable {
    let mut table = AddressTable::new();
    table.add(addresses);
    table
}

fn addresses() -> [IpAddr; 2] {
    [ip(V4), ip(V6)]
}

/// The rules for addresses that are ours alone, or that are shared with the kernel.
fn rules<'a>(
    all: &'a [IpAddr],
    shared_ports: Option<&'a [u16]>,
    vlan: Option<VlanTag>,
) -> Rules<'a> {
    let addresses = match shared_ports {
        None => Addresses::Own { all, answered: all },
        Some(ports) => Addresses::Shared {
            map: ADDRESS_MAP,
            ports,
        },
    };
    Rules {
        mac: OURS,
        addresses,
        vlan,
    }
}

fn takes(shared_ports: Option<&[u16]>, frame: &[u8]) -> bool {
    let addresses = addresses();
    let code = assemble(&rules(&addresses, shared_ports, None), TAKE);
    match Machine::run(&code, &addresses, frame) {
        XDP_REDIRECT => true,
        XDP_PASS => false,
        verdict => panic!("verdict {verdict}"),
    }
}

/// Whether a frame is taken at addresses that are ours alone.
fn own(frame: &[u8]) -> bool {
    takes(None, frame)
}

/// Whether a frame is taken at addresses shared with the kernel.
fn shared(frame: &[u8]) -> bool {
    takes(Some(&PORTS), frame)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn octets(text: &str) -> Vec<u8> {
    match ip(text) {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn ethernet(destination: [u8; 6], ethertype: u16, rest: &[u8]) -> Vec<u8> {
    let mut frame = destination.to_vec();
    frame.extend_from_slice(&[0x02, 9, 9, 9, 9, 9]);
    frame.extend_from_slice(&ethertype.to_be_bytes());
    frame.extend_from_slice(rest);
    frame
}

fn arp(destination: [u8; 6], sender: &str, target: &str) -> Vec<u8> {
    let mut body = vec![0, 1, 8, 0, 6, 4, 0, 1, 0, 0, 0, 0, 0, 0];
    body.extend(octets(sender));
    body.extend([0; 6]);
    body.extend(octets(target));
    ethernet(destination, 0x0806, &body)
}

/// An IPv4 packet with `options` words of options.
fn v4(source: &str, destination: &str, options: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45 + options, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0];
    packet.extend(octets(source));
    packet.extend(octets(destination));
    packet.extend(vec![1; usize::from(options) * 4]);
    packet.extend(payload);
    packet
}

fn v6(source: &str, destination: &str, next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, next_header, 255];
    packet.extend(octets(source));
    packet.extend(octets(destination));
    packet.extend(payload);
    packet
}

fn packet(bytes: &[u8]) -> Vec<u8> {
    let ethertype = if bytes[0] >> 4 == 6 { 0x86dd } else { 0x0800 };
    ethernet(OURS.0, ethertype, bytes)
}

/// A TCP header's first bytes.
fn tcp(from: u16, to: u16) -> Vec<u8> {
    let mut header = from.to_be_bytes().to_vec();
    header.extend(to.to_be_bytes());
    header.extend([0; 4]);
    header
}

fn tcp_v4(options: u8, to: u16) -> Vec<u8> {
    packet(&v4("9.9.9.9", V4, options, 6, &tcp(5_000, to)))
}

fn tcp_v6(to: u16) -> Vec<u8> {
    packet(&v6("fd00::9", V6, 6, &tcp(5_000, to)))
}

/// An ICMP error to our address that quotes `quote`.
fn error_v4(kind: u8, options: u8, quote: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, 4, 0, 0, 0, 0, 5, 0xdc];
    message.extend(quote);
    packet(&v4("9.9.9.1", V4, options, 1, &message))
}

fn error_v6(kind: u8, quote: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, 0, 0, 5, 0xdc];
    message.extend(quote);
    packet(&v6("fd00::1", V6, 58, &message))
}

fn neighbor(destination: [u8; 6], group: &str, kind: u8, target: &str) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    message.extend(octets(target));
    ethernet(destination, 0x86dd, &v6("fd00::9", group, 58, &message))
}

/// A frame with a tag of VLAN 5 before what it had.
fn tagged(frame: &[u8]) -> Vec<u8> {
    with_tag(frame, [0x81, 0x00, 0x00, 0x05])
}

fn with_tag(frame: &[u8], tag: [u8; 4]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let at = frame.len().min(12);
    frame.splice(at..at, tag);
    frame
}

/// A name, a frame, and whether it is taken at own and at shared addresses.
type Case = (&'static str, Vec<u8>, bool, bool);

/// A frame that is taken at both.
fn both(name: &'static str, frame: Vec<u8>) -> Case {
    (name, frame, true, true)
}

/// One that is taken only at addresses that are ours alone.
fn only_own(name: &'static str, frame: Vec<u8>) -> Case {
    (name, frame, true, false)
}

/// One that always passes to the kernel.
fn neither(name: &'static str, frame: Vec<u8>) -> Case {
    (name, frame, false, false)
}

fn ip_cases() -> Vec<Case> {
    let udp = v4("9.9.9.9", V4, 0, 17, &tcp(1, 80));
    let echo = v4("9.9.9.9", V4, 0, 1, &[8; 64]);
    let other = v4("9.9.9.9", "10.1.2.4", 0, 6, &tcp(1, 80));
    let other_v6 = v6("fd00::9", "fd00::a1:b2c4", 6, &tcp(1, 80));
    let extension = v6("fd00::9", V6, 60, &[6, 0, 1, 4, 0, 0, 0, 0, 0, 80]);
    let echo_v6 = v6("fd00::9", V6, 58, &[128; 64]);
    let mut cases = vec![
        both("our port", tcp_v4(0, 80)),
        both("our other port", tcp_v4(0, 443)),
        only_own("a port below", tcp_v4(0, 79)),
        only_own("a port above", tcp_v4(0, 444)),
        only_own("ssh", tcp_v4(0, 22)),
        only_own("a port with its bytes swapped", tcp_v4(0, 80 << 8)),
        both("one word of options", tcp_v4(1, 80)),
        both("ten words of options", tcp_v4(10, 80)),
        only_own("options, another port", tcp_v4(10, 81)),
        only_own("UDP", packet(&udp)),
        only_own("echo request", packet(&echo)),
        neither("another address", packet(&other)),
        both("IPv6, our port", tcp_v6(443)),
        only_own("IPv6, another port", tcp_v6(22)),
        neither("IPv6, another address", packet(&other_v6)),
        only_own("IPv6, an extension header", packet(&extension)),
        only_own("IPv6 echo request", packet(&echo_v6)),
        neither("a tag", tagged(&tcp_v4(0, 80))),
    ];
    for (name, mac) in [("to another MAC", OTHER), ("to all MACs", BROADCAST)] {
        let mut frame = tcp_v4(0, 80);
        frame[..6].copy_from_slice(&mac);
        cases.push(neither(name, frame));
    }
    for version in [0x44, 0x00, 0x35, 0x55] {
        let mut frame = tcp_v4(0, 80);
        frame[14] = version;
        cases.push(only_own("no IPv4 header", frame));
    }
    cases
}

/// A message to all nodes behind a hop-by-hop header of `units` times eight bytes more than eight.
fn hop_by_hop(kind: u8, units: u8) -> Vec<u8> {
    let mut frame = neighbor(ALL_NODES, "ff02::1", kind, V6);
    let message = frame.split_off(54);
    frame[14 + 6] = 0;
    frame.extend_from_slice(&[58, units, 5, 2, 0, 0, 1, 0]);
    frame.resize(frame.len() + 8 * usize::from(units), 0);
    frame.extend_from_slice(&message);
    frame
}

fn neighbor_cases() -> Vec<Case> {
    const GROUP: &str = "ff02::1:ffa1:b2c3";
    const ALL: &str = "ff02::1";
    const AWAY: &str = "fd00::a1:b2c4";
    let ask = |mac, group, kind, target| neighbor(mac, group, kind, target);
    let lldp = ethernet([0x01, 0x80, 0xc2, 0, 0, 0x0e], 0x88cc, &[0; 46]);
    vec![
        only_own("ARP to all", arp(BROADCAST, "10.1.2.9", V4)),
        only_own("ARP to us", arp(OURS.0, V4, "0.0.0.0")),
        neither("ARP about another", arp(BROADCAST, "10.1.2.9", "10.1.2.4")),
        neither("ARP to another", arp(OTHER, "10.1.2.9", V4)),
        only_own("a solicitation", ask(SOLICITED, GROUP, 135, V6)),
        only_own("an advertisement", ask(ALL_NODES, ALL, 136, V6)),
        only_own("a solicitation to our MAC", ask(OURS.0, GROUP, 135, V6)),
        only_own("an announcement", arp(BROADCAST, "10.1.2.4", "10.1.2.4")),
        only_own("another's advertisement", ask(ALL_NODES, ALL, 136, AWAY)),
        only_own("a listener query", hop_by_hop(130, 0)),
        neither("a listener report", hop_by_hop(131, 0)),
        neither("a longer header", hop_by_hop(130, 1)),
        neither("a router's message", ask(SOLICITED, GROUP, 134, V6)),
        neither("a redirect", ask(SOLICITED, GROUP, 137, V6)),
        neither("about another", ask(SOLICITED, GROUP, 135, AWAY)),
        neither("to no group", ask(SOLICITED, "fd00::1", 135, V6)),
        neither("LLDP", lldp),
        neither("nothing", Vec::new()),
    ]
}

fn error_cases() -> Vec<Case> {
    const PEER: &str = "9.9.9.9";
    let quoted = v4(V4, PEER, 0, 6, &tcp(80, 5_000));
    let options = v4(V4, PEER, 10, 6, &tcp(80, 5_000));
    let ssh = v4(V4, PEER, 0, 6, &tcp(22, 80));
    let udp = v4(V4, PEER, 0, 17, &tcp(80, 5_000));
    let other = v4("10.1.2.4", PEER, 0, 6, &tcp(80, 5_000));
    let quoted_v6 = v6(V6, "fd00::9", 6, &tcp(443, 5_000));
    let ssh_v6 = v6(V6, "fd00::9", 6, &tcp(22, 443));
    let udp_v6 = v6(V6, "fd00::9", 17, &tcp(443, 1));
    let other_v6 = v6("fd00::a1:b2c4", "fd00::9", 6, &tcp(443, 1));
    let mut cases = vec![
        both("unreachable", error_v4(3, 0, &quoted)),
        both("unreachable, with options", error_v4(3, 10, &quoted)),
        both("unreachable, quoted options", error_v4(3, 1, &options)),
        only_own("time exceeded", error_v4(11, 0, &quoted)),
        only_own("unreachable, of ssh", error_v4(3, 0, &ssh)),
        only_own("unreachable, of UDP", error_v4(3, 0, &udp)),
        only_own("unreachable, not from us", error_v4(3, 0, &other)),
        only_own("unreachable, of IPv6", error_v4(3, 0, &quoted_v6)),
        both("IPv6 unreachable", error_v6(1, &quoted_v6)),
        both("too big", error_v6(2, &quoted_v6)),
        only_own("IPv6 time exceeded", error_v6(3, &quoted_v6)),
        only_own("too big, of ssh", error_v6(2, &ssh_v6)),
        only_own("too big, of UDP", error_v6(2, &udp_v6)),
        only_own("too big, not from us", error_v6(2, &other_v6)),
    ];
    // More fragments, and any offset; of the whole packet and of the quoted one.
    for bits in [[0x20, 0x00], [0x00, 0x01], [0x1f, 0x00]] {
        let mut frame = tcp_v4(0, 80);
        frame[20..22].copy_from_slice(&bits);
        cases.push(only_own("a fragment", frame));
        let mut frame = error_v4(3, 0, &quoted);
        frame[48..50].copy_from_slice(&bits);
        cases.push(only_own("a quoted fragment", frame));
    }
    cases
}

fn corpus() -> Vec<Case> {
    [ip_cases(), neighbor_cases(), error_cases()].concat()
}

#[test]
fn each_frame_goes_where_it_belongs() {
    for (name, frame, is_own, is_shared) in corpus() {
        assert_eq!(own(&frame), is_own, "{name}, own address");
        assert_eq!(shared(&frame), is_shared, "{name}, shared address");
    }
}

#[test]
fn a_frame_cut_short_passes_until_its_last_field_is_there() {
    let quote = v4(V4, "9.9.9.9", 10, 6, &tcp(80, 5_000));
    let quote_v6 = v6(V6, "fd00::9", 6, &tcp(443, 5_000));
    // Bytes that are needed: Ethernet, IP with its options, and both ports of TCP.
    for (frame, own_bytes, shared_bytes) in [
        (tcp_v4(0, 80), Some(34), Some(34 + 4)),
        (tcp_v4(10, 80), Some(34), Some(34 + 40 + 4)),
        (tcp_v6(443), Some(54), Some(54 + 4)),
        (error_v4(3, 2, &quote), Some(34), Some(34 + 8 + 8 + 60 + 4)),
        (error_v6(2, &quote_v6), Some(54), Some(54 + 8 + 40 + 4)),
        (arp(BROADCAST, "10.1.2.9", V4), Some(42), None),
        (
            neighbor(SOLICITED, "ff02::1:ffa1:b2c3", 135, V6),
            Some(78),
            None,
        ),
    ] {
        for length in 0..=frame.len() {
            let cut = &frame[..length];
            let needed = |bytes: Option<usize>| bytes.is_some_and(|bytes| length >= bytes);
            assert_eq!(own(cut), needed(own_bytes), "{length} bytes, own");
            assert_eq!(shared(cut), needed(shared_bytes), "{length} bytes, shared");
        }
    }
}

/// The tag of frames in VLAN 0x345, of every priority, and the rules for it.
const VLAN: VlanTag = VlanTag {
    protocol: 0x8100,
    id: 0x345,
};

/// Whether a frame is taken in [`VLAN`], at own and at shared addresses.
fn in_vlan(vlan: VlanTag, frame: &[u8]) -> [bool; 2] {
    [None, Some(PORTS.as_slice())].map(|shared_ports| {
        let addresses = addresses();
        let rules = rules(&addresses, shared_ports, Some(vlan));
        Machine::run(&assemble(&rules, TAKE), &addresses, frame) == XDP_REDIRECT
    })
}

#[test]
fn in_a_vlan_frames_with_its_tag_go_where_those_without_go_elsewhere() {
    let service = VlanTag {
        protocol: 0x88a8,
        ..VLAN
    };
    for (name, frame, is_own, is_shared) in corpus() {
        let taken = [is_own, is_shared];
        // Highest and lowest priority, and the bit of eligibility to be dropped.
        for high in [0x03, 0xe3, 0x13, 0xf3] {
            let ours = with_tag(&frame, [0x81, 0x00, high, 0x45]);
            assert_eq!(in_vlan(VLAN, &ours), taken, "{name}");
            assert_eq!(in_vlan(service, &ours), [false; 2], "{name}");
            let service_s = with_tag(&frame, [0x88, 0xa8, high, 0x45]);
            assert_eq!(in_vlan(service, &service_s), taken, "{name}");
            assert_eq!(in_vlan(VLAN, &service_s), [false; 2], "{name}");
        }
        // No tag, other VLANs (above, below, each of the two bytes), priority only, and two tags.
        assert_eq!(in_vlan(VLAN, &frame), [false; 2], "{name}");
        for [high, low] in [
            [0x03, 0x44],
            [0x03, 0x46],
            [0x02, 0x45],
            [0x0b, 0x45],
            [0, 0],
        ] {
            let other = with_tag(&frame, [0x81, 0x00, high, low]);
            assert_eq!(in_vlan(VLAN, &other), [false; 2], "{name}");
        }
        for outer in [[0x81, 0x00, 0x03, 0x45], [0x88, 0xa8, 0x03, 0x45]] {
            let inner = with_tag(&frame, [0x81, 0x00, 0x03, 0x45]);
            let two = with_tag(&inner, outer);
            assert_eq!(in_vlan(VLAN, &two), [false; 2], "{name}");
            assert_eq!(in_vlan(service, &two), [false; 2], "{name}");
        }
    }
}

#[test]
fn without_a_vlan_a_tag_with_a_priority_only_makes_no_difference_and_no_other_is_taken() {
    for (name, frame, is_own, is_shared) in corpus() {
        for high in [0x00, 0xe0, 0x10, 0xf0] {
            for protocol in [[0x81, 0x00], [0x88, 0xa8]] {
                let [a, b] = protocol;
                let priority = with_tag(&frame, [a, b, high, 0x00]);
                assert_eq!(own(&priority), is_own, "{name}");
                assert_eq!(shared(&priority), is_shared, "{name}");
                let two = with_tag(&priority, [0x81, 0x00, high, 0x00]);
                assert!(!own(&two) && !shared(&two), "{name}");
                for [number_high, low] in [[0, 1], [8, 0], [3, 0x45]] {
                    let other = with_tag(&frame, [a, b, high | number_high, low]);
                    assert!(!own(&other) && !shared(&other), "{name}");
                }
            }
        }
    }
}

#[test]
fn a_frame_with_a_priority_cut_short_passes_until_its_last_field_is_there() {
    for (frame, own_bytes, shared_bytes) in [
        (tcp_v4(0, 80), 38, 38 + 4),
        (tcp_v4(10, 80), 38, 38 + 40 + 4),
        (tcp_v6(443), 58, 58 + 4),
    ] {
        let frame = with_tag(&frame, [0x81, 0x00, 0xa0, 0x00]);
        for length in 0..=frame.len() {
            let cut = &frame[..length];
            assert_eq!(own(cut), length >= own_bytes, "{length} bytes, own");
            assert_eq!(
                shared(cut),
                length >= shared_bytes,
                "{length} bytes, shared"
            );
        }
    }
}

#[test]
fn in_a_vlan_a_frame_cut_short_passes_until_its_last_field_is_there() {
    const TAG: [u8; 4] = [0x81, 0x00, 0x03, 0x45];
    for (frame, own_bytes, shared_bytes) in [
        (tcp_v4(0, 80), 38, 38 + 4),
        (tcp_v4(10, 80), 38, 38 + 40 + 4),
        (tcp_v6(443), 58, 58 + 4),
    ] {
        let frame = with_tag(&frame, TAG);
        for length in 0..=frame.len() {
            let expected = [length >= own_bytes, length >= shared_bytes];
            assert_eq!(in_vlan(VLAN, &frame[..length]), expected, "{length} bytes");
        }
    }
}

#[test]
fn without_addresses_of_a_version_none_of_it_is_taken() {
    let takes = |address: &str, shared_ports, frame: &[u8]| {
        let addresses = [ip(address)];
        let rules = rules(&addresses, shared_ports, None);
        Machine::run(&assemble(&rules, TAKE), &addresses, frame) == XDP_REDIRECT
    };
    let solicitation = neighbor(SOLICITED, "ff02::1:ffa1:b2c3", 135, V6);
    for ports in [None, Some(PORTS.as_slice())] {
        assert!(takes(V4, ports, &tcp_v4(0, 80)) && !takes(V4, ports, &tcp_v6(80)));
        assert!(takes(V6, ports, &tcp_v6(80)) && !takes(V6, ports, &tcp_v4(0, 80)));
        assert!(!takes(V4, ports, &solicitation));
        assert!(!takes(V6, ports, &arp(BROADCAST, "10.1.2.9", V4)));
    }
}

/// As many addresses and ports as there may be, in both versions.
fn many() -> (Vec<IpAddr>, Vec<u16>) {
    let number = |n: usize| u8::try_from(n).unwrap();
    let address = |n: usize| match n % 2 {
        0 => IpAddr::from([10, 0, 0, number(n)]),
        _ => IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, number(n)]),
    };
    let ports = (0..PORTS_MAX).map(|n| 8_000 + u16::from(number(n)));
    ((0..ADDRESSES_MAX).map(address).collect(), ports.collect())
}

#[test]
fn the_last_of_all_addresses_and_ports_is_taken_in_a_short_program() {
    let (addresses, ports) = many();
    for shared_ports in [None, Some(ports.as_slice())] {
        let rules = rules(&addresses, shared_ports, None);
        let program = assemble(&rules, TAKE);
        assert!(program.len() <= 2_000, "{}", program.len());
        let run = |frame: &[u8]| Machine::run(&program, &addresses, frame);
        let last = *ports.last().unwrap();
        let v4 = |to: &str| packet(&v4("9.9.9.9", to, 0, 6, &tcp(1, last)));
        let v6 = |to: &str| packet(&v6("fd00::99", to, 6, &tcp(1, last)));
        assert_eq!(run(&v4("10.0.0.62")), XDP_REDIRECT);
        assert_eq!(run(&v6("fd00::3f")), XDP_REDIRECT);
        assert_eq!(run(&v4("10.0.0.63")), XDP_PASS);
        assert_eq!(run(&v6("fd00::3e")), XDP_PASS);
    }
    const { assert!(INSTRUCTIONS_MAX >= 2_000) };
}

#[test]
#[should_panic(expected = "65 addresses")]
fn an_address_too_many_is_a_programming_error() {
    let addresses = [ip(V4); ADDRESSES_MAX + 1];
    let _ = assemble(&rules(&addresses, None, None), TAKE);
}

#[test]
#[should_panic(expected = "17 ports")]
fn a_port_too_many_is_a_programming_error() {
    let ports = [80; PORTS_MAX + 1];
    let _ = assemble(&rules(&[], Some(&ports), None), TAKE);
}

#[test]
fn a_frame_longer_than_an_acknowledgment_has_a_record_if_it_is_taken() {
    let longest = usize::try_from(ACK_FRAME_BYTES_MAX).unwrap();
    let addresses = addresses();
    for shared_ports in [None, Some(PORTS.as_slice())] {
        for vlan in [None, Some(VLAN)] {
            let program = assemble(&rules(&addresses, shared_ports, vlan), TAKE);
            let run = |mut frame: Vec<u8>, bytes, has_ring| {
                if vlan.is_some() {
                    frame = with_tag(&frame, [0x81, 0x00, 0x03, 0x45]);
                }
                frame.resize(bytes, 0);
                Machine::run_with(&program, &addresses, &frame, has_ring)
            };
            for frame in [tcp_v4(0, 80), tcp_v4(10, 80), tcp_v6(80)] {
                for (bytes, records) in [(longest, 0), (longest + 1, 1), (1_514, 1)] {
                    let found = run(frame.clone(), bytes, true);
                    assert_eq!(found, (XDP_REDIRECT, records), "{bytes} bytes");
                    let found = run(frame.clone(), bytes, false);
                    assert_eq!(found, (XDP_REDIRECT, 0), "a queue without a ring");
                }
            }
            let other = packet(&v4("9.9.9.9", "10.1.2.4", 0, 6, &tcp(1, 80)));
            assert_eq!(run(other, 1_514, true), (XDP_PASS, 0));
        }
    }
}

/// RFC 826 and RFC 4861 would have us answer, and the answer would take the address from the load balancer.
#[test]
fn packets_to_a_virtual_address_are_taken_and_neighbour_messages_about_it_are_not() {
    let all = addresses();
    let rules = Rules {
        addresses: Addresses::Own {
            all: &all,
            answered: &[],
        },
        ..rules(&all, None, None)
    };
    let code = assemble(&rules, TAKE);
    let takes = |frame: &[u8]| Machine::run(&code, &[], frame) == XDP_REDIRECT;
    assert!(takes(&tcp_v4(0, 80)) && takes(&tcp_v6(80)));
    assert!(!takes(&arp(BROADCAST, "10.1.2.9", V4)) && !takes(&arp(OURS.0, V4, "0.0.0.0")));
    let group = "ff02::1:ffa1:b2c3";
    assert!(!takes(&neighbor(SOLICITED, group, 135, V6)));
    assert!(!takes(&neighbor(OURS.0, group, 135, V6)));
    // What stations say of themselves to all is of use.
    assert!(takes(&arp(BROADCAST, "10.1.2.4", "10.1.2.4")));
}

#[test]
#[allow(clippy::print_stderr, reason = "a test that is skipped says so")]
fn the_kernel_agrees() {
    /// Any that is not the one of frames that pass.
    const TAKEN: u32 = 3;
    let (many_addresses, many_ports) = many();
    let few = addresses();
    let choices = [
        (few.as_slice(), PORTS.as_slice()),
        (&many_addresses, &many_ports),
        (&few[..1], &PORTS),
        (&few[1..], &PORTS),
    ];
    let skipped = || eprintln!("SKIPPED: no XDP program without CAP_BPF; run as root");
    for (addresses, ports) in choices {
        let map = match bpf::create_address_map() {
            Err(libc::EPERM) => return skipped(),
            result => result.unwrap(),
        };
        bpf::set_addresses(&map, &table(addresses)).unwrap();
        let uses = [None, Some(ports)].into_iter();
        let uses =
            uses.flat_map(|shared_ports| [None, Some(VLAN)].map(|vlan| (shared_ports, vlan)));
        for (shared_ports, vlan) in uses {
            let mut rules = rules(addresses, shared_ports, vlan);
            let code = assemble(&rules, Take::Verdict(TAKEN));
            if let Addresses::Shared { map: number, .. } = &mut rules.addresses {
                *number = map.as_raw_fd();
            }
            let loaded = assemble(&rules, Take::Verdict(TAKEN));
            let program = match bpf::load_program(&loaded, vlan.is_some()) {
                Err(libc::EPERM) => return skipped(),
                result => result.unwrap(),
            };
            // The kernel refuses to run a program on less than an Ethernet header.
            for (name, frame, ..) in corpus().iter().filter(|(_, frame, ..)| frame.len() >= 14) {
                let ours = with_tag(frame, [0x81, 0x00, 0x03, 0x45]);
                let frames = [
                    frame.clone(),
                    tagged(frame),
                    tagged(&ours),
                    with_tag(frame, [0x81, 0x00, 0xa0, 0x00]),
                    with_tag(frame, [0x88, 0xa8, 0x00, 0x00]),
                    // The tag is there, and what follows is cut off.
                    ours[..18].to_vec(),
                    ours[..ours.len() - 1].to_vec(),
                    ours,
                ];
                for frame in frames {
                    let expected = Machine::run(&code, addresses, &frame);
                    let verdict = bpf::run_program(&program, &frame).unwrap();
                    assert_eq!(verdict, expected, "{name}, {vlan:?}");
                }
            }
        }
    }
}
