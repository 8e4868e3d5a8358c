//! BBR version 3 (draft-ietf-ccwg-bbr): a model of the path decides how fast to send and how much may
//! be in the network. Losses bound the model; they do not reduce the window by themselves.
//!
//! Reading first: the draft's s4.3 (states) and s4.5, s4.6 (model and control). Names in comments are
//! those of its pseudocode. The model is the greatest delivery rate of two probing cycles (max_bw) and
//! the least RTT of ten seconds (min_rtt); their product is the BDP. A loss rate above 2 % while the
//! flow probes bounds the volume in flight for long (inflight_longterm), a loss at other times bounds
//! rate and volume until the next probe (bw_shortterm, inflight_shortterm).
//!
//! ```text
//!   Startup -> Drain -> Down -> Cruise -> Refill -> Up -> Down ...
//!   any state -> ProbeRtt (no lower RTT for 5 s) -> Cruise, or Startup if it was not over
//! ```
//!
//! This file has the controller, what is computed of the model, and Startup, Drain and ProbeRTT;
//! [`cycle`] has the cycle of ProbeBW, [`losses`] the answers to losses, [`filters`] what is
//! remembered of samples. It refuses ECN, which the product does not negotiate. Bounded by
//! [`WINDOW_BYTES_MAX`].

mod cycle;
mod filters;
mod losses;

use clock::{Duration, Instant};

use super::window::initial_window_bytes;
use super::{AckEvent, Controller, Snapshot, Start, WINDOW_BYTES_MAX};
use crate::delivery_rate::{LostTransmission, RateSample};
use crate::pacing::PacingRate;
use cycle::{AckPhase, Cycle};
use filters::{Aggregation, FullBandwidth, MaxBandwidth, MinRtt};
use losses::{LossRound, UndoState};

/// StartupPacingGain, percent: the least that doubles the rate each round, 4 ln 2.
const STARTUP_PACING_PERCENT: u64 = 277;
/// DrainPacingGain, percent.
const DRAIN_PACING_PERCENT: u64 = 50;
/// Pacing gains of Down and Up, percent.
const DOWN_PACING_PERCENT: u64 = 90;
const UP_PACING_PERCENT: u64 = 125;
/// DefaultCwndGain, percent.
const WINDOW_PERCENT: u64 = 200;
/// cwnd_gain of Up, percent.
const UP_WINDOW_PERCENT: u64 = 225;
/// ProbeRTTCwndGain, percent.
const PROBE_RTT_WINDOW_PERCENT: u64 = 50;
/// Less PacingMarginPercent: the rate is 1 % below the bandwidth, so that a queue drains.
const PACING_MARGIN_PERCENT: u64 = 99;
/// ProbeRTTDuration.
const PROBE_RTT_DURATION: Duration = Duration::from_millis(200);
/// MinPipeCwnd, segments: two for each end, because a receiver may acknowledge every second one.
const PIPE_SEGMENTS_MIN: u64 = 4;
/// Rounds after which Drain ends in any case.
const DRAIN_ROUNDS_MAX: u64 = 3;
/// Bounds of the send quantum: time at the pacing rate, segments, bytes.
const QUANTUM_TIME: Duration = Duration::from_millis(1);
const QUANTUM_SEGMENTS_MIN: u64 = 2;
const QUANTUM_BYTES_MAX: u64 = 64 << 10;
/// Quanta that are needed for full throughput: being sent, being cut into packets, being
/// acknowledged.
const OFFLOAD_QUANTA: u64 = 3;
/// Neither losses nor anything else bounds it.
const UNBOUNDED: u64 = u64::MAX;

/// The states of the draft's s4.1; those of ProbeBW are states of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Doubles the rate each round until it does not help any more.
    Startup,
    /// Empties the queue that Startup made.
    Drain,
    /// ProbeBW_DOWN: a little slower than the path, until the queue is empty.
    Down,
    /// ProbeBW_CRUISE: as fast as the path.
    Cruise,
    /// ProbeBW_REFILL: one round without the short-term bounds, to fill the path.
    Refill,
    /// ProbeBW_UP: faster than the path, to see whether there is more.
    Up,
    /// Half of the BDP in flight for a short time, to measure the RTT without a queue.
    ProbeRtt,
}

impl State {
    const fn is_probe_bw(self) -> bool {
        matches!(self, Self::Down | Self::Cruise | Self::Refill | Self::Up)
    }

    /// IsProbingBW(): losses do not bound the short-term model.
    const fn is_probing(self) -> bool {
        matches!(self, Self::Startup | Self::Refill | Self::Up)
    }

    const fn pacing_percent(self) -> u64 {
        match self {
            Self::Startup => STARTUP_PACING_PERCENT,
            Self::Drain => DRAIN_PACING_PERCENT,
            Self::Down => DOWN_PACING_PERCENT,
            Self::Cruise | Self::Refill | Self::ProbeRtt => 100,
            Self::Up => UP_PACING_PERCENT,
        }
    }

    const fn window_percent(self) -> u64 {
        match self {
            Self::Up => UP_WINDOW_PERCENT,
            Self::ProbeRtt => PROBE_RTT_WINDOW_PERCENT,
            _ => WINDOW_PERCENT,
        }
    }
}

/// Packet-timed round trips (s4.5.1): a round ends when something is delivered that was sent after
/// the round began.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Rounds {
    /// next_round_delivered.
    end: u64,
    /// round_count.
    count: u64,
    /// round_start: the present ACK began a round.
    is_start: bool,
}

/// How a ProbeRTT stands.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct RttProbe {
    /// probe_rtt_done_stamp: not before this it ends; `None` until the flight is small enough.
    done_at: Option<Instant>,
    /// probe_rtt_round_done.
    is_round_done: bool,
}

/// Whether the window was used up lately (C.is_cwnd_limited): in this round or in the last one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct WindowUse {
    is_limit_now: bool,
    was_limit: bool,
}

/// The controller of one connection.
#[derive(Clone, Debug)]
pub struct Bbr {
    segment_bytes: u64,
    /// Both sides agreed on SACK, and it is of use; without it a round shows one loss at most.
    has_sack: bool,
    state: State,
    /// C.cwnd, bytes.
    window: u64,
    /// prior_cwnd: the last window that neither a recovery nor ProbeRTT reduced, bytes.
    prior_window: u64,
    /// A fast recovery, or one after a timeout, is under way.
    is_recovering: bool,
    /// C.pacing_rate, bytes a second; `None` before the first sample.
    pacing_rate: Option<u64>,
    /// BBR.bw, bytes a second.
    bandwidth: u64,
    max_bandwidth: MaxBandwidth,
    /// bw_shortterm, bytes a second, or [`UNBOUNDED`].
    short_bandwidth: u64,
    /// inflight_shortterm, bytes, or [`UNBOUNDED`].
    short_in_flight: u64,
    /// inflight_longterm, bytes, or [`UNBOUNDED`].
    long_in_flight: u64,
    min_rtt: MinRtt,
    aggregation: Aggregation,
    full: FullBandwidth,
    rounds: Rounds,
    /// C.delivered, bytes.
    delivered: u64,
    window_use: WindowUse,
    losses: LossRound,
    undo: UndoState,
    cycle: Cycle,
    probe: RttProbe,
    /// drain_start_round.
    drain_round: u64,
    /// idle_restart: no ProbeRTT is needed, because the path was empty.
    is_restarted: bool,
}

/// `percent` of `value`.
fn percent_of(value: u64, percent: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(percent) / 100;
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// Bytes that `rate` (bytes a second) delivers in this time.
fn volume(rate: u64, time: Duration) -> u64 {
    let bytes = u128::from(rate) * time.as_nanos() / 1_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

impl Bbr {
    /// A controller with the initial window of RFC 6928. The seed makes connections probe at
    /// different times.
    pub(super) fn new(start: Start) -> Self {
        let Start {
            segment_bytes,
            has_sack,
            seed,
        } = start;
        let segment_bytes = u64::from(segment_bytes);
        Self {
            segment_bytes,
            has_sack,
            state: State::Startup,
            window: initial_window_bytes(segment_bytes),
            prior_window: 0,
            is_recovering: false,
            pacing_rate: None,
            bandwidth: 0,
            max_bandwidth: MaxBandwidth::default(),
            short_bandwidth: UNBOUNDED,
            short_in_flight: UNBOUNDED,
            long_in_flight: UNBOUNDED,
            min_rtt: MinRtt::default(),
            aggregation: Aggregation::default(),
            full: FullBandwidth::default(),
            rounds: Rounds::default(),
            delivered: 0,
            window_use: WindowUse::default(),
            losses: LossRound::default(),
            undo: UndoState::default(),
            cycle: Cycle::new(seed),
            probe: RttProbe::default(),
            drain_round: 0,
            is_restarted: false,
        }
    }

    #[cfg(test)]
    pub(super) fn state_and_bandwidth(&self) -> (String, u64) {
        (format!("{:?}", self.state), self.bandwidth)
    }

    /// Sets cwnd as if the path had led to it.
    #[cfg(any(test, feature = "canaries"))]
    pub(super) const fn force_window(&mut self, bytes: u64) {
        self.window = bytes;
    }

    /// StartRound().
    const fn start_round(&mut self) {
        self.rounds.end = self.delivered;
    }

    /// UpdateRound().
    fn update_round(&mut self, sample: &RateSample) {
        self.rounds.is_start = sample.prior_delivered >= self.rounds.end;
        if self.rounds.is_start {
            self.start_round();
            self.rounds.count += 1;
            self.cycle.on_round();
            self.window_use.was_limit = self.window_use.is_limit_now;
            self.window_use.is_limit_now = false;
        }
        self.window_use.is_limit_now |= sample.is_window_limited;
    }

    const fn is_window_limited(&self) -> bool {
        self.window_use.is_limit_now || self.window_use.was_limit
    }

    /// BDPMultiple() of a bandwidth.
    fn product(&self, bandwidth: u64, percent: u64) -> u64 {
        match self.min_rtt.least() {
            None => initial_window_bytes(self.segment_bytes),
            Some(rtt) => percent_of(volume(bandwidth, rtt), percent),
        }
    }

    /// MinPipeCwnd, bytes.
    const fn pipe_min(&self) -> u64 {
        PIPE_SEGMENTS_MIN * self.segment_bytes
    }

    /// OffloadBudget(): what host and receiver need to work with large segments.
    fn offload_budget(&self) -> u64 {
        let quantum = volume(self.pacing_rate.unwrap_or(0), QUANTUM_TIME)
            .min(QUANTUM_BYTES_MAX)
            .max(QUANTUM_SEGMENTS_MIN * self.segment_bytes);
        OFFLOAD_QUANTA * quantum
    }

    /// QuantizationBudget().
    fn with_budget(&self, bytes: u64) -> u64 {
        let bytes = bytes.max(self.offload_budget()).max(self.pipe_min());
        match self.state {
            State::Up => bytes + 2 * self.segment_bytes,
            _ => bytes,
        }
    }

    /// Inflight(1.0) of a bandwidth: what fills the path and no queue.
    fn fill_bytes(&self, bandwidth: u64) -> u64 {
        self.with_budget(self.product(bandwidth, 100))
    }

    /// TargetInflight(): the BDP, unless congestion has reduced cwnd.
    fn target_bytes(&self) -> u64 {
        self.product(self.bandwidth, 100).min(self.window)
    }

    /// ProbeRTTCwnd().
    fn probe_rtt_window(&self) -> u64 {
        self.product(self.bandwidth, PROBE_RTT_WINDOW_PERCENT)
            .max(self.pipe_min())
    }

    /// SaveCwnd().
    fn save_window(&mut self) {
        self.prior_window = if self.is_recovering || self.state == State::ProbeRtt {
            self.prior_window.max(self.window)
        } else {
            self.window
        };
    }

    /// RestoreCwnd().
    fn restore_window(&mut self) {
        self.window = self.window.max(self.prior_window);
    }

    fn enter_startup(&mut self) {
        self.state = State::Startup;
    }

    /// CheckStartupDone().
    fn check_startup_done(&mut self, sample: &RateSample) {
        self.check_startup_losses(sample);
        if self.state == State::Startup && self.full.is_reached {
            self.state = State::Drain;
            self.drain_round = self.rounds.count;
        }
    }

    /// CheckDrainDone().
    fn check_drain_done(&mut self, sample: &RateSample) {
        if self.state != State::Drain {
            return;
        }
        let is_late = self.rounds.count > self.drain_round + DRAIN_ROUNDS_MAX;
        if sample.in_flight <= self.fill_bytes(self.bandwidth) || is_late {
            self.enter_down(sample.now);
        }
    }

    /// CheckFullBWReached().
    fn check_full(&mut self, sample: &RateSample) {
        if self.rounds.is_start && !sample.is_limited && sample.rate > 0 {
            self.full.on_round(sample.rate);
        }
    }

    /// CheckProbeRTT().
    fn check_probe_rtt(&mut self, sample: &RateSample) {
        if self.state != State::ProbeRtt && self.min_rtt.is_expired() && !self.is_restarted {
            self.save_window();
            self.state = State::ProbeRtt;
            self.probe = RttProbe::default();
            self.cycle.ack_phase = AckPhase::ProbeStopping;
            self.start_round();
        }
        if self.state == State::ProbeRtt {
            self.continue_probe_rtt(sample);
        }
        self.is_restarted = false;
    }

    /// HandleProbeRTT().
    fn continue_probe_rtt(&mut self, sample: &RateSample) {
        if self.probe.done_at.is_none() {
            if sample.in_flight <= self.probe_rtt_window() {
                self.probe.done_at = Some(sample.now + PROBE_RTT_DURATION);
                self.probe.is_round_done = false;
                self.start_round();
            }
            return;
        }
        self.probe.is_round_done |= self.rounds.is_start;
        if self.probe.is_round_done {
            self.check_probe_rtt_done(sample.now);
        }
    }

    /// CheckProbeRTTDone() and ExitProbeRTT().
    fn check_probe_rtt_done(&mut self, now: Instant) {
        if self.probe.done_at.is_none_or(|done_at| now <= done_at) {
            return;
        }
        self.min_rtt.on_probed(now);
        self.restore_window();
        self.reset_short_term();
        if self.full.is_reached {
            self.enter_down(now);
            self.state = State::Cruise;
        } else {
            self.enter_startup();
        }
    }

    /// SetPacingRateWithGain(). Until Startup is over the rate only grows; before a bandwidth is known it stays.
    fn set_pacing_rate(&mut self, percent: u64) {
        if self.bandwidth == 0 {
            return;
        }
        let rate = percent_of(percent_of(self.bandwidth, percent), PACING_MARGIN_PERCENT);
        let is_more = self.pacing_rate.is_none_or(|present| rate > present);
        if self.full.is_reached || is_more {
            self.pacing_rate = Some(rate);
        }
    }

    /// InitPacingRate(): the initial window in a round trip, with Startup's gain.
    fn initial_rate(&self, rtt: Duration) -> PacingRate {
        let window = initial_window_bytes(self.segment_bytes);
        PacingRate::of(percent_of(window, STARTUP_PACING_PERCENT), rtt)
    }

    /// SetCwnd(). The offload budget is added, as in version 1; in the draft it is the least. Where frames are up to ten of the
    /// least RTTs late, the BDP of that RTT holds the rate down: without the addition it was 27 % of the path's, with it 75.
    fn set_window(&mut self, sample: &RateSample) {
        let product = self.product(self.bandwidth, self.state.window_percent());
        let beside = self.aggregation.bytes() + self.offload_budget();
        let most = self.with_budget(product.saturating_add(beside));
        let grown = self.window.saturating_add(sample.newly_delivered);
        if self.full.is_reached {
            self.window = grown.min(most);
        } else if self.window < most || self.delivered < initial_window_bytes(self.segment_bytes) {
            self.window = grown;
        }
        self.window = self.window.max(self.pipe_min());
        if self.state == State::ProbeRtt {
            self.window = self.window.min(self.probe_rtt_window());
        }
        self.bound_window();
    }

    /// BoundCwndForModel().
    fn bound_window(&mut self) {
        let long = match self.state {
            State::Down | State::Refill | State::Up => self.long_in_flight,
            State::Cruise | State::ProbeRtt => self.in_flight_with_headroom(),
            State::Startup | State::Drain => UNBOUNDED,
        };
        let most = long.min(self.short_in_flight).max(self.pipe_min());
        self.window = self.window.min(most).min(WINDOW_BYTES_MAX);
    }
}

impl Controller for Bbr {
    fn window(&self) -> u64 {
        self.window.clamp(self.segment_bytes, WINDOW_BYTES_MAX)
    }

    /// There is none.
    fn threshold(&self) -> u64 {
        u64::MAX
    }

    fn reduces_by_rate(&self) -> bool {
        false
    }

    fn needs_samples(&self) -> bool {
        true
    }

    fn limits_itself(&self) -> bool {
        self.state == State::ProbeRtt
    }

    fn pacing_rate(&self, rtt: Duration) -> PacingRate {
        self.pacing_rate
            .map_or_else(|| self.initial_rate(rtt), PacingRate::limited)
    }

    fn on_ack(&mut self, _: &AckEvent) {}

    /// UpdateModelAndState() and UpdateControlParameters().
    fn on_sample(&mut self, sample: &RateSample) {
        self.delivered = sample.delivered_total;
        if self.pacing_rate.is_none()
            && let Some(rtt) = sample.rtt
            && let PacingRate::Limited(rate) = self.initial_rate(rtt)
        {
            self.pacing_rate = Some(rate);
        }
        self.update_latest(sample);
        self.update_round(sample);
        self.max_bandwidth.on_sample(sample.rate, sample.is_limited);
        self.adapt_short_term();
        self.aggregation.on_ack(
            sample.now,
            sample.newly_delivered,
            self.bandwidth,
            self.window,
            (self.rounds.count, self.full.is_reached),
        );
        self.check_full(sample);
        self.check_startup_done(sample);
        self.check_drain_done(sample);
        self.update_cycle(sample);
        self.min_rtt.on_ack(sample.now, sample.rtt);
        self.check_probe_rtt(sample);
        self.advance_latest(sample);
        let known = self.max_bandwidth.bytes_per_second();
        self.bandwidth = known.min(self.short_bandwidth);
        self.set_pacing_rate(self.state.pacing_percent());
        self.set_window(sample);
    }

    fn on_lost(&mut self, lost: &LostTransmission) {
        self.handle_lost(lost);
    }

    fn on_sack_useless(&mut self) {
        self.has_sack = false;
    }

    /// HandleRestartFromIdle().
    fn on_restart(&mut self, now: Instant) {
        self.is_restarted = true;
        self.aggregation.on_restart(now);
        if self.state.is_probe_bw() {
            self.set_pacing_rate(100);
        } else if self.state == State::ProbeRtt {
            self.check_probe_rtt_done(now);
        }
    }

    /// OnEnterFastRecovery().
    fn on_loss(&mut self) {
        self.note_loss();
        self.is_recovering = true;
    }

    fn on_recovered(&mut self) {
        self.is_recovering = false;
        self.undo.is_saved = false;
        self.restore_window();
    }

    /// OnEnterRTO(): one segment, as nothing is in flight.
    fn on_timeout(&mut self) {
        self.save_state();
        self.is_recovering = true;
        self.window = self.segment_bytes;
    }

    fn on_timeout_again(&mut self) {
        self.save_window();
        self.is_recovering = true;
        self.window = self.segment_bytes;
    }

    fn on_timeout_genuine(&mut self) {}

    fn on_timeout_repaired(&mut self) {
        self.on_recovered();
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            window: self.window,
            threshold: u64::MAX,
            window_max: 0,
        }
    }

    /// HandleSpuriousLossDetection(); it keeps itself what it needs.
    fn restore(&mut self, before: Snapshot) {
        self.is_recovering = false;
        self.undo.is_saved = false;
        self.window = self.window.max(before.window);
        self.undo_losses();
    }

    fn on_application_limited(&mut self) {}

    fn on_idle(&mut self, _: u64) {}

    fn on_segment_bytes(&mut self, segment_bytes: u16) {
        self.segment_bytes = u64::from(segment_bytes);
    }
}

#[cfg(test)]
mod tests;
