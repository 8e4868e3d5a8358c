//! `atlas-bench delay`: a middlebox that gives each client its distance.
//!
//! What clients send to a server is held on its way, each flow for a constant time out of a set
//! of bands, so that a testbed of two links behaves like a network of thousands of homes. What
//! the server sends is not touched, and should not pass through here: it is the larger part by a
//! hundred times, and a round trip is as long whichever way holds it.
//!
//! | module | what it is |
//! |---|---|
//! | [`bands`] | the delays, as they are written |
//! | [`flow`] | which flow a frame belongs to |
//! | [`middlebox`] | which frame leaves when: no clock, no socket, no thread |
//! | [`ladder`] | a histogram of how late they left |
//! | [`report`] | what a run did, as text and JSON |
//!
//! and, not public, the cells that frames are held in, the sockets, the clocks and the loop.
//!
//! # How to place it
//!
//! `--help` has the commands. **On a veth pair whose near end is the client's** (`c0`), all that
//! leaves `c0` is redirected by a tc filter to another veth pair in the same namespace, `hold0`,
//! and received at its other end, `hold1`; from there `atlas-bench delay` sends it out of `c0`:
//!
//! ```text
//!   client's stack --> c0 (tc egress: redirect) --> hold0 === hold1
//!                                                              |
//!   server <======= c0 <-- packet socket, past tc <-- atlas-bench delay
//!   server =======> c0 --> client's stack                (not seen by atlas-bench delay)
//! ```
//!
//! **On a veth pair, steer the server's end** (`rps_cpus` of its receive queue) to the server's
//! core. A frame sent into a veth is otherwise worked on by the sending thread as far as the
//! server's TCP and the answer's way back, so that under load a round takes milliseconds and all
//! other frames wait (seen: half of them 130 ms late at 2 Gb/s; steered: 0.13 ms at 10 Gb/s).
//!
//! Nothing else changes: addresses, routes, neighbours and MAC addresses are those of the plain
//! link, any server may stand at its other end (a kernel's, one on a packet socket or a tap), and
//! if `atlas-bench delay` is not running nothing leaves. It works because the sender bypasses the
//! queueing discipline and with it the filter that redirected the frames.
//!
//! **Between two links** (`in0` to the clients, `out0` to the server), with the way back by the
//! kernel (a tc redirect from `out0` to `in0`), or for small rates through here (`--both-ways`).
//!
//! # What it refuses
//!
//! 802.1Q tags are not understood: a tagged frame passes at once, and a tag that the device has
//! taken off (`ethtool -K IFACE rxvlan off` leaves it on) is lost. Frames are never changed.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may fail there"))]

pub mod bands;
pub mod flow;
pub mod ladder;
pub mod middlebox;
pub mod report;

mod args;
mod ending;
mod engine;
mod port;
mod store;
mod sys;
mod time;

#[cfg(test)]
mod tests;

pub use args::DelayArgs;
pub use port::PortError;

use std::io::Write as _;

use anyhow::{Context as _, Result, bail};
use clock::{Duration, Instant};

use bands::Bands;
use ending::Ending;
use engine::{Direction, Pace};
use middlebox::{Config, Middlebox};
use port::Interface;
use report::{Report, Way};
use time::Clock;

/// Runs the middlebox until SIGINT, SIGTERM or the end of `--seconds`, then prints its report on
/// stdout. When frames begin to pass, stderr gets one line that begins with `ready `.
///
/// # Errors
/// An interface that cannot be used, with the remedy; or that was removed meanwhile, after the
/// report is printed.
pub fn run(args: &DelayArgs) -> Result<()> {
    let ending = Ending::by_signal().context("catching signals")?;
    let mut stderr = std::io::stderr();
    let (report, outcome) = run_until(args, &ending, |ready| {
        // Nobody reading it is no reason to stop.
        let _ = writeln!(stderr, "{ready}");
    })?;
    let mut stdout = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut stdout, &report).context("writing the report")?;
        writeln!(stdout).context("writing the report")?;
    } else {
        writeln!(stdout, "{report}").context("writing the report")?;
    }
    outcome
}

/// The same with its end and its beginning in the caller's hands: the report, and why it ended if
/// not by request.
fn run_until(
    args: &DelayArgs,
    ending: &Ending,
    on_ready: impl FnOnce(&str),
) -> Result<(Report, Result<()>)> {
    let (mut directions, configs) = open(args)?;
    let round = Duration::from_micros(args.round_us);
    schedule(args.realtime, round)?;
    let clock = Clock::start();
    let pace = Pace {
        round,
        end: args.seconds.map_or(Instant::FAR_FUTURE, |seconds| {
            clock.now() + Duration::from_secs(seconds)
        }),
    };
    let (user, system) = sys::thread_times();
    on_ready(&format!(
        "ready from={} to={} bands={} seed={}",
        args.from,
        args.to,
        args.bands.delays().len(),
        args.seed
    ));
    let outcome = engine::run(&mut directions, clock, pace, ending);
    let (user_after, system_after) = sys::thread_times();
    let mut ways = directions
        .iter()
        .zip(&configs)
        .map(|(direction, config)| Way::new(direction, config));
    let forward = ways.next().context("a run without a direction")?;
    let report = Report::new(
        args.seed,
        clock.now().since(Instant::ZERO),
        (
            user_after.saturating_sub(user),
            system_after.saturating_sub(system),
        ),
        *outcome.as_ref().unwrap_or(&0),
        (forward, ways.next()),
    );
    Ok((report, outcome.map(drop)))
}

/// Asks the kernel to wake this thread in time.
fn schedule(realtime: bool, round: Duration) -> Result<()> {
    if realtime {
        let error = std::io::Error::from_raw_os_error;
        return sys::become_realtime().map_err(error).context(
            "--realtime is not permitted: it needs CAP_SYS_NICE; run as root, or leave it out",
        );
    }
    // Kernels before 6.12 do not know slices. That costs precision, which the report tells.
    let _ = sys::prefer_short_slices(round.clamp(SLICE_MIN, SLICE_MAX));
    Ok(())
}

/// The slices that the kernel grants.
const SLICE_MIN: Duration = Duration::from_micros(100);
const SLICE_MAX: Duration = Duration::from_millis(100);

/// Opens the sockets of one direction, or of both.
fn open(args: &DelayArgs) -> Result<(Vec<Direction>, Vec<Config>)> {
    if args.from == args.to {
        bail!(
            "--from and --to are both {:?}; frames would go round in a circle",
            args.from
        );
    }
    let from = Interface::find(&args.from).context("--from")?;
    let to = Interface::find(&args.to).context("--to")?;
    let config = args.config();
    let mut pairs = vec![(&from, &to, config.clone())];
    if args.both_ways {
        let at_once = Config {
            bands: Bands::single(Duration::ZERO),
            loss_permille: 0,
            reorder_permille: 0,
            ..config
        };
        pairs.push((&to, &from, at_once));
    }
    let mut directions = Vec::new();
    let mut configs = Vec::new();
    for (from, to, config) in pairs {
        directions.push(Direction::new(
            (&from.name, from.receiver()?),
            (&to.name, to.sender(!args.qdisc)?),
            Middlebox::new(config.clone()),
        ));
        configs.push(config);
    }
    Ok((directions, configs))
}
