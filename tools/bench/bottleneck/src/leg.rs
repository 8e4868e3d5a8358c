//! One direction of a path: a bottleneck with a drop-tail buffer of bytes, random loss, a delay.
//!
//! In this order: a frame that the random loss takes has used the buffer and the rate before, as on a
//! radio link behind the bottleneck. `tools/sim` has the same order. Behind all of that, and only where
//! [`Disorder`] says so, frames are held back and doubled. It reads no clock: moments are given as time
//! since some start. Bounded by: the frames the buffer holds.

use std::collections::VecDeque;
use std::time::Duration;

use testbed::random::Random;

/// What one direction does to frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LegPlan {
    /// Rate of the bottleneck, bits of Ethernet frames a second; 0: no limit.
    pub rate_bits: u64,
    /// Bytes that wait before the bottleneck, those being sent included; one frame always may.
    pub buffer_bytes: u64,
    /// From the end of the bottleneck to the other side.
    pub delay: Duration,
    /// To the delay of each frame a time up to this one is added that is drawn for it; frames keep their
    /// order.
    pub delay_noise: Duration,
    /// Frames in a million that are lost at random.
    pub loss_ppm: u32,
    /// What the losses are drawn from, and the disorder.
    pub seed: u64,
    /// What happens to the frames that are not lost.
    pub disorder: Disorder,
}

/// What a direction does to the frames that it does not lose: to their order, number and SACK blocks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Disorder {
    /// Frames in a million that arrive `reorder_delay` later than they would, so that others overtake
    /// them.
    pub reorder_ppm: u32,
    /// How much later.
    pub reorder_delay: Duration,
    /// Frames in a million that arrive twice, one directly behind the other.
    pub duplicate_ppm: u32,
    /// Every frame arrives later than it would, by a time up to this one that is drawn for it.
    pub jitter_max: Duration,
    /// What is added to the edges of SACK blocks; 0: they stay.
    pub sack_shift: u32,
}

impl Disorder {
    /// Frames keep their order and their number.
    pub const NONE: Self = Self {
        reorder_ppm: 0,
        reorder_delay: Duration::ZERO,
        duplicate_ppm: 0,
        jitter_max: Duration::ZERO,
        sack_shift: 0,
    };
}

impl LegPlan {
    /// No limits and no losses, only a delay.
    #[must_use]
    pub const fn delay_only(delay: Duration) -> Self {
        Self {
            rate_bits: 0,
            buffer_bytes: u64::MAX,
            delay,
            delay_noise: Duration::ZERO,
            loss_ppm: 0,
            seed: 0,
            disorder: Disorder::NONE,
        }
    }
}

/// What becomes of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It arrives at this moment.
    Arrives(Duration),
    /// It arrives at this moment, two times.
    ArrivesTwice(Duration),
    /// The random loss takes it.
    Lost,
    /// The buffer has no room for it.
    Full,
}

/// What a direction did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LegCounts {
    /// Frames that entered.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames that the random loss took.
    pub lost_frames: u64,
    /// Frames the buffer had no room for.
    pub full_frames: u64,
    /// Frames that were held back.
    pub reordered_frames: u64,
    /// Frames that arrive twice.
    pub duplicated_frames: u64,
    /// Frames that left at the other side.
    pub arrived_frames: u64,
    /// Their bytes.
    pub arrived_bytes: u64,
    /// Most bytes that waited before the bottleneck.
    pub queued_bytes_max: u64,
    /// Frames of more than an MTU, which were passed on as they were.
    pub oversize_frames: u64,
    /// Frames that left more than [`crate::middlebox::LATE`] late.
    pub late_frames: u64,
    /// How late the latest left, microseconds.
    pub late_us_max: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Leg {
    plan: LegPlan,
    random: Random,
    /// Frames before the bottleneck: when each will have passed it, and its bytes.
    queue: VecDeque<(Duration, u64)>,
    queued_bytes: u64,
    /// When the bottleneck has passed all of them.
    free_at: Duration,
    /// When the last frame arrives, by the noise of the delay.
    arrives_last: Duration,
    /// What it did so far.
    pub counts: LegCounts,
}

impl Leg {
    /// An empty one.
    #[must_use]
    pub const fn new(plan: LegPlan) -> Self {
        Self {
            plan,
            random: Random::new(plan.seed),
            queue: VecDeque::new(),
            queued_bytes: 0,
            free_at: Duration::ZERO,
            arrives_last: Duration::ZERO,
            counts: LegCounts {
                frames: 0,
                bytes: 0,
                lost_frames: 0,
                full_frames: 0,
                reordered_frames: 0,
                duplicated_frames: 0,
                arrived_frames: 0,
                arrived_bytes: 0,
                queued_bytes_max: 0,
                oversize_frames: 0,
                late_frames: 0,
                late_us_max: 0,
            },
        }
    }

    /// What it does.
    #[must_use]
    pub const fn plan(&self) -> &LegPlan {
        &self.plan
    }

    /// A frame of so many bytes enters at `now`, which never decreases.
    pub fn accept(&mut self, now: Duration, bytes: u64) -> Fate {
        self.counts.frames += 1;
        self.counts.bytes += bytes;
        // Drawn for every frame: what the buffer does has no influence on the next draw. What never
        // happens is not drawn, so a path without disorder has the losses it had before there was any.
        let disorder = self.plan.disorder;
        let is_lost = self.random.happens(self.plan.loss_ppm);
        let is_reordered = self.random.happens(disorder.reorder_ppm);
        let is_duplicated = self.random.happens(disorder.duplicate_ppm);
        let jitter = self.random.up_to(disorder.jitter_max);
        let noise = self.random.up_to(self.plan.delay_noise);
        self.forget_passed(now);
        let is_full = self.queued_bytes.saturating_add(bytes) > self.plan.buffer_bytes;
        if is_full && !self.queue.is_empty() {
            self.counts.full_frames += 1;
            return Fate::Full;
        }
        let mut arrives = self.enqueue(now, bytes) + noise;
        arrives = arrives.max(self.arrives_last);
        self.arrives_last = arrives;
        arrives += jitter;
        if is_lost {
            self.counts.lost_frames += 1;
            return Fate::Lost;
        }
        if is_reordered {
            self.counts.reordered_frames += 1;
            arrives += disorder.reorder_delay;
        }
        if is_duplicated {
            self.counts.duplicated_frames += 1;
            return Fate::ArrivesTwice(arrives);
        }
        Fate::Arrives(arrives)
    }

    /// A frame that is not subject to faults, such as ARP, enters: it takes its time on the wire, but is neither
    /// lost nor counted.
    pub fn accept_surely(&mut self, now: Duration, bytes: u64) -> Duration {
        self.forget_passed(now);
        self.enqueue(now, bytes)
    }

    fn enqueue(&mut self, now: Duration, bytes: u64) -> Duration {
        self.free_at = self.free_at.max(now) + time_on_wire(bytes, self.plan.rate_bits);
        self.queue.push_back((self.free_at, bytes));
        self.queued_bytes += bytes;
        self.counts.queued_bytes_max = self.counts.queued_bytes_max.max(self.queued_bytes);
        self.free_at + self.plan.delay
    }

    fn forget_passed(&mut self, now: Duration) {
        while let Some((_, bytes)) = self.queue.pop_front_if(|(passed, _)| *passed <= now) {
            self.queued_bytes -= bytes;
        }
    }
}

/// How long the bottleneck takes for so many bytes.
fn time_on_wire(bytes: u64, rate_bits: u64) -> Duration {
    if rate_bits == 0 {
        return Duration::ZERO;
    }
    let nanoseconds = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(rate_bits);
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: u64 = 1_250;

    /// 10 Mb/s: a frame takes a millisecond.
    fn leg(buffer_bytes: u64, loss_ppm: u32) -> Leg {
        Leg::new(LegPlan {
            rate_bits: 10_000_000,
            buffer_bytes,
            delay: Duration::from_millis(20),
            delay_noise: Duration::ZERO,
            loss_ppm,
            seed: 7,
            disorder: Disorder::NONE,
        })
    }

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn frames_leave_at_the_rate_and_arrive_after_the_delay() {
        let mut leg = leg(u64::MAX, 0);
        assert_eq!(leg.accept(millis(5), FRAME), Fate::Arrives(millis(26)));
        assert_eq!(leg.accept(millis(5), FRAME), Fate::Arrives(millis(27)));
        // The bottleneck has been idle since 7 ms.
        assert_eq!(leg.accept(millis(100), FRAME), Fate::Arrives(millis(121)));
        let mut free = Leg::new(LegPlan::delay_only(millis(3)));
        assert_eq!(free.accept(millis(5), FRAME), Fate::Arrives(millis(8)));
        assert_eq!(free.accept(millis(5), FRAME), Fate::Arrives(millis(8)));
    }

    #[test]
    fn what_exceeds_the_buffer_by_a_byte_is_dropped() {
        let mut leg = leg(2 * FRAME, 0);
        assert_eq!(leg.accept(millis(0), FRAME), Fate::Arrives(millis(21)));
        assert_eq!(leg.accept(millis(0), FRAME), Fate::Arrives(millis(22)));
        assert_eq!(leg.accept(millis(0), 1), Fate::Full);
        // The first has passed: there is room for one, and not for more.
        assert_eq!(leg.accept(millis(1), FRAME + 1), Fate::Full);
        assert_eq!(leg.accept(millis(1), FRAME), Fate::Arrives(millis(23)));
        assert_eq!(leg.counts.full_frames, 2);
        assert_eq!(leg.counts.queued_bytes_max, 2 * FRAME);
        assert_eq!((leg.counts.frames, leg.counts.bytes), (5, 4 * FRAME + 2));
    }

    #[test]
    fn a_frame_above_the_buffer_passes_if_none_waits() {
        let mut leg = leg(FRAME - 1, 0);
        assert_eq!(leg.accept(millis(0), FRAME), Fate::Arrives(millis(21)));
        assert_eq!(leg.accept(millis(0), FRAME), Fate::Full);
        assert_eq!(leg.accept(millis(1), FRAME), Fate::Arrives(millis(22)));
    }

    #[test]
    fn losses_are_counted_take_time_and_are_the_same_for_a_seed() {
        let fates = |_| {
            let mut leg = leg(u64::MAX, 100_000);
            let fates: Vec<Fate> = (0..1_000).map(|_| leg.accept(millis(0), FRAME)).collect();
            (fates, leg.counts.lost_frames)
        };
        let (first, lost) = fates(0);
        assert_eq!(first, fates(1).0);
        let seen = first.iter().filter(|it| **it == Fate::Lost).count();
        assert_eq!(lost, seen as u64);
        assert!((60..140).contains(&seen), "{seen}");
        // Lost or not, the frames before it have used the bottleneck.
        for (index, fate) in first.iter().enumerate() {
            let arrives = Fate::Arrives(millis(index as u64 + 21));
            assert!(*fate == Fate::Lost || *fate == arrives);
        }
    }

    fn disordered(disorder: Disorder) -> (Vec<Fate>, LegCounts) {
        let mut leg = Leg::new(LegPlan {
            loss_ppm: 100_000,
            seed: 3,
            disorder,
            ..LegPlan::delay_only(millis(5))
        });
        let fates = (0..1_000).map(|_| leg.accept(millis(0), FRAME)).collect();
        (fates, leg.counts)
    }

    #[test]
    fn frames_are_held_back_and_doubled_as_often_as_asked_and_counted() {
        let (fates, counts) = disordered(Disorder {
            reorder_ppm: 200_000,
            reorder_delay: millis(4),
            duplicate_ppm: 100_000,
            ..Disorder::NONE
        });
        let seen = |is: fn(&Fate) -> bool| fates.iter().filter(|it| is(it)).count() as u64;
        let (twice, late) = (
            seen(|it| matches!(it, Fate::ArrivesTwice(_))),
            seen(|it| matches!(it, Fate::Arrives(at) | Fate::ArrivesTwice(at) if *at == millis(9))),
        );
        assert_eq!(
            (counts.duplicated_frames, counts.reordered_frames),
            (twice, late)
        );
        // Of the 900 that are not lost.
        assert!((60..120).contains(&twice), "{twice}");
        assert!((140..220).contains(&late), "{late}");
        let on_time = seen(|it| matches!(it, Fate::Arrives(at) if *at == millis(5)));
        assert!(on_time > 500, "{on_time}");
    }

    #[test]
    fn every_frame_is_late_by_up_to_the_jitter() {
        let (fates, _) = disordered(Disorder {
            jitter_max: millis(4),
            ..Disorder::NONE
        });
        let arrivals = fates.iter().filter_map(|fate| match fate {
            Fate::Arrives(at) => Some(*at),
            Fate::ArrivesTwice(_) | Fate::Lost | Fate::Full => None,
        });
        let arrivals: Vec<Duration> = arrivals.collect();
        assert!(
            arrivals
                .iter()
                .all(|at| (millis(5)..=millis(9)).contains(at))
        );
        assert!(arrivals.iter().any(|at| *at < millis(6)));
        assert!(arrivals.iter().any(|at| *at > millis(8)));
        assert!(!arrivals.is_sorted());
    }

    #[test]
    fn noise_delays_frames_by_up_to_so_much_and_keeps_their_order() {
        let mut leg = Leg::new(LegPlan {
            delay_noise: millis(4),
            seed: 3,
            ..LegPlan::delay_only(millis(5))
        });
        let arrivals = (0..100).map(|turn| match leg.accept(millis(turn), FRAME) {
            Fate::Arrives(at) => (millis(turn + 5), at),
            other => panic!("{other:?}"),
        });
        let arrivals: Vec<_> = arrivals.collect();
        let is_within = |(due, at): &(Duration, Duration)| (*due..=*due + millis(4)).contains(at);
        assert!(arrivals.iter().all(is_within), "{arrivals:?}");
        assert!(arrivals.is_sorted_by_key(|(_, at)| *at));
        assert!(arrivals.iter().any(|(due, at)| *at > *due + millis(3)));
    }

    #[test]
    fn without_disorder_every_frame_arrives_once_and_in_its_place_or_is_lost() {
        let (fates, counts) = disordered(Disorder::NONE);
        let is_plain = |it: &Fate| matches!(it, Fate::Lost) || *it == Fate::Arrives(millis(5));
        assert!(fates.iter().all(is_plain));
        assert_eq!((counts.duplicated_frames, counts.reordered_frames), (0, 0));
    }

    #[test]
    fn a_sure_frame_is_neither_lost_nor_dropped_and_keeps_the_order() {
        let mut leg = leg(FRAME, 1_000_000);
        assert_eq!(leg.accept(millis(0), FRAME), Fate::Lost);
        assert_eq!(leg.accept_surely(millis(0), FRAME), millis(22));
        assert_eq!(leg.accept(millis(0), FRAME), Fate::Full);
        assert_eq!(leg.counts.frames, 2);
    }
}
