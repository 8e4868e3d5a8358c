//! NVMe controllers, by a driver of our own: queue pairs in user space.
//!
//! **A slot given to the controller returns only by its completion, or once the controller was stopped.**
//! One [`Controller`] is shared by all workers on it; each worker has a [`Nvme`], which is a [`Disk`] with
//! one I/O queue pair. A read is an entry in the submission queue and nothing else: the PRP lists of all
//! slots are written once. [`Disk::sqsync`] rings the doorbell once for all of them, behind a
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
//! A slot is one piece on the bus: where a controller offers SGLs, one descriptor names it, and the controller fetches no
//! list.
//!
//! It refuses SGLs of several descriptors, metadata and protection information, blocks other
//! than 512 and 4,096 bytes, pages other than 4 KiB, interrupts, and asynchronous events. A write is not
//! durable before a [`Nvme::flush`]. Whoever sleeps must wake by [`Nvme::next_deadline`], and while
//! commands are in flight poll for completions. Bounded by [`NvmeConfig`].
//!
//! Everything that decides is safe code over three traits ([`Registers`], [`DmaMemory`], [`DmaSlots`]);
//! [`emulated`] implements them for tests. Sources: NVM Express Base Specification 2.0, NVM Command Set
//! Specification 1.0, NVMe over PCIe Transport Specification 1.0.
//!
//! [`Disk`]: crate::Disk
//! [`Disk::sqsync`]: crate::Disk::sqsync

mod access;
pub(crate) mod canary;
pub(crate) mod command;
pub(crate) mod commands;
mod controller;
pub mod emulated;
mod identify;
mod prp;
mod queue;
mod queue_pair;
mod queue_pairs;
mod ranges;
mod registers;
pub(crate) mod requests;
mod status;

use clock::Duration;
use counters::counters;
use memory::{Arena, FreeSlot};

pub use access::{DmaMemory, DmaSlots, Registers};
pub use controller::{
    ADMIN_MEMORY_BYTES, ADMIN_TIMEOUT, AdminCommand, Controller, ControllerCounters,
    ControllerError, ControllerState, Namespace, NamespaceError, QUEUE_PAIRS_MAX, SHUTDOWN_TIMEOUT,
    STARTS_MAX, STOP_ATTEMPTS_MAX,
};
pub use identify::{ControllerIdentity, IdentifyError, NAMESPACES_MAX, NamespaceFormat};
pub use queue_pair::Nvme;
pub use queue_pairs::{CONTROLLERS_MAX, QueuePairs};
pub use registers::CapabilityError;
pub use status::{REISSUES_MAX, Status};

use canary::Canary;
use command::{COMPLETION_ENTRY_BYTES, SUBMISSION_ENTRY_BYTES};
use prp::Lists;

use crate::FileIndex;

/// Size of a page, CC.MPS: what CAP.MPSMIN is on every controller for PCs.
pub(super) const PAGE_BYTES: u32 = 4096;

/// How soon to look for completions while commands are in flight: half of what a read takes from flash, so
/// that it costs few looks, and little time. `[guess]`
pub(crate) const COMPLETION_POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Most commands waiting, issued, or not handed out, of one queue pair.
pub const QUEUE_DEPTH_MAX: u16 = 1023;
/// Most ranges open at once.
pub const FILES_MAX: u32 = 1 << 16;

/// A range of a namespace, to be opened as a file is.
///
/// A store opens one for each extent, or one for the whole namespace and adds offsets of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamespaceRange {
    /// Which of the disk's controllers has the namespace, from 0: their order in [`QueuePairs::new`]; a
    /// single [`Nvme`] has only the first. By passthrough: which of the disk's namespaces it is, from 0.
    pub controller: u16,
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
    /// A command that takes this long is aborted. A guess.
    pub command_timeout: Duration,
    /// If it takes this much longer, the controller is reset. A guess.
    pub abort_grace: Duration,
    /// Whether slots are named by SGL descriptors, if the controller offers that, where PRPs would need a
    /// list.
    pub use_sgls: bool,
}

impl Default for NvmeConfig {
    fn default() -> Self {
        Self {
            queue_depth: 256,
            files_max: 1024,
            command_timeout: Duration::from_secs(8),
            abort_grace: Duration::from_secs(2),
            use_sgls: true,
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
    #[error(
        "{given_bytes} bytes of DMA memory aligned to 4 KiB are given where {needed_bytes} are needed"
    )]
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

counters! {
    /// What a queue pair did since start, beyond the [`crate::Counters`] of all disks.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct NvmeCounters prefix "nvme_" {
        /// Times the doorbell of a submission queue was rung (with `nvme:`).
        pub doorbell_count: u64,
        /// Commands that took too long, which the NVMe controller was asked to abort (with `nvme:`).
        pub aborted_commands: u64,
        /// Commands taken back when the NVMe controller was stopped, and issued again (with `nvme:`).
        pub taken_back_commands: u64,
        /// Times an NVMe controller was stopped because something failed; the log says why (with
        /// `nvme:`).
        // That this queue pair was the first to find: each is counted by one of the controller's.
        pub reset_count: u64,
        /// Times the PCI function of an NVMe controller was reset (with `nvme:`).
        // Counted in the same way.
        pub function_reset_count: u64,
    }
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

#[cfg(test)]
mod tests;
