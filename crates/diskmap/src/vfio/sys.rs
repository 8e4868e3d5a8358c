//! The ioctls of VFIO that this room uses (linux/vfio.h; Documentation/driver-api/vfio.rst), and the
//! structures they take.
//!
//! Errors are bare errnos: the callers know what failed. What the kernel answers with a chain of
//! capabilities is kept as bytes ([`Info`]) and parsed by safe code. It refuses nothing.

#![allow(
    unsafe_code,
    reason = "UNSAFETY: ioctls, and one that lets a device access memory"
)]

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::last_errno;

/// Number 100 of type `;` (`VFIO_BASE`), and those after it: they carry no size or direction.
const BASE: libc::Ioctl = 0x3b64;
const GET_API_VERSION: libc::Ioctl = BASE;
const CHECK_EXTENSION: libc::Ioctl = BASE + 1;
const SET_IOMMU: libc::Ioctl = BASE + 2;
const GROUP_GET_STATUS: libc::Ioctl = BASE + 3;
const GROUP_SET_CONTAINER: libc::Ioctl = BASE + 4;
const GROUP_GET_DEVICE_FD: libc::Ioctl = BASE + 6;
const DEVICE_GET_INFO: libc::Ioctl = BASE + 7;
const DEVICE_GET_REGION_INFO: libc::Ioctl = BASE + 8;
const DEVICE_RESET: libc::Ioctl = BASE + 11;
const IOMMU_GET_INFO: libc::Ioctl = BASE + 12;
const IOMMU_MAP_DMA: libc::Ioctl = BASE + 13;
const IOMMU_UNMAP_DMA: libc::Ioctl = BASE + 14;

/// `VFIO_API_VERSION`.
pub(super) const API_VERSION: i32 = 0;
/// `VFIO_TYPE1v2_IOMMU`: mappings are unmapped as they were mapped.
pub(super) const TYPE1_V2: libc::c_ulong = 3;
/// `VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE`.
const MAP_READ_WRITE: u32 = 3;

/// Most bytes that the kernel may answer with: 250 ranges of addresses.
const INFO_BYTES: usize = 4096;

/// What the kernel answers to a question about a device, a region or an IOMMU: a structure whose first
/// word is its size, and its capabilities behind it.
#[derive(Clone, Debug)]
pub(super) struct Info(Box<[u64; INFO_BYTES / 8]>);

impl Info {
    fn new() -> Self {
        let mut words = Box::new([0; INFO_BYTES / 8]);
        // `argsz`, the lower half of the first eight bytes; the upper half is `flags`.
        words[0] = INFO_BYTES as u64;
        Self(words)
    }

    /// All of it, as bytes.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }
}

/// `struct vfio_group_status`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct GroupStatus {
    argsz: u32,
    flags: u32,
}

/// `struct vfio_iommu_type1_dma_map`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct DmaMap {
    argsz: u32,
    flags: u32,
    vaddr: u64,
    iova: u64,
    size: u64,
}

/// `struct vfio_iommu_type1_dma_unmap`, without data behind it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct DmaUnmap {
    argsz: u32,
    flags: u32,
    iova: u64,
    size: u64,
}

/// Whether this process may read and write a file, by its effective user.
pub(super) fn check_access(path: &Path) -> Result<(), i32> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| libc::EINVAL)?;
    let mode = libc::R_OK | libc::W_OK;
    // SAFETY: the kernel reads a string that ends with a NUL.
    check(unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), mode, libc::AT_EACCESS) })
        .map(drop)
}

/// Version of the kernel's interface.
pub(super) fn api_version(container: BorrowedFd<'_>) -> Result<i32, i32> {
    with_number(container, GET_API_VERSION, 0)
}

/// Whether the kernel has an IOMMU driver of this kind.
pub(super) fn has_extension(
    container: BorrowedFd<'_>,
    extension: libc::c_ulong,
) -> Result<bool, i32> {
    with_number(container, CHECK_EXTENSION, extension).map(|answer| answer > 0)
}

/// Chooses the kind of the container's IOMMU, once it has a group.
pub(super) fn set_iommu(container: BorrowedFd<'_>, kind: libc::c_ulong) -> Result<(), i32> {
    with_number(container, SET_IOMMU, kind).map(drop)
}

/// Resets the function of a device; waits for the reset.
pub(super) fn reset(device: BorrowedFd<'_>) -> Result<(), i32> {
    with_number(device, DEVICE_RESET, 0).map(drop)
}

fn with_number(
    descriptor: BorrowedFd<'_>,
    request: libc::Ioctl,
    number: libc::c_ulong,
) -> Result<i32, i32> {
    // SAFETY: the requests that come here take a number, or nothing, and no pointer.
    check(unsafe { libc::ioctl(descriptor.as_raw_fd(), request, number) })
}

/// The flags of a group.
pub(super) fn group_flags(group: BorrowedFd<'_>) -> Result<u32, i32> {
    let mut status = GroupStatus {
        argsz: size_of_u32::<GroupStatus>(),
        flags: 0,
    };
    // SAFETY: the kernel reads and writes one `GroupStatus`, which the pointer is valid for.
    check(unsafe { libc::ioctl(group.as_raw_fd(), GROUP_GET_STATUS, &raw mut status) })?;
    Ok(status.flags)
}

/// Adds a group to a container.
pub(super) fn set_container(group: BorrowedFd<'_>, container: BorrowedFd<'_>) -> Result<(), i32> {
    let number: RawFd = container.as_raw_fd();
    // SAFETY: the kernel reads one int.
    check(unsafe { libc::ioctl(group.as_raw_fd(), GROUP_SET_CONTAINER, &raw const number) })
        .map(drop)
}

/// Opens a device of a group by its name.
pub(super) fn device(group: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, i32> {
    // SAFETY: the kernel reads a string that ends with a NUL.
    let raw = check(unsafe { libc::ioctl(group.as_raw_fd(), GROUP_GET_DEVICE_FD, name.as_ptr()) })?;
    // SAFETY: the kernel has just made it, and nobody else has its number.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// What the kernel says of a device.
pub(super) fn device_info(device: BorrowedFd<'_>) -> Result<Info, i32> {
    ask(device, DEVICE_GET_INFO, Info::new())
}

/// What the kernel says of a region of a device.
pub(super) fn region_info(device: BorrowedFd<'_>, index: u32) -> Result<Info, i32> {
    let mut info = Info::new();
    // The lower half of the second eight bytes.
    info.0[1] = index.into();
    ask(device, DEVICE_GET_REGION_INFO, info)
}

/// What the kernel says of the container's IOMMU.
pub(super) fn iommu_info(container: BorrowedFd<'_>) -> Result<Info, i32> {
    ask(container, IOMMU_GET_INFO, Info::new())
}

fn ask(descriptor: BorrowedFd<'_>, request: libc::Ioctl, mut info: Info) -> Result<Info, i32> {
    let target = info.0.as_mut_ptr();
    // SAFETY: the kernel reads and writes as many bytes as the first word says, which are all `Info`'s.
    check(unsafe { libc::ioctl(descriptor.as_raw_fd(), request, target) })?;
    Ok(info)
}

/// Lets the devices of a container read and write memory of this process, at a bus address. The kernel
/// pins its pages until [`unmap`].
///
/// # Safety
/// The memory is mapped, and devices may write to it whenever they like: no reference to what they may
/// write exists until `unmap`.
pub(super) unsafe fn map(
    container: BorrowedFd<'_>,
    memory: *mut u8,
    bus_address: u64,
    length_bytes: u64,
) -> Result<(), i32> {
    let map = DmaMap {
        argsz: size_of_u32::<DmaMap>(),
        flags: MAP_READ_WRITE,
        vaddr: memory.expose_provenance() as u64,
        iova: bus_address,
        size: length_bytes,
    };
    // SAFETY: the kernel reads one `DmaMap`; what devices do to the memory is the caller's promise.
    check(unsafe { libc::ioctl(container.as_raw_fd(), IOMMU_MAP_DMA, &raw const map) }).map(drop)
}

/// Ends the access of all devices to what [`map`] was called for; how many bytes that is.
pub(super) fn unmap(
    container: BorrowedFd<'_>,
    bus_address: u64,
    length_bytes: u64,
) -> Result<u64, i32> {
    let mut unmap = DmaUnmap {
        argsz: size_of_u32::<DmaUnmap>(),
        flags: 0,
        iova: bus_address,
        size: length_bytes,
    };
    // SAFETY: the kernel reads and writes one `DmaUnmap`. Devices lose access to memory, nothing else.
    check(unsafe { libc::ioctl(container.as_raw_fd(), IOMMU_UNMAP_DMA, &raw mut unmap) })?;
    Ok(unmap.size)
}

fn size_of_u32<T>() -> u32 {
    u32::try_from(size_of::<T>()).expect("invariant: a few words")
}

fn check(result: libc::c_int) -> Result<i32, i32> {
    if result < 0 {
        return Err(last_errno());
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn structures_are_laid_out_as_the_kernel_has_them() {
        assert_eq!(size_of::<GroupStatus>(), 8);
        assert_eq!(offset_of!(GroupStatus, flags), 4);
        assert_eq!(size_of::<DmaMap>(), 32);
        assert_eq!(offset_of!(DmaMap, vaddr), 8);
        assert_eq!(offset_of!(DmaMap, iova), 16);
        assert_eq!(offset_of!(DmaMap, size), 24);
        assert_eq!(size_of::<DmaUnmap>(), 24);
        assert_eq!(offset_of!(DmaUnmap, iova), 8);
        assert_eq!(offset_of!(DmaUnmap, size), 16);
    }

    #[test]
    fn requests_have_the_numbers_of_the_kernel_s_header() {
        let all = [
            GROUP_GET_STATUS,
            GROUP_SET_CONTAINER,
            GROUP_GET_DEVICE_FD,
            DEVICE_GET_INFO,
            DEVICE_GET_REGION_INFO,
            DEVICE_RESET,
            IOMMU_GET_INFO,
            IOMMU_MAP_DMA,
            IOMMU_UNMAP_DMA,
        ];
        let expected = [
            0x3b67, 0x3b68, 0x3b6a, 0x3b6b, 0x3b6c, 0x3b6f, 0x3b70, 0x3b71, 0x3b72,
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn a_question_says_how_much_may_be_answered() {
        let bytes = Info::new().bytes();
        assert_eq!(bytes.len(), INFO_BYTES);
        assert_eq!(bytes[..8], [0, 16, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn errors_are_those_of_the_kernel() {
        use std::os::fd::AsFd as _;
        let null = std::fs::File::open("/dev/null").expect("always there");
        assert_eq!(group_flags(null.as_fd()), Err(libc::ENOTTY));
        assert_eq!(unmap(null.as_fd(), 0, 4096), Err(libc::ENOTTY));
        assert_eq!(iommu_info(null.as_fd()).unwrap_err(), libc::ENOTTY);
        assert_eq!(api_version(null.as_fd()), Err(libc::ENOTTY));
    }
}
