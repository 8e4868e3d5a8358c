//! Adjacent reads that become one entry.

use super::*;
use crate::uring::runs::RUN_READS_MAX;

const READ_BYTES: u32 = 8192;

/// `None`: this kernel reads into one place only.
fn bench() -> Option<Bench> {
    let bench = Bench::new();
    if !bench.disk.runs.has_room() {
        eprintln!("SKIPPED: no READV_FIXED (Linux 6.15), or no registered buffers");
        return None;
    }
    Some(bench)
}

/// A file of so many bytes, open.
fn serving(size_bytes: u64) -> Option<(Bench, PathBuf, FileIndex)> {
    let mut bench = bench()?;
    let path = bench.create("a", size_bytes);
    let (file, _) = bench.open(&path);
    Some((bench, path, file))
}

/// Reads `count` times side by side from an offset on; tokens count from 0.
fn enqueue_adjacent(bench: &mut Bench, file: FileIndex, offset_bytes: u64, count: usize) {
    for index in 0..count as u64 {
        let offset_bytes = offset_bytes + index * u64::from(READ_BYTES);
        bench.enqueue(file, offset_bytes, READ_BYTES, index);
    }
}

fn assert_pattern(results: &[(u64, Result<Vec<u8>, DiskError>)], offset_bytes: u64) {
    for (token, result) in results {
        let start = offset_bytes + token * u64::from(READ_BYTES);
        let bytes = result.as_ref().expect("a readable file");
        assert!(*bytes == pattern(start, bytes.len() as u64), "read {token}");
    }
}

#[test]
fn adjacent_reads_are_one_entry_up_to_the_most_of_a_run() {
    let Some((mut bench, _, file)) = serving(1 << 20) else {
        return;
    };
    for (count, merged) in [
        (1, 0),
        (2, 1),
        (RUN_READS_MAX, RUN_READS_MAX - 1),
        (RUN_READS_MAX + 1, RUN_READS_MAX - 1),
        (2 * RUN_READS_MAX, 2 * RUN_READS_MAX - 2),
    ] {
        let before = bench.disk.counters().disk_merged_commands;
        enqueue_adjacent(&mut bench, file, 4096, count);
        let results = bench.run();
        assert_eq!(results.len(), count);
        assert_pattern(&results, 4096);
        let counted = bench.disk.counters().disk_merged_commands - before;
        assert_eq!(counted, merged as u64, "{count} reads");
    }
    assert_eq!(bench.disk.counters().disk_reissued_commands, 0);
}

#[test]
fn reads_that_are_not_adjacent_or_of_another_file_are_not_merged() {
    let Some((mut bench, _, file)) = serving(1 << 20) else {
        return;
    };
    let path = bench.create("b", 1 << 20);
    let (other, _) = bench.open(&path);
    bench.enqueue(file, 0, READ_BYTES, 0);
    bench.enqueue(file, 2 * 8192, READ_BYTES, 2);
    bench.enqueue(other, 3 * 8192, READ_BYTES, 3);
    bench.enqueue(file, 4 * 8192, READ_BYTES, 4);
    bench.enqueue(file, 4 * 8192, READ_BYTES, 4);
    assert_pattern(&bench.run(), 0);
    assert_eq!(bench.disk.counters().disk_merged_commands, 0);
}

#[test]
fn a_submission_ends_a_run() {
    let Some((mut bench, _, file)) = serving(1 << 20) else {
        return;
    };
    enqueue_adjacent(&mut bench, file, 0, 2);
    bench.disk.sqsync(NOW).expect("a working ring");
    bench.enqueue(file, 2 * 8192, READ_BYTES, 2);
    assert_pattern(&bench.run(), 0);
    assert_eq!(bench.disk.counters().disk_merged_commands, 1);
}

#[test]
fn the_last_read_of_a_run_may_end_with_the_file() {
    let Some((mut bench, _, file)) = serving(3 * 8192 + 100) else {
        return;
    };
    enqueue_adjacent(&mut bench, file, 0, 4);
    let results = bench.run();
    assert_pattern(&results, 0);
    let lengths: Vec<usize> = results
        .iter()
        .map(|(_, bytes)| bytes.as_ref().expect("readable").len())
        .collect();
    assert_eq!(lengths, [8192, 8192, 8192, 100]);
}

#[test]
fn what_a_run_misses_is_read_again_by_itself() {
    for (result, reissued) in [
        (3 * 8192, 1),
        (8192 + 4096, 3),
        (8192, 3),
        (0, 4),
        (-libc::EIO, 4),
        (-libc::EINVAL, 4),
    ] {
        let Some((mut bench, _, file)) = serving(1 << 20) else {
            return;
        };
        enqueue_adjacent(&mut bench, file, 0, 4);
        bench.disk.sqsync(NOW).expect("a working ring");
        // The kernel's own answer is taken away, and another put in its place.
        let mut batch = [(0, 0); 4];
        let mut reaped = 0;
        while reaped == 0 {
            assert!(is_readable(&bench.disk, 30_000), "nothing came in 30 s");
            reaped = bench.disk.ring.reap(&mut batch, &mut 0);
        }
        assert_eq!((reaped, batch[0].1), (1, 4 * 8192));
        bench.disk.reaped.push_back((batch[0].0, result));
        bench.consume(usize::MAX);
        let results = bench.run();
        assert_eq!(results.len(), 4);
        assert_pattern(&results, 0);
        let counters = bench.disk.counters();
        assert_eq!(counters.disk_reissued_commands, reissued, "{result}");
        let is_refused = result == -libc::EINVAL;
        assert_eq!(bench.disk.runs.has_room(), !is_refused);
    }
}

#[test]
fn an_error_is_that_of_the_read_that_has_it() {
    let Some((mut bench, path, file)) = serving(4 * 8192) else {
        return;
    };
    // Shorter than it was when it was opened: the last two reads find nothing.
    let shorter = OpenOptions::new().write(true).open(path).expect("a file");
    shorter.set_len(2 * 8192).expect("a working disk");
    enqueue_adjacent(&mut bench, file, 0, 4);
    let results = bench.run();
    assert_eq!(results.len(), 4);
    assert!(results.iter().all(|(_, result)| result.is_err()));
}

#[test]
fn as_many_completions_are_handed_out_as_asked_for() {
    let Some((mut bench, _, file)) = serving(1 << 20) else {
        return;
    };
    enqueue_adjacent(&mut bench, file, 0, RUN_READS_MAX);
    bench.disk.sqsync(NOW).expect("a working ring");
    assert!(is_readable(&bench.disk, 30_000), "nothing came in 30 s");
    let mut consumed = 0;
    while consumed < RUN_READS_MAX {
        let wanted = 3.min(RUN_READS_MAX - consumed);
        assert_eq!(bench.consume(3), wanted);
        consumed += wanted;
        assert_eq!(bench.disk.in_flight(), RUN_READS_MAX - consumed);
    }
    assert_pattern(&bench.results, 0);
}

#[test]
fn a_disk_dropped_with_a_run_waits_for_it_submitted_or_not() {
    for is_submitted in [true, false] {
        let Some((mut bench, _, file)) = serving(1 << 20) else {
            return;
        };
        enqueue_adjacent(&mut bench, file, 0, 4);
        if is_submitted {
            bench.disk.sqsync(NOW).expect("a working ring");
        }
        let began = std::time::Instant::now();
        drop(bench.disk);
        assert!(began.elapsed().as_secs() < DRAIN_SECONDS_MAX);
    }
}
