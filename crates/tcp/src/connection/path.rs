//! The size of segments: what peer, link and path permit. Packet-too-big messages from routers
//! (RFC 1191, RFC 8201) reduce it; [`super::probing`] reduces it in a black hole and raises it again.
//!
//! Anybody who can guess a sequence number in flight can forge a report, and applying it retransmits
//! the whole flight. A report is therefore applied at once only if no packet larger than the size it
//! permits is known to have arrived. Otherwise it waits: if the quoted packet is acknowledged, the
//! report is false and is discarded; if the retransmission timer fires, the report is applied
//! (RFC 5927 s7.2).
//!
//! Refused: packets below [`SEGMENT_BYTES_MIN`].

use clock::{Duration, Instant};
use wire::SeqNumber;

use super::{Connection, SEGMENT_BYTES_MIN};
use crate::congestion::Controller as _;
use crate::half_open::{HalfOpen, TIMESTAMP_OPTION_BYTES};
use crate::size_search::{RAISE_INTERVAL, SizeSearch};
use crate::stream::{StreamOffset, StreamRange};

/// Least time between two reductions of the packet size. If a path has two links with a small MTU,
/// the second one reports again when the packets are retransmitted.
pub const PATH_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Sizes of segments: payload of one packet, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SegmentSizes {
    /// What is sent: the least of what peer, link and path permit.
    pub(super) current: u16,
    /// What the peer's MSS permits.
    peer: u16,
    /// What our link's MTU permits.
    link: u16,
    /// The largest that is known to have arrived.
    pub(super) arrived: u16,
    /// The oldest one when the retransmission timer last fired; see [`Connection::check_black_hole`].
    pub(super) stuck: u16,
    /// How often in a row it fired, while nothing of that size arrived.
    pub(super) stuck_timeouts: u8,
}

impl SegmentSizes {
    pub(super) fn new(half_open: &HalfOpen) -> Self {
        let (peer, link) = half_open.segment_bytes_of_peer_and_link();
        Self {
            current: half_open.segment_bytes(),
            peer,
            link,
            arrived: 0,
            stuck: 0,
            stuck_timeouts: 0,
        }
    }

    /// What peer and link permit.
    pub(super) fn limit(&self) -> u16 {
        self.peer.min(self.link)
    }
}

/// What only few connections have: a report that waits, or smaller segments than peer and link permit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PathState {
    /// When a report or our link last reduced the size.
    shrunk_at: Option<Instant>,
    /// A report that is not applied yet, because larger packets arrived before.
    report: Option<PathReport>,
    /// The search for the largest size that passes.
    pub(super) search: SizeSearch,
    /// The size of the probe that may be sent now.
    pub(super) due: Option<u16>,
    /// The probe under way.
    pub(super) probe: Option<StreamRange>,
    /// What was not told yet.
    pub(super) events: PathEvents,
}

/// What happened since it was last asked for: see [`Connection::take_path_events`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PathEvents {
    /// Black holes detected: the size was reduced because large packets were lost again and again.
    pub black_holes: u32,
    /// Probes of a larger size sent.
    pub probes_sent: u32,
    /// Probes that arrived: the size was raised.
    pub probes_passed: u32,
    /// Probes that were lost.
    pub probes_lost: u32,
}

/// A report that is not applied yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PathReport {
    segment_bytes: u16,
    /// Stream offset of the quoted packet.
    quoted: StreamOffset,
}

impl Connection {
    /// A router reports that the packet that begins at `quoted` was too big for the path, and that
    /// `segment_bytes` of payload fit. The flight is retransmitted in the new size, now or when the
    /// timer fires, without reducing the congestion window. Another report within
    /// [`PATH_REPORT_INTERVAL`] is ignored. If it is about a probe, the size it permits is probed next.
    pub fn on_packet_too_big(&mut self, now: Instant, quoted: SeqNumber, segment_bytes: u16) {
        let segment_bytes = segment_bytes.max(SEGMENT_BYTES_MIN - TIMESTAMP_OPTION_BYTES);
        let quoted = self.send.offset_of(quoted);
        if self.is_size_probe(quoted) {
            self.on_size_probe_reported(segment_bytes);
            return;
        }
        let is_early = |at| now.since(at) < PATH_REPORT_INTERVAL;
        let shrunk_at = self.path.as_ref().and_then(|path| path.shrunk_at);
        if segment_bytes >= self.sizes.current || shrunk_at.is_some_and(is_early) {
            return;
        }
        if segment_bytes >= self.sizes.arrived {
            self.shrink_segments(now, segment_bytes);
        } else if let Some(quoted) = quoted {
            self.path_state(now).report = Some(PathReport {
                segment_bytes,
                quoted,
            });
        }
    }

    /// Our own link takes segments of this MSS from now on: its MTU less the IP and TCP headers, bytes.
    /// Unlike a router's report this is certain: if segments are larger, the flight is retransmitted in
    /// the new size at once. If they may be larger now, that is probed, since the rest of the path is
    /// not known to carry them.
    pub fn on_link_limit(&mut self, now: Instant, mss: u16) {
        let before = self.sizes.limit();
        self.sizes.link = mss.max(SEGMENT_BYTES_MIN) - self.option_bytes();
        let limit = self.sizes.limit();
        if limit < self.sizes.current {
            self.shrink_segments(now, limit);
        } else if limit > before {
            let path = self.path_state(now);
            path.search = SizeSearch::new(now, limit);
            path.due = None;
        } else if limit < before
            && let Some(path) = &mut self.path
        {
            path.search.lower_limit(limit);
            path.due = None;
        }
    }

    /// The retransmission timer fired: applies the waiting report. Returns whether there was one.
    pub(super) fn apply_path_report(&mut self, now: Instant) -> bool {
        let report = self.path.as_mut().and_then(|path| path.report.take());
        if let Some(report) = report {
            self.shrink_segments(now, report.segment_bytes);
        }
        report.is_some()
    }

    /// SND.UNA moved: discards a report about a packet that was acknowledged.
    pub(super) fn discard_refuted_path_report(&mut self) {
        let una = self.send.una;
        if let Some(path) = &mut self.path {
            path.report = path.report.filter(|report| report.quoted >= una);
        }
    }

    /// The flight is retransmitted in segments of this size, without a loss.
    fn shrink_segments(&mut self, now: Instant, segment_bytes: u16) {
        self.forget_losses();
        self.set_segment_bytes(segment_bytes);
        let limit = self.sizes.limit();
        let path = self.path_state(now);
        path.shrunk_at = Some(now);
        path.report = None;
        path.events.probes_lost += u32::from(path.probe.take().is_some());
        path.due = None;
        path.search = SizeSearch::new(now + RAISE_INTERVAL, limit);
        let _ = self.flight.expire();
        self.send.claimed = self.send.nxt;
        self.restart_retransmit(now);
    }

    /// Segments have this size from now on.
    pub(super) fn set_segment_bytes(&mut self, segment_bytes: u16) {
        self.sizes.current = segment_bytes;
        self.sizes.arrived = self.sizes.arrived.min(segment_bytes);
        self.sizes.stuck_timeouts = 0;
        self.congestion.on_segment_bytes(segment_bytes);
    }

    /// The state of the path, which few connections have.
    pub(super) fn path_state(&mut self, now: Instant) -> &mut PathState {
        let limit = self.sizes.limit();
        self.path.get_or_insert_with(|| {
            Box::new(PathState {
                shrunk_at: None,
                report: None,
                search: SizeSearch::new(now + RAISE_INTERVAL, limit),
                due: None,
                probe: None,
                events: PathEvents::default(),
            })
        })
    }

    /// Takes what happened out. `None` for nearly all connections.
    pub fn take_path_events(&mut self) -> Option<PathEvents> {
        let path = self.path.as_mut()?;
        let events = core::mem::take(&mut path.events);
        let is_needed = path.report.is_some()
            || path.probe.is_some()
            || self.sizes.current < path.search.limit();
        if !is_needed {
            self.path = None;
        }
        (events != PathEvents::default()).then_some(events)
    }

    /// The size in the report that waits, if one does.
    #[cfg(test)]
    pub(super) fn waiting_report(&self) -> Option<u16> {
        Some(self.path.as_ref()?.report?.segment_bytes)
    }

    /// Options of each segment with data, bytes.
    pub(super) const fn option_bytes(&self) -> u16 {
        if self.receive.timestamps.is_some() {
            TIMESTAMP_OPTION_BYTES
        } else {
            0
        }
    }
}
