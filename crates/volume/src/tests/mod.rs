//! A store on devices in memory: what the tests share.

mod crash;
mod formats;
mod names;
mod readers;
mod space;
mod unreadable;

use std::collections::BTreeMap;

use crate::commit::Fault;
use crate::{
    BLOCK_BYTES, Catalogue, CatalogueError, Commit, ContentDigest, DeviceSlots, Editor, Entry,
    Extent, Geometry, MountError, RUN_BYTES, Readers, SUPERBLOCKS, Step, StoreId, Superblock,
    SuperblockError, Time, digest_run, mount,
};

/// The unit that a device writes whole or not at all, bytes.
const SECTOR_BYTES: usize = 512;
const BLOCK: usize = BLOCK_BYTES as usize;

/// Devices with volatile caches: what was written since the last flush may be lost.
#[derive(Clone, Debug)]
struct Devices {
    durable: Vec<Vec<u8>>,
    /// Sectors written since the last flush, in order: device, offset in bytes, content.
    cached: Vec<(usize, usize, Vec<u8>)>,
    /// Blocks that cannot be read, by device. One that is written is readable from then on: drives put
    /// another sector in its place.
    unreadable: Vec<(usize, usize)>,
}

impl Devices {
    fn new(blocks: &[u64]) -> Self {
        let blocks = blocks.iter().map(|it| usize::try_from(*it).unwrap());
        Self {
            durable: blocks.map(|blocks| vec![0; blocks * BLOCK]).collect(),
            cached: Vec::new(),
            unreadable: Vec::new(),
        }
    }

    fn write(&mut self, device: u16, block: u64, bytes: &[u8]) {
        let start = usize::try_from(block).unwrap() * BLOCK;
        let first = start / BLOCK;
        let written = first..first + bytes.len().div_ceil(BLOCK);
        let is_written =
            |(at, block): &(usize, usize)| *at == device.into() && written.contains(block);
        self.unreadable.retain(|it| !is_written(it));
        for (index, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
            let offset = start + index * SECTOR_BYTES;
            self.cached.push((device.into(), offset, sector.to_owned()));
        }
    }

    /// Forgets blocks: what is there then is anything, and a part of them may keep what it had.
    fn discard(&mut self, extent: Extent) {
        for block in extent.start..extent.start + extent.blocks {
            let bytes = content(block ^ 0x5eed, BLOCK);
            self.write(extent.device, block, &bytes);
        }
    }

    fn flush(&mut self) {
        for (device, offset, sector) in self.cached.drain(..) {
            self.durable[device][offset..][..sector.len()].copy_from_slice(&sector);
        }
    }

    /// What the devices have if of the cached sectors these were written, in this order.
    fn after_cut(&self, kept: impl IntoIterator<Item = usize>) -> View<'_> {
        let mut over = BTreeMap::new();
        for index in kept {
            let (device, offset, sector) = &self.cached[index];
            over.insert((*device, *offset), &**sector);
        }
        View {
            below: &self.durable,
            over,
            unreadable: self.unreadable.clone(),
        }
    }

    /// What they have as long as the power stays.
    fn view(&self) -> View<'_> {
        self.after_cut(0..self.cached.len())
    }
}

/// Content of devices.
#[derive(Clone, Debug)]
struct View<'a> {
    below: &'a [Vec<u8>],
    over: BTreeMap<(usize, usize), &'a [u8]>,
    /// See [`Devices::unreadable`].
    unreadable: Vec<(usize, usize)>,
}

impl View<'_> {
    fn read(&self, device: usize, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = self.below[device][offset..offset + length].to_vec();
        for (&(_, place), sector) in self.over.range((device, offset)..(device, offset + length)) {
            let at = place - offset;
            let end = (at + sector.len()).min(length);
            bytes[at..end].copy_from_slice(&sector[..end - at]);
        }
        bytes
    }

    /// The same; `None` if a block of it cannot be read.
    fn read_faulty(&self, device: usize, offset: usize, length: usize) -> Option<Vec<u8>> {
        let blocks = offset / BLOCK..(offset + length).div_ceil(BLOCK);
        let is_in = |(at, block): &(usize, usize)| *at == device && blocks.contains(block);
        let is_readable = !self.unreadable.iter().any(is_in);
        is_readable.then(|| self.read(device, offset, length))
    }

    fn to_devices(&self) -> Devices {
        let mut durable = self.below.to_vec();
        for (&(device, offset), sector) in &self.over {
            durable[device][offset..][..sector.len()].copy_from_slice(sector);
        }
        Devices {
            durable,
            cached: Vec::new(),
            unreadable: self.unreadable.clone(),
        }
    }

    fn slots(&self) -> Vec<DeviceSlots> {
        let devices = 0..self.below.len();
        devices
            .map(|device| DeviceSlots {
                slots: SUPERBLOCKS.map(|block| {
                    let offset = usize::try_from(block).unwrap() * BLOCK;
                    let block = self.read_faulty(device, offset, BLOCK);
                    block.map_or(Err(SuperblockError::Unreadable), |it| {
                        Superblock::decode(&it)
                    })
                }),
                size_bytes: self.below[device].len() as u64,
            })
            .collect()
    }

    /// The catalogue, and the index of the candidate that it is.
    fn mount(&self) -> Result<Option<(usize, Catalogue)>, MountError> {
        let mounting = mount(&self.slots())?;
        let tried = mounting.candidates.iter().enumerate();
        let catalogues = tried.filter_map(|(index, candidate)| {
            let offset = usize::try_from(candidate.block).unwrap() * BLOCK;
            let length = usize::try_from(candidate.blocks()).unwrap() * BLOCK;
            let bytes = self.read_faulty(candidate.index, offset, length);
            let bytes = bytes.ok_or(CatalogueError::Unreadable);
            let checked = bytes.and_then(|it| candidate.check(&mounting.geometry, &it));
            Some((index, checked.ok()?))
        });
        Ok(catalogues.take(1).last())
    }

    fn content(&self, entry: &Entry) -> Vec<u8> {
        let offset = usize::try_from(entry.extent.start).unwrap() * BLOCK;
        let length = usize::try_from(entry.size_bytes).unwrap();
        self.read(entry.extent.device.into(), offset, length)
    }

    /// The same, but for objects with a block that cannot be read.
    fn verify_readable(&self, catalogue: &Catalogue) -> Result<(), String> {
        let mut readable = catalogue.clone();
        readable.retain(|entry| {
            let offset = usize::try_from(entry.extent.start).unwrap() * BLOCK;
            let length = usize::try_from(entry.size_bytes).unwrap();
            let read = self.read_faulty(entry.extent.device.into(), offset, length);
            read.is_some()
        });
        let lost = catalogue.entries().len() - readable.entries().len();
        if lost > self.unreadable.len() {
            return Err(format!("{lost} objects cannot be read"));
        }
        self.verify(&readable)
    }

    /// What is wrong with the content of any object.
    fn verify(&self, catalogue: &Catalogue) -> Result<(), String> {
        catalogue
            .entries()
            .iter()
            .try_for_each(|entry| self.verify_entry(entry))
    }

    fn verify_entry(&self, entry: &Entry) -> Result<(), String> {
        let content = self.content(entry);
        let runs = content.chunks(RUN_BYTES as usize).zip(&entry.runs);
        for (index, (run, digest)) in runs.enumerate() {
            if digest_run(run) != *digest {
                return Err(format!("run {index} of {} is damaged", entry.name));
            }
        }
        Ok(())
    }
}

/// Bytes that differ for each object, version and place.
fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..length).map(|_| next()).collect()
}

fn geometry(blocks: &[u64], area_blocks: u64) -> Geometry {
    Geometry::new(StoreId([7; 16]), blocks.to_vec(), area_blocks).unwrap()
}

/// Carries a commit out; calls `after` behind each step.
fn run(commit: Commit, devices: &mut Devices, after: &mut dyn FnMut(&Devices)) -> Catalogue {
    let mut commit = commit;
    loop {
        match commit.next_step() {
            Step::Write {
                device,
                block,
                bytes,
            } => devices.write(device, block, bytes),
            Step::Flush => devices.flush(),
            Step::Done => return commit.into_catalogue(),
        }
        after(devices);
    }
}

/// A new store.
fn init(blocks: &[u64], area_blocks: u64) -> (Devices, Catalogue) {
    let mut devices = Devices::new(blocks);
    let catalogue = Catalogue::empty(geometry(blocks, area_blocks));
    let catalogue = run(Commit::first(catalogue), &mut devices, &mut |_| {});
    (devices, catalogue)
}

fn entry(name: &str, extent: Extent, content: &[u8]) -> Entry {
    let mut digest = ContentDigest::new();
    digest.update(content);
    let (runs, tag) = digest.finish();
    Entry {
        name: name.into(),
        content_type: "".into(),
        extent,
        size_bytes: content.len() as u64,
        modified: Time {
            seconds: 1_700_000_000,
            nanos: 5,
        },
        added: 0,
        tag,
        runs: runs.into(),
    }
}

/// What a test does to a store.
#[derive(Clone, Debug)]
enum Change {
    /// Adds or replaces: name, seed and length of the content.
    Put(&'static str, u64, usize),
    Remove(&'static str),
}

/// Makes the changes by one commit.
fn change(
    devices: &mut Devices,
    catalogue: Catalogue,
    changes: &[Change],
    fault: Option<Fault>,
    after: &mut dyn FnMut(&Devices),
) -> Catalogue {
    let mut editor = Editor::with_fault(catalogue, &Readers::default(), fault);
    for change in changes {
        match change {
            Change::Put(name, seed, length) => {
                let bytes = content(*seed, *length);
                let extent = editor.allocate(bytes.len() as u64).unwrap();
                let mut padded = bytes.clone();
                padded.resize(bytes.len().next_multiple_of(BLOCK), 0);
                devices.write(extent.device, extent.start, &padded);
                after(devices);
                editor.insert(entry(name, extent, &bytes));
            }
            Change::Remove(name) => assert!(editor.remove(name)),
        }
    }
    run(editor.commit().unwrap(), devices, after)
}
