//! One direction of the wire: a bottleneck with a queue, faults, a delay.
//!
//! Nothing happens by itself: a frame's whole way is decided when it enters, and it waits in a
//! map ordered by arrival until somebody takes it. Every frame costs the same number of random
//! draws whatever the rates are, so switching one fault off leaves the others where they were.

use std::collections::{BTreeMap, VecDeque};

use clock::{Duration, Instant};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::ETHERNET_BYTES;

/// What the rates of a [`CableConfig`] are parts of.
pub const MILLION: u32 = 1_000_000;

const ETHERTYPES_IP: [[u8; 2]; 2] = [[0x08, 0x00], [0x86, 0xdd]];

/// One direction of the wire. The default has no limits and no faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CableConfig {
    /// Frames in a million that never arrive.
    pub loss_ppm: u32,
    /// Frames in a million that arrive twice.
    pub duplicate_ppm: u32,
    /// IP packets in a million that arrive with one bit flipped.
    pub corrupt_ppm: u32,
    /// Frames in a million that are late by up to `reorder_delay`, so that younger ones overtake.
    pub reorder_ppm: u32,
    /// The most such a frame is late.
    pub reorder_delay: Duration,
    /// How long every frame travels.
    pub delay: Duration,
    /// Rate of the bottleneck, bits per second; 0: none.
    pub bits_per_second: u64,
    /// Frames that wait before the bottleneck; one more is dropped.
    pub queue_frames_max: usize,
}

impl Default for CableConfig {
    fn default() -> Self {
        Self {
            loss_ppm: 0,
            duplicate_ppm: 0,
            corrupt_ppm: 0,
            reorder_ppm: 0,
            reorder_delay: Duration::ZERO,
            delay: Duration::ZERO,
            bits_per_second: 0,
            queue_frames_max: usize::MAX,
        }
    }
}

/// What happened to the frames of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CableCounters {
    /// Frames that entered.
    pub carried_frames: u64,
    /// Frames lost at random.
    pub lost_frames: u64,
    /// Frames dropped before the bottleneck.
    pub queue_dropped_frames: u64,
    /// Frames that were given a copy.
    pub duplicated_frames: u64,
    /// Frames with a flipped bit.
    pub corrupted_frames: u64,
    /// Frames made late.
    pub reordered_frames: u64,
    /// Frames that arrived at an interface that was down.
    pub arrived_down_frames: u64,
    /// Frames larger than the MTU, refused at the entry.
    pub oversize_frames: u64,
}

/// One direction of the wire.
#[derive(Debug)]
pub(super) struct Cable {
    config: CableConfig,
    random: ChaCha8Rng,
    /// When each frame before the bottleneck will have passed it.
    queue: VecDeque<Instant>,
    /// When the last of them will have passed.
    free_at: Instant,
    /// Frames on their way by arrival, then by the order they entered in.
    in_flight: BTreeMap<(Instant, u64), Vec<u8>>,
    /// Frames that ever were on their way.
    entered: u64,
    counters: CableCounters,
}

/// The random part of one frame's way.
struct Dice {
    lost: bool,
    duplicated: bool,
    corrupted: bool,
    reordered: bool,
    /// Where the bit is flipped, of 2^64 parts of the packet.
    corrupt_at: u64,
    /// How late the frame is, of 2^64 parts of `reorder_delay`.
    lateness: u64,
}

impl Cable {
    pub(super) fn new(config: CableConfig, seed: u64, direction: u64) -> Self {
        let CableConfig {
            loss_ppm,
            duplicate_ppm,
            corrupt_ppm,
            reorder_ppm,
            ..
        } = config;
        for rate in [loss_ppm, duplicate_ppm, corrupt_ppm, reorder_ppm] {
            assert!(rate <= MILLION, "a rate of {rate} in a million");
        }
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let mut random = ChaCha8Rng::from_seed(key);
        random.set_stream(direction);
        Self {
            config,
            random,
            queue: VecDeque::new(),
            free_at: Instant::ZERO,
            in_flight: BTreeMap::new(),
            entered: 0,
            counters: CableCounters::default(),
        }
    }

    /// Lets a frame enter at `at`, which must not be before the last one's.
    pub(super) fn carry(&mut self, at: Instant, mut frame: Vec<u8>) {
        self.counters.carried_frames += 1;
        let dice = self.roll();
        while self
            .queue
            .pop_front_if(|passed_at| *passed_at <= at)
            .is_some()
        {}
        if self.queue.len() > self.config.queue_frames_max {
            self.counters.queue_dropped_frames += 1;
            return;
        }
        let transit = time_on_wire(frame.len(), self.config.bits_per_second);
        self.free_at = self.free_at.max(at) + transit;
        self.queue.push_back(self.free_at);
        if dice.lost {
            self.counters.lost_frames += 1;
            return;
        }
        let mut arrival = self.free_at + self.config.delay;
        if dice.reordered {
            self.counters.reordered_frames += 1;
            arrival += part(self.config.reorder_delay, dice.lateness);
        }
        if dice.corrupted && flip_bit(&mut frame, dice.corrupt_at) {
            self.counters.corrupted_frames += 1;
        }
        if dice.duplicated {
            self.counters.duplicated_frames += 1;
            self.enter(arrival, frame.clone());
        }
        self.enter(arrival, frame);
    }

    /// The next frame that has arrived by `now`.
    pub(super) fn take_arrived(&mut self, now: Instant) -> Option<Vec<u8>> {
        let first = self.in_flight.first_entry()?;
        if first.key().0 > now {
            None
        } else {
            Some(first.remove())
        }
    }

    /// Loses all that has arrived by `now`: there is nobody to take it.
    pub(super) fn lose_arrived(&mut self, now: Instant) {
        while self.take_arrived(now).is_some() {
            self.counters.arrived_down_frames += 1;
        }
    }

    /// When the next frame arrives, or has arrived.
    pub(super) fn next_arrival(&self) -> Option<Instant> {
        self.in_flight
            .first_key_value()
            .map(|((arrival, _), _)| *arrival)
    }

    pub(super) fn count_oversize(&mut self) {
        self.counters.oversize_frames += 1;
    }

    pub(super) const fn counters(&self) -> CableCounters {
        self.counters
    }

    fn enter(&mut self, arrival: Instant, frame: Vec<u8>) {
        self.in_flight.insert((arrival, self.entered), frame);
        self.entered += 1;
    }

    /// Draws everything a frame may need, needed or not.
    fn roll(&mut self) -> Dice {
        let random = &mut self.random;
        let mut happens = |rate: u32| scale(random.next_u64(), u64::from(MILLION)) < rate.into();
        Dice {
            lost: happens(self.config.loss_ppm),
            duplicated: happens(self.config.duplicate_ppm),
            corrupted: happens(self.config.corrupt_ppm),
            reordered: happens(self.config.reorder_ppm),
            corrupt_at: self.random.next_u64(),
            lateness: self.random.next_u64(),
        }
    }
}

/// How long a frame of `bytes` takes at a rate; nothing at a rate of 0. Rounded up, so that a
/// queue never empties faster than its rate.
pub(super) fn time_on_wire(bytes: usize, bits_per_second: u64) -> Duration {
    if bits_per_second == 0 {
        return Duration::ZERO;
    }
    let bits = u128::try_from(bytes).expect("invariant: usize fits u128") * 8;
    let nanos = (bits * 1_000_000_000).div_ceil(bits_per_second.into());
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// `random`, of 2^64, as a number below `below`.
fn scale(random: u64, below: u64) -> u64 {
    let scaled = (u128::from(random) * u128::from(below)) >> 64;
    u64::try_from(scaled).expect("invariant: less than `below`")
}

/// `random`, of 2^64, as a part of `whole`: more than nothing, at most all.
fn part(whole: Duration, random: u64) -> Duration {
    let nanos = u64::try_from(whole.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(scale(random, nanos).saturating_add(1).min(nanos))
}

/// Flips one bit of an IP packet, chosen by `random` of 2^64; `false` if the frame has none.
fn flip_bit(frame: &mut [u8], random: u64) -> bool {
    let Some((header, packet)) = frame.split_at_mut_checked(ETHERNET_BYTES) else {
        return false;
    };
    let is_ip = ETHERTYPES_IP
        .iter()
        .any(|ethertype| header.ends_with(ethertype));
    let bits = u64::try_from(packet.len() * 8).expect("invariant: usize fits u64");
    if !is_ip || bits == 0 {
        return false;
    }
    let bit = usize::try_from(scale(random, bits)).expect("invariant: less than the frame");
    let byte = packet
        .get_mut(bit / 8)
        .expect("invariant: less than the frame");
    *byte ^= 1 << (bit % 8);
    true
}
