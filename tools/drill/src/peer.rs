//! The peer's side of the connection: the sequence numbers of both sides, what a line leaves out, and
//! the frames that a line means.
//!
//! Its numbers wrap within the first request, and its timestamps within the first second, so every
//! script crosses both ends. It checks nothing of what it receives; the run does.

use wire::icmpv4::{CODE_FRAGMENTATION_NEEDED, Icmpv4Message};
use wire::ipv4::{self, Ipv4Repr};
use wire::{HEADERS_BYTES_MAX, SeqNumber, TcpChecksum, TcpFlags, TcpOptions, TcpRepr, Timestamps};

use crate::content::{self, REQUEST_BYTES};
use crate::script::{Segment, Setup};
use crate::server::{self, PEER_PORT, Packet, SERVER_PORT};

/// Initial sequence number of the peer.
const ISN: SeqNumber = SeqNumber(u32::MAX - 49);
/// TSval of the peer at second 0 of the script.
const STAMP_BASE: u32 = u32::MAX - 499;
/// Largest window without scaling, bytes.
const WINDOW_MAX: u32 = 65_535;
/// Bytes of Ethernet and IPv4 headers.
const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: u16 = 20;
/// Bytes of the packet that a router quotes (RFC 792: the header and eight).
const QUOTE_BYTES: usize = 28;

/// See the module.
#[derive(Debug)]
pub(crate) struct Peer {
    setup: Setup,
    request: Vec<u8>,
    /// SND.NXT, relative.
    next: i64,
    /// The highest acknowledgment sent, relative.
    ack: i64,
    /// The server's initial sequence number, once its SYN-ACK came.
    iss: Option<SeqNumber>,
    /// The server's TSval at second 0 of the script.
    their_stamp_base: Option<u32>,
    /// The server's last TSval, milliseconds of the script.
    recent: i64,
    /// End of what the server has sent, SYN and FIN included, relative.
    sent_end: i64,
}

impl Peer {
    pub(crate) fn new(setup: &Setup) -> Self {
        Self {
            setup: setup.clone(),
            request: content::request(setup),
            next: 0,
            ack: 0,
            iss: None,
            their_stamp_base: None,
            recent: 0,
            sent_end: 0,
        }
    }

    /// The frame of a line, sent at this millisecond of the script.
    ///
    /// # Errors
    /// The window cannot be written with the peer's window scale.
    pub(crate) fn frame(&mut self, line: &Segment, millis: i64) -> Result<Vec<u8>, String> {
        let (segment, text) = self.segment(line, millis)?;
        let mut headers = [0; HEADERS_BYTES_MAX];
        let length = wire::emit_tcp(
            &mut headers,
            &server::peer_route(),
            &segment,
            &[&text],
            TcpChecksum::Full,
            1,
        );
        let mut frame = [&headers[..length], &text].concat();
        wire::set_ecn(&mut frame, line.ecn);
        Ok(frame)
    }

    fn segment(&mut self, line: &Segment, millis: i64) -> Result<(TcpRepr, Vec<u8>), String> {
        let syn = line.bits.syn;
        let start = line.sequence.as_ref().map_or(self.next, |it| it.start);
        let start = if syn && line.sequence.is_none() {
            0
        } else {
            start
        };
        let text_bytes = if line.is_request {
            REQUEST_BYTES as i64
        } else {
            line.sequence.as_ref().map_or(0, |it| it.end - it.start)
        };
        let text: Vec<u8> = (start..start + text_bytes)
            .map(|at| self.text(at))
            .collect();
        let end = start + text_bytes + i64::from(syn) + i64::from(line.bits.fin);
        if start <= self.next {
            self.next = self.next.max(end);
        }
        let has_ack = !line.without_ack && (!syn || line.ack.is_some());
        let ack = line.ack.unwrap_or(self.ack);
        if ack > self.ack && ack <= self.sent_end {
            self.ack = ack;
        }
        let segment = TcpRepr {
            source_port: PEER_PORT,
            destination_port: line.port.unwrap_or(SERVER_PORT),
            sequence: ISN.wrapping_add(modular(start)),
            acknowledgment: if has_ack {
                self.iss.unwrap_or_default().wrapping_add(modular(ack))
            } else {
                SeqNumber(0)
            },
            flags: flags_of(line, has_ack, text_bytes > 0),
            window: self.window(line)?,
            options: self.options(line, millis),
        };
        Ok((segment, text))
    }

    /// The byte of the peer's stream with this sequence number: requests, one after the other.
    fn text(&self, at: i64) -> u8 {
        let index = usize::try_from((at - 1).rem_euclid(REQUEST_BYTES as i64)).unwrap_or(0);
        self.request[index]
    }

    fn window(&self, line: &Segment) -> Result<u16, String> {
        let bytes = line.window_bytes.unwrap_or(self.setup.window_bytes);
        let shift = self.setup.scale.unwrap_or(0).min(14);
        let (shift, bytes) = match (line.bits.syn, shift) {
            // RFC 7323 s2.2: the window of a SYN is not scaled.
            (true, _) | (_, 0) => (0, bytes.min(WINDOW_MAX)),
            (false, shift) => (shift, bytes),
        };
        let raw = bytes >> shift;
        if raw << shift != bytes {
            return Err(format!(
                "a window of {bytes} bytes is no multiple of 2^{shift}"
            ));
        }
        u16::try_from(raw)
            .map_err(|_| format!("a window of {bytes} bytes is too large for a scale of {shift}"))
    }

    fn options(&self, line: &Segment, millis: i64) -> TcpOptions {
        let mut options = TcpOptions::default();
        if line.bits.syn {
            options.mss = self.setup.mss;
            options.window_scale = self.setup.scale;
            options.sack_permitted = self.setup.sack;
        }
        for block in &line.sack {
            let edge = |at| self.iss.unwrap_or_default().wrapping_add(modular(at));
            options.sack.push(edge(block.start), edge(block.end));
        }
        let wants_stamp = self.setup.timestamps || line.stamp.is_some();
        if wants_stamp && !line.without_stamp {
            let value = STAMP_BASE.wrapping_add(modular(line.stamp.unwrap_or(millis)));
            let echo = match self.their_stamp_base {
                Some(base) => base.wrapping_add(modular(line.echo.unwrap_or(self.recent))),
                None => 0,
            };
            options.timestamps = Some(Timestamps { value, echo });
        }
        options
    }

    /// A router's report about the packet that begins at this relative number.
    pub(crate) fn report(&self, sequence: i64, mtu_bytes: u16) -> Vec<u8> {
        let sequence = self.iss.unwrap_or_default().wrapping_add(modular(sequence));
        packet_too_big(sequence, mtu_bytes)
    }

    /// A packet that left at this millisecond is about to be looked at: the first SYN-ACK names the
    /// numbers that all others are relative to.
    pub(crate) fn see(&mut self, packet: &Packet, millis: i64) {
        let segment = &packet.segment;
        if self.iss.is_none() && segment.flags.contains(TcpFlags::SYN) {
            self.iss = Some(segment.sequence);
        }
        if let (None, Some(stamp)) = (self.their_stamp_base, segment.options.timestamps) {
            self.their_stamp_base = Some(stamp.value.wrapping_sub(modular(millis)));
        }
    }

    /// A packet reached the peer at this millisecond: learns the server's numbers from it.
    pub(crate) fn learn(&mut self, packet: &Packet, millis: i64) {
        let segment = &packet.segment;
        if segment.flags.contains(TcpFlags::SYN) && self.iss != Some(segment.sequence) {
            self.iss = Some(segment.sequence);
            self.their_stamp_base = None;
            self.sent_end = 0;
        }
        if let Some(stamp) = segment.options.timestamps {
            let base = *self
                .their_stamp_base
                .get_or_insert(stamp.value.wrapping_sub(modular(millis)));
            self.recent = i64::from(stamp.value.wrapping_sub(base).cast_signed());
        }
        let numbers = self.numbers(packet);
        self.sent_end = self.sent_end.max(numbers.end);
    }

    /// A server's sequence number, relative.
    pub(crate) fn relative(&self, sequence: SeqNumber) -> i64 {
        i64::from(sequence.distance(self.iss.unwrap_or_default()))
    }

    /// A sequence number of the peer's, relative.
    pub(crate) fn relative_ack(&self, sequence: SeqNumber) -> i64 {
        i64::from(sequence.distance(ISN))
    }

    /// The server's TSval and TSecr, milliseconds of the script.
    pub(crate) fn stamps(&self, packet: &Packet) -> Option<(i64, i64)> {
        let stamp = packet.segment.options.timestamps?;
        let base = self.their_stamp_base.unwrap_or_default();
        let signed = |value: u32, base| i64::from(value.wrapping_sub(base).cast_signed());
        Some((signed(stamp.value, base), signed(stamp.echo, STAMP_BASE)))
    }

    /// Sequence numbers that a packet takes, SYN and FIN included.
    pub(crate) fn numbers(&self, packet: &Packet) -> core::ops::Range<i64> {
        let flags = packet.segment.flags;
        let start = self.relative(packet.segment.sequence);
        let control =
            i64::from(flags.contains(TcpFlags::SYN)) + i64::from(flags.contains(TcpFlags::FIN));
        start..start + packet.payload.len() as i64 + control
    }

    /// Whether a packet's numbers were all sent before; `None`: some of them were.
    pub(crate) fn was_sent(&self, packet: &Packet) -> Option<bool> {
        let numbers = self.numbers(packet);
        if numbers.start >= self.sent_end {
            Some(false)
        } else {
            (numbers.end <= self.sent_end).then_some(true)
        }
    }

    /// Bytes of text in a full segment of the server's.
    pub(crate) fn segment_bytes(&self) -> u16 {
        let offered = self.setup.mss.unwrap_or(536).max(536);
        let options = if self.setup.timestamps { 12 } else { 0 };
        offered.min(self.setup.mtu_bytes - 40) - options
    }
}

/// A relative number as an addend modulo 2^32.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sequence numbers and timestamps are modulo 2^32"
)]
const fn modular(number: i64) -> u32 {
    number as u32
}

fn flags_of(line: &Segment, has_ack: bool, has_text: bool) -> TcpFlags {
    let bits = line.bits;
    [
        (bits.syn, TcpFlags::SYN),
        (bits.fin, TcpFlags::FIN),
        (bits.rst, TcpFlags::RST),
        (bits.ece, TcpFlags::ECE),
        (bits.cwr, TcpFlags::CWR),
        (has_ack, TcpFlags::ACK),
        (has_text, TcpFlags::PSH),
    ]
    .into_iter()
    .filter(|(is_set, _)| *is_set)
    .fold(TcpFlags::default(), |all, (_, flag)| all.union(flag))
}

/// ICMP "fragmentation needed" (RFC 1191) from the router. It quotes a packet of the server's that
/// begins at `sequence`, whether there was one or not.
fn packet_too_big(sequence: SeqNumber, mtu_bytes: u16) -> Vec<u8> {
    let original = TcpRepr {
        source_port: SERVER_PORT,
        destination_port: PEER_PORT,
        sequence,
        flags: TcpFlags::ACK,
        ..TcpRepr::default()
    };
    let mut headers = [0; HEADERS_BYTES_MAX];
    let checksum = TcpChecksum::Full;
    wire::emit_tcp(&mut headers, &server::route(), &original, &[], checksum, 1);
    let message = Icmpv4Message::Unreachable {
        code: CODE_FRAGMENTATION_NEEDED,
        mtu_bytes,
        quote: &headers[ETHERNET_BYTES..][..QUOTE_BYTES],
    };
    let header = Ipv4Repr {
        source: server::ROUTER_ADDRESS,
        destination: server::SERVER_ADDRESS,
        protocol: ipv4::PROTOCOL_ICMP,
        time_to_live: 64,
        identification: 1,
        total_bytes: IPV4_BYTES + u16::try_from(message.bytes()).unwrap_or(u16::MAX),
    };
    let mut bytes = [0; IPV4_BYTES as usize];
    header.emit(&mut bytes);
    let route = server::peer_route();
    let macs = [route.destination_mac.0, route.source_mac.0].concat();
    let mut frame = [&macs[..], &[0x08, 0x00], &bytes].concat();
    let at = frame.len();
    frame.resize(at + message.bytes(), 0);
    message.emit(&mut frame[at..]);
    frame
}
