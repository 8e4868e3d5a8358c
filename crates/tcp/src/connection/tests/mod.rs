//! [`Connection`] driven by hand: a segment or a moment goes in; demand, control, header and state
//! come out.
//!
//! The driver answers demands at once, as a disk without delay would, unless a test takes the steps
//! itself. It checks the log after each step. Sequence numbers of both directions wrap a little
//! way into a test. Round trips take 100 ms, segments 1000 bytes, so most numbers can be read off.

mod ack;
mod bbr;
mod black_hole;
mod closing;
mod delayed_ack;
mod demand;
mod duplicate_acks;
mod ecn;
mod established;
mod info;
mod keep_alive;
mod lossy_pipe;
mod needless_resends;
mod overtaken;
mod pacing;
mod packet_too_big;
mod reset_and_challenge;
mod round_trip;
mod sack_recovery;
mod size_probe;
mod spurious_timeout;
mod tail_probe;
mod text;
mod timeout;
mod useless_sack;
mod window_growth;
mod window_probe;

use clock::{Duration, Instant};
use wire::{Ecn, SackBlocks, SeqNumber, TcpFlags, TcpOptions, TcpRepr, Timestamps};

use super::{Admitted, Claim, Config, Connection, Control, Credit, Demand, Framing, Permission};
use crate::flight::SegmentState;
use crate::half_open::{ECN_SETUP, HalfOpen, Offer};
use crate::stream::{StreamOffset, StreamRange};
use crate::table::FourTuple;
use crate::verdict::{Arrival, Outcome, SegmentDrop};

/// Our first byte has the next number; it wraps 4000 bytes into the stream.
const ISS: SeqNumber = SeqNumber(u32::MAX - 4000);
/// The peer's first byte has the next number.
const IRS: SeqNumber = SeqNumber(u32::MAX - 20);
/// The payload of one packet, bytes.
const MSS: u64 = 1000;
/// The initial congestion window, bytes.
const INITIAL_WINDOW: u64 = 10 * MSS;
/// Our receive window, bytes.
const RECEIVE_WINDOW: u16 = 4000;
/// When the handshake is done; also its round trip.
const START: Instant = Instant::from_millis(100);
/// After the handshake's sample of 100 ms: SRTT + 4 * RTTVAR = 100 ms + 4 * 50 ms.
const RTO: Duration = Duration::from_millis(300);

/// What the other side is like.
#[derive(Clone, Copy, Debug)]
struct Peer {
    sack: bool,
    timestamps: bool,
    /// As on the wire, in each segment that names no other.
    window: u16,
    window_shift: Option<u8>,
    /// Its SYN asks for ECN.
    ecn: bool,
    /// Payload of a full segment, bytes.
    segment_bytes: u16,
}

const PEER: Peer = Peer {
    sack: true,
    timestamps: false,
    window: 60_000,
    window_shift: None,
    ecn: false,
    segment_bytes: 1000,
};
const PEER_WITHOUT_SACK: Peer = Peer {
    sack: false,
    ..PEER
};
/// It stamps what it sends; F-RTO, which sends new data after a timeout, is for others.
const STAMPING_WITHOUT_SACK: Peer = Peer {
    timestamps: true,
    ..PEER_WITHOUT_SACK
};

/// A segment from the peer, relative to where the connection stands.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// SEG.SEQ less RCV.NXT.
    shift: i32,
    /// SEG.ACK as an offset of our stream; negative before its start.
    acknowledgment: i64,
    flags: TcpFlags,
    window: Option<u16>,
    sack: SackBlocks,
    payload_bytes: usize,
    /// When the segment left whose timestamp is echoed; 0 is echoed without.
    echo: Option<Instant>,
    /// Of its IP header.
    ecn: Ecn,
}

/// A bare ACK of everything before `offset`.
fn ack(offset: i64) -> Segment {
    Segment {
        shift: 0,
        acknowledgment: offset,
        flags: TcpFlags::ACK,
        window: None,
        sack: SackBlocks::default(),
        payload_bytes: 0,
        echo: None,
        ecn: Ecn::NotEct,
    }
}

impl Segment {
    /// SEG.SEQ lies `shift` beyond RCV.NXT.
    fn at(self, shift: i32) -> Self {
        Self { shift, ..self }
    }

    fn window(self, raw: u16) -> Self {
        Self {
            window: Some(raw),
            ..self
        }
    }

    fn text(self, payload_bytes: usize) -> Self {
        Self {
            payload_bytes,
            ..self
        }
    }

    fn with(self, flag: TcpFlags) -> Self {
        Self {
            flags: self.flags.union(flag),
            ..self
        }
    }

    fn fin(self) -> Self {
        self.with(TcpFlags::FIN)
    }

    fn without_ack(self) -> Self {
        Self {
            flags: self.flags.difference(TcpFlags::ACK),
            ..self
        }
    }

    /// Echoes the timestamp of what left `at`.
    fn echo(self, at: Instant) -> Self {
        Self {
            echo: Some(at),
            ..self
        }
    }

    /// A router marked its packet.
    fn marked(self) -> Self {
        Self {
            ecn: Ecn::Ce,
            ..self
        }
    }

    /// Adds a SACK block.
    fn sack(mut self, start: u32, end: u32) -> Self {
        self.sack.push(sequence(start), sequence(end));
        self
    }
}

/// The sequence number of an offset of our stream.
fn sequence(offset: u32) -> SeqNumber {
    ISS.wrapping_add(1).wrapping_add(offset)
}

fn range(start: u64, end: u64) -> StreamRange {
    StreamRange::new(StreamOffset(start), StreamOffset(end))
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The last moment before `at`.
fn just_before(at: Instant) -> Instant {
    Instant::from_nanos(at.as_nanos() - 1)
}

/// What left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    New(u64, u64),
    Again(u64, u64),
    Ack,
    Fin,
    Probe,
}

/// One connection and the clock its test turns.
struct Driver {
    connection: Connection,
    peer: Peer,
    now: Instant,
    /// Headers of everything that left.
    headers: Vec<TcpRepr>,
    /// How each of them was cut.
    framings: Vec<Framing>,
}

impl Driver {
    fn new() -> Self {
        Self::with(PEER)
    }

    fn with(peer: Peer) -> Self {
        let unpaced = Config {
            is_paced: false,
            ..Config::default()
        };
        Self::configured(peer, unpaced)
    }

    fn configured(peer: Peer, config: Config) -> Self {
        let half_open = HalfOpen::new(Instant::ZERO, tuple(), &syn(peer), OFFER);
        Self {
            connection: Connection::new(config, &half_open, START, peer.window),
            peer,
            now: START,
            headers: Vec::new(),
            framings: Vec::new(),
        }
    }

    /// A connection that was told to send `bytes` and sent what it may.
    fn sending(peer: Peer, bytes: u64) -> Self {
        let mut driver = Self::with(peer);
        driver.append(bytes);
        let _ = driver.flush();
        driver
    }

    fn append(&mut self, bytes: u64) {
        self.connection.append(self.now, bytes);
    }

    fn pass(&mut self, time: Duration) -> &mut Self {
        self.now += time;
        self
    }

    fn at(&mut self, now: Instant) -> &mut Self {
        assert!(now >= self.now, "time never runs backwards");
        self.now = now;
        self
    }

    fn repr(&self, segment: Segment) -> TcpRepr {
        let sequence = self.connection.receive.nxt.0;
        let first = i64::from(sequence_first().0);
        let acknowledgment = (first + segment.acknowledgment).rem_euclid(1 << 32);
        TcpRepr {
            source_port: tuple().peer.port(),
            destination_port: tuple().local.port(),
            sequence: SeqNumber(sequence.wrapping_add_signed(segment.shift)),
            acknowledgment: SeqNumber(u32::try_from(acknowledgment).unwrap()),
            flags: segment.flags,
            window: segment.window.unwrap_or(self.peer.window),
            options: TcpOptions {
                timestamps: self.peer.timestamps.then(|| Timestamps {
                    echo: segment.echo.map_or(0, our_stamp),
                    ..peer_stamp(self.now)
                }),
                sack: segment.sack,
                ..TcpOptions::default()
            },
        }
    }

    fn receive(&mut self, segment: Segment) -> Arrival {
        let repr = self.repr(segment);
        self.receive_packet(&repr, segment.ecn, segment.payload_bytes)
    }

    fn receive_repr(&mut self, repr: &TcpRepr, payload_bytes: usize) -> Arrival {
        self.receive_packet(repr, Ecn::NotEct, payload_bytes)
    }

    fn receive_packet(&mut self, repr: &TcpRepr, ecn: Ecn, payload_bytes: usize) -> Arrival {
        let arrival = self
            .connection
            .handle_segment(self.now, repr, ecn, payload_bytes);
        if arrival.challenge {
            // The host's limit permits it.
            self.connection.send_challenge(self.now);
        }
        check_log(&self.connection);
        arrival
    }

    /// A segment that nothing is wrong with and that ends nothing.
    fn accept(&mut self, segment: Segment) {
        let arrival = self.receive(segment);
        assert_eq!((arrival.drop, arrival.outcome), (None, Outcome::Open));
    }

    fn expect_drop(&mut self, segment: Segment, reason: SegmentDrop) {
        let arrival = self.receive(segment);
        let expected = Arrival {
            challenge: arrival.challenge,
            ..Arrival::dropped(reason)
        };
        assert_eq!(arrival, expected);
    }

    /// Everything that may leave leaves, as large as it may be.
    fn flush(&mut self) -> Vec<Sent> {
        let mut sent = Vec::new();
        loop {
            if let Some(demand) = self.demand() {
                let (range, is_retransmission) = (demand.range, demand.is_retransmission);
                let claim = self.connection.claim(self.now, demand, range.end);
                let admitted = self.connection.admit(&claim).expect("it was just claimed");
                assert_eq!(admitted.range(), range);
                let mut rest = Some(admitted);
                while let Some(admitted) = rest {
                    let StreamRange { start, end } = self.transmit_frame(admitted);
                    sent.push(if is_retransmission {
                        Sent::Again(start.0, end.0)
                    } else {
                        Sent::New(start.0, end.0)
                    });
                    rest = self.connection.admit(&claim);
                }
            } else if let Some(control) = self.connection.control() {
                sent.push(self.transmit_control(control));
            } else {
                return sent;
            }
            assert!(sent.len() < 1000, "something leaves for ever");
        }
    }

    /// As much of these bytes as one frame may carry leaves.
    fn transmit_frame(&mut self, admitted: Admitted) -> StreamRange {
        let framing = self.connection.framing(&admitted);
        let bytes = if framing.is_single {
            u64::from(framing.segment_bytes)
        } else {
            u64::MAX
        };
        let range = admitted.beginning(bytes).range();
        self.transmit(range);
        range
    }

    fn transmit(&mut self, range: StreamRange) {
        let admitted = Admitted::forged(range);
        self.framings.push(self.connection.framing(&admitted));
        self.headers
            .push(self.connection.segment(self.now, &admitted));
        self.connection.on_transmitted(self.now, admitted);
        check_log(&self.connection);
    }

    fn transmit_control(&mut self, control: Control) -> Sent {
        self.framings.push(Framing::CONTROL);
        self.headers
            .push(self.connection.control_segment(self.now, control));
        self.connection.on_control_transmitted(self.now, control);
        check_log(&self.connection);
        match control {
            Control::Ack => Sent::Ack,
            Control::Fin => Sent::Fin,
            Control::Probe => Sent::Probe,
        }
    }

    /// What may be sent now.
    fn demand(&self) -> Option<Demand> {
        match credit(&self.connection, self.now) {
            Credit::Now(demand) => Some(demand),
            Credit::Nothing | Credit::From(_) => None,
        }
    }

    /// Claims bytes that are not what is demanded.
    fn take(&mut self, range: StreamRange, is_retransmission: bool) {
        let _ = self.connection.take(self.now, range, is_retransmission);
    }

    /// Claims what is demanded without fetching it yet.
    fn claim(&mut self) -> StreamRange {
        let demand = self.demand().expect("something is demanded");
        let range = demand.range;
        let _ = self.connection.claim(self.now, demand, range.end);
        range
    }

    fn demanded(&self) -> Option<(u64, u64)> {
        let range = self.demand()?.range;
        Some((range.start.0, range.end.0))
    }

    /// What must still be sent of a range that was claimed.
    fn admit(&self, range: StreamRange) -> Option<StreamRange> {
        let claim = Claim::forged(range, false);
        self.connection.admit(&claim).map(|part| part.range())
    }

    /// A fetched range comes back; what is still wanted of it leaves.
    fn complete(&mut self, fetched: StreamRange) -> Option<(u64, u64)> {
        let wanted = self.admit(fetched)?;
        self.transmit(wanted);
        Some((wanted.start.0, wanted.end.0))
    }

    /// A router says that the oldest packet in flight was too big, and how much fits.
    fn report(&mut self, segment_bytes: u16) {
        let quoted = self.connection.send.sequence_of(self.connection.send.una);
        self.connection
            .on_packet_too_big(self.now, quoted, segment_bytes);
        check_log(&self.connection);
    }

    /// Time passes to the next timer, which fires.
    fn fire(&mut self) -> Outcome {
        let deadline = self.deadline();
        self.at(deadline.max(self.now)).expire()
    }

    /// Timers due by now fire.
    fn expire(&mut self) -> Outcome {
        let outcome = self.connection.handle_timeout(self.now);
        check_log(&self.connection);
        outcome
    }

    fn deadline(&self) -> Instant {
        self.connection.poll_timeout().expect("a timer runs")
    }

    /// How long until the next timer.
    fn wait(&self) -> Duration {
        self.deadline().since(self.now)
    }

    fn window(&self) -> u64 {
        self.connection.congestion_window()
    }

    fn last_header(&self) -> &TcpRepr {
        self.headers.last().expect("something left")
    }
}

const OFFER: Offer = Offer {
    iss: ISS,
    timestamp_shift: 0,
    segment_bytes: 1460,
    window: RECEIVE_WINDOW,
    accepts_ecn: true,
};

fn tuple() -> FourTuple {
    FourTuple {
        local: "10.0.0.2:80".parse().unwrap(),
        peer: "10.0.0.1:5000".parse().unwrap(),
    }
}

fn syn(peer: Peer) -> TcpRepr {
    TcpRepr {
        sequence: IRS,
        flags: if peer.ecn {
            TcpFlags::SYN.union(ECN_SETUP)
        } else {
            TcpFlags::SYN
        },
        options: TcpOptions {
            mss: Some(peer.segment_bytes + if peer.timestamps { 12 } else { 0 }),
            window_scale: peer.window_shift,
            sack_permitted: peer.sack,
            timestamps: peer.timestamps.then(|| peer_stamp(Instant::ZERO)),
            ..TcpOptions::default()
        },
        ..TcpRepr::default()
    }
}

fn sequence_first() -> SeqNumber {
    sequence(0)
}

/// The timestamp of what we send at `now`: [`OFFER`] shifts it by nothing.
fn our_stamp(now: Instant) -> u32 {
    u32::try_from(now.as_millis()).unwrap()
}

fn peer_stamp(now: Instant) -> Timestamps {
    Timestamps {
        value: u32::try_from(now.as_millis()).unwrap().wrapping_add(5000),
        echo: 0,
    }
}

/// What may be sent, and [`Connection::permission`] agrees.
fn credit(connection: &Connection, now: Instant) -> Credit {
    let credit = connection.credit(now);
    let permission = match &credit {
        Credit::Nothing => Permission::Nothing,
        Credit::From(at) => Permission::From(*at),
        Credit::Now(demand) => {
            assert!(!demand.range.is_empty(), "a demand has bytes");
            Permission::Now
        }
    };
    assert_eq!(connection.permission(now), permission);
    credit
}

/// The log covers SND.UNA..SND.NXT without a gap or an overlap, and its sums agree with it.
fn check_log(connection: &Connection) {
    let send = &connection.send;
    assert!(send.una <= send.nxt && send.nxt <= send.claimed, "{send:?}");
    let mut expected = send.una;
    let mut sums = [0; 4];
    for entry in connection.flight.iter() {
        assert_eq!(entry.start, expected, "no gap and no overlap");
        assert!(entry.start < entry.end, "no empty entry");
        expected = entry.end;
        sums[match entry.state {
            SegmentState::InFlight => 0,
            SegmentState::Sacked => 1,
            SegmentState::Lost => 2,
            SegmentState::Claimed => 3,
        }] += entry.range().bytes();
    }
    assert_eq!(expected, send.nxt, "the log ends at SND.NXT");
    let flight = &connection.flight;
    assert_eq!(
        sums,
        [
            flight.in_flight_bytes(),
            flight.sacked_bytes(),
            flight.lost_bytes(),
            flight.claimed_bytes()
        ]
    );
}
