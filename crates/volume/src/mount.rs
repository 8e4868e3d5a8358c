//! Which catalogue counts, from the superblocks of all devices.
//!
//! The highest sequence number wins whose catalogue checks, on whichever device. After a power cut the
//! newest may be on some of the devices only; after damage the one before is whole, too. A copy that the
//! device cannot read is passed over like one with wrong bytes, but **what it says is not known, and it
//! may be newer**: whoever writes asks [`Mounting::perhaps_newer`] first. It refuses a store with a device
//! missing, one that was named twice, and one of another store or version.

use crate::bytes::Reader;
use crate::catalogue::{CatalogueError, Header};
use crate::superblock::{Superblock, SuperblockError};
use crate::{BLOCK_BYTES, Catalogue, Geometry, StoreId, blocks_of};

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
    /// The catalogue areas of two devices have different sizes, though they are of one store.
    #[error("its catalogue areas have {blocks} blocks, and the first device's have {first_blocks}")]
    Area {
        /// Which.
        index: usize,
        /// Blocks of each of its areas.
        blocks: u64,
        /// Blocks of the first device's.
        first_blocks: u64,
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
            | Self::Area { index, .. }
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

    /// Looks at the first block of the catalogue, before the others are read.
    ///
    /// # Errors
    /// It is not the one that the superblock means: try the next candidate.
    pub fn check_first(&self, block: &[u8]) -> Result<(), CatalogueError> {
        let header = Header::decode(&mut Reader::new(block)).ok_or(CatalogueError::Short)?;
        header.check(&self.superblock)
    }

    /// Looks at blocks of the catalogue that were read, before more of them are read: no block of a
    /// catalogue is all zeros, so where one is, it has ended. A superblock that names a large catalogue on a
    /// sparse image, or on a device that was trimmed, thus takes no more memory than there are bytes.
    ///
    /// # Errors
    /// It ends too early: try the next candidate.
    pub fn check_piece(&self, blocks: &[u8]) -> Result<(), CatalogueError> {
        let mut blocks = blocks.chunks(BLOCK_BYTES as usize);
        let is_zero = |block: &[u8]| block.iter().all(|byte| *byte == 0);
        if blocks.any(is_zero) {
            return Err(CatalogueError::Short);
        }
        Ok(())
    }

    /// The catalogue, from its blocks. `geometry`: of the store ([`Mounting::geometry`]).
    ///
    /// # Errors
    /// What is wrong with it: try the next candidate.
    pub fn check(&self, geometry: &Geometry, bytes: &[u8]) -> Result<Catalogue, CatalogueError> {
        let catalogue = Catalogue::decode(&self.superblock, bytes)?;
        if catalogue.geometry() != geometry {
            return Err(CatalogueError::Field("size of a device"));
        }
        Ok(catalogue)
    }
}

/// A superblock that the device cannot read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownSuperblock {
    /// The index of the device in the order they were named.
    pub index: usize,
    /// Which of [`SUPERBLOCKS`](crate::SUPERBLOCKS).
    pub slot: usize,
    /// First block of the catalogue that it would name.
    pub block: u64,
}

/// The devices in their order, and the catalogues to try.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mounting {
    /// For each device number, the index of the device in the order they were named.
    pub order: Vec<usize>,
    /// The store and its sizes, as its superblocks say.
    pub geometry: Geometry,
    /// The best first.
    pub candidates: Vec<Candidate>,
    /// Superblocks that cannot be read, where the other one of the device can.
    pub unknown: Vec<UnknownSuperblock>,
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

    /// Superblocks that cannot be read and could be those of the catalogue after this one. The catalogue
    /// is written before its superblock, and durably so: read the first block of its area and ask
    /// [`Mounting::rules_out`] before anything is written over.
    pub fn perhaps_newer(&self, sequence: u64) -> impl Iterator<Item = &UnknownSuperblock> {
        let next = slot_of(sequence.wrapping_add(1));
        self.unknown.iter().filter(move |it| it.slot == next)
    }

    /// Whether the first block of a catalogue area shows that no superblock of a catalogue after number
    /// `sequence` was written there.
    #[must_use]
    pub fn rules_out(&self, sequence: u64, first_block: &[u8]) -> bool {
        let header = Header::decode(&mut Reader::new(first_block));
        header.is_some_and(|header| !header.may_follow(self.geometry.id, sequence))
    }
}

/// Which of [`SUPERBLOCKS`](crate::SUPERBLOCKS) a sequence number belongs to.
pub(crate) const fn slot_of(sequence: u64) -> usize {
    if sequence.is_multiple_of(2) { 0 } else { 1 }
}

/// Compares the superblocks of all devices that were named.
///
/// # Errors
/// Why they are no store.
pub fn mount(devices: &[DeviceSlots]) -> Result<Mounting, MountError> {
    let mut first: Option<Superblock> = None;
    let mut order: Vec<Option<(usize, u64)>> = Vec::new();
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
        if superblock.area_blocks != first.area_blocks {
            return Err(MountError::Area {
                index,
                blocks: superblock.area_blocks,
                first_blocks: first.area_blocks,
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
            Some(place @ None) => *place = Some((index, superblock.device_blocks)),
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
    let Some(Superblock {
        id, area_blocks, ..
    }) = first
    else {
        return Err(MountError::None);
    };
    let (order, device_blocks) = order.into_iter().flatten().unzip();
    let mut candidates: Vec<_> = devices.iter().enumerate().flat_map(candidates_of).collect();
    candidates.sort_by_key(|it| (core::cmp::Reverse(it.superblock.sequence), it.index));
    let geometry = Geometry {
        id,
        device_blocks,
        area_blocks,
    };
    let devices = devices.iter().enumerate();
    let unknown = devices.flat_map(|(index, device)| unknown_of(index, device, &geometry));
    Ok(Mounting {
        unknown: unknown.collect(),
        geometry,
        order,
        candidates,
    })
}

fn unknown_of(
    index: usize,
    device: &DeviceSlots,
    geometry: &Geometry,
) -> impl Iterator<Item = UnknownSuperblock> {
    let slots = (0..).zip(device.slots.iter());
    slots
        .filter(|(_, slot)| **slot == Err(SuperblockError::Unreadable))
        .map(move |(sequence, _)| UnknownSuperblock {
            index,
            slot: slot_of(sequence),
            block: geometry.area_start(sequence),
        })
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
