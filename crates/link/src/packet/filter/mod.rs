//! A classic BPF program that passes only frames meant for our addresses.
//!
//! It runs in the kernel before a frame is copied to the socket, so Atlas spends nothing on the
//! host's own traffic on the same interface. It passes these untagged frames:
//!
//! - to our MAC: ARP about our IPv4 addresses, IPv4 and IPv6 to our addresses;
//! - to a group MAC or ours: ARP about our IPv4 addresses, and neighbour solicitations (RFC 4861 s4.3)
//!   sent to an IPv6 multicast group that are about one of our addresses;
//! - what any station says of itself to all: ARP announcements (RFC 5227 s3) and multicast neighbour
//!   advertisements (RFC 4861 s4.4), since it may be a router that takes over from another;
//! - multicast listener queries (RFC 3810 s5.1).
//!
//! ARP is about an address if that is its target or sender address: a host that claims one of our
//! addresses must be detected (RFC 5227 s2.1.1). In an announcement both are the same.
//!
//! Neighbour messages about a virtual address, which another station answers for, do not pass.
//!
//! It refuses everything else, and frames too short for the fields it loads: a classic BPF load
//! beyond the end refuses the frame. It does not check what the parser checks: lengths, checksums,
//! header versions. Bounds: [`ADDRESSES_MAX`] addresses make at most 1,850 instructions of the
//! kernel's 4,096.
//!
//! Reading first: Documentation/networking/filter.rst of the kernel.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::sock_filter;
use wire::MacAddress;

use super::bpf::{
    AND, JUMP, JUMP_BITS, JUMP_EQUAL, LOAD_BYTE, LOAD_HALF, LOAD_WORD, PACKET_TYPE, RETURN, TO_X,
    VLAN_TAG, XOR_X, plain, step,
};

/// Addresses one packet link answers for at most.
pub const ADDRESSES_MAX: usize = 64;

/// The bits of a tag that name a VLAN; a frame with only a priority is untagged to us.
const VLAN_ID: u32 = 0x0fff;

/// linux/if_packet.h: sent by this host.
const PACKET_OUTGOING: u32 = 4;

const ETHERTYPE_IPV4: u32 = 0x0800;
const ETHERTYPE_ARP: u32 = 0x0806;
const ETHERTYPE_IPV6: u32 = 0x86dd;

const OFFSET_DESTINATION_MAC: u32 = 0;
const OFFSET_ETHERTYPE: u32 = 12;
const OFFSET_ARP_SENDER: u32 = 14 + 14;
const OFFSET_ARP_TARGET: u32 = 14 + 24;
const OFFSET_IPV4_DESTINATION: u32 = 14 + 16;
const OFFSET_IPV6_NEXT_HEADER: u32 = 14 + 6;
const OFFSET_IPV6_DESTINATION: u32 = 14 + 24;
const OFFSET_ICMPV6_TYPE: u32 = 14 + 40;
const OFFSET_ND_TARGET: u32 = 14 + 40 + 8;
const OFFSET_HOP_BY_HOP: u32 = 14 + 40;
const HOP_BY_HOP_BYTES: u32 = 8;

const NEXT_HEADER_ICMPV6: u32 = 58;
const NEXT_HEADER_HOP_BY_HOP: u32 = 0;
const LISTENER_QUERY: u32 = 130;
const NEIGHBOR_SOLICITATION: u32 = 135;
const NEIGHBOR_ADVERTISEMENT: u32 = 136;
/// First byte of every IPv6 multicast address.
const IPV6_MULTICAST: u32 = 0xff;

/// The same as [`program`], without the frames that this host sends: for a socket in a fanout group,
/// where `PACKET_IGNORE_OUTGOING` has no effect.
pub(crate) fn incoming_program(
    mac: MacAddress,
    addresses: &[IpAddr],
    answered: &[IpAddr],
) -> Vec<sock_filter> {
    concat(&[
        vec![
            load(LOAD_BYTE, PACKET_TYPE),
            step(JUMP_EQUAL, 0, 1, PACKET_OUTGOING),
            refuse(),
        ],
        program(mac, addresses, answered),
    ])
}

/// The program that passes nothing.
pub(crate) fn refuse_all() -> Vec<sock_filter> {
    vec![refuse()]
}

/// The program for a station with this MAC and these addresses, and neighbour messages about those that are
/// `answered`.
///
/// # Panics
/// With more than [`ADDRESSES_MAX`] addresses: the caller refuses them first.
pub(crate) fn program(
    mac: MacAddress,
    addresses: &[IpAddr],
    answered: &[IpAddr],
) -> Vec<sock_filter> {
    assert!(
        addresses.len() <= ADDRESSES_MAX,
        "{} addresses in a filter",
        addresses.len()
    );
    let (v4, v6) = by_version(addresses);
    let (answered_v4, answered_v6) = by_version(answered);
    let arp = when_equal(ETHERTYPE_ARP, &accept_arp(&answered_v4));
    let to_us = concat(&[
        vec![load(LOAD_HALF, OFFSET_ETHERTYPE)],
        arp.clone(),
        when_equal(
            ETHERTYPE_IPV4,
            &concat(&[accept_v4(OFFSET_IPV4_DESTINATION, &v4), vec![refuse()]]),
        ),
        when_equal(ETHERTYPE_IPV6, &accept_ipv6(&v6, &answered_v6)),
        vec![refuse()],
    ]);
    let to_a_group = concat(&[
        vec![load(LOAD_HALF, OFFSET_ETHERTYPE)],
        arp,
        when_equal(ETHERTYPE_IPV6, &accept_neighbor(&answered_v6)),
        vec![refuse()],
    ]);
    concat(&[
        vec![load(LOAD_BYTE, VLAN_TAG), step(AND, 0, 0, VLAN_ID)],
        // Zero jumps over the refusal.
        vec![step(JUMP_EQUAL, 1, 0, 0), refuse()],
        when_mac(mac, &to_us),
        // The group bit of the first byte.
        vec![
            load(LOAD_BYTE, OFFSET_DESTINATION_MAC),
            step(JUMP_BITS, 1, 0, 1),
            refuse(),
        ],
        to_a_group,
    ])
}

fn by_version(addresses: &[IpAddr]) -> (Vec<Ipv4Addr>, Vec<Ipv6Addr>) {
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for address in addresses {
        match address {
            IpAddr::V4(address) => v4.push(*address),
            IpAddr::V6(address) => v6.push(*address),
        }
    }
    (v4, v6)
}

/// Accepts ARP about one of `addresses`, and announcements; refuses otherwise.
fn accept_arp(addresses: &[Ipv4Addr]) -> Vec<sock_filter> {
    concat(&[
        accept_v4(OFFSET_ARP_TARGET, addresses),
        accept_v4(OFFSET_ARP_SENDER, addresses),
        // Sender and target are the same if nothing is left of one XOR the other.
        vec![
            plain(TO_X, 0),
            load(LOAD_WORD, OFFSET_ARP_TARGET),
            plain(XOR_X, 0),
            step(JUMP_EQUAL, 0, 1, 0),
            accept(),
            refuse(),
        ],
    ])
}

/// Accepts if one of `addresses` is at `offset`; goes on behind the block otherwise, with what is there.
fn accept_v4(offset: u32, addresses: &[Ipv4Addr]) -> Vec<sock_filter> {
    let mut block = vec![load(LOAD_WORD, offset)];
    for address in addresses {
        block.extend([step(JUMP_EQUAL, 0, 1, address.to_bits()), accept()]);
    }
    block
}

/// Accepts IPv6 to one of `addresses` and neighbour messages about those `answered`, refuses otherwise.
fn accept_ipv6(addresses: &[Ipv6Addr], answered: &[Ipv6Addr]) -> Vec<sock_filter> {
    let mut block = Vec::new();
    for address in addresses {
        block.extend(accept_v6(OFFSET_IPV6_DESTINATION, *address));
    }
    // RFC 6085 s3: a multicast packet may be sent to a unicast MAC.
    block.extend(accept_neighbor(answered));
    block
}

/// Accepts multicast neighbour solicitations of one of `addresses`, multicast neighbour advertisements,
/// and multicast listener queries; refuses otherwise.
///
/// Fixed offsets are right: RFC 6980 s5 forbids fragments, and senders put no extension header before
/// neighbour messages, and before queries one of eight bytes with the router alert (RFC 3810 s5).
fn accept_neighbor(addresses: &[Ipv6Addr]) -> Vec<sock_filter> {
    let mut block = vec![
        load(LOAD_BYTE, OFFSET_IPV6_DESTINATION),
        step(JUMP_EQUAL, 1, 0, IPV6_MULTICAST),
        refuse(),
        load(LOAD_BYTE, OFFSET_IPV6_NEXT_HEADER),
        step(JUMP_EQUAL, 9, 0, NEXT_HEADER_ICMPV6),
        step(JUMP_EQUAL, 1, 0, NEXT_HEADER_HOP_BY_HOP),
        refuse(),
        // Its next header, and its length beyond eight bytes.
        load(LOAD_HALF, OFFSET_HOP_BY_HOP),
        step(JUMP_EQUAL, 1, 0, NEXT_HEADER_ICMPV6 << 8),
        refuse(),
        load(LOAD_BYTE, OFFSET_HOP_BY_HOP + HOP_BY_HOP_BYTES),
        step(JUMP_EQUAL, 0, 1, LISTENER_QUERY),
        accept(),
        refuse(),
        load(LOAD_BYTE, OFFSET_ICMPV6_TYPE),
        step(JUMP_EQUAL, 3, 0, NEIGHBOR_SOLICITATION),
        step(JUMP_EQUAL, 0, 1, NEIGHBOR_ADVERTISEMENT),
        accept(),
        refuse(),
    ];
    for address in addresses {
        block.extend(accept_v6(OFFSET_ND_TARGET, *address));
    }
    block.push(refuse());
    block
}

/// Accepts if `address` is at `offset`, goes on behind the block otherwise.
fn accept_v6(offset: u32, address: Ipv6Addr) -> [sock_filter; 9] {
    let word = |shift: u32| u32::try_from(address.to_bits() >> shift & 0xffff_ffff);
    let word = |shift| word(shift).expect("invariant: masked to 32 bits");
    [
        load(LOAD_WORD, offset),
        step(JUMP_EQUAL, 0, 7, word(96)),
        load(LOAD_WORD, offset + 4),
        step(JUMP_EQUAL, 0, 5, word(64)),
        load(LOAD_WORD, offset + 8),
        step(JUMP_EQUAL, 0, 3, word(32)),
        load(LOAD_WORD, offset + 12),
        step(JUMP_EQUAL, 0, 1, word(0)),
        accept(),
    ]
}

/// Runs `block`, which always returns, if the accumulator is `value`; goes on behind it if not.
///
/// Conditional jumps reach 255 instructions only, so an unconditional one skips the block.
fn when_equal(value: u32, block: &[sock_filter]) -> Vec<sock_filter> {
    concat(&[
        vec![step(JUMP_EQUAL, 1, 0, value), jump_over(block)],
        block.to_vec(),
    ])
}

/// Runs `block`, which always returns, if the frame is to `mac`; goes on behind it if not.
fn when_mac(mac: MacAddress, block: &[sock_filter]) -> Vec<sock_filter> {
    let [a, b, c, d, e, f] = mac.0;
    let head = vec![
        load(LOAD_WORD, OFFSET_DESTINATION_MAC),
        step(JUMP_EQUAL, 0, 2, u32::from_be_bytes([a, b, c, d])),
        load(LOAD_HALF, OFFSET_DESTINATION_MAC + 4),
        step(JUMP_EQUAL, 1, 0, u32::from(u16::from_be_bytes([e, f]))),
        jump_over(block),
    ];
    concat(&[head, block.to_vec()])
}

fn jump_over(block: &[sock_filter]) -> sock_filter {
    step(
        JUMP,
        0,
        0,
        u32::try_from(block.len()).expect("invariant: programs are short"),
    )
}

fn load(code: u16, offset: u32) -> sock_filter {
    plain(code, offset)
}

fn accept() -> sock_filter {
    step(RETURN, 0, 0, u32::MAX)
}

fn refuse() -> sock_filter {
    step(RETURN, 0, 0, 0)
}

fn concat(blocks: &[Vec<sock_filter>]) -> Vec<sock_filter> {
    blocks.concat()
}

#[cfg(test)]
mod tests;
