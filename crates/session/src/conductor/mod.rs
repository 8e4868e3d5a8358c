//! One worker's whole protocol state, and the verbs that move it.
//!
//! After each batch of input the caller polls, in this order: [`Conductor::poll_tls`],
//! [`Conductor::poll_hello`], [`Conductor::poll_lookup`], [`Conductor::poll_read`],
//! [`Conductor::transmit`], [`Conductor::poll_released`], and waits no longer than [`Conductor::poll_timeout`]. `now` never decreases. Every [`ReadPlan`] comes back by
//! [`Conductor::handle_completion`] or [`Conductor::return_read`], whatever became of its client.

mod clients;
mod fetching;
mod frames;
mod logging;
mod requests;
mod tls;
mod transmit;

use core::net::IpAddr;
use std::collections::VecDeque;
use std::rc::Rc;

use clock::Instant;
use memory::Arena;
use record::Sealer;
use tcp::{HalfOpen, Listener, Table, TimeWaitTable, TimerQueue};
use wire::Route;

use crate::address::Defense;
use crate::client::Client;
use crate::counters::Counters;
use crate::device_reads::DeviceReads;
use crate::fetch::FetchLimits;
use crate::outbox::Outbox;
use crate::run_queue::RunQueue;
use crate::slab::Slab;
use crate::trouble::Troubles;
use crate::{Config, LookupPlan, ObjectHandle, RequestLog, TlsToken, Trouble};

#[cfg(doc)]
use crate::{ReadPlan, tls::Stage};

/// Half-open connections are few words; with this many, a flood of 40,000 SYN/s leaves each client
/// a round trip of 100 ms.
const HALF_OPEN_MAX: u32 = 4096;
/// Names in TIME-WAIT. Clients mostly close first and take the waiting upon themselves.
const TIME_WAIT_MAX: usize = 16_384;
/// IP and TCP headers with timestamps, at most: what a frame loses of the segmentation limit.
const PACKET_HEADER_BYTES_MAX: u64 = 40 + 32;

/// A half-open connection and the way back to its peer.
#[derive(Clone, Copy, Debug)]
struct Knock {
    half_open: HalfOpen,
    route: Route,
}

/// See the module.
#[derive(Debug)]
pub struct Conductor {
    config: Config,
    /// What time it is for everybody else: for `Date`, and for nothing else here.
    unix_seconds: u64,
    listener: Listener,
    /// New connections are answered.
    is_listening: bool,
    table: Table,
    knocks: Slab<Knock>,
    /// Whose turn it is when there are too many.
    next_knock_to_forget: u32,
    clients: Slab<Client>,
    time_wait: TimeWaitTable,
    /// Keys: clients by index, then half-open connections.
    timers: TimerQueue,
    /// Clients with a demand.
    readers: RunQueue,
    /// Reads under way, and clients with a demand whose device has no room for more.
    device_reads: DeviceReads,
    /// Clients with something to send.
    writers: RunQueue,
    outbox: Outbox,
    defense: Defense,
    lookups: VecDeque<LookupPlan>,
    released: Vec<ObjectHandle>,
    /// Clients to be reset as soon as there is room for their resets.
    condemned: Vec<TlsToken>,
    /// Clients that want something of whoever shakes hands, but for hellos.
    tls_turns: RunQueue,
    /// Clients whose hello is to be answered.
    hello_turns: RunQueue,
    /// Clients whose first record waits, in [`Stage::Queued`].
    hellos_queued: usize,
    /// Clients that spoke TLS and no longer do.
    forgotten: Vec<TlsToken>,
    /// Handshakes in the order they began, and some that are over.
    handshakes: VecDeque<TlsToken>,
    /// Handshakes under way, in [`Stage::Begun`] or [`Stage::Answered`].
    handshakes_begun: usize,
    /// What objects are sealed with on the plain port, in the emulation.
    emulation: Option<Rc<Sealer>>,
    /// A reply's text, on its way into its stream.
    text: Vec<u8>,
    parts: Vec<http::Part>,
    /// Told of every request; `None`: nobody is.
    request_log: Option<Box<dyn RequestLog>>,
    /// What hurt clients since it was last polled.
    troubles: Troubles,
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
        let (clients, knocks) = (config.connections_max, HALF_OPEN_MAX as usize);
        let (table_key, listener_key) = split_seed(config.seed);
        let mut conductor = Self {
            unix_seconds: config.unix_seconds_at_start,
            listener: Listener::new(listener_key),
            is_listening: true,
            table: Table::new(clients + knocks + TIME_WAIT_MAX, table_key),
            knocks: Slab::new(knocks),
            next_knock_to_forget: 0,
            clients: Slab::new(clients),
            time_wait: TimeWaitTable::new(TIME_WAIT_MAX),
            timers: TimerQueue::new(clients + knocks),
            readers: RunQueue::new(clients),
            device_reads: DeviceReads::new(config.reads_max, clients),
            writers: RunQueue::new(clients),
            outbox: Outbox::new(),
            defense: Defense::new(config.addresses.len()),
            lookups: VecDeque::with_capacity(clients),
            released: Vec::with_capacity(clients),
            condemned: Vec::new(),
            tls_turns: RunQueue::new(clients),
            hello_turns: RunQueue::new(clients),
            hellos_queued: 0,
            forgotten: Vec::new(),
            handshakes: VecDeque::new(),
            handshakes_begun: 0,
            emulation: config
                .is_sealing_emulated
                .then(|| Rc::new(Sealer::emulated())),
            text: Vec::new(),
            parts: Vec::with_capacity(2 * http::RANGES_MAX + 2),
            request_log: None,
            troubles: Troubles::default(),
            next_serial: 0,
            next_fetch: 0,
            identification: 0,
            counters: Counters::default(),
            config,
        };
        conductor.announce();
        conductor
    }

    /// When [`Conductor::handle_timeouts`] next has work.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.timers.next_deadline(), self.time_wait.next_expiry()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Fires every timer due at `now`.
    pub fn handle_timeouts(&mut self, now: Instant, arena: &mut Arena) {
        while let Some(key) = self.timers.pop_due(now) {
            match self.knock_of(key) {
                Some(knock) => self.on_knock_timeout(now, knock),
                None => self.on_client_timeout(now, arena, key),
            }
        }
        while let Some(tuple) = self.time_wait.pop_expired(now) {
            self.table.remove(&tuple);
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

    /// Tells the wall clock's time, Unix seconds. It may be set, back or forth, by any amount: it is
    /// the `Date` of replies from now on, and says which modification times lie in the future.
    /// Whatever waits for time to pass goes by `now`.
    pub const fn set_unix_seconds(&mut self, unix_seconds: u64) {
        self.unix_seconds = unix_seconds;
    }

    /// What hurt a client: the last of its kind, and how often the kind came since it was last
    /// polled.
    pub fn poll_trouble(&mut self) -> Option<(Trouble, u64)> {
        self.troubles.poll()
    }

    /// Refuses new connections and requests; replies under way finish, then a FIN.
    pub fn shut_down(&mut self, now: Instant) {
        self.is_listening = false;
        let knocks: Vec<u32> = self.knocks.indexes().collect();
        for index in knocks {
            self.forget_knock(index);
        }
        let indexes: Vec<u32> = self.clients.indexes().collect();
        for index in indexes {
            self.close_when_replied(now, index);
        }
    }

    /// Resets whatever is left, as fast as [`Conductor::transmit`] takes the resets out.
    pub fn abort_all(&mut self) {
        let clients = &self.clients;
        let name = |index| {
            let serial = clients.entry(index)?.serial;
            Some(TlsToken { index, serial })
        };
        self.condemned = clients.indexes().filter_map(name).collect();
    }

    /// Open connections, half-open ones included, TIME-WAIT not.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.clients.len() + self.knocks.len()
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

    /// What one frame and one read hold.
    fn fetch_limits(&self, arena: &Arena) -> FetchLimits {
        FetchLimits {
            frame_bytes: self.frame_bytes(),
            slot_bytes: u64::from(arena.slot_bytes()),
        }
    }

    /// Payload bytes of the largest frame. A link without segmentation gets what one fetch brought
    /// cut into packets, so there only the slot bounds a fetch.
    fn frame_bytes(&self) -> u64 {
        match u64::from(self.config.segmentation_bytes_max) {
            0 => u64::MAX,
            bytes => bytes.saturating_sub(PACKET_HEADER_BYTES_MAX).max(1),
        }
    }

    fn knock_of(&self, timer_key: u32) -> Option<u32> {
        timer_key.checked_sub(self.first_knock_key())
    }

    fn first_knock_key(&self) -> u32 {
        u32::try_from(self.config.connections_max).unwrap_or(u32::MAX)
    }

    /// After anything happened to a client: queues and timers follow its state.
    fn settle(&mut self, now: Instant, index: u32) {
        let Some(client) = self.clients.entry_mut(index) else {
            return;
        };
        if client.is_closing && client.tcp.can_append() && client.lookup.is_none() {
            client.say_farewell(now);
        }
        client.tcp.set_receive_window(client.input_room());
        client.read_waits = client.read_waits.filter(|until| *until > now);
        if client.read_waits.is_none() && client.wants_fetch() {
            self.readers.push(index);
        }
        if client.wants_transmit() {
            self.writers.push(index);
        }
        match client.deadline(&self.config) {
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
