//! Runs named checks one after another and remembers how each went.

use std::time::Instant;

use anyhow::{Result, ensure};

use crate::interrupt;

/// How a check that did not fail ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It holds.
    Passed,
    /// It could not be tried here, and why.
    Skipped(String),
}

/// Counts of passed, failed and skipped checks.
#[derive(Debug, Default)]
pub struct Suite {
    /// Checks that hold.
    pub passed: u64,
    /// Name and error of each check that failed.
    pub failed: Vec<String>,
    /// Checks that were not tried.
    pub skipped: Vec<Skip>,
}

/// A check that was not tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip {
    /// Its name.
    pub name: String,
    /// Why.
    pub reason: String,
}

impl Suite {
    /// Runs one check and prints its line.
    pub fn run(&mut self, name: &str, check: impl FnOnce() -> Result<Outcome>) {
        if interrupt::is_set() {
            self.skip(name, "interrupted");
            return;
        }
        let start = Instant::now();
        let outcome = check();
        let seconds = start.elapsed().as_secs_f64();
        match outcome {
            Ok(Outcome::Passed) => {
                self.passed += 1;
                println!("ok      {name} ({seconds:.1} s)");
            }
            Ok(Outcome::Skipped(reason)) => self.skip(name, &reason),
            Err(_) if interrupt::is_set() => self.skip(name, "interrupted"),
            Err(error) => self.fail(name, &format!("{error:#}")),
        }
    }

    /// Records a failure.
    pub fn fail(&mut self, name: &str, why: &str) {
        println!("FAILED  {name}: {why}");
        self.failed.push(format!("{name}: {why}"));
    }

    /// Records a check that was not tried.
    pub fn skip(&mut self, name: &str, reason: &str) {
        println!("SKIPPED {name}: {reason}");
        self.skipped.push(Skip {
            name: name.to_owned(),
            reason: reason.to_owned(),
        });
    }

    /// Counts a line that a suite in another process has printed.
    pub fn read(&mut self, line: &str) {
        if line.starts_with("ok      ") {
            self.passed += 1;
        } else if let Some(check) = line.strip_prefix("SKIPPED ") {
            let (name, reason) = check.split_once(": ").unwrap_or((check, ""));
            self.skipped.push(Skip {
                name: name.to_owned(),
                reason: reason.to_owned(),
            });
        } else if let Some(check) = line.strip_prefix("FAILED  ") {
            self.failed.push(check.to_owned());
        }
    }

    /// Counts what another suite has counted, and printed.
    pub fn add(&mut self, mut other: Self) {
        self.passed += other.passed;
        self.failed.append(&mut other.failed);
        self.skipped.append(&mut other.skipped);
    }

    /// Whether nothing failed.
    fn is_good(&self) -> bool {
        self.failed.is_empty()
    }

    /// Fails the skips whose names are not among `expected`.
    pub fn refuse_skips_except(&mut self, expected: &[String]) {
        let is_expected = |skip: &Skip| expected.contains(&skip.name);
        let (kept, refused) = std::mem::take(&mut self.skipped)
            .into_iter()
            .partition(is_expected);
        self.skipped = kept;
        for Skip { name, reason } in refused {
            self.fail(&name, &format!("skipped, which was not expected: {reason}"));
        }
    }

    /// Prints the list of what was skipped and failed, then the closing line; fails if a check
    /// failed, or if not all were tried because a signal arrived.
    pub fn close(&self) -> Result<()> {
        for Skip { name, reason } in &self.skipped {
            println!("skipped: {name}: {reason}");
        }
        for line in &self.failed {
            // The rest of it stands above.
            println!("failed: {}", line.lines().next().unwrap_or_default());
        }
        println!(
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failed.len(),
            self.skipped.len()
        );
        interrupt::check()?;
        ensure!(self.is_good(), "not every check passed");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_is_counted_once() {
        let mut suite = Suite::default();
        suite.run("a", || Ok(Outcome::Passed));
        assert!(suite.is_good());
        suite.run("b", || Ok(Outcome::Skipped("no nginx".to_owned())));
        suite.run("c", || anyhow::bail!("broken"));
        assert_eq!(
            (suite.passed, suite.failed.len(), suite.skipped.len()),
            (1, 1, 1)
        );
        assert!(!suite.is_good());
        assert!(suite.close().is_err());
    }

    #[test]
    fn a_skip_fails_unless_its_name_is_expected() {
        let expected = ["a".to_owned(), "never skipped".to_owned()];
        let mut suite = Suite::default();
        suite.skip("a", "a measurement");
        suite.refuse_skips_except(&expected);
        assert!(suite.close().is_ok());
        assert_eq!(suite.skipped.len(), 1);

        suite.skip("a::b", "no root");
        suite.refuse_skips_except(&expected);
        assert!(suite.close().is_err());
        assert_eq!(suite.skipped.len(), 1);
        assert_eq!(suite.failed.len(), 1);
        assert!(suite.failed[0].starts_with("a::b: "), "{:?}", suite.failed);
        assert!(suite.failed[0].ends_with("no root"), "{:?}", suite.failed);
    }

    #[test]
    fn lines_of_another_process_count_the_same() {
        let mut suite = Suite::default();
        for line in [
            "ok      a (0.1 s)",
            "SKIPPED b: c",
            "FAILED  d: e",
            "1 passed, 1 failed",
        ] {
            suite.read(line);
        }
        assert_eq!(
            (suite.passed, suite.failed.len(), suite.skipped.len()),
            (1, 1, 1)
        );
        assert_eq!(
            (&*suite.skipped[0].name, &*suite.skipped[0].reason),
            ("b", "c")
        );
    }
}
