//! Frames of one peer, shown to somebody while the worker serves.
//!
//! Without a watch, each frame costs a branch. It refuses frames that are no TCP over IPv4 or IPv6, and fragments but the
//! first. Bound: one watch of a worker.

use core::fmt;
use core::net::{IpAddr, SocketAddr};

use clock::Instant;

/// Bytes of an Ethernet header.
const ETHERNET_BYTES: usize = 14;
/// Bytes of a header of IPv6.
const IPV6_BYTES: usize = 40;
const PROTOCOL_TCP: u8 = 6;

/// Is shown frames. Called within the worker's round, so it must neither block nor wait.
pub trait FrameWatch: fmt::Debug + Send {
    /// Whether frames from or to this peer are meant.
    fn wants(&self, peer: &SocketAddr) -> bool;

    /// A frame, in parts, that was received or that the link took.
    fn see(&mut self, now: Instant, parts: &[&[u8]]);
}

/// Shows a frame to the watch, if it is from or to somebody that the watch wants.
pub(crate) fn show(watch: &mut dyn FrameWatch, now: Instant, parts: &[&[u8]]) {
    let ends = parts.first().and_then(|headers| ends_of(headers));
    if ends.is_some_and(|ends| ends.iter().any(|end| watch.wants(end))) {
        watch.see(now, parts);
    }
}

/// Source and destination of a frame's segment.
fn ends_of(frame: &[u8]) -> Option<[SocketAddr; 2]> {
    let (ethernet, packet) = frame.split_at_checked(ETHERNET_BYTES)?;
    let (source, destination, segment) = match ethernet.last_chunk()? {
        [0x08, 0x00] => {
            let is_first = packet.get(6)? & 0x1f == 0 && *packet.get(7)? == 0;
            if *packet.get(9)? != PROTOCOL_TCP || !is_first {
                return None;
            }
            let header_bytes = 4 * usize::from(packet.first()? & 15);
            let address = |from: usize| packet.get(from..)?.first_chunk::<4>().copied();
            let (source, destination) = (address(12)?, address(16)?);
            (
                IpAddr::from(source),
                IpAddr::from(destination),
                packet.get(header_bytes..)?,
            )
        }
        [0x86, 0xdd] => {
            if *packet.get(6)? != PROTOCOL_TCP {
                return None;
            }
            let address = |from: usize| packet.get(from..)?.first_chunk::<16>().copied();
            let (source, destination) = (address(8)?, address(24)?);
            (
                IpAddr::from(source),
                IpAddr::from(destination),
                packet.get(IPV6_BYTES..)?,
            )
        }
        _ => return None,
    };
    let [from_high, from_low, to_high, to_low] = *segment.first_chunk()?;
    Some([
        SocketAddr::new(source, u16::from_be_bytes([from_high, from_low])),
        SocketAddr::new(destination, u16::from_be_bytes([to_high, to_low])),
    ])
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use clock::Instant;

    use super::{FrameWatch, ends_of, show};

    fn ipv4(header_bytes: u8, protocol: u8, offset: u8) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([
            0x08,
            0x00,
            0x40 | (header_bytes / 4),
            0,
            0,
            0,
            0,
            0,
            0x40,
            offset,
            64,
            protocol,
        ]);
        frame.extend([0, 0, 192, 0, 2, 7, 10, 77, 0, 2]);
        frame.resize(14 + usize::from(header_bytes), 1);
        frame.extend([0xc3, 0x50, 0, 80, 9]);
        frame
    }

    fn ipv6(next_header: u8) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 4, next_header, 64]);
        frame.extend([0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
        frame.extend([0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        frame.extend([0xc3, 0x50, 1, 0xbb]);
        frame
    }

    fn ends(frame: &[u8]) -> Option<[String; 2]> {
        ends_of(frame).map(|ends| ends.map(|end| end.to_string()))
    }

    #[test]
    fn the_ends_of_segments_are_found_and_no_others() {
        let v4 = Some(["192.0.2.7:50000".into(), "10.77.0.2:80".into()]);
        assert_eq!(ends(&ipv4(20, 6, 0)), v4);
        assert_eq!(ends(&ipv4(24, 6, 0)), v4);
        let v6 = Some(["[fd77::7]:50000".into(), "[fd77::2]:443".into()]);
        assert_eq!(ends(&ipv6(6)), v6);
        assert_eq!(ends(&ipv4(20, 17, 0)), None);
        assert_eq!(ends(&ipv4(20, 6, 1)), None);
        assert_eq!(ends(&ipv6(44)), None);
    }

    #[test]
    fn a_frame_cut_anywhere_has_ends_or_none() {
        for frame in [ipv4(20, 6, 0), ipv6(6)] {
            for end in 0..frame.len() {
                let is_whole = end >= frame.len() - usize::from(frame[12] == 8);
                assert_eq!(ends_of(&frame[..end]).is_some(), is_whole, "{end}");
            }
        }
    }

    #[derive(Debug)]
    struct Seen(u16, usize);

    impl FrameWatch for Seen {
        fn wants(&self, peer: &SocketAddr) -> bool {
            peer.port() == self.0
        }

        fn see(&mut self, _: Instant, parts: &[&[u8]]) {
            self.1 += parts.len();
        }
    }

    #[test]
    fn frames_of_either_direction_are_shown() {
        for (port, expected) in [(50_000, 2), (80, 2), (443, 0)] {
            let mut seen = Seen(port, 0);
            show(&mut seen, Instant::ZERO, &[&ipv4(20, 6, 0), b"payload"]);
            assert_eq!(seen.1, expected, "{port}");
        }
        let mut seen = Seen(80, 0);
        show(&mut seen, Instant::ZERO, &[]);
        assert_eq!(seen.1, 0);
    }
}
