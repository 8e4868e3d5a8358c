//! The table of results, and the page it stands on.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::client::Kind;
use crate::run::Outcome;
use crate::scenario::Scenario;

/// The page with the table, and what is around the table there.
const PAGE: &str = "docs/develop/interop.md";
const TABLE_BEGIN: &str = "<!-- The table of cargo xtask interop --write begins. -->\n";
const TABLE_END: &str = "<!-- The table ends. -->\n";

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

/// Puts the table into the page of the workspace at `root`.
///
/// # Errors
/// The page cannot be read or written, or has no place for it.
pub fn write(root: &Path, table: &str) -> Result<()> {
    let page = root.join(PAGE);
    let old = fs::read_to_string(&page).with_context(|| format!("reading {PAGE}"))?;
    fs::write(&page, with_table(&old, table)?).with_context(|| format!("writing {PAGE}"))
}

fn with_table(page: &str, table: &str) -> Result<String> {
    let parts = page.split_once(TABLE_BEGIN);
    let (before, rest) = parts.context("the page has no place for the table")?;
    let parts = rest.split_once(TABLE_END);
    let (_, behind) = parts.context("the page's table has no end")?;
    Ok([before, TABLE_BEGIN, table, TABLE_END, behind].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_takes_the_place_of_the_old_one() {
        let page = format!("before\n{TABLE_BEGIN}old\n{TABLE_END}behind\n");
        let page = with_table(&page, "new\n").unwrap();
        assert_eq!(
            page,
            format!("before\n{TABLE_BEGIN}new\n{TABLE_END}behind\n")
        );
        assert!(with_table("no table", "new").is_err());
        assert!(with_table(TABLE_BEGIN, "new").is_err());
    }

    #[test]
    fn every_row_has_as_many_columns_as_the_head() {
        let text = table(&[]);
        let columns = |line: &str| line.matches('|').count();
        let lines: Vec<usize> = text.lines().map(columns).collect();
        assert_eq!(lines, [12, 12]);
    }
}
