//! IPv4 headers (RFC 791).
//!
//! Options are skipped, never acted on. Refused: bad lengths, bad header checksums. The payload ends
//! where the total length says, so Ethernet padding is cut off. It may be a part of a packet:
//! [`Ipv4Packet::fragment`].

use core::net::Ipv4Addr;

use crate::checksum;
use crate::ecn::Ecn;
use crate::field;
use crate::fragment::FragmentPlace;
use crate::reason::DropReason;
use crate::writer::Writer;

/// Bytes of a header without options, the only kind we emit.
pub const HEADER_BYTES: usize = 20;
/// Protocol number of ICMP.
pub const PROTOCOL_ICMP: u8 = 1;
/// Protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// A received packet whose header is sound.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4Packet<'a> {
    header: &'a [u8; HEADER_BYTES],
    payload: &'a [u8],
}

impl<'a> Ipv4Packet<'a> {
    /// Checks version, lengths and header checksum.
    ///
    /// # Errors
    /// The `Ipv4...` reasons and [`DropReason::IpLengthZero`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DropReason> {
        let header: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(DropReason::Ipv4TooShort)?;
        if header[0] >> 4 != 4 {
            return Err(DropReason::Ipv4BadVersion);
        }
        let total_bytes = match field::u16::<2, _>(header) {
            0 => return Err(DropReason::IpLengthZero),
            length => usize::from(length),
        };
        let packet = bytes
            .get(..total_bytes)
            .ok_or(DropReason::Ipv4BadTotalLength)?;
        let header_bytes = header_bytes(header);
        if header_bytes < HEADER_BYTES {
            return Err(DropReason::Ipv4BadHeaderLength);
        }
        let (whole_header, payload) = packet
            .split_at_checked(header_bytes)
            .ok_or(DropReason::Ipv4BadHeaderLength)?;
        if !checksum::is_valid(0, whole_header) {
            return Err(DropReason::Ipv4BadChecksum);
        }
        Ok(Self { header, payload })
    }

    /// Source address.
    #[must_use]
    pub const fn source(&self) -> Ipv4Addr {
        Ipv4Addr::from_octets(field::bytes::<12, 4, _>(self.header))
    }

    /// Destination address.
    #[must_use]
    pub const fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::from_octets(field::bytes::<16, 4, _>(self.header))
    }

    /// Protocol number of the payload.
    #[must_use]
    pub const fn protocol(&self) -> u8 {
        self.header[9]
    }

    /// ECN field (RFC 3168 s5).
    #[must_use]
    pub const fn ecn(&self) -> Ecn {
        Ecn::of_v4(self.header[1])
    }

    /// Which part of a packet the payload is; `None`: all of it.
    #[must_use]
    pub fn fragment(&self) -> Option<FragmentPlace> {
        let field = field::u16::<6, _>(self.header);
        is_fragment(self.header).then_some(FragmentPlace {
            identification: field::u16::<4, _>(self.header).into(),
            offset_bytes: (field & FRAGMENT_OFFSET) * 8,
            is_last: field & MORE_FRAGMENTS == 0,
        })
    }

    /// Remaining time to live.
    #[must_use]
    pub const fn time_to_live(&self) -> u8 {
        self.header[8]
    }

    /// What follows the header and its options, up to the total length.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Bytes of header and options, as its length field says.
pub(crate) const fn header_bytes(header: &[u8; HEADER_BYTES]) -> usize {
    (header[0] & 0x0f) as usize * 4
}

/// Whether any part of the packet travels elsewhere.
pub(crate) const fn is_fragment(header: &[u8; HEADER_BYTES]) -> bool {
    field::u16::<6, _>(header) & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0
}

/// A header without options, as values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4Repr {
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// Protocol number of the payload.
    pub protocol: u8,
    /// Time to live.
    pub time_to_live: u8,
    /// Identification; since DF is always set, it is free (RFC 6864 s4.1), but cutting counts it
    /// up.
    pub identification: u16,
    /// Header and payload together, bytes.
    pub total_bytes: u16,
}

impl Ipv4Repr {
    /// Writes the header with DF set and its checksum complete; type of service is zero, so it is
    /// Not-ECT.
    pub fn emit(&self, header: &mut [u8; HEADER_BYTES]) {
        Writer::new(header)
            .bytes(&[0x45, 0])
            .u16(self.total_bytes)
            .u16(self.identification)
            .u16(DONT_FRAGMENT)
            .bytes(&[self.time_to_live, self.protocol])
            .u16(0)
            .bytes(&self.source.octets())
            .bytes(&self.destination.octets());
        let [high, low] = checksum::complete(0, &[header]).to_be_bytes();
        header[10] = high;
        header[11] = low;
    }
}
