//! The connections by four-tuple, from the SYN to the end of TIME-WAIT, and when each is due.
//!
//! ```text
//!  four-tuple ──▶ table ──┬─▶ half_opens   SYN received
//!                         ├─▶ clients      established, with all that is above TCP
//!                         └─▶ time_wait    over, but for late segments
//! ```
//!
//! A four-tuple is in one of the three, a client's and a half-open connection's deadline in the timers, a
//! client's source among the sources: what is put in here is in all of them, and what is taken out in none.
//! It does not decide who may connect, but for a full table: [`Connections::evictable`]. Bounds: the
//! capacities of its tables, which are allocated at start.

use core::cmp::Reverse;
use core::net::SocketAddr;

use clock::{Duration, Instant};
use tcp::{FourTuple, HalfOpen, Table, TableIndex, TimeWait, TimeWaitTable, TimerQueue};
use wire::Route;

use super::ahead::prefetch_timers;
use crate::TlsToken;
use crate::age_list::AgeList;
use crate::client::Client;
use crate::shortest_rtt::ShortestRtt;
use crate::slab::Slab;
use crate::sources::Sources;

/// Half-open connections. More are answered by SYN cookies, so this bounds no client: it is enough
/// for 20,000 new clients a second with round trips of 200 ms to have all TCP options and
/// retransmitted SYN-ACKs. In a flood the entries are the attacker's: 4096 of them retransmit
/// some 660 SYN-ACKs a second in all.
pub(super) const HALF_OPEN_MAX: u32 = 4096;
/// Four-tuples in TIME-WAIT. Clients mostly close first, so most TIME-WAIT states are theirs.
const TIME_WAIT_MAX: usize = 16_384;

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
pub(super) enum Evictable {
    /// It waits for a request.
    Idle(u32),
    /// Its source has far more connections than the newcomer's.
    Crowding(u32),
}

/// Whose deadline has passed, by its index.
#[derive(Clone, Copy, Debug)]
pub(super) enum Due {
    HalfOpen(u32),
    Client(u32),
}

/// A half-open connection and the route to its peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct HalfOpenEntry {
    pub(super) half_open: HalfOpen,
    pub(super) route: Route,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Connections {
    pub(super) table: Table,
    pub(super) clients: Slab<Client>,
    half_opens: Slab<HalfOpenEntry>,
    time_wait: TimeWaitTable,
    /// Keys: clients by index, then half-open connections.
    timers: TimerQueue,
    /// The key of the first half-open connection.
    half_open_key: u32,
    /// Clients that wait for a request.
    idle: AgeList,
    /// Clients by source.
    pub(super) sources: Sources,
    /// Where the next search for a connection to evict begins.
    eviction_cursor: u32,
    /// So many places were found finished ([`Connections::is_finished`]).
    finished_places: u32,
    last_serial: u32,
    /// Of the clients heard from lately.
    pub(super) shortest_rtt: ShortestRtt,
}

impl Connections {
    /// For so many clients, and so many of one source; `key` is secret.
    pub(super) fn new(clients_max: usize, per_source_max: Option<u32>, key: [u8; 16]) -> Self {
        let half_opens = HALF_OPEN_MAX as usize;
        Self {
            table: Table::new(clients_max + half_opens + TIME_WAIT_MAX, key),
            clients: Slab::new(clients_max),
            half_opens: Slab::new(half_opens),
            time_wait: TimeWaitTable::new(TIME_WAIT_MAX),
            timers: TimerQueue::new(clients_max + half_opens),
            half_open_key: u32::try_from(clients_max).unwrap_or(u32::MAX),
            idle: AgeList::new(clients_max),
            sources: Sources::new(clients_max, per_source_max, key),
            eviction_cursor: 0,
            finished_places: 0,
            last_serial: 0,
            shortest_rtt: ShortestRtt::new(),
        }
    }

    /// Clients and half-open connections.
    pub(super) fn count(&self) -> usize {
        self.clients.len() + self.half_opens.len()
    }

    /// Whether all clients have acknowledged our FIN. Nobody may be taken any more: a place that was found finished is not
    /// looked at again.
    pub(super) fn is_finished(&mut self) -> bool {
        while self.finished_places < self.places() {
            let client = self.clients.entry(self.finished_places);
            if client.is_some_and(|client| !client.is_finished()) {
                return false;
            }
            self.finished_places += 1;
        }
        self.half_opens.len() == 0
    }

    /// Places for clients.
    pub(super) const fn places(&self) -> u32 {
        self.half_open_key
    }

    /// The indexes of all clients there are now.
    pub(super) fn indexes(&self) -> Vec<u32> {
        self.clients.indexes().collect()
    }

    /// The client at an index, as long as it is there.
    pub(super) fn token(&self, index: u32) -> Option<TlsToken> {
        let serial = self.clients.entry(index)?.serial;
        Some(TlsToken { index, serial })
    }

    /// That client, if it is still there.
    pub(super) fn client_of(&mut self, token: TlsToken) -> Option<&mut Client> {
        let client = self.clients.entry_mut(token.index);
        client.filter(|client| client.serial == token.serial)
    }

    /// Tells the next client from earlier ones.
    pub(super) const fn next_serial(&mut self) -> u32 {
        self.last_serial = self.last_serial.wrapping_add(1);
        self.last_serial
    }

    /// Whether the peer's source has as many clients as it may have.
    pub(super) fn is_crowded(&self, peer: &SocketAddr) -> bool {
        !self.sources.has_room(peer)
    }

    /// An established connection; there is room for it.
    pub(super) fn insert(&mut self, client: Client) -> u32 {
        let tuple = client.tcp.tuple();
        let index = self.clients.insert(client).ok();
        let index = index.expect("invariant: room was made");
        self.sources.enter(&tuple.peer);
        self.table.set(tuple, TableIndex::Connection(index));
        index
    }

    /// The connection is over; its four-tuple is free.
    pub(super) fn remove(&mut self, index: u32) -> Option<Client> {
        self.timers.clear(index);
        self.idle.remove(index);
        let client = self.clients.remove(index)?;
        let tuple = client.tcp.tuple();
        self.table.remove(&tuple);
        self.sources.leave(&client.source_peer());
        Some(client)
    }

    /// A client was evaluated: when it is due next, and whether it waits for a request.
    #[inline]
    pub(super) fn settle(
        &mut self,
        now: Instant,
        index: u32,
        deadline: Option<Instant>,
        is_idle: bool,
    ) {
        self.idle.set(now, index, is_idle);
        match deadline {
            Some(deadline) => self.timers.set(index, deadline.max(now)),
            None => self.timers.clear(index),
        }
    }

    /// A client is due no later than `deadline`.
    pub(super) fn hasten(&mut self, index: u32, deadline: Option<Instant>) {
        if let Some(deadline) = deadline {
            self.timers.set(index, deadline);
        }
    }

    /// The earliest deadline of all.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [self.timers.next_deadline(), self.time_wait.next_expiry()];
        deadlines.into_iter().flatten().min()
    }

    /// Takes out whose deadline is `now` or earlier.
    #[inline]
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Due> {
        let key = self.timers.pop_due(now)?;
        prefetch_timers(&self.timers, &self.clients);
        Some(match key.checked_sub(self.half_open_key) {
            Some(index) => Due::HalfOpen(index),
            None => Due::Client(key),
        })
    }

    /// Whether SYNs can only be answered by cookies.
    pub(super) fn needs_cookies(&self) -> bool {
        self.half_opens.is_full()
    }

    pub(super) fn half_open(&self, index: u32) -> Option<&HalfOpenEntry> {
        self.half_opens.entry(index)
    }

    pub(super) fn half_open_mut(&mut self, index: u32) -> Option<&mut HalfOpenEntry> {
        self.half_opens.entry_mut(index)
    }

    /// A SYN was accepted, and there is room for it.
    pub(super) fn insert_half_open(&mut self, entry: HalfOpenEntry) {
        let index = self.half_opens.insert(entry).ok();
        let index = index.expect("invariant: room was made");
        let half_open = &entry.half_open;
        self.table
            .set(half_open.tuple(), TableIndex::HalfOpen(index));
        self.timers
            .set(self.half_open_key + index, half_open.deadline());
    }

    /// The handshake is over; its four-tuple is free.
    pub(super) fn remove_half_open(&mut self, index: u32) {
        self.timers.clear(self.half_open_key + index);
        if let Some(entry) = self.half_opens.remove(index) {
            self.table.remove(&entry.half_open.tuple());
        }
    }

    /// A half-open connection's deadline has passed. Returns the connection if its SYN-ACK is to be sent
    /// again; `None`: it is removed.
    pub(super) fn on_half_open_timeout(
        &mut self,
        now: Instant,
        index: u32,
    ) -> Option<HalfOpenEntry> {
        let entry = self.half_opens.entry_mut(index)?;
        if !entry.half_open.handle_timeout(now) {
            self.remove_half_open(index);
            return None;
        }
        let entry = *entry;
        self.timers
            .set(self.half_open_key + index, entry.half_open.deadline());
        Some(entry)
    }

    /// Drops the half-open connections that `is_dropped`.
    pub(super) fn remove_half_opens(&mut self, is_dropped: impl Fn(&HalfOpen) -> bool) {
        let indexes: Vec<u32> = self.half_opens.indexes().collect();
        for index in indexes {
            let entry = self.half_opens.entry(index);
            if entry.is_some_and(|entry| is_dropped(&entry.half_open)) {
                self.remove_half_open(index);
            }
        }
    }

    pub(super) fn time_wait_mut(&mut self, index: u32) -> Option<&mut TimeWait> {
        self.time_wait.entry_mut(index)
    }

    /// A connection ended by our FIN first, and was removed. If the table is full, the oldest entry goes.
    pub(super) fn insert_time_wait(&mut self, entry: TimeWait) {
        let (index, evicted) = self.time_wait.insert(entry);
        if let Some(evicted) = evicted {
            self.table.remove(&evicted);
        }
        self.table.set(entry.tuple(), TableIndex::TimeWait(index));
    }

    /// The four-tuple in TIME-WAIT is used again.
    pub(super) fn remove_time_wait(&mut self, index: u32, tuple: &FourTuple) {
        self.time_wait.remove(index);
        self.table.remove(tuple);
    }

    /// Frees the four-tuples whose TIME-WAIT is over.
    pub(super) fn expire_time_wait(&mut self, now: Instant) {
        while let Some(tuple) = self.time_wait.pop_expired(now) {
            self.table.remove(&tuple);
        }
    }

    /// The connection that may end to make room for one of `peer`: the one that has waited longest for a
    /// request; if none waits, one of a source that has far more connections than the peer's.
    pub(super) fn evictable(&self, now: Instant, peer: &SocketAddr) -> Option<Evictable> {
        let idle = self.idle.first();
        let idle = idle.filter(|(_, since)| now.since(*since) >= EVICTION_IDLE_MIN);
        idle.map(|(index, _)| Evictable::Idle(index))
            .or_else(|| self.crowding(peer).map(Evictable::Crowding))
    }

    /// Of some connections of the full table, one of the source that has the most: the one that has
    /// waited longest for its client's progress. One source that holds the table has most of them.
    fn crowding(&self, peer: &SocketAddr) -> Option<u32> {
        let most = (self.sources.count(peer) * 2).max(SOURCE_CONNECTIONS_KEPT);
        let capacity = self.places();
        let sample = (0..EVICTION_SAMPLE.min(capacity)).filter_map(|place| {
            let index = (self.eviction_cursor + place) % capacity;
            let client = self.clients.entry(index)?;
            let count = self.sources.count(&client.source_peer());
            (count > most).then_some((count, client.progress_at(), index))
        });
        let crowding = sample.max_by_key(|(count, progress_at, _)| (*count, Reverse(*progress_at)));
        crowding.map(|(_, _, index)| index)
    }

    /// A crowding connection is evicted: the next search begins behind it.
    pub(super) const fn search_behind(&mut self, index: u32) {
        self.eviction_cursor = index + 1;
    }
}
