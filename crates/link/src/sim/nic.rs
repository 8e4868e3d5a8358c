//! The line of a device that several links share, as the queues of one NIC do: [`SimNic`].
//!
//! Each link that is attached has a queue. The line takes frames from the queues in turns, one frame each, and reads
//! a frame while it leaves: only then does its slot come back. A queue is bounded in bytes of frames.
//!
//! Frames may be handed over at a moment that is ahead of the simulation's, because a worker's round is simulated
//! whole and its core gets to a frame only later. So the line does not go on when a link is called, which knows its own
//! moments alone, but when it is told to, by [`SimNic::advance`], after all that is handed over before that moment was.
//!
//! It refuses to lose frames: one that finds no room in its queue is the caller's to offer again.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use clock::{Duration, Instant};
use wire::Outgoing;

/// What Ethernet adds to each packet on the wire, bytes: preamble, check sequence and gap (IEEE 802.3).
const ETHERNET_WIRE_BYTES: usize = 24;

/// The line, and how much waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NicConfig {
    /// Rate of the line, bits per second, not 0; preambles and gaps count.
    pub bits_per_second: u64,
    /// Most bytes of frames in a queue; a frame that finds an empty queue is taken whatever its size.
    pub ring_bytes_max: usize,
}

/// A NIC: clones are the same one.
#[derive(Clone, Debug)]
pub struct SimNic(Rc<RefCell<Nic>>);

#[derive(Debug)]
struct Nic {
    config: NicConfig,
    queues: Vec<Queue>,
    /// The queue that had its turn last.
    last: usize,
    /// When the last frame will have left, in picoseconds: a small packet takes 8,400 at 80 Gb/s.
    free_at_ps: u128,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// When each frame that had its turn has been read, until the link asks.
    read: VecDeque<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    handed_at: Instant,
    frame_bytes: usize,
    wire_bytes: usize,
}

impl SimNic {
    /// A NIC without queues.
    ///
    /// # Panics
    /// If its rate is 0.
    #[must_use]
    pub fn new(config: NicConfig) -> Self {
        assert!(config.bits_per_second > 0, "a line without a rate");
        Self(Rc::new(RefCell::new(Nic {
            config,
            queues: Vec::new(),
            last: 0,
            free_at_ps: 0,
        })))
    }

    /// The line sends what has its turn before or at `now`.
    pub fn advance(&self, now: Instant) {
        let mut nic = self.0.borrow_mut();
        while nic.next_turn().is_some_and(|at| at <= now) {
            nic.take_turn();
        }
    }

    /// When the next frame has its turn; `None`: nothing waits.
    #[must_use]
    pub fn next_turn(&self) -> Option<Instant> {
        self.0.borrow().next_turn()
    }

    pub(super) fn add_queue(&self) -> usize {
        let mut nic = self.0.borrow_mut();
        nic.queues.push(Queue::default());
        nic.queues.len() - 1
    }

    /// Whether a queue has room for a frame of so many bytes.
    pub(super) fn has_room(&self, queue: usize, bytes: usize) -> bool {
        let nic = self.0.borrow();
        let waiting_bytes = nic.queues[queue].waiting_bytes;
        waiting_bytes == 0 || waiting_bytes + bytes <= nic.config.ring_bytes_max
    }

    pub(super) fn hand_over(&self, queue: usize, at: Instant, frame: &Outgoing<'_>) {
        let mut nic = self.0.borrow_mut();
        let queue = &mut nic.queues[queue];
        let frame_bytes = frame.bytes();
        queue.waiting_bytes += frame_bytes;
        queue.waiting.push_back(Waiting {
            handed_at: at,
            frame_bytes,
            wire_bytes: wire_bytes(frame),
        });
    }

    /// What [`SimNic::take_read`] will return.
    pub(super) fn next_read(&self, queue: usize) -> Option<Instant> {
        self.0.borrow().queues[queue].read.front().copied()
    }

    /// When the next frame of a queue that had its turn was read; once for each.
    pub(super) fn take_read(&self, queue: usize) -> Option<Instant> {
        self.0.borrow_mut().queues[queue].read.pop_front()
    }
}

impl Nic {
    fn next_turn(&self) -> Option<Instant> {
        let fronts = self.queues.iter().filter_map(|it| it.waiting.front());
        let first = fronts.map(|front| front.handed_at).min()?;
        Some(first.max(rounded_up(self.free_at_ps)))
    }

    /// The next queue in turn that has a frame by then sends it.
    fn take_turn(&mut self) {
        let Some(at) = self.next_turn() else { return };
        let count = self.queues.len();
        let turns = (1..=count).map(|step| (self.last + step) % count);
        let mut ready = turns.filter(|&number| {
            let front = self.queues[number].waiting.front();
            front.is_some_and(|front| front.handed_at <= at)
        });
        let number = ready.next().expect("invariant: one has this turn");
        let queue = &mut self.queues[number];
        let Some(frame) = queue.waiting.pop_front() else {
            return;
        };
        queue.waiting_bytes -= frame.frame_bytes;
        let begins_ps = self
            .free_at_ps
            .max(u128::from(frame.handed_at.as_nanos()) * 1_000);
        let bits = frame.wire_bytes as u128 * 8 * 1_000_000_000_000;
        self.free_at_ps = begins_ps + bits.div_ceil(self.config.bits_per_second.into());
        queue.read.push_back(rounded_up(self.free_at_ps));
        self.last = number;
    }
}

fn rounded_up(picos: u128) -> Instant {
    let nanos = u64::try_from(picos.div_ceil(1_000));
    Instant::ZERO + Duration::from_nanos(nanos.expect("invariant: centuries of nanoseconds fit"))
}

/// Bytes on the wire of all packets that a frame is cut into.
fn wire_bytes(frame: &Outgoing<'_>) -> usize {
    let headers_bytes = frame.headers.len();
    let packets = match frame.offload.segmentation {
        Some(cut) => (frame.bytes() - headers_bytes).div_ceil(cut.segment_bytes.into()),
        None => 1,
    };
    frame.bytes() + (packets.max(1) - 1) * headers_bytes + packets.max(1) * ETHERNET_WIRE_BYTES
}
