//! Witnesses: a few places of a file, and what was there when its status was still the one it was opened with.
//!
//! When a status does not tell whether the content was written (`change`), these places are read again and
//! compared. Witnesses are the first and the last bytes of the first read, the last bytes of a later one
//! (the second, fourth, eighth, and so on; every [`RENEWED_AFTER_READS`]th in the end), and for a young file
//! its first and last bytes at open. Bytes of a read become a witness only when they are handed out, so they are
//! those that the file had when it was opened.
//!
//! It refuses empty places. Bounded by [`WITNESSES_MAX`] of [`WITNESS_BYTES_MAX`] bytes each; 64 bits of a hash
//! are kept of them.

use std::hash::{DefaultHasher, Hasher as _};
use std::ops::Range;

/// Most bytes of a witness: with two of the first read, 512 bytes are hashed for a file that is read once.
pub(super) const WITNESS_BYTES_MAX: usize = 256;
/// Most witnesses of a file.
pub(super) const WITNESSES_MAX: usize = 4;
/// Reads that are handed out until the latest witness is renewed. One takes 80 ns (decision 4), a read 1,700 to 4,000
/// ns.
const RENEWED_AFTER_READS: u32 = 32;

/// Where a witness is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// First bytes of the first read, or of the file.
    Head = 0,
    /// Last bytes of the first read.
    Tail = 1,
    /// Last bytes of a later read.
    Latest = 2,
    /// Last bytes of a young file.
    End = 3,
}

/// What was at a place of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Witness {
    offset_bytes: u64,
    length_bytes: u64,
    hash: u64,
}

/// The witnesses of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Witnesses {
    places: [Option<Witness>; WITNESSES_MAX],
    /// Reads handed out, modulo 2^32.
    reads: u32,
}

/// Which witnesses agreed so far with what is in the file now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Agreed([bool; WITNESSES_MAX]);

impl Witness {
    fn of(offset_bytes: u64, bytes: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(bytes);
        Self {
            offset_bytes,
            length_bytes: bytes.len() as u64,
            hash: hasher.finish(),
        }
    }

    fn range(&self) -> Range<u64> {
        self.offset_bytes..self.offset_bytes + self.length_bytes
    }

    /// The blocks that it is in.
    fn blocks(&self, block_bytes: u32) -> Range<u64> {
        let block = u64::from(block_bytes);
        let Range { start, end } = self.range();
        start / block * block..end.div_ceil(block) * block
    }

    /// Whether it is what `bytes`, from `start` on, have at its place; `None` if they do not have its place.
    fn agrees(&self, start: u64, bytes: &[u8]) -> Option<bool> {
        let from = self.offset_bytes.checked_sub(start)?;
        let from = usize::try_from(from).ok()?;
        let length = usize::try_from(self.length_bytes).ok()?;
        let now = bytes.get(from..)?.get(..length)?;
        Some(Self::of(self.offset_bytes, now) == *self)
    }
}

/// The first bytes for a witness.
fn head(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(WITNESS_BYTES_MAX)]
}

/// Where the last bytes for a witness begin.
fn tail_start(length: usize) -> usize {
    length.saturating_sub(WITNESS_BYTES_MAX)
}

impl Witnesses {
    /// A file was opened whose first bytes, and last bytes from `tail_start` on, are these.
    pub(super) fn note_open(&mut self, first: &[u8], tail_start: u64, last: &[u8]) {
        self.set(Place::Head, 0, head(first));
        self.set(Place::End, tail_start, last);
    }

    /// Bytes are handed out: the file's at `offset_bytes`, which `bytes` returns, while its status is the one to
    /// compare with.
    pub(super) fn note_read<'a>(&mut self, offset_bytes: u64, bytes: impl FnOnce() -> &'a [u8]) {
        self.reads = self.reads.wrapping_add(1);
        let is_due = self.reads.is_power_of_two() || self.reads.is_multiple_of(RENEWED_AFTER_READS);
        if is_due {
            self.renew(offset_bytes, bytes());
        }
    }

    #[cold]
    fn renew(&mut self, offset_bytes: u64, bytes: &[u8]) {
        let start = tail_start(bytes.len());
        let (tail_offset, tail) = (offset_bytes + start as u64, &bytes[start..]);
        if self.reads == 1 {
            self.set(Place::Head, offset_bytes, head(bytes));
            self.set(Place::Tail, tail_offset, tail);
        } else {
            self.set(Place::Latest, tail_offset, tail);
        }
    }

    fn set(&mut self, place: Place, offset_bytes: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.places[place as usize] = Some(Witness::of(offset_bytes, bytes));
        }
    }

    /// The blocks of a witness that is still to be compared: two at most.
    pub(super) fn next_blocks(&self, agreed: Agreed, block_bytes: u32) -> Option<Range<u64>> {
        let open = self.places.iter().zip(agreed.0);
        let witness = open.filter(|(_, agreed)| !agreed).find_map(|(it, _)| *it)?;
        Some(witness.blocks(block_bytes))
    }

    /// Compares what was read of the file's blocks from `start` on. Whether all witnesses that are in them agree,
    /// and there is one.
    pub(super) fn compare(&self, agreed: &mut Agreed, start: u64, bytes: &[u8]) -> bool {
        let mut is_any = false;
        for (witness, agreed) in self.places.iter().zip(&mut agreed.0) {
            match witness.and_then(|witness| witness.agrees(start, bytes)) {
                Some(true) => {
                    is_any |= !*agreed;
                    *agreed = true;
                }
                Some(false) => return false,
                None => {}
            }
        }
        is_any
    }
}

/// Where the witness of a file's last bytes begins.
pub(super) const fn end_start(size_bytes: u64) -> u64 {
    size_bytes.saturating_sub(WITNESS_BYTES_MAX as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(length: usize) -> Vec<u8> {
        (0..=250).cycle().take(length).collect()
    }

    fn index(offset: u64) -> usize {
        usize::try_from(offset).expect("a short file")
    }

    /// Compares block by block, as the disk does; how many reads it took, or `None` if one differs.
    fn verify(witnesses: &Witnesses, now: &[u8], block_bytes: u32) -> Option<usize> {
        let mut agreed = Agreed::default();
        for reads in 0..=WITNESSES_MAX {
            let Some(blocks) = witnesses.next_blocks(agreed, block_bytes) else {
                return Some(reads);
            };
            assert!(blocks.end - blocks.start <= 2 * u64::from(block_bytes));
            let end = index(blocks.end).min(now.len());
            let read = now.get(index(blocks.start)..end)?;
            if !witnesses.compare(&mut agreed, blocks.start, read) {
                return None;
            }
        }
        panic!("each read has a witness");
    }

    fn is_empty(witnesses: &Witnesses) -> bool {
        witnesses.next_blocks(Agreed::default(), 4096).is_none()
    }

    fn after_reads(content: &[u8], offsets: &[usize]) -> Witnesses {
        let mut witnesses = Witnesses::default();
        for &offset in offsets {
            witnesses.note_read(offset as u64, || &content[offset..offset + 8192]);
        }
        witnesses
    }

    #[test]
    fn bytes_at_a_witness_are_found_to_differ_and_others_are_not() {
        let content = content(100_000);
        let witnesses = after_reads(&content, &[8192, 40_960]);
        assert_eq!(verify(&witnesses, &content, 4096), Some(3));
        // The first read's head and tail, and the second's tail.
        for (at, is_witness) in [
            (0, false),
            (8191, false),
            (8192, true),
            (8192 + 255, true),
            (8192 + 256, false),
            (16_384 - 257, false),
            (16_384 - 256, true),
            (16_383, true),
            (16_384, false),
            (40_960, false),
            (49_152 - 256, true),
            (49_151, true),
            (49_152, false),
        ] {
            let mut now = content.clone();
            now[at] ^= 1;
            assert_eq!(verify(&witnesses, &now, 4096).is_none(), is_witness, "{at}");
        }
        let mut more = content.clone();
        more.extend([0; 5000]);
        assert_eq!(verify(&witnesses, &more, 4096), Some(3));
        assert_eq!(verify(&witnesses, &content[..49_151], 4096), None);
    }

    #[test]
    fn a_young_files_ends_are_witnesses_until_it_is_read() {
        let content = content(10_000);
        let mut witnesses = Witnesses::default();
        assert!(is_empty(&witnesses));
        let start = end_start(10_000);
        witnesses.note_open(&content, start, &content[index(start)..]);
        assert!(!is_empty(&witnesses));
        assert_eq!(verify(&witnesses, &content, 4096), Some(2));
        for at in [0, 255, 10_000 - 256, 9_999] {
            let mut now = content.clone();
            now[at] ^= 1;
            assert_eq!(verify(&witnesses, &now, 4096), None, "{at}");
        }
        // Read, the last of it stays one.
        witnesses.note_read(0, || &content[..4096]);
        let mut now = content.clone();
        now[9_999] ^= 1;
        assert_eq!(verify(&witnesses, &now, 4096), None);
    }

    #[test]
    fn witnesses_in_the_same_blocks_are_compared_by_one_read() {
        for length in [1, 255, 256, 257, 4096] {
            let content = content(length);
            let mut witnesses = Witnesses::default();
            let start = end_start(length as u64);
            witnesses.note_open(&content, start, &content[index(start)..]);
            witnesses.note_read(0, || &content);
            assert_eq!(verify(&witnesses, &content, 4096), Some(1), "{length}");
        }
        // One that lies in two blocks, as the end of a file may.
        let content = content(4100);
        let mut witnesses = Witnesses::default();
        witnesses.note_read(0, || &content);
        assert_eq!(verify(&witnesses, &content, 4096), Some(2));
        assert_eq!(verify(&witnesses, &content, 512), Some(2));
    }

    #[test]
    fn an_empty_read_is_no_witness_and_ends_none() {
        let mut witnesses = Witnesses::default();
        witnesses.note_read(4096, || &[]);
        assert!(is_empty(&witnesses));
        witnesses.note_open(b"head", 0, b"head");
        let before = witnesses.places;
        witnesses.reads = 0;
        witnesses.note_read(4096, || &[]);
        assert_eq!(witnesses.places, before);
    }

    #[test]
    fn the_latest_witness_is_renewed_after_so_many_reads() {
        let content = content(1 << 20);
        let mut witnesses = Witnesses::default();
        let mut renewed = Vec::new();
        for read in 1..=100_u64 {
            let before = witnesses.places[Place::Latest as usize];
            let offset = read * 8192;
            witnesses.note_read(offset, || &content[index(offset)..][..8192]);
            if witnesses.places[Place::Latest as usize] != before {
                renewed.push(read);
            }
        }
        assert_eq!(renewed, [2, 4, 8, 16, 32, 64, 96]);
    }
}
