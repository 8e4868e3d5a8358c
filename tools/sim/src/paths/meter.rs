//! What one connection sends, seen where its frames enter the path, and the losses of its plan.
//!
//! It refuses to look into the server: flight and timeouts are what a capture would show. Flight is
//! SND.NXT - SND.UNA, so that it includes what was SACKed or lost. Bounded by the run.

use std::collections::BTreeMap;

use clock::{Duration, Instant};
use wire::{ChecksumState, Incoming, SeqNumber, TcpFlags, parse_frame};

use super::marks::Marks;

/// A head sent again after at least this long without an ACK was sent by a timeout: the RTO is at
/// least as long (`tcp::rtt::RTO_VARIANCE_MIN`), and loss detection by ACKs is sooner.
const TIMEOUT_MIN: Duration = Duration::from_millis(200);

/// A loss event: segments that the path drops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LossPlan {
    /// It begins with the first segment that starts here or later in the stream.
    pub(crate) from: u64,
    /// So many segments are dropped when they are first sent, until something is sent again,
    pub(crate) segments: u32,
    /// and the first of them so many times more.
    pub(crate) again: u32,
    /// All data is dropped for so long,
    pub(crate) blackout: Duration,
    /// from the first retransmission on; else from the first of the segments on.
    pub(crate) is_blackout_of_resends: bool,
}

/// What happened in a loss event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LossReport {
    /// When the first segment was dropped.
    pub(crate) began_at: Instant,
    /// Flight then.
    pub(crate) flight: u64,
    /// Greatest flight until something was sent again.
    pub(crate) flight_max: u64,
    /// When something was first sent again.
    pub(crate) resent_at: Option<Instant>,
    /// SND.NXT when the last segment was dropped.
    pub(crate) high: u64,
    /// When everything up to there was acknowledged.
    pub(crate) ended_at: Option<Instant>,
    /// SND.NXT then.
    pub(crate) sent: u64,
}

/// A segment with data that entered the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sample {
    /// When.
    at: Instant,
    /// Flight, this segment included.
    flight: u64,
    /// Its payload.
    #[cfg(test)]
    bytes: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Meter {
    first: Option<u32>,
    una: u64,
    nxt: u64,
    samples: Vec<Sample>,
    resent_bytes: u64,
    /// How often the segment that starts at an offset was sent.
    sendings: BTreeMap<u64, u32>,
    acked_at: Instant,
    timeouts: u64,
    losses: Vec<(LossPlan, Option<LossReport>)>,
    marks: Marks,
    /// Starts of the segments of each event that are to be dropped again.
    again: Vec<(u64, u32)>,
}

impl Meter {
    pub(crate) fn new(losses: &[LossPlan]) -> Self {
        Self {
            first: None,
            una: 0,
            nxt: 0,
            samples: Vec::new(),
            resent_bytes: 0,
            sendings: BTreeMap::new(),
            acked_at: Instant::ZERO,
            timeouts: 0,
            losses: losses.iter().map(|plan| (*plan, None)).collect(),
            marks: Marks::default(),
            again: vec![(u64::MAX, 0); losses.len()],
        }
    }

    /// A frame of the server's enters the path. Returns whether it is to be dropped.
    pub(crate) fn on_sent(&mut self, now: Instant, frame: &[u8]) -> bool {
        let Ok(Incoming::Tcp {
            segment,
            ecn,
            payload,
            ..
        }) = parse_frame(frame, ChecksumState::Trusted)
        else {
            return false;
        };
        if segment.flags.contains(TcpFlags::SYN) {
            self.first = Some(segment.sequence.0.wrapping_add(1));
            self.marks.on_syn_ack(segment.flags, ecn);
            return false;
        }
        if payload.is_empty() {
            self.marks.on_control(ecn);
            return false;
        }
        let start = self.offset_of(segment.sequence);
        let end = start + payload.len() as u64;
        let is_again = start < self.nxt;
        self.marks.on_data(start, is_again, segment.flags, ecn);
        self.resent_bytes += end.min(self.nxt).saturating_sub(start);
        if is_again && start <= self.una && now.since(self.acked_at) >= TIMEOUT_MIN {
            self.timeouts += 1;
            // Further segments of this timeout are none of their own.
            self.acked_at = now;
        }
        self.nxt = self.nxt.max(end);
        *self.sendings.entry(start).or_default() += 1;
        let flight = self.nxt - self.una;
        self.samples.push(Sample {
            at: now,
            flight,
            #[cfg(test)]
            bytes: end - start,
        });
        self.apply_losses(now, start, is_again)
    }

    /// An ACK reaches the server.
    pub(crate) fn on_ack(&mut self, now: Instant, frame: &[u8]) {
        let Ok(Incoming::Tcp { segment, .. }) = parse_frame(frame, ChecksumState::Trusted) else {
            return;
        };
        if self.first.is_none() || segment.flags.contains(TcpFlags::SYN) {
            return;
        }
        self.acked_at = now;
        let ack = self.offset_of(segment.acknowledgment);
        let has_hole = segment.options.sack.as_slice().iter().any(|(_, end)| {
            // Not a report of what came twice.
            self.offset_of(*end) > ack
        });
        let is_duplicate = ack == self.una && ack < self.nxt;
        self.marks.on_ack(ack, segment.flags);
        if has_hole || is_duplicate {
            self.marks.on_hole(ack);
        }
        self.una = self.una.max(ack).min(self.nxt);
        let (una, nxt) = (self.una, self.nxt);
        for (_, report) in &mut self.losses {
            if let Some(report) = report
                && una >= report.high
                && report.ended_at.is_none()
            {
                report.ended_at = Some(now);
                report.sent = nxt;
            }
        }
    }

    /// Whether the plan drops this segment.
    fn apply_losses(&mut self, now: Instant, start: u64, is_again: bool) -> bool {
        let (flight, nxt) = (self.nxt - self.una, self.nxt);
        let mut is_dropped = false;
        for ((plan, report), again) in self.losses.iter_mut().zip(&mut self.again) {
            if report.is_none() && !is_again && start >= plan.from {
                *report = Some(LossReport {
                    began_at: now,
                    flight,
                    flight_max: flight,
                    resent_at: None,
                    high: nxt,
                    ended_at: None,
                    sent: 0,
                });
                *again = (start, plan.again);
            }
            let Some(report) = report else { continue };
            if is_again {
                report.resent_at.get_or_insert(now);
            } else if report.resent_at.is_none() {
                report.flight_max = report.flight_max.max(flight);
            }
            let is_first = !is_again && plan.segments > 0 && report.resent_at.is_none();
            let is_again = is_again && start == again.0 && again.1 > 0;
            let black_from = if plan.is_blackout_of_resends {
                report.resent_at
            } else {
                Some(report.began_at)
            };
            let is_black = black_from.is_some_and(|from| now < from + plan.blackout);
            if is_first {
                plan.segments -= 1;
            }
            if is_again {
                again.1 -= 1;
            }
            if (is_first || is_again || is_black) && report.ended_at.is_none() {
                report.high = nxt;
                is_dropped = true;
            }
        }
        is_dropped
    }

    fn offset_of(&self, sequence: SeqNumber) -> u64 {
        let first = self.first.unwrap_or_default();
        #[expect(clippy::cast_possible_truncation, reason = "modulo 2^32")]
        let una = SeqNumber(first.wrapping_add(self.una as u32));
        self.una
            .saturating_add_signed(sequence.distance(una).into())
    }

    /// Greatest flight from `from` to `to`.
    pub(crate) fn flight_max(&self, from: Instant, to: Instant) -> u64 {
        let within = self
            .samples
            .iter()
            .filter(|it| from <= it.at && it.at <= to);
        within.map(|it| it.flight).max().unwrap_or(0)
    }

    /// Largest payload of a packet from `from` to `to`.
    #[cfg(test)]
    pub(crate) fn payload_max(&self, from: Instant, to: Instant) -> u64 {
        let within = self
            .samples
            .iter()
            .filter(|it| from <= it.at && it.at <= to);
        within.map(|it| it.bytes).max().unwrap_or(0)
    }

    /// What was seen of ECN.
    pub(crate) const fn marks(&self) -> &Marks {
        &self.marks
    }

    /// Bytes sent again.
    pub(crate) const fn resent_bytes(&self) -> u64 {
        self.resent_bytes
    }

    /// Most times that a segment in `from..to` of the stream was sent.
    pub(crate) fn sendings_max(&self, from: u64, to: u64) -> u32 {
        self.sendings
            .range(from..to)
            .map(|(_, times)| *times)
            .max()
            .unwrap_or(0)
    }

    /// Timeouts, as they look from outside.
    pub(crate) const fn timeouts(&self) -> u64 {
        self.timeouts
    }

    /// The loss events that began.
    pub(crate) fn losses(&self) -> impl Iterator<Item = &LossReport> {
        self.losses.iter().filter_map(|(_, report)| report.as_ref())
    }
}
