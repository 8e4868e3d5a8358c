//! `pread` in a loop, in as many threads as the window: what a program does that knows nothing
//! better. Each thread has its own memory and draws its own offsets.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::content;
use crate::measure::{Counted, Meter};
use crate::plan::{Job, Offsets, Plan, READ_BYTES_MIN};
use crate::stats::{Latencies, Sample};
use crate::target::{Target, open_direct};

/// A thread's stack, bytes: it calls little.
const STACK_BYTES: usize = 128 << 10;

/// Takes a turn with `job.window` threads.
pub(crate) fn measure(target: &Target, job: &Job, plan: &Plan, seed: u64) -> Result<Sample> {
    let file = open_direct(&target.path)?;
    // One more than readers: whoever reads the clocks.
    let (ready, go) = (threads_barrier(job)?, threads_barrier(job)?);
    thread::scope(|scope| {
        let mut readers = Vec::new();
        for number in 0..job.window {
            let offsets = Offsets::new(
                seed << 32 | u64::from(number),
                job.read_bytes,
                target.size_bytes,
            );
            let mut reader = Reader::new(&file, job, offsets, plan);
            let (ready, go) = (&ready, &go);
            let run = move || {
                ready.wait();
                go.wait();
                reader.run()
            };
            // A thread that cannot be had would leave the others at the barrier for good.
            let handle = thread::Builder::new()
                .stack_size(STACK_BYTES)
                .spawn_scoped(scope, run)
                .expect("threads of the window: raise the limit of processes (ulimit -u)");
            readers.push(handle);
        }
        ready.wait();
        let meter = Meter::start();
        go.wait();
        let mut latencies = Latencies::new();
        let (mut reads, mut failure) = (0, None);
        for handle in readers {
            match handle.join().expect("invariant: readers do not panic") {
                Ok((count, theirs)) => {
                    reads += count;
                    latencies.absorb(&theirs);
                }
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(()), Err)?;
        meter?.stop(Counted {
            reads,
            read_bytes: job.read_bytes,
            system_calls: reads,
            in_flight_min: job.window,
            latencies,
        })
    })
}

fn threads_barrier(job: &Job) -> Result<Barrier> {
    Ok(Barrier::new(usize::try_from(job.window)? + 1))
}

/// One thread's share.
struct Reader<'a> {
    file: &'a File,
    buffer: Vec<u8>,
    read_bytes: usize,
    offsets: Offsets,
    time: Duration,
    verifies: bool,
}

impl<'a> Reader<'a> {
    fn new(file: &'a File, job: &Job, offsets: Offsets, plan: &Plan) -> Self {
        let read_bytes = job.read_bytes as usize;
        Self {
            file,
            // Room to start at a page, as O_DIRECT demands; touched before the clock runs.
            buffer: vec![1; read_bytes + READ_BYTES_MIN as usize],
            read_bytes,
            offsets,
            time: plan.time,
            verifies: plan.verifies,
        }
    }

    /// Reads until the time is over; returns how many and how long each took.
    fn run(&mut self) -> Result<(u64, Latencies)> {
        let padding = self.buffer.as_ptr().align_offset(READ_BYTES_MIN as usize);
        let buffer = self
            .buffer
            .get_mut(padding..padding + self.read_bytes)
            .context("invariant: room for a page of padding")?;
        let mut latencies = Latencies::new();
        let mut reads = 0;
        let start = Instant::now();
        while start.elapsed() < self.time {
            let offset_bytes = self.offsets.draw();
            let asked = Instant::now();
            let count = self.file.read_at(buffer, offset_bytes).context("pread")?;
            latencies.record(asked.elapsed());
            ensure!(
                count == self.read_bytes,
                "a read brought {count} bytes of {}",
                self.read_bytes
            );
            ensure!(
                !self.verifies || content::matches(offset_bytes, buffer),
                "a read brought other bytes than --make writes: leave out --verify for files it \
                 did not make"
            );
            reads += 1;
        }
        Ok((reads, latencies))
    }
}
