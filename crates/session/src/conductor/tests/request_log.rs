//! What the access log is told: every request once, with the bytes of its body that were sent.

use std::cell::RefCell;
use std::rc::Rc;

use clock::Duration;
use record::Version;
use wire::TcpFlags;

use super::tls::{TLS_PORT, TlsPeer, tls_config};
use super::{Bench, OBJECT_BYTES, PEER_ADDRESS, Peer, config};
use crate::{LoggedRequest, LookupError, ReplyEnd, RequestLog, RequestName};

/// A line for each begin and each end, in order.
type Lines = Rc<RefCell<Vec<String>>>;

#[derive(Debug)]
struct Recorder {
    lines: Lines,
    begun: u32,
}

impl RequestLog for Recorder {
    fn begin(&mut self, request: &LoggedRequest<'_>) -> Option<RequestName> {
        assert_eq!(request.peer, PEER_ADDRESS);
        self.begun += 1;
        let show = |text: Option<&[u8]>| {
            text.map_or("-".into(), |text| {
                String::from_utf8_lossy(text).into_owned()
            })
        };
        self.lines.borrow_mut().push(format!(
            "{} begins: {} {} {} {}",
            self.begun,
            request.status,
            show(Some(request.text.request_line)),
            show(request.text.referer),
            show(request.text.user_agent),
        ));
        Some(RequestName(self.begun))
    }

    fn end(&mut self, name: RequestName, end: &ReplyEnd) {
        let line = format!("{} ends: {}", name.0, end.body_bytes);
        self.lines.borrow_mut().push(line);
    }

    fn forget(&mut self, name: RequestName) {
        self.lines
            .borrow_mut()
            .push(format!("{} is forgotten", name.0));
    }
}

fn listen(mut bench: Bench) -> (Bench, Lines) {
    let lines = Lines::default();
    bench.conductor.set_request_log(Box::new(Recorder {
        lines: Rc::clone(&lines),
        begun: 0,
    }));
    (bench, lines)
}

fn take(lines: &Lines) -> Vec<String> {
    std::mem::take(&mut lines.borrow_mut())
}

#[test]
fn a_request_is_logged_when_its_reply_begins_and_when_it_is_acknowledged() {
    let (mut bench, lines) = listen(Bench::new());
    let mut peer = Peer::connect(&mut bench, 1000);
    let request = "GET /object HTTP/1.1\r\nHost: a\r\nReferer: r\r\nUser-Agent: u/1\r\n\r\n";
    peer.ask(&mut bench, request);
    let begin = "1 begins: 200 GET /object HTTP/1.1 r u/1";
    assert_eq!(take(&lines), [begin]);
    while peer.received.len() as u64 <= OBJECT_BYTES {
        assert_eq!(take(&lines), [""; 0], "{} bytes", peer.received.len());
        bench.complete_reads();
        peer.take(&mut bench);
        peer.send(&mut bench, TcpFlags::ACK, b"");
        bench.turn();
    }
    peer.drain(&mut bench);
    assert_eq!(take(&lines), [format!("1 ends: {OBJECT_BYTES}")]);
    peer.close(&mut bench);
    assert_eq!(take(&lines), [""; 0]);
    bench.assert_quiet();
}

#[test]
fn the_logged_body_length_matches_content_length() {
    let (mut bench, lines) = listen(Bench::new());
    let mut peer = Peer::connect(&mut bench, 1000);
    let requests = [
        "GET /object HTTP/1.1\r\nHost: a\r\nRange: bytes=10-19\r\n\r\n",
        "GET /object HTTP/1.1\r\nHost: a\r\nRange: bytes=0-0,9-99,-5\r\n\r\n",
        "GET /object HTTP/1.1\r\nHost: a\r\nRange: bytes=300000-\r\n\r\n",
        "GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n",
        "OPTIONS / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    ];
    for request in requests {
        peer.received.clear();
        peer.ask(&mut bench, request);
        peer.drain(&mut bench);
        let (head, body) = peer.head_and_rest();
        let length = head.split("Content-Length: ").nth(1).unwrap();
        let length = length.split("\r\n").next().unwrap();
        assert_eq!(body.len().to_string(), length);
        let told = take(&lines);
        assert_eq!(told.len(), 2, "{told:?}");
        let status = &head["HTTP/1.1 ".len()..][..3];
        let line = request.split("\r\n").next().unwrap();
        assert!(
            told[0].contains(&format!(": {status} {line} - -")),
            "{told:?}"
        );
        assert!(told[1].ends_with(&format!(" ends: {length}")), "{told:?}");
    }
}

#[test]
fn a_reply_without_a_body_has_none() {
    let (mut bench, lines) = listen(Bench::new());
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.ask(&mut bench, "HEAD /object HTTP/1.1\r\nHost: a\r\n\r\n");
    peer.ask(
        &mut bench,
        "GET /object HTTP/1.1\r\nHost: a\r\nIf-None-Match: *\r\n\r\n",
    );
    peer.drain(&mut bench);
    assert_eq!(
        take(&lines),
        [
            "1 begins: 200 HEAD /object HTTP/1.1 - -",
            "2 begins: 304 GET /object HTTP/1.1 - -",
            "1 ends: 0",
            "2 ends: 0",
        ]
    );
}

#[test]
fn a_client_that_leaves_in_mid_transfer_is_logged_with_the_bytes_sent() {
    let (mut bench, lines) = listen(Bench::new());
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.get(&mut bench, "/object");
    bench.complete_reads();
    peer.take(&mut bench);
    let sent = peer.head_and_rest().1.len();
    assert!(sent > 0 && (sent as u64) < OBJECT_BYTES);
    // A second request that waits for the store: it never has a reply.
    let request = b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n";
    peer.send(&mut bench, TcpFlags::ACK, request);
    peer.send(&mut bench, TcpFlags::RST, b"");
    assert_eq!(
        take(&lines)[1..],
        [
            format!("1 ends: {sent}"),
            "2 begins: 499 GET /next HTTP/1.1 - -".into(),
            "2 ends: 0".into(),
        ]
    );
    bench.assert_quiet();
}

#[test]
fn a_client_that_leaves_before_the_head_is_logged_with_zero_bytes() {
    let (mut bench, lines) = listen(Bench::new());
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.window = 0;
    let request = "GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n".repeat(2);
    peer.ask(&mut bench, &request);
    peer.send(&mut bench, TcpFlags::RST, b"");
    assert_eq!(take(&lines)[2..], ["1 ends: 0", "2 ends: 0"]);
}

#[test]
fn an_incomplete_request_is_logged_as_far_as_it_arrived() {
    let (mut bench, lines) = listen(Bench::new());
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.ask(&mut bench, "GET /obj");
    bench.pass(Duration::from_secs(20));
    peer.drain(&mut bench);
    let body = peer.head_and_rest().1.len();
    assert_eq!(
        take(&lines),
        [
            "1 begins: 408 GET /obj - -".into(),
            format!("1 ends: {body}")
        ]
    );
    let mut peer = Peer::connect(&mut bench, 1001);
    peer.ask(
        &mut bench,
        "BREW / HTTP/1.1\r\nHost: a\r\nUser-Agent: pot\r\n\r\n",
    );
    assert_eq!(take(&lines), ["2 begins: 501 BREW / HTTP/1.1 - pot"]);
}

#[test]
fn shutting_down_ends_the_logged_requests() {
    let (mut bench, lines) = listen(Bench::new());
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.get(&mut bench, "/object");
    bench.complete_reads();
    peer.take(&mut bench);
    let sent = peer.head_and_rest().1.len();
    bench.conductor.abort_all();
    bench.turn();
    assert_eq!(take(&lines)[1..], [format!("1 ends: {sent}")]);
}

#[test]
fn over_tls_the_body_is_what_the_client_opens() {
    for version in [Version::Tls12, Version::Tls13] {
        let (mut bench, lines) = listen(Bench::with(tls_config(), 8));
        let mut peer = TlsPeer::connect(&mut bench, 1000, version);
        peer.get(&mut bench);
        peer.drain(&mut bench);
        assert_eq!(take(&lines)[1..], [format!("1 ends: {OBJECT_BYTES}")]);
        peer.get(&mut bench);
        bench.complete_reads();
        peer.text.clear();
        peer.peer.take(&mut bench);
        peer.open();
        let opened = peer.body().len() as u64;
        assert!(opened > 0 && opened < OBJECT_BYTES);
        peer.peer.send(&mut bench, TcpFlags::RST, b"");
        let told = take(&lines);
        let sent: u64 = told[1]["2 ends: ".len()..].parse().unwrap();
        // A record of which a part has left counts whole.
        assert!(
            (opened..opened + 15_360).contains(&sent),
            "{opened} {told:?}"
        );
    }
}

#[test]
fn over_tls_a_reply_cut_by_an_alert_is_logged_with_the_bytes_sent() {
    let (mut bench, lines) = listen(Bench::with(tls_config(), 8));
    let mut peer = TlsPeer::connect(&mut bench, 1000, Version::Tls13);
    peer.get(&mut bench);
    peer.get(&mut bench);
    bench.complete_reads();
    // The second request was taken when the first reply had begun.
    bench.turn();
    // No record of any client's: an alert comes before what of the replies was not claimed.
    peer.peer
        .send(&mut bench, TcpFlags::ACK, &[23, 3, 3, 0, 17, 0]);
    peer.peer.send(&mut bench, TcpFlags::ACK, &[0; 16]);
    bench.turn();
    let told = take(&lines);
    assert_eq!(told.last().unwrap(), "2 ends: 0");
    peer.drain(&mut bench);
    assert!(peer.is_aborted.is_some());
    let opened = peer.body().len();
    assert!(opened > 0 && (opened as u64) < OBJECT_BYTES);
    assert_eq!(take(&lines), [format!("1 ends: {opened}")]);
}

#[test]
fn plain_http_on_the_tls_port_is_logged() {
    let (mut bench, lines) = listen(Bench::with(tls_config(), 8));
    let mut peer = Peer::connect_to(&mut bench, TLS_PORT, 1000);
    peer.ask(&mut bench, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(take(&lines), ["1 begins: 400  - -"]);
}

#[test]
fn nothing_is_logged_without_a_request_log() {
    let mut bench = Bench::with(config(), 8);
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.get(&mut bench, "/object");
    peer.drain(&mut bench);
    let (mut bench, lines) = listen(bench);
    peer.close(&mut bench);
    assert_eq!(take(&lines), [""; 0]);
    bench.assert_quiet();
}

#[test]
fn a_reply_that_begins_anew_is_logged_once() {
    let (mut bench, lines) = listen(Bench::new());
    let mut peer = Peer::connect(&mut bench, 1000);
    let request = "GET /object HTTP/1.1\r\nHost: a\r\nRange: bytes=0-99\r\n\r\n";
    peer.ask(&mut bench, request);
    let begins =
        |number: u32, status: u16| format!("{number} begins: {status} GET /object HTTP/1.1 - -");
    assert_eq!(take(&lines), [begins(1, 206)]);
    let read = bench.reads.pop().unwrap();
    bench.find_changed(read);
    assert_eq!(take(&lines), ["1 is forgotten"]);
    let plan = bench.next_look_up();
    bench.answer(&plan, Some(LookupError::NotFound));
    bench.turn();
    assert_eq!(take(&lines), [begins(2, 404)]);
    peer.drain(&mut bench);
    assert_eq!(take(&lines).len(), 1);

    // The client leaves while the path is looked up again.
    peer.ask(&mut bench, request);
    let read = bench.reads.pop().unwrap();
    bench.find_changed(read);
    peer.send(&mut bench, TcpFlags::RST, b"");
    assert_eq!(
        take(&lines),
        [
            begins(3, 206),
            "3 is forgotten".to_owned(),
            begins(4, 499),
            "4 ends: 0".to_owned()
        ]
    );
}
