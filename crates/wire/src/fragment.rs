//! Fragments: the parts of an IP packet that a router cut because it was larger than the router's next
//! link (RFC 791 s3.2), or of one that its sender cut (RFC 8200 s4.5).
//!
//! Alone a fragment says whose part it is and where it belongs. Whether the parts make a packet is for
//! [`crate::parse_reassembled`] to say, once somebody has all of them. An IPv6 packet whose only
//! fragment is itself ("atomic", RFC 6946) is no fragment here.
//!
//! Refused: fragments without content, with an end beyond 65,535 bytes, and those before the last whose
//! length is no multiple of eight, behind which no other could begin.

use crate::ecn::Ecn;
use crate::incoming::Path;
use crate::reason::DropReason;

/// Offsets count units of eight bytes.
const UNIT_BYTES: usize = 8;

/// Which part of its packet a fragment is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FragmentPlace {
    /// Names the packet, together with both addresses and, over IPv4, the protocol.
    pub identification: u32,
    /// Where the part begins in what was cut, bytes: a multiple of 8.
    pub offset_bytes: u16,
    /// Whether nothing follows it.
    pub is_last: bool,
}

/// A part of an IP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment<'a> {
    /// Where it came from.
    pub path: Path,
    /// Which part it is.
    pub place: FragmentPlace,
    /// What the packet carries. Over IPv6 only the first part's counts, and may be an extension
    /// header.
    pub protocol: u8,
    /// The ECN field of its IP header.
    pub ecn: Ecn,
    /// The part: at least a byte, a multiple of eight unless it is the last one. It ends at byte 65,535
    /// of the packet at most.
    pub payload: &'a [u8],
}

impl Fragment<'_> {
    /// Checks what a fragment says of itself.
    pub(crate) fn check(&self) -> Result<(), DropReason> {
        let bytes = self.payload.len();
        let is_cut_between_units = self.place.is_last || bytes.is_multiple_of(UNIT_BYTES);
        let end = usize::from(self.place.offset_bytes) + bytes;
        if bytes == 0 || !is_cut_between_units || end > usize::from(u16::MAX) {
            return Err(DropReason::FragmentInvalid);
        }
        Ok(())
    }
}
