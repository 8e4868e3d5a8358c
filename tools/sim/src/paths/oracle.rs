//! The bounds of a run: how fast a transfer must end, what may be sent again, and how the window may
//! change.
//!
//! | Oracle      | Rule                                                                            |
//! |-------------|---------------------------------------------------------------------------------|
//! | `duration`  | without loss, a reply takes the rounds of slow start, its bytes at the rate     |
//! |             | that path and window allow, and no more                                         |
//! | `lossless`  | without loss and without a step, nothing is sent again                          |
//! | `floor`     | after a loss event the window returns to beta times the flight when it began,   |
//! |             | within the rounds of a slow start                                               |
//! | `ceiling`   | after a loss event the window stays below what it was                           |
//! | `step`      | a longer RTT is no loss: few segments are sent again, and the flight returns    |
//! | `learning`  | some replies after a step of the RTT nothing is sent again, and nothing ever    |
//! |             | more than three times                                                           |
//! | `pause`     | time without data to send does not open the window                              |
//! | `progress`  | on any path: a least goodput, and little is sent again that has arrived         |
//! | `reordered` | frames that are late are not lost: slow start goes on                           |
//! | `marked`    | a router that marks loses nothing, and carries half of its rate at least        |
//! | `hole`      | where large packets are dropped silently, a reply takes a few timeouts more, and   |
//! |             | what is sent in vain is bounded                                                 |
//! | `ecn`       | new data alone is ECT; each echo is answered by CWR, once a window of data      |
//!
//! Each is loose: it allows for rounding, delayed ACKs and timers, and for the growth of the window
//! that the RFCs permit. It refuses to compare with another run or another TCP.

use clock::{Duration, Instant};
use session::CongestionControl;

use super::leg::time_on_wire;
use super::meter::{LossReport, Meter};
use super::plan::{PathsPlan, SEGMENT_BYTES, Trial};
use super::receiver::{ACK_DELAY, AckPolicy, Receiver, ReplyReport};
use crate::client::Violation;

/// Initial window (RFC 6928).
const INITIAL_BYTES: u64 = 10 * SEGMENT_BYTES;
/// Rounds of HyStart++'s conservative slow start (RFC 9406 s4.3).
const CONSERVATIVE_ROUNDS: u32 = 5;
/// Scheduling of disk and link in a reply.
const SLACK: Duration = Duration::from_millis(50);

/// What the run violates.
pub(crate) fn violations(plan: &PathsPlan, meter: &Meter, receiver: &Receiver) -> Vec<Violation> {
    let run = Bounds {
        plan,
        meter,
        receiver,
    };
    match plan.trial {
        Trial::Steady => [run.duration(), run.lossless()].concat(),
        Trial::Loss => [run.floor(), run.ceiling()].concat(),
        Trial::Step => run.step(),
        Trial::Thin => run.learning(),
        Trial::Pause => [run.floor(), run.pause()].concat(),
        Trial::Rough => [run.progress(), run.ecn()].concat(),
        Trial::Reordered => run.reordered(),
        Trial::Marked => [run.marked(), run.lossless(), run.ecn()].concat(),
        Trial::BlackHole => run.hole(),
        Trial::Forever(_) => Vec::new(),
    }
}

/// A reply whose `bytes` took longer than `most`.
fn too_late(check: &str, reply: &ReplyReport, bytes: u64, most: Duration) -> Option<Violation> {
    let took = reply.ended_at.since(reply.asked_at);
    (took > most).then(|| {
        let (took, most) = (took.as_millis(), most.as_millis());
        format!("{check}: {bytes} bytes took {took} ms, more than {most} ms")
    })
}

struct Bounds<'a> {
    plan: &'a PathsPlan,
    meter: &'a Meter,
    receiver: &'a Receiver,
}

impl Bounds<'_> {
    /// A reply of N bytes ends within a round trip for the request, the rounds of a slow start from
    /// the initial window to the receiver's, and N bytes at the lesser of the bottleneck's rate and a
    /// window each round trip. The round trip includes the queue that the window may fill, held
    /// frames and the delay of an ACK. ACKs that are held look like a queue to HyStart++, which then
    /// takes some rounds more.
    ///
    /// A probe that repeats the last segment of a reply (see [`Bounds::lossless`]) is acknowledged as one
    /// that repaired a loss, if the receiver does not report duplicates: the window is halved (RFC 8985
    /// s7.4.2, and Linux), after an idle time that left of it the initial window at least. Then the next
    /// reply is sent in congestion avoidance, n * (w + n / 2) segments in n round trips.
    fn duration(&self) -> Vec<Violation> {
        let (forth, window) = (&self.plan.forth, self.plan.receiver.window_bytes);
        let queue = time_on_wire(window.min(forth.buffer_bytes), forth.rate_bits);
        let rtt = self.plan.rtt_max() + queue + forth.hold + self.plan.back.hold + ACK_DELAY;
        let mut rounds = 3 + doublings(window, INITIAL_BYTES);
        if !self.plan.back.hold.is_zero() {
            rounds += CONSERVATIVE_ROUNDS;
        }
        let mut starts = 0;
        let mut is_first = true;
        let mut found = Vec::new();
        for reply in self.receiver.replies() {
            let bytes = reply.ends - starts;
            starts = reply.ends;
            // Headers take less than a tenth of the rate.
            let on_wire = time_on_wire(bytes, forth.rate_bits) * 11 / 10;
            let by_window = rtt * u32::try_from(bytes / window + 1).unwrap_or(u32::MAX);
            let halved = match is_first {
                true => Duration::ZERO,
                false => self.avoidance(bytes),
            };
            is_first = false;
            let most = rtt * rounds + on_wire.max(by_window) + halved + SLACK;
            found.extend(too_late("duration", reply, bytes, most));
        }
        found
    }

    /// How long congestion avoidance takes for a reply, from half of the initial window on, if a probe may
    /// have caused it. There is no queue then.
    fn avoidance(&self, bytes: u64) -> Duration {
        let receiver = &self.plan.receiver;
        if !self.may_probe() || receiver.reports_duplicates || receiver.sack_blocks == 0 {
            return Duration::ZERO;
        }
        let window = INITIAL_BYTES / SEGMENT_BYTES / 2;
        let segments = bytes / SEGMENT_BYTES + 1;
        let rounds = (window * window + 2 * segments).isqrt() + 1 - window;
        let held = self.plan.forth.hold + self.plan.back.hold + ACK_DELAY;
        (self.plan.rtt_max() + held) * u32::try_from(rounds).unwrap_or(u32::MAX)
    }

    /// Nothing is sent again. Where ACKs of the last segments are dropped, or delayed beside others in
    /// flight, a tail loss probe may repeat one segment of a reply (RFC 8985 s7.2).
    fn lossless(&self) -> Vec<Violation> {
        let probes = match self.may_probe() {
            true => self.plan.receiver.requests.len() as u64,
            false => 0,
        };
        let most = probes * SEGMENT_BYTES;
        at_most(
            "lossless: bytes sent again",
            self.meter.resent_bytes(),
            most,
        )
    }

    /// Whether ACKs of the last segments may be dropped or late.
    const fn may_probe(&self) -> bool {
        let is_every_second = match self.plan.receiver.acks {
            AckPolicy::Every(segments) => segments <= 2,
            AckPolicy::Burst => true,
        };
        !is_every_second || self.plan.drops_ack_every > 0
    }

    /// Per mille of the window that a loss leaves (RFC 9438 s4.6, RFC 5681 s3.1). BBR bounds its
    /// flight to 0.7 BDP or more, and sends less 15 % of it while it does not probe; the window is two
    /// BDPs, and so the flight that finds nothing else to limit it.
    const fn beta(&self) -> u64 {
        match self.plan.congestion {
            CongestionControl::Cubic => 700,
            CongestionControl::Reno => 500,
            CongestionControl::Bbr => 297,
        }
    }

    /// The round trip after a loss event, with the delay of an ACK.
    fn rtt_after(&self, at: Instant) -> Duration {
        self.plan.rtt_at(at.since(self.plan.epoch)) + ACK_DELAY
    }

    /// When a loss event began the flight was W; so the window was no less. After everything of that
    /// time is acknowledged, slow start leads back to beta W, doubling each round trip, even after a
    /// timeout. One loss event is one reduction (RFC 5681 s3.1). BBR sends new data meanwhile, and may
    /// have less than that left to send after it.
    fn floor(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let ends = self.receiver.replies().last().map_or(0, |it| it.ends);
        for report in self.meter.losses() {
            let Some(ended_at) = report.ended_at else {
                continue;
            };
            let rounds = 4 + doublings(report.flight, SEGMENT_BYTES);
            let until = ended_at + self.rtt_after(ended_at) * rounds;
            let reached = self.meter.flight_max(ended_at, until);
            let wanted = report.flight * self.beta() / 1000;
            // A segment or two of rounding, and the initial window needs no proof.
            let least = wanted.saturating_sub(3 * SEGMENT_BYTES);
            let has_more = ends.saturating_sub(report.sent) >= report.flight;
            if reached < least && has_more {
                found.push(format!(
                    "floor: flight {} at a loss, {reached} in {rounds} rounds after it, less than \
                     {least}",
                    report.flight
                ));
            }
        }
        found
    }

    /// The greatest flight before the reduction is two thirds of the window or more: nothing else
    /// limits the sender, but that new data waits for credit of a third of the window. In the first
    /// round trips after the event the flight is at most beta times the window, and what congestion
    /// avoidance adds. A loss alone does not reduce BBR's window.
    fn ceiling(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        if self.plan.congestion == CongestionControl::Bbr {
            return found;
        }
        for report in self.meter.losses() {
            let Some(ended_at) = report.ended_at else {
                continue;
            };
            let until = ended_at + self.rtt_after(ended_at) * 2;
            let reached = self.meter.flight_max(ended_at, until);
            let window = report.flight_max * 3 / 2;
            let most = window * self.beta() / 1000 + self.growth(report, until);
            if reached > most {
                found.push(format!(
                    "ceiling: flight {} at a loss, {reached} after it, more than {most}",
                    report.flight_max
                ));
            }
        }
        found
    }

    /// What congestion avoidance adds from the start of a loss event until then: a segment each round
    /// trip, and CUBIC's curve, which is steepest at its start: 3 C K^2 segments a second, and
    /// K^3 = (1 - beta) W / C (RFC 9438 s4.2), so 1.2 (0.75 W)^(2/3).
    fn growth(&self, report: &LossReport, until: Instant) -> u64 {
        let ended_at = report.ended_at.unwrap_or(until);
        let rtt = self.rtt_after(ended_at);
        // A recovery without timeouts ends a round trip after it began to send by the new window.
        let avoided = until.since(ended_at) + rtt * 2;
        let segments = report.flight_max / SEGMENT_BYTES;
        let root = (1..=segments)
            .find(|n| n * n * n > segments * 3 / 4)
            .unwrap_or(1);
        let curve = match self.plan.congestion {
            CongestionControl::Cubic => u128::from(root * root) * 12 * avoided.as_millis() / 10_000,
            CongestionControl::Reno | CongestionControl::Bbr => 0,
        };
        let rounds = avoided.as_millis() / rtt.as_millis().max(1);
        let grown = u64::try_from(curve + rounds).unwrap_or(u64::MAX);
        (grown + 4) * SEGMENT_BYTES
    }

    /// The flight at each step of the RTT, all together.
    fn flights_at_steps(&self) -> u64 {
        let flights = self.plan.forth.steps.iter().map(|(after, _)| {
            let at = self.plan.epoch + *after;
            self.meter.flight_max(at, at + self.rtt_after(at))
        });
        flights.sum()
    }

    /// The RTT steps up while a window is in flight. A timeout may fire, and again with its backoff
    /// until the late ACKs arrive; each sends a segment again, and a tail loss probe one. Then ACKs
    /// show that nothing was lost (RFC 3522, RFC 5682), and the flight is what it was before.
    fn step(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let lost: u64 = self.meter.losses().map(|report| report.flight_max).sum();
        let can_tell = self.plan.receiver.timestamps || self.plan.receiver.sack_blocks > 0;
        let steps = self.plan.forth.steps.len() as u64;
        // And what the loss event before it takes.
        let most = if can_tell {
            (steps + 1) * 6 * SEGMENT_BYTES
        } else {
            // F-RTO without SACK cannot tell (RFC 5682 s2): a window may be sent again, that in flight at a step once.
            ((steps + 1) * 2 * lost).max(self.flights_at_steps())
        };
        let resent = self.meter.resent_bytes();
        found.extend(at_most("step: bytes sent again", resent, most));
        for (after, _) in self.plan.forth.steps.iter().filter(|_| can_tell) {
            let at = self.plan.epoch + *after;
            let before = self
                .plan
                .rtt_at(after.saturating_sub(Duration::from_nanos(1)));
            let now = self.rtt_after(at);
            if now < before {
                // The flight is smaller while pacing is by the old RTT.
                continue;
            }
            let from = self.plan.epoch + after.saturating_sub(before);
            let flight = self.meter.flight_max(from, at + before / 2);
            let until = at + now * 5 / 2;
            // Not if the reply ended meanwhile.
            let is_long = self
                .receiver
                .replies()
                .iter()
                .all(|reply| reply.ended_at > until + now);
            let reached = self.meter.flight_max(at + now * 3 / 2, until);
            // The session reads when a third of the window is free, or a pacing quantum, so what is in
            // flight at most depends on how the window divides into reads.
            let least = (flight * 2 / 3).saturating_sub(4 * SEGMENT_BYTES);
            if is_long && reached < least {
                found.push(format!(
                    "step: flight {flight} at a step, {reached} after it, less than {least}"
                ));
            }
        }
        found
    }

    /// A reply of at most ten segments is the only thing in flight. When the RTT has grown, the first
    /// reply is sent again in part, and its echoes, or the backoff, give the RTT. A tail loss probe
    /// waits for two SRTT, and SRTT moves by an eighth of the error for each sample.
    fn learning(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let step_at = self.plan.epoch + self.plan.forth.steps[0].0;
        let mut starts = 0;
        let mut after = 0;
        for reply in self.receiver.replies() {
            let most = match after {
                // Before the step, and long after it.
                0 => 1,
                1..=REPLIES_TO_LEARN => 3,
                _ => 1,
            };
            // Its last ACK may be delayed, and on its way when the RTT grows.
            let is_after = reply.ended_at + self.plan.rtt_max() + ACK_DELAY > step_at;
            let most = if is_after && after == 0 { 3 } else { most };
            after += u64::from(is_after);
            let sendings = self.meter.sendings_max(starts, reply.ends);
            if sendings > most {
                found.push(format!(
                    "learning: reply {after} after a step was sent {sendings} times, more than \
                     {most}"
                ));
            }
            starts = reply.ends;
        }
        found
    }

    /// The largest flight before the pause is what the path is known to take. After it the window may
    /// be that again, and grow from there as congestion avoidance does: a segment each round trip, and
    /// CUBIC's curve, which is a small part of the window in a few round trips. BBR's window is two
    /// BDPs and what ACKs report at once, each of which the path has taken; its Startup is not over while
    /// there is little to send, and goes on with the second round trip.
    fn pause(&self) -> Vec<Violation> {
        let replies = self.receiver.replies();
        let (Some(first), Some(last)) = (replies.first(), replies.last()) else {
            return Vec::new();
        };
        let known = self.meter.flight_max(self.plan.epoch, first.ended_at);
        let (rounds, halves) = match self.plan.congestion {
            CongestionControl::Bbr => (1, 6),
            CongestionControl::Cubic | CongestionControl::Reno => (8, 3),
        };
        let until = last.asked_at + self.plan.rtt_max() * rounds;
        let reached = self.meter.flight_max(last.asked_at, until);
        let most = known * halves / 2 + u64::from(rounds) * SEGMENT_BYTES;
        at_most("pause: flight after it", reached, most)
    }

    /// Nothing is lost, so slow start doubles the flight until everything is sent. Until RACK waits long
    /// enough, each round trip may bring a recovery, whose reduction is undone a round trip later. BBR may
    /// take a rate for the path's that late frames held for three round trips, until it next probes for
    /// more.
    fn reordered(&self) -> Vec<Violation> {
        let spare = match self.plan.congestion {
            CongestionControl::Bbr => REORDERED_ROUNDS_BBR,
            CongestionControl::Cubic | CongestionControl::Reno => REORDERED_ROUNDS,
        };
        let rtt = self.plan.rtt_max() + ACK_DELAY;
        let mut found = Vec::new();
        for reply in self.receiver.replies() {
            let most = rtt * (doublings(reply.ends, INITIAL_BYTES) + spare) + SLACK;
            found.extend(too_late("reordered", reply, reply.ends, most));
        }
        found
    }

    /// The rules of RFC 3168 that a capture shows.
    fn ecn(&self) -> Vec<Violation> {
        let faults = self.meter.marks().faults().iter();
        faults.map(|fault| format!("ecn: {fault}")).collect()
    }

    /// Slow start fills the bottleneck, unless delays end it before; then marks keep the queue between
    /// nothing and twice its threshold. So the rate is used, but for the rounds of slow start, and for
    /// those in which the flight falls from twice the threshold.
    fn marked(&self) -> Vec<Violation> {
        let forth = &self.plan.forth;
        let queue = time_on_wire(2 * forth.mark_bytes, forth.rate_bits);
        let rtt = self.plan.rtt_max() + queue + ACK_DELAY;
        let mut found = Vec::new();
        for reply in self.receiver.replies() {
            let rounds = 6 + CONSERVATIVE_ROUNDS + doublings(forth.mark_bytes * 2, INITIAL_BYTES);
            let most = time_on_wire(reply.ends, forth.rate_bits) * 2 + rtt * rounds + SLACK;
            found.extend(too_late("marked", reply, reply.ends, most));
        }
        found
    }

    /// Each change of the path costs three timeouts at most, the second twice and the third four times as
    /// long as the first, which is a round trip with its variance. A timeout leaves a threshold of half
    /// of the initial window at least, so that Reno sends n * n / 2 segments in n round trips. A probe
    /// that is lost delays what follows it by a round trip, and there are no more than
    /// [`PROBES_LOST_MAX`] in a round of the search, and again after each change.
    fn hole(&self) -> Vec<Violation> {
        let forth = &self.plan.forth;
        let rtt = self.plan.rtt_max() + ACK_DELAY;
        let timeout = rtt * 3 + TIMEOUT_VARIANCE_MIN;
        let changes = u32::try_from(forth.sizes.len()).unwrap_or(u32::MAX);
        let probes = changes * PROBES_LOST_MAX;
        let mut starts = 0;
        let mut found = Vec::new();
        for reply in self.receiver.replies() {
            let bytes = reply.ends - starts;
            starts = reply.ends;
            let segments = bytes / HOLE_SEGMENT_BYTES + 1;
            let rounds = u32::try_from((2 * segments).isqrt()).unwrap_or(u32::MAX);
            let most = rtt * (rounds + 10 + probes) + timeout * 7 * changes + SLACK;
            found.extend(too_late("hole", reply, bytes, most));
        }
        found
    }

    /// Any path carries a quarter of its rate (the policer's, if that is less), or three segments
    /// each round trip: which is what a loss of 5 % leaves (Mathis et al. 1997). Where a router marks one
    /// of three segments that arrive together, it is two: what a reduction leaves at least, and what is
    /// marked again in most round trips. The start takes ten round trips, and repeated requests and
    /// timeouts ten seconds. With SACK and without a receiver that forgets, hardly anything is sent again
    /// that has arrived; without SACK a timeout repeats what the receiver has beyond the hole.
    fn progress(&self) -> Vec<Violation> {
        let forth = &self.plan.forth;
        let policed = forth.policer.map_or(u64::MAX, |policer| policer.rate_bits);
        let rate = forth.rate_bits.min(policed);
        let bytes = self.receiver.received_bytes();
        let mut found = Vec::new();
        let marks_three = self.plan.receiver.ecn && forth.mark_bytes < 3 * SEGMENT_BYTES;
        let segments = if marks_three { 2 } else { 3 };
        for reply in self.receiver.replies() {
            let rounds = 10 + reply.ends / (segments * SEGMENT_BYTES);
            let rounds = u32::try_from(rounds).unwrap_or(u32::MAX);
            let rtt = self.plan.rtt_max() + self.plan.back.hold + ACK_DELAY / 2;
            let most = time_on_wire(reply.ends, rate) * 4 + rtt * rounds + REPEATS_MAX;
            found.extend(too_late("progress", reply, reply.ends, most));
        }
        let most = match self.plan.receiver.sack_blocks {
            0 => bytes / 2,
            _ => bytes / 16,
        };
        let most = most + 20 * SEGMENT_BYTES;
        let needless = self.receiver.duplicate_bytes();
        found.extend(at_most("progress: bytes received twice", needless, most));
        found
    }
}

/// Rounds of recoveries that are undone, and of HyStart++: see [`Bounds::reordered`]. The slowest of
/// 12,000 seeds is 1879, which takes 3.4.
const REORDERED_ROUNDS: u32 = 4;
/// The same for BBR. The slowest is 8767, which takes 11.9 until it has probed; no other of 12,000 takes
/// 4.
const REORDERED_ROUNDS_BBR: u32 = 12;
/// See [`Bounds::hole`]: two of the limit's size, and of each of five halvings.
const PROBES_LOST_MAX: u32 = 12;
/// Payload of the packets to which a black hole reduces, with timestamps: 1,200 bytes less headers.
const HOLE_SEGMENT_BYTES: u64 = 1148;
/// `tcp::rtt::RTO_VARIANCE_MIN`.
const TIMEOUT_VARIANCE_MIN: Duration = Duration::from_millis(200);
/// Repeated requests and timeouts of a rough path.
const REPEATS_MAX: Duration = Duration::from_secs(10);
/// Replies after which a longer RTT is known: see [`Bounds::learning`].
const REPLIES_TO_LEARN: u64 = 16;

fn at_most(what: &str, value: u64, most: u64) -> Vec<Violation> {
    let is_more = value > most;
    let found = is_more.then(|| format!("{what}: {value}, more than {most}"));
    found.into_iter().collect()
}

/// How often `from` doubles until it is `to`.
fn doublings(to: u64, from: u64) -> u32 {
    (to / from.max(1)).max(1).ilog2() + 1
}
