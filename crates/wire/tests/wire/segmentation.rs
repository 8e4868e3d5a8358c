//! Cutting a large segment gives the frames a peer would have sent one by one.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use wire::{
    ChecksumState, Ecn, HEADERS_BYTES_MAX, Incoming, MacAddress, Offload, Outgoing, Route,
    Segmentation, SegmentationKind, SeqNumber, TcpChecksum, TcpFlags, TcpRepr, checksum,
    complete_checksum, cut, cut_unfinished, emit_tcp, parse_frame, set_ecn,
};

use crate::strategies::{as_sent, parts, route, segment, slices, tcp_frame};

/// What a sink was given, each frame made contiguous.
fn cut_frames(outgoing: &Outgoing<'_>) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    cut(outgoing, &mut |headers, parts| {
        assert!(parts.len() <= Outgoing::PARTS_MAX);
        frames.push([headers, &parts.concat()].concat());
    });
    frames
}

fn large<'a>(headers: &'a [u8], payload: &'a [&'a [u8]], route: &Route, mss: u16) -> Outgoing<'a> {
    let kind = route.segmentation_kind();
    let segmentation = Some(Segmentation {
        kind,
        segment_bytes: mss,
    });
    let offload = Offload {
        checksum: Some(route.partial_checksum()),
        segmentation,
    };
    Outgoing {
        headers,
        payload,
        offload,
    }
}

proptest! {
    #[test]
    fn pieces_are_the_segments_of_the_whole(
        route in route(), segment in segment(), parts in parts(), mss in 1u16..1000, bits in 0u8..4,
    ) {
        let payload = slices(&parts);
        let whole = parts.concat();
        let mut headers = [0; HEADERS_BYTES_MAX];
        let length =
            emit_tcp(&mut headers, &route, &segment, &payload, TcpChecksum::Partial, 0xfffe);
        set_ecn(&mut headers, Ecn::from_bits(bits));
        let frames = cut_frames(&large(&headers[..length], &payload, &route, mss));
        prop_assert_eq!(frames.len(), whole.len().div_ceil(mss.into()).max(1));

        let mut offset = 0;
        for (index, frame) in frames.iter().enumerate() {
            let is_last = index + 1 == frames.len();
            let bytes = (whole.len() - offset).min(mss.into());
            let mut flags = segment.flags;
            if index > 0 {
                flags = flags.difference(TcpFlags::CWR);
            }
            if !is_last {
                flags = flags.difference(TcpFlags::FIN.union(TcpFlags::PSH));
            }
            let piece = TcpRepr {
                sequence: segment.sequence.wrapping_add(u32::try_from(offset).unwrap()),
                flags,
                ..as_sent(&segment)
            };
            // Byte for byte the frame we would have emitted for this piece alone.
            let mut headers = [0; HEADERS_BYTES_MAX];
            let identification = 0xfffe_u16.wrapping_add(u16::try_from(index).unwrap());
            let text = &whole[offset..offset + bytes];
            let length =
                emit_tcp(&mut headers, &route, &piece, &[text], TcpChecksum::Full, identification);
            set_ecn(&mut headers, Ecn::from_bits(bits));
            prop_assert_eq!(frame, &[&headers[..length], text].concat());
            prop_assert!(parse_frame(frame, ChecksumState::Unverified).is_ok());
            offset += bytes;
        }
        prop_assert_eq!(offset, whole.len());
    }

    #[test]
    fn unfinished_pieces_are_those_that_a_device_finishes(
        route in route(), segment in segment(), parts in parts(), mss in 1u16..1000,
    ) {
        let payload = slices(&parts);
        let mut headers = [0; HEADERS_BYTES_MAX];
        let length =
            emit_tcp(&mut headers, &route, &segment, &payload, TcpChecksum::Partial, 0xfffe);
        let outgoing = large(&headers[..length], &payload, &route, mss);
        let finished = cut_frames(&outgoing);
        let place = route.partial_checksum();
        let mut unfinished = Vec::new();
        cut_unfinished(&outgoing, &mut |headers, parts| {
            unfinished.push([headers, &parts.concat()].concat());
        });
        prop_assert_eq!(unfinished.len(), finished.len());
        let field = usize::from(place.start + place.offset);
        for (mut frame, finished) in unfinished.into_iter().zip(finished) {
            // What this piece alone would be emitted with, for a link that finishes checksums.
            let transport_bytes = u32::try_from(frame.len() - usize::from(place.start)).unwrap();
            let pseudo = checksum::pseudo_header(
                route.source, route.destination, 6, transport_bytes);
            prop_assert_eq!(&frame[field..field + 2], &pseudo.to_be_bytes());
            complete_checksum(&mut frame, place);
            prop_assert_eq!(frame, finished);
        }
    }

    #[test]
    fn a_frame_not_to_be_cut_stays_unfinished(
        route in route(), segment in segment(), parts in parts(),
    ) {
        let payload = slices(&parts);
        let mut headers = [0; HEADERS_BYTES_MAX];
        let length = emit_tcp(&mut headers, &route, &segment, &payload, TcpChecksum::Partial, 1);
        for checksum in [Some(route.partial_checksum()), None] {
            let offload = Offload { checksum, segmentation: None };
            let outgoing = Outgoing { headers: &headers[..length], payload: &payload, offload };
            let mut frames = 0;
            cut_unfinished(&outgoing, &mut |same, parts| {
                frames += 1;
                assert_eq!((same, parts), (&headers[..length], payload.as_slice()));
            });
            prop_assert_eq!(frames, 1);
        }
    }

    #[test]
    fn a_frame_not_to_be_cut_is_only_completed(
        route in route(), segment in segment(), parts in parts(),
    ) {
        let payload = slices(&parts);
        let full = tcp_frame(&route, &segment, &payload, TcpChecksum::Full);
        for checksum in [TcpChecksum::Partial, TcpChecksum::Full] {
            let mut headers = [0; HEADERS_BYTES_MAX];
            let length = emit_tcp(&mut headers, &route, &segment, &payload, checksum, 0x1d1d);
            let place = route.partial_checksum();
            let offload = Offload {
                checksum: (checksum == TcpChecksum::Partial).then_some(place),
                segmentation: None,
            };
            let outgoing = Outgoing { headers: &headers[..length], payload: &payload, offload };
            prop_assert_eq!(cut_frames(&outgoing), vec![full.clone()]);
        }
    }
}

/// The largest there is: 65,535 bytes of IP in both versions, cut for an MTU of 1500.
#[test]
fn the_largest_packet_is_cut() {
    let mac = MacAddress([2, 0, 0, 0, 0, 1]);
    let segment = TcpRepr {
        source_port: 80,
        destination_port: 50_000,
        sequence: SeqNumber(u32::MAX - 30_000),
        flags: TcpFlags::ACK.union(TcpFlags::PSH),
        ..TcpRepr::default()
    };
    let payload: Vec<u8> = (0..65_495u32).map(|n| n.to_le_bytes()[0]).collect();
    let v4 = (
        Ipv4Addr::new(10, 0, 0, 1).into(),
        Ipv4Addr::new(10, 0, 0, 2).into(),
    );
    let peer = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
    let v6 = (
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).into(),
        peer.into(),
    );
    for ((source, destination), kind) in
        [(v4, SegmentationKind::TcpV4), (v6, SegmentationKind::TcpV6)]
    {
        let route = Route {
            source_mac: mac,
            destination_mac: mac,
            source,
            destination,
        };
        assert_eq!(route.segmentation_kind(), kind);
        let payload = [payload.as_slice()];
        let mut headers = [0; HEADERS_BYTES_MAX];
        let length = emit_tcp(
            &mut headers,
            &route,
            &segment,
            &payload,
            TcpChecksum::Partial,
            0,
        );
        let frames = cut_frames(&large(&headers[..length], &payload, &route, 1440));
        let mut received = Vec::new();
        for frame in &frames {
            assert!(frame.len() <= 1514);
            let Ok(Incoming::Tcp {
                payload,
                segment: piece,
                ..
            }) = parse_frame(frame, ChecksumState::Unverified)
            else {
                panic!("a piece is a segment");
            };
            let offset = piece.sequence.distance(segment.sequence);
            assert_eq!(usize::try_from(offset).unwrap(), received.len());
            received.extend_from_slice(payload);
        }
        assert_eq!(received, payload.concat());
    }
}

#[test]
#[should_panic(expected = "segments of nothing would never end")]
fn segments_of_nothing_are_a_bug() {
    let mac = MacAddress([2, 0, 0, 0, 0, 1]);
    let address = Ipv4Addr::new(10, 0, 0, 1).into();
    let route = Route {
        source_mac: mac,
        destination_mac: mac,
        source: address,
        destination: address,
    };
    let mut headers = [0; HEADERS_BYTES_MAX];
    let segment = TcpRepr::default();
    let length = emit_tcp(&mut headers, &route, &segment, &[], TcpChecksum::Partial, 0);
    cut(&large(&headers[..length], &[], &route, 0), &mut |_, _| {});
}
