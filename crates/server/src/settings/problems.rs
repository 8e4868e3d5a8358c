//! All that is wrong with the settings, to be told at once.
//!
//! It refuses to tell more than [`PROBLEMS_MAX`].

use super::file::FileText;
use crate::failure::Failure;

/// Most problems that are told at once.
const PROBLEMS_MAX: usize = 20;

/// What was wrong so far.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<Failure>);

impl Problems {
    /// Those that were found when the file was read.
    pub(super) fn of_file(source: &FileText) -> Self {
        Self(source.problems().to_vec())
    }

    /// The value, or the default in place of one that is wrong.
    pub(super) fn take<T: Default>(&mut self, result: Result<T, Failure>) -> T {
        self.take_some(result).unwrap_or_default()
    }

    /// The value, if it is right.
    pub(super) fn take_some<T>(&mut self, result: Result<T, Failure>) -> Option<T> {
        result
            .map_err(|failure| self.0.extend(failure.into_reasons()))
            .ok()
    }

    /// Whether nothing is wrong so far.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All that was wrong, in the order of the file, after what is wrong with flags.
    pub(super) fn finish(mut self, source: &FileText) -> Result<(), Failure> {
        self.0
            .sort_by_cached_key(|failure| source.place_in(&failure.to_string()));
        let left_out = self.0.len().saturating_sub(PROBLEMS_MAX);
        self.0.truncate(PROBLEMS_MAX);
        if left_out > 0 {
            self.0.push(Failure::Refused(format!(
                "and {left_out} more that are not told"
            )));
        }
        Failure::all(self.0)
    }
}
