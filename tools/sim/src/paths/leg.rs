//! One direction of a path: policer, bottleneck with a drop-tail buffer of bytes that may mark, random
//! loss, delay with steps, reordering, and frames that are held and released together. Before all of it,
//! packets above a size may be dropped without a report (a black hole).
//!
//! The order is that of the list. Frames keep their order but for those that reordering delays. It
//! refuses to change a frame but by a mark. Bounded by buffer, rate and delay.

use std::collections::{BTreeMap, VecDeque};

use clock::{Duration, Instant};
use wire::Ecn;

use crate::rng::Rng;

/// The rates of a [`LegPlan`] are parts of this.
pub(crate) const MILLION: u64 = 1_000_000;

/// Header of a frame.
const ETHERNET_BYTES: u64 = 14;

/// A token bucket that drops what exceeds it (RFC 2697's committed rate alone).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Policer {
    /// Bits per second.
    pub(crate) rate_bits: u64,
    /// Bytes of the bucket, full at first.
    pub(crate) burst_bytes: u64,
}

/// One direction of a path. The default has no limits, no delay and no faults.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LegPlan {
    /// Rate of the bottleneck, bits per second; 0: no limit.
    pub(crate) rate_bits: u64,
    /// Bytes that wait before the bottleneck, those being sent included; one frame always may.
    pub(crate) buffer_bytes: u64,
    /// A frame that is ECT is marked (RFC 3168 s5) if so many bytes wait, itself included.
    pub(crate) mark_bytes: u64,
    /// One-way delay at the start.
    pub(crate) delay: Duration,
    /// Since the start of the run, in order: from when on, and the one-way delay from then on.
    pub(crate) steps: Vec<(Duration, Duration)>,
    /// Frames in a million that are lost.
    pub(crate) loss_ppm: u64,
    /// Frames in a million that are delayed by up to `reorder_delay` more.
    pub(crate) reorder_ppm: u64,
    /// Largest extra delay of such a frame.
    pub(crate) reorder_delay: Duration,
    /// Frames arrive at multiples of this only, all that are due together; zero: at any moment.
    pub(crate) hold: Duration,
    /// A policer before the bottleneck.
    pub(crate) policer: Option<Policer>,
    /// Since the start of the run, in order: from when on, and the largest packet that passes from then
    /// on, with IP header. Every packet passes before.
    pub(crate) sizes: Vec<(Duration, u64)>,
}

impl Default for LegPlan {
    fn default() -> Self {
        Self {
            rate_bits: 0,
            buffer_bytes: u64::MAX,
            mark_bytes: u64::MAX,
            delay: Duration::ZERO,
            steps: Vec::new(),
            loss_ppm: 0,
            reorder_ppm: 0,
            reorder_delay: Duration::ZERO,
            hold: Duration::ZERO,
            policer: None,
            sizes: Vec::new(),
        }
    }
}

impl LegPlan {
    /// The one-way delay, so long after the start of the run.
    pub(crate) fn delay_at(&self, elapsed: Duration) -> Duration {
        let due = self.steps.iter().rev().find(|(from, _)| *from <= elapsed);
        due.map_or(self.delay, |(_, delay)| *delay)
    }

    /// The largest packet that passes, so long after the start of the run.
    pub(crate) fn packet_bytes_at(&self, elapsed: Duration) -> u64 {
        let due = self.sizes.iter().rev().find(|(from, _)| *from <= elapsed);
        due.map_or(u64::MAX, |(_, bytes)| *bytes)
    }

    /// The longest one-way delay of the run.
    pub(crate) fn delay_max(&self) -> Duration {
        let steps = self.steps.iter().map(|(_, delay)| *delay);
        steps.fold(self.delay, Duration::max)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Leg {
    plan: LegPlan,
    epoch: Instant,
    rng: Rng,
    /// Frames before the bottleneck: when each will have passed it, and its bytes.
    queue: VecDeque<(Instant, u64)>,
    queued_bytes: u64,
    free_at: Instant,
    /// Arrival of the last frame that was not reordered.
    last_arrival: Instant,
    /// Tokens of the policer, in bits times a million, and when they were counted.
    tokens: u128,
    tokens_at: Instant,
    sent_frames: u64,
    dropped_frames: u64,
    marked_frames: u64,
    in_flight: BTreeMap<(Instant, u64), Vec<u8>>,
}

impl Leg {
    pub(crate) fn new(plan: LegPlan, epoch: Instant, seed: u64, purpose: u64) -> Self {
        let tokens = plan.policer.map_or(0, |policer| full_bucket(&policer));
        Self {
            plan,
            epoch,
            rng: Rng::new(seed, purpose),
            queue: VecDeque::new(),
            queued_bytes: 0,
            free_at: Instant::ZERO,
            last_arrival: Instant::ZERO,
            tokens,
            tokens_at: epoch,
            sent_frames: 0,
            dropped_frames: 0,
            marked_frames: 0,
            in_flight: BTreeMap::new(),
        }
    }

    /// A frame enters at `now`, which never decreases.
    pub(crate) fn send(&mut self, now: Instant, mut frame: Vec<u8>) {
        self.sent_frames += 1;
        let bytes = frame.len() as u64;
        let is_lost = self.rng.range(1..=MILLION) <= self.plan.loss_ppm;
        let is_reordered = self.rng.range(1..=MILLION) <= self.plan.reorder_ppm;
        let extra = self.rng.bits();
        let packet_bytes_max = self.plan.packet_bytes_at(now.since(self.epoch));
        if bytes.saturating_sub(ETHERNET_BYTES) > packet_bytes_max {
            self.dropped_frames += 1;
            return;
        }
        if !self.take_tokens(now, bytes) || !self.enqueue(now, bytes) || is_lost {
            self.dropped_frames += 1;
            return;
        }
        if self.queued_bytes >= self.plan.mark_bytes {
            self.mark(&mut frame);
        }
        let leaves = self.free_at.max(now);
        let mut arrival = leaves + self.plan.delay_at(leaves.since(self.epoch));
        if is_reordered {
            let most = u64::try_from(self.plan.reorder_delay.as_nanos()).unwrap_or(u64::MAX);
            arrival += Duration::from_nanos(extra % most.max(1));
        } else {
            arrival = arrival.max(self.last_arrival);
            self.last_arrival = arrival;
        }
        let arrival = self.round_up(arrival);
        self.in_flight.insert((arrival, self.sent_frames), frame);
    }

    /// Marks a frame if its sender allows that.
    fn mark(&mut self, frame: &mut [u8]) {
        if matches!(wire::read_ecn(frame), Some(Ecn::Ect0 | Ecn::Ect1)) {
            wire::set_ecn(frame, Ecn::Ce);
            self.marked_frames += 1;
        }
    }

    /// The next frame that has arrived by `now`.
    pub(crate) fn receive(&mut self, now: Instant) -> Option<Vec<u8>> {
        let first = self.in_flight.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// When the next frame arrives.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let first = self.in_flight.first_key_value();
        first.map(|((arrival, _), _)| *arrival)
    }

    /// Frames that entered.
    pub(crate) const fn sent_frames(&self) -> u64 {
        self.sent_frames
    }

    /// Frames that were dropped, for any reason.
    pub(crate) const fn dropped_frames(&self) -> u64 {
        self.dropped_frames
    }

    /// Frames that were marked.
    pub(crate) const fn marked_frames(&self) -> u64 {
        self.marked_frames
    }

    /// Whether the policer has tokens for the frame; takes them.
    fn take_tokens(&mut self, now: Instant, bytes: u64) -> bool {
        let Some(policer) = self.plan.policer else {
            return true;
        };
        let gained = now.since(self.tokens_at).as_micros() * u128::from(policer.rate_bits);
        self.tokens_at = now;
        self.tokens = (self.tokens + gained).min(full_bucket(&policer));
        let cost = u128::from(bytes) * 8 * u128::from(MILLION);
        let has_enough = self.tokens >= cost;
        if has_enough {
            self.tokens -= cost;
        }
        has_enough
    }

    /// Whether the buffer has room for the frame; takes it.
    fn enqueue(&mut self, now: Instant, bytes: u64) -> bool {
        while let Some((_, passed_bytes)) = self.queue.pop_front_if(|(passed, _)| *passed <= now) {
            self.queued_bytes -= passed_bytes;
        }
        let is_full = self.queued_bytes.saturating_add(bytes) > self.plan.buffer_bytes;
        if is_full && !self.queue.is_empty() {
            return false;
        }
        self.free_at = self.free_at.max(now) + time_on_wire(bytes, self.plan.rate_bits);
        self.queue.push_back((self.free_at, bytes));
        self.queued_bytes += bytes;
        true
    }

    /// The next moment at which frames are released.
    fn round_up(&self, arrival: Instant) -> Instant {
        let hold = u64::try_from(self.plan.hold.as_nanos()).unwrap_or(u64::MAX);
        if hold == 0 {
            return arrival;
        }
        Instant::from_nanos(arrival.as_nanos().div_ceil(hold) * hold)
    }
}

fn full_bucket(policer: &Policer) -> u128 {
    u128::from(policer.burst_bytes) * 8 * u128::from(MILLION)
}

/// How long `bytes` take at a rate; nothing at a rate of 0. Rounded up.
pub(crate) fn time_on_wire(bytes: u64, rate_bits: u64) -> Duration {
    if rate_bits == 0 {
        return Duration::ZERO;
    }
    let nanos = (u128::from(bytes) * 8_000_000_000).div_ceil(rate_bits.into());
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use clock::{Duration, Instant};

    use wire::Ecn;

    use super::{Leg, LegPlan, Policer};

    /// Arrivals, in milliseconds, of frames of 1000 bytes that enter at these milliseconds.
    fn arrivals(plan: &LegPlan, sent: &[u64]) -> Vec<(u64, u8)> {
        let mut leg = Leg::new(plan.clone(), Instant::ZERO, 1, 1);
        for (number, at) in sent.iter().enumerate() {
            let number = u8::try_from(number).expect("few");
            leg.send(Instant::from_millis(*at), vec![number; 1000]);
        }
        let mut arrived = Vec::new();
        while let Some(at) = leg.poll_timeout() {
            let frame = leg.receive(at).expect("due");
            arrived.push((at.as_millis(), frame[0]));
        }
        arrived
    }

    /// 8 Mb/s: a millisecond for each frame.
    fn plan() -> LegPlan {
        LegPlan {
            rate_bits: 8_000_000,
            delay: Duration::from_millis(10),
            ..LegPlan::default()
        }
    }

    #[test]
    fn the_buffer_holds_its_bytes_and_not_one_more() {
        let with = |buffer_bytes| LegPlan {
            buffer_bytes,
            ..plan()
        };
        assert_eq!(arrivals(&with(2000), &[0, 0, 0]), [(11, 0), (12, 1)]);
        assert_eq!(arrivals(&with(1999), &[0, 0, 1]), [(11, 0), (12, 2)]);
        // A buffer below one frame passes one.
        assert_eq!(arrivals(&with(1), &[0, 0]), [(11, 0)]);
    }

    #[test]
    fn a_frame_is_marked_from_the_threshold_on_if_its_sender_allows_that() {
        let marking = LegPlan {
            mark_bytes: 2000,
            ..plan()
        };
        let mut leg = Leg::new(marking, Instant::ZERO, 1, 1);
        // IPv4, 1000 bytes each.
        let mut send = |ecn| {
            let mut frame = vec![0; 1000];
            frame[12] = 0x08;
            wire::set_ecn(&mut frame, ecn);
            leg.send(Instant::ZERO, frame);
        };
        for ecn in [Ecn::Ect0, Ecn::Ect0, Ecn::NotEct, Ecn::Ect1] {
            send(ecn);
        }
        let later = Instant::from_millis(1000);
        let arrived = core::iter::from_fn(|| leg.receive(later));
        let fields: Vec<_> = arrived.filter_map(|frame| wire::read_ecn(&frame)).collect();
        assert_eq!(fields, [Ecn::Ect0, Ecn::Ce, Ecn::NotEct, Ecn::Ce]);
        assert_eq!((leg.marked_frames(), leg.dropped_frames()), (2, 0));
    }

    #[test]
    fn a_step_changes_the_delay_and_not_the_order() {
        let stepping = LegPlan {
            steps: vec![
                (Duration::from_millis(5), Duration::from_millis(50)),
                (Duration::from_millis(9), Duration::from_millis(10)),
            ],
            ..plan()
        };
        let arrived = arrivals(&stepping, &[0, 3, 4, 8]);
        assert_eq!(arrived, [(11, 0), (14, 1), (55, 2), (55, 3)]);
        assert_eq!(stepping.delay_max(), Duration::from_millis(50));
    }

    #[test]
    fn packets_above_the_size_of_the_moment_are_dropped() {
        // 986 bytes behind the frame's header.
        let with = |sizes| LegPlan { sizes, ..plan() };
        let millis = Duration::from_millis;
        let narrow = with(vec![(millis(2), 985), (millis(4), 986)]);
        assert_eq!(arrivals(&narrow, &[1, 2, 3, 4]), [(12, 0), (15, 3)]);
        assert_eq!(narrow.packet_bytes_at(millis(1)), u64::MAX);
    }

    #[test]
    fn held_frames_arrive_together() {
        let held = LegPlan {
            hold: Duration::from_millis(20),
            ..plan()
        };
        assert_eq!(arrivals(&held, &[0, 8, 10]), [(20, 0), (20, 1), (40, 2)]);
    }

    #[test]
    fn a_policer_passes_its_burst_and_then_its_rate() {
        let policed = LegPlan {
            policer: Some(Policer {
                rate_bits: 800_000,
                burst_bytes: 2000,
            }),
            ..plan()
        };
        // A token for each 10 ms.
        let arrived = arrivals(&policed, &[0, 0, 0, 9, 10, 19, 20]);
        let numbers: Vec<u8> = arrived.iter().map(|(_, number)| *number).collect();
        assert_eq!(numbers, [0, 1, 4, 6]);
    }

    #[test]
    fn rates_of_a_million_and_of_none_are_certain() {
        let lossy = LegPlan {
            loss_ppm: super::MILLION,
            ..plan()
        };
        assert_eq!(arrivals(&lossy, &[0, 1]), []);
        let late = LegPlan {
            reorder_ppm: super::MILLION,
            reorder_delay: Duration::from_millis(500),
            ..plan()
        };
        let arrived = arrivals(&late, &[0, 2, 4, 6, 8]);
        assert_eq!(arrived.len(), 5);
        assert!(!arrived.is_sorted_by_key(|(_, number)| *number));
    }
}
