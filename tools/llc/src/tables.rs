//! The tables of `docs/memory.md`, in Markdown. Each is a name and some minutes or seconds of runs.
//!
//! Every number is of one seed, unless a table says otherwise.

use std::fmt::Write as _;
use std::io;

use crate::cache::{Agent, Stage};
use crate::closed_loop::{Case, Hardware, Order, Outcome};
use crate::layout::Layout;
use crate::machine::{Machine, Replacement};
use crate::rivals::{
    Protocol, atlas, atlas_2017, atlas_bounded, linux_ktls, linux_sendfile, netflix,
    on_paper_machine, paper_hardware, paper_load,
};
use crate::validation::{EXPERIMENTS, Origin};

/// Takes lines of a table as they are made; a run of the model may end at any of them.
pub type Sink<'a> = dyn FnMut(&str) -> io::Result<()> + 'a;

/// A table: its name in the page, and what makes it.
pub type Table = (&'static str, fn(&mut Sink<'_>) -> io::Result<()>);

/// All of them, in the page's order.
pub const TABLES: [Table; 6] = [
    ("paper and model", paper_and_model),
    ("sensitivity", sensitivity),
    ("ledger", ledger),
    ("remedy", remedy),
    ("bound", bound),
    ("machines", machines),
];

/// Seeds of the comparison with the paper.
const SEEDS: u64 = 5;
const POLICIES: [(Replacement, &str); 3] = [
    (Replacement::Srrip, "SRRIP"),
    (Replacement::Lru, "LRU"),
    (Replacement::Random, "random"),
];
/// Where no bound is meant.
const NO_BOUND: u32 = u32::MAX;

/// The first two lines of a table with these columns, which `|` separates.
fn head(columns: &str) -> String {
    let rule = vec!["---"; columns.split('|').count()];
    format!("| {columns} |\n") + &row(&rule)
}

fn row<T: AsRef<str>>(cells: &[T]) -> String {
    let cells: Vec<&str> = cells.iter().map(AsRef::as_ref).collect();
    format!("| {} |\n", cells.join(" | "))
}

/// Two decimals below ten, one below a hundred, else none.
fn number(value: f64) -> String {
    match value {
        _ if value < 10.0 => format!("{value:.2}"),
        _ if value < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Reads and writes for each byte, and the throughput if it is not what the NICs take.
fn traffic(case: &Case, outcome: &Outcome) -> String {
    let mut text = format!("{:.2}/{:.2}", outcome.report.read, outcome.report.written);
    let nics = case.hardware.nic_gbps * f64::from(case.hardware.nics);
    if outcome.gbps < nics * 0.98 {
        let _ = write!(text, " ({:.0})", outcome.gbps);
    }
    text
}

fn run(case: &Case) -> String {
    traffic(case, &case.run(1))
}

fn paper_and_model(sink: &mut Sink<'_>) -> io::Result<()> {
    sink(&head(
        "Run | What | Paper (figure) | Model | Fits | LRU | random",
    ))?;
    for experiment in &EXPERIMENTS {
        let by_policy = POLICIES.map(|(policy, _)| {
            let seeds = if policy == Replacement::Srrip {
                SEEDS
            } else {
                1
            };
            experiment.run(policy, seeds)
        });
        let mut name = experiment.name;
        for target in experiment.targets {
            let values = |outcomes: &Vec<Outcome>| -> Vec<f64> {
                outcomes.iter().map(target.measure).collect()
            };
            let model = values(&by_policy[0]);
            let least = model.iter().copied().fold(f64::INFINITY, f64::min);
            let most = model.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let fits = model.iter().filter(|it| target.is_met(**it)).count();
            let fits = match (fits as u64, target.origin) {
                (SEEDS, Origin::Fitted) => "fitted".to_owned(),
                (SEEDS, Origin::Predicted) => "yes".to_owned(),
                (0, _) => "**no**".to_owned(),
                _ => format!("**{fits} of {SEEDS} seeds**"),
            };
            let others = by_policy[1..].iter().map(|outcomes| {
                let value = mean(&values(outcomes));
                let mark = if target.is_met(value) { "" } else { " (no)" };
                number(value) + mark
            });
            let spread = format!(
                "{} ({}-{})",
                number(mean(&model)),
                number(least),
                number(most)
            );
            let mut cells = vec![
                std::mem::take(&mut name).into(),
                target.what.into(),
                target.paper.into(),
                spread,
                fits,
            ];
            cells.extend(others);
            sink(&row::<String>(&cells))?;
        }
    }
    Ok(())
}

fn sensitivity(sink: &mut Sink<'_>) -> io::Result<()> {
    sink(&head("Parameter | Run | Values | Read / network"))?;
    let mut add = |name: &str, case: &str, values: &[f64], set: &dyn Fn(f64) -> Case| {
        let read = values
            .iter()
            .map(|value| number(set(*value).run(1).report.read));
        let read: Vec<String> = read.collect();
        let values: Vec<String> = values.iter().map(ToString::to_string).collect();
        sink(&row(&[name, case, &values.join(", "), &read.join(", ")]))
    };
    add(
        "least time of a round (`ATLAS_2017_POLL_US`)",
        "Atlas, plaintext, 2,000",
        &[5.0, 100.0, 200.0, 300.0],
        &|value| {
            let mut case = on_paper_machine(atlas_2017(Protocol::Plaintext), 4, 2_000);
            case.server.poll_us = value;
            case
        },
    )?;
    add(
        "Gb/s of a core (`ATLAS_2017_TLS_CORE_GBPS`)",
        "Atlas, TLS, full",
        &[18.0, 18.8, 19.5, 20.0, 25.0],
        &|value| {
            let mut case = on_paper_machine(atlas_2017(Protocol::Tls), 4, 8_000);
            case.server.core_gbps = value;
            case
        },
    )?;
    add(
        "cold lines for 4 KiB (`NETFLIX_COLD_LINES`)",
        "Netflix, plaintext",
        &[0.0, 15.0, 30.0, 45.0],
        &|value| {
            let mut case = on_paper_machine(netflix(Protocol::Plaintext, false), 8, 8_000);
            case.server.metadata.cold_lines = value;
            case
        },
    )?;
    add(
        "window of a client, KB (not fitted)",
        "Atlas, TLS, full",
        &[20.0, 32.0, 48.0, 64.0],
        &|value| {
            let mut case = on_paper_machine(atlas_2017(Protocol::Tls), 4, 8_000);
            case.load.window_bytes = (value * 1024.0) as u32;
            case
        },
    )
}

/// Who reads and writes a byte, and when.
fn ledger(sink: &mut Sink<'_>) -> io::Result<()> {
    sink(&head(
        "Server | Gb/s | CPU reads to seal | CPU reads metadata | NIC reads payload | **read** | filled, not sealed | sealed, not sent | sent | metadata | **written**",
    ))?;
    let plaintext = Protocol::Plaintext;
    let tls = Protocol::Tls;
    let full = 16_000;
    let cases = [
        (
            "Atlas 2017, plaintext",
            on_paper_machine(atlas_2017(plaintext), 4, full),
        ),
        (
            "Atlas 2017, TLS",
            on_paper_machine(atlas_2017(tls), 4, full),
        ),
        (
            "Netflix, plaintext",
            on_paper_machine(netflix(plaintext, false), 8, full),
        ),
        (
            "Netflix, TLS",
            on_paper_machine(netflix(tls, false), 8, full),
        ),
        (
            "Linux `sendfile`, or the NIC seals (payload only)",
            on_paper_machine(linux_sendfile(), 8, full),
        ),
        (
            "Linux kTLS (payload only)",
            on_paper_machine(linux_ktls(), 8, full),
        ),
        (
            "Atlas, no bound, plaintext",
            on_paper_machine(atlas(plaintext), 4, full),
        ),
        (
            "Atlas, no bound, TLS",
            on_paper_machine(atlas(tls), 4, full),
        ),
        (
            "Atlas, 34 slots a worker, plaintext",
            on_paper_machine(atlas_bounded(plaintext, 34), 4, full),
        ),
        (
            "Atlas, 34 slots a worker, TLS",
            on_paper_machine(atlas_bounded(tls, 34), 4, full),
        ),
    ];
    for (name, case) in cases {
        let outcome = case.run(1);
        let report = &outcome.report;
        let read = |agent: Agent, stage: Stage| report.reads[agent as usize][stage as usize];
        let written = |stage: Stage| {
            report
                .writes
                .iter()
                .map(|it| it[stage as usize])
                .sum::<f64>()
        };
        let numbers = [
            outcome.gbps,
            read(Agent::Cpu, Stage::Seal),
            read(Agent::Cpu, Stage::Metadata),
            read(Agent::Nic, Stage::Send),
            report.read,
            written(Stage::Fill),
            written(Stage::Seal),
            written(Stage::Send),
            written(Stage::Metadata),
            report.written,
        ];
        let mut cells = vec![name.to_owned()];
        cells.extend(numbers.map(number));
        sink(&row(&cells))?;
    }
    Ok(())
}

/// The paper's remedy, a bound, and both, on its Atlas.
fn remedy(sink: &mut Sink<'_>) -> io::Result<()> {
    // Bytes of slots in use: 128 x 16 KiB x 4.
    let bound = 128;
    let variants = [
        ("as it was", Order::Fifo, NO_BOUND, false),
        (
            "prompt completions, LIFO (the paper's remedy)",
            Order::Lifo,
            NO_BOUND,
            true,
        ),
        (
            "8 MiB in use, prompt completions, FIFO",
            Order::Fifo,
            bound,
            true,
        ),
        (
            "8 MiB in use, prompt completions, LIFO",
            Order::Lifo,
            bound,
            true,
        ),
        (
            "4 MiB in use, prompt completions, LIFO",
            Order::Lifo,
            bound / 2,
            true,
        ),
    ];
    sink(&head(
        "Atlas 2017 | plaintext, 2,000 | plaintext, full | TLS, full | TLS, LRU | TLS, random",
    ))?;
    for (name, order, bound, is_prompt) in variants {
        let case = |protocol, connections, replacement| {
            let mut case = on_paper_machine(atlas_2017(protocol), 4, connections);
            (case.server.order, case.server.bound) = (order, bound);
            case.machine = case.machine.with_replacement(replacement);
            if is_prompt {
                (case.server.poll_us, case.server.sends_in_batches) = (5.0, false);
            }
            case
        };
        let cases = [
            case(Protocol::Plaintext, 2_000, Replacement::Srrip),
            case(Protocol::Plaintext, 8_000, Replacement::Srrip),
            case(Protocol::Tls, 8_000, Replacement::Srrip),
            case(Protocol::Tls, 8_000, Replacement::Lru),
            case(Protocol::Tls, 8_000, Replacement::Random),
        ];
        let mut cells = vec![name.to_owned()];
        cells.extend(cases.iter().map(run));
        sink(&row(&cells))?;
    }
    Ok(())
}

/// This project's pipeline on the paper's machine, by what is in use and where.
fn bound(sink: &mut Sink<'_>) -> io::Result<()> {
    sink(&head(
        "Slots of each worker | plaintext, one colour | two colours | TLS, one colour | two colours | 72 KiB apart | two colours, FIFO | cores full (18.8) | 8 of 20 ways, plaintext",
    ))?;
    for bound in [NO_BOUND, 68, 34, 17] {
        let case = |protocol, layout| {
            let mut case = on_paper_machine(atlas_bounded(protocol, bound), 4, 16_000);
            case.server.layout = layout;
            case
        };
        let tls = case(Protocol::Tls, Layout::TWO_COLOURS);
        let mut fifo = tls;
        fifo.server.order = Order::Fifo;
        let mut busy = tls;
        busy.server.core_gbps = 18.8;
        let mut ways = case(Protocol::Plaintext, Layout::TWO_COLOURS);
        ways.machine = Machine::haswell(8);
        let cases = [
            case(Protocol::Plaintext, Layout::LENT),
            case(Protocol::Plaintext, Layout::TWO_COLOURS),
            case(Protocol::Tls, Layout::LENT),
            tls,
            case(Protocol::Tls, Layout::ARENA),
            fifo,
            busy,
            ways,
        ];
        let bytes = f64::from(bound.min(512)) * 4.0 * f64::from(tls.server.read_bytes) / 1e6;
        let name = if bound == NO_BOUND {
            "512 (no bound)".into()
        } else {
            bound.to_string()
        };
        let mut cells = vec![format!("{name}: {bytes:.0} MB")];
        cells.extend(cases.iter().map(run));
        sink(&row(&cells))?;
    }
    Ok(())
}

/// Eight cores, disks and NICs of 200 Gb/s.
const FAST: Hardware = Hardware {
    workers: 8,
    disks: 8,
    disk_gbps: 50.0,
    disk_us: 80.0,
    nics: 2,
    nic_gbps: 98.0,
    ring_bytes: 4 << 20,
};

/// Machines that are sold today, at 73 and 196 Gb/s.
fn machines(sink: &mut Sink<'_>) -> io::Result<()> {
    sink(&head(
        "Machine | In use | plaintext, 73 Gb/s | TLS, 73 Gb/s | plaintext, 196 Gb/s | TLS, 196 Gb/s",
    ))?;
    let machines = [
        ("Intel, 2 of 16 ways", Machine::intel_victim(2)),
        ("Intel, 8 of 16 ways", Machine::intel_victim(8)),
        ("AMD, no injection", Machine::amd()),
        ("AMD SDCI, 16 of 16 ways", Machine::amd_sdci(16)),
    ];
    for (mut name, machine) in machines {
        // Bytes in use of all workers, of 4 and of 8.
        for (in_use, bounds) in [
            ("no bound", [NO_BOUND; 2]),
            ("16.7 MB", [68, 34]),
            ("8.4 MB", [34, 17]),
        ] {
            let mut cells = vec![std::mem::take(&mut name).to_owned(), in_use.to_owned()];
            for (hardware, bound, core) in [
                (paper_hardware(4), bounds[0], 25.0),
                (FAST, bounds[1], 30.0),
            ] {
                for protocol in [Protocol::Plaintext, Protocol::Tls] {
                    let mut server = match bound {
                        NO_BOUND => atlas(protocol),
                        _ => atlas_bounded(protocol, bound),
                    };
                    if protocol == Protocol::Tls {
                        server.core_gbps = core;
                    }
                    let load = paper_load(16_000);
                    cells.push(run(&Case {
                        server,
                        load,
                        hardware,
                        machine,
                    }));
                }
            }
            sink(&row(&cells))?;
        }
    }
    Ok(())
}
