//! Queue pairs of several controllers as one disk: a worker's.
//!
//! Which controller has a range is said when it is opened ([`NamespaceRange::controller`]), and from then on
//! by the upper bits of its [`FileIndex`]; so a command goes to its queue pair without a look into a table. A
//! controller that fails ends its own commands, and the others go on. A controller that answers late keeps the
//! slots of its commands until the driver has reset it; it keeps no others waiting, but for slots.
//!
//! It refuses ranges of controllers that it does not have. Bounded by [`CONTROLLERS_MAX`] controllers, and for
//! each by what bounds its [`Nvme`].

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use clock::Instant;
use counters::CounterSet as _;
use memory::Arena;

use super::access::{DmaMemory, DmaSlots, Registers};
use super::controller::Trouble;
use super::ranges::GENERATION_BITS;
use super::{NamespaceRange, Nvme, NvmeCounters};
use crate::{
    Completion, Counters, Disk, DiskError, DiskNotice, FileIndex, FileLimits, FileSource, Read,
    Write,
};

/// Most controllers of a disk: what the bits of a [`FileIndex`] tell apart.
pub const CONTROLLERS_MAX: usize = 1 << (16 - GENERATION_BITS);
/// Bits of a [`FileIndex`] below those of the controller.
const CONTROLLER_SHIFT: u32 = 16 + GENERATION_BITS;

/// A queue pair at each of several controllers, for the slots of one arena.
#[derive(Debug)]
pub struct QueuePairs<R: Registers, D: DmaMemory, S> {
    pairs: Vec<Nvme<R, D, S>>,
    /// For notices, by the number of the controller.
    names: Vec<Arc<str>>,
    /// The one whose completions are looked for first, in turns.
    first: usize,
}

impl<R: Registers, D: DmaMemory, S: DmaSlots> QueuePairs<R, D, S> {
    /// Of these controllers, each with its name for notices: the first has the number 0.
    ///
    /// # Panics
    /// If there is none, or there are more than [`CONTROLLERS_MAX`].
    #[must_use]
    pub fn new(members: Vec<(Arc<str>, Nvme<R, D, S>)>) -> Self {
        let count = members.len();
        assert!(
            (1..=CONTROLLERS_MAX).contains(&count),
            "{count} controllers: 1 to {CONTROLLERS_MAX} can be told apart"
        );
        let (names, pairs) = members.into_iter().unzip();
        Self {
            pairs,
            names,
            first: 0,
        }
    }

    /// By the number of the controller.
    #[must_use]
    pub fn queue_pairs(&self) -> &[Nvme<R, D, S>] {
        &self.pairs
    }

    /// Has each controller delete its queues, as [`Nvme::detach`]; true once all have.
    ///
    /// # Panics
    /// If commands are in flight.
    pub fn detach(&mut self, now: Instant) -> bool {
        let detached = self.pairs.iter_mut().map(|pair| pair.detach(now));
        // Each of them, not only up to the first that has not.
        detached.fold(true, |all, it| all & it)
    }

    /// The queue pair that has a file, and what it calls it. Of a file that was never opened any, which
    /// does not know it.
    fn find(&mut self, file: FileIndex) -> (&mut Nvme<R, D, S>, FileIndex) {
        let number = (file.0 >> CONTROLLER_SHIFT) as usize;
        if number < self.pairs.len() {
            let inner = FileIndex(file.0 & ((1 << CONTROLLER_SHIFT) - 1));
            (&mut self.pairs[number], inner)
        } else {
            (&mut self.pairs[0], file)
        }
    }

    fn sum<T: Default>(&self, add: impl Fn(T, &Nvme<R, D, S>) -> T) -> T {
        self.pairs.iter().fold(T::default(), add)
    }
}

impl<R: Registers, D: DmaMemory, S: DmaSlots> Disk for QueuePairs<R, D, S> {
    fn open(&mut self, file: FileSource) -> Result<(FileIndex, FileLimits), DiskError> {
        let FileSource::Namespace(range) = file else {
            return Err(DiskError::Io(libc::ENOTSUP));
        };
        let pair = self.pairs.get_mut(usize::from(range.controller));
        let pair = pair.ok_or(DiskError::Io(libc::ENODEV))?;
        let (file, limits) = pair.open(FileSource::Namespace(NamespaceRange {
            controller: 0,
            ..range
        }))?;
        let file = FileIndex(u32::from(range.controller) << CONTROLLER_SHIFT | file.0);
        Ok((file, limits))
    }

    fn close(&mut self, file: FileIndex) {
        let (pair, file) = self.find(file);
        pair.close(file);
    }

    fn read(&mut self, arena: &mut Arena, read: Read) -> Result<(), Read> {
        let outer = read.file;
        let (pair, file) = self.find(outer);
        pair.read(arena, Read { file, ..read })
            .map_err(|read| Read {
                file: outer,
                ..read
            })
    }

    fn write(&mut self, arena: &mut Arena, write: Write) -> Result<(), Write> {
        let outer = write.file;
        let (pair, file) = self.find(outer);
        pair.write(arena, Write { file, ..write })
            .map_err(|write| Write {
                file: outer,
                ..write
            })
    }

    fn sqsync(&mut self, now: Instant) -> Result<(), DiskError> {
        self.pairs.iter_mut().try_for_each(|pair| pair.sqsync(now))
    }

    fn consume_completions(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        completions_max: usize,
        sink: &mut dyn FnMut(&mut Arena, Completion),
    ) -> usize {
        let mut consumed = 0;
        let (behind, ahead) = self.pairs.split_at_mut(self.first);
        for pair in ahead.iter_mut().chain(behind) {
            consumed += pair.consume_completions(now, arena, completions_max - consumed, sink);
        }
        // If not all were handed out, another is the first next time.
        if consumed == completions_max {
            self.first = (self.first + 1) % self.pairs.len();
        }
        consumed
    }

    fn in_flight(&self) -> usize {
        self.pairs.iter().map(Disk::in_flight).sum()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn next_poll(&self, now: Instant) -> Option<Instant> {
        let times = self.pairs.iter().filter_map(|pair| pair.next_poll(now));
        times.min()
    }

    fn counters(&self) -> Counters {
        self.sum(|sum: Counters, pair| sum.plus(&pair.counters()))
    }

    fn own_counters(&self) -> Vec<(&'static str, u64)> {
        let sum = self.sum(|sum: NvmeCounters, pair| sum.plus(pair.nvme_counters()));
        sum.as_pairs()
    }

    fn poll_notice(&mut self) -> Option<DiskNotice> {
        let mut troubles = self.pairs.iter_mut().zip(&self.names);
        troubles.find_map(|(pair, name)| {
            let controller = Arc::clone(name);
            Some(match pair.poll_trouble()? {
                (Trouble::Reset(error), commands) => DiskNotice::Reset {
                    controller,
                    error,
                    commands,
                },
                (Trouble::Failed(error), _) => DiskNotice::Failed { controller, error },
            })
        })
    }
}
