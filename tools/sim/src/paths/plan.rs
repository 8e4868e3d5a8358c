//! The plan of a run: one of several trials, each a path, a receiver and what it requests, for which
//! the oracles have bounds.
//!
//! It refuses combinations that no bound covers: see [`Trial`]. Bounded: paths of 1 Mb/s to 100 Mb/s,
//! RTTs to 900 ms, some megabytes.

use clock::{Duration, Instant};
use session::CongestionControl;

use super::leg::{LegPlan, MILLION, Policer};
use super::meter::LossPlan;
use super::receiver::{AckPolicy, ReceiverPlan, RequestPlan};
use crate::abusive_peer::Conduct;
use crate::rng::Rng;

/// Payload of a full segment without timestamps.
pub(crate) const SEGMENT_BYTES: u64 = 1460;
/// A path whose rate limits nothing.
const FAST_BITS: u64 = 1_000_000_000;
/// A window that limits nothing.
const WIDE_BYTES: u64 = 32 << 20;

/// The smallest buffer of a rough path: five frames.
const BUFFER_BYTES_MIN: u64 = 7600;

/// What a run tries, and so which bounds apply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trial {
    /// No loss and no step; the receiver's window fits the buffer, even if all of it is sent at once.
    Steady,
    /// Loss events of the plan on a fast path; nothing but cwnd limits the sender.
    Loss,
    /// A loss event, then steps of the RTT while a window is in flight.
    Step,
    /// Small replies, one after the other, and a step of the RTT; no loss.
    Thin,
    /// A loss event, then little to send for a while, then much.
    Pause,
    /// Loss, reordering, policers, buffers of any size.
    Rough,
    /// Frames overtake each other by more than RACK waits for at first, and none is lost.
    Reordered,
    /// A router that marks packets long before its buffer is full, and a receiver with ECN.
    Marked,
    /// Large packets are dropped without a report, from the start or from the middle of a reply on, and
    /// sometimes pass again later.
    BlackHole,
    /// A peer that answers for ever.
    Forever(Conduct),
}

/// All parameters of a run.
#[derive(Clone, Debug)]
pub(crate) struct PathsPlan {
    pub(crate) trial: Trial,
    pub(crate) congestion: CongestionControl,
    /// Whether the server paces.
    pub(crate) is_paced: bool,
    /// Largest packet the link segments itself; 0: no segmentation offload.
    pub(crate) segmentation_bytes_max: u32,
    /// From the server to the receiver.
    pub(crate) forth: LegPlan,
    /// From the receiver to the server.
    pub(crate) back: LegPlan,
    /// Of ACKs without data that follow another closely, every one of that number is dropped; 0: none.
    pub(crate) drops_ack_every: u64,
    pub(crate) losses: Vec<LossPlan>,
    pub(crate) receiver: ReceiverPlan,
    /// When the run begins.
    pub(crate) epoch: Instant,
    pub(crate) seed: u64,
}

impl PathsPlan {
    /// The plan of a seed.
    pub(crate) fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed, 20);
        let conduct = rng.pick(&[Conduct::ShutAtFin, Conduct::Shut]);
        let trial = match rng.range(0..=99) {
            0..=17 => Trial::Steady,
            18..=19 => Trial::BlackHole,
            20..=44 => Trial::Loss,
            45..=59 => Trial::Step,
            60..=74 => Trial::Thin,
            75..=84 => Trial::Pause,
            85..=90 => Trial::Rough,
            91..=93 => Trial::Reordered,
            94..=96 => Trial::Marked,
            _ => Trial::Forever(conduct),
        };
        let mut plan = Self {
            trial,
            congestion: rng.pick(&CongestionControl::ALL),
            is_paced: rng.chance(700),
            segmentation_bytes_max: rng.pick(&[65_535, 65_535, 0]),
            forth: LegPlan::default(),
            back: LegPlan::default(),
            drops_ack_every: 0,
            losses: Vec::new(),
            receiver: draw_receiver(&mut rng),
            epoch: Instant::ZERO,
            seed,
        };
        plan.is_paced |= plan.congestion.needs_pacing();
        let rng = &mut rng;
        match trial {
            Trial::Steady => plan.draw_steady(rng),
            Trial::Loss => plan.draw_loss(rng),
            Trial::Step => plan.draw_step(rng),
            Trial::Thin => plan.draw_thin(rng),
            Trial::Pause => plan.draw_pause(rng),
            Trial::Rough => plan.draw_rough(rng),
            Trial::Reordered => plan.draw_reordered(rng),
            Trial::Marked => plan.draw_marked(rng),
            Trial::BlackHole => plan.draw_black_hole(rng),
            Trial::Forever(_) => plan.set_rtt(draw_millis(rng, 10..=400)),
        }
        plan
    }

    /// The RTT without queues, so long after the start.
    pub(crate) fn rtt_at(&self, elapsed: Duration) -> Duration {
        self.forth.delay_at(elapsed) + self.back.delay_at(elapsed)
    }

    /// The longest of these.
    pub(crate) fn rtt_max(&self) -> Duration {
        self.forth.delay_max() + self.back.delay_max()
    }

    /// Sets the same delay for both directions.
    pub(crate) fn set_rtt(&mut self, rtt: Duration) {
        self.forth.delay = rtt / 2;
        self.back.delay = rtt - rtt / 2;
    }

    /// From `at` on the RTT is another.
    fn add_step(&mut self, at: Duration, rtt: Duration) {
        self.forth.steps.push((at, rtt / 2));
        self.back.steps.push((at, rtt - rtt / 2));
    }

    fn request(&mut self, pause: Duration, bytes: u64) {
        self.receiver.requests.push(RequestPlan { pause, bytes });
    }

    fn draw_steady(&mut self, rng: &mut Rng) {
        let rtt = draw_millis(rng, 10..=600);
        self.set_rtt(rtt);
        let rate = rng.log_range(2_000_000..=100_000_000);
        let product = product_bytes(rate, rtt).max(25_000);
        self.forth.rate_bits = rate;
        self.forth.buffer_bytes = product * rng.pick(&[1, 2, 10]);
        // A window sent at once fits the buffer, headers included.
        let room = self.forth.buffer_bytes * 9 / 10;
        let share = rng.range(30..=100);
        self.receiver.window_bytes = (room * share / 100).clamp(20_000, room).min(300_000);
        self.draw_ack_path(rng, rtt);
        let windows = rng.range(4..=8);
        for _ in 0..rng.range(1..=3) {
            let pause = draw_millis(rng, 1..=2000);
            self.request(
                pause,
                windows * self.receiver.window_bytes / 2 + rng.range(1..=2000),
            );
        }
    }

    /// ACK compression, held data, thinning.
    fn draw_ack_path(&mut self, rng: &mut Rng, rtt: Duration) {
        if rng.chance(300) {
            self.back.hold = rtt * u32::try_from(rng.range(1..=4)).unwrap_or(1) / 8;
        }
        if rng.chance(300) {
            self.forth.hold = Duration::from_micros(rng.range(50..=2000));
        }
        if rng.chance(300) {
            self.drops_ack_every = rng.range(2..=5);
        }
        if rng.chance(200) {
            self.receiver.acks = AckPolicy::Every(rng.pick(&[4, 8]));
        }
    }

    fn draw_fast(&mut self, rtt: Duration) {
        self.set_rtt(rtt);
        self.forth.rate_bits = FAST_BITS;
        self.receiver.window_bytes = WIDE_BYTES;
    }

    fn draw_loss(&mut self, rng: &mut Rng) {
        self.draw_fast(draw_millis(rng, 20..=200));
        let from = rng.range(20..=120) * SEGMENT_BYTES;
        // A few, or most of the flight, which is up to twice as much by then.
        let flight = from / SEGMENT_BYTES;
        let segments = if rng.chance(500) {
            rng.log_range(1..=10)
        } else {
            rng.range(flight / 2..=flight * 3 / 2)
        };
        let segments = count(segments);
        let is_blackout = rng.chance(600);
        let is_blackout_of_resends = rng.chance(700);
        let blackout = draw_millis(rng, 200..=2000);
        self.losses.push(LossPlan {
            from,
            segments,
            again: count(rng.range(0..=2)),
            blackout: blackout * u32::from(is_blackout),
            is_blackout_of_resends,
        });
        self.request(Duration::ZERO, from * 10);
    }

    fn draw_step(&mut self, rng: &mut Rng) {
        let rtt = draw_millis(rng, 40..=150);
        self.draw_fast(rtt);
        // The loss ends slow start, so that the flight is steady when the step comes.
        let from = rng.range(40..=100) * SEGMENT_BYTES;
        self.losses.push(one_loss(from));
        let higher = (rtt * u32::try_from(rng.range(15..=90)).unwrap_or(15) / 10)
            .min(Duration::from_millis(900));
        let at = rtt * u32::try_from(rng.range(10..=16)).unwrap_or(10);
        self.add_step(at, higher);
        if rng.chance(500) {
            self.add_step(at + higher * 10, rtt);
        }
        self.request(Duration::ZERO, from * 22);
    }

    fn draw_thin(&mut self, rng: &mut Rng) {
        let rtt = draw_millis(rng, 20..=200);
        self.draw_fast(rtt);
        let higher = (rtt * u32::try_from(rng.range(20..=90)).unwrap_or(20) / 10)
            .min(Duration::from_millis(900));
        let pause = draw_millis(rng, 1..=400);
        self.add_step((rtt + pause) * 12, higher);
        let bytes = rng.range(100..=9 * SEGMENT_BYTES);
        for _ in 0..45 {
            // A small one is acknowledged late, for once.
            let is_small = rng.chance(200);
            self.request(pause, if is_small { 1 + bytes % 500 } else { bytes });
        }
    }

    fn draw_pause(&mut self, rng: &mut Rng) {
        self.draw_fast(draw_millis(rng, 30..=100));
        self.receiver.sack_blocks = 3;
        let from = rng.range(20..=50) * SEGMENT_BYTES;
        self.losses.push(one_loss(from));
        self.request(Duration::ZERO, from * 6);
        let lasts = draw_millis(rng, 10_000..=60_000);
        let each = if rng.chance(800) {
            draw_millis(rng, 30..=120)
        } else {
            lasts
        };
        let replies = lasts.as_millis().div_ceil(each.as_millis().max(1));
        for _ in 0..replies.min(400) {
            self.request(each, rng.range(100..=1000));
        }
        self.request(each, from * 30);
    }

    fn draw_rough(&mut self, rng: &mut Rng) {
        let rtt = draw_millis(rng, 10..=300);
        self.set_rtt(rtt);
        let rate = rng.log_range(1_000_000..=50_000_000);
        let product = product_bytes(rate, rtt);
        self.forth.rate_bits = rate;
        self.forth.buffer_bytes =
            (product * rng.pick(&[1, 5, 10, 20, 100]) / 10).max(BUFFER_BYTES_MIN);
        self.receiver.window_bytes = rng.pick(&[64_000, 256_000, 4 << 20]);
        if rng.chance(500) {
            self.forth.loss_ppm = rng.log_range(100..=20_000);
        }
        if rng.chance(300) {
            self.forth.reorder_ppm = rng.log_range(100..=50_000);
            self.forth.reorder_delay = rtt / u32::try_from(rng.range(2..=20)).unwrap_or(2);
        }
        if rng.chance(200) {
            self.forth.policer = Some(Policer {
                rate_bits: rate * rng.range(3..=10) / 10,
                burst_bytes: rng.range(15_000..=200_000),
            });
        }
        if rng.chance(200) {
            self.back.loss_ppm = rng.log_range(100..=20_000);
        }
        self.draw_ack_path(rng, rtt);
        self.request(Duration::ZERO, rng.log_range(100_000..=1_000_000));
        if rng.chance(300) {
            self.receiver.ecn = true;
            self.forth.mark_bytes = self.forth.buffer_bytes / rng.range(2..=5);
        }
    }

    /// Up to two frames in a hundred are late by up to half of a round trip.
    fn draw_reordered(&mut self, rng: &mut Rng) {
        let rtt = draw_millis(rng, 40..=200);
        self.draw_fast(rtt);
        self.forth.reorder_ppm = rng.log_range(5_000..=20_000);
        self.forth.reorder_delay = rtt / 2;
        self.receiver.sack_blocks = 3;
        self.receiver.reports_duplicates = true;
        self.request(Duration::ZERO, rng.range(1_500_000..=3_000_000));
    }

    /// The path carries what RFC 8899's base needs, and not all of what Ethernet does.
    fn draw_black_hole(&mut self, rng: &mut Rng) {
        let rtt = draw_millis(rng, 10..=200);
        self.draw_fast(rtt);
        let at = if rng.chance(400) {
            Duration::ZERO
        } else {
            rtt * count(rng.range(2..=12))
        };
        self.forth.sizes.push((at, rng.range(1200..=1499)));
        if rng.chance(300) {
            let opens = at + draw_millis(rng, 100..=10_000);
            self.forth.sizes.push((opens, 1500));
        }
        for _ in 0..rng.range(1..=3) {
            let pause = draw_millis(rng, 1..=3000);
            self.request(pause, rng.log_range(200_000..=3_000_000));
        }
    }

    /// Slow start doubles what is in flight until the first echo arrives: the buffer has room for four
    /// times what is in flight when the first packet is marked.
    fn draw_marked(&mut self, rng: &mut Rng) {
        let rtt = draw_millis(rng, 10..=60);
        self.set_rtt(rtt);
        let rate = rng.log_range(5_000_000..=30_000_000);
        self.forth.rate_bits = rate;
        let product = product_bytes(rate, rtt).max(30_000);
        self.forth.mark_bytes = product * rng.range(10..=20) / 10;
        self.forth.buffer_bytes = 4 * (product + self.forth.mark_bytes);
        self.receiver.window_bytes = WIDE_BYTES;
        self.receiver.ecn = true;
        self.request(Duration::ZERO, 4 * self.forth.buffer_bytes);
    }
}

fn draw_receiver(rng: &mut Rng) -> ReceiverPlan {
    ReceiverPlan {
        window_bytes: WIDE_BYTES,
        sack_blocks: rng.pick(&[0, 0, 1, 3, 3, 3, 4]),
        reports_duplicates: rng.chance(700),
        timestamps: rng.chance(700),
        ecn: false,
        acks: rng.pick(&[
            AckPolicy::Every(1),
            AckPolicy::Every(2),
            AckPolicy::Every(2),
            AckPolicy::Burst,
        ]),
        resends_after: Duration::from_secs(3),
        path: String::new(),
        requests: Vec::new(),
        leaves_after: None,
    }
}

/// A loss event of one segment.
const fn one_loss(from: u64) -> LossPlan {
    LossPlan {
        from,
        segments: 1,
        again: 0,
        blackout: Duration::ZERO,
        is_blackout_of_resends: false,
    }
}

fn count(drawn: u64) -> u32 {
    u32::try_from(drawn).expect("invariant: small")
}

fn draw_millis(rng: &mut Rng, range: core::ops::RangeInclusive<u64>) -> Duration {
    Duration::from_millis(rng.log_range(range))
}

/// Bandwidth times delay, bytes.
pub(crate) fn product_bytes(rate_bits: u64, rtt: Duration) -> u64 {
    let bits = u128::from(rate_bits) * rtt.as_micros() / u128::from(MILLION);
    u64::try_from(bits / 8).unwrap_or(u64::MAX)
}
