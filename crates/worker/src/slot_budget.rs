//! How many slots may be in use: being read into, filled, or on loan to the link's device. One limit for all three, for
//! each worker by itself.
//!
//! Clients with large windows want more than a worker can send, and a disk that is faster than the worker or the link
//! reads it all at once. The bytes then wait for their turn and leave the processor's caches meanwhile, and a device that
//! writes to memory through a few ways of the last-level cache pushes them out sooner: each byte is written to memory
//! and read again. So no read begins beyond a limit of slots in use. It falls while the worker hardly ever waits
//! with reads held back, and rises when it does for an eighth of the time. Reads that are held back begin in the order of
//! their turns.
//!
//! **What is waited for decides.** If most slots are with the disk, more reads would have kept the worker busy. If most
//! are behind it, the link is what is waited for. More slots would wait there as well if it is full, and help if its
//! device gives slots back late. Which of the two it is shows when more are tried: if fewer than half of them pass in
//! addition, the link is full, and for [`FULL_FOR`] waits for it count no more. A link that has said so
//! ([`link::TransmitError::Full`]) is not tried.
//!
//! **Progress.** One slot may always be in use. Loans that last longer than [`OVERDUE_AFTER`] do not count, so that a
//! device which forgets some costs these slots and not the service.
//!
//! A state to come, slots that keep what was sent for others to be sent again, is to be a part of [`InUse`]: it gives way
//! before a read is held back, and is bounded by what the limit leaves.
//!
//! It refuses to go below [`LEAST`], where system calls would have less to share, and above the slots there are.

use clock::{Duration, Instant};

/// Always permitted, and at start: 2 MiB in slots of 64 KiB. Sealing costs the same with up to 64 slots in turn, and half as
/// much again with 512 (`atlas-bench stages seal --slots`). If there are fewer than twice as many slots: half of them.
pub const LEAST: usize = 32;

/// For so long waits are added up; at its end the limit may fall.
const PERIOD: Duration = Duration::from_millis(8);

/// With less waiting in a period the limit falls: a thirty-second of it.
const WAIT_LEAST: Duration = Duration::from_micros(250);

/// With so much the limit rises, at once: an eighth.
const WAIT_MOST: Duration = Duration::from_millis(1);

/// How long waits for a link are not counted once it was found to be full: more slots are tried for one [`PERIOD`] in
/// sixty-six.
const FULL_FOR: Duration = Duration::from_millis(512);

/// A loan that lasts longer is not counted: 2 MiB take so long at 17 Mb/s.
const OVERDUE_AFTER: Duration = Duration::from_secs(1);

/// How long a worker that holds reads back waits before it asks again for slots on loan, of which nothing tells. Twice
/// as long each time that none came, up to [`link::FULL_RETRY_AFTER`].
const LOOK_AFTER: Duration = Duration::from_micros(100);

/// Slots in use, by what they wait for.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(super) struct InUse {
    /// The disk: being read into, or filled and behind such a one in their stream.
    pub(super) of_disk: usize,
    /// The link: on loan, or filled and not taken.
    pub(super) of_link: usize,
}

impl InUse {
    const fn all(self) -> usize {
        self.of_disk + self.of_link
    }
}

/// What a worker without work waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Disk,
    Link,
}

/// More slots than before are permitted, to see whether more pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Trial {
    limit_before: usize,
    freed_per_second_before: u64,
}

/// What is added up from one change of the limit to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Period {
    began: Instant,
    /// Slots in use at its beginning.
    in_use: usize,
    /// Reads begun.
    begun: usize,
    /// How long the worker waited for disk and link, as far as that counts.
    waited: Duration,
    /// And of that, for the link.
    waited_for_link: Duration,
}

/// The limit, and the waits that it follows.
#[derive(Debug)]
pub(super) struct SlotBudget {
    limit: usize,
    most: usize,
    /// Reads are held back in this round.
    is_held: bool,
    period: Period,
    /// Since when the worker waits, and for what.
    waits: Option<(Instant, Wait)>,
    trial: Option<Trial>,
    /// Up to when waits for the link do not count.
    full_until: Instant,
    /// By slot: since when it is on loan.
    lent_since: Vec<Option<Instant>>,
    /// Loans that do not count.
    overdue_count: usize,
    /// When to ask for slots on loan next, and how long after the last round.
    looks_at: Option<Instant>,
    look_after: Duration,
}

impl SlotBudget {
    /// Up to `most`: the slots.
    pub(super) fn new(most: usize) -> Self {
        Self {
            limit: Self::least(most),
            most,
            is_held: false,
            period: Period::new(Instant::ZERO, 0),
            waits: None,
            trial: None,
            full_until: Instant::ZERO,
            lent_since: vec![None; most],
            overdue_count: 0,
            looks_at: None,
            look_after: Duration::ZERO,
        }
    }

    fn least(most: usize) -> usize {
        LEAST.min(most.div_ceil(2))
    }

    /// Slots that may be in use now.
    pub(super) const fn limit(&self) -> usize {
        self.limit
    }

    /// A round begins.
    pub(super) fn begin_round(&mut self, now: Instant, in_use: InUse) {
        self.is_held = false;
        self.count_wait(now);
        let is_over = now.since(self.period.began) >= PERIOD;
        let Period {
            waited,
            waited_for_link,
            ..
        } = self.period;
        if let Some(trial) = self.trial {
            if !is_over {
                return;
            }
            self.end_trial(now, in_use, trial);
        } else if waited >= WAIT_MOST {
            if waited_for_link > waited / 2 {
                if !is_over {
                    return;
                }
                self.trial = Some(Trial {
                    limit_before: self.limit,
                    freed_per_second_before: self.period.freed_per_second(now, in_use),
                });
            }
            self.limit = (self.limit + self.limit / 4 + 1).min(self.most);
        } else if is_over && waited < WAIT_LEAST {
            let less = self.limit - (self.limit / 16).max(1);
            self.limit = less.max(Self::least(self.most)).min(self.limit);
        } else if !is_over {
            return;
        }
        if is_over {
            self.find_overdue(now);
        }
        self.period = Period::new(now, in_use.all());
    }

    /// Adds the wait that ends now to its period, if it counts.
    fn count_wait(&mut self, now: Instant) {
        let Some((since, wait)) = self.waits.take() else {
            return;
        };
        let waited = now.since(since);
        if wait == Wait::Link {
            if now < self.full_until {
                return;
            }
            self.period.waited_for_link = self.period.waited_for_link.saturating_add(waited);
        }
        self.period.waited = self.period.waited.saturating_add(waited);
    }

    /// Whether so many more slots have passed as half of those that were permitted in addition.
    fn end_trial(&mut self, now: Instant, in_use: InUse, trial: Trial) {
        self.trial = None;
        let freed = self.period.freed_per_second(now, in_use);
        let before = trial.freed_per_second_before;
        if freed <= before + before / 8 {
            self.limit = trial.limit_before;
            self.full_until = now + FULL_FOR;
        }
    }

    fn find_overdue(&mut self, now: Instant) {
        let is_overdue = |since: &Instant| now.since(*since) > OVERDUE_AFTER;
        let lent = self.lent_since.iter().flatten();
        self.overdue_count = lent.filter(|since| is_overdue(since)).count();
    }

    /// Whether another read may begin beside the slots in use.
    pub(super) const fn permit(&self, in_use: InUse) -> bool {
        in_use.all().saturating_sub(self.overdue_count) < self.limit
    }

    /// A read has begun.
    pub(super) const fn begin_read(&mut self) {
        self.period.begun += 1;
    }

    /// A read that is wanted was not permitted.
    pub(super) const fn hold(&mut self) {
        self.is_held = true;
    }

    /// A slot is on loan.
    pub(super) fn lend(&mut self, now: Instant, slot: u32) {
        if let Some(since) = self.lent_since.get_mut(slot as usize) {
            *since = Some(now);
        }
    }

    /// And no more.
    pub(super) fn give_back(&mut self, slot: u32) {
        if let Some(since) = self.lent_since.get_mut(slot as usize) {
            *since = None;
        }
    }

    /// A round ends. If it found nothing to do the worker waits; for the disk or the link if reads are held back.
    pub(super) fn end_round(
        &mut self,
        now: Instant,
        has_progressed: bool,
        in_use: InUse,
        is_link_full: bool,
    ) {
        self.looks_at = None;
        if has_progressed {
            self.look_after = Duration::ZERO;
        }
        if has_progressed || !self.is_held {
            return;
        }
        let of_link = in_use.of_link.saturating_sub(self.overdue_count);
        if in_use.of_disk >= of_link {
            self.waits = Some((now, Wait::Disk));
        } else if !is_link_full {
            self.waits = Some((now, Wait::Link));
        }
        if in_use.of_link > 0 && !is_link_full {
            self.look_after = (self.look_after * 2).clamp(LOOK_AFTER, link::FULL_RETRY_AFTER);
            self.looks_at = Some(now + self.look_after);
        }
    }

    /// When reads that are held back may begin even if nothing wakes the worker.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let rises = self.waits.filter(|_| self.limit < self.most);
        let rises = rises.and_then(|(since, wait)| {
            let left = WAIT_MOST.saturating_sub(self.period.waited);
            let period_ends = self.period.began + PERIOD;
            match wait {
                Wait::Link if since < self.full_until => None,
                Wait::Disk if self.trial.is_none() && !left.is_zero() => Some(since + left),
                _ => Some(period_ends.max(since + left)),
            }
        });
        rises.into_iter().chain(self.looks_at).min()
    }
}

impl Period {
    const fn new(began: Instant, in_use: usize) -> Self {
        Self {
            began,
            in_use,
            begun: 0,
            waited: Duration::ZERO,
            waited_for_link: Duration::ZERO,
        }
    }

    /// Slots that came free again in it.
    fn freed_per_second(&self, now: Instant, in_use: InUse) -> u64 {
        let freed = (self.in_use + self.begun).saturating_sub(in_use.all());
        let nanos = now.since(self.began).as_nanos().max(1);
        u64::try_from(freed as u128 * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
impl SlotBudget {
    /// The limit is this now.
    pub(super) const fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::from_millis(100);
    const TICK: Duration = Duration::from_nanos(1);
    /// What a worker without work waits for.
    const DISK: InUse = InUse {
        of_disk: 2,
        of_link: 2,
    };
    const LINK: InUse = InUse {
        of_disk: 1,
        of_link: 2,
    };

    /// At the beginning of a period.
    fn budget(limit: usize, most: usize) -> SlotBudget {
        SlotBudget {
            limit,
            period: Period::new(START, 0),
            ..SlotBudget::new(most)
        }
    }

    impl SlotBudget {
        /// Waits from `since` on for so long, with a read held back.
        fn wait(&mut self, since: Instant, waited: Duration, in_use: InUse) {
            self.hold();
            self.end_round(since, false, in_use, false);
            self.begin_round(since + waited, in_use);
        }
    }

    /// The limit when the worker has waited for so long for the disk, and so much time has passed.
    fn limit_after(limit: usize, most: usize, waited: Duration, passed: Duration) -> usize {
        let mut budget = budget(limit, most);
        budget.wait(START, waited, DISK);
        budget.begin_round(START + passed.max(waited), DISK);
        budget.limit
    }

    #[test]
    fn slots_are_permitted_below_the_limit_whatever_they_wait_for() {
        let budget = SlotBudget::new(512);
        let permit = |of_disk, of_link| budget.permit(InUse { of_disk, of_link });
        assert!(permit(0, 0) && permit(LEAST - 1, 0) && permit(0, LEAST - 1));
        assert!(!permit(LEAST, 0) && !permit(0, LEAST) && !permit(1, LEAST - 1));
        let limits = [1, 2, 16, 63, 64].map(|most| SlotBudget::new(most).limit);
        assert_eq!(limits, [1, 1, 8, 32, 32]);
    }

    #[test]
    fn the_limit_falls_to_the_least_while_the_worker_hardly_waits() {
        let short = WAIT_LEAST.saturating_sub(TICK);
        assert_eq!(limit_after(512, 512, short, PERIOD), 480);
        assert_eq!(limit_after(512, 512, WAIT_LEAST, PERIOD), 512);
        let early = PERIOD.saturating_sub(TICK);
        assert_eq!(limit_after(512, 512, short, early), 512);
        for (limit, after) in [(LEAST + 3, LEAST + 1), (LEAST + 1, LEAST), (LEAST, LEAST)] {
            assert_eq!(limit_after(limit, 512, Duration::ZERO, PERIOD), after);
        }
        assert_eq!(limit_after(8, 16, Duration::ZERO, PERIOD), 8);
    }

    #[test]
    fn the_limit_rises_to_the_most_when_the_worker_waits_for_the_disk() {
        let short = WAIT_MOST.saturating_sub(TICK);
        assert_eq!(limit_after(64, 100, short, short), 64);
        assert_eq!(limit_after(64, 100, WAIT_MOST, WAIT_MOST), 81);
        assert_eq!(limit_after(81, 100, WAIT_MOST, WAIT_MOST), 100);
        assert_eq!(limit_after(100, 100, WAIT_MOST, WAIT_MOST), 100);
    }

    #[test]
    fn waits_of_a_period_are_added_up() {
        let mut budget = budget(64, 100);
        let half = WAIT_MOST / 2;
        budget.wait(START, half, DISK);
        assert_eq!((budget.limit, budget.period.waited), (64, half));
        budget.hold();
        budget.end_round(START + half * 2, false, DISK, true);
        assert_eq!(budget.next_timeout(), Some(START + half * 3));
        budget.begin_round(START + half * 3, DISK);
        assert_eq!((budget.limit, budget.period.waited), (81, Duration::ZERO));
    }

    #[test]
    fn a_worker_without_reads_held_back_waits_for_nothing() {
        let mut budget = budget(LEAST, 100);
        budget.end_round(START, false, LINK, false);
        assert_eq!(budget.next_timeout(), None);
        budget.begin_round(START + WAIT_MOST, LINK);
        assert_eq!(budget.limit, LEAST);
        // Nor does one that may not begin more.
        budget.set_limit(100);
        budget.hold();
        budget.end_round(START + WAIT_MOST, false, InUse::default(), false);
        assert_eq!(budget.next_timeout(), None);
    }

    #[test]
    fn a_link_that_says_it_is_full_is_no_reason_for_more() {
        let mut budget = budget(LEAST, 512);
        let mut now = START;
        for _ in 0..1_000 {
            budget.hold();
            budget.end_round(now, false, LINK, true);
            assert_eq!(budget.next_timeout(), None);
            now += WAIT_MOST;
            budget.begin_round(now, LINK);
            assert_eq!(budget.limit, LEAST);
        }
    }

    /// Periods of a worker that waits for the link, whose device gives slots back at this rate when so many are
    /// permitted: the limits.
    fn limits(mut budget: SlotBudget, periods: u32, per_period: fn(usize) -> usize) -> Vec<usize> {
        let mut limits = Vec::new();
        for period in 0..periods {
            let begin = START + PERIOD * period;
            for _ in 0..per_period(budget.limit) {
                budget.begin_read();
            }
            budget.hold();
            budget.end_round(begin, false, LINK, false);
            budget.begin_round(begin + PERIOD, InUse::default());
            limits.push(budget.limit);
        }
        limits
    }

    #[test]
    fn a_full_link_gets_more_slots_for_one_period_in_sixty_six() {
        let limits = limits(budget(64, 512), 66, |_| 100);
        assert_eq!(limits[..4], [81, 64, 60, 57]);
        assert_eq!(limits[20..65], [LEAST; 45]);
        assert_eq!(limits[65], LEAST + LEAST / 4 + 1);
        // A ninth more is not what a quarter more should bring.
        let nearly = |limit| if limit > 64 { 112 } else { 100 };
        assert_eq!(self::limits(budget(64, 512), 2, nearly), [81, 64]);
        let enough = |limit| if limit > 64 { 114 } else { 100 };
        assert_eq!(self::limits(budget(64, 512), 2, enough), [81, 81]);
    }

    #[test]
    fn a_link_that_gives_slots_back_late_gets_more_as_long_as_they_bring_more() {
        let limits = limits(budget(LEAST, 512), 40, |limit| limit.min(200));
        assert_eq!(limits[..4], [41, 41, 52, 52]);
        let most = limits.iter().max().unwrap();
        assert!((200..=282).contains(most), "{limits:?}");
    }

    #[test]
    fn a_worker_that_waits_for_a_trial_wakes_at_its_end() {
        let mut budget = budget(64, 512);
        budget.hold();
        budget.end_round(START, false, LINK, false);
        // Until then it asks for slots on loan.
        assert_eq!(budget.next_timeout(), Some(START + LOOK_AFTER));
        budget.looks_at = None;
        assert_eq!(budget.next_timeout(), Some(START + PERIOD));
    }

    #[test]
    fn slots_on_loan_are_asked_for_less_and_less_often_until_one_comes() {
        let mut budget = budget(64, 512);
        let mut looks = |has_progressed| {
            budget.hold();
            budget.end_round(START, has_progressed, LINK, false);
            budget.looks_at.map(|at| at.since(START).as_micros())
        };
        let found = [false, false, false, false, true, false].map(&mut looks);
        assert_eq!(
            found,
            [Some(100), Some(200), Some(400), Some(500), None, Some(100)]
        );
    }

    #[test]
    fn a_loan_that_lasts_for_more_than_a_second_does_not_count() {
        let mut budget = budget(1, 2);
        budget.lend(START, 0);
        let on_loan = InUse {
            of_disk: 0,
            of_link: 1,
        };
        budget.begin_round(START + OVERDUE_AFTER, on_loan);
        assert!(!budget.permit(on_loan));
        budget.begin_round(START + OVERDUE_AFTER + PERIOD, on_loan);
        assert!(budget.permit(on_loan));
        // What is waited for is the disk, then.
        budget.hold();
        budget.end_round(START + OVERDUE_AFTER + PERIOD, false, on_loan, false);
        assert_eq!(budget.waits.map(|(_, wait)| wait), Some(Wait::Disk));
        budget.give_back(0);
        budget.begin_round(START + OVERDUE_AFTER + PERIOD * 2, on_loan);
        budget.set_limit(1);
        assert!(!budget.permit(on_loan));
    }
}
