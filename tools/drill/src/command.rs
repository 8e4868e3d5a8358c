//! `cargo xtask drill FILE...`: runs scripts and prints everything that happened in them.
#![expect(clippy::print_stdout, reason = "a command speaks to its terminal")]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::{Failure, ParseError, Trace, parse, run};

/// Why scripts did not pass.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// There is no file to run.
    #[error("name one script or more: cargo xtask drill FILE...")]
    NoFile,
    /// A file cannot be read.
    #[error("{}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A file is no script.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// A script failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Runs one script.
///
/// # Errors
/// It cannot be read, is no script, or fails.
pub fn run_file(path: &Path) -> Result<(), CommandError> {
    run_traced(path)?.1.map_err(CommandError::from)
}

/// Runs scripts and prints their traces.
///
/// # Errors
/// Those of the first script that does not pass.
pub fn run_command(arguments: impl Iterator<Item = String>) -> Result<(), CommandError> {
    let mut count = 0;
    for file in arguments {
        count += 1;
        let (trace, result) = run_traced(Path::new(&file))?;
        println!("{file}");
        for line in trace {
            println!("  {line}");
        }
        result?;
        println!("  passed");
    }
    if count == 0 {
        return Err(CommandError::NoFile);
    }
    Ok(())
}

fn run_traced(path: &Path) -> Result<(Trace, Result<(), Failure>), CommandError> {
    let text = fs::read_to_string(path).map_err(|error| CommandError::Unreadable {
        path: path.to_owned(),
        error,
    })?;
    let script = parse(&path.display().to_string(), &text)?;
    Ok(run(&script))
}
