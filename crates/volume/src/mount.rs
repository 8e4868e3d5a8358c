//! Which catalogue counts, from the superblocks of all devices.
//!
//! The highest sequence number wins whose catalogue checks, on whichever device. After a power cut the
//! newest may be on some of the devices only; after damage the one before is whole, too. It refuses a
//! store with a device missing, one that was named twice, and one of another store or version.

use crate::catalogue::CatalogueError;
use crate::superblock::{Superblock, SuperblockError};
use crate::{BLOCK_BYTES, Catalogue, StoreId, blocks_of};

/// A device's two superblocks as read, and its size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceSlots {
    /// From the two places of [`crate::SUPERBLOCKS`].
    pub slots: [Result<Superblock, SuperblockError>; 2],
    /// Size of the device, bytes.
    pub size_bytes: u64,
}

/// Why devices are no store; devices are meant by their index in the order they were named.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// None was named.
    #[error("no device was named")]
    None,
    /// A device has no superblock to use.
    #[error("no store: {error}")]
    NoStore {
        /// Which.
        index: usize,
        /// What is in the place of the superblock.
        error: SuperblockError,
    },
    /// Two devices are of different stores.
    #[error("it belongs to store {other}, not to {id} like the first")]
    OtherStore {
        /// Which.
        index: usize,
        /// The first device's.
        id: StoreId,
        /// This device's.
        other: StoreId,
    },
    /// Devices are missing, or there are too many.
    #[error("the store has {count} devices, and {named} were named: name all, joined by commas")]
    Count {
        /// Devices of the store.
        count: u16,
        /// Devices named.
        named: usize,
    },
    /// A device was named twice.
    #[error("it is device {device} of the store, as another that was named")]
    Twice {
        /// Which.
        index: usize,
        /// Its number.
        device: u16,
    },
    /// The device is smaller than it was.
    #[error("it has {size_bytes} bytes, and {needed_bytes} belong to the store: was it truncated?")]
    Shrunk {
        /// Which.
        index: usize,
        /// Its size.
        size_bytes: u64,
        /// What it had.
        needed_bytes: u64,
    },
}

impl MountError {
    /// The device that it is about.
    #[must_use]
    pub const fn index(&self) -> Option<usize> {
        match self {
            Self::NoStore { index, .. }
            | Self::OtherStore { index, .. }
            | Self::Twice { index, .. }
            | Self::Shrunk { index, .. } => Some(*index),
            Self::None | Self::Count { .. } => None,
        }
    }
}

/// A catalogue to be read and tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The index of the device in the order they were named.
    pub index: usize,
    /// First block of the catalogue there.
    pub block: u64,
    /// The superblock that names it.
    pub superblock: Superblock,
}

impl Candidate {
    /// Blocks to read.
    #[must_use]
    pub const fn blocks(&self) -> u64 {
        blocks_of(self.superblock.catalogue_bytes)
    }

    /// The catalogue, from its blocks.
    ///
    /// # Errors
    /// What is wrong with it: try the next one.
    pub fn check(&self, bytes: &[u8]) -> Result<Catalogue, CatalogueError> {
        Catalogue::decode(&self.superblock, bytes)
    }
}

/// The devices in their order, and the catalogues to try.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mounting {
    /// For each device number, the index of the device in the order they were named.
    pub order: Vec<usize>,
    /// The best first.
    pub candidates: Vec<Candidate>,
}

impl Mounting {
    /// Numbers of the devices without a superblock of this sequence number: a power cut, or a failure,
    /// came between them and the others. [`crate::Commit::repair`] brings them up to date, which is to
    /// be done before the next change: it could leave such a device without any superblock.
    #[must_use]
    pub fn lagging(&self, sequence: u64) -> Vec<u16> {
        let has_it = |index: usize| {
            let mut candidates = self.candidates.iter();
            candidates.any(|it| it.index == index && it.superblock.sequence == sequence)
        };
        let devices = (0..).zip(&self.order);
        let lagging = devices.filter(|(_, index)| !has_it(**index));
        lagging.map(|(device, _)| device).collect()
    }
}

/// Compares the superblocks of all devices that were named.
///
/// # Errors
/// Why they are no store.
pub fn mount(devices: &[DeviceSlots]) -> Result<Mounting, MountError> {
    let mut first: Option<Superblock> = None;
    let mut order: Vec<Option<usize>> = Vec::new();
    for (index, device) in devices.iter().enumerate() {
        let superblock = newest(index, device)?;
        let first = *first.get_or_insert(superblock);
        if superblock.id != first.id {
            return Err(MountError::OtherStore {
                index,
                id: first.id,
                other: superblock.id,
            });
        }
        let count = first.device_count;
        if usize::from(count) != devices.len() {
            let named = devices.len();
            return Err(MountError::Count { count, named });
        }
        order.resize(usize::from(count), None);
        let device_number = superblock.device;
        match order.get_mut(usize::from(device_number)) {
            Some(place @ None) => *place = Some(index),
            _ => {
                return Err(MountError::Twice {
                    index,
                    device: device_number,
                });
            }
        }
        let needed_bytes = superblock
            .device_blocks
            .saturating_mul(u64::from(BLOCK_BYTES));
        if device.size_bytes < needed_bytes {
            return Err(MountError::Shrunk {
                index,
                size_bytes: device.size_bytes,
                needed_bytes,
            });
        }
    }
    let order: Vec<_> = order.into_iter().flatten().collect();
    if order.is_empty() {
        return Err(MountError::None);
    }
    let mut candidates: Vec<_> = devices.iter().enumerate().flat_map(candidates_of).collect();
    candidates.sort_by_key(|it| (core::cmp::Reverse(it.superblock.sequence), it.index));
    Ok(Mounting { order, candidates })
}

/// The superblock of a device that counts.
fn newest(index: usize, device: &DeviceSlots) -> Result<Superblock, MountError> {
    let errors = device.slots.iter().filter_map(|slot| slot.err());
    let version = errors
        .clone()
        .find(|it| matches!(it, SuperblockError::Version(_)));
    if let Some(error) = version {
        // A later program wrote it: what the other one says may be out of date.
        return Err(MountError::NoStore { index, error });
    }
    let valid = device.slots.iter().filter_map(|slot| slot.ok());
    let newest = valid.max_by_key(|it| it.sequence);
    // What is damaged says more than what is not there.
    let error = errors.max_by_key(|it| *it != SuperblockError::Magic);
    let error = error.unwrap_or(SuperblockError::Magic);
    newest.ok_or(MountError::NoStore { index, error })
}

fn candidates_of((index, device): (usize, &DeviceSlots)) -> impl Iterator<Item = Candidate> {
    let newest = device
        .slots
        .iter()
        .filter_map(|it| it.ok())
        .max_by_key(|it| it.sequence);
    let slots = device.slots.into_iter().flatten();
    // The older one is of the same device of the same store, or it is not used.
    let same = move |it: &Superblock| {
        newest.is_some_and(|newest| {
            (
                it.id,
                it.device,
                it.device_count,
                it.device_blocks,
                it.area_blocks,
            ) == (
                newest.id,
                newest.device,
                newest.device_count,
                newest.device_blocks,
                newest.area_blocks,
            )
        })
    };
    slots.filter(same).map(move |superblock| Candidate {
        index,
        block: crate::AREAS_START + (superblock.sequence % 2) * superblock.area_blocks,
        superblock,
    })
}
