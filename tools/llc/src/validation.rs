//! The paper's numbers of memory traffic, and what the model has to say for each.
//!
//! All cases have one set of parameters; those that were fitted are in [`crate::rivals::fitted`]. Sources: A is section 4
//! of the paper, B its section 2, C the part on encryption, each by the figure that shows the number.

use crate::closed_loop::{Case, Outcome};
use crate::machine::Replacement;
use crate::rivals::{Protocol, atlas_2017, netflix, on_paper_machine};

/// Why the model has a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A parameter was chosen so that it comes out.
    Fitted,
    /// No parameter was chosen for it.
    Predicted,
}

/// A number of the paper.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// What is measured.
    pub what: &'static str,
    /// What the paper says, and where.
    pub paper: &'static str,
    /// What the model must have, both ends included.
    pub range: (f64, f64),
    /// Whether it was fitted.
    pub origin: Origin,
    /// The number of a run.
    pub measure: fn(&Outcome) -> f64,
}

/// A run that the paper made, and what it measured.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// Its name.
    pub name: &'static str,
    /// The case.
    pub case: fn() -> Case,
    /// Its numbers.
    pub targets: &'static [Target],
}

const fn target(
    what: &'static str,
    paper: &'static str,
    range: (f64, f64),
    origin: Origin,
    measure: fn(&Outcome) -> f64,
) -> Target {
    Target {
        what,
        paper,
        range,
        origin,
        measure,
    }
}

/// From `value` by so large a share of it.
const fn within(value: f64, share: f64) -> (f64, f64) {
    (value * (1.0 - share), value * (1.0 + share))
}

const fn read(outcome: &Outcome) -> f64 {
    outcome.report.read
}

const fn misses(outcome: &Outcome) -> f64 {
    outcome.misses_m_s
}

/// Connections at which every server of the paper is full.
const FULL: u32 = 8_000;

/// All of them.
pub const EXPERIMENTS: [Experiment; 6] = [
    Experiment {
        name: "Atlas, plaintext, 2,000 connections",
        case: || on_paper_machine(atlas_2017(Protocol::Plaintext), 4, 2_000),
        targets: &[
            target(
                "read / network",
                "0.65 (11e)",
                (0.55, 0.75),
                Origin::Fitted,
                read,
            ),
            target(
                "written - read, / network",
                "more than 0 (11d)",
                (0.0, f64::INFINITY),
                Origin::Predicted,
                |it| it.report.written - it.report.read,
            ),
        ],
    },
    Experiment {
        name: "Atlas, plaintext, full",
        case: || on_paper_machine(atlas_2017(Protocol::Plaintext), 4, FULL),
        targets: &[
            target(
                "read / network",
                "1.05 (11e)",
                within(1.05, 0.05),
                Origin::Predicted,
                read,
            ),
            target(
                "written, Gb/s",
                "about 77 (11d)",
                within(77.0, 0.05),
                Origin::Predicted,
                |it| it.report.written * it.gbps,
            ),
            target(
                "LLC misses, M/s",
                "none to be seen (11f)",
                (0.0, 10.0),
                Origin::Predicted,
                misses,
            ),
        ],
    },
    Experiment {
        name: "Atlas, TLS, full",
        case: || on_paper_machine(atlas_2017(Protocol::Tls), 4, FULL),
        targets: &[
            target(
                "network, Gb/s",
                "about 72 (13a)",
                within(72.0, 0.02),
                Origin::Fitted,
                |it| it.gbps,
            ),
            target(
                "read / network",
                "1.53 (13c)",
                within(1.53, 0.1),
                Origin::Predicted,
                read,
            ),
        ],
    },
    Experiment {
        name: "Netflix, plaintext",
        case: || on_paper_machine(netflix(Protocol::Plaintext, false), 8, FULL),
        targets: &[
            target(
                "read / network",
                "almost 1.5 (11e)",
                within(1.5, 0.1),
                Origin::Fitted,
                read,
            ),
            target(
                "LLC misses, M/s",
                "below 80 (11f)",
                (20.0, 80.0),
                Origin::Predicted,
                misses,
            ),
        ],
    },
    Experiment {
        name: "Netflix, TLS, all in memory",
        case: || on_paper_machine(netflix(Protocol::Tls, true), 8, FULL),
        targets: &[
            target(
                "read / network",
                "2.57 (3)",
                within(2.57, 0.1),
                Origin::Predicted,
                read,
            ),
            target(
                "LLC misses, M/s",
                "200 (3)",
                within(200.0, 0.1),
                Origin::Predicted,
                misses,
            ),
        ],
    },
    Experiment {
        name: "Netflix, TLS, from disk",
        case: || on_paper_machine(netflix(Protocol::Tls, false), 8, FULL),
        targets: &[
            target(
                "read / network",
                "2.70 (13c)",
                within(2.70, 0.1),
                Origin::Predicted,
                read,
            ),
            target(
                "read + written, / network",
                "5.1 (in production)",
                within(5.1, 0.1),
                Origin::Predicted,
                |it| it.report.read + it.report.written,
            ),
        ],
    },
];

impl Experiment {
    /// The outcomes of some seeds.
    #[must_use]
    pub fn run(&self, replacement: Replacement, seeds: u64) -> Vec<Outcome> {
        let mut case = (self.case)();
        case.machine = case.machine.with_replacement(replacement);
        (1..=seeds).map(|seed| case.run(seed)).collect()
    }
}

impl Target {
    /// Whether a number is what the paper has.
    #[must_use]
    pub fn is_met(&self, value: f64) -> bool {
        self.range.0 <= value && value <= self.range.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_has_the_papers_numbers() {
        for experiment in &EXPERIMENTS {
            for outcome in experiment.run(Replacement::Srrip, 1) {
                for target in experiment.targets {
                    let value = (target.measure)(&outcome);
                    assert!(
                        target.is_met(value),
                        "{}: {value}, {target:?}",
                        experiment.name
                    );
                }
            }
        }
    }
}
