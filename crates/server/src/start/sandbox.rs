//! What the process can no longer do once it serves, whoever has taken it over: Landlock for files, programs and
//! TCP, and a filter of system calls that lets through those of a list.
//!
//! Both hold for the calling thread and those that it starts, so they come while there is one. Landlock lets files be
//! read beneath what is served, beside the operator's files and in `/proc` and `/sys`, and logs be written where they are. The
//! filter answers `EPERM`. Neither holds for the process that reads keys, which was started before, and is to
//! start others. It refuses nothing where the kernel has none of them: it says so. Bounds: two fixed lists, and the
//! paths of the settings.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetError, RulesetStatus, path_beneath_rules,
};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};
use store::raw::names_in;
use tracing::{debug, info, warn};

use crate::observe::access_log::AccessLogTarget;
use crate::reload;
use crate::settings::Settings;
use crate::settings::sites::directories;

/// What is handled: all that Linux 6.7 knows. An older kernel handles what it knows.
const KNOWN: ABI = ABI::V4;

/// What any server may read: what it tells of itself and of the machine, and its own symbols.
const READ_ALWAYS: [&str; 3] = ["/proc", "/sys", "/proc/self/exe"];

/// The system calls of a server that serves, by name and number.
macro_rules! calls {
    ($($name:ident)*) => {
        &[$((stringify!($name), libc::$name)),*]
    };
}

/// The list: what the standard library, the allocator, the rings and the sockets use once all is opened.
pub(crate) const CALLS: &[(&str, libc::c_long)] = calls![
    SYS_accept4 SYS_bind SYS_bpf SYS_brk SYS_capget SYS_clock_getres SYS_clock_gettime SYS_clock_nanosleep
    SYS_clone3 SYS_close SYS_dup SYS_dup3 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_eventfd2 SYS_exit
    SYS_exit_group SYS_fallocate SYS_fchmod SYS_fchown SYS_fcntl SYS_fdatasync SYS_flock SYS_fstat SYS_fstatfs
    SYS_fsync SYS_ftruncate SYS_futex SYS_getcwd SYS_getdents64 SYS_getegid SYS_geteuid SYS_getgid
    SYS_getpeername SYS_getpid SYS_getppid SYS_getrandom SYS_getrusage SYS_getsockname SYS_getsockopt SYS_gettid
    SYS_gettimeofday SYS_getuid SYS_io_uring_enter SYS_io_uring_register SYS_ioctl SYS_listen SYS_lseek SYS_madvise
    SYS_membarrier SYS_mlock SYS_mmap SYS_mprotect SYS_mremap SYS_munlock SYS_munmap SYS_nanosleep
    SYS_newfstatat SYS_openat SYS_openat2 SYS_pipe2 SYS_ppoll SYS_prctl SYS_pread64 SYS_preadv SYS_preadv2
    SYS_prlimit64 SYS_pwrite64 SYS_pwritev SYS_pwritev2 SYS_read SYS_readlinkat SYS_readv SYS_recvfrom SYS_recvmmsg
    SYS_recvmsg SYS_restart_syscall SYS_rseq SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn
    SYS_rt_sigtimedwait SYS_sched_getaffinity SYS_sched_getparam SYS_sched_getscheduler SYS_sched_setaffinity
    SYS_sched_setscheduler SYS_sched_yield SYS_sendmmsg SYS_sendmsg SYS_sendto SYS_set_robust_list
    SYS_set_tid_address SYS_setsockopt SYS_shutdown SYS_sigaltstack SYS_socketpair SYS_statfs SYS_statx
    SYS_sysinfo SYS_tgkill SYS_umask SYS_uname SYS_wait4 SYS_waitid SYS_write SYS_writev
];

/// Those of the list that newer machines have no numbers for.
#[cfg(target_arch = "x86_64")]
pub(crate) const OLD_CALLS: &[(&str, libc::c_long)] = calls![
    SYS_access SYS_arch_prctl SYS_epoll_wait SYS_open SYS_poll SYS_readlink SYS_stat
];
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const OLD_CALLS: &[(&str, libc::c_long)] = &[];

/// Gives up what a server that serves does not need, as far as the settings want it and the kernel has it.
pub(crate) fn enter(settings: &Settings) {
    if settings.landlock {
        match restrict_files(&Paths::of(settings)) {
            Ok(RulesetStatus::FullyEnforced) => debug!("Landlock is in force"),
            Ok(RulesetStatus::PartiallyEnforced) => {
                info!("Landlock is in force as far as this kernel has it; all of it has Linux 6.7");
            }
            Ok(RulesetStatus::NotEnforced) => info!(
                "no Landlock: this kernel has none, or a filter of system calls refuses it (landlock = false: \
                 not said again)"
            ),
            Err(error) => warn!("no Landlock: {error} (landlock = false: not said again)"),
        }
    }
    if settings.seccomp {
        match filter_calls() {
            Ok(()) => debug!("system calls are filtered"),
            Err(error) => warn!(
                "system calls are not filtered: {error}; allow seccomp(2) in the filter of the container or the \
                 unit (seccomp = false: not said again)"
            ),
        }
    }
}

/// What files may be used for.
#[derive(Debug, Default)]
struct Paths {
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
}

impl Paths {
    fn of(settings: &Settings) -> Self {
        let mut paths = Self::default();
        paths.read.extend(READ_ALWAYS.map(PathBuf::from));
        for content in names_in(&settings.path)
            .iter()
            .chain(&directories(settings))
        {
            paths.read_replaceable(content);
        }
        // Only where no other process reads them; to that one this does not apply.
        for file in reload::Source::paths(settings) {
            paths.read_replaceable(&file);
        }
        let log = settings.access_log.as_ref();
        let log = log.and_then(|log| match log {
            AccessLogTarget::File(path) => Some(path),
            AccessLogTarget::Stdout => None,
        });
        let written = log.into_iter().chain(&settings.pcap);
        let trace = settings.trace.as_ref().map(|trace| &trace.file);
        for file in written.chain(trace) {
            paths.write.push(folder_of(file).to_owned());
        }
        paths
    }

    /// What may be another file or directory of that name later, or a link that leads elsewhere beside what it
    /// leads to now: all in the folders of both, unless that is the root.
    fn read_replaceable(&mut self, path: &Path) {
        let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        for place in [path, &target] {
            let folder = folder_of(place);
            if folder.canonicalize().is_ok_and(|it| it.parent().is_some()) {
                self.read.push(folder.to_owned());
            }
        }
        self.read.push(target);
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
        None => path,
    }
}

/// From now on this thread opens only what is allowed, executes nothing and makes no TCP connection.
fn restrict_files(paths: &Paths) -> Result<RulesetStatus, RulesetError> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let write: BitFlags<AccessFs> =
        AccessFs::WriteFile | AccessFs::ReadFile | AccessFs::MakeReg | AccessFs::Truncate;
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .create()?
        .add_rules(path_beneath_rules(&paths.read, read))?
        .add_rules(path_beneath_rules(&paths.write, write))?
        .restrict_self()?;
    Ok(status.ruleset)
}

/// From now on this thread makes only the calls of the list.
fn filter_calls() -> io::Result<()> {
    for program in [no_clone3(), listed_calls()] {
        let program = program.map_err(io::Error::other)?;
        seccompiler::apply_filter(&program).map_err(io::Error::other)?;
    }
    Ok(())
}

/// `clone3` has its flags in memory, where no filter sees them: libc takes `clone` where it is missing.
fn no_clone3() -> Result<BpfProgram, BackendError> {
    filter(
        BTreeMap::from([(libc::SYS_clone3, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS.cast_unsigned()),
    )
}

fn listed_calls() -> Result<BpfProgram, BackendError> {
    let numbers = CALLS.iter().chain(OLD_CALLS).map(|(_, number)| *number);
    let mut rules: BTreeMap<_, _> = numbers.map(|number| (number, Vec::new())).collect();
    // Threads, and no processes.
    let thread = u64::from(libc::CLONE_THREAD.cast_unsigned());
    rules.insert(libc::SYS_clone, vec![masked(0, thread, thread)?]);
    // Sockets that ask the kernel about interfaces, or tell the service manager; none that connects.
    let mut sockets = Vec::new();
    for domain in [libc::AF_UNIX, libc::AF_NETLINK] {
        sockets.push(masked(0, u64::MAX, number(domain))?);
    }
    for domain in [libc::AF_INET, libc::AF_INET6] {
        sockets.push(SeccompRule::new(vec![
            condition(0, SeccompCmpOp::Eq, number(domain))?,
            condition(1, SeccompCmpOp::MaskedEq(0xf), number(libc::SOCK_DGRAM))?,
        ])?);
    }
    rules.insert(libc::SYS_socket, sockets);
    filter(
        rules,
        SeccompAction::Errno(libc::EPERM.cast_unsigned()),
        SeccompAction::Allow,
    )
}

fn filter(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    others: SeccompAction,
    listed: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    let machine: TargetArch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, others, listed, machine)?.try_into()
}

fn masked(argument: u8, mask: u64, value: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![condition(
        argument,
        SeccompCmpOp::MaskedEq(mask),
        value,
    )?])
}

fn condition(
    argument: u8,
    operation: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operation, value)
}

fn number(constant: libc::c_int) -> u64 {
    u64::from(constant.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::{self, ErrorKind};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::thread;

    use landlock::RulesetStatus;
    use rustix::process::{Pid, Signal};

    use super::{CALLS, OLD_CALLS, Paths, filter_calls, restrict_files};
    use crate::settings::{CommonArgs, FileConfig, Settings};

    /// Does it in a thread of its own, which alone is restricted.
    fn inside<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> T {
        thread::spawn(job).join().unwrap()
    }

    fn settings(path: &Path, log: &Path) -> Settings {
        let common = CommonArgs {
            path: path.to_owned(),
            access_log: Some(log.to_owned()),
            ..CommonArgs::default()
        };
        Settings::merge(common, FileConfig::default()).unwrap()
    }

    fn kind<T>(outcome: io::Result<T>) -> Option<ErrorKind> {
        outcome.err().map(|error| error.kind())
    }

    const DENIED: Option<ErrorKind> = Some(ErrorKind::PermissionDenied);

    #[test]
    fn landlock_leaves_what_is_served_and_the_log_and_nothing_else() {
        let served = tempfile::tempdir().unwrap();
        let logs = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let release = |name: &str| served.path().join("releases").join(name);
        for name in ["1", "2"] {
            fs::create_dir_all(release(name)).unwrap();
            fs::write(release(name).join("film.mp4"), name).unwrap();
        }
        let current = served.path().join("current");
        symlink("releases/1", &current).unwrap();
        let secret = elsewhere.path().join("secret");
        fs::write(&secret, "secret").unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let log = logs.path().join("access.log");
        let paths = Paths::of(&settings(&current, &log));
        let film = current.join("film.mp4");
        inside(move || {
            if restrict_files(&paths).unwrap() == RulesetStatus::NotEnforced {
                eprintln!("SKIPPED: this kernel has no Landlock");
                return;
            }
            assert_eq!(fs::read_to_string(&film).unwrap(), "1");
            assert_eq!(kind(fs::remove_file(&current)), DENIED);
            // What the link may be switched to.
            let other = current.with_file_name("releases").join("2/film.mp4");
            assert_eq!(fs::read_to_string(other).unwrap(), "2");
            fs::write(&log, "a line").unwrap();
            assert!(File::open("/proc/self/status").is_ok());
            for outside in [secret.as_path(), Path::new("/etc/passwd")] {
                assert_eq!(kind(File::open(outside)), DENIED, "{}", outside.display());
            }
            let beside = secret.with_file_name("new");
            assert_eq!(kind(File::create(beside)), DENIED);
            assert_eq!(kind(File::create(film.with_file_name("new"))), DENIED);
            assert_eq!(kind(Command::new("/bin/true").spawn()), DENIED);
            assert_eq!(kind(TcpStream::connect(address)), DENIED);
        });
    }

    #[test]
    fn the_folder_of_what_is_served_is_never_all_there_is() {
        let log = Path::new("/no-such-folder/log");
        let read = |path: &str| Paths::of(&settings(Path::new(path), log)).read;
        for path in ["/tmp", "/no-such-directory", "/proc/self/cwd"] {
            let read = read(path);
            let is_root = |it: &&PathBuf| it.canonicalize().is_ok_and(|it| it.parent().is_none());
            assert_eq!(read.iter().find(is_root), None, "{path}");
        }
    }

    #[test]
    fn the_filter_lets_threads_files_and_sockets_of_its_own_through_and_no_way_out() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let parent = Pid::from_raw(i32::try_from(std::process::id()).unwrap()).unwrap();
        inside(move || {
            filter_calls().unwrap();
            assert_eq!(inside(|| 7), 7);
            assert!(File::open("/proc/self/status").is_ok());
            assert!(
                UdpSocket::bind(("127.0.0.1", 0)).is_ok(),
                "to ask for interfaces"
            );
            assert_eq!(kind(TcpStream::connect(address)), DENIED);
            assert_eq!(kind(TcpListener::bind(("127.0.0.1", 0))), DENIED);
            assert_eq!(kind(Command::new("/bin/true").spawn()), DENIED);
            assert_eq!(kind(fs::remove_file("/no-such-file")), DENIED);
            let killed = rustix::process::kill_process(parent, Signal::CONT);
            assert_eq!(killed, Err(rustix::io::Errno::PERM));
            let pidfd = rustix::process::pidfd_open(parent, rustix::process::PidfdFlags::empty());
            assert_eq!(kind(pidfd.map_err(io::Error::from)), DENIED);
            assert_eq!(kind(trace(parent)), DENIED);
        });
    }

    /// What gdb begins with.
    #[allow(
        unsafe_code,
        reason = "UNSAFETY: ptrace(2), which nobody has as a safe function"
    )]
    fn trace(process: Pid) -> io::Result<()> {
        let (id, none) = (
            process.as_raw_nonzero().get(),
            std::ptr::null_mut::<libc::c_void>(),
        );
        // SAFETY: PTRACE_SEIZE takes no memory of ours.
        let outcome = unsafe { libc::ptrace(libc::PTRACE_SEIZE, id, none, none) };
        match outcome {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    #[test]
    fn the_profile_of_containers_lets_through_all_that_the_filter_does() {
        let profile = include_str!("../../../../dist/seccomp.json");
        let profile: serde_json::Value = serde_json::from_str(profile).unwrap();
        let listed = profile["syscalls"][0]["names"].as_array().unwrap();
        let names = CALLS.iter().chain(OLD_CALLS).map(|(name, _)| *name);
        for name in names.chain([
            "SYS_clone",
            "SYS_socket",
            "SYS_io_uring_setup",
            "SYS_seccomp",
        ]) {
            let name = name.trim_start_matches("SYS_");
            assert!(listed.iter().any(|it| it == name), "{name}");
        }
    }

    #[test]
    fn no_call_is_listed_twice() {
        let mut names: Vec<_> = CALLS.iter().chain(OLD_CALLS).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
