//! The send side of one connection: SND.UNA, SND.NXT, SND.WND (RFC 9293 s3.3.1), and the bytes that
//! are being fetched or queued.
//!
//! ```text
//!      acknowledged   |  sent, in the flight log  |  being fetched  |  queued    |  not queued
//!  -------------------+---------------------------+-----------------+------------+---------------
//!                  SND.UNA                     SND.NXT           claimed        end
//!                     |<------------- SND.WND ------------------------->|
//! ```
//!
//! Offsets are 64 bits wide ([`StreamOffset`]); this file is the only place that turns them into
//! sequence numbers and back.

use wire::SeqNumber;

use crate::stream::{StreamOffset, StreamRange};

/// The state of our FIN. It takes the sequence number after the last byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fin {
    /// The stream may still grow.
    NotQueued,
    /// To be sent once everything before it was sent.
    Queued,
    /// Sent at least once.
    Sent,
}

/// See the diagram at the top of the module.
#[derive(Clone, Copy, Debug)]
pub struct SendState {
    /// ISS + 1: the sequence number of stream offset 0.
    first: SeqNumber,
    /// SND.UNA.
    pub una: StreamOffset,
    /// SND.NXT.
    pub nxt: StreamOffset,
    /// Everything before it was claimed, that is, is being fetched or was sent.
    pub claimed: StreamOffset,
    /// Everything before it was claimed at least once. Its fetch may still be under way, even if a
    /// timeout made the bytes claimable again.
    pub claimed_once: StreamOffset,
    /// The end of what the session has to send.
    pub end: StreamOffset,
    /// Our FIN.
    pub fin: Fin,
    /// SND.WND, bytes, scaled.
    window: u64,
    /// The greatest SND.WND seen, bytes (RFC 5961 s5.2: MAX.SND.WND).
    window_max: u64,
    /// Snd.Wind.Shift (RFC 7323 s2.2).
    window_shift: u8,
    /// SND.WL1.
    last_sequence: SeqNumber,
    /// SND.WL2.
    last_ack: StreamOffset,
}

impl SendState {
    /// After the SYN-ACK was acknowledged. `window` is of the ACK, scaled already.
    #[must_use]
    pub fn new(iss: SeqNumber, window: u64, window_shift: u8, sequence: SeqNumber) -> Self {
        Self {
            first: iss.wrapping_add(1),
            una: StreamOffset::ZERO,
            nxt: StreamOffset::ZERO,
            claimed: StreamOffset::ZERO,
            claimed_once: StreamOffset::ZERO,
            end: StreamOffset::ZERO,
            fin: Fin::NotQueued,
            window,
            window_max: window,
            window_shift,
            last_sequence: sequence,
            last_ack: StreamOffset::ZERO,
        }
    }

    /// The sequence number of a stream offset.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "sequence numbers are modulo 2^32"
    )]
    pub const fn sequence_of(&self, offset: StreamOffset) -> SeqNumber {
        self.first.wrapping_add(offset.0 as u32)
    }

    /// The stream offset of a sequence number within 2^31 of SND.UNA; `None` if that is before
    /// the stream's start.
    #[must_use]
    pub fn offset_of(&self, sequence: SeqNumber) -> Option<StreamOffset> {
        let distance = i64::from(sequence.distance(self.sequence_of(self.una)));
        self.una.0.checked_add_signed(distance).map(StreamOffset)
    }

    /// The stream range of a SACK block; `None` unless it lies in SND.UNA..SND.NXT and is not
    /// reversed: a peer may send any block.
    #[must_use]
    pub fn reported_range(&self, block: (SeqNumber, SeqNumber)) -> Option<StreamRange> {
        let (start, end) = (self.offset_of(block.0)?, self.offset_of(block.1)?);
        let valid = self.una <= start && start < end && end <= self.nxt;
        valid.then(|| StreamRange::new(start, end))
    }

    /// SND.NXT as a sequence number.
    #[must_use]
    pub const fn next_sequence(&self) -> SeqNumber {
        self.sequence_of(self.nxt)
    }

    /// SND.WND, bytes.
    #[must_use]
    pub const fn window(&self) -> u64 {
        self.window
    }

    /// MAX.SND.WND, bytes.
    #[must_use]
    pub const fn window_max(&self) -> u64 {
        self.window_max
    }

    /// Queued bytes that the peer's window admits and that are not claimed yet.
    #[must_use]
    pub fn admitted(&self) -> StreamRange {
        let edge = (self.una + self.window).min(self.end);
        StreamRange::new(self.claimed, edge.max(self.claimed))
    }

    /// Queued bytes not claimed yet, whether the window admits them or not.
    #[must_use]
    pub const fn unclaimed_bytes(&self) -> u64 {
        self.end.0.saturating_sub(self.claimed.0)
    }

    /// Bytes being fetched that were never sent.
    #[must_use]
    pub const fn fetching_bytes(&self) -> u64 {
        self.claimed.0 - self.nxt.0
    }

    /// Whether our FIN was sent and acknowledged.
    #[must_use]
    pub fn is_fin_acknowledged(&self) -> bool {
        self.fin == Fin::Sent && self.una > self.end
    }

    /// A segment that passed the checks: RFC 9293 s3.10.7.4, the window update of ESTABLISHED.
    /// Returns whether the window grew.
    ///
    /// The RFC looks at SEG.SEQ first, and so a retransmission that acknowledges more would move
    /// SND.UNA and not SND.WND, and with it the right edge to where the peer never put it. What
    /// acknowledges more was sent later, whatever its SEG.SEQ: SEG.ACK comes first here.
    pub fn update_window(&mut self, sequence: SeqNumber, ack: StreamOffset, raw: u16) -> bool {
        let is_older = sequence.distance(self.last_sequence) < 0;
        if ack < self.last_ack || (ack == self.last_ack && is_older) {
            return false;
        }
        let window = u64::from(raw) << self.window_shift;
        let grew = ack + window > self.una.max(self.last_ack) + self.window;
        self.window = window;
        self.window_max = self.window_max.max(window);
        self.last_sequence = sequence;
        self.last_ack = ack;
        grew
    }
}

#[cfg(test)]
mod tests {
    use wire::SeqNumber;

    use super::SendState;
    use crate::stream::StreamOffset;

    fn state() -> SendState {
        SendState::new(SeqNumber(u32::MAX - 10), 1000, 2, SeqNumber(7))
    }

    #[test]
    fn offsets_and_sequence_numbers_agree_across_the_wrap() {
        let mut send = state();
        assert_eq!(send.sequence_of(StreamOffset(0)), SeqNumber(u32::MAX - 9));
        assert_eq!(send.sequence_of(StreamOffset(10)), SeqNumber(0));
        send.una = StreamOffset(5 << 32);
        let offset = StreamOffset((5 << 32) + 70_000);
        assert_eq!(send.offset_of(send.sequence_of(offset)), Some(offset));
        let before = StreamOffset((5 << 32) - 70_000);
        assert_eq!(send.offset_of(send.sequence_of(before)), Some(before));
    }

    #[test]
    fn nothing_lies_before_the_stream() {
        let send = state();
        assert_eq!(
            send.offset_of(SeqNumber(u32::MAX - 9)),
            Some(StreamOffset(0))
        );
        assert_eq!(send.offset_of(SeqNumber(u32::MAX - 10)), None);
    }

    #[test]
    fn only_newer_segments_move_the_window() {
        let mut send = state();
        assert!(send.update_window(SeqNumber(7), StreamOffset(0), 500));
        assert_eq!(send.window(), 2000);
        assert!(
            !send.update_window(SeqNumber(6), StreamOffset(0), 900),
            "an older segment"
        );
        assert_eq!(send.window(), 2000);
        assert!(!send.update_window(SeqNumber(8), StreamOffset(0), 100));
        assert_eq!((send.window(), send.window_max()), (400, 2000));
        assert!(
            send.update_window(SeqNumber(6), StreamOffset(9), 900),
            "a retransmission with a newer acknowledgment"
        );
        assert_eq!(send.window(), 3600);
        assert!(!send.update_window(SeqNumber(9), StreamOffset(8), 100));
        assert_eq!(send.window(), 3600, "an older acknowledgment");
    }

    #[test]
    fn the_window_admits_up_to_its_edge_and_no_less_than_was_claimed() {
        let mut send = state();
        send.end = StreamOffset(5000);
        assert_eq!(send.admitted().bytes(), 1000);
        send.claimed = StreamOffset(1500);
        assert!(
            send.admitted().is_empty(),
            "a window that shrank admits nothing"
        );
        assert_eq!(send.unclaimed_bytes(), 3500);
    }
}
