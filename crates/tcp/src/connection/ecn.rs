//! Explicit congestion notification (RFC 3168), if the handshake agreed on it.
//!
//! Mostly we send: packets of new data are ECT(0), so that a router can mark them instead of dropping
//! them. The receiver echoes a mark by ECE, on each ACK until it gets a CWR. An echo counts as a loss,
//! with nothing to retransmit: ssthresh and cwnd are reduced as after a fast retransmit, once for each
//! window of data. The first new data after any reduction has CWR.
//!
//! As a receiver of requests: a mark on one sets ECE on all our segments, until a CWR comes.
//!
//! Not ECT: retransmissions, whose marks an attacker could abuse (s6.1.5), and segments without data
//! (s6.1.4, s6.1.6). Refused: a smaller reduction than after a loss (RFC 8511), because the window would
//! then stay above a queue that is shared with flows without ECN; one segment each timeout while cwnd is
//! one segment (s6.1.2): a reduction leaves two at least.

use wire::{Ecn, TcpFlags, TcpRepr};

use super::Connection;
use super::timers::Acknowledgment;
use crate::canary::Fault;
use crate::congestion::Controller as _;
use crate::recovery::RecoveryState;
use crate::stream::StreamOffset;

/// The state of ECN on a connection that uses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct EcnState {
    /// A mark arrived, and no CWR after it: all our segments have ECE.
    echoes: bool,
    /// The window was reduced: the next new data has CWR.
    owes_cwr: bool,
    /// SND.NXT at the last reduction. An echo on an ACK that goes no further is of the same window of
    /// data: the receiver had not got the CWR, which comes with the next byte.
    reduced_at: Option<StreamOffset>,
}

impl Connection {
    /// Whether the handshake agreed on ECN.
    #[must_use]
    pub const fn uses_ecn(&self) -> bool {
        self.ecn.is_some()
    }

    /// An acceptable segment with text arrived (RFC 3168 s6.1.3). A CWR ends the echo, and a mark on the
    /// same packet begins another. Both are acknowledged at once: the peer's window may be one segment.
    pub(super) fn note_mark(&mut self, segment: &TcpRepr, ecn: Ecn) {
        let Some(state) = &mut self.ecn else { return };
        let has_cwr = segment.flags.contains(TcpFlags::CWR);
        let is_marked = ecn == Ecn::Ce;
        state.echoes = is_marked || (state.echoes && !has_cwr);
        if has_cwr || is_marked {
            self.acknowledgment = Acknowledgment::Now;
        }
    }

    /// ECE, if a mark is to be echoed.
    pub(super) fn echo_flag(&self) -> TcpFlags {
        match self.ecn {
            Some(EcnState { echoes: true, .. }) => TcpFlags::ECE,
            _ => TcpFlags::default(),
        }
    }

    /// Whether a segment says that packets of ours were marked.
    pub(super) fn is_echo(&self, segment: &TcpRepr) -> bool {
        self.uses_ecn() && segment.flags.contains(TcpFlags::ECE)
    }

    /// An ACK had an echo: reduces the window, unless it was reduced for this window of data already
    /// (RFC 3168 s6.1.2). Returns whether it did.
    pub(super) fn on_echo(&mut self) -> bool {
        // The byte at which SND.NXT was is the first that can have told the receiver.
        let is_told = self.reduced_at().is_none_or(|at| self.send.una > at)
            || self.config.canary.is(Fault::EchoAnsweredTwice);
        if self.recovery != RecoveryState::Open || !is_told {
            return false;
        }
        self.congestion.on_loss();
        self.congestion.on_recovered();
        self.pacer.on_loss();
        self.forget_losses();
        self.note_reduction();
        true
    }

    /// Whether the oldest byte outstanding was sent before the last reduction, so that its loss is no
    /// reason for another (RFC 3168 s6.1.2: once for each window of data, whether marked or lost).
    /// `false` without ECN, where the end of a recovery tells.
    pub(super) fn is_reduced_for_this_window(&self) -> bool {
        self.reduced_at().is_some_and(|at| self.send.una < at)
    }

    fn reduced_at(&self) -> Option<StreamOffset> {
        self.ecn.and_then(|state| state.reduced_at)
    }

    /// The window was reduced, for any reason (RFC 3168 s6.1.2: CWR also after a timeout or a fast
    /// retransmit).
    pub(super) fn note_reduction(&mut self) {
        if let Some(state) = &mut self.ecn {
            state.owes_cwr = true;
            state.reduced_at = Some(self.send.nxt);
        }
    }

    /// The reduction was undone.
    pub(super) fn withdraw_reduction(&mut self) {
        if let Some(state) = &mut self.ecn {
            state.owes_cwr = false;
            state.reduced_at = None;
        }
    }

    /// New data was sent, with CWR if it was owed.
    pub(super) fn on_new_data_sent(&mut self) {
        if let Some(state) = &mut self.ecn {
            state.owes_cwr = false;
        }
    }

    /// Whether the next new data has CWR.
    pub(super) fn owes_cwr(&self) -> bool {
        self.ecn.is_some_and(|state| state.owes_cwr)
    }
}
