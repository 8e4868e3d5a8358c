//! Reads the catalogue of a store through queue pairs, and waits for what it reads.
//!
//! Each read ends, by the driver's timeouts if by nothing else. Bounded by [`READ_SLOTS`] reads in progress.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use diskmap::nvme::NamespaceRange;
use diskmap::{Completion, Disk as _, DiskError, FileIndex, FileLimits, FileSource, Read};
use memory::{Arena, ArenaConfig, ArenaError, PageKind};
use store::raw::{Blocks, RawError};

use super::END_MAX;
use super::platform::{LOOK_PAUSE, Platform, QueuePairsOf};

/// Reads in progress.
pub(super) const READ_SLOTS: u16 = 8;
/// Between looks for completions.
const READ_PAUSE: Duration = Duration::from_micros(50);

/// The slots that the catalogue is read into.
pub(super) fn slots() -> Result<Arena, ArenaError> {
    Arena::new(ArenaConfig {
        pages: PageKind::Ordinary,
        ..ArenaConfig::new(READ_SLOTS.into())
    })
}

/// See the module.
pub(super) struct Reader<'a, P: Platform> {
    pub(super) platform: &'a P,
    pub(super) arena: Arena,
    pub(super) disk: QueuePairsOf<P>,
}

impl<P: Platform> Reader<'_, P> {
    fn read(
        &mut self,
        file: FileIndex,
        limits: FileLimits,
        offset_bytes: u64,
        length: usize,
    ) -> Result<Vec<u8>, DiskError> {
        let end = offset_bytes.saturating_add(u64::try_from(length).unwrap_or(u64::MAX));
        let end = end.min(limits.size_bytes).max(offset_bytes);
        let mut bytes = vec![0; usize::try_from(end - offset_bytes).unwrap_or(usize::MAX)];
        let mut next = offset_bytes;
        let mut failed = None;
        while (next < end && failed.is_none()) || self.disk.in_flight() > 0 {
            while next < end && failed.is_none() {
                let Some(slot) = self.arena.reserve() else {
                    break;
                };
                let left = end - next;
                let length_bytes = u32::try_from(left)
                    .unwrap_or(u32::MAX)
                    .min(limits.read_bytes_max)
                    .next_multiple_of(limits.block_bytes);
                let read = Read {
                    file,
                    offset_bytes: next,
                    length_bytes,
                    slot,
                    token: next,
                };
                if let Err(refused) = self.disk.read(&mut self.arena, read) {
                    self.arena.release(refused.slot);
                    break;
                }
                next += u64::from(length_bytes);
            }
            let now = self.platform.now();
            self.disk.sqsync(now)?;
            let mut sink = |arena: &mut Arena, completion: Completion| {
                let slot = match completion.result {
                    Ok(slot) => {
                        let start = usize::try_from(completion.token - offset_bytes);
                        let target = bytes.get_mut(start.unwrap_or(usize::MAX)..);
                        let target = target.unwrap_or_default();
                        // The last block may reach beyond what is wanted.
                        let count = target.len().min(arena.payload(&slot).len());
                        target[..count].copy_from_slice(&arena.payload(&slot)[..count]);
                        slot.into_free()
                    }
                    Err((slot, error)) => {
                        failed = Some(error);
                        slot
                    }
                };
                arena.release(slot);
            };
            let most = READ_SLOTS.into();
            let count = self
                .disk
                .consume_completions(now, &mut self.arena, most, &mut sink);
            if count == 0 {
                self.platform.wait(READ_PAUSE);
            }
        }
        failed.map_or(Ok(bytes), Err)
    }

    /// Has the controllers delete the queues, before their memory is given back.
    pub(super) fn end(mut self) {
        let end = self.platform.now() + END_MAX;
        while !self.disk.detach(self.platform.now()) && self.platform.now() < end {
            self.platform.wait(LOOK_PAUSE);
        }
    }
}

/// A namespace to find a catalogue on.
pub(super) struct Namespace<'a, 'b, P: Platform> {
    name: PathBuf,
    reader: &'a RefCell<Reader<'b, P>>,
    file: FileIndex,
    limits: FileLimits,
}

impl<'a, 'b, P: Platform> Namespace<'a, 'b, P> {
    pub(super) fn open(
        reader: &'a RefCell<Reader<'b, P>>,
        name: PathBuf,
        range: NamespaceRange,
    ) -> Result<Self, RawError> {
        let opened = reader.borrow_mut().disk.open(FileSource::Namespace(range));
        let (file, limits) = opened.map_err(|error| failed(&name, error))?;
        Ok(Self {
            name,
            reader,
            file,
            limits,
        })
    }
}

impl<P: Platform> Blocks for Namespace<'_, '_, P> {
    fn path(&self) -> &Path {
        &self.name
    }

    fn size_bytes(&self) -> u64 {
        self.limits.size_bytes
    }

    fn read(&self, offset_bytes: u64, length: usize) -> Result<Vec<u8>, RawError> {
        let mut reader = self.reader.borrow_mut();
        let bytes = reader.read(self.file, self.limits, offset_bytes, length);
        bytes.map_err(|error| failed(&self.name, error))
    }
}

fn failed(name: &Path, error: DiskError) -> RawError {
    RawError::Io {
        path: name.to_owned(),
        error: match error {
            DiskError::Io(errno) => io::Error::from_raw_os_error(errno),
            error => io::Error::other(error.to_string()),
        },
    }
}
