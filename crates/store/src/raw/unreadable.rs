//! A raw store on devices in memory of which each block, one after the other, cannot be read: everything whole
//! is still found and read.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use volume::{
    BLOCK_BYTES, Catalogue, Commit, ContentDigest, Editor, Entry, Geometry, Readers, Step, StoreId,
    Superblock, Time,
};

use super::{Blocks, Loaded, RawError, find_catalogue};

const BLOCK: usize = BLOCK_BYTES as usize;
/// Size of each device, bytes.
const DEVICE_BYTES: usize = 64 << 20;

/// A device with a part that cannot be read.
struct Faulty<'a> {
    path: PathBuf,
    bytes: &'a [u8],
    /// Bytes.
    unreadable: Range<usize>,
}

impl Blocks for Faulty<'_> {
    fn path(&self) -> &Path {
        &self.path
    }

    fn size_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&self, offset_bytes: u64, length: usize) -> Result<Vec<u8>, RawError> {
        let start = usize::try_from(offset_bytes).unwrap().min(self.bytes.len());
        let end = (start + length).min(self.bytes.len());
        if self.unreadable.start < end && start < self.unreadable.end {
            return Err(RawError::Io {
                path: self.path.clone(),
                error: io::Error::from_raw_os_error(libc::EIO),
            });
        }
        Ok(self.bytes[start..end].to_vec())
    }
}

/// A store in memory.
struct Made {
    devices: Vec<Vec<u8>>,
    catalogue: Catalogue,
    before: Catalogue,
}

impl Made {
    /// A store on so many devices after `changes` changes, of three objects each.
    fn new(devices: usize, changes: u64) -> Self {
        let blocks = vec![(DEVICE_BYTES / BLOCK) as u64; devices];
        let area_blocks = Geometry::usual_area_blocks(blocks.iter().sum());
        let geometry = Geometry::new(StoreId([3; 16]), blocks, area_blocks).unwrap();
        let first = Catalogue::empty(geometry);
        let mut made = Self {
            devices: vec![vec![0; DEVICE_BYTES]; devices],
            catalogue: first.clone(),
            before: first.clone(),
        };
        made.carry_out(Commit::first(first));
        for change in 0..changes {
            let mut editor = Editor::new(made.catalogue.clone(), &Readers::default());
            for object in 0..3 {
                let seed = 3 * change + object;
                let size = 10_000 + 15_000 * usize::try_from(object).unwrap();
                let content: Vec<_> = (0..size).map(|at| content_byte(seed, at)).collect();
                let extent = editor.allocate(size as u64).unwrap();
                made.write(extent.device, extent.start, &content);
                let mut digest = ContentDigest::new();
                digest.update(&content);
                let (runs, tag) = digest.finish();
                editor.insert(Entry {
                    name: format!("{change}/{object}").into(),
                    content_type: "".into(),
                    extent,
                    size_bytes: size as u64,
                    modified: Time::default(),
                    added: 0,
                    tag,
                    runs: runs.into(),
                });
            }
            made.carry_out(editor.commit().unwrap());
        }
        made
    }

    fn write(&mut self, device: u16, block: u64, bytes: &[u8]) {
        let start = usize::try_from(block).unwrap() * BLOCK;
        self.devices[usize::from(device)][start..start + bytes.len()].copy_from_slice(bytes);
    }

    fn carry_out(&mut self, mut commit: Commit) {
        loop {
            match commit.next_step() {
                Step::Write {
                    device,
                    block,
                    bytes,
                } => self.write(device, block, bytes),
                Step::Flush => {}
                Step::Done => break,
            }
        }
        let made = commit.into_catalogue();
        self.before = core::mem::replace(&mut self.catalogue, made);
    }

    /// The devices, of which one has a part that cannot be read.
    fn faulty(&self, device: usize, unreadable: &Range<usize>) -> Vec<Faulty<'_>> {
        let devices = self.devices.iter().enumerate();
        devices
            .map(|(number, bytes)| Faulty {
                path: format!("device{number}").into(),
                bytes,
                unreadable: if number == device {
                    unreadable.clone()
                } else {
                    0..0
                },
            })
            .collect()
    }
}

fn content_byte(seed: u64, at: usize) -> u8 {
    u8::try_from((at / 7 + at / BLOCK + usize::try_from(seed).unwrap() * 13) % 251).unwrap()
}

/// Which objects cannot be read whole.
fn lost(devices: &[Faulty<'_>], catalogue: &Catalogue) -> usize {
    let is_lost = |entry: &&Entry| {
        let device = &devices[usize::from(entry.extent.device)];
        let start = entry.extent.start * u64::from(BLOCK_BYTES);
        let content = device.read(start, usize::try_from(entry.size_bytes).unwrap());
        content.is_err_and(|error| matches!(error, RawError::Io { .. }))
    };
    catalogue.entries().iter().filter(is_lost).count()
}

/// Each block of the devices, or a part of it, cannot be read.
fn each_block_unreadable(devices: usize, changes: u64, part: &Range<usize>) {
    let made = Made::new(devices, changes);
    let (mut fallbacks, mut unknowns, mut faults, mut losses) = (0, 0, 0, 0);
    for device in 0..devices {
        for block in 0..DEVICE_BYTES / BLOCK {
            let start = block * BLOCK;
            let unreadable = start + part.start..start + part.end;
            let faulty = made.faulty(device, &unreadable);
            let (order, loaded) =
                find_catalogue(&faulty).unwrap_or_else(|error| panic!("{block}: {error}"));
            assert!(order.iter().copied().eq(0..devices));
            let Loaded {
                catalogue,
                damage,
                unknown,
                ..
            } = &loaded;
            if *catalogue != made.catalogue {
                assert_eq!(*catalogue, made.before, "{block}");
                // Then a writer is told, in either way.
                assert!(damage.is_some() != unknown.is_some(), "{block}");
                fallbacks += 1;
            } else {
                assert!(damage.is_none() && unknown.is_none(), "{block}");
            }
            unknowns += usize::from(unknown.is_some());
            faults += loaded.faults.len();
            losses += lost(&faulty, catalogue);
        }
    }
    // Each object is lost with each of its own blocks, and with no other.
    let sizes = made.catalogue.entries().iter();
    let sizes = sizes.map(|it| usize::try_from(it.size_bytes).unwrap());
    let blocks = sizes.map(|size| size.saturating_sub(part.start).div_ceil(BLOCK));
    assert_eq!(losses, blocks.sum::<usize>());
    let catalogue_blocks = made.catalogue.encoded_bytes().div_ceil(BLOCK_BYTES.into());
    let catalogue_blocks = usize::try_from(catalogue_blocks).unwrap();
    if devices == 1 {
        // The only copy of the newest superblock, or of its catalogue.
        assert_eq!((fallbacks, unknowns), (1 + catalogue_blocks, 1));
    } else {
        assert_eq!((fallbacks, unknowns), (0, 0));
    }
    // Both superblocks of each device, and the catalogue on the device that is tried first.
    assert_eq!(faults, 2 * devices + catalogue_blocks);
}

#[test]
fn with_any_block_unreadable_all_else_is_found_and_read() {
    for (devices, changes) in [(1, 3), (1, 4), (2, 3)] {
        each_block_unreadable(devices, changes, &(0..BLOCK));
    }
    // A drive with sectors of 512 bytes.
    each_block_unreadable(2, 2, &(512..1024));
}

#[test]
fn a_device_of_which_nothing_can_be_read_says_the_kernels_words() {
    let made = Made::new(2, 1);
    let error = find_catalogue(&made.faulty(1, &(0..DEVICE_BYTES))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "device1: Input/output error (os error 5)"
    );
}

/// The place of the catalogue that an unreadable superblock might name cannot be read either.
#[test]
fn what_cannot_be_ruled_out_is_unknown() {
    let made = Made::new(2, 2);
    // Number 3 is the newest. Superblock 0 and the first area are older.
    let (_, loaded) = find_catalogue(&made.faulty(0, &(0..BLOCK))).unwrap();
    assert_eq!((loaded.catalogue.sequence(), loaded.unknown), (3, None));
    let area = 256 * BLOCK..257 * BLOCK;
    let mut both = made.devices.clone();
    // A newer header, and a superblock that cannot be read.
    both[0][area.start + 32] = 4;
    let other = Made {
        devices: both,
        catalogue: made.catalogue.clone(),
        before: made.before.clone(),
    };
    let (_, loaded) = find_catalogue(&other.faulty(0, &(0..BLOCK))).unwrap();
    let unknown = loaded.unknown.unwrap().to_string();
    let told =
        "device0, from byte 0: the superblock cannot be read: Input/output error (os error 5)";
    assert_eq!(unknown, told);
}

/// A device of which nearly all is a hole.
struct Sparse {
    written: Vec<(u64, Vec<u8>)>,
    size_bytes: u64,
    read_bytes: Cell<usize>,
}

impl Blocks for Sparse {
    fn path(&self) -> &Path {
        Path::new("sparse")
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read(&self, offset_bytes: u64, length: usize) -> Result<Vec<u8>, RawError> {
        self.read_bytes.set(self.read_bytes.get() + length);
        let mut bytes = vec![0; length];
        for (at, written) in &self.written {
            if *at == offset_bytes {
                let count = written.len().min(length);
                bytes[..count].copy_from_slice(&written[..count]);
            }
        }
        Ok(bytes)
    }
}

#[test]
fn a_catalogue_of_16_gib_that_is_a_hole_takes_no_memory() {
    let blocks = 1 << 24;
    let area_blocks = volume::CATALOGUE_BYTES_MAX / u64::from(BLOCK_BYTES);
    let geometry = Geometry::new(StoreId([3; 16]), vec![blocks], area_blocks).unwrap();
    let mut commit = Commit::first(Catalogue::empty(geometry));
    let mut device = Sparse {
        written: Vec::new(),
        size_bytes: blocks * u64::from(BLOCK_BYTES),
        read_bytes: Cell::new(0),
    };
    loop {
        match commit.next_step() {
            Step::Write { block, bytes, .. } => {
                let bytes = match Superblock::decode(bytes) {
                    Ok(superblock) => Superblock {
                        catalogue_bytes: volume::CATALOGUE_BYTES_MAX,
                        ..superblock
                    }
                    .encode(),
                    Err(_) => bytes.to_vec(),
                };
                device.written.push((block * u64::from(BLOCK_BYTES), bytes));
            }
            Step::Flush => {}
            Step::Done => break,
        }
    }
    let error = find_catalogue(std::slice::from_ref(&device)).unwrap_err();
    assert!(error.to_string().contains("ends too early"), "{error}");
    assert!(device.read_bytes.get() <= 2 << 20);
}
