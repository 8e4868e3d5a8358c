//! How fast a connection's replies are sent, where a rule says so: from which byte of the stream on which rate holds,
//! and of which bandwidth it is.
//!
//! It refuses to pace: TCP's pacer does, by the rate that it is told when bytes from there on are to be claimed. Bound:
//! two steps for each reply in the stream ([`crate::stream_map::REPLIES_MAX`]).

use std::collections::VecDeque;

use sites::bandwidth::Bandwidth;
use sites::rules::Rate;
use tcp::StreamOffset;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    /// In stream order.
    steps: VecDeque<(StreamOffset, Step)>,
}

/// What holds from a byte on.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Step {
    /// Bytes a second. `None`: as fast as TCP may.
    pub(crate) rate: Option<u64>,
    /// Shared with others; `None`: none.
    pub(crate) bandwidth: Option<Bandwidth>,
}

impl Rates {
    /// A reply begins at `start`, in place of one that was taken back perhaps. `rate_max`: of all connections, bytes a
    /// second.
    pub(crate) fn begin_reply(
        &mut self,
        start: StreamOffset,
        rate: Option<Rate>,
        rate_max: Option<u64>,
        bandwidth: Option<&Bandwidth>,
    ) {
        let step = |rate| Step {
            rate,
            bandwidth: bandwidth.cloned(),
        };
        while self.steps.back().is_some_and(|(at, _)| *at >= start) {
            self.steps.pop_back();
        }
        let after_bytes = rate.map_or(u64::MAX, |rate| rate.after_bytes);
        if after_bytes > 0 {
            self.steps.push_back((start, step(rate_max)));
        }
        if let Some(rate) = rate {
            let least = rate_max.map_or(rate.bytes_per_second, |most| {
                most.min(rate.bytes_per_second)
            });
            self.steps
                .push_back((start + after_bytes, step(Some(least))));
        }
    }

    /// What holds from `claimed` on, the first byte that is to be claimed; `None`: what held before.
    pub(crate) fn advance(&mut self, claimed: StreamOffset) -> Option<Step> {
        let mut step = None;
        while self.steps.front().is_some_and(|(at, _)| *at <= claimed) {
            step = self.steps.pop_front().map(|(_, step)| step);
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use sites::bandwidth::Bandwidth;
    use sites::rules::Rate;
    use tcp::StreamOffset;

    use super::{Rates, Step};

    fn at(offset: u64) -> StreamOffset {
        StreamOffset::ZERO + offset
    }

    fn of(rate: Option<u64>) -> Option<Step> {
        let bandwidth = None;
        Some(Step { rate, bandwidth })
    }

    const SLOW: Option<Rate> = Some(Rate {
        bytes_per_second: 10_000,
        after_bytes: 100,
    });

    #[test]
    fn a_rate_holds_behind_the_first_bytes_of_its_reply() {
        let mut rates = Rates::default();
        rates.begin_reply(at(50), SLOW, None, None);
        rates.begin_reply(at(500), None, None, None);
        for (claimed, rate) in [
            (49, None),
            (50, of(None)),
            (149, None),
            (150, of(Some(10_000))),
            (499, None),
            (500, of(None)),
            (501, None),
        ] {
            assert_eq!(rates.advance(at(claimed)), rate, "{claimed}");
        }
        let at_once = SLOW.map(|rate| Rate {
            after_bytes: 0,
            ..rate
        });
        rates.begin_reply(at(600), at_once, Some(9_000), None);
        assert_eq!(rates.advance(at(600)), of(Some(9_000)));
        // A bandwidth is of all of a reply, whatever its rate.
        let bandwidth = Bandwidth::new(1);
        rates.begin_reply(at(700), SLOW, None, Some(&bandwidth));
        for claimed in [700, 800] {
            let step = rates.advance(at(claimed)).unwrap();
            assert!(step.bandwidth.unwrap().is_same(&bandwidth));
        }
    }

    #[test]
    fn a_reply_takes_the_place_of_one_that_was_taken_back() {
        let mut rates = Rates::default();
        rates.begin_reply(at(50), SLOW, None, None);
        rates.begin_reply(at(50), None, None, None);
        assert_eq!(rates.advance(at(1000)), of(None));
        assert!(rates.steps.is_empty());
    }
}
