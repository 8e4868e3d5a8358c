//! Path MTU discovery without the help of routers (RFC 4821, RFC 8899).
//!
//! **Black holes.** Where something drops large packets and no report arrives, everything stops until
//! the retransmission timer fires, again and again. After some timeouts for a large packet, while none
//! of its size arrived, segments get the size of a packet of [`BASE_PACKET_BYTES_V4`] or
//! [`BASE_PACKET_BYTES_V6`]. That is a guess, and probes soon tell.
//!
//! **Probes.** While segments are smaller than peer and link permit, [`SizeSearch`] says which size to
//! try and when. A probe is the next new data, in one packet of that size: no byte is sent that would
//! not be sent anyway. It is sent only when what follows it will show its loss (RFC 4821 s7.4). A probe
//! that alone is lost is no sign of congestion (s7.6.2): its bytes are sent again in segments of the
//! present size, and the window stays as it is.
//!
//! Refused: to guess a size below the base, which only routers' reports set; probes with padding, or
//! when there is too little to send; smaller segments at the start of a connection (Linux's
//! `tcp_mtu_probing = 2`), which nearly no path needs.

use clock::Instant;

use super::Connection;
#[cfg(test)]
use super::PathEvents;
use super::output::Admitted;
use crate::recovery::{DUPLICATE_THRESHOLD, RecoveryState};
use crate::size_search::{PROBE_INTERVAL, SizeSearch};
use crate::stream::{StreamOffset, StreamRange};

/// Packet size in a black hole, with IP header, bytes: RFC 8899 s5.1.2's `BASE_PLPMTU`, which all that
/// QUIC passes carries (RFC 9000 s14); and the MTU that every link of IPv6 has (RFC 8200 s5).
pub const BASE_PACKET_BYTES_V4: u16 = 1200;
/// The same for IPv6.
pub const BASE_PACKET_BYTES_V6: u16 = 1280;
/// Timeouts in a row for a large packet before a path that carried packets of its size counts as a
/// black hole (RFC 4821 s7.7: R1 of RFC 1122, which is three at least).
pub const BLACK_HOLE_TIMEOUTS: u8 = 3;
/// The same if no packet of that size was ever acknowledged on the connection: more likely there is one.
pub const BLACK_HOLE_TIMEOUTS_UNPROVEN: u8 = 2;
/// Segments that must be there to be sent behind a probe, and fit the windows: their arrival shows its
/// loss (RFC 4821 s7.4).
const FOLLOWING_SEGMENTS: u64 = DUPLICATE_THRESHOLD as u64;

impl Connection {
    /// The largest payload of a packet of the base size, bytes.
    fn base_segment_bytes(&self) -> u16 {
        let packet = if self.tuple.local.is_ipv4() {
            BASE_PACKET_BYTES_V4 - 20
        } else {
            BASE_PACKET_BYTES_V6 - 40
        };
        packet - 20 - self.option_bytes()
    }

    /// The retransmission timer fired, and everything in flight is considered lost. If this was once too
    /// often for a large packet, it and everything behind it is retransmitted in smaller ones.
    ///
    /// A peer that has closed its window may drop what it cannot take, and a packet that is no larger
    /// than the base is lost for another reason.
    pub(super) fn check_black_hole(&mut self, now: Instant) {
        let first = self.flight.first().map_or(0, |first| first.range().bytes());
        let current = self.sizes.current;
        let packet = u16::try_from(first).unwrap_or(u16::MAX).min(current);
        let base = self.base_segment_bytes();
        let is_refused = self.send.window() < packet.into();
        if !self.config.probes_path_mtu || packet <= base || is_refused {
            return;
        }
        let sizes = &mut self.sizes;
        sizes.stuck = packet;
        sizes.stuck_timeouts = sizes.stuck_timeouts.saturating_add(1);
        let most = if sizes.arrived >= packet {
            BLACK_HOLE_TIMEOUTS
        } else {
            BLACK_HOLE_TIMEOUTS_UNPROVEN
        };
        if sizes.stuck_timeouts < most {
            return;
        }
        self.set_segment_bytes(base);
        let limit = self.sizes.limit();
        let path = self.path_state(now);
        path.due = None;
        path.search = SizeSearch::new(now + PROBE_INTERVAL, limit);
        path.events.black_holes += 1;
    }

    /// A packet of this size is newly known to have arrived, payload in bytes.
    pub(super) fn note_arrived(&mut self, packet_bytes: u16) {
        let sizes = &mut self.sizes;
        sizes.arrived = sizes.arrived.max(packet_bytes);
        if sizes.stuck_timeouts > 0 && packet_bytes >= sizes.stuck {
            sizes.stuck_timeouts = 0;
        }
    }

    /// Timeouts were spurious, so that large packets did arrive: whether a black hole was guessed from
    /// them is probed at once.
    pub(super) fn hasten_size_probe(&mut self, now: Instant) {
        if let Some(path) = &mut self.path {
            path.search.hasten(now);
        }
    }

    /// SND.UNA moved, or there is something to send again: the probe under way may have arrived, and
    /// another may be due.
    pub(super) fn update_size_probe(&mut self, now: Instant) {
        let una = self.send.una;
        let Some(path) = &mut self.path else { return };
        if let Some(probe) = path.probe
            && una >= probe.end
        {
            path.probe = None;
            path.events.probes_passed += 1;
            // Our link may take less by now.
            let bytes = u16::try_from(probe.bytes()).unwrap_or(u16::MAX);
            let bytes = bytes.min(path.search.limit());
            self.set_segment_bytes(bytes);
            self.sizes.arrived = bytes;
            if let Some(path) = &mut self.path {
                path.search.on_passed(now, bytes);
            }
        }
        let (current, is_on) = (self.sizes.current, self.config.probes_path_mtu);
        if let Some(path) = &mut self.path {
            path.due = path.search.due(now, current).filter(|_| is_on);
        }
    }

    /// The size of the probe that a frame which begins with these bytes is to be: one packet.
    pub(super) fn size_probe(&self, admitted: &Admitted) -> Option<u16> {
        let path = self.path.as_ref()?;
        let bytes = path.due.filter(|_| path.probe.is_none())?;
        let range = admitted.range();
        let is_repaired = self.recovery == RecoveryState::Open
            && self.tail_probe.is_none()
            && self.duplicate_acks == 0
            && self.flight.sacked_bytes() + self.flight.lost_bytes() + self.flight.claimed_bytes()
                == 0;
        let is_whole = range.start == self.send.nxt && range.bytes() >= bytes.into();
        let with_following = u64::from(bytes) + FOLLOWING_SEGMENTS * u64::from(self.sizes.current);
        let is_enough = self.send.end.since(range.start) >= with_following
            && self.congestion_window() >= with_following
            && self.send.window() >= with_following;
        (is_repaired && is_whole && is_enough).then_some(bytes)
    }

    /// A frame that was a probe was sent.
    pub(super) fn on_size_probe_sent(&mut self, range: StreamRange) {
        if let Some(path) = &mut self.path {
            path.probe = Some(range);
            path.due = None;
            path.events.probes_sent += 1;
        }
    }

    /// The bytes of the probe under way.
    pub(super) fn size_probe_under_way(&self) -> Option<StreamRange> {
        self.path.as_ref()?.probe
    }

    /// Whether the packet that begins there is the probe under way.
    pub(super) fn is_size_probe(&self, start: Option<StreamOffset>) -> bool {
        let probe = self.size_probe_under_way();
        probe.is_some_and(|probe| Some(probe.start) == start)
    }

    /// A router says that the probe was too big, and that `segment_bytes` fit.
    pub(super) fn on_size_probe_reported(&mut self, segment_bytes: u16) {
        let current = self.sizes.current;
        if let Some(path) = &mut self.path {
            path.search.on_reported(segment_bytes.max(current), current);
        }
    }

    /// The probe was lost: `is_alone`, or with other packets, which may mean congestion (RFC 4821 s7.6.4).
    pub(super) fn on_size_probe_lost(&mut self, now: Instant, is_alone: bool) {
        let current = self.sizes.current;
        let Some(path) = &mut self.path else { return };
        let Some(probe) = path.probe.take() else {
            return;
        };
        path.events.probes_lost += 1;
        if is_alone {
            let bytes = u16::try_from(probe.bytes()).unwrap_or(u16::MAX);
            path.search.on_lost(now, bytes, current);
        } else {
            path.search.on_inconclusive(now);
        }
    }

    /// Whether anything is waiting to be told.
    #[cfg(test)]
    pub(super) fn path_events(&self) -> PathEvents {
        let path = self.path.as_ref();
        path.map_or(PathEvents::default(), |path| path.events)
    }
}
