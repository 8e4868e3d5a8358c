//! One client: its TCP connection, its pipelined requests, and the replies queued for it.

use core::mem::offset_of;
use core::net::{IpAddr, SocketAddr};
use std::collections::VecDeque;

use clock::{Duration, Instant, earlier};
use http::{Coding, Status};
use memory::Arena;
use sites::bandwidth::Bandwidth;
use sites::limits::Held;
use sites::preface::PrefaceProblem;
use sites::rules::Rate;
use tcp::{Connection, Credit, Permission, State, StreamOffset};
use wire::{MacAddress, Path, Route, TcpRepr};

use crate::fetch::{FETCHES_MAX, Fetch, FetchState};
use crate::forwarded::Forwarded;
use crate::granted::Granted;
use crate::input::{HeadProgress, InputBuffer};
use crate::kept_slots::{ClientKept, KeptSlots, ReadAhead};
use crate::rates::{Rates, Step};
use crate::read_budget::ReadBudget;
use crate::request_log::Replies;
use crate::stream_map::{REPLIES_MAX, StreamMap};
use crate::tls::{Stage, Tls};
use crate::{Config, ReadLimits, TlsToken};

/// Most received bytes kept per connection before they are parsed; also the receive window we
/// advertise. It holds one whole TLS record, or the largest request head and some pipelined bytes.
/// Over TLS, decrypted bytes are kept in a second buffer: less than one head plus the content of one
/// record.
pub(crate) const INPUT_BYTES_MAX: u16 = 17_408;

/// A client that acknowledges less than this of its reply, over [`Config::send_timeout`], is reset.
/// It is below the rate of any sound or picture, and of a line on which a page could be read; a
/// client that stops reading, as a paused player, has the whole timeout before it is reset.
pub(crate) const SEND_RATE_MIN_BYTES_PER_SECOND: u64 = 256;

/// What a connection takes, used or not, from start on, 24 lines of the processor's caches: those of
/// 100,000 idle clients take 154 MB. Buffers that it needed once are beside that (see the top of the crate).
const CLIENT_BYTES_MAX: usize = 1536;

const _: () = assert!(size_of::<Option<Client>>() <= CLIENT_BYTES_MAX);
// Built for tests, a client has counters besides.
#[cfg(not(test))]
const _: () = assert!(Client::FREQUENT_BYTES <= 21 * 64, "21 cache lines");
const _: () = assert!(record::RECORD_BYTES_MAX <= INPUT_BYTES_MAX as usize);
const _: () = assert!(http::HEAD_BYTES_MAX <= INPUT_BYTES_MAX as usize);

/// A request that is answered and may have to be answered again: its head is still at the start of the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HeldRequest {
    /// Length of the head.
    pub(crate) head_bytes: u16,
    /// Length of the body that follows it.
    pub(crate) body_bytes: u16,
    /// How many replies to it were queued, or would have been, had the file not been empty after it changed.
    pub(crate) beginnings: u8,
    /// In which coding its object is looked for; `None`: as it is.
    pub(crate) coding: Option<Coding>,
    /// It is refused so, and what is looked up is the body of that.
    pub(crate) error: Option<Status>,
    /// No request is taken after it.
    pub(crate) is_last: bool,
}

impl HeldRequest {
    /// Once more.
    pub(crate) const fn again(self) -> Self {
        Self {
            beginnings: self.beginnings.saturating_add(1),
            coding: None,
            error: None,
            ..self
        }
    }
}

/// Where the exchange of requests and replies stands: what comes next of it.
///
/// ```text
///                      ┌─── Changed ◀──┐
///                      ▼               │
///  Request ──▶ Head ──▶ LookUp ──▶ Unsent ──▶ Replying ──▶ Request
///     └──────────┴─────────┴──────────┴──────────┴──▶ Closing, when the request is done with
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exchange {
    /// The first byte of a request, since this time. The same timeout applies to a connection that
    /// was opened ahead of need, between two requests, during a TLS handshake, and when a request's first
    /// segments were lost.
    Request(Instant),
    /// The rest of a head, since its first byte.
    Head(Instant),
    /// The store's answer to a look-up.
    LookUp(HeldRequest),
    /// The first byte of the reply that is last in the stream. If its file has changed by then, that reply makes
    /// room for another.
    Unsent(HeldRequest),
    /// This time, at which the path of a file that has changed is looked up again.
    Changed(Instant, HeldRequest),
    /// A reply, or an acknowledgment while as many replies are queued as may be.
    Replying,
    /// Nothing: no further request is taken.
    Closing,
}

impl Exchange {
    /// Whether no request is taken after those that were.
    pub(crate) const fn is_closing(self) -> bool {
        match self {
            Self::Closing => true,
            Self::LookUp(held) | Self::Unsent(held) | Self::Changed(_, held) => held.is_last,
            Self::Request(_) | Self::Head(_) | Self::Replying => false,
        }
    }
}

/// See the module.
///
/// The fields are in an order that the compiler would change: what every turn needs is in the middle, from
/// the fetches to the beginning of the connection, whose own fields are in the order of need; before it is
/// what requests, claims and frames need besides. A client begins with a line of the processor's caches.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Client {
    pub(crate) route: Route,
    /// What is still to come of the body of the last request taken, bytes: it is thrown away.
    pub(crate) body_bytes_left: u16,
    /// The object that was looked up last is for this client only ([`sites::Place::is_private`]).
    pub(crate) is_private: bool,
    /// Tells this client from earlier ones at the same index.
    pub(crate) serial: u32,
    /// How much of the head at the start of `input` was scanned.
    pub(crate) head: HeadProgress,
    /// Its slots that are kept.
    pub(crate) kept: ClientKept,
    /// What will be reported of the replies in the stream.
    pub(crate) replies: Replies,
    /// How many bytes may be read from the disk for this client.
    pub(crate) read_budget: ReadBudget,
    pub(crate) stream: StreamMap,
    /// In stream order of their claims; sent in that order.
    pub(crate) fetches: VecDeque<Fetch>,
    /// `None`: plain HTTP.
    pub(crate) tls: Option<Box<Tls>>,
    pub(crate) exchange: Exchange,
    /// Its read budget or its site's bandwidth is used up: no read is planned before this time, a timeout or the next
    /// segment.
    pub(crate) read_waits: Option<Instant>,
    /// The client's progress in acknowledging what was sent.
    progress: Progress,
    /// Request bytes not yet answered.
    pub(crate) input: InputBuffer,
    /// Every event is reported to the trace.
    pub(crate) is_traced: bool,
    /// There is `forwarded`.
    pub(crate) is_forwarded: bool,
    /// There is `ruled`.
    pub(crate) is_ruled: bool,
    /// Of a reply in the stream no byte was sent yet.
    pub(crate) has_unbegun_reply: bool,
    /// When the head of the last request was complete: the low bits of microseconds, right for an hour.
    pub(crate) asked_us: u32,
    pub(crate) tcp: Connection,
    /// Where its last segment came from. Frames go there, but while that does not answer.
    pub(crate) heard_from: MacAddress,
    /// Whether its reads take more than is demanded.
    pub(crate) ahead: ReadAhead,
    /// `None`: it has nothing of what few have.
    rare: Option<Box<Rare>>,
}

/// What few clients have.
#[derive(Debug, Default)]
struct Rare {
    /// A trusted proxy forwards this connection. `None`: it is its peer's own.
    forwarded: Option<Forwarded>,
    /// What rules say of it, if they said anything.
    ruled: Option<Ruled>,
}

/// What rules say of a connection.
#[derive(Debug, Default)]
struct Ruled {
    /// How fast its replies are sent.
    rates: Rates,
    /// What it may send of the bandwidth that its replies share with others.
    granted: Granted,
    /// Counts it under the limit of a rule while it is sent replies.
    held: Option<Box<Held>>,
}

impl Client {
    /// Bytes at its beginning that most turns need.
    pub(crate) const FREQUENT_BYTES: usize = offset_of!(Self, tcp) + Connection::FREQUENT_BYTES;

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
            heard_from: route.destination_mac,
            serial,
            input: InputBuffer::default(),
            head: HeadProgress::default(),
            stream: StreamMap::default(),
            rare: None,
            is_forwarded: false,
            is_ruled: false,
            is_private: false,
            asked_us: low_micros(now),
            kept: ClientKept::default(),
            ahead: ReadAhead::default(),
            replies: Replies::default(),
            tls: None,
            fetches: VecDeque::new(),
            read_budget: ReadBudget::new(now, limits),
            read_waits: None,
            progress: Progress::new(now),
            body_bytes_left: 0,
            exchange: Exchange::Request(now),
            is_traced: false,
            has_unbegun_reply: false,
        }
    }

    /// Whose connection this is: its peer's, or that of whom a trusted proxy forwards.
    pub(crate) fn source(&self) -> IpAddr {
        let peer = self.tcp.tuple().peer.ip();
        if !self.is_forwarded {
            return peer;
        }
        let rare = self.rare.as_ref();
        let forwarded = rare.and_then(|rare| rare.forwarded.as_ref());
        forwarded.and_then(Forwarded::source).unwrap_or(peer)
    }

    /// A trusted proxy forwards this connection.
    pub(crate) fn await_preface(&mut self) {
        self.is_forwarded = true;
        self.rare.get_or_insert_default().forwarded = Some(Forwarded::new());
    }

    /// What is the client's of the text on a connection that is forwarded.
    pub(crate) fn take_preface<'a>(&mut self, text: &'a [u8]) -> Result<&'a [u8], PrefaceProblem> {
        let rare = self.rare.as_mut();
        match rare.and_then(|rare| rare.forwarded.as_mut()) {
            Some(forwarded) => forwarded.take(text),
            None => Ok(text),
        }
    }

    /// [`Client::source`] with the peer's port, as sources are counted.
    pub(crate) fn source_peer(&self) -> SocketAddr {
        SocketAddr::new(self.source(), self.tcp.tuple().peer.port())
    }

    /// A reply begins at `start`, which is sent so fast, and never faster than `rate_max`, that of all connections, or
    /// than `bandwidth` permits.
    pub(crate) fn begin_rate(
        &mut self,
        start: StreamOffset,
        rate: Option<Rate>,
        rate_max: Option<u64>,
        bandwidth: Option<&Bandwidth>,
    ) {
        if rate.is_some() || bandwidth.is_some() || self.is_ruled {
            let rates = &mut self.ruled().rates;
            rates.begin_reply(start, rate, rate_max, bandwidth);
        }
    }

    /// Until when the bandwidth that it shares forbids it to send what it has not sent before; `None`: it does not.
    pub(crate) fn awaits_grant(&mut self, now: Instant) -> Option<Instant> {
        let queued_bytes = self.unclaimed_bytes();
        let granted = &mut self.ruled_if_any()?.granted;
        granted.waits_until(now, queued_bytes)
    }

    /// Bytes are to be claimed, new ones or, as `is_retransmission` says, others: the bandwidth that it shares is used by them.
    pub(crate) fn spend_grant(&mut self, now: Instant, bytes: u64, is_retransmission: bool) {
        let new_bytes = if is_retransmission { 0 } else { bytes };
        let queued_bytes = self.unclaimed_bytes().saturating_sub(new_bytes);
        if let Some(ruled) = self.ruled_if_any() {
            ruled.granted.spend(now, bytes, queued_bytes);
        }
    }

    /// Bytes that were claimed are not sent.
    pub(crate) fn refund_grant(&mut self, bytes: u64) {
        if let Some(ruled) = self.ruled_if_any() {
            ruled.granted.refund(bytes);
        }
    }

    /// What the stream has behind all that was claimed, bytes.
    fn unclaimed_bytes(&self) -> u64 {
        self.tcp.end().since(self.tcp.claimed_once())
    }

    fn ruled_if_any(&mut self) -> Option<&mut Ruled> {
        if !self.is_ruled {
            return None;
        }
        self.rare.as_mut().and_then(|rare| rare.ruled.as_mut())
    }

    /// Counts this client under the limit of a rule, if `admit` says so, or under none.
    pub(crate) fn hold(&mut self, admit: impl FnOnce(&mut Option<Box<Held>>) -> bool) -> bool {
        admit(&mut self.ruled().held)
    }

    fn ruled(&mut self) -> &mut Ruled {
        self.is_ruled = true;
        let rare = self.rare.get_or_insert_default();
        rare.ruled.get_or_insert_default()
    }

    /// It is sent no reply: it is not counted.
    pub(crate) fn give_back(&mut self) {
        if let Some(ruled) = self.ruled_if_any() {
            ruled.held = None;
        }
    }

    /// Names this client, which is at `index`.
    pub(crate) const fn token(&self, index: u32) -> TlsToken {
        let serial = self.serial;
        TlsToken { index, serial }
    }

    /// Asks the processor for what an acknowledgment, a read or a frame needs beside the client itself.
    pub(crate) fn prefetch_queues(&self) {
        if let Some(fetch) = self.fetches.front() {
            memory::prefetch(fetch);
        }
        if let Some(transmission) = self.tcp.first_in_flight() {
            memory::prefetch(transmission);
        }
        if let Some(span) = self.stream.first_span() {
            memory::prefetch(span);
        }
    }

    /// Time since the head of the last request was complete.
    pub(crate) fn asked_for(&self, now: Instant) -> Duration {
        let micros = low_micros(now).wrapping_sub(self.asked_us);
        Duration::from_micros(micros.into())
    }

    /// Whether the next request may be parsed.
    pub(crate) fn takes_requests(&self) -> bool {
        let is_parsing = match self.exchange {
            Exchange::Request(_) | Exchange::Head(_) | Exchange::Replying => true,
            Exchange::LookUp(_)
            | Exchange::Unsent(_)
            | Exchange::Changed(..)
            | Exchange::Closing => false,
        };
        is_parsing && self.stream.replies() < REPLIES_MAX
    }

    /// Whether the client will send nothing more: it has sent a FIN, or a `close_notify` over TLS.
    pub(crate) fn has_half_closed(&self) -> bool {
        !self.tcp.takes_text() || self.tls.as_ref().is_some_and(|tls| tls.is_input_closed())
    }

    /// The request that is being looked up; `None`: it was given up meanwhile.
    pub(crate) const fn looked_up(&self) -> Option<HeldRequest> {
        match self.exchange {
            Exchange::LookUp(held) => Some(held),
            _ => None,
        }
    }

    /// The request whose path is to be looked up again, and when.
    pub(crate) const fn to_look_up_again(&self) -> Option<(Instant, HeldRequest)> {
        match self.exchange {
            Exchange::Changed(at, held) => Some((at, held)),
            _ => None,
        }
    }

    /// The request whose reply may begin anew, and where that reply begins; `None`: there is none.
    pub(crate) fn unsent(&self) -> Option<(HeldRequest, StreamOffset)> {
        let start = self.stream.last_reply();
        match self.exchange {
            Exchange::Unsent(held) if self.tcp.sent() <= start => Some((held, start)),
            _ => None,
        }
    }

    /// The reply to a request will not begin anew: the request is not needed any more.
    pub(crate) fn end_request(&mut self, held: HeldRequest) {
        self.input.take(held.head_bytes.into());
        self.body_bytes_left = held.body_bytes;
        self.head = HeadProgress::default();
        self.exchange = Exchange::Replying;
        if held.is_last {
            self.stop_taking_requests();
        }
    }

    /// Everything before it must not change any more: it was claimed, or read and maybe sealed.
    pub(crate) fn fixed_to(&self) -> StreamOffset {
        let claimed = self.tcp.claimed_once();
        self.tls
            .as_ref()
            .map_or(claimed, |tls| claimed.max(tls.read_to))
    }

    /// What is fetched of the stream from `start` on is not needed: none of it was sent. Reads under way come
    /// back with their completions.
    pub(crate) fn drop_fetches(
        &mut self,
        arena: &mut Arena,
        kept: &mut KeptSlots,
        start: StreamOffset,
    ) {
        kept.release_behind(arena, &mut self.kept, self.serial, start);
        if let Some(tls) = &mut self.tls {
            tls.read_to = tls.read_to.min(start);
        }
        // Claims are given back newest first. What is sent again is before `start`, and stays.
        for place in (0..self.fetches.len()).rev() {
            let is_meant = |fetch: &Fetch| fetch.plan.range.end > start;
            if self.fetches.get(place).is_some_and(is_meant)
                && let Some(fetch) = self.fetches.remove(place)
            {
                self.tcp.return_claim(fetch.claim);
                if let FetchState::Ready(Some(arrived)) = fetch.state {
                    arena.release(arrived.slot.into_free());
                }
            }
        }
    }

    /// The input holds no complete request.
    pub(crate) fn await_more(&mut self, now: Instant) {
        if self.input.is_empty() {
            if !matches!(self.exchange, Exchange::Request(_)) || self.stream.replies() > 0 {
                self.exchange = Exchange::Request(now);
            }
        } else if !matches!(self.exchange, Exchange::Head(_)) {
            self.exchange = Exchange::Head(now);
        }
    }

    /// Whether it has everything and has acknowledged our FIN: only its own is to come.
    pub(crate) const fn is_finished(&self) -> bool {
        matches!(self.tcp.state(), tcp::State::FinWait2(_))
    }

    /// Accepts no further request, and drops a partial one.
    pub(crate) fn stop_taking_requests(&mut self) {
        if let Exchange::LookUp(held) | Exchange::Unsent(held) | Exchange::Changed(_, held) =
            &mut self.exchange
        {
            held.is_last = true;
        } else {
            self.exchange = Exchange::Closing;
            self.input.discard();
        }
    }

    /// The same, and forgets the request that is looked up or may be answered again.
    pub(crate) fn stop_replying(&mut self) {
        self.exchange = Exchange::Closing;
        self.input.discard();
    }

    /// Throws away what arrived of the body of the last request taken. Returns whether that was all of
    /// it, so that what follows is the next request.
    pub(crate) fn skip_body(&mut self) -> bool {
        let arrived = u16::try_from(self.input.len()).unwrap_or(u16::MAX);
        let skipped = self.body_bytes_left.min(arrived);
        self.input.take(skipped.into());
        self.body_bytes_left -= skipped;
        self.body_bytes_left == 0
    }

    /// TCP accepted `segment`, which came by `path`: from now on we send to the MAC address it came
    /// from, so that connections survive a router that fails over to another one. Segments that TCP
    /// refused do not change the next hop, because an attacker who knows the four-tuple could then
    /// redirect the stream. Neither does a segment that acknowledges less than SND.UNA: it is an
    /// old one that came late, perhaps by the failed router. Returns whether the next hop changed.
    pub(crate) fn follow_path(&mut self, path: &Path, segment: &TcpRepr) -> bool {
        let moves = path.source_mac != self.route.destination_mac
            && self.tcp.is_acknowledged_to(segment.acknowledgment);
        if moves {
            self.route.destination_mac = path.source_mac;
            self.heard_from = path.source_mac;
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
        if self.exchange.is_closing() {
            // Further bytes are read and discarded. A reset in answer to them could reach the
            // client before our last reply (RFC 9112 s9.6).
            return INPUT_BYTES_MAX;
        }
        room(&self.input)
    }

    /// Whether nothing is under way but waiting for a request: every reply was acknowledged, and no
    /// byte of the next request, or of a TLS handshake, has arrived. RFC 9112 s9.3 lets a server
    /// close such a connection at any time.
    pub(crate) fn is_idle(&self) -> bool {
        let is_between_records = self.tls.as_ref().is_none_or(|tls| {
            let has_begun = tls.is_handshaking() && tls.stage() != Some(Stage::Arriving);
            tls.sealed.is_empty() && !tls.is_waiting() && !has_begun
        });
        matches!(self.exchange, Exchange::Request(_))
            && self.tcp.state() == State::Established
            && self.tcp.is_idle()
            && !self.tcp.is_finishing()
            && self.stream.replies() == 0
            && is_between_records
    }

    /// How much may be fetched for this connection, which [`Client::may_read`] permitted before.
    pub(crate) fn credit(&self, now: Instant) -> Credit {
        if self.fetches.len() < FETCHES_MAX {
            self.tcp.credit(now)
        } else {
            Credit::Nothing
        }
    }

    /// Whether something may be fetched for this connection now, or when, by TCP and by its read budget: the
    /// only place where that is decided. TCP learns what its own limits permit.
    #[inline]
    pub(crate) fn may_read(&mut self, now: Instant) -> Permission {
        let claimed = self.tcp.claimed_once();
        if let Some(ruled) = self.ruled_if_any()
            && let Some(Step { rate, bandwidth }) = ruled.rates.advance(claimed)
        {
            ruled.granted.set_bandwidth(bandwidth);
            self.tcp.set_rate_max(rate);
        }
        self.read_waits = self.read_waits.filter(|until| *until > now);
        let permission = if self.fetches.len() < FETCHES_MAX {
            self.tcp.permission(now)
        } else {
            Permission::Nothing
        };
        self.tcp.on_permission(now, permission);
        match (permission, self.read_waits) {
            (Permission::Now, Some(until)) => Permission::From(until),
            _ => permission,
        }
    }

    /// Whether something can be sent.
    pub(crate) fn wants_transmit(&self) -> bool {
        let ready = |fetch: &Fetch| matches!(fetch.state, FetchState::Ready(_));
        self.fetches.front().is_some_and(ready) || self.tcp.control().is_some()
    }

    /// When this client times out, TCP has work to do, a read may be planned again, or a path is to be looked up
    /// again.
    pub(crate) fn deadline(&self, config: &Config) -> Option<Instant> {
        let client_timeout = self.client_timeout(config).map(|(deadline, _)| deadline);
        let look_up = self.to_look_up_again().map(|(at, _)| at);
        earlier(
            earlier(self.tcp.poll_timeout(), client_timeout),
            earlier(self.read_waits, look_up),
        )
    }

    /// The next deadline of this client above TCP, and which timeout it is.
    pub(crate) fn client_timeout(&self, config: &Config) -> Option<(Instant, ClientTimeout)> {
        let acknowledgment = (!self.tcp.is_idle()).then(|| {
            let deadline = self.progress_at() + config.send_timeout;
            (deadline, ClientTimeout::Acknowledgment)
        });
        // Acknowledgments do not extend the time for a handshake.
        let handshake = self.handshaking_since().map(|since| {
            let deadline = since + config.head_timeout;
            (deadline, ClientTimeout::Handshake)
        });
        match (acknowledgment, handshake) {
            (Some(acknowledgment), Some(handshake)) => {
                let is_first = acknowledgment.0 <= handshake.0;
                return Some(if is_first { acknowledgment } else { handshake });
            }
            (None, None) => {}
            (some, None) | (None, some) => return some,
        }
        let (since, time, timeout): (Instant, Duration, _) = match self.exchange {
            // The end of a reply may have to be sent again and again: the time to ask is that after its
            // acknowledgment.
            Exchange::Request(since) => {
                let since = since.max(self.progress_at());
                (since, config.idle_timeout, ClientTimeout::Request)
            }
            Exchange::Head(since) => (since, config.head_timeout, ClientTimeout::Head),
            Exchange::LookUp(_)
            | Exchange::Unsent(_)
            | Exchange::Changed(..)
            | Exchange::Replying
            | Exchange::Closing => return None,
        };
        Some((since + time, timeout))
    }

    /// When the client last made progress ([`Client::on_acknowledged`]), or data was queued after
    /// an idle time.
    pub(crate) fn progress_at(&self) -> Instant {
        if self.progress.up_to == self.tcp.acknowledged() {
            self.tcp.progress_at()
        } else {
            self.progress.at
        }
    }

    /// SND.UNA moved. Progress means that the client acknowledged what
    /// [`SEND_RATE_MIN_BYTES_PER_SECOND`] makes of `send_timeout`, and at least a segment's worth;
    /// or everything that was to be sent. Otherwise a client that acknowledges a byte, or a segment,
    /// a minute could keep its connection and its object open for years. `before` is
    /// [`Client::progress_at`] before this ACK.
    pub(crate) fn on_acknowledged(
        &mut self,
        now: Instant,
        before: Instant,
        send_timeout: Duration,
    ) {
        let up_to = self.tcp.acknowledged();
        let bytes = up_to.since(self.progress.up_to);
        let rated = SEND_RATE_MIN_BYTES_PER_SECOND.saturating_mul(send_timeout.as_secs());
        self.progress.at = before;
        if bytes >= rated.max(self.tcp.segment_bytes().into()) || self.tcp.is_idle() {
            self.progress = Progress { at: now, up_to };
        }
    }

    /// When the TLS handshake began, while it is under way.
    pub(crate) fn handshaking_since(&self) -> Option<Instant> {
        match self.exchange {
            Exchange::Request(since) if self.tls.as_ref()?.is_handshaking() => Some(since),
            _ => None,
        }
    }
}

/// The low bits of a moment's microseconds.
#[expect(clippy::cast_possible_truncation, reason = "the low bits")]
pub(crate) const fn low_micros(now: Instant) -> u32 {
    now.as_micros() as u32
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

/// What did not arrive in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClientTimeout {
    /// A request's first byte: the connection is closed.
    Request,
    /// The rest of a head: 408.
    Head,
    /// The end of the handshake: the connection is closed.
    Handshake,
    /// Acknowledgments of what we sent, at the least rate: the connection is reset.
    Acknowledgment,
}
