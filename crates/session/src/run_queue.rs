//! Connections that have something to do, each at most once, in the order they came.

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

    /// Puts a connection last, unless it already waits.
    pub(crate) fn push(&mut self, index: u32) {
        self.push_new(index);
    }

    /// The same; whether it did not wait yet.
    pub(crate) fn push_new(&mut self, index: u32) -> bool {
        let queued = &mut self.is_queued[index as usize];
        let is_new = !*queued;
        if is_new {
            *queued = true;
            self.queue.push_back(index);
        }
        is_new
    }

    /// Puts a connection first: it was interrupted.
    pub(crate) fn push_front(&mut self, index: u32) {
        let queued = &mut self.is_queued[index as usize];
        if !*queued {
            *queued = true;
            self.queue.push_front(index);
        }
    }

    /// Takes the first.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        let index = self.queue.pop_front()?;
        self.is_queued[index as usize] = false;
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::RunQueue;

    #[test]
    fn each_waits_once_and_in_order() {
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
