//! The command line as an operator meets it: help, one-line refusals with their remedy, exit
//! codes. No test here gets as far as serving.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test may panic, and says on stderr what it skips"
)]

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// A user without any rights (`nobody`).
const NOBODY: u32 = 65_534;
/// An interface name that no host has.
const NO_INTERFACE: &str = "atlas-no-such";

fn atlas(words: &[&str]) -> Output {
    command(words)
        .output()
        .expect("the binary was built for this test")
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_atlas"));
    command.args(words);
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Asserts a refusal: exit code 2, nothing on stdout, and on stderr, after log lines if any, one
/// line `atlas: …` that has all of `parts`.
fn assert_refused(output: &Output, parts: &[&str]) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert_eq!(stdout(output), "");
    let line = text.lines().last().unwrap_or_default();
    assert!(line.starts_with("atlas: "), "{text}");
    for part in parts {
        assert!(line.contains(part), "no {part:?} in: {line}");
    }
    assert!(line.contains(';'), "no remedy in: {line}");
}

fn directory() -> TempDir {
    TempDir::new().unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// `atlas serve DIRECTORY` with more words behind it.
fn serve(words: &[&str]) -> Output {
    let directory = directory();
    let mut all = vec!["serve", text(directory.path())];
    all.extend(words);
    atlas(&all)
}

/// `atlas serve DIRECTORY --config FILE`, the file holding `config`.
fn serve_with(config: &str) -> Output {
    let directory = directory();
    let file = directory.path().join("atlas.toml");
    std::fs::write(&file, config).unwrap();
    serve(&["--config", text(&file)])
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

#[test]
fn help_has_units_defaults_and_examples() {
    let short = stdout(&atlas(&["serve", "-h"]));
    let long = stdout(&atlas(&["serve", "--help"]));
    for phrase in [
        "Usage: atlas serve [OPTIONS] <PATH>",
        "tap:NAME or packet:IFACE [default: tap:atlas0]",
        "[default: 10.77.0.2/24]",
        "TCP port of plain HTTP, 1 to 65535 [default: 80]",
        "only 1 is supported today [default: 1]",
        "Configuration file (TOML); flags win over it",
        "--pcap <FILE>",
        "--cors",
        "--verbose...",
        "--quiet...",
    ] {
        let flat = |help: &str| help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat(&short).contains(phrase), "no {phrase:?} in:\n{short}");
        assert!(flat(&long).contains(phrase), "no {phrase:?} in:\n{long}");
    }
    for phrase in [
        "Signals:",
        "SIGUSR1",
        "CAP_NET_ADMIN",
        "setcap",
        "Examples:",
        "ready http://",
    ] {
        assert!(long.contains(phrase), "no {phrase:?} in:\n{long}");
    }
    let overview = stdout(&atlas(&["--help"]));
    for phrase in ["Exit codes:", "Examples:", "serve"] {
        assert!(overview.contains(phrase), "no {phrase:?} in:\n{overview}");
    }
}

#[test]
fn help_fits_a_hundred_columns() {
    for words in [&["--help"][..], &["serve", "-h"], &["serve", "--help"]] {
        for line in stdout(&atlas(words)).lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
}

#[test]
fn usage_errors_exit_with_two() {
    for words in [
        &[][..],
        &["serve"],
        &["serve", "/srv", "--no-such-flag"],
        &["dance"],
    ] {
        assert_eq!(atlas(words).status.code(), Some(2), "{words:?}");
    }
    assert_eq!(atlas(&["--version"]).status.code(), Some(0));
}

#[test]
fn the_directory_must_be_one() {
    let missing = atlas(&["serve", "/no/such/directory"]);
    assert_refused(
        &missing,
        &["PATH /no/such/directory: there is no such directory"],
    );
    let file = atlas(&["serve", "/proc/version"]);
    assert_refused(&file, &["PATH /proc/version: that is not a directory"]);
}

#[test]
fn the_directory_must_be_readable() {
    if !is_root() {
        eprintln!("SKIPPED: only root can become a user that may not read a directory");
        return;
    }
    let directory = directory();
    let path = text(directory.path());
    std::fs::set_permissions(path, Permissions::from_mode(0o700)).unwrap();
    let mut command = command(&["serve", path]);
    command.uid(NOBODY).gid(NOBODY);
    match command.output() {
        Ok(output) => assert_refused(&output, &["PATH", path, "Permission denied"]),
        Err(error) => eprintln!("SKIPPED: nobody may not run the binary: {error}"),
    }
}

#[test]
fn settings_are_refused_by_flag_or_key_with_value_and_fix() {
    assert_refused(&serve(&["--http", "0"]), &["--http 0:", "1 to 65535"]);
    assert_refused(&serve(&["--workers", "2"]), &["--workers 2:", "use 1"]);
    assert_refused(
        &serve(&["--link", "eth0"]),
        &["--link eth0:", "packet:IFACE"],
    );
    assert_refused(
        &serve(&["--address", "10.77.0.0/24"]),
        &["--address 10.77.0.0/24:", ".2/24"],
    );
    assert_refused(
        &serve(&["--address", "10.77.0.255/24"]),
        &["broadcast", "10.77.0.2/24"],
    );
    assert_refused(
        &serve(&["--address", "10.77.0.2"]),
        &["--address 10.77.0.2:", "/24"],
    );
    let twice = ["--address", "10.77.0.2/24", "--address", "10.77.0.2/16"];
    assert_refused(&serve(&twice), &["10.77.0.2/16", "twice"]);
    assert_refused(
        &serve_with("slots = 1"),
        &["atlas.toml: slots 1:", "16 to 65536"],
    );
    assert_refused(
        &serve_with("slot = 1"),
        &["atlas.toml: line 1: unknown field `slot`"],
    );
    assert_refused(&serve_with("http = [\n"), &["atlas.toml: line"]);
    assert_refused(
        &serve(&["--config", "/no/such.toml"]),
        &["--config /no/such.toml:"],
    );
}

#[test]
fn flags_win_over_the_file_and_the_file_over_defaults() {
    // Both are out of range, so the refusal tells which one was taken.
    let directory = directory();
    let file = directory.path().join("atlas.toml");
    std::fs::write(&file, "http = 70000").unwrap();
    let config = text(&file);
    assert_refused(&serve(&["--config", config]), &["atlas.toml: http 70000"]);
    assert_refused(
        &serve(&["--config", config, "--http", "80000"]),
        &["--http 80000"],
    );
}

#[test]
fn an_address_of_the_host_is_refused() {
    let owned = server::host::interface_addresses().unwrap();
    let usable = |address: &std::net::IpAddr| address.is_ipv4() && !address.is_loopback();
    let Some(owner) = owned.iter().find(|owner| usable(&owner.address)) else {
        eprintln!("SKIPPED: this host has no IPv4 address but loopback");
        return;
    };
    let address = format!("{}/32", owner.address);
    let output = serve(&["--address", &address]);
    assert_refused(
        &output,
        &[
            "--address",
            &address,
            "this host has that address",
            &owner.interface,
        ],
    );
}

#[test]
fn the_interface_must_exist() {
    let output = serve(&["--link", &format!("packet:{NO_INTERFACE}")]);
    assert_refused(&output, &["--link", NO_INTERFACE]);
    for bad in ["tap:", "tap:sixteen-letters-", "tap:a/b", "packet:a%d"] {
        assert_refused(&serve(&["--link", bad]), &["--link"]);
    }
}

#[test]
fn missing_capabilities_are_named() {
    if !is_root() {
        eprintln!("SKIPPED: only root can become a user without capabilities");
        return;
    }
    let owned = server::host::interface_addresses().unwrap();
    let other = owned
        .iter()
        .map(|owner| owner.interface.as_str())
        .find(|name| *name != "lo");
    let packet = other.map(|name| (format!("packet:{name}"), "cap_net_raw"));
    if packet.is_none() {
        eprintln!("SKIPPED in part: this host has no interface but loopback");
    }
    let tap = (String::from("tap:atlas-nobody"), "cap_net_admin");
    for (link, capability) in [Some(tap), packet].into_iter().flatten() {
        let mut command = command(&["serve", "/", "--link", &link, "--address", "10.99.99.2/24"]);
        command.uid(NOBODY).gid(NOBODY);
        match command.output() {
            Ok(output) => assert_refused(&output, &["--link", capability, "setcap"]),
            Err(error) => eprintln!("SKIPPED: nobody may not run the binary: {error}"),
        }
    }
}

#[test]
fn a_log_that_cannot_be_written_changes_nothing() {
    let directory = directory();
    // A host route has no room for the host's end, which is logged; then the name is refused.
    let words = [
        "serve",
        text(directory.path()),
        "--link",
        "tap:a/b",
        "--address",
        "10.77.0.2/32",
    ];
    assert!(stderr(&atlas(&words)).contains("no room for the host's end"));
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let output = command(&words).stderr(full).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
