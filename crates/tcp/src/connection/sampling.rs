//! Samples of the delivery rate ([`crate::delivery_rate`]): what is reported to the sampler and to the
//! controller, and when the server itself limits a sample. Connections whose controller needs no
//! samples have no sampler, and then nothing here does anything.
//!
//! Two things of ours limit a sample, and say nothing about the path: there is nothing left to send,
//! or the disk (draft-ietf-ccwg-bbr s4.1.1.3 knows the first only). Each read delays what is sent, but
//! a delay that is always the same changes no rate. So the disk counts if it was late
//! ([`Connection::is_late`]).

use clock::Instant;

use super::{Connection, Permission};
use crate::congestion::Controller as _;
use crate::flight::{SegmentState, Transmission};

/// A read delays a sample by less than this part of the least RTT, or it counts as late. A sample
/// takes a round trip at least, so it is wrong by this part at most.
const LATE_DIVISOR: u32 = 8;

impl Connection {
    /// CheckIfApplicationLimited(): everything is sent, and the window has room. To be called before
    /// anything changes that.
    pub(super) fn check_limited(&mut self) {
        let window = self.congestion_window();
        let Some(rate) = &mut self.delivery_rate else {
            return;
        };
        let in_flight = self.flight.in_flight_bytes();
        let is_all_sent = self.send.unclaimed_bytes() == 0
            && self.send.fetching_bytes() == 0
            && self.flight.lost_bytes() + self.flight.claimed_bytes() == 0;
        if is_all_sent && in_flight < window {
            rate.mark_limited(in_flight);
        }
    }

    /// This is permitted at `now` by the caller, too. What may be claimed now waits for its turn, a slot, or room in the
    /// disk's queue: if it waits for long, the disk is late. For what may be claimed later it waits for pacing alone.
    pub fn on_permission(&mut self, now: Instant, permission: Permission) {
        match permission {
            Permission::Now => self.on_demand(now),
            Permission::From(_) | Permission::Nothing => {
                self.pacer.set_awaited(permission != Permission::Nothing);
                if let Some(rate) = &mut self.delivery_rate {
                    rate.on_no_demand();
                }
            }
        }
    }

    /// Something may be claimed since `since`.
    pub(super) fn on_demand(&mut self, since: Instant) {
        if let Some(rate) = &mut self.delivery_rate {
            rate.on_demand(since);
        }
    }

    /// Since when what is claimed at `now` could have been claimed.
    pub(super) fn demanded_since(&mut self, now: Instant) -> Instant {
        let rate = self.delivery_rate.as_mut();
        rate.map_or(now, |rate| rate.on_claimed(now))
    }

    /// Whether the disk was late: bytes that could be claimed at `since` are sent at `now`, and
    /// meanwhile less than half of the window was in the network, while a window is two BDPs.
    fn is_late(&self, now: Instant, since: Instant, in_flight: u64) -> bool {
        let waited = now.since(since);
        waited > self.rtt.minimum() / LATE_DIVISOR && 2 * in_flight < self.congestion_window()
    }

    /// Something was sent that could be claimed at `since`; before it `in_flight_before` bytes were in
    /// the network.
    pub(super) fn sample_sent(&mut self, now: Instant, since: Instant, in_flight_before: u64) {
        if self.delivery_rate.is_none() {
            return;
        }
        let is_late = self.is_late(now, since, in_flight_before);
        let Some(rate) = &mut self.delivery_rate else {
            return;
        };
        if is_late {
            rate.mark_limited(in_flight_before);
        }
        rate.on_sent(now, &self.flight, in_flight_before);
    }

    /// `entry` is considered lost.
    pub(super) fn sample_lost(&mut self, now: Instant, entry: &Transmission) {
        if let Some(rate) = &mut self.delivery_rate
            && let Some(lost) = rate.on_lost(now, entry)
        {
            self.congestion.on_lost(&lost);
        }
    }

    /// Everything in flight is about to be considered lost.
    pub(super) fn sample_all_lost(&mut self, now: Instant) {
        let Some(rate) = &mut self.delivery_rate else {
            return;
        };
        let in_flight = self
            .flight
            .iter()
            .filter(|entry| entry.state == SegmentState::InFlight);
        for lost in in_flight.filter_map(|entry| rate.on_lost(now, entry)) {
            self.congestion.on_lost(&lost);
        }
    }

    /// An ACK fills a hole. Without SACK what lies above it had arrived earlier.
    pub(super) fn sample_repaired(&mut self) {
        if let Some(rate) = &mut self.delivery_rate
            && !self.sack.is_used()
        {
            rate.mark_unknown();
        }
    }

    /// Whether so little is left of the window that the session waits for more
    /// (docs/develop/decisions/0003-read-size.md).
    pub(super) fn is_window_limited(&self, now: Instant) -> bool {
        if self.delivery_rate.is_none() {
            return false;
        }
        let window = self.congestion_window();
        let segment = u64::from(self.sizes.current);
        let quantum = self
            .pacer
            .quantum_bytes(now, self.pacing_rate(), window, segment);
        self.outstanding_bytes() + quantum.min(window / 3) >= window
    }

    /// An ACK was applied, and what it shows to be lost is known: the controller gets its sample.
    pub(super) fn sample_ack(&mut self, now: Instant, is_window_limited: bool) {
        let Some(rate) = &mut self.delivery_rate else {
            return;
        };
        let in_flight = self.flight.in_flight_bytes();
        let rtt_min = self.rtt.minimum();
        let Some(sample) = rate.sample(now, rtt_min, in_flight, is_window_limited) else {
            return;
        };
        self.congestion.on_sample(&sample);
        if self.congestion.limits_itself() {
            rate.mark_limited(in_flight);
        }
    }

    /// Bytes are about to be claimed: after an idle time the controller must know.
    pub(super) fn check_restart(&mut self, now: Instant) {
        let is_limited = self
            .delivery_rate
            .as_ref()
            .is_some_and(|it| it.is_limited());
        if is_limited && self.outstanding_bytes() == 0 {
            self.congestion.on_restart(now);
        }
    }
}
