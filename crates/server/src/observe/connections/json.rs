//! Rows as lines of JSON.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};
use tcp::Limit;

use worker::Row;

/// Bytes of a path that are shown.
const PATH_BYTES_MAX: usize = 1024;

/// What is said of a connection; `docs/run/slow-streams.md` has the meaning of each field. Bytes are of
/// the stream, times are milliseconds.
#[derive(Serialize)]
struct RowJson<'a> {
    peer: String,
    local: String,
    tls: bool,
    state: &'static str,
    activity: &'static str,
    object: Option<&'a str>,
    replies: usize,
    reads: usize,
    over_read_budget: bool,
    limit: &'static str,
    limit_ms: LimitTimes,
    congestion_control: &'static str,
    congestion_state: &'static str,
    sack: bool,
    timestamps: bool,
    mss: u16,
    mss_limit: u16,
    rtt_ms: Option<Millis>,
    rttvar_ms: Millis,
    min_rtt_ms: Option<Millis>,
    rto_ms: Millis,
    backoff: u32,
    timeouts: u32,
    probes: u32,
    cwnd_bytes: u64,
    ssthresh_bytes: Option<u64>,
    peer_window_bytes: u64,
    pacing_bytes_per_second: Option<u64>,
    delivery_rate_app_limited: bool,
    unacked_bytes: u64,
    in_flight_bytes: u64,
    sacked_bytes: u64,
    lost_bytes: u64,
    reading_bytes: u64,
    unsent_bytes: u64,
    acked_bytes: u64,
    sent_bytes: u64,
    retransmitted_bytes: u64,
    retransmitted_segments: u64,
    age_ms: Millis,
    since_sent_ms: Millis,
    since_received_ms: Millis,
    since_progress_ms: Millis,
}

/// A time in milliseconds, to the microsecond.
struct Millis(Duration);

impl Serialize for Millis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let micros = u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX);
        serializer.serialize_f64(micros as f64 / 1000.0)
    }
}

/// The limits that were ever in force, by name.
struct LimitTimes([Duration; Limit::COUNT]);

impl Serialize for LimitTimes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (limit, time) in Limit::ALL.iter().zip(self.0) {
            if !time.is_zero() {
                map.serialize_entry(limit.name(), &Millis(time))?;
            }
        }
        map.end()
    }
}

/// Appends a row.
pub(super) fn push_row(lines: &mut String, row: &Row) {
    let connection = &row.connection;
    let info = &connection.info;
    let json = RowJson {
        peer: connection.tuple.peer.to_string(),
        local: connection.tuple.local.to_string(),
        tls: connection.is_tls,
        state: info.state.name(),
        activity: connection.activity.name(),
        object: row.path.as_deref().map(shortened),
        replies: connection.replies,
        reads: connection.reads,
        over_read_budget: connection.is_over_budget,
        limit: info.limit.name(),
        limit_ms: LimitTimes(info.limit_times),
        congestion_control: info.congestion_control.name(),
        congestion_state: info.congestion_state.name(),
        sack: info.has_sack,
        timestamps: info.has_timestamps,
        mss: info.segment_bytes,
        mss_limit: info.segment_bytes_limit,
        rtt_ms: info.smoothed_rtt.map(Millis),
        rttvar_ms: Millis(info.rtt_variation),
        min_rtt_ms: info.minimum_rtt.map(Millis),
        rto_ms: Millis(info.retransmission_timeout),
        backoff: info.backoff,
        timeouts: info.timeouts,
        probes: info.probes,
        cwnd_bytes: info.congestion_window_bytes,
        ssthresh_bytes: info.threshold_bytes,
        peer_window_bytes: info.peer_window_bytes,
        pacing_bytes_per_second: info.pacing_bytes_per_second,
        delivery_rate_app_limited: info.is_rate_limited,
        unacked_bytes: info.unacknowledged_bytes,
        in_flight_bytes: info.in_flight_bytes,
        sacked_bytes: info.sacked_bytes,
        lost_bytes: info.lost_bytes,
        reading_bytes: info.reading_bytes,
        unsent_bytes: info.unsent_bytes,
        acked_bytes: info.acknowledged_bytes,
        sent_bytes: info.sent_bytes,
        retransmitted_bytes: info.retransmitted_bytes,
        retransmitted_segments: info.retransmitted_segments,
        age_ms: Millis(info.since_established),
        since_sent_ms: Millis(info.since_sent),
        since_received_ms: Millis(info.since_received),
        since_progress_ms: Millis(info.since_progress),
    };
    let json = serde_json::to_string(&json);
    lines.push_str(&json.expect("invariant: keys are strings"));
    lines.push('\n');
}

/// Appends the line that says where to go on.
pub(super) fn push_next(lines: &mut String, from: u32) {
    let _ = writeln!(lines, "{{\"next_from\":{from}}}");
}

/// The beginning of a path, if all of it is too long.
fn shortened(path: &str) -> &str {
    let mut end = path.len().min(PATH_BYTES_MAX);
    while !path.is_char_boundary(end) {
        end -= 1;
    }
    path.get(..end).unwrap_or_default()
}
