//! A connection's segments, deadlines and end: finds the table that has a segment's connection (half-open,
//! established, TIME-WAIT), and moves the connection from one to the next.

use clock::Instant;
use memory::Arena;
use tcp::listener::is_connection_request;
use tcp::{CloseReason, FourTuple, Outcome, TableIndex, TableTag, TimeWaitVerdict};
use wire::TcpFlags;

use super::ahead::may_wait;
use super::{Conductor, Received};
use crate::client::ClientTimeout;
use crate::fetch::FetchState;
use crate::{ObjectHandle, TlsToken, TraceEnd, TraceEvent, Warning};

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
            let connections = &self.connections;
            if let Some(next) = (self.batch.acknowledgments).push(tuple, received, connections) {
                self.apply(now, arena, &next.tuple, next.tag, &next.received());
            }
        } else {
            self.apply_acknowledgments(now, arena);
            let tag = self.connections.table.tag(&tuple);
            self.apply(now, arena, &tuple, tag, received);
        }
    }

    /// Applies the segments that wait.
    pub(super) fn apply_acknowledgments(&mut self, now: Instant, arena: &mut Arena) {
        while let Some(next) = self.batch.acknowledgments.pop() {
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
        match self.connections.table.find_tagged(tag, tuple) {
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

    /// A segment whose four-tuple is in TIME-WAIT.
    fn handle_time_wait_segment(
        &mut self,
        now: Instant,
        index: u32,
        tuple: &FourTuple,
        received: &Received<'_>,
    ) {
        let Some(entry) = self.connections.time_wait_mut(index) else {
            return;
        };
        let route = received.path.reply_route();
        match entry.handle_segment(now, &received.segment, received.payload.len()) {
            TimeWaitVerdict::Ignore => {}
            TimeWaitVerdict::Acknowledge(ack) => self.answer_segment(&route, &ack),
            TimeWaitVerdict::Challenge(ack) => {
                let counters = &mut self.telemetry.counters;
                if self.answer_limits.may_challenge(now, counters) {
                    self.answer_segment(&route, &ack);
                }
            }
            TimeWaitVerdict::Reset => self.refuse(now, received),
            // A cookie could not begin beyond the old sequence numbers: the client's TCP sends
            // its SYN again.
            TimeWaitVerdict::Reopen { .. } if self.connections.needs_cookies() => {
                self.telemetry.counters.tcp_overflow_count += 1;
            }
            TimeWaitVerdict::Reopen { iss_min } => {
                self.connections.remove_time_wait(index, tuple);
                self.handle_syn(now, tuple, received, Some(iss_min));
            }
        }
    }

    /// A segment of a connection.
    pub(super) fn handle_client_segment(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        index: u32,
        received: &Received<'_>,
    ) {
        let Some(client) = self.connections.clients.entry_mut(index) else {
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
        self.telemetry
            .record_arrival(now, client, &segment, payload.len(), arrival.drop);
        if let Some(reason) = arrival.drop {
            self.telemetry.counters.tcp_drop_count[reason as usize] += 1;
        } else {
            self.next_hops.routers.hear(now, path.source_mac);
            if client.follow_path(&path, &segment) {
                self.telemetry.counters.tcp_next_hop_change_count += 1;
                self.next_hops.note_router(now, &path);
            }
        }
        self.telemetry.counters.tcp_spurious_timeout_count += u64::from(arrival.timeout_undone);
        let counters = &mut self.telemetry.counters;
        if arrival.challenge && self.answer_limits.may_challenge(now, counters) {
            client.tcp.send_challenge(now);
        }
        counters.tcp_spurious_recovery_count += u64::from(arrival.loss_undone);
        counters.tcp_ecn_reduction_count += u64::from(arrival.reduced_by_echo);
        client.read_waits = None;
        let mut text = payload.get(arrival.text).unwrap_or_default();
        if client.is_forwarded {
            let Some(rest) = self.take_preface(index, text) else {
                self.abort(now, arena, index);
                return;
            };
            text = rest;
        }
        let Some(client) = self.connections.clients.entry_mut(index) else {
            return;
        };
        match &mut client.tls {
            Some(tls) => tls.sealed.extend(text),
            None if client.exchange.is_closing() => {}
            None => client.input.extend(text),
        }
        if arrival.acknowledged {
            if let Some(rtt) = client.tcp.smoothed_rtt() {
                let has_lost = client.tcp.has_lost();
                self.connections.shortest_rtt.note(now, rtt, has_lost);
            }
            client.on_acknowledged(now, progress_before, self.config.send_timeout);
            client
                .stream
                .release(client.tcp.acknowledged(), &mut self.released);
            self.telemetry.log_acknowledged(now, client);
        }
        match arrival.outcome {
            Outcome::Open => self.batch.touched.push(index),
            Outcome::Closed(reason) => self.forget_client(now, arena, index, reason),
            Outcome::TimeWait => {
                // The ACK of our FIN, in CLOSING, needs no answer (RFC 9293 s3.10.7.4).
                let is_answered = !payload.is_empty() || segment.flags.contains(TcpFlags::FIN);
                self.enter_time_wait(now, arena, index, is_answered);
            }
        }
    }

    /// What is the client's of the text on a connection that a proxy forwards; `None`: it is to be reset, since the
    /// proxy does not say for whom, or for one who is not served or has as many connections as he may have.
    fn take_preface<'a>(&mut self, index: u32, text: &'a [u8]) -> Option<&'a [u8]> {
        let client = self.connections.clients.entry_mut(index)?;
        let (before, counters) = (client.source_peer(), &mut self.telemetry.counters);
        let Ok(rest) = client.take_preface(text) else {
            counters.session_preface_refused_count += 1;
            return None;
        };
        let after = client.source_peer();
        if before == after {
            return Some(rest);
        }
        if self.connections.sources.recount(&before, &after) {
            counters.tcp_source_refused_count += 1;
            return None;
        }
        let (filter, sites) = (&self.config.source_filter, &self.config.sites);
        if !filter.serves(after.ip()) && !sites.trusts(after.ip()) {
            counters.session_denied_count += 1;
            return None;
        }
        Some(rest)
    }

    /// A client's deadline passed: one of TCP's, or a timeout of ours.
    pub(super) fn on_client_timeout(&mut self, now: Instant, arena: &mut Arena, index: u32) {
        let Some(client) = self.connections.clients.entry_mut(index) else {
            return;
        };
        let timeouts_before = client.tcp.timeouts_in_a_row();
        // What timed out is sent again whatever new bytes wait for.
        client.read_waits = None;
        if let Outcome::Closed(reason) = client.tcp.handle_timeout(now) {
            self.forget_client(now, arena, index, reason);
            return;
        }
        if client.tcp.timeouts_in_a_row() > timeouts_before {
            self.doubt_next_hop(now, index);
        }
        self.look_up_again(now, index);
        let Some(client) = self.connections.clients.entry_mut(index) else {
            return;
        };
        match client.client_timeout(&self.config) {
            Some((deadline, ClientTimeout::Acknowledgment)) if deadline <= now => {
                self.telemetry.counters.http_stall_count += 1;
                let peer = client.tcp.tuple().peer;
                self.telemetry.warn(Warning::SendTimedOut { peer });
                self.abort(now, arena, index);
                return;
            }
            Some((deadline, ClientTimeout::Head)) if deadline <= now => {
                self.time_out_head(now, index)
            }
            Some((deadline, ClientTimeout::Handshake)) if deadline <= now => {
                self.telemetry.counters.tls_handshake_timeout_count += 1;
                let peer = client.tcp.tuple().peer;
                self.telemetry.warn(Warning::HandshakeTimedOut { peer });
                self.close_when_replied(now, index);
            }
            Some((deadline, ClientTimeout::Request)) if deadline <= now => {
                self.telemetry.counters.http_idle_close_count += 1;
                self.close_when_replied(now, index);
            }
            _ => {}
        }
        self.update_queues_and_timers(now, index);
    }

    /// Accepts no further request and sends a FIN after the last reply. A TLS handshake under way
    /// is given up.
    pub(super) fn close_when_replied(&mut self, now: Instant, index: u32) {
        let Some(client) = self.connections.clients.entry_mut(index) else {
            return;
        };
        if client.tls.as_ref().is_some_and(|tls| tls.is_handshaking()) {
            self.handshakes.end(client, index);
        } else {
            client.stop_taking_requests();
        }
        self.update_queues_and_timers(now, index);
    }

    /// Resets a connection and forgets it.
    pub(super) fn abort(&mut self, now: Instant, arena: &mut Arena, index: u32) {
        let Some(client) = self.connections.clients.entry(index) else {
            return;
        };
        let (route, reset) = (client.route, client.tcp.abort(now));
        self.telemetry.counters.tcp_abort_count += 1;
        self.answer_segment(&route, &reset);
        self.remove_client(now, arena, index, TraceEnd::Aborted);
    }

    /// Resets clients that are being sent an object that `is_ended`, among `places_max` places of the table
    /// from place `from` on. Returns the place at which to go on; `None`: that was the last part.
    pub fn reset_users(
        &mut self,
        from: u32,
        places_max: u32,
        is_ended: &dyn Fn(ObjectHandle) -> bool,
    ) -> Option<u32> {
        let places = self.connections.places();
        let end = from.saturating_add(places_max).min(places);
        for index in from..end {
            let client = self.connections.clients.entry(index);
            if let Some(client) = client.filter(|client| client.stream.uses_any(is_ended)) {
                self.outgoing.resets.push(client.token(index));
            }
        }
        (end < places).then_some(end)
    }

    /// Sends pending resets as long as the outbox has room for them.
    pub(super) fn send_pending_resets(&mut self, now: Instant, arena: &mut Arena) {
        while !self.outgoing.outbox.is_full()
            && let Some(TlsToken { index, serial }) = self.outgoing.resets.pop()
        {
            let client = self.connections.clients.entry(index);
            if client.is_some_and(|client| client.serial == serial) {
                self.abort(now, arena, index);
            }
        }
    }

    fn forget_client(&mut self, now: Instant, arena: &mut Arena, index: u32, reason: CloseReason) {
        match reason {
            CloseReason::Finished => self.telemetry.counters.tcp_finished_count += 1,
            CloseReason::Reset => self.telemetry.counters.tcp_reset_count += 1,
            CloseReason::TimedOut => self.telemetry.counters.tcp_timeout_count += 1,
        }
        self.remove_client(now, arena, index, reason.into());
    }

    /// The connection is over, but for TIME-WAIT. `is_answered`: the segment that ended it is to be
    /// acknowledged.
    fn enter_time_wait(&mut self, now: Instant, arena: &mut Arena, index: u32, is_answered: bool) {
        let Some(client) = self.connections.clients.entry(index) else {
            return;
        };
        let (entry, route) = (client.tcp.time_wait(now), client.route);
        let ack = entry.acknowledgment(now);
        self.telemetry.counters.tcp_finished_count += 1;
        self.remove_client(now, arena, index, TraceEnd::Finished);
        self.connections.insert_time_wait(entry);
        if is_answered {
            self.answer_segment(&route, &ack);
        }
    }

    /// Slots the client holds go back to the arena; those with a read under way come back with
    /// their completions.
    pub(super) fn remove_client(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        index: u32,
        end: TraceEnd,
    ) {
        let Some(mut client) = self.connections.remove(index) else {
            return;
        };
        self.telemetry
            .record(now, &client, || TraceEvent::Ended(end));
        self.handshakes.forget(&client, index);
        self.telemetry
            .log_departure(now, &mut client, &self.config.sites);
        client.stream.release_all(&mut self.released);
        let planned = client.fetches.iter().filter_map(|fetch| fetch.plan.kept);
        (self.kept).release_all(arena, client.kept, client.serial, planned);
        for fetch in client.fetches {
            if let FetchState::Ready(Some(arrived)) = fetch.state {
                arena.release(arrived.slot.into_free());
            }
        }
    }
}
