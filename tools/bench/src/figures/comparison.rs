//! Servers side by side at a point: medians over the rounds, and ratios of Atlas to the best rival.
//!
//! The best rival of a point is the one with the best median over all rounds, of the rate or of the
//! cost: one answer for each question. A ratio is the median of the rounds' own ratios, since what
//! disturbs a machine for minutes falls on both of a round. It refuses a ratio of rates where the
//! clients' core was full: that would compare the clients with themselves. Bounded by: the results.

use super::cell::Cell;
use super::plan::ATLAS;
use super::results::{Measured, Outcome, Results};
use crate::statistics::Median;

/// Busy part of the clients' core above which a rate is theirs, not the server's.
pub(crate) const CLIENT_LOAD_MAX: f64 = 0.9;

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Quantity {
    /// Gb/s of bodies: more is better.
    Rate,
    /// Busy seconds of the server's core for each GB: less is better.
    Cost,
    /// Busy part of the server's core, where all serve the same amount: less is better.
    Load,
}

impl Quantity {
    pub(crate) fn of(self, measured: &Measured) -> f64 {
        match self {
            Self::Rate => measured.gbps(),
            Self::Cost => measured.cost(),
            Self::Load => measured.server_load(),
        }
    }

    /// How many times better `ours` is than `theirs`.
    fn ratio(self, ours: f64, theirs: f64) -> f64 {
        match self {
            Self::Rate => ours / theirs,
            Self::Cost | Self::Load => theirs / ours,
        }
    }
}

/// Atlas beside one rival.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Ratio<'a> {
    pub(crate) rival: &'a str,
    /// How many times better Atlas is.
    pub(crate) times: Median,
}

/// The servers measured at a cell, in the order of their first turns there, ourselves first.
pub(crate) fn servers<'a>(results: &'a Results, cell: &Cell) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for turn in results.turns.iter().filter(|it| it.cell == *cell) {
        if !names.contains(&turn.server.as_str()) {
            names.push(&turn.server);
        }
    }
    names.sort_by_key(|name| (*name != ATLAS, *name));
    names
}

/// The median of a quantity.
pub(crate) fn median(
    results: &Results,
    cell: &Cell,
    server: &str,
    quantity: impl Fn(&Measured) -> f64,
) -> Option<Median> {
    Median::new(results.of(cell, server).map(|(_, it)| quantity(it)))
}

/// Whether the clients' core was full: the rate is theirs.
pub(crate) fn is_client_bound(results: &Results, cell: &Cell, server: &str) -> bool {
    median(results, cell, server, Measured::client_load)
        .is_some_and(|it| it.middle > CLIENT_LOAD_MAX)
}

/// Atlas beside the best rival at a cell, if both were measured in a round.
pub(crate) fn best<'a>(results: &'a Results, cell: &Cell, quantity: Quantity) -> Option<Ratio<'a>> {
    let rivals = servers(results, cell).into_iter().filter(|it| *it != ATLAS);
    let of = |name: &str| median(results, cell, name, |it| quantity.of(it));
    let rival = rivals
        .filter_map(|name| Some((name, of(name)?.middle)))
        .max_by(|(_, one), (_, other)| {
            // The better of the two is the greater one.
            1.0_f64.total_cmp(&quantity.ratio(*one, *other)).reverse()
        })?;
    ratio(results, cell, rival.0, quantity)
}

/// Atlas beside one rival at a cell.
pub(crate) fn ratio<'a>(
    results: &'a Results,
    cell: &Cell,
    rival: &'a str,
    quantity: Quantity,
) -> Option<Ratio<'a>> {
    if quantity == Quantity::Rate
        && (is_client_bound(results, cell, ATLAS) || is_client_bound(results, cell, rival))
    {
        return None;
    }
    let ours: Vec<_> = results.of(cell, ATLAS).collect();
    let times = results.of(cell, rival).filter_map(|(round, theirs)| {
        let (_, ours) = ours.iter().find(|(its_round, _)| *its_round == round)?;
        Some(quantity.ratio(quantity.of(ours), quantity.of(theirs)))
    });
    Some(Ratio {
        rival,
        times: Median::new(times)?,
    })
}

/// Why a server has no value at a cell, if it took its turn there.
pub(crate) fn failure<'a>(results: &'a Results, cell: &Cell, server: &str) -> Option<&'a str> {
    let mut turns = results.turns.iter();
    turns.find_map(|turn| match &turn.outcome {
        Outcome::Failed(why) if turn.cell == *cell && turn.server == server => Some(why.as_str()),
        _ => None,
    })
}

/// All cells in the order of their first turns, sorted by what `key` says.
pub(crate) fn cells(results: &Results, mut is_wanted: impl FnMut(&Cell) -> bool) -> Vec<Cell> {
    let mut found: Vec<Cell> = Vec::new();
    for turn in &results.turns {
        if is_wanted(&turn.cell) && !found.contains(&turn.cell) {
            found.push(turn.cell);
        }
    }
    found.sort_by_key(|it| {
        let kind = (it.is_tls, it.cached_percent, it.loss_ppm);
        (kind, it.connections, it.every_seconds)
    });
    found
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::turn;
    use super::*;
    use crate::stored::tests::environment;

    fn results(turns: Vec<super::super::results::Turn>) -> Results {
        Results {
            environment: environment(),
            turns,
            stages: Vec::new(),
        }
    }

    #[test]
    fn the_best_rival_is_best_over_all_rounds_and_ratios_are_of_a_round() {
        let cell = Cell::cold(false, 64);
        let found = results(vec![
            turn(("atlas", 1), cell, (4, 2.0)),
            turn(("a", 1), cell, (2, 4.0)),
            turn(("b", 1), cell, (1, 1.0)),
            turn(("atlas", 2), cell, (8, 2.0)),
            turn(("a", 2), cell, (2, 4.0)),
            turn(("b", 2), cell, (4, 4.0)),
            // A round that Atlas has no value of.
            turn(("a", 3), cell, (2, 4.0)),
        ]);
        assert_eq!(servers(&found, &cell), ["atlas", "a", "b"]);
        let rate = best(&found, &cell, Quantity::Rate).unwrap();
        // b's median is 2.5 GB, a's 2.
        assert_eq!((rate.rival, rate.times.count), ("b", 2));
        assert!((rate.times.middle - 3.0).abs() < 1e-9, "{rate:?}");
        let cost = best(&found, &cell, Quantity::Cost).unwrap();
        // Seconds for a GB: ours 0.5 and 0.25, b's 1 and 1, a's 2.
        assert_eq!(cost.rival, "b");
        assert!((cost.times.low - 2.0).abs() < 1e-9 && (cost.times.high - 4.0).abs() < 1e-9);
        let other = Cell::cold(true, 64);
        assert_eq!(best(&found, &other, Quantity::Rate), None);
    }

    #[test]
    fn a_full_core_of_the_clients_voids_the_ratio_of_rates_only() {
        let cell = Cell::cold(false, 64);
        for (busy, is_bound) in [(3.6, false), (3.61, true)] {
            let mut turns = vec![
                turn(("atlas", 1), cell, (4, 2.0)),
                turn(("a", 1), cell, (2, 4.0)),
            ];
            if let Outcome::Measured(it) = &mut turns[1].outcome {
                it.client_busy = busy;
            }
            let found = results(turns);
            assert_eq!(is_client_bound(&found, &cell, "a"), is_bound);
            assert_eq!(best(&found, &cell, Quantity::Rate).is_none(), is_bound);
            assert!(best(&found, &cell, Quantity::Cost).is_some());
        }
    }

    #[test]
    fn who_failed_has_a_reason_and_no_value() {
        let cell = Cell::cold(false, 64);
        let mut failed = turn(("a", 1), cell, (1, 1.0));
        failed.outcome = Outcome::Failed("503".to_owned());
        let found = results(vec![turn(("atlas", 1), cell, (1, 1.0)), failed]);
        assert_eq!(failure(&found, &cell, "a"), Some("503"));
        assert_eq!(failure(&found, &cell, "atlas"), None);
        assert_eq!(best(&found, &cell, Quantity::Rate), None);
        assert_eq!(cells(&found, |it| it.is_tls), []);
        assert_eq!(cells(&found, |it| !it.is_tls), [cell]);
    }
}
