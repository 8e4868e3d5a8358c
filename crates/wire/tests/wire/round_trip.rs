//! What is emitted parses back to the same values.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use wire::icmpv4::Icmpv4Message;
use wire::icmpv6::{Icmpv6Message, solicited_node};
use wire::ipv6::{Ipv6Packet, Ipv6Repr};
use wire::{
    ArpOperation, ArpRepr, ChecksumState, DropReason, Ecn, HEADERS_BYTES_MAX, Incoming, MacAddress,
    Path, Route, SackBlocks, SegmentationKind, SeqNumber, TcpChecksum, TcpOptions, TcpRepr,
    Timestamps, complete_checksum, emit_arp, emit_arp_probe, emit_arp_reply, emit_echo_reply,
    emit_gratuitous_arp, emit_neighbor_advertisement, emit_neighbor_solicitation,
    emit_unsolicited_advertisement, parse_frame, set_ecn,
};

use crate::strategies::{
    address_v4, address_v6, as_sent, mac, parts, route, segment, slices, tcp_frame,
};

/// The path a frame sent on `route` is received by.
fn path_of(route: &Route) -> Path {
    Path {
        source_mac: route.source_mac,
        destination_mac: route.destination_mac,
        source: route.source,
        destination: route.destination,
    }
}

proptest! {
    #[test]
    fn tcp_comes_back(
        route in route(), segment in segment(), parts in parts(), padding in 0usize..40,
    ) {
        let payload = slices(&parts);
        let mut frame = tcp_frame(&route, &segment, &payload, TcpChecksum::Full);
        // Ethernet pads short frames; the payload ends where IP says.
        frame.resize(frame.len() + padding, 0xee);
        let expected = Incoming::Tcp {
            path: path_of(&route),
            segment: as_sent(&segment),
            ecn: Ecn::NotEct,
            payload: &parts.concat(),
        };
        prop_assert_eq!(parse_frame(&frame, ChecksumState::Unverified), Ok(expected));
    }

    #[test]
    fn the_ecn_field_comes_back_and_nothing_else_changes(
        route in route(), segment in segment(), bits in 0u8..4,
    ) {
        let plain = tcp_frame(&route, &segment, &[], TcpChecksum::Full);
        let mut frame = plain.clone();
        set_ecn(&mut frame, Ecn::from_bits(bits));
        let Ok(Incoming::Tcp { ecn, .. }) = parse_frame(&frame, ChecksumState::Unverified) else {
            panic!("a segment");
        };
        prop_assert_eq!(ecn, Ecn::from_bits(bits));
        set_ecn(&mut frame, Ecn::NotEct);
        prop_assert_eq!(frame, plain);
    }

    #[test]
    fn a_partial_checksum_completes_to_the_full_one(
        route in route(), segment in segment(), parts in parts(),
    ) {
        let payload = slices(&parts);
        let full = tcp_frame(&route, &segment, &payload, TcpChecksum::Full);
        let mut partial = tcp_frame(&route, &segment, &payload, TcpChecksum::Partial);
        let expected = Err(DropReason::TcpBadChecksum);
        prop_assert_eq!(parse_frame(&partial, ChecksumState::Unverified), expected);
        prop_assert!(parse_frame(&partial, ChecksumState::Trusted).is_ok());
        complete_checksum(&mut partial, route.partial_checksum());
        prop_assert_eq!(partial, full);
    }

    #[test]
    fn the_reply_route_is_the_way_back(route in route(), segment in segment()) {
        let frame = tcp_frame(&route, &segment, &[], TcpChecksum::Full);
        let Ok(Incoming::Tcp { path, .. }) = parse_frame(&frame, ChecksumState::Unverified) else {
            panic!("a segment");
        };
        let back = path.reply_route();
        prop_assert_eq!(back.source_mac, route.destination_mac);
        prop_assert_eq!(back.destination_mac, route.source_mac);
        prop_assert_eq!(back.source, route.destination);
        prop_assert_eq!(back.destination, route.source);
        prop_assert_eq!(back.segmentation_kind(), match route.source {
            IpAddr::V4(_) => SegmentationKind::TcpV4,
            IpAddr::V6(_) => SegmentationKind::TcpV6,
        });
    }

    #[test]
    fn arp_comes_back_and_is_answered(
        asker in mac(), us in mac(), from in address_v4(), target in address_v4(),
    ) {
        let request = ArpRepr {
            operation: ArpOperation::Request,
            sender_mac: asker,
            sender_address: from,
            target_mac: MacAddress::default(),
            target_address: target,
        };
        let mut buffer = [0; HEADERS_BYTES_MAX];
        let length = emit_arp(&mut buffer, MacAddress::BROADCAST, &request);
        let parsed = parse_frame(&buffer[..length], ChecksumState::Unverified);
        prop_assert_eq!(parsed, Ok(Incoming::Arp(request)));

        let length = emit_arp_reply(&mut buffer, &request, us);
        prop_assert_eq!(buffer[..6].as_ref(), &asker.0);
        let parsed = parse_frame(&buffer[..length], ChecksumState::Unverified);
        prop_assert_eq!(parsed, Ok(Incoming::Arp(ArpRepr {
            operation: ArpOperation::Reply,
            sender_mac: us,
            sender_address: target,
            target_mac: asker,
            target_address: from,
        })));
    }

    #[test]
    fn solicitations_come_back(us in mac(), from in address_v6(), target in address_v6()) {
        let mut buffer = [0; HEADERS_BYTES_MAX];
        for (from, source_link) in [(from, Some(us)), (Ipv6Addr::UNSPECIFIED, None)] {
            let length = emit_neighbor_solicitation(&mut buffer, us, from, target);
            let group = solicited_node(target);
            let path = Path {
                source_mac: us,
                destination_mac: MacAddress::from_multicast_v6(group),
                source: from.into(),
                destination: group.into(),
            };
            let parsed = parse_frame(&buffer[..length], ChecksumState::Unverified);
            let expected = Incoming::NeighborSolicitation { path, target, source_link };
            prop_assert_eq!(parsed, Ok(expected));
        }
    }

    #[test]
    fn probes_come_back_and_name_no_sender(us in mac(), target in address_v4()) {
        let mut buffer = [0; HEADERS_BYTES_MAX];
        let length = emit_arp_probe(&mut buffer, us, target);
        prop_assert_eq!(buffer[..6].as_ref(), &MacAddress::BROADCAST.0);
        let parsed = parse_frame(&buffer[..length], ChecksumState::Unverified);
        prop_assert_eq!(parsed, Ok(Incoming::Arp(ArpRepr {
            operation: ArpOperation::Request,
            sender_mac: us,
            sender_address: Ipv4Addr::UNSPECIFIED,
            target_mac: MacAddress::default(),
            target_address: target,
        })));
    }

    #[test]
    fn advertisements_come_back(us in mac(), target in address_v6()) {
        let mut buffer = [0; HEADERS_BYTES_MAX];
        let length = emit_unsolicited_advertisement(&mut buffer, us, target);
        let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        let path = Path {
            source_mac: us,
            destination_mac: MacAddress::from_multicast_v6(group),
            source: target.into(),
            destination: group.into(),
        };
        let parsed = parse_frame(&buffer[..length], ChecksumState::Unverified);
        prop_assert_eq!(parsed, Ok(Incoming::NeighborAdvertisement {
            path,
            target,
            target_link: Some(us),
            is_override: true,
        }));
    }
}

/// Sends a message from one node to another over IPv6 and parses it there.
fn pass_v6(message: &Icmpv6Message<'_>) -> Vec<u8> {
    let source = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    let destination = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
    let mut packet = vec![0; 40 + message.bytes()];
    let header = Ipv6Repr {
        source,
        destination,
        protocol: 58,
        hop_limit: 255,
        payload_bytes: u16::try_from(message.bytes()).expect("a short message"),
    };
    header.emit(packet.first_chunk_mut().expect("room"));
    message.emit(&mut packet[40..], source, destination);
    packet
}

proptest! {
    #[test]
    fn every_icmpv6_message_comes_back(
        (identifier, sequence, mtu_bytes, code) in any::<(u16, u16, u32, u8)>(),
        (is_router, is_solicited, is_override) in any::<(bool, bool, bool)>(),
        target in address_v6(), link in proptest::option::of(mac()),
        data in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let data = data.as_slice();
        for message in [
            Icmpv6Message::EchoRequest { identifier, sequence, data },
            Icmpv6Message::EchoReply { identifier, sequence, data },
            Icmpv6Message::PacketTooBig { mtu_bytes, quote: data },
            Icmpv6Message::Unreachable { code, quote: data },
            Icmpv6Message::NeighborSolicitation { target, source_link: link },
            Icmpv6Message::NeighborAdvertisement {
                target, is_router, is_solicited, is_override, target_link: link,
            },
        ] {
            let bytes = pass_v6(&message);
            let packet = Ipv6Packet::parse(&bytes).expect("a sound packet");
            let parsed = Icmpv6Message::parse(&packet, ChecksumState::Unverified);
            prop_assert_eq!(parsed, Ok(message));
        }
    }

    #[test]
    fn every_icmpv4_message_comes_back(
        (identifier, sequence, code) in any::<(u16, u16, u8)>(),
        data in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let data = data.as_slice();
        for message in [
            Icmpv4Message::EchoRequest { identifier, sequence, data },
            Icmpv4Message::EchoReply { identifier, sequence, data },
            Icmpv4Message::Unreachable { code, mtu_bytes: sequence, quote: data },
        ] {
            let mut bytes = vec![0; message.bytes()];
            message.emit(&mut bytes);
            let parsed = Icmpv4Message::parse(&bytes, ChecksumState::Unverified);
            prop_assert_eq!(parsed, Ok(message));
        }
    }
}

/// Of two link-layer options the first counts; those of the other kind are passed over.
#[test]
fn the_first_link_layer_option_counts() {
    let target = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    let solicitation = Icmpv6Message::NeighborSolicitation {
        target,
        source_link: None,
    };
    let mut bytes = pass_v6(&solicitation);
    bytes.extend_from_slice(&[2, 1, 2, 0, 0, 0, 0, 7]);
    bytes.extend_from_slice(&[1, 1, 2, 0, 0, 0, 0, 8]);
    bytes.extend_from_slice(&[1, 1, 2, 0, 0, 0, 0, 9]);
    bytes[5] = 24 + 3 * 8;
    let packet = Ipv6Packet::parse(&bytes).expect("a sound packet");
    let source_link = Some(MacAddress([2, 0, 0, 0, 0, 8]));
    let expected = Icmpv6Message::NeighborSolicitation {
        target,
        source_link,
    };
    assert_eq!(
        Icmpv6Message::parse(&packet, ChecksumState::Trusted),
        Ok(expected)
    );
}

#[test]
fn an_echo_reply_fits_the_buffer_or_is_not_written() {
    let ends: [(IpAddr, IpAddr, usize); 2] = [
        (
            Ipv4Addr::new(10, 0, 0, 1).into(),
            Ipv4Addr::new(10, 0, 0, 2).into(),
            42,
        ),
        (
            Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).into(),
            Ipv6Addr::LOCALHOST.into(),
            62,
        ),
    ];
    for (source, destination, headers_bytes) in ends {
        let mac = MacAddress([2, 0, 0, 0, 0, 1]);
        let route = Route {
            source_mac: mac,
            destination_mac: mac,
            source,
            destination,
        };
        let mut buffer = [0; 2048];
        let data = [7; 1000];
        let exact = headers_bytes + data.len();
        assert_eq!(
            emit_echo_reply(&mut buffer[..exact], &route, 1, 2, &data),
            Some(exact)
        );
        assert_eq!(
            emit_echo_reply(&mut buffer[..exact - 1], &route, 1, 2, &data),
            None
        );

        // The longest IP packet has 65,535 bytes: with an IPv4 header and eight of ICMP.
        let mut buffer = vec![0; 70_000];
        let data = vec![7; 65_535 - 20 - 8 + 1];
        assert_eq!(emit_echo_reply(&mut buffer, &route, 1, 2, &data), None);
        assert!(emit_echo_reply(&mut buffer, &route, 1, 2, &data[1..]).is_some());
    }
}

#[test]
fn an_advertisement_is_sent_to_the_soliciting_station_only() {
    let us = MacAddress([2, 0, 0, 0, 0, 1]);
    let asker = MacAddress([2, 0, 0, 0, 0, 2]);
    let target = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    let peer = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
    let group = solicited_node(target);
    let mut path = Path {
        source_mac: asker,
        destination_mac: MacAddress::from_multicast_v6(group),
        source: peer.into(),
        destination: group.into(),
    };
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let length = emit_neighbor_advertisement(&mut buffer, &path, target, us);
    assert_eq!(length, 14 + 40 + 32);
    assert_eq!(buffer[..6], asker.0);
    assert_eq!(buffer[38..54], peer.octets(), "destination");
    assert_eq!(buffer[58], 0x60, "solicited, override");

    path.source = Ipv6Addr::UNSPECIFIED.into();
    let mut unsolicited = [0; HEADERS_BYTES_MAX];
    let length = emit_neighbor_advertisement(&mut buffer, &path, target, us);
    let same_length = emit_unsolicited_advertisement(&mut unsolicited, us, target);
    assert_eq!(
        buffer[..length],
        unsolicited[..same_length],
        "all nodes hear of a duplicate"
    );
    assert_eq!(buffer[..6], [0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!(buffer[58], 0x20, "override alone");
}

#[test]
fn a_gratuitous_arp_names_the_address_twice() {
    let us = MacAddress([2, 0, 0, 0, 0, 1]);
    let address = Ipv4Addr::new(10, 0, 0, 1);
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let length = emit_gratuitous_arp(&mut buffer, us, address);
    assert_eq!(buffer[..6], [0xff; 6]);
    let Ok(Incoming::Arp(arp)) = parse_frame(&buffer[..length], ChecksumState::Unverified) else {
        panic!("an announcement is ARP");
    };
    assert_eq!(arp.operation, ArpOperation::Request);
    assert_eq!((arp.sender_address, arp.target_address), (address, address));
}

/// Options of a SYN-ACK: MSS, SACK permitted with timestamps, window scale; and of a data segment.
#[test]
fn options_are_laid_out_as_documented() {
    let timestamps = Some(Timestamps {
        value: 0x0102_0304,
        echo: 0x0506_0708,
    });
    let syn = TcpOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps,
        sack: SackBlocks::default(),
    };
    check_options(
        syn,
        &[
            2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 3, 3, 7,
        ],
    );
    let no_timestamps = TcpOptions {
        timestamps: None,
        ..syn
    };
    check_options(no_timestamps, &[2, 4, 5, 0xb4, 1, 1, 4, 2, 1, 3, 3, 7]);
    let data = TcpOptions {
        timestamps,
        ..TcpOptions::default()
    };
    check_options(data, &[1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
    let mut sack = SackBlocks::default();
    sack.push(SeqNumber(1), SeqNumber(2));
    let dup_ack = TcpOptions {
        sack,
        ..TcpOptions::default()
    };
    check_options(dup_ack, &[1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    check_options(TcpOptions::default(), &[]);
}

fn check_options(options: TcpOptions, expected: &[u8]) {
    let segment = TcpRepr {
        source_port: 1,
        destination_port: 2,
        options,
        ..TcpRepr::default()
    };
    let mut header = [0xaa; 60];
    let length = segment.emit(&mut header);
    assert_eq!(&header[20..length], expected);
    assert_eq!(length, segment.header_bytes());
    assert_eq!(usize::from(header[12] >> 4) * 4, length);
}

#[test]
fn sack_blocks_are_limited_to_what_fits() {
    let mut options = TcpOptions::default();
    for n in 0..4 {
        options.sack.push(SeqNumber(n), SeqNumber(n + 1));
    }
    assert_eq!((options.emitted_sack_blocks(), options.bytes()), (4, 36));
    options.timestamps = Some(Timestamps::default());
    assert_eq!((options.emitted_sack_blocks(), options.bytes()), (3, 40));
    options.mss = Some(1);
    assert_eq!((options.emitted_sack_blocks(), options.bytes()), (2, 36));
    options.window_scale = Some(1);
    assert_eq!((options.emitted_sack_blocks(), options.bytes()), (2, 40));
    // A fifth block has no place even in the representation.
    let full = options.sack;
    options.sack.push(SeqNumber(9), SeqNumber(10));
    assert_eq!(options.sack, full);
}
