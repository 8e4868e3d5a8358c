//! Checks that every retransmission has the bytes of the first transmission.
//!
//! TCP requires it, because a receiver may assemble its data from parts of both. For TLS it is
//! critical: two contents sealed under one record number disclose the key (see `record`). So
//! everything a server sends is kept, by connection and stream offset, and retransmissions are
//! compared with it. The clients cannot check this: they never see what was lost.
//!
//! It refuses to interpret the bytes. Bounded by what the server sends in a run: all of it is kept.

use std::collections::BTreeMap;

use crate::client::Violation;
use crate::segment::{End, Segment};

/// Most violations kept: one cause often has many.
const COMPLAINTS_MAX: usize = 4;

/// Everything one server sent. See the module.
#[derive(Debug, Default)]
pub(crate) struct Retransmissions {
    streams: BTreeMap<Ends, Stream>,
    repeated_bytes: u64,
    sent_bytes: u64,
    connections: u64,
    complaints: Vec<Violation>,
}

/// Four-tuple, the server first.
type Ends = (End, End);

/// Everything sent on one connection, from its SYN on.
#[derive(Debug)]
struct Stream {
    /// Sequence number of the first byte of data.
    first: u32,
    /// Everything sent, from there on.
    bytes: Vec<u8>,
    /// The server has reset the connection.
    is_reset: bool,
}

impl Retransmissions {
    /// A frame of the server's: whole, or as large as its link cuts by itself.
    pub(crate) fn handle_frame(&mut self, frame: &[u8]) {
        let Some(segment) = Segment::parse(frame) else {
            return;
        };
        let ends = (segment.source, segment.destination);
        let known = self.streams.get_mut(&ends);
        if segment.is_syn {
            let first = segment.sequence.wrapping_add(1);
            // The same sequence number: a retransmitted SYN.
            if known.is_none_or(|stream| stream.first != first || stream.is_reset) {
                self.streams.insert(ends, Stream::new(first));
                self.connections += 1;
            }
            return;
        }
        let judged = match known {
            Some(stream) => stream.handle(&segment),
            None if segment.payload.is_empty() => Ok(0),
            None => Err("data on a connection that never began".to_owned()),
        };
        match judged {
            Ok(repeated_bytes) => {
                self.repeated_bytes += repeated_bytes;
                self.sent_bytes += segment.payload.len() as u64 - repeated_bytes;
            }
            Err(complaint) if self.complaints.len() < COMPLAINTS_MAX => {
                let ((_, from), (to, port)) = ends;
                self.complaints
                    .push(format!("port {from} to {to} port {port}: {complaint}"));
            }
            Err(_) => {}
        }
    }

    /// Whether the frame retransmits data.
    pub(crate) fn is_repeat(&self, frame: &[u8]) -> bool {
        Segment::parse(frame).is_some_and(|segment| {
            let known = self.streams.get(&(segment.source, segment.destination));
            let sent = known.and_then(|stream| stream.sent_of(&segment));
            sent.is_some_and(|sent| !sent.is_empty() && !segment.payload.is_empty())
        })
    }

    /// Bytes that were retransmitted.
    pub(crate) const fn repeated_bytes(&self) -> u64 {
        self.repeated_bytes
    }

    /// Bytes that were sent, retransmissions not counted.
    pub(crate) const fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Connections that were begun.
    pub(crate) const fn connections(&self) -> u64 {
        self.connections
    }

    /// Violations found.
    pub(crate) fn complaints(&self) -> &[Violation] {
        &self.complaints
    }
}

impl Stream {
    const fn new(first: u32) -> Self {
        Self {
            first,
            bytes: Vec::new(),
            is_reset: false,
        }
    }

    /// What was sent before from where the segment begins; `None` if that is behind its end.
    fn sent_of(&self, segment: &Segment<'_>) -> Option<&[u8]> {
        // Runs stay below 4 GiB a connection.
        let offset = segment.sequence.wrapping_sub(self.first);
        self.bytes.get(usize::try_from(offset).ok()?..)
    }

    /// How many of the bytes were sent before.
    fn handle(&mut self, segment: &Segment<'_>) -> Result<u64, Violation> {
        let sent = self.sent_of(segment);
        if segment.is_reset {
            // A reset of the connection has the sequence number behind all data. One with another
            // number answers an unacceptable segment and ends nothing (RFC 9293 s3.10.7.4).
            self.is_reset |= sent.is_some();
            return Ok(0);
        }
        if segment.payload.is_empty() {
            return Ok(0);
        }
        if self.is_reset {
            return Err("data behind a reset".to_owned());
        }
        let Some(sent) = sent else {
            return Err("a hole in the stream".to_owned());
        };
        let repeated = sent.len().min(segment.payload.len());
        let (again, new) = segment.payload.split_at(repeated);
        let differs = again.iter().zip(sent).position(|(now, then)| now != then);
        if let Some(place) = differs {
            let offset = self.bytes.len() - sent.len() + place;
            return Err(format!(
                "byte {offset} of the stream is not what was first sent"
            ));
        }
        self.bytes.extend_from_slice(new);
        Ok(repeated as u64)
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use wire::{MacAddress, Route, SeqNumber, TcpFlags, TcpOptions, TcpRepr};

    use super::Retransmissions;
    use crate::crafted;

    const ISS: u32 = u32::MAX - 3;

    fn frame(flags: TcpFlags, sequence: u32, payload: &[u8]) -> Vec<u8> {
        let route = Route {
            source_mac: MacAddress([2, 0, 0, 0, 0, 1]),
            destination_mac: MacAddress([2, 0, 0, 0, 0, 2]),
            source: Ipv4Addr::new(10, 0, 0, 1).into(),
            destination: Ipv4Addr::new(10, 0, 0, 2).into(),
        };
        let segment = TcpRepr {
            source_port: 80,
            destination_port: 40_000,
            sequence: SeqNumber(sequence),
            acknowledgment: SeqNumber(1),
            flags,
            window: 100,
            options: TcpOptions::default(),
        };
        crafted::tcp(&route, &segment, payload)
    }

    /// A SYN, then these segments: offset in the stream and payload.
    fn sent(segments: &[(u32, &[u8])]) -> Retransmissions {
        let mut retransmissions = Retransmissions::default();
        retransmissions.handle_frame(&frame(TcpFlags::SYN.union(TcpFlags::ACK), ISS, b""));
        for (offset, payload) in segments {
            let sequence = ISS.wrapping_add(1 + offset);
            retransmissions.handle_frame(&frame(TcpFlags::ACK, sequence, payload));
        }
        retransmissions
    }

    fn complaint(retransmissions: &Retransmissions) -> &str {
        retransmissions
            .complaints()
            .first()
            .map_or("", String::as_str)
    }

    #[test]
    fn the_same_bytes_again_are_counted_and_others_are_found() {
        let first: &[(u32, &[u8])] = &[(0, b"abcdef"), (6, b"ghi")];
        let with = |segment| sent(&[first, &[segment]].concat());
        for (segment, repeated) in [
            ((9, b"new".as_slice()), 0),
            ((0, b"abc"), 3),
            ((2, b"cdefghi"), 7),
            ((8, b"ijk"), 1),
            ((0, b"abcdefghijkl"), 9),
        ] {
            let retransmissions = with(segment);
            assert_eq!(
                (
                    complaint(&retransmissions),
                    retransmissions.repeated_bytes()
                ),
                ("", repeated)
            );
        }
        for (segment, place) in [
            ((0, b"abX".as_slice()), 2),
            ((5, b"fgX"), 7),
            ((8, b"Xjk"), 8),
        ] {
            let retransmissions = with(segment);
            let wanted = format!("byte {place} of the stream is not");
            assert!(
                complaint(&retransmissions).contains(&wanted),
                "{retransmissions:?}"
            );
        }
        assert!(complaint(&with((10, b"x"))).contains("a hole"));
    }

    #[test]
    fn what_repeats_is_known_before_it_is_sent() {
        let retransmissions = sent(&[(0, b"abc")]);
        let asked = |offset: u32, payload: &[u8]| {
            retransmissions.is_repeat(&frame(TcpFlags::ACK, ISS.wrapping_add(1 + offset), payload))
        };
        assert!(asked(0, b"a") && asked(2, b"cd"));
        assert!(!asked(3, b"d") && !asked(0, b"") && !asked(9, b"x"));
    }

    #[test]
    fn a_new_syn_begins_a_new_stream_and_the_same_one_does_not() {
        let syn = TcpFlags::SYN.union(TcpFlags::ACK);
        let mut retransmissions = sent(&[(0, b"abc")]);
        retransmissions.handle_frame(&frame(syn, ISS, b""));
        retransmissions.handle_frame(&frame(TcpFlags::ACK, ISS.wrapping_add(1), b"abc"));
        assert_eq!(
            (
                complaint(&retransmissions),
                retransmissions.repeated_bytes()
            ),
            ("", 3)
        );
        retransmissions.handle_frame(&frame(syn, 77, b""));
        retransmissions.handle_frame(&frame(TcpFlags::ACK, 78, b"xyz"));
        assert_eq!(
            (
                complaint(&retransmissions),
                retransmissions.repeated_bytes()
            ),
            ("", 3)
        );
        let mut stray = Retransmissions::default();
        stray.handle_frame(&frame(TcpFlags::ACK, 5, b""));
        assert_eq!(complaint(&stray), "");
        stray.handle_frame(&frame(TcpFlags::ACK, 5, b"x"));
        assert!(complaint(&stray).contains("never began"));
    }

    #[test]
    fn nothing_follows_a_reset_but_a_new_connection() {
        let reset = |sequence| frame(TcpFlags::RST, sequence, b"");
        let more = frame(TcpFlags::ACK, ISS.wrapping_add(4), b"def");
        let mut retransmissions = sent(&[(0, b"abc")]);
        // It answers a segment that the connection did not accept.
        retransmissions.handle_frame(&reset(ISS.wrapping_add(1 << 29)));
        retransmissions.handle_frame(&more);
        assert_eq!(complaint(&retransmissions), "");
        retransmissions.handle_frame(&reset(ISS.wrapping_add(7)));
        retransmissions.handle_frame(&more);
        assert!(complaint(&retransmissions).contains("behind a reset"));
    }
}
