//! Explicit congestion notification as it leaves: the field of IP headers, and frames with CWR.

use wire::{Ecn, TcpFlags, TcpOptions};

use super::{Bench, Peer, config, peer_route};
use crate::{Config, CongestionControl, TcpConfig};

const PEER_PORT: u16 = 1000;

/// A client that asks for ECN and has sent a request for the object, and the bench.
fn asking(config: Config, ecn: Ecn) -> (Bench, Peer, bool) {
    let mut bench = Bench::with(config, 8);
    let mut peer = Peer::new(peer_route(), super::PORT, PEER_PORT, wire::SeqNumber(5));
    peer.ecn = ecn;
    let options = TcpOptions {
        mss: Some(1460),
        sack_permitted: true,
        ..TcpOptions::default()
    };
    let asks = TcpFlags::SYN.union(TcpFlags::ECE).union(TcpFlags::CWR);
    peer.send_with(&mut bench, asks, options, b"");
    peer.ecn = Ecn::NotEct;
    peer.next = peer.next.wrapping_add(1);
    bench.turn();
    let (syn_ack, _) = bench.take_segments(PEER_PORT)[0];
    peer.expected = syn_ack.sequence.wrapping_add(1);
    peer.get(&mut bench, "/object");
    bench.complete_reads();
    (bench, peer, syn_ack.flags.contains(TcpFlags::ECE))
}

#[test]
fn ecn_is_agreed_if_it_is_configured_with_what_answers_marks_and_the_syn_is_not_ect() {
    let with = |accepts_ecn, congestion| Config {
        tcp: TcpConfig {
            accepts_ecn,
            congestion,
            ..config().tcp
        },
        ..config()
    };
    for (config, ecn, is_agreed) in [
        (config(), Ecn::NotEct, true),
        (config(), Ecn::Ect0, false),
        (with(true, CongestionControl::Reno), Ecn::NotEct, true),
        (with(true, CongestionControl::Bbr), Ecn::NotEct, false),
        (with(false, CongestionControl::Cubic), Ecn::NotEct, false),
    ] {
        let (bench, _, was_agreed) = asking(config, ecn);
        assert_eq!(was_agreed, is_agreed);
        let count = bench.conductor.counters().tcp_ecn_count;
        assert_eq!(count, u64::from(is_agreed));
        let expected = if is_agreed { Ecn::Ect0 } else { Ecn::NotEct };
        assert!(!bench.fields.is_empty());
        assert!(bench.fields.iter().all(|ecn| *ecn == expected));
    }
}

/// The packets of a frame may be cut by hardware that repeats CWR on each.
#[test]
fn cwr_leaves_in_a_frame_of_one_packet() {
    let (mut bench, mut peer, _) = asking(config(), Ecn::NotEct);
    peer.take(&mut bench);
    bench.fields.clear();
    peer.send(&mut bench, TcpFlags::ACK.union(TcpFlags::ECE), b"");
    bench.turn();
    bench.complete_reads();
    let segments = bench.take_segments(PEER_PORT);
    let bytes: Vec<usize> = segments.iter().map(|(_, text)| text.len()).collect();
    let reduced: Vec<bool> = (segments.iter())
        .map(|(segment, _)| segment.flags.contains(TcpFlags::CWR))
        .collect();
    assert_eq!(bytes[0], 1460);
    assert!(bytes[1] > 1460, "{bytes:?}");
    assert!(reduced[0] && !reduced[1..].contains(&true));
    assert_eq!(bench.conductor.counters().tcp_ecn_reduction_count, 1);
    assert!(bench.fields.iter().all(|ecn| *ecn == Ecn::Ect0));
}
