//! Queries, pages put together, and the lines that come out.

use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;
use session::{Activity, ListedConnection};
use tcp::{FourTuple, HalfOpen, Offer};
use wire::{SeqNumber, TcpFlags, TcpOptions, TcpRepr};

use worker::Row;
use worker::testing::{Setup, World};

use super::{
    Asker, PAGE_ROWS_MAX, Page, PageLimits, Query, Question, ROWS_DEFAULT, ROWS_MAX, WORKER_PLACES,
};
use crate::observe::output::tests::LONG;
use crate::observe::trace::Peers;
use crate::run::mailbox::{self, Mailbox, mailbox};
use crate::run::wait::{Source, wait};

/// A connection that has just been established.
pub(crate) fn row(port: u16) -> Row {
    let tuple = FourTuple {
        local: "192.0.2.1:80".parse().unwrap(),
        peer: format!("192.0.2.7:{port}").parse().unwrap(),
    };
    let syn = TcpRepr {
        flags: TcpFlags::SYN,
        options: TcpOptions {
            mss: Some(1000),
            ..TcpOptions::default()
        },
        ..TcpRepr::default()
    };
    let offer = Offer {
        accepts_ecn: false,
        iss: SeqNumber(0),
        timestamp_shift: 0,
        segment_bytes: 1460,
        window: 4000,
    };
    let now = clock::Instant::from_millis(20);
    let half_open = HalfOpen::new(clock::Instant::ZERO, tuple, &syn, offer);
    let connection = tcp::Connection::new(tcp::Config::default(), &half_open, now, 60_000);
    Row {
        connection: ListedConnection {
            tuple,
            is_tls: false,
            activity: Activity::Reply,
            object: None,
            replies: 1,
            reads: 2,
            is_over_budget: false,
            info: connection.info(now + Duration::from_micros(1500)),
        },
        path: Some("/film \"é\".mp4".into()),
    }
}

/// A worker with this many connections, at places 0, 2, 4, …; it ends with its askers.
pub(crate) fn worker(mailbox: Mailbox, connections: u32) -> JoinHandle<usize> {
    thread::spawn(move || {
        let mut pages = 0;
        loop {
            let source = Source::readable(mailbox.sleeper().fd());
            assert!(wait(&[source], Some(LONG)).unwrap().is_any(), "nobody asks");
            mailbox.sleeper().drain();
            let Some(mailbox::Question::Connections(question)) = mailbox.poll_question() else {
                return pages;
            };
            let mut rows = Vec::new();
            let mut place = question.from;
            while place < 2 * connections && rows.len() < question.limits.rows_max {
                if place.is_multiple_of(2) {
                    rows.push(row(1000 + u16::try_from(place).unwrap()));
                }
                place += 1;
            }
            pages += 1;
            let next = (place < 2 * connections).then_some(place);
            question.answer(Page { rows, next });
        }
    })
}

/// A question whose answer nobody waits for.
pub(crate) fn question() -> mailbox::Question {
    mailbox::Question::Connections(Question {
        from: 0,
        peers: None,
        limits: PageLimits {
            rows_max: 1,
            places_max: 1,
        },
        reply: sync_channel(1).0,
    })
}

/// Asks workers with so many connections each.
fn asker(connections: &[u32]) -> (Asker, Vec<JoinHandle<usize>>) {
    let start = |connections: &u32| {
        let (sender, mailbox) = mailbox().unwrap();
        (sender, worker(mailbox, *connections))
    };
    let (senders, workers) = connections.iter().map(start).unzip();
    (Asker::new(senders), workers)
}

fn lines(asker: &Asker, query: &str) -> Vec<Value> {
    let query = Query::parse(query.as_bytes()).unwrap();
    let text = asker.lines(&query, Instant::now() + LONG).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn a_query_names_peers_rows_and_a_place_or_is_refused() {
    let all = Query {
        peers: None,
        rows_max: ROWS_DEFAULT,
        from: 0,
    };
    assert_eq!(Query::parse(b""), Ok(all));
    let peers = Peers::parse("[fd77::1]:80");
    for text in [
        "peer=[fd77::1]:80&limit=5&from=7",
        "from=7&peer=%5Bfd77%3a%3A1%5d:80&limit=5&",
    ] {
        let query = Query {
            peers,
            rows_max: 5,
            from: 7,
        };
        assert_eq!(Query::parse(text.as_bytes()), Ok(query), "{text}");
    }
    let rows = |text: &str| Query::parse(text.as_bytes()).unwrap().rows_max;
    assert_eq!(rows(&format!("limit={ROWS_MAX}")), ROWS_MAX);
    assert_eq!(rows(&format!("limit={}", ROWS_MAX + 1)), ROWS_MAX);
    for text in [
        "peer",
        "peer=x",
        "limit=",
        "limit=-1",
        "from=x",
        "port=80",
        "peer=%zz",
        "limit=%+5",
    ] {
        let refusal = Query::parse(text.as_bytes()).unwrap_err();
        assert!(
            refusal.starts_with(&format!("{text}: there are peer=")),
            "{refusal}"
        );
    }
}

#[test]
fn all_pages_are_asked_for_and_each_connection_is_a_line() {
    let rows = PAGE_ROWS_MAX + 1;
    let (asker, workers) = asker(&[u32::try_from(rows).unwrap(), 0, 1]);
    let listed = lines(&asker, "");
    assert_eq!(listed.len(), rows + 1);
    assert_eq!(listed[1]["peer"], "192.0.2.7:1002");
    assert_eq!(listed[rows]["peer"], "192.0.2.7:1000");
    drop(asker);
    let pages: Vec<usize> = workers.into_iter().map(|it| it.join().unwrap()).collect();
    assert_eq!(pages, [2, 1, 1]);
}

#[test]
fn a_list_that_is_cut_says_where_to_go_on() {
    let (asker, _workers) = asker(&[3, 2]);
    let first = lines(&asker, "limit=2");
    assert_eq!(first.len(), 3);
    assert_eq!(first[2], serde_json::json!({ "next_from": 3 }));
    let rest = lines(&asker, "limit=2&from=3");
    assert_eq!(rest[0]["peer"], "192.0.2.7:1004");
    assert_eq!(rest[1]["peer"], "192.0.2.7:1000");
    assert_eq!(
        rest[2],
        serde_json::json!({ "next_from": WORKER_PLACES + 1 })
    );
    let last = lines(&asker, &format!("limit=2&from={}", WORKER_PLACES + 1));
    assert_eq!(last.len(), 1);
    assert_eq!(last[0]["peer"], "192.0.2.7:1002");
    for behind in [2 * WORKER_PLACES, u32::MAX] {
        assert_eq!(lines(&asker, &format!("from={behind}")).len(), 0);
    }
    assert_eq!(
        lines(&asker, "limit=0"),
        [serde_json::json!({ "next_from": 0 })]
    );
}

#[test]
fn a_worker_that_does_not_answer_is_given_up() {
    let (sender, mailbox) = mailbox().unwrap();
    let asker = Asker::new(vec![sender]);
    let query = Query::parse(b"").unwrap();
    let soon = Instant::now() + Duration::from_millis(1);
    assert_eq!(asker.lines(&query, soon), None);
    // Without time left it is not even asked: what it would tell once would be lost.
    drop(mailbox.poll_question());
    assert_eq!(asker.missed(Instant::now(), |_| unreachable!()), None);
    assert!(mailbox.poll_question().is_none());
    // An answer to who is gone goes nowhere.
    let mailbox::Question::Connections(gone) = question() else {
        unreachable!()
    };
    gone.answer(Page {
        rows: Vec::new(),
        next: None,
    });
    drop(mailbox);
    assert_eq!(asker.lines(&query, Instant::now() + LONG), None);
}

#[test]
fn a_line_has_what_tcp_says_with_its_units() {
    let (asker, _workers) = asker(&[1]);
    let line = &lines(&asker, "")[0];
    assert_eq!(line["object"], "/film \"é\".mp4");
    assert_eq!(
        (&line["state"], &line["activity"]),
        (&"established".into(), &"reply".into())
    );
    assert_eq!(
        (&line["limit"], &line["reads"]),
        (&"nothing_to_send".into(), &2.into())
    );
    assert_eq!(
        line["limit_ms"],
        serde_json::json!({ "nothing_to_send": 1.5 })
    );
    assert_eq!(
        (&line["rtt_ms"], &line["rttvar_ms"]),
        (&20.0.into(), &10.0.into())
    );
    assert_eq!(
        (&line["mss"], &line["cwnd_bytes"]),
        (&1000.into(), &10_000.into())
    );
    assert_eq!(
        (&line["ssthresh_bytes"], &line["age_ms"]),
        (&Value::Null, &1.5.into())
    );
}

/// What `query` is answered by a worker that does nothing else meanwhile.
fn listed(world: &World, query: &str) -> Vec<serde_json::Value> {
    let (sender, mailbox) = mailbox().unwrap();
    let asker = Asker::new(vec![sender]);
    let query = Query::parse(query.as_bytes()).unwrap();
    let asking = thread::spawn(move || asker.lines(&query, Instant::now() + LONG));
    while !asking.is_finished() {
        if let Some(mailbox::Question::Connections(question)) = mailbox.poll_question() {
            let page = question.page_of(&world.worker, world.now);
            question.answer(page);
        }
        thread::yield_now();
    }
    let lines = asking.join().unwrap().unwrap();
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn a_listed_connection_has_the_path_of_its_object() {
    let mut world = World::connected(Setup::default());
    assert_eq!(listed(&world, "")[0]["object"], serde_json::Value::Null);
    world.ask(0);
    world.step();
    for query in ["", "peer=10.77.0.1", "peer=10.77.0.1:50000"] {
        let rows = listed(&world, query);
        assert_eq!(rows.len(), 1, "{query}");
        assert_eq!(rows[0]["peer"], "10.77.0.1:50000");
        assert_eq!(rows[0]["object"], "/0");
        assert_eq!(
            (&rows[0]["limit"], &rows[0]["reads"]),
            (&"disk".into(), &1.into())
        );
    }
    assert!(listed(&world, "peer=10.77.0.9").is_empty());
    assert!(listed(&world, "peer=10.77.0.1:50001").is_empty());
}
