//! The programs a bench runs: the server that is measured and the instruments it is measured with.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use testbed::program::Program;

/// Where they are, as typed.
#[derive(Args, Clone, Debug)]
pub(crate) struct BinaryOptions {
    /// The server to measure, of whatever version (default: builds atlas, release)
    #[arg(long, value_name = "PATH")]
    atlas: Option<PathBuf>,
    /// The instruments to measure with, of this version (default: builds atlas-bench, release)
    #[arg(long, value_name = "PATH")]
    bench_binary: Option<PathBuf>,
}

/// Where they are.
#[derive(Clone, Debug)]
pub(crate) struct Binaries {
    /// `atlas`.
    pub(crate) server: PathBuf,
    /// `atlas-bench`.
    pub(crate) instruments: PathBuf,
}

impl BinaryOptions {
    /// Finds both. Before memory is taken and cores are measured: this may compile.
    pub(crate) fn find(&self) -> Result<Binaries> {
        Ok(Binaries {
            server: Program::Atlas.find(self.atlas.as_deref())?,
            instruments: Program::AtlasBench.find(self.bench_binary.as_deref())?,
        })
    }
}
