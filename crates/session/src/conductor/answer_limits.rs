//! How many answers a second forged segments can provoke: challenge ACKs and resets, of all connections
//! together.
//!
//! Refused: what is beyond the limits, which is counted. Bounds: two limits, shared by the workers of the
//! process.

use clock::Instant;
use tcp::{AnswerLimit, Answers};

use crate::counters::Counters;

/// Challenge ACKs a second on average (RFC 5961 s7), besides the limit of each connection. A client needs
/// one only if it lost its state; a blind attacker provokes one with each guess. As many as Linux had
/// until it left its limit to the connections.
pub(super) const CHALLENGES_PER_SECOND: u32 = 1000;
/// Resets a second on average, for segments that belong to no connection: after a restart those of all
/// clients, else scans and forged segments, whose answers go to somebody else. A client that gets none
/// repeats its segment. FreeBSD sends 200.
pub(super) const RESETS_PER_SECOND: u32 = 1000;
/// Most workers of a process, which share both.
const WORKERS_MAX: u32 = u8::MAX as u32 + 1;
const _: () = assert!(
    CHALLENGES_PER_SECOND / WORKERS_MAX > 1 && RESETS_PER_SECOND / WORKERS_MAX > 1,
    "half of a worker's share permits something"
);

/// See the module.
#[derive(Debug)]
pub(super) struct AnswerLimits {
    challenges: AnswerLimit,
    /// For segments of no connection.
    resets: AnswerLimit,
}

impl AnswerLimits {
    /// Of an only worker; `key` is secret.
    pub(super) fn new(key: [u8; 16]) -> Self {
        Self {
            challenges: AnswerLimit::new(key, Answers::Challenges, CHALLENGES_PER_SECOND),
            resets: AnswerLimit::new(key, Answers::Resets, RESETS_PER_SECOND),
        }
    }

    /// So many workers share the limits.
    pub(super) fn share(&mut self, workers: u32) {
        self.challenges
            .set_per_second(CHALLENGES_PER_SECOND / workers);
        self.resets.set_per_second(RESETS_PER_SECOND / workers);
    }

    /// Whether a challenge ACK may be sent; counts it, or that it is not sent.
    pub(super) fn may_challenge(&mut self, now: Instant, counters: &mut Counters) -> bool {
        let may = self.challenges.take(now);
        counters.tcp_challenge_count += u64::from(may);
        counters.tcp_challenge_limited_count += u64::from(!may);
        may
    }

    /// Whether a segment of no connection may be answered by a reset; counts it, or that it is not sent.
    pub(super) fn may_reset(&mut self, now: Instant, counters: &mut Counters) -> bool {
        let may = self.resets.take(now);
        counters.tcp_refused_segments += u64::from(may);
        counters.tcp_reset_limited_count += u64::from(!may);
        may
    }
}
