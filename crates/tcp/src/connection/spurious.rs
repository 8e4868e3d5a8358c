//! Whether a retransmission timeout was spurious, and what is taken back if it was.
//!
//! The timer fires for nothing when the round trip grows suddenly: what it deemed lost is merely
//! late. The acknowledgments that come then tell, by one of three signs:
//!
//! * something sent before the timeout arrived, and nothing was sent again yet;
//! * the first ACK that moves SND.UNA echoes a timestamp from before the first resend (Eifel,
//!   RFC 3522);
//! * without timestamps, F-RTO (RFC 5682): after the first resend new data leaves in place of more
//!   resends, so that the next ACK is of a segment that left once.
//!
//! Then the window and the threshold are what they were (RFC 4015), and what was deemed lost is on
//! its way. Refused: undoing a timeout that fired while a recovery was under way, for its loss was
//! a true one; DSACK as a sign (RFC 3708), which comes a round trip later.

use clock::Instant;

use super::Connection;
use super::input::Delivery;
use crate::congestion::Snapshot;
use crate::recovery::RecoveryState;
use crate::stream::{StreamOffset, StreamRange};

/// Segments of new data that F-RTO lets leave to learn whether a timeout was spurious (RFC 5682
/// s2.1, step 2b).
const FORWARD_SEGMENTS: u64 = 2;
/// cwnd in segments after F-RTO's new data showed that the loss was true (RFC 5682 s2.1, step 3a):
/// that data, and a resend.
const GENUINE_SEGMENTS: u64 = 3;

/// What a timeout changed, kept until it is known to be genuine or spurious.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TimeoutRecord {
    before: Snapshot,
    /// When the first resend left (RFC 3522 s3.2: RetransmitTS); `None` before.
    resent_at: Option<Instant>,
    sign: Sign,
}

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sign {
    /// A timestamp; or that something arrives while nothing was resent.
    Echo,
    /// F-RTO, step 2: the ACK of the segment that was resent.
    FirstAck,
    /// F-RTO, step 3: an ACK while new data up to `limit` may leave, and nothing is resent.
    SecondAck { limit: StreamOffset },
}

/// What an ACK says of a timeout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Judgement {
    Undecided,
    Genuine,
    Spurious,
}

impl Connection {
    /// The timer fired outside a recovery, and `before` is what it changed.
    pub(super) fn record_timeout(&mut self, before: Snapshot) {
        // A timer that is backed off already has seen no sample since it last fired: F-RTO found
        // a true loss then, and new data above one is lost on a receiver that keeps none.
        let is_first = !self.rtt.is_backed_off();
        let sign = if self.receive.timestamps.is_some() || !is_first {
            Sign::Echo
        } else {
            Sign::FirstAck
        };
        self.timeout_record = Some(TimeoutRecord {
            before,
            resent_at: None,
            sign,
        });
    }

    /// The timer fired again. RFC 5682 s2.1, step 1: F-RTO is for the first; the first resend's
    /// timestamp still tells.
    pub(super) fn record_timeout_again(&mut self) {
        self.timeout_record = self
            .timeout_record
            .filter(|record| record.sign == Sign::Echo);
    }

    /// Something left again.
    pub(super) fn record_resend(&mut self, now: Instant) {
        if let Some(record) = &mut self.timeout_record {
            record.resent_at.get_or_insert(now);
        }
    }

    /// An ACK arrived and the log knows what it delivered. Returns whether a timeout was undone.
    pub(super) fn judge_timeout(
        &mut self,
        ack: StreamOffset,
        delivery: &Delivery,
        is_duplicate: bool,
    ) -> bool {
        let (Some(record), RecoveryState::Loss { high }) = (self.timeout_record, self.recovery)
        else {
            return false;
        };
        let judgement = self.judge(&record, ack, high, delivery, is_duplicate);
        match judgement {
            Judgement::Undecided => {}
            Judgement::Genuine => self.timeout_record = None,
            Judgement::Spurious => self.undo_timeout(record.before),
        }
        judgement == Judgement::Spurious
    }

    fn judge(
        &mut self,
        record: &TimeoutRecord,
        ack: StreamOffset,
        high: StreamOffset,
        delivery: &Delivery,
        is_duplicate: bool,
    ) -> Judgement {
        let Some(resent_at) = record.resent_at else {
            return if delivery.bytes > 0 {
                Judgement::Spurious
            } else {
                Judgement::Undecided
            };
        };
        match record.sign {
            Sign::Echo => match delivery.echoed_at.filter(|_| delivery.advanced) {
                None => Judgement::Undecided,
                Some(echoed) if is_stamped_before(echoed, resent_at) => Judgement::Spurious,
                Some(_) => Judgement::Genuine,
            },
            // RFC 5682 s3.1 and Linux: what left once and is newly reported came by itself.
            Sign::FirstAck | Sign::SecondAck { .. } if delivery.first_sendings => {
                Judgement::Spurious
            }
            Sign::FirstAck if delivery.advanced => self.send_forward(ack, high),
            // RFC 5682 s2.1, step 2a; with SACK, s3.1, step 2: duplicates decide nothing.
            Sign::FirstAck if is_duplicate && !self.sack_permitted => Judgement::Genuine,
            Sign::SecondAck { .. } if delivery.advanced || delivery.bytes > 0 || is_duplicate => {
                let segment = u64::from(self.segment_bytes);
                self.congestion.set_window(GENUINE_SEGMENTS * segment);
                Judgement::Genuine
            }
            Sign::FirstAck | Sign::SecondAck { .. } => Judgement::Undecided,
        }
    }

    /// F-RTO, step 2: what was resent is acknowledged, and not all there was. New data leaves next,
    /// if there is some and the peer's window admits it.
    fn send_forward(&mut self, ack: StreamOffset, high: StreamOffset) -> Judgement {
        let is_resend_left = self.flight.first().is_some_and(|first| first.retransmitted);
        let can_send = self.is_worthwhile(self.send.admitted());
        if ack >= high || is_resend_left || !can_send {
            return Judgement::Genuine;
        }
        let limit = self.send.nxt + FORWARD_SEGMENTS * u64::from(self.segment_bytes);
        if let Some(record) = &mut self.timeout_record {
            record.sign = Sign::SecondAck { limit };
        }
        Judgement::Undecided
    }

    /// F-RTO's new data, in place of resends; nothing worthwhile while it is out or being fetched.
    /// `None`: resends go on.
    pub(super) fn forward_run(&self) -> Option<StreamRange> {
        let Sign::SecondAck { limit } = self.timeout_record?.sign else {
            return None;
        };
        let admitted = self.send.admitted();
        let end = admitted.end.min(limit).max(admitted.start);
        let run = StreamRange::new(admitted.start, end);
        // With nothing out no ACK will come to tell.
        let can_tell = self.is_worthwhile(run) || self.outstanding_bytes() > 0;
        can_tell.then_some(run)
    }

    /// Whether new data of `run` would leave if nothing else was out.
    fn is_worthwhile(&self, run: StreamRange) -> bool {
        let is_last = run.end == self.send.end;
        !run.is_empty() && self.flight.has_room() && (is_last || !self.is_silly(run.bytes()))
    }

    /// RFC 4015 s3.2: the timeout was spurious.
    fn undo_timeout(&mut self, before: Snapshot) {
        self.congestion.restore(before);
        self.flight.undo_expiry();
        // What it knows may be of a resend, and would make the first sendings look overdue.
        self.rack.forget_newest();
        self.recovery = RecoveryState::Open;
        self.timeout_record = None;
    }
}

/// Whether a segment stamped at `echoed` left before `sent_at`, as far as stamps of a millisecond
/// tell.
pub(super) const fn is_stamped_before(echoed: Instant, sent_at: Instant) -> bool {
    echoed.as_millis() < sent_at.as_millis()
}
