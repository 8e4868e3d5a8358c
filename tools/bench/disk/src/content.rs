//! What a made file holds: each eight bytes follow from their offset alone, so that any read can
//! be checked by itself. No I/O.

use crate::plan::mix;

/// Keeps the content apart from other uses of [`mix`].
const SEED: u64 = 0x6174_6c61_7364_6973;

/// Fills `bytes` with what stands at `offset_bytes`, a multiple of eight.
pub(crate) fn fill(offset_bytes: u64, bytes: &mut [u8]) {
    for (word, place) in bytes.chunks_mut(8).zip(0u64..) {
        let value = word_at(offset_bytes + place * 8);
        word.copy_from_slice(&value[..word.len()]);
    }
}

/// Whether `bytes` are what stands at `offset_bytes`, a multiple of eight.
pub(crate) fn matches(offset_bytes: u64, bytes: &[u8]) -> bool {
    bytes
        .chunks(8)
        .zip(0u64..)
        .all(|(word, place)| *word == word_at(offset_bytes + place * 8)[..word.len()])
}

fn word_at(offset_bytes: u64) -> [u8; 8] {
    mix(offset_bytes ^ SEED).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_matches_at_its_place_only() {
        let mut bytes = vec![0; 4099];
        fill(8192, &mut bytes);
        assert!(matches(8192, &bytes));
        assert!(matches(8200, &bytes[8..]));
        assert!(!matches(0, &bytes));
        bytes[4098] ^= 1;
        assert!(!matches(8192, &bytes), "the last byte counts");
    }
}
