//! The page and the terminal's table, made of stored results alone.
//!
//! It refuses nothing: what was not measured is left out, what did not count is told. Bounded by: the
//! results.

use std::fmt::Write as _;

use super::causes::cause;
use super::plan::{
    Cell, FAIR_DELAY_NOISE, FAIR_RUNS, RATE_BITS, Sender, Stack, fair_cells, impaired_cells,
    matrix_cells, pairs,
};
use super::results::{Flow, LATE_SHARE_MAX, Measured, Results, Run};
use crate::page::wrapped;
use crate::statistics::median;
use crate::stored::float;

/// Below this part of Linux's goodput a cell of Atlas needs an explanation.
const RATIO_WANTED: f64 = 0.9;

/// Two connections share fairly if one has no more than so many times the other's goodput.
const FAIR_TIMES: f64 = 2.0;

/// The file a page is regenerated from, as its text says.
const COMMAND: &str = "cargo xtask bench paths --json bench/results/paths.jsonl";

/// Medians of one connection over the rounds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Middle {
    /// Shares of the rate and of the bytes sent.
    goodput: f64,
    resent: f64,
    pause_ms: f64,
    /// Least and greatest goodput.
    least: f64,
    most: f64,
}

/// What was measured of some senders at a cell: the runs that count.
fn runs_of<'a>(all: &'a Results, cell: Cell, senders: &[Sender]) -> Vec<&'a Measured> {
    let runs = all.runs.iter();
    let runs = runs.filter(|it| it.cell == cell && it.senders == senders && it.is_good());
    runs.filter_map(Run::measured).collect()
}

/// The medians of each connection; `None`: nothing that counts.
fn middles(all: &Results, cell: Cell, senders: &[Sender]) -> Option<Vec<Middle>> {
    let runs = runs_of(all, cell, senders);
    let of_flow = |index: usize| {
        let flows: Vec<&Flow> = runs.iter().filter_map(|it| it.flows.get(index)).collect();
        let values = |of: fn(&Flow) -> f64| flows.iter().map(|it| of(it)).collect::<Vec<_>>();
        let goodputs = values(Flow::goodput);
        Middle {
            goodput: median(&goodputs),
            resent: median(&values(Flow::resent)),
            pause_ms: median(&values(|it| float(it.pause_us_max) / 1e3)),
            least: goodputs.iter().copied().fold(f64::INFINITY, f64::min),
            most: goodputs.iter().copied().fold(0.0, f64::max),
        }
    };
    (!runs.is_empty()).then(|| (0..senders.len()).map(of_flow).collect())
}

fn single(all: &Results, cell: Cell, stack: Stack, control: &str) -> Option<Middle> {
    let middles = middles(all, cell, &[Sender::new(stack, control)])?;
    middles.first().copied()
}

/// The controls measured, Atlas's first.
fn controls(all: &Results) -> Vec<String> {
    let mut senders: Vec<&Sender> = all
        .runs
        .iter()
        .filter(|run| run.senders.len() == 1)
        .flat_map(|run| &run.senders)
        .collect();
    senders.sort();
    let mut controls: Vec<String> = Vec::new();
    for sender in senders {
        if !controls.contains(&sender.control) {
            controls.push(sender.control.clone());
        }
    }
    controls
}

fn has_atlas(all: &Results, control: &str) -> bool {
    let wanted = [Sender::new(Stack::Atlas, control)];
    all.runs.iter().any(|run| run.senders == wanted)
}

/// Atlas's goodput over Linux's, with the same control.
fn ratio(all: &Results, cell: Cell, control: &str) -> Option<f64> {
    let of = |stack| single(all, cell, stack, control);
    let (atlas, linux) = (of(Stack::Atlas)?, of(Stack::Linux)?);
    Some(atlas.goodput / linux.goodput.max(f64::MIN_POSITIVE))
}

/// `12.3 (0.4)`.
fn goodput_and_resent(middle: Option<Middle>) -> String {
    middle.map_or_else(
        || "-".to_owned(),
        |it| format!("{:.1} ({:.1})", 100.0 * it.goodput, 100.0 * it.resent),
    )
}

/// What the terminal gets: the matrix and the pairs.
pub(crate) fn table(all: &Results) -> String {
    let mut text = single_table(all, &matrix_cells(), &MATRIX_HEAD);
    fairness(&mut text, all);
    impaired(&mut text, all);
    text
}

/// The whole page.
pub(crate) fn page(all: &Results) -> String {
    let mut text = String::from("# Atlas's TCP beside Linux's, on the same path\n\n");
    let _ = writeln!(
        text,
        "Made by `{COMMAND}`; not to be edited. One connection sends for 10 s (20 s at 200 ms) from the \
         reply's first byte on, over a bottleneck of {} Mb/s with a drop-tail buffer and random loss \
         behind it; the client is Linux. Each run has a path of its own: two network namespaces and a \
         middlebox between them (`tools/bench/bottleneck`), which sees frames of at most 1514 bytes. \
         Atlas sends through a packet socket, Linux by a socket of its own TCP; buffers of sockets are \
         no limit.\n",
        RATE_BITS / 1_000_000
    );
    let _ = writeln!(
        text,
        "**Goodput** is the share of the rate, percent; more than 95.6 cannot be, since 1448 of 1514 \
         bytes are payload. In brackets: bytes sent again, percent of those sent. Medians of {} rounds at most; one round says little of a path with loss. \
         A ratio in bold is below {RATIO_WANTED}. `tools/sim/snapshots/loss_matrix.txt` has the same \
         paths in the simulator, with a transfer of 10 MB.\n",
        all.runs.iter().map(|run| run.round).max().unwrap_or(0)
    );
    text.push_str("## One connection\n\n");
    text.push_str(&single_table(all, &matrix_cells(), &MATRIX_HEAD));
    below(&mut text, all);
    fairness(&mut text, all);
    impaired(&mut text, all);
    instrument(&mut text, all);
    environment(&mut text, all);
    wrapped(&text)
}

/// The first columns of a table, and of one row of it.
struct RowHead {
    titles: &'static str,
    rule: &'static str,
    of: fn(Cell) -> String,
}

const MATRIX_HEAD: RowHead = RowHead {
    titles: "| RTT ms | loss % | buffer BDP |",
    rule: "|--:|--:|--:|",
    of: |cell| {
        let (rtt, loss, buffer) = (cell.rtt_millis, cell.loss(), cell.buffer());
        format!("| {rtt} | {loss} | {buffer} |")
    },
};

const IMPAIRED_HEAD: RowHead = RowHead {
    titles: "| path |",
    rule: "|---|",
    of: |cell| format!("| {cell} |"),
};

/// One connection at each of the cells, by control; nothing if none was measured.
fn single_table(all: &Results, cells: &[Cell], head: &RowHead) -> String {
    let controls = controls(all);
    let mut text = head.titles.to_owned();
    let mut rule = head.rule.to_owned();
    for control in &controls {
        if has_atlas(all, control) {
            let _ = write!(text, " {control}: Atlas | Linux | ratio |");
            rule.push_str("--:|--:|--:|");
        } else {
            let _ = write!(text, " {control}: Linux |");
            rule.push_str("--:|");
        }
    }
    let _ = writeln!(text, "\n{rule}");
    let mut is_empty = true;
    for cell in cells.iter().copied() {
        let mut row = (head.of)(cell);
        let mut is_measured = false;
        for control in &controls {
            let of = |stack| single(all, cell, stack, control);
            is_measured |= of(Stack::Atlas).is_some() || of(Stack::Linux).is_some();
            if has_atlas(all, control) {
                let _ = write!(row, " {} |", goodput_and_resent(of(Stack::Atlas)));
            }
            let _ = write!(row, " {} |", goodput_and_resent(of(Stack::Linux)));
            if has_atlas(all, control) {
                let _ = write!(row, " {} |", ratio_text(ratio(all, cell, control)));
            }
        }
        if is_measured {
            let _ = writeln!(text, "{row}");
            is_empty = false;
        }
    }
    if is_empty { String::new() } else { text + "\n" }
}

fn impaired(text: &mut String, all: &Results) {
    let table = single_table(all, &impaired_cells(), &IMPAIRED_HEAD);
    if !table.is_empty() {
        text.push_str("## Frames that overtake each other, and SACK blocks that say nothing\n\n");
        text.push_str(&table);
    }
}

fn ratio_text(ratio: Option<f64>) -> String {
    match ratio {
        None => "-".to_owned(),
        Some(it) if it < RATIO_WANTED => format!("**{it:.2}**"),
        Some(it) => format!("{it:.2}"),
    }
}

/// The cells in which Atlas gets less than it should.
fn below(text: &mut String, all: &Results) {
    let mut rows = String::new();
    let mut count = 0;
    for control in controls(all) {
        for cell in matrix_cells().into_iter().chain(impaired_cells()) {
            let Some(ratio) = ratio(all, cell, &control).filter(|it| *it < RATIO_WANTED) else {
                continue;
            };
            let of = |stack| single(all, cell, stack, &control).unwrap_or_default();
            let (atlas, linux) = (of(Stack::Atlas), of(Stack::Linux));
            let spread = |it: Middle| format!("{:.1}-{:.1}", 100.0 * it.least, 100.0 * it.most);
            count += 1;
            let _ = writeln!(
                rows,
                "| {cell} | {control} | {ratio:.2} | {} / {} | {:.0} / {:.0} | {} |",
                spread(atlas),
                spread(linux),
                atlas.pause_ms,
                linux.pause_ms,
                cause(cell, &control).unwrap_or_else(|| "not explained".to_owned())
            );
        }
    }
    let _ = writeln!(
        text,
        "## Where Atlas gets less than {RATIO_WANTED} of Linux's goodput\n\n{count} cells. Goodput is the \
         least and the greatest of the rounds; a pause is the longest time between two segments of the \
         server, median: one above a few round trips is a retransmission timeout.\n"
    );
    if count > 0 {
        text.push_str(
            "| Path | Control | Ratio | Goodput % Atlas / Linux | Pause ms Atlas / Linux | Why |\n\
             |---|---|--:|--:|--:|---|\n",
        );
        let _ = writeln!(text, "{rows}");
    }
}

/// How many times the second's goodput the first of a pair has.
fn times_of(run: &Measured) -> Option<f64> {
    let [first, second] = run.flows.as_slice() else {
        return None;
    };
    Some(first.goodput() / second.goodput().max(f64::MIN_POSITIVE))
}

fn fairness(text: &mut String, all: &Results) {
    let mut rows = String::new();
    let (mut count, mut fair) = (0, 0);
    for cell in fair_cells() {
        for pair in pairs() {
            let Some(middles) = middles(all, cell, &pair) else {
                continue;
            };
            let [first, second] = middles.as_slice() else {
                continue;
            };
            let times: Vec<f64> = runs_of(all, cell, &pair)
                .iter()
                .filter_map(|run| times_of(run))
                .collect();
            let least = times.iter().copied().fold(f64::INFINITY, f64::min);
            let most = times.iter().copied().fold(0.0, f64::max);
            let times = median(&times);
            let is_fair = (FAIR_TIMES.recip()..=FAIR_TIMES).contains(&times);
            count += 1;
            fair += usize::from(is_fair);
            let _ = writeln!(
                rows,
                "| {} | {} | {} beside {} | {} | {} | {} | {least:.2}-{most:.2} |",
                cell.rtt_millis,
                cell.buffer(),
                pair[0],
                pair[1],
                goodput_and_resent(Some(*first)),
                goodput_and_resent(Some(*second)),
                if is_fair {
                    format!("{times:.2}")
                } else {
                    format!("**{times:.2}**")
                }
            );
        }
    }
    if count == 0 {
        return;
    }
    let _ = writeln!(
        text,
        "## Two connections through one bottleneck\n\nBoth begin together and send for 60 s, without random \
         loss, {FAIR_RUNS} times in a round. The second asks first in every other run, since the one that does may get more. Each \
         ACK is up to {} ms late, or both would keep step (decision 20). Numbers are \
         medians of the runs; the last columns have how many times the second's goodput the first has, and the least and the \
         greatest of the runs. In {fair} of {count} rows neither has more than {FAIR_TIMES} times the other's.\n\n\
         | RTT ms | buffer BDP | senders | first | second | first / second | runs |\n\
         |--:|--:|---|--:|--:|--:|--:|\n{rows}",
        FAIR_DELAY_NOISE.as_millis()
    );
}

/// What shows that the middlebox was not the bound.
fn instrument(text: &mut String, all: &Results) {
    let runs = &all.runs;
    let good: Vec<&Measured> = runs
        .iter()
        .filter(|run| run.is_good())
        .filter_map(|run| run.measured())
        .collect();
    let lates = |of: fn(&Measured) -> f64| good.iter().map(|it| of(it)).collect::<Vec<_>>();
    let late_ms = lates(|it| float(it.path.late_us_max()) / 1e3);
    let share = lates(|it| it.path.forth.late_share());
    let cpu = lates(|it| it.path.cpu_share);
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let full_frames: u64 = good.iter().map(|it| it.path.full_frames).sum();
    let lost_frames: u64 = good.iter().map(|it| it.path.lost_frames).sum();
    let repeats: u32 = runs.iter().map(|it| it.repeats).sum();
    let realtime = good.iter().all(|it| it.path.is_realtime);
    let _ = writeln!(
        text,
        "## Was the middlebox the bound?\n\n\
         * {} runs count; {} do not, after {repeats} repeats in all.\n\
         * The latest frame of a run left {:.1} ms late (median of the runs), {:.1} ms in the worst; at most \
         {:.2} % of a run's frames left more than 1 ms late. A run with more than {} % is repeated.\n\
         * Dropped for a full buffer: {full_frames} frames; by the random loss: {lost_frames}; by the TAPs: 0 (a \
         run with one is repeated).\n\
         * One path takes {:.0} % of a core (median), {:.0} % at most, the receiving of both kernels included. \
         The middlebox {}.",
        good.len(),
        runs.len() - good.len(),
        median(&late_ms),
        most(&late_ms),
        100.0 * most(&share),
        100.0 * LATE_SHARE_MAX,
        100.0 * median(&cpu),
        100.0 * most(&cpu),
        if realtime {
            "and Atlas run ahead of other work (`SCHED_FIFO`)"
        } else {
            "has ordinary priority"
        },
    );
    if let Some(best) = best_share(all) {
        let _ = writeln!(
            text,
            "* Without random loss, with 10 BDP and after slow start the rate is reached: the best run has {:.1} % \
             of it, where 95.6 are possible.",
            100.0 * best
        );
    }
    let failed = runs.iter().filter(|run| !run.is_good());
    for run in failed {
        let _ = writeln!(text, "* Does not count: {}", run.line());
    }
    text.push('\n');
}

/// The greatest goodput of any run without random loss.
fn best_share(all: &Results) -> Option<f64> {
    let runs = all.runs.iter();
    let runs = runs.filter(|run| run.cell.loss_ppm == 0 && run.is_good());
    let flows = runs
        .filter_map(Run::measured)
        .filter(|it| it.flows.len() == 1)
        .flat_map(|it| &it.flows);
    flows.map(Flow::goodput).reduce(f64::max)
}

fn environment(text: &mut String, all: &Results) {
    let it = &all.environment;
    let _ = writeln!(
        text,
        "## Measured on and with\n\n{}| command | `{}` |\n| seed | {} |\n",
        it.rows(),
        it.command,
        it.seed
    );
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::{CELL, run};
    use super::*;
    use crate::stored::tests::environment;

    fn results(runs: Vec<Run>) -> Results {
        Results {
            environment: environment(),
            runs,
        }
    }

    #[test]
    fn a_cell_below_nine_tenths_of_linux_is_listed_and_one_at_it_is_not() {
        let of = |percent| {
            let runs = vec![
                run(1, CELL, &[(Stack::Atlas, percent)]),
                run(1, CELL, &[(Stack::Linux, 50)]),
            ];
            page(&results(runs))
        };
        let (below, at) = (of(44), of(45));
        assert!(below.contains("**0.88**"), "{below}");
        assert!(below.contains("1 cells."), "{below}");
        assert!(at.contains(" 0.90 |") && at.contains("0 cells."), "{at}");
    }

    #[test]
    fn medians_are_of_runs_that_count() {
        let atlas = |round, percent| run(round, CELL, &[(Stack::Atlas, percent)]);
        let failed = Run {
            outcome: super::super::results::Outcome::Failed("no reply".to_owned()),
            ..atlas(4, 1)
        };
        let linux = run(1, CELL, &[(Stack::Linux, 20)]);
        let all = results(vec![
            linux,
            atlas(1, 30),
            atlas(2, 40),
            atlas(3, 80),
            failed,
        ]);
        let of = |stack| single(&all, CELL, stack, "cubic").unwrap();
        assert!((of(Stack::Atlas).goodput - 0.4).abs() < 1e-9);
        assert!((of(Stack::Linux).goodput - 0.2).abs() < 1e-9);
        assert_eq!(single(&all, CELL, Stack::Atlas, "reno"), None);
        assert!(page(&all).contains("FAILED: no reply"));
    }

    #[test]
    fn an_impaired_path_has_a_row_in_a_table_of_its_own_if_it_was_measured() {
        let title = "## Frames that overtake";
        let of = |cell| table(&results(vec![run(1, cell, &[(Stack::Atlas, 30)])]));
        assert!(!of(CELL).contains(title));
        for cell in impaired_cells() {
            let text = of(cell);
            assert!(text.contains(title), "{text}");
            assert!(text.contains(&format!("| {cell} | 30.0 (1.0) |")), "{text}");
            assert!(!text.contains("RTT ms"), "{text}");
        }
    }

    #[test]
    fn a_pair_has_the_median_of_its_runs_and_their_least_and_greatest() {
        let cell = fair_cells()[0];
        let of = |first| run(1, cell, &[(Stack::Atlas, first), (Stack::Linux, 30)]);
        let text = table(&results(vec![of(60), of(15), of(36)]));
        assert!(text.contains("| 1.20 | 0.50-2.00 |"), "{text}");
        assert!(text.contains("In 1 of 1 rows"), "{text}");
    }

    #[test]
    fn a_pair_is_fair_up_to_twice_the_other() {
        let cell = fair_cells()[0];
        let of = |first, second| {
            let runs = vec![run(
                1,
                cell,
                &[(Stack::Atlas, first), (Stack::Linux, second)],
            )];
            table(&results(runs))
        };
        assert!(of(60, 30).contains("| 2.00 | 2.00-2.00 |"));
        assert!(of(60, 30).contains("In 1 of 1 rows"));
        assert!(of(61, 30).contains("In 0 of 1 rows"));
        assert!(of(30, 61).contains("In 0 of 1 rows"));
    }
}
