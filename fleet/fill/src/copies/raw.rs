//! A raw store, which `atlas serve` serves: objects on devices without a file system.
//!
//! Copies are made in a staging folder, since only there a fetch that broke off can be gone on with. Whole ones are added
//! by the code of `atlas store add` (crate `writer`), as many together as wait: a change of a store writes its whole list of
//! objects. A server that runs finds the new list by itself, and sends objects of the old one to their end: their space is
//! used again only when no server reads it.
//!
//! **The store belongs to the filler**: what is in it and not wanted is removed. So it refuses one with objects that it did
//! not fill, unless it is told to adopt it; it knows stores by their ids. `atlas store` may be used beside it. Who has the
//! writer's lock is waited for, at the start for as long as it takes, and then for [`PATIENCE`]: after that the copies are
//! kept, and tried again as whole ones later. Bounded by [`BATCH_MAX`] objects of a change.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use store::raw::{Access, RawError, RawStore, names_in};
use volume::{Editor, Entry, Extent, Time};
use writer::{WriteError, Writing};

use super::Inventory;
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

/// How often, and how long apart, a store is opened that another process changes.
#[derive(Clone, Copy, Debug)]
struct Patience {
    attempts: u32,
    pause: Duration,
}

/// A change of `atlas store` that adds little takes less.
const PATIENCE: Patience = Patience {
    attempts: 10,
    pause: Duration::from_millis(500),
};

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
    room: Arc<Mutex<Room>>,
    orders: Sender<Order>,
}

/// What is free.
#[derive(Clone, Copy, Debug)]
struct Room {
    /// Bytes that are free, or will be when no server reads them any more.
    free_bytes: u64,
    /// The largest object that there may be a place for, bytes.
    largest_bytes: u64,
}

impl Room {
    fn of(editor: &Editor) -> Self {
        let waiting_bytes = editor.waiting_bytes();
        let free_bytes = editor.free_bytes().saturating_add(waiting_bytes);
        let largest_bytes = match waiting_bytes {
            0 => editor.largest_free_bytes(),
            // What waits may lie beside what is free.
            _ => free_bytes,
        };
        Self {
            free_bytes,
            largest_bytes,
        }
    }
}

impl RawTarget {
    /// Opens it; `adopt`: also if it has objects that are not the filler's. While another process changes it, it waits, and
    /// `tell` gets why, once.
    ///
    /// # Errors
    /// Why it cannot be the target, and what to do.
    pub fn open(
        path: &Path,
        staging: &Path,
        adopt: bool,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Self, String> {
        Self::open_with(path, staging, adopt, tell, PATIENCE)
    }

    fn open_with(
        path: &Path,
        staging: &Path,
        adopt: bool,
        tell: &mut dyn FnMut(&str),
        patience: Patience,
    ) -> Result<Self, String> {
        let failed = |error: WriteError| format!("target {}: {error}", path.display());
        let staging = Staging::open(staging)?;
        let mut is_told = false;
        let (writing, editor) = open_to_change(path, |error| {
            if !std::mem::replace(&mut is_told, true) {
                tell(&format!("target {}: {error}: waiting", path.display()));
            }
            std::thread::sleep(patience.pause);
            true
        })
        .map_err(failed)?;
        let is_used = editor.names_from("").next().is_some();
        let room = Arc::new(Mutex::new(Room::of(&editor)));
        let id = editor.base().geometry().id.to_string();
        drop(writing);
        if is_used && !staging.has_filled(&id) && !adopt {
            let name = path.display();
            return Err(format!(
                "target {name}: it has objects that atlas-fill did not put there, and would remove what the origin does not \
                 have; name an empty store, or say --adopt once"
            ));
        }
        staging.note_filled(&id)?;
        let (orders, received) = channel();
        let (store, thread_room) = (path.to_owned(), Arc::clone(&room));
        std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || carry_out(&store, &received, &thread_room, patience))
            .map_err(|error| format!("threads: {error}"))?;
        Ok(Self {
            path: path.to_owned(),
            staging,
            room,
            orders,
        })
    }

    /// What is in a store, the oldest first, and the bytes that are left in it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn look(path: &Path) -> Result<(Inventory, u64), String> {
        let editor = load(path)?;
        let entries = editor.base().entries().iter();
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
        let held = entries.into_iter().map(pair).collect();
        Ok((held, Room::of(&editor).free_bytes))
    }

    /// The folder of partial objects.
    #[must_use]
    pub fn partial_folder(&self) -> &Path {
        self.staging.partial_folder()
    }

    /// Bytes that are free, or will be when no server reads them any more.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.room().free_bytes
    }

    fn room(&self) -> Room {
        *self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there may be a place for an object of this size, before it is fetched.
    ///
    /// # Errors
    /// There is none, or the store cannot be read.
    pub fn check(&self, name: &str, size_bytes: u64) -> Result<(), Fault> {
        if size_bytes <= self.room().largest_bytes {
            return Ok(());
        }
        // `atlas store` may have made room.
        let editor = load(&self.path).map_err(|text| Fault::new(Kind::Local, text))?;
        let room = Room::of(&editor);
        *self.room.lock().unwrap_or_else(PoisonError::into_inner) = room;
        if size_bytes <= room.largest_bytes {
            return Ok(());
        }
        Err(no_room(&self.path, name, size_bytes, room.largest_bytes))
    }

    /// What is there, the oldest first.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn inventory(&self) -> Result<Inventory, Fault> {
        let looked = Self::look(&self.path);
        looked
            .map(|(held, _)| held)
            .map_err(|text| Fault::new(Kind::Local, text))
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

/// Opens a store to change it. While another process does, `wait` says whether to try again.
fn open_to_change(
    store: &Path,
    mut wait: impl FnMut(&WriteError) -> bool,
) -> Result<(Writing, Editor), WriteError> {
    loop {
        match Writing::open(store) {
            Err(error) if is_locked(&error) && wait(&error) => {}
            opened => return opened,
        }
    }
}

const fn is_locked(error: &WriteError) -> bool {
    matches!(
        error,
        WriteError::Raw(RawError::Locked(_) | RawError::BeingMade(_))
    )
}

/// The store as it is, locked for as long as its list of objects is read.
fn load(path: &Path) -> Result<Editor, String> {
    let failed = |error: RawError| format!("target {}: {error}", path.display());
    let raw = RawStore::open(&names_in(path), Access::Read { direct: false }).map_err(failed)?;
    let loaded = raw.load_locked().map_err(failed)?;
    raw.unlock(loaded.catalogue.sequence());
    let readers = raw.readers().map_err(failed)?;
    Ok(Editor::new(loaded.catalogue, &readers))
}

fn no_room(store: &Path, name: &str, wanted_bytes: u64, largest_bytes: u64) -> Fault {
    let text = format!(
        "{}: {name}: no room for {wanted_bytes} bytes in one piece: the largest free run has {largest_bytes}",
        store.display()
    );
    Fault::new(Kind::NoSpace, text)
}

/// The thread: takes what waits, and makes one change of it.
fn carry_out(store: &Path, orders: &Receiver<Order>, room: &Mutex<Room>, patience: Patience) {
    while let Ok(first) = orders.recv() {
        let mut batch = Batch::default();
        batch.take(first);
        while batch.len() < BATCH_MAX
            && let Ok(next) = orders.try_recv()
        {
            batch.take(next);
        }
        let changed = batch.change(store, patience);
        if let Ok(left) = &changed {
            *room.lock().unwrap_or_else(PoisonError::into_inner) = *left;
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
            // The store may be changed the next time: then the copy is there.
            if fault.kind != Kind::Local {
                finished.discard();
            }
            let _ = reply.send(Err(fault.clone()));
        }
        for (_, reply) in self.removed {
            let _ = reply.send(Err(fault.clone()));
        }
    }

    /// Changes the store, and notes the answers of what was done. Returns what is free then.
    ///
    /// # Errors
    /// Nothing was done that has no answer.
    fn change(&mut self, store: &Path, patience: Patience) -> Result<Room, Fault> {
        let failed = |error: WriteError| fault(store, &error);
        let mut attempts = patience.attempts;
        let opened = open_to_change(store, |_| {
            attempts = attempts.saturating_sub(1);
            if attempts > 0 {
                std::thread::sleep(patience.pause);
            }
            attempts > 0
        });
        let (mut writing, mut editor) = opened.map_err(failed)?;
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
        Ok(Room::of(&editor))
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
            let unplaced = match found {
                Ok(found) => return Ok(found),
                Err((same, unplaced)) => {
                    editor = same;
                    unplaced
                }
            };
            // A server may be about to give up what was removed.
            if unplaced.error.waiting_bytes > 0 && attempts < ROOM_ATTEMPTS {
                attempts += 1;
                std::thread::sleep(ROOM_PAUSE);
                continue;
            }
            let (finished, name, reply) = self.placed.remove(unplaced.index);
            finished.discard();
            let (wanted, largest) = (unplaced.error.wanted_bytes, unplaced.error.largest_bytes);
            let fault = no_room(store, &name, wanted, largest);
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
        make_with(&path, blocks, [7; 16]);
        path
    }

    fn make_with(path: &Path, blocks: u64, id: [u8; 16]) {
        let image = File::create(path).unwrap();
        image.set_len(blocks * u64::from(BLOCK_BYTES)).unwrap();
        let devices = vec![Device::open(path, Access::Write).unwrap()];
        let geometry = Geometry::new(StoreId(id), vec![blocks], 16).unwrap();
        let transfer = Transfer::new(&devices).unwrap();
        let raw = RawStore::unmounted(devices);
        let lock = raw.lock_for_making().unwrap();
        let mut writing = Writing::new(raw, transfer, lock);
        writing
            .carry_out(Commit::first(Catalogue::empty(geometry)))
            .unwrap();
    }

    fn open(path: &Path, staging: &Path) -> Result<RawTarget, String> {
        RawTarget::open(path, staging, false, &mut |_| {})
    }

    fn finished(target: &RawTarget, name: &str, content: &[u8]) -> Finished {
        let size_bytes = u64::try_from(content.len()).unwrap();
        let stamp = Stamp::new(size_bytes, 1_700_000_000, Some(name));
        let folder = target.partial_folder();
        let mut partial = Partial::create(folder, name, stamp, 1 << 30).unwrap();
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
        let (found, _) = RawTarget::look(path).unwrap();
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
        let target = open(&path, &staging).unwrap();
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
        assert!(open(&path, &staging).is_ok());
        // It is the same store in another place.
        let moved = folder.path().join("moved");
        std::fs::rename(&path, &moved).unwrap();
        assert!(open(&moved, &staging).is_ok());
        std::fs::rename(&moved, &path).unwrap();
        // By another folder it is not known.
        let other = folder.path().join("other");
        let error = open(&path, &other).unwrap_err();
        assert!(error.contains("--adopt"), "{error}");
        assert!(RawTarget::open(&path, &other, true, &mut |_| {}).is_ok());
    }

    #[test]
    fn what_finds_no_room_is_refused_and_the_rest_is_added() {
        let folder = TempDir::new().unwrap();
        let path = make(&folder, 512);
        let target = open(&path, &folder.path().join("staging")).unwrap();
        let free_bytes = target.free_bytes();
        let large = vec![1; usize::try_from(free_bytes).unwrap() + 1];
        let fault = put(&target, "large", &large).unwrap_err();
        assert_eq!(fault.kind, Kind::NoSpace, "{fault}");
        put(&target, "small", b"x").unwrap();
        assert_eq!(names(&path), ["small"]);
        assert_eq!(target.free_bytes(), free_bytes - u64::from(BLOCK_BYTES));
    }

    #[test]
    fn a_copy_for_a_store_that_another_changes_is_kept_and_placed_later() {
        let folder = TempDir::new().unwrap();
        let path = make(&folder, 512);
        let staging = folder.path().join("staging");
        let impatient = Patience {
            attempts: 1,
            pause: Duration::ZERO,
        };
        let target = RawTarget::open_with(&path, &staging, false, &mut |_| {}, impatient).unwrap();
        let (other, _) = Writing::open(&path).unwrap();
        let fault = put(&target, "a", b"x").unwrap_err();
        assert_eq!(fault.kind, Kind::Local, "{fault}");
        assert!(fault.text.contains("another process changes"), "{fault}");
        drop(other);
        let stamp = Stamp::new(1, 1_700_000_000, Some("a"));
        let kept = Partial::resume(target.partial_folder(), "a", stamp, 1 << 30).unwrap();
        assert_eq!(kept.missing(), []);
        target.place(kept.finish().unwrap(), "a").unwrap();
        assert_eq!(names(&path), ["a"]);
    }

    #[test]
    fn a_store_that_another_changes_is_waited_for_at_the_start() {
        let folder = TempDir::new().unwrap();
        let path = make(&folder, 512);
        let mut other = Some(Writing::open(&path).unwrap());
        let mut told = Vec::new();
        let mut tell = |text: &str| {
            told.push(text.to_owned());
            drop(other.take());
        };
        RawTarget::open(&path, &folder.path().join("staging"), false, &mut tell).unwrap();
        assert_eq!(told.len(), 1);
        assert!(told[0].contains("another process changes"), "{told:?}");
    }

    #[test]
    fn another_store_in_the_place_of_a_filled_one_is_not_known() {
        let folder = TempDir::new().unwrap();
        let path = make(&folder, 512);
        let staging = folder.path().join("staging");
        drop(open(&path, &staging).unwrap());
        std::fs::remove_file(&path).unwrap();
        make_with(&path, 512, [8; 16]);
        let other = RawTarget::open(&path, &folder.path().join("other"), false, &mut |_| {});
        put(&other.unwrap(), "precious", b"x").unwrap();
        let error = open(&path, &staging).unwrap_err();
        assert!(error.contains("--adopt"), "{error}");
    }

    #[test]
    fn what_is_no_store_is_refused() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let error = open(&path, &folder.path().join("staging")).unwrap_err();
        assert!(error.starts_with("target "), "{error}");
    }
}
