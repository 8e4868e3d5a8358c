//! Which queue of an interface a frame belongs to: the rule by which the frames of one client all
//! reach one worker.
//!
//! The kernel runs the same rule as a BPF program (`packet::fanout`), and tests hold the two against
//! each other. It is also for those who steer without that program, as the simulator does.
//!
//! | frame | queue |
//! |---|---|
//! | TCP over IPv4 (options allowed) or IPv6 | by the source address and port, which are the client's |
//! | "destination unreachable" and "packet too big" (ICMP, ICMPv6) about a TCP segment | by the destination address and port of the quoted segment, which are the client's, too |
//! | everything else: ARP, neighbour discovery, echo, fragments, IPv6 with extension headers, frames cut short | 0 |
//!
//! Only the first fragment of a packet has the port, so all of them go to queue 0: they must meet to
//! become a packet again.
//!
//! Our own address and port take no part: a quoted segment shows them as well, but they hardly differ
//! from client to client. The rule knows no connections: who moves a client to another queue, or
//! changes the number of queues, moves its connections. It checks nothing that the parser checks.
//!
//! The hash has 32-bit operations only, for classic BPF has no others. It is no secret: who chooses
//! his port can choose the queue, as with a NIC's hash under its usual key. Bounds: none; it reads a
//! few bytes of the frame's headers.

use crate::ETHERNET_BYTES;

/// Most queues of one interface that a link opens.
///
/// The kernel takes 256 sockets in a fanout group and 256 queues of a tap. One worker fills tens of
/// Gb/s, so 64 are more than any NIC needs. `[guess]`
pub const QUEUES_MAX: usize = 64;

pub(crate) const ETHERTYPE_IPV4: u32 = 0x0800;
pub(crate) const ETHERTYPE_IPV6: u32 = 0x86dd;
pub(crate) const PROTOCOL_ICMP: u32 = 1;
pub(crate) const PROTOCOL_TCP: u32 = 6;
pub(crate) const PROTOCOL_ICMPV6: u32 = 58;
/// ICMP "destination unreachable", fragmentation needed among it: the only error TCP acts on.
pub(crate) const ICMP_UNREACHABLE: u32 = 3;
/// ICMPv6 "destination unreachable" and "packet too big".
pub(crate) const ICMPV6_ERRORS: [u32; 2] = [1, 2];

// From the start of an IPv4 header.
pub(crate) const V4_FRAGMENT: u32 = 6;
/// The bits of that field that a fragment has: its offset, and that others follow.
pub(crate) const V4_FRAGMENT_BITS: u32 = 0x3fff;
/// The bits of that field that are the fragment's offset; without them it is the first.
pub(crate) const V4_FRAGMENT_OFFSET_BITS: u32 = 0x1fff;
pub(crate) const V4_PROTOCOL: u32 = 9;
pub(crate) const V4_SOURCE: u32 = 12;
pub(crate) const V4_DESTINATION: u32 = 16;
// From the start of an IPv6 header.
pub(crate) const V6_NEXT_HEADER: u32 = 6;
pub(crate) const V6_SOURCE: u32 = 8;
pub(crate) const V6_DESTINATION: u32 = 24;
pub(crate) const V6_HEADER_BYTES: u32 = 40;
/// From the start of a TCP header; the source port is its first field.
pub(crate) const TCP_DESTINATION_PORT: u32 = 2;
/// Bytes of an ICMP or ICMPv6 error before the packet it quotes.
pub(crate) const ICMP_HEADER_BYTES: u32 = 8;

/// The seed of the links' rule.
pub(crate) const SEED: u32 = 0x243f_6a88;
// The multipliers and shifts of MurmurHash3's finalizer, which are in the public domain: odd numbers
// with which each bit of the input changes about half of the output's.
pub(crate) const ROUND_FACTOR: u32 = 0x85eb_ca6b;
pub(crate) const ROUND_SHIFT: u32 = 13;
pub(crate) const LAST_FACTOR: u32 = 0xc2b2_ae35;
pub(crate) const LAST_SHIFT: u32 = 16;

/// The queue of `frame`, which begins with its Ethernet header, of `queues` queues: below `queues`.
///
/// # Panics
/// If `queues` is 0 or larger than 2^32 - 1.
#[must_use]
pub fn queue_of(frame: &[u8], queues: usize) -> usize {
    queue_of_seeded(frame, queues, SEED)
}

/// [`queue_of`] with a seed of the caller's: another seed is another rule.
///
/// # Panics
/// If `queues` is 0 or larger than 2^32 - 1.
#[must_use]
pub fn queue_of_seeded(frame: &[u8], queues: usize, seed: u32) -> usize {
    let count = u32::try_from(queues).ok().filter(|&count| count > 0);
    let count = count.unwrap_or_else(|| panic!("a frame for one of {queues} queues"));
    // Frames without a hash have the number 0, as a BPF program that loads beyond the end returns 0.
    let queue = flow_hash(frame, seed).unwrap_or(0) % count;
    usize::try_from(queue).expect("invariant: usize has 32 bits")
}

/// The hash of the client's address and port; `None` if the frame is not of a client's connection.
fn flow_hash(frame: &[u8], seed: u32) -> Option<u32> {
    let packet = Bytes(frame.get(ETHERNET_BYTES..)?);
    match Bytes(frame).half(12)? {
        ETHERTYPE_IPV4 => ipv4_hash(packet, seed),
        ETHERTYPE_IPV6 => ipv6_hash(packet, seed),
        _ => None,
    }
}

fn ipv4_hash(packet: Bytes<'_>, seed: u32) -> Option<u32> {
    let has_none = |bits: u32, at: u32| Some(packet.half(at + V4_FRAGMENT)? & bits == 0);
    if !has_none(V4_FRAGMENT_BITS, 0)? {
        return None;
    }
    let header_bytes = packet.v4_header_bytes(0)?;
    match packet.byte(V4_PROTOCOL)? {
        PROTOCOL_TCP => {
            let address = packet.word(V4_SOURCE)?;
            Some(hash(seed, &[address, packet.half(header_bytes)?]))
        }
        PROTOCOL_ICMP if packet.byte(header_bytes)? == ICMP_UNREACHABLE => {
            let quote = header_bytes + ICMP_HEADER_BYTES;
            let is_tcp = packet.byte(quote + V4_PROTOCOL)? == PROTOCOL_TCP;
            if !is_tcp || !has_none(V4_FRAGMENT_OFFSET_BITS, quote)? {
                return None;
            }
            let address = packet.word(quote + V4_DESTINATION)?;
            let tcp = quote + packet.v4_header_bytes(quote)?;
            let port = packet.half(tcp + TCP_DESTINATION_PORT)?;
            Some(hash(seed, &[address, port]))
        }
        _ => None,
    }
}

fn ipv6_hash(packet: Bytes<'_>, seed: u32) -> Option<u32> {
    let (address, port) = match packet.byte(V6_NEXT_HEADER)? {
        PROTOCOL_TCP => (V6_SOURCE, V6_HEADER_BYTES),
        PROTOCOL_ICMPV6 => {
            if !ICMPV6_ERRORS.contains(&packet.byte(V6_HEADER_BYTES)?) {
                return None;
            }
            let quote = V6_HEADER_BYTES + ICMP_HEADER_BYTES;
            if packet.byte(quote + V6_NEXT_HEADER)? != PROTOCOL_TCP {
                return None;
            }
            let tcp = quote + V6_HEADER_BYTES;
            (quote + V6_DESTINATION, tcp + TCP_DESTINATION_PORT)
        }
        _ => return None,
    };
    let word = |n: u32| packet.word(address + 4 * n);
    let words = [word(0)?, word(1)?, word(2)?, word(3)?, packet.half(port)?];
    Some(hash(seed, &words))
}

/// Mixes the words one after the other, then once more: the remainder of a division by a small number
/// of queues depends on the low bits, and those on all bits of all words.
fn hash(seed: u32, words: &[u32]) -> u32 {
    let round = |hash: u32, word: &u32| {
        let product = (hash ^ word).wrapping_mul(ROUND_FACTOR);
        product ^ (product >> ROUND_SHIFT)
    };
    let mixed = words.iter().fold(seed, round);
    let product = mixed.wrapping_mul(LAST_FACTOR);
    product ^ (product >> LAST_SHIFT)
}

/// Loads as classic BPF has them: big-endian, and none beyond the end.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn load<const N: usize>(self, at: u32) -> Option<[u8; N]> {
        self.0
            .get(usize::try_from(at).ok()?..)?
            .first_chunk()
            .copied()
    }

    fn byte(self, at: u32) -> Option<u32> {
        self.load::<1>(at).map(|[byte]| u32::from(byte))
    }

    fn half(self, at: u32) -> Option<u32> {
        self.load(at)
            .map(|bytes| u32::from(u16::from_be_bytes(bytes)))
    }

    fn word(self, at: u32) -> Option<u32> {
        self.load(at).map(u32::from_be_bytes)
    }

    /// Bytes of the IPv4 header at `at`, as it says.
    fn v4_header_bytes(self, at: u32) -> Option<u32> {
        Some(4 * (self.byte(at)? & 0x0f))
    }
}

#[cfg(test)]
pub(crate) mod tests;
