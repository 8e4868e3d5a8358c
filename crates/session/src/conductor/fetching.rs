//! Plans disk reads for clients that have credit, and handles their completions.

use clock::Instant;
use memory::{Arena, FilledSlot, FreeSlot};
use tcp::{Claim, Credit, Permission};

use super::ahead::prefetch_turns;
use super::{Conductor, observing};
use crate::client::Client;
use crate::device_reads::DeviceIndex;
use crate::fetch::{self, Arrived, Fetch, FetchPlan, FetchState};
use crate::read_budget::ReadCost;
use crate::{ReadError, ReadPlan, TraceEvent, Warning};

/// Bits of a client's index in a read's token.
pub(super) const CLIENT_BITS: u32 = 24;

impl Conductor {
    /// The next read to enqueue, its slot already reserved. Clients take turns of up to eight
    /// reads each.
    pub fn poll_read(&mut self, now: Instant, arena: &mut Arena) -> Option<ReadPlan> {
        let limits = self.fetch_limits(arena);
        while let Some(index) = self.next_reader() {
            let Some(client) = self.clients.entry_mut(index) else {
                continue;
            };
            let demand = match client.credit(now) {
                Credit::Now(demand) => demand,
                Credit::From(at) => {
                    client.tcp.on_no_demand();
                    self.timers.set(index, at);
                    continue;
                }
                Credit::Nothing => {
                    client.tcp.on_no_demand();
                    continue;
                }
            };
            if !demand.is_retransmission && !self.is_key_good(index, demand.range.start) {
                continue;
            }
            let Some(client) = self.clients.entry_mut(index) else {
                continue;
            };
            let Some(plan) = fetch::plan(&demand, &client.stream, limits) else {
                client.tcp.on_no_demand();
                continue;
            };
            if let Some(read) = plan.read
                && self.device_reads.are_many()
            {
                let device = read.object.device;
                if client.is_reading_from_another(device) {
                    // The completion of the last of those reads puts it on the queue again.
                    continue;
                }
                if !self.device_reads.has_room(device) {
                    let is_new = self.device_reads.wait(device, index);
                    self.counters.session_device_capped_count += u64::from(is_new);
                    continue;
                }
            }
            if plan.read.is_some() && arena.free_count() == 0 {
                self.counters.session_slot_famine_count += 1;
                self.warnings.note(Warning::SlotFamine);
                self.readers.push_front(index);
                return None;
            }
            let cost = client.cost_of(&plan);
            let limits = &self.config.read_limits;
            if let Err(until) = client.read_budget.pay(now, cost, limits) {
                client.read_waits = Some(until);
                self.counters.session_read_deferred_count += 1;
                self.update_queues_and_timers(now, index);
                continue;
            }
            let slot = plan.read.and_then(|_| arena.reserve());
            self.next_fetch = self.next_fetch.wrapping_add(1);
            let id = self.next_fetch;
            let claim = client.tcp.claim(now, demand, plan.range.end);
            let read = client.begin(id, plan, claim, index, slot);
            if let Some(read) = &read {
                observing::record(&mut self.trace, now, client, || TraceEvent::ReadBegun {
                    range: plan.range,
                    read_bytes: read.length_bytes,
                    is_retransmission: plan.is_retransmission,
                });
            }
            client.tcp.count_limit(now);
            observing::record_state(&mut self.trace, now, client);
            match client.permission(now) {
                Permission::Now => {
                    client.tcp.on_demand(now);
                    self.readers.go_on(index);
                }
                Permission::From(at) => self.timers.set(index, at),
                Permission::Nothing => {}
            }
            if client.wants_transmit() {
                self.writers.push(index);
            }
            if let Some(read) = read {
                self.device_reads.begin(untoken(read.token).device);
                self.counters.session_read_count += 1;
                self.counters.session_read_bytes += u64::from(read.length_bytes);
                self.counters.session_reread_count += u64::from(plan.is_retransmission);
                return Some(read);
            }
            self.update_queues_and_timers(now, index);
        }
        None
    }

    /// Whether a client waits for a read that [`Conductor::poll_read`] may plan.
    #[must_use]
    pub fn wants_read(&self) -> bool {
        !self.readers.is_empty() || self.device_reads.has_ready()
    }

    /// A client that waited for room on its device comes first, because its turn was before.
    fn next_reader(&mut self) -> Option<u32> {
        prefetch_turns(self.readers.queue(), &self.clients);
        self.device_reads.pop_ready().or_else(|| self.readers.pop())
    }

    /// The disk's queue was full: the read is planned again later.
    ///
    /// # Panics
    /// If it is not the plan that [`Conductor::poll_read`] returned last: claims are given back
    /// newest first, or a gap would open between them.
    pub fn return_read(&mut self, arena: &mut Arena, plan: ReadPlan) {
        let ReadToken { device, index, id } = untoken(plan.token);
        arena.release(plan.slot);
        self.device_reads.end(device);
        let Some(client) = self.clients.entry_mut(index) else {
            return;
        };
        let newest = client.fetches.pop_back();
        let fetch = newest.filter(|fetch| fetch.id == id);
        let fetch = fetch.expect("invariant: only the newest plan comes back unread");
        client.tcp.return_claim(fetch.claim);
        client.read_budget.refund(plan.length_bytes.into());
        self.counters.session_read_count -= 1;
        self.counters.session_read_bytes -= u64::from(plan.length_bytes);
        self.counters.session_reread_count -= u64::from(fetch.plan.is_retransmission);
        self.readers.push_front(index);
        // Giving a claim back may start a timer: the next round of frames updates the client's
        // timers.
        self.writers.push(index);
    }

    /// A read completed.
    pub fn handle_completion(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        token: u64,
        result: Result<FilledSlot, (FreeSlot, ReadError)>,
    ) {
        let ReadToken { device, index, id } = untoken(token);
        self.device_reads.end(device);
        let waiting = self.clients.entry_mut(index).and_then(|client| {
            let (tuple, is_traced) = (client.tcp.tuple(), client.is_traced);
            let fetch = client.fetches.iter_mut().find(|fetch| fetch.id == id);
            fetch.map(|fetch| (tuple, is_traced, fetch))
        });
        let Some((tuple, is_traced, fetch)) = waiting else {
            self.counters.session_read_stale_count += 1;
            arena.release(result.map_or_else(|(slot, _)| slot, FilledSlot::into_free));
            return;
        };
        let peer = tuple.peer;
        let needed = fetch.plan.needed_bytes();
        let is_whole = |slot: &FilledSlot| u64::from(slot.filled_bytes()) >= needed;
        if is_traced && let Some(trace) = &mut self.trace {
            let range = fetch.plan.range;
            let is_filled = result.as_ref().is_ok_and(is_whole);
            trace.record(now, &tuple, &TraceEvent::ReadEnded { range, is_filled });
        }
        match result {
            Ok(slot) if is_whole(&slot) => {
                fetch.state = FetchState::Ready(Some(Arrived {
                    slot,
                    is_sealed: false,
                }));
                if self.device_reads.are_many() {
                    // A read from another device may have waited for this one.
                    self.update_queues_and_timers(now, index);
                } else if self
                    .clients
                    .entry(index)
                    .is_some_and(Client::wants_transmit)
                {
                    // Nothing else has changed, and the client is evaluated when it was sent.
                    self.writers.push(index);
                }
            }
            Ok(slot) => {
                // The object is shorter than it was when it was opened.
                self.counters.session_read_short_count += 1;
                if let Some(read) = fetch.plan.read {
                    let object = read.object.handle;
                    self.warnings.note(Warning::ReadShort { peer, object });
                }
                arena.release(slot.into_free());
                self.abort(now, arena, index);
            }
            Err((slot, error)) => {
                match error {
                    ReadError::Io => self.counters.session_read_error_count += 1,
                    ReadError::Changed => self.counters.session_read_changed_count += 1,
                }
                arena.release(slot);
                self.abort(now, arena, index);
            }
        }
    }
}

impl Client {
    /// The cost of the plan to the read budget.
    fn cost_of(&self, plan: &FetchPlan) -> ReadCost {
        let claimed = self.tcp.claimed_once();
        let length = plan.read.map_or(0, |read| read.length_bytes);
        ReadCost {
            length_bytes: length.into(),
            new_bytes: plan.range.end.since(claimed),
            unacknowledged_bytes: claimed.since(self.tcp.acknowledged()),
        }
    }

    /// Begins a fetch; returns the read it needs.
    fn begin(
        &mut self,
        id: u32,
        plan: FetchPlan,
        claim: Claim,
        index: u32,
        slot: Option<FreeSlot>,
    ) -> Option<ReadPlan> {
        let state = match slot {
            Some(_) => FetchState::Reading,
            None => FetchState::Ready(None),
        };
        self.fetches.push_back(Fetch {
            id,
            plan,
            claim,
            state,
        });
        let (read, slot) = plan.read.zip(slot)?;
        Some(ReadPlan {
            object: read.object.handle,
            offset_bytes: read.offset_bytes,
            length_bytes: read.length_bytes,
            slot,
            token: token_of(read.object.device, index, id),
        })
    }

    /// Whether a read for this client is under way on another device.
    fn is_reading_from_another(&self, device: DeviceIndex) -> bool {
        self.fetches.iter().any(|fetch| {
            let is_reading = matches!(fetch.state, FetchState::Reading);
            let read = fetch.plan.read.filter(|_| is_reading);
            read.is_some_and(|read| read.object.device != device)
        })
    }
}

impl FetchPlan {
    /// Bytes the slot must hold, those skipped included.
    fn needed_bytes(&self) -> u64 {
        self.read.map_or(0, |read| {
            let content = match read.records {
                Some(records) => records.all_content_bytes(),
                None => self.range.end.since(read.stream_start),
            };
            u64::from(read.skip_bytes) + content
        })
    }
}

/// The client that a read was planned for.
pub(super) const fn client_of(token: u64) -> u32 {
    untoken(token).index
}

/// Identifies a read. The client may be gone when it completes.
struct ReadToken {
    device: DeviceIndex,
    index: u32,
    id: u32,
}

/// Device, client and fetch in one: 8 bits, [`CLIENT_BITS`] and 32.
const fn token_of(device: DeviceIndex, index: u32, id: u32) -> u64 {
    (device.number() as u64) << (32 + CLIENT_BITS) | (index as u64) << 32 | id as u64
}

#[expect(clippy::cast_possible_truncation, reason = "parts of a token")]
const fn untoken(token: u64) -> ReadToken {
    ReadToken {
        device: DeviceIndex::new((token >> (32 + CLIENT_BITS)) as usize),
        index: (token >> 32) as u32 & ((1 << CLIENT_BITS) - 1),
        id: token as u32,
    }
}
