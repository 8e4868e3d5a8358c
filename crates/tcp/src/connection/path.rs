//! What routers report of the path: it takes smaller packets than thought (RFC 1191, RFC 8201).
//!
//! A report may be forged by anybody who can guess a sequence number in flight, and obeying it makes
//! the whole flight leave again. It is therefore obeyed at once only while nothing larger than what
//! it permits is known to have arrived. Else it waits: an acknowledgment of the packet it complains
//! of shows that it is false, and the retransmission timer that it is true (RFC 5927 s7.2).
//!
//! Refused: packets below [`SEGMENT_BYTES_MIN`]. Not done: probing for a larger size (RFC 8899).

use clock::{Duration, Instant};
use wire::SeqNumber;

use super::{Connection, SEGMENT_BYTES_MIN};
use crate::stream::StreamOffset;

/// Least time between two reductions of a path's packet size that are believed. A path with two
/// narrow places reports the second again when the packets leave again.
pub const PATH_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// A report that is not obeyed yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PathReport {
    segment_bytes: u16,
    /// Where the packet begins that it quotes.
    quoted: StreamOffset,
}

impl Connection {
    /// A router says that the packet that begins at `quoted` was too big for the path, and that
    /// `segment_bytes` of payload fit. What is in flight goes again in the new size, now or when
    /// the timer fires, and the window is not blamed for it. Another report within
    /// [`PATH_REPORT_INTERVAL`] is not believed.
    pub fn on_packet_too_big(&mut self, now: Instant, quoted: SeqNumber, segment_bytes: u16) {
        let segment_bytes = segment_bytes.max(SEGMENT_BYTES_MIN - 12);
        let is_early = |at| now.since(at) < PATH_REPORT_INTERVAL;
        if segment_bytes >= self.segment_bytes || self.shrunk_at.is_some_and(is_early) {
            return;
        }
        if segment_bytes >= self.arrived_segment_bytes {
            self.shrink_segments(now, segment_bytes);
            return;
        }
        if let Some(quoted) = self.send.offset_of(quoted) {
            self.path_report = Some(PathReport {
                segment_bytes,
                quoted,
            });
        }
    }

    /// Our own link takes at most `segment_bytes` of payload from now on. That is certain, unlike
    /// what a router says: what is in flight goes again in the new size.
    pub fn on_link_limit(&mut self, now: Instant, segment_bytes: u16) {
        let segment_bytes = segment_bytes.max(SEGMENT_BYTES_MIN - 12);
        if segment_bytes < self.segment_bytes {
            self.shrink_segments(now, segment_bytes);
        }
    }

    /// The timer fired. Returns whether a report explains it, which is obeyed then.
    pub(super) fn obey_path_report(&mut self, now: Instant) -> bool {
        let Some(report) = self.path_report.take() else {
            return false;
        };
        self.shrink_segments(now, report.segment_bytes);
        true
    }

    /// SND.UNA moved: a packet that was acknowledged was not too big.
    pub(super) fn refute_path_report(&mut self) {
        let una = self.send.una;
        self.path_report = self.path_report.filter(|report| report.quoted >= una);
    }

    fn shrink_segments(&mut self, now: Instant, segment_bytes: u16) {
        self.shrunk_at = Some(now);
        self.path_report = None;
        self.segment_bytes = segment_bytes;
        self.arrived_segment_bytes = self.arrived_segment_bytes.min(segment_bytes);
        self.congestion.on_segment_bytes(segment_bytes);
        let _ = self.flight.expire();
        self.send.claimed = self.send.nxt;
        self.restart_retransmit(now);
    }
}
