//! The power is cut at every write of a sequence of changes. Whatever of the unflushed sectors was
//! written, in whatever order, the store has the old catalogue or the new one, and its objects.

use super::{BLOCK, Change, Devices, View, change, init, run};
use crate::commit::Fault;
use crate::{Catalogue, Commit, Editor, Readers, mount};

/// Random choices of sectors for each cut, beside those that are always tried.
const CHOICES: u64 = 40;

/// A device with room for two versions of what the changes put there, and little more.
const BLOCKS: [u64; 2] = [264 + 40, 264 + 36];
const AREA_BLOCKS: u64 = 4;

fn sequence_of_changes() -> Vec<Vec<Change>> {
    use Change::{Put, Remove};
    vec![
        vec![Put("a", 1, 9 * BLOCK), Put("b/c", 2, 5 * BLOCK + 1)],
        vec![Put("a", 3, 9 * BLOCK - 1)],
        vec![Remove("b/c"), Put("d", 4, 1)],
        vec![Put("a", 5, 8 * BLOCK), Put("e", 6, 0)],
        vec![],
        vec![Remove("a")],
        vec![Put("f", 7, 12 * BLOCK), Put("b", 8, 9 * BLOCK)],
        vec![Put("f", 9, 11 * BLOCK), Remove("d")],
        vec![Remove("f"), Put("f", 10, 3 * BLOCK)],
        vec![Remove("b"), Remove("e"), Remove("f")],
    ]
}

/// Sets of cached sectors that may have been written when the power is cut, in their order.
fn outcomes(count: usize, seed: u64) -> Vec<Vec<usize>> {
    let mut kept = vec![
        vec![],
        (0..count).collect(),
        // Torn in the middle, either half.
        (0..count / 2).collect(),
        (count / 2..count).collect(),
        // All but the first or the last, and these alone.
        (1..count).collect(),
        (0..count.saturating_sub(1)).collect(),
        (0..count.min(1)).collect(),
        (count.saturating_sub(1)..count).collect(),
        // Reordered: the last version of a sector was written first.
        (0..count).rev().collect(),
    ];
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..CHOICES {
        // From nearly nothing to nearly everything.
        let share = next() % 16;
        let mut some: Vec<_> = (0..count).filter(|_| next() % 16 <= share).collect();
        if next() % 2 == 0 {
            some.reverse();
        }
        kept.push(some);
    }
    kept
}

/// What is wrong with a store after a cut; it may have either catalogue.
fn judge(view: &View<'_>, old: &Catalogue, new: Option<&Catalogue>) -> Result<(), String> {
    let mounted = view.mount().map_err(|error| error.to_string())?;
    let (index, catalogue) = mounted.ok_or("no catalogue is whole")?;
    if index > 0 {
        // Then it would have to be called damage.
        return Err("the newest superblock names a catalogue that is not whole".to_owned());
    }
    if catalogue != *old && new.is_none_or(|new| catalogue != *new) {
        return Err(format!("catalogue {} is neither", catalogue.sequence()));
    }
    view.verify(&catalogue)
}

/// Makes the changes with a fault, and cuts the power at each write. Returns the number of cuts, or what
/// went wrong at the first that was not survived.
fn cut_everywhere(fault: Option<Fault>) -> Result<usize, String> {
    let (mut devices, mut catalogue) = init(&BLOCKS, AREA_BLOCKS);
    let mut cuts = 0;
    let mut seed = 1;
    for changes in sequence_of_changes() {
        // Without a cut, to know the new catalogue.
        let mut copy = devices.clone();
        let new = change(&mut copy, catalogue.clone(), &changes, None, &mut |_| {});
        let mut outcome = Ok(());
        let mut cut = |devices: &Devices| {
            for kept in outcomes(devices.cached.len(), seed) {
                seed += 1;
                cuts += 1;
                if outcome.is_ok() {
                    outcome = judge(&devices.after_cut(kept), &catalogue, Some(&new));
                }
            }
        };
        let made = change(&mut devices, catalogue.clone(), &changes, fault, &mut cut);
        outcome.map_err(|error| format!("{changes:?}: {error}"))?;
        // What was said to be done is durable.
        judge(&devices.after_cut([]), &made, None)
            .map_err(|error| format!("after {changes:?}: {error}"))?;
        devices.flush();
        catalogue = made;
    }
    Ok(cuts)
}

#[test]
fn a_cut_at_any_write_leaves_the_old_or_the_new_catalogue() {
    let cuts = cut_everywhere(None).unwrap();
    assert!(cuts > 3000, "{cuts} cuts");
}

#[test]
fn every_fault_of_a_commit_is_found() {
    for fault in [
        Fault::NoDataFlush,
        Fault::NoCatalogueFlush,
        Fault::NoLastFlush,
        Fault::SuperblockFirst,
        Fault::SameArea,
        Fault::SameSlot,
    ] {
        assert!(
            cut_everywhere(Some(fault)).is_err(),
            "{fault:?} is not found"
        );
    }
}

/// Changes go on after each cut, from whatever it left, and are cut again.
fn cut_after_cut(seed: u64, is_repaired: bool) -> Result<(), String> {
    let (mut devices, mut catalogue) = init(&BLOCKS, AREA_BLOCKS);
    for (index, changes) in (0_u64..).zip(sequence_of_changes()) {
        // What a change removes may not be there.
        let is_possible = |change: &Change| match change {
            Change::Put(..) => true,
            Change::Remove(name) => catalogue.find(name).is_some(),
        };
        let changes: Vec<_> = changes.into_iter().filter(is_possible).collect();
        let mut copy = devices.clone();
        let new = change(&mut copy, catalogue.clone(), &changes, None, &mut |_| {});
        let mut cut = Cut::new(seed + 500 * index, 12);
        change(&mut devices, catalogue.clone(), &changes, None, &mut |it| {
            cut.after(it)
        });
        devices = cut.left.unwrap_or(devices);
        judge(&devices.view(), &catalogue, Some(&new))?;
        catalogue = devices.view().mount().unwrap().unwrap().1;
        if is_repaired {
            let mut cut = Cut::new(seed + 1000 * index, 5);
            repair(&mut devices, &catalogue, &mut cut);
            devices = cut.left.unwrap_or(devices);
            judge(&devices.view(), &catalogue, None)?;
            repair(&mut devices, &catalogue, &mut Cut::new(0, 1));
        }
    }
    Ok(())
}

/// The power is cut behind one step, by the seed.
struct Cut {
    seed: u64,
    steps_left: u64,
    left: Option<Devices>,
}

impl Cut {
    fn new(seed: u64, steps: u64) -> Self {
        // SplitMix64, so that neighbouring seeds have nothing in common.
        let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let seed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let seed = seed ^ (seed >> 27);
        Self {
            seed,
            steps_left: seed % steps,
            left: None,
        }
    }

    fn after(&mut self, devices: &Devices) {
        if self.steps_left == 1 {
            let mut outcomes = outcomes(devices.cached.len(), self.seed);
            let kept = usize::try_from(self.seed >> 8).unwrap() % outcomes.len();
            let kept = outcomes.swap_remove(kept);
            self.left = Some(devices.after_cut(kept).to_devices());
        }
        self.steps_left = self.steps_left.saturating_sub(1);
    }
}

#[test]
fn a_store_survives_cut_after_cut() {
    for seed in 1..400 {
        cut_after_cut(seed, true).unwrap_or_else(|error| panic!("{seed}: {error}"));
    }
    // A device that a cut left behind could lose both superblocks by another.
    assert!((1..400).any(|seed| cut_after_cut(seed, false).is_err()));
}

/// Brings devices up to date that a cut left behind.
fn repair(devices: &mut Devices, catalogue: &Catalogue, cut: &mut Cut) {
    let lagging = || {
        mount(&devices.view().slots())
            .unwrap()
            .lagging(catalogue.sequence())
    };
    let devices_behind = lagging();
    if !devices_behind.is_empty() {
        let commit = Commit::repair(catalogue.clone(), &devices_behind);
        run(commit, devices, &mut |it| cut.after(it));
        let mounting = mount(&devices.view().slots()).unwrap();
        assert_eq!(mounting.lagging(catalogue.sequence()), []);
    }
}

/// Damages the newest catalogue on all devices: the one before is whole, with all its objects.
fn damage_the_newest(fault: Option<Fault>) -> Result<(), String> {
    let (mut devices, mut catalogue) = init(&BLOCKS, AREA_BLOCKS);
    for changes in sequence_of_changes() {
        let mut damaged = Ok(());
        let old = catalogue.clone();
        catalogue = change(&mut devices, catalogue, &changes, fault, &mut |devices| {
            // While the next change is being made, too.
            let mut copy = devices.view().to_devices();
            let sequence = copy.view().mount().unwrap().unwrap().1.sequence();
            let start = usize::try_from(old.geometry().area_start(sequence)).unwrap() * BLOCK;
            copy.durable
                .iter_mut()
                .for_each(|device| device[start] ^= 1);
            if damaged.is_ok() && sequence > 1 {
                damaged = match copy.view().mount().unwrap() {
                    Some((_, before)) if before.sequence() + 1 == sequence => {
                        copy.view().verify(&before)
                    }
                    // Its area is being written over.
                    None if sequence == old.sequence() => Ok(()),
                    _ => Err("the catalogue before is not whole".to_owned()),
                };
            }
        });
        damaged?;
    }
    Ok(())
}

#[test]
fn the_catalogue_before_the_newest_is_whole() {
    damage_the_newest(None).unwrap();
    assert!(damage_the_newest(Some(Fault::EarlyReuse)).is_err());
}

/// Forgets what is free behind each change, as `atlas store trim` does, and cuts the power at each step:
/// neither of the two newest catalogues loses anything, nor does a reader of an older one.
fn trim_everywhere(fault: Option<Fault>) -> Result<u64, String> {
    let (mut devices, mut catalogue) = init(&BLOCKS, AREA_BLOCKS);
    let mut before = None;
    let mut trimmed_blocks = 0;
    let mut seed = 1;
    for changes in sequence_of_changes() {
        let made = change(&mut devices, catalogue.clone(), &changes, None, &mut |_| {});
        let older = before.replace(core::mem::replace(&mut catalogue, made));
        devices.flush();
        // A reader of the catalogue before last has what that names until it ends.
        for reader in [None, older.as_ref().map(Catalogue::sequence)] {
            let mut copy = devices.clone();
            let readers = Readers::new(reader, Vec::new());
            let editor = Editor::with_fault(catalogue.clone(), &readers, fault);
            for extent in editor.free_extents() {
                trimmed_blocks += extent.blocks;
                copy.discard(extent);
                for kept in outcomes(copy.cached.len(), seed) {
                    seed += 1;
                    let view = copy.after_cut(kept);
                    judge(&view, &catalogue, None)?;
                    let before = before.as_ref().expect("there was one");
                    view.verify(before)
                        .map_err(|error| format!("the catalogue before: {error}"))?;
                    if let (Some(older), true) = (&older, reader.is_some()) {
                        view.verify(older)
                            .map_err(|error| format!("of a reader: {error}"))?;
                    }
                }
                copy.flush();
            }
        }
    }
    Ok(trimmed_blocks)
}

#[test]
fn what_is_forgotten_belongs_to_no_catalogue_that_counts_or_is_read() {
    assert!(trim_everywhere(None).unwrap() > 0);
    assert!(trim_everywhere(Some(Fault::EarlyReuse)).is_err());
}

#[test]
fn any_device_has_the_catalogue() {
    let (mut devices, catalogue) = init(&BLOCKS, AREA_BLOCKS);
    let changes = [Change::Put("a", 1, 100)];
    let catalogue = change(&mut devices, catalogue, &changes, None, &mut |_| {});
    let start = usize::try_from(catalogue.geometry().area_start(catalogue.sequence())).unwrap();
    for device in 0..2 {
        let mut damaged = devices.clone();
        damaged.durable[device][start * BLOCK + 70] ^= 4;
        let view = damaged.view();
        let (_, found) = view.mount().unwrap().unwrap();
        assert_eq!(found, catalogue);
    }
}
