//! How much of a round handshakes may have.
//!
//! The dear part of a handshake is our answer to the hello: a key exchange and a signature, 80 us
//! with an ECDSA key and 340 us with RSA of 2048 bits. A browser's handshake has two records more,
//! and both together cost a third of the cheaper. So a bound of records says little: records are
//! weighed by what they cost, and what comes behind our answer is taken first, because it makes use
//! of what was paid.
//!
//! Bounds: [`RECORDS_MAX`] and [`KEYS_MAX`] a round, and hellos as far as the credit goes:
//! [`SHARE_OF_THE_REST`] of the time that everything else took, at most [`CREDIT_US_MAX`].

use clock::Instant;

/// Most records behind our answer to a hello in a round: a millisecond, at 30 us each.
pub const RECORDS_MAX: usize = 32;
/// Most keys made in a round for clients that change theirs: a KeyUpdate of 27 bytes costs some
/// microseconds, and a client may send nothing else.
pub const KEYS_MAX: usize = 32;
/// Handshakes may take one part of the time for each so many parts that everything else takes:
/// under full load a quarter of the core. Of a core with an ECDSA key that is 2,200 handshakes a
/// second, and streams keep three quarters of what they have alone.
pub const SHARE_OF_THE_REST: i64 = 3;
/// Most credit, in microseconds of estimated cost: how long a round may be made by hellos, so how
/// long a stream waits because of them. It is twice what the other parts of a full round leave for
/// them, and a dozen hellos with an ECDSA key.
pub const CREDIT_US_MAX: i64 = 1_000;
/// Most debt, in the same unit. Rounds in which nothing else happens serve a hello without credit,
/// and that must not be paid for long afterwards. Above the dearest hello, RSA of 4096 bits.
pub const DEBT_US_MAX: i64 = 4_000;

const NANOS: i64 = 1_000;

/// What handshakes may still cost.
#[derive(Debug)]
pub(super) struct Credit {
    /// Below zero: debt.
    nanos: i64,
    /// When the last round began.
    last_round_at: Instant,
    /// What handshakes cost since.
    charged_nanos: i64,
}

impl Credit {
    /// All there can be.
    pub(super) const fn new() -> Self {
        Self {
            nanos: CREDIT_US_MAX * NANOS,
            last_round_at: Instant::ZERO,
            charged_nanos: 0,
        }
    }

    /// A round begins. The time since the last one, but for what handshakes had of it, brings
    /// credit; time that was slept away too, since nobody else wanted it.
    pub(super) fn begin_round(&mut self, now: Instant) {
        let elapsed = now.since(self.last_round_at).as_nanos();
        let elapsed = i64::try_from(elapsed).unwrap_or(i64::MAX);
        let rest = elapsed.saturating_sub(self.charged_nanos).max(0);
        let nanos = self.nanos.saturating_add(rest / SHARE_OF_THE_REST);
        self.nanos = nanos.min(CREDIT_US_MAX * NANOS);
        self.last_round_at = now;
        self.charged_nanos = 0;
    }

    /// Takes an estimated cost off.
    pub(super) fn charge(&mut self, cost_us: u64) {
        let cost = i64::try_from(cost_us).unwrap_or(i64::MAX);
        let cost = cost.saturating_mul(NANOS);
        self.charged_nanos = self.charged_nanos.saturating_add(cost);
        let nanos = self.nanos.saturating_sub(cost);
        self.nanos = nanos.max(-DEBT_US_MAX * NANOS);
    }

    /// Whether another hello may be answered.
    pub(super) const fn is_left(&self) -> bool {
        self.nanos > 0
    }
}

#[cfg(test)]
mod tests {
    use clock::{Duration, Instant};

    use super::{CREDIT_US_MAX, Credit, DEBT_US_MAX};

    const FULL_US: u64 = CREDIT_US_MAX.unsigned_abs();

    #[test]
    fn credit_ends_with_what_was_charged_and_comes_back_with_time() {
        let mut credit = Credit::new();
        credit.charge(FULL_US - 1);
        assert!(credit.is_left());
        credit.charge(1);
        assert!(!credit.is_left());
        // The time of the handshakes themselves brings nothing.
        let mut now = Instant::ZERO + Duration::from_micros(FULL_US);
        credit.begin_round(now);
        assert!(!credit.is_left());
        now += Duration::from_nanos(2);
        credit.begin_round(now);
        assert!(!credit.is_left());
        now += Duration::from_nanos(3);
        credit.begin_round(now);
        assert!(credit.is_left());
    }

    #[test]
    fn credit_and_debt_have_their_most() {
        let mut credit = Credit::new();
        credit.begin_round(Instant::ZERO + Duration::from_secs(60));
        credit.charge(FULL_US);
        assert!(!credit.is_left(), "a minute brings no more than the most");
        credit.charge(1_000_000);
        let debt = Duration::from_micros(3 * DEBT_US_MAX.unsigned_abs());
        let mut now = Instant::ZERO + Duration::from_secs(120);
        credit.begin_round(now);
        assert!(credit.is_left(), "a minute pays every debt");
        credit.charge(1_000_000);
        now += Duration::from_secs(1);
        // The charge was for more time than passed; from now on each third of a nanosecond counts.
        credit.begin_round(now);
        now += debt;
        credit.begin_round(now);
        assert!(!credit.is_left());
        now += Duration::from_nanos(3);
        credit.begin_round(now);
        assert!(credit.is_left());
    }
}
