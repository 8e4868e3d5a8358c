//! Starts that fail: whether a service manager is to try again, and whether `--check` says the same.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::linux::fs::MetadataExt as _;
use std::path::Path;
use std::process::Output;

use tempfile::TempDir;

use crate::lab::{Atlas, Lab, NOT_NOW};
use crate::{directory, set_mode};

/// The exit code of a start that would fail the next time, too.
const REFUSED: i32 = 2;

const LINK: [&str; 4] = ["--link", "packet:server0", "--address", "10.78.0.2/24"];

fn last_line(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    text.lines().last().unwrap_or_default().to_owned()
}

/// Asserts that a start and its check end with this code, for the same reason.
fn assert_fails(lab: &Lab, path: &Path, words: &[&str], code: i32, part: &str) {
    let end = Atlas::start(lab, path, words).end();
    assert_eq!(end.code, Some(code), "{words:?}: {}", end.stderr);
    let reason = end.stderr.lines().last().unwrap();
    assert!(reason.contains(part), "{words:?}: {reason}");
    let check = Atlas::check(lab, path, words);
    assert_eq!(check.status.code(), Some(code), "{words:?}: {check:?}");
    assert_eq!(last_line(&check.stderr), reason, "{words:?}");
    assert!(check.stdout.is_empty(), "{words:?}");
}

fn assert_good(check: &Output, part: &str) {
    let text = String::from_utf8_lossy(&check.stdout);
    assert_eq!(check.status.code(), Some(0), "{check:?}");
    assert!(
        text.starts_with("ok: could serve ") && text.contains(part),
        "{text}"
    );
}

#[test]
fn what_may_pass_has_another_exit_code_than_what_will_not() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let _client = lab.join_by_veth();
    let path = directory.path();
    let taken = lab.listen("127.0.0.1:9100");
    let metrics = ["--metrics", "127.0.0.1:9100"];
    for (words, part) in [
        (
            &["--link", "packet:server9", "--address", "10.78.0.2/24"][..],
            "no interface \"server9\"",
        ),
        (&["--link", "xdp:server9"], "no address there"),
        (&["--link", "auto"], "no interface has a default route"),
        (&metrics, "Address already in use"),
        (
            &["--metrics", "192.0.2.1:9100"],
            "Cannot assign requested address",
        ),
    ] {
        assert_fails(&lab, path, words, NOT_NOW, part);
    }
    drop(taken);
    for (words, part) in [
        (
            &["--link", "packet:", "--address", "10.78.0.2/24"][..],
            "cannot name an interface",
        ),
        (&["--link", "tap:server0"], "not a tap"),
        (
            &["--link", "packet:lo", "--address", "10.78.0.2/24"],
            "does not carry Ethernet",
        ),
        (
            &["--access-log", "/no/such/directory/log"],
            "--access-log /no/such",
        ),
        (
            &["--trace", "/no/such/log", "--trace-peer", "10.77.0.1"],
            "--trace /no/such",
        ),
        (&["--pcap", "/no/such/log"], "--pcap /no/such"),
        (&["--http", "0"], "--http 0"),
    ] {
        assert_fails(&lab, path, words, REFUSED, part);
    }
    assert_fails(
        &lab,
        Path::new("/no/such"),
        &[],
        REFUSED,
        "no such directory",
    );
    assert_good(
        &Atlas::check(&lab, path, &LINK),
        "http://10.78.0.2/ as user ",
    );
}

#[test]
fn a_check_beside_the_server_that_runs_takes_its_interface_and_port_for_its_own() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let log = directory.path().join("access.log");
    let words = [
        "--metrics",
        "127.0.0.1:9100",
        "--access-log",
        log.to_str().unwrap(),
    ];
    assert_good(&Atlas::check(&lab, directory.path(), &words), "as user ");
    // It makes nothing.
    assert!(!log.exists());
    assert!(!lab.show(&["link"]).contains("atlas0"));
    let mut atlas = Atlas::start(&lab, directory.path(), &words);
    atlas.ready();
    let check = Atlas::check(&lab, directory.path(), &words);
    assert_good(&check, "; a server with these addresses is running");
    atlas.signal(libc::SIGTERM);
    assert_eq!(atlas.end().code, Some(0));
}

#[test]
fn a_check_of_a_file_says_what_it_would_change_of_the_server_that_runs() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let config = directory.path().join("atlas.toml");
    let write = |text: &str| {
        let text = format!("metrics = \"127.0.0.1:9100\"\n{text}");
        std::fs::write(&config, text).unwrap();
    };
    let check = || {
        let mut command = lab.command(env!("CARGO_BIN_EXE_atlas"));
        let output = command.arg("check").arg(&config).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let said = String::from_utf8(output.stdout).unwrap();
        said.split_once('\n').unwrap().1.to_owned()
    };
    write("slots = 256\n[[site]]\n");
    let absent = "not compared: no server answered at 127.0.0.1:9100 (";
    assert!(check().starts_with(absent), "{}", check());
    let words = ["--config", config.to_str().unwrap()];
    let mut atlas = Atlas::start(&lab, directory.path(), &words);
    atlas.ready();
    let same = "the server at 127.0.0.1:9100 has these settings already\n";
    assert_eq!(check(), same);
    write("slots = 512\n[[site]]\n[[site]]\nnames = [\"a.example\"]\n");
    assert_eq!(
        check(),
        "of the server at 127.0.0.1:9100 this changes, where no flag of its start wins over the file:\n  \
         slots: \"256\" -> \"512\": a reload applies it by a take-over\n  \
         site: a.example is new: a reload applies it\n"
    );
    atlas.signal(libc::SIGTERM);
    assert_eq!(atlas.end().code, Some(0));
}

/// As systemd does with what `dist/atlas.service` says.
#[test]
fn a_server_whose_interface_was_removed_is_worth_starting_until_that_is_back() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let client = lab.join_by_veth();
    let mut atlas = Atlas::start(&lab, directory.path(), &LINK);
    atlas.ready();
    lab.ip(&["link", "set", "server0", "down"]);
    atlas.stderr_line("server0 is down");
    lab.ip(&["link", "del", "server0"]);
    let end = atlas.end();
    assert_eq!(end.code, Some(1), "{}", end.stderr);
    assert_fails(
        &lab,
        directory.path(),
        &LINK,
        NOT_NOW,
        "no interface \"server0\"",
    );
    lab.join_by_veth_to(&client);
    let mut atlas = Atlas::start(&lab, directory.path(), &LINK);
    atlas.ready();
    assert!(client.curl(&["http://10.78.0.2/film.bin"]) == bytes);
}

#[test]
fn a_fifo_that_nobody_reads_holds_up_no_start() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let logs = TempDir::new().unwrap();
    set_mode(logs.path(), 0o755);
    let fifo = logs.path().join("fifo");
    make_fifo(&fifo);
    set_mode(&fifo, 0o666);
    let fifo = fifo.to_str().unwrap();
    let words = ["--access-log", fifo];
    assert_good(&Atlas::check(&lab, directory.path(), &words), "as user ");
    let mut atlas = Atlas::start(&lab, directory.path(), &words);
    atlas.stderr_line("nobody reads the FIFO");
    atlas.ready();
    let url = "http://10.77.0.2/film.bin";
    lab.curl(&["-o", "/dev/null", url]);
    atlas.stderr_line("lines are lost");
    // Whoever comes to read it gets what comes from then on.
    let mut options = fs::OpenOptions::new();
    let reader = options.read(true).write(true).open(fifo).unwrap();
    lab.curl(&["-o", "/dev/null", "-A", "read", url]);
    let mut line = String::new();
    BufReader::new(reader).read_line(&mut line).unwrap();
    assert!(line.ends_with("\"read\"\n"), "{line}");
    atlas.signal(libc::SIGTERM);
    let end = atlas.end();
    assert_eq!(end.code, Some(0), "{}", end.stderr);
    assert_eq!(end.json("summary ")["access_log_dropped_count"], 1);
    // A capture has a reader or no point, and a trace is nobody else's.
    for (words, code, part) in [
        (
            &["--pcap", fifo][..],
            NOT_NOW,
            "nobody reads that FIFO; start its reader",
        ),
        (
            &["--trace", fifo, "--trace-peer", "10.77.0.1"],
            REFUSED,
            "not a regular file",
        ),
    ] {
        let end = Atlas::start(&lab, directory.path(), words).end();
        assert_eq!(end.code, Some(code), "{}", end.stderr);
        let last = end.stderr.lines().last().unwrap();
        assert!(last.contains(part), "{last}");
    }
}

/// The process that reads certificates waits for the other end of a FIFO, and the server for it.
#[test]
fn the_first_sigterm_ends_a_start_that_hangs() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let fifo = directory.path().join("fifo");
    make_fifo(&fifo);
    let pem = fifo.to_str().unwrap();
    let words = ["--https", "443", "--cert", pem, "--key", pem];
    let atlas = Atlas::start(&lab, directory.path(), &words);
    // Returns when the other end is opened.
    let writer = fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    atlas.signal(libc::SIGTERM);
    // The signal is pending: whatever the server is told from here on, that comes first.
    drop(writer);
    let end = atlas.end();
    assert_eq!(end.code, Some(0), "{}", end.stderr);
}

#[test]
fn traces_and_captures_are_made_in_a_directory_of_root_s() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let logs = TempDir::new().unwrap();
    set_mode(logs.path(), 0o755);
    let (trace, capture) = (logs.path().join("a.sqlog"), logs.path().join("a.pcap"));
    let files = [
        "--trace",
        trace.to_str().unwrap(),
        "--pcap",
        capture.to_str().unwrap(),
    ];
    let words = [&files[..], &["--trace-peer", "10.77.0.1"]].concat();
    assert_good(&Atlas::check(&lab, directory.path(), &words), "as user ");
    // The second time they are there, and the server's.
    for _ in 0..2 {
        let mut atlas = Atlas::start(&lab, directory.path(), &words);
        atlas.ready();
        lab.curl(&["-o", "/dev/null", "http://10.77.0.2/film.bin"]);
        atlas.signal(libc::SIGTERM);
        let end = atlas.end();
        assert_eq!(end.code, Some(0), "{}", end.stderr);
        for file in [&trace, &capture] {
            let metadata = fs::metadata(file).unwrap();
            assert!(
                metadata.st_uid() != 0 && metadata.st_size() > 1000,
                "{metadata:?}"
            );
            assert_eq!(metadata.st_mode() & 0o777, 0o600);
        }
    }
    // Others' files are not touched.
    fs::write(&trace, "precious").unwrap();
    std::os::unix::fs::chown(&trace, Some(0), Some(0)).unwrap();
    assert_fails(
        &lab,
        directory.path(),
        &words,
        REFUSED,
        "or one of the user that serves",
    );
    assert_eq!(fs::read(&trace).unwrap(), b"precious");
}

#[test]
fn a_log_that_cannot_be_rotated_says_how_it_can() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let logs = TempDir::new().unwrap();
    set_mode(logs.path(), 0o755);
    let log = logs.path().join("access.log");
    let mut atlas = Atlas::start(
        &lab,
        directory.path(),
        &["--access-log", log.to_str().unwrap()],
    );
    atlas.ready();
    let owner = fs::metadata(&log).unwrap();
    fs::rename(&log, logs.path().join("access.log.1")).unwrap();
    atlas.signal(libc::SIGUSR1);
    let line = atlas.stderr_line("cannot be opened again");
    assert!(line.contains("logrotate: create"), "{line}");
    // As that does it.
    fs::write(&log, "").unwrap();
    std::os::unix::fs::chown(&log, Some(owner.st_uid()), Some(owner.st_gid())).unwrap();
    atlas.signal(libc::SIGUSR1);
    atlas.stderr_line("is opened again");
}

#[test]
fn too_little_locked_memory_is_said_to_be_that() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let _client = lab.join_by_veth();
    let limit = ["sh", "-c", "ulimit -l 0 && exec \"$@\"", "sh"];
    let user = ["setpriv", "--reuid=4242", "--regid=4242", "--clear-groups"];
    let capabilities = "+net_admin,+net_raw";
    let bounding = "-all,+net_admin,+net_raw";
    let capabilities = ["--inh-caps", capabilities, "--ambient-caps", capabilities];
    let by = [
        &limit[..],
        &user,
        &capabilities,
        &["--bounding-set", bounding],
    ]
    .concat();
    for check in [&[][..], &["--check"]] {
        let words = [&LINK[..], check].concat();
        let end = Atlas::start_by(&lab, &by, directory.path(), &words).end();
        assert_eq!(end.code, Some(REFUSED), "{}", end.stderr);
        let last = end.stderr.lines().last().unwrap();
        assert!(
            last.contains("LimitMEMLOCK=, docker --ulimit memlock=-1"),
            "{last}"
        );
        assert!(!last.contains("seccomp"), "{last}");
    }
}

/// What systemd does for the journal: stderr is a stream that `JOURNAL_STREAM` names.
#[test]
fn lines_for_the_journal_begin_with_their_priority() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let mut atlas = Atlas::start_after(
        &lab,
        "export JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2)",
        directory.path(),
        &[],
    );
    atlas.ready();
    lab.ip(&["link", "set", "atlas0", "down"]);
    let line = atlas.stderr_line("atlas0 is down");
    assert!(line.starts_with("<4>") && line.contains(" WARN "), "{line}");
    lab.ip(&["link", "del", "atlas0"]);
    let end = atlas.end();
    assert_eq!(end.code, Some(1), "{}", end.stderr);
    let begins = |text: &str| end.stderr.lines().any(|line| line.starts_with(text));
    for text in ["<3>atlas: the interface is gone", "<6>summary {", "<6>20"] {
        assert!(begins(text), "{text} in:\n{}", end.stderr);
    }
    assert!(
        end.stderr.lines().all(|line| line.starts_with('<')),
        "{}",
        end.stderr
    );
}

fn make_fifo(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status();
    assert!(made.unwrap().success());
}
