//! smoltcp, an implementation that is not ours, reads what we write and writes what we read.

use std::net::{IpAddr, Ipv6Addr};

use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire as their;
use wire::icmpv6::solicited_node;
use wire::{
    ArpOperation, ArpRepr, ChecksumState, DropReason, Ecn, HEADERS_BYTES_MAX, Incoming, MacAddress,
    OriginalTcp, Path, Route, SackBlocks, SeqNumber, TcpChecksum, TcpFlags, TcpOptions, TcpRepr,
    emit_arp, emit_echo_reply, emit_neighbor_advertisement, emit_neighbor_solicitation,
    parse_frame,
};

use crate::strategies::{address_v4, address_v6, mac, options, parts, route, slices, tcp_frame};

/// The flags both sides agree are a segment of some kind; smoltcp refuses the senseless rest.
fn flags() -> impl Strategy<Value = TcpFlags> {
    proptest::sample::select(vec![
        TcpFlags::SYN,
        TcpFlags::SYN.union(TcpFlags::ACK),
        TcpFlags::ACK,
        TcpFlags::PSH.union(TcpFlags::ACK),
        TcpFlags::FIN.union(TcpFlags::ACK),
        TcpFlags::RST,
        TcpFlags::RST.union(TcpFlags::ACK),
    ])
}

/// A header smoltcp can hold and emit: at most three SACK blocks, and either the permission or the
/// blocks, which come with an acknowledgment and not beside the options of a SYN.
fn segment() -> impl Strategy<Value = TcpRepr> {
    (1u16.., 1u16.., any::<(u32, u32, u16)>(), flags(), options()).prop_map(
        |(source_port, destination_port, (sequence, acknowledgment, window), flags, options)| {
            let is_ack = flags.contains(TcpFlags::ACK);
            let is_syn = flags.contains(TcpFlags::SYN);
            let mut sack = SackBlocks::default();
            if is_ack && !is_syn {
                for (left, right) in options.sack.as_slice().iter().take(3) {
                    sack.push(*left, *right);
                }
            }
            TcpRepr {
                source_port,
                destination_port,
                sequence: SeqNumber(sequence),
                acknowledgment: SeqNumber(if is_ack { acknowledgment } else { 0 }),
                flags,
                window,
                options: TcpOptions {
                    mss: options.mss.filter(|_| is_syn),
                    window_scale: options.window_scale.filter(|_| is_syn),
                    sack_permitted: options.sack_permitted && is_syn,
                    timestamps: options.timestamps,
                    sack,
                },
            }
        },
    )
}

#[expect(
    clippy::cast_possible_wrap,
    reason = "their sequence numbers are signed"
)]
fn their_sequence(ours: SeqNumber) -> their::TcpSeqNumber {
    their::TcpSeqNumber(ours.0 as i32)
}

fn their_tcp<'a>(ours: &TcpRepr, payload: &'a [u8]) -> their::TcpRepr<'a> {
    let control = [
        (TcpFlags::SYN, their::TcpControl::Syn),
        (TcpFlags::FIN, their::TcpControl::Fin),
        (TcpFlags::RST, their::TcpControl::Rst),
        (TcpFlags::PSH, their::TcpControl::Psh),
    ];
    let control = control.iter().find(|(flag, _)| ours.flags.contains(*flag));
    let mut sack_ranges = [None; 3];
    for (range, (left, right)) in sack_ranges.iter_mut().zip(ours.options.sack.as_slice()) {
        *range = Some((left.0, right.0));
    }
    let timestamp = ours.options.timestamps;
    let is_ack = ours.flags.contains(TcpFlags::ACK);
    their::TcpRepr {
        src_port: ours.source_port,
        dst_port: ours.destination_port,
        control: control.map_or(their::TcpControl::None, |(_, control)| *control),
        seq_number: their_sequence(ours.sequence),
        ack_number: is_ack.then_some(their_sequence(ours.acknowledgment)),
        window_len: ours.window,
        window_scale: ours.options.window_scale,
        max_seg_size: ours.options.mss,
        sack_permitted: ours.options.sack_permitted,
        sack_ranges,
        timestamp: timestamp.map(|t| their::TcpTimestampRepr {
            tsval: t.value,
            tsecr: t.echo,
        }),
        payload,
    }
}

fn their_mac(ours: MacAddress) -> their::EthernetAddress {
    their::EthernetAddress(ours.0)
}

/// Ethernet and IP headers by smoltcp, in front of `payload_bytes` of nothing.
fn their_frame(
    route: &Route,
    protocol: their::IpProtocol,
    payload_bytes: usize,
    hop_limit: u8,
) -> (Vec<u8>, usize) {
    let ip = their::IpRepr::new(
        route.source.into(),
        route.destination.into(),
        protocol,
        payload_bytes,
        hop_limit,
    );
    let start = 14 + ip.header_len();
    let mut frame = vec![0; start + payload_bytes];
    let ethernet = their::EthernetRepr {
        src_addr: their_mac(route.source_mac),
        dst_addr: their_mac(route.destination_mac),
        ethertype: match route.source {
            IpAddr::V4(_) => their::EthernetProtocol::Ipv4,
            IpAddr::V6(_) => their::EthernetProtocol::Ipv6,
        },
    };
    ethernet.emit(&mut their::EthernetFrame::new_unchecked(&mut frame));
    ip.emit(&mut frame[14..], &ChecksumCapabilities::default());
    (frame, start)
}

/// What smoltcp makes of Ethernet and IP headers: the IP header, and where its payload lies.
fn read_by_them(frame: &[u8]) -> Result<(their::IpRepr, &[u8]), their::Error> {
    let frame = their::EthernetFrame::new_checked(frame)?;
    match frame.ethertype() {
        their::EthernetProtocol::Ipv4 => {
            let packet = their::Ipv4Packet::new_checked(frame.payload())?;
            let repr = their::Ipv4Repr::parse(&packet, &ChecksumCapabilities::default())?;
            Ok((repr.into(), packet.payload()))
        }
        their::EthernetProtocol::Ipv6 => {
            let packet = their::Ipv6Packet::new_checked(frame.payload())?;
            Ok((their::Ipv6Repr::parse(&packet)?.into(), packet.payload()))
        }
        _ => Err(their::Error),
    }
}

fn tcp_read_by_them(frame: &[u8]) -> Result<their::TcpRepr<'_>, their::Error> {
    let (ip, payload) = read_by_them(frame)?;
    if ip.next_header() != their::IpProtocol::Tcp {
        return Err(their::Error);
    }
    let packet = their::TcpPacket::new_checked(payload)?;
    let checksum = ChecksumCapabilities::default();
    their::TcpRepr::parse(&packet, &ip.src_addr(), &ip.dst_addr(), &checksum)
}

fn path_of(route: &Route) -> Path {
    Path {
        source_mac: route.source_mac,
        destination_mac: route.destination_mac,
        source: route.source,
        destination: route.destination,
    }
}

fn route_v6(macs: (MacAddress, MacAddress), from: Ipv6Addr, to: Ipv6Addr) -> Route {
    let (source_mac, destination_mac) = macs;
    Route {
        source_mac,
        destination_mac,
        source: from.into(),
        destination: to.into(),
    }
}

proptest! {
    #[test]
    fn the_oracle_parses_our_tcp(route in route(), segment in segment(), parts in parts()) {
        let frame = tcp_frame(&route, &segment, &slices(&parts), TcpChecksum::Full);
        let payload = parts.concat();
        let (ip, _) = read_by_them(&frame).expect("sound IP");
        let addresses: (IpAddr, IpAddr) = (ip.src_addr().into(), ip.dst_addr().into());
        prop_assert_eq!(addresses, (route.source, route.destination));
        prop_assert_eq!(ip.hop_limit(), 64);
        prop_assert_eq!(tcp_read_by_them(&frame), Ok(their_tcp(&segment, &payload)));
    }

    #[test]
    fn we_parse_the_oracles_tcp(route in route(), segment in segment(), parts in parts()) {
        let payload = parts.concat();
        let tcp = their_tcp(&segment, &payload);
        let (mut frame, start) =
            their_frame(&route, their::IpProtocol::Tcp, tcp.buffer_len(), 64);
        let mut packet = their::TcpPacket::new_unchecked(&mut frame[start..]);
        let (source, destination) = (route.source.into(), route.destination.into());
        tcp.emit(&mut packet, &source, &destination, &ChecksumCapabilities::default());
        let (path, ecn) = (path_of(&route), Ecn::NotEct);
        let expected = Incoming::Tcp { path, segment, ecn, payload: &payload };
        prop_assert_eq!(parse_frame(&frame, ChecksumState::Unverified), Ok(expected));
    }

    #[test]
    fn arp_goes_both_ways(us in mac(), peer in mac(), from in address_v4(), to in address_v4()) {
        for (operation, theirs) in [
            (ArpOperation::Request, their::ArpOperation::Request),
            (ArpOperation::Reply, their::ArpOperation::Reply),
        ] {
            let ours = ArpRepr {
                operation,
                sender_mac: us,
                sender_address: from,
                target_mac: peer,
                target_address: to,
            };
            let theirs = their::ArpRepr::EthernetIpv4 {
                operation: theirs,
                source_hardware_addr: their_mac(us),
                source_protocol_addr: from,
                target_hardware_addr: their_mac(peer),
                target_protocol_addr: to,
            };
            let mut buffer = [0; HEADERS_BYTES_MAX];
            let length = emit_arp(&mut buffer, peer, &ours);
            let frame = their::EthernetFrame::new_checked(&buffer[..length]).unwrap();
            prop_assert_eq!(frame.ethertype(), their::EthernetProtocol::Arp);
            let packet = their::ArpPacket::new_checked(frame.payload()).unwrap();
            prop_assert_eq!(their::ArpRepr::parse(&packet), Ok(theirs));

            let mut bytes = [0; 28];
            theirs.emit(&mut their::ArpPacket::new_unchecked(&mut bytes));
            prop_assert_eq!(ArpRepr::parse(&bytes), Ok(ours));
        }
    }

    #[test]
    fn echo_goes_both_ways(
        route in route(), ident in any::<u16>(), seq_no in any::<u16>(),
        data in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut buffer = [0; 512];
        let length = emit_echo_reply(&mut buffer, &route, ident, seq_no, &data).expect("room");
        let (_, payload) = read_by_them(&buffer[..length]).expect("sound IP");
        let caps = ChecksumCapabilities::default();
        let path = path_of(&route);
        match (route.source, route.destination) {
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let packet = their::Icmpv6Packet::new_checked(payload).unwrap();
                let parsed = their::Icmpv6Repr::parse(&from, &to, &packet, &caps);
                let expected = their::Icmpv6Repr::EchoReply { ident, seq_no, data: &data };
                prop_assert_eq!(parsed, Ok(expected));

                let request = their::Icmpv6Repr::EchoRequest { ident, seq_no, data: &data };
                let protocol = their::IpProtocol::Icmpv6;
                let (mut frame, start) = their_frame(&route, protocol, request.buffer_len(), 64);
                let mut packet = their::Icmpv6Packet::new_unchecked(&mut frame[start..]);
                request.emit(&from, &to, &mut packet, &caps);
                let expected =
                    Incoming::EchoV6 { path, identifier: ident, sequence: seq_no, data: &data };
                prop_assert_eq!(parse_frame(&frame, ChecksumState::Unverified), Ok(expected));
            }
            _ => {
                let packet = their::Icmpv4Packet::new_checked(payload).unwrap();
                let parsed = their::Icmpv4Repr::parse(&packet, &caps);
                let expected = their::Icmpv4Repr::EchoReply { ident, seq_no, data: &data };
                prop_assert_eq!(parsed, Ok(expected));

                let request = their::Icmpv4Repr::EchoRequest { ident, seq_no, data: &data };
                let protocol = their::IpProtocol::Icmp;
                let (mut frame, start) = their_frame(&route, protocol, request.buffer_len(), 64);
                let mut packet = their::Icmpv4Packet::new_unchecked(&mut frame[start..]);
                request.emit(&mut packet, &caps);
                let expected =
                    Incoming::EchoV4 { path, identifier: ident, sequence: seq_no, data: &data };
                prop_assert_eq!(parse_frame(&frame, ChecksumState::Unverified), Ok(expected));
            }
        }
    }

    #[test]
    fn the_oracles_icmp_errors_about_our_tcp_are_parsed(
        router in route(), segment in segment(), mtu_bytes in any::<u16>(),
    ) {
        // The router's error goes to the sender of the quoted segment.
        let ours = router_victim(&router);
        let quoted = tcp_frame(&ours, &segment, &[b"payload"], TcpChecksum::Full);
        let (ip, quoted_payload) = read_by_them(&quoted).unwrap();
        let original = OriginalTcp {
            source: ours.source,
            destination: ours.destination,
            source_port: segment.source_port,
            destination_port: segment.destination_port,
            sequence: segment.sequence,
        };
        let path = path_of(&router);
        let caps = ChecksumCapabilities::default();
        let (too_big, unreachable) = match (router.source, router.destination, ip) {
            (IpAddr::V6(from), IpAddr::V6(to), their::IpRepr::Ipv6(header)) => {
                let mtu = mtu_bytes.into();
                let data = quoted_payload;
                let reason = their::Icmpv6DstUnreachable::AddrUnreachable;
                [
                    their::Icmpv6Repr::PktTooBig { mtu, header, data },
                    their::Icmpv6Repr::DstUnreachable { reason, header, data },
                ]
                .map(|repr| {
                    let protocol = their::IpProtocol::Icmpv6;
                    let (mut frame, start) = their_frame(&router, protocol, repr.buffer_len(), 9);
                    let mut packet = their::Icmpv6Packet::new_unchecked(&mut frame[start..]);
                    repr.emit(&from, &to, &mut packet, &caps);
                    frame
                })
                .into()
            }
            (_, _, their::IpRepr::Ipv4(header)) => {
                let data = quoted_payload;
                [their::Icmpv4DstUnreachable::FragRequired,
                    their::Icmpv4DstUnreachable::PortUnreachable]
                .map(|reason| {
                    let repr = their::Icmpv4Repr::DstUnreachable { reason, header, data };
                    let protocol = their::IpProtocol::Icmp;
                    let (mut frame, start) = their_frame(&router, protocol, repr.buffer_len(), 9);
                    let mut packet = their::Icmpv4Packet::new_unchecked(&mut frame[start..]);
                    repr.emit(&mut packet, &caps);
                    // smoltcp does not speak RFC 1191: it leaves the MTU out.
                    frame[start + 6..start + 8].copy_from_slice(&mtu_bytes.to_be_bytes());
                    their::Icmpv4Packet::new_unchecked(&mut frame[start..]).fill_checksum();
                    frame
                })
                .into()
            }
            _ => unreachable!("one family"),
        };
        let mtu_bytes = mtu_bytes.into();
        prop_assert_eq!(
            parse_frame(&too_big, ChecksumState::Unverified),
            Ok(Incoming::PacketTooBig { path, mtu_bytes, original })
        );
        prop_assert_eq!(
            parse_frame(&unreachable, ChecksumState::Unverified),
            Ok(Incoming::Unreachable { path, original })
        );
    }

    #[test]
    fn solicitations_go_both_ways(
        us in mac(), from in address_v6(), target in address_v6(), peer in mac(),
    ) {
        let caps = ChecksumCapabilities::default();
        let group = solicited_node(target);
        let repr = their::Icmpv6Repr::Ndisc(their::NdiscRepr::NeighborSolicit {
            target_addr: target,
            lladdr: Some(their_mac(us).into()),
        });
        let mut buffer = [0; HEADERS_BYTES_MAX];
        let length = emit_neighbor_solicitation(&mut buffer, us, from, target);
        let (ip, payload) = read_by_them(&buffer[..length]).expect("sound IP");
        prop_assert_eq!(ip.hop_limit(), 255);
        let packet = their::Icmpv6Packet::new_checked(payload).unwrap();
        prop_assert_eq!(their::Icmpv6Repr::parse(&from, &group, &packet, &caps), Ok(repr));

        let route = route_v6((us, peer), from, group);
        let protocol = their::IpProtocol::Icmpv6;
        let (mut frame, start) = their_frame(&route, protocol, repr.buffer_len(), 255);
        let mut packet = their::Icmpv6Packet::new_unchecked(&mut frame[start..]);
        repr.emit(&from, &group, &mut packet, &caps);
        let path = path_of(&route);
        let expected = Incoming::NeighborSolicitation { path, target, source_link: Some(us) };
        prop_assert_eq!(parse_frame(&frame, ChecksumState::Unverified), Ok(expected));
    }

    #[test]
    fn the_oracle_parses_our_advertisement(
        us in mac(), peer in mac(), from in address_v6(), target in address_v6(),
    ) {
        let route = route_v6((peer, us), from, target);
        let mut buffer = [0; HEADERS_BYTES_MAX];
        let length = emit_neighbor_advertisement(&mut buffer, &path_of(&route), target, us);
        let (ip, payload) = read_by_them(&buffer[..length]).expect("sound IP");
        prop_assert_eq!(ip.hop_limit(), 255);
        prop_assert_eq!(IpAddr::from(ip.dst_addr()), route.source);
        let packet = their::Icmpv6Packet::new_checked(payload).unwrap();
        let flags = their::NdiscNeighborFlags::SOLICITED | their::NdiscNeighborFlags::OVERRIDE;
        let lladdr = Some(their_mac(us).into());
        let expected =
            their::NdiscRepr::NeighborAdvert { flags, target_addr: target, lladdr };
        let caps = ChecksumCapabilities::default();
        let parsed = their::Icmpv6Repr::parse(&target, &from, &packet, &caps);
        prop_assert_eq!(parsed, Ok(their::Icmpv6Repr::Ndisc(expected)));
    }

    /// Two readers of a damaged segment agree, except where we are stricter and say so.
    #[test]
    fn damaged_segments_are_parsed_as_by_the_oracle(
        route in route(), segment in segment(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut frame = tcp_frame(&route, &segment, &[b"payload"], TcpChecksum::Full);
        let start = usize::from(route.partial_checksum().start);
        let end = frame.len();
        for (place, value) in damage {
            frame[start + place.index(end - start)] = value;
        }
        their::TcpPacket::new_unchecked(&mut frame[start..])
            .fill_checksum(&route.source.into(), &route.destination.into());
        match (parse_frame(&frame, ChecksumState::Unverified), tcp_read_by_them(&frame)) {
            (Ok(Incoming::Tcp { segment, payload, .. }), Ok(theirs)) => {
                let mut ours = their_tcp(&segment, payload);
                // They read the last of several SACK options, we all of them.
                ours.sack_ranges = theirs.sack_ranges;
                prop_assert_eq!(ours, theirs);
            }
            (Ok(Incoming::Tcp { segment, .. }), Err(_)) => {
                // They refuse SYN, FIN and RST in any combination; that is for `tcp` to judge.
                let bits = [TcpFlags::SYN, TcpFlags::FIN, TcpFlags::RST];
                let count = bits.iter().filter(|bit| segment.flags.contains(**bit)).count();
                prop_assert!(count > 1);
            }
            (Err(reason), theirs) => {
                let is_odd_timestamps =
                    reason == DropReason::TcpBadOption && has_odd_timestamps(&frame[start..]);
                prop_assert!(theirs.is_err() || is_odd_timestamps, "{reason}: {theirs:?}");
                let is_tcp = matches!(
                    reason,
                    DropReason::TcpBadOption
                        | DropReason::TcpBadDataOffset
                        | DropReason::TcpPortZero
                );
                prop_assert!(is_tcp, "{reason}");
            }
            (Ok(other), _) => prop_assert!(false, "{other:?}"),
        }
    }
}

/// Whether there is a timestamps option of another length than ten, which they skip as unknown.
fn has_odd_timestamps(segment: &[u8]) -> bool {
    const KIND_TIMESTAMPS: u8 = 8;
    let packet = their::TcpPacket::new_unchecked(segment);
    let mut rest = packet.options();
    while let Ok((after, option)) = their::TcpOption::parse(rest) {
        if matches!(
            option,
            their::TcpOption::Unknown {
                kind: KIND_TIMESTAMPS,
                ..
            }
        ) {
            return true;
        }
        rest = after;
    }
    false
}

/// A route from the host a router's error is addressed to, to some peer of its family.
fn router_victim(router: &Route) -> Route {
    let destination = match router.destination {
        IpAddr::V4(_) => IpAddr::from([198, 51, 100, 7]),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7)),
    };
    Route {
        source_mac: router.destination_mac,
        destination_mac: router.source_mac,
        source: router.destination,
        destination,
    }
}
