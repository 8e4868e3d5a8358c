//! One connection: what stands between the socket and the records.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::fault::{Fault, FaultKind};
use crate::handshake::Handshake;
use crate::sealed::{Sealed, Want};
use crate::socket::{Buffers, Received, flush};
use crate::stats::Stats;

/// Reads of one turn: then others are looked at. Some megabytes, or a few hundred records.
const READS_MAX: usize = 512;

/// How far a connection is.
#[derive(Debug, Default)]
pub(crate) enum Phase {
    /// There is no socket.
    #[default]
    Waiting,
    /// The TCP handshake is under way.
    Connecting(Line),
    /// TLS is.
    Handshaking(Box<Handshaking>),
    /// Requests may be sent.
    Open(Box<Open>),
}

/// A socket, and what could not be sent yet.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) socket: OwnedFd,
    unsent: Vec<u8>,
    /// When it was begun to connect.
    pub(crate) since: Duration,
}

impl Line {
    pub(crate) fn new(socket: OwnedFd, since: Duration) -> Self {
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
pub(crate) struct Handshaking {
    pub(crate) line: Line,
    handshake: Handshake,
}

impl Handshaking {
    pub(crate) fn new(
        mut line: Line,
        config: &Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Self, Fault> {
        let handshake = Handshake::new(config, name, &mut line.unsent)?;
        Ok(Self { line, handshake })
    }

    /// Sends and receives what can be; whether the handshake is over. Its last flight is left to
    /// leave with the first request.
    pub(crate) fn advance(&mut self, buffers: &mut Buffers) -> Result<bool, Fault> {
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

    pub(crate) fn finish(self) -> Result<Open, Fault> {
        Ok(Open {
            sealed: Sealed::new(self.handshake.finish()?)?,
            asked: None,
            last_byte: self.line.since,
            line: self.line,
        })
    }
}

/// A connection that stands.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) line: Line,
    sealed: Sealed,
    /// When the request was made whose reply is not complete.
    pub(crate) asked: Option<Duration>,
    /// When something last came, or the request was sent.
    pub(crate) last_byte: Duration,
}

/// What a turn has brought.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing waits any more: an event will tell when something does.
    Drained,
    /// More may wait.
    TurnOver,
    /// A reply is complete; what was wrong with it, if anything.
    Replied(Option<Fault>),
}

impl Open {
    /// Sends a request.
    pub(crate) fn ask(
        &mut self,
        request: &str,
        body_bytes: Option<u64>,
        now: Duration,
    ) -> Result<(), Fault> {
        (self.asked, self.last_byte) = (Some(now), now);
        self.sealed.reply.open(body_bytes);
        let record = self.sealed.seal(request.as_bytes())?;
        self.line.unsent.extend_from_slice(&record);
        self.line.flush()
    }

    /// Says that nothing follows; the socket closes when it is dropped.
    pub(crate) fn take_leave(&mut self) -> Result<(), Fault> {
        let record = self.sealed.close_notify()?;
        self.line.unsent.extend_from_slice(&record);
        // A few bytes behind a request that was answered: there is room for them.
        self.line.flush()
    }

    /// Sends and receives what can be, up to the end of a reply. `is_ending` says that the kernel
    /// knows of an end: then a short read is not yet all.
    pub(crate) fn advance(
        &mut self,
        buffers: &mut Buffers,
        is_ending: bool,
        now: Duration,
        stats: &mut Stats,
    ) -> Result<Progress, Fault> {
        self.line.flush()?;
        for _ in 0..READS_MAX {
            let want = self.sealed.want();
            let received = match want {
                Want::Copy(bytes) => buffers.receive(&self.line.socket, bytes)?,
                Want::Discard(bytes) => buffers.discard(&self.line.socket, bytes)?,
            };
            let bytes = match received {
                Received::Bytes(bytes) => bytes,
                Received::Nothing => return Ok(Progress::Drained),
                Received::End => return Err(self.sealed.reply.ended()),
            };
            self.last_byte = now;
            let (outcome, wanted) = match want {
                Want::Copy(wanted) => {
                    let seen = buffers.copy.get(..bytes).unwrap_or_default();
                    let taken = self.sealed.take(seen, &mut self.line.unsent);
                    (taken, wanted as u64)
                }
                Want::Discard(wanted) => (self.sealed.skip(bytes as u64), wanted),
            };
            stats.body_bytes += self.sealed.reply.take_fresh_bytes();
            outcome?;
            self.line.flush()?;
            if self.sealed.is_closed() {
                return Err(self.sealed.reply.ended());
            }
            if let Some(fault) = self.sealed.reply.close() {
                if let Some(asked) = self.asked.take() {
                    stats.whole.record(now.saturating_sub(asked));
                }
                return Ok(Progress::Replied(fault));
            }
            if (bytes as u64) < wanted && !is_ending {
                return Ok(Progress::Drained);
            }
        }
        Ok(Progress::TurnOver)
    }
}
