//! Connections listed on request, as `ss -ti` does for the kernel's: `/connections` beside
//! `/metrics`.
//!
//! A thread that answers HTTP asks one worker after the other for the pages of its table, through its
//! [`crate::run::mailbox`], and turns them into lines of JSON. A worker answers one question of each thread
//! a round: it looks at [`PLACES_MAX`] places and returns [`PAGE_ROWS_MAX`] rows. It keeps nothing
//! between two pages, so a connection that moves meanwhile may be listed twice or not at all.
//!
//! Refused: askers on other hosts, since the list has the addresses of viewers and what they watch.
//! Bounds: [`ROWS_MAX`] rows of an answer, one waiting question of each thread.

mod json;

use std::net::SocketAddr;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Instant;

use diskmap::Disk;
use link::Link;
use session::PageLimits;
use worker::requests::{Counted, Missed};
use worker::{Page, Worker};

use crate::observe::trace::Peers;
use crate::run::mailbox::{self, Command, MailSender};

/// Rows of one page.
pub(crate) const PAGE_ROWS_MAX: usize = 64;
/// Places of the table that are looked at for one page.
pub(crate) const PLACES_MAX: u32 = 1024;
/// Rows of one answer: some ten megabytes.
pub(crate) const ROWS_MAX: usize = 10_000;
/// Rows of an answer, unless the question says otherwise.
pub(crate) const ROWS_DEFAULT: usize = 1_000;
/// Places that a list gives to each worker: those of the second begin here.
const WORKER_PLACES: u32 = 1 << 24;

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Query {
    /// Only connections of these peers.
    pub peers: Option<Peers>,
    /// Most rows.
    pub rows_max: usize,
    /// The place to begin at, in the tables of all workers.
    pub from: u32,
}

impl Query {
    /// Parses the query of a request's target: `peer=ADDRESS[:PORT]`, `limit=ROWS`, `from=PLACE`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
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
pub(crate) fn decode(part: &[u8]) -> String {
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

/// A question to the worker.
#[derive(Debug)]
pub(crate) struct Question {
    /// Where the page begins.
    pub from: u32,
    /// Whose connections; `None`: everybody's.
    pub peers: Option<Peers>,
    /// How much may be looked at.
    pub limits: PageLimits,
    reply: SyncSender<Page>,
}

impl Question {
    /// The page that a worker has to it.
    pub(crate) fn page_of<L: Link, D: Disk>(
        &self,
        worker: &Worker<L, D>,
        now: clock::Instant,
    ) -> Page {
        let is_wanted = |peer: &SocketAddr| self.peers.is_none_or(|peers| peers.contains(peer));
        worker.list_connections(now, self.from, self.limits, &is_wanted)
    }

    /// Answers it. Whoever asked may be gone.
    pub(crate) fn answer(self, page: Page) {
        let _ = self.reply.try_send(page);
    }
}

/// A place in the tables of all workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    worker: usize,
    /// In the worker's table.
    place: u32,
}

impl Place {
    fn from_number(number: u32) -> Self {
        let worker = usize::try_from(number / WORKER_PLACES);
        Self {
            worker: worker.expect("invariant: a usize has at least 32 bits"),
            place: number % WORKER_PLACES,
        }
    }

    /// What a query names it by; the largest number, if there are too many.
    fn number(self) -> u32 {
        let worker = u32::try_from(self.worker).unwrap_or(u32::MAX);
        worker
            .saturating_mul(WORKER_PLACES)
            .saturating_add(self.place)
    }
}

/// For those who ask. Its clones ask the same workers.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    workers: Vec<MailSender>,
}

impl Asker {
    /// Asks these workers.
    #[must_use]
    pub(crate) const fn new(workers: Vec<MailSender>) -> Self {
        Self { workers }
    }

    /// Has every worker do this.
    pub(crate) fn command(&self, mut command: impl FnMut() -> Command) {
        for worker in &self.workers {
            worker.command(command());
        }
    }

    /// Names that were asked for and are not there, of all workers; those are not told again. `None`: a worker did not answer
    /// by `deadline`, after `take` had those of others.
    #[must_use]
    pub(crate) fn missed(&self, deadline: Instant, mut take: impl FnMut(Missed)) -> Option<()> {
        for worker in &self.workers {
            let missed = put(worker, mailbox::Question::Missed, deadline)?;
            missed.into_iter().for_each(&mut take);
        }
        Some(())
    }

    /// How often objects are asked for, by worker; what moves from page to page meanwhile may be there twice. `None`: a worker did
    /// not answer by `deadline`.
    #[must_use]
    pub(crate) fn counted(&self, deadline: Instant) -> Option<Vec<Vec<Counted>>> {
        let mut workers = Vec::new();
        for worker in &self.workers {
            let (mut all, mut from) = (Vec::new(), Some(0));
            while let Some(place) = from {
                let question = |reply| mailbox::Question::Counted(place, reply);
                let (page, next) = put(worker, question, deadline)?;
                all.extend(page);
                from = next;
            }
            workers.push(all);
        }
        Some(workers)
    }

    /// The lines of JSON that answer `query`: one for each connection, and, if there are more than
    /// may be listed, one that says where to go on. `None`: a worker did not answer by `deadline`.
    #[must_use]
    pub(crate) fn lines(&self, query: &Query, deadline: Instant) -> Option<String> {
        let mut lines = String::new();
        let (mut rows, mut from) = (0, Place::from_number(query.from));
        while let Some(worker) = self.workers.get(from.worker) {
            if rows >= query.rows_max {
                json::push_next(&mut lines, from.number());
                break;
            }
            let limits = PageLimits {
                rows_max: PAGE_ROWS_MAX.min(query.rows_max - rows),
                places_max: PLACES_MAX,
            };
            let page = ask(worker, from.place, query.peers, limits, deadline)?;
            rows += page.rows.len();
            for row in &page.rows {
                json::push_row(&mut lines, row);
            }
            from = match page.next {
                Some(place) => Place { place, ..from },
                None => Place {
                    worker: from.worker + 1,
                    place: 0,
                },
            };
        }
        Some(lines)
    }
}

fn ask(
    worker: &MailSender,
    from: u32,
    peers: Option<Peers>,
    limits: PageLimits,
    deadline: Instant,
) -> Option<Page> {
    let question = |reply| {
        mailbox::Question::Connections(Question {
            from,
            peers,
            limits,
            reply,
        })
    };
    put(worker, question, deadline)
}

/// Puts a question to a worker, and waits for the answer. Without time left it does not ask: some answers are told once.
fn put<T>(
    worker: &MailSender,
    question: impl FnOnce(SyncSender<T>) -> mailbox::Question,
    deadline: Instant,
) -> Option<T> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return None;
    }
    let (reply, answer) = sync_channel(1);
    if !worker.ask(question(reply)) {
        return None;
    }
    answer.recv_timeout(left).ok()
}

#[cfg(test)]
pub(crate) mod tests;
