//! A raw store that is served: the newest catalogue, found by a thread, and the catalogues whose objects
//! are still being sent.
//!
//! **An object's space stays as long as the object is open**: each handle has the [`Snapshot`] that it
//! was found in, and the snapshot has the reader's lock on its catalogue. When there is a new one, the
//! handles of objects that are in both are moved to it, a few in each round ([`MOVED_MAX`]), and the
//! others are retired. So an old catalogue is unlocked when the last of its objects is closed that the
//! new one does not have.
//!
//! A store on namespaces that this process has to itself ([`Volume::of_namespaces`]) does not change, and
//! has neither locks nor a thread.
//!
//! It refuses to wait: a look-up searches memory. The worker takes a lock only to get a new snapshot,
//! and only if the thread does not hold it. Bounded by the catalogue's size for each snapshot in use.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread;
use std::time::Duration;

use volume::{BLOCK_BYTES, Catalogue, Entry, NameIndex};

use super::{Device, Loaded, RawError, RawStore};
use crate::{DeviceId, FileTime, Metadata, NamespaceId, Opened, Source, StoreRefusal, system};

/// How often the devices are asked for a new catalogue.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Most handles that are moved to a new catalogue in one round.
pub(crate) const MOVED_MAX: usize = 64;

/// A catalogue, and the lock on it.
#[derive(Debug)]
pub(crate) struct Snapshot {
    catalogue: Catalogue,
    names: NameIndex,
    /// Where the lock is, if there is one.
    raw: Option<Arc<RawStore>>,
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

/// Something for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// There is a new catalogue.
    Catalogue {
        /// Its sequence number.
        sequence: u64,
        /// Objects in it.
        objects: usize,
    },
    /// The newest catalogue is damaged; the one before is served.
    Damaged(String),
    /// The devices cannot be read; the last catalogue is served on.
    Failed(String),
}

/// What the thread has found.
#[derive(Debug)]
struct Published {
    snapshot: Arc<Snapshot>,
    notice: Option<Notice>,
    /// Earlier ones. The thread drops them when no store uses them: that takes long for many objects.
    earlier: Vec<Arc<Snapshot>>,
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
    published: Mutex<Published>,
}

impl Shared {
    fn new(name: String, places: Vec<Place>, raw: Option<&Arc<RawStore>>, loaded: Loaded) -> Self {
        let notice = Some(notice_of(&loaded));
        Self {
            name,
            places,
            version: AtomicU64::new(0),
            published: Mutex::new(Published {
                snapshot: snapshot(raw, loaded.catalogue),
                notice,
                earlier: Vec::new(),
                wakers: Vec::new(),
            }),
        }
    }

    fn with<R>(&self, act: impl FnOnce(&mut Published) -> R) -> R {
        let published = self.published.lock();
        act(&mut published.unwrap_or_else(PoisonError::into_inner))
    }

    fn publish(&self, snapshot: Option<Arc<Snapshot>>, notice: Notice) {
        self.with(|published| {
            published.notice = Some(notice);
            if let Some(snapshot) = snapshot {
                let earlier = core::mem::replace(&mut published.snapshot, snapshot);
                published.earlier.push(earlier);
            }
            self.version.fetch_add(1, Ordering::Release);
            for waker in &published.wakers {
                // It is full only if nobody has read it for 2^64 - 2 times.
                let _ = waker.as_ref().write(&1_u64.to_ne_bytes());
            }
        });
    }

    /// Looks for a new catalogue, and drops old ones.
    fn look(&self, raw: &Arc<RawStore>, last: &mut Look) {
        self.drop_unused();
        match raw.newest_sequence() {
            Ok(newest) if newest == last.sequence => {}
            Ok(newest) => {
                last.sequence = newest;
                match raw.load_locked() {
                    Ok(loaded) => self.take(raw, loaded),
                    Err(error) => self.publish(None, Notice::Failed(error.to_string())),
                }
                last.failed = None;
            }
            Err(error) => {
                let text = error.to_string();
                if last.failed.as_ref() != Some(&text) {
                    self.publish(None, Notice::Failed(text.clone()));
                    last.failed = Some(text);
                }
            }
        }
    }

    /// Publishes a catalogue, unless it is the one that is served.
    fn take(&self, raw: &Arc<RawStore>, loaded: Loaded) {
        let known = self.with(|published| published.snapshot.catalogue.sequence());
        let found = loaded.catalogue.sequence();
        // An older one is found if the newest was damaged, or became unreadable, after it was loaded.
        let notice = if found < known {
            Notice::Failed(format!(
                "catalogue {known} is lost on the devices, which have {found}"
            ))
        } else {
            notice_of(&loaded)
        };
        let snapshot = snapshot(Some(raw), loaded.catalogue);
        let is_new = found > known;
        self.publish(is_new.then_some(snapshot), notice);
    }

    /// Drops catalogues that no store uses any more.
    fn drop_unused(&self) {
        let unused: Vec<_> = self.with(|published| {
            let is_unused = |it: &mut Arc<Snapshot>| Arc::strong_count(it) == 1;
            published.earlier.extract_if(.., is_unused).collect()
        });
        drop(unused);
    }
}

/// What the thread found last.
#[derive(Debug)]
struct Look {
    /// The newest superblock's sequence number.
    sequence: u64,
    /// Why the devices could not be read, once it was reported.
    failed: Option<String>,
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

fn snapshot(raw: Option<&Arc<RawStore>>, mut catalogue: Catalogue) -> Arc<Snapshot> {
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
    raw: Arc<RawStore>,
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
                shared.look(&looker.raw, &mut looker.last);
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
        let raw = Arc::new(raw);
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
                failed: None,
            },
            raw: Arc::clone(&raw),
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
        self.shared.look(&looker.raw, &mut looker.last);
    }

    /// The devices, joined by commas.
    #[must_use]
    pub fn name(&self) -> String {
        self.shared.name.clone()
    }
}

/// Where an open object was found.
#[derive(Clone, Debug)]
struct Pin {
    snapshot: Arc<Snapshot>,
    /// Its place in the catalogue.
    index: usize,
}

impl Pin {
    fn is_of(&self, snapshot: &Arc<Snapshot>) -> bool {
        Arc::ptr_eq(&self.snapshot, snapshot)
    }
}

/// The objects of a [`Volume`] for one store.
#[derive(Debug)]
pub(crate) struct Served {
    volume: Volume,
    version: u64,
    snapshot: Arc<Snapshot>,
    /// For each handle of the store where its object was found, until it is closed.
    pins: Vec<Option<Pin>>,
    /// Handles from here on may have an older snapshot; `None`: none has.
    moving: Option<usize>,
    notice: Option<Notice>,
    waker: Arc<File>,
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
            waker,
        })
    }

    pub(crate) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }

    /// Has the thread look at once.
    pub(crate) fn look_now(&self) {
        if let Some(thread) = &self.volume.thread {
            // If it is full the thread will look.
            let _ = thread.try_send(());
        }
    }

    /// Takes a new catalogue over, if there is one.
    pub(crate) fn refresh(&mut self) {
        let shared = &self.volume.shared;
        let version = shared.version.load(Ordering::Acquire);
        if version == self.version {
            return;
        }
        let published = match shared.published.try_lock() {
            Ok(published) => Some(published),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            // In the next round.
            Err(TryLockError::WouldBlock) => None,
        };
        let Some(mut published) = published else {
            return;
        };
        self.version = version;
        self.notice = published.notice.take().or(self.notice.take());
        let newest = Arc::clone(&published.snapshot);
        drop(published);
        if !Arc::ptr_eq(&newest, &self.snapshot) {
            self.snapshot = newest;
            self.moving = Some(0);
        }
        let mut count = [0; 8];
        // Nothing to read is no error.
        let _ = self.waker.as_ref().read(&mut count);
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
        pin.map_or("", |pin| {
            &pin.snapshot.catalogue.entries()[pin.index].content_type
        })
    }

    /// The object of this handle was found in the newest catalogue, at this place among its entries.
    pub(crate) fn pin(&mut self, handle: u32, index: usize) {
        let snapshot = Arc::clone(&self.snapshot);
        self.pins[place(handle)] = Some(Pin { snapshot, index });
    }

    /// Nobody reads the object of this handle any more.
    pub(crate) fn unpin(&mut self, handle: u32) {
        self.pins[place(handle)] = None;
    }

    /// Whether the newest catalogue has the object of this handle; then the handle is one of that
    /// catalogue from now on.
    pub(crate) fn keep(&mut self, handle: u32, name: &str, metadata: &Metadata) -> bool {
        let pin = &mut self.pins[place(handle)];
        if pin.as_ref().is_some_and(|pin| pin.is_of(&self.snapshot)) {
            return true;
        }
        let catalogue = &self.snapshot.catalogue;
        let index = self.snapshot.index_of(name).filter(|index| {
            let entry = &catalogue.entries()[*index];
            entry.added == metadata.inode && Some(entry.tag.0) == metadata.content
        });
        let Some(index) = index else {
            return false;
        };
        let snapshot = Arc::clone(&self.snapshot);
        *pin = Some(Pin { snapshot, index });
        true
    }

    /// Whether handles wait for [`Served::next_to_move`].
    pub(crate) const fn is_moving(&self) -> bool {
        self.moving.is_some()
    }

    /// The next handle whose object was found in an older catalogue.
    pub(crate) fn next_to_move(&mut self) -> Option<u32> {
        let start = self.moving?;
        let newest = &self.snapshot;
        let is_old = |pin: &Option<Pin>| pin.as_ref().is_some_and(|pin| !pin.is_of(newest));
        let next = self.pins[start..].iter().position(is_old);
        let next = next.map(|offset| start + offset);
        self.moving = next.map(|next| next + 1);
        next.and_then(|next| u32::try_from(next).ok())
    }
}

fn place(handle: u32) -> usize {
    usize::try_from(handle).expect("invariant: a usize has at least 32 bits")
}
