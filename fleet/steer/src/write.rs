//! Manifests as files, which Atlas serves itself, so that a small fleet needs no further server.
//!
//! A file is replaced by renaming a new one over it, and only when its content changes. It is for all clients: in one
//! file every client has the same order, so clients spread over a title's holders by titles only. Bounded by
//! [`TITLES_MAX`].

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use tempfile::NamedTempFile;

use crate::request::{PATH_BYTES_MAX, Question};
use crate::steering::Steering;

/// Most titles that manifests are written for.
pub const TITLES_MAX: usize = 1_000_000;

/// The name of a manifest's file.
pub const FILE_NAME: &str = "steering.json";

/// Where manifests are written, and of what.
#[derive(Clone, Debug)]
pub struct Writer {
    directory: PathBuf,
    titles: Vec<String>,
}

/// What a round wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Files whose content changed.
    pub changed: usize,
    /// Files that were right.
    pub kept: usize,
}

impl Writer {
    /// A writer into a directory, for the paths of a file, one a line.
    ///
    /// # Errors
    /// A file that cannot be read, or has a line that is no path.
    pub fn new(directory: &Path, titles: Option<&Path>) -> Result<Self> {
        let titles = match titles {
            Some(path) => {
                let text = fs::read_to_string(path);
                let text = text.with_context(|| format!("reading {}", path.display()))?;
                parse_titles(&text).with_context(|| path.display().to_string())?
            }
            None => Vec::new(),
        };
        Ok(Self {
            directory: directory.to_owned(),
            titles,
        })
    }

    /// Brings the files to what the registry says now.
    ///
    /// # Errors
    /// A file that cannot be written. Those before it are.
    pub fn write(&self, steering: &Steering) -> Result<Written> {
        let mut written = Written::default();
        let all = Question::default();
        self.write_one(steering, &all, &self.directory, &mut written)?;
        for title in &self.titles {
            let question = Question {
                path: format!("/{title}"),
                ..Question::default()
            };
            self.write_one(
                steering,
                &question,
                &self.directory.join(title),
                &mut written,
            )?;
        }
        Ok(written)
    }

    fn write_one(
        &self,
        steering: &Steering,
        question: &Question,
        folder: &Path,
        written: &mut Written,
    ) -> Result<()> {
        let text = steering.manifest(question, None).to_json();
        let path = folder.join(FILE_NAME);
        if fs::read(&path).is_ok_and(|old| old == text.as_bytes()) {
            written.kept += 1;
            return Ok(());
        }
        let write = || -> std::io::Result<()> {
            fs::create_dir_all(folder)?;
            let mut file = NamedTempFile::new_in(folder)?;
            file.write_all(text.as_bytes())?;
            file.as_file()
                .set_permissions(fs::Permissions::from_mode(0o644))?;
            file.persist(&path)?;
            Ok(())
        };
        write().with_context(|| format!("writing {}", path.display()))?;
        written.changed += 1;
        Ok(())
    }
}

/// Paths, one a line, without the slash at their beginning. None leads out of the directory.
fn parse_titles(text: &str) -> Result<Vec<String>> {
    let mut titles = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let title = line.trim().trim_matches('/');
        if title.is_empty() || title.starts_with('#') {
            continue;
        }
        let is_inside = Path::new(title)
            .components()
            .all(|it| matches!(it, Component::Normal(_)));
        ensure!(
            is_inside && title.len() < PATH_BYTES_MAX && !title.contains(char::is_control),
            "line {}: {title:?} is no path of a title",
            index + 1
        );
        titles.push(title.to_owned());
        ensure!(titles.len() <= TITLES_MAX, "more than {TITLES_MAX} titles");
    }
    Ok(titles)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_paths_that_stay_inside() {
        let text = "# films\n/films/alien/\n\n  films/aliens\n";
        assert_eq!(parse_titles(text).unwrap(), ["films/alien", "films/aliens"]);
        for line in ["../x", "a/../b", "a\u{7}", &"a".repeat(PATH_BYTES_MAX)] {
            let error = parse_titles(&format!("ok\n{line}\n")).unwrap_err();
            assert!(error.to_string().starts_with("line 2: "), "{error}");
        }
        assert_eq!(
            parse_titles(&"a".repeat(PATH_BYTES_MAX - 1)).unwrap().len(),
            1
        );
    }
}
