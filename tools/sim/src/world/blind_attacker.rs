//! An off-path attacker that knows the four-tuple of every connection but not its sequence numbers
//! (RFC 5961: blind in-window attacks).
//!
//! It sends resets, SYNs, data, FINs and acknowledgments with a client's addresses and with wrong
//! sequence numbers: none of them may end or harm a connection. It refuses to use right ones.

use smoltcp::wire::{EthernetFrame, EthernetProtocol, Ipv4Packet, Ipv6Packet, TcpPacket};
use wire::{MacAddress, Route, SeqNumber, TcpFlags, TcpOptions, TcpRepr};

use crate::crafted;
use crate::rng::Rng;

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
        let (route, seen, next) = read(frame)?;
        let near = self.number(NEAR);
        let far = self.number(FAR);
        let beyond = |by: u32| SeqNumber(next.wrapping_add(by));
        let plain = TcpRepr {
            options: TcpOptions::default(),
            ..seen
        };
        let (segment, payload): (_, &[u8]) = match self.rng.range(0..=5) {
            0 => (
                TcpRepr {
                    flags: TcpFlags::RST,
                    sequence: beyond(near),
                    ..plain
                },
                b"",
            ),
            1 => (
                TcpRepr {
                    flags: TcpFlags::RST,
                    sequence: beyond(far),
                    ..plain
                },
                b"",
            ),
            2 => (
                TcpRepr {
                    flags: TcpFlags::SYN,
                    sequence: beyond(near),
                    ..plain
                },
                b"",
            ),
            3 => (
                TcpRepr {
                    sequence: beyond(far),
                    ..plain
                },
                b"GET / HTTP/1.1\r\n\r\n",
            ),
            4 => {
                let fin = TcpFlags::FIN.union(TcpFlags::ACK);
                (
                    TcpRepr {
                        flags: fin,
                        sequence: beyond(far),
                        ..plain
                    },
                    b"",
                )
            }
            _ => {
                let acknowledgment = SeqNumber(seen.acknowledgment.0.wrapping_add(far));
                (
                    TcpRepr {
                        acknowledgment,
                        sequence: SeqNumber(next),
                        ..plain
                    },
                    b"",
                )
            }
        };
        Some(crafted::tcp(&route, &segment, payload))
    }

    fn number(&mut self, (low, high): (u64, u64)) -> u32 {
        u32::try_from(self.rng.range(low..=high)).expect("invariant: both below 2^31")
    }
}

/// Addresses and header of a client's segment, and the sequence number behind it; `None` for
/// anything but a segment of an open connection.
fn read(frame: &[u8]) -> Option<(Route, TcpRepr, u32)> {
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    let (source, destination, payload) = match ethernet.ethertype() {
        EthernetProtocol::Ipv4 => {
            let packet = Ipv4Packet::new_checked(ethernet.payload()).ok()?;
            (
                packet.src_addr().into(),
                packet.dst_addr().into(),
                packet.payload(),
            )
        }
        EthernetProtocol::Ipv6 => {
            let packet = Ipv6Packet::new_checked(ethernet.payload()).ok()?;
            (
                packet.src_addr().into(),
                packet.dst_addr().into(),
                packet.payload(),
            )
        }
        _ => return None,
    };
    let segment = TcpPacket::new_checked(payload).ok()?;
    if segment.syn() || segment.rst() || !segment.ack() {
        return None;
    }
    let route = Route {
        source_mac: MAC,
        destination_mac: MacAddress(ethernet.dst_addr().0),
        source,
        destination,
    };
    let sequence = segment.seq_number().0.cast_unsigned();
    let seen = TcpRepr {
        source_port: segment.src_port(),
        destination_port: segment.dst_port(),
        sequence: SeqNumber(sequence),
        acknowledgment: SeqNumber(segment.ack_number().0.cast_unsigned()),
        flags: TcpFlags::ACK,
        window: segment.window_len(),
        options: TcpOptions::default(),
    };
    let length = u32::try_from(segment.segment_len()).ok()?;
    Some((route, seen, sequence.wrapping_add(length)))
}
