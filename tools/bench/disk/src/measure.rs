//! One measurement: keeps a window of reads in flight for a while, and counts.
//!
//! Clocks run from the first read to the deadline; reads still in flight then are waited for and
//! not counted. Allocates before it starts. Bounded by the plan.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use load::cores::all_busy;
use rustix::time::{ClockId, clock_gettime};

use crate::CONTENT;
use crate::plan::{Offsets, Plan, Turn};
use crate::reader::Reader;
use crate::stats::{Latencies, Sample};
use crate::target::Target;

/// Takes a turn.
pub(crate) fn measure(target: &Target, turn: &Turn, plan: &Plan) -> Result<Sample> {
    let job = &turn.job;
    let mut disk = Reader::open(target, job)?;
    let offsets = Offsets::new(turn.round.into(), job.read_bytes, target.size_bytes);
    let mut window = Window::new(job.window, offsets, plan.verifies);
    let sample = window.run(&mut disk, plan.time)?;
    disk.end()?;
    Ok(sample)
}

/// The reads in flight and what is known of them.
struct Window {
    offsets: Offsets,
    /// By place: where the read goes and when it was handed over.
    reads: Vec<(u64, Instant)>,
    done: Vec<u32>,
    verifies: bool,
}

impl Window {
    fn new(window: u32, offsets: Offsets, verifies: bool) -> Self {
        Self {
            offsets,
            reads: vec![(0, Instant::now()); window as usize],
            done: Vec::with_capacity(window as usize),
            verifies,
        }
    }

    fn run(&mut self, disk: &mut Reader, time: Duration) -> Result<Sample> {
        let window = u32::try_from(self.reads.len())?;
        let mut latencies = Latencies::new();
        let mut reads = 0;
        let mut in_flight_min = window;
        let meter = Meter::start()?;
        for place in 0..window {
            self.enqueue(disk, place)?;
        }
        while meter.start.elapsed() < time {
            disk.flush()?;
            in_flight_min = in_flight_min.min(disk.in_flight());
            self.reap(disk, Some(&mut latencies))?;
            reads += self.done.len() as u64;
            for index in 0..self.done.len() {
                self.enqueue(disk, self.done[index])?;
            }
        }
        let system_calls = disk.system_calls();
        let (elapsed, cpu, busy) = meter.stop()?;
        ensure!(
            reads > 0,
            "no read ended within {} s: measure for longer with --seconds",
            elapsed.as_secs_f64()
        );
        disk.flush()?;
        while disk.in_flight() > 0 {
            self.reap(disk, None)?;
        }
        Ok(Sample {
            reads,
            bytes: reads * u64::from(disk.read_bytes()),
            elapsed,
            cpu,
            busy,
            system_calls,
            in_flight_min,
            latencies,
        })
    }

    fn enqueue(&mut self, disk: &mut Reader, place: u32) -> Result<()> {
        let offset_bytes = self.offsets.draw();
        self.reads[place as usize] = (offset_bytes, Instant::now());
        disk.enqueue(place, offset_bytes)
    }

    /// Waits for at least one read, and leaves the places of all that are done in `done`.
    fn reap(&mut self, disk: &mut Reader, latencies: Option<&mut Latencies>) -> Result<()> {
        self.done.clear();
        let Self {
            reads,
            done,
            verifies,
            ..
        } = self;
        let mut is_right = true;
        disk.reap(&mut |place, bytes| {
            done.push(place);
            if *verifies {
                is_right &= CONTENT.check(reads[place as usize].0, bytes).is_ok();
            }
        })?;
        ensure!(
            is_right,
            "a read brought other bytes than --make writes: leave out --verify for files it did \
             not make"
        );
        if let Some(latencies) = latencies {
            let now = Instant::now();
            for &place in done.iter() {
                latencies.record(now.duration_since(reads[place as usize].1));
            }
        }
        Ok(())
    }
}

/// The clocks of a measurement.
struct Meter {
    start: Instant,
    cpu: Duration,
    busy: Duration,
}

impl Meter {
    fn start() -> Result<Self> {
        let busy = all_busy()?;
        Ok(Self {
            busy,
            cpu: cpu_time()?,
            start: Instant::now(),
        })
    }

    /// Returns the time that went by, this process's CPU time in it, and that of all cores.
    fn stop(self) -> Result<(Duration, Duration, Duration)> {
        let elapsed = self.start.elapsed();
        let cpu = cpu_time()?.saturating_sub(self.cpu);
        Ok((elapsed, cpu, all_busy()?.saturating_sub(self.busy)))
    }
}

/// CPU time of this process, all threads.
fn cpu_time() -> Result<Duration> {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Ok(Duration::new(
        u64::try_from(time.tv_sec)?,
        u32::try_from(time.tv_nsec)?,
    ))
}
