//! One connection of a client: what it requests, when it reads, how it ends.
//!
//! It carries out its plan on plaintext; TLS, if used, lies between it and smoltcp. It refuses to
//! excuse what [`Permits`] does not.

use std::collections::VecDeque;
use std::sync::Arc;

use clock::Instant;
use rustls::{ClientConfig, HandshakeKind};
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::{self, RecvError, State};

use super::plan::{Asked, Conduct, ConnectionPlan, Permits, RequestPlan, StreamEnd};
use super::reply::ReplyReader;
use super::secure::{ReceiveError, Secure};
use super::{REPLY_TIMEOUT, Violation};
use crate::content::Content;

/// Length of the garbage behind a `close_notify`: more than a record header.
const GARBAGE_BYTES: usize = 60;
/// Most KeyUpdates a client sends on one connection.
const REFRESHES_MAX: u32 = 20;

/// A connection.
pub(super) struct Connection {
    pub(super) socket: SocketHandle,
    pub(super) plan: ConnectionPlan,
    /// Whether only TLS 1.2 is offered, which has no KeyUpdate.
    keeps_keys: bool,
    secure: Option<Secure>,
    /// All bytes to send, and how many of them smoltcp took.
    outbox: Vec<u8>,
    sent: usize,
    /// Requests written to the outbox.
    pub(super) asked: usize,
    pub(super) awaiting: VecDeque<Asked>,
    pub(super) reader: ReplyReader,
    pub(super) received_bytes: u64,
    /// Whether some of a reply was among them.
    has_received_text: bool,
    /// What had arrived when the first request was sent.
    first_asked_at_bytes: Option<u64>,
    /// Whether some of a request was sent.
    has_sent_text: bool,
    corrupted: Corrupted,
    has_sent_stream_end: bool,
    /// When the next request, or the next single byte, is due.
    next_request: Instant,
    next_byte: Instant,
    /// Nothing is read before this moment.
    next_read: Instant,
    begun_at: Instant,
    /// When a byte last arrived, or the connection began.
    received_at: Instant,
    /// When it resets or vanishes at the latest.
    departs_at: Option<Instant>,
    pub(super) refreshes: u32,
}

/// Whether a bit that we sent was flipped: see [`Conduct::Flip`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Corrupted {
    No,
    /// The two ends may have different keys now, or the server none to encrypt an alert with.
    InHandshake,
    /// Both ends have the keys: what arrives must still be valid.
    Later,
}

/// How a connection ended.
pub(super) enum Ending {
    /// Everything was answered.
    Complete,
    /// By our own misbehaviour.
    OurAction,
    /// We vanished.
    Vanished,
    /// The server's FIN.
    Closed,
    /// The server's RST.
    Reset,
    /// Nothing arrived for too long: an RST is not retransmitted if it is lost.
    Silence,
    /// A reply that refuses the request, for a permitted reason.
    Refused,
    /// A failed check.
    Violation(Violation),
}

/// Why a connection may end early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Excuse {
    Late,
    Broken,
    /// Because the connection table was full; or because a read failed, if that can be.
    Refused {
        may_be_broken: bool,
    },
    Busy,
    Closed,
    KeyUsed,
}

impl Connection {
    /// A connection of a client, with TLS if there is a `config`. `keeps_keys`: it has no
    /// KeyUpdate.
    pub(super) fn new(
        now: Instant,
        socket: SocketHandle,
        plan: ConnectionPlan,
        config: Option<&Arc<ClientConfig>>,
        keeps_keys: bool,
    ) -> Self {
        let departs_at = match plan.conduct {
            Conduct::Reset(departure) | Conduct::Vanish(departure) => Some(now + departure.after),
            _ => None,
        };
        let config = config.filter(|_| !plan.conduct.skips_handshake());
        let mut connection = Self {
            socket,
            plan,
            keeps_keys,
            secure: config.map(Secure::new),
            outbox: Vec::new(),
            sent: 0,
            asked: 0,
            awaiting: VecDeque::new(),
            reader: ReplyReader::default(),
            received_bytes: 0,
            first_asked_at_bytes: None,
            has_received_text: false,
            has_sent_text: false,
            corrupted: Corrupted::No,
            has_sent_stream_end: false,
            next_request: now,
            next_byte: now,
            next_read: now,
            begun_at: now,
            received_at: now,
            departs_at,
            refreshes: 0,
        };
        connection.take_output();
        connection
    }

    /// How the handshake went, once it is complete.
    pub(super) fn handshake_kind(&self) -> Option<HandshakeKind> {
        let secure = self.secure.as_ref().filter(|secure| secure.is_ready())?;
        secure.handshake_kind()
    }

    /// Which of the permitted reasons explains this ending, if any.
    pub(super) fn excuse(&self, now: Instant, ending: &Ending, permits: Permits) -> Option<Excuse> {
        let between = self.reader.is_between_replies();
        let waited = now.since(self.received_at) >= permits.lateness_min;
        // The server's handshake ends with our Finished: a reply shows that it came. What arrives before
        // does not extend the time for it.
        let is_handshaking = self.secure.is_some() && !self.has_received_text;
        let is_handshake_late =
            is_handshaking && now.since(self.begun_at) >= permits.handshake_timeout;
        let is_late = permits.lateness && between && (waited || is_handshake_late);
        let late = is_late.then_some(Excuse::Late);
        let is_worn = permits.worn_keys && self.keeps_keys && self.is_ready();
        // When half of the records of a key are used, no more requests are taken.
        let key_used = (is_worn && between).then_some(Excuse::KeyUsed);
        let is_cut = self.may_be_cut() && (self.may_have_begun() || permits.unseen_beginnings);
        let broken = (permits.broken_replies || is_cut || is_worn).then_some(Excuse::Broken);
        let refused = |may_be_broken| {
            permits
                .refusals
                .then_some(Excuse::Refused { may_be_broken })
        };
        // An idle connection made room for another.
        let evicted = |may_be_broken| refused(may_be_broken).filter(|_| between);
        let has_come = |moment: Option<Instant>| moment.is_some_and(|moment| moment <= now);
        let closed = (has_come(permits.closes_at) && between).then_some(Excuse::Closed);
        // After a reply that says so; what was asked behind it is not answered.
        let handed = (has_come(permits.hands_over_at) && between).then_some(Excuse::Closed);
        let closed = closed.or(handed);
        let aborted = has_come(permits.aborts_at).then_some(Excuse::Closed);
        match ending {
            Ending::Refused => match self.reader.refused {
                // A 408 has just arrived, so `waited` does not hold.
                Some(408) => permits.lateness.then_some(Excuse::Late),
                Some(500) => broken,
                _ => permits.busy.then_some(Excuse::Busy),
            },
            // A FIN in a reply would mean that the reply is whole: no excuse.
            Ending::Closed => closed.or(late).or(key_used).or(evicted(false)),
            Ending::Reset if self.received_bytes == 0 => aborted
                .or(closed)
                .or(late)
                .or(refused(broken.is_some()))
                .or(broken),
            Ending::Reset => aborted
                .or(closed)
                .or(late)
                .or(evicted(broken.is_some()))
                .or(broken),
            // An RST that was lost.
            Ending::Silence => aborted.or(broken).filter(|_| permits.lateness),
            _ => unreachable!("an ending that needs no excuse"),
        }
    }

    /// Whether a change of an object that was asked for may cut replies. A reply that has arrived is among
    /// them: the server may not know that.
    fn may_be_cut(&self) -> bool {
        let mut asked = self.plan.requests.iter().take(self.asked);
        asked.any(RequestPlan::may_be_cut)
    }

    /// Whether something has arrived since the first request was sent. If not, a change of its file gets it
    /// another reply.
    fn may_have_begun(&self) -> bool {
        self.first_asked_at_bytes != Some(self.received_bytes)
    }

    pub(super) fn describe_ending(&self, now: Instant, ending: &Ending) -> String {
        let what = match ending {
            Ending::Refused => "refusal",
            Ending::Closed => "FIN",
            Ending::Reset => "RST",
            _ => "silence",
        };
        let place = match &self.secure {
            Some(secure) if !secure.is_ready() => "in the handshake",
            _ if self.reader.is_between_replies() => "between replies",
            _ => "in a reply",
        };
        format!(
            "{what} {place} with {} outstanding, {} of {} asked, {} bytes received, the last {} ms \
             ago, {:?}",
            self.awaiting.len(),
            self.asked,
            self.plan.requests.len(),
            self.received_bytes,
            now.since(self.received_at).as_millis(),
            self.plan.conduct,
        )
    }

    /// Reads, and sends requests, as is due; `Some` when the connection is over.
    pub(super) fn act(
        &mut self,
        now: Instant,
        socket: &mut tcp::Socket<'_>,
        permits: Permits,
    ) -> Option<Ending> {
        if self.departs_at.is_some_and(|at| at <= now) {
            return self.departure();
        }
        if self.silence_ends_at() <= now {
            return Some(Ending::Silence);
        }
        if let Some(ending) = self.read(now, socket, permits) {
            return Some(ending);
        }
        // Output of the handshake, before that of requests.
        self.take_output();
        self.refresh_keys();
        self.ask(now);
        let is_half_closing = self.plan.conduct == Conduct::HalfClose
            && self.has_asked_all()
            && self.received_bytes >= self.plan.stream_end_after_bytes;
        if is_half_closing {
            self.send_stream_end();
        }
        self.take_output();
        self.write(now, socket);
        let closes = match self.plan.conduct {
            Conduct::HalfClose => {
                let waits = self.secure.is_some() && self.plan.stream_end == StreamEnd::Notify;
                is_half_closing && !waits
            }
            Conduct::StallHandshake { closes, .. } => closes,
            _ => false,
        };
        if closes && self.has_sent_all() && socket.may_send() {
            socket.close();
        }
        None
    }

    /// Sends what precedes the FIN.
    pub(super) fn part(&mut self, socket: &mut tcp::Socket<'_>) {
        self.send_stream_end();
        self.take_output();
        let rest = self.outbox.get(self.sent..).unwrap_or_default();
        // Without room in the socket, the FIN alone is sent.
        self.sent += socket.send_slice(rest).unwrap_or_default();
    }

    /// Reads up to `read_bytes_max`, and checks it.
    fn read(
        &mut self,
        now: Instant,
        socket: &mut tcp::Socket<'_>,
        permits: Permits,
    ) -> Option<Ending> {
        if now < self.next_read {
            return None;
        }
        let mut left = self.plan.read_bytes_max;
        while left > 0 {
            let taken = socket.recv(|bytes| {
                let bytes = &bytes[..bytes.len().min(left)];
                (
                    bytes.len(),
                    (bytes.len(), self.handle_bytes(bytes, permits)),
                )
            });
            match taken {
                Ok((0, Ok(()))) => break,
                Ok((count, heard)) => {
                    left -= count;
                    self.received_bytes += count as u64;
                    let is_over = |secure: &Secure| secure.has_received_close_notify();
                    // It may have waited for it long, and the FIN comes with it.
                    if !self.secure.as_ref().is_some_and(is_over) {
                        self.received_at = now;
                    }
                    if let Err(error) = heard {
                        return Some(self.ending_by_error(error));
                    }
                }
                Err(RecvError::Finished) => return Some(self.ending_by_fin(now, permits)),
                // Before the handshake is over nothing can be read either.
                Err(RecvError::InvalidState) if socket.is_open() => break,
                Err(RecvError::InvalidState) => return Some(Ending::Reset),
            }
            if let Some(ending) = self.ending_by_progress(now) {
                return Some(ending);
            }
        }
        if left == 0 {
            self.next_read = self.next_read.max(now + self.plan.read_interval);
        }
        None
    }

    fn handle_bytes(&mut self, bytes: &[u8], permits: Permits) -> Result<(), ReceiveError> {
        let broken_replies = permits.broken_replies || self.may_be_cut();
        let Self {
            secure,
            reader,
            awaiting,
            plan,
            has_received_text,
            ..
        } = self;
        if !plan.conduct.is_judged() && secure.is_none() {
            return Ok(());
        }
        let permits = Permits {
            // A head that is never completed gets a 408.
            lateness: permits.lateness || !plan.conduct.is_proper(),
            broken_replies,
            ..permits
        };
        let mut judge = |text: &[u8]| {
            *has_received_text = true;
            match plan.conduct.is_judged() {
                true => reader.handle_bytes(text, awaiting, permits),
                false => Ok(()),
            }
        };
        match secure {
            Some(secure) => {
                secure.handle_bytes(bytes, &mut judge)?;
                let is_early =
                    secure.has_received_close_notify() && !self.reader.is_between_replies();
                // It would mean that the reply is whole.
                let early = || ReceiveError::Violation("close_notify in a reply".to_owned());
                if is_early { Err(early()) } else { Ok(()) }
            }
            None => judge(bytes).map_err(ReceiveError::Violation),
        }
    }

    fn ending_by_error(&self, error: ReceiveError) -> Ending {
        let may_get_alert = self.corrupted != Corrupted::No
            || matches!(self.plan.conduct, Conduct::StallHandshake { .. });
        match error {
            ReceiveError::Alert(_) if may_get_alert => Ending::OurAction,
            ReceiveError::InvalidTls(_) if self.corrupted == Corrupted::InHandshake => {
                Ending::OurAction
            }
            ReceiveError::Violation(violation) => Ending::Violation(violation),
            ReceiveError::Alert(alert) => Ending::Violation(format!("alert {alert:?}")),
            ReceiveError::InvalidTls(cause) => Ending::Violation(format!(
                "TLS: {cause} after {} bytes, {:?}",
                self.received_bytes, self.plan.conduct
            )),
        }
    }

    /// The server's FIN, after everything it sent was read.
    fn ending_by_fin(&self, now: Instant, permits: Permits) -> Ending {
        let conduct = self.plan.conduct;
        if self.misses_close_notify(now, permits) {
            let violation = format!("FIN without close_notify, {conduct:?}");
            return Ending::Violation(violation);
        }
        match self.is_answered() || !conduct.is_proper() {
            true => Ending::Complete,
            false => Ending::Closed,
        }
    }

    /// Whether the `close_notify` before the FIN is missing (RFC 8446 s6.1).
    fn misses_close_notify(&self, now: Instant, permits: Permits) -> bool {
        let Some(secure) = self.secure.as_ref().filter(|secure| secure.is_ready()) else {
            return false;
        };
        // The server may not have our Finished: then its handshake is not complete.
        let gives_up = permits.lateness || permits.closes_at.is_some_and(|at| at <= now);
        let is_handshaking = !self.has_received_text && gives_up
            || matches!(self.plan.conduct, Conduct::StallHandshake { .. });
        !secure.has_received_close_notify() && self.corrupted == Corrupted::No && !is_handshaking
    }

    /// Handles what depends on the number of bytes read.
    fn ending_by_progress(&mut self, now: Instant) -> Option<Ending> {
        let read = self.received_bytes;
        if let Some(pause) = self.plan.pause.filter(|pause| read >= pause.after_bytes) {
            self.plan.pause = None;
            self.next_read = now + pause.lasts;
        }
        match self.plan.conduct {
            Conduct::Reset(departure) | Conduct::Vanish(departure)
                if read >= departure.after_bytes =>
            {
                return self.departure();
            }
            _ => {}
        }
        if !self.reader.is_between_replies() {
            return None;
        }
        if self.reader.refused.is_some() {
            return Some(Ending::Refused);
        }
        self.next_request = self.next_request.max(now + self.plan.think);
        // After `Connection: close` we wait for the server's FIN.
        let server_closes = self.reader.last_reply;
        (self.is_answered() && !server_closes).then_some(Ending::Complete)
    }

    fn departure(&self) -> Option<Ending> {
        match self.plan.conduct {
            Conduct::Reset(_) => Some(Ending::OurAction),
            Conduct::Vanish(_) => Some(Ending::Vanished),
            _ => None,
        }
    }

    /// Sends a KeyUpdate if enough arrived since the last.
    fn refresh_keys(&mut self) {
        let Some(bytes) = self.plan.refresh_bytes else {
            return;
        };
        let is_due = self.received_bytes >= bytes * u64::from(self.refreshes + 1);
        if !is_due || self.refreshes == REFRESHES_MAX || self.has_sent_stream_end {
            return;
        }
        if let Some(secure) = self.secure.as_mut().filter(|secure| secure.is_ready()) {
            secure.refresh();
            self.refreshes += 1;
        }
    }

    /// Writes the requests that are due.
    fn ask(&mut self, now: Instant) {
        if now < self.next_request || !self.is_ready() {
            return;
        }
        match self.plan.conduct {
            Conduct::StallHead { sent_bytes } if self.asked == 0 => {
                let head = self.plan.requests.first().map(RequestPlan::head_bytes);
                let head = head.unwrap_or_default();
                // At least the last byte is never sent.
                let sent = sent_bytes.min(head.len().saturating_sub(1));
                self.say(&head[..sent]);
                self.asked = self.plan.requests.len();
            }
            Conduct::Garbage { length, key, .. } if self.asked == 0 => {
                let mut garbage = vec![0; length];
                Content::new(key, 0, 0).fill(0, &mut garbage);
                self.say(&garbage);
                self.asked = self.plan.requests.len();
            }
            Conduct::StallHead { .. } | Conduct::Garbage { .. } => {}
            _ => self.ask_properly(now),
        }
    }

    fn ask_properly(&mut self, now: Instant) {
        while self.awaiting.len() < self.plan.pipeline && self.may_ask() {
            let Some(&request) = self.plan.requests.get(self.asked) else {
                break;
            };
            self.first_asked_at_bytes.get_or_insert(self.received_bytes);
            let since = request.object.map_or(0, |object| object.version_at(now));
            self.say(&request.head_bytes());
            if self.corrupted != Corrupted::No {
                // A record that cannot be decrypted requests nothing.
                break;
            }
            self.awaiting.push_back(Asked { request, since });
            self.asked += 1;
        }
    }

    /// Whether more requests can be answered.
    const fn may_ask(&self) -> bool {
        !self.reader.last_reply && matches!(self.corrupted, Corrupted::No)
    }

    /// Sends `text`, encrypted over TLS.
    fn say(&mut self, text: &[u8]) {
        self.has_sent_text = true;
        match &mut self.secure {
            None => self.outbox.extend_from_slice(text),
            Some(secure) if !text.is_empty() => secure.write(text),
            Some(_) => {}
        }
        self.take_output();
    }

    fn send_stream_end(&mut self) {
        if self.has_sent_stream_end || self.plan.stream_end == StreamEnd::Fin {
            return;
        }
        if let Some(secure) = &mut self.secure {
            secure.send_close_notify();
            self.has_sent_stream_end = true;
            if self.plan.stream_end == StreamEnd::NotifyAndGarbage {
                self.take_output();
                self.outbox.extend_from_slice(&[0xff; GARBAGE_BYTES]);
            }
        }
    }

    /// Moves the output of TLS to the outbox, and flips a bit if the plan says so.
    fn take_output(&mut self) {
        let Some(secure) = &mut self.secure else {
            return;
        };
        let from = self.outbox.len();
        secure.take_output(&mut self.outbox);
        if let Conduct::Flip { at_bytes, bit } = self.plan.conduct
            && at_bytes >= from
            && let Some(byte) = self.outbox.get_mut(at_bytes)
        {
            *byte ^= 1 << bit;
            self.corrupted = match self.has_sent_text {
                true => Corrupted::Later,
                false => Corrupted::InHandshake,
            };
        }
    }

    /// The part of the outbox that the plan lets be sent.
    fn sendable(&self) -> &[u8] {
        match self.plan.conduct {
            Conduct::StallHandshake { sent_bytes, .. } => {
                &self.outbox[..sent_bytes.min(self.outbox.len())]
            }
            _ => &self.outbox,
        }
    }

    /// Writes as much of the outbox to the socket as it takes and the plan allows.
    fn write(&mut self, now: Instant, socket: &mut tcp::Socket<'_>) {
        let mut left = self.sendable().len() - self.sent;
        if !socket.can_send() || left == 0 {
            return;
        }
        if let Conduct::Dribble { interval } = self.plan.conduct {
            if now < self.next_byte {
                return;
            }
            left = 1;
            self.next_byte = now + interval;
        }
        let part = &self.outbox[self.sent..self.sent + left];
        self.sent += socket.send_slice(part).unwrap_or_default();
    }

    /// Whether requests can be sent.
    fn is_ready(&self) -> bool {
        self.secure.as_ref().is_none_or(Secure::is_ready)
    }

    /// When too little has arrived for too long; time in which the plan does not read does not
    /// count.
    fn silence_ends_at(&self) -> Instant {
        self.received_at.max(self.next_read).max(self.next_request) + REPLY_TIMEOUT
    }

    fn is_answered(&self) -> bool {
        self.has_asked_all() && self.awaiting.is_empty() && self.reader.is_between_replies()
    }

    fn has_asked_all(&self) -> bool {
        self.asked == self.plan.requests.len()
    }

    /// Whether everything that will ever be sent has been given to smoltcp.
    fn has_sent_all(&self) -> bool {
        let stalls = matches!(self.plan.conduct, Conduct::StallHandshake { .. });
        (stalls || self.has_asked_all()) && self.sent == self.sendable().len()
    }

    /// When the plan next has something to do, apart from TCP.
    pub(super) fn next_due(&self, socket: &tcp::Socket<'_>) -> Option<Instant> {
        let wants_to_write = socket.can_send() && self.sent < self.sendable().len();
        let dribbles = matches!(self.plan.conduct, Conduct::Dribble { .. });
        let write = (wants_to_write && dribbles).then_some(self.next_byte);
        // Reading also returns a FIN or RST behind the bytes.
        let is_connecting = matches!(socket.state(), State::SynSent | State::SynReceived);
        let ended = !socket.may_recv() && !is_connecting;
        let read = (socket.can_recv() || ended).then_some(self.next_read);
        let asks = !self.has_asked_all()
            && self.awaiting.len() < self.plan.pipeline
            && self.may_ask()
            && self.is_ready();
        let ask = asks.then_some(self.next_request);
        [
            write,
            read,
            ask,
            self.departs_at,
            Some(self.silence_ends_at()),
        ]
        .into_iter()
        .flatten()
        .min()
    }
}
