//! What is traced, what is not, and what happens when it does not fit.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use clock::Instant;
use session::{ConnectionTrace as _, TraceEnd, TraceEvent};
use tcp::{FourTuple, StreamOffset, StreamRange};

use worker::qlog;

use super::{PeerTrace, Peers, TraceFile};
use crate::observe::output::tests::LONG;
use crate::observe::output::{Output, OutputLimits, Target};

fn tuple(peer: &str) -> FourTuple {
    FourTuple {
        local: "192.0.2.1:80".parse().unwrap(),
        peer: peer.parse().unwrap(),
    }
}

const QUEUED: TraceEvent<'_> = TraceEvent::Queued {
    range: StreamRange {
        start: StreamOffset(0),
        end: StreamOffset(7),
    },
};

#[test]
fn peers_are_an_address_or_an_address_and_a_port() {
    let contains = |peers: &str, peer: &str| {
        Peers::parse(peers)
            .unwrap()
            .contains(&peer.parse().unwrap())
    };
    assert!(contains("192.0.2.7", "192.0.2.7:1"));
    assert!(!contains("192.0.2.7", "192.0.2.8:1"));
    assert!(contains("192.0.2.7:1", "192.0.2.7:1"));
    assert!(!contains("192.0.2.7:1", "192.0.2.7:2"));
    assert!(contains("fd77::1", "[fd77::1]:5000"));
    assert!(!contains("[fd77::1]:5000", "[fd77::1]:5001"));
    for text in [
        "",
        "192.0.2",
        "192.0.2.7:",
        "192.0.2.7:70000",
        "host:80",
        "192.0.2.0/24",
    ] {
        assert_eq!(Peers::parse(text), None, "{text}");
    }
    for text in ["192.0.2.7", "192.0.2.7:1", "[fd77::1]:5000"] {
        assert_eq!(Peers::parse(text).unwrap().to_string(), text);
    }
}

#[test]
fn connections_of_other_peers_are_not_wanted_and_not_more_than_there_is_room_for() {
    struct Nowhere;
    impl Target for Nowhere {
        fn write_lines(&mut self, _: &[u8]) -> std::io::Result<()> {
            Ok(())
        }
    }
    let output = Arc::new(Output::spawn("test", super::QUEUE, Nowhere).unwrap());
    let mut trace = PeerTrace::new(Peers::parse("192.0.2.7").unwrap(), output);
    assert!(!trace.wants(&tuple("192.0.2.8:1")));
    for port in 0..qlog::CONNECTIONS_MAX {
        assert!(trace.wants(&tuple(&format!("192.0.2.7:{port}"))), "{port}");
    }
    assert!(!trace.wants(&tuple("192.0.2.7:50000")));
    trace.record(
        Instant::ZERO,
        &tuple("192.0.2.7:3"),
        &TraceEvent::Ended(TraceEnd::Finished),
    );
    assert!(trace.wants(&tuple("192.0.2.7:50000")));
}

#[test]
fn what_does_not_fit_is_counted_and_the_next_record_says_so() {
    struct Held {
        seen: std::sync::mpsc::Sender<String>,
        go: std::sync::mpsc::Receiver<()>,
    }
    impl Target for Held {
        fn write_lines(&mut self, lines: &[u8]) -> std::io::Result<()> {
            self.seen
                .send(String::from_utf8(lines.to_vec()).unwrap())
                .unwrap();
            // A test that is over lets everything through.
            let _ = self.go.recv();
            Ok(())
        }
    }
    let ((seen, written), (release, go)) = (channel(), channel());
    let traced = tuple("192.0.2.7:1");
    let gap_bytes = qlog::gap(Instant::ZERO, &traced, 2).len();
    let mut qlog = qlog::Qlog::new();
    assert!(qlog.begin(&traced));
    let mut one = Vec::new();
    qlog.append(Instant::from_millis(1), &traced, &QUEUED, &mut one);
    assert!(gap_bytes < one.len(), "a third record would fit");
    let limits = OutputLimits {
        // The record that is being written, and one more, also behind a gap.
        bytes_max: 2 * one.len() + gap_bytes,
        pause: Duration::ZERO,
    };
    let output = Arc::new(Output::spawn("test", limits, Held { seen, go }).unwrap());
    let mut trace = PeerTrace::new(Peers::parse("192.0.2.7").unwrap(), Arc::clone(&output));
    assert!(trace.wants(&traced));
    let mut record = |millis| trace.record(Instant::from_millis(millis), &traced, &QUEUED);
    record(1);
    let first = written.recv_timeout(LONG).unwrap();
    assert!(first.contains("\"time\":1.0"), "{first}");
    // The thread is held: one more waits, and two have no room.
    record(2);
    record(3);
    record(4);
    assert_eq!(output.dropped(), 2);
    release.send(()).unwrap();
    let second = written.recv_timeout(LONG).unwrap();
    assert!(
        second.contains("\"time\":2.0") && !second.contains("dropped"),
        "{second}"
    );
    record(5);
    drop(release);
    let third = written.recv_timeout(LONG).unwrap();
    let (gap, rest) = third.split_once('\n').unwrap();
    assert!(
        gap.contains("\"atlas:records_dropped\"") && gap.contains("{\"count\":2}"),
        "{gap}"
    );
    assert!(rest.contains("\"time\":5.0"), "{rest}");
}

#[test]
fn the_file_ends_with_the_last_record_that_fits() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.sqlog");
    let mut file = TraceFile::create(&path, 10).unwrap();
    file.write_lines(b"12345").unwrap();
    file.write_lines(b"67890").unwrap();
    assert!(file.write_lines(b"1").is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"1234567890");
    // A smaller record does not follow one that was left out.
    let mut file = TraceFile::create(&path, 10).unwrap();
    file.write_lines(b"12345").unwrap();
    assert!(file.write_lines(b"678901").is_err());
    assert!(file.write_lines(b"6").is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"12345");
}

#[test]
fn a_symbolic_link_is_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let (target, link) = (
        directory.path().join("target"),
        directory.path().join("link"),
    );
    std::fs::write(&target, b"kept").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let error = TraceFile::create(&link, 10).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
    assert_eq!(std::fs::read(&target).unwrap(), b"kept");
}
