//! Each state's entry and exit, on both sides of its limit; the bounds that losses set; the control
//! parameters. Samples are made by hand: segments of 1000 bytes, an RTT of 100 ms and 1 MB/s, so that
//! the BDP is 100 000 bytes. The whole of it, with a path, is in `connection/tests/bbr`.

use clock::{Duration, Instant};

use super::super::{Controller as _, Snapshot, Start};
use super::cycle::AckPhase;
use super::losses::adapted;
use super::{Bbr, LostTransmission, RateSample, State, UNBOUNDED};
use crate::pacing::PacingRate;
use crate::stream::{StreamOffset, StreamRange};

const RTT: Duration = Duration::from_millis(100);
const RATE: u64 = 1_000_000;
const BDP: u64 = 100_000;
const SEGMENT: u64 = 1000;

/// A controller and the clock of its samples.
struct Model {
    bbr: Bbr,
    now: Instant,
    delivered: u64,
    /// End of the last lost range.
    lost_to: u64,
}

impl Model {
    fn new(has_sack: bool) -> Self {
        let start = Start {
            segment_bytes: 1000,
            has_sack,
            seed: 7,
        };
        Self {
            bbr: Bbr::new(start),
            now: Instant::from_millis(1000),
            delivered: 0,
            lost_to: 0,
        }
    }

    /// Startup has found the bandwidth: Drain.
    fn draining() -> Self {
        let mut model = Self::new(true);
        for _ in 0..4 {
            model.round(|_| {});
        }
        assert_eq!(model.bbr.state, State::Drain);
        model.bbr.window = 2 * BDP;
        model
    }

    /// ProbeBW_DOWN.
    fn down() -> Self {
        let mut model = Self::draining();
        model.bbr.enter_down(model.now);
        model.ack(|_| {});
        assert_eq!(model.bbr.state, State::Down);
        model
    }

    fn cruising() -> Self {
        let mut model = Self::down();
        model.ack(|sample| sample.in_flight = 50_000);
        assert_eq!(model.bbr.state, State::Cruise);
        model
    }

    fn refilling() -> Self {
        let mut model = Self::cruising();
        model.now += Duration::from_secs(3);
        model.ack(|_| {});
        assert_eq!(model.bbr.state, State::Refill);
        model
    }

    fn up() -> Self {
        let mut model = Self::refilling();
        model.round(|_| {});
        assert_eq!(model.bbr.state, State::Up);
        model
    }

    /// An ACK of a segment, within a round.
    fn ack(&mut self, change: impl FnOnce(&mut RateSample)) {
        self.deliver(self.bbr.rounds.end.saturating_sub(1), change);
    }

    /// An ACK that begins a round, a round trip later.
    fn round(&mut self, change: impl FnOnce(&mut RateSample)) {
        self.now += RTT;
        self.deliver(self.delivered, change);
    }

    fn deliver(&mut self, prior_delivered: u64, change: impl FnOnce(&mut RateSample)) {
        self.delivered += SEGMENT;
        let mut sample = RateSample {
            now: self.now,
            rate: RATE,
            newly_delivered: SEGMENT,
            delivered: BDP,
            prior_delivered,
            delivered_total: self.delivered,
            lost: 0,
            in_flight_at_send: 2 * BDP,
            is_limited: false,
            rtt: Some(RTT),
            in_flight: 2 * BDP,
            is_window_limited: false,
        };
        change(&mut sample);
        self.bbr.on_sample(&sample);
    }

    /// ACKs as the path delivers them, until the window grows no more.
    fn window_in_use(&mut self) {
        for _ in 0..100 {
            self.now += Duration::from_millis(1);
            self.ack(|_| {});
        }
    }

    /// A segment is lost, apart from others, of `in_flight` of which `lost` are lost with it.
    fn lose(&mut self, lost: u64, in_flight: u64) {
        self.lost_to += 2 * SEGMENT;
        let end = StreamOffset(self.lost_to);
        self.bbr.on_lost(&LostTransmission {
            now: self.now,
            range: StreamRange::new(end - SEGMENT, end),
            in_flight_at_send: in_flight,
            lost,
            delivered_total: self.delivered,
            is_limited: false,
        });
    }

    fn rate(&self) -> u64 {
        match self.bbr.pacing_rate(RTT) {
            PacingRate::Limited(rate) => rate,
            PacingRate::Unlimited => u64::MAX,
        }
    }
}

#[test]
fn startup_ends_after_three_rounds_in_which_the_rate_does_not_grow_by_a_quarter() {
    let mut model = Model::new(true);
    for rate in [RATE, RATE * 5 / 4, RATE * 3 / 2, RATE * 3 / 2] {
        model.round(|sample| sample.rate = rate);
    }
    assert_eq!(model.bbr.state, State::Startup);
    model.round(|sample| sample.rate = RATE * 3 / 2);
    assert_eq!(model.bbr.state, State::Drain);
}

#[test]
fn rounds_that_the_server_limits_do_not_end_startup() {
    let mut model = Model::new(true);
    for _ in 0..20 {
        model.round(|sample| sample.is_limited = true);
    }
    assert_eq!(model.bbr.state, State::Startup);
    for _ in 0..20 {
        model.round(|sample| sample.rate = 0);
    }
    assert_eq!(model.bbr.state, State::Startup, "samples without a rate");
    // Nor do ACKs within a round.
    for _ in 0..20 {
        model.ack(|_| {});
    }
    assert_eq!(model.bbr.state, State::Startup);
}

/// Startup with a round of a recovery in which so many segments were lost, of `in_flight`.
fn lossy_startup(has_sack: bool, runs: u64, in_flight: u64) -> State {
    let mut model = Model::new(has_sack);
    model.round(|_| {});
    for run in 0..runs {
        model.lose((run + 1) * SEGMENT, in_flight);
    }
    model.bbr.on_loss();
    model.round(|sample| {
        sample.rate = 2 * RATE;
        sample.lost = runs * SEGMENT;
        sample.in_flight_at_send = in_flight;
    });
    model.bbr.state
}

#[test]
fn before_a_rate_is_known_losses_end_no_startup_and_the_initial_rate_stays() {
    let mut model = Model::new(false);
    let unknown = |sample: &mut RateSample| sample.rate = 0;
    model.round(unknown);
    let initial = model.rate();
    assert!(initial > 0);
    model.lose(SEGMENT, BDP);
    model.bbr.on_loss();
    model.round(|sample| {
        unknown(sample);
        sample.lost = SEGMENT;
    });
    assert_eq!(model.bbr.state, State::Startup);
    assert_eq!(model.rate(), initial);
}

#[test]
fn startup_ends_when_a_round_of_a_recovery_lost_more_than_2_percent_in_six_places() {
    assert_eq!(lossy_startup(true, 6, 299_000), State::Drain);
    assert_eq!(lossy_startup(true, 6, 300_000), State::Startup, "2 %");
    assert_eq!(lossy_startup(true, 5, 100_000), State::Startup, "5 places");
    assert_eq!(lossy_startup(false, 1, 300_000), State::Drain, "no SACK");
    assert_eq!(lossy_startup(false, 0, 300_000), State::Startup);
}

#[test]
fn losses_that_end_startup_bound_the_flight_by_what_was_delivered() {
    let mut model = Model::new(true);
    model.round(|_| {});
    for run in 0..6 {
        model.lose((run + 1) * SEGMENT, BDP);
    }
    model.bbr.on_loss();
    model.round(|sample| {
        sample.lost = 6 * SEGMENT;
        sample.in_flight_at_send = BDP;
        sample.delivered = 130_000;
    });
    assert_eq!(model.bbr.long_in_flight, 130_000, "more than the BDP");
}

#[test]
fn drain_ends_when_the_flight_is_the_bdp() {
    let mut model = Model::draining();
    model.ack(|sample| sample.in_flight = BDP + 1);
    assert_eq!(model.bbr.state, State::Drain);
    model.ack(|sample| sample.in_flight = BDP);
    assert_eq!(model.bbr.state, State::Cruise, "Down is over, too");
}

#[test]
fn drain_ends_after_three_rounds_in_any_case() {
    let mut model = Model::draining();
    for _ in 0..3 {
        model.round(|_| {});
        assert_eq!(model.bbr.state, State::Drain);
    }
    model.round(|_| {});
    assert_eq!(model.bbr.state, State::Down);
}

#[test]
fn down_ends_when_the_flight_is_the_bdp_and_leaves_headroom() {
    let mut model = Model::down();
    model.ack(|sample| sample.in_flight = BDP + 1);
    assert_eq!(model.bbr.state, State::Down);
    let mut bounded = Model::down();
    model.ack(|sample| sample.in_flight = BDP);
    assert_eq!(model.bbr.state, State::Cruise);
    bounded.bbr.long_in_flight = BDP;
    let within = |sample: &mut RateSample| sample.in_flight_at_send = 0;
    bounded.ack(|sample| {
        within(sample);
        sample.in_flight = 85_001;
    });
    assert_eq!(bounded.bbr.state, State::Down, "85 % of the bound");
    bounded.ack(|sample| {
        within(sample);
        sample.in_flight = 85_000;
    });
    assert_eq!(bounded.bbr.state, State::Cruise);
}

#[test]
fn the_next_probe_begins_two_to_three_seconds_after_the_last() {
    let mut waits = Vec::new();
    for seed in 0..100 {
        let start = Start {
            segment_bytes: 1000,
            has_sack: true,
            seed,
        };
        let mut model = Model::cruising();
        model.bbr.cycle = Bbr::new(start).cycle;
        model.bbr.enter_down(model.now);
        let began_at = model.now;
        for millis in 2000..=3000 {
            model.now = began_at + Duration::from_millis(millis);
            model.ack(|_| {});
            if model.bbr.state == State::Refill {
                waits.push(millis);
                break;
            }
        }
    }
    assert_eq!(waits.len(), 100);
    let (least, most) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
    assert!(*least < 2100 && *most > 2900, "{least} to {most}");
}

#[test]
fn a_probe_begins_after_as_many_rounds_as_reno_needs_but_63() {
    for (bdp_segments, rounds) in [(10, 10), (62, 62), (63, 63), (64, 63), (1000, 63)] {
        let mut model = Model::cruising();
        model.bbr.bandwidth = bdp_segments * SEGMENT * 10;
        model.bbr.window = 2 * bdp_segments * SEGMENT;
        let is_time = |model: &mut Model, rounds| {
            model.bbr.cycle.on_rounds(rounds);
            model.bbr.is_time_to_probe(model.now)
        };
        assert!(!is_time(&mut model, rounds - 1), "{bdp_segments}");
        assert!(is_time(&mut model, rounds), "{bdp_segments}");
    }
}

#[test]
fn refill_lasts_a_round_and_forgets_the_short_term_bounds() {
    let mut model = Model::cruising();
    model.bbr.short_bandwidth = RATE / 2;
    model.bbr.short_in_flight = BDP / 2;
    model.now += Duration::from_secs(3);
    model.ack(|_| {});
    assert_eq!(model.bbr.state, State::Refill);
    let bounds = (model.bbr.short_bandwidth, model.bbr.short_in_flight);
    assert_eq!(bounds, (UNBOUNDED, UNBOUNDED));
    model.ack(|_| {});
    assert_eq!(model.bbr.state, State::Refill);
    model.round(|_| {});
    assert_eq!(model.bbr.state, State::Up);
}

#[test]
fn a_probe_ends_when_the_rate_does_not_grow_for_three_rounds() {
    let mut model = Model::up();
    for _ in 0..2 {
        model.round(|_| {});
        assert_eq!(model.bbr.state, State::Up);
    }
    model.round(|_| {});
    assert_eq!(model.bbr.state, State::Down);
    let mut model = Model::up();
    for rate in [RATE * 5 / 4, RATE * 25 / 16, RATE * 2, RATE * 5 / 2] {
        model.round(|sample| sample.rate = rate);
    }
    assert_eq!(model.bbr.state, State::Up, "it grows by a quarter");
}

#[test]
fn a_probe_ends_when_more_than_2_percent_of_a_flight_are_lost() {
    let mut model = Model::up();
    model.lose(2 * SEGMENT, BDP);
    assert_eq!(model.bbr.state, State::Up, "2 %");
    assert_eq!(model.bbr.long_in_flight, UNBOUNDED);
    model.lose(3 * SEGMENT, BDP);
    assert_eq!(model.bbr.state, State::Down);
    // 99 000 in flight and 2000 lost before it: that was too much already.
    assert_eq!(model.bbr.long_in_flight, 99_000);
    model.lose(50 * SEGMENT, BDP / 2);
    assert_eq!(
        model.bbr.long_in_flight, 99_000,
        "one answer for each probe"
    );
}

#[test]
fn one_segment_of_a_small_flight_ends_no_probe_and_two_do() {
    let mut model = Model::up();
    model.lose(SEGMENT, 20 * SEGMENT);
    assert_eq!(model.bbr.state, State::Up, "5 %");
    model.lose(2 * SEGMENT, 20 * SEGMENT);
    assert_eq!(model.bbr.state, State::Down);
}

#[test]
fn the_bound_of_a_probe_is_seven_tenths_of_the_target_at_least() {
    for (in_flight, bound) in [(60_000, 70_000), (71_000, 70_000), (72_000, 71_000)] {
        let mut model = Model::up();
        model.lose(20 * SEGMENT, in_flight);
        assert_eq!(model.bbr.long_in_flight, bound, "{in_flight}");
    }
}

#[test]
fn losses_of_a_large_transmission_bound_the_flight_inside_it() {
    let mut model = Model::up();
    model.bbr.on_lost(&LostTransmission {
        now: model.now,
        range: StreamRange::new(StreamOffset(0), StreamOffset(50_000)),
        in_flight_at_send: 148_000,
        lost: 50_000,
        delivered_total: model.delivered,
        is_limited: false,
    });
    // x / (98 000 + x) = 2 %: 2000.
    assert_eq!(model.bbr.long_in_flight, 100_000);
}

#[test]
fn without_sack_any_loss_ends_a_probe() {
    let mut model = Model::up();
    model.bbr.on_sack_useless();
    model.lose(SEGMENT, 2 * BDP);
    assert_eq!(model.bbr.state, State::Down);
}

#[test]
fn the_probe_after_one_that_lost_stops_at_its_bound_and_the_next_does_not() {
    let mut model = Model::up();
    model.lose(20 * SEGMENT, BDP);
    let bound = model.bbr.long_in_flight;
    assert_eq!(bound, 99_000);
    let below = |sample: &mut RateSample| {
        sample.in_flight_at_send = 50_000;
        sample.in_flight = bound - 1;
    };
    // The feedback of the probe, then the next one.
    model.round(below);
    model.bbr.min_rtt.on_probed(model.now);
    model.now += Duration::from_secs(3);
    model.ack(below);
    assert_eq!(model.bbr.state, State::Refill);
    model.round(below);
    assert_eq!(model.bbr.state, State::Up);
    model.ack(below);
    assert_eq!(model.bbr.state, State::Up);
    model.ack(|sample| {
        below(sample);
        sample.in_flight = bound;
    });
    assert_eq!(model.bbr.state, State::Down, "it stops early");
    // Nothing was lost: it probes again at once.
    model.ack(below);
    assert!(model.bbr.state != State::Refill);
    model.round(below);
    assert_eq!(model.bbr.state, State::Refill);
    model.round(below);
    assert_eq!(model.bbr.state, State::Up);
    model.ack(|sample| {
        below(sample);
        sample.in_flight = bound;
    });
    assert_eq!(model.bbr.state, State::Up);
}

#[test]
fn a_probe_that_uses_its_window_up_raises_the_bound_by_1_2_4_segments_a_round() {
    let mut model = Model::refilling();
    model.bbr.long_in_flight = 40_000;
    model.bbr.window = 40_000;
    let mut bounds = Vec::new();
    for _ in 0..4 {
        // The first ACK begins a round; the first round of all begins the probe.
        let segments = model.bbr.window / SEGMENT;
        for number in 0..segments {
            let use_up = |sample: &mut RateSample| {
                sample.in_flight_at_send = 0;
                sample.in_flight = 40_000;
                sample.is_window_limited = true;
            };
            if number == 0 {
                model.round(use_up);
            } else {
                model.ack(use_up);
            }
        }
        bounds.push(model.bbr.long_in_flight / SEGMENT);
    }
    assert_eq!(model.bbr.state, State::Up, "the bound limits, not the path");
    // What is acknowledged while the first ACK of a round changes the slope counts for the next.
    assert_eq!(bounds, [40, 42, 46, 54]);
    // A window that is not used up says nothing.
    let mut model = Model::up();
    model.bbr.long_in_flight = 40_000;
    for _ in 0..40 {
        model.ack(|sample| sample.in_flight_at_send = 0);
    }
    assert_eq!(model.bbr.long_in_flight, 40_000);
}

#[test]
fn a_flight_without_losses_raises_the_bound_to_itself() {
    let mut model = Model::cruising();
    model.bbr.long_in_flight = 60_000;
    model.ack(|sample| {
        sample.in_flight_at_send = 80_000;
        sample.lost = 1601;
    });
    assert_eq!(model.bbr.long_in_flight, 60_000, "more than 2 % were lost");
    model.ack(|sample| {
        sample.in_flight_at_send = 80_000;
        sample.lost = 1600;
    });
    assert_eq!(model.bbr.long_in_flight, 80_000);
}

#[test]
fn a_round_with_losses_bounds_rate_and_volume_while_not_probing() {
    let mut model = Model::cruising();
    model.bbr.window = 150_000;
    model.lose(SEGMENT, BDP);
    model.round(|sample| {
        sample.rate = RATE / 10;
        sample.delivered = 40_000;
    });
    // The latest round had 1 MB/s and 100 000 bytes, more than seven tenths.
    assert_eq!(model.bbr.short_bandwidth, RATE);
    let volume = model.bbr.short_in_flight;
    assert!(
        (105_000..106_000).contains(&volume),
        "0.7 of cwnd: {volume}"
    );
    let slow = |sample: &mut RateSample| {
        sample.rate = RATE / 10;
        sample.delivered = 40_000;
    };
    model.lose(SEGMENT, BDP);
    model.round(slow);
    assert_eq!(model.bbr.short_bandwidth, RATE * 7 / 10);
    assert_eq!(model.bbr.bandwidth, RATE * 7 / 10);
    assert!(model.bbr.window <= model.bbr.short_in_flight);
    model.round(slow);
    assert_eq!(model.bbr.short_bandwidth, RATE * 7 / 10, "no loss");
}

#[test]
fn a_round_of_which_no_rate_is_known_bounds_nothing() {
    let mut model = Model::cruising();
    model.lose(SEGMENT, BDP);
    model.round(|sample| sample.rate = 0);
    let bound = model.bbr.short_bandwidth;
    assert_eq!(bound, RATE, "the round before had a rate");
    model.lose(SEGMENT, BDP);
    model.round(|sample| sample.rate = 0);
    assert_eq!(model.bbr.short_bandwidth, bound);
}

#[test]
fn a_round_with_losses_that_delivered_3_percent_less_than_a_bound_does_not_lower_it() {
    for (latest, expected) in [
        (1_010_000, 1_010_000),
        (1_000_000, 1_000_000),
        (970_000, 1_000_000),
        (960_300, 990_000),
        (679_000, 700_000),
        (600_000, 700_000),
    ] {
        assert_eq!(adapted(1_000_000, latest), expected, "{latest}");
    }
}

#[test]
fn losses_while_probing_do_not_bound_the_short_term() {
    for mut model in [Model::refilling(), Model::up()] {
        model.lose(SEGMENT, BDP);
        model.round(|_| {});
        assert_eq!(model.bbr.short_bandwidth, UNBOUNDED);
        assert_eq!(model.bbr.short_in_flight, UNBOUNDED);
    }
}

#[test]
fn probe_rtt_begins_after_five_seconds_without_a_lower_rtt() {
    let mut model = Model::cruising();
    let known_at = Instant::from_millis(1100);
    model.now = known_at + Duration::from_secs(5);
    model.ack(|_| {});
    assert!(model.bbr.state != State::ProbeRtt);
    model.now += Duration::from_nanos(1);
    model.ack(|_| {});
    assert_eq!(model.bbr.state, State::ProbeRtt);
    assert!(model.bbr.limits_itself());
    assert_eq!(model.bbr.window(), BDP / 2);
}

#[test]
fn probe_rtt_does_not_begin_after_an_idle_time() {
    let mut model = Model::cruising();
    model.now += Duration::from_secs(20);
    model.bbr.on_restart(model.now);
    model.ack(|_| {});
    assert!(model.bbr.state != State::ProbeRtt);
    assert!(!model.bbr.limits_itself());
}

/// ProbeRTT with the flight as small as it must be.
fn probing_rtt(mut model: Model) -> Model {
    model.now += Duration::from_secs(20);
    model.ack(|sample| sample.in_flight = BDP / 2 + 1);
    assert_eq!(model.bbr.state, State::ProbeRtt);
    assert_eq!(model.bbr.probe.done_at, None, "the flight is too large");
    model.ack(|sample| sample.in_flight = BDP / 2);
    assert!(model.bbr.probe.done_at.is_some());
    model
}

#[test]
fn probe_rtt_lasts_200_ms_and_a_round() {
    let mut model = probing_rtt(Model::cruising());
    let began_at = model.now;
    model.deliver(model.bbr.rounds.end, |_| {});
    model.now = began_at + Duration::from_millis(200);
    model.ack(|_| {});
    assert_eq!(model.bbr.state, State::ProbeRtt, "exactly 200 ms");
    model.now += Duration::from_nanos(1);
    model.ack(|_| {});
    assert_eq!(model.bbr.state, State::Cruise);
    assert!(model.bbr.window() > BDP, "cwnd is what it was before");
    // Without a round it goes on.
    let mut model = probing_rtt(Model::cruising());
    model.now += Duration::from_millis(300);
    model.ack(|_| {});
    assert_eq!(model.bbr.state, State::ProbeRtt);
    model.round(|_| {});
    assert_eq!(model.bbr.state, State::Cruise);
}

#[test]
fn probe_rtt_before_the_end_of_startup_leads_back_to_it() {
    let mut model = Model::new(true);
    model.round(|_| {});
    let mut model = probing_rtt(model);
    model.now += Duration::from_millis(300);
    model.round(|_| {});
    assert_eq!(model.bbr.state, State::Startup);
}

#[test]
fn probe_rtt_that_ended_while_idle_is_over_at_the_restart() {
    let mut model = probing_rtt(Model::cruising());
    model.now += Duration::from_millis(200);
    model.bbr.on_restart(model.now);
    assert_eq!(model.bbr.state, State::ProbeRtt, "exactly 200 ms");
    model.now += Duration::from_nanos(1);
    model.bbr.on_restart(model.now);
    assert_eq!(model.bbr.state, State::Cruise);
}

#[test]
fn after_an_idle_time_the_rate_is_the_bandwidth() {
    let mut model = Model::down();
    assert_eq!(model.rate(), RATE * 90 / 100 * 99 / 100);
    model.bbr.on_restart(model.now);
    assert_eq!(model.rate(), RATE * 99 / 100);
}

#[test]
fn the_pacing_rate_is_a_gain_of_the_bandwidth_less_1_percent() {
    let expect = |model: &Model, percent| {
        assert_eq!(model.rate(), RATE * percent / 100 * 99 / 100, "{percent}");
    };
    let mut model = Model::new(true);
    model.round(|_| {});
    expect(&model, 277);
    expect(&Model::draining(), 50);
    expect(&Model::down(), 90);
    expect(&Model::cruising(), 100);
    expect(&Model::refilling(), 100);
    expect(&Model::up(), 125);
    expect(&probing_rtt(Model::cruising()), 100);
}

#[test]
fn before_the_first_sample_the_rate_is_the_initial_window_each_round_trip() {
    let mut model = Model::new(true);
    // 10 segments in 100 ms, 2.77 times.
    assert_eq!(model.rate(), 277_000);
    model.round(|sample| sample.rate = 1000);
    assert_eq!(model.rate(), 277_000, "until Startup is over it only grows");
    model.round(|_| {});
    assert_eq!(model.rate(), RATE * 277 / 100 * 99 / 100);
}

#[test]
fn the_window_is_two_bdps_what_acks_aggregate_and_three_quanta() {
    // Each of two segments, the least.
    let quanta = 3 * 2 * SEGMENT;
    let mut model = Model::cruising();
    model.window_in_use();
    let aggregated = model.bbr.aggregation.bytes();
    assert!(aggregated >= SEGMENT);
    assert_eq!(model.bbr.window(), 2 * BDP + aggregated + quanta);
    let mut model = Model::up();
    model.window_in_use();
    let aggregated = model.bbr.aggregation.bytes();
    let two = 2 * SEGMENT;
    let product = BDP * 225 / 100;
    assert_eq!(model.bbr.window(), product + aggregated + quanta + two);
}

#[test]
fn the_window_grows_by_what_is_delivered_and_is_reduced_at_once() {
    let mut model = Model::cruising();
    model.bbr.window = 50_000;
    model.ack(|_| {});
    assert_eq!(model.bbr.window(), 51_000);
    model.bbr.window = 10 * BDP;
    model.ack(|_| {});
    assert!(model.bbr.window() < 3 * BDP);
}

#[test]
fn the_window_is_four_segments_at_least() {
    let mut model = Model::cruising();
    model.bbr.short_in_flight = 0;
    model.ack(|_| {});
    assert_eq!(model.bbr.window(), 4 * SEGMENT);
}

#[test]
fn the_budget_is_three_quanta_of_a_millisecond() {
    let mut model = Model::cruising();
    let mut budget = |rate| {
        model.bbr.pacing_rate = Some(rate);
        model.bbr.with_budget(0)
    };
    assert_eq!(budget(0), 6000, "quanta of two segments at least");
    assert_eq!(budget(2_000_000), 6000);
    assert_eq!(budget(2_001_000), 6003);
    assert_eq!(budget(65_536_000), 3 * 65_536);
    assert_eq!(budget(1_000_000_000), 3 * 65_536, "64 KiB at most");
}

#[test]
fn a_bound_leaves_headroom_in_cruise_and_none_in_a_probe() {
    let mut model = Model::cruising();
    model.bbr.long_in_flight = BDP;
    let within = |sample: &mut RateSample| sample.in_flight_at_send = 0;
    model.ack(within);
    assert_eq!(model.bbr.window(), 85_000);
    model.now += Duration::from_secs(3);
    for _ in 0..20 {
        model.ack(within);
    }
    assert_eq!(model.bbr.state, State::Refill);
    assert_eq!(model.bbr.window(), BDP);
}

#[test]
fn a_timeout_leaves_one_segment_until_everything_is_repaired() {
    let mut model = Model::cruising();
    model.bbr.window = 150_000;
    model.bbr.on_timeout();
    assert_eq!(model.bbr.window(), SEGMENT);
    model.ack(|_| {});
    assert_eq!(model.bbr.window(), 4 * SEGMENT);
    model.bbr.on_timeout_again();
    assert_eq!(model.bbr.window(), SEGMENT);
    model.bbr.on_timeout_repaired();
    assert_eq!(model.bbr.window(), 150_000);
}

#[test]
fn a_recovery_keeps_the_window() {
    let mut model = Model::cruising();
    model.bbr.window = 150_000;
    assert!(!model.bbr.reduces_by_rate());
    model.bbr.on_loss();
    assert_eq!(model.bbr.window(), 150_000);
    model.bbr.window = 20_000;
    model.bbr.on_recovered();
    assert_eq!(model.bbr.window(), 150_000);
}

/// A timeout whose losses turn out to be none.
fn undone(model: &mut Model) {
    let before: Snapshot = model.bbr.snapshot();
    model.bbr.on_timeout();
    for lost in 1..=20 {
        model.lose(lost * SEGMENT, BDP);
    }
    model.bbr.restore(before);
}

#[test]
fn an_undone_timeout_leads_back_to_the_probe_and_restores_the_bounds() {
    let mut model = Model::up();
    model.bbr.long_in_flight = 140_000;
    model.bbr.window = 140_000;
    undone(&mut model);
    assert_eq!(model.bbr.state, State::Refill);
    assert_eq!(model.bbr.long_in_flight, 140_000);
    assert_eq!(model.bbr.window(), 140_000);
    let mut model = Model::cruising();
    model.bbr.window = 140_000;
    undone(&mut model);
    assert_eq!(model.bbr.state, State::Cruise, "no probe was ended");
    assert_eq!(model.bbr.window(), 140_000);
}

#[test]
fn an_undone_timeout_leads_back_to_startup() {
    let mut model = Model::new(true);
    model.round(|_| {});
    let before = model.bbr.snapshot();
    model.bbr.on_timeout();
    for run in 1..=6 {
        model.lose(run * SEGMENT, BDP);
    }
    model.round(|sample| {
        sample.lost = 6 * SEGMENT;
        sample.in_flight_at_send = BDP;
    });
    assert_eq!(model.bbr.state, State::Drain);
    model.bbr.restore(before);
    assert_eq!(model.bbr.state, State::Startup);
    assert!(!model.bbr.full.is_reached);
}

#[test]
fn the_bandwidth_of_a_cycle_is_forgotten_two_cycles_later() {
    let mut model = Model::up();
    model.round(|sample| sample.rate = 2 * RATE);
    assert_eq!(model.bbr.bandwidth, 2 * RATE);
    for cycle in 0..2 {
        assert_eq!(model.bbr.bandwidth, 2 * RATE, "{cycle}");
        model.bbr.enter_down(model.now);
        assert_eq!(model.bbr.cycle.ack_phase, AckPhase::ProbeStopping);
        model.round(|_| {});
        assert_eq!(model.bbr.cycle.ack_phase, AckPhase::Init);
    }
    assert_eq!(model.bbr.bandwidth, RATE);
}
