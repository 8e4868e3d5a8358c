//! Bytes that TCP sent and sent again, read off the sequence numbers of each connection.
//!
//! It reads what a wire shows: IPv4 and TCP headers, by itself, since the server's own parser is among
//! what is tested. It refuses what is not whole: such a frame counts for no connection. Bounded by:
//! [`FLOWS_MAX`] connections; what belongs to further ones is not counted.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

/// Most connections followed in one direction.
pub const FLOWS_MAX: usize = 256;

pub(crate) const ETHERNET_BYTES: usize = 14;
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// Where IPv6 says what follows its header, from the frame's start.
const IPV6_NEXT_HEADER_AT: usize = ETHERNET_BYTES + 6;
pub(crate) const TCP: u8 = 6;

/// One direction of one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowCounts {
    /// Who sends.
    pub from: SocketAddrV4,
    /// Who receives.
    pub to: SocketAddrV4,
    /// Payload bytes sent, each as often as it was.
    pub sent_bytes: u64,
    /// Of these, bytes that lie below the highest one sent before.
    pub resent_bytes: u64,
    /// Longest time between two segments with payload, microseconds: a retransmission timeout shows in
    /// it.
    pub pause_us_max: u64,
}

/// All connections of one direction.
#[derive(Debug, Default)]
pub struct Flows {
    flows: Vec<Flow>,
}

#[derive(Debug)]
struct Flow {
    counts: FlowCounts,
    /// The sequence number behind the highest byte sent.
    next: u32,
    /// When the last segment was sent.
    sent_at: Duration,
}

/// What a TCP segment's headers say.
struct Segment {
    from: SocketAddrV4,
    to: SocketAddrV4,
    sequence: u32,
    payload_bytes: u32,
}

impl Flows {
    /// A frame was sent at `now`, which never decreases.
    pub fn observe(&mut self, now: Duration, frame: &[u8]) {
        let Some(segment) = parse(frame).filter(|it| it.payload_bytes > 0) else {
            return;
        };
        let is_same = |flow: &Flow| {
            let counts = &flow.counts;
            counts.from == segment.from && counts.to == segment.to
        };
        match self.flows.iter().position(is_same) {
            Some(index) => self.flows[index].observe(now, &segment),
            None if self.flows.len() == FLOWS_MAX => {}
            None => {
                let mut flow = Flow::new(now, &segment);
                flow.observe(now, &segment);
                self.flows.push(flow);
            }
        }
    }

    /// What was counted, in the order of the first bytes.
    #[must_use]
    pub fn into_counts(self) -> Vec<FlowCounts> {
        self.flows.into_iter().map(|flow| flow.counts).collect()
    }
}

impl Flow {
    fn new(now: Duration, first: &Segment) -> Self {
        Self {
            counts: FlowCounts {
                from: first.from,
                to: first.to,
                sent_bytes: 0,
                resent_bytes: 0,
                pause_us_max: 0,
            },
            next: first.sequence,
            sent_at: now,
        }
    }

    fn observe(&mut self, now: Duration, segment: &Segment) {
        let end = segment.sequence.wrapping_add(segment.payload_bytes);
        let beyond = end.wrapping_sub(self.next);
        // Above half of the sequence space it is behind.
        let new_bytes = if beyond < 1 << 31 { beyond } else { 0 };
        let new_bytes = new_bytes.min(segment.payload_bytes);
        if new_bytes > 0 {
            self.next = end;
        }
        let pause = now.saturating_sub(self.sent_at).as_micros();
        self.sent_at = now;
        let counts = &mut self.counts;
        counts.sent_bytes += u64::from(segment.payload_bytes);
        counts.resent_bytes += u64::from(segment.payload_bytes - new_bytes);
        let pause = u64::try_from(pause).unwrap_or(u64::MAX);
        counts.pause_us_max = counts.pause_us_max.max(pause);
    }
}

/// Whether a frame is an IPv4 packet.
#[must_use]
pub fn is_ipv4(frame: &[u8]) -> bool {
    frame.get(12..ETHERNET_BYTES) == Some(&IPV4)
}

/// Whether a frame is one that paths lose, hold back and double: an IPv4 packet, or TCP over IPv6.
/// Neighbours are found undisturbed, by ARP as by ICMPv6.
#[must_use]
pub fn is_subject_to_faults(frame: &[u8]) -> bool {
    let is_ipv6 = frame.get(12..ETHERNET_BYTES) == Some(&IPV6);
    is_ipv4(frame) || (is_ipv6 && frame.get(IPV6_NEXT_HEADER_AT) == Some(&TCP))
}

fn parse(frame: &[u8]) -> Option<Segment> {
    if !is_ipv4(frame) {
        return None;
    }
    let packet = frame.get(ETHERNET_BYTES..)?;
    let header_bytes = usize::from(packet.first()? & 0x0f) * 4;
    let total_bytes = usize::from(u16::from_be_bytes(word(packet, 2)?));
    let packet = packet.get(..total_bytes)?;
    if *packet.get(9)? != TCP {
        return None;
    }
    let segment = packet.get(header_bytes..)?;
    let offset = usize::from(segment.get(12)? >> 4) * 4;
    let payload = segment.get(offset..)?;
    let address = |at| Some(Ipv4Addr::from(word::<4>(packet, at)?));
    let port = |at| Some(u16::from_be_bytes(word(segment, at)?));
    Some(Segment {
        from: SocketAddrV4::new(address(12)?, port(0)?),
        to: SocketAddrV4::new(address(16)?, port(2)?),
        sequence: u32::from_be_bytes(word(segment, 4)?),
        payload_bytes: u32::try_from(payload.len()).ok()?,
    })
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of a connection from this port, as headers have it.
    fn frame(port: u16, sequence: u32, payload_bytes: u16) -> Vec<u8> {
        let mut frame = vec![0; ETHERNET_BYTES + 40 + usize::from(payload_bytes)];
        frame[12..14].copy_from_slice(&IPV4);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&(40 + payload_bytes).to_be_bytes());
        frame[23] = TCP;
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        frame[34..36].copy_from_slice(&port.to_be_bytes());
        frame[36..38].copy_from_slice(&443_u16.to_be_bytes());
        frame[38..42].copy_from_slice(&sequence.to_be_bytes());
        frame[46] = 5 << 4;
        frame
    }

    fn counts(frames: &[Vec<u8>]) -> Vec<(u16, u64, u64)> {
        let mut flows = Flows::default();
        for frame in frames {
            flows.observe(Duration::ZERO, frame);
        }
        let flows = flows.into_counts();
        let of = |it: &FlowCounts| (it.from.port(), it.sent_bytes, it.resent_bytes);
        flows.iter().map(of).collect()
    }

    #[test]
    fn bytes_below_the_highest_are_resent() {
        let sent = [
            frame(80, 1_000, 500),
            frame(80, 1_500, 500),
            // Half of it for the second time.
            frame(80, 1_750, 500),
            frame(80, 1_000, 250),
            frame(80, 2_250, 1),
        ];
        assert_eq!(counts(&sent), [(80, 1_751, 500)]);
    }

    #[test]
    fn a_gap_before_a_segment_is_not_counted_as_resent_or_sent() {
        // The segment between was lost before it came here.
        let sent = [frame(80, 0, 100), frame(80, 200, 100), frame(80, 100, 100)];
        assert_eq!(counts(&sent), [(80, 300, 100)]);
    }

    #[test]
    fn the_longest_pause_is_between_segments_with_payload() {
        let mut flows = Flows::default();
        for (millis, payload_bytes) in [(5, 0), (100, 10), (103, 10), (110, 0), (120, 10)] {
            flows.observe(Duration::from_millis(millis), &frame(80, 0, payload_bytes));
        }
        assert_eq!(flows.into_counts()[0].pause_us_max, 17_000);
    }

    #[test]
    fn sequence_numbers_wrap() {
        let sent = [
            frame(80, u32::MAX - 9, 20),
            frame(80, 10, 20),
            frame(80, 0, 10),
        ];
        assert_eq!(counts(&sent), [(80, 50, 10)]);
    }

    #[test]
    fn connections_are_counted_apart_and_no_more_than_the_limit() {
        let limit = u16::try_from(FLOWS_MAX).unwrap();
        let sent: Vec<_> = (0..=limit).map(|port| frame(port, 0, 1)).collect();
        let counts = counts(&sent);
        assert_eq!(counts.len(), FLOWS_MAX);
        assert_eq!(counts.last(), Some(&(limit - 1, 1, 0)));
    }

    #[test]
    fn what_is_not_whole_or_no_tcp_over_ipv4_is_left_out() {
        let whole = frame(80, 0, 10);
        for bytes in 0..whole.len() {
            assert_eq!(counts(&[whole[..bytes].to_vec()]), []);
        }
        assert_eq!(counts(std::slice::from_ref(&whole)).len(), 1);
        let mut other = whole;
        other[23] = 17;
        assert_eq!(counts(&[other]), []);
        assert_eq!(counts(&[frame(80, 0, 0)]), [], "an ACK alone");
        let mut arp = frame(80, 0, 10);
        arp[13] = 6;
        assert!(!is_ipv4(&arp));
        assert_eq!(counts(&[arp]), []);
    }

    #[test]
    fn ipv4_and_tcp_over_ipv6_are_subject_to_faults_and_what_finds_neighbours_is_not() {
        const ICMPV6: u8 = 58;
        let mut ipv6 = vec![0; ETHERNET_BYTES + 40];
        ipv6[12..14].copy_from_slice(&IPV6);
        ipv6[20] = TCP;
        let mut icmpv6 = ipv6.clone();
        icmpv6[20] = ICMPV6;
        let mut arp = ipv6.clone();
        arp[12..14].copy_from_slice(&[0x08, 0x06]);
        assert!(is_subject_to_faults(&frame(80, 0, 1)));
        assert!(is_subject_to_faults(&ipv6));
        assert!(!is_subject_to_faults(&ipv6[..20]), "cut before it says");
        assert!(!is_subject_to_faults(&icmpv6));
        assert!(!is_subject_to_faults(&arp));
    }

    #[test]
    fn padding_behind_the_packet_is_no_payload() {
        let mut padded = frame(80, 0, 10);
        padded.extend_from_slice(&[0; 6]);
        assert_eq!(counts(&[padded]), [(80, 10, 0)]);
    }
}
