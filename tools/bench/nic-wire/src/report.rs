//! What a run counts, and the report made of it.
//!
//! No clock. It refuses to call a run valid that lost a frame between the server and the clients or
//! met a fault. Bounded by: two histograms of fixed size, `FAULTS_TOLD` texts.

use std::collections::BTreeMap;

use memory::traffic::{MemoryTraffic, Quantity};
use serde::{Deserialize, Serialize};
use testbed::cores::CoreSeconds;
use testbed::latency::LatencySummary;

use crate::client::Fault;
use crate::visits::VisitReport;

/// Faults told in full; the rest are counted.
const FAULTS_TOLD: usize = 5;

macro_rules! counts {
    ($($(#[$text:meta])* $name:ident,)*) => {
        /// Events of a run.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Counts { $($(#[$text])* pub $name: u64,)* }

        impl Counts {
            /// What has been counted since `before`.
            #[must_use]
            pub const fn since(&self, before: &Self) -> Self {
                Self { $($name: self.$name - before.$name,)* }
            }
        }
    };
}

counts! {
    /// Bytes of bodies that came in order, those of incomplete replies too.
    body_bytes,
    /// Complete replies.
    replies,
    /// Complete replies of sampled connections.
    sampled_replies,
    /// Bytes of them that were compared, those of incomplete replies too.
    compared_bytes,
    /// Requests sent, those sent again not counted.
    requests,
    /// TCP frames with text from the server.
    frames,
    /// Segments of the server behind a gap.
    out_of_order_segments,
    /// Segments that ended a gap: retransmissions.
    gaps_filled,
    /// Segments whose bytes had all come: retransmissions that were not needed.
    duplicate_segments,
    /// Segments behind a gap that there was no place for.
    unplaced_segments,
    /// Packets lost on purpose.
    lost_packets,
    /// Three-way handshakes.
    connects,
    /// TLS handshakes.
    handshakes,
    /// TLS records of replies.
    records,
    /// SYNs answered by a reset, tried again.
    refused,
    /// Connections that the server closed between replies.
    closed_by_server,
}

/// What went wrong in all of a run, its warm-up included.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) counts: BTreeMap<&'static str, u64>,
    pub(crate) first: Vec<String>,
}

impl Faults {
    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        let counts = self.counts.iter();
        counts
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect()
    }

    pub(crate) fn add(&mut self, fault: Fault, path: Option<&str>, explanation: Option<&str>) {
        *self.counts.entry(fault.name()).or_default() += 1;
        if self.first.len() < FAULTS_TOLD {
            let path = path.unwrap_or("-");
            let why = explanation.map_or_else(String::new, |it| format!(", {it}"));
            self.first.push(format!("{path}: {fault:?}{why}"));
        }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// All was asked and answered.
    Done,
    /// Its time was over.
    Time,
    /// Interrupted.
    Interrupted,
    /// Nothing came any more, or not all connections stood in time.
    Stalled,
}

/// What the wire itself cost the server's core.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct WireCost {
    /// Runs of the BPF program before the window, one for each frame of the server: while the kernel measures them it
    /// reads the clock twice for each.
    pub filter_runs: u64,
    /// Nanoseconds they took.
    pub filter_ns: u64,
}

/// Bytes that all of the machine moved in the window, as its own counters have them (`memory::traffic`). What they do not
/// count is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryBytes {
    /// Read by memory controllers.
    pub read: Option<u64>,
    /// Written by memory controllers.
    pub written: Option<u64>,
    /// Read by devices, and found in the last-level cache.
    pub device_read_hit: Option<u64>,
    /// Read by devices, and not found there.
    pub device_read_miss: Option<u64>,
    /// Written by devices to lines that the last-level cache had.
    pub device_write_hit: Option<u64>,
    /// Written by devices to others.
    pub device_write_miss: Option<u64>,
}

impl MemoryBytes {
    /// What the counters have.
    pub(crate) fn now(counters: &MemoryTraffic) -> Self {
        let mut all = Self::default();
        for (quantity, bytes) in counters.bytes() {
            let place = match quantity {
                Quantity::MemoryRead => &mut all.read,
                Quantity::MemoryWritten => &mut all.written,
                Quantity::DeviceRead { hit: true } => &mut all.device_read_hit,
                Quantity::DeviceRead { hit: false } => &mut all.device_read_miss,
                Quantity::DeviceWrite { hit: true } => &mut all.device_write_hit,
                Quantity::DeviceWrite { hit: false } => &mut all.device_write_miss,
            };
            *place = Some(bytes);
        }
        all
    }

    /// What they have counted since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let less = |end: Option<u64>, begin: Option<u64>| Some(end?.saturating_sub(begin?));
        Self {
            read: less(self.read, before.read),
            written: less(self.written, before.written),
            device_read_hit: less(self.device_read_hit, before.device_read_hit),
            device_read_miss: less(self.device_read_miss, before.device_read_miss),
            device_write_hit: less(self.device_write_hit, before.device_write_hit),
            device_write_miss: less(self.device_write_miss, before.device_write_miss),
        }
    }
}

/// The report of a run. Counts and delays are those of the window after the warm-up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// How it ended.
    pub ended: Ending,
    /// Whether nothing was lost before the clients and no fault was met.
    pub is_valid: bool,
    /// Length of the window.
    pub seconds: f64,
    /// That length in median replies: below five, the window shows the server's beginning.
    pub window_median_replies: f64,
    /// The share of the connections that were warm when the window began.
    pub warm_share: f64,
    /// Connections.
    pub connections: u32,
    /// Those of them that are sampled.
    pub sampled: u32,
    /// Connections open at the end.
    pub connections_open: usize,
    /// Passes over them that were begun: above 1, some were asked for twice.
    pub passes_begun: u64,
    /// Of bodies, in 10^9 bits.
    pub gigabits_per_second: f64,
    /// The counts.
    pub counts: Counts,
    /// The counts since the start, the warm-up included: what a disk's own counters compare with.
    pub counts_since_start: Counts,
    /// How even the window was: Jain's index of the bytes of each connection, 1 if all got the same, 1/n if one got all.
    pub fairness: f64,
    /// What became of visits, if there were any.
    pub visits: Option<VisitReport>,
    /// Frames lost before the clients since the TAP was made: not 0, and the run is void.
    pub queue_dropped_frames: u64,
    /// From a request to the first byte of its reply, microseconds.
    pub first_byte: LatencySummary,
    /// From a request to the last byte of its reply, microseconds.
    pub whole: LatencySummary,
    /// What the wire cost.
    pub wire: WireCost,
    /// The share of the window in which the clients had work: near 1, they are what is measured.
    pub client_core_working: f64,
    /// What the server's core did, if it was named.
    pub server_core: Option<CoreSeconds>,
    /// What memory did, if the machine counts it and we may ask.
    pub memory: Option<MemoryBytes>,
    /// Faults by kind.
    pub faults: BTreeMap<String, u64>,
    /// A few of them.
    pub first_faults: Vec<String>,
}

pub(crate) fn ratio(of: f64, to: f64) -> f64 {
    if to > 0.0 { of / to } else { 0.0 }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts of a run are far below 2^52"
)]
pub(crate) const fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_counted_at_both_ends_of_a_window_is_missing() {
        let begin = MemoryBytes {
            read: Some(64),
            device_read_hit: Some(64),
            ..MemoryBytes::default()
        };
        let end = MemoryBytes {
            read: Some(192),
            written: Some(64),
            ..MemoryBytes::default()
        };
        let expected = MemoryBytes {
            read: Some(128),
            ..MemoryBytes::default()
        };
        assert_eq!(end.since(&begin), expected);
    }
}
