//! A raw store that is served: the newest catalogue, found by a thread, and the objects that are still
//! being sent.
//!
//! **An object's space stays as long as the object is open.** The lock on the newest catalogue keeps the
//! objects that it has. When there is a newer one, each store looks its handles up in that, a few in each
//! round ([`MOVED_MAX`]), and hands over the extents of those that it does not have. The thread locks
//! these, and only then gives up the lock on the catalogue before, and its memory. So a client that reads
//! an old object slowly keeps the extent of that object, and nothing else.
//!
//! **There are two catalogues in memory at most**: the newest, and one that is being loaded or being left. The
//! thread loads no other before all stores have left the one before.
//!
//! What cannot be read is tried again: the superblocks with each look, a catalogue after 1, 2, 4 and up to
//! [`WAIT_LOOKS_MAX`] looks, and whenever somebody asks.
//!
//! A store on namespaces that this process has to itself ([`Volume::of_namespaces`]) does not change, and
//! has neither locks nor a thread.
//!
//! It refuses to wait: a look-up searches memory, and locks on devices are the thread's. The worker takes a
//! mutex only to get a new snapshot and to leave an old one, and only if the thread does not hold it. Bounded
//! by the catalogue's size, and by the handles.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::Duration;

use volume::{BLOCK_BYTES, Catalogue, Entry, Extent, NameIndex};

use super::{Device, Loaded, RawError, RawStore};
use crate::{
    DeviceId, FileTime, Metadata, NamespaceId, Notice, Opened, Source, StoreRefusal, system,
};

/// How often the devices are asked for a new catalogue.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Most looks between two attempts to load a catalogue.
pub(super) const WAIT_LOOKS_MAX: u32 = 64;
/// Most handles that are moved to a new catalogue in one round.
pub(crate) const MOVED_MAX: usize = 64;

/// A catalogue, and the lock on it.
#[derive(Debug)]
pub(crate) struct Snapshot {
    catalogue: Catalogue,
    names: NameIndex,
    /// Where the lock is, if there is one.
    raw: Option<RawStore>,
}

impl Snapshot {
    /// The place of the object of this name among the catalogue's entries.
    fn index_of(&self, name: &str) -> Option<usize> {
        self.names.index_of(&self.catalogue, name)
    }

    /// The object of this name.
    fn find(&self, name: &str) -> Option<&Entry> {
        self.names.find(&self.catalogue, name)
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        if let Some(raw) = &self.raw {
            raw.unlock(self.catalogue.sequence());
        }
    }
}

/// What the objects of a device are read from.
#[derive(Clone, Debug)]
enum Place {
    /// A block device or image, and its device number.
    File(Arc<OwnedFd>, u64),
    /// A namespace of an NVMe controller that the disk is.
    Namespace(NamespaceId),
}

impl Place {
    /// See [`Metadata::device`].
    fn device(&self) -> u64 {
        match self {
            Self::File(_, device) => *device,
            Self::Namespace(NamespaceId { controller, id }) => {
                u64::from(*controller) << 32 | u64::from(*id)
            }
        }
    }
}

/// An extent that a store has handed over. It is in use as long as the store has a clone.
type Kept = Arc<Extent>;

/// What the thread has found, and what the stores have for it.
#[derive(Debug)]
struct Published {
    snapshot: Arc<Snapshot>,
    notice: Option<Notice>,
    /// Times that the devices or a new catalogue could not be read; taken by one of the stores.
    failures: u64,
    /// The last look that somebody asked for, and why it did not find out what the newest catalogue is.
    answer: (u64, Result<(), String>),
    /// The snapshot before. The thread drops it when no store uses it: that takes long for many objects.
    earlier: Option<Arc<Snapshot>>,
    /// Extents of objects that are in use and not in the newest catalogue, not locked yet.
    kept: Vec<Kept>,
    /// Of the stores.
    wakers: Vec<Arc<File>>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    /// By the number of the device.
    places: Vec<Place>,
    /// Changes with `published`.
    version: AtomicU64,
    /// How often somebody has asked for a look.
    asks: AtomicU64,
    published: Mutex<Published>,
}

impl Shared {
    fn new(name: String, places: Vec<Place>, raw: Option<&RawStore>, loaded: Loaded) -> Self {
        let notice = Some(notice_of(&loaded));
        Self {
            name,
            places,
            version: AtomicU64::new(0),
            asks: AtomicU64::new(0),
            published: Mutex::new(Published {
                snapshot: snapshot(raw, loaded.catalogue),
                notice,
                failures: 0,
                answer: (0, Ok(())),
                earlier: None,
                kept: Vec::new(),
                wakers: Vec::new(),
            }),
        }
    }

    fn with<R>(&self, act: impl FnOnce(&mut Published) -> R) -> R {
        let published = self.published.lock();
        act(&mut published.unwrap_or_else(PoisonError::into_inner))
    }

    fn publish(&self, change: impl FnOnce(&mut Published)) {
        self.with(|published| {
            change(published);
            self.version.fetch_add(1, Ordering::Release);
            for waker in &published.wakers {
                // It is full only if nobody has read it for 2^64 - 2 times.
                let _ = waker.as_ref().write(&1_u64.to_ne_bytes());
            }
        });
    }

    /// Looks for a new catalogue, and gives up what nobody uses any more.
    fn look(&self, raw: &RawStore, last: &mut Look, load: &Loader<'_>) {
        let asks = self.asks.load(Ordering::Acquire);
        let is_asked = asks != last.answered;
        let outcome = match self.leave_earlier(raw, last) {
            Ok(true) => self.try_look(raw, last, is_asked, load),
            // The stores need a round or several.
            Ok(false) => return,
            Err(error) => Err(error.to_string()),
        };
        if let Err(text) = &outcome {
            let is_news = last.failed.as_ref() != Some(text);
            let notice = is_news.then(|| Notice::Failed(text.clone()));
            last.failed = Some(text.clone());
            self.publish(|published| {
                published.failures += 1;
                published.notice = notice.or(published.notice.take());
            });
        }
        if is_asked {
            last.answered = asks;
            let outcome = match (&last.damage, outcome) {
                (Some(damage), Ok(())) => Err(damage.clone()),
                (_, outcome) => outcome,
            };
            self.publish(|published| published.answer = (asks, outcome));
        }
    }

    /// Whether the newest catalogue is served, unless it is too early to try again.
    fn try_look(
        &self,
        raw: &RawStore,
        last: &mut Look,
        is_asked: bool,
        load: &Loader<'_>,
    ) -> Result<(), String> {
        let newest = raw.newest_sequence().map_err(|error| error.to_string())?;
        if newest == last.sequence && last.failed.is_none() {
            return Ok(());
        }
        if last.wait > 0 && !is_asked {
            last.wait -= 1;
            return Ok(());
        }
        match load(raw) {
            Ok(loaded) => {
                *last = Look {
                    sequence: newest,
                    damage: self.take(raw, loaded),
                    answered: last.answered,
                    locked: core::mem::take(&mut last.locked),
                    ..Look::default()
                };
                Ok(())
            }
            Err(error) => {
                last.wait = last.wait_next;
                last.wait_next = (2 * last.wait_next + 1).min(WAIT_LOOKS_MAX - 1);
                Err(error.to_string())
            }
        }
    }

    /// Publishes a catalogue, unless it is the one that is served or an older one. Returns why it is not the
    /// newest that there was.
    fn take(&self, raw: &RawStore, loaded: Loaded) -> Option<String> {
        let known = self.with(|published| published.snapshot.catalogue.sequence());
        let found = loaded.catalogue.sequence();
        // An older one is found if the newest was damaged, or became unreadable, after it was loaded.
        let lost = (found < known)
            .then(|| format!("catalogue {known} is lost on the devices, which have {found}"));
        let damage = lost
            .clone()
            .or_else(|| loaded.damage.as_ref().map(ToString::to_string));
        let notice = lost.map_or_else(|| notice_of(&loaded), Notice::Failed);
        let snapshot = snapshot(Some(raw), loaded.catalogue);
        self.publish(|published| {
            published.notice = Some(notice);
            if found > known {
                let earlier = core::mem::replace(&mut published.snapshot, snapshot);
                published.earlier = Some(earlier);
            }
        });
        damage
    }

    /// Locks the extents that stores have handed over, and gives up those that are not in use any more,
    /// and the catalogue before if all stores have left it. Whether there is none before.
    fn leave_earlier(&self, raw: &RawStore, last: &mut Look) -> Result<bool, RawError> {
        let (kept, earlier) = self.with(|published| {
            let is_left = published.earlier.as_ref().map(Arc::strong_count) == Some(1);
            let earlier = published.earlier.take_if(|_| is_left);
            (core::mem::take(&mut published.kept), earlier)
        });
        last.unlock_unused(raw);
        let locked = last.lock(raw, kept);
        self.with(|published| {
            if let Err((_, kept)) = &locked {
                // They are not locked, so the lock on the catalogue is still needed.
                published.kept.extend_from_slice(kept);
                published.earlier = earlier.clone().or(published.earlier.take());
            }
        });
        // Outside the mutex: it takes long.
        drop(earlier);
        locked.map_err(|(error, _)| error)?;
        Ok(self.with(|published| published.earlier.is_none()))
    }
}

/// [`RawStore::load_locked`], or what a test has instead.
type Loader<'a> = dyn Fn(&RawStore) -> Result<Loaded, RawError> + 'a;

/// What the thread found last, and what it has locked.
#[derive(Debug, Default)]
struct Look {
    /// The newest superblock's sequence number, when a catalogue was last read.
    sequence: u64,
    /// Why that was not the newest.
    damage: Option<String>,
    /// Why the devices or a new catalogue could not be read, unless they were since.
    failed: Option<String>,
    /// Looks that pass before a catalogue is tried again, and after the next failure.
    wait: u32,
    wait_next: u32,
    /// The last look that was asked for and done.
    answered: u64,
    /// Extents that are locked, and their users.
    locked: BTreeMap<Extent, Vec<Kept>>,
}

impl Look {
    /// Locks extents that are in use.
    ///
    /// # Errors
    /// Why it cannot, and those that are not locked.
    fn lock(&mut self, raw: &RawStore, kept: Vec<Kept>) -> Result<(), (RawError, Vec<Kept>)> {
        let mut kept = kept.into_iter();
        while let Some(extent) = kept.next() {
            if Arc::strong_count(&extent) == 1 {
                continue;
            }
            if !self.locked.contains_key(&extent)
                && let Err(error) = raw.lock_extent(*extent)
            {
                return Err((error, std::iter::once(extent).chain(kept).collect()));
            }
            self.locked.entry(*extent).or_default().push(extent);
        }
        Ok(())
    }

    /// Gives up the locks on extents that are not in use any more.
    fn unlock_unused(&mut self, raw: &RawStore) {
        self.locked.retain(|extent, users| {
            users.retain(|user| Arc::strong_count(user) > 1);
            if users.is_empty() {
                raw.unlock_extent(*extent);
            }
            !users.is_empty()
        });
    }
}

fn notice_of(loaded: &Loaded) -> Notice {
    match loaded.damage {
        Some(error) => Notice::Damaged(error.to_string()),
        None => Notice::Catalogue {
            sequence: loaded.catalogue.sequence(),
            objects: loaded.catalogue.entries().len(),
        },
    }
}

fn snapshot(raw: Option<&RawStore>, mut catalogue: Catalogue) -> Arc<Snapshot> {
    catalogue.forget_runs();
    Arc::new(Snapshot {
        names: NameIndex::new(&catalogue),
        catalogue,
        raw: raw.cloned(),
    })
}

/// A raw store for the stores of a process. Clones share everything.
#[derive(Clone, Debug)]
pub struct Volume {
    shared: Arc<Shared>,
    /// `None`: nothing changes the store.
    thread: Option<SyncSender<()>>,
}

/// What the thread has beside what is shared.
#[derive(Debug)]
pub(super) struct Looker {
    raw: RawStore,
    asked: Receiver<()>,
    last: Look,
}

impl Volume {
    /// Reads the catalogue, and starts the thread that looks for new ones. The thread has the rights of
    /// its caller, and ends with the last clone. With `namespaces` (by the number of the device) the
    /// objects' [`Source`] is the namespace.
    ///
    /// # Errors
    /// The catalogue cannot be read, or there is no thread to be had.
    pub fn start(raw: RawStore, namespaces: Option<&[NamespaceId]>) -> Result<Self, RawError> {
        let (volume, mut looker) = Self::load(raw, namespaces)?;
        let looked_at = Arc::downgrade(&volume.shared);
        let look = move || {
            // Ends when nobody is left who could ask.
            while looker.asked.recv_timeout(LOOK_INTERVAL) != Err(RecvTimeoutError::Disconnected) {
                let Some(shared) = looked_at.upgrade() else {
                    return;
                };
                shared.look(&looker.raw, &mut looker.last, &RawStore::load_locked);
            }
        };
        let started = thread::Builder::new().name("catalogue".into()).spawn(look);
        started.map_err(|error| RawError::Io {
            path: volume.name().into(),
            error,
        })?;
        Ok(volume)
    }

    /// Reads the catalogue. The thread, if there is to be one, has the second.
    pub(super) fn load(
        raw: RawStore,
        namespaces: Option<&[NamespaceId]>,
    ) -> Result<(Self, Looker), RawError> {
        let loaded = raw.load_locked()?;
        let place = |(number, device): (usize, &Device)| match namespaces {
            Some(namespaces) => Place::Namespace(namespaces[number]),
            None => Place::File(Arc::clone(&device.file), device.device),
        };
        let places = raw.devices().iter().enumerate().map(place);
        let (thread, asked) = sync_channel(1);
        let looker = Looker {
            last: Look {
                sequence: loaded.catalogue.sequence(),
                damage: loaded.damage.as_ref().map(ToString::to_string),
                ..Look::default()
            },
            raw: raw.clone(),
            asked,
        };
        let shared = Shared::new(raw.name(), places.collect(), Some(&raw), loaded);
        let volume = Self {
            shared: Arc::new(shared),
            thread: Some(thread),
        };
        Ok((volume, looker))
    }

    /// A store on namespaces that this process has to itself, so that nothing changes it: the namespaces by
    /// the number of the device, and what [`super::find_catalogue`] found.
    ///
    /// # Panics
    /// If there are not as many as the store has devices.
    #[must_use]
    pub fn of_namespaces(name: String, namespaces: &[NamespaceId], loaded: Loaded) -> Self {
        let devices = loaded.catalogue.geometry().device_blocks.len();
        assert_eq!(namespaces.len(), devices, "each device is a namespace");
        let places = namespaces.iter().copied().map(Place::Namespace);
        Self {
            shared: Arc::new(Shared::new(name, places.collect(), None, loaded)),
            thread: None,
        }
    }

    /// What the thread does, for tests.
    #[cfg(test)]
    pub(super) fn look(&self, looker: &mut Looker) {
        self.look_with(looker, &RawStore::load_locked);
    }

    /// The same with another way to load a catalogue.
    #[cfg(test)]
    pub(super) fn look_with(&self, looker: &mut Looker, load: &Loader<'_>) {
        self.shared.look(&looker.raw, &mut looker.last, load);
    }

    /// Catalogues in memory, for tests.
    #[cfg(test)]
    pub(super) fn catalogues(&self) -> usize {
        self.shared
            .with(|published| 1 + usize::from(published.earlier.is_some()))
    }

    /// The devices, joined by commas.
    #[must_use]
    pub fn name(&self) -> String {
        self.shared.name.clone()
    }
}

/// What an open object needs of the catalogue that it was found in.
#[derive(Clone, Debug)]
struct Pin {
    /// The newest catalogue that is known to have the object.
    sequence: u64,
    extent: Extent,
    /// Empty: as the name says.
    content_type: Box<str>,
    /// Was handed over: no catalogue that is served has the object.
    kept: Option<Kept>,
}

/// The objects of a [`Volume`] for one store.
#[derive(Debug)]
pub(crate) struct Served {
    volume: Volume,
    version: u64,
    snapshot: Arc<Snapshot>,
    /// By handle of the store, until it is closed.
    pins: Vec<Option<Pin>>,
    /// The snapshot before, until all handles are moved.
    moving: Option<Moving>,
    notice: Option<Notice>,
    /// Not asked for yet.
    failures: u64,
    /// The look that [`Served::look_now`] asked for, and what came of it.
    asked: Option<u64>,
    answer: Option<Result<(), String>>,
    waker: Arc<File>,
}

/// How far handles are moved to a new snapshot.
#[derive(Debug)]
struct Moving {
    /// Whose lock they need.
    earlier: Arc<Snapshot>,
    /// Handles from here on may be of it.
    next: usize,
    /// To be handed over.
    kept: Vec<Kept>,
}

impl Served {
    pub(crate) fn new(volume: Volume, handles_max: usize) -> std::io::Result<Self> {
        let waker = Arc::new(File::from(system::event_counter()?));
        let shared = &volume.shared;
        let (version, snapshot) = shared.with(|published| {
            published.wakers.push(Arc::clone(&waker));
            let version = shared.version.load(Ordering::Acquire);
            (version, Arc::clone(&published.snapshot))
        });
        Ok(Self {
            // So that a notice that is there already is taken.
            version: version.wrapping_sub(1),
            volume,
            snapshot,
            pins: vec![None; handles_max],
            moving: None,
            notice: None,
            failures: 0,
            asked: None,
            answer: None,
            waker,
        })
    }

    pub(crate) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }

    /// Has the thread look at once; [`Served::poll_answer`] will say what came of it.
    pub(crate) fn look_now(&mut self) {
        let Some(thread) = &self.volume.thread else {
            self.answer = Some(Ok(()));
            return;
        };
        let asks = self.volume.shared.asks.fetch_add(1, Ordering::AcqRel);
        self.asked = Some(asks.wrapping_add(1));
        // If it is full the thread will look.
        let _ = thread.try_send(());
    }

    /// What came of [`Served::look_now`]: whether the newest catalogue is served, or why not.
    pub(crate) fn poll_answer(&mut self) -> Option<Result<(), String>> {
        self.answer.take()
    }

    /// Takes a new catalogue over, if there is one and all handles are moved to the one before.
    pub(crate) fn refresh(&mut self) {
        let shared = &self.volume.shared;
        let version = shared.version.load(Ordering::Acquire);
        if version == self.version {
            return;
        }
        let Some(mut published) = try_lock(&shared.published) else {
            // In the next round.
            return;
        };
        self.version = version;
        self.notice = published.notice.take().or(self.notice.take());
        self.failures += core::mem::take(&mut published.failures);
        if self.asked.is_some_and(|asked| asked <= published.answer.0) {
            self.asked = None;
            self.answer = Some(published.answer.1.clone());
        }
        // While handles are moved there is no newer one: the thread waits for this store.
        if !Arc::ptr_eq(&published.snapshot, &self.snapshot) {
            let newest = Arc::clone(&published.snapshot);
            self.moving = Some(Moving {
                earlier: core::mem::replace(&mut self.snapshot, newest),
                next: 0,
                kept: Vec::new(),
            });
        }
        drop(published);
        let mut count = [0; 8];
        // Nothing to read is no error.
        let _ = self.waker.as_ref().read(&mut count);
    }

    /// Times that the devices or a new catalogue could not be read, since this was last asked.
    pub(crate) fn take_failures(&mut self) -> u64 {
        core::mem::take(&mut self.failures)
    }

    pub(crate) fn poll_notice(&mut self) -> Option<Notice> {
        self.notice.take()
    }

    /// The object of this name in the newest catalogue, and its place among the entries.
    pub(crate) fn open_object(&self, name: &str) -> Result<(usize, Opened), StoreRefusal> {
        let catalogue = &self.snapshot.catalogue;
        match self.snapshot.index_of(name) {
            Some(index) => Ok((index, self.opened(&catalogue.entries()[index]))),
            None if catalogue.is_directory(name) => Err(StoreRefusal::Directory),
            None => Err(StoreRefusal::NotFound),
        }
    }

    fn opened(&self, entry: &Entry) -> Opened {
        let place = &self.volume.shared.places[usize::from(entry.extent.device)];
        let start_bytes = entry.extent.start * u64::from(BLOCK_BYTES);
        let modified = FileTime {
            seconds: entry.modified.seconds,
            nanos: entry.modified.nanos,
        };
        Opened {
            source: match place {
                Place::File(device, _) => Source::Range {
                    device: Arc::clone(device),
                    start_bytes,
                },
                Place::Namespace(namespace) => Source::Namespace {
                    namespace: *namespace,
                    start_bytes,
                },
            },
            metadata: Metadata {
                size_bytes: entry.size_bytes,
                modified,
                changed: modified,
                // Tells versions of a name apart.
                inode: entry.added,
                device: place.device(),
                direct_offset_align_bytes: 0,
                direct_memory_align_bytes: 0,
                direct: true,
                content: Some(entry.tag.0),
            },
        }
    }

    /// The device of a name's object; of a name without one any: it needs none to be answered.
    pub(crate) fn device_of_name(&self, name: &str) -> DeviceId {
        let entry = self.snapshot.find(name);
        let number = entry.map_or(0, |entry| usize::from(entry.extent.device));
        DeviceId::new(self.volume.shared.places[number].device())
    }

    /// The content type that was given to an object; empty: none was.
    pub(crate) fn content_type(&self, handle: u32) -> &str {
        let pin = self.pins.get(place(handle)).and_then(Option::as_ref);
        pin.map_or("", |pin| &pin.content_type)
    }

    /// The object of this handle was found in the newest catalogue, at this place among its entries.
    pub(crate) fn pin(&mut self, handle: u32, index: usize) {
        let catalogue = &self.snapshot.catalogue;
        let entry = &catalogue.entries()[index];
        self.pins[place(handle)] = Some(Pin {
            sequence: catalogue.sequence(),
            extent: entry.extent,
            content_type: entry.content_type.clone(),
            kept: None,
        });
    }

    /// Nobody reads the object of this handle any more.
    pub(crate) fn unpin(&mut self, handle: u32) {
        self.pins[place(handle)] = None;
    }

    /// Whether the newest catalogue has the object of this handle, which can be found by its name.
    pub(crate) fn keep(&mut self, handle: u32, name: &str, metadata: &Metadata) -> bool {
        let newest = self.snapshot.catalogue.sequence();
        let Some(pin) = &mut self.pins[place(handle)] else {
            return false;
        };
        if pin.sequence == newest {
            return true;
        }
        let has_it = self.snapshot.find(name).is_some_and(|entry| {
            entry.added == metadata.inode && Some(entry.tag.0) == metadata.content
        });
        if has_it {
            pin.sequence = newest;
        }
        has_it
    }

    /// The object of this handle is not looked for any more: its extent is kept until it is closed.
    pub(crate) fn leave(&mut self, handle: u32) {
        let newest = self.snapshot.catalogue.sequence();
        let (Some(pin), Some(moving)) = (&mut self.pins[place(handle)], &mut self.moving) else {
            return;
        };
        if pin.kept.is_none() && pin.sequence != newest {
            let kept = Arc::new(pin.extent);
            moving.kept.push(Arc::clone(&kept));
            pin.kept = Some(kept);
        }
    }

    /// Whether handles wait for [`Served::next_to_move`].
    pub(crate) const fn is_moving(&self) -> bool {
        self.moving.is_some()
    }

    /// The next handle whose object was found in the catalogue before: to be kept, or to be left. When there
    /// is none any more, that catalogue is left.
    pub(crate) fn next_to_move(&mut self) -> Option<u32> {
        let moving = self.moving.as_mut()?;
        let newest = self.snapshot.catalogue.sequence();
        let is_old = |pin: &Option<Pin>| {
            let pin = pin.as_ref();
            pin.is_some_and(|pin| pin.kept.is_none() && pin.sequence != newest)
        };
        let found = self.pins[moving.next..].iter().position(is_old);
        if let Some(offset) = found {
            moving.next += offset + 1;
            return u32::try_from(moving.next - 1).ok();
        }
        moving.next = self.pins.len();
        // Both at once: the thread locks the extents before it gives the catalogue up. If it has the mutex
        // now, the next round does it.
        let mut published = try_lock(&self.volume.shared.published)?;
        let moving = self.moving.take()?;
        published.kept.extend(moving.kept);
        drop(moving.earlier);
        None
    }
}

/// The mutex, if nobody has it.
fn try_lock(published: &Mutex<Published>) -> Option<MutexGuard<'_, Published>> {
    match published.try_lock() {
        Ok(published) => Some(published),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn place(handle: u32) -> usize {
    usize::try_from(handle).expect("invariant: a usize has at least 32 bits")
}
