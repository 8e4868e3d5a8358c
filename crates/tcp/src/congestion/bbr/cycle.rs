//! The cycle of ProbeBW (s4.3.3): Down, Cruise, Refill, Up; and the long-term bound of the volume in
//! flight, which probes raise.

use clock::{Duration, Instant};

use super::{Bbr, State, UNBOUNDED, percent_of};
use crate::delivery_rate::RateSample;

/// Headroom, percent of inflight_longterm that is left to others.
const HEADROOM_PERCENT: u64 = 15;
/// Time from one probe to the next: this, and up to [`PROBE_WAIT_RANDOM`] more.
const PROBE_WAIT_MIN: Duration = Duration::from_secs(2);
const PROBE_WAIT_RANDOM: Duration = Duration::from_secs(1);
/// A flow probes at least as often as Reno would fill a BDP of so many segments, in round trips.
const RENO_ROUNDS_MAX: u64 = 63;
/// Most doublings of the slope of inflight_longterm.
const SLOPE_DOUBLINGS_MAX: u32 = 30;

/// What ACKs say about the probe for bandwidth (BBR.ack_phase).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AckPhase {
    /// Nothing.
    Init,
    /// The path is being refilled.
    Refilling,
    /// The probe began; its first ACKs are not here yet.
    ProbeStarting,
    /// They are.
    ProbeFeedback,
    /// The probe is over; its last ACKs are still arriving.
    ProbeStopping,
}

/// The state of the cycle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cycle {
    pub(super) ack_phase: AckPhase,
    /// is_bw_probe_sample: what is lost now was sent while probing, and was not answered yet.
    pub(super) is_probe_sample: bool,
    /// prev_probe_too_high: the last probe lost more than the path permits.
    pub(super) is_last_too_high: bool,
    /// prev_probe_precautionary: the last probe stopped early, at inflight_longterm.
    is_last_precautionary: bool,
    /// cycle_stamp: when Down began.
    began_at: Instant,
    /// bw_probe_wait.
    wait: Duration,
    /// rounds_since_probe_up.
    rounds: u64,
    /// bw_probe_up_rounds.
    up_rounds: u32,
    /// bw_probe_up_acked, bytes.
    up_acked: u64,
    /// probe_up_acked_per_inc, bytes, or [`UNBOUNDED`].
    acked_per_segment: u64,
    /// State of the generator of random numbers.
    random: u64,
}

impl Cycle {
    pub(super) fn new(seed: u32) -> Self {
        Self {
            ack_phase: AckPhase::Init,
            is_probe_sample: false,
            is_last_too_high: false,
            is_last_precautionary: false,
            began_at: Instant::ZERO,
            wait: Duration::ZERO,
            rounds: 0,
            up_rounds: 0,
            up_acked: 0,
            acked_per_segment: UNBOUNDED,
            random: u64::from(seed) << 1 | 1,
        }
    }

    /// A round trip began.
    pub(super) const fn on_round(&mut self) {
        self.rounds += 1;
    }

    /// So many round trips began since the last probe.
    #[cfg(test)]
    pub(super) const fn on_rounds(&mut self, rounds: u64) {
        self.rounds = rounds;
    }

    /// PickProbeWait(): connections that share a path should not probe together. A linear
    /// congruential generator (Knuth's multiplier) is random enough for that; of its state the high
    /// bits are used.
    fn pick_wait(&mut self) {
        const MULTIPLIER: u64 = 6_364_136_223_846_793_005;
        self.random = self.random.wrapping_mul(MULTIPLIER).wrapping_add(1);
        let drawn = self.random >> 32;
        self.rounds = drawn & 1;
        let most = PROBE_WAIT_RANDOM.as_nanos();
        let extra = (u128::from(drawn) * most) >> 32;
        self.wait = PROBE_WAIT_MIN + Duration::from_nanos(u64::try_from(extra).unwrap_or(0));
    }
}

impl Bbr {
    /// StartProbeBW_DOWN(): a cycle begins.
    pub(super) fn enter_down(&mut self, now: Instant) {
        self.losses.reset();
        self.cycle.acked_per_segment = UNBOUNDED;
        self.cycle.pick_wait();
        self.cycle.began_at = now;
        self.cycle.ack_phase = AckPhase::ProbeStopping;
        self.start_round();
        self.state = State::Down;
    }

    /// StartProbeBW_REFILL().
    pub(super) fn enter_refill(&mut self) {
        self.reset_short_term();
        self.cycle.up_rounds = 0;
        self.cycle.up_acked = 0;
        self.cycle.is_last_precautionary = false;
        self.cycle.ack_phase = AckPhase::Refilling;
        self.start_round();
        self.state = State::Refill;
    }

    /// StartProbeBW_UP().
    fn enter_up(&mut self, rate: u64) {
        self.cycle.ack_phase = AckPhase::ProbeStarting;
        self.start_round();
        self.full.reset(rate);
        self.state = State::Up;
        self.raise_slope();
    }

    /// UpdateProbeBWCyclePhase().
    pub(super) fn update_cycle(&mut self, sample: &RateSample) {
        if !self.full.is_reached || self.adapt_long_term(sample) {
            return;
        }
        match self.state {
            State::Down => {
                if self.is_time_to_probe(sample.now) {
                    self.enter_refill();
                } else if self.is_time_to_cruise(sample.in_flight) {
                    self.state = State::Cruise;
                }
            }
            State::Cruise => {
                if self.is_time_to_probe(sample.now) {
                    self.enter_refill();
                }
            }
            State::Refill => {
                if self.rounds.is_start {
                    self.cycle.is_probe_sample = true;
                    self.enter_up(sample.rate);
                }
            }
            State::Up => {
                if self.is_time_to_go_down(sample) {
                    self.cycle.is_last_too_high = false;
                    self.enter_down(sample.now);
                }
            }
            State::Startup | State::Drain | State::ProbeRtt => {}
        }
    }

    /// IsTimeToProbeBW().
    pub(super) fn is_time_to_probe(&self, now: Instant) -> bool {
        let segments = self.target_bytes() / self.segment_bytes.max(1);
        now > self.cycle.began_at + self.cycle.wait
            || self.cycle.rounds >= segments.min(RENO_ROUNDS_MAX)
    }

    /// IsTimeToCruise(): the queue is empty, and there is headroom.
    fn is_time_to_cruise(&self, in_flight: u64) -> bool {
        let known = self.max_bandwidth.bytes_per_second();
        in_flight <= self.in_flight_with_headroom() && in_flight <= self.fill_bytes(known)
    }

    /// IsTimeToGoDown().
    fn is_time_to_go_down(&mut self, sample: &RateSample) -> bool {
        if self.cycle.is_last_too_high && sample.in_flight >= self.long_in_flight {
            self.cycle.is_last_precautionary = true;
            return true;
        }
        if self.is_window_limited() && self.window >= self.long_in_flight {
            // The bound limits the bandwidth, not the path.
            self.full.reset(sample.rate);
            return false;
        }
        self.full.is_now
    }

    /// InflightWithHeadroom().
    pub(super) fn in_flight_with_headroom(&self) -> u64 {
        if self.long_in_flight == UNBOUNDED {
            return UNBOUNDED;
        }
        let headroom = percent_of(self.long_in_flight, HEADROOM_PERCENT).max(self.segment_bytes);
        self.long_in_flight
            .saturating_sub(headroom)
            .max(self.pipe_min())
    }

    /// RaiseInflightLongtermSlope(): one segment in the first round of a probe, then 2, 4, 8.
    fn raise_slope(&mut self) {
        let growth = 1u64 << self.cycle.up_rounds;
        self.cycle.up_rounds = (self.cycle.up_rounds + 1).min(SLOPE_DOUBLINGS_MAX);
        self.cycle.acked_per_segment = (self.window / growth).max(self.segment_bytes);
    }

    /// ProbeInflightLongtermUpward().
    fn probe_upward(&mut self, sample: &RateSample) {
        if !self.is_window_limited() || self.window < self.long_in_flight {
            return;
        }
        self.cycle.up_acked = self.cycle.up_acked.saturating_add(sample.newly_delivered);
        let segments = self.cycle.up_acked / self.cycle.acked_per_segment;
        self.cycle.up_acked %= self.cycle.acked_per_segment;
        let grown = segments.saturating_mul(self.segment_bytes);
        self.long_in_flight = self.long_in_flight.saturating_add(grown);
        if self.rounds.is_start {
            self.raise_slope();
        }
    }

    /// AdaptLongTermModel(). Returns whether it has changed the state.
    fn adapt_long_term(&mut self, sample: &RateSample) -> bool {
        if self.rounds.is_start {
            match self.cycle.ack_phase {
                AckPhase::ProbeStarting => self.cycle.ack_phase = AckPhase::ProbeFeedback,
                AckPhase::ProbeStopping => {
                    if self.end_feedback(sample) {
                        return true;
                    }
                }
                AckPhase::Init | AckPhase::Refilling | AckPhase::ProbeFeedback => {}
            }
        }
        if self.long_in_flight == UNBOUNDED
            || self.is_too_high(sample.lost, sample.in_flight_at_send)
        {
            return false;
        }
        self.long_in_flight = self.long_in_flight.max(sample.in_flight_at_send);
        if self.state == State::Up {
            self.probe_upward(sample);
        }
        false
    }

    /// The last ACK of a probe has arrived. After a probe that stopped early without losses, the
    /// next begins at once, and does not stop early.
    fn end_feedback(&mut self, sample: &RateSample) -> bool {
        self.cycle.is_probe_sample = false;
        self.cycle.ack_phase = AckPhase::Init;
        if !self.state.is_probe_bw() {
            return false;
        }
        if !sample.is_limited {
            self.max_bandwidth.on_cycle_end();
        }
        let is_next = self.cycle.is_last_precautionary && !self.cycle.is_last_too_high;
        if is_next {
            self.enter_refill();
        }
        is_next
    }
}
