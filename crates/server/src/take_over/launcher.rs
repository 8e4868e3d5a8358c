//! A process that starts a successor: it has the rights that the server was started with, and the server has given
//! them up.
//!
//! It does one thing: it executes what lies at the path of the server's program now, with the arguments and the
//! environment of the server's own start and a socket as standard input. Nothing that the server says changes these.
//! It reads nothing else, and ends when the server has ended, in whatever way, because that closes its socket.
//!
//! ```text
//!   server ── START, with a socket for the successor; KILL ──▶ launcher
//!          ◀── STARTED, u32; FAILED, errno; ENDED, status ────
//! ```
//!
//! It refuses a second successor while the first runs. Bounds: messages of five bytes, one child.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::{env, fs};

use clap::Args;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, send, sendmsg,
};
use rustix::process::{PidfdFlags, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

use super::VARIABLE;
use crate::failure::Failure;
use crate::start::privileges;

/// The hidden command that is this process.
pub(crate) const COMMAND: &str = "launch";
/// The server itself, whatever became of its file.
const OWN_PROGRAM: &str = "/proc/self/exe";

const START: u8 = b'S';
const KILL: u8 = b'K';
const STARTED: u8 = b'P';
const FAILED: u8 = b'E';
const ENDED: u8 = b'X';

/// What the launcher is told at its start.
#[derive(Args, Clone, Debug)]
pub(crate) struct LauncherArgs {
    /// What the successor is called
    #[arg(long)]
    name: OsString,
    /// The program, and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// What the launcher says of a successor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum News {
    /// It was started, with this number.
    Started(u32),
    /// It was not, by this errno.
    Failed(i32),
    /// It ended.
    Ended(ExitStatus),
}

/// The server's end.
#[derive(Debug)]
pub(crate) struct Launcher {
    socket: OwnedFd,
    program: Program,
    process: Child,
}

/// The program that the server was started from.
#[derive(Debug)]
struct Program {
    path: PathBuf,
    /// Device, inode, size and time of the file.
    identity: Option<[u64; 5]>,
}

impl Program {
    fn find() -> io::Result<Self> {
        let executable = env::current_exe()?;
        let name = env::args_os().next().unwrap_or_default();
        // A symbolic link may lead to another version later.
        let named = Path::new(&name);
        let is_same = |path: &Path| fs::canonicalize(path).is_ok_and(|it| it == executable);
        let path = if name.as_encoded_bytes().contains(&b'/') && is_same(named) {
            std::path::absolute(named)?
        } else {
            executable
        };
        Ok(Self {
            identity: identity(OWN_PROGRAM.as_ref()),
            path,
        })
    }

    fn has_changed(&self) -> bool {
        let now = identity(&self.path);
        now.is_some() && now != self.identity
    }
}

fn identity(path: &Path) -> Option<[u64; 5]> {
    let found = fs::metadata(path).ok()?;
    let [seconds, nanos] = [found.mtime(), found.mtime_nsec()].map(i64::cast_unsigned);
    Some([found.dev(), found.ino(), found.size(), seconds, nanos])
}

impl Launcher {
    /// Starts the process, with all rights of this one.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn start() -> io::Result<Self> {
        let program = Program::find()?;
        let (ours, theirs) = super::pair()?;
        let mut arguments = env::args_os();
        let name = arguments.next().unwrap_or_default();
        let mut command = Command::new(OWN_PROGRAM);
        command
            .arg0("atlas")
            .args([OsStr::new(COMMAND), "--name".as_ref(), &name]);
        command.arg("--").arg(&program.path).args(arguments);
        command.stdin(theirs);
        let process = privileges::passing_capabilities_on(|| command.spawn())?;
        Ok(Self {
            socket: ours,
            program,
            process,
        })
    }

    /// One whose other end a test has.
    #[cfg(test)]
    pub(super) fn of_socket(socket: OwnedFd) -> Self {
        let path = PathBuf::from("/nowhere");
        let process = Command::new("true").spawn().expect("a process");
        Self {
            socket,
            program: Program {
                path,
                identity: None,
            },
            process,
        }
    }

    /// Whether another file lies where the server's program was.
    #[must_use]
    pub(crate) fn has_other_program(&self) -> bool {
        self.program.has_changed()
    }

    /// Has a successor started, with this socket.
    ///
    /// # Errors
    /// The kernel's: the launcher has ended.
    pub(crate) fn launch(&self, socket: OwnedFd) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [socket.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.socket, &[IoSlice::new(&[START])], &mut control, flags)?;
        Ok(())
    }

    /// Ends the successor that was started last, if it still runs.
    pub(crate) fn kill(&self) {
        // Without a launcher there is no way to.
        let _ = send(
            &self.socket,
            &[KILL],
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        );
    }

    /// What it has to say, waited for for so long at most.
    pub(crate) fn news(&self, milliseconds: i64) -> Option<News> {
        let timeout = rustix::event::Timespec {
            tv_sec: milliseconds / 1_000,
            tv_nsec: (milliseconds % 1_000) * 1_000_000,
        };
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
        poll(&mut polled, Some(&timeout))
            .ok()
            .filter(|ready| *ready > 0)?;
        let mut message = [0; 5];
        let (_, length) =
            rustix::net::recv(&self.socket, &mut message, RecvFlags::DONTWAIT).ok()?;
        let [kind, number @ ..] = message;
        let number = u32::from_be_bytes(number);
        match kind {
            _ if length != message.len() => None,
            STARTED => Some(News::Started(number)),
            FAILED => Some(News::Failed(number.cast_signed())),
            ENDED => Some(News::Ended(ExitStatus::from_raw(number.cast_signed()))),
            _ => None,
        }
    }
}

impl Drop for Launcher {
    /// Waits for its end, so that nobody finds it left over: it ends when its socket is closed.
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        let _ = self.process.wait();
    }
}

/// The launcher process: starts what it is told to, until the server ends.
///
/// # Errors
/// It was not started by a server.
pub(crate) fn run(args: &LauncherArgs) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::Broken(format!("{COMMAND}: {error}"));
    let stdin = io::stdin();
    let socket = stdin.as_fd().try_clone_to_owned().map_err(failed)?;
    if rustix::net::sockopt::socket_type(&socket) != Ok(rustix::net::SocketType::SEQPACKET) {
        return Err(Failure::refused(
            format!("{COMMAND}: that is a part of atlas serve"),
            "use atlas serve",
        ));
    }
    // A terminal sends Ctrl-C to us as well.
    for signal in [SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2] {
        signal_hook::flag::register(signal, Arc::default()).map_err(failed)?;
    }
    launch_all(&socket, args).map_err(failed)
}

fn launch_all(socket: &OwnedFd, args: &LauncherArgs) -> io::Result<()> {
    let mut child: Option<(Child, OwnedFd)> = None;
    loop {
        let mut polled = vec![PollFd::new(socket, PollFlags::IN)];
        polled.extend(
            child
                .iter()
                .map(|(_, ended)| PollFd::new(ended, PollFlags::IN)),
        );
        match poll(&mut polled, None) {
            Err(rustix::io::Errno::INTR) => continue,
            outcome => outcome?,
        };
        let is_ready = |place: usize| polled.get(place).is_some_and(|it| !it.revents().is_empty());
        let (is_asked, has_ended) = (is_ready(0), is_ready(1));
        if has_ended && let Some((mut ended, _)) = child.take() {
            let status = ended.wait()?.into_raw();
            tell(socket, ENDED, status.cast_unsigned());
        }
        if !is_asked {
            continue;
        }
        match receive(socket)? {
            None => return Ok(()),
            Some((START, Some(descriptor))) if child.is_none() => match start(args, descriptor) {
                Ok(started) => {
                    tell(socket, STARTED, started.0.id());
                    child = Some(started);
                }
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(libc::EIO);
                    tell(socket, FAILED, errno.cast_unsigned());
                }
            },
            Some((START, _)) => tell(socket, FAILED, libc::EBUSY.cast_unsigned()),
            Some((KILL, _)) => {
                if let Some((child, _)) = &mut child {
                    child.kill()?;
                }
            }
            Some(_) => {}
        }
    }
}

fn start(args: &LauncherArgs, socket: OwnedFd) -> io::Result<(Child, OwnedFd)> {
    let (program, arguments) = args.command.split_first().ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(program);
    command.arg0(&args.name).args(arguments).env(VARIABLE, "1");
    command.stdin(Stdio::from(socket));
    let mut child = privileges::passing_capabilities_on(|| command.spawn())?;
    let pid = rustix::process::Pid::from_child(&child);
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(ended) => Ok((child, ended)),
        Err(errno) => {
            child.kill()?;
            child.wait()?;
            Err(errno.into())
        }
    }
}

fn tell(socket: &OwnedFd, kind: u8, number: u32) {
    let [a, b, c, d] = number.to_be_bytes();
    // A server that is gone needs to hear nothing.
    let _ = send(socket, &[kind, a, b, c, d], SendFlags::NOSIGNAL);
}

/// `None`: the server has ended.
pub(super) fn receive(socket: &OwnedFd) -> io::Result<Option<(u8, Option<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut kind = [0];
    let received = rustix::io::retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(&mut kind)];
        recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((received.bytes > 0).then_some((kind[0], descriptor)))
}
