//! What the TLS handshaker is asked for, and in which order: ClientHellos, the rest of handshakes, keys.
//!
//! ```text
//!  Stage::Arriving ──▶ Queued ──▶ Begun ──▶ Answered ──▶ Phase::Open
//!                      hellos     begun (the oldest that waits for its client makes room)
//! ```
//!
//! A ClientHello costs more CPU time than anything else that a client can ask for, so it has a queue of its
//! own. Refused: a ClientHello when [`HELLOS_QUEUED_MAX`] are queued, and the oldest handshake that waits for
//! its client when [`HANDSHAKES_MAX`] are begun: both are reset. The records of a handshake stay with their
//! client until they are asked for, so they are dropped with a client that leaves.

use std::collections::VecDeque;

use record::Version;
use tcp::StreamOffset;

use super::connections::Connections;
use super::telemetry::Telemetry;
use super::transmit_queues::TransmitQueues;
use crate::client::Client;
use crate::run_queue::RunQueue;
use crate::tls::{
    HANDSHAKES_MAX, HELLOS_QUEUED_BEFORE_SYNS_ARE_DROPPED, HELLOS_QUEUED_MAX, Phase, Stage, Tls,
};
use crate::{TlsPlan, TlsToken, Warning};

/// See the module.
#[derive(Debug)]
pub(super) struct Handshakes {
    /// Clients that need the handshaker, except those whose ClientHello waits.
    turns: RunQueue,
    /// Clients whose ClientHello waits for its answer.
    hellos: RunQueue,
    /// Clients whose first record waits, in [`Stage::Queued`].
    queued_count: usize,
    /// Handshakes in the order they began; some entries are of handshakes that are over.
    begun: VecDeque<TlsToken>,
    /// Handshakes under way, in [`Stage::Begun`] or [`Stage::Answered`].
    begun_count: usize,
    /// Clients whose state the handshaker can drop.
    forgotten: Vec<TlsToken>,
}

impl Handshakes {
    /// For at most so many clients.
    pub(super) fn new(connections_max: usize) -> Self {
        Self {
            turns: RunQueue::new(connections_max),
            hellos: RunQueue::new(connections_max),
            queued_count: 0,
            begun: VecDeque::new(),
            begun_count: 0,
            forgotten: Vec::new(),
        }
    }

    /// See [`super::Conductor::poll_tls`].
    pub(super) fn poll(&mut self, connections: &mut Connections) -> Option<TlsPlan> {
        if let Some(token) = self.forgotten.pop() {
            return Some(TlsPlan::Forget { token });
        }
        while let Some(index) = self.turns.pop() {
            let Some((token, tls)) = tls_of(connections, index) else {
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

    /// See [`super::Conductor::poll_hello`].
    pub(super) fn poll_hello(
        &mut self,
        connections: &mut Connections,
        outgoing: &mut TransmitQueues,
        telemetry: &mut Telemetry,
    ) -> Option<TlsPlan> {
        while let Some(index) = self.hellos.pop() {
            let Some((token, tls)) = tls_of(connections, index) else {
                continue;
            };
            let stage = tls.stage();
            if !matches!(stage, Some(Stage::Queued | Stage::Begun)) {
                continue;
            }
            if stage == Some(Stage::Queued) {
                let is_full = self.begun_count >= HANDSHAKES_MAX;
                if is_full && !self.evict(connections, outgoing, telemetry) {
                    self.hellos.push_front(index);
                    return None;
                }
                self.begin(connections, token);
            }
            let tls = tls_of(connections, index);
            let plan = tls.and_then(|(token, tls)| tls.take_plan(token));
            if plan.is_some() {
                return plan;
            }
        }
        None
    }

    /// Whether so many ClientHellos are queued that SYNs to the HTTPS port are dropped.
    pub(super) const fn has_many_hellos(&self) -> bool {
        self.queued_count >= HELLOS_QUEUED_BEFORE_SYNS_ARE_DROPPED
    }

    /// A client's first record is complete: queues it. If too many are queued, resets the client.
    pub(super) fn queue_hello(
        &mut self,
        client: &mut Client,
        index: u32,
        outgoing: &mut TransmitQueues,
        telemetry: &mut Telemetry,
    ) {
        if self.queued_count >= HELLOS_QUEUED_MAX {
            telemetry.counters.tls_hello_refused_count += 1;
            self.reset_overflow(client, index, outgoing, telemetry);
            return;
        }
        if let Some(tls) = &mut client.tls {
            tls.phase = Phase::Handshaking(Stage::Queued);
            self.queued_count += 1;
            self.hellos.push(index);
        }
    }

    /// The next record of a handshake is complete, behind the first one.
    pub(super) fn go_on(&mut self, index: u32, stage: Stage) {
        match stage {
            Stage::Arriving | Stage::Queued | Stage::Begun => self.hellos.push(index),
            // The handshaker may have keys already, so it is the one that sends the alert.
            Stage::Answered => self.turns.push(index),
        }
    }

    /// The handshaker is about to get a handshake's first record: counts the handshake among those
    /// begun.
    fn begin(&mut self, connections: &mut Connections, token: TlsToken) {
        if let Some((_, tls)) = tls_of(connections, token.index) {
            tls.phase = Phase::Handshaking(Stage::Begun);
        }
        self.queued_count -= 1;
        self.begun_count += 1;
        if self.begun.len() >= 2 * HANDSHAKES_MAX {
            let clients = &connections.clients;
            self.begun.retain(|token| {
                clients.entry(token.index).is_some_and(|client| {
                    client.serial == token.serial
                        && client.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
                })
            });
        }
        self.begun.push_back(token);
    }

    /// Resets the client with the oldest handshake among those that are waiting for their client.
    /// Handshakes that are waiting for us are not reset: otherwise an overloaded server would reset
    /// each handshake just before it completes. Returns whether there was one to reset.
    fn evict(
        &mut self,
        connections: &mut Connections,
        outgoing: &mut TransmitQueues,
        telemetry: &mut Telemetry,
    ) -> bool {
        let mut position = 0;
        while let Some(token) = self.begun.get(position).copied() {
            let mut client = connections.client_of(token);
            let tls = client.as_ref().and_then(|client| client.tls.as_ref());
            let (is_over, is_waiting) = match tls {
                Some(tls) => (!tls.is_handshaking(), tls.waits_for_client()),
                None => (true, false),
            };
            if is_over || is_waiting {
                self.begun.remove(position);
            } else {
                position += 1;
            }
            if is_waiting && let Some(client) = &mut client {
                telemetry.counters.tls_handshake_overflow_count += 1;
                self.reset_overflow(client, token.index, outgoing, telemetry);
                return true;
            }
        }
        false
    }

    /// There is no room for a client's handshake.
    fn reset_overflow(
        &mut self,
        client: &mut Client,
        index: u32,
        outgoing: &mut TransmitQueues,
        telemetry: &mut Telemetry,
    ) {
        let peer = client.tcp.tuple().peer;
        telemetry.warn(Warning::HandshakeOverflow { peer });
        outgoing.resets.push(client.token(index));
        self.end(client, index);
    }

    /// Removes a client from the counts of queued and begun handshakes, if it is in them.
    pub(super) fn leave(&mut self, client: &Client) {
        match client.tls.as_ref().and_then(|tls| tls.stage()) {
            Some(Stage::Queued) => self.queued_count -= 1,
            Some(Stage::Begun | Stage::Answered) => self.begun_count -= 1,
            Some(Stage::Arriving) | None => {}
        }
    }

    /// The client has no use for the handshaker any more, which can drop its keys and state. Told once and as
    /// early as possible, because the connection may stay open for minutes.
    pub(super) fn forget(&mut self, client: &Client, index: u32) {
        self.leave(client);
        let tls = client.tls.as_ref();
        if tls.is_some_and(|tls| !matches!(tls.phase, Phase::Over)) {
            self.forgotten.push(client.token(index));
        }
    }

    /// Opens no further record and ends the connection after what is queued.
    pub(super) fn end(&mut self, client: &mut Client, index: u32) {
        self.forget(client, index);
        if let Some(tls) = client.tls.as_mut() {
            tls.end();
        }
        client.stop_taking_requests();
    }

    /// Asks for the keys that a client needs.
    pub(super) fn ask_for_keys(&mut self, client: &mut Client, index: u32) {
        let Some(tls) = client.tls.as_mut() else {
            return;
        };
        // A KeyUpdate that waits to be sent is the answer to another one too (RFC 8446 s4.6.3).
        tls.wants_send_key &= !client.stream.is_rekeyed_behind(client.tcp.claimed_once());
        if tls.wants_receive_key || tls.wants_send_key {
            self.turns.push(index);
        }
    }

    /// Called before new bytes are claimed from `next` on: whether our key may seal them. If not, a
    /// TLS 1.3 connection asks for its next key; a TLS 1.2 connection has none and is reset.
    #[inline]
    pub(super) fn is_key_good(
        &mut self,
        client: &mut Client,
        index: u32,
        next: StreamOffset,
        outgoing: &mut TransmitQueues,
        telemetry: &mut Telemetry,
    ) -> bool {
        if client.has_good_key(next) {
            return true;
        }
        self.replace_key(client, index, outgoing, telemetry);
        false
    }

    /// A client's key may seal no more.
    fn replace_key(
        &mut self,
        client: &mut Client,
        index: u32,
        outgoing: &mut TransmitQueues,
        telemetry: &mut Telemetry,
    ) {
        let Some(tls) = client.tls.as_mut() else {
            return;
        };
        if tls.version() == Some(Version::Tls13) {
            tls.wants_send_key = true;
            self.ask_for_keys(client, index);
        } else {
            let peer = client.tcp.tuple().peer;
            telemetry.warn(Warning::KeyExhausted { peer });
            telemetry.counters.tls_key_exhausted_count += 1;
            outgoing.resets.push(client.token(index));
        }
    }
}

fn tls_of(connections: &mut Connections, index: u32) -> Option<(TlsToken, &mut Tls)> {
    let client = connections.clients.entry_mut(index)?;
    let token = client.token(index);
    let tls = client.tls.as_deref_mut()?;
    Some((token, tls))
}

impl Client {
    /// Whether our key may seal what is claimed from `next` on.
    #[inline]
    fn has_good_key(&self, next: StreamOffset) -> bool {
        let Some(tls) = self.tls.as_ref().filter(|tls| tls.is_open()) else {
            return true;
        };
        let number = self.stream.record_number(next).unwrap_or(0);
        let is_fresh = tls.may_seal(number) || self.stream.is_rekeyed_behind(next);
        is_fresh && !tls.wants_send_key
    }
}
