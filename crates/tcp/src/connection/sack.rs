//! What the peer's SACK blocks report, and whether they are of use.
//!
//! Firewalls that give a connection other sequence numbers may leave those in SACK blocks as they are, and
//! others remove SACK from our SYN-ACK alone. Then both sides have agreed on SACK, as we see it, and no
//! block ever reports anything that we sent. RACK would find no loss, and each would cost a timeout. So
//! three duplicate ACKs without a report, before any block has reported something, mean what they mean
//! without SACK (RFC 5681 s3.2, RFC 6582), and from then on the peer counts as one without SACK. The
//! first block that reports something ends that.
//!
//! Refused: what an ACK says of bytes that we did not send, or of bytes so old that no duplicate of them
//! can arrive now. Bounded by: the blocks of a segment.

use wire::{SeqNumber, TcpRepr};

use super::Connection;
use super::input::Delivery;
use crate::congestion::Controller as _;
use crate::recovery::DUPLICATE_THRESHOLD;
use crate::stream::{StreamOffset, StreamRange};

/// What is known of the peer's SACK blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SackReports {
    /// The handshake did not agree on SACK.
    NotAgreed,
    /// Agreed (RFC 2018 s2), and no block has reported anything yet.
    Expected,
    /// A block has reported something that we sent.
    Useful,
    /// Three duplicate ACKs reported nothing, nor has any block before.
    Useless,
}

impl SackReports {
    /// Whether the handshake agreed on SACK.
    pub(super) const fn is_agreed(self) -> bool {
        !matches!(self, Self::NotAgreed)
    }

    /// Whether losses are found by the peer's blocks, and not by duplicate ACKs.
    pub(super) const fn is_used(self) -> bool {
        matches!(self, Self::Expected | Self::Useful)
    }
}

impl Connection {
    /// The bytes of a DSACK (RFC 2883 s4): the first block lies below the ACK, or inside the second
    /// block. `None` unless we sent them, and within a window of the ACK, as in Linux.
    pub(super) fn reported_duplicate(
        &self,
        segment: &TcpRepr,
        ack: StreamOffset,
    ) -> Option<StreamRange> {
        if !self.sack.is_agreed() {
            return None;
        }
        let blocks = segment.options.sack.as_slice();
        let first = blocks.first()?;
        let is_acknowledged = first.1.distance(self.send.sequence_of(ack)) <= 0;
        let is_inside = |second: &(SeqNumber, SeqNumber)| {
            first.0.distance(second.0) >= 0 && first.1.distance(second.1) <= 0
        };
        if !(is_acknowledged || blocks.get(1).is_some_and(is_inside)) {
            return None;
        }
        let (start, end) = (self.send.offset_of(first.0)?, self.send.offset_of(first.1)?);
        let is_recent = start + self.send.window_max() >= ack;
        (start < end && end <= self.send.nxt && is_recent).then(|| StreamRange::new(start, end))
    }

    /// An ACK arrived: what it shows of the peer's blocks. `is_duplicate`: as in RFC 5681 s2.
    pub(super) fn judge_reports(&mut self, delivery: &Delivery, is_duplicate: bool) {
        if delivery.has_reports {
            self.sack = SackReports::Useful;
            self.duplicate_acks = 0;
        } else if is_duplicate && self.sack != SackReports::Useful {
            self.duplicate_acks += 1;
            let is_third = self.duplicate_acks == DUPLICATE_THRESHOLD;
            if is_third && self.sack == SackReports::Expected && self.is_duplicate_meaningful() {
                self.sack = SackReports::Useless;
                self.congestion.on_sack_useless();
                self.reordering = None;
            }
        }
    }
}
