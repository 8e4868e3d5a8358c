//! A client that asks for one object after the other and does nothing else: no losses, no options but
//! MSS and window scale, an ACK for what arrived within the interrupt moderation of its host.
//!
//! It refuses segments out of order, which nothing here causes. Bounded by its window.

use core::net::{IpAddr, Ipv4Addr};

use clock::{Duration, Instant};
use wire::{
    ChecksumState, Incoming, MacAddress, Route, SeqNumber, TcpFlags, TcpOptions, TcpRepr,
    parse_frame,
};

use super::{OBJECT_BYTES, WINDOW_BYTES};
use crate::atlas::MAC;
use crate::crafted;
use crate::scenario::{PORT, SERVER_V4};

/// From the arrival of a frame until what has arrived is acknowledged: the usual interrupt moderation of
/// a NIC.
const ACK_DELAY: Duration = Duration::from_micros(50);
/// Bits that the window is shifted by: 64 KiB fit.
const WINDOW_SHIFT: u8 = 1;
const MSS: u16 = 1460;
/// Clients of one address, told apart by their ports.
const PORTS: u32 = 10_000;
const PORT_FIRST: u32 = 20_000;

/// What a client of the capacity runs is at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Closed,
    Opening,
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
    /// SND.NXT.
    next: SeqNumber,
    /// RCV.NXT.
    expected: SeqNumber,
    /// When what has arrived is acknowledged.
    pub(super) ack_at: Option<Instant>,
    /// Bytes of bodies.
    pub(super) received_bytes: u64,
}

impl Client {
    pub(super) fn new(number: u32) -> Self {
        let host = Ipv4Addr::from_bits(Ipv4Addr::new(10, 9, 8, 1).to_bits() + number / PORTS);
        let port = u16::try_from(PORT_FIRST + number % PORTS).expect("invariant: below 2^16");
        Self {
            address: host.into(),
            port,
            phase: Phase::Closed,
            next: SeqNumber(number),
            expected: SeqNumber(0),
            ack_at: None,
            received_bytes: 0,
        }
    }

    /// Its SYN.
    pub(super) fn open(&mut self) -> Vec<u8> {
        self.phase = Phase::Opening;
        let frame = self.segment(TcpFlags::SYN, &[]);
        self.advance(1);
        frame
    }

    /// Takes a frame; returns one that goes at once: a request.
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
        if self.phase == Phase::Opening {
            self.expected = SeqNumber(segment.sequence.0.wrapping_add(1));
            return Some(self.ask());
        }
        if payload.is_empty() {
            return None;
        }
        assert_eq!(segment.sequence, self.expected, "nothing is lost here");
        let bytes = u32::try_from(payload.len()).expect("invariant: a frame is short");
        self.expected = SeqNumber(self.expected.0.wrapping_add(bytes));
        self.ack_at.get_or_insert(now + ACK_DELAY);
        self.read(payload).then(|| self.ask())
    }

    /// A frame of its connection, to tell which queue it reaches.
    pub(super) fn any_frame(&self) -> Vec<u8> {
        self.segment(TcpFlags::ACK, &[])
    }

    /// The ACK that is due.
    pub(super) fn acknowledge(&mut self) -> Vec<u8> {
        self.ack_at = None;
        self.segment(TcpFlags::ACK, &[])
    }

    /// Reads text in order; whether the reply is whole.
    fn read(&mut self, mut payload: &[u8]) -> bool {
        const END: &[u8] = b"\r\n\r\n";
        while let (Phase::Head(matched), Some((&byte, rest))) = (self.phase, payload.split_first())
        {
            payload = rest;
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
        let bytes = payload.len() as u64;
        *missing = missing
            .checked_sub(bytes)
            .expect("invariant: one reply at a time");
        self.received_bytes += bytes;
        *missing == 0
    }

    fn ask(&mut self) -> Vec<u8> {
        self.phase = Phase::Head(0);
        self.ack_at = None;
        let request = b"GET /objects/0.mp4 HTTP/1.1\r\nHost: a\r\n\r\n";
        let frame = self.segment(TcpFlags::ACK.union(TcpFlags::PSH), request);
        self.advance(u32::try_from(request.len()).expect("invariant: it is short"));
        frame
    }

    const fn advance(&mut self, bytes: u32) {
        self.next = SeqNumber(self.next.0.wrapping_add(bytes));
    }

    fn segment(&self, flags: TcpFlags, payload: &[u8]) -> Vec<u8> {
        let is_syn = flags.contains(TcpFlags::SYN);
        let shift = if is_syn { 0 } else { WINDOW_SHIFT };
        let segment = TcpRepr {
            source_port: self.port,
            destination_port: PORT,
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
        let first = Ipv4Addr::new(10, 9, 8, 1).to_bits();
        let host = u32::from_be_bytes(*address).checked_sub(first)?;
        let port = u32::from(u16::from_be_bytes(*port)).checked_sub(PORT_FIRST)?;
        usize::try_from(host * PORTS + port).ok()
    }
}
