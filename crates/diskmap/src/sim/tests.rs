use super::*;
use memory::ArenaConfig;

const SIZE_BYTES: u64 = 300_000;

struct Bench {
    arena: Arena,
    disk: SimDisk,
    completions: Vec<(u64, Result<Vec<u8>, DiskError>)>,
}

impl Bench {
    fn new(config: SimConfig) -> Self {
        let arena = Arena::new(ArenaConfig::new(64)).expect("a few MiB");
        Self {
            arena,
            disk: SimDisk::new(config),
            completions: Vec::new(),
        }
    }

    fn add(&mut self, seed: u64) -> u32 {
        self.disk.add_file(SimContent::Pattern {
            seed,
            size_bytes: SIZE_BYTES,
        })
    }

    fn open(&mut self, id: u32) -> FileIndex {
        self.disk
            .open(FileSource::Simulated(id))
            .expect("room for a file")
            .0
    }

    fn read(&mut self, file: FileIndex, offset_bytes: u64, token: u64) {
        let slot = self.arena.reserve().expect("a free slot");
        let read = Read {
            file,
            offset_bytes,
            length_bytes: 4096,
            slot,
            token,
        };
        assert!(
            self.disk.read(&mut self.arena, read).is_ok(),
            "the queue is full"
        );
    }

    fn consume(&mut self, now: Instant, completions_max: usize) -> usize {
        let completions = &mut self.completions;
        self.disk.consume_completions(
            now,
            &mut self.arena,
            completions_max,
            &mut |arena, completion| {
                let (slot, result) = match completion.result {
                    Ok(slot) => {
                        let bytes = arena.payload(&slot).to_vec();
                        (slot.into_free(), Ok(bytes))
                    }
                    Err((slot, error)) => (slot, Err(error)),
                };
                arena.release(slot);
                completions.push((completion.token, result));
            },
        )
    }

    /// Submits, and lets time pass until nothing is in flight.
    fn run(&mut self, from: Instant) -> Instant {
        let mut now = from;
        self.disk.sqsync(now).expect("cannot fail");
        while let Some(due) = self.disk.next_event() {
            now = due;
            self.consume(now, 1);
        }
        assert_eq!(self.disk.in_flight(), 0);
        assert_eq!(self.arena.free_count(), self.arena.slot_count());
        now
    }
}

fn expected(seed: u64, offset: u64, length: u64) -> Vec<u8> {
    (offset..(offset + length).min(SIZE_BYTES))
        .map(|at| pattern_byte(seed, at))
        .collect()
}

#[test]
fn reads_bring_their_bytes_in_any_order() {
    let mut bench = Bench::new(SimConfig::new(1));
    let id = bench.add(9);
    let file = bench.open(id);
    for token in 0..64 {
        bench.read(file, token * 4096, token);
    }
    bench.run(Instant::ZERO);
    assert!(
        !bench.completions.is_sorted_by_key(|(token, _)| *token),
        "nothing was reordered"
    );
    for (token, result) in &bench.completions {
        assert_eq!(*result, Ok(expected(9, token * 4096, 4096)));
    }
    assert_eq!(bench.disk.counters().disk_read_bytes, 64 * 4096);
}

#[test]
fn the_end_of_the_file_is_short_and_beyond_it_is_empty() {
    let mut bench = Bench::new(SimConfig::new(1));
    let id = bench.add(9);
    let file = bench.open(id);
    let last_block = SIZE_BYTES / 4096 * 4096;
    bench.read(file, last_block, 0);
    bench.read(file, last_block + 4096, 1);
    bench.run(Instant::ZERO);
    bench.completions.sort_by_key(|(token, _)| *token);
    let tail = expected(9, last_block, 4096);
    assert_eq!(tail.len(), 992);
    assert_eq!(bench.completions, [(0, Ok(tail)), (1, Ok(Vec::new()))]);
}

#[test]
fn time_is_the_callers_and_within_its_bounds() {
    let mut bench = Bench::new(SimConfig::new(1));
    let id = bench.add(9);
    let file = bench.open(id);
    bench.read(file, 0, 0);
    assert_eq!(bench.disk.next_event(), None, "submitted before sqsync");
    let start = Instant::from_millis(5);
    bench.disk.sqsync(start).expect("cannot fail");
    let due = bench.disk.next_event().expect("one submitted");
    assert!((80_000..=120_000).contains(&due.since(start).as_nanos()));
    assert_eq!(bench.consume(Instant::from_nanos(due.as_nanos() - 1), 8), 0);
    assert_eq!(bench.consume(due, 0), 0);
    assert_eq!(bench.consume(due, 8), 1);
    assert_eq!(bench.consume(Instant::FAR_FUTURE, 8), 0);
}

#[test]
fn a_stuck_read_is_late_but_comes() {
    let config = SimConfig {
        stuck_chance: CHANCE_SCALE,
        ..SimConfig::new(1)
    };
    let mut bench = Bench::new(config);
    let id = bench.add(9);
    let file = bench.open(id);
    bench.read(file, 0, 0);
    let end = bench.run(Instant::ZERO);
    assert!(end > Instant::ZERO + config.latency_max);
    assert!(end <= Instant::ZERO + config.stuck_max);
    assert!(bench.completions[0].1.is_ok());
}

#[test]
fn a_partial_read_takes_two_rounds_and_is_whole() {
    let config = SimConfig {
        partial_chance: CHANCE_SCALE,
        ..SimConfig::new(1)
    };
    let mut bench = Bench::new(config);
    let id = bench.add(9);
    let file = bench.open(id);
    bench.read(file, 0, 0);
    assert!(bench.run(Instant::ZERO).as_micros() >= 2 * 80);
    assert_eq!(bench.completions, [(0, Ok(expected(9, 0, 4096)))]);
    assert_eq!(bench.disk.counters().disk_reissued_commands, 1);
}

#[test]
fn errors_give_the_slot_back() {
    let mut bench = Bench::new(SimConfig {
        error_chance: CHANCE_SCALE,
        ..SimConfig::new(1)
    });
    let id = bench.add(9);
    let file = bench.open(id);
    bench.read(file, 0, 0);
    bench.run(Instant::ZERO);
    assert_eq!(bench.completions, [(0, Err(DiskError::Io(libc::EIO)))]);
    assert_eq!(bench.disk.counters().disk_failed_commands, 1);
}

#[test]
fn a_full_queue_gives_the_read_back() {
    let mut bench = Bench::new(SimConfig {
        queue_depth: 2,
        ..SimConfig::new(1)
    });
    let id = bench.add(9);
    let file = bench.open(id);
    bench.read(file, 0, 0);
    bench.read(file, 0, 1);
    let slot = bench.arena.reserve().expect("a free slot");
    let read = Read {
        file,
        offset_bytes: 0,
        length_bytes: 4096,
        slot,
        token: 2,
    };
    let refused = bench
        .disk
        .read(&mut bench.arena, read)
        .expect_err("the queue holds two");
    assert_eq!(refused.token, 2);
    bench.arena.release(refused.slot);
    bench.run(Instant::ZERO);
    bench.read(file, 0, 3);
    bench.run(Instant::ZERO);
    assert_eq!(bench.completions.len(), 3);
}

/// The content of `seed`, of so many bytes.
fn content(seed: u64, size_bytes: u64) -> SimContent {
    SimContent::Pattern { seed, size_bytes }
}

#[test]
fn a_rewrite_is_detected_in_files_opened_before_it() {
    let mut bench = Bench::new(SimConfig::new(1));
    let id = bench.add(9);
    let before = bench.open(id);
    bench.read(before, 0, 0);
    bench.run(Instant::ZERO);
    bench.read(before, 0, 1);
    bench.disk.sqsync(Instant::from_millis(9)).expect("taken");
    // While the read is in flight.
    let other = content(10, SIZE_BYTES);
    bench.disk.change_file(id, other, SimChange::Detected);
    bench.run(Instant::from_millis(9));
    let after = bench.open(id);
    bench.read(after, 0, 2);
    bench.read(before, 0, 3);
    bench.run(Instant::from_millis(11));
    bench.completions.sort_by_key(|(token, _)| *token);
    let (of, changed) = (|seed| Ok(expected(seed, 0, 4096)), Err(DiskError::Changed));
    let results: Vec<_> = bench
        .completions
        .into_iter()
        .map(|(_, result)| result)
        .collect();
    assert_eq!(results, [of(9), changed.clone(), of(10), changed]);
    assert_eq!(bench.disk.counters().disk_changed_commands, 2);
}

#[test]
fn a_completion_of_a_file_that_grew_takes_another_read() {
    const LATENCY_MICROS: u64 = 80;
    let mut bench = Bench::new(SimConfig {
        latency_max: Duration::from_micros(LATENCY_MICROS),
        ..SimConfig::new(1)
    });
    let id = bench.add(9);
    let (before, last) = (bench.open(id), SIZE_BYTES / 4096 * 4096);
    let mut now = Instant::ZERO;
    // Grown once, twice, not at all, and once more.
    for (times, rounds) in [(1, 2), (2, 2), (0, 1), (1, 2)] {
        let begun = now;
        bench.read(before, last, rounds);
        bench.disk.sqsync(now).expect("taken");
        for more in 1..=times {
            let grown = content(9, SIZE_BYTES + more);
            bench.disk.change_file(id, grown, SimChange::Verified);
        }
        now = bench.run(now);
        assert_eq!(
            now.since(begun).as_micros(),
            u128::from(rounds * LATENCY_MICROS)
        );
    }
    let old = expected(9, last, 4096);
    let handed_out = bench.completions.iter().map(|(_, result)| result.as_ref());
    let handed_out: Vec<_> = handed_out.map(|result| result.expect("the same")).collect();
    // Up to the length at open.
    assert!(handed_out.iter().all(|bytes| **bytes == old));
    assert_eq!(bench.disk.counters().disk_verify_commands, 3);
    // Both: it was rewritten.
    bench
        .disk
        .change_file(id, content(9, SIZE_BYTES + 9), SimChange::Verified);
    bench
        .disk
        .change_file(id, content(10, SIZE_BYTES), SimChange::Detected);
    bench.read(before, 0, 9);
    bench.run(now);
    assert_eq!(
        bench.completions.last(),
        Some(&(9, Err(DiskError::Changed)))
    );
}

#[test]
fn a_silent_change_brings_the_new_bytes() {
    let mut bench = Bench::new(SimConfig::new(1));
    let id = bench.add(9);
    let file = bench.open(id);
    let other = content(10, SIZE_BYTES);
    bench.disk.change_file(id, other, SimChange::Silent);
    bench.read(file, 0, 0);
    bench.run(Instant::ZERO);
    assert_eq!(bench.completions, [(0, Ok(expected(10, 0, 4096)))]);
}

#[test]
fn closing_keeps_reads_in_flight_and_invalidates_the_file_index() {
    let mut bench = Bench::new(SimConfig {
        files_max: 1,
        ..SimConfig::new(1)
    });
    let id = bench.add(9);
    let file = bench.open(id);
    assert_eq!(
        bench.disk.open(FileSource::Simulated(id)),
        Err(DiskError::TableFull)
    );
    bench.read(file, 0, 0);
    bench.disk.close(file);
    bench.disk.close(file);
    let next = bench.open(id);
    assert_ne!(next, file);
    bench.read(file, 0, 1);
    bench.run(Instant::ZERO);
    bench.completions.sort_by_key(|(token, _)| *token);
    let (kept, refused) = (Ok(expected(9, 0, 4096)), Err(DiskError::Io(libc::EBADF)));
    assert_eq!(bench.completions, [(0, kept), (1, refused)]);
}

#[test]
fn real_descriptors_and_unknown_files_are_refused() {
    let mut disk = SimDisk::new(SimConfig::new(1));
    assert_eq!(
        disk.open(FileSource::Simulated(0)),
        Err(DiskError::Io(libc::ENOENT))
    );
    let null = std::fs::File::open("/dev/null")
        .expect("always there")
        .into();
    let refused = disk.open(FileSource::Descriptor(null));
    assert_eq!(refused, Err(DiskError::Io(libc::ENOTSUP)));
}

#[test]
fn a_write_is_read_back_and_is_no_detected_change() {
    let mut bench = Bench::new(SimConfig::new(1));
    let id = bench.add(9);
    let file = bench.open(id);
    let mut slot = bench
        .arena
        .reserve()
        .expect("a free slot")
        .into_reading()
        .into_filled(4096);
    bench.arena.payload_mut(&mut slot).fill(0xa5);
    let write = Write {
        file,
        offset_bytes: 4096,
        length_bytes: 4096,
        slot,
        token: 0,
    };
    assert!(bench.disk.write(&mut bench.arena, write).is_ok());
    bench.run(Instant::ZERO);
    bench.read(file, 4096, 1);
    bench.read(file, 8192, 2);
    bench.run(Instant::ZERO);
    bench.completions.sort_by_key(|(token, _)| *token);
    assert_eq!(bench.completions[1], (1, Ok(vec![0xa5; 4096])));
    assert_eq!(bench.completions[2], (2, Ok(expected(9, 8192, 4096))));
    assert_eq!(bench.disk.counters().disk_write_bytes, 4096);
}

#[test]
fn same_seed_same_completions() {
    let run = |seed| {
        let mut bench = Bench::new(SimConfig {
            error_chance: CHANCE_SCALE / 4,
            stuck_chance: CHANCE_SCALE / 4,
            partial_chance: CHANCE_SCALE / 4,
            ..SimConfig::new(seed)
        });
        let id = bench.add(9);
        let file = bench.open(id);
        (0..64).for_each(|token| bench.read(file, token * 4096, token));
        let end = bench.run(Instant::ZERO);
        (end, bench.completions)
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn a_device_that_hangs_completes_nothing_and_others_go_on() {
    let mut bench = Bench::new(SimConfig::new(1));
    let content = |seed| SimContent::Pattern {
        seed,
        size_bytes: SIZE_BYTES,
    };
    let here = bench.disk.add_file_on(1, content(1));
    let far = bench.disk.add_file_on(2, content(2));
    let [here, far] = [here, far].map(|id| bench.open(id));
    // One is under way when it begins, one comes later.
    bench.read(far, 0, 20);
    bench.disk.sqsync(Instant::ZERO).expect("cannot fail");
    bench.disk.set_hung(Instant::ZERO, 2, true);
    bench.read(far, 4096, 21);
    bench.read(here, 0, 10);
    bench.disk.sqsync(Instant::ZERO).expect("cannot fail");
    let late = Instant::from_millis(1_000_000);
    assert_eq!(bench.consume(late, usize::MAX), 1);
    assert_eq!(bench.completions, [(10, Ok(expected(1, 0, 4096)))]);
    assert_eq!((bench.disk.in_flight(), bench.disk.next_event()), (2, None));
    bench.disk.set_hung(late, 2, false);
    assert!(bench.disk.next_event().is_some_and(|due| due > late));
    bench.run(late);
    bench.completions.sort_by_key(|(token, _)| *token);
    let tokens: Vec<u64> = bench.completions.iter().map(|(token, _)| *token).collect();
    assert_eq!(tokens, [10, 20, 21]);
}

/// Throughput in Gb/s and latency in us of reads of 16 KiB, so many at once, from two disks of one device.
fn read_with_window(window: u32) -> (f64, f64) {
    const READS: u32 = 4_000;
    let config = SimConfig {
        latency_min: Duration::from_micros(81),
        latency_max: Duration::from_micros(99),
        device_bits_per_second: 22_400_000_000,
        queue_depth: 512,
        ..SimConfig::new(1)
    };
    let devices = SimDevices::default();
    let mut arena = Arena::new(ArenaConfig::new(512)).expect("32 MiB");
    let mut disks = [0, 1].map(|seed| {
        let mut disk = SimDisk::new(SimConfig { seed, ..config });
        disk.share_devices(&devices);
        let content = SimContent::Pattern {
            seed,
            size_bytes: 1 << 20,
        };
        let file = disk.add_file(content);
        let (file, _) = disk.open(FileSource::Simulated(file)).expect("room");
        (disk, file)
    });
    let mut now = Instant::ZERO;
    let (mut begun, mut waited_ns) = (0, 0);
    let mut begin = |arena: &mut Arena, (disk, file): &mut (SimDisk, FileIndex), now: Instant| {
        let slot = arena.reserve().expect("a free slot");
        let read = Read {
            file: *file,
            offset_bytes: 0,
            length_bytes: 16_384,
            slot,
            token: now.as_nanos(),
        };
        disk.read(arena, read).expect("a short queue");
        disk.sqsync(now).expect("cannot fail");
        begun += 1;
        begun
    };
    for number in 0..window {
        begin(&mut arena, &mut disks[number as usize % 2], now);
    }
    let mut done = 0;
    while done < READS {
        let next = |disk: &(SimDisk, FileIndex)| disk.0.next_event();
        let first = disks
            .iter_mut()
            .min_by_key(|disk| next(disk).unwrap_or(Instant::from_millis(9_000)));
        let disk = first.expect("two");
        now = disk.0.next_event().expect("reads are in flight");
        disk.0
            .consume_completions(now, &mut arena, 1, &mut |arena, completion| {
                waited_ns += now.as_nanos() - completion.token;
                arena.release(completion.result.expect("no faults").into_free());
            });
        done += 1;
        begin(&mut arena, disk, now);
    }
    let bits = f64::from(READS) * 16_384.0 * 8.0;
    let nanos = |count: u64| count as f64;
    (
        bits / nanos(now.as_nanos()),
        nanos(waited_ns) / f64::from(READS) / 1e3,
    )
}

/// The paper's figure 6: reads of 16 KiB from a P3700. It has its full rate with 128 of them at once, after less than a
/// millisecond, and 512 take 3 ms. With one and with 16 there are no numbers but those of the data sheet's latency.
#[test]
fn a_device_with_a_rate_has_the_papers_throughput_and_latency_by_window() {
    let near = |measured: f64, expected: f64| (measured / expected - 1.0).abs() < 0.1;
    for (window, gigabits, us) in [
        (1, 1.37, 96.0),
        (16, 21.2, 98.0),
        (128, 22.4, 749.0),
        (512, 22.4, 2_996.0),
    ] {
        let (measured, latency) = read_with_window(window);
        assert!(
            near(measured, gigabits) && near(latency, us),
            "{window} at once: {measured} Gb/s, {latency} us"
        );
    }
}
