//! Whatever arrives, parsing ends with a value or a reason.

use proptest::prelude::*;
use wire::{ChecksumState, HEADERS_BYTES_MAX, Incoming, TcpChecksum, emit_neighbor_solicitation};
use wire::{emit_echo_reply, parse_frame};

use crate::strategies::{address_v6, mac, parts, route, segment, slices, tcp_frame};

/// What must hold of anything accepted.
fn check(frame: &[u8]) {
    for checksum in [ChecksumState::Trusted, ChecksumState::Unverified] {
        let payload_bytes = match parse_frame(frame, checksum) {
            Ok(Incoming::Tcp {
                path,
                payload,
                segment,
                ..
            }) => {
                assert_eq!(path.source.is_ipv4(), path.destination.is_ipv4());
                assert!(segment.options.window_scale.is_none_or(|shift| shift <= 14));
                assert!(segment.options.sack.as_slice().len() <= 4);
                payload.len()
            }
            Ok(Incoming::EchoV4 { data, .. } | Incoming::EchoV6 { data, .. }) => data.len(),
            Ok(_) | Err(_) => 0,
        };
        assert!(payload_bytes <= frame.len().saturating_sub(14 + 20 + 8));
    }
}

/// An Ethernet header in front of noise that at least names its version.
fn plausible() -> impl Strategy<Value = Vec<u8>> {
    let ethertype = prop_oneof![Just([0x08, 0x00]), Just([0x08, 0x06]), Just([0x86, 0xdd])];
    let noise = proptest::collection::vec(any::<u8>(), 0..200);
    (ethertype, noise, any::<bool>()).prop_map(|(ethertype, mut noise, has_priority)| {
        let version = if ethertype[0] == 0x86 { 0x60 } else { 0x45 };
        if let Some(first) = noise.first_mut() {
            *first = version;
        }
        let tag: &[u8] = if has_priority {
            &[0x81, 0x00, 0xe0, 0x00]
        } else {
            &[]
        };
        [&[2; 12], tag, &ethertype, &noise].concat()
    })
}

/// A sound frame of any kind.
fn sound() -> impl Strategy<Value = Vec<u8>> {
    let tcp = (route(), segment(), parts())
        .prop_map(|(route, segment, parts)| {
            tcp_frame(&route, &segment, &slices(&parts), TcpChecksum::Full)
        })
        .boxed();
    let echo = (route(), any::<[u8; 32]>())
        .prop_map(|(route, data)| {
            let mut buffer = [0; 200];
            let length = emit_echo_reply(&mut buffer, &route, 1, 2, &data).expect("room");
            buffer[..length].to_vec()
        })
        .boxed();
    let neighbor = (mac(), address_v6(), address_v6())
        .prop_map(|(mac, from, target)| {
            let mut buffer = [0; HEADERS_BYTES_MAX];
            let length = emit_neighbor_solicitation(&mut buffer, mac, from, target);
            buffer[..length].to_vec()
        })
        .boxed();
    prop_oneof![4 => tcp, 1 => echo, 1 => neighbor]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_do_not_panic(frame in proptest::collection::vec(any::<u8>(), 0..200)) {
        check(&frame);
    }

    #[test]
    fn plausible_frames_do_not_panic(frame in plausible()) {
        check(&frame);
    }

    #[test]
    fn damaged_frames_do_not_panic(
        frame in sound(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        keep in any::<prop::sample::Index>(),
    ) {
        let mut frame = frame;
        for (place, value) in damage {
            // Headers are where the damage is interesting.
            let headers = frame.len().min(HEADERS_BYTES_MAX);
            frame[place.index(headers)] = value;
        }
        check(&frame);
        frame.truncate(keep.index(frame.len() + 1));
        check(&frame);
    }
}

#[test]
fn a_frame_cut_short_anywhere_is_refused() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for _ in 0..50 {
        let strategy = (route(), segment());
        let (route, segment) = strategy.new_tree(&mut runner).expect("a value").current();
        let frame = tcp_frame(&route, &segment, &[b"payload"], TcpChecksum::Full);
        for length in 0..frame.len() {
            assert!(parse_frame(&frame[..length], ChecksumState::Trusted).is_err());
        }
        assert!(parse_frame(&frame, ChecksumState::Trusted).is_ok());
    }
}

#[test]
fn one_wrong_bit_is_noticed() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = (route(), segment());
    let (route, segment) = strategy.new_tree(&mut runner).expect("a value").current();
    let frame = tcp_frame(&route, &segment, &[b"payload"], TcpChecksum::Full);
    let original = parse_frame(&frame, ChecksumState::Unverified);
    for bit in 14 * 8..frame.len() * 8 {
        let mut damaged = frame.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let parsed = parse_frame(&damaged, ChecksumState::Unverified);
        // IPv6 has no header checksum: traffic class, flow label and hop limit may change.
        assert!(
            parsed.is_err() || parsed == original,
            "bit {bit}: {parsed:?}"
        );
    }
}

use proptest::strategy::ValueTree;
