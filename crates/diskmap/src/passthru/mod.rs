//! Namespaces of NVMe controllers through the kernel's driver, by NVMe commands in an `io_uring`
//! (passthrough, Linux 6.1).
//!
//! **A slot given to the kernel returns only by its completion.** There is neither a file system nor the
//! block layer's scheduler between: an entry of 128 bytes has the command, the slots are registered
//! buffers, and one `io_uring_enter` issues all of a batch. The kernel keeps the controller: it
//! handles timeouts and resets, and other programs may use the disk meanwhile. What is promised is what
//! [`crate::nvme`] promises, and shares its code: ranges of namespaces, parts of at most what the controller
//! takes, statuses that may be tried again.
//!
//! With [`PassthruConfig::polled`] the kernel looks into the controllers' poll queues (`nvme.poll_queues`) when it is
//! asked for completions, and there are no interrupts; then no descriptor tells of completions
//! ([`Disk::next_poll`]).
//!
//! Dropping a `Passthru` with commands in flight waits for them, for [`DRAIN_SECONDS_MAX`] at most; their
//! slots are then lost to the arena. It refuses namespaces with metadata, blocks other than 512 and 4,096
//! bytes. A write is not durable before a
//! [`Passthru::flush`]. Bounded by [`PassthruConfig`].
//!
//! Reading first: linux/nvme_ioctl.h, and drivers/nvme/host/ioctl.c of the kernel.

#![allow(
    unsafe_code,
    reason = "UNSAFETY: hands addresses of slots to the kernel"
)]

mod device;
mod entry;

use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;

use clock::Instant;
use io_uring::{cqueue, opcode, squeue, types};
use memory::Arena;

use crate::nvme::canary::Canary;
use crate::nvme::commands::{Command, Kind, Progress};
use crate::nvme::requests::Requests;
use crate::nvme::{
    COMPLETION_POLL_INTERVAL, FILES_MAX, Flush, NamespaceError, QUEUE_DEPTH_MAX, Status,
};
use crate::ring::Ring;
use crate::{
    Completion, Counters, Disk, DiskError, FileIndex, FileLimits, FileSource, Read, Write,
};
pub use device::NamespaceDevice;
use entry::{COMMAND_BYTES, ENTRY_COMMAND_BYTES, URING_COMMAND, command_bytes};

/// Most namespaces of a disk.
pub const DEVICES_MAX: usize = 32;
/// Longest wait for commands in flight when a disk is dropped. The kernel ends those that take longer than
/// its timeout for them, 30 s.
pub const DRAIN_SECONDS_MAX: u64 = 40;
/// Most completions reaped at a time.
const BATCH_MAX: usize = 64;

/// Sizes and options of a disk; every size is a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PassthruConfig {
    /// Most commands enqueued or in flight, 1..=[`QUEUE_DEPTH_MAX`].
    pub queue_depth: u16,
    /// Most ranges open at once, 1..=[`FILES_MAX`].
    pub files_max: u32,
    /// Registers the arena with the kernel, if the kernel permits it.
    pub fixed_buffers: bool,
    /// Completions are looked for in the controllers' poll queues, instead of waiting for interrupts
    /// (IOPOLL; [`NamespaceDevice::has_poll_queues`]).
    pub polled: bool,
}

impl Default for PassthruConfig {
    fn default() -> Self {
        Self {
            queue_depth: 256,
            files_max: 1024,
            fixed_buffers: true,
            polled: false,
        }
    }
}

/// Why there is no disk; each message ends in what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PassthruError {
    /// A size out of range.
    #[error(
        "a disk with {queue_depth} commands and {files_max} files: choose 1 to {QUEUE_DEPTH_MAX} \
         commands and 1 to {FILES_MAX} files"
    )]
    Config {
        /// As configured.
        queue_depth: u16,
        /// As configured.
        files_max: u32,
    },
    /// None, or too many.
    #[error("{0} namespaces: choose 1 to {DEVICES_MAX}")]
    Devices(usize),
    /// The kernel refused to set up a ring.
    #[error(
        "no io_uring with entries of 128 bytes ({}); {}",
        std::io::Error::from_raw_os_error(*.errno),
        crate::ring::setup_remedy(*.errno, "6.1")
    )]
    Setup {
        /// What the kernel said.
        errno: i32,
    },
    /// A file that is no namespace, or whose commands are not permitted.
    #[error(
        "{path:?}: {what} failed (errno {errno}): give the generic device of a namespace, such as \
         /dev/ng0n1, and the rights to it"
    )]
    Device {
        /// As given.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        errno: i32,
    },
    /// A namespace that cannot be used.
    #[error("{path:?}: {error}: read it through the kernel's block device")]
    Namespace {
        /// As given.
        path: PathBuf,
        /// Why.
        error: NamespaceError,
    },
}

/// Entries of 128 bytes, and completions of 32.
type PassthruRing = Ring<squeue::Entry128, cqueue::Entry32>;

/// A disk of one worker, on namespaces of controllers that the kernel's driver has.
#[derive(Debug)]
pub struct Passthru {
    /// Dropped before the files whose commands are in it.
    ring: PassthruRing,
    devices: Vec<Arc<NamespaceDevice>>,
    requests: Requests,
    /// First and last address of each registered buffer; none if there are none.
    buffers: Vec<(usize, usize)>,
    depth: u16,
    is_polled: bool,
    fallback_reason: Option<String>,
}

impl Passthru {
    /// Sets up a ring for namespaces and the slots of `arena`. The first namespace has the number 0
    /// ([`crate::nvme::NamespaceRange::controller`]).
    ///
    /// # Errors
    /// A size is out of range, or the kernel refuses the ring. Buffers that cannot be registered
    /// are no error; see [`Passthru::fallback_reason`].
    pub fn new(
        devices: Vec<Arc<NamespaceDevice>>,
        config: PassthruConfig,
        arena: &Arena,
    ) -> Result<Self, PassthruError> {
        let mut disk = Self::new_disabled(devices, config, arena)?;
        disk.enable()?;
        Ok(disk)
    }

    /// The same for a disk that another thread will use, which calls [`Passthru::enable`] first. What
    /// needs a privilege (locked memory beyond the limit) is done here.
    ///
    /// # Errors
    /// Those of [`Passthru::new`].
    pub fn new_disabled(
        devices: Vec<Arc<NamespaceDevice>>,
        config: PassthruConfig,
        arena: &Arena,
    ) -> Result<Self, PassthruError> {
        let PassthruConfig {
            queue_depth,
            files_max,
            fixed_buffers,
            polled,
        } = config;
        if !(1..=QUEUE_DEPTH_MAX).contains(&queue_depth) || !(1..=FILES_MAX).contains(&files_max) {
            return Err(PassthruError::Config {
                queue_depth,
                files_max,
            });
        }
        if !(1..=DEVICES_MAX).contains(&devices.len()) {
            return Err(PassthruError::Devices(devices.len()));
        }
        let ring = if polled {
            PassthruRing::polled(queue_depth.into())
        } else {
            PassthruRing::new(queue_depth.into())
        };
        let ring = ring.map_err(|errno| PassthruError::Setup { errno })?;
        let registered = if fixed_buffers {
            ring.register_buffers(arena)
        } else {
            Ok(())
        };
        let mut buffers = Vec::new();
        if fixed_buffers && registered.is_ok() {
            let regions = arena.regions();
            buffers.extend(regions.map(|region| {
                let start = region.address.addr();
                (start, start + region.length_bytes - 1)
            }));
        }
        let largest = devices.iter().map(|it| it.command_bytes_max).min();
        let requests = Requests::new(
            (queue_depth, files_max),
            (0..).zip(devices.iter().map(|it| it.namespace)).collect(),
            (arena.slot_bytes(), largest.unwrap_or(0)),
            Canary::default(),
        );
        Ok(Self {
            ring,
            devices,
            requests,
            buffers,
            depth: queue_depth,
            is_polled: polled,
            fallback_reason: registered.err(),
        })
    }

    /// Makes a disk ready for commands, for good: the calling thread is the one that will use it.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn enable(&mut self) -> Result<(), PassthruError> {
        let enabled = self.ring.enable();
        enabled.map_err(|errno| PassthruError::Setup { errno })
    }

    /// Why reads cost more than necessary, and what to do; `None` if the slots are registered.
    #[must_use]
    pub fn fallback_reason(&self) -> Option<&str> {
        self.fallback_reason.as_deref()
    }

    /// Most commands enqueued or in flight.
    #[must_use]
    pub const fn queue_depth(&self) -> u16 {
        self.depth
    }

    /// Enqueues a flush, like [`Disk::write`].
    ///
    /// # Errors
    /// The queue is full; the flush is given back.
    pub fn flush(&mut self, flush: Flush) -> Result<(), Flush> {
        self.requests.flush(flush)
    }

    /// Submits everything that is pending, by one system call, and what an earlier call could not submit.
    fn issue_pending(&mut self, now: Instant) -> Result<(), DiskError> {
        self.push_pending(now);
        if !self.ring.has_unsubmitted() {
            return Ok(());
        }
        let calls = &mut self.requests.counters.disk_enter_calls;
        self.ring.submit(calls).map_err(DiskError::Io)
    }

    /// Writes entries for everything that is pending.
    fn push_pending(&mut self, now: Instant) {
        while let Some(index) = self.requests.pending.pop_front() {
            let id = self.requests.commands.next_id(index);
            let command = self.requests.commands.at(index);
            command.progress = Progress::Issued {
                at: now,
                is_aborted: false,
            };
            let entry = entry_of(command, &self.devices, &self.buffers).user_data(id.into());
            // SAFETY: the data is a part of a slot's payload (`Requests` checks the length) whose token sits
            // in the table of commands until the completion, and an arena that misses a token never unmaps.
            // A Reading slot yields no references; of a Writing one no mutable reference exists,
            // because that needs the token. The descriptor is open as long as the ring is.
            unsafe { self.ring.push(&entry) };
        }
    }

    /// Takes completions until `most` commands have ended, or there are no more.
    fn reap(&mut self, most: usize) {
        let mut batch = [(0, 0); BATCH_MAX];
        while self.requests.ended.len() < most {
            let wanted = BATCH_MAX.min(most - self.requests.ended.len());
            let calls = &mut self.requests.counters.disk_enter_calls;
            let reaped = self.ring.reap(&mut batch[..wanted], calls);
            for &(user_data, result) in &batch[..reaped] {
                self.handle_result(user_data, result);
            }
            if reaped < wanted {
                break;
            }
        }
    }

    /// Handles a completion: the Status Field without its phase tag, or an errno below zero.
    fn handle_result(&mut self, user_data: u64, result: i32) {
        let commands = &self.requests.commands;
        let index = u16::try_from(user_data).ok();
        let Some(index) = index.and_then(|id| commands.find_issued(id)) else {
            self.requests.counters.disk_stale_completions += 1;
            return;
        };
        match u16::try_from(result) {
            Ok(status) => {
                let status = Status::from_entry(status << 1);
                self.requests.handle_status(index, status);
            }
            // The kernel cancelled it, when it reset the controller, or had no room for it.
            Err(_) if [-libc::EINTR, -libc::EAGAIN].contains(&result) => {
                self.requests.reissue_or_end(index, DiskError::Io(-result));
            }
            Err(_) => self.requests.end(index, Err(DiskError::Io(-result))),
        }
    }
}

/// The submission queue entry of a command's next part.
fn entry_of(
    command: &Command,
    devices: &[Arc<NamespaceDevice>],
    buffers: &[(usize, usize)],
) -> squeue::Entry128 {
    let (namespace_id, dwords) = command.target();
    let device = &devices[usize::from(command.controller())];
    let data = match command.kind {
        Kind::Flush => (0, 0),
        Kind::Read | Kind::Write => {
            let address = command.payload + u64::from(command.done_bytes);
            (address, command.part_bytes)
        }
    };
    let kind = (command.kind.opcode(), namespace_id);
    let mut bytes = [0; ENTRY_COMMAND_BYTES];
    bytes[..COMMAND_BYTES].copy_from_slice(&command_bytes(kind, data, dwords));
    let descriptor = types::Fd(device.file.as_raw_fd());
    let entry = opcode::UringCmd80::new(descriptor, URING_COMMAND).cmd(bytes);
    let buffer = buffer_of(data.0, buffers).filter(|_| command.kind != Kind::Flush);
    entry.buf_index(buffer).build()
}

/// The registered buffer that an address is in.
fn buffer_of(address: u64, buffers: &[(usize, usize)]) -> Option<u16> {
    let is_in = |(first, last): &(usize, usize)| (*first as u64..=*last as u64).contains(&address);
    let index = buffers.iter().position(is_in)?;
    u16::try_from(index).ok()
}

impl Disk for Passthru {
    fn open(&mut self, file: FileSource) -> Result<(FileIndex, FileLimits), DiskError> {
        self.requests.open(file)
    }

    fn close(&mut self, file: FileIndex) {
        self.requests.close(file);
    }

    fn read(&mut self, arena: &mut Arena, read: Read) -> Result<(), Read> {
        self.requests.read(read, |slot| {
            arena.device_address(slot).expose_provenance() as u64
        })
    }

    fn write(&mut self, arena: &mut Arena, write: Write) -> Result<(), Write> {
        self.requests.write(write, |slot| {
            arena.device_source(slot).expose_provenance() as u64
        })
    }

    fn sqsync(&mut self, now: Instant) -> Result<(), DiskError> {
        self.requests.admit_all();
        self.issue_pending(now)
    }

    fn consume_completions(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        completions_max: usize,
        sink: &mut dyn FnMut(&mut Arena, Completion),
    ) -> usize {
        if self.requests.commands.len() == 0 {
            return 0;
        }
        self.reap(completions_max);
        if !self.requests.pending.is_empty() || self.ring.has_unsubmitted() {
            // After a failure the next call tries again.
            let _ = self.issue_pending(now);
        }
        self.requests
            .hand_out(arena, completions_max, &mut |_, _| {}, sink)
    }

    fn in_flight(&self) -> usize {
        self.requests.commands.len()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        (!self.is_polled).then(|| self.ring.poll_fd())
    }

    fn next_poll(&self, now: Instant) -> Option<Instant> {
        let is_waited_for = self.is_polled && self.requests.commands.len() > 0;
        is_waited_for.then(|| now + COMPLETION_POLL_INTERVAL)
    }

    fn clear_wake(&mut self) {
        self.ring.clear_wake();
    }

    fn counters(&self) -> Counters {
        self.requests.counters
    }
}

impl Drop for Passthru {
    /// Waits until the kernel is done with every slot.
    fn drop(&mut self) {
        let mut batch = [(0, 0); BATCH_MAX];
        for _ in 0..DRAIN_SECONDS_MAX {
            // Each pass ends after a second without completions.
            while self.requests.commands.issued().next().is_some() {
                let waited = self.ring.wait_a_second();
                let calls = &mut self.requests.counters.disk_enter_calls;
                let reaped = self.ring.reap(&mut batch, calls);
                for &(user_data, _) in &batch[..reaped] {
                    let id = u16::try_from(user_data).ok();
                    let index = id.and_then(|id| self.requests.commands.find_issued(id));
                    if let Some(index) = index {
                        // Nothing is issued again: its slot is lost.
                        self.requests
                            .end(index, Err(DiskError::Io(libc::ECANCELED)));
                    }
                }
                if !waited && reaped == 0 {
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use memory::ArenaConfig;

    use super::*;
    use crate::nvme::{NamespaceFormat, NamespaceRange, REISSUES_MAX};

    const NOW: Instant = Instant::ZERO;

    /// Many more looks for completions than a file takes that answers at once.
    const LOOKS_MAX: u32 = 100_000;

    /// A file that takes no NVMe commands, with blocks of 4 KiB, as namespace 1 of a controller.
    fn device(block_count: u64) -> Arc<NamespaceDevice> {
        let format = NamespaceFormat {
            block_count,
            block_shift: 12,
        };
        Arc::new(NamespaceDevice {
            file: tempfile::tempfile().expect("a temporary file"),
            namespace: crate::nvme::Namespace {
                id: 1,
                format: Ok(format),
            },
            command_bytes_max: 16_384,
            has_poll_queues: false,
        })
    }

    /// A disk on one of 1,024 blocks.
    fn disk() -> (Passthru, Arena) {
        disk_on(vec![device(1024)])
    }

    fn disk_on(devices: Vec<Arc<NamespaceDevice>>) -> (Passthru, Arena) {
        let arena = Arena::new(ArenaConfig::new(4)).expect("some memory");
        let config = PassthruConfig {
            queue_depth: 2,
            ..PassthruConfig::default()
        };
        let disk = Passthru::new(devices, config, &arena).expect("a ring");
        (disk, arena)
    }

    /// Opens all of it, and enqueues a read of 64 KiB.
    fn read(disk: &mut Passthru, arena: &mut Arena) {
        let range = NamespaceRange {
            controller: 0,
            namespace_id: 1,
            start_bytes: 0,
            length_bytes: 4 << 20,
        };
        let (file, limits) = disk.open(FileSource::Namespace(range)).expect("room");
        assert_eq!(limits.read_bytes_max, 16_384);
        let read = Read {
            file,
            offset_bytes: 8192,
            length_bytes: 65_536,
            slot: arena.reserve().expect("a free slot"),
            token: 7,
        };
        disk.read(arena, read).expect("room for a command");
    }

    /// As if the kernel had been given what is pending; the identifier of the one command.
    fn issue(disk: &mut Passthru) -> u64 {
        let index = disk.requests.pending.pop_front().expect("a command");
        let id = disk.requests.commands.next_id(index);
        disk.requests.commands.at(index).progress = Progress::Issued {
            at: NOW,
            is_aborted: false,
        };
        id.into()
    }

    /// What completes, without asking the kernel.
    fn outcome(disk: &mut Passthru, arena: &mut Arena) -> Option<Result<u32, DiskError>> {
        let mut outcome = None;
        let sink = &mut |arena: &mut Arena, completion: Completion| {
            assert_eq!(completion.token, 7);
            let (slot, result) = match completion.result {
                Ok(slot) => {
                    let bytes = slot.filled_bytes();
                    (slot.into_free(), Ok(bytes))
                }
                Err((slot, error)) => (slot, Err(error)),
            };
            arena.release(slot);
            outcome = Some(result);
        };
        disk.requests.hand_out(arena, 8, &mut |_, _| {}, sink);
        outcome
    }

    /// What a file without NVMe commands answers.
    const NOT_TAKEN: DiskError = DiskError::Io(libc::EOPNOTSUPP);

    /// Consumes until nothing is in flight; the last error.
    fn failure(disk: &mut Passthru, arena: &mut Arena) -> Option<DiskError> {
        let mut failed = None;
        for _ in 0..LOOKS_MAX {
            if disk.in_flight() == 0 {
                return failed;
            }
            let sink = &mut |arena: &mut Arena, completion: Completion| {
                let (slot, error) = completion.result.expect_err("no such command");
                failed = Some(error);
                arena.release(slot);
            };
            disk.consume_completions(NOW, arena, 8, sink);
            std::thread::yield_now();
        }
        panic!("a command never completes");
    }

    #[test]
    fn a_file_that_takes_no_commands_fails_them_and_slots_come_back() {
        let (mut disk, mut arena) = disk();
        read(&mut disk, &mut arena);
        disk.sqsync(NOW).expect("a working ring");
        assert_eq!(failure(&mut disk, &mut arena), Some(NOT_TAKEN));
        assert_eq!(arena.free_count(), arena.slot_count());
        assert_eq!(disk.counters().disk_failed_commands, 1);
    }

    /// The kernel had no room when a command was issued again: whoever only consumes is not left waiting.
    #[test]
    fn what_could_not_be_submitted_is_submitted_when_completions_are_looked_for() {
        let (mut disk, mut arena) = disk();
        read(&mut disk, &mut arena);
        disk.requests.admit_all();
        disk.push_pending(NOW);
        assert_eq!(failure(&mut disk, &mut arena), Some(NOT_TAKEN));
        assert_eq!(arena.free_count(), arena.slot_count());
    }

    /// Nothing tells of its completions, so it says when to look; and a file that cannot be polled fails.
    #[test]
    fn a_polled_disk_says_when_to_look_while_commands_are_in_flight() {
        let arena = Arena::new(ArenaConfig::new(4)).expect("some memory");
        let (mut disk, mut arena) = {
            let config = PassthruConfig {
                queue_depth: 2,
                polled: true,
                ..PassthruConfig::default()
            };
            let disk = Passthru::new(vec![device(1024)], config, &arena).expect("a ring");
            (disk, arena)
        };
        assert!(disk.poll_fd().is_none());
        assert_eq!(disk.next_poll(NOW), None);
        read(&mut disk, &mut arena);
        assert_eq!(disk.next_poll(NOW), Some(NOW + COMPLETION_POLL_INTERVAL));
        disk.sqsync(NOW).expect("a working ring");
        assert_eq!(failure(&mut disk, &mut arena), Some(NOT_TAKEN));
        assert_eq!(disk.next_poll(NOW), None);
        assert_eq!(arena.free_count(), arena.slot_count());
    }

    #[test]
    fn parts_follow_each_other_and_an_entry_names_them() {
        let (mut disk, mut arena) = disk();
        read(&mut disk, &mut arena);
        assert!(disk.requests.admit_all());
        for part in 0..4_u32 {
            assert_eq!(outcome(&mut disk, &mut arena), None);
            let index = *disk.requests.pending.front().expect("a part");
            let command = disk.requests.commands.at(index);
            assert_eq!(
                (command.done_bytes, command.part_bytes),
                (part * 16_384, 16_384)
            );
            assert_eq!(command.target(), (1, [2 + part * 4, 0, 3]));
            let id = issue(&mut disk);
            disk.handle_result(id, 0);
            // It cannot complete twice.
            disk.handle_result(id, 0);
        }
        assert_eq!(outcome(&mut disk, &mut arena), Some(Ok(65_536)));
        assert_eq!(disk.counters().disk_stale_completions, 4);
        assert_eq!(disk.counters().disk_reissued_commands, 0);
    }

    #[test]
    fn what_the_kernel_cancelled_is_issued_again_a_few_times() {
        for errno in [libc::EINTR, libc::EAGAIN] {
            let (mut disk, mut arena) = disk();
            read(&mut disk, &mut arena);
            disk.requests.admit_all();
            for _ in 0..REISSUES_MAX {
                let id = issue(&mut disk);
                disk.handle_result(id, -errno);
                assert_eq!(outcome(&mut disk, &mut arena), None);
            }
            let id = issue(&mut disk);
            disk.handle_result(id, -errno);
            let failed = Some(Err(DiskError::Io(errno)));
            assert_eq!(outcome(&mut disk, &mut arena), failed);
            let reissued = u64::from(REISSUES_MAX);
            assert_eq!(disk.counters().disk_reissued_commands, reissued);
        }
    }

    /// As often as that kind of status is worth: an error of the media once.
    #[test]
    fn statuses_that_allow_it_are_tried_again_and_then_a_read_goes_on() {
        for (status, attempts) in [(0x0006, REISSUES_MAX), (0x0281, 1)] {
            let (mut disk, mut arena) = disk();
            read(&mut disk, &mut arena);
            disk.requests.admit_all();
            for part in 0..4_u32 {
                for _ in 0..attempts {
                    let id = issue(&mut disk);
                    disk.handle_result(id, status);
                }
                let index = *disk.requests.pending.front().expect("the same part");
                assert_eq!(
                    disk.requests.commands.at(index).done_bytes,
                    part * 16_384,
                    "attempts are counted for each part"
                );
                let id = issue(&mut disk);
                disk.handle_result(id, 0);
            }
            assert_eq!(outcome(&mut disk, &mut arena), Some(Ok(65_536)));
            let reissued = 4 * u64::from(attempts);
            assert_eq!(disk.counters().disk_reissued_commands, reissued);

            read(&mut disk, &mut arena);
            disk.requests.admit_all();
            for _ in 0..=attempts {
                let id = issue(&mut disk);
                disk.handle_result(id, status);
            }
            let status = u16::try_from(status).expect("15 bits");
            let failed = DiskError::Nvme(Status::from_entry(status << 1));
            assert_eq!(outcome(&mut disk, &mut arena), Some(Err(failed)));
        }
    }

    #[test]
    fn other_errors_and_statuses_that_forbid_it_are_not_tried_again() {
        // Invalid Field in Command with Do Not Retry, as the kernel hands it out.
        let status = DiskError::Nvme(Status::from_entry(0x4002 << 1));
        for (result, error) in [(-libc::EIO, DiskError::Io(libc::EIO)), (0x4002, status)] {
            let (mut disk, mut arena) = disk();
            read(&mut disk, &mut arena);
            disk.requests.admit_all();
            let id = issue(&mut disk);
            disk.handle_result(id, result);
            assert_eq!(outcome(&mut disk, &mut arena), Some(Err(error)));
        }
    }

    #[test]
    fn completions_for_no_command_are_counted_and_ignored() {
        let (mut disk, mut arena) = disk();
        read(&mut disk, &mut arena);
        disk.requests.admit_all();
        let id = issue(&mut disk);
        for stale in [u64::MAX, id ^ 1, id + (1 << 16), id ^ 1 << 10] {
            disk.handle_result(stale, 0);
        }
        assert_eq!(disk.counters().disk_stale_completions, 4);
        assert_eq!(outcome(&mut disk, &mut arena), None);
        disk.handle_result(id, -libc::EIO);
        assert!(outcome(&mut disk, &mut arena).is_some());
    }

    #[test]
    fn sizes_and_devices_have_their_limits() {
        let arena = Arena::new(ArenaConfig::new(2)).expect("some memory");
        let refused = |queue_depth, files_max| {
            let config = PassthruConfig {
                queue_depth,
                files_max,
                ..PassthruConfig::default()
            };
            Passthru::new(Vec::new(), config, &arena).expect_err("no devices at least")
        };
        for (depth, files) in [(0, 1), (QUEUE_DEPTH_MAX + 1, 1), (1, 0), (1, FILES_MAX + 1)] {
            assert!(matches!(
                refused(depth, files),
                PassthruError::Config { .. }
            ));
        }
        assert_eq!(refused(1, 1), PassthruError::Devices(0));
        assert_eq!(
            refused(QUEUE_DEPTH_MAX, FILES_MAX),
            PassthruError::Devices(0)
        );
    }

    #[test]
    fn namespaces_of_several_controllers_may_have_one_number() {
        let (mut disk, mut arena) = disk_on(vec![device(1024), device(16)]);
        let mut open = |controller, namespace_id| {
            disk.open(FileSource::Namespace(NamespaceRange {
                controller,
                namespace_id,
                start_bytes: 0,
                length_bytes: 16 << 12,
            }))
        };
        let refused = Err(DiskError::Io(libc::ENODEV));
        assert_eq!(open(2, 1), refused);
        assert_eq!(open(1, 2), refused);
        let files = [0, 1].map(|number| open(number, 1).expect("it is there").0);
        for (number, file) in (0..).zip(files) {
            let read = Read {
                file,
                offset_bytes: 0,
                length_bytes: 4096,
                slot: arena.reserve().expect("a free slot"),
                token: 0,
            };
            disk.read(&mut arena, read).expect("room for a command");
            disk.requests.admit_all();
            let index = *disk.requests.pending.back().expect("a command");
            let command = disk.requests.commands.at(index);
            assert_eq!((command.controller(), command.target().0), (number, 1));
        }
    }

    #[test]
    fn a_slot_s_buffer_is_found_by_its_address() {
        let buffers = [(4096, 8191), (16_384, 20_479)];
        let found = [4095, 4096, 8191, 8192, 16_384, 20_479, 20_480]
            .map(|address| buffer_of(address, &buffers));
        assert_eq!(
            found,
            [None, Some(0), Some(0), None, Some(1), Some(1), None]
        );
        assert_eq!(buffer_of(4096, &[]), None);
    }
}
