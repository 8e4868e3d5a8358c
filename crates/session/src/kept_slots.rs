//! Slots that are kept after a burst was sent from them, for the next bursts of their client and for what of them
//! is lost.
//!
//! A path that takes small bursts would cost a read for each, of blocks of which most is not sent. So a read takes what
//! its client can use soon ([`AHEAD_TIME`]), as far as a slot has room; its first burst leaves at once, and the others
//! leave from the same slot when the windows and pacing permit. What was sent all is kept on if the path loses, because
//! what is lost is then sent again from memory.
//!
//! It is no send buffer (docs/develop/decisions/0001-no-send-buffer.md): what may be kept is bounded by
//! [`crate::Config::kept_slots_max`], not by the number of connections; by [`KEPT_FOR_MAX`]; and by two slots a client. It
//! is given up when a read needs its slot, what was sent before what was not, the oldest first. Then its bytes are read
//! again, as if none were kept. Where a window takes a whole slot at once nothing is kept.
//!
//! It refuses to give up a slot from which a burst that was planned is still to be sent: the next one is given up.

use core::num::NonZeroU16;

use clock::{Duration, Instant};
use memory::{Arena, FilledSlot};
use tcp::StreamOffset;

use crate::age_list::AgeList;
use crate::canary::{Canary, Fault};
use crate::fetch::ReadShape;

/// A slot is kept no longer until all of it was sent, nor after that: a loss is found within a round trip and a quarter,
/// mostly.
pub const KEPT_FOR_MAX: Duration = Duration::from_millis(500);

/// A read takes what pacing lets its client have in this time, or in a round trip if that is more.
pub(crate) const AHEAD_TIME: Duration = Duration::from_millis(50);

/// A client whose slot was given up before its bytes were sent has one read without bytes ahead, and twice as many and one
/// each time that happens again, up to so many: one that takes a packet now and then costs no more for what is kept.
const READS_SKIPPED_MAX: u8 = 63;

/// Most given up at once when a read needs a slot: those on loan are free later only.
const GIVEN_UP_AT_ONCE: usize = 4;

/// Names a slot that is kept. It means nothing any more when that was given up. Generations come again, so a client
/// believes a key only if the slot is its own ([`Kept::owner`]): what is kept for another is never sent to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KeptKey {
    place: u16,
    generation: NonZeroU16,
}

/// Those of one client: two at most.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct ClientKept {
    /// The one that has bytes which were never sent.
    unsent: Option<KeptKey>,
    /// The last one that was sent all.
    sent: Option<KeptKey>,
}

impl ClientKept {
    fn keys(&self) -> impl Iterator<Item = KeptKey> {
        [self.unsent, self.sent].into_iter().flatten()
    }
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
    /// Its bytes are those of the stream: records in it are sealed.
    pub(crate) slot: FilledSlot,
    /// From here on. A link may write headers before a frame that it sends from the slot.
    pub(crate) usable_from: StreamOffset,
}

#[derive(Debug)]
struct Entry {
    generation: NonZeroU16,
    kept: Option<Kept>,
    /// Bursts that are to be sent from it.
    planned: u32,
    /// Where the one begins that was planned last.
    planned_from: StreamOffset,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct KeptSlots {
    entries: Box<[Entry]>,
    /// Places without a slot.
    unused: Vec<u16>,
    /// Those with bytes that were never sent.
    unsent: AgeList,
    unsent_count: usize,
    /// The others.
    sent: AgeList,
    given_up_count: u64,
    /// Reads for paths that do not lose may take more than is demanded.
    is_open: bool,
    canary: Canary,
}

impl KeptSlots {
    /// For at most so many slots.
    pub(crate) fn new(slots_max: usize) -> Self {
        let entry = |_| Entry {
            generation: NonZeroU16::MIN,
            kept: None,
            planned: 0,
            planned_from: StreamOffset::ZERO,
        };
        let places = u16::try_from(slots_max).unwrap_or(u16::MAX);
        Self {
            entries: (0..places).map(entry).collect(),
            unused: (0..places).rev().collect(),
            unsent: AgeList::new(places.into()),
            unsent_count: 0,
            sent: AgeList::new(places.into()),
            given_up_count: 0,
            is_open: true,
            canary: Canary::default(),
        }
    }

    /// The same with a fault.
    pub(crate) const fn with_canary(self, canary: Canary) -> Self {
        Self { canary, ..self }
    }

    /// Whether reads for paths that do not lose may take more than is demanded from now on.
    pub(crate) const fn set_open(&mut self, is_open: bool) {
        self.is_open = is_open;
    }

    /// How many slots are kept.
    pub(crate) fn count(&self) -> usize {
        self.entries.len() - self.unused.len()
    }

    /// How many were given up before their bytes were sent or acknowledged, since start.
    pub(crate) const fn given_up_count(&self) -> u64 {
        self.given_up_count
    }

    /// Whether a read for this client may take more than is demanded. `has_lost`: its path loses.
    pub(crate) fn may_read_ahead(
        &self,
        of_client: &mut ClientKept,
        owner: u32,
        ahead: &mut ReadAhead,
        has_lost: bool,
    ) -> bool {
        if (of_client.unsent).is_some_and(|key| self.get_of(owner, key).is_none()) {
            of_client.unsent = None;
            ahead.on_given_up();
        }
        (self.is_open || has_lost) && ahead.skipped == 0 && self.unsent_count < self.entries.len()
    }

    /// What the key of this client names, if it is still kept.
    fn get_of(&self, owner: u32, key: KeptKey) -> Option<&Kept> {
        self.get(key).filter(|kept| kept.owner == owner)
    }

    /// The same, and the key.
    fn still_kept(&self, owner: u32, key: KeptKey) -> Option<(KeptKey, &Kept)> {
        if self.canary.is(Fault::SentAfterGivenUp) {
            let entry = self.entries.get(usize::from(key.place))?;
            let generation = entry.generation;
            let kept = entry.kept.as_ref()?;
            return Some((KeptKey { generation, ..key }, kept));
        }
        self.get_of(owner, key).map(|kept| (key, kept))
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

    /// The slot of a client that holds the byte at `offset`, and where in the stream its bytes end.
    pub(crate) fn find(
        &self,
        of_client: &ClientKept,
        owner: u32,
        offset: StreamOffset,
    ) -> Option<(KeptKey, StreamOffset)> {
        of_client.keys().find_map(|key| {
            let (key, kept) = self.still_kept(owner, key)?;
            let entry = self.entries.get(usize::from(key.place))?;
            // A frame that is sent before another one may overwrite what is before it.
            let from = if entry.planned > 0 {
                kept.usable_from.max(entry.planned_from)
            } else {
                kept.usable_from
            };
            (from <= offset && offset < kept.shape.end).then_some((key, kept.shape.end))
        })
    }

    /// Keeps a slot for a client instead of one like it, and gives up the oldest of all if there are too many.
    /// `is_unsent`: it has bytes that were never sent.
    pub(crate) fn keep(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        of_client: &mut ClientKept,
        kept: Kept,
        is_unsent: bool,
    ) {
        let key = if is_unsent {
            &mut of_client.unsent
        } else {
            &mut of_client.sent
        };
        let has_room = self.replace(arena, kept.owner, key)
            && (!self.unused.is_empty() || self.give_up_oldest(arena, is_unsent));
        let Some(place) = self.unused.pop().filter(|_| has_room) else {
            arena.release(kept.slot.into_free());
            return;
        };
        let entry = &mut self.entries[usize::from(place)];
        entry.kept = Some(kept);
        let generation = entry.generation;
        if is_unsent {
            self.unsent_count += 1;
            self.unsent.set(now, place.into(), true);
        } else {
            self.sent.set(now, place.into(), true);
        }
        *key = Some(KeptKey { place, generation });
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

    /// All bytes of a client's slot were sent.
    pub(crate) fn on_all_sent(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        of_client: &mut ClientKept,
        owner: u32,
        is_kept_on: bool,
    ) {
        let own = (of_client.unsent).filter(|key| self.get_of(owner, *key).is_some());
        let Some(key) = own else { return };
        if self.is_planned(key) {
            return;
        }
        of_client.unsent = None;
        if is_kept_on && self.replace(arena, owner, &mut of_client.sent) {
            self.leave_unsent(key.place);
            self.sent.set(now, key.place.into(), true);
            of_client.sent = Some(key);
        } else {
            self.release(arena, key);
        }
    }

    /// Nothing more is sent from the slot.
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
            arena.release(kept.slot.into_free());
        }
        self.unused.push(key.place);
    }

    /// The same of all slots of a client.
    pub(crate) fn release_all(&mut self, arena: &mut Arena, of_client: ClientKept, owner: u32) {
        for key in of_client.keys() {
            if self.get_of(owner, key).is_some() {
                self.release(arena, key);
            }
        }
    }

    /// The same of all slots of a client that hold something behind `start`.
    pub(crate) fn release_behind(
        &mut self,
        arena: &mut Arena,
        of_client: &mut ClientKept,
        owner: u32,
        start: StreamOffset,
    ) {
        for key in [&mut of_client.unsent, &mut of_client.sent] {
            let is_behind = |kept: &&Kept| kept.shape.end > start;
            if let Some(named) = *key
                && self.get_of(owner, named).filter(is_behind).is_some()
            {
                self.release(arena, named);
                *key = None;
            }
        }
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
    }

    /// Since when the one has been kept that may be given up and is kept for longest.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        let firsts = [true, false].map(|is_unsent| self.first_unplanned(is_unsent));
        firsts.into_iter().flatten().map(|(_, since)| since).min()
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
        self.release(arena, key);
        self.given_up_count += u64::from(is_unsent);
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

#[cfg(test)]
mod tests {
    use memory::ArenaConfig;

    use super::*;
    use crate::stream_map::tests::place;

    const START: Instant = Instant::from_millis(1);
    const OWNER: u32 = 7;

    /// Slots, and some that are kept of them.
    struct Table {
        arena: Arena,
        kept: KeptSlots,
        now: Instant,
    }

    impl Table {
        fn new(slots: u32, kept_max: usize) -> Self {
            Self {
                arena: Arena::new(ArenaConfig::new(slots)).unwrap(),
                kept: KeptSlots::new(kept_max),
                now: START,
            }
        }

        /// Keeps stream bytes `from..to` for a client.
        fn keep(&mut self, of: &mut ClientKept, (from, to): (u64, u64), is_unsent: bool) {
            self.keep_for(OWNER, of, (from, to), is_unsent);
        }

        fn keep_for(
            &mut self,
            owner: u32,
            of: &mut ClientKept,
            (from, to): (u64, u64),
            is_unsent: bool,
        ) {
            let slot = self.arena.reserve().unwrap().into_reading();
            let kept = Kept {
                owner,
                shape: ReadShape {
                    object: place(1),
                    offset_bytes: 0,
                    length_bytes: 4096,
                    skip_bytes: 0,
                    stream_start: StreamOffset(from),
                    end: StreamOffset(to),
                    records: None,
                },
                slot: slot.into_filled(4096),
                usable_from: StreamOffset(from),
            };
            (self.kept).keep(self.now, &mut self.arena, of, kept, is_unsent);
        }

        fn finds(&self, of: &ClientKept, offset: u64) -> bool {
            self.kept.find(of, OWNER, StreamOffset(offset)).is_some()
        }
    }

    #[test]
    fn a_slot_holds_the_bytes_from_where_it_is_usable_to_its_end() {
        let mut table = Table::new(4, 2);
        let mut of = ClientKept::default();
        table.keep(&mut of, (100, 200), true);
        let found = [99, 100, 199, 200].map(|offset| table.finds(&of, offset));
        assert_eq!(found, [false, true, true, false]);
        let (key, end) = table.kept.find(&of, OWNER, StreamOffset(150)).unwrap();
        assert_eq!(end, StreamOffset(200));
        table.kept.get_mut(key).unwrap().usable_from = StreamOffset(150);
        assert!(!table.finds(&of, 149) && table.finds(&of, 150));
        // What is planned first is sent first, and what is before it may be overwritten.
        table.kept.plan(key, StreamOffset(160));
        assert!(!table.finds(&of, 159) && table.finds(&of, 160));
        table.kept.end_plan(key);
        assert!(table.finds(&of, 159));
    }

    #[test]
    fn as_many_are_kept_as_may_be_and_what_was_sent_goes_first() {
        let mut table = Table::new(8, 2);
        let mut clients = [ClientKept::default(); 4];
        table.keep(&mut clients[0], (0, 10), true);
        table.keep(&mut clients[1], (0, 10), false);
        assert_eq!(table.kept.count(), 2);
        table.keep(&mut clients[2], (0, 10), true);
        let found = [0, 1, 2].map(|client: usize| table.finds(&clients[client], 0));
        assert_eq!(found, [true, false, true]);
        assert_eq!(table.kept.given_up_count(), 0);
        // What was sent gives up nothing that was not.
        table.keep(&mut clients[3], (0, 10), false);
        assert!(!table.finds(&clients[3], 0) && table.finds(&clients[0], 0));
        table.keep(&mut clients[3], (0, 10), true);
        assert!(table.finds(&clients[3], 0) && !table.finds(&clients[0], 0));
        assert_eq!((table.kept.count(), table.kept.given_up_count()), (2, 1));
        assert_eq!(table.arena.free_count(), 6);
        let ahead = &mut ReadAhead::default();
        assert!(
            !table
                .kept
                .may_read_ahead(&mut clients[3], OWNER, ahead, false)
        );
        clients
            .iter()
            .for_each(|of| table.kept.release_all(&mut table.arena, *of, OWNER));
        assert!(
            table
                .kept
                .may_read_ahead(&mut clients[1], OWNER, ahead, false)
        );
        table.kept.set_open(false);
        assert!(
            !table
                .kept
                .may_read_ahead(&mut clients[1], OWNER, ahead, false)
        );
        // Bursts on a path that loses are so small that the rest is worth keeping.
        assert!((table.kept).may_read_ahead(&mut clients[1], OWNER, ahead, true));
        assert_eq!((table.kept.count(), table.arena.free_count()), (0, 8));
    }

    #[test]
    fn none_is_kept_where_none_may_be() {
        let mut table = Table::new(2, 0);
        let mut of = ClientKept::default();
        assert!(
            !table
                .kept
                .may_read_ahead(&mut of, OWNER, &mut ReadAhead::default(), false)
        );
        table.keep(&mut of, (0, 10), true);
        assert_eq!((table.kept.count(), table.arena.free_count()), (0, 2));
    }

    #[test]
    fn a_slot_is_kept_for_its_time_and_no_longer() {
        for is_unsent in [true, false] {
            let mut table = Table::new(2, 2);
            let mut of = ClientKept::default();
            table.keep(&mut of, (0, 10), is_unsent);
            let until = START + KEPT_FOR_MAX;
            let before = until - Duration::from_nanos(1);
            table.kept.expire(before, &mut table.arena);
            assert!(table.finds(&of, 0));
            let (key, _) = table.kept.find(&of, OWNER, StreamOffset(0)).unwrap();
            table.kept.plan(key, StreamOffset(0));
            table.kept.expire(until, &mut table.arena);
            assert!(table.finds(&of, 0), "a burst is to be sent from it");
            table.kept.end_plan(key);
            table.kept.expire(until, &mut table.arena);
            assert!(!table.finds(&of, 0));
            assert_eq!(table.arena.free_count(), 2);
            assert_eq!(table.kept.given_up_count(), u64::from(is_unsent));
        }
    }

    #[test]
    fn a_slot_from_which_a_burst_waits_to_be_sent_keeps_no_other_from_being_given_up() {
        let mut table = Table::new(2, 2);
        let mut clients = [ClientKept::default(); 2];
        table.keep(&mut clients[0], (0, 10), true);
        table.keep(&mut clients[1], (0, 10), true);
        let found = table.kept.find(&clients[0], OWNER, StreamOffset(0));
        table.kept.plan(found.unwrap().0, StreamOffset(0));
        assert_eq!(table.kept.oldest(), Some(START));
        table.kept.make_room(&mut table.arena);
        assert_eq!(table.arena.free_count(), 1);
        assert!(table.finds(&clients[0], 0) && !table.finds(&clients[1], 0));
        assert_eq!(table.kept.oldest(), None);
    }

    #[test]
    fn a_place_that_is_used_again_is_another_slot() {
        let mut table = Table::new(2, 1);
        let (mut first, mut second) = (ClientKept::default(), ClientKept::default());
        table.keep(&mut first, (0, 10), true);
        table.keep(&mut second, (0, 10), true);
        assert!(!table.finds(&first, 0) && table.finds(&second, 0));
        table.kept.release_all(&mut table.arena, first, OWNER);
        assert!(table.finds(&second, 0), "it is not the first one's");
    }

    #[test]
    fn what_was_sent_all_is_kept_on_if_it_is_to_be() {
        for is_kept_on in [true, false] {
            let mut table = Table::new(4, 4);
            let mut of = ClientKept::default();
            table.keep(&mut of, (0, 10), true);
            (table.kept).on_all_sent(table.now, &mut table.arena, &mut of, OWNER, is_kept_on);
            assert_eq!(table.finds(&of, 0), is_kept_on);
            assert_eq!(table.kept.unsent_end(&of, OWNER), None);
            // The next one takes its place only when it was sent, too.
            table.keep(&mut of, (10, 20), true);
            assert_eq!(table.finds(&of, 0), is_kept_on);
            (table.kept).on_all_sent(table.now, &mut table.arena, &mut of, OWNER, true);
            assert!(!table.finds(&of, 0) && table.finds(&of, 10));
            assert_eq!(table.arena.free_count(), 3);
        }
    }

    #[test]
    fn what_is_behind_a_place_of_the_stream_is_released() {
        let mut table = Table::new(4, 4);
        let mut of = ClientKept::default();
        table.keep(&mut of, (0, 10), false);
        table.keep(&mut of, (10, 20), true);
        (table.kept).release_behind(&mut table.arena, &mut of, OWNER, StreamOffset(20));
        assert!(table.finds(&of, 0) && table.finds(&of, 10));
        (table.kept).release_behind(&mut table.arena, &mut of, OWNER, StreamOffset(19));
        assert!(table.finds(&of, 0) && !table.finds(&of, 10));
    }

    #[test]
    fn reads_take_no_more_than_is_demanded_for_a_while_after_a_slot_was_given_up() {
        let mut table = Table::new(2, 1);
        let (mut of, mut other) = (ClientKept::default(), ClientKept::default());
        let mut ahead = ReadAhead::default();
        for skipped in [1, 3, 7, 15, 31, 63, 63] {
            table.keep(&mut of, (0, 10), true);
            table.keep(&mut other, (0, 10), true);
            table.kept.release_all(&mut table.arena, other, OWNER);
            for _ in 0..skipped {
                assert!(!table.kept.may_read_ahead(&mut of, OWNER, &mut ahead, false));
                ahead.on_read();
            }
            assert!(table.kept.may_read_ahead(&mut of, OWNER, &mut ahead, false));
        }
    }

    #[test]
    fn a_read_that_needs_a_slot_gets_one() {
        let mut table = Table::new(1, 1);
        let mut of = ClientKept::default();
        table.keep(&mut of, (0, 10), true);
        let (key, _) = table.kept.find(&of, OWNER, StreamOffset(0)).unwrap();
        table.kept.plan(key, StreamOffset(0));
        table.kept.make_room(&mut table.arena);
        assert_eq!(table.arena.free_count(), 0, "a burst is to be sent from it");
        table.kept.end_plan(key);
        table.kept.make_room(&mut table.arena);
        assert_eq!(table.arena.free_count(), 1);
    }

    #[test]
    fn a_key_whose_generation_comes_again_does_not_name_what_is_kept_for_another_client() {
        let mut table = Table::new(2, 1);
        let (mut stale, mut other) = (ClientKept::default(), ClientKept::default());
        table.keep(&mut stale, (0, 10), true);
        (table.kept).expire(START + KEPT_FOR_MAX, &mut table.arena);
        // As many keys as there are generations.
        for _ in 1..u32::from(u16::MAX) {
            other = ClientKept::default();
            table.keep_for(OWNER + 1, &mut other, (0, 10), true);
            (table.kept).expire(START + KEPT_FOR_MAX, &mut table.arena);
        }
        table.keep_for(OWNER + 1, &mut other, (0, 10), true);
        assert_eq!(stale.unsent, other.unsent, "the generation has come again");
        assert!(!table.finds(&stale, 0));
        assert_eq!(table.kept.unsent_end(&stale, OWNER), None);
        table.kept.release_all(&mut table.arena, stale, OWNER);
        let found = (table.kept).find(&other, OWNER + 1, StreamOffset(0));
        assert!(found.is_some(), "it is the other's still");
    }
}
