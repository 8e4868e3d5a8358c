//! The devices of a raw store: opening them, finding the catalogue that counts, and locks.
//!
//! **A writer and its readers agree by locks of the first device's open file descriptions**
//! (fcntl(2), `F_OFD_SETLK`), which end with the process that holds them. A reader has a shared lock on
//! the byte [`LOCKS_START`] + *n* for each catalogue *n* that it uses; a writer has an exclusive lock on
//! the byte before, and asks which of the others are locked before it uses space again.
//!
//! It refuses devices that do not belong together, and those that another program has to itself.
//! Bounded by [`ATTEMPTS_MAX`], [`volume::DEVICES_MAX`], and the catalogue's size.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use volume::{
    BLOCK_BYTES, Candidate, Catalogue, CatalogueError, DEVICES_MAX, DeviceSlots, MountError,
    Mounting, SUPERBLOCKS, Superblock,
};

use crate::system::{Lock, discard_blocks, lock_of_another, punch_hole, set_lock};

/// The lock byte of catalogue 0; larger than any device.
const LOCKS_START: u64 = 1 << 62;
/// The writer's lock byte.
const WRITER_LOCK: u64 = LOCKS_START - 1;
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
    /// It was changed again and again while it was read.
    #[error("{}: the store changes too often to be read", .0.display())]
    Restless(PathBuf),
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
        let failed = |error| RawError::Io {
            path: self.path.clone(),
            error,
        };
        let file = self.file.try_clone().map(File::from).map_err(failed)?;
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
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(bytes)
    }
}

impl Device {
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
        discarded.map_err(|error| RawError::Io {
            path: self.path.clone(),
            error,
        })
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
}

/// Finds the catalogue on devices that nobody else changes, named in any order. Returns their indexes by
/// the number that each device has in the store, too.
///
/// # Errors
/// A device cannot be read, they are not the devices of a store, or no catalogue checks.
pub fn find_catalogue<B: Blocks>(devices: &[B]) -> Result<(Vec<usize>, Loaded), RawError> {
    if !(1..=DEVICES_MAX).contains(&devices.len()) {
        return Err(RawError::Devices(devices.len()));
    }
    let mounting = superblocks(devices)?;
    let loaded = load_from(devices, &mounting)?;
    Ok((mounting.order, loaded))
}

/// What the superblocks of devices say; there is a device.
fn superblocks<B: Blocks>(devices: &[B]) -> Result<Mounting, RawError> {
    let mut slots = Vec::new();
    for device in devices {
        let block = |number: u64| {
            let bytes = device.read(number * u64::from(BLOCK_BYTES), BLOCK_BYTES as usize)?;
            Ok(Superblock::decode(&bytes))
        };
        slots.push(DeviceSlots {
            slots: [block(SUPERBLOCKS[0])?, block(SUPERBLOCKS[1])?],
            size_bytes: device.size_bytes(),
        });
    }
    volume::mount(&slots).map_err(|error| RawError::Mount {
        path: devices[error.index().unwrap_or(0)].path().to_owned(),
        error,
    })
}

/// The best of the catalogues that the superblocks name.
fn load_from<B: Blocks>(devices: &[B], mounting: &Mounting) -> Result<Loaded, RawError> {
    let mut damage = None;
    for candidate in &mounting.candidates {
        match try_candidate(&devices[candidate.index], candidate)? {
            Ok(catalogue) => {
                let sequence = catalogue.sequence();
                let newest = mounting.candidates.first();
                let is_newest = newest.is_some_and(|it| it.superblock.sequence == sequence);
                return Ok(Loaded {
                    lagging: mounting.lagging(sequence),
                    damage: damage.filter(|_| !is_newest),
                    catalogue,
                });
            }
            Err(error) => damage = damage.or(Some(error)),
        }
    }
    Err(RawError::Catalogue {
        path: devices[0].path().to_owned(),
        error: damage.unwrap_or(CatalogueError::Short),
    })
}

fn try_candidate<B: Blocks>(
    device: &B,
    candidate: &Candidate,
) -> Result<Result<Catalogue, CatalogueError>, RawError> {
    let block_bytes = u64::from(BLOCK_BYTES);
    let length = candidate.blocks().saturating_mul(block_bytes);
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let bytes = device.read(candidate.block.saturating_mul(block_bytes), length)?;
    Ok(candidate.check(&bytes))
}

/// The writer's lock, until it is dropped.
#[derive(Debug)]
#[must_use = "without it another process may change the store"]
pub struct WriterLock(Arc<OwnedFd>);

impl Drop for WriterLock {
    fn drop(&mut self) {
        // The end of the process gives it up in any case.
        let _ = set_lock(self.0.as_fd(), Lock::Unlocked, WRITER_LOCK, 1);
    }
}

/// The devices of a store, by their numbers.
#[derive(Clone, Debug)]
pub struct RawStore {
    devices: Vec<Device>,
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
        let store = Self {
            devices: devices.collect::<Result<_, _>>()?,
            locks: Arc::default(),
        };
        let mounting = store.superblocks()?;
        let devices = mounting.order.iter();
        Ok(Self {
            devices: devices.map(|index| store.devices[*index].clone()).collect(),
            locks: store.locks,
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

    fn superblocks(&self) -> Result<Mounting, RawError> {
        superblocks(&self.devices)
    }

    /// The highest sequence number of a superblock.
    ///
    /// # Errors
    /// A device cannot be read, or has no superblock any more.
    pub fn newest_sequence(&self) -> Result<u64, RawError> {
        let mounting = self.superblocks()?;
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

    /// Reads the catalogue that counts, and has a reader's lock on it: what it names stays until
    /// [`RawStore::unlock`].
    ///
    /// # Errors
    /// Those of [`RawStore::load`]; or writers were faster too often.
    pub fn load_locked(&self) -> Result<Loaded, RawError> {
        let newest = |mounting: &Mounting| mounting.candidates.first().map(|it| it.superblock);
        let mut mounting = self.superblocks()?;
        for _ in 0..ATTEMPTS_MAX {
            let loaded = load_from(&self.devices, &mounting);
            if let Ok(loaded) = &loaded {
                self.lock(loaded.catalogue.sequence())?;
            }
            // If it is still the newest, a writer sees the lock before it uses space again.
            let again = self.superblocks()?;
            if newest(&again) == newest(&mounting) {
                return loaded;
            }
            if let Ok(loaded) = &loaded {
                self.unlock(loaded.catalogue.sequence());
            }
            mounting = again;
        }
        Err(RawError::Restless(self.first_path()))
    }

    fn lock(&self, sequence: u64) -> Result<(), RawError> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        let byte = LOCKS_START.saturating_add(sequence);
        self.set_lock(Lock::Shared, byte)?;
        *locks.entry(sequence).or_default() += 1;
        Ok(())
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
            let byte = LOCKS_START.saturating_add(sequence);
            // The end of the process gives it up in any case.
            let _ = self.set_lock(Lock::Unlocked, byte);
        }
    }

    /// Takes the writer's lock.
    ///
    /// # Errors
    /// Another process has it.
    pub fn lock_for_writing(&self) -> Result<WriterLock, RawError> {
        if self.set_lock(Lock::Exclusive, WRITER_LOCK)? {
            Ok(WriterLock(Arc::clone(&self.devices[0].locks)))
        } else {
            Err(RawError::Locked(self.first_path()))
        }
    }

    fn set_lock(&self, lock: Lock, byte: u64) -> Result<bool, RawError> {
        let device = &self.devices[0];
        set_lock(device.locks.as_fd(), lock, byte, 1).map_err(|error| RawError::Io {
            path: device.path.clone(),
            error,
        })
    }

    /// The lowest sequence number of a catalogue that another process reads.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn oldest_reader(&self) -> Result<Option<u64>, RawError> {
        let device = &self.devices[0];
        let mut end = LOCKS_START + volume::SEQUENCE_MAX + 1;
        let mut oldest = None;
        // Terminates: `end` decreases.
        while end > LOCKS_START {
            let found = lock_of_another(device.locks.as_fd(), LOCKS_START, end - LOCKS_START);
            let found = found.map_err(|error| RawError::Io {
                path: device.path.clone(),
                error,
            })?;
            let Some(byte) = found else {
                break;
            };
            oldest = Some(byte - LOCKS_START);
            end = byte;
        }
        Ok(oldest)
    }
}
