//! The BPF program that looks at each frame the server sends, and decides how much of it the TAP's
//! reader gets: all, the first [`SEEN_BYTES`] if a reply begins there, or its headers.
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
//! Bounded: twenty-two instructions for each frame, no loop, no map.

mod program;
pub mod records;
#[cfg(test)]
mod tests;

pub use program::Instruction;

use program::{Program, Register, opcode as op};

/// Bytes that the reader gets of a frame in which a reply begins: headers, and the reply's head.
pub const SEEN_BYTES: u32 = 512;

/// The bit of a client's port that marks a sampled connection.
pub const SAMPLED_PORT_BIT: u16 = 0x8000;

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

/// The program for plain HTTP.
#[must_use]
pub fn program() -> Vec<Instruction> {
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
    it.jump(op::IF_BIT, RESULT, SAMPLED_PORT_BIT.into(), "whole");
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
    it.label("whole");
    it.register(op::MOVE, RESULT, LENGTH);
    it.constant(op::EXIT, 0, 0);
    it.assemble()
}
