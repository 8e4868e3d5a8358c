//! The mounts at and beneath the served directory: which file system a look-up depends on.
//!
//! A network file system or one served by a process (NFS, FUSE) may stop answering, and every call
//! to it then blocks for good. So the worker asks only file systems of [`LOCAL_TYPES`], and in the
//! threads every mount has a [`DeviceId`] of its own.
//!
//! This parses the kernel's [`MOUNT_TABLE`] and refuses to ask any file system. Lines that it
//! cannot parse are skipped. Bounded by [`MOUNTS_MAX`]: further mounts have no device of their own.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::DeviceId;
use crate::fixed::READ_ONLY_NAMES;

/// The kernel's list of mounts in the mount namespace of the thread that reads it.
pub(crate) const MOUNT_TABLE: &str = "/proc/thread-self/mountinfo";

/// Most mounts beneath the directory with a device of their own. Servers have one for each disk.
pub(crate) const MOUNTS_MAX: usize = 64;

/// File systems that answer cached paths from memory and block on local disks only. Others are
/// asked by threads only.
const LOCAL_TYPES: [&[u8]; 20] = [
    b"bcachefs",
    b"btrfs",
    b"erofs",
    b"exfat",
    b"ext2",
    b"ext3",
    b"ext4",
    b"f2fs",
    b"hugetlbfs",
    b"iso9660",
    b"ntfs3",
    b"overlay",
    b"proc",
    b"ramfs",
    b"squashfs",
    b"tmpfs",
    b"udf",
    b"vfat",
    b"xfs",
    b"zfs",
];

/// What look-ups need to know of a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mount {
    pub(crate) device: DeviceId,
    /// Its file system is one of [`LOCAL_TYPES`].
    pub(crate) is_local: bool,
    /// Its file system is one of [`READ_ONLY_NAMES`].
    pub(crate) is_read_only_type: bool,
    /// Reads of its files may note their time.
    pub(crate) notes_reads: bool,
}

/// The mounts that paths beneath one directory may lead to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mounts {
    /// The mount that the directory itself is in.
    root: Mount,
    /// Names of mount points beneath it, the longest first, and their mounts.
    beneath: Vec<(Vec<u8>, Mount)>,
    /// Some mount beneath it is not local, or not in the table.
    is_mixed: bool,
}

impl Mounts {
    /// Without a mount table: nothing counts as local, and everything as one device.
    pub(crate) const UNKNOWN: Self = Self {
        root: Mount {
            device: DeviceId::UNKNOWN,
            is_local: false,
            is_read_only_type: false,
            notes_reads: true,
        },
        beneath: Vec::new(),
        is_mixed: true,
    };

    /// Reads the kernel's list for `directory`, an absolute path without symbolic links.
    pub(crate) fn read(directory: &Path) -> Self {
        let text = fs::read(MOUNT_TABLE).unwrap_or_default();
        Self::parse(&text, directory.as_os_str().as_bytes())
    }

    /// The mounts in `text` that matter to `directory`.
    pub(crate) fn parse(text: &[u8], directory: &[u8]) -> Self {
        let mut root: Option<(usize, Mount)> = None;
        let mut beneath: Vec<(Vec<u8>, Mount)> = Vec::new();
        for (point, mount) in text.split(|&byte| byte == b'\n').filter_map(parse_line) {
            if name_beneath(&point, directory).is_some() {
                // A later mount at the same depth hides the earlier one.
                if root.is_none_or(|(length, _)| length <= point.len()) {
                    root = Some((point.len(), mount));
                }
            } else if let Some(name) = name_beneath(directory, &point) {
                beneath.retain(|(known, _)| known != name);
                beneath.push((name.to_owned(), mount));
            }
        }
        let Some((_, root)) = root else {
            return Self::UNKNOWN;
        };
        let is_mixed = beneath.len() > MOUNTS_MAX || beneath.iter().any(|(_, m)| !m.is_local);
        beneath.sort_by_key(|(name, _)| core::cmp::Reverse(name.len()));
        beneath.truncate(MOUNTS_MAX);
        Self {
            root,
            beneath,
            is_mixed,
        }
    }

    /// The mount that the directory is in.
    pub(crate) const fn root(&self) -> Mount {
        self.root
    }

    /// The mount that `name` leads to if no symbolic link on the way leads to another.
    pub(crate) fn of(&self, name: &[u8]) -> Mount {
        let is_in = |(point, _): &&(Vec<u8>, Mount)| {
            name.strip_prefix(point.as_slice())
                .is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
        };
        let found = self.beneath.iter().find(is_in);
        found.map_or(self.root, |(_, mount)| *mount)
    }

    /// The mount points that can be asked without the risk of a file system that hangs.
    pub(crate) fn local_beneath(&self) -> impl Iterator<Item = &[u8]> {
        let may_hang = |name: &[u8]| {
            let mut mounts = self.beneath.iter();
            mounts.any(|(point, mount)| !mount.is_local && name_beneath(point, name).is_some())
        };
        let points = self.beneath.iter().map(|(point, _)| point.as_slice());
        points.filter(move |point| self.root.is_local && !may_hang(point))
    }

    /// Whether something is mounted there.
    pub(crate) fn is_point(&self, name: &[u8]) -> bool {
        self.beneath.iter().any(|(point, _)| point == name)
    }

    /// Whether a file of this device may be one of a file system that Linux cannot write. The list may
    /// be old, so it is only a reason to ask the file.
    pub(crate) fn may_be_read_only_type(&self, device: DeviceId) -> bool {
        let mut mounts = self.beneath.iter().map(|(_, mount)| mount);
        let is_it = |mount: &Mount| mount.is_read_only_type && mount.device == device;
        is_it(&self.root) || mounts.any(is_it)
    }

    /// Whether a file of this device is on a local mount, wherever links led. Of several mounts, some of which are not
    /// local, a device that the list does not have (a subvolume's) counts as not local.
    pub(crate) fn is_local(&self, device: DeviceId) -> bool {
        let is_it = |mount: &Mount| mount.is_local && mount.device == device;
        self.are_all_local()
            || is_it(&self.root)
            || self.beneath.iter().any(|(_, mount)| is_it(mount))
    }

    /// Whether reads of a file of this device may note their time: it is on a mount that does, or on none of the list.
    pub(crate) fn may_note_reads(&self, device: DeviceId) -> bool {
        let beneath = self.beneath.iter().map(|(_, mount)| mount);
        let mut of_device = beneath
            .chain([&self.root])
            .filter(|mount| mount.device == device)
            .peekable();
        of_device.peek().is_none() || of_device.any(|mount| mount.notes_reads)
    }

    /// Whether all mounts that a path beneath the directory may cross are local.
    pub(crate) const fn are_all_local(&self) -> bool {
        self.root.is_local && !self.is_mixed
    }
}

/// `inner` relative to `outer`, if it lies in it or is it. Both are absolute.
pub(crate) fn name_beneath<'a>(outer: &[u8], inner: &'a [u8]) -> Option<&'a [u8]> {
    let outer = outer.strip_suffix(b"/").unwrap_or(outer);
    match inner.strip_prefix(outer)? {
        [] => Some(&[]),
        [b'/', name @ ..] => Some(name),
        _ => None,
    }
}

/// Mount point and mount of a line as proc_pid_mountinfo(5) has it:
/// `36 35 98:0 /root /mount/point rw,noatime master:1 - ext4 /dev/root rw`.
fn parse_line(line: &[u8]) -> Option<(Vec<u8>, Mount)> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = fields.nth(2)?;
    let point = unescape(fields.nth(1)?);
    let mut options = fields.next()?.split(|&byte| byte == b',');
    // Any number of optional fields before the hyphen.
    let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
    let colon = device.iter().position(|&byte| byte == b':')?;
    let (major, minor) = (number(&device[..colon])?, number(&device[colon + 1..])?);
    let mount = Mount {
        device: DeviceId::new(major << 32 | minor),
        is_local: LOCAL_TYPES.contains(&kind),
        is_read_only_type: READ_ONLY_NAMES.contains(&kind),
        notes_reads: !options.any(|option| option == b"noatime" || option == b"ro"),
    };
    Some((point, mount))
}

fn number(digits: &[u8]) -> Option<u64> {
    let number: u32 = core::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(number.into())
}

/// The kernel writes space, tab, newline and backslash as `\` and three octal digits.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = match after {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] if byte == b'\\' => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        plain.push(octal.unwrap_or(byte));
        rest = if octal.is_some() { &after[3..] } else { after };
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 27 0:21 / /proc rw,relatime - proc proc rw\n\
        27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
        30 27 8:1 / /srv rw,relatime shared:7 - xfs /dev/sda1 rw\n\
        31 30 8:17 / /srv/www/disk\\0402 rw - xfs /dev/sdb1 rw\n\
        32 30 0:50 / /srv/www/far/nfs rw shared:1 master:2 - nfs4 host:/x rw\n\
        nonsense\n\
        33 30 8:33 / /srv/www2 rw - ext4 /dev/sdc1 rw\n";

    fn device(major: u64, minor: u64) -> DeviceId {
        DeviceId::new(major << 32 | minor)
    }

    #[test]
    fn a_name_belongs_to_the_deepest_mount_above_it() {
        let mounts = Mounts::parse(TABLE, b"/srv/www");
        assert_eq!(mounts.root().device, device(8, 1));
        for (name, expected, is_local) in [
            ("a", device(8, 1), true),
            ("disk 2", device(8, 17), true),
            ("disk 2/a", device(8, 17), true),
            ("disk 20/a", device(8, 1), true),
            ("disk", device(8, 1), true),
            ("far/a", device(8, 1), true),
            ("far/nfs", device(0, 50), false),
            ("far/nfs/a/b", device(0, 50), false),
            ("far/nfs2", device(8, 1), true),
        ] {
            let mount = mounts.of(name.as_bytes());
            assert_eq!(
                (mount.device, mount.is_local),
                (expected, is_local),
                "{name}"
            );
        }
        assert!(!mounts.are_all_local(), "one is NFS");
        for (of, is_local) in [
            (device(8, 1), true),
            (device(8, 17), true),
            (device(0, 50), false),
            (device(9, 9), false),
        ] {
            assert_eq!(mounts.is_local(of), is_local, "{of:?}");
        }
        let local = Mounts::parse(TABLE, b"/srv/www2");
        assert!(local.is_local(device(9, 9)), "there is no other");
        assert!(!Mounts::UNKNOWN.is_local(DeviceId::UNKNOWN));
    }

    #[test]
    fn what_is_mounted_beneath_a_mount_that_may_hang_is_not_asked() {
        let mut table = TABLE.to_vec();
        table.extend(b"34 32 8:49 / /srv/www/far/nfs/disk rw - ext4 /dev/sdd1 rw\n");
        table.extend(b"35 32 8:65 / /srv/www/far/nfs2 rw - ext4 /dev/sde1 rw\n");
        let mounts = Mounts::parse(&table, b"/srv/www");
        let mut points: Vec<&[u8]> = mounts.local_beneath().collect();
        points.sort_unstable();
        assert_eq!(points, [&b"disk 2"[..], b"far/nfs2"]);
        assert!(mounts.is_point(b"far/nfs/disk") && !mounts.is_point(b"far"));
    }

    #[test]
    fn file_systems_that_cannot_be_written_are_known_by_their_devices() {
        let text = b"27 1 254:0 / / ro - ext4 /dev/vda ro\n\
            30 27 7:1 / /d/a ro - erofs /dev/loop1 ro\n\
            31 27 7:2 / /d/b ro - squashfs /dev/loop2 ro\n\
            32 27 11:0 / /d/c ro - iso9660 /dev/sr0 ro\n\
            33 27 7:3 / /d/d ro - ext4 /dev/loop3 ro\n\
            34 27 0:9 / /d/e ro - overlay x ro\n";
        let mounts = Mounts::parse(text, b"/d");
        for (known, expected) in [
            (device(254, 0), false),
            (device(7, 1), true),
            (device(7, 2), true),
            (device(11, 0), true),
            (device(7, 3), false),
            (device(0, 9), false),
            (device(9, 9), false),
        ] {
            assert_eq!(mounts.may_be_read_only_type(known), expected, "{known:?}");
        }
        assert!(Mounts::parse(text, b"/d/a").may_be_read_only_type(device(7, 1)));
        assert!(!Mounts::UNKNOWN.may_be_read_only_type(DeviceId::UNKNOWN));
    }

    #[test]
    fn reads_are_noted_by_mounts_that_are_not_said_to_refuse_that() {
        let text = b"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
            30 27 8:1 / /d rw,nosuid,noatime shared:7 - ext4 /dev/sda1 rw\n\
            31 30 8:2 / /d/a ro,relatime - ext4 /dev/sda2 rw\n\
            32 30 8:3 / /d/b rw,nodiratime - ext4 /dev/sda3 rw\n\
            33 30 8:1 / /d/c rw - ext4 /dev/sda1 ro,noatime\n";
        let mounts = Mounts::parse(text, b"/d");
        for (name, expected) in [("f", false), ("a/f", false), ("b/f", true), ("c/f", true)] {
            assert_eq!(mounts.of(name.as_bytes()).notes_reads, expected, "{name}");
        }
        // One of the two mounts of the first does.
        for (of, expected) in [
            (device(8, 1), true),
            (device(8, 2), false),
            (device(8, 3), true),
            (device(9, 9), true),
        ] {
            assert_eq!(mounts.may_note_reads(of), expected, "{of:?}");
        }
        assert!(Mounts::UNKNOWN.root().notes_reads);
    }

    #[test]
    fn mounts_beneath_another_directory_are_left_out() {
        let mounts = Mounts::parse(TABLE, b"/srv/www2");
        assert_eq!(mounts.root().device, device(8, 33));
        assert!(mounts.beneath.is_empty() && mounts.are_all_local());
        // The root of all, and a directory whose name is the beginning of another's.
        assert!(!Mounts::parse(TABLE, b"/").are_all_local());
        assert_eq!(Mounts::parse(TABLE, b"/sr").root().device, device(254, 0));
    }

    #[test]
    fn the_last_mount_at_a_point_hides_earlier_ones() {
        let mut table = TABLE.to_vec();
        table.extend(b"40 30 0:60 / /srv/www/disk\\0402 rw - fuse.x x rw\n");
        assert_eq!(
            Mounts::parse(&table, b"/srv/www").of(b"disk 2/a").device,
            device(0, 60)
        );
        // The list has no order that would tell whether a mount over the directory itself hides
        // those beneath it.
        table.extend(b"41 30 0:61 / /srv/www rw - tmpfs x rw\n");
        let mounts = Mounts::parse(&table, b"/srv/www");
        assert_eq!(mounts.of(b"a").device, device(0, 61));
        assert!(!mounts.are_all_local());
    }

    #[test]
    fn without_the_list_nothing_is_local() {
        for text in [&b""[..], b"\n\n", b"a b c", b"1 2 x:y / / rw - ext4 a rw"] {
            assert_eq!(Mounts::parse(text, b"/srv"), Mounts::UNKNOWN);
        }
        assert!(!Mounts::UNKNOWN.root().is_local && !Mounts::UNKNOWN.are_all_local());
    }

    #[test]
    fn mounts_beyond_the_limit_have_no_device_of_their_own() {
        let table = |count: usize| {
            let mut text = b"27 1 254:0 / / rw - ext4 /dev/vda rw\n".to_vec();
            for disk in 0..count {
                text.extend(format!("30 27 8:{disk} / /d/{disk} rw - xfs d rw\n").bytes());
            }
            Mounts::parse(&text, b"/d")
        };
        assert!(table(MOUNTS_MAX).are_all_local());
        let more = table(MOUNTS_MAX + 1);
        assert!(!more.are_all_local());
        assert_eq!(more.beneath.len(), MOUNTS_MAX);
    }
}
