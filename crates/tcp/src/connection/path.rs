//! Path MTU reports: packet-too-big messages from routers (RFC 1191, RFC 8201).
//!
//! Anybody who can guess a sequence number in flight can forge a report, and applying it retransmits
//! the whole flight. A report is therefore applied at once only if no packet larger than the size it
//! permits is known to have arrived. Otherwise it waits: if the quoted packet is acknowledged, the
//! report is false and is discarded; if the retransmission timer fires, the report is applied
//! (RFC 5927 s7.2).
//!
//! Refused: packets below [`SEGMENT_BYTES_MIN`]. Not done: probing for a larger size (RFC 8899).

use clock::{Duration, Instant};
use wire::SeqNumber;

use super::{Connection, SEGMENT_BYTES_MIN};
use crate::congestion::Controller as _;
use crate::stream::StreamOffset;

/// Least time between two reductions of the packet size. If a path has two links with a small MTU,
/// the second one reports again when the packets are retransmitted.
pub const PATH_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// A report that is not applied yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PathReport {
    segment_bytes: u16,
    /// Stream offset of the quoted packet.
    quoted: StreamOffset,
}

impl Connection {
    /// A router reports that the packet that begins at `quoted` was too big for the path, and that
    /// `segment_bytes` of payload fit. The flight is retransmitted in the new size, now or when the
    /// timer fires, without reducing the congestion window. Another report within
    /// [`PATH_REPORT_INTERVAL`] is ignored.
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

    /// Our own link takes at most `segment_bytes` of payload from now on. Unlike a router's report
    /// this is certain, so the flight is retransmitted in the new size at once.
    pub fn on_link_limit(&mut self, now: Instant, segment_bytes: u16) {
        let segment_bytes = segment_bytes.max(SEGMENT_BYTES_MIN - 12);
        if segment_bytes < self.segment_bytes {
            self.shrink_segments(now, segment_bytes);
        }
    }

    /// The retransmission timer fired: applies the waiting report. Returns whether there was one.
    pub(super) fn apply_path_report(&mut self, now: Instant) -> bool {
        let Some(report) = self.path_report.take() else {
            return false;
        };
        self.shrink_segments(now, report.segment_bytes);
        true
    }

    /// SND.UNA moved: discards a report about a packet that was acknowledged.
    pub(super) fn discard_refuted_path_report(&mut self) {
        let una = self.send.una;
        self.path_report = self.path_report.filter(|report| report.quoted >= una);
    }

    fn shrink_segments(&mut self, now: Instant, segment_bytes: u16) {
        self.shrunk_at = Some(now);
        self.path_report = None;
        self.forget_losses();
        self.segment_bytes = segment_bytes;
        self.arrived_segment_bytes = self.arrived_segment_bytes.min(segment_bytes);
        self.congestion.on_segment_bytes(segment_bytes);
        let _ = self.flight.expire();
        self.send.claimed = self.send.nxt;
        self.restart_retransmit(now);
    }
}
