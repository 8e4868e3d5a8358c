//! The programs a bench runs: the server that is measured and the instruments it is measured with.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::lab::Contender;
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

/// Where the server that emulates TLS is, as typed.
#[derive(Args, Clone, Debug)]
pub(crate) struct EmulationOptions {
    /// The server that emulates TLS (default: builds atlas-emulate, release)
    #[arg(long, value_name = "PATH")]
    emulate_binary: Option<PathBuf>,
}

impl EmulationOptions {
    /// Finds it. Before memory is taken and cores are measured: this may compile.
    pub(crate) fn find(&self) -> Result<Contender> {
        let found = Program::AtlasEmulate.find(self.emulate_binary.as_deref())?;
        Ok(Contender::AtlasEmulated(found))
    }
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
