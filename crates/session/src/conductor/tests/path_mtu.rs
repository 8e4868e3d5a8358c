//! The packet size of open connections: black holes, and probes of a larger one.

use clock::Duration;
use record::Version;

use super::tls::{TlsPeer, tls_config};
use super::{Bench, OBJECT_BYTES, Peer};

/// The link takes smaller packets, and then as large ones as before.
fn shrink_and_grow(bench: &mut Bench) {
    let now = bench.now;
    bench.conductor.set_link_limits(now, 1400, 65_535);
    bench.conductor.set_link_limits(now, 1500, 65_535);
}

/// Probes sent, arrived and lost.
fn probes(bench: &Bench) -> (u64, u64, u64) {
    let counters = bench.conductor.counters();
    (
        counters.tcp_mtu_probe_count,
        counters.tcp_mtu_probe_success_count,
        counters.tcp_mtu_probe_lost_count,
    )
}

#[test]
fn a_link_that_takes_larger_packets_again_is_probed_by_open_connections() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    shrink_and_grow(&mut bench);
    peer.get(&mut bench, "/object");
    bench.turn();
    let reads = core::mem::take(&mut bench.reads);
    for read in reads {
        bench.complete(read, OBJECT_BYTES);
    }
    bench.turn();
    let sizes: Vec<usize> = bench
        .sent
        .iter()
        .map(|(_, payload)| payload.len())
        .collect();
    // One packet of 1460 bytes, and what the link segments into packets of 1360.
    let at = sizes.iter().position(|bytes| *bytes == 1460);
    assert!(
        at.is_some_and(|at| sizes[at + 1..].iter().any(|bytes| *bytes > 1460)),
        "{sizes:?}"
    );
    assert_eq!(probes(&bench), (1, 0, 0));
    peer.drain(&mut bench);
    assert_eq!(probes(&bench), (1, 1, 0));
    super::assert_is_object(peer.head_and_rest().1, 0);
}

#[test]
fn a_probe_is_a_part_of_the_records_it_is_cut_from() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut client = TlsPeer::connect(&mut bench, 1000, Version::Tls13);
    shrink_and_grow(&mut bench);
    client.get(&mut bench);
    client.drain(&mut bench);
    assert_eq!(probes(&bench), (1, 1, 0));
    client.assert_has_object();
}

#[test]
fn a_client_behind_a_black_hole_is_counted_and_served() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.get(&mut bench, "/object");
    bench.turn();
    bench.complete_reads();
    // Nothing of it arrives, however often it is sent again.
    for _ in 0..5 {
        bench.sent.clear();
        bench.pass(Duration::from_secs(1));
        bench.complete_reads();
        if bench.conductor.counters().tcp_mtu_black_hole_count > 0 {
            break;
        }
    }
    assert_eq!(bench.conductor.counters().tcp_mtu_black_hole_count, 1);
    let sizes = bench.sent.iter().map(|(_, payload)| payload.len());
    assert_eq!(sizes.max(), Some(1200 - 40));
    peer.drain(&mut bench);
    super::assert_is_object(peer.head_and_rest().1, 0);
}
