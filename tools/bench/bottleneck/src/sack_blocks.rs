//! What a firewall does that shifts the sequence numbers of a connection but not those of its SACK
//! blocks: the blocks that arrive name bytes that were never sent.
//!
//! It refuses what is no whole IPv4 packet with a TCP segment: such a frame stays as it is. Bounded by:
//! the TCP header.

use crate::flows::{ETHERNET_BYTES, TCP, is_ipv4};

const TCP_HEADER_BYTES: usize = 20;
/// Where a TCP header has its checksum.
const CHECKSUM: std::ops::Range<usize> = 16..18;
/// Kinds of options (RFC 9293 s3.1, RFC 2018 s3).
const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const SACK: u8 = 5;

/// Adds `by` to every edge of the frame's SACK blocks, and mends the checksum.
pub fn shift(frame: &mut [u8], by: u32) {
    let Some(place) = tcp_place(frame) else {
        return;
    };
    let (packet, segment_at) = (&mut frame[ETHERNET_BYTES..place.end], place.start);
    let (header, segment) = packet.split_at_mut(segment_at - ETHERNET_BYTES);
    let options_end = usize::from(segment[12] >> 4) * 4;
    let Some(options) = segment.get_mut(TCP_HEADER_BYTES..options_end) else {
        return;
    };
    if !shift_options(options, by) {
        return;
    }
    segment[CHECKSUM].fill(0);
    let length = u16::try_from(segment.len()).unwrap_or(u16::MAX);
    let pseudo = sum(&header[12..20], u32::from(TCP) + u32::from(length));
    let checksum = !fold(sum(segment, pseudo));
    segment[CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
}

/// Where in a frame its TCP segment is; `None`: it has none, or not a whole one.
fn tcp_place(frame: &[u8]) -> Option<std::ops::Range<usize>> {
    let packet = frame.get(ETHERNET_BYTES..).filter(|_| is_ipv4(frame))?;
    let start = ETHERNET_BYTES + usize::from(packet.first()? & 0x0f) * 4;
    let length = u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]);
    let end = ETHERNET_BYTES + usize::from(length);
    let is_tcp = packet.get(9) == Some(&TCP);
    let is_whole = start + TCP_HEADER_BYTES <= end && end <= frame.len();
    (is_tcp && is_whole && start >= ETHERNET_BYTES + 20).then_some(start..end)
}

/// Whether there was a SACK option.
fn shift_options(mut options: &mut [u8], by: u32) -> bool {
    let mut is_shifted = false;
    while let Some(kind) = options.first().copied().filter(|kind| *kind != END) {
        let length = match (kind, options.get(1)) {
            (NO_OPERATION, _) => 1,
            (_, Some(length)) => usize::from(*length).max(2),
            (_, None) => return is_shifted,
        };
        let Some((option, rest)) = options.split_at_mut_checked(length) else {
            return is_shifted;
        };
        if kind == SACK {
            let (edges, _) = option[2..].as_chunks_mut::<4>();
            for edge in edges {
                *edge = u32::from_be_bytes(*edge).wrapping_add(by).to_be_bytes();
            }
            is_shifted = true;
        }
        options = rest;
    }
    is_shifted
}

/// The ones' complement sum of words (RFC 1071), not folded.
fn sum(bytes: &[u8], initial: u32) -> u32 {
    let (words, rest) = bytes.as_chunks::<2>();
    let words = words
        .iter()
        .map(|word| u32::from(u16::from_be_bytes(*word)));
    let last = rest.first().map_or(0, |byte| u32::from(*byte) << 8);
    initial + words.sum::<u32>() + last
}

fn fold(sum: u32) -> u16 {
    let folded = (sum & 0xffff) + (sum >> 16);
    // At most 0x1fffe: once more is enough.
    let folded = (folded & 0xffff) + (folded >> 16);
    u16::try_from(folded).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ACK with a timestamp and so many SACK blocks; the blocks begin where the second word says.
    fn acknowledgment(blocks: u8) -> (Vec<u8>, usize) {
        let mut options = vec![NO_OPERATION, NO_OPERATION, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8];
        let mut edges_at = 0;
        if blocks > 0 {
            options.extend([NO_OPERATION, NO_OPERATION, SACK, 2 + 8 * blocks]);
            edges_at = ETHERNET_BYTES + 20 + TCP_HEADER_BYTES + options.len();
            options.extend((0..8 * blocks).map(|index| 0xf0 + index % 16));
        }
        let header_words = u8::try_from((TCP_HEADER_BYTES + options.len()) / 4).unwrap();
        let total = 20 + TCP_HEADER_BYTES + options.len();
        let mut frame = vec![0; ETHERNET_BYTES + total];
        frame[12..14].copy_from_slice(&[8, 0]);
        let packet = &mut frame[ETHERNET_BYTES..];
        packet[0] = 0x45;
        packet[3] = u8::try_from(total).unwrap();
        packet[9] = TCP;
        packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        packet[32] = header_words << 4;
        packet[40..].copy_from_slice(&options);
        (frame, edges_at)
    }

    /// What a receiver computes over header, pseudo header and checksum: 0 if right.
    fn verdict(frame: &[u8]) -> u16 {
        let segment = &frame[ETHERNET_BYTES + 20..];
        let length = u32::try_from(segment.len()).unwrap();
        let pseudo = sum(&frame[ETHERNET_BYTES + 12..ETHERNET_BYTES + 20], 6 + length);
        !fold(sum(segment, pseudo))
    }

    #[test]
    fn every_edge_is_shifted_and_nothing_else_but_the_checksum() {
        for blocks in 1..=3 {
            let (before, at) = acknowledgment(blocks);
            let mut after = before.clone();
            shift(&mut after, 1 << 28);
            assert_eq!(verdict(&after), 0, "{blocks}");
            let (old, _) = before[at..].as_chunks::<4>();
            let (new, _) = after[at..].as_chunks::<4>();
            assert_eq!(new.len(), usize::from(blocks) * 2);
            for (old, new) in old.iter().zip(new) {
                let by = u32::from_be_bytes(*new).wrapping_sub(u32::from_be_bytes(*old));
                assert_eq!(by, 1 << 28);
            }
            let checksum_at = ETHERNET_BYTES + 20 + CHECKSUM.start;
            after[checksum_at..checksum_at + 2].fill(0);
            assert_eq!(after[..at], before[..at], "{blocks}");
        }
    }

    #[test]
    fn frames_without_blocks_and_cut_ones_stay_as_they_are() {
        let (plain, _) = acknowledgment(0);
        let (whole, at) = acknowledgment(2);
        for frame in [&plain[..], &whole[..at + 3], &whole[..30], &[]] {
            let mut after = frame.to_vec();
            shift(&mut after, 7);
            assert_eq!(after, frame);
        }
        let (mut overlong, at) = acknowledgment(1);
        overlong[at - 1] = 200;
        let before = overlong.clone();
        shift(&mut overlong, 7);
        assert_eq!(overlong, before);
    }
}
