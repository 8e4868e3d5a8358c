//! What a connection was granted of its site's bandwidth ([`sites::bandwidth`]).
//!
//! Its bytes are claimed out of grants. With each grant that it begins it asks for the next one, if the stream has more:
//! so it waits in the bandwidth's order while it sends. It may claim more than is left of a grant, a read at most, and what
//! is sent again does not wait: both are a debt, which the next grant has to cover.
//!
//! It refuses to ask for more than is in the stream, so that what it is granted is sent. Bound: two grants.

use clock::Instant;
use sites::bandwidth::Bandwidth;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Granted {
    /// Of which; `None`: its replies are under none.
    bandwidth: Option<Bandwidth>,
    /// Bytes that may be claimed, or with a minus those that are owed.
    bytes: i64,
    /// The next grant: from when on, and how many bytes.
    next: Option<(Instant, i64)>,
}

impl Granted {
    /// What is claimed from now on is of this bandwidth.
    pub(crate) fn set_bandwidth(&mut self, bandwidth: Option<Bandwidth>) {
        let is_same = match (&self.bandwidth, &bandwidth) {
            (Some(before), Some(after)) => before.is_same(after),
            (None, None) => true,
            _ => false,
        };
        if !is_same {
            *self = Self {
                bandwidth,
                ..Self::default()
            };
        }
    }

    /// Until when new bytes may not be claimed; `None`: they may be. `queued_bytes`: how many there are.
    pub(crate) fn waits_until(&mut self, now: Instant, queued_bytes: u64) -> Option<Instant> {
        self.bandwidth.as_ref()?;
        // Twice at most: a grant covers what is owed when it is asked for.
        while self.bytes <= 0 {
            let (from, bytes) = match self.next {
                Some(next) => next,
                None => self.ask(now, queued_bytes.max(1))?,
            };
            if from > now {
                self.next = Some((from, bytes));
                return Some(from);
            }
            self.next = None;
            self.bytes += bytes;
        }
        None
    }

    /// `bytes` were claimed. `queued_bytes`: how many there are behind them.
    pub(crate) fn spend(&mut self, now: Instant, bytes: u64, queued_bytes: u64) {
        if self.bandwidth.is_none() {
            return;
        }
        self.bytes -= signed(bytes);
        let wanted = signed(queued_bytes) - self.bytes.max(0);
        if self.next.is_none() && wanted > 0 {
            self.next = self.ask(now, wanted.unsigned_abs());
        }
    }

    /// `bytes` that were claimed are not sent.
    pub(crate) fn refund(&mut self, bytes: u64) {
        self.bytes += signed(bytes);
    }

    /// Asks for a grant of as many bytes, or as many as one has, and of those that are owed.
    fn ask(&self, now: Instant, bytes: u64) -> Option<(Instant, i64)> {
        let bandwidth = self.bandwidth.as_ref()?;
        let owed = self.bytes.min(0).unsigned_abs();
        let bytes = bytes.min(bandwidth.grant_bytes()) + owed;
        let from = bandwidth.grant(now.as_nanos(), bytes);
        Some((Instant::from_nanos(from), signed(bytes)))
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use clock::{Duration, Instant};
    use sites::bandwidth::Bandwidth;

    use super::Granted;

    /// Bytes in the stream that never end.
    const MANY: u64 = 1 << 40;
    const START: Instant = Instant::from_millis(1000);

    /// A byte a microsecond, whose grants have 16,384 bytes; nothing of its past is left.
    fn used() -> Bandwidth {
        let bandwidth = Bandwidth::new(1_000_000);
        let _first = bandwidth.grant(START.as_nanos(), 10_000);
        bandwidth
    }

    fn of(bandwidth: &Bandwidth) -> Granted {
        let mut granted = Granted::default();
        granted.set_bandwidth(Some(bandwidth.clone()));
        granted
    }

    fn after_micros(micros: u64) -> Instant {
        START + Duration::from_micros(micros)
    }

    #[test]
    fn without_a_bandwidth_nothing_waits() {
        let mut granted = Granted::default();
        for _ in 0..100 {
            assert_eq!(granted.waits_until(START, MANY), None);
            granted.spend(START, 60_000, MANY);
        }
    }

    #[test]
    fn two_that_take_all_have_turns() {
        let bandwidth = used();
        let (mut one, mut two) = (of(&bandwidth), of(&bandwidth));
        // The schedule is at START: both begin, and each next turn is behind that of the other.
        assert_eq!(one.waits_until(START, MANY), None);
        assert_eq!(two.waits_until(START, MANY), Some(after_micros(16_384)));
        one.spend(START, 16_384, MANY);
        assert_eq!(one.waits_until(START, MANY), Some(after_micros(32_768)));
        let now = after_micros(16_384);
        assert_eq!(two.waits_until(now, MANY), None);
        two.spend(now, 16_384, MANY);
        assert_eq!(two.waits_until(now, MANY), Some(after_micros(49_152)));
        assert_eq!(one.waits_until(after_micros(32_768), MANY), None);
    }

    #[test]
    fn what_is_claimed_beyond_a_grant_is_owed() {
        let bandwidth = used();
        let mut granted = of(&bandwidth);
        assert_eq!(granted.waits_until(START, MANY), None);
        granted.spend(START, 60_000, MANY);
        let next = after_micros(16_384);
        assert_eq!(granted.waits_until(START, MANY), Some(next));
        // What was owed when it asked is covered, so that the grant can be used.
        assert_eq!(granted.waits_until(next, MANY), None);
        granted.spend(next, 16_384, MANY);
        let all = after_micros(60_000 + 16_384);
        // What was claimed after the next one was asked for is owed still when that comes.
        let mut other = of(&used());
        assert_eq!(other.waits_until(START, MANY), None);
        other.spend(START, 10_000, MANY);
        other.spend(START, 60_000, MANY);
        assert_eq!(
            other.waits_until(next, MANY),
            Some(after_micros(2 * 16_384))
        );
        assert_eq!(granted.waits_until(next, MANY), Some(all));
        // Bytes that came back are there.
        granted.refund(1);
        assert_eq!(granted.waits_until(next, MANY), None);
    }

    #[test]
    fn no_more_is_asked_for_than_the_stream_has() {
        let bandwidth = used();
        let mut granted = of(&bandwidth);
        assert_eq!(granted.waits_until(START, 1000), None);
        granted.spend(START, 1000, 0);
        // Nobody waits for what would have been granted.
        let mut other = of(&bandwidth);
        assert_eq!(other.waits_until(START, MANY), Some(after_micros(1000)));
        assert_eq!(other.waits_until(after_micros(1000), MANY), None);
    }

    #[test]
    fn another_bandwidth_begins_anew_and_the_same_goes_on() {
        let bandwidth = used();
        let mut granted = of(&bandwidth);
        assert_eq!(granted.waits_until(START, MANY), None);
        granted.spend(START, 16_384, MANY);
        granted.set_bandwidth(Some(bandwidth.clone()));
        assert!(granted.waits_until(START, MANY).is_some());
        granted.set_bandwidth(Some(used()));
        assert_eq!(granted.waits_until(START, MANY), None);
        granted.set_bandwidth(None);
        granted.spend(START, MANY, MANY);
        assert_eq!(granted.waits_until(START, MANY), None);
    }
}
