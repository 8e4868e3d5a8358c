//! The BPF programs that look at each frame the server sends, and decide how much of it the TAP's reader gets: its headers, or
//! all of it. Whole are frames of sampled connections, or of a share of their bytes or replies ([`WholeShare`]). The first bytes
//! of a frame in which a reply begins are copied to an array ([`watch`]).
//!
//! A program is a socket filter on the TAP (`TUNSETFILTEREBPF`). The kernel runs it where a NIC's driver
//! would take the frame, shortens the frame to what the program returns, and counts it as sent: so
//! the sender's pages are released as by a NIC after DMA, and neither the queueing discipline nor a
//! sender that bypasses it (`PACKET_QDISC_BYPASS`) sees anything else than a NIC. That is why this is
//! no program at the egress of traffic control: frames that bypass the queueing discipline never come
//! there.
//!
//! [`plain`] has the program for plain HTTP, [`records`] that for TLS, [`watch`] what both do. They refuse to look
//! further than the IP header and TCP's: an IPv6 packet comes whole, and a head that goes on in
//! a second frame of more than [`SEEN_BYTES`] is not seen whole.

pub mod plain;
mod program;
pub mod records;
#[cfg(test)]
mod tests;
pub mod watch;

pub use program::Instruction;

use program::{Program, opcode as op};
use wire::SeqNumber;

/// Bytes of the longest frame that always comes whole in plain HTTP, and what the reader gets of a frame in which a reply
/// begins where no array has its text.
pub const SEEN_BYTES: u32 = 512;

/// The bit of a client's port that marks a sampled connection.
pub const SAMPLED_PORT_BIT: u16 = 0x8000;

/// A stretch of a stream: frames that begin in it are delivered whole, or all not.
const STRETCH_BITS: u32 = 16;

/// Which frames of a sampled connection are delivered whole: of so many stretches of 64 KiB of its sequence numbers,
/// those that begin in one; over TLS, where a record that is not whole cannot be opened, those of one reply in so many.
/// A frame that is delivered whole is copied if its sender has lent its pages, which no NIC does; so less is a smaller
/// cost of the measurement, and a smaller proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WholeShare {
    /// A power of two.
    one_in: u32,
}

impl WholeShare {
    /// Every frame, every reply.
    pub const ALL: Self = Self { one_in: 1 };

    /// Most stretches, or replies, for one that is delivered whole.
    pub const ONE_IN_MAX: u32 = 64;

    /// One of so many; `None` if that is no power of two, or above [`Self::ONE_IN_MAX`].
    #[must_use]
    pub const fn one_in(count: u32) -> Option<Self> {
        if count.is_power_of_two() && count <= Self::ONE_IN_MAX {
            Some(Self { one_in: count })
        } else {
            None
        }
    }

    /// Whether a frame is delivered whole, by its sequence number.
    #[must_use]
    pub const fn has(self, sequence: SeqNumber) -> bool {
        sequence.0 & self.mask() == 0
    }

    /// Whether a reply over TLS is delivered whole, by the number of replies before it on its connection.
    #[must_use]
    pub const fn has_reply(self, replies_before: u32) -> bool {
        replies_before & (self.one_in - 1) == 0
    }

    const fn mask(self) -> u32 {
        (self.one_in - 1) << STRETCH_BITS
    }
}

const ETHERTYPE_OFFSET: i32 = 12;

/// The program that chooses the queue of a frame which is sent past the queueing discipline: the only one. Without it a TAP
/// hashes the flow of each such frame, and of no other, which a NIC with one queue does not do.
#[must_use]
pub fn first_queue() -> Vec<Instruction> {
    let mut it = Program::default();
    it.constant(op::MOVE_CONSTANT, watch::RESULT, 0);
    it.constant(op::EXIT, 0, 0);
    it.assemble()
}
