//! How often a byte crosses the memory bus between disk and NIC: `cargo xtask sim --memory`.
//!
//! The product's own workers serve chunks of video over the paper's hardware ([`run`]): four disks and two ports of 40
//! GbE that four cores keep up with. What disks, cores and the NIC do to slots is replayed through the caches of several
//! machines ([`llc`]), and printed as tables beside what the paper measured.
//!
//! Cores are no particular machine's: their costs are chosen so that 73 Gb/s take a given part of their time. It refuses
//! to let DRAM slow anything down. Bounded by [`CONNECTIONS`], the window of a run, and the seeds asked for.

mod client;
mod metered;
mod run;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use clock::Duration;
use llc::layout::Layout;
use llc::machine::{DeviceWrites, Machine};
use llc::replay::{Replay, Report};
use llc::trace::Touch;

use metered::Costs;
use run::Outcome;

/// Workers, each on a core (the paper's figures 11 and 13).
const WORKERS: u8 = 4;
/// Disks.
const DISKS: u32 = 4;
/// Rate of a disk, bits per second: an Intel P3700's 2,800 MB/s.
const DISK_BITS: u64 = 22_400_000_000;
/// Latency of a read beside its transfer, microseconds. With this and the rate, reads of 16 KiB take 0.75 ms with 128 of
/// them in flight and 3 ms with 512 (the paper's figure 6).
const DISK_US: u64 = 90;
/// What the paper measured.
const CONNECTIONS: [u32; 4] = [2_000, 4_000, 8_000, 16_000];
/// Slots of each worker: far more than it should have in use.
const SLOTS: u32 = 512;
/// From the first requests until what is measured begins: clients' windows are as large as they will be, and their first
/// objects, which all began together, are over. Before, windows grow by what has arrived, so that who has sent a
/// little less for a moment has smaller reads from then on, and dearer bytes.
const WARM_UP: Duration = Duration::from_millis(800);
/// How long rates are measured.
const RATES_WINDOW: Duration = Duration::from_millis(150);
/// Before what is replayed is counted, so that caches hold what they will: several times what fills them.
const REPLAY_WARM_UP: Duration = Duration::from_millis(20);
/// So much of the window is replayed.
const REPLAY: Duration = Duration::from_millis(40);
/// A slot on its way to the NIC has so many bytes more than the disk brought, at most: headers and tags of its records.
const RECORDS_ROOM_BYTES: u32 = 512;

/// What is simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Case {
    connections: u32,
    is_secure: bool,
    /// Of all cores' time, percent, that 73 Gb/s take in long rounds. With 98 they are nearly full.
    core_percent: u64,
    /// Latency of a read beside its transfer, microseconds.
    disk_us: u64,
    /// Slots of a worker.
    slots: u32,
    /// From the first requests until what is measured begins, and how long that is.
    warm_up: Duration,
    window: Duration,
}

impl Case {
    /// The paper's, with cores that have a fifth of their time left.
    const fn paper(connections: u32, is_secure: bool) -> Self {
        Self {
            connections,
            is_secure,
            core_percent: 80,
            disk_us: DISK_US,
            slots: SLOTS,
            warm_up: WARM_UP,
            window: Duration::from_millis(65),
        }
    }

    /// What a core does costs what is usual on a machine of 3 GHz `[guess]`; the rest of the time is for the bytes. 73
    /// Gb/s are 438 ps for each byte of a core's; with reads of 55 KB, what is not for bytes comes to 55 ps.
    const fn costs(&self) -> Costs {
        Costs {
            round_ns: 1_000,
            received_frame_ns: 300,
            read_ns: 1_000,
            sent_frame_ns: 1_500,
            byte_ps: self.core_percent * 438 / 100 - 55,
        }
    }

    fn name(&self) -> &'static str {
        if self.is_secure { "TLS" } else { "plaintext" }
    }
}

/// A machine and how slots lie in its memory.
type Place = (Machine, Layout);

/// What a case came to.
#[derive(Clone, Debug)]
struct Measured {
    gigabits: f64,
    /// In slots in use, of all workers.
    megabytes: f64,
    loan_us: f64,
    /// Of a read, mean.
    read_kilobytes: f64,
    rounds_per_read: f64,
    busy_percent: f64,
    /// By place.
    reports: Vec<Report>,
}

/// Writes the tables of docs/memory.md, of the means over some seeds; an error if bytes do not add up.
pub(crate) fn write_tables(out: &mut String, seeds: &Range<u64>, jobs: usize) -> io::Result<()> {
    let cases: Vec<Case> = [false, true]
        .into_iter()
        .flat_map(|is_secure| CONNECTIONS.map(|connections| Case::paper(connections, is_secure)))
        .collect();
    let places = PLACES;
    let of_case = |case: &Case| match case.connections {
        16_000 => &places[..],
        _ => &places[..2],
    };
    let all = measure_all(&cases, seeds, jobs, of_case)?;
    let written = write_figures(out, &cases, &all);
    written
        .and_then(|()| write_machines(out, &places, &cases, &all))
        .map_err(io::Error::other)
}

/// The paper's machine first, in both layouts. The others are in the product's.
const PLACES: [Place; 8] = [
    (Machine::haswell(2), Layout::LENT),
    (Machine::haswell(2), Layout::TWO_COLOURS),
    (Machine::haswell(8), Layout::TWO_COLOURS),
    (Machine::intel_victim(2), Layout::TWO_COLOURS),
    (Machine::intel_victim(8), Layout::TWO_COLOURS),
    (Machine::amd(), Layout::TWO_COLOURS),
    (Machine::amd_sdci(2), Layout::TWO_COLOURS),
    (Machine::amd_sdci(16), Layout::TWO_COLOURS),
];

/// Each case with each seed, on a few threads.
fn measure_all<'a>(
    cases: &[Case],
    seeds: &Range<u64>,
    jobs: usize,
    places: impl Fn(&Case) -> &'a [Place] + Sync,
) -> io::Result<Vec<Vec<Measured>>> {
    let runs = cases.iter().enumerate();
    let runs = runs.flat_map(|(place, case)| seeds.clone().map(move |seed| (place, case, seed)));
    let runs = Mutex::new(runs);
    let all = Mutex::new(vec![Vec::new(); cases.len()]);
    let next = || runs.lock().unwrap_or_else(PoisonError::into_inner).next();
    let run = || -> io::Result<()> {
        while let Some((place, case, seed)) = next() {
            let measured = measure(case, seed, places(case))?;
            all.lock().unwrap_or_else(PoisonError::into_inner)[place].push(measured);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(run)).collect();
        let ends = threads.into_iter().map(|it| it.join().expect("no panic"));
        ends.collect::<io::Result<()>>()
    })?;
    Ok(all.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn measure(case: &Case, seed: u64, places: &[Place]) -> io::Result<Measured> {
    let outcome = run::simulate(case, seed);
    if let Some(violation) = outcome.violations.iter().chain(&check(&outcome)).next() {
        return Err(io::Error::other(format!(
            "{case:?}, seed {seed}: {violation}"
        )));
    }
    let nanos = case.window.as_nanos() as f64;
    Ok(Measured {
        gigabits: outcome.payload_bytes as f64 * 8.0 / nanos,
        megabytes: outcome.slots_mean * f64::from(WORKERS) * outcome.read_bytes as f64 / 1e6,
        loan_us: outcome.loan_ns as f64 / 1e3,
        read_kilobytes: outcome.read_bytes as f64 / 1e3,
        rounds_per_read: outcome.rounds_per_read,
        busy_percent: outcome.busy * 100.0,
        reports: (places.iter())
            .map(|place| replay(&outcome, *place, seed))
            .collect(),
    })
}

fn replay(outcome: &Outcome, (machine, layout): Place, seed: u64) -> Report {
    let mut replay = Replay::new(machine, layout, seed);
    let from = outcome.from;
    let begins_at = (from + REPLAY_WARM_UP).as_nanos();
    let ends_at = (from + REPLAY_WARM_UP + REPLAY).as_nanos();
    let mut sent_bytes = None;
    for event in &outcome.events {
        if !(from.as_nanos()..ends_at).contains(&event.at_ns) {
            continue;
        }
        if sent_bytes.is_none() && event.at_ns >= begins_at {
            replay.restart_counting();
            sent_bytes = Some(0);
        }
        replay.take(event);
        if let (Some(sent_bytes), Touch::NicRead) = (&mut sent_bytes, event.touch) {
            *sent_bytes += u64::from(event.bytes);
        }
    }
    replay.report(sent_bytes.unwrap_or_default())
}

/// What is wrong with the events: a NIC may read only what a disk has brought into that slot, and has to read most of
/// what leaves there.
fn check(outcome: &Outcome) -> Option<String> {
    let mut brought = BTreeMap::new();
    for event in &outcome.events {
        let slot = (event.worker, event.slot);
        match event.touch {
            Touch::DiskWrite => {
                brought.insert(slot, event.bytes);
            }
            Touch::Seal | Touch::NicRead => {
                let end = event.offset_bytes + event.bytes;
                let room = brought.get(&slot).map(|bytes| bytes + RECORDS_ROOM_BYTES);
                if room.is_none_or(|room| end > room) {
                    return Some(format!("{event:?} of bytes that no disk has brought"));
                }
            }
        }
    }
    None
}

/// The mean, and the least and the most if there are several.
fn mean(values: impl Iterator<Item = f64> + Clone, digits: usize) -> String {
    let count = values.clone().count();
    let sum: f64 = values.clone().sum();
    let least = values.clone().fold(f64::MAX, f64::min);
    let most = values.fold(f64::MIN, f64::max);
    let mean = sum / count as f64;
    if count == 1 {
        return format!("{mean:.digits$}");
    }
    format!("{mean:.digits$} ({least:.digits$}-{most:.digits$})")
}

/// Read and written of a place.
fn traffic(runs: &[Measured], place: usize) -> String {
    let read = mean(runs.iter().map(|it| it.reports[place].read), 2);
    let written = mean(runs.iter().map(|it| it.reports[place].written), 2);
    format!("{read}/{written}")
}

/// The paper's figures 11 and 13.
fn write_figures(out: &mut String, cases: &[Case], all: &[Vec<Measured>]) -> fmt::Result {
    writeln!(
        out,
        "| | connections | Gb/s | slots in use, MB | loan, us | paper's read | one colour | two colours |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|"
    )?;
    for (case, runs) in cases.iter().zip(all) {
        let paper = match (case.is_secure, case.connections) {
            (false, 2_000) => "0.65",
            (false, _) => "1.05",
            (true, 2_000) => "-",
            (true, _) => "1.53",
        };
        writeln!(
            out,
            "| {} | {} | {} | {} | {} | {paper} | {} | {} |",
            case.name(),
            case.connections,
            mean(runs.iter().map(|it| it.gigabits), 1),
            mean(runs.iter().map(|it| it.megabytes), 1),
            mean(runs.iter().map(|it| it.loan_us), 0),
            traffic(runs, 0),
            traffic(runs, 1),
        )?;
    }
    writeln!(out)
}

/// The most connections on other machines.
fn write_machines(
    out: &mut String,
    places: &[Place],
    cases: &[Case],
    all: &[Vec<Measured>],
) -> fmt::Result {
    let shown = cases.iter().zip(all);
    let shown: Vec<_> = shown
        .filter(|(case, _)| case.connections == 16_000)
        .collect();
    write!(out, "| 16,000 connections, two colours |")?;
    for (case, _) in &shown {
        write!(out, " {} |", case.name())?;
    }
    writeln!(out, "\n|---|{}", "---:|".repeat(shown.len()))?;
    for (place, (machine, _)) in places.iter().enumerate().skip(1) {
        write!(out, "| {} |", machine_name(machine))?;
        for (_, runs) in &shown {
            write!(out, " {} |", traffic(runs, place))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn machine_name(machine: &Machine) -> String {
    match machine.device_writes {
        DeviceWrites::Allocate { ways } => {
            format!("{}, {ways} of {} ways", machine.name, machine.ways)
        }
        DeviceWrites::Bypass => machine.name.to_owned(),
    }
}

/// What a bound on slots may cost: rates with slower and faster disks and cores.
pub(crate) fn print_rates(out: &mut impl Write, seeds: &Range<u64>, jobs: usize) -> io::Result<()> {
    let mut cases = Vec::new();
    for is_secure in [false, true] {
        for core_percent in [80, 98] {
            for disk_us in [20, 100, 500] {
                cases.extend(CONNECTIONS.map(|connections| Case {
                    core_percent,
                    disk_us,
                    window: RATES_WINDOW,
                    ..Case::paper(connections, is_secure)
                }));
            }
        }
    }
    let all = measure_all(&cases, seeds, jobs, |_| &[])?;
    writeln!(
        out,
        "Gb/s; MB of slots in use; KB of a read; rounds for each read; percent of their time that cores work:\n"
    )?;
    write!(out, "| | cores | disks |")?;
    for connections in CONNECTIONS {
        write!(out, " {connections} |")?;
    }
    writeln!(
        out,
        "\n|---|---:|---:|{}",
        "---:|".repeat(CONNECTIONS.len())
    )?;
    let rows = cases
        .chunks(CONNECTIONS.len())
        .zip(all.chunks(CONNECTIONS.len()));
    for (row, runs) in rows {
        let case = row[0];
        let (name, percent, us) = (case.name(), case.core_percent, case.disk_us);
        write!(out, "| {name} | {percent} % | {us} us |")?;
        for runs in runs {
            let gigabits = mean(runs.iter().map(|it| it.gigabits), 1);
            let megabytes = mean(runs.iter().map(|it| it.megabytes), 0);
            let kilobytes = mean(runs.iter().map(|it| it.read_kilobytes), 0);
            let rounds = mean(runs.iter().map(|it| it.rounds_per_read), 2);
            let busy = mean(runs.iter().map(|it| it.busy_percent), 0);
            write!(
                out,
                " {gigabits}; {megabytes}; {kilobytes}; {rounds}; {busy} |"
            )?;
        }
        writeln!(out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_disk_cores_and_nic_add_up() {
        for is_secure in [false, true] {
            let case = Case {
                slots: 64,
                warm_up: Duration::from_millis(120),
                ..Case::paper(200, is_secure)
            };
            let measured = measure(&case, 1, &PLACES[..1]).expect("all adds up");
            assert!(measured.gigabits > 10.0, "{measured:?}");
        }
    }
}
