//! Batches of frames: acknowledgments wait for others, and nothing else changes.

use wire::{SeqNumber, TcpFlags};

use super::{Bench, OBJECT_BYTES, Peer, assert_is_object};
use crate::conductor::ahead::WAITING_MAX;

/// A client in the middle of a reply, and the sequence number behind what it was sent.
fn in_mid_reply(bench: &mut Bench, port: u16) -> (Peer, SeqNumber) {
    let mut peer = Peer::connect(bench, port);
    peer.get(bench, "/object");
    bench.complete_reads();
    let flight = bench.take_segments(port);
    let (last, text) = flight.last().expect("a flight");
    let end = last
        .sequence
        .wrapping_add(u32::try_from(text.len()).unwrap());
    (peer, end)
}

/// Sends an ACK of everything up to `end`.
fn acknowledge(bench: &mut Bench, peer: &mut Peer, end: SeqNumber) {
    peer.expected = end;
    peer.send(bench, TcpFlags::ACK, b"");
}

fn unacknowledged_bytes(bench: &Bench, peer: &Peer) -> u64 {
    let clients = &bench.conductor.connections.clients;
    let connections = clients.indexes().filter_map(|index| clients.entry(index));
    let mut connections = connections.map(|client| &client.tcp);
    let connection = connections.find(|tcp| tcp.tuple().peer.port() == peer.port);
    connection
        .expect("its connection")
        .info(bench.now)
        .unacknowledged_bytes
}

#[test]
fn an_acknowledgment_waits_for_as_many_others_as_its_state_takes_to_arrive() {
    let mut bench = Bench::new();
    let (mut peer, end) = in_mid_reply(&mut bench, 1000);
    bench.is_batch_open = true;
    assert!(unacknowledged_bytes(&bench, &peer) > 0);
    acknowledge(&mut bench, &mut peer, end);
    for _ in 1..WAITING_MAX {
        peer.send(&mut bench, TcpFlags::ACK, b"");
    }
    assert!(unacknowledged_bytes(&bench, &peer) > 0);
    peer.send(&mut bench, TcpFlags::ACK, b"");
    assert_eq!(unacknowledged_bytes(&bench, &peer), 0);
}

#[test]
fn the_end_of_the_batch_applies_what_waits() {
    let mut bench = Bench::new();
    let (mut peer, end) = in_mid_reply(&mut bench, 1000);
    bench.is_batch_open = true;
    acknowledge(&mut bench, &mut peer, end);
    bench.conductor.end_batch(bench.now, &mut bench.arena);
    assert_eq!(unacknowledged_bytes(&bench, &peer), 0);
}

#[test]
fn a_segment_with_text_comes_after_those_that_wait() {
    let mut bench = Bench::new();
    let (mut peer, end) = in_mid_reply(&mut bench, 1000);
    let (mut other, _) = in_mid_reply(&mut bench, 1001);
    bench.is_batch_open = true;
    acknowledge(&mut bench, &mut peer, end);
    other.send(&mut bench, TcpFlags::ACK, b"G");
    assert_eq!(unacknowledged_bytes(&bench, &peer), 0);
}

#[test]
fn a_connection_that_is_gone_when_its_acknowledgments_turn_comes_is_not_mistaken() {
    let mut bench = Bench::new();
    let (mut peer, end) = in_mid_reply(&mut bench, 1000);
    bench.is_batch_open = true;
    acknowledge(&mut bench, &mut peer, end);
    // It waits; the reset comes after it, and an ACK after that.
    peer.send(&mut bench, TcpFlags::RST, b"");
    acknowledge(&mut bench, &mut peer, end);
    bench.conductor.end_batch(bench.now, &mut bench.arena);
    assert_eq!(bench.conductor.connection_count(), 0);
    assert_eq!(bench.conductor.counters().tcp_reset_count, 1);
    bench.turn();
    peer.take(&mut bench);
    assert!(peer.reset, "the last ACK is of no connection");
}

#[test]
fn a_handshake_is_completed_by_an_acknowledgment_that_waited() {
    let mut bench = Bench::new();
    let mut peer = Peer::send_syn(&mut bench, 1000, SeqNumber(7));
    let syn_ack = bench.take_segments(1000)[0].0;
    bench.is_batch_open = true;
    acknowledge(&mut bench, &mut peer, syn_ack.sequence.wrapping_add(1));
    assert_eq!(bench.conductor.counters().tcp_established_count, 0);
    bench.conductor.end_batch(bench.now, &mut bench.arena);
    assert_eq!(bench.conductor.counters().tcp_established_count, 1);
    bench.is_batch_open = false;
    peer.get(&mut bench, "/object");
    peer.drain(&mut bench);
    let (_, body) = peer.head_and_rest();
    assert_eq!(body.len() as u64, OBJECT_BYTES);
    assert_is_object(body, 0);
}
