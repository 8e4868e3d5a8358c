//! A queue pair: its commands, from their slots to the submission queue and from the completion queue
//! back.
//!
//! Commands are pending ([`Requests`]) until the controller takes them, and *issued* from the doorbell on.
//! Bounded by the depth.

mod disk;
mod recovery;

use clock::{Duration, Instant};
use memory::Arena;

use super::access::{DmaMemory, DmaSlots, Registers};
use super::canary::{Canary, Fault};
use super::command::{CompletionEntry, SubmissionEntry};
use super::commands::{Command, Kind, Progress};
use super::controller::{Known, Phase, QueueAddresses};
use super::prp::Lists;
use super::queue::{CompletionRing, SubmissionRing};
use super::registers::Capabilities;
use super::requests::Requests;
use super::{
    Controller, ControllerState, FILES_MAX, Flush, Layout, NvmeConfig, NvmeCounters, NvmeError,
    PAGE_BYTES, QUEUE_DEPTH_MAX, lists_of,
};

/// How soon to poll while the controller is on its way.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

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
    submission: SubmissionRing,
    completion: CompletionRing,
    queues: QueueAddresses,
    depth: u16,
    lists: Lists,
    uses_sgls: bool,
    /// Address of the arena's first byte.
    arena_start: usize,
    requests: Requests,
    link: Link,
    /// When to look for late commands.
    next_scan: Instant,
    last_now: Instant,
    canary: Canary,
    nvme_counters: NvmeCounters,
    /// Commands taken back from a controller in trouble that nobody was told of; `None`: there is nothing
    /// to tell.
    untold: Option<u64>,
    /// That the controller has failed is told once.
    is_end_told: bool,
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
        // Another worker may use the controller right now; here it may be waited for.
        let known = controller.with_wait(|inner| {
            let known = inner.known.clone()?;
            Some((known, inner.capabilities, inner.registers().clone()))
        });
        let Some((known, capabilities, registers)) = known else {
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
        let stride_bytes = slot_memory.stride_bytes();
        let payload_offset = |slot| slot_memory.payload_offset_bytes(slot);
        let is_aligned = |slot| is_page_aligned(payload_offset(slot) as u64);
        if !is_page_aligned(slots_address) || !is_aligned(0) || !is_aligned(1) {
            return Err(NvmeError::Alignment);
        }
        lists.offset_bytes = layout.lists_offset;
        lists.write(&mut memory, |slot| {
            slots_address + (payload_offset(slot) + slot as usize * stride_bytes) as u64
        });
        let known_sgls = known.identity.has_sgls;
        let part_bytes_max = known.identity.transfer_bytes_max.unwrap_or(u64::MAX);
        let part_bytes_max = u32::try_from(part_bytes_max).unwrap_or(u32::MAX);
        let requests = Requests::new(
            (depth, files_max),
            known.namespaces.into_iter().map(|it| (0, it)).collect(),
            (arena.slot_bytes(), part_bytes_max),
            canary,
        );
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
            depth,
            lists,
            uses_sgls: config.use_sgls && known_sgls,
            arena_start: slot_memory.address().addr(),
            requests,
            link: Link::Detached,
            next_scan: Instant::ZERO,
            last_now: Instant::ZERO,
            canary,
            nvme_counters: NvmeCounters::default(),
            untold: None,
            is_end_told: false,
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
        self.requests.flush(flush)
    }

    /// When to poll or consume at the latest, if nothing else happens before; `None` if nothing is in
    /// flight.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        match self.link {
            _ if self.requests.commands.len() == 0 => None,
            _ if !self.requests.ended.is_empty() => Some(self.last_now),
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
        assert!(self.requests.commands.len() == 0, "commands are in flight");
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

    /// Gives the controller what waits for it, if it takes commands: one doorbell for all.
    fn issue_pending(&mut self, now: Instant) {
        if self.requests.pending.is_empty() || !self.is_current() {
            return;
        }
        while let Some(index) = self.requests.pending.pop_front() {
            let command_id = self.requests.commands.next_id(index);
            let command = self.requests.commands.at(index);
            command.progress = Progress::Issued {
                at: now,
                is_aborted: false,
            };
            let entry = match sgl_entry(command, self.canary) {
                Some(entry) if self.uses_sgls => entry,
                _ => entry_of(command, &self.lists, &self.memory),
            };
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
            if self.requests.ended.len() >= most {
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
        let commands = &self.requests.commands;
        let index = is_sound.then(|| commands.find_issued(entry.command_id));
        match index.flatten() {
            Some(index) => self.requests.handle_status(index, entry.status),
            None => self.requests.counters.disk_stale_completions += 1,
        }
    }

    /// Where the slots are.
    fn bus(&self) -> Bus {
        Bus {
            bus_address: self.slots.bus_address(),
            arena_start: self.arena_start,
        }
    }
}

/// Where the arena begins, on the bus and for the processor.
#[derive(Clone, Copy, Debug)]
struct Bus {
    bus_address: u64,
    arena_start: usize,
}

impl Bus {
    /// Where an address in the arena is on the bus.
    const fn address_of(self, address: usize) -> u64 {
        self.bus_address + (address - self.arena_start) as u64
    }
}

impl<R: Registers, D: DmaMemory, S> Drop for Nvme<R, D, S> {
    fn drop(&mut self) {
        let snapshot = self.controller.snapshot();
        let is_live = self.link == Link::Live(snapshot.epoch) && snapshot.phase == Phase::Ready;
        if is_live && self.requests.commands.issued().next().is_some() {
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

/// The submission queue entry of a command's next part with one SGL descriptor; `None` if PRPs need no list.
fn sgl_entry(command: &Command, canary: Canary) -> Option<SubmissionEntry> {
    if command.kind == Kind::Flush || command.part_bytes <= 2 * PAGE_BYTES {
        return None;
    }
    let (namespace_id, dwords) = command.target();
    let mut length_bytes = command.part_bytes;
    if canary.is(Fault::DescriptorLong) {
        length_bytes += PAGE_BYTES;
    }
    Some(SubmissionEntry {
        opcode: command.kind.opcode(),
        namespace_id,
        prp1: command.payload + u64::from(command.done_bytes),
        prp2: length_bytes.into(),
        is_sgl: true,
        dwords,
        ..SubmissionEntry::default()
    })
}

/// The submission queue entry of a command's next part, with PRPs.
fn entry_of<D: DmaMemory>(command: &Command, lists: &Lists, memory: &D) -> SubmissionEntry {
    let (namespace_id, dwords) = command.target();
    let opcode = command.kind.opcode();
    if command.kind == Kind::Flush {
        return SubmissionEntry {
            opcode,
            namespace_id,
            ..SubmissionEntry::default()
        };
    }
    let (prp1, prp2) = lists.entries(
        memory,
        command.slot.index(),
        command.payload,
        command.done_bytes,
        command.part_bytes,
    );
    SubmissionEntry {
        opcode,
        namespace_id,
        prp1,
        prp2,
        dwords,
        ..SubmissionEntry::default()
    }
}
