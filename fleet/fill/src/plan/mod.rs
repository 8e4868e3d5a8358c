//! What is fetched, what leaves and what is removed, in which order: from what is wanted, what is there, what viewers
//! asked for, and the time.
//!
//! **It does nothing itself and reads no clock**: [`Plan::next_step`] says what to do, [`Plan::finished`] is told how it went.
//!
//! * An object is fetched once, however many ask for it, and whatever asks: there is one entry for its name.
//! * First what viewers missed, playlists before segments; then playlists of live channels that are due again; then what
//!   is wanted, by priority, playlists first.
//! * What is wanted fills up to the lower mark. What viewers missed may go above, up to the upper mark; then the least
//!   valuable leaves until the lower mark is reached. So the store does not evict for each object, and a listing that is
//!   larger than the store does not turn it over: what is wanted evicts only what has a lower priority.
//! * What is fetched has a size that there is room for: of an object without one the version is asked for first.
//! * What is pinned never leaves for room. What the origin does not have any more is removed, unless so much were to be
//!   removed that the origin is more likely to be wrong. Where it cannot be listed, what it says of each object until the
//!   next update counts together, as a listing would: no object that is held goes by one answer.
//!
//! Bounded by [`MISSES_MAX`] names that viewers missed and [`ABSENT_MAX`] that cannot be had; and by what is wanted.

mod order;
mod removals;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::backoff::Backoff;
use crate::policy::Policy;
use crate::random::Random;
use crate::stamp::Stamp;
use order::{Class, Key, is_playlist};
use removals::Round;

pub use crate::policy::Name;
pub use removals::Removals;

/// Most names that viewers missed and that wait; more are dropped, and counted.
pub const MISSES_MAX: usize = 10_000;
/// Most names that are remembered because the origin does not have them, or they are too large.
pub const ABSENT_MAX: usize = 10_000;
/// For how long, milliseconds: then a viewer who misses it leads to another look.
pub const ABSENT_MS: u64 = 30_000;
/// Usual attempts at one object, then it waits for the next listing.
pub const ATTEMPTS_MAX: u32 = 20;

/// The instant, by two clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// Milliseconds since the start; never goes back.
    pub millis: u64,
    /// Seconds since 1970, for expiry.
    pub unix_seconds: i64,
}

/// Decides by name.
pub trait Names: std::fmt::Debug + Send {
    /// Whether it never leaves for room.
    fn is_pinned(&self, name: &str) -> bool;
    /// Whether it is fetched again when it has some age.
    fn is_live(&self, name: &str) -> bool;
}

/// What the plan goes by.
#[derive(Debug)]
pub struct PlanConfig {
    /// Most bytes; `None`: as many as there are.
    pub capacity_bytes: Option<u64>,
    /// Share of it at which the least valuable leaves, percent.
    pub high_percent: u64,
    /// Share of it until which it leaves, and up to which what is wanted fills, percent.
    pub low_percent: u64,
    /// Share of what is there that one listing may remove, percent.
    pub removals_percent_max: u64,
    /// Attempts at one object, then it waits for the next listing.
    pub attempts_max: u32,
    /// After which age a live playlist is asked for again, milliseconds.
    pub live_ms: u64,
    /// Decides by name.
    pub names: Box<dyn Names>,
    /// Of the delays between attempts.
    pub seed: u64,
}

/// A name that should be here.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    /// Higher comes first.
    pub priority: i32,
    /// Seconds since 1970 from which on it is not wanted, and goes.
    pub expires: Option<i64>,
    /// Never leaves for room.
    pub is_pinned: bool,
}

/// What the origin has.
#[derive(Clone, Debug)]
pub enum Versions {
    /// All of it, with the version of each.
    Listed(HashMap<Name, Stamp>),
    /// It cannot be listed.
    Unknown,
}

/// What to do next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Fetch this one.
    Fetch(Fetch),
    /// These leave for room. They are gone from the plan.
    Evict(Vec<Name>),
    /// Nothing until then, milliseconds.
    Wait(u64),
    /// Nothing until something is told.
    Idle,
}

/// An object to be fetched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fetch {
    /// Its name.
    pub name: Name,
    /// The version that there is room for, as the origin listed or described it; `None`: it is to be described only.
    pub listed: Option<Stamp>,
    /// The version that is there.
    pub held: Option<Stamp>,
    /// Whether a viewer waits for it.
    pub is_missed: bool,
}

/// How a fetch went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// This version is there now.
    Stored(Stamp),
    /// The version that is there is the origin's.
    Unchanged,
    /// The origin has this version. It was not fetched: there may be no room for it.
    Described(Stamp),
    /// The origin does not have it.
    Absent,
    /// It failed: later again.
    Failed,
}

/// An object that is there.
#[derive(Clone, Copy, Debug)]
struct Held {
    stamp: Stamp,
    /// The version that the origin listed is another.
    is_stale: bool,
    /// When it came, milliseconds; 0 if it was there before.
    since_ms: u64,
    /// When it is asked for again, if it is live.
    live_due_ms: Option<u64>,
}

/// An entry of the queue.
#[derive(Clone, Debug)]
struct Queued {
    key: Key,
    since_ms: u64,
    /// When it may be tried again, after a failure; it is not in the queue until then.
    delayed_ms: Option<u64>,
    /// What the origin said of it, if that was asked.
    described: Option<Stamp>,
}

/// A fetch in flight.
#[derive(Clone, Debug)]
struct Busy {
    /// The version that is fetched; `None` if it is described only.
    sized: Option<Stamp>,
    queued: Queued,
}

impl Busy {
    /// Bytes that are kept free for it.
    fn reserved_bytes(&self) -> u64 {
        self.sized.map_or(0, |it| it.size_bytes)
    }
}

/// The plan.
#[derive(Debug)]
pub struct Plan {
    config: PlanConfig,
    held: BTreeMap<Name, Held>,
    held_bytes: u64,
    wanted: HashMap<Name, Wanted>,
    versions: Versions,
    queue: BTreeMap<Key, Name>,
    queued: HashMap<Name, Queued>,
    missed_count: usize,
    /// In flight.
    busy: HashMap<Name, Busy>,
    reserved_bytes: u64,
    failures: HashMap<Name, Backoff>,
    delayed: BTreeSet<(u64, Name)>,
    live_due: BTreeSet<(u64, Name)>,
    /// What cannot be had, and until when nobody asks for it again, milliseconds.
    absent: HashMap<Name, u64>,
    round: Round,
    /// Left for room, though wanted: only a viewer brings them back.
    evicted: HashSet<Name>,
    /// No wanted object of at most this priority finds room by eviction, until something leaves.
    stuck_priority: Option<i64>,
    policy: Policy,
    random: Random,
    misses_dropped: u64,
    left_out: u64,
}

impl Plan {
    /// A plan for what is there, in the order in which it came.
    #[must_use]
    pub fn new(config: PlanConfig, held: Vec<(Name, Stamp)>) -> Self {
        let mut plan = Self {
            random: Random::new(config.seed),
            config,
            held: BTreeMap::new(),
            held_bytes: 0,
            wanted: HashMap::new(),
            versions: Versions::Unknown,
            queue: BTreeMap::new(),
            queued: HashMap::new(),
            missed_count: 0,
            busy: HashMap::new(),
            reserved_bytes: 0,
            failures: HashMap::new(),
            delayed: BTreeSet::new(),
            live_due: BTreeSet::new(),
            absent: HashMap::new(),
            round: Round::default(),
            evicted: HashSet::new(),
            stuck_priority: None,
            policy: Policy::default(),
            misses_dropped: 0,
            left_out: 0,
        };
        for (name, stamp) in held {
            plan.policy.restore(&name, stamp.size_bytes);
            plan.hold(&name, stamp, 0);
        }
        plan
    }

    /// Takes what is wanted and what the origin has, as it was from `began_ms` on; each call replaces the last one.
    /// `wanted` of `None`: all that the origin lists.
    pub fn update(
        &mut self,
        now: Now,
        began_ms: u64,
        wanted: Option<HashMap<Name, Wanted>>,
        versions: Versions,
    ) -> Removals {
        self.stuck_priority = None;
        let mut removals = self.end_round();
        removals.add(self.removals(now, began_ms, wanted.as_ref(), &versions));
        for name in &removals.names {
            self.forget(name);
        }
        self.wanted = match (wanted, &versions) {
            (Some(wanted), _) => wanted,
            (None, Versions::Listed(listed)) => listed
                .keys()
                .map(|name| (Arc::clone(name), Wanted::default()))
                .collect(),
            (None, Versions::Unknown) => HashMap::new(),
        };
        self.versions = versions;
        // Whatever failed is tried again with what is known now, but for what waits.
        let attempts_max = self.config.attempts_max;
        self.failures
            .retain(|_, backoff| backoff.failures() < attempts_max);
        self.mark_stale();
        self.forget_evictions();
        self.requeue_wanted(now);
        removals
    }

    /// Sets the most bytes.
    pub fn set_capacity(&mut self, bytes: u64) {
        self.config.capacity_bytes = Some(bytes);
    }

    /// Takes a name that viewers asked for and did not get, so often.
    pub fn missed(&mut self, now: Now, name: &Name, requests: u64) {
        let is_absent = self
            .absent
            .get(name)
            .is_some_and(|until| now.millis < *until);
        if self.held.contains_key(name) || self.busy.contains_key(name) || is_absent {
            return;
        }
        let class = if is_playlist(name) {
            Class::MissedPlaylist
        } else {
            Class::Missed
        };
        let priority = i64::try_from(requests).unwrap_or(i64::MAX);
        match self.queued.get(name) {
            Some(queued) if queued.key.class <= class => {}
            // Viewers wait for it: not as long as an attempt at it would.
            _ if self.missed_count >= MISSES_MAX => self.misses_dropped += 1,
            _ => self.enqueue(now, name, class, priority),
        }
    }

    /// Takes how often an object was asked for since the last time.
    pub fn requested(&mut self, name: &str, count: u64) {
        self.policy.requested(name, count);
    }

    /// What is to be done next; `is_open`: whether what nobody has asked for is fetched now.
    pub fn next_step(&mut self, now: Now, is_open: bool) -> Step {
        self.step(now, is_open, false)
    }

    /// The same while the origin or this machine fails: an object may be why, so those that have not failed come first.
    pub fn next_attempt(&mut self, now: Now, is_open: bool) -> Step {
        self.step(now, is_open, true)
    }

    fn step(&mut self, now: Now, is_open: bool, is_attempt: bool) -> Step {
        self.wake(now);
        let step = loop {
            let mut allowed = self
                .queue
                .iter()
                .take_while(|(key, _)| is_open || key.class <= Class::Live);
            let first = allowed.clone().next();
            let mut other = None;
            if is_attempt {
                other = allowed.find(|(_, name)| !self.has_failed(name));
            }
            let Some((key, name)) = other.or(first) else {
                break None;
            };
            let (key, name) = (key.clone(), Arc::clone(name));
            match self.make_room(&key, &name) {
                Room::Free => break Some(Step::Fetch(self.begin(&name))),
                Room::Evict(names) => break Some(Step::Evict(names)),
                // It does not fit: something smaller may.
                Room::None => self.leave_out(now, &key, &name),
            }
        };
        if let Some(step) = step {
            return step;
        }
        let due = [self.delayed.first(), self.live_due.first()];
        match due.into_iter().flatten().map(|(due_ms, _)| *due_ms).min() {
            Some(due_ms) => Step::Wait(due_ms.max(now.millis + 1)),
            None => Step::Idle,
        }
    }

    /// Takes how a fetch went.
    pub fn finished(&mut self, now: Now, name: &Name, outcome: Outcome) {
        let Some(busy) = self.busy.remove(name) else {
            return;
        };
        self.reserved_bytes -= busy.reserved_bytes();
        let Busy { sized, mut queued } = busy;
        queued.described = None;
        match outcome {
            Outcome::Stored(stamp) => {
                self.failures.remove(name);
                self.policy.insert(name, stamp.size_bytes);
                self.hold(name, stamp, now.millis);
                self.round.is_present(name);
            }
            Outcome::Unchanged => {
                self.failures.remove(name);
                if let Some(held) = self.held.get(name).copied() {
                    self.hold(name, held.stamp, now.millis);
                }
                self.round.is_present(name);
            }
            Outcome::Described(stamp) => {
                queued.described = Some(stamp);
                self.round.is_present(name);
                if sized.is_some() {
                    // It is larger than it was said to be: later, since it may be larger again then.
                    self.retry(now, name, queued);
                } else {
                    self.insert_queued(name, queued);
                }
            }
            Outcome::Absent if self.held.contains_key(name) => {
                self.round.is_absent(name);
                self.schedule_live(name, now.millis.saturating_add(ABSENT_MS));
            }
            Outcome::Absent => self.note_absent(now, name),
            Outcome::Failed => self.retry(now, name, queued),
        }
    }

    /// Queues what failed again, for a time that is longer each time.
    fn retry(&mut self, now: Now, name: &Name, queued: Queued) {
        let backoff = self.failures.entry(Arc::clone(name)).or_default();
        backoff.failed(now.millis, None, &mut self.random);
        if backoff.failures() < self.config.attempts_max {
            let delayed_ms = Some(backoff.due_ms());
            let queued = Queued {
                delayed_ms,
                ..queued
            };
            self.insert_queued(name, queued);
        } else {
            self.schedule_live(name, now.millis);
        }
    }

    /// What has no room waits for a listing, a viewer or its time.
    fn leave_out(&mut self, now: Now, key: &Key, name: &Name) {
        self.unqueue(name);
        self.left_out += 1;
        if key.class.is_missed() {
            self.note_absent(now, name);
        }
        self.schedule_live(name, now.millis);
    }

    fn note_absent(&mut self, now: Now, name: &Name) {
        if self.absent.len() < ABSENT_MAX {
            let until_ms = now.millis.saturating_add(ABSENT_MS);
            self.absent.insert(Arc::clone(name), until_ms);
        }
    }

    /// Whether an object is in flight.
    #[must_use]
    pub fn is_busy(&self, name: &str) -> bool {
        self.busy.contains_key(name)
    }

    /// Names in flight.
    pub fn busy_names(&self) -> impl Iterator<Item = &Name> {
        self.busy.keys()
    }

    /// Bytes of what is there.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Objects that are there.
    #[must_use]
    pub fn held_count(&self) -> usize {
        self.held.len()
    }

    /// The version that is there.
    #[must_use]
    pub fn held_stamp(&self, name: &str) -> Option<Stamp> {
        self.held.get(name).map(|held| held.stamp)
    }

    /// Objects that wait to be fetched, delayed ones included, or are in flight.
    #[must_use]
    pub fn waiting_count(&self) -> usize {
        self.queued.len() + self.busy.len()
    }

    /// Bytes of those that wait, as far as they are known.
    #[must_use]
    pub fn waiting_bytes(&self) -> u64 {
        let names = self.queued.keys().chain(self.busy.keys());
        names
            .filter_map(|name| self.listed(name))
            .map(|it| it.size_bytes)
            .sum()
    }

    /// Whether the last attempt at an object failed.
    #[must_use]
    pub fn has_failed(&self, name: &str) -> bool {
        self.failures.contains_key(name)
    }

    /// Objects whose last attempt failed, and that wait for another one.
    #[must_use]
    pub fn failed_count(&self) -> usize {
        self.failures.len()
    }

    /// For how long the oldest entry has waited, milliseconds.
    #[must_use]
    pub fn oldest_ms(&self, now: Now) -> u64 {
        let queued = self
            .queued
            .values()
            .chain(self.busy.values().map(|it| &it.queued));
        let oldest = queued.map(|it| it.since_ms).min();
        oldest.map_or(0, |since| now.millis.saturating_sub(since))
    }

    /// Misses that were dropped because too many waited.
    #[must_use]
    pub fn misses_dropped(&self) -> u64 {
        self.misses_dropped
    }

    /// Wanted objects that found no room, counted each time.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    fn listed(&self, name: &str) -> Option<Stamp> {
        match &self.versions {
            Versions::Listed(listed) => listed.get(name).copied(),
            Versions::Unknown => None,
        }
    }

    /// Marks what has another version at the origin.
    fn mark_stale(&mut self) {
        if let Versions::Listed(listed) = &self.versions {
            for (name, held) in &mut self.held {
                held.is_stale = listed.get(name).is_some_and(|it| *it != held.stamp);
            }
        }
    }

    /// If there is room for all that is wanted, what had to leave may come back.
    fn forget_evictions(&mut self) {
        let sizes = self.wanted.keys().filter_map(|name| self.listed(name));
        let wanted_bytes: u64 = sizes.map(|it| it.size_bytes).sum();
        if wanted_bytes <= self.low_bytes() {
            self.evicted.clear();
        } else {
            self.evicted.retain(|name| self.wanted.contains_key(name));
        }
    }

    /// Queues all that is wanted and is not there in its version.
    fn requeue_wanted(&mut self, now: Now) {
        let is_old = |queued: &Queued| queued.key.class > Class::Live;
        let old: Vec<(Name, u64)> = self
            .queued
            .iter()
            .filter(|(_, queued)| is_old(queued))
            .map(|(name, queued)| (Arc::clone(name), queued.since_ms))
            .collect();
        for (name, _) in &old {
            self.unqueue(name);
        }
        let since: HashMap<Name, u64> = old.into_iter().collect();
        let mut fresh = Vec::new();
        for (name, wanted) in &self.wanted {
            let is_expired = wanted.expires.is_some_and(|it| it <= now.unix_seconds);
            let is_known =
                matches!(self.versions, Versions::Unknown) || self.listed(name).is_some();
            let is_needed = match self.held.get(name) {
                // Without a listing the origin is asked for each one's version.
                Some(held) => held.is_stale || matches!(self.versions, Versions::Unknown),
                None => !self.evicted.contains(name),
            };
            let is_taken = self.queued.contains_key(name) || self.busy.contains_key(name);
            if is_needed && is_known && !is_expired && !is_taken {
                fresh.push((Arc::clone(name), wanted.priority));
            }
        }
        // What is there and not in the manifest has new versions, too.
        for (name, held) in &self.held {
            let is_taken = self.queued.contains_key(name) || self.busy.contains_key(name);
            if held.is_stale && !self.wanted.contains_key(name) && !is_taken {
                fresh.push((Arc::clone(name), 0));
            }
        }
        for (name, priority) in fresh {
            let class = if is_playlist(&name) {
                Class::Playlist
            } else {
                Class::Wanted
            };
            let since_ms = since.get(&name).copied().unwrap_or(now.millis);
            let key = Key::new(class, priority.into(), &name);
            let due_ms = self.failures.get(&name).map(Backoff::due_ms);
            let delayed_ms = due_ms.filter(|due_ms| *due_ms > now.millis);
            let queued = Queued {
                key,
                since_ms,
                delayed_ms,
                described: None,
            };
            self.insert_queued(&name, queued);
        }
    }

    fn enqueue(&mut self, now: Now, name: &Name, class: Class, priority: i64) {
        let since_ms = self.unqueue(name).map_or(now.millis, |it| it.since_ms);
        let key = Key::new(class, priority, name);
        let queued = Queued {
            key,
            since_ms,
            delayed_ms: None,
            described: None,
        };
        self.insert_queued(name, queued);
    }

    fn insert_queued(&mut self, name: &Name, queued: Queued) {
        self.missed_count += usize::from(queued.key.class.is_missed());
        match queued.delayed_ms {
            Some(due_ms) => {
                self.delayed.insert((due_ms, Arc::clone(name)));
            }
            None => {
                self.queue.insert(queued.key.clone(), Arc::clone(name));
            }
        }
        self.queued.insert(Arc::clone(name), queued);
    }

    fn unqueue(&mut self, name: &Name) -> Option<Queued> {
        let queued = self.queued.remove(name)?;
        self.missed_count -= usize::from(queued.key.class.is_missed());
        self.queue.remove(&queued.key);
        if let Some(due_ms) = queued.delayed_ms {
            self.delayed.remove(&(due_ms, Arc::clone(name)));
        }
        Some(queued)
    }

    /// Queues what is due.
    fn wake(&mut self, now: Now) {
        while let Some((due_ms, name)) = self.delayed.first().cloned()
            && due_ms <= now.millis
        {
            self.delayed.pop_first();
            let queued = self.queued.get_mut(&name);
            let queued = queued.expect("invariant: what is delayed is queued");
            queued.delayed_ms = None;
            self.queue.insert(queued.key.clone(), name);
        }
        while let Some((due_ms, name)) = self.live_due.first().cloned()
            && due_ms <= now.millis
        {
            self.live_due.pop_first();
            let held = self.held.get_mut(&name);
            held.expect("invariant: what is due is held").live_due_ms = None;
            if !self.queued.contains_key(&name) && !self.busy.contains_key(&name) {
                self.enqueue(now, &name, Class::Live, 0);
            }
        }
        if self.absent.len() >= ABSENT_MAX / 2 {
            self.absent.retain(|_, until| now.millis < *until);
        }
    }

    fn begin(&mut self, name: &Name) -> Fetch {
        let queued = self
            .unqueue(name)
            .expect("invariant: it was first in the queue");
        let is_missed = queued.key.class.is_missed();
        let sized = self.sized(name, &queued);
        let busy = Busy { sized, queued };
        self.reserved_bytes += busy.reserved_bytes();
        self.evicted.remove(name);
        self.busy.insert(Arc::clone(name), busy);
        Fetch {
            name: Arc::clone(name),
            listed: sized,
            held: self.held_stamp(name),
            is_missed,
        }
    }

    /// The version that would be fetched, if it is known.
    fn sized(&self, name: &str, queued: &Queued) -> Option<Stamp> {
        // Of a live playlist the listing is older than what is asked for.
        let listed = || (queued.key.class != Class::Live).then(|| self.listed(name));
        queued.described.or_else(|| listed().flatten())
    }

    fn hold(&mut self, name: &Name, stamp: Stamp, now_ms: u64) {
        let is_stale = self
            .listed(name)
            .is_some_and(|it| it.seconds > stamp.seconds);
        let held = Held {
            stamp,
            is_stale,
            since_ms: now_ms,
            live_due_ms: None,
        };
        if let Some(old) = self.held.insert(Arc::clone(name), held) {
            self.held_bytes -= old.stamp.size_bytes;
            self.forget_timer(name, &old);
        }
        self.held_bytes += stamp.size_bytes;
        self.absent.remove(name);
        self.schedule_live(name, now_ms);
    }

    /// From a time on, an object that is held and live is asked for again at its age. It has one timer.
    fn schedule_live(&mut self, name: &Name, from_ms: u64) {
        let Some(held) = self.held.get_mut(name) else {
            return;
        };
        if !self.config.names.is_live(name) {
            return;
        }
        let due_ms = from_ms.saturating_add(self.config.live_ms);
        let old = held.live_due_ms.replace(due_ms);
        if let Some(old_ms) = old {
            self.live_due.remove(&(old_ms, Arc::clone(name)));
        }
        self.live_due.insert((due_ms, Arc::clone(name)));
    }

    fn forget_timer(&mut self, name: &Name, held: &Held) {
        if let Some(due_ms) = held.live_due_ms {
            self.live_due.remove(&(due_ms, Arc::clone(name)));
        }
    }

    /// It is there no more.
    fn forget(&mut self, name: &Name) {
        self.policy.remove(name);
        if let Some(held) = self.held.remove(name) {
            self.held_bytes -= held.stamp.size_bytes;
            self.forget_timer(name, &held);
            self.failures.remove(name);
            self.stuck_priority = None;
        }
    }

    fn low_bytes(&self) -> u64 {
        part(self.config.capacity_bytes, self.config.low_percent)
    }

    /// Whether there is room for an object, or what is to leave for it.
    fn make_room(&mut self, key: &Key, name: &Name) -> Room {
        let queued = self.queued.get(name);
        let Some(sized) = queued.and_then(|queued| self.sized(name, queued)) else {
            // What is only described takes none.
            return Room::Free;
        };
        let size_bytes = sized.size_bytes;
        let old_bytes = self.held_stamp(name).map_or(0, |it| it.size_bytes);
        // Until the new version is there the old one is, too.
        let wanted_bytes = self.reserved_bytes.saturating_add(size_bytes);
        let needed = self.held_bytes.saturating_add(wanted_bytes);
        let is_replacement = old_bytes > 0;
        let may_evict_all = key.class <= Class::Live || is_replacement;
        let most = if may_evict_all {
            part(self.config.capacity_bytes, self.config.high_percent)
        } else {
            self.low_bytes()
        };
        if needed <= most {
            return Room::Free;
        }
        if !may_evict_all && self.stuck_priority.is_some_and(|it| key.priority() <= it) {
            return Room::None;
        }
        let target = self.low_bytes().saturating_sub(wanted_bytes);
        let (wanted, busy, names) = (&self.wanted, &self.busy, &self.config.names);
        let priority = key.priority();
        let may_leave = |it: &str| {
            let want = wanted.get(it);
            let is_pinned = names.is_pinned(it) || want.is_some_and(|it| it.is_pinned);
            let is_less = want.is_none_or(|it| i64::from(it.priority) < priority);
            !is_pinned && !busy.contains_key(it) && it != &**name && (may_evict_all || is_less)
        };
        let mut left_bytes = self.held_bytes;
        let mut victims = Vec::new();
        while left_bytes > target
            && let Some(victim) = self.policy.evict(may_leave)
        {
            left_bytes -= self.held.get(&victim).map_or(0, |it| it.stamp.size_bytes);
            victims.push(victim);
        }
        if left_bytes.saturating_add(wanted_bytes) > most {
            // It would not help: they stay.
            for victim in &victims {
                let size_bytes = self.held.get(victim).map_or(0, |it| it.stamp.size_bytes);
                self.policy.restore(victim, size_bytes);
            }
            if !may_evict_all {
                self.stuck_priority = Some(priority);
            }
            return Room::None;
        }
        for victim in &victims {
            self.forget(victim);
            self.unqueue(victim);
            self.evicted.insert(Arc::clone(victim));
        }
        Room::Evict(victims)
    }
}

/// Whether there is room.
enum Room {
    Free,
    Evict(Vec<Name>),
    None,
}

fn part(bytes: Option<u64>, percent: u64) -> u64 {
    bytes.map_or(u64::MAX, |bytes| {
        u64::try_from(u128::from(bytes) * u128::from(percent) / 100).unwrap_or(u64::MAX)
    })
}
