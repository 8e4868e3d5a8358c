//! Alignment and size limits of direct reads, asked of a descriptor's file system and device.
//!
//! It refuses everything but regular files and block devices, and blocks larger than a slot.
//! Runs at open only; the answers of `/sys` are cached for [`DEVICES_MAX`] devices.

use core::mem::MaybeUninit;
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};

use memory::SLOT_ALIGNMENT_BYTES;

use crate::{BLOCK_BYTES_MIN, DiskError, FileLimits, FileStatus, last_errno};

/// Devices whose answers are cached; further devices are asked each time.
const DEVICES_MAX: usize = 16;
/// Block of a file with `O_DIRECT` where the kernel (before 6.1) or the file system does not report
/// one: no file system in use has larger blocks than a page by default.
const BLOCK_BYTES_UNKNOWN: u32 = 4096;
/// Largest read where no block device can be asked (tmpfs, btrfs, overlay): what `io_uring` and
/// the file systems split by themselves without loss.
const READ_BYTES_UNKNOWN: u32 = 1 << 20;
/// `BLKGETSIZE64`, `_IOR(0x12, 114, size_t)`: the size of a block device, bytes. Not in `libc`.
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272;

/// The largest command of each device, as `/sys` reports it.
#[derive(Debug, Default)]
pub(super) struct Devices {
    read_bytes_max: Vec<(libc::dev_t, u32)>,
}

impl Devices {
    /// Limits of a file whose `stat` is `status`, for slots of `slot_bytes`.
    pub(super) fn ask(
        &mut self,
        file: BorrowedFd<'_>,
        status: &libc::stat,
        slot_bytes: u32,
    ) -> Result<FileLimits, DiskError> {
        let (size_bytes, block_bytes, device) = match status.st_mode & libc::S_IFMT {
            libc::S_IFREG => {
                let size_bytes = u64::try_from(status.st_size).unwrap_or(0);
                (size_bytes, ask_file_block(file)?, status.st_dev)
            }
            libc::S_IFBLK => (
                ask_device_size(file)?,
                ask_device_block(file)?,
                status.st_rdev,
            ),
            libc::S_IFDIR => return Err(DiskError::Io(libc::EISDIR)),
            _ => return Err(DiskError::Io(libc::EINVAL)),
        };
        self.limits(size_bytes, block_bytes, device, slot_bytes)
    }

    /// Limits of a regular file whose status is known. Asks `/sys` at most.
    pub(super) fn look_up(
        &mut self,
        status: &FileStatus,
        slot_bytes: u32,
    ) -> Result<FileLimits, DiskError> {
        let block_bytes = if status.direct {
            direct_block(
                status.direct_offset_align_bytes,
                status.direct_memory_align_bytes,
            )?
        } else {
            BLOCK_BYTES_MIN
        };
        let (major, minor) = status.device;
        let device = libc::makedev(major, minor);
        self.limits(status.size_bytes, block_bytes, device, slot_bytes)
    }

    fn limits(
        &mut self,
        size_bytes: u64,
        block_bytes: u32,
        device: libc::dev_t,
        slot_bytes: u32,
    ) -> Result<FileLimits, DiskError> {
        let block_bytes = block_bytes.max(BLOCK_BYTES_MIN);
        if !block_bytes.is_power_of_two() || block_bytes > slot_bytes {
            return Err(DiskError::Io(libc::EINVAL));
        }
        let read_bytes_max = self.read_bytes_max(device).min(slot_bytes);
        // At least a block, whatever /sys says.
        let read_bytes_max = (read_bytes_max / block_bytes).max(1) * block_bytes;
        Ok(FileLimits {
            size_bytes,
            block_bytes,
            read_bytes_max,
        })
    }

    fn read_bytes_max(&mut self, device: libc::dev_t) -> u32 {
        if let Some((_, bytes)) = self
            .read_bytes_max
            .iter()
            .find(|(known, _)| *known == device)
        {
            return *bytes;
        }
        let bytes = ask_command_bytes(device).unwrap_or(READ_BYTES_UNKNOWN);
        if self.read_bytes_max.len() < DEVICES_MAX {
            self.read_bytes_max.push((device, bytes));
        }
        bytes
    }
}

/// `fstat`. On an open inode of a local file system it takes no lock and never waits.
pub(super) fn status(file: BorrowedFd<'_>) -> Result<libc::stat, DiskError> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the pointer is valid for the one `stat` the kernel writes.
    let outcome = unsafe { libc::fstat(file.as_raw_fd(), status.as_mut_ptr()) };
    if outcome != 0 {
        return Err(last_error());
    }
    // SAFETY: the call succeeded, so the kernel has filled it.
    Ok(unsafe { status.assume_init() })
}

/// Alignment of offsets, lengths and addresses for reads of a regular file.
fn ask_file_block(file: BorrowedFd<'_>) -> Result<u32, DiskError> {
    // SAFETY: takes and returns plain numbers.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(last_error());
    }
    if flags & libc::O_DIRECT == 0 {
        // Reads through the page cache need no alignment.
        return Ok(BLOCK_BYTES_MIN);
    }
    let mut status = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is a C string, and the pointer is valid for the one `statx` written.
    let outcome = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            status.as_mut_ptr(),
        )
    };
    if outcome != 0 {
        return Ok(BLOCK_BYTES_UNKNOWN);
    }
    // SAFETY: it was zeroed, which is a valid `statx`, and then perhaps filled.
    let status = unsafe { status.assume_init() };
    if status.stx_mask & libc::STATX_DIOALIGN == 0 {
        return Ok(BLOCK_BYTES_UNKNOWN);
    }
    direct_block(status.stx_dio_offset_align, status.stx_dio_mem_align)
}

/// The block of direct reads with these alignments; zero: the file system does not say.
fn direct_block(offset_align: u32, memory_align: u32) -> Result<u32, DiskError> {
    if offset_align == 0 {
        return Ok(BLOCK_BYTES_UNKNOWN);
    }
    if memory_align > SLOT_ALIGNMENT_BYTES {
        return Err(DiskError::Io(libc::EINVAL));
    }
    // The rest of a partial read starts at the same distance into the slot as into the file. So the
    // larger alignment must hold for both.
    Ok(offset_align.max(memory_align))
}

fn ask_device_size(file: BorrowedFd<'_>) -> Result<u64, DiskError> {
    let mut size_bytes = 0u64;
    // SAFETY: BLKGETSIZE64 writes one u64.
    let outcome = unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut size_bytes) };
    if outcome != 0 {
        Err(last_error())
    } else {
        Ok(size_bytes)
    }
}

fn ask_device_block(file: BorrowedFd<'_>) -> Result<u32, DiskError> {
    let mut block_bytes: libc::c_int = 0;
    // SAFETY: BLKSSZGET writes one int.
    let outcome = unsafe { libc::ioctl(file.as_raw_fd(), libc::BLKSSZGET, &raw mut block_bytes) };
    if outcome != 0 {
        return Err(last_error());
    }
    u32::try_from(block_bytes).map_err(|_| DiskError::Io(libc::EINVAL))
}

/// The largest command the kernel sends this device: `max_sectors_kb`, which it keeps at or below
/// `max_hw_sectors_kb`. A partition has no queue of its own; its parent directory's is meant.
fn ask_command_bytes(device: libc::dev_t) -> Option<u32> {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let base = format!("/sys/dev/block/{major}:{minor}");
    let read = |queue: &str| fs::read_to_string(format!("{base}/{queue}/max_sectors_kb")).ok();
    let kibibytes = read("queue").or_else(|| read("../queue"))?;
    let bytes = kibibytes.trim().parse::<u32>().ok()?.saturating_mul(1024);
    (bytes > 0).then_some(bytes)
}

fn last_error() -> DiskError {
    DiskError::Io(last_errno())
}
