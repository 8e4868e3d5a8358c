//! The records of a connection, event by event, and the rules that all of them keep.

use clock::{Duration, Instant};
use serde_json::Value;
use session::{TraceEnd, TraceEvent};
use tcp::{FourTuple, HalfOpen, Offer, SegmentDrop, StreamOffset, StreamRange};
use wire::{SackBlocks, SeqNumber, TcpFlags, TcpOptions, TcpRepr};

use super::{Qlog, header};

/// The sequence number of the stream's first byte; it wraps 100 bytes into the stream.
const FIRST: SeqNumber = SeqNumber(u32::MAX - 99);

/// A qlog of one connection, and its clock.
struct Bench {
    qlog: Qlog,
    bytes: Vec<u8>,
    now: Instant,
}

fn tuple() -> FourTuple {
    FourTuple {
        local: "192.0.2.1:80".parse().unwrap(),
        peer: "192.0.2.7:50000".parse().unwrap(),
    }
}

fn range(start: u64, end: u64) -> StreamRange {
    StreamRange::new(StreamOffset(start), StreamOffset(end))
}

impl Bench {
    fn new() -> Self {
        let mut qlog = Qlog::new();
        assert!(qlog.begin(&tuple()));
        Self {
            qlog,
            bytes: Vec::new(),
            now: Instant::from_millis(5),
        }
    }

    /// The records of one event, a millisecond after the one before.
    fn event(&mut self, event: &TraceEvent<'_>) -> Vec<Value> {
        self.now += Duration::from_millis(1);
        let before = self.bytes.len();
        self.qlog.append(self.now, &tuple(), event, &mut self.bytes);
        parse(&self.bytes[before..])
    }

    fn sent(&mut self, range: StreamRange, is_retransmission: bool) -> Vec<Value> {
        let segment = TcpRepr {
            flags: TcpFlags::ACK,
            ..TcpRepr::default()
        };
        self.event(&TraceEvent::Sent {
            segment: &segment,
            range,
            is_retransmission,
        })
    }

    /// The packets that an ACK of `ack` with these SACK blocks acknowledges.
    fn acked(&mut self, ack: u32, blocks: &[(u32, u32)]) -> Value {
        let mut sack = SackBlocks::default();
        for (start, end) in blocks {
            sack.push(FIRST.wrapping_add(*start), FIRST.wrapping_add(*end));
        }
        let segment = TcpRepr {
            flags: TcpFlags::ACK,
            acknowledgment: FIRST.wrapping_add(ack),
            options: TcpOptions {
                sack,
                ..TcpOptions::default()
            },
            ..TcpRepr::default()
        };
        let event = TraceEvent::Received {
            segment: &segment,
            payload_bytes: 0,
            acknowledgment: Some(StreamOffset(u64::from(ack))),
            drop: None,
        };
        let records = self.event(&event);
        assert_eq!(records.len(), 1);
        assert_eq!(records[0]["name"], "transport:packet_received");
        records[0]["data"]["frames"][0]["acked_ranges"].clone()
    }
}

/// The records in `bytes`, each of which must be one of a JSON text sequence.
fn parse(bytes: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(bytes).unwrap();
    let mut records = text.split('\u{1e}');
    assert_eq!(records.next(), Some(""), "a record begins with a separator");
    records
        .map(|record| {
            assert!(
                record.ends_with('\n') && record.matches('\n').count() == 1,
                "{record}"
            );
            serde_json::from_str(record).unwrap()
        })
        .collect()
}

/// A connection that has just been established.
fn connection(now: Instant) -> tcp::Connection {
    let syn = TcpRepr {
        flags: TcpFlags::SYN,
        options: TcpOptions {
            mss: Some(1000),
            sack_permitted: true,
            ..TcpOptions::default()
        },
        ..TcpRepr::default()
    };
    let offer = Offer {
        accepts_ecn: false,
        iss: FIRST.wrapping_add(u32::MAX),
        timestamp_shift: 0,
        segment_bytes: 1460,
        window: 4000,
    };
    let half_open = HalfOpen::new(Instant::ZERO, tuple(), &syn, offer);
    tcp::Connection::new(tcp::Config::default(), &half_open, now, 60_000)
}

#[test]
fn the_header_names_format_and_reference_time() {
    let records = parse(&header(1_700_000_000_123));
    assert_eq!(records.len(), 1);
    let file = &records[0];
    assert_eq!(
        (&file["qlog_version"], &file["qlog_format"]),
        (&"0.3".into(), &"JSON-SEQ".into())
    );
    let fields = &file["trace"]["common_fields"];
    assert_eq!(fields["time_format"], "relative");
    assert_eq!(fields["reference_time"], 1_700_000_000_123_u64);
    assert_eq!(file["trace"]["vantage_point"]["type"], "server");
}

#[test]
fn a_connection_begins_with_its_ends_its_parameters_and_its_metrics() {
    let mut bench = Bench::new();
    let info = connection(bench.now).info(bench.now);
    let records = bench.event(&TraceEvent::Established(&info));
    let names: Vec<_> = records
        .iter()
        .map(|record| record["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "connectivity:connection_started",
            "recovery:parameters_set",
            "recovery:congestion_state_updated",
            "atlas:limit_updated",
            "recovery:metrics_updated",
        ]
    );
    let started = &records[0]["data"];
    assert_eq!(
        (&started["src_ip"], &started["src_port"]),
        (&"192.0.2.7".into(), &50_000.into())
    );
    assert_eq!(
        (&started["dst_ip"], &started["protocol"]),
        (&"192.0.2.1".into(), &"TCP".into())
    );
    assert_eq!(
        records[2]["data"],
        serde_json::json!({ "new": "slow_start" })
    );
    assert_eq!(
        records[3]["data"],
        serde_json::json!({ "new": "nothing_to_send" })
    );
    let metrics = &records[4]["data"];
    assert_eq!(metrics["congestion_window"], 10_000);
    assert_eq!(metrics["smoothed_rtt"], 5.0);
    assert!(metrics.get("ssthresh").is_none());
    // Nothing has changed, so nothing is said.
    assert!(bench.event(&TraceEvent::Evaluated(&info)).is_empty());
}

#[test]
fn an_ack_names_packets_that_are_whole_and_each_once() {
    let mut bench = Bench::new();
    for start in [0, 1000, 2000, 3000] {
        let records = bench.sent(range(start, start + 1000), false);
        assert_eq!(records[0]["name"], "transport:packet_sent");
        assert_eq!(records[0]["data"]["header"]["packet_number"], start / 1000);
        assert_eq!(records[0]["data"]["raw"]["payload_length"], 1000);
        assert_eq!(records[0]["data"]["frames"][0]["offset"], start);
    }
    assert_eq!(bench.acked(999, &[]), serde_json::json!([]));
    assert_eq!(bench.acked(1000, &[]), serde_json::json!([[0, 0]]));
    assert_eq!(bench.acked(1000, &[(2000, 2999)]), serde_json::json!([]));
    assert_eq!(
        bench.acked(1000, &[(2000, 3000)]),
        serde_json::json!([[2, 2]])
    );
    assert_eq!(bench.acked(4000, &[]), serde_json::json!([[1, 1], [3, 3]]));
    assert_eq!(bench.acked(4000, &[]), serde_json::json!([]));
}

#[test]
fn a_lost_packet_is_lost_once_and_its_retransmission_is_another() {
    let mut bench = Bench::new();
    bench.sent(range(0, 1000), false);
    bench.sent(range(1000, 2000), false);
    let lost = bench.event(&TraceEvent::Lost(range(0, 1000)));
    assert_eq!(lost.len(), 1);
    assert_eq!(lost[0]["name"], "recovery:packet_lost");
    assert_eq!(lost[0]["data"]["header"]["packet_number"], 0);
    assert!(bench.event(&TraceEvent::Lost(range(0, 1000))).is_empty());
    let again = bench.sent(range(0, 1000), true);
    assert_eq!(again[0]["data"]["header"]["packet_number"], 2);
    assert_eq!(again[0]["data"]["is_retransmission"], true);
    // The retransmission is lost as well.
    let lost = bench.event(&TraceEvent::Lost(range(0, 1000)));
    assert_eq!(lost[0]["data"]["header"]["packet_number"], 2);
    bench.sent(range(0, 1000), true);
    assert_eq!(bench.acked(2000, &[]), serde_json::json!([[1, 1], [3, 3]]));
}

#[test]
fn packets_beyond_the_bound_are_forgotten() {
    let mut bench = Bench::new();
    for start in 0..=super::PACKETS_MAX as u64 {
        bench.sent(range(start, start + 1), false);
    }
    let end = u32::try_from(super::PACKETS_MAX).unwrap() + 1;
    assert_eq!(
        bench.acked(end, &[]),
        serde_json::json!([[1, super::PACKETS_MAX]])
    );
}

#[test]
fn a_refused_segment_is_received_and_dropped() {
    let mut bench = Bench::new();
    let segment = TcpRepr {
        flags: TcpFlags::ACK,
        ..TcpRepr::default()
    };
    let records = bench.event(&TraceEvent::Received {
        segment: &segment,
        payload_bytes: 3,
        acknowledgment: None,
        drop: Some(SegmentDrop::OutOfWindow),
    });
    assert_eq!(records[0]["name"], "transport:packet_received");
    assert_eq!(records[0]["data"]["raw"]["payload_length"], 3);
    assert_eq!(records[1]["name"], "transport:packet_dropped");
    assert_eq!(records[1]["data"]["trigger"], "out_of_window");
    assert_eq!(records[1]["data"]["header"]["packet_number"], 0);
}

#[test]
fn nothing_is_said_of_a_connection_that_has_ended() {
    let mut bench = Bench::new();
    let records = bench.event(&TraceEvent::Ended(TraceEnd::Reset));
    assert_eq!(records[0]["name"], "connectivity:connection_closed");
    assert_eq!(
        records[0]["data"],
        serde_json::json!({ "owner": "remote", "reason": "reset" })
    );
    assert!(bench.sent(range(0, 1000), false).is_empty());
}

#[test]
fn every_record_has_time_name_group_and_data_and_times_do_not_decrease() {
    let mut bench = Bench::new();
    let info = connection(bench.now).info(bench.now);
    let _ = bench.event(&TraceEvent::Established(&info));
    let _ = bench.event(&TraceEvent::Queued {
        range: range(0, 2000),
    });
    let (read_bytes, is_retransmission) = (4096, false);
    let read = range(0, 2000);
    let _ = bench.event(&TraceEvent::ReadBegun {
        range: read,
        read_bytes,
        is_retransmission,
    });
    let _ = bench.event(&TraceEvent::ReadEnded {
        range: read,
        is_filled: true,
    });
    bench.sent(range(0, 2000), false);
    bench.acked(2000, &[]);
    let _ = bench.event(&TraceEvent::Ended(TraceEnd::Finished));
    let mut last = 0.0;
    for record in parse(&bench.bytes) {
        let time = record["time"].as_f64().unwrap();
        assert!(time >= last, "{record}");
        last = time;
        let (category, event) = record["name"].as_str().unwrap().split_once(':').unwrap();
        assert!(!category.is_empty() && !event.is_empty());
        assert_eq!(record["group_id"], "192.0.2.7:50000");
        assert!(record["data"].is_object(), "{record}");
    }
    assert_eq!(last, 12.0);
}
