//! Undo of reductions of the window, because whatever was retransmitted was needless.
//!
//! Segments that overtake each other by more than RACK waits for look lost. Three things show that a segment
//! that was retransmitted was only late:
//!
//! * it arrives sooner after its retransmission than the least round trip;
//! * the ACK that moves SND.UNA over it echoes a timestamp from before (Eifel, RFC 3522), as in Linux;
//! * the receiver gets it twice, and reports that by a DSACK (RFC 2883).
//!
//! Once each segment of a loss event was late or was not retransmitted, nothing was lost: cwnd and ssthresh are
//! restored (RFC 3708, RFC 4015 s3.2). From the first two RACK learns how late the segment was.
//!
//! DSACKs take a round trip, and the next loss event may have begun meanwhile. So a few reductions are
//! remembered: if an older one turns out to be needless, those after it are made again, from the windows
//! that it had reduced.
//!
//! Refused: a guess. Bytes that were retransmitted twice, or in more than [`RESENT_RUNS_MAX`] runs, leave
//! the reductions as they are, and so does one for another reason after them. A receiver that lies gets a
//! larger window, as it would by acknowledging what it did not get.

use super::Connection;
use crate::canary::Fault;
use crate::congestion::{Controller as _, Snapshot};
use crate::recovery::RecoveryState;
use crate::stream::StreamRange;

/// Most runs of retransmitted bytes of one loss event that are waited for. Reordering makes few: RACK
/// waits longer after each round trip with a DSACK. Reports of bytes in the middle make more of a run.
pub(super) const RESENT_RUNS_MAX: usize = 16;
/// Most reductions that are remembered. Of one in each round trip, the reports of all but the last have
/// arrived, if they come.
const RECORDS_MAX: usize = 3;

/// A reduction for a loss, while it may turn out to be needless.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LossRecord {
    before: Snapshot,
    /// RACK.reo_wnd_mult when RACK found the loss; `None`: it was a timeout.
    multiple: Option<u32>,
    /// Retransmitted since, and not reported as a duplicate: runs without overlap, in no order.
    resent: Vec<StreamRange>,
}

impl LossRecord {
    const fn new(before: Snapshot, multiple: Option<u32>) -> Self {
        Self {
            before,
            multiple,
            resent: Vec::new(),
        }
    }

    fn has_resent(&self, range: StreamRange) -> bool {
        let is_part = |run: &StreamRange| run.intersection(range).is_some();
        self.resent.iter().any(is_part)
    }

    /// Bytes were retransmitted for the first time.
    fn on_resent(&mut self, range: StreamRange) {
        self.resent.push(range);
    }

    /// Whether there are more runs than are waited for.
    const fn is_full(&self) -> bool {
        self.resent.len() > RESENT_RUNS_MAX
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

/// These bytes arrived by their first transmission, though they were retransmitted since. RACK.reo_wnd_mult when they
/// were considered lost, if that was by RACK.
pub(super) fn note_late(records: &mut [LossRecord], range: StreamRange) -> Option<u32> {
    let mut multiple = None;
    for record in records {
        if record.has_resent(range) {
            record.on_reported(range);
            multiple = record.multiple;
        }
    }
    multiple
}

impl Connection {
    /// The window is about to be reduced because RACK found a loss.
    pub(super) fn record_loss(&mut self) {
        if !self.congestion.reduces_by_rate() {
            // BBR itself remembers what its last reduction changed.
            self.forget_losses();
        }
        if self.loss_records.len() >= RECORDS_MAX {
            self.loss_records.remove(0);
        }
        let before = self.congestion.snapshot();
        self.loss_records
            .push(LossRecord::new(before, Some(self.rack.multiple())));
    }

    /// The window is about to be reduced because the retransmission timer fired. Slow start begins, from
    /// which no older reduction is undone.
    pub(super) fn record_loss_by_timeout(&mut self) {
        let before = self.congestion.snapshot();
        self.loss_records.clear();
        self.loss_records.push(LossRecord::new(before, None));
    }

    /// The window was reduced for another reason, or is another path's: all reductions stay.
    pub(super) fn forget_losses(&mut self) {
        self.loss_records.clear();
    }

    /// Bytes were retransmitted. A tail loss probe is of no loss event.
    pub(super) fn record_resent_bytes(&mut self, range: StreamRange) {
        if self.recovery == RecoveryState::Open {
            return;
        }
        // A report could be of either.
        let is_again = (self.loss_records.iter()).any(|record| record.has_resent(range));
        let Some(last) = self.loss_records.last_mut() else {
            return;
        };
        last.on_resent(range);
        if is_again || last.is_full() {
            self.forget_losses();
        }
    }

    /// An ACK reported `duplicate` as received twice, or shows that something arrived. Returns whether a
    /// reduction was undone.
    pub(super) fn check_needless_resends(&mut self, duplicate: Option<StreamRange>) -> bool {
        if self.loss_records.is_empty() || self.config.canary.is(Fault::RecoveryNotUndone) {
            return false;
        }
        if let Some(block) = duplicate {
            for record in &mut self.loss_records {
                record.on_reported(block);
            }
        }
        if self.loss_records.iter().any(LossRecord::is_full) {
            self.forget_losses();
        }
        // What is considered lost and was not retransmitted may be lost. It is of the last event.
        let is_repaired = self.flight.lost_bytes() + self.flight.claimed_bytes() == 0;
        let mut is_undone = false;
        for index in (0..self.loss_records.len()).rev() {
            let is_last = index + 1 == self.loss_records.len();
            if self.loss_records[index].resent.is_empty() && (is_repaired || !is_last) {
                self.undo_loss(index);
                is_undone = true;
            }
        }
        is_undone
    }

    fn undo_loss(&mut self, index: usize) {
        let record = self.loss_records.remove(index);
        if record.multiple.is_some() {
            // All that was considered lost has arrived: it was overtaken.
            self.rack.on_reordering();
        }
        if index < self.loss_records.len() {
            return self.reduce_again(index, record.before);
        }
        self.congestion.restore(record.before);
        self.withdraw_reduction();
        // See `undo_timeout`.
        self.rack.forget_newest();
        self.recovery = RecoveryState::Open;
        self.timeout_record = None;
    }

    /// The reductions from `index` on are made again, from the window before the one that was needless.
    fn reduce_again(&mut self, index: usize, before: Snapshot) {
        let present = self.congestion.snapshot();
        let present_window = self.congestion.window();
        self.congestion.restore(before);
        for later in &mut self.loss_records[index..] {
            later.before = self.congestion.snapshot();
            self.congestion.on_loss();
            // During the last recovery rate reduction governs, whose end does this again.
            self.congestion.on_recovered();
        }
        if self.congestion.window() < present_window {
            // It has grown since.
            self.congestion.restore(present);
        }
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
        let congestion = Congestion::new(CongestionControl::Reno, start);
        LossRecord::new(congestion.snapshot(), None)
    }

    #[test]
    fn a_run_may_be_reported_in_pieces_and_in_any_order() {
        let mut record = record();
        record.on_resent(range(1000, 4000));
        record.on_reported(range(2000, 3000));
        assert_eq!(record.resent, [range(1000, 2000), range(3000, 4000)]);
        record.on_reported(range(3000, 9000));
        record.on_reported(range(0, 1999));
        assert_eq!(record.resent, [range(1999, 2000)]);
        record.on_reported(range(1999, 2000));
        assert_eq!(record.resent, []);
    }

    #[test]
    fn bytes_are_found_in_the_runs_that_hold_them() {
        let mut record = record();
        record.on_resent(range(1000, 2000));
        for (start, end, is_found) in [(1999, 2000, true), (2000, 2001, false), (0, 1000, false)] {
            assert_eq!(record.has_resent(range(start, end)), is_found, "{start}");
        }
    }

    #[test]
    fn runs_are_counted_up_to_their_limit() {
        let mut record = record();
        for run in 0..RESENT_RUNS_MAX as u64 {
            record.on_resent(range(run * 10, run * 10 + 3));
        }
        assert!(!record.is_full());
        record.on_reported(range(1, 2));
        assert!(
            record.is_full(),
            "a report in the middle makes two of a run"
        );
    }
}
