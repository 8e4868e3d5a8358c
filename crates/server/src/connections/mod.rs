//! Connections listed on request, as `ss -ti` does for the kernel's: `/connections` beside
//! `/metrics`.
//!
//! A thread that answers HTTP asks the worker for one page of its table after the other, over a
//! channel, and turns them into lines of JSON. The worker answers one question of each thread a round:
//! it looks at [`PLACES_MAX`] places and returns [`PAGE_ROWS_MAX`] rows. It
//! keeps nothing between two pages, so a connection that moves meanwhile may be listed twice or not
//! at all.
//!
//! Refused: askers on other hosts, since the list has the addresses of viewers and what they watch.
//! Bounds: [`ROWS_MAX`] rows of an answer, one waiting question of each thread.

mod json;

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use session::{ListedConnection, PageLimits};

use crate::trace::Peers;

/// Rows of one page.
pub const PAGE_ROWS_MAX: usize = 64;
/// Places of the table that are looked at for one page.
pub const PLACES_MAX: u32 = 1024;
/// Rows of one answer: some ten megabytes.
pub const ROWS_MAX: usize = 10_000;
/// Rows of an answer, unless the question says otherwise.
pub const ROWS_DEFAULT: usize = 1_000;

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Query {
    /// Only connections of these peers.
    pub peers: Option<Peers>,
    /// Most rows.
    pub rows_max: usize,
    /// The place to begin at.
    pub from: u32,
}

impl Query {
    /// Parses the query of a request's target: `peer=ADDRESS[:PORT]`, `limit=ROWS`, `from=PLACE`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let mut query = Self {
            peers: None,
            rows_max: ROWS_DEFAULT,
            from: 0,
        };
        for part in text
            .split(|byte| *byte == b'&')
            .filter(|part| !part.is_empty())
        {
            let part = decode(part);
            let (key, value) = part.split_once('=').unwrap_or((&part, ""));
            let refuse =
                || format!("{part}: there are peer=ADDRESS[:PORT], limit=ROWS, from=PLACE");
            match key {
                "peer" => query.peers = Some(Peers::parse(value).ok_or_else(refuse)?),
                "limit" => {
                    let rows: usize = value.parse().map_err(|_| refuse())?;
                    query.rows_max = rows.min(ROWS_MAX);
                }
                "from" => query.from = value.parse().map_err(|_| refuse())?,
                _ => return Err(refuse()),
            }
        }
        Ok(query)
    }
}

/// Percent-decodes a part of a query; what is no UTF-8 is replaced.
fn decode(part: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part;
    while let Some((&first, behind)) = rest.split_first() {
        // `from_str_radix` would take a sign.
        let is_escape = |digits: &&[u8]| first == b'%' && digits.iter().all(u8::is_ascii_hexdigit);
        let digits = behind.get(..2).filter(is_escape);
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = behind.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A connection, and the path of what it is sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// What the session says.
    pub connection: ListedConnection,
    /// The path of its object.
    pub path: Option<String>,
}

/// A page of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// Connections, in the order of their places.
    pub rows: Vec<Row>,
    /// Where the next page begins; `None`: this was the last.
    pub next: Option<u32>,
}

/// A question to the worker.
#[derive(Debug)]
pub struct Question {
    /// Where the page begins.
    pub from: u32,
    /// Whose connections; `None`: everybody's.
    pub peers: Option<Peers>,
    /// How much may be looked at.
    pub limits: PageLimits,
    reply: SyncSender<Page>,
}

impl Question {
    /// Answers it. Whoever asked may be gone.
    pub fn answer(self, page: Page) {
        let _ = self.reply.try_send(page);
    }
}

/// The end of the channel for those who ask. Its clones share one queue.
#[derive(Clone, Debug)]
pub struct Asker {
    questions: SyncSender<Question>,
    waker: Arc<UnixStream>,
}

/// The worker's end of the channel.
#[derive(Debug)]
pub struct Questions {
    questions: Receiver<Question>,
    /// Readable when a question is there.
    wake: UnixStream,
}

/// A channel for `askers` threads, each with one question at a time.
///
/// # Errors
/// The kernel's: no descriptors.
pub fn channel(askers: usize) -> io::Result<(Asker, Questions)> {
    let (wake, waker) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    waker.set_nonblocking(true)?;
    let (sender, questions) = sync_channel(askers);
    let asker = Asker {
        questions: sender,
        waker: Arc::new(waker),
    };
    Ok((asker, Questions { questions, wake }))
}

impl Questions {
    /// The next question.
    #[must_use]
    pub fn poll(&self) -> Option<Question> {
        self.questions.try_recv().ok()
    }

    /// Readable after a question was asked, until [`Questions::drain`].
    #[must_use]
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Forgets what woke the worker.
    pub fn drain(&self) {
        let mut bytes = [0_u8; 16];
        while matches!((&self.wake).read(&mut bytes), Ok(count) if count == bytes.len()) {}
    }
}

impl Asker {
    /// The lines of JSON that answer `query`: one for each connection, and, if there are more than
    /// may be listed, one that says where to go on. `None`: the worker did not answer by `deadline`.
    #[must_use]
    pub fn lines(&self, query: &Query, deadline: Instant) -> Option<String> {
        let mut lines = String::new();
        let (mut rows, mut from) = (0, query.from);
        while rows < query.rows_max {
            let limits = PageLimits {
                rows_max: PAGE_ROWS_MAX.min(query.rows_max - rows),
                places_max: PLACES_MAX,
            };
            let page = self.ask(from, query.peers, limits, deadline)?;
            rows += page.rows.len();
            for row in &page.rows {
                json::push_row(&mut lines, row);
            }
            match page.next {
                Some(next) => from = next,
                None => return Some(lines),
            }
        }
        json::push_next(&mut lines, from);
        Some(lines)
    }

    fn ask(
        &self,
        from: u32,
        peers: Option<Peers>,
        limits: PageLimits,
        deadline: Instant,
    ) -> Option<Page> {
        let (reply, answer) = sync_channel(1);
        let question = Question {
            from,
            peers,
            limits,
            reply,
        };
        self.questions.try_send(question).ok()?;
        // A full pipe wakes as well.
        let _ = (&*self.waker).write(&[0]);
        let left: Duration = deadline.saturating_duration_since(Instant::now());
        answer.recv_timeout(left).ok()
    }
}

#[cfg(test)]
pub(crate) mod tests;
