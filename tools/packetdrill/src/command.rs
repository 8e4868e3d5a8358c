//! `cargo xtask packetdrill`: runs every script that applies, and prints the table.
#![expect(clippy::print_stdout, reason = "a command speaks to its terminal")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use testbed::pages::Part;

use crate::adapt::{Adapted, Reason, adapt};
use crate::explained::explanation;
use crate::program::{IpVersion, Judge, PROGRAM_VARIABLE, SCRIPTS_VARIABLE, Verdict};

/// Where the table stands.
pub const TABLE: Part = Part {
    page: "docs/develop/packetdrill.md",
    name: "table",
    command: "cargo xtask packetdrill --write",
};

/// Options of `packetdrill`.
#[derive(Args, Clone, Debug, Default)]
pub struct Options {
    /// The program packetdrill; else what ATLAS_PACKETDRILL names, else that in PATH
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// The folder of its scripts; else what ATLAS_PACKETDRILL_SCRIPTS names
    #[arg(long, value_name = "DIR")]
    scripts: Option<PathBuf>,
    /// Prints all that packetdrill says of this one script, and the script as it was run
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Writes the table into docs/develop/packetdrill.md
    #[arg(long)]
    write: bool,
}

/// One script, run or not.
#[derive(Clone, Debug)]
pub struct Row {
    /// Path below the folder of scripts.
    pub name: String,
    /// How it went.
    pub result: RowResult,
}

/// How a script went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RowResult {
    /// It was not run.
    DoesNotApply(Reason),
    /// It was run, with either IP version.
    Run {
        /// Verdicts in the order of [`IpVersion::ALL`].
        verdicts: Vec<Verdict>,
        /// Assertions about the congestion window, compared.
        assertions: usize,
        /// Assertions left out.
        assertions_left_out: usize,
    },
}

impl Row {
    /// What is wrong with it: a failure nobody explained, or an explanation without a failure.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let RowResult::Run { verdicts, .. } = &self.result else {
            return None;
        };
        let failure = verdicts.iter().find_map(|verdict| match verdict {
            Verdict::Failed(said) => Some(said),
            Verdict::Passed => None,
        });
        match (failure, explanation(&self.name)) {
            (Some(said), None) => Some(format!("{}: {said}", self.name)),
            (None, Some(why)) => Some(format!(
                "{} passes, and is explained as a failure: {why}",
                self.name
            )),
            _ => None,
        }
    }
}

/// Runs every script.
///
/// # Errors
/// Scripts cannot be read, or the program cannot be run.
pub fn judge(judge: &Judge) -> Result<Vec<Row>> {
    let names = judge.names()?;
    names.into_iter().map(|name| row(judge, name)).collect()
}

fn row(judge: &Judge, name: String) -> Result<Row> {
    let result = match adapt(&name, &text(judge, &name)?) {
        Err(reason) => RowResult::DoesNotApply(reason),
        Ok(script) => run(judge, &name, &script)?,
    };
    Ok(Row { name, result })
}

fn text(judge: &Judge, name: &str) -> Result<String> {
    let path = judge.scripts.join(name);
    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}

fn run(judge: &Judge, name: &str, script: &Adapted) -> Result<RowResult> {
    let verdicts = IpVersion::ALL
        .iter()
        .map(|version| judge.run(name, script, *version))
        .collect::<Result<_>>()?;
    Ok(RowResult::Run {
        verdicts,
        assertions: script.assertions,
        assertions_left_out: script.assertions_left_out,
    })
}

/// The table, as the page has it.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    let mut left_out: BTreeMap<Reason, Vec<&str>> = BTreeMap::new();
    let mut counts = [0; 2];
    let mut lines = String::new();
    for row in rows {
        match &row.result {
            RowResult::DoesNotApply(reason) => left_out.entry(*reason).or_default().push(&row.name),
            RowResult::Run {
                verdicts,
                assertions,
                assertions_left_out,
            } => {
                let has_passed = verdicts.iter().all(|it| *it == Verdict::Passed);
                counts[usize::from(!has_passed)] += 1;
                let word = |verdict: &Verdict| match verdict {
                    Verdict::Passed => "pass",
                    Verdict::Failed(_) => "**fail**",
                };
                let words: Vec<&str> = verdicts.iter().map(word).collect();
                let why = explanation(&row.name).unwrap_or_default();
                let _ = writeln!(
                    lines,
                    "| {} | {} | {assertions} | {assertions_left_out} | {why} |",
                    row.name,
                    words.join(" | ")
                );
            }
        }
    }
    let not_run: usize = left_out.values().map(Vec::len).sum();
    let _ = writeln!(
        text,
        "{} scripts: {} pass, {} fail, {not_run} do not apply.\n",
        rows.len(),
        counts[0],
        counts[1]
    );
    text.push_str(
        "| Script | IPv4 | IPv6 | Windows compared | Assertions left out | Why it fails |\n",
    );
    text.push_str("|---|---|---|---|---|---|\n");
    text.push_str(&lines);
    text.push_str("\n| Does not apply, because of | Scripts |\n|---|---|\n");
    for (reason, names) in left_out {
        let _ = writeln!(
            text,
            "| {} | {}: {} |",
            reason.text(),
            names.len(),
            names.join(", ")
        );
    }
    text
}

/// `cargo xtask packetdrill`, from the workspace's top directory `root`.
///
/// # Errors
/// Something is missing, or a script fails without an explanation.
pub fn run_command(options: &Options, root: &Path) -> Result<()> {
    let found = Judge::find(options.program.as_deref(), options.scripts.as_deref());
    let found = found.with_context(|| {
        let page = TABLE.page;
        format!("set {PROGRAM_VARIABLE} and {SCRIPTS_VARIABLE}, or see {page}")
    })?;
    if let Some(name) = &options.only {
        return run_one(&found, name);
    }
    let rows = judge(&found)?;
    let table = table(&rows);
    println!("{table}");
    if options.write {
        TABLE.write(root, &table)?;
    }
    let problems: Vec<String> = rows.iter().filter_map(Row::problem).collect();
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(())
}

fn run_one(judge: &Judge, name: &str) -> Result<()> {
    let script = match adapt(name, &text(judge, name)?) {
        Ok(script) => script,
        Err(reason) => {
            println!("{name} does not apply: {}", reason.text());
            return Ok(());
        }
    };
    for (number, line) in script.text.lines().enumerate() {
        println!("{:4} {line}", number + 1);
    }
    for version in IpVersion::ALL {
        match judge.run(name, &script, version)? {
            Verdict::Passed => println!("{version:?}: pass"),
            Verdict::Failed(said) => println!("{version:?}: fail\n{said}"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, verdicts: Vec<Verdict>) -> Row {
        Row {
            name: name.into(),
            result: RowResult::Run {
                verdicts,
                assertions: 1,
                assertions_left_out: 2,
            },
        }
    }

    #[test]
    fn a_failure_without_an_explanation_is_a_problem() {
        let failed = Verdict::Failed("said".into());
        assert_eq!(row("a/new.pkt", vec![Verdict::Passed; 2]).problem(), None);
        let problem = row("a/new.pkt", vec![Verdict::Passed, failed]).problem();
        assert_eq!(problem.as_deref(), Some("a/new.pkt: said"));
    }

    #[test]
    fn the_table_counts() {
        let left_out = Row {
            name: "b.pkt".into(),
            result: RowResult::DoesNotApply(Reason::ActiveOpen),
        };
        let table = table(&[row("a.pkt", vec![Verdict::Passed; 2]), left_out]);
        assert!(table.starts_with("2 scripts: 1 pass, 0 fail, 1 do not apply.\n"));
        assert!(table.contains("| a.pkt | pass | pass | 1 | 2 |  |\n"));
        assert!(table.contains("| 1: b.pkt |\n"));
    }
}
