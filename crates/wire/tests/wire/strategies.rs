//! Values drawn at random, and frames made from them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use wire::tcp::{SACK_BLOCKS_MAX, WINDOW_SCALE_MAX};
use wire::{
    HEADERS_BYTES_MAX, MacAddress, Route, SackBlocks, SeqNumber, TcpChecksum, TcpFlags, TcpOptions,
    TcpRepr, Timestamps, emit_tcp,
};

/// One station's MAC.
pub(crate) fn mac() -> impl Strategy<Value = MacAddress> {
    any::<[u8; 5]>().prop_map(|[a, b, c, d, e]| MacAddress([2, a, b, c, d, e]))
}

/// One host's IPv4 address: no loopback, no group.
pub(crate) fn address_v4() -> impl Strategy<Value = Ipv4Addr> {
    (1u8..=223, any::<[u8; 3]>())
        .prop_filter("loopback", |(first, _)| *first != 127)
        .prop_map(|(first, [b, c, d])| Ipv4Addr::new(first, b, c, d))
}

/// One host's IPv6 address, global or link-local.
pub(crate) fn address_v6() -> impl Strategy<Value = Ipv6Addr> {
    (
        prop_oneof![Just(0x2001u16), Just(0xfe80)],
        any::<[u16; 7]>(),
    )
        .prop_map(|(first, [b, c, d, e, f, g, h])| Ipv6Addr::new(first, b, c, d, e, f, g, h))
}

fn ends() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    prop_oneof![
        (address_v4(), address_v4()).prop_map(|(a, b)| (a.into(), b.into())),
        (address_v6(), address_v6()).prop_map(|(a, b)| (a.into(), b.into())),
    ]
}

/// A route of either family.
pub(crate) fn route() -> impl Strategy<Value = Route> {
    (mac(), mac(), ends()).prop_map(
        |(source_mac, destination_mac, (source, destination))| Route {
            source_mac,
            destination_mac,
            source,
            destination,
        },
    )
}

/// Options, possibly with more SACK blocks than there is room for.
pub(crate) fn options() -> impl Strategy<Value = TcpOptions> {
    let blocks = proptest::collection::vec(any::<(u32, u32)>(), 0..=SACK_BLOCKS_MAX);
    (
        any::<Option<u16>>(),
        proptest::option::of(0..=WINDOW_SCALE_MAX),
        any::<bool>(),
        any::<Option<(u32, u32)>>(),
        blocks,
    )
        .prop_map(|(mss, window_scale, sack_permitted, timestamps, blocks)| {
            let mut sack = SackBlocks::default();
            for (left, right) in blocks {
                sack.push(SeqNumber(left), SeqNumber(right));
            }
            let timestamps = timestamps.map(|(value, echo)| Timestamps { value, echo });
            TcpOptions {
                mss,
                window_scale,
                sack_permitted,
                timestamps,
                sack,
            }
        })
}

/// A TCP header.
pub(crate) fn segment() -> impl Strategy<Value = TcpRepr> {
    (
        1u16..,
        1u16..,
        any::<(u32, u32)>(),
        any::<(u8, u16)>(),
        options(),
    )
        .prop_map(
            |(
                source_port,
                destination_port,
                (sequence, acknowledgment),
                (flags, window),
                options,
            )| {
                TcpRepr {
                    source_port,
                    destination_port,
                    sequence: SeqNumber(sequence),
                    acknowledgment: SeqNumber(acknowledgment),
                    flags: TcpFlags(flags),
                    window,
                    options,
                }
            },
        )
}

/// Payload parts of any lengths, odd and zero among them.
pub(crate) fn parts() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let part = proptest::collection::vec(any::<u8>(), 0..700);
    proptest::collection::vec(part, 0..=wire::Outgoing::PARTS_MAX)
}

/// The parts as the slices the crate takes.
pub(crate) fn slices(parts: &[Vec<u8>]) -> Vec<&[u8]> {
    parts.iter().map(Vec::as_slice).collect()
}

/// A TCP frame, contiguous.
pub(crate) fn tcp_frame(
    route: &Route,
    segment: &TcpRepr,
    payload: &[&[u8]],
    checksum: TcpChecksum,
) -> Vec<u8> {
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let length = emit_tcp(&mut buffer, route, segment, payload, checksum, 0x1d1d);
    let mut frame = buffer[..length].to_vec();
    for part in payload {
        frame.extend_from_slice(part);
    }
    frame
}

/// The options as they travel: SACK blocks there is no room for stay behind.
pub(crate) fn as_sent(segment: &TcpRepr) -> TcpRepr {
    let mut sack = SackBlocks::default();
    let room = segment.options.emitted_sack_blocks();
    for (left, right) in segment.options.sack.as_slice().iter().take(room) {
        sack.push(*left, *right);
    }
    TcpRepr {
        options: TcpOptions {
            sack,
            ..segment.options
        },
        ..*segment
    }
}
