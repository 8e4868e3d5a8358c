//! What a run counts, and the report made of it.
//!
//! No clock here. Bounded by: three histograms of fixed size, [`FIRST_ERRORS`] texts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::channel::RecordCounts;
use crate::cores::CoreSeconds;
use crate::fault::{Fault, FaultKind};
use crate::tls::{Agreed, Agreement, Kind};

/// Version of the report's schema: 2 tells of all handshakes what they agreed on, 1 of the first.
pub const SCHEMA: u32 = 2;

/// Errors told in full; the rest are counted.
const FIRST_ERRORS: usize = 5;

/// Longest delay told apart, microseconds: an hour.
const LATENCY_US_MAX: u64 = 3_600_000_000;

/// Decimal digits of a delay that count.
const LATENCY_DIGITS: u8 = 3;

/// Delays, in microseconds.
#[derive(Clone, Debug)]
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_US_MAX, LATENCY_DIGITS);
        Self(histogram.expect("invariant: fixed bounds that fit"))
    }
}

impl Latency {
    /// One more; what is beyond the bounds counts as the bound.
    pub fn record(&mut self, delay: Duration) {
        let microseconds = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self.0.saturating_record(microseconds.max(1));
    }

    /// The one in the middle, if there is any.
    #[must_use]
    pub fn median(&self) -> Option<Duration> {
        (!self.0.is_empty()).then(|| Duration::from_micros(self.0.value_at_quantile(0.5)))
    }

    /// How many there were, their mean and their percentiles.
    #[must_use]
    pub fn summary(&self) -> LatencySummary {
        LatencySummary {
            count: self.0.len(),
            mean: self.0.mean(),
            p50: self.0.value_at_quantile(0.5),
            p90: self.0.value_at_quantile(0.9),
            p99: self.0.value_at_quantile(0.99),
            p99_9: self.0.value_at_quantile(0.999),
            max: self.0.max(),
        }
    }
}

/// Counters of a run.
#[derive(Clone, Debug)]
pub(crate) struct Stats {
    pub(crate) requests: u64,
    pub(crate) replies: u64,
    pub(crate) body_bytes: u64,
    /// Those of the warm-up.
    pub(crate) warm_up_body_bytes: u64,
    pub(crate) verified: u64,
    pub(crate) verified_bytes: u64,
    pub(crate) connects: u64,
    /// How many handshakes agreed on what: there are few things to agree on.
    pub(crate) handshakes: Vec<(Agreement, u64)>,
    pub(crate) closed_by_server: u64,
    /// With arrivals: those there were.
    pub(crate) arrivals: u64,
    /// Those of them for which no connection was left.
    pub(crate) missed_arrivals: u64,
    /// Connections that failed.
    pub(crate) failures: u64,
    pub(crate) records: RecordCounts,
    pub(crate) late: u64,
    pub(crate) lateness: Duration,
    pub(crate) connect: Latency,
    pub(crate) first_byte: Latency,
    pub(crate) whole: Latency,
}

impl Stats {
    pub(crate) fn new() -> Self {
        Self {
            requests: 0,
            replies: 0,
            body_bytes: 0,
            warm_up_body_bytes: 0,
            verified: 0,
            verified_bytes: 0,
            connects: 0,
            handshakes: Vec::new(),
            closed_by_server: 0,
            arrivals: 0,
            missed_arrivals: 0,
            failures: 0,
            records: RecordCounts::default(),
            late: 0,
            lateness: Duration::ZERO,
            connect: Latency::default(),
            first_byte: Latency::default(),
            whole: Latency::default(),
        }
    }

    /// Begins to count. What is told of the making of connections is kept where they last: almost
    /// all have been made by now.
    pub(crate) fn forget_warm_up(&mut self, connections_last: bool) {
        let all = std::mem::replace(self, Self::new());
        self.warm_up_body_bytes = all.body_bytes;
        if connections_last {
            self.connects = all.connects;
            self.handshakes = all.handshakes;
            self.connect = all.connect;
        }
    }

    /// One more handshake.
    pub(crate) fn add_handshake(&mut self, agreed: Agreement) {
        match self.handshakes.iter_mut().find(|(it, _)| *it == agreed) {
            Some((_, count)) => *count += 1,
            None => self.handshakes.push((agreed, 1)),
        }
    }

    pub(crate) fn add_records(&mut self, counts: RecordCounts) {
        self.records.records += counts.records;
        self.records.tickets += counts.tickets;
        self.records.key_updates += counts.key_updates;
    }
}

/// What went wrong in all of a run, its warm-up included.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    counts: BTreeMap<FaultKind, u64>,
    first: Vec<String>,
}

impl Faults {
    /// One more; `about` names the URL or server.
    pub(crate) fn add(&mut self, fault: &Fault, about: &str) {
        *self.counts.entry(fault.kind).or_default() += 1;
        // Wrong replies are what one must see: they push the others out.
        let text = format!("{about}: {fault}");
        if self.first.len() < FIRST_ERRORS {
            self.first.push(text);
        } else if fault.kind.is_wrong() && self.wrong() <= FIRST_ERRORS as u64 {
            let at = usize::try_from(self.wrong() - 1).unwrap_or(0);
            if let Some(place) = self.first.get_mut(at) {
                *place = text;
            }
        }
    }

    pub(crate) fn all(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Replies that were wrong.
    pub(crate) fn wrong(&self) -> u64 {
        let wrong = self.counts.iter().filter(|(kind, _)| kind.is_wrong());
        wrong.map(|(_, count)| count).sum()
    }
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// All was asked and answered.
    #[default]
    Done,
    /// Its time was over.
    Time,
    /// Somebody interrupted it.
    Interrupted,
    /// Nothing came any more.
    GaveUp,
}

/// What surrounds the counters.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) connections: usize,
    /// Connections that stood at the end.
    pub(crate) open: usize,
    /// Requests open at the end.
    pub(crate) unfinished: u64,
    /// Length of the window that counts.
    pub(crate) window: Duration,
    /// What this process spent in it.
    pub(crate) cpu: Duration,
    /// What the watched cores did in it.
    pub(crate) cores: Vec<CoreSeconds>,
    pub(crate) ending: Ending,
}

/// A run's findings: with `--json`, this is printed. Of the whole run are `errors`,
/// `wrong_replies`, `first_errors` and, unless each request has its connection, `connects`,
/// `handshakes`, `resumed`, `tls` and `latency.connect`; all else is of the window after the
/// warm-up.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Version of this schema: [`SCHEMA`].
    pub schema: u32,
    /// Why the run ended: `done`, `time`, `interrupted`, `gave_up`.
    pub ended: Ending,
    /// Length of the window, seconds: from the first request or the warm-up's end on.
    pub seconds: f64,
    /// Connections asked for.
    pub connections: usize,
    /// Connections that stood at the end.
    pub connections_open: usize,
    /// Connections made.
    pub connects: u64,
    /// TLS handshakes.
    pub handshakes: u64,
    /// How many of them resumed a session.
    pub resumed: u64,
    /// Requests sent.
    pub requests: u64,
    /// Replies that were complete, right or wrong.
    pub replies: u64,
    /// Requests open at the end.
    pub unfinished: u64,
    /// Bytes of bodies, those of unfinished replies too; over TLS, before they were sealed.
    pub body_bytes: u64,
    /// The same of the warm-up.
    pub warm_up_body_bytes: u64,
    /// Replies whose every byte was compared and right.
    pub verified_replies: u64,
    /// The bytes of them.
    pub verified_bytes: u64,
    /// Of bodies, in 10^9 bits.
    pub gigabits_per_second: f64,
    /// Replies for each second of the window.
    pub replies_per_second: f64,
    /// What this process spent, of one core.
    pub client_core_seconds: f64,
    /// The same for each 10^9 bytes of body.
    pub client_core_seconds_per_gigabyte: f64,
    /// What the cores of `--watch-core` did, seconds: all of it, by whomever.
    pub cores: Vec<CoreSeconds>,
    /// Connections the server closed between replies, as it may.
    pub closed_by_server: u64,
    /// With `--arrivals`: connections that were due to be opened.
    pub arrivals: u64,
    /// Those of them for which none was left: the client's bound, not the server's.
    pub missed_arrivals: u64,
    /// Connections that failed.
    pub failures: u64,
    /// TLS records after handshakes.
    pub records: u64,
    /// Tickets among them.
    pub tickets: u64,
    /// Changes of the server's key among them.
    pub key_updates: u64,
    /// With a pace: chunks that took longer than it.
    pub late_chunks: u64,
    /// By how much in sum, seconds.
    pub late_seconds: f64,
    /// Of each kind, kinds without any left out.
    pub errors: BTreeMap<String, u64>,
    /// Errors that were answers: `status`, `length`, `bytes`, `head`, `records`.
    pub wrong_replies: u64,
    /// A few errors in full, wrong replies before others.
    pub first_errors: Vec<String>,
    /// Delays, microseconds.
    pub latency: Latencies,
    /// What handshakes agreed on, each once, in the order it was first met.
    pub tls: Vec<Agreed>,
}

/// Delays, microseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Latencies {
    /// From `connect` to the end of the handshake, or of TCP's where there is no TLS.
    pub connect: LatencySummary,
    /// From the request to the first byte of its reply.
    pub first_byte: LatencySummary,
    /// From the request to the last byte of its reply.
    pub whole: LatencySummary,
}

/// One histogram.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct LatencySummary {
    pub count: u64,
    pub mean: f64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    #[serde(rename = "p99.9")]
    pub p99_9: u64,
    pub max: u64,
}

impl Report {
    pub(crate) fn new(frame: Frame, stats: &Stats, faults: &Faults) -> Self {
        let seconds = frame.window.as_secs_f64();
        let core_seconds = frame.cpu.as_secs_f64();
        let gigabytes = float(stats.body_bytes) / 1e9;
        let counts = &faults.counts;
        let named = |kind: &FaultKind| Some((kind.name().to_owned(), *counts.get(kind)?));
        let handshakes = |is_counted: fn(Kind) -> bool| {
            let of = |(it, count): &(Agreement, u64)| is_counted(it.kind).then_some(*count);
            stats.handshakes.iter().filter_map(of).sum()
        };
        Self {
            schema: SCHEMA,
            ended: frame.ending,
            seconds,
            connections: frame.connections,
            connections_open: frame.open,
            connects: stats.connects,
            handshakes: handshakes(|_| true),
            resumed: handshakes(|kind| kind == Kind::Resumed),
            requests: stats.requests,
            replies: stats.replies,
            unfinished: frame.unfinished,
            body_bytes: stats.body_bytes,
            warm_up_body_bytes: stats.warm_up_body_bytes,
            verified_replies: stats.verified,
            verified_bytes: stats.verified_bytes,
            gigabits_per_second: ratio(gigabytes * 8.0, seconds),
            replies_per_second: ratio(float(stats.replies), seconds),
            client_core_seconds: core_seconds,
            client_core_seconds_per_gigabyte: ratio(core_seconds, gigabytes),
            cores: frame.cores,
            closed_by_server: stats.closed_by_server,
            arrivals: stats.arrivals,
            missed_arrivals: stats.missed_arrivals,
            failures: stats.failures,
            records: stats.records.records,
            tickets: stats.records.tickets,
            key_updates: stats.records.key_updates,
            late_chunks: stats.late,
            late_seconds: stats.lateness.as_secs_f64(),
            errors: FaultKind::ALL.iter().filter_map(named).collect(),
            wrong_replies: faults.wrong(),
            first_errors: faults.first.clone(),
            latency: Latencies {
                connect: stats.connect.summary(),
                first_byte: stats.first_byte.summary(),
                whole: stats.whole.summary(),
            },
            tls: stats
                .handshakes
                .iter()
                .map(|(it, count)| Agreed::new(*it, *count))
                .collect(),
        }
    }

    /// The report for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        self.write_text(&mut out)
            .expect("invariant: a String takes what is written");
        out
    }

    fn write_arrivals(&self, out: &mut String) -> std::fmt::Result {
        if self.arrivals == 0 {
            return Ok(());
        }
        writeln!(
            out,
            "arrivals     {}; {} failed, {} missed by this client",
            self.arrivals, self.failures, self.missed_arrivals
        )
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "{:.2} Gb/s, {:.0} replies/s over {:.2} s ({})",
            self.gigabits_per_second,
            self.replies_per_second,
            self.seconds,
            match self.ended {
                Ending::Done => "all asked and answered",
                Ending::Time => "time over",
                Ending::Interrupted => "interrupted",
                Ending::GaveUp => "gave up: nothing came any more",
            }
        )?;
        writeln!(
            out,
            "connections  {} of {} open; {} made, {} closed by the server",
            self.connections_open, self.connections, self.connects, self.closed_by_server
        )?;
        self.write_arrivals(out)?;
        for it in &self.tls {
            writeln!(
                out,
                "TLS          {} {} {} {}: {} handshakes",
                it.version,
                it.suite,
                it.group,
                match it.kind {
                    Kind::Full => "full",
                    Kind::Retried => "retried",
                    Kind::Resumed => "resumed",
                },
                it.handshakes
            )?;
        }
        if self.records > 0 {
            writeln!(
                out,
                "records      {}; {} tickets, {} key updates",
                self.records, self.tickets, self.key_updates
            )?;
        }
        writeln!(
            out,
            "replies      {} of {} requests, {} unfinished; {} bytes of bodies",
            self.replies, self.requests, self.unfinished, self.body_bytes
        )?;
        if self.verified_replies > 0 {
            writeln!(
                out,
                "verified     {} replies, {} bytes, each byte",
                self.verified_replies, self.verified_bytes
            )?;
        }
        if self.late_chunks > 0 {
            writeln!(
                out,
                "late         {} chunks, {:.3} s in all",
                self.late_chunks, self.late_seconds
            )?;
        }
        writeln!(
            out,
            "client       {:.2} core-s, {:.4} core-s/GB",
            self.client_core_seconds, self.client_core_seconds_per_gigabyte
        )?;
        for it in &self.cores {
            writeln!(
                out,
                "core {:<8}{:.2} s busy, {:.2} s idle, {:.2} s stolen",
                it.core, it.busy, it.idle, it.steal
            )?;
        }
        let header = ["p50", "p90", "p99", "p99.9", "max"];
        write!(out, "{:<13}", "microseconds")?;
        header
            .iter()
            .try_for_each(|name| write!(out, "{name:>11}"))?;
        writeln!(out)?;
        for (name, it) in [
            ("connect", &self.latency.connect),
            ("first byte", &self.latency.first_byte),
            ("whole reply", &self.latency.whole),
        ] {
            write!(out, "{name:<13}")?;
            [it.p50, it.p90, it.p99, it.p99_9, it.max]
                .iter()
                .try_for_each(|value| write!(out, "{value:>11}"))?;
            writeln!(out)?;
        }
        for (kind, count) in &self.errors {
            writeln!(out, "error        {kind}: {count}")?;
        }
        for text in &self.first_errors {
            writeln!(out, "             {text}")?;
        }
        Ok(())
    }
}

fn ratio(of: f64, to: f64) -> f64 {
    if to > 0.0 { of / to } else { 0.0 }
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
    fn delays_within_the_bounds_are_told_apart_and_others_count_as_the_bound() {
        let mut latency = Latency::default();
        for microseconds in 1..=1000 {
            latency.record(Duration::from_micros(microseconds));
        }
        let summary = latency.summary();
        assert_eq!((summary.count, summary.p50, summary.p99), (1000, 500, 990));
        assert_eq!((summary.p99_9, summary.max), (999, 1000));
        latency.record(Duration::from_secs(7200));
        latency.record(Duration::ZERO);
        let summary = latency.summary();
        assert_eq!(summary.count, 1002);
        assert!(summary.max.abs_diff(LATENCY_US_MAX) < LATENCY_US_MAX / 1000);
        assert_eq!(Latency::default().summary().p99, 0, "nothing is no delay");
    }

    #[test]
    fn wrong_replies_are_told_even_when_others_came_first() {
        let mut faults = Faults::default();
        let reset = Fault::new(FaultKind::Reset, "gone");
        for _ in 0..FIRST_ERRORS + 1 {
            faults.add(&reset, "a");
        }
        assert_eq!((faults.all(), faults.wrong()), (6, 0));
        assert_eq!(faults.first.len(), FIRST_ERRORS);
        let wrong = Fault::new(FaultKind::Bytes, "at 7");
        for number in 0..FIRST_ERRORS + 1 {
            faults.add(&wrong, &format!("b{number}"));
        }
        assert_eq!((faults.all(), faults.wrong()), (12, 6));
        let expected: Vec<_> = (0..FIRST_ERRORS)
            .map(|number| format!("b{number}: bytes: at 7"))
            .collect();
        assert_eq!(faults.first, expected);
    }

    fn report() -> Report {
        let mut stats = Stats::new();
        stats.body_bytes = 2_500_000_000;
        stats.replies = 100;
        stats.verified = 100;
        let mut faults = Faults::default();
        faults.add(&Fault::new(FaultKind::Status, "404"), "http://a:80/b");
        Report::new(report_frame(), &stats, &faults)
    }

    fn report_frame() -> Frame {
        Frame {
            connections: 2,
            open: 1,
            unfinished: 1,
            window: Duration::from_secs(2),
            cpu: Duration::from_millis(500),
            cores: vec![CoreSeconds {
                core: 1,
                busy: 1.5,
                idle: 0.5,
                steal: 0.0,
            }],
            ending: Ending::Time,
        }
    }

    #[test]
    fn speeds_are_of_bodies_and_errors_are_named() {
        let report = report();
        assert!((report.gigabits_per_second - 10.0).abs() < 1e-9);
        assert!((report.client_core_seconds_per_gigabyte - 0.2).abs() < 1e-9);
        let json = serde_json::to_value(&report).expect("JSON");
        assert_eq!(json["errors"]["status"], 1);
        assert_eq!(json["latency"]["whole"]["p99.9"], 0);
        assert_eq!(json["ended"], "time");
        let read: Report = serde_json::from_value(json.clone()).expect("its own JSON");
        assert_eq!(serde_json::to_value(&read).expect("JSON"), json);
        let text = report.text();
        assert!(text.starts_with("10.00 Gb/s"), "{text}");
        assert!(text.contains("core 1       1.50 s busy"), "{text}");
        assert!(text.contains("http://a:80/b: status: 404"), "{text}");
    }

    #[test]
    fn a_warm_up_is_forgotten_but_for_the_making_of_connections_that_last() {
        for (connections_last, kept) in [(true, 1), (false, 0)] {
            let mut stats = Stats::new();
            stats.connects = 1;
            stats.add_handshake(agreement(Kind::Full));
            (stats.requests, stats.replies, stats.body_bytes, stats.late) = (9, 9, 9, 9);
            stats.connect.record(Duration::from_micros(5));
            stats.whole.record(Duration::from_micros(5));
            stats.forget_warm_up(connections_last);
            assert_eq!(stats.connects, kept);
            assert_eq!(stats.handshakes.is_empty(), !connections_last);
            assert_eq!((stats.requests, stats.replies), (0, 0));
            assert_eq!((stats.body_bytes, stats.late), (0, 0));
            assert_eq!(stats.warm_up_body_bytes, 9);
            assert_eq!(stats.connect.summary().count, kept);
            assert_eq!(stats.whole.summary().count, 0);
        }
    }

    fn agreement(kind: Kind) -> Agreement {
        Agreement {
            version: None,
            suite: None,
            group: None,
            kind,
        }
    }

    #[test]
    fn handshakes_are_counted_by_what_they_agreed_on() {
        let mut stats = Stats::new();
        for kind in [Kind::Full, Kind::Resumed, Kind::Retried, Kind::Resumed] {
            stats.add_handshake(agreement(kind));
        }
        let frame = report_frame();
        let report = Report::new(frame, &stats, &Faults::default());
        assert_eq!((report.handshakes, report.resumed), (4, 2));
        let found = report.tls.iter().map(|it| (it.kind, it.handshakes));
        let expected = [(Kind::Full, 1), (Kind::Resumed, 2), (Kind::Retried, 1)];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_run_of_no_length_has_no_speed() {
        assert!(ratio(1.0, 0.0).abs() < f64::EPSILON);
        assert!((ratio(1.0, 2.0) - 0.5).abs() < f64::EPSILON);
    }
}
