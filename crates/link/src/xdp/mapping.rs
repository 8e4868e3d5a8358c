//! Memory shared with the kernel: the rings of a socket, the cells its frames are in, and slots.
//!
//! It refuses to lend the bytes: they are copied in and out, so no reference is ever formed to what the
//! kernel may write. Slots are the exception: their pages are mapped a second time, in place of an
//! arena's, which alone accesses them there. It refuses a file of another process whose size is not what that says, since
//! pages beyond a file's end cannot be accessed. Bound: the bytes it was made with.
#![allow(
    unsafe_code,
    reason = "UNSAFETY: maps memory that the kernel shares, and copies in and out of it"
)]

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use crate::sys;

const READ_AND_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Pages of ours, mapped until it is dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the pages are no thread's own, and their address is used through this alone. Where slots are lent, an arena accesses
// some of the pages at an address of its own, which this leaves alone; the kernel and another process access them, too, and
// every access copies or is atomic.
unsafe impl Send for Mapping {}

impl Mapping {
    /// New pages that hold zeros.
    #[cfg(test)]
    pub(super) fn anonymous(bytes: usize) -> Result<Self, i32> {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        Self::map(bytes, (kind, READ_AND_WRITE), -1, 0)
    }

    /// New pages that hold zeros, and the descriptor of a file in memory that they are.
    pub(super) fn of_file(bytes: usize) -> Result<(Self, OwnedFd), i32> {
        let file = sys::memory_file(bytes)?;
        let mapping = Self::of_descriptor(file.as_fd(), 0, bytes)?;
        Ok((mapping, file))
    }

    /// All pages of a file that another process has made ([`Mapping::of_file`]).
    ///
    /// # Errors
    /// `EPROTO` if it is no file of this size; the errno of mapping it.
    pub(super) fn of_whole_file(file: BorrowedFd<'_>, bytes: usize) -> Result<Self, i32> {
        let metadata = file.try_clone_to_owned().map(File::from);
        let metadata = metadata.and_then(|file| file.metadata());
        let metadata = metadata.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
        if !metadata.is_file() || metadata.len() != bytes as u64 {
            return Err(libc::EPROTO);
        }
        Self::of_descriptor(file, 0, bytes)
    }

    /// Pages that a descriptor offers at `offset`.
    pub(super) fn of_descriptor(
        fd: BorrowedFd<'_>,
        offset: libc::off_t,
        bytes: usize,
    ) -> Result<Self, i32> {
        let kind = (libc::MAP_SHARED, READ_AND_WRITE);
        Self::map(bytes, kind, fd.as_raw_fd(), offset)
    }

    /// The same of pages that may only be read.
    pub(super) fn to_read(
        fd: BorrowedFd<'_>,
        offset: libc::off_t,
        bytes: usize,
    ) -> Result<Self, i32> {
        let kind = (libc::MAP_SHARED, libc::PROT_READ);
        Self::map(bytes, kind, fd.as_raw_fd(), offset)
    }

    fn map(
        bytes: usize,
        (kind, protection): (i32, i32),
        fd: i32,
        offset: libc::off_t,
    ) -> Result<Self, i32> {
        let (place, flags) = (std::ptr::null_mut(), kind | libc::MAP_POPULATE);
        // SAFETY: a new mapping at an address the kernel chooses; nothing of ours is there.
        let start = unsafe { libc::mmap(place, bytes, protection, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(sys::last_errno());
        }
        Ok(Self {
            start: NonNull::new(start.cast()).expect("invariant: mmap does not map 0"),
            bytes,
        })
    }

    /// Address of the first byte.
    pub(super) fn address(&self) -> usize {
        self.start.as_ptr().addr()
    }

    /// How many bytes there are.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// A pointer to an aligned `T` inside.
    ///
    /// # Panics
    /// If it would not be inside, or not be aligned.
    pub(super) fn pointer<T>(&self, offset: usize) -> NonNull<T> {
        let is_inside = self.has(offset, size_of::<T>());
        assert!(
            is_inside && offset.is_multiple_of(align_of::<T>()),
            "byte {offset} of {} shared bytes",
            self.bytes
        );
        // SAFETY: inside the mapping, as was just asserted.
        unsafe { self.start.add(offset) }.cast()
    }

    /// Copies bytes out; `false` if they are not all inside.
    pub(super) fn copy_out(&self, offset: usize, to: &mut [u8]) -> bool {
        if !self.has(offset, to.len()) {
            return false;
        }
        // SAFETY: inside the mapping.
        let source = unsafe { self.start.add(offset) };
        let (bytes, target) = (to.len(), NonNull::from(to).cast());
        // SAFETY: both are good for the length of `to`, which is memory of its own. Who calls knows
        // that the kernel does not write these bytes now.
        unsafe { source.copy_to_nonoverlapping(target, bytes) };
        true
    }

    /// Copies bytes in; `false` if there is no room for all.
    pub(super) fn copy_in(&mut self, offset: usize, from: &[u8]) -> bool {
        if !self.has(offset, from.len()) {
            return false;
        }
        // SAFETY: inside the mapping.
        let target = unsafe { self.start.add(offset) };
        // SAFETY: both are good for the length of `from`, which is memory of its own. Who calls knows
        // that the kernel does not access these bytes now.
        unsafe { target.copy_from_nonoverlapping(NonNull::from(from).cast(), from.len()) };
        true
    }

    fn has(&self, offset: usize, bytes: usize) -> bool {
        offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.bytes)
    }
}

/// Puts pages of a file in memory, from `offset` on, in place of those at `address`.
///
/// # Safety
/// The pages are the caller's to replace: they are mapped, and no reference covers their bytes.
pub(super) unsafe fn map_over(
    address: *mut u8,
    bytes: usize,
    file: BorrowedFd<'_>,
    offset: usize,
) -> Result<(), i32> {
    let protection = READ_AND_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE;
    let offset = libc::off_t::try_from(offset).map_err(|_| libc::EINVAL)?;
    let (place, fd) = (address.cast(), file.as_raw_fd());
    // SAFETY: replaces pages of the caller's, by pages that are as good.
    let mapped = unsafe { libc::mmap(place, bytes, protection, flags, fd, offset) };
    if mapped == libc::MAP_FAILED {
        return Err(sys::last_errno());
    }
    Ok(())
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`; pointers into it are used only by what owns it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::{Mapping, map_over};

    #[test]
    fn bytes_are_copied_up_to_the_end_and_not_beyond() {
        let mut pages = Mapping::anonymous(4_096).unwrap();
        assert!(pages.copy_in(4_094, &[7, 8]));
        assert!(!pages.copy_in(4_095, &[9, 9]) && !pages.copy_in(usize::MAX, &[9]));
        let mut bytes = [0; 2];
        assert!(pages.copy_out(4_094, &mut bytes));
        assert_eq!(bytes, [7, 8]);
        assert!(!pages.copy_out(4_095, &mut bytes) && !pages.copy_out(usize::MAX, &mut bytes));
        assert_eq!(bytes, [7, 8]);
    }

    #[test]
    fn pages_of_a_file_are_the_same_in_both_places() {
        let (mut pages, file) = Mapping::of_file(8_192).unwrap();
        let other = Mapping::anonymous(4_096).unwrap();
        let place = other.pointer::<u8>(0).as_ptr();
        // SAFETY: the pages of `other`, of which no reference exists.
        unsafe { map_over(place, 4_096, file.as_fd(), 4_096) }.unwrap();
        assert!(pages.copy_in(4_096, &[1, 2, 3]));
        let mut bytes = [0; 3];
        assert!(other.copy_out(0, &mut bytes));
        assert_eq!(bytes, [1, 2, 3]);
        // SAFETY: the same.
        let refused = unsafe { map_over(place, 4_096, file.as_fd(), 1) };
        assert_eq!(refused, Err(libc::EINVAL));
    }

    #[test]
    fn a_file_of_another_size_and_what_is_no_file_is_not_mapped() {
        let (mut pages, file) = Mapping::of_file(8_192).unwrap();
        let mut other = Mapping::of_whole_file(file.as_fd(), 8_192).unwrap();
        assert!(pages.copy_in(8_191, &[5]) && other.copy_in(0, &[6]));
        let mut byte = [0];
        assert!(other.copy_out(8_191, &mut byte) && byte == [5]);
        for bytes in [0, 4_096, 8_191, 12_288] {
            let refused = Mapping::of_whole_file(file.as_fd(), bytes);
            assert_eq!(refused.map(drop), Err(libc::EPROTO), "{bytes}");
        }
        let device = std::fs::File::open("/dev/zero").unwrap();
        let refused = Mapping::of_whole_file(device.as_fd(), 0);
        assert_eq!(refused.map(drop), Err(libc::EPROTO));
    }

    #[test]
    #[should_panic(expected = "byte 4093 of 4096 shared bytes")]
    fn a_pointer_outside_is_a_programming_error() {
        let _ = Mapping::anonymous(4_096).unwrap().pointer::<u8>(4_095);
        let _ = Mapping::anonymous(4_096).unwrap().pointer::<u32>(4_093);
    }
}
