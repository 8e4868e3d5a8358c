//! Replies that begin anew: their file changed before anything of them was sent.

use clock::Duration;
use memory::FilledSlot;
use record::{ContentType, Sealer, Version};
use wire::TcpFlags;

use super::tls::{TlsPeer, answer, key, next_plan, tls_config};
use super::{Bench, OBJECT_BYTES, Peer, assert_is_object, config, content, object, taken};
use crate::{
    LookupError, LookupPlan, Object, ReadError, ReadPlan, TlsAnswer, TlsPlan, TransmitProgress,
    Transmitted,
};

/// What the file has after it has changed is the object XOR this.
const TWIST: u8 = 0x55;
const LATER_BYTES: u64 = 50_000;

impl Bench {
    /// A read finds that its file has changed.
    pub(super) fn find_changed(&mut self, read: ReadPlan) {
        let failed: Result<FilledSlot, _> = Err((read.slot, ReadError::Changed));
        (self.conductor).handle_completion(self.now, &mut self.arena, read.token, failed);
    }

    /// A moment later the path is looked up again.
    pub(super) fn next_look_up(&mut self) -> LookupPlan {
        assert!(self.conductor.poll_lookup().is_none(), "not at once");
        // Other timers, of TCP, may be due before the end of a longer pause.
        loop {
            self.now = self.conductor.poll_timeout().expect("a pause");
            (self.conductor).handle_timeouts(self.now, &mut self.arena);
            if let Some(plan) = self.conductor.poll_lookup() {
                assert!(self.conductor.poll_lookup().is_none(), "one look-up");
                return plan;
            }
        }
    }

    /// All reads under way find it, the newest first. Returns the look-up that follows.
    fn change(&mut self) -> LookupPlan {
        assert!(!self.reads.is_empty(), "reads are under way");
        while let Some(read) = self.reads.pop() {
            self.find_changed(read);
        }
        self.twist = TWIST;
        self.object_bytes = LATER_BYTES;
        self.next_look_up()
    }
}

fn ask(bench: &mut Bench, fields: &str) -> Peer {
    let mut peer = Peer::connect(bench, 1000);
    peer.ask(
        bench,
        &format!("GET /object HTTP/1.1\r\nHost: a\r\n{fields}\r\n"),
    );
    peer
}

/// The same on a connection whose window is open, so that several reads are under way.
fn ask_for_more(bench: &mut Bench) -> Peer {
    let mut peer = Peer::connect(bench, 1000);
    peer.get(bench, "/object");
    peer.drain(bench);
    peer.received.clear();
    bench.released();
    peer.get(bench, "/object");
    assert!(bench.reads.len() > 1, "several reads are under way");
    peer
}

/// Of the file after it has changed.
fn assert_is_later(bytes: &[u8], from: u64) {
    for (byte, offset) in bytes.iter().zip(from..) {
        assert_eq!(*byte, content(offset) ^ TWIST, "at {offset}");
    }
}

#[test]
fn a_reply_of_which_nothing_was_sent_begins_anew() {
    let mut bench = Bench::new();
    let mut peer = ask_for_more(&mut bench);
    let plan = bench.change();
    assert_eq!(plan.path, "/object");
    assert_eq!(bench.released(), 1);
    assert_eq!(bench.arena.free_count(), bench.arena.slot_count());
    bench.transmit();
    peer.take(&mut bench);
    assert!(!peer.reset && peer.received.is_empty());
    bench.answer(&plan, None);
    bench.turn();
    peer.drain(&mut bench);
    let (head, body) = peer.head_and_rest();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("\r\nContent-Length: 50000\r\n"), "{head}");
    assert_eq!(body.len() as u64, LATER_BYTES);
    assert_is_later(body, 0);
    let counters = bench.conductor.counters();
    assert_eq!(counters.session_reply_anew_count, 1);
    assert_eq!(counters.tcp_abort_count, 0);
    assert_eq!(
        (counters.http_request_count, counters.http_reply_count),
        (2, 2)
    );
    // The connection is as good as before.
    peer.received.clear();
    peer.get(&mut bench, "/object");
    peer.drain(&mut bench);
    assert_eq!(peer.head_and_rest().1.len() as u64, LATER_BYTES);
    peer.close(&mut bench);
    assert_eq!(bench.released(), 2);
    bench.assert_quiet();
}

#[test]
fn what_arrived_and_was_not_sent_is_thrown_away() {
    let mut bench = Bench::new();
    let mut peer = ask_for_more(&mut bench);
    // The second read is complete, and waits for the first.
    let second = bench.reads.remove(1);
    bench.complete(second, OBJECT_BYTES);
    bench.transmit();
    let plan = bench.change();
    assert_eq!(bench.arena.free_count(), bench.arena.slot_count());
    bench.answer(&plan, None);
    bench.turn();
    peer.drain(&mut bench);
    assert_is_later(peer.head_and_rest().1, 0);
}

#[test]
fn a_request_is_answered_so_many_times_at_most() {
    let beginnings_max = config().beginnings_max;
    let mut bench = Bench::new();
    let mut peer = ask(&mut bench, "");
    for _ in 1..beginnings_max {
        let plan = bench.change();
        bench.answer(&plan, None);
        bench.turn();
    }
    // The next request has its own number of times.
    peer.drain(&mut bench);
    assert_is_later(peer.head_and_rest().1, 0);
    peer.received.clear();
    peer.get(&mut bench, "/object");
    for _ in 1..beginnings_max {
        let plan = bench.change();
        bench.answer(&plan, None);
        bench.turn();
    }
    let read = bench.reads.pop().unwrap();
    bench.find_changed(read);
    bench.turn();
    peer.take(&mut bench);
    assert!(peer.reset && peer.received.is_empty());
    assert_eq!(
        bench.conductor.counters().session_reply_anew_count,
        2 * u64::from(beginnings_max - 1)
    );
}

/// Start and length of what is sent of the file.
type Part = Option<(u64, u64)>;

/// What a look-up finds.
type Finding = fn() -> Result<Object, LookupError>;

fn later() -> Result<Object, LookupError> {
    let mut later = object(LATER_BYTES);
    later.meta.modified.seconds += 1;
    later.meta.seen.seconds += 60;
    Ok(later)
}

fn empty() -> Result<Object, LookupError> {
    let mut empty = later()?;
    empty.meta.size_bytes = 0;
    Ok(empty)
}

/// Modified in the tick of the clock in which it was seen.
fn young() -> Result<Object, LookupError> {
    let mut young = later()?;
    young.meta.seen = young.meta.modified;
    Ok(young)
}

#[test]
fn the_new_answer_is_of_the_new_look_up_alone() {
    let first = object(OBJECT_BYTES).meta.modified.seconds;
    let tag = |seconds: i64, bytes: u64| format!("\"{seconds:x}-{bytes:x}\"");
    let (old, new) = (tag(first, OBJECT_BYTES), tag(first + 1, LATER_BYTES));
    let if_range = format!("If-Range: {old}\r\nRange: bytes=9-\r\n");
    let if_none_match = format!("If-None-Match: {new}\r\n");
    let if_match = format!("If-Match: {old}\r\n");
    let range = "Range: bytes=40000-69999\r\n";
    let high = "Range: bytes=250000-\r\n";
    let all = LATER_BYTES;
    let gone = || Err(LookupError::NotFound);
    let cases: [(&str, Finding, &str, Part); 8] = [
        ("", later, "200", Some((0, all))),
        (range, later, "206", Some((40_000, 10_000))),
        (high, later, "416", None),
        (&if_range, later, "200", Some((0, all))),
        (&if_none_match, later, "304", None),
        (&if_match, later, "412", None),
        ("", gone, "404", None),
        ("", young, "200", Some((0, all))),
    ];
    for (fields, found, status, part) in cases {
        let mut bench = Bench::new();
        let mut peer = ask(&mut bench, fields);
        let plan = bench.change();
        (bench.conductor).handle_lookup(bench.now, plan.token, found());
        bench.turn();
        peer.drain(&mut bench);
        let (head, rest) = peer.head_and_rest();
        let what = format!("{fields:?}: {head}");
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{what}");
        if let Some((start, length)) = part {
            assert!(
                head.contains(&format!("\r\nContent-Length: {length}\r\n")),
                "{what}"
            );
            assert_eq!(rest.len() as u64, length, "{what}");
            assert_is_later(rest, start);
            let is_young = found().is_ok_and(|found| found.meta.seen == found.meta.modified);
            assert_eq!(head.contains(&new), !is_young, "{what}");
        }
        if status == "416" {
            assert!(
                head.contains("\r\nContent-Range: bytes */50000\r\n"),
                "{what}"
            );
        }
        // Whatever it was, the next request is answered.
        peer.received.clear();
        peer.get(&mut bench, "/nothing");
        peer.drain(&mut bench);
        assert!(peer.head_and_rest().0.starts_with("HTTP/1.1 404 "));
        assert_eq!(bench.released() as u64, 1 + u64::from(found().is_ok()));
    }
}

#[test]
fn a_file_that_was_cut_gets_its_writer_some_moments() {
    let beginnings_max = config().beginnings_max;
    let mut bench = Bench::new();
    let mut peer = ask(&mut bench, "");
    let mut plan = bench.change();
    (bench.conductor).handle_lookup(bench.now, plan.token, empty());
    plan = bench.next_look_up();
    bench.answer(&plan, None);
    bench.turn();
    peer.drain(&mut bench);
    assert_is_later(peer.head_and_rest().1, 0);
    assert_eq!(bench.released(), 3);

    // One that stays empty is empty.
    peer.received.clear();
    peer.get(&mut bench, "/object");
    let mut before = bench.now;
    plan = bench.change();
    let mut pauses_ms = vec![bench.now.since(before).as_millis()];
    for _ in 1..beginnings_max {
        (bench.conductor).handle_lookup(bench.now, plan.token, empty());
        before = bench.now;
        plan = bench.next_look_up();
        pauses_ms.push(bench.now.since(before).as_millis());
    }
    assert_eq!(pauses_ms, [2, 4, 8, 16, 32, 64, 128, 256]);
    (bench.conductor).handle_lookup(bench.now, plan.token, empty());
    bench.turn();
    peer.drain(&mut bench);
    let (head, rest) = peer.head_and_rest();
    assert!(head.contains("\r\nContent-Length: 0\r\n") && rest.is_empty());

    // And so is one that was empty when it was asked for.
    peer.received.clear();
    bench.object_bytes = 0;
    peer.get(&mut bench, "/object");
    peer.drain(&mut bench);
    let (head, rest) = peer.head_and_rest();
    assert!(head.contains("\r\nContent-Length: 0\r\n") && rest.is_empty());
}

#[test]
fn a_reply_to_head_needs_no_read_and_is_never_anew() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    let requests = "HEAD /object HTTP/1.1\r\nHost: a\r\n\r\n".repeat(3);
    peer.ask(&mut bench, &requests);
    assert!(bench.reads.is_empty());
    // All of them were taken before anything was sent.
    assert_eq!(bench.conductor.counters().http_reply_count, 3);
}

#[test]
fn requests_behind_it_are_answered_in_order() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    let get = |path: &str, range: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: a\r\nRange: bytes={range}\r\n\r\n")
    };
    let body = "GET /no HTTP/1.1\r\n\r\n";
    let all = [
        get("/nothing", "0-"),
        format!(
            "GET /object HTTP/1.1\r\nHost: a\r\nRange: bytes=5-9\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ),
        get("/object", "100-109"),
        get("/gone", "0-"),
    ];
    peer.ask(&mut bench, &all.concat());
    bench.turn();
    // The text before it and the reply that changes are fetched together.
    assert_eq!(bench.reads.len(), 1);
    assert_eq!(bench.conductor.counters().http_request_count, 2);
    let plan = bench.change();
    bench.answer(&plan, None);
    bench.turn();
    for _ in 0..4 {
        peer.drain(&mut bench);
        bench.turn();
    }
    let mut seen = Vec::new();
    for place in [None, Some(5), Some(100), None] {
        let (head, rest) = peer.head_and_rest();
        seen.push(head["HTTP/1.1 ".len()..][..3].to_owned());
        let length = head.split("Content-Length: ").nth(1).unwrap();
        let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
        if let Some(place) = place {
            assert_eq!(length, if place == 5 { 5 } else { 10 });
            assert_is_later(&rest[..length], place);
        }
        peer.received = rest[length..].to_vec();
    }
    assert_eq!(seen, ["404", "206", "206", "404"]);
    assert!(peer.received.is_empty() && !peer.reset);
    assert_eq!(bench.conductor.counters().http_request_count, 4);
    assert_eq!(bench.released(), 3);
}

#[test]
fn what_is_sent_again_of_the_reply_before_stays() {
    let mut bench = Bench::new();
    let mut peer = ask(&mut bench, "Range: bytes=0-999\r\n");
    bench.complete_reads();
    // The first reply is lost. The next request comes, and a timeout.
    bench.take_segments(1000);
    peer.get(&mut bench, "/object");
    let read = bench.reads.pop().expect("a read for the second reply");
    assert!(bench.reads.is_empty(), "and no other");
    while bench.reads.is_empty() {
        bench.pass(Duration::from_millis(100));
    }
    let again = bench.reads.pop().unwrap();
    assert_eq!(again.offset_bytes, 0);
    bench.find_changed(read);
    // As the old file was: another one than the second reply's.
    bench.complete(again, OBJECT_BYTES);
    bench.transmit();
    peer.take(&mut bench);
    let (_, rest) = peer.head_and_rest();
    assert_eq!(rest.len(), 1000);
    assert_is_object(rest, 0);
    peer.received.clear();
    bench.twist = TWIST;
    peer.send(&mut bench, TcpFlags::ACK, b"");
    let plan = bench.next_look_up();
    bench.answer(&plan, None);
    bench.turn();
    peer.drain(&mut bench);
    let (_, rest) = peer.head_and_rest();
    assert_eq!(rest.len() as u64, OBJECT_BYTES);
    assert_is_later(rest, 0);
}

#[test]
fn a_read_for_an_earlier_reply_is_no_reason_to_begin_the_last_one_anew() {
    let mut bench = Bench::new();
    let mut peer = ask(&mut bench, "Range: bytes=0-20000\r\n");
    let first = bench.reads.remove(0);
    bench.complete(first, OBJECT_BYTES);
    bench.turn();
    peer.take(&mut bench);
    peer.get(&mut bench, "/other");
    assert!(bench.conductor.counters().http_reply_count == 2);
    let rest = bench.reads.remove(0);
    bench.find_changed(rest);
    bench.turn();
    peer.take(&mut bench);
    assert!(peer.reset);
}

#[test]
fn a_connection_that_closes_says_so_in_the_new_reply() {
    let mut bench = Bench::new();
    let mut peer = ask(&mut bench, "");
    bench.conductor.shut_down(bench.now);
    let plan = bench.change();
    bench.answer(&plan, None);
    bench.turn();
    peer.drain(&mut bench);
    let (head, body) = peer.head_and_rest();
    assert!(head.contains("\r\nConnection: close\r\n"), "{head}");
    assert_is_later(body, 0);
    assert_eq!(body.len() as u64, LATER_BYTES);
    assert!(peer.finished);
}

#[test]
fn a_client_that_leaves_meanwhile_leaves_nothing() {
    let mut bench = Bench::new();
    let mut peer = ask(&mut bench, "");
    let plan = bench.change();
    peer.send(&mut bench, TcpFlags::RST, b"");
    bench.answer(&plan, None);
    bench.turn();
    assert_eq!(bench.released(), 2);
    bench.assert_quiet();
}

#[test]
fn over_tls_too_and_its_record_numbers_are_used_for_the_new_reply() {
    for version in [Version::Tls12, Version::Tls13] {
        let mut bench = Bench::with(tls_config(), 8);
        let mut client = TlsPeer::connect(&mut bench, 1000, version);
        client.get(&mut bench);
        let plan = bench.change();
        bench.answer(&plan, None);
        bench.turn();
        client.drain(&mut bench);
        assert_eq!(client.body().len() as u64, LATER_BYTES);
        assert_is_later(client.body(), 0);
        assert_eq!(bench.conductor.counters().session_reply_anew_count, 1);
    }
}

#[test]
fn a_record_that_was_sealed_keeps_its_content_though_the_link_took_nothing() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut client = TlsPeer::connect(&mut bench, 1000, Version::Tls13);
    client.get(&mut bench);
    client.drain(&mut bench);
    client.get(&mut bench);
    assert!(bench.reads.len() > 1);
    let first = bench.reads.remove(0);
    bench.complete(first, OBJECT_BYTES);
    let full = (bench.conductor).transmit(bench.now, &mut bench.arena, &mut |frame| {
        drop(taken(frame));
        Transmitted::Full
    });
    assert_eq!(full, TransmitProgress::Full);
    assert!(bench.conductor.counters().record_seal_count > 0);
    let read = bench.reads.remove(0);
    bench.find_changed(read);
    bench.turn();
    client.peer.take(&mut bench);
    assert!(client.peer.reset);
    assert_eq!(bench.conductor.counters().session_reply_anew_count, 0);
}

#[test]
fn without_tls_a_full_link_took_nothing() {
    let mut bench = Bench::new();
    let mut peer = ask_for_more(&mut bench);
    let first = bench.reads.remove(0);
    bench.complete(first, OBJECT_BYTES);
    let full = (bench.conductor).transmit(bench.now, &mut bench.arena, &mut |frame| {
        drop(taken(frame));
        Transmitted::Full
    });
    assert_eq!(full, TransmitProgress::Full);
    let plan = bench.change();
    bench.answer(&plan, None);
    bench.turn();
    peer.drain(&mut bench);
    assert_is_later(peer.head_and_rest().1, 0);
}

/// The client sends a KeyUpdate that asks for ours, which is queued.
fn update_keys(bench: &mut Bench, client: &mut TlsPeer) {
    client.say(bench, ContentType::Handshake, &[24, 0, 0, 1, 1]);
    client.sealer = Sealer::new(&key(Version::Tls13, 102));
    client.number = 0;
    for byte in [102, 2] {
        let Some(TlsPlan::NextKey { token, .. }) = next_plan(bench) else {
            panic!("a key is wanted");
        };
        let key = key(Version::Tls13, byte);
        answer(bench, token, TlsAnswer::NextKey { key });
    }
}

#[test]
fn a_key_update_is_never_taken_back() {
    // Behind records of the reply that are being fetched: it stays, and so must they.
    let mut bench = Bench::with(tls_config(), 8);
    let mut client = TlsPeer::connect(&mut bench, 1000, Version::Tls13);
    client.get(&mut bench);
    update_keys(&mut bench, &mut client);
    let read = bench.reads.pop().unwrap();
    bench.find_changed(read);
    bench.turn();
    client.peer.take(&mut bench);
    assert!(client.peer.reset);

    // Before the reply, of which nothing is fetched yet, it is sent whatever becomes of the reply.
    let mut bench = Bench::with(tls_config(), 8);
    let mut client = TlsPeer::connect(&mut bench, 1000, Version::Tls13);
    let request = b"GET /object HTTP/1.1\r\nHost: a\r\n\r\n";
    client.say(&mut bench, ContentType::ApplicationData, request);
    let plan = bench.conductor.poll_lookup().unwrap();
    bench.answer(&plan, None);
    update_keys(&mut bench, &mut client);
    bench.turn();
    let plan = bench.change();
    bench.answer(&plan, None);
    bench.turn();
    client.drain(&mut bench);
    assert_eq!(client.body().len() as u64, LATER_BYTES);
    assert_is_later(client.body(), 0);
}

#[test]
fn a_client_of_tls_that_half_closed_gets_the_new_reply() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut client = TlsPeer::connect(&mut bench, 1000, Version::Tls13);
    client.get(&mut bench);
    client.say(&mut bench, ContentType::Alert, &[1, 0]);
    let plan = bench.change();
    bench.answer(&plan, None);
    bench.turn();
    client.drain(&mut bench);
    assert_is_later(client.body(), 0);
    assert_eq!(client.body().len() as u64, LATER_BYTES);
    assert!(client.is_notified && client.peer.finished);
}
