//! Several receiving sockets of one interface: each frame goes to one of them, by the rule of
//! [`crate::steering`], which the kernel runs as a classic BPF program (`PACKET_FANOUT_CBPF`).
//!
//! The kernel takes what the program returns modulo the number of sockets. The sockets' numbers are
//! the order in which they joined. When the interface goes down all of them leave the group, and when
//! it comes up they join again in the order in which they were made: so queues are made in order.
//!
//! The program's offsets count from the network header: that is where `skb->data` points when
//! `packet_rcv_fanout` runs (a socket's filter runs later, when the Ethernet header has been put back).
//! So no `SKF_NET_OFF` is needed, whose loads reach no further than the linear part of a frame.
//!
//! The group's number is the kernel's choice (`PACKET_FANOUT_FLAG_UNIQUEID`), so it is no other
//! server's. Frames that this host sends are left out (`PACKET_FANOUT_FLAG_IGNORE_OUTGOING`; the
//! sockets' own `PACKET_IGNORE_OUTGOING` has no effect in a group): before Linux 6.2, which does not
//! know that flag, the filter does it.
//!
//! `PACKET_FANOUT_HASH` is refused: it would hash an ICMP error by its own addresses, so that "packet
//! too big" would reach another worker than the connection it is about.
//!
//! Bounds: [`crate::QUEUES_MAX`] sockets; the program has less than 256 instructions.

use std::os::fd::BorrowedFd;

use libc::sock_filter;

use super::bpf::{
    ADD_X, AND, JUMP_BITS, JUMP_EQUAL, LOAD_BYTE, LOAD_BYTE_AT_X, LOAD_CONSTANT, LOAD_HALF,
    LOAD_HALF_AT_X, LOAD_WORD, LOAD_WORD_AT_X, LOAD_X_HEADER_BYTES, LOAD_X_MEMORY, MULTIPLY,
    PROTOCOL, RETURN, RETURN_A, SHIFT_LEFT, SHIFT_RIGHT, STORE, TO_X, XOR_X, plain, step,
};
use crate::steering::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, ICMP_HEADER_BYTES, ICMP_UNREACHABLE, ICMPV6_ERRORS,
    LAST_FACTOR, LAST_SHIFT, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP, ROUND_FACTOR,
    ROUND_SHIFT, TCP_DESTINATION_PORT, V4_DESTINATION, V4_FRAGMENT, V4_FRAGMENT_BITS,
    V4_FRAGMENT_OFFSET_BITS, V4_PROTOCOL, V4_SOURCE, V6_DESTINATION, V6_HEADER_BYTES,
    V6_NEXT_HEADER, V6_SOURCE,
};
use crate::sys;

/// `PACKET_FANOUT_CBPF`, with `PACKET_FANOUT_FLAG_UNIQUEID` and `PACKET_FANOUT_FLAG_IGNORE_OUTGOING`
/// (linux/if_packet.h), as the option takes them: above the group's 16-bit number.
const NEW_GROUP: i32 = (6 | 0x2000 | 0x4000) << 16;

/// Joins the sockets, which are bound to one interface, to a new group whose frames `program` steers.
pub(super) fn join(sockets: &[BorrowedFd<'_>], program: &[sock_filter]) -> Result<(), i32> {
    let Some((first, others)) = sockets.split_first() else {
        return Ok(());
    };
    let option = libc::PACKET_FANOUT;
    sys::set_integer(*first, libc::SOL_PACKET, option, NEW_GROUP)?;
    // The group's number, type and flags, less the one that asked for a number.
    let group = sys::integer(*first, libc::SOL_PACKET, option)?;
    for socket in others {
        sys::set_integer(*socket, libc::SOL_PACKET, option, group)?;
    }
    sys::set_fanout_program(*first, program)
}

/// Where the hash so far is kept.
const HASH: u32 = 0;

/// The steering rule as a program.
pub(super) fn program(seed: u32) -> Vec<sock_filter> {
    [
        vec![
            plain(LOAD_CONSTANT, seed),
            plain(STORE, HASH),
            plain(LOAD_HALF, PROTOCOL),
        ],
        when(ETHERTYPE_IPV4, ipv4()),
        when(ETHERTYPE_IPV6, ipv6()),
        queue_0(),
    ]
    .concat()
}

fn ipv4() -> Vec<sock_filter> {
    [
        vec![plain(LOAD_HALF, V4_FRAGMENT)],
        unless_bits(V4_FRAGMENT_BITS, queue_0()),
        vec![plain(LOAD_BYTE, V4_PROTOCOL)],
        when(PROTOCOL_TCP, ipv4_tcp()),
        when(PROTOCOL_ICMP, ipv4_error()),
        queue_0(),
    ]
    .concat()
}

fn ipv4_tcp() -> Vec<sock_filter> {
    [
        vec![plain(LOAD_WORD, V4_SOURCE)],
        round(),
        vec![plain(LOAD_X_HEADER_BYTES, 0), plain(LOAD_HALF_AT_X, 0)],
        round(),
        finish(),
    ]
    .concat()
}

/// An ICMP message: X is where it begins, until the hash of the address needs X.
fn ipv4_error() -> Vec<sock_filter> {
    let quote = ICMP_HEADER_BYTES;
    [
        vec![plain(LOAD_X_HEADER_BYTES, 0), plain(LOAD_BYTE_AT_X, 0)],
        unless(ICMP_UNREACHABLE, queue_0()),
        vec![plain(LOAD_BYTE_AT_X, quote + V4_PROTOCOL)],
        unless(PROTOCOL_TCP, queue_0()),
        vec![plain(LOAD_HALF_AT_X, quote + V4_FRAGMENT)],
        unless_bits(V4_FRAGMENT_OFFSET_BITS, queue_0()),
        vec![plain(LOAD_WORD_AT_X, quote + V4_DESTINATION)],
        round(),
        vec![
            plain(LOAD_X_HEADER_BYTES, 0),
            plain(LOAD_BYTE_AT_X, quote),
            // The quoted header's length.
            plain(AND, 0x0f),
            plain(SHIFT_LEFT, 2),
            plain(ADD_X, 0),
            plain(TO_X, 0),
            plain(LOAD_HALF_AT_X, quote + TCP_DESTINATION_PORT),
        ],
        round(),
        finish(),
    ]
    .concat()
}

fn ipv6() -> Vec<sock_filter> {
    [
        vec![plain(LOAD_BYTE, V6_NEXT_HEADER)],
        when(PROTOCOL_TCP, ipv6_client(V6_SOURCE, V6_HEADER_BYTES)),
        unless(PROTOCOL_ICMPV6, queue_0()),
        vec![plain(LOAD_BYTE, V6_HEADER_BYTES)],
        when(ICMPV6_ERRORS[0], ipv6_error()),
        when(ICMPV6_ERRORS[1], ipv6_error()),
        queue_0(),
    ]
    .concat()
}

fn ipv6_error() -> Vec<sock_filter> {
    let quote = V6_HEADER_BYTES + ICMP_HEADER_BYTES;
    let tcp = quote + V6_HEADER_BYTES;
    [
        vec![plain(LOAD_BYTE, quote + V6_NEXT_HEADER)],
        unless(PROTOCOL_TCP, queue_0()),
        ipv6_client(quote + V6_DESTINATION, tcp + TCP_DESTINATION_PORT),
    ]
    .concat()
}

/// The hash of an IPv6 address and a port at these offsets.
fn ipv6_client(address: u32, port: u32) -> Vec<sock_filter> {
    let words = (0..4).map(|n| plain(LOAD_WORD, address + 4 * n));
    let loads = words.chain([plain(LOAD_HALF, port)]);
    let rounds = loads.flat_map(|load| [vec![load], round()].concat());
    rounds.chain(finish()).collect()
}

/// Mixes the accumulator into the hash; X is lost.
fn round() -> Vec<sock_filter> {
    vec![
        plain(LOAD_X_MEMORY, HASH),
        plain(XOR_X, 0),
        plain(MULTIPLY, ROUND_FACTOR),
        plain(TO_X, 0),
        plain(SHIFT_RIGHT, ROUND_SHIFT),
        plain(XOR_X, 0),
        plain(STORE, HASH),
    ]
}

/// Mixes the hash, which the accumulator has, once more and returns it.
fn finish() -> Vec<sock_filter> {
    vec![
        plain(MULTIPLY, LAST_FACTOR),
        plain(TO_X, 0),
        plain(SHIFT_RIGHT, LAST_SHIFT),
        plain(XOR_X, 0),
        plain(RETURN_A, 0),
    ]
}

fn queue_0() -> Vec<sock_filter> {
    vec![plain(RETURN, 0)]
}

/// Runs `block`, which always returns, if the accumulator is `value`; goes on behind it if not.
fn when(value: u32, block: Vec<sock_filter>) -> Vec<sock_filter> {
    [vec![step(JUMP_EQUAL, 0, skip(&block), value)], block].concat()
}

/// Runs `block`, which always returns, if the accumulator is not `value`.
fn unless(value: u32, block: Vec<sock_filter>) -> Vec<sock_filter> {
    [vec![step(JUMP_EQUAL, skip(&block), 0, value)], block].concat()
}

/// Runs `block`, which always returns, if the accumulator has one of `bits`.
fn unless_bits(bits: u32, block: Vec<sock_filter>) -> Vec<sock_filter> {
    [vec![step(JUMP_BITS, 0, skip(&block), bits)], block].concat()
}

fn skip(block: &[sock_filter]) -> u8 {
    u8::try_from(block.len()).expect("invariant: blocks of this program are short")
}

#[cfg(test)]
mod tests {
    use super::program;
    use crate::packet::bpf::machine::{View, run};
    use crate::steering::tests::{frames, random_frames};
    use crate::steering::{SEED, queue_of_seeded};

    /// The queue by the program, run as the kernel runs it: behind the Ethernet header.
    fn queue_by_program(frame: &[u8], queues: u32, seed: u32) -> usize {
        let ethertype = u16::from_be_bytes([frame[12], frame[13]]);
        let view = View {
            bytes: &frame[14..],
            ethertype,
            ..View::default()
        };
        usize::try_from(run(&program(seed), view) % queues).unwrap()
    }

    #[test]
    fn the_program_is_the_rule_for_each_kind_of_frame_and_each_length() {
        for (name, frame) in frames() {
            for length in 14..=frame.len() {
                for queues in [1, 2, 3, 8, 64] {
                    let by_program = queue_by_program(&frame[..length], queues, SEED);
                    let by_rule =
                        queue_of_seeded(&frame[..length], usize::try_from(queues).unwrap(), SEED);
                    assert_eq!(
                        by_program, by_rule,
                        "{name}, {length} bytes, {queues} queues"
                    );
                }
            }
        }
    }

    #[test]
    fn the_program_is_the_rule_for_generated_frames() {
        for (seed, frame) in (0..).zip(random_frames(100_000)) {
            let by_program = queue_by_program(&frame, 64, seed);
            let by_rule = queue_of_seeded(&frame, 64, seed);
            assert_eq!(by_program, by_rule, "seed {seed}: {frame:02x?}");
        }
    }

    #[test]
    fn the_program_is_within_its_bound() {
        assert!(program(SEED).len() < 256, "{}", program(SEED).len());
    }
}
