//! One turn of one server at one cell: started, loaded, checked, ended.
//!
//! The turn fails if a reply is wrong, a connection breaks, a cold run reads less from the disk
//! than it serves, a warm rival reads from it, or a byte of the sample differs. One that somebody
//! else disturbed is taken again. Bounded by: [`RETAKES_MAX`],
//! and what the plan has left of such turns.

use std::cell::Cell as Shared;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use ::load::{Report, Suite, Version};
use anyhow::{Context as _, Result, bail, ensure};

use super::middlebox::Middlebox;
use super::plan::{Cache, Cell, FORGET_TIMES, OBJECT_BYTES, Security};
use super::summary::Run;
use crate::bench::disk::{Forgetting, Objects, cache_drops, drop_caches, read_bytes};
use crate::bench::lab::{CLIENT_CORE, Contender, Lab, stop};
use crate::bench::load::{Cost, Likeness, Load, Window};

/// Passes over a warm set until one finds all of it cached: two, if nobody else wants memory.
const WARM_PASSES_MAX: u32 = 5;

/// How often a turn is taken again that somebody else disturbs.
const RETAKES_MAX: u32 = 2;

/// What the hypervisor may take of a core in a window without disturbing it. While it finds memory
/// for a bench disk just made, it took 2 to 7 % of a core in each of the first five windows, and Atlas
/// made 10 to 16 Gb/s instead of the 16 to 19 of a disk that had stood for half an hour.
pub(super) const STOLEN_SHARE_MAX: f64 = 0.02;

/// How often a turn empties the page cache itself.
const OWN_CACHE_DROPS: u64 = 1;

/// Objects that Atlas may have open in a cold run beside one for each connection.
const SPARE_OBJECTS: u64 = 256;

/// What the page cache may lack of a warm set: its files' metadata and stray evictions.
const WARM_READ_SHARE_MAX: f64 = 0.02;

/// What turns have in common.
pub(super) struct Turns<'a> {
    pub(super) lab: &'a Lab,
    /// `atlas-bench`.
    pub(super) instruments: &'a Path,
    /// Where lists of URLs are written.
    pub(super) directory: &'a Path,
    /// So many turns may still be taken again.
    pub(super) retakes: &'a Shared<usize>,
}

impl Turns<'_> {
    /// One turn; another if somebody else disturbed it, whoever's it is.
    pub(super) fn run(&self, contender: &Contender, cell: &Cell) -> Result<Run> {
        let mut retaken = 0;
        loop {
            let before = cache_drops()?;
            let run = self.turn(contender, cell);
            let drops = cache_drops()? - before;
            let Some(why) = disturbance(cell.cache, &run, drops) else {
                return run;
            };
            let left = self.retakes.get();
            if retaken == RETAKES_MAX || left == 0 {
                return run;
            }
            self.retakes.set(left - 1);
            retaken += 1;
            eprintln!("{why}: {} again", contender.name());
        }
    }

    fn turn(&self, contender: &Contender, cell: &Cell) -> Result<Run> {
        let (server, address) = self.lab.start(contender, &self.arguments(cell)?)?;
        drop_caches()?;
        if cell.cache == Cache::Warm {
            self.warm(cell.objects)?;
        }
        let middlebox = cell
            .is_distant
            .then(|| Middlebox::start(self.instruments, &self.lab.cable.client))
            .transpose()?;
        let load = self.load(cell, address);
        let is_cold = cell.cache == Cache::Cold;
        let forget_each = cell.objects * OBJECT_BYTES / FORGET_TIMES;
        let forgetting = is_cold
            .then(|| Forgetting::start(CLIENT_CORE, &self.lab.disk, cell.objects, forget_each))
            .transpose()?;
        let window = load.run(amount(cell))?;
        drop(forgetting);
        let delay = middlebox.map(Middlebox::stop).transpose()?;
        // Emulated sealing must change them all.
        let verified = load.verify(match contender {
            Contender::AtlasEmulated(_) => Likeness::Sealed,
            _ => Likeness::Same,
        })?;
        let counters = match contender {
            Contender::Atlas(_) | Contender::AtlasBaseline(_) | Contender::AtlasEmulated(_) => {
                Some(stop(server)?.summary()?)
            }
            // How rivals end is not measured: some call it a failure to have connections then,
            // some wait for them to go.
            Contender::Nginx(_) | Contender::Peer(_) => {
                drop(server);
                None
            }
        };
        let run = Run {
            delay,
            counters,
            ..figures(window, verified)?
        };
        check_reads(contender, cell, &run)?;
        Ok(run)
    }

    /// What Atlas is told: in a cold run it has no objects open but those being sent.
    fn arguments(&self, cell: &Cell) -> Result<String> {
        if cell.cache == Cache::Warm {
            return Ok(String::new());
        }
        let file = self.directory.join("atlas.toml");
        let objects = cell.connections + SPARE_OBJECTS;
        fs::write(&file, format!("objects_max = {objects}\n"))?;
        Ok(format!("--config {}", file.display()))
    }

    /// Reads the set into the page cache, and shows that it stayed there.
    fn warm(&self, objects: u64) -> Result<()> {
        let read_all = || {
            (0..objects).try_for_each(|index| {
                let path = self.lab.disk.root.join(&Objects::path(index)[1..]);
                let read = fs::read(&path).with_context(|| format!("reading {path:?}"))?;
                ensure!(read.len() as u64 == OBJECT_BYTES, "{path:?} is short");
                Ok(())
            })
        };
        for _ in 0..WARM_PASSES_MAX {
            let before = read_bytes(&self.lab.disk.device)?;
            read_all()?;
            if read_bytes(&self.lab.disk.device)? == before {
                return Ok(());
            }
        }
        bail!("the objects do not stay in the page cache, {WARM_PASSES_MAX} times read");
    }

    /// What is asked at a cell.
    fn load(&self, cell: &Cell, server: SocketAddr) -> Load<'_> {
        Load {
            lab: self.lab,
            instruments: self.instruments,
            directory: self.directory,
            server,
            objects: cell.objects,
            connections: cell.connections,
            tls: match cell.security {
                Security::Plain => None,
                Security::Tls => Some((Version::Tls13, Suite::Aes128Gcm)),
            },
        }
    }
}

/// How much of it.
fn amount(cell: &Cell) -> [String; 2] {
    [
        format!("--warm-up={}", cell.warm_up_seconds),
        format!("--seconds={}", cell.window_seconds),
    ]
}

/// The figures of a window, and all else a run tells of.
fn figures(window: Window, verified: u64) -> Result<Run> {
    let cost = Cost::new(&window.report)?;
    Ok(Run {
        round: 0,
        gbps: cost.gbps,
        core_seconds_per_gb: cost.core_seconds_per_gb,
        all_core_seconds_per_gb: cost.all_core_seconds_per_gb,
        server_core_busy: cost.server_core_busy,
        client_core_busy: cost.client_core_busy,
        stolen_share: stolen_share(&window.report),
        disk_read_bytes: window.disk_read_bytes,
        verified,
        load: window.report,
        delay: None,
        counters: None,
    })
}

/// What the hypervisor took of the core it took most of, as a share of the window.
fn stolen_share(report: &Report) -> f64 {
    let stolen = report.cores.iter().map(|core| core.steal / report.seconds);
    stolen.reduce(f64::max).unwrap_or(0.0)
}

/// How somebody else disturbed a turn in which the page cache was dropped so often.
fn disturbance(cache: Cache, run: &Result<Run>, cache_drops: u64) -> Option<&'static str> {
    match run {
        Err(_) if cache == Cache::Warm && cache_drops > OWN_CACHE_DROPS => {
            Some("somebody else dropped the page cache")
        }
        Ok(run) if run.stolen_share > STOLEN_SHARE_MAX => Some("the hypervisor took the cores"),
        Ok(_) | Err(_) => None,
    }
}

/// Cold runs read all they serve; rivals in warm ones next to nothing.
#[expect(
    clippy::cast_precision_loss,
    reason = "bytes of one run are far below 2^52"
)]
fn check_reads(contender: &Contender, cell: &Cell, run: &Run) -> Result<()> {
    let served = run.load.warm_up_body_bytes + run.load.body_bytes;
    let share = run.disk_read_bytes as f64 / served as f64;
    match cell.cache {
        Cache::Cold => ensure!(
            share >= 1.0 - WARM_READ_SHARE_MAX,
            "only {} of the {served} bytes served, {} in a window of {:.1} s, came from the disk",
            run.disk_read_bytes,
            run.load.body_bytes,
            run.load.seconds
        ),
        Cache::Warm if contender.is_ours() => {}
        Cache::Warm => ensure!(
            share <= WARM_READ_SHARE_MAX,
            "{share:.3} of what was served came from the disk, and should have been cached"
        ),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::cells;
    use super::*;
    use crate::bench::load::tests::report;

    #[test]
    fn cold_runs_must_read_and_warm_rivals_must_not() {
        let run = |disk_read_bytes| {
            let window = Window {
                report: report(2.0, 1_000_000_000, [0.5, 1.0]),
                disk_read_bytes,
            };
            figures(window, 64).expect("a whole report")
        };
        let (all, nothing) = (run(1_000_000_000), run(0));
        let atlas = Contender::Atlas("atlas".into());
        let peer = Contender::Peer(testbed::rivals::Peer::H2o);
        let check = |contender: &Contender, cache, run: &Run| {
            check_reads(contender, &cells(Security::Plain, cache)[0], run)
        };
        check(&peer, Cache::Cold, &all).expect("cold");
        check(&peer, Cache::Cold, &nothing).expect_err("it was cached");
        check(&peer, Cache::Warm, &nothing).expect("warm");
        check(&peer, Cache::Warm, &all).expect_err("it was not cached");
        check(&atlas, Cache::Warm, &all).expect("we always read");
    }

    #[test]
    fn the_hypervisor_disturbs_by_more_than_its_share_of_either_core() {
        let run = |stolen: [f64; 2]| {
            let mut report = report(4.0, 1_000_000_000, [1.0, 1.0]);
            for (core, steal) in report.cores.iter_mut().zip(stolen) {
                core.steal = steal;
            }
            let window = Window {
                report,
                disk_read_bytes: 0,
            };
            figures(window, 64)
        };
        let most = 4.0 * STOLEN_SHARE_MAX;
        for (stolen, is_disturbed) in [
            ([most, most], false),
            ([most + 0.01, 0.0], true),
            ([0.0, most + 0.01], true),
        ] {
            for cache in [Cache::Cold, Cache::Warm] {
                let found = disturbance(cache, &run(stolen), OWN_CACHE_DROPS);
                assert_eq!(found.is_some(), is_disturbed, "{stolen:?}");
            }
        }
    }

    #[test]
    fn a_dropped_page_cache_excuses_a_warm_failure_only() {
        let failed = || Err(anyhow::anyhow!("it came from the disk"));
        let drops = OWN_CACHE_DROPS;
        assert!(disturbance(Cache::Warm, &failed(), drops + 1).is_some());
        assert!(disturbance(Cache::Warm, &failed(), drops).is_none());
        assert!(disturbance(Cache::Cold, &failed(), drops + 1).is_none());
    }
}
