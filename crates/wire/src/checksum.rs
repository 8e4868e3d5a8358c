//! The internet checksum (RFC 1071): a one's complement sum of 16-bit words.
//!
//! A *sum* here is always folded to 16 bits and not yet complemented; `0` and `0xffff` are the same
//! number. Sums of pieces add up in any order, and a piece that starts at an odd offset counts with
//! its bytes swapped, which [`Accumulator`] looks after.
//!
//! Bounded by the slice it is given; wide lanes cannot overflow below 16 GiB.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The one's complement sum of `bytes` as big-endian words (an odd last byte is padded with zero),
/// added to `initial`.
#[must_use]
pub fn sum(bytes: &[u8], initial: u16) -> u16 {
    // The sum does not care about byte order, only its result does (RFC 1071 s2(B)): add 32-bit
    // words as the machine loads them into 64-bit lanes, which the compiler turns into vector
    // code, and swap once at the end.
    let (words, tail) = bytes.as_chunks::<4>();
    let mut wide: u64 = words
        .iter()
        .map(|word| u64::from(u32::from_ne_bytes(*word)))
        .sum();
    let mut last = [0; 4];
    for (place, byte) in last.iter_mut().zip(tail) {
        *place = *byte;
    }
    wide += u64::from(u32::from_ne_bytes(last));
    add(u16::from_be(fold(wide)), initial)
}

/// One's complement addition of two sums.
#[must_use]
pub const fn add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    // The end-around carry cannot carry again: a + b - 2^16 is at most 0xfffe.
    sum + carry as u16
}

/// Folds a wide sum of words to 16 bits.
#[must_use]
pub const fn fold(wide: u64) -> u16 {
    let mut wide = wide;
    while wide > 0xffff {
        wide = (wide & 0xffff) + (wide >> 16);
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the loop ends at or below 0xffff"
    )]
    let folded = wide as u16;
    folded
}

/// Sum over the pseudo-header of IPv4 (RFC 9293 s3.1): addresses, protocol, transport length.
#[must_use]
pub fn pseudo_header_v4(
    source: Ipv4Addr,
    destination: Ipv4Addr,
    protocol: u8,
    length_bytes: u32,
) -> u16 {
    let addresses = sum(&destination.octets(), sum(&source.octets(), 0));
    add(addresses, protocol_and_length(protocol, length_bytes))
}

/// Sum over the pseudo-header of IPv6 (RFC 8200 s8.1): addresses, transport length, next header.
#[must_use]
pub fn pseudo_header_v6(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    protocol: u8,
    length_bytes: u32,
) -> u16 {
    let addresses = sum(&destination.octets(), sum(&source.octets(), 0));
    add(addresses, protocol_and_length(protocol, length_bytes))
}

/// Sum over the pseudo-header of whichever IP version the addresses belong to.
///
/// # Panics
/// If the addresses are of different families.
#[must_use]
pub fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, length_bytes: u32) -> u16 {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            pseudo_header_v4(source, destination, protocol, length_bytes)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            pseudo_header_v6(source, destination, protocol, length_bytes)
        }
        _ => panic!("source {source} and destination {destination} are of different families"),
    }
}

fn protocol_and_length(protocol: u8, length_bytes: u32) -> u16 {
    fold(u64::from(protocol) + u64::from(length_bytes))
}

/// The value for a checksum field: the complement of the sum of `parts`, laid end to end, on top of
/// `pseudo_header`. The field itself must be zero in `parts`.
#[must_use]
pub fn complete(pseudo_header: u16, parts: &[&[u8]]) -> u16 {
    let mut accumulator = Accumulator::new(pseudo_header);
    for part in parts {
        accumulator.add(part);
    }
    !accumulator.sum()
}

/// Whether `bytes`, checksum field included, are sound: their sum with `pseudo_header` is all ones.
#[must_use]
pub fn is_valid(pseudo_header: u16, bytes: &[u8]) -> bool {
    sum(bytes, pseudo_header) == 0xffff
}

/// Sums parts that lie end to end on the wire but not in memory, whatever their lengths.
#[derive(Clone, Copy, Debug)]
pub struct Accumulator {
    sum: u16,
    /// Whether an odd number of bytes has been added: the next byte is a low one.
    is_odd: bool,
}

impl Accumulator {
    /// Starts from a sum already made, of an even number of bytes.
    #[must_use]
    pub const fn new(initial: u16) -> Self {
        Self {
            sum: initial,
            is_odd: false,
        }
    }

    /// Adds the bytes that follow those added before.
    pub fn add(&mut self, bytes: &[u8]) {
        let part = sum(bytes, 0);
        let part = if self.is_odd { part.swap_bytes() } else { part };
        self.sum = add(self.sum, part);
        self.is_odd ^= bytes.len() % 2 == 1;
    }

    /// The sum so far.
    #[must_use]
    pub const fn sum(&self) -> u16 {
        self.sum
    }
}
