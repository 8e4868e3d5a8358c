//! One queue pair: limits, doorbells, ranges, flushes.

use super::*;

fn bench() -> Bench {
    Bench::new(EmulatedConfig::new(3, 9), NvmeConfig::default())
}

#[test]
fn one_doorbell_for_all_reads_of_a_batch() {
    let mut bench = bench();
    assert!(bench.read(0, 4096));
    bench.finish().unwrap();
    let before = bench.emulated.counters();
    for index in 0..64 {
        assert!(bench.read(index * 4096, 4096));
    }
    let fetched = bench.emulated.counters().io_commands;
    assert_eq!(fetched, before.io_commands, "before sqsync");
    bench.submit();
    let after = bench.emulated.counters();
    assert_eq!(after.io_commands, before.io_commands + 64);
    assert_eq!(after.doorbells, before.doorbells + 1);
    bench.submit();
    bench.finish().unwrap();
    assert_eq!(bench.emulated.counters().doorbells, before.doorbells + 1);
}

#[test]
fn a_full_queue_gives_commands_back() {
    let config = NvmeConfig {
        queue_depth: 2,
        ..NvmeConfig::default()
    };
    let mut bench = Bench::new(EmulatedConfig::new(3, 9), config);
    assert!(bench.read(0, 512) && bench.write(1 << 20, 512, 7));
    assert!(!bench.read(0, 512) && !bench.write(1 << 20, 512, 7));
    let slot = bench.arena.reserve().unwrap();
    let (file, token) = (bench.file, 0);
    let refused = bench.disk.flush(Flush { file, slot, token });
    bench.arena.release(refused.unwrap_err().slot);
    assert_eq!(bench.disk.counters().disk_queue_full_commands, 3);
    bench.finish().unwrap();
    assert!(bench.read(0, 512));
    bench.finish().unwrap();
}

#[test]
fn the_depth_follows_the_shortest_queue() {
    for (entries, depth) in [(2, 1), (5, 4), (65_536, 256)] {
        let config = EmulatedConfig {
            queue_entries_max: entries,
            ..EmulatedConfig::new(3, 9)
        };
        let mut bench = Bench::new(config, NvmeConfig::default());
        assert_eq!(bench.disk.queue_depth(), depth);
        for _ in 0..depth {
            assert!(bench.read(0, 512));
        }
        assert!(!bench.read(0, 512));
        bench.finish().unwrap();
    }
}

#[test]
fn sizes_on_both_sides_of_each_limit() {
    let bench = bench();
    let make = |queue_depth, files_max, queue_id| {
        let memory = bench.emulated.map_memory(memory_bytes(1023, &bench.arena));
        let slots = bench.emulated.map_slots(&bench.arena);
        let config = NvmeConfig {
            queue_depth,
            files_max,
            ..NvmeConfig::default()
        };
        let (controller, arena) = (&bench.controller, &bench.arena);
        Nvme::new(controller, queue_id, memory, slots, arena, config).err()
    };
    for (queue_depth, files_max) in [(0, 1), (1024, 1), (1, 0), (1, FILES_MAX + 1)] {
        let expected = NvmeError::Config {
            queue_depth,
            files_max,
        };
        assert_eq!(make(queue_depth, files_max, 1), Some(expected));
    }
    assert_eq!(make(1023, FILES_MAX, 1), None);
    for queue_id in [0, 2] {
        let granted = 1;
        let expected = NvmeError::QueueId { queue_id, granted };
        assert_eq!(make(1, 1, queue_id), Some(expected));
    }
}

#[test]
fn too_little_memory_is_refused() {
    let bench = bench();
    let needed_bytes = memory_bytes(8, &bench.arena);
    let make = |bytes| {
        let memory = bench.emulated.map_memory(bytes);
        let slots = bench.emulated.map_slots(&bench.arena);
        let config = NvmeConfig {
            queue_depth: 8,
            ..NvmeConfig::default()
        };
        Nvme::new(&bench.controller, 1, memory, slots, &bench.arena, config).err()
    };
    let given_bytes = needed_bytes - 1;
    let expected = NvmeError::Memory {
        needed_bytes,
        given_bytes,
    };
    assert_eq!(make(given_bytes), Some(expected));
    assert_eq!(make(needed_bytes), None);
}

#[test]
fn a_range_is_within_its_namespace_and_starts_at_a_block() {
    let mut bench = bench();
    let size: u64 = 64 << 20;
    let invalid = Err(DiskError::Io(libc::EINVAL));
    assert_eq!(bench.open(size, 1), invalid);
    assert_eq!(bench.open(512, size - 511), invalid);
    assert_eq!(bench.open(u64::MAX - 511, 512), invalid);
    assert_eq!(bench.open(256, 512), invalid);
    let (_, limits) = bench.open(512, size - 512).unwrap();
    assert_eq!(limits.size_bytes, size - 512);
    assert_eq!((limits.block_bytes, limits.read_bytes_max), (512, 65_536));
    let unknown = NamespaceRange {
        controller: 0,
        namespace_id: 2,
        start_bytes: 0,
        length_bytes: 512,
    };
    let refused = bench.disk.open(FileSource::Namespace(unknown));
    assert_eq!(refused, Err(DiskError::Io(libc::ENODEV)));
    let other = bench.disk.open(FileSource::Simulated(0));
    assert_eq!(other, Err(DiskError::Io(libc::ENOTSUP)));
}

#[test]
fn a_write_beyond_its_range_is_refused() {
    let mut bench = bench();
    bench.file = bench.open(1 << 20, 1000).unwrap().0;
    let before = bench.emulated.stored(1, 2050, 512);
    assert!(bench.write(512, 1024, 9));
    bench.finish().unwrap();
    assert_eq!(bench.errors, [DiskError::Io(libc::ENOSPC)]);
    assert_eq!(bench.emulated.stored(1, 2050, 512), before);
    assert_eq!(bench.emulated.counters().io_commands, 0);
}

#[test]
fn long_reads_are_done_in_parts() {
    let config = EmulatedConfig {
        transfer_shift: 1,
        ..EmulatedConfig::new(3, 9)
    };
    let mut bench = Bench::new(config, NvmeConfig::default());
    assert_eq!(bench.open(0, 4096).unwrap().1.read_bytes_max, 8192);
    for length_bytes in [512, 4096, 4608, 8192, 8704, 65_024, 65_536] {
        let before = bench.emulated.counters().io_commands;
        assert!(bench.read(1 << 20, length_bytes) && bench.write(2 << 20, length_bytes, 3));
        bench.finish().unwrap();
        let parts = u64::from(length_bytes.div_ceil(8192));
        let commands = bench.emulated.counters().io_commands - before;
        assert_eq!(commands, 2 * parts, "{length_bytes} bytes");
    }
    assert_eq!(bench.errors, []);
}

#[test]
fn a_flush_is_a_command_of_its_own() {
    let mut bench = bench();
    let slot = bench.arena.reserve().unwrap();
    let (file, token) = (bench.file, 77);
    bench.disk.flush(Flush { file, slot, token }).unwrap();
    bench.submit();
    let mut flushed = Vec::new();
    while flushed.is_empty() {
        assert!(bench.step());
        let sink = &mut |arena: &mut Arena, completion: Completion| {
            let slot = completion.result.expect("a working flush");
            flushed.push((completion.token, slot.filled_bytes()));
            arena.release(slot.into_free());
        };
        bench
            .disk
            .consume_completions(bench.now, &mut bench.arena, 8, sink);
    }
    assert_eq!(flushed, [(77, 0)]);
    assert_eq!(bench.emulated.counters().flushes, 1);
    bench.check_quiet().unwrap();
}

#[test]
fn no_more_completions_than_asked_for_are_handed_out() {
    let mut bench = bench();
    for index in 0..10 {
        assert!(bench.read(index * 512, 512));
    }
    bench.submit();
    while bench.emulated.outstanding() > 0 || !bench.disk.poll(bench.now) {
        assert!(bench.step());
    }
    bench.now += Duration::from_millis(1);
    bench.emulated.advance(bench.now);
    assert_eq!(bench.consume(0), Ok(0));
    assert_eq!(bench.consume(3), Ok(3));
    assert_eq!(bench.consume(100), Ok(7));
    assert_eq!(bench.disk.in_flight(), 0);
}

#[test]
fn doorbells_are_where_the_stride_says() {
    for doorbell_stride in [0, 4, 15] {
        let config = EmulatedConfig {
            doorbell_stride,
            ..EmulatedConfig::new(3, 12)
        };
        let mut bench = Bench::new(config, NvmeConfig::default());
        assert!(bench.read(0, 65_536));
        bench.finish().unwrap();
        assert_eq!(bench.errors, []);
    }
}

#[test]
fn a_queue_pair_may_be_deleted_and_made_again() {
    let mut bench = bench();
    for _ in 0..3 {
        assert!(bench.read(0, 512));
        bench.finish().unwrap();
        while !bench.disk.detach(bench.now) {
            bench.now += Duration::from_millis(1);
            bench.emulated.advance(bench.now);
        }
    }
    assert_eq!(bench.errors, []);
    assert_eq!(bench.controller.counters().reset_count, 0);
}

#[test]
fn a_queue_pair_has_one_user() {
    let mut bench = bench();
    assert!(bench.read(0, 512));
    bench.finish().unwrap();
    let memory = bench.emulated.map_memory(memory_bytes(8, &bench.arena));
    let slots = bench.emulated.map_slots(&bench.arena);
    let config = NvmeConfig {
        queue_depth: 8,
        ..NvmeConfig::default()
    };
    let second = Nvme::new(&bench.controller, 1, memory, slots, &bench.arena, config);
    bench.disk = second.unwrap();
    bench.file = bench.open(0, 4096).unwrap().0;
    assert!(!bench.disk.poll(bench.now));
    assert!(bench.read(0, 512));
    bench.submit();
    assert_eq!(bench.consume(8), Ok(1));
    assert_eq!(bench.errors, [DiskError::Io(libc::ENODEV)]);
}

#[test]
fn what_needs_no_command_is_due_at_once() {
    let mut bench = bench();
    bench.file = bench.open(0, 512).unwrap().0;
    assert_eq!(bench.disk.next_deadline(), None);
    let slot = bench.arena.reserve().unwrap();
    let read = Read {
        file: FileIndex(77),
        offset_bytes: 0,
        length_bytes: 512,
        slot,
        token: 0,
    };
    assert!(bench.disk.read(&mut bench.arena, read).is_ok());
    bench.submit();
    assert_eq!(bench.disk.next_deadline(), Some(bench.now));
    let sink = &mut |arena: &mut Arena, completion: Completion| {
        let (slot, error) = completion.result.expect_err("it is not open");
        assert_eq!(error, DiskError::Io(libc::EBADF));
        arena.release(slot);
    };
    let (now, arena) = (bench.now, &mut bench.arena);
    assert_eq!(bench.disk.consume_completions(now, arena, 8, sink), 1);
    assert_eq!(bench.emulated.counters().io_commands, 0);
}

#[test]
fn completions_are_looked_for_soon_while_something_is_in_flight() {
    let mut bench = bench();
    bench.file = bench.open(0, 4096).unwrap().0;
    assert_eq!(bench.disk.next_poll(bench.now), None);
    assert!(bench.read(0, 512));
    bench.submit();
    let soon = bench.now + Duration::from_micros(50);
    assert_eq!(bench.disk.next_poll(bench.now), Some(soon));
    // Never later than the driver itself has something to do.
    let due = bench.disk.next_deadline().unwrap();
    assert_eq!(bench.disk.next_poll(due), Some(due));
    assert_eq!(bench.finish(), Ok(()));
    assert_eq!(bench.disk.next_poll(bench.now), None);
}

#[test]
#[should_panic(expected = "a read fits its slot")]
fn a_read_larger_than_its_slot_is_refused() {
    bench().read(0, 66_048);
}

/// One page, two pages: PRPs need no list. From three on one descriptor does, if that is offered and wanted.
#[test]
fn a_descriptor_is_used_where_prps_would_need_a_list() {
    for (sgls, use_sgls, uses) in [
        (0, true, false),
        (0b01, true, true),
        (0b10, true, true),
        (0b11, true, false),
        (0b01, false, false),
    ] {
        let config = EmulatedConfig {
            sgls,
            ..EmulatedConfig::new(3, 12)
        };
        let disk = NvmeConfig {
            use_sgls,
            ..NvmeConfig::default()
        };
        let mut bench = Bench::new(config, disk);
        for (pages, by_descriptor) in [(1, false), (2, false), (3, true), (16, true)] {
            let before = bench.emulated.counters().sgl_commands;
            assert!(bench.read(0, pages * 4096));
            assert!(bench.write(1 << 20, pages * 4096, 7));
            bench.finish().unwrap();
            let found = bench.emulated.counters().sgl_commands - before;
            let wanted = if uses && by_descriptor { 2 } else { 0 };
            assert_eq!(found, wanted, "SGLS {sgls}, {pages} pages");
        }
    }
}
