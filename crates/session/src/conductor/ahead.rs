//! The state of clients is brought into the processor's caches ([`memory::prefetch`]) some turns before
//! theirs, while other clients have their turns.
//!
//! With thousands of clients the state of each is in no cache when its turn comes. Its turn would wait
//! for one line of memory after the other: the four-tuple's slot, the entry there, the client, its
//! queues. Asked for in steps, [`STEP`] turns apart, they are there when their turn comes.
//!
//! For reads, sends and evaluations the turns to come are known: they are in a queue. Frames come one
//! by one; so segments without text, of which there are thousands in a batch, wait in
//! [`Acknowledgments`] for as many others as that takes, and no longer than their batch. Every other
//! frame is handled at once, after those that wait: segments are handled in the order of their arrival.
//!
//! Bounds: [`WAITING_MAX`] segments wait.

use std::collections::VecDeque;

use tcp::{FourTuple, TableIndex, TableTag, TimerQueue};
use wire::{Ecn, Path, TcpFlags, TcpRepr};

use super::Received;
use super::connections::Connections;
use crate::client::Client;
use crate::run_queue::RunQueue;
use crate::slab::Slab;

/// How many turns ahead of the next step something is asked for: a turn takes some hundred nanoseconds,
/// and so does memory.
const STEP: usize = 3;
/// Segments that wait: slot, entry, client and its queues are asked for one after the other.
pub(super) const WAITING_MAX: usize = 4 * STEP;

/// A segment without text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acknowledgment {
    pub(super) tuple: FourTuple,
    pub(super) tag: TableTag,
    path: Path,
    segment: TcpRepr,
    ecn: Ecn,
}

impl Acknowledgment {
    /// As it arrived.
    pub(super) const fn received(&self) -> Received<'static> {
        Received {
            path: self.path,
            segment: self.segment,
            ecn: self.ecn,
            payload: &[],
        }
    }
}

/// Whether a segment may wait: it is an acknowledgment and nothing else.
pub(super) fn may_wait(received: &Received<'_>) -> bool {
    let others = TcpFlags::SYN.union(TcpFlags::FIN).union(TcpFlags::RST);
    let flags = received.segment.flags;
    received.payload.is_empty() && flags.contains(TcpFlags::ACK) && !flags.intersects(others)
}

/// Segments that wait, in the order of their arrival.
#[derive(Debug)]
pub(super) struct Acknowledgments(VecDeque<Acknowledgment>);

impl Acknowledgments {
    pub(super) fn new() -> Self {
        Self(VecDeque::with_capacity(WAITING_MAX + 1))
    }

    /// A segment arrived. Returns the one whose turn it is.
    pub(super) fn push(
        &mut self,
        tuple: FourTuple,
        received: &Received<'_>,
        connections: &Connections,
    ) -> Option<Acknowledgment> {
        let Connections { table, clients, .. } = connections;
        let tag = table.tag(&tuple);
        memory::prefetch(table.first_slot(tag));
        let Received {
            path, segment, ecn, ..
        } = *received;
        self.0.push_back(Acknowledgment {
            tuple,
            tag,
            path,
            segment,
            ecn,
        });
        let from_last = |places: usize| self.0.get(self.0.len().checked_sub(1 + places)?);
        if let Some(waiting) = from_last(STEP)
            && let Some(entry) = table.first_entry(waiting.tag)
        {
            memory::prefetch(entry);
        }
        let found = |waiting: &Acknowledgment| match table.find_tagged(waiting.tag, &waiting.tuple)
        {
            Some(TableIndex::Connection(index)) => Some(index),
            _ => None,
        };
        if let Some(index) = from_last(2 * STEP).and_then(found) {
            clients.prefetch(index, Client::FREQUENT_BYTES);
        }
        if let Some(client) =
            (from_last(3 * STEP).and_then(found)).and_then(|index| clients.entry(index))
        {
            client.prefetch_queues();
        }
        if self.0.len() > WAITING_MAX {
            self.0.pop_front()
        } else {
            None
        }
    }

    /// The next one: no other comes in this batch, or something else comes next.
    pub(super) fn pop(&mut self) -> Option<Acknowledgment> {
        self.0.pop_front()
    }
}

/// The turn of a queue's first client comes: asks for those behind it.
pub(super) fn prefetch_turns(queue: &RunQueue, clients: &Slab<Client>) {
    prefetch(clients, queue.ahead(2 * STEP), queue.ahead(STEP));
}

/// A timer has fired: asks for the clients whose timers most likely fire next.
pub(super) fn prefetch_timers(timers: &TimerQueue, clients: &Slab<Client>) {
    for key in timers.first_keys() {
        clients.prefetch(key, Client::FREQUENT_BYTES);
    }
}

/// `far` will be needed in two steps, `near` in one.
fn prefetch(clients: &Slab<Client>, far: Option<u32>, near: Option<u32>) {
    if let Some(index) = far {
        clients.prefetch(index, Client::FREQUENT_BYTES);
    }
    if let Some(client) = near.and_then(|index| clients.entry(index)) {
        client.prefetch_queues();
    }
}

impl super::Conductor {
    /// Reads were found completed, and [`super::Conductor::handle_completion`] is called for each of
    /// these tokens next: asks for what the later ones will need.
    pub fn prefetch_completions(&self, token_of: impl Fn(usize) -> Option<u64>) {
        let client_of = |place| token_of(place).map(super::fetching::client_of);
        prefetch(
            &self.connections.clients,
            client_of(2 * STEP),
            client_of(STEP),
        );
    }
}
