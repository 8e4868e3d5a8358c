//! HyStart++ (RFC 9406): ends the initial slow start when round trips grow longer, before a full buffer
//! loses packets.
//!
//! The least RTT of each part of a round is compared with that of the round before. If it is longer
//! by an eighth, slow start becomes conservative: growth is a quarter for five rounds, then it is
//! over. If meanwhile the RTT is as short as before, the increase was jitter, and slow start goes on.
//!
//! The RFC compares the least RTT of the whole round. But in the round in which the window outgrows
//! the path, the first packets still find the buffer empty. The increase was seen a round later, when
//! the window had doubled once more; of 10 MB at an RTT of 200 ms, with a buffer of one BDP, a quarter
//! was lost.
//!
//! Only the initial slow start, without a threshold, is watched (s4.3). The RFC's limit of eight
//! segments for each ACK (L) is for senders that do not pace; ours does.

use clock::Duration;

use super::AckEvent;
use crate::pacing::BURST_BYTES_MAX;
use crate::stream::StreamOffset;

/// MIN_RTT_THRESH.
const THRESHOLD_MIN: Duration = Duration::from_millis(4);
/// MAX_RTT_THRESH.
const THRESHOLD_MAX: Duration = Duration::from_millis(16);
/// MIN_RTT_DIVISOR.
const THRESHOLD_DIVISOR: u32 = 8;
/// N_RTT_SAMPLE: samples that a round needs to be compared.
const SAMPLES_MIN: u32 = 8;
/// A part of a round is one in this many of its bytes ...
const PARTS: u64 = 8;
/// ... but at least two bursts: the first packets of a burst do not wait for others of it.
const PART_BYTES_MIN: u64 = 2 * BURST_BYTES_MAX as u64;
/// CSS_GROWTH_DIVISOR.
pub(super) const CONSERVATIVE_DIVISOR: u64 = 4;
/// CSS_ROUNDS.
const CONSERVATIVE_ROUNDS: u32 = 5;

/// How slow start grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Growth {
    /// By what is acknowledged.
    Standard,
    /// By a quarter of it.
    Conservative,
    /// Not any more: ssthresh is cwnd.
    Ended,
}

/// The rounds of a slow start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HyStart {
    /// windowEnd: the round ends when this is acknowledged.
    round_end: StreamOffset,
    /// lastRoundMinRTT.
    last_minimum: Option<Duration>,
    /// currentRoundMinRTT.
    minimum: Option<Duration>,
    /// The part of the round under way ends when this is acknowledged.
    part_end: StreamOffset,
    /// currentRoundMinRTT, of the part.
    part_minimum: Option<Duration>,
    /// rttSampleCount, of the part.
    samples: u32,
    /// Conservative slow start, if it has begun.
    conservative: Option<Conservative>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Conservative {
    /// cssBaselineMinRtt.
    baseline: Duration,
    /// Rounds begun since.
    rounds: u32,
}

impl HyStart {
    pub(super) const fn new() -> Self {
        Self {
            round_end: StreamOffset::ZERO,
            last_minimum: None,
            minimum: None,
            part_end: StreamOffset::ZERO,
            part_minimum: None,
            samples: 0,
            conservative: None,
        }
    }

    /// An ACK of a slow start without a threshold.
    pub(super) fn on_ack(&mut self, ack: &AckEvent) -> Growth {
        if ack.acknowledged > self.round_end {
            self.begin_round(ack.sent);
        }
        if ack.acknowledged > self.part_end {
            self.begin_part(ack);
        }
        if let Some(sample) = ack.sample {
            let with =
                |minimum: Option<Duration>| Some(minimum.map_or(sample, |least| least.min(sample)));
            self.minimum = with(self.minimum);
            self.part_minimum = with(self.part_minimum);
            self.samples += 1;
        }
        self.compare();
        match self.conservative {
            None => Growth::Standard,
            Some(Conservative { rounds, .. }) if rounds < CONSERVATIVE_ROUNDS => {
                Growth::Conservative
            }
            Some(_) => Growth::Ended,
        }
    }

    fn begin_round(&mut self, end: StreamOffset) {
        self.round_end = end;
        self.last_minimum = self.minimum.take();
        // Its first part begins.
        self.part_end = StreamOffset::ZERO;
        if let Some(conservative) = &mut self.conservative {
            conservative.rounds += 1;
        }
    }

    fn begin_part(&mut self, ack: &AckEvent) {
        let bytes = ack.sent.since(ack.acknowledged) / PARTS;
        self.part_end = ack.acknowledged + bytes.max(PART_BYTES_MIN);
        self.part_minimum = None;
        self.samples = 0;
    }

    fn compare(&mut self) {
        let Some(minimum) = self.part_minimum.filter(|_| self.samples >= SAMPLES_MIN) else {
            return;
        };
        match (self.conservative, self.last_minimum) {
            (Some(conservative), _) if minimum < conservative.baseline => self.conservative = None,
            (None, Some(last)) => {
                let threshold = (last / THRESHOLD_DIVISOR).clamp(THRESHOLD_MIN, THRESHOLD_MAX);
                self.conservative = (minimum >= last + threshold).then_some(Conservative {
                    baseline: minimum,
                    rounds: 0,
                });
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use clock::{Duration, Instant};

    use super::{AckEvent, Growth, HyStart, SAMPLES_MIN};
    use crate::stream::StreamOffset;

    /// Rounds of eight ACKs of 1000 bytes each.
    struct Rounds {
        hystart: HyStart,
        acknowledged: u64,
    }

    impl Rounds {
        fn new() -> Self {
            Self {
                hystart: HyStart::new(),
                acknowledged: 0,
            }
        }

        /// A round whose ACKs have these samples, milliseconds; the growth after each.
        fn round(&mut self, samples: &[u64]) -> Vec<Growth> {
            let sent = self.acknowledged + 8000;
            let first = self.acknowledged;
            (first + 1000..=sent)
                .step_by(1000)
                .zip(samples)
                .map(|(acknowledged, millis)| {
                    self.acknowledged = acknowledged;
                    self.hystart.on_ack(&AckEvent {
                        now: Instant::ZERO,
                        bytes: 1000,
                        outstanding_bytes_max: 8000,
                        rtt: Duration::ZERO,
                        sample: Some(Duration::from_millis(*millis)),
                        acknowledged: StreamOffset(acknowledged),
                        sent: StreamOffset(sent),
                    })
                })
                .collect()
        }

        /// The growth after a round whose samples are all the same.
        fn even_round(&mut self, millis: u64) -> Growth {
            self.round(&[millis; 8])[7]
        }
    }

    #[test]
    fn slow_start_becomes_conservative_when_a_round_trip_is_longer_by_an_eighth() {
        for (longer, growth) in [(89, Growth::Standard), (90, Growth::Conservative)] {
            let mut rounds = Rounds::new();
            assert_eq!(rounds.even_round(80), Growth::Standard);
            assert_eq!(rounds.even_round(longer), growth, "80 ms, then {longer}");
        }
    }

    #[test]
    fn the_increase_is_at_least_4_ms_and_16_ms_are_enough() {
        for (first, longer, growth) in [
            (8, 11, Growth::Standard),
            (8, 12, Growth::Conservative),
            (400, 415, Growth::Standard),
            (400, 416, Growth::Conservative),
        ] {
            let mut rounds = Rounds::new();
            let _ = rounds.even_round(first);
            assert_eq!(
                rounds.even_round(longer),
                growth,
                "{first} ms, then {longer}"
            );
        }
    }

    /// The growth after a round of `bytes`, one ACK for each 15,000, whose RTT is 80 ms up to
    /// `longer_from` and 100 ms from there on, behind a round of 80 ms.
    fn growth_of_large_round(bytes: u64, longer_from: u64) -> Growth {
        let mut hystart = HyStart::new();
        let mut growth = Growth::Standard;
        for (first, longer_from) in [(0, u64::MAX), (bytes, bytes + longer_from)] {
            for acknowledged in (first + 15_000..=first + bytes).step_by(15_000) {
                let is_first = acknowledged == first + 15_000;
                let sent = if is_first { first } else { acknowledged } + bytes;
                let millis = if acknowledged > longer_from { 100 } else { 80 };
                growth = hystart.on_ack(&AckEvent {
                    now: Instant::ZERO,
                    bytes: 15_000,
                    outstanding_bytes_max: bytes,
                    rtt: Duration::ZERO,
                    sample: Some(Duration::from_millis(millis)),
                    acknowledged: StreamOffset(acknowledged),
                    sent: StreamOffset(sent),
                });
            }
        }
        growth
    }

    #[test]
    fn a_longer_part_of_a_round_is_enough() {
        // An eighth is 150,000 bytes. The last part with enough samples is that from 990,000 on.
        for (longer_from, growth) in [
            (600_000, Growth::Conservative),
            (975_000, Growth::Conservative),
            (990_000, Growth::Standard),
        ] {
            let after = growth_of_large_round(1_200_000, longer_from);
            assert_eq!(after, growth, "longer from {longer_from}");
        }
    }

    #[test]
    fn a_part_has_two_bursts_at_least() {
        // An eighth would be 60,000 bytes, whose four ACKs are too few. The last part with enough
        // samples is that from 285,000 on.
        for (longer_from, growth) in [(270_000, Growth::Conservative), (285_000, Growth::Standard)]
        {
            let after = growth_of_large_round(480_000, longer_from);
            assert_eq!(after, growth, "longer from {longer_from}");
        }
    }

    #[test]
    fn a_round_is_compared_by_its_least_sample_once_there_are_eight() {
        let mut rounds = Rounds::new();
        let _ = rounds.even_round(80);
        let growths = rounds.round(&[200; 8]);
        let few = SAMPLES_MIN as usize - 1;
        assert!(growths[..few].iter().all(|each| *each == Growth::Standard));
        assert_eq!(growths[few], Growth::Conservative);
        let mut rounds = Rounds::new();
        let _ = rounds.even_round(80);
        let one_short = rounds.round(&[200, 200, 200, 200, 89, 200, 200, 200]);
        assert_eq!(one_short[7], Growth::Standard);
    }

    #[test]
    fn conservative_slow_start_ends_after_five_rounds() {
        let mut rounds = Rounds::new();
        let _ = rounds.even_round(80);
        assert_eq!(rounds.even_round(90), Growth::Conservative);
        for round in 1..5 {
            assert_eq!(rounds.even_round(95), Growth::Conservative, "{round}");
        }
        assert_eq!(rounds.round(&[95])[0], Growth::Ended);
    }

    #[test]
    fn slow_start_goes_on_if_the_round_trip_is_short_again() {
        for (later, growth) in [(90, Growth::Conservative), (89, Growth::Standard)] {
            let mut rounds = Rounds::new();
            let _ = rounds.even_round(80);
            let _ = rounds.even_round(90);
            assert_eq!(rounds.even_round(later), growth, "{later}");
        }
    }

    #[test]
    fn acks_without_a_sample_do_not_count() {
        let mut rounds = Rounds::new();
        let _ = rounds.even_round(80);
        let ack = AckEvent {
            now: Instant::ZERO,
            bytes: 1000,
            outstanding_bytes_max: 8000,
            rtt: Duration::ZERO,
            sample: None,
            acknowledged: StreamOffset(9000),
            sent: StreamOffset(100_000),
        };
        for _ in 0..20 {
            assert_eq!(rounds.hystart.on_ack(&ack), Growth::Standard);
        }
        assert_eq!(rounds.hystart.samples, 0);
    }
}
