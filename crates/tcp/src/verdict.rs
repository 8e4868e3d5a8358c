//! What was decided about a segment or a connection. Plain values: the core never logs.

use core::ops::Range;

/// Why a segment was not processed further.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentDrop {
    /// Outside the receive window; an ACK answers it (RFC 9293 s3.10.7.4).
    OutOfWindow,
    /// PAWS (RFC 7323 s5.3); an ACK answers it.
    StaleTimestamp,
    /// The agreed timestamp option is missing (RFC 7323 s3.2).
    MissingTimestamp,
    /// A reset in the window but not at its edge: challenge ACK (RFC 5961 s3.2).
    InexactReset,
    /// A SYN on a synchronised connection: challenge ACK (RFC 5961 s4.2).
    UnexpectedSyn,
    /// No ACK flag.
    NoAck,
    /// It acknowledges what was never sent, or is too old: challenge ACK (RFC 5961 s5.2).
    UnacceptableAck,
}

impl SegmentDrop {
    /// Number of reasons.
    pub const COUNT: usize = 7;
    /// All reasons, in the order of their discriminants.
    pub const ALL: [Self; Self::COUNT] = [
        Self::OutOfWindow,
        Self::StaleTimestamp,
        Self::MissingTimestamp,
        Self::InexactReset,
        Self::UnexpectedSyn,
        Self::NoAck,
        Self::UnacceptableAck,
    ];

    /// The reason's name as counters have it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OutOfWindow => "out_of_window",
            Self::StaleTimestamp => "stale_timestamp",
            Self::MissingTimestamp => "missing_timestamp",
            Self::InexactReset => "inexact_reset",
            Self::UnexpectedSyn => "unexpected_syn",
            Self::NoAck => "no_ack",
            Self::UnacceptableAck => "unacceptable_ack",
        }
    }
}

/// Why a connection is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// Both sides finished; nothing is owed.
    Finished,
    /// The peer sent a reset.
    Reset,
    /// Retransmissions, window probes or keep-alives went unanswered, or the peer's FIN never came.
    TimedOut,
}

/// What is to become of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It goes on.
    Open,
    /// It is over and can be forgotten.
    Closed(CloseReason),
    /// It is over, but its name must stay taken a while: see [`crate::time_wait`].
    TimeWait,
}

/// What a segment brought.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "text that is not taken is lost: it has been acknowledged"]
pub struct Arrival {
    /// The part of the payload that is new and in order; the session's from now on.
    pub text: Range<usize>,
    /// The peer's FIN is in order: no more text will come.
    pub peer_finished: bool,
    /// SND.UNA moved.
    pub acknowledged: bool,
    /// The last retransmission timeout was spurious, and what it did to the window is undone
    /// (RFC 3522, RFC 5682).
    pub timeout_undone: bool,
    /// What is to become of the connection.
    pub outcome: Outcome,
    /// Why the segment was not processed further, if it was not.
    pub drop: Option<SegmentDrop>,
}

impl Arrival {
    pub(crate) const fn dropped(reason: SegmentDrop) -> Self {
        Self {
            text: 0..0,
            peer_finished: false,
            acknowledged: false,
            timeout_undone: false,
            outcome: Outcome::Open,
            drop: Some(reason),
        }
    }
}
