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
        let all = disk.directory.objects;
        let fitting = (bytes / all.bytes).min(all.count) / DIRECTORY_OBJECTS;
        let directories = fitting.max(1);
        let objects = Objects {
            count: (directories * DIRECTORY_OBJECTS).min(all.count),
            copies: 1,
            ..all
        };
        let bytes = objects.count * objects.bytes.next_multiple_of(4096) + SPARE_BYTES;
        let device = disk.raw_device(bytes)?;
        let path = format!("/dev/{device}");
        let root = &disk.directory.root;
        run(Command::new(atlas).args(["store", "init", &path]))?;
        for number in 0..directories {
            interrupt::check()?;
            let directory = Objects::directory(0, number);
            run(Command::new(atlas)
                .args(["store", "add", &path, "--under", &directory])
                .arg(root.join(&directory)))?;
        }
        Ok(Self { device, objects })
    }
}
