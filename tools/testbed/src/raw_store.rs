//! A raw store of Atlas on a device of the bench disk, with the first objects of that disk.
//!
//! It refuses to be made twice on one device: `atlas store init` does. Bounded by
//! [`bench_disk::RAW_BYTES_MAX`](crate::bench_disk::RAW_BYTES_MAX).

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::bench_disk::{BenchDisk, DIRECTORY_OBJECTS, Objects};
use super::interrupt;
use super::process::run;

/// Room on the device beside the objects, for superblocks and catalogues.
const SPARE_BYTES: u64 = 64 << 20;

/// The store, and what is in it.
#[derive(Debug)]
pub struct RawStore {
    /// The name of its block device, without `/dev/`.
    pub device: String,
    /// What it holds: whole directories, the first of the bench disk.
    pub objects: Objects,
}

impl RawStore {
    /// Makes one of up to `bytes` of objects with the program `atlas`.
    ///
    /// # Errors
    /// No device; what `atlas store` refuses.
    pub fn new(disk: &mut BenchDisk, bytes: u64, atlas: &Path) -> Result<Self> {
        let objects = first_objects(disk.directory.objects, bytes);
        let bytes = objects.count * objects.bytes.next_multiple_of(4096) + SPARE_BYTES;
        let device = disk.raw_device(bytes)?;
        let path = format!("/dev/{device}");
        let root = &disk.directory.root;
        run(Command::new(atlas).args(["store", "init", &path]))?;
        for number in 0..objects.count.div_ceil(DIRECTORY_OBJECTS) {
            interrupt::check()?;
            let directory = Objects::directory(0, number);
            run(Command::new(atlas)
                .args(["store", "add", &path, "--under", &directory])
                .arg(root.join(&directory)))?;
        }
        Ok(Self { device, objects })
    }
}

/// The objects of as many whole directories as `bytes` hold, of one at least.
fn first_objects(all: Objects, bytes: u64) -> Objects {
    let fitting = bytes / all.bytes;
    let whole = (fitting - fitting % DIRECTORY_OBJECTS).max(DIRECTORY_OBJECTS);
    Objects {
        count: whole.min(all.count),
        copies: 1,
        ..all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_holds_whole_directories_of_the_first_objects() {
        let all = Objects {
            count: 1200,
            bytes: 1000,
            copies: 18,
        };
        let count = |bytes| first_objects(all, bytes).total();
        assert_eq!(count(0), 512);
        assert_eq!(count(1_023_999), 512);
        assert_eq!(count(1_024_000), 1024);
        // The last directory is not full.
        assert_eq!(count(1_535_999), 1024);
        assert_eq!(count(1_536_000), 1200);
        let few = Objects { count: 7, ..all };
        assert_eq!(first_objects(few, 1_024_000).total(), 7);
    }
}
