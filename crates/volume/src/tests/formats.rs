//! Bytes from devices: what is written is read back, and nothing else is taken.

use proptest::prelude::*;

use super::{BLOCK, Change, Devices, change, entry, init};
use crate::digest::sha256;
use crate::{
    Catalogue, CatalogueError, DeviceSlots, Editor, Extent, Geometry, GeometryError, MountError,
    Readers, SEQUENCE_MAX, StoreId, Superblock, SuperblockError, blocks_of, is_name, mount,
    runs_of,
};

const BLOCKS: [u64; 2] = [256 + 8 + 300, 256 + 8 + 300];

/// A store with objects of several sizes, and what its first device says of it.
fn sample() -> (Devices, Catalogue, Superblock) {
    let (mut devices, catalogue) = init(&BLOCKS, 4);
    let changes = [
        Change::Put("films/a.mp4", 1, (1 << 20) + 1),
        Change::Put("films/b", 2, 1),
        Change::Put("z", 3, 0),
        Change::Put("films.txt", 4, BLOCK),
    ];
    let catalogue = change(&mut devices, catalogue, &changes, None, &mut |_| {});
    let changes = [
        Change::Remove("films/b"),
        Change::Put("films.txt", 5, 4 * BLOCK),
    ];
    let catalogue = change(&mut devices, catalogue, &changes, None, &mut |_| {});
    let superblock = devices.view().slots()[0].slots[1].unwrap();
    assert_eq!(superblock.sequence, 3);
    (devices, catalogue, superblock)
}

/// The superblock that means these bytes.
fn meaning(superblock: &Superblock, bytes: &[u8]) -> Superblock {
    Superblock {
        catalogue_bytes: bytes.len() as u64,
        catalogue_digest: sha256(bytes),
        ..*superblock
    }
}

#[test]
fn a_catalogue_is_read_back_as_it_was_written() {
    let (_, catalogue, superblock) = sample();
    let bytes = catalogue.encode();
    assert_eq!(bytes.len() as u64, catalogue.encoded_bytes());
    let superblock = meaning(&superblock, &bytes);
    assert_eq!(
        Catalogue::decode(&superblock, &bytes).as_ref(),
        Ok(&catalogue)
    );
    assert_eq!(catalogue.retired().len(), 2);
    let sizes: Vec<_> = catalogue
        .entries()
        .iter()
        .map(|it| (&*it.name, it.size_bytes))
        .collect();
    assert_eq!(
        sizes,
        [
            ("films.txt", 4 * 4096),
            ("films/a.mp4", (1 << 20) + 1),
            ("z", 0)
        ]
    );
    assert!(catalogue.is_directory("films") && !catalogue.is_directory("z"));
    assert!(!catalogue.is_directory("film") && !catalogue.is_directory("films/a.mp4"));
    assert_eq!(catalogue.find("films/a.mp4").unwrap().runs.len(), 2);
    assert_eq!(catalogue.find("films/b"), None);
    let mut short = catalogue;
    short.forget_runs();
    assert!(short.entries().iter().all(|it| it.runs.is_empty()));
}

#[test]
fn a_byte_that_differs_is_noticed() {
    let (_, catalogue, superblock) = sample();
    let bytes = catalogue.encode();
    for place in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[place] ^= 0x10;
        let verdict = Catalogue::decode(&superblock, &damaged);
        assert_eq!(verdict, Err(CatalogueError::Checksum), "{place}");
    }
    let short = &bytes[..bytes.len() - 1];
    assert_eq!(
        Catalogue::decode(&superblock, short),
        Err(CatalogueError::Short)
    );
    let block = superblock.encode();
    assert_eq!(Superblock::decode(&block), Ok(superblock));
    for place in 0..block.len() {
        let mut damaged = block.clone();
        damaged[place] ^= 1;
        let error = if place < 8 {
            SuperblockError::Magic
        } else {
            SuperblockError::Checksum
        };
        assert_eq!(Superblock::decode(&damaged), Err(error), "{place}");
    }
    assert_eq!(Superblock::decode(&block[1..]), Err(SuperblockError::Short));
}

/// Bytes whose checksum fits although they are wrong: those of a faulty or hostile program. The verdict is
/// an error, or a catalogue that keeps all rules, as encoding it again shows.
#[test]
fn wrong_bytes_with_a_right_checksum_are_judged_one_by_one() {
    let (_, catalogue, superblock) = sample();
    let bytes = catalogue.encode();
    let mut accepted = 0;
    for place in 0..bytes.len() {
        for flip in [1, 0x80, 0xff] {
            let mut wrong = bytes.clone();
            wrong[place] ^= flip;
            let superblock = meaning(&superblock, &wrong);
            if let Ok(catalogue) = Catalogue::decode(&superblock, &wrong) {
                accepted += 1;
                assert_eq!(catalogue.encode(), wrong);
                // It does not panic: no extents overlap.
                drop(Editor::new(catalogue, &Readers::default()));
            }
        }
    }
    // Checksums, tags, names and times have no rule that a single byte breaks; numbers do.
    assert!((1..3 * bytes.len()).contains(&accepted));
}

#[test]
fn fields_out_of_range_are_refused_by_name() {
    let (_, catalogue, superblock) = sample();
    let bytes = catalogue.encode();
    let devices_end = 64 + 16;
    let with = |place: usize, new: &[u8]| {
        let mut wrong = bytes.clone();
        wrong[place..place + new.len()].copy_from_slice(new);
        Catalogue::decode(&meaning(&superblock, &wrong), &wrong).unwrap_err()
    };
    let field = CatalogueError::Field;
    let of = |name| CatalogueError::Entry(0, name);
    for (place, new, error) in [
        (0, &b"X"[..], field("magic number")),
        (8, &[2], field("version")),
        (12, &[3], field("number of devices")),
        (16, &[0], field("store")),
        (32, &[9], field("sequence number")),
        (40, &[255; 8], CatalogueError::Short),
        (48, &[255; 8], CatalogueError::Short),
        (56, &[5], field("area")),
        (64, &[0, 0], field("size of the device")),
        (72, &[0, 0], field("size of a device")),
        (devices_end, &[255, 255], CatalogueError::Short),
        (devices_end + 4, &[9], field("extent")),
        (devices_end + 6, &[1], of("reserved field")),
        (devices_end + 8, &[0, 0], field("extent")),
        (devices_end + 8, &[255; 8], field("extent")),
        (devices_end + 32, &[255; 4], of("time")),
        (devices_end + 36, &[1], of("reserved field")),
        (devices_end + 40, &[0], of("version")),
        (devices_end + 40, &[4], of("version")),
        (devices_end + 64, b"/", of("name")),
        (devices_end + 64, b"\0", of("name")),
        (devices_end + 64, b"\xff", of("name")),
        (devices_end + 64, b"g", CatalogueError::Order(1)),
    ] {
        assert_eq!(with(place, new), error, "{place}: {new:?}");
    }
    let longer = [&bytes[..], &[0]].concat();
    let verdict = Catalogue::decode(&meaning(&superblock, &longer), &longer);
    assert_eq!(verdict, Err(field("length")));
}

#[test]
fn fields_of_a_superblock_have_limits() {
    let (_, _, right) = sample();
    let field = |superblock: Superblock| match Superblock::decode(&superblock.encode()) {
        Err(SuperblockError::Field(name)) => Some(name),
        verdict => verdict.map(|_| None).unwrap(),
    };
    let sequence = |sequence| field(Superblock { sequence, ..right });
    assert_eq!([sequence(1), sequence(SEQUENCE_MAX)], [None; 2]);
    let wrong = Some("the sequence number");
    assert_eq!([sequence(0), sequence(SEQUENCE_MAX + 1)], [wrong; 2]);
    let catalogue = |catalogue_bytes| {
        field(Superblock {
            catalogue_bytes,
            ..right
        })
    };
    assert_eq!(catalogue(4 * 4096), None);
    assert_eq!(catalogue(4 * 4096 + 1), Some("the catalogue's size"));
    let device = |device, device_count| {
        field(Superblock {
            device,
            device_count,
            ..right
        })
    };
    assert_eq!([device(0, 1), device(63, 64)], [None; 2]);
    let wrong = Some("the device's number");
    assert_eq!([device(0, 0), device(1, 1), device(0, 65)], [wrong; 3]);
    let blocks = |device_blocks| {
        field(Superblock {
            device_blocks,
            ..right
        })
    };
    assert_eq!(blocks(256 + 8 + 1), None);
    assert_eq!(blocks(256 + 8), Some("the device's size"));
}

#[test]
fn extents_that_overlap_are_refused() {
    let (_, mut catalogue) = init(&BLOCKS, 4);
    let mut editor = Editor::new(catalogue, &Readers::default());
    for name in ["a", "b"] {
        let extent = editor.allocate(8192).unwrap();
        editor.insert(entry(
            name,
            Extent {
                device: 0,
                ..extent
            },
            &[1; 8192],
        ));
    }
    catalogue = editor
        .commit()
        .unwrap_or_else(|_| unreachable!("it is small"))
        .into_parts();
    let bytes = catalogue.encode();
    let superblock = Superblock {
        id: StoreId([7; 16]),
        device: 0,
        device_count: 2,
        device_blocks: BLOCKS[0],
        area_blocks: 4,
        sequence: 2,
        catalogue_bytes: 0,
        catalogue_digest: [0; 32],
    };
    let verdict = Catalogue::decode(&meaning(&superblock, &bytes), &bytes);
    assert_eq!(
        verdict,
        Err(CatalogueError::Overlap {
            device: 0,
            block: 264
        })
    );
}

#[test]
fn sizes_of_a_store_have_limits() {
    let make =
        |blocks: &[u64], area| Geometry::new(StoreId::default(), blocks.to_vec(), area).map(|_| ());
    assert_eq!(make(&[], 1), Err(GeometryError::Devices(0)));
    assert_eq!(make(&[300; 65], 1), Err(GeometryError::Devices(65)));
    assert_eq!(make(&[300; 64], 1), Ok(()));
    assert_eq!(make(&[300], 0), Err(GeometryError::Area(0)));
    assert_eq!(make(&[1 << 40], 1 << 22), Ok(()));
    assert_eq!(
        make(&[1 << 40], (1 << 22) + 1),
        Err(GeometryError::Area((1 << 22) + 1))
    );
    let small = |blocks| GeometryError::TooSmall {
        device: 1,
        blocks,
        needed: 259,
    };
    assert_eq!(make(&[300, 258], 1), Err(small(258)));
    assert_eq!(make(&[300, 259], 1), Ok(()));
    assert_eq!(Geometry::usual_area_blocks(0), 64);
    assert_eq!(Geometry::usual_area_blocks(100 << 8), 100);
    assert_eq!(Geometry::usual_area_blocks(u64::MAX), 1 << 18);
    assert_eq!(
        (blocks_of(0), blocks_of(1), blocks_of(4096), blocks_of(4097)),
        (0, 1, 1, 2)
    );
    assert_eq!(
        (runs_of(0), runs_of(1 << 20), runs_of((1 << 20) + 1)),
        (0, 1, 2)
    );
}

#[test]
fn names_are_those_that_paths_have() {
    for name in ["a", "a/b.c", "...", "a b", "ü"] {
        assert!(is_name(name), "{name}");
    }
    for name in [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        ".",
        "a/..",
        "../a",
        "a\0",
        "a\nb",
        "\u{1b}[2J",
        "\u{7f}",
        "\u{9b}",
        "a\\b",
    ] {
        assert!(!is_name(name), "{name:?}");
    }
    assert!(is_name(&"n".repeat(4094)) && !is_name(&"n".repeat(4095)));
}

/// A store that has such an object is read, and the object can be removed.
#[test]
fn a_stored_name_may_have_control_characters() {
    let (_, catalogue, superblock) = sample();
    let mut bytes = catalogue.encode();
    let name = bytes.windows(9).position(|it| it == b"films.txt");
    bytes[name.unwrap() + 5] = b'\n';
    let odd = Catalogue::decode(&meaning(&superblock, &bytes), &bytes).unwrap();
    let mut editor = Editor::new(odd, &Readers::default());
    assert!(editor.remove("films\ntxt"));
    editor.commit().unwrap();
}

#[test]
fn devices_that_do_not_belong_together_are_refused() {
    let (devices, _, _) = sample();
    let slots = devices.view().slots();
    let [first, second] = slots[..] else {
        unreachable!("two devices")
    };
    assert_eq!(mount(&[second, first]).unwrap().order, [1, 0]);
    let refusal = |devices: &[DeviceSlots]| mount(devices).unwrap_err();
    assert_eq!(refusal(&[]), MountError::None);
    assert_eq!(refusal(&[first]), MountError::Count { count: 2, named: 1 });
    assert_eq!(
        refusal(&[first, second, second]),
        MountError::Count { count: 2, named: 3 }
    );
    assert_eq!(
        refusal(&[first, first]),
        MountError::Twice {
            index: 1,
            device: 0
        }
    );
    let needed_bytes = first.size_bytes;
    let size_bytes = needed_bytes - 1;
    let shrunk = DeviceSlots {
        size_bytes,
        ..second
    };
    assert_eq!(
        refusal(&[first, shrunk]),
        MountError::Shrunk {
            index: 1,
            size_bytes,
            needed_bytes
        }
    );
    let other = StoreId([8; 16]);
    let slot = |id| {
        Ok(Superblock {
            id,
            ..second.slots[0].unwrap()
        })
    };
    let stranger = DeviceSlots {
        slots: [slot(other), slot(other)],
        ..second
    };
    let id = StoreId([7; 16]);
    assert_eq!(
        refusal(&[first, stranger]),
        MountError::OtherStore {
            index: 1,
            id,
            other
        }
    );
}

/// What a superblock says of its own device, the catalogue says of all.
#[test]
fn sizes_that_the_devices_and_the_catalogue_do_not_agree_on_are_refused() {
    let (devices, catalogue, _) = sample();
    let mut slots = devices.view().slots();
    let mounting = mount(&slots).unwrap();
    assert_eq!(mounting.geometry, *catalogue.geometry());
    let with = |slots: &mut Vec<DeviceSlots>, change: &dyn Fn(&mut Superblock)| {
        for slot in &mut slots[1].slots {
            change(slot.as_mut().unwrap());
        }
        mount(slots)
    };
    // The second device is smaller than the catalogue says; the first has the catalogue.
    let smaller = with(&mut slots, &|it| it.device_blocks -= 1).unwrap();
    let candidate = smaller.candidates[0];
    assert_eq!(candidate.index, 0);
    let place = usize::try_from(candidate.block).unwrap() * BLOCK;
    let length = usize::try_from(candidate.blocks()).unwrap() * BLOCK;
    let bytes = devices.view().read(0, place, length);
    let wrong = Err(CatalogueError::Field("size of a device"));
    assert_eq!(candidate.check(&smaller.geometry, &bytes), wrong);
    assert_eq!(candidate.check(&mounting.geometry, &bytes), Ok(catalogue));
    let refused = with(&mut slots, &|it| it.area_blocks += 1).unwrap_err();
    let (index, blocks, first_blocks) = (1, 5, 4);
    let area = MountError::Area {
        index,
        blocks,
        first_blocks,
    };
    assert_eq!(refused, area);
}

#[test]
fn a_later_version_is_refused_even_beside_a_known_one() {
    let (devices, _, superblock) = sample();
    let later = |place: usize| {
        let mut block = superblock.encode();
        block[8] = 2;
        let digest = sha256(&block[..4080]);
        block[4080..].copy_from_slice(&digest[..16]);
        let mut devices = devices.clone();
        devices.durable[0][place * BLOCK..][..BLOCK].copy_from_slice(&block);
        mount(&devices.view().slots()).unwrap_err()
    };
    for place in [0, 16] {
        let error = SuperblockError::Version(2);
        assert_eq!(later(place), MountError::NoStore { index: 0, error });
        assert!(
            later(place)
                .to_string()
                .contains("format version 2: this program reads version 1")
        );
    }
}

#[test]
fn a_device_without_a_superblock_says_what_is_there() {
    let refusal = |slots| {
        mount(&[DeviceSlots {
            slots,
            size_bytes: 1 << 30,
        }])
        .unwrap_err()
    };
    let no_store = |error| MountError::NoStore { index: 0, error };
    let (magic, torn) = (Err(SuperblockError::Magic), Err(SuperblockError::Checksum));
    assert_eq!(refusal([magic, magic]), no_store(SuperblockError::Magic));
    assert_eq!(refusal([magic, torn]), no_store(SuperblockError::Checksum));
    assert_eq!(refusal([torn, magic]), no_store(SuperblockError::Checksum));
}

proptest! {
    #[test]
    fn no_bytes_make_a_decoder_panic(
        seed: u64, changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        cut in any::<prop::sample::Index>(),
    ) {
        let (_, catalogue, superblock) = sample();
        let mut bytes = catalogue.encode();
        for (place, byte) in &changes {
            let place = place.index(bytes.len());
            bytes[place] = *byte;
        }
        if seed % 4 == 0 {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(catalogue) = Catalogue::decode(&meaning(&superblock, &bytes), &bytes) {
            prop_assert_eq!(catalogue.encode(), bytes);
        }
        let mut block = superblock.encode();
        for (place, byte) in &changes {
            let place = place.index(200);
            block[place] = *byte;
        }
        let digest = sha256(&block[..4080]);
        block[4080..].copy_from_slice(&digest[..16]);
        if let Ok(superblock) = Superblock::decode(&block) {
            prop_assert_eq!(superblock.encode(), block);
            let slots = [Ok(superblock), Err(SuperblockError::Magic)];
            let _ = mount(&[DeviceSlots { slots, size_bytes: u64::MAX }]);
        }
    }
}
