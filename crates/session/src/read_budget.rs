//! The read budget of a client: limits the bytes read from the disk in proportion to the bytes that
//! the client acknowledges.
//!
//! A read covers whole blocks, and over TLS whole records, even if only a few bytes of them are
//! sent: because the client's window admits no more, because it reported them lost, or because it
//! asked for short ranges. A single such read is the cost of having no cache. Thousands of them are
//! an attack that uses up disk and AEAD time at the cost of a few ACKs. So each connection has an
//! **allowance** of bytes to read:
//!
//! * It begins at `burst_bytes`.
//! * Each byte of the stream that is claimed for the first time adds `factor` bytes. At most one
//!   window more than what was acknowledged can be claimed.
//! * Each second adds `floor_bytes_per_second`, so that no client waits for ever.
//! * It is at most `burst_bytes` plus `factor` for each byte not yet acknowledged: bytes in flight
//!   may be lost and read again, acknowledged bytes may not.
//! * Each read subtracts its length, for new bytes and lost ones alike.
//!
//! A read waits while the allowance is less than its length. Bytes that become due meanwhile are
//! read with it, so waiting makes reads larger and fewer.
//!
//! In all, a connection reads at most `factor` times the bytes it was sent, plus `burst_bytes`, plus
//! `floor_bytes_per_second` for each second. [`crate::ReadLimits`] says how these were chosen.

use clock::{Duration, Instant};

use crate::ReadLimits;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadBudget {
    /// The allowance: bytes that may be read now.
    allowance_bytes: u64,
    /// When the floor was last added.
    counted_at: Instant,
}

/// The cost of one read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadCost {
    /// Bytes read from the disk.
    pub(crate) length_bytes: u64,
    /// Bytes of the stream that it claims for the first time.
    pub(crate) new_bytes: u64,
    /// Bytes of the stream claimed before and not acknowledged.
    pub(crate) unacknowledged_bytes: u64,
}

impl ReadBudget {
    pub(crate) const fn new(now: Instant, limits: &ReadLimits) -> Self {
        Self {
            allowance_bytes: limits.burst_bytes,
            counted_at: now,
        }
    }

    /// Pays for a read, or for text, which is not read but adds to the allowance.
    ///
    /// # Errors
    /// The read must wait until this moment, or until more is acknowledged.
    pub(crate) fn pay(
        &mut self,
        now: Instant,
        cost: ReadCost,
        limits: &ReadLimits,
    ) -> Result<(), Instant> {
        self.count_time(now, limits);
        let unacknowledged = cost.unacknowledged_bytes.saturating_add(cost.new_bytes);
        let most = limits
            .burst_bytes
            .saturating_add(unacknowledged.saturating_mul(limits.factor));
        let gained = cost.new_bytes.saturating_mul(limits.factor);
        let allowance = self.allowance_bytes.saturating_add(gained).min(most);
        // A read larger than the burst needs only the burst; otherwise it could never be made.
        let needed = cost.length_bytes.min(limits.burst_bytes);
        if allowance < needed {
            return Err(now + limits.time_for(needed - allowance));
        }
        self.allowance_bytes = allowance.saturating_sub(cost.length_bytes);
        Ok(())
    }

    /// A read that was paid for was not made.
    pub(crate) const fn refund(&mut self, length_bytes: u64) {
        self.allowance_bytes = self.allowance_bytes.saturating_add(length_bytes);
    }

    /// Adds the floor for the time passed, up to the burst and not beyond.
    fn count_time(&mut self, now: Instant, limits: &ReadLimits) {
        let nanos = now.since(self.counted_at).as_nanos();
        let rate = u128::from(limits.floor_bytes_per_second);
        let earned = nanos.saturating_mul(rate) / NANOS_PER_SECOND;
        if earned == 0 && self.allowance_bytes < limits.burst_bytes {
            // Less than a byte: the time is kept for the next call.
            return;
        }
        self.counted_at = now;
        let room = limits.burst_bytes.saturating_sub(self.allowance_bytes);
        let earned = u64::try_from(earned).unwrap_or(u64::MAX);
        self.allowance_bytes += earned.min(room);
    }
}

impl ReadLimits {
    /// The time in which the floor adds this many bytes, rounded up.
    fn time_for(&self, bytes: u64) -> Duration {
        let rate = u128::from(self.floor_bytes_per_second.max(1));
        let nanos = (u128::from(bytes) * NANOS_PER_SECOND).div_ceil(rate);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use clock::{Duration, Instant};

    use super::{ReadBudget, ReadCost};
    use crate::ReadLimits;

    const LIMITS: ReadLimits = ReadLimits {
        factor: 10,
        burst_bytes: 1000,
        floor_bytes_per_second: 100,
    };
    const NOW: Instant = Instant::from_millis(7);

    fn again(length_bytes: u64) -> ReadCost {
        ReadCost {
            length_bytes,
            new_bytes: 0,
            unacknowledged_bytes: 0,
        }
    }

    #[test]
    fn the_burst_is_there_at_once_and_no_more() {
        let mut budget = ReadBudget::new(NOW, &LIMITS);
        assert_eq!(budget.pay(NOW, again(400), &LIMITS), Ok(()));
        assert_eq!(budget.pay(NOW, again(600), &LIMITS), Ok(()));
        let until = budget.pay(NOW, again(1), &LIMITS);
        assert_eq!(until, Err(NOW + Duration::from_millis(10)));
    }

    #[test]
    fn new_bytes_add_many_times_their_length_to_the_budget() {
        let mut budget = ReadBudget::new(NOW, &LIMITS);
        let new = |length_bytes| ReadCost {
            length_bytes,
            new_bytes: 50,
            unacknowledged_bytes: 0,
        };
        for _ in 0..100 {
            assert_eq!(budget.pay(NOW, new(500), &LIMITS), Ok(()), "ten times");
        }
        // Each of these takes 300 bytes of the burst: three of them fit.
        let mut paid = 0;
        while budget.pay(NOW, new(800), &LIMITS).is_ok() {
            paid += 1;
        }
        assert_eq!(paid, 3);
    }

    #[test]
    fn the_budget_allows_rereading_flight_but_not_acknowledged_bytes() {
        let flight = ReadCost {
            length_bytes: 5000,
            new_bytes: 5000,
            unacknowledged_bytes: 0,
        };
        for (unacknowledged_bytes, most) in [(5000, 46_000), (0, 1000)] {
            let mut budget = ReadBudget::new(NOW, &LIMITS);
            assert_eq!(budget.pay(NOW, flight, &LIMITS), Ok(()));
            let lost = ReadCost {
                unacknowledged_bytes,
                ..again(500)
            };
            let mut read = 0;
            while budget.pay(NOW, lost, &LIMITS).is_ok() {
                read += 500;
            }
            assert_eq!(read, most);
        }
    }

    #[test]
    fn the_floor_refills_the_budget_up_to_the_burst() {
        let mut budget = ReadBudget::new(NOW, &LIMITS);
        assert_eq!(budget.pay(NOW, again(1000), &LIMITS), Ok(()));
        let until = budget.pay(NOW, again(300), &LIMITS).unwrap_err();
        assert_eq!(until, NOW + Duration::from_secs(3));
        let early = until.as_nanos() - 1;
        assert!(
            budget
                .pay(Instant::from_nanos(early), again(300), &LIMITS)
                .is_err()
        );
        assert_eq!(
            budget.pay(until + Duration::from_millis(10), again(300), &LIMITS),
            Ok(())
        );
        let later = until + Duration::from_secs(1000);
        assert_eq!(budget.pay(later, again(1000), &LIMITS), Ok(()));
        assert!(budget.pay(later, again(1), &LIMITS).is_err());
    }

    #[test]
    fn a_read_larger_than_the_burst_waits_for_the_burst_only() {
        let mut budget = ReadBudget::new(NOW, &LIMITS);
        assert_eq!(budget.pay(NOW, again(5000), &LIMITS), Ok(()));
        let until = budget.pay(NOW, again(5000), &LIMITS).unwrap_err();
        assert_eq!(until, NOW + Duration::from_secs(10));
        assert_eq!(budget.pay(until, again(5000), &LIMITS), Ok(()));
    }

    #[test]
    fn text_adds_to_the_budget_and_a_cancelled_read_is_refunded() {
        let mut budget = ReadBudget::new(NOW, &LIMITS);
        assert_eq!(budget.pay(NOW, again(1000), &LIMITS), Ok(()));
        let text = ReadCost {
            length_bytes: 0,
            new_bytes: 30,
            unacknowledged_bytes: 0,
        };
        assert_eq!(budget.pay(NOW, text, &LIMITS), Ok(()));
        assert_eq!(budget.pay(NOW, again(300), &LIMITS), Ok(()));
        assert!(budget.pay(NOW, again(1), &LIMITS).is_err());
        budget.refund(300);
        assert_eq!(budget.pay(NOW, again(300), &LIMITS), Ok(()));
    }
}
