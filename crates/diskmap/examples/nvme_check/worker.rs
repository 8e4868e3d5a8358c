//! One disk, its slots, and as many commands in flight as it takes.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant as WallClock};

use clock::Instant;
use diskmap::nvme::{Flush, NamespaceRange};
use diskmap::{Completion, Disk, DiskError, FileIndex, FileLimits, FileSource, Read, Write};
use memory::{Arena, ArenaConfig};

use crate::content::Content;
use crate::promises::{self, Subject};
use crate::{Outcome, content};

/// Slots of a worker, so that its queue is full before they are used up.
pub(crate) const SLOTS: u32 = 48;
/// Commands in flight.
pub(crate) const DEPTH: u16 = 32;
/// Longest time for one run over a disk, on an emulated processor.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between looks at a disk that has completed nothing.
const PAUSE: Duration = Duration::from_micros(50);

/// A piece of the disk: offset and length, bytes.
pub(crate) type Piece = (u64, u32);

/// What is done with pieces.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// They must have this content.
    Compare(Content),
    /// They get it.
    Store(Content),
    /// They may have any.
    Discard,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Worker<D> {
    pub(crate) arena: Arena,
    pub(crate) disk: D,
    pub(crate) file: FileIndex,
    pub(crate) limits: FileLimits,
    since: WallClock,
    /// Errors of completed commands.
    pub(crate) errors: Vec<DiskError>,
    /// Bytes compared.
    pub(crate) compared_bytes: u64,
}

pub(crate) fn arena() -> Outcome<Arena> {
    Ok(Arena::new(ArenaConfig::new(SLOTS))?)
}

impl<D: Disk> Worker<D> {
    pub(crate) fn new(
        arena: Arena,
        mut disk: D,
        source: FileSource,
        since: WallClock,
    ) -> Outcome<Self> {
        let (file, limits) = disk.open(source)?;
        Ok(Self {
            arena,
            disk,
            file,
            limits,
            since,
            errors: Vec::new(),
            compared_bytes: 0,
        })
    }

    pub(crate) fn now(&self) -> Instant {
        now(self.since)
    }

    /// Reads or writes pieces, as many at a time as fit, and fails at the first wrong byte. Errors of
    /// the disk are collected.
    pub(crate) fn run(&mut self, work: Work, pieces: &[Piece]) -> Outcome {
        let end = WallClock::now() + PATIENCE;
        let mut waiting = pieces.iter();
        let mut next = waiting.next();
        while next.is_some() || self.disk.in_flight() > 0 {
            while let Some(piece) = next {
                if !self.enqueue(work, *piece) {
                    break;
                }
                next = waiting.next();
            }
            self.disk.sqsync(self.now())?;
            if self.consume(work)? == 0 {
                thread::sleep(PAUSE);
            }
            if WallClock::now() > end {
                return Err(format!("{} commands never complete", self.disk.in_flight()).into());
            }
        }
        if self.arena.free_count() != self.arena.slot_count() {
            return Err("slots were lost".into());
        }
        Ok(())
    }

    /// Submits reads and does not wait for them; how many fit.
    pub(crate) fn begin(&mut self, pieces: &[Piece]) -> Outcome<usize> {
        let mut pieces = pieces.iter();
        while pieces
            .next()
            .is_some_and(|piece| self.enqueue(Work::Discard, *piece))
        {}
        self.disk.sqsync(self.now())?;
        Ok(self.disk.in_flight())
    }

    /// False if the queue is full, or no slot is free.
    fn enqueue(&mut self, work: Work, (offset_bytes, length_bytes): Piece) -> bool {
        let Some(slot) = self.arena.reserve() else {
            return false;
        };
        let (file, token) = (self.file, offset_bytes);
        let refused = match work {
            Work::Compare(_) | Work::Discard => {
                let read = Read {
                    file,
                    offset_bytes,
                    length_bytes,
                    slot,
                    token,
                };
                self.disk
                    .read(&mut self.arena, read)
                    .err()
                    .map(|it| it.slot)
            }
            Work::Store(content) => {
                let mut slot = slot.into_reading().into_filled(length_bytes);
                content.fill(offset_bytes, self.arena.payload_mut(&mut slot));
                let write = Write {
                    file,
                    offset_bytes,
                    length_bytes,
                    slot,
                    token,
                };
                let refused = self.disk.write(&mut self.arena, write).err();
                refused.map(|it| it.slot.into_free())
            }
        };
        let is_accepted = refused.is_none();
        refused
            .into_iter()
            .for_each(|slot| self.arena.release(slot));
        is_accepted
    }

    fn consume(&mut self, work: Work) -> Outcome<usize> {
        let mut wrong = None;
        let (now, errors, compared) = (self.now(), &mut self.errors, &mut self.compared_bytes);
        let sink = &mut |arena: &mut Arena, Completion { token, result }: Completion| {
            let slot = match result {
                Ok(slot) => {
                    if let Work::Compare(content) = work {
                        *compared += u64::from(slot.filled_bytes());
                        let compared = content.compare(token, arena.payload(&slot));
                        wrong = wrong.take().or(compared.err());
                    }
                    slot.into_free()
                }
                Err((slot, error)) => {
                    errors.push(error);
                    slot
                }
            };
            arena.release(slot);
        };
        let consumed = self
            .disk
            .consume_completions(now, &mut self.arena, 64, sink);
        match wrong {
            Some(text) => Err(text.into()),
            None => Ok(consumed),
        }
    }

    /// Reads once, into a slot with these bytes in it: what is in it then.
    pub(crate) fn read_once(
        &mut self,
        offset_bytes: u64,
        before: &[u8],
    ) -> Outcome<Result<Vec<u8>, DiskError>> {
        let slot = self.arena.reserve().ok_or("no free slot")?;
        let length_bytes = u32::try_from(before.len())?;
        let mut slot = slot.into_reading().into_filled(length_bytes);
        self.arena.payload_mut(&mut slot).copy_from_slice(before);
        let read = Read {
            file: self.file,
            offset_bytes,
            length_bytes,
            slot: slot.into_free(),
            token: 0,
        };
        let accepted = self.disk.read(&mut self.arena, read);
        accepted.map_err(|_| "the queue is full")?;
        self.disk.sqsync(self.now())?;
        let end = WallClock::now() + PATIENCE;
        let mut found = None;
        while found.is_none() {
            let now = self.now();
            let sink = &mut |arena: &mut Arena, Completion { result, .. }: Completion| {
                let (slot, result) = match result {
                    Ok(slot) => {
                        let bytes = arena.payload(&slot).to_vec();
                        (slot.into_free(), Ok(bytes))
                    }
                    Err((slot, error)) => (slot, Err(error)),
                };
                arena.release(slot);
                found = Some(result);
            };
            self.disk.consume_completions(now, &mut self.arena, 1, sink);
            if WallClock::now() > end {
                return Err("the read never completes".into());
            }
            thread::sleep(PAUSE);
        }
        found.ok_or_else(|| "invariant: the loop ended".into())
    }

    /// As [`Worker::run`], with nothing that fails.
    pub(crate) fn run_well(&mut self, work: Work, pieces: &[Piece]) -> Outcome {
        self.run(work, pieces)?;
        match self.errors[..] {
            [] => Ok(()),
            [first, ..] => Err(format!("{} commands failed: {first}", self.errors.len()).into()),
        }
    }
}

/// Time since the program's start.
pub(crate) fn now(since: WallClock) -> Instant {
    let nanos = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
    // Not 0, which means "never" to nobody, but is not a time that has passed either.
    Instant::from_nanos(nanos.max(1))
}

/// The pieces from `start` to `end`, multiples of the block: of all lengths that a block and a slot
/// allow, in no order. One of `count` workers gets those of its `index`.
pub(crate) fn pieces(
    limits: FileLimits,
    (start, end): (u64, u64),
    (index, count): (usize, usize),
) -> Vec<Piece> {
    let block = limits.block_bytes;
    let slot = 65_536;
    let lengths = [
        block,
        slot,
        4096,
        slot - block,
        12_288,
        3 * block,
        slot,
        8192,
    ];
    let mut all = Vec::new();
    let mut at = start;
    while at < end {
        let length = u64::from(lengths[all.len() % lengths.len()]).min(end - at);
        all.push((at, u32::try_from(length).unwrap_or(slot)));
        at += length;
    }
    let mut own: Vec<Piece> = all.into_iter().skip(index).step_by(count).collect();
    // Some order that is not the disk's, the same each time.
    own.sort_by_key(|(offset, _)| (offset / 4096).wrapping_mul(0x9e37_79b1) & 0xffff_ffff);
    own
}

/// A disk with more verbs than [`Disk`] has.
pub(crate) trait Checked: Disk {
    fn enqueue_flush(&mut self, flush: Flush) -> Result<(), Flush>;

    /// The orderly end of an idle disk.
    fn finish(&mut self, now: Instant) -> Outcome;
}

/// Workers in threads of their own compare all of a disk, which has the lower seed, write its upper half, and
/// compare what another has written; the bytes that were compared. `make` runs in the worker's thread.
pub(crate) fn work_together<D: Checked>(
    count: usize,
    seeds: (u64, u64),
    make: &(dyn Fn(usize) -> Outcome<Worker<D>> + Sync),
) -> Outcome<u64> {
    let barrier = Barrier::new(count);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|index| {
                let barrier = &barrier;
                scope.spawn(move || work(make(index), (index, count), barrier, seeds))
            })
            .collect();
        let mut bytes = 0;
        let mut errors = Vec::new();
        for thread in threads {
            match thread.join().map_err(|_| "a worker panicked")? {
                Ok(compared_bytes) => bytes += compared_bytes,
                Err(error) => errors.push(error.to_string()),
            }
        }
        if errors.is_empty() {
            Ok(bytes)
        } else {
            Err(errors.join("; ").into())
        }
    })
}

/// What one of them does. One that fails does not keep the others waiting.
fn work<D: Checked>(
    mut made: Outcome<Worker<D>>,
    (index, count): (usize, usize),
    barrier: &Barrier,
    (low, high): (u64, u64),
) -> Outcome<u64> {
    let mut outcome = Ok(());
    for step in 0..3 {
        if let (Ok(worker), Ok(())) = (&mut made, &outcome) {
            let size_bytes = worker.limits.size_bytes;
            let after = content((low, high), size_bytes);
            let some = |start, index| pieces(worker.limits, (start, size_bytes), (index, count));
            outcome = match step {
                0 => {
                    let before = content((low, low), size_bytes);
                    let all = some(0, index);
                    worker.run_well(Work::Compare(before), &all)
                }
                1 => {
                    let upper = some(size_bytes / 2, index);
                    worker
                        .run_well(Work::Store(after), &upper)
                        .and_then(|()| flush(worker))
                }
                _ => {
                    let others = some(0, (index + 1) % count);
                    worker.run_well(Work::Compare(after), &others)
                }
            };
        }
        barrier.wait();
    }
    let mut worker = made?;
    outcome?;
    let now = worker.now();
    worker.disk.finish(now)?;
    Ok(worker.compared_bytes)
}

fn flush<D: Checked>(worker: &mut Worker<D>) -> Outcome {
    let slot = worker.arena.reserve().ok_or("no free slot")?;
    let flush = Flush {
        file: worker.file,
        slot,
        token: 0,
    };
    let refused = worker.disk.enqueue_flush(flush);
    refused.map_err(|_| "the queue is full")?;
    // Its completion has no bytes to be compared.
    worker.run_well(Work::Compare(content((0, 0), 0)), &[])
}

/// A disk for the promises, whose file is at the start of a namespace; it is written here.
pub(crate) fn subject_on(
    name: &'static str,
    arena: Arena,
    disk: Box<dyn Disk>,
    namespace_id: u32,
    since: WallClock,
) -> Outcome<Subject> {
    let range = move |length_bytes| {
        FileSource::Namespace(NamespaceRange {
            controller: 0,
            namespace_id,
            start_bytes: 0,
            length_bytes,
        })
    };
    let mut subject = Subject {
        name,
        arena,
        disk,
        source: Box::new(move || range(promises::SIZE_BYTES)),
        foreign: || FileSource::Simulated(0),
        wait: Box::new(move |_| {
            thread::sleep(PAUSE);
            now(since)
        }),
        now: now(since),
        results: Vec::new(),
    };
    subject.store_file(range(promises::SIZE_BYTES.next_multiple_of(65_536)))?;
    Ok(subject)
}

impl Subject {
    /// Writes the file.
    fn store_file(&mut self, source: FileSource) -> Outcome {
        let (file, limits) = self.disk.open(source)?;
        for offset_bytes in (0..limits.size_bytes).step_by(65_536) {
            let slot = self.arena.reserve().ok_or("no free slot")?;
            let mut slot = slot.into_reading().into_filled(65_536);
            let bytes = promises::pattern(offset_bytes, offset_bytes + 65_536);
            self.arena.payload_mut(&mut slot)[..bytes.len()].copy_from_slice(&bytes);
            let write = Write {
                file,
                offset_bytes,
                length_bytes: 65_536,
                slot,
                token: 0,
            };
            let refused = self.disk.write(&mut self.arena, write);
            refused.map_err(|_| "the queue is full")?;
        }
        for (_, result) in self.run() {
            result?;
        }
        self.disk.close(file);
        Ok(())
    }
}
