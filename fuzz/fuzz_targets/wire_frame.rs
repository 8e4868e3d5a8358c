//! Any bytes as an Ethernet frame: parsing ends with a value or a reason, and what is accepted can
//! be emitted, parses back to itself, and can be answered.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::{
    ChecksumState, Ecn, HEADERS_BYTES_MAX, Incoming, MacAddress, Path, Route, SackBlocks, TcpChecksum,
    TcpOptions, TcpRepr, checksum, emit_arp, emit_arp_reply, emit_echo_reply,
    emit_neighbor_advertisement, emit_tcp, parse_frame,
};

const OUR_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);

fuzz_target!(|frame: &[u8]| {
    let verified = parse_frame(frame, ChecksumState::Unverified);
    let trusted = parse_frame(frame, ChecksumState::Trusted);
    if verified.is_ok() {
        assert_eq!(verified, trusted, "trust only leaves tests out");
    }
    if let Ok(incoming) = trusted {
        check(&incoming);
    }
    // Few mutations survive the checksum of the IPv4 header: mend it, to reach what lies behind.
    let mut mended = frame.to_vec();
    if mend_ipv4(&mut mended).is_some()
        && let Ok(incoming) = parse_frame(&mended, ChecksumState::Trusted)
    {
        check(&incoming);
    }
});

/// Corrects the header checksum of IPv4; `None` if there is no such header.
fn mend_ipv4(frame: &mut [u8]) -> Option<()> {
    if frame.get(12..14)? != [0x08, 0x00] {
        return None;
    }
    let header_bytes = usize::from(frame.get(14)? & 0x0f) * 4;
    let header = frame.get_mut(14..14 + header_bytes)?;
    header.get_mut(10..12)?.fill(0);
    let sum = checksum::complete(0, &[header]).to_be_bytes();
    header.get_mut(10..12)?.copy_from_slice(&sum);
    Some(())
}

fn check(incoming: &Incoming<'_>) {
    let mut buffer = [0; HEADERS_BYTES_MAX];
    match *incoming {
        Incoming::Tcp {
            path,
            segment,
            payload,
            ..
        } => check_tcp(&path, &segment, payload),
        Incoming::Arp(arp) => {
            let length = emit_arp(&mut buffer, OUR_MAC, &arp);
            let again = parse_frame(&buffer[..length], ChecksumState::Unverified);
            assert_eq!(again, Ok(Incoming::Arp(arp)));
            let _ = emit_arp_reply(&mut buffer, &arp, OUR_MAC);
        }
        Incoming::EchoV4 {
            path,
            identifier,
            sequence,
            data,
        }
        | Incoming::EchoV6 {
            path,
            identifier,
            sequence,
            data,
        } => {
            let mut buffer = vec![0; 100 + data.len()];
            let route = path.reply_route();
            let length = emit_echo_reply(&mut buffer, &route, identifier, sequence, data);
            // Only an IPv6 echo may be longer than what we answer.
            assert!(length.is_some() || data.len() > 65_000, "an echo fits");
        }
        Incoming::NeighborSolicitation { path, target, .. } => {
            let length = emit_neighbor_advertisement(&mut buffer, &path, target, OUR_MAC);
            assert_eq!(length, 14 + 40 + 32);
        }
        Incoming::NeighborAdvertisement { target, .. } => assert!(!target.is_multicast()),
        Incoming::Fragment(fragment) => {
            let path = fragment.path;
            assert_eq!(path.source.is_ipv4(), path.destination.is_ipv4());
        }
        Incoming::ListenerQuery { path, .. } => assert!(path.source.is_ipv6()),
        Incoming::PacketTooBig { original, .. } | Incoming::Unreachable { original, .. } => {
            assert_eq!(original.source.is_ipv4(), original.destination.is_ipv4());
        }
    }
}

/// A segment goes out again as it came, but for SACK blocks that other layouts of options left room
/// for.
fn check_tcp(path: &Path, segment: &TcpRepr, payload: &[u8]) {
    let mut sack = SackBlocks::default();
    for (left, right) in segment
        .options
        .sack
        .as_slice()
        .iter()
        .take(segment.options.emitted_sack_blocks())
    {
        sack.push(*left, *right);
    }
    let segment = TcpRepr {
        options: TcpOptions {
            sack,
            ..segment.options
        },
        ..*segment
    };
    let route = Route {
        source_mac: path.source_mac,
        destination_mac: path.destination_mac,
        source: path.source,
        destination: path.destination,
    };
    // Beside options of ours the text of the longest packets might not fit.
    let payload = &payload[..payload.len().min(65_000)];
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let length = emit_tcp(
        &mut buffer,
        &route,
        &segment,
        &[payload],
        TcpChecksum::Full,
        0,
    );
    let frame = [&buffer[..length], payload].concat();
    let again = parse_frame(&frame, ChecksumState::Unverified);
    assert_eq!(
        again,
        Ok(Incoming::Tcp {
            path: *path,
            segment,
            ecn: Ecn::NotEct,
            payload
        })
    );
}
