//! Any bytes as a superblock and as a catalogue of a raw store, with checksums that fit: each decoder
//! returns an error or something that keeps all rules. A catalogue that is accepted can be changed, and
//! what is then written is read back as it was meant.
#![no_main]

use aws_lc_rs::digest::{SHA256, digest};
use libfuzzer_sys::fuzz_target;
use volume::{Catalogue, DeviceSlots, Editor, Step, StoreId, Superblock, SuperblockError, mount};

const BLOCK: usize = 4096;

fuzz_target!(|bytes: &[u8]| {
    superblock(bytes);
    catalogue(bytes);
});

/// The bytes as the fields of a superblock.
fn superblock(bytes: &[u8]) {
    let mut block = bytes.to_vec();
    block.resize(BLOCK - 16, 0);
    let sum = digest(&SHA256, &block);
    block.extend_from_slice(&sum.as_ref()[..16]);
    if let Ok(superblock) = Superblock::decode(&block) {
        assert_eq!(superblock.encode(), block);
        let slots = [Ok(superblock), Err(SuperblockError::Magic)];
        let size_bytes = u64::MAX;
        let _ = mount(&[DeviceSlots { slots, size_bytes }]);
    }
}

/// The bytes as a catalogue, and the superblock that means them.
fn catalogue(bytes: &[u8]) {
    let Some(superblock) = meaning(bytes) else {
        return;
    };
    let Ok(catalogue) = Catalogue::decode(&superblock, bytes) else {
        return;
    };
    // It panics if extents overlap or lie outside.
    let mut editor = Editor::new(catalogue.clone(), &volume::Readers::default());
    if let Some(first) = catalogue.entries().first() {
        assert!(editor.remove(&first.name));
    }
    let Ok(mut commit) = editor.commit() else {
        return;
    };
    let (mut written, mut named) = (Vec::new(), None);
    loop {
        match commit.next_step() {
            Step::Write {
                device: 0,
                block,
                bytes,
            } if block >= 256 => written = bytes.to_vec(),
            Step::Write {
                device: 0, bytes, ..
            } => named = Superblock::decode(bytes).ok(),
            Step::Write { .. } | Step::Flush => {}
            Step::Done => break,
        }
    }
    let named = named.expect("a superblock for the first device");
    let read = Catalogue::decode(&named, &written);
    assert_eq!(read.as_ref(), Ok(&commit.into_catalogue()));
}

fn meaning(bytes: &[u8]) -> Option<Superblock> {
    let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let mut catalogue_digest = [0; 32];
    catalogue_digest.copy_from_slice(digest(&SHA256, bytes).as_ref());
    Some(Superblock {
        id: StoreId(bytes.get(16..32)?.try_into().ok()?),
        device: 0,
        device_count: u16::from_le_bytes(bytes.get(12..14)?.try_into().ok()?),
        device_blocks: number(64)?,
        area_blocks: number(56)?,
        // Sequence numbers that a superblock may have.
        sequence: number(32).filter(|it| (1..=volume::SEQUENCE_MAX).contains(it))?,
        catalogue_bytes: u64::try_from(bytes.len()).ok()?,
        catalogue_digest,
    })
}
