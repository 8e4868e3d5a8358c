//! One direction of the virtual wire: a bottleneck with a queue, faults, a delay.
//!
//! A frame's faults and arrival time are decided when it is sent; then it waits in a map ordered by
//! arrival until it is taken. Every frame takes the same number of random draws whatever the rates
//! are, so switching one fault off does not move the others. It refuses frames beyond its queue's
//! limit; in flight, frames are bounded by rate times delay.

use std::collections::{BTreeMap, VecDeque};

use clock::{Duration, Instant};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::ETHERNET_BYTES;

/// The rates of a [`PathConfig`] are parts of this.
pub const MILLION: u32 = 1_000_000;

const ETHERTYPES_IP: [[u8; 2]; 2] = [[0x08, 0x00], [0x86, 0xdd]];

/// One direction of the wire. The default has no limits and no faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathConfig {
    /// Frames in a million that never arrive.
    pub loss_ppm: u32,
    /// Frames in a million that arrive twice.
    pub duplicate_ppm: u32,
    /// IP packets in a million that arrive with one bit flipped.
    pub corrupt_ppm: u32,
    /// Frames in a million that are delayed by up to `reorder_delay` more, so that later frames
    /// overtake them.
    pub reorder_ppm: u32,
    /// Largest extra delay of such a frame.
    pub reorder_delay: Duration,
    /// One-way delay of every frame.
    pub delay: Duration,
    /// Rate of the bottleneck, bits per second; 0: none.
    pub bits_per_second: u64,
    /// Most frames that wait before the bottleneck; further ones are dropped.
    pub queue_frames_max: usize,
}

impl Default for PathConfig {
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
pub struct PathCounters {
    /// Frames sent.
    pub carried_frames: u64,
    /// Frames lost at random.
    pub lost_frames: u64,
    /// Frames dropped before the bottleneck.
    pub queue_dropped_frames: u64,
    /// Frames that were duplicated.
    pub duplicated_frames: u64,
    /// Frames with a flipped bit.
    pub corrupted_frames: u64,
    /// Frames that got an extra delay.
    pub reordered_frames: u64,
    /// Frames that arrived at an interface that was down.
    pub arrived_down_frames: u64,
    /// Frames larger than the MTU, refused when sent.
    pub oversize_frames: u64,
}

/// One direction of the wire.
#[derive(Debug)]
pub(super) struct Path {
    config: PathConfig,
    random: ChaCha8Rng,
    /// When each queued frame will have passed the bottleneck.
    queue: VecDeque<Instant>,
    /// When the last queued frame will have passed it.
    free_at: Instant,
    /// Frames in flight by arrival, then by the order they were sent in.
    in_flight: BTreeMap<(Instant, u64), Vec<u8>>,
    /// Number of frames ever put in flight.
    entered: u64,
    counters: PathCounters,
}

/// The random faults of one frame.
struct FaultDraw {
    lost: bool,
    duplicated: bool,
    corrupted: bool,
    reordered: bool,
    /// Position of the flipped bit, in parts of 2^64 of the packet.
    corrupt_at: u64,
    /// Extra delay, in parts of 2^64 of `reorder_delay`.
    extra_delay: u64,
}

/// A stream of random numbers of a seed.
pub(super) fn random(seed: u64, stream: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let mut random = ChaCha8Rng::from_seed(key);
    random.set_stream(stream);
    random
}

impl Path {
    pub(super) fn new(config: PathConfig, seed: u64, direction: u64) -> Self {
        let PathConfig {
            loss_ppm,
            duplicate_ppm,
            corrupt_ppm,
            reorder_ppm,
            ..
        } = config;
        for rate in [loss_ppm, duplicate_ppm, corrupt_ppm, reorder_ppm] {
            assert!(rate <= MILLION, "a rate of {rate} in a million");
        }
        Self {
            config,
            random: random(seed, direction),
            queue: VecDeque::new(),
            free_at: Instant::ZERO,
            in_flight: BTreeMap::new(),
            entered: 0,
            counters: PathCounters::default(),
        }
    }

    /// Sends a frame at `at`, which must not be before the last frame's.
    pub(super) fn send(&mut self, at: Instant, mut frame: Vec<u8>) {
        self.counters.carried_frames += 1;
        let draw = self.draw_faults();
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
        if draw.lost {
            self.counters.lost_frames += 1;
            return;
        }
        let mut arrival = self.free_at + self.config.delay;
        if draw.reordered {
            self.counters.reordered_frames += 1;
            arrival += part(self.config.reorder_delay, draw.extra_delay);
        }
        if draw.corrupted && flip_bit(&mut frame, draw.corrupt_at) {
            self.counters.corrupted_frames += 1;
        }
        if draw.duplicated {
            self.counters.duplicated_frames += 1;
            self.schedule_arrival(arrival, frame.clone());
        }
        self.schedule_arrival(arrival, frame);
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

    /// Drops the frames that have arrived by `now`: the interface is down.
    pub(super) fn drop_arrived(&mut self, now: Instant) {
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

    pub(super) const fn counters(&self) -> PathCounters {
        self.counters
    }

    fn schedule_arrival(&mut self, arrival: Instant, frame: Vec<u8>) {
        self.in_flight.insert((arrival, self.entered), frame);
        self.entered += 1;
    }

    /// Draws the same number of values for every frame, whether it needs them or not.
    fn draw_faults(&mut self) -> FaultDraw {
        let random = &mut self.random;
        let mut happens = |rate: u32| scale(random.next_u64(), u64::from(MILLION)) < rate.into();
        FaultDraw {
            lost: happens(self.config.loss_ppm),
            duplicated: happens(self.config.duplicate_ppm),
            corrupted: happens(self.config.corrupt_ppm),
            reordered: happens(self.config.reorder_ppm),
            corrupt_at: self.random.next_u64(),
            extra_delay: self.random.next_u64(),
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

/// `random`, of 2^64, as a part of `whole`: more than zero, at most all.
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
