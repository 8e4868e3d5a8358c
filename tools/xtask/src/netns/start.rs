//! Starts that cannot succeed: exit code 2, or 75 where that may pass, and one line that names the remedy.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::identities::Identities;
use super::setup::Setup;
use testbed::process::output;
use testbed::suite::{Outcome, Suite};

/// The exit code of a start that failed, and would the next time.
const EXIT_REFUSED: i32 = 2;
/// The exit code of a start that failed, and is worth another try.
pub(super) const EXIT_NOT_NOW: i32 = 75;

/// A start that hangs is a failure too.
const LIMIT: Duration = Duration::from_secs(20);

/// All start errors, tried in the server's namespace of a packet setup.
pub(crate) fn run(
    suite: &mut Suite,
    setup: &Setup,
    atlas: &Path,
    root: &Path,
    identities: &Identities,
) {
    let link = format!("packet:{}", setup.interface());
    let own = ["--link", &link, "--address", "10.77.0.2/24"];
    let cases: [(&str, &str, Vec<&str>); 9] = [
        ("missing directory", "/nonexistent-directory", own.to_vec()),
        ("path is a file", "/proc/version", own.to_vec()),
        (
            "unknown interface",
            "",
            vec!["--link", "packet:nosuch0", "--address", "10.77.0.2/24"],
        ),
        ("unknown kind of link", "", vec!["--link", "carrier-pigeon"]),
        (
            "address of the host",
            "",
            vec!["--link", &link, "--address", "10.77.0.1/24"],
        ),
        (
            "not an address",
            "",
            vec!["--link", &link, "--address", "10.77.0.256/24"],
        ),
        ("port 0", "", [&own[..], &["--http", "0"]].concat()),
        (
            "port too large",
            "",
            [&own[..], &["--http", "65536"]].concat(),
        ),
        (
            "missing configuration",
            "",
            [&own[..], &["--config", "/nonexistent.toml"]].concat(),
        ),
    ];
    for (what, path, arguments) in cases {
        suite.run(&format!("start refused: {what}"), || {
            let path = if path.is_empty() {
                root
            } else {
                Path::new(path)
            };
            let mut command = setup.server().command("env");
            command.arg(atlas).arg("serve").arg(path).args(&arguments);
            let code = match what {
                "unknown interface" => EXIT_NOT_NOW,
                _ => EXIT_REFUSED,
            };
            expect_code(&mut command, code)
        });
    }
    suite.run("start refused: unknown key in the configuration", || {
        let directory = testbed::scratch_directory("config")?;
        let file = directory.path().join("atlas.toml");
        fs::write(&file, "no_such_key = 1\n")?;
        let mut command = setup.server().command("env");
        command
            .arg(atlas)
            .arg("serve")
            .arg(root)
            .args(own)
            .arg("--config")
            .arg(file);
        expect_refusal(&mut command)
    });
    suite.run("start refused: without rights", || {
        unprivileged(setup, atlas, root, &own)
    });
    for (what, certificate, key) in bad_identities(identities) {
        suite.run(&format!("start refused: {what}"), || {
            let mut command = setup.server().command("env");
            command.arg(atlas).arg("serve").arg(root).args(own);
            command.args(["--https", "443"]);
            for (flag, file) in [("--cert", certificate), ("--key", key)] {
                if let Some(file) = file {
                    command.arg(flag).arg(file);
                }
            }
            expect_refusal(&mut command)
        });
    }
}

/// What no server can prove itself with: a certificate, and a key.
fn bad_identities(identities: &Identities) -> [(&'static str, Option<&Path>, Option<&Path>); 5] {
    let certificate: &Path = &identities.first().certificate;
    let missing = Path::new("/nonexistent.pem");
    [
        ("HTTPS without a certificate", None, None),
        ("certificate without a key", Some(certificate), None),
        ("missing key", Some(certificate), Some(missing)),
        (
            "the key of another certificate",
            Some(certificate),
            Some(identities.stray_key()),
        ),
        (
            "a certificate for a key",
            Some(certificate),
            Some(certificate),
        ),
    ]
}

/// Runs the server as a user who may open no packet socket.
fn unprivileged(setup: &Setup, atlas: &Path, root: &Path, own: &[&str]) -> Result<Outcome> {
    // The build directory may be closed to other users; a copy in the open is not.
    let directory = testbed::scratch_directory("bin")?;
    let copy = directory.path().join("atlas");
    fs::copy(atlas, &copy)?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    let mut command = setup.server().command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg(&copy).arg("serve").arg(root).args(own);
    expect_refusal(&mut command)
}

fn expect_refusal(command: &mut std::process::Command) -> Result<Outcome> {
    expect_code(command, EXIT_REFUSED)
}

fn expect_code(command: &mut std::process::Command, code: i32) -> Result<Outcome> {
    let output = output(command, LIMIT)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.code() == Some(code),
        "{} instead of exit code {code}: {}",
        output.status,
        stderr.trim()
    );
    ensure!(output.stdout.is_empty(), "printed to stdout");
    ensure!(stderr.lines().count() == 1, "not one line: {stderr:?}");
    Ok(Outcome::Passed)
}
