//! The index of names finds what a search of the catalogue finds, and nothing else.

use proptest::prelude::*;

use super::init;
use crate::catalogue::Catalogue;
use crate::{ContentTag, Entry, Extent, NameIndex, Time};

/// A catalogue of empty objects with these names.
fn catalogue<'a>(names: impl IntoIterator<Item = &'a str>) -> Catalogue {
    let (_, empty) = init(&[4096], 4);
    let entry = |name: &str| Entry {
        name: name.into(),
        content_type: Box::default(),
        extent: Extent::default(),
        size_bytes: 0,
        modified: Time::default(),
        added: 2,
        tag: ContentTag([0; 16]),
        runs: Box::default(),
    };
    let mut entries: Vec<_> = names.into_iter().map(entry).collect();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    entries.dedup_by(|a, b| a.name == b.name);
    Catalogue::new(empty.geometry().clone(), 2, entries, Vec::new())
}

fn assert_agrees(catalogue: &Catalogue, name: &str) {
    let index = NameIndex::new(catalogue);
    assert_eq!(
        index.index_of(catalogue, name),
        catalogue.index_of(name),
        "{name}"
    );
    assert_eq!(index.find(catalogue, name), catalogue.find(name), "{name}");
}

#[test]
fn a_catalogue_without_objects_has_no_name() {
    assert_agrees(&catalogue([]), "");
    assert_agrees(&catalogue([]), "a");
    assert_agrees(&catalogue(["a"]), "a");
    assert_agrees(&catalogue(["a"]), "b");
}

#[test]
fn every_name_of_many_is_found_and_its_neighbours_are_not() {
    let names: Vec<_> = (0..5_000).map(|it| format!("films/{it}.m4s")).collect();
    let catalogue = catalogue(names.iter().map(String::as_str));
    let index = NameIndex::new(&catalogue);
    for name in &names {
        let place = index.index_of(&catalogue, name);
        assert_eq!(place, catalogue.index_of(name), "{name}");
        assert!(place.is_some(), "{name}");
        assert_eq!(index.find(&catalogue, &format!("{name}x")), None);
        assert_eq!(index.find(&catalogue, &name[1..]), None);
    }
}

proptest! {
    #[test]
    fn the_index_agrees_with_the_catalogue(
        names in prop::collection::vec("[a-c]{1,4}", 0..40),
        asked in prop::collection::vec("[a-c]{0,5}", 0..40),
    ) {
        let catalogue = catalogue(names.iter().map(String::as_str));
        for name in names.iter().chain(&asked) {
            assert_agrees(&catalogue, name);
        }
    }
}
