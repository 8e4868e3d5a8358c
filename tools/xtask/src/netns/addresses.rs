//! What comes before `ready`: addresses that are nobody's, and an interface that carries frames.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};

use super::files::{self, Library, name};
use super::setup::{Family, Setup};
use super::start::EXIT_NOT_NOW;
use testbed::namespace::VethPair;
use testbed::process::output;
use testbed::server::Server;
use testbed::suite::{Outcome, Suite};

/// How long the server may take until it waits for its interface.
const LIMIT: Duration = Duration::from_secs(20);

/// All of them, on a packet setup without a server.
pub(crate) fn run(suite: &mut Suite, setup: &Setup, atlas: &Path, library: &Library) {
    for (address, bits) in [("10.77.0.9", 24), ("fd77::9", 64)] {
        let what = format!("start refused: a neighbour has {address}");
        suite.run(&what, || {
            taken_by_a_neighbour(setup, atlas, library, address, bits)
        });
    }
    suite.run("start refused: a second server at one address", || {
        let first = setup.start(library.root(), None, None)?;
        let mut second = setup.atlas_command(atlas, library.root(), None, None);
        let refused = expect_refusal(&mut second, "another server has it");
        serves(setup).context("the first one, afterwards")?;
        ended_well(first)?;
        refused.map(|()| Outcome::Passed)
    });
    suite.run("packet --mac interface", || {
        let mut command = setup.atlas_command(atlas, library.root(), None, None);
        let server = Server::atlas(command.args(["--mac", "interface"]))?;
        serves(setup)?;
        let interface = setup.server().ip("-o link show")?;
        ensure!(!interface.contains("PROMISC"), "{interface}");
        ended_well(server).map(|()| Outcome::Passed)
    });
    suite.run("packet: interface down at start, then up", || {
        down_at_start(setup, atlas, library)
    });
}

/// The client's kernel has the address. Once it no longer has it, the server may.
fn taken_by_a_neighbour(
    setup: &Setup,
    atlas: &Path,
    library: &Library,
    address: &str,
    bits: u8,
) -> Result<Outcome> {
    let at = format!("{address}/{bits}");
    let link = format!("packet:{}", setup.interface());
    let command = || {
        let mut command = setup.server().command("env");
        command.arg(atlas).arg("serve").arg(library.root());
        command.args(["--link", &link, "--address", &at]);
        command
    };
    let neighbour = format!("{at} dev {}", VethPair::CLIENT_INTERFACE);
    setup.client().ip(&format!("addr add {neighbour}"))?;
    let refused = expect_refusal(&mut command(), "has that address");
    setup.client().ip(&format!("addr del {neighbour}"))?;
    refused?;
    ended_well(Server::atlas(&mut command())?).context("when it is free")?;
    Ok(Outcome::Passed)
}

/// The server says what it waits for, and is ready once the interface is up.
fn down_at_start(setup: &Setup, atlas: &Path, library: &Library) -> Result<Outcome> {
    let interface = setup.interface();
    let scratch = testbed::scratch_directory("log")?;
    let log = scratch.path().join("log");
    let atlas = setup.atlas_command(atlas, library.root(), None, None);
    // The shell becomes the server; its log can be read before it is ready.
    let mut command = Command::new("sh");
    command.args(["-c", "log=$1; shift; exec \"$@\" 2>\"$log\"", "sh"]);
    command.arg(&log).arg(atlas.get_program());
    command.args(atlas.get_args());
    setup.server().ip(&format!("link set {interface} down"))?;
    let server = thread::scope(|scope| {
        let server = scope.spawn(move || Server::atlas(&mut command));
        let said = wait_for_line(&log, &format!("{interface} is down: waiting for it"));
        let is_early = server.is_finished();
        let up = setup.server().ip(&format!("link set {interface} up"));
        let server = server.join().map_err(|_| anyhow!("starting it panicked"))?;
        said?;
        up?;
        ensure!(!is_early, "it did not wait");
        server
    })?;
    serves(setup)?;
    ended_well(server)?;
    Ok(Outcome::Passed)
}

/// Waits until a file has these words.
fn wait_for_line(file: &Path, words: &str) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    while !fs::read_to_string(file).is_ok_and(|text| text.contains(words)) {
        ensure!(Instant::now() < deadline, "not said: {words}");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Exit code 75, nothing on stdout, and this in the last line of stderr.
fn expect_refusal(command: &mut Command, words: &str) -> Result<()> {
    let output = output(command, LIMIT)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let (status, last) = (output.status, stderr.lines().last().unwrap_or_default());
    ensure!(status.code() == Some(EXIT_NOT_NOW), "{status}: {last}");
    ensure!(output.stdout.is_empty(), "printed to stdout");
    ensure!(
        last.starts_with("atlas: ") && last.contains(words),
        "{last}"
    );
    Ok(())
}

/// One small file over both protocols.
fn serves(setup: &Setup) -> Result<()> {
    for family in Family::BOTH {
        let mut client = setup.connect(family)?;
        let (head, body) = client.exchange("GET", &name(4097), "")?;
        ensure!(head.status == 200, "{}: {}", family.name(), head.status);
        files::content(4097).check(0, &body)?;
    }
    Ok(())
}

/// Ends the server.
fn ended_well(server: Server) -> Result<()> {
    let stopped = server.stop()?;
    let status = stopped.status;
    ensure!(
        status.code() == Some(0),
        "{status}: {}",
        stopped.last_words()
    );
    Ok(())
}
