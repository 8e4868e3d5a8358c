//! The skips that are expected somewhere: a file that names them, and the close of a suite that refuses others.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use testbed::interrupt;
use testbed::suite::Suite;

/// Names of checks that may be skipped; without a file, all may.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    file: Option<(PathBuf, Vec<String>)>,
}

impl Expected {
    /// Reads a file of names, one a line; what follows a # is a comment.
    pub(crate) fn read(file: Option<&Path>) -> Result<Self> {
        let Some(file) = file else {
            return Ok(Self::default());
        };
        let text =
            fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        Ok(Self {
            file: Some((file.to_path_buf(), names(&text))),
        })
    }

    /// Closes a suite, in which skips that are not expected have failed.
    pub(crate) fn close(&self, mut suite: Suite) -> Result<()> {
        println!();
        if let Some((file, names)) = &self.file
            && !interrupt::is_set()
        {
            suite.refuse_skips_except(names);
            println!(
                "skips: {} names those expected; make what is missing available, or add the check's \
                 name there",
                file.display()
            );
        }
        suite.close()
    }
}

fn names(text: &str) -> Vec<String> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Expected, names};
    use testbed::suite::Suite;

    #[test]
    fn names_are_read_without_comments() {
        let text = "# why\n\na::one\n  netns  # no namespaces there\nan object is served\n";
        assert_eq!(names(text), ["a::one", "netns", "an object is served"]);
    }

    #[test]
    fn a_skip_fails_only_beside_a_file_that_does_not_name_it() {
        let skipped = || {
            let mut suite = Suite::default();
            suite.skip("a::one", "no root");
            suite
        };
        assert!(Expected::default().close(skipped()).is_ok());
        let naming = |name: &str| Expected {
            file: Some(("list".into(), vec![name.to_owned()])),
        };
        assert!(naming("a::one").close(skipped()).is_ok());
        assert!(naming("a::two").close(skipped()).is_err());
    }
}
