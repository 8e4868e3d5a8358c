//! A SYN flood from forged addresses: it fills the table of half-open connections before the first
//! client comes, and refills it. It sends forged ACKs, too, of which none may open a connection.
//!
//! Nobody answers the SYN-ACKs. Bounded: [`BURST`] SYNs, and two frames for each of a client.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::{MacAddress, Route, SeqNumber, TcpFlags, TcpOptions, TcpRepr};

use crate::atlas;
use crate::crafted;
use crate::rng::Rng;
use crate::scenario::{PORT, SECURE_PORT, SERVER_V4, SERVER_V6};

/// More SYNs than the table has entries.
const BURST: u32 = 4200;
/// Where its frames come from; no client is there.
const MAC: MacAddress = MacAddress([0x02, 0, 0, 0, 6, 7]);

/// See the module.
#[derive(Debug)]
pub(crate) struct SynFlood {
    rng: Rng,
    /// SYNs of the burst not yet sent.
    left: u32,
}

impl SynFlood {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed, 8),
            left: BURST,
        }
    }

    /// The next SYN of the burst.
    pub(crate) fn poll(&mut self) -> Option<Vec<u8>> {
        self.left = self.left.checked_sub(1)?;
        Some(self.frame(TcpFlags::SYN))
    }

    /// What it sends after a client sent a frame.
    pub(crate) fn follow(&mut self) -> [Vec<u8>; 2] {
        [self.frame(TcpFlags::SYN), self.frame(TcpFlags::ACK)]
    }

    fn frame(&mut self, flags: TcpFlags) -> Vec<u8> {
        let number = self.number();
        let (source, destination): (IpAddr, IpAddr) = if self.rng.chance(500) {
            let [.., a, b] = number.to_be_bytes();
            (Ipv4Addr::new(10, 9, a | 128, b).into(), SERVER_V4.into())
        } else {
            let [.., a, b] = number.to_be_bytes().map(u16::from);
            let source = Ipv6Addr::new(0xfd09, 0, 0, 7, 0, 0, a, b);
            (source.into(), SERVER_V6.into())
        };
        let route = Route {
            source_mac: MAC,
            destination_mac: atlas::MAC,
            source,
            destination,
        };
        let segment = TcpRepr {
            source_port: u16::try_from(self.rng.range(1024..=65_535)).expect("invariant: a port"),
            destination_port: if self.rng.chance(500) {
                PORT
            } else {
                SECURE_PORT
            },
            sequence: SeqNumber(self.number()),
            acknowledgment: SeqNumber(if flags == TcpFlags::ACK {
                self.number()
            } else {
                0
            }),
            flags,
            window: 1000,
            options: TcpOptions::default(),
        };
        crafted::tcp(&route, &segment, b"")
    }

    fn number(&mut self) -> u32 {
        u32::try_from(self.rng.range(0..=u32::MAX.into())).expect("invariant: 32 bits")
    }
}
