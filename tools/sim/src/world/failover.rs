//! Router failover: the router between server and clients is replaced by one with another MAC
//! address.
//!
//! From that moment the clients' segments have the second router as their source. The first one
//! forwards frames for [`GRACE`], as a router that is taken out of service does; then frames sent
//! to it are lost. Only TCP goes through the routers: address resolution is between neighbours. It
//! refuses all other frames.

use core::net::IpAddr;

use clock::{Duration, Instant};

use crate::segment::Segment;

/// MAC addresses of the routers.
const FIRST: [u8; 6] = [0x02, 0, 0, 0, 4, 1];
const SECOND: [u8; 6] = [0x02, 0, 0, 0, 4, 2];
/// How long the first router forwards after the failover.
const GRACE: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failover {
    at: Instant,
}

impl Failover {
    pub(crate) const fn new(at: Instant) -> Self {
        Self { at }
    }

    /// Makes the current router the source of a client's frame.
    pub(crate) fn pass(&self, now: Instant, frame: &mut [u8]) {
        let is_tcp = Segment::parse(frame).is_some();
        let router = if now < self.at { FIRST } else { SECOND };
        if let Some(source) = frame.get_mut(6..12).filter(|_| is_tcp) {
            source.copy_from_slice(&router);
        }
    }

    /// Whether a frame to this MAC is for one of the routers.
    pub(crate) fn is_router(&self, mac: [u8; 6]) -> bool {
        mac == FIRST || mac == SECOND
    }

    /// The client that a router forwards a frame to; `None`: it is lost.
    pub(crate) fn forward(&self, now: Instant, frame: &[u8]) -> Option<IpAddr> {
        let is_gone = now >= self.at + GRACE;
        if is_gone && frame.starts_with(&FIRST) {
            return None;
        }
        Segment::parse(frame).map(|segment| segment.destination.0)
    }
}
