//! Things that happen in the middle of a transfer: to the file, the client, the interface and the
//! server. Every byte that arrives is compared; a cut is allowed only where the file changed.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;
use wire::TcpFlags;

use super::files::{self, Access, LARGE_BYTES, Library, name};
use super::https::Fixture;
use super::setup::{Family, Setup};
use testbed::capture::{Capture, Segment};
use testbed::content::{self, Content};
use testbed::curl::{BodyEnd, Curl};
use testbed::suite::{Outcome, Suite};

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
            Self::RenameAway => fs::rename(path, path.with_extension("nonzero_counters"))?,
            Self::RenameOver => {
                let next = path.with_extension("next");
                content::write(other_content(), &next)?;
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

/// Checks that share one server; with what may happen to files, or without.
pub(crate) fn run(suite: &mut Suite, fixture: Fixture<'_>, access: Access<'_>, with_changes: bool) {
    let label = |what: &str| format!("{} {} {what}", fixture.setup.name(), access.scheme());
    for change in Change::ALL.into_iter().filter(|_| with_changes) {
        let what = format!("file {} in mid-transfer", change.label());
        suite.run(&label(&what), || {
            change_under_transfer(fixture, access, change)
        });
    }
    suite.run(&label("client stops reading, then goes on"), || {
        stall(fixture.setup, access)
    });
    suite.run(&label("client killed in mid-transfer"), || {
        killed_client(fixture.setup, access)
    });
    suite.run(&label("interface down and up in mid-transfer"), || {
        interface_down(fixture.setup, access)
    });
}

/// Asks for the large file and takes the first of it.
fn begin(setup: &Setup, access: Access<'_>) -> Result<Curl> {
    let mut curl = files::begin(setup, access, Family::V4, LARGE_BYTES, &[])?;
    curl.read_checked(files::content(LARGE_BYTES), 0, FIRST_BYTES)?;
    Ok(curl)
}

/// Takes the rest of a transfer begun.
fn finish(mut curl: Curl) -> Result<()> {
    let rest = LARGE_BYTES - FIRST_BYTES;
    curl.read_checked(files::content(LARGE_BYTES), FIRST_BYTES, rest)?;
    curl.finish().map(drop)
}

fn change_under_transfer(
    fixture: Fixture<'_>,
    access: Access<'_>,
    change: Change,
) -> Result<Outcome> {
    let setup = fixture.setup;
    // A name for each: what the server remembers of one must not touch the next.
    let name = format!(
        "{}-{}.mp4",
        access.scheme(),
        change.label().replace(' ', "-")
    );
    let path = fixture.library.root().join(&name);
    let content = files::content(LARGE_BYTES);
    content::write(content, &path)?;
    let mut arguments = access.options();
    arguments.push(access.url(setup, Family::V4, &format!("/{name}"))?);
    let mut curl = Curl::start(setup.client(), &arguments)?;
    curl.read_checked(content, 0, FIRST_BYTES)?;
    change.make(&path)?;
    let end = curl.read_until_cut(content, FIRST_BYTES, LARGE_BYTES - FIRST_BYTES)?;
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
        await_content(setup, &arguments, other_content())?;
    }
    for extension in ["mp4", "nonzero_counters"] {
        let _ = fs::remove_file(path.with_extension(extension));
    }
    files::fetch(setup, access, Family::V4, 4097).context("afterwards")?;
    Ok(Outcome::Passed)
}

/// A file that replaced another is served before long, and from its first byte.
fn await_content(setup: &Setup, arguments: &[String], content: Content) -> Result<()> {
    /// The server may believe for a second or two that it knows the file.
    const LIMIT: Duration = Duration::from_secs(10);
    let first = ["--range", "0-4095"].map(str::to_owned);
    let arguments = [&first[..], arguments].concat();
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut curl = Curl::start(setup.client(), &arguments)?;
        if curl.read_checked(content, 0, 4096).is_ok() {
            return curl.finish().map(drop);
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

/// A client that takes nothing closes its window (RFC 9293 s3.8.6): the server probes it, and once
/// it opens again the rest is sent, every byte right.
fn stall(setup: &Setup, access: Access<'_>) -> Result<Outcome> {
    /// For the window to fill, and for each probe, whose interval doubles.
    const LIMIT: Duration = Duration::from_secs(20);
    let server = access.address(setup, Family::V4)?;
    let curl = begin(setup, access)?;
    // Opened this late it need not keep up with the transfer. The window may have closed before:
    // each answer to a probe says so again.
    let capture = Capture::start(setup.client())?;
    let is_zero_window = |segment: &Segment| {
        segment.destination == server
            && segment.header.window == 0
            && !segment.header.flags.contains(TcpFlags::RST)
    };
    capture.await_segment("a zero window", LIMIT, is_zero_window)?;
    capture.await_segment("a zero-window probe", LIMIT, |segment| {
        segment.source == server
            && segment.header.flags == TcpFlags::ACK
            && segment.payload_bytes == 0
    })?;
    capture.await_segment("the answer to the probe", LIMIT, is_zero_window)?;
    finish(curl)?;
    Ok(Outcome::Passed)
}

fn killed_client(setup: &Setup, access: Access<'_>) -> Result<Outcome> {
    // The transfer is under way, and the pipe now holds it up.
    begin(setup, access)?.kill()?;
    files::fetch(setup, access, Family::V4, 300_000).context("afterwards")?;
    Ok(Outcome::Passed)
}

fn interface_down(setup: &Setup, access: Access<'_>) -> Result<Outcome> {
    let curl = begin(setup, access)?;
    setup
        .server()
        .ip(&format!("link set {} down", setup.interface()))?;
    setup
        .server()
        .ip(&format!("link set {} up", setup.interface()))?;
    finish(curl)?;
    files::fetch(setup, access, Family::V4, 4097).context("afterwards")?;
    Ok(Outcome::Passed)
}

/// SIGTERM in mid-transfer: the reply is finished, then the server ends well and leaves nothing.
pub(crate) fn terminate(
    fixture: Fixture<'_>,
    access: Access<'_>,
    config: Option<&Path>,
) -> Result<Outcome> {
    let setup = fixture.setup;
    let server = setup.start(fixture.library.root(), config, Some(fixture.identities))?;
    let curl = begin(setup, access)?;
    server.signal(Signal::TERM)?;
    finish(curl)?;
    let stopped = server.wait()?.succeeded()?;
    let replies = stopped.counter("http_reply_count")?;
    ensure!(replies >= 1, "the summary counts no reply");
    if setup.is_tap() {
        let left = setup.server().ip("-o link show")?;
        ensure!(
            !left.contains(setup.interface()),
            "the TAP is still there: {left}"
        );
    }
    Ok(Outcome::Passed)
}

/// A server with nothing to do, but with a connection open, uses no CPU.
pub(crate) fn idle(setup: &Setup, library: &Library) -> Result<Outcome> {
    /// How long it is watched.
    const WATCH: Duration = Duration::from_secs(5);
    /// Clock ticks of 10 ms it may use meanwhile.
    const TICKS_MAX: u64 = 2;
    let server = setup.start(library.root(), None, None)?;
    let mut client = setup.connect(Family::V4)?;
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
    server.stop().map(|_| Outcome::Passed)
}
