//! Whose turn it is to read: clients take turns of several reads each.
//!
//! Reads of one client that are enqueued one after another are of adjacent blocks, and become one command of the disk. A
//! client whose reads alternate with others' has a command for each. A turn is bounded: a client with much credit
//! delays the others by no more than [`FETCHES_PER_TURN`] fetches.

use crate::run_queue::RunQueue;

/// Most fetches in a turn: with slots of 64 KiB half a MiB, less than the 1,280 KiB that Linux puts in a command of a device
/// without a limit of its own. 3, 5, 6 and 8 were measured (decision 32).
pub(crate) const FETCHES_PER_TURN: u32 = 8;

/// Clients with a demand, in the order of their turns, each in it at most once.
#[derive(Debug)]
pub(crate) struct ReadTurns {
    queue: RunQueue,
    /// Whose turn goes on, and its fetches so far.
    turn: Option<(u32, u32)>,
}

impl ReadTurns {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            queue: RunQueue::new(capacity),
            turn: None,
        }
    }

    /// The client has a demand.
    pub(crate) fn push(&mut self, index: u32) {
        let is_new = self.queue.push_new(index);
        if is_new && self.turn.is_some_and(|(client, _)| client == index) {
            // It had no demand for a while, so its turn ended.
            self.turn = None;
        }
    }

    /// The client whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        self.queue.pop()
    }

    /// What the client wanted to fetch could not be: it comes first when it can.
    pub(crate) fn push_front(&mut self, index: u32) {
        self.queue.push_front(index);
    }

    /// The client, whose turn it is, has planned a fetch and wants another.
    pub(crate) fn go_on(&mut self, index: u32) {
        let before = self.turn.take().filter(|(client, _)| *client == index);
        let fetches = before.map_or(1, |(_, fetches)| fetches + 1);
        if fetches < FETCHES_PER_TURN {
            self.turn = Some((index, fetches));
            self.queue.push_front(index);
        } else {
            self.queue.push(index);
        }
    }

    /// Whether a client has a demand.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.ahead(0).is_none()
    }

    /// In the order of turns, for what is asked for ahead.
    pub(crate) const fn queue(&self) -> &RunQueue {
        &self.queue
    }
}

#[cfg(test)]
mod tests {
    use super::{FETCHES_PER_TURN, ReadTurns};

    /// The next `count` turns, of clients that want more for ever.
    fn fetches(turns: &mut ReadTurns, count: u32) -> Vec<u32> {
        let next = |_| {
            let index = turns.pop().unwrap();
            turns.go_on(index);
            index
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn a_turn_ends_with_its_last_fetch() {
        let mut turns = ReadTurns::new(2);
        turns.push(1);
        turns.push(0);
        let most = FETCHES_PER_TURN as usize;
        let expected = [vec![1; most], vec![0; most], vec![1; most], vec![0]].concat();
        assert_eq!(fetches(&mut turns, 3 * FETCHES_PER_TURN + 1), expected);
    }

    #[test]
    fn a_client_that_wanted_no_more_has_a_whole_turn_next_time() {
        let mut turns = ReadTurns::new(2);
        turns.push(1);
        fetches(&mut turns, FETCHES_PER_TURN - 1);
        assert_eq!(turns.pop(), Some(1));
        turns.push(1);
        turns.push(0);
        let most = FETCHES_PER_TURN as usize;
        let expected = [vec![1; most], vec![0]].concat();
        assert_eq!(fetches(&mut turns, FETCHES_PER_TURN + 1), expected);
    }

    #[test]
    fn a_turn_that_another_interrupted_begins_again() {
        let mut turns = ReadTurns::new(3);
        turns.push(1);
        turns.push(0);
        assert_eq!(fetches(&mut turns, 2), [1, 1]);
        // It had waited for its device.
        turns.go_on(2);
        let most = FETCHES_PER_TURN as usize;
        let expected = [vec![2; most - 1], vec![1; most], vec![0]].concat();
        assert_eq!(fetches(&mut turns, 2 * FETCHES_PER_TURN), expected);
    }
}
