//! System calls that a filter refuses (seccomp(2)), as profiles of containers and directives of systemd units
//! do: each is named, with what to do, by a start's check.

#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "UNSAFETY: a filter is set between fork and exec; a test may panic, and says what it skips"
)]

use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};

use tempfile::TempDir;

/// Number of this machine's system calls (`AUDIT_ARCH_X86_64`, `AUDIT_ARCH_AARCH64`).
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// A program of the kernel's packet filter that lets every system call pass but one.
fn refusing(call: libc::c_long, errno: i32) -> [libc::sock_filter; 6] {
    let step = |code: u32, jt, jf, k| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt,
        jf,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let compare = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let (call, errno) = (u32::try_from(call).unwrap(), u32::try_from(errno).unwrap());
    [
        // struct seccomp_data: the number of the call, then the architecture.
        step(load, 0, 0, 4),
        step(compare, 0, 3, ARCHITECTURE),
        step(load, 0, 0, 0),
        step(compare, 0, 1, call),
        step(libc::BPF_RET, 0, 0, libc::SECCOMP_RET_ERRNO | errno),
        step(libc::BPF_RET, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

fn set_filter(filter: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(io::Error::other)?,
        filter: filter.as_mut_ptr(),
    };
    let none: libc::c_ulong = 0;
    // SAFETY: takes numbers only.
    let outcome = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, none, none, none) };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    let mode = libc::c_ulong::from(libc::SECCOMP_MODE_FILTER);
    // SAFETY: the program and its steps live through the call, which copies them.
    let outcome = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) };
    if outcome == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// `atlas serve --check` of a directory with a file, without this system call.
fn check_without(call: libc::c_long, errno: i32) -> Output {
    let directory = TempDir::new().unwrap();
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(directory.path(), mode).unwrap();
    std::fs::write(directory.path().join("film.bin"), [0; 8192]).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_atlas"));
    command.args(["serve", "--check"]).arg(directory.path());
    let mut filter = refusing(call, errno);
    // SAFETY: two system calls, which need neither memory nor locks of the other threads.
    unsafe { command.pre_exec(move || set_filter(&mut filter)) };
    command.output().unwrap()
}

#[test]
fn a_check_names_a_system_call_that_is_refused_and_what_refuses_it() {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!("SKIPPED: only root has the rights that a start takes");
        return;
    }
    // As systemd refuses it for RestrictSUIDSGID=, and as a list of calls does.
    let openat2 = &["openat2", "RestrictSUIDSGID=", "DynamicUser=", "seccomp"][..];
    let ring = &["io_uring", "seccomp", "SystemCallFilter="][..];
    for (call, errno, parts) in [
        (libc::SYS_openat2, libc::ENOSYS, openat2),
        (libc::SYS_openat2, libc::EPERM, openat2),
        (libc::SYS_io_uring_setup, libc::ENOSYS, ring),
        (libc::SYS_io_uring_setup, libc::EPERM, ring),
        (libc::SYS_statx, libc::EPERM, &["PATH ", "seccomp"]),
        (libc::SYS_getrandom, libc::EPERM, &["getrandom", "seccomp"]),
        (libc::SYS_eventfd2, libc::EPERM, &["eventfd", "seccomp"]),
    ] {
        let output = check_without(call, errno);
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text.lines().last().unwrap_or_default();
        assert_eq!(output.status.code(), Some(2), "{parts:?}: {text}");
        for part in parts {
            assert!(line.contains(part), "no {part:?} in: {line}");
        }
    }
    let allowed = check_without(libc::SYS_reboot, libc::EPERM);
    assert_eq!(allowed.status.code(), Some(0), "{allowed:?}");
}
