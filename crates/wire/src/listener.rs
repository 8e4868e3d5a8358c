//! The half of multicast listener discovery that a host needs (MLDv2, RFC 3810): queries received, reports
//! sent. A switch that snoops on them passes a group's frames, neighbour solicitations among them, only to
//! ports from which a report came.
//!
//! Refused: queries from beyond our link. A query of version 1 is answered by a report of version 2, which
//! every switch that snoops on version 2 knows.

use core::net::Ipv6Addr;
use core::time::Duration;

use crate::checksum;
use crate::field;
use crate::icmpv6;
use crate::incoming::ChecksumState;
use crate::ipv6::{Ipv6Packet, PROTOCOL_ICMP};
use crate::reason::DropReason;
use crate::writer::Writer;

/// Bytes of a query without sources in version 1, and the least of both.
const QUERY_BYTES_MIN: usize = 24;
/// Bytes of a report of one group without sources.
pub const REPORT_BYTES: usize = 28;
/// Bytes of the hop-by-hop header before it.
pub const HOP_BY_HOP_BYTES: usize = 8;
/// Hop limit of queries and reports (RFC 3810 s5).
pub const HOP_LIMIT: u8 = 1;
/// Where reports go: all MLDv2-capable routers (RFC 3810 s5.2.14).
pub const REPORTS_GROUP: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);

const TYPE_QUERY: u8 = 130;
const TYPE_REPORT: u8 = 143;

/// Whether a report answers a query or tells of a change (RFC 3810 s5.2.12). Both say that everything sent
/// to the group is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListenerReport {
    /// `MODE_IS_EXCLUDE`: in answer to a query.
    Current,
    /// `CHANGE_TO_EXCLUDE_MODE`: the group is wanted from now on.
    Joined,
}

/// Who is asked, and in which time the answer is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Query {
    /// Unspecified: every group.
    pub(crate) group: Ipv6Addr,
    pub(crate) response_time_max: Duration,
}

/// Whether an ICMPv6 packet is a query.
pub(crate) fn is_query(packet: &Ipv6Packet<'_>) -> bool {
    packet.payload().first() == Some(&TYPE_QUERY)
}

/// Parses a query.
///
/// # Errors
/// [`DropReason::Icmpv6BadChecksum`]; [`DropReason::ListenerQueryInvalid`]: too short, or not from our link
/// (RFC 3810 s5.1.14, s6.2).
pub(crate) fn parse_query(
    packet: &Ipv6Packet<'_>,
    checksum: ChecksumState,
) -> Result<Query, DropReason> {
    if checksum == ChecksumState::Unverified && !icmpv6::is_checksum_valid(packet) {
        return Err(DropReason::Icmpv6BadChecksum);
    }
    let message: &[u8; QUERY_BYTES_MIN] =
        (packet.payload().first_chunk()).ok_or(DropReason::ListenerQueryInvalid)?;
    let source = packet.source();
    if packet.hop_limit() != HOP_LIMIT || !source.is_unicast_link_local() {
        return Err(DropReason::ListenerQueryInvalid);
    }
    let group = Ipv6Addr::from_octets(field::bytes::<8, 16, _>(message));
    Ok(Query {
        group,
        response_time_max: response_time(field::u16::<4, _>(message)),
    })
}

/// A maximum response code (RFC 3810 s5.1.3): milliseconds, or from 32,768 on a number with an exponent.
fn response_time(code: u16) -> Duration {
    let millis = if code < 0x8000 {
        u32::from(code)
    } else {
        let (exponent, mantissa) = (code >> 12 & 7, code & 0xfff);
        u32::from(mantissa | 0x1000) << (exponent + 3)
    };
    Duration::from_millis(millis.into())
}

/// Writes the hop-by-hop header with the router alert (RFC 2711) and a report of one group.
pub(crate) fn emit_report(
    bytes: &mut [u8; HOP_BY_HOP_BYTES + REPORT_BYTES],
    source: Ipv6Addr,
    group: Ipv6Addr,
    report: ListenerReport,
) {
    let kind = match report {
        ListenerReport::Current => 2,
        ListenerReport::Joined => 4,
    };
    let (alert, message) = bytes.split_at_mut(HOP_BY_HOP_BYTES);
    Writer::new(alert).bytes(&[PROTOCOL_ICMP, 0, 5, 2, 0, 0, 1, 0]);
    Writer::new(message)
        .bytes(&[TYPE_REPORT, 0, 0, 0, 0, 0])
        .u16(1)
        .bytes(&[kind, 0, 0, 0])
        .bytes(&group.octets());
    let pseudo = icmpv6::pseudo_header(source, REPORTS_GROUP, REPORT_BYTES);
    let sum = checksum::complete(pseudo, &[message]).to_be_bytes();
    if let Some(place) = message.get_mut(2..4) {
        place.copy_from_slice(&sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_times_are_milliseconds_or_have_an_exponent() {
        for (code, millis) in [
            (0, 0),
            (1, 1),
            (0x7fff, 32_767),
            (0x8000, 32_768),
            (0x8001, 32_776),
            (0xffff, 0x1fff << 10),
        ] {
            assert_eq!(response_time(code), Duration::from_millis(millis), "{code}");
        }
    }
}
