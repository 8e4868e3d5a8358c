//! Things that happen in the middle of a transfer: to the file, the client, the interface and the
//! server. Every byte that arrives is compared; a cut is allowed only where the file changed.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;

use super::files::{self, LARGE_BYTES, Library, name};
use super::stage::{Family, Stage};
use crate::harness::client::{BodyEnd, Client};
use crate::harness::content::Content;
use crate::harness::process::{Process, await_readable};
use crate::harness::suite::{Outcome, Suite};

/// Taken before the trouble begins: the transfer is well under way, and the rest is far more than
/// the server can have sent ahead.
const FIRST_BYTES: u64 = 1 << 20;

/// What may happen to a file while it is being sent.
#[derive(Clone, Copy, Debug)]
enum Change {
    Truncate,
    Overwrite,
    Append,
    Remove,
    RenameAway,
    RenameOver,
}

impl Change {
    const ALL: [Self; 6] = [
        Self::Truncate,
        Self::Overwrite,
        Self::Append,
        Self::Remove,
        Self::RenameAway,
        Self::RenameOver,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Truncate => "truncated",
            Self::Overwrite => "overwritten",
            Self::Append => "appended to",
            Self::Remove => "removed",
            Self::RenameAway => "renamed",
            Self::RenameOver => "replaced",
        }
    }

    /// Whether the transfer must go on: the ways in which files are taken away and replaced.
    /// Otherwise it may be cut, but must not go wrong.
    fn must_go_on(self) -> bool {
        matches!(self, Self::Remove | Self::RenameOver)
    }

    fn make(self, path: &Path) -> Result<()> {
        let write = || OpenOptions::new().write(true).open(path);
        match self {
            Self::Truncate => write()?.set_len(FIRST_BYTES)?,
            Self::Overwrite => overwrite(&write()?, other_content())?,
            Self::Append => OpenOptions::new()
                .append(true)
                .open(path)?
                .write_all(b"more")?,
            Self::Remove => fs::remove_file(path)?,
            Self::RenameAway => fs::rename(path, path.with_extension("moved"))?,
            Self::RenameOver => {
                let next = path.with_extension("next");
                other_content().write(&next)?;
                fs::rename(next, path)?;
            }
        }
        Ok(())
    }
}

/// Writes other bytes over all of a file, in place.
fn overwrite(file: &File, other: Content) -> Result<()> {
    let mut piece = vec![0; 1 << 20];
    let mut at = 0;
    while at < other.size_bytes {
        other.fill(at, &mut piece);
        file.write_all_at(&piece, at)?;
        at += piece.len() as u64;
    }
    Ok(file.sync_all()?)
}

/// Checks that share one server.
pub(crate) fn run(suite: &mut Suite, stage: &Stage, library: &Library) {
    for change in Change::ALL {
        let label = format!("{} file {} in mid-transfer", stage.name(), change.label());
        suite.run(&label, || change_under_transfer(stage, library, change));
    }
    suite.run(
        &format!("{} client stops reading, then goes on", stage.name()),
        || stall(stage),
    );
    suite.run(
        &format!("{} client killed in mid-transfer", stage.name()),
        || killed_client(stage),
    );
    suite.run(
        &format!("{} interface down and up in mid-transfer", stage.name()),
        || interface_down(stage),
    );
}

/// Asks for the large file, or `path`, and takes the first of it.
fn begin(stage: &Stage, path: &str) -> Result<(Client, Content)> {
    let content = files::content(LARGE_BYTES);
    let mut client = stage.connect(Family::V4)?;
    client.ask("GET", path, "")?;
    let head = client.read_head()?;
    ensure!(head.status == 200, "{}", head.status);
    client.read_checked(content, 0, FIRST_BYTES)?;
    Ok((client, content))
}

/// Takes the rest of a transfer begun.
fn finish(mut client: Client, content: Content) -> Result<()> {
    client.read_checked(content, FIRST_BYTES, LARGE_BYTES - FIRST_BYTES)
}

fn change_under_transfer(stage: &Stage, library: &Library, change: Change) -> Result<Outcome> {
    // A name for each: what the server remembers of one must not touch the next.
    let name = format!("{}.mp4", change.label().replace(' ', "-"));
    let path = library.root().join(&name);
    files::content(LARGE_BYTES).write(&path)?;
    let (mut client, content) = begin(stage, &format!("/{name}"))?;
    change.make(&path)?;
    let rest = LARGE_BYTES - FIRST_BYTES;
    let end = client.read_until_cut(content, FIRST_BYTES, rest)?;
    match end {
        BodyEnd::Cut(bytes) if change.must_go_on() => {
            bail!("cut after {bytes} bytes though nothing was lost")
        }
        BodyEnd::Whole if matches!(change, Change::Truncate | Change::Overwrite) => {
            bail!("whole, though the bytes were gone")
        }
        _ => {}
    }
    if matches!(change, Change::RenameOver) {
        await_content(stage, &format!("/{name}"), other_content())?;
    }
    for extension in ["mp4", "moved"] {
        let _ = fs::remove_file(path.with_extension(extension));
    }
    files::fetch(stage, Family::V4, 4097).context("afterwards")?;
    Ok(Outcome::Passed)
}

/// A file that replaced another is served before long, and from its first byte.
fn await_content(stage: &Stage, path: &str, content: Content) -> Result<()> {
    /// The server may believe for a second or two that it knows the file.
    const LIMIT: Duration = Duration::from_secs(10);
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut client = stage.connect(Family::V4)?;
        let (head, first) = client.exchange("GET", path, "Range: bytes=0-4095\r\n")?;
        ensure!(head.status == 206, "{}", head.status);
        if content.check(0, &first).is_ok() {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "still the file that was replaced"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// What a file holds after it was overwritten or replaced.
fn other_content() -> Content {
    Content::new(99, LARGE_BYTES)
}

/// A client that takes nothing for a while closes its window; what follows must still be right.
fn stall(stage: &Stage) -> Result<Outcome> {
    /// Long enough for the window to close and be probed a few times.
    const STALL: Duration = Duration::from_secs(3);
    let (client, content) = begin(stage, &name(LARGE_BYTES))?;
    std::thread::sleep(STALL);
    finish(client, content)?;
    Ok(Outcome::Passed)
}

fn killed_client(stage: &Stage) -> Result<Outcome> {
    let url = format!("http://{}{}", stage.address(Family::V4)?, name(LARGE_BYTES));
    let mut command = stage.client().command("curl");
    command
        .args(["--silent", &url])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut curl = Process::spawn("curl", &mut command)?;
    let mut stdout = curl
        .child()
        .stdout
        .take()
        .context("curl's stdout is piped")?;
    await_readable(&stdout)?;
    // Some of the body has arrived: the transfer is under way, and the pipe now holds it up.
    std::io::Read::read_exact(&mut stdout, &mut [0; 4096])?;
    curl.signal(Signal::KILL)?;
    curl.wait(Duration::from_secs(10))?;
    files::fetch(stage, Family::V4, 300_000).context("afterwards")?;
    Ok(Outcome::Passed)
}

fn interface_down(stage: &Stage) -> Result<Outcome> {
    let (client, content) = begin(stage, &name(LARGE_BYTES))?;
    stage
        .server()
        .ip(&format!("link set {} down", stage.interface()))?;
    stage
        .server()
        .ip(&format!("link set {} up", stage.interface()))?;
    finish(client, content)?;
    files::fetch(stage, Family::V4, 4097).context("afterwards")?;
    Ok(Outcome::Passed)
}

/// SIGTERM in mid-transfer: the reply is finished, then the server ends well and leaves nothing.
pub(crate) fn terminate(stage: &Stage, library: &Library, config: &Path) -> Result<Outcome> {
    let server = stage.start(library.root(), Some(config))?;
    let (client, content) = begin(stage, &name(LARGE_BYTES))?;
    server.signal(Signal::TERM)?;
    finish(client, content)?;
    let stopped = server.wait()?;
    ensure!(
        stopped.status.code() == Some(0),
        "{}: {}",
        stopped.status,
        stopped.last_words()
    );
    ensure!(
        stopped.counter("http_reply_count")? >= 1,
        "the summary counts no reply: {}",
        stopped.last_words()
    );
    if stage.name() == "tap" {
        let left = stage.server().ip("-o link show")?;
        ensure!(
            !left.contains(stage.interface()),
            "the TAP is still there: {left}"
        );
    }
    Ok(Outcome::Passed)
}

/// A server with nothing to do, but with a connection open, uses no CPU.
pub(crate) fn idle(stage: &Stage, library: &Library) -> Result<Outcome> {
    /// How long it is watched.
    const WATCH: Duration = Duration::from_secs(5);
    /// Clock ticks of 10 ms it may use meanwhile.
    const TICKS_MAX: u64 = 2;
    let server = stage.start(library.root(), None)?;
    let mut client = stage.connect(Family::V4)?;
    let (head, _) = client.exchange("GET", &name(300_000), "")?;
    ensure!(head.status == 200, "{}", head.status);
    let before = server.cpu_ticks()?;
    std::thread::sleep(WATCH);
    let ticks = server.cpu_ticks()? - before;
    ensure!(
        ticks <= TICKS_MAX,
        "{ticks} ticks of 10 ms in {} s",
        WATCH.as_secs()
    );
    drop(client);
    let stopped = server.stop()?;
    ensure!(
        stopped.status.code() == Some(0),
        "{}: {}",
        stopped.status,
        stopped.last_words()
    );
    Ok(Outcome::Passed)
}
