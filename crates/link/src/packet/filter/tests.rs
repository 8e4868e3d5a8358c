//! The filter, run by a small BPF interpreter on hand-made frames; the kernel runs it in
//! `tests/packet.rs`.

use std::net::IpAddr;

use libc::sock_filter;
use wire::MacAddress;

use super::{ADDRESSES_MAX, PACKET_OUTGOING, incoming_program, refuse_all};
use crate::packet::bpf::machine::{View, run};

/// Most instructions the kernel takes: `BPF_MAXINSNS`.
const INSTRUCTIONS_MAX: usize = 4_096;

const OURS: MacAddress = MacAddress([0x02, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5]);
const BROADCAST: [u8; 6] = [0xff; 6];
const V4: &str = "10.1.2.3";
const V6: &str = "fd00::a1:b2c3";

/// The program for addresses that we answer for.
fn program(mac: MacAddress, addresses: &[IpAddr]) -> Vec<sock_filter> {
    super::program(mac, addresses, addresses)
}

/// Whether a program passes a frame.
fn passes(program: &[sock_filter], frame: &[u8], vlan_tag: u16) -> bool {
    let view = View {
        bytes: frame,
        vlan_tag,
        ..View::default()
    };
    run(program, view) != 0
}

fn ours(frame: &[u8]) -> bool {
    passes(&program(OURS, &[ip(V4), ip(V6)]), frame, 0)
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

fn ethernet(destination: [u8; 6], ethertype: u16) -> Vec<u8> {
    let mut frame = destination.to_vec();
    frame.extend_from_slice(&[0x02, 9, 9, 9, 9, 9]);
    frame.extend_from_slice(&ethertype.to_be_bytes());
    frame
}

fn arp(destination: [u8; 6], target: &str) -> Vec<u8> {
    let mut frame = ethernet(destination, 0x0806);
    frame.extend_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend_from_slice(&[0; 16]);
    frame.extend_from_slice(&octets(target));
    frame
}

/// An answer to a probe: it is sent to one station, and to no address.
fn arp_reply(destination: [u8; 6], sender: &str) -> Vec<u8> {
    let mut frame = arp(destination, "0.0.0.0");
    frame[28..32].copy_from_slice(&octets(sender));
    frame
}

fn ipv4(destination_mac: [u8; 6], destination: &str) -> Vec<u8> {
    let mut frame = ethernet(destination_mac, 0x0800);
    frame.extend_from_slice(&[0x45, 0, 0, 20, 0, 0, 0, 0, 64, 6, 0, 0, 9, 9, 9, 9]);
    frame.extend_from_slice(&octets(destination));
    frame
}

fn ipv6(destination_mac: [u8; 6], destination: &str, next_header: u8) -> Vec<u8> {
    let mut frame = ethernet(destination_mac, 0x86dd);
    frame.extend_from_slice(&[0x60, 0, 0, 0, 0, 24, next_header, 255]);
    frame.extend_from_slice(&octets("fd00::9"));
    frame.extend_from_slice(&octets(destination));
    frame
}

fn solicitation(destination_mac: [u8; 6], kind: u8, target: &str) -> Vec<u8> {
    let mut frame = ipv6(destination_mac, "ff02::1:ffa1:b2c3", 58);
    frame.extend_from_slice(&[kind, 0, 0, 0, 0, 0, 0, 0]);
    frame.extend_from_slice(&octets(target));
    frame
}

/// The group MAC of the solicited-node group of [`V6`].
const SOLICITED: [u8; 6] = [0x33, 0x33, 0xff, 0xa1, 0xb2, 0xc3];
/// The group MAC of all IPv6 nodes.
const ALL_NODES: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

#[test]
fn frames_for_our_addresses_pass() {
    assert!(ours(&arp(BROADCAST, V4)), "a broadcast ARP request");
    assert!(ours(&arp(OURS.0, V4)), "a unicast ARP request");
    assert!(
        ours(&arp_reply(OURS.0, V4)),
        "who has our address answers our probe"
    );
    assert!(
        ours(&arp_reply(BROADCAST, V4)),
        "who has our address asks for another"
    );
    assert!(ours(&ipv4(OURS.0, V4)));
    assert!(ours(&ipv6(OURS.0, V6, 6)));
    assert!(ours(&ipv6(OURS.0, V6, 44)), "a fragment");
    assert!(ours(&solicitation(SOLICITED, 135, V6)));
    assert!(
        ours(&solicitation(OURS.0, 135, V6)),
        "multicast sent to a unicast MAC"
    );
    assert!(
        ours(&solicitation(ALL_NODES, 136, V6)),
        "who has our address says so to all"
    );
}

/// A station announces an address to all (RFC 5227 s3).
fn announcement(destination_mac: [u8; 6], address: &str) -> Vec<u8> {
    let mut frame = arp(destination_mac, address);
    let (sender, target) = (14 + 14, 14 + 24);
    frame.copy_within(target..target + 4, sender);
    frame
}

/// A multicast listener query (RFC 3810 s5.1), or another message behind a hop-by-hop header of `units`
/// times eight bytes more than eight.
fn hop_by_hop(kind: u8, units: u8) -> Vec<u8> {
    let mut frame = ipv6(ALL_NODES, "ff02::1", 0);
    frame.extend_from_slice(&[58, units, 5, 2, 0, 0, 1, 0]);
    frame.resize(frame.len() + 8 * usize::from(units), 0);
    frame.extend_from_slice(&[kind, 0, 0, 0]);
    frame.resize(frame.len() + 24, 0);
    frame
}

#[test]
fn what_stations_announce_to_all_passes() {
    for mac in [BROADCAST, OURS.0] {
        assert!(ours(&announcement(mac, "10.1.2.9")), "another's address");
    }
    assert!(!ours(&announcement([0x02, 0xa1, 0, 0, 0, 1], "10.1.2.9")));
    assert!(
        ours(&solicitation(ALL_NODES, 136, "fd01::a1:b2c3")),
        "an advertisement of another address"
    );
    assert!(ours(&hop_by_hop(130, 0)), "a multicast listener query");
    assert!(!ours(&hop_by_hop(131, 0)), "a report");
    assert!(!ours(&hop_by_hop(130, 1)), "a longer header");
    let mut tcp = hop_by_hop(130, 0);
    tcp[14 + 40] = 6;
    assert!(!ours(&tcp));
}

#[test]
fn nothing_passes_the_program_of_a_queue_that_is_not_steered_yet() {
    for frame in [arp(BROADCAST, V4), ipv4(OURS.0, V4), ipv6(OURS.0, V6, 6)] {
        assert!(!passes(&refuse_all(), &frame, 0));
    }
}

#[test]
fn frames_that_this_host_sends_do_not_pass_in_a_fanout_group() {
    let addresses = [ip(V4), ip(V6)];
    let program = incoming_program(OURS, &addresses, &addresses);
    let passes = |frame: &[u8], packet_type: u32| {
        let view = View {
            bytes: frame,
            packet_type: u8::try_from(packet_type).unwrap(),
            ..View::default()
        };
        run(&program, view) != 0
    };
    for packet_type in 0..4 {
        assert!(passes(&ipv4(OURS.0, V4), packet_type));
        assert!(!passes(&ipv4(OURS.0, "10.1.2.4"), packet_type));
    }
    assert!(!passes(&ipv4(OURS.0, V4), PACKET_OUTGOING));
}

#[test]
fn frames_for_other_addresses_do_not_pass() {
    let other_mac = [0x02, 0xa1, 0xa2, 0xa3, 0xa4, 0xa6];
    assert!(!ours(&arp(BROADCAST, "10.1.2.4")), "ARP for a neighbour");
    assert!(!ours(&arp(other_mac, V4)), "another station's ARP");
    assert!(
        !ours(&ipv4(OURS.0, "10.1.2.4")),
        "another address to our MAC"
    );
    assert!(!ours(&ipv4(other_mac, V4)), "our address to another MAC");
    assert!(
        !ours(&ipv4(BROADCAST, V4)),
        "a unicast packet in a broadcast frame"
    );
    assert!(!ours(&ipv6(OURS.0, "fd00::a1:b2c4", 6)));
    assert!(
        !ours(&ipv6(OURS.0, "fd00::1:a1:b2c3", 6)),
        "the first words differ"
    );
    assert!(
        !ours(&ipv6(SOLICITED, V6, 6)),
        "a unicast packet in a group frame"
    );
    assert!(
        !ours(&solicitation(SOLICITED, 135, "fd01::a1:b2c3")),
        "same group, other target"
    );
    for kind in [134, 137] {
        let message = solicitation(ALL_NODES, kind, V6);
        assert!(!ours(&message), "a router's advertisement, a redirect");
    }
    assert!(!ours(&arp_reply(BROADCAST, "10.1.2.4")), "another sender");
    assert!(!ours(&arp_reply(other_mac, V4)), "to another station");
    assert!(!ours(&ethernet(OURS.0, 0x88cc)), "LLDP");
}

#[test]
fn a_frame_cut_short_does_not_pass() {
    for whole in [
        arp(BROADCAST, V4),
        ipv4(OURS.0, V4),
        solicitation(SOLICITED, 135, V6),
    ] {
        assert!(ours(&whole));
        for length in 0..whole.len() {
            assert!(!ours(&whole[..length]), "{length} of {} bytes", whole.len());
        }
    }
}

#[test]
fn a_vlan_tagged_frame_does_not_pass_but_a_priority_tagged_one_does() {
    let program = program(OURS, &[ip(V4)]);
    let frame = ipv4(OURS.0, V4);
    assert!(passes(&program, &frame, 0xe000), "priority 7, no VLAN");
    assert!(!passes(&program, &frame, 0x0001));
    assert!(!passes(&program, &frame, 0xe064));
}

#[test]
fn each_of_64_addresses_passes_and_the_program_fits_the_kernel() {
    let v4 = |n: usize| IpAddr::from([10, 9, 0, u8::try_from(n).unwrap()]);
    let v6 = |n: usize| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::try_from(n).unwrap()]);
    let addresses: Vec<IpAddr> = (0..ADDRESSES_MAX).map(v6).collect();
    let six = program(OURS, &addresses);
    assert!(
        six.len() <= 1_850 && six.len() < INSTRUCTIONS_MAX,
        "{}",
        six.len()
    );
    for address in &addresses {
        assert!(passes(&six, &ipv6(OURS.0, &address.to_string(), 6), 0));
        assert!(passes(
            &six,
            &solicitation(SOLICITED, 135, &address.to_string()),
            0
        ));
    }
    assert!(!passes(
        &six,
        &ipv6(OURS.0, &v6(ADDRESSES_MAX).to_string(), 6),
        0
    ));

    let addresses: Vec<IpAddr> = (0..ADDRESSES_MAX).map(v4).collect();
    let four = program(OURS, &addresses);
    assert!(four.len() <= 1_850, "{}", four.len());
    for address in &addresses {
        assert!(passes(&four, &arp(BROADCAST, &address.to_string()), 0));
        let reply = arp_reply(OURS.0, &address.to_string());
        assert!(passes(&four, &reply, 0));
        assert!(passes(&four, &ipv4(OURS.0, &address.to_string()), 0));
    }
    assert!(!passes(
        &four,
        &ipv4(OURS.0, &v4(ADDRESSES_MAX).to_string()),
        0
    ));
}

#[test]
#[should_panic(expected = "65 addresses in a filter")]
fn one_address_more_is_a_programming_error() {
    let _ = program(OURS, &[ip(V4); ADDRESSES_MAX + 1]);
}

/// RFC 826 and RFC 4861 would have us answer, and the answer would take the address from the load balancer.
#[test]
fn packets_to_a_virtual_address_pass_and_neighbour_messages_about_it_do_not() {
    let addresses = [ip(V4), ip(V6), ip("10.1.2.4")];
    let program = super::program(OURS, &addresses, &addresses[2..]);
    let passes = |frame: &[u8]| passes(&program, frame, 0);
    for mac in [OURS.0, BROADCAST] {
        assert!(!passes(&arp(mac, V4)) && !passes(&arp_reply(mac, V4)));
        assert!(passes(&arp(mac, "10.1.2.4")) && passes(&arp_reply(mac, "10.1.2.4")));
    }
    for mac in [OURS.0, SOLICITED] {
        assert!(!passes(&solicitation(mac, 135, V6)));
    }
    assert!(passes(&ipv4(OURS.0, V4)) && passes(&ipv4(OURS.0, "10.1.2.4")));
    assert!(passes(&ipv6(OURS.0, V6, 6)));
}
