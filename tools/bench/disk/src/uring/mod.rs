//! `diskmap::uring`, as the server uses it: registered slots and file, one doorbell a batch, and
//! a sleep in `poll` when nothing has completed.
//!
//! It refuses short and failed reads. Bounded by the job: a window of reads of one size.

use anyhow::{Context as _, Result, bail};
use clock::Instant;
use diskmap::uring::{Uring, UringConfig};
use diskmap::{Disk as _, FileIndex, FileSource, Read};
use memory::{Arena, ArenaConfig};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::plan::Job;
use crate::target::{Target, open_direct};

/// Told of a finished read: its place and its bytes.
type Sink<'a> = dyn FnMut(u32, &[u8]) + 'a;

/// A file and a window of places, each with a slot of its own. Any error is final.
#[derive(Debug)]
pub(crate) struct DiskmapUring {
    disk: Uring,
    arena: Arena,
    file: FileIndex,
    read_bytes: u32,
    window: u32,
    poll_calls: u64,
}

impl DiskmapUring {
    pub(crate) fn open(target: &Target, job: &Job) -> Result<Self> {
        let arena = Arena::new(ArenaConfig {
            slot_bytes: job.read_bytes,
            ..ArenaConfig::new(job.window)
        })?;
        let config = UringConfig {
            queue_depth: job.window,
            files_max: 1,
            ..UringConfig::default()
        };
        let mut disk = Uring::new(config, &arena)?;
        let file = open_direct(&target.path)?;
        let (file, _) = disk.open(FileSource::Descriptor(file.into()))?;
        Ok(Self {
            disk,
            arena,
            file,
            read_bytes: job.read_bytes,
            window: job.window,
            poll_calls: 0,
        })
    }

    /// Prepares a read into a place that has none.
    pub(crate) fn enqueue(&mut self, place: u32, offset_bytes: u64) -> Result<()> {
        let slot = self.arena.reserve().context("invariant: a slot a place")?;
        let read = Read {
            file: self.file,
            offset_bytes,
            length_bytes: self.read_bytes,
            slot,
            token: place.into(),
        };
        if let Err(read) = self.disk.read(&mut self.arena, read) {
            self.arena.release(read.slot);
            bail!("invariant: the queue is as deep as the window");
        }
        Ok(())
    }

    /// Hands all that is enqueued to the kernel.
    pub(crate) fn flush(&mut self) -> Result<()> {
        Ok(self.disk.sqsync(Instant::ZERO)?)
    }

    /// Waits until a read is done, and tells of all that are; refuses short and failed ones.
    pub(crate) fn reap(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        while self.consume(sink)? == 0 {
            let descriptor = self
                .disk
                .poll_fd()
                .context("a real disk has a descriptor")?;
            self.poll_calls += 1;
            match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], None) {
                // After an interruption there may be something to consume just as well.
                Ok(_) | Err(Errno::INTR) => self.disk.clear_wake(),
                Err(error) => return Err(error).context("waiting for a read"),
            }
        }
        Ok(())
    }

    /// Reads enqueued or with the kernel.
    pub(crate) fn in_flight(&self) -> u32 {
        u32::try_from(self.disk.in_flight()).unwrap_or(u32::MAX)
    }

    /// System calls so far.
    pub(crate) fn system_calls(&self) -> u64 {
        let counters = self.disk.counters();
        self.poll_calls + counters.disk_enter_calls + counters.disk_check_calls
    }

    /// Bytes of a read.
    pub(crate) fn read_bytes(&self) -> u32 {
        self.read_bytes
    }

    fn consume(&mut self, sink: &mut Sink<'_>) -> Result<usize> {
        let mut failure = None;
        let read_bytes = self.read_bytes;
        let consumed = self.disk.consume_completions(
            Instant::ZERO,
            &mut self.arena,
            self.window as usize,
            &mut |arena, completion| match completion.result {
                Ok(slot) if slot.filled_bytes() == read_bytes => {
                    let place = u32::try_from(completion.token);
                    sink(
                        place.expect("invariant: tokens are places"),
                        arena.payload(&slot),
                    );
                    arena.release(slot.into_free());
                }
                Ok(slot) => {
                    failure = Some(anyhow::anyhow!(
                        "a read brought {} bytes of {read_bytes}",
                        slot.filled_bytes()
                    ));
                    arena.release(slot.into_free());
                }
                Err((slot, error)) => {
                    failure = Some(error.into());
                    arena.release(slot);
                }
            },
        );
        failure.map_or(Ok(consumed), Err)
    }
}

#[cfg(test)]
mod tests;
