//! Copies of what slots held, in a ring of bytes: each takes as much of it as it has bytes, and the oldest are overwritten.
//!
//! So how many clients share it does not matter: a copy lasts for as long as the ring takes to go round, at the rate at
//! which all of them are sent.
//!
//! It refuses to overwrite a copy from which a burst waits to be sent. Bounds: the bytes of the ring, and
//! [`Copies::count_max`] copies.

use std::collections::VecDeque;

use clock::Instant;

use super::KeptKey;

/// A copy takes as much at least, on average: so there are so many places for them.
const BYTES_EACH: usize = 8192;

/// One copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Copy {
    pub(super) key: KeptKey,
    /// Where in the ring it begins.
    from: usize,
    pub(super) since: Instant,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Copies {
    memory: Box<[u8]>,
    /// In the order in which they lie in the ring.
    copies: VecDeque<Copy>,
    count_max: usize,
    /// Where the next one begins.
    head: usize,
}

impl Copies {
    /// A ring of so many bytes, memory that the process has once it is used, for at most so many copies.
    pub(super) fn new(bytes: usize, count_max: usize) -> Self {
        let count_max = count_max.min(bytes / BYTES_EACH);
        Self {
            memory: vec![0; bytes].into_boxed_slice(),
            copies: VecDeque::with_capacity(count_max),
            count_max,
            head: 0,
        }
    }

    /// Most copies.
    pub(super) const fn count_max(&self) -> usize {
        self.count_max
    }

    /// All, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Copy> {
        self.copies.iter()
    }

    /// The copy that was made so many copies after the oldest one.
    pub(super) fn get(&self, place: usize) -> Option<Copy> {
        self.copies.get(place).copied()
    }

    /// The bytes of the ring from `from` on.
    pub(super) fn bytes(&self, from: usize, bytes: usize) -> &[u8] {
        let part = self.memory.get(from..from + bytes);
        part.expect("invariant: a copy lies in the ring")
    }

    /// Where a copy of so many bytes may be made; `None`: the oldest one is in its way, or it is larger than the ring.
    pub(super) fn room(&mut self, bytes: usize) -> Option<usize> {
        let Some(oldest) = self.copies.front() else {
            self.head = 0;
            return (self.count_max > 0 && bytes <= self.memory.len()).then_some(0);
        };
        if self.copies.len() == self.count_max {
            return None;
        }
        if self.head <= oldest.from {
            return (oldest.from - self.head >= bytes).then_some(self.head);
        }
        if self.memory.len() - self.head >= bytes {
            return Some(self.head);
        }
        (oldest.from >= bytes).then_some(0)
    }

    /// The oldest one is not needed any more.
    pub(super) fn drop_oldest(&mut self) {
        self.copies.pop_front();
    }

    /// Makes a copy of `content` at `from`, where there is room.
    pub(super) fn push(&mut self, now: Instant, key: KeptKey, from: usize, content: &[u8]) {
        let bytes = content.len();
        let place = self.memory.get_mut(from..from + bytes);
        let place = place.expect("invariant: there is room for a copy");
        place.copy_from_slice(content);
        self.head = from + bytes;
        self.copies.push_back(Copy {
            key,
            from,
            since: now,
        });
    }
}
