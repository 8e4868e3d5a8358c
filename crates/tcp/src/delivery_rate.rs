//! Samples of the delivery rate: how fast the path delivered the most recent flight
//! (draft-ietf-ccwg-bbr s4.1, before that draft-cheng-iccrg-delivery-rate-estimation).
//!
//! Reading first: a sample belongs to the newest transmission that an ACK reports. Its volume is what
//! was delivered since that transmission was sent, its interval the longer of the time in which the
//! sender sent it and the time in which ACKs reported it. So neither a burst nor ACKs that arrive
//! together exceed the rate of the path.
//!
//! What a sample needs of the moment of sending is kept in a `Stamp`, one for each moment at which
//! something was sent. An entry of the flight log is found by its `sent_at`; so the log has the same
//! size with all controllers, and only a connection that needs samples pays for stamps. It refuses
//! to judge a sample: that is the controller's matter. Bounded by [`STAMPS_MAX`]; a transmission
//! whose stamp was dropped gives no sample.

use std::collections::VecDeque;

use clock::{Duration, Instant};

use crate::flight::{ENTRIES_MAX, Flight, SegmentState, Transmission};
use crate::stream::StreamRange;

/// Most stamps of one connection: one for each entry that the log may have.
pub const STAMPS_MAX: usize = ENTRIES_MAX;
/// Stamps of transmissions that are no longer in the log are dropped when there are this many more
/// stamps than entries.
const STAMPS_SPARE: usize = 16;

/// The state of the connection when something was sent (the draft's per-packet state).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stamp {
    /// P.send_time.
    sent_at: Instant,
    /// P.first_send_time.
    first_sent_at: Instant,
    /// P.delivered_time.
    delivered_at: Instant,
    /// P.delivered, bytes.
    delivered: u64,
    /// P.lost, bytes.
    lost: u64,
    /// P.tx_in_flight, bytes: in the network after everything of this moment was sent.
    in_flight: u64,
    /// P.is_app_limited.
    is_limited: bool,
}

/// What one ACK says about the path (the draft's RS).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateSample {
    /// When the ACK arrived.
    pub now: Instant,
    /// Bytes a second; 0: none that can be trusted, because the interval was shorter than the least
    /// RTT, or because an ACK in it covers bytes that had arrived earlier.
    pub rate: u64,
    /// Bytes that this ACK newly reports.
    pub newly_delivered: u64,
    /// Bytes delivered over the interval.
    pub delivered: u64,
    /// Bytes delivered when the newest transmission that this ACK reports was sent.
    pub prior_delivered: u64,
    /// Bytes delivered since the connection began.
    pub delivered_total: u64,
    /// Bytes considered lost since that transmission was sent.
    pub lost: u64,
    /// Bytes in the network right after it was sent.
    pub in_flight_at_send: u64,
    /// The server had less to send than was permitted: the application, or the disk.
    pub is_limited: bool,
    /// RTT of the newest transmission that this ACK reports, if it was sent once.
    pub rtt: Option<Duration>,
    /// Bytes in the network after the ACK.
    pub in_flight: u64,
    /// The congestion window was used up when the ACK arrived.
    pub is_window_limited: bool,
}

/// A transmission that is considered lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LostTransmission {
    /// When that was detected.
    pub now: Instant,
    /// Its bytes.
    pub range: StreamRange,
    /// Bytes in the network right after it was sent.
    pub in_flight_at_send: u64,
    /// Bytes considered lost since it was sent, its own included.
    pub lost: u64,
    /// Bytes delivered since the connection began.
    pub delivered_total: u64,
    /// The server had less to send than was permitted when it was sent.
    pub is_limited: bool,
}

/// The newest transmission that the present ACK reports.
#[derive(Clone, Copy, Debug)]
struct Newest {
    /// Sent when, and up to where.
    key: (Instant, u64),
    stamp: Stamp,
    rtt: Option<Duration>,
}

/// The sampler of one connection.
#[derive(Clone, Debug, Default)]
pub struct DeliveryRate {
    stamps: VecDeque<Stamp>,
    /// C.delivered, bytes.
    delivered: u64,
    /// C.delivered_time.
    delivered_at: Instant,
    /// C.first_send_time.
    first_sent_at: Instant,
    /// C.lost, bytes.
    lost: u64,
    /// C.app_limited: samples are limited until so many bytes were delivered.
    limited_until: Option<u64>,
    /// C.delivered at the last ACK of which it is not known when its bytes arrived.
    unknown_until: u64,
    /// Of the present ACK.
    newest: Option<Newest>,
    /// Bytes that the present ACK reports.
    newly_delivered: u64,
    /// Since when something may be claimed that is not claimed yet.
    demanded_since: Option<Instant>,
}

impl DeliveryRate {
    /// Nothing was sent yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether samples of what is sent now are limited by the server.
    #[must_use]
    pub const fn is_limited(&self) -> bool {
        self.limited_until.is_some()
    }

    /// Less is sent than is permitted: samples are limited until everything that is `in_flight`
    /// (bytes) was delivered.
    pub fn mark_limited(&mut self, in_flight: u64) {
        self.limited_until = Some((self.delivered + in_flight).max(1));
    }

    /// The present ACK covers bytes that had arrived earlier, without a report: what was sent before it gives no rate.
    pub const fn mark_unknown(&mut self) {
        self.unknown_until = self.delivered;
    }

    /// Something may be claimed since `since`.
    pub fn on_demand(&mut self, since: Instant) {
        let earlier = self.demanded_since.map_or(since, |it| it.min(since));
        self.demanded_since = Some(earlier);
    }

    /// Nothing may be claimed now.
    pub const fn on_no_demand(&mut self) {
        self.demanded_since = None;
    }

    /// Something is claimed at `now`. Returns since when it could have been.
    pub fn on_claimed(&mut self, now: Instant) -> Instant {
        self.demanded_since.take().unwrap_or(now)
    }

    /// Something was sent; `in_flight_before` and `in_flight` are the bytes in the network before
    /// and after it.
    pub fn on_sent(&mut self, now: Instant, flight: &Flight, in_flight_before: u64) {
        if in_flight_before == 0 {
            self.first_sent_at = now;
            self.delivered_at = now;
        }
        let stamp = Stamp {
            sent_at: now,
            first_sent_at: self.first_sent_at,
            delivered_at: self.delivered_at,
            delivered: self.delivered,
            lost: self.lost,
            in_flight: flight.in_flight_bytes(),
            is_limited: self.is_limited(),
        };
        match self.stamps.back_mut() {
            Some(last) if last.sent_at == now => last.in_flight = stamp.in_flight,
            _ => {
                self.make_room(flight);
                self.stamps.push_back(stamp);
            }
        }
    }

    /// Drops stamps that no entry of the log refers to, and the oldest if that is not enough.
    fn make_room(&mut self, flight: &Flight) {
        if self.stamps.len() < (flight.entries() + STAMPS_SPARE).min(STAMPS_MAX) {
            return;
        }
        let is_undelivered = |entry: &&Transmission| entry.state != SegmentState::Sacked;
        let sent = flight.iter().filter(is_undelivered);
        let oldest = sent.map(|entry| entry.sent_at).min();
        while self
            .stamps
            .pop_front_if(|stamp| oldest.is_none_or(|oldest| stamp.sent_at < oldest))
            .is_some()
        {}
        if self.stamps.len() >= STAMPS_MAX {
            self.stamps.pop_front();
        }
    }

    fn stamp_of(&self, entry: &Transmission) -> Option<Stamp> {
        let sent_at = entry.sent_at;
        let found = self.stamps.binary_search_by_key(&sent_at, |it| it.sent_at);
        found.ok().and_then(|index| self.stamps.get(index).copied())
    }

    /// `entry` is newly known to have arrived.
    pub fn on_delivered(&mut self, now: Instant, entry: &Transmission) {
        let bytes = entry.range().bytes();
        self.delivered += bytes;
        self.delivered_at = now;
        self.newly_delivered += bytes;
        let key = (entry.sent_at, entry.end.0);
        if self.newest.is_some_and(|newest| key <= newest.key) {
            return;
        }
        let Some(stamp) = self.stamp_of(entry) else {
            return;
        };
        self.first_sent_at = entry.sent_at;
        self.newest = Some(Newest {
            key,
            stamp,
            rtt: (!entry.retransmitted).then(|| now.since(entry.sent_at)),
        });
    }

    /// `entry` is considered lost. `None` if its stamp was dropped.
    pub fn on_lost(&mut self, now: Instant, entry: &Transmission) -> Option<LostTransmission> {
        self.lost += entry.range().bytes();
        let stamp = self.stamp_of(entry)?;
        Some(LostTransmission {
            now,
            range: entry.range(),
            in_flight_at_send: stamp.in_flight,
            lost: self.lost - stamp.lost,
            delivered_total: self.delivered,
            is_limited: stamp.is_limited,
        })
    }

    /// The sample of the ACK whose deliveries and losses were just reported; `None` if it reports
    /// nothing new. `rtt_min` is the least RTT of the connection, `in_flight` what is in the network
    /// after the ACK.
    pub fn sample(
        &mut self,
        now: Instant,
        rtt_min: Duration,
        in_flight: u64,
        is_window_limited: bool,
    ) -> Option<RateSample> {
        self.limited_until = self.limited_until.filter(|until| self.delivered <= *until);
        let newly_delivered = core::mem::take(&mut self.newly_delivered);
        let Newest { stamp, rtt, .. } = self.newest.take()?;
        let send_elapsed = stamp.sent_at.since(stamp.first_sent_at);
        let interval = send_elapsed.max(now.since(stamp.delivered_at));
        let delivered = self.delivered - stamp.delivered;
        // A retransmission is acknowledged too soon if the first transmission arrived.
        let is_known = stamp.delivered >= self.unknown_until;
        let is_reliable = is_known && interval >= rtt_min && !interval.is_zero();
        let rate = u128::from(delivered) * 1_000_000_000 / interval.as_nanos().max(1);
        Some(RateSample {
            now,
            rate: if is_reliable {
                u64::try_from(rate).unwrap_or(u64::MAX)
            } else {
                0
            },
            newly_delivered,
            delivered,
            prior_delivered: stamp.delivered,
            delivered_total: self.delivered,
            lost: self.lost - stamp.lost,
            in_flight_at_send: stamp.in_flight,
            is_limited: stamp.is_limited,
            rtt,
            in_flight,
            is_window_limited,
        })
    }
}

#[cfg(test)]
mod tests {
    use clock::{Duration, Instant};

    use super::{DeliveryRate, RateSample, STAMPS_MAX};
    use crate::flight::Flight;
    use crate::stream::{StreamOffset, StreamRange};

    const RTT: Duration = Duration::from_millis(100);

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn range(start: u64, end: u64) -> StreamRange {
        StreamRange::new(StreamOffset(start), StreamOffset(end))
    }

    /// A flight and its sampler.
    #[derive(Default)]
    struct Sender {
        flight: Flight,
        rate: DeliveryRate,
        sent: u64,
    }

    impl Sender {
        fn send(&mut self, millis: u64, bytes: u64) {
            let before = self.flight.in_flight_bytes();
            self.flight
                .push(at(millis), range(self.sent, self.sent + bytes));
            self.sent += bytes;
            self.rate.on_sent(at(millis), &self.flight, before);
        }

        fn send_again(&mut self, millis: u64, start: u64, end: u64) {
            let before = self.flight.in_flight_bytes();
            self.flight.on_retransmitted(at(millis), range(start, end));
            self.rate.on_sent(at(millis), &self.flight, before);
        }

        fn lose(&mut self, millis: u64, end: u64) -> Vec<super::LostTransmission> {
            let mut all = Vec::new();
            self.flight.mark_lost(|entry| {
                let is_lost = entry.end.0 <= end;
                if is_lost {
                    all.extend(self.rate.on_lost(at(millis), entry));
                }
                is_lost
            });
            all
        }

        fn sack(&mut self, millis: u64, start: u64, end: u64) -> Option<RateSample> {
            self.flight.sack(range(start, end), |entry| {
                self.rate.on_delivered(at(millis), entry);
            });
            self.sample(millis)
        }

        fn acknowledge(&mut self, millis: u64, end: u64) -> Option<RateSample> {
            self.flight.acknowledge(StreamOffset(end), |entry| {
                self.rate.on_delivered(at(millis), entry);
            });
            self.sample(millis)
        }

        fn sample(&mut self, millis: u64) -> Option<RateSample> {
            let in_flight = self.flight.in_flight_bytes();
            self.rate.sample(at(millis), RTT, in_flight, false)
        }
    }

    #[test]
    fn a_flight_delivered_within_a_round_trip_is_its_bytes_over_the_round_trip() {
        let mut sender = Sender::default();
        sender.send(1000, 10_000);
        let sample = sender.acknowledge(1100, 10_000).expect("data");
        assert_eq!(sample.rate, 100_000);
        assert_eq!((sample.delivered, sample.newly_delivered), (10_000, 10_000));
        assert_eq!((sample.in_flight_at_send, sample.in_flight), (10_000, 0));
        assert_eq!(sample.rtt, Some(RTT));
        assert_eq!(sender.acknowledge(1101, 10_000), None, "nothing new");
    }

    #[test]
    fn acks_that_arrive_together_do_not_exceed_the_rate_of_sending() {
        let mut sender = Sender::default();
        // 1000 bytes each 10 ms: 100 KB a second. The ACKs of the second half come at one moment.
        for number in 0..20 {
            sender.send(1000 + 10 * number, 1000);
            if number >= 10 {
                let sample = sender.acknowledge(1000 + 10 * number, (number - 9) * 1000);
                assert!(sample.expect("data").rate <= 100_000, "{number}");
            }
        }
        let sample = sender.acknowledge(1290, 20_000).expect("data");
        // 11 000 bytes in the longer of 110 ms of sending and 110 ms of ACKs.
        assert_eq!((sample.delivered, sample.rate), (11_000, 100_000));
        // Sent in one burst, reported over 200 ms: the ACKs are the limit.
        let mut sender = Sender::default();
        sender.send(1000, 20_000);
        let _ = sender.acknowledge(1100, 10_000);
        let sample = sender.acknowledge(1200, 20_000).expect("data");
        assert_eq!(sample.rate, 100_000);
    }

    #[test]
    fn an_idle_time_before_a_flight_does_not_count() {
        let mut sender = Sender::default();
        sender.send(1000, 1000);
        let _ = sender.acknowledge(1100, 1000);
        sender.send(9000, 10_000);
        let sample = sender.acknowledge(9100, 11_000).expect("data");
        assert_eq!(sample.rate, 100_000);
    }

    #[test]
    fn an_interval_below_the_least_round_trip_gives_no_rate() {
        let mut sender = Sender::default();
        sender.send(1000, 1000);
        sender.send(1010, 1000);
        let _ = sender.sack(1110, 1000, 2000);
        let _ = sender.lose(1150, 1000);
        sender.send_again(1150, 0, 1000);
        // The first transmission arrives after all.
        let soon = sender.acknowledge(1249, 2000).expect("data");
        assert_eq!((soon.rate, soon.rtt), (0, None));
        let mut sender = Sender::default();
        sender.send(1000, 1000);
        let exact = sender.acknowledge(1100, 1000).expect("data");
        assert_eq!(exact.rate, 10_000);
    }

    #[test]
    fn what_was_sent_before_an_ack_that_covers_earlier_arrivals_gives_no_rate() {
        let mut sender = Sender::default();
        sender.send(1000, 1000);
        sender.send(1050, 9000);
        let _ = sender.lose(1150, 1000);
        sender.send_again(1150, 0, 1000);
        let rate_of =
            |sender: &mut Sender, millis, end| sender.acknowledge(millis, end).expect("data").rate;
        sender.send(1200, 1000);
        // The ACK of the retransmission covers 9000 bytes that arrived a round trip ago.
        sender.flight.acknowledge(StreamOffset(10_000), |entry| {
            sender.rate.on_delivered(at(1250), entry);
        });
        sender.rate.mark_unknown();
        assert_eq!(sender.sample(1250).expect("data").rate, 0);
        sender.send(1260, 1000);
        assert_eq!(rate_of(&mut sender, 1300, 11_000), 0, "sent before it");
        assert_eq!(rate_of(&mut sender, 1360, 12_000), 18_181);
    }

    #[test]
    fn samples_are_limited_until_what_was_in_flight_is_delivered() {
        let mut sender = Sender::default();
        sender.send(1000, 3000);
        sender.rate.mark_limited(sender.flight.in_flight_bytes());
        sender.send(1001, 1000);
        let sample = sender.acknowledge(1100, 3000).expect("data");
        assert!(!sample.is_limited, "sent before");
        assert!(sender.rate.is_limited(), "delivered exactly up to the mark");
        sender.send(1101, 1000);
        let sample = sender.acknowledge(1102, 4000).expect("data");
        assert!(sample.is_limited);
        assert!(!sender.rate.is_limited());
        sender.send(1103, 1000);
        let sample = sender.acknowledge(1201, 5000).expect("data");
        assert!(sample.is_limited, "sent while it was limited");
        let sample = sender.acknowledge(1203, 6000).expect("data");
        assert!(!sample.is_limited);
    }

    #[test]
    fn losses_are_counted_from_the_moment_of_sending() {
        let mut sender = Sender::default();
        sender.send(1000, 1000);
        sender.send(1001, 1000);
        sender.send(1002, 1000);
        let sample = sender.sack(1102, 2000, 3000).expect("data");
        assert_eq!(sample.lost, 0);
        let lost = sender.lose(1103, 2000);
        let figures: Vec<_> = lost
            .iter()
            .map(|it| (it.range.start.0, it.lost, it.in_flight_at_send))
            .collect();
        assert_eq!(figures, [(0, 1000, 1000), (1000, 2000, 2000)]);
        sender.send_again(1103, 0, 2000);
        let sample = sender.acknowledge(1203, 3000).expect("data");
        assert_eq!(sample.lost, 0, "sent after they were detected");
        assert_eq!(sample.rtt, None, "sent twice");
    }

    #[test]
    fn what_is_sent_at_one_moment_has_one_stamp() {
        let mut sender = Sender::default();
        sender.send(1000, 1000);
        sender.send(1000, 500);
        assert_eq!(sender.rate.stamps.len(), 1);
        let sample = sender.acknowledge(1100, 1000).expect("data");
        assert_eq!(sample.in_flight_at_send, 1500);
    }

    #[test]
    fn stamps_are_dropped_with_their_transmissions_and_bounded() {
        let mut sender = Sender::default();
        for number in 0..1000 {
            sender.send(1000 + number, 1000);
            let _ = sender.acknowledge(1000 + number, (number + 1) * 1000 - 500);
        }
        assert!(sender.rate.stamps.len() < 20, "two entries in the log");
        // An old hole keeps all stamps behind it, up to the bound.
        for number in 0..2 * STAMPS_MAX as u64 {
            sender.send(3000 + number, 1000);
            let end = sender.sent;
            let _ = sender.sack(3000 + number, end - 1000, end);
        }
        assert_eq!(sender.rate.stamps.len(), STAMPS_MAX);
        let end = sender.sent;
        assert_eq!(
            sender.acknowledge(9000, end),
            None,
            "the stamp was dropped, and there is no sample"
        );
        assert_eq!(sender.rate.delivered, end);
    }
}
