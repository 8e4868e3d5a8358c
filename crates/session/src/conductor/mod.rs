//! One worker's whole protocol state, and the verbs that move it.
//!
//! After each batch of frames the caller calls [`Conductor::end_batch`]; with other workers
//! ([`Conductor::set_other_workers`]), it also brings the strays of [`Conductor::poll_stray`] to the
//! next one, and those of [`Conductor::poll_crossing`] to the other process of a take-over. After each round of input it
//! polls, in this order: [`Conductor::poll_tls`], [`Conductor::poll_hello`],
//! [`Conductor::poll_lookup`], [`Conductor::poll_read`], [`Conductor::transmit`],
//! [`Conductor::poll_released`], and waits no longer than [`Conductor::poll_timeout`]. `now` never
//! decreases. Every [`ReadPlan`] comes back by [`Conductor::handle_completion`] or
//! [`Conductor::return_read`], whatever became of its client.
//!
//! Each part of the state has one owner, with the verbs that need no other:
//!
//! | owner | what it has |
//! |---|---|
//! | `connections` | four-tuples, half-open connections, clients, TIME-WAIT, deadlines, sources |
//! | `handshakes` | what the TLS handshaker is asked for |
//! | `reads` | whose turn it is to read, and reads under way by device |
//! | `kept_slots` | slots that were sent from and are kept |
//! | `transmit_queues` | clients with something to send, answers, resets |
//! | `listening` | which SYNs are accepted, SYN cookies |
//! | `answer_limits` | how many challenge ACKs and resets a second |
//! | `telemetry` | counters, warnings, the access log, the trace |
//!
//! [`Conductor`] does what takes several of them. What follows from any change of a client's state is in
//! `update_queues_and_timers`.

mod addresses;
mod ahead;
mod answer_limits;
mod clients;
mod connections;
mod crossing;
mod fetching;
mod frames;
mod handshakes;
mod input;
mod listener_reports;
mod listening;
mod next_hops;
mod observing;
mod opening;
mod reads;
mod replies;
mod strays;
mod telemetry;
mod tls;
mod transmit;
mod transmit_queues;

use std::collections::VecDeque;
use std::sync::Arc;

use clock::{Duration, Instant, earlier};
use memory::Arena;
use sites::{LastRule, Sites};
use wire::{Ecn, Path, TcpRepr};

use crate::address::Defense;
use crate::client::Exchange;
use crate::fetch::FetchLimits;
use crate::kept_slots::KeptSlots;
use crate::next_hops::NextHops;
use crate::reassembly::Reassembly;
use crate::run_queue::RunQueue;
use crate::{Config, LookupPlan, ObjectHandle};
use ahead::Acknowledgments;
use answer_limits::AnswerLimits;
use connections::{Connections, Due};
use crossing::Crossing;
pub use crossing::{CROSSING_MAX, CrossingError, MESSAGE_BYTES_MAX, Process};
use handshakes::Handshakes;
use listener_reports::ListenerReports;
use listening::Listening;
use reads::Reads;
use replies::ReplyDraft;
use strays::Strays;
pub use strays::{STRAYS_MAX, Stray};
use telemetry::Telemetry;
use transmit_queues::TransmitQueues;

#[cfg(doc)]
use crate::ReadPlan;

/// IP and TCP headers with timestamps, at most: what a frame loses of the segmentation limit.
const PACKET_HEADER_BYTES_MAX: u64 = 40 + 32;

/// A segment as it arrived.
#[derive(Clone, Copy, Debug)]
struct Received<'a> {
    path: Path,
    segment: TcpRepr,
    /// Of its IP header.
    ecn: Ecn,
    payload: &'a [u8],
}

/// What a batch of frames leaves to be done at its end.
#[derive(Debug)]
struct Batch {
    /// Segments that wait for what they need.
    acknowledgments: Acknowledgments,
    /// Clients that got a segment.
    touched: RunQueue,
}

/// See the module. It holds the owners of its state, and does what takes several of them.
#[derive(Debug)]
pub struct Conductor {
    config: Config,
    connections: Connections,
    handshakes: Handshakes,
    reads: Reads,
    kept: KeptSlots,
    outgoing: TransmitQueues,
    listening: Listening,
    answer_limits: AnswerLimits,
    batch: Batch,
    draft: ReplyDraft,
    /// To be polled.
    lookups: VecDeque<LookupPlan>,
    /// To be polled.
    released: Vec<ObjectHandle>,
    telemetry: Telemetry,
    defense: Defense,
    reassembly: Reassembly,
    next_hops: NextHops,
    listener_reports: ListenerReports,
    /// Segments for other workers.
    strays: Strays,
    /// Segments for the other process of a take-over.
    crossing: Crossing,
}

impl Conductor {
    /// All tables are allocated here.
    ///
    /// # Panics
    /// If there may be more than 2^24 connections.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let most = 1 << fetching::CLIENT_BITS;
        assert!(config.connections_max <= most, "at most {most} connections");
        let clients = config.connections_max;
        let (table_key, listener_key) = split_seed(config.seed);
        let mut conductor = Self {
            connections: Connections::new(clients, config.connections_per_source_max, table_key),
            handshakes: Handshakes::new(clients),
            reads: Reads::new(config.reads_max, clients),
            kept: KeptSlots::new(config.kept_slots_max, config.kept_copy_bytes, config.canary),
            outgoing: TransmitQueues::new(clients),
            listening: Listening::new(&config, listener_key),
            answer_limits: AnswerLimits::new(listener_key),
            batch: Batch {
                acknowledgments: Acknowledgments::new(),
                touched: RunQueue::new(clients),
            },
            draft: ReplyDraft::new(config.unix_seconds_at_start),
            lookups: VecDeque::with_capacity(clients),
            released: Vec::with_capacity(clients),
            telemetry: Telemetry::new(&config),
            defense: Defense::new(config.addresses.len()),
            reassembly: Reassembly::new(),
            next_hops: NextHops::new(),
            listener_reports: ListenerReports::default(),
            strays: Strays::default(),
            crossing: Crossing::default(),
            config,
        };
        if conductor.config.are_addresses_announced {
            conductor.announce();
        }
        conductor
    }

    /// The shortest smoothed round-trip time of the connections that a segment came for in the last second or
    /// two; `None` if there are none. That of a connection that has lost counts as an eighth of itself.
    pub fn shortest_rtt(&mut self, now: Instant) -> Option<Duration> {
        self.connections.shortest_rtt.get(now)
    }

    /// When [`Conductor::handle_timeouts`] next has work.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let deadlines = [
            self.connections.next_deadline(),
            self.reassembly.next_expiry(),
            self.listener_reports.due,
            self.next_hops.neighbors.ask_again_at,
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Fires every timer due at `now`.
    pub fn handle_timeouts(&mut self, now: Instant, arena: &mut Arena) {
        while let Some(due) = self.connections.pop_due(now) {
            match due {
                Due::HalfOpen(index) => self.on_half_open_timeout(now, index),
                Due::Client(index) => self.on_client_timeout(now, arena, index),
            }
        }
        self.connections.expire_time_wait(now);
        self.reassembly.expire(now, &mut self.telemetry.counters);
        self.send_due_listener_reports(now);
        self.ask_again(now);
    }

    /// A batch of frames ends: takes the requests that came, and evaluates each client that got a
    /// segment, once, however many acknowledgments there were.
    pub fn end_batch(&mut self, now: Instant, arena: &mut Arena) {
        self.apply_acknowledgments(now, arena);
        self.listening.begin_batch();
        self.evaluate_touched(now);
    }

    fn evaluate_touched(&mut self, now: Instant) {
        while let Some(index) = self.batch.touched.pop() {
            ahead::prefetch_turns(&self.batch.touched, &self.connections.clients);
            self.take_input(now, index);
            self.update_queues_and_timers(now, index);
        }
    }

    /// The next path to look up.
    pub fn poll_lookup(&mut self) -> Option<LookupPlan> {
        self.lookups.pop_front()
    }

    /// An object one use of which has ended.
    pub fn poll_released(&mut self) -> Option<ObjectHandle> {
        self.released.pop()
    }

    /// Requests that are answered from now on are decided by these.
    pub fn set_sites(&mut self, sites: Arc<Sites>) {
        self.config.sites = sites;
        self.draft.last_rule = LastRule::default();
    }

    /// Sets the wall clock, Unix seconds. It may jump forwards or backwards by any amount. It is
    /// used for the `Date` of replies and to detect modification times in the future; timers use
    /// `now` only.
    pub const fn set_unix_seconds(&mut self, unix_seconds: u64) {
        self.draft.unix_seconds = unix_seconds;
    }

    /// Refuses new connections and requests; replies under way finish, then a FIN follows.
    pub fn shut_down(&mut self, now: Instant) {
        self.listening.is_open = false;
        self.connections.remove_half_opens(|_| true);
        for index in self.connections.indexes() {
            self.close_when_replied(now, index);
        }
    }

    /// After [`Conductor::shut_down`]: whether all clients that are left have everything and have acknowledged our FIN. They
    /// need not close for the server to end (FIN-WAIT-2, RFC 9293 s3.3.2).
    pub fn is_finished(&mut self) -> bool {
        self.connections.is_finished()
    }

    /// Resets all remaining connections, as fast as [`Conductor::transmit`] sends the resets. Who has everything, and our
    /// FIN, is not reset: some systems would discard what their application has not read.
    pub fn abort_all(&mut self) {
        let connections = &self.connections;
        let indexes = connections.clients.indexes();
        let is_unfinished = |index: &u32| {
            let client = connections.clients.entry(*index);
            client.is_some_and(|client| !client.is_finished())
        };
        self.outgoing.resets = indexes
            .filter(is_unfinished)
            .filter_map(|index| connections.token(index))
            .collect();
    }

    /// Open connections, half-open ones included, TIME-WAIT not.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.connections.count()
    }

    /// Most connections at once.
    #[must_use]
    pub const fn connections_max(&self) -> usize {
        self.config.connections_max
    }

    /// Bytes of a TLS client's input that were moved to make room.
    #[cfg(test)]
    fn moved_input_bytes(&self, index: u32) -> usize {
        let client = self
            .connections
            .clients
            .entry(index)
            .expect("a client at that index");
        let tls = client.tls.as_ref().expect("a client of TLS");
        tls.sealed.moved_bytes + client.input.moved_bytes
    }

    /// Whether the worker is busy from now on: reads are held back, or the link is full.
    pub const fn set_busy(&mut self, is_busy: bool) {
        self.kept.set_busy(is_busy);
    }

    /// Slots that were sent from and are kept.
    #[must_use]
    pub fn kept_slots(&self) -> usize {
        self.kept.count()
    }

    /// A round ends: gives up what was kept for its time ([`crate::KEPT_FOR_MAX`]).
    pub fn expire_kept(&mut self, now: Instant, arena: &mut Arena) {
        self.kept.expire(now, arena);
    }

    /// Since when the slot has been kept that is kept for longest, those aside from which a frame waits to be sent.
    #[must_use]
    pub fn kept_since(&self) -> Option<Instant> {
        self.kept.oldest()
    }

    /// How much one frame and one read can hold.
    fn fetch_limits(&self, arena: &Arena) -> FetchLimits {
        FetchLimits {
            frame_bytes: self.frame_bytes(),
            slot_bytes: u64::from(arena.slot_bytes()),
            ahead_bytes: 0,
            is_prompt: false,
            is_in_blocks: false,
            packet_bytes: 0,
        }
    }

    /// Payload bytes of the largest frame. For a link without segmentation we cut each fetch into
    /// packets ourselves, so only the slot bounds a fetch there.
    fn frame_bytes(&self) -> u64 {
        match u64::from(self.config.segmentation_bytes_max) {
            0 => u64::MAX,
            bytes => bytes.saturating_sub(PACKET_HEADER_BYTES_MAX).max(1),
        }
    }

    /// Call this after any change of a client's state: puts the client on the queues its state asks
    /// for, and sets its timer.
    fn update_queues_and_timers(&mut self, now: Instant, index: u32) {
        let Some(client) = self.connections.clients.entry_mut(index) else {
            return;
        };
        if client.exchange == Exchange::Closing && client.tcp.can_append() {
            client.queue_close_notify_and_fin(now);
        }
        client.tcp.set_receive_window(client.input_room());
        let paced_until = self.reads.evaluate(now, index, client);
        if client.wants_transmit() {
            self.outgoing.writers.push(index);
        }
        client.tcp.count_limit(now);
        if let Some(events) = client.tcp.take_path_events() {
            self.telemetry.counters.note_path_events(events);
        }
        self.telemetry.record_state(now, client);
        let deadline = earlier(client.deadline(&self.config), paced_until);
        let is_idle = client.is_idle();
        if is_idle && client.is_ruled {
            client.give_back();
        }
        self.connections.settle(now, index, deadline, is_idle);
    }
}

fn split_seed(seed: [u8; 32]) -> ([u8; 16], [u8; 16]) {
    let (mut first, mut second) = ([0; 16], [0; 16]);
    first.copy_from_slice(&seed[..16]);
    second.copy_from_slice(&seed[16..]);
    (first, second)
}

#[cfg(test)]
mod tests;
