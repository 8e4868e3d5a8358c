//! One connection: what stands between the socket and the channel.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::channel::{Channel, Want};
use crate::fault::{Fault, FaultKind};
use crate::reply::{Expectation, Outcome, Reply};
use crate::socket::{Buffers, Received, flush};
use crate::stats::Stats;
use crate::tls::{Agreement, Handshake, Sealed};

/// Reads of one turn: then others are looked at. Some megabytes, or a few hundred TLS records.
pub(super) const READS_MAX: usize = 512;

/// How far a connection is.
#[derive(Debug, Default)]
pub(super) enum Phase {
    /// There is no socket.
    #[default]
    Waiting,
    /// The TCP handshake is under way.
    Connecting(Line),
    /// TLS is.
    Handshaking(Box<Handshaking>),
    /// Requests may be sent.
    Open(Open),
}

/// A socket, and what could not be sent yet.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) socket: OwnedFd,
    unsent: Vec<u8>,
    /// When it was begun to connect.
    pub(super) since: Duration,
}

impl Line {
    pub(super) fn new(socket: OwnedFd, since: Duration) -> Self {
        Self {
            socket,
            unsent: Vec::new(),
            since,
        }
    }

    fn flush(&mut self) -> Result<(), Fault> {
        flush(&self.socket, &mut self.unsent)
    }
}

/// A TLS handshake under way.
#[derive(Debug)]
pub(super) struct Handshaking {
    pub(super) line: Line,
    handshake: Handshake,
}

impl Handshaking {
    pub(super) fn new(
        mut line: Line,
        config: &Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Self, Fault> {
        let handshake = Handshake::new(config, name, &mut line.unsent)?;
        Ok(Self { line, handshake })
    }

    /// Sends and receives what can be; whether the handshake is over. Its last flight is left to
    /// leave with the first request.
    pub(super) fn advance(&mut self, buffers: &mut Buffers) -> Result<bool, Fault> {
        loop {
            self.line.flush()?;
            let wanted = self.handshake.want_bytes();
            let bytes = match buffers.receive(&self.line.socket, wanted)? {
                Received::Bytes(bytes) => buffers.copy.get(..bytes).unwrap_or_default(),
                Received::Nothing => return Ok(false),
                Received::End => {
                    let text = "the server closed amid a handshake";
                    return Err(Fault::new(FaultKind::Handshake, text));
                }
            };
            if self.handshake.take(bytes, &mut self.line.unsent)? {
                return Ok(true);
            }
        }
    }

    pub(super) fn finish(self) -> Result<(Open, Agreement), Fault> {
        let established = self.handshake.finish()?;
        let agreed = established.agreed;
        let channel = Channel::Sealed(Box::new(Sealed::new(established)?));
        Ok((Open::new(self.line, channel), agreed))
    }
}

/// A connection that stands.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) line: Line,
    channel: Channel,
    /// The URL that was asked for, while its reply is not complete.
    pub(super) url: Option<u32>,
    /// When.
    pub(super) asked: Duration,
    /// The moment the pace of that request counts from.
    due: Duration,
    /// When something last came, or the request was sent.
    pub(super) last_byte: Duration,
    has_begun: bool,
    /// The last reply has come that was to come.
    pub(super) is_over: bool,
}

/// What a turn has brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing waits any more: an event will tell when something does.
    Drained,
    /// More may wait.
    TurnOver,
    /// A reply is complete.
    Replied {
        outcome: Outcome,
        due: Duration,
        url: u32,
    },
    /// The server has closed where it may.
    Closed,
}

impl Open {
    pub(super) fn plain(line: Line) -> Self {
        Self::new(line, Channel::Plain(Reply::default()))
    }

    fn new(line: Line, channel: Channel) -> Self {
        Self {
            last_byte: line.since,
            line,
            channel,
            url: None,
            asked: Duration::ZERO,
            due: Duration::ZERO,
            has_begun: false,
            is_over: false,
        }
    }

    /// Sends a request.
    pub(super) fn ask(
        &mut self,
        url: u32,
        request: &str,
        expected: Expectation,
        due: Duration,
        now: Duration,
    ) -> Result<(), Fault> {
        self.url = Some(url);
        (self.asked, self.due, self.last_byte) = (now, due, now);
        self.has_begun = false;
        self.channel
            .ask(request.as_bytes(), expected, &mut self.line.unsent)?;
        self.line.flush()
    }

    /// Says that nothing follows; the socket closes when it is dropped.
    pub(super) fn take_leave(&mut self) -> Result<(), Fault> {
        self.channel.take_leave(&mut self.line.unsent)?;
        // A few bytes behind a request that was answered: there is room for them.
        self.line.flush()
    }

    /// Sends and receives what can be, up to the end of a reply. `is_ending` says that the kernel
    /// knows of an end: then a short read is not yet all.
    pub(super) fn advance(
        &mut self,
        buffers: &mut Buffers,
        is_ending: bool,
        now: Duration,
        stats: &mut Stats,
    ) -> Result<Progress, Fault> {
        self.line.flush()?;
        for _ in 0..READS_MAX {
            let want = self.channel.want();
            let received = match want {
                Want::Copy(bytes) => buffers.receive(&self.line.socket, bytes)?,
                Want::Discard(bytes) => buffers.discard(&self.line.socket, bytes)?,
            };
            let bytes = match received {
                Received::Bytes(bytes) => bytes,
                Received::Nothing => return Ok(Progress::Drained),
                Received::End => return self.end(),
            };
            self.last_byte = now;
            let outcome = match want {
                Want::Copy(_) => {
                    let seen = buffers.copy.get(..bytes).unwrap_or_default();
                    self.channel.take(seen, &mut self.line.unsent)
                }
                Want::Discard(_) => self.channel.skip(bytes as u64),
            };
            self.account(now, stats);
            outcome?;
            self.line.flush()?;
            if self.channel.is_closed() {
                return self.end();
            }
            if let Some(outcome) = self.channel.reply_mut().close()
                && let Some(url) = self.url.take()
            {
                stats.whole.record(now.saturating_sub(self.asked));
                return Ok(Progress::Replied {
                    outcome,
                    due: self.due,
                    url,
                });
            }
            let is_short = match want {
                Want::Copy(wanted) => bytes < wanted,
                Want::Discard(wanted) => (bytes as u64) < wanted,
            };
            if is_short && !is_ending {
                return Ok(Progress::Drained);
            }
        }
        Ok(Progress::TurnOver)
    }

    /// The server has closed.
    fn end(&self) -> Result<Progress, Fault> {
        match self.channel.reply().ended() {
            Some(fault) => Err(fault),
            None => Ok(Progress::Closed),
        }
    }

    fn account(&mut self, now: Duration, stats: &mut Stats) {
        stats.body_bytes += self.channel.reply_mut().take_fresh_bytes();
        stats.add_records(self.channel.take_counts());
        if !self.has_begun && self.channel.reply().has_begun() {
            self.has_begun = true;
            stats.first_byte.record(now.saturating_sub(self.asked));
        }
    }
}
