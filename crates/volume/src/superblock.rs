//! The superblock: names the store, the device's place in it, and the catalogue that counts.
//!
//! A device has two, written in turn ([`crate::SUPERBLOCKS`]). It refuses bytes that another program,
//! another version of the format or a torn write left there.

use crate::bytes::{Reader, Writer};
use crate::digest::{DIGEST_BYTES, sha256};
use crate::{BLOCK_BYTES, DEVICES_MAX, Geometry, RUN_BYTES, SEQUENCE_MAX, StoreId};

/// First bytes of each superblock, in every version.
pub(crate) const MAGIC: [u8; 8] = *b"ATLASTOR";
/// The version that is written, and the only one that is read.
pub(crate) const VERSION: u32 = 1;
/// Where the checksum of the bytes before it is, in every version.
const CHECKED_BYTES: usize = BLOCK_BYTES as usize - DIGEST_BYTES;

/// A superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// The store.
    pub id: StoreId,
    /// This device's number in the store, below `device_count`.
    pub device: u16,
    /// Devices of the store, `1..=DEVICES_MAX`.
    pub device_count: u16,
    /// Blocks of this device that belong to the store.
    pub device_blocks: u64,
    /// Blocks of each catalogue area.
    pub area_blocks: u64,
    /// Of the catalogue, counted from 1; increases with each change of the store.
    pub sequence: u64,
    /// Size of the catalogue, bytes.
    pub catalogue_bytes: u64,
    /// SHA-256 of the catalogue.
    pub catalogue_digest: [u8; 32],
}

/// Why a block is no superblock to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SuperblockError {
    /// Fewer bytes than a block.
    #[error("the device ends within it")]
    Short,
    /// The device reports an error for it. What it says is not known; it may be of a newer catalogue.
    #[error("its superblock cannot be read")]
    Unreadable,
    /// Another program's bytes, or none.
    #[error("no superblock")]
    Magic,
    /// Its checksum does not fit: torn or damaged.
    #[error("its checksum is wrong")]
    Checksum,
    /// Of a version that is not known.
    #[error("format version {0}: this program reads version {VERSION}")]
    Version(u32),
    /// A field is out of range, though the checksum fits.
    #[error("{0} is out of range")]
    Field(&'static str),
}

impl Superblock {
    /// The block as it is on the device.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.bytes(&MAGIC);
        out.u32(VERSION);
        out.u32(BLOCK_BYTES);
        out.bytes(&self.id.0);
        out.u16(self.device);
        out.u16(self.device_count);
        out.u32(RUN_BYTES);
        out.u64(self.device_blocks);
        out.u64(self.area_blocks);
        out.u64(self.sequence);
        out.u64(self.catalogue_bytes);
        out.bytes(&self.catalogue_digest);
        out.0.resize(CHECKED_BYTES, 0);
        let digest = sha256(&out.0);
        out.bytes(&digest[..DIGEST_BYTES]);
        out.0
    }

    /// A superblock from the block at its place.
    ///
    /// # Errors
    /// Why it is none. [`SuperblockError::Version`] is of a block whose checksum fits.
    pub fn decode(block: &[u8]) -> Result<Self, SuperblockError> {
        let block = block.get(..BLOCK_BYTES as usize);
        let block = block.ok_or(SuperblockError::Short)?;
        if !block.starts_with(&MAGIC) {
            return Err(SuperblockError::Magic);
        }
        let (checked, digest) = block.split_at(CHECKED_BYTES);
        if sha256(checked)[..DIGEST_BYTES] != *digest {
            return Err(SuperblockError::Checksum);
        }
        let mut fields = Reader::new(&checked[MAGIC.len()..]);
        Self::fields(&mut fields).unwrap_or(Err(SuperblockError::Short))
    }

    fn fields(fields: &mut Reader<'_>) -> Option<Result<Self, SuperblockError>> {
        let version = fields.u32()?;
        if version != VERSION {
            return Some(Err(SuperblockError::Version(version)));
        }
        let block_bytes = fields.u32()?;
        let id = StoreId(fields.array()?);
        let device = fields.u16()?;
        let device_count = fields.u16()?;
        let run_bytes = fields.u32()?;
        let superblock = Self {
            id,
            device,
            device_count,
            device_blocks: fields.u64()?,
            area_blocks: fields.u64()?,
            sequence: fields.u64()?,
            catalogue_bytes: fields.u64()?,
            catalogue_digest: fields.array()?,
        };
        let rest_is_zero = fields.rest().iter().all(|byte| *byte == 0);
        let refuse = |name| Some(Err(SuperblockError::Field(name)));
        if block_bytes != BLOCK_BYTES {
            return refuse("the block size");
        }
        if run_bytes != RUN_BYTES {
            return refuse("the size of runs");
        }
        if !(1..=DEVICES_MAX).contains(&usize::from(device_count)) || device >= device_count {
            return refuse("the device's number");
        }
        let whole = Geometry::new(id, vec![superblock.device_blocks], superblock.area_blocks);
        let Ok(geometry) = whole else {
            return refuse("the device's size");
        };
        if superblock.catalogue_bytes > geometry.area_bytes() {
            return refuse("the catalogue's size");
        }
        if !(1..=SEQUENCE_MAX).contains(&superblock.sequence) {
            return refuse("the sequence number");
        }
        if !rest_is_zero {
            return refuse("the reserved part");
        }
        Some(Ok(superblock))
    }
}
