//! The BPF program that looks at each frame the server sends, and decides how much of it the TAP's
//! reader gets: all, the first [`SEEN_BYTES`] if a reply begins there, or its headers. All of it comes of
//! sampled connections, or of a share of their bytes or replies ([`WholeShare`]).
//!
//! No byte behind the headers stays in a frame without need: of a frame whose pages belong to the
//! sender the TAP would copy it to a page of its own, which no NIC does.
//!
//! It is a socket filter on the TAP (`TUNSETFILTEREBPF`). The kernel runs it where a NIC's driver
//! would take the frame, shortens the frame to what the program returns, and counts it as sent: so
//! the sender's pages are released as by a NIC after DMA, and neither the queueing discipline nor a
//! sender that bypasses it (`PACKET_QDISC_BYPASS`) sees anything else than a NIC. That is why this is
//! no program at the egress of traffic control: frames that bypass the queueing discipline never come
//! there.
//!
//! The program here is that for plain HTTP, [`records`] has the one for TLS. This one refuses to look
//! further than the Ethernet header and the destination port: an IPv4 packet with options or an IPv6
//! packet with extension headers is taken for a flow by other bytes, which costs a sampled flow its
//! sample, and a head that goes on in a second frame of more than [`SEEN_BYTES`] is not seen whole.
//! Bounded: twenty-five instructions for each frame, no loop, no map.

mod program;
pub mod records;
#[cfg(test)]
mod tests;

pub use program::Instruction;

use program::{Program, Register, opcode as op};
use wire::SeqNumber;

/// Bytes that the reader gets of a frame in which a reply begins: headers, and the reply's head.
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

const RESULT: Register = 0;
/// The argument: the frame.
const ARGUMENT: Register = 1;
/// Where loads from the packet expect the frame.
const FRAME: Register = 6;
const LENGTH: Register = 7;
/// First where the TCP header is, then the text.
const PLACE: Register = 8;

const ETHERTYPE_OFFSET: i32 = 12;
const PORT_OFFSET_V4: i32 = 14 + 20 + 2;
const PORT_OFFSET_V6: i32 = 14 + 40 + 2;
const ETHERTYPE_V6: i32 = 0x86dd;

/// How a reply begins.
const REPLY: i32 = i32::from_be_bytes(*b"HTTP");

/// The program that chooses the queue of a frame which is sent past the queueing discipline: the only one. Without it a TAP
/// hashes the flow of each such frame, and of no other, which a NIC with one queue does not do.
#[must_use]
pub fn first_queue() -> Vec<Instruction> {
    let mut it = Program::default();
    it.constant(op::MOVE_CONSTANT, RESULT, 0);
    it.constant(op::EXIT, 0, 0);
    it.assemble()
}

/// The program for plain HTTP; of sampled connections this share is delivered whole.
#[must_use]
pub fn program(whole: WholeShare) -> Vec<Instruction> {
    let mut it = Program::default();
    it.register(op::MOVE, FRAME, ARGUMENT);
    // __sk_buff.len is the first field.
    it.load(op::LOAD_WORD, LENGTH, FRAME, 0);
    it.jump(op::IF_AT_MOST, LENGTH, SEEN_BYTES.cast_signed(), "whole");
    it.constant(op::PACKET_HALF, 0, ETHERTYPE_OFFSET);
    it.jump(op::IF_EQUAL, RESULT, ETHERTYPE_V6, "v6");
    it.constant(op::MOVE_CONSTANT, PLACE, PORT_OFFSET_V4 - 2);
    it.jump(op::JUMP, 0, 0, "port");
    it.label("v6");
    it.constant(op::MOVE_CONSTANT, PLACE, PORT_OFFSET_V6 - 2);
    it.label("port");
    it.put(op::PACKET_HALF_AT, 0, PLACE, 0, 2);
    it.jump(op::IF_BIT, RESULT, SAMPLED_PORT_BIT.into(), "sampled");
    it.label("text");
    it.put(op::PACKET_BYTE_AT, 0, PLACE, 0, 12);
    it.constant(op::SHIFT_RIGHT, RESULT, 4);
    it.constant(op::SHIFT_LEFT, RESULT, 2);
    it.register(op::ADD, PLACE, RESULT);
    it.put(op::PACKET_WORD_AT, 0, PLACE, 0, 0);
    it.jump(op::IF_EQUAL, RESULT, REPLY, "head");
    it.register(op::MOVE, RESULT, PLACE);
    it.constant(op::EXIT, 0, 0);
    it.label("head");
    it.constant(op::MOVE_CONSTANT, RESULT, SEEN_BYTES.cast_signed());
    it.constant(op::EXIT, 0, 0);
    it.label("sampled");
    it.put(op::PACKET_WORD_AT, 0, PLACE, 0, 4);
    it.constant(op::AND_CONSTANT, RESULT, whole.mask().cast_signed());
    it.jump(op::IF_UNEQUAL, RESULT, 0, "text");
    it.label("whole");
    it.register(op::MOVE, RESULT, LENGTH);
    it.constant(op::EXIT, 0, 0);
    it.assemble()
}
