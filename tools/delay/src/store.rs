//! Where held frames lie: cells of three sizes, all made at the start.
//!
//! A frame is copied into one cell of the smallest size that holds it, or of a larger one if those
//! are all taken. The cell freed last is used next, so that a light load stays in a cache; memory
//! that was never needed is never touched. Queues are chains through the cells, so they cost
//! nothing while they are empty and never allocate.
//!
//! Refuses frames above [`FRAME_BYTES_MAX`]. Bounded by [`SIZES`]: 80 MiB.

use clock::Instant;

use crate::middlebox::FRAME_BYTES_MAX;

/// Bytes of a cell, and how many there are: for acknowledgments and small requests, for full
/// frames of an ordinary network, for what segmentation offload makes.
const SIZES: [(usize, u32); 3] = [(256, 65_536), (2_048, 16_384), (LARGE_BYTES, 512)];

/// Room for [`FRAME_BYTES_MAX`], in whole cache lines. Not a power of two, so that the cells'
/// beginnings do not fall on the same few lines of a cache.
const LARGE_BYTES: usize = 65_664;

/// The end of a chain.
const NONE: u32 = u32::MAX;

/// A cell that holds a frame. Whoever has it must give it to [`Store::release`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a cell that is not released is lost"]
pub(crate) struct Cell(u32);

/// What is known of a cell while it is in use.
#[derive(Clone, Copy, Debug)]
struct Label {
    /// When the frame is to leave.
    deadline: Instant,
    bytes: u32,
    /// The cell behind it in its queue.
    next: u32,
}

/// Cells of one size.
#[derive(Debug)]
struct Class {
    cell_bytes: usize,
    /// The number of its first cell.
    first: u32,
    /// Free cells, the one freed last at the end.
    free: Vec<u32>,
    memory: Box<[u8]>,
}

/// All cells.
#[derive(Debug)]
pub(crate) struct Store {
    classes: [Class; SIZES.len()],
    labels: Box<[Label]>,
}

/// A chain of cells in the order they leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    head: u32,
    tail: u32,
    /// When the first frame leaves; [`Instant::FAR_FUTURE`] if there is none.
    deadline: Instant,
    frames: u32,
    bytes: u64,
}

impl Queue {
    /// An empty queue.
    pub(crate) const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
        deadline: Instant::FAR_FUTURE,
        frames: 0,
        bytes: 0,
    };

    /// When the first frame leaves; [`Instant::FAR_FUTURE`] if there is none.
    pub(crate) const fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Frames in it.
    #[cfg(test)]
    pub(crate) const fn frames(&self) -> u32 {
        self.frames
    }

    /// Bytes of the frames in it.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Store {
    /// Makes all cells.
    pub(crate) fn new() -> Self {
        let mut first = 0;
        let classes = SIZES.map(|(cell_bytes, count)| {
            let cells = usize::try_from(count).expect("invariant: usize has 32 bits");
            let class = Class {
                cell_bytes,
                first,
                free: (first..first + count).rev().collect(),
                memory: vec![0; cell_bytes * cells].into_boxed_slice(),
            };
            first += count;
            class
        });
        let label = Label {
            deadline: Instant::ZERO,
            bytes: 0,
            next: NONE,
        };
        Self {
            classes,
            labels: vec![label; index(first)].into_boxed_slice(),
        }
    }

    /// Copies a frame into a free cell at the end of `queue`. Whether there was one.
    ///
    /// A queue's deadlines never decrease: one before its predecessor's is raised to it.
    pub(crate) fn push(&mut self, queue: &mut Queue, deadline: Instant, frame: &[u8]) -> bool {
        let Some(cell) = self.reserve(frame) else {
            return false;
        };
        let bytes = u32::try_from(frame.len()).expect("invariant: a cell has 64 KB at most");
        let mut label = Label {
            deadline,
            bytes,
            next: NONE,
        };
        if queue.head == NONE {
            queue.head = cell;
            queue.deadline = deadline;
        } else {
            let last = &mut self.labels[index(queue.tail)];
            label.deadline = deadline.max(last.deadline);
            last.next = cell;
        }
        self.labels[index(cell)] = label;
        queue.tail = cell;
        queue.frames += 1;
        queue.bytes += u64::from(bytes);
        true
    }

    /// Takes the first frame out of `queue`, and the time it was to leave.
    pub(crate) fn pop(&mut self, queue: &mut Queue) -> Option<(Cell, Instant)> {
        if queue.head == NONE {
            return None;
        }
        let cell = queue.head;
        let Label {
            deadline,
            bytes,
            next,
        } = self.labels[index(cell)];
        queue.head = next;
        queue.deadline = if next == NONE {
            Instant::FAR_FUTURE
        } else {
            self.labels[index(next)].deadline
        };
        queue.frames -= 1;
        queue.bytes -= u64::from(bytes);
        Some((Cell(cell), deadline))
    }

    /// The frame in a cell.
    pub(crate) fn frame(&self, cell: &Cell) -> &[u8] {
        let class = &self.classes[self.class_of(cell.0)];
        let start = index(cell.0 - class.first) * class.cell_bytes;
        let bytes = index(self.labels[index(cell.0)].bytes);
        &class.memory[start..start + bytes]
    }

    /// Makes a cell free again.
    pub(crate) fn release(&mut self, cell: Cell) {
        let Cell(number) = cell;
        let class = self.class_of(number);
        self.classes[class].free.push(number);
    }

    /// Fills a free cell, of the smallest size that has one and holds the frame.
    fn reserve(&mut self, frame: &[u8]) -> Option<u32> {
        let fitting = self
            .classes
            .iter_mut()
            .filter(|class| frame.len() <= class.cell_bytes);
        for class in fitting {
            if let Some(number) = class.free.pop() {
                let start = index(number - class.first) * class.cell_bytes;
                class.memory[start..start + frame.len()].copy_from_slice(frame);
                return Some(number);
            }
        }
        None
    }

    fn class_of(&self, number: u32) -> usize {
        let above = self
            .classes
            .iter()
            .filter(|class| class.first <= number)
            .count();
        above - 1
    }
}

/// A cell's number as an index.
fn index(number: u32) -> usize {
    usize::try_from(number).expect("invariant: usize has 32 bits")
}

const _: () = assert!(FRAME_BYTES_MAX <= LARGE_BYTES);

#[cfg(test)]
mod tests {
    use super::{FRAME_BYTES_MAX, Instant, LARGE_BYTES, Queue, SIZES, Store};

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn frames_come_out_as_they_went_in() {
        let mut store = Store::new();
        let mut queues = [Queue::EMPTY; 2];
        let frame = |number: usize, bytes: usize| vec![u8::try_from(number).unwrap(); bytes];
        let lengths = [1, 256, 257, 2_048, 2_049, FRAME_BYTES_MAX];
        for (number, bytes) in lengths.into_iter().enumerate() {
            assert!(store.push(&mut queues[number % 2], at(5), &frame(number, bytes)));
        }
        assert_eq!(queues[0].frames(), 3);
        assert_eq!(queues[0].bytes(), 1 + 257 + 2_049);
        for (number, bytes) in lengths.into_iter().enumerate() {
            let (cell, deadline) = store.pop(&mut queues[number % 2]).unwrap();
            assert_eq!(store.frame(&cell), frame(number, bytes));
            assert_eq!(deadline, at(5));
            store.release(cell);
        }
        for mut queue in queues {
            assert!(store.pop(&mut queue).is_none());
            assert_eq!((queue.frames(), queue.bytes()), (0, 0));
            assert_eq!(queue.deadline(), Instant::FAR_FUTURE);
        }
    }

    #[test]
    fn a_queue_shows_its_first_deadline_and_never_goes_back() {
        let mut store = Store::new();
        let mut queue = Queue::EMPTY;
        for millis in [7, 9, 8] {
            assert!(store.push(&mut queue, at(millis), b"x"));
        }
        for millis in [7, 9, 9] {
            assert_eq!(queue.deadline(), at(millis));
            let (cell, deadline) = store.pop(&mut queue).unwrap();
            assert_eq!(deadline, at(millis));
            store.release(cell);
        }
    }

    #[test]
    fn small_frames_use_larger_cells_before_they_are_refused() {
        let mut store = Store::new();
        let mut queue = Queue::EMPTY;
        let cells: u32 = SIZES.iter().map(|(_, count)| count).sum();
        for _ in 0..cells {
            assert!(store.push(&mut queue, at(1), b"x"));
        }
        assert!(!store.push(&mut queue, at(1), b"x"));
        assert_eq!(queue.frames(), cells);
        let (cell, _) = store.pop(&mut queue).unwrap();
        store.release(cell);
        assert!(
            !store.push(&mut queue, at(1), &[0; 257]),
            "a small cell is free"
        );
        assert!(store.push(&mut queue, at(1), &[0; 256]));
    }

    #[test]
    fn a_frame_larger_than_any_cell_is_refused() {
        let mut store = Store::new();
        let mut queue = Queue::EMPTY;
        assert!(store.push(&mut queue, at(1), &[0; LARGE_BYTES]));
        assert!(!store.push(&mut queue, at(1), &[0; LARGE_BYTES + 1]));
    }

    #[test]
    fn the_cell_freed_last_is_used_next() {
        let mut store = Store::new();
        let mut queue = Queue::EMPTY;
        let mut place = |store: &mut Store| {
            assert!(store.push(&mut queue, at(1), b"x"));
            let (cell, _) = store.pop(&mut queue).unwrap();
            let address = store.frame(&cell).as_ptr();
            store.release(cell);
            address
        };
        assert_eq!(place(&mut store), place(&mut store));
    }
}
