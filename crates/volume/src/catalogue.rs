//! The catalogue: every object of a store, and the extents that were theirs before.
//!
//! It refuses bytes whose numbers contradict each other: names out of order, extents that overlap or
//! lie outside the devices, sizes that do not fit their extents. So whoever has a [`Catalogue`] may
//! rely on it. Bounded by the catalogue area; decoding allocates a multiple of the bytes it is given.

use crate::bytes::{Reader, Writer};
use crate::digest::{ContentTag, DIGEST_BYTES, RunDigest, sha256};
use crate::superblock::{Superblock, VERSION};
use crate::{
    BLOCK_BYTES, Extent, Geometry, NAME_BYTES_MAX, StoreId, TYPE_BYTES_MAX, Time, blocks_of,
    runs_of,
};

/// First bytes of a catalogue.
const MAGIC: [u8; 8] = *b"ATLASCAT";
/// Bytes of a catalogue before its devices, of an entry before its name, and of a retired extent.
const HEADER_BYTES: u64 = 64;
const ENTRY_BYTES: u64 = 64;
pub(crate) const RETIRED_BYTES: u64 = 32;

/// An object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its name: see [`is_name`].
    pub name: Box<str>,
    /// Its content type; empty: as its name says.
    pub content_type: Box<str>,
    /// Where it lies.
    pub extent: Extent,
    /// Size, bytes. The rest of its last block is zero.
    pub size_bytes: u64,
    /// When the content changed last, where it was before it came here.
    pub modified: Time,
    /// Sequence number of the first catalogue that has it. With the name it identifies the version.
    pub added: u64,
    /// Stands for its content.
    pub tag: ContentTag,
    /// A checksum for each run.
    pub runs: Box<[RunDigest]>,
}

impl Entry {
    /// Bytes that it takes in a catalogue.
    pub(crate) fn encoded_bytes(&self) -> u64 {
        entry_bytes(&self.name, &self.content_type, self.size_bytes)
    }
}

/// Bytes that an object with these fields takes in a catalogue.
pub(crate) fn entry_bytes(name: &str, content_type: &str, size_bytes: u64) -> u64 {
    let runs = runs_of(size_bytes).saturating_mul(as_u64(DIGEST_BYTES));
    (ENTRY_BYTES + as_u64(name.len() + content_type.len())).saturating_add(runs)
}

/// An extent that belonged to an object until it was removed or replaced.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Retired {
    /// Where.
    pub extent: Extent,
    /// Sequence number of the first catalogue without the object. Readers of earlier ones read it.
    pub since: u64,
}

/// A catalogue that was checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Catalogue {
    geometry: Geometry,
    sequence: u64,
    /// By name, ascending.
    entries: Vec<Entry>,
    retired: Vec<Retired>,
}

/// Why bytes are no catalogue to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogueError {
    /// The device reports an error for a part of it.
    #[error("the catalogue cannot be read")]
    Unreadable,
    /// Not the bytes that the superblock means: torn, damaged, or written over meanwhile.
    #[error("the catalogue's checksum is wrong")]
    Checksum,
    /// It ends within a field.
    #[error("the catalogue ends too early")]
    Short,
    /// It does not belong to this superblock, or a field is out of range.
    #[error("the catalogue's {0} is out of range")]
    Field(&'static str),
    /// Two names are equal or out of order.
    #[error("the names of objects {0} and the one before are out of order")]
    Order(u64),
    /// An object is not what can be in a store.
    #[error("object {0}: its {1} is out of range")]
    Entry(u64, &'static str),
    /// Two extents have a block in common.
    #[error("block {block} of device {device} belongs to two objects")]
    Overlap {
        /// The device's number.
        device: u16,
        /// The block.
        block: u64,
    },
}

/// Whether a new object may have this name: 1 to [`NAME_BYTES_MAX`] bytes, of segments between slashes that are
/// neither empty nor `.` nor `..`, and without control characters and backslashes, which no request's path may
/// have, and which would do something to a terminal that lists them.
#[must_use]
pub fn is_name(name: &str) -> bool {
    is_stored_name(name) && !name.contains(|it: char| it.is_control() || it == '\\')
}

/// Whether an object of a catalogue may have this name: all that [`is_name`] wants, but any character other
/// than NUL, since there are stores with such objects. They can be removed.
fn is_stored_name(name: &str) -> bool {
    let is_plain = |segment: &str| !matches!(segment, "" | "." | "..");
    name.len() <= NAME_BYTES_MAX && !name.contains('\0') && name.split('/').all(is_plain)
}

/// Whether an object may have this content type: printable ASCII, at most [`TYPE_BYTES_MAX`] bytes.
fn is_content_type(name: &str) -> bool {
    let is_printable = |byte: u8| (b' '..=b'~').contains(&byte);
    name.len() <= TYPE_BYTES_MAX && name.bytes().all(is_printable)
}

/// The first fields of a catalogue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    magic: [u8; 8],
    version: u32,
    device_count: u32,
    id: StoreId,
    sequence: u64,
    entry_count: u64,
    retired_count: u64,
    area_blocks: u64,
}

impl Header {
    /// `None`: there are fewer bytes than it has.
    pub(crate) fn decode(rest: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            magic: rest.array()?,
            version: rest.u32()?,
            device_count: rest.u32()?,
            id: StoreId(rest.array()?),
            sequence: rest.u64()?,
            entry_count: rest.u64()?,
            retired_count: rest.u64()?,
            area_blocks: rest.u64()?,
        })
    }

    /// Whether it is that of the catalogue that the superblock means.
    pub(crate) fn check(&self, superblock: &Superblock) -> Result<(), CatalogueError> {
        let devices = u32::from(superblock.device_count);
        for (is_right, name) in [
            (self.magic == MAGIC, "magic number"),
            (self.version == VERSION, "version"),
            (self.id == superblock.id, "store"),
            (self.sequence == superblock.sequence, "sequence number"),
            (self.area_blocks == superblock.area_blocks, "area"),
            (self.device_count == devices, "number of devices"),
        ] {
            if !is_right {
                return Err(CatalogueError::Field(name));
            }
        }
        Ok(())
    }

    /// Whether it may be that of a catalogue of this store after number `sequence`.
    pub(crate) fn may_follow(&self, id: StoreId, sequence: u64) -> bool {
        let is_ours = self.magic == MAGIC && self.id == id;
        is_ours && (self.version != VERSION || self.sequence > sequence)
    }
}

impl Catalogue {
    /// The first one of a new store.
    #[must_use]
    pub fn empty(geometry: Geometry) -> Self {
        Self::new(geometry, 1, Vec::new(), Vec::new())
    }

    pub(crate) const fn new(
        geometry: Geometry,
        sequence: u64,
        entries: Vec<Entry>,
        retired: Vec<Retired>,
    ) -> Self {
        Self {
            geometry,
            sequence,
            entries,
            retired,
        }
    }

    /// The store's sizes.
    #[must_use]
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Counts the changes of the store.
    #[must_use]
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// All objects, by name.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Extents that readers of earlier catalogues may still read, or that the catalogue before this one
    /// has.
    #[must_use]
    pub fn retired(&self) -> &[Retired] {
        &self.retired
    }

    /// The object of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Entry> {
        self.index_of(name).map(|index| &self.entries[index])
    }

    /// The place of the object of this name among [`Catalogue::entries`].
    #[must_use]
    pub fn index_of(&self, name: &str) -> Option<usize> {
        let found = self.entries.binary_search_by(|it| (*it.name).cmp(name));
        found.ok()
    }

    /// Whether there are objects whose names begin with `name` and a slash.
    #[must_use]
    pub fn is_directory(&self, name: &str) -> bool {
        let beneath = format!("{name}/");
        let index = self.entries.partition_point(|it| *it.name < *beneath);
        let next = self.entries.get(index);
        next.is_some_and(|it| it.name.starts_with(&beneath))
    }

    /// Bytes of the objects' contents.
    #[must_use]
    pub fn content_bytes(&self) -> u64 {
        self.entries.iter().map(|it| it.size_bytes).sum()
    }

    /// Size on the devices, bytes.
    #[must_use]
    pub fn encoded_bytes(&self) -> u64 {
        let entries = self.entries.iter().map(Entry::encoded_bytes).sum();
        catalogue_bytes(&self.geometry, entries, self.retired.len())
    }

    /// Forgets the checksums of runs, which only those need who verify.
    pub fn forget_runs(&mut self) {
        for entry in &mut self.entries {
            entry.runs = Box::default();
        }
    }

    /// Only these objects, for tests.
    #[cfg(test)]
    pub(crate) fn retain(&mut self, is_kept: impl FnMut(&Entry) -> bool) {
        self.entries.retain(is_kept);
    }

    /// The catalogue as it is on the devices.
    #[must_use]
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.bytes(&MAGIC);
        out.u32(VERSION);
        out.u32(u32::try_from(self.geometry.device_blocks.len()).expect("invariant: few devices"));
        out.bytes(&self.geometry.id.0);
        out.u64(self.sequence);
        out.u64(as_u64(self.entries.len()));
        out.u64(as_u64(self.retired.len()));
        out.u64(self.geometry.area_blocks);
        for blocks in &self.geometry.device_blocks {
            out.u64(*blocks);
        }
        for entry in &self.entries {
            out.u16(u16::try_from(entry.name.len()).expect("invariant: checked at insert"));
            out.u16(u16::try_from(entry.content_type.len()).expect("invariant: checked at insert"));
            out.u16(entry.extent.device);
            out.u16(0);
            out.u64(entry.extent.start);
            out.u64(entry.size_bytes);
            out.i64(entry.modified.seconds);
            out.u32(entry.modified.nanos);
            out.u32(0);
            out.u64(entry.added);
            out.bytes(&entry.tag.0);
            out.bytes(entry.name.as_bytes());
            out.bytes(entry.content_type.as_bytes());
            entry.runs.iter().for_each(|run| out.bytes(&run.0));
        }
        for retired in &self.retired {
            out.u16(retired.extent.device);
            out.u16(0);
            out.u32(0);
            out.u64(retired.extent.start);
            out.u64(retired.extent.blocks);
            out.u64(retired.since);
        }
        out.0
    }

    /// The catalogue that a superblock means, from its bytes: [`Superblock::catalogue_bytes`] of them, or
    /// more.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(superblock: &Superblock, bytes: &[u8]) -> Result<Self, CatalogueError> {
        let length = usize::try_from(superblock.catalogue_bytes).unwrap_or(usize::MAX);
        let bytes = bytes.get(..length).ok_or(CatalogueError::Short)?;
        if sha256(bytes) != superblock.catalogue_digest {
            return Err(CatalogueError::Checksum);
        }
        let mut rest = Reader::new(bytes);
        let catalogue = Self::decode_fields(superblock, &mut rest)?;
        if !rest.rest().is_empty() {
            return Err(CatalogueError::Field("length"));
        }
        catalogue.check_extents()?;
        Ok(catalogue)
    }

    fn decode_fields(
        superblock: &Superblock,
        rest: &mut Reader<'_>,
    ) -> Result<Self, CatalogueError> {
        let header = Header::decode(rest).ok_or(CatalogueError::Short)?;
        header.check(superblock)?;
        let Header {
            id,
            sequence,
            entry_count,
            retired_count,
            area_blocks,
            ..
        } = header;
        let device_blocks = 0..header.device_count;
        let device_blocks = device_blocks.map(|_| rest.u64().ok_or(CatalogueError::Short));
        let device_blocks = device_blocks.collect::<Result<Vec<_>, _>>()?;
        let this = device_blocks.get(usize::from(superblock.device));
        if this != Some(&superblock.device_blocks) {
            return Err(CatalogueError::Field("size of the device"));
        }
        let geometry = Geometry::new(id, device_blocks, area_blocks)
            .map_err(|_| CatalogueError::Field("size of a device"))?;
        let room = as_u64(rest.rest().len());
        if entry_count > room / ENTRY_BYTES || retired_count > room / RETIRED_BYTES {
            return Err(CatalogueError::Short);
        }
        let mut entries: Vec<Entry> = Vec::new();
        for index in 0..entry_count {
            let entry = decode_entry(rest, index, sequence)?;
            if entries.last().is_some_and(|last| last.name >= entry.name) {
                return Err(CatalogueError::Order(index));
            }
            entries.push(entry);
        }
        let mut retired = Vec::new();
        for _ in 0..retired_count {
            retired.push(decode_retired(rest, sequence)?);
        }
        Ok(Self::new(geometry, sequence, entries, retired))
    }

    /// Every extent is within the data of its device, and no two have a block in common.
    fn check_extents(&self) -> Result<(), CatalogueError> {
        let mut extents: Vec<_> = self.extents().filter(|it| it.blocks > 0).collect();
        extents.sort_unstable();
        for extent in &extents {
            let device = usize::from(extent.device);
            let blocks = self.geometry.device_blocks.get(device);
            let end = extent.start.checked_add(extent.blocks);
            let is_within = extent.start >= self.geometry.data_start()
                && end.is_some_and(|end| blocks.is_some_and(|blocks| end <= *blocks));
            if !is_within {
                return Err(CatalogueError::Field("extent"));
            }
        }
        for pair in extents.windows(2) {
            if let [first, second] = pair
                && first.device == second.device
                && first.end() > second.start
            {
                let (device, block) = (second.device, second.start);
                return Err(CatalogueError::Overlap { device, block });
            }
        }
        Ok(())
    }

    /// All extents, of objects and retired.
    pub(crate) fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        let retired = self.retired.iter().map(|it| it.extent);
        self.entries.iter().map(|it| it.extent).chain(retired)
    }
}

fn decode_entry(rest: &mut Reader<'_>, index: u64, sequence: u64) -> Result<Entry, CatalogueError> {
    let refuse = |name| Err(CatalogueError::Entry(index, name));
    let mut fixed = || {
        let name_bytes = usize::from(rest.u16()?);
        let type_bytes = usize::from(rest.u16()?);
        let device = rest.u16()?;
        let zero = u32::from(rest.u16()?);
        let start = rest.u64()?;
        let size_bytes = rest.u64()?;
        let seconds = rest.i64()?;
        let nanos = rest.u32()?;
        let zero = zero | rest.u32()?;
        let added = rest.u64()?;
        let tag = ContentTag(rest.array()?);
        let name = rest.bytes(name_bytes)?;
        let content_type = rest.bytes(type_bytes)?;
        let run_count = usize::try_from(runs_of(size_bytes)).ok()?;
        let runs = rest.bytes(run_count.checked_mul(DIGEST_BYTES)?)?;
        let extent = Extent {
            device,
            start,
            blocks: blocks_of(size_bytes),
        };
        let modified = Time { seconds, nanos };
        Some((
            extent,
            size_bytes,
            modified,
            zero,
            added,
            tag,
            name,
            content_type,
            runs,
        ))
    };
    let fields = fixed().ok_or(CatalogueError::Short)?;
    let (extent, size_bytes, modified, zero, added, tag, name, content_type, runs) = fields;
    let name = core::str::from_utf8(name).ok();
    let name = name.filter(|name| is_stored_name(name));
    let Some(name) = name else {
        return refuse("name");
    };
    let content_type = core::str::from_utf8(content_type).ok();
    let Some(content_type) = content_type.filter(|name| is_content_type(name)) else {
        return refuse("content type");
    };
    if zero != 0 {
        return refuse("reserved field");
    }
    if size_bytes == 0 && extent != Extent::default() {
        return refuse("extent");
    }
    if modified.nanos >= 1_000_000_000 {
        return refuse("time");
    }
    if added == 0 || added > sequence {
        return refuse("version");
    }
    let digest = |bytes: &[u8]| RunDigest(bytes.try_into().unwrap_or_default());
    Ok(Entry {
        name: name.into(),
        content_type: content_type.into(),
        extent,
        size_bytes,
        modified,
        added,
        tag,
        runs: runs.chunks_exact(DIGEST_BYTES).map(digest).collect(),
    })
}

fn decode_retired(rest: &mut Reader<'_>, sequence: u64) -> Result<Retired, CatalogueError> {
    let mut fixed = || {
        let device = rest.u16()?;
        let zero = u32::from(rest.u16()?) | rest.u32()?;
        let start = rest.u64()?;
        let blocks = rest.u64()?;
        let extent = Extent {
            device,
            start,
            blocks,
        };
        Some((zero, extent, rest.u64()?))
    };
    let (zero, extent, since) = fixed().ok_or(CatalogueError::Short)?;
    if zero != 0 || extent.blocks == 0 || since == 0 || since > sequence {
        return Err(CatalogueError::Field("retired extent"));
    }
    Ok(Retired { extent, since })
}

/// Size of a catalogue whose objects take `entries` bytes.
pub(crate) fn catalogue_bytes(geometry: &Geometry, entries: u64, retired: usize) -> u64 {
    let devices = 8 * as_u64(geometry.device_blocks.len());
    (HEADER_BYTES + devices + RETIRED_BYTES * as_u64(retired)).saturating_add(entries)
}

/// Whether an entry may be in a catalogue with this sequence number.
pub(crate) fn is_sound(entry: &Entry) -> bool {
    is_name(&entry.name)
        && is_content_type(&entry.content_type)
        && entry.modified.nanos < 1_000_000_000
        && entry.extent.blocks == blocks_of(entry.size_bytes)
        && as_u64(entry.runs.len()) == runs_of(entry.size_bytes)
}

/// A whole number of blocks that hold a catalogue of `bytes`.
pub(crate) fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    let block = BLOCK_BYTES as usize;
    bytes.resize(bytes.len().next_multiple_of(block), 0);
    bytes
}

pub(crate) fn as_u64(count: usize) -> u64 {
    u64::try_from(count).expect("invariant: a usize has at most 64 bits")
}
