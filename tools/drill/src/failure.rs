//! Why a script failed, in a form worth reading.

use core::fmt;

/// A failed script: the line, what was expected, what was seen, and what happened before it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The script's file.
    pub file: String,
    /// The line, from 1; 0: the settings.
    pub line: usize,
    /// The line's text.
    pub text: String,
    /// What was expected and what was seen, each on a line.
    pub problem: String,
    /// The end of the trace.
    pub before: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}:{}: {}", self.file, self.line, self.text)?;
        for line in self.problem.lines() {
            writeln!(formatter, "  {line}")?;
        }
        writeln!(formatter, "  what happened:")?;
        for line in &self.before {
            writeln!(formatter, "    {line}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}
