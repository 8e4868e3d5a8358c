//! A router between server and clients that hands over to another, with another MAC address.
//!
//! From then on the clients' segments come by the second one. The first goes on forwarding what it
//! is sent for [`GRACE`], as one does that is taken out of service; then it is gone, and whoever
//! still sends to it is heard by nobody. It passes TCP on and leaves all else to the wire: address
//! resolution is between neighbours. It refuses frames that are no IP packets.

use core::net::IpAddr;

use clock::{Duration, Instant};

/// The routers.
const FIRST: [u8; 6] = [0x02, 0, 0, 0, 4, 1];
const SECOND: [u8; 6] = [0x02, 0, 0, 0, 4, 2];
/// How long the first one outlives the handover.
const GRACE: Duration = Duration::from_secs(5);

const ETHERNET_BYTES: usize = 14;
const PROTOCOL_TCP: u8 = 6;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handover {
    at: Instant,
}

impl Handover {
    pub(crate) const fn new(at: Instant) -> Self {
        Self { at }
    }

    /// A client's frame goes through the router of the moment.
    pub(crate) fn pass(&self, now: Instant, frame: &mut [u8]) {
        let is_tcp = match frame.get(12..14) {
            Some([0x08, 0x00]) => frame.get(ETHERNET_BYTES + 9) == Some(&PROTOCOL_TCP),
            Some([0x86, 0xdd]) => frame.get(ETHERNET_BYTES + 6) == Some(&PROTOCOL_TCP),
            _ => false,
        };
        let router = if now < self.at { FIRST } else { SECOND };
        if let Some(source) = frame.get_mut(6..12).filter(|_| is_tcp) {
            source.copy_from_slice(&router);
        }
    }

    /// Whether a frame to this MAC is for one of the routers.
    pub(crate) fn is_router(&self, mac: [u8; 6]) -> bool {
        mac == FIRST || mac == SECOND
    }

    /// Whom a frame to a router is passed on to; `None`: to nobody.
    pub(crate) fn forward(&self, now: Instant, frame: &[u8]) -> Option<IpAddr> {
        let is_gone = now >= self.at + GRACE;
        if is_gone && frame.starts_with(&FIRST) {
            return None;
        }
        let packet = frame.get(ETHERNET_BYTES..)?;
        match frame.get(12..14)? {
            [0x08, 0x00] => {
                let address: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
                Some(address.into())
            }
            [0x86, 0xdd] => {
                let address: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
                Some(address.into())
            }
            _ => None,
        }
    }
}
