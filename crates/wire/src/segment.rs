//! Segmentation in software: what a link without offloads does to a large segment, or one whose device
//! only finishes checksums; and checksum completion.
//!
//! Segments come from [`crate::emit_tcp`], so malformed headers are a broken invariant and panic.
//! Cutting never copies payload: each frame gathers slices of the given parts.
//! Bounded by the 64 KiB of one IP packet and [`Outgoing::PARTS_MAX`] parts.

use crate::checksum;
use crate::emit::{HEADERS_BYTES_MAX, TcpChecksum};
use crate::ethernet;
use crate::field;
use crate::ipv4;
use crate::ipv6;
use crate::outgoing::{Outgoing, PartialChecksum, Segmentation, SegmentationKind};
use crate::tcp::{self, TcpFlags};

/// Bytes of the IPv4 headers we emit, in the type of their length field.
const IPV4_HEADER_BYTES: u16 = 20;

/// Takes a frame as headers and payload parts (at most [`Outgoing::PARTS_MAX`]).
pub type FrameSink<'a> = dyn FnMut(&[u8], &[&[u8]]) + 'a;

/// Cuts an outgoing frame into frames that leave the link nothing to finish, and hands each to
/// `sink` as headers and payload parts, in order.
///
/// With a [`Segmentation`], every frame but the last carries `segment_bytes` of payload; IP length,
/// identification and sequence number move on; the ECN field stays; FIN and PSH stay with the last, CWR with the first
/// (RFC 3168 s6.1.2: it is said once), and all checksums are complete. Without one the frame is
/// passed on whole, its checksum completed if that was left to the link.
///
/// # Panics
/// If the headers are not those of a TCP segment of the kind stated, if `segment_bytes` is zero, or
/// if there are more parts than [`Outgoing::PARTS_MAX`].
pub fn cut(outgoing: &Outgoing<'_>, sink: &mut FrameSink<'_>) {
    assert!(
        outgoing.payload.len() <= Outgoing::PARTS_MAX,
        "a frame gathers few parts"
    );
    match (outgoing.offload.segmentation, outgoing.offload.checksum) {
        (Some(segmentation), _) => cut_segments(outgoing, segmentation, TcpChecksum::Full, sink),
        (None, Some(place)) => {
            let mut headers = [0; HEADERS_BYTES_MAX];
            let headers = copy_headers(&mut headers, outgoing.headers);
            complete_parts(headers, outgoing.payload, place);
            sink(headers, outgoing.payload);
        }
        (None, None) => sink(outgoing.headers, outgoing.payload),
    }
}

/// Cuts an outgoing frame as [`cut`] does, for a device that finishes checksums: of each frame that
/// `sink` gets, the transport checksum is as unfinished as that of the whole. Its field holds the sum of
/// the frame's own pseudo-header, at the place that the [`PartialChecksum`] of `outgoing` names. No byte
/// of payload is read.
///
/// # Panics
/// As [`cut`]; and if there is a [`Segmentation`] without a [`PartialChecksum`].
pub fn cut_unfinished(outgoing: &Outgoing<'_>, sink: &mut FrameSink<'_>) {
    assert!(
        outgoing.payload.len() <= Outgoing::PARTS_MAX,
        "a frame gathers few parts"
    );
    let Some(segmentation) = outgoing.offload.segmentation else {
        sink(outgoing.headers, outgoing.payload);
        return;
    };
    assert!(
        outgoing.offload.checksum.is_some(),
        "segmentation without a partial checksum: each cut segment needs its own"
    );
    cut_segments(outgoing, segmentation, TcpChecksum::Partial, sink);
}

/// Completes the transport checksum of a contiguous frame whose checksum field holds the
/// pseudo-header sum.
///
/// # Panics
/// If the checksum's place is not inside the frame.
pub fn complete_checksum(frame: &mut [u8], place: PartialChecksum) {
    complete_parts(frame, &[], place);
}

/// Completes the checksum in `headers` over the rest of the headers and the payload.
fn complete_parts(headers: &mut [u8], payload: &[&[u8]], place: PartialChecksum) {
    let (_, transport) = headers
        .split_at_mut_checked(place.start.into())
        .expect("invariant: the transport header is among the headers");
    let mut sum = checksum::Accumulator::new(0);
    sum.add(transport);
    for part in payload {
        sum.add(part);
    }
    put(transport, place.offset.into(), &(!sum.sum()).to_be_bytes());
}

fn cut_segments(
    outgoing: &Outgoing<'_>,
    segmentation: Segmentation,
    checksum: TcpChecksum,
    sink: &mut FrameSink<'_>,
) {
    assert!(
        segmentation.segment_bytes > 0,
        "segments of nothing would never end"
    );
    let template = Template::new(outgoing.headers, segmentation.kind);
    let total_bytes: usize = outgoing.payload.iter().map(|part| part.len()).sum();
    let mut payload = Gather {
        parts: outgoing.payload,
        taken: 0,
    };
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let headers = copy_headers(&mut buffer, outgoing.headers);
    let mut index = 0;
    let mut offset = 0;
    loop {
        let bytes = usize::from(segmentation.segment_bytes).min(total_bytes - offset);
        let is_last = offset + bytes == total_bytes;
        let (parts, count) = payload.take(bytes);
        let (parts, _) = parts.split_at(count);
        template.write(
            headers,
            parts,
            &Piece {
                index,
                offset,
                bytes,
                is_last,
            },
            checksum,
        );
        sink(headers, parts);
        if is_last {
            break;
        }
        index += 1;
        offset += bytes;
    }
}

fn copy_headers<'a>(buffer: &'a mut [u8; HEADERS_BYTES_MAX], headers: &[u8]) -> &'a mut [u8] {
    let copy = buffer
        .get_mut(..headers.len())
        .expect("invariant: headers have a longest");
    copy.copy_from_slice(headers);
    copy
}

/// One of the frames a large segment is cut into.
#[derive(Clone, Copy, Debug)]
struct Piece {
    index: u16,
    /// Payload bytes before it.
    offset: usize,
    /// Payload bytes in it.
    bytes: usize,
    is_last: bool,
}

/// What the pieces have in common, read once from the large segment's headers.
#[derive(Clone, Copy, Debug)]
struct Template {
    kind: SegmentationKind,
    transport_offset: usize,
    identification: u16,
    sequence: u32,
    flags: TcpFlags,
}

impl Template {
    fn new(headers: &[u8], kind: SegmentationKind) -> Self {
        let (version, ip_bytes) = match kind {
            SegmentationKind::TcpV4 => (0x45, ipv4::HEADER_BYTES),
            SegmentationKind::TcpV6 => (0x60, ipv6::HEADER_BYTES),
        };
        let transport_offset = ethernet::HEADER_BYTES + ip_bytes;
        let transport = headers.get(transport_offset..).unwrap_or_default();
        let header: &[u8; tcp::HEADER_BYTES] = transport
            .first_chunk()
            .expect("invariant: a large segment has a TCP header");
        assert_eq!(
            headers[ethernet::HEADER_BYTES],
            version,
            "headers of the kind stated"
        );
        assert_eq!(
            usize::from(header[12] >> 4) * 4,
            transport.len(),
            "headers end with TCP's"
        );
        Self {
            kind,
            transport_offset,
            // Meaningless in IPv6, which has flow label and addresses there, and unused then.
            identification: u16::from_be_bytes([headers[18], headers[19]]),
            sequence: field::u32::<4, _>(header),
            flags: TcpFlags(header[13]),
        }
    }

    /// Makes `headers` those of `piece`, whose payload is `parts`.
    fn write(&self, headers: &mut [u8], parts: &[&[u8]], piece: &Piece, checksum: TcpChecksum) {
        let transport_bytes = headers.len() - self.transport_offset + piece.bytes;
        let length = u16::try_from(transport_bytes).expect("invariant: a piece is below 64 KiB");
        let (link_and_ip, transport) = headers.split_at_mut(self.transport_offset);
        let (_, ip) = link_and_ip.split_at_mut(ethernet::HEADER_BYTES);
        let pseudo = self.write_ip(ip, length, piece.index);

        let offset = u32::try_from(piece.offset).expect("invariant: a segment is below 64 KiB");
        put(
            transport,
            4,
            &self.sequence.wrapping_add(offset).to_be_bytes(),
        );
        let mut flags = self.flags;
        if piece.index > 0 {
            flags = flags.difference(TcpFlags::CWR);
        }
        if !piece.is_last {
            flags = flags.difference(TcpFlags::FIN.union(TcpFlags::PSH));
        }
        put(transport, 13, &[flags.0]);
        let value = match checksum {
            TcpChecksum::Partial => pseudo,
            TcpChecksum::Full => {
                put(transport, tcp::CHECKSUM_OFFSET, &[0, 0]);
                let mut sum = checksum::Accumulator::new(pseudo);
                sum.add(transport);
                for part in parts {
                    sum.add(part);
                }
                !sum.sum()
            }
        };
        put(transport, tcp::CHECKSUM_OFFSET, &value.to_be_bytes());
    }

    /// Writes what differs in the IP header and returns the sum of the pseudo-header.
    fn write_ip(&self, ip: &mut [u8], transport_bytes: u16, index: u16) -> u16 {
        let addresses = match self.kind {
            SegmentationKind::TcpV4 => {
                let total_bytes = transport_bytes + IPV4_HEADER_BYTES;
                put(ip, 2, &total_bytes.to_be_bytes());
                put(
                    ip,
                    4,
                    &self.identification.wrapping_add(index).to_be_bytes(),
                );
                put(ip, 10, &[0, 0]);
                let checksum = checksum::complete(0, &[ip]);
                put(ip, 10, &checksum.to_be_bytes());
                &ip[12..20]
            }
            SegmentationKind::TcpV6 => {
                put(ip, 4, &transport_bytes.to_be_bytes());
                &ip[8..40]
            }
        };
        let rest = checksum::add(u16::from(ipv4::PROTOCOL_TCP), transport_bytes);
        checksum::sum(addresses, rest)
    }
}

/// Writes a field of a header.
fn put(header: &mut [u8], offset: usize, bytes: &[u8]) {
    header
        .get_mut(offset..offset + bytes.len())
        .expect("invariant: a field lies inside its header")
        .copy_from_slice(bytes);
}

/// Payload not yet taken, in parts.
#[derive(Clone, Copy, Debug)]
struct Gather<'a> {
    parts: &'a [&'a [u8]],
    /// Bytes of the first part already taken.
    taken: usize,
}

impl<'a> Gather<'a> {
    /// The next `bytes` bytes, as slices of the parts they lie in: an array and how much of it
    /// counts.
    fn take(&mut self, bytes: usize) -> ([&'a [u8]; Outgoing::PARTS_MAX], usize) {
        let mut slices: [&[u8]; Outgoing::PARTS_MAX] = [&[]; Outgoing::PARTS_MAX];
        let mut count = 0;
        let mut wanted = bytes;
        while wanted > 0 {
            let (first, others) = self
                .parts
                .split_first()
                .expect("invariant: no more is taken than there is");
            let (_, rest) = first.split_at(self.taken);
            let (slice, left) = rest.split_at(wanted.min(rest.len()));
            if left.is_empty() {
                self.parts = others;
                self.taken = 0;
            } else {
                self.taken += slice.len();
            }
            if !slice.is_empty() {
                slices[count] = slice;
                count += 1;
                wanted -= slice.len();
            }
        }
        (slices, count)
    }
}
