//! Faults that this TCP once had, or that an oracle exists for. The simulator puts them in one at a
//! time, and its oracles must find each.
//!
//! The feature `canaries` makes that possible; only `tools/sim` turns it on. Without it a [`Canary`]
//! has no size and can hold no fault, so that the product has neither the faults nor a
//! branch for them.

/// A fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A timeout during a recovery reduces ssthresh a second time, from rate reduction's window
    /// (RFC 5681 s3.1: once for each loss event).
    TimeoutReducesTwice,
    /// The floor of the RTO is of the sum and not of the variance term, so that a long and steady
    /// path has no margin for a delayed ACK.
    TimeoutWithoutMargin,
    /// Spurious timeouts are not undone (RFC 4015).
    TimeoutNotUndone,
    /// Echoed timestamps give no RTT sample (RFC 7323 s4), each ACK of new data ends the backoff, and
    /// tail loss probes do not wait for a sample.
    NoSampleOfRetransmission,
    /// CUBIC counts application-limited time (RFC 9438 s5.8).
    PauseCounts,
    /// The reduction of a recovery whose retransmissions were all needless is not undone (RFC 3708).
    RecoveryNotUndone,
    /// Each echo of a mark reduces the window and has a CWR, also those of one window of data (RFC 3168
    /// s6.1.2).
    EchoAnsweredTwice,
    /// Slow start does not end at ssthresh within one ACK (RFC 5681 s3.1).
    SlowStartOvershoots,
}

/// The fault that a connection has, if any. The default has none.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Canary {
    #[cfg(feature = "canaries")]
    fault: Option<Fault>,
}

impl Canary {
    /// No fault.
    pub const NONE: Self = Self {
        #[cfg(feature = "canaries")]
        fault: None,
    };

    /// Connections with this fault.
    #[cfg(feature = "canaries")]
    #[must_use]
    pub const fn of(fault: Fault) -> Self {
        Self { fault: Some(fault) }
    }

    /// Whether it is this fault.
    #[cfg(feature = "canaries")]
    pub(crate) fn is(self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Whether it is this fault: never.
    #[cfg(not(feature = "canaries"))]
    #[expect(clippy::unused_self, reason = "the same call as with the feature")]
    pub(crate) const fn is(self, _fault: Fault) -> bool {
        false
    }
}

#[cfg(not(feature = "canaries"))]
const _: () = assert!(size_of::<Canary>() == 0, "the product pays for canaries");
