//! One table: every reason to refuse a frame, with the nearest frame that is not refused for it.

mod frames;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use wire::icmpv6::solicited_node;
use wire::ipv6::EXTENSION_BYTES_MAX;
use wire::{ChecksumState, DropReason, parse_frame};

pub(crate) use frames::tcp_v6;
use frames::*;

struct Row {
    refused: Vec<u8>,
    reason: DropReason,
    /// The frame on the other side of the limit.
    accepted: Vec<u8>,
}

fn row(refused: Vec<u8>, reason: DropReason, accepted: Vec<u8>) -> Row {
    Row {
        refused,
        reason,
        accepted,
    }
}

fn check(rows: &[Row]) {
    for (
        index,
        Row {
            refused,
            reason,
            accepted,
        },
    ) in rows.iter().enumerate()
    {
        let verdict = parse_frame(refused, ChecksumState::Unverified);
        assert_eq!(verdict, Err(*reason), "row {index}: {refused:02x?}");
        let verdict = parse_frame(accepted, ChecksumState::Unverified);
        assert!(
            verdict.is_ok(),
            "row {index} ({reason}): {verdict:?} for {accepted:02x?}"
        );
    }
}

fn ethernet_rows() -> Vec<Row> {
    use DropReason as D;
    vec![
        row(vec![], D::FrameTooShort, arp()),
        row(cut_to(arp(), 13), D::FrameTooShort, arp()),
        row(
            patch(tcp_v4(), 12, &[0x81, 0x00]),
            D::EthertypeUnknown,
            tcp_v4(),
        ),
        row(
            patch(tcp_v4(), 12, &[0x00, 0x2e]),
            D::EthertypeUnknown,
            tcp_v4(),
        ),
        row(
            tagged(cut_to(arp(), 14), 0),
            D::ArpTooShort,
            tagged(arp(), 0),
        ),
        row(
            cut_to(tagged(arp(), 0), 17),
            D::FrameTooShort,
            tagged(arp(), 0),
        ),
        row(
            cut_to(tagged(arp(), 1), 14),
            D::FrameTooShort,
            tagged(arp(), 0),
        ),
        row(
            tagged(tcp_v4(), 1),
            D::EthertypeUnknown,
            tagged(tcp_v4(), 0),
        ),
        row(
            tagged(tcp_v4(), 0x0800),
            D::EthertypeUnknown,
            tagged(tcp_v4(), 0xf000),
        ),
        row(
            tagged(tagged(tcp_v4(), 0), 0),
            D::EthertypeUnknown,
            tagged(tcp_v4(), 0),
        ),
        row(
            tagged(tagged(tcp_v4(), 0), 1),
            D::EthertypeUnknown,
            tagged(tcp_v4(), 0),
        ),
        row(
            tagged(tagged(tcp_v4(), 1), 0),
            D::EthertypeUnknown,
            tagged(tcp_v4(), 0),
        ),
        row(
            patch(tcp_v4(), 6, &[3]),
            D::SourceMacInvalid,
            patch(tcp_v4(), 6, &[2]),
        ),
        row(
            patch(tcp_v4(), 0, &[0xff; 6]),
            D::DestinationMacInvalid,
            tcp_v4(),
        ),
        row(
            patch(tcp_v6(), 0, &[0x33]),
            D::DestinationMacInvalid,
            patch(tcp_v6(), 0, &[0x32]),
        ),
    ]
}

fn arp_rows() -> Vec<Row> {
    use DropReason as D;
    let probe = patch(arp(), IP + 14, &[0; 4]);
    vec![
        row(cut_to(arp(), IP), D::ArpTooShort, arp()),
        row(cut_to(arp(), IP + 27), D::ArpTooShort, arp()),
        row(patch(arp(), IP, &[0, 6]), D::ArpUnsupported, arp()),
        row(
            patch(arp(), IP + 2, &[0x86, 0xdd]),
            D::ArpUnsupported,
            arp(),
        ),
        row(patch(arp(), IP + 4, &[7]), D::ArpUnsupported, arp()),
        row(patch(arp(), IP + 5, &[5]), D::ArpUnsupported, arp()),
        row(patch(arp(), IP + 6, &[0, 0]), D::ArpOperationUnknown, arp()),
        row(
            patch(arp(), IP + 6, &[0, 3]),
            D::ArpOperationUnknown,
            patch(arp(), IP + 6, &[0, 2]),
        ),
        row(patch(arp(), IP + 8, &[0; 6]), D::ArpSenderInvalid, arp()),
        row(patch(arp(), IP + 8, &[0xff; 6]), D::ArpSenderInvalid, arp()),
        row(
            patch(arp(), IP + 14, &[224]),
            D::ArpSenderInvalid,
            patch(arp(), IP + 14, &[223]),
        ),
        row(patch(arp(), IP + 14, &[255; 4]), D::ArpSenderInvalid, probe),
    ]
}

fn ipv4_rows() -> Vec<Row> {
    use DropReason as D;
    // Two words of options, a NOP and padding, before the same segment.
    let mut with_options = tcp_v4();
    with_options.splice(TCP_V4..TCP_V4, [1, 1, 1, 1, 0, 0, 0, 0]);
    let with_options = ip_v4(patch(with_options, IP, &[0x47]));
    let total = short(tcp_v4().len() - IP);
    let longer = header_v4(patch(tcp_v4(), IP + 2, &(total + 1).to_be_bytes()));
    let only_header = |length: u8| header_v4(patch(tcp_v4(), IP + 2, &[0, length]));
    let fragment = |bits: [u8; 2]| header_v4(patch(tcp_v4(), IP + 6, &bits));
    vec![
        row(cut_to(tcp_v4(), IP), D::Ipv4TooShort, tcp_v4()),
        row(cut_to(tcp_v4(), IP + 19), D::Ipv4TooShort, tcp_v4()),
        row(patch(tcp_v4(), IP, &[0x55]), D::Ipv4BadVersion, tcp_v4()),
        row(
            patch(tcp_v4(), IP, &[0x44]),
            D::Ipv4BadHeaderLength,
            with_options,
        ),
        row(
            header_v4(patch(tcp_v4(), IP, &[0x4f])),
            D::Ipv4BadHeaderLength,
            tcp_v4(),
        ),
        row(only_header(19), D::Ipv4BadHeaderLength, tcp_v4()),
        row(only_header(0), D::IpLengthZero, tcp_v4()),
        row(only_header(20), D::TcpTooShort, tcp_v4()),
        row(longer, D::Ipv4BadTotalLength, tcp_v4()),
        row(
            patch(tcp_v4(), IP + 10, &[0, 0]),
            D::Ipv4BadChecksum,
            tcp_v4(),
        ),
        row(patch(tcp_v4(), IP + 8, &[1]), D::Ipv4BadChecksum, tcp_v4()),
        // A segment of 28 bytes: the last part may have them, and end at 65,535 bytes.
        row(fragment([0x20, 0]), D::FragmentInvalid, fragment([0, 1])),
        row(
            fragment([0x1f, 0xfd]),
            D::FragmentInvalid,
            fragment([0x1f, 0xfc]),
        ),
        row(
            ip_v4(cut_to(fragment([0, 1]), TCP_V4)),
            D::FragmentInvalid,
            ip_v4(cut_to(fragment([0, 1]), TCP_V4 + 1)),
        ),
        row(
            header_v4(patch(fragment([0, 1]), IP + 9, &[17])),
            D::ProtocolUnsupported,
            header_v4(patch(fragment([0, 1]), IP + 9, &[1])),
        ),
        row(
            patch(fragment([0, 1]), 0, &[0xff; 6]),
            D::DestinationMacInvalid,
            fragment([0, 1]),
        ),
        row(
            header_v4(patch(tcp_v4(), IP + 9, &[17])),
            D::ProtocolUnsupported,
            tcp_v4(),
        ),
        row(
            header_v4(patch(tcp_v4(), IP + 9, &[58])),
            D::ProtocolUnsupported,
            tcp_v4(),
        ),
    ]
}

fn ipv6_rows() -> Vec<Row> {
    use DropReason as D;
    let length = short(tcp_v6().len() - IP - 40);
    let longer = patch(tcp_v6(), IP + 4, &(length + 1).to_be_bytes());
    let padded = tcp_v6().into_iter().chain([0; 9]).collect();
    vec![
        row(cut_to(tcp_v6(), IP), D::Ipv6TooShort, tcp_v6()),
        row(cut_to(tcp_v6(), IP + 39), D::Ipv6TooShort, tcp_v6()),
        row(
            patch(tcp_v6(), IP, &[0x40]),
            D::Ipv6BadVersion,
            patch(tcp_v6(), IP, &[0x6f]),
        ),
        row(patch(tcp_v6(), IP + 4, &[0, 0]), D::IpLengthZero, tcp_v6()),
        row(longer, D::Ipv6BadPayloadLength, padded),
        row(
            patch(tcp_v6(), IP + 6, &[17]),
            D::ProtocolUnsupported,
            tcp_v6(),
        ),
        row(
            patch(tcp_v6(), IP + 6, &[59]),
            D::ProtocolUnsupported,
            tcp_v6(),
        ),
        row(
            patch(tcp_v6(), IP + 6, &[1]),
            D::ProtocolUnsupported,
            tcp_v6(),
        ),
    ]
}

const HOP_BY_HOP: u8 = 0;
const DESTINATION_OPTIONS: u8 = 60;
const TCP: u8 = 6;

fn extension_rows() -> Vec<Row> {
    use DropReason as D;
    let pad_n = extension(TCP, &[1, 4, 0, 0, 0, 0]);
    let router_alert = with_extensions(HOP_BY_HOP, &extension(TCP, &[5, 2, 0, 0, 1, 0]));
    let padded = with_extensions(DESTINATION_OPTIONS, &pad_n);
    let both = [extension(DESTINATION_OPTIONS, &[0; 6]), pad_n.clone()].concat();
    let both = with_extensions(HOP_BY_HOP, &both);
    let late = [extension(HOP_BY_HOP, &[0; 6]), pad_n.clone()].concat();
    let truncated = |bytes: usize| {
        let mut frame = patch(tcp_v6(), IP + 6, &[HOP_BY_HOP]);
        frame.truncate(TCP_V6);
        frame.extend_from_slice(&extension(TCP, &[0; 6])[..bytes]);
        ip_v6(frame)
    };
    let filled =
        |bytes: usize| with_extensions(DESTINATION_OPTIONS, &extension(TCP, &vec![0; bytes - 2]));
    let option = |kind: u8, length: u8| {
        with_extensions(HOP_BY_HOP, &extension(TCP, &[kind, length, 0, 0, 0, 0]))
    };
    // Behind its header are the 28 bytes of a segment.
    let fragment = |offset: u16, more: u16| {
        let [high, low] = (offset | more).to_be_bytes();
        with_extensions(44, &[TCP, 0, high, low, 0, 0, 0, 9])
    };
    let options_in_front = |next: u8| {
        let headers = [extension(44, &[0; 6]), vec![next, 0, 0, 0, 0, 0, 0, 9]].concat();
        with_extensions(DESTINATION_OPTIONS, &headers)
    };
    let options_behind = |kind: u8| {
        let headers = [vec![kind, 0, 0, 0, 0, 0, 0, 9], pad_n.clone()].concat();
        with_extensions(44, &headers)
    };
    let routing = with_extensions(43, &[TCP, 0, 0, 0, 0, 0, 0, 0]);
    let lone_kind = with_extensions(HOP_BY_HOP, &extension(TCP, &[0, 0, 0, 0, 0, 1]));
    let lone_pad = with_extensions(HOP_BY_HOP, &extension(TCP, &[1, 3, 0, 0, 0, 0]));
    vec![
        row(fragment(0, 1), D::FragmentInvalid, fragment(0, 0)),
        row(fragment(65_512, 0), D::FragmentInvalid, fragment(65_504, 0)),
        row(
            ip_v6(cut_to(fragment(8, 1), TCP_V6 + 8)),
            D::FragmentInvalid,
            ip_v6(cut_to(fragment(8, 1), TCP_V6 + 16)),
        ),
        row(
            ip_v6(cut_to(fragment(8, 1), TCP_V6 + 7)),
            D::Ipv6BadExtension,
            ip_v6(cut_to(fragment(8, 1), TCP_V6 + 16)),
        ),
        row(
            options_in_front(44),
            D::Ipv6ExtensionUnsupported,
            options_in_front(TCP),
        ),
        row(
            options_behind(HOP_BY_HOP),
            D::Ipv6ExtensionUnsupported,
            options_behind(DESTINATION_OPTIONS),
        ),
        row(options_behind(43), D::Ipv6ExtensionUnsupported, padded),
        row(routing, D::Ipv6ExtensionUnsupported, router_alert),
        row(
            with_extensions(DESTINATION_OPTIONS, &late),
            D::Ipv6ExtensionUnsupported,
            both,
        ),
        row(truncated(1), D::Ipv6BadExtension, option(0, 0)),
        row(truncated(7), D::Ipv6BadExtension, option(0, 0)),
        row(truncated(8), D::TcpTooShort, option(0, 0)),
        row(lone_kind, D::Ipv6BadExtension, lone_pad),
        row(option(1, 5), D::Ipv6BadExtension, option(1, 4)),
        row(option(0x40, 4), D::Ipv6OptionRefused, option(0x3f, 4)),
        // A jumbo payload option asks to be refused by who does not know it (RFC 2675 s2).
        row(option(0xc2, 4), D::Ipv6OptionRefused, option(0x1e, 4)),
        row(
            filled(EXTENSION_BYTES_MAX + 8),
            D::Ipv6ExtensionsTooLong,
            filled(EXTENSION_BYTES_MAX),
        ),
    ]
}

fn address_rows() -> Vec<Row> {
    use DropReason as D;
    let from_v4 = |octets: [u8; 4]| tcp_from(octets.into(), OUR_V4.into());
    let to_v4 = |octets: [u8; 4]| tcp_from(PEER_V4.into(), octets.into());
    let from_v6 = |address: Ipv6Addr| tcp_from(address.into(), OUR_V6.into());
    let to_v6 = |address: Ipv6Addr| tcp_from(PEER_V6.into(), address.into());
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let nearly_multicast = Ipv6Addr::new(0xfeff, 0, 0, 0, 0, 0, 0, 1);
    let echo_to = |address| echo(&route(PEER_V6.into(), IpAddr::V6(address)));
    vec![
        row(
            from_v4([0, 255, 255, 255]),
            D::SourceInvalid,
            from_v4([1, 0, 0, 0]),
        ),
        row(
            from_v4([127, 0, 0, 1]),
            D::SourceInvalid,
            from_v4([126, 255, 255, 255]),
        ),
        row(
            from_v4([127, 255, 255, 255]),
            D::SourceInvalid,
            from_v4([128, 0, 0, 0]),
        ),
        row(
            from_v4([224, 0, 0, 1]),
            D::SourceInvalid,
            from_v4([223, 255, 255, 255]),
        ),
        row(
            from_v4([239, 255, 255, 255]),
            D::SourceInvalid,
            from_v4([240, 0, 0, 0]),
        ),
        row(
            from_v4([255; 4]),
            D::SourceInvalid,
            from_v4([255, 255, 255, 254]),
        ),
        row(from_v6(Ipv6Addr::UNSPECIFIED), D::SourceInvalid, tcp_v6()),
        row(from_v6(Ipv6Addr::LOCALHOST), D::SourceInvalid, tcp_v6()),
        row(
            from_v6(all_nodes),
            D::SourceInvalid,
            from_v6(nearly_multicast),
        ),
        row(
            from_v6(PEER_V4.to_ipv6_mapped()),
            D::SourceInvalid,
            tcp_v6(),
        ),
        row(to_v4([0; 4]), D::DestinationInvalid, tcp_v4()),
        row(
            to_v4([127, 0, 0, 1]),
            D::DestinationInvalid,
            to_v4([128, 0, 0, 1]),
        ),
        row(
            to_v4([224, 0, 0, 1]),
            D::DestinationInvalid,
            to_v4([223, 0, 0, 1]),
        ),
        row(
            to_v4([255; 4]),
            D::DestinationInvalid,
            to_v4([255, 255, 255, 254]),
        ),
        row(
            to_v6(all_nodes),
            D::DestinationInvalid,
            to_v6(nearly_multicast),
        ),
        row(
            to_v6(Ipv6Addr::UNSPECIFIED),
            D::DestinationInvalid,
            tcp_v6(),
        ),
        row(to_v6(Ipv6Addr::LOCALHOST), D::DestinationInvalid, tcp_v6()),
        row(
            echo_to(all_nodes),
            D::DestinationInvalid,
            echo_to(nearly_multicast),
        ),
        row(
            echo(&route(PEER_V4.into(), [224, 0, 0, 1].into())),
            D::DestinationInvalid,
            echo(&route_v4()),
        ),
        row(
            error_to(false, all_nodes),
            D::DestinationInvalid,
            error_to(false, nearly_multicast),
        ),
        row(
            error_to(true, all_nodes),
            D::DestinationInvalid,
            error_to(true, nearly_multicast),
        ),
    ]
}

fn tcp_rows() -> Vec<Row> {
    use DropReason as D;
    let segment_of = |bytes: usize| ip_v4(cut_to(tcp_v4(), TCP_V4 + bytes));
    let offset = |words: u8| sum_tcp_v4(patch(tcp_v4(), TCP_V4 + 12, &[words << 4]));
    let port = |at: usize, port: u8| sum_tcp_v4(patch(tcp_v4(), TCP_V4 + at, &[0, port]));
    vec![
        row(segment_of(0), D::TcpTooShort, tcp_v4()),
        row(segment_of(19), D::TcpTooShort, tcp_v4()),
        row(
            segment_of(23),
            D::TcpBadDataOffset,
            sum_tcp_v4(segment_of(24)),
        ),
        row(offset(4), D::TcpBadDataOffset, offset(5)),
        row(offset(8), D::TcpBadDataOffset, offset(6)),
        row(offset(0), D::TcpBadDataOffset, offset(6)),
        row(
            patch(tcp_v4(), TCP_V4 + 24, b"x"),
            D::TcpBadChecksum,
            tcp_v4(),
        ),
        row(
            patch(tcp_v6(), TCP_V6 + 24, b"x"),
            D::TcpBadChecksum,
            tcp_v6(),
        ),
        row(port(0, 0), D::TcpPortZero, port(0, 1)),
        row(port(2, 0), D::TcpPortZero, port(2, 1)),
    ]
}

fn option_rows() -> Vec<Row> {
    use DropReason as D;
    let sack = |length: u8| with_options([1, 1, 5, length, 0, 0, 0, 1, 0, 0, 0, 2]);
    let timestamps = |length: u8| with_options([8, length, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1]);
    vec![
        // MSS is four bytes, window scale three, SACK permitted two.
        row(
            with_option([2, 3, 0, 1]),
            D::TcpBadOption,
            with_option([2, 4, 0, 1]),
        ),
        row(
            with_option([3, 2, 1, 0]),
            D::TcpBadOption,
            with_option([3, 3, 1, 0]),
        ),
        row(
            with_option([3, 4, 1, 0]),
            D::TcpBadOption,
            with_option([1, 3, 3, 255]),
        ),
        row(
            with_option([4, 3, 0, 0]),
            D::TcpBadOption,
            with_option([4, 2, 0, 0]),
        ),
        row(timestamps(9), D::TcpBadOption, timestamps(10)),
        row(timestamps(11), D::TcpBadOption, timestamps(10)),
        row(sack(2), D::TcpBadOption, sack(10)),
        row(sack(9), D::TcpBadOption, sack(10)),
        // Unknown kinds: the length has to be possible, no more.
        row(
            with_option([254, 0, 0, 0]),
            D::TcpBadOption,
            with_option([254, 2, 0, 0]),
        ),
        row(
            with_option([254, 1, 0, 0]),
            D::TcpBadOption,
            with_option([254, 3, 0, 0]),
        ),
        row(
            with_option([254, 5, 0, 0]),
            D::TcpBadOption,
            with_option([254, 4, 0, 0]),
        ),
        // A kind at the very end has no length; the end of options hides what follows.
        row(
            with_option([1, 1, 1, 254]),
            D::TcpBadOption,
            with_option([1, 1, 1, 1]),
        ),
        row(
            with_option([1, 254, 0, 0]),
            D::TcpBadOption,
            with_option([0, 254, 0, 0]),
        ),
    ]
}

fn icmp_rows() -> Vec<Row> {
    use DropReason as D;
    let v4 = || echo(&route_v4());
    let v6 = || echo(&route_v6());
    let typed_v4 = |kind: [u8; 2]| icmp_v4(patch(v4(), ICMP_V4, &kind));
    let typed_v6 = |kind: [u8; 2]| icmp_v6(patch(v6(), ICMP_V6, &kind));
    let short_v4 = |bytes: usize| icmp_v4(cut_to(v4(), ICMP_V4 + bytes));
    let short_v6 = |bytes: usize| ip_v6(cut_to(v6(), ICMP_V6 + bytes));
    let quote_v4 = tcp_v4()[IP..].to_vec();
    let quote_v6 = tcp_v6()[IP..].to_vec();
    let least_v4 = || unreachable_v4(&quote_v4[..28]);
    let least_v6 = || unreachable_v6(&quote_v6[..48]);
    let quoting_v4 = |at: usize, byte: u8| unreachable_v4(&patch(quote_v4.clone(), at, &[byte]));
    let quoting_v6 = |at: usize, byte: u8| unreachable_v6(&patch(quote_v6.clone(), at, &[byte]));
    vec![
        row(
            ip_v4(cut_to(v4(), ICMP_V4 + 7)),
            D::Icmpv4TooShort,
            short_v4(8),
        ),
        row(patch(v4(), ICMP_V4 + 8, b"x"), D::Icmpv4BadChecksum, v4()),
        row(typed_v4([0, 0]), D::Icmpv4Other, typed_v4([8, 0])),
        row(typed_v4([8, 1]), D::Icmpv4Other, typed_v4([8, 0])),
        row(typed_v4([5, 0]), D::Icmpv4Other, least_v4()),
        row(typed_v4([11, 0]), D::Icmpv4Other, least_v4()),
        row(short_v6(7), D::Icmpv6TooShort, icmp_v6(short_v6(8))),
        row(patch(v6(), ICMP_V6 + 8, b"x"), D::Icmpv6BadChecksum, v6()),
        row(typed_v6([129, 0]), D::Icmpv6Other, typed_v6([128, 0])),
        row(typed_v6([128, 1]), D::Icmpv6Other, typed_v6([128, 0])),
        row(typed_v6([3, 0]), D::Icmpv6Other, least_v6()),
        row(typed_v6([134, 0]), D::Icmpv6Other, v6()),
        row(unreachable_v4(&[]), D::QuoteTooShort, least_v4()),
        row(
            unreachable_v4(&quote_v4[..19]),
            D::QuoteTooShort,
            least_v4(),
        ),
        row(
            unreachable_v4(&quote_v4[..27]),
            D::QuoteTooShort,
            least_v4(),
        ),
        row(quoting_v4(0, 0x4f), D::QuoteTooShort, quoting_v4(0, 0x46)),
        row(quoting_v4(0, 0x44), D::QuoteNotTcp, quoting_v4(0, 0x45)),
        row(quoting_v4(0, 0x65), D::QuoteNotTcp, quoting_v4(0, 0x45)),
        row(quoting_v4(9, 17), D::QuoteNotTcp, quoting_v4(9, 6)),
        row(quoting_v4(7, 1), D::QuoteNotTcp, quoting_v4(7, 0)),
        row(
            unreachable_v6(&quote_v6[..39]),
            D::QuoteTooShort,
            least_v6(),
        ),
        row(
            unreachable_v6(&quote_v6[..47]),
            D::QuoteTooShort,
            least_v6(),
        ),
        row(quoting_v6(0, 0x45), D::QuoteNotTcp, quoting_v6(0, 0x60)),
        row(quoting_v6(6, 17), D::QuoteNotTcp, quoting_v6(6, 6)),
    ]
}

/// A general listener query from `source` with this hop limit, whose message has `bytes` bytes.
fn listener_query(source: Ipv6Addr, hop_limit: u8, bytes: usize) -> Vec<u8> {
    let mut frame = solicitation();
    frame[IP + 7] = hop_limit;
    frame[IP + 8..IP + 24].copy_from_slice(&source.octets());
    frame.truncate(ICMP_V6);
    frame.extend_from_slice(&[130, 0, 0, 0, 3, 232, 0, 0]);
    frame.resize(ICMP_V6 + bytes, 0);
    icmp_v6(frame)
}

fn listener_rows() -> Vec<Row> {
    use DropReason::ListenerQueryInvalid as Invalid;
    let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    let far = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    let query = |hop_limit, bytes| listener_query(router, hop_limit, bytes);
    vec![
        row(query(2, 24), Invalid, query(1, 24)),
        row(query(1, 23), Invalid, query(1, 28)),
        row(listener_query(far, 1, 24), Invalid, query(1, 24)),
    ]
}

fn neighbor_rows() -> Vec<Row> {
    use DropReason as D;
    let target = ICMP_V6 + 8;
    let option = ICMP_V6 + 24;
    let message_of = |bytes: usize| icmp_v6(cut_to(solicitation(), ICMP_V6 + bytes));
    let group = solicited_node(OUR_V6);
    let nonce = |length: u8| {
        let mut frame = solicitation();
        frame.extend_from_slice(&[14, length, 1, 2, 3, 4, 5, 6]);
        icmp_v6(frame)
    };
    let from_loopback = solicitation_with(IP + 8, &Ipv6Addr::LOCALHOST.octets());
    vec![
        row(
            patch(solicitation(), IP + 7, &[254]),
            D::NeighborHopLimit,
            solicitation(),
        ),
        row(message_of(23), D::Icmpv6TooShort, message_of(24)),
        row(
            solicitation_with(ICMP_V6 + 1, &[1]),
            D::NeighborInvalid,
            solicitation(),
        ),
        row(
            solicitation_with(target, &[0xff]),
            D::NeighborInvalid,
            solicitation_with(target, &[0xfd]),
        ),
        row(
            solicitation_with(target, &[0; 16]),
            D::NeighborInvalid,
            solicitation(),
        ),
        row(message_of(25), D::NeighborInvalid, message_of(24)),
        row(message_of(31), D::NeighborInvalid, message_of(32)),
        row(
            solicitation_with(option + 1, &[0]),
            D::NeighborInvalid,
            solicitation(),
        ),
        row(
            solicitation_with(option + 1, &[2]),
            D::NeighborInvalid,
            solicitation(),
        ),
        row(nonce(2), D::NeighborInvalid, nonce(1)),
        row(nonce(0), D::NeighborInvalid, nonce(1)),
        row(
            solicitation_with(option + 2, &[3]),
            D::NeighborInvalid,
            solicitation(),
        ),
        // Duplicate detection: to the target's group alone, and naming no MAC.
        row(
            detection(group, true),
            D::NeighborInvalid,
            detection(group, false),
        ),
        row(
            detection(OUR_V6, false),
            D::NeighborInvalid,
            detection(group, false),
        ),
        row(from_loopback, D::SourceInvalid, solicitation()),
        // RFC 6980 s5.
        row(
            atomic_fragment(solicitation()),
            D::NeighborInvalid,
            atomic_fragment(echo(&route_v6())),
        ),
        row(
            advertisement(0x60, group),
            D::NeighborInvalid,
            advertisement(0x20, group),
        ),
        row(
            icmp_v6(patch(advertisement(0x60, OUR_V6), IP + 8, &[0; 16])),
            D::SourceInvalid,
            advertisement(0x60, OUR_V6),
        ),
    ]
}

fn all_rows() -> Vec<Row> {
    let rows = [
        ethernet_rows(),
        arp_rows(),
        ipv4_rows(),
        ipv6_rows(),
        extension_rows(),
        address_rows(),
        tcp_rows(),
        option_rows(),
        icmp_rows(),
        neighbor_rows(),
        listener_rows(),
    ];
    rows.into_iter().flatten().collect()
}

#[test]
fn every_limit_is_tested_on_both_sides() {
    check(&all_rows());
}

#[test]
fn every_reason_has_a_row() {
    let seen: BTreeSet<DropReason> = all_rows().iter().map(|row| row.reason).collect();
    let all: BTreeSet<DropReason> = DropReason::ALL.into_iter().collect();
    assert_eq!(seen, all);
}

/// Of each priority and of both types, and cut short as well.
#[test]
fn a_priority_tag_makes_no_difference() {
    for frame in all_rows()
        .into_iter()
        .flat_map(|row| [row.refused, row.accepted])
    {
        // A tag that is cut short, or a second one, has rows of its own.
        if frame.len() < 14 || matches!(frame[12..14], [0x81, 0x00] | [0x88, 0xa8]) {
            continue;
        }
        let verdict = parse_frame(&frame, ChecksumState::Unverified);
        for control in [0, 0x1000, 0xe000, 0xf000] {
            let frame = tagged(frame.clone(), control);
            assert_eq!(parse_frame(&frame, ChecksumState::Unverified), verdict);
            let frame = patch(frame, 12, &[0x88, 0xa8]);
            assert_eq!(parse_frame(&frame, ChecksumState::Unverified), verdict);
        }
    }
}

/// Trust covers the transport checksum and nothing else.
#[test]
fn trust_covers_the_transport_checksum_alone() {
    for Row {
        refused, reason, ..
    } in all_rows()
    {
        let verdict = parse_frame(&refused, ChecksumState::Trusted);
        let is_transport_checksum = matches!(
            reason,
            DropReason::TcpBadChecksum
                | DropReason::Icmpv4BadChecksum
                | DropReason::Icmpv6BadChecksum
        );
        if is_transport_checksum {
            assert!(verdict.is_ok(), "{reason}: {verdict:?}");
        } else {
            assert_eq!(verdict, Err(reason));
        }
    }
}

/// A shift above 14 counts as 14 (RFC 7323 s2.3).
#[test]
fn the_window_scale_is_clamped() {
    for (sent, expected) in [(0, 0), (13, 13), (14, 14), (15, 14), (255, 14)] {
        let frame = with_option([1, 3, 3, sent]);
        let Ok(wire::Incoming::Tcp { segment, .. }) =
            parse_frame(&frame, ChecksumState::Unverified)
        else {
            panic!("a segment");
        };
        assert_eq!(segment.options.window_scale, Some(expected));
    }
}
