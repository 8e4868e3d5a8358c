//! Verdicts about a segment or a connection. They are plain values: this crate never logs.

use core::ops::Range;

/// Why a segment was not processed further.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentDrop {
    /// Outside the receive window; an ACK answers it (RFC 9293 s3.10.7.4).
    OutOfWindow,
    /// PAWS (RFC 7323 s5.3); an ACK answers it.
    StaleTimestamp,
    /// A reset in the window but not at its edge: challenge ACK (RFC 5961 s3.2).
    InexactReset,
    /// A SYN on a synchronised connection: challenge ACK (RFC 5961 s4.2).
    UnexpectedSyn,
    /// No ACK flag.
    NoAck,
    /// It acknowledges bytes that were never sent, or is too old: challenge ACK (RFC 5961 s5.2).
    UnacceptableAck,
}

impl SegmentDrop {
    /// Number of reasons.
    pub const COUNT: usize = 6;
    /// All reasons, in the order of their discriminants.
    pub const ALL: [Self; Self::COUNT] = [
        Self::OutOfWindow,
        Self::StaleTimestamp,
        Self::InexactReset,
        Self::UnexpectedSyn,
        Self::NoAck,
        Self::UnacceptableAck,
    ];

    /// The reason's name, as used by the counters.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OutOfWindow => "out_of_window",
            Self::StaleTimestamp => "stale_timestamp",
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
    /// Both sides closed, and all data is acknowledged.
    Finished,
    /// The peer sent a reset.
    Reset,
    /// Retransmissions, window probes or keep-alives went unanswered, or the peer's FIN never came.
    TimedOut,
}

/// What happens to the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It goes on.
    Open,
    /// It is over and can be removed.
    Closed(CloseReason),
    /// It is over, but its four-tuple enters TIME-WAIT: see [`crate::time_wait`].
    TimeWait,
}

/// The result of handling a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "text that is not taken is lost: it has been acknowledged"]
pub struct Arrival {
    /// The part of the payload that is new and in order; the session must take it now.
    pub text: Range<usize>,
    /// The peer's FIN is in order: no more text will come.
    pub peer_finished: bool,
    /// SND.UNA moved.
    pub acknowledged: bool,
    /// The last retransmission timeout was spurious, and its reduction of the window was undone
    /// (RFC 3522, RFC 5682).
    pub timeout_undone: bool,
    /// DSACKs have shown that the retransmissions of the last loss event were needless, and its reduction
    /// of the window was undone (RFC 3708).
    pub loss_undone: bool,
    /// The segment is to be answered by a challenge ACK (RFC 5961), if the host's limit permits another
    /// one: see [`crate::Connection::send_challenge`].
    pub challenge: bool,
    /// The peer echoed a mark of congestion, and the window was reduced (RFC 3168).
    pub reduced_by_echo: bool,
    /// What happens to the connection.
    pub outcome: Outcome,
    /// Why the segment was not processed further, if it was not.
    pub drop: Option<SegmentDrop>,
}

impl Arrival {
    /// A segment that changed nothing.
    pub(crate) const ACCEPTED: Self = Self {
        text: 0..0,
        peer_finished: false,
        acknowledged: false,
        timeout_undone: false,
        loss_undone: false,
        challenge: false,
        reduced_by_echo: false,
        outcome: Outcome::Open,
        drop: None,
    };

    pub(crate) const fn dropped(reason: SegmentDrop) -> Self {
        Self {
            drop: Some(reason),
            ..Self::ACCEPTED
        }
    }
}
