//! Blocks that a device cannot read, one by one: what is read instead, and what a writer may do then.

use super::{BLOCK, Change, Devices, View, change, init, run};
use crate::{Catalogue, CatalogueError, Commit, SEQUENCE_MAX, SuperblockError, mount};

const BLOCKS: [u64; 2] = [264 + 40, 264 + 36];
const AREA_BLOCKS: u64 = 4;

/// A store of one device or two, whose newest catalogue is number 4 or 5.
fn sample(devices: usize, changes: u64) -> (Devices, Catalogue, Catalogue) {
    let (mut devices, mut catalogue) = init(&BLOCKS[..devices], AREA_BLOCKS);
    let mut before = catalogue.clone();
    for seed in 0..changes {
        before = catalogue.clone();
        let name = ["a", "b", "c"][usize::try_from(seed % 3).unwrap()];
        let changes = [Change::Put(name, seed, 3 * BLOCK + 1)];
        catalogue = change(&mut devices, catalogue, &changes, None, &mut |_| {});
    }
    (devices, before, catalogue)
}

/// Whether a writer would have to stop: a superblock that cannot be read may be of a later catalogue.
fn is_newer_possible(view: &View<'_>, sequence: u64) -> bool {
    let mounting = mount(&view.slots()).unwrap();
    let mut unknown = mounting.perhaps_newer(sequence);
    unknown.any(|unknown| {
        let place = usize::try_from(unknown.block).unwrap() * BLOCK;
        let block = view.read_faulty(unknown.index, place, BLOCK);
        !block.is_some_and(|block| mounting.rules_out(sequence, &block))
    })
}

#[test]
fn with_any_block_unreadable_a_whole_catalogue_is_found() {
    for (count, changes) in [(1, 3), (1, 4), (2, 3), (2, 4)] {
        let (devices, before, newest) = sample(count, changes);
        let mut refusals = 0;
        for device in 0..count {
            for block in 0..devices.durable[device].len() / BLOCK {
                let mut view = devices.view();
                view.unreadable.push((device, block));
                let (index, found) = view.mount().unwrap().unwrap();
                let is_newest = found == newest;
                assert!(is_newest || (count == 1 && found == before), "{block}");
                view.verify_readable(&found).unwrap();
                // What a writer asks: damage, or something newer that is not known.
                let sequence = found.sequence();
                let is_refused = is_newer_possible(&view, sequence) || (index > 0 && !is_newest);
                assert_eq!(is_refused, !is_newest, "{count} {changes} {device} {block}");
                refusals += usize::from(is_refused);
            }
        }
        // The newest superblock, and the one block of the newest catalogue, of a store that has no copy.
        assert_eq!(refusals, if count == 1 { 2 } else { 0 });
    }
}

/// A change is made with any block unreadable, wherever a writer may, and the power is cut at every step:
/// what was there before, or what is there then, is found whole, and a block that was written is readable.
#[test]
fn a_change_beside_an_unreadable_block_destroys_nothing() {
    let (devices, _, newest) = sample(2, 4);
    for device in 0..2 {
        for block in (0..17).chain(256..264) {
            let mut copy = devices.clone();
            copy.unreadable.push((device, block));
            let view = copy.view();
            assert!(!is_newer_possible(&view, newest.sequence()));
            let lagging = mount(&view.slots()).unwrap().lagging(newest.sequence());
            let mut judge = |devices: &Devices| {
                // Nothing of it was written, and so the block is as it was.
                let mut lost = devices.after_cut([]);
                lost.unreadable = vec![(device, block)];
                let all = devices.view();
                for view in [lost, all] {
                    let (_, found) = view.mount().unwrap().unwrap();
                    assert!(found.sequence() >= newest.sequence(), "{device} {block}");
                    view.verify_readable(&found).unwrap();
                }
            };
            if !lagging.is_empty() {
                let repair = Commit::repair(newest.clone(), &lagging);
                run(repair, &mut copy, &mut judge);
            }
            let changes = [Change::Put("new", 9, 5), Change::Remove("a")];
            let made = change(&mut copy, newest.clone(), &changes, None, &mut judge);
            assert_eq!(copy.view().mount().unwrap().unwrap().1, made);
        }
    }
}

#[test]
fn a_newer_catalogue_is_ruled_out_by_its_place_only() {
    let (devices, _, newest) = sample(1, 3);
    let mounting = mount(&devices.view().slots()).unwrap();
    let sequence = newest.sequence();
    let header = |sequence: u64| {
        let area = usize::try_from(newest.geometry().area_start(sequence)).unwrap();
        devices.view().read(0, area * BLOCK, BLOCK)
    };
    let (older, same) = (header(sequence + 1), header(sequence));
    assert!(mounting.rules_out(sequence, &older) && mounting.rules_out(sequence, &same));
    assert!(!mounting.rules_out(sequence - 1, &same));
    // Nothing was ever written there, or another store's.
    assert!(mounting.rules_out(0, &[0; BLOCK]));
    let mut other = same.clone();
    other[16] ^= 1;
    assert!(mounting.rules_out(0, &other));
    // A later version of the format, or not a block at all.
    let mut later = older;
    later[8] = 2;
    assert!(!mounting.rules_out(SEQUENCE_MAX, &later));
    assert!(!mounting.rules_out(SEQUENCE_MAX, &[0; 63]));
}

#[test]
fn a_device_without_a_readable_superblock_is_no_store() {
    let (devices, _, _) = sample(1, 3);
    let mut view = devices.view();
    view.unreadable.extend([(0, 0), (0, 16)]);
    let refused = view.mount().unwrap_err().to_string();
    assert_eq!(
        refused,
        format!("no store: {}", SuperblockError::Unreadable)
    );
}

/// Memory is taken for what is there: a hole in a catalogue ends it.
#[test]
fn a_catalogue_of_zeros_is_not_read_on() {
    let (devices, _, _) = sample(1, 3);
    let mounting = mount(&devices.view().slots()).unwrap();
    let candidate = mounting.candidates[0];
    let place = usize::try_from(candidate.block).unwrap() * BLOCK;
    let bytes = devices.view().read(0, place, BLOCK);
    assert_eq!(candidate.check_first(&bytes), Ok(()));
    assert_eq!(candidate.check_piece(&bytes), Ok(()));
    let hole = [&bytes[..], &[0; BLOCK]].concat();
    assert_eq!(candidate.check_piece(&hole), Err(CatalogueError::Short));
    let zeros = candidate.check_first(&[0; BLOCK]);
    assert_eq!(zeros, Err(CatalogueError::Field("magic number")));
    let older = mounting.candidates[1].check_first(&bytes);
    assert_eq!(older, Err(CatalogueError::Field("sequence number")));
}
