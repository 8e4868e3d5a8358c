use super::*;

fn arena(slot_count: u32) -> Arena {
    Arena::new(ArenaConfig::new(slot_count)).expect("a few MiB")
}

fn filled(arena: &mut Arena, filled_bytes: u32) -> FilledSlot {
    arena
        .reserve()
        .expect("a free slot")
        .into_reading()
        .into_filled(filled_bytes)
}

#[test]
fn slots_come_last_out_first_in_until_there_are_none() {
    let mut arena = arena(3);
    assert_eq!((arena.free_count(), arena.slot_count()), (3, 3));
    let first = arena.reserve().expect("three free");
    let second = arena.reserve().expect("two free");
    let third = arena.reserve().expect("one free");
    assert!(arena.reserve().is_none());
    assert_eq!([first.index(), second.index(), third.index()], [0, 1, 2]);
    arena.release(third);
    arena.release(first);
    assert_eq!(arena.reserve().map(|slot| slot.index()), Some(0));
    assert_eq!(arena.free_count(), 1);
    let _lost = second;
}

#[test]
fn payload_is_aligned_and_exactly_what_was_filled() {
    let mut arena = arena(2);
    let mut slot = filled(&mut arena, 5);
    arena.payload_mut(&mut slot).copy_from_slice(b"hello");
    assert_eq!(arena.payload(&slot), b"hello");
    assert!(
        arena
            .payload(&slot)
            .as_ptr()
            .addr()
            .is_multiple_of(SLOT_ALIGNMENT_BYTES as usize)
    );
    let reading = slot.into_free().into_reading();
    assert_eq!(reading.slot_bytes(), ArenaConfig::SLOT_BYTES);
    let address = arena.device_address(&reading);
    let slot = reading.into_filled(0);
    assert!(arena.payload(&slot).is_empty());
    assert_eq!(arena.device_source(&slot), address.cast_const());
    arena.release(slot.into_free());
}

#[test]
fn a_full_slot_does_not_reach_its_neighbour() {
    let mut arena = arena(3);
    let mut slots: Vec<_> = (0..3)
        .map(|_| filled(&mut arena, ArenaConfig::SLOT_BYTES))
        .collect();
    let room = (ArenaConfig::HEADROOM_BYTES, ArenaConfig::TAILROOM_BYTES);
    for (mark, slot) in (1u8..).zip(&mut slots) {
        arena.window_mut(slot, room.0, room.1).fill(mark);
    }
    for (mark, slot) in (1u8..).zip(&slots) {
        assert!(
            arena
                .window(slot, room.0, room.1)
                .iter()
                .all(|&byte| byte == mark)
        );
    }
    for slot in slots {
        arena.release(slot.into_free());
    }
    assert_eq!(arena.free_count(), arena.slot_count());
}

#[test]
fn a_window_surrounds_the_payload() {
    let mut arena = arena(1);
    let mut slot = filled(&mut arena, 3);
    arena.payload_mut(&mut slot).copy_from_slice(b"abc");
    arena.window_mut(&mut slot, 2, 1).copy_from_slice(b"<<abc>");
    assert_eq!(arena.payload(&slot), b"abc");
    assert_eq!(arena.window(&slot, 2, 1), b"<<abc>");
    // What the read left of the slot belongs to the room behind.
    let after_max = ArenaConfig::SLOT_BYTES - 3 + ArenaConfig::TAILROOM_BYTES;
    assert_eq!(
        arena.window(&slot, 0, after_max).len(),
        3 + after_max as usize
    );
    arena.release(slot.into_free());
}

#[test]
#[should_panic(expected = "do not fit a headroom")]
fn a_window_beyond_the_headroom_is_refused() {
    let mut arena = arena(1);
    let slot = filled(&mut arena, 3);
    let _ = arena.window(&slot, ArenaConfig::HEADROOM_BYTES + 1, 0);
}

#[test]
#[should_panic(expected = "behind")]
fn a_window_beyond_the_tailroom_is_refused() {
    let mut arena = arena(1);
    let slot = filled(&mut arena, ArenaConfig::SLOT_BYTES);
    let _ = arena.window(&slot, 0, ArenaConfig::TAILROOM_BYTES + 1);
}

#[test]
#[should_panic(expected = "cannot hold 65537")]
fn more_bytes_than_the_slot_holds_are_refused() {
    let mut arena = arena(1);
    let _ = filled(&mut arena, ArenaConfig::SLOT_BYTES + 1);
}

#[test]
#[should_panic(expected = "another arena")]
fn a_slot_of_another_arena_is_not_released() {
    let (mut one, mut other) = (arena(1), arena(1));
    let slot = one.reserve().expect("one free");
    let _theirs = other.reserve();
    other.release(slot);
}

#[test]
#[should_panic(expected = "another arena")]
fn a_slot_of_another_arena_is_not_read() {
    let (mut one, other) = (arena(1), arena(1));
    let slot = filled(&mut one, 1);
    let _ = other.payload(&slot);
}

#[test]
fn regions_cover_every_slot_once() {
    // 15 slots of 4 KiB with 128 KiB of room: also a shape other than the usual one.
    let config = ArenaConfig {
        slot_bytes: 4096,
        headroom_bytes: ROOM_BYTES_MAX,
        tailroom_bytes: ROOM_BYTES_MAX,
        ..ArenaConfig::new(15)
    };
    let mut arena = Arena::new(config).expect("2 MiB");
    // The limit is a GiB; a lower one shows the cut without mapping that much.
    arena.slots_per_region = 7;
    let regions: Vec<_> = arena.regions().collect();
    assert_eq!(regions.len(), 3);
    while let Some(slot) = arena.reserve() {
        let slot = slot.into_reading();
        let start = arena.device_address(&slot).addr();
        let end = start + arena.slot_bytes() as usize;
        let holds = |region: &Region| {
            let base = region.address.addr();
            base <= start && end <= base + region.length_bytes
        };
        let homes: Vec<_> = (0u16..)
            .zip(&regions)
            .filter(|(_, region)| holds(region))
            .collect();
        assert_eq!(homes.len(), 1, "slot {}", slot.index());
        assert_eq!(homes[0].0, arena.region_index(slot.index()));
    }
}

#[test]
fn a_full_region_stays_within_the_limit() {
    let arena = arena(1);
    let stride_bytes = arena.config.stride_bytes();
    let full_bytes = arena.slots_per_region as usize * stride_bytes;
    assert!(full_bytes <= REGION_BYTES_MAX && full_bytes + stride_bytes > REGION_BYTES_MAX);
}

#[test]
fn shapes_on_both_sides_of_each_limit() {
    let usual = ArenaConfig {
        pages: PageKind::Ordinary,
        ..ArenaConfig::new(1)
    };
    let refused = |config| Arena::new(config).err();
    for slot_count in [0, SLOT_COUNT_MAX + 1] {
        let config = ArenaConfig {
            slot_count,
            ..usual
        };
        assert_eq!(refused(config), Some(ArenaError::SlotCount { slot_count }));
    }
    assert!(
        ArenaConfig {
            slot_count: SLOT_COUNT_MAX,
            ..usual
        }
        .check()
        .is_ok()
    );
    for slot_bytes in [0, 4095, 4097, SLOT_BYTES_MAX + SLOT_ALIGNMENT_BYTES] {
        let config = ArenaConfig {
            slot_bytes,
            ..usual
        };
        assert_eq!(refused(config), Some(ArenaError::SlotBytes { slot_bytes }));
    }
    for slot_bytes in [4096, SLOT_BYTES_MAX] {
        assert_eq!(
            refused(ArenaConfig {
                slot_bytes,
                ..usual
            }),
            None
        );
    }
    for room_bytes in [1, ROOM_BYTES_MAX + SLOT_ALIGNMENT_BYTES] {
        let error = Some(ArenaError::RoomBytes { room_bytes });
        assert_eq!(
            refused(ArenaConfig {
                headroom_bytes: room_bytes,
                ..usual
            }),
            error
        );
        assert_eq!(
            refused(ArenaConfig {
                tailroom_bytes: room_bytes,
                ..usual
            }),
            error
        );
    }
    assert_eq!(
        refused(ArenaConfig {
            headroom_bytes: 0,
            tailroom_bytes: 0,
            ..usual
        }),
        None
    );
}

#[test]
fn all_memory_is_counted() {
    let arena = arena(100);
    let slots_bytes = 100 * (65_536 + 4096 + 4096);
    assert!((slots_bytes..slots_bytes + (2 << 20)).contains(&arena.bytes()));
    assert_eq!(
        arena.fallback_reason().is_some(),
        arena.pages() != PageKind::Huge2M
    );
}

#[test]
fn memory_outlives_the_arena_while_a_slot_is_out() {
    let mut arena = arena(1);
    let slot = arena.reserve().expect("one free").into_reading();
    let address = arena.device_address(&slot);
    drop(arena);
    // SAFETY: the token is still a `ReadingSlot`, so the memory must be mapped; this is the test.
    unsafe { address.write_volatile(1) };
    let _lost = slot;
}

#[test]
fn a_slot_on_loan_is_free_when_it_was_released_and_given_back() {
    let mut arena = arena(2);
    let slot = filled(&mut arena, 3);
    let index = slot.index();
    arena.lend(&slot);
    assert!(arena.is_lent(&slot));
    assert_eq!((arena.lent_count(), arena.free_count()), (1, 1));
    assert_eq!(arena.payload(&slot).len(), 3, "its owner may read it");
    arena.release(slot.into_free());
    assert_eq!((arena.lent_count(), arena.free_count()), (1, 1));
    let other = arena.reserve().expect("the other slot");
    assert_ne!(other.index(), index);
    assert!(arena.reserve().is_none(), "the device still reads it");
    arena.give_back(index);
    assert_eq!((arena.lent_count(), arena.free_count()), (0, 1));
    let again = arena.reserve().expect("the slot given back");
    assert_eq!(again.index(), index);
    for slot in [other, again] {
        arena.release(slot);
    }
    assert_eq!(arena.free_count(), arena.slot_count());
}

#[test]
fn a_slot_given_back_before_its_release_may_be_written_and_lent_again() {
    let mut arena = arena(1);
    let mut slot = filled(&mut arena, 3);
    for mark in 1..=2 {
        arena.payload_mut(&mut slot).fill(mark);
        arena.lend(&slot);
        arena.give_back(slot.index());
        assert!(!arena.is_lent(&slot));
    }
    arena.release(slot.into_free());
    assert_eq!((arena.free_count(), arena.lent_count()), (1, 0));
}

#[test]
#[should_panic(expected = "slot 0 is on loan: it may be read only")]
fn a_slot_on_loan_is_not_written_by_us() {
    let mut arena = arena(1);
    let mut slot = filled(&mut arena, 3);
    arena.lend(&slot);
    arena.payload_mut(&mut slot).fill(1);
}

#[test]
#[should_panic(expected = "slot 0 is on loan: it may be read only")]
fn a_slot_on_loan_is_not_written_by_a_disk() {
    let mut arena = arena(1);
    let slot = filled(&mut arena, 3);
    arena.lend(&slot);
    let _address = arena.device_address(&slot.into_free().into_reading());
}

#[test]
#[should_panic(expected = "slot 0 is on loan already")]
fn a_slot_is_lent_once_at_a_time() {
    let mut arena = arena(1);
    let slot = filled(&mut arena, 3);
    arena.lend(&slot);
    arena.lend(&slot);
}

#[test]
#[should_panic(expected = "slot 0 is not on loan")]
fn a_slot_is_given_back_once() {
    let mut arena = arena(1);
    let slot = filled(&mut arena, 3);
    arena.lend(&slot);
    arena.give_back(0);
    arena.give_back(0);
}

#[test]
fn memory_outlives_the_arena_while_a_slot_is_on_loan() {
    let mut arena = arena(1);
    let mut slot = filled(&mut arena, 3);
    arena.payload_mut(&mut slot).fill(7);
    let address = arena.device_source(&slot);
    arena.lend(&slot);
    arena.release(slot.into_free());
    drop(arena);
    // SAFETY: the slot is on loan, so the memory must be mapped; this is the test.
    assert_eq!(unsafe { address.read_volatile() }, 7);
}

/// Slots of the usual shape as a packet socket borrows them.
fn shifted(slot_count: u32) -> ArenaConfig {
    ArenaConfig {
        pages: PageKind::Ordinary,
        ..ArenaConfig::new(slot_count).with_stride_bytes(128 << 10)
    }
}

#[test]
fn payloads_are_where_the_slot_memory_says() {
    for config in [ArenaConfig::new(3), shifted(3)] {
        let mut arena = Arena::new(config).unwrap();
        let memory = arena.slot_memory();
        for index in 0..3 {
            let slot = arena.reserve().expect("three are free").into_reading();
            let offset = index * memory.stride_bytes() + memory.payload_offset_bytes(slot.index());
            assert_eq!(
                arena.device_address(&slot),
                memory.address().wrapping_add(offset)
            );
            arena.release(slot.into_free());
            let _kept = arena.reserve();
        }
    }
}

#[test]
fn payloads_of_shifted_slots_use_all_places_of_a_stride() {
    let config = shifted(4);
    assert_eq!(
        (config.stride_bytes(), config.odd_shift_bytes),
        (128 << 10, 56 << 10)
    );
    let arena = Arena::new(config).unwrap();
    let memory = arena.slot_memory();
    let offsets = [0, 1, 2, 3].map(|slot| memory.payload_offset_bytes(slot));
    assert_eq!(offsets, [4 << 10, 60 << 10, 4 << 10, 60 << 10]);
    // Between them they leave out the first page and the last, which are rooms.
    assert!(offsets[0] + (64 << 10) > offsets[1]);
    assert_eq!(offsets[1] + (64 << 10) + (4 << 10), 128 << 10);
}

#[test]
fn windows_of_shifted_slots_end_within_their_slot_and_no_neighbour_is_touched() {
    let (head, tail) = (ArenaConfig::HEADROOM_BYTES, ArenaConfig::TAILROOM_BYTES);
    let mut arena = Arena::new(shifted(3)).unwrap();
    let memory = arena.slot_memory();
    let mut slots = [0, 1, 2].map(|_| filled(&mut arena, ArenaConfig::SLOT_BYTES));
    for slot in &mut slots {
        let byte = u8::try_from(slot.index() + 1).unwrap();
        let window = arena.window_mut(slot, head, tail);
        let (index, place) = memory.find(window).expect("it is in one slot");
        assert_eq!(index, u32::from(byte) - 1);
        assert_eq!(place + head as usize, memory.payload_offset_bytes(index));
        window.fill(byte);
    }
    for slot in &slots {
        let byte = u8::try_from(slot.index() + 1).unwrap();
        assert!(arena.window(slot, head, tail).iter().all(|&it| it == byte));
    }
    for slot in slots {
        arena.release(slot.into_free());
    }
}

#[test]
#[should_panic(expected = "4097 bytes do not fit a headroom of 4096")]
fn the_shift_is_no_headroom() {
    let mut arena = Arena::new(shifted(2)).unwrap();
    let _even = filled(&mut arena, 1);
    let odd = filled(&mut arena, 1);
    let _ = arena.window(&odd, ArenaConfig::HEADROOM_BYTES + 1, 0);
}

#[test]
fn a_part_is_found_in_its_slot_up_to_the_last_byte() {
    let mut arena = arena(2);
    let memory = arena.slot_memory();
    let slots = [
        filled(&mut arena, 10),
        filled(&mut arena, ArenaConfig::SLOT_BYTES),
    ];
    let headroom = ArenaConfig::HEADROOM_BYTES as usize;
    assert_eq!(memory.find(arena.payload(&slots[0])), Some((0, headroom)));
    assert_eq!(
        memory.find(&arena.payload(&slots[1])[7..]),
        Some((1, headroom + 7))
    );
    let whole = arena.window(
        &slots[1],
        ArenaConfig::HEADROOM_BYTES,
        ArenaConfig::TAILROOM_BYTES,
    );
    assert_eq!(memory.find(whole), Some((1, 0)));
    assert_eq!(memory.find(b"elsewhere"), None);
    for slot in slots {
        arena.release(slot.into_free());
    }
}

#[test]
fn a_stride_is_reached_by_the_shift_as_far_as_that_goes() {
    let usual = ArenaConfig::new(2);
    let room_max = usize::try_from(ROOM_BYTES_MAX).unwrap();
    let most = usual.stride_bytes() - 4096 + room_max;
    for (wanted, stride_bytes) in [
        (0, 72 << 10),
        (72 << 10, 72 << 10),
        (128 << 10, 128 << 10),
        (most, most),
        (most + 4096, most),
        (usize::MAX, most),
    ] {
        let config = usual.with_stride_bytes(wanted);
        assert_eq!(config.stride_bytes(), stride_bytes, "{wanted}");
        let arena = Arena::new(config).unwrap();
        assert_eq!(arena.slot_memory().stride_bytes(), stride_bytes);
    }
    let refused = ArenaConfig {
        odd_shift_bytes: ROOM_BYTES_MAX - usual.headroom_bytes + 4096,
        ..usual
    };
    assert_eq!(refused.with_stride_bytes(usize::MAX), refused, "as it was");
}
