//! The devices of a raw store: opening them, finding the catalogue that counts, and locks.
//!
//! **A writer and its readers agree by locks of open file descriptions** (fcntl(2), `F_OFD_SETLK`), which end
//! with the process that holds them. On each device a reader has a shared lock on the byte [`LOCKS_START`] + *n*
//! for each catalogue *n* that it uses; a writer has an exclusive lock on the byte before, and asks which of
//! the others are locked before it uses space again. A reader that goes on with single objects of a catalogue has
//! a shared lock on the bytes of each, on its device, and gives the catalogue up. Who makes a store anew has
//! all of these bytes to itself, whichever of a store's devices it was given.
//!
//! A copy of a superblock or of the catalogue that cannot be read is passed over, as one with wrong bytes is.
//! What it says stays unknown, and who writes is told where it may matter ([`Loaded::unknown`]).
//!
//! It refuses devices that do not belong together, those that another program has to itself, and those on
//! which another store is found later than the one that was opened. Bounded by [`ATTEMPTS_MAX`],
//! [`volume::DEVICES_MAX`], and the catalogue's size: memory is taken for bytes that are there
//! ([`volume::Candidate::check_piece`]).

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom};
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use volume::{
    BLOCK_BYTES, Candidate, Catalogue, CatalogueError, DEVICES_MAX, DeviceSlots, Extent, Geometry,
    MountError, Mounting, Readers, SEQUENCE_MAX, SUPERBLOCKS, Superblock, SuperblockError,
};

use crate::system::{Lock, discard_blocks, lock_of_another, punch_hole, set_lock};

/// The lock byte of catalogue 0; larger than any device.
const LOCKS_START: u64 = 1 << 62;
/// The writer's lock byte.
const WRITER_LOCK: u64 = LOCKS_START - 1;
/// Behind the last lock byte of a catalogue.
const LOCKS_END: u64 = LOCKS_START + SEQUENCE_MAX + 1;
/// How often a catalogue is looked for that a writer replaces meanwhile.
const ATTEMPTS_MAX: u32 = 16;
/// Longest piece that is read at once, bytes.
const PIECE_BYTES: usize = 1 << 20;
/// Alignment of memory for direct reads.
const ALIGNMENT: usize = 4096;

/// What the devices are opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// To read objects, with `O_DIRECT` or without.
    Read {
        /// Without the page cache.
        direct: bool,
    },
    /// To change the store, or to make one. A block device is opened exclusively, so that a mounted
    /// one is refused.
    Write,
}

/// An open device.
#[derive(Clone, Debug)]
pub struct Device {
    /// As it was named.
    pub path: PathBuf,
    /// Its descriptor.
    pub file: Arc<OwnedFd>,
    /// Another descriptor, for locks. What is given to an io_uring may stay open for some time after the
    /// process has ended, since the kernel takes rings apart later; locks must not.
    locks: Arc<OwnedFd>,
    /// Size, bytes.
    pub size_bytes: u64,
    /// The device it is or lies on: major and minor number in one, as in [`crate::Metadata::device`].
    pub device: u64,
    /// Whether it is a block device; otherwise it is an image.
    pub is_block_device: bool,
}

/// Why a raw store cannot be used. Each message names the device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RawError {
    /// A device cannot be opened, read, or locked.
    #[error("{}: {error}", path.display())]
    Io {
        /// The device.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// It is neither a block device nor a regular file.
    #[error("{}: neither a block device nor an image file", .0.display())]
    Kind(PathBuf),
    /// A block device that is mounted, or that another program has to itself.
    #[error("{}: in use: mounted, swap, or a part of another device", .0.display())]
    InUse(PathBuf),
    /// The file system has no `O_DIRECT`.
    #[error("{}: its file system refuses O_DIRECT", .0.display())]
    NotDirect(PathBuf),
    /// More devices than a store has.
    #[error("{0} devices: a store has 1 to {DEVICES_MAX}")]
    Devices(usize),
    /// The devices are no store.
    #[error("{}: {error}", path.display())]
    Mount {
        /// The device that it is about.
        path: PathBuf,
        /// Why.
        error: MountError,
    },
    /// No catalogue checks.
    #[error("{}: no whole catalogue: {error}", path.display())]
    Catalogue {
        /// The device with the newest one.
        path: PathBuf,
        /// What is wrong with the newest one.
        error: CatalogueError,
    },
    /// Another process changes the store.
    #[error("{}: another process changes this store", .0.display())]
    Locked(PathBuf),
    /// Another process reads the store, and nobody may while it is made anew.
    #[error("{}: a server reads this store", .0.display())]
    Served(PathBuf),
    /// Another process makes the device a store.
    #[error("{}: another process makes a store of it", .0.display())]
    BeingMade(PathBuf),
    /// The devices have another store than when they were opened, or other sizes, or another order.
    #[error("{}: another store than the one that was opened", .0.display())]
    Foreign(PathBuf),
    /// It was changed again and again while it was read.
    #[error("{}: the store changes too often to be read", .0.display())]
    Restless(PathBuf),
}

/// Whether a program reads or changes a raw store on a device, or makes one: whether it has locks there.
///
/// # Errors
/// The kernel does not say.
pub fn is_in_use(device: BorrowedFd<'_>) -> io::Result<bool> {
    let found = lock_of_another(device, 0..LOCKS_END)?;
    Ok(found.is_some())
}

/// The devices that a name means: several are joined by commas. A name that exists with its commas is
/// one device.
#[must_use]
pub fn names_in(store: &Path) -> Vec<PathBuf> {
    match store.to_str() {
        Some(text) if text.contains(',') && !store.exists() => {
            text.split(',').map(PathBuf::from).collect()
        }
        _ => vec![store.to_owned()],
    }
}

/// A device of a store, to find the catalogue on.
pub trait Blocks {
    /// Its name, for messages.
    fn path(&self) -> &Path;

    /// Size, bytes.
    fn size_bytes(&self) -> u64;

    /// Reads whole blocks; fewer bytes only at the end of the device.
    ///
    /// # Errors
    /// [`RawError::Io`].
    fn read(&self, offset_bytes: u64, length: usize) -> Result<Vec<u8>, RawError>;
}

impl Blocks for Device {
    fn path(&self) -> &Path {
        &self.path
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read(&self, offset_bytes: u64, length: usize) -> Result<Vec<u8>, RawError> {
        Self::read(self, offset_bytes, length)
    }
}

impl Device {
    /// Opens a block device or an image.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn open(path: &Path, access: Access) -> Result<Self, RawError> {
        let failed = |error| RawError::Io {
            path: path.to_owned(),
            error,
        };
        // By name first: opening some device nodes has effects.
        let kind = std::fs::metadata(path).map_err(failed)?.file_type();
        let is_block_device = kind.is_block_device();
        if !is_block_device && !kind.is_file() {
            return Err(RawError::Kind(path.to_owned()));
        }
        let mut options = OpenOptions::new();
        let flags = match access {
            Access::Read { direct: false } => 0,
            Access::Read { direct: true } => libc::O_DIRECT,
            Access::Write if is_block_device => libc::O_DIRECT | libc::O_EXCL,
            Access::Write => libc::O_DIRECT,
        };
        options.read(true).write(access == Access::Write);
        let opened = options.custom_flags(flags).open(path);
        let mut file = match opened {
            // An image may be on a file system without it; who changes a store may use the page cache.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && access == Access::Write => {
                options.custom_flags(flags & !libc::O_DIRECT).open(path)
            }
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                return Err(RawError::NotDirect(path.to_owned()));
            }
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                return Err(RawError::InUse(path.to_owned()));
            }
            opened => opened,
        }
        .map_err(failed)?;
        // Not exclusively: the device is this process's already.
        let locks = options.custom_flags(0).open(path).map_err(failed)?;
        let size_bytes = file.seek(SeekFrom::End(0)).map_err(failed)?;
        let status = file.metadata().map_err(failed)?;
        let number = if is_block_device {
            status.rdev()
        } else {
            status.dev()
        };
        let device = u64::from(libc::major(number)) << 32 | u64::from(libc::minor(number));
        Ok(Self {
            path: path.to_owned(),
            file: Arc::new(file.into()),
            locks: Arc::new(locks.into()),
            size_bytes,
            device,
            is_block_device,
        })
    }

    /// Reads whole blocks; fewer bytes only at the end of the device.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn read(&self, offset_bytes: u64, length: usize) -> Result<Vec<u8>, RawError> {
        let file = self.file.try_clone().map(File::from);
        let file = file.map_err(|error| self.failed(error))?;
        let mut bytes = Vec::new();
        // Only as much as there is: a wrong length must not take all memory.
        let mut piece = vec![0; PIECE_BYTES.min(length) + ALIGNMENT];
        let skip = piece.as_ptr().align_offset(ALIGNMENT);
        while bytes.len() < length {
            let wanted = PIECE_BYTES.min(length - bytes.len());
            let place = offset_bytes.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
            let target = &mut piece[skip..skip + wanted];
            match file.read_at(target, place) {
                Ok(0) => break,
                Ok(count) => bytes.extend_from_slice(&target[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(bytes)
    }
}

impl Device {
    /// Takes or gives up a lock of this open file description; `false`: another has one there.
    fn set_lock(&self, lock: Lock, start: u64, length: u64) -> Result<bool, RawError> {
        set_lock(self.locks.as_fd(), lock, start, length).map_err(|error| self.failed(error))
    }

    /// Which bytes of a part another open file description has a lock on; of several locks it is any.
    fn lock_of_another(&self, part: Range<u64>) -> Result<Option<Range<u64>>, RawError> {
        if part.is_empty() {
            return Ok(None);
        }
        let found = lock_of_another(self.locks.as_fd(), part);
        found.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: io::Error) -> RawError {
        RawError::Io {
            path: self.path.clone(),
            error,
        }
    }

    /// Has the device forget a part of what it holds: a block device is told (`BLKDISCARD`), an image gets a
    /// hole. For whoever has the writer's lock, and for what is free ([`volume::Editor::free_extents`]).
    ///
    /// # Errors
    /// What the kernel said: `EOPNOTSUPP` if there is nothing that could forget.
    pub fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), RawError> {
        let discarded = if self.is_block_device {
            discard_blocks(self.file.as_fd(), offset_bytes, length_bytes)
        } else {
            punch_hole(self.file.as_fd(), offset_bytes, length_bytes)
        };
        discarded.map_err(|error| self.failed(error))
    }
}

/// What was found on the devices.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The catalogue that counts.
    pub catalogue: Catalogue,
    /// Devices that a writer brings up to date first: [`volume::Mounting::lagging`].
    pub lagging: Vec<u16>,
    /// What is wrong with the newest catalogue, if this is not the newest: damage of the device.
    pub damage: Option<CatalogueError>,
    /// Why there may be a newer catalogue: a superblock cannot be read. Then nothing is to be written, for it
    /// would be written over.
    pub unknown: Option<CopyFault>,
    /// Copies that were tried and cannot be used, though others can.
    pub faults: Vec<CopyFault>,
}

/// A copy of a superblock or of a catalogue that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyFault {
    /// The device.
    pub path: PathBuf,
    /// Where the copy begins there, bytes.
    pub offset_bytes: u64,
    /// What is wrong with it.
    pub problem: String,
}

impl core::fmt::Display for CopyFault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (path, offset) = (self.path.display(), self.offset_bytes);
        write!(f, "{path}, from byte {offset}: {}", self.problem)
    }
}

/// Finds the catalogue on devices that nobody else changes, named in any order. Returns their indexes by
/// the number that each device has in the store, too.
///
/// # Errors
/// No copy can be read, they are not the devices of a store, or no catalogue checks.
pub fn find_catalogue<B: Blocks>(devices: &[B]) -> Result<(Vec<usize>, Loaded), RawError> {
    if !(1..=DEVICES_MAX).contains(&devices.len()) {
        return Err(RawError::Devices(devices.len()));
    }
    let found = superblocks(devices)?;
    let loaded = load_from(devices, &found)?;
    Ok((found.mounting.order, loaded))
}

/// What the superblocks of devices say, and those that say nothing.
#[derive(Clone, Debug)]
struct Found {
    mounting: Mounting,
    faults: Vec<CopyFault>,
}

/// Reads all superblocks; there is a device.
fn superblocks<B: Blocks>(devices: &[B]) -> Result<Found, RawError> {
    let mut slots = Vec::new();
    let mut faults = Vec::new();
    for device in devices {
        let read = SUPERBLOCKS.map(|block| {
            let offset_bytes = block * u64::from(BLOCK_BYTES);
            (
                offset_bytes,
                device.read(offset_bytes, BLOCK_BYTES as usize),
            )
        });
        let decode = |bytes: &Result<Vec<u8>, RawError>| match bytes {
            Ok(bytes) => Superblock::decode(bytes),
            Err(_) => Err(SuperblockError::Unreadable),
        };
        for (offset_bytes, bytes) in &read {
            faults.push(match (decode(bytes), bytes) {
                (Ok(_), _) => None,
                (_, Err(error)) => Some(fault(device, *offset_bytes, "the superblock", error)),
                (Err(error), Ok(_)) => Some(CopyFault {
                    path: device.path().to_owned(),
                    offset_bytes: *offset_bytes,
                    problem: format!("the superblock: {error}"),
                }),
            });
        }
        let [(_, first), (_, second)] = read;
        slots.push(DeviceSlots {
            slots: [decode(&first), decode(&second)],
            size_bytes: device.size_bytes(),
        });
        if let (Err(error), Err(_)) = (first, second) {
            // The kernel's words say more than that there is no store.
            return Err(error);
        }
    }
    let mounting = volume::mount(&slots).map_err(|error| RawError::Mount {
        path: devices[error.index().unwrap_or(0)].path().to_owned(),
        error,
    })?;
    // The first change of a store leaves one place empty.
    let newest = mounting.candidates.first();
    let is_first = newest.is_some_and(|it| it.superblock.sequence == 1);
    let is_empty = |slot: &&Result<Superblock, _>| **slot == Err(SuperblockError::Magic);
    let slots = slots.iter().flat_map(|it| &it.slots);
    let faults = slots.zip(faults);
    let faults = faults.filter(|(slot, _)| !(is_first && is_empty(slot)));
    let faults = faults.filter_map(|(_, fault)| fault).collect();
    Ok(Found { mounting, faults })
}

fn fault<B: Blocks>(device: &B, offset_bytes: u64, what: &str, error: &RawError) -> CopyFault {
    let problem = match error {
        RawError::Io { error, .. } => format!("{what} cannot be read: {error}"),
        error => error.to_string(),
    };
    CopyFault {
        path: device.path().to_owned(),
        offset_bytes,
        problem,
    }
}

/// The best of the catalogues that the superblocks name.
fn load_from<B: Blocks>(devices: &[B], found: &Found) -> Result<Loaded, RawError> {
    let mounting = &found.mounting;
    let mut damage = None;
    let mut faults = found.faults.clone();
    for candidate in &mounting.candidates {
        match try_candidate(devices, candidate, &mounting.geometry) {
            Ok(catalogue) => {
                let sequence = catalogue.sequence();
                let newest = mounting.candidates.first();
                let is_newest = newest.is_some_and(|it| it.superblock.sequence == sequence);
                return Ok(Loaded {
                    lagging: mounting.lagging(sequence),
                    damage: damage.filter(|_| !is_newest),
                    unknown: perhaps_newer(devices, found, sequence),
                    faults,
                    catalogue,
                });
            }
            Err((error, fault)) => {
                damage = damage.or(Some(error));
                faults.push(fault);
            }
        }
    }
    Err(RawError::Catalogue {
        path: devices[0].path().to_owned(),
        error: damage.unwrap_or(CatalogueError::Short),
    })
}

/// A superblock that cannot be read and may name a catalogue after this one, as far as the place of that
/// catalogue does not rule it out.
fn perhaps_newer<B: Blocks>(devices: &[B], found: &Found, sequence: u64) -> Option<CopyFault> {
    let mounting = &found.mounting;
    let newer = mounting.perhaps_newer(sequence).find(|unknown| {
        let place = unknown.block.saturating_mul(u64::from(BLOCK_BYTES));
        let first = devices[unknown.index].read(place, BLOCK_BYTES as usize);
        !first.is_ok_and(|block| mounting.rules_out(sequence, &block))
    })?;
    let path = devices[newer.index].path();
    let offset_bytes = SUPERBLOCKS[newer.slot] * u64::from(BLOCK_BYTES);
    let is_it = |it: &&CopyFault| it.path == path && it.offset_bytes == offset_bytes;
    found.faults.iter().find(is_it).cloned()
}

/// Reads a catalogue, and no more of it than there is.
fn try_candidate<B: Blocks>(
    devices: &[B],
    candidate: &Candidate,
    geometry: &Geometry,
) -> Result<Catalogue, (CatalogueError, CopyFault)> {
    let device = &devices[candidate.index];
    let offset_bytes = candidate.block.saturating_mul(u64::from(BLOCK_BYTES));
    let refuse = |error: CatalogueError| {
        let fault = CopyFault {
            path: device.path().to_owned(),
            offset_bytes,
            problem: error.to_string(),
        };
        (error, fault)
    };
    let length = candidate.blocks().saturating_mul(BLOCK_BYTES.into());
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let mut bytes = Vec::new();
    while bytes.len() < length {
        let place = offset_bytes.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        let read = device.read(place, PIECE_BYTES.min(length - bytes.len()));
        let piece = read.map_err(|error| {
            let fault = fault(device, offset_bytes, "the catalogue", &error);
            (CatalogueError::Unreadable, fault)
        })?;
        if piece.is_empty() {
            break;
        }
        if bytes.is_empty() {
            candidate.check_first(&piece).map_err(refuse)?;
        }
        candidate.check_piece(&piece).map_err(refuse)?;
        bytes.extend_from_slice(&piece);
    }
    candidate.check(geometry, &bytes).map_err(refuse)
}

/// The writer's lock on all devices, until it is dropped.
#[derive(Debug)]
#[must_use = "without it another process may change the store"]
pub struct WriterLock(Vec<ExclusiveLock>);

/// An exclusive lock on a part of a device.
#[derive(Debug)]
struct ExclusiveLock {
    descriptor: Arc<OwnedFd>,
    start: u64,
    length: u64,
}

impl ExclusiveLock {
    /// `None`: another process has a lock there.
    fn take(device: &Device, start: u64, length: u64) -> Result<Option<Self>, RawError> {
        let is_taken = device.set_lock(Lock::Exclusive, start, length)?;
        Ok(is_taken.then(|| Self {
            descriptor: Arc::clone(&device.locks),
            start,
            length,
        }))
    }
}

impl Drop for ExclusiveLock {
    fn drop(&mut self) {
        // The end of the process gives it up in any case.
        let descriptor = self.descriptor.as_fd();
        let _ = set_lock(descriptor, Lock::Unlocked, self.start, self.length);
    }
}

/// The devices of a store, by their numbers.
#[derive(Clone, Debug)]
pub struct RawStore {
    devices: Vec<Device>,
    /// What the superblocks said when they were opened; `None`: a store is being made.
    geometry: Option<Geometry>,
    /// Reader's locks of this process by sequence number, and how often each is used.
    locks: Arc<Mutex<BTreeMap<u64, usize>>>,
}

impl RawStore {
    /// Opens the devices of a store, named in any order.
    ///
    /// # Errors
    /// Why they are none.
    pub fn open(paths: &[PathBuf], access: Access) -> Result<Self, RawError> {
        if !(1..=DEVICES_MAX).contains(&paths.len()) {
            return Err(RawError::Devices(paths.len()));
        }
        let devices = paths.iter().map(|path| Device::open(path, access));
        let devices = devices.collect::<Result<Vec<_>, _>>()?;
        let mounting = superblocks(&devices)?.mounting;
        let order = mounting.order.iter();
        Ok(Self {
            devices: order.map(|index| devices[*index].clone()).collect(),
            geometry: Some(mounting.geometry),
            locks: Arc::default(),
        })
    }

    /// The devices of a store that is being made, in the order of their numbers.
    ///
    /// # Panics
    /// If there are none.
    #[must_use]
    pub fn unmounted(devices: Vec<Device>) -> Self {
        assert!(!devices.is_empty(), "a store has a device");
        Self {
            devices,
            geometry: None,
            locks: Arc::default(),
        }
    }

    /// The devices, by number.
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The store's name for messages: its devices, joined by commas.
    #[must_use]
    pub fn name(&self) -> String {
        let names = self.devices.iter().map(|it| it.path.display().to_string());
        names.collect::<Vec<_>>().join(",")
    }

    fn first_path(&self) -> PathBuf {
        self.devices[0].path.clone()
    }

    /// What the superblocks say now, of the store that was opened.
    fn superblocks(&self) -> Result<Found, RawError> {
        let found = superblocks(&self.devices)?;
        let Mounting {
            order, geometry, ..
        } = &found.mounting;
        let is_known = self.geometry.as_ref().is_none_or(|known| known == geometry);
        if is_known && order.is_sorted() {
            Ok(found)
        } else {
            Err(RawError::Foreign(self.name().into()))
        }
    }

    /// The highest sequence number of a superblock.
    ///
    /// # Errors
    /// A device cannot be read, or has no superblock any more, or another store's.
    pub fn newest_sequence(&self) -> Result<u64, RawError> {
        let mounting = self.superblocks()?.mounting;
        let newest = mounting.candidates.first();
        Ok(newest.map_or(0, |it| it.superblock.sequence))
    }

    /// Reads the catalogue that counts. For who holds the writer's lock: no other changes it meanwhile.
    ///
    /// # Errors
    /// A device cannot be read, or no catalogue checks.
    pub fn load(&self) -> Result<Loaded, RawError> {
        load_from(&self.devices, &self.superblocks()?)
    }

    /// Reads every copy of the superblocks and of the catalogues that they name. Returns those that cannot be
    /// used; `None`: another process changes the store meanwhile, so that they are not what they were.
    ///
    /// # Errors
    /// Those of [`RawStore::load`].
    pub fn check_copies(&self) -> Result<Option<Vec<CopyFault>>, RawError> {
        let found = self.superblocks()?;
        let Mounting {
            candidates,
            geometry,
            ..
        } = &found.mounting;
        let mut faults = found.faults;
        for candidate in candidates {
            if let Err((_, fault)) = try_candidate(&self.devices, candidate, geometry) {
                faults.push(fault);
            }
        }
        // A change ends with superblocks, behind which the writer's lock is given up.
        for device in &self.devices {
            let writer = device.lock_of_another(WRITER_LOCK..WRITER_LOCK + 1)?;
            if writer.is_some() {
                return Ok(None);
            }
        }
        let again = self.superblocks()?.mounting;
        Ok((again.candidates == *candidates).then_some(faults))
    }

    /// Reads the catalogue that counts, and has a reader's lock on it: what it names stays until
    /// [`RawStore::unlock`].
    ///
    /// # Errors
    /// Those of [`RawStore::load`]; or writers were faster too often.
    pub fn load_locked(&self) -> Result<Loaded, RawError> {
        let newest = |found: &Found| found.mounting.candidates.first().map(|it| it.superblock);
        let mut found = self.superblocks()?;
        for _ in 0..ATTEMPTS_MAX {
            let loaded = load_from(&self.devices, &found);
            if let Ok(loaded) = &loaded {
                self.lock(loaded.catalogue.sequence())?;
            }
            // If it is still the newest, a writer sees the lock before it uses space again.
            let again = self.superblocks();
            if let Ok(again) = &again
                && newest(again) == newest(&found)
            {
                return loaded;
            }
            if let Ok(loaded) = &loaded {
                self.unlock(loaded.catalogue.sequence());
            }
            found = again?;
        }
        Err(RawError::Restless(self.first_path()))
    }

    fn lock(&self, sequence: u64) -> Result<(), RawError> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        let byte = LOCKS_START.saturating_add(sequence);
        for device in &self.devices {
            if device.set_lock(Lock::Shared, byte, 1)? {
                continue;
            }
            if !locks.contains_key(&sequence) {
                self.unlock_byte(byte);
            }
            return Err(RawError::BeingMade(device.path.clone()));
        }
        *locks.entry(sequence).or_default() += 1;
        Ok(())
    }

    fn unlock_byte(&self, byte: u64) {
        for device in &self.devices {
            // The end of the process gives it up in any case.
            let _ = device.set_lock(Lock::Unlocked, byte, 1);
        }
    }

    /// Gives up a reader's lock on a catalogue.
    pub fn unlock(&self, sequence: u64) {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(uses) = locks.get_mut(&sequence) else {
            return;
        };
        *uses -= 1;
        if *uses == 0 {
            locks.remove(&sequence);
            self.unlock_byte(LOCKS_START.saturating_add(sequence));
        }
    }

    /// Takes the writer's lock, on all devices.
    ///
    /// # Errors
    /// Another process has it.
    pub fn lock_for_writing(&self) -> Result<WriterLock, RawError> {
        let mut locks = Vec::new();
        for device in &self.devices {
            let lock = ExclusiveLock::take(device, WRITER_LOCK, 1)?;
            locks.push(lock.ok_or_else(|| RawError::Locked(device.path.clone()))?);
        }
        Ok(WriterLock(locks))
    }

    /// Takes the writer's lock, and keeps readers away, on all devices: for who makes a store of them,
    /// whatever they hold now.
    ///
    /// # Errors
    /// Another process changes or reads a store that one of them belongs to.
    pub fn lock_for_making(&self) -> Result<WriterLock, RawError> {
        let WriterLock(mut locks) = self.lock_for_writing()?;
        for device in &self.devices {
            let lock = ExclusiveLock::take(device, 0, LOCKS_END)?;
            locks.push(lock.ok_or_else(|| RawError::Served(device.path.clone()))?);
        }
        Ok(WriterLock(locks))
    }

    /// The lowest sequence number of a catalogue that another process reads.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn oldest_reader(&self) -> Result<Option<u64>, RawError> {
        let mut oldest: Option<u64> = None;
        for device in &self.devices {
            let mut end = LOCKS_END;
            // Terminates: `end` decreases.
            while let Some(found) = device.lock_of_another(LOCKS_START..end)? {
                let sequence = found.start - LOCKS_START;
                oldest = Some(oldest.map_or(sequence, |oldest| oldest.min(sequence)));
                end = found.start;
            }
        }
        Ok(oldest)
    }

    /// Whether another process reads a catalogue after the one of this sequence number.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn has_reader_after(&self, sequence: u64) -> Result<bool, RawError> {
        let start = LOCKS_START.saturating_add(sequence).saturating_add(1);
        for device in &self.devices {
            if device.lock_of_another(start..LOCKS_END)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What other processes read. For who holds the writer's lock: no other changes the store meanwhile.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn readers(&self) -> Result<Readers, RawError> {
        // First the catalogues: a reader locks what it keeps of one before it gives the catalogue up.
        let oldest = self.oldest_reader()?;
        let mut extents = Vec::new();
        for (number, device) in (0..).zip(&self.devices) {
            // Terminates: what is left to ask for is a part of what was asked for, without a lock at least.
            let whole = 0..device.size_bytes.min(LOCKS_START - 1);
            let mut parts = Vec::from([whole]);
            while let Some(part) = parts.pop() {
                let Some(found) = device.lock_of_another(part.clone())? else {
                    continue;
                };
                let block = u64::from(BLOCK_BYTES);
                let first = found.start / block;
                extents.push(Extent {
                    device: number,
                    start: first,
                    blocks: found.end.div_ceil(block) - first,
                });
                let around = [part.start..found.start, found.end..part.end];
                parts.extend(around.into_iter().filter(|it| !it.is_empty()));
            }
        }
        Ok(Readers::new(oldest, extents))
    }

    /// Has a reader's lock on an extent of a catalogue that this process has a lock on: its bytes, on its
    /// device. It stays when the catalogue is given up.
    ///
    /// # Errors
    /// The kernel has no more locks, or somebody makes a store of the device.
    pub fn lock_extent(&self, extent: Extent) -> Result<(), RawError> {
        self.set_extent_lock(Lock::Shared, extent)
    }

    /// Gives up a reader's lock on an extent, however often it was taken.
    pub fn unlock_extent(&self, extent: Extent) {
        // The end of the process gives it up in any case.
        let _ = self.set_extent_lock(Lock::Unlocked, extent);
    }

    fn set_extent_lock(&self, lock: Lock, extent: Extent) -> Result<(), RawError> {
        // A length of 0 would mean all that follows.
        if extent.blocks == 0 {
            return Ok(());
        }
        let device = &self.devices[usize::from(extent.device)];
        let block = u64::from(BLOCK_BYTES);
        let (start, length) = (extent.start * block, extent.blocks * block);
        if device.set_lock(lock, start, length)? {
            Ok(())
        } else {
            Err(RawError::BeingMade(device.path.clone()))
        }
    }
}
