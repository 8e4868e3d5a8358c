//! The same trace through each kind of fleet: how many requests did not need the origin, and what the origin sent.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::edge::{Fleet, OnMiss, Plan, Wanted};
use crate::library;
use crate::origin::{Request, Who};
use crate::rivals::{Rival, RivalFleet};
use crate::stage::Stage;
use crate::viewer::{Audience, Tally};

/// Edges of a fleet.
pub(crate) const EDGES: usize = 3;

/// What stands in the edges' place.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Atlas, its filler told so.
    Atlas(Wanted, OnMiss),
    /// Another's cache.
    Rival(Rival),
}

impl Kind {
    pub(crate) fn name(self) -> String {
        let what = match self {
            Self::Rival(rival) => return rival.name(),
            Self::Atlas(Wanted::Nothing, _) => "only what is missed",
            Self::Atlas(..) => "its share ahead, and what is missed",
        };
        match self {
            Self::Atlas(_, OnMiss::Hold) => format!("Atlas, {what}, held"),
            _ => format!("Atlas, {what}, redirected"),
        }
    }
}

/// What the origin sent in a part of a run.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    to_viewers: u64,
    to_edges: u64,
    bytes: u64,
    /// Of what viewers had to wait for.
    waited_bytes: u64,
}

impl Sent {
    fn of(requests: &[Request], is_waited_for: bool) -> Self {
        let mut sent = Self::default();
        for request in requests.iter().filter(|it| it.is_get()) {
            let is_edge = request.who == Who::Edge;
            sent.to_edges += u64::from(is_edge);
            sent.to_viewers += u64::from(!is_edge);
            sent.bytes += request.bytes;
            if is_waited_for || !is_edge {
                sent.waited_bytes += request.bytes;
            }
        }
        sent
    }
}

/// A row of the table.
#[derive(Debug)]
pub(crate) struct Row {
    name: String,
    tally: Tally,
    ahead: Sent,
    sent: Sent,
    /// Whether an edge asks the origin while viewers wait for what it asks for.
    is_waited_for: bool,
    seconds: f64,
}

/// Runs the trace through a fleet of a kind.
pub(crate) fn run(stage: &Stage, kind: Kind, requests: usize, rate: u32) -> Result<Row> {
    let capacity_bytes = stage.plain_bytes() / 5;
    let before = stage.origin.mark()?;
    let (mut ours, mut theirs) = (None, None);
    match kind {
        Kind::Atlas(wanted, on_miss) => {
            let plan = Plan {
                wanted,
                on_miss,
                capacity_bytes,
            };
            ours = Some(Fleet::start(stage, plan, EDGES)?);
        }
        Kind::Rival(rival) => {
            theirs = Some(RivalFleet::start(stage, rival, EDGES, capacity_bytes)?);
        }
    }
    let is_waited_for = matches!(kind, Kind::Rival(_) | Kind::Atlas(_, OnMiss::Hold));
    let ahead = Sent::of(&stage.origin.since(before)?, is_waited_for);
    let trace = library::trace(stage.objects.len(), requests);
    let audience = Audience::default();
    let mark = stage.origin.mark()?;
    let start = Instant::now();
    stage
        .core
        .enter(|| audience.play(&stage.objects, &trace, rate))?;
    let seconds = start.elapsed().as_secs_f64();
    // What was missed last is still on its way to the edges.
    std::thread::sleep(Duration::from_secs(1));
    let sent = Sent::of(&stage.origin.since(mark)?, is_waited_for);
    let tally = audience.taken();
    tally.check()?;
    ensure!(tally.moves() == 0, "edges failed: {:?}", tally.moved);
    drop(theirs);
    if let Some(fleet) = ours {
        for line in fleet.complaints()?.iter().take(5) {
            println!("        {line}");
        }
    }
    Ok(Row {
        name: kind.name(),
        tally,
        ahead,
        sent,
        is_waited_for,
        seconds,
    })
}

/// The table.
pub(crate) fn print(rows: &[Row], stage: &Stage) {
    let megabytes = |bytes: u64| format!("{}", bytes / 1_000_000);
    println!(
        "\n{} objects, {} MB; {} edges of {} MB each; {} requests by Zipf's law, exponent {:.1}\n",
        stage.objects.len(),
        megabytes(stage.plain_bytes()),
        EDGES,
        megabytes(stage.plain_bytes() / 5),
        rows.first().map_or(0, |row| row.tally.requests),
        library::EXPONENT,
    );
    println!(
        "| In the edges' place | Requests that did not wait for the origin | Bytes | Moved | Failed, wrong | \
         Origin: GETs of edges, of viewers | Origin: MB, ahead + meanwhile | Median, 99 % (ms) | Seconds |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|");
    for row in rows {
        let (tally, sent) = (&row.tally, row.sent);
        let waited = match row.is_waited_for {
            true => sent.to_edges,
            false => tally.requests - tally.hits,
        };
        let waited_bytes = match row.is_waited_for {
            true => sent.waited_bytes,
            false => tally.bytes - tally.hit_bytes,
        };
        println!(
            "| {} | {:.1} % | {:.1} % | {} | {}, {} | {}, {} | {} + {} | {:.1}, {:.0} | {:.0} |",
            row.name,
            without(waited, tally.requests),
            without(waited_bytes, tally.bytes),
            tally.moves(),
            tally.failed.len(),
            tally.wrong.len(),
            sent.to_edges,
            sent.to_viewers,
            megabytes(row.ahead.bytes),
            megabytes(sent.bytes),
            tally.millis_at(0.5),
            tally.millis_at(0.99),
            row.seconds,
        );
    }
    println!();
}

/// A share that is left, in percent.
#[expect(clippy::cast_precision_loss, reason = "a share for people")]
fn without(part: u64, all: u64) -> f64 {
    100.0 - 100.0 * part as f64 / all.max(1) as f64
}
