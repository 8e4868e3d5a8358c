//! Memory that a device shares: its registers, or memory of ours that it may read and write.
//!
//! It is read and written by volatile copies, a word at a time; no reference to it is ever formed. It
//! refuses accesses outside it, by assertion. Bounded by its length.

#![allow(
    unsafe_code,
    reason = "UNSAFETY: maps registers and memory that a device shares, and copies to and from them"
)]

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;

use crate::last_errno;

/// Size of a page: memory begins and ends where pages do.
const PAGE_BYTES: usize = 4096;

/// A mapping, unmapped when it is dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    length_bytes: usize,
}

// SAFETY: the mapping is not tied to the thread that made it.
unsafe impl Send for Mapping {}
// SAFETY: all access is by volatile loads and stores of aligned words, and by copies whose users
// expect the device to change the bytes meanwhile. Copies into memory need `&mut`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps registers of a device.
    pub(super) fn registers(
        file: &File,
        offset_bytes: u64,
        length_bytes: usize,
    ) -> Result<Self, i32> {
        let offset = libc::off_t::try_from(offset_bytes).map_err(|_| libc::EOVERFLOW)?;
        Self::map(length_bytes, libc::MAP_SHARED, file.as_raw_fd(), offset)
    }

    /// Maps zeroes, in pages that exist and that no child process gets: a page that the device knows
    /// must not be copied on write.
    pub(super) fn memory(length_bytes: usize) -> Result<Self, i32> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        let length_bytes = length_bytes.next_multiple_of(PAGE_BYTES);
        let mapping = Self::map(length_bytes, flags, -1, 0)?;
        let start = mapping.base.as_ptr().cast();
        // SAFETY: the range is our own mapping; the advice does not change what it holds.
        let outcome = unsafe { libc::madvise(start, length_bytes, libc::MADV_DONTFORK) };
        if outcome == 0 {
            Ok(mapping)
        } else {
            Err(last_errno())
        }
    }

    fn map(
        length_bytes: usize,
        flags: libc::c_int,
        file: libc::c_int,
        offset: libc::off_t,
    ) -> Result<Self, i32> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length_bytes,
                protection,
                flags,
                file,
                offset,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(last_errno());
        }
        let base = NonNull::new(base.cast()).ok_or(libc::ENOMEM)?;
        Ok(Self { base, length_bytes })
    }

    pub(super) fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    /// Where it begins.
    pub(super) fn address(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Loads 32 bits.
    ///
    /// # Panics
    /// If they are not aligned, or not in it.
    pub(super) fn load_u32(&self, offset_bytes: usize) -> u32 {
        let place = self.place(offset_bytes, 4).cast::<u32>();
        // SAFETY: `place` checked that the word is aligned and in the mapping.
        unsafe { place.read_volatile() }
    }

    /// Stores 32 bits.
    ///
    /// # Panics
    /// If they are not aligned, or not in it.
    pub(super) fn store_u32(&self, offset_bytes: usize, value: u32) {
        let place = self.place(offset_bytes, 4).cast::<u32>();
        // SAFETY: as in `load_u32`. Only registers are stored to by a shared reference.
        unsafe { place.write_volatile(value) };
    }

    /// Copies bytes out, by words of eight bytes where there are.
    ///
    /// # Panics
    /// If they do not begin at a multiple of eight, or are not in it.
    pub(super) fn copy_out(&self, offset_bytes: usize, bytes: &mut [u8]) {
        let start = self.range(offset_bytes, bytes.len());
        for (word, at) in bytes.chunks_mut(8).zip((0..).step_by(8)) {
            let place = start.wrapping_add(at);
            if let Ok(word) = <&mut [u8; 8]>::try_from(&mut *word) {
                // SAFETY: `range` checked that it is in the mapping, and where it begins.
                let value = unsafe { place.cast::<u64>().read_volatile() };
                *word = value.to_ne_bytes();
                continue;
            }
            for (index, byte) in word.iter_mut().enumerate() {
                // SAFETY: as above.
                *byte = unsafe { place.wrapping_add(index).read_volatile() };
            }
        }
    }

    /// Copies bytes in, by words of eight bytes where there are.
    ///
    /// # Panics
    /// If they do not begin at a multiple of eight, or are not in it.
    pub(super) fn copy_in(&mut self, offset_bytes: usize, bytes: &[u8]) {
        let start = self.range(offset_bytes, bytes.len());
        for (word, at) in bytes.chunks(8).zip((0..).step_by(8)) {
            let place = start.wrapping_add(at);
            if let Ok(word) = <[u8; 8]>::try_from(word) {
                // SAFETY: `range` checked that it is in the mapping, and where it begins.
                unsafe { place.cast::<u64>().write_volatile(u64::from_ne_bytes(word)) };
                continue;
            }
            for (index, byte) in word.iter().enumerate() {
                // SAFETY: as above.
                unsafe { place.wrapping_add(index).write_volatile(*byte) };
            }
        }
    }

    /// Where a word is.
    fn place(&self, offset_bytes: usize, width_bytes: usize) -> *mut u8 {
        assert!(
            offset_bytes.is_multiple_of(width_bytes)
                && offset_bytes < self.length_bytes
                && width_bytes <= self.length_bytes - offset_bytes,
            "{width_bytes} bytes at {offset_bytes} of {}",
            self.length_bytes
        );
        self.base.as_ptr().wrapping_add(offset_bytes)
    }

    /// Where bytes begin.
    fn range(&self, offset_bytes: usize, length_bytes: usize) -> *mut u8 {
        assert!(
            offset_bytes.is_multiple_of(8)
                && offset_bytes <= self.length_bytes
                && length_bytes <= self.length_bytes - offset_bytes,
            "{length_bytes} bytes at {offset_bytes} of {}",
            self.length_bytes
        );
        self.base.as_ptr().wrapping_add(offset_bytes)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let start = self.base.as_ptr().cast();
        // SAFETY: our own mapping, which nobody has a reference to. A device that may still write to
        // its pages has them pinned: they are used for nothing else.
        let outcome = unsafe { libc::munmap(start, self.length_bytes) };
        debug_assert!(outcome == 0, "munmap of our own mapping: {}", last_errno());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_copied_in_and_out_in_words_and_what_is_left() {
        let mut memory = Mapping::memory(100).expect("a page");
        assert_eq!(memory.length_bytes(), PAGE_BYTES, "whole pages");
        assert!(memory.address().addr().is_multiple_of(PAGE_BYTES));
        for length in 0..20_u8 {
            let bytes: Vec<u8> = (0..length).map(|byte| byte ^ 0xa5).collect();
            memory.copy_in(64, &[0; 24]);
            memory.copy_in(64, &bytes);
            let mut copy = vec![0xff; usize::from(length) + 1];
            memory.copy_out(64, &mut copy);
            assert_eq!(copy[..bytes.len()], bytes);
            assert_eq!(copy[bytes.len()], 0, "nothing behind is written");
        }
        memory.copy_in(PAGE_BYTES - 8, &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(memory.load_u32(PAGE_BYTES - 4).to_ne_bytes(), [5, 6, 7, 8]);
        memory.store_u32(PAGE_BYTES - 8, u32::from_ne_bytes([9; 4]));
        let mut last = [0; 8];
        memory.copy_out(PAGE_BYTES - 8, &mut last);
        assert_eq!(last, [9, 9, 9, 9, 5, 6, 7, 8]);
    }

    #[test]
    fn what_is_not_in_it_is_refused() {
        type Access = fn(&mut Mapping);
        let refused: [Access; 6] = [
            |it| assert_eq!(it.load_u32(PAGE_BYTES), 0),
            |it| assert_eq!(it.load_u32(2), 0),
            |it| it.store_u32(usize::MAX - 3, 0),
            |it| it.copy_out(PAGE_BYTES - 8, &mut [0; 9]),
            |it| it.copy_out(usize::MAX - 7, &mut [0; 1]),
            |it| it.copy_in(4, &[0; 8]),
        ];
        for access in refused {
            let mut memory = Mapping::memory(PAGE_BYTES).expect("a page");
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                access(&mut memory);
            }));
            assert!(caught.is_err());
        }
    }
}
