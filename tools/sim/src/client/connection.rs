//! One connection of a client: what it asks, when it reads, how it ends.
//!
//! The script acts on text; TLS, if it is spoken, lies between it and smoltcp. It refuses to act
//! beyond its script, and to excuse what [`Permits`] does not.

use std::collections::VecDeque;
use std::sync::Arc;

use clock::Instant;
use rustls::{ClientConfig, HandshakeKind};
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::{self, RecvError, State};

use super::plan::{Conduct, ConnectionPlan, Expected, Farewell, Permits, RequestPlan};
use super::reply::ReplyReader;
use super::secure::{Secure, Trouble};
use super::{PATIENCE, Violation};
use crate::content::Content;

/// Bytes behind a `close_notify`: no record begins like that, and a header's worth is enough.
const GARBAGE_BYTES: usize = 60;
/// Times a client asks for new keys on one connection.
const REFRESHES_MAX: u32 = 20;

/// A connection under way.
pub(super) struct Connection {
    pub(super) socket: SocketHandle,
    pub(super) plan: ConnectionPlan,
    /// Whether only TLS 1.2 is offered, which cannot change its keys.
    keeps_keys: bool,
    secure: Option<Secure>,
    /// Bytes to send, all of them, and how many of them smoltcp took.
    outbox: Vec<u8>,
    sent: usize,
    /// Requests written to the outbox.
    pub(super) asked: usize,
    pub(super) awaiting: VecDeque<Expected>,
    pub(super) reader: ReplyReader,
    pub(super) received_bytes: u64,
    /// Something of a reply was among them.
    has_heard_text: bool,
    /// Something of a request was sent.
    has_said_text: bool,
    spoilt: Spoilt,
    has_said_farewell: bool,
    /// When the next request, or the next dribbled byte, is due.
    next_request: Instant,
    next_byte: Instant,
    /// Nothing is read before this moment.
    next_read: Instant,
    /// When a byte last arrived, or the connection began.
    heard_at: Instant,
    /// When a misstep is due at the latest.
    misstep_at: Option<Instant>,
    pub(super) refreshes: u32,
}

/// Whether a byte of ours was altered: see [`Conduct::Flip`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Spoilt {
    No,
    /// The two ends may have different keys now, or the server none to tell us so with.
    InHandshake,
    /// The keys are agreed on: what we hear must still make sense.
    Later,
}

/// What ended a connection.
pub(super) enum Ending {
    /// Everything asked for was answered.
    Complete,
    /// Our own misconduct.
    OurDoing,
    /// We send nothing any more.
    Vanished,
    /// The server's FIN.
    Closed,
    /// The server's RST.
    Reset,
    /// Nothing at all: an RST is not sent again when it is lost.
    Silence,
    /// A reply that refuses what was asked, for a permitted reason.
    Refused,
    /// A broken promise.
    Violation(Violation),
}

/// Why a connection may end early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Excuse {
    Late,
    Broken,
    Refused,
    Busy,
    Closed,
    KeyUsed,
}

impl Connection {
    /// A connection of a client that speaks TLS as `config` says, if it does. `keeps_keys`: it
    /// cannot change its keys.
    pub(super) fn new(
        now: Instant,
        socket: SocketHandle,
        plan: ConnectionPlan,
        config: Option<&Arc<ClientConfig>>,
        keeps_keys: bool,
    ) -> Self {
        let misstep_at = match plan.conduct {
            Conduct::Reset(misstep) | Conduct::Vanish(misstep) => Some(now + misstep.after),
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
            has_heard_text: false,
            has_said_text: false,
            spoilt: Spoilt::No,
            has_said_farewell: false,
            next_request: now,
            next_byte: now,
            next_read: now,
            heard_at: now,
            misstep_at,
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
        let waited = now.since(self.heard_at) >= permits.lateness_min;
        let late = (permits.lateness && waited && between).then_some(Excuse::Late);
        let is_worn = permits.worn_keys && self.keeps_keys && self.is_ready();
        // A key that is half used up takes no more requests.
        let key_used = (is_worn && between).then_some(Excuse::KeyUsed);
        let broken = (permits.broken_replies || is_worn).then_some(Excuse::Broken);
        let refused = permits.refusals.then_some(Excuse::Refused);
        let has_come = |moment: Option<Instant>| moment.is_some_and(|moment| moment <= now);
        let closed = (has_come(permits.closes_at) && between).then_some(Excuse::Closed);
        let aborted = has_come(permits.aborts_at).then_some(Excuse::Closed);
        match ending {
            Ending::Refused => match self.reader.refused {
                // A late head is answered at once: we heard from the server just now.
                Some(408) => permits.lateness.then_some(Excuse::Late),
                Some(500) => broken,
                _ => permits.busy.then_some(Excuse::Busy),
            },
            // In the middle of a reply a FIN says that the reply is whole: no excuse.
            Ending::Closed => closed.or(late).or(key_used),
            Ending::Reset if self.received_bytes == 0 => {
                aborted.or(closed).or(late).or(refused).or(broken)
            }
            Ending::Reset => aborted.or(closed).or(late).or(broken),
            // An RST that was lost.
            Ending::Silence => aborted.or(broken).filter(|_| permits.lateness),
            _ => unreachable!("an ending that needs no excuse"),
        }
    }

    pub(super) fn complaint(&self, now: Instant, ending: &Ending) -> String {
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
            now.since(self.heard_at).as_millis(),
            self.plan.conduct,
        )
    }

    /// Reads, asks and writes what is due; `Some` when the connection is over.
    pub(super) fn act(
        &mut self,
        now: Instant,
        socket: &mut tcp::Socket<'_>,
        permits: Permits,
    ) -> Option<Ending> {
        if self.misstep_at.is_some_and(|at| at <= now) {
            return self.misstep();
        }
        if self.silence_ends_at() <= now {
            return Some(Ending::Silence);
        }
        if let Some(ending) = self.read(now, socket, permits) {
            return Some(ending);
        }
        // The handshake's, apart from what is said under its keys.
        self.take_output();
        self.refresh_keys();
        self.ask(now);
        let is_half_closing = self.plan.conduct == Conduct::HalfClose
            && self.has_asked_all()
            && self.received_bytes >= self.plan.farewell_after_bytes;
        if is_half_closing {
            self.say_farewell();
        }
        self.take_output();
        self.write(now, socket);
        let closes = match self.plan.conduct {
            Conduct::HalfClose => {
                let waits = self.secure.is_some() && self.plan.farewell == Farewell::Notify;
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

    /// What is to be said last, before the FIN.
    pub(super) fn part(&mut self, socket: &mut tcp::Socket<'_>) {
        self.say_farewell();
        self.take_output();
        let rest = self.outbox.get(self.sent..).unwrap_or_default();
        // Where there is no room, the FIN alone must do.
        self.sent += socket.send_slice(rest).unwrap_or_default();
    }

    /// Takes what arrived, up to `read_bytes_max`, and holds it against what was asked.
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
                    self.heard_at = now;
                    if let Err(trouble) = heard {
                        return Some(self.ending_by_trouble(trouble));
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

    fn handle_bytes(&mut self, bytes: &[u8], permits: Permits) -> Result<(), Trouble> {
        let Self {
            secure,
            reader,
            awaiting,
            plan,
            has_heard_text,
            ..
        } = self;
        if !plan.conduct.is_judged() && secure.is_none() {
            return Ok(());
        }
        let permits = Permits {
            // Who stops in the middle is told so.
            lateness: permits.lateness || !plan.conduct.is_proper(),
            ..permits
        };
        let mut judge = |text: &[u8]| {
            *has_heard_text = true;
            match plan.conduct.is_judged() {
                true => reader.handle_bytes(text, awaiting, permits),
                false => Ok(()),
            }
        };
        match secure {
            Some(secure) => {
                secure.handle_bytes(bytes, &mut judge)?;
                let is_early = secure.has_heard_farewell() && !self.reader.is_between_replies();
                // It says that the reply is whole.
                let early = || Trouble::Violation("close_notify in a reply".to_owned());
                if is_early { Err(early()) } else { Ok(()) }
            }
            None => judge(bytes).map_err(Trouble::Violation),
        }
    }

    fn ending_by_trouble(&self, trouble: Trouble) -> Ending {
        let may_be_told = self.spoilt != Spoilt::No
            || matches!(self.plan.conduct, Conduct::StallHandshake { .. });
        match trouble {
            Trouble::Alert(_) if may_be_told => Ending::OurDoing,
            Trouble::Nonsense(_) if self.spoilt == Spoilt::InHandshake => Ending::OurDoing,
            Trouble::Violation(violation) => Ending::Violation(violation),
            Trouble::Alert(alert) => Ending::Violation(format!("alert {alert:?}")),
            Trouble::Nonsense(error) => Ending::Violation(format!(
                "TLS: {error} after {} bytes, {:?}",
                self.received_bytes, self.plan.conduct
            )),
        }
    }

    /// The server's FIN, after everything it sent was read.
    fn ending_by_fin(&self, now: Instant, permits: Permits) -> Ending {
        let conduct = self.plan.conduct;
        if self.is_owed_farewell(now, permits) {
            let violation = format!("FIN without close_notify, {conduct:?}");
            return Ending::Violation(violation);
        }
        match self.is_answered() || !conduct.is_proper() {
            true => Ending::Complete,
            false => Ending::Closed,
        }
    }

    /// Whether the server should have said a farewell before its FIN (RFC 8446 s6.1).
    fn is_owed_farewell(&self, now: Instant, permits: Permits) -> bool {
        let Some(secure) = self.secure.as_ref().filter(|secure| secure.is_ready()) else {
            return false;
        };
        // Our Finished may not have reached it: for it there is no session yet.
        let gives_up = permits.lateness || permits.closes_at.is_some_and(|at| at <= now);
        let is_shaking = !self.has_heard_text && gives_up
            || matches!(self.plan.conduct, Conduct::StallHandshake { .. });
        !secure.has_heard_farewell() && self.spoilt == Spoilt::No && !is_shaking
    }

    /// What the bytes read so far mean for the rest of the connection.
    fn ending_by_progress(&mut self, now: Instant) -> Option<Ending> {
        let read = self.received_bytes;
        if let Some(pause) = self.plan.pause.filter(|pause| read >= pause.after_bytes) {
            self.plan.pause = None;
            self.next_read = now + pause.lasts;
        }
        match self.plan.conduct {
            Conduct::Reset(misstep) | Conduct::Vanish(misstep) if read >= misstep.after_bytes => {
                return self.misstep();
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
        // Having asked for a close, we wait for the server's FIN.
        let server_closes = self.reader.last_reply;
        (self.is_answered() && !server_closes).then_some(Ending::Complete)
    }

    fn misstep(&self) -> Option<Ending> {
        match self.plan.conduct {
            Conduct::Reset(_) => Some(Ending::OurDoing),
            Conduct::Vanish(_) => Some(Ending::Vanished),
            _ => None,
        }
    }

    /// Goes on under new keys if enough arrived under the old ones.
    fn refresh_keys(&mut self) {
        let Some(bytes) = self.plan.refresh_bytes else {
            return;
        };
        let is_due = self.received_bytes >= bytes * u64::from(self.refreshes + 1);
        if !is_due || self.refreshes == REFRESHES_MAX || self.has_said_farewell {
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
                // The last byte, at least, is never sent.
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
            _ => self.ask_properly(),
        }
    }

    fn ask_properly(&mut self) {
        while self.awaiting.len() < self.plan.pipeline && self.may_ask() {
            let Some(request) = self.plan.requests.get(self.asked) else {
                break;
            };
            let expected = request.expected();
            self.say(&request.head_bytes());
            if self.spoilt != Spoilt::No {
                // A record that cannot be opened asks for nothing.
                break;
            }
            self.awaiting.push_back(expected);
            self.asked += 1;
        }
    }

    /// Whether more requests make sense.
    const fn may_ask(&self) -> bool {
        !self.reader.last_reply && matches!(self.spoilt, Spoilt::No)
    }

    /// Sends `text`, sealed if TLS is spoken.
    fn say(&mut self, text: &[u8]) {
        self.has_said_text = true;
        match &mut self.secure {
            None => self.outbox.extend_from_slice(text),
            Some(secure) if !text.is_empty() => secure.write(text),
            Some(_) => {}
        }
        self.take_output();
    }

    fn say_farewell(&mut self) {
        if self.has_said_farewell || self.plan.farewell == Farewell::Fin {
            return;
        }
        if let Some(secure) = &mut self.secure {
            secure.say_farewell();
            self.has_said_farewell = true;
            if self.plan.farewell == Farewell::NotifyAndGarbage {
                self.take_output();
                self.outbox.extend_from_slice(&[0xff; GARBAGE_BYTES]);
            }
        }
    }

    /// Takes out what TLS has to send, and spoils it if that is our conduct.
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
            self.spoilt = match self.has_said_text {
                true => Spoilt::Later,
                false => Spoilt::InHandshake,
            };
        }
    }

    /// What of the outbox may be sent at all.
    fn sendable(&self) -> &[u8] {
        match self.plan.conduct {
            Conduct::StallHandshake { sent_bytes, .. } => {
                &self.outbox[..sent_bytes.min(self.outbox.len())]
            }
            _ => &self.outbox,
        }
    }

    /// Gives smoltcp as much of the outbox as it takes and the script allows.
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

    /// A reader that looks away hears nothing and has no right to complain.
    fn silence_ends_at(&self) -> Instant {
        self.heard_at.max(self.next_read).max(self.next_request) + PATIENCE
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

    /// When the script, apart from TCP, next has something to do.
    pub(super) fn next_due(&self, socket: &tcp::Socket<'_>) -> Option<Instant> {
        let wants_to_write = socket.can_send() && self.sent < self.sendable().len();
        let dribbles = matches!(self.plan.conduct, Conduct::Dribble { .. });
        let write = (wants_to_write && dribbles).then_some(self.next_byte);
        // A FIN or RST behind the bytes is seen by reading, too.
        let shaking_hands = matches!(socket.state(), State::SynSent | State::SynReceived);
        let ended = !socket.may_recv() && !shaking_hands;
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
            self.misstep_at,
            Some(self.silence_ends_at()),
        ]
        .into_iter()
        .flatten()
        .min()
    }
}
