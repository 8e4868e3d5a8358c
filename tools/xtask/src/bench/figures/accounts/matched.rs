//! TLS with sealing at one cost for all. Pure.
//!
//! Rivals seal with OpenSSL and Atlas with aws-lc, whose AES-GCM may be several times as fast: part
//! of the lead over TLS is a library's. What a GB costs each library is measured ([`super::stages`]);
//! put in place of each other, what is left is the servers' own.

use std::fmt::Write as _;

use serde::Serialize;

use super::stages::Stages;
use crate::bench::figures::aims::thousands;
use crate::bench::figures::plan::{Cache, Cell, Security};
use crate::bench::figures::summary::Point;

/// One server at one cell, by medians.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Matched {
    #[serde(flatten)]
    cell: Cell,
    server: String,
    core_seconds_per_gb: f64,
    /// What its library needs to seal a GB.
    seal_seconds_per_gb: f64,
    /// That part of the whole.
    seal_share: f64,
    /// The whole, had it sealed at our cost.
    matched_seconds_per_gb: f64,
    /// The whole over ours, as measured.
    ratio: f64,
    /// The same, had it sealed at our cost.
    matched_ratio: f64,
}

/// What the names of all ways nginx is run in begin with.
const NGINX: &str = "nginx";

/// All servers beside `ours` at each cell of TLS from a cold disk, but for nginx where the kernel
/// seals for it.
pub(super) fn matched(
    stages: &Stages,
    points: &[Point],
    ours: &str,
    is_kernel_tls: bool,
) -> Vec<Matched> {
    let measured = || {
        points.iter().filter(|point| {
            let Cell {
                security, cache, ..
            } = point.cell;
            (security, cache) == (Security::Tls, Cache::Cold) && !point.runs.is_empty()
        })
    };
    let own_cost = |cell: Cell| {
        let own = measured().find(|point| point.server == ours && point.cell == cell);
        own.map(|point| point.core_seconds_per_gb.median)
    };
    measured()
        .filter(|point| !(is_kernel_tls && point.server.starts_with(NGINX)))
        .filter_map(|point| {
            let own_cost = own_cost(point.cell)?;
            let cost = point.core_seconds_per_gb.median;
            let seal = if point.is_ours {
                stages.seal
            } else {
                stages.openssl_seal
            };
            let matched = cost - seal + stages.seal;
            Some(Matched {
                cell: point.cell,
                server: point.server.clone(),
                core_seconds_per_gb: cost,
                seal_seconds_per_gb: seal,
                seal_share: seal / cost,
                matched_seconds_per_gb: matched,
                ratio: cost / own_cost,
                matched_ratio: matched / own_cost,
            })
        })
        .collect()
}

/// The page's part.
pub(super) fn section(stages: &Stages, matched: &[Matched]) -> String {
    let mut out = format!(
        "## TLS, had all sealed at one cost\n\
         A GB of AES-128-GCM costs OpenSSL {:.3} s ({}, `openssl speed -aead`, records of 16 KiB \
         in a hot buffer) and Atlas {:.3} s (`atlas-bench stages seal`, 64 slots in turn), both on the \
         server's core in this run. This table is arithmetic from those measured parts, not a \
         measurement: *matched* is a rival's cost less OpenSSL's for a GB plus ours. Ratios are to \
         Atlas at the same cell; above 1, Atlas does more for each core-second.\n\n\
         | TLS, cold | Connections | core-s/GB | sealing | its share | ratio | matched core-s/GB | \
         matched ratio |\n|---|---:|---:|---:|---:|---:|---:|---:|\n",
        stages.openssl_seal, stages.openssl, stages.seal
    );
    for it in matched {
        let _ = writeln!(
            out,
            "| {} | {} | {:.3} | {:.3} | {:.0} % | {:.2} | {:.3} | {:.2} |",
            it.server,
            thousands(it.cell.connections),
            it.core_seconds_per_gb,
            it.seal_seconds_per_gb,
            100.0 * it.seal_share,
            it.ratio,
            it.matched_seconds_per_gb,
            it.matched_ratio
        );
    }
    if matched.is_empty() {
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
            seal: 0.1,
            openssl_seal: 0.3,
            openssl: "OpenSSL 3".to_owned(),
            ..Stages::default()
        }
    }

    fn tls(server: &str, cost: f64) -> Point {
        let mut point = point(server, 10.0, cost);
        point.cell.security = Security::Tls;
        point
    }

    fn about(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-6, "{found}, not {expected}");
    }

    #[test]
    fn a_rival_is_given_our_sealing_and_we_keep_it() {
        let points = [tls("atlas", 0.4), tls("h2o", 1.0)];
        let found = matched(&stages(), &points, "atlas", false);
        let [ours, rival] = &found[..] else {
            panic!("two servers: {found:?}");
        };
        about(ours.seal_share, 0.25);
        about(ours.matched_ratio, 1.0);
        about(rival.seal_share, 0.3);
        about(rival.ratio, 2.5);
        about(rival.matched_seconds_per_gb, 0.8);
        about(rival.matched_ratio, 2.0);
        let section = section(&stages(), &found);
        assert!(section.contains("| h2o | 64 | 1.000 | 0.300 | 30 % | 2.50 | 0.800 | 2.00 |"));
        assert!(section.contains("OpenSSL 3"), "{section}");
    }

    #[test]
    fn what_the_kernel_seals_is_not_matched() {
        let points = [
            tls("atlas", 0.4),
            tls("nginx-sendfile", 1.0),
            tls("h2o", 1.0),
        ];
        let servers = |is_kernel_tls| {
            let found = matched(&stages(), &points, "atlas", is_kernel_tls);
            found.into_iter().map(|it| it.server).collect::<Vec<_>>()
        };
        assert_eq!(servers(true), ["atlas", "h2o"]);
        assert_eq!(servers(false), ["atlas", "nginx-sendfile", "h2o"]);
        let modes = testbed::rivals::NginxMode::ALL;
        assert!(modes.iter().all(|mode| mode.name().starts_with(NGINX)));
    }

    #[test]
    fn only_tls_from_a_cold_disk_beside_ours_counts() {
        let mut warm = tls("h2o", 1.0);
        warm.cell.cache = Cache::Warm;
        let mut elsewhere = tls("h2o", 1.0);
        elsewhere.cell.connections += 1;
        let plain = point("h2o", 10.0, 1.0);
        let failed = Point::new(tls("nginx", 1.0).cell, "nginx", false);
        let points = [tls("atlas", 0.4), warm, elsewhere, plain, failed];
        let found = matched(&stages(), &points, "atlas", false);
        assert_eq!(found.len(), 1, "ours alone: {found:?}");
        assert!(section(&stages(), &[]).contains("not measured"));
    }
}
