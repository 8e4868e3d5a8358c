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
    assert_fails(output, 2, parts);
}

/// The same with another exit code.
fn assert_fails(output: &Output, code: i32, parts: &[&str]) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert_eq!(stdout(output), "");
    // Nothing follows the reasons and the lines of the file that they name.
    let mut lines = text.lines();
    let reasons: Vec<&str> = lines
        .by_ref()
        .skip_while(|line| !line.starts_with("atlas: "))
        .collect();
    assert!(!reasons.is_empty(), "{text}");
    for line in &reasons {
        let is_shown = line.starts_with("  | ");
        assert!(is_shown || line.starts_with("atlas: "), "{text}");
        let has_remedy = line.contains(';') || line.contains("expected");
        assert!(is_shown || has_remedy, "no remedy in: {line}");
    }
    for part in parts {
        assert!(reasons.join("\n").contains(part), "no {part:?} in: {text}");
    }
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

/// All on one line, as wrapping does not matter.
fn flat(help: &str) -> String {
    help.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

#[test]
fn the_doctor_tells_what_there_is_and_names_a_remedy_for_what_is_missing() {
    let output = atlas(&["doctor"]);
    let text = stdout(&output);
    let mut titles = text.lines().filter(|line| !line.starts_with(' '));
    assert!(titles.by_ref().eq(["Host", "Interfaces", "NVMe"]), "{text}");
    assert!(text.contains("kernel            Linux "), "{text}");
    let is_missing = text.contains("  MISSING ");
    assert_eq!(output.status.code(), Some(if is_missing { 2 } else { 0 }));
    let lines: Vec<_> = text.lines().collect();
    for pair in lines.windows(2) {
        let is_bad = pair[0].starts_with("  less ") || pair[0].starts_with("  MISSING ");
        assert_eq!(is_bad, pair[1].trim_start().starts_with("-> "), "{pair:?}");
    }
}

#[test]
fn a_controller_that_is_not_there_is_not_bound() {
    for command in ["bind", "unbind"] {
        let output = atlas(&["nvme", command, "0000:ff:1f.7"]);
        assert_refused(&output, &["0000:ff:1f.7: no NVMe controller"]);
    }
}

#[test]
fn help_has_units_defaults_and_examples() {
    let short = stdout(&atlas(&["serve", "-h"]));
    let long = stdout(&atlas(&["serve", "--help"]));
    for phrase in [
        "Usage: atlas serve [OPTIONS] <PATH>",
        "tap:NAME, packet:IFACE, xdp:IFACE ... [default: tap:atlas0]",
        "own or interface [default: own]",
        "[default: 10.77.0.2/24]",
        "TCP port of plain HTTP, 1 to 65535, or off [default: 80]",
        "TCP port of HTTP over TLS, 1 to 65535, or off [default: off]",
        "--cert <PEM>",
        "--key <PEM>",
        "--log-tls-secrets",
        "a number, or auto [default: 1]",
        "Configuration file (TOML); flags win over it",
        "--pcap <FILE>",
        "--user <NAME[:GROUP]>",
        "--core-dumps",
        "--check",
        "--cors",
        "--header <FIELD>",
        "--verbose...",
        "--quiet...",
    ] {
        assert!(flat(&short).contains(phrase), "no {phrase:?} in:\n{short}");
        assert!(flat(&long).contains(phrase), "no {phrase:?} in:\n{long}");
    }
    for phrase in [
        "Signals:",
        "SIGUSR1",
        "SIGHUP what atlas reload does: read --config, certificates",
        "nothing changes",
        "CAP_NET_ADMIN",
        "setcap",
        "Examples:",
        "ready http://10.77.0.2/ https://10.77.0.2/",
        "--https 443 --cert chain.pem --key key.pem",
    ] {
        assert!(flat(&long).contains(phrase), "no {phrase:?} in:\n{long}");
    }
    let (check, tls) = (long.find("--check"), long.find("TLS:"));
    assert!(check < tls, "--check is no flag of TLS");
    let overview = stdout(&atlas(&["--help"]));
    for phrase in ["Exit codes:", "Examples:", "serve", "--https 443"] {
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
        // Instruments are in `atlas-bench`, and not in the server.
        &["load", "http://127.0.0.1/"],
        &["delay", "--from", "a", "--to", "b"],
        &["disk", "/dev/null"],
        &["stages", "seal"],
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
    let file = atlas(&["serve", "/etc/passwd"]);
    let parts = ["PATH /etc/passwd: no store", "name a directory, or a store"];
    assert_refused(&file, &parts);
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
fn a_directory_is_not_read_by_nvme_commands() {
    let refused = serve_with("nvme_passthrough = true\n");
    assert_refused(
        &refused,
        &["PATH", "nvme_passthrough", "name the block devices"],
    );
}

#[test]
fn controllers_of_its_own_are_not_read_by_passthrough() {
    let directory = directory();
    let file = directory.path().join("atlas.toml");
    std::fs::write(&file, "nvme_passthrough = true\n").unwrap();
    let names = "nvme:fffe:ff:1f.7";
    for check in [&[][..], &["--check"]] {
        let words = [&["serve", names, "--config", text(&file)], check].concat();
        assert_refused(
            &atlas(&words),
            &[
                "PATH nvme:fffe:ff:1f.7: nvme_passthrough",
                "leave nvme_passthrough out",
            ],
        );
    }
}

#[test]
fn controllers_that_are_missing_or_named_twice_are_refused() {
    for check in [&[][..], &["--check"]] {
        let serve = |names: &str| atlas(&[&["serve", names], check].concat());
        let missing = serve("nvme:fffe:ff:1f.7,nvme:fffe:ff:1f.6");
        assert_refused(
            &missing,
            &["PATH nvme:fffe:ff:1f.7: fffe:ff:1f.7: no such PCI device"],
        );
        let twice = serve("nvme:fffe:ff:1f.7/1,nvme:fffe:ff:1f.6,nvme:fffe:ff:1f.7/1");
        assert_refused(&twice, &["PATH nvme:fffe:ff:1f.7/1: named twice"]);
    }
}

#[test]
fn a_check_tells_whether_it_could_serve() {
    if !is_root() {
        eprintln!("SKIPPED: only root has the rights that a start takes");
        return;
    }
    let directory = directory();
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    let good = atlas(&["serve", text(directory.path()), "--check"]);
    assert_eq!(good.status.code(), Some(0), "{}", stderr(&good));
    let said = stdout(&good);
    assert!(
        said.starts_with("ok: could serve http://10.77.0.2/ as "),
        "{said}"
    );
    assert_refused(&serve(&["--check", "--http", "0"]), &["--http 0:"]);
    let pem = directory.path().join("none.pem");
    let words = [
        "--check",
        "--https",
        "443",
        "--cert",
        text(&pem),
        "--key",
        text(&pem),
    ];
    assert_refused(&serve(&words), &["--cert", "none.pem"]);
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o700)).unwrap();
    let closed = atlas(&["serve", text(directory.path()), "--check"]);
    assert_refused(&closed, &["cannot read it: Permission denied", "--user"]);
    let kept = atlas(&["serve", text(directory.path()), "--check", "--user", "root"]);
    assert_eq!(kept.status.code(), Some(0), "{}", stderr(&kept));
}

#[test]
fn a_user_that_does_not_exist_is_refused() {
    let missing = "--user atlas-no-such:";
    if is_root() {
        assert_refused(&serve(&["--user", "atlas-no-such"]), &[missing, "useradd"]);
        assert_refused(
            &serve(&["--user", "root:atlas-no-such"]),
            &["no such group"],
        );
        assert_refused(&serve(&["--user", "4000000000"]), &["UID:GID"]);
        let mut command = command(&["serve", "/", "--user", "root"]);
        command.uid(NOBODY).gid(NOBODY);
        match command.output() {
            Ok(output) => assert_refused(&output, &["--user root: only root", "leave --user out"]),
            Err(error) => eprintln!("SKIPPED: nobody may not run the binary: {error}"),
        }
    }
    assert_refused(&serve(&["--user", ":"]), &["--user :: not a user"]);
}

#[test]
fn the_part_that_reads_certificates_is_hidden_and_refuses_to_run_alone() {
    assert!(!stdout(&atlas(&["--help"])).contains("read-files"));
    assert_refused(&atlas(&["read-files", "/etc/shadow"]), &["use atlas serve"]);
}

#[test]
fn too_few_descriptors_are_reported_with_the_number_needed() {
    if !is_root() {
        eprintln!("SKIPPED: only root has the rights that a start takes");
        return;
    }
    let directory = directory();
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    let atlas = |limit: u32| {
        let words = format!("ulimit -n {limit} && exec \"$@\"");
        let program = env!("CARGO_BIN_EXE_atlas");
        let mut command = Command::new("sh");
        command.args(["-c", &words, "sh", program, "serve", "--check"]);
        command.arg(directory.path()).output().unwrap()
    };
    for few in [20, 384] {
        let problem = format!("only {few} files may be open, and 384 are needed");
        assert_refused(&atlas(few), &[&problem, "ulimit -Hn"]);
    }
    assert_eq!(atlas(385).status.code(), Some(0));
}

#[test]
fn settings_are_refused_by_flag_or_key_with_value_and_fix() {
    assert_refused(&serve(&["--http", "0"]), &["--http 0:", "1 to 65535"]);
    assert_refused(
        &serve(&["--workers", "65"]),
        &["--workers 65:", "use 1 to 64"],
    );
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
        &["atlas.toml:1:9: slots 1:", "16 to 65536", "  | slots = 1"],
    );
    assert_refused(
        &serve_with("slot = 1"),
        &["atlas.toml:1:1: slot: unknown key; did you mean slots?"],
    );
    assert_refused(
        &serve_with("slot = 1\ncors = 1"),
        &[
            "atlas.toml:1:1: slot",
            "atlas.toml:2:8: cors 1: expected true or false",
        ],
    );
    assert_refused(&serve_with("http = [\n"), &["atlas.toml:"]);
    assert_refused(
        &serve(&["--config", "/no/such.toml"]),
        &["/no/such.toml: No such file"],
    );
}

#[test]
fn a_file_is_checked_with_all_that_it_names() {
    let directory = directory();
    let (cert, key) = pair(directory.path());
    let file = directory.path().join("atlas.toml");
    let keys = directory.path().join("keys");
    let write = |cert: &str| {
        let content = format!(
            "https = 443\n[[certificate]]\ncert = \"{cert}\"\nkey = \"{key}\"\n[[site]]\n\
             [[site.rule]]\npaths = [\"/a/**\"]\nlink = {{ keys = \"{}\" }}\n",
            text(&keys)
        );
        std::fs::write(&file, content).unwrap();
    };
    write(&cert);
    std::fs::write(&keys, "ab12\n").unwrap();
    let output = atlas(&["check", text(&file)]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let expected = format!(
        "ok: {}: 1 site, 1 certificate\nnot compared with a running server: metrics is off\n",
        file.display()
    );
    assert_eq!(stdout(&output), expected);
    // Of all files it is told what is wrong.
    write("/no/such.pem");
    std::fs::write(&keys, "no key\n").unwrap();
    let output = atlas(&["check", text(&file)]);
    let parts = [
        "atlas.toml:3:8: certificate.cert /no/such.pem: ",
        "  | cert = \"/no/such.pem\"",
        ": site 1, rule 1: link.keys ",
        "line 1 is no key",
    ];
    assert_refused(&output, &parts);
    // With PATH, also what is to be served.
    write(&cert);
    std::fs::write(&keys, "ab12\n").unwrap();
    let output = atlas(&["check", text(&file), "/no/such/path"]);
    assert_refused(&output, &["PATH /no/such/path: "]);
}

#[test]
fn the_keys_are_listed_with_what_a_change_of_each_needs() {
    let output = atlas(&["check", "--keys"]);
    assert_eq!(output.status.code(), Some(0));
    let text = stdout(&output);
    let line = |key: &str| {
        text.lines()
            .find(|line| line.starts_with(&format!("{key} ")))
    };
    assert!(line("site").unwrap().contains(" SIGHUP "), "{text}");
    assert!(
        line("slots").unwrap().contains(" take-over  512 "),
        "{text}"
    );
    assert!(line("address").unwrap().contains(" restart "), "{text}");
    assert_eq!(atlas(&["check"]).status.code(), Some(2));
    assert_eq!(
        atlas(&["check", "--keys", "atlas.toml"]).status.code(),
        Some(2)
    );
}

#[test]
fn the_version_says_which_commit_and_what_is_in_it() {
    let short = stdout(&atlas(&["-V"]));
    let start = concat!("atlas ", env!("CARGO_PKG_VERSION"), " (");
    assert!(
        short.starts_with(start) && short.ends_with(")\n"),
        "{short}"
    );
    let long = stdout(&atlas(&["--version"]));
    assert!(long.starts_with(short.trim_end()), "{long}");
    assert!(
        long.contains("\ntarget: ") && long.contains("aws-lc, ring"),
        "{long}"
    );
}

#[test]
fn flags_win_over_the_file_and_the_file_over_defaults() {
    // Both are out of range, so the refusal tells which one was taken.
    let directory = directory();
    let file = directory.path().join("atlas.toml");
    std::fs::write(&file, "http = 70000").unwrap();
    let config = text(&file);
    assert_refused(
        &serve(&["--config", config]),
        &["atlas.toml:1:8: http 70000"],
    );
    assert_refused(
        &serve(&["--config", config, "--http", "80000"]),
        &["--http 80000"],
    );
}

/// Writes a good certificate and key for it, and tells their paths.
fn pair(directory: &Path) -> (String, String) {
    let pair = rcgen::generate_simple_self_signed(["video.example".to_owned()]).unwrap();
    let write = |name: &str, pem: String| {
        let path = directory.join(name);
        std::fs::write(&path, pem).unwrap();
        text(&path).to_owned()
    };
    (
        write("cert.pem", pair.cert.pem()),
        write("key.pem", pair.signing_key.serialize_pem()),
    )
}

#[test]
fn https_needs_a_port_and_pairs() {
    let directory = directory();
    let (cert, key) = pair(directory.path());
    let (cert, key) = (cert.as_str(), key.as_str());
    for (words, parts) in [
        (&["--https", "443"][..], &["--https 443:", "--cert"][..]),
        (
            &["--https", "443", "--cert", cert],
            &["--cert without --key"],
        ),
        (&["--https", "443", "--key", key], &["--key without --cert"]),
        (&["--cert", cert, "--key", key], &["--cert:", "--https"]),
        (
            &["--https", "80", "--cert", cert, "--key", key],
            &["--https 80:", "--http off"],
        ),
        (
            &["--https", "443", "--cert", cert, "--key", key, "--key", key],
            &["--cert is given 1 times, --key 2 times"],
        ),
        (&["--http", "off"], &["--http off:", "--https"]),
        (&["--log-tls-secrets"], &["--log-tls-secrets:", "--https"]),
    ] {
        assert_refused(&serve(words), parts);
    }
    let config = "https = 443\n[[certificate]]\ncert = \"/no/such.pem\"\nkey = \"k\"\n";
    let part = "atlas.toml:3:8: certificate.cert /no/such.pem:";
    assert_refused(&serve_with(config), &[part, "can read"]);
}

#[test]
fn certificates_and_keys_are_refused_with_what_is_wrong() {
    let directory = directory();
    let (cert, key) = pair(directory.path());
    let write = |name: &str, content: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        text(&path).to_owned()
    };
    let other = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
    let other = write("other.pem", &other.signing_key.serialize_pem());
    let empty = write("empty.pem", "");
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let encrypted = write("encrypted.pem", encrypted);
    let kind = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    let kind = write("kind.pem", kind);
    let (cert, key) = (cert.as_str(), key.as_str());
    for (cert, key, parts) in [
        ("/no/such.pem", key, ["--cert /no/such.pem:", "can read"]),
        (cert, "/no/such.pem", ["--key /no/such.pem:", "can read"]),
        (&empty, key, ["empty.pem: no certificate", "BEGIN"]),
        (cert, &empty, ["empty.pem: no private key", "BEGIN"]),
        (key, cert, ["key.pem: a private key and no", "swapped"]),
        (cert, cert, ["cert.pem: a certificate and no", "swapped"]),
        (cert, &encrypted, ["the key is encrypted", "openssl pkey"]),
        (cert, &kind, ["kind.pem: a key of a kind", "ECDSA"]),
        (cert, &other, ["other.pem: not the key of", "its own"]),
    ] {
        let words = ["--https", "443", "--cert", cert, "--key", key];
        assert_refused(&serve(&words), &parts);
    }
}

#[test]
fn a_key_that_may_not_be_read_is_refused() {
    if !is_root() {
        eprintln!("SKIPPED: only root can become a user that may not read a file");
        return;
    }
    let directory = directory();
    let path = text(directory.path());
    std::fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    let (cert, key) = pair(directory.path());
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    let words = ["serve", path, "--https", "443", "--cert", &cert, "--key"];
    let mut command = command(&words);
    command.arg(&key).uid(NOBODY).gid(NOBODY);
    match command.output() {
        Ok(output) => assert_refused(&output, &["--key", &key, "Permission denied", "can read"]),
        Err(error) => eprintln!("SKIPPED: nobody may not run the binary: {error}"),
    }
}

#[test]
fn secrets_are_logged_to_a_named_file_or_not_at_all() {
    const VARIABLE: &str = "SSLKEYLOGFILE";
    let directory = directory();
    let (cert, key) = pair(directory.path());
    let secrets = directory.path().join("secrets");
    // Whatever the outcome, it ends here: the interface cannot be.
    let words = [
        "serve",
        text(directory.path()),
        "--link",
        "tap:a/b",
        "--https",
        "443",
        "--cert",
        &cert,
        "--key",
        &key,
        "--log-tls-secrets",
    ];
    let output = command(&words).env_remove(VARIABLE).output().unwrap();
    assert_refused(&output, &["--log-tls-secrets:", VARIABLE, "set it"]);
    let output = command(&words).env(VARIABLE, "").output().unwrap();
    assert_refused(&output, &["--log-tls-secrets:", VARIABLE, "set it"]);
    let output = command(&words).env(VARIABLE, "/no/such/file").output();
    assert_refused(&output.unwrap(), &["--log-tls-secrets:", "/no/such/file"]);
    let without = command(&words[..words.len() - 1])
        .env(VARIABLE, &secrets)
        .output()
        .unwrap();
    assert_refused(&without, &["--link"]);
    assert!(!stderr(&without).contains("secrets") && !secrets.exists());
    let with = command(&words).env(VARIABLE, &secrets).output().unwrap();
    assert_refused(&with, &["--link"]);
    assert!(stderr(&with).contains("WARN TLS secrets go to"));
    let mode = std::fs::metadata(&secrets).unwrap().mode();
    assert_eq!(mode & 0o777, 0o600, "only for whoever runs it");
}

#[test]
fn an_address_of_the_host_is_refused() {
    // The address that datagrams to elsewhere would have; none is sent.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    if socket.connect("192.0.2.1:9").is_err() {
        eprintln!("SKIPPED: this host has no IPv4 address with a route to elsewhere");
        return;
    }
    let address = format!("{}/32", socket.local_addr().unwrap().ip());
    let output = serve(&["--address", &address]);
    assert_refused(
        &output,
        &["--address", &address, "this host has that address"],
    );
}

#[test]
fn the_interface_must_exist() {
    let packet = format!("packet:{NO_INTERFACE}");
    let output = serve(&["--link", &packet, "--address", "10.99.99.2/24"]);
    // It may come.
    assert_fails(&output, 75, &["--link", NO_INTERFACE]);
    assert_refused(&serve(&["--link", &packet]), &["no address", "--address"]);
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
    let names = std::fs::read_dir("/sys/class/net").unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let other = names.into_iter().find(|name| name != "lo");
    let packet = other.map(|name| (format!("packet:{name}"), &["cap_net_raw", "setcap"][..]));
    if packet.is_none() {
        eprintln!("SKIPPED in part: this host has no interface but loopback");
    }
    // It may be the mode of /dev/net/tun that is in the way, or the capability.
    let tap = (String::from("tap:atlas-nobody"), &["cap_net_admin"][..]);
    for (link, parts) in [Some(tap), packet].into_iter().flatten() {
        let mut command = command(&["serve", "/", "--link", &link, "--address", "10.99.99.2/24"]);
        command.uid(NOBODY).gid(NOBODY);
        match command.output() {
            Ok(output) => assert_refused(&output, &[&["--link"], parts].concat()),
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
