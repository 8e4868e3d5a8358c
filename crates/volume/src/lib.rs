//! The on-disk format of a raw store: objects on block devices or images, without a file system.
//!
//! **After a power cut at any write, the store has the old catalogue or the new one, and every byte of
//! its objects.** A change writes the data of new objects where neither of the two catalogues on the
//! devices has any, then the new catalogue over the older of the two, then the superblock that names
//! it, with a flush behind each of the three ([`Commit`]). The format is `docs/develop/store-format.md`.
//!
//! A store is one or several devices ([`DEVICES_MAX`]). Each object lies in one piece on one of them
//! ([`Extent`]). Each device has two superblocks and two areas for catalogues, and all have the same
//! catalogue. Objects never change: another content under the same name is a new version, and the
//! space of the old one is used again only when [`Editor::new`] hears of no reader of it, nor of a
//! catalogue that has it ([`Readers`]).
//!
//! It makes no system calls: callers read and write blocks, flush, and hold locks. Bytes from a device
//! are untrusted: each decoder returns a typed error and never panics, and allocates no more than a
//! multiple of the bytes it is given. Bounded by [`DEVICES_MAX`], [`NAME_BYTES_MAX`],
//! [`TYPE_BYTES_MAX`], [`CATALOGUE_BYTES_MAX`], and the size of the catalogue's area.
//!
//! ```text
//!  block 0    superblock 0      (sequence even)
//!  block 16   superblock 1      (sequence odd)
//!  block 256  catalogue 0       (sequence even)
//!    + n      catalogue 1       (sequence odd), both of n blocks
//!    + 2n     extents of objects, to the end of the device
//! ```
#![forbid(unsafe_code)]

mod bytes;
mod catalogue;
mod commit;
mod digest;
mod editor;
mod mount;
mod names;
mod readers;
mod signature;
mod space;
mod superblock;
#[cfg(test)]
mod tests;

pub use catalogue::{Catalogue, CatalogueError, Entry, Retired, is_name};
pub use commit::{Commit, Step};
pub use digest::{ContentDigest, ContentTag, RunDigest, digest_run};
pub use editor::{CatalogueFull, CommitError, Editor, NoRoom};
pub use mount::{Candidate, DeviceSlots, MountError, Mounting, UnknownSuperblock, mount};
pub use names::NameIndex;
pub use readers::Readers;
pub use signature::{LOOKED_AT_BYTES, content_of};
pub use superblock::{Superblock, SuperblockError};

/// Block of the format, bytes. All offsets are counted in it, and extents begin and end with one: the
/// largest alignment that direct reads of usual devices ask for.
pub const BLOCK_BYTES: u32 = 4096;
/// Bytes of an object that share a checksum; the last run of an object may be shorter.
pub const RUN_BYTES: u32 = 1 << 20;
/// Most devices of a store.
pub const DEVICES_MAX: usize = 64;
/// Longest name of an object, bytes: the longest path that is looked up, without its leading slash.
pub const NAME_BYTES_MAX: usize = 4094;
/// Longest content type, bytes: what the `http` room takes.
pub const TYPE_BYTES_MAX: usize = 128;
/// Largest catalogue area, bytes.
pub const CATALOGUE_BYTES_MAX: u64 = 16 << 30;
/// Largest sequence number: a lock on a byte of its own can stand for each.
pub const SEQUENCE_MAX: u64 = 1 << 60;
/// Where the two superblocks are, in blocks: 64 KiB apart, so that no device writes both at once.
pub const SUPERBLOCKS: [u64; 2] = [0, 16];
/// Where the first catalogue area begins, in blocks. What lies before, but for the superblocks, is
/// zero: the first MiB is where other formats have their signatures.
pub const AREAS_START: u64 = 256;

/// Identifies a store: random, chosen when it is made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct StoreId(pub [u8; 16]);

impl core::fmt::Display for StoreId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Where an object lies: whole blocks of one device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Extent {
    /// Number of the device in its store.
    pub device: u16,
    /// First block.
    pub start: u64,
    /// Number of blocks; 0 only for an empty object.
    pub blocks: u64,
}

impl Extent {
    /// The block behind its last one.
    const fn end(&self) -> u64 {
        self.start.saturating_add(self.blocks)
    }
}

/// A point in time as file systems count it: since 1970-01-01, UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds, below 10^9.
    pub nanos: u32,
}

/// What is chosen at `init` and never changes: the devices' sizes and the catalogue's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// The store.
    pub id: StoreId,
    /// Blocks of each device, by its number; `1..=DEVICES_MAX` of them.
    pub device_blocks: Vec<u64>,
    /// Blocks of each of the two catalogue areas.
    pub area_blocks: u64,
}

/// Why there can be no such store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// No device, or more than [`DEVICES_MAX`].
    #[error("{0} devices: a store has 1 to {DEVICES_MAX}")]
    Devices(usize),
    /// A device has no room for objects behind the catalogue areas.
    #[error("device {device} has {blocks} blocks of 4 KiB: at least {needed} are needed")]
    TooSmall {
        /// Its number.
        device: usize,
        /// Its blocks.
        blocks: u64,
        /// What it must have.
        needed: u64,
    },
    /// The catalogue area is empty or larger than [`CATALOGUE_BYTES_MAX`].
    #[error("a catalogue area of {0} blocks of 4 KiB: choose 1 block to 16 GiB")]
    Area(u64),
}

impl Geometry {
    /// Largest and smallest area that [`Geometry::usual_area_blocks`] chooses: 256 KiB, which a small
    /// image can spare, to 1 GiB.
    const USUAL_AREA_BLOCKS: core::ops::RangeInclusive<u64> = 64..=1 << 18;
    /// Of all blocks of the store, one of this many is for each area. An object of up to 1 MiB with a name
    /// of 48 bytes takes 128 bytes of catalogue; so there is room for objects of 32 KiB each.
    const USUAL_AREA_SHARE: u64 = 256;

    /// Checks the sizes.
    ///
    /// # Errors
    /// What is out of range.
    pub fn new(
        id: StoreId,
        device_blocks: Vec<u64>,
        area_blocks: u64,
    ) -> Result<Self, GeometryError> {
        if !(1..=DEVICES_MAX).contains(&device_blocks.len()) {
            return Err(GeometryError::Devices(device_blocks.len()));
        }
        if area_blocks == 0 || area_blocks > CATALOGUE_BYTES_MAX / u64::from(BLOCK_BYTES) {
            return Err(GeometryError::Area(area_blocks));
        }
        let geometry = Self {
            id,
            device_blocks,
            area_blocks,
        };
        let needed = geometry.data_start() + 1;
        let small = geometry.device_blocks.iter().position(|it| *it < needed);
        match small {
            Some(device) => Err(GeometryError::TooSmall {
                device,
                blocks: geometry.device_blocks[device],
                needed,
            }),
            None => Ok(geometry),
        }
    }

    /// The area for a store of this many blocks in all, where nobody chose one.
    #[must_use]
    pub fn usual_area_blocks(blocks: u64) -> u64 {
        let (least, most) = (
            *Self::USUAL_AREA_BLOCKS.start(),
            *Self::USUAL_AREA_BLOCKS.end(),
        );
        (blocks / Self::USUAL_AREA_SHARE).clamp(least, most)
    }

    /// First block of the catalogue area that a sequence number belongs to.
    #[must_use]
    pub fn area_start(&self, sequence: u64) -> u64 {
        AREAS_START + (sequence % 2) * self.area_blocks
    }

    /// First block that may belong to objects, on each device.
    #[must_use]
    pub fn data_start(&self) -> u64 {
        AREAS_START + 2 * self.area_blocks
    }

    /// Bytes of each catalogue area.
    #[must_use]
    pub fn area_bytes(&self) -> u64 {
        self.area_blocks * u64::from(BLOCK_BYTES)
    }

    /// Blocks for objects on all devices.
    #[must_use]
    pub fn data_blocks(&self) -> u64 {
        let blocks = self.device_blocks.iter();
        blocks.map(|blocks| blocks - self.data_start()).sum()
    }
}

/// Blocks that `bytes` take.
#[must_use]
pub const fn blocks_of(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES as u64)
}

/// Number of checksums of an object of `bytes`.
#[must_use]
pub const fn runs_of(bytes: u64) -> u64 {
    bytes.div_ceil(RUN_BYTES as u64)
}
