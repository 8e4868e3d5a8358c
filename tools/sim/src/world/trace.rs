//! The trace of a run: what TCP did on every connection, as qlog, on request.
//!
//! It uses the code that the product writes traces with, so a run also shows that traces are sound.
//! It refuses to influence the run. Bounds: as many connections at once as the product traces; the
//! records are kept in memory until the run ends.

use std::cell::RefCell;
use std::rc::Rc;

use clock::Instant;
use session::{ConnectionTrace, TraceEvent};
use tcp::FourTuple;
use worker::qlog::{self, Qlog};

use crate::credentials::UNIX_SECONDS;

/// The records of a run so far; its clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace(Rc<RefCell<Records>>);

#[derive(Debug, Default)]
struct Records {
    qlog: Qlog,
    bytes: Vec<u8>,
}

impl Trace {
    /// The whole file.
    pub(crate) fn file(&self) -> Vec<u8> {
        let mut file = qlog::header(UNIX_SECONDS * 1000);
        file.extend_from_slice(&self.0.borrow().bytes);
        file
    }
}

impl ConnectionTrace for Trace {
    fn wants(&mut self, tuple: &FourTuple) -> bool {
        self.0.borrow_mut().qlog.begin(tuple)
    }

    fn record(&mut self, now: Instant, tuple: &FourTuple, event: &TraceEvent<'_>) {
        let Records { qlog, bytes } = &mut *self.0.borrow_mut();
        qlog.append(now, tuple, event, bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;

    use crate::scenario::{THEMES, Theme};
    use crate::world::frame_log::FrameLog;

    /// The records of a run without the header.
    fn traced(seed: u64, theme: &Theme) -> (Vec<Value>, u64) {
        let frame_log = FrameLog::default().with_trace();
        let (outcome, frame_log) = crate::run(seed, theme, None, frame_log);
        let file = frame_log.trace().expect("it was wanted").file();
        let text = String::from_utf8(file).expect("JSON is UTF-8");
        let mut records = text.split('\u{1e}');
        assert_eq!(records.next(), Some(""));
        let mut records = records.map(|record| {
            assert!(
                record.ends_with('\n') && record.matches('\n').count() == 1,
                "{record}"
            );
            serde_json::from_str::<Value>(record).expect("a record is JSON")
        });
        let header = records.next().expect("a file has a header");
        assert_eq!(header["qlog_format"], "JSON-SEQ");
        (records.collect(), outcome.digest)
    }

    /// What the records of one connection have said so far.
    #[derive(Default)]
    struct Seen {
        sent: u64,
        received: u64,
        /// Packets that were acknowledged or lost, by number.
        settled: BTreeMap<u64, &'static str>,
        has_ended: bool,
    }

    impl Seen {
        fn settle(&mut self, number: u64, how: &'static str) {
            assert!(
                number < self.sent,
                "packet {number} {how} before it was sent"
            );
            let before = self.settled.insert(number, how);
            assert_eq!(before, None, "packet {number} {how}");
        }

        fn check(&mut self, record: &Value) {
            let data = &record["data"];
            let number = || data["header"]["packet_number"].as_u64().expect("a number");
            assert!(data.is_object(), "{record}");
            match record["name"].as_str().expect("a name") {
                "connectivity:connection_started" => *self = Self::default(),
                "transport:packet_sent" => {
                    assert_eq!(number(), self.sent, "{record}");
                    self.sent += 1;
                }
                "transport:packet_received" => {
                    assert_eq!(number(), self.received, "{record}");
                    self.received += 1;
                    let ranges = data["frames"][0]["acked_ranges"].as_array();
                    for range in ranges.into_iter().flatten() {
                        let end = |place: usize| range[place].as_u64().expect("a number");
                        (end(0)..=end(1)).for_each(|packet| self.settle(packet, "acknowledged"));
                    }
                }
                "recovery:packet_lost" => self.settle(number(), "lost"),
                "connectivity:connection_closed" => self.has_ended = true,
                name => assert!(name.split_once(':').is_some(), "{name}"),
            }
        }
    }

    /// Events have time, name, group and data; times do not decrease; what is acknowledged or lost
    /// was sent, and is so once; a connection that begins ends.
    #[test]
    fn traces_keep_the_rules_of_qlog_in_every_scenario() {
        let (mut lost, mut acknowledged) = (0, 0);
        for theme in THEMES {
            for seed in 0..3 {
                let (records, _) = traced(seed, theme);
                let mut connections = BTreeMap::<String, Seen>::new();
                let mut last = 0.0;
                for record in &records {
                    let time = record["time"].as_f64().expect("a time");
                    assert!(time >= last, "{} seed {seed}: {record}", theme.name);
                    last = time;
                    let group = record["group_id"].as_str().expect("a group");
                    connections
                        .entry(group.to_owned())
                        .or_default()
                        .check(record);
                }
                assert!(
                    connections.values().all(|seen| seen.has_ended),
                    "{} {seed}",
                    theme.name
                );
                let settled = connections.values().flat_map(|seen| seen.settled.values());
                for how in settled {
                    lost += u64::from(*how == "lost");
                    acknowledged += u64::from(*how == "acknowledged");
                }
            }
        }
        assert!(
            lost > 10 && acknowledged > 1000,
            "{lost} lost, {acknowledged} acknowledged"
        );
    }

    #[test]
    fn a_trace_changes_nothing_in_the_run() {
        for seed in 0..5 {
            let (_, digest) = traced(seed, &THEMES[0]);
            let (outcome, _) = crate::run(seed, &THEMES[0], None, FrameLog::default());
            assert_eq!(digest, outcome.digest, "seed {seed}");
        }
    }
}
