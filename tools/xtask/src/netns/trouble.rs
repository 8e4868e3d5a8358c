//! Things that happen in the middle of a transfer: to the client, the interface and the server. Every
//! byte that arrives is compared.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use super::files::{self, Access, LARGE_BYTES, Library, name};
use super::https::Fixture;
use super::setup::{Family, Setup};
use testbed::curl::Curl;
use testbed::suite::{Outcome, Suite};

/// Taken before the trouble begins: the transfer is well under way, and the rest is far more than
/// the server can have sent ahead.
const FIRST_BYTES: u64 = 1 << 20;

/// Checks that share one server.
pub(crate) fn run(suite: &mut Suite, fixture: Fixture<'_>, access: Access<'_>) {
    let label = |what: &str| format!("{} {} {what}", fixture.setup.name(), access.scheme());
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
