//! What a device holds already, by the signatures in its first and last bytes.
//!
//! Reading first: `libblkid/src/superblocks` of util-linux, where the places come from. It knows what
//! is common, and calls any other byte that is not zero unknown data: a device is empty only if all
//! bytes looked at are zero.

use crate::superblock::{MAGIC, Superblock};
use crate::{BLOCK_BYTES, SUPERBLOCKS};

/// Bytes to look at, from the start of a device, and from its end.
pub const LOOKED_AT_BYTES: usize = 1 << 20;

/// Place and bytes of a signature, and what it means. Those that say more come first: a partition table
/// may protect what lies behind it, and a boot sector is in front of several.
const SIGNATURES: [(usize, &[u8], &str); 22] = [
    (0, &MAGIC, "an Atlas store"),
    (65_536, &MAGIC, "an Atlas store"),
    (0, b"XFSB", "an XFS file system"),
    (0x438, &[0x53, 0xef], "an ext2, ext3 or ext4 file system"),
    (0x1_0040, b"_BHRfS_M", "a Btrfs file system"),
    (0x400, &[0x10, 0x20, 0xf5, 0xf2], "an F2FS file system"),
    (0x400, &[0xe2, 0xe1, 0xf5, 0xe0], "an EROFS file system"),
    (0x1018, &[0xc6, 0x85, 0x73, 0xf6], "a bcachefs file system"),
    (0, b"hsqs", "a SquashFS file system"),
    (0x8001, b"CD001", "an ISO 9660 file system"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (0x52, b"FAT32   ", "a FAT32 file system"),
    (0x36, b"FAT1", "a FAT file system"),
    (0, b"LUKS\xba\xbe", "a LUKS encrypted volume"),
    (0x200, b"LABELONE", "an LVM physical volume"),
    (
        0x1000,
        &[0xfc, 0x4e, 0x2b, 0xa9],
        "a member of a Linux RAID",
    ),
    (0xff6, b"SWAPSPACE2", "Linux swap"),
    (
        0x2_0000,
        &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0],
        "a member of a ZFS pool",
    ),
    (512, b"EFI PART", "a GPT partition table"),
    (4096, b"EFI PART", "a GPT partition table"),
    (
        510,
        &[0x55, 0xaa],
        "an MBR partition table or a boot sector",
    ),
];

/// What a device holds, by its first and last [`LOOKED_AT_BYTES`]; `None`: nothing.
#[must_use]
pub fn content_of(first: &[u8], last: &[u8]) -> Option<String> {
    store_of(first).or_else(|| other_of(first, last).map(str::to_owned))
}

/// Which device of which store it is, if it has a superblock.
fn store_of(first: &[u8]) -> Option<String> {
    let blocks = SUPERBLOCKS.iter().filter_map(|block| {
        let start = usize::try_from(*block).ok()? * BLOCK_BYTES as usize;
        Superblock::decode(first.get(start..)?).ok()
    });
    let Superblock {
        id,
        device,
        device_count,
        ..
    } = blocks.max_by_key(|it| it.sequence)?;
    Some(format!(
        "device {device} (of 0 to {}) of the Atlas store {id}",
        device_count - 1
    ))
}

fn other_of(first: &[u8], last: &[u8]) -> Option<&'static str> {
    let has = |(place, bytes, _): &&(usize, &[u8], &str)| {
        first
            .get(*place..)
            .is_some_and(|rest| rest.starts_with(bytes))
    };
    if let Some((_, _, name)) = SIGNATURES.iter().find(has) {
        return Some(name);
    }
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    let backup = |block: usize| {
        let at = last.len().checked_sub(block);
        at.is_some_and(|at| last[at..].starts_with(b"EFI PART"))
    };
    if backup(512) || backup(4096) {
        return Some("the backup of a GPT partition table");
    }
    (!is_zero(first) || !is_zero(last)).then_some("data of an unknown kind")
}

#[cfg(test)]
mod tests {
    use super::{LOOKED_AT_BYTES, SIGNATURES, content_of};
    use crate::{StoreId, Superblock};

    #[test]
    fn every_signature_is_found_at_its_place_only() {
        for (place, bytes, name) in SIGNATURES {
            let mut first = vec![0; LOOKED_AT_BYTES];
            first[place..place + bytes.len()].copy_from_slice(bytes);
            assert_eq!(content_of(&first, &[]).as_deref(), Some(name));
            first.rotate_right(1);
            let unknown = Some("data of an unknown kind");
            assert_eq!(content_of(&first, &[]).as_deref(), unknown, "{name}");
        }
    }

    #[test]
    fn a_superblock_says_which_device_of_which_store_it_is() {
        let superblock = Superblock {
            id: StoreId([0xab; 16]),
            device: 1,
            device_count: 3,
            device_blocks: 1000,
            area_blocks: 1,
            sequence: 5,
            catalogue_bytes: 100,
            catalogue_digest: [0; 32],
        };
        for place in [0, 65_536] {
            let mut first = vec![0; LOOKED_AT_BYTES];
            first[place..place + 4096].copy_from_slice(&superblock.encode());
            let text = content_of(&first, &[]).unwrap();
            let id = "abababababababababababababababab";
            assert_eq!(
                text,
                format!("device 1 (of 0 to 2) of the Atlas store {id}")
            );
            first[place + 100] ^= 1;
            assert_eq!(content_of(&first, &[]).as_deref(), Some("an Atlas store"));
        }
    }

    #[test]
    fn only_zeros_are_nothing() {
        let zeros = vec![0; 8192];
        assert_eq!(content_of(&zeros, &zeros), None);
        for place in [0, 1, 8191] {
            let mut bytes = zeros.clone();
            bytes[place] = 1;
            let unknown = Some("data of an unknown kind");
            assert_eq!(content_of(&bytes, &zeros).as_deref(), unknown);
            assert_eq!(content_of(&zeros, &bytes).as_deref(), unknown);
        }
        for block in [512, 4096] {
            let mut last = zeros.clone();
            last[8192 - block..][..8].copy_from_slice(b"EFI PART");
            let backup = Some("the backup of a GPT partition table");
            assert_eq!(content_of(&zeros, &last).as_deref(), backup);
        }
    }
}
