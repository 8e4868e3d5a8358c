//! How much of the congestion window was in use: a window that was not must not grow, because nothing
//! shows that the path would take more (RFC 7661 s4.2).
//!
//! What counts is the most that was outstanding at once in a round trip. At the last ACKs of a flight
//! with nothing behind it little is outstanding, but all of the flight was, a moment before.

use crate::stream::StreamOffset;

/// The use of the window in the present round trip: one lasts until everything is acknowledged that was
/// sent when it began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct WindowUse {
    /// Most bytes outstanding at once.
    most_bytes: u64,
    /// SND.NXT when it began.
    end: StreamOffset,
}

impl WindowUse {
    /// Nothing was sent.
    pub(super) const fn new() -> Self {
        Self {
            most_bytes: 0,
            end: StreamOffset::ZERO,
        }
    }

    /// An ACK arrived, before which `outstanding_bytes` were outstanding: as many as at any time since
    /// the ACK before. After it SND.UNA is `una` and SND.NXT `nxt`. Returns the most of the round trip
    /// to which the ACK belongs, bytes.
    pub(super) fn on_ack(
        &mut self,
        outstanding_bytes: u64,
        una: StreamOffset,
        nxt: StreamOffset,
    ) -> u64 {
        let most_bytes = self.most_bytes.max(outstanding_bytes);
        self.most_bytes = most_bytes;
        if una >= self.end {
            self.end = nxt;
            // What the next round trip acknowledges was outstanding a moment ago, if there is any.
            self.most_bytes = if una < nxt { outstanding_bytes } else { 0 };
        }
        most_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::WindowUse;
    use crate::stream::StreamOffset;

    /// The use at each of some ACKs: outstanding before, SND.UNA and SND.NXT after.
    fn uses(acks: &[(u64, u64, u64)]) -> Vec<u64> {
        let mut window_use = WindowUse::new();
        let of = |(outstanding, una, nxt): &(u64, u64, u64)| {
            window_use.on_ack(*outstanding, StreamOffset(*una), StreamOffset(*nxt))
        };
        acks.iter().map(of).collect()
    }

    #[test]
    fn the_most_of_a_round_trip_counts_until_its_last_byte_is_acknowledged() {
        let flight = [(10, 2, 10), (8, 4, 10), (6, 9, 10), (1, 10, 10)];
        assert_eq!(uses(&flight), [10, 10, 10, 10]);
        // Three more are sent after it, or before its last ACK.
        let after = [(10, 2, 10), (8, 10, 10), (3, 11, 13), (2, 13, 13)];
        assert_eq!(uses(&after), [10, 10, 3, 3]);
        let before = [(10, 2, 10), (8, 9, 10), (4, 10, 13), (3, 12, 13)];
        assert_eq!(uses(&before), [10, 10, 10, 4]);
    }

    #[test]
    fn a_flight_that_grows_counts_as_soon_as_it_has_grown() {
        let growing = [(4, 2, 4), (6, 4, 8), (9, 6, 13), (7, 8, 13)];
        assert_eq!(uses(&growing), [4, 6, 9, 9]);
    }
}
