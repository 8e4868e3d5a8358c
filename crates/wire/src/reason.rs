//! Why a frame was refused: one variant for each cause, so that counters are arrays indexed by it.
//!
//! A reason is about the bytes alone. Whether a well-formed frame is *for us* is the caller's to
//! say.

/// Declares [`DropReason`], its names and its count from one list, so that they cannot drift apart.
macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident => $name:literal,)+) => {
        /// Why [`crate::parse_frame`] refused a frame.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
        #[repr(u8)]
        #[must_use]
        pub enum DropReason {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl DropReason {
            /// Every reason, in the order of their discriminants.
            pub const ALL: [Self; Self::COUNT] = [$(Self::$variant,)+];
            /// Number of reasons: the length of an array of counters.
            pub const COUNT: usize = [$($name,)+].len();

            /// The name under which the reason is counted.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// Index of this reason's counter in an array of [`DropReason::COUNT`].
            #[must_use]
            pub const fn index(self) -> usize {
                self as usize
            }
        }
    };
}

drop_reasons! {
    /// Shorter than an Ethernet header (14 bytes), or than one with a tag (18 bytes).
    FrameTooShort => "frame_too_short",
    /// Not ARP, IPv4 or IPv6; tags of VLANs, second tags and 802.3 lengths are among these.
    EthertypeUnknown => "ethertype_unknown",
    /// The source MAC is a group address: no station may send from one (IEEE 802.3 s3.2.3).
    SourceMacInvalid => "source_mac_invalid",
    /// Unicast IP traffic sent to a group MAC (RFC 1122 s3.3.6).
    DestinationMacInvalid => "destination_mac_invalid",
    /// Shorter than an Ethernet/IPv4 ARP packet (28 bytes).
    ArpTooShort => "arp_too_short",
    /// Other hardware, protocol or address lengths than Ethernet and IPv4.
    ArpUnsupported => "arp_unsupported",
    /// Neither a request nor a reply.
    ArpOperationUnknown => "arp_operation_unknown",
    /// The sender claims a group or zero MAC, or a group IPv4 address.
    ArpSenderInvalid => "arp_sender_invalid",
    /// Shorter than an IPv4 header (20 bytes).
    Ipv4TooShort => "ipv4_too_short",
    /// The version field is not 4.
    Ipv4BadVersion => "ipv4_bad_version",
    /// The header length is below 20 bytes, or above the total length or the frame.
    Ipv4BadHeaderLength => "ipv4_bad_header_length",
    /// The total length is longer than the frame.
    Ipv4BadTotalLength => "ipv4_bad_total_length",
    /// The header checksum is wrong.
    Ipv4BadChecksum => "ipv4_bad_checksum",
    /// Shorter than an IPv6 header (40 bytes).
    Ipv6TooShort => "ipv6_too_short",
    /// The version field is not 6.
    Ipv6BadVersion => "ipv6_bad_version",
    /// The payload length is longer than the frame.
    Ipv6BadPayloadLength => "ipv6_bad_payload_length",
    /// An extension header runs over the end of the packet, or an option over the end of its
    /// header.
    Ipv6BadExtension => "ipv6_bad_extension",
    /// Extension headers beyond [`crate::ipv6::EXTENSION_BYTES_MAX`].
    Ipv6ExtensionsTooLong => "ipv6_extensions_too_long",
    /// A routing header, a second fragment header, or a hop-by-hop header that does not come first
    /// (RFC 8200 s4.1).
    Ipv6ExtensionUnsupported => "ipv6_extension_unsupported",
    /// An unknown option whose type asks for the packet to be discarded (RFC 8200 s4.2).
    Ipv6OptionRefused => "ipv6_option_refused",
    /// A part of a packet that has no content, ends beyond 65,535 bytes, or is not the last one and no
    /// multiple of eight bytes.
    FragmentInvalid => "fragment_invalid",
    /// A length of zero in the IP header: a jumbogram (RFC 2675) or a packet grown beyond 64 KiB by
    /// receive offload. Neither is asked for.
    IpLengthZero => "ip_length_zero",
    /// The IP source is multicast, broadcast, loopback, mapped or unspecified.
    SourceInvalid => "source_invalid",
    /// The IP destination is multicast, broadcast, loopback or unspecified.
    DestinationInvalid => "destination_invalid",
    /// Neither TCP nor the ICMP of this IP version.
    ProtocolUnsupported => "protocol_unsupported",
    /// Shorter than a TCP header (20 bytes).
    TcpTooShort => "tcp_too_short",
    /// The data offset is below 20 bytes or beyond the segment.
    TcpBadDataOffset => "tcp_bad_data_offset",
    /// An option's length is impossible: below 2, beyond the header, or not the one of its kind.
    TcpBadOption => "tcp_bad_option",
    /// The TCP checksum is wrong.
    TcpBadChecksum => "tcp_bad_checksum",
    /// A source or destination port of zero.
    TcpPortZero => "tcp_port_zero",
    /// Shorter than an ICMP header (8 bytes).
    Icmpv4TooShort => "icmpv4_too_short",
    /// The ICMP checksum is wrong.
    Icmpv4BadChecksum => "icmpv4_bad_checksum",
    /// An ICMP message this stack does not act on.
    Icmpv4Other => "icmpv4_other",
    /// Shorter than the ICMPv6 header, or than the message of its type.
    Icmpv6TooShort => "icmpv6_too_short",
    /// The ICMPv6 checksum is wrong.
    Icmpv6BadChecksum => "icmpv6_bad_checksum",
    /// An ICMPv6 message this stack does not act on.
    Icmpv6Other => "icmpv6_other",
    /// Neighbour discovery with a hop limit below 255: it came through a router (RFC 4861 s7.1).
    NeighborHopLimit => "neighbor_hop_limit",
    /// Neighbour discovery that fails another test of RFC 4861 s7.1: code, target, options, source; or
    /// with a fragment header (RFC 6980 s5).
    NeighborInvalid => "neighbor_invalid",
    /// A multicast listener query that is too short or did not come from our link (RFC 3810 s5.1.14).
    ListenerQueryInvalid => "listener_query_invalid",
    /// An ICMP error that does not quote an IP header and eight bytes of transport header.
    QuoteTooShort => "quote_too_short",
    /// An ICMP error about something that is not an unfragmented TCP segment of this IP version.
    QuoteNotTcp => "quote_not_tcp",
}

impl core::fmt::Display for DropReason {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl core::error::Error for DropReason {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn reasons_index_an_array_of_counters() {
        assert_eq!(DropReason::ALL.len(), DropReason::COUNT);
        for (index, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), index);
        }
    }

    #[test]
    fn names_are_distinct_and_snake_case() {
        let names: BTreeSet<&str> = DropReason::ALL.iter().map(|r| r.as_str()).collect();
        assert_eq!(names.len(), DropReason::COUNT);
        for name in names {
            let is_snake = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
            assert!(name.bytes().all(is_snake), "{name}");
        }
    }
}
