//! The share of processor time that TLS handshakes may use.
//!
//! | record of a handshake | cost |
//! |---|---|
//! | ClientHello, answered with an ECDSA key | 80 us |
//! | ClientHello, answered with a 2048-bit RSA key | 340 us |
//! | a browser's two further records, together | 30 us |
//!
//! So records are weighed by their cost. Records behind our answer are handled first: they complete
//! handshakes that have already been paid for. It refuses ClientHellos without credit.
//!
//! Bounds: [`RECORDS_MAX`] and [`KEYS_MAX`] a round, and ClientHellos as far as the credit goes:
//! [`SHARE_OF_THE_REST`] of the time that everything else took, at most [`CREDIT_US_MAX`].

use clock::Instant;

/// Most records behind our answer to a hello in a round: a millisecond, at 30 us each.
pub const RECORDS_MAX: usize = 32;
/// Most keys made in a round for clients that change theirs: a KeyUpdate of 27 bytes costs some
/// microseconds, and a client may send nothing else.
pub const KEYS_MAX: usize = 32;
/// Handshakes may use one third of the time that everything else uses: under full load a quarter of
/// the core. With an ECDSA key that is 2,200 handshakes a second, and streams keep three quarters of
/// their throughput.
pub const SHARE_OF_THE_REST: i64 = 3;
/// Most credit, in microseconds of estimated cost: by this much ClientHellos may lengthen a round,
/// and delay streams. It is twice their share of a full round, and a dozen of them with an ECDSA key.
pub const CREDIT_US_MAX: i64 = 1_000;
/// Most debt, in the same unit. A round in which nothing else happens answers a ClientHello without
/// credit, and this debt must be short. More than the most expensive one, with 4096-bit RSA.
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

    /// Starts a round. The time since the last round, without the time of handshakes, adds credit;
    /// time asleep does, too.
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
    fn charges_use_credit_up_and_time_restores_it() {
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
    fn credit_and_debt_are_bounded() {
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
