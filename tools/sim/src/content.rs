//! What every byte of every object is: a pure function of (object, version, offset).
//!
//! Both ends compute it, by the pattern of [`diskmap::sim`], and nobody stores it: the simulated disk
//! fills reads from it and the clients compare every delivered byte with it. It refuses to be compressible or periodic, so
//! that a byte delivered at a wrong offset, or out of another object, is noticed.

use diskmap::sim::fill_pattern;

/// An object's identity as far as its bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Content {
    key: u64,
    /// One byte that differs: only for the canary.
    flipped_at: Option<u64>,
}

impl Content {
    /// The content of version `version` of object number `object`.
    pub(crate) fn new(seed: u64, object: u64, version: u64) -> Self {
        let key = mix(mix(seed ^ 0x6174_6c61_735f_7369).wrapping_add(object) ^ (version << 32));
        Self {
            key,
            flipped_at: None,
        }
    }

    /// The same content but for one bit of the byte at `offset_bytes`.
    pub(crate) const fn flipped(self, offset_bytes: u64) -> Self {
        Self {
            flipped_at: Some(offset_bytes),
            ..self
        }
    }

    /// The content that is there after it was rewritten so often, of which it is the first.
    pub(crate) const fn rewritten(self, times: u32) -> Self {
        match times {
            0 | 1 => self,
            _ => Self {
                key: mix(self.key.wrapping_add(times as u64)),
                ..self
            },
        }
    }

    /// What the simulated disk calls this content.
    pub(crate) const fn seed(self) -> u64 {
        self.key
    }

    /// Fills `target` with the bytes that start at `offset_bytes`.
    pub(crate) fn fill(self, offset_bytes: u64, target: &mut [u8]) {
        fill_pattern(self.key, offset_bytes, target);
        let flipped = self
            .flipped_at
            .and_then(|flipped| flipped.checked_sub(offset_bytes));
        if let Some(byte) = flipped.and_then(|place| target.get_mut(usize::try_from(place).ok()?)) {
            *byte ^= 1;
        }
    }

    /// The offset within `bytes` of the first that is not what belongs at `offset_bytes`.
    pub(crate) fn first_difference(self, offset_bytes: u64, bytes: &[u8]) -> Option<usize> {
        let mut expected = [0u8; 512];
        let mut done = 0;
        for part in bytes.chunks(expected.len()) {
            let expected = &mut expected[..part.len()];
            self.fill(offset_bytes + done as u64, expected);
            if expected != part {
                let within = expected
                    .iter()
                    .zip(part)
                    .position(|(want, got)| want != got);
                return within.map(|within| done + within);
            }
            done += part.len();
        }
        None
    }

    /// The offset within `bytes` of the first that belongs there neither in this version nor in
    /// `other`.
    pub(crate) fn first_of_neither(
        self,
        other: Self,
        offset_bytes: u64,
        bytes: &[u8],
    ) -> Option<usize> {
        let (mut ours, mut theirs) = (vec![0; bytes.len()], vec![0; bytes.len()]);
        self.fill(offset_bytes, &mut ours);
        other.fill(offset_bytes, &mut theirs);
        let either = ours.iter().zip(&theirs);
        let mut pairs = either.zip(bytes);
        pairs.position(|((ours, theirs), byte)| ours != byte && theirs != byte)
    }
}

/// The finaliser of `splitmix64`: every bit of the input moves half the bits of the output.
const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::Content;

    #[test]
    fn parts_filled_apart_are_the_whole() {
        let content = Content::new(1, 2, 3);
        let mut whole = [0u8; 100];
        content.fill(5, &mut whole);
        let mut parts = [0u8; 100];
        for (index, part) in parts.chunks_mut(7).enumerate() {
            content.fill(5 + 7 * index as u64, part);
        }
        assert_eq!(whole, parts);
    }

    #[test]
    fn one_wrong_byte_is_found_where_it_is() {
        let content = Content::new(1, 2, 3);
        let mut bytes = [0u8; 1100];
        content.fill(3, &mut bytes);
        assert_eq!(content.first_difference(3, &bytes), None);
        for place in [0, 511, 512, 1099] {
            bytes[place] ^= 1;
            assert_eq!(content.first_difference(3, &bytes), Some(place));
            bytes[place] ^= 1;
        }
    }

    #[test]
    fn a_flipped_byte_is_the_only_difference() {
        let content = Content::new(1, 2, 3);
        let (mut bytes, mut flipped) = ([0u8; 40], [0u8; 40]);
        content.fill(100, &mut bytes);
        content.flipped(117).fill(100, &mut flipped);
        assert_eq!(content.first_difference(100, &flipped), Some(17));
        flipped[17] ^= 1;
        assert_eq!(bytes, flipped);
        content.flipped(140).fill(100, &mut flipped);
        content.flipped(99).fill(100, &mut bytes);
        assert_eq!(bytes, flipped);
    }

    #[test]
    fn shifted_and_foreign_bytes_differ() {
        let mut bytes = [0u8; 64];
        Content::new(1, 2, 3).fill(0, &mut bytes);
        assert!(Content::new(1, 2, 3).first_difference(1, &bytes).is_some());
        for other in [
            Content::new(2, 2, 3),
            Content::new(1, 3, 3),
            Content::new(1, 2, 4),
        ] {
            assert!(other.first_difference(0, &bytes).is_some());
        }
    }
}
