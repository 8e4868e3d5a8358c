//! Followed and opened streams at both sides of each of their limits, sealed by a server's keys.

use super::super::reply::Piece;
use super::follow::{KEPT_BYTES_MAX, Progress};
use super::keys::{OVERHEAD_BYTES, pair};
use super::*;

const BASE: SeqNumber = SeqNumber(u32::MAX - 100);
const TEXT: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n";
const BODY: &[u8] = &[b'x'; 1000];
const TICKET: &[u8] = &[4, 0, 0, 3, 1, 2, 3];

/// A followed stream, what its server has sealed, and what the program has counted of it.
struct Pair {
    client: Keys,
    server: Keys,
    followed: Followed,
    watched: Watched,
    reached: SeqNumber,
}

impl Pair {
    fn new() -> Self {
        let (client, server) = pair();
        Self {
            client,
            server,
            followed: Followed::new(BASE, 3),
            watched: Watched {
                next_header: BASE,
                records: 3,
                lost: None,
            },
            reached: BASE,
        }
    }

    /// A record of the server, which the program counts.
    fn seal(&mut self, kind: u8, content: &[u8]) -> Vec<u8> {
        let record = self.server.seal(kind, content).expect("short");
        let bytes = u32::try_from(record.len()).expect("short");
        self.watched.next_header = self.watched.next_header.wrapping_add(bytes);
        self.watched.records += 1;
        record
    }

    /// Hands in bytes where a head may be, of which so many are seen.
    fn head(&mut self, bytes: &[u8], seen: usize, is_asked: bool) -> Result<Found, Fault> {
        let piece = Piece {
            bytes: u32::try_from(bytes.len()).expect("short"),
            seen: bytes.get(..seen).unwrap_or(bytes),
        };
        self.reached = self.reached.wrapping_add(piece.bytes);
        self.followed.take_head(&mut self.client, piece, is_asked)
    }

    fn count(&mut self) -> Result<Progress, Fault> {
        let (watched, reached) = (self.watched, self.reached);
        self.followed.count(&mut self.client, watched, reached)
    }

    /// Takes bytes of a body.
    fn body(&mut self, bytes: usize) -> Result<Progress, Fault> {
        let bytes = u32::try_from(bytes).expect("short");
        self.reached = self.reached.wrapping_add(bytes);
        self.count()
    }
}

fn is_head(found: Result<Found, Fault>) -> bool {
    matches!(found, Ok(Found::Head(head, _)) if head.body_bytes == 1000)
}

#[test]
fn a_head_is_decrypted_of_the_beginning_of_its_record_alone() {
    for round in 0..3 {
        let mut pair = Pair::new();
        for _ in 0..round {
            let whole = [TEXT, BODY].concat();
            let record = pair.seal(APPLICATION_DATA, &whole);
            assert!(is_head(pair.head(&record, 100, true)), "{round}");
            let progress = pair.count().expect("right");
            assert!(progress.is_complete && progress.body_bytes == 1000);
            assert_eq!(progress.records, 1);
            assert!(!pair.followed.has_kept());
        }
    }
}

#[test]
fn a_body_in_many_records_is_complete_at_its_last_byte() {
    let mut pair = Pair::new();
    let head = pair.seal(APPLICATION_DATA, TEXT);
    assert!(is_head(pair.head(&head, usize::MAX, true)));
    assert_eq!(pair.count().expect("right").body_bytes, 0);
    let first = pair.seal(APPLICATION_DATA, &BODY[..400]);
    // The program is a record ahead.
    let second = pair.seal(APPLICATION_DATA, &BODY[400..]);
    let progress = pair.body(first.len()).expect("right");
    let bytes = progress.body_bytes;
    assert!(
        bytes <= 400 && bytes + 40 >= 400 && !progress.is_complete,
        "{bytes}"
    );
    let progress = pair.body(second.len() - 1).expect("right");
    assert!(!progress.is_complete);
    let sum = bytes + progress.body_bytes;
    let progress = pair.body(1).expect("right");
    assert!(progress.is_complete && !progress.has_alert);
    assert_eq!(sum + progress.body_bytes, 1000);
}

#[test]
fn a_head_may_be_cut_anywhere_if_all_of_it_is_seen() {
    for cut in 1..TEXT.len() + 40 {
        let mut pair = Pair::new();
        let text = [TEXT, BODY].concat();
        let mut stream = pair.seal(APPLICATION_DATA, &text[..30]);
        stream.extend(pair.seal(APPLICATION_DATA, &text[30..]));
        let (first, second) = stream.split_at(cut);
        let found = pair.head(first, usize::MAX, true).expect("right");
        let has_begun = found != Found::Nothing;
        let found = match found {
            Found::Head(..) => {
                pair.reached = pair
                    .reached
                    .wrapping_add(u32::try_from(second.len()).expect("short"));
                true
            }
            _ => {
                let found = pair.head(second, 100, true);
                let begins = matches!(found, Ok(Found::Head(_, true)));
                assert_eq!(begins, !has_begun, "the first byte comes once: {cut}");
                is_head(found)
            }
        };
        assert!(found, "{cut}");
        assert!(pair.count().expect("right").is_complete, "{cut}");
    }
}

#[test]
fn a_head_beyond_what_is_seen_is_refused() {
    let text = [TEXT, BODY].concat();
    // The record's header and all of the head; one byte less.
    let before = HEADER_BYTES;
    let mut pair = Pair::new();
    let record = pair.seal(APPLICATION_DATA, &text);
    assert!(is_head(pair.head(&record, before + TEXT.len(), true)));
    let mut pair = Pair::new();
    let record = pair.seal(APPLICATION_DATA, &text);
    let found = pair.head(&record, before + TEXT.len() - 1, true);
    assert_eq!(found, Err(Fault::Head));
}

#[test]
fn a_wrong_count_makes_the_next_head_illegible() {
    let mut pair = Pair::new();
    pair.server
        .seal(APPLICATION_DATA, b"never counted")
        .expect("short");
    let record = pair.seal(APPLICATION_DATA, &[TEXT, BODY].concat());
    let found = pair.head(&record, 200, true);
    assert!(found.is_err(), "{found:?}");
    let mut pair = Pair::new();
    pair.server
        .seal(APPLICATION_DATA, b"never counted")
        .expect("short");
    let record = pair.seal(APPLICATION_DATA, TEXT);
    let found = pair.head(&record, usize::MAX, true);
    assert_eq!(found, Err(Fault::Tls(TlsFault::Open)));
}

#[test]
fn sums_that_do_not_fit_are_refused_but_a_close_notify_is_taken() {
    let after = |extra: &[u8]| {
        let mut pair = Pair::new();
        let record = pair.seal(APPLICATION_DATA, &[TEXT, BODY].concat());
        pair.seal(ALERT, extra);
        assert!(is_head(pair.head(&record, 100, true)));
        pair.count()
    };
    assert_eq!(after(&[0; 1]), Err(Fault::Length));
    assert_eq!(after(&[0; 3]), Err(Fault::Length));
    let progress = after(&[1, 0]).expect("right");
    assert!(progress.has_alert && !progress.is_complete);
}

#[test]
fn what_the_program_could_not_follow_is_told() {
    let mut pair = Pair::new();
    let record = pair.seal(APPLICATION_DATA, TEXT);
    assert!(is_head(pair.head(&record, usize::MAX, true)));
    pair.watched.lost = Some(Lost::Gap);
    assert_eq!(pair.count(), Err(Fault::Tls(TlsFault::Lost(Lost::Gap))));
    // Numbers that cannot be: more records than bytes, a header behind what was read.
    let mut wrong = Pair::new();
    let record = wrong.seal(APPLICATION_DATA, TEXT);
    assert!(is_head(wrong.head(&record, usize::MAX, true)));
    wrong.watched.records += 100;
    assert_eq!(wrong.count(), Err(Fault::Tls(TlsFault::Header)));
    let mut behind = Pair::new();
    let record = behind.seal(APPLICATION_DATA, TEXT);
    assert!(is_head(behind.head(&record, usize::MAX, true)));
    let progress = behind.body(4).expect("a header that is not complete");
    assert!(!progress.is_complete);
    assert_eq!(behind.body(1), Err(Fault::Tls(TlsFault::Header)));
}

#[test]
fn tickets_are_passed_over_and_other_messages_are_not() {
    let mut pair = Pair::new();
    let mut stream = pair.seal(HANDSHAKE, &[TICKET, TICKET].concat());
    let (first, second) = stream.split_at(9);
    assert_eq!(pair.head(first, usize::MAX, false), Ok(Found::Nothing));
    assert_eq!(pair.head(second, usize::MAX, false), Ok(Found::Nothing));
    stream = pair.seal(HANDSHAKE, TICKET);
    stream.extend(pair.seal(APPLICATION_DATA, &[TEXT, BODY].concat()));
    assert!(is_head(pair.head(&stream, 300, true)));
    assert!(pair.count().expect("right").is_complete);

    let fault = |kind: u8, content: &[u8]| {
        let mut pair = Pair::new();
        let record = pair.seal(kind, content);
        pair.head(&record, usize::MAX, false)
    };
    let tls = |fault| Err(Fault::Tls(fault));
    assert_eq!(
        fault(HANDSHAKE, &[24, 0, 0, 1, 0]),
        tls(TlsFault::KeyUpdate)
    );
    assert_eq!(fault(HANDSHAKE, &[0, 0, 0, 0]), tls(TlsFault::Message(0)));
    assert_eq!(
        fault(HANDSHAKE, &[4, 0, 0, 9, 1]),
        tls(TlsFault::Message(4))
    );
    assert_eq!(fault(HANDSHAKE, &[4, 0]), tls(TlsFault::Header));
    assert_eq!(fault(ALERT, &[1, 0]), Ok(Found::Nothing));
    assert_eq!(fault(ALERT, &[2, 80]), tls(TlsFault::Alert(80)));
    assert_eq!(fault(APPLICATION_DATA, b"x"), Err(Fault::Unasked));
    assert_eq!(fault(APPLICATION_DATA, b""), Ok(Found::Nothing));
}

#[test]
fn an_unasked_record_that_is_not_seen_whole_is_refused() {
    let mut pair = Pair::new();
    let record = pair.seal(HANDSHAKE, TICKET);
    let found = pair.head(&record, record.len() - 1, false);
    assert_eq!(found, Err(Fault::Unasked));
}

#[test]
fn a_head_has_an_end() {
    let mut pair = Pair::new();
    let start = [b"HTTP/1.1 200 OK\r\nA: ".as_slice(), &[b'a'; 16_000]].concat();
    let mut sent = 0;
    let fault = loop {
        let content: &[u8] = if sent == 0 { &start } else { &[b'a'; 16_000] };
        let record = pair.seal(APPLICATION_DATA, content);
        sent += record.len();
        match pair.head(&record, usize::MAX, true) {
            Ok(found) => assert_eq!(found, Found::Nothing),
            Err(fault) => break fault,
        }
    };
    assert_eq!(fault, Fault::Head);
    assert!(
        sent > KEPT_BYTES_MAX && sent < KEPT_BYTES_MAX + 20_000,
        "{sent}"
    );
}

#[test]
fn records_that_cannot_be_are_refused() {
    let parse = |header| parse_header(header, 17).map_err(|_| ());
    assert_eq!(parse([23, 3, 3, 0, 17]), Ok((23, 17)));
    assert_eq!(parse([23, 3, 3, 0, 16]), Err(()));
    assert_eq!(parse([23, 3, 3, 0x40, 17]), Ok((23, 16_401)));
    assert_eq!(parse([23, 3, 3, 0x40, 18]), Err(()));
    assert_eq!(parse([21, 3, 3, 0, 26]), Ok((21, 26)));
    assert_eq!(parse([20, 3, 3, 0, 26]), Err(()));
    assert_eq!(parse([24, 3, 3, 0, 26]), Err(()));
    assert_eq!(parse([23, 3, 1, 0, 26]), Err(()));
}

#[test]
fn a_sampled_stream_is_opened_record_by_record_and_one_wrong_bit_is_found() {
    let (mut client, mut server) = pair();
    let mut stream = server.seal(HANDSHAKE, TICKET).expect("short");
    stream.extend(server.seal(APPLICATION_DATA, TEXT).expect("short"));
    stream.extend(server.seal(APPLICATION_DATA, BODY).expect("short"));
    let mut opened = Opened::default();
    let mut found = Vec::new();
    for bytes in stream.chunks(7) {
        opened.take(bytes);
        while let Some(content) = opened.next(&mut client).expect("right") {
            found.push(content);
        }
    }
    assert_eq!(found, [TEXT, BODY]);
    assert!(!opened.has_kept());
    let mut wrong = server.seal(APPLICATION_DATA, BODY).expect("short");
    wrong[500] ^= 1;
    opened.take(&wrong);
    assert_eq!(opened.next(&mut client), Err(Fault::Tls(TlsFault::Open)));
}

#[test]
fn what_is_sealed_is_opened_by_the_other_end() {
    let (mut client, server) = pair();
    for number in 0..3 {
        let mut record = client.seal(APPLICATION_DATA, b"GET").expect("short");
        let (header, body) = record.split_first_chunk_mut().expect("a header");
        let (kind, bytes) = parse_header(*header, OVERHEAD_BYTES).expect("right");
        assert_eq!((kind, bytes), (APPLICATION_DATA, body.len()));
        let opened = server.open(number, *header, body);
        assert_eq!(opened, Ok((APPLICATION_DATA, b"GET".as_slice())));
    }
    assert!(client.seal(APPLICATION_DATA, &[0; 1 << 16]).is_none());
}
