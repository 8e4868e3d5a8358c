//! Objects on two devices, one of which completes nothing for a while. `/object` is on the first,
//! `/other` on the second.

use super::{Bench, OBJECT_BYTES, OTHER, Peer, assert_is_object, config};
use crate::{Config, ReadPlan};

/// Clients that want the device that hangs.
const HUNG_PEERS: u16 = 7;

fn bench(reads_max: usize) -> Bench {
    let config = Config {
        connections_max: 16,
        reads_max,
        ..config()
    };
    Bench::with(config, u32::try_from(reads_max).unwrap())
}

/// Both devices are known.
fn bench_of_two(reads_max: usize) -> Bench {
    let mut bench = bench(reads_max);
    for (port, path) in [(900, "/object"), (901, "/other")] {
        let mut peer = Peer::connect(&mut bench, port);
        peer.get(&mut bench, path);
        peer.drain(&mut bench);
        assert_is_whole(&peer);
    }
    assert_eq!(bench.conductor.counters().session_device_capped_count, 0);
    bench
}

/// Takes the reads of the device that hangs out of the bench.
fn take_hung(bench: &mut Bench) -> Vec<ReadPlan> {
    let reads = std::mem::take(&mut bench.reads);
    let (others, hung) = reads.into_iter().partition(|read| read.object == OTHER);
    bench.reads = others;
    hung
}

fn ask_from(bench: &mut Bench, ports: core::ops::Range<u16>, path: &str) -> Vec<Peer> {
    let ask = |port| {
        let mut peer = Peer::connect(bench, port);
        peer.get(bench, path);
        peer
    };
    ports.map(ask).collect()
}

fn assert_is_whole(peer: &Peer) {
    let (_, body) = peer.head_and_rest();
    assert_eq!(body.len() as u64, OBJECT_BYTES);
    assert_is_object(body, 0);
}

#[test]
fn a_device_that_hangs_gets_half_of_the_reads_and_others_go_on() {
    let mut bench = bench_of_two(8);
    let mut hung_peers = ask_from(&mut bench, 1000..1000 + HUNG_PEERS, "/object");
    let hung = take_hung(&mut bench);
    assert_eq!(hung.len(), 4);
    let counters = bench.conductor.counters();
    assert_eq!(counters.session_device_capped_count, 3);
    assert_eq!(counters.session_slot_famine_count, 0);
    // Those who come behind the clients that wait do not wait behind them.
    for peer in &mut ask_from(&mut bench, 2000..2003, "/other") {
        peer.drain(&mut bench);
        assert_is_whole(peer);
    }
    assert!(bench.reads.is_empty());
    // The device answers again.
    for read in hung {
        bench.complete(read, OBJECT_BYTES);
    }
    bench.turn();
    for _ in 0..20 {
        hung_peers
            .iter_mut()
            .for_each(|peer| peer.drain(&mut bench));
    }
    hung_peers.iter().for_each(assert_is_whole);
    assert_eq!(bench.arena.free_count(), bench.arena.slot_count());
}

#[test]
fn each_completion_admits_one_more_waiting_client() {
    let mut bench = bench_of_two(8);
    let peers = ask_from(&mut bench, 1000..1000 + HUNG_PEERS, "/object");
    let mut hung = take_hung(&mut bench);
    for left in (0..3).rev() {
        bench.complete(hung.remove(0), OBJECT_BYTES);
        bench.turn();
        let more = take_hung(&mut bench);
        assert_eq!(more.len(), 1, "{left} clients still wait");
        hung.extend(more);
    }
    bench.complete(hung.remove(0), OBJECT_BYTES);
    bench.turn();
    assert!(take_hung(&mut bench).is_empty(), "nobody waits any more");
    assert_eq!(peers.len(), HUNG_PEERS.into());
}

#[test]
fn an_only_device_gets_all_reads() {
    let mut bench = bench(8);
    ask_from(&mut bench, 1000..1010, "/object");
    assert_eq!(take_hung(&mut bench).len(), 8);
    assert_eq!(bench.conductor.counters().session_device_capped_count, 0);
}

#[test]
fn reads_of_clients_that_left_count_until_they_complete() {
    let mut bench = bench_of_two(8);
    let mut peers = ask_from(&mut bench, 1000..1004, "/object");
    for peer in &mut peers {
        peer.send(&mut bench, wire::TcpFlags::RST, b"");
    }
    let hung = take_hung(&mut bench);
    assert_eq!(hung.len(), 4);
    ask_from(&mut bench, 2000..2002, "/object");
    assert!(take_hung(&mut bench).is_empty());
    for read in hung {
        bench.complete(read, OBJECT_BYTES);
    }
    bench.turn();
    assert_eq!(take_hung(&mut bench).len(), 2);
}

#[test]
fn a_client_that_left_its_device_queue_delays_nobody() {
    let mut bench = bench_of_two(8);
    let mut peers = ask_from(&mut bench, 1000..1006, "/object");
    peers[4].send(&mut bench, wire::TcpFlags::RST, b"");
    let mut hung = take_hung(&mut bench);
    bench.complete(hung.remove(0), OBJECT_BYTES);
    bench.turn();
    assert_eq!(take_hung(&mut bench).len(), 1, "the sixth client's");
}

#[test]
fn a_read_given_back_makes_room() {
    let mut bench = bench_of_two(8);
    ask_from(&mut bench, 1000..1005, "/object");
    let mut hung = take_hung(&mut bench);
    let newest = hung.pop().unwrap();
    bench.conductor.return_read(&mut bench.arena, newest);
    bench.turn();
    assert_eq!(take_hung(&mut bench).len(), 1);
}

#[test]
fn replies_behind_one_of_a_device_that_hangs_take_no_slots() {
    let mut bench = bench_of_two(8);
    let mut peer = Peer::connect(&mut bench, 1000);
    let range = "Range: bytes=0-99";
    let request = |path| format!("GET {path} HTTP/1.1\r\nHost: a\r\n{range}\r\n\r\n");
    peer.ask(&mut bench, &(request("/object") + &request("/other")));
    let hung = take_hung(&mut bench);
    assert_eq!((hung.len(), bench.reads.len()), (1, 0));
    for read in hung {
        bench.complete(read, OBJECT_BYTES);
    }
    // The second request is taken when the first reply has begun.
    bench.turn();
    bench.turn();
    assert_eq!(bench.reads.len(), 1, "the other reply's");
    peer.drain(&mut bench);
    let bodies = peer.received.windows(4).filter(|end| *end == b"\r\n\r\n");
    assert_eq!(bodies.count(), 2);
}
