//! The timers of one connection: retransmission (RFC 6298), tail loss probe (RFC 8985 s7), zero
//! window (RFC 9293 s3.8.6.1), delayed ACK, keep-alive (RFC 9293 s3.8.4), orphans, FIN-WAIT-2.

use clock::{Duration, Instant, earlier};

use super::window_use::WindowUse;
use super::{Connection, State};
use crate::canary::Fault;
use crate::congestion::Controller as _;
use crate::recovery::RecoveryState;
use crate::send::Fin;
use crate::stream::StreamOffset;
use crate::verdict::{CloseReason, Outcome};

/// At most one challenge ACK in this time (RFC 5961 s7 asks for a limit; Linux has the same).
pub(super) const CHALLENGE_INTERVAL: Duration = Duration::from_millis(500);
/// Longest time a peer may delay an ACK; the tail loss probe of a single segment waits for it
/// (RFC 8985 s7.2, TLP.max_ack_delay).
const PEER_ACK_DELAY: Duration = Duration::from_millis(200);

/// A window that is not shut, but too small for SWS avoidance, is used after this time at most (RFC 9293 s3.8.6.2.1: 0.1 to 1
/// s). After a retransmission timeout that was doubled, a client with 512 bytes of buffer would get them so rarely that the
/// server takes it for one that stalls.
const OVERRIDE_MAX: Duration = Duration::from_secs(1);

/// What the retransmission timer is running for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TimerKind {
    /// The retransmission timeout: everything in flight is considered lost.
    Timeout,
    /// The tail loss probe: retransmits the last segment, or sends a new one, to detect a loss at
    /// the tail.
    TailProbe,
    /// The zero-window probe; or, if the window is small, the override of SWS avoidance (RFC 9293
    /// s3.8.6.2.1).
    WindowProbe,
}

/// A tail loss probe under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TailProbe {
    /// TLP.end_seq: SND.NXT when it was sent.
    pub(super) end: StreamOffset,
    /// TLP.is_retrans.
    pub(super) is_retransmission: bool,
    /// Its segment was not claimed yet; the congestion window does not limit it.
    pub(super) is_due: bool,
    /// Start of the segment that was claimed for it.
    pub(super) claimed: Option<StreamOffset>,
}

/// Whether an ACK must be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Acknowledgment {
    /// Nothing to acknowledge.
    None,
    /// A delayed ACK: at this time, unless data is sent before.
    By(Instant),
    /// Immediately.
    Now,
}

impl Acknowledgment {
    /// Text was accepted: the ACK of a first segment is delayed, a second segment is acknowledged
    /// immediately (RFC 9293 s3.8.6.3). `is_merged`: a frame had several segments, which the kernel
    /// merged (GRO).
    pub(super) const fn after_text(self, is_merged: bool, deadline: Instant) -> Self {
        match self {
            Self::None if !is_merged => Self::By(deadline),
            Self::None | Self::By(_) | Self::Now => Self::Now,
        }
    }
}

impl Connection {
    /// When [`Connection::handle_timeout`] next has work.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let delayed = match self.acknowledgment {
            Acknowledgment::By(deadline) => Some(deadline),
            Acknowledgment::None | Acknowledgment::Now => None,
        };
        let retransmit = self.retransmit.map(|(_, deadline)| deadline);
        // One after the other: an array of them would be written to memory and read again.
        let of_data = earlier(earlier(retransmit, self.reordering), delayed);
        let of_peer = earlier(self.keep_alive_deadline(), self.orphan_deadline());
        earlier(earlier(of_data, of_peer), self.fin_wait_2_deadline())
    }

    /// Fires every timer due at `now`.
    #[must_use]
    pub fn handle_timeout(&mut self, now: Instant) -> Outcome {
        let timed_out = Outcome::Closed(CloseReason::TimedOut);
        self.check_limited();
        if let Acknowledgment::By(deadline) = self.acknowledgment
            && deadline <= now
        {
            self.acknowledgment = Acknowledgment::Now;
        }
        if self.reordering.is_some_and(|deadline| deadline <= now) {
            self.on_reordering_timeout(now);
        }
        if let Some((kind, deadline)) = self.retransmit
            && deadline <= now
            && !self.on_retransmit_timer(now, kind)
        {
            return timed_out;
        }
        if self
            .keep_alive_deadline()
            .is_some_and(|deadline| deadline <= now)
            && !self.probe(self.config.probes_max)
        {
            return timed_out;
        }
        let is_past = |deadline: Option<Instant>| deadline.is_some_and(|at| at <= now);
        if is_past(self.orphan_deadline()) || is_past(self.fin_wait_2_deadline()) {
            return timed_out;
        }
        Outcome::Open
    }

    /// Retransmission timeouts in a row, without an acknowledgment of new data between them.
    #[must_use]
    pub const fn timeouts_in_a_row(&self) -> u32 {
        self.timeouts
    }

    /// Segments leave by another next hop from `now` on. What did not pass by the last one says nothing of
    /// this one: a retransmission that is in flight is demanded again at once, and its timer, which was
    /// doubled for a path that is gone, begins anew.
    pub fn on_next_hop_changed(&mut self, now: Instant) {
        let timeouts = core::mem::take(&mut self.timeouts);
        self.sizes.stuck_timeouts = 0;
        if timeouts > 0 && self.flight.in_flight_bytes() > 0 {
            self.lose_flight(now);
            self.rtt.end_backoff();
            self.retransmit = Some((TimerKind::Timeout, now + self.rtt.timeout()));
        }
    }

    /// (Re)starts the timer of the oldest unacknowledged byte.
    pub(super) fn restart_retransmit(&mut self, now: Instant) {
        self.retransmit = if !self.flight.is_empty() {
            let timeout = self.rtt.timeout();
            match self.tail_probe_delay() {
                // RFC 8985 s7.2: a probe is sent no later than the timeout it replaces.
                Some(delay) => Some((TimerKind::TailProbe, now + delay.min(timeout))),
                None => Some((TimerKind::Timeout, now + timeout)),
            }
        } else if self.is_stalled_by_window() {
            let mut wait = self.rtt.timeout_doubled(self.window_probes_backoff);
            if !self.send.admitted().is_empty() {
                wait = wait.min(OVERRIDE_MAX);
            }
            match self.retransmit {
                // Segments that change nothing do not postpone a running timer.
                Some((TimerKind::WindowProbe, deadline)) => {
                    Some((TimerKind::WindowProbe, deadline.min(now + wait)))
                }
                _ => Some((TimerKind::WindowProbe, now + wait)),
            }
        } else {
            None
        };
    }

    /// Data was sent: starts the timer, or moves a tail loss probe to the new tail (RFC 8985 s7.2).
    /// A retransmission timer that is running for data in flight continues (RFC 6298 s5.1). If
    /// nothing `was_out`, it was only waiting for the disk and restarts.
    pub(super) fn on_data_left(&mut self, now: Instant, was_out: bool) {
        match self.retransmit {
            Some((TimerKind::Timeout, _)) if was_out => {}
            _ => self.restart_retransmit(now),
        }
    }

    /// The retransmission timer fired. `false`: the connection times out.
    fn on_retransmit_timer(&mut self, now: Instant, kind: TimerKind) -> bool {
        match kind {
            TimerKind::Timeout => return self.on_retransmission_timeout(now),
            TimerKind::TailProbe => self.on_tail_probe(now),
            TimerKind::WindowProbe => {
                self.retransmit = None;
                if !self.send.admitted().is_empty() {
                    self.sws_override_due = true;
                    return true;
                }
                self.window_probes_backoff = self.window_probes_backoff.saturating_add(1);
                self.restart_retransmit(now);
                // RFC 1122 s4.2.2.17 wants as many attempts here as with data.
                return self.probe(self.config.timeouts_max);
            }
        }
        true
    }

    fn on_retransmission_timeout(&mut self, now: Instant) -> bool {
        // With nothing in the network, the lost bytes are waiting for the disk and not for the peer.
        let missing = self.flight.lost_bytes() + self.flight.claimed_bytes();
        if self.flight.in_flight_bytes() > 0 || missing == 0 {
            self.timeouts += 1;
            if self.timeouts > self.config.timeouts_max {
                return false;
            }
            if self.apply_path_report(now) {
                return true;
            }
            self.lose_flight(now);
            self.rtt.on_timeout();
            self.on_size_probe_lost(now, true);
            self.check_black_hole(now);
        }
        self.retransmit = Some((TimerKind::Timeout, now + self.rtt.timeout()));
        true
    }

    /// Everything in flight is lost: it is sent again, a segment at first.
    fn lose_flight(&mut self, now: Instant) {
        self.reduce_window_on_timeout();
        self.sample_all_lost(now);
        if self.flight.expire() {
            // The peer has reneged.
            self.timeout_record = None;
        }
        self.recovery = RecoveryState::Loss {
            high: self.send.nxt,
        };
        self.recover = Some(self.send.nxt);
        // What was outstanding says nothing of the window of one segment.
        self.window_use = WindowUse::new();
        self.note_reduction();
        self.send.claimed = self.send.nxt;
        self.tail_probe = None;
        self.reordering = None;
        self.duplicate_acks = 0;
    }

    /// Sets cwnd to one segment. ssthresh is reduced once for each loss event (RFC 5681 s3.1): not
    /// when the timer fires again, and not during a recovery, which has reduced ssthresh already and
    /// whose cwnd is temporary.
    fn reduce_window_on_timeout(&mut self) {
        match self.recovery {
            RecoveryState::Open => {
                self.record_timeout(self.congestion.snapshot());
                self.congestion.on_timeout();
                self.pacer.on_loss();
            }
            #[cfg(feature = "canaries")]
            RecoveryState::Recovery {
                reduction: Some(reduction),
                ..
            } if self.config.canary.is(Fault::TimeoutReducesTwice) => {
                self.congestion.force_window(reduction.window());
                self.congestion.on_timeout();
                self.pacer.on_loss();
            }
            RecoveryState::Recovery { .. } => self.congestion.on_timeout_again(),
            RecoveryState::Loss { .. } => {
                self.record_timeout_again();
                self.congestion.on_timeout_again();
            }
        }
    }

    /// RFC 8985 s7.3: the probe is new data if some is queued, else the last segment again. The
    /// congestion window does not limit its demand (see [`Connection::credit`]). New data that is
    /// being fetched already serves as the probe.
    fn on_tail_probe(&mut self, now: Instant) {
        let is_fetching = self.send.fetching_bytes() > 0;
        let is_retransmission = !is_fetching && self.send.admitted().is_empty();
        if is_retransmission {
            self.flight.mark_tail_lost(u64::from(self.sizes.current));
            self.rtt.on_tail_probe();
        }
        self.tail_probe = Some(TailProbe {
            end: self.send.nxt,
            is_retransmission,
            is_due: !is_fetching,
            claimed: None,
        });
        self.retransmit = Some((TimerKind::Timeout, now + self.rtt.timeout()));
    }

    /// RFC 8985 s7.2: two round trips, plus the peer's delayed ACK if only one segment is in flight.
    /// `None` while SRTT is unconfirmed: if the round trip has grown, each probe would be needless,
    /// and by Karn's rule it would prevent the RTT sample that shows the growth.
    fn tail_probe_delay(&self) -> Option<Duration> {
        let eligible = self.sack.is_used()
            && self.recovery == RecoveryState::Open
            && self.tail_probe.is_none()
            && self.flight.sacked_bytes() == 0
            && self.flight.lost_bytes() == 0
            && (self.rtt.is_confirmed() || self.config.canary.is(Fault::NoSampleOfRetransmission));
        let smoothed = self.rtt.smoothed().filter(|_| eligible)?;
        let single = self.flight.in_flight_bytes() <= u64::from(self.sizes.current);
        let extra = if single {
            PEER_ACK_DELAY
        } else {
            Duration::from_millis(2)
        };
        Some(smoothed * 2 + extra)
    }

    /// Whether more is queued, the peer's window is closed or too small, and nothing is outstanding
    /// that the peer would acknowledge.
    fn is_stalled_by_window(&self) -> bool {
        let admitted = self.send.admitted();
        self.send.unclaimed_bytes() > 0
            && self.send.fetching_bytes() == 0
            && (admitted.is_empty()
                || (admitted.end < self.send.end && self.is_silly_window(admitted.bytes())))
    }

    /// Sends a probe; `false` if `most` went unanswered already.
    fn probe(&mut self, most: u32) -> bool {
        self.probe_due = self.probes < most;
        self.probe_due
    }

    /// The interval to the next probe counts from when the last probe was *sent*: so a worker that
    /// was suspended for minutes still sends all probes before the connection times out.
    fn keep_alive_deadline(&self) -> Option<Instant> {
        let quiet = self.flight.is_empty()
            && self.send.unclaimed_bytes() == 0
            && self.send.fetching_bytes() == 0
            && self.send.fin == Fin::NotQueued
            && !self.probe_due;
        quiet.then(|| {
            if self.probes == 0 {
                self.last_received_at + self.config.keep_alive_idle
            } else {
                self.probed_at + self.config.keep_alive_interval
            }
        })
    }

    fn fin_wait_2_deadline(&self) -> Option<Instant> {
        match self.state {
            State::FinWait2(since) => Some(since + self.config.fin_wait_2),
            _ => None,
        }
    }
}
