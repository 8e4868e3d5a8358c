//! Changes of a catalogue before they are written: new objects, replaced and removed ones, and the
//! space they take and leave.
//!
//! **It gives out no block that either of the two catalogues on the devices has, nor one that a
//! reader may be sending.** An extent that catalogue *r* is the first without is used again from
//! catalogue *r* + 1 on, so that the two newest catalogues are whole at any time, and only when no
//! reader uses a catalogue before *r*, nor the extent itself. Bounded by the catalogue's area.

use std::collections::BTreeMap;

use crate::catalogue::{RETIRED_BYTES, catalogue_bytes, entry_bytes, is_sound};
#[cfg(test)]
use crate::commit::Fault;
use crate::space::Space;
use crate::{
    BLOCK_BYTES, Catalogue, Commit, Entry, Extent, Readers, Retired, SEQUENCE_MAX, blocks_of,
};

/// There is no free run for an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "no room for {wanted_bytes} bytes in one piece: the largest free run has {largest_bytes}, \
     {free_bytes} are free in all{}",
    Waiting(*.waiting_bytes)
)]
pub struct NoRoom {
    /// What was asked for, in whole blocks.
    pub wanted_bytes: u64,
    /// The largest free run of any device.
    pub largest_bytes: u64,
    /// Free on all devices.
    pub free_bytes: u64,
    /// Of removed objects, not free yet: the catalogue before has them, or a reader sends them.
    pub waiting_bytes: u64,
}

struct Waiting(u64);

impl core::fmt::Display for Waiting {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            0 => Ok(()),
            bytes => write!(f, ", and {bytes} of removed objects are not free yet"),
        }
    }
}

/// The catalogue's area has no room for the changed catalogue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the catalogue would have {needed_bytes} bytes, and its area has {area_bytes}: remove objects, \
     or make a store with a larger catalogue"
)]
pub struct CatalogueFull {
    /// What the changed catalogue takes.
    pub needed_bytes: u64,
    /// What there is.
    pub area_bytes: u64,
}

/// Why a change cannot be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The catalogue does not fit its area.
    #[error(transparent)]
    Full(#[from] CatalogueFull),
    /// The catalogue on the devices has the largest number there is: no program would read the next one.
    #[error("the catalogue has the last number there is, {SEQUENCE_MAX}: make the store anew")]
    Last,
}

/// A catalogue that is being changed.
#[derive(Debug)]
pub struct Editor {
    base: Catalogue,
    entries: BTreeMap<Box<str>, Entry>,
    spaces: Vec<Space>,
    retired: Vec<Retired>,
    has_changed: bool,
    #[cfg(test)]
    pub(crate) fault: Option<Fault>,
}

impl Editor {
    /// Begins to change what is on the devices, except for what `readers` read. Nobody else may change the
    /// store meanwhile.
    #[must_use]
    pub fn new(catalogue: Catalogue, readers: &Readers) -> Self {
        Self::with_reuse(catalogue, readers, 1)
    }

    /// `distance`: how many catalogues later an extent is used again; 1, or 0 to see that tests notice.
    fn with_reuse(catalogue: Catalogue, readers: &Readers, distance: u64) -> Self {
        let geometry = catalogue.geometry();
        let start = geometry.data_start();
        let blocks = geometry.device_blocks.iter();
        let mut spaces: Vec<_> = blocks.map(|blocks| Space::new(start, *blocks)).collect();
        let sequence = catalogue.sequence();
        let is_needed =
            |retired: &&Retired| retired.since + distance > sequence || readers.reads(retired);
        let retired: Vec<_> = catalogue
            .retired()
            .iter()
            .filter(is_needed)
            .copied()
            .collect();
        let taken = catalogue.entries().iter().map(|it| it.extent);
        for extent in taken.chain(retired.iter().map(|it| it.extent)) {
            let is_free = extent.blocks == 0
                || spaces[usize::from(extent.device)].take(extent.start, extent.blocks);
            assert!(is_free, "a catalogue's extents do not overlap: {extent:?}");
        }
        let entries = catalogue.entries().iter();
        let entries = entries.map(|it| (it.name.clone(), it.clone())).collect();
        Self {
            entries,
            spaces,
            has_changed: false,
            retired,
            base: catalogue,
            #[cfg(test)]
            fault: None,
        }
    }

    #[cfg(test)]
    pub(crate) fn with_fault(
        catalogue: Catalogue,
        readers: &Readers,
        fault: Option<Fault>,
    ) -> Self {
        let distance = u64::from(fault != Some(Fault::EarlyReuse));
        let mut editor = Self::with_reuse(catalogue, readers, distance);
        editor.fault = fault;
        editor
    }

    /// The catalogue on the devices.
    #[must_use]
    pub const fn base(&self) -> &Catalogue {
        &self.base
    }

    /// The object of this name, with the changes so far.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// Names of all objects that begin with `prefix`, with the changes so far.
    pub fn names_from<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> + 'a {
        let from = self.entries.range(Box::from(prefix)..);
        let names = from.map(|(name, _)| &**name);
        names.take_while(move |name| name.starts_with(prefix))
    }

    /// Sequence number of the catalogue with the changes: the version of what is added.
    #[must_use]
    pub const fn next_sequence(&self) -> u64 {
        self.base.sequence() + 1
    }

    /// Bytes free on all devices.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        let blocks: u64 = self.spaces.iter().map(Space::free_blocks).sum();
        blocks * u64::from(BLOCK_BYTES)
    }

    /// The largest free run of any device, bytes.
    #[must_use]
    pub fn largest_free_bytes(&self) -> u64 {
        let blocks = self.spaces.iter().map(Space::largest_run).max();
        blocks.unwrap_or(0) * u64::from(BLOCK_BYTES)
    }

    /// What is free: what neither catalogue on the devices names, and no reader may be reading. Its content
    /// is of no use to anybody, so a device may forget it, once the catalogue is durable.
    pub fn free_extents(&self) -> impl Iterator<Item = Extent> + '_ {
        let runs = |(device, space): (usize, &Space)| {
            let device = u16::try_from(device).expect("invariant: few devices");
            let extent = move |(start, blocks)| Extent {
                device,
                start,
                blocks,
            };
            space.runs().map(extent).collect::<Vec<_>>()
        };
        self.spaces.iter().enumerate().flat_map(runs)
    }

    /// Bytes of removed objects that are not free yet.
    #[must_use]
    pub fn waiting_bytes(&self) -> u64 {
        let blocks: u64 = self.retired.iter().map(|it| it.extent.blocks).sum();
        blocks * u64::from(BLOCK_BYTES)
    }

    /// Whether another commit, even of nothing, would free space.
    #[must_use]
    pub fn would_free(&self, readers: &Readers) -> bool {
        self.retired.iter().any(|it| !readers.reads(it))
    }

    /// Space for an object, on the device that has most of it free. Write the data there, and then
    /// insert the object or give the extent back.
    ///
    /// # Errors
    /// No device has a free run of that size.
    pub fn allocate(&mut self, size_bytes: u64) -> Result<Extent, NoRoom> {
        let blocks = blocks_of(size_bytes);
        if blocks == 0 {
            return Ok(Extent::default());
        }
        let fits = |it: &(usize, &mut Space)| it.1.largest_run() >= blocks;
        let devices = self.spaces.iter_mut().enumerate().filter(fits);
        // Of equals the first.
        let device =
            devices.max_by_key(|(index, space)| (space.free_blocks(), core::cmp::Reverse(*index)));
        let found = device.and_then(|(index, space)| Some((index, space.allocate(blocks)?)));
        let Some((device, start)) = found else {
            return Err(NoRoom {
                wanted_bytes: blocks.saturating_mul(u64::from(BLOCK_BYTES)),
                largest_bytes: self.largest_free_bytes(),
                free_bytes: self.free_bytes(),
                waiting_bytes: self.waiting_bytes(),
            });
        };
        Ok(Extent {
            device: u16::try_from(device).expect("invariant: few devices"),
            start,
            blocks,
        })
    }

    /// Gives an extent back that no object was inserted for.
    pub fn release(&mut self, extent: Extent) {
        if extent.blocks > 0 {
            self.spaces[usize::from(extent.device)].release(extent.start, extent.blocks);
        }
    }

    /// Whether the catalogue would have room if objects of these names, content types and sizes were
    /// inserted; to be asked before their data is written.
    ///
    /// # Errors
    /// It would not, or there is no number for it.
    pub fn check_catalogue<'a>(
        &self,
        added: impl Iterator<Item = (&'a str, &'a str, u64)>,
    ) -> Result<(), CommitError> {
        let entries = self.entries.values().map(Entry::encoded_bytes);
        let mut needed_bytes: u64 = entries.sum();
        for (name, content_type, size_bytes) in added {
            if let Some(old) = self.entries.get(name) {
                needed_bytes = needed_bytes.saturating_sub(old.encoded_bytes());
                needed_bytes += RETIRED_BYTES * u64::from(old.extent.blocks > 0);
            }
            needed_bytes = needed_bytes.saturating_add(entry_bytes(name, content_type, size_bytes));
        }
        let geometry = self.base.geometry();
        let needed_bytes = catalogue_bytes(geometry, needed_bytes, self.retired.len());
        self.check_next(needed_bytes)
    }

    /// # Errors
    /// The next catalogue may not have this size, or there is none.
    fn check_next(&self, needed_bytes: u64) -> Result<(), CommitError> {
        if self.next_sequence() > SEQUENCE_MAX {
            return Err(CommitError::Last);
        }
        let area_bytes = self.base.geometry().area_bytes();
        if needed_bytes > area_bytes {
            return Err(CommitError::Full(CatalogueFull {
                needed_bytes,
                area_bytes,
            }));
        }
        Ok(())
    }

    /// Adds an object, or a new version of the one of that name. Its `added` is set here.
    ///
    /// # Panics
    /// If its fields contradict each other: names and types are to be checked before.
    pub fn insert(&mut self, mut entry: Entry) {
        assert!(
            is_sound(&entry),
            "an object that no store may have: {entry:?}"
        );
        entry.added = self.next_sequence();
        self.has_changed = true;
        if let Some(old) = self.entries.insert(entry.name.clone(), entry) {
            self.retire(&old);
        }
    }

    /// Removes an object; whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        let Some(old) = self.entries.remove(name) else {
            return false;
        };
        self.has_changed = true;
        self.retire(&old);
        true
    }

    fn retire(&mut self, old: &Entry) {
        if old.added == self.next_sequence() {
            // No catalogue has it.
            self.release(old.extent);
        } else if old.extent.blocks > 0 {
            self.retired.push(Retired {
                extent: old.extent,
                since: self.next_sequence(),
            });
        }
    }

    /// Whether an object was inserted or removed.
    #[must_use]
    pub const fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// The changed catalogue, to be written. All data of inserted objects was written, though not
    /// flushed.
    ///
    /// # Errors
    /// It does not fit its area, or there is no number for it.
    pub fn commit(self) -> Result<Commit, CommitError> {
        let entries = self.entries.values().map(Entry::encoded_bytes);
        let geometry = self.base.geometry();
        self.check_next(catalogue_bytes(geometry, entries.sum(), self.retired.len()))?;
        let sequence = self.next_sequence();
        let entries: Vec<_> = self.entries.into_values().collect();
        let geometry = geometry.clone();
        let catalogue = Catalogue::new(geometry, sequence, entries, self.retired);
        let commit = Commit::new(catalogue);
        #[cfg(test)]
        let commit = commit.with_fault(self.fault);
        Ok(commit)
    }
}
