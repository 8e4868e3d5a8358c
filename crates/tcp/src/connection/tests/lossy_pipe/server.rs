//! Our side: the connection, and a session that fetches what it demands.

use std::collections::VecDeque;

use clock::{Duration, Instant};
use wire::{Ecn, TcpFlags};

use super::super::{ISS, OFFER, Peer, check_log, credit, range, syn, tuple};
use super::{Case, Packet, Pipe, START, millis};
use crate::connection::sack::SackReports;
use crate::connection::{Admitted, Claim, Config, Connection, Control, Credit};
use crate::half_open::HalfOpen;
use crate::stream::StreamRange;
use crate::verdict::Outcome;

/// Reads of one connection at once.
const FETCHES_MAX: usize = 64;

/// A read under way; they come back in the order of their claims.
#[derive(Debug)]
struct Fetch {
    range: StreamRange,
    claim: Claim,
    ready_at: Instant,
}

pub(super) struct Server {
    connection: Connection,
    fetches: VecDeque<Fetch>,
    /// The disk's or the link's queue was full; try again then.
    retry_at: Option<Instant>,
    is_link_full: bool,
    /// No sample can be longer.
    round_trip_max: Option<Duration>,
}

impl Server {
    pub(super) fn new(case: &Case, raw_window: u16) -> Self {
        let peer = Peer {
            sack: case.sack,
            timestamps: case.timestamps,
            window: raw_window,
            window_shift: case.window_shift,
            ecn: false,
            segment_bytes: match (case.is_black_hole, case.timestamps) {
                (true, true) => 1448,
                (true, false) => 1460,
                (false, _) => 1000,
            },
        };
        // Loss is extreme here; the test is of retransmission, not of giving up.
        let config = Config {
            timeouts_max: 100,
            probes_max: 100,
            is_paced: case.is_paced,
            rate_max: case.rate_max,
            ..Config::default()
        };
        let half_open = HalfOpen::new(Instant::ZERO, tuple(), &syn(peer), OFFER);
        Self {
            connection: Connection::new(config, &half_open, START, raw_window),
            fetches: VecDeque::new(),
            retry_at: None,
            is_link_full: false,
            round_trip_max: case.round_trip_max(),
        }
    }

    pub(super) fn retransmitted_bytes(&self) -> u64 {
        self.connection.retransmitted_bytes()
    }

    pub(super) fn append(&mut self, now: Instant, bytes: u64, is_last: bool) -> Outcome {
        self.connection.append(now, bytes);
        if is_last {
            self.connection.finish();
        }
        Outcome::Open
    }

    pub(super) fn narrow(&mut self, now: Instant, segment_bytes: u16) -> Outcome {
        let quoted = self.connection.send.sequence_of(self.connection.send.una);
        self.connection
            .on_packet_too_big(now, quoted, segment_bytes);
        check_log(&self.connection);
        Outcome::Open
    }

    pub(super) fn handle_packet(&mut self, now: Instant, packet: Packet) -> Outcome {
        let fin = u64::from(packet.header.flags.contains(TcpFlags::FIN));
        let text_bytes = usize::try_from(packet.range.bytes() - fin).unwrap();
        let arrival = self
            .connection
            .handle_segment(now, &packet.header, Ecn::NotEct, text_bytes);
        if arrival.challenge {
            self.connection.send_challenge(now);
        }
        if !arrival.text.is_empty() {
            // The request is answered at once, and room is made for the next.
            self.connection.set_receive_window(OFFER.window);
        }
        check_log(&self.connection);
        if let Some(longest) = self.round_trip_max {
            let smoothed = self.connection.smoothed_rtt().unwrap();
            assert!(
                smoothed <= longest,
                "a sample of {smoothed:?} over {longest:?}"
            );
        }
        arrival.outcome
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) -> Outcome {
        let outcome = self.connection.handle_timeout(now);
        check_log(&self.connection);
        outcome
    }

    /// Claims what may leave, sends what has come from the disk, and what carries no data.
    pub(super) fn work(&mut self, pipe: &mut Pipe, edge: u64) {
        if self.retry_at.is_some_and(|at| at <= pipe.now) {
            self.retry_at = None;
            self.is_link_full = false;
        }
        self.claim(pipe);
        while !self.is_link_full && self.send_first_fetch(pipe, edge) {}
        while !self.is_link_full && self.send_control(pipe) {}
    }

    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let paced = match credit(&self.connection, now) {
            Credit::From(at) if self.takes_claims() => Some(at),
            _ => None,
        };
        let fetch = self.fetches.front().map(|fetch| fetch.ready_at);
        let fetch = fetch.filter(|_| !self.is_link_full);
        [self.connection.poll_timeout(), self.retry_at, fetch, paced]
            .into_iter()
            .flatten()
            .min()
    }

    fn takes_claims(&self) -> bool {
        self.retry_at.is_none() && self.fetches.len() < FETCHES_MAX
    }

    fn claim(&mut self, pipe: &mut Pipe) {
        while self.takes_claims() {
            let Credit::Now(demand) = credit(&self.connection, pipe.now) else {
                return;
            };
            let (start, most) = (demand.range.start.0, demand.range.bytes());
            let mut bytes = most.min(pipe.case.read_bytes_max);
            if pipe.rng.chance(100) {
                bytes = pipe.rng.between(1, bytes);
            }
            let claimed = range(start, start + bytes);
            let before = self.connection.outstanding_bytes();
            // A tail probe may exceed the window, whatever is out, by one segment, and never waits.
            let probe = self.connection.tail_probe;
            let is_probe = probe.is_some_and(|probe| probe.is_due);
            let waits_for = if is_probe { 0 } else { before };
            assert_eq!(demand.outstanding_bytes, waits_for);
            let claim = self.connection.claim(pipe.now, demand, claimed.end);
            let after = self.connection.outstanding_bytes();
            assert_eq!(after, before + bytes, "every claimed byte counts");
            let window = self.connection.congestion_window();
            let segment = u64::from(self.connection.segment_bytes());
            let is_within = if is_probe {
                after <= window.max(before + segment)
            } else if self.connection.sack == SackReports::Useful {
                after <= window
            } else {
                // Limited transmit.
                after <= window + 2 * segment
            };
            assert!(is_within, "{before} + {bytes} of {window}");
            if pipe.rng.chance(pipe.case.returned_per_mille) {
                self.connection.return_claim(claim);
                assert_eq!(self.connection.outstanding_bytes(), before);
                self.retry_at = Some(pipe.now + millis(1));
            } else {
                let most = u64::try_from(pipe.case.fetch_delay.as_micros()).unwrap();
                let delay = pipe.rng.between(0, most);
                let ready_at = pipe.now + Duration::from_micros(delay);
                let last = self.fetches.back().map_or(ready_at, |last| last.ready_at);
                self.fetches.push_back(Fetch {
                    range: claimed,
                    claim,
                    ready_at: ready_at.max(last),
                });
            }
            check_log(&self.connection);
        }
    }

    /// Sends what is still wanted of the oldest fetch; `false` if nothing can leave.
    fn send_first_fetch(&mut self, pipe: &mut Pipe, edge: u64) -> bool {
        let Some(fetch) = self.fetches.front() else {
            return false;
        };
        if fetch.ready_at > pipe.now {
            return false;
        }
        while let Some(fetch) = self.fetches.front()
            && let Some(mut wanted) = self.connection.admit(&fetch.claim)
        {
            let range = wanted.range();
            assert!(range.start >= fetch.range.start && range.end <= fetch.range.end);
            if pipe.rng.chance(pipe.case.full_per_mille) {
                self.is_link_full = true;
                self.retry_at = Some(pipe.now + millis(pipe.rng.between(0, 3)));
                return false;
            }
            if pipe.rng.chance(100) {
                wanted = wanted.beginning(pipe.rng.between(1, range.bytes()));
            }
            assert!(
                wanted.range().end.0 <= edge,
                "{wanted:?} beyond the window's edge {edge}"
            );
            self.send_data(pipe, wanted);
        }
        self.fetches.pop_front();
        true
    }

    /// One large segment, cut as a link cuts it.
    fn send_data(&mut self, pipe: &mut Pipe, admitted: Admitted) {
        let framing = self.connection.framing(&admitted);
        let segment = u64::from(framing.segment_bytes);
        let admitted = if framing.is_single {
            admitted.beginning(segment)
        } else {
            admitted
        };
        let wanted = admitted.range();
        let header = self.connection.segment(pipe.now, &admitted);
        self.connection.on_transmitted(pipe.now, admitted);
        check_log(&self.connection);
        let mut start = wanted.start;
        while start < wanted.end {
            let end = (start + segment).min(wanted.end);
            let shift = u32::try_from(start.since(wanted.start)).unwrap();
            let mut header = header;
            header.sequence = header.sequence.wrapping_add(shift);
            pipe.send_to_receiver(Packet {
                header,
                range: StreamRange::new(start, end),
            });
            start = end;
        }
    }

    fn send_control(&mut self, pipe: &mut Pipe) -> bool {
        let Some(control) = self.connection.control() else {
            return false;
        };
        let header = self.connection.control_segment(pipe.now, control);
        self.connection.on_control_transmitted(pipe.now, control);
        check_log(&self.connection);
        let end = self.connection.end().0;
        let range = match control {
            Control::Fin => range(end, end + 1),
            Control::Ack | Control::Probe => range(0, 0),
        };
        pipe.send_to_receiver(Packet { header, range });
        true
    }
}

/// The offset that a sequence number near `offset` stands for.
pub(super) fn offset_near(sequence: wire::SeqNumber, offset: u64) -> i64 {
    let first = ISS.wrapping_add(1);
    let low = u32::try_from(offset & 0xffff_ffff).unwrap();
    let distance = sequence.distance(first.wrapping_add(low));
    i64::try_from(offset).unwrap() + i64::from(distance)
}
