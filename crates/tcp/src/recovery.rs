//! Loss detection and the sending rate during recovery: RACK-TLP (RFC 8985) and proportional rate
//! reduction (RFC 9937).
//!
//! RACK considers a transmission lost when a later one has arrived and a short time for reordering
//! has passed. Time fits large segments better than counting packets does: one entry of the log is
//! some forty packets sent at one moment. For peers without SACK a loss is three duplicate ACKs, as
//! in RFC 6582.

use clock::{Duration, Instant};

use crate::congestion::WINDOW_BYTES_MAX;
use crate::flight::{Flight, Transmission};
use crate::rtt::RttEstimator;
use crate::stream::StreamOffset;

/// Duplicate ACKs that mean a loss (RFC 5681 s3.2), and RACK's DupThresh.
pub const DUPLICATE_THRESHOLD: u32 = 3;
/// Greatest multiple of min_rtt/4 the reordering window grows to on DSACKs, as in Linux. RFC 8985 has none: SRTT
/// bounds the window, which is many times min_rtt/4 where segments are late at random.
const REORDER_MULTIPLE_MAX: u32 = 255;
/// Recoveries after which a grown reordering window shrinks again (RFC 8985 s6.2.2).
const REORDER_PERSIST: u32 = 16;

/// RACK's view of the newest delivery (RFC 8985 s5.3).
#[derive(Clone, Copy, Debug)]
pub struct Rack {
    /// RACK.xmit_ts and RACK.end_seq: of the delivered transmissions, the one sent last.
    newest: Option<(Instant, StreamOffset)>,
    /// RACK.rtt of that transmission.
    rtt: Duration,
    /// RACK.fack: the highest byte known to have arrived.
    highest_delivered: StreamOffset,
    /// RACK.reordering_seen.
    reordering_seen: bool,
    /// RACK.reo_wnd_mult.
    multiple: u32,
    /// RACK.reo_wnd_persist.
    persist: u32,
    /// RACK.dsack_round: DSACKs count once until this is acknowledged.
    dsack_round: Option<StreamOffset>,
}

impl Rack {
    /// Nothing delivered yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            newest: None,
            rtt: Duration::ZERO,
            highest_delivered: StreamOffset::ZERO,
            reordering_seen: false,
            multiple: 1,
            persist: 0,
            dsack_round: None,
        }
    }

    /// `entry` is newly known to have arrived (RFC 8985 s6.2, steps 1 to 3).
    pub fn on_delivered(&mut self, now: Instant, entry: &Transmission, rtt_min: Duration) {
        let rtt = now.since(entry.sent_at);
        if entry.end > self.highest_delivered {
            self.highest_delivered = entry.end;
        } else if !entry.retransmitted {
            self.reordering_seen = true;
        }
        // An ACK sooner than the minimum RTT is of the first transmission, not of the second.
        if entry.retransmitted && rtt < rtt_min {
            return;
        }
        let sent = (entry.sent_at, entry.end);
        if self.newest.is_none_or(|newest| sent > newest) {
            self.newest = Some(sent);
            self.rtt = rtt;
        }
    }

    /// The peer sent a DSACK: we retransmitted too early, so the reordering window grows (RFC 8985
    /// s6.2, step 4), at most once in a round trip. `una` is SND.UNA, `nxt` SND.NXT.
    pub fn on_dsack(&mut self, una: StreamOffset, nxt: StreamOffset) {
        self.persist = REORDER_PERSIST;
        if self.dsack_round.is_none_or(|end| una >= end) {
            self.dsack_round = Some(nxt);
            self.multiple = (self.multiple + 1).min(REORDER_MULTIPLE_MAX);
        }
    }

    /// RACK.reo_wnd_mult.
    pub const fn multiple(&self) -> u32 {
        self.multiple
    }

    /// What was retransmitted `lateness` ago, when RACK.reo_wnd_mult was at most `multiple`, has arrived by its first
    /// transmission: the window was too short by that at least.
    pub fn on_late(&mut self, lateness: Duration, multiple: u32, rtt_min: Duration) {
        self.persist = REORDER_PERSIST;
        let steps = lateness.as_nanos().checked_div(rtt_min.as_nanos() / 4);
        let steps = u32::try_from(steps.unwrap_or(0)).unwrap_or(u32::MAX);
        let needed = multiple.saturating_add(steps).saturating_add(1);
        self.multiple = needed.min(REORDER_MULTIPLE_MAX).max(self.multiple);
    }

    /// A loss event was none: what it considered lost had been overtaken. RFC 8985 s6.2, step 3, learns
    /// that from segments that arrive before they are retransmitted, which these did not.
    pub fn on_reordering(&mut self) {
        self.reordering_seen = true;
    }

    /// Whether segments have overtaken each other.
    pub const fn has_seen_reordering(&self) -> bool {
        self.reordering_seen
    }

    /// Forgets the newest delivery, which may have been of a needless retransmission: no other
    /// transmission is overdue because of it.
    pub fn forget_newest(&mut self) {
        self.newest = None;
    }

    /// A recovery ended.
    pub fn on_recovery_end(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.multiple = 1;
        }
    }

    /// RACK.reo_wnd: how long to wait for reordered packets.
    fn window(&self, flight: &Flight, rtt: &RttEstimator, context: RackContext) -> Duration {
        if !self.reordering_seen {
            let enough = u64::from(DUPLICATE_THRESHOLD) * context.segment_bytes;
            if context.is_recovering || flight.sacked_bytes() >= enough {
                return Duration::ZERO;
            }
        }
        let Some(smoothed) = rtt.smoothed() else {
            return Duration::ZERO;
        };
        (rtt.minimum() / 4)
            .saturating_mul(self.multiple)
            .min(smoothed)
    }

    /// Marks transmissions that are lost by now, and calls `on_lost` for each. Returns their bytes,
    /// and the deadline of the next one that is late but not yet lost (RFC 8985 s6.2, step 5).
    pub fn detect(
        &self,
        now: Instant,
        flight: &mut Flight,
        rtt: &RttEstimator,
        context: RackContext,
        mut on_lost: impl FnMut(&Transmission),
    ) -> (u64, Option<Instant>) {
        let Some(newest) = self.newest else {
            return (0, None);
        };
        let wait = self.rtt + self.window(flight, rtt, context);
        let mut next: Option<Instant> = None;
        let lost = flight.mark_lost(|entry| {
            if (entry.sent_at, entry.end) >= newest {
                return false;
            }
            let deadline = entry.sent_at + wait;
            if deadline <= now {
                on_lost(entry);
                return true;
            }
            next = Some(next.map_or(deadline, |next| next.min(deadline)));
            false
        });
        (lost, next)
    }
}

impl Default for Rack {
    fn default() -> Self {
        Self::new()
    }
}

/// The state that decides whether RACK waits for reordered packets.
#[derive(Clone, Copy, Debug)]
pub struct RackContext {
    /// Whether a recovery is under way.
    pub is_recovering: bool,
    /// SMSS, bytes.
    pub segment_bytes: u64,
}

/// The state of loss recovery (RFC 5681, RFC 6675 s5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryState {
    /// No loss is being repaired.
    Open,
    /// Fast recovery, until everything before `high` is acknowledged.
    Recovery {
        /// RecoveryPoint: SND.NXT when it began.
        high: StreamOffset,
        /// The sending rate meanwhile; `None`: the controller's window holds as before.
        reduction: Option<RateReduction>,
    },
    /// The retransmission timer fired; slow start until `high` is acknowledged.
    Loss {
        /// SND.NXT when it fired.
        high: StreamOffset,
    },
}

/// What an ACK, or RACK's timer, brings a fast recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryProgress {
    /// DeliveredData: bytes newly known to have arrived.
    pub delivered_bytes: u64,
    /// Bytes in the network and those being fetched, after it.
    pub outstanding_bytes: u64,
    /// The controller's ssthresh.
    pub threshold: u64,
    /// SMSS, bytes.
    pub segment_bytes: u64,
    /// safeACK: SND.UNA moved and no further loss was detected.
    pub is_safe: bool,
    /// A peer without SACK acknowledged a part of what was lost: one segment may be retransmitted at
    /// once (RFC 6582 s3.2, step 3).
    pub is_partial: bool,
}

/// Proportional rate reduction (RFC 9937 s6), all in bytes: the window during a fast recovery, which
/// ends near ssthresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateReduction {
    /// RecoverFS: outstanding bytes when recovery began, before the ACK that began it.
    flight_at_start: u64,
    /// prr_delivered.
    delivered: u64,
    /// prr_out.
    sent: u64,
    /// cwnd meanwhile.
    window: u64,
}

impl RateReduction {
    /// Recovery begins with `flight_bytes` outstanding. Nothing may be sent before the first
    /// [`RateReduction::on_progress`].
    #[must_use]
    pub const fn new(flight_bytes: u64) -> Self {
        Self {
            flight_at_start: flight_bytes,
            delivered: 0,
            sent: 0,
            window: 0,
        }
    }

    /// cwnd, bytes.
    #[must_use]
    pub const fn window(&self) -> u64 {
        self.window
    }

    /// `bytes` were sent, or claimed to be sent.
    pub fn on_sent(&mut self, bytes: u64) {
        self.sent += bytes;
    }

    /// `bytes` that were claimed will not be sent.
    pub fn on_returned(&mut self, bytes: u64) {
        self.sent = self.sent.saturating_sub(bytes);
    }

    /// Sets the window: what is outstanding and what may be sent now.
    pub fn on_progress(&mut self, progress: &RecoveryProgress) {
        let RecoveryProgress {
            delivered_bytes,
            outstanding_bytes,
            threshold,
            segment_bytes,
            is_safe,
            is_partial,
        } = *progress;
        self.delivered += delivered_bytes;
        let allowed = if outstanding_bytes > threshold {
            let share = u128::from(self.delivered) * u128::from(threshold);
            let share = share.div_ceil(u128::from(self.flight_at_start.max(1)));
            u64::try_from(share)
                .unwrap_or(u64::MAX)
                .saturating_sub(self.sent)
        } else {
            // Not more than was delivered; and one segment, while the recovery goes well.
            let bound = self
                .delivered
                .saturating_sub(self.sent)
                .max(delivered_bytes);
            let bound = bound + if is_safe { segment_bytes } else { 0 };
            bound.min(threshold - outstanding_bytes)
        };
        // The first retransmission is sent at once.
        let is_forced = is_partial || self.sent == 0;
        let least = if is_forced { segment_bytes } else { 0 };
        let window = outstanding_bytes + allowed.max(least);
        self.window = window.clamp(segment_bytes, WINDOW_BYTES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use clock::{Duration, Instant};

    use super::{REORDER_MULTIPLE_MAX, Rack, RackContext, RateReduction, RecoveryProgress};
    use crate::flight::{Flight, SegmentState};
    use crate::rtt::RttEstimator;
    use crate::stream::{StreamOffset, StreamRange};

    const RTT: Duration = Duration::from_millis(40);
    const CONTEXT: RackContext = RackContext {
        is_recovering: false,
        segment_bytes: 1000,
    };

    fn range(start: u64, end: u64) -> StreamRange {
        StreamRange::new(StreamOffset(start), StreamOffset(end))
    }

    /// Two segments leave at 0 and 1 ms; the second is reported received at 41 ms.
    fn second_arrives_first() -> (Rack, Flight, RttEstimator, Instant) {
        let mut flight = Flight::default();
        flight.push(Instant::ZERO, range(0, 1000));
        flight.push(Instant::from_millis(1), range(1000, 2000));
        let mut rtt = RttEstimator::new();
        rtt.on_sample(RTT, true);
        let mut rack = Rack::new();
        let now = Instant::from_millis(41);
        flight.sack(range(1000, 2000), |entry| {
            rack.on_delivered(now, entry, RTT)
        });
        (rack, flight, rtt, now)
    }

    #[test]
    fn an_earlier_transmission_is_lost_a_quarter_round_trip_later() {
        let (rack, mut flight, rtt, now) = second_arrives_first();
        let (lost, next) = rack.detect(now, &mut flight, &rtt, CONTEXT, |_| {});
        // Deadline: sent at 0 + rtt 40 ms + 10 ms for reordering.
        assert_eq!((lost, next), (0, Some(Instant::from_millis(50))));
        let early = Instant::from_nanos(49_999_999);
        assert_eq!(rack.detect(early, &mut flight, &rtt, CONTEXT, |_| {}).0, 0);
        let due = Instant::from_millis(50);
        assert_eq!(
            rack.detect(due, &mut flight, &rtt, CONTEXT, |_| {}),
            (1000, None)
        );
        assert_eq!(
            flight.first().map(|entry| entry.state),
            Some(SegmentState::Lost)
        );
    }

    #[test]
    fn three_segments_above_a_hole_skip_the_reordering_wait() {
        let (mut rack, mut flight, rtt, now) = second_arrives_first();
        flight.push(Instant::from_millis(2), range(2000, 4000));
        flight.sack(range(2000, 3999), |entry| {
            rack.on_delivered(now, entry, RTT)
        });
        assert_eq!(flight.sacked_bytes(), 2999);
        assert_eq!(rack.detect(now, &mut flight, &rtt, CONTEXT, |_| {}).0, 0);
        flight.sack(range(3999, 4000), |entry| {
            rack.on_delivered(now, entry, RTT)
        });
        assert_eq!(rack.detect(now, &mut flight, &rtt, CONTEXT, |_| {}).0, 1000);
    }

    #[test]
    fn after_reordering_was_seen_the_wait_is_never_skipped() {
        let (mut rack, mut flight, rtt, now) = second_arrives_first();
        // The first arrives after all: that was reordering.
        flight.acknowledge(StreamOffset(1000), |entry| {
            rack.on_delivered(now, entry, RTT)
        });
        assert!(rack.reordering_seen);
        flight.push(now, range(2000, 3000));
        flight.push(now + Duration::from_millis(1), range(3000, 7000));
        let later = now + RTT + Duration::from_millis(1);
        flight.sack(range(3000, 7000), |entry| {
            rack.on_delivered(later, entry, RTT)
        });
        let (lost, next) = rack.detect(later, &mut flight, &rtt, CONTEXT, |_| {});
        assert_eq!(lost, 0);
        assert_eq!(next, Some(now + RTT + RTT / 4));
    }

    /// A quarter of the round trip is 10 ms.
    #[test]
    fn a_late_segment_lengthens_the_reordering_wait_by_its_lateness_of_several_the_latest() {
        for (lateness, multiple) in [(0, 2), (9, 2), (10, 3), (25, 4)] {
            let (mut rack, ..) = second_arrives_first();
            rack.on_late(Duration::from_millis(lateness), 1, RTT);
            assert_eq!(rack.multiple(), multiple, "{lateness}");
            // Of the same event, whose wait was that of before.
            rack.on_late(Duration::from_millis(5), 1, RTT);
            assert_eq!(rack.multiple(), multiple, "{lateness}");
            rack.on_late(Duration::from_millis(5), multiple, RTT);
            assert_eq!(rack.multiple(), multiple + 1, "{lateness}");
        }
    }

    #[test]
    fn the_reordering_wait_has_a_greatest_multiple_and_a_round_trip_of_zero_none() {
        let (mut rack, ..) = second_arrives_first();
        rack.on_late(Duration::from_millis(5), 1, Duration::ZERO);
        assert_eq!(rack.multiple(), 2);
        rack.on_late(Duration::from_secs(60), 1, RTT);
        assert_eq!(rack.multiple(), REORDER_MULTIPLE_MAX);
    }

    #[test]
    fn dsacks_lengthen_the_reordering_wait_up_to_srtt() {
        let (mut rack, mut flight, rtt, now) = second_arrives_first();
        for una in [0, 500, 1999] {
            rack.on_dsack(StreamOffset(una), StreamOffset(2000 + una));
            let (_, next) = rack.detect(now, &mut flight, &rtt, CONTEXT, |_| {});
            assert_eq!(next, Some(Instant::from_millis(60)), "one round trip");
        }
        rack.on_dsack(StreamOffset(2000), StreamOffset(4000));
        let (_, next) = rack.detect(now, &mut flight, &rtt, CONTEXT, |_| {});
        assert_eq!(next, Some(Instant::from_millis(70)));
        for round in 2..40 {
            let una = StreamOffset(round * 2000);
            rack.on_dsack(una, una + 2000);
        }
        let (_, next) = rack.detect(now, &mut flight, &rtt, CONTEXT, |_| {});
        assert_eq!(next, Some(Instant::from_millis(80)), "srtt bounds the wait");
        for _ in 0..16 {
            rack.on_recovery_end();
        }
        let (_, next) = rack.detect(now, &mut flight, &rtt, CONTEXT, |_| {});
        assert_eq!(next, Some(Instant::from_millis(50)));
    }

    #[test]
    fn an_ack_sooner_than_the_minimum_rtt_is_not_of_the_retransmission() {
        let mut flight = Flight::default();
        flight.push(Instant::ZERO, range(0, 1000));
        let _ = flight.mark_lost(|_| true);
        flight.on_retransmitted(Instant::from_millis(100), range(0, 1000));
        let mut rack = Rack::new();
        let soon = Instant::from_millis(101);
        flight.acknowledge(StreamOffset(1000), |entry| {
            rack.on_delivered(soon, entry, RTT)
        });
        assert!(rack.newest.is_none());
    }

    const PROGRESS: RecoveryProgress = RecoveryProgress {
        delivered_bytes: 0,
        outstanding_bytes: 90_000,
        threshold: 70_000,
        segment_bytes: 1000,
        is_safe: false,
        is_partial: false,
    };

    /// What may be sent.
    fn allowed(reduction: &mut RateReduction, progress: RecoveryProgress) -> u64 {
        reduction.on_progress(&progress);
        reduction.window() - progress.outstanding_bytes
    }

    #[test]
    fn the_first_retransmission_is_sent_at_once_and_the_second_is_not() {
        let mut reduction = RateReduction::new(100_000);
        let first = RecoveryProgress {
            delivered_bytes: 100,
            outstanding_bytes: 99_000,
            ..PROGRESS
        };
        assert_eq!(allowed(&mut reduction, first), 1000);
        reduction.on_sent(1000);
        assert_eq!(allowed(&mut reduction, first), 0);
        // Below ssthresh, too.
        let mut reduction = RateReduction::new(100_000);
        let below = RecoveryProgress {
            outstanding_bytes: 10_000,
            ..PROGRESS
        };
        assert_eq!(allowed(&mut reduction, below), 1000);
        reduction.on_sent(1000);
        assert_eq!(allowed(&mut reduction, below), 0);
    }

    #[test]
    fn above_ssthresh_seven_are_sent_for_ten_delivered() {
        let mut reduction = RateReduction::new(100_000);
        let ten = RecoveryProgress {
            delivered_bytes: 10_000,
            ..PROGRESS
        };
        assert_eq!(allowed(&mut reduction, ten), 7000);
        reduction.on_sent(7000);
        assert_eq!(allowed(&mut reduction, PROGRESS), 0);
        reduction.on_returned(1000);
        assert_eq!(allowed(&mut reduction, PROGRESS), 1000);
        // To the byte: rounded up.
        reduction.on_sent(1000);
        let one = RecoveryProgress {
            delivered_bytes: 1,
            ..PROGRESS
        };
        assert_eq!(allowed(&mut reduction, one), 1);
    }

    #[test]
    fn below_ssthresh_a_safe_ack_permits_a_segment_more_than_was_delivered() {
        let below = RecoveryProgress {
            delivered_bytes: 5000,
            outstanding_bytes: 30_000,
            ..PROGRESS
        };
        let mut reduction = RateReduction::new(100_000);
        assert_eq!(allowed(&mut reduction, below), 5000);
        let safe = RecoveryProgress {
            is_safe: true,
            ..below
        };
        let mut reduction = RateReduction::new(100_000);
        assert_eq!(allowed(&mut reduction, safe), 6000);
        reduction.on_sent(6000);
        // Never past ssthresh, by one byte neither.
        for outstanding_bytes in [69_500, 69_999, 70_000] {
            let near = RecoveryProgress {
                outstanding_bytes,
                ..safe
            };
            let mut reduction = reduction;
            assert_eq!(allowed(&mut reduction, near), 70_000 - outstanding_bytes);
        }
    }

    #[test]
    fn a_partial_ack_permits_one_retransmission() {
        let mut reduction = RateReduction::new(100_000);
        reduction.on_sent(50_000);
        assert_eq!(allowed(&mut reduction, PROGRESS), 0);
        let partial = RecoveryProgress {
            is_partial: true,
            ..PROGRESS
        };
        assert_eq!(allowed(&mut reduction, partial), 1000);
    }
}
