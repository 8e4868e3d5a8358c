//! Whole files fetched by curl: every byte right, over both links and both protocols, with and
//! without loss.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};

use super::stage::{Family, Stage};
use crate::harness::content::Content;
use crate::harness::process::{Process, await_readable};
use crate::harness::suite::{Outcome, Suite};

/// Sizes on both sides of a block, nothing, and a chunk of a film.
const SIZES_BYTES: [u64; 7] = [0, 1, 4095, 4096, 4097, 300_000, 8 << 20];

/// The file the slow and interrupted transfers use: far more than sockets and windows hold.
pub(crate) const LARGE_BYTES: u64 = 64 << 20;

/// The file that is fetched once whole.
const HUGE_BYTES: u64 = 1_000_000_000;

/// Seconds curl may take for one file.
const FETCH_SECONDS_MAX: u64 = 60;

/// The files on the disk.
#[derive(Debug)]
pub(crate) struct Library {
    directory: tempfile::TempDir,
}

impl Library {
    /// Writes the small files and the large one.
    pub(crate) fn new() -> Result<Self> {
        let library = Self {
            directory: crate::harness::scratch_directory("files")?,
        };
        for size in SIZES_BYTES.into_iter().chain([LARGE_BYTES]) {
            library.add(size)?;
        }
        Ok(library)
    }

    fn add(&self, size_bytes: u64) -> Result<Content> {
        let content = content(size_bytes);
        content.write(&self.path(size_bytes))?;
        Ok(content)
    }

    /// The directory to serve.
    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }

    /// Where the file of a size is.
    pub(crate) fn path(&self, size_bytes: u64) -> PathBuf {
        self.root().join(&name(size_bytes)[1..])
    }
}

/// What the file of a size holds. The size is the seed: no two files share a byte sequence.
pub(crate) fn content(size_bytes: u64) -> Content {
    Content::new(size_bytes + 1, size_bytes)
}

/// The path the file of a size is asked for by.
pub(crate) fn name(size_bytes: u64) -> String {
    format!("/{size_bytes}.mp4")
}

/// All checks of whole files on one stage.
pub(crate) fn run(suite: &mut Suite, stage: &Stage, library: &Library, with_huge: bool) {
    for family in Family::BOTH {
        let label = format!("{} {} files bit-exact by curl", stage.name(), family.name());
        suite.run(&label, || {
            for size in SIZES_BYTES {
                fetch(stage, family, size)?;
            }
            Ok(Outcome::Passed)
        });
    }
    if with_huge {
        let label = format!("{} 1 GB bit-exact by curl, IPv4 and IPv6", stage.name());
        suite.run(&label, || {
            library.add(HUGE_BYTES)?;
            let fetched = Family::BOTH
                .into_iter()
                .try_for_each(|family| fetch(stage, family, HUGE_BYTES));
            std::fs::remove_file(library.path(HUGE_BYTES))?;
            fetched.map(|()| Outcome::Passed)
        });
    }
}

/// The small files and many chunks under loss.
pub(crate) fn run_lossy(suite: &mut Suite, stage: &Stage) {
    for family in Family::BOTH {
        let label = format!(
            "{} {} files bit-exact under 2 % loss",
            stage.name(),
            family.name()
        );
        suite.run(&label, || lossy(stage, family));
    }
}

/// The small files again, and many chunks, while packets are dropped in both directions.
fn lossy(stage: &Stage, family: Family) -> Result<Outcome> {
    /// Enough packets that some of them are lost.
    const CHUNKS: usize = 20;
    let _loss = match stage.lose_packets() {
        Ok(guard) => guard,
        Err(reason) => return Ok(Outcome::Skipped(reason)),
    };
    for size in SIZES_BYTES.into_iter().chain([300_000; CHUNKS]) {
        fetch(stage, family, size)?;
    }
    Ok(Outcome::Passed)
}

/// Fetches one file with curl and compares every byte as it arrives.
pub(crate) fn fetch(stage: &Stage, family: Family, size_bytes: u64) -> Result<()> {
    let url = format!("http://{}{}", stage.address(family)?, name(size_bytes));
    let mut command = stage.client().command("curl");
    command.args(["--silent", "--show-error", "--fail", "--max-time"]);
    command.args([&FETCH_SECONDS_MAX.to_string(), &url]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut curl = Process::spawn("curl", &mut command)?;
    let mut stdout = curl
        .child()
        .stdout
        .take()
        .context("curl's stdout is piped")?;
    let content = content(size_bytes);
    let mut piece = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        await_readable(&stdout)?;
        let count = stdout.read(&mut piece).context("reading from curl")?;
        if count == 0 {
            break;
        }
        content
            .check(at, &piece[..count])
            .with_context(|| url.clone())?;
        at += count as u64;
    }
    let status = curl.wait(std::time::Duration::from_secs(FETCH_SECONDS_MAX))?;
    let mut complaint = String::new();
    if let Some(mut stderr) = curl.child().stderr.take() {
        stderr.read_to_string(&mut complaint)?;
    }
    ensure!(
        status.success(),
        "{url}: {} ({at} bytes, {status})",
        complaint.trim()
    );
    ensure!(
        at == size_bytes,
        "{url}: {at} bytes instead of {size_bytes}"
    );
    Ok(())
}
