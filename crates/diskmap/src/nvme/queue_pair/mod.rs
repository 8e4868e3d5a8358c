//! A queue pair: its commands, from their slots to the submission queue and from the completion queue
//! back.
//!
//! What comes is *enqueued*; `sqsync` makes it *pending*; it is *issued* once the controller takes it, and
//! *ended* when it is to be handed out. Bounded by the depth: the table of commands has an entry for
//! each, and each list has room for all.

mod disk;
mod recovery;

use std::collections::VecDeque;

use clock::{Duration, Instant};
use memory::Arena;

use super::access::{DmaMemory, DmaSlots, Registers};
use super::canary::{Canary, Fault};
use super::command::{CompletionEntry, SubmissionEntry, block_dwords, io};
use super::commands::{Command, CommandSlot, Commands, Kind, Progress};
use super::controller::{Known, Phase, QueueAddresses};
use super::prp::Lists;
use super::queue::{CompletionRing, SubmissionRing};
use super::ranges::{OpenRange, Ranges};
use super::registers::Capabilities;
use super::{
    Controller, ControllerState, FILES_MAX, Flush, Layout, Namespace, NvmeConfig, NvmeCounters,
    NvmeError, PAGE_BYTES, QUEUE_DEPTH_MAX, lists_of,
};
use crate::{Completion, Counters, DiskError};

/// How soon to poll while the controller is on its way.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// How soon to look for completions while commands are in flight: half of what a read takes from flash, so
/// that it costs few looks, and little time. `[guess]`
const COMPLETION_POLL_INTERVAL: Duration = Duration::from_micros(50);

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
///
/// If it is dropped while the controller has commands of it, the function is reset first, so that nothing
/// is on its way when its memory goes; other queue pairs are made anew. The slots of those
/// commands are lost to the arena. For an orderly end consume until nothing is in flight, and
/// [`Nvme::detach`].
#[derive(Debug)]
pub struct Nvme<R: Registers, D: DmaMemory, S> {
    controller: Controller<R, D>,
    registers: R,
    memory: D,
    pub(super) slots: S,
    pub(super) queue_id: u16,
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
    /// of `arena`, which `slots` maps for the controller. `memory` has [`super::memory_bytes`]. The
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

    pub(super) fn with_canary(
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
        let (entry_count, depth) = size_of_queues(queue_depth, &capabilities, &known);
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

    /// What happened since start, beyond [`crate::Disk::counters`].
    #[must_use]
    pub const fn nvme_counters(&self) -> &NvmeCounters {
        &self.nvme_counters
    }

    /// Enqueues a flush, like [`crate::Disk::write`].
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
            _ if !self.ended.is_empty() => Some(self.last_now),
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
            Some(range) => clip(
                command.kind,
                range,
                command.offset_bytes,
                &mut command.length_bytes,
            )
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

impl<R: Registers, D: DmaMemory, S> Drop for Nvme<R, D, S> {
    fn drop(&mut self) {
        let snapshot = self.controller.snapshot();
        let is_live = self.link == Link::Live(snapshot.epoch) && snapshot.phase == Phase::Ready;
        if is_live && self.commands.issued().next().is_some() {
            self.registers.reset_function();
        }
    }
}

/// Entries of the queues, and most commands in them.
fn size_of_queues(queue_depth: u16, capabilities: &Capabilities, known: &Known) -> (u16, u16) {
    // Twice as many entries as commands let an impossible head be told from an old one.
    let entries_max = capabilities.queue_entries_max;
    let entry_count = (2 * u32::from(queue_depth)).min(entries_max).max(2);
    let entry_count = u16::try_from(entry_count).expect("invariant: at most 2,046");
    let commands_max = known.identity.commands_max.unwrap_or(u16::MAX);
    let depth = queue_depth.min(entry_count - 1).min(commands_max);
    (entry_count, depth)
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
        range.first_block + ((command.offset_bytes + u64::from(command.done_bytes)) >> shift);
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
