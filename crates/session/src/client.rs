//! One client: its connection, what it asked, what it is being sent.

use std::collections::VecDeque;

use clock::{Duration, Instant};
use tcp::{Connection, StreamOffset, StreamRange};
use wire::{Path, Route, TcpRepr};

use crate::fetch::{FETCHES_MAX, Fetch, FetchState};
use crate::input::{HeadProgress, InputBuffer};
use crate::read_budget::ReadBudget;
use crate::request_log::LoggedReplies;
use crate::stream_map::{REPLIES_MAX, StreamMap};
use crate::tls::Tls;
use crate::{Config, ReadLimits};

/// Bytes kept per connection that the client sent and that were not yet understood, and the receive
/// window we offer: a whole TLS record, or the largest head and a little of what is pipelined.
/// Over TLS, what was opened of it is kept apart: less than a head, and one record's content.
pub(crate) const INPUT_BYTES_MAX: u16 = 17_408;

const _: () = assert!(record::RECORD_BYTES_MAX <= INPUT_BYTES_MAX as usize);
const _: () = assert!(http::HEAD_BYTES_MAX <= INPUT_BYTES_MAX as usize);

/// What the client is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Awaiting {
    /// A request's first byte, since then. A connection opened ahead of need is as idle as one
    /// between two requests, and a request whose first segments were lost has come late.
    Request(Instant),
    /// The rest of a head, since its first byte.
    Head(Instant),
    /// Nothing: a reply is due or under way, or no more requests are taken.
    Nothing,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) tcp: Connection,
    pub(crate) route: Route,
    /// Names this client among all there ever were at its index.
    pub(crate) serial: u32,
    /// Request bytes not yet answered.
    pub(crate) input: InputBuffer,
    /// How far the head at the start of `input` was looked at.
    pub(crate) head: HeadProgress,
    pub(crate) stream: StreamMap,
    /// What the access log is to be told of the replies in the stream.
    pub(crate) logged: LoggedReplies,
    /// `None`: plain HTTP.
    pub(crate) tls: Option<Box<Tls>>,
    /// In stream order of their claims; sent in that order.
    pub(crate) fetches: VecDeque<Fetch>,
    /// How far it has come in taking what it is sent.
    progress: Progress,
    /// What may be read for it.
    pub(crate) read_budget: ReadBudget,
    /// The next read waits for the budget until then, or until something arrives.
    pub(crate) read_waits: Option<Instant>,
    /// Length of the head at the start of `input` whose object is being looked up.
    pub(crate) lookup: Option<usize>,
    pub(crate) awaiting: Awaiting,
    /// No further request is taken.
    pub(crate) is_closing: bool,
    /// The client will send nothing more.
    pub(crate) is_half_closed: bool,
}

impl Client {
    pub(crate) fn new(
        now: Instant,
        serial: u32,
        tcp: Connection,
        route: Route,
        limits: &ReadLimits,
    ) -> Self {
        Self {
            tcp,
            route,
            serial,
            input: InputBuffer::default(),
            head: HeadProgress::default(),
            stream: StreamMap::default(),
            logged: LoggedReplies::default(),
            tls: None,
            fetches: VecDeque::new(),
            read_budget: ReadBudget::new(now, limits),
            read_waits: None,
            progress: Progress::new(now),
            lookup: None,
            awaiting: Awaiting::Request(now),
            is_closing: false,
            is_half_closed: false,
        }
    }

    /// Whether the next request may be looked at.
    pub(crate) fn takes_requests(&self) -> bool {
        !self.is_closing && self.lookup.is_none() && self.stream.replies() < REPLIES_MAX
    }

    /// TCP accepted `segment`, which came by `path`: what we send goes back the same way from now
    /// on, so that a router that fails over to another one does not take its connections along.
    /// What TCP refused moves nothing, or whoever knows a connection's name could lead its stream
    /// away; nor does a segment that acknowledges less than was acknowledged: it is an old one that
    /// came late, perhaps by the router that is gone. Returns whether the next hop is another.
    pub(crate) fn follow_path(&mut self, path: &Path, segment: &TcpRepr) -> bool {
        let moves = path.source_mac != self.route.destination_mac
            && self.tcp.is_acknowledged_to(segment.acknowledgment);
        if moves {
            self.route.destination_mac = path.source_mac;
        }
        moves
    }

    /// Room for request bytes.
    pub(crate) fn input_room(&self) -> u16 {
        let room = |input: &InputBuffer| {
            INPUT_BYTES_MAX.saturating_sub(u16::try_from(input.len()).unwrap_or(u16::MAX))
        };
        if let Some(tls) = &self.tls {
            return room(&tls.sealed);
        }
        if self.is_closing {
            // What still comes is read and thrown away, so that it does not turn into a reset
            // that could overtake our last reply (RFC 9112 s9.6).
            return INPUT_BYTES_MAX;
        }
        room(&self.input)
    }

    /// Whether the connection wants to be asked for reads.
    pub(crate) fn wants_fetch(&self) -> bool {
        self.fetches.len() < FETCHES_MAX && self.tcp.demand().is_some()
    }

    /// Whether something can leave.
    pub(crate) fn wants_transmit(&self) -> bool {
        let ready = |fetch: &Fetch| matches!(fetch.state, FetchState::Ready(_));
        self.fetches.front().is_some_and(ready) || self.tcp.control().is_some()
    }

    /// What of a fetch is still to be sent.
    pub(crate) fn admit(&self, range: StreamRange) -> Option<StreamRange> {
        self.tcp.admit(range)
    }

    /// When the client's own patience with this client ends, or TCP has something to do.
    pub(crate) fn deadline(&self, config: &Config) -> Option<Instant> {
        let patience = self.patience(config).map(|(deadline, _)| deadline);
        [self.tcp.poll_timeout(), patience, self.read_waits]
            .into_iter()
            .flatten()
            .min()
    }

    /// When what is awaited is overdue, and what that is.
    pub(crate) fn patience(&self, config: &Config) -> Option<(Instant, Overdue)> {
        let acknowledgment = (!self.tcp.is_idle()).then(|| {
            let deadline = self.progress_at() + config.send_timeout;
            (deadline, Overdue::Acknowledgment)
        });
        // Acknowledging it bit by bit does not make a handshake last longer.
        let handshake = self.shaking_since().map(|since| {
            let deadline = since + config.head_timeout;
            (deadline, Overdue::Handshake)
        });
        if acknowledgment.is_some() || handshake.is_some() {
            let overdue = [acknowledgment, handshake].into_iter().flatten();
            return overdue.min_by_key(|(deadline, _)| *deadline);
        }
        let (since, time, overdue): (Instant, Duration, _) = match self.awaiting {
            Awaiting::Request(since) => (since, config.idle_timeout, Overdue::Request),
            Awaiting::Head(since) => (since, config.head_timeout, Overdue::Head),
            Awaiting::Nothing => return None,
        };
        Some((since + time, overdue))
    }

    /// Since when less than a segment was acknowledged, or data is queued after an idle time.
    pub(crate) fn progress_at(&self) -> Instant {
        if self.progress.up_to == self.tcp.acknowledged() {
            self.tcp.progress_at()
        } else {
            self.progress.at
        }
    }

    /// SND.UNA moved. A client makes progress by a segment's worth, or by all there is: else one
    /// that acknowledges a byte a minute would keep its connection, and its object, for years.
    /// `before` is what [`Client::progress_at`] was before.
    pub(crate) fn on_acknowledged(&mut self, now: Instant, before: Instant) {
        let up_to = self.tcp.acknowledged();
        let bytes = up_to.since(self.progress.up_to);
        self.progress.at = before;
        if bytes >= u64::from(self.tcp.segment_bytes()) || self.tcp.is_idle() {
            self.progress = Progress { at: now, up_to };
        }
    }

    /// Since when the handshake of TLS is waited for, if it is.
    fn shaking_since(&self) -> Option<Instant> {
        match self.awaiting {
            Awaiting::Request(since) if self.tls.as_ref()?.is_shaking() => Some(since),
            _ => None,
        }
    }
}

/// The last acknowledgment that counted as progress.
#[derive(Clone, Copy, Debug)]
struct Progress {
    at: Instant,
    /// SND.UNA then.
    up_to: StreamOffset,
}

impl Progress {
    const fn new(now: Instant) -> Self {
        Self {
            at: now,
            up_to: StreamOffset::ZERO,
        }
    }
}

/// What did not come in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Overdue {
    /// A request's first byte: the connection is closed.
    Request,
    /// The rest of a head: 408.
    Head,
    /// The end of the handshake: the connection is closed.
    Handshake,
    /// An acknowledgment of a segment of what we send: the connection is reset.
    Acknowledgment,
}
