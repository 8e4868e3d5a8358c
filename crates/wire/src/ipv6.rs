//! IPv6 headers and the extension headers in front of the payload (RFC 8200).
//!
//! Hop-by-hop and destination options are walked and skipped, up to [`EXTENSION_BYTES_MAX`], and so is
//! the fragment header of a packet that is whole (RFC 6946). The payload may be a part of a packet:
//! [`Ipv6Packet::fragment`]. Refused: routing headers, options that ask to be refused, jumbograms. A
//! protocol this crate does not know is handed up as it is.

use core::net::Ipv6Addr;

use crate::ecn::Ecn;
use crate::field;
use crate::fragment::FragmentPlace;
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

/// Next-header number of the hop-by-hop options header.
pub(crate) const NEXT_HOP_BY_HOP: u8 = 0;
const NEXT_ROUTING: u8 = 43;
const NEXT_FRAGMENT: u8 = 44;
const NEXT_DESTINATION_OPTIONS: u8 = 60;

/// Option type of a single byte of padding, the only option without a length (RFC 8200 s4.2).
const OPTION_PAD1: u8 = 0;
/// The two bits of an option type that say what to do with an unknown option; 00 means skip it.
const OPTION_ACTION: u8 = 0xc0;

/// Bytes of a fragment header (RFC 8200 s4.5).
const FRAGMENT_HEADER_BYTES: usize = 8;
/// Of its third and fourth byte: the offset, which counts units of eight bytes.
const FRAGMENT_OFFSET: u16 = 0xfff8;
/// Of the same: another part follows.
const MORE_FRAGMENTS: u16 = 0x0001;

/// A received packet whose headers are sound.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6Packet<'a> {
    source: Ipv6Addr,
    destination: Ipv6Addr,
    ecn: Ecn,
    hop_limit: u8,
    content: Content<'a>,
}

/// What is behind the headers.
#[derive(Clone, Copy, Debug)]
struct Content<'a> {
    protocol: u8,
    payload: &'a [u8],
    /// Which part of a packet the payload is.
    fragment: Option<FragmentPlace>,
    has_fragment_header: bool,
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
        Ok(Self {
            source: Ipv6Addr::from_octets(field::bytes::<8, 16, _>(header)),
            destination: Ipv6Addr::from_octets(field::bytes::<24, 16, _>(header)),
            ecn: Ecn::of_v6(header[1]),
            hop_limit: header[7],
            content: skip_extensions(header[6], rest)?,
        })
    }

    /// The packet that fragments from `source` made; `first` is what their headers say that `bytes`
    /// begin with. No fragment's hop limit is the packet's: it is 0.
    pub(crate) fn reassembled(
        [source, destination]: [Ipv6Addr; 2],
        ecn: Ecn,
        first: u8,
        bytes: &'a [u8],
    ) -> Result<Self, DropReason> {
        Ok(Self {
            source,
            destination,
            ecn,
            hop_limit: 0,
            content: skip_extensions_behind(first, bytes, FRAGMENT_HEADER_BYTES, true)?,
        })
    }

    /// Source address.
    #[must_use]
    pub const fn source(&self) -> Ipv6Addr {
        self.source
    }

    /// Destination address.
    #[must_use]
    pub const fn destination(&self) -> Ipv6Addr {
        self.destination
    }

    /// Next-header number of the payload, after extension headers.
    #[must_use]
    pub const fn protocol(&self) -> u8 {
        self.content.protocol
    }

    /// ECN field (RFC 3168 s5).
    #[must_use]
    pub const fn ecn(&self) -> Ecn {
        self.ecn
    }

    /// Remaining hop limit.
    #[must_use]
    pub const fn hop_limit(&self) -> u8 {
        self.hop_limit
    }

    /// What follows all headers, up to the payload length; of a fragment, what follows its header.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.content.payload
    }

    /// Which part of a packet the payload is; `None`: all of it.
    #[must_use]
    pub const fn fragment(&self) -> Option<FragmentPlace> {
        self.content.fragment
    }

    /// Whether there is a fragment header, of one part or of the only one.
    #[must_use]
    pub const fn has_fragment_header(&self) -> bool {
        self.content.has_fragment_header
    }
}

/// Walks extension headers until one that is none, or to the end of a fragment's header.
fn skip_extensions(first: u8, payload: &[u8]) -> Result<Content<'_>, DropReason> {
    skip_extensions_behind(first, payload, 0, false)
}

/// The same behind `skipped_bytes` of them.
fn skip_extensions_behind(
    first: u8,
    payload: &[u8],
    mut skipped_bytes: usize,
    mut has_fragment_header: bool,
) -> Result<Content<'_>, DropReason> {
    let mut next = first;
    let mut rest = payload;
    let fragment = loop {
        let header_bytes = match next {
            // RFC 8200 s4.1: a hop-by-hop header comes first or not at all.
            NEXT_HOP_BY_HOP if skipped_bytes > 0 => {
                return Err(DropReason::Ipv6ExtensionUnsupported);
            }
            NEXT_FRAGMENT if has_fragment_header => {
                return Err(DropReason::Ipv6ExtensionUnsupported);
            }
            NEXT_ROUTING => return Err(DropReason::Ipv6ExtensionUnsupported),
            NEXT_FRAGMENT => FRAGMENT_HEADER_BYTES,
            NEXT_HOP_BY_HOP | NEXT_DESTINATION_OPTIONS => match rest {
                // The length counts units of eight bytes, the first one not included.
                [_, length, ..] => (usize::from(*length) + 1) * 8,
                _ => return Err(DropReason::Ipv6BadExtension),
            },
            _ => break None,
        };
        skipped_bytes += header_bytes;
        if skipped_bytes > EXTENSION_BYTES_MAX {
            return Err(DropReason::Ipv6ExtensionsTooLong);
        }
        let (header, after) = rest
            .split_at_checked(header_bytes)
            .ok_or(DropReason::Ipv6BadExtension)?;
        let is_fragment_header = next == NEXT_FRAGMENT;
        next = header.first().copied().unwrap_or_default();
        rest = after;
        if !is_fragment_header {
            check_options(header.get(2..).unwrap_or_default())?;
            continue;
        }
        has_fragment_header = true;
        if let Some(place) = fragment_place(header) {
            break Some(place);
        }
    };
    Ok(Content {
        protocol: next,
        payload: rest,
        fragment,
        has_fragment_header,
    })
}

/// What a fragment header says; `None`: the packet is whole.
fn fragment_place(header: &[u8]) -> Option<FragmentPlace> {
    let header: &[u8; FRAGMENT_HEADER_BYTES] = header.first_chunk()?;
    let field = field::u16::<2, _>(header);
    (field & (FRAGMENT_OFFSET | MORE_FRAGMENTS) != 0).then_some(FragmentPlace {
        identification: field::u32::<4, _>(header),
        offset_bytes: field & FRAGMENT_OFFSET,
        is_last: field & MORE_FRAGMENTS == 0,
    })
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
