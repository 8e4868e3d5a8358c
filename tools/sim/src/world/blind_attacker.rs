//! An off-path attacker that knows the four-tuple of every connection but not its sequence numbers
//! (RFC 5961: blind in-window attacks).
//!
//! It sends resets, SYNs, data, FINs and acknowledgments with a client's addresses and with wrong
//! sequence numbers: none of them may end or harm a connection. It refuses to use right ones.

use wire::{MacAddress, Route, SeqNumber, TcpFlags, TcpOptions, TcpRepr};

use crate::crafted;
use crate::rng::Rng;
use crate::segment::Segment;

/// Resets and SYNs are this far beyond RCV.NXT: within the window that the server advertises at
/// first, and beyond what a client sends.
const NEAR: (u64, u64) = (10_000, 16_000);
/// Its own MAC address: a server that took it for the next hop would lose the client.
const MAC: MacAddress = MacAddress([0x02, 0, 0, 0, 6, 6]);
/// All other segments are this far off.
const FAR: (u64, u64) = (1 << 29, 1 << 30);

/// See the module.
#[derive(Debug)]
pub(crate) struct BlindAttacker {
    rng: Rng,
    permille: u64,
}

impl BlindAttacker {
    /// An attacker that sends a segment after so many thousandths of the clients' segments.
    pub(crate) fn new(seed: u64, permille: u64) -> Self {
        Self {
            rng: Rng::new(seed, 2),
            permille,
        }
    }

    /// The frame it sends after a client sent `frame`, if any.
    pub(crate) fn follow(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        if !self.rng.chance(self.permille) {
            return None;
        }
        let seen = Segment::parse(frame).filter(|seen| !seen.is_syn && !seen.is_reset)?;
        let (acknowledgment, next) = (seen.acknowledgment?, seen.end());
        let near = next.wrapping_add(self.number(NEAR));
        let by = self.number(FAR);
        let far = next.wrapping_add(by);
        let (ack, fin) = (TcpFlags::ACK, TcpFlags::FIN.union(TcpFlags::ACK));
        let false_ack = acknowledgment.wrapping_add(by);
        let (flags, sequence, acknowledgment, payload): (_, _, _, &[u8]) =
            match self.rng.range(0..=5) {
                0 => (TcpFlags::RST, near, acknowledgment, b""),
                1 => (TcpFlags::RST, far, acknowledgment, b""),
                2 => (TcpFlags::SYN, near, acknowledgment, b""),
                3 => (ack, far, acknowledgment, b"GET / HTTP/1.1\r\n\r\n"),
                4 => (fin, far, acknowledgment, b""),
                _ => (ack, next, false_ack, b""),
            };
        let route = Route {
            source_mac: MAC,
            destination_mac: MacAddress(seen.destination_mac),
            source: seen.source.0,
            destination: seen.destination.0,
        };
        let segment = TcpRepr {
            source_port: seen.source.1,
            destination_port: seen.destination.1,
            sequence: SeqNumber(sequence),
            acknowledgment: SeqNumber(acknowledgment),
            flags,
            window: seen.window,
            options: TcpOptions::default(),
        };
        Some(crafted::tcp(&route, &segment, payload))
    }

    fn number(&mut self, (low, high): (u64, u64)) -> u32 {
        u32::try_from(self.rng.range(low..=high)).expect("invariant: both below 2^31")
    }
}
