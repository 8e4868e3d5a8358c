//! The middlebox itself, without a clock, a socket or a thread: frames in, frames out when due.
//!
//! Each flow belongs to one band, by its hash; each band has one delay, and so one queue in the
//! order of arrival is also in the order of departure. Nothing is sorted. What has no flow waits
//! in a queue of its own for no time at all.
//!
//! **Inside a flow the order is kept**, but for frames chosen to be overtaken (see
//! [`Config::reorder_permille`]): those take the band's second queue, whose delay is longer.
//!
//! Which frames are lost or overtaken follows from the seed and from how many frames with a flow
//! came before; nothing else is random.
//!
//! Bounds: [`Config::band_bytes_max`] for a band's two queues together, 80 MiB in
//! cells of three sizes for all. What exceeds them is dropped and counted.

use core::hash::Hasher as _;

use clock::{Duration, Instant};
use siphasher::sip::SipHasher13;

use crate::bands::Bands;
use crate::flow::{Flow, Traffic, classify};
use crate::store::{Cell, Queue, Store};

/// Bytes of the virtio-net header in front of every frame.
pub const VNET_HEADER_BYTES: usize = 10;

/// Largest frame that can be held, with its virtio-net header: Ethernet, and IPv6 at its largest.
pub const FRAME_BYTES_MAX: usize = VNET_HEADER_BYTES + 14 + 65_575;

/// Thousandths that are all.
pub const PERMILLE_MAX: u16 = 1_000;

/// Queues of a band: for those in order, and for those that are overtaken.
const QUEUES_PER_BAND: usize = 2;

const LOSS_PURPOSE: u64 = u64::from_be_bytes(*b"loss....");
const REORDER_PURPOSE: u64 = u64::from_be_bytes(*b"reorder.");

/// What a middlebox does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The delays flows are spread over.
    pub bands: Bands,
    /// Decides which flow has which band, and which frames are lost or overtaken.
    pub seed: u64,
    /// Thousandths of the frames with a flow that are dropped, up to [`PERMILLE_MAX`].
    pub loss_permille: u16,
    /// Thousandths of the frames with a flow that are held for longer, up to [`PERMILLE_MAX`].
    pub reorder_permille: u16,
    /// How much longer those are held: what arrives within it after them overtakes them.
    pub reorder_by: Duration,
    /// Most bytes held for one band; what would exceed it is dropped.
    pub band_bytes_max: u64,
}

/// Why a frame was dropped. A counter of [`Counters::dropped`] each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// Chosen by [`Config::loss_permille`].
    Loss,
    /// Its band holds [`Config::band_bytes_max`] already.
    BandFull,
    /// No cell is free for it.
    StoreFull,
    /// It is larger than [`FRAME_BYTES_MAX`], or not even a virtio-net header.
    Size,
}

impl DropReason {
    /// All reasons and their names, in the order of [`Counters::dropped`].
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Loss, "loss"),
        (Self::BandFull, "band_full"),
        (Self::StoreFull, "store_full"),
        (Self::Size, "size"),
    ];
}

/// What became of a frame that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// It leaves with the next round: it has no flow.
    AtOnce,
    /// It leaves in its band's time.
    Held,
    /// It will not leave.
    Dropped(DropReason),
}

/// What passed and what did not, since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that came in.
    pub received_frames: u64,
    /// Their bytes, from the destination MAC on.
    pub received_bytes: u64,
    /// Frames without a flow, that passed at once.
    pub at_once_frames: u64,
    /// Frames that were chosen to be overtaken.
    pub reordered_frames: u64,
    /// Frames dropped, by [`DropReason`].
    pub dropped: [u64; DropReason::ALL.len()],
    /// Most frames held at one time.
    pub held_frames_max: u64,
    /// Most bytes held at one time, virtio-net headers included.
    pub held_bytes_max: u64,
}

/// What one band did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BandCounters {
    /// Frames that it held, those still held included.
    pub frames: u64,
    /// Most bytes held at one time, virtio-net headers included.
    pub bytes_max: u64,
}

/// A frame that is due. It must be given to [`Middlebox::release`].
#[derive(Debug)]
#[must_use = "a frame that is not released keeps its cell for ever"]
pub struct Due {
    cell: Cell,
    /// When it was to leave.
    pub deadline: Instant,
    /// Whether it was held: it has a flow.
    pub was_held: bool,
}

/// One direction through the middlebox.
#[derive(Debug)]
pub struct Middlebox {
    config: Config,
    store: Store,
    at_once: Queue,
    /// [`QUEUES_PER_BAND`] for each band, those of a band side by side.
    queues: Box<[Queue]>,
    /// The queue that [`Middlebox::poll_due`] looks at next.
    cursor: usize,
    /// How many frames with a flow came in: each draws its fate by its number.
    ordinal: u64,
    held_frames: u64,
    held_bytes: u64,
    counters: Counters,
    band_counters: Box<[BandCounters]>,
}

impl Middlebox {
    /// An empty one. Allocates all it will ever use.
    ///
    /// # Panics
    /// If a share is above [`PERMILLE_MAX`].
    #[must_use]
    pub fn new(config: Config) -> Self {
        let shares = [config.loss_permille, config.reorder_permille];
        assert!(
            shares.iter().all(|share| *share <= PERMILLE_MAX),
            "a share of {shares:?} thousandths"
        );
        let bands = config.bands.delays().len();
        Self {
            config,
            store: Store::new(),
            at_once: Queue::EMPTY,
            queues: vec![Queue::EMPTY; bands * QUEUES_PER_BAND].into_boxed_slice(),
            cursor: 0,
            ordinal: 0,
            held_frames: 0,
            held_bytes: 0,
            counters: Counters::default(),
            band_counters: vec![BandCounters::default(); bands].into_boxed_slice(),
        }
    }

    /// Takes a frame that arrived at `arrived`: a virtio-net header, then the frame from its
    /// destination MAC on.
    pub fn handle_frame(&mut self, arrived: Instant, packet: &[u8]) -> Verdict {
        let verdict = self.place(arrived, packet);
        let frame_bytes = packet.len().saturating_sub(VNET_HEADER_BYTES);
        self.counters.received_frames += 1;
        self.counters.received_bytes += frame_bytes as u64;
        if let Verdict::Dropped(reason) = verdict {
            self.counters.dropped[reason as usize] += 1;
        } else {
            self.held_frames += 1;
            self.held_bytes += packet.len() as u64;
            let counters = &mut self.counters;
            counters.held_frames_max = counters.held_frames_max.max(self.held_frames);
            counters.held_bytes_max = counters.held_bytes_max.max(self.held_bytes);
            counters.at_once_frames += u64::from(verdict == Verdict::AtOnce);
        }
        verdict
    }

    /// When the next frame is due, if any is held.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let deadlines = self.queues.iter().map(Queue::deadline);
        let next = deadlines.fold(self.at_once.deadline(), Instant::min);
        (next < Instant::FAR_FUTURE).then_some(next)
    }

    /// The next frame that is due at `now`. Frames of one flow come in their order; the order
    /// between flows is no promise.
    pub fn poll_due(&mut self, now: Instant) -> Option<Due> {
        if let Some(due) = Self::take(&mut self.store, &mut self.at_once, now, false) {
            return Some(self.count_out(due));
        }
        // A queue is emptied of all that is due before the next one is looked at.
        for _ in 0..self.queues.len() {
            let queue = &mut self.queues[self.cursor];
            if let Some(due) = Self::take(&mut self.store, queue, now, true) {
                return Some(self.count_out(due));
            }
            self.cursor += 1;
            if self.cursor == self.queues.len() {
                self.cursor = 0;
            }
        }
        None
    }

    /// A due frame's bytes: a virtio-net header, then the frame.
    #[must_use]
    pub fn packet(&self, due: &Due) -> &[u8] {
        self.store.frame(&due.cell)
    }

    /// Forgets a due frame, whatever became of it.
    pub fn release(&mut self, due: Due) {
        self.store.release(due.cell);
    }

    /// The delay of a flow's frames, but for those that are overtaken.
    #[must_use]
    pub fn delay_of(&self, flow: &Flow) -> Duration {
        self.config.bands.delays()[self.band_of(flow)]
    }

    /// What passed and what did not.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The same by band, in the order of [`Bands::delays`].
    #[must_use]
    pub fn band_counters(&self) -> &[BandCounters] {
        &self.band_counters
    }

    /// Frames held now.
    #[must_use]
    pub const fn held_frames(&self) -> u64 {
        self.held_frames
    }

    fn place(&mut self, arrived: Instant, packet: &[u8]) -> Verdict {
        let frame = match packet.get(VNET_HEADER_BYTES..) {
            Some(frame) if packet.len() <= FRAME_BYTES_MAX => frame,
            _ => return Verdict::Dropped(DropReason::Size),
        };
        match classify(frame) {
            Traffic::AtOnce if self.store.push(&mut self.at_once, arrived, packet) => {
                Verdict::AtOnce
            }
            Traffic::AtOnce => Verdict::Dropped(DropReason::StoreFull),
            Traffic::Flow(flow) => self.hold(arrived, packet, &flow),
        }
    }

    fn hold(&mut self, arrived: Instant, packet: &[u8], flow: &Flow) -> Verdict {
        self.ordinal += 1;
        if self.chance(LOSS_PURPOSE, self.config.loss_permille) {
            return Verdict::Dropped(DropReason::Loss);
        }
        let band = self.band_of(flow);
        let mut delay = self.config.bands.delays()[band];
        let (in_order, overtaken) = (band * QUEUES_PER_BAND, band * QUEUES_PER_BAND + 1);
        let bytes = self.queues[in_order].bytes() + self.queues[overtaken].bytes();
        let bytes = bytes + packet.len() as u64;
        if bytes > self.config.band_bytes_max {
            return Verdict::Dropped(DropReason::BandFull);
        }
        let is_overtaken = self.chance(REORDER_PURPOSE, self.config.reorder_permille);
        let mut queue = in_order;
        if is_overtaken {
            queue = overtaken;
            delay += self.config.reorder_by;
        }
        if !self
            .store
            .push(&mut self.queues[queue], arrived + delay, packet)
        {
            return Verdict::Dropped(DropReason::StoreFull);
        }
        self.counters.reordered_frames += u64::from(is_overtaken);
        let counters = &mut self.band_counters[band];
        counters.frames += 1;
        counters.bytes_max = counters.bytes_max.max(bytes);
        Verdict::Held
    }

    fn band_of(&self, flow: &Flow) -> usize {
        let bands = self.config.bands.delays().len();
        // The high half of the product: even to within 2^-64, and no division.
        let scaled = (u128::from(flow.hash(self.config.seed)) * bands as u128) >> 64;
        usize::try_from(scaled).expect("invariant: below the number of bands")
    }

    /// Whether the frame that came last meets a fate that `permille` thousandths meet.
    fn chance(&self, purpose: u64, permille: u16) -> bool {
        if permille == 0 {
            return false;
        }
        let mut hasher = SipHasher13::new_with_keys(self.config.seed, purpose);
        hasher.write(&self.ordinal.to_le_bytes());
        hasher.finish() % u64::from(PERMILLE_MAX) < u64::from(permille)
    }

    fn take(store: &mut Store, queue: &mut Queue, now: Instant, was_held: bool) -> Option<Due> {
        if queue.deadline() > now {
            return None;
        }
        let (cell, deadline) = store.pop(queue)?;
        Some(Due {
            cell,
            deadline,
            was_held,
        })
    }

    fn count_out(&mut self, due: Due) -> Due {
        self.held_frames -= 1;
        self.held_bytes -= self.packet(&due).len() as u64;
        due
    }
}

#[cfg(test)]
mod tests;
