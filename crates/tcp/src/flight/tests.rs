//! The transmission log against a naive twin: one cell per byte.

use clock::Instant;
use proptest::prelude::*;

use super::{ENTRIES_MAX, Flight, SegmentState};
use crate::stream::{StreamOffset, StreamRange};

fn range(start: u64, end: u64) -> StreamRange {
    StreamRange::new(StreamOffset(start), StreamOffset(end))
}

fn states(flight: &Flight) -> Vec<(u64, u64, SegmentState)> {
    flight
        .iter()
        .map(|entry| (entry.start.0, entry.end.0, entry.state))
        .collect()
}

fn sent(runs: &[(u64, u64)]) -> Flight {
    let mut flight = Flight::default();
    for (index, run) in runs.iter().enumerate() {
        flight.push(Instant::from_millis(index as u64), range(run.0, run.1));
    }
    flight
}

#[test]
fn a_cumulative_ack_cuts_the_oldest_entry() {
    let mut flight = sent(&[(0, 100), (100, 200)]);
    let mut bytes = 0;
    flight.acknowledge(StreamOffset(150), |entry| bytes += entry.bytes());
    assert_eq!(bytes, 150);
    assert_eq!(states(&flight), [(150, 200, SegmentState::InFlight)]);
    assert_eq!(flight.in_flight_bytes(), 50);
}

#[test]
fn sacked_bytes_are_delivered_once() {
    let mut flight = sent(&[(0, 100), (100, 200)]);
    let mut bytes = 0;
    flight.sack(range(50, 150), |entry| bytes += entry.bytes());
    flight.sack(range(50, 150), |entry| bytes += entry.bytes());
    assert_eq!(bytes, 100);
    assert_eq!(flight.sacked_bytes(), 100);
    flight.acknowledge(StreamOffset(200), |entry| bytes += entry.bytes());
    assert_eq!(bytes, 200);
    assert!(flight.is_empty());
    assert_eq!(flight.sacked_bytes(), 0);
}

#[test]
fn lost_runs_within_a_range_are_those_that_are_not_being_fetched() {
    let mut flight = sent(&[(0, 100), (100, 200), (200, 300), (300, 400), (400, 500)]);
    assert_eq!(flight.lost_within(range(0, 500)), (0, StreamOffset(0)));
    flight.sack(range(100, 200), |_| {});
    flight.sack(range(450, 500), |_| {});
    let _ = flight.mark_lost(|_| true);
    // Two entries that touch are one run.
    assert_eq!(flight.lost_within(range(0, 500)), (2, StreamOffset(450)));
    assert_eq!(flight.lost_within(range(0, 201)), (2, StreamOffset(201)));
    assert_eq!(flight.lost_within(range(0, 200)), (1, StreamOffset(100)));
    assert_eq!(flight.lost_within(range(100, 200)), (0, StreamOffset(100)));
    flight.claim(range(200, 400));
    assert_eq!(flight.lost_within(range(0, 500)), (2, StreamOffset(450)));
    flight.claim(range(400, 450));
    assert_eq!(flight.lost_within(range(0, 500)), (1, StreamOffset(100)));
}

#[test]
fn lost_runs_are_claimed_in_pieces_and_resent() {
    let mut flight = sent(&[(0, 100), (100, 200), (200, 300)]);
    flight.sack(range(200, 300), |_| {});
    assert_eq!(flight.mark_lost(|_| true), 200);
    assert_eq!(flight.first_lost(150), Some(range(0, 150)));
    flight.claim(range(0, 150));
    assert_eq!(flight.first_lost(150), Some(range(150, 200)));
    assert_eq!(flight.claimed_within(range(0, 300)), Some(range(0, 150)));
    flight.on_retransmitted(Instant::from_millis(9), range(0, 150));
    assert_eq!(flight.claimed_bytes(), 0);
    assert_eq!(flight.in_flight_bytes(), 150);
    assert!(flight.first().is_some_and(|entry| entry.retransmitted));
    flight.claim(range(150, 200));
    flight.return_claim(range(150, 200));
    assert_eq!(flight.lost_bytes(), 50);
}

#[test]
fn the_timer_voids_claims_and_keeps_reports() {
    let mut flight = sent(&[(0, 100), (100, 200)]);
    flight.sack(range(100, 200), |_| {});
    flight.mark_lost(|_| true);
    flight.claim(range(0, 100));
    flight.expire();
    assert_eq!(
        states(&flight),
        [
            (0, 100, SegmentState::Lost),
            (100, 200, SegmentState::Sacked)
        ]
    );
}

#[test]
fn a_peer_that_reneges_loses_all_its_reports() {
    let mut flight = sent(&[(0, 100), (100, 200)]);
    flight.sack(range(0, 100), |_| {});
    flight.expire();
    assert_eq!(flight.lost_bytes(), 200);
    assert_eq!(flight.sacked_bytes(), 0);
}

#[test]
fn a_full_log_ignores_further_sack_edges() {
    let mut flight = sent(&[(0, 10_000)]);
    for index in 0..2000 {
        flight.sack(range(4 * index + 1, 4 * index + 2), |_| {});
    }
    assert_eq!(flight.entries.len(), ENTRIES_MAX);
    assert!(!flight.has_room());
    // What was forgotten is still acknowledged.
    flight.acknowledge(StreamOffset(10_000), |_| {});
    assert!(flight.is_empty());
    assert_eq!((flight.sacked_bytes, flight.total_bytes), (0, 0));
}

/// 0..10 in flight, 10..110 lost, and behind them a log full of SACK's edges.
fn full_log_with_a_loss() -> Flight {
    let mut flight = sent(&[(0, 10), (10, 110), (110, 10_000)]);
    for index in 0..2000 {
        flight.sack(range(4 * index + 111, 4 * index + 112), |_| {});
    }
    assert_eq!(flight.entries.len(), ENTRIES_MAX);
    assert_eq!(flight.mark_lost(|entry| entry.start.0 == 10), 100);
    flight
}

#[test]
fn what_left_from_the_middle_of_an_entry_of_a_full_log_has_left() {
    let mut flight = full_log_with_a_loss();
    flight.claim(range(10, 110));
    let late = range(50, 110);
    assert_eq!(flight.claimed_within(late), Some(late));
    flight.on_retransmitted(Instant::from_millis(9), late);
    assert_eq!(
        flight.claimed_within(late),
        None,
        "or it would leave for ever"
    );
}

#[test]
fn the_rest_of_an_entry_claimed_in_a_full_log_can_be_claimed_again() {
    let mut flight = full_log_with_a_loss();
    flight.claim(range(10, 50));
    // Room again, so that only what was fetched counts as sent.
    flight.acknowledge(StreamOffset(10), |_| {});
    flight.on_retransmitted(Instant::from_millis(9), range(10, 50));
    assert_eq!(flight.first_lost(u64::MAX), None);
    flight.void_claims();
    assert_eq!(flight.first_lost(u64::MAX), Some(range(50, 110)));
    assert_eq!(flight.claimed_bytes(), 0);
}

#[test]
fn only_the_head_is_lost_without_sack() {
    let mut flight = sent(&[(0, 100)]);
    flight.mark_head_lost(30);
    assert_eq!(
        states(&flight),
        [
            (0, 30, SegmentState::Lost),
            (30, 100, SegmentState::InFlight)
        ]
    );
    flight.mark_head_lost(30);
    assert_eq!(flight.lost_bytes(), 30);
}

/// What can happen to a log, in a space small enough to collide often.
#[derive(Clone, Debug)]
enum Operation {
    Push(u64),
    Acknowledge(u64),
    Sack(u64, u64),
    LoseAll,
    Claim(u64, u64),
    ReturnClaim(u64, u64),
    Resend(u64, u64),
    Expire,
    UndoExpiry,
}

fn operation() -> impl Strategy<Value = Operation> {
    let run = (0u64..120, 1u64..40);
    prop_oneof![
        (1u64..20).prop_map(Operation::Push),
        (0u64..40).prop_map(Operation::Acknowledge),
        run.clone()
            .prop_map(|(at, len)| Operation::Sack(at, at + len)),
        Just(Operation::LoseAll),
        run.clone()
            .prop_map(|(at, len)| Operation::Claim(at, at + len)),
        run.clone()
            .prop_map(|(at, len)| Operation::ReturnClaim(at, at + len)),
        run.prop_map(|(at, len)| Operation::Resend(at, at + len)),
        Just(Operation::Expire),
        Just(Operation::UndoExpiry),
    ]
}

/// One cell per byte.
#[derive(Default)]
struct Twin {
    cells: Vec<SegmentState>,
    una: usize,
}

impl Twin {
    fn change(&mut self, start: u64, end: u64, change: impl Fn(SegmentState) -> SegmentState) {
        let end = usize::try_from(end).unwrap().min(self.cells.len());
        let start = usize::try_from(start).unwrap().max(self.una);
        for cell in self.cells.iter_mut().take(end).skip(start) {
            *cell = change(*cell);
        }
    }

    fn apply(&mut self, what: &Operation) {
        let from_to = |from: SegmentState, to: SegmentState| {
            move |state| if state == from { to } else { state }
        };
        match *what {
            Operation::Push(bytes) => {
                self.cells
                    .extend((0..bytes).map(|_| SegmentState::InFlight));
            }
            Operation::Acknowledge(bytes) => {
                self.una = (self.una + usize::try_from(bytes).unwrap()).min(self.cells.len());
            }
            Operation::Sack(start, end) => self.change(start, end, |_| SegmentState::Sacked),
            Operation::LoseAll => self.change(
                0,
                u64::MAX,
                from_to(SegmentState::InFlight, SegmentState::Lost),
            ),
            Operation::Claim(s, e) => {
                self.change(s, e, from_to(SegmentState::Lost, SegmentState::Claimed))
            }
            Operation::ReturnClaim(s, e) => {
                self.change(s, e, from_to(SegmentState::Claimed, SegmentState::Lost))
            }
            Operation::Resend(start, end) => self.change(start, end, |state| {
                if state == SegmentState::Sacked {
                    state
                } else {
                    SegmentState::InFlight
                }
            }),
            Operation::Expire => {
                let reneged = self.cells.get(self.una) == Some(&SegmentState::Sacked);
                self.change(0, u64::MAX, |state| {
                    if state == SegmentState::Sacked && !reneged {
                        state
                    } else {
                        SegmentState::Lost
                    }
                });
            }
            Operation::UndoExpiry => self.change(0, u64::MAX, |state| match state {
                SegmentState::Lost | SegmentState::Claimed => SegmentState::InFlight,
                SegmentState::InFlight | SegmentState::Sacked => state,
            }),
        }
    }
}

fn apply(flight: &mut Flight, una: &mut u64, nxt: &mut u64, what: &Operation) {
    match *what {
        Operation::Push(bytes) => {
            flight.push(Instant::ZERO, range(*nxt, *nxt + bytes));
            *nxt += bytes;
        }
        Operation::Acknowledge(bytes) => {
            *una = (*una + bytes).min(*nxt);
            flight.acknowledge(StreamOffset(*una), |_| {});
        }
        Operation::Sack(start, end) => flight.sack(range(start, end), |_| {}),
        Operation::LoseAll => {
            flight.mark_lost(|_| true);
        }
        Operation::Claim(start, end) => flight.claim(range(start, end)),
        Operation::ReturnClaim(start, end) => flight.return_claim(range(start, end)),
        Operation::Resend(start, end) => flight.on_retransmitted(Instant::ZERO, range(start, end)),
        Operation::Expire => {
            let reneged = flight.first().map(|first| first.state) == Some(SegmentState::Sacked);
            assert_eq!(flight.expire(), reneged);
        }
        Operation::UndoExpiry => flight.undo_expiry(),
    }
}

proptest! {
    #[test]
    fn the_flight_log_agrees_with_a_per_byte_model(
        history in proptest::collection::vec(operation(), 1..60),
    ) {
        let (mut flight, mut twin) = (Flight::default(), Twin::default());
        let (mut una, mut nxt) = (0, 0);
        for what in &history {
            apply(&mut flight, &mut una, &mut nxt, what);
            twin.apply(what);
            let mut cells = Vec::new();
            let mut expected_start = una;
            for entry in flight.iter() {
                prop_assert_eq!(entry.start.0, expected_start, "no gap, no overlap");
                expected_start = entry.end.0;
                cells.extend((0..entry.bytes()).map(|_| entry.state));
            }
            prop_assert_eq!(&cells[..], &twin.cells[twin.una..]);
            let count = |state| cells.iter().filter(|cell| **cell == state).count() as u64;
            prop_assert_eq!(flight.in_flight_bytes(), count(SegmentState::InFlight));
            prop_assert_eq!(flight.sacked_bytes(), count(SegmentState::Sacked));
            prop_assert_eq!(flight.lost_bytes(), count(SegmentState::Lost));
            prop_assert_eq!(flight.claimed_bytes(), count(SegmentState::Claimed));
        }
    }
}
