//! A connection's life from SYN to FIN or reset: finds the table that holds a segment's connection
//! (half-open, established, TIME-WAIT), and moves the connection from one table to the next.

use core::net::SocketAddr;

use clock::Instant;
use memory::Arena;
use tcp::listener::{is_connection_request, reset_for};
use tcp::{
    CloseReason, Connection, FourTuple, HalfOpen, HalfOpenVerdict, Outcome, TableIndex,
    TimeWaitVerdict,
};
use wire::{Path, SeqNumber, TcpRepr};

use super::{Conductor, HALF_OPEN_MAX, HalfOpenEntry};
use crate::client::{Client, ClientTimeout, INPUT_BYTES_MAX};
use crate::fetch::FetchState;
use crate::stream_map::Sealing;
use crate::tls::Tls;
use crate::{TlsToken, Warning};

impl Conductor {
    /// A segment for one of our addresses.
    pub(super) fn handle_segment(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        path: &Path,
        segment: &TcpRepr,
        payload: &[u8],
    ) {
        let tuple = FourTuple {
            local: SocketAddr::new(path.destination, segment.destination_port),
            peer: SocketAddr::new(path.source, segment.source_port),
        };
        match self.table.find(&tuple) {
            Some(TableIndex::Connection(index)) => {
                self.handle_client_segment(now, arena, index, path, segment, payload);
            }
            Some(TableIndex::HalfOpen(index)) => {
                self.handle_half_open_segment(now, arena, index, path, segment, payload);
            }
            Some(TableIndex::TimeWait(index)) => {
                self.handle_time_wait_segment(now, index, &tuple, path, segment, payload);
            }
            None => self.handle_unmatched_segment(now, &tuple, path, segment, payload, None),
        }
    }

    /// LISTEN, or CLOSED (RFC 9293 s3.10.7.1-2). `iss_min` is the least initial sequence number
    /// for a four-tuple that was in TIME-WAIT.
    fn handle_unmatched_segment(
        &mut self,
        now: Instant,
        tuple: &FourTuple,
        path: &Path,
        segment: &TcpRepr,
        payload: &[u8],
        iss_min: Option<SeqNumber>,
    ) {
        let port = Some(segment.destination_port);
        let is_served = port == self.config.http_port || port == self.config.https_port;
        let is_welcome = self.is_listening && is_served;
        if !(is_welcome && is_connection_request(segment)) {
            self.refuse(path, segment, payload);
            return;
        }
        if self.clients.is_full() {
            // A reset lets the client try another server at once; a dropped SYN would not.
            self.counters.tcp_overflow_count += 1;
            let peer = tuple.peer;
            self.warnings.note(Warning::ConnectionTableFull { peer });
            self.refuse(path, segment, payload);
            return;
        }
        if port == self.config.https_port && self.has_many_hellos() {
            // The client retransmits its SYN after a second, when the queue may be shorter.
            self.counters.tls_syn_dropped_count += 1;
            return;
        }
        let segment_bytes = self.segment_bytes(path);
        let mut offer = self
            .listener
            .offer(now, tuple, segment_bytes, INPUT_BYTES_MAX);
        if let Some(least) = iss_min
            && offer.iss.distance(least) < 0
        {
            offer.iss = least;
        }
        if self.half_opens.is_full() {
            self.counters.tcp_overflow_count += 1;
            let peer = tuple.peer;
            self.warnings.note(Warning::HalfOpenTableFull { peer });
            self.evict_half_open();
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

    /// Answers a segment of no connection by a reset, unless the segment is itself a reset.
    fn refuse(&mut self, path: &Path, segment: &TcpRepr, payload: &[u8]) {
        if let Some(reset) = reset_for(segment, payload.len()) {
            self.counters.tcp_refused_segments += 1;
            self.answer_segment(&path.reply_route(), &reset);
        }
    }

    fn handle_half_open_segment(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        index: u32,
        path: &Path,
        segment: &TcpRepr,
        payload: &[u8],
    ) {
        let Some(HalfOpenEntry { half_open, route }) = self.half_opens.entry(index).copied() else {
            return;
        };
        match half_open.handle_segment(segment, payload.len()) {
            HalfOpenVerdict::Ignore => {}
            HalfOpenVerdict::RetransmitSynAck => self.retransmit_syn_ack(now, index, path, segment),
            HalfOpenVerdict::Reset => self.refuse(path, segment, payload),
            HalfOpenVerdict::Forget => self.remove_half_open(index),
            HalfOpenVerdict::Establish => {
                self.remove_half_open(index);
                let config = self.config.tcp;
                let connection = Connection::new(config, &half_open, now, segment.window);
                self.next_serial = self.next_serial.wrapping_add(1);
                let mut client = Client::new(
                    now,
                    self.next_serial,
                    connection,
                    route,
                    &self.config.read_limits,
                );
                if Some(segment.destination_port) == self.config.https_port {
                    client.tls = Some(Box::new(Tls::new()));
                } else if let Some(sealer) = &self.emulation {
                    client.stream.seal_from_here(Sealing::emulated(sealer));
                }
                let Ok(index) = self.clients.insert(client) else {
                    self.counters.tcp_overflow_count += 1;
                    let peer = half_open.tuple().peer;
                    self.warnings.note(Warning::ConnectionTableFull { peer });
                    self.refuse(path, segment, payload);
                    return;
                };
                self.counters.tcp_established_count += 1;
                self.table
                    .set(half_open.tuple(), TableIndex::Connection(index));
                self.handle_client_segment(now, arena, index, path, segment, payload);
            }
        }
    }

    /// The SYN-ACK goes to the MAC address this segment came from: the next hop of the first SYN
    /// may have failed.
    fn retransmit_syn_ack(&mut self, now: Instant, index: u32, path: &Path, segment: &TcpRepr) {
        let Some(entry) = self.half_opens.entry_mut(index) else {
            return;
        };
        entry.half_open.on_syn_ack_retransmit(now, segment);
        let half_open = entry.half_open;
        self.answer_segment(&path.reply_route(), &half_open.syn_ack(now));
    }

    /// The handshake is over; its four-tuple is free.
    pub(super) fn remove_half_open(&mut self, index: u32) {
        self.timers.clear(self.first_half_open_key() + index);
        if let Some(entry) = self.half_opens.remove(index) {
            self.table.remove(&entry.half_open.tuple());
        }
    }

    /// Makes room in the half-open table by evicting its entries in turn. During a SYN flood a
    /// client can still complete its handshake while the next [`HALF_OPEN_MAX`] SYNs arrive.
    fn evict_half_open(&mut self) {
        let index = self.next_half_open_to_evict;
        self.next_half_open_to_evict = (index + 1) % HALF_OPEN_MAX;
        self.remove_half_open(index);
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
        path: &Path,
        segment: &TcpRepr,
        payload: &[u8],
    ) {
        let Some(entry) = self.time_wait.entry(index) else {
            return;
        };
        match entry.handle_segment(now, segment, payload.len()) {
            TimeWaitVerdict::Ignore => {}
            TimeWaitVerdict::Acknowledge(ack) => self.answer_segment(&path.reply_route(), &ack),
            TimeWaitVerdict::Reopen { iss_min } => {
                self.time_wait.remove(index);
                self.table.remove(tuple);
                self.handle_unmatched_segment(now, tuple, path, segment, payload, Some(iss_min));
            }
        }
    }

    /// A segment of a connection.
    fn handle_client_segment(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        index: u32,
        path: &Path,
        segment: &TcpRepr,
        payload: &[u8],
    ) {
        let Some(client) = self.clients.entry_mut(index) else {
            return;
        };
        let progress_before = client.progress_at();
        let arrival = client.tcp.handle_segment(now, segment, payload.len());
        if let Some(reason) = arrival.drop {
            self.counters.tcp_drops[reason as usize] += 1;
        } else if client.follow_path(path, segment) {
            self.counters.tcp_next_hop_change_count += 1;
        }
        self.counters.tcp_spurious_timeout_count += u64::from(arrival.timeout_undone);
        client.read_waits = None;
        let text = payload.get(arrival.text).unwrap_or_default();
        match &mut client.tls {
            Some(tls) => tls.sealed.extend(text),
            None if client.is_closing => {}
            None => client.input.extend(text),
        }
        client.is_half_closed |= arrival.peer_finished;
        if arrival.acknowledged {
            client.on_acknowledged(now, progress_before);
            client
                .stream
                .release(client.tcp.acknowledged(), &mut self.released);
            if let Some(log) = self.request_log.as_deref_mut() {
                client.logged.end_first(client.stream.replies(), log);
            }
        }
        match arrival.outcome {
            Outcome::Open => {
                self.take_input(now, index);
                self.update_queues_and_timers(now, index);
            }
            Outcome::Closed(reason) => self.forget_client(arena, index, reason),
            Outcome::TimeWait => self.enter_time_wait(now, arena, index),
        }
    }

    /// A client's deadline passed: one of TCP's, or a timeout of ours.
    pub(super) fn on_client_timeout(&mut self, now: Instant, arena: &mut Arena, index: u32) {
        let Some(client) = self.clients.entry_mut(index) else {
            return;
        };
        if let Outcome::Closed(reason) = client.tcp.handle_timeout(now) {
            self.forget_client(arena, index, reason);
            return;
        }
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
        self.remove_client(arena, index);
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

    fn forget_client(&mut self, arena: &mut Arena, index: u32, reason: CloseReason) {
        match reason {
            CloseReason::Finished => self.counters.tcp_finished_count += 1,
            CloseReason::Reset => self.counters.tcp_reset_count += 1,
            CloseReason::TimedOut => self.counters.tcp_timeout_count += 1,
        }
        self.remove_client(arena, index);
    }

    fn enter_time_wait(&mut self, now: Instant, arena: &mut Arena, index: u32) {
        let Some(client) = self.clients.entry(index) else {
            return;
        };
        let (entry, route) = (client.tcp.time_wait(now), client.route);
        let ack = entry.acknowledgment(now);
        let tuple = entry.tuple();
        self.counters.tcp_finished_count += 1;
        self.remove_client(arena, index);
        let (time_wait_index, evicted) = self.time_wait.insert(entry);
        if let Some(evicted) = evicted {
            self.table.remove(&evicted);
        }
        self.table.set(tuple, TableIndex::TimeWait(time_wait_index));
        self.answer_segment(&route, &ack);
    }

    /// Slots the client holds go back to the arena; those with a read under way come back with
    /// their completions.
    fn remove_client(&mut self, arena: &mut Arena, index: u32) {
        self.timers.clear(index);
        self.leave_handshake(index);
        self.forget_secrets(index);
        let Some(mut client) = self.clients.remove(index) else {
            return;
        };
        self.table.remove(&client.tcp.tuple());
        self.log_departure(&mut client);
        client.stream.release_all(&mut self.released);
        for fetch in client.fetches {
            if let FetchState::Ready(Some(arrived)) = fetch.state {
                arena.release(arrived.slot.into_free());
            }
        }
    }
}
