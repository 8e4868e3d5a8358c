//! The packet of ours that an ICMP error quotes.
//!
//! Only the IP header and eight bytes of TCP (RFC 792) are certainly quoted; they hold both ports
//! and the sequence number. Lengths and checksums are not verified, because routers truncate the
//! quote, and routers on the path have changed fields such as the time to live. TCP checks whether
//! the sequence number is in flight, and so whether the error is accepted (RFC 5927 s4).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::field;
use crate::ipv4;
use crate::ipv6;
use crate::reason::DropReason;
use crate::tcp::SeqNumber;

/// Bytes of TCP header sure to be quoted.
const TRANSPORT_BYTES: usize = 8;

/// The TCP segment an ICMP error is about, as we sent it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OriginalTcp {
    /// Our address.
    pub source: IpAddr,
    /// The peer's address.
    pub destination: IpAddr,
    /// Our port.
    pub source_port: u16,
    /// The peer's port.
    pub destination_port: u16,
    /// SEG.SEQ.
    pub sequence: SeqNumber,
}

impl OriginalTcp {
    /// Parses what follows the header of an ICMP error for IPv4.
    ///
    /// # Errors
    /// [`DropReason::QuoteTooShort`], [`DropReason::QuoteNotTcp`].
    pub fn parse_v4(quote: &[u8]) -> Result<Self, DropReason> {
        let header: &[u8; ipv4::HEADER_BYTES] =
            quote.first_chunk().ok_or(DropReason::QuoteTooShort)?;
        let header_bytes = ipv4::header_bytes(header);
        let is_tcp = header[0] >> 4 == 4
            && header_bytes >= ipv4::HEADER_BYTES
            && header[9] == ipv4::PROTOCOL_TCP
            && !ipv4::is_fragment(header);
        if !is_tcp {
            return Err(DropReason::QuoteNotTcp);
        }
        let transport = quote.get(header_bytes..).unwrap_or_default();
        let source = Ipv4Addr::from_octets(field::bytes::<12, 4, _>(header));
        let destination = Ipv4Addr::from_octets(field::bytes::<16, 4, _>(header));
        Self::parse_transport(source.into(), destination.into(), transport)
    }

    /// Parses what follows the header of an ICMPv6 error. We send no extension headers, so a quote
    /// with any is not ours.
    ///
    /// # Errors
    /// [`DropReason::QuoteTooShort`], [`DropReason::QuoteNotTcp`].
    pub fn parse_v6(quote: &[u8]) -> Result<Self, DropReason> {
        let (header, transport) = quote
            .split_first_chunk::<{ ipv6::HEADER_BYTES }>()
            .ok_or(DropReason::QuoteTooShort)?;
        if header[0] >> 4 != 6 || header[6] != ipv6::PROTOCOL_TCP {
            return Err(DropReason::QuoteNotTcp);
        }
        let source = Ipv6Addr::from_octets(field::bytes::<8, 16, _>(header));
        let destination = Ipv6Addr::from_octets(field::bytes::<24, 16, _>(header));
        Self::parse_transport(source.into(), destination.into(), transport)
    }

    fn parse_transport(
        source: IpAddr,
        destination: IpAddr,
        transport: &[u8],
    ) -> Result<Self, DropReason> {
        let header: &[u8; TRANSPORT_BYTES] =
            transport.first_chunk().ok_or(DropReason::QuoteTooShort)?;
        Ok(Self {
            source,
            destination,
            source_port: field::u16::<0, _>(header),
            destination_port: field::u16::<2, _>(header),
            sequence: SeqNumber(field::u32::<4, _>(header)),
        })
    }
}
