//! `atlas doctor` where something is refused: by a filter of system calls as containers have, by a limit of
//! locked memory, by the rights of the files.

#![allow(
    unsafe_code,
    reason = "UNSAFETY: a child that a filter and a limit are set for before it becomes the server's program"
)]

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};

use serde_json::Value;

/// What the kernel is to say to system calls of these numbers: errno.
type Refused = &'static [(libc::c_long, i32)];

/// As podman's and Docker's default profiles do.
const NO_IO_URING: Refused = &[
    (libc::SYS_io_uring_setup, libc::EPERM),
    (libc::SYS_io_uring_enter, libc::EPERM),
    (libc::SYS_io_uring_register, libc::EPERM),
];
const NO_REGISTER: Refused = &[(libc::SYS_io_uring_register, libc::ENOSYS)];
/// As systemd does for `RestrictSUIDSGID=`.
const NO_OPENAT2: Refused = &[(libc::SYS_openat2, libc::ENOSYS)];

fn doctor(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_atlas"));
    command.arg("doctor").args(arguments);
    command
}

/// The findings as JSON, and whether the exit code and their number agree.
fn findings(command: &mut Command) -> Vec<Value> {
    let Output { status, stdout, .. } = command.output().expect("the program runs");
    let said: Value = serde_json::from_slice(&stdout).expect("JSON");
    let findings = said["findings"].as_array().expect("an array").clone();
    let missing = findings.iter().filter(|it| it["verdict"] == "missing");
    let missing = missing.count();
    assert_eq!(said["missing"], missing);
    let expected = if missing == 0 { 0 } else { 2 };
    assert_eq!(status.code(), Some(expected), "{said}");
    findings
}

/// The finding of this subject: its verdict, what was found and the remedy.
fn of(findings: &[Value], subject: &str) -> (String, String, String) {
    let found = findings.iter().find(|it| it["subject"] == subject);
    let text = |name: &str| {
        let value = &found.unwrap_or_else(|| panic!("no {subject}"))[name];
        value.as_str().unwrap_or_default().to_owned()
    };
    (text("verdict"), text("found"), text("remedy"))
}

/// Has the kernel refuse system calls to the child.
fn refuse(command: &mut Command, refused: Refused) {
    let instruction = |code: u32, jump_over: u8, operand: u32| libc::sock_filter {
        code: u16::try_from(code).expect("a code of 16 bits"),
        jt: 0,
        jf: jump_over,
        k: operand,
    };
    // The number of the system call is the first word of what a filter sees (seccomp(2)).
    let mut program = vec![instruction(
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        0,
        0,
    )];
    for (number, errno) in refused {
        let number = u32::try_from(*number).expect("a number of a call");
        let errno = libc::SECCOMP_RET_ERRNO | u32::try_from(*errno).expect("errno");
        program.push(instruction(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            1,
            number,
        ));
        program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, errno));
    }
    let allow = libc::SECCOMP_RET_ALLOW;
    program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, allow));
    let set = move || {
        let filter = libc::sock_fprog {
            len: u16::try_from(program.len()).unwrap_or(0),
            filter: program.as_ptr().cast_mut(),
        };
        // SAFETY: takes numbers only.
        let kept = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        // SAFETY: the filter and its program live until the call has returned.
        let set = unsafe {
            libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const filter,
            )
        };
        if kept == 0 && set == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    };
    // SAFETY: between fork and exec it makes two system calls, and allocates nothing.
    unsafe { command.pre_exec(set) };
}

/// Limits the memory that the child may lock, for root as well.
fn limit_locked_memory(command: &mut Command, bytes: u64) {
    const CAP_IPC_LOCK: libc::c_ulong = 14;
    let set = move || {
        let limit = libc::rlimit {
            rlim_cur: bytes,
            rlim_max: bytes,
        };
        // SAFETY: the limit lives until the call has returned.
        let limited = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) };
        // Not for users without rights, who have none to lose.
        // SAFETY: takes numbers only.
        let _ = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0) };
        if limited == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    };
    // SAFETY: between fork and exec it makes two system calls, and allocates nothing.
    unsafe { command.pre_exec(set) };
}

#[test]
fn a_filter_that_forbids_io_uring_is_found_by_trying() {
    let (verdict, ..) = of(&findings(&mut doctor(&["--json"])), "io_uring");
    if verdict != "ok" {
        println!("SKIPPED: no io_uring here");
        return;
    }
    for (refused, call) in [
        (NO_IO_URING, "io_uring_setup"),
        (NO_REGISTER, "io_uring_register"),
    ] {
        let mut command = doctor(&["--json"]);
        refuse(&mut command, refused);
        let (verdict, found, remedy) = of(&findings(&mut command), "io_uring");
        assert_eq!(verdict, "missing", "{found}");
        assert!(found.starts_with(call), "{found}");
        assert!(remedy.contains("seccomp"), "{remedy}");
    }
}

#[test]
fn a_filter_that_forbids_openat2_is_found_by_trying() {
    let mut command = doctor(&["--json"]);
    refuse(&mut command, NO_OPENAT2);
    let (verdict, found, remedy) = of(&findings(&mut command), "openat2");
    assert_eq!(verdict, "missing", "{found}");
    assert!(remedy.contains("RestrictSUIDSGID="), "{remedy}");
}

#[test]
fn a_low_limit_of_locked_memory_is_told_with_what_the_settings_need() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("atlas.toml");
    let doctor = |text: &str| {
        fs::write(&config, text).unwrap();
        let mut command = doctor(&["--json", "--config", config.to_str().unwrap()]);
        limit_locked_memory(&mut command, 1 << 20);
        of(&findings(&mut command), "locked memory")
    };
    let (verdict, found, remedy) = doctor("slots = 1024\n");
    assert_eq!(verdict, "less", "{found}");
    assert!(
        found.starts_with("73728 KiB are wanted, and 1024 may"),
        "{found}"
    );
    assert!(remedy.contains("LimitMEMLOCK=infinity"), "{remedy}");
    // A socket of AF_XDP does not start without its memory.
    let (verdict, found, _) = doctor("link = \"xdp:eth0\"\nslots = 1024\n");
    assert_eq!(verdict, "missing", "{found}");
    assert!(found.starts_with("90112 KiB are wanted"), "{found}");
}

#[test]
fn what_is_to_be_served_is_tried_as_the_user_that_would_serve_it() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(folder.path(), open).unwrap();
    let file = folder.path().join("film.mp4");
    fs::write(&file, [0; 8192]).unwrap();
    let path = folder.path().to_str().unwrap();
    let look = || of(&findings(&mut doctor(&[path, "--json"])), "PATH");
    let (verdict, found, _) = look();
    if verdict == "missing" && found.contains("cannot") {
        println!("SKIPPED: the directories above are closed to others: {found}");
        return;
    }
    assert_eq!(verdict, "ok", "{found}");
    assert!(found.contains("readable, "), "{found}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
    let (verdict, found, remedy) = look();
    assert_eq!(verdict, "less", "{found}");
    assert!(remedy.starts_with("chmod -R o+rX"), "{remedy}");
    let (verdict, found, _) = of(&findings(&mut doctor(&["/no/such/path", "--json"])), "PATH");
    assert_eq!(verdict, "missing", "{found}");
}

#[test]
fn a_configuration_that_is_wrong_is_a_finding() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("atlas.toml");
    fs::write(&config, "slots = \"many\"\n").unwrap();
    let arguments = ["--json", "--config", config.to_str().unwrap()];
    let (verdict, found, _) = of(&findings(&mut doctor(&arguments)), "settings");
    assert_eq!(verdict, "missing");
    assert!(found.contains("atlas.toml"), "{found}");
}
