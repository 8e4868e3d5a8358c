//! What the BPF program knows of each connection, and the first bytes of replies, in memory shared with it.
//!
//! The reader says where a stream begins, whether its frames come whole, and up to where a reply's head may begin; the
//! program for TLS writes where the next record's header is, how many records lie before, and why it follows no longer;
//! both write the text of frames in which a head begins. It refuses
//! nothing. Bounded by 24 bytes for each connection, and 456 for each of the first [`HEADS_MAX`]; nothing waits.

use std::io;

use wire::SeqNumber;

use crate::client::Watched;
use crate::filter::records::{KEPT, LOST, Lost, NEXT};
use crate::filter::watch::{
    FLAG_FOLLOW, FLAG_WHOLE, FLAGS, HEAD_BYTES, HEAD_END, HEAD_FULL, HEAD_STATE, HEAD_TEXT,
    HEAD_TEXT_BYTES, WATCH_BYTES, Watching,
};
use crate::sys::SharedArray;

/// Connections that have an entry for a head: the others get their heads in the frames.
const HEADS_MAX: u32 = 1 << 14;

/// A watch for each connection, first those that are not sampled, and a head.
#[derive(Debug)]
pub(crate) struct Watches {
    array: SharedArray,
    heads: SharedArray,
    unsampled: u32,
    count: u32,
    head_count: u32,
}

impl Watches {
    pub(crate) fn new(unsampled: u32, sampled: u32) -> io::Result<Self> {
        let count = unsampled.saturating_add(sampled).max(1);
        let head_count = count.min(HEADS_MAX);
        Ok(Self {
            array: SharedArray::new(count, WATCH_BYTES)?,
            heads: SharedArray::new(head_count, HEAD_BYTES)?,
            unsampled,
            count,
            head_count,
        })
    }

    /// What a program needs to write them, for clients from an address on that ends in these 32 bits.
    pub(crate) fn watching(&self, first_address: u32) -> Watching {
        Watching {
            watches: self.array.descriptor(),
            heads: self.heads.descriptor(),
            first_address,
            unsampled: self.unsampled,
            watch_count: self.count,
            head_count: self.head_count,
        }
    }

    /// Follows the stream of a connection from its first byte on, with all frames whole.
    pub(crate) fn follow(&self, connection: u32, first: SeqNumber) {
        if connection < self.count {
            self.store_flags(connection, 0);
            self.array.store_word(connection, at(KEPT), 0);
            self.array.store_word(connection, at(NEXT), first.0.into());
            self.store_flags(connection, FLAG_FOLLOW | FLAG_WHOLE);
        }
    }

    /// From now on all frames come whole.
    pub(crate) fn lengthen(&self, connection: u32) {
        if connection < self.count {
            self.store_flags(connection, FLAG_FOLLOW | FLAG_WHOLE);
        }
    }

    /// From now on the headers of each frame are enough, but the first bytes are wanted of those that begin before
    /// `head_end`.
    pub(crate) fn shorten(&self, connection: u32, head_end: SeqNumber) {
        if connection < self.count {
            let end = u64::from(head_end.0);
            self.array.store_word(connection, at(HEAD_END), end);
            self.store_flags(connection, FLAG_FOLLOW);
        }
    }

    /// The first bytes of text of the frame that begins with this number, if they are here; then there is room for the next
    /// frame's.
    pub(crate) fn take_head(
        &self,
        connection: u32,
        sequence: SeqNumber,
    ) -> Option<[u8; HEAD_TEXT_BYTES]> {
        let full = HEAD_FULL | u64::from(sequence.0);
        if connection >= self.head_count || self.heads.load_word(connection, at(HEAD_STATE)) != full
        {
            return None;
        }
        let mut text = [0; HEAD_TEXT_BYTES];
        let (words, _) = text.as_chunks_mut::<8>();
        for (word, place) in words.iter_mut().zip((at(HEAD_TEXT)..).step_by(8)) {
            *word = self.heads.load_word(connection, place).to_ne_bytes();
        }
        self.heads.store_word(connection, at(HEAD_STATE), 0);
        Some(text)
    }

    /// Where a stream has come to.
    pub(crate) fn read(&self, connection: u32) -> Watched {
        if connection >= self.count {
            return Watched::default();
        }
        let lost = Lost::of(self.array.load_byte(connection, at(LOST)));
        let word = self.array.load_word(connection, at(NEXT));
        let [a, b, c, d, records @ ..] = word.to_le_bytes();
        Watched {
            next_header: SeqNumber(u32::from_le_bytes([a, b, c, d])),
            records: u32::from_le_bytes(records),
            lost,
        }
    }

    fn store_flags(&self, connection: u32, flags: u8) {
        self.array.store_byte(connection, at(FLAGS), flags);
    }
}

fn at(offset: i16) -> usize {
    offset.unsigned_abs().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_taken_once_by_the_frame_it_is_of() {
        let Ok(watches) = Watches::new(2, 0) else {
            println!("SKIPPED: no BPF arrays without CAP_BPF");
            return;
        };
        let sequence = SeqNumber(u32::MAX);
        assert_eq!(watches.take_head(1, sequence), None, "empty");
        for place in (at(HEAD_TEXT)..HEAD_BYTES).step_by(8) {
            let word = place as u64;
            watches.heads.store_word(1, place, word);
        }
        let full = HEAD_FULL | u64::from(sequence.0);
        watches.heads.store_word(1, at(HEAD_STATE), full);
        assert_eq!(watches.take_head(1, SeqNumber(0)), None, "another frame");
        assert_eq!(watches.take_head(0, sequence), None, "another connection");
        assert_eq!(watches.take_head(2, sequence), None, "none has that number");
        let text = watches.take_head(1, sequence).expect("it is there still");
        assert_eq!(text[..8], 8_u64.to_ne_bytes());
        assert_eq!(text[440..], 448_u64.to_ne_bytes());
        assert_eq!(watches.take_head(1, sequence), None, "it was taken");
    }
}
