//! Parts of a page that a program writes: what stands between two markers, comments of Markdown.
//!
//! The rest of a page is prose that people write. It refuses a page without both markers. Bounded by the page.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// A part of a page.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The page, from the workspace's top directory.
    pub page: &'static str,
    /// The part's name in the page.
    pub name: &'static str,
    /// What writes it.
    pub command: &'static str,
}

impl Part {
    fn begin(self) -> String {
        let Self { name, command, .. } = self;
        format!("<!-- {name}: written by {command}, not to be edited -->\n")
    }

    fn end(self) -> String {
        format!("<!-- end of {} -->\n", self.name)
    }

    /// What `page` has before the part, as the part, and behind it.
    fn split(self, page: &str) -> Result<(&str, &str, &str)> {
        let Self { page: path, .. } = self;
        let (begin, end) = (self.begin(), self.end());
        let parts = page.split_once(&begin);
        let (before, rest) = parts.with_context(|| format!("{path}: no line {begin}"))?;
        let parts = rest.split_once(&end);
        let (part, behind) = parts.with_context(|| format!("{path}: no line {end}"))?;
        Ok((before, part, behind))
    }

    /// What `page` has as this part.
    ///
    /// # Errors
    /// The page lacks a marker.
    pub fn of(self, page: &str) -> Result<&str> {
        self.split(page).map(|(_, part, _)| part)
    }

    /// `page` with `text` as this part.
    ///
    /// # Errors
    /// The page lacks a marker.
    pub fn put(self, page: &str, text: &str) -> Result<String> {
        let (before, _, behind) = self.split(page)?;
        Ok([before, &self.begin(), text, &self.end(), behind].concat())
    }

    /// Writes `text` into the page of the workspace at `root`.
    ///
    /// # Errors
    /// The page cannot be read or written, or lacks a marker.
    pub fn write(self, root: &Path, text: &str) -> Result<()> {
        let path = root.join(self.page);
        let old = fs::read_to_string(&path).with_context(|| format!("reading {}", self.page))?;
        let new = self.put(&old, text)?;
        fs::write(&path, new).with_context(|| format!("writing {}", self.page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: Part = Part {
        page: "page.md",
        name: "table",
        command: "a command",
    };

    #[test]
    fn a_part_takes_the_place_of_the_old_one() {
        let (begin, end) = (PART.begin(), PART.end());
        let page = |part: &str| format!("before\n{begin}{part}{end}behind\n");
        let new = PART.put(&page("old\n"), "new\n").unwrap();
        assert_eq!(new, page("new\n"));
        assert_eq!(PART.of(&new).unwrap(), "new\n");
        assert!(PART.put("no part\n", "new\n").is_err());
        assert!(PART.put(&begin, "new\n").is_err());
    }
}
