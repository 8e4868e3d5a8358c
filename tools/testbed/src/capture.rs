//! TCP segments as they pass through a network namespace, read from a packet socket.
//!
//! It sees what leaves and what arrives on every interface of the namespace, from when it is
//! opened. What is not TCP, or has loopback addresses, is passed over; a large frame counts once. Segments may be missed while
//! nobody waits for one: the kernel drops frames that the socket has no room for. Bounded by: the
//! socket's receive buffer, and a limit on the wait.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::net::{AddressFamily, RecvFlags, SocketType, eth, recv, socket};
use wire::{ChecksumState, Incoming, TcpRepr, parse_frame};

use crate::interrupt;
use crate::namespace::Namespace;
use crate::process::poll_readable;

/// Room for the largest frame with segmentation offload, and its Ethernet header.
const FRAME_BYTES_MAX: usize = (64 << 10) + 14;

/// The longest sleep between two looks at the interrupt flag.
const SLICE: Duration = Duration::from_millis(100);

/// A packet socket in a namespace.
#[derive(Debug)]
pub struct Capture {
    socket: OwnedFd,
}

/// A TCP segment that was seen.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// The sender's address and port.
    pub source: SocketAddr,
    /// The receiver's address and port.
    pub destination: SocketAddr,
    /// The header.
    pub header: TcpRepr,
    /// Bytes of data.
    pub payload_bytes: usize,
}

impl Capture {
    /// Begins to capture in `namespace`; needs root.
    pub fn start(namespace: &Namespace) -> Result<Self> {
        let open = || socket(AddressFamily::PACKET, SocketType::RAW, Some(eth::ALL));
        let socket = namespace.enter(|| open().context("opening a packet socket"))?;
        Ok(Self { socket })
    }

    /// Waits for a segment that `is_wanted`; fails after `limit` or on an interrupt.
    pub fn await_segment(
        &self,
        what: &str,
        limit: Duration,
        mut is_wanted: impl FnMut(&Segment) -> bool,
    ) -> Result<Segment> {
        let deadline = Instant::now() + limit;
        let mut frame = vec![0; FRAME_BYTES_MAX];
        while Instant::now() < deadline {
            interrupt::check()?;
            if !poll_readable(&self.socket, SLICE)? {
                continue;
            }
            let (count, _) = recv(&self.socket, &mut frame[..], RecvFlags::empty())
                .context("reading a packet socket")?;
            if let Some(segment) = segment(&frame[..count])
                && is_wanted(&segment)
            {
                return Ok(segment);
            }
        }
        bail!("{what}: not seen in {} s", limit.as_secs());
    }
}

/// The TCP segment in a frame, if there is one.
fn segment(frame: &[u8]) -> Option<Segment> {
    // Checksums of what leaves are computed by the device, after this.
    let Ok(Incoming::Tcp {
        path,
        segment,
        payload,
        ..
    }) = parse_frame(frame, ChecksumState::Trusted)
    else {
        return None;
    };
    Some(Segment {
        source: SocketAddr::new(path.source, segment.source_port),
        destination: SocketAddr::new(path.destination, segment.destination_port),
        header: segment,
        payload_bytes: payload.len(),
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use wire::TcpFlags;

    use super::*;
    use crate::is_root;

    #[test]
    fn a_segment_is_seen_and_one_that_never_comes_is_not() {
        if !is_root() {
            eprintln!("SKIPPED: making a network namespace needs root");
            return;
        }
        let namespace = Namespace::new("capture").expect("a namespace");
        // `wire` refuses packets of 127.0.0.0/8, which no link may carry.
        let added = namespace.ip("addr add 10.77.1.1/32 dev lo");
        added.expect("an address");
        let capture = Capture::start(&namespace).expect("a packet socket");
        let listener = namespace
            .enter(|| Ok(TcpListener::bind("10.77.1.1:0")?))
            .expect("a listener");
        let address = listener.local_addr().expect("bound");
        let _client = namespace
            .enter(|| Ok(TcpStream::connect(address)?))
            .expect("connected");
        let limit = Duration::from_secs(10);
        let seen = capture
            .await_segment("a SYN-ACK", limit, |segment| {
                segment.header.flags == TcpFlags::SYN.union(TcpFlags::ACK)
            })
            .expect("seen");
        assert_eq!((seen.source, seen.payload_bytes), (address, 0));
        let limit = Duration::from_millis(1);
        let missing = capture.await_segment("a RST", limit, |segment| {
            segment.header.flags.contains(TcpFlags::RST)
        });
        let error = missing.expect_err("nobody resets").to_string();
        assert!(error.starts_with("a RST: not seen"), "{error}");
    }

    #[test]
    fn what_is_no_tcp_is_passed_over() {
        assert!(segment(&[]).is_none());
        assert!(segment(&[0; 60]).is_none());
    }
}
