//! What is measured: pure, so that its size can be tested.
//!
//! Bounded by: [`CONNECTIONS`], and twice as many objects as connections.

use serde::Serialize;

use crate::bench::lab::Contender;
use crate::harness::server::NginxMode;

/// The sweep over connections of the full run.
pub(super) const CONNECTIONS: [u64; 6] = [64, 1_000, 2_000, 4_000, 8_000, 16_000];

/// The sweep of the quick run.
const CONNECTIONS_QUICK: [u64; 2] = [64, 1_000];

/// From so many connections on clients have a distance: fewer could not fill the cable with it.
const DISTANT_CONNECTIONS_MIN: u64 = 1_000;

/// Size of each object, bytes: the paper's chunks are of some 300 KB.
pub(super) const OBJECT_BYTES: u64 = 307_200;

/// Objects of a warm run: a gigabyte, so that no processor's cache holds them.
const WARM_OBJECTS: u64 = 3_400;

/// Fewest objects of a cold run of the full plan, and of the quick one.
const COLD_OBJECTS_MIN: u64 = 8_000;
const COLD_OBJECTS_MIN_QUICK: u64 = 3_400;

/// What is between the server and its client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Security {
    /// HTTP.
    Plain,
    /// TLS 1.3 with AES-128-GCM.
    Tls,
}

impl Security {
    /// As tables and files have it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Tls => "tls",
        }
    }
}

/// How much of what is asked for the page cache holds: the paper's "BC".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Cache {
    /// 0 %: caches dropped, each object asked once.
    Cold,
    /// 100 %: all objects read before.
    Warm,
}

impl Cache {
    /// As tables and files have it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Warm => "warm",
        }
    }
}

/// One point of the figures: all servers take their turns at it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Cell {
    pub(super) security: Security,
    pub(super) cache: Cache,
    pub(super) connections: u64,
    /// Clients are 10 to 40 ms away.
    pub(super) is_distant: bool,
    /// Objects that are asked for: all once, or over and over.
    pub(super) objects: u64,
}

/// All cells: for each kind of security and cache, the sweep over connections.
pub(super) fn cells(is_quick: bool, only: &[u64]) -> Vec<Cell> {
    let (sweep, cold_min) = if is_quick {
        (&CONNECTIONS_QUICK[..], COLD_OBJECTS_MIN_QUICK)
    } else {
        (&CONNECTIONS[..], COLD_OBJECTS_MIN)
    };
    let sweep = if only.is_empty() { sweep } else { only };
    let mut cells = Vec::new();
    for security in [Security::Plain, Security::Tls] {
        for cache in [Cache::Cold, Cache::Warm] {
            for &connections in sweep {
                let objects = match cache {
                    // Two for each connection, or the run were nothing but its ends.
                    Cache::Cold => cold_min.max(2 * connections),
                    Cache::Warm => WARM_OBJECTS,
                };
                cells.push(Cell {
                    security,
                    cache,
                    connections,
                    is_distant: connections >= DISTANT_CONNECTIONS_MIN,
                    objects,
                });
            }
        }
    }
    cells
}

/// Objects the disk must hold for all cells.
pub(super) fn objects_max(cells: &[Cell]) -> u64 {
    cells.iter().map(|cell| cell.objects).max().unwrap_or(0)
}

/// Whether a server has anything to say at a cell.
pub(super) fn takes_part(contender: &Contender, cell: &Cell) -> bool {
    match contender {
        // Stands for TLS, and shows its price beside plaintext.
        Contender::AtlasEmulated(_) => cell.security == Security::Plain,
        // Direct reads do not see a warm cache.
        Contender::Nginx(NginxMode { directio: true, .. }) => cell.cache == Cache::Cold,
        Contender::Atlas(_) | Contender::Nginx(_) | Contender::Peer(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_plan_is_the_sweep_in_four_kinds() {
        let cells = cells(false, &[]);
        assert_eq!(cells.len(), 4 * CONNECTIONS.len());
        assert!(
            cells
                .iter()
                .filter(|cell| cell.cache == Cache::Cold)
                .all(|cell| cell.objects >= 2 * cell.connections)
        );
        assert_eq!(objects_max(&cells), 32_000);
    }

    #[test]
    fn the_quick_plan_is_small_and_a_choice_wins() {
        assert_eq!(objects_max(&cells(true, &[])), COLD_OBJECTS_MIN_QUICK);
        let chosen = cells(true, &[999, 1_000]);
        assert_eq!(chosen.len(), 8);
        assert!(!chosen[0].is_distant && chosen[1].is_distant);
    }

    #[test]
    fn direct_reads_stay_away_from_warm_caches_and_emulation_from_tls() {
        let cells = cells(true, &[64]);
        let of = |contender: &Contender| {
            let part = cells.iter().filter(|cell| takes_part(contender, cell));
            part.map(|cell| (cell.security, cell.cache))
                .collect::<Vec<_>>()
        };
        let direct = NginxMode::ALL
            .into_iter()
            .find(|mode| mode.directio)
            .expect("there is one");
        assert_eq!(
            of(&Contender::Nginx(direct)),
            [(Security::Plain, Cache::Cold), (Security::Tls, Cache::Cold)]
        );
        assert_eq!(
            of(&Contender::AtlasEmulated("atlas".into())),
            [
                (Security::Plain, Cache::Cold),
                (Security::Plain, Cache::Warm)
            ]
        );
        assert_eq!(of(&Contender::Atlas("atlas".into())).len(), 4);
    }
}
