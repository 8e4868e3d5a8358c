//! qlog of TCP: turns events of connections into records of a JSON text sequence (RFC 7464).
//!
//! The format is that of draft-ietf-quic-qlog-main-schema-02 (`qlog_version` 0.3), which qvis reads,
//! and the names of events are those that draft-ietf-quic-qlog-quic-events-02 has for QUIC, so that
//! tools for QUIC draw them:
//!
//! * A segment that the link takes is a packet; a retransmission is another packet. Packets are
//!   numbered from 0 in each direction of a connection. The bytes of the stream are in a `stream`
//!   frame, with their offset.
//! * An ACK is a packet received with an `ack` frame, which names the packets that it acknowledges
//!   for the first time. Of a packet that is acknowledged in part, nothing is said until it is
//!   whole.
//! * Every record has the peer's address as `group_id`.
//! * What QUIC has not is in the category `atlas`.
//!
//! It makes no system call. Bounds: [`CONNECTIONS_MAX`] connections at once, [`PACKETS_MAX`] packets
//! of each that are not acknowledged; older ones are forgotten.

use std::collections::VecDeque;
use std::net::SocketAddr;

use clock::{Duration, Instant};
use serde::Serialize;
use session::{TraceEnd, TraceEvent};
use tcp::{CongestionState, ConnectionInfo, FourTuple, Limit, StreamOffset, StreamRange};
use wire::{TcpFlags, TcpRepr};

/// Connections traced at once.
pub const CONNECTIONS_MAX: usize = 64;
/// Packets remembered of one connection: twice what its flight can have.
pub const PACKETS_MAX: usize = 2 * tcp::flight::ENTRIES_MAX;

/// RFC 7464 s2.2: what a record begins with.
const RECORD_SEPARATOR: u8 = 0x1e;
/// The packet type of QUIC that a segment passes for.
const PACKET_TYPE: &str = "1RTT";

/// Writes the records of one file.
#[derive(Debug, Default)]
pub struct Qlog {
    connections: Vec<Traced>,
}

/// What is remembered of a connection.
#[derive(Debug)]
struct Traced {
    tuple: FourTuple,
    /// The `group_id`.
    name: String,
    /// Sent and not acknowledged, in the order of their numbers.
    packets: VecDeque<Packet>,
    sent_packets: u64,
    received_packets: u64,
    metrics: Option<Metrics>,
    state: Option<&'static str>,
    limit: Option<Limit>,
}

/// A segment that was sent.
#[derive(Clone, Copy, Debug)]
struct Packet {
    number: u64,
    range: StreamRange,
    is_lost: bool,
}

/// Collects records.
struct Records<'a> {
    time: f64,
    name: &'a str,
    bytes: &'a mut Vec<u8>,
}

#[derive(Serialize)]
struct Record<'a, D> {
    time: f64,
    name: &'a str,
    group_id: &'a str,
    data: D,
}

impl Records<'_> {
    fn push(&mut self, name: &str, data: impl Serialize) {
        let (time, group_id) = (self.time, self.name);
        push_record(
            self.bytes,
            &Record {
                time,
                name,
                group_id,
                data,
            },
        );
    }
}

fn push_record(bytes: &mut Vec<u8>, record: &impl Serialize) {
    bytes.push(RECORD_SEPARATOR);
    // Neither maps with other keys than strings nor writes that fail.
    serde_json::to_writer(&mut *bytes, record).expect("invariant: records are JSON");
    bytes.push(b'\n');
}

/// The first record of a file. Times of all others are milliseconds since `reference_unix_ms`, which
/// is what the worker's start was.
#[must_use]
pub fn header(reference_unix_ms: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    push_record(
        &mut bytes,
        &serde_json::json!({
            "qlog_version": "0.3",
            "qlog_format": "JSON-SEQ",
            "title": "TCP of Atlas",
            "trace": {
                "vantage_point": { "name": "atlas", "type": "server" },
                "common_fields": {
                    "time_format": "relative",
                    "reference_time": reference_unix_ms,
                    "protocol_type": ["TCP"],
                },
            },
        }),
    );
    bytes
}

/// A record that says how many records are missing before it.
#[must_use]
pub fn gap(now: Instant, tuple: &FourTuple, records: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let name = name_of(&tuple.peer);
    let mut gap = Records {
        time: millis_at(now),
        name: &name,
        bytes: &mut bytes,
    };
    gap.push(
        "atlas:records_dropped",
        serde_json::json!({ "count": records }),
    );
    bytes
}

impl Qlog {
    /// Nothing is traced yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins with a connection; whether there is room for it.
    pub fn begin(&mut self, tuple: &FourTuple) -> bool {
        let has_room = self.connections.len() < CONNECTIONS_MAX;
        if has_room {
            self.connections.push(Traced::new(tuple));
        }
        has_room
    }

    /// Appends the records of an event to `bytes`: none, one or several.
    pub fn append(
        &mut self,
        now: Instant,
        tuple: &FourTuple,
        event: &TraceEvent<'_>,
        bytes: &mut Vec<u8>,
    ) {
        let place = self
            .connections
            .iter()
            .position(|known| known.tuple == *tuple);
        let Some(place) = place else { return };
        self.connections[place].append(now, event, bytes);
        if matches!(event, TraceEvent::Ended(_)) {
            self.connections.swap_remove(place);
        }
    }
}

impl Traced {
    fn new(tuple: &FourTuple) -> Self {
        Self {
            tuple: *tuple,
            name: name_of(&tuple.peer),
            packets: VecDeque::new(),
            sent_packets: 0,
            received_packets: 0,
            metrics: None,
            state: None,
            limit: None,
        }
    }

    fn append(&mut self, now: Instant, event: &TraceEvent<'_>, bytes: &mut Vec<u8>) {
        let name = std::mem::take(&mut self.name);
        let mut records = Records {
            time: millis_at(now),
            name: &name,
            bytes,
        };
        match event {
            TraceEvent::Established(info) => self.on_established(&mut records, info),
            TraceEvent::Received {
                segment,
                payload_bytes,
                acknowledgment,
                drop,
            } => {
                self.on_received(&mut records, segment, *payload_bytes, *acknowledgment);
                if let Some(reason) = drop {
                    let header = self.last_received();
                    let trigger = reason.as_str();
                    records.push("transport:packet_dropped", Dropped { header, trigger });
                }
            }
            TraceEvent::Sent {
                segment,
                range,
                is_retransmission,
            } => {
                self.on_sent(&mut records, segment, *range, *is_retransmission);
            }
            TraceEvent::Lost(range) => self.on_lost(&mut records, *range),
            TraceEvent::Queued { range } => {
                let (offset, length) = (range.start.0, range.bytes());
                records.push("atlas:reply_queued", Queued { offset, length });
            }
            TraceEvent::ReadBegun {
                range,
                read_bytes,
                is_retransmission,
            } => {
                records.push(
                    "atlas:read_begun",
                    ReadBegun {
                        offset: range.start.0,
                        length: range.bytes(),
                        read_length: *read_bytes,
                        is_retransmission: *is_retransmission,
                    },
                );
            }
            TraceEvent::ReadEnded { range, is_filled } => {
                let (offset, length) = (range.start.0, range.bytes());
                let is_filled = *is_filled;
                records.push(
                    "atlas:read_ended",
                    ReadEnded {
                        offset,
                        length,
                        is_filled,
                    },
                );
            }
            TraceEvent::Evaluated(info) => self.on_evaluated(&mut records, info),
            TraceEvent::Ended(end) => {
                let owner = match end {
                    TraceEnd::Reset => "remote",
                    _ => "local",
                };
                let reason = end.name();
                records.push("connectivity:connection_closed", Closed { owner, reason });
            }
        }
        self.name = name;
    }

    fn on_established(&mut self, records: &mut Records<'_>, info: &ConnectionInfo) {
        let FourTuple { local, peer } = self.tuple;
        records.push(
            "connectivity:connection_started",
            Started {
                ip_version: if peer.is_ipv4() { "ipv4" } else { "ipv6" },
                src_ip: peer.ip().to_string(),
                dst_ip: local.ip().to_string(),
                protocol: "TCP",
                src_port: peer.port(),
                dst_port: local.port(),
            },
        );
        records.push(
            "recovery:parameters_set",
            Parameters {
                max_datagram_size: info.segment_bytes,
                initial_congestion_window: info.congestion_window_bytes,
                congestion_control: info.congestion_control.name(),
                has_sack: info.has_sack,
                has_timestamps: info.has_timestamps,
            },
        );
        self.on_evaluated(records, info);
    }

    fn on_received(
        &mut self,
        records: &mut Records<'_>,
        segment: &TcpRepr,
        payload_bytes: usize,
        acknowledgment: Option<StreamOffset>,
    ) {
        self.received_packets += 1;
        let acked_ranges = self.acknowledge(segment, acknowledgment);
        let mut frames = Vec::new();
        if segment.flags.contains(TcpFlags::ACK) {
            frames.push(Frame::Ack { acked_ranges });
        }
        if segment.flags.contains(TcpFlags::RST) {
            frames.push(Frame::ConnectionClose);
        }
        records.push(
            "transport:packet_received",
            PacketEvent {
                header: Header::of(self.received_packets - 1, Some(segment)),
                raw: Raw::of(segment, payload_bytes as u64),
                frames,
                is_retransmission: None,
            },
        );
    }

    fn last_received(&self) -> Header {
        Header::of(self.received_packets - 1, None)
    }

    /// The numbers of the packets that a segment acknowledges for the first time, as runs. They are
    /// forgotten; lost ones are, too, and not named: another packet brought their bytes.
    fn acknowledge(
        &mut self,
        segment: &TcpRepr,
        acknowledgment: Option<StreamOffset>,
    ) -> Vec<[u64; 2]> {
        let mut runs: Vec<[u64; 2]> = Vec::new();
        let Some(ack) = acknowledgment else {
            return runs;
        };
        let offset_of = |sequence: wire::SeqNumber| {
            let distance = i64::from(sequence.distance(segment.acknowledgment));
            ack.0.checked_add_signed(distance)
        };
        let blocks = segment.options.sack.as_slice().iter();
        let blocks: Vec<(u64, u64)> = blocks
            .filter_map(|block| offset_of(block.0).zip(offset_of(block.1)))
            .collect();
        self.packets.retain(|packet| {
            let (start, end) = (packet.range.start.0, packet.range.end.0);
            let is_sacked = |block: &(u64, u64)| block.0 <= start && end <= block.1;
            let has_arrived = end <= ack.0 || blocks.iter().any(is_sacked);
            if has_arrived && !packet.is_lost {
                match runs.last_mut() {
                    Some(run) if run[1] + 1 == packet.number => run[1] = packet.number,
                    _ => runs.push([packet.number; 2]),
                }
            }
            !has_arrived
        });
        runs
    }

    fn on_sent(
        &mut self,
        records: &mut Records<'_>,
        segment: &TcpRepr,
        range: StreamRange,
        is_retransmission: bool,
    ) {
        let number = self.sent_packets;
        self.sent_packets += 1;
        let has_fin = segment.flags.contains(TcpFlags::FIN);
        let mut frames = Vec::new();
        if !range.is_empty() || has_fin {
            frames.push(Frame::Stream {
                stream_id: 0,
                offset: range.start.0,
                length: range.bytes(),
                fin: has_fin,
            });
        }
        if !range.is_empty() {
            if self.packets.len() == PACKETS_MAX {
                self.packets.pop_front();
            }
            self.packets.push_back(Packet {
                number,
                range,
                is_lost: false,
            });
        }
        records.push(
            "transport:packet_sent",
            PacketEvent {
                header: Header::of(number, Some(segment)),
                raw: Raw::of(segment, range.bytes()),
                frames,
                is_retransmission: Some(is_retransmission),
            },
        );
    }

    fn on_lost(&mut self, records: &mut Records<'_>, range: StreamRange) {
        for packet in &mut self.packets {
            if packet.is_lost || packet.range.intersection(range).is_none() {
                continue;
            }
            packet.is_lost = true;
            let header = Header::of(packet.number, None);
            let (offset, length) = (packet.range.start.0, packet.range.bytes());
            let stream = Frame::Stream {
                stream_id: 0,
                offset,
                length,
                fin: false,
            };
            records.push(
                "recovery:packet_lost",
                Lost {
                    header,
                    frames: [stream],
                },
            );
        }
    }

    fn on_evaluated(&mut self, records: &mut Records<'_>, info: &ConnectionInfo) {
        let state = congestion_state(info);
        if self.state != Some(state) {
            let old = self.state.replace(state);
            records.push(
                "recovery:congestion_state_updated",
                Change { old, new: state },
            );
        }
        if self.limit != Some(info.limit) {
            let old = self.limit.replace(info.limit).map(Limit::name);
            let new = info.limit.name();
            records.push("atlas:limit_updated", Change { old, new });
        }
        let metrics = Metrics::of(info);
        if self.metrics != Some(metrics) {
            records.push("recovery:metrics_updated", metrics);
            self.metrics = Some(metrics);
        }
    }
}

/// The states of draft-ietf-quic-qlog-quic-events-02 s5.4.3.
fn congestion_state(info: &ConnectionInfo) -> &'static str {
    let is_slow_start = info
        .threshold_bytes
        .is_none_or(|bytes| info.congestion_window_bytes < bytes);
    match info.congestion_state {
        CongestionState::Recovery => "recovery",
        CongestionState::Loss => "loss",
        CongestionState::Open | CongestionState::Disorder if is_slow_start => "slow_start",
        CongestionState::Open | CongestionState::Disorder => "congestion_avoidance",
    }
}

/// `192.0.2.1:50000`
fn name_of(peer: &SocketAddr) -> String {
    peer.to_string()
}

/// Milliseconds since the worker's start, exact to the nanosecond for a hundred days.
fn millis_at(now: Instant) -> f64 {
    millis_of(now.since(Instant::ZERO))
}

fn millis_of(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e6
}

#[derive(Serialize)]
struct Started {
    ip_version: &'static str,
    src_ip: String,
    dst_ip: String,
    protocol: &'static str,
    src_port: u16,
    dst_port: u16,
}

#[derive(Serialize)]
struct Parameters {
    max_datagram_size: u16,
    initial_congestion_window: u64,
    congestion_control: &'static str,
    has_sack: bool,
    has_timestamps: bool,
}

#[derive(Serialize)]
struct Header {
    packet_type: &'static str,
    packet_number: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp: Option<TcpHeader>,
}

#[derive(Serialize)]
struct TcpHeader {
    flags: String,
    sequence: u32,
    acknowledgment: u32,
    window: u16,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sack: Vec<[u32; 2]>,
}

impl Header {
    fn of(packet_number: u64, segment: Option<&TcpRepr>) -> Self {
        Self {
            packet_type: PACKET_TYPE,
            packet_number,
            tcp: segment.map(|segment| {
                let blocks = segment.options.sack.as_slice().iter();
                TcpHeader {
                    flags: segment.flags.to_string(),
                    sequence: segment.sequence.0,
                    acknowledgment: segment.acknowledgment.0,
                    window: segment.window,
                    sack: blocks.map(|block| [block.0.0, block.1.0]).collect(),
                }
            }),
        }
    }
}

/// Lengths of a segment, without the headers below TCP.
#[derive(Serialize)]
struct Raw {
    length: u64,
    payload_length: u64,
}

impl Raw {
    const fn of(segment: &TcpRepr, payload_length: u64) -> Self {
        let length = segment.header_bytes() as u64 + payload_length;
        Self {
            length,
            payload_length,
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "frame_type", rename_all = "snake_case")]
enum Frame {
    Ack {
        acked_ranges: Vec<[u64; 2]>,
    },
    Stream {
        stream_id: u64,
        offset: u64,
        length: u64,
        fin: bool,
    },
    ConnectionClose,
}

#[derive(Serialize)]
struct PacketEvent {
    header: Header,
    raw: Raw,
    frames: Vec<Frame>,
    #[serde(skip_serializing_if = "Option::is_none")]
    is_retransmission: Option<bool>,
}

#[derive(Serialize)]
struct Dropped {
    header: Header,
    trigger: &'static str,
}

#[derive(Serialize)]
struct Lost {
    header: Header,
    frames: [Frame; 1],
}

#[derive(Serialize)]
struct Queued {
    offset: u64,
    length: u64,
}

#[derive(Serialize)]
struct ReadBegun {
    offset: u64,
    length: u64,
    read_length: u32,
    is_retransmission: bool,
}

#[derive(Serialize)]
struct ReadEnded {
    offset: u64,
    length: u64,
    is_filled: bool,
}

#[derive(Serialize)]
struct Change {
    #[serde(skip_serializing_if = "Option::is_none")]
    old: Option<&'static str>,
    new: &'static str,
}

#[derive(Serialize)]
struct Closed {
    owner: &'static str,
    reason: &'static str,
}

/// `recovery:metrics_updated`: the fields of QUIC, then ours. Times in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
struct Metrics {
    #[serde(skip_serializing_if = "Option::is_none")]
    min_rtt: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    smoothed_rtt: Option<f64>,
    rtt_variance: f64,
    pto_count: u32,
    congestion_window: u64,
    bytes_in_flight: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ssthresh: Option<u64>,
    /// Bits a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pacing_rate: Option<u64>,
    rto: f64,
    peer_window: u64,
    bytes_sacked: u64,
    bytes_lost: u64,
    bytes_reading: u64,
    bytes_unsent: u64,
}

impl Metrics {
    fn of(info: &ConnectionInfo) -> Self {
        Self {
            min_rtt: info.minimum_rtt.map(millis_of),
            smoothed_rtt: info.smoothed_rtt.map(millis_of),
            rtt_variance: millis_of(info.rtt_variation),
            pto_count: info.backoff,
            congestion_window: info.congestion_window_bytes,
            bytes_in_flight: info.in_flight_bytes,
            ssthresh: info.threshold_bytes,
            pacing_rate: info
                .pacing_bytes_per_second
                .map(|rate| rate.saturating_mul(8)),
            rto: millis_of(info.retransmission_timeout),
            peer_window: info.peer_window_bytes,
            bytes_sacked: info.sacked_bytes,
            bytes_lost: info.lost_bytes,
            bytes_reading: info.reading_bytes,
            bytes_unsent: info.unsent_bytes,
        }
    }
}

#[cfg(test)]
mod tests;
