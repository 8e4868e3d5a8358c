//! Which connections the server may have had at each moment, as a capture at its link shows it, and so
//! whether its connection table may have been full when it refused a client or closed an idle one.
//!
//! A connection has an entry from the segment that completes its handshake until it is certain that
//! the server has none left: the last of both FINs is acknowledged, or one end has reset it. So the
//! count is never less than what the server has. It is more for a while where the server alone knows of
//! the end: a timeout without a FIN, or an eviction until its client answers the FIN.
//!
//! With several workers each has a table, and a connection is in that of the worker that sent its SYN-ACK.
//! A stray may be handled long after it reached the link: until then it ends nothing.
//!
//! It refuses to ask the server. Bounded by the segments of a run: a few words for each four-tuple.

use std::collections::BTreeMap;

use clock::{Duration, Instant};

use crate::atlas::MAC;
use crate::scenario::PORT;
use crate::segment::{End, Segment};

/// A connection that has waited for a request for less than this is not closed to make room
/// (docs/develop/decisions/0017-abuse-at-connection-setup.md).
const IDLE_MIN: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Occupancy {
    /// By client.
    records: BTreeMap<(End, End), Record>,
}

/// What is known of a four-tuple.
#[derive(Debug, Default)]
struct Record {
    /// Sequence numbers of the SYN-ACKs that were sent, and the workers that sent them.
    offers: Vec<(u32, usize)>,
    /// When the first segment arrived that the server has not answered.
    unanswered_since: Option<Instant>,
    /// The connections that had it, the latest last.
    stays: Vec<Stay>,
    /// Resets that answered a SYN or the end of a handshake.
    refusals: Vec<Refusal>,
    /// When the server sent a FIN to a connection that it may close to make room, and which worker did.
    idle_closes: Vec<(Instant, usize)>,
}

/// A reset that answered a SYN or the end of a handshake.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    /// When what it answers arrived.
    asked_at: Instant,
    at: Instant,
    /// Who sent it.
    worker: usize,
}

/// A connection's time in the table.
#[derive(Debug)]
struct Stay {
    /// Whose table it is.
    worker: usize,
    from: Instant,
    /// `None`: it may be there still.
    until: Option<Instant>,
    /// The server has sent something other than a reset: it has, or had, the connection.
    is_confirmed: bool,
    /// Whether a reset of the client ended it; what the server sends after that shows that it did not.
    is_reset_by_client: bool,
    /// Behind what has arrived of the client's in order, and of that what the server acknowledged.
    client_end: u32,
    server_ack: u32,
    /// Behind what the server has sent, and of that what the client acknowledged.
    server_end: u32,
    client_ack: u32,
    /// Behind each end's FIN. One of the client's may be forged.
    client_fins: Vec<u32>,
    server_fin: Option<u32>,
    /// Whether the client has certainly acknowledged the server's.
    is_fin_acked: bool,
    /// When the handshake ended, or the client last acknowledged new data, or the server sent some.
    active_at: Instant,
    /// What arrived of the client's in order after the last data that the server sent.
    arrivals: Vec<Arrival>,
}

/// Text or a FIN of a client's.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    /// Behind it.
    end: u32,
    at: Instant,
    has_text: bool,
}

impl Occupancy {
    /// A frame reached the server.
    pub(crate) fn on_received(&mut self, now: Instant, frame: &[u8]) {
        let segment = Segment::parse_valid(frame).filter(|it| it.destination_mac == MAC.0);
        let Some(segment) = segment else { return };
        let ends = (segment.destination, segment.source);
        let record = self.records.entry(ends).or_default();
        record.unanswered_since.get_or_insert(now);
        record.on_received(now, &segment);
    }

    /// The worker that has the connection of a stray may handle it only now.
    pub(crate) fn on_stray(&mut self, now: Instant, (server, client): (End, End)) {
        let record = self.records.get_mut(&(server, client));
        for stay in record.into_iter().flat_map(|record| &mut record.stays) {
            stay.until = stay.until.map(|until| until.max(now));
        }
    }

    /// A worker of the server sent a frame.
    pub(crate) fn on_sent(&mut self, now: Instant, worker: usize, frame: &[u8]) {
        let Some(segment) = Segment::parse(frame) else {
            return;
        };
        let ends = (segment.source, segment.destination);
        let record = self.records.entry(ends).or_default();
        record.on_sent(now, worker, &segment);
        record.unanswered_since = None;
    }

    /// Whether the server may have refused a connection of this four-tuple, or closed it while it
    /// waited for a request, because `connections_max` others had the worker's table.
    pub(crate) fn was_full_for(&self, server: End, client: End, connections_max: usize) -> bool {
        let Some(record) = self.records.get(&(server, client)) else {
            return false;
        };
        let refused = |it: &Refusal| self.most(it.worker, it.asked_at, it.at) >= connections_max;
        // The newcomer, which is in the table now, is one more.
        let evicted =
            |(at, worker): &(Instant, usize)| self.most(*worker, *at, *at) > connections_max;
        record.refusals.iter().any(refused) || record.idle_closes.iter().any(evicted)
    }

    /// Most connections of a worker at a moment of this time, ends included.
    fn most(&self, worker: usize, from: Instant, to: Instant) -> usize {
        let stays = || {
            let stays = self.records.values().flat_map(|record| &record.stays);
            stays.filter(|stay| stay.worker == worker)
        };
        let at = |moment: Instant| stays().filter(|stay| stay.covers(moment)).count();
        let begun = stays().map(|stay| stay.from);
        let begun = begun.filter(|begun| (from..=to).contains(begun));
        begun.chain([from]).map(at).max().unwrap_or(0)
    }
}

impl Record {
    fn on_received(&mut self, now: Instant, segment: &Segment<'_>) {
        let current = self.stays.last_mut().filter(|stay| stay.until.is_none());
        if let Some(stay) = current {
            stay.on_received(now, segment);
            return;
        }
        let completes =
            |(iss, _): &&(u32, usize)| segment.acknowledgment == Some(iss.wrapping_add(1));
        if !segment.is_syn
            && !segment.is_reset
            && let Some(&(_, worker)) = self.offers.iter().find(completes)
        {
            self.stays.push(Stay::new(now, worker, segment));
        }
    }

    fn on_sent(&mut self, now: Instant, worker: usize, segment: &Segment<'_>) {
        if segment.is_syn {
            let offer = (segment.sequence, worker);
            if !self.offers.contains(&offer) {
                self.offers.push(offer);
            }
            return;
        }
        let asked_at = self.unanswered_since.unwrap_or(now);
        let refusal = |asked_at| Refusal {
            asked_at,
            at: now,
            worker,
        };
        let Some(stay) = self.stays.last_mut() else {
            if segment.is_reset {
                self.refusals.push(refusal(asked_at));
            }
            return;
        };
        if segment.is_reset && segment.acknowledgment.is_some() && worker != stay.worker {
            // It answers a SYN that reached another worker than has the connection.
            self.refusals.push(refusal(asked_at));
            return;
        }
        // A reset without ACK answers a segment of no connection (RFC 9293 s3.10.7.1).
        let is_unknown = segment.is_reset && segment.acknowledgment.is_none();
        if is_unknown && !stay.is_confirmed && stay.until.is_none() {
            let answers = |(iss, _): &(u32, usize)| segment.sequence == iss.wrapping_add(1);
            if !self.offers.iter().any(answers) {
                // It answers a segment that acknowledged something else, before the handshake ended
                // (RFC 9293 s3.10.7.4, SYN-RECEIVED).
                return;
            }
            // It never was in the table.
            let from = stay.from.min(asked_at);
            self.refusals.push(refusal(from));
            self.stays.pop();
        } else if segment.is_reset {
            stay.until.get_or_insert(now);
        } else if stay.on_sent(now, segment) {
            self.idle_closes.push((now, worker));
        }
    }
}

impl Stay {
    fn new(now: Instant, worker: usize, segment: &Segment<'_>) -> Self {
        let mut stay = Self {
            worker,
            from: now,
            until: None,
            is_confirmed: false,
            is_reset_by_client: false,
            client_end: segment.sequence,
            server_ack: segment.sequence,
            server_end: segment.acknowledgment.unwrap_or_default(),
            client_ack: segment.acknowledgment.unwrap_or_default(),
            client_fins: Vec::new(),
            server_fin: None,
            is_fin_acked: false,
            active_at: now,
            arrivals: Vec::new(),
        };
        stay.on_received(now, segment);
        stay
    }

    fn covers(&self, moment: Instant) -> bool {
        self.from <= moment && self.until.is_none_or(|until| moment <= until)
    }

    fn on_received(&mut self, now: Instant, segment: &Segment<'_>) {
        if segment.is_reset {
            // What the server has received and not acknowledged is behind its RCV.NXT all the same: a
            // reset of the last that it acknowledged may be one that it drops (RFC 5961 s3.2).
            if segment.sequence == self.client_end {
                self.is_reset_by_client = true;
                self.until = Some(now);
            }
            return;
        }
        let is_next = !is_after(segment.sequence, self.client_end)
            && !is_after(self.client_end, segment.end());
        if let Some(acknowledgment) = segment.acknowledgment
            && !is_after(acknowledgment, self.server_end)
        {
            if is_after(acknowledgment, self.client_ack) {
                self.client_ack = acknowledgment;
                self.active_at = now;
            }
            // Others may be forged, and the server answers them without a look at what they acknowledge.
            self.is_fin_acked |= is_next && self.server_fin == Some(acknowledgment);
        }
        if is_next && is_after(segment.end(), self.client_end) {
            self.client_end = segment.end();
            self.arrivals.push(Arrival {
                end: segment.end(),
                at: now,
                has_text: !segment.payload.is_empty(),
            });
        }
        if segment.is_fin {
            self.client_fins.push(segment.end());
        }
        self.end_if_closed(now);
    }

    /// The server sent this. Returns whether it is the FIN of a connection that waits for a request.
    fn on_sent(&mut self, now: Instant, segment: &Segment<'_>) -> bool {
        self.is_confirmed = true;
        if core::mem::take(&mut self.is_reset_by_client) {
            self.until = None;
        }
        self.server_ack = segment.acknowledgment.unwrap_or(self.server_ack);
        if is_after(self.server_ack, self.client_end) {
            self.client_end = self.server_ack;
        }
        if is_after(segment.end(), self.server_end) {
            self.server_end = segment.end();
        }
        let is_first_fin = segment.is_fin && self.server_fin.is_none();
        // A `close_notify` may be in the FIN's segment.
        let is_idle = self.client_ack == segment.sequence && self.was_idle(now, segment);
        if segment.is_fin {
            self.server_fin = Some(segment.end());
        }
        if !segment.payload.is_empty() {
            self.active_at = now;
            self.arrivals.clear();
        }
        self.end_if_closed(now);
        is_first_fin && is_idle
    }

    /// Whether the connection had waited for a request for long enough when the server decided to send this
    /// FIN. What the FIN does not acknowledge came later: behind the newcomer's segment in one batch of
    /// frames, or while the FIN waited for room in the link.
    fn was_idle(&self, now: Instant, fin: &Segment<'_>) -> bool {
        let taken = self.arrivals.iter();
        let taken = taken.filter(|arrival| !is_after(arrival.end, self.server_ack));
        let active_at = taken.clone().map(|arrival| arrival.at).max();
        let active_at = active_at.max(Some(self.active_at));
        // What TLS has to answer is not known here.
        let is_asking = fin.source.1 == PORT && taken.clone().any(|arrival| arrival.has_text);
        active_at.is_none_or(|at| now.since(at) >= IDLE_MIN) && !is_asking
    }

    fn end_if_closed(&mut self, now: Instant) {
        let both = self.is_fin_acked && self.client_fins.contains(&self.server_ack);
        if both && self.until.is_none() {
            self.until = Some(now);
        }
    }
}

/// Whether a sequence number is after another, modulo 2^32.
const fn is_after(this: u32, other: u32) -> bool {
    this.wrapping_sub(other).cast_signed() > 0
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use clock::{Duration, Instant};
    use wire::{MacAddress, Route, SeqNumber, TcpFlags, TcpOptions, TcpRepr};

    use super::{IDLE_MIN, Occupancy};
    use crate::atlas::MAC;
    use crate::crafted;
    use crate::scenario::PORT;
    use crate::segment::End;

    const ISS: u32 = u32::MAX - 3;
    const CLIENT_ISS: u32 = u32::MAX - 5;
    const ACK: TcpFlags = TcpFlags::ACK;

    fn server() -> End {
        (Ipv4Addr::new(10, 0, 0, 1).into(), PORT)
    }

    fn client(number: u8) -> End {
        (Ipv4Addr::new(10, 0, 1, number).into(), 40_000)
    }

    /// A segment: offsets are counted from each end's SYN.
    fn frame(from: End, to: End, flags: TcpFlags, numbers: (u32, u32), payload: &[u8]) -> Vec<u8> {
        let route = Route {
            source_mac: MacAddress([2, 0, 0, 0, 0, 9]),
            destination_mac: MAC,
            source: from.0,
            destination: to.0,
        };
        let segment = TcpRepr {
            source_port: from.1,
            destination_port: to.1,
            sequence: SeqNumber(numbers.0),
            acknowledgment: SeqNumber(numbers.1),
            flags,
            window: 100,
            options: TcpOptions::default(),
        };
        crafted::tcp(&route, &segment, payload)
    }

    #[derive(Default)]
    struct Bench {
        occupancy: Occupancy,
        millis: u64,
        /// Who sends what the server sends.
        worker: usize,
    }

    impl Bench {
        fn pass(&mut self, time: Duration) {
            self.millis += u64::try_from(time.as_millis()).expect("short");
        }

        fn now(&self) -> Instant {
            Instant::from_millis(self.millis)
        }

        /// A segment of a client.
        fn hears(&mut self, number: u8, flags: TcpFlags, offset: u32, ack: u32, payload: &[u8]) {
            let numbers = (CLIENT_ISS.wrapping_add(offset), ISS.wrapping_add(ack));
            let frame = frame(client(number), server(), flags, numbers, payload);
            self.occupancy.on_received(self.now(), &frame);
        }

        /// A segment of the server's.
        fn says(&mut self, number: u8, flags: TcpFlags, offset: u32, ack: u32, payload: &[u8]) {
            let numbers = (ISS.wrapping_add(offset), CLIENT_ISS.wrapping_add(ack));
            let frame = frame(server(), client(number), flags, numbers, payload);
            self.occupancy.on_sent(self.now(), self.worker, &frame);
        }

        fn complete_handshake(&mut self, number: u8) {
            self.pass(Duration::from_millis(1));
            self.hears(number, TcpFlags::SYN, 0, 0, b"");
            self.says(number, TcpFlags::SYN.union(ACK), 0, 1, b"");
            self.hears(number, ACK, 1, 1, b"");
        }

        /// A handshake, a request and its reply, of 4 bytes each.
        fn serve(&mut self, number: u8) {
            self.complete_handshake(number);
            self.hears(number, ACK, 1, 1, b"get ");
            self.says(number, ACK, 1, 5, b"body");
            self.hears(number, ACK, 5, 5, b"");
        }

        fn refuse_at_handshake(&mut self, number: u8) {
            self.complete_handshake(number);
            self.says(number, TcpFlags::RST, 1, 0, b"");
        }

        /// A SYN that is refused at once.
        fn refuse_at(&mut self, now: Instant, number: u8) {
            assert_eq!(self.now(), now);
            self.hears(number, TcpFlags::SYN, 0, 0, b"");
            self.says(number, TcpFlags::RST.union(ACK), 0, 1, b"");
        }

        /// The largest table that may have been full for the client.
        fn full(&self, number: u8) -> usize {
            let is_full =
                |most: &usize| self.occupancy.was_full_for(server(), client(number), *most);
            (1..9).take_while(is_full).count()
        }
    }

    #[test]
    fn a_table_is_full_while_its_connections_are_open() {
        let mut bench = Bench::default();
        for number in 0..3 {
            bench.serve(number);
        }
        bench.refuse_at_handshake(3);
        assert_eq!(bench.full(3), 3);
        // A refused SYN; the client that was refused before does not count.
        bench.hears(4, TcpFlags::SYN, 0, 0, b"");
        bench.says(4, TcpFlags::RST.union(ACK), 0, 1, b"");
        assert_eq!(bench.full(4), 3);
        assert_eq!(bench.full(0), 0, "it was served");
        assert_eq!(bench.full(9), 0, "it never came");
    }

    #[test]
    fn each_worker_has_a_table_and_what_it_refuses_is_judged_by_its_own() {
        let mut bench = Bench::default();
        for number in 0..3 {
            bench.serve(number);
        }
        bench.worker = 1;
        bench.serve(3);
        bench.refuse_at_handshake(4);
        assert_eq!(bench.full(4), 1);
        // A SYN with the four-tuple of a connection, at another worker than has that.
        bench.hears(0, TcpFlags::SYN, 90, 1, b"");
        bench.says(0, TcpFlags::RST.union(ACK), 0, 91, b"");
        assert_eq!(bench.full(0), 1);
        bench.worker = 0;
        bench.refuse_at_handshake(5);
        assert_eq!(bench.full(5), 3, "that one is in the table still");
    }

    #[test]
    fn a_stray_ends_nothing_before_it_is_handled() {
        let mut bench = Bench::default();
        bench.serve(0);
        bench.hears(0, TcpFlags::RST, 5, 5, b"");
        bench.pass(Duration::from_millis(5));
        let now = bench.now();
        bench.occupancy.on_stray(now, (server(), client(0)));
        bench.refuse_at(now, 1);
        assert_eq!(bench.full(1), 1);
        bench.pass(Duration::from_millis(5));
        bench.refuse_at_handshake(2);
        assert_eq!(bench.full(2), 0);
    }

    #[test]
    fn half_open_connections_are_not_in_the_table() {
        let mut bench = Bench::default();
        bench.serve(0);
        bench.hears(1, TcpFlags::SYN, 0, 0, b"");
        bench.says(1, TcpFlags::SYN.union(ACK), 0, 1, b"");
        // An ACK of something else.
        bench.hears(1, ACK, 1, 77, b"");
        bench.refuse_at_handshake(2);
        assert_eq!(bench.full(2), 1);
    }

    #[test]
    fn a_reset_of_what_was_acknowledged_before_the_handshake_refuses_nobody() {
        let mut bench = Bench::default();
        bench.hears(0, TcpFlags::SYN, 0, 0, b"");
        bench.says(0, TcpFlags::SYN.union(ACK), 0, 1, b"");
        // An ACK of something else, and the end of the handshake before the server answers.
        bench.hears(0, ACK, 1, 77, b"");
        bench.hears(0, ACK, 1, 1, b"get ");
        bench.says(0, TcpFlags::RST, 77, 0, b"");
        bench.refuse_at_handshake(1);
        assert_eq!(bench.full(1), 1);
        bench.says(0, ACK, 1, 5, b"body");
        bench.refuse_at_handshake(2);
        assert_eq!(bench.full(2), 1);
    }

    #[test]
    fn a_connection_leaves_with_the_acknowledgment_of_both_fins() {
        let fin = TcpFlags::FIN.union(ACK);
        let mut bench = Bench::default();
        bench.serve(0);
        bench.pass(Duration::from_millis(1));
        bench.hears(0, fin, 5, 5, b"");
        bench.says(0, fin, 5, 6, b"");
        bench.refuse_at_handshake(1);
        assert_eq!(bench.full(1), 1);
        // Forged: it acknowledges what the server has not sent.
        bench.hears(0, ACK, 6, 600, b"");
        bench.refuse_at_handshake(2);
        assert_eq!(bench.full(2), 1);
        // Forged: its sequence number is outside the window.
        bench.hears(0, ACK, 600, 6, b"");
        bench.refuse_at_handshake(4);
        assert_eq!(bench.full(4), 1);
        bench.hears(0, ACK, 6, 6, b"");
        bench.refuse_at_handshake(3);
        assert_eq!(bench.full(3), 0);
    }

    #[test]
    fn a_connection_leaves_with_a_reset_that_counts() {
        let mut bench = Bench::default();
        bench.serve(0);
        bench.hears(0, TcpFlags::RST, 60, 0, b"");
        bench.refuse_at_handshake(1);
        assert_eq!(bench.full(1), 1, "a reset elsewhere in the window");
        bench.hears(0, ACK, 5, 5, b"get ");
        bench.hears(0, TcpFlags::RST, 5, 0, b"");
        bench.refuse_at_handshake(5);
        assert_eq!(
            bench.full(5),
            1,
            "a reset of the last acknowledged, overtaken by data"
        );
        bench.hears(0, TcpFlags::RST, 9, 0, b"");
        bench.refuse_at_handshake(2);
        assert_eq!(bench.full(2), 0);
        // The server did not take it: it goes on.
        bench.says(0, ACK, 5, 9, b"");
        bench.refuse_at_handshake(3);
        assert_eq!(bench.full(3), 1);
        bench.says(0, TcpFlags::RST.union(ACK), 5, 9, b"");
        bench.refuse_at_handshake(4);
        assert_eq!(bench.full(4), 0);
    }

    /// Client 0 is served and closed by a FIN, when client 1 has come so much later. Of its next request,
    /// which comes early, the FIN acknowledges this much.
    fn closed_after(idle: Duration, request: &[u8], taken: u32) -> Bench {
        let mut bench = Bench::default();
        bench.serve(0);
        bench.pass(Duration::from_millis(5));
        bench.hears(0, ACK, 5, 5, request);
        bench.pass(idle - Duration::from_millis(6));
        bench.complete_handshake(1);
        bench.says(0, TcpFlags::FIN.union(ACK), 5, 5 + taken, b"");
        bench
    }

    #[test]
    fn an_idle_connection_makes_room_after_a_second() {
        let millisecond = Duration::from_millis(1);
        assert_eq!(closed_after(IDLE_MIN, b"", 0).full(0), 1);
        assert_eq!(closed_after(IDLE_MIN - millisecond, b"", 0).full(0), 0);
        let asked = closed_after(IDLE_MIN * 2, b"get ", 4);
        assert_eq!(asked.full(0), 0, "its request has arrived");
    }

    /// Its request came in the batch of frames that completed the newcomer's handshake, behind that.
    #[test]
    fn a_request_that_the_fin_does_not_acknowledge_came_too_late() {
        let millisecond = Duration::from_millis(1);
        for (idle, taken, full) in [
            (IDLE_MIN, 0, 1),
            (IDLE_MIN - millisecond, 0, 0),
            (IDLE_MIN * 2, 4, 0),
        ] {
            let mut bench = closed_after(idle, b"get ", taken);
            assert_eq!(bench.full(0), full, "{idle:?}, {taken} bytes taken");
            // The FIN alone counts, not what is sent again.
            bench.says(0, TcpFlags::FIN.union(ACK), 5, 5, b"");
            assert_eq!(bench.full(0), full, "{idle:?}, {taken} bytes taken");
        }
        // Half of the request was taken before the newcomer came, half came behind it.
        let mut bench = Bench::default();
        bench.serve(0);
        bench.hears(0, ACK, 5, 5, b"ge");
        bench.pass(IDLE_MIN);
        bench.complete_handshake(1);
        bench.hears(0, ACK, 7, 5, b"t ");
        bench.says(0, TcpFlags::FIN.union(ACK), 5, 7, b"");
        assert_eq!(bench.full(0), 0, "some of its request has arrived");
    }

    #[test]
    fn a_damaged_segment_changes_nothing() {
        let mut bench = Bench::default();
        bench.serve(0);
        let numbers = (CLIENT_ISS.wrapping_add(5), 0);
        let reset = frame(client(0), server(), TcpFlags::RST, numbers, b"");
        // The address it is for, a source that is a group, a port, the checksum.
        for (number, place) in (1..).zip([5, 6, 35, 51]) {
            let mut damaged = reset.clone();
            damaged[place] ^= 1;
            bench.occupancy.on_received(bench.now(), &damaged);
            bench.refuse_at_handshake(number);
            assert_eq!(bench.full(number), 1, "byte {place}");
        }
        bench.occupancy.on_received(bench.now(), &reset);
        bench.refuse_at_handshake(9);
        assert_eq!(bench.full(9), 0);
    }
}
