//! A disk that is a function of its seed: virtual time, latencies, reordering, failures.
//!
//! Time is the `now` argument. The faults of a command are drawn when `sqsync` submits it: its
//! latency, whether it fails, whether it is partial (and needs a second round for its rest, which
//! the real disk would reissue), whether it is stuck for a long but bounded time. Completions are
//! consumed by due time, in random order among equals. Same seed and same calls: same completions.
//!
//! A device can be made to hang ([`SimDisk::set_hung`]), as a mount does whose server is gone: its
//! commands complete only once it answers again. Other devices go on.
//!
//! A device may have a rate ([`SimConfig::device_bits_per_second`]), which several disks share as queues of the same
//! devices ([`SimDisk::share_devices`]): it transfers one command's bytes after the other's, in the order in which they
//! were submitted, and the latency comes on top.
//!
//! Files change as [`SimChange`] says. The verdicts are those of `uring`: a read of a file that was
//! rewritten is refused, one of a file that grew or was touched takes as long as another one in addition.
//!
//! It refuses to do what a real disk under `uring` does not do: to leave out bytes in the middle of
//! a successful read, to complete a command twice. There are two exceptions: [`SimChange::Silent`], content
//! that changes with unchanged timestamps, tests that the layers above detect the change; and a file that
//! grows before its first read is not refused, although it has no witness. It has no status and no witnesses:
//! the simulation says what the check of a change finds.
//!
//! Bounded by [`SimConfig::queue_depth`] and [`SimConfig::files_max`]; the catalogue is as large
//! as the simulation makes it.

mod content;

use core::cell::RefCell;
use core::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use clock::{Duration, Instant};
use memory::{Arena, FilledSlot, FreeSlot};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

pub use content::{SimContent, fill_pattern, pattern_byte};

use crate::{
    Completion, Counters, Disk, DiskError, FileIndex, FileLimits, FileSource, Read, Write,
    check_alignment,
};

/// Chances are given in parts of this.
pub const CHANCE_SCALE: u32 = 1_000_000;

/// How a simulated disk behaves. Chances are in millionths ([`CHANCE_SCALE`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimConfig {
    /// Seed of all random draws.
    pub seed: u64,
    /// Most commands enqueued or in flight.
    pub queue_depth: u32,
    /// Most files open at once, at most 65,536.
    pub files_max: u32,
    /// Block of every file: a power of two, at least 512.
    pub block_bytes: u32,
    /// Largest read of every file, a multiple of the block.
    pub read_bytes_max: u32,
    /// Shortest time a command takes.
    pub latency_min: Duration,
    /// Longest time a command takes that is not stuck; uniform in between.
    pub latency_max: Duration,
    /// Rate at which a device transfers what was submitted, bits per second; 0: at once.
    pub device_bits_per_second: u64,
    /// Chance that a command takes up to `stuck_max` instead.
    pub stuck_chance: u32,
    /// Longest time any command takes, without second rounds.
    pub stuck_max: Duration,
    /// Chance that a command is done in two rounds, each with its own time.
    pub partial_chance: u32,
    /// Chance that a command ends in `EIO`.
    pub error_chance: u32,
}

impl SimConfig {
    /// A healthy disk of 80 to 120 us, 4 KiB blocks and 64 KiB reads.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            queue_depth: 256,
            files_max: 1024,
            block_bytes: 4096,
            read_bytes_max: 65_536,
            latency_min: Duration::from_micros(80),
            latency_max: Duration::from_micros(120),
            device_bits_per_second: 0,
            stuck_chance: 0,
            stuck_max: Duration::from_secs(1),
            partial_chance: 0,
            error_chance: 0,
        }
    }
}

/// What the disk's check finds of a change of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SimChange {
    /// It was rewritten: reads of files opened before end in [`DiskError::Changed`].
    Detected,
    /// It has grown, or its times have moved: completions of files opened before wait for another read, and bring
    /// bytes up to the length at open. Only for a new content that begins with the old one.
    Verified,
    /// Reads bring the new bytes as if nothing had happened, up to the length at open. Only for a new content
    /// that is no shorter.
    Silent,
}

/// A file of the catalogue.
#[derive(Debug)]
struct CatalogueFile {
    content: SimContent,
    /// The device it is on.
    device: u32,
    /// Counts detected changes.
    version: u32,
    /// Counts verified changes.
    status: u32,
}

/// An open file.
#[derive(Clone, Copy, Debug)]
struct OpenFile {
    catalogue_id: u32,
    /// The catalogue's at open; `None` once it was written through us.
    version: Option<u32>,
    /// The catalogue's at the last check.
    status: u32,
    limits: FileLimits,
}

#[derive(Debug)]
enum CommandSlot {
    Reading(memory::ReadingSlot),
    Writing(FilledSlot),
}

impl CommandSlot {
    fn into_free(self) -> FreeSlot {
        match self {
            Self::Reading(slot) => slot.into_free(),
            Self::Writing(slot) => slot.into_free(),
        }
    }
}

/// A command accepted.
#[derive(Debug)]
struct Command {
    token: u64,
    /// As it was when the command came: closing the file does not touch it.
    file: Option<OpenFile>,
    file_index: FileIndex,
    offset_bytes: u64,
    length_bytes: u32,
    slot: CommandSlot,
    fails: bool,
    /// The status that its file is verified for, once it is complete.
    verified: Option<u32>,
}

/// When a submitted command is due, a random number for the order among equals, and its table index.
type Due = Reverse<(Instant, u32, u32)>;

/// When each device has transferred all that was submitted to it.
pub type SimDevices = Rc<RefCell<BTreeMap<u32, Instant>>>;

/// A simulated disk.
#[derive(Debug)]
pub struct SimDisk {
    config: SimConfig,
    devices: SimDevices,
    /// When the command was due that was completed last.
    completed_at: Instant,
    random: ChaCha8Rng,
    catalogue: Vec<CatalogueFile>,
    /// Generation and open file of each index; closing increments the generation.
    files: Vec<(u16, Option<OpenFile>)>,
    commands: Vec<Option<Command>>,
    free_commands: Vec<u32>,
    enqueued: Vec<u32>,
    submitted: BinaryHeap<Due>,
    /// What `sqsync` answers instead of submitting.
    refusal: Option<DiskError>,
    /// Devices that do not answer.
    hung: BTreeSet<u32>,
    /// Commands that wait for one of them.
    stuck: Vec<u32>,
    counters: Counters,
}

impl SimDisk {
    /// An empty disk.
    ///
    /// # Panics
    /// If the configuration is out of its documented range.
    #[must_use]
    pub fn new(config: SimConfig) -> Self {
        assert!(config.block_bytes.is_power_of_two() && config.block_bytes >= 512);
        assert!(config.read_bytes_max.is_multiple_of(config.block_bytes));
        assert!(config.files_max <= 1 << 16 && config.queue_depth > 0);
        assert!(config.latency_min <= config.latency_max);
        let depth = config.queue_depth as usize;
        Self {
            config,
            devices: SimDevices::default(),
            completed_at: Instant::ZERO,
            random: ChaCha8Rng::seed_from_u64(config.seed),
            catalogue: Vec::new(),
            files: vec![(0, None); config.files_max as usize],
            commands: (0..depth).map(|_| None).collect(),
            free_commands: (0..config.queue_depth).rev().collect(),
            enqueued: Vec::with_capacity(depth),
            refusal: None,
            submitted: BinaryHeap::with_capacity(depth),
            hung: BTreeSet::new(),
            stuck: Vec::with_capacity(depth),
            counters: Counters::default(),
        }
    }

    /// Adds a file of device 0 to the catalogue; its number is for [`FileSource::Simulated`].
    pub fn add_file(&mut self, content: SimContent) -> u32 {
        self.add_file_on(0, content)
    }

    /// The same on another device.
    pub fn add_file_on(&mut self, device: u32, content: SimContent) -> u32 {
        let id = u32::try_from(self.catalogue.len()).expect("invariant: fewer than 2^32 files");
        self.catalogue.push(CatalogueFile {
            content,
            device,
            version: 0,
            status: 0,
        });
        id
    }

    /// The devices are these, which other disks transfer from too.
    pub fn share_devices(&mut self, devices: &SimDevices) {
        self.devices = Rc::clone(devices);
    }

    /// When the command was due that was completed last, which is before it was consumed.
    #[must_use]
    pub const fn completed_at(&self) -> Instant {
        self.completed_at
    }

    /// When the device has transferred the bytes of a command that it gets now.
    fn transfer(&mut self, now: Instant, index: u32) -> Instant {
        let rate = self.config.device_bits_per_second;
        let command = self.commands[index as usize].as_ref();
        let Some((command, file)) = command.and_then(|it| Some((it, it.file?))) else {
            return now;
        };
        if rate == 0 {
            return now;
        }
        let device = self.catalogue[file.catalogue_id as usize].device;
        let nanos = (u64::from(command.length_bytes) * 8 * 1_000_000_000).div_ceil(rate);
        let mut devices = self.devices.borrow_mut();
        let free_at = devices.entry(device).or_insert(now);
        *free_at = now.max(*free_at) + Duration::from_nanos(nanos);
        *free_at
    }

    /// From now on a device completes no command, or does again. What waited for it then takes as
    /// long as if it were submitted now.
    pub fn set_hung(&mut self, now: Instant, device: u32, is_hung: bool) {
        if is_hung {
            self.hung.insert(device);
            return;
        }
        self.hung.remove(&device);
        for index in core::mem::take(&mut self.stuck) {
            if self.is_stuck(index) {
                self.stuck.push(index);
            } else {
                let due = now + self.draw_latency();
                let lot = self.random.next_u32();
                self.submitted.push(Reverse((due, lot, index)));
            }
        }
    }

    /// Whether the command at an index waits for a device that hangs.
    fn is_stuck(&self, index: u32) -> bool {
        let command = self.commands[index as usize].as_ref();
        let file = command.and_then(|command| command.file);
        file.is_some_and(|file| {
            let device = self.catalogue[file.catalogue_id as usize].device;
            self.hung.contains(&device)
        })
    }

    /// Gives a file of the catalogue new content.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn change_file(&mut self, id: u32, content: SimContent, kind: SimChange) {
        let stored = &mut self.catalogue[id as usize];
        stored.content = content;
        match kind {
            SimChange::Detected => stored.version += 1,
            SimChange::Verified => stored.status += 1,
            SimChange::Silent => {}
        }
    }

    /// From now on `sqsync` fails, as it does when the kernel takes no more reads.
    pub const fn refuse_submits(&mut self, error: DiskError) {
        self.refusal = Some(error);
    }

    /// When the next completion is due; `None` if nothing is submitted.
    #[must_use]
    pub fn next_event(&self) -> Option<Instant> {
        self.submitted.peek().map(|Reverse((due, ..))| *due)
    }

    fn open_file(&self, file: FileIndex) -> Option<OpenFile> {
        let (generation, open) = self.files.get(usize::from(file.table_index()))?;
        open.filter(|_| *generation == file.generation())
    }

    fn enqueue(&mut self, index: u32, command: Command) {
        self.commands[index as usize] = Some(command);
        self.enqueued.push(index);
    }

    fn happens(&mut self, chance: u32) -> bool {
        self.random.next_u32() % CHANCE_SCALE < chance
    }

    fn draw_between(&mut self, shortest: Duration, longest: Duration) -> Duration {
        let span = longest.saturating_sub(shortest).as_nanos();
        let nanos = u128::from(self.random.next_u64()) % (span + 1);
        shortest + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn draw_latency(&mut self) -> Duration {
        let SimConfig {
            latency_min,
            latency_max,
            stuck_chance,
            stuck_max,
            ..
        } = self.config;
        if self.happens(stuck_chance) {
            return self.draw_between(latency_max.min(stuck_max), stuck_max);
        }
        self.draw_between(latency_min, latency_max)
    }

    /// Whether the completion of a command waits, from now on, for the verification of its file, which takes
    /// as long as another read.
    fn hold(&mut self, now: Instant, index: u32) -> bool {
        let command = self.commands[index as usize].as_ref();
        let command = command.expect("invariant: what is submitted is in the table");
        let (file, verified) = (command.file_index, command.verified);
        let Some(open) = self.open_file(file).filter(|open| open.version.is_some()) else {
            return false;
        };
        if let Some(status) = verified {
            let checked = OpenFile {
                status: status.max(open.status),
                ..open
            };
            self.files[usize::from(file.table_index())].1 = Some(checked);
            return false;
        }
        let status = self.catalogue[open.catalogue_id as usize].status;
        if status == open.status {
            return false;
        }
        self.counters.disk_verify_commands += 1;
        if let Some(command) = &mut self.commands[index as usize] {
            command.verified = Some(status);
        }
        let due = now + self.draw_latency();
        let lot = self.random.next_u32();
        self.submitted.push(Reverse((due, lot, index)));
        true
    }

    /// Ends a command: what the device has done by now, and what the check says.
    fn finish(&mut self, arena: &mut Arena, command: Command) -> Completion {
        let token = command.token;
        let Some(file) = command.file else {
            let failure = (command.slot.into_free(), DiskError::Io(libc::EBADF));
            return Completion {
                token,
                result: Err(failure),
            };
        };
        // A write through this disk is not detected as a change by its own open files.
        let is_written = self
            .open_file(command.file_index)
            .is_some_and(|f| f.version.is_none());
        let stored = &mut self.catalogue[file.catalogue_id as usize];
        let is_same = is_written || file.version.is_none_or(|version| version == stored.version);
        let error = match (command.fails, is_same) {
            (true, _) => Some(DiskError::Io(libc::EIO)),
            (false, false) => Some(DiskError::Changed),
            (false, true) => None,
        };
        if let Some(error) = error {
            return Completion {
                token,
                result: Err((command.slot.into_free(), error)),
            };
        }
        let slot = match command.slot {
            CommandSlot::Reading(slot) => {
                let stored_bytes = stored.content.size_bytes();
                let size_bytes = if is_written {
                    stored_bytes
                } else {
                    stored_bytes.min(file.limits.size_bytes)
                };
                let left_bytes = size_bytes.saturating_sub(command.offset_bytes);
                let bytes = u32::try_from(left_bytes)
                    .map_or(command.length_bytes, |left| left.min(command.length_bytes));
                let mut slot = slot.into_filled(bytes);
                stored
                    .content
                    .fill(command.offset_bytes, arena.payload_mut(&mut slot));
                self.counters.disk_read_bytes += u64::from(bytes);
                slot
            }
            CommandSlot::Writing(slot) => {
                let bytes = &arena.payload(&slot)[..command.length_bytes as usize];
                stored.content.overwrite(command.offset_bytes, bytes);
                self.counters.disk_write_bytes += u64::from(command.length_bytes);
                slot
            }
        };
        Completion {
            token,
            result: Ok(slot),
        }
    }
}

impl Disk for SimDisk {
    fn open(&mut self, file: FileSource) -> Result<(FileIndex, FileLimits), DiskError> {
        let FileSource::Simulated(catalogue_id) = file else {
            return Err(DiskError::Io(libc::ENOTSUP));
        };
        let stored = self
            .catalogue
            .get(catalogue_id as usize)
            .ok_or(DiskError::Io(libc::ENOENT))?;
        let limits = FileLimits {
            size_bytes: stored.content.size_bytes(),
            block_bytes: self.config.block_bytes,
            read_bytes_max: self.config.read_bytes_max,
        };
        let open = OpenFile {
            catalogue_id,
            version: Some(stored.version),
            status: stored.status,
            limits,
        };
        let entry = self.files.iter().position(|(_, open)| open.is_none());
        let entry = entry.ok_or(DiskError::TableFull)?;
        self.files[entry].1 = Some(open);
        let index = u16::try_from(entry).expect("invariant: at most 65,536 files");
        Ok((FileIndex::new(index, self.files[entry].0), limits))
    }

    fn close(&mut self, file: FileIndex) {
        if self.open_file(file).is_some() {
            self.files[usize::from(file.table_index())] = (file.generation().wrapping_add(1), None);
        }
    }

    fn read(&mut self, arena: &mut Arena, read: Read) -> Result<(), Read> {
        let Some(index) = self.free_commands.pop() else {
            self.counters.disk_queue_full_commands += 1;
            return Err(read);
        };
        assert!(
            (1..=arena.slot_bytes()).contains(&read.length_bytes),
            "a read fits its slot"
        );
        let file = self.open_file(read.file);
        if let Some(file) = file {
            check_alignment(read.offset_bytes, read.length_bytes, &file.limits);
        }
        self.counters.disk_read_commands += 1;
        let command = Command {
            token: read.token,
            file,
            file_index: read.file,
            offset_bytes: read.offset_bytes,
            length_bytes: read.length_bytes,
            slot: CommandSlot::Reading(read.slot.into_reading()),
            fails: false,
            verified: None,
        };
        self.enqueue(index, command);
        Ok(())
    }

    fn write(&mut self, _arena: &mut Arena, write: Write) -> Result<(), Write> {
        let Some(index) = self.free_commands.pop() else {
            self.counters.disk_queue_full_commands += 1;
            return Err(write);
        };
        let filled_bytes = write.slot.filled_bytes();
        assert!(
            (1..=filled_bytes).contains(&write.length_bytes),
            "a write is within its slot"
        );
        let file = self.open_file(write.file).map(|file| OpenFile {
            version: None,
            ..file
        });
        if let Some(file) = file {
            check_alignment(write.offset_bytes, write.length_bytes, &file.limits);
            self.files[usize::from(write.file.table_index())].1 = Some(file);
        }
        self.counters.disk_write_commands += 1;
        let command = Command {
            token: write.token,
            file,
            file_index: write.file,
            offset_bytes: write.offset_bytes,
            length_bytes: write.length_bytes,
            slot: CommandSlot::Writing(write.slot),
            fails: false,
            verified: None,
        };
        self.enqueue(index, command);
        Ok(())
    }

    fn sqsync(&mut self, now: Instant) -> Result<(), DiskError> {
        if let Some(error) = self.refusal {
            return Err(error);
        }
        for at in 0..self.enqueued.len() {
            let index = self.enqueued[at];
            let mut latency = self.draw_latency();
            if self.happens(self.config.partial_chance) {
                self.counters.disk_reissued_commands += 1;
                latency += self.draw_latency();
            }
            let fails = self.happens(self.config.error_chance);
            let lot = self.random.next_u32();
            if let Some(command) = &mut self.commands[index as usize] {
                command.fails = fails;
            }
            let due = self.transfer(now, index) + latency;
            self.submitted.push(Reverse((due, lot, index)));
        }
        self.enqueued.clear();
        Ok(())
    }

    fn consume_completions(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        completions_max: usize,
        sink: &mut dyn FnMut(&mut Arena, Completion),
    ) -> usize {
        let mut consumed = 0;
        while consumed < completions_max && self.next_event().is_some_and(|due| due <= now) {
            let Some(Reverse((due, _, index))) = self.submitted.pop() else {
                break;
            };
            if self.is_stuck(index) {
                self.stuck.push(index);
                continue;
            }
            if self.hold(now, index) {
                continue;
            }
            let command = self.commands[index as usize].take();
            let command = command.expect("invariant: what is submitted is in the table");
            self.free_commands.push(index);
            self.completed_at = due;
            let completion = self.finish(arena, command);
            if let Err((_, error)) = &completion.result {
                self.counters.count_failure(*error);
            }
            sink(arena, completion);
            consumed += 1;
        }
        consumed
    }

    fn in_flight(&self) -> usize {
        self.commands.len() - self.free_commands.len()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

#[cfg(test)]
mod tests;
