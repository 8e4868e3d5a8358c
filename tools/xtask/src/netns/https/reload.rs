//! SIGHUP and secrets: certificates are read again under a transfer; keys are logged only if the
//! operator said so twice.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;

use super::Scene;
use crate::netns::files::{self, LARGE_BYTES};
use crate::netns::identities::Identities;
use crate::netns::stage::{Family, Subject};
use testbed::curl::Curl;
use testbed::scratch_directory;
use testbed::server::Server;
use testbed::suite::{Outcome, Suite};

/// Taken of a transfer before certificates change: the rest is far more than is sent ahead.
const FIRST_BYTES: u64 = 1 << 20;

/// Checks that start a server of their own, with certificates of their own.
pub(crate) fn run(suite: &mut Suite, scene: Scene<'_>, subject: &Subject) {
    suite.run(
        &scene.label("certificates renewed under a transfer"),
        || {
            let identities = &Identities::new()?;
            renewed(Scene {
                identities,
                ..scene
            })
        },
    );
    suite.run(
        &scene.label("secrets logged only when told twice"),
        || match subject {
            Subject::Atlas(atlas) => secrets(scene, atlas),
            Subject::Nginx => Ok(Outcome::Skipped("nginx logs none".to_owned())),
        },
    );
}

/// A certificate is replaced, then broken, then mended, while a slow client takes a large file.
fn renewed(scene: Scene<'_>) -> Result<Outcome> {
    let identities = scene.identities;
    let root = scene.library.root();
    let mut server = scene.stage.start(root, None, Some(identities))?;
    let content = files::content(LARGE_BYTES);
    let mut slow = files::begin(scene.stage, scene.access(), Family::V4, LARGE_BYTES, &[])?;
    slow.read_checked(content, 0, FIRST_BYTES)?;
    ensure!(!is_renewed(scene)?, "renewed before it was");

    identities.renew()?;
    server.signal(Signal::HUP)?;
    await_renewed(scene)?;

    // A good pair is in memory; what is on the disk now is none.
    let first = identities.first();
    for broken in [&first.certificate, &first.key] {
        let good = fs::read(broken)?;
        fs::write(broken, "-----BEGIN NONSENSE-----\n")?;
        server.signal(Signal::HUP)?;
        server.await_log(&broken.to_string_lossy())?;
        ensure!(is_renewed(scene)?, "the certificate in use is gone");
        fs::write(broken, good)?;
    }
    // The key of another certificate is as bad as none.
    fs::copy(identities.stray_key(), &first.key)?;
    server.signal(Signal::HUP)?;
    server.await_log(&first.key.to_string_lossy())?;
    ensure!(is_renewed(scene)?, "the certificate in use is gone");

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
fn is_renewed(scene: Scene<'_>) -> Result<bool> {
    /// `CURLE_PEER_FAILED_VERIFICATION`: the certificate is for others.
    const NOT_FOR_THIS_NAME: i32 = 60;
    let mut arguments = scene.access().options();
    arguments.extend(scene.named(Identities::RENEWED, 4096)?);
    let end = Curl::start(scene.stage.client(), &arguments)?.fail()?;
    match end.code {
        0 => Ok(true),
        NOT_FOR_THIS_NAME => Ok(false),
        code => bail!("curl: {} (code {code})", end.stderr),
    }
}

fn await_renewed(scene: Scene<'_>) -> Result<()> {
    /// Reading two files takes no time; a busy machine does.
    const LIMIT: Duration = Duration::from_secs(10);
    let deadline = Instant::now() + LIMIT;
    while !is_renewed(scene)? {
        ensure!(
            Instant::now() < deadline,
            "still the certificate of before SIGHUP"
        );
    }
    Ok(())
}

/// The environment alone is not enough: it may have come from anywhere.
fn secrets(scene: Scene<'_>, atlas: &Path) -> Result<Outcome> {
    let directory = scratch_directory("secrets")?;
    let file = directory.path().join("secrets");
    for (flag, is_expected) in [(None, false), (Some("--log-tls-secrets"), true)] {
        serve_one(scene, atlas, &file, flag)?;
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
fn serve_one(scene: Scene<'_>, atlas: &Path, secrets: &Path, flag: Option<&str>) -> Result<()> {
    let root = scene.library.root();
    let mut command = scene
        .stage
        .atlas_command(atlas, root, None, Some(scene.identities));
    command.args(flag).env("SSLKEYLOGFILE", secrets);
    let server = Server::atlas(&mut command)?;
    for version in ["1.3", "1.2"] {
        let options = ["--tls-max", version];
        let mut curl = files::begin(scene.stage, scene.access(), Family::V4, 4096, &options)?;
        curl.read_checked(files::content(4096), 0, 4096)?;
        curl.finish()?;
    }
    ended_well(server).map(drop)
}
