//! Plans disk reads for clients that have credit, and handles their completions.

use clock::Instant;
use memory::{Arena, FilledSlot, FreeSlot};
use tcp::{Claim, Credit, Demand, Permission, StreamRange};

use super::Conductor;
use super::opening::SEALED_UNIT_BYTES;
use crate::client::Client;
use crate::counters::Counters;
use crate::device_reads::DeviceIndex;
use crate::fetch::{self, Arrived, Fetch, FetchLimits, FetchPlan, FetchState, ReadShape};
use crate::kept_slots::{AHEAD_TIME, KeptSlots};
use crate::read_budget::ReadCost;
use crate::stream_map::{LOSSY_CONTENT_BYTES, OVERHEAD_BYTES_MAX};
use crate::{ReadError, ReadLimits, ReadPlan, TraceEvent, Warning};

/// A read of a lost packet takes a block at least, of most file systems and disks.
const BLOCK_BYTES: u64 = 4096;

/// Least burst of a path that loses while the worker is busy: six blocks, or two records with their headers and tags. One of
/// 36 KiB would cost a seventh less with 0.1 % of loss, and no less with more, but small buffers on the way hold less.
const BUSY_BURST_BYTES: u32 = 2 * (LOSSY_CONTENT_BYTES + OVERHEAD_BYTES_MAX);

/// Bits of a client's index in a read's token.
pub(super) const CLIENT_BITS: u32 = 24;

impl Conductor {
    /// The next read to enqueue, its slot already reserved. Clients take turns of up to eight
    /// reads each.
    pub fn poll_read(&mut self, now: Instant, arena: &mut Arena) -> Option<ReadPlan> {
        self.telemetry.counters.session_kept_given_up_count = self.kept.given_up_count();
        self.telemetry.counters.session_kept_copied_bytes = self.kept.copied_bytes();
        let limits = self.fetch_limits(arena);
        while let Some(index) = self.reads.next(&self.connections.clients) {
            let Some(client) = self.connections.clients.entry_mut(index) else {
                continue;
            };
            let Credit::Now(demand) = client.credit(now) else {
                // It may not read any more.
                let until = self.reads.evaluate(now, index, client);
                self.connections.hasten(index, until);
                continue;
            };
            let (outgoing, telemetry) = (&mut self.outgoing, &mut self.telemetry);
            let (handshakes, next) = (&mut self.handshakes, demand.range.start);
            if !demand.is_retransmission
                && !handshakes.is_key_good(client, index, next, outgoing, telemetry)
            {
                continue;
            }
            let is_slot_free = arena.free_count() > 0;
            let Some(plan) = client.plan(&demand, limits, &self.kept, is_slot_free) else {
                client.tcp.on_permission(now, Permission::Nothing);
                continue;
            };
            let counters = &mut self.telemetry.counters;
            if !self.reads.has_room(index, client, &plan, counters) {
                continue;
            }
            if plan.read.is_some() && arena.free_count() == 0 {
                self.kept.make_room(arena);
            }
            if plan.read.is_some() && arena.free_count() == 0 {
                self.telemetry.counters.session_slot_famine_count += 1;
                self.telemetry.warn(Warning::SlotFamine);
                self.reads.put_back(index);
                return None;
            }
            let counters = &mut self.telemetry.counters;
            if let Err(until) = client.pay(now, &plan, &self.config.read_limits, counters) {
                client.read_waits = Some(until);
                self.update_queues_and_timers(now, index);
                continue;
            }
            let slot = plan.read.and_then(|_| arena.reserve());
            let read = self.begin_fetch(now, index, demand, plan, slot);
            if read.is_some() {
                return read;
            }
            self.update_queues_and_timers(now, index);
        }
        None
    }

    /// Claims what `plan` fetches of a demand; returns the read it needs.
    fn begin_fetch(
        &mut self,
        now: Instant,
        index: u32,
        demand: Demand,
        plan: FetchPlan,
        slot: Option<FreeSlot>,
    ) -> Option<ReadPlan> {
        let client = self.connections.clients.entry_mut(index)?;
        let id = self.reads.next_fetch();
        let claim = client.tcp.claim(now, demand, plan.range.end);
        let read = client.begin(now, id, plan, claim, index, slot);
        if let Some(key) = plan.kept {
            self.kept.plan(key, plan.range.start);
            self.telemetry.counters.session_kept_fetch_count += 1;
        }
        if let Some(read) = &read {
            self.telemetry
                .record(now, client, || TraceEvent::ReadBegun {
                    range: plan.range,
                    read_bytes: read.length_bytes,
                    is_retransmission: plan.is_retransmission,
                });
        }
        client.tcp.count_limit(now);
        self.telemetry.record_state(now, client);
        let until = self.reads.go_on(now, index, client);
        if client.wants_transmit() {
            self.outgoing.writers.push(index);
        }
        self.connections.hasten(index, until);
        let read = read?;
        self.reads.devices.begin(untoken(read.token).device);
        let counters = &mut self.telemetry.counters;
        counters.session_read_count += 1;
        counters.session_read_bytes += u64::from(read.length_bytes);
        counters.session_reread_count += u64::from(plan.is_retransmission);
        Some(read)
    }

    /// Whether a client waits for a read that [`Conductor::poll_read`] may plan.
    #[must_use]
    pub fn wants_read(&self) -> bool {
        self.reads.is_any()
    }

    /// The disk's queue was full: the read is planned again later.
    ///
    /// # Panics
    /// If it is not the plan that [`Conductor::poll_read`] returned last: claims are given back
    /// newest first, or a gap would open between them.
    pub fn return_read(&mut self, arena: &mut Arena, plan: ReadPlan) {
        let ReadToken { device, index, id } = untoken(plan.token);
        arena.release(plan.slot);
        self.reads.devices.end(device);
        let Some(client) = self.connections.clients.entry_mut(index) else {
            return;
        };
        let newest = client.fetches.pop_back();
        let fetch = newest.filter(|fetch| fetch.id == id);
        let fetch = fetch.expect("invariant: only the newest plan comes back unread");
        if let Some(key) = fetch.plan.kept {
            self.kept.end_plan(key);
            self.telemetry.counters.session_kept_fetch_count -= 1;
        }
        client.tcp.return_claim(fetch.claim);
        client.read_budget.refund(plan.length_bytes.into());
        client.refund_grant(fetch.plan.range.bytes());
        self.telemetry.counters.session_read_count -= 1;
        self.telemetry.counters.session_read_bytes -= u64::from(plan.length_bytes);
        self.telemetry.counters.session_reread_count -= u64::from(fetch.plan.is_retransmission);
        self.reads.put_back(index);
        // Giving a claim back may start a timer: the next round of frames updates the client's
        // timers.
        self.outgoing.writers.push(index);
    }

    /// A read completed. Returns whether its client was reset because it failed.
    pub fn handle_completion(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        token: u64,
        result: Result<FilledSlot, (FreeSlot, ReadError)>,
    ) -> bool {
        let ReadToken { device, index, id } = untoken(token);
        self.reads.devices.end(device);
        let waiting = self
            .connections
            .clients
            .entry_mut(index)
            .and_then(|client| {
                let (tuple, is_traced) = (client.tcp.tuple(), client.is_traced);
                let fetch = client.fetches.iter_mut().find(|fetch| fetch.id == id);
                fetch.map(|fetch| (tuple, is_traced, fetch))
            });
        let Some((tuple, is_traced, fetch)) = waiting else {
            self.telemetry.counters.session_read_stale_count += 1;
            arena.release(result.map_or_else(|(slot, _)| slot, FilledSlot::into_free));
            return false;
        };
        if let FetchState::Reading(since) = fetch.state {
            let times = &mut self.telemetry.histograms.disk_read_seconds;
            times.record(now.since(since));
        }
        let peer = tuple.peer;
        let needed = fetch.plan.needed_bytes();
        let is_whole = |slot: &FilledSlot| u64::from(slot.filled_bytes()) >= needed;
        if is_traced {
            let range = fetch.plan.range;
            let is_filled = result.as_ref().is_ok_and(is_whole);
            let event = TraceEvent::ReadEnded { range, is_filled };
            self.telemetry.record_of(now, &tuple, &event);
        }
        match result {
            Ok(slot) if is_whole(&slot) => {
                fetch.state = FetchState::Ready(Some(Arrived {
                    slot,
                    is_sealed: false,
                    usable_from: fetch.plan.kept_end().max(fetch.plan.text_end()),
                }));
                if self.reads.devices.are_many() {
                    // A read from another device may have waited for this one.
                    self.update_queues_and_timers(now, index);
                } else if (self.connections.clients)
                    .entry(index)
                    .is_some_and(Client::wants_transmit)
                {
                    // Nothing else has changed, and the client is evaluated when it was sent.
                    self.outgoing.writers.push(index);
                }
                false
            }
            Ok(slot) => {
                // The object is shorter than it was when it was opened.
                self.telemetry.counters.session_read_short_count += 1;
                if let Some(read) = fetch.plan.read {
                    let object = read.object.handle;
                    self.telemetry.warn(Warning::ReadShort { peer, object });
                }
                arena.release(slot.into_free());
                self.abort(now, arena, index);
                true
            }
            Err((slot, error)) => {
                arena.release(slot);
                let read = fetch.plan.read;
                let begins_anew = match error {
                    ReadError::Io => {
                        self.telemetry.counters.session_read_error_count += 1;
                        false
                    }
                    ReadError::Changed => {
                        self.telemetry.counters.session_read_changed_count += 1;
                        read.is_some_and(|read| self.begin_anew(now, arena, index, &read))
                    }
                };
                if !begins_anew {
                    self.abort(now, arena, index);
                }
                !begins_anew
            }
        }
    }
}

impl Client {
    /// Pays for the plan out of the read budget, and out of the bandwidth of its site.
    ///
    /// # Errors
    /// The read must wait until this moment, or until more is acknowledged.
    fn pay(
        &mut self,
        now: Instant,
        plan: &FetchPlan,
        limits: &ReadLimits,
        counters: &mut Counters,
    ) -> Result<(), Instant> {
        // What was lost waits for nobody's turn: the client has all that came behind it, and can use nothing of it.
        if !plan.is_retransmission
            && let Some(until) = self.awaits_grant(now)
        {
            counters.session_bandwidth_deferred_count += 1;
            return Err(until);
        }
        let claimed = self.tcp.claimed_once();
        let length = plan.read.map_or(0, |read| read.length_bytes);
        let cost = ReadCost {
            length_bytes: length.into(),
            new_bytes: plan.range.end.since(claimed),
            unacknowledged_bytes: claimed.since(self.tcp.acknowledged()),
        };
        if let Err(until) = self.read_budget.pay(now, cost, limits) {
            counters.session_read_deferred_count += 1;
            return Err(until);
        }
        self.spend_grant(now, plan.range.bytes(), plan.is_retransmission);
        self.read_waits = None;
        Ok(())
    }

    /// Decides what to fetch for a demand; `None`: wait for more credit, or for the read that brings its first bytes.
    #[inline]
    fn plan(
        &mut self,
        demand: &Demand,
        limits: FetchLimits,
        kept_slots: &KeptSlots,
        is_slot_free: bool,
    ) -> Option<FetchPlan> {
        let (start, is_again) = (demand.range.start, demand.is_retransmission);
        let limits = FetchLimits {
            packet_bytes: if is_slot_free {
                self.tcp.segment_bytes().into()
            } else {
                0
            },
            ..limits
        };
        let kept = kept_slots.find(&self.kept, self.serial, start, is_again);
        if kept.is_none() && self.is_being_read(demand) {
            return None;
        }
        let is_small = demand.range.bytes() * 2 <= limits.slot_bytes;
        let ahead_bytes = match (&kept, is_again) {
            (None, true) if kept_slots.has_places() => self.lost_bytes_ahead(demand, limits),
            (None, false) if is_small => self.ahead_bytes(kept_slots, demand.range.bytes()),
            (Some((_, end)), false) if is_small && limits.is_rest(demand, *end) => {
                self.ahead_bytes(kept_slots, demand.range.bytes())
            }
            (Some(_), false) => {
                self.set_burst_min(kept_slots.is_busy(), true);
                0
            }
            _ => 0,
        };
        let limits = FetchLimits {
            ahead_bytes,
            is_in_blocks: kept_slots.is_busy() && self.tcp.has_lost(),
            is_prompt: (kept.is_some() || ahead_bytes > 0)
                && self.tcp.has_lost()
                && !kept_slots.is_busy(),
            ..limits
        };
        fetch::plan(demand, &self.stream, limits, kept)
    }

    /// How much of the stream a read may take whose demand is for less, `burst_bytes`.
    fn ahead_bytes(&mut self, kept_slots: &KeptSlots, burst_bytes: u64) -> u64 {
        let even_busy = self.tcp.has_lost() && burst_bytes < self.busy_burst_bytes();
        let may_be =
            kept_slots.may_read_ahead(&mut self.kept, self.serial, &mut self.ahead, even_busy);
        self.set_burst_min(kept_slots.is_busy(), may_be);
        let bytes = self.tcp.paced_bytes(AHEAD_TIME).filter(|_| may_be);
        bytes.unwrap_or(0)
    }

    /// While the worker is busy, the bursts of a path that loses are longer, since each is a frame and brings an ACK. If
    /// nothing is kept, a part of a record costs as much as the whole.
    fn set_burst_min(&mut self, is_busy: bool, is_kept: bool) {
        let least = if is_busy && self.tcp.has_lost() {
            BUSY_BURST_BYTES
        } else if self.tls.is_some() && (is_busy || !is_kept) {
            SEALED_UNIT_BYTES
        } else {
            0
        };
        self.tcp.set_burst_min(least);
    }

    /// From so long a burst on, a busy worker reads no more than the burst, even if the path loses: it is mostly whole blocks or
    /// records, and copies of the rest would cost more than reading that again.
    fn busy_burst_bytes(&self) -> u64 {
        if self.tls.is_some() {
            u64::from(SEALED_UNIT_BYTES)
        } else {
            2 * BLOCK_BYTES
        }
    }

    /// How much of the stream a read for a lost run takes, so that it brings the next ones as well: up to the last one
    /// of as many as cost no fewer bytes if each is read by itself.
    fn lost_bytes_ahead(&self, demand: &Demand, limits: FetchLimits) -> u64 {
        let each = if self.tls.is_some() {
            u64::from(SEALED_UNIT_BYTES)
        } else {
            BLOCK_BYTES
        };
        let start = demand.range.start;
        let reach = StreamRange::new(start, start + limits.slot_bytes);
        let (runs, end) = self.tcp.lost_within(reach);
        let span = end.since(start);
        if runs > 1 && span <= runs * each {
            span
        } else {
            0
        }
    }

    /// Whether the first bytes of a demand are being read, with others before them: new ones, or what was lost.
    fn is_being_read(&self, demand: &Demand) -> bool {
        let start = demand.range.start;
        let is_in = |read: &ReadShape| read.stream_start <= start && start < read.end;
        let mut plans = self.fetches.iter().rev().map(|fetch| &fetch.plan);
        if demand.is_retransmission {
            let mut others =
                plans.filter(|plan| plan.is_retransmission && plan.range.start < start);
            return others.any(|plan| plan.read.as_ref().is_some_and(is_in));
        }
        plans.find_map(|plan| plan.read.as_ref()).is_some_and(is_in)
    }

    /// Begins a fetch; returns the read it needs.
    fn begin(
        &mut self,
        now: Instant,
        id: u32,
        plan: FetchPlan,
        claim: Claim,
        index: u32,
        slot: Option<FreeSlot>,
    ) -> Option<ReadPlan> {
        let state = match slot {
            Some(_) => FetchState::Reading(now),
            None => FetchState::Ready(None),
        };
        self.fetches.push_back(Fetch {
            id,
            plan,
            claim,
            state,
        });
        let (read, slot) = plan.read.zip(slot)?;
        self.ahead.on_read();
        if let Some(tls) = &mut self.tls {
            tls.read_to = tls.read_to.max(read.end);
        }
        Some(ReadPlan {
            object: read.object.handle,
            offset_bytes: read.offset_bytes,
            length_bytes: read.length_bytes,
            slot,
            token: token_of(read.object.device, index, id),
        })
    }
}

impl FetchPlan {
    /// Bytes the slot must hold, those skipped included.
    fn needed_bytes(&self) -> u64 {
        self.read.map_or(0, |read| {
            let content = match read.records {
                Some(records) => records.all_content_bytes(),
                None => read.end.since(read.stream_start),
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
