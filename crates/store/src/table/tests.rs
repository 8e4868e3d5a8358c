//! The table against a naive twin, and each rule alone.

use proptest::prelude::*;

use super::*;

const NOW: Instant = Instant::ZERO;

fn metadata(size_bytes: u64) -> Metadata {
    Metadata {
        size_bytes,
        ..Metadata::default()
    }
}

fn insert(table: &mut Table, name: &str) -> Option<u32> {
    table
        .reserve(NOW)
        .then(|| table.insert(name, metadata(1), Some(NOW)))
}

#[test]
fn the_least_recently_used_goes_first() {
    let mut table = Table::new(3, 3);
    let [a, b, c] = ["a", "b", "c"].map(|name| insert(&mut table, name).unwrap());
    for handle in [b, a, c] {
        table.release(handle, NOW);
    }
    // `b` was released first, but is used once more.
    table.acquire(b);
    table.release(b, NOW);
    for (name, evicted) in [("d", a), ("e", c), ("f", b)] {
        let handle = insert(&mut table, name).unwrap();
        assert_eq!(table.poll_closed(), Some(evicted), "{name}");
        assert_eq!(table.poll_closed(), None);
        table.release(handle, NOW);
    }
    assert_eq!(table.find("a"), None);
}

#[test]
fn objects_in_use_are_not_evicted() {
    let mut table = Table::new(2, 2);
    let [a, b] = ["a", "b"].map(|name| insert(&mut table, name).unwrap());
    assert_eq!(insert(&mut table, "c"), None);
    table.acquire(a);
    table.release(a, NOW);
    assert_eq!(
        insert(&mut table, "c"),
        None,
        "one of two uses of `a` is left"
    );
    table.release(b, NOW);
    assert!(insert(&mut table, "c").is_some());
    assert_eq!((table.find("a"), table.find("b")), (Some(a), None));
}

#[test]
fn closed_handles_that_are_not_polled_occupy_entries() {
    let mut table = Table::new(1, 2);
    for name in ["a", "b", "c"] {
        let handle = insert(&mut table, name).unwrap();
        table.release(handle, NOW);
    }
    assert_eq!(insert(&mut table, "d"), None);
    assert_eq!(table.find("c"), Some(2), "and nothing is evicted in vain");
    assert_eq!(table.poll_closed(), Some(0));
    assert_eq!(insert(&mut table, "d"), Some(0));
}

#[test]
fn a_retired_object_lives_to_its_last_use() {
    let mut table = Table::new(2, 1);
    let old = insert(&mut table, "a").unwrap();
    table.acquire(old);
    table.retire(old, NOW);
    assert_eq!(table.find("a"), None);
    let new = insert(&mut table, "a").unwrap();
    assert_ne!(old, new);
    table.release(old, NOW);
    assert_eq!(table.poll_closed(), None);
    table.retire_used(old, NOW);
    table.release(old, NOW);
    assert_eq!(table.poll_closed(), Some(old));
    assert_eq!(table.find("a"), Some(new));
}

#[test]
fn retired_objects_in_use_are_named_in_order_until_they_are_forgotten() {
    let mut table = Table::new(4, 1);
    let at = |seconds| NOW + core::time::Duration::from_secs(seconds);
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| insert(&mut table, name).unwrap());
    assert_eq!(table.oldest_retired(), None);
    table.release(d, NOW);
    for (handle, seconds) in [(b, 1), (d, 2), (a, 3), (c, 4)] {
        table.retire(handle, at(seconds));
    }
    assert_eq!(table.oldest_retired(), Some((b, at(1))));
    // Another use of it does not matter, nor does the one that nobody used.
    table.retire_used(b, at(9));
    table.release(a, at(5));
    table.forget_retired(b);
    assert_eq!(table.oldest_retired(), Some((c, at(4))));
    table.release(c, at(6));
    table.release(b, at(6));
    assert_eq!(table.oldest_retired(), None);
    let closed: Vec<_> = core::iter::from_fn(|| table.poll_closed()).collect();
    assert_eq!(closed, [d, a, c, b]);
}

#[test]
fn an_unused_object_closes_when_retired() {
    let mut table = Table::new(2, 1);
    let handle = insert(&mut table, "a").unwrap();
    assert_eq!(table.name(handle), "a");
    table.release(handle, NOW);
    table.retire(handle, NOW);
    assert_eq!((table.find("a"), table.poll_closed()), (None, Some(handle)));
}

#[test]
fn a_reserved_entry_is_not_given_to_another_object() {
    let mut table = Table::new(2, 1);
    let a = insert(&mut table, "a").unwrap();
    assert!(table.reserve(NOW));
    assert!(!table.has_room() && !table.reserve(NOW));
    table.release(a, NOW);
    assert!(table.has_room() && table.reserve(NOW), "`a` makes room");
    assert_eq!((table.find("a"), table.poll_closed()), (None, Some(a)));
    table.cancel();
    let b = table.insert("b", metadata(1), Some(NOW));
    let c = insert(&mut table, "c").unwrap();
    assert_ne!(b, c);
    assert!(!table.has_room());
}

#[test]
#[should_panic(expected = "no entry was reserved")]
fn an_entry_is_reserved_before_it_is_filled() {
    Table::new(1, 1).insert("a", metadata(1), Some(NOW));
}

#[test]
#[should_panic(expected = "released more often")]
fn a_use_ends_once() {
    let mut table = Table::new(1, 1);
    let handle = insert(&mut table, "a").unwrap();
    table.release(handle, NOW);
    table.release(handle, NOW);
}

#[test]
#[should_panic(expected = "not in use")]
fn retire_used_accepts_objects_in_use_only() {
    let mut table = Table::new(1, 1);
    let handle = insert(&mut table, "a").unwrap();
    table.release(handle, NOW);
    table.retire_used(handle, NOW);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Look up: acquire what is there, or insert.
    Use(u8),
    /// Release the use of that number, if there is one.
    Release(usize),
    /// Retire what is under the name, if anything.
    Retire(u8),
    Reserve,
    /// End a reservation, if there is one.
    Cancel,
    PollClosed,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..8_u8).prop_map(Step::Use),
        3 => any::<usize>().prop_map(Step::Release),
        1 => (0..8_u8).prop_map(Step::Retire),
        1 => Just(Step::Reserve),
        1 => Just(Step::Cancel),
        2 => Just(Step::PollClosed),
    ]
}

/// The table without entries, lists or hashes.
#[derive(Default)]
struct Twin {
    /// Open objects: handle, name unless retired, uses; unused ones in the order of release.
    open: Vec<(u32, Option<String>, u32)>,
    closed: VecDeque<u32>,
    reserved: usize,
}

impl Twin {
    fn find(&self, name: &str) -> Option<u32> {
        let is_it = |(_, known, _): &&(u32, Option<String>, u32)| known.as_deref() == Some(name);
        self.open.iter().find(is_it).map(|&(handle, ..)| handle)
    }

    fn remove(&mut self, handle: u32) -> (u32, Option<String>, u32) {
        let at = self.open.iter().position(|&(other, ..)| other == handle);
        self.open.remove(at.expect("an open object"))
    }

    fn retire(&mut self, handle: u32) {
        let (handle, _, uses) = self.remove(handle);
        if uses == 0 {
            self.closed.push_back(handle);
        } else {
            self.open.push((handle, None, uses));
        }
    }

    fn acquire(&mut self, handle: u32) {
        let (handle, name, uses) = self.remove(handle);
        self.open.push((handle, name, uses + 1));
    }

    fn release(&mut self, handle: u32) {
        let (handle, name, uses) = self.remove(handle);
        if uses == 1 && name.is_none() {
            self.closed.push_back(handle);
        } else {
            self.open.push((handle, name, uses - 1));
        }
    }

    /// Whether there is room, made by giving up the oldest unused one.
    fn make_room(&mut self, open_max: usize, closed_max: usize) -> bool {
        if self.open.len() + self.closed.len() + self.reserved == open_max + closed_max {
            return false;
        }
        if self.open.len() + self.reserved == open_max {
            let unused = self.open.iter().find(|&&(_, _, uses)| uses == 0);
            let Some(&(handle, ..)) = unused else {
                return false;
            };
            self.retire(handle);
        }
        true
    }
}

proptest! {
    #[test]
    fn behaves_as_its_naive_twin(
        open_max in 1..5_usize,
        closed_max in 1..3_usize,
        steps in prop::collection::vec(any_step(), 1..200),
    ) {
        let mut table = Table::new(open_max, closed_max);
        let mut twin = Twin::default();
        let mut uses: Vec<u32> = Vec::new();
        for step in steps {
            match step {
                Step::Use(name) => {
                    let name = name.to_string();
                    prop_assert_eq!(table.find(&name), twin.find(&name));
                    if let Some(handle) = table.find(&name) {
                        table.acquire(handle);
                        twin.acquire(handle);
                        uses.push(handle);
                    } else {
                        let inserted = insert(&mut table, &name);
                        prop_assert_eq!(inserted.is_some(), twin.make_room(open_max, closed_max));
                        if let Some(handle) = inserted {
                            twin.open.push((handle, Some(name), 1));
                            uses.push(handle);
                        }
                    }
                }
                Step::Release(at) if !uses.is_empty() => {
                    let handle = uses.swap_remove(at % uses.len());
                    table.release(handle, NOW);
                    twin.release(handle);
                }
                Step::Release(_) => {}
                Step::Retire(name) => {
                    if let Some(handle) = table.find(&name.to_string()) {
                        table.retire(handle, NOW);
                        twin.retire(handle);
                    }
                }
                Step::Reserve => {
                    let has_room = table.has_room();
                    let is_reserved = table.reserve(NOW);
                    prop_assert_eq!(is_reserved, has_room);
                    prop_assert_eq!(is_reserved, twin.make_room(open_max, closed_max));
                    twin.reserved += usize::from(is_reserved);
                }
                Step::Cancel if twin.reserved > 0 => {
                    table.cancel();
                    twin.reserved -= 1;
                }
                Step::Cancel => {}
                Step::PollClosed => prop_assert_eq!(table.poll_closed(), twin.closed.pop_front()),
            }
        }
        // Everything ends closed, once.
        for handle in uses {
            table.release(handle, NOW);
            twin.release(handle);
        }
        for name in 0..8 {
            if let Some(handle) = table.find(&name.to_string()) {
                table.retire(handle, NOW);
                twin.retire(handle);
            }
        }
        while let Some(handle) = table.poll_closed() {
            prop_assert_eq!(Some(handle), twin.closed.pop_front());
        }
        prop_assert!(twin.closed.is_empty() && twin.open.is_empty());
        prop_assert_eq!((table.open_count, table.free.len()), (0, table.handles_max()));
        for list in [table.unused, table.retired] {
            prop_assert_eq!((list.oldest, list.newest), (NONE, NONE));
        }
    }
}
