//! The table of results, and where it stands.

use std::fmt::Write as _;

use testbed::pages::Part;

use crate::client::Kind;
use crate::run::Outcome;
use crate::scenario::Scenario;

/// Where the table stands.
pub const TABLE: Part = Part {
    page: "docs/develop/interop.md",
    name: "table",
    command: "cargo xtask interop --write",
};

/// A run that held.
#[derive(Clone, Debug)]
pub struct Row {
    /// The client.
    pub kind: Kind,
    /// The path.
    pub scenario: Scenario,
    /// What was seen.
    pub outcome: Outcome,
}

/// The table of these runs.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| Client | Path | Bytes compared | Frames lost, to the client / to the server | held back | \
         doubled | Segments sent again | Bytes sent again | Client's segments with SACK | with DSACK | \
         Seconds |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let Outcome {
            report,
            counts,
            observed,
            ..
        } = &row.outcome;
        let both = |of: fn(&bottleneck::LegCounts) -> u64| {
            format!("{} / {}", of(&counts.forth), of(&counts.back))
        };
        let _ = writeln!(
            text,
            "| {} {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {:.1} |",
            row.kind.name(),
            report.version,
            row.scenario.name,
            report.bytes,
            both(|it| it.lost_frames),
            both(|it| it.reordered_frames),
            both(|it| it.duplicated_frames),
            row.outcome.retransmit_segments,
            observed.resent_bytes,
            observed.sack_segments,
            observed.dsack_segments,
            row.outcome.seconds,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_as_many_columns_as_the_head() {
        let text = table(&[]);
        let columns = |line: &str| line.matches('|').count();
        let lines: Vec<usize> = text.lines().map(columns).collect();
        assert_eq!(lines, [12, 12]);
    }
}
