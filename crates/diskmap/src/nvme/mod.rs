//! NVMe controllers, by a driver of our own: queue pairs in user space.
//!
//! **A slot given to the controller returns only by its completion, or once the controller was stopped.**
//! One [`Controller`] is shared by all workers on it; each worker has a [`Nvme`], which is a [`Disk`] with
//! one I/O queue pair. A read is an entry in the submission queue and nothing else: the PRP lists of all
//! slots are written once ([`prp`]). [`Disk::sqsync`] rings the doorbell once for all of them, behind a
//! fence. Completions are found by their phase tags, in any order; no interrupt is used.
//!
//! | what the controller does | what follows |
//! |---|---|
//! | an error status | the part is issued again if the status allows it ([`Status`]), else the command fails with it |
//! | completes nothing for [`NvmeConfig::command_timeout`] | Abort |
//! | nor for [`NvmeConfig::abort_grace`] more | controller reset: CC.EN = 0 until CSTS.RDY = 0 |
//! | does not stop | reset of the PCI function by the platform ([`Registers::reset_function`]) |
//! | cannot be stopped at all | its commands keep their slots, because it may still write to them |
//! | reports a fatal status | controller reset |
//! | is gone (registers read as ones) | commands fail with `ENODEV` |
//! | an entry with an unknown or stale identifier, another queue's, or an impossible head | counted and ignored |
//!
//! After a reset, commands that the controller had are issued again, reads and writes alike: writing the
//! same bytes to the same blocks again changes nothing, and a caller that has two overlapping writes in
//! flight was promised no order. After [`REISSUES_MAX`] attempts they fail.
//!
//! It refuses SGLs (a slot's PRP list costs nothing), metadata and protection information, blocks other
//! than 512 and 4,096 bytes, pages other than 4 KiB, interrupts, and asynchronous events. A write is not
//! durable before a [`Nvme::flush`]. Whoever sleeps must wake by [`Nvme::next_deadline`], and while
//! commands are in flight poll for completions. Bounded by [`NvmeConfig`].
//!
//! Everything that decides is safe code over three traits ([`Registers`], [`DmaMemory`], [`DmaSlots`]);
//! [`emulated`] implements them for tests. Sources: NVM Express Base Specification 2.0, NVM Command Set
//! Specification 1.0, NVMe over PCIe Transport Specification 1.0.

mod access;
mod canary;
mod command;
mod commands;
mod controller;
pub mod emulated;
mod identify;
mod prp;
mod queue;
mod ranges;
mod registers;
mod status;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use clock::{Duration, Instant};
use memory::{Arena, FreeSlot};

pub use access::{DmaMemory, DmaSlots, Registers};
pub use controller::{
    ADMIN_MEMORY_BYTES, ADMIN_TIMEOUT, AdminCommand, Controller, ControllerCounters,
    ControllerError, ControllerState, Namespace, NamespaceError, QUEUE_PAIRS_MAX, STARTS_MAX,
    SHUTDOWN_TIMEOUT, STOP_ATTEMPTS_MAX,
};
pub use identify::{ControllerIdentity, IdentifyError, NAMESPACES_MAX, NamespaceFormat};
pub use registers::CapabilityError;
pub use status::Status;

use canary::{Canary, Fault};
use command::{
    COMPLETION_ENTRY_BYTES, CompletionEntry, SUBMISSION_ENTRY_BYTES, SubmissionEntry, block_dwords,
    io,
};
use commands::{Command, CommandSlot, Commands, Kind, Progress};
use controller::{PairState, Phase, QueueAddresses};
use prp::Lists;
use queue::{CompletionRing, SubmissionRing};
use ranges::{OpenRange, Ranges};
use status::REISSUES_MAX;

use crate::{
    Completion, Counters, Disk, DiskError, FileIndex, FileLimits, FileSource, Read, Write,
    check_alignment,
};

/// Size of a page, CC.MPS: what CAP.MPSMIN is on every controller for PCs.
pub(super) const PAGE_BYTES: u32 = 4096;

/// Most commands waiting, issued, or not handed out, of one queue pair.
pub const QUEUE_DEPTH_MAX: u16 = 1023;
/// Most ranges open at once.
pub const FILES_MAX: u32 = 1 << 16;
/// Commands are looked through for late ones this often during one timeout.
const SCANS_PER_TIMEOUT: u32 = 8;
/// How soon to poll while the controller is on its way.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A range of a namespace, to be opened as a file is.
///
/// A store opens one for each extent, or one for the whole namespace and adds offsets of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamespaceRange {
    /// Namespace Identifier (NSID).
    pub namespace_id: u32,
    /// Where it begins, bytes: a multiple of the block size.
    pub start_bytes: u64,
    /// How long it is, bytes. It may end within a block, as a file does: reads end there.
    pub length_bytes: u64,
}

/// Sizes and timeouts of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NvmeConfig {
    /// Most commands waiting, issued, or not handed out, 1..=[`QUEUE_DEPTH_MAX`]; fewer if the
    /// controller's queues are shorter (CAP.MQES, MAXCMD).
    pub queue_depth: u16,
    /// Most ranges open at once, 1..=[`FILES_MAX`].
    pub files_max: u32,
    /// A command that takes this long is aborted. [guess]
    pub command_timeout: Duration,
    /// If it takes this much longer, the controller is reset. [guess]
    pub abort_grace: Duration,
}

impl Default for NvmeConfig {
    fn default() -> Self {
        Self {
            queue_depth: 256,
            files_max: 1024,
            command_timeout: Duration::from_secs(8),
            abort_grace: Duration::from_secs(2),
        }
    }
}

/// Why there is no queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NvmeError {
    /// A size out of range.
    #[error(
        "a queue pair with {queue_depth} commands and {files_max} files: choose 1 to \
         {QUEUE_DEPTH_MAX} commands and 1 to {FILES_MAX} files"
    )]
    Config {
        /// As configured.
        queue_depth: u16,
        /// As configured.
        files_max: u32,
    },
    /// The controller is not ready.
    #[error("the NVMe controller is not ready: poll it until it is")]
    NotReady,
    /// The controller has no such queue pair.
    #[error("queue pair {queue_id} of {granted}: the NVMe controller has no more of them")]
    QueueId {
        /// As asked for.
        queue_id: u16,
        /// How many there are.
        granted: u16,
    },
    /// Too little memory for the queues and lists, or not aligned.
    #[error("{given_bytes} bytes of DMA memory aligned to 4 KiB are given where {needed_bytes} are needed")]
    Memory {
        /// Bytes needed ([`memory_bytes`]).
        needed_bytes: usize,
        /// Bytes given.
        given_bytes: usize,
    },
    /// The slots are not where pages begin.
    #[error("the slots are not aligned to 4 KiB on the bus")]
    Alignment,
}

/// A flush to be enqueued: what was written to the namespace before and has completed is durable when
/// it completes.
#[derive(Debug)]
pub struct Flush {
    /// A range of the namespace.
    pub file: FileIndex,
    /// Any free slot: it travels with the command, so that all completions are alike, and comes back
    /// with no bytes.
    pub slot: FreeSlot,
    /// Comes back with the completion.
    pub token: u64,
}

/// What a queue pair did since start, beyond the [`Counters`] of all disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NvmeCounters {
    /// Times the doorbell of the submission queue was rung by `sqsync` or for reissued commands.
    pub doorbell_count: u64,
    /// Commands that the controller was asked to abort.
    pub aborted_commands: u64,
    /// Commands taken back from a controller that was stopped.
    pub taken_back_commands: u64,
}

/// Memory that a queue pair of `queue_depth` commands for the slots of `arena` needs, bytes.
#[must_use]
pub fn memory_bytes(queue_depth: u16, arena: &Arena) -> usize {
    let lists = lists_of(arena, Canary::default());
    Layout::new(2 * usize::from(queue_depth), &lists).total_bytes
}

fn lists_of(arena: &Arena, canary: Canary) -> Lists {
    let slots = u32::try_from(arena.slot_count()).expect("invariant: at most 2^20 slots");
    Lists::new(slots, arena.slot_bytes(), canary)
}

/// Where the parts of a queue pair's memory are.
#[derive(Clone, Copy, Debug)]
struct Layout {
    completion_offset: usize,
    lists_offset: usize,
    total_bytes: usize,
}

impl Layout {
    fn new(entry_count: usize, lists: &Lists) -> Self {
        let pages = |bytes: usize| bytes.next_multiple_of(PAGE_BYTES as usize);
        let completion_offset = pages(entry_count * SUBMISSION_ENTRY_BYTES);
        let lists_offset = completion_offset + pages(entry_count * COMPLETION_ENTRY_BYTES);
        Self {
            completion_offset,
            lists_offset,
            total_bytes: lists_offset + pages(lists.bytes()),
        }
    }
}

/// How a queue pair and its controller are to each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Link {
    /// The controller does not know the queues, and has no commands of ours.
    Detached,
    /// They are being made, in this epoch of the controller.
    Attaching(u64),
    /// They are in use, since this epoch.
    Live(u64),
    /// The controller could not be stopped: it keeps the slots it has.
    Runaway,
}

/// A queue pair of an NVMe controller.
#[derive(Debug)]
pub struct Nvme<R, D, S> {
    controller: Controller<R, D>,
    registers: R,
    memory: D,
    slots: S,
    queue_id: u16,
    config: NvmeConfig,
    namespaces: Vec<Namespace>,
    submission: SubmissionRing,
    completion: CompletionRing,
    queues: QueueAddresses,
    depth: u16,
    lists: Lists,
    slot_bytes: u32,
    /// Address of the arena's first byte.
    arena_start: usize,
    /// Most bytes of one part of a command (MDTS).
    part_bytes_max: u32,
    commands: Commands,
    ranges: Ranges,
    /// Indexes of commands that came since the last `sqsync`.
    enqueued: Vec<u16>,
    /// Those to be issued as soon as the controller takes them.
    pending: VecDeque<u16>,
    /// Those to be handed out.
    ended: VecDeque<u16>,
    link: Link,
    /// When to look for late commands.
    next_scan: Instant,
    last_now: Instant,
    canary: Canary,
    counters: Counters,
    nvme_counters: NvmeCounters,
}

impl<R: Registers, D: DmaMemory, S: DmaSlots> Nvme<R, D, S> {
    /// Makes the queue pair `queue_id` (1..=[`Controller::queue_pairs`]; one user each) for the slots
    /// of `arena`, which `slots` maps for the controller. `memory` has [`memory_bytes`]. The
    /// controller learns of it when it is polled or used.
    ///
    /// # Errors
    /// A size is out of range, or the controller is not ready.
    pub fn new(
        controller: &Controller<R, D>,
        queue_id: u16,
        memory: D,
        slots: S,
        arena: &Arena,
        config: NvmeConfig,
    ) -> Result<Self, NvmeError> {
        Self::with_canary(
            controller,
            queue_id,
            memory,
            slots,
            arena,
            config,
            Canary::default(),
        )
    }

    fn with_canary(
        controller: &Controller<R, D>,
        queue_id: u16,
        mut memory: D,
        slots: S,
        arena: &Arena,
        config: NvmeConfig,
        canary: Canary,
    ) -> Result<Self, NvmeError> {
        let NvmeConfig {
            queue_depth,
            files_max,
            ..
        } = config;
        if !(1..=QUEUE_DEPTH_MAX).contains(&queue_depth) || !(1..=FILES_MAX).contains(&files_max) {
            return Err(NvmeError::Config {
                queue_depth,
                files_max,
            });
        }
        let known = controller.with(|inner| {
            let known = inner.known.clone()?;
            Some((known, inner.capabilities, inner.registers().clone()))
        });
        let Some((known, capabilities, registers)) = known.flatten() else {
            return Err(NvmeError::NotReady);
        };
        if queue_id == 0 || queue_id > known.queue_pairs {
            let granted = known.queue_pairs;
            return Err(NvmeError::QueueId { queue_id, granted });
        }
        let mut lists = lists_of(arena, canary);
        // Twice as many entries as commands let an impossible head be told from an old one.
        let entries_max = capabilities.queue_entries_max;
        let entry_count = (2 * u32::from(queue_depth)).min(entries_max).max(2);
        let entry_count = u16::try_from(entry_count).expect("invariant: at most 2,046");
        let commands_max = known.identity.commands_max.unwrap_or(u16::MAX);
        let depth = queue_depth.min(entry_count - 1).min(commands_max);
        let layout = Layout::new(entry_count.into(), &lists);
        let given_bytes = memory.length_bytes();
        if given_bytes < layout.total_bytes || !is_page_aligned(memory.bus_address()) {
            return Err(NvmeError::Memory {
                needed_bytes: layout.total_bytes,
                given_bytes,
            });
        }
        let slots_address = slots.bus_address();
        let slot_memory = arena.slot_memory();
        let payload_offset = slot_memory.payload_offset_bytes();
        let stride_bytes = slot_memory.stride_bytes();
        if !is_page_aligned(slots_address) || !is_page_aligned(payload_offset as u64) {
            return Err(NvmeError::Alignment);
        }
        lists.offset_bytes = layout.lists_offset;
        lists.write(&mut memory, |slot| {
            slots_address + (payload_offset + slot as usize * stride_bytes) as u64
        });
        let part_bytes_max = known.identity.transfer_bytes_max.unwrap_or(u64::MAX);
        let part_bytes_max = u32::try_from(part_bytes_max).unwrap_or(u32::MAX);
        Ok(Self {
            controller: controller.clone(),
            submission: SubmissionRing::new(
                0,
                entry_count,
                capabilities.submission_doorbell(queue_id),
            ),
            completion: CompletionRing::new(
                layout.completion_offset,
                entry_count,
                capabilities.completion_doorbell(queue_id),
                canary,
            ),
            queues: QueueAddresses {
                submission: memory.bus_address(),
                completion: memory.bus_address() + layout.completion_offset as u64,
                entry_count,
            },
            registers,
            memory,
            slots,
            queue_id,
            config,
            namespaces: known.namespaces,
            depth,
            lists,
            slot_bytes: arena.slot_bytes(),
            arena_start: slot_memory.address().addr(),
            part_bytes_max: part_bytes_max.min(arena.slot_bytes()),
            commands: Commands::new(depth, canary),
            ranges: Ranges::new(files_max),
            enqueued: Vec::with_capacity(depth.into()),
            pending: VecDeque::with_capacity(depth.into()),
            ended: VecDeque::with_capacity(depth.into()),
            link: Link::Detached,
            next_scan: Instant::ZERO,
            last_now: Instant::ZERO,
            canary,
            counters: Counters::default(),
            nvme_counters: NvmeCounters::default(),
        })
    }

    /// Most commands waiting, issued, or not handed out.
    #[must_use]
    pub const fn queue_depth(&self) -> u16 {
        self.depth
    }

    /// What happened since start, beyond [`Disk::counters`].
    #[must_use]
    pub const fn nvme_counters(&self) -> &NvmeCounters {
        &self.nvme_counters
    }

    /// Enqueues a flush, like [`Disk::write`].
    ///
    /// # Errors
    /// The queue is full; the flush is given back.
    pub fn flush(&mut self, flush: Flush) -> Result<(), Flush> {
        if self.commands.is_full() {
            self.counters.disk_queue_full_commands += 1;
            return Err(flush);
        }
        let range = self.ranges.find(flush.file);
        self.enqueue(Command {
            token: flush.token,
            kind: Kind::Flush,
            range,
            offset_bytes: 0,
            length_bytes: 0,
            wanted_bytes: 0,
            done_bytes: 0,
            part_bytes: 0,
            payload: 0,
            reissues: 0,
            slot: CommandSlot::Reading(flush.slot.into_reading()),
            progress: Progress::Waiting,
        });
        Ok(())
    }

    /// When to poll or consume at the latest, if nothing else happens before; `None` if nothing is in
    /// flight.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        match self.link {
            _ if self.commands.len() == 0 => None,
            Link::Runaway => None,
            Link::Live(_) if self.is_current() => Some(self.next_scan),
            _ => Some(self.last_now + POLL_INTERVAL),
        }
    }

    /// Goes on with whatever waits for the controller; true if the queue pair takes commands. Using
    /// the disk does the same.
    pub fn poll(&mut self, now: Instant) -> bool {
        self.follow(now);
        self.issue_pending(now);
        matches!(self.link, Link::Live(_))
    }

    /// Has the controller delete the queues, before this is dropped; true once they are deleted or the
    /// controller is stopped for good. To be called again until then.
    ///
    /// # Panics
    /// If commands are in flight.
    pub fn detach(&mut self, now: Instant) -> bool {
        assert!(self.commands.len() == 0, "commands are in flight");
        let queue_id = self.queue_id;
        self.link = Link::Detached;
        let detached = self.controller.with(|inner| {
            let is_over = matches!(
                inner.poll(now),
                ControllerState::Failed(_) | ControllerState::ShutDown
            );
            is_over || inner.detach(queue_id)
        });
        detached.unwrap_or(false)
    }

    fn enqueue(&mut self, command: Command) {
        let index = self.commands.insert(command);
        self.enqueued.push(index);
    }

    /// What a command that just came is, before the controller hears of it: whether it needs to.
    fn admit(&mut self, index: u16) {
        let part_bytes_max = self.part_bytes_max;
        let command = self.commands.at(index);
        let outcome = match &command.range {
            None => Some(Err(DiskError::Io(libc::EBADF))),
            Some(range) => clip(command.kind, range, command.offset_bytes, &mut command.length_bytes)
                .map(|result| result.map_err(DiskError::Io)),
        };
        if let Some(range) = &command.range {
            let left = range.length_bytes.saturating_sub(command.offset_bytes);
            let left = u32::try_from(left).unwrap_or(u32::MAX);
            command.wanted_bytes = command.length_bytes.min(left);
        }
        command.part_bytes = command.length_bytes.min(part_bytes_max);
        match outcome {
            None => self.pending.push_back(index),
            Some(result) => self.end(index, result),
        }
    }

    fn end(&mut self, index: u16, result: Result<(), DiskError>) {
        self.commands.at(index).progress = Progress::Ended(result);
        self.ended.push_back(index);
    }

    /// Whether the controller still is what our queues were made on; if not, what follows.
    fn follow(&mut self, now: Instant) {
        self.last_now = now;
        let snapshot = self.controller.snapshot();
        if self.link == Link::Live(snapshot.epoch) && snapshot.phase == Phase::Ready {
            if now >= self.next_scan {
                self.scan(now, snapshot.epoch);
            }
            return;
        }
        self.controller.poll(now);
        let snapshot = self.controller.snapshot();
        if let Link::Live(epoch) | Link::Attaching(epoch) = self.link
            && (epoch != snapshot.epoch || snapshot.phase != Phase::Ready)
        {
            match snapshot.phase {
                Phase::Stopping if !self.canary.is(Fault::TakenBackEarly) => return,
                Phase::Runaway => self.link = Link::Runaway,
                _ => {
                    self.link = Link::Detached;
                    self.take_back();
                }
            }
        }
        match snapshot.phase {
            Phase::Ready => self.attach(snapshot.epoch),
            Phase::Dead | Phase::Runaway => self.fail_pending(),
            Phase::Stopping | Phase::Stopped => {}
        }
    }

    /// Has our queues made, step by step.
    fn attach(&mut self, epoch: u64) {
        if self.link == Link::Detached {
            self.submission.clear();
            self.completion.clear(&mut self.memory);
            self.memory.release();
            self.link = Link::Attaching(epoch);
        }
        let (queue_id, queues) = (self.queue_id, self.queues);
        let state = self.controller.with(|inner| inner.attach(queue_id, queues));
        match state {
            Some(PairState::Live) => {
                self.link = Link::Live(epoch);
                self.next_scan = self.last_now + self.scan_interval();
            }
            Some(PairState::Refused(_)) => self.fail_pending(),
            _ => {}
        }
    }

    fn scan_interval(&self) -> Duration {
        self.config.command_timeout / SCANS_PER_TIMEOUT
    }

    /// The controller was stopped: what it had is ours again.
    fn take_back(&mut self) {
        let issued: Vec<u16> = self.commands.issued().map(|(index, ..)| index).collect();
        for index in issued {
            self.nvme_counters.taken_back_commands += 1;
            let command = self.commands.at(index);
            command.progress = Progress::Waiting;
            command.reissues += 1;
            if command.reissues > REISSUES_MAX || self.canary.is(Fault::NotReissued) {
                self.end(index, Err(DiskError::Io(libc::ETIMEDOUT)));
            } else {
                self.counters.disk_reissued_commands += 1;
                self.pending.push_back(index);
            }
        }
    }

    /// There is no controller to issue commands to.
    fn fail_pending(&mut self) {
        while let Some(index) = self.pending.pop_front() {
            self.end(index, Err(DiskError::Io(libc::ENODEV)));
        }
    }

    /// Looks for commands that take too long, and whether the controller is well.
    fn scan(&mut self, now: Instant, epoch: u64) {
        self.next_scan = now + self.scan_interval();
        let mut issued = self.commands.issued().peekable();
        if issued.peek().is_none() {
            return;
        }
        let queue_id = self.queue_id;
        let NvmeConfig {
            command_timeout,
            abort_grace,
            ..
        } = self.config;
        let mut late = Vec::new();
        let mut is_stuck = false;
        for (index, command_id, at, is_aborted) in issued {
            let age = now.since(at);
            is_stuck |= age >= command_timeout + abort_grace;
            if age >= command_timeout && !is_aborted {
                late.push((index, command_id));
            }
        }
        let aborted = self.controller.with(|inner| {
            // A fatal status shows here, and that somebody else reset it.
            inner.poll(now);
            if is_stuck {
                inner.report_stuck(now, epoch, queue_id);
                late.clear();
            }
            late.retain(|(_, command_id)| inner.abort(queue_id, *command_id));
            inner.poll(now);
            (late, inner.is_busy())
        });
        let Some((aborted, is_busy)) = aborted else {
            return;
        };
        if is_busy {
            // Aborts are sent one after the other, and each before the grace of its command ends.
            self.next_scan = now + POLL_INTERVAL;
        }
        for (index, _) in aborted {
            self.nvme_counters.aborted_commands += 1;
            if let Progress::Issued { is_aborted, .. } = &mut self.commands.at(index).progress {
                *is_aborted = true;
            }
        }
    }

    /// Gives the controller what waits for it, if it takes commands: one doorbell for all.
    fn issue_pending(&mut self, now: Instant) {
        if self.pending.is_empty() || !self.is_current() {
            return;
        }
        while let Some(index) = self.pending.pop_front() {
            let command_id = self.commands.next_id(index);
            let command = self.commands.at(index);
            command.progress = Progress::Issued {
                at: now,
                is_aborted: false,
            };
            let entry = entry_of(command, &self.lists, &self.memory);
            let entry = SubmissionEntry {
                command_id,
                ..entry
            };
            self.submission.push(&mut self.memory, entry);
        }
        self.nvme_counters.doorbell_count += 1;
        if self.canary.is(Fault::DoorbellBeforeFence) {
            self.submission.ring_without_fence(&self.registers);
        }
        self.submission.ring(&self.registers, &self.memory);
    }

    /// Takes new completion entries, as many as `most` commands that end.
    fn reap(&mut self, most: usize) {
        if !matches!(self.link, Link::Live(_) | Link::Runaway) {
            return;
        }
        // A controller that writes as fast as we read is left after one pass.
        for _ in 0..self.completion.entry_count() {
            if self.ended.len() >= most {
                break;
            }
            let Some(entry) = self.completion.pop(&self.memory) else {
                break;
            };
            self.handle_entry(entry);
        }
        if self.is_current() {
            self.completion.ring(&self.registers);
        }
    }

    /// Whether the controller knows our queues.
    fn is_current(&self) -> bool {
        let snapshot = self.controller.snapshot();
        self.link == Link::Live(snapshot.epoch) && snapshot.phase == Phase::Ready
    }

    fn handle_entry(&mut self, entry: CompletionEntry) {
        let is_sound = entry.queue_id == self.queue_id
            && self
                .submission
                .is_plausible_head(entry.submission_head, self.depth);
        let index = is_sound.then(|| self.commands.find_issued(entry.command_id));
        let Some(index) = index.flatten() else {
            self.counters.disk_stale_completions += 1;
            return;
        };
        let part_bytes_max = self.part_bytes_max;
        let command = self.commands.at(index);
        if entry.status.is_success() {
            command.done_bytes += command.part_bytes;
            if command.done_bytes == command.length_bytes {
                self.end(index, Ok(()));
                return;
            }
            // The next part.
            command.part_bytes = (command.length_bytes - command.done_bytes).min(part_bytes_max);
            command.reissues = 0;
        } else if command.reissues < entry.status.reissues_max() {
            command.reissues += 1;
            self.counters.disk_reissued_commands += 1;
        } else {
            self.end(index, Err(DiskError::Nvme(entry.status)));
            return;
        }
        self.commands.at(index).progress = Progress::Waiting;
        self.pending.push_back(index);
    }

    /// Makes the completion of a command that has ended.
    fn complete(&mut self, arena: &mut Arena, index: u16) -> Completion {
        let command = self.commands.remove(index);
        let Progress::Ended(outcome) = command.progress else {
            unreachable!("only commands that have ended are in the list of those");
        };
        let wanted_bytes = command.wanted_bytes;
        let result = match (outcome, command.slot) {
            (Err(error), slot) => {
                self.counters.count_failure(error);
                Err((slot.into_free(), error))
            }
            (Ok(()), CommandSlot::Reading(slot)) => {
                let mut slot = slot.into_filled(wanted_bytes);
                if wanted_bytes > 0 {
                    self.slots.sync_for_cpu(arena, &mut slot);
                }
                self.counters.disk_read_bytes += u64::from(wanted_bytes);
                Ok(slot)
            }
            (Ok(()), CommandSlot::Writing(slot)) => {
                self.counters.disk_write_bytes += u64::from(command.length_bytes);
                Ok(slot)
            }
        };
        Completion {
            token: command.token,
            result,
        }
    }

    /// Where an address in the arena is on the bus.
    fn bus_address_of(&self, address: usize) -> u64 {
        self.slots.bus_address() + (address - self.arena_start) as u64
    }
}

const fn is_page_aligned(address: u64) -> bool {
    address.is_multiple_of(PAGE_BYTES as u64)
}

/// Limits a command to its range. `Some` if the controller need not hear of it.
fn clip(
    kind: Kind,
    range: &OpenRange,
    offset_bytes: u64,
    length_bytes: &mut u32,
) -> Option<Result<(), i32>> {
    if kind == Kind::Flush {
        return None;
    }
    let block_bytes = range.format.block_bytes();
    if !offset_bytes.is_multiple_of(block_bytes.into()) || !length_bytes.is_multiple_of(block_bytes)
    {
        return Some(Err(libc::EINVAL));
    }
    let left = range.whole_bytes().saturating_sub(offset_bytes);
    let left = u32::try_from(left).unwrap_or(u32::MAX);
    match kind {
        Kind::Read => {
            *length_bytes = (*length_bytes).min(left);
            (*length_bytes == 0).then_some(Ok(()))
        }
        _ => (*length_bytes > left).then_some(Err(libc::ENOSPC)),
    }
}

/// The submission queue entry of a command's next part.
fn entry_of<D: DmaMemory>(command: &Command, lists: &Lists, memory: &D) -> SubmissionEntry {
    let range = command.range;
    let range = range.expect("invariant: a command without a range never waits to be issued");
    let namespace_id = range.namespace_id;
    if command.kind == Kind::Flush {
        return SubmissionEntry {
            opcode: io::FLUSH,
            namespace_id,
            ..SubmissionEntry::default()
        };
    }
    let shift = range.format.block_shift;
    let first_block =
        range.first_block + (command.offset_bytes + u64::from(command.done_bytes) >> shift);
    let (prp1, prp2) = lists.entries(
        memory,
        command.slot.index(),
        command.payload,
        command.done_bytes,
        command.part_bytes,
    );
    SubmissionEntry {
        opcode: if command.kind == Kind::Read {
            io::READ
        } else {
            io::WRITE
        },
        namespace_id,
        prp1,
        prp2,
        dwords: block_dwords(first_block, command.part_bytes >> shift),
        ..SubmissionEntry::default()
    }
}

impl<R: Registers, D: DmaMemory, S: DmaSlots> Disk for Nvme<R, D, S> {
    fn open(&mut self, file: FileSource) -> Result<(FileIndex, FileLimits), DiskError> {
        let FileSource::Namespace(wanted) = file else {
            return Err(DiskError::Io(libc::ENOTSUP));
        };
        let namespace = self
            .namespaces
            .iter()
            .find(|namespace| namespace.id == wanted.namespace_id)
            .ok_or(DiskError::Io(libc::ENODEV))?;
        let format = namespace
            .format
            .map_err(|_| DiskError::Io(libc::EMEDIUMTYPE))?;
        let block_bytes = format.block_bytes();
        let end = wanted.start_bytes.checked_add(wanted.length_bytes);
        let is_inside = end.is_some_and(|end| end <= format.size_bytes());
        if !is_inside || !wanted.start_bytes.is_multiple_of(block_bytes.into()) {
            return Err(DiskError::Io(libc::EINVAL));
        }
        let index = self.ranges.insert(OpenRange {
            namespace_id: wanted.namespace_id,
            format,
            first_block: wanted.start_bytes >> format.block_shift,
            length_bytes: wanted.length_bytes,
        })?;
        let limits = FileLimits {
            size_bytes: wanted.length_bytes,
            block_bytes,
            read_bytes_max: self.part_bytes_max,
        };
        Ok((index, limits))
    }

    fn close(&mut self, file: FileIndex) {
        self.ranges.remove(file);
    }

    fn read(&mut self, arena: &mut Arena, read: Read) -> Result<(), Read> {
        if self.commands.is_full() {
            self.counters.disk_queue_full_commands += 1;
            return Err(read);
        }
        assert!(
            (1..=self.slot_bytes).contains(&read.length_bytes),
            "a read fits its slot"
        );
        let range = self.ranges.find(read.file);
        if let Some(range) = &range {
            check_alignment(read.offset_bytes, read.length_bytes, &limits_of(range));
        }
        self.counters.disk_read_commands += 1;
        let slot = read.slot.into_reading();
        let payload = self.bus_address_of(arena.device_address(&slot).addr());
        self.enqueue(Command {
            token: read.token,
            kind: Kind::Read,
            range,
            offset_bytes: read.offset_bytes,
            length_bytes: read.length_bytes,
            wanted_bytes: 0,
            done_bytes: 0,
            part_bytes: 0,
            payload,
            reissues: 0,
            slot: CommandSlot::Reading(slot),
            progress: Progress::Waiting,
        });
        Ok(())
    }

    fn write(&mut self, arena: &mut Arena, write: Write) -> Result<(), Write> {
        if self.commands.is_full() {
            self.counters.disk_queue_full_commands += 1;
            return Err(write);
        }
        let filled_bytes = write.slot.filled_bytes();
        assert!(
            (1..=filled_bytes).contains(&write.length_bytes),
            "a write is within its slot"
        );
        let range = self.ranges.find(write.file);
        if let Some(range) = &range {
            check_alignment(write.offset_bytes, write.length_bytes, &limits_of(range));
        }
        self.counters.disk_write_commands += 1;
        self.slots.sync_for_device(arena, &write.slot);
        let payload = self.bus_address_of(arena.device_source(&write.slot).addr());
        self.enqueue(Command {
            token: write.token,
            kind: Kind::Write,
            range,
            offset_bytes: write.offset_bytes,
            length_bytes: write.length_bytes,
            wanted_bytes: 0,
            done_bytes: 0,
            part_bytes: 0,
            payload,
            reissues: 0,
            slot: CommandSlot::Writing(write.slot),
            progress: Progress::Waiting,
        });
        Ok(())
    }

    fn sqsync(&mut self, now: Instant) -> Result<(), DiskError> {
        if self.enqueued.is_empty() {
            return Ok(());
        }
        let mut enqueued = core::mem::take(&mut self.enqueued);
        for index in enqueued.drain(..) {
            self.admit(index);
        }
        // Its room is used again.
        self.enqueued = enqueued;
        self.follow(now);
        self.issue_pending(now);
        Ok(())
    }

    fn consume_completions(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        completions_max: usize,
        sink: &mut dyn FnMut(&mut Arena, Completion),
    ) -> usize {
        if self.commands.len() == 0 {
            return 0;
        }
        self.reap(completions_max);
        self.follow(now);
        self.issue_pending(now);
        let mut consumed = 0;
        while consumed < completions_max {
            let Some(index) = self.ended.pop_front() else {
                break;
            };
            let completion = self.complete(arena, index);
            sink(arena, completion);
            consumed += 1;
        }
        consumed
    }

    fn in_flight(&self) -> usize {
        self.commands.len()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

fn limits_of(range: &OpenRange) -> FileLimits {
    FileLimits {
        size_bytes: range.length_bytes,
        block_bytes: range.format.block_bytes(),
        read_bytes_max: 0,
    }
}

#[cfg(test)]
mod tests;
