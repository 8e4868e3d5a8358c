//! The system calls that the standard library does not have: `openat2`, `statx`, `fstatfs`, `eventfd`,
//! `poll`, `sched_setscheduler`, and locks of open file descriptions.
//!
//! Each is wrapped so that callers cannot misuse it: they pass C strings and descriptors, and get
//! owned descriptors and plain numbers. It refuses numbers from the kernel that are out of range.
//! Bounds: no memory of its own.

#![allow(unsafe_code, reason = "UNSAFETY: system calls")]

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::fixed::FileSystemType;
use crate::{Attributes, FileTime, Metadata};

/// How a path is to be resolved and opened: `struct open_how` of `linux/openat2.h`, which `libc`
/// does not let others construct.
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// `openat2(2)`. `resolve` is a set of `RESOLVE_*`.
pub(crate) fn openat2(
    directory: BorrowedFd<'_>,
    name: &CStr,
    flags: libc::c_int,
    resolve: u64,
) -> io::Result<OwnedFd> {
    let flags = u64::try_from(flags).map_err(|_| io::ErrorKind::InvalidInput)?;
    let how = OpenHow {
        flags,
        mode: 0,
        resolve,
    };
    // SAFETY: the name is a C string and `how` is of the size said; the kernel writes to neither.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            directory.as_raw_fd(),
            name.as_ptr(),
            &raw const how,
            size_of::<OpenHow>(),
        )
    };
    let raw = RawFd::try_from(outcome).ok().filter(|&raw| raw >= 0);
    let raw = raw.ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Sets `SCHED_BATCH` for the calling thread, so that it does not preempt others when it wakes
/// (sched(7)). If the kernel refuses, there are more context switches.
pub(crate) fn set_sched_batch() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is the calling thread, and the kernel only reads the parameters.
    let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) };
}

/// The kind of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Regular,
    Directory,
    Other,
}

/// What `statx(2)` says of an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Status {
    pub(crate) kind: Kind,
    pub(crate) metadata: Metadata,
    pub(crate) attributes: Attributes,
    /// `STATX_ATTR_VERITY`, from a file system that has it.
    pub(crate) has_verity: bool,
}

/// The directory that relative paths begin at.
// SAFETY: `openat2` and its like take `AT_FDCWD` in the place of a descriptor; it is never closed.
pub(crate) const CURRENT_DIRECTORY: BorrowedFd<'static> =
    unsafe { BorrowedFd::borrow_raw(libc::AT_FDCWD) };

/// Which file it is, among all that exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub(crate) const fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.device,
            inode: metadata.inode,
        }
    }
}

fn device_of(status: &libc::statx) -> u64 {
    u64::from(status.stx_dev_major) << 32 | u64::from(status.stx_dev_minor)
}

/// Which file it is that a descriptor, also one with `O_PATH`, is of. Its file system is not waited for,
/// network file systems and FUSE included (`AT_STATX_DONT_SYNC`).
pub(crate) fn id_of(file: BorrowedFd<'_>) -> io::Result<FileId> {
    let status = statx(file, libc::AT_STATX_DONT_SYNC, libc::STATX_INO)?;
    Ok(FileId {
        device: device_of(&status),
        inode: status.stx_ino,
    })
}

/// `statx(2)` of an open file.
fn statx(file: BorrowedFd<'_>, flags: libc::c_int, mask: libc::c_uint) -> io::Result<libc::statx> {
    let mut buffer = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the name is an empty C string, and the kernel fills the buffer, which is a `statx`.
    let outcome = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | flags,
            mask,
            buffer.as_mut_ptr(),
        )
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed at first, then written by the kernel: numbers either way.
    Ok(unsafe { buffer.assume_init() })
}

/// The status of an open file. `direct`: whether the caller opened it with `O_DIRECT`.
pub(crate) fn stat(file: BorrowedFd<'_>, direct: bool) -> io::Result<Status> {
    let mask = libc::STATX_BASIC_STATS | libc::STATX_DIOALIGN;
    let status = statx(file, libc::AT_STATX_SYNC_AS_STAT, mask)?;
    let kind = match u32::from(status.stx_mode) & libc::S_IFMT {
        libc::S_IFREG => Kind::Regular,
        libc::S_IFDIR => Kind::Directory,
        _ => Kind::Other,
    };
    let says_alignment = status.stx_mask & libc::STATX_DIOALIGN != 0;
    let metadata = Metadata {
        size_bytes: status.stx_size,
        modified: file_time(status.stx_mtime),
        changed: file_time(status.stx_ctime),
        inode: status.stx_ino,
        device: device_of(&status),
        direct_offset_align_bytes: if says_alignment {
            status.stx_dio_offset_align
        } else {
            0
        },
        direct_memory_align_bytes: if says_alignment {
            status.stx_dio_mem_align
        } else {
            0
        },
        direct,
        content: None,
    };
    let attributes = Attributes {
        links: status.stx_nlink,
        mode: status.stx_mode.into(),
        user: status.stx_uid,
        group: status.stx_gid,
    };
    let verity = u64::from(libc::STATX_ATTR_VERITY.cast_unsigned());
    Ok(Status {
        kind,
        metadata,
        attributes,
        has_verity: status.stx_attributes & status.stx_attributes_mask & verity != 0,
    })
}

/// `fstatfs(2)`: the type of the file system that an open file is read from.
pub(crate) fn file_system_type(file: BorrowedFd<'_>) -> io::Result<FileSystemType> {
    let mut buffer = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the pointer is valid for the one `statfs` that the kernel writes.
    let outcome = unsafe { libc::fstatfs(file.as_raw_fd(), buffer.as_mut_ptr()) };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed at first, then written by the kernel: numbers either way.
    let status = unsafe { buffer.assume_init() };
    // The kernel's numbers have 32 bits; the C library's type has more of them, and a sign.
    let [a, b, c, d, ..] = status.f_type.to_le_bytes();
    Ok(FileSystemType(u32::from_le_bytes([a, b, c, d])))
}

fn file_time(time: libc::statx_timestamp) -> FileTime {
    FileTime {
        seconds: time.tv_sec,
        nanos: time.tv_nsec,
    }
}

/// `eventfd(2)`: a counter that is readable when it is not zero.
pub(crate) fn event_counter() -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Waits until the kernel's list of mounts has changed since it was read through `table`, or until
/// `end` is readable. Returns which of the two happened.
pub(crate) fn wait_for_mount(table: BorrowedFd<'_>, end: BorrowedFd<'_>) -> (bool, bool) {
    let wanted = |fd: BorrowedFd<'_>, events| libc::pollfd {
        fd: fd.as_raw_fd(),
        events,
        revents: 0,
    };
    let mut polled = [wanted(table, libc::POLLPRI), wanted(end, libc::POLLIN)];
    // SAFETY: an array of two valid `pollfd`, exclusively ours.
    let _ = unsafe { libc::poll(polled.as_mut_ptr(), 2, -1) };
    let [table, end] = polled.map(|polled| polled.revents != 0);
    (table, end)
}

/// A lock of an open file description (fcntl(2), `F_OFD_SETLK`) on a part of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lock {
    /// Others may have it, too.
    Shared,
    /// Nobody else has any.
    Exclusive,
    /// None.
    Unlocked,
}

fn flock_of(lock: Lock, start: u64, length: u64) -> io::Result<libc::flock> {
    let offset = |number: u64| i64::try_from(number).map_err(|_| io::ErrorKind::InvalidInput);
    let kind = match lock {
        Lock::Shared => libc::F_RDLCK,
        Lock::Exclusive => libc::F_WRLCK,
        Lock::Unlocked => libc::F_UNLCK,
    };
    // SAFETY: a structure of numbers, for which zeros are right; it may have fields for padding.
    let mut flock: libc::flock = unsafe { core::mem::zeroed() };
    let narrow = |number: libc::c_int| libc::c_short::try_from(number);
    flock.l_type = narrow(kind).map_err(|_| io::ErrorKind::InvalidInput)?;
    flock.l_whence = narrow(libc::SEEK_SET).map_err(|_| io::ErrorKind::InvalidInput)?;
    flock.l_start = offset(start)?;
    flock.l_len = offset(length)?;
    Ok(flock)
}

/// Takes or gives up a lock, without waiting; `false` if another open file description has one there.
pub(crate) fn set_lock(
    file: BorrowedFd<'_>,
    lock: Lock,
    start: u64,
    length: u64,
) -> io::Result<bool> {
    let flock = flock_of(lock, start, length)?;
    // SAFETY: the kernel reads the structure, which outlives the call.
    let outcome = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const flock) };
    if outcome == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

/// `BLKDISCARD`, `_IO(0x12, 119)` (linux/fs.h).
const BLKDISCARD: libc::Ioctl = 0x1277;

/// Has a block device forget a part of what it holds; what is read there afterwards is anything.
pub(crate) fn discard_blocks(device: BorrowedFd<'_>, start: u64, length: u64) -> io::Result<()> {
    let range = [start, length];
    // SAFETY: the kernel reads two numbers of 64 bits.
    let outcome = unsafe { libc::ioctl(device.as_raw_fd(), BLKDISCARD, range.as_ptr()) };
    if outcome == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Has a file give back the space of a part of it, which is zeros from then on.
pub(crate) fn punch_hole(file: BorrowedFd<'_>, start: u64, length: u64) -> io::Result<()> {
    let offset = |bytes: u64| {
        libc::off_t::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))
    };
    let (start, length) = (offset(start)?, offset(length)?);
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no memory is passed.
    let outcome = unsafe { libc::fallocate(file.as_raw_fd(), mode, start, length) };
    if outcome == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Which bytes of a part of a file another open file description has a lock on, if one has. Of several
/// locks it is any.
pub(crate) fn lock_of_another(
    file: BorrowedFd<'_>,
    part: Range<u64>,
) -> io::Result<Option<Range<u64>>> {
    let length = part.end.saturating_sub(part.start);
    let mut flock = flock_of(Lock::Exclusive, part.start, length)?;
    // SAFETY: the kernel reads the structure and writes to it; it is ours alone.
    let outcome = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut flock) };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    if libc::c_int::from(flock.l_type) == libc::F_UNLCK {
        return Ok(None);
    }
    let start = u64::try_from(flock.l_start).unwrap_or(0);
    // A length of 0 means that it has no end.
    let end = match u64::try_from(flock.l_len) {
        Ok(0) | Err(_) => u64::MAX,
        Ok(length) => start.saturating_add(length),
    };
    Ok(Some(start.max(part.start)..end.min(part.end)))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_kernels_structs_have_the_kernels_sizes() {
        // OPEN_HOW_SIZE_VER0 of linux/openat2.h.
        assert_eq!(size_of::<OpenHow>(), 24);
        assert_eq!(size_of::<libc::statx>(), 256);
    }

    #[test]
    fn kinds_and_metadata() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("five"), b"12345").unwrap();
        let root = std::fs::File::open(directory.path()).unwrap();
        let status = stat(root.as_fd(), false).unwrap();
        assert_eq!(status.kind, Kind::Directory);
        let file = openat2(root.as_fd(), c"five", libc::O_RDONLY, 0).unwrap();
        let status = stat(file.as_fd(), true).unwrap();
        let metadata = status.metadata;
        assert_eq!(
            (status.kind, metadata.size_bytes, metadata.direct),
            (Kind::Regular, 5, true)
        );
        assert_eq!(status.attributes.links, 1);
        assert_eq!(status.attributes.mode & libc::S_IFMT, libc::S_IFREG);
        assert!(metadata.modified.seconds > 1_500_000_000 && metadata.inode != 0);
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(stat(null.as_fd(), false).unwrap().kind, Kind::Other);
    }

    #[test]
    fn errors_are_the_kernels() {
        let root = std::fs::File::open("/").unwrap();
        let missing = openat2(root.as_fd(), c"no such file here", libc::O_RDONLY, 0);
        assert_eq!(missing.unwrap_err().raw_os_error(), Some(libc::ENOENT));
        let unknown = openat2(root.as_fd(), c".", libc::O_RDONLY, 1 << 60);
        assert_eq!(unknown.unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
