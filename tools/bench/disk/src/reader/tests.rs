//! `diskmap` on a real file.

use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::CONTENT;
use crate::measure;
use crate::plan::{Plan, Series, Turn};
use crate::target::{self, open_direct};

const FILE_BYTES: u64 = 1 << 20;

/// A made file beside this program, since `/tmp` may be memory.
fn made() -> Option<(TempDir, Target)> {
    let program = std::env::current_exe().unwrap();
    let directory = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
    let path = directory.path().join("made");
    target::make(&path, FILE_BYTES).unwrap();
    if let Err(error) = open_direct(&path) {
        eprintln!("SKIPPED: {error:#}");
        return None;
    }
    let target = Target::open(&path).unwrap();
    assert_eq!(target.size_bytes, FILE_BYTES);
    Some((directory, target))
}

fn turn(window: u32) -> Turn {
    let job = Job {
        series: Series::Size,
        read_bytes: 16_384,
        window,
    };
    Turn {
        index: 0,
        job,
        round: 0,
    }
}

fn plan(verifies: bool) -> Plan {
    Plan {
        jobs: Vec::new(),
        engines: Vec::new(),
        rounds: 1,
        time: Duration::from_millis(30),
        verifies,
    }
}

#[test]
fn a_read_brings_the_bytes_of_the_place_it_was_asked_for() {
    let Some((_directory, target)) = made() else {
        return;
    };
    let mut disk = Reader::open(&target, &turn(4).job).unwrap();
    let offsets = [3u64, 0, 63, 17].map(|read| read * 16_384);
    for (place, offset_bytes) in (0..).zip(offsets) {
        disk.enqueue(place, offset_bytes).unwrap();
    }
    disk.flush().unwrap();
    assert_eq!(disk.in_flight(), 4);
    let mut seen = Vec::new();
    while seen.len() < 4 {
        let sink = &mut |place: u32, bytes: &[u8]| {
            assert_eq!(bytes.len(), 16_384);
            assert!(CONTENT.check(offsets[place as usize], bytes).is_ok());
            seen.push(place);
        };
        disk.reap(sink).unwrap();
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3]);
    assert_eq!(disk.in_flight(), 0);
    assert!(disk.system_calls() > 0);
}

#[test]
fn the_window_is_kept_full_and_every_byte_is_right() {
    let Some((_directory, target)) = made() else {
        return;
    };
    for window in [1, 7, 32] {
        let sample = measure::measure(&target, &turn(window), &plan(true)).unwrap();
        assert_eq!(sample.in_flight_min, window);
        assert!(sample.reads > 0);
        assert_eq!(sample.bytes, sample.reads * 16_384);
        assert!(sample.elapsed >= Duration::from_millis(30));
    }
}

#[test]
fn other_bytes_are_noticed() {
    let Some((directory, _)) = made() else {
        return;
    };
    let path = directory.path().join("other");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let target = Target::open(&path).unwrap();
    let refusal = measure::measure(&target, &turn(4), &plan(true));
    let refusal = refusal.expect_err("zeros were taken for ours").to_string();
    assert!(refusal.contains("--verify"), "{refusal}");
    assert!(measure::measure(&target, &turn(4), &plan(false)).is_ok());
}

/// What this machine does not have is said in one line.
#[test]
fn devices_that_are_not_there_are_said_so() {
    for (path, said) in [
        ("/dev/ng9999n9", "the generic device of a namespace"),
        ("nvme:fffe:ff:1f.7", "no such PCI device"),
        ("nvme:here", "no PCI address"),
        ("nvme:fffe:ff:1f.7/0", "no namespace identifier"),
        ("nvme:fffe:ff:1f.7/x", "no namespace identifier"),
    ] {
        let refused = Target::open(std::path::Path::new(path)).unwrap_err();
        assert!(format!("{refused:#}").contains(said), "{refused:#}");
    }
}

#[test]
fn a_read_past_the_end_is_refused() {
    let Some((_directory, target)) = made() else {
        return;
    };
    let beyond = Target {
        size_bytes: u64::from(u32::MAX),
        ..target
    };
    let outcome = measure::measure(&beyond, &turn(4), &plan(false));
    assert!(outcome.is_err());
}
