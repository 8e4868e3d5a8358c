//! What a run counts, and the report made of it.
//!
//! No clock here. Bounded by: two histograms of fixed size, [`FIRST_ERRORS`] texts.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use testbed::cores::CoreSeconds;
use testbed::latency::{Latency, LatencySummary};

use crate::fault::{Fault, FaultKind};

/// Errors told in full; the rest are counted.
const FIRST_ERRORS: usize = 5;

/// Counters of a window.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) replies: u64,
    pub(crate) body_bytes: u64,
    pub(crate) handshakes: u64,
    pub(crate) arrivals: u64,
    pub(crate) missed_arrivals: u64,
    pub(crate) failures: u64,
    pub(crate) connect: Latency,
    pub(crate) whole: Latency,
}

/// What went wrong in all of a run, its warm-up included.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    counts: BTreeMap<FaultKind, u64>,
    first: Vec<String>,
}

impl Faults {
    /// One more.
    pub(crate) fn add(&mut self, fault: &Fault) {
        *self.counts.entry(fault.kind).or_default() += 1;
        // Wrong replies are what one must see: they push the others out.
        if self.first.len() < FIRST_ERRORS {
            self.first.push(fault.to_string());
        } else if fault.kind.is_wrong() && self.wrong() <= FIRST_ERRORS as u64 {
            let at = usize::try_from(self.wrong() - 1).unwrap_or(0);
            if let Some(place) = self.first.get_mut(at) {
                *place = fault.to_string();
            }
        }
    }

    /// Replies that were wrong.
    fn wrong(&self) -> u64 {
        let wrong = self.counts.iter().filter(|(kind, _)| kind.is_wrong());
        wrong.map(|(_, count)| count).sum()
    }
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Its time was over.
    #[default]
    Time,
    /// Somebody interrupted it.
    Interrupted,
    /// Nothing came any more.
    GaveUp,
}

/// A run's findings, as they are printed. Of the whole run are `errors`, `wrong_replies` and `first_errors`;
/// all else is of the window after the warm-up.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Why the run ended.
    pub ended: Ending,
    /// Length of the window, seconds.
    pub seconds: f64,
    /// TLS handshakes.
    pub handshakes: u64,
    /// Replies that were complete, right or wrong.
    pub replies: u64,
    /// Bytes of bodies before they were sealed, those of unfinished replies too.
    pub body_bytes: u64,
    /// Of bodies, in 10^9 bits.
    pub gigabits_per_second: f64,
    /// What the cores of `--watch-core` did, seconds: all of it, by whomever.
    pub cores: Vec<CoreSeconds>,
    /// With `--arrivals`: connections that were due to be opened.
    pub arrivals: u64,
    /// Those of them for which none was left: the client's bound, not the server's.
    pub missed_arrivals: u64,
    /// Connections that failed.
    pub failures: u64,
    /// Of each kind, kinds without any left out.
    pub errors: BTreeMap<String, u64>,
    /// Errors that were answers: `status`, `length`, `head`, `records`.
    pub wrong_replies: u64,
    /// A few errors in full, wrong replies before others.
    pub first_errors: Vec<String>,
    /// Delays, microseconds.
    pub latency: Latencies,
}

/// Delays, microseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Latencies {
    /// From `connect` to the end of the handshake.
    pub connect: LatencySummary,
    /// From the request to the last byte of its reply.
    pub whole: LatencySummary,
}

impl Report {
    pub(crate) fn new(
        ended: Ending,
        window: Duration,
        cores: Vec<CoreSeconds>,
        (stats, faults): (&Stats, &Faults),
    ) -> Self {
        let seconds = window.as_secs_f64();
        let named = |(kind, count): (&FaultKind, &u64)| (kind.name().to_owned(), *count);
        Self {
            ended,
            seconds,
            handshakes: stats.handshakes,
            replies: stats.replies,
            body_bytes: stats.body_bytes,
            gigabits_per_second: float(stats.body_bytes) * 8e-9 / seconds.max(f64::MIN_POSITIVE),
            cores,
            arrivals: stats.arrivals,
            missed_arrivals: stats.missed_arrivals,
            failures: stats.failures,
            errors: faults.counts.iter().map(named).collect(),
            wrong_replies: faults.wrong(),
            first_errors: faults.first.clone(),
            latency: Latencies {
                connect: stats.connect.summary(),
                whole: stats.whole.summary(),
            },
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts of a run are far below 2^52"
)]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_replies_are_told_even_when_others_came_first() {
        let mut faults = Faults::default();
        for _ in 0..FIRST_ERRORS + 1 {
            faults.add(&Fault::new(FaultKind::Reset, "gone"));
        }
        assert_eq!((faults.wrong(), faults.first.len()), (0, FIRST_ERRORS));
        for number in 0..FIRST_ERRORS + 1 {
            faults.add(&Fault::new(FaultKind::Length, format!("at {number}")));
        }
        assert_eq!(faults.wrong(), 6);
        let expected: Vec<_> = (0..FIRST_ERRORS)
            .map(|number| format!("length: at {number}"))
            .collect();
        assert_eq!(faults.first, expected);
    }

    #[test]
    fn speeds_are_of_bodies_and_errors_are_named() {
        let stats = Stats {
            body_bytes: 2_500_000_000,
            ..Stats::default()
        };
        let mut faults = Faults::default();
        faults.add(&Fault::new(FaultKind::Status, "404"));
        let window = Duration::from_secs(2);
        let report = Report::new(Ending::Time, window, Vec::new(), (&stats, &faults));
        assert!((report.gigabits_per_second - 10.0).abs() < 1e-9);
        let json = serde_json::to_value(&report).expect("JSON");
        assert_eq!(json["errors"]["status"], 1);
        let read: Report = serde_json::from_value(json.clone()).expect("its own JSON");
        assert_eq!(serde_json::to_value(&read).expect("JSON"), json);
    }
}
