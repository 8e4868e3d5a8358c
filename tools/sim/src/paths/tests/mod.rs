//! The product passes, each fault that TCP once had is found, and every oracle can fail.

mod matrix;

use clock::{Duration, Instant};
use tcp::Fault;
use wire::{
    ChecksumState, Incoming, MacAddress, Route, SeqNumber, TcpFlags, TcpOptions, TcpRepr,
    Timestamps, parse_frame,
};

use super::meter::{LossPlan, Meter};
use super::oracle;
use super::plan::{PathsPlan, Trial};
use super::receiver::{AckPolicy, RECEIVER_MAC, Receiver, ReceiverPlan, RequestPlan};
use super::run::Run;
use crate::crafted;
use crate::world::frame_log::FrameLog;

/// Seeds that the product must pass here; more is `cargo xtask sim`.
const SEEDS: u64 = 120;

/// Each fault, a trial that shows it, the oracle that finds it, and within how many seeds of the
/// trial.
const FAULTS: [(Fault, Trial, &str, usize); 8] = [
    (Fault::TimeoutReducesTwice, Trial::Loss, "floor: ", 200),
    (Fault::TimeoutWithoutMargin, Trial::Thin, "learning: ", 20),
    (Fault::TimeoutNotUndone, Trial::Step, "step: ", 60),
    (
        Fault::NoSampleOfRetransmission,
        Trial::Thin,
        "learning: ",
        20,
    ),
    (Fault::PauseCounts, Trial::Pause, "pause: ", 20),
    (
        Fault::RecoveryNotUndone,
        Trial::Reordered,
        "reordered: ",
        20,
    ),
    (Fault::EchoAnsweredTwice, Trial::Marked, "ecn: ", 5),
    (Fault::SlowStartOvershoots, Trial::Loss, "ceiling: ", 200),
];

fn seeds_of(trial: Trial) -> impl Iterator<Item = u64> {
    (0..).filter(move |seed| PathsPlan::draw(*seed).trial == trial)
}

#[test]
fn the_product_keeps_to_all_bounds() {
    for seed in 0..SEEDS {
        let (outcome, _) = super::run(seed, None, FrameLog::default());
        assert_eq!(outcome.violations, Vec::<String>::new(), "seed {seed}");
    }
}

fn assert_kept(seed: u64) {
    let (outcome, _) = super::run(seed, None, FrameLog::default());
    assert_eq!(outcome.violations, Vec::<String>::new(), "seed {seed}");
}

/// A link releases ACKs every 0.3 s: round trips of 0.6 and 0.9 s take turns, and each has dozens of
/// samples.
#[test]
fn acks_that_are_released_together_cause_no_timeout() {
    [8068, 15_799].into_iter().for_each(assert_kept);
}

/// Most of a window is SACKed when a late segment arrives.
#[test]
fn slow_start_goes_on_where_segments_are_late() {
    [12_058, 15_701].into_iter().for_each(assert_kept);
}

/// The last ACK of a reply is dropped, and the receiver does not report that the probe came twice.
#[test]
fn a_reply_after_a_needless_probe_is_sent_in_congestion_avoidance() {
    assert_kept(17_364);
}

/// The RTT steps up in slow start, before anything was lost, and the peer reports neither SACK blocks nor timestamps.
#[test]
fn a_needless_timeout_that_cannot_be_told_sends_the_flight_again_once() {
    assert_kept(20_378);
}

#[test]
fn every_fault_that_tcp_once_had_is_found() {
    for (fault, trial, complaint, seeds) in FAULTS {
        let is_found = seeds_of(trial).take(seeds).any(|seed| {
            let (outcome, _) = super::run(seed, Some(fault), FrameLog::default());
            let mut violations = outcome.violations.iter();
            violations.any(|violation| violation.starts_with(complaint))
        });
        assert!(is_found, "{fault:?} was not found within {seeds} seeds");
    }
}

/// What the oracles say of a run if they are told of another path than it had.
fn judged(plan: &PathsPlan, told: &PathsPlan) -> Vec<String> {
    let mut run = Run::new(plan, None, FrameLog::default());
    assert_eq!(run.run_to_end(), None);
    oracle::violations(told, &run.meter, &run.receiver)
}

#[test]
fn bounds_of_goodput_and_of_retransmission_follow_the_path() {
    for (trial, complaint) in [(Trial::Steady, "duration: "), (Trial::Rough, "progress: ")] {
        for seed in seeds_of(trial).take(10) {
            let mut plan = PathsPlan::draw(seed);
            plan.forth.rate_bits = 500_000;
            plan.forth.policer = None;
            plan.back.hold = Duration::ZERO;
            plan.receiver.requests.truncate(1);
            plan.receiver.requests[0].bytes = 2_000_000;
            plan.receiver.window_bytes = 20_000;
            plan.forth.buffer_bytes = 25_000;
            assert_eq!(judged(&plan, &plan), Vec::<String>::new(), "seed {seed}");
            let mut told = plan.clone();
            told.forth.rate_bits = 100_000_000;
            told.set_rtt(Duration::from_millis(1));
            let found = judged(&plan, &told);
            let is_found = found.iter().any(|it| it.starts_with(complaint));
            assert!(is_found, "seed {seed}: {found:?}");
        }
    }
    let seed = seeds_of(Trial::Steady).next().expect("there are many");
    let mut plan = PathsPlan::draw(seed);
    assert_eq!(judged(&plan, &plan), Vec::<String>::new());
    plan.forth.loss_ppm = 20_000;
    let found = judged(&plan, &plan);
    assert!(
        found.iter().any(|it| it.starts_with("lossless: ")),
        "{found:?}"
    );
}

/// Without ECN the queue that a marking router leaves room for overflows, or what is sent into it is no
/// more than ECN allows.
#[test]
fn marks_are_echoed_and_answered_and_prevent_losses() {
    let (mut reductions, mut losses) = (0, 0);
    for seed in seeds_of(Trial::Marked).take(12) {
        let plan = PathsPlan::draw(seed);
        let mut run = Run::new(&plan, None, FrameLog::default());
        assert_eq!(run.run_to_end(), None);
        reductions += run.meter.marks().reductions();
        let mut without = plan.clone();
        without.receiver.ecn = false;
        losses += judged(&without, &plan).len();
    }
    assert!(reductions >= 12, "{reductions}");
    assert!(losses > 0);
}

#[test]
fn the_bound_of_a_black_hole_follows_the_path() {
    for seed in seeds_of(Trial::BlackHole).take(10) {
        let mut plan = PathsPlan::draw(seed);
        plan.set_rtt(Duration::from_millis(200));
        plan.forth.sizes = vec![(Duration::ZERO, 1300)];
        plan.receiver.requests.truncate(1);
        plan.receiver.requests[0].bytes = 200_000;
        assert_eq!(judged(&plan, &plan), Vec::<String>::new(), "seed {seed}");
        let mut told = plan.clone();
        told.set_rtt(Duration::from_millis(1));
        told.forth.sizes.clear();
        let found = judged(&plan, &told);
        let is_found = found.iter().any(|it| it.starts_with("hole: "));
        assert!(is_found, "seed {seed}: {found:?}");
    }
}

/// A path with an RTT of 40 ms whose large packets are dropped as `sizes` say, and a receiver that makes
/// these requests.
fn hole(sizes: &[(Duration, u64)], requests: &[(Duration, u64)]) -> Run {
    let seed = seeds_of(Trial::BlackHole).next().expect("there are many");
    let mut plan = PathsPlan::draw(seed);
    plan.set_rtt(Duration::from_millis(40));
    plan.forth.rate_bits = 8_000_000;
    plan.forth.sizes = sizes.to_vec();
    plan.congestion = session::CongestionControl::Cubic;
    plan.receiver.timestamps = true;
    plan.receiver.sack_blocks = 3;
    plan.receiver.acks = AckPolicy::Every(2);
    plan.receiver.window_bytes = 100_000;
    let each = requests.iter();
    plan.receiver.requests = each
        .map(|(pause, bytes)| RequestPlan {
            pause: *pause,
            bytes: *bytes,
        })
        .collect();
    let mut run = Run::new(&plan, None, FrameLog::default());
    assert_eq!(run.run_to_end(), None);
    assert_eq!(run.receiver.replies().len(), requests.len());
    run
}

/// Largest payload in the last ten seconds of a reply.
fn payload_at_the_end(run: &Run, reply: usize) -> u64 {
    let ended_at = run.receiver.replies()[reply].ended_at;
    let from = Instant::from_millis(ended_at.as_millis() - 10_000);
    run.meter.payload_max(from, ended_at)
}

const SECOND: Duration = Duration::from_secs(1);

/// From the start: two timeouts, then the search. What is left of the size is less than a step.
#[test]
fn a_path_that_never_carried_large_packets_is_used_to_its_size() {
    for packet in [1200, 1280, 1400, 1492, 1500] {
        let run = hole(&[(Duration::ZERO, packet)], &[(Duration::ZERO, 40_000_000)]);
        let (found, fits) = (payload_at_the_end(&run, 0), packet - 52);
        assert!(found <= fits && fits - found < 16, "{packet}: {found}");
        let took = run.receiver.replies()[0].ended_at;
        let at_rate = 40_000_000 * 8 / 8_000 * 1514 / 1148;
        assert!(took.as_millis() < at_rate + 5000, "{packet}: {took:?}");
    }
}

#[test]
fn a_path_that_becomes_a_black_hole_goes_on_in_smaller_packets() {
    let run = hole(&[(SECOND * 3, 1400)], &[(Duration::ZERO, 40_000_000)]);
    assert_eq!(
        run.meter
            .payload_max(Instant::ZERO, Instant::from_millis(2900)),
        1448
    );
    let found = payload_at_the_end(&run, 0);
    assert!(found <= 1348 && 1348 - found < 16, "{found}");
}

/// The first round of the search finds what passes; the next one comes after ten minutes.
#[test]
fn a_path_that_carries_large_packets_again_gets_them_within_eleven_minutes() {
    let requests: Vec<_> = [0, 200, 200, 200, 60]
        .map(|pause| (SECOND * pause, 15_000_000))
        .into();
    let run = hole(&[(Duration::ZERO, 1300), (SECOND * 30, 1500)], &requests);
    for (reply, large) in [(1, false), (2, false), (4, true)] {
        let found = payload_at_the_end(&run, reply);
        assert_eq!(found == 1448, large, "{reply}: {found}");
    }
}

/// An outage looks like a black hole, and costs large packets for a few seconds only.
#[test]
fn after_an_outage_packets_are_large_again() {
    let run = hole(
        &[(SECOND * 3, 0), (SECOND * 8, 1500)],
        &[(Duration::ZERO, 40_000_000)],
    );
    assert_eq!(payload_at_the_end(&run, 0), 1448);
}

/// Peers that answer for ever are among the trials, and the server ends their connections.
#[test]
fn every_trial_is_drawn() {
    let trials: Vec<_> = (0..5 * SEEDS)
        .map(|seed| PathsPlan::draw(seed).trial)
        .collect();
    for wanted in [
        Trial::Steady,
        Trial::Loss,
        Trial::Step,
        Trial::Thin,
        Trial::Pause,
        Trial::Rough,
        Trial::Reordered,
        Trial::Marked,
        Trial::BlackHole,
        Trial::Forever(crate::abusive_peer::Conduct::Shut),
        Trial::Forever(crate::abusive_peer::Conduct::ShutAtFin),
    ] {
        assert!(trials.contains(&wanted), "{wanted:?}");
    }
}

const ISS: u32 = 5000;

/// A segment of the server's: offset in the stream, payload bytes, and its timestamp.
fn segment(flags: TcpFlags, offset: u32, bytes: usize, stamp: u32) -> Vec<u8> {
    let route = Route {
        source_mac: crate::atlas::MAC,
        destination_mac: MacAddress(RECEIVER_MAC.0),
        source: core::net::Ipv4Addr::new(10, 9, 0, 1).into(),
        destination: core::net::Ipv4Addr::new(10, 9, 4, 1).into(),
    };
    let is_syn = flags.contains(TcpFlags::SYN);
    let segment = TcpRepr {
        source_port: 80,
        destination_port: 41_000,
        sequence: SeqNumber(ISS.wrapping_add(offset + u32::from(!is_syn))),
        acknowledgment: SeqNumber(0),
        flags: flags.union(TcpFlags::ACK),
        window: 1000,
        options: TcpOptions {
            sack_permitted: is_syn,
            timestamps: Some(Timestamps {
                value: stamp,
                echo: 0,
            }),
            ..TcpOptions::default()
        },
    };
    crafted::tcp(&route, &segment, &vec![7; bytes])
}

/// A receiver whose connection is open, and which expects one long reply.
fn opened(acks: AckPolicy) -> Receiver {
    let plan = ReceiverPlan {
        window_bytes: 1 << 20,
        sack_blocks: 3,
        reports_duplicates: true,
        timestamps: true,
        ecn: false,
        acks,
        resends_after: Duration::from_secs(100),
        path: "/x".to_owned(),
        requests: vec![RequestPlan {
            pause: Duration::ZERO,
            bytes: 1 << 20,
        }],
        leaves_after: None,
    };
    let mut receiver = Receiver::new(plan, Instant::ZERO);
    let mut ignore = |_| {};
    receiver.poll(Instant::ZERO, &mut ignore);
    receiver.handle_frame(segment(TcpFlags::SYN, 0, 0, 1));
    receiver.poll(Instant::ZERO, &mut ignore);
    receiver
}

/// The ACKs that it sends for these frames at a moment.
fn acks(receiver: &mut Receiver, millis: u64, frames: Vec<Vec<u8>>) -> Vec<TcpRepr> {
    for frame in frames {
        receiver.handle_frame(frame);
    }
    let mut sent = Vec::new();
    receiver.poll(Instant::from_millis(millis), &mut |frame| {
        if let Ok(Incoming::Tcp { segment, .. }) = parse_frame(&frame, ChecksumState::Unverified) {
            sent.push(segment);
        }
    });
    sent
}

fn data(offset: u32, stamp: u32) -> Vec<u8> {
    segment(TcpFlags::ACK, offset, 1000, stamp)
}

#[test]
fn the_second_segment_is_acknowledged_at_once_and_a_single_one_late() {
    let mut receiver = opened(AckPolicy::Every(2));
    assert_eq!(acks(&mut receiver, 1, vec![data(0, 2)]).len(), 0);
    assert_eq!(acks(&mut receiver, 40, vec![]).len(), 0);
    let late = acks(&mut receiver, 41, vec![]);
    assert_eq!(late[0].acknowledgment, SeqNumber(ISS + 1001));
    assert_eq!(acks(&mut receiver, 50, vec![data(1000, 3)]).len(), 0);
    assert_eq!(acks(&mut receiver, 51, vec![data(2000, 3)]).len(), 1);
    let mut receiver = opened(AckPolicy::Burst);
    let burst = (0..10).map(|n| data(n * 1000, 2)).collect();
    assert_eq!(acks(&mut receiver, 1, burst).len(), 1);
    assert_eq!(acks(&mut receiver, 2, vec![data(10_000, 2)]).len(), 0);
}

/// RFC 7323 s4.3: a segment beyond a hole does not change what is echoed; the one that fills it does.
#[test]
fn the_echo_is_of_the_segment_that_moved_the_window() {
    let mut receiver = opened(AckPolicy::Every(2));
    let echo = |sent: &[TcpRepr]| sent[0].options.timestamps.expect("agreed").echo;
    let sent = acks(&mut receiver, 1, vec![data(0, 10), data(1000, 11)]);
    assert_eq!(
        echo(&sent),
        10,
        "the first of the two, for the delay counts"
    );
    let sent = acks(&mut receiver, 2, vec![data(3000, 12)]);
    assert_eq!(echo(&sent), 10);
    assert_eq!(
        sent[0].options.sack.as_slice(),
        [(SeqNumber(ISS + 3001), SeqNumber(ISS + 4001))]
    );
    let sent = acks(&mut receiver, 3, vec![data(2000, 13)]);
    assert_eq!(echo(&sent), 13);
    assert_eq!(sent[0].acknowledgment, SeqNumber(ISS + 4001));
    let sent = acks(&mut receiver, 4, vec![data(2000, 14)]);
    let duplicate = (SeqNumber(ISS + 2001), SeqNumber(ISS + 3001));
    assert_eq!(sent[0].options.sack.as_slice(), [duplicate]);
}

/// An ACK of the receiver's, as it reaches the server.
fn ack_frame(offset: u32) -> Vec<u8> {
    let mut receiver = opened(AckPolicy::Every(1));
    let mut last = Vec::new();
    for at in (0..offset).step_by(1000) {
        receiver.handle_frame(data(at, 2));
        receiver.poll(Instant::from_millis(1), &mut |frame| last = frame);
    }
    last
}

#[test]
fn the_meter_counts_flight_repeats_timeouts_and_drops_as_planned() {
    let plan = LossPlan {
        from: 2000,
        segments: 2,
        again: 1,
        blackout: Duration::ZERO,
        is_blackout_of_resends: false,
    };
    let mut meter = Meter::new(&[plan]);
    let at = Instant::from_millis;
    meter.on_sent(at(0), &segment(TcpFlags::SYN, 0, 0, 1));
    let mut send = |millis, offset| meter.on_sent(at(millis), &data(offset, 1));
    let dropped: Vec<_> = [0, 1000, 2000, 3000, 4000]
        .map(|offset| send(1, offset))
        .into();
    assert_eq!(dropped, [false, false, true, true, false]);
    meter.on_ack(at(100), &ack_frame(2000));
    assert!(
        meter.on_sent(at(299), &data(2000, 1)),
        "dropped again, once"
    );
    assert_eq!((meter.resent_bytes(), meter.timeouts()), (1000, 0));
    assert!(!meter.on_sent(at(300), &data(2000, 1)));
    assert_eq!((meter.resent_bytes(), meter.timeouts()), (2000, 1));
    assert_eq!(meter.sendings_max(0, 5000), 3);
    assert_eq!(meter.sendings_max(3000, 5000), 1);
    let report = *meter.losses().next().expect("it began");
    assert_eq!(
        (report.flight, report.flight_max, report.high),
        (3000, 5000, 5000)
    );
    assert_eq!(report.ended_at, None);
    meter.on_ack(at(400), &ack_frame(5000));
    let report = *meter.losses().next().expect("it began");
    assert_eq!(report.ended_at, Some(at(400)));
    assert_eq!(meter.flight_max(at(0), at(1)), 5000);
    assert_eq!(meter.flight_max(at(2), at(400)), 3000);
}

/// Each frame is late by up to 20 ms, both ways, as over some radio links, and none is lost: most ACKs are
/// overtaken by others. They are no old duplicates, and what they report shows reductions to be needless.
#[test]
fn acks_that_overtake_each_other_are_not_dropped() {
    for seed in 0..5 {
        let mut plan = PathsPlan::draw(seeds_of(Trial::Reordered).next().expect("endless"));
        plan.trial = Trial::Rough;
        plan.seed = seed;
        plan.congestion = session::CongestionControl::Cubic;
        plan.receiver.timestamps = true;
        plan.receiver.acks = AckPolicy::Every(2);
        plan.receiver.requests.truncate(1);
        plan.receiver.requests[0].bytes = 3_000_000;
        for leg in [&mut plan.forth, &mut plan.back] {
            leg.delay = Duration::from_micros(500);
            leg.reorder_ppm = 1_000_000;
            leg.reorder_delay = Duration::from_millis(20);
        }
        let (outcome, _) = Run::new(&plan, None, FrameLog::default()).run();
        // That a quarter arrives twice is more than paths with some reordering may cause.
        let is_other =
            |violation: &&String| !violation.starts_with("progress: bytes received twice");
        assert_eq!(
            outcome.violations.iter().find(is_other),
            None,
            "seed {seed}"
        );
        let drops = outcome.counters.iter();
        let drops = drops.filter(|(name, _)| *name == "tcp_drop_count");
        assert!(
            drops.map(|(_, count)| count).sum::<u64>() <= 20,
            "seed {seed}"
        );
    }
}
