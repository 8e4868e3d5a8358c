//! Changes raw stores (`docs/develop/store-format.md`): opens them to be written, and carries out what `volume` decides.
//!
//! Who changes a store holds its writer's lock, and writes through `diskmap`. Until the last step of a change is durable the
//! old catalogue counts: whoever stops this process, or the power, changes nothing. It refuses to write where that could
//! destroy something that is not known. Bounded by the slots of [`Transfer`], and by the catalogue in memory.

#![forbid(unsafe_code)]

mod transfer;

use std::path::Path;

use store::raw::{Access, RawError, RawStore, WriterLock, names_in};
use volume::{
    BLOCK_BYTES, Catalogue, Commit, ContentDigest, ContentTag, Editor, Extent, NoRoom, Readers,
    RunDigest, Step,
};

pub use transfer::Transfer;

/// Why a store was not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// It cannot be, and will not be the next time. The text ends in what the operator can do.
    #[error("{0}")]
    Refused(String),
    /// Its devices cannot be opened, locked or read.
    #[error(transparent)]
    Raw(#[from] RawError),
    /// It broke off.
    #[error("{0}")]
    Broken(String),
}

/// An object that finds no room.
#[derive(Clone, Debug)]
pub struct Unplaced {
    /// Which of those that were asked for.
    pub index: usize,
    /// What there is.
    pub error: NoRoom,
}

/// The editor again, and places for all objects, or one that finds none.
pub type Allocated = Result<(Editor, Vec<Extent>), (Editor, Unplaced)>;

/// A store that is open to be changed.
#[derive(Debug)]
pub struct Writing {
    /// Its devices.
    pub raw: RawStore,
    /// Their blocks.
    pub transfer: Transfer,
    /// Held until all is written.
    _lock: WriterLock,
}

impl Writing {
    /// Holds the lock of a store that was opened otherwise.
    #[must_use]
    pub fn new(raw: RawStore, transfer: Transfer, lock: WriterLock) -> Self {
        Self {
            raw,
            transfer,
            _lock: lock,
        }
    }

    /// Opens it, and brings devices up to date that a power cut left behind. It refuses to write where that
    /// could destroy something that is not known: the newest catalogue, or what a reader of it is sending.
    ///
    /// # Errors
    /// The devices are no store, are being changed, or are damaged.
    pub fn open(store: &Path) -> Result<(Self, Editor), WriteError> {
        let raw = RawStore::open(&names_in(store), Access::Write)?;
        let lock = raw.lock_for_writing()?;
        let mut writing = Self {
            transfer: Transfer::new(raw.devices())?,
            raw,
            _lock: lock,
        };
        let loaded = writing.raw.load()?;
        if let Some(error) = loaded.damage {
            return Err(WriteError::Refused(format!(
                "{}: the newest catalogue is damaged: {error}; {SAVE}",
                writing.raw.name()
            )));
        }
        if let Some(fault) = loaded.unknown {
            return Err(WriteError::Refused(format!(
                "{fault}; it may name a newer catalogue, which would be lost; {SAVE}"
            )));
        }
        let sequence = loaded.catalogue.sequence();
        if writing.raw.has_reader_after(sequence)? {
            return Err(WriteError::Refused(format!(
                "{}: a server reads a newer catalogue than {sequence}, the newest that can be read; see which copies are \
                 damaged (atlas store verify)",
                writing.raw.name()
            )));
        }
        if !loaded.lagging.is_empty() {
            let repair = Commit::repair(loaded.catalogue.clone(), &loaded.lagging);
            writing.carry_out(repair)?;
        }
        let editor = Editor::new(loaded.catalogue, &writing.readers()?);
        Ok((writing, editor))
    }

    fn readers(&self) -> Result<Readers, WriteError> {
        Ok(self.raw.readers()?)
    }

    /// Makes the change, and begins the next one.
    ///
    /// # Errors
    /// It does not fit, or a write failed: then the store is as it was.
    pub fn commit(&mut self, editor: Editor) -> Result<Editor, WriteError> {
        let commit = editor.commit();
        let commit = commit.map_err(|error| WriteError::Broken(error.to_string()))?;
        let catalogue = self.carry_out(commit)?;
        Ok(Editor::new(catalogue, &self.readers()?))
    }

    /// Does what a commit consists of.
    ///
    /// # Errors
    /// A write failed: then the store is as it was.
    pub fn carry_out(&mut self, mut commit: Commit) -> Result<Catalogue, WriteError> {
        loop {
            match commit.next_step() {
                Step::Write {
                    device,
                    block,
                    bytes,
                } => self.transfer.write_blocks(device, block, bytes)?,
                Step::Flush => self.transfer.flush()?,
                Step::Done => return Ok(commit.into_catalogue()),
            }
        }
    }

    /// Makes space free that waits for nothing but another catalogue, if nothing is changed yet.
    ///
    /// # Errors
    /// As of [`Writing::commit`].
    pub fn free_space(&mut self, editor: Editor) -> Result<Editor, WriteError> {
        if !editor.has_changed() && editor.would_free(&self.readers()?) {
            return self.commit(editor);
        }
        Ok(editor)
    }

    /// Space for objects of these sizes, the largest first.
    ///
    /// # Errors
    /// One finds no room in one piece; or as of [`Writing::commit`].
    pub fn allocate(&mut self, mut editor: Editor, sizes: &[u64]) -> Result<Allocated, WriteError> {
        if let Ok(extents) = try_allocate(&mut editor, sizes) {
            return Ok(Ok((editor, extents)));
        }
        // Space of what was removed before may wait for another catalogue only.
        let mut editor = self.free_space(editor)?;
        Ok(match try_allocate(&mut editor, sizes) {
            Ok(extents) => Ok((editor, extents)),
            Err(unplaced) => Err((editor, unplaced)),
        })
    }

    /// Writes an object's content, as `read` fills buffers with it: 0 is the end. Returns what stands for it, or `None` if it
    /// ended too early.
    ///
    /// # Errors
    /// What `read` said, or a write that failed.
    pub fn write_content<E: From<WriteError>>(
        &mut self,
        extent: Extent,
        size_bytes: u64,
        mut read: impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<Option<(Vec<RunDigest>, ContentTag)>, E> {
        let mut digest = ContentDigest::new();
        let mut left = size_bytes;
        let mut place = extent.start * u64::from(BLOCK_BYTES);
        while left > 0 {
            let mut filled = 0;
            place += self.transfer.write(extent.device, place, |target| {
                let wanted = usize::try_from(left).unwrap_or(usize::MAX);
                let wanted = wanted.min(target.len());
                filled = read(&mut target[..wanted])?;
                digest.update(&target[..filled]);
                Ok::<_, E>(filled)
            })?;
            if filled == 0 {
                return Ok(None);
            }
            left -= u64::try_from(filled).unwrap_or(u64::MAX);
        }
        Ok(Some(digest.finish()))
    }
}

/// What is to be done with a store that is damaged.
const SAVE: &str = "save what is there (atlas store get), and make the store anew";

fn try_allocate(editor: &mut Editor, sizes: &[u64]) -> Result<Vec<Extent>, Unplaced> {
    let mut order: Vec<_> = (0..sizes.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(sizes[*index]));
    let mut extents = vec![Extent::default(); sizes.len()];
    for (done, index) in order.iter().enumerate() {
        match editor.allocate(sizes[*index]) {
            Ok(extent) => extents[*index] = extent,
            Err(error) => {
                for index in &order[..done] {
                    editor.release(extents[*index]);
                }
                return Err(Unplaced {
                    index: *index,
                    error,
                });
            }
        }
    }
    Ok(extents)
}
