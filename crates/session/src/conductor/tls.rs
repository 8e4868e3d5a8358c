//! TLS: takes the client's records in, makes plans for the handshaker, and installs keys.

use std::rc::Rc;

use clock::Instant;
use http::Status;
use memory::Arena;
use record::{Alert, AlertDescription, ContentType, Event, Inbound, Sealer, TrafficKey, Version};
use tcp::StreamOffset;

use super::Conductor;
use crate::client::{Client, Exchange};
use crate::stream_map::Sealing;
use crate::tls::{
    HANDSHAKES_MAX, HELLOS_QUEUED_BEFORE_SYNS_ARE_DROPPED, HELLOS_QUEUED_MAX, KEY_UPDATE_TEXT,
    Phase, Stage, Tls, plain_alert,
};
use crate::{Direction, TlsAnswer, TlsPlan, TlsToken, Warning};

impl Conductor {
    /// The next plan for the handshaker, except those of [`Conductor::poll_hello`]: dropping the
    /// state of a client that left, a handshake record after our answer to the ClientHello, a key.
    /// These are cheap, and most of them complete handshakes whose costly part is done, so they
    /// come before ClientHellos.
    pub fn poll_tls(&mut self) -> Option<TlsPlan> {
        if let Some(token) = self.forgotten.pop() {
            return Some(TlsPlan::Forget { token });
        }
        while let Some(index) = self.tls_turns.pop() {
            let Some((token, tls)) = self.tls_of(index) else {
                continue;
            };
            // Another client may be at that index by now; a ClientHello has its own queue.
            if matches!(tls.stage(), None | Some(Stage::Answered))
                && let Some(plan) = tls.take_plan(token)
            {
                return Some(plan);
            }
        }
        None
    }

    /// The next record of a handshake that we have not answered yet: a ClientHello, or a part of
    /// one, from the client that has waited longest. The answer to a ClientHello costs more CPU
    /// time than anything else a client can ask for.
    ///
    /// If `HANDSHAKES_MAX` handshakes were begun already, the oldest one that is waiting for its
    /// client is reset to make room. If none is waiting for its client, the new one stays queued.
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
        if asked.is_none() && !tls.is_handshaking() {
            // The handshake was given up meanwhile.
            return;
        }
        match answer {
            TlsAnswer::Continue { flight } => {
                if !flight.is_empty() && tls.is_handshaking() {
                    tls.phase = Phase::Handshaking(Stage::Answered);
                }
                client.push_flight(now, &flight);
            }
            TlsAnswer::Established {
                flight,
                send,
                receive,
                is_resumed,
                content_bytes_max,
            } => {
                client.push_flight(now, &flight);
                self.counters.tls_handshake_count += 1;
                self.counters.tls_resumed_count += u64::from(is_resumed);
                self.leave_handshake(token.index);
                self.open_session(now, token.index, &send, &receive, content_bytes_max);
            }
            TlsAnswer::Refused { flight } => {
                client.push_flight(now, &flight);
                let peer = client.tcp.tuple().peer;
                self.warnings.note(Warning::HandshakeRefused { peer });
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
        self.update_queues_and_timers(now, token.index);
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
        content_bytes_max: u16,
    ) {
        let (limit, library) = (self.config.key_records_max, self.config.aead_library);
        let Some(client) = self.clients.entry_mut(index) else {
            return;
        };
        let Some(tls) = client.tls.as_mut() else {
            return;
        };
        client.stream.seal_from_here(Sealing {
            sealer: Rc::new(Sealer::with_library(library, &send.0)),
            next_number: send.1,
            content_bytes_max: content_bytes_max.into(),
        });
        tls.open(
            Inbound::new(&receive.0, receive.1),
            limit.min(send.0.algorithm().records_max()),
            content_bytes_max.into(),
        );
        if let Exchange::Request(since) = &mut client.exchange {
            *since = now;
        }
    }

    fn take_key(
        &mut self,
        now: Instant,
        token: TlsToken,
        asked: Option<Direction>,
        key: &TrafficKey,
    ) {
        let library = self.config.aead_library;
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
            Some(Direction::Send) if !client.is_write_closed() => {
                let claimed = client.tcp.claimed_once();
                let sealer = Rc::new(Sealer::with_library(library, key));
                let added = client.stream.rekey(claimed, KEY_UPDATE_TEXT, sealer);
                client.tcp.append(now, added);
                self.counters.tls_key_update_count += 1;
            }
            _ => {}
        }
        self.ask_for_keys(token.index);
    }

    /// Opens the records that can be opened now; returns whether one of them had request bytes. The
    /// bytes of all records are parsed together, because otherwise a head cut into one-byte records
    /// would be parsed once for each byte.
    pub(super) fn open_records(&mut self, now: Instant, index: u32) -> bool {
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
                Phase::Handshaking(stage) => {
                    self.advance_handshake(now, index, stage);
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
                    self.pending_resets.push(TlsToken { index, serial });
                    self.end_tls(index);
                }
                Opened::Wrong(alert) => self.send_alert(now, index, alert),
            }
        }
    }

    /// Handshake bytes arrived: puts the client on the queue for its next plan. The records stay
    /// with their client until then, so they are dropped with a client that leaves.
    fn advance_handshake(&mut self, now: Instant, index: u32, stage: Stage) {
        let Some(client) = self.clients.entry_mut(index) else {
            return;
        };
        let serial = client.serial;
        let Some(tls) = client.tls.as_mut() else {
            return;
        };
        if tls.is_plain_http() {
            // After our FIN no answer can be sent.
            let is_write_closed = client.is_write_closed();
            self.end_tls(index);
            if !is_write_closed {
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
                self.warnings.note(Warning::HandshakeRefused { peer });
                self.counters.tls_handshake_refused_count += 1;
                self.end_tls(index);
            }
            (_, Stage::Queued | Stage::Begun) => self.hello_turns.push(index),
            // The handshaker may have keys already, so it is the one that sends the alert.
            (_, Stage::Answered) => self.tls_turns.push(index),
        }
    }

    /// A client's first record is complete: queues it. If too many are queued, resets the client.
    fn queue_hello(&mut self, token: TlsToken) {
        if self.hellos_queued >= HELLOS_QUEUED_MAX {
            self.note_overflow(token);
            self.counters.tls_hello_refused_count += 1;
            self.pending_resets.push(token);
            self.end_tls(token.index);
            return;
        }
        if let Some((_, tls)) = self.tls_of(token.index) {
            tls.phase = Phase::Handshaking(Stage::Queued);
            self.hellos_queued += 1;
            self.hello_turns.push(token.index);
        }
    }

    /// Whether so many ClientHellos are queued that SYNs to the HTTPS port are dropped.
    pub(super) const fn has_many_hellos(&self) -> bool {
        self.hellos_queued >= HELLOS_QUEUED_BEFORE_SYNS_ARE_DROPPED
    }

    /// The handshaker is about to get a handshake's first record: counts the handshake among those
    /// begun. Returns whether there is room for it.
    fn begin_handshake(&mut self, token: TlsToken) -> bool {
        if self.handshakes_begun >= HANDSHAKES_MAX && !self.evict_handshake() {
            return false;
        }
        if let Some((_, tls)) = self.tls_of(token.index) {
            tls.phase = Phase::Handshaking(Stage::Begun);
        }
        self.hellos_queued -= 1;
        self.handshakes_begun += 1;
        if self.handshakes.len() >= 2 * HANDSHAKES_MAX {
            let clients = &self.clients;
            self.handshakes.retain(|token| {
                clients.entry(token.index).is_some_and(|client| {
                    client.serial == token.serial
                        && client.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
                })
            });
        }
        self.handshakes.push_back(token);
        true
    }

    /// Resets the client with the oldest handshake among those that are waiting for their client.
    /// Handshakes that are waiting for us are not reset: otherwise an overloaded server would reset
    /// each handshake just before it completes. Returns whether there was one to reset.
    fn evict_handshake(&mut self) -> bool {
        let mut position = 0;
        while let Some(token) = self.handshakes.get(position).copied() {
            let tls = self.client_of(token).and_then(|client| client.tls.as_ref());
            let (is_over, is_waiting) = match tls {
                Some(tls) => (!tls.is_handshaking(), tls.waits_for_client()),
                None => (true, false),
            };
            if is_over || is_waiting {
                self.handshakes.remove(position);
            } else {
                position += 1;
            }
            if is_waiting {
                self.note_overflow(token);
                self.counters.tls_handshake_overflow_count += 1;
                self.pending_resets.push(token);
                self.end_tls(token.index);
                return true;
            }
        }
        false
    }

    fn note_overflow(&mut self, token: TlsToken) {
        if let Some(client) = self.client_of(token) {
            let peer = client.tcp.tuple().peer;
            self.warnings.note(Warning::HandshakeOverflow { peer });
        }
    }

    /// Removes a client from the counts of queued and begun handshakes, if it is in them.
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

    /// Has the handshaker drop a client's keys and state. Requested once and as early as possible,
    /// because the connection may stay open for minutes.
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

    /// Opens no further record and ends the connection after what is queued.
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

    /// Sends a fatal alert at the earliest possible place in the stream, and ends the connection.
    fn send_alert(&mut self, now: Instant, index: u32, alert: Alert) {
        self.counters.tls_alert_count += 1;
        let is_write_closed = self
            .clients
            .entry(index)
            .is_some_and(Client::is_write_closed);
        self.end_tls(index);
        let Some(client) = self.clients.entry_mut(index) else {
            return;
        };
        client.stop_replying();
        if is_write_closed {
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

    /// Answers a TLS 1.2 client's request for renegotiation by a warning, `no_renegotiation`. After
    /// the first request the connection goes on (RFC 5246 s7.2.2: "the original requester can decide
    /// whether to proceed"); a second one ends it.
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
        } else if !tls.has_queued_close_notify() && !client.tcp.has_sent_fin() {
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

    /// Called before new bytes are claimed from `next` on: whether our key may seal them. If not, a
    /// TLS 1.3 connection asks for its next key; a TLS 1.2 connection has none and is reset.
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
                self.warnings.note(Warning::KeyExhausted { peer });
                self.counters.tls_key_exhausted_count += 1;
                self.pending_resets.push(TlsToken { index, serial });
            }
        }
        false
    }
}

/// What opening a client's record means to the conductor.
enum Opened {
    /// Request bytes.
    Data,
    /// Nothing needs to be done.
    Nothing,
    /// The next record is not complete yet.
    Incomplete,
    /// A KeyUpdate: the next keys are needed.
    KeyUpdate,
    /// The client asks for a second handshake.
    Renegotiation,
    /// The client sent a fatal alert.
    Ended,
    /// The record is not acceptable: this alert is sent.
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
                if self.exchange.is_closing() {
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
            // Nothing more comes (`Client::has_half_closed`).
            Ok(Event::CloseNotify) => Opened::Nothing,
            Ok(Event::Renegotiation) => Opened::Renegotiation,
            Ok(Event::Aborted(_)) => Opened::Ended,
            Err(alert) => Opened::Wrong(alert),
        };
        tls.sealed.take(length);
        opened
    }

    /// Whether our side is closed: the FIN was sent, or the `close_notify` before it was claimed.
    /// Nothing may be queued any more.
    fn is_write_closed(&self) -> bool {
        let is_all_claimed = self.tcp.claimed_once() == self.stream.end();
        let is_close_notify_claimed = is_all_claimed
            && self
                .tls
                .as_ref()
                .is_some_and(|tls| tls.has_queued_close_notify());
        is_close_notify_claimed || self.tcp.has_sent_fin()
    }

    /// Queues whole records made by the handshaker.
    fn push_flight(&mut self, now: Instant, flight: &[u8]) {
        if flight.is_empty() || self.tcp.has_sent_fin() {
            return;
        }
        self.stream.push_verbatim(flight);
        self.tcp.append(now, flight.len() as u64);
    }

    /// Queues a record of its own, which shares no record with a reply.
    pub(super) fn push_record(&mut self, now: Instant, content_type: ContentType, text: &[u8]) {
        let before = self.stream.end();
        self.stream.push_text(content_type, text);
        self.tcp.append(now, self.stream.end().since(before));
    }

    /// No reply will follow those queued: queues a `close_notify` over TLS (RFC 8446 s6.1), then the
    /// FIN.
    pub(super) fn queue_close_notify_and_fin(&mut self, now: Instant) {
        if self.tls.as_mut().is_some_and(|tls| tls.take_close_notify()) {
            self.push_record(now, ContentType::Alert, &Alert::CLOSE_NOTIFY.to_bytes());
        }
        self.tcp.finish();
    }
}
