//! Received frames: finds out whom they concern, and answers ARP, neighbour discovery and ICMP.

use core::net::IpAddr;

use clock::Instant;
use memory::Arena;
use tcp::TableIndex;
use wire::ethernet;
use wire::{
    ArpOperation, ArpRepr, ChecksumState, Fragment, HEADERS_BYTES_MAX, Incoming, ListenerReport,
    OriginalTcp, Path, Route, TcpRepr,
};

use super::strays::quoted_tuple;
use super::{Conductor, Received};
use crate::address::{self, AddressConflict};

/// Least path MTU that a router's report can set: 576 for IPv4 (RFC 791; a smaller one would be an
/// attack on our packet rate), 1280 for IPv6 (RFC 8200).
const MTU_BYTES_MIN_V4: u32 = 576;
const MTU_BYTES_MIN_V6: u32 = 1280;

impl Conductor {
    /// A frame arrived. Malformed frames are counted and dropped.
    pub fn handle_frame(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        frame: &[u8],
        checksum: ChecksumState,
    ) {
        self.telemetry.counters.wire_receive_frames += 1;
        match wire::parse_frame(frame, checksum) {
            Ok(Incoming::Fragment(fragment)) if self.is_ours(fragment.path.destination) => {
                self.handle_fragment(now, arena, &fragment);
            }
            Ok(incoming) => self.handle_incoming(now, arena, incoming),
            Err(reason) => self.telemetry.counters.wire_drop_count[reason.index()] += 1,
        }
    }

    /// A part of a packet arrived; with it the packet may be whole.
    fn handle_fragment(&mut self, now: Instant, arena: &mut Arena, fragment: &Fragment<'_>) {
        if self.is_denied(&fragment.path) {
            return;
        }
        let Some(whole) = (self.reassembly).take(now, fragment, &mut self.telemetry.counters)
        else {
            return;
        };
        let path = fragment.path;
        match wire::parse_reassembled(path, whole.protocol, whole.ecn, whole.content()) {
            Ok(incoming) => self.handle_incoming(now, arena, incoming),
            Err(reason) => self.telemetry.counters.wire_drop_count[reason.index()] += 1,
        }
        self.reassembly.give_back(whole);
    }

    fn handle_incoming(&mut self, now: Instant, arena: &mut Arena, incoming: Incoming<'_>) {
        if let Incoming::Tcp {
            path,
            segment,
            ecn,
            payload,
        } = incoming
            && self.is_ours(path.destination)
        {
            let received = Received {
                path: self.answer_path(path),
                segment,
                ecn,
                payload,
            };
            self.handle_segment(now, arena, &received);
            return;
        }
        self.apply_acknowledgments(now, arena);
        self.note_sender(now, &incoming);
        match incoming {
            Incoming::Arp(_) | Incoming::NeighborAdvertisement { .. }
                if self.is_conflict(now, &incoming) => {}
            Incoming::Arp(arp) => self.answer_arp(&arp),
            Incoming::EchoV4 {
                path,
                identifier,
                sequence,
                data,
            }
            | Incoming::EchoV6 {
                path,
                identifier,
                sequence,
                data,
            } if self.is_ours(path.destination) => {
                if self.is_denied(&path) {
                    return;
                }
                let route = self.answer_path(path).reply_route();
                // We never fragment: a request that came in fragments may be too large to be returned.
                let frame_bytes_max = ethernet::HEADER_BYTES + usize::from(self.config.mtu_bytes);
                let counters = &mut self.telemetry.counters;
                self.outgoing.answer(counters, |buffer| {
                    let most = buffer.len().min(frame_bytes_max);
                    let buffer = buffer.get_mut(..most)?;
                    wire::emit_echo_reply(buffer, &route, identifier, sequence, data)
                });
            }
            Incoming::NeighborSolicitation { path, target, .. }
                if self.is_answered(IpAddr::V6(target)) =>
            {
                let mac = self.config.mac;
                self.answer_short(|buffer| {
                    wire::emit_neighbor_advertisement(buffer, &path, target, mac)
                });
            }
            Incoming::PacketTooBig {
                path,
                mtu_bytes,
                original,
            } if self.is_ours(path.destination) => {
                self.handle_packet_too_big(now, mtu_bytes, &original);
            }
            Incoming::ListenerQuery {
                group,
                response_time_max,
                ..
            } => self.handle_listener_query(now, group, response_time_max),
            // RFC 5461 s4: an ICMP unreachable about a synchronised connection is a soft error;
            // the retransmission timer decides. On our link it changes nothing.
            Incoming::Unreachable { .. } => {}
            _ => self.telemetry.counters.wire_foreign_frames += 1,
        }
    }

    /// The path by which a packet to one of our addresses counts as received, so that what answers it goes back
    /// by it.
    pub(super) fn answer_path(&self, path: Path) -> Path {
        if self.is_virtual(path.destination) {
            self.next_hops.gateways.path_of(path)
        } else {
            path
        }
    }

    /// Whether a packet's source is not served; if so, the packet is counted. To be asked before anything
    /// is kept of a source that has no connection, and before it is answered. A trusted proxy is served: those
    /// whom it forwards are judged in its place, when it has said who they are.
    pub(super) fn is_denied(&mut self, path: &Path) -> bool {
        let (filter, sites) = (&self.config.source_filter, &self.config.sites);
        let is_denied = !filter.serves(path.source) && !sites.trusts(path.source);
        self.telemetry.counters.wire_denied_frames += u64::from(is_denied);
        is_denied
    }

    /// Announces our addresses on the link: gratuitous ARP (RFC 5227 s3), unsolicited neighbour
    /// advertisement (RFC 4861 s7.2.6), and a multicast listener report before that. Done at start, and to
    /// be repeated after the interface was down, because switches and neighbours may have dropped their
    /// entries.
    pub fn announce(&mut self) {
        if self.crossing.has_successor {
            // They are the successor's.
            return;
        }
        for place in 0..self.config.addresses.len() {
            self.report_listener(place, ListenerReport::Joined);
            self.announce_one(place);
        }
    }

    fn announce_one(&mut self, place: usize) {
        let mac = self.config.mac;
        let Some(&address) = self.config.addresses.get(place) else {
            return;
        };
        if self.is_virtual(address) {
            return;
        }
        self.answer_short(|buffer| match address {
            IpAddr::V4(address) => wire::emit_gratuitous_arp(buffer, mac, address),
            IpAddr::V6(address) => wire::emit_unsolicited_advertisement(buffer, mac, address),
        });
    }

    /// Takes the last conflict about one of our addresses out. There is a new one for each address at
    /// most once in [`DEFEND_INTERVAL`](crate::DEFEND_INTERVAL).
    pub fn poll_conflict(&mut self) -> Option<AddressConflict> {
        self.defense.take()
    }

    /// Whether a frame shows that another station uses one of our addresses. If so, the frame is
    /// counted, and an IPv4 address is defended (RFC 5227 s2.4 (c)). For IPv6 RFC 4862 s5.4.4
    /// requires no action; neighbours soon solicit again and get our answer, too.
    fn is_conflict(&mut self, now: Instant, incoming: &Incoming<'_>) -> bool {
        let Some(conflict) = address::claim(incoming) else {
            return false;
        };
        let ours = &self.config.addresses;
        let place = ours.iter().position(|address| *address == conflict.address);
        // A virtual address is another station's, which says so.
        let is_conflict = conflict.mac != self.config.mac && !self.is_virtual(conflict.address);
        let Some(place) = place.filter(|_| is_conflict) else {
            return false;
        };
        self.telemetry.counters.wire_conflict_frames += 1;
        if self.defense.note(now, place, conflict) && conflict.address.is_ipv4() {
            self.telemetry.counters.wire_defense_frames += 1;
            self.announce_one(place);
        }
        true
    }

    fn answer_arp(&mut self, arp: &ArpRepr) {
        let asked = arp.operation == ArpOperation::Request;
        if !asked || !self.is_answered(IpAddr::V4(arp.target_address)) {
            self.telemetry.counters.wire_foreign_frames += 1;
            return;
        }
        let (arp, mac) = (*arp, self.config.mac);
        self.answer_short(|buffer| wire::emit_arp_reply(buffer, &arp, mac));
    }

    /// Queues an answer without payload.
    pub(super) fn answer_short(
        &mut self,
        write: impl FnOnce(&mut [u8; HEADERS_BYTES_MAX]) -> usize,
    ) {
        (self.outgoing).answer_short(&mut self.telemetry.counters, write);
    }

    /// Queues a segment without text that is sent outside any client's stream: SYN-ACK, reset.
    pub(super) fn answer_segment(&mut self, route: &Route, segment: &TcpRepr) {
        let counters = &mut self.telemetry.counters;
        (self.outgoing).answer_with_text(counters, route, segment, &[]);
    }

    /// The limits of the link changed. New connections use them. Open connections whose segments
    /// are too large now retransmit their flight in smaller segments; those that may send larger ones
    /// probe the path for them.
    pub fn set_link_limits(&mut self, now: Instant, mtu_bytes: u16, segmentation_bytes_max: u32) {
        let is_changed = mtu_bytes != self.config.mtu_bytes;
        self.config.mtu_bytes = mtu_bytes;
        self.config.segmentation_bytes_max = segmentation_bytes_max;
        if !is_changed {
            return;
        }
        for index in self.connections.indexes() {
            let Some(client) = self.connections.clients.entry_mut(index) else {
                continue;
            };
            let mss = mss_of_link(client.route.source, mtu_bytes);
            client.tcp.on_link_limit(now, mss);
            self.update_queues_and_timers(now, index);
        }
    }

    pub(super) fn handle_packet_too_big(
        &mut self,
        now: Instant,
        mtu_bytes: u32,
        original: &OriginalTcp,
    ) {
        let index = match self.connections.table.find(&quoted_tuple(original)) {
            Some(TableIndex::Connection(index)) => index,
            Some(TableIndex::HalfOpen(_) | TableIndex::TimeWait(_)) => return,
            None => return self.handle_unmatched_report(mtu_bytes, original),
        };
        let Some(client) = self.connections.clients.entry_mut(index) else {
            return;
        };
        // RFC 5927 s4: a report must quote a segment that is in flight.
        if !client.tcp.is_in_flight(original.sequence) {
            return;
        }
        self.telemetry.counters.tcp_packet_too_big_count += 1;
        let segment_bytes = path_segment_bytes(original.source, mtu_bytes);
        client
            .tcp
            .on_packet_too_big(now, original.sequence, segment_bytes);
        self.update_queues_and_timers(now, index);
    }
}

/// The MSS of a link (RFC 9293 s3.7.1): the largest TCP payload, without options, of one packet from `source`
/// on a link with an MTU of `mtu_bytes`, bytes.
pub(super) fn mss_of_link(source: IpAddr, mtu_bytes: u16) -> u16 {
    mtu_bytes.saturating_sub(if source.is_ipv4() { 40 } else { 60 })
}

/// The largest TCP payload, with timestamps, of one packet from `source` on a path with an MTU of
/// `mtu_bytes`, bytes.
fn path_segment_bytes(source: IpAddr, mtu_bytes: u32) -> u16 {
    let (least, headers) = match source {
        IpAddr::V4(_) => (MTU_BYTES_MIN_V4, 20 + 32),
        IpAddr::V6(_) => (MTU_BYTES_MIN_V6, 40 + 32),
    };
    u16::try_from(mtu_bytes.max(least) - headers).unwrap_or(u16::MAX)
}
