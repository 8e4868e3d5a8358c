//! One measurement: keeps a window of reads in flight for a while, and counts.
//!
//! Clocks run from the first read to the deadline; reads still in flight then are waited for and
//! not counted. Allocates before it starts. Bounded by the plan.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::param::clock_ticks_per_second;
use rustix::time::{ClockId, clock_gettime};

use crate::backends::{self, Backend, pread};
use crate::content;
use crate::plan::{BackendKind, Offsets, Plan, Turn};
use crate::stats::{Latencies, Sample, busy_ticks};
use crate::target::Target;

/// Takes a turn.
pub(crate) fn measure(target: &Target, turn: &Turn, plan: &Plan) -> Result<Sample> {
    let job = &turn.job;
    let seed = u64::from(turn.round);
    if job.backend == BackendKind::Pread {
        return pread::measure(target, job, plan, seed);
    }
    let mut backend = backends::open(target, job)?;
    let offsets = Offsets::new(seed, job.read_bytes, target.size_bytes);
    let mut window = Window::new(job.window, offsets, plan.verifies);
    window.run(backend.as_mut(), plan.time)
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

    fn run(&mut self, backend: &mut dyn Backend, time: Duration) -> Result<Sample> {
        let window = u32::try_from(self.reads.len())?;
        let mut latencies = Latencies::new();
        let mut reads = 0;
        let mut in_flight_min = window;
        let meter = Meter::start()?;
        for place in 0..window {
            self.enqueue(backend, place)?;
        }
        while meter.start.elapsed() < time {
            backend.flush()?;
            in_flight_min = in_flight_min.min(backend.in_flight());
            self.reap(backend, Some(&mut latencies))?;
            reads += self.done.len() as u64;
            for index in 0..self.done.len() {
                self.enqueue(backend, self.done[index])?;
            }
        }
        let system_calls = backend.system_calls();
        let sample = meter.stop(Counted {
            reads,
            read_bytes: backend.read_bytes(),
            system_calls,
            in_flight_min,
            latencies,
        })?;
        backend.flush()?;
        while backend.in_flight() > 0 {
            self.reap(backend, None)?;
        }
        Ok(sample)
    }

    fn enqueue(&mut self, backend: &mut dyn Backend, place: u32) -> Result<()> {
        let offset_bytes = self.offsets.draw();
        self.reads[place as usize] = (offset_bytes, Instant::now());
        backend.enqueue(place, offset_bytes)
    }

    /// Waits for at least one read, and leaves the places of all that are done in `done`.
    fn reap(&mut self, backend: &mut dyn Backend, latencies: Option<&mut Latencies>) -> Result<()> {
        self.done.clear();
        let Self {
            reads,
            done,
            verifies,
            ..
        } = self;
        let mut is_right = true;
        backend.reap(&mut |place, bytes| {
            done.push(place);
            if *verifies {
                is_right &= content::matches(reads[place as usize].0, bytes);
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

/// What happened while a meter ran.
pub(crate) struct Counted {
    pub(crate) reads: u64,
    pub(crate) read_bytes: u32,
    pub(crate) system_calls: u64,
    pub(crate) in_flight_min: u32,
    pub(crate) latencies: Latencies,
}

/// The clocks of a measurement.
pub(crate) struct Meter {
    pub(crate) start: Instant,
    cpu: Duration,
    busy: Duration,
}

impl Meter {
    pub(crate) fn start() -> Result<Self> {
        let busy = busy_time()?;
        Ok(Self {
            busy,
            cpu: cpu_time()?,
            start: Instant::now(),
        })
    }

    pub(crate) fn stop(self, counted: Counted) -> Result<Sample> {
        let elapsed = self.start.elapsed();
        let cpu = cpu_time()?.saturating_sub(self.cpu);
        ensure!(
            counted.reads > 0,
            "no read ended within {} s: measure for longer with --seconds",
            elapsed.as_secs_f64()
        );
        Ok(Sample {
            reads: counted.reads,
            bytes: counted.reads * u64::from(counted.read_bytes),
            elapsed,
            cpu,
            busy: busy_time()?.saturating_sub(self.busy),
            system_calls: counted.system_calls,
            in_flight_min: counted.in_flight_min,
            latencies: counted.latencies,
        })
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

/// Time of all cores that were not idle, since boot; in ticks of a hundredth of a second.
fn busy_time() -> Result<Duration> {
    let text = fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
    let ticks = busy_ticks(&text).context("/proc/stat has no line of all cores")?;
    Ok(Duration::from_secs_f64(
        ticks as f64 / clock_ticks_per_second() as f64,
    ))
}
