//! Whose turn it is to read from the disk, and which reads are under way.
//!
//! Whether a client may read is decided by [`Client::may_read`] alone, after each change of its state; what
//! follows from that, here: a client that may read has a turn. When its turn comes its credit says how many
//! bytes it may read, and [`Reads::has_room`] whether their device may have one more read. Bounds: those of
//! [`ReadTurns`] and [`DeviceReads`].

use clock::Instant;
use tcp::Permission;

use super::ahead::prefetch_turns;
use crate::client::Client;
use crate::counters::Counters;
use crate::device_reads::{DeviceIndex, DeviceReads};
use crate::fetch::{FetchPlan, FetchState};
use crate::read_turns::ReadTurns;
use crate::slab::Slab;

/// See the module.
#[derive(Debug)]
pub(super) struct Reads {
    /// Clients that may read.
    turns: ReadTurns,
    /// Reads under way, and clients that may read and whose device has no room for more.
    pub(super) devices: DeviceReads,
    last_fetch: u32,
}

impl Reads {
    /// For so many reads under way, of so many clients.
    pub(super) fn new(reads_max: usize, connections_max: usize) -> Self {
        Self {
            turns: ReadTurns::new(connections_max),
            devices: DeviceReads::new(reads_max, connections_max),
            last_fetch: 0,
        }
    }

    /// Whether a client has a turn.
    pub(super) fn is_any(&self) -> bool {
        !self.turns.is_empty() || self.devices.has_ready()
    }

    /// The client whose turn it is. One that waited for room on its device comes first, because its turn
    /// was before.
    #[inline]
    pub(super) fn next(&mut self, clients: &Slab<Client>) -> Option<u32> {
        prefetch_turns(self.turns.queue(), clients);
        self.devices.pop_ready().or_else(|| self.turns.pop())
    }

    /// The client's state has changed. Returns until when it may not read, if that is known.
    #[inline]
    pub(super) fn evaluate(
        &mut self,
        now: Instant,
        index: u32,
        client: &mut Client,
    ) -> Option<Instant> {
        let permission = client.may_read(now);
        if permission == Permission::Now {
            self.turns.push(index);
        }
        until(permission)
    }

    /// The same of the client whose turn it is and that has planned a fetch: its turn goes on.
    #[inline]
    pub(super) fn go_on(
        &mut self,
        now: Instant,
        index: u32,
        client: &mut Client,
    ) -> Option<Instant> {
        let permission = client.may_read(now);
        if permission == Permission::Now {
            self.turns.go_on(index);
        }
        until(permission)
    }

    /// What the client wanted to read could not be: it comes first when it can.
    pub(super) fn put_back(&mut self, index: u32) {
        self.turns.push_front(index);
    }

    /// Whether the read of `plan`, if it has one, may be enqueued: the client has none under way on another
    /// device, and its device has room. If not, the client's turn comes again when that has changed.
    #[inline]
    pub(super) fn has_room(
        &mut self,
        index: u32,
        client: &Client,
        plan: &FetchPlan,
        counters: &mut Counters,
    ) -> bool {
        let Some(read) = plan.read.filter(|_| self.devices.are_many()) else {
            return true;
        };
        let device = read.object.device;
        if client.is_reading_from_another(device) {
            // The completion of the last of those reads puts it on the queue again.
            return false;
        }
        let has_room = self.devices.has_room(device);
        if !has_room {
            let is_new = self.devices.wait(device, index);
            counters.session_device_capped_count += u64::from(is_new);
        }
        has_room
    }

    /// Tells the next fetch from others of its client.
    pub(super) const fn next_fetch(&mut self) -> u32 {
        self.last_fetch = self.last_fetch.wrapping_add(1);
        self.last_fetch
    }
}

const fn until(permission: Permission) -> Option<Instant> {
    match permission {
        Permission::From(at) => Some(at),
        Permission::Now | Permission::Nothing => None,
    }
}

impl Client {
    /// Whether a read for this client is under way on another device.
    fn is_reading_from_another(&self, device: DeviceIndex) -> bool {
        self.fetches.iter().any(|fetch| {
            let is_reading = matches!(fetch.state, FetchState::Reading(_));
            let read = fetch.plan.read.filter(|_| is_reading);
            read.is_some_and(|read| read.object.device != device)
        })
    }
}
