//! Separate processes that read configuration, certificates and keys for a server that has dropped the right to.
//!
//! Keys are readable by root only, and SIGHUP reads them again; but the server is an ordinary user by
//! then. So a second process is started before privileges are dropped. It becomes the same user and
//! keeps one capability, the one to read any file (decision 9). It starts another like it, which reads, and
//! starts that again if it is killed: the server itself has no right to start one any more.
//!
//! Each answer comes over a socket of its own. So one that comes too late, or only in part, is taken for no
//! other, and after a file system that hung for a time files are read again.
//!
//! It refuses to read anything but the files named at its start, and those in a folder of certificates: a request is an
//! index into them.
//! Bounds: [`FILE_BYTES_MAX`] a file, ten seconds an answer, [`RESTARTS_MAX`] restarts, a dozen descriptors.
//! Both end when the server ends, in whatever way, because that closes its socket.
//!
//! ```text
//!   server ── file's index, u16, with a socket for the answer ──▶ reader
//!          ◀── errno, u32; length, u32; bytes ────────────────────
//! ```

use std::env;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use tracing::Level;
use zeroize::Zeroizing;

use super::files::{FILE_BYTES_MAX, read_bounded};
use super::folder;
use crate::failure::Failure;
use crate::observe::log;
use crate::start::privileges::{self, Account, Identity};

/// The hidden command that is this process.
pub(crate) const COMMAND: &str = "read-files";
/// The server itself, whatever became of its file.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// Longest wait for a file. Longer than any disk takes; a network's file system may hang.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// Descriptors the reader may have: its three, two sockets, a file.
const DESCRIPTORS_MAX: u64 = 12;
/// Added to the index of a folder of certificates.
const FOLDER: u16 = 1 << 15;
/// How often one that was killed is started again: whatever kills more of them wants them dead.
const RESTARTS_MAX: usize = 16;

/// What the reader is told at its start.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReaderArgs {
    /// Number of the user to become; without it, the user stays
    #[arg(long, requires = "gid")]
    uid: Option<u32>,
    /// Number of the group to become
    #[arg(long, requires = "uid")]
    gid: Option<u32>,
    /// Read, instead of starting another that reads
    #[arg(long)]
    read: bool,
    /// The files that may be read
    paths: Vec<PathBuf>,
}

/// The server's end.
#[derive(Debug)]
pub(super) struct Reader {
    paths: Vec<PathBuf>,
    socket: UnixStream,
    /// `None` in tests.
    process: Option<Child>,
}

impl Reader {
    /// Starts the process, which will be `identity` and read `paths`.
    pub(super) fn start(paths: Vec<PathBuf>, identity: &Identity) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(OWN_PROGRAM);
        command.arg0("atlas").arg(COMMAND);
        if let Identity::Other(account) = identity {
            command.args(["--uid", &account.uid.to_string()]);
            command.args(["--gid", &account.gid.to_string()]);
        }
        command.arg("--").args(&paths);
        command.env_clear().stdin(OwnedFd::from(theirs));
        // Its stderr is ours.
        if let Some(stream) = env::var_os(log::JOURNAL_VARIABLE) {
            command.env(log::JOURNAL_VARIABLE, stream);
        }
        command.stdout(Stdio::null());
        let process = privileges::passing_capabilities_on(|| command.spawn())?;
        // Closes our copy of its end: only its end says then that it has ended.
        drop(command);
        let mut reader = Self::new(ours, paths)?;
        reader.process = Some(process);
        Ok(reader)
    }

    fn new(socket: UnixStream, paths: Vec<PathBuf>) -> io::Result<Self> {
        socket.set_read_timeout(Some(ANSWER_TIME_MAX))?;
        socket.set_write_timeout(Some(ANSWER_TIME_MAX))?;
        Ok(Self {
            paths,
            socket,
            process: None,
        })
    }

    /// The bytes of one of its files.
    pub(super) fn read_file(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        self.read(path, 0)
    }

    /// The pairs in one of its files that is a folder of certificates ([`folder`]).
    pub(super) fn read_folder(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        self.read(path, FOLDER)
    }

    fn read(&self, path: &Path, flags: u16) -> io::Result<Zeroizing<Vec<u8>>> {
        let index = self.paths.iter().position(|known| known == path);
        let index = index.and_then(|index| u16::try_from(index).ok());
        let unknown = || {
            let text =
                "not one of the files that were named at start: use atlas reload --take-over";
            io::Error::other(text)
        };
        let index = index.filter(|index| *index < FOLDER).ok_or_else(unknown)? | flags;
        let mut answer = self.ask(index);
        if matches!(&answer, Err(error) if error.kind() == io::ErrorKind::UnexpectedEof) {
            // It was killed while it read. Another is started.
            answer = self.ask(index);
        }
        answer.unwrap_or_else(|error| {
            Err(match error.kind() {
                io::ErrorKind::WouldBlock => io::Error::other(format!(
                    "not read within {} s: does its file system answer?",
                    ANSWER_TIME_MAX.as_secs()
                )),
                _ => io::Error::other("the process that reads files is gone: restart"),
            })
        })
    }

    /// The outer error: there will be no answer. The inner: the file cannot be read.
    fn ask(&self, index: u16) -> io::Result<io::Result<Zeroizing<Vec<u8>>>> {
        let (mut answers, theirs) = UnixStream::pair()?;
        answers.set_read_timeout(Some(ANSWER_TIME_MAX))?;
        send_request(&self.socket, index, theirs)?;
        receive_answer(&mut answers)
    }
}

impl Drop for Reader {
    /// Waits for the end of the processes, [`ANSWER_TIME_MAX`] at most, so that nobody finds them left over.
    fn drop(&mut self) {
        let Some(process) = &mut self.process else {
            return;
        };
        // They end when they read this end, and the kernel closes their end then.
        let has_ended = self.socket.shutdown(Shutdown::Write).is_ok()
            && matches!(self.socket.read(&mut [0]), Ok(0));
        if has_ended {
            let _ = process.wait();
        }
    }
}

/// The caller's copy of `answers` is closed: then its other end is told when the reader's is.
fn send_request(socket: &UnixStream, index: u16, answers: UnixStream) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [answers.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let index = index.to_be_bytes();
    sendmsg(
        socket,
        &[IoSlice::new(&index)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

fn receive_answer(answers: &mut UnixStream) -> io::Result<io::Result<Zeroizing<Vec<u8>>>> {
    let mut words = [[0; 4]; 2];
    for word in &mut words {
        answers.read_exact(word)?;
    }
    let [errno, length] = words.map(u32::from_be_bytes);
    if errno != 0 {
        let errno = i32::try_from(errno).unwrap_or(libc::EIO);
        return Ok(Err(io::Error::from_raw_os_error(errno)));
    }
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > FILE_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Zeroizing::new(vec![0; length]);
    answers.read_exact(&mut bytes)?;
    Ok(Ok(bytes))
}

/// A reader process: drops the privileges it does not need, then answers until the server ends, or has
/// another answer.
///
/// # Errors
/// It was not started by a server, or cannot drop its privileges.
pub(crate) fn run(args: &ReaderArgs) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::Broken(format!("{COMMAND}: {error}"));
    let socket = own_socket().map_err(|_| {
        Failure::refused(
            format!("{COMMAND}: that is a part of atlas serve"),
            "use atlas serve",
        )
    })?;
    // A terminal sends Ctrl-C to us as well, and the server may still need files then.
    for signal in [SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2] {
        signal_hook::flag::register(signal, Arc::default()).map_err(failed)?;
    }
    drop_all_but_reading(args)?;
    limit(Resource::Nofile, DESCRIPTORS_MAX).map_err(failed)?;
    if !args.read && keep_one_reading(args) {
        return Ok(());
    }
    limit(Resource::Nproc, 0).map_err(failed)?;
    answer_all(&socket, &args.paths).map_err(failed)
}

fn limit(resource: Resource, most: u64) -> io::Result<()> {
    let limit = Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    Ok(setrlimit(resource, limit)?)
}

/// Has a process like this one read, and starts another when it was killed. Whether there was one: else
/// this one must read.
fn keep_one_reading(args: &ReaderArgs) -> bool {
    for restarts in 0..=RESTARTS_MAX {
        let status = start_reading(args).and_then(|mut process| process.wait());
        let signal = match status {
            Ok(status) => status.signal(),
            Err(_) if restarts == 0 => return false,
            Err(_) => None,
        };
        let Some(signal) = signal else { return true };
        // Not through the log, which is the server's.
        let priority = log::priority(Level::WARN);
        let _ = writeln!(
            io::stderr(),
            "{priority}atlas: {COMMAND}: ended by signal {signal}, started again ({} of {RESTARTS_MAX})",
            restarts + 1
        );
    }
    true
}

/// Starts a process that reads, with this one's rights and its socket.
fn start_reading(args: &ReaderArgs) -> io::Result<Child> {
    let mut command = Command::new(OWN_PROGRAM);
    command.arg0("atlas").args([COMMAND, "--read", "--"]);
    command.args(&args.paths);
    privileges::passing_capabilities_on(|| command.spawn())
}

/// Our standard input, which the server has the other end of.
fn own_socket() -> io::Result<UnixStream> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.peer_addr().map(|_| socket)
}

fn drop_all_but_reading(args: &ReaderArgs) -> Result<(), Failure> {
    let permitted = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.permitted);
    // Containers often have only the second, which is more than is needed.
    let kept = [CapabilitySet::DAC_READ_SEARCH, CapabilitySet::DAC_OVERRIDE]
        .into_iter()
        .find(|capability| permitted.contains(*capability));
    let identity = match (args.uid, args.gid, kept) {
        (Some(uid), Some(gid), Some(_)) => Identity::Other(Account {
            name: uid.to_string(),
            uid,
            gid,
        }),
        // A root without either can read its own files, as long as it is root.
        _ => Identity::Same,
    };
    identity.assume_keeping(kept.unwrap_or(CapabilitySet::empty()))?;
    privileges::set_core_dumps(false)
}

fn answer_all(socket: &UnixStream, paths: &[PathBuf]) -> io::Result<()> {
    while let Some((index, answers)) = receive_request(socket)? {
        // Nobody waits for an answer that came late.
        let path = paths.get(usize::from(index & !FOLDER));
        let _ = answer(answers, path, index & FOLDER != 0);
    }
    Ok(())
}

/// `None`: the server has ended.
fn receive_request(socket: &UnixStream) -> io::Result<Option<(u16, UnixStream)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut index = [0; 2];
    let flags = RecvFlags::WAITALL | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut index)],
            &mut control,
            flags,
        )
    })?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let answers = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let answers = answers.ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some((u16::from_be_bytes(index), answers.into())))
}

fn answer(mut answers: UnixStream, path: Option<&PathBuf>, is_folder: bool) -> io::Result<()> {
    let result = path.map_or_else(
        || Err(io::ErrorKind::InvalidInput.into()),
        |path| match is_folder {
            true => folder::read(path),
            false => read_bounded(path),
        },
    );
    match result {
        Ok(bytes) => {
            let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
            answers.write_all(&0u32.to_be_bytes())?;
            answers.write_all(&length.to_be_bytes())?;
            answers.write_all(&bytes)
        }
        Err(error) => {
            let errno = u32::try_from(errno_of(&error)).map_err(io::Error::other)?;
            answers.write_all(&errno.to_be_bytes())?;
            answers.write_all(&0u32.to_be_bytes())
        }
    }
}

/// What crosses the socket for an error; never 0.
fn errno_of(error: &io::Error) -> i32 {
    match error.kind() {
        io::ErrorKind::FileTooLarge => libc::EFBIG,
        io::ErrorKind::InvalidInput => libc::EINVAL,
        _ => error.raw_os_error().unwrap_or(libc::EIO),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        FILE_BYTES_MAX, Reader, answer, answer_all, folder, receive_answer, receive_request,
        send_request,
    };
    use std::io::{self, ErrorKind, Read as _, Write as _};
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;
    use std::thread::JoinHandle;
    use tempfile::TempDir;

    /// A reader's two ends in one process; the thread ends when the reader is dropped.
    fn reader(paths: &[PathBuf]) -> (Reader, JoinHandle<io::Result<()>>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let known = paths.to_vec();
        let thread = std::thread::spawn(move || answer_all(&theirs, &known));
        (Reader::new(ours, paths.to_vec()).unwrap(), thread)
    }

    #[test]
    fn the_files_named_at_start_are_read_as_they_are_now() {
        let directory = TempDir::new().unwrap();
        let paths = ["a", "b", "missing"].map(|name| directory.path().join(name));
        let (reader, thread) = reader(&paths);
        for (bytes, fill) in [(0, b'0'), (1, b'1'), (FILE_BYTES_MAX, b'2')] {
            std::fs::write(&paths[0], vec![fill; bytes]).unwrap();
            std::fs::write(&paths[1], b"other").unwrap();
            let read = reader.read_file(&paths[0]).unwrap();
            assert!(read.len() == bytes && read.iter().all(|byte| *byte == fill));
            assert_eq!(**reader.read_file(&paths[1]).unwrap(), *b"other");
        }
        drop(reader);
        thread.join().unwrap().unwrap();
    }

    #[test]
    fn a_folder_of_certificates_is_read_with_what_was_added() {
        let directory = TempDir::new().unwrap();
        let folder = directory.path().to_owned();
        let (reader, _thread) = reader(std::slice::from_ref(&folder));
        for count in 1..=3 {
            std::fs::write(folder.join(format!("{count}.crt")), "chain").unwrap();
            let bundle = reader.read_folder(&folder).unwrap();
            assert_eq!(folder::split(&bundle).unwrap().len(), count);
        }
        let beside = reader.read_folder(&folder.join("other")).unwrap_err();
        assert!(
            beside.to_string().contains("not one of the files"),
            "{beside}"
        );
    }

    #[test]
    fn an_unreadable_file_is_an_error_and_the_next_file_is_read() {
        let directory = TempDir::new().unwrap();
        let paths = ["a", "large", "missing"].map(|name| directory.path().join(name));
        std::fs::write(&paths[0], b"a").unwrap();
        std::fs::write(&paths[1], vec![b'x'; FILE_BYTES_MAX + 1]).unwrap();
        let (reader, _thread) = reader(&paths);
        let kind = |path: &PathBuf| reader.read_file(path).unwrap_err().kind();
        assert_eq!(kind(&paths[1]), ErrorKind::FileTooLarge);
        assert_eq!(kind(&paths[2]), ErrorKind::NotFound);
        assert_eq!(**reader.read_file(&paths[0]).unwrap(), *b"a");
    }

    #[test]
    fn a_file_that_was_not_named_is_refused_at_both_ends() {
        let directory = TempDir::new().unwrap();
        let (named, other) = (directory.path().join("a"), directory.path().join("b"));
        std::fs::write(&other, b"secret").unwrap();
        let (reader, _thread) = reader(std::slice::from_ref(&named));
        let error = reader.read_file(&other).unwrap_err();
        assert!(
            error.to_string().contains("not one of the files"),
            "{error}"
        );
        // A server that was taken over asks as it likes.
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::spawn(move || answer_all(&theirs, &[named]));
        for index in [1u16, u16::MAX] {
            let (mut answers, others) = UnixStream::pair().unwrap();
            send_request(&ours, index, others).unwrap();
            let error = receive_answer(&mut answers).unwrap().unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        }
        // Without a socket for the answer it ends.
        (&ours).write_all(&0u16.to_be_bytes()).unwrap();
        assert_eq!((&ours).read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn a_reader_that_is_killed_while_it_reads_is_asked_again() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("a");
        std::fs::write(&path, b"whole").unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let known = path.clone();
        let thread = std::thread::spawn(move || {
            // Some of an answer, and then no more.
            let (_, mut first) = receive_request(&theirs).unwrap().unwrap();
            first.write_all(&[0, 0, 0, 0, 0]).unwrap();
            drop(first);
            let (_, second) = receive_request(&theirs).unwrap().unwrap();
            answer(second, Some(&known), false).unwrap();
        });
        let reader = Reader::new(ours, vec![path.clone()]).unwrap();
        assert_eq!(**reader.read_file(&path).unwrap(), *b"whole");
        thread.join().unwrap();
    }

    #[test]
    fn a_reader_that_is_gone_is_an_error_and_stays_one() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let reader = Reader::new(ours, vec!["/a".into()]).unwrap();
        drop(theirs);
        for _ in 0..2 {
            let error = reader.read_file("/a".as_ref()).unwrap_err().to_string();
            assert!(error.contains("is gone: restart"), "{error}");
        }
    }

    #[test]
    fn an_answer_beyond_the_length_limit_is_refused() {
        let (mut answers, mut theirs) = UnixStream::pair().unwrap();
        let length = u32::try_from(FILE_BYTES_MAX + 1).unwrap();
        let words = [0u32.to_be_bytes(), length.to_be_bytes()].concat();
        theirs.write_all(&words).unwrap();
        let error = receive_answer(&mut answers).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    }
}
