//! Connections listed page by page, and what a trace is told of them.

use std::cell::RefCell;
use std::rc::Rc;

use clock::{Duration, Instant};
use tcp::{FourTuple, Limit, StreamRange};
use wire::TcpFlags;

use super::{Bench, OBJECT_BYTES, Peer, config, object};
use crate::{
    Activity, Config, ConnectionTrace, ListedConnection, PageLimits, ReadError, TraceEnd,
    TraceEvent,
};

const ALL: PageLimits = PageLimits {
    rows_max: 100,
    places_max: 100,
};

fn page(bench: &Bench, from: u32, limits: PageLimits) -> (Vec<ListedConnection>, Option<u32>) {
    let mut rows = Vec::new();
    let next = bench
        .conductor
        .list_connections(bench.now, from, limits, &|_| true, &mut |row| {
            rows.push(row)
        });
    (rows, next)
}

fn only_row(bench: &Bench) -> ListedConnection {
    let (rows, next) = page(bench, 0, ALL);
    assert_eq!((rows.len(), next), (1, None));
    rows[0]
}

#[test]
fn pages_have_all_connections_and_end_at_their_limits() {
    let mut bench = Bench::new();
    let _peers: Vec<Peer> = (1000..1003)
        .map(|port| Peer::connect(&mut bench, port))
        .collect();
    let ports = |rows: &[ListedConnection]| -> Vec<u16> {
        rows.iter().map(|row| row.tuple.peer.port()).collect()
    };
    let limits = |rows_max, places_max| PageLimits {
        rows_max,
        places_max,
    };
    let (rows, next) = page(&bench, 0, limits(2, 100));
    assert_eq!((ports(&rows), next), (vec![1000, 1001], Some(2)));
    let (rows, next) = page(&bench, 2, limits(2, 100));
    assert_eq!((ports(&rows), next), (vec![1002], None));
    let (rows, next) = page(&bench, 0, limits(100, 1));
    assert_eq!((ports(&rows), next), (vec![1000], Some(1)));
    // The fourth place is empty.
    let (rows, next) = page(&bench, 2, limits(100, 1));
    assert_eq!((ports(&rows), next), (vec![1002], Some(3)));
    assert_eq!(page(&bench, 3, limits(100, 1)), (vec![], None));
    assert_eq!(
        page(&bench, u32::MAX, limits(100, u32::MAX)),
        (vec![], None)
    );
}

#[test]
fn only_wanted_peers_are_listed() {
    let mut bench = Bench::new();
    let _peers: Vec<Peer> = (1000..1003)
        .map(|port| Peer::connect(&mut bench, port))
        .collect();
    let mut ports = Vec::new();
    let next = bench.conductor.list_connections(
        bench.now,
        0,
        ALL,
        &|peer| peer.port() == 1001,
        &mut |row| ports.push(row.tuple.peer.port()),
    );
    assert_eq!((ports, next), (vec![1001], None));
}

#[test]
fn a_row_says_what_the_connection_does_and_what_it_is_sent() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    let row = only_row(&bench);
    assert_eq!(
        (row.activity, row.object, row.replies),
        (Activity::Request, None, 0)
    );
    assert_eq!(row.info.limit, Limit::NothingToSend);
    peer.ask(&mut bench, "GET /obj");
    assert_eq!(only_row(&bench).activity, Activity::Head);
    peer.ask(&mut bench, "ect HTTP/1.1\r\nHost: a\r\n\r\n");
    let row = only_row(&bench);
    assert_eq!(
        (row.activity, row.replies, row.reads),
        (Activity::Reply, 1, 1)
    );
    assert_eq!(row.object, Some(object(OBJECT_BYTES).handle));
    assert_eq!(row.info.limit, Limit::Disk);
    bench.complete_reads();
    let row = only_row(&bench);
    assert_eq!((row.reads, row.info.limit), (0, Limit::CongestionWindow));
    peer.drain(&mut bench);
    let row = only_row(&bench);
    assert_eq!((row.activity, row.object), (Activity::Request, None));
    assert!(!row.is_tls && !row.is_over_budget);
}

#[test]
fn a_look_up_and_the_end_are_activities() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.send(&mut bench, TcpFlags::ACK, b"GET /object HTTP/1.0\r\n\r\n");
    assert_eq!(only_row(&bench).activity, Activity::LookUp);
    bench.turn();
    peer.drain(&mut bench);
    // It was the last reply: what is left is the client's FIN.
    assert_eq!(only_row(&bench).activity, Activity::Close);
}

#[test]
fn the_time_of_a_slow_read_is_counted_as_the_disks() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    bench.pass(Duration::from_millis(50));
    peer.get(&mut bench, "/object");
    bench.pass(Duration::from_millis(30));
    bench.complete_reads();
    bench.pass(Duration::from_millis(7));
    let info = only_row(&bench).info;
    let millis = |limit: Limit| info.limit_times[limit as usize].as_millis();
    assert_eq!(millis(Limit::NothingToSend), 50);
    assert_eq!(millis(Limit::Disk), 30);
    assert_eq!(millis(Limit::CongestionWindow), 7);
}

/// Keeps what it is told of one port.
#[derive(Clone, Debug)]
struct Told {
    port: u16,
    events: Rc<RefCell<Vec<String>>>,
}

impl Told {
    fn of(port: u16, bench: &mut Bench) -> Self {
        let told = Self {
            port,
            events: Rc::default(),
        };
        bench.conductor.set_connection_trace(Box::new(told.clone()));
        told
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.events.borrow_mut())
    }
}

fn shown(range: &StreamRange) -> String {
    format!("{}..{}", range.start.0, range.end.0)
}

impl ConnectionTrace for Told {
    fn wants(&mut self, tuple: &FourTuple) -> bool {
        tuple.peer.port() == self.port
    }

    fn record(&mut self, _: Instant, tuple: &FourTuple, event: &TraceEvent<'_>) {
        assert_eq!(tuple.peer.port(), self.port, "nobody wanted it");
        let event = match event {
            // There is one after every other event.
            TraceEvent::Evaluated(_) => return,
            TraceEvent::Established(_) => "established".into(),
            TraceEvent::Received {
                payload_bytes,
                acknowledgment,
                drop,
                ..
            } => {
                let ack = acknowledgment.map(|offset| offset.0);
                format!("received {payload_bytes} ack {ack:?} drop {drop:?}")
            }
            TraceEvent::Sent {
                range,
                is_retransmission,
                ..
            } => {
                format!("sent {} again {is_retransmission}", shown(range))
            }
            TraceEvent::Lost(range) => format!("lost {}", shown(range)),
            TraceEvent::Queued { range } => format!("queued {}", range.bytes() > OBJECT_BYTES),
            TraceEvent::ReadBegun {
                range, read_bytes, ..
            } => {
                format!("read begun {} {read_bytes}", shown(range))
            }
            TraceEvent::ReadEnded { range, is_filled } => {
                format!("read ended {} {is_filled}", shown(range))
            }
            TraceEvent::Ended(end) => format!("ended {end:?}"),
        };
        self.events.borrow_mut().push(event);
    }
}

#[test]
fn a_trace_is_told_of_segments_and_reads_in_their_order() {
    let mut bench = Bench::new();
    let told = Told::of(1000, &mut bench);
    let mut peer = Peer::connect(&mut bench, 1000);
    assert_eq!(
        told.take(),
        ["established", "received 0 ack Some(0) drop None"]
    );
    peer.get(&mut bench, "/object");
    bench.complete_reads();
    let events = told.take();
    // The initial window of ten segments: the head of the reply and the first blocks.
    assert_eq!(
        events,
        [
            "received 33 ack Some(0) drop None",
            "queued true",
            "read begun 0..14600 16384",
            "read ended 0..14600 true",
            "sent 0..14600 again false",
        ]
    );
    peer.take(&mut bench);
    peer.send(&mut bench, TcpFlags::RST, b"");
    assert_eq!(
        told.take(),
        ["received 0 ack Some(14600) drop None", "ended Reset"]
    );
}

#[test]
fn connections_that_are_not_wanted_are_not_told_of() {
    let mut bench = Bench::new();
    let told = Told::of(1000, &mut bench);
    let mut peer = Peer::connect(&mut bench, 1001);
    peer.get(&mut bench, "/object");
    peer.drain(&mut bench);
    peer.close(&mut bench);
    assert_eq!(told.take(), [""; 0]);
}

#[test]
fn a_loss_is_told_until_it_is_sent_again() {
    let mut bench = Bench::new();
    let told = Told::of(1000, &mut bench);
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.get(&mut bench, "/object");
    bench.complete_reads();
    let _ = bench.take_segments(1000);
    // Nothing arrived. The tail loss probe is new data; then the retransmission timer considers all
    // of it lost.
    bench.pass(Duration::from_secs(1));
    bench.complete_reads();
    told.take();
    bench.pass(Duration::from_secs(1));
    let events = told.take();
    assert_eq!(events[..2], ["lost 0..14600", "lost 14600..16060"]);
    bench.complete_reads();
    let events = told.take();
    assert!(
        events.contains(&"sent 0..1460 again true".to_owned()),
        "{events:?}"
    );
    assert!(
        events.contains(&"lost 1460..14600".to_owned()),
        "{events:?}"
    );
}

#[test]
fn each_end_of_a_connection_has_its_name() {
    let ended = |config: Config, end: &dyn Fn(&mut Bench, &mut Peer)| {
        let mut bench = Bench::with(config, 8);
        let told = Told::of(1000, &mut bench);
        let mut peer = Peer::connect(&mut bench, 1000);
        end(&mut bench, &mut peer);
        told.take().last().cloned().unwrap()
    };
    let name = |end: TraceEnd| format!("ended {end:?}");
    let finished = ended(config(), &|bench, peer| peer.close(bench));
    assert_eq!(finished, name(TraceEnd::Finished));
    let aborted = ended(config(), &|bench, peer| {
        peer.get(bench, "/object");
        let read = bench.reads.pop().unwrap();
        let failed = Err((read.slot, ReadError::Io));
        let (now, arena) = (bench.now, &mut bench.arena);
        bench
            .conductor
            .handle_completion(now, arena, read.token, failed);
    });
    assert_eq!(aborted, name(TraceEnd::Aborted));
    let evicted = ended(
        Config {
            connections_max: 1,
            ..config()
        },
        &|bench, _| {
            bench.pass(Duration::from_secs(2));
            let _other = Peer::connect(bench, 1001);
        },
    );
    assert_eq!(evicted, name(TraceEnd::Evicted));
    let timed_out = ended(config(), &|bench, _| {
        for _ in 0..200 {
            bench.pass(Duration::from_secs(1));
        }
    });
    assert_eq!(timed_out, name(TraceEnd::TimedOut));
}
