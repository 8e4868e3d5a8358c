//! A disk of `diskmap`, as the server uses it: registered slots and file, or a queue pair; one doorbell a
//! batch, and a sleep when nothing has completed.
//!
//! It refuses short and failed reads. Bounded by the job: a window of reads of one size.

use std::time::{Duration, Instant as RealInstant};

use anyhow::{Context as _, Result, bail};
use clock::Instant;
use diskmap::nvme::NvmeConfig;
use diskmap::passthru::{Passthru, PassthruConfig};
use diskmap::uring::{Uring, UringConfig};
use diskmap::vfio::VfioQueuePair;
use diskmap::{Disk, FileIndex, FileSource, Read};
use memory::{Arena, ArenaConfig};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::plan::Job;
use crate::target::{QUEUE_ID, Source, Target, open_direct};

/// Longest wait for a controller to delete a queue pair. A guess.
const END_MAX: Duration = Duration::from_secs(10);

/// Told of a finished read: its place and its bytes.
type Sink<'a> = dyn FnMut(u32, &[u8]) + 'a;

/// The kinds of disks.
#[derive(Debug)]
enum AnyDisk {
    Uring(Box<Uring>),
    Passthru(Box<Passthru>),
    Nvme(Box<VfioQueuePair>),
}

impl AnyDisk {
    fn get(&mut self) -> &mut dyn Disk {
        match self {
            Self::Uring(disk) => &mut **disk,
            Self::Passthru(disk) => &mut **disk,
            Self::Nvme(disk) => &mut **disk,
        }
    }

    fn shared(&self) -> &dyn Disk {
        match self {
            Self::Uring(disk) => &**disk,
            Self::Passthru(disk) => &**disk,
            Self::Nvme(disk) => &**disk,
        }
    }
}

/// What is read and a window of places, each with a slot of its own. Any error is final.
#[derive(Debug)]
pub(crate) struct Reader {
    disk: AnyDisk,
    arena: Arena,
    file: FileIndex,
    read_bytes: u32,
    window: u32,
    /// System calls made to wait.
    wait_calls: u64,
    epoch: RealInstant,
}

impl Reader {
    pub(crate) fn open(target: &Target, job: &Job) -> Result<Self> {
        let arena = Arena::new(ArenaConfig {
            slot_bytes: job.read_bytes,
            ..ArenaConfig::new(job.window)
        })?;
        let queue_depth = u16::try_from(job.window).unwrap_or(u16::MAX);
        let (mut disk, source) = match &target.source {
            Source::File => {
                let config = UringConfig {
                    queue_depth: job.window,
                    files_max: 1,
                    ..UringConfig::default()
                };
                let disk = AnyDisk::Uring(Box::new(Uring::new(config, &arena)?));
                let file = open_direct(&target.path)?;
                (disk, FileSource::Descriptor(file.into()))
            }
            Source::Namespace(device, range) => {
                let config = PassthruConfig {
                    queue_depth,
                    files_max: 1,
                    polled: device.has_poll_queues(),
                    ..PassthruConfig::default()
                };
                let disk = Passthru::new(vec![device.clone()], config, &arena)?;
                let disk = AnyDisk::Passthru(Box::new(disk));
                (disk, FileSource::Namespace(*range))
            }
            Source::Controller {
                vfio,
                controller,
                range,
            } => {
                let config = NvmeConfig {
                    queue_depth,
                    files_max: 1,
                    ..NvmeConfig::default()
                };
                let pair = vfio.queue_pair(controller, QUEUE_ID, &arena, config)?;
                let disk = AnyDisk::Nvme(Box::new(pair));
                (disk, FileSource::Namespace(*range))
            }
        };
        let (file, _) = disk.get().open(source)?;
        Ok(Self {
            disk,
            arena,
            file,
            read_bytes: job.read_bytes,
            window: job.window,
            wait_calls: 0,
            epoch: RealInstant::now(),
        })
    }

    fn now(&self) -> Instant {
        let nanos = self.epoch.elapsed().as_nanos();
        Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
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
        if let Err(read) = self.disk.get().read(&mut self.arena, read) {
            self.arena.release(read.slot);
            bail!("invariant: the queue is as deep as the window");
        }
        Ok(())
    }

    /// Hands all that is enqueued to the kernel or the controller.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let now = self.now();
        Ok(self.disk.get().sqsync(now)?)
    }

    /// Waits until a read is done, and tells of all that are; refuses short and failed ones.
    pub(crate) fn reap(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        while self.consume(sink)? == 0 {
            self.wait()?;
        }
        Ok(())
    }

    /// Sleeps until completions may have come, as a worker does.
    fn wait(&mut self) -> Result<()> {
        self.wait_calls += 1;
        let now = self.now();
        let Some(descriptor) = self.disk.shared().poll_fd() else {
            let next = self.disk.shared().next_poll(now);
            let next = next.context("a disk without a descriptor says when to look")?;
            std::thread::sleep(next.since(now));
            return Ok(());
        };
        match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], None) {
            // After an interruption there may be something to consume just as well.
            Ok(_) | Err(Errno::INTR) => self.disk.get().clear_wake(),
            Err(error) => return Err(error).context("waiting for a read"),
        }
        Ok(())
    }

    /// Gives a queue pair back, once nothing is in flight.
    pub(crate) fn end(mut self) -> Result<()> {
        let begun = self.now();
        loop {
            let now = self.now();
            let is_given_back = match &mut self.disk {
                AnyDisk::Nvme(pair) => pair.detach(now),
                AnyDisk::Uring(_) | AnyDisk::Passthru(_) => true,
            };
            if is_given_back {
                return Ok(());
            }
            if now.since(begun) > END_MAX {
                bail!("the controller does not delete its queues");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Reads enqueued or with the kernel.
    pub(crate) fn in_flight(&self) -> u32 {
        u32::try_from(self.disk.shared().in_flight()).unwrap_or(u32::MAX)
    }

    /// System calls so far.
    pub(crate) fn system_calls(&self) -> u64 {
        let counters = self.disk.shared().counters();
        self.wait_calls + counters.disk_enter_calls + counters.disk_check_calls
    }

    /// Bytes of a read.
    pub(crate) fn read_bytes(&self) -> u32 {
        self.read_bytes
    }

    fn consume(&mut self, sink: &mut Sink<'_>) -> Result<usize> {
        let mut failure = None;
        let read_bytes = self.read_bytes;
        let now = self.now();
        let consumed = self.disk.get().consume_completions(
            now,
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
