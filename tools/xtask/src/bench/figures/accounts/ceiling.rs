//! The most these two cores could do, from what each stage costs alone. Pure.
//!
//! Every byte must be read and written on the server's core, over TLS sealed there too; on the
//! client's it must be copied for the bench disk and received. A core that is always busy and does
//! nothing else passes 8 / (the sum of its seconds per GB) Gb/s; the ceiling is the lesser of the
//! two, or the disk's own rate. Deciding what to send, parsing requests, looking files up, the
//! client's kernel TCP (on the server's core, where the cable puts it), the load's own work and the
//! middlebox are in none of the stages: so it is a bound, not a promise.

use std::fmt::Write as _;

use serde::Serialize;

use super::stages::Stages;
use crate::bench::figures::aims::{CEILING_SHARE_MIN, LEAD_MIN, thousands};
use crate::bench::figures::plan::{Cache, Cell, Security};
use crate::bench::figures::summary::{Point, Spread};

/// What limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Bound {
    ServerCore,
    ClientCore,
    Disk,
}

impl Bound {
    fn name(self) -> &'static str {
        match self {
            Self::ServerCore => "server's core",
            Self::ClientCore => "client's core",
            Self::Disk => "disk",
        }
    }
}

/// The most for one kind of security.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Ceiling {
    pub(super) gbps: f64,
    bound: Bound,
    /// The dearest stage there.
    stage: &'static str,
    /// What the stages of the server's core cost together, s/GB.
    server_seconds_per_gb: f64,
}

impl Ceiling {
    pub(super) fn new(stages: &Stages, security: Security) -> Self {
        let server = server_stages(stages, security);
        let client = [("disk copy", stages.copy), ("receive", stages.receive)];
        let sum = |stages: &[(&str, f64)]| stages.iter().map(|(_, cost)| cost).sum::<f64>();
        let server_seconds_per_gb = sum(&server);
        [
            (
                8.0 / server_seconds_per_gb,
                Bound::ServerCore,
                dearest(&server),
            ),
            (8.0 / sum(&client), Bound::ClientCore, dearest(&client)),
            (stages.disk_gbps, Bound::Disk, "disk"),
        ]
        .into_iter()
        .map(|(gbps, bound, stage)| Self {
            gbps,
            bound,
            stage,
            server_seconds_per_gb,
        })
        .min_by(|a, b| a.gbps.total_cmp(&b.gbps))
        .expect("invariant: three bounds")
    }
}

fn server_stages(stages: &Stages, security: Security) -> Vec<(&'static str, f64)> {
    let mut of_server = vec![("read", stages.read), ("write", stages.write)];
    if security == Security::Tls {
        of_server.push(("seal", stages.seal));
    }
    of_server
}

fn dearest(stages: &[(&'static str, f64)]) -> &'static str {
    let dearest = stages.iter().max_by(|a, b| a.1.total_cmp(&b.1));
    dearest.map_or("", |(name, _)| name)
}

/// How near Atlas came at one cell, by medians.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Attained {
    #[serde(flatten)]
    cell: Cell,
    gbps: f64,
    ceiling: Ceiling,
    /// Measured Gb/s over the ceiling's.
    share: f64,
    /// None if nothing can be said: the whole was faster than its parts.
    is_aim_met: Option<bool>,
    /// The server's core: what its stages cost alone over what a GB costs in the run.
    cost_share: f64,
    server_core_busy: f64,
    client_core_busy: f64,
}

/// Whether a share of the ceiling is enough. A whole that is faster than its parts alone says that
/// something else kept the cores busy while the parts were measured: then nothing is said.
pub(super) fn is_aim_met(share: f64) -> Option<bool> {
    (share <= 1.0 + LEAD_MIN).then_some(share >= CEILING_SHARE_MIN)
}

/// All cells where `ours` was measured from a cold disk.
pub(super) fn attained(stages: &Stages, points: &[Point], ours: &str) -> Vec<Attained> {
    let own = points.iter().filter(|point| {
        point.server == ours && point.cell.cache == Cache::Cold && !point.runs.is_empty()
    });
    own.map(|point| {
        let ceiling = Ceiling::new(stages, point.cell.security);
        let share = point.gbps.median / ceiling.gbps;
        let client: Vec<f64> = point.runs.iter().map(|run| run.client_core_busy).collect();
        Attained {
            cell: point.cell,
            gbps: point.gbps.median,
            ceiling,
            share,
            is_aim_met: is_aim_met(share),
            cost_share: ceiling.server_seconds_per_gb / point.core_seconds_per_gb.median,
            server_core_busy: point.server_core_busy.median,
            client_core_busy: Spread::new(&client).median,
        }
    })
    .collect()
}

/// The page's part.
pub(super) fn section(stages: &Stages, attained: &[Attained]) -> String {
    let mut out = format!(
        "## Ceilings\n\
         Each stage was measured alone before each round (`atlas-bench stages`), busy seconds of its core for \
         each GB: on the server's core read {:.3}, write {:.3}, seal {:.3}; on the client's the \
         bench disk's copying {:.3}, receive {:.3}. The disk alone gives {:.1} Gb/s.\n\n\
         The ceiling is what the busier core, always busy and doing nothing but its stages, lets \
         through: 8 / (sum of its s/GB), and at most the disk's rate. Choosing what to send, \
         requests, look-ups, the client's kernel TCP (the cable puts it on the server's core), \
         the load's own work and the middlebox are in no stage. The share by cost is what the \
         server's stages cost alone over what a GB cost its core in the run. `client` is \
         how busy the client's core was, whoever made it so: the load, the disk's copying and, from \
         1,000 connections on, the middlebox. The aim is {:.0} % of the ceiling; beyond \
         all of it nothing is judged, since then the stages were measured amid other work.\n\n\
         | Atlas, cold | Connections | Gb/s | Ceiling | Bound by | Share | Aim | Share by cost | \
         server | client |\n|---|---:|---:|---:|---|---:|---|---:|---:|---:|\n",
        stages.read,
        stages.write,
        stages.seal,
        stages.copy,
        stages.receive,
        stages.disk_gbps,
        100.0 * CEILING_SHARE_MIN
    );
    for it in attained {
        let _ = writeln!(
            out,
            "| {} | {} | {:.1} | {:.1} | {}: {} | {:.0} % | {} | {:.0} % | {:.0} % | {:.0} % |",
            it.cell.security.title(),
            thousands(it.cell.connections),
            it.gbps,
            it.ceiling.gbps,
            it.ceiling.bound.name(),
            it.ceiling.stage,
            100.0 * it.share,
            match it.is_aim_met {
                Some(true) => "met",
                Some(false) => "missed",
                None => "not judged",
            },
            100.0 * it.cost_share,
            100.0 * it.server_core_busy,
            100.0 * it.client_core_busy
        );
    }
    if attained.is_empty() {
        out += "| not measured |\n";
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::summary::tests::point;

    fn stages() -> Stages {
        Stages {
            read: 0.05,
            write: 0.15,
            seal: 0.1,
            copy: 0.15,
            receive: 0.1,
            disk_gbps: 50.0,
            ..Stages::default()
        }
    }

    fn about(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-6, "{found}, not {expected}");
    }

    #[test]
    fn the_busier_core_bounds_and_sealing_counts_over_tls_only() {
        let plain = Ceiling::new(&stages(), Security::Plain);
        about(plain.gbps, 8.0 / 0.25);
        assert_eq!((plain.bound, plain.stage), (Bound::ClientCore, "disk copy"));
        about(plain.server_seconds_per_gb, 0.2);
        let tls = Ceiling::new(&stages(), Security::Tls);
        about(tls.gbps, 8.0 / 0.3);
        assert_eq!((tls.bound, tls.stage), (Bound::ServerCore, "write"));
        about(tls.server_seconds_per_gb, 0.3);
    }

    #[test]
    fn a_slow_disk_bounds_both() {
        let slow = Stages {
            disk_gbps: 10.0,
            ..stages()
        };
        for security in [Security::Plain, Security::Tls] {
            let ceiling = Ceiling::new(&slow, security);
            about(ceiling.gbps, 10.0);
            assert_eq!(ceiling.bound, Bound::Disk);
        }
    }

    #[test]
    fn the_aim_is_met_from_its_share_on() {
        let at = |gbps| {
            let points = [point("atlas", gbps, 0.4), point("h2o", gbps, 0.4)];
            let mut attained = attained(&stages(), &points, "atlas");
            assert_eq!(attained.len(), 1, "ours only");
            attained.remove(0)
        };
        let (met, missed) = (at(32.0 * 0.8 + 1e-9), at(32.0 * 0.8 - 1e-6));
        assert_eq!(
            (met.is_aim_met, missed.is_aim_met),
            (Some(true), Some(false))
        );
        assert_eq!(at(32.0 * 1.02 - 1e-9).is_aim_met, Some(true));
        let disturbed = at(32.0 * 1.02 + 1e-6);
        assert_eq!(disturbed.is_aim_met, None);
        about(met.share, 0.8);
        about(met.cost_share, 0.5);
        let section = section(&stages(), &[met, missed, disturbed]);
        assert!(section.contains("| 102 % | not judged |"), "{section}");
        assert!(section.contains("| 80 % | met |"), "{section}");
        assert!(section.contains("| 80 % | missed |"), "{section}");
    }

    #[test]
    fn a_point_that_failed_or_was_warm_attains_nothing() {
        let mut warm = point("atlas", 10.0, 0.4);
        warm.cell.cache = Cache::Warm;
        let failed = Point::new(point("atlas", 1.0, 1.0).cell, "atlas", true);
        assert!(attained(&stages(), &[warm, failed], "atlas").is_empty());
        assert!(section(&stages(), &[]).contains("not measured"));
    }
}
