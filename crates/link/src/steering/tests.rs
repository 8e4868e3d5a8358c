//! The rule on hand-made and generated frames; `packet::fanout` runs the BPF program on the same ones.

use super::{QUEUES_MAX, queue_of, queue_of_seeded};

const CLIENT_V4: [u8; 4] = [192, 0, 2, 77];
const OURS_V4: [u8; 4] = [198, 51, 100, 1];
const CLIENT_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x77];
const OURS_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1];
const PORT: u16 = 40_123;

fn ethernet(ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend_from_slice(&ethertype.to_be_bytes());
    frame.extend_from_slice(packet);
    frame
}

/// An IPv4 packet with `options` words of options.
fn v4(
    source: [u8; 4],
    destination: [u8; 4],
    protocol: u8,
    fragment: u16,
    options: u8,
    payload: &[u8],
) -> Vec<u8> {
    let mut packet = vec![0x45 + options, 0, 0, 0, 0, 0];
    packet.extend_from_slice(&fragment.to_be_bytes());
    packet.extend_from_slice(&[64, protocol, 0, 0]);
    packet.extend_from_slice(&source);
    packet.extend_from_slice(&destination);
    packet.resize(20 + 4 * usize::from(options), 1);
    packet.extend_from_slice(payload);
    packet
}

fn v6(source: [u8; 16], destination: [u8; 16], next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, next_header, 64];
    packet.extend_from_slice(&source);
    packet.extend_from_slice(&destination);
    packet.extend_from_slice(payload);
    packet
}

fn tcp(source: u16, destination: u16) -> Vec<u8> {
    let mut segment = source.to_be_bytes().to_vec();
    segment.extend_from_slice(&destination.to_be_bytes());
    segment.resize(20, 7);
    segment
}

fn icmp(kind: u8, quote: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, 4, 0, 0, 0, 0, 5, 0];
    message.extend_from_slice(quote);
    message
}

/// A client's segment, with `options` words of IPv4 options.
fn segment_v4(port: u16, options: u8) -> Vec<u8> {
    let packet = v4(CLIENT_V4, OURS_V4, 6, 0x4000, options, &tcp(port, 443));
    ethernet(0x0800, &packet)
}

fn segment_v6(port: u16) -> Vec<u8> {
    ethernet(0x86dd, &v6(CLIENT_V6, OURS_V6, 6, &tcp(port, 443)))
}

/// A router's error about our segment to that client; both headers with options.
fn error_v4(kind: u8, port: u16, options: u8, quoted_options: u8) -> Vec<u8> {
    let ours = tcp(443, port);
    // Routers quote no more than eight bytes of it, the least (RFC 792).
    let quote = v4(OURS_V4, CLIENT_V4, 6, 0x4000, quoted_options, &ours[..8]);
    let packet = v4([10, 0, 0, 1], OURS_V4, 1, 0, options, &icmp(kind, &quote));
    ethernet(0x0800, &packet)
}

fn error_v6(kind: u8, port: u16) -> Vec<u8> {
    let quote = v6(OURS_V6, CLIENT_V6, 6, &tcp(443, port));
    let router = [0xfe; 16];
    ethernet(0x86dd, &v6(router, OURS_V6, 58, &icmp(kind, &quote)))
}

fn fragment_v4(offset: u16) -> Vec<u8> {
    let packet = v4(CLIENT_V4, OURS_V4, 6, offset, 0, &tcp(PORT, 443));
    ethernet(0x0800, &packet)
}

/// An error about a fragment of ours.
fn error_about_fragment(offset: u16) -> Vec<u8> {
    let quote = v4(OURS_V4, CLIENT_V4, 6, offset, 0, &tcp(443, PORT));
    let packet = v4([10, 0, 0, 1], OURS_V4, 1, 0, 0, &icmp(3, &quote));
    ethernet(0x0800, &packet)
}

fn error_about_udp() -> Vec<u8> {
    let quote = v4(OURS_V4, CLIENT_V4, 17, 0, 0, &tcp(443, PORT));
    let packet = v4([10, 0, 0, 1], OURS_V4, 1, 0, 0, &icmp(3, &quote));
    ethernet(0x0800, &packet)
}

/// One frame of each kind.
pub(crate) fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let mut frames = of_the_client();
    frames.extend(of_queue_0());
    frames
}

/// Frames that belong to one client's connection, over IPv4 or IPv6.
fn of_the_client() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("TCP over IPv4", segment_v4(PORT, 0)),
        ("TCP over IPv4 with options", segment_v4(PORT, 10)),
        ("an error", error_v4(3, PORT, 0, 0)),
        ("an error with options", error_v4(3, PORT, 10, 0)),
        (
            "an error about a segment with options",
            error_v4(3, PORT, 0, 10),
        ),
        (
            "an error about a first fragment",
            error_about_fragment(0x2000),
        ),
        ("TCP over IPv6", segment_v6(PORT)),
        ("an IPv6 destination is unreachable", error_v6(1, PORT)),
        ("an IPv6 packet is too big", error_v6(2, PORT)),
    ]
}

fn of_queue_0() -> Vec<(&'static str, Vec<u8>)> {
    let echo = v4(CLIENT_V4, OURS_V4, 1, 0, 0, &icmp(8, &[9; 40]));
    let time_exceeded = error_v4(11, PORT, 0, 0);
    let udp_v6 = v6(OURS_V6, CLIENT_V6, 17, &tcp(443, PORT));
    let about_udp = v6([0xfe; 16], OURS_V6, 58, &icmp(1, &udp_v6));
    vec![
        ("ARP", ethernet(0x0806, &[1; 46])),
        ("a tagged frame", ethernet(0x8100, &[1; 46])),
        ("the first fragment", fragment_v4(0x2000)),
        ("a fragment behind the first", fragment_v4(0x2001)),
        ("the last fragment", fragment_v4(0x1fff)),
        (
            "UDP",
            ethernet(0x0800, &v4(CLIENT_V4, OURS_V4, 17, 0, 0, &[9; 40])),
        ),
        ("echo", ethernet(0x0800, &echo)),
        ("time exceeded", time_exceeded),
        ("an error about UDP", error_about_udp()),
        (
            "an error about a later fragment",
            error_about_fragment(0x2001),
        ),
        ("an IPv6 error about UDP", ethernet(0x86dd, &about_udp)),
        ("IPv6 time exceeded", error_v6(3, PORT)),
        ("a neighbour's solicitation", error_v6(135, PORT)),
        ("IPv6 echo", error_v6(128, PORT)),
        (
            "an IPv6 fragment",
            ethernet(0x86dd, &v6(CLIENT_V6, OURS_V6, 44, &[6; 40])),
        ),
    ]
}

/// SplitMix64, for frames.
fn random_bytes(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Frames of each kind with some bytes changed and cut somewhere, all at least an Ethernet header.
pub(crate) fn random_frames(count: usize) -> impl Iterator<Item = Vec<u8>> {
    let models = frames();
    let mut state = 1;
    (0..count).map(move |_| {
        let mut draw = |limit: usize| {
            let limit = u64::try_from(limit).unwrap();
            usize::try_from(random_bytes(&mut state) % limit).unwrap()
        };
        let mut frame = models[draw(models.len())].1.clone();
        for _ in 0..draw(4) {
            let at = draw(frame.len());
            frame[at] = u8::try_from(draw(256)).unwrap();
        }
        if draw(4) == 0 {
            frame.truncate(14 + draw(frame.len() - 13));
        }
        frame
    })
}

/// The numbers of the queues of `frames`, of many queues: two different hashes hardly share one.
fn queues_of(frames: Vec<(&'static str, Vec<u8>)>) -> Vec<(&'static str, usize)> {
    let many = usize::try_from(u32::MAX).unwrap();
    let queues = frames.into_iter();
    queues
        .map(|(name, frame)| (name, queue_of(&frame, many)))
        .collect()
}

#[test]
fn all_frames_of_a_client_have_one_queue() {
    let (v4, v6): (Vec<_>, Vec<_>) = queues_of(of_the_client())
        .into_iter()
        .partition(|(name, _)| !name.contains("IPv6"));
    for frames in [v4, v6] {
        for (name, queue) in &frames {
            assert_eq!((*name, *queue), (*name, frames[0].1));
            assert_ne!(*queue, 0, "{name}");
        }
    }
}

#[test]
fn frames_of_no_client_have_queue_0() {
    for (name, queue) in queues_of(of_queue_0()) {
        assert_eq!(queue, 0, "{name}");
    }
}

#[test]
fn a_frame_cut_before_its_ports_has_queue_0() {
    let many = usize::try_from(u32::MAX).unwrap();
    for (frame, needed) in [
        (segment_v4(PORT, 0), 14 + 20 + 2),
        (segment_v4(PORT, 10), 14 + 60 + 2),
        (segment_v6(PORT), 14 + 40 + 2),
        (error_v4(3, PORT, 0, 0), 14 + 20 + 8 + 20 + 4),
        (error_v4(3, PORT, 1, 2), 14 + 24 + 8 + 28 + 4),
        (error_v6(2, PORT), 14 + 40 + 8 + 40 + 4),
    ] {
        for length in 0..frame.len() {
            let queue = queue_of(&frame[..length], many);
            assert_eq!(queue == 0, length < needed, "{length} bytes of {needed}");
        }
    }
}

#[test]
fn ports_addresses_and_seeds_spread_over_all_queues() {
    for queues in [2, 3, 5, 8, 64] {
        let mut by_port = vec![0_usize; queues];
        let mut by_address = vec![0_usize; queues];
        let mut by_v6_port = vec![0_usize; queues];
        let mut by_v6_address = vec![0_usize; queues];
        let mut by_seed = vec![0_usize; queues];
        let count: u16 = 6_400;
        for n in 0..count {
            // Linux gives a host's connections to one server every second port.
            by_port[queue_of(&segment_v4(32_768 + 2 * n, 0), queues)] += 1;
            by_v6_port[queue_of(&segment_v6(32_768 + 2 * n), queues)] += 1;
            let mut frame = segment_v4(PORT, 0);
            frame[14 + 12 + 2..14 + 12 + 4].copy_from_slice(&n.to_be_bytes());
            by_address[queue_of(&frame, queues)] += 1;
            let mut frame = segment_v6(PORT);
            // Networks differ in the second word, hosts in the last.
            frame[14 + 8 + 6..14 + 8 + 8].copy_from_slice(&n.to_be_bytes());
            by_v6_address[queue_of(&frame, queues)] += 1;
            by_seed[queue_of_seeded(&segment_v4(PORT, 0), queues, u32::from(n))] += 1;
        }
        let mean = usize::from(count) / queues;
        for counts in [by_port, by_address, by_v6_port, by_v6_address, by_seed] {
            for found in &counts {
                // Five standard deviations of a fair draw at 64 queues, where they are the widest.
                let is_fair = found.abs_diff(mean) <= mean / 2;
                assert!(is_fair, "{queues} queues, {mean} each: {counts:?}");
            }
        }
    }
}

#[test]
fn one_queue_takes_everything() {
    for (name, frame) in frames() {
        assert_eq!(queue_of(&frame, 1), 0, "{name}");
        assert!(queue_of(&frame, QUEUES_MAX) < QUEUES_MAX, "{name}");
    }
    assert_eq!(queue_of(&[], 8), 0);
}

#[test]
#[should_panic(expected = "a frame for one of 0 queues")]
fn no_queue_is_a_programming_error() {
    let _ = queue_of(&[], 0);
}
