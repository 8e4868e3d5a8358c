//! The access log: one line per request ([`line`]).
//!
//! A FIFO is written to while somebody reads it: without a reader lines are dropped, and each batch of them
//! looks whether there is one.
//!
//! A line is written when its reply ends. Its text is formatted when the reply begins, while the
//! request is available, and kept until the end: one allocation for each request in progress, and
//! none without an access log. A separate thread writes ([`crate::observe::output`]): it refuses to make the
//! worker wait.
//!
//! Bounds: [`PENDING_BYTES_MAX`] of requests in progress, [`line::FIELD_BYTES_MAX`] of each of the
//! fields that clients choose, [`QUEUE`] for lines that wait. Lines beyond are dropped and counted.

mod line;

use std::collections::hash_map::RandomState;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::fchown;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use clock::Instant;
use session::{LoggedRequest, ReplyEnd, RequestLog, RequestName};
use tracing::{info, warn};

use crate::failure::Failure;
use crate::observe::output::{Output, OutputLimits, Target};
use crate::start::files;
use worker::limiter::Limiter;

pub(crate) use line::{Fields, Format, LogStyle};
use line::{Line, TimeText};

/// Text of requests whose replies are under way, bytes: 65,000 lines of common length.
pub(crate) const PENDING_BYTES_MAX: usize = 16 << 20;
/// What may wait for the thread that writes: a second's lines of a busy server, half a minute's of
/// a calm one.
pub(crate) const QUEUE: OutputLimits = OutputLimits {
    bytes_max: 16 << 20,
    pause: WRITE_PAUSE,
};
/// Each write of a busy server takes the lines of so long: waking the thread costs as much as writing them.
const WRITE_PAUSE: Duration = Duration::from_millis(50);
/// From a request's identifier to the next: odd, so that none comes again before 2^64 requests.
const ID_STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// Pieces of memory that are kept for lines to come, and what each may be: a line of common length.
const ROOMS_MAX: usize = 64;
const ROOM_BYTES_MAX: usize = 2 << 10;
/// How the log is written to stdout instead of a file.
pub(crate) const STDOUT: &str = "-";

/// Where the access log goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum AccessLogTarget {
    /// To stdout, behind the line that says `ready`.
    Stdout,
    /// To the end of a file, made if there is none.
    File(PathBuf),
}

impl AccessLogTarget {
    /// As it is written in a flag or the configuration file.
    #[must_use]
    pub(crate) fn parse(path: PathBuf) -> Self {
        if path.as_os_str() == STDOUT {
            Self::Stdout
        } else {
            Self::File(path)
        }
    }

    /// Opens it: while the process still has the rights it was started with. A file that is made
    /// belongs to `owner`, a user and a group, who is to open it again.
    ///
    /// # Errors
    /// It cannot be written to.
    pub(crate) fn open(&self, owner: Option<(u32, u32)>) -> Result<OpenLog, Failure> {
        match self {
            Self::Stdout => {
                let file = io::stdout().as_fd().try_clone_to_owned().map(File::from);
                let file = file.map_err(|error| {
                    Failure::refused(
                        format!("--access-log {STDOUT}: {error}"),
                        "leave stdout open, or name a file",
                    )
                })?;
                Ok(OpenLog::new(Some(file), None))
            }
            Self::File(path) => {
                let file = open_to_append(path, owner).map_err(|error| refuse(path, &error))?;
                if file.is_none() {
                    warn!(
                        "access log: nobody reads the FIFO {}: lines are dropped until somebody does",
                        path.display()
                    );
                }
                Ok(OpenLog::new(file, Some(path.clone())))
            }
        }
    }

    /// Whether it could be opened. Changes nothing.
    ///
    /// # Errors
    /// It could not.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self {
            Self::Stdout => Ok(()),
            Self::File(path) => files::check_writable(path).map_err(|error| refuse(path, &error)),
        }
    }
}

fn refuse(path: &Path, error: &io::Error) -> Failure {
    files::refuse("--access-log", path, error)
}

/// An access log that is open, and that nothing writes to yet.
#[derive(Debug)]
pub(crate) struct OpenLog {
    /// `None`: a FIFO that nobody read when it was last opened.
    file: Option<File>,
    /// To be opened again; `None`: stdout.
    path: Option<PathBuf>,
    epoch: std::time::Instant,
    failures: Limiter,
}

impl OpenLog {
    fn new(file: Option<File>, path: Option<PathBuf>) -> Self {
        Self {
            file,
            path,
            epoch: std::time::Instant::now(),
            failures: Limiter::default(),
        }
    }

    /// Starts the thread that writes it.
    ///
    /// # Errors
    /// There can be no thread.
    pub(crate) fn start(self) -> Result<Arc<Output>, Failure> {
        let output = Output::spawn("atlas-access", QUEUE, self);
        output.map(Arc::new).map_err(|error| {
            Failure::refused(
                format!("--access-log: its thread cannot be started: {error}"),
                "raise the limit of threads (ulimit -u)",
            )
        })
    }

    fn shown(&self) -> String {
        let path = self.path.as_ref();
        path.map_or_else(|| "stdout".into(), |path| path.display().to_string())
    }
}

impl Target for OpenLog {
    fn write_lines(&mut self, lines: &[u8]) -> io::Result<()> {
        if let (None, Some(path)) = (&self.file, &self.path) {
            self.file = open_to_append(path, None)?;
        }
        let file = self.file.as_mut();
        let file = file.ok_or_else(|| io::Error::other("nobody reads the FIFO"))?;
        let written = file.write_all(lines);
        if let Err(error) = &written
            && error.kind() == io::ErrorKind::BrokenPipe
            && self.path.is_some()
        {
            // Its reader has gone; there may be another.
            self.file = None;
        }
        written
    }

    fn reopen(&mut self) {
        let Some(path) = &self.path else { return };
        match open_to_append(path, None) {
            Ok(file) => {
                self.file = file;
                info!("access log: {} is opened again", path.display());
            }
            // The rights of the start may be gone by now, and the directory closed to who is left.
            Err(error) => warn!(
                "access log: {} cannot be opened again ({error}): writing on to the old file; make the new \
                 one before the signal, owned by the user that the server runs as (logrotate: create), or \
                 give that user the directory",
                path.display()
            ),
        }
    }

    fn on_error(&mut self, error: &io::Error) {
        let nanos = u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if let Some(before) = self.failures.admit(Instant::from_nanos(nanos), 1) {
            let shown = self.shown();
            warn!(
                "access log: {shown} cannot be written ({error}): lines are lost{}",
                worker::limiter::and_more(before)
            );
        }
    }
}

/// `None`: a FIFO that nobody reads. A file that is made belongs to `owner`.
fn open_to_append(path: &Path, owner: Option<(u32, u32)>) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    options.append(true);
    let mut to_make = options.clone();
    to_make.create_new(true);
    let opened = match files::open(to_make, path) {
        Ok(file) => {
            if let Some((user, group)) = owner {
                fchown(&file, Some(user), Some(group))?;
            }
            return Ok(Some(file));
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => files::open(options, path),
        Err(error) => Err(error),
    };
    match opened {
        Err(error) if files::is_unread_fifo(&error, path) => Ok(None),
        opened => opened.map(Some),
    }
}

/// Makes the lines.
#[derive(Debug)]
pub(crate) struct AccessLog {
    output: Arc<Output>,
    /// Requests under way, by name.
    pending: Vec<Option<Line>>,
    free: Vec<u32>,
    pending_bytes: usize,
    /// Memory of lines that were written, for the next ones.
    rooms: Vec<Vec<u8>>,
    style: LogStyle,
    /// Requests that are sampled, since the last one that has a line.
    skipped: u32,
    /// Of the request that comes next.
    id: u64,
    clock: fn() -> SystemTime,
    times: TimeText,
}

impl AccessLog {
    /// Hands its lines to `output`; `clock` says when a reply ends.
    #[must_use]
    pub(crate) fn new(output: Arc<Output>, style: LogStyle, clock: fn() -> SystemTime) -> Self {
        Self {
            output,
            style,
            skipped: 0,
            // Random, so that those of other workers and other starts are others.
            id: RandomState::new().build_hasher().finish(),
            pending: Vec::new(),
            free: Vec::new(),
            pending_bytes: 0,
            rooms: Vec::new(),
            clock,
            times: TimeText::default(),
        }
    }

    /// The memory of a line that is over may hold another.
    fn keep_room(&mut self, mut room: Vec<u8>) {
        if self.rooms.len() < ROOMS_MAX && room.capacity() <= ROOM_BYTES_MAX {
            room.clear();
            self.rooms.push(room);
        }
    }

    /// What is kept of a request; its name may be used again.
    fn take(&mut self, RequestName(name): RequestName) -> Line {
        let line = self.pending.get_mut(index_of(name)).and_then(Option::take);
        let line = line.expect("invariant: each name ends once");
        self.free.push(name);
        self.pending_bytes -= counted_bytes(&line);
        line
    }
}

impl RequestLog for AccessLog {
    fn begin(&mut self, request: &LoggedRequest<'_>) -> Option<RequestName> {
        self.id = self.id.wrapping_add(ID_STEP);
        if request.status < 400 && self.style.sample > 1 {
            let is_first = self.skipped == 0;
            self.skipped = (self.skipped + 1) % self.style.sample;
            if !is_first {
                return None;
            }
        }
        let room = self.rooms.pop().unwrap_or_default();
        let line = Line::new(self.style, request, self.id, room);
        if self.pending_bytes + counted_bytes(&line) > PENDING_BYTES_MAX {
            self.output.count_dropped(1);
            return None;
        }
        self.pending_bytes += counted_bytes(&line);
        let name = self.free.pop().unwrap_or_else(|| {
            self.pending.push(None);
            u32::try_from(self.pending.len() - 1).expect("invariant: bounded by its bytes")
        });
        *self.pending.get_mut(index_of(name))? = Some(line);
        Some(RequestName(name))
    }

    fn end(&mut self, name: RequestName, end: &ReplyEnd) {
        let line = self.take(name);
        let now = (self.clock)();
        let text = line.finish(now, &mut self.times, end);
        self.output.push(&text);
        self.keep_room(text);
    }

    fn forget(&mut self, name: RequestName) {
        let room = self.take(name).into_room();
        self.keep_room(room);
    }
}

/// What a request under way is counted as in [`PENDING_BYTES_MAX`].
fn counted_bytes(line: &Line) -> usize {
    line.bytes() + size_of::<Option<Line>>()
}

fn index_of(name: u32) -> usize {
    usize::try_from(name).expect("invariant: a usize has at least 32 bits")
}

#[cfg(test)]
mod tests;
