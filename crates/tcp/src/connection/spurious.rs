//! Detection of spurious retransmission timeouts, and their undo.
//!
//! A timeout is spurious when the round trip grew suddenly and the segments considered lost are only
//! late. The next acknowledgments show this in one of three ways:
//!
//! * bytes sent before the timeout arrived, and nothing was retransmitted yet;
//! * the first ACK that moves SND.UNA echoes a timestamp from before the first retransmission
//!   (Eifel, RFC 3522);
//! * without timestamps of the peer, F-RTO (RFC 5682): after the first retransmission new data is sent instead
//!   of more retransmissions, so that the next ACK is of a segment that was sent once.
//!
//! Then cwnd and ssthresh are restored (RFC 4015), and the segments considered lost count as in
//! flight again. DSACKs show the same a round trip later: see [`super::undo`]. Refused: undoing a timeout
//! that fired during a recovery, whose loss was genuine.

use clock::Instant;

use super::Connection;
use super::input::Delivery;
use crate::canary::Fault;
use crate::congestion::{Controller as _, Snapshot};
use crate::recovery::RecoveryState;
use crate::stream::{StreamOffset, StreamRange};

/// Segments of new data that F-RTO sends to detect a spurious timeout (RFC 5682 s2.1, step 2b).
const FRTO_NEW_SEGMENTS: u64 = 2;

/// The state before a timeout, kept until the timeout is known to be genuine or spurious.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TimeoutRecord {
    before: Snapshot,
    /// When the first retransmission was sent (RFC 3522 s3.2: RetransmitTS); `None` before.
    resent_at: Option<Instant>,
    step: DetectionStep,
}

/// What the detection is waiting for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DetectionStep {
    /// An echoed timestamp, or any delivery before the first retransmission.
    Echo,
    /// F-RTO, step 2: the ACK of the first retransmission.
    FirstAck,
    /// F-RTO, step 3: the next ACK; new data up to `limit` may be sent, and nothing is
    /// retransmitted.
    SecondAck { limit: StreamOffset },
}

/// What an ACK shows about the last timeout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TimeoutVerdict {
    Undecided,
    Genuine,
    Spurious,
}

impl Connection {
    /// The timer fired outside a recovery; `before` is the state before it.
    pub(super) fn record_timeout(&mut self, before: Snapshot) {
        self.record_loss_by_timeout();
        // If the timer is backed off already, there was no sample since it last fired: that timeout
        // was genuine, and a receiver that keeps no out-of-order data would drop F-RTO's new data.
        let is_first = !self.rtt.is_backed_off();
        let step = if self.receive.has_echoes() || !is_first {
            DetectionStep::Echo
        } else {
            DetectionStep::FirstAck
        };
        self.timeout_record = Some(TimeoutRecord {
            before,
            resent_at: None,
            step,
        });
    }

    /// The timer fired again. F-RTO applies to the first timeout only (RFC 5682 s2.1, step 1); the
    /// timestamp of the first retransmission can still be used.
    pub(super) fn record_timeout_again(&mut self) {
        self.timeout_record = self
            .timeout_record
            .filter(|record| record.step == DetectionStep::Echo);
    }

    /// A segment was retransmitted.
    pub(super) fn record_resend(&mut self, now: Instant) {
        if let Some(record) = &mut self.timeout_record {
            record.resent_at.get_or_insert(now);
        }
    }

    /// An ACK delivered `delivery`: checks whether the last timeout was spurious. Returns whether it
    /// was undone.
    pub(super) fn check_spurious_timeout(
        &mut self,
        now: Instant,
        ack: StreamOffset,
        delivery: &Delivery,
        is_duplicate: bool,
    ) -> bool {
        if self.config.canary.is(Fault::TimeoutNotUndone) {
            return false;
        }
        let RecoveryState::Loss { high } = self.recovery else {
            return false;
        };
        let Some(record) = self.timeout_record else {
            return false;
        };
        let verdict = self.classify_timeout(&record, ack, high, delivery, is_duplicate);
        match verdict {
            TimeoutVerdict::Undecided => {}
            TimeoutVerdict::Genuine => self.timeout_record = None,
            TimeoutVerdict::Spurious => {
                self.undo_timeout(record.before);
                self.hasten_size_probe(now);
            }
        }
        verdict == TimeoutVerdict::Spurious
    }

    fn classify_timeout(
        &mut self,
        record: &TimeoutRecord,
        ack: StreamOffset,
        high: StreamOffset,
        delivery: &Delivery,
        is_duplicate: bool,
    ) -> TimeoutVerdict {
        let Some(resent_at) = record.resent_at else {
            return if delivery.bytes > 0 {
                TimeoutVerdict::Spurious
            } else {
                TimeoutVerdict::Undecided
            };
        };
        match record.step {
            DetectionStep::Echo => match delivery.echoed_at.filter(|_| delivery.advanced) {
                None => TimeoutVerdict::Undecided,
                Some(echoed) if is_stamped_before(echoed, resent_at) => TimeoutVerdict::Spurious,
                Some(_) => TimeoutVerdict::Genuine,
            },
            // RFC 5682 s3.1 and Linux: what left once and is newly reported came by itself.
            DetectionStep::FirstAck | DetectionStep::SecondAck { .. }
                if delivery.first_sendings =>
            {
                TimeoutVerdict::Spurious
            }
            DetectionStep::FirstAck if delivery.advanced => self.frto_send_new_data(ack, high),
            // RFC 5682 s2.1, step 2a; with SACK, s3.1, step 2: duplicates decide nothing.
            DetectionStep::FirstAck if is_duplicate && !self.sack.is_used() => {
                TimeoutVerdict::Genuine
            }
            DetectionStep::SecondAck { .. }
                if delivery.advanced || delivery.bytes > 0 || is_duplicate =>
            {
                self.congestion.on_timeout_genuine();
                TimeoutVerdict::Genuine
            }
            DetectionStep::FirstAck | DetectionStep::SecondAck { .. } => TimeoutVerdict::Undecided,
        }
    }

    /// F-RTO, step 2: the first retransmission is acknowledged, and not everything. New data is sent
    /// next, if some is queued and the peer's window admits it.
    fn frto_send_new_data(&mut self, ack: StreamOffset, high: StreamOffset) -> TimeoutVerdict {
        let is_resend_left = self.flight.first().is_some_and(|first| first.retransmitted);
        let can_send = self.is_sendable(self.send.admitted());
        if ack >= high || is_resend_left || !can_send {
            return TimeoutVerdict::Genuine;
        }
        let limit = self.send.nxt + FRTO_NEW_SEGMENTS * u64::from(self.sizes.current);
        if let Some(record) = &mut self.timeout_record {
            record.step = DetectionStep::SecondAck { limit };
        }
        TimeoutVerdict::Undecided
    }

    /// The new data of F-RTO, sent instead of retransmissions; an empty run while it is outstanding.
    /// `None`: retransmission continues.
    pub(super) fn frto_new_data(&self) -> Option<StreamRange> {
        // There is a record during the recovery of a timeout only. The state is asked first: it is near
        // what every turn needs.
        if !matches!(self.recovery, RecoveryState::Loss { .. }) {
            return None;
        }
        let DetectionStep::SecondAck { limit } = self.timeout_record?.step else {
            return None;
        };
        let admitted = self.send.admitted();
        let end = admitted.end.min(limit).max(admitted.start);
        let run = StreamRange::new(admitted.start, end);
        // With nothing outstanding no ACK would arrive.
        let can_tell = self.is_sendable(run) || self.outstanding_bytes() > 0;
        can_tell.then_some(run)
    }

    /// Whether new data of `run` would be sent if nothing was outstanding.
    fn is_sendable(&self, run: StreamRange) -> bool {
        let is_last = run.end == self.send.end;
        !run.is_empty() && self.flight.has_room() && (is_last || !self.is_silly_window(run.bytes()))
    }

    /// RFC 4015 s3.2: the timeout was spurious.
    fn undo_timeout(&mut self, before: Snapshot) {
        self.congestion.restore(before);
        self.withdraw_reduction();
        self.flight.undo_expiry();
        // RACK's newest delivery may be of a retransmission, which would make the first
        // transmissions look overdue.
        self.rack.forget_newest();
        self.recovery = RecoveryState::Open;
        self.timeout_record = None;
        self.forget_losses();
    }
}

/// Whether a segment with a timestamp of `echoed` was sent before `sent_at`, at the resolution of a
/// millisecond.
pub(super) const fn is_stamped_before(echoed: Instant, sent_at: Instant) -> bool {
    echoed.as_millis() < sent_at.as_millis()
}
