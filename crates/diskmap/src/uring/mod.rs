//! Files and block devices through `io_uring`.
//!
//! **A slot given to the kernel returns only by its completion.** Reads name their slot as part
//! of a registered buffer, so that the kernel does not look up pages for each, and their file by
//! its place in a registered table. One `io_uring_enter` submits everything enqueued; reaping
//! costs another only if the ring's flags say the kernel has something to run for us.
//!
//! Completions are cooperative (`COOP_TASKRUN`), not deferred (`DEFER_TASKRUN`). On Linux 6.18 a
//! thread that sleeps in `poll` on its own deferred ring is not woken when a read completes (tried:
//! it slept out its timeout, and found the completion then). An eventfd beside the ring wakes it,
//! at the price of a `read` a batch to clear it and of a wake-up lost if it is cleared at the wrong
//! moment, and without a gain: a 4 KiB read at depth 16 cost 2.8 and 3.8 us of CPU time, against
//! 2.9 and 3.6 here (two runs each, a busy machine).
//!
//! What a completion goes through: found in the table of commands by place and generation, or
//! counted as stale and ignored; issued again if it was interrupted or partial; its file checked
//! for changes (`files`); handed out. Dropping a `Uring` with commands in flight waits for them,
//! for [`DRAIN_SECONDS_MAX`] at most; their slots do not come home then, and an arena that misses
//! slots keeps its memory mapped, so even a device that answers after that harms nobody.
//! To have the slots back, consume until [`Disk::in_flight`] is zero first.
//!
//! It refuses SQPOLL (a second core that spins), IOPOLL (not for files), and links or timeouts
//! between commands. Bounded by [`UringConfig`].

#![allow(
    unsafe_code,
    reason = "UNSAFETY: hands addresses to the kernel, and asks it by ioctl"
)]

mod commands;
mod files;
mod limits;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use clock::Instant;
use io_uring::{IoUring, opcode, squeue, types};
use memory::Arena;

use crate::{
    ClosedFile, Completion, Counters, Disk, DiskError, FileIndex, FileLimits, FileSource, Read,
    Write, check_alignment,
};
use commands::{Command, Commands, Held, Verdict};
use files::Files;

/// Most commands enqueued or in flight.
pub const QUEUE_DEPTH_MAX: u32 = 4096;
/// Most files open at once.
pub const FILES_MAX: u32 = 1 << 16;
/// Longest wait for commands in flight when a disk is dropped. No disk takes longer that will
/// answer at all (the block layer gives up after 30 s).
pub const DRAIN_SECONDS_MAX: u64 = 40;
/// Completions reaped at a time: those that share a check of their file.
const BATCH_MAX: usize = 64;
/// How often a submission is tried when the kernel is interrupted or short of memory.
const SUBMIT_ATTEMPTS_MAX: u32 = 8;
/// `IORING_ENTER_GETEVENTS`.
const ENTER_GETEVENTS: u32 = 1;

/// What a disk is told at start; every size in it is a bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UringConfig {
    /// Most commands enqueued or in flight, 1..=[`QUEUE_DEPTH_MAX`].
    pub queue_depth: u32,
    /// Most files open at once, 1..=[`FILES_MAX`].
    pub files_max: u32,
    /// Registers the arena with the kernel, if it lets us.
    pub fixed_buffers: bool,
    /// Hands closed files back ([`Disk::poll_closed`]) instead of dropping them.
    pub hands_back_closed: bool,
}

impl Default for UringConfig {
    fn default() -> Self {
        Self {
            queue_depth: 256,
            files_max: 1024,
            fixed_buffers: true,
            hands_back_closed: false,
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
    /// The kernel gives us no ring.
    #[error(
        "no io_uring (errno {errno}): set kernel.io_uring_disabled to 0, let the seccomp profile \
         of the container allow io_uring_setup, or use Linux 5.19 or newer"
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
    has_fixed_buffers: bool,
    has_fixed_files: bool,
    fallback_reason: Option<String>,
    hands_back_closed: bool,
    /// Files that were closed, to be dropped by somebody else.
    closed: VecDeque<ClosedFile>,
    /// Places of files that were closed and that the kernel would not forget.
    kept: Vec<u16>,
    /// Commands were issued again and wait for the next submission, which we owe ourselves.
    owes_submit: bool,
    counters: Counters,
}

/// `IoUring` does not implement `Debug`.
struct Ring(IoUring);

impl core::fmt::Debug for Ring {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Ring").field(&self.0.as_raw_fd()).finish()
    }
}

impl Uring {
    /// Sets up a ring for the slots of `arena`.
    ///
    /// # Errors
    /// A size out of range, or no ring even of the plainest kind. That buffers or files cannot be
    /// registered is no error; see [`Uring::fallback_reason`].
    pub fn new(config: UringConfig, arena: &Arena) -> Result<Self, UringError> {
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
        let ring = set_up(queue_depth).map_err(|errno| UringError::Setup { errno })?;
        Ok(Self::on_ring(ring, config, arena))
    }

    fn on_ring(ring: IoUring, config: UringConfig, arena: &Arena) -> Self {
        let UringConfig {
            queue_depth,
            files_max,
            fixed_buffers,
            hands_back_closed,
        } = config;
        let buffers = if fixed_buffers {
            register_buffers(&ring, arena)
        } else {
            Ok(())
        };
        let files = ring.submitter().register_files_sparse(files_max);
        let files = files.map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(0);
            format!("files cannot be registered with io_uring (errno {errno})")
        });
        let has_fixed_files = files.is_ok();
        Self {
            ring: Ring(ring),
            commands: Commands::new(queue_depth),
            files: Files::new(files_max),
            slot_bytes: arena.slot_bytes(),
            has_fixed_buffers: fixed_buffers && buffers.is_ok(),
            has_fixed_files,
            fallback_reason: buffers.err().or(files.err()),
            hands_back_closed,
            closed: VecDeque::new(),
            kept: Vec::new(),
            owes_submit: false,
            counters: Counters::default(),
        }
    }

    /// Why reads are slower than they could be, and what to do; `None` if all is well.
    #[must_use]
    pub fn fallback_reason(&self) -> Option<&str> {
        self.fallback_reason.as_deref()
    }

    /// Enters a command into the table and the submission queue.
    fn enqueue(&mut self, arena: &Arena, command: Command) {
        if let Some(place) = command.file {
            self.files.note_command(place);
        }
        let entry = self.entry(arena, &command);
        let name = self.commands.insert(command);
        self.push(entry.user_data(name));
    }

    /// The ring's form of what is left of a command.
    fn entry(&mut self, arena: &Arena, command: &Command) -> squeue::Entry {
        let (number, flags) = match command.file {
            // The kernel answers EBADF, by the same road as everything else.
            None => (-1, squeue::Flags::empty()),
            Some(place) => {
                let file = self.files.at(place);
                if file.is_registered {
                    (i32::from(place), squeue::Flags::FIXED_FILE)
                } else {
                    (file.raw_fd(), squeue::Flags::empty())
                }
            }
        };
        let fd = types::Fd(number);
        let done_bytes = command.done_bytes;
        let offset_bytes = command.offset_bytes + u64::from(done_bytes);
        let length_bytes = command.length_bytes - done_bytes;
        let entry = match &command.held {
            Held::Reading(slot) => {
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
            Held::Writing(slot) => {
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

    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: the entry's address and length lie within a slot (`read` and `write` check the
        // length) whose token sits in the table of commands until the completion, and an arena
        // that misses a token never unmaps. A Reading slot yields no references; of a Writing one
        // nobody can have a mutable reference, for lack of the token. The descriptor is kept open
        // by the file table until no command names it.
        let pushed = unsafe { self.ring.0.submission().push(&entry) };
        pushed.expect("invariant: the ring has a place for every command of the table");
    }

    /// Submits what is enqueued, by as few calls as the kernel lets us.
    fn submit(&mut self) -> Result<(), DiskError> {
        let mut errno = libc::EAGAIN;
        for _ in 0..SUBMIT_ATTEMPTS_MAX {
            self.counters.disk_enter_calls += 1;
            match self.ring.0.submitter().submit() {
                Ok(_) if self.ring.0.submission().is_empty() => {
                    self.owes_submit = false;
                    return Ok(());
                }
                Ok(_) => {}
                Err(error) => {
                    errno = error.raw_os_error().unwrap_or(libc::EIO);
                    if ![libc::EINTR, libc::EAGAIN, libc::EBUSY].contains(&errno) {
                        break;
                    }
                }
            }
        }
        Err(DiskError::Io(errno))
    }

    /// Fills `batch` with what has completed: names and results. Enters the kernel only if it has
    /// deferred work for us, without which completions do not show.
    fn reap(&mut self, batch: &mut [(u64, i32)]) -> usize {
        if self.ring.0.submission().taskrun() {
            self.counters.disk_enter_calls += 1;
            // SAFETY: submits nothing, waits for nothing, passes no pointer. An error (EINTR)
            // leaves the flag set, and the next call tries again.
            let _ = unsafe {
                self.ring
                    .0
                    .submitter()
                    .enter::<libc::sigset_t>(0, 0, ENTER_GETEVENTS, None)
            };
        }
        let mut count = 0;
        for (place, entry) in batch.iter_mut().zip(self.ring.0.completion()) {
            *place = (entry.user_data(), entry.result());
            count += 1;
        }
        count
    }

    /// What a reaped completion amounts to; `None` if it is stale or its command goes on.
    fn finish(&mut self, arena: &Arena, name: u64, result: i32) -> Option<Completion> {
        let Some((place, mut command)) = self.commands.take(name) else {
            self.counters.disk_stale_completions += 1;
            return None;
        };
        let (size_bytes, block) = match command.file {
            Some(file) => {
                let limits = self.files.at(file).limits;
                (limits.size_bytes, limits.block_bytes)
            }
            None => (0, crate::BLOCK_BYTES_MIN),
        };
        let outcome = match command.handle_result(result, size_bytes, block) {
            Verdict::Again => {
                self.counters.disk_reissued_commands += 1;
                let entry = self.entry(arena, &command);
                let name = self.commands.issue(place, command);
                self.push(entry.user_data(name));
                self.owes_submit = true;
                return None;
            }
            Verdict::Done => self.check(&command),
            Verdict::Stopped => self.check(&command).and(Err(DiskError::Io(libc::EIO))),
            Verdict::Failed(error) => Err(error),
        };
        self.commands.release(place);
        if let Some(file) = command.file
            && self.files.note_completion(file)
        {
            self.remove_file(file);
        }
        Some(self.complete(command, outcome))
    }

    /// Whether what was read may be handed out.
    fn check(&mut self, command: &Command) -> Result<(), DiskError> {
        let Some(place) = command.file else {
            return Ok(());
        };
        match command.held {
            Held::Reading(_) => self.files.check(place),
            Held::Writing(_) => {
                let end_bytes = command.offset_bytes + u64::from(command.done_bytes);
                self.files.at(place).note_write(end_bytes);
                Ok(())
            }
        }
    }

    fn complete(&mut self, command: Command, outcome: Result<(), DiskError>) -> Completion {
        let done_bytes = command.done_bytes;
        let result = match (outcome, command.held) {
            (Ok(()), Held::Reading(slot)) => {
                self.counters.disk_read_bytes += u64::from(done_bytes);
                Ok(slot.into_filled(done_bytes))
            }
            (Ok(()), Held::Writing(slot)) => {
                self.counters.disk_write_bytes += u64::from(done_bytes);
                Ok(slot)
            }
            (Err(error), held) => {
                self.counters.count_failure(error);
                Err((held.into_free(), error))
            }
        };
        Completion {
            token: command.token,
            result,
        }
    }

    /// Takes out a file that is closing and has no commands. The kernel forgets it first: the
    /// ring's own reference must not be the last one, for then the file would be released, and its
    /// space freed if it is deleted, in our next system call. No request holds another: those of
    /// this file have completed, and were freed before we saw their completions, or belong to a
    /// thread of the kernel's, which releases what it held last.
    fn remove_file(&mut self, place: u16) {
        if self.files.at(place).is_registered && !self.unregister(place) {
            self.counters.disk_kept_registrations += 1;
            self.kept.push(place);
            return;
        }
        if let Some(file) = self.files.remove(place) {
            self.let_go(file.into_closed());
        }
    }

    fn unregister(&self, place: u16) -> bool {
        let submitter = self.ring.0.submitter();
        let updated = submitter.register_files_update(place.into(), &[-1]);
        updated.is_ok()
    }

    /// Tries again to have the kernel forget a file.
    fn retry_kept(&mut self) {
        if let Some(place) = self.kept.pop() {
            self.remove_file(place);
        }
    }

    fn let_go(&mut self, file: ClosedFile) {
        if self.hands_back_closed {
            self.closed.push_back(file);
        }
    }
}

impl Disk for Uring {
    fn open(&mut self, file: FileSource) -> Result<(FileIndex, FileLimits), DiskError> {
        self.retry_kept();
        let (place, index, limits) = match self.files.open(file, self.slot_bytes) {
            Ok(opened) => opened,
            Err((refused, error)) => {
                refused.into_iter().for_each(|file| self.let_go(file));
                return Err(error);
            }
        };
        if self.has_fixed_files {
            let number = self.files.at(place).raw_fd();
            let submitter = self.ring.0.submitter();
            let updated = submitter.register_files_update(place.into(), &[number]);
            let is_registered = updated.is_ok_and(|count| count == 1);
            self.files.at(place).is_registered = is_registered;
            self.counters.disk_unregistered_files += u64::from(!is_registered);
        }
        Ok((index, limits))
    }

    fn close(&mut self, file: FileIndex) {
        self.retry_kept();
        if let Some(place) = self.files.find(file)
            && self.files.close(place)
        {
            self.remove_file(place);
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
        if let Some(place) = file {
            let limits = &self.files.at(place).limits;
            check_alignment(read.offset_bytes, read.length_bytes, limits);
        }
        self.counters.disk_read_commands += 1;
        let command = Command {
            token: read.token,
            file,
            offset_bytes: read.offset_bytes,
            length_bytes: read.length_bytes,
            done_bytes: 0,
            reissues: 0,
            held: Held::Reading(read.slot.into_reading()),
        };
        self.enqueue(arena, command);
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
        if let Some(place) = file {
            let open = self.files.at(place);
            check_alignment(write.offset_bytes, write.length_bytes, &open.limits);
            // From here on changes are our own.
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
            held: Held::Writing(write.slot),
        };
        self.enqueue(arena, command);
        Ok(())
    }

    fn sqsync(&mut self, _now: Instant) -> Result<(), DiskError> {
        if self.ring.0.submission().is_empty() {
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
        let mut batch = [(0, 0); BATCH_MAX];
        while consumed < completions_max {
            let wanted = BATCH_MAX.min(completions_max - consumed);
            let reaped = self.reap(&mut batch[..wanted]);
            self.files.start_round();
            for &(name, result) in &batch[..reaped] {
                if let Some(completion) = self.finish(arena, name, result) {
                    sink(arena, completion);
                    consumed += 1;
                }
            }
            if reaped < wanted {
                break;
            }
        }
        self.counters.disk_check_calls = self.files.check_calls;
        self.counters.disk_touched_files = self.files.touched_files;
        if self.owes_submit {
            // Failing leaves the debt to the next call.
            let _ = self.submit();
        }
        consumed
    }

    fn in_flight(&self) -> usize {
        self.commands.len()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the ring keeps its descriptor open at least as long as `self` is borrowed.
        Some(unsafe { BorrowedFd::borrow_raw(self.ring.0.as_raw_fd()) })
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl Drop for Uring {
    /// Waits until the kernel is done with every slot.
    fn drop(&mut self) {
        let mut batch = [(0, 0); BATCH_MAX];
        for _ in 0..DRAIN_SECONDS_MAX {
            // Each pass ends after a second without completions.
            while self.commands.len() > 0 {
                let second = types::Timespec::new().sec(1);
                let arguments = types::SubmitArgs::new().timespec(&second);
                let waited = self.ring.0.submitter().submit_with_args(1, &arguments);
                let reaped = self.reap(&mut batch);
                for &(name, _) in &batch[..reaped] {
                    if let Some((place, _command)) = self.commands.take(name) {
                        self.commands.release(place);
                    }
                }
                if waited.is_err() && reaped == 0 {
                    break;
                }
            }
        }
    }
}

/// Kinds of rings, best first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Level {
    /// Linux 5.19: completions wait for our next system call instead of interrupting us, and a
    /// flag says that they do.
    Cooperative,
    Plain,
}

/// The best ring this kernel has.
fn set_up(queue_depth: u32) -> Result<IoUring, i32> {
    match set_up_at(Level::Cooperative, queue_depth) {
        // Only "unknown flags" gets better with fewer of them.
        Err(libc::EINVAL) => set_up_at(Level::Plain, queue_depth),
        outcome => outcome,
    }
}

fn set_up_at(level: Level, queue_depth: u32) -> Result<IoUring, i32> {
    let mut builder = IoUring::builder();
    if level == Level::Cooperative {
        builder
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all();
    }
    let ring = builder.build(queue_depth.next_power_of_two());
    ring.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
}

/// Registers the regions of the arena as buffers of the same numbers.
fn register_buffers(ring: &IoUring, arena: &Arena) -> Result<(), String> {
    let buffers: Vec<_> = arena
        .regions()
        .map(|region| libc::iovec {
            iov_base: region.address.cast(),
            iov_len: region.length_bytes,
        })
        .collect();
    // SAFETY: the regions are mapped. The kernel holds on to the pages behind them, so it writes
    // to nobody else's even if the arena is gone by then.
    let registered = unsafe { ring.submitter().register_buffers(&buffers) };
    registered.map_err(|error| explain_registration(&error, arena.bytes()))
}

fn explain_registration(error: &io::Error, bytes: usize) -> String {
    let errno = error.raw_os_error().unwrap_or(0);
    if errno == libc::ENOMEM {
        return format!(
            "the slots cannot be registered with io_uring (errno {errno}): raise RLIMIT_MEMLOCK \
             (ulimit -l, LimitMEMLOCK=) to {bytes} bytes or more, or grant CAP_IPC_LOCK"
        );
    }
    format!("the slots cannot be registered with io_uring (errno {errno})")
}

#[cfg(test)]
mod tests;
