//! Which space is free when.

use super::{BLOCK, Change, change, entry, init};
use crate::{Catalogue, CatalogueFull, Commit, CommitError, Editor, Extent, Readers, SEQUENCE_MAX};

const BLOCKS: [u64; 1] = [256 + 2 + 10];

/// Somebody who reads this catalogue.
fn reader(sequence: u64) -> Readers {
    Readers::new(Some(sequence), Vec::new())
}

/// The content is never written: only the catalogue matters here.
fn put(editor: &mut Editor, name: &str, blocks: usize) -> Extent {
    let content = vec![1; blocks * BLOCK];
    let extent = editor.allocate(content.len() as u64).unwrap();
    editor.insert(entry(name, extent, &content));
    extent
}

#[test]
fn space_is_used_again_two_catalogues_later() {
    let (mut devices, catalogue) = init(&BLOCKS, 1);
    let changes = [Change::Put("a", 1, 8 * BLOCK)];
    let catalogue = change(&mut devices, catalogue, &changes, None, &mut |_| {});
    let catalogue = change(
        &mut devices,
        catalogue,
        &[Change::Remove("a")],
        None,
        &mut |_| {},
    );
    let mut editor = Editor::new(catalogue, &Readers::default());
    let refusal = editor.allocate(3 * BLOCK as u64).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "no room for 12288 bytes in one piece: the largest free run has 8192, 8192 are free in all, \
         and 32768 of removed objects are not free yet"
    );
    assert!(editor.would_free(&Readers::default()) && !editor.has_changed());
    let catalogue = super::run(editor.commit().unwrap(), &mut devices, &mut |_| {});
    let mut editor = Editor::new(catalogue, &Readers::default());
    assert_eq!(editor.free_bytes(), 10 * BLOCK as u64);
    assert_eq!(put(&mut editor, "b", 10).blocks, 10);
    assert!(editor.allocate(1).is_err());
}

#[test]
fn space_that_a_reader_may_send_is_not_used() {
    let (mut devices, catalogue) = init(&BLOCKS, 1);
    let changes = [Change::Put("a", 1, 8 * BLOCK)];
    let catalogue = change(&mut devices, catalogue, &changes, None, &mut |_| {});
    let read = catalogue.sequence();
    let mut catalogue = change(
        &mut devices,
        catalogue,
        &[Change::Remove("a")],
        None,
        &mut |_| {},
    );
    for _ in 0..3 {
        let editor = Editor::new(catalogue, &reader(read));
        assert_eq!(editor.free_bytes(), 2 * BLOCK as u64);
        assert!(!editor.would_free(&reader(read)) && editor.would_free(&reader(read + 1)));
        catalogue = super::run(editor.commit().unwrap(), &mut devices, &mut |_| {});
    }
    // A reader of the first catalogue without the object does not read it.
    let editor = Editor::new(catalogue, &reader(read + 1));
    assert_eq!(editor.free_bytes(), 10 * BLOCK as u64);
    assert!(!editor.has_changed());
}

#[test]
fn what_no_catalogue_had_is_free_at_once() {
    let (_, catalogue) = init(&BLOCKS, 1);
    let mut editor = Editor::new(catalogue, &Readers::default());
    put(&mut editor, "a", 8);
    put(&mut editor, "a", 2);
    assert_eq!(editor.free_bytes(), 8 * BLOCK as u64);
    assert!(editor.remove("a") && !editor.remove("a"));
    assert_eq!(editor.free_bytes(), 10 * BLOCK as u64);
    let extent = editor.allocate(1).unwrap();
    editor.release(extent);
    assert_eq!(editor.largest_free_bytes(), 10 * BLOCK as u64);
}

#[test]
fn objects_go_to_the_device_with_the_most_room() {
    let (_, catalogue) = init(&[256 + 2 + 10, 256 + 2 + 14], 1);
    let mut editor = Editor::new(catalogue, &Readers::default());
    let devices: Vec<_> = (0..4)
        .map(|index| put(&mut editor, &index.to_string(), 5).device)
        .collect();
    assert_eq!(devices, [1, 0, 1, 0]);
    // Each object is whole on one device.
    let refusal = editor.allocate(5 * BLOCK as u64).unwrap_err();
    assert_eq!(refusal.largest_bytes, 4 * BLOCK as u64);
    assert_eq!(refusal.free_bytes, 4 * BLOCK as u64);
}

/// What is told before anything is written is what comes of it.
#[test]
fn the_catalogues_size_is_known_before() {
    let (mut devices, mut catalogue) = init(&[256 + 16 + 2000], 8);
    for sizes in [[5000, 0, 0], [1, 3 << 20, 0], [0, 9, 1 << 20]] {
        let names = ["a", "longer", "empty"];
        let mut editor = Editor::new(catalogue, &Readers::default());
        // The smallest area in which it is said to fit is the size of what is written.
        let full = |editor: &Editor, extra: u64| {
            let padding = "p".repeat(usize::try_from(extra).unwrap());
            let objects = names
                .iter()
                .zip(sizes)
                .map(|(name, size)| (*name, "", size));
            editor
                .check_catalogue(objects.chain([(&*padding, "", 0)]))
                .is_err()
        };
        let left = (0..8 * 4096).find(|extra| full(&editor, *extra)).unwrap();
        for (name, size) in names.iter().zip(sizes) {
            let extent = editor.allocate(size).unwrap();
            let content = vec![1; usize::try_from(size).unwrap()];
            editor.insert(entry(name, extent, &content));
        }
        catalogue = super::run(editor.commit().unwrap(), &mut devices, &mut |_| {});
        // The padding is an object of 64 bytes and its name.
        assert_eq!(
            catalogue.encoded_bytes() + 64 + left - 1,
            8 * 4096,
            "{sizes:?}"
        );
    }
}

#[test]
fn a_catalogue_that_does_not_fit_its_area_is_refused() {
    let (_, catalogue) = init(&BLOCKS, 1);
    let size = |names: usize| {
        let mut editor = Editor::new(catalogue.clone(), &Readers::default());
        for index in 0..names {
            // 64 bytes and the name.
            editor.insert(entry(&format!("{index:064}"), Extent::default(), &[]));
        }
        editor.commit().map(|_| ())
    };
    let check = |names: usize| {
        let names: Vec<_> = (0..names).map(|index| format!("{index:064}")).collect();
        let added = names.iter().map(|name| (&**name, "", 0));
        Editor::new(catalogue.clone(), &Readers::default()).check_catalogue(added)
    };
    for names in [0, 1, 31, 32, 33] {
        assert_eq!(check(names), size(names), "{names}");
    }
    // 72 bytes of header, and 128 for each object.
    assert_eq!(size(31), Ok(()));
    assert_eq!(
        size(32),
        Err(CommitError::Full(CatalogueFull {
            needed_bytes: 72 + 32 * 128,
            area_bytes: 4096
        }))
    );
}

/// A writer commits nothing that its reader would refuse.
#[test]
fn behind_the_last_sequence_number_nothing_is_committed() {
    let (mut devices, first) = init(&BLOCKS, 1);
    let last = Catalogue::new(
        first.geometry().clone(),
        SEQUENCE_MAX,
        Vec::new(),
        Vec::new(),
    );
    let made = super::run(Commit::new(last), &mut devices, &mut |_| {});
    assert_eq!(devices.view().mount().unwrap().unwrap().1, made);
    let editor = Editor::new(made, &Readers::default());
    let added = [("a", "", 0)];
    assert_eq!(
        editor.check_catalogue(added.into_iter()),
        Err(CommitError::Last)
    );
    assert_eq!(editor.commit().map(|_| ()), Err(CommitError::Last));
}
