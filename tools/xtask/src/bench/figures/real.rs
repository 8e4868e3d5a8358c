//! Serving from the machine's own disk: few connections, a cold cache.
//!
//! Such a disk is slower than a core, so Gb/s tell of the disk, and the core-seconds each GB costs
//! tell of the server. What cannot be measured is told. Bounded by: [`OBJECTS`].

use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;

use super::aims::times;
use super::disks::REAL_DISK;
use super::page::table;
use super::plan::{Cache, OBJECT_BYTES, Plan, Wishes};
use super::summary::{Comparison, Point};
use crate::bench::disk::{ObjectDirectory, Objects};
use crate::bench::lab::Contender;
use crate::bench::real_disk::{RealDisk, describe};
use testbed::interrupt;
use testbed::rivals::NginxMode;

/// Clients, without distance.
const CONNECTIONS: u64 = 64;

/// Objects: 2 GB, which outlast what is cached of them.
const OBJECTS: u64 = 6_500;

/// From so much of a core on it is full.
const FULL: f64 = 0.9;

/// So much of what the disk gave without a server counts as all it gives.
const SATURATION: f64 = 0.8;

/// What serving from it showed.
#[derive(Clone, Default, Debug, Serialize)]
pub(super) struct Figures {
    /// The block device and its driver.
    pub(super) device: String,
    pub(super) points: Vec<Point>,
    pub(super) comparisons: Vec<Comparison>,
    /// Why there are none.
    pub(super) refusal: Option<String>,
}

impl Figures {
    pub(super) fn refused(why: String) -> Self {
        Self {
            refusal: Some(why),
            ..Self::default()
        }
    }

    pub(super) fn new(device: &str, points: Vec<Point>) -> Self {
        Self {
            device: describe(device),
            comparisons: super::summary::compare(&points, Contender::ATLAS),
            points,
            refusal: None,
        }
    }
}

/// Plain and over TLS, cold; as many rounds as `whole` has.
pub(super) fn plan(whole: &Plan, is_quick: bool, all: &[Contender]) -> Plan {
    let wishes = Wishes {
        is_quick,
        rounds: Some(whole.rounds()),
        connections: &[CONNECTIONS],
        is_chosen: true,
    };
    let mut plan = Plan::new(wishes, &contenders(all));
    plan.visits.retain(|it| it.cell.cache == Cache::Cold);
    for visit in &mut plan.visits {
        visit.cell.objects = OBJECTS;
    }
    plan
}

/// Of the servers of the bench, Atlas and nginx with threads: without them it waits for the disk.
fn contenders(all: &[Contender]) -> Vec<Contender> {
    let takes_part = |it: &&Contender| {
        matches!(
            it,
            Contender::Atlas(_)
                | Contender::Nginx(NginxMode::SendfileThreads | NginxMode::DirectioThreads)
        )
    };
    all.iter().filter(takes_part).cloned().collect()
}

/// Writes the objects, or says why not. Only an interrupt is an error: what the bench has found
/// until then is to be reported.
pub(super) fn fill(real: &Result<RealDisk>, count: u64) -> Result<Result<ObjectDirectory, String>> {
    let real = match real {
        Ok(real) => real,
        Err(error) => return Ok(Err(format!("{error:#}"))),
    };
    let objects = Objects {
        count,
        bytes: OBJECT_BYTES,
    };
    eprintln!("writing {count} objects to the {REAL_DISK}");
    let root = real.path().to_path_buf();
    let filled = ObjectDirectory::fill(root, objects, real.device().to_owned());
    interrupt::check()?;
    Ok(filled.map_err(|error| format!("{error:#}")))
}

/// The page's section. `disk_gbps` is what the disk gives to one who only reads, if that is known.
pub(super) fn section(figures: &Figures, disk_gbps: Option<f64>) -> String {
    let mut out = String::from("\n## Serving from the machine's own disk\n");
    if let Some(refusal) = &figures.refusal {
        let _ = writeln!(out, "Not measured: {refusal}");
        return out;
    }
    let _ = writeln!(
        out,
        "{}: cold, without distance. Where the disk bounds, Gb/s are its; \
         `core-s/GB` are the server's.\n\n```text\n{}```\n",
        figures.device,
        table(&figures.points)
    );
    for point in &figures.points {
        if point.server == Contender::ATLAS && !point.runs.is_empty() {
            let _ = writeln!(out, "* {}", bound(point, disk_gbps));
        }
    }
    for it in &figures.comparisons {
        let _ = writeln!(
            out,
            "* {}: {} the Gb/s of {}, {} the work per core-second of {}",
            it.cell.security.title(),
            times(&it.gbps),
            it.fastest_rival,
            times(&it.work_per_core_second),
            it.thriftiest_rival
        );
    }
    out
}

/// What bounds a server there, as far as the figures tell.
fn bound(point: &Point, disk_gbps: Option<f64>) -> String {
    let gbps = point.gbps.median;
    let server = point.server_core_busy.median;
    let client = point.runs.iter().map(|run| run.client_core_busy);
    let client = client.reduce(f64::max).unwrap_or(0.0);
    let (disk, is_saturated) = disk_gbps.map_or_else(
        || ("what the disk gives is not known".to_owned(), false),
        |most| {
            let disk = format!("read alone the disk gives {most:.2}");
            (disk, gbps >= SATURATION * most)
        },
    );
    let bound = if server >= FULL {
        "the server's core bounds"
    } else if client >= FULL {
        "the client's core bounds"
    } else if is_saturated {
        "the disk bounds"
    } else {
        "neither core is full, nor is the disk"
    };
    format!(
        "{}: {} at {gbps:.2} Gb/s with {:.0} % of its core and {:.0} % of the client's; {disk}: \
         {bound}",
        point.cell.security.title(),
        point.server,
        100.0 * server,
        100.0 * client,
    )
}

#[cfg(test)]
mod tests {
    use super::super::summary::tests::point;
    use super::*;

    fn all() -> Vec<Contender> {
        let ours = [
            Contender::Atlas("a".into()),
            Contender::AtlasEmulated("a".into()),
        ];
        let rivals = NginxMode::ALL.map(Contender::Nginx);
        ours.into_iter().chain(rivals).collect()
    }

    #[test]
    fn all_is_cold_and_fits_the_disk() {
        for is_quick in [true, false] {
            let wishes = Wishes {
                is_quick,
                ..Wishes::default()
            };
            let whole = Plan::new(wishes, &all());
            let plan = plan(&whole, is_quick, &all());
            assert_eq!(plan.visits.len(), 2);
            assert_eq!(plan.rounds(), whole.rounds());
            for visit in &plan.visits {
                assert_eq!(visit.cell.cache, Cache::Cold);
                let names: Vec<_> = visit.contenders.iter().map(Contender::name).collect();
                assert_eq!(
                    names,
                    ["atlas", "nginx-sendfile-threads", "nginx-directio-threads"]
                );
            }
            assert!(plan.objects() * OBJECT_BYTES <= 2_000_000_000);
        }
    }

    #[test]
    fn what_bounds_is_read_off_the_figures() {
        // Both cores of the point are half busy.
        let mut point = point("atlas", 8.0, 0.5);
        assert!(bound(&point, Some(10.0)).ends_with("the disk bounds"));
        assert!(bound(&point, Some(10.1)).ends_with("nor is the disk"));
        assert!(bound(&point, None).contains("not known: neither"));
        point.runs[0].client_core_busy = FULL;
        assert!(bound(&point, Some(10.0)).ends_with("the client's core bounds"));
        point.server_core_busy.median = FULL;
        assert!(bound(&point, Some(10.0)).ends_with("the server's core bounds"));
    }

    #[test]
    fn the_section_compares_or_says_why_not() {
        let points = vec![
            point("atlas", 8.0, 0.2),
            point("nginx-directio-threads", 8.0, 0.4),
        ];
        let figures = Figures {
            comparisons: super::super::summary::compare(&points, Contender::ATLAS),
            points,
            ..Figures::default()
        };
        let told = section(&figures, None);
        assert!(
            told.contains("the work per core-second of nginx-directio"),
            "{told}"
        );
        let refused = Figures::refused("no disk".to_owned());
        assert!(section(&refused, None).contains("Not measured: no disk"));
    }
}
