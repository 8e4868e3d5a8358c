//! Sequence numbers.

/// A sequence number: modulo 2^32 arithmetic (RFC 9293 s3.4).
///
/// It has no order: which of two is later is a question about their [`distance`](Self::distance).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SeqNumber(pub u32);

impl SeqNumber {
    /// `self + n` modulo 2^32.
    #[must_use]
    pub const fn wrapping_add(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n))
    }

    /// Signed distance from `earlier` to `self`: positive if `self` is later, within 2^31.
    #[must_use]
    #[expect(clippy::cast_possible_wrap, reason = "modular distance")]
    pub const fn distance(self, earlier: Self) -> i32 {
        self.0.wrapping_sub(earlier.0) as i32
    }
}
