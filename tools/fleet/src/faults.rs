//! Viewers and players while edges go: one is killed in mid-stream, one drains, one comes.
//!
//! Nobody may see a wrong byte, an object that does not come, or a film that stops for good. Bounded by the film and
//! the trace.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use testbed::interrupt;

use crate::compare::EDGES;
use crate::edge::{DRAIN_SECONDS, Edge, Fleet, OnMiss, Plan, Wanted};
use crate::library::{self, DASH, FILM_SECONDS, HLS};
use crate::origin::in_threads;
use crate::players::{self, Played};
use crate::stage::{Stage, await_true, get};
use crate::viewer::{Audience, STEERING, Tally, Viewer};

/// What was seen.
#[derive(Debug)]
struct Seen {
    trace: Tally,
    streams: Tally,
    played: Vec<Played>,
}

/// The plan of a fleet that has films, and room for a fifth of the plain objects beside.
pub(crate) fn plan_with_films(stage: &Stage) -> Plan {
    let long: u64 = stage.long.iter().map(|it| it.content.size_bytes).sum();
    Plan {
        wanted: Wanted::Films,
        on_miss: OnMiss::Redirect,
        capacity_bytes: (stage.film_bytes + long + stage.plain_bytes() / 5) * 10 / 9,
    }
}

/// Runs it; prints what was seen.
pub(crate) fn run(stage: &Stage, rate: u32, browser: Option<PathBuf>) -> Result<()> {
    // The trace ends before the films do.
    let requests = usize::try_from(rate * (FILM_SECONDS - 8))?;
    let mut fleet = Fleet::start(stage, plan_with_films(stage), EDGES)?;
    let mark = stage.origin.mark()?;
    let trace = library::trace(stage.objects.len(), requests);
    let (audience, streams) = (Audience::default(), Audience::default());
    let is_over = AtomicBool::new(false);
    let view_long = || -> Result<()> {
        let mut viewer = Viewer::new(&streams);
        while !is_over.load(Ordering::Relaxed) {
            interrupt::check()?;
            let index = streams.done.fetch_add(1, Ordering::Relaxed);
            viewer.view(&stage.long[index % stage.long.len()]);
        }
        Ok(())
    };
    let played = std::thread::scope(|scope| -> Result<Vec<Played>> {
        let player = scope.spawn(|| match &browser {
            Some(modules) => players::play_in_browser(stage, modules),
            None => {
                let frames = players::play_by_ffmpeg(stage)?;
                println!("        ffmpeg played both films: {frames} frames");
                Ok(Vec::new())
            }
        });
        let plain = scope.spawn(|| {
            let play = || audience.play(&stage.objects, &trace, rate);
            stage.core.enter(play)
        });
        let long = scope.spawn(|| stage.core.enter(|| in_threads(stage.long.len(), view_long)));
        let directed = direct(stage, &mut fleet, &audience, requests);
        let ended = plain.join().map_err(|_| panicked("the trace"));
        let played = player.join().map_err(|_| panicked("the players"));
        is_over.store(true, Ordering::Relaxed);
        let long = long.join().map_err(|_| panicked("the streams"));
        directed?;
        ended??;
        long??;
        played?
    })?;
    let asked = stage.origin.since(mark)?;
    let sent: u64 = asked
        .iter()
        .filter(|it| it.is_get())
        .map(|it| it.bytes)
        .sum();
    let seen = Seen {
        trace: audience.taken(),
        streams: streams.taken(),
        played,
    };
    tell(&seen, sent);
    seen.trace.check()?;
    seen.streams.check()?;
    ensure!(seen.streams.moves() > 0, "no stream was moved by the kill");
    for played in &seen.played {
        played.check()?;
        ensure!(played.edges() > 1, "it was not moved: {}", played.line());
    }
    Ok(())
}

fn panicked(what: &str) -> anyhow::Error {
    anyhow::anyhow!("{what} panicked")
}

/// Waits until so many percent of the trace were asked for.
fn await_share(audience: &Audience, requests: usize, percent: usize) -> Result<()> {
    let wanted = requests * percent / 100;
    await_true(&format!("{percent} % of the trace"), || {
        Ok(audience.done.load(Ordering::Relaxed) >= wanted)
    })
}

/// Kills an edge, drains one and adds one.
fn direct(stage: &Stage, fleet: &mut Fleet, audience: &Audience, requests: usize) -> Result<()> {
    let is_named = |edge: usize| -> Result<bool> {
        Ok(stage.resolve("o/none")?.contains(&format!("edge-{edge}")))
    };
    await_share(audience, requests, 15)?;
    // Whom hls.js takes its film from.
    let killed = best(stage, HLS)?;
    let start = Instant::now();
    let body = fleet.kill(killed)?;
    await_true("the killed edge is named no more", || {
        Ok(!is_named(killed)?)
    })?;
    println!(
        "        edge-{killed} was killed (SIGKILL), and named no more {:.1} s later",
        since(start)
    );
    ensure!(!body.wait()?.success(), "a killed server ended well");

    await_share(audience, requests, 40)?;
    // Whom dash.js takes its film from, which is another one by now.
    let drained = best(stage, DASH)?;
    let leaving = fleet.edges.remove(&drained).context("no such edge")?;
    drain(stage, drained, leaving, is_named)?;

    await_share(audience, requests, 60)?;
    let start = Instant::now();
    let added = EDGES + 1;
    fleet.add(stage, added)?;
    await_true("the new edge is named", || is_named(added))?;
    println!(
        "        edge-{added} was added, and named {:.1} s later",
        since(start)
    );

    await_share(audience, requests, 80)?;
    lose_registry(stage, fleet)
}

/// The registry is gone, and comes back empty: the steering goes on by whom it knew, and the edges enter themselves again.
fn lose_registry(stage: &Stage, fleet: &mut Fleet) -> Result<()> {
    let edges: Vec<usize> = fleet.edges.keys().copied().collect();
    let health = |word: &str| -> Result<bool> {
        Ok(get(&stage.core, STEERING.parse()?, "/health")?.contains(word))
    };
    stage.await_members(&edges)?;
    let before = stage.resolve("o/none")?;
    fleet.etcd = None;
    await_true("the members are the last known", || health("last-known"))?;
    let during = stage.resolve("o/none")?;
    for number in &edges {
        if !during.contains(&format!("edge-{number}")) {
            println!("        edge-{number}: {}", fleet.published(*number)?);
        }
    }
    ensure!(during == before, "{during:?} in place of {before:?}");
    let start = Instant::now();
    fleet.etcd = Some(stage.start_etcd()?);
    await_true("the members are current", || health("current"))?;
    stage.await_members(&edges)?;
    println!(
        "        etcd was lost, {} edges were known on; it came back empty, and {:.1} s later all had entered themselves",
        before.len(),
        since(start)
    );
    Ok(())
}

/// The edge that the steering names first.
fn best(stage: &Stage, name: &str) -> Result<usize> {
    let edges = stage.resolve(name)?;
    let edge = edges.first().context("no edge")?;
    Ok(edge.trim_start_matches("edge-").parse()?)
}

/// An edge that is told to end is first named no more, and serves on for its delay.
fn drain(
    stage: &Stage,
    number: usize,
    edge: Edge,
    is_named: impl Fn(usize) -> Result<bool>,
) -> Result<()> {
    let start = Instant::now();
    edge.atlas.signal(Signal::TERM)?;
    await_true("the draining edge is named no more", || {
        Ok(!is_named(number)?)
    })?;
    let named = since(start);
    let address = format!("10.78.2.{number}:80").parse()?;
    get(&stage.core, address, &format!("/{HLS}")).context("an edge that drains answers")?;
    let answered = since(start);
    ensure!(edge.wait()?.success(), "a drained server did not end well");
    let ended = since(start);
    println!(
        "        edge-{number} was drained: named no more after {named:.1} s, answered after {answered:.1} s, \
         ended after {ended:.1} s"
    );
    let delay = Duration::from_secs(DRAIN_SECONDS).as_secs_f64();
    ensure!(ended >= delay, "it ended before its delay of {delay} s");
    Ok(())
}

fn since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64()
}

fn tell(seen: &Seen, sent_bytes: u64) {
    for (name, tally) in [("the trace", &seen.trace), ("long streams", &seen.streams)] {
        println!(
            "        {name}: {} requests, {} MB; {} from edges, {} redirected, {} without an edge; moved {:?}; \
             failed {}, wrong {}; 99 %: {:.0} ms",
            tally.requests,
            tally.bytes / 1_000_000,
            tally.hits,
            tally.redirected,
            tally.without_edge,
            tally.moved,
            tally.failed.len(),
            tally.wrong.len(),
            tally.millis_at(0.99)
        );
    }
    println!("        the origin sent {} MB", sent_bytes / 1_000_000);
    for played in &seen.played {
        println!("        {}", played.line());
    }
}
