//! The interface to a trace of connections: what is reported of each segment, read and loss.
//!
//! A connection is traced from the end of its handshake or not at all. One that is not costs a
//! branch for each segment. Nothing is kept here: the trace gets references, and decides what to
//! write.

use core::fmt;

use clock::Instant;
use tcp::{ConnectionInfo, FourTuple, SegmentDrop, StreamOffset, StreamRange};
use wire::TcpRepr;

/// Keeps a trace. Called within the conductor's round, so it must neither block nor wait.
pub trait ConnectionTrace: fmt::Debug {
    /// Whether a connection that was just established is to be traced. If so, its last event is
    /// [`TraceEvent::Ended`].
    fn wants(&mut self, tuple: &FourTuple) -> bool;

    /// Something happened to a traced connection. `now` never decreases.
    fn record(&mut self, now: Instant, tuple: &FourTuple, event: &TraceEvent<'_>);
}

/// What happened to a connection. Ranges and offsets are of the stream that we send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceEvent<'a> {
    /// The handshake is complete.
    Established(&'a ConnectionInfo),
    /// A segment arrived, and TCP has processed it.
    Received {
        /// Its header.
        segment: &'a TcpRepr,
        /// Its text, bytes.
        payload_bytes: usize,
        /// The offset of SEG.ACK; `None`: before the stream's start.
        acknowledgment: Option<StreamOffset>,
        /// Why it was not processed further, if it was not.
        drop: Option<SegmentDrop>,
    },
    /// The link took a segment. It may cut it into packets.
    Sent {
        /// Its header.
        segment: &'a TcpRepr,
        /// Its text; empty for an ACK, a probe or a FIN.
        range: StreamRange,
        /// Its text was sent before.
        is_retransmission: bool,
    },
    /// These bytes are considered lost. It is reported with each event until they are sent again.
    Lost(StreamRange),
    /// A reply was queued.
    Queued {
        /// Its bytes.
        range: StreamRange,
    },
    /// A read of the disk was planned. While the disk's queue is full it is planned again.
    ReadBegun {
        /// The bytes it is for, those of text before them included.
        range: StreamRange,
        /// Bytes read, those for alignment included.
        read_bytes: u32,
        /// They were sent before, and considered lost.
        is_retransmission: bool,
    },
    /// A read of the disk completed.
    ReadEnded {
        /// The bytes it was for.
        range: StreamRange,
        /// Whether they are there; if not, the connection is reset.
        is_filled: bool,
    },
    /// The state after one of the events above, or after a timer.
    Evaluated(&'a ConnectionInfo),
    /// The connection is over.
    Ended(TraceEnd),
}

/// How a traced connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceEnd {
    /// FINs of both sides.
    Finished,
    /// The peer reset it.
    Reset,
    /// Retransmissions, probes or our FIN were not acknowledged in time.
    TimedOut,
    /// We reset it: a failed read, a send timeout, an error of TLS, or the end of the server.
    Aborted,
    /// It was idle, and closed to make room.
    Evicted,
}

impl TraceEnd {
    /// The name in traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Reset => "reset",
            Self::TimedOut => "timed_out",
            Self::Aborted => "aborted",
            Self::Evicted => "evicted",
        }
    }
}
