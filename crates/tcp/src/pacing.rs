//! Pacing: what the congestion window permits is sent over the round trip and not in one burst.
//!
//! Pacing is decided before the read, when bytes are claimed. So a slot is filled when its bytes may
//! be sent, and none waits full for its turn. After the read the bytes are sent at once: how far two
//! reads of the disk differ in time is not corrected.
//!
//! A claim of n bytes moves the schedule by n / rate. Bytes may be claimed while the schedule is no
//! more than [`AHEAD_MAX`] ahead of the clock, at most a quantum at once. So a burst is at most a
//! quantum and `rate * AHEAD_MAX`.

use clock::{Duration, Instant};

/// How far the schedule may be ahead of the clock. It makes up for timers that fire late, and a
/// fast connection needs fewer of them.
pub const AHEAD_MAX: Duration = Duration::from_millis(1);
/// A quantum is what the pacing rate sends in this time. Linux has 1 ms; each quantum of ours is a
/// read, and smaller reads cost more (docs/decisions/0003-read-size.md).
pub const QUANTUM_TIME: Duration = Duration::from_millis(4);
/// Least quantum, bytes: about the initial window, a burst that every path must take (RFC 6928), and
/// not less than a TLS record.
pub const QUANTUM_BYTES_MIN: u64 = 16 << 10;
/// Least pacing rate, bytes a second: a schedule has an end.
const RATE_MIN: u64 = 1000;

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
        let nanos = interval.as_nanos().max(1);
        let rate = u128::from(bytes) * 1_000_000_000 / nanos;
        Self::Limited(u64::try_from(rate).unwrap_or(u64::MAX).max(RATE_MIN))
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

    /// Most bytes to claim at once, in whole segments.
    #[must_use]
    pub fn quantum_bytes(self, segment_bytes: u64) -> u64 {
        match self {
            Self::Unlimited => u64::MAX,
            Self::Limited(rate) => {
                let bytes = u128::from(rate) * QUANTUM_TIME.as_nanos() / 1_000_000_000;
                let bytes = u64::try_from(bytes).unwrap_or(u64::MAX / 2);
                bytes
                    .max(QUANTUM_BYTES_MIN)
                    .next_multiple_of(segment_bytes.max(1))
            }
        }
    }

    /// How long `bytes` take.
    fn time_of(self, bytes: u64) -> Duration {
        match self {
            Self::Unlimited => Duration::ZERO,
            Self::Limited(rate) => {
                let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(RATE_MIN));
                Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            }
        }
    }
}

/// The schedule of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    /// When everything claimed so far has been sent at the pacing rate.
    done_at: Instant,
}

impl Pacer {
    /// Nothing was claimed yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            done_at: Instant::ZERO,
        }
    }

    /// When the next bytes may be claimed; `None`: now.
    #[must_use]
    pub fn waits_until(&self, now: Instant) -> Option<Instant> {
        let until = self.done_at - AHEAD_MAX;
        (until > now).then_some(until)
    }

    /// `bytes` were claimed.
    pub fn on_claimed(&mut self, now: Instant, bytes: u64, rate: PacingRate) {
        self.done_at = self.done_at.max(now) + rate.time_of(bytes);
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

    use super::{Pacer, PacingRate, QUANTUM_BYTES_MIN, RATE_MIN};

    /// 1 MB/s: a byte a microsecond.
    const RATE: PacingRate = PacingRate::Limited(1_000_000);
    const START: Instant = Instant::from_millis(1000);

    #[test]
    fn a_claim_moves_the_schedule_by_the_time_its_bytes_take() {
        let mut pacer = Pacer::new();
        assert_eq!(pacer.waits_until(Instant::ZERO), None);
        pacer.on_claimed(START, 10_000, RATE);
        // Done after 10 ms; 1 ms of it may be ahead of the clock.
        let due = START + Duration::from_millis(9);
        assert_eq!(pacer.waits_until(START), Some(due));
        assert_eq!(pacer.waits_until(due - Duration::from_nanos(1)), Some(due));
        assert_eq!(pacer.waits_until(due), None);
        // What was claimed 1 ms ahead counts.
        pacer.on_claimed(due, 10_000, RATE);
        let next = START + Duration::from_millis(19);
        assert_eq!(pacer.waits_until(due), Some(next));
    }

    #[test]
    fn what_takes_no_longer_than_the_schedule_may_be_ahead_does_not_wait() {
        let mut pacer = Pacer::new();
        pacer.on_claimed(START, 1000, RATE);
        assert_eq!(pacer.waits_until(START), None);
        pacer.on_claimed(START, 1, RATE);
        let due = START + Duration::from_micros(1);
        assert_eq!(pacer.waits_until(START), Some(due));
    }

    #[test]
    fn time_without_claims_is_not_saved_up() {
        let mut pacer = Pacer::new();
        pacer.on_claimed(START, 10_000, RATE);
        let later = START + Duration::from_secs(60);
        pacer.on_claimed(later, 10_000, RATE);
        let due = later + Duration::from_millis(9);
        assert_eq!(pacer.waits_until(later), Some(due));
    }

    #[test]
    fn a_returned_claim_leaves_the_schedule_as_it_was() {
        let mut pacer = Pacer::new();
        pacer.on_claimed(START, 10_000, RATE);
        let before = pacer.waits_until(START);
        pacer.on_claimed(START, 5000, RATE);
        pacer.on_returned(5000, RATE);
        assert_eq!(pacer.waits_until(START), before);
    }

    #[test]
    fn an_unlimited_rate_never_waits() {
        let mut pacer = Pacer::new();
        pacer.on_claimed(START, u64::MAX, PacingRate::Unlimited);
        assert_eq!(pacer.waits_until(START), None);
        assert_eq!(PacingRate::Unlimited.quantum_bytes(1448), u64::MAX);
    }

    #[test]
    fn a_quantum_is_four_milliseconds_but_at_least_16_kib_in_whole_segments() {
        let segment = 1000;
        let quantum = |rate| PacingRate::Limited(rate).quantum_bytes(segment);
        assert_eq!(quantum(1), 17_000);
        assert_eq!(quantum(QUANTUM_BYTES_MIN * 250), 17_000);
        assert_eq!(quantum(17_000 * 250), 17_000);
        assert_eq!(quantum(17_001 * 250), 18_000);
        assert_eq!(quantum(100_000 * 250), 100_000);
        let whole = quantum(u64::MAX);
        assert_eq!(whole % segment, 0);
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
