//! Filling at full rate beside viewers: what viewers get with and without it, on one edge, and what a byte costs its
//! server. Told, not judged. Viewers and the origin are on the same processors, where they would be on machines of their own.
//!
//! Bounded by: a time for each part, and the library.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use testbed::interrupt;
use testbed::random::Random;

use crate::edge::{Fleet, OnMiss, Plan, Wanted, gauge};
use crate::origin::in_threads;
use crate::stage::Stage;
use crate::viewer::{Audience, Viewer};

/// Viewers, each of which asks again at once.
const VIEWERS: usize = 8;

/// How long each part lasts, if it does not end by itself.
const PART: Duration = Duration::from_secs(10);

/// Runs it; prints what was seen.
pub(crate) fn run(stage: &Stage) -> Result<()> {
    let plan = Plan {
        wanted: Wanted::Half,
        on_miss: OnMiss::Redirect,
        capacity_bytes: stage.plain_bytes() * 2,
    };
    let mut fleet = Fleet::start(stage, plan, 1)?;
    let over = |start: Instant| Ok(start.elapsed() >= PART);
    view(stage, &fleet, "the filler has nothing to do", over)?;
    fleet.want(stage, 1, Wanted::Plain)?;
    let (mut last, mut has_begun) = (0, false);
    let filled = view(stage, &fleet, "the filler brings the other half", |start| {
        last = gauge(stage, 1, "atlas_fill_object_bytes_total").unwrap_or(last);
        let waiting = gauge(stage, 1, "atlas_fill_waiting_objects ").unwrap_or(0);
        has_begun |= waiting > 0;
        Ok((has_begun && waiting == 0) || start.elapsed() >= PART * 6)
    })?;
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = last as f64 * 8.0 / 1e6 / filled.as_secs_f64();
    println!(
        "        it brought {} MB meanwhile: {rate:.0} Mbit/s",
        last / 1_000_000
    );
    view(stage, &fleet, "the filler has nothing to do", over)?;
    Ok(())
}

/// Has viewers ask for what is there until `is_over`, and tells what they got.
fn view(
    stage: &Stage,
    fleet: &Fleet,
    what: &str,
    mut is_over: impl FnMut(Instant) -> Result<bool>,
) -> Result<Duration> {
    let audience = Audience::default();
    let ended = AtomicBool::new(false);
    let there = &stage.objects[..stage.objects.len() / 2];
    let server = &fleet.edges[&1].atlas;
    let (start, ticks) = (Instant::now(), server.cpu_ticks()?);
    let ask = || -> Result<()> {
        let mut viewer = Viewer::new(&audience);
        let seed = audience.done.fetch_add(1, Ordering::Relaxed);
        let mut random = Random::new(u64::try_from(seed)?);
        while !ended.load(Ordering::Relaxed) {
            interrupt::check()?;
            let index = random.below(u64::try_from(there.len())?);
            viewer.view(&there[usize::try_from(index)?]);
        }
        Ok(())
    };
    std::thread::scope(|scope| -> Result<()> {
        let viewers = scope.spawn(|| stage.core.enter(|| in_threads(VIEWERS, ask)));
        let waited = loop {
            match is_over(start) {
                Ok(false) => std::thread::sleep(Duration::from_millis(100)),
                over => break over,
            }
        };
        ended.store(true, Ordering::Relaxed);
        let viewed = viewers.join();
        viewed.map_err(|_| anyhow::anyhow!("viewers panicked"))??;
        waited.map(drop)
    })?;
    let (elapsed, tally) = (start.elapsed(), audience.taken());
    tally.check()?;
    // Ticks of 10 ms.
    let ticks = server.cpu_ticks()? - ticks;
    #[expect(clippy::cast_precision_loss, reason = "rates for people")]
    let (rate, cost) = (
        tally.bytes as f64 * 8.0 / 1e6 / elapsed.as_secs_f64(),
        ticks as f64 * 1e7 / tally.bytes as f64,
    );
    println!(
        "        {what}: {} requests in {:.0} s, {rate:.0} Mbit/s, median {:.1} ms, 99 % {:.1} ms, {} redirected; \
         the server took {cost:.2} core-s/GB",
        tally.requests,
        elapsed.as_secs_f64(),
        tally.millis_at(0.5),
        tally.millis_at(0.99),
        tally.redirected
    );
    Ok(elapsed)
}
