//! The loss matrix: goodput, retransmissions, timeouts and what the disk read, of one transfer over paths
//! of a fixed rate, for each RTT, loss rate, buffer and congestion control. A committed file has it, so that whoever
//! changes TCP sees in review what the change does.
//!
//! It judges nothing: the bounds are those of [`super::super::oracle`]. Every cell is the median of
//! [`SEEDS`] runs. Bounded: [`TRANSFER_BYTES`] or [`LASTS_MAX`], whichever comes first.

use core::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use clock::{Duration, Instant};
use session::CongestionControl;

use super::super::leg::{LegPlan, MILLION};
use super::super::plan::{PathsPlan, Trial, product_bytes};
use super::super::receiver::{AckPolicy, ReceiverPlan, RequestPlan};
use super::super::run::Run;
use crate::world::frame_log::FrameLog;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/snapshots/loss_matrix.txt");
/// Rate of the bottleneck.
const RATE_BITS: u64 = 50_000_000;
const RTT_MILLIS: [u64; 3] = [10, 40, 200];
/// Frames lost at random, in a million.
const LOSS_PPM: [u64; 4] = [0, 1_000, 10_000, 50_000];
/// Tenths of bandwidth times delay.
const BUFFER_TENTHS: [u64; 3] = [1, 10, 100];
/// Runs of a cell; odd, so that one of them is the median.
const SEEDS: u64 = 3;
const TRANSFER_BYTES: u64 = 10_000_000;
const LASTS_MAX: Duration = Duration::from_secs(20);
/// A receive window above the longest path with its largest buffer.
const WINDOW_BYTES: u64 = 32 << 20;

/// Parameters of one cell.
#[derive(Clone, Copy, Debug)]
struct Cell {
    congestion: CongestionControl,
    rtt_millis: u64,
    loss_ppm: u64,
    buffer_tenths: u64,
}

/// What was measured in one run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Measured {
    /// Bytes of the stream in order, per mille of what the rate could carry.
    goodput_permille: u64,
    /// Bytes sent again, per mille of all bytes sent.
    resent_permille: u64,
    timeouts: u64,
    /// Bytes read from the disk, per mille of the bytes of the stream received in order.
    read_permille: u64,
}

/// The whole matrix, as it is committed.
fn text() -> String {
    let mut text = format!(
        "# The loss matrix of tools/sim (src/paths/tests/matrix.rs): one transfer of {} MB at {} Mb/s.\n\
         # Goodput: % of the rate. Resent: % of the bytes sent. Timeouts: count. Read: from the disk, % \
         of the bytes received. Medians of {SEEDS} seeds.\n\
         # Written by: UPDATE_SNAPSHOTS=1 cargo test -p atlas-sim loss_matrix\n\
         \n\
         control  rtt ms  loss %  buffer BDP  goodput  resent  timeouts   read\n",
        TRANSFER_BYTES / 1_000_000,
        RATE_BITS / 1_000_000,
    );
    let cells = cells();
    for (cell, measured) in cells.iter().zip(measure_all(&cells)) {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:7}  {:6}  {:>6}  {:>10}  {:>7}  {:>6}  {:8}  {:>5}",
            cell.congestion.name(),
            cell.rtt_millis,
            tenths(cell.loss_ppm / 1000),
            tenths(cell.buffer_tenths),
            tenths(measured.goodput_permille),
            tenths(measured.resent_permille),
            measured.timeouts,
            tenths(measured.read_permille),
        );
    }
    text
}

fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for congestion in CongestionControl::ALL {
        for rtt_millis in RTT_MILLIS {
            for loss_ppm in LOSS_PPM {
                for buffer_tenths in BUFFER_TENTHS {
                    cells.push(Cell {
                        congestion,
                        rtt_millis,
                        loss_ppm,
                        buffer_tenths,
                    });
                }
            }
        }
    }
    cells
}

/// Measures on as many threads as the machine has; the order is that of the cells.
fn measure_all(cells: &[Cell]) -> Vec<Measured> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(vec![None; cells.len()]);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(cell) = cells.get(index) else { break };
                    let measured = cell.measure();
                    if let Ok(mut done) = done.lock() {
                        done[index] = Some(measured);
                    }
                }
            });
        }
    });
    let done = done.into_inner().expect("invariant: no thread panicked");
    let all = done
        .into_iter()
        .map(|it| it.expect("invariant: every cell was measured"));
    all.collect()
}

impl Cell {
    /// The median run, by goodput.
    fn measure(self) -> Measured {
        let mut runs: Vec<_> = (0..SEEDS).map(|seed| self.measure_once(seed)).collect();
        runs.sort_unstable();
        runs[runs.len() / 2]
    }

    fn measure_once(self, seed: u64) -> Measured {
        let plan = self.plan(seed);
        let mut run = Run::new(&plan, None, FrameLog::default());
        let hang = run.run_to_end();
        assert_eq!(hang, None, "{self:?} seed {seed}");
        let (asked_at, ended_at) = match run.receiver.replies().first() {
            Some(reply) => (reply.asked_at, reply.ended_at),
            None => (plan.epoch, plan.epoch + LASTS_MAX),
        };
        let took_micros = ended_at.since(asked_at).as_micros().max(1);
        let received = u128::from(run.receiver.received_bytes());
        let possible = u128::from(RATE_BITS) * took_micros / u128::from(8 * MILLION);
        let permille = |part: u128, whole: u128| {
            u64::try_from(part * 1000 / whole.max(1)).expect("invariant: a share")
        };
        let resent = u128::from(run.meter.resent_bytes());
        Measured {
            goodput_permille: permille(received, possible),
            resent_permille: permille(resent, received + resent),
            timeouts: run.meter.timeouts(),
            read_permille: permille(run.read_bytes().into(), received),
        }
    }

    fn plan(self, seed: u64) -> PathsPlan {
        let rtt = Duration::from_millis(self.rtt_millis);
        let product = product_bytes(RATE_BITS, rtt);
        let mut plan = PathsPlan {
            trial: Trial::Rough,
            congestion: self.congestion,
            is_paced: true,
            segmentation_bytes_max: 65_535,
            forth: LegPlan {
                rate_bits: RATE_BITS,
                buffer_bytes: product * self.buffer_tenths / 10,
                loss_ppm: self.loss_ppm,
                ..LegPlan::default()
            },
            back: LegPlan::default(),
            drops_ack_every: 0,
            losses: Vec::new(),
            receiver: ReceiverPlan {
                window_bytes: WINDOW_BYTES,
                sack_blocks: 3,
                reports_duplicates: true,
                timestamps: true,
                ecn: false,
                acks: AckPolicy::Every(2),
                resends_after: Duration::from_secs(3),
                path: String::new(),
                requests: vec![RequestPlan {
                    pause: Duration::ZERO,
                    bytes: TRANSFER_BYTES,
                }],
                leaves_after: Some(LASTS_MAX),
            },
            epoch: Instant::ZERO,
            seed,
        };
        plan.set_rtt(rtt);
        plan
    }
}

/// A number of tenths.
fn tenths(value: u64) -> String {
    format!("{}.{}", value / 10, value % 10)
}

/// Run with `UPDATE_SNAPSHOTS=1` after a change of TCP: the file is written anew.
#[test]
fn the_loss_matrix_is_the_committed_one() {
    let text = text();
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(FILE, &text).expect("the snapshot is writable");
    }
    let committed = std::fs::read_to_string(FILE).expect("the snapshot is committed");
    assert!(
        text == committed,
        "snapshots/loss_matrix.txt is stale: UPDATE_SNAPSHOTS=1 cargo test -p atlas-sim loss_matrix \
         writes it; commit it, and say in the message why goodput has changed\n{text}"
    );
}
