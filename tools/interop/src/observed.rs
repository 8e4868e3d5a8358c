//! What the wire shows of a run: options agreed, SACK, resets, damaged frames.
//!
//! Frames are read by smoltcp's parsers, which check all checksums: the server's own parser is among
//! what is tested. It refuses to count a damaged frame for anything else. Bounded by: one entry for each
//! client's address and port.

use std::collections::BTreeSet;
use std::net::IpAddr;

use bottleneck::Direction;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpAddress, IpProtocol, Ipv4Packet, Ipv4Repr, Ipv6Packet,
    Ipv6Repr, TcpControl, TcpPacket, TcpRepr,
};

/// Options of TCP that both sides have agreed to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// SACK (RFC 2018).
    pub sack: bool,
    /// Timestamps (RFC 7323 s3).
    pub timestamps: bool,
    /// Window scale (RFC 7323 s2).
    pub window_scale: bool,
}

/// What was seen so far.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Observed {
    /// What the SYN-ACKs of the server agree to, one entry for each kind of answer.
    pub agreed: Vec<Options>,
    /// Segments of the client with a SACK block.
    pub sack_segments: u64,
    /// TCP segments whose headers or checksums are wrong.
    pub damaged_frames: u64,
    /// Resets by the server on connections that the client had not closed yet. One that comes behind
    /// the client's FIN is no fault: it may answer a segment that arrives when the server has forgotten
    /// the connection (RFC 9293 s3.10.7.1), such as the second of two.
    pub early_resets: u64,
    /// The connections that the client has closed, by its address and port.
    closed: BTreeSet<(IpAddr, u16)>,
}

impl Observed {
    /// A side has sent a frame.
    pub fn observe(&mut self, direction: Direction, frame: &[u8]) {
        match with_segment(frame, &mut |from, to, segment| match direction {
            Direction::Forth => self.observe_server(to, segment),
            Direction::Back => self.observe_client(from, segment),
        }) {
            Some(()) => {}
            None => self.damaged_frames += 1,
        }
    }

    fn observe_server(&mut self, peer: IpAddr, segment: &TcpRepr<'_>) {
        let key = (peer, segment.dst_port);
        if segment.control == TcpControl::Syn {
            let options = Options {
                sack: segment.sack_permitted,
                timestamps: segment.timestamp.is_some(),
                window_scale: segment.window_scale.is_some(),
            };
            if !self.agreed.contains(&options) {
                self.agreed.push(options);
            }
            self.closed.remove(&key);
        }
        if segment.control == TcpControl::Rst {
            self.early_resets += u64::from(!self.closed.contains(&key));
        }
    }

    fn observe_client(&mut self, client: IpAddr, segment: &TcpRepr<'_>) {
        if segment.control == TcpControl::Fin {
            self.closed.insert((client, segment.src_port));
        }
        self.sack_segments += u64::from(segment.sack_ranges[0].is_some());
    }
}

/// Hands on the TCP segment of a frame, if it is one, with its source and destination; `None`: it is
/// damaged.
fn with_segment(frame: &[u8], look: &mut dyn FnMut(IpAddr, IpAddr, &TcpRepr<'_>)) -> Option<()> {
    let checksums = ChecksumCapabilities::default();
    let frame = EthernetFrame::new_checked(frame).ok()?;
    let (from, to, payload): (IpAddress, IpAddress, &[u8]) = match frame.ethertype() {
        EthernetProtocol::Ipv4 => {
            let packet = Ipv4Packet::new_checked(frame.payload()).ok()?;
            let header = Ipv4Repr::parse(&packet, &checksums).ok()?;
            if header.next_header != IpProtocol::Tcp {
                return Some(());
            }
            (
                header.src_addr.into(),
                header.dst_addr.into(),
                packet.payload(),
            )
        }
        EthernetProtocol::Ipv6 => {
            let packet = Ipv6Packet::new_checked(frame.payload()).ok()?;
            let header = Ipv6Repr::parse(&packet).ok()?;
            if header.next_header != IpProtocol::Tcp {
                return Some(());
            }
            (
                header.src_addr.into(),
                header.dst_addr.into(),
                packet.payload(),
            )
        }
        _ => return Some(()),
    };
    let packet = TcpPacket::new_checked(payload).ok()?;
    let segment = TcpRepr::parse(&packet, &from, &to, &checksums).ok()?;
    look(from.into(), to.into(), &segment);
    Some(())
}

#[cfg(test)]
mod tests {
    use smoltcp::wire::{
        EthernetAddress, EthernetRepr, Ipv4Address, TcpSeqNumber, TcpTimestampRepr,
    };

    use super::*;

    const ENDS: [Ipv4Address; 2] = [Ipv4Address::new(10, 0, 0, 1), Ipv4Address::new(10, 0, 0, 2)];

    fn segment(sequence: u32, payload: &[u8]) -> TcpRepr<'_> {
        TcpRepr {
            src_port: 80,
            dst_port: 4_000,
            control: TcpControl::None,
            seq_number: TcpSeqNumber(sequence.cast_signed()),
            ack_number: Some(TcpSeqNumber(1_000)),
            window_len: 100,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload,
        }
    }

    fn frame(segment: &TcpRepr<'_>) -> Vec<u8> {
        frame_between(segment, ENDS)
    }

    fn frame_between(segment: &TcpRepr<'_>, ends: [Ipv4Address; 2]) -> Vec<u8> {
        let checksums = ChecksumCapabilities::default();
        let ip = Ipv4Repr {
            src_addr: ends[0],
            dst_addr: ends[1],
            next_header: IpProtocol::Tcp,
            payload_len: segment.buffer_len(),
            hop_limit: 64,
        };
        let mut bytes = vec![0; 14 + ip.buffer_len() + segment.buffer_len()];
        let mut ethernet = EthernetFrame::new_unchecked(&mut bytes);
        EthernetRepr {
            src_addr: EthernetAddress([2; 6]),
            dst_addr: EthernetAddress([4; 6]),
            ethertype: EthernetProtocol::Ipv4,
        }
        .emit(&mut ethernet);
        let mut packet = Ipv4Packet::new_unchecked(ethernet.payload_mut());
        ip.emit(&mut packet, &checksums);
        let mut tcp = TcpPacket::new_unchecked(packet.payload_mut());
        segment.emit(&mut tcp, &ends[0].into(), &ends[1].into(), &checksums);
        bytes
    }

    fn observe(direction: Direction, segments: &[TcpRepr<'_>]) -> Observed {
        let mut observed = Observed::default();
        for segment in segments {
            observed.observe(direction, &frame(segment));
        }
        observed
    }

    #[test]
    fn the_options_of_a_syn_ack_are_those_agreed() {
        let mut syn = segment(0, &[]);
        syn.control = TcpControl::Syn;
        syn.window_scale = Some(2);
        let mut full = syn;
        full.sack_permitted = true;
        full.timestamp = Some(TcpTimestampRepr { tsval: 1, tsecr: 2 });
        let observed = observe(Direction::Forth, &[syn, full, full]);
        let options = |all| Options {
            sack: all,
            timestamps: all,
            window_scale: true,
        };
        assert_eq!(observed.agreed, [options(false), options(true)]);
    }

    #[test]
    fn a_reset_is_early_unless_the_client_has_closed() {
        let with = |control| TcpRepr {
            control,
            ..segment(0, &[])
        };
        let reset = frame(&with(TcpControl::Rst));
        // The client's end of the server's connection: ports the other way round.
        let mut fin = with(TcpControl::Fin);
        (fin.src_port, fin.dst_port) = (fin.dst_port, fin.src_port);
        let mut observed = Observed::default();
        observed.observe(Direction::Forth, &frame(&with(TcpControl::Syn)));
        observed.observe(Direction::Forth, &reset);
        assert_eq!(observed.early_resets, 1);
        observed.observe(Direction::Back, &frame_between(&fin, [ENDS[1], ENDS[0]]));
        observed.observe(Direction::Forth, &reset);
        assert_eq!(observed.early_resets, 1);
    }

    #[test]
    fn a_wrong_checksum_is_seen_and_the_frame_counts_for_nothing_else() {
        let mut bytes = frame(&segment(0, &[1; 10]));
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        let mut observed = Observed::default();
        observed.observe(Direction::Forth, &bytes);
        assert_eq!((observed.damaged_frames, observed.sack_segments), (1, 0));
        // What is no TCP is nobody's fault.
        bytes[12..14].copy_from_slice(&[0x08, 0x06]);
        observed.observe(Direction::Forth, &bytes);
        assert_eq!(observed.damaged_frames, 1);
    }
}
