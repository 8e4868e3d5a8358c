//! Bandwidth of a site or a rule: how fast all of its replies together are sent, by all workers.
//!
//! A bandwidth is a schedule: the time at which all that was granted of it will have been sent at its rate. A connection
//! asks for a **grant**, so many bytes, and is told from when on it may send them; the schedule moves on by the time that they take.
//! So connections that wait have their turns in the order in which they asked, on whichever worker they are. One
//! that asks for the next grant when it gets one has an equal share, and what it doesn't ask for is the others'.
//!
//! It refuses to save up what nobody sent, but for [`LATE_MAX_NS`]. Bounds: over any time the bandwidth sends at most what
//! its rate does in it, in [`LATE_MAX_NS`], and what connections were granted before; a word of memory, which is changed
//! without a lock once for each grant.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Least grant, bytes: a TLS record, less than which costs as much.
const GRANT_BYTES_MIN: u64 = 16 << 10;
/// Greatest grant, bytes: about a full read (docs/develop/decisions/0003-read-size.md).
const GRANT_BYTES_MAX: u64 = 64 << 10;
/// Grants in a second that a slow bandwidth has at most: so each of a few connections has several turns in it.
const GRANTS_PER_SECOND: u64 = 100;
/// How much of the time that passed unused is made up for, nanoseconds: clients' timers fire late, and a schedule that
/// waited for them would be slower than its rate.
pub const LATE_MAX_NS: u64 = 10_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// See the module. Clones have the same schedule.
#[derive(Clone, Debug)]
pub struct Bandwidth {
    bytes_per_second: u64,
    /// When all that was granted will have been sent, the workers' time.
    sent_at_ns: Arc<AtomicU64>,
}

/// Equal rates, of one schedule or of two.
impl PartialEq for Bandwidth {
    fn eq(&self, other: &Self) -> bool {
        self.bytes_per_second == other.bytes_per_second
    }
}

impl Eq for Bandwidth {}

impl Bandwidth {
    /// So many bytes a second, one at least.
    #[must_use]
    pub fn new(bytes_per_second: u64) -> Self {
        Self {
            bytes_per_second: bytes_per_second.max(1),
            sent_at_ns: Arc::default(),
        }
    }

    /// How many bytes a connection should ask for at once.
    #[must_use]
    pub fn grant_bytes(&self) -> u64 {
        (self.bytes_per_second / GRANTS_PER_SECOND).clamp(GRANT_BYTES_MIN, GRANT_BYTES_MAX)
    }

    /// Grants these bytes: from when on they may be sent. Both times are the workers', nanoseconds.
    #[must_use]
    pub fn grant(&self, now_ns: u64, bytes: u64) -> u64 {
        let rate = u128::from(self.bytes_per_second);
        let takes_ns = u128::from(bytes) * u128::from(SECOND_NS) / rate;
        let takes_ns = u64::try_from(takes_ns).unwrap_or(u64::MAX);
        let begins = |sent_at: u64| sent_at.max(now_ns.saturating_sub(LATE_MAX_NS));
        let moved = self
            .sent_at_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |sent_at| {
                Some(begins(sent_at).saturating_add(takes_ns))
            });
        // It is moved, whatever it was.
        let (Ok(before) | Err(before)) = moved;
        begins(before)
    }

    /// Whether both are one schedule.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.sent_at_ns, &other.sent_at_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const START: u64 = SECOND_NS;

    /// A byte a microsecond.
    fn bandwidth() -> Bandwidth {
        Bandwidth::new(1_000_000)
    }

    #[test]
    fn a_grant_begins_when_those_before_it_are_sent() {
        let bandwidth = bandwidth();
        assert_eq!(bandwidth.grant(START, 20_000), START - LATE_MAX_NS);
        assert_eq!(bandwidth.grant(START, 5000), START + 10 * MS);
        // A clone, as another worker has it.
        assert_eq!(bandwidth.clone().grant(START, 1), START + 15 * MS);
        assert_eq!(bandwidth.grant(START, 1), START + 15 * MS + 1000);
    }

    #[test]
    fn time_that_nobody_used_is_made_up_for_to_a_limit() {
        for (idle, late) in [
            (9 * MS, 9 * MS),
            (LATE_MAX_NS, LATE_MAX_NS),
            (60 * SECOND_NS, LATE_MAX_NS),
        ] {
            let bandwidth = bandwidth();
            let _first = bandwidth.grant(START, 10_000);
            let now = START + idle;
            assert_eq!(bandwidth.grant(now, 1), now - late, "{idle}");
        }
    }

    #[test]
    fn a_grant_is_a_hundredth_of_a_second_within_limits() {
        for (rate, bytes) in [
            (1, 16_384),
            (1_638_400, 16_384),
            (1_638_500, 16_385),
            (6_553_600, 65_536),
            (u64::MAX, 65_536),
        ] {
            assert_eq!(Bandwidth::new(rate).grant_bytes(), bytes, "{rate}");
        }
        // The slowest there is, and no rate at all.
        let slowest = Bandwidth::new(0);
        assert_eq!(slowest.grant(START, u64::MAX), START - LATE_MAX_NS);
        assert_eq!(slowest.grant(START, u64::MAX), u64::MAX);
        assert_eq!(slowest.grant(START, 1), u64::MAX);
    }

    #[test]
    fn threads_share_one_schedule() {
        const GRANTS: u64 = 1000;
        let bandwidth = bandwidth();
        let mut begun: Vec<u64> = std::thread::scope(|scope| {
            let take = || (0..GRANTS).map(|_| bandwidth.grant(START, 10)).collect();
            let threads: Vec<_> = (0..2).map(|_| scope.spawn(take)).collect();
            let taken = threads.into_iter().map(|thread| thread.join().unwrap());
            taken.flat_map(|begun: Vec<u64>| begun).collect()
        });
        begun.sort_unstable();
        let first = START - LATE_MAX_NS;
        let expected: Vec<u64> = (0..2 * GRANTS).map(|n| first + n * 10_000).collect();
        assert_eq!(begun, expected);
    }
}
