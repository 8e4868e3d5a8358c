//! A [`Connection`](crate::Connection) against a naive receiver, over a pipe that loses, repeats
//! and reorders packets, on a virtual clock. Same seed, same history.
//!
//! Checked all along: nothing lies beyond the furthest window edge ever advertised, claims stay
//! within the congestion window and one segment, the log holds together. Checked at the end: the
//! receiver has exactly the stream, and its FIN, after a bounded number of steps.
//!
//! Not injected, since not survived: corruption (checksums are somebody else's) and a peer that
//! acknowledges what it did not get.

mod receiver;
mod rng;
mod server;

use std::collections::BTreeMap;

use clock::{Duration, Instant};
use wire::TcpRepr;

use self::receiver::Receiver;
use self::rng::Rng;
use self::server::Server;
use super::millis;
use crate::stream::StreamRange;
use crate::verdict::{CloseReason, Outcome};

/// A transfer that is not over by then never will be.
const STEPS_MAX: u32 = 200_000;
const VIRTUAL_TIME_MAX: Duration = Duration::from_secs(12 * 3600);
/// Handshake's round trip; the clock starts after it.
const START: Instant = Instant::from_millis(100);

/// What travels: a header, and which bytes of its stream it stands for.
#[derive(Clone, Copy, Debug)]
struct Packet {
    header: TcpRepr,
    /// Of our stream, the FIN as its last byte; or of the peer's.
    range: StreamRange,
}

/// One direction of the network.
#[derive(Clone, Copy, Debug)]
struct Path {
    loss_per_mille: u64,
    repeat_per_mille: u64,
    delay: Duration,
    /// Up to this much is added, so packets overtake each other.
    jitter: Duration,
}

/// The largest payload that passes a black hole.
const BLACK_HOLE_BYTES: u64 = 1200;

/// What a run is like; drawn from its seed.
#[derive(Clone, Copy, Debug)]
struct Case {
    sack: bool,
    timestamps: bool,
    window_shift: Option<u8>,
    forward: Path,
    back: Path,
    /// Bytes of the reply, in how many pieces.
    stream_bytes: u64,
    pieces: u64,
    /// Largest read of the disk; tiny ones fill the log of transmissions.
    read_bytes_max: u64,
    /// Slowest read of the disk.
    fetch_delay: Duration,
    /// The disk's queue is full for this share of claims.
    returned_per_mille: u64,
    /// The link is full for this share of frames.
    full_per_mille: u64,
    /// The receiver's buffer, bytes.
    capacity: u64,
    /// How often the application reads, and at most how much; at once if never.
    read: Option<(Duration, u64)>,
    /// How long the receiver delays ACKs.
    ack_delay: Duration,
    /// The receiver sometimes drops what it reported by SACK.
    reneges: bool,
    /// The receiver's buffer sometimes shrinks.
    shrinks: bool,
    /// The peer sends its FIN right after its request.
    half_closes: bool,
    /// The path takes smaller packets after a while.
    narrows: bool,
    /// The path drops larger packets than it says, from the start.
    is_black_hole: bool,
    is_paced: bool,
    /// The most that the server sends, bytes a second.
    rate_max: Option<u64>,
}

/// Kinds of cases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Nothing goes wrong.
    Clean,
    /// A network as bad as they come, and a peer that keeps to the rules.
    Lossy,
    /// And a peer that goes back on what it said.
    Reneging,
}

impl Case {
    fn draw(kind: Kind, sack: bool, rng: &mut Rng) -> Self {
        let is_clean = kind == Kind::Clean;
        let path = |rng: &mut Rng| {
            let delay = millis(rng.between(1, 100));
            let loss = *rng.pick(&[0, 0, 5, 20, 50, 150]);
            let jitter = *rng.pick(&[0, 0, 0, 1, 4, 8]);
            Path {
                loss_per_mille: if is_clean { 0 } else { loss },
                repeat_per_mille: if is_clean { 0 } else { *rng.pick(&[0, 0, 30]) },
                delay,
                jitter: if is_clean {
                    Duration::ZERO
                } else {
                    delay * jitter / 4
                },
            }
        };
        let (forward, back) = (path(rng), path(rng));
        let capacity = *rng.pick(&[600, 1500, 4000, 30_000, 100_000, 1_000_000]);
        let slow = (millis(rng.between(1, 500)), rng.between(100, 50_000));
        let is_reneging = kind == Kind::Reneging;
        let stream_bytes_max = *rng.pick(&[3000, 60_000, 400_000]);
        let read_bytes_max = if stream_bytes_max == 60_000 && rng.chance(300) {
            40
        } else {
            64 * 1024
        };
        Self {
            sack,
            timestamps: rng.chance(500),
            window_shift: *rng.pick(&[None, Some(0), Some(4), Some(7)]),
            forward,
            back,
            stream_bytes: rng.between(1, stream_bytes_max),
            pieces: rng.between(1, 4),
            read_bytes_max,
            fetch_delay: millis(*rng.pick(&[0, 0, 2, 20, 300, 1500])),
            returned_per_mille: *rng.pick(&[0, 0, 100]),
            full_per_mille: *rng.pick(&[0, 0, 100]),
            capacity,
            read: (!is_clean && rng.chance(300)).then_some(slow),
            ack_delay: if is_clean {
                Duration::ZERO
            } else {
                millis(*rng.pick(&[0, 40, 200]))
            },
            reneges: is_reneging && rng.chance(500),
            shrinks: is_reneging && rng.chance(500),
            half_closes: rng.chance(300),
            narrows: !is_clean && rng.chance(100),
            is_paced: rng.chance(700),
            rate_max: *rng.pick(&[None, None, None, None, Some(20_000), Some(1_000_000)]),
            is_black_hole: false,
        }
    }
}

impl Case {
    /// The longest round trip there is, if every ACK arrives and none overtakes another; to the
    /// millisecond that a timestamp tells.
    fn round_trip_max(&self) -> Option<Duration> {
        let (there, back) = (self.forward, self.back);
        let stamp = millis(u64::from(self.timestamps));
        let longest = there.delay + there.jitter + back.delay + self.ack_delay + stamp;
        let handshake = START.since(Instant::ZERO);
        let is_faithful = back.loss_per_mille == 0 && back.jitter.is_zero();
        is_faithful.then(|| longest.max(handshake))
    }
}

/// What is due at some moment.
#[derive(Clone, Copy, Debug)]
enum Due {
    ToReceiver(Packet),
    ToServer(Packet),
    /// The session has this much more to send; the last piece ends the stream.
    Append(u64, bool),
    /// A router says how small packets must be.
    Narrow(u16),
}

/// The network and the agenda.
struct Pipe {
    case: Case,
    rng: Rng,
    now: Instant,
    agenda: BTreeMap<(Instant, u64), Due>,
    entries: u64,
    lost_packets: u64,
}

impl Pipe {
    fn schedule(&mut self, at: Instant, due: Due) {
        self.entries += 1;
        self.agenda.insert((at, self.entries), due);
    }

    fn send_to_receiver(&mut self, packet: Packet) {
        if self.case.is_black_hole && packet.range.bytes() > BLACK_HOLE_BYTES {
            self.lost_packets += 1;
            return;
        }
        self.carry(self.case.forward, Due::ToReceiver(packet));
    }

    fn send_to_server(&mut self, packet: Packet) {
        self.carry(self.case.back, Due::ToServer(packet));
    }

    fn carry(&mut self, path: Path, due: Due) {
        let copies = 1 + u64::from(self.rng.chance(path.repeat_per_mille));
        for _ in 0..copies {
            if self.rng.chance(path.loss_per_mille) {
                self.lost_packets += 1;
                continue;
            }
            let jitter = u64::try_from(path.jitter.as_nanos()).unwrap();
            let late = Duration::from_nanos(self.rng.between(0, jitter));
            self.schedule(self.now + path.delay + late, due);
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.agenda.first_key_value().map(|(key, _)| key.0)
    }

    fn pop_due(&mut self) -> Option<Due> {
        let entry = self.agenda.first_entry()?;
        (entry.key().0 <= self.now).then(|| entry.remove())
    }
}

/// Says which history failed.
struct Replay(Kind, bool, u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(kind, sack, seed) = self;
            eprintln!("replay: run(Kind::{kind:?}, {sack}, {seed})");
        }
    }
}

/// Runs one history to its end; returns bytes sent more than once.
fn run(kind: Kind, sack: bool, seed: u64) -> u64 {
    let _replay = Replay(kind, sack, seed);
    let mut rng = Rng::new(seed);
    let mut case = Case::draw(kind, sack, &mut rng);
    case.is_black_hole = kind != Kind::Clean && seed % 8 == 5;
    run_case(case, rng)
}

/// The same with a case that was not drawn, or not only.
fn run_case(case: Case, rng: Rng) -> u64 {
    measure_case(case, rng).0
}

/// The same, and how long it took.
fn measure_case(case: Case, rng: Rng) -> (u64, Duration) {
    let mut pipe = Pipe {
        case,
        rng,
        now: START,
        agenda: BTreeMap::new(),
        entries: 0,
        lost_packets: 0,
    };
    let mut receiver = Receiver::new(&case);
    let mut server = Server::new(&case, receiver.raw_window());
    schedule_pieces(&mut pipe);
    let outcome = drive(&mut pipe, &mut server, &mut receiver);
    let expected = if case.half_closes {
        Outcome::Closed(CloseReason::Finished)
    } else {
        Outcome::TimeWait
    };
    // A FIN of the peer that was slow to come may find ours on its way.
    assert!(
        outcome == expected
            || matches!(
                outcome,
                Outcome::TimeWait | Outcome::Closed(CloseReason::Finished)
            ),
        "{outcome:?}"
    );
    assert_eq!(
        receiver.taken(),
        case.stream_bytes + 1,
        "the stream and its FIN"
    );
    (server.retransmitted_bytes(), pipe.now.since(START))
}

fn schedule_pieces(pipe: &mut Pipe) {
    let (mut left, pieces) = (pipe.case.stream_bytes, pipe.case.pieces);
    let mut at = START;
    for piece in 1..=pieces {
        let is_last = piece == pieces;
        let bytes = if is_last {
            left
        } else {
            pipe.rng.between(0, left)
        };
        left -= bytes;
        pipe.schedule(at, Due::Append(bytes, is_last));
        at += millis(pipe.rng.between(0, 2000));
    }
    if pipe.case.narrows {
        let size = u16::try_from(pipe.rng.between(500, 1000)).unwrap();
        let at = START + millis(pipe.rng.between(0, 3000));
        pipe.schedule(at, Due::Narrow(size));
    }
}

fn drive(pipe: &mut Pipe, server: &mut Server, receiver: &mut Receiver) -> Outcome {
    for _ in 0..STEPS_MAX {
        while let Some(due) = pipe.pop_due() {
            let outcome = match due {
                Due::ToReceiver(packet) => {
                    receiver.handle_packet(pipe, packet);
                    Outcome::Open
                }
                Due::ToServer(packet) => server.handle_packet(pipe.now, packet),
                Due::Append(bytes, is_last) => server.append(pipe.now, bytes, is_last),
                Due::Narrow(size) => server.narrow(pipe.now, size),
            };
            // What is due to leave, leaves before the next thing happens; sometimes.
            if outcome == Outcome::Open && pipe.rng.chance(700) {
                server.work(pipe, receiver.furthest_edge());
            }
            if outcome != Outcome::Open {
                return outcome;
            }
        }
        let outcome = server.handle_timeout(pipe.now);
        if outcome != Outcome::Open {
            return outcome;
        }
        server.work(pipe, receiver.furthest_edge());
        receiver.work(pipe);
        let next = [
            pipe.next_due(),
            server.next_due(pipe.now),
            receiver.next_due(),
        ]
        .into_iter()
        .flatten()
        .min()
        .expect("there is always something to wait for");
        pipe.now = next.max(pipe.now);
        assert!(
            pipe.now.since(START) < VIRTUAL_TIME_MAX,
            "too slow: {:?}",
            pipe.case
        );
    }
    panic!("never done: {:?}", pipe.case);
}

#[test]
fn nothing_is_retransmitted_without_loss() {
    for seed in 0..100 {
        for sack in [true, false] {
            assert_eq!(run(Kind::Clean, sack, seed), 0, "{seed} {sack}");
        }
    }
}

/// Each packet is late by up to 20 ms, both ways, and none is lost: whatever is sent again is needless. The least
/// round trip says little of how late packets are, so RACK must learn that (RFC 8985 s6.2, step 4), and a reduction
/// must not last until the receiver reports what came twice.
#[test]
fn how_late_segments_are_is_learned() {
    let (mut resent, mut time) = (0, Duration::ZERO);
    for seed in 0..5 {
        let mut rng = Rng::new(seed);
        let late = Path {
            loss_per_mille: 0,
            repeat_per_mille: 0,
            delay: Duration::from_micros(500),
            jitter: millis(20),
        };
        let case = Case {
            sack: true,
            timestamps: true,
            window_shift: Some(7),
            forward: late,
            back: late,
            stream_bytes: 3_000_000,
            pieces: 1,
            read_bytes_max: 64 * 1024,
            fetch_delay: Duration::ZERO,
            returned_per_mille: 0,
            full_per_mille: 0,
            capacity: 1_000_000,
            read: None,
            is_paced: true,
            rate_max: None,
            half_closes: false,
            ..Case::draw(Kind::Clean, true, &mut rng)
        };
        let taken = measure_case(case, rng);
        resent += taken.0;
        time += taken.1;
    }
    assert!(
        resent < 2_500_000,
        "{resent} bytes of 15 MB were sent again"
    );
    assert!(time < millis(8000), "15 MB took {time:?}");
}

#[test]
fn streams_arrive_whole_at_peers_with_sack() {
    for seed in 0..300 {
        run(Kind::Lossy, true, seed);
    }
}

#[test]
fn streams_arrive_whole_at_peers_without_sack() {
    for seed in 0..300 {
        run(Kind::Lossy, false, seed);
    }
}

#[test]
fn streams_arrive_whole_at_reneging_peers() {
    for seed in 0..200 {
        for sack in [true, false] {
            run(Kind::Reneging, sack, seed);
        }
    }
}
