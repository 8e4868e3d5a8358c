//! Files whose content cannot change while they are open, so that nobody has to look whether it did.
//!
//! Two kinds of files are known to be such, and no others: why, and what does not count, is in
//! `docs/develop/decisions/0014-when-status-is-not-compared.md`.
//!
//! - Files with fs-verity of a file system that implements it.
//! - Files of file systems that Linux cannot write.
//!
//! It refuses to believe mount options, permissions and the immutable attribute: all of them can be
//! changed while the file is open. Pure; no memory of its own.

/// `f_type` of statfs(2): which driver the file belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileSystemType(pub(crate) u32);

const EXT4: FileSystemType = FileSystemType(0xef53);
const F2FS: FileSystemType = FileSystemType(0xf2f5_2010);
const BTRFS: FileSystemType = FileSystemType(0x9123_683e);
const EROFS: FileSystemType = FileSystemType(0xe0f5_e1e2);
const SQUASHFS: FileSystemType = FileSystemType(0x7371_7368);
const ISO9660: FileSystemType = FileSystemType(0x9660);

/// The file systems that Linux cannot write, as the mount table calls them.
pub(crate) const READ_ONLY_NAMES: [&[u8]; 3] = [b"erofs", b"squashfs", b"iso9660"];

/// Whether the content of an open file cannot change. `has_verity` is `STATX_ATTR_VERITY`.
pub(crate) fn is_fixed(kind: FileSystemType, has_verity: bool) -> bool {
    match kind {
        EROFS | SQUASHFS | ISO9660 => true,
        // Not overlayfs, which shows the attribute of a lower file and reads the upper one as soon
        // as there is one.
        EXT4 | F2FS | BTRFS => has_verity,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OVERLAYFS: FileSystemType = FileSystemType(0x794c_7630);
    const FUSE: FileSystemType = FileSystemType(0x6573_5546);
    const XFS: FileSystemType = FileSystemType(0x5846_5342);
    const TMPFS: FileSystemType = FileSystemType(0x0102_1994);
    const NFS: FileSystemType = FileSystemType(0x6969);

    #[test]
    fn what_linux_cannot_write_is_fixed() {
        for kind in [EROFS, SQUASHFS, ISO9660] {
            assert!(is_fixed(kind, false) && is_fixed(kind, true), "{kind:?}");
        }
    }

    #[test]
    fn verity_counts_only_where_the_file_system_implements_it() {
        for kind in [EXT4, F2FS, BTRFS] {
            assert!(is_fixed(kind, true), "{kind:?}");
            assert!(!is_fixed(kind, false), "{kind:?}");
        }
        for kind in [OVERLAYFS, FUSE, XFS, TMPFS, NFS, FileSystemType(0)] {
            assert!(!is_fixed(kind, true), "{kind:?}");
            assert!(!is_fixed(kind, false), "{kind:?}");
        }
    }
}
