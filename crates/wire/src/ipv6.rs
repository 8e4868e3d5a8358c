//! IPv6 headers and the extension headers in front of the payload (RFC 8200).
//!
//! Hop-by-hop and destination options are walked and skipped, up to [`EXTENSION_BYTES_MAX`].
//! Refused: fragments, routing headers, options that ask to be refused, jumbograms. A protocol this
//! crate does not know is handed up as it is.

use core::net::Ipv6Addr;

use crate::ecn::Ecn;
use crate::field;
use crate::reason::DropReason;
use crate::writer::Writer;

/// Bytes of the fixed header, the only one we emit.
pub const HEADER_BYTES: usize = 40;
/// Most bytes of extension headers a packet may carry; bounds the work of skipping them. Honest
/// ones are one header of eight bytes (router alert, or padding) `[guess]`.
pub const EXTENSION_BYTES_MAX: usize = 128;
/// Next-header number of ICMPv6.
pub const PROTOCOL_ICMP: u8 = 58;
/// Next-header number of TCP.
pub const PROTOCOL_TCP: u8 = 6;

const NEXT_HOP_BY_HOP: u8 = 0;
const NEXT_ROUTING: u8 = 43;
const NEXT_FRAGMENT: u8 = 44;
const NEXT_DESTINATION_OPTIONS: u8 = 60;

/// Option type of a single byte of padding, the only option without a length (RFC 8200 s4.2).
const OPTION_PAD1: u8 = 0;
/// The two bits of an option type that say what to do with an unknown option; 00 means skip it.
const OPTION_ACTION: u8 = 0xc0;

/// A received packet whose headers are sound.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6Packet<'a> {
    header: &'a [u8; HEADER_BYTES],
    protocol: u8,
    payload: &'a [u8],
}

impl<'a> Ipv6Packet<'a> {
    /// Checks version and lengths, and skips extension headers.
    ///
    /// # Errors
    /// The `Ipv6...` reasons and [`DropReason::IpLengthZero`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DropReason> {
        let (header, rest) = bytes
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or(DropReason::Ipv6TooShort)?;
        if header[0] >> 4 != 6 {
            return Err(DropReason::Ipv6BadVersion);
        }
        let payload_bytes = match field::u16::<4, _>(header) {
            0 => return Err(DropReason::IpLengthZero),
            length => usize::from(length),
        };
        let rest = rest
            .get(..payload_bytes)
            .ok_or(DropReason::Ipv6BadPayloadLength)?;
        let (protocol, payload) = skip_extensions(header[6], rest)?;
        Ok(Self {
            header,
            protocol,
            payload,
        })
    }

    /// Source address.
    #[must_use]
    pub const fn source(&self) -> Ipv6Addr {
        Ipv6Addr::from_octets(field::bytes::<8, 16, _>(self.header))
    }

    /// Destination address.
    #[must_use]
    pub const fn destination(&self) -> Ipv6Addr {
        Ipv6Addr::from_octets(field::bytes::<24, 16, _>(self.header))
    }

    /// Next-header number of the payload, after extension headers.
    #[must_use]
    pub const fn protocol(&self) -> u8 {
        self.protocol
    }

    /// ECN field (RFC 3168 s5).
    #[must_use]
    pub const fn ecn(&self) -> Ecn {
        Ecn::of_v6(self.header[1])
    }

    /// Remaining hop limit.
    #[must_use]
    pub const fn hop_limit(&self) -> u8 {
        self.header[7]
    }

    /// What follows all headers, up to the payload length.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Walks extension headers until one that is none, which it returns with what follows.
fn skip_extensions(first: u8, payload: &[u8]) -> Result<(u8, &[u8]), DropReason> {
    let mut next = first;
    let mut rest = payload;
    let mut skipped_bytes = 0;
    loop {
        match next {
            // RFC 8200 s4.1: a hop-by-hop header comes first or not at all.
            NEXT_HOP_BY_HOP if skipped_bytes > 0 => {
                return Err(DropReason::Ipv6ExtensionUnsupported);
            }
            NEXT_HOP_BY_HOP | NEXT_DESTINATION_OPTIONS => {}
            NEXT_ROUTING => return Err(DropReason::Ipv6ExtensionUnsupported),
            NEXT_FRAGMENT => return Err(DropReason::Ipv6Fragment),
            _ => return Ok((next, rest)),
        }
        let [following, length, ..] = *rest else {
            return Err(DropReason::Ipv6BadExtension);
        };
        // The length counts units of eight bytes, the first one not included.
        let header_bytes = (usize::from(length) + 1) * 8;
        skipped_bytes += header_bytes;
        if skipped_bytes > EXTENSION_BYTES_MAX {
            return Err(DropReason::Ipv6ExtensionsTooLong);
        }
        let (header, after) = rest
            .split_at_checked(header_bytes)
            .ok_or(DropReason::Ipv6BadExtension)?;
        check_options(header.get(2..).unwrap_or_default())?;
        next = following;
        rest = after;
    }
}

/// Refuses options that run over the end and those whose type forbids skipping them.
fn check_options(options: &[u8]) -> Result<(), DropReason> {
    let mut rest = options;
    while let [kind, after @ ..] = rest {
        if *kind == OPTION_PAD1 {
            rest = after;
            continue;
        }
        if kind & OPTION_ACTION != 0 {
            return Err(DropReason::Ipv6OptionRefused);
        }
        let [length, data @ ..] = after else {
            return Err(DropReason::Ipv6BadExtension);
        };
        rest = data
            .get(usize::from(*length)..)
            .ok_or(DropReason::Ipv6BadExtension)?;
    }
    Ok(())
}

/// A fixed header as values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv6Repr {
    /// Source address.
    pub source: Ipv6Addr,
    /// Destination address.
    pub destination: Ipv6Addr,
    /// Next-header number of the payload.
    pub protocol: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Bytes after this header.
    pub payload_bytes: u16,
}

impl Ipv6Repr {
    /// Writes the header; traffic class and flow label are zero.
    pub fn emit(&self, header: &mut [u8; HEADER_BYTES]) {
        Writer::new(header)
            .u32(0x6000_0000)
            .u16(self.payload_bytes)
            .bytes(&[self.protocol, self.hop_limit])
            .bytes(&self.source.octets())
            .bytes(&self.destination.octets());
    }
}
