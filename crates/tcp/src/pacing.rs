//! Pacing: what the congestion window permits is sent over the round trip and not in one burst, unless the window is no
//! larger than the initial one.
//!
//! Pacing is decided before the read, when bytes are claimed. So a slot is filled when its bytes may
//! be sent, and none waits full for its turn. After the read the bytes are sent at once: how far two
//! reads of the disk differ in time is not corrected.
//!
//! A claim of n bytes moves the schedule by n / rate. Bytes may be claimed while the schedule is no
//! more than `AHEAD_MIN` ahead of the clock, at most a quantum at once: as much as a full read, less while the window is
//! small, and after losses 1 ms of the rate; with BBR less while the window is small, and not ahead of the clock. Before a
//! loss several quanta may be claimed at once that a fast path takes in half of its round trip. A connection that the server could not serve in time may claim what it missed, up to a full
//! read, and where it waited for the schedule alone that stays as it was (`LATE_MAX`). Otherwise a busy server would
//! send small frames on windows that are never used whole and so never grow.

use clock::{Duration, Instant};

/// How far the schedule may be ahead of the clock, at least: after a loss, and while a window is small. It makes up for
/// timers that fire late.
const AHEAD_MIN: Duration = Duration::from_millis(1);
/// The same at most, and the time of [`AHEAD_LESS_BURSTS`]. A fast path that was idle is sent several slots at once, which
/// are one command of the disk and one wake-up (docs/develop/decisions/0016-pacing.md).
const AHEAD_MAX: Duration = Duration::from_millis(20);
/// The same, as one part in this many of the round trip: all of the window while that doubles ...
const AHEAD_SHARE: u32 = 2;
/// ... less the time of so many bursts. Of a window that is small a burst takes as long by itself, so it has one at a time:
/// its path may have a buffer of a few packets.
const AHEAD_LESS_BURSTS: u32 = 2;
/// The server may come so late for bytes that wait for the schedule alone, and nothing is sent slower: timers fire late, and
/// pauses coalesce wake-ups. Time beyond that is lost, because the path gets at once what was missed.
const LATE_MAX: Duration = Duration::from_millis(4);
/// A quantum is at least what the pacing rate sends in this time, as in Linux.
const QUANTUM_TIME: Duration = Duration::from_millis(1);
/// Least burst before a loss, bytes, and the greatest after one: about the initial window, a burst that
/// every path must take (RFC 6928).
pub const BURST_BYTES_MIN: u32 = 16 << 10;
/// Greatest burst of a path that does not lose, bytes: one full read and frame (15 blocks), because
/// smaller reads cost more (docs/develop/decisions/0003-read-size.md).
pub const BURST_BYTES_MAX: u32 = 60 << 10;
/// Before a loss a burst is at most one part in this many of the congestion window, unless that is less
/// than [`BURST_BYTES_MIN`].
const WINDOW_SHARE: u64 = 3;
/// After a loss at a rate that was measured a quantum is at most one part in this many of the window, and the schedule is not
/// ahead of the clock. There nothing but the schedule limits what is sent, and a buffer of a few packets drops what comes in
/// bursts (docs/develop/decisions/0018-bbr.md).
const MEASURED_WINDOW_SHARE: u64 = 32;
/// Least burst after a loss, segments, as in Linux.
const LOSSY_BURST_SEGMENTS_MIN: u64 = 2;
/// Windows without a loss that add a segment to the burst.
const GROWTH_WINDOWS: u64 = 16;
/// Least pacing rate, bytes a second: a schedule has an end.
const RATE_MIN: u64 = 1000;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// `value * factor / divisor`; `None` if that is more than a `u64` holds. A division of 128 bits takes
/// several times as long as one of 64, and the product has mostly no more.
fn scaled(value: u64, factor: u64, divisor: u64) -> Option<u64> {
    if let Some(product) = value.checked_mul(factor) {
        return Some(product / divisor);
    }
    u64::try_from(u128::from(value) * u128::from(factor) / u128::from(divisor)).ok()
}

/// All nanoseconds of a duration, 584 years at most.
fn nanos_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// How fast a connection may send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PacingRate {
    /// As the window permits: there is no RTT sample yet, or pacing is switched off.
    Unlimited,
    /// Bytes a second.
    Limited(u64),
}

impl PacingRate {
    /// `bytes` in each `interval`.
    #[must_use]
    pub fn of(bytes: u64, interval: Duration) -> Self {
        let rate = scaled(bytes, NANOS_PER_SECOND, nanos_of(interval).max(1));
        Self::Limited(rate.unwrap_or(u64::MAX).max(RATE_MIN))
    }

    /// `rate` bytes a second, or the least there is.
    #[must_use]
    pub fn limited(rate: u64) -> Self {
        Self::Limited(rate.max(RATE_MIN))
    }

    /// The lesser of this rate and `most` bytes a second.
    #[must_use]
    pub fn at_most(self, most: Option<u64>) -> Self {
        match (self, most) {
            (rate, None) => rate,
            (Self::Unlimited, Some(most)) => Self::Limited(most),
            (Self::Limited(rate), Some(most)) => Self::Limited(rate.min(most)),
        }
    }

    /// What is sent in `time`, bytes; `None`: as much as is there.
    pub(crate) fn bytes_in(self, time: Duration) -> Option<u64> {
        match self {
            Self::Unlimited => None,
            Self::Limited(rate) => {
                let bytes = scaled(rate, nanos_of(time), NANOS_PER_SECOND);
                Some(bytes.unwrap_or(u64::MAX / 2))
            }
        }
    }

    /// How long `bytes` take.
    fn time_of(self, bytes: u64) -> Duration {
        match self {
            Self::Unlimited => Duration::ZERO,
            Self::Limited(rate) => {
                let nanos = scaled(bytes, NANOS_PER_SECOND, rate.max(RATE_MIN));
                Duration::from_nanos(nanos.unwrap_or(u64::MAX))
            }
        }
    }
}

/// The schedule of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    /// When everything claimed so far has been sent at the pacing rate.
    done_at: Instant,
    /// Greatest burst, bytes: [`BURST_BYTES_MIN`] after a loss, and a segment more for every
    /// [`GROWTH_WINDOWS`] without one, up to [`BURST_BYTES_MAX`].
    burst_bytes: u32,
    /// Bytes acknowledged since then.
    acknowledged_bytes: u32,
    /// Least burst, bytes: smaller ones cost as much or more. 0: there is none.
    burst_min: u32,
    /// The rate is what the path was measured to carry, and not what the window makes it.
    is_rate_measured: bool,
    /// Nothing but the schedule has held back what is claimed next.
    is_awaited: bool,
}

impl Pacer {
    /// Nothing was claimed yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            done_at: Instant::ZERO,
            burst_bytes: BURST_BYTES_MAX,
            acknowledged_bytes: 0,
            burst_min: 0,
            is_rate_measured: false,
            is_awaited: false,
        }
    }

    /// The rate is BBR's: the schedule limits what is sent, and the window does not.
    #[must_use]
    pub const fn with_measured_rate(mut self, is_rate_measured: bool) -> Self {
        self.is_rate_measured = is_rate_measured;
        self
    }

    /// From now on no burst is smaller than `bytes`.
    pub const fn set_burst_min(&mut self, bytes: u32) {
        self.burst_min = bytes;
    }

    /// Most bytes to claim at once, in whole segments.
    #[must_use]
    pub fn quantum_bytes(
        &self,
        now: Instant,
        rate: PacingRate,
        window_bytes: u64,
        segment_bytes: u64,
    ) -> u64 {
        let least = rate.bytes_in(QUANTUM_TIME);
        let unused = rate.bytes_in(now.since(self.done_at));
        let (Some(least), Some(unused)) = (least, unused) else {
            return u64::MAX;
        };
        let least = if self.is_rate_measured && self.has_lost() {
            least.min(window_bytes / MEASURED_WINDOW_SHARE)
        } else {
            least
        };
        let (part, least_burst) = if self.has_lost() {
            (0, LOSSY_BURST_SEGMENTS_MIN * segment_bytes)
        } else {
            (window_bytes / WINDOW_SHARE, BURST_BYTES_MIN.into())
        };
        let burst = unused
            .max(part)
            .min(self.burst_bytes.into())
            .max(least_burst)
            .max(self.burst_min.into());
        least.max(burst).next_multiple_of(segment_bytes.max(1))
    }

    /// Whether there was a loss that the burst has not recovered from.
    pub(crate) const fn has_lost(&self) -> bool {
        self.burst_bytes < BURST_BYTES_MAX
    }

    /// A window was reduced because of a loss.
    pub fn on_loss(&mut self) {
        self.burst_bytes = BURST_BYTES_MIN;
        self.acknowledged_bytes = 0;
    }

    /// `bytes` were acknowledged, outside of fast recovery.
    pub fn on_acknowledged(&mut self, bytes: u64, window_bytes: u64, segment_bytes: u16) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.acknowledged_bytes = self.acknowledged_bytes.saturating_add(bytes);
        if u64::from(self.acknowledged_bytes) >= GROWTH_WINDOWS * window_bytes {
            self.acknowledged_bytes = 0;
            let grown = self.burst_bytes.saturating_add(segment_bytes.into());
            self.burst_bytes = grown.min(BURST_BYTES_MAX);
        }
    }

    /// When the next bytes may be claimed at this rate, on a path of this smoothed RTT; `None`: now. The rate is
    /// asked for only before a loss, where the schedule is further ahead than it may be at least.
    #[must_use]
    pub fn waits_until(
        &self,
        now: Instant,
        rate: impl FnOnce() -> PacingRate,
        round_trip: Duration,
    ) -> Option<Instant> {
        let until = self.done_at - self.ahead_min();
        if until <= now {
            return None;
        }
        let until = self.done_at - self.ahead(rate, round_trip);
        (until > now).then_some(until)
    }

    /// How far the schedule may be ahead of the clock, at least.
    const fn ahead_min(&self) -> Duration {
        if self.is_rate_measured && self.has_lost() {
            Duration::ZERO
        } else {
            AHEAD_MIN
        }
    }

    /// How far the schedule may be ahead of the clock when a burst is claimed.
    fn ahead(&self, rate: impl FnOnce() -> PacingRate, round_trip: Duration) -> Duration {
        if self.has_lost() {
            return self.ahead_min();
        }
        let burst_time = rate().time_of(BURST_BYTES_MAX.into());
        let most = (round_trip / AHEAD_SHARE).min(AHEAD_MAX);
        most.saturating_sub(burst_time * AHEAD_LESS_BURSTS)
            .max(AHEAD_MIN)
    }

    /// Whether bytes wait for the schedule, and for nothing else, from now on until this is said again.
    pub const fn set_awaited(&mut self, is_awaited: bool) {
        self.is_awaited = is_awaited;
    }

    /// `bytes` were claimed.
    pub fn on_claimed(&mut self, now: Instant, bytes: u64, rate: PacingRate) {
        let late = if self.is_awaited {
            LATE_MAX
        } else {
            Duration::ZERO
        };
        self.done_at = self.done_at.max(now - late) + rate.time_of(bytes);
    }

    /// `bytes` that were claimed will not be sent.
    pub fn on_returned(&mut self, bytes: u64, rate: PacingRate) {
        self.done_at = self.done_at - rate.time_of(bytes);
    }
}

impl Default for Pacer {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use clock::{Duration, Instant};

    use super::{BURST_BYTES_MAX, GROWTH_WINDOWS, LATE_MAX, Pacer, PacingRate, RATE_MIN, scaled};

    /// 1 MB/s: a byte a microsecond.
    const RATE: PacingRate = PacingRate::Limited(1_000_000);
    const START: Instant = Instant::from_millis(1000);
    /// A round trip of which half is no more than the least that the schedule may be ahead and two bursts.
    const NEAR: Duration = Duration::from_millis(4);

    #[test]
    fn a_claim_moves_the_schedule_by_the_time_its_bytes_take() {
        let mut pacer = Pacer::new();
        assert_eq!(pacer.waits_until(Instant::ZERO, || RATE, NEAR), None);
        pacer.on_claimed(START, 10_000, RATE);
        // Done after 10 ms; 1 ms of it may be ahead of the clock.
        let due = START + Duration::from_millis(9);
        assert_eq!(pacer.waits_until(START, || RATE, NEAR), Some(due));
        assert_eq!(
            pacer.waits_until(due - Duration::from_nanos(1), || RATE, NEAR),
            Some(due)
        );
        assert_eq!(pacer.waits_until(due, || RATE, NEAR), None);
        // What was claimed 1 ms ahead counts.
        pacer.on_claimed(due, 10_000, RATE);
        let next = START + Duration::from_millis(19);
        assert_eq!(pacer.waits_until(due, || RATE, NEAR), Some(next));
    }

    #[test]
    fn what_takes_no_longer_than_the_schedule_may_be_ahead_does_not_wait() {
        let mut pacer = Pacer::new();
        pacer.on_claimed(START, 1000, RATE);
        assert_eq!(pacer.waits_until(START, || RATE, NEAR), None);
        pacer.on_claimed(START, 1, RATE);
        let due = START + Duration::from_micros(1);
        assert_eq!(pacer.waits_until(START, || RATE, NEAR), Some(due));
    }

    /// How far the schedule may be ahead, in milliseconds.
    fn ahead(pacer: &Pacer, rate: PacingRate, round_trip: u64) -> u64 {
        let mut pacer = *pacer;
        pacer.done_at = START + Duration::from_secs(1);
        let due = pacer.waits_until(START, || rate, Duration::from_millis(round_trip));
        u64::try_from((pacer.done_at.since(due.unwrap())).as_millis()).unwrap()
    }

    #[test]
    fn before_a_loss_a_fast_path_may_have_several_bursts_at_once() {
        // A burst takes a millisecond.
        let fast = PacingRate::Limited(u64::from(BURST_BYTES_MAX) * 1000);
        let mut pacer = Pacer::new();
        for (round_trip, expected) in [(1, 1), (6, 1), (8, 2), (16, 6), (40, 18), (200, 18)] {
            let found = ahead(&pacer, fast, round_trip);
            assert_eq!(found, expected, "half of {round_trip} ms, less two bursts");
        }
        let slow = PacingRate::Limited(u64::from(BURST_BYTES_MAX) * 100);
        assert_eq!(ahead(&pacer, slow, 48), 1, "one burst takes longer");
        pacer.on_loss();
        assert_eq!(ahead(&pacer, fast, 48), 1, "after a loss");
    }

    #[test]
    fn bursts_of_a_fast_path_are_claimed_until_they_take_nearly_half_of_its_round_trip() {
        let burst = u64::from(BURST_BYTES_MAX);
        let fast = PacingRate::Limited(burst * 1000);
        let round_trip = Duration::from_millis(16);
        let mut pacer = Pacer::new();
        let claims = (0..10).take_while(|_| {
            let may_be = pacer.waits_until(START, || fast, round_trip).is_none();
            pacer.on_claimed(START, burst, fast);
            may_be
        });
        assert_eq!(claims.count(), 7);
    }

    #[test]
    fn time_without_claims_is_not_saved_up() {
        let mut pacer = Pacer::new();
        pacer.on_claimed(START, 10_000, RATE);
        let later = START + Duration::from_secs(60);
        pacer.on_claimed(later, 10_000, RATE);
        let due = later + Duration::from_millis(9);
        assert_eq!(pacer.waits_until(later, || RATE, NEAR), Some(due));
    }

    #[test]
    fn what_waited_for_the_schedule_alone_keeps_to_it_when_it_is_claimed_late() {
        let due_after = |is_awaited, late| {
            let mut pacer = Pacer::new();
            pacer.on_claimed(START, 10_000, RATE);
            pacer.set_awaited(is_awaited);
            let now = START + Duration::from_millis(10) + late;
            pacer.on_claimed(now, 10_000, RATE);
            pacer.done_at.since(now)
        };
        let in_time = Duration::from_millis(10);
        for late in [Duration::ZERO, Duration::from_millis(1), LATE_MAX] {
            assert_eq!(due_after(true, late), in_time - late);
            assert_eq!(due_after(false, late), in_time, "the window opened late");
        }
        let too_late = LATE_MAX + Duration::from_millis(1);
        assert_eq!(due_after(true, too_late), in_time - LATE_MAX);
    }

    #[test]
    fn a_returned_claim_leaves_the_schedule_as_it_was() {
        let mut pacer = Pacer::new();
        pacer.on_claimed(START, 10_000, RATE);
        let before = pacer.waits_until(START, || RATE, NEAR);
        pacer.on_claimed(START, 5000, RATE);
        pacer.on_returned(5000, RATE);
        assert_eq!(pacer.waits_until(START, || RATE, NEAR), before);
    }

    #[test]
    fn an_unlimited_rate_never_waits() {
        let mut pacer = Pacer::new();
        pacer.on_claimed(START, u64::MAX, PacingRate::Unlimited);
        assert_eq!(pacer.waits_until(START, || RATE, NEAR), None);
        let quantum = pacer.quantum_bytes(START, PacingRate::Unlimited, 1_000_000, 1448);
        assert_eq!(quantum, u64::MAX);
    }

    /// One whose schedule is not behind the clock at START.
    fn on_time() -> Pacer {
        let mut pacer = Pacer::new();
        pacer.on_claimed(START, 1, RATE);
        pacer
    }

    /// Quantum at START on a large window with segments of 1000 bytes.
    fn quantum(pacer: &Pacer, rate: u64) -> u64 {
        pacer.quantum_bytes(START, PacingRate::Limited(rate), 1_000_000, 1000)
    }

    #[test]
    fn a_quantum_is_a_full_read_or_a_millisecond_in_whole_segments() {
        let pacer = on_time();
        assert_eq!(quantum(&pacer, 1), 62_000);
        assert_eq!(quantum(&pacer, 62_000 * 1000), 62_000);
        assert_eq!(quantum(&pacer, 62_001 * 1000), 63_000);
        assert_eq!(quantum(&pacer, u64::MAX) % 1000, 0);
    }

    #[test]
    fn a_burst_is_a_third_of_the_window_but_at_least_16_kib() {
        let pacer = on_time();
        let quantum = |window| pacer.quantum_bytes(START, RATE, window, 1000);
        assert_eq!(quantum(0), 17_000);
        assert_eq!(quantum(3 * 17_000), 17_000);
        assert_eq!(quantum(3 * 17_001), 18_000);
        assert_eq!(quantum(3 * u64::from(BURST_BYTES_MAX)), 62_000);
        assert_eq!(quantum(300 * u64::from(BURST_BYTES_MAX)), 62_000);
    }

    #[test]
    fn after_a_loss_the_burst_takes_a_millisecond_and_has_two_segments_at_least() {
        let mut pacer = on_time();
        assert_eq!(quantum(&pacer, 5_000_000), 62_000);
        pacer.on_loss();
        assert_eq!(quantum(&pacer, 1), 2000);
        assert_eq!(quantum(&pacer, 2_000_000), 2000);
        assert_eq!(quantum(&pacer, 2_001_000), 3000);
        assert_eq!(quantum(&pacer, 80_000_000), 80_000);
    }

    #[test]
    fn after_a_loss_the_burst_at_a_measured_rate_is_a_part_of_the_window_and_not_ahead_of_the_clock()
     {
        let mut pacer = on_time().with_measured_rate(true);
        let early = |pacer: &Pacer| {
            let mut pacer = *pacer;
            pacer.on_claimed(START, 999, RATE);
            pacer.waits_until(START, || RATE, NEAR)
        };
        assert_eq!(early(&pacer), None, "a millisecond ahead");
        assert_eq!(quantum(&pacer, 80_000_000), 80_000);
        pacer.on_loss();
        assert_eq!(early(&pacer), Some(START + Duration::from_millis(1)));
        let rate = PacingRate::Limited(4_000_000);
        let quantum = |window| pacer.quantum_bytes(START, rate, window, 1000);
        assert_eq!(quantum(0), 2000);
        assert_eq!(quantum(32 * 2000), 2000);
        assert_eq!(quantum(32 * 2001), 3000);
        assert_eq!(quantum(32 * 9000), 4000, "a millisecond");
    }

    #[test]
    fn a_burst_is_never_less_than_is_said() {
        let mut pacer = on_time();
        pacer.set_burst_min(16_401);
        let quantum = |pacer: &Pacer| pacer.quantum_bytes(START, RATE, 0, 1000);
        assert_eq!(quantum(&pacer), 17_000);
        pacer.on_loss();
        assert_eq!(quantum(&pacer), 17_000);
        pacer.set_burst_min(3999);
        assert_eq!(quantum(&pacer), 4000);
    }

    /// Quantum of a connection that was served a second late, at 1 MB/s.
    fn missed(pacer: &Pacer) -> u64 {
        pacer.quantum_bytes(START + Duration::from_secs(1), RATE, 0, 1000)
    }

    #[test]
    fn sixteen_windows_without_a_loss_add_a_segment_up_to_a_full_read() {
        let mut pacer = on_time();
        pacer.on_loss();
        let windows = GROWTH_WINDOWS * 100_000;
        pacer.on_acknowledged(windows - 1, 100_000, 1000);
        assert_eq!(missed(&pacer), 17_000);
        pacer.on_acknowledged(1, 100_000, 1000);
        assert_eq!(missed(&pacer), 18_000);
        for _ in 0..100 {
            pacer.on_acknowledged(windows, 100_000, 1000);
        }
        assert_eq!(missed(&pacer), 62_000);
    }

    #[test]
    fn a_loss_forgets_the_windows_without_one() {
        let mut pacer = on_time();
        pacer.on_acknowledged(GROWTH_WINDOWS * 100_000 - 1, 100_000, 1000);
        pacer.on_loss();
        pacer.on_acknowledged(1, 100_000, 1000);
        assert_eq!(missed(&pacer), 17_000);
    }

    #[test]
    fn a_connection_that_was_served_late_may_claim_what_it_missed_up_to_a_full_read() {
        let mut pacer = Pacer::new();
        pacer.on_claimed(START, 10_000, RATE);
        // A byte a microsecond, and a window whose third is less.
        let quantum = |pacer: &Pacer, late: u64| {
            let now = START + Duration::from_micros(10_000 + late);
            pacer.quantum_bytes(now, RATE, 30_000, 1000)
        };
        assert_eq!(quantum(&pacer, 0), 17_000);
        assert_eq!(quantum(&pacer, 17_000), 17_000);
        assert_eq!(quantum(&pacer, 17_001), 18_000);
        assert_eq!(quantum(&pacer, 1_000_000), 62_000);
        pacer.on_loss();
        assert_eq!(quantum(&pacer, 1_000_000), 17_000);
    }

    #[test]
    fn a_product_may_have_more_than_64_bits_and_a_quotient_may_not() {
        let half = u64::MAX / 2 + 1;
        assert_eq!(scaled(half - 1, 2, 3), Some((u64::MAX - 1) / 3));
        assert_eq!(scaled(half, 2, 4), Some(half / 2));
        assert_eq!(scaled(u64::MAX, u64::MAX, u64::MAX), Some(u64::MAX));
        assert_eq!(scaled(half, 2, 1), None);
    }

    #[test]
    fn a_rate_is_bytes_in_an_interval_and_never_zero() {
        let rate = PacingRate::of(25_000, Duration::from_millis(20));
        assert_eq!(rate, PacingRate::Limited(1_250_000));
        let slow = PacingRate::of(1, Duration::from_secs(3600));
        assert_eq!(slow, PacingRate::Limited(RATE_MIN));
        assert_eq!(rate.at_most(None), rate);
        assert_eq!(rate.at_most(Some(1_250_001)), rate);
        let less = PacingRate::Limited(1_249_999);
        assert_eq!(rate.at_most(Some(1_249_999)), less);
        assert_eq!(PacingRate::Unlimited.at_most(Some(1_249_999)), less);
        assert_eq!(PacingRate::Unlimited.at_most(None), PacingRate::Unlimited);
        let fast = PacingRate::of(u64::MAX, Duration::ZERO);
        assert_eq!(fast, PacingRate::Limited(u64::MAX));
    }
}
