//! The open objects: a fixed number of entries, found by name, in LRU order.
//!
//! An entry is reserved before the file is opened, so that no more files are open than there are
//! entries, however long the open takes; `insert` fills it, `cancel` ends the reservation.
//!
//! It refuses to know files. Every operation is O(1). Bound: the number of entries; after start,
//! memory is allocated only for a name longer than all earlier names in its entry. The states of an
//! entry:
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

use crate::Metadata;

/// No entry: the end of the list.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Table {
    entries: Vec<Entry>,
    /// Shared entries by name. The hash is keyed, since clients choose the names.
    by_name: HashTable<u32>,
    hasher: RandomState,
    free: Vec<u32>,
    closed: VecDeque<u32>,
    /// Open objects: shared or retired.
    open_count: usize,
    /// Entries reserved for objects that are being opened. `open_count + reserved_count` is at
    /// most `open_max`, and `reserved_count` at most `free.len()`.
    reserved_count: usize,
    open_max: usize,
    /// Unused objects, from the least to the most recently used.
    unused: List,
    /// Retired objects in use, in the order in which they were retired.
    retired: List,
}

/// Ends of a list of entries; an entry is in one list at most.
#[derive(Clone, Copy, Debug)]
struct List {
    oldest: u32,
    newest: u32,
}

impl List {
    const EMPTY: Self = Self {
        oldest: NONE,
        newest: NONE,
    };
}

#[derive(Clone, Debug)]
struct Entry {
    name: String,
    hash: u64,
    metadata: Metadata,
    asked_at: Option<Instant>,
    state: State,
    uses: u32,
    /// Whether it is in the list of its state: shared and unused, or retired and in use.
    is_listed: bool,
    /// When its last use ended, or it was retired. This and the next two are valid only in a list.
    since: Instant,
    /// Towards the oldest.
    older: u32,
    newer: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    /// Found by its name.
    Shared,
    /// No longer found; closed when its last use ends.
    Retired,
    /// Waits for `poll_closed`.
    Closed,
}

impl Table {
    /// Entries for `open_max` open objects, and for `closed_max` more that wait to be closed.
    pub(crate) fn new(open_max: usize, closed_max: usize) -> Self {
        let count = u32::try_from(open_max + closed_max).expect("invariant: checked by the store");
        let entry = Entry {
            name: String::new(),
            hash: 0,
            metadata: Metadata::default(),
            asked_at: None,
            state: State::Free,
            uses: 0,
            is_listed: false,
            since: Instant::ZERO,
            older: NONE,
            newer: NONE,
        };
        Self {
            entries: vec![entry; open_max + closed_max],
            by_name: HashTable::with_capacity(open_max),
            hasher: RandomState::new(),
            free: (0..count).rev().collect(),
            closed: VecDeque::with_capacity(open_max + closed_max),
            open_count: 0,
            reserved_count: 0,
            open_max,
            unused: List::EMPTY,
            retired: List::EMPTY,
        }
    }

    pub(crate) fn handles_max(&self) -> usize {
        self.entries.len()
    }

    /// The object that `name` leads to.
    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(name);
        self.by_name
            .find(hash, |&handle| self.entry(handle).name == name)
            .copied()
    }

    pub(crate) fn name(&self, handle: u32) -> &str {
        &self.entry(handle).name
    }

    pub(crate) fn metadata(&self, handle: u32) -> &Metadata {
        &self.entry(handle).metadata
    }

    /// The turn in which the worker found that the name leads to this object; `None` if a thread found
    /// that, at some moment before.
    pub(crate) fn asked_at(&self, handle: u32) -> Option<Instant> {
        self.entry(handle).asked_at
    }

    pub(crate) fn set_asked(&mut self, handle: u32, asked_at: Option<Instant>) {
        self.entry_mut(handle).asked_at = asked_at;
    }

    /// Whether [`Table::reserve`] would succeed: an entry is free, or an object is unused.
    pub(crate) fn has_room(&self) -> bool {
        let is_full = self.open_count + self.reserved_count == self.open_max;
        self.reserved_count < self.free.len() && !(is_full && self.unused.oldest == NONE)
    }

    /// Reserves an entry for an object about to be opened; evicts the least recently used unused
    /// object if necessary. `false` if every object is in use, or too many closed ones wait for
    /// `poll_closed`.
    #[must_use]
    pub(crate) fn reserve(&mut self, now: Instant) -> bool {
        if !self.has_room() {
            return false;
        }
        if self.open_count + self.reserved_count == self.open_max {
            self.retire(self.unused.oldest, now);
        }
        self.reserved_count += 1;
        true
    }

    /// Ends a reservation: the object was not opened, or is open already.
    pub(crate) fn cancel(&mut self) {
        assert!(self.reserved_count > 0, "no entry was reserved");
        self.reserved_count -= 1;
    }

    /// A new object in a reserved entry, under a name not in the table, with one use.
    pub(crate) fn insert(
        &mut self,
        name: &str,
        metadata: Metadata,
        asked_at: Option<Instant>,
    ) -> u32 {
        debug_assert!(self.find(name).is_none(), "{name} is in the table");
        self.cancel();
        let handle = self.free.pop();
        let handle = handle.expect("invariant: as many entries are free as are reserved");
        let hash = self.hasher.hash_one(name);
        let entry = self.entry_mut(handle);
        assert_eq!(
            entry.state,
            State::Free,
            "entry {handle} is in the free list"
        );
        entry.name.clear();
        entry.name.push_str(name);
        entry.hash = hash;
        entry.metadata = metadata;
        entry.asked_at = asked_at;
        entry.state = State::Shared;
        entry.uses = 1;
        let entries = &self.entries;
        self.by_name
            .insert_unique(hash, handle, |&handle| entries[handle as usize].hash);
        self.open_count += 1;
        handle
    }

    /// One more use of an object that was just found.
    pub(crate) fn acquire(&mut self, handle: u32) {
        let entry = self.entry_mut(handle);
        assert_eq!(entry.state, State::Shared, "entry {handle} was found");
        entry.uses += 1;
        if entry.uses == 1 {
            self.unlink(handle);
        }
    }

    /// One use fewer. `now` never decreases.
    pub(crate) fn release(&mut self, handle: u32, now: Instant) {
        let entry = self.entry_mut(handle);
        assert!(
            entry.uses > 0,
            "object {handle} is released more often than it was found"
        );
        entry.uses -= 1;
        match (entry.uses, entry.state) {
            (0, State::Shared) => self.link_newest(handle, now),
            (0, State::Retired) => {
                self.unlink(handle);
                self.close(handle);
            }
            (0, state) => unreachable!("entry {handle} was in use and {state:?}"),
            _ => {}
        }
    }

    /// The object that has been unused for longest, and since when.
    pub(crate) fn oldest_unused(&self) -> Option<(u32, Instant)> {
        self.oldest_of(self.unused)
    }

    /// The object in use that was retired before all others, and when; without those that are forgotten.
    pub(crate) fn oldest_retired(&self) -> Option<(u32, Instant)> {
        self.oldest_of(self.retired)
    }

    /// [`Table::oldest_retired`] does not return this object any more.
    pub(crate) fn forget_retired(&mut self, handle: u32) {
        let state = self.entry(handle).state;
        assert_eq!(state, State::Retired, "entry {handle} is in the list");
        self.unlink(handle);
    }

    fn oldest_of(&self, list: List) -> Option<(u32, Instant)> {
        let handle = (list.oldest != NONE).then_some(list.oldest)?;
        Some((handle, self.entry(handle).since))
    }

    /// Moves an unused object to the end of the LRU list, as if it had been used until now.
    pub(crate) fn postpone(&mut self, handle: u32, now: Instant) {
        self.unlink(handle);
        self.link_newest(handle, now);
    }

    /// Removes the object's name. The object is closed now, or when its last use ends.
    pub(crate) fn retire(&mut self, handle: u32, now: Instant) {
        let entry = self.entry(handle);
        assert_eq!(entry.state, State::Shared, "entry {handle} can be found");
        let (hash, is_unused) = (entry.hash, entry.uses == 0);
        match self.by_name.find_entry(hash, |&other| other == handle) {
            Ok(entry) => drop(entry.remove()),
            Err(_) => unreachable!("entry {handle} is shared and not in the index"),
        }
        if is_unused {
            self.unlink(handle);
            self.close(handle);
        } else {
            self.entry_mut(handle).state = State::Retired;
            self.link_newest(handle, now);
        }
    }

    /// Retires an object that is in use, which may have been retired already.
    pub(crate) fn retire_used(&mut self, handle: u32, now: Instant) {
        let entry = self.entry(handle);
        assert!(entry.uses > 0, "object {handle} is not in use");
        if entry.state == State::Shared {
            self.retire(handle, now);
        }
    }

    /// An object that is to be closed; its handle is free from now on.
    pub(crate) fn poll_closed(&mut self) -> Option<u32> {
        let handle = self.closed.pop_front()?;
        let entry = self.entry_mut(handle);
        assert_eq!(
            entry.state,
            State::Closed,
            "entry {handle} waits to be closed"
        );
        entry.state = State::Free;
        self.free.push(handle);
        Some(handle)
    }

    fn close(&mut self, handle: u32) {
        self.entry_mut(handle).state = State::Closed;
        self.closed.push_back(handle);
        self.open_count -= 1;
    }

    /// The list that entries of this state are in.
    fn list_mut(&mut self, state: State) -> &mut List {
        match state {
            State::Shared => &mut self.unused,
            State::Retired => &mut self.retired,
            State::Free | State::Closed => {
                unreachable!("entries that are {state:?} are in no list")
            }
        }
    }

    /// Puts an entry at the end of the list of its state.
    fn link_newest(&mut self, handle: u32, now: Instant) {
        let state = self.entry(handle).state;
        let list = self.list_mut(state);
        let older = core::mem::replace(&mut list.newest, handle);
        if older == NONE {
            list.oldest = handle;
        } else {
            self.entry_mut(older).newer = handle;
        }
        let entry = self.entry_mut(handle);
        entry.is_listed = true;
        entry.since = now;
        entry.older = older;
        entry.newer = NONE;
    }

    /// Takes an entry out of the list of its state, if it is in it.
    fn unlink(&mut self, handle: u32) {
        let entry = self.entry_mut(handle);
        if !core::mem::take(&mut entry.is_listed) {
            return;
        }
        let (older, newer, state) = (entry.older, entry.newer, entry.state);
        match older {
            NONE => self.list_mut(state).oldest = newer,
            older => self.entry_mut(older).newer = newer,
        }
        match newer {
            NONE => self.list_mut(state).newest = older,
            newer => self.entry_mut(newer).older = older,
        }
    }

    fn entry(&self, handle: u32) -> &Entry {
        &self.entries[handle as usize]
    }

    fn entry_mut(&mut self, handle: u32) -> &mut Entry {
        &mut self.entries[handle as usize]
    }
}

#[cfg(test)]
mod tests;
