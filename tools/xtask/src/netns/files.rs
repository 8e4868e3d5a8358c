//! Whole files fetched by curl: every byte right, over both links and both protocols, with and
//! without loss.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};

use super::identities::Identities;
use super::setup::{Family, Setup};
use testbed::content::{self, Content};
use testbed::curl::Curl;
use testbed::suite::{Outcome, Suite};

/// Nothing; sizes on both sides of a block, of a record of 15 blocks, and of the largest record
/// there may be; a chunk of a film.
const SIZES_BYTES: [u64; 13] = [
    0,
    1,
    4095,
    4096,
    4097,
    15_359,
    15_360,
    15_361,
    16_383,
    16_384,
    16_385,
    300_000,
    8 << 20,
];

/// The file the slow and interrupted transfers use: far more than sockets and windows hold.
pub(crate) const LARGE_BYTES: u64 = 64 << 20;

/// The file that is fetched once whole.
const HUGE_BYTES: u64 = 1_000_000_000;

/// The way curl goes to the server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Access<'a> {
    /// HTTP as it is.
    Http,
    /// HTTP over TLS, certificates checked.
    Https(&'a Identities),
}

impl Access<'_> {
    /// The scheme in URLs and check names.
    pub(crate) fn scheme(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https(_) => "https",
        }
    }

    /// Where a path is.
    pub(crate) fn url(self, setup: &Setup, family: Family, path: &str) -> Result<String> {
        let address = self.address(setup, family)?;
        Ok(format!("{}://{address}{path}", self.scheme()))
    }

    /// Where the server listens for this.
    pub(crate) fn address(self, setup: &Setup, family: Family) -> Result<SocketAddr> {
        match self {
            Self::Http => setup.address(family),
            Self::Https(_) => setup.https_address(family),
        }
    }

    /// What curl must be told to trust the server.
    pub(crate) fn options(self) -> Vec<String> {
        match self {
            Self::Http => Vec::new(),
            Self::Https(identities) => identities.curl_options(),
        }
    }
}

/// The files on the disk.
#[derive(Debug)]
pub(crate) struct Library {
    directory: tempfile::TempDir,
}

impl Library {
    /// Writes the small files and the large one.
    pub(crate) fn new() -> Result<Self> {
        let library = Self {
            directory: testbed::scratch_directory("files")?,
        };
        for size in SIZES_BYTES.into_iter().chain([LARGE_BYTES]) {
            library.add(size)?;
        }
        Ok(library)
    }

    fn add(&self, size_bytes: u64) -> Result<Content> {
        let (content, path) = (content(size_bytes), self.path(size_bytes));
        content::write(content, &path)?;
        age(&path)?;
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

/// Dates a file far enough back that it has strong validators, and the longest `Cache-Control`.
pub(crate) fn age(path: &Path) -> Result<()> {
    const HOURS_2: Duration = Duration::from_secs(2 * 3600);
    let file = std::fs::File::options().write(true).open(path)?;
    let times = std::fs::FileTimes::new().set_modified(SystemTime::now() - HOURS_2);
    file.set_times(times)
        .with_context(|| format!("dating {path:?}"))
}

/// What the file of a size holds. The size is the seed: no two files share a byte sequence.
pub(crate) fn content(size_bytes: u64) -> Content {
    Content::new(size_bytes + 1, size_bytes)
}

/// The path the file of a size is asked for by.
pub(crate) fn name(size_bytes: u64) -> String {
    format!("/{size_bytes}.mp4")
}

/// All checks of whole files on one setup.
pub(crate) fn run(
    suite: &mut Suite,
    setup: &Setup,
    library: &Library,
    access: Access<'_>,
    with_huge: bool,
) {
    let scheme = access.scheme();
    for family in Family::BOTH {
        let label = format!(
            "{} {} {scheme} files bit-exact by curl",
            setup.name(),
            family.name()
        );
        suite.run(&label, || {
            for size in SIZES_BYTES {
                fetch(setup, access, family, size)?;
            }
            Ok(Outcome::Passed)
        });
    }
    if with_huge {
        let label = format!(
            "{} {scheme} 1 GB bit-exact by curl, IPv4 and IPv6",
            setup.name()
        );
        suite.run(&label, || {
            library.add(HUGE_BYTES)?;
            let fetched = Family::BOTH
                .into_iter()
                .try_for_each(|family| fetch(setup, access, family, HUGE_BYTES));
            std::fs::remove_file(library.path(HUGE_BYTES))?;
            fetched.map(|()| Outcome::Passed)
        });
    }
}

/// The small files and many chunks under loss.
pub(crate) fn run_lossy(suite: &mut Suite, setup: &Setup, access: Access<'_>) {
    for family in Family::BOTH {
        let label = format!(
            "{} {} {} files bit-exact under 2 % loss",
            setup.name(),
            family.name(),
            access.scheme()
        );
        suite.run(&label, || lossy(setup, access, family));
    }
}

/// The small files again, and many chunks, while packets are dropped in both directions.
fn lossy(setup: &Setup, access: Access<'_>, family: Family) -> Result<Outcome> {
    /// Enough packets that some of them are lost.
    const CHUNKS: usize = 20;
    let _loss = match setup.lose_packets() {
        Ok(guard) => guard,
        Err(reason) => return Ok(Outcome::Skipped(reason)),
    };
    for size in SIZES_BYTES.into_iter().chain([300_000; CHUNKS]) {
        fetch(setup, access, family, size)?;
    }
    Ok(Outcome::Passed)
}

/// Starts curl on one file, with further options.
pub(crate) fn begin(
    setup: &Setup,
    access: Access<'_>,
    family: Family,
    size_bytes: u64,
    options: &[&str],
) -> Result<Curl> {
    let mut arguments = access.options();
    arguments.extend(options.iter().map(|&option| option.to_owned()));
    arguments.push(access.url(setup, family, &name(size_bytes))?);
    Curl::start(setup.client(), &arguments)
}

/// Fetches one file with curl and compares every byte as it arrives.
pub(crate) fn fetch(
    setup: &Setup,
    access: Access<'_>,
    family: Family,
    size_bytes: u64,
) -> Result<()> {
    let mut curl = begin(setup, access, family, size_bytes, &[])?;
    curl.read_checked(content(size_bytes), 0, size_bytes)?;
    curl.finish().map(drop)
}
