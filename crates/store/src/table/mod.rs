//! The open objects: a fixed number of places, found by name, kept in the order of last use.
//!
//! A place is reserved before the file is opened, so that no more files are open than there are
//! places, however long an opening takes; `insert` fills it, `cancel` gives it back.
//!
//! It knows nothing of files. Every operation is O(1); nothing is allocated after start but names
//! longer than any before them in their place. A place goes round like this:
//!
//! ```text
//!        reserve, insert                release, last use
//!   Free ───────────────▶ Shared (used) ◀─────────────────▶ Shared (unused, in the LRU list)
//!    ▲                      │ retire           acquire        │ retire, or evicted by reserve
//!    │ poll_closed          ▼                                 ▼
//!   Closed ◀──────────── Retired (used) ──────────────────▶ Closed
//!            release, last use
//! ```

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use clock::Instant;
use hashbrown::HashTable;

use crate::Facts;

/// No place: the end of the list.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Table {
    places: Vec<Place>,
    /// The places that can be found, by name. Keyed hashing, since clients choose the names.
    by_name: HashTable<u32>,
    hasher: RandomState,
    free: Vec<u32>,
    closed: VecDeque<u32>,
    /// Objects open for the user: shared or retired.
    open_count: usize,
    /// Places put aside for objects that are being opened. `open_count + reserved_count` is at
    /// most `open_max`, and `reserved_count` at most `free.len()`.
    reserved_count: usize,
    open_max: usize,
    /// Unused objects, from the least to the most recently used.
    oldest: u32,
    newest: u32,
}

#[derive(Clone, Debug)]
struct Place {
    name: String,
    hash: u64,
    facts: Facts,
    checked_at: Instant,
    state: State,
    uses: u32,
    /// Since when it has no uses. This and the next two are meaningful only while it is unused
    /// and shared.
    unused_since: Instant,
    /// Towards the oldest.
    older: u32,
    newer: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    /// Found by its name.
    Shared,
    /// No longer found; closed at the end of its last use.
    Retired,
    /// To come out of `poll_closed`.
    Closed,
}

impl Table {
    /// Places for `open_max` open objects, and for `closed_max` more that wait to be closed.
    pub(crate) fn new(open_max: usize, closed_max: usize) -> Self {
        let count = u32::try_from(open_max + closed_max).expect("invariant: checked by the store");
        let place = Place {
            name: String::new(),
            hash: 0,
            facts: Facts::default(),
            checked_at: Instant::ZERO,
            state: State::Free,
            uses: 0,
            unused_since: Instant::ZERO,
            older: NONE,
            newer: NONE,
        };
        Self {
            places: vec![place; open_max + closed_max],
            by_name: HashTable::with_capacity(open_max),
            hasher: RandomState::new(),
            free: (0..count).rev().collect(),
            closed: VecDeque::with_capacity(open_max + closed_max),
            open_count: 0,
            reserved_count: 0,
            open_max,
            oldest: NONE,
            newest: NONE,
        }
    }

    pub(crate) fn handles_max(&self) -> usize {
        self.places.len()
    }

    /// The object that `name` leads to.
    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(name);
        self.by_name
            .find(hash, |&handle| self.place(handle).name == name)
            .copied()
    }

    pub(crate) fn name(&self, handle: u32) -> &str {
        &self.place(handle).name
    }

    pub(crate) fn facts(&self, handle: u32) -> &Facts {
        &self.place(handle).facts
    }

    /// When the name was last seen to lead to this object.
    pub(crate) fn checked_at(&self, handle: u32) -> Instant {
        self.place(handle).checked_at
    }

    pub(crate) fn check(&mut self, handle: u32, now: Instant) {
        self.place_mut(handle).checked_at = now;
    }

    /// Whether [`Table::reserve`] has a place: one is free, or an object is unused.
    pub(crate) fn has_room(&self) -> bool {
        let is_full = self.open_count + self.reserved_count == self.open_max;
        self.reserved_count < self.free.len() && !(is_full && self.oldest == NONE)
    }

    /// Puts a place aside for an object about to be opened; the least recently used one that is
    /// unused makes room if it must. `false` if every object is in use, or too many closed ones
    /// were not taken.
    #[must_use]
    pub(crate) fn reserve(&mut self) -> bool {
        if !self.has_room() {
            return false;
        }
        if self.open_count + self.reserved_count == self.open_max {
            self.retire(self.oldest);
        }
        self.reserved_count += 1;
        true
    }

    /// Gives a reserved place back: the object was not opened, or is open already.
    pub(crate) fn cancel(&mut self) {
        assert!(self.reserved_count > 0, "no place was reserved");
        self.reserved_count -= 1;
    }

    /// A new object in a reserved place, under a name not in the table, with one use.
    pub(crate) fn insert(&mut self, name: &str, facts: Facts, now: Instant) -> u32 {
        debug_assert!(self.find(name).is_none(), "{name} is in the table");
        self.cancel();
        let handle = self.free.pop();
        let handle = handle.expect("invariant: as many places are free as are reserved");
        let hash = self.hasher.hash_one(name);
        let place = self.place_mut(handle);
        assert_eq!(
            place.state,
            State::Free,
            "place {handle} is in the free list"
        );
        place.name.clear();
        place.name.push_str(name);
        place.hash = hash;
        place.facts = facts;
        place.checked_at = now;
        place.state = State::Shared;
        place.uses = 1;
        let places = &self.places;
        self.by_name
            .insert_unique(hash, handle, |&handle| places[handle as usize].hash);
        self.open_count += 1;
        handle
    }

    /// One more use of an object that was just found.
    pub(crate) fn acquire(&mut self, handle: u32) {
        let place = self.place_mut(handle);
        assert_eq!(place.state, State::Shared, "place {handle} was found");
        place.uses += 1;
        if place.uses == 1 {
            self.unlink(handle);
        }
    }

    /// One use fewer. `now` never decreases.
    pub(crate) fn release(&mut self, handle: u32, now: Instant) {
        let place = self.place_mut(handle);
        assert!(
            place.uses > 0,
            "object {handle} is released more often than it was found"
        );
        place.uses -= 1;
        match (place.uses, place.state) {
            (0, State::Shared) => self.link_newest(handle, now),
            (0, State::Retired) => self.close(handle),
            (0, state) => unreachable!("place {handle} was in use and {state:?}"),
            _ => {}
        }
    }

    /// The object that has been unused for longest, and since when.
    pub(crate) fn oldest_unused(&self) -> Option<(u32, Instant)> {
        let handle = (self.oldest != NONE).then_some(self.oldest)?;
        Some((handle, self.place(handle).unused_since))
    }

    /// Counts an unused object as used until now.
    pub(crate) fn put_off(&mut self, handle: u32, now: Instant) {
        self.unlink(handle);
        self.link_newest(handle, now);
    }

    /// Takes the object from its name. It is closed now or at the end of its last use.
    pub(crate) fn retire(&mut self, handle: u32) {
        let place = self.place(handle);
        assert_eq!(place.state, State::Shared, "place {handle} can be found");
        let (hash, is_unused) = (place.hash, place.uses == 0);
        match self.by_name.find_entry(hash, |&other| other == handle) {
            Ok(entry) => drop(entry.remove()),
            Err(_) => unreachable!("place {handle} is shared and not in the index"),
        }
        if is_unused {
            self.unlink(handle);
            self.close(handle);
        } else {
            self.place_mut(handle).state = State::Retired;
        }
    }

    /// Retires an object that is in use, which may have been retired already.
    pub(crate) fn retire_used(&mut self, handle: u32) {
        let place = self.place(handle);
        assert!(place.uses > 0, "object {handle} is not in use");
        if place.state == State::Shared {
            self.retire(handle);
        }
    }

    /// An object that is to be closed; its handle is free from now on.
    pub(crate) fn poll_closed(&mut self) -> Option<u32> {
        let handle = self.closed.pop_front()?;
        let place = self.place_mut(handle);
        assert_eq!(
            place.state,
            State::Closed,
            "place {handle} waits to be closed"
        );
        place.state = State::Free;
        self.free.push(handle);
        Some(handle)
    }

    fn close(&mut self, handle: u32) {
        self.place_mut(handle).state = State::Closed;
        self.closed.push_back(handle);
        self.open_count -= 1;
    }

    fn link_newest(&mut self, handle: u32, now: Instant) {
        let older = self.newest;
        let place = self.place_mut(handle);
        place.unused_since = now;
        place.older = older;
        place.newer = NONE;
        match older {
            NONE => self.oldest = handle,
            older => self.place_mut(older).newer = handle,
        }
        self.newest = handle;
    }

    fn unlink(&mut self, handle: u32) {
        let place = self.place(handle);
        let (older, newer) = (place.older, place.newer);
        match older {
            NONE => self.oldest = newer,
            older => self.place_mut(older).newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.place_mut(newer).older = older,
        }
    }

    fn place(&self, handle: u32) -> &Place {
        &self.places[handle as usize]
    }

    fn place_mut(&mut self, handle: u32) -> &mut Place {
        &mut self.places[handle as usize]
    }
}

#[cfg(test)]
mod tests;
