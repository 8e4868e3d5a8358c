//! Undo of a reduction of the window, because whatever was retransmitted was needless.
//!
//! Segments that overtake each other by more than RACK waits for look lost. The receiver then gets them
//! twice, and reports that by DSACKs (RFC 2883). Once every retransmission of a loss event was reported,
//! nothing was lost: cwnd and ssthresh are restored (RFC 3708, RFC 4015 s3.2). The same holds if the
//! recovery ends before anything was retransmitted, because the disk was slower than the segments.
//!
//! Refused: a guess. Bytes that were retransmitted twice, or in more than [`RESENT_RUNS_MAX`] runs, leave
//! the reduction as it is, and so does a second reduction after it. A receiver that lies gets a larger
//! window, as it would by acknowledging what it did not get.

use super::Connection;
use crate::canary::Fault;
use crate::congestion::{Controller as _, Snapshot};
use crate::recovery::RecoveryState;
use crate::stream::StreamRange;

/// Most runs of retransmitted bytes of one loss event that are waited for. Reordering makes few: RACK
/// waits longer after each round trip with a DSACK.
pub(super) const RESENT_RUNS_MAX: usize = 16;

/// The last reduction for a loss, while it may turn out to be needless.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LossRecord {
    before: Snapshot,
    /// Retransmitted since, and not reported as a duplicate: runs without overlap, in no order.
    resent: Vec<StreamRange>,
}

impl LossRecord {
    pub(super) const fn new(before: Snapshot) -> Self {
        Self {
            before,
            resent: Vec::new(),
        }
    }

    /// Bytes were retransmitted. Returns whether their reports can be told from those of others.
    fn on_resent(&mut self, range: StreamRange) -> bool {
        let is_again = |run: &StreamRange| run.intersection(range).is_some();
        if self.resent.len() >= RESENT_RUNS_MAX || self.resent.iter().any(is_again) {
            return false;
        }
        self.resent.push(range);
        true
    }

    /// The peer got these bytes twice. A run that is reported in the middle is two from then on.
    fn on_reported(&mut self, block: StreamRange) {
        let mut left = Vec::with_capacity(self.resent.len() + 1);
        for run in &self.resent {
            let Some(part) = run.intersection(block) else {
                left.push(*run);
                continue;
            };
            let before = StreamRange::new(run.start, part.start);
            let behind = StreamRange::new(part.end, run.end);
            left.extend([before, behind].into_iter().filter(|rest| !rest.is_empty()));
        }
        self.resent = left;
    }
}

impl Connection {
    /// The window is about to be reduced because of a loss.
    pub(super) fn record_loss(&mut self) {
        self.loss_record = Some(LossRecord::new(self.congestion.snapshot()));
    }

    /// The window was reduced for another reason, or is another path's: the last reduction stays.
    pub(super) fn forget_loss(&mut self) {
        self.loss_record = None;
    }

    /// Bytes were retransmitted. A tail loss probe is of no loss event.
    pub(super) fn record_resent_bytes(&mut self, range: StreamRange) {
        if self.recovery == RecoveryState::Open {
            return;
        }
        let record = self.loss_record.as_mut();
        if record.is_some_and(|record| !record.on_resent(range)) {
            self.loss_record = None;
        }
    }

    /// An ACK reported `duplicate` as received twice; `has_ended`: it also ended a recovery. Returns
    /// whether the reduction was undone.
    pub(super) fn check_needless_resends(
        &mut self,
        duplicate: Option<StreamRange>,
        has_ended: bool,
    ) -> bool {
        let Some(record) = &mut self.loss_record else {
            return false;
        };
        if let Some(block) = duplicate {
            record.on_reported(block);
        } else if !has_ended {
            return false;
        }
        // What is considered lost and was not retransmitted may be lost.
        let is_repaired = self.flight.lost_bytes() + self.flight.claimed_bytes() == 0;
        let is_needless = is_repaired && record.resent.is_empty();
        if is_needless && !self.config.canary.is(Fault::RecoveryNotUndone) {
            self.undo_loss();
            return true;
        }
        false
    }

    fn undo_loss(&mut self) {
        let Some(record) = self.loss_record.take() else {
            return;
        };
        self.congestion.restore(record.before);
        self.withdraw_reduction();
        // See `undo_timeout`.
        self.rack.forget_newest();
        self.recovery = RecoveryState::Open;
        self.timeout_record = None;
    }
}

#[cfg(test)]
mod tests {
    use super::{LossRecord, RESENT_RUNS_MAX, StreamRange};
    use crate::congestion::{Congestion, CongestionControl, Controller as _, Start};
    use crate::stream::StreamOffset;

    fn range(start: u64, end: u64) -> StreamRange {
        StreamRange::new(StreamOffset(start), StreamOffset(end))
    }

    fn record() -> LossRecord {
        let start = Start {
            segment_bytes: 1000,
            has_sack: true,
            seed: 0,
        };
        LossRecord::new(Congestion::new(CongestionControl::Reno, start).snapshot())
    }

    #[test]
    fn a_run_may_be_reported_in_pieces_and_in_any_order() {
        let mut record = record();
        assert!(record.on_resent(range(1000, 4000)));
        record.on_reported(range(2000, 3000));
        assert_eq!(record.resent, [range(1000, 2000), range(3000, 4000)]);
        record.on_reported(range(3000, 9000));
        record.on_reported(range(0, 1999));
        assert_eq!(record.resent, [range(1999, 2000)]);
        record.on_reported(range(1999, 2000));
        assert_eq!(record.resent, []);
    }

    #[test]
    fn bytes_sent_again_twice_are_not_told_apart() {
        let mut record = record();
        assert!(record.on_resent(range(1000, 2000)));
        assert!(record.on_resent(range(2000, 3000)));
        assert!(!record.on_resent(range(1999, 2000)));
    }

    #[test]
    fn runs_are_counted_up_to_their_limit() {
        let mut record = record();
        for run in 0..RESENT_RUNS_MAX as u64 {
            assert!(record.on_resent(range(run * 10, run * 10 + 1)));
        }
        assert!(!record.on_resent(range(5000, 5001)));
    }
}
