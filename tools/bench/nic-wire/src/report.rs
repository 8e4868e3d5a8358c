//! What a run counts, and the report made of it.
//!
//! No clock. It refuses to call a run valid that lost a frame between the server and the clients or
//! met a fault. Bounded by: two histograms of fixed size, `FAULTS_TOLD` texts.

use std::collections::BTreeMap;

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
