//! TLS: takes the client's records in, makes plans for the handshaker, and installs keys.

use std::rc::Rc;

use clock::Instant;
use http::Status;
use memory::Arena;
use record::{Alert, AlertDescription, ContentType, Event, Inbound, Sealer, TrafficKey};

use super::Conductor;
use crate::client::{Client, Exchange};
use crate::stream_map::Sealing;
use crate::tls::{KEY_UPDATE_TEXT, Phase, Stage, Tls, plain_alert};
use crate::{Config, Direction, TlsAnswer, TlsPlan, TlsSession, TlsToken, Warning};

impl Conductor {
    /// The next plan for the handshaker, except those of [`Conductor::poll_hello`]: dropping the
    /// state of a client that left, a handshake record after our answer to the ClientHello, a key.
    /// These are cheap, and most of them complete handshakes whose costly part is done, so they
    /// come before ClientHellos.
    pub fn poll_tls(&mut self) -> Option<TlsPlan> {
        self.handshakes.poll(&mut self.connections)
    }

    /// The next record of a handshake that we have not answered yet: a ClientHello, or a part of
    /// one, from the client that has waited longest. The answer to a ClientHello costs more CPU
    /// time than anything else a client can ask for.
    ///
    /// If `HANDSHAKES_MAX` handshakes were begun already, the oldest one that is waiting for its
    /// client is reset to make room. If none is waiting for its client, the new one stays queued.
    pub fn poll_hello(&mut self) -> Option<TlsPlan> {
        let (outgoing, telemetry) = (&mut self.outgoing, &mut self.telemetry);
        (self.handshakes).poll_hello(&mut self.connections, outgoing, telemetry)
    }

    /// The answer to a plan of [`Conductor::poll_tls`] or [`Conductor::poll_hello`].
    pub fn handle_tls(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        token: TlsToken,
        answer: TlsAnswer,
    ) {
        let Some(client) = self.connections.client_of(token) else {
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
                self.telemetry.counters.tls_handshake_count += 1;
                self.telemetry.counters.tls_resumed_count += u64::from(is_resumed);
                if let Some(since) = client.handshaking_since() {
                    let times = &mut self.telemetry.histograms.tls_handshake_seconds;
                    times.record(now.since(since));
                }
                self.handshakes.leave(client);
                client.open_session(now, &self.config, &send, &receive, content_bytes_max);
                if let Some(tls) = &mut client.tls {
                    let version = send.0.version();
                    tls.session = Some(TlsSession {
                        version,
                        is_resumed,
                    });
                }
            }
            TlsAnswer::Refused { flight } => {
                self.refuse_handshake(now, token.index, &flight);
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

    fn take_key(
        &mut self,
        now: Instant,
        token: TlsToken,
        asked: Option<Direction>,
        key: &TrafficKey,
    ) {
        let library = self.config.aead_library;
        let Some(client) = self.connections.client_of(token) else {
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
                let claimed = client.fixed_to();
                let sealer = Rc::new(Sealer::with_library(library, key));
                let added = client.stream.rekey(claimed, KEY_UPDATE_TEXT, sealer);
                client.tcp.append(now, added);
                self.telemetry.counters.tls_key_update_count += 1;
            }
            _ => {}
        }
        self.handshakes.ask_for_keys(client, token.index);
    }

    /// The handshake failed: the connection ends after the flight.
    fn refuse_handshake(&mut self, now: Instant, index: u32, flight: &[u8]) {
        let Some(client) = self.connections.clients.entry_mut(index) else {
            return;
        };
        client.push_flight(now, flight);
        let peer = client.tcp.tuple().peer;
        self.telemetry.warn(Warning::HandshakeRefused { peer });
        self.telemetry.counters.tls_handshake_refused_count += 1;
        self.handshakes.end(client, index);
    }

    /// Opens the records that can be opened now; returns whether one of them had request bytes. The
    /// bytes of all records are parsed together, because otherwise a head cut into one-byte records
    /// would be parsed once for each byte.
    pub(super) fn open_records(&mut self, now: Instant, index: u32) -> bool {
        let mut is_any = false;
        loop {
            let Some(client) = self.connections.clients.entry_mut(index) else {
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
                Opened::KeyUpdate => self.handshakes.ask_for_keys(client, index),
                Opened::Renegotiation => self.refuse_renegotiation(now, index),
                Opened::Ended => {
                    self.telemetry.counters.tls_peer_alert_count += 1;
                    self.outgoing.resets.push(client.token(index));
                    self.handshakes.end(client, index);
                }
                Opened::Wrong(alert) => self.send_alert(now, index, alert),
            }
        }
    }

    /// Handshake bytes arrived: puts the client on the queue for its next plan.
    fn advance_handshake(&mut self, now: Instant, index: u32, stage: Stage) {
        let Some(client) = self.connections.clients.entry_mut(index) else {
            return;
        };
        let Some(tls) = client.tls.as_mut() else {
            return;
        };
        if tls.is_plain_http() {
            // After our FIN no answer can be sent.
            let is_write_closed = client.is_write_closed();
            self.handshakes.end(client, index);
            if !is_write_closed {
                self.refuse_with(now, index, Status::BadRequest);
            }
            return;
        }
        match (tls.has_record(), stage) {
            (Ok(false), _) => {}
            (Ok(true), Stage::Arriving) => {
                let (outgoing, telemetry) = (&mut self.outgoing, &mut self.telemetry);
                (self.handshakes).queue_hello(client, index, outgoing, telemetry);
            }
            (Err(description), Stage::Arriving) => {
                self.refuse_handshake(now, index, &plain_alert(description));
            }
            (_, stage) => self.handshakes.go_on(index, stage),
        }
    }

    /// Sends a fatal alert at the earliest possible place in the stream, and ends the connection.
    fn send_alert(&mut self, now: Instant, index: u32, alert: Alert) {
        self.telemetry.counters.tls_alert_count += 1;
        let Some(client) = self.connections.clients.entry_mut(index) else {
            return;
        };
        let is_write_closed = client.is_write_closed();
        self.handshakes.end(client, index);
        client.stop_replying();
        if is_write_closed {
            return;
        }
        let claimed = client.fixed_to();
        let unsent = client.stream.content_behind(claimed);
        let dropped = client.stream.truncate(claimed, &mut self.released);
        self.telemetry.log_cut(now, client, &unsent);
        client.tcp.withdraw(dropped);
        client.push_record(now, ContentType::Alert, &alert.to_bytes());
    }

    /// Answers a TLS 1.2 client's request for renegotiation by a warning, `no_renegotiation`. After
    /// the first request the connection goes on (RFC 5246 s7.2.2: "the original requester can decide
    /// whether to proceed"); a second one ends it.
    fn refuse_renegotiation(&mut self, now: Instant, index: u32) {
        let Some(client) = self.connections.clients.entry_mut(index) else {
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
    /// The handshake is complete: these are the keys, each with the number of its first record.
    fn open_session(
        &mut self,
        now: Instant,
        config: &Config,
        send: &(TrafficKey, u64),
        receive: &(TrafficKey, u64),
        content_bytes_max: u16,
    ) {
        let Some(tls) = self.tls.as_mut() else {
            return;
        };
        self.stream.seal_from_here(Sealing {
            sealer: Rc::new(Sealer::with_library(config.aead_library, &send.0)),
            next_number: send.1,
            content_bytes_max: content_bytes_max.into(),
        });
        tls.open(
            Inbound::new(&receive.0, receive.1),
            (config.key_records_max).min(send.0.algorithm().records_max()),
            content_bytes_max.into(),
        );
        if let Exchange::Request(since) = &mut self.exchange {
            *since = now;
        }
    }

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
