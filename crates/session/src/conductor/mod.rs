//! One worker's whole protocol state, and the verbs that move it.
//!
//! After each batch of frames the caller calls [`Conductor::end_batch`]; with other workers
//! ([`Conductor::set_other_workers`]), it also brings the strays of [`Conductor::poll_stray`] to the
//! next one. After each round of input it
//! polls, in this order: [`Conductor::poll_tls`], [`Conductor::poll_hello`],
//! [`Conductor::poll_lookup`], [`Conductor::poll_read`], [`Conductor::transmit`],
//! [`Conductor::poll_released`], and waits no longer than [`Conductor::poll_timeout`]. `now` never
//! decreases. Every [`ReadPlan`] comes back by [`Conductor::handle_completion`] or
//! [`Conductor::return_read`], whatever became of its client.

mod ahead;
mod clients;
mod fetching;
mod frames;
mod input;
mod listener_reports;
mod logging;
mod next_hops;
mod observing;
mod replies;
mod strays;
mod tls;
mod transmit;

use core::net::IpAddr;
use std::collections::VecDeque;
use std::sync::Arc;

use clock::{Duration, Instant, earlier};
use memory::Arena;
use tcp::{
    AnswerLimit, Answers, HalfOpen, Listener, Permission, SynCookies, Table, TimeWaitTable,
    TimerQueue,
};
use wire::{Ecn, Path, Route, TcpRepr};

use crate::address::Defense;
use crate::client::{Client, Exchange};
use crate::counters::Counters;
use crate::device_reads::DeviceReads;
use crate::fetch::FetchLimits;
use crate::idle_list::IdleList;
use crate::next_hops::NextHops;
use crate::outbox::Outbox;
use crate::read_turns::ReadTurns;
use crate::reassembly::Reassembly;
use crate::run_queue::RunQueue;
use crate::shortest_rtt::ShortestRtt;
use crate::slab::Slab;
use crate::sources::Sources;
use crate::warning::PendingWarnings;
use crate::{Config, LookupPlan, ObjectHandle, RequestLog, TcpConfig, TlsToken, Warning};
use ahead::Acknowledgments;
use listener_reports::ListenerReports;
use strays::Strays;
pub use strays::{STRAYS_MAX, Stray};

#[cfg(doc)]
use crate::{ReadPlan, tls::Stage};

/// Half-open connections. More are answered by SYN cookies, so this bounds no client: it is enough
/// for 20,000 new clients a second with round trips of 200 ms to have all TCP options and
/// retransmitted SYN-ACKs. In a flood the entries are the attacker's: 4096 of them retransmit
/// some 660 SYN-ACKs a second in all.
const HALF_OPEN_MAX: u32 = 4096;
/// Four-tuples in TIME-WAIT. Clients mostly close first, so most TIME-WAIT states are theirs.
const TIME_WAIT_MAX: usize = 16_384;
/// Challenge ACKs a second on average (RFC 5961 s7), besides the limit of each connection. A client needs
/// one only if it lost its state; a blind attacker provokes one with each guess. As many as Linux had
/// until it left its limit to the connections.
const CHALLENGES_PER_SECOND: u32 = 1000;
/// Resets a second on average, for segments that belong to no connection: after a restart those of all
/// clients, else scans and forged segments, whose answers go to somebody else. A client that gets none
/// repeats its segment. FreeBSD sends 200.
const RESETS_PER_SECOND: u32 = 1000;
/// Most workers of a process, which share both.
const WORKERS_MAX: u32 = u8::MAX as u32 + 1;
const _: () = assert!(
    CHALLENGES_PER_SECOND / WORKERS_MAX > 1 && RESETS_PER_SECOND / WORKERS_MAX > 1,
    "half of a worker's share permits something"
);
/// IP and TCP headers with timestamps, at most: what a frame loses of the segmentation limit.
const PACKET_HEADER_BYTES_MAX: u64 = 40 + 32;

/// A half-open connection and the route to its peer.
#[derive(Clone, Copy, Debug)]
struct HalfOpenEntry {
    half_open: HalfOpen,
    route: Route,
}

/// A segment as it arrived.
#[derive(Clone, Copy, Debug)]
struct Received<'a> {
    path: Path,
    segment: TcpRepr,
    /// Of its IP header.
    ecn: Ecn,
    payload: &'a [u8],
}

/// See the module.
#[derive(Debug)]
pub struct Conductor {
    config: Config,
    /// [`Config::tcp`], shared by all connections.
    tcp_config: Arc<TcpConfig>,
    /// The wall clock, Unix seconds: for `Date`, and for nothing else here.
    unix_seconds: u64,
    listener: Listener,
    /// Answers SYNs while the half-open table is full.
    cookies: SynCookies,
    /// Sent for this batch of frames; at most [`clients::COOKIES_PER_BATCH_MAX`].
    cookies_in_batch: u32,
    /// Permits challenge ACKs, of all connections together.
    challenges: AnswerLimit,
    /// Permits resets for segments of no connection.
    resets: AnswerLimit,
    /// New connections are accepted.
    is_listening: bool,
    table: Table,
    half_opens: Slab<HalfOpenEntry>,
    clients: Slab<Client>,
    /// Clients that wait for a request.
    idle: IdleList,
    /// Connections by source.
    sources: Sources,
    /// Where the next search for a connection to evict begins.
    eviction_cursor: u32,
    time_wait: TimeWaitTable,
    /// Keys: clients by index, then half-open connections.
    timers: TimerQueue,
    /// Segments of this batch that wait for what they need.
    acknowledgments: Acknowledgments,
    /// Clients that got a segment in this batch of frames.
    touched: RunQueue,
    /// Clients with a demand.
    readers: ReadTurns,
    /// Reads under way, and clients with a demand whose device has no room for more.
    device_reads: DeviceReads,
    /// Clients with something to send.
    writers: RunQueue,
    outbox: Outbox,
    defense: Defense,
    reassembly: Reassembly,
    next_hops: NextHops,
    listener_reports: ListenerReports,
    /// Segments for other workers.
    strays: Strays,
    /// Of the clients heard from lately.
    shortest_rtt: ShortestRtt,
    lookups: VecDeque<LookupPlan>,
    released: Vec<ObjectHandle>,
    /// Clients to be reset as soon as the outbox has room for their resets.
    pending_resets: Vec<TlsToken>,
    /// Clients that need the TLS handshaker, except those whose ClientHello waits.
    tls_turns: RunQueue,
    /// Clients whose ClientHello waits for its answer.
    hello_turns: RunQueue,
    /// Clients whose first record waits, in [`Stage::Queued`].
    hellos_queued: usize,
    /// Clients whose state the handshaker can drop.
    forgotten: Vec<TlsToken>,
    /// Handshakes in the order they began; some entries are of handshakes that are over.
    handshakes: VecDeque<TlsToken>,
    /// Handshakes under way, in [`Stage::Begun`] or [`Stage::Answered`].
    handshakes_begun: usize,
    /// Scratch buffer: a reply's text before it is copied into its stream.
    text: Vec<u8>,
    parts: Vec<http::Part>,
    /// Receives every request; `None`: requests are not logged.
    request_log: Option<Box<dyn RequestLog>>,
    /// Receives what happens to the connections that it wants; `None`: none is traced.
    trace: observing::Trace,
    /// Events that harmed clients since the last poll.
    warnings: PendingWarnings,
    next_serial: u32,
    next_fetch: u32,
    identification: u16,
    counters: Counters,
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
        let (clients, half_opens) = (config.connections_max, HALF_OPEN_MAX as usize);
        let (table_key, listener_key) = split_seed(config.seed);
        let mut conductor = Self {
            tcp_config: Arc::new(config.tcp),
            unix_seconds: config.unix_seconds_at_start,
            listener: Listener::new(listener_key),
            cookies: SynCookies::new(listener_key),
            cookies_in_batch: 0,
            challenges: AnswerLimit::new(listener_key, Answers::Challenges, CHALLENGES_PER_SECOND),
            resets: AnswerLimit::new(listener_key, Answers::Resets, RESETS_PER_SECOND),
            is_listening: true,
            table: Table::new(clients + half_opens + TIME_WAIT_MAX, table_key),
            half_opens: Slab::new(half_opens),
            clients: Slab::new(clients),
            idle: IdleList::new(clients),
            sources: Sources::new(clients, config.connections_per_source_max, table_key),
            eviction_cursor: 0,
            time_wait: TimeWaitTable::new(TIME_WAIT_MAX),
            timers: TimerQueue::new(clients + half_opens),
            acknowledgments: Acknowledgments::new(),
            touched: RunQueue::new(clients),
            readers: ReadTurns::new(clients),
            device_reads: DeviceReads::new(config.reads_max, clients),
            writers: RunQueue::new(clients),
            outbox: Outbox::new(),
            defense: Defense::new(config.addresses.len()),
            reassembly: Reassembly::new(),
            next_hops: NextHops::new(),
            listener_reports: ListenerReports::default(),
            shortest_rtt: ShortestRtt::new(),
            strays: Strays::default(),
            lookups: VecDeque::with_capacity(clients),
            released: Vec::with_capacity(clients),
            pending_resets: Vec::new(),
            tls_turns: RunQueue::new(clients),
            hello_turns: RunQueue::new(clients),
            hellos_queued: 0,
            forgotten: Vec::new(),
            handshakes: VecDeque::new(),
            handshakes_begun: 0,
            text: Vec::new(),
            parts: Vec::with_capacity(2 * http::RANGES_MAX + 2),
            request_log: None,
            trace: None,
            warnings: PendingWarnings::default(),
            next_serial: 0,
            next_fetch: 0,
            identification: 0,
            counters: Counters::default(),
            config,
        };
        if conductor.config.are_addresses_announced {
            conductor.announce();
        }
        conductor
    }

    /// The shortest smoothed round-trip time of the connections that a segment came for in the last second or
    /// two; `None` if there are none.
    pub fn shortest_rtt(&mut self, now: Instant) -> Option<Duration> {
        self.shortest_rtt.get(now)
    }

    /// When [`Conductor::handle_timeouts`] next has work.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let deadlines = [
            self.timers.next_deadline(),
            self.time_wait.next_expiry(),
            self.reassembly.next_expiry(),
            self.listener_reports.due,
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Fires every timer due at `now`.
    pub fn handle_timeouts(&mut self, now: Instant, arena: &mut Arena) {
        while let Some(key) = self.timers.pop_due(now) {
            ahead::prefetch_timers(&self.timers, &self.clients);
            match self.half_open_of(key) {
                Some(index) => self.on_half_open_timeout(now, index),
                None => self.on_client_timeout(now, arena, key),
            }
        }
        while let Some(tuple) = self.time_wait.pop_expired(now) {
            self.table.remove(&tuple);
        }
        self.reassembly.expire(now, &mut self.counters);
        self.send_due_listener_reports(now);
    }

    /// A batch of frames ends: takes the requests that came, and evaluates each client that got a
    /// segment, once, however many acknowledgments there were.
    pub fn end_batch(&mut self, now: Instant, arena: &mut Arena) {
        self.apply_acknowledgments(now, arena);
        self.cookies_in_batch = 0;
        self.evaluate_touched(now);
    }

    fn evaluate_touched(&mut self, now: Instant) {
        while let Some(index) = self.touched.pop() {
            ahead::prefetch_turns(&self.touched, &self.clients);
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

    /// Sets the wall clock, Unix seconds. It may jump forwards or backwards by any amount. It is
    /// used for the `Date` of replies and to detect modification times in the future; timers use
    /// `now` only.
    pub const fn set_unix_seconds(&mut self, unix_seconds: u64) {
        self.unix_seconds = unix_seconds;
    }

    /// An event that harmed a client: the last one of its kind, and how many of that kind there were
    /// since the last poll.
    pub fn poll_warning(&mut self) -> Option<(Warning, u64)> {
        self.warnings.poll()
    }

    /// Refuses new connections and requests; replies under way finish, then a FIN follows.
    pub fn shut_down(&mut self, now: Instant) {
        self.is_listening = false;
        let half_opens: Vec<u32> = self.half_opens.indexes().collect();
        for index in half_opens {
            self.remove_half_open(index);
        }
        let indexes: Vec<u32> = self.clients.indexes().collect();
        for index in indexes {
            self.close_when_replied(now, index);
        }
    }

    /// Resets all remaining connections, as fast as [`Conductor::transmit`] sends the resets.
    pub fn abort_all(&mut self) {
        let clients = &self.clients;
        let name = |index| {
            let serial = clients.entry(index)?.serial;
            Some(TlsToken { index, serial })
        };
        self.pending_resets = clients.indexes().filter_map(name).collect();
    }

    /// Open connections, half-open ones included, TIME-WAIT not.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.clients.len() + self.half_opens.len()
    }

    /// Most connections at once.
    #[must_use]
    pub const fn connections_max(&self) -> usize {
        self.config.connections_max
    }

    /// Counters so far.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Bytes of a TLS client's input that were moved to make room.
    #[cfg(test)]
    fn moved_input_bytes(&self, index: u32) -> usize {
        let client = self.clients.entry(index).expect("a client at that index");
        let tls = client.tls.as_ref().expect("a client of TLS");
        tls.sealed.moved_bytes + client.input.moved_bytes
    }

    fn is_ours(&self, address: IpAddr) -> bool {
        self.config.addresses.contains(&address)
    }

    /// How much one frame and one read can hold.
    fn fetch_limits(&self, arena: &Arena) -> FetchLimits {
        FetchLimits {
            frame_bytes: self.frame_bytes(),
            slot_bytes: u64::from(arena.slot_bytes()),
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

    fn half_open_of(&self, timer_key: u32) -> Option<u32> {
        timer_key.checked_sub(self.first_half_open_key())
    }

    fn first_half_open_key(&self) -> u32 {
        u32::try_from(self.config.connections_max).unwrap_or(u32::MAX)
    }

    /// Call this after any change of a client's state: puts the client on the queues its state asks
    /// for, and sets its timer.
    fn update_queues_and_timers(&mut self, now: Instant, index: u32) {
        let Some(client) = self.clients.entry_mut(index) else {
            return;
        };
        if client.exchange == Exchange::Closing && client.tcp.can_append() {
            client.queue_close_notify_and_fin(now);
        }
        client.tcp.set_receive_window(client.input_room());
        client.read_waits = client.read_waits.filter(|until| *until > now);
        let permission = client.permission(now);
        match permission {
            Permission::Now => client.tcp.on_demand(now),
            Permission::From(_) | Permission::Nothing => client.tcp.on_no_demand(),
        }
        let paced_until = match permission {
            Permission::Now if client.read_waits.is_none() => {
                self.readers.push(index);
                None
            }
            Permission::From(at) => Some(at),
            Permission::Now | Permission::Nothing => None,
        };
        if client.wants_transmit() {
            self.writers.push(index);
        }
        client.tcp.count_limit(now);
        if let Some(events) = client.tcp.take_path_events() {
            self.counters.note_path_events(events);
        }
        observing::record_state(&mut self.trace, now, client);
        self.idle.set(now, index, client.is_idle());
        match earlier(client.deadline(&self.config), paced_until) {
            Some(deadline) => self.timers.set(index, deadline.max(now)),
            None => self.timers.clear(index),
        }
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
