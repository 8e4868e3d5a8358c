//! Runs named checks one after another and remembers how each went.

use std::time::Instant;

use anyhow::Result;

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
    /// Name and reason of each check that was not tried.
    pub skipped: Vec<String>,
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
        self.skipped.push(format!("{name}: {reason}"));
    }

    /// Counts a line that a suite in another process has printed.
    pub fn read(&mut self, line: &str) {
        if line.starts_with("ok      ") {
            self.passed += 1;
        } else if let Some(check) = line.strip_prefix("SKIPPED ") {
            self.skipped.push(check.to_owned());
        } else if let Some(check) = line.strip_prefix("FAILED  ") {
            self.failed.push(check.to_owned());
        }
    }

    /// Whether nothing failed.
    pub fn is_good(&self) -> bool {
        self.failed.is_empty()
    }

    /// Prints the list of what was skipped and failed, then the closing line.
    pub fn close(&self) {
        for line in &self.skipped {
            println!("skipped: {line}");
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
    }
}
