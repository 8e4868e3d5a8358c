//! Packets that arrive in fragments.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use clock::Duration;
use wire::{DropReason, HEADERS_BYTES_MAX, Route, SeqNumber, TcpFlags};

use super::{Bench, OUR_ADDRESS, PORT, Peer, Sent, assert_is_object, config, peer_route};
use crate::Config;

const IP: usize = 14;
const OUR_ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const PEER_ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);

/// The frame's packet in fragments that carry so many bytes of it, a multiple of eight; the frame, if one
/// is enough.
pub(super) fn cut(frame: &[u8], bytes: usize) -> Vec<Vec<u8>> {
    let is_v4 = frame[12..14] == [0x08, 0x00];
    let (headers, payload) = frame.split_at(IP + if is_v4 { 20 } else { 40 });
    if payload.len() <= bytes {
        return vec![frame.to_vec()];
    }
    let count = payload.len().div_ceil(bytes);
    let parts = payload.chunks(bytes).enumerate().map(|(index, part)| {
        let offset = u16::try_from(index * bytes).unwrap();
        let has_more = u16::from(index + 1 < count);
        let mut headers = headers.to_vec();
        if is_v4 {
            let total = u16::try_from(20 + part.len()).unwrap();
            headers[IP + 2..IP + 4].copy_from_slice(&total.to_be_bytes());
            let field = (offset / 8) | (has_more << 13);
            headers[IP + 6..IP + 8].copy_from_slice(&field.to_be_bytes());
            headers[IP + 10..IP + 12].copy_from_slice(&[0, 0]);
            let checksum = wire::checksum::complete(0, &[&headers[IP..]]);
            headers[IP + 10..IP + 12].copy_from_slice(&checksum.to_be_bytes());
        } else {
            let length = u16::try_from(8 + part.len()).unwrap();
            headers[IP + 4..IP + 6].copy_from_slice(&length.to_be_bytes());
            let next = std::mem::replace(&mut headers[IP + 6], 44);
            headers.extend([next, 0]);
            headers.extend((offset | has_more).to_be_bytes());
            // The TCP checksum tells one packet from the other.
            headers.extend([0, 0, payload[16], payload[17]]);
        }
        [&headers, part].concat()
    });
    parts.collect()
}

fn route_v6() -> Route {
    Route {
        source: PEER_ADDRESS_V6.into(),
        destination: OUR_ADDRESS_V6.into(),
        ..peer_route()
    }
}

fn bench() -> Bench {
    let config = Config {
        addresses: vec![IpAddr::V4(OUR_ADDRESS), OUR_ADDRESS_V6.into()],
        ..config()
    };
    Bench::with(config, 8)
}

/// A request with three kilobytes of cookies.
fn long_request() -> String {
    let cookie = "x".repeat(3_000);
    format!("GET /object HTTP/1.1\r\nHost: a\r\nCookie: a={cookie}\r\n\r\n")
}

#[test]
fn a_request_in_fragments_is_answered() {
    for route in [peer_route(), route_v6()] {
        let mut bench = bench();
        let mut peer = Peer::connect_by(&mut bench, route, PORT, 1000);
        bench.fragment_bytes = Some(1_368);
        peer.ask(&mut bench, &long_request());
        bench.fragment_bytes = None;
        peer.drain(&mut bench);
        assert_is_object(peer.head_and_rest().1, 0);
        let counters = bench.conductor.counters();
        assert_eq!(counters.wire_fragment_frames, 3);
        assert_eq!(counters.wire_reassembled_count, 1);
        assert_eq!(counters.wire_drop_count.iter().sum::<u64>(), 0);
    }
}

#[test]
fn what_fragments_make_is_checked_as_a_packet_is() {
    let mut bench = bench();
    let peer = Peer::connect(&mut bench, 1000);
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let segment = wire::TcpRepr {
        source_port: 1000,
        destination_port: PORT,
        sequence: peer.next,
        acknowledgment: peer.expected,
        flags: TcpFlags::ACK,
        window: 1,
        ..wire::TcpRepr::default()
    };
    let checksum = wire::TcpChecksum::Full;
    let length = wire::emit_tcp(&mut buffer, &peer.route, &segment, &[b"text"], checksum, 1);
    // Another text than the one that was summed.
    let frame = [&buffer[..length], b"toxt"].concat();
    bench.fragment_bytes = Some(16);
    bench.receive(&frame);
    let counters = bench.conductor.counters();
    assert_eq!(counters.wire_reassembled_count, 1);
    let reason = DropReason::TcpBadChecksum.index();
    assert_eq!(counters.wire_drop_count[reason], 1);
}

#[test]
fn fragments_to_others_take_no_room() {
    let mut bench = bench();
    let route = Route {
        destination: Ipv4Addr::new(10, 0, 0, 9).into(),
        ..peer_route()
    };
    bench.fragment_bytes = Some(8);
    let _ = Peer::send_syn_by(&mut bench, route, PORT, 1000, SeqNumber(1));
    let counters = bench.conductor.counters();
    assert_eq!(counters.wire_fragment_frames, 0);
    assert_eq!(counters.wire_foreign_frames, 4);
}

/// The request arrives at another worker than the connection's.
#[test]
fn the_whole_of_fragments_goes_to_the_worker_that_has_its_connection() {
    let mut workers = [bench(), bench()];
    for worker in &mut workers {
        worker.conductor.set_other_workers(1);
    }
    let [first, second] = &mut workers;
    let mut peer = Peer::connect(second, 1000);
    first.fragment_bytes = Some(1_368);
    peer.ask(first, &long_request());
    let stray = first
        .conductor
        .poll_stray()
        .expect("a segment of no connection there");
    second
        .conductor
        .handle_stray(second.now, &mut second.arena, stray);
    second.conductor.end_batch(second.now, &mut second.arena);
    second.turn();
    peer.drain(second);
    assert_is_object(peer.head_and_rest().1, 0);
}

#[test]
fn an_echo_request_in_fragments_is_answered_if_the_answer_needs_none() {
    for (data_bytes, is_answered) in [(1_472, true), (1_473, false)] {
        let mut bench = bench();
        let mut frame = vec![0; 14 + 28 + data_bytes];
        let data = vec![7; data_bytes];
        let length = wire::emit_echo_reply(&mut frame, &peer_route(), 1, 2, &data).unwrap();
        assert_eq!(length, frame.len());
        // A request: the checksum changes by as much as the type.
        frame[34] = 8;
        frame[36] -= 8;
        bench.fragment_bytes = Some(1_000);
        bench.receive(&frame);
        bench.turn();
        assert_eq!(bench.sent.len(), usize::from(is_answered));
        assert!(
            bench
                .sent
                .iter()
                .all(|(sent, _)| matches!(sent, Sent::Other))
        );
    }
}

#[test]
fn a_packet_that_never_becomes_whole_is_forgotten_by_the_timer() {
    let mut bench = bench();
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let segment = wire::TcpRepr::default();
    let checksum = wire::TcpChecksum::Full;
    let length = wire::emit_tcp(&mut buffer, &peer_route(), &segment, &[], checksum, 1);
    let fragments = cut(&buffer[..length], 8);
    bench.receive(&fragments[0]);
    let due = bench.conductor.poll_timeout().expect("a timer");
    assert_eq!(due.since(bench.now), Duration::from_secs(30));
    bench.pass(Duration::from_secs(30));
    assert_eq!(bench.conductor.poll_timeout(), None);
    assert_eq!(bench.conductor.counters().wire_reassembly_timeout_count, 1);
}
