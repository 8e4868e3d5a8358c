//! The table of open ranges of namespaces. Bounded by its length.

use super::NamespaceFormat;
use crate::{DiskError, FileIndex};

/// Bits of a generation; those above say which of several controllers has the range
/// ([`super::QueuePairs`]).
pub(super) const GENERATION_BITS: u32 = 10;
/// The bits themselves.
const GENERATION_MASK: u16 = (1 << GENERATION_BITS) - 1;

/// An open range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OpenRange {
    /// Number of the controller.
    pub(super) controller: u16,
    pub(super) namespace_id: u32,
    pub(super) format: NamespaceFormat,
    /// Its first block in the namespace.
    pub(super) first_block: u64,
    /// Bytes of it; the last block may be used in part.
    pub(super) length_bytes: u64,
}

impl OpenRange {
    /// Bytes from its start to the end of its last block.
    pub(super) fn whole_bytes(&self) -> u64 {
        self.length_bytes
            .next_multiple_of(self.format.block_bytes().into())
    }
}

/// All open ranges.
#[derive(Debug)]
pub(super) struct Ranges {
    /// Generation and range of each index; closing increments the generation.
    entries: Vec<(u16, Option<OpenRange>)>,
    free: Vec<u16>,
}

impl Ranges {
    /// A table of `count` entries, at most 65,536.
    pub(super) fn new(count: u32) -> Self {
        let last = u16::try_from(count - 1).expect("invariant: at most 65,536 files");
        Self {
            entries: vec![(0, None); count as usize],
            free: (0..=last).rev().collect(),
        }
    }

    pub(super) fn insert(&mut self, range: OpenRange) -> Result<FileIndex, DiskError> {
        let index = self.free.pop().ok_or(DiskError::TableFull)?;
        let entry = &mut self.entries[usize::from(index)];
        entry.1 = Some(range);
        Ok(FileIndex::new(index, entry.0))
    }

    pub(super) fn find(&self, file: FileIndex) -> Option<OpenRange> {
        let (generation, range) = self.entries.get(usize::from(file.table_index()))?;
        range.filter(|_| *generation == file.generation())
    }

    /// Forgets a range; one that is not open is ignored.
    pub(super) fn remove(&mut self, file: FileIndex) {
        if self.find(file).is_some() {
            let index = file.table_index();
            let generation = (file.generation() + 1) & GENERATION_MASK;
            self.entries[usize::from(index)] = (generation, None);
            self.free.push(index);
        }
    }
}
