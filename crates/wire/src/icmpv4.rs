//! ICMP for IPv4 (RFC 792): echo and destination unreachable, fragmentation needed among it
//! (RFC 1191).
//!
//! Everything else is refused as [`DropReason::Icmpv4Other`]: redirects, with which an attacker could
//! divert our traffic; time exceeded, because retransmission handles the loss; source quench, which
//! every TCP must ignore (RFC 6633).

use crate::checksum;
use crate::field;
use crate::incoming::ChecksumState;
use crate::reason::DropReason;
use crate::writer::Writer;

/// Bytes of the header, in all messages here.
pub const HEADER_BYTES: usize = 8;
/// Code of destination unreachable that means "fragmentation needed and DF set" (RFC 1191 s4).
pub const CODE_FRAGMENTATION_NEEDED: u8 = 4;

const TYPE_ECHO_REPLY: u8 = 0;
const TYPE_UNREACHABLE: u8 = 3;
const TYPE_ECHO_REQUEST: u8 = 8;

/// A message this stack acts on or sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Icmpv4Message<'a> {
    /// Type 8: to be answered with the same content.
    EchoRequest {
        /// Chosen by the sender.
        identifier: u16,
        /// Chosen by the sender.
        sequence: u16,
        /// To be returned as it is.
        data: &'a [u8],
    },
    /// Type 0.
    EchoReply {
        /// As in the request.
        identifier: u16,
        /// As in the request.
        sequence: u16,
        /// As in the request.
        data: &'a [u8],
    },
    /// Type 3.
    Unreachable {
        /// What could not be reached, or why.
        code: u8,
        /// With [`CODE_FRAGMENTATION_NEEDED`]: MTU of the next hop, bytes; 0 from a router older
        /// than RFC 1191.
        mtu_bytes: u16,
        /// The packet this is about: IPv4 header and at least eight bytes.
        quote: &'a [u8],
    },
}

impl<'a> Icmpv4Message<'a> {
    /// Parses the payload of an IPv4 packet.
    ///
    /// # Errors
    /// The `Icmpv4...` reasons.
    pub fn parse(bytes: &'a [u8], checksum: ChecksumState) -> Result<Self, DropReason> {
        let (header, body) = bytes
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or(DropReason::Icmpv4TooShort)?;
        if checksum == ChecksumState::Unverified && !checksum::is_valid(0, bytes) {
            return Err(DropReason::Icmpv4BadChecksum);
        }
        let identifier = field::u16::<4, _>(header);
        let sequence = field::u16::<6, _>(header);
        match (header[0], header[1]) {
            (TYPE_ECHO_REQUEST, 0) => Ok(Self::EchoRequest {
                identifier,
                sequence,
                data: body,
            }),
            (TYPE_ECHO_REPLY, 0) => Ok(Self::EchoReply {
                identifier,
                sequence,
                data: body,
            }),
            (TYPE_UNREACHABLE, code) => Ok(Self::Unreachable {
                code,
                mtu_bytes: sequence,
                quote: body,
            }),
            _ => Err(DropReason::Icmpv4Other),
        }
    }

    /// Bytes of the message when emitted.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        match self {
            Self::EchoRequest { data, .. } | Self::EchoReply { data, .. } => {
                HEADER_BYTES + data.len()
            }
            Self::Unreachable { quote, .. } => HEADER_BYTES + quote.len(),
        }
    }

    /// Writes the message, checksum included, at the start of `buffer`.
    ///
    /// # Panics
    /// If `buffer` is shorter than [`Self::bytes`].
    pub fn emit(&self, buffer: &mut [u8]) {
        let (kind, code, words, body) = match *self {
            Self::EchoRequest {
                identifier,
                sequence,
                data,
            } => (TYPE_ECHO_REQUEST, 0, [identifier, sequence], data),
            Self::EchoReply {
                identifier,
                sequence,
                data,
            } => (TYPE_ECHO_REPLY, 0, [identifier, sequence], data),
            Self::Unreachable {
                code,
                mtu_bytes,
                quote,
            } => (TYPE_UNREACHABLE, code, [0, mtu_bytes], quote),
        };
        let mut header = [kind, code, 0, 0, 0, 0, 0, 0];
        Writer::new(&mut header[4..]).u16(words[0]).u16(words[1]);
        let checksum = checksum::complete(0, &[&header, body]);
        Writer::new(&mut header[2..]).u16(checksum);
        Writer::new(buffer).bytes(&header).bytes(body);
    }
}
