//! How fast a connection's replies are sent, where a rule says so: from which byte of the stream on which rate holds.
//!
//! It refuses to pace: TCP's pacer does, by the rate that it is told when bytes from there on are to be claimed. Bound:
//! two steps for each reply in the stream ([`crate::stream_map::REPLIES_MAX`]).

use std::collections::VecDeque;

use sites::rules::Rate;
use tcp::StreamOffset;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    /// In stream order, bytes a second. `None`: as fast as TCP may.
    steps: VecDeque<(StreamOffset, Option<u64>)>,
}

impl Rates {
    /// A reply begins at `start`, in place of one that was taken back perhaps. `rate_max`: of all connections, bytes a
    /// second.
    pub(crate) fn begin_reply(
        &mut self,
        start: StreamOffset,
        rate: Option<Rate>,
        rate_max: Option<u64>,
    ) {
        while self.steps.back().is_some_and(|(at, _)| *at >= start) {
            self.steps.pop_back();
        }
        let after_bytes = rate.map_or(u64::MAX, |rate| rate.after_bytes);
        if after_bytes > 0 {
            self.steps.push_back((start, rate_max));
        }
        if let Some(rate) = rate {
            let least = rate_max.map_or(rate.bytes_per_second, |most| {
                most.min(rate.bytes_per_second)
            });
            self.steps.push_back((start + after_bytes, Some(least)));
        }
    }

    /// The rate that holds from `claimed` on, the first byte that is to be claimed; `None`: that of before.
    pub(crate) fn advance(&mut self, claimed: StreamOffset) -> Option<Option<u64>> {
        let mut rate = None;
        while let Some(&(at, next)) = self.steps.front()
            && at <= claimed
        {
            rate = Some(next);
            self.steps.pop_front();
        }
        rate
    }
}

#[cfg(test)]
mod tests {
    use sites::rules::Rate;
    use tcp::StreamOffset;

    use super::Rates;

    fn at(offset: u64) -> StreamOffset {
        StreamOffset::ZERO + offset
    }

    const SLOW: Option<Rate> = Some(Rate {
        bytes_per_second: 10_000,
        after_bytes: 100,
    });

    #[test]
    fn a_rate_holds_behind_the_first_bytes_of_its_reply() {
        let mut rates = Rates::default();
        rates.begin_reply(at(50), SLOW, None);
        rates.begin_reply(at(500), None, None);
        for (claimed, rate) in [
            (49, None),
            (50, Some(None)),
            (149, None),
            (150, Some(Some(10_000))),
            (499, None),
            (500, Some(None)),
            (501, None),
        ] {
            assert_eq!(rates.advance(at(claimed)), rate, "{claimed}");
        }
        let at_once = SLOW.map(|rate| Rate {
            after_bytes: 0,
            ..rate
        });
        rates.begin_reply(at(600), at_once, Some(9_000));
        assert_eq!(rates.advance(at(600)), Some(Some(9_000)));
    }

    #[test]
    fn a_reply_takes_the_place_of_one_that_was_taken_back() {
        let mut rates = Rates::default();
        rates.begin_reply(at(50), SLOW, None);
        rates.begin_reply(at(50), None, None);
        assert_eq!(rates.advance(at(1000)), Some(None));
        assert!(rates.steps.is_empty());
    }
}
