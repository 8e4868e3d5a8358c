//! TLS: the client's records in, plans for whoever shakes hands, keys taken into use.

use std::rc::Rc;

use clock::Instant;
use http::Status;
use memory::Arena;
use record::{Alert, AlertDescription, ContentType, Event, Inbound, Sealer, TrafficKey, Version};
use tcp::StreamOffset;

use super::Conductor;
use crate::client::{Awaiting, Client};
use crate::stream_map::Sealing;
use crate::tls::{
    HANDSHAKES_MAX, HELLOS_QUEUED_BEFORE_SYNS_ARE_DROPPED, HELLOS_QUEUED_MAX, KEY_UPDATE_TEXT,
    Phase, Stage, Tls, plain_alert,
};
use crate::{Direction, TlsAnswer, TlsPlan, TlsToken, Trouble};

impl Conductor {
    /// The next thing to do for a client that speaks TLS, but for what [`Conductor::poll_hello`]
    /// has: a client that left, a record behind our answer to a hello, a key. None of them is
    /// dear, and most complete what was paid for already, so they come first.
    pub fn poll_tls(&mut self) -> Option<TlsPlan> {
        if let Some(token) = self.forgotten.pop() {
            return Some(TlsPlan::Forget { token });
        }
        while let Some(index) = self.tls_turns.pop() {
            let Some((token, tls)) = self.tls_of(index) else {
                continue;
            };
            // Someone else may be at that index since: a hello has its own queue.
            if matches!(tls.stage(), None | Some(Stage::Answered))
                && let Some(plan) = tls.take_plan(token)
            {
                return Some(plan);
            }
        }
        None
    }

    /// The next record of a handshake we have not said anything in: a ClientHello, or a part of
    /// one, from the client that has waited longest. To answer it is the dearest thing that a
    /// client can ask for.
    ///
    /// With `HANDSHAKES_MAX` handshakes begun, the one that began first among those that wait
    /// for their client is reset; if none does, a new one waits.
    pub fn poll_hello(&mut self) -> Option<TlsPlan> {
        while let Some(index) = self.hello_turns.pop() {
            let Some((token, tls)) = self.tls_of(index) else {
                continue;
            };
            let stage = tls.stage();
            if !matches!(stage, Some(Stage::Queued | Stage::Begun)) {
                continue;
            }
            if stage == Some(Stage::Queued) && !self.begin_handshake(token) {
                self.hello_turns.push_front(index);
                return None;
            }
            let plan = self
                .tls_of(index)
                .and_then(|(token, tls)| tls.take_plan(token));
            if plan.is_some() {
                return plan;
            }
        }
        None
    }

    fn tls_of(&mut self, index: u32) -> Option<(TlsToken, &mut Tls)> {
        let client = self.clients.entry_mut(index)?;
        let serial = client.serial;
        let tls = client.tls.as_deref_mut()?;
        Some((TlsToken { index, serial }, tls))
    }

    /// The answer to a plan of [`Conductor::poll_tls`] or [`Conductor::poll_hello`].
    pub fn handle_tls(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        token: TlsToken,
        answer: TlsAnswer,
    ) {
        let Some(client) = self.client_of(token) else {
            return;
        };
        let Some(tls) = client.tls.as_mut() else {
            return;
        };
        let asked = tls.take_answer();
        if asked.is_none() && !tls.is_shaking() {
            // The handshake was given up meanwhile.
            return;
        }
        match answer {
            TlsAnswer::Continue { flight } => {
                if !flight.is_empty() && tls.is_shaking() {
                    tls.phase = Phase::Shaking(Stage::Answered);
                }
                client.push_flight(now, &flight);
            }
            TlsAnswer::Established {
                flight,
                send,
                receive,
                is_resumed,
            } => {
                client.push_flight(now, &flight);
                self.counters.tls_handshake_count += 1;
                self.counters.tls_resumed_count += u64::from(is_resumed);
                self.leave_handshake(token.index);
                self.open_session(now, token.index, &send, &receive);
            }
            TlsAnswer::Refused { flight } => {
                client.push_flight(now, &flight);
                let peer = client.tcp.tuple().peer;
                self.troubles.note(Trouble::HandshakeRefused { peer });
                self.counters.tls_handshake_refused_count += 1;
                self.end_tls(token.index);
            }
            TlsAnswer::NextKey { key } => self.take_key(now, token, asked, &key),
            TlsAnswer::Failed => {
                self.abort(now, arena, token.index);
                return;
            }
        }
        self.take_input(now, token.index);
        self.settle(now, token.index);
    }

    fn client_of(&mut self, token: TlsToken) -> Option<&mut Client> {
        let client = self.clients.entry_mut(token.index);
        client.filter(|client| client.serial == token.serial)
    }

    fn open_session(
        &mut self,
        now: Instant,
        index: u32,
        send: &(TrafficKey, u64),
        receive: &(TrafficKey, u64),
    ) {
        let limit = self.config.key_records_max;
        let Some(client) = self.clients.entry_mut(index) else {
            return;
        };
        let Some(tls) = client.tls.as_mut() else {
            return;
        };
        client.stream.seal_from_here(Sealing {
            sealer: Rc::new(Sealer::new(&send.0)),
            next_number: send.1,
            is_text_sealed: true,
        });
        tls.open(
            Inbound::new(&receive.0, receive.1),
            limit.min(send.0.algorithm().records_max()),
        );
        client.awaiting = Awaiting::Request(now);
    }

    fn take_key(
        &mut self,
        now: Instant,
        token: TlsToken,
        asked: Option<Direction>,
        key: &TrafficKey,
    ) {
        let Some(client) = self.client_of(token) else {
            return;
        };
        match asked {
            Some(Direction::Receive) => {
                if let Some(Tls {
                    phase: Phase::Open(inbound),
                    ..
                }) = client.tls.as_deref_mut()
                {
                    inbound.rekey(key);
                }
            }
            Some(Direction::Send) if !client.has_parted() => {
                let claimed = client.tcp.claimed_once();
                let sealer = Rc::new(Sealer::new(key));
                let added = client.stream.rekey(claimed, KEY_UPDATE_TEXT, sealer);
                client.tcp.append(now, added);
                self.counters.tls_key_update_count += 1;
            }
            _ => {}
        }
        self.ask_for_keys(token.index);
    }

    /// Understands what arrived: opens the client's records, takes its requests.
    pub(super) fn take_input(&mut self, now: Instant, index: u32) {
        loop {
            self.take_requests(now, index);
            if !self.open_records(now, index) {
                break;
            }
        }
        // Requests that came before the client's end are answered first.
        if let Some(client) = self.clients.entry_mut(index)
            && client.is_half_closed
            && client.takes_requests()
            && !client.tls.as_ref().is_some_and(|tls| tls.is_busy())
        {
            client.stop_taking_requests();
        }
    }

    /// Opens the records that can be opened now; says whether one had request bytes in it. They
    /// are looked at once for all, or a head cut into records of a byte would be parsed for each.
    fn open_records(&mut self, now: Instant, index: u32) -> bool {
        let mut is_any = false;
        loop {
            let Some(client) = self.clients.entry_mut(index) else {
                return false;
            };
            let Some(tls) = client.tls.as_mut() else {
                return false;
            };
            if tls.is_waiting() || client.input.len() >= http::HEAD_BYTES_MAX {
                return is_any;
            }
            match tls.phase {
                Phase::Over => {
                    tls.sealed.discard();
                    return false;
                }
                Phase::Shaking(stage) => {
                    self.shake(now, index, stage);
                    return false;
                }
                // RFC 8446 s6.1: "Any data received after a closure alert has been received MUST be
                // ignored." It need not even look like records.
                Phase::Open(ref inbound) if inbound.is_closed() => {
                    tls.sealed.discard();
                    return is_any;
                }
                Phase::Open(_) => {}
            }
            match client.open_record() {
                Opened::Data => is_any = true,
                Opened::Nothing => {}
                Opened::Incomplete => return is_any,
                Opened::KeyUpdate => self.ask_for_keys(index),
                Opened::Renegotiation => self.refuse_renegotiation(now, index),
                Opened::Ended => {
                    self.counters.tls_peer_alert_count += 1;
                    let serial = client.serial;
                    self.condemned.push(TlsToken { index, serial });
                    self.end_tls(index);
                }
                Opened::Wrong(alert) => self.send_alert(now, index, alert),
            }
        }
    }

    /// Looks at what came of a handshake. Its records wait with their client until it is their
    /// turn: a client that leaves takes them with it.
    fn shake(&mut self, now: Instant, index: u32, stage: Stage) {
        let Some(client) = self.clients.entry_mut(index) else {
            return;
        };
        let serial = client.serial;
        let Some(tls) = client.tls.as_mut() else {
            return;
        };
        if tls.is_plain_http() {
            // After a shutdown nobody is left to be told.
            let has_parted = client.has_parted();
            self.end_tls(index);
            if !has_parted {
                self.refuse_with(now, index, Status::BadRequest);
            }
            return;
        }
        match (tls.has_record(), stage) {
            (Ok(false), _) => {}
            (Ok(true), Stage::Arriving) => self.queue_hello(TlsToken { index, serial }),
            (Err(description), Stage::Arriving) => {
                client.push_flight(now, &plain_alert(description));
                let peer = client.tcp.tuple().peer;
                self.troubles.note(Trouble::HandshakeRefused { peer });
                self.counters.tls_handshake_refused_count += 1;
                self.end_tls(index);
            }
            (_, Stage::Queued | Stage::Begun) => self.hello_turns.push(index),
            // There may be keys already: whoever has them says what is wrong.
            (_, Stage::Answered) => self.tls_turns.push(index),
        }
    }

    /// A client's first record is here; if too many wait, the client is reset.
    fn queue_hello(&mut self, token: TlsToken) {
        if self.hellos_queued >= HELLOS_QUEUED_MAX {
            self.note_overflow(token);
            self.counters.tls_hello_refused_count += 1;
            self.condemned.push(token);
            self.end_tls(token.index);
            return;
        }
        if let Some((_, tls)) = self.tls_of(token.index) {
            tls.phase = Phase::Shaking(Stage::Queued);
            self.hellos_queued += 1;
            self.hello_turns.push(token.index);
        }
    }

    /// Whether so many hellos wait that SYNs to the port of TLS are not answered.
    pub(super) const fn has_many_hellos(&self) -> bool {
        self.hellos_queued >= HELLOS_QUEUED_BEFORE_SYNS_ARE_DROPPED
    }

    /// A handshake's first record is about to be looked at: it counts among those begun. Says
    /// whether there is room for it.
    fn begin_handshake(&mut self, token: TlsToken) -> bool {
        if self.handshakes_begun >= HANDSHAKES_MAX && !self.evict_handshake() {
            return false;
        }
        if let Some((_, tls)) = self.tls_of(token.index) {
            tls.phase = Phase::Shaking(Stage::Begun);
        }
        self.hellos_queued -= 1;
        self.handshakes_begun += 1;
        if self.handshakes.len() >= 2 * HANDSHAKES_MAX {
            let clients = &self.clients;
            self.handshakes.retain(|token| {
                clients.entry(token.index).is_some_and(|client| {
                    client.serial == token.serial
                        && client.tls.as_ref().is_some_and(|tls| tls.is_shaking())
                })
            });
        }
        self.handshakes.push_back(token);
        true
    }

    /// Resets the client whose handshake began first, of those that wait for their client: not
    /// one that waits for us, or an overload of ours would end each handshake just before its
    /// end. Says whether there was one.
    fn evict_handshake(&mut self) -> bool {
        let mut place = 0;
        while let Some(token) = self.handshakes.get(place).copied() {
            let tls = self.client_of(token).and_then(|client| client.tls.as_ref());
            let (is_over, is_waiting) = match tls {
                Some(tls) => (!tls.is_shaking(), tls.waits_for_client()),
                None => (true, false),
            };
            if is_over || is_waiting {
                self.handshakes.remove(place);
            } else {
                place += 1;
            }
            if is_waiting {
                self.note_overflow(token);
                self.counters.tls_handshake_overflow_count += 1;
                self.condemned.push(token);
                self.end_tls(token.index);
                return true;
            }
        }
        false
    }

    fn note_overflow(&mut self, token: TlsToken) {
        if let Some(client) = self.client_of(token) {
            let peer = client.tcp.tuple().peer;
            self.troubles.note(Trouble::HandshakeOverflow { peer });
        }
    }

    /// A handshake is no longer under way, if it was.
    pub(super) fn leave_handshake(&mut self, index: u32) {
        let client = self.clients.entry(index);
        match client
            .and_then(|client| client.tls.as_ref())
            .and_then(|tls| tls.stage())
        {
            Some(Stage::Queued) => self.hellos_queued -= 1,
            Some(Stage::Begun | Stage::Answered) => self.handshakes_begun -= 1,
            Some(Stage::Arriving) | None => {}
        }
    }

    /// Whoever shakes hands is done with a client: told once, and as early as can be, since the
    /// client may stay for minutes.
    pub(super) fn forget_secrets(&mut self, index: u32) {
        let Some(client) = self.clients.entry(index) else {
            return;
        };
        let tls = client.tls.as_ref();
        if tls.is_some_and(|tls| !matches!(tls.phase, Phase::Over)) {
            let serial = client.serial;
            self.forgotten.push(TlsToken { index, serial });
        }
    }

    /// Nothing more is opened; the connection ends after what is queued.
    pub(super) fn end_tls(&mut self, index: u32) {
        self.leave_handshake(index);
        self.forget_secrets(index);
        let Some(client) = self.clients.entry_mut(index) else {
            return;
        };
        if let Some(tls) = client.tls.as_mut() {
            tls.end();
        }
        client.stop_taking_requests();
    }

    /// Tells the client what was wrong, as early as it still can be, and ends the connection.
    fn send_alert(&mut self, now: Instant, index: u32, alert: Alert) {
        self.counters.tls_alert_count += 1;
        let has_parted = self.clients.entry(index).is_some_and(Client::has_parted);
        self.end_tls(index);
        let Some(client) = self.clients.entry_mut(index) else {
            return;
        };
        // A look-up under way will find that nobody waits for it.
        client.lookup = None;
        client.stop_taking_requests();
        if has_parted {
            return;
        }
        let claimed = client.tcp.claimed_once();
        let cut = self.request_log.as_ref();
        let unsent = cut.map(|_| client.stream.content_behind(claimed));
        let dropped = client.stream.truncate(claimed, &mut self.released);
        if let (Some(log), Some(unsent)) = (self.request_log.as_deref_mut(), unsent) {
            client.logged.cut(&unsent);
            client.logged.end_last(client.stream.replies(), log);
        }
        client.tcp.withdraw(dropped);
        client.push_record(now, ContentType::Alert, &alert.to_bytes());
    }

    /// Tells a client of TLS 1.2 that there is no second handshake. Once, the connection goes on:
    /// RFC 5246 s7.2.2: "the original requester can decide whether to proceed".
    fn refuse_renegotiation(&mut self, now: Instant, index: u32) {
        let Some(client) = self.clients.entry_mut(index) else {
            return;
        };
        let Some(tls) = client.tls.as_mut() else {
            return;
        };
        let alert = Alert {
            is_fatal: false,
            description: AlertDescription::NoRenegotiation,
        };
        if std::mem::replace(&mut tls.has_refused_renegotiation, true) {
            self.send_alert(now, index, alert);
        } else if !tls.has_said_farewell() && !client.tcp.has_sent_fin() {
            client.push_record(now, ContentType::Alert, &alert.to_bytes());
        }
    }

    /// Asks for the keys that a client needs.
    pub(super) fn ask_for_keys(&mut self, index: u32) {
        let Some(client) = self.clients.entry_mut(index) else {
            return;
        };
        let Some(tls) = client.tls.as_mut() else {
            return;
        };
        // A KeyUpdate that waits to be sent is the answer to another one too (RFC 8446 s4.6.3).
        tls.wants_send_key &= !client.stream.is_rekeyed_behind(client.tcp.claimed_once());
        if tls.wants_receive_key || tls.wants_send_key {
            self.tls_turns.push(index);
        }
    }

    /// Before new bytes are claimed, from `next` on: whether our key may seal them. If not, the next
    /// one is asked for, or, in TLS 1.2, which has none, the connection ends.
    pub(super) fn is_key_good(&mut self, index: u32, next: StreamOffset) -> bool {
        let Some(client) = self.clients.entry_mut(index) else {
            return false;
        };
        let serial = client.serial;
        let Some(tls) = client.tls.as_mut().filter(|tls| tls.is_open()) else {
            return true;
        };
        let number = client.stream.record_number(next).unwrap_or(0);
        let is_fresh = tls.may_seal(number) || client.stream.is_rekeyed_behind(next);
        if is_fresh && !tls.wants_send_key {
            return true;
        }
        match tls.version() {
            Some(Version::Tls13) => {
                tls.wants_send_key = true;
                self.ask_for_keys(index);
            }
            _ => {
                let peer = client.tcp.tuple().peer;
                self.troubles.note(Trouble::KeyExhausted { peer });
                self.counters.tls_key_exhausted_count += 1;
                self.condemned.push(TlsToken { index, serial });
            }
        }
        false
    }
}

/// What a record of the client's came to, for the conductor.
enum Opened {
    /// Request bytes.
    Data,
    /// Nothing to be done.
    Nothing,
    /// There is no whole record.
    Incomplete,
    /// Keys are wanted.
    KeyUpdate,
    /// A second handshake is wanted.
    Renegotiation,
    /// The client gave up.
    Ended,
    /// The client is to be told this.
    Wrong(Alert),
}

impl Client {
    /// Opens the next record.
    fn open_record(&mut self) -> Opened {
        let Some(tls) = self.tls.as_deref_mut() else {
            return Opened::Incomplete;
        };
        let length = match record::peek_record(tls.sealed.as_slice()) {
            Ok(Some(length)) if length <= tls.sealed.len() => length,
            Ok(_) => return Opened::Incomplete,
            Err(description) => return Opened::Wrong(Alert::fatal(description)),
        };
        let record = tls.sealed.as_mut_slice().get_mut(..length);
        let (Phase::Open(inbound), Some(record)) = (&mut tls.phase, record) else {
            return Opened::Incomplete;
        };
        let opened = match inbound.open(record) {
            Ok(Event::Data([]) | Event::Nothing) => Opened::Nothing,
            Ok(Event::Data(text)) => {
                if self.is_closing {
                    Opened::Nothing
                } else {
                    self.input.extend(text);
                    Opened::Data
                }
            }
            Ok(Event::KeyUpdate { is_answer_wanted }) => {
                tls.wants_receive_key = true;
                // One answer is enough for all that came before it leaves (RFC 8446 s4.6.3).
                tls.wants_send_key |= is_answer_wanted;
                Opened::KeyUpdate
            }
            Ok(Event::CloseNotify) => {
                self.is_half_closed = true;
                Opened::Nothing
            }
            Ok(Event::Renegotiation) => Opened::Renegotiation,
            Ok(Event::Aborted(_)) => Opened::Ended,
            Err(alert) => Opened::Wrong(alert),
        };
        tls.sealed.take(length);
        opened
    }

    /// Whether the last word is said, a FIN or the `close_notify` before it: nothing may follow.
    fn has_parted(&self) -> bool {
        let is_all_claimed = self.tcp.claimed_once() == self.stream.end();
        let is_farewell_claimed =
            is_all_claimed && self.tls.as_ref().is_some_and(|tls| tls.has_said_farewell());
        is_farewell_claimed || self.tcp.has_sent_fin()
    }

    /// Queues records that were made by whoever shakes hands.
    fn push_flight(&mut self, now: Instant, flight: &[u8]) {
        if flight.is_empty() || self.tcp.has_sent_fin() {
            return;
        }
        self.stream.push_verbatim(flight);
        self.tcp.append(now, flight.len() as u64);
    }

    /// Queues a record of its own.
    pub(super) fn push_record(&mut self, now: Instant, content_type: ContentType, text: &[u8]) {
        let before = self.stream.end();
        self.stream.push_text(content_type, text);
        self.tcp.append(now, self.stream.end().since(before));
    }

    /// Everything that will ever be said was queued: over TLS that is said too (RFC 8446 s6.1),
    /// then comes the FIN.
    pub(super) fn say_farewell(&mut self, now: Instant) {
        if self.tls.as_mut().is_some_and(|tls| tls.take_farewell()) {
            self.push_record(now, ContentType::Alert, &Alert::CLOSE_NOTIFY.to_bytes());
        }
        self.tcp.finish();
    }
}
