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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_is_signed_and_modular() {
        let last = SeqNumber(u32::MAX);
        assert_eq!(last.wrapping_add(1), SeqNumber(0));
        assert_eq!(SeqNumber(0).distance(last), 1);
        assert_eq!(last.distance(SeqNumber(0)), -1);
        assert_eq!(last.distance(last), 0);
        assert_eq!(SeqNumber(0x7fff_ffff).distance(SeqNumber(0)), i32::MAX);
        assert_eq!(SeqNumber(0x8000_0000).distance(SeqNumber(0)), i32::MIN);
    }
}
