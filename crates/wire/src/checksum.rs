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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    /// RFC 1071 s4.1, word by word.
    fn naive(bytes: &[u8], initial: u16) -> u16 {
        let mut sum = u32::from(initial);
        for pair in bytes.chunks(2) {
            let low = pair.get(1).copied().unwrap_or(0);
            sum += u32::from(u16::from_be_bytes([pair[0], low]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        u16::try_from(sum).unwrap()
    }

    proptest! {
        #[test]
        fn agrees_with_the_naive_twin(
            bytes in proptest::collection::vec(any::<u8>(), 0..300), initial: u16,
            skip in 0usize..9,
        ) {
            // Any alignment, any length.
            let bytes = bytes.get(skip..).unwrap_or_default();
            prop_assert_eq!(sum(bytes, initial), naive(bytes, initial));
        }

        #[test]
        fn parts_add_up_however_they_are_split(
            bytes in proptest::collection::vec(any::<u8>(), 0..300), initial: u16,
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..5),
        ) {
            let mut cuts: Vec<usize> = cuts.iter().map(|at| at.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let parts: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            prop_assert_eq!(!complete(initial, &parts), naive(&bytes, initial));
        }

        #[test]
        fn a_completed_checksum_is_valid_and_a_wrong_byte_is_not(
            bytes in proptest::collection::vec(any::<u8>(), 2..100), pseudo: u16,
            at: prop::sample::Index, flip in 1u8..,
        ) {
            let mut bytes = bytes;
            bytes[..2].fill(0);
            let value = complete(pseudo, &[&bytes]);
            bytes[..2].copy_from_slice(&value.to_be_bytes());
            // A sum of zero is all zero bytes with a zero pseudo-header: no packet is.
            prop_assume!(pseudo != 0);
            prop_assert!(is_valid(pseudo, &bytes));
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            prop_assert!(!is_valid(pseudo, &bytes));
        }
    }

    /// The worked example of RFC 1071 s3.
    #[test]
    fn the_example_of_the_rfc() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(sum(&bytes, 0), 0xddf2);
        assert_eq!(complete(0, &[&bytes]), !0xddf2);
    }

    #[test]
    fn the_longest_packet_of_ones_does_not_overflow() {
        let bytes = vec![0xff; 65_535];
        assert_eq!(sum(&bytes, 0xffff), naive(&bytes, 0xffff));
    }

    #[test]
    fn carries_go_around_the_end() {
        assert_eq!(add(0xffff, 0), 0xffff);
        assert_eq!(add(0xffff, 1), 1);
        assert_eq!(add(0xffff, 0xffff), 0xffff);
        assert_eq!(fold(0xffff), 0xffff);
        assert_eq!(fold(0x1_0000), 1);
        assert_eq!(fold(u64::MAX), 0xffff);
    }

    #[test]
    fn pseudo_headers_are_those_of_the_rfcs() {
        let (a, b) = (
            Ipv4Addr::new(192, 0, 2, 1),
            Ipv4Addr::new(198, 51, 100, 255),
        );
        let v4 = [192, 0, 2, 1, 198, 51, 100, 255, 0, 6, 0x12, 0x34];
        assert_eq!(pseudo_header_v4(a, b, 6, 0x1234), naive(&v4, 0));
        assert_eq!(pseudo_header(a.into(), b.into(), 6, 0x1234), naive(&v4, 0));

        let (a, b) = (
            a.to_ipv6_mapped(),
            Ipv6Addr::new(1, 2, 3, 4, 5, 6, 7, 0xffff),
        );
        let mut v6 = Vec::from(a.octets());
        v6.extend(b.octets());
        v6.extend([0x00, 0x01, 0x23, 0x45, 0, 0, 0, 58]);
        assert_eq!(pseudo_header_v6(a, b, 58, 0x1_2345), naive(&v6, 0));
        assert_eq!(
            pseudo_header(a.into(), b.into(), 58, 0x1_2345),
            naive(&v6, 0)
        );
    }

    #[test]
    #[should_panic(expected = "different families")]
    fn families_do_not_mix() {
        let _ = pseudo_header(Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into(), 6, 0);
    }
}
