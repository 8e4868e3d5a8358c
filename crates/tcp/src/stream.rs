//! Offsets in the byte stream we send, as 64-bit numbers that never wrap.
//!
//! Sequence numbers wrap every 4 GiB; stream offsets do not. All of the send side computes in
//! offsets; only [`crate::send`] converts them to sequence numbers.

use core::ops::{Add, AddAssign, Sub};

/// An offset in the stream we send. Offset 0 is the first payload byte, sequence number ISS + 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct StreamOffset(pub u64);

impl StreamOffset {
    /// The start of the stream.
    pub const ZERO: Self = Self(0);

    /// Bytes from `earlier` to `self`; zero if `earlier` is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<u64> for StreamOffset {
    type Output = Self;

    fn add(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

impl AddAssign<u64> for StreamOffset {
    fn add_assign(&mut self, bytes: u64) {
        self.0 += bytes;
    }
}

impl Sub<u64> for StreamOffset {
    type Output = Self;

    fn sub(self, bytes: u64) -> Self {
        Self(self.0 - bytes)
    }
}

/// A run of the stream, `start..end`. Never reversed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamRange {
    /// First byte.
    pub start: StreamOffset,
    /// One past the last byte.
    pub end: StreamOffset,
}

impl StreamRange {
    /// The run from `start` to `end`.
    ///
    /// # Panics
    /// If `end` is before `start`.
    #[must_use]
    pub fn new(start: StreamOffset, end: StreamOffset) -> Self {
        assert!(
            start <= end,
            "a stream range is never reversed: {start:?}..{end:?}"
        );
        Self { start, end }
    }

    /// Bytes in the run.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Whether the run is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.start.0 == self.end.0
    }

    /// The bytes that are in both runs; `None` if there are none.
    #[must_use]
    pub fn intersection(self, other: Self) -> Option<Self> {
        let start = self.start.max(other.start);
        let end = self.end.min(other.end);
        (start < end).then_some(Self { start, end })
    }
}
