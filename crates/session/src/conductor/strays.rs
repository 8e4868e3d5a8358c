//! Strays: segments that reached another worker than the one that has their connection, because the
//! link's steering changed while the connection lived, or knows less than the segment (a fragmented
//! packet, an ICMP error on a tap).
//!
//! ```text
//!  link ──▶ worker 2: no connection ──▶ worker 3: no connection ──▶ worker 0: handles it
//!           other_workers: 2            workers left: 1             workers left: 0
//! ```
//!
//! A worker that has no connection for a segment does not answer it, but passes it on: the caller takes
//! it by [`Conductor::poll_stray`] and brings it to the next worker, which calls
//! [`Conductor::handle_stray`]. The workers are a ring, so that it meets each of them once. The one that
//! has the connection handles it as one from its link, the source MAC included, to which it then sends.
//! If nobody has, the last of them refuses it, as a single worker would: a reset (RFC 9293 s3.10.7.1)
//! within its limit of resets, and nothing for a reset or for an ICMP error.
//!
//! | what arrives | is passed on |
//! |---|---|
//! | SYN | never: the worker it reaches opens the connection |
//! | a segment with a four-tuple that is unknown here, and no SYN cookie of ours | yes |
//! | one that acknowledges something else than the SYN-ACK of a half-open connection | yes: a late duplicate of a SYN may have opened that beside the connection |
//! | one for a connection, or a four-tuple in TIME-WAIT, or acceptable to a half-open one | no |
//! | "packet too big" about a segment with an unknown four-tuple | yes |
//!
//! It refuses to guess which worker has a connection, and to tell the link: the segments of a connection
//! whose frames changed their queue are all strays until its end. What it does not solve: a four-tuple
//! in TIME-WAIT here that a client uses again, with a SYN that reached another worker. While the
//! TIME-WAIT lasts, strays of the new connection end here.
//!
//! A segment that was parsed is not parsed again, nor is its checksum verified again. Bounds:
//! [`STRAYS_MAX`] strays wait, each of at most 64 KB; what finds no room is dropped, and counted.

use core::net::SocketAddr;
use std::collections::VecDeque;

use clock::Instant;
use memory::Arena;
use tcp::FourTuple;
use wire::{Ecn, OriginalTcp, Path, TcpRepr};

use super::crossing::Process;
use super::next_hops::Statement;
use super::{Conductor, Received};

/// Most strays that wait to be taken: those of a round, since they are taken after each batch of frames.
/// In a flood of forged segments, each costs every worker a look-up, so no more than a few of each batch
/// may go around; where the steering has changed, TCP sends again what found no room. `[guess]`
pub const STRAYS_MAX: usize = 64;

/// A segment, or an ICMP error about one, whose connection another worker may have.
#[derive(Clone, Debug)]
pub struct Stray {
    content: StrayContent,
    /// Workers to pass it on to, if the next one has not the connection either.
    workers_left: u8,
    /// Whether it came back from a predecessor (see `crossing`).
    is_returned: bool,
}

#[derive(Clone, Debug)]
pub(super) enum StrayContent {
    Segment {
        path: Path,
        segment: TcpRepr,
        ecn: Ecn,
        payload: Box<[u8]>,
    },
    PacketTooBig {
        mtu_bytes: u32,
        original: OriginalTcp,
    },
    /// Not a stray: what a station on our link said of itself to one worker.
    Statement(Statement),
}

/// Strays that wait, and how far one may go.
#[derive(Debug, Default)]
pub(super) struct Strays {
    waiting: VecDeque<Stray>,
    /// Workers besides this one.
    other_workers: u8,
    /// Workers that what is handled now may be passed on to.
    workers_left: u8,
    /// Whether what is handled now came from another worker.
    is_from_worker: bool,
}

impl Stray {
    /// For another process.
    pub(super) const fn of_process(content: StrayContent) -> Self {
        Self {
            content,
            workers_left: 0,
            is_returned: false,
        }
    }

    pub(super) const fn content(&self) -> &StrayContent {
        &self.content
    }

    /// Both ends of the connection it is for; `None`: it is for every worker.
    #[must_use]
    pub fn tuple(&self) -> Option<FourTuple> {
        match &self.content {
            StrayContent::Segment { path, segment, .. } => Some(tuple(path, segment)),
            StrayContent::PacketTooBig { original, .. } => Some(quoted_tuple(original)),
            StrayContent::Statement(_) => None,
        }
    }
}

impl Conductor {
    /// There are so many workers besides this one, in a ring. Without a call there is none: then there
    /// are no strays, and segments of no connection are refused. The workers share the limits of challenge
    /// ACKs and resets. To be called before the first frame.
    pub fn set_other_workers(&mut self, other_workers: u8) {
        self.strays = Strays {
            waiting: VecDeque::with_capacity(if other_workers == 0 { 0 } else { STRAYS_MAX }),
            other_workers,
            workers_left: other_workers,
            is_from_worker: false,
        };
        let workers = u32::from(other_workers) + 1;
        self.answer_limits.share(workers);
    }

    /// The next stray, for [`Conductor::handle_stray`] of the next worker. To be polled after each batch
    /// of frames.
    pub fn poll_stray(&mut self) -> Option<Stray> {
        self.strays.waiting.pop_front()
    }

    /// A stray arrived from another worker. It is a frame of the batch in which it is handled, so
    /// [`Conductor::end_batch`] follows. It may have to be passed on: [`Conductor::poll_stray`].
    pub fn handle_stray(&mut self, now: Instant, arena: &mut Arena, stray: Stray) {
        self.apply_acknowledgments(now, arena);
        let unmatched_before = self.unmatched_strays();
        self.strays.workers_left = stray.workers_left;
        self.strays.is_from_worker = true;
        self.crossing.is_returned = stray.is_returned;
        let is_statement = matches!(stray.content, StrayContent::Statement(_));
        match stray.content {
            StrayContent::Segment {
                path,
                segment,
                ecn,
                payload,
            } => {
                let received = Received {
                    path,
                    segment,
                    ecn,
                    payload: &payload,
                };
                let tuple = received.tuple();
                let tag = self.connections.table.tag(&tuple);
                self.apply(now, arena, &tuple, tag, &received);
            }
            StrayContent::PacketTooBig {
                mtu_bytes,
                original,
            } => self.handle_packet_too_big(now, mtu_bytes, &original),
            StrayContent::Statement(statement) => {
                self.apply_statement(now, &statement);
            }
        }
        self.strays.end_of_stray();
        self.crossing.is_returned = false;
        if is_statement {
            return;
        }
        let is_taken = self.unmatched_strays() == unmatched_before;
        self.telemetry.counters.tcp_stray_taken_count += u64::from(is_taken);
    }

    /// Strays that were passed on, dropped or unclaimed.
    const fn unmatched_strays(&self) -> u64 {
        self.telemetry.counters.tcp_stray_passed_count
            + self.telemetry.counters.tcp_stray_dropped_count
            + self.telemetry.counters.tcp_stray_unclaimed_count
            + self.telemetry.counters.tcp_crossed_count
            + self.telemetry.counters.tcp_crossing_dropped_count
    }

    /// A segment that belongs to no connection here, and opens none.
    pub(super) fn handle_unmatched_segment(&mut self, now: Instant, received: &Received<'_>) {
        if !self.pass_on(|| received.content()) {
            self.refuse(now, received);
        }
    }

    /// "Packet too big" about a segment of no connection here.
    pub(super) fn handle_unmatched_report(&mut self, mtu_bytes: u32, original: &OriginalTcp) {
        let original = *original;
        let _unclaimed = self.pass_on(|| StrayContent::PacketTooBig {
            mtu_bytes,
            original,
        });
    }

    /// Passes on what a station said of itself, until every worker knows.
    pub(super) fn tell_other_workers(&mut self, statement: &Statement) {
        if self.strays.workers_left > 0 && self.strays.waiting.len() < STRAYS_MAX {
            self.strays.push(StrayContent::Statement(*statement), false);
        }
    }

    fn count_unclaimed(&mut self) {
        self.telemetry.counters.tcp_stray_unclaimed_count += u64::from(self.strays.is_from_worker);
    }

    /// Passes on what belongs to no connection here; `false`: there is nobody left to pass it on to.
    fn pass_on(&mut self, content: impl FnOnce() -> StrayContent) -> bool {
        let is_returned = self.crossing.is_returned;
        if self.crossing.has_predecessor && !is_returned {
            self.cross(Process::Predecessor, content);
        } else if self.strays.workers_left > 0 {
            let counters = &mut self.telemetry.counters;
            if self.strays.waiting.len() == STRAYS_MAX {
                counters.tcp_stray_dropped_count += 1;
            } else {
                counters.tcp_stray_passed_count += 1;
                self.strays.push(content(), is_returned);
            }
        } else if self.crossing.has_successor {
            self.cross(Process::Successor, content);
        } else {
            self.count_unclaimed();
            return false;
        }
        true
    }
}

impl Strays {
    /// For the next worker; there is one.
    fn push(&mut self, content: StrayContent, is_returned: bool) {
        self.waiting.push_back(Stray {
            content,
            workers_left: self.workers_left - 1,
            is_returned,
        });
    }

    /// What is handled from now on came from our own link.
    fn end_of_stray(&mut self) {
        self.workers_left = self.other_workers;
        self.is_from_worker = false;
    }
}

impl Received<'_> {
    /// Both ends of the segment's connection.
    pub(super) const fn tuple(&self) -> FourTuple {
        tuple(&self.path, &self.segment)
    }

    /// The same, to be kept.
    pub(super) fn content(&self) -> StrayContent {
        let Self {
            path,
            segment,
            ecn,
            payload,
        } = *self;
        StrayContent::Segment {
            path,
            segment,
            ecn,
            payload: payload.into(),
        }
    }
}

const fn tuple(path: &Path, segment: &TcpRepr) -> FourTuple {
    FourTuple {
        local: SocketAddr::new(path.destination, segment.destination_port),
        peer: SocketAddr::new(path.source, segment.source_port),
    }
}

/// Both ends of the connection that an ICMP error is about.
pub(super) const fn quoted_tuple(original: &OriginalTcp) -> FourTuple {
    FourTuple {
        local: SocketAddr::new(original.source, original.source_port),
        peer: SocketAddr::new(original.destination, original.destination_port),
    }
}
