//! Asks for memory before it is needed.

#![allow(unsafe_code, reason = "UNSAFETY: prefetches")]

/// Bytes of a cache line, of every processor we know with 64-bit addresses but a few of ARM's, for
/// which this asks twice.
const LINE_BYTES: usize = 64;

/// Asks the processor to bring `value` into its first-level cache, and does not wait for it.
///
/// With thousands of connections the state of each is in none of the caches when its turn comes, and
/// a turn waits for one line after the other. Asked for some turns before, they come side by side.
/// On processors other than `x86_64` nothing is done.
#[inline]
pub fn prefetch<T>(value: &T) {
    prefetch_beginning(value, size_of::<T>());
}

/// The same for the first `bytes` of a value, at most all.
#[inline]
pub fn prefetch_beginning<T>(value: &T, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

        let start = core::ptr::from_ref(value).cast::<i8>();
        for offset in (0..bytes.min(size_of::<T>())).step_by(LINE_BYTES) {
            // SAFETY: a prefetch reads and writes nothing, and never faults, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(offset)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (value, bytes, LINE_BYTES);
}
