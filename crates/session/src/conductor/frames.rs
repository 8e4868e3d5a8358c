//! Frames in: whose they are, and the short answers of ARP, neighbour discovery and ICMP.

use core::net::{IpAddr, SocketAddr};

use clock::Instant;
use memory::Arena;
use tcp::{FourTuple, Place};
use wire::{
    ArpOperation, ArpRepr, ChecksumState, HEADERS_BYTES_MAX, Incoming, OriginalTcp, Path, Route,
    TcpChecksum, TcpRepr,
};

use super::Conductor;

/// Least MTU a router may talk us down to: RFC 791's 576 for IPv4 (anything less is an attack on
/// our packet rate), RFC 8200's 1280 for IPv6.
const MTU_BYTES_MIN_V4: u32 = 576;
const MTU_BYTES_MIN_V6: u32 = 1280;

impl Conductor {
    /// A frame arrived. What cannot be understood is counted and forgotten.
    pub fn handle_frame(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        frame: &[u8],
        checksum: ChecksumState,
    ) {
        self.counters.wire_receive_frames += 1;
        let incoming = match wire::parse_frame(frame, checksum) {
            Ok(incoming) => incoming,
            Err(reason) => {
                self.counters.wire_drops[reason.index()] += 1;
                return;
            }
        };
        match incoming {
            Incoming::Tcp {
                path,
                segment,
                payload,
            } if self.is_ours(path.destination) => {
                self.handle_segment(now, arena, &path, &segment, payload);
            }
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
                let route = path.reply_route();
                self.answer(|buffer| {
                    wire::emit_echo_reply(buffer, &route, identifier, sequence, data)
                });
            }
            Incoming::NeighborSolicitation { path, target, .. }
                if self.is_ours(IpAddr::V6(target)) =>
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
            // RFC 5461 s4: an ICMP unreachable about a synchronised connection is a soft error;
            // the retransmission timer decides. On our link it changes nothing.
            Incoming::Unreachable { .. } => {}
            _ => self.counters.wire_foreign_frames += 1,
        }
    }

    /// Tells the link that our addresses are here: gratuitous ARP (RFC 5227 s3), unsolicited
    /// neighbour advertisement (RFC 4861 s7.2.6).
    pub(super) fn announce(&mut self) {
        let mac = self.config.mac;
        for address in self.config.addresses.clone() {
            self.answer_short(|buffer| match address {
                IpAddr::V4(address) => wire::emit_gratuitous_arp(buffer, mac, address),
                IpAddr::V6(address) => wire::emit_unsolicited_advertisement(buffer, mac, address),
            });
        }
    }

    fn answer_arp(&mut self, arp: &ArpRepr) {
        let asked = arp.operation == ArpOperation::Request;
        if !asked || !self.is_ours(IpAddr::V4(arp.target_address)) {
            self.counters.wire_foreign_frames += 1;
            return;
        }
        let (arp, mac) = (*arp, self.config.mac);
        self.answer_short(|buffer| wire::emit_arp_reply(buffer, &arp, mac));
    }

    fn answer_short(&mut self, write: impl FnOnce(&mut [u8; HEADERS_BYTES_MAX]) -> usize) {
        self.answer(|buffer| Some(write(buffer.first_chunk_mut()?)));
    }

    /// Queues an answer.
    fn answer(&mut self, write: impl FnOnce(&mut [u8]) -> Option<usize>) {
        if self.outbox.push(write) {
            self.counters.wire_answer_frames += 1;
        } else {
            self.counters.wire_answer_overflow_count += 1;
        }
    }

    /// Queues a segment without text that belongs to no client's own order: SYN-ACK, reset.
    pub(super) fn answer_segment(&mut self, route: &Route, segment: &TcpRepr) {
        self.identification = self.identification.wrapping_add(1);
        let identification = self.identification;
        self.answer_short(|buffer| {
            wire::emit_tcp(
                buffer,
                route,
                segment,
                &[],
                TcpChecksum::Full,
                identification,
            )
        });
    }

    pub(super) fn handle_packet_too_big(
        &mut self,
        now: Instant,
        mtu_bytes: u32,
        original: &OriginalTcp,
    ) {
        let tuple = FourTuple {
            local: SocketAddr::new(original.source, original.source_port),
            peer: SocketAddr::new(original.destination, original.destination_port),
        };
        let Some(Place::Connection(index)) = self.table.find(&tuple) else {
            return;
        };
        let Some(client) = self.clients.entry_mut(index) else {
            return;
        };
        // RFC 5927 s4: only a quote of something in flight is believed.
        if !client.tcp.is_in_flight(original.sequence) {
            return;
        }
        self.counters.tcp_packet_too_big_count += 1;
        let (least, headers) = match original.source {
            IpAddr::V4(_) => (MTU_BYTES_MIN_V4, 20 + 32),
            IpAddr::V6(_) => (MTU_BYTES_MIN_V6, 40 + 32),
        };
        let segment_bytes = mtu_bytes.max(least) - headers;
        let segment_bytes = u16::try_from(segment_bytes).unwrap_or(u16::MAX);
        client
            .tcp
            .on_packet_too_big(now, original.sequence, segment_bytes);
        self.settle(now, index);
    }

    /// The largest TCP payload of one packet on this path's link (RFC 9293 s3.7.1), bytes.
    pub(super) fn segment_bytes(&self, path: &Path) -> u16 {
        let headers = if path.source.is_ipv4() { 40 } else { 60 };
        self.config.mtu_bytes.saturating_sub(headers)
    }
}
