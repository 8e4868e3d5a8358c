//! Random changes with random readers: whoever has a lock on a catalogue can read all of its objects, whoever
//! has one on an object's extent can read that object, and the two newest catalogues are whole, whatever is
//! changed meanwhile.

use super::{BLOCK, Devices, content, entry, init, run};
use crate::{Catalogue, Editor, Entry, Readers};

const BLOCKS: [u64; 2] = [264 + 60, 264 + 50];
const AREA_BLOCKS: u64 = 4;
const NAMES: [&str; 6] = ["a", "b", "c/d", "c/e", "f", "g"];

/// Seeded choices (xorshift).
struct Choices(u64);

impl Choices {
    fn below(&mut self, bound: u64) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 11) % bound).unwrap()
    }
}

/// Adds, replaces and removes objects where there is room; returns the new catalogue, and whether there
/// was any want of room.
fn change(
    devices: &mut Devices,
    catalogue: Catalogue,
    readers: &Readers,
    choices: &mut Choices,
) -> (Catalogue, bool) {
    let mut editor = Editor::new(catalogue, readers);
    let mut lacked_room = false;
    for _ in 0..choices.below(4) {
        let name = NAMES[choices.below(NAMES.len() as u64)];
        if choices.below(3) == 0 {
            editor.remove(name);
            continue;
        }
        let bytes = content(choices.0, choices.below(20 * BLOCK as u64));
        let Ok(extent) = editor.allocate(bytes.len() as u64) else {
            lacked_room = true;
            continue;
        };
        let mut padded = bytes.clone();
        padded.resize(bytes.len().next_multiple_of(BLOCK), 0);
        devices.write(extent.device, extent.start, &padded);
        editor.insert(entry(name, extent, &bytes));
    }
    let catalogue = run(editor.commit().unwrap(), devices, &mut |_| {});
    (catalogue, lacked_room)
}

/// Readers come and go while the store is changed. `are_told`: the writer hears of them. Returns how often
/// there was no room.
fn read_and_change(seed: u64, are_told: bool) -> Result<usize, String> {
    let mut choices = Choices(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (mut devices, mut catalogue) = init(&BLOCKS, AREA_BLOCKS);
    let mut readers: Vec<Catalogue> = Vec::new();
    // Those that go on reading one object, and nothing else of its catalogue.
    let mut objects: Vec<Entry> = Vec::new();
    let mut lacks = 0;
    for _ in 0..60 {
        if choices.below(3) == 0 {
            readers.push(catalogue.clone());
        }
        if choices.below(3) == 0 && !readers.is_empty() {
            let read = readers.swap_remove(choices.below(readers.len() as u64));
            if choices.below(2) == 0 {
                objects.extend(read.entries().first().cloned());
            }
        }
        if choices.below(4) == 0 && !objects.is_empty() {
            objects.swap_remove(choices.below(objects.len() as u64));
        }
        let oldest = readers.iter().map(Catalogue::sequence).min();
        let before = catalogue.clone();
        let told = if are_told {
            Readers::new(oldest, objects.iter().map(|it| it.extent).collect())
        } else {
            Readers::default()
        };
        let (new, lacked_room) = change(&mut devices, catalogue, &told, &mut choices);
        catalogue = new;
        lacks += usize::from(lacked_room);
        let view = devices.view();
        let mounted = view.mount().unwrap().map(|(_, mounted)| mounted);
        if mounted.as_ref() != Some(&catalogue) {
            return Err("another catalogue is mounted".to_owned());
        }
        for read in readers.iter().chain([&before, &catalogue]) {
            view.verify(read)
                .map_err(|error| format!("reader of {}: {error}", read.sequence()))?;
        }
        for entry in &objects {
            view.verify_entry(entry)
                .map_err(|error| format!("reader of one object: {error}"))?;
        }
    }
    Ok(lacks)
}

#[test]
fn what_a_reader_has_a_lock_on_stays() {
    let lacks: usize = (1..100)
        .map(|seed| read_and_change(seed, true).unwrap_or_else(|it| panic!("{seed}: {it}")))
        .sum();
    assert!(lacks > 100, "space was scarce {lacks} times");
    assert!((1..100).any(|seed| read_and_change(seed, false).is_err()));
}
