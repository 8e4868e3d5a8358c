//! What a run was and what it did, for people and for programs.
//!
//! The JSON is one object; its fields are those of the structures below, under their names.
//! Counts are of frames as they cross the middlebox: where a sender's kernel leaves cutting to the
//! device, a frame is up to 64 KB.

use std::fmt;

use clock::Duration;
use serde::Serialize;

use crate::engine::Direction;
use crate::ladder::Ladder;
use crate::middlebox::{Config, DropReason};

/// A whole run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Decided which flow had which band.
    pub seed: u64,
    /// How long it ran, seconds.
    pub seconds: f64,
    /// What the thread used of a core, seconds: `core_seconds_user` and `core_seconds_system`.
    /// The kernel's part includes handing each frame to the other end of a veth pair, and
    /// there, unless that end steers its frames to another core, all that its stack does with it.
    pub core_seconds: f64,
    /// The part in this program's own code.
    pub core_seconds_user: f64,
    /// The part in the kernel.
    pub core_seconds_system: f64,
    /// `core_seconds` by `seconds`.
    pub core_share: f64,
    /// Rounds that had something to do.
    pub rounds: u64,
    /// From the clients to the server: held.
    pub forward: Way,
    /// The other way, with `--both-ways`: passed at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backward: Option<Way>,
}

/// One direction.
#[derive(Clone, Debug, Serialize)]
pub struct Way {
    /// Where its frames were received.
    pub from: String,
    /// Where they were sent.
    pub to: String,
    /// See [`Config::loss_permille`].
    pub loss_permille: u16,
    /// See [`Config::reorder_permille`].
    pub reorder_permille: u16,
    /// Frames received, and their bytes from the destination MAC on.
    pub received_frames: u64,
    /// See `received_frames`.
    pub received_bytes: u64,
    /// Frames sent, and their bytes.
    pub sent_frames: u64,
    /// See `sent_frames`.
    pub sent_bytes: u64,
    /// Frames without a flow, that passed at once: ARP and its like.
    pub at_once_frames: u64,
    /// Frames that were made to be overtaken.
    pub reordered_frames: u64,
    /// Frames that were received and not sent.
    pub dropped: Dropped,
    /// Frames the kernel dropped because we did not receive them in time; not in any other count.
    pub missed_frames: u64,
    /// Errors received in place of frames.
    pub receive_errors: u64,
    /// Times that a frame had to be offered to the device again.
    pub send_retries: u64,
    /// Most frames held at one time.
    pub held_frames_max: u64,
    /// Most bytes held at one time.
    pub held_bytes_max: u64,
    /// How much later than wanted the held frames left.
    pub lateness: Lateness,
    /// What each band did.
    pub bands: Vec<Band>,
}

/// Frames that were received and not sent, by reason.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct Dropped {
    /// Chosen by `--loss`.
    pub loss: u64,
    /// Their band was full.
    pub band_full: u64,
    /// There was no memory left for them.
    pub store_full: u64,
    /// They were larger than any frame should be.
    pub size: u64,
    /// The device had no room for them, or could not cut them.
    pub refused: u64,
    /// The kernel would not send them: the interface was down.
    pub failed: u64,
    /// They were still held when the run ended.
    pub held_at_end: u64,
}

/// How much later than wanted frames left, microseconds, each the upper end of a step.
#[derive(Clone, Debug, Serialize)]
pub struct Lateness {
    /// Half of them left within this.
    pub p50_us: u64,
    /// 99 of 100.
    pub p99_us: u64,
    /// 999 of 1000.
    pub p99_9_us: u64,
    /// All.
    pub max_us: u64,
    /// How many left within each step.
    pub steps: Vec<Step>,
}

/// A step of the lateness: at least half of `below_us`, and below it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Step {
    /// Its upper end.
    pub below_us: u64,
    /// Frames in it.
    pub frames: u64,
}

/// One band.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Band {
    /// Its delay, milliseconds.
    pub delay_ms: f64,
    /// Frames it held.
    pub frames: u64,
    /// Most bytes it held at one time.
    pub bytes_max: u64,
}

impl Way {
    pub(crate) fn new(direction: &Direction, config: &Config) -> Self {
        let (counters, sent) = (direction.middlebox.counters(), &direction.sent);
        let dropped = |reason: DropReason| counters.dropped[reason as usize];
        let bands = direction.middlebox.band_counters().iter();
        let bands = config.bands.delays().iter().zip(bands);
        Self {
            from: direction.from.clone(),
            to: direction.to.clone(),
            loss_permille: config.loss_permille,
            reorder_permille: config.reorder_permille,
            received_frames: counters.received_frames,
            received_bytes: counters.received_bytes,
            sent_frames: sent.frames,
            sent_bytes: sent.bytes,
            at_once_frames: counters.at_once_frames,
            reordered_frames: counters.reordered_frames,
            dropped: Dropped {
                loss: dropped(DropReason::Loss),
                band_full: dropped(DropReason::BandFull),
                store_full: dropped(DropReason::StoreFull),
                size: dropped(DropReason::Size),
                refused: sent.refused_frames,
                failed: sent.failed_frames,
                held_at_end: direction.held_frames(),
            },
            missed_frames: direction.missed_frames,
            receive_errors: direction.receive_errors,
            send_retries: sent.retries,
            held_frames_max: counters.held_frames_max,
            held_bytes_max: counters.held_bytes_max,
            lateness: Lateness::new(&sent.lateness),
            bands: bands
                .map(|(delay, counters)| Band {
                    delay_ms: delay.as_secs_f64() * 1_000.0,
                    frames: counters.frames,
                    bytes_max: counters.bytes_max,
                })
                .collect(),
        }
    }
}

impl Lateness {
    fn new(ladder: &Ladder) -> Self {
        Self {
            p50_us: ladder.percentile_us(500),
            p99_us: ladder.percentile_us(990),
            p99_9_us: ladder.percentile_us(999),
            max_us: ladder.percentile_us(1_000),
            steps: ladder
                .steps()
                .map(|(below_us, frames)| Step { below_us, frames })
                .collect(),
        }
    }
}

impl Report {
    pub(crate) fn new(
        seed: u64,
        elapsed: Duration,
        (user, system): (Duration, Duration),
        rounds: u64,
        ways: (Way, Option<Way>),
    ) -> Self {
        let (seconds, core_seconds) = (elapsed.as_secs_f64(), (user + system).as_secs_f64());
        Self {
            seed,
            seconds,
            core_seconds,
            core_seconds_user: user.as_secs_f64(),
            core_seconds_system: system.as_secs_f64(),
            core_share: if seconds > 0.0 {
                core_seconds / seconds
            } else {
                0.0
            },
            rounds,
            forward: ways.0,
            backward: ways.1,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            to,
            "{:.1} s, {:.2} % of a core ({:.3} s user, {:.3} s system), {} rounds, seed {}",
            self.seconds,
            self.core_share * 100.0,
            self.core_seconds_user,
            self.core_seconds_system,
            self.rounds,
            self.seed
        )?;
        write!(to, "{}", self.forward)?;
        match &self.backward {
            Some(way) => write!(to, "\n{way}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(to, "{} -> {}", self.from, self.to)?;
        writeln!(
            to,
            "  received  {} frames, {} bytes",
            self.received_frames, self.received_bytes
        )?;
        writeln!(
            to,
            "  sent      {} frames, {} bytes; {} at once, {} to be overtaken",
            self.sent_frames, self.sent_bytes, self.at_once_frames, self.reordered_frames
        )?;
        let dropped = &self.dropped;
        writeln!(
            to,
            "  dropped   loss {}, band full {}, store full {}, size {}, refused {}, failed {}, \
             held at the end {}; missed {}",
            dropped.loss,
            dropped.band_full,
            dropped.store_full,
            dropped.size,
            dropped.refused,
            dropped.failed,
            dropped.held_at_end,
            self.missed_frames
        )?;
        writeln!(
            to,
            "  held      at most {} frames, {} bytes",
            self.held_frames_max, self.held_bytes_max
        )?;
        let late = &self.lateness;
        write!(
            to,
            "  lateness  p50 {} us, p99 {} us, p99.9 {} us, max {} us",
            late.p50_us, late.p99_us, late.p99_9_us, late.max_us
        )?;
        let used = || self.bands.iter().filter(|band| band.frames > 0);
        write!(
            to,
            "\n  bands     {} of {} used",
            used().count(),
            self.bands.len()
        )?;
        for band in used() {
            write!(
                to,
                "\n  {:>8.3} ms {} frames, at most {} bytes",
                band.delay_ms, band.frames, band.bytes_max
            )?;
        }
        Ok(())
    }
}
