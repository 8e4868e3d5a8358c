//! Slots that are kept after a burst was sent from them, for the next bursts of their client and for what of them
//! is lost; or copies of what is left of them.
//!
//! A path that takes small bursts would cost a read for each, of blocks of which most is not sent. So a read takes what
//! its client can use soon ([`AHEAD_TIME`]), as far as a slot has room; its first burst leaves at once, and the others
//! leave from the same slot when the windows and pacing permit. What was sent all is kept on if the path loses, because
//! what is lost is then sent again from memory.
//!
//! **Copies.** Thousands of clients whose paths lose have small windows, and need a slot each. So if as many slots are kept as
//! may be, or the worker is busy, what is left of a slot is copied into a ring of bytes ([`copies`]) right behind its first
//! burst, while it is in the caches, and the slot is free.
//!
//! It is no send buffer (docs/develop/decisions/0001-no-send-buffer.md): what may be kept is bounded by
//! [`crate::Config::kept_slots_max`] and [`crate::Config::kept_copy_bytes`], not by the number of connections; by
//! [`KEPT_FOR_MAX`]; and by [`SENT_MAX`] for each client. A slot is given up when a read needs it, what was sent before
//! what was not, the oldest first. Then its bytes are read again, as if none were kept. Where a window takes a whole slot
//! at once nothing is kept, unless the path loses.
//!
//! It refuses to give up a slot from which a burst that was planned is still to be sent: the next one is given up.

mod copies;

use core::num::NonZeroU16;

use clock::{Duration, Instant};
use memory::{Arena, FilledSlot};
use tcp::{StreamOffset, StreamRange};

use crate::age_list::AgeList;
use crate::canary::{Canary, Fault};
use crate::fetch::ReadShape;
use copies::Copies;

/// A slot is kept no longer until all of it was sent, nor after that: a loss is found within a round trip and a quarter,
/// mostly.
pub const KEPT_FOR_MAX: Duration = Duration::from_millis(500);

/// A read takes what pacing lets its client have in this time, or in a round trip if that is more.
pub(crate) const AHEAD_TIME: Duration = Duration::from_millis(50);

/// A client whose slot was given up before its bytes were sent has one read without bytes ahead, and twice as many and one
/// each time that happens again, up to so many: one that takes a packet now and then costs no more for what is kept.
const READS_SKIPPED_MAX: u8 = 63;

/// Most slots and copies of all clients: their places are numbers of 16 bits.
const PLACES_MAX: usize = u16::MAX as usize;

/// Most slots and copies of a client that were sent all: a window of 2 MiB, if all of it is in slots.
const SENT_MAX: usize = 32;

/// Most given up at once when a read needs a slot: those on loan are free later only.
const GIVEN_UP_AT_ONCE: usize = 4;

/// Names a slot that is kept. It means nothing any more when that was given up. Generations come again, so a client
/// believes a key only if the slot is its own ([`Kept::owner`]): what is kept for another is never sent to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KeptKey {
    place: u16,
    generation: NonZeroU16,
}

/// Those of one client.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct ClientKept {
    /// The one that has bytes which were never sent.
    unsent: Option<KeptKey>,
    /// The last one that was sent all; it leads to the one before ([`Entry::before`]).
    sent: Option<KeptKey>,
}

/// Whether the reads of a client take more than is demanded.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct ReadAhead {
    /// So many are to come that do not.
    skipped: u8,
    /// So many were to come when a slot was last given up.
    backoff: u8,
}

impl ReadAhead {
    /// A read begins.
    pub(crate) const fn on_read(&mut self) {
        self.skipped = self.skipped.saturating_sub(1);
    }

    const fn on_given_up(&mut self) {
        let more = self.backoff * 2 + 1;
        self.backoff = if more < READS_SKIPPED_MAX {
            more
        } else {
            READS_SKIPPED_MAX
        };
        self.skipped = self.backoff;
    }
}

/// What a slot holds.
#[derive(Debug)]
pub(crate) struct Kept {
    /// The client's serial number.
    pub(crate) owner: u32,
    /// What was read into it.
    pub(crate) shape: ReadShape,
    pub(crate) memory: KeptMemory,
    /// From here on. A link may write headers before a frame that it sends from the slot.
    pub(crate) usable_from: StreamOffset,
}

/// Where the bytes are: those of the stream, so records are sealed.
#[derive(Debug)]
pub(crate) enum KeptMemory {
    /// In the slot that they were read into.
    Slot(FilledSlot),
    /// In the ring of copies, from here on.
    Copy(usize),
}

#[derive(Debug)]
struct Entry {
    generation: NonZeroU16,
    kept: Option<Kept>,
    /// Bursts that are to be sent from it.
    planned: u32,
    /// Where the one begins that was planned last.
    planned_from: StreamOffset,
    /// It has bytes that were never sent.
    is_unsent: bool,
    /// Of the same client, and sent all before.
    before: Option<KeptKey>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct KeptSlots {
    entries: Box<[Entry]>,
    /// Places of which nothing is kept.
    unused: Vec<u16>,
    slots_max: usize,
    slot_count: usize,
    /// Slots with bytes that were never sent.
    unsent: AgeList,
    unsent_count: usize,
    /// The other slots.
    sent: AgeList,
    copies: Copies,
    copied_bytes: u64,
    given_up_count: u64,
    is_busy: bool,
    canary: Canary,
}

impl KeptSlots {
    /// For at most so many slots, and so many bytes of copies.
    pub(crate) fn new(slots_max: usize, copy_bytes: usize, canary: Canary) -> Self {
        let slots_max = slots_max.min(PLACES_MAX);
        let copies = Copies::new(copy_bytes, PLACES_MAX - slots_max);
        let entry = |_| Entry {
            generation: NonZeroU16::MIN,
            kept: None,
            planned: 0,
            planned_from: StreamOffset::ZERO,
            is_unsent: false,
            before: None,
        };
        let places = slots_max + copies.count_max();
        // With the fault a copy that was given up has a place still.
        let is_faulty = canary.is(Fault::SentAfterGivenUp);
        let places = if is_faulty { PLACES_MAX } else { places };
        let places = u16::try_from(places).unwrap_or(u16::MAX);
        Self {
            entries: (0..places).map(entry).collect(),
            unused: (0..places).rev().collect(),
            slots_max,
            slot_count: 0,
            unsent: AgeList::new(places.into()),
            unsent_count: 0,
            sent: AgeList::new(places.into()),
            copies,
            copied_bytes: 0,
            given_up_count: 0,
            is_busy: false,
            canary,
        }
    }

    /// Whether the worker is busy from now on.
    pub(crate) const fn set_busy(&mut self, is_busy: bool) {
        self.is_busy = is_busy;
    }

    /// Whether it is.
    pub(crate) const fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// How many slots are kept.
    pub(crate) const fn count(&self) -> usize {
        self.slot_count
    }

    /// How many bytes were copied, since start.
    pub(crate) const fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    /// How many were given up before their bytes were sent or acknowledged, since start.
    pub(crate) const fn given_up_count(&self) -> u64 {
        self.given_up_count
    }

    /// Whether any slot is ever kept.
    pub(crate) const fn has_places(&self) -> bool {
        self.slots_max > 0
    }

    /// Whether a read for this client may take more than is demanded. `even_busy`: while the worker is busy, too.
    pub(crate) fn may_read_ahead(
        &self,
        of_client: &mut ClientKept,
        owner: u32,
        ahead: &mut ReadAhead,
        even_busy: bool,
    ) -> bool {
        if (of_client.unsent).is_some_and(|key| self.get_of(owner, key).is_none()) {
            of_client.unsent = None;
            ahead.on_given_up();
        }
        // What the client has is sent with the beginning of what is read.
        let has_room = of_client.unsent.is_some()
            || self.unsent_count < self.slots_max
            || self.copies.count_max() > 0;
        (!self.is_busy || even_busy) && ahead.skipped == 0 && has_room
    }

    /// What the key of this client names, if it is still kept.
    fn get_of(&self, owner: u32, key: KeptKey) -> Option<&Kept> {
        self.get(key).filter(|kept| kept.owner == owner)
    }

    /// What the key of a burst that is planned names: nobody has given that up.
    pub(crate) fn get(&self, key: KeptKey) -> Option<&Kept> {
        let entry = self.entries.get(usize::from(key.place))?;
        let kept = entry.kept.as_ref();
        kept.filter(|_| entry.generation == key.generation)
    }

    /// The same, to tell from where on it is usable.
    pub(crate) fn get_mut(&mut self, key: KeptKey) -> Option<&mut Kept> {
        let entry = self.entries.get_mut(usize::from(key.place))?;
        let is_named = entry.generation == key.generation;
        entry.kept.as_mut().filter(|_| is_named)
    }

    /// What of a client holds the byte at `offset`, and where in the stream its bytes end. `is_again`: the byte was sent
    /// before.
    pub(crate) fn find(
        &self,
        of_client: &ClientKept,
        owner: u32,
        offset: StreamOffset,
        is_again: bool,
    ) -> Option<(KeptKey, StreamOffset)> {
        let unsent = of_client.unsent;
        let found = unsent.and_then(|key| self.find_in(owner, key, offset));
        if found.is_some() || !is_again {
            return found;
        }
        let mut next = of_client.sent;
        while let Some(key) = next {
            let found = self.find_in(owner, key, offset);
            if found.is_some() {
                return found;
            }
            self.get_of(owner, key)?;
            next = self.entries.get(usize::from(key.place))?.before;
        }
        None
    }

    /// The same of one of them.
    fn find_in(
        &self,
        owner: u32,
        key: KeptKey,
        offset: StreamOffset,
    ) -> Option<(KeptKey, StreamOffset)> {
        let kept = self.get_of(owner, key)?;
        let entry = self.entries.get(usize::from(key.place))?;
        // A frame that is sent before another one may overwrite what is before it.
        let from = if entry.planned > 0 {
            kept.usable_from.max(entry.planned_from)
        } else {
            kept.usable_from
        };
        (from <= offset && offset < kept.shape.end).then_some((key, kept.shape.end))
    }

    /// Bytes of the stream that `kept` holds.
    pub(crate) fn content<'a>(
        &'a self,
        arena: &'a Arena,
        kept: &'a Kept,
        range: StreamRange,
    ) -> &'a [u8] {
        match &kept.memory {
            KeptMemory::Slot(slot) => kept.shape.content(arena, slot, range),
            KeptMemory::Copy(from) => {
                let [before, bytes] =
                    [range.start.since(kept.usable_from), range.bytes()].map(as_index);
                self.copies.bytes(from + before, bytes)
            }
        }
    }

    /// Keeps a slot for a client, or a copy of what is in it. `is_unsent`: it has bytes that were never sent, and takes the
    /// place of another one that has. If as many slots are kept as may be, and no copy can be made, the oldest slot is given up.
    /// What ends before `acknowledged` is not needed any more.
    pub(crate) fn keep(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        of_client: &mut ClientKept,
        kept: Kept,
        is_unsent: bool,
        acknowledged: StreamOffset,
    ) {
        let owner = kept.owner;
        if is_unsent && !self.replace(arena, owner, &mut of_client.unsent) {
            return release_memory(arena, kept);
        }
        let is_copied = is_unsent && (self.is_busy || self.slot_count == self.slots_max);
        if is_copied && let Some(key) = self.copy(now, arena, &kept) {
            of_client.unsent = Some(key);
            return release_memory(arena, kept);
        }
        let has_room = self.slot_count < self.slots_max || self.give_up_oldest(arena, is_unsent);
        if !has_room {
            return release_memory(arena, kept);
        }
        let key = self.enter(kept, is_unsent);
        self.slot_count += 1;
        if is_unsent {
            self.unsent_count += 1;
            self.unsent.set(now, key.place.into(), true);
            of_client.unsent = Some(key);
        } else {
            self.sent.set(now, key.place.into(), true);
            self.push_sent(arena, of_client, owner, key, acknowledged);
        }
    }

    /// Gives it a place.
    fn enter(&mut self, kept: Kept, is_unsent: bool) -> KeptKey {
        let place = self.unused.pop();
        let place = place.expect("invariant: there is a place for each slot and copy");
        let entry = &mut self.entries[usize::from(place)];
        entry.kept = Some(kept);
        entry.is_unsent = is_unsent;
        entry.before = None;
        let generation = entry.generation;
        KeptKey { place, generation }
    }

    /// Keeps a copy of what is in a slot; `None`: there is no room for it.
    fn copy(&mut self, now: Instant, arena: &mut Arena, kept: &Kept) -> Option<KeptKey> {
        let KeptMemory::Slot(slot) = &kept.memory else {
            return None;
        };
        let range = StreamRange::new(kept.usable_from, kept.shape.end);
        let from = self.room_for_copy(arena, as_index(range.bytes()))?;
        let copy = Kept {
            memory: KeptMemory::Copy(from),
            ..*kept
        };
        let key = self.enter(copy, true);
        let content = kept.shape.content(arena, slot, range);
        self.copies.push(now, key, from, content);
        self.copied_bytes += range.bytes();
        Some(key)
    }

    /// Where a copy may be made; the oldest ones are given up for it.
    fn room_for_copy(&mut self, arena: &mut Arena, bytes: usize) -> Option<usize> {
        loop {
            let from = self.copies.room(bytes);
            if from.is_some() {
                return from;
            }
            let oldest = self.copies.get(0)?;
            if self.is_planned(oldest.key) {
                return None;
            }
            // With the fault its client sends what takes its place.
            if !self.canary.is(Fault::SentAfterGivenUp) {
                self.give_up(arena, oldest.key);
            }
            self.copies.drop_oldest();
        }
    }

    /// Gives up what `key` names, for another one; whether nothing is planned from it.
    fn replace(&mut self, arena: &mut Arena, owner: u32, key: &mut Option<KeptKey>) -> bool {
        let own = key.filter(|named| self.get_of(owner, *named).is_some());
        let Some(named) = own else { return true };
        if self.is_planned(named) {
            return false;
        }
        self.release(arena, named);
        *key = None;
        true
    }

    /// What `key` names was sent all: it becomes the first of those of its client.
    fn push_sent(
        &mut self,
        arena: &mut Arena,
        of_client: &mut ClientKept,
        owner: u32,
        key: KeptKey,
        acknowledged: StreamOffset,
    ) {
        let mut left = SENT_MAX - 1;
        let before = self.filter_sent(arena, of_client.sent, owner, |entry, kept| {
            let is_needed = kept.shape.end > acknowledged && left > 0 || entry.planned > 0;
            left = left.saturating_sub(usize::from(is_needed));
            is_needed
        });
        let entry = &mut self.entries[usize::from(key.place)];
        entry.is_unsent = false;
        entry.before = before;
        of_client.sent = Some(key);
    }

    /// Releases those of the slots and copies that a client was sent all of for which `is_needed` says no. Returns the
    /// first that is left.
    fn filter_sent(
        &mut self,
        arena: &mut Arena,
        first: Option<KeptKey>,
        owner: u32,
        mut is_needed: impl FnMut(&Entry, &Kept) -> bool,
    ) -> Option<KeptKey> {
        let (mut next, mut left, mut last) = (first, None, None::<KeptKey>);
        while let Some(key) = next
            && let Some(kept) = self.get_of(owner, key)
            && let Some(entry) = self.entries.get(usize::from(key.place))
        {
            next = entry.before;
            if !is_needed(entry, kept) {
                self.release(arena, key);
                continue;
            }
            match last {
                Some(last) => self.entries[usize::from(last.place)].before = Some(key),
                None => left = Some(key),
            }
            last = Some(key);
        }
        if let Some(last) = last {
            self.entries[usize::from(last.place)].before = None;
        }
        left
    }

    /// A burst from `start` on is planned that will be sent from the slot.
    pub(crate) fn plan(&mut self, key: KeptKey, start: StreamOffset) {
        if self.get(key).is_some() {
            let entry = &mut self.entries[usize::from(key.place)];
            entry.planned += 1;
            entry.planned_from = start;
        }
    }

    fn is_planned(&self, key: KeptKey) -> bool {
        let entry = self.entries.get(usize::from(key.place));
        self.get(key).is_some() && entry.is_some_and(|entry| entry.planned > 0)
    }

    /// It was sent, or will not be.
    pub(crate) fn end_plan(&mut self, key: KeptKey) {
        if self.get(key).is_some() {
            let entry = &mut self.entries[usize::from(key.place)];
            entry.planned = entry.planned.saturating_sub(1);
        }
    }

    /// Where what is kept for a client and was never sent ends.
    pub(crate) fn unsent_end(&self, of_client: &ClientKept, owner: u32) -> Option<StreamOffset> {
        let kept = of_client.unsent.and_then(|key| self.get_of(owner, key));
        kept.map(|kept| kept.shape.end)
    }

    /// All bytes were sent of what is kept for a client.
    pub(crate) fn on_all_sent(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        of_client: &mut ClientKept,
        owner: u32,
        is_kept_on: bool,
        acknowledged: StreamOffset,
    ) {
        let own = (of_client.unsent).filter(|key| self.get_of(owner, *key).is_some());
        let Some(key) = own else { return };
        if self.is_planned(key) {
            return;
        }
        of_client.unsent = None;
        if is_kept_on {
            if self.unsent.has(key.place.into()) {
                self.leave_unsent(key.place);
                self.sent.set(now, key.place.into(), true);
            }
            self.push_sent(arena, of_client, owner, key, acknowledged);
        } else {
            self.release(arena, key);
        }
    }

    /// Nothing more is sent from it.
    fn release(&mut self, arena: &mut Arena, key: KeptKey) {
        if self.get(key).is_none() {
            return;
        }
        self.leave_unsent(key.place);
        self.sent.remove(key.place.into());
        let entry = &mut self.entries[usize::from(key.place)];
        entry.generation = entry.generation.checked_add(1).unwrap_or(NonZeroU16::MIN);
        entry.planned = 0;
        if let Some(kept) = entry.kept.take() {
            self.slot_count -= usize::from(matches!(kept.memory, KeptMemory::Slot(_)));
            release_memory(arena, kept);
        }
        self.unused.push(key.place);
    }

    /// The same, and counts it if its client had use for it.
    fn give_up(&mut self, arena: &mut Arena, key: KeptKey) {
        if self.get(key).is_some() {
            let entry = self.entries.get(usize::from(key.place));
            self.given_up_count += u64::from(entry.is_some_and(|entry| entry.is_unsent));
            self.release(arena, key);
        }
    }

    /// The same of all of a client, whose bursts were planned from `planned`: one of these may be kept still that was sent
    /// before another one that was given up, and no other one leads to it.
    pub(crate) fn release_all(
        &mut self,
        arena: &mut Arena,
        of_client: ClientKept,
        owner: u32,
        planned: impl Iterator<Item = KeptKey>,
    ) {
        let mut of_client = of_client;
        self.release_behind(arena, &mut of_client, owner, StreamOffset::ZERO);
        for key in planned {
            self.release(arena, key);
        }
    }

    /// The same of what of a client holds something behind `start`.
    pub(crate) fn release_behind(
        &mut self,
        arena: &mut Arena,
        of_client: &mut ClientKept,
        owner: u32,
        start: StreamOffset,
    ) {
        if let Some(unsent) = of_client.unsent
            && let Some(kept) = self.get_of(owner, unsent)
            && kept.shape.end > start
        {
            self.release(arena, unsent);
            of_client.unsent = None;
        }
        let is_before = |_: &Entry, kept: &Kept| kept.shape.end <= start;
        of_client.sent = self.filter_sent(arena, of_client.sent, owner, is_before);
    }

    /// Gives up what was kept for [`KEPT_FOR_MAX`].
    pub(crate) fn expire(&mut self, now: Instant, arena: &mut Arena) {
        if self.canary.is(Fault::KeptTooLong) {
            return;
        }
        for is_unsent in [true, false] {
            while let Some((_, since)) = self.first_unplanned(is_unsent)
                && now.since(since) >= KEPT_FOR_MAX
                && self.give_up_first(arena, is_unsent)
            {}
        }
        let mut place = 0;
        while let Some(copy) = self.copies.get(place)
            && now.since(copy.since) >= KEPT_FOR_MAX
        {
            if self.is_planned(copy.key) {
                place += 1;
                continue;
            }
            self.give_up(arena, copy.key);
            if place == 0 {
                self.copies.drop_oldest();
            } else {
                place += 1;
            }
        }
    }

    /// Since when the one has been kept that may be given up and is kept for longest.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        let slots = [true, false].map(|is_unsent| self.first_unplanned(is_unsent));
        let slots = slots.into_iter().flatten().map(|(_, since)| since);
        let copy = self.copies.iter().find(|copy| {
            let is_kept = self.get(copy.key).is_some();
            is_kept && !self.is_planned(copy.key)
        });
        slots.chain(copy.map(|copy| copy.since)).min()
    }

    /// A read needs a slot, and none is free: gives up some.
    pub(crate) fn make_room(&mut self, arena: &mut Arena) {
        for _ in 0..GIVEN_UP_AT_ONCE {
            if arena.free_count() > 0 || !self.give_up_oldest(arena, true) {
                return;
            }
        }
    }

    /// Gives up the oldest one that was sent all; if there is none and `even_unsent`, of the others. Returns whether one
    /// was given up.
    fn give_up_oldest(&mut self, arena: &mut Arena, even_unsent: bool) -> bool {
        self.give_up_first(arena, false) || even_unsent && self.give_up_first(arena, true)
    }

    fn give_up_first(&mut self, arena: &mut Arena, is_unsent: bool) -> bool {
        let Some((place, _)) = self.first_unplanned(is_unsent) else {
            return false;
        };
        let Some(entry) = self.entries.get(place as usize) else {
            return false;
        };
        let key = KeptKey {
            place: u16::try_from(place).unwrap_or(u16::MAX),
            generation: entry.generation,
        };
        self.give_up(arena, key);
        true
    }

    /// The oldest one from which no burst waits to be sent.
    fn first_unplanned(&self, is_unsent: bool) -> Option<(u32, Instant)> {
        let list = self.list(is_unsent);
        let is_planned = |place: u32| {
            let entry = self.entries.get(place as usize);
            entry.is_some_and(|entry| entry.planned > 0)
        };
        let mut next = list.first();
        while let Some((place, _)) = next
            && is_planned(place)
        {
            next = list.after(place);
        }
        next
    }

    const fn list(&self, is_unsent: bool) -> &AgeList {
        if is_unsent { &self.unsent } else { &self.sent }
    }

    fn leave_unsent(&mut self, place: u16) {
        let is_in = self.unsent.has(place.into());
        self.unsent_count -= usize::from(is_in);
        self.unsent.remove(place.into());
    }
}

/// What is kept is not needed any more.
fn release_memory(arena: &mut Arena, kept: Kept) {
    if let KeptMemory::Slot(slot) = kept.memory {
        arena.release(slot.into_free());
    }
}

/// A distance within a slot or a copy.
fn as_index(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
