//! A client that asks for one chunk after the other and does nothing else: no losses, no options but MSS and window
//! scale, an ACK for what arrived within the interrupt moderation of its host.
//!
//! It refuses segments out of order, which nothing here causes. Bounded by its window.

use core::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use clock::{Duration, Instant};
use rustls::ClientConfig;
use wire::{
    ChecksumState, Incoming, MacAddress, Route, SeqNumber, TcpFlags, TcpOptions, TcpRepr,
    parse_frame,
};

use super::DISKS;
use crate::atlas::MAC;
use crate::client::Violation;
use crate::client::secure::Secure;
use crate::crafted;
use crate::scenario::{PORT, SECURE_PORT, SERVER_V4};

/// Size of a chunk of video (the paper's, some 300 KB).
pub(super) const OBJECT_BYTES: u64 = 300_000;
/// A client's window: more than 75 Gb/s in 2,000 parts take in 40 ms.
const WINDOW_BYTES: u32 = 1 << 20;
/// Bits that the window is shifted by.
const WINDOW_SHIFT: u8 = 5;
/// From the arrival of a frame until what has arrived is acknowledged: the usual interrupt moderation of
/// a NIC.
const ACK_DELAY: Duration = Duration::from_micros(50);
const MSS: u16 = 1460;
/// Clients of one address, told apart by their ports.
const PORTS: u32 = 10_000;
const PORT_FIRST: u16 = 20_000;
const HOST_FIRST: Ipv4Addr = Ipv4Addr::new(10, 9, 8, 1);

/// What a client is at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Opening,
    /// The connection is open, and TLS set up if there is any.
    Ready,
    /// Waits for the end of a reply's head; so many of its last bytes match the end of a head.
    Head(usize),
    /// So many bytes of the body are missing.
    Body(u64),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Client {
    address: IpAddr,
    port: u16,
    phase: Phase,
    secure: Option<Secure>,
    /// SND.NXT.
    next: SeqNumber,
    /// RCV.NXT.
    expected: SeqNumber,
    requests: u32,
    /// When what has arrived is acknowledged.
    pub(super) ack_at: Option<Instant>,
    /// Bytes of TCP payload that arrived.
    pub(super) payload_bytes: u64,
}

impl Client {
    /// Over TLS if there is a configuration for it.
    pub(super) fn new(number: u32, tls: Option<&Arc<ClientConfig>>) -> Self {
        let host = Ipv4Addr::from_bits(HOST_FIRST.to_bits() + number / PORTS);
        let port = u16::try_from(number % PORTS).expect("invariant: below 2^16");
        Self {
            address: host.into(),
            port: PORT_FIRST + port,
            phase: Phase::Opening,
            secure: tls.map(Secure::new),
            next: SeqNumber(number),
            expected: SeqNumber(0),
            requests: number,
            ack_at: None,
            payload_bytes: 0,
        }
    }

    /// Its SYN.
    pub(super) fn open(&mut self) -> Vec<u8> {
        self.emit(TcpFlags::SYN, &[], 1)
    }

    /// Whether it can ask.
    pub(super) fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// Takes a frame; returns one that goes at once.
    pub(super) fn handle_frame(&mut self, now: Instant, frame: &[u8]) -> Option<Vec<u8>> {
        let Ok(Incoming::Tcp {
            segment, payload, ..
        }) = parse_frame(frame, ChecksumState::Trusted)
        else {
            return None;
        };
        assert!(
            !segment.flags.contains(TcpFlags::RST),
            "a client was reset: the server has too few connections or slots"
        );
        if segment.flags.contains(TcpFlags::SYN) {
            self.expected = SeqNumber(segment.sequence.0.wrapping_add(1));
            if self.secure.is_some() {
                return self.send_secured();
            }
            self.phase = Phase::Ready;
            return Some(self.acknowledge());
        }
        if payload.is_empty() {
            return None;
        }
        assert_eq!(segment.sequence, self.expected, "nothing is lost here");
        let bytes = u32::try_from(payload.len()).expect("invariant: a frame is short");
        self.expected = SeqNumber(self.expected.0.wrapping_add(bytes));
        self.payload_bytes += u64::from(bytes);
        self.ack_at.get_or_insert(now + ACK_DELAY);
        let is_whole = self.take(payload);
        if self.phase == Phase::Opening && self.secure.as_ref().is_some_and(Secure::is_ready) {
            self.phase = Phase::Ready;
            return self.send_secured();
        }
        is_whole.then(|| self.ask())
    }

    /// Takes text in order, out of its records if there are any; whether a reply is whole.
    fn take(&mut self, payload: &[u8]) -> bool {
        let Some(mut secure) = self.secure.take() else {
            return self.read(payload);
        };
        let mut is_whole = false;
        let mut sink = |text: &[u8]| -> Result<(), Violation> {
            is_whole |= self.read(text);
            Ok(())
        };
        let taken = secure.handle_bytes(payload, &mut sink);
        taken.expect("a record that the server has sealed");
        self.secure = Some(secure);
        is_whole
    }

    fn read(&mut self, mut text: &[u8]) -> bool {
        const END: &[u8] = b"\r\n\r\n";
        while let (Phase::Head(matched), Some((&byte, rest))) = (self.phase, text.split_first()) {
            text = rest;
            let matched = match byte {
                byte if END.get(matched) == Some(&byte) => matched + 1,
                b'\r' => 1,
                _ => 0,
            };
            self.phase = if matched == END.len() {
                Phase::Body(OBJECT_BYTES)
            } else {
                Phase::Head(matched)
            };
        }
        let Phase::Body(missing) = &mut self.phase else {
            return false;
        };
        let bytes = text.len() as u64;
        *missing = missing
            .checked_sub(bytes)
            .expect("invariant: one reply at a time");
        *missing == 0
    }

    /// Asks for the next chunk: each is on another disk than the last.
    pub(super) fn ask(&mut self) -> Vec<u8> {
        self.phase = Phase::Head(0);
        self.ack_at = None;
        self.requests += 1;
        let number = self.requests % DISKS;
        let request = format!("GET /objects/{number}.mp4 HTTP/1.1\r\nHost: sim\r\n\r\n");
        if let Some(secure) = &mut self.secure {
            secure.write(request.as_bytes());
            return self.send_secured().expect("invariant: a record");
        }
        self.send(request.as_bytes())
    }

    /// What TLS has to send, which fits a packet.
    fn send_secured(&mut self) -> Option<Vec<u8>> {
        let mut output = Vec::new();
        if let Some(secure) = &mut self.secure {
            secure.take_output(&mut output);
        }
        assert!(output.len() <= MSS.into(), "more than a packet");
        (!output.is_empty()).then(|| self.send(&output))
    }

    fn send(&mut self, text: &[u8]) -> Vec<u8> {
        self.ack_at = None;
        let bytes = u32::try_from(text.len()).expect("invariant: it is short");
        self.emit(TcpFlags::ACK.union(TcpFlags::PSH), text, bytes)
    }

    /// An ACK of all that has arrived.
    pub(super) fn acknowledge(&mut self) -> Vec<u8> {
        self.ack_at = None;
        self.segment(TcpFlags::ACK, &[])
    }

    /// A segment, behind which so much of sequence space is used.
    fn emit(&mut self, flags: TcpFlags, text: &[u8], used: u32) -> Vec<u8> {
        let frame = self.segment(flags, text);
        self.next = SeqNumber(self.next.0.wrapping_add(used));
        frame
    }

    fn segment(&self, flags: TcpFlags, payload: &[u8]) -> Vec<u8> {
        let is_syn = flags.contains(TcpFlags::SYN);
        let shift = if is_syn { 0 } else { WINDOW_SHIFT };
        let segment = TcpRepr {
            source_port: self.port,
            destination_port: match self.secure {
                Some(_) => SECURE_PORT,
                None => PORT,
            },
            sequence: self.next,
            acknowledgment: self.expected,
            flags,
            window: u16::try_from(WINDOW_BYTES >> shift).unwrap_or(u16::MAX),
            options: TcpOptions {
                mss: is_syn.then_some(MSS),
                window_scale: is_syn.then_some(WINDOW_SHIFT),
                ..TcpOptions::default()
            },
        };
        let route = Route {
            source_mac: MacAddress([0x02, 0, 0, 0, 8, 1]),
            destination_mac: MAC,
            source: self.address,
            destination: IpAddr::V4(SERVER_V4),
        };
        crafted::tcp(&route, &segment, payload)
    }

    /// Whose a frame of the server's is.
    pub(super) fn number_of(frame: &[u8]) -> Option<usize> {
        const DESTINATION_AT: usize = 14 + 16;
        const PORT_AT: usize = 14 + 20 + 2;
        let address = frame.get(DESTINATION_AT..)?.first_chunk::<4>()?;
        let port = frame.get(PORT_AT..)?.first_chunk::<2>()?;
        let host = u32::from_be_bytes(*address).checked_sub(HOST_FIRST.to_bits())?;
        let port = u16::from_be_bytes(*port).checked_sub(PORT_FIRST)?;
        usize::try_from(host * PORTS + u32::from(port)).ok()
    }
}
