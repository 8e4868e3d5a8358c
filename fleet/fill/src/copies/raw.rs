//! A raw store, which `atlas serve` serves: objects on devices without a file system.
//!
//! Copies are made in a staging folder, since only there a fetch that broke off can be gone on with. Whole ones are added
//! by the code of `atlas store add` (crate `writer`), as many together as wait: a change of a store writes its whole list of
//! objects. A server that runs finds the new list by itself, and sends objects of the old one to their end: their space is
//! used again only when no server reads it.
//!
//! **The store belongs to the filler**: what is in it and not wanted is removed. So it refuses one with objects that it did
//! not fill, unless it is told to adopt it. `atlas store` may be used beside it; whoever has the writer's lock is waited for.
//! Bounded by [`BATCH_MAX`] objects of a change.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use store::raw::{Access, RawError, RawStore, names_in};
use volume::{Editor, Entry, Extent, Time};
use writer::{WriteError, Writing};

use super::staging::Staging;
use crate::fault::{Fault, Kind};
use crate::origin::is_name;
use crate::partial::Finished;
use crate::plan::Name;
use crate::stamp::Stamp;

/// Most objects of one change.
const BATCH_MAX: usize = 256;
/// How often, and how long apart, room is looked for that a server has not given up yet: it looks for a new list of
/// objects each second.
const ROOM_ATTEMPTS: u32 = 6;
const ROOM_PAUSE: Duration = Duration::from_millis(500);

/// Where an answer goes.
type Reply = Sender<Result<(), Fault>>;

/// What the thread is to do; the answer goes back.
#[derive(Debug)]
enum Order {
    Place(Finished, String, Reply),
    Remove(Vec<Name>, Reply),
}

/// The store.
#[derive(Debug)]
pub struct RawTarget {
    path: PathBuf,
    staging: Staging,
    free_bytes: Arc<AtomicU64>,
    orders: Sender<Order>,
}

impl RawTarget {
    /// Opens it; `adopt`: also if it has objects that are not the filler's.
    ///
    /// # Errors
    /// Why it cannot be the target, and what to do.
    pub fn open(path: &Path, staging: &Path, adopt: bool) -> Result<Self, String> {
        let failed = |error: WriteError| format!("target {}: {error}", path.display());
        let staging = Staging::open(staging)?;
        let (writing, editor) = Writing::open(path).map_err(failed)?;
        let is_used = editor.names_from("").next().is_some();
        let free_bytes = Arc::new(AtomicU64::new(editor.free_bytes() + editor.waiting_bytes()));
        drop(writing);
        let name = path.display().to_string();
        if is_used && !staging.has_filled(&name) && !adopt {
            return Err(format!(
                "target {name}: it has objects that atlas-fill did not put there, and would remove what the origin does not \
                 have; name an empty store, or say --adopt once"
            ));
        }
        staging.note_filled(&name)?;
        let (orders, received) = channel();
        let (store, free) = (path.to_owned(), Arc::clone(&free_bytes));
        std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || carry_out(&store, &received, &free))
            .map_err(|error| format!("threads: {error}"))?;
        Ok(Self {
            path: path.to_owned(),
            staging,
            free_bytes,
            orders,
        })
    }

    /// What is in a store, the oldest first.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn look(path: &Path) -> Result<Vec<(Name, Stamp)>, String> {
        let failed = |error: RawError| format!("target {}: {error}", path.display());
        let raw =
            RawStore::open(&names_in(path), Access::Read { direct: false }).map_err(failed)?;
        let loaded = raw.load_locked().map_err(failed)?;
        raw.unlock(loaded.catalogue.sequence());
        let entries = loaded.catalogue.entries().iter();
        let mut entries: Vec<&Entry> = entries.filter(|entry| is_name(&entry.name)).collect();
        entries.sort_by_key(|entry| entry.added);
        let pair = |entry: &Entry| {
            let stamp = Stamp {
                size_bytes: entry.size_bytes,
                seconds: entry.modified.seconds,
                nanos: entry.modified.nanos,
            };
            (Name::from(&*entry.name), stamp)
        };
        Ok(entries.into_iter().map(pair).collect())
    }

    /// The folder of partial objects.
    #[must_use]
    pub fn partial_folder(&self) -> &Path {
        self.staging.partial_folder()
    }

    /// Bytes that are free, or will be when no server reads them any more.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free_bytes.load(Ordering::Relaxed)
    }

    /// What is there, the oldest first.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn inventory(&self) -> Result<Vec<(Name, Stamp)>, Fault> {
        Self::look(&self.path).map_err(|text| Fault::new(Kind::Local, text))
    }

    /// Makes a copy an object. It is there after a power cut, too.
    ///
    /// # Errors
    /// There is no room, or the store cannot be changed.
    pub fn place(&self, finished: Finished, name: &str) -> Result<(), Fault> {
        self.order(|reply| Order::Place(finished, name.to_owned(), reply))
    }

    /// Removes objects, together. It is no error if one is not there.
    ///
    /// # Errors
    /// The store cannot be changed.
    pub fn remove(&self, names: &[Name]) -> Result<(), Fault> {
        self.order(|reply| Order::Remove(names.to_vec(), reply))
    }

    fn order(&self, make: impl FnOnce(Reply) -> Order) -> Result<(), Fault> {
        let (reply, answer) = channel();
        let ended = |_| Fault::new(Kind::Local, "the thread that changes the store has ended");
        self.orders.send(make(reply)).map_err(|_| ended(()))?;
        answer.recv().map_err(|_| ended(()))?
    }
}

/// The thread: takes what waits, and makes one change of it.
fn carry_out(store: &Path, orders: &Receiver<Order>, free_bytes: &AtomicU64) {
    while let Ok(first) = orders.recv() {
        let mut batch = Batch::default();
        batch.take(first);
        while batch.len() < BATCH_MAX
            && let Ok(next) = orders.try_recv()
        {
            batch.take(next);
        }
        let changed = batch.change(store);
        if let Ok(free) = &changed {
            free_bytes.store(*free, Ordering::Relaxed);
        }
        batch.answer(changed.err().as_ref());
    }
}

/// Orders that are carried out together.
#[derive(Debug, Default)]
struct Batch {
    /// Answers, which wait until the store's lock is given up.
    answers: Vec<(Reply, Result<(), Fault>)>,
    placed: Vec<(Finished, String, Reply)>,
    removed: Vec<(Vec<Name>, Reply)>,
}

impl Batch {
    fn len(&self) -> usize {
        self.placed.len() + self.removed.len()
    }

    fn take(&mut self, order: Order) {
        match order {
            Order::Place(finished, name, reply) => self.placed.push((finished, name, reply)),
            Order::Remove(names, reply) => self.removed.push((names, reply)),
        }
    }

    /// Answers everything; what was not done, by this fault.
    fn answer(self, fault: Option<&Fault>) {
        for (reply, answer) in self.answers {
            let _ = reply.send(answer);
        }
        let Some(fault) = fault else {
            return;
        };
        for (finished, _, reply) in self.placed {
            finished.discard();
            let _ = reply.send(Err(fault.clone()));
        }
        for (_, reply) in self.removed {
            let _ = reply.send(Err(fault.clone()));
        }
    }

    /// Changes the store, and notes the answers of what was done. Returns the bytes that are free.
    ///
    /// # Errors
    /// Nothing was done that has no answer.
    fn change(&mut self, store: &Path) -> Result<u64, Fault> {
        let failed = |error: WriteError| fault(store, &error);
        let (mut writing, mut editor) = Writing::open(store).map_err(failed)?;
        for (names, _) in &self.removed {
            for name in names {
                editor.remove(name);
            }
        }
        // By itself, so that what is added may have the space soon.
        if editor.has_changed() {
            editor = writing.commit(editor).map_err(failed)?;
        }
        let removed = self.removed.drain(..);
        self.answers
            .extend(removed.map(|(_, reply)| (reply, Ok(()))));
        let (mut editor, extents) = self.find_room(&mut writing, editor, store)?;
        for ((finished, name, _), extent) in self.placed.iter().zip(extents) {
            editor.insert(add(&mut writing, finished, name, extent).map_err(
                |error| match error {
                    AddError::Write(error) => failed(error),
                    AddError::Read(fault) => fault,
                },
            )?);
        }
        if editor.has_changed() {
            editor = writing.commit(editor).map_err(failed)?;
        }
        for (finished, _, reply) in self.placed.drain(..) {
            finished.discard();
            self.answers.push((reply, Ok(())));
        }
        Ok(editor.free_bytes() + editor.waiting_bytes())
    }

    /// Finds room for all; who finds none is refused.
    fn find_room(
        &mut self,
        writing: &mut Writing,
        mut editor: Editor,
        store: &Path,
    ) -> Result<(Editor, Vec<Extent>), Fault> {
        let mut attempts = 0;
        loop {
            let placed = self.placed.iter();
            let added =
                placed.map(|(finished, name, _)| (name.as_str(), "", finished.stamp.size_bytes));
            if let Err(error) = editor.check_catalogue(added) {
                return Err(Fault::new(
                    Kind::NoSpace,
                    format!("{}: {error}", store.display()),
                ));
            }
            let sizes: Vec<u64> = self.placed.iter().map(|it| it.0.stamp.size_bytes).collect();
            let found = writing
                .allocate(editor, &sizes)
                .map_err(|error| fault(store, &error))?;
            let homeless = match found {
                Ok(found) => return Ok(found),
                Err((same, homeless)) => {
                    editor = same;
                    homeless
                }
            };
            // A server may be about to give up what was removed.
            if homeless.error.waiting_bytes > 0 && attempts < ROOM_ATTEMPTS {
                attempts += 1;
                std::thread::sleep(ROOM_PAUSE);
                continue;
            }
            let (finished, name, reply) = self.placed.remove(homeless.index);
            finished.discard();
            let (wanted, largest) = (homeless.error.wanted_bytes, homeless.error.largest_bytes);
            let text = format!(
                "{}: {name}: no room for {wanted} bytes in one piece: the largest free run has {largest}",
                store.display()
            );
            let fault = Fault::new(Kind::NoSpace, text);
            self.answers.push((reply, Err(fault)));
        }
    }
}

/// Why a copy did not become an object.
enum AddError {
    Write(WriteError),
    Read(Fault),
}

impl From<WriteError> for AddError {
    fn from(error: WriteError) -> Self {
        Self::Write(error)
    }
}

/// Writes a copy's content to its place.
fn add(
    writing: &mut Writing,
    finished: &Finished,
    name: &str,
    extent: Extent,
) -> Result<Entry, AddError> {
    let failed = |error: &std::io::Error| AddError::Read(Fault::of_io(name, error));
    let mut file = File::open(&finished.path).map_err(|error| failed(&error))?;
    let size_bytes = finished.stamp.size_bytes;
    let written = writing.write_content(extent, size_bytes, |target| {
        let mut filled = 0;
        while filled < target.len() {
            match file.read(&mut target[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(&error)),
            }
        }
        Ok::<_, AddError>(filled)
    });
    let cut = || failed(&std::io::Error::from(ErrorKind::UnexpectedEof));
    let (runs, tag) = written?.ok_or_else(cut)?;
    Ok(Entry {
        name: name.into(),
        content_type: "".into(),
        extent,
        size_bytes,
        modified: Time {
            seconds: finished.stamp.seconds,
            nanos: finished.stamp.nanos,
        },
        added: 0,
        tag,
        runs: runs.into(),
    })
}

fn fault(store: &Path, error: &WriteError) -> Fault {
    Fault::new(Kind::Local, format!("{}: {error}", store.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use store::raw::Device;
    use tempfile::TempDir;
    use volume::{BLOCK_BYTES, Catalogue, Commit, Geometry, StoreId};
    use writer::Transfer;

    use super::*;
    use crate::partial::Partial;

    /// An image with a store of so many blocks.
    fn make(folder: &TempDir, blocks: u64) -> PathBuf {
        let path = folder.path().join("store");
        let image = File::create(&path).unwrap();
        image.set_len(blocks * u64::from(BLOCK_BYTES)).unwrap();
        let devices = vec![Device::open(&path, Access::Write).unwrap()];
        let geometry = Geometry::new(StoreId([7; 16]), vec![blocks], 16).unwrap();
        let transfer = Transfer::new(&devices).unwrap();
        let raw = RawStore::unmounted(devices);
        let lock = raw.lock_for_making().unwrap();
        let mut writing = Writing::new(raw, transfer, lock);
        writing
            .carry_out(Commit::first(Catalogue::empty(geometry)))
            .unwrap();
        path
    }

    fn finished(target: &RawTarget, name: &str, content: &[u8]) -> Finished {
        let size_bytes = u64::try_from(content.len()).unwrap();
        let stamp = Stamp::new(size_bytes, 1_700_000_000, Some(name));
        let folder = target.partial_folder();
        let mut partial = Partial::create(folder, name, stamp, None, 1 << 30).unwrap();
        partial.file().write_all_at(content, 0).unwrap();
        if !content.is_empty() {
            partial.mark_done(0).unwrap();
        }
        partial.finish().unwrap()
    }

    fn put(target: &RawTarget, name: &str, content: &[u8]) -> Result<(), Fault> {
        target.place(finished(target, name, content), name)
    }

    /// What the store has, read from the image.
    fn content(path: &Path, name: &str) -> Vec<u8> {
        let raw = RawStore::open(&names_in(path), Access::Read { direct: false }).unwrap();
        let loaded = raw.load().unwrap();
        let entry = loaded.catalogue.find(name).unwrap();
        let start = entry.extent.start * u64::from(BLOCK_BYTES);
        let mut bytes = vec![0; usize::try_from(entry.size_bytes).unwrap()];
        File::open(path)
            .unwrap()
            .read_exact_at(&mut bytes, start)
            .unwrap();
        bytes
    }

    fn names(path: &Path) -> Vec<String> {
        let found = RawTarget::look(path).unwrap();
        let mut names: Vec<String> = found
            .into_iter()
            .map(|(name, _)| name.to_string())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn copies_become_objects_with_their_versions_and_go_again() {
        let folder = TempDir::new().unwrap();
        let path = make(&folder, 4096);
        let staging = folder.path().join("staging");
        let target = RawTarget::open(&path, &staging, false).unwrap();
        // Some at once: several objects of one change.
        std::thread::scope(|scope| {
            for index in 0..8_u8 {
                let target = &target;
                scope.spawn(move || {
                    let name = format!("a/{index}");
                    put(target, &name, &vec![index; 10_000 * usize::from(index)]).unwrap();
                });
            }
        });
        assert_eq!(names(&path).len(), 8);
        assert_eq!(content(&path, "a/7"), vec![7; 70_000]);
        let inventory = target.inventory().unwrap();
        let stamp = Stamp::new(70_000, 1_700_000_000, Some("a/7"));
        assert!(inventory.contains(&("a/7".into(), stamp)), "{inventory:?}");
        put(&target, "a/7", b"another").unwrap();
        assert_eq!(content(&path, "a/7"), b"another");
        target
            .remove(&["a/0".into(), "a/7".into(), "absent".into()])
            .unwrap();
        assert_eq!(names(&path).len(), 6);
        assert_eq!(
            std::fs::read_dir(target.partial_folder()).unwrap().count(),
            0
        );
        drop(target);
        assert!(RawTarget::open(&path, &staging, false).is_ok());
        // By another folder it is not known.
        let other = folder.path().join("other");
        let error = RawTarget::open(&path, &other, false).unwrap_err();
        assert!(error.contains("--adopt"), "{error}");
        assert!(RawTarget::open(&path, &other, true).is_ok());
    }

    #[test]
    fn what_finds_no_room_is_refused_and_the_rest_is_added() {
        let folder = TempDir::new().unwrap();
        let path = make(&folder, 512);
        let target = RawTarget::open(&path, &folder.path().join("staging"), false).unwrap();
        let free_bytes = target.free_bytes();
        let large = vec![1; usize::try_from(free_bytes).unwrap() + 1];
        let fault = put(&target, "large", &large).unwrap_err();
        assert_eq!(fault.kind, Kind::NoSpace, "{fault}");
        put(&target, "small", b"x").unwrap();
        assert_eq!(names(&path), ["small"]);
        assert_eq!(target.free_bytes(), free_bytes - u64::from(BLOCK_BYTES));
    }

    #[test]
    fn a_store_that_another_changes_is_an_error_that_passes() {
        let folder = TempDir::new().unwrap();
        let path = make(&folder, 512);
        let target = RawTarget::open(&path, &folder.path().join("staging"), false).unwrap();
        let (other, _) = Writing::open(&path).unwrap();
        let fault = put(&target, "a", b"x").unwrap_err();
        assert_eq!(fault.kind, Kind::Local, "{fault}");
        drop(other);
        put(&target, "a", b"x").unwrap();
        assert_eq!(names(&path), ["a"]);
    }

    #[test]
    fn what_is_no_store_is_refused() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let error = RawTarget::open(&path, &folder.path().join("staging"), false).unwrap_err();
        assert!(error.starts_with("target "), "{error}");
    }
}
