//! A connection at both sides of each of its limits, against a server written out by hand.

use super::*;
use crate::filter::WholeShare;

const ISS: SeqNumber = SeqNumber(u32::MAX - 50);
/// The server's first sequence number: bodies pass the wrap.
const SERVER: SeqNumber = SeqNumber(u32::MAX - 20_000);
const REQUEST: &str = "GET /7 HTTP/1.1\r\nHost: 10.0.0.1:8080\r\n\r\n";
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n";
const BODY_BYTES: u32 = 100_000;

#[derive(Debug)]
struct Recorder {
    paths: Vec<u32>,
    sent: Vec<Transmit>,
    events: Vec<Event>,
    /// Offsets and lengths that were compared.
    compared: Vec<(u64, usize)>,
    tls: Option<TlsClient>,
    /// Where the stream that is followed begins.
    followed: Option<SeqNumber>,
    explained: Vec<String>,
    whole: WholeShare,
}

impl World for Recorder {
    fn next_path(&mut self) -> Option<u32> {
        self.paths.pop()
    }
    fn request(&self, _: u32) -> &str {
        REQUEST
    }
    fn object_bytes(&self, _: u32) -> u64 {
        BODY_BYTES.into()
    }
    fn is_content(&mut self, _: u32, offset: u64, bytes: &[u8]) -> bool {
        self.compared.push((offset, bytes.len()));
        !bytes.contains(&b'!')
    }
    fn send(&mut self, transmit: Transmit) {
        self.sent.push(transmit);
    }
    fn on(&mut self, event: Event) {
        self.events.push(event);
    }
    fn mss(&self) -> u16 {
        1460
    }
    fn tls(&self) -> Option<&TlsClient> {
        self.tls.as_ref()
    }
    fn follow(&mut self, first: SeqNumber) {
        self.followed = Some(first);
    }
    fn is_whole(&self, sequence: SeqNumber) -> bool {
        self.whole.has(sequence)
    }
    fn explain(&mut self, text: String) {
        self.explained.push(text);
    }
}

/// A connection that has asked for its first path, and what is around it.
struct Pair {
    connection: Connection,
    world: Recorder,
    now: Instant,
    /// Sequence number of the first byte of the first reply.
    start: SeqNumber,
}

impl Pair {
    fn new(is_sampled: bool) -> Self {
        let mut pair = Self::connected(is_sampled, None);
        let request = pair.last();
        assert_eq!(request.request, Some(7));
        assert_eq!(request.segment.sequence, ISS.wrapping_add(1));
        assert_eq!(request.segment.acknowledgment, pair.start);
        pair.world.events.clear();
        pair.world.sent.clear();
        pair
    }

    /// One over TLS, whose handshake has begun.
    fn handshaking() -> Self {
        let name = "a.test".try_into().expect("a name");
        let tls = TlsClient::trusting(rustls::RootCertStore::empty(), name);
        let tls = tls.expect("sound");
        Self::connected(false, Some(tls))
    }

    fn connected(is_sampled: bool, tls: Option<TlsClient>) -> Self {
        let mut pair = Self {
            connection: Connection::new(ISS, is_sampled),
            world: Recorder {
                paths: vec![8, 7],
                sent: Vec::new(),
                events: Vec::new(),
                compared: Vec::new(),
                tls,
                followed: None,
                explained: Vec::new(),
                whole: WholeShare::ALL,
            },
            now: Instant::from_millis(5),
            start: SERVER.wrapping_add(1),
        };
        pair.connection.open(pair.now, &mut pair.world);
        let syn = pair.last().segment;
        assert_eq!((syn.flags, syn.sequence), (TcpFlags::SYN, ISS));
        let options = syn.options;
        assert!(options.sack_permitted && options.timestamps.is_some());
        assert_eq!((options.mss, options.window_scale), (Some(1460), Some(10)));
        pair.take(SERVER, TcpFlags::SYN, 0, &[]);
        pair
    }

    /// Hands a segment of the server in, which acknowledges all that was sent.
    fn take(&mut self, sequence: SeqNumber, flags: TcpFlags, bytes: u32, seen: &[u8]) {
        let header = TcpRepr {
            sequence,
            acknowledgment: self.connection.send_next,
            flags: flags.union(TcpFlags::ACK),
            options: TcpOptions {
                timestamps: Some(Timestamps { value: 9, echo: 0 }),
                ..TcpOptions::default()
            },
            ..TcpRepr::default()
        };
        let arrival = Arrival {
            header,
            frame_start: sequence,
            bytes,
            seen,
        };
        self.connection
            .handle_segment(self.now, &arrival, &mut self.world);
    }

    /// The same with text at an offset of the first reply.
    fn text(&mut self, offset: u32, bytes: u32, seen: &[u8]) {
        let sequence = self.start.wrapping_add(offset);
        self.take(sequence, TcpFlags::default(), bytes, seen);
    }

    fn last(&self) -> Transmit {
        self.world.sent.last().cloned().expect("something was sent")
    }

    fn last_acknowledged(&self) -> u32 {
        let acknowledged = self.last().segment.acknowledgment;
        acknowledged.0.wrapping_sub(self.start.0)
    }

    fn sacked(&self) -> Vec<(u32, u32)> {
        let offset = |number: SeqNumber| number.0.wrapping_sub(self.start.0);
        let blocks = self.last().segment.options.sack;
        let blocks = blocks.as_slice().iter();
        blocks.map(|it| (offset(it.0), offset(it.1))).collect()
    }

    fn has(&self, event: Event) -> bool {
        self.world.events.contains(&event)
    }
}

const HEAD_BYTES: u32 = 43;
const REPLY_BYTES: u32 = HEAD_BYTES + BODY_BYTES;

#[test]
fn a_reply_in_order_is_counted_and_the_next_asked_for_at_its_last_byte() {
    assert_eq!(HEAD.len(), 43);
    let mut pair = Pair::new(false);
    pair.text(0, 60_000, HEAD);
    assert_eq!(pair.last_acknowledged(), 60_000);
    assert_eq!(pair.last().request, None);
    pair.now += Duration::from_millis(3);
    pair.text(60_000, REPLY_BYTES - 60_001, &[]);
    assert_eq!((pair.last().request, pair.world.sent.len()), (None, 2));
    pair.text(REPLY_BYTES - 1, 1, &[]);
    assert_eq!(pair.last().request, Some(8));
    assert_eq!(pair.last_acknowledged(), REPLY_BYTES, "the request says so");
    assert_eq!(pair.world.sent.len(), 3);
    assert!(pair.has(Event::FirstByte(Duration::ZERO)));
    let replied = Event::Replied(BODY_BYTES.into(), Duration::from_millis(3));
    assert!(pair.has(replied), "{:?}", pair.world.events);
    let counted = pair.world.events.iter().map(|it| match it {
        Event::Body(bytes) => *bytes,
        _ => 0,
    });
    assert_eq!(counted.sum::<u32>(), BODY_BYTES);
    assert!(pair.connection.is_waiting());
    pair.text(REPLY_BYTES, REPLY_BYTES, HEAD);
    assert!(!pair.connection.is_waiting(), "nothing is left to ask");
    assert_eq!(pair.last().request, None);
}

#[test]
fn a_connection_whose_turn_comes_later_asks_when_it_is_told_to() {
    let mut pair = Pair::new(false);
    pair.world.paths.clear();
    pair.text(0, REPLY_BYTES, HEAD);
    assert_eq!(pair.last().request, None);
    pair.connection.start(pair.now, &mut pair.world);
    assert_eq!(pair.world.sent.len(), 1, "nothing to ask");
    pair.world.paths.push(9);
    pair.connection.start(pair.now, &mut pair.world);
    assert_eq!(pair.last().request, Some(9));
    pair.world.paths.push(10);
    pair.connection.start(pair.now, &mut pair.world);
    assert_eq!(pair.world.paths, [10], "one request at a time");
}

#[test]
fn a_gap_is_reported_until_it_is_filled() {
    let mut pair = Pair::new(false);
    pair.text(0, 1448, HEAD);
    pair.text(2896, 1448, &[]);
    assert_eq!(pair.last_acknowledged(), 1448);
    assert_eq!(pair.sacked(), [(2896, 4344)]);
    pair.text(7240, 1448, &[]);
    assert_eq!(pair.sacked(), [(7240, 8688), (2896, 4344)]);
    assert!(pair.has(Event::OutOfOrder) && !pair.has(Event::GapFilled));
    pair.text(1448, 1448, &[]);
    assert_eq!((pair.last_acknowledged(), pair.sacked().len()), (4344, 1));
    assert!(pair.has(Event::GapFilled));
    pair.text(4344, 2896, &[]);
    assert_eq!((pair.last_acknowledged(), pair.sacked().len()), (8688, 0));
    pair.text(8688, REPLY_BYTES - 8688, &[]);
    assert_eq!(pair.last().request, Some(8));
}

#[test]
fn the_lost_head_of_a_reply_may_come_last() {
    let mut pair = Pair::new(false);
    pair.text(1448, REPLY_BYTES - 1448, &[]);
    assert_eq!(pair.last_acknowledged(), 0);
    pair.text(0, 1448, HEAD);
    assert_eq!(pair.last().request, Some(8));
    let mut pair = Pair::new(false);
    pair.text(20, 1428, &[]);
    pair.text(0, 20, &HEAD[..20]);
    assert!(pair.has(Event::Failed(Fault::Head)), "its rest is not kept");
}

#[test]
fn a_segment_beyond_the_window_has_no_place() {
    let mut pair = Pair::new(false);
    pair.text(WINDOW_BYTES - 1, 1, &[]);
    assert_eq!(pair.sacked().len(), 1);
    pair.text(WINDOW_BYTES - 1, 2, &[]);
    assert!(pair.has(Event::Unplaced));
}

#[test]
fn a_duplicate_is_acknowledged_at_once_and_reported_as_such() {
    let mut pair = Pair::new(false);
    pair.text(0, 2896, HEAD);
    pair.text(0, 1448, HEAD);
    assert!(pair.has(Event::Duplicate));
    assert_eq!(pair.last_acknowledged(), 2896);
    assert_eq!(pair.sacked(), [(0, 1448)], "RFC 2883");
    pair.world.events.clear();
    pair.text(1448, 1449, &[]);
    assert_eq!(pair.world.events, [Event::Body(1)], "one byte was new");
}

#[test]
fn a_head_in_two_frames_is_put_together() {
    let mut pair = Pair::new(false);
    pair.text(0, 20, &HEAD[..20]);
    assert_eq!(pair.last_acknowledged(), 20);
    pair.text(20, REPLY_BYTES - 20, &HEAD[20..]);
    assert_eq!(pair.last().request, Some(8));
    let first = pair.world.events.iter();
    let first = first.filter(|it| matches!(it, Event::FirstByte(_)));
    assert_eq!(first.count(), 1);
}

#[test]
fn a_second_reply_in_a_frame_was_not_asked_for() {
    let mut pair = Pair::new(false);
    pair.text(0, REPLY_BYTES + 1, HEAD);
    assert!(pair.has(Event::Failed(Fault::Unasked)));
    assert_eq!(
        pair.last().segment.flags,
        TcpFlags::RST.union(TcpFlags::ACK)
    );
    assert!(!pair.connection.is_open());
}

#[test]
fn wrong_replies_end_the_connection() {
    let wrong = [
        (
            "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",
            Fault::Status(503),
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n",
            Fault::Length,
        ),
        ("HTTP/1.1 200 OK\r\nServer: a\r\n\r\n", Fault::Head),
    ];
    for (text, fault) in wrong {
        let mut pair = Pair::new(false);
        let bytes = u32::try_from(text.len()).expect("short");
        pair.text(0, bytes, text.as_bytes());
        assert!(pair.has(Event::Failed(fault)), "{text}");
    }
}

#[test]
fn a_probe_of_an_idle_connection_is_answered_and_an_acknowledgment_is_not() {
    for (back, answers) in [(1, 1), (0, 0)] {
        let mut pair = Pair::new(false);
        pair.text(0, REPLY_BYTES, HEAD);
        let sent = pair.world.sent.len();
        let sequence = pair.start.wrapping_add(REPLY_BYTES - back);
        pair.take(sequence, TcpFlags::ACK, 0, &[]);
        assert_eq!(pair.world.sent.len() - sent, answers, "{back}");
        assert_eq!(pair.last_acknowledged(), REPLY_BYTES);
    }
}

#[test]
fn only_a_reset_at_the_next_byte_counts() {
    let mut pair = Pair::new(false);
    pair.take(pair.start.wrapping_add(1), TcpFlags::RST, 0, &[]);
    assert!(pair.connection.is_open());
    pair.take(pair.start, TcpFlags::RST, 0, &[]);
    assert!(pair.has(Event::Failed(Fault::Reset)));
    assert!(!pair.connection.is_waiting());
    let mut pair = Pair::new(false);
    pair.text(0, REPLY_BYTES, HEAD);
    let next = pair.start.wrapping_add(REPLY_BYTES);
    pair.take(next, TcpFlags::RST, 0, &[]);
    assert!(pair.has(Event::ClosedByServer), "between two replies");
    assert_eq!(pair.connection.path(), Some(8), "asked again");
}

#[test]
fn a_server_that_closes_between_replies_is_connected_to_again() {
    let mut pair = Pair::new(false);
    pair.text(0, REPLY_BYTES, HEAD);
    let asked = pair.last().segment;
    // The request for path 8 is on its way when the server closes.
    pair.take(pair.start.wrapping_add(REPLY_BYTES), TcpFlags::FIN, 0, &[]);
    assert!(pair.has(Event::ClosedByServer) && !pair.connection.is_open());
    assert_eq!(pair.last_acknowledged(), REPLY_BYTES + 1);
    pair.connection.open(pair.now, &mut pair.world);
    let syn = pair.last().segment;
    assert!(
        syn.sequence.distance(asked.sequence) > 0,
        "TIME-WAIT takes it"
    );
    pair.take(SERVER, TcpFlags::SYN, 0, &[]);
    assert_eq!(pair.last().request, Some(8), "asked again");
}

#[test]
fn a_fin_with_the_last_byte_is_taken_and_one_amid_a_reply_is_a_fault() {
    let mut pair = Pair::new(false);
    pair.text(0, 1448, HEAD);
    let last = pair.start.wrapping_add(1448);
    pair.take(last, TcpFlags::FIN, REPLY_BYTES - 1448, &[]);
    assert!(pair.has(Event::ClosedByServer) && !pair.connection.is_waiting());
    let mut pair = Pair::new(false);
    pair.take(pair.start, TcpFlags::FIN, REPLY_BYTES - 1, HEAD);
    assert!(pair.has(Event::Failed(Fault::Closed)));
}

#[test]
fn after_connection_close_nothing_is_asked() {
    let mut pair = Pair::new(false);
    let head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n";
    let bytes = u32::try_from(head.len()).expect("short") + BODY_BYTES;
    pair.text(0, bytes, head);
    assert_eq!(pair.last().request, None);
    pair.take(pair.start.wrapping_add(bytes), TcpFlags::FIN, 0, &[]);
    assert!(pair.has(Event::ClosedByServer));
}

#[test]
fn what_is_not_answered_is_sent_again_and_given_up() {
    let mut pair = Pair::new(false);
    let request = pair.connection.send_next;
    for attempt in 1..=ATTEMPTS_MAX {
        pair.now = pair.connection.resend_at;
        pair.connection.handle_time(pair.now, &mut pair.world);
        assert_eq!(pair.connection.send_next, request);
        assert_eq!(pair.connection.is_open(), attempt < ATTEMPTS_MAX);
    }
    assert!(pair.has(Event::Failed(Fault::Silent)));
    assert_eq!(pair.world.sent.len(), usize::from(ATTEMPTS_MAX) - 1);
    let mut pair = Pair::new(false);
    pair.take(pair.start, TcpFlags::default(), 0, &[]);
    pair.connection
        .handle_time(Instant::FAR_FUTURE, &mut pair.world);
    assert!(pair.world.sent.is_empty(), "the server has it: its turn");
}

#[test]
fn a_refused_syn_is_tried_again() {
    let mut pair = Pair::new(false);
    pair.connection = Connection::new(ISS, false);
    pair.connection.open(pair.now, &mut pair.world);
    pair.take(SeqNumber(0), TcpFlags::RST, 0, &[]);
    assert!(pair.has(Event::Refused) && pair.connection.is_open());
    pair.now += REFUSED_WAIT;
    pair.connection.handle_time(pair.now, &mut pair.world);
    let syn = pair.last().segment;
    assert_eq!((syn.flags, syn.sequence), (TcpFlags::SYN, ISS));
}

#[test]
fn a_sampled_reply_is_compared_byte_by_byte_wherever_it_comes() {
    let text = [HEAD, vec![b'x'; BODY_BYTES as usize].as_slice()].concat();
    let mut pair = Pair::new(true);
    let part = |from: usize, to: usize| text.get(from..to).expect("inside");
    pair.text(1448, 1448, part(1448, 2896));
    assert!(pair.has(Event::Unplaced), "the body's place is not known");
    pair.text(0, 1448, part(0, 1448));
    pair.text(2896, 1448, part(2896, 4344));
    pair.text(1448, 1448, part(1448, 2896));
    let head = u64::from(HEAD_BYTES);
    let expected = [(0, 1405), (2896 - head, 1448), (1448 - head, 1448)];
    assert_eq!(pair.world.compared, expected);
    assert_eq!(pair.last_acknowledged(), 4344);
    pair.text(4344, 4, b"xx!x");
    assert!(pair.has(Event::Failed(Fault::Bytes)));
    let mut pair = Pair::new(true);
    pair.text(0, 1448, HEAD);
    assert!(pair.has(Event::Failed(Fault::Bytes)), "not all was seen");
}

#[test]
fn what_is_not_delivered_whole_of_a_sampled_reply_is_counted_and_not_compared() {
    let mut pair = Pair::new(true);
    pair.world.whole = WholeShare::one_in(2).expect("a power of two");
    let whole = pair.start.distance(SeqNumber(0)).unsigned_abs();
    // Up to the wrap of the sequence numbers nothing is whole, behind it 64 KiB are.
    pair.text(0, 20_000, HEAD);
    assert!(pair.world.compared.is_empty());
    pair.text(20_000, whole - 20_000, b"");
    pair.text(whole, 4, b"xxxx");
    let offset = u64::from(whole - HEAD_BYTES);
    assert_eq!(pair.world.compared, [(offset, 4)]);
    pair.text(whole + 4, 4, b"");
    assert!(pair.has(Event::Failed(Fault::Bytes)), "not all was seen");
}

#[test]
fn a_handshake_is_followed_from_the_first_byte_and_sent_again() {
    let mut pair = Pair::handshaking();
    assert!(pair.connection.is_connecting());
    assert_eq!(pair.world.followed, Some(pair.start));
    let hello = pair.last();
    assert_eq!(hello.request, None);
    let text = hello.sealed.clone().expect("a ClientHello");
    assert_eq!(text.first(), Some(&22));
    pair.now = pair.connection.resend_at;
    pair.connection.handle_time(pair.now, &mut pair.world);
    let again = pair.last();
    assert_eq!(again.segment.sequence, hello.segment.sequence);
    assert_eq!(again.sealed, hello.sealed);
    let sent = pair.world.sent.len();
    pair.take(pair.start, TcpFlags::default(), 0, &[]);
    pair.now += Duration::from_secs(20);
    pair.connection.handle_time(pair.now, &mut pair.world);
    assert_eq!(pair.world.sent.len(), sent, "the server has it: its turn");
}

#[test]
fn a_handshake_ends_in_time_or_not_at_all() {
    let mut pair = Pair::handshaking();
    let fault = Event::Failed(Fault::Tls(TlsFault::Handshake));
    pair.take(pair.start, TcpFlags::default(), 0, &[]);
    pair.now = pair.connection.asked_at + HANDSHAKE_MAX;
    pair.connection.handle_time(pair.now, &mut pair.world);
    assert!(!pair.has(fault) && pair.connection.is_connecting());
    pair.now += Duration::from_nanos(1);
    pair.connection.handle_time(pair.now, &mut pair.world);
    assert!(pair.has(fault) && !pair.connection.is_open());
}

#[test]
fn what_is_no_handshake_is_refused_and_said_why() {
    let take = |bytes: u32, seen: &[u8], flags| {
        let mut pair = Pair::handshaking();
        pair.take(pair.start, flags, bytes, seen);
        let failed = pair.world.events.iter().find_map(|it| match it {
            Event::Failed(fault) => Some(*fault),
            _ => None,
        });
        (failed, pair.world.explained.len())
    };
    let none = TcpFlags::default();
    let handshake = Some(Fault::Tls(TlsFault::Handshake));
    assert_eq!(take(8, b"HTTP/1.1", none), (handshake, 1));
    assert_eq!(take(7, &[21, 3, 3, 0, 2, 2, 40], none), (handshake, 1));
    let unseen = Some(Fault::Tls(TlsFault::Unseen));
    assert_eq!(take(1448, &[22, 3, 3], none), (unseen, 0));
    assert_eq!(take(3, &[22, 3, 3], none), (None, 0), "it may go on");
    assert_eq!(take(0, &[], TcpFlags::FIN), (Some(Fault::Closed), 0));
    assert_eq!(take(0, &[], TcpFlags::RST), (Some(Fault::Reset), 0));
}

#[test]
fn a_connection_is_small() {
    assert!(
        size_of::<Connection>() <= 144,
        "{}",
        size_of::<Connection>()
    );
}
