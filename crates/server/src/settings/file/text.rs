//! The text of a configuration file, and where in it each value is, so that messages can say file, line and column.
//!
//! It refuses to read again: the line shown is the one that was read. Bounds: the file, and [`SHOWN_MAX`] characters
//! of a line.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Most characters of a line that are shown.
const SHOWN_MAX: usize = 120;

/// A configuration file that was read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct FileText {
    path: PathBuf,
    text: String,
    /// Where the value of each key is: of `slots`, `site[2].rule[0].cors`.
    pub(super) spans: BTreeMap<String, Range<usize>>,
    /// What is wrong in it, whatever the other settings are.
    pub(super) problems: Vec<Failure>,
}

impl FileText {
    pub(super) fn new(path: &Path, text: String) -> Self {
        Self {
            path: path.to_path_buf(),
            text,
            ..Self::default()
        }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// What is wrong in it, whatever the other settings are.
    pub(crate) fn problems(&self) -> &[Failure] {
        &self.problems
    }

    /// `FILE:LINE:COLUMN` of the value of a key, or of the table that it would be in; else `FILE`.
    pub(crate) fn place(&self, mut key: &str) -> String {
        loop {
            if let Some(span) = self.spans.get(key) {
                return self.place_at(span.start);
            }
            match key.rfind(['.', '[']) {
                Some(end) => key = &key[..end],
                None => return self.path.display().to_string(),
            }
        }
    }

    /// `FILE:LINE:COLUMN` of a byte.
    pub(super) fn place_at(&self, offset: usize) -> String {
        let before = self.text.get(..offset).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        let column = before[start..].chars().count() + 1;
        format!("{}:{line}:{column}", self.path.display())
    }

    /// The line and column that a message begins with, both from 1.
    pub(crate) fn place_in(&self, message: &str) -> Option<(usize, usize)> {
        let path = self.path.display().to_string();
        let rest = message.strip_prefix(&path)?.strip_prefix(':')?;
        let mut numbers = rest.split(':').map(|number| number.parse().ok());
        Some((numbers.next()??, numbers.next()??))
    }

    /// The line that a message begins with the place of, and a mark below the column.
    pub(crate) fn excerpt(&self, message: &str) -> Option<String> {
        let (line, column) = self.place_in(message)?;
        let line = self.text.lines().nth(line.checked_sub(1)?)?;
        // Of a long line, what is around the column.
        let left_out = column.saturating_sub(SHOWN_MAX / 2);
        let left_out = if line.chars().count() > SHOWN_MAX {
            left_out
        } else {
            0
        };
        let shown = line.chars().skip(left_out).take(SHOWN_MAX);
        let shown: String = shown
            .map(|it| if it.is_control() { ' ' } else { it })
            .collect();
        let indent = " ".repeat(column.saturating_sub(left_out + 1));
        Some(format!("  | {shown}\n  | {indent}^"))
    }
}

/// A key without the numbers of its tables: `certificate.cert` of `certificate[1].cert`.
pub(crate) fn name_of(key: &str) -> String {
    let parts = key
        .split('[')
        .map(|part| part.split_once(']').map_or(part, |(_, rest)| rest));
    parts.collect()
}
