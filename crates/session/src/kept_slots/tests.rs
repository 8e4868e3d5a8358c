//! Slots that are kept, without a connection.

use memory::ArenaConfig;

use super::*;
use crate::stream_map::tests::place;

const START: Instant = Instant::from_millis(1);
const OWNER: u32 = 7;

/// The byte of the stream at an offset.
fn content(offset: u64) -> u8 {
    u8::try_from(offset % 251).unwrap()
}

/// Slots, and some that are kept of them.
struct Table {
    arena: Arena,
    kept: KeptSlots,
    now: Instant,
    acknowledged: StreamOffset,
}

impl Table {
    fn new(slots: u32, kept_max: usize) -> Self {
        Self::with_copies(slots, kept_max, 0)
    }

    fn with_copies(slots: u32, kept_max: usize, copy_bytes: usize) -> Self {
        Self {
            arena: Arena::new(ArenaConfig::new(slots)).unwrap(),
            kept: KeptSlots::new(kept_max, copy_bytes, Canary::default()),
            now: START,
            acknowledged: StreamOffset::ZERO,
        }
    }

    /// Keeps stream bytes `from..to` for a client.
    fn keep(&mut self, of: &mut ClientKept, (from, to): (u64, u64), is_unsent: bool) {
        self.keep_for(OWNER, of, (from, to), is_unsent);
    }

    fn keep_for(
        &mut self,
        owner: u32,
        of: &mut ClientKept,
        (from, to): (u64, u64),
        is_unsent: bool,
    ) {
        let slot = self.arena.reserve().unwrap().into_reading();
        let mut slot = slot.into_filled(4096);
        for (byte, offset) in self.arena.payload_mut(&mut slot).iter_mut().zip(from..) {
            *byte = content(offset);
        }
        let kept = Kept {
            owner,
            shape: ReadShape {
                object: place(1),
                offset_bytes: 0,
                length_bytes: 4096,
                skip_bytes: 0,
                stream_start: StreamOffset(from),
                end: StreamOffset(to),
                records: None,
            },
            memory: KeptMemory::Slot(slot),
            usable_from: StreamOffset(from),
        };
        let acknowledged = self.acknowledged;
        (self.kept).keep(self.now, &mut self.arena, of, kept, is_unsent, acknowledged);
    }

    fn on_all_sent(&mut self, of: &mut ClientKept, is_kept_on: bool) {
        let (arena, acknowledged) = (&mut self.arena, self.acknowledged);
        (self.kept).on_all_sent(self.now, arena, of, OWNER, is_kept_on, acknowledged);
    }

    fn find(&self, of: &ClientKept, offset: u64) -> Option<(KeptKey, StreamOffset)> {
        self.kept.find(of, OWNER, StreamOffset(offset), true)
    }

    /// Asserts that these bytes of the stream are kept, and are what they were.
    fn assert_holds(&self, of: &ClientKept, (from, to): (u64, u64)) {
        let (key, end) = self.find(of, from).expect("it is kept");
        assert!(StreamOffset(to) <= end);
        let range = StreamRange::new(StreamOffset(from), StreamOffset(to));
        let kept = self.kept.get(key).unwrap();
        let bytes = self.kept.content(&self.arena, kept, range);
        assert!(bytes.iter().copied().eq((from..to).map(content)));
    }

    /// The client goes, which had bursts planned from these.
    fn go(&mut self, of: ClientKept, planned: &[KeptKey]) {
        let planned = planned.iter().copied();
        (self.kept).release_all(&mut self.arena, of, OWNER, planned);
    }

    fn finds(&self, of: &ClientKept, offset: u64) -> bool {
        self.find(of, offset).is_some()
    }
}

#[test]
fn a_slot_holds_the_bytes_from_where_it_is_usable_to_its_end() {
    let mut table = Table::new(4, 2);
    let mut of = ClientKept::default();
    table.keep(&mut of, (100, 200), true);
    let found = [99, 100, 199, 200].map(|offset| table.finds(&of, offset));
    assert_eq!(found, [false, true, true, false]);
    let (key, end) = table.find(&of, 150).unwrap();
    assert_eq!(end, StreamOffset(200));
    table.kept.get_mut(key).unwrap().usable_from = StreamOffset(150);
    assert!(!table.finds(&of, 149) && table.finds(&of, 150));
    // What is planned first is sent first, and what is before it may be overwritten.
    table.kept.plan(key, StreamOffset(160));
    assert!(!table.finds(&of, 159) && table.finds(&of, 160));
    table.kept.end_plan(key);
    assert!(table.finds(&of, 159));
}

#[test]
fn as_many_are_kept_as_may_be_and_what_was_sent_goes_first() {
    let mut table = Table::new(8, 2);
    let mut clients = [ClientKept::default(); 4];
    table.keep(&mut clients[0], (0, 10), true);
    table.keep(&mut clients[1], (0, 10), false);
    assert_eq!(table.kept.count(), 2);
    table.keep(&mut clients[2], (0, 10), true);
    let found = [0, 1, 2].map(|client: usize| table.finds(&clients[client], 0));
    assert_eq!(found, [true, false, true]);
    assert_eq!(table.kept.given_up_count(), 0);
    // What was sent gives up nothing that was not.
    table.keep(&mut clients[3], (0, 10), false);
    assert!(!table.finds(&clients[3], 0) && table.finds(&clients[0], 0));
    table.keep(&mut clients[3], (0, 10), true);
    assert!(table.finds(&clients[3], 0) && !table.finds(&clients[0], 0));
    assert_eq!((table.kept.count(), table.kept.given_up_count()), (2, 1));
    assert_eq!(table.arena.free_count(), 6);
    let ahead = &mut ReadAhead::default();
    // One that has a slot may read for its place.
    for (client, may_read) in [(1, false), (3, true)] {
        let (kept, of) = (&table.kept, &mut clients[client]);
        assert_eq!(kept.may_read_ahead(of, OWNER, ahead, false), may_read);
    }
    clients.iter().for_each(|of| table.go(*of, &[]));
    assert!(
        table
            .kept
            .may_read_ahead(&mut clients[1], OWNER, ahead, false)
    );
    table.kept.set_busy(true);
    assert!(
        !table
            .kept
            .may_read_ahead(&mut clients[1], OWNER, ahead, false)
    );
    // Bursts on a path that loses are so small that the rest is worth keeping.
    assert!((table.kept).may_read_ahead(&mut clients[1], OWNER, ahead, true));
    assert_eq!((table.kept.count(), table.arena.free_count()), (0, 8));
}

#[test]
fn none_is_kept_where_none_may_be() {
    let mut table = Table::new(2, 0);
    let mut of = ClientKept::default();
    assert!(
        !table
            .kept
            .may_read_ahead(&mut of, OWNER, &mut ReadAhead::default(), false)
    );
    table.keep(&mut of, (0, 10), true);
    assert_eq!((table.kept.count(), table.arena.free_count()), (0, 2));
}

#[test]
fn a_slot_is_kept_for_its_time_and_no_longer() {
    for is_unsent in [true, false] {
        let mut table = Table::new(2, 2);
        let mut of = ClientKept::default();
        table.keep(&mut of, (0, 10), is_unsent);
        let until = START + KEPT_FOR_MAX;
        let before = until - Duration::from_nanos(1);
        table.kept.expire(before, &mut table.arena);
        assert!(table.finds(&of, 0));
        let (key, _) = table.find(&of, 0).unwrap();
        table.kept.plan(key, StreamOffset(0));
        table.kept.expire(until, &mut table.arena);
        assert!(table.finds(&of, 0), "a burst is to be sent from it");
        table.kept.end_plan(key);
        table.kept.expire(until, &mut table.arena);
        assert!(!table.finds(&of, 0));
        assert_eq!(table.arena.free_count(), 2);
        assert_eq!(table.kept.given_up_count(), u64::from(is_unsent));
    }
}

#[test]
fn a_slot_from_which_a_burst_waits_to_be_sent_keeps_no_other_from_being_given_up() {
    let mut table = Table::new(2, 2);
    let mut clients = [ClientKept::default(); 2];
    table.keep(&mut clients[0], (0, 10), true);
    table.keep(&mut clients[1], (0, 10), true);
    let found = table.find(&clients[0], 0);
    table.kept.plan(found.unwrap().0, StreamOffset(0));
    assert_eq!(table.kept.oldest(), Some(START));
    table.kept.make_room(&mut table.arena);
    assert_eq!(table.arena.free_count(), 1);
    assert!(table.finds(&clients[0], 0) && !table.finds(&clients[1], 0));
    assert_eq!(table.kept.oldest(), None);
}

#[test]
fn a_client_that_goes_leaves_no_slot_though_those_that_lead_to_it_were_given_up() {
    for is_planned in [false, true] {
        let mut table = Table::new(3, 3);
        let mut of = ClientKept::default();
        for from in [0, 10, 20] {
            table.keep(&mut of, (from, from + 10), false);
        }
        let (key, _) = table.find(&of, 0).unwrap();
        if is_planned {
            table.kept.plan(key, StreamOffset(0));
        }
        // The oldest one is given up, or the one after it.
        table.kept.make_room(&mut table.arena);
        assert_eq!(table.finds(&of, 10), !is_planned);
        assert_eq!(table.kept.get(key).is_some(), is_planned);
        table.go(of, [key].get(..usize::from(is_planned)).unwrap());
        assert_eq!((table.kept.count(), table.arena.free_count()), (0, 3));
    }
}

#[test]
fn a_place_that_is_used_again_is_another_slot() {
    let mut table = Table::new(2, 1);
    let (mut first, mut second) = (ClientKept::default(), ClientKept::default());
    table.keep(&mut first, (0, 10), true);
    table.keep(&mut second, (0, 10), true);
    assert!(!table.finds(&first, 0) && table.finds(&second, 0));
    table.go(first, &[]);
    assert!(table.finds(&second, 0), "it is not the first one's");
}

#[test]
fn what_was_sent_all_is_kept_on_if_it_is_to_be() {
    for is_kept_on in [true, false] {
        let mut table = Table::new(4, 4);
        let mut of = ClientKept::default();
        table.keep(&mut of, (0, 10), true);
        table.on_all_sent(&mut of, is_kept_on);
        assert_eq!(table.finds(&of, 0), is_kept_on);
        assert_eq!(table.kept.unsent_end(&of, OWNER), None);
        // It goes when it was acknowledged and the next one was sent all.
        table.keep(&mut of, (10, 20), true);
        table.acknowledged = StreamOffset(10);
        assert_eq!(table.finds(&of, 0), is_kept_on);
        table.on_all_sent(&mut of, true);
        assert!(!table.finds(&of, 0) && table.finds(&of, 10));
        assert_eq!(table.arena.free_count(), 3);
    }
}

#[test]
fn what_is_behind_a_place_of_the_stream_is_released() {
    let mut table = Table::new(4, 4);
    let mut of = ClientKept::default();
    table.keep(&mut of, (0, 10), false);
    table.keep(&mut of, (10, 20), true);
    (table.kept).release_behind(&mut table.arena, &mut of, OWNER, StreamOffset(20));
    assert!(table.finds(&of, 0) && table.finds(&of, 10));
    (table.kept).release_behind(&mut table.arena, &mut of, OWNER, StreamOffset(19));
    assert!(table.finds(&of, 0) && !table.finds(&of, 10));
}

#[test]
fn reads_take_no_more_than_is_demanded_for_a_while_after_a_slot_was_given_up() {
    let mut table = Table::new(2, 1);
    let (mut of, mut other) = (ClientKept::default(), ClientKept::default());
    let mut ahead = ReadAhead::default();
    for skipped in [1, 3, 7, 15, 31, 63, 63] {
        table.keep(&mut of, (0, 10), true);
        table.keep(&mut other, (0, 10), true);
        table.go(other, &[]);
        for _ in 0..skipped {
            assert!(!table.kept.may_read_ahead(&mut of, OWNER, &mut ahead, false));
            ahead.on_read();
        }
        assert!(table.kept.may_read_ahead(&mut of, OWNER, &mut ahead, false));
    }
}

#[test]
fn a_read_that_needs_a_slot_gets_one() {
    let mut table = Table::new(1, 1);
    let mut of = ClientKept::default();
    table.keep(&mut of, (0, 10), true);
    let (key, _) = table.find(&of, 0).unwrap();
    table.kept.plan(key, StreamOffset(0));
    table.kept.make_room(&mut table.arena);
    assert_eq!(table.arena.free_count(), 0, "a burst is to be sent from it");
    table.kept.end_plan(key);
    table.kept.make_room(&mut table.arena);
    assert_eq!(table.arena.free_count(), 1);
}

#[test]
fn a_key_whose_generation_comes_again_does_not_name_what_is_kept_for_another_client() {
    let mut table = Table::new(2, 1);
    let (mut stale, mut other) = (ClientKept::default(), ClientKept::default());
    table.keep(&mut stale, (0, 10), true);
    (table.kept).expire(START + KEPT_FOR_MAX, &mut table.arena);
    // As many keys as there are generations.
    for _ in 1..u32::from(u16::MAX) {
        other = ClientKept::default();
        table.keep_for(OWNER + 1, &mut other, (0, 10), true);
        (table.kept).expire(START + KEPT_FOR_MAX, &mut table.arena);
    }
    table.keep_for(OWNER + 1, &mut other, (0, 10), true);
    assert_eq!(stale.unsent, other.unsent, "the generation has come again");
    assert!(!table.finds(&stale, 0));
    assert_eq!(table.kept.unsent_end(&stale, OWNER), None);
    table.go(stale, &[]);
    let found = (table.kept).find(&other, OWNER + 1, StreamOffset(0), false);
    assert!(found.is_some(), "it is the other's still");
}

#[test]
fn a_small_slot_that_was_sent_does_not_take_the_place_of_a_larger_one() {
    let mut table = Table::new(4, 4);
    let mut of = ClientKept::default();
    table.keep(&mut of, (0, 4000), false);
    table.keep(&mut of, (10, 20), false);
    table.assert_holds(&of, (10, 20));
    table.assert_holds(&of, (0, 10));
    table.assert_holds(&of, (20, 4000));
    // New bytes are in none that was sent all.
    let found = (table.kept).find(&of, OWNER, StreamOffset(20), false);
    assert_eq!(found, None);
    (table.kept).release_behind(&mut table.arena, &mut of, OWNER, StreamOffset(20));
    assert!(!table.finds(&of, 30));
    table.assert_holds(&of, (10, 20));
    table.go(of, &[]);
    assert_eq!((table.kept.count(), table.arena.free_count()), (0, 4));
}

#[test]
fn a_client_keeps_so_many_that_were_sent_all_and_no_more() {
    let slots = u32::try_from(SENT_MAX).unwrap() + 2;
    let mut table = Table::new(slots, SENT_MAX + 2);
    let mut of = ClientKept::default();
    for number in 0..SENT_MAX as u64 {
        table.keep(&mut of, (number * 10, number * 10 + 10), false);
    }
    assert_eq!(table.kept.count(), SENT_MAX);
    assert!(table.finds(&of, 0));
    table.keep(&mut of, (5000, 5010), false);
    assert_eq!(table.kept.count(), SENT_MAX);
    assert!(!table.finds(&of, 0) && table.finds(&of, 10) && table.finds(&of, 5000));
}

#[test]
fn a_busy_worker_keeps_copies_and_their_slots_are_free() {
    let mut table = Table::with_copies(2, 2, 16_384);
    let mut clients = [ClientKept::default(); 3];
    table.kept.set_busy(true);
    for (of, from) in clients.iter_mut().zip([0, 100, 200]) {
        // There are places for two copies.
        table.keep(of, (from, from + 1000), true);
    }
    assert_eq!((table.kept.count(), table.arena.free_count()), (0, 2));
    assert!(!table.finds(&clients[0], 0), "it was overwritten");
    assert_eq!(table.kept.given_up_count(), 1);
    table.assert_holds(&clients[1], (100, 1100));
    table.assert_holds(&clients[2], (300, 310));
    assert_eq!(table.kept.copied_bytes(), 3000);
    // What was sent all is kept on, and a slot that was is no copy.
    table.on_all_sent(&mut clients[1], true);
    table.keep(&mut clients[1], (1100, 1200), false);
    assert_eq!((table.kept.count(), table.arena.free_count()), (1, 1));
    table.assert_holds(&clients[1], (100, 1100));
    table.assert_holds(&clients[1], (1100, 1200));
    (table.kept).expire(START + KEPT_FOR_MAX, &mut table.arena);
    assert!(!table.finds(&clients[1], 100) && !table.finds(&clients[2], 300));
    assert_eq!((table.kept.count(), table.arena.free_count()), (0, 2));
}

#[test]
fn a_worker_that_is_not_busy_keeps_copies_once_as_many_slots_are_kept_as_may_be() {
    let mut table = Table::with_copies(4, 1, 16_384);
    let mut clients = [ClientKept::default(); 2];
    for of in &mut clients {
        let ahead = &mut ReadAhead::default();
        assert!(table.kept.may_read_ahead(of, OWNER, ahead, false));
        table.keep(of, (0, 1000), true);
    }
    assert_eq!((table.kept.count(), table.kept.copied_bytes()), (1, 1000));
    for of in &clients {
        table.assert_holds(of, (0, 1000));
    }
}

#[test]
fn a_copy_from_which_a_burst_waits_to_be_sent_is_not_overwritten() {
    let mut table = Table::with_copies(3, 1, 8192);
    let mut clients = [ClientKept::default(); 2];
    table.kept.set_busy(true);
    table.keep(&mut clients[0], (0, 1000), true);
    let (key, _) = table.find(&clients[0], 0).unwrap();
    table.kept.plan(key, StreamOffset(0));
    (table.kept).expire(START + KEPT_FOR_MAX, &mut table.arena);
    table.keep(&mut clients[1], (0, 1000), true);
    table.assert_holds(&clients[0], (0, 1000));
    // The other one is kept in its slot.
    table.assert_holds(&clients[1], (0, 1000));
    assert_eq!(table.kept.count(), 1);
    table.kept.end_plan(key);
    assert_eq!(table.kept.oldest(), Some(START));
    (table.kept).expire(START + KEPT_FOR_MAX, &mut table.arena);
    assert!(!table.finds(&clients[0], 0));
    assert_eq!(table.kept.oldest(), None);
}

#[test]
fn what_is_larger_than_the_ring_is_not_copied() {
    for (bytes, is_copied) in [(8192, true), (8193, false)] {
        let mut copies = Copies::new(8192, 9);
        assert_eq!(copies.room(bytes).is_some(), is_copied);
    }
    assert_eq!(Copies::new(8191, 9).room(1), None, "it has no place");
}

proptest::proptest! {
    #[test]
    fn copies_that_are_not_the_oldest_stay_what_they_were(
        sizes in proptest::collection::vec(1usize..30_000, 1..100),
    ) {
        let mut copies = Copies::new(65_536, 5);
        let mut twin: Vec<(usize, Vec<u8>)> = Vec::new();
        for (number, bytes) in (0u8..).zip(sizes) {
            let from = loop {
                if let Some(from) = copies.room(bytes) {
                    break from;
                }
                copies.drop_oldest();
                twin.remove(0);
            };
            let key = KeptKey { place: number.into(), generation: NonZeroU16::MIN };
            let content = vec![number; bytes];
            copies.push(START, key, from, &content);
            twin.push((from, content));
            proptest::prop_assert!(copies.iter().count() == twin.len() && twin.len() <= 5);
            for (from, content) in &twin {
                proptest::prop_assert!(copies.bytes(*from, content.len()) == content);
            }
        }
    }
}
