//! What is left of root once it serves: nothing, in any thread, and what that means for files.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;

use tempfile::TempDir;

use crate::lab::{Atlas, Lab};
use crate::{directory, set_mode};

/// What the shell that becomes the server does first, where a test is about core dumps.
const DUMPS_ALLOWED: &str = "ulimit -c unlimited";

/// What /proc/PID/task/TID/status says behind `field:`.
fn field(status: &str, field: &str) -> String {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let words = line.unwrap_or_else(|| panic!("no {field} in:\n{status}"));
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The status of every thread of a process.
fn threads(id: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{id}/task")).unwrap();
    let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).unwrap();
    tasks.map(|task| status(task.unwrap())).collect()
}

/// How many filters of system calls hold for a thread. Those of a container hold for this process, too.
fn filters(status: &str) -> u32 {
    field(status, "Seccomp_filters").parse().unwrap()
}

fn own_filters() -> u32 {
    filters(&fs::read_to_string("/proc/self/status").unwrap())
}

/// The processes a process has started.
pub(crate) fn all_children(id: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    text.split_whitespace()
        .map(|id| id.parse().unwrap())
        .collect()
}

/// Those that read files: not the one that would start a server that takes over.
fn children(id: u32) -> Vec<u32> {
    let mut ids = all_children(id);
    ids.retain(|id| !is_launcher(*id));
    ids
}

/// Whether a process starts servers that take over.
fn is_launcher(id: u32) -> bool {
    let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).nth(1) == Some(b"launch")
}

/// Asserts that nothing of root is left in a thread but the capabilities in `kept`.
fn assert_ordinary(status: &str, kept: u64) {
    for ids in ["Uid", "Gid"] {
        let ids = field(status, ids);
        let numbers: Vec<&str> = ids.split(' ').collect();
        assert_eq!(numbers.len(), 4, "{status}");
        assert!(numbers.iter().all(|id| *id == numbers[0]), "{status}");
        assert_ne!(numbers[0], "0", "{status}");
    }
    assert_eq!(field(status, "Groups"), "", "{status}");
    for (set, kept) in [
        ("CapEff", kept),
        ("CapPrm", kept),
        ("CapBnd", kept),
        ("CapInh", 0),
        ("CapAmb", 0),
    ] {
        assert_eq!(
            field(status, set),
            format!("{kept:016x}"),
            "{set} of:\n{status}"
        );
    }
    assert_eq!(field(status, "NoNewPrivs"), "1", "{status}");
}

/// Root alone can read what the kernel keeps of a process that may not be dumped.
fn is_dumpable(id: u32) -> bool {
    fs::metadata(format!("/proc/{id}/environ")).unwrap().uid() != 0
}

fn core_limit(id: u32) -> String {
    let limits = fs::read_to_string(format!("/proc/{id}/limits")).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max core"));
    line.unwrap().split_whitespace().nth(4).unwrap().to_owned()
}

fn stop(atlas: Atlas) -> String {
    atlas.signal(libc::SIGTERM);
    let end = atlas.end();
    assert_eq!(end.code, Some(0), "{}", end.stderr);
    end.stderr
}

#[test]
fn every_thread_has_dropped_its_capabilities() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let log = directory.path().join("access.log");
    let words = ["--metrics", "127.0.0.1:9100", "--access-log"];
    let words = [&words[..], &[log.to_str().unwrap()]].concat();
    let mut atlas = Atlas::start_after(&lab, DUMPS_ALLOWED, directory.path(), &words);
    atlas.ready();
    // Whatever threads the kernel makes for reads are there after some.
    assert!(lab.curl(&["http://10.77.0.2/film.bin"]) == bytes);
    let threads = threads(atlas.id());
    for name in ["atlas-log", "atlas-access", "atlas-metrics"] {
        let is_there = threads.iter().any(|status| field(status, "Name") == name);
        assert!(is_there, "no thread {name}");
    }
    // The log can be opened again by whoever serves.
    let owner = fs::metadata(&log).unwrap().uid();
    assert_eq!(
        owner.to_string(),
        field(&threads[0], "Uid").split(' ').next().unwrap()
    );
    for status in &threads {
        assert_ordinary(status, 0);
        assert_eq!(filters(status), own_filters() + 2, "{status}");
    }
    assert!(!is_dumpable(atlas.id()));
    assert_eq!(core_limit(atlas.id()), "0");
    assert_eq!(children(atlas.id()), [0; 0]);
    stop(atlas);
    // The interface goes with the descriptor, for which no privilege is needed.
    let links = lab.show(&["link", "show"]);
    assert!(!links.contains("atlas0"), "{links}");
}

#[test]
fn system_calls_are_not_filtered_where_that_is_switched_off() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let file = directory.path().join("atlas.toml");
    fs::write(&file, "seccomp = false\nlandlock = false\n").unwrap();
    let words = ["--config", file.to_str().unwrap()];
    let mut atlas = Atlas::start(&lab, directory.path(), &words);
    atlas.ready();
    assert!(lab.curl(&["http://10.77.0.2/film.bin"]) == bytes);
    for status in &threads(atlas.id()) {
        assert_eq!(filters(status), own_filters(), "{status}");
    }
    stop(atlas);
}

#[test]
fn a_packet_link_needs_nothing_later() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let client = lab.join_by_veth();
    let words = ["--link", "packet:server0", "--address", "10.78.0.2/24"];
    let mut atlas = Atlas::start(&lab, directory.path(), &words);
    atlas.ready();
    for status in threads(atlas.id()) {
        assert_ordinary(&status, 0);
    }
    // Given up is not forgotten: the interface still lets our own address through.
    lab.ip(&["link", "set", "server0", "down"]);
    lab.ip(&["link", "set", "server0", "up"]);
    assert!(client.curl(&["http://10.78.0.2/film.bin"]) == bytes);
    stop(atlas);
}

#[test]
fn the_user_can_be_named_and_root_can_stay() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let words = ["--user", "4242:4343", "--core-dumps"];
    let mut atlas = Atlas::start_after(&lab, DUMPS_ALLOWED, directory.path(), &words);
    atlas.ready();
    for status in threads(atlas.id()) {
        assert_ordinary(&status, 0);
        assert_eq!(field(&status, "Uid"), "4242 4242 4242 4242");
        assert_eq!(field(&status, "Gid"), "4343 4343 4343 4343");
    }
    assert!(is_dumpable(atlas.id()));
    assert_ne!(core_limit(atlas.id()), "0");
    stop(atlas);
    let words = ["--user", "root"];
    let mut atlas = Atlas::start_after(&lab, DUMPS_ALLOWED, directory.path(), &words);
    atlas.ready();
    for status in threads(atlas.id()) {
        assert_eq!(field(&status, "Uid"), "0 0 0 0");
        assert_ne!(field(&status, "CapEff"), format!("{:016x}", 0));
    }
    assert_eq!(core_limit(atlas.id()), "0");
    stop(atlas);
}

#[test]
fn a_user_with_capabilities_gives_them_up() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let client = lab.join_by_veth();
    // As systemd starts it with User= and AmbientCapabilities=.
    let user = ["setpriv", "--reuid=4242", "--regid=4242", "--clear-groups"];
    let capabilities = "+net_admin,+net_raw";
    let capabilities = ["--inh-caps", capabilities, "--ambient-caps", capabilities];
    let by = [&user[..], &capabilities].concat();
    let words = ["--link", "packet:server0", "--address", "10.78.0.2/24"];
    let mut atlas = Atlas::start_by(&lab, &by, directory.path(), &words);
    atlas.ready();
    assert!(client.curl(&["http://10.78.0.2/film.bin"]) == bytes);
    for status in threads(atlas.id()) {
        assert_eq!(field(&status, "Uid"), "4242 4242 4242 4242");
        for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            assert_eq!(field(&status, set), format!("{:016x}", 0), "{set}");
        }
        assert_eq!(field(&status, "NoNewPrivs"), "1");
    }
    stop(atlas);
}

#[test]
fn files_that_only_root_can_read_are_refused() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    fs::write(directory.path().join("secret.bin"), b"secret").unwrap();
    set_mode(&directory.path().join("secret.bin"), 0o600);
    let mut atlas = Atlas::start(&lab, directory.path(), &[]);
    atlas.ready();
    let status = ["-o", "/dev/null", "-w", "%{http_code}"];
    let code =
        |name: &str| lab.curl(&[&status[..], &[&format!("http://10.77.0.2/{name}")]].concat());
    assert_eq!(code("secret.bin"), b"403");
    assert_eq!(code("film.bin"), b"200");
    assert!(!stop(atlas).contains("cannot read"));
}

#[test]
fn a_directory_of_root_s_is_refused_and_its_files_are_warned_of() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    set_mode(directory.path(), 0o700);
    let end = Atlas::start(&lab, directory.path(), &[]).end();
    assert_eq!(end.code, Some(2), "{}", end.stderr);
    let last = end.stderr.lines().last().unwrap();
    assert!(last.contains("cannot read it: Permission denied"), "{last}");
    assert!(last.contains("chmod") && last.contains("--user"), "{last}");
    set_mode(directory.path(), 0o755);
    set_mode(&directory.path().join("film.bin"), 0o600);
    let mut atlas = Atlas::start(&lab, directory.path(), &[]);
    atlas.ready();
    assert!(stop(atlas).contains("cannot read the files in it"));
}

#[test]
fn a_capture_belongs_to_the_user_and_follows_no_link() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let open = TempDir::new().unwrap();
    set_mode(open.path(), 0o777);
    let target = open.path().join("precious");
    fs::write(&target, b"precious").unwrap();
    set_mode(&target, 0o666);
    let link = open.path().join("frames.pcap");
    symlink(&target, &link).unwrap();
    for user in [&[][..], &["--user", "root"]] {
        let words = [&["--pcap", link.to_str().unwrap()], user].concat();
        let end = Atlas::start(&lab, directory.path(), &words).end();
        assert_eq!(end.code, Some(2), "{}", end.stderr);
        assert!(
            end.stderr.contains("that is a symbolic link"),
            "{}",
            end.stderr
        );
        assert_eq!(fs::read(&target).unwrap(), b"precious");
    }
    fs::remove_file(&link).unwrap();
    let words = ["--pcap", link.to_str().unwrap()];
    let mut atlas = Atlas::start(&lab, directory.path(), &words);
    atlas.ready();
    let made = fs::metadata(&link).unwrap();
    assert_eq!(made.mode() & 0o777, 0o600);
    assert_ne!(made.uid(), 0);
    stop(atlas);
}

/// A certificate and its key, which only root can read, and the words for both.
fn identity(at: &Path, name: &str) -> [String; 6] {
    let (certificate, key) = (at.join("chain.pem"), at.join("key.pem"));
    write_identity(at, name);
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let flags = ["--https", "443", "--cert", "--key"].map(str::to_owned);
    let [https, port, cert, key_flag] = flags;
    [https, port, cert, text(&certificate), key_flag, text(&key)]
}

fn write_identity(at: &Path, name: &str) {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    fs::write(at.join("chain.pem"), certificate.pem()).unwrap();
    fs::write(at.join("key.pem"), key.serialize_pem()).unwrap();
    for file in ["chain.pem", "key.pem"] {
        set_mode(&at.join(file), 0o600);
    }
}

#[test]
fn keys_that_only_root_can_read_are_read_again_by_the_reader_process() {
    /// `CAP_DAC_READ_SEARCH`.
    const READ_ANY_FILE: u64 = 1 << 2;
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    // The directory is root's alone, too.
    let keys = TempDir::new().unwrap();
    let words = identity(keys.path(), "a.example");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut atlas = Atlas::start(&lab, directory.path(), &words);
    atlas.ready();
    let trust = directory.path().join("trust.pem");
    fs::copy(keys.path().join("chain.pem"), &trust).unwrap();
    let ask = |name: &str| {
        let resolve = format!("{name}:443:10.77.0.2");
        let url = format!("https://{name}/film.bin");
        let trust = trust.to_str().unwrap();
        lab.curl(&["--resolve", &resolve, "--cacert", trust, &url])
    };
    assert!(ask("a.example") == bytes);
    let first = children(atlas.id());
    assert_eq!(
        first.len(),
        1,
        "one process keeps another reading certificates"
    );
    let reader = [first[0], only_child(first[0])];
    for status in reader.map(threads).concat() {
        assert_ordinary(&status, READ_ANY_FILE);
    }
    for status in threads(atlas.id()) {
        assert_ordinary(&status, 0);
    }
    assert!(!reader.iter().any(|id| is_dumpable(*id)));

    write_identity(keys.path(), "b.example");
    fs::copy(keys.path().join("chain.pem"), &trust).unwrap();
    // What a terminal's Ctrl-C would do to it must not take it away.
    for id in reader {
        kill("-INT", id);
    }
    atlas.signal(libc::SIGHUP);
    atlas.stderr_line("the files are read again");
    assert!(ask("b.example") == bytes);

    fs::remove_file(keys.path().join("key.pem")).unwrap();
    atlas.signal(libc::SIGHUP);
    atlas.stderr_line("No such file");
    assert!(ask("b.example") == bytes);
    stop(atlas);
    reader.into_iter().for_each(assert_gone);
}

#[test]
fn certificates_are_read_again_after_a_process_that_reads_them_was_killed() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let keys = TempDir::new().unwrap();
    let words = identity(keys.path(), "a.example");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    for is_first in [false, true] {
        let mut atlas = Atlas::start(&lab, directory.path(), &words);
        atlas.ready();
        let first = children(atlas.id())[0];
        let second = only_child(first);
        if is_first {
            // The one that reads goes on without the one that would start it again.
            kill("-KILL", first);
            assert_gone(first);
        } else {
            kill("-KILL", second);
            atlas.stderr_line("read-files: ended by signal 9, started again (1 of 16)");
        }
        atlas.signal(libc::SIGHUP);
        atlas.stderr_line("the files are read again");
        let reading = if is_first { second } else { only_child(first) };
        stop(atlas);
        [first, reading].into_iter().for_each(assert_gone);
    }
}

/// Whatever became of the server, nobody is left who can read keys.
#[test]
fn the_process_that_reads_certificates_ends_with_a_server_that_is_killed() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let keys = TempDir::new().unwrap();
    let words = identity(keys.path(), "a.example");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut atlas = Atlas::start(&lab, directory.path(), &words);
    atlas.ready();
    let first = children(atlas.id())[0];
    let second = only_child(first);
    let mut client = lab.connect("10.77.0.2:80");
    client.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    atlas.signal(libc::SIGKILL);
    assert_eq!(atlas.end().code, None);
    [first, second].into_iter().for_each(assert_gone);
    // The tap goes with it, too.
    assert!(!lab.show(&["link", "show"]).contains("atlas0"));
    drop(client.read_to_end(&mut Vec::new()));
}

pub(crate) fn kill(signal: &str, id: u32) {
    let killed = std::process::Command::new("kill")
        .args([signal, &id.to_string()])
        .status();
    assert!(killed.unwrap().success());
}

/// The one process that a process has started, once it is there.
fn only_child(id: u32) -> u32 {
    loop {
        if let [child] = children(id)[..] {
            return child;
        }
        std::thread::yield_now();
    }
}

/// Waits for the end of a process that is nobody's child here.
pub(crate) fn assert_gone(id: u32) {
    for _ in 0..3_000 {
        match fs::read_to_string(format!("/proc/{id}/stat")) {
            Err(_) => return,
            Ok(stat) if stat.contains(") Z ") => return,
            Ok(_) => std::thread::sleep(std::time::Duration::from_millis(10)),
        }
    }
    panic!("process {id} is still there");
}
