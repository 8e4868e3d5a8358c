//! The log of a run's frames: a digest of all, and on request a line for each, or a pcap file; and
//! the trace of its connections.
//!
//! Two runs of one seed have the same digest and lines. The keys of a TLS handshake do not come
//! from the seed, so of frames that may hold ciphertext only headers and length are in the digest:
//! of a valid TLS segment all headers but the checksum, of a damaged frame, or one that may quote
//! another, the Ethernet header. Of all other frames every byte is. The pcap file has every byte of
//! all frames.
//!
//! It refuses to influence the run. Lines are in a stable format, so that two runs
//! can be compared with `diff`. Bounded by the run; a capture is kept in memory until its end.

use core::fmt;

use clock::Instant;
use smoltcp::wire::{EthernetFrame, PrettyPrinter};

use super::trace::Trace;
use crate::scenario::SECURE_PORT;
use crate::segment::Segment;

/// Which way a frame went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// From a client, before the network loses, delays or changes it.
    ToServer,
    /// To the clients, after the network delivered it.
    ToClients,
}

/// The log of a run's frames.
#[derive(Debug, Default)]
pub(crate) struct FrameLog {
    digest: Digest,
    frames: u64,
    lines: Option<Vec<String>>,
    capture: Option<Vec<u8>>,
    trace: Option<Trace>,
}

impl FrameLog {
    /// Keeps the digest, and lines and a capture if wanted.
    pub(crate) fn new(lines: bool, capture: bool) -> Self {
        Self {
            lines: lines.then(Vec::new),
            capture: capture.then(pcap_header),
            ..Self::default()
        }
    }

    /// Keeps a trace, too.
    pub(crate) fn with_trace(self) -> Self {
        Self {
            trace: Some(Trace::default()),
            ..self
        }
    }

    /// The trace, if one was wanted.
    pub(crate) fn trace(&self) -> Option<Trace> {
        self.trace.clone()
    }

    /// A frame passed the clients' end of the network.
    pub(crate) fn record(&mut self, now: Instant, direction: Direction, frame: &[u8]) {
        self.frames += 1;
        self.digest.add(now.as_nanos());
        self.digest.add(direction as u64);
        self.digest.add_frame(frame);
        if let Some(capture) = &mut self.capture {
            append_to_capture(capture, now, frame);
        }
        if let Some(lines) = &mut self.lines {
            let arrow = if direction == Direction::ToServer {
                ">"
            } else {
                "<"
            };
            lines.push(format!("{} {arrow} {}", Stamp(now), describe(frame)));
        }
    }

    /// Adds a line about something other than a frame.
    pub(crate) fn note(&mut self, now: Instant, what: fmt::Arguments<'_>) {
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{} ! {what}", Stamp(now)));
        }
    }

    /// Hash of all frames so far, with their times.
    pub(crate) const fn digest(&self) -> u64 {
        self.digest.0
    }

    /// Frames so far.
    pub(crate) const fn frames(&self) -> u64 {
        self.frames
    }

    /// One line per event, if they were wanted.
    pub(crate) fn lines(&self) -> &[String] {
        self.lines.as_deref().unwrap_or_default()
    }

    /// A pcap file, if one was wanted.
    pub(crate) fn capture(&self) -> Option<&[u8]> {
        self.capture.as_deref()
    }
}

/// Seconds and nanoseconds, in columns.
struct Stamp(Instant);

impl fmt::Display for Stamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        write!(
            formatter,
            "{:>5}.{:09}",
            nanos / 1_000_000_000,
            nanos % 1_000_000_000
        )
    }
}

/// FNV-1a over 64-bit words: fast, and the same on every machine.
#[derive(Debug)]
struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        // FNV moves bits upwards only; words, unlike bytes, need them back down.
        self.0 ^= self.0 >> 32;
    }

    /// Every byte of plaintext; headers and length of ciphertext.
    fn add_frame(&mut self, frame: &[u8]) {
        match sealed_part(frame) {
            None => self.add_bytes(frame),
            Some(Sealed { from, checksum }) => {
                let mut open = frame[..from].to_vec();
                if let Some(checksum) = checksum {
                    open[checksum..checksum + 2].fill(0);
                }
                self.add_bytes(&open);
                self.add(frame.len() as u64);
            }
        }
    }

    fn add_bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.add(u64::from_le_bytes(*word));
        }
        for byte in rest {
            self.add(u64::from(*byte));
        }
        self.add(bytes.len() as u64);
    }
}

/// Bytes of an Ethernet header.
const ETHERNET_BYTES: usize = 14;
const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
/// Where the checksum is in a TCP header (RFC 9293 s3.1).
const CHECKSUM_AT: usize = 16;

/// What of a frame may be ciphertext.
#[derive(Debug, PartialEq, Eq)]
struct Sealed {
    /// Everything from here on.
    from: usize,
    /// And the two bytes from here on, which follow from it.
    checksum: Option<usize>,
}

/// The part of `frame` that may be ciphertext; `None` if the seed determines all of it.
fn sealed_part(frame: &[u8]) -> Option<Sealed> {
    let Some(segment) = Segment::parse_valid(frame) else {
        let is_arp = frame.get(12..ETHERNET_BYTES) == Some(&ETHERTYPE_ARP);
        return (!is_arp).then(|| Sealed {
            from: ETHERNET_BYTES.min(frame.len()),
            checksum: None,
        });
    };
    if segment.source.1 != SECURE_PORT && segment.destination.1 != SECURE_PORT {
        return None;
    }
    // Nothing follows an IP packet in our frames.
    let from = frame.len() - segment.payload.len();
    Some(Sealed {
        from,
        checksum: Some(from - segment.header_bytes + CHECKSUM_AT),
    })
}

/// The header of a pcap file with nanosecond stamps, link type Ethernet.
fn pcap_header() -> Vec<u8> {
    let (magic, version) = (0xa1b2_3c4d_u32.to_le_bytes(), [2, 0, 4, 0]);
    let (snap_length, ethernet) = (65_536_u32.to_le_bytes(), [1, 0, 0, 0]);
    [magic, version, [0; 4], [0; 4], snap_length, ethernet].concat()
}

fn append_to_capture(capture: &mut Vec<u8>, now: Instant, frame: &[u8]) {
    let nanos = now.as_nanos();
    let length = frame.len() as u64;
    for field in [nanos / 1_000_000_000, nanos % 1_000_000_000, length, length] {
        capture.extend(u32::try_from(field).unwrap_or(u32::MAX).to_le_bytes());
    }
    capture.extend_from_slice(frame);
}

/// One line on a frame, for people; read by smoltcp, so that a mistake of ours shows.
fn describe(frame: &[u8]) -> String {
    let printer = PrettyPrinter::<EthernetFrame<&[u8]>>::new("", &frame);
    let text = printer.to_string();
    let layers = text
        .lines()
        .map(|line| line.trim_start_matches([' ', '\\']));
    layers.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use wire::{MacAddress, Route, SeqNumber, TcpFlags, TcpOptions, TcpRepr};

    use super::{Direction, FrameLog, Instant};
    use crate::crafted;
    use crate::scenario::{PORT, SECURE_PORT};

    #[test]
    fn the_digest_sees_time_direction_content_and_length() {
        let digest = |nanos, direction, frame: &[u8]| {
            let mut frame_log = FrameLog::new(false, false);
            frame_log.record(Instant::from_nanos(nanos), direction, frame);
            frame_log.digest()
        };
        let base = digest(1, Direction::ToServer, &[1; 20]);
        assert_eq!(base, digest(1, Direction::ToServer, &[1; 20]));
        assert_ne!(base, digest(2, Direction::ToServer, &[1; 20]));
        assert_ne!(base, digest(1, Direction::ToClients, &[1; 20]));
        assert_ne!(base, digest(1, Direction::ToServer, &[1; 21]));
        let mut changed = [1; 20];
        changed[3] = 2;
        assert_ne!(base, digest(1, Direction::ToServer, &changed));
    }

    fn segment(port: u16, window: u16, payload: &[u8]) -> Vec<u8> {
        let route = Route {
            source_mac: MacAddress([2, 0, 0, 0, 0, 1]),
            destination_mac: MacAddress([2, 0, 0, 0, 0, 2]),
            source: Ipv4Addr::new(10, 0, 0, 1).into(),
            destination: Ipv4Addr::new(10, 0, 0, 2).into(),
        };
        let segment = TcpRepr {
            source_port: port,
            destination_port: 40_000,
            sequence: SeqNumber(5),
            acknowledgment: SeqNumber(1),
            flags: TcpFlags::ACK,
            window,
            options: TcpOptions::default(),
        };
        crafted::tcp(&route, &segment, payload)
    }

    fn digest(frame: &[u8]) -> u64 {
        let mut frame_log = FrameLog::new(false, false);
        frame_log.record(Instant::ZERO, Direction::ToClients, frame);
        frame_log.digest()
    }

    #[test]
    fn of_ciphertext_the_digest_sees_the_shape_alone() {
        let plain = |payload: &[u8]| digest(&segment(PORT, 9, payload));
        assert_ne!(plain(b"abc"), plain(b"abd"));
        let sealed = |window, payload: &[u8]| digest(&segment(SECURE_PORT, window, payload));
        assert_eq!(sealed(9, b"abc"), sealed(9, b"xyz"));
        assert_ne!(sealed(9, b"abc"), sealed(9, b"abcd"));
        assert_ne!(sealed(9, b"abc"), sealed(8, b"abc"));
        // A damaged port is no sign of plaintext, and damaged lengths are none of headers.
        for place in 14..segment(SECURE_PORT, 9, b"").len() {
            let damaged = |payload| {
                let mut frame = segment(SECURE_PORT, 9, payload);
                frame[place] ^= 4;
                digest(&frame)
            };
            assert_eq!(damaged(b"abc"), damaged(b"xyz"), "byte {place}");
        }
    }

    #[test]
    fn a_capture_holds_each_frame_behind_its_header() {
        let mut frame_log = FrameLog::new(true, true);
        frame_log.record(
            Instant::from_nanos(3_000_000_007),
            Direction::ToServer,
            &[9; 60],
        );
        let capture = frame_log.capture().expect("wanted");
        assert_eq!(capture.len(), 24 + 16 + 60);
        assert_eq!(
            capture[24..40],
            [3, 0, 0, 0, 7, 0, 0, 0, 60, 0, 0, 0, 60, 0, 0, 0]
        );
        assert_eq!(frame_log.lines().len(), 1);
        assert!(
            frame_log.lines()[0].starts_with("    3.000000007 > "),
            "{}",
            frame_log.lines()[0]
        );
    }
}
