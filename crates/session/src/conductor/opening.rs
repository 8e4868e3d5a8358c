//! A connection's beginning: from its SYN to the client that is served, and what is refused on the way.
//!
//! A SYN makes a half-open connection, or, while their table is full, a SYN cookie. The ACK that completes
//! either makes a client, for which an idle client may have to leave ([`Connections::evictable`]).

use core::net::SocketAddr;

use clock::Instant;
use memory::Arena;
use tcp::listener::reset_for;
use tcp::{FourTuple, HalfOpen, HalfOpenVerdict};
use wire::SeqNumber;

#[cfg(doc)]
use super::connections::Connections;
use super::connections::{Evictable, HalfOpenEntry};
use super::{Conductor, Received};
use crate::client::Client;
use crate::tls::Tls;
use crate::{TraceEnd, Warning};

/// What is sealed in one piece, bytes: where no slot is kept, sending a part of a record costs reading and sealing all of
/// it.
#[expect(clippy::cast_possible_truncation, reason = "a record has 16 KiB")]
pub(super) const SEALED_UNIT_BYTES: u32 = record::RECORD_BYTES_MAX as u32;

impl Conductor {
    /// LISTEN, or CLOSED (RFC 9293 s3.10.7.1-2). `iss_min` is the least initial sequence number
    /// for a four-tuple that was in TIME-WAIT.
    pub(super) fn handle_syn(
        &mut self,
        now: Instant,
        tuple: &FourTuple,
        received: &Received<'_>,
        iss_min: Option<SeqNumber>,
    ) {
        let Received { path, segment, .. } = received;
        let (config, connections) = (&self.config, &self.connections);
        let port = segment.destination_port;
        if self.crossing.has_successor {
            self.leave_to_successor(received);
            return;
        }
        if !self.listening.accepts(config, port) {
            self.refuse(now, received);
            return;
        }
        if self.is_crowded(&tuple.peer) {
            self.refuse_crowded(now, received);
            return;
        }
        if connections.clients.is_full() && connections.evictable(now, &tuple.peer).is_none() {
            // A reset lets the client try another server at once; a dropped SYN would not.
            self.refuse_overflow(now, received);
            return;
        }
        let counters = &mut self.telemetry.counters;
        if Some(port) == config.https_port && self.handshakes.has_many_hellos() {
            // The client retransmits its SYN after a second, when the queue may be shorter.
            counters.tls_syn_dropped_count += 1;
            return;
        }
        let needs_cookie = connections.needs_cookies();
        if needs_cookie && self.listening.is_out_of_cookies() {
            counters.tcp_cookie_limited_count += 1;
            return;
        }
        let mut offer = self.listening.offer(now, config, tuple, received);
        let route = path.reply_route();
        if needs_cookie {
            counters.tcp_cookie_sent_count += 1;
            let peer = tuple.peer;
            self.telemetry.warn(Warning::HalfOpenTableFull { peer });
            let syn_ack = (self.listening).answer_by_cookie(now, tuple, segment, offer);
            self.answer_segment(&route, &syn_ack);
            return;
        }
        if let Some(least) = iss_min
            && offer.iss.distance(least) < 0
        {
            offer.iss = least;
        }
        let half_open = HalfOpen::new(now, *tuple, segment, offer);
        counters.tcp_open_count += 1;
        self.connections
            .insert_half_open(HalfOpenEntry { half_open, route });
        self.answer_segment(&route, &half_open.syn_ack(now));
    }

    /// The connection that a segment completes, if the segment acknowledges a SYN cookie.
    pub(super) fn accept_cookie(
        &mut self,
        now: Instant,
        tuple: &FourTuple,
        received: &Received<'_>,
    ) -> Option<HalfOpenEntry> {
        let (config, counters) = (&self.config, &mut self.telemetry.counters);
        (self.listening).accept_cookie(now, config, tuple, received, counters)
    }

    /// Refuses a client for which there is no room.
    fn refuse_overflow(&mut self, now: Instant, received: &Received<'_>) {
        self.telemetry.counters.tcp_overflow_count += 1;
        let peer = SocketAddr::new(received.path.source, received.segment.source_port);
        self.telemetry.warn(Warning::ConnectionTableFull { peer });
        self.refuse(now, received);
    }

    /// Whether the peer has as many connections as it may have. Those that it forwards for others are theirs.
    fn is_crowded(&self, peer: &SocketAddr) -> bool {
        self.connections.is_crowded(peer) && !self.config.sites.awaits_preface(peer.ip())
    }

    /// Refuses a client whose source has too many connections.
    fn refuse_crowded(&mut self, now: Instant, received: &Received<'_>) {
        self.telemetry.counters.tcp_source_refused_count += 1;
        self.refuse(now, received);
    }

    /// Answers a segment of no connection by a reset, unless the segment is itself a reset, or the limit
    /// of resets is reached.
    pub(super) fn refuse(&mut self, now: Instant, received: &Received<'_>) {
        let Some(reset) = reset_for(&received.segment, received.payload.len()) else {
            return;
        };
        let counters = &mut self.telemetry.counters;
        if self.answer_limits.may_reset(now, counters) {
            self.answer_segment(&received.path.reply_route(), &reset);
        }
    }

    /// A segment whose four-tuple is half-open.
    pub(super) fn handle_half_open_segment(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        index: u32,
        received: &Received<'_>,
    ) {
        let Some(entry) = self.connections.half_open(index).copied() else {
            return;
        };
        let segment = &received.segment;
        match (entry.half_open).handle_segment(segment, received.payload.len()) {
            HalfOpenVerdict::Ignore => {}
            HalfOpenVerdict::RetransmitSynAck => self.retransmit_syn_ack(now, index, received),
            HalfOpenVerdict::Challenge => {
                let counters = &mut self.telemetry.counters;
                if self.answer_limits.may_challenge(now, counters) {
                    self.retransmit_syn_ack(now, index, received);
                }
            }
            HalfOpenVerdict::Forget => self.connections.remove_half_open(index),
            HalfOpenVerdict::Establish => {
                self.connections.remove_half_open(index);
                self.establish(now, arena, &entry, received);
            }
            HalfOpenVerdict::Reset => {
                // The client's first SYN may have been answered by a cookie, and a retransmitted
                // one by this entry.
                let tuple = entry.half_open.tuple();
                let Some(entry) = self.accept_cookie(now, &tuple, received) else {
                    // With other workers, one of them may have the client's connection, and a late
                    // duplicate of its SYN made this entry.
                    self.handle_unmatched_segment(now, received);
                    return;
                };
                self.connections.remove_half_open(index);
                self.establish(now, arena, &entry, received);
            }
        }
    }

    /// The SYN-ACK goes to the MAC address this segment came from: the next hop of the first SYN
    /// may have failed.
    fn retransmit_syn_ack(&mut self, now: Instant, index: u32, received: &Received<'_>) {
        let Some(entry) = self.connections.half_open_mut(index) else {
            return;
        };
        entry
            .half_open
            .on_syn_ack_retransmit(now, &received.segment);
        let half_open = entry.half_open;
        self.answer_segment(&received.path.reply_route(), &half_open.syn_ack(now));
    }

    /// A half-open connection's deadline has passed.
    pub(super) fn on_half_open_timeout(&mut self, now: Instant, index: u32) {
        match self.connections.on_half_open_timeout(now, index) {
            Some(HalfOpenEntry { half_open, route }) => {
                self.answer_segment(&route, &half_open.syn_ack(now));
            }
            None => self.telemetry.counters.tcp_handshake_timeout_count += 1,
        }
    }

    /// The three-way handshake is complete: `segment` belongs to the new connection.
    pub(super) fn establish(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        entry: &HalfOpenEntry,
        received: &Received<'_>,
    ) {
        let tuple = entry.half_open.tuple();
        if self.is_crowded(&tuple.peer) {
            self.refuse_crowded(now, received);
            return;
        }
        if self.connections.clients.is_full() {
            // A client whose request came in this batch is not idle.
            self.evaluate_touched(now);
            match self.connections.evictable(now, &tuple.peer) {
                Some(Evictable::Idle(index)) => self.evict(now, arena, index),
                Some(Evictable::Crowding(index)) => self.evict_crowding(now, arena, index),
                None => {
                    self.refuse_overflow(now, received);
                    return;
                }
            }
        }
        let segment = &received.segment;
        let connection = (self.listening).connect(now, &entry.half_open, segment.window);
        let uses_ecn = connection.uses_ecn();
        let serial = self.connections.next_serial();
        let limits = &self.config.read_limits;
        let mut client = Client::new(now, serial, connection, entry.route, limits);
        if Some(segment.destination_port) == self.config.https_port {
            client.tls = Some(Box::new(Tls::new()));
            client.tcp.set_burst_min(SEALED_UNIT_BYTES);
        }
        if self.config.sites.awaits_preface(tuple.peer.ip()) {
            client.await_preface();
        }
        self.telemetry.begin_trace(now, &mut client);
        let index = self.connections.insert(client);
        self.telemetry.counters.tcp_established_count += 1;
        self.telemetry.counters.tcp_ecn_count += u64::from(uses_ecn);
        self.next_hops.note_router(now, &received.path);
        self.handle_client_segment(now, arena, index, received);
    }

    /// Resets a connection of a source that has many, for a client of another.
    fn evict_crowding(&mut self, now: Instant, arena: &mut Arena, index: u32) {
        self.telemetry.counters.tcp_source_evicted_count += 1;
        self.connections.search_behind(index);
        self.abort(now, arena, index);
    }

    /// Closes an idle connection. Its entry is free at once; what is left is an entry in TIME-WAIT,
    /// which answers the client's FIN. A FIN and not a reset, because a reset may discard what the
    /// client's TCP has acknowledged and its program has not read (RFC 9112 s9.6). Over TLS a
    /// `close_notify` comes with it.
    fn evict(&mut self, now: Instant, arena: &mut Arena, index: u32) {
        let Some(client) = self.connections.clients.entry_mut(index) else {
            return;
        };
        let start = client.tcp.end();
        client.queue_close_notify_and_fin(now);
        let close_notify = client.stream.text_run(start, client.tcp.end());
        client.stream.seal_text(close_notify);
        let text = client.stream.text_bytes(close_notify);
        let (last, entry) = client.tcp.close_at_once(now);
        let text = text.to_vec();
        let route = client.route;
        self.telemetry.counters.tcp_evicted_count += 1;
        self.remove_client(now, arena, index, TraceEnd::Evicted);
        let counters = &mut self.telemetry.counters;
        (self.outgoing).answer_with_text(counters, &route, &last, &text);
        self.connections.insert_time_wait(entry);
    }
}
