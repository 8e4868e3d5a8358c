//! What losses do to the model (s4.5.10), and what undoes it when they turn out not to have been any
//! (s4.5.11).

use super::{Bbr, PACING_MARGIN_PERCENT, State, UNBOUNDED, percent_of};
use crate::delivery_rate::{LostTransmission, RateSample};
use crate::stream::StreamOffset;

/// LossThresh, percent: most losses of a flight that a probe may cause.
const LOSS_PERCENT: u64 = 2;
/// ... and most segments. Of a flight of less than fifty each one is more than [`LOSS_PERCENT`]: the draft, which has no such
/// number, ends each probe of a short path at its first loss (docs/develop/decisions/0018-bbr.md).
const LOSS_SEGMENTS: u64 = 1;
/// Beta, percent: what a bound is reduced to at most, as CUBIC's window.
const BETA_PERCENT: u64 = 70;
/// A round in which so much less was delivered than a short-term bound permits does not lower it: what is sent is
/// PacingMarginPercent less than the bandwidth, and of that [`LOSS_PERCENT`] may be lost. The draft has no such margin. Without
/// it the bounds fall in each round of a path that loses one packet in a hundred (docs/develop/decisions/0018-bbr.md).
const SHORT_TERM_MARGIN_PERCENT: u64 = 100 - PACING_MARGIN_PERCENT + LOSS_PERCENT;
/// StartupFullLossCnt: losses apart from each other in a round that may end Startup.
const STARTUP_LOSSES: u32 = 6;

/// The present round of losses and deliveries.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct LossRound {
    /// loss_round_delivered: the round ends when something sent after it is delivered.
    end: u64,
    /// loss_round_start: the present ACK ended a round.
    is_start: bool,
    /// is_loss_in_round.
    is_lossy: bool,
    /// bw_latest: the greatest rate of the round, bytes a second.
    rate: u64,
    /// inflight_latest: the greatest volume that was delivered in it, bytes.
    delivered: u64,
    /// Losses in it that are not adjacent.
    runs: u32,
    /// Where the last one ended.
    run_end: StreamOffset,
}

impl LossRound {
    /// ResetCongestionSignals().
    pub(super) const fn reset(&mut self) {
        self.is_lossy = false;
        self.rate = 0;
        self.delivered = 0;
    }
}

/// A probe that losses have ended.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum EndedProbe {
    #[default]
    None,
    Startup,
    Up,
}

/// What the model was before losses (undo_*).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct UndoState {
    /// A recovery is under way, and this is the state before it.
    pub(super) is_saved: bool,
    ended: EndedProbe,
    short_bandwidth: u64,
    short_in_flight: u64,
    long_in_flight: u64,
}

impl Bbr {
    /// IsInflightTooHigh(): more was lost of a flight than a probe may lose.
    pub(super) fn is_too_high(&self, lost: u64, in_flight: u64) -> bool {
        let is_more = u128::from(lost) * 100 > u128::from(in_flight) * u128::from(LOSS_PERCENT);
        let is_sure = lost > LOSS_SEGMENTS * self.segment_bytes;
        is_more && is_sure || (lost > 0 && !self.has_sack)
    }

    /// NoteLoss().
    pub(super) fn note_loss(&mut self) {
        if !self.losses.is_lossy {
            self.losses.end = self.delivered;
        }
        self.losses.is_lossy = true;
        if !self.undo.is_saved {
            self.save_state();
        }
    }

    /// SaveStateUponLoss(), once for each recovery. The draft saves with the first loss of each round;
    /// but the loss that ends a probe begins a round, and the next one of the same ACK would overwrite
    /// what is to be restored.
    pub(super) fn save_state(&mut self) {
        self.save_window();
        self.undo = UndoState {
            is_saved: true,
            ended: EndedProbe::None,
            short_bandwidth: self.short_bandwidth,
            short_in_flight: self.short_in_flight,
            long_in_flight: self.long_in_flight,
        };
    }

    /// HandleLostPacket().
    pub(super) fn handle_lost(&mut self, lost: &LostTransmission) {
        self.delivered = lost.delivered_total;
        self.note_loss();
        if self.losses.runs == 0 || lost.range.start != self.losses.run_end {
            self.losses.runs += 1;
        }
        self.losses.run_end = lost.range.end;
        if self.cycle.is_probe_sample && self.is_too_high(lost.lost, lost.in_flight_at_send) {
            self.handle_too_high(lost);
        }
    }

    /// HandleInflightTooHigh(), with what was in flight when losses became too many.
    fn handle_too_high(&mut self, lost: &LostTransmission) {
        self.cycle.is_last_too_high = true;
        // One answer for each probe.
        self.cycle.is_probe_sample = false;
        if !lost.is_limited {
            let least = percent_of(self.target_bytes(), BETA_PERCENT);
            self.long_in_flight = in_flight_at_loss(lost).max(least);
        }
        if self.state == State::Up {
            self.undo.ended = EndedProbe::Up;
            self.enter_down(lost.now);
        }
    }

    /// CheckStartupHighLoss(). With SACK a round of a recovery must have lost more than
    /// [`LOSS_PERCENT`], in [`STARTUP_LOSSES`] places; without SACK any loss counts. Before a rate is known there is none to go
    /// on with.
    pub(super) fn check_startup_losses(&mut self, sample: &RateSample) {
        let is_high = self.losses.is_start
            && self.is_recovering
            && self.is_too_high(sample.lost, sample.in_flight_at_send)
            && (self.losses.runs >= STARTUP_LOSSES || !self.has_sack);
        if self.losses.is_start {
            self.losses.runs = 0;
        }
        let is_rate_known = self.max_bandwidth.bytes_per_second() > 0;
        if self.full.is_reached || !is_high || !is_rate_known {
            return;
        }
        self.undo.ended = EndedProbe::Startup;
        self.full.is_reached = true;
        let product = self.product(self.bandwidth, 100);
        self.long_in_flight = product.max(self.losses.delivered);
    }

    /// UpdateLatestDeliverySignals().
    pub(super) fn update_latest(&mut self, sample: &RateSample) {
        let losses = &mut self.losses;
        losses.rate = losses.rate.max(sample.rate);
        losses.delivered = losses.delivered.max(sample.delivered);
        losses.is_start = sample.prior_delivered >= losses.end;
        if losses.is_start {
            losses.end = sample.delivered_total;
        }
    }

    /// AdvanceLatestDeliverySignals().
    pub(super) const fn advance_latest(&mut self, sample: &RateSample) {
        if self.losses.is_start {
            self.losses.rate = sample.rate;
            self.losses.delivered = sample.delivered;
        }
    }

    /// AdaptLowerBoundsFromCongestion(), at the end of a round. One of which no rate is known lowers nothing.
    pub(super) fn adapt_short_term(&mut self) {
        if !self.losses.is_start {
            return;
        }
        if self.losses.is_lossy && self.losses.rate > 0 && !self.state.is_probing() {
            if self.short_bandwidth == UNBOUNDED {
                self.short_bandwidth = self.max_bandwidth.bytes_per_second();
            }
            if self.short_in_flight == UNBOUNDED {
                self.short_in_flight = self.window;
            }
            self.short_bandwidth = adapted(self.short_bandwidth, self.losses.rate);
            self.short_in_flight = adapted(self.short_in_flight, self.losses.delivered);
        }
        self.losses.is_lossy = false;
    }

    /// ResetShortTermModel().
    pub(super) const fn reset_short_term(&mut self) {
        self.short_bandwidth = UNBOUNDED;
        self.short_in_flight = UNBOUNDED;
    }

    /// HandleSpuriousLossDetection().
    pub(super) fn undo_losses(&mut self) {
        self.restore_window();
        self.losses.is_lossy = false;
        self.full.reset(0);
        self.short_bandwidth = self.short_bandwidth.max(self.undo.short_bandwidth);
        self.short_in_flight = self.short_in_flight.max(self.undo.short_in_flight);
        self.long_in_flight = self.long_in_flight.max(self.undo.long_in_flight);
        match core::mem::take(&mut self.undo.ended) {
            EndedProbe::Startup if self.state != State::Startup => {
                self.full.is_reached = false;
                if self.state != State::ProbeRtt {
                    self.enter_startup();
                }
            }
            EndedProbe::Up if self.state != State::Up && self.state != State::ProbeRtt => {
                self.enter_refill();
            }
            _ => {}
        }
    }
}

/// A short-term bound after a round with losses in which no more than `latest` was delivered.
pub(super) fn adapted(bound: u64, latest: u64) -> u64 {
    let tolerated = latest.saturating_mul(100) / (100 - SHORT_TERM_MARGIN_PERCENT);
    latest
        .max(tolerated.min(bound))
        .max(percent_of(bound, BETA_PERCENT))
}

/// InflightAtLoss(): a lost transmission may be of many packets; at some of them the losses exceeded
/// [`LOSS_PERCENT`] of what was in flight. Solves (lost_before + x) / (in_flight_before + x) =
/// LossThresh for x.
fn in_flight_at_loss(lost: &LostTransmission) -> u64 {
    let bytes = lost.range.bytes();
    let in_flight_before = lost.in_flight_at_send.saturating_sub(bytes);
    let lost_before = lost.lost.saturating_sub(bytes);
    let permitted = in_flight_before.saturating_mul(LOSS_PERCENT);
    let prefix = permitted.saturating_sub(lost_before.saturating_mul(100)) / (100 - LOSS_PERCENT);
    in_flight_before.saturating_add(prefix)
}
