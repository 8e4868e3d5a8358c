//! What the BPF program for TLS knows of each connection, in memory shared with it.
//!
//! The reader says where a stream begins and whether its frames come whole; the program writes where
//! the next record's header is, how many records lie before, and why it follows no longer. It refuses
//! nothing. Bounded by 24 bytes for each connection; nothing waits.

use std::io;

use wire::SeqNumber;

use crate::client::Watched;
use crate::filter::Instruction;
use crate::filter::records::{
    self, FLAG_FOLLOW, FLAG_WHOLE, FLAGS, HEAD_END, KEPT, LOST, Lost, NEXT, WATCH_BYTES,
};
use crate::sys::SharedArray;

/// A watch for each connection, first those that are not sampled.
#[derive(Debug)]
pub(crate) struct Watches {
    array: SharedArray,
    unsampled: u32,
    count: u32,
}

impl Watches {
    pub(crate) fn new(unsampled: u32, sampled: u32) -> io::Result<Self> {
        let count = unsampled.saturating_add(sampled).max(1);
        let array = SharedArray::new(count, WATCH_BYTES)?;
        Ok(Self {
            array,
            unsampled,
            count,
        })
    }

    /// The program that writes them, for clients from an address on that ends in these 32 bits.
    pub(crate) fn program(&self, first_address: u32) -> Vec<Instruction> {
        let map = self.array.descriptor();
        records::program(map, first_address, self.unsampled, self.count)
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

    /// From now on the headers of each frame are enough, but the first bytes are delivered of those that begin before
    /// `head_end`.
    pub(crate) fn shorten(&self, connection: u32, head_end: SeqNumber) {
        if connection < self.count {
            let end = u64::from(head_end.0);
            self.array.store_word(connection, at(HEAD_END), end);
            self.store_flags(connection, FLAG_FOLLOW);
        }
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
