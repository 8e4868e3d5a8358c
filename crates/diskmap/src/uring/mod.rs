//! Files and block devices through `io_uring`.
//!
//! **A slot given to the kernel returns only by its completion.** Reads use slots of registered
//! buffers, so that the kernel does not look up pages for each read. A file that is read often is
//! registered, too ([`REGISTER_AFTER_READS`]), and so is a device with open ranges (`ranges`). One
//! `io_uring_enter` submits everything enqueued. Reaping needs another call only if the ring's
//! flags say that the kernel has task work for this thread.
//!
//! Task work is deferred (`DEFER_TASKRUN`, Linux 6.1): a completion neither interrupts the thread nor
//! ends its sleep, except in `ppoll` on [`Disk::poll_fd`], an eventfd registered with the ring. So a
//! caller that does other things meanwhile, or sleeps for a set time, gets completions together
//! (`docs/develop/decisions/0015-wake-ups.md`). The kernel adds to the eventfd when the first completion waits,
//! and again when we have it appear in the ring. Therefore it is cleared behind that, and *before* the
//! flag is looked at again: a completion that came in between is seen by the flag. The thread that
//! makes the disk must be the one that uses it, or [`Uring::new_disabled`] makes it and the other enables
//! it. Older kernels have cooperative task work (5.19) or none.
//!
//! A completion is matched to its command by index and generation, or counted as stale and ignored.
//! An interrupted or partial command is reissued. Then the file is checked for changes (`files`), and
//! the completion is handed out, or held until it is known whether the file was written (`held`).
//!
//! Dropping a `Uring` with commands in flight waits for them, for [`DRAIN_SECONDS_MAX`] at most.
//! Their slots are then lost to the arena, which keeps its memory mapped while slots are missing: so
//! a device that writes even later writes to no other memory. To get the slots back, consume until
//! [`Disk::in_flight`] is zero before the drop.
//!
//! It refuses SQPOLL (it occupies a second core), IOPOLL (only for direct I/O on devices and file
//! systems with polled queues), and links or timeouts between commands. Bounded by [`UringConfig`].

#![allow(
    unsafe_code,
    reason = "UNSAFETY: hands addresses to the kernel, and asks it by ioctl"
)]

mod change;
mod commands;
mod files;
mod held;
mod limits;
mod page_cache;
mod ranges;
mod runs;
mod touched;
mod verification;
mod witness;

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, RawFd};

use clock::Instant;
use io_uring::{opcode, squeue, types};
use memory::Arena;

use crate::ring::Ring;
use crate::{
    ClosedFile, Completion, Counters, Disk, DiskError, FileIndex, FileLimits, FileSource, Read,
    Write, check_alignment,
};
use commands::{Command, CommandSlot, Commands, Entered, Verdict};
use files::{Check, Files, OpenFile};
use runs::{AdjacentRead, Runs};

/// Most commands enqueued or in flight.
pub const QUEUE_DEPTH_MAX: u32 = 4096;
/// Most files open at once.
pub const FILES_MAX: u32 = 1 << 16;
/// Longest wait for commands in flight when a disk is dropped. A disk that answers at all answers
/// sooner (the block layer's timeout is 30 s).
pub const DRAIN_SECONDS_MAX: u64 = 40;
/// Reads of a file before it is registered with the ring. Registering and unregistering cost 360 ns,
/// and a registered file saves 14 ns in each read: `docs/develop/decisions/0014-when-status-is-not-compared.md`.
pub const REGISTER_AFTER_READS: u32 = 32;
/// Most completions reaped at a time. Completions of one batch share the check of their file.
const BATCH_MAX: usize = 64;

/// Sizes and options of a disk; every size is a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UringConfig {
    /// Most commands enqueued or in flight, 1..=[`QUEUE_DEPTH_MAX`].
    pub queue_depth: u32,
    /// Most files open at once, 1..=[`FILES_MAX`].
    pub files_max: u32,
    /// Registers the arena with the kernel, if the kernel permits it.
    pub fixed_buffers: bool,
    /// A file is registered with the ring at the first read after this many.
    pub register_after_reads: u32,
    /// Hands closed files back ([`Disk::poll_closed`]) instead of dropping them.
    pub return_closed_files: bool,
}

impl Default for UringConfig {
    fn default() -> Self {
        Self {
            queue_depth: 256,
            files_max: 1024,
            fixed_buffers: true,
            register_after_reads: REGISTER_AFTER_READS,
            return_closed_files: false,
        }
    }
}

/// Why there is no disk; each message ends in what to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UringError {
    /// A size out of range.
    #[error(
        "a disk with {queue_depth} commands and {files_max} files: choose 1 to {QUEUE_DEPTH_MAX} \
         commands and 1 to {FILES_MAX} files"
    )]
    Config {
        /// As configured.
        queue_depth: u32,
        /// As configured.
        files_max: u32,
    },
    /// The kernel refused to set up a ring.
    #[error(
        "no io_uring ({}); {}",
        std::io::Error::from_raw_os_error(*.errno),
        crate::ring::setup_remedy(*.errno, "5.19")
    )]
    Setup {
        /// What the kernel said.
        errno: i32,
    },
}

/// A disk behind an `io_uring`.
#[derive(Debug)]
pub struct Uring {
    ring: Ring,
    commands: Commands,
    files: Files,
    slot_bytes: u32,
    files_max: u32,
    has_fixed_buffers: bool,
    has_fixed_files: bool,
    register_after_reads: u32,
    fallback_reason: Option<String>,
    return_closed_files: bool,
    /// Closed files for [`Disk::poll_closed`].
    closed: VecDeque<ClosedFile>,
    /// Indexes of closed files that the kernel refused to unregister.
    still_registered: Vec<u16>,
    /// Reads that become one entry.
    runs: Runs,
    /// Completions that were taken from the ring and not handled yet: one of a run is several of the caller's.
    reaped: VecDeque<(u64, i32)>,
    /// Completions that were held, to be handed out: their indexes, and how they end.
    released: VecDeque<(u32, Command, Result<(), DiskError>)>,
    /// Reissued commands wait for a submission, which no caller will ask for.
    has_unsubmitted_reissues: bool,
    counters: Counters,
}

impl Uring {
    /// Sets up a ring for the slots of `arena`.
    ///
    /// # Errors
    /// A size is out of range, or the kernel refuses even a ring without flags. Buffers or files that
    /// cannot be registered are no error; see [`Uring::fallback_reason`].
    pub fn new(config: UringConfig, arena: &Arena) -> Result<Self, UringError> {
        let mut disk = Self::new_disabled(config, arena)?;
        disk.enable()?;
        Ok(disk)
    }

    /// The same for a disk that another thread will use, which calls [`Uring::enable`] first. What
    /// needs a privilege (locked memory beyond the limit) is done here.
    ///
    /// # Errors
    /// Those of [`Uring::new`].
    pub fn new_disabled(config: UringConfig, arena: &Arena) -> Result<Self, UringError> {
        let UringConfig {
            queue_depth,
            files_max,
            ..
        } = config;
        if !(1..=QUEUE_DEPTH_MAX).contains(&queue_depth) || !(1..=FILES_MAX).contains(&files_max) {
            return Err(UringError::Config {
                queue_depth,
                files_max,
            });
        }
        let ring = Ring::new(queue_depth).map_err(|errno| UringError::Setup { errno })?;
        Ok(Self::on_ring(ring, config, arena))
    }

    fn on_ring(ring: Ring, config: UringConfig, arena: &Arena) -> Self {
        let UringConfig {
            queue_depth,
            files_max,
            fixed_buffers,
            register_after_reads,
            return_closed_files,
        } = config;
        let buffers = if fixed_buffers {
            ring.register_buffers(arena)
        } else {
            Ok(())
        };
        // Those of devices with open ranges come behind those of files.
        let numbers = files_max + u32::from(ranges::DEVICES_MAX);
        let files = ring.submitter().register_files_sparse(numbers);
        let files = files.map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(0);
            format!("files cannot be registered with io_uring (errno {errno})")
        });
        let has_fixed_files = files.is_ok();
        let has_fixed_buffers = fixed_buffers && buffers.is_ok();
        let has_runs = has_fixed_buffers && ring.has_operation(opcode::ReadvFixed::CODE);
        Self {
            ring,
            commands: Commands::new(queue_depth),
            files: Files::new(files_max),
            slot_bytes: arena.slot_bytes(),
            files_max,
            has_fixed_buffers,
            runs: Runs::new(has_runs, queue_depth),
            // What is left of a run takes the place of its completion.
            reaped: VecDeque::with_capacity(BATCH_MAX),
            has_fixed_files,
            fallback_reason: buffers.err().or(files.err()),
            register_after_reads,
            return_closed_files,
            closed: VecDeque::new(),
            still_registered: Vec::new(),
            released: VecDeque::new(),
            has_unsubmitted_reissues: false,
            counters: Counters::default(),
        }
    }

    /// Makes a disk ready for commands, for good: the calling thread is the one that will use it.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn enable(&mut self) -> Result<(), UringError> {
        let enabled = self.ring.enable();
        enabled.map_err(|errno| UringError::Setup { errno })
    }

    /// Why reads cost more than necessary, and what to do; `None` if buffers and files are registered.
    #[must_use]
    pub fn fallback_reason(&self) -> Option<&str> {
        self.fallback_reason.as_deref()
    }

    /// Enters a command into the table and the submission queue.
    fn enqueue(&mut self, arena: &Arena, command: Command) {
        self.end_run();
        if let Some(index) = command.file {
            self.files.note_command(index);
        }
        let entry = self.entry(arena, &command);
        let user_data = self.commands.insert(command);
        self.push(&entry.user_data(user_data));
    }

    /// Adds a read of the table to the run that grows, or begins another with it.
    fn add_to_run(&mut self, read: &AdjacentRead) {
        if let Some(before) = self.runs.lengthen(read) {
            self.commands.link(before, read.user_data);
            self.counters.disk_merged_commands += 1;
        } else {
            self.end_run();
            self.runs.begin(read);
        }
    }

    /// Enters the run that grows into the submission queue.
    fn end_run(&mut self) {
        let Some(run) = self.runs.take() else {
            return;
        };
        let (number, flags, offset_bytes) = self.target(Some(run.file), run.offset_bytes);
        let fd = types::Fd(number);
        let entry = match self.runs.places_of(&run) {
            [place] => {
                opcode::ReadFixed::new(fd, place.pointer(), place.length_bytes(), run.region)
                    .offset(offset_bytes)
                    .build()
            }
            places => {
                let count = u32::try_from(places.len()).expect("invariant: a run has few reads");
                opcode::ReadvFixed::new(fd, places.as_ptr().cast(), count, run.region)
                    .offset(offset_bytes)
                    .build()
            }
        };
        self.push(&entry.flags(flags).user_data(run.first));
    }

    /// The descriptor of a file, whether it is one of the ring's and who waits for it, and where in it an offset is.
    fn target(&mut self, file: Option<u16>, offset_bytes: u64) -> (i32, squeue::Flags, u64) {
        // The kernel completes it with EBADF, like any other command.
        let Some(index) = file else {
            return (-1, squeue::Flags::empty(), offset_bytes);
        };
        let file = self.files.at(index);
        let place = file.place(offset_bytes);
        let number = file.raw_fd();
        // What may wait for somebody else's machine waits in a thread of the kernel's.
        let waits = if file.is_local() {
            squeue::Flags::empty()
        } else {
            squeue::Flags::ASYNC
        };
        let fixed = match file.device_place() {
            None => file.is_registered.then(|| i32::from(index)),
            Some(device) => {
                let is_registered = self.files.ranged.is_registered(device);
                is_registered.then(|| self.device_number(device).cast_signed())
            }
        };
        match fixed {
            Some(fixed) => (fixed, squeue::Flags::FIXED_FILE | waits, place),
            None => (number, waits, place),
        }
    }

    /// The submission queue entry for the rest of a command.
    fn entry(&mut self, arena: &Arena, command: &Command) -> squeue::Entry {
        let (number, flags, place) = self.target(command.file, command.offset_bytes);
        let fd = types::Fd(number);
        let done_bytes = command.done_bytes;
        let offset_bytes = place.saturating_add(done_bytes.into());
        let length_bytes = command.length_bytes - done_bytes;
        let entry = match &command.slot {
            CommandSlot::Reading(slot) => {
                let target = arena.device_address(slot).wrapping_add(done_bytes as usize);
                if self.has_fixed_buffers {
                    let region = arena.region_index(slot.index());
                    let read = opcode::ReadFixed::new(fd, target, length_bytes, region);
                    read.offset(offset_bytes).build()
                } else {
                    opcode::Read::new(fd, target, length_bytes)
                        .offset(offset_bytes)
                        .build()
                }
            }
            CommandSlot::Writing(slot) => {
                let source = arena.device_source(slot).wrapping_add(done_bytes as usize);
                if self.has_fixed_buffers {
                    let region = arena.region_index(slot.index());
                    let write = opcode::WriteFixed::new(fd, source, length_bytes, region);
                    write.offset(offset_bytes).build()
                } else {
                    opcode::Write::new(fd, source, length_bytes)
                        .offset(offset_bytes)
                        .build()
                }
            }
        };
        entry.flags(flags)
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the entry's address and length, or those of each place of a run, lie within a slot (`read` and
        // `write` check the length) whose token sits in the table of commands until the completion, and an arena
        // that misses a token never unmaps. A Reading slot yields no references; of a Writing one
        // no mutable reference exists, because that needs the token. The descriptor is kept open
        // by the file table until no command names it. The places of a run stay where they are until the
        // kernel has read them (`Runs`). The memory that a verification is read into is its own, and stays until
        // that read has ended (`Files::advance`), or for good if the disk is dropped before (`Drop`). The time of
        // its pauses is a static.
        unsafe { self.ring.push(entry) };
    }

    fn submit(&mut self) -> Result<(), DiskError> {
        self.end_run();
        self.files.look_before_reads();
        self.ring
            .submit(&mut self.counters.disk_enter_calls)
            .map_err(DiskError::Io)?;
        self.runs.forget_submitted();
        self.has_unsubmitted_reissues = false;
        Ok(())
    }

    /// Handles a reaped completion; `None` if it is stale, held, or its command is reissued. What is left of a run
    /// comes next.
    fn finish(&mut self, arena: &Arena, user_data: u64, mut result: i32) -> Option<Completion> {
        let (index, mut command) = match self.commands.take(user_data) {
            Some((index, Entered::Command(command))) => (index, command),
            Some((_, Entered::Verification(file))) => {
                self.advance_verification(file, result);
                return None;
            }
            None => {
                self.counters.disk_stale_completions += 1;
                return None;
            }
        };
        if let Some(next) = command.next.take() {
            if [-libc::EINVAL, -libc::EOPNOTSUPP].contains(&result) {
                self.runs.turn_off();
            }
            let rest;
            (result, rest) = runs::deal(result, command.length_bytes);
            self.reaped.push_front((next, rest));
        }
        let (size_bytes, block) = match command.file {
            Some(file) => {
                let limits = self.files.at(file).limits;
                (limits.size_bytes, limits.block_bytes)
            }
            None => (0, crate::BLOCK_BYTES_MIN),
        };
        let verdict = command.handle_result(result, size_bytes, block);
        command.clip_read(size_bytes);
        let outcome = match verdict {
            Verdict::Reissue => {
                self.counters.disk_reissued_commands += 1;
                let entry = self.entry(arena, &command);
                let user_data = self.commands.issue(index, Entered::Command(command));
                self.push(&entry.user_data(user_data));
                self.has_unsubmitted_reissues = true;
                return None;
            }
            Verdict::Done => Ok(()),
            Verdict::Short => Err(DiskError::Io(libc::EIO)),
            Verdict::Failed(error) => return Some(self.end(arena, index, command, Err(error))),
        };
        let outcome = match self.check(&command) {
            Ok(Check::Same) => outcome,
            Ok(Check::Unclear) => {
                self.hold(index, command, outcome);
                return None;
            }
            Err(error) => Err(error),
        };
        Some(self.end(arena, index, command, outcome))
    }

    /// Ends a command, whose index is free from now on.
    fn end(
        &mut self,
        arena: &Arena,
        index: u32,
        command: Command,
        outcome: Result<(), DiskError>,
    ) -> Completion {
        self.commands.release(index);
        let file = command.file;
        let completion = self.complete(arena, command, outcome);
        if let Some(file) = file
            && self.files.note_completion(file)
        {
            self.remove_file(file);
        }
        completion
    }

    /// Takes so many completions from the ring, or as many as a batch has; whether the ring may have more.
    fn reap(&mut self, wanted: usize) -> bool {
        let mut batch = [(0, 0); BATCH_MAX];
        let wanted = BATCH_MAX.min(wanted);
        let calls = &mut self.counters.disk_enter_calls;
        let reaped = self.ring.reap(&mut batch[..wanted], calls);
        self.files.start_round();
        self.reaped.extend(&batch[..reaped]);
        reaped == wanted
    }

    /// Whether the bytes read may be handed out.
    fn check(&mut self, command: &Command) -> Result<Check, DiskError> {
        let Some(index) = command.file else {
            return Ok(Check::Same);
        };
        match command.slot {
            CommandSlot::Reading(_) => self.files.check(index),
            CommandSlot::Writing(_) => {
                let end_bytes = command.offset_bytes + u64::from(command.done_bytes);
                self.files.at(index).note_write(end_bytes);
                Ok(Check::Same)
            }
        }
    }

    fn complete(
        &mut self,
        arena: &Arena,
        command: Command,
        outcome: Result<(), DiskError>,
    ) -> Completion {
        let done_bytes = command.done_bytes;
        let result = match (outcome, command.slot) {
            (Ok(()), CommandSlot::Reading(slot)) => {
                self.counters.disk_read_bytes += u64::from(done_bytes);
                let slot = slot.into_filled(done_bytes);
                if let Some(index) = command.file {
                    let file = self.files.at(index);
                    file.note_handed_out(command.offset_bytes, || arena.payload(&slot));
                }
                Ok(slot)
            }
            (Ok(()), CommandSlot::Writing(slot)) => {
                self.counters.disk_write_bytes += u64::from(done_bytes);
                Ok(slot)
            }
            (Err(error), slot) => {
                self.counters.count_failure(error);
                Err((slot.into_free(), error))
            }
        };
        Completion {
            token: command.token,
            result,
        }
    }

    /// Removes a file that is closing and has no commands. It is unregistered first: the ring's
    /// reference must not be the last one, or our next system call would release the file and, if
    /// it is deleted, free its space. Completed requests hold no reference: the kernel frees them
    /// before their completions appear, or a thread of the kernel holds them and releases them.
    fn remove_file(&mut self, index: u16) {
        if self.files.at(index).is_registered && !self.unregister(index.into()) {
            self.counters.disk_kept_registrations += 1;
            self.still_registered.push(index);
            return;
        }
        if let Some(place) = self.files.at(index).device_place() {
            self.leave_device(place);
        }
        let removed = self.files.remove(index);
        if let Some(closed) = removed.and_then(OpenFile::into_closed) {
            self.return_closed(closed);
        }
    }

    /// Counts a read of the file, and registers the file once it has been read often enough. Commands
    /// in flight keep the descriptor that they were issued with.
    fn register_if_due(&mut self, index: u16) {
        let file = self.files.at(index);
        if file.device_place().is_some() {
            return;
        }
        if !self.has_fixed_files || !file.count_read(self.register_after_reads) {
            return;
        }
        let number = file.raw_fd();
        let is_registered = self.register(index.into(), number);
        self.files.at(index).is_registered = is_registered;
    }

    /// The device of a range that was opened is registered at once: many reads of other ranges follow.
    fn register_device_if_due(&mut self, place: u8) {
        if !self.has_fixed_files {
            return;
        }
        if let Some(number) = self.files.ranged.due_registration(place) {
            let is_registered = self.register(self.device_number(place), number);
            self.files.ranged.note_registration(place, is_registered);
        }
    }

    /// A range was closed and has no commands. Its device is unregistered with the last one; if the
    /// kernel refuses, the entry stays for the next range, with its descriptor.
    fn leave_device(&mut self, place: u8) {
        if !self.files.ranged.leave(place) {
            return;
        }
        if self.unregister(self.device_number(place)) {
            self.files.ranged.remove(place);
        } else {
            self.counters.disk_kept_registrations += 1;
        }
    }

    /// The number under which the device at a place is registered.
    fn device_number(&self, place: u8) -> u32 {
        self.files_max + u32::from(place)
    }

    fn register(&mut self, fixed: u32, number: RawFd) -> bool {
        let submitter = self.ring.submitter();
        let updated = submitter.register_files_update(fixed, &[number]);
        let is_registered = updated.is_ok_and(|count| count == 1);
        self.counters.disk_registered_files += u64::from(is_registered);
        self.counters.disk_unregistered_files += u64::from(!is_registered);
        is_registered
    }

    fn unregister(&self, fixed: u32) -> bool {
        let submitter = self.ring.submitter();
        submitter.register_files_update(fixed, &[-1]).is_ok()
    }

    /// Tries again to unregister a file.
    fn retry_unregister(&mut self) {
        if let Some(index) = self.still_registered.pop() {
            self.remove_file(index);
        }
    }

    fn return_closed(&mut self, file: ClosedFile) {
        if self.return_closed_files {
            self.closed.push_back(file);
        }
    }
}

impl Disk for Uring {
    fn open(&mut self, file: FileSource) -> Result<(FileIndex, FileLimits), DiskError> {
        self.retry_unregister();
        let opened = self.files.open(file, self.slot_bytes);
        match opened {
            Ok((file, limits)) => {
                let place = self.files.at(file.table_index()).device_place();
                place
                    .into_iter()
                    .for_each(|place| self.register_device_if_due(place));
                Ok((file, limits))
            }
            Err((refused, error)) => {
                refused
                    .into_iter()
                    .for_each(|file| self.return_closed(file));
                Err(error)
            }
        }
    }

    fn close(&mut self, file: FileIndex) {
        self.retry_unregister();
        if let Some(index) = self.files.find(file)
            && self.files.close(index)
        {
            self.remove_file(index);
        }
    }

    fn poll_closed(&mut self) -> Option<ClosedFile> {
        self.closed.pop_front()
    }

    fn read(&mut self, arena: &mut Arena, read: Read) -> Result<(), Read> {
        assert!(
            (1..=arena.slot_bytes()).contains(&read.length_bytes),
            "a read fits its slot"
        );
        if self.commands.is_full() {
            self.counters.disk_queue_full_commands += 1;
            return Err(read);
        }
        let file = self.files.find(read.file);
        if let Some(index) = file {
            let limits = &self.files.at(index).limits;
            check_alignment(read.offset_bytes, read.length_bytes, limits);
            self.files.expect_read(index);
            self.register_if_due(index);
        }
        self.counters.disk_read_commands += 1;
        let Read {
            offset_bytes,
            length_bytes,
            ..
        } = read;
        let slot = read.slot.into_reading();
        let region = arena.region_index(slot.index());
        let address = arena.device_address(&slot);
        let command = Command {
            token: read.token,
            file,
            offset_bytes,
            length_bytes,
            done_bytes: 0,
            reissues: 0,
            next: None,
            slot: CommandSlot::Reading(slot),
        };
        let Some(file) = file.filter(|_| self.runs.has_room()) else {
            self.enqueue(arena, command);
            return Ok(());
        };
        self.files.note_command(file);
        let user_data = self.commands.insert(command);
        self.add_to_run(&AdjacentRead {
            user_data,
            file,
            region,
            offset_bytes,
            address,
            length_bytes,
        });
        Ok(())
    }

    fn write(&mut self, arena: &mut Arena, write: Write) -> Result<(), Write> {
        let filled_bytes = write.slot.filled_bytes();
        assert!(
            (1..=filled_bytes).contains(&write.length_bytes),
            "a write is within its slot"
        );
        if self.commands.is_full() {
            self.counters.disk_queue_full_commands += 1;
            return Err(write);
        }
        let file = self.files.find(write.file);
        if let Some(index) = file {
            let open = self.files.at(index);
            check_alignment(write.offset_bytes, write.length_bytes, &open.limits);
            let end_bytes = write.offset_bytes.saturating_add(write.length_bytes.into());
            assert!(
                !open.is_range() || end_bytes <= open.whole_bytes(),
                "a write within its range: what lies behind belongs to others"
            );
            // From here on this disk changes the file.
            open.note_write(0);
        }
        self.counters.disk_write_commands += 1;
        let command = Command {
            token: write.token,
            file,
            offset_bytes: write.offset_bytes,
            length_bytes: write.length_bytes,
            done_bytes: 0,
            reissues: 0,
            next: None,
            slot: CommandSlot::Writing(write.slot),
        };
        self.enqueue(arena, command);
        Ok(())
    }

    fn sqsync(&mut self, _now: Instant) -> Result<(), DiskError> {
        self.end_run();
        if !self.ring.has_unsubmitted() {
            return Ok(());
        }
        self.submit()
    }

    fn consume_completions(
        &mut self,
        _now: Instant,
        arena: &mut Arena,
        completions_max: usize,
        sink: &mut dyn FnMut(&mut Arena, Completion),
    ) -> usize {
        if self.commands.len() == 0 {
            return 0;
        }
        let mut consumed = 0;
        let mut may_have_more = true;
        while consumed < completions_max {
            if let Some((index, command, outcome)) = self.released.pop_front() {
                let completion = self.end(arena, index, command, outcome);
                sink(arena, completion);
                consumed += 1;
                continue;
            }
            if self.reaped.is_empty() && may_have_more {
                may_have_more = self.reap(completions_max - consumed);
            }
            let Some((user_data, result)) = self.reaped.pop_front() else {
                break;
            };
            if let Some(completion) = self.finish(arena, user_data, result) {
                sink(arena, completion);
                consumed += 1;
            }
        }
        self.counters.disk_check_calls = self.files.check_calls;
        self.counters.disk_touched_files = self.files.touched_files;
        self.counters.disk_verified_files = self.files.verified_files;
        if self.has_unsubmitted_reissues {
            // After a failure the next call tries again.
            let _ = self.submit();
        }
        consumed
    }

    fn in_flight(&self) -> usize {
        self.commands.len()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ring.poll_fd())
    }

    fn clear_wake(&mut self) {
        self.ring.clear_wake();
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl Drop for Uring {
    /// Waits until the kernel is done with every slot.
    fn drop(&mut self) {
        let mut batch = [(0, 0); BATCH_MAX];
        self.end_run();
        let verifications = self.give_up_held();
        for _ in 0..DRAIN_SECONDS_MAX {
            // Each pass ends after a second without completions.
            while self.commands.len() > 0 {
                let waited = self.ring.wait_a_second();
                let reaped = self
                    .ring
                    .reap(&mut batch, &mut self.counters.disk_enter_calls);
                let left = self.reaped.drain(..);
                let ended = left.chain(batch[..reaped].iter().copied());
                for (user_data, _) in ended {
                    let mut next = Some(user_data);
                    while let Some((index, entered)) = next.and_then(|it| self.commands.take(it)) {
                        self.commands.release(index);
                        next = match entered {
                            Entered::Command(command) => command.next,
                            Entered::Verification(_) => None,
                        };
                    }
                }
                if !waited && reaped == 0 {
                    break;
                }
            }
        }
        // By itself the kernel lets go of them some time after the ring is closed, and a device opened with
        // O_EXCL would be in use until then. With commands in flight it may wait for them.
        if self.commands.len() > 0 {
            // The kernel may still write to their memory.
            core::mem::forget(verifications);
        } else if self.has_fixed_files {
            let _ = self.ring.submitter().unregister_files();
        }
    }
}

#[cfg(test)]
mod tests;
