//! The page made of stored results: what a busy person wants first, then every table.
//!
//! It refuses nothing: what was not measured is left out, what failed is told. Bounded by: the
//! results.

use std::fmt::Write as _;

use nic_wire::report::MemoryBytes;

use super::cell::{Cell, thousands};
use super::comparison::{
    self, CLIENT_LOAD_MAX, Quantity, Ratio, best, cells, failure, is_client_bound, median, servers,
};
use super::plan::ATLAS;
use super::results::{Effort, Measured, Outcome, Results};
use super::stages::{self, Stage};
use crate::page::wrapped;
use crate::statistics::Median;
use crate::stored::float;

/// Void turns that are told one by one.
const VOID_TOLD: usize = 20;

/// The whole page; `plots` are names of files beside it.
pub(crate) fn page(results: &Results, plots: &[(String, String)]) -> String {
    let mut text = String::from("# How fast Atlas is, and beside whom\n\n");
    summary(&mut text, results);
    for (file, title) in plots {
        let _ = writeln!(text, "![{title}]({file})\n");
    }
    by_connections(&mut text, results);
    by_stages(&mut text, results);
    by_cache(&mut text, results);
    delays(&mut text, results);
    viewers(&mut text, results);
    losses(&mut text, results);
    behind(&mut text, results);
    not_counted(&mut text, results);
    environment(&mut text, results);
    wrapped(&text)
}

/// What the terminal gets: the first part of the page.
pub(crate) fn summary_text(results: &Results) -> String {
    let mut text = String::new();
    summary(&mut text, results);
    text
}

/// Whether a cell is asked without a pause and without loss.
fn is_plain_cell(cell: &Cell) -> bool {
    cell.every_seconds == 0 && cell.loss_ppm == 0
}

fn summary(text: &mut String, results: &Results) {
    let mut quoted = cells(results, |it| it.loss_ppm == 0 && it.cached_percent == 0);
    let rounds = |cell: &Cell| results.of(cell, ATLAS).count();
    let most = quoted.iter().map(rounds).max().unwrap_or_default();
    // A run that was broken off has one round less of some.
    quoted.retain(|it| 2 * rounds(it) > most);
    let coverage = quoted
        .iter()
        .filter_map(|cell| median(results, cell, ATLAS, Measured::gbps))
        .map(|it| it.coverage * 100.0)
        .fold(100.0, f64::min);
    let _ = writeln!(
        text,
        "One core serves objects of {} bytes. Medians of up to {most} rounds; in brackets an interval that holds the \
         median with a probability of at least {coverage:.0} %.\n",
        thousands(results.environment.object_bytes.into())
    );
    for cell in &quoted {
        let _ = writeln!(text, "* **{cell}**: {}.", sentence(results, cell));
    }
    for cell in cells(results, |it| is_plain_cell(it) && it.cached_percent == 100) {
        let _ = writeln!(
            text,
            "* {cell} (Atlas reads from the disk all the same): {}.",
            sentence(results, &cell)
        );
    }
    let count = |is: fn(&Outcome) -> bool| {
        let turns = results.turns.iter();
        turns.filter(|it| is(&it.outcome)).count()
    };
    let _ = writeln!(
        text,
        "* {} turns count, {} were void, {} failed (listed below). Every reply was checked for status and \
         length, and bytes of a sample of them.\n",
        count(|it| matches!(it, Outcome::Measured(_))),
        count(|it| matches!(it, Outcome::Void(..))),
        count(|it| matches!(it, Outcome::Failed(_))),
    );
}

fn sentence(results: &Results, cell: &Cell) -> String {
    let of = |quantity: Quantity| median(results, cell, ATLAS, |it| quantity.of(it));
    let (Some(rate), Some(cost)) = (of(Quantity::Rate), of(Quantity::Cost)) else {
        return "Atlas has no value".to_owned();
    };
    let mut text = format!(
        "Atlas {} Gb/s at {} core-s/GB",
        interval(&rate, 1),
        interval(&cost, 3)
    );
    // Viewers who pause have the rate that they ask for.
    if cell.every_seconds == 0 {
        match best(results, cell, Quantity::Rate) {
            Some(it) => {
                let _ = write!(text, "; {} the rate of {}", times(&it), it.rival);
            }
            None => text.push_str("; no ratio of rates"),
        }
    }
    if let Some(it) = best(results, cell, Quantity::Cost) {
        let _ = write!(
            text,
            "; {} the work per core-second of {}",
            times(&it),
            it.rival
        );
    }
    text
}

/// `12.3 (11.8-13.0)`.
fn interval(median: &Median, digits: usize) -> String {
    format!(
        "{:.digits$} ({:.digits$}-{:.digits$})",
        median.middle, median.low, median.high
    )
}

/// `2.1 x (2.0-2.2)`.
fn times(ratio: &Ratio<'_>) -> String {
    let it = &ratio.times;
    format!("{:.2} x ({:.2}-{:.2})", it.middle, it.low, it.high)
}

/// A table of a quantity: a row for each server, a column for each cell.
fn table(
    text: &mut String,
    results: &Results,
    columns: &[(String, Cell)],
    value: impl Fn(&Cell, &str) -> Option<String>,
) {
    let mut names: Vec<&str> = Vec::new();
    for (_, cell) in columns {
        for name in servers(results, cell) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let _ = write!(text, "| Server |");
    for (title, _) in columns {
        let _ = write!(text, " {title} |");
    }
    let _ = writeln!(text, "\n|---|{}", "---:|".repeat(columns.len()));
    for name in names {
        let _ = write!(text, "| {name} |");
        for (_, cell) in columns {
            let cell_text = value(cell, name).unwrap_or_else(|| {
                let failed = failure(results, cell, name).is_some();
                (if failed { "failed" } else { "" }).to_owned()
            });
            let _ = write!(text, " {cell_text} |");
        }
        text.push('\n');
    }
    text.push('\n');
}

/// The rate, marked where the clients' core was full.
fn rate(results: &Results, cell: &Cell, server: &str) -> Option<String> {
    let value = median(results, cell, server, Measured::gbps)?;
    let mark = if is_client_bound(results, cell, server) {
        " \\*"
    } else {
        ""
    };
    Some(interval(&value, 1) + mark)
}

fn cost(results: &Results, cell: &Cell, server: &str) -> Option<String> {
    Some(interval(&median(results, cell, server, Measured::cost)?, 3))
}

/// Two tables: Gb/s, and what a GB costs.
fn rates_and_costs(text: &mut String, results: &Results, columns: &[(String, Cell)]) {
    text.push_str("Gb/s of bodies:\n\n");
    table(text, results, columns, |cell, server| {
        rate(results, cell, server)
    });
    text.push_str("Busy seconds of the server's core for each GB:\n\n");
    table(text, results, columns, |cell, server| {
        cost(results, cell, server)
    });
}

fn titled(cells: Vec<Cell>, title: impl Fn(&Cell) -> String) -> Vec<(String, Cell)> {
    cells.into_iter().map(|it| (title(&it), it)).collect()
}

fn security(is_tls: bool) -> &'static str {
    if is_tls { "TLS 1.3" } else { "plaintext" }
}

fn by_connections(text: &mut String, results: &Results) {
    for is_tls in [false, true] {
        let found = cells(results, |it| {
            is_plain_cell(it) && it.cached_percent == 0 && it.is_tls == is_tls
        });
        if found.is_empty() {
            continue;
        }
        let columns = titled(found, |it| thousands(it.connections.into()));
        let _ = writeln!(
            text,
            "## {} from a cold disk, by connections",
            capital(security(is_tls))
        );
        rates_and_costs(text, results, &columns);
        ratios(text, results, &columns);
    }
    let _ = writeln!(
        text,
        "From 1,000 connections on each has a round trip of its own between 10 and 40 ms. \\* The clients' core \
         was busy for more than {:.0} %: the rate may be theirs, and no ratio is made of it.\n",
        CLIENT_LOAD_MAX * 100.0
    );
}

/// Atlas beside the best rival in each column.
fn ratios(text: &mut String, results: &Results, columns: &[(String, Cell)]) {
    let _ = writeln!(
        text,
        "Atlas beside the best rival:\n\n| | Rate | Work per core-second |\n|---:|---|---|"
    );
    for (title, cell) in columns {
        let of = |quantity| {
            best(results, cell, quantity)
                .map_or_else(String::new, |it| format!("{} {}", times(&it), it.rival))
        };
        let _ = writeln!(
            text,
            "| {title} | {} | {} |",
            of(Quantity::Rate),
            of(Quantity::Cost)
        );
    }
    text.push('\n');
}

/// Whether a cell's cost is compared with that of the stages alone.
pub(crate) fn has_stages(cell: &Cell) -> bool {
    is_plain_cell(cell) && cell.cached_percent == 0
}

/// What the stages allow, and how much of it Atlas does.
fn by_stages(text: &mut String, results: &Results) {
    if results.stages.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "## What the stages allow\nEach stage alone on the server's core, medians: reads from the disk that Atlas reads; TCP and \
         HTTP between frames received and sent; sealing; sending out of slots on loan, over the wire. Looking objects up, \
         receiving and waking up are in none of them; a stage that waits for its device goes to sleep where the server has \
         something else to do. The last column is the stages' sum by Atlas's cost.\n\n\
         | core-s/GB | read | session | seal | write | together | Atlas | of what they allow |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|"
    );
    for cell in cells(results, has_stages) {
        let atlas = median(results, &cell, ATLAS, Measured::cost);
        let (Some(together), Some(atlas)) = (stages::together(results, &cell), atlas) else {
            continue;
        };
        let of = |stage| {
            stages::cost(results, stage, cell.connections)
                .map_or_else(String::new, |it| format!("{:.3}", it.middle))
        };
        let seal = if cell.is_tls {
            of(Stage::Seal)
        } else {
            String::new()
        };
        let _ = writeln!(
            text,
            "| {}, {} connections | {} | {} | {seal} | {} | {together:.3} | {} | {:.0} % |",
            security(cell.is_tls),
            thousands(cell.connections.into()),
            of(Stage::Read),
            of(Stage::Session),
            of(Stage::Write),
            interval(&atlas, 3),
            together / atlas.middle * 100.0
        );
    }
    text.push('\n');
}

fn by_cache(text: &mut String, results: &Results) {
    for is_tls in [false, true] {
        let all = cells(results, |it| is_plain_cell(it) && it.is_tls == is_tls);
        let Some(connections) = all
            .iter()
            .find(|it| it.cached_percent > 0)
            .map(|it| it.connections)
        else {
            continue;
        };
        let found: Vec<Cell> = all
            .into_iter()
            .filter(|it| it.connections == connections)
            .collect();
        let columns = titled(found, |it| format!("{} %", it.cached_percent));
        let _ = writeln!(
            text,
            "## {}, by share of requests that the page cache holds\n{} connections. Atlas has no page cache and reads \
             everything from the disk.\n",
            capital(security(is_tls)),
            thousands(connections.into())
        );
        rates_and_costs(text, results, &columns);
        ratios(text, results, &columns);
    }
}

fn delays(text: &mut String, results: &Results) {
    let found = cells(results, |it| {
        is_plain_cell(it) && it.cached_percent == 0 && it.connections == 1000
    });
    if found.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "## Delays and fairness at 1,000 connections, cold\nMilliseconds from a request to its reply's first byte \
         and to its last, medians of the rounds' own quantiles. The rates differ: who serves more has less to wait \
         for. Fairness is Jain's index over the connections' bytes, 1 if all had the same. Memory is what the \
         server's processes have resident, without the kernel's sockets.\n"
    );
    for cell in found {
        let _ = writeln!(
            text,
            "{}:\n\n| Server | First byte p50 | p99 | p99.9 | Last byte p50 | p99 | p99.9 | Fairness | Memory, MiB |\n\
             |---|---:|---:|---:|---:|---:|---:|---:|---:|",
            capital(security(cell.is_tls))
        );
        for name in servers(results, &cell) {
            let of = |value: fn(&Measured) -> f64| {
                median(results, &cell, name, value).map(|it| it.middle)
            };
            if of(Measured::gbps).is_none() {
                continue;
            }
            let millis = |value: fn(&Measured) -> f64| {
                of(value).map_or_else(String::new, |it| format!("{:.1}", it / 1e3))
            };
            let _ = writeln!(
                text,
                "| {name} | {} | {} | {} | {} | {} | {} | {} | {} |",
                millis(|it| float(it.first_byte.p50_us)),
                millis(|it| float(it.first_byte.p99_us)),
                millis(|it| float(it.first_byte.p999_us)),
                millis(|it| float(it.whole.p50_us)),
                millis(|it| float(it.whole.p99_us)),
                millis(|it| float(it.whole.p999_us)),
                of(|it| it.fairness.unwrap_or(f64::NAN))
                    .filter(|it| it.is_finite())
                    .map_or_else(String::new, |it| format!("{it:.2}")),
                of(|it| float(it.server_memory) / f64::from(1 << 20))
                    .map_or_else(String::new, |it| format!("{it:.0}")),
            );
        }
        text.push('\n');
    }
}

fn viewers(text: &mut String, results: &Results) {
    for is_tls in [false, true] {
        let found = cells(results, |it| it.every_seconds > 0 && it.is_tls == is_tls);
        if found.is_empty() {
            continue;
        }
        let bytes = results.environment.object_bytes;
        let columns = titled(found, |it| {
            format!(
                "{} viewers, each {} s: {:.1} Gb/s",
                thousands(it.connections.into()),
                it.every_seconds,
                it.offered_gbps(bytes).unwrap_or_default()
            )
        });
        let _ = writeln!(
            text,
            "## {}, viewers who pause\nEach asks for an object, and for the next some seconds later: everybody \
             serves the same. Busy part of the server's core, and milliseconds to an object's last byte, p50 and p99:\n",
            capital(security(is_tls))
        );
        table(text, results, &columns, |cell, server| {
            let load = median(results, cell, server, Measured::server_load)?;
            let delay = |at: fn(&Measured) -> u64| {
                median(results, cell, server, |it| float(at(it)) / 1e3).map(|it| it.middle)
            };
            let (p50, p99) = (delay(|it| it.whole.p50_us)?, delay(|it| it.whole.p99_us)?);
            let rate = median(results, cell, server, Measured::gbps)?.middle;
            let offered = cell.offered_gbps(bytes).unwrap_or(rate);
            // Who does not keep up is busy with less.
            let mark = if rate < 0.95 * offered {
                format!(", {rate:.1} Gb/s only")
            } else {
                String::new()
            };
            Some(format!(
                "{:.1} %; {p50:.0}, {p99:.0} ms{mark}",
                load.middle * 100.0
            ))
        });
    }
}

fn losses(text: &mut String, results: &Results) {
    let found = cells(results, |it| it.loss_ppm > 0);
    if found.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "## Loss\nPackets of the server lost at random, cold.\n"
    );
    let columns = titled(found, |it| {
        format!(
            "{}, {} %",
            security(it.is_tls),
            f64::from(it.loss_ppm) / 1e4
        )
    });
    rates_and_costs(text, results, &columns);
    ratios(text, results, &columns);
    text.push_str("Bytes read from the disk for each byte served:\n\n");
    table(text, results, &columns, |cell, server| {
        let share = median(results, cell, server, |it| it.disk_share)?;
        Some(interval(&share, 3))
    });
}

/// Where Atlas is slower or dearer than the best rival, or failed.
fn behind(text: &mut String, results: &Results) {
    let mut lines = String::new();
    for cell in cells(results, |_| true) {
        if let Some(why) = failure(results, &cell, ATLAS) {
            let _ = writeln!(lines, "* {cell}: **failed**: {why}");
        }
        let quantities: &[_] = if cell.every_seconds > 0 {
            &[(Quantity::Load, "work per core-second")]
        } else {
            &[
                (Quantity::Rate, "rate"),
                (Quantity::Cost, "work per core-second"),
            ]
        };
        for (quantity, title) in quantities {
            if let Some(it) = best(results, &cell, *quantity)
                && it.times.middle < 1.0
            {
                let _ = writeln!(
                    lines,
                    "* {cell}: {} the {title} of {}",
                    times(&it),
                    it.rival
                );
            }
        }
    }
    if lines.is_empty() {
        lines.push_str("Nowhere in this run.\n");
    }
    let _ = writeln!(text, "## Where Atlas is behind, or failed\n{lines}");
}

fn not_counted(text: &mut String, results: &Results) {
    let mut failed = String::new();
    let mut void = String::new();
    let mut void_count = 0;
    for turn in &results.turns {
        let at = format!("{}, {}, round {}", turn.server, turn.cell, turn.round);
        match &turn.outcome {
            Outcome::Failed(why) => {
                let _ = writeln!(failed, "* {at}: {why}");
            }
            Outcome::Void(why, _) => {
                void_count += 1;
                if void_count <= VOID_TOLD {
                    let _ = writeln!(void, "* {at}: {why}");
                }
            }
            Outcome::Measured(_) => {}
        }
    }
    if !failed.is_empty() {
        let _ = writeln!(text, "## Servers that failed\n{failed}");
    }
    if !void.is_empty() {
        let _ = writeln!(
            text,
            "## Turns that do not count\n{void_count}; all with their figures in the stored results.\n\n{void}"
        );
    }
}

fn environment(text: &mut String, results: &Results) {
    let environment = &results.environment;
    let _ = writeln!(
        text,
        "## How it was measured\nMade by `{}`; order drawn from seed {}. `bench/README.md` says what each figure \
         is. Intervals go from the least of a cell's rounds to the greatest: they hold the median with a probability \
         of 97 % where there are six, 94 % five, 88 % four, 75 % three, 50 % two, and say nothing where there is one.\n\n{}",
        environment.command,
        environment.seed,
        environment.rows().trim_end()
    );
    let wire: Vec<f64> = results
        .turns
        .iter()
        .filter_map(|turn| match &turn.outcome {
            Outcome::Measured(it) => {
                Some(it.filter / (float(it.body_bytes) / 1e9).max(f64::MIN_POSITIVE))
            }
            _ => None,
        })
        .collect();
    if let Some(it) = Median::new(wire) {
        let _ = writeln!(
            text,
            "| the wire's filter, part of every server's cost | {:.4} core-s/GB, median |",
            it.middle
        );
    }
    for server in comparison_servers(results) {
        let shares: Vec<f64> = results
            .turns
            .iter()
            .filter_map(|turn| match &turn.outcome {
                // Those with loss have a table.
                Outcome::Measured(it)
                    if turn.server == server
                        && turn.cell.cached_percent == 0
                        && turn.cell.loss_ppm == 0 =>
                {
                    Some(it.disk_share)
                }
                _ => None,
            })
            .collect();
        if let Some(it) = Median::new(shares) {
            let _ = writeln!(
                text,
                "| bytes read from the disk for each byte served, cold, {server} | {:.3} |",
                it.middle
            );
        }
        for is_tls in [false, true] {
            memory_row(text, results, server, is_tls);
        }
        effort_rows(text, results, server);
    }
}

/// What a worker did for each object.
fn effort_rows(text: &mut String, results: &Results, server: &str) {
    for cell in cells(results, |cell| cell.cached_percent == 0) {
        let each = |of: fn(&Effort) -> u64| {
            let counts = results.turns.iter().filter_map(|turn| match &turn.outcome {
                Outcome::Measured(it) if turn.server == server && turn.cell == cell => {
                    let effort = it.effort.as_ref().filter(|it| it.replies > 0)?;
                    Some(float(of(effort)) / float(effort.replies))
                }
                _ => None,
            });
            Median::new(counts).map(|it| it.middle)
        };
        let counts = [
            each(|it| it.rounds),
            each(|it| it.sleeps),
            each(|it| it.disk_calls),
            each(|it| it.frames),
        ];
        if let [Some(rounds), Some(sleeps), Some(disk_calls), Some(frames)] = counts {
            let _ = writeln!(
                text,
                "| rounds, sleeps, system calls for reads, and frames for each object, {cell}, {server} | {rounds:.1}, \
                 {sleeps:.1}, {disk_calls:.1}, {frames:.1} |"
            );
        }
    }
}

/// How often a byte crossed the memory bus, if the machine counts that.
fn memory_row(text: &mut String, results: &Results, server: &str, is_tls: bool) {
    let share = |of: fn(&MemoryBytes) -> Option<u64>| {
        let shares = results.turns.iter().filter_map(|turn| {
            let cell = &turn.cell;
            let is_meant =
                turn.server == server && cell.cached_percent == 0 && cell.is_tls == is_tls;
            match &turn.outcome {
                Outcome::Measured(it) if is_meant => {
                    Some(float(of(it.memory.as_ref()?)?) / float(it.body_bytes.max(1)))
                }
                _ => None,
            }
        });
        Median::new(shares).map(|it| it.middle)
    };
    let (Some(read), Some(written)) = (share(|it| it.read), share(|it| it.written)) else {
        return;
    };
    let _ = writeln!(
        text,
        "| bytes that the whole machine's memory read and wrote for each byte served, cold, {}, {server} | {read:.2} / {written:.2} |",
        security(is_tls)
    );
}

fn comparison_servers(results: &Results) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for cell in cells(results, |_| true) {
        for name in comparison::servers(results, &cell) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| {
        first.to_uppercase().collect::<String>() + characters.as_str()
    })
}

#[cfg(test)]
mod tests {
    use super::super::results::Turn;
    use super::super::results::tests::turn;
    use super::super::stages::StageWindow;
    use super::*;
    use crate::stored::tests::environment;

    fn results() -> Results {
        let (cold, warm) = (
            Cell::cold(false, 1000),
            Cell {
                cached_percent: 100,
                ..Cell::cold(false, 1000)
            },
        );
        let viewers = Cell {
            every_seconds: 4,
            ..cold
        };
        let lost = Cell {
            loss_ppm: 1000,
            ..cold
        };
        let mut turns = Vec::new();
        for cell in [cold, warm, viewers, lost] {
            turns.push(turn(("atlas", 1), cell, (8, 2.0)));
            let theirs = if cell == warm { 16 } else { 4 };
            turns.push(turn(("nginx-sendfile", 1), cell, (theirs, 2.0)));
        }
        turns.push(Turn {
            outcome: Outcome::Failed("it answers 503".to_owned()),
            ..turn(("h2o", 1), cold, (1, 1.0))
        });
        turns.push(Turn {
            outcome: Outcome::Void("the hypervisor took 9 % of a core".to_owned(), None),
            ..turn(("atlas", 1), cold, (1, 1.0))
        });
        Results {
            environment: environment(),
            turns,
            stages: Vec::new(),
        }
    }

    #[test]
    fn what_the_worker_did_for_each_object_is_told_where_it_is_counted() {
        let mut results = results();
        assert!(!page(&results, &[]).contains("frames for each object"));
        for turn in &mut results.turns {
            if let Outcome::Measured(it) = &mut turn.outcome {
                it.effort = Some(Effort {
                    replies: 100,
                    rounds: 3400,
                    sleeps: 1550,
                    disk_calls: 610,
                    frames: 1200,
                });
            }
        }
        let page = page(&results, &[]);
        assert!(
            page.contains("an object each 4 s, atlas | 34.0, 15.5, 6.1, 12.0 |"),
            "{page}"
        );
    }

    #[test]
    fn what_memory_did_is_told_where_it_is_counted() {
        let mut results = results();
        let line = "served, cold, plaintext, atlas | 1.50 / 0.25 |";
        assert!(!page(&results, &[]).contains("memory read and wrote"));
        for turn in &mut results.turns {
            if let (Outcome::Measured(it), 0) = (&mut turn.outcome, turn.cell.cached_percent) {
                it.memory = Some(MemoryBytes {
                    read: Some(it.body_bytes * 3 / 2),
                    written: Some(it.body_bytes / 4),
                    ..MemoryBytes::default()
                });
            }
        }
        assert!(page(&results, &[]).contains(line));
    }

    #[test]
    fn the_page_begins_with_what_is_quoted_and_hides_no_loss_and_no_failure() {
        let page = page(&results(), &[("rate.svg".to_owned(), "Rate".to_owned())]);
        let page = page.replace("\n  ", " ");
        let head: Vec<&str> = page.lines().take(10).collect();
        assert!(
            head.iter()
                .any(|line| line.contains("2.00 x (2.00-2.00) the rate of nginx-sendfile")),
            "{page}"
        );
        for part in [
            "8 turns count, 1 were void, 1 failed",
            "![Rate](rate.svg)",
            "| h2o | failed |",
            "0.50 x (0.50-0.50) the rate of nginx-sendfile",
            "it answers 503",
            "the hypervisor took 9 % of a core",
            "## Plaintext, viewers who pause",
            "## Loss",
            "| atlas | 1.000 (1.000-1.000) |",
        ] {
            assert!(page.contains(part), "{part}\n{page}");
        }
    }

    #[test]
    fn a_run_of_viewers_alone_is_summed_up_without_a_ratio_of_rates() {
        let mut results = results();
        results.turns.retain(|it| it.cell.every_seconds > 0);
        let text = summary_text(&results);
        let line = "* **plaintext, 1,000 connections, cold, 10-40 ms, an object each 4 s**: Atlas 16.0 (16.0-16.0) Gb/s at \
                    0.250 (0.250-0.250) core-s/GB; 2.00 x (2.00-2.00) the work per core-second of nginx-sendfile.";
        assert!(text.lines().any(|it| it == line), "{text}");
        assert!(text.contains("Medians of up to 1 rounds"), "{text}");
    }

    #[test]
    fn atlas_stands_beside_the_stages_of_its_pipeline() {
        let mut results = results();
        let secured = Cell::cold(true, 1000);
        results.turns.push(turn(("atlas", 1), secured, (4, 2.0)));
        let busy = [
            (Stage::Read, 0.1),
            (Stage::Session, 0.04),
            (Stage::Seal, 0.16),
            (Stage::Write, 0.08),
        ];
        let window = |(stage, busy), connections| StageWindow {
            stage,
            connections,
            bytes: 2_000_000_000,
            seconds: 2.0,
            busy,
        };
        results.stages = busy.map(|it| window(it, 1000)).to_vec();
        let row = |results: &Results, what: &str| {
            let page = page(results, &[]);
            let mut lines = page.lines().map(str::to_owned);
            lines.find(|line| line.starts_with(&format!("| {what}, 1,000 connections | 0")))
        };
        assert_eq!(
            row(&results, "plaintext").unwrap(),
            "| plaintext, 1,000 connections | 0.050 | 0.020 |  | 0.040 | 0.110 | 0.250 (0.250-0.250) | 44 % |"
        );
        assert_eq!(
            row(&results, "TLS 1.3").unwrap(),
            "| TLS 1.3, 1,000 connections | 0.050 | 0.020 | 0.080 | 0.040 | 0.190 | 0.500 (0.500-0.500) | 38 % |"
        );
        // Without one of them, or as for other clients, there is no sum.
        results.stages.pop();
        assert_eq!(row(&results, "plaintext"), None);
        results.stages.push(window(busy[3], 64));
        assert_eq!(row(&results, "plaintext"), None);
    }

    #[test]
    fn what_was_not_measured_is_left_out() {
        let mut results = results();
        results.turns.retain(|it| it.cell == Cell::cold(true, 1));
        let page = page(&results, &[]);
        for part in ["## Loss", "viewers", "by share of requests", "stages"] {
            assert!(!page.contains(part), "{part}\n{page}");
        }
        assert!(page.contains("Nowhere in this run."));
    }
}
