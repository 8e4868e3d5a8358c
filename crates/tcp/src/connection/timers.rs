//! The timers of one connection: retransmission (RFC 6298), tail loss probe (RFC 8985 s7), zero
//! window (RFC 9293 s3.8.6.1), delayed ACK, keep-alive (RFC 9293 s3.8.4), orphans, FIN-WAIT-2.

use clock::{Duration, Instant};

use super::{Connection, State};
use crate::recovery::RecoveryState;
use crate::send::Fin;
use crate::stream::StreamOffset;
use crate::verdict::{CloseReason, Outcome};

/// At most one challenge ACK in this time (RFC 5961 s7 asks for a limit; Linux has the same).
pub(super) const CHALLENGE_INTERVAL: Duration = Duration::from_millis(500);
/// Peers may delay an ACK this long; a probe of a single segment waits it out (RFC 8985 s7.2,
/// TLP.max_ack_delay).
const PEER_ACK_DELAY: Duration = Duration::from_millis(200);

/// What the retransmission timer will do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Alarm {
    /// Deem everything in flight lost.
    Timeout,
    /// Send the last segment again, or a new one, to learn whether the tail was lost.
    TailProbe,
    /// Ask for the window, or use the little of it there is (RFC 9293 s3.8.6.2.1's override).
    WindowProbe,
}

/// A tail loss probe under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TailProbe {
    /// TLP.end_seq: SND.NXT when it was sent.
    pub(super) end: StreamOffset,
    /// TLP.is_retrans.
    pub(super) is_retransmission: bool,
    /// Its segment was not claimed yet; the congestion window does not hold it back.
    pub(super) is_due: bool,
    /// Where the segment begins that was claimed for it.
    pub(super) claimed: Option<StreamOffset>,
}

/// Whether the peer is owed an ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Acknowledgment {
    /// Nothing to acknowledge.
    None,
    /// Soon, unless data leaves before.
    By(Instant),
    /// At once.
    Now,
}

impl Acknowledgment {
    /// Text was taken: the first waits, a second is acknowledged at once (RFC 9293 s3.8.6.3).
    pub(super) const fn after_text(self, deadline: Instant) -> Self {
        match self {
            Self::None => Self::By(deadline),
            Self::By(_) | Self::Now => Self::Now,
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
        [
            self.retransmit.map(|(_, deadline)| deadline),
            self.reordering,
            delayed,
            self.keep_alive_deadline(),
            self.orphan_deadline(),
            self.fin_wait_2_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Fires every timer due at `now`.
    #[must_use]
    pub fn handle_timeout(&mut self, now: Instant) -> Outcome {
        let timed_out = Outcome::Closed(CloseReason::TimedOut);
        if let Acknowledgment::By(deadline) = self.acknowledgment
            && deadline <= now
        {
            self.acknowledgment = Acknowledgment::Now;
        }
        if self.reordering.is_some_and(|deadline| deadline <= now) {
            self.on_reordering_timeout(now);
        }
        if let Some((alarm, deadline)) = self.retransmit
            && deadline <= now
            && !self.on_alarm(now, alarm)
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

    /// (Re)starts the one timer that watches over the oldest unacknowledged byte.
    pub(super) fn restart_retransmit(&mut self, now: Instant) {
        self.retransmit = if !self.flight.is_empty() {
            let timeout = self.rtt.timeout();
            match self.tail_probe_delay() {
                // RFC 8985 s7.2: a probe comes no later than the timeout it takes the place of.
                Some(delay) => Some((Alarm::TailProbe, now + delay.min(timeout))),
                None => Some((Alarm::Timeout, now + timeout)),
            }
        } else if self.is_stalled_by_window() {
            let wait = self.rtt.timeout_doubled(self.window_probes_backoff);
            match self.retransmit {
                // It runs already: segments that change nothing do not put it off.
                Some((Alarm::WindowProbe, deadline)) => {
                    Some((Alarm::WindowProbe, deadline.min(now + wait)))
                }
                _ => Some((Alarm::WindowProbe, now + wait)),
            }
        } else {
            None
        };
    }

    /// Data left: the timer starts, and a tail probe moves to the new tail (RFC 8985 s7.2). A
    /// timer that runs for data still out goes on (RFC 6298 s5.1); while nothing `was_out`, it ran
    /// for the disk.
    pub(super) fn on_data_left(&mut self, now: Instant, was_out: bool) {
        match self.retransmit {
            Some((Alarm::Timeout, _)) if was_out => {}
            _ => self.restart_retransmit(now),
        }
    }

    /// The retransmission timer fired. `false`: give the connection up.
    fn on_alarm(&mut self, now: Instant, alarm: Alarm) -> bool {
        match alarm {
            Alarm::Timeout => return self.on_retransmission_timeout(now),
            Alarm::TailProbe => self.on_tail_probe(now),
            Alarm::WindowProbe => {
                self.retransmit = None;
                if !self.send.admitted().is_empty() {
                    self.override_due = true;
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
        // With nothing of ours in the network, what is lost waits for the disk, not for the peer.
        let missing = self.flight.lost_bytes() + self.flight.claimed_bytes();
        if self.flight.in_flight_bytes() > 0 || missing == 0 {
            self.timeouts += 1;
            if self.timeouts > self.config.timeouts_max {
                return false;
            }
            if self.obey_path_report(now) {
                return true;
            }
            let has_reneged = self.flight.expire();
            self.reduce_window_on_timeout();
            self.rtt.on_timeout();
            if has_reneged {
                self.timeout_record = None;
            }
            self.recovery = RecoveryState::Loss {
                high: self.send.nxt,
            };
            self.recover = Some(self.send.nxt);
            self.send.claimed = self.send.nxt;
            self.tail_probe = None;
            self.reordering = None;
            self.duplicate_acks = 0;
        }
        self.retransmit = Some((Alarm::Timeout, now + self.rtt.timeout()));
        true
    }

    /// One segment leaves. The threshold falls once for each loss event (RFC 5681 s3.1): not by a
    /// timer that fires again, and not while a recovery is under way, which lowered it already and
    /// has a window for the moment only.
    fn reduce_window_on_timeout(&mut self) {
        match self.recovery {
            RecoveryState::Open => {
                self.record_timeout(self.congestion.snapshot());
                self.congestion.on_timeout();
            }
            RecoveryState::Recovery { .. } => self.congestion.on_timeout_again(),
            RecoveryState::Loss { .. } => {
                self.record_timeout_again();
                self.congestion.on_timeout_again();
            }
        }
    }

    /// RFC 8985 s7.3: new data if there is some, else the last segment again. Either way the
    /// demand for it is not held back by the congestion window (see [`Connection::demand`]). New
    /// data that is being fetched will do.
    fn on_tail_probe(&mut self, now: Instant) {
        let is_fetching = self.send.fetching_bytes() > 0;
        let is_retransmission = !is_fetching && self.send.admitted().is_empty();
        if is_retransmission {
            self.flight.mark_tail_lost(u64::from(self.segment_bytes));
            self.rtt.on_tail_probe();
        }
        self.tail_probe = Some(TailProbe {
            end: self.send.nxt,
            is_retransmission,
            is_due: !is_fetching,
            claimed: None,
        });
        self.retransmit = Some((Alarm::Timeout, now + self.rtt.timeout()));
    }

    /// RFC 8985 s7.2: two round trips, and the peer's delayed ACK if only one segment is out. None
    /// while SRTT is in doubt: if the round trip has grown, each probe would be needless, and by
    /// Karn's rule keep the sample away that says so.
    fn tail_probe_delay(&self) -> Option<Duration> {
        let eligible = self.sack_permitted
            && self.recovery == RecoveryState::Open
            && self.tail_probe.is_none()
            && self.flight.sacked_bytes() == 0
            && self.flight.lost_bytes() == 0
            && self.rtt.is_confirmed();
        let smoothed = self.rtt.smoothed().filter(|_| eligible)?;
        let single = self.flight.in_flight_bytes() <= u64::from(self.segment_bytes);
        let extra = if single {
            PEER_ACK_DELAY
        } else {
            Duration::from_millis(2)
        };
        Some(smoothed * 2 + extra)
    }

    /// The peer's window is shut or as good as shut, nothing is out that would make it speak, and
    /// we have more.
    fn is_stalled_by_window(&self) -> bool {
        let admitted = self.send.admitted();
        self.send.unclaimed_bytes() > 0
            && self.send.fetching_bytes() == 0
            && (admitted.is_empty()
                || (admitted.end < self.send.end && self.is_silly(admitted.bytes())))
    }

    /// Sends a probe; `false` if `most` went unanswered already.
    fn probe(&mut self, most: u32) -> bool {
        self.probe_due = self.probes < most;
        self.probe_due
    }

    /// The next probe is due some time after the last one *left*: a worker that was stopped for
    /// minutes asks as often as any before it gives up.
    fn keep_alive_deadline(&self) -> Option<Instant> {
        let quiet = self.flight.is_empty()
            && self.send.unclaimed_bytes() == 0
            && self.send.fetching_bytes() == 0
            && self.send.fin == Fin::NotQueued
            && !self.probe_due;
        quiet.then(|| {
            if self.probes == 0 {
                self.heard_at + self.config.keep_alive_idle
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
