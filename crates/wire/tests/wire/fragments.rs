//! A packet cut into fragments says the same as the packet.

use proptest::prelude::*;
use wire::ipv4::Ipv4Repr;
use wire::{
    ChecksumState, Ecn, Fragment, FragmentPlace, Incoming, TcpChecksum, parse_frame,
    parse_reassembled, set_ecn,
};

use crate::strategies::{route, segment, tcp_frame};

const IP: usize = 14;
const IDENTIFICATION: u32 = 0x1d1d;

/// The frame's packet in parts of `part_bytes`, a multiple of eight, each in a frame of its own.
fn cut(frame: &[u8], part_bytes: usize) -> Vec<Vec<u8>> {
    let is_v4 = frame[12..14] == [0x08, 0x00];
    let (headers, payload) = frame.split_at(IP + if is_v4 { 20 } else { 40 });
    let count = payload.len().div_ceil(part_bytes);
    let parts = payload.chunks(part_bytes).enumerate();
    let part = |(index, part): (usize, &[u8])| {
        let units = u16::try_from(index * part_bytes / 8).expect("a short packet");
        let has_more = index + 1 < count;
        if is_v4 {
            part_v4(headers, units, has_more, part)
        } else {
            part_v6(headers, units, has_more, part)
        }
    };
    parts.map(part).collect()
}

fn part_v4(headers: &[u8], units: u16, has_more: bool, part: &[u8]) -> Vec<u8> {
    let octets = |at: usize| {
        headers[at..]
            .first_chunk::<4>()
            .copied()
            .expect("four bytes")
            .into()
    };
    let mut header = [0; 20];
    let repr = Ipv4Repr {
        source: octets(IP + 12),
        destination: octets(IP + 16),
        protocol: headers[IP + 9],
        time_to_live: 9,
        identification: u16::try_from(IDENTIFICATION).expect("a short packet"),
        total_bytes: u16::try_from(20 + part.len()).expect("a short packet"),
    };
    repr.emit(&mut header);
    let field = units | if has_more { 0x2000 } else { 0 };
    header[6..8].copy_from_slice(&field.to_be_bytes());
    header[10..12].copy_from_slice(&[0, 0]);
    let checksum = wire::checksum::complete(0, &[&header]);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    [&headers[..IP], &header, part].concat()
}

fn part_v6(headers: &[u8], units: u16, has_more: bool, part: &[u8]) -> Vec<u8> {
    let mut fragment = vec![headers[IP + 6], 0xff];
    fragment.extend((units << 3 | u16::from(has_more)).to_be_bytes());
    fragment.extend(IDENTIFICATION.to_be_bytes());
    let mut headers = headers.to_vec();
    headers[IP + 6] = 44;
    let bytes = u16::try_from(8 + part.len()).expect("a short packet");
    headers[IP + 4..IP + 6].copy_from_slice(&bytes.to_be_bytes());
    [&headers, &fragment, part].concat()
}

fn as_fragment(frame: &[u8]) -> Fragment<'_> {
    match parse_frame(frame, ChecksumState::Unverified) {
        Ok(Incoming::Fragment(fragment)) => fragment,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn fragments_say_whose_part_they_are_and_make_the_packet(
        route in route(),
        segment in segment(),
        text in proptest::collection::vec(any::<u8>(), 0..3000),
        units in 1usize..200,
        is_marked in any::<bool>(),
    ) {
        let mut frame = tcp_frame(&route, &segment, &[&text], TcpChecksum::Full);
        let ecn = if is_marked { Ecn::Ce } else { Ecn::NotEct };
        set_ecn(&mut frame, ecn);
        let whole = parse_frame(&frame, ChecksumState::Unverified);
        prop_assert!(whole.is_ok());
        let mut frames = cut(&frame, units * 8);
        frames.iter_mut().for_each(|frame| set_ecn(frame, ecn));
        if let [only] = &frames[..] {
            // RFC 6946: of IPv6, a fragment header that says nothing.
            prop_assert_eq!(parse_frame(only, ChecksumState::Unverified), whole);
            return Ok(());
        }
        let fragments: Vec<_> = frames.iter().map(|frame| as_fragment(frame)).collect();
        let mut payload = Vec::new();
        for (index, fragment) in fragments.iter().enumerate() {
            let expected = FragmentPlace {
                identification: IDENTIFICATION,
                offset_bytes: u16::try_from(payload.len()).expect("a short packet"),
                is_last: index + 1 == fragments.len(),
            };
            prop_assert_eq!(fragment.place, expected);
            prop_assert_eq!(fragment.protocol, 6);
            payload.extend_from_slice(fragment.payload);
        }
        let Fragment { path, protocol, ecn, .. } = fragments[0];
        prop_assert_eq!(parse_reassembled(path, protocol, ecn, &payload), whole);
        // The checksum is that of the whole.
        let last = payload.len() - 1;
        payload[last] ^= 1;
        prop_assert!(parse_reassembled(path, protocol, ecn, &payload).is_err());
    }
}

/// The extension headers of what was cut are skipped, and none of them makes a fragment again.
#[test]
fn what_ipv6_fragments_carry_may_begin_with_options_and_not_with_a_fragment_header() {
    let frame = crate::reasons::tcp_v6();
    let Ok(whole @ Incoming::Tcp { path, .. }) = parse_frame(&frame, ChecksumState::Unverified)
    else {
        panic!("a segment")
    };
    let behind = |header: [u8; 8]| [&header, &frame[IP + 40..]].concat();
    let parse = |first: u8, bytes: &[u8]| {
        parse_reassembled(path, first, Ecn::NotEct, bytes).map(|incoming| incoming == whole)
    };
    let options = behind([6, 0, 1, 4, 0, 0, 0, 0]);
    assert_eq!(parse(60, &options), Ok(true));
    for first in [0, 43, 44] {
        let refused = Err(wire::DropReason::Ipv6ExtensionUnsupported);
        assert_eq!(parse(first, &options), refused);
    }
    let nested = behind([44, 0, 1, 4, 0, 0, 0, 0]);
    assert!(parse(60, &nested).is_err());
}
