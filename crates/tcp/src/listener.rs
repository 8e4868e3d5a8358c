//! The LISTEN and CLOSED states: the parameters of a SYN-ACK, and the reset that answers any other
//! segment (RFC 9293 s3.10.7.1-2).

use core::hash::Hasher;

use clock::Instant;
use siphasher::sip::SipHasher13;
use wire::{SeqNumber, TcpFlags, TcpRepr};

use crate::half_open::Offer;
use crate::table::{FourTuple, hash_tuple};

/// Chooses initial sequence numbers and timestamp shifts (RFC 6528, RFC 7323 s7.1).
#[derive(Clone)]
pub struct Listener {
    key: [u8; 16],
}

impl Listener {
    /// `key` is secret and new at each start.
    #[must_use]
    pub const fn new(key: [u8; 16]) -> Self {
        Self { key }
    }

    /// The offer for a SYN, without ECN. `segment_bytes` is the link's MSS, `window` our receive window,
    /// bytes.
    ///
    /// RFC 6528 s3: ISN = M + F(tuple, secret), where M is a clock of 4 microseconds, so that a new
    /// connection with the four-tuple of an old one starts beyond its sequence numbers.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "sequence numbers are modulo 2^32"
    )]
    pub fn offer(&self, now: Instant, tuple: &FourTuple, segment_bytes: u16, window: u16) -> Offer {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        hash_tuple(&mut hasher, tuple);
        let hash = hasher.finish();
        let ticks = now.as_micros() / 4;
        Offer {
            iss: SeqNumber((hash as u32).wrapping_add(ticks as u32)),
            timestamp_shift: (hash >> 32) as u32,
            segment_bytes,
            window,
            accepts_ecn: false,
        }
    }
}

impl core::fmt::Debug for Listener {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // The key is a secret.
        formatter.debug_struct("Listener").finish_non_exhaustive()
    }
}

/// Whether a segment asks for a new connection: SYN and nothing that contradicts it.
#[must_use]
pub const fn is_connection_request(segment: &TcpRepr) -> bool {
    let contradictions = TcpFlags::ACK.0 | TcpFlags::RST.0 | TcpFlags::FIN.0;
    segment.flags.contains(TcpFlags::SYN) && segment.flags.0 & contradictions == 0
}

/// The reset that answers a segment for no connection (RFC 9293 s3.10.7.1); `None` for a reset,
/// which is never answered.
#[must_use]
pub fn reset_for(segment: &TcpRepr, payload_bytes: usize) -> Option<TcpRepr> {
    if segment.flags.contains(TcpFlags::RST) {
        return None;
    }
    let mut reset = TcpRepr {
        source_port: segment.destination_port,
        destination_port: segment.source_port,
        flags: TcpFlags::RST,
        ..TcpRepr::default()
    };
    if segment.flags.contains(TcpFlags::ACK) {
        reset.sequence = segment.acknowledgment;
    } else {
        let control = u32::from(segment.flags.contains(TcpFlags::SYN))
            + u32::from(segment.flags.contains(TcpFlags::FIN));
        let length = u32::try_from(payload_bytes)
            .unwrap_or(u32::MAX)
            .wrapping_add(control);
        reset.acknowledgment = segment.sequence.wrapping_add(length);
        reset.flags = TcpFlags::RST.union(TcpFlags::ACK);
    }
    Some(reset)
}

#[cfg(test)]
mod tests {
    use clock::Instant;
    use wire::{SeqNumber, TcpFlags, TcpRepr};

    use super::{Listener, is_connection_request, reset_for};
    use crate::table::FourTuple;

    fn tuple(port: u16) -> FourTuple {
        FourTuple {
            local: "[fd00::2]:80".parse().unwrap(),
            peer: format!("[fd00::1]:{port}").parse().unwrap(),
        }
    }

    #[test]
    fn initial_numbers_differ_by_tuple_and_advance_with_time() {
        let listener = Listener::new([3; 16]);
        let at = |millis, port| {
            listener
                .offer(Instant::from_millis(millis), &tuple(port), 1440, 1000)
                .iss
        };
        assert_ne!(at(0, 1), at(0, 2));
        assert_eq!(at(1000, 1).distance(at(0, 1)), 250_000);
        assert_ne!(
            at(0, 1),
            Listener::new([4; 16])
                .offer(Instant::ZERO, &tuple(1), 1, 1)
                .iss
        );
    }

    #[test]
    fn only_a_bare_syn_opens() {
        let with = |flags| {
            is_connection_request(&TcpRepr {
                flags,
                ..TcpRepr::default()
            })
        };
        assert!(with(TcpFlags::SYN));
        assert!(with(TcpFlags::SYN.union(TcpFlags::PSH)));
        for other in [TcpFlags::ACK, TcpFlags::RST, TcpFlags::FIN] {
            assert!(!with(TcpFlags::SYN.union(other)));
        }
        assert!(!with(TcpFlags::ACK));
    }

    #[test]
    fn the_reset_is_acceptable_to_its_receiver() {
        let mut segment = TcpRepr {
            sequence: SeqNumber(u32::MAX),
            acknowledgment: SeqNumber(5),
            flags: TcpFlags::ACK,
            ..TcpRepr::default()
        };
        let reset = reset_for(&segment, 3).unwrap();
        assert_eq!((reset.sequence, reset.flags), (SeqNumber(5), TcpFlags::RST));
        segment.flags = TcpFlags::SYN;
        let reset = reset_for(&segment, 3).unwrap();
        assert_eq!(
            (reset.sequence, reset.acknowledgment),
            (SeqNumber(0), SeqNumber(3))
        );
        assert!(reset.flags.contains(TcpFlags::ACK));
        segment.flags = TcpFlags::RST;
        assert_eq!(reset_for(&segment, 3), None);
    }
}
