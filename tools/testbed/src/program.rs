//! The workspace's own programs, as files: those the command line names, else release builds made here.
//!
//! Each is built by a `cargo build` of its own. One build of several packages would unite the
//! features of what they share, and the server measured would not be the one that is released. It
//! refuses a file that is not there. Bounded by: half an hour for a build.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::process::{Process, background_cargo};
use crate::{target_directory, workspace_root};

/// A first build on a small machine takes minutes.
const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// A program of this workspace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Program {
    /// The server.
    Atlas,
    /// The instruments: load generator, middlebox, disk and stages.
    AtlasBench,
    /// What fills an edge.
    AtlasFill,
    /// What tells players of edges.
    AtlasSteer,
}

impl Program {
    /// The binary's name.
    fn name(self) -> &'static str {
        match self {
            Self::Atlas => "atlas",
            Self::AtlasBench => "atlas-bench",
            Self::AtlasFill => "atlas-fill",
            Self::AtlasSteer => "atlas-steer",
        }
    }

    fn package(self) -> &'static str {
        match self {
            Self::Atlas => "atlas-server",
            Self::AtlasBench => "atlas-bench",
            Self::AtlasFill => "atlas-fill",
            Self::AtlasSteer => "atlas-steer",
        }
    }

    /// The file `given`, or the release build, brought up to date.
    pub fn find(self, given: Option<&Path>) -> Result<PathBuf> {
        let path = match given {
            Some(path) => path.to_path_buf(),
            None => self.build()?,
        };
        path.canonicalize()
            .with_context(|| format!("no {} at {}", self.name(), path.display()))
    }

    /// Builds it in a thread while other work waits for something else than a processor. What does not build is
    /// reported where it is looked for, since it is built again there. Whoever ends before the thread leaves a cargo behind.
    #[must_use = "the thread is to be joined"]
    pub fn build_ahead(self) -> JoinHandle<()> {
        std::thread::spawn(move || {
            let _ = self.build_by(background_cargo());
        })
    }

    /// Where the dev build is that the tests of its package have made.
    #[must_use]
    pub fn dev_path(self) -> PathBuf {
        target_directory().join("debug").join(self.name())
    }

    fn build(self) -> Result<PathBuf> {
        self.build_by(Command::new("cargo"))
    }

    fn build_by(self, mut cargo: Command) -> Result<PathBuf> {
        cargo
            .args(["build", "--quiet", "--release", "--package"])
            .arg(self.package())
            .current_dir(workspace_root());
        let status = Process::spawn_tree("cargo build", &mut cargo)?.wait(BUILD_LIMIT)?;
        ensure!(
            status.success(),
            "{} does not build (cargo: {status})",
            self.name()
        );
        Ok(target_directory().join("release").join(self.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_given_is_taken_and_one_that_is_not_there_refused() {
        let given = tempfile::NamedTempFile::new().expect("a file");
        let found = Program::AtlasBench
            .find(Some(given.path()))
            .expect("it is there");
        assert_eq!(found.file_name(), given.path().file_name());
        let error = Program::AtlasBench
            .find(Some(Path::new("/no/such/file")))
            .expect_err("nothing there");
        assert!(
            error.to_string().contains("no atlas-bench at /no/such"),
            "{error}"
        );
    }
}
