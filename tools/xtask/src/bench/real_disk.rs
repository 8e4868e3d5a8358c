//! The machine's own disk: a directory on it, and the block device below. The bench disk behaves as
//! an NVMe array, and is none; this one is real, whatever it is.
//!
//! It refuses a filesystem on no block device (an overlay, memory, a network), one without
//! `O_DIRECT` and one that is nearly full. Removed when dropped. Bounded by what is put there.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{OFlags, major, minor, statvfs};
use tempfile::TempDir;

use testbed::scratch_directory;

/// What must be free: more than any bench puts there at a time.
const FREE_BYTES_MIN: u64 = 4 << 30;

/// A directory on the machine's own disk.
pub(super) struct RealDisk {
    directory: TempDir,
    device: String,
}

impl RealDisk {
    /// Makes the directory, if it is on a disk.
    pub(super) fn find() -> Result<Self> {
        let directory = scratch_directory("disk")?;
        let path = directory.path();
        let device = device_below(path)?;
        let probe = path.join("probe");
        fs::write(&probe, [])?;
        OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::DIRECT.bits().cast_signed())
            .open(&probe)
            .with_context(|| format!("{} refuses O_DIRECT", path.display()))?;
        fs::remove_file(&probe)?;
        let filesystem = statvfs(path)?;
        let free_bytes = filesystem.f_bavail * filesystem.f_frsize;
        ensure!(
            free_bytes >= FREE_BYTES_MIN,
            "{} has {free_bytes} bytes free, {FREE_BYTES_MIN} are wanted",
            path.display()
        );
        Ok(Self { directory, device })
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The name of the disk's block device, without `/dev/`.
    pub(super) fn device(&self) -> &str {
        &self.device
    }
}

/// The whole disk a path is on.
fn device_below(path: &Path) -> Result<String> {
    let number = fs::metadata(path)?.dev();
    let link = format!("/sys/dev/block/{}:{}", major(number), minor(number));
    let device = fs::canonicalize(&link)
        .with_context(|| format!("{} is on no block device of its own", path.display()))?;
    let is_partition = device.join("partition").exists();
    whole_disk(&device, is_partition).with_context(|| format!("{} names no disk", device.display()))
}

/// The disk's name in the path of a device or of a partition, which is a folder of its disk's.
fn whole_disk(device: &Path, is_partition: bool) -> Option<String> {
    let disk = if is_partition {
        device.parent()?
    } else {
        device
    };
    Some(disk.file_name()?.to_str()?.to_owned())
}

/// A device's name, and its driver if it has one: not every disk is a device.
pub(super) fn describe(device: &str) -> String {
    let driver = fs::canonicalize(format!("/sys/block/{device}/device/driver"));
    let driver = driver.ok().and_then(|path| {
        let name = path.file_name()?.to_str()?;
        Some(format!(" ({name})"))
    });
    device.to_owned() + &driver.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_part_of_its_disk() {
        let disk = Path::new("/sys/devices/pci0000:00/block/sda");
        assert_eq!(whole_disk(disk, false).as_deref(), Some("sda"));
        assert_eq!(whole_disk(&disk.join("sda1"), true).as_deref(), Some("sda"));
        assert_eq!(whole_disk(Path::new("/"), false), None);
    }

    #[test]
    fn what_is_on_no_disk_is_refused() {
        let refusal = device_below(Path::new("/proc")).expect_err("no disk");
        assert!(refusal.to_string().contains("no block device"), "{refusal}");
    }
}
