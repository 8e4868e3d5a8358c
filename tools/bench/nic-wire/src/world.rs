//! What all connections share: paths, counts, what is due to be sent, whose turn it is to ask.
//!
//! No clock and no I/O: the loop says what time it is and which connection is at work. It refuses
//! nothing. Bounded by what the connections send, see [`Schedule`].

use clock::Instant;
use testbed::latency::Latency;
use wire::SeqNumber;

use crate::client::{Event, Fault, TlsClient, Transmit, Watched, World};
use crate::engine::Plan;
use crate::pace::Pace;
use crate::report::Counts;
use crate::samples;
use crate::schedule::Schedule;
use crate::tally::Tallies;
use crate::visits::Visits;
use crate::watches::Watches;

/// What an MSS is less than the MTU: headers of IPv4 and TCP without options (RFC 9293 s3.7.1).
const HEADERS_BYTES: u16 = 40;

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Around {
    pub(crate) plan: Plan,
    pub(crate) counts: Counts,
    pub(crate) first_byte: Latency,
    pub(crate) whole: Latency,
    pub(crate) outgoing: Schedule<(u32, Transmit)>,
    /// The connection at work.
    pub(crate) current: u32,
    pub(crate) now: Instant,
    pub(crate) failed: Option<Fault>,
    /// Connections to open again.
    pub(crate) reopen: Vec<u32>,
    pub(crate) pace: Pace,
    pub(crate) tallies: Tallies,
    pub(crate) visits: Visits,
    /// The visit at work is over; whether its object came.
    pub(crate) visit_over: Option<bool>,
    /// What the BPF program knows of each connection.
    pub(crate) watches: Watches,
    /// What is said about the fault that comes next.
    pub(crate) explanation: Option<String>,
}

impl World for Around {
    fn next_path(&mut self) -> Option<u32> {
        if self.visits.has(self.current) {
            let asks = self.visits.asks(self.current);
            return self.plan.paths.visit().filter(|_| asks);
        }
        if !self.pace.may_ask(self.current, self.now) {
            return None;
        }
        let path = self.plan.paths.take_next()?;
        self.counts.requests += 1;
        Some(path)
    }

    fn request(&self, path: u32) -> &str {
        self.plan.paths.request(path)
    }

    fn object_bytes(&self, path: u32) -> u64 {
        self.plan.paths.size(path)
    }

    fn is_content(&mut self, path: u32, offset: u64, bytes: &[u8]) -> bool {
        let name = self.plan.paths.path(path);
        self.counts.compared_bytes += bytes.len() as u64;
        samples::is_content(name, offset, bytes)
    }

    fn send(&mut self, transmit: Transmit) {
        let due = self.now + self.plan.distances.of(self.current);
        self.outgoing.push(due, (self.current, transmit));
    }

    fn on(&mut self, event: Event) {
        if self.visits.has(self.current) {
            return self.on_visit(event);
        }
        let counts = &mut self.counts;
        match event {
            Event::Connected => counts.connects += 1,
            Event::Secured => counts.handshakes += 1,
            Event::Records(records) => counts.records += u64::from(records),
            Event::Refused => counts.refused += 1,
            Event::FirstByte(after) => self.first_byte.record(after),
            Event::Body(bytes) => {
                counts.body_bytes += u64::from(bytes);
                self.tallies.on_body(self.lasting(), bytes);
            }
            Event::Replied(_, after) => {
                counts.replies += 1;
                if self.current >= self.plan.addresses.unsampled {
                    counts.sampled_replies += 1;
                }
                self.whole.record(after);
                self.tallies.on_reply(self.lasting());
            }
            Event::Duplicate => counts.duplicate_segments += 1,
            Event::OutOfOrder => counts.out_of_order_segments += 1,
            Event::Unplaced => counts.unplaced_segments += 1,
            Event::GapFilled => counts.gaps_filled += 1,
            Event::ClosedByServer => {
                counts.closed_by_server += 1;
                self.reopen.push(self.current);
            }
            Event::Failed(fault) => self.failed = Some(fault),
        }
    }

    fn is_whole(&self, sequence: SeqNumber) -> bool {
        self.plan.whole.has(sequence)
    }

    fn is_reply_whole(&self, replies_before: u32) -> bool {
        self.plan.whole.has_reply(replies_before)
    }

    fn tls(&self) -> Option<&TlsClient> {
        self.plan.tls.as_ref()
    }

    fn follow(&mut self, first: SeqNumber) {
        self.watches.follow(self.current, first);
    }

    fn shorten(&mut self, head_end: SeqNumber) {
        self.watches.shorten(self.current, head_end);
    }

    fn lengthen(&mut self) {
        self.watches.lengthen(self.current);
    }

    fn watched(&self) -> Watched {
        self.watches.read(self.current)
    }

    fn explain(&mut self, text: String) {
        self.explanation = Some(text);
    }

    fn mss(&self) -> u16 {
        self.plan.mtu - HEADERS_BYTES
    }
}

impl Around {
    /// The number of the connection at work among those that are not visitors'.
    fn lasting(&self) -> u32 {
        self.current - self.visits.count()
    }

    fn on_visit(&mut self, event: Event) {
        match event {
            Event::Connected if self.plan.tls.is_none() => {
                self.visits.on_handshake(self.current, self.now);
            }
            Event::Secured => self.visits.on_handshake(self.current, self.now),
            Event::Replied(..) => self.visit_over = Some(true),
            Event::ClosedByServer | Event::Failed(_) => {
                self.visit_over = self.visit_over.or(Some(false))
            }
            _ => {}
        }
    }
}
