//! The disk of a worker: what the kernel reads for it, or queue pairs of its own.
//!
//! It refuses nothing itself: each verb is that of the disk it is. Bounded as they are.

use std::os::fd::BorrowedFd;

use clock::Instant;
use diskmap::passthru::Passthru;
use diskmap::uring::Uring;
use diskmap::{
    ClosedFile, Completion, Counters, Disk, DiskError, DiskNotice, FileIndex, FileLimits,
    FileSource, Read, Write,
};
use memory::Arena;

use super::nvme::{OverVfio, QueuePairsOf};
use crate::failure::Failure;

/// One of the disks that a server has.
#[derive(Debug)]
pub(super) enum WorkerDisk {
    /// Files and block devices, through the kernel.
    Uring(Box<Uring>),
    /// Namespaces of NVMe controllers, by commands through the kernel's driver.
    Passthru(Box<Passthru>),
    /// Namespaces of NVMe controllers, through a queue pair at each.
    Nvme(Box<QueuePairsOf<OverVfio>>),
}

impl WorkerDisk {
    /// To be called by the thread that uses the disk, before it does.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn enable(&mut self) -> Result<(), Failure> {
        let enabled = match self {
            Self::Uring(disk) => disk.enable().map_err(|error| error.to_string()),
            Self::Passthru(disk) => disk.enable().map_err(|error| error.to_string()),
            Self::Nvme(_) => Ok(()),
        };
        enabled.map_err(Failure::Refused)
    }
}

/// Calls the disk that it is; known when it is compiled, so that a verb costs one comparison.
macro_rules! each {
    ($disk:expr, $it:ident => $call:expr) => {
        match $disk {
            WorkerDisk::Uring($it) => $call,
            WorkerDisk::Passthru($it) => $call,
            WorkerDisk::Nvme($it) => $call,
        }
    };
}

impl Disk for WorkerDisk {
    fn open(&mut self, file: FileSource) -> Result<(FileIndex, FileLimits), DiskError> {
        each!(self, it => it.open(file))
    }

    fn close(&mut self, file: FileIndex) {
        each!(self, it => it.close(file));
    }

    fn poll_closed(&mut self) -> Option<ClosedFile> {
        each!(self, it => it.poll_closed())
    }

    fn read(&mut self, arena: &mut Arena, read: Read) -> Result<(), Read> {
        each!(self, it => it.read(arena, read))
    }

    fn write(&mut self, arena: &mut Arena, write: Write) -> Result<(), Write> {
        each!(self, it => it.write(arena, write))
    }

    fn sqsync(&mut self, now: Instant) -> Result<(), DiskError> {
        each!(self, it => it.sqsync(now))
    }

    fn consume_completions(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        completions_max: usize,
        sink: &mut dyn FnMut(&mut Arena, Completion),
    ) -> usize {
        each!(self, it => it.consume_completions(now, arena, completions_max, sink))
    }

    fn in_flight(&self) -> usize {
        each!(self, it => it.in_flight())
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        each!(self, it => it.poll_fd())
    }

    fn next_poll(&self, now: Instant) -> Option<Instant> {
        each!(self, it => it.next_poll(now))
    }

    fn clear_wake(&mut self) {
        each!(self, it => it.clear_wake());
    }

    fn counters(&self) -> Counters {
        each!(self, it => it.counters())
    }

    fn own_counters(&self) -> Vec<(&'static str, u64)> {
        each!(self, it => it.own_counters())
    }

    fn poll_notice(&mut self) -> Option<DiskNotice> {
        each!(self, it => it.poll_notice())
    }
}
