//! The thread between two TAPs: takes every frame, and writes it at the other side when it is due.
//!
//! It runs ahead of other work (`SCHED_FIFO`) where the system permits it, and says so. It refuses to
//! go on when a TAP is gone. Bounded by: `BATCH_FRAMES` frames of a side before it looks at the
//! other; one system call for each frame either way; memory for what the legs delay.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, PipeReader, PipeWriter, Read as _, Write as _};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::flows::{FlowCounts, Flows, is_subject_to_faults};
use crate::leg::{Fate, Leg, LegCounts, LegPlan};
use crate::sack_blocks;

/// A frame that leaves so much after it was due is late.
pub const LATE: Duration = Duration::from_millis(1);

/// Most frames taken from a side, or written to it, before the other has its turn.
const BATCH_FRAMES: usize = 64;

/// The largest frame on the wire: an MTU of 1500 and an Ethernet header.
const FRAME_BYTES_MAX: usize = 1514;

/// Room for the largest frame a TAP can give.
const BUFFER_BYTES: usize = 1 << 16;

/// `SCHED_FIFO` priority of the thread, above that of servers under test.
pub const PRIORITY: u32 = 50;

/// Which way a frame goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the server to the client.
    Forth,
    /// From the client to the server.
    Back,
}

/// Is shown every frame that a side has sent, before anything happens to it. It runs on the
/// middlebox's thread, so what it takes long for is late.
pub type Observer = Box<dyn FnMut(Direction, &[u8]) + Send>;

/// What a path did, whole.
#[derive(Clone, PartialEq, Debug)]
pub struct PathCounts {
    /// From the server to the client.
    pub forth: LegCounts,
    /// From the client to the server.
    pub back: LegCounts,
    /// What the server's side sent.
    pub flows: Vec<FlowCounts>,
    /// How long the path was open.
    pub seconds: f64,
    /// Processor time of the thread, the receiving of both kernels included.
    pub cpu_seconds: f64,
    /// Whether it ran ahead of other work.
    pub is_realtime: bool,
}

/// A running middlebox; ends when dropped.
#[derive(Debug)]
pub struct Middlebox {
    /// The thread ends when this is closed.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<Result<PathCounts>>>,
}

impl Middlebox {
    /// Starts it between the server's TAP and the client's.
    ///
    /// # Errors
    /// Those of making a pipe and a thread.
    pub fn start(server: File, client: File, forth: LegPlan, back: LegPlan) -> Result<Self> {
        Self::start_observed(server, client, forth, back, Box::new(|_, _| {}))
    }

    /// Starts it between two descriptors that do not block and give and take whole frames, and shows
    /// all frames to an observer.
    ///
    /// # Errors
    /// Those of making a pipe and a thread.
    pub fn start_observed(
        server: File,
        client: File,
        forth: LegPlan,
        back: LegPlan,
        observer: Observer,
    ) -> Result<Self> {
        let (closed, stop) = std::io::pipe().context("making a pipe")?;
        let sides = [Side::new(server, forth), Side::new(client, back)];
        let thread = std::thread::Builder::new()
            .name("middlebox".to_owned())
            .spawn(move || Work::new(sides, observer).run(&closed))
            .context("starting a thread")?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Ends it; what it did.
    ///
    /// # Errors
    /// What made it end before.
    pub fn stop(mut self) -> Result<PathCounts> {
        drop(self.stop.take());
        let thread = self.thread.take().context("invariant: stopped once")?;
        thread
            .join()
            .map_err(|_| anyhow!("the middlebox's thread panicked"))?
    }
}

impl Drop for Middlebox {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Dropped without being asked: what it did is of no interest.
            let _ = thread.join();
        }
    }
}

/// A side: its TAP, and the way from it to the other.
struct Side {
    tap: File,
    leg: Leg,
    /// Frames on their way to the other side, and when each is due there.
    frames: VecDeque<(Duration, Vec<u8>)>,
}

impl Side {
    fn new(tap: File, plan: LegPlan) -> Self {
        Self {
            tap,
            leg: Leg::new(plan),
            frames: VecDeque::new(),
        }
    }

    /// Keeps a frame until it is due, behind those that are due no later.
    fn keep(&mut self, due: Duration, frame: &[u8]) {
        let at = self.frames.partition_point(|(other, _)| *other <= due);
        self.frames.insert(at, (due, frame.to_vec()));
    }
}

struct Work {
    /// The server's and the client's.
    sides: [Side; 2],
    start: Instant,
    flows: Flows,
    observer: Observer,
    buffer: Vec<u8>,
}

impl Work {
    fn new(sides: [Side; 2], observer: Observer) -> Self {
        Self {
            sides,
            start: Instant::now(),
            flows: Flows::default(),
            observer,
            buffer: vec![0; BUFFER_BYTES],
        }
    }

    fn run(mut self, closed: &PipeReader) -> Result<PathCounts> {
        let is_realtime = run_ahead_of_others();
        self.start = Instant::now();
        loop {
            let mut is_idle = true;
            for from in 0..self.sides.len() {
                is_idle &= self.deliver(from)? == 0;
                is_idle &= self.take(from)? == 0;
            }
            if self.is_closed(closed, is_idle)? {
                break;
            }
        }
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        let cpu = Duration::try_from(cpu).context("processor time is positive")?;
        let [server, client] = self.sides;
        Ok(PathCounts {
            forth: server.leg.counts,
            back: client.leg.counts,
            flows: self.flows.into_counts(),
            seconds: self.start.elapsed().as_secs_f64(),
            cpu_seconds: cpu.as_secs_f64(),
            is_realtime,
        })
    }

    /// Writes what is due from this side to the other; how many frames.
    fn deliver(&mut self, from: usize) -> Result<usize> {
        let [server, client] = &mut self.sides;
        let (side, to) = match from {
            0 => (server, &mut client.tap),
            _ => (client, &mut server.tap),
        };
        for count in 0..BATCH_FRAMES {
            let now = self.start.elapsed();
            let Some((due, frame)) = side.frames.pop_front_if(|(due, _)| *due <= now) else {
                return Ok(count);
            };
            to.write_all(&frame).context("writing to a TAP")?;
            side.leg.count_arrival(now - due, &frame);
        }
        Ok(BATCH_FRAMES)
    }

    /// Takes what this side has sent; how many frames.
    fn take(&mut self, from: usize) -> Result<usize> {
        let side = &mut self.sides[from];
        for count in 0..BATCH_FRAMES {
            let bytes = match side.tap.read(&mut self.buffer) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(count),
                Err(error) => return Err(error).context("reading from a TAP"),
            };
            let frame = &self.buffer[..bytes];
            let now = self.start.elapsed();
            let direction = match from {
                0 => Direction::Forth,
                _ => Direction::Back,
            };
            (self.observer)(direction, frame);
            if !is_subject_to_faults(frame) {
                let due = side.leg.accept_surely(now, bytes as u64);
                side.keep(due, frame);
                continue;
            }
            if direction == Direction::Forth {
                self.flows.observe(now, frame);
            }
            side.leg.counts.oversize_frames += u64::from(bytes > FRAME_BYTES_MAX);
            let sack_shift = side.leg.plan().disorder.sack_shift;
            if sack_shift > 0 {
                sack_blocks::shift(&mut self.buffer[..bytes], sack_shift);
            }
            let frame = &self.buffer[..bytes];
            match side.leg.accept(now, bytes as u64) {
                Fate::Arrives(due) => side.keep(due, frame),
                Fate::ArrivesTwice(due) => {
                    side.keep(due, frame);
                    side.keep(due, frame);
                }
                Fate::Lost | Fate::Full => {}
            }
        }
        Ok(BATCH_FRAMES)
    }

    /// Whether the middlebox is to end; if it is idle, waits for that, a frame, or the time of one.
    fn is_closed(&self, closed: &PipeReader, is_idle: bool) -> Result<bool> {
        let due = self.sides.iter().filter_map(|it| it.frames.front());
        let due = due.map(|(due, _)| *due).min();
        let wait = match due {
            _ if !is_idle => Some(Duration::ZERO),
            Some(due) => Some(due.saturating_sub(self.start.elapsed())),
            None => None,
        };
        let wait = wait.map(Timespec::try_from).transpose();
        let wait = wait.context("a short duration")?;
        let [server, client] = &self.sides;
        let mut waiting = [
            PollFd::new(closed, PollFlags::IN),
            PollFd::new(&server.tap, PollFlags::IN),
            PollFd::new(&client.tap, PollFlags::IN),
        ];
        match poll(&mut waiting, wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(!waiting[0].revents().is_empty()),
            Err(error) => Err(error).context("waiting for frames"),
        }
    }
}

impl Leg {
    /// A frame left at the other side, so much after it was due.
    fn count_arrival(&mut self, late: Duration, frame: &[u8]) {
        if !is_subject_to_faults(frame) {
            return;
        }
        let late_us = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
        let counts = &mut self.counts;
        counts.arrived_frames += 1;
        counts.arrived_bytes += frame.len() as u64;
        counts.late_frames += u64::from(late > LATE);
        counts.late_us_max = counts.late_us_max.max(late_us);
    }
}

/// Whether this thread now runs before ordinary ones, whenever it can run.
fn run_ahead_of_others() -> bool {
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    let mut command = Command::new("chrt");
    command.args(["--fifo", "--pid", &PRIORITY.to_string(), &thread]);
    testbed::process::run(&mut command).is_ok()
}
