//! The bench disk: storage that behaves as an NVMe array with DMA does, on a machine without one.
//!
//! ```text
//! tmpfs (huge pages) > one file > loop device (direct I/O, 4096-byte blocks) > ext4 > objects
//! ```
//!
//! The loop device's copying is done by the kernel's unbound work queues; they are confined to
//! the client's core, so that, as with DMA, the server's core pays next to nothing for it. What
//! it refuses: to leave less memory free than [`FREE_BYTES_MIN`]. It is undone in reverse.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use load::content::OBJECT_SEED;
use rustix::fs::{Advice, Mode, OFlags, fadvise, openat};
use rustix::thread::{CpuSet, sched_setaffinity};

use testbed::content::Content;
use testbed::interrupt;
use testbed::process::run;
use testbed::undo::Undo;

/// Memory that must stay free for the page cache of the rivals and for everybody else.
const FREE_BYTES_MIN: u64 = 8 << 30;

/// Room beside the objects, for a file to measure the disk itself by. It is memory only while it is
/// written.
const SPARE_BYTES: u64 = (1 << 30) + (64 << 20);

/// Objects in one directory: no server is measured on its directory look-ups.
const DIRECTORY_OBJECTS: u64 = 512;

/// Where the kernel is told to forget what it has cached.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Where the kernel keeps the mask of cores its unbound work queues may use.
const WORKQUEUE_MASK: &str = "/sys/devices/virtual/workqueue/cpumask";

/// Longest wait for a mount point to be free.
const UNMOUNT_TIME_MAX: Duration = Duration::from_secs(10);

/// The objects on a disk, as both the maker and the client know them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Objects {
    /// How many.
    pub(crate) count: u64,
    /// Size of each, bytes.
    pub(crate) bytes: u64,
}

impl Objects {
    /// The path of an object below the served directory.
    pub(crate) fn path(index: u64) -> String {
        format!("/d{:03}/o{index:06}.bin", index / DIRECTORY_OBJECTS)
    }

    /// What an object holds.
    pub(crate) fn content(self, index: u64) -> Content {
        Content::new(OBJECT_SEED + index, self.bytes)
    }
}

/// A directory of objects, and what it is on.
#[derive(Clone, Debug)]
pub(crate) struct ObjectDirectory {
    /// The directory to serve.
    pub(crate) root: PathBuf,
    pub(crate) objects: Objects,
    /// The name of the disk's block device, without `/dev/`.
    pub(crate) device: String,
}

impl ObjectDirectory {
    /// Makes the objects in an empty directory.
    pub(crate) fn fill(root: PathBuf, objects: Objects, device: String) -> Result<Self> {
        let mut bytes = vec![0; usize::try_from(objects.bytes)?];
        for index in 0..objects.count {
            interrupt::check()?;
            let path = root.join(&Objects::path(index)[1..]);
            if index % DIRECTORY_OBJECTS == 0 {
                fs::create_dir(path.parent().context("an object's path has a directory")?)?;
            }
            objects.content(index).fill(0, &mut bytes);
            fs::write(&path, &bytes).with_context(|| format!("writing {path:?}"))?;
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
pub(crate) struct BenchDisk {
    pub(crate) directory: ObjectDirectory,
    _undo: Undo,
}

impl BenchDisk {
    /// Makes the disk and fills it with up to `total_bytes` of objects; work queues go to `core`.
    pub(crate) fn new(total_bytes: u64, object_bytes: u64, core: usize) -> Result<Self> {
        let count = total_bytes.min(spare_bytes()?) / object_bytes.max(1);
        ensure!(
            count > 0,
            "too little free memory for a bench disk beside the 8 GiB kept free"
        );
        let objects = Objects {
            count,
            bytes: object_bytes,
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
        let image = mount_memory(&mut undo, &memory, image_bytes(objects))?;
        let device = attach_loop(&mut undo, &image)?;
        mount_disk(&mut undo, &device, &root)?;
        let device = device.trim_start_matches("/dev/").to_owned();
        Ok(Self {
            directory: ObjectDirectory::fill(root, objects, device)?,
            _undo: undo,
        })
    }

    /// Gives back the memory of what was removed.
    pub(crate) fn trim(&self) -> Result<()> {
        run(Command::new("fstrim").arg(&self.directory.root)).map(drop)
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

/// Size of the image: objects in whole blocks, a sixteenth for inodes and the like, the journal,
/// and what is to spare.
fn image_bytes(objects: Objects) -> u64 {
    let data = objects.count * objects.bytes.next_multiple_of(4096);
    (data + data / 16 + (256 << 20) + SPARE_BYTES).next_multiple_of(2 << 20)
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
    let size = format!("size={},huge=always,mode=700", bytes + (16 << 20));
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
    // Nothing is initialised later in the background: no I/O but the servers' while we measure.
    let now = "lazy_itable_init=0,lazy_journal_init=0";
    run(Command::new("mkfs.ext4").args(["-q", "-F", "-b", "4096", "-m", "0", "-E", now, device]))?;
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
pub(crate) fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    fs::write(DROP_CACHES, "3").context("dropping caches")
}

/// How often it is looked whether there is enough to forget.
const FORGET_LOOK_EACH: Duration = Duration::from_millis(50);

/// Bytes read for each byte that the page cache has grown by, above which there is nothing to forget:
/// names and the like are cached for everybody.
const FORGET_READ_PER_CACHED: u64 = 16;

/// Has the kernel forget what it has cached of the objects again and again, so that what is asked
/// for a second time is read from the disk again. File by file: dropping all caches at once holds
/// its core for as long as servers fill them. Names stay cached. It leaves its core to others while
/// a server caches nothing. Ends when dropped.
pub(crate) struct Forgetting {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Forgetting {
    /// Starts it on `core` for the first `count` objects, each time `bytes` have been read, if one in
    /// [`FORGET_READ_PER_CACHED`] of them is in the page cache.
    pub(crate) fn start(
        core: usize,
        objects: &ObjectDirectory,
        count: u64,
        bytes: u64,
    ) -> Result<Self> {
        let (stop, stopped) = channel();
        let root = fs::File::open(&objects.root)?;
        let device = objects.device.clone();
        let (mut read, cached) = (read_bytes(&device)?, cached_bytes()?);
        let thread = thread::spawn(move || {
            let mut cores = CpuSet::new();
            cores.set(core);
            // What it failed to do, here and below, shows in what the disk read.
            let _ = sched_setaffinity(None, &cores);
            while stopped.recv_timeout(FORGET_LOOK_EACH) == Err(RecvTimeoutError::Timeout) {
                let now = read_bytes(&device).unwrap_or(u64::MAX);
                if now.saturating_sub(read) < bytes {
                    continue;
                }
                read = now;
                let grown = cached_bytes().unwrap_or(u64::MAX).saturating_sub(cached);
                if grown < bytes / FORGET_READ_PER_CACHED {
                    continue;
                }
                let is_on = || stopped.try_recv() == Err(TryRecvError::Empty);
                for index in (0..count).take_while(|_| is_on()) {
                    let path = Objects::path(index);
                    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                    if let Ok(file) = openat(&root, &path[1..], flags, Mode::empty()) {
                        let _ = fadvise(&file, 0, None, Advice::DontNeed);
                    }
                }
            }
        });
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Forgetting {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// How often anyone has had the page cache forgotten since the machine started.
pub(crate) fn cache_drops() -> Result<u64> {
    vmstat("drop_pagecache")
}

/// Bytes in the page cache, without those of tmpfs, which are nowhere else.
fn cached_bytes() -> Result<u64> {
    let pages = vmstat("nr_file_pages")?.saturating_sub(vmstat("nr_shmem")?);
    Ok(pages * rustix::param::page_size() as u64)
}

/// A number of `/proc/vmstat`.
fn vmstat(name: &str) -> Result<u64> {
    let text = fs::read_to_string("/proc/vmstat").context("reading /proc/vmstat")?;
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    let number = lines.find(|(its_name, _)| *its_name == name);
    let number = number.and_then(|(_, number)| number.parse().ok());
    number.with_context(|| format!("no {name} in /proc/vmstat"))
}

/// Bytes read from a block device since it was made: proof that a run was cold.
pub(crate) fn read_bytes(device: &str) -> Result<u64> {
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
