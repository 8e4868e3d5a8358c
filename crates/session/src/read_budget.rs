//! How much a client may have read from the disk for what it acknowledges.
//!
//! A read serves whole blocks, and over TLS whole records, of which a client may want a few bytes
//! only: its window admits no more, it reported them lost, or its ranges are that short. One such
//! read is the price of reading without a cache. Thousands are an attack that buys disk and AEAD
//! time with ACKs. So each connection has an **allowance** of bytes to read:
//!
//! * it begins with `burst_bytes`;
//! * each byte of the stream that is claimed for the first time adds `factor` bytes. Claimed bytes
//!   are at most what was acknowledged and a window more;
//! * each second adds `floor_bytes_per_second`, so that nobody waits for ever;
//! * it is never more than `burst_bytes` and `factor` for each byte not yet acknowledged: what is
//!   in flight can be lost and read again, what was acknowledged is over;
//! * each read takes its length, new bytes and lost ones alike.
//!
//! A read waits while the allowance is less than its length. What became due meanwhile goes with
//! it, so that waiting makes reads larger, and the allowance is enough again.
//!
//! So a connection reads at most `factor` times the bytes it was sent, `burst_bytes` and
//! `floor_bytes_per_second` for each second: [`crate::ReadLimits`] says how those were chosen.

use clock::{Duration, Instant};

use crate::ReadLimits;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadBudget {
    /// What may be read now, bytes.
    allowance_bytes: u64,
    /// When time was last counted.
    counted_at: Instant,
}

/// One read as the budget sees it.
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
        // A read larger than the burst is made on credit: else it never could be.
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

    /// What time adds fills the allowance up to the burst, never beyond.
    fn count_time(&mut self, now: Instant, limits: &ReadLimits) {
        let nanos = now.since(self.counted_at).as_nanos();
        let rate = u128::from(limits.floor_bytes_per_second);
        let earned = nanos.saturating_mul(rate) / NANOS_PER_SECOND;
        if earned == 0 && self.allowance_bytes < limits.burst_bytes {
            // A byte is not yet earned: the time goes on counting.
            return;
        }
        self.counted_at = now;
        let room = limits.burst_bytes.saturating_sub(self.allowance_bytes);
        let earned = u64::try_from(earned).unwrap_or(u64::MAX);
        self.allowance_bytes += earned.min(room);
    }
}

impl ReadLimits {
    /// How long the floor takes to add so many bytes, rounded up.
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
    fn new_bytes_pay_for_themselves_many_times() {
        let mut budget = ReadBudget::new(NOW, &LIMITS);
        let new = |length_bytes| ReadCost {
            length_bytes,
            new_bytes: 50,
            unacknowledged_bytes: 0,
        };
        for _ in 0..100 {
            assert_eq!(budget.pay(NOW, new(500), &LIMITS), Ok(()), "ten times");
        }
        // Three more take a byte too many of the burst each, and at last one too many.
        let mut paid = 0;
        while budget.pay(NOW, new(800), &LIMITS).is_ok() {
            paid += 1;
        }
        assert_eq!(paid, 3);
    }

    #[test]
    fn what_is_in_flight_may_be_read_again_and_what_arrived_may_not() {
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
    fn the_floor_gives_what_was_waited_for_up_to_the_burst() {
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
    fn text_adds_and_a_read_not_made_gives_back() {
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
