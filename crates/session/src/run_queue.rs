//! A queue of connections that have work to do, first in, first out, each in it at most once.

use std::collections::VecDeque;

/// A queue of connection indexes below a capacity.
#[derive(Debug)]
pub(crate) struct RunQueue {
    queue: VecDeque<u32>,
    is_queued: Vec<bool>,
}

impl RunQueue {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            queue: VecDeque::with_capacity(capacity),
            is_queued: vec![false; capacity],
        }
    }

    /// Appends a connection, unless it is in the queue already.
    pub(crate) fn push(&mut self, index: u32) {
        self.push_new(index);
    }

    /// The same; returns whether it was not in the queue yet.
    pub(crate) fn push_new(&mut self, index: u32) -> bool {
        let queued = &mut self.is_queued[index as usize];
        let is_new = !*queued;
        if is_new {
            *queued = true;
            self.queue.push_back(index);
        }
        is_new
    }

    /// Puts a connection at the front: its turn was interrupted.
    pub(crate) fn push_front(&mut self, index: u32) {
        let queued = &mut self.is_queued[index as usize];
        if !*queued {
            *queued = true;
            self.queue.push_front(index);
        }
    }

    /// Takes the first connection out.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        let index = self.queue.pop_front()?;
        self.is_queued[index as usize] = false;
        Some(index)
    }

    /// The connection whose turn comes after `places` others.
    pub(crate) fn ahead(&self, places: usize) -> Option<u32> {
        self.queue.get(places).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::RunQueue;

    #[test]
    fn each_connection_is_queued_once_and_in_order() {
        let mut queue = RunQueue::new(3);
        queue.push(2);
        queue.push(0);
        queue.push(2);
        assert_eq!(queue.pop(), Some(2));
        queue.push_front(2);
        assert_eq!(
            (queue.pop(), queue.pop(), queue.pop()),
            (Some(2), Some(0), None)
        );
    }
}
