//! The bench disk: storage that behaves as an NVMe array with DMA does, on a machine without one.
//!
//! ```text
//! tmpfs (huge pages) > one file > loop device (direct I/O, 4096-byte blocks) > XFS > objects
//! ```
//!
//! A server's turn reads more than memory holds, and what is read twice is in the page cache the
//! second time. So the disk has copies of its objects, files of their own that share their blocks
//! (`FICLONE`): each copy has its own place in the page cache, none of its own in memory.
//!
//! The loop device's copying is done by the kernel's unbound work queues; they are confined to
//! the client's core, so that, as with DMA, the server's core pays next to nothing for it. What
//! it refuses: to leave less memory free than 8 GiB (`FREE_BYTES_MIN`). It is undone in reverse.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, ensure};

use crate::content::{Content, OBJECT_SEED};
use crate::interrupt;
use crate::process::run;
use crate::undo::Undo;

/// Age of the objects, as of most that are watched: Atlas looks at what the page cache has of a file that was written less than a
/// minute ago, and the kernel reads a page of it ahead.
const AGE: Duration = Duration::from_secs(3600);

/// Memory that must stay free for the page cache of the rivals and for everybody else.
const FREE_BYTES_MIN: u64 = 8 << 30;

/// Room beside the objects for what a bench adds. It is memory only where it is written.
const SPARE_BYTES: u64 = 256 << 20;

/// Largest raw device beside the objects, bytes.
pub const RAW_BYTES_MAX: u64 = 2 << 30;

/// Most raw devices: a rival's and a store of ours.
const RAW_DEVICES_MAX: u64 = 2;

/// Objects in one directory: no server is measured on its directory look-ups.
pub(crate) const DIRECTORY_OBJECTS: u64 = 512;

/// Where the kernel is told to forget what it has cached.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Where the kernel keeps the mask of cores its unbound work queues may use.
const WORKQUEUE_MASK: &str = "/sys/devices/virtual/workqueue/cpumask";

/// The order of free blocks, in pages, that a virtual machine gives back to its host; beyond what the
/// kernel allocates at once it gives back nothing. Without it, memory freed before a turn is found again
/// by the hypervisor while the turn is measured, page by page, and whoever uses the page cache is charged.
const PAGE_REPORTING: &str = "/sys/module/page_reporting/parameters/page_reporting_order";

/// One more than the kernel's largest order, `MAX_PAGE_ORDER`.
const NO_PAGE_REPORTING: &str = "11";

/// Longest wait for a mount point to be free.
const UNMOUNT_TIME_MAX: Duration = Duration::from_secs(10);

/// The objects on a disk, as both the maker and the client know them.
#[derive(Clone, Copy, Debug)]
pub struct Objects {
    /// How many of different content.
    pub count: u64,
    /// Size of each, bytes.
    pub bytes: u64,
    /// How often each is there, 1 or more.
    pub copies: u64,
}

impl Objects {
    /// Objects there are to ask for, each copy one of them.
    #[must_use]
    pub fn total(self) -> u64 {
        self.count * self.copies
    }

    /// The path of an object below the served directory. The last number in it names its content.
    #[must_use]
    pub fn path(self, index: u64) -> String {
        let (copy, number) = (index / self.count, index % self.count);
        let directory = Self::directory(copy, number / DIRECTORY_OBJECTS);
        format!("/{directory}/o{number:06}.bin")
    }

    /// The name of a directory of objects.
    pub(crate) fn directory(copy: u64, number: u64) -> String {
        format!("c{copy:03}/d{number:03}")
    }

    /// What an object holds.
    #[must_use]
    pub fn content(self, index: u64) -> Content {
        Content::new(OBJECT_SEED + index % self.count, self.bytes)
    }
}

/// A directory of objects, and what it is on.
#[derive(Clone, Debug)]
pub struct ObjectDirectory {
    /// The directory to serve.
    pub root: PathBuf,
    /// What it has.
    pub objects: Objects,
    /// The name of the disk's block device, without `/dev/`.
    pub device: String,
}

impl ObjectDirectory {
    /// Makes the objects in an empty directory.
    fn fill(root: PathBuf, objects: Objects, device: String) -> Result<Self> {
        let mut bytes = vec![0; usize::try_from(objects.bytes)?];
        let written_at = SystemTime::now() - AGE;
        for index in 0..objects.total() {
            interrupt::check()?;
            let path = root.join(&objects.path(index)[1..]);
            if (index % objects.count).is_multiple_of(DIRECTORY_OBJECTS) {
                let directory = path.parent().context("an object's path has a directory")?;
                fs::create_dir_all(directory)?;
            }
            if index < objects.count {
                objects.content(index).fill(0, &mut bytes);
                fs::write(&path, &bytes).with_context(|| format!("writing {path:?}"))?;
            } else {
                let first = root.join(&objects.path(index % objects.count)[1..]);
                let (first, copy) = (fs::File::open(first)?, fs::File::create(&path)?);
                rustix::fs::ioctl_ficlone(&copy, &first)
                    .with_context(|| format!("cloning into {path:?}"))?;
            }
            let file = fs::OpenOptions::new().write(true).open(&path)?;
            file.set_modified(written_at)?;
        }
        rustix::fs::sync();
        Ok(Self {
            root,
            objects,
            device,
        })
    }
}

/// The mounted disk with its objects, unmounted and forgotten when dropped.
#[derive(Debug)]
pub struct BenchDisk {
    /// What is on it.
    pub directory: ObjectDirectory,
    /// The file system in memory that its images are in.
    memory: PathBuf,
    /// Devices beside it.
    raw_devices: u64,
    undo: Undo,
}

impl BenchDisk {
    /// Makes the disk and fills it with up to `total_bytes` of objects, each `copies` times; work
    /// queues go to `core`.
    ///
    /// # Errors
    /// Too little memory; what the kernel refuses.
    pub fn new(total_bytes: u64, object_bytes: u64, copies: u64, core: usize) -> Result<Self> {
        let count = total_bytes.min(spare_bytes()?) / object_bytes.max(1);
        ensure!(
            count > 0,
            "too little free memory for a bench disk beside the 8 GiB kept free"
        );
        let objects = Objects {
            count,
            bytes: object_bytes,
            copies: copies.max(1),
        };
        let mut undo = Undo::default();
        let directory = tempfile::tempdir().context("a temporary directory")?;
        // Servers read as users of their own.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
        let (memory, root) = (
            directory.path().join("memory"),
            directory.path().join("disk"),
        );
        fs::create_dir(&memory)?;
        fs::create_dir(&root)?;
        let top = directory.path().to_path_buf();
        // The directory goes last of all, when nothing is mounted below it any more.
        undo.add("remove the mount points", move || Ok(directory.close()?));
        share_mounts(&mut undo, &top)?;
        confine_workqueues(&mut undo, core)?;
        if Path::new(PAGE_REPORTING).exists() {
            undo.set(Path::new(PAGE_REPORTING), NO_PAGE_REPORTING)?;
        }
        let image = mount_memory(&mut undo, &memory, image_bytes(objects))?;
        let device = attach_loop(&mut undo, &image)?;
        mount_disk(&mut undo, &device, &root)?;
        let device = device.trim_start_matches("/dev/").to_owned();
        Ok(Self {
            directory: ObjectDirectory::fill(root, objects, device)?,
            memory,
            raw_devices: 0,
            undo,
        })
    }

    /// One more device beside it, with nothing on it; its name without `/dev/`.
    ///
    /// # Errors
    /// More than [`RAW_BYTES_MAX`]; a third one; what the kernel refuses.
    pub fn raw_device(&mut self, bytes: u64) -> Result<String> {
        ensure!(
            bytes <= RAW_BYTES_MAX && self.raw_devices < RAW_DEVICES_MAX,
            "there are at most {RAW_DEVICES_MAX} raw devices of at most {RAW_BYTES_MAX} bytes"
        );
        self.raw_devices += 1;
        let image = self.memory.join(format!("raw{}", self.raw_devices));
        fs::File::create(&image)?.set_len(bytes.next_multiple_of(2 << 20))?;
        let device = attach_loop(&mut self.undo, &image)?;
        Ok(device.trim_start_matches("/dev/").to_owned())
    }
}

/// Memory the disk may take.
fn spare_bytes() -> Result<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").context("reading /proc/meminfo")?;
    let kibibytes: u64 = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .context("no MemAvailable in /proc/meminfo")?;
    Ok((kibibytes * 1024).saturating_sub(FREE_BYTES_MIN))
}

/// Size of the image: objects in whole blocks, a sixteenth and 1 KiB for each object and copy for
/// inodes and the like, the journal, and what is to spare.
fn image_bytes(objects: Objects) -> u64 {
    let data = objects.count * objects.bytes.next_multiple_of(4096);
    let metadata = data / 16 + objects.total() * 1024 + (256 << 20);
    (data + metadata + SPARE_BYTES).next_multiple_of(2 << 20)
}

fn confine_workqueues(undo: &mut Undo, core: usize) -> Result<()> {
    undo.set(Path::new(WORKQUEUE_MASK), &format!("{:x}", 1_u64 << core))
}

/// What is unmounted below `at` is unmounted in every mount namespace copied from ours meanwhile,
/// such as `ip netns exec` makes for each command: one that outlived us would keep the disk.
fn share_mounts(undo: &mut Undo, at: &Path) -> Result<()> {
    run(Command::new("mount").arg("--bind").args([at, at]))?;
    unmount_later(undo, at);
    run(Command::new("mount").arg("--make-shared").arg(at)).map(drop)
}

fn mount_memory(undo: &mut Undo, at: &Path, bytes: u64) -> Result<PathBuf> {
    let size = format!(
        "size={},huge=always,mode=700",
        bytes + RAW_DEVICES_MAX * RAW_BYTES_MAX + (16 << 20)
    );
    run(Command::new("mount")
        .args(["-t", "tmpfs", "-o", &size, "atlas-bench"])
        .arg(at))?;
    unmount_later(undo, at);
    let image = at.join("image");
    fs::File::create(&image)?.set_len(bytes)?;
    Ok(image)
}

fn attach_loop(undo: &mut Undo, image: &Path) -> Result<String> {
    let mut losetup = Command::new("losetup");
    losetup
        .args(["--direct-io=on", "-b", "4096", "--find", "--show"])
        .arg(image);
    let device = run(&mut losetup)?.trim().to_owned();
    let name = device.clone();
    undo.add(format!("detach {device}"), move || {
        run(Command::new("losetup").args(["--detach", &name])).map(drop)
    });
    Ok(device)
}

fn mount_disk(undo: &mut Undo, device: &str, at: &Path) -> Result<()> {
    run(Command::new("mkfs.xfs").args(["-q", "-f", "-s", "size=4096", "-m", "reflink=1", device]))?;
    run(Command::new("mount")
        .args(["-o", "noatime", device])
        .arg(at))?;
    unmount_later(undo, at);
    Ok(())
}

fn unmount_later(undo: &mut Undo, at: &Path) {
    let at = at.to_path_buf();
    undo.add(format!("unmount {}", at.display()), move || unmount(&at));
}

/// Detaching a loop device only asks: the kernel lets go of the image when the device's last user
/// is done, and until then the memory it is in cannot be unmounted. Nothing tells when.
fn unmount(at: &Path) -> Result<()> {
    let deadline = Instant::now() + UNMOUNT_TIME_MAX;
    loop {
        match run(Command::new("umount").arg(at)) {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Forgets everything cached, so that each run reads each object from the disk.
pub fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    fs::write(DROP_CACHES, "3").context("dropping caches")
}

/// Bytes read from a block device since it was made: proof that a run was cold.
pub fn read_bytes(device: &str) -> Result<u64> {
    /// The unit of the statistics, whatever the device's block size.
    const SECTOR_BYTES: u64 = 512;
    let file = format!("/sys/block/{device}/stat");
    let stat = fs::read_to_string(&file).with_context(|| format!("reading {file}"))?;
    let sectors = stat
        .split_whitespace()
        .nth(2)
        .and_then(|word| word.parse::<u64>().ok());
    Ok(sectors.with_context(|| format!("no third number in {file}"))? * SECTOR_BYTES)
}
