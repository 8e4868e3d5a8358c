//! A connection's life from SYN to FIN or reset: finds the table that holds a segment's connection
//! (half-open, established, TIME-WAIT), and moves the connection from one table to the next.

use core::cmp::Reverse;
use core::net::SocketAddr;

use std::sync::Arc;

use clock::{Duration, Instant};
use memory::Arena;
use tcp::listener::{is_connection_request, reset_for};
use tcp::{
    CloseReason, Connection, FourTuple, HalfOpen, HalfOpenVerdict, Offer, Outcome, TableIndex,
    TableTag, TimeWait, TimeWaitVerdict,
};
use wire::{Ecn, SeqNumber, TcpFlags};

use super::ahead::may_wait;
use super::{Conductor, HalfOpenEntry, Received, observing};
use crate::client::{Client, ClientTimeout, INPUT_BYTES_MAX};
use crate::fetch::FetchState;
use crate::tls::Tls;
use crate::{ObjectHandle, TlsToken, TraceEnd, Warning};

/// What is sealed in one piece, bytes: sending a part of a record costs reading and sealing all of it.
#[expect(clippy::cast_possible_truncation, reason = "a record has 16 KiB")]
const SEALED_UNIT_BYTES: u32 = record::RECORD_BYTES_MAX as u32;

/// A connection that has waited for a request for less than this is not closed to make room: a
/// client opens a connection, or asks for the next segment of a video, a moment before it is used.
pub(super) const EVICTION_IDLE_MIN: Duration = Duration::from_secs(1);

/// A source with no more connections than this loses none to make room: a browser opens six, and some share
/// an address. `[guess]`
const SOURCE_CONNECTIONS_KEPT: u32 = 16;

/// Connections that are looked at to find one of a source that holds the table. If it holds half of them,
/// one search in 65,536 finds none; and a SYN to a full table costs so many look-ups, some microseconds.
const EVICTION_SAMPLE: u32 = 16;

/// A connection that may end to make room for another, by its index.
#[derive(Clone, Copy, Debug)]
enum Evictable {
    /// It waits for a request.
    Idle(u32),
    /// Its source has far more connections than the newcomer's.
    Crowding(u32),
}

/// Most SYN cookies sent for one batch of frames; further SYNs of the batch are dropped, and a client
/// repeats its SYN after a second. A cookie costs a frame, some microseconds of the kernel's; reading
/// a SYN costs a tenth of that. So a flood takes a bounded part of each round, and connections that are
/// established keep theirs (decision 17 has the measurement).
pub(super) const COOKIES_PER_BATCH_MAX: u32 = 64;

impl Conductor {
    /// A segment for one of our addresses.
    pub(super) fn handle_segment(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        received: &Received<'_>,
    ) {
        let tuple = received.tuple();
        if may_wait(received) {
            let (table, clients) = (&self.table, &self.clients);
            if let Some(next) = self.acknowledgments.push(tuple, received, table, clients) {
                self.apply(now, arena, &next.tuple, next.tag, &next.received());
            }
        } else {
            self.apply_acknowledgments(now, arena);
            let tag = self.table.tag(&tuple);
            self.apply(now, arena, &tuple, tag, received);
        }
    }

    /// Applies the segments that wait.
    pub(super) fn apply_acknowledgments(&mut self, now: Instant, arena: &mut Arena) {
        while let Some(next) = self.acknowledgments.pop() {
            self.apply(now, arena, &next.tuple, next.tag, &next.received());
        }
    }

    /// A segment's turn.
    pub(super) fn apply(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        tuple: &FourTuple,
        tag: TableTag,
        received: &Received<'_>,
    ) {
        let segment = &received.segment;
        match self.table.find_tagged(tag, tuple) {
            Some(TableIndex::Connection(index)) => {
                self.handle_client_segment(now, arena, index, received);
            }
            Some(TableIndex::HalfOpen(index)) => {
                self.handle_half_open_segment(now, arena, index, received);
            }
            Some(TableIndex::TimeWait(index)) => {
                self.handle_time_wait_segment(now, index, tuple, received);
            }
            None if self.is_denied(&received.path) => {}
            None if is_connection_request(segment) => {
                self.handle_syn(now, tuple, received, None);
            }
            None => match self.accept_cookie(now, tuple, received) {
                Some(entry) => self.establish(now, arena, &entry, received),
                None => self.handle_unmatched_segment(now, received),
            },
        }
    }

    /// Whether new connections to a port are accepted.
    fn is_open(&self, port: u16) -> bool {
        let port = Some(port);
        self.is_listening && (port == self.config.http_port || port == self.config.https_port)
    }

    /// LISTEN, or CLOSED (RFC 9293 s3.10.7.1-2). `iss_min` is the least initial sequence number
    /// for a four-tuple that was in TIME-WAIT.
    fn handle_syn(
        &mut self,
        now: Instant,
        tuple: &FourTuple,
        received: &Received<'_>,
        iss_min: Option<SeqNumber>,
    ) {
        let Received { path, segment, .. } = received;
        if !self.is_open(segment.destination_port) {
            self.refuse(now, received);
            return;
        }
        if self.is_crowded(&tuple.peer) {
            self.refuse_crowded(now, received);
            return;
        }
        if self.clients.is_full() && self.evictable(now, &tuple.peer).is_none() {
            // A reset lets the client try another server at once; a dropped SYN would not.
            self.refuse_overflow(now, received);
            return;
        }
        if Some(segment.destination_port) == self.config.https_port && self.has_many_hellos() {
            // The client retransmits its SYN after a second, when the queue may be shorter.
            self.counters.tls_syn_dropped_count += 1;
            return;
        }
        let needs_cookie = self.half_opens.is_full();
        if needs_cookie && self.cookies_in_batch == COOKIES_PER_BATCH_MAX {
            self.counters.tcp_cookie_limited_count += 1;
            return;
        }
        let mut offer = self.offer(now, tuple, received);
        if needs_cookie {
            self.cookies_in_batch += 1;
            self.counters.tcp_cookie_sent_count += 1;
            let peer = tuple.peer;
            self.warnings.note(Warning::HalfOpenTableFull { peer });
            let syn_ack = self.cookies.answer(now, tuple, segment, offer);
            self.answer_segment(&path.reply_route(), &syn_ack);
            return;
        }
        if let Some(least) = iss_min
            && offer.iss.distance(least) < 0
        {
            offer.iss = least;
        }
        let half_open = HalfOpen::new(now, *tuple, segment, offer);
        let route = path.reply_route();
        let index = self.half_opens.insert(HalfOpenEntry { half_open, route });
        let index = index.expect("invariant: room was made");
        self.counters.tcp_open_count += 1;
        self.table.set(*tuple, TableIndex::HalfOpen(index));
        self.timers
            .set(self.first_half_open_key() + index, half_open.deadline());
        self.answer_segment(&route, &half_open.syn_ack(now));
    }

    fn offer(&self, now: Instant, tuple: &FourTuple, received: &Received<'_>) -> Offer {
        let segment_bytes = self.segment_bytes(&received.path);
        let tcp = &self.config.tcp;
        Offer {
            accepts_ecn: tcp.accepts_ecn
                && tcp.congestion.answers_marks()
                && received.ecn == Ecn::NotEct,
            ..self
                .listener
                .offer(now, tuple, segment_bytes, INPUT_BYTES_MAX)
        }
    }

    /// The connection that a segment completes, if the segment acknowledges a SYN cookie. It is
    /// answered to the MAC address it came from.
    fn accept_cookie(
        &mut self,
        now: Instant,
        tuple: &FourTuple,
        received: &Received<'_>,
    ) -> Option<HalfOpenEntry> {
        let Received { path, segment, .. } = received;
        if !self.is_open(segment.destination_port) || !self.cookies.is_expecting(now) {
            return None;
        }
        let offer = self.offer(now, tuple, received);
        let Some(half_open) = self.cookies.accept(now, tuple, segment, offer) else {
            self.counters.tcp_cookie_refused_count += 1;
            return None;
        };
        self.counters.tcp_cookie_accepted_count += 1;
        let route = path.reply_route();
        Some(HalfOpenEntry { half_open, route })
    }

    /// Refuses a client for which there is no room.
    fn refuse_overflow(&mut self, now: Instant, received: &Received<'_>) {
        self.counters.tcp_overflow_count += 1;
        let peer = SocketAddr::new(received.path.source, received.segment.source_port);
        self.warnings.note(Warning::ConnectionTableFull { peer });
        self.refuse(now, received);
    }

    /// Whether the peer's source has as many connections as it may have.
    fn is_crowded(&self, peer: &SocketAddr) -> bool {
        !self.sources.has_room(peer)
    }

    /// Refuses a client whose source has too many connections.
    fn refuse_crowded(&mut self, now: Instant, received: &Received<'_>) {
        self.counters.tcp_source_refused_count += 1;
        self.refuse(now, received);
    }

    /// Answers a segment of no connection by a reset, unless the segment is itself a reset, or the limit
    /// of resets is reached.
    pub(super) fn refuse(&mut self, now: Instant, received: &Received<'_>) {
        let Some(reset) = reset_for(&received.segment, received.payload.len()) else {
            return;
        };
        if self.resets.take(now) {
            self.counters.tcp_refused_segments += 1;
            self.answer_segment(&received.path.reply_route(), &reset);
        } else {
            self.counters.tcp_reset_limited_count += 1;
        }
    }

    fn handle_half_open_segment(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        index: u32,
        received: &Received<'_>,
    ) {
        let Some(entry) = self.half_opens.entry(index).copied() else {
            return;
        };
        let segment = &received.segment;
        match (entry.half_open).handle_segment(segment, received.payload.len()) {
            HalfOpenVerdict::Ignore => {}
            HalfOpenVerdict::RetransmitSynAck => self.retransmit_syn_ack(now, index, received),
            HalfOpenVerdict::Challenge if self.challenges.take(now) => {
                self.counters.tcp_challenge_count += 1;
                self.retransmit_syn_ack(now, index, received);
            }
            HalfOpenVerdict::Challenge => self.counters.tcp_challenge_limited_count += 1,
            HalfOpenVerdict::Forget => self.remove_half_open(index),
            HalfOpenVerdict::Establish => {
                self.remove_half_open(index);
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
                self.remove_half_open(index);
                self.establish(now, arena, &entry, received);
            }
        }
    }

    /// The three-way handshake is complete: `segment` belongs to the new connection.
    fn establish(
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
        if self.clients.is_full() {
            // A client whose request came in this batch is not idle.
            self.evaluate_touched(now);
            match self.evictable(now, &tuple.peer) {
                Some(Evictable::Idle(index)) => self.evict(now, arena, index),
                Some(Evictable::Crowding(index)) => self.evict_crowding(now, arena, index),
                None => {
                    self.refuse_overflow(now, received);
                    return;
                }
            }
        }
        let segment = &received.segment;
        let connection = Connection::new(
            Arc::clone(&self.tcp_config),
            &entry.half_open,
            now,
            segment.window,
        );
        let uses_ecn = connection.uses_ecn();
        self.next_serial = self.next_serial.wrapping_add(1);
        let mut client = Client::new(
            now,
            self.next_serial,
            connection,
            entry.route,
            &self.config.read_limits,
        );
        if Some(segment.destination_port) == self.config.https_port {
            client.tls = Some(Box::new(Tls::new()));
            client.tcp.set_burst_unit(SEALED_UNIT_BYTES);
        }
        let index = self.clients.insert(client).ok();
        let index = index.expect("invariant: room was made");
        self.sources.enter(&tuple.peer);
        self.counters.tcp_established_count += 1;
        self.counters.tcp_ecn_count += u64::from(uses_ecn);
        self.table.set(tuple, TableIndex::Connection(index));
        self.begin_trace(now, index);
        self.next_hops.note_router(now, &received.path);
        self.handle_client_segment(now, arena, index, received);
    }

    /// The connection that may end to make room for one of `peer`: the one that has waited longest for a
    /// request; if none waits, one of a source that has far more connections than the peer's.
    fn evictable(&self, now: Instant, peer: &SocketAddr) -> Option<Evictable> {
        let idle = self.idle.first();
        let idle = idle.filter(|(_, since)| now.since(*since) >= EVICTION_IDLE_MIN);
        idle.map(|(index, _)| Evictable::Idle(index))
            .or_else(|| self.crowding(peer).map(Evictable::Crowding))
    }

    /// Of some connections of the full table, one of the source that has the most: the one that has
    /// waited longest for its client's progress. One source that holds the table has most of them.
    fn crowding(&self, peer: &SocketAddr) -> Option<u32> {
        let most = (self.sources.count(peer) * 2).max(SOURCE_CONNECTIONS_KEPT);
        let capacity = self.first_half_open_key();
        let sample = (0..EVICTION_SAMPLE.min(capacity)).filter_map(|place| {
            let index = (self.eviction_cursor + place) % capacity;
            let client = self.clients.entry(index)?;
            let count = self.sources.count(&client.tcp.tuple().peer);
            (count > most).then_some((count, client.progress_at(), index))
        });
        let crowding = sample.max_by_key(|(count, progress_at, _)| (*count, Reverse(*progress_at)));
        crowding.map(|(_, _, index)| index)
    }

    /// Resets a connection of a source that has many, for a client of another.
    fn evict_crowding(&mut self, now: Instant, arena: &mut Arena, index: u32) {
        self.counters.tcp_source_evicted_count += 1;
        self.eviction_cursor = index + 1;
        self.abort(now, arena, index);
    }

    /// Closes an idle connection. Its entry is free at once; what is left is an entry in TIME-WAIT,
    /// which answers the client's FIN. A FIN and not a reset, because a reset may discard what the
    /// client's TCP has acknowledged and its program has not read (RFC 9112 s9.6). Over TLS a
    /// `close_notify` comes with it.
    fn evict(&mut self, now: Instant, arena: &mut Arena, index: u32) {
        let Some(client) = self.clients.entry_mut(index) else {
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
        self.counters.tcp_evicted_count += 1;
        self.end_trace(now, index, TraceEnd::Evicted);
        self.remove_client(arena, index);
        self.answer_with_text(&route, &last, &text);
        self.insert_time_wait(entry);
    }

    /// The SYN-ACK goes to the MAC address this segment came from: the next hop of the first SYN
    /// may have failed.
    fn retransmit_syn_ack(&mut self, now: Instant, index: u32, received: &Received<'_>) {
        let Some(entry) = self.half_opens.entry_mut(index) else {
            return;
        };
        entry
            .half_open
            .on_syn_ack_retransmit(now, &received.segment);
        let half_open = entry.half_open;
        self.answer_segment(&received.path.reply_route(), &half_open.syn_ack(now));
    }

    /// The handshake is over; its four-tuple is free.
    pub(super) fn remove_half_open(&mut self, index: u32) {
        self.timers.clear(self.first_half_open_key() + index);
        if let Some(entry) = self.half_opens.remove(index) {
            self.table.remove(&entry.half_open.tuple());
        }
    }

    pub(super) fn on_half_open_timeout(&mut self, now: Instant, index: u32) {
        let Some(entry) = self.half_opens.entry_mut(index) else {
            return;
        };
        if entry.half_open.handle_timeout(now) {
            let HalfOpenEntry { half_open, route } = *entry;
            self.timers
                .set(self.first_half_open_key() + index, half_open.deadline());
            self.answer_segment(&route, &half_open.syn_ack(now));
        } else {
            self.counters.tcp_handshake_timeout_count += 1;
            self.remove_half_open(index);
        }
    }

    /// A segment whose four-tuple is in TIME-WAIT.
    fn handle_time_wait_segment(
        &mut self,
        now: Instant,
        index: u32,
        tuple: &FourTuple,
        received: &Received<'_>,
    ) {
        let Some(entry) = self.time_wait.entry_mut(index) else {
            return;
        };
        let route = received.path.reply_route();
        match entry.handle_segment(now, &received.segment, received.payload.len()) {
            TimeWaitVerdict::Ignore => {}
            TimeWaitVerdict::Acknowledge(ack) => self.answer_segment(&route, &ack),
            TimeWaitVerdict::Challenge(ack) if self.challenges.take(now) => {
                self.counters.tcp_challenge_count += 1;
                self.answer_segment(&route, &ack);
            }
            TimeWaitVerdict::Challenge(_) => self.counters.tcp_challenge_limited_count += 1,
            TimeWaitVerdict::Reset => self.refuse(now, received),
            // A cookie could not begin beyond the old sequence numbers: the client's TCP sends
            // its SYN again.
            TimeWaitVerdict::Reopen { .. } if self.half_opens.is_full() => {
                self.counters.tcp_overflow_count += 1;
            }
            TimeWaitVerdict::Reopen { iss_min } => {
                self.time_wait.remove(index);
                self.table.remove(tuple);
                self.handle_syn(now, tuple, received, Some(iss_min));
            }
        }
    }

    /// A segment of a connection.
    fn handle_client_segment(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        index: u32,
        received: &Received<'_>,
    ) {
        let Some(client) = self.clients.entry_mut(index) else {
            return;
        };
        let Received {
            path,
            segment,
            ecn,
            payload,
        } = *received;
        let progress_before = client.progress_at();
        let arrival = (client.tcp).handle_segment(now, &segment, ecn, payload.len());
        let (trace, drop) = (&mut self.trace, arrival.drop);
        observing::record_arrival(trace, now, client, &segment, payload.len(), drop);
        if let Some(reason) = arrival.drop {
            self.counters.tcp_drop_count[reason as usize] += 1;
        } else {
            self.next_hops.routers.hear(now, path.source_mac);
            if client.follow_path(&path, &segment) {
                self.counters.tcp_next_hop_change_count += 1;
                self.next_hops.note_router(now, &path);
            }
        }
        self.counters.tcp_spurious_timeout_count += u64::from(arrival.timeout_undone);
        if arrival.challenge {
            if self.challenges.take(now) {
                client.tcp.send_challenge(now);
                self.counters.tcp_challenge_count += 1;
            } else {
                self.counters.tcp_challenge_limited_count += 1;
            }
        }
        self.counters.tcp_spurious_recovery_count += u64::from(arrival.loss_undone);
        self.counters.tcp_ecn_reduction_count += u64::from(arrival.reduced_by_echo);
        client.read_waits = None;
        let text = payload.get(arrival.text).unwrap_or_default();
        match &mut client.tls {
            Some(tls) => tls.sealed.extend(text),
            None if client.exchange.is_closing() => {}
            None => client.input.extend(text),
        }
        if arrival.acknowledged {
            if let Some(rtt) = client.tcp.smoothed_rtt() {
                self.shortest_rtt.note(now, rtt);
            }
            client.on_acknowledged(now, progress_before, self.config.send_timeout);
            client
                .stream
                .release(client.tcp.acknowledged(), &mut self.released);
            if let Some(log) = self.request_log.as_deref_mut() {
                client.logged.end_first(client.stream.replies(), log);
            }
        }
        match arrival.outcome {
            Outcome::Open => self.touched.push(index),
            Outcome::Closed(reason) => self.forget_client(now, arena, index, reason),
            Outcome::TimeWait => {
                // The ACK of our FIN, in CLOSING, needs no answer (RFC 9293 s3.10.7.4).
                let is_answered = !payload.is_empty() || segment.flags.contains(TcpFlags::FIN);
                self.enter_time_wait(now, arena, index, is_answered);
            }
        }
    }

    /// A client's deadline passed: one of TCP's, or a timeout of ours.
    pub(super) fn on_client_timeout(&mut self, now: Instant, arena: &mut Arena, index: u32) {
        let Some(client) = self.clients.entry_mut(index) else {
            return;
        };
        if let Outcome::Closed(reason) = client.tcp.handle_timeout(now) {
            self.forget_client(now, arena, index, reason);
            return;
        }
        self.doubt_next_hop(now, index);
        let Some(client) = self.clients.entry_mut(index) else {
            return;
        };
        match client.client_timeout(&self.config) {
            Some((deadline, ClientTimeout::Acknowledgment)) if deadline <= now => {
                self.counters.http_stall_count += 1;
                let peer = client.tcp.tuple().peer;
                self.warnings.note(Warning::SendTimedOut { peer });
                self.abort(now, arena, index);
                return;
            }
            Some((deadline, ClientTimeout::Head)) if deadline <= now => {
                self.time_out_head(now, index)
            }
            Some((deadline, ClientTimeout::Handshake)) if deadline <= now => {
                self.counters.tls_handshake_timeout_count += 1;
                let peer = client.tcp.tuple().peer;
                self.warnings.note(Warning::HandshakeTimedOut { peer });
                self.close_when_replied(now, index);
            }
            Some((deadline, ClientTimeout::Request)) if deadline <= now => {
                self.counters.http_idle_close_count += 1;
                self.close_when_replied(now, index);
            }
            _ => {}
        }
        self.update_queues_and_timers(now, index);
    }

    /// Accepts no further request and sends a FIN after the last reply. A TLS handshake under way
    /// is given up.
    pub(super) fn close_when_replied(&mut self, now: Instant, index: u32) {
        let Some(client) = self.clients.entry_mut(index) else {
            return;
        };
        if client.tls.as_ref().is_some_and(|tls| tls.is_handshaking()) {
            self.end_tls(index);
        } else {
            client.stop_taking_requests();
        }
        self.update_queues_and_timers(now, index);
    }

    /// Resets a connection and forgets it.
    pub(super) fn abort(&mut self, now: Instant, arena: &mut Arena, index: u32) {
        let Some(client) = self.clients.entry(index) else {
            return;
        };
        let (route, reset) = (client.route, client.tcp.abort(now));
        self.counters.tcp_abort_count += 1;
        self.answer_segment(&route, &reset);
        self.end_trace(now, index, TraceEnd::Aborted);
        self.remove_client(arena, index);
    }

    /// Resets clients that are being sent an object that `is_ended`, among `places_max` places of the table
    /// from place `from` on. Returns the place at which to go on; `None`: that was the last part.
    pub fn reset_users(
        &mut self,
        from: u32,
        places_max: u32,
        is_ended: &dyn Fn(ObjectHandle) -> bool,
    ) -> Option<u32> {
        let places = u32::try_from(self.config.connections_max).unwrap_or(u32::MAX);
        let end = from.saturating_add(places_max).min(places);
        for index in from..end {
            let client = self.clients.entry(index);
            if let Some(client) = client.filter(|client| client.stream.uses_any(is_ended)) {
                let serial = client.serial;
                self.pending_resets.push(TlsToken { index, serial });
            }
        }
        (end < places).then_some(end)
    }

    /// Sends pending resets as long as the outbox has room for them.
    pub(super) fn send_pending_resets(&mut self, now: Instant, arena: &mut Arena) {
        while !self.outbox.is_full()
            && let Some(TlsToken { index, serial }) = self.pending_resets.pop()
        {
            let client = self.clients.entry(index);
            if client.is_some_and(|client| client.serial == serial) {
                self.abort(now, arena, index);
            }
        }
    }

    fn forget_client(&mut self, now: Instant, arena: &mut Arena, index: u32, reason: CloseReason) {
        match reason {
            CloseReason::Finished => self.counters.tcp_finished_count += 1,
            CloseReason::Reset => self.counters.tcp_reset_count += 1,
            CloseReason::TimedOut => self.counters.tcp_timeout_count += 1,
        }
        self.end_trace(now, index, reason.into());
        self.remove_client(arena, index);
    }

    /// The connection is over, but for TIME-WAIT. `is_answered`: the segment that ended it is to be
    /// acknowledged.
    fn enter_time_wait(&mut self, now: Instant, arena: &mut Arena, index: u32, is_answered: bool) {
        let Some(client) = self.clients.entry(index) else {
            return;
        };
        let (entry, route) = (client.tcp.time_wait(now), client.route);
        let ack = entry.acknowledgment(now);
        self.counters.tcp_finished_count += 1;
        self.end_trace(now, index, TraceEnd::Finished);
        self.remove_client(arena, index);
        self.insert_time_wait(entry);
        if is_answered {
            self.answer_segment(&route, &ack);
        }
    }

    fn insert_time_wait(&mut self, entry: TimeWait) {
        let (index, evicted) = self.time_wait.insert(entry);
        if let Some(evicted) = evicted {
            self.table.remove(&evicted);
        }
        self.table.set(entry.tuple(), TableIndex::TimeWait(index));
    }

    /// Slots the client holds go back to the arena; those with a read under way come back with
    /// their completions.
    fn remove_client(&mut self, arena: &mut Arena, index: u32) {
        self.timers.clear(index);
        self.idle.remove(index);
        self.leave_handshake(index);
        self.forget_secrets(index);
        let Some(mut client) = self.clients.remove(index) else {
            return;
        };
        let tuple = client.tcp.tuple();
        self.table.remove(&tuple);
        self.sources.leave(&tuple.peer);
        self.log_departure(&mut client);
        client.stream.release_all(&mut self.released);
        for fetch in client.fetches {
            if let FetchState::Ready(Some(arrived)) = fetch.state {
                arena.release(arrived.slot.into_free());
            }
        }
    }
}
