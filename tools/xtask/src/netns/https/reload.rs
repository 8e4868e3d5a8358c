//! SIGHUP and secrets: certificates are read again under a transfer; keys are logged only if the
//! operator said so twice.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;

use super::Fixture;
use crate::netns::files::{self, LARGE_BYTES};
use crate::netns::identities::Identities;
use crate::netns::setup::{Family, Subject};
use testbed::curl::Curl;
use testbed::scratch_directory;
use testbed::server::Server;
use testbed::suite::{Outcome, Suite};

/// Taken of a transfer before certificates change: the rest is far more than is sent ahead.
const FIRST_BYTES: u64 = 1 << 20;

/// Checks that start a server of their own, with certificates of their own.
pub(crate) fn run(suite: &mut Suite, fixture: Fixture<'_>, subject: &Subject) {
    suite.run(
        &fixture.label("certificates renewed under a transfer"),
        || {
            let identities = &Identities::new()?;
            renewed(Fixture {
                identities,
                ..fixture
            })
        },
    );
    suite.run(
        &fixture.label("secrets logged only when told twice"),
        || match subject {
            Subject::Atlas { program, .. } => secrets(fixture, program),
            Subject::Nginx => Ok(Outcome::Skipped("nginx logs none".to_owned())),
        },
    );
}

/// A certificate is replaced, then broken, then mended, while a slow client takes a large file.
fn renewed(fixture: Fixture<'_>) -> Result<Outcome> {
    let identities = fixture.identities;
    let root = fixture.library.root();
    let mut server = fixture.setup.start(root, None, Some(identities))?;
    let content = files::content(LARGE_BYTES);
    let mut slow = files::begin(
        fixture.setup,
        fixture.access(),
        Family::V4,
        LARGE_BYTES,
        &[],
    )?;
    slow.read_checked(content, 0, FIRST_BYTES)?;
    ensure!(!is_renewed(fixture)?, "renewed before it was");

    identities.renew()?;
    server.signal(Signal::HUP)?;
    await_renewed(fixture)?;

    // A good pair is in memory; what is on the disk now is none.
    let first = identities.first();
    for broken in [&first.certificate, &first.key] {
        let good = fs::read(broken)?;
        fs::write(broken, "-----BEGIN NONSENSE-----\n")?;
        server.signal(Signal::HUP)?;
        server.await_log(&broken.to_string_lossy())?;
        ensure!(is_renewed(fixture)?, "the certificate in use is gone");
        fs::write(broken, good)?;
    }
    // The key of another certificate is as bad as none.
    fs::copy(identities.stray_key(), &first.key)?;
    server.signal(Signal::HUP)?;
    server.await_log(&first.key.to_string_lossy())?;
    ensure!(is_renewed(fixture)?, "the certificate in use is gone");

    slow.read_checked(content, FIRST_BYTES, LARGE_BYTES - FIRST_BYTES)?;
    slow.finish().context("the transfer that was under way")?;
    ended_well(server)
}

fn ended_well(server: Server) -> Result<Outcome> {
    let stopped = server.stop()?;
    ensure!(
        stopped.status.code() == Some(0),
        "{}: {}",
        stopped.status,
        stopped.last_words()
    );
    Ok(Outcome::Passed)
}

/// Whether a new connection is shown the renewed certificate; curl tells by its name.
fn is_renewed(fixture: Fixture<'_>) -> Result<bool> {
    /// `CURLE_PEER_FAILED_VERIFICATION`: the certificate is for others.
    const NOT_FOR_THIS_NAME: i32 = 60;
    let mut arguments = fixture.access().options();
    arguments.extend(fixture.named(Identities::RENEWED, 4096)?);
    let end = Curl::start(fixture.setup.client(), &arguments)?.fail()?;
    match end.code {
        0 => Ok(true),
        NOT_FOR_THIS_NAME => Ok(false),
        code => bail!("curl: {} (code {code})", end.stderr),
    }
}

fn await_renewed(fixture: Fixture<'_>) -> Result<()> {
    /// Reading two files takes no time; a busy machine does.
    const LIMIT: Duration = Duration::from_secs(10);
    let deadline = Instant::now() + LIMIT;
    while !is_renewed(fixture)? {
        ensure!(
            Instant::now() < deadline,
            "still the certificate of before SIGHUP"
        );
    }
    Ok(())
}

/// The environment alone is not enough: it may have come from anywhere.
fn secrets(fixture: Fixture<'_>, atlas: &Path) -> Result<Outcome> {
    let directory = scratch_directory("secrets")?;
    let file = directory.path().join("secrets");
    for (flag, is_expected) in [(None, false), (Some("--log-tls-secrets"), true)] {
        serve_one(fixture, atlas, &file, flag)?;
        ensure!(
            file.exists() == is_expected,
            "{flag:?}: the file of secrets exists: {}",
            file.exists()
        );
    }
    let text = fs::read_to_string(&file)?;
    for label in [
        "CLIENT_TRAFFIC_SECRET_0 ",
        "SERVER_TRAFFIC_SECRET_0 ",
        "CLIENT_RANDOM ",
    ] {
        ensure!(text.contains(label), "no {label}in the file of secrets");
    }
    Ok(Outcome::Passed)
}

/// A server with the environment set, and two clients of it: one of each version.
fn serve_one(fixture: Fixture<'_>, atlas: &Path, secrets: &Path, flag: Option<&str>) -> Result<()> {
    let root = fixture.library.root();
    let mut command = fixture
        .setup
        .atlas_command(atlas, root, None, Some(fixture.identities));
    command.args(flag).env("SSLKEYLOGFILE", secrets);
    let server = Server::atlas(&mut command)?;
    for version in ["1.3", "1.2"] {
        let options = ["--tls-max", version];
        let mut curl = files::begin(fixture.setup, fixture.access(), Family::V4, 4096, &options)?;
        curl.read_checked(files::content(4096), 0, 4096)?;
        curl.finish()?;
    }
    ended_well(server).map(drop)
}
