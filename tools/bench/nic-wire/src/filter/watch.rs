//! What both programs share: the watch of a frame's connection, and how much of the frame its reader gets.
//!
//! Frames are not changed. Where a reply's head is due, which only the reader knows, the first bytes of text of a frame
//! that begins before the place it names are copied to the connection's entry of a second array, and the frame is
//! shortened to its headers like any other: text that stays in a frame whose pages belong to the sender the TAP would
//! copy to a page of its own, which no NIC does. An entry is full until the reader has taken it. If it is full, if there is
//! none, or if the frame has less text than an entry, the frame keeps its first [`SEEN_BYTES`].
//!
//! Sequence numbers are compared within half of their range: behind 2 GiB of a reply, frames are taken for heads once more, which
//! costs a copy and nothing else.
//!
//! It refuses nothing: what is no TCP, and TCP without text, comes whole; a frame of no connection that is watched comes as
//! headers. Bounded by [`WATCH_BYTES`] and [`HEAD_BYTES`] for each connection, no loop, and 32 bytes of stack.

use super::program::{FRAME_POINTER, Program, Register, opcode as op};
use super::{ETHERTYPE_OFFSET, SAMPLED_PORT_BIT, SEEN_BYTES};
use crate::frame::{PORT_FIRST, PORTS};

/// Bytes of a watch.
pub const WATCH_BYTES: usize = 24;

// Offsets in a watch; what lies before them is for records.
/// Set by the reader.
pub(crate) const FLAGS: i16 = 14;
/// Set by the reader, a sequence number: of frames that begin before it the first bytes are wanted.
pub(crate) const HEAD_END: i16 = 16;

/// The connection is followed.
pub(crate) const FLAG_FOLLOW: u8 = 1;
/// Its frames are delivered whole.
pub(crate) const FLAG_WHOLE: u8 = 2;

/// Bytes of text in an entry of the second array.
pub const HEAD_TEXT_BYTES: usize = 448;

/// Bytes of an entry.
pub const HEAD_BYTES: usize = HEAD_TEXT_BYTES + 8;

// Offsets in an entry.
/// The frame's sequence number and [`HEAD_FULL`]; 0 if the entry is empty.
pub(crate) const HEAD_STATE: i16 = 0;
/// The first bytes of its text.
pub(crate) const HEAD_TEXT: i16 = 8;

/// Beside the sequence number of a full entry.
pub(crate) const HEAD_FULL: u64 = 1 << 32;

/// What a program knows of the clients and of the arrays it shares with their reader.
#[derive(Clone, Copy, Debug)]
pub struct Watching {
    /// Descriptor of the array of watches.
    pub watches: i32,
    /// Descriptor of the array of heads.
    pub heads: i32,
    /// The last 32 bits of the first client's address.
    pub first_address: u32,
    /// Connections that are not sampled: theirs are the first watches, those of the sampled ones follow.
    pub unsampled: u32,
    /// How many watches.
    pub watch_count: u32,
    /// How many heads: the first connections have one.
    pub head_count: u32,
}

// bpf(2): the helpers used.
const MAP_LOOKUP: i32 = 1;
pub(super) const SKB_LOAD_BYTES: i32 = 26;

const PROTOCOL_TCP: i32 = 6;
const ETHERTYPE_V4: i32 = 0x0800;
const ETHERNET_BYTES: i32 = 14;
const TCP_BYTES: i32 = 20;

pub(super) const RESULT: Register = 0;
pub(super) const R1: Register = 1;
pub(super) const R2: Register = 2;
pub(super) const R3: Register = 3;
pub(super) const R4: Register = 4;
/// The frame, where loads from the packet expect it.
pub(super) const FRAME: Register = 6;
/// First the packet's end in the frame, then the watch.
const END: Register = 8;
pub(super) const WATCH: Register = 8;
/// The TCP header's place in the frame; of no use behind [`find_watch`].
const PLACE: Register = 9;
/// The entry for a head.
const HEAD: Register = 9;

// On the stack.
const KEY: i16 = -4;
pub(super) const SEQUENCE: i16 = -16;
pub(super) const TEXT_PLACE: i16 = -24;
pub(super) const TEXT_LENGTH: i16 = -32;

/// PLACE is where the TCP header is, END where the packet ends, SEQUENCE has the last 32 bits of the
/// destination's address.
fn find_text(it: &mut Program) {
    let least_v4 = ETHERNET_BYTES + 20 + TCP_BYTES;
    it.load(op::LOAD_WORD, R1, FRAME, 0); // __sk_buff.len
    it.jump(op::IF_BELOW, R1, least_v4, "whole");
    it.constant(op::PACKET_HALF, 0, ETHERTYPE_OFFSET);
    it.jump(op::IF_UNEQUAL, RESULT, ETHERTYPE_V4, "whole");
    it.constant(op::PACKET_BYTE, 0, ETHERNET_BYTES + 9);
    it.jump(op::IF_UNEQUAL, RESULT, PROTOCOL_TCP, "whole");
    it.constant(op::PACKET_BYTE, 0, ETHERNET_BYTES);
    it.constant(op::AND_CONSTANT, RESULT, 15);
    it.constant(op::SHIFT_LEFT, RESULT, 2);
    it.register(op::MOVE, PLACE, RESULT);
    it.constant(op::ADD_CONSTANT, PLACE, ETHERNET_BYTES);
    it.constant(op::PACKET_HALF, 0, ETHERNET_BYTES + 2);
    it.register(op::MOVE, END, RESULT);
    it.constant(op::ADD_CONSTANT, END, ETHERNET_BYTES);
    it.constant(op::PACKET_WORD, 0, ETHERNET_BYTES + 16);
    it.store(op::STORE_DOUBLE, FRAME_POINTER, SEQUENCE, RESULT);
}

/// WATCH is the watch of the frame's connection, KEY its number; SEQUENCE, `TEXT_PLACE` and `TEXT_LENGTH` are the frame's.
/// Without a watch the program goes to "headers", and to "whole" with what is no TCP or has no text.
pub(super) fn find_watch(it: &mut Program, watching: &Watching) {
    find_text(it);
    it.put(op::PACKET_BYTE_AT, 0, PLACE, 0, 12);
    it.constant(op::SHIFT_RIGHT, RESULT, 4);
    it.constant(op::SHIFT_LEFT, RESULT, 2);
    it.register(op::ADD, RESULT, PLACE);
    it.store(op::STORE_DOUBLE, FRAME_POINTER, TEXT_PLACE, RESULT);
    it.register(op::SUBTRACT, END, RESULT);
    it.jump(op::IF_AT_MOST_SIGNED, END, 0, "whole");
    it.store(op::STORE_DOUBLE, FRAME_POINTER, TEXT_LENGTH, END);

    let ports = i32::try_from(PORTS).unwrap_or(i32::MAX);
    it.put(op::PACKET_HALF_AT, 0, PLACE, 0, 2);
    // The watches of sampled connections lie behind the others.
    it.constant(op::MOVE_CONSTANT, R2, 0);
    it.jump(op::IF_BIT, RESULT, SAMPLED_PORT_BIT.into(), "sampled");
    it.jump(op::JUMP, 0, 0, "index");
    it.label("sampled");
    it.constant(op::SUBTRACT_CONSTANT, RESULT, SAMPLED_PORT_BIT.into());
    it.constant(op::MOVE_CONSTANT, R2, watching.unsampled.cast_signed());
    it.label("index");
    it.constant(op::SUBTRACT_CONSTANT, RESULT, PORT_FIRST.into());
    it.jump(op::IF_AT_LEAST, RESULT, ports, "headers");
    it.load(op::LOAD_DOUBLE, R1, FRAME_POINTER, SEQUENCE);
    it.constant(
        op::SUBTRACT_CONSTANT_32,
        R1,
        watching.first_address.cast_signed(),
    );
    it.constant(op::SHIFT_LEFT, R1, ports.trailing_zeros().cast_signed());
    it.register(op::ADD, R1, RESULT);
    it.register(op::ADD, R1, R2);
    let watches = i32::try_from(watching.watch_count).unwrap_or(i32::MAX);
    it.jump(op::IF_AT_LEAST, R1, watches, "headers");
    it.store(op::STORE_WORD, FRAME_POINTER, KEY, R1);

    it.put(op::PACKET_WORD_AT, 0, PLACE, 0, 4);
    it.store(op::STORE_DOUBLE, FRAME_POINTER, SEQUENCE, RESULT);
    find_entry(it, watching.watches, "headers");
    it.register(op::MOVE, WATCH, RESULT);
}

/// RESULT is the connection's entry of an array.
fn find_entry(it: &mut Program, array: i32, or_else: &'static str) {
    it.map(R1, array);
    it.register(op::MOVE, R2, FRAME_POINTER);
    it.constant(op::ADD_CONSTANT, R2, KEY.into());
    it.constant(op::CALL, 0, MAP_LOOKUP);
    it.jump(op::IF_EQUAL, RESULT, 0, or_else);
}

/// Goes to this label if the connection is sampled.
pub(super) fn if_sampled(it: &mut Program, watching: &Watching, to: &'static str) {
    it.load(op::LOAD_WORD, R1, FRAME_POINTER, KEY);
    let unsampled = i32::try_from(watching.unsampled).unwrap_or(i32::MAX);
    it.jump(op::IF_AT_LEAST, R1, unsampled, to);
}

/// The end of a program: headers, and the first bytes of text where they are wanted. It ends at "headers" with these alone
/// and at "whole" with the frame.
pub(super) fn deliver(it: &mut Program, watching: &Watching) {
    // The sequence number less the end, with its sign.
    it.load(op::LOAD_DOUBLE, R1, FRAME_POINTER, SEQUENCE);
    it.load(op::LOAD_WORD, R2, WATCH, HEAD_END);
    it.register(op::SUBTRACT_32, R1, R2);
    it.constant(op::SHIFT_LEFT, R1, 32);
    it.constant(op::SHIFT_RIGHT_SIGNED, R1, 32);
    it.jump(op::IF_BELOW_SIGNED, R1, 0, "head");
    it.jump(op::JUMP, 0, 0, "headers");

    it.label("head");
    let heads = i32::try_from(watching.head_count).unwrap_or(i32::MAX);
    let text_bytes = i32::try_from(HEAD_TEXT_BYTES).unwrap_or(i32::MAX);
    it.load(op::LOAD_WORD, R1, FRAME_POINTER, KEY);
    it.jump(op::IF_AT_LEAST, R1, heads, "first bytes");
    it.load(op::LOAD_DOUBLE, R1, FRAME_POINTER, TEXT_LENGTH);
    it.jump(op::IF_BELOW, R1, text_bytes, "first bytes");
    find_entry(it, watching.heads, "first bytes");
    it.register(op::MOVE, HEAD, RESULT);
    it.load(op::LOAD_DOUBLE, R1, HEAD, HEAD_STATE);
    it.jump(op::IF_UNEQUAL, R1, 0, "first bytes");
    it.register(op::MOVE, R1, FRAME);
    it.load(op::LOAD_DOUBLE, R2, FRAME_POINTER, TEXT_PLACE);
    it.register(op::MOVE, R3, HEAD);
    it.constant(op::ADD_CONSTANT, R3, HEAD_TEXT.into());
    it.constant(op::MOVE_CONSTANT, R4, text_bytes);
    it.constant(op::CALL, 0, SKB_LOAD_BYTES);
    it.jump(op::IF_UNEQUAL, RESULT, 0, "first bytes");
    // The reader finds the text once the entry is full.
    it.constant(op::MOVE_CONSTANT, R1, 1);
    it.constant(op::SHIFT_LEFT, R1, HEAD_FULL.trailing_zeros().cast_signed());
    it.load(op::LOAD_DOUBLE, R2, FRAME_POINTER, SEQUENCE);
    it.register(op::OR, R1, R2);
    it.store(op::STORE_DOUBLE, HEAD, HEAD_STATE, R1);

    it.label("headers");
    it.load(op::LOAD_DOUBLE, RESULT, FRAME_POINTER, TEXT_PLACE);
    it.constant(op::EXIT, 0, 0);
    it.label("first bytes");
    it.constant(op::MOVE_CONSTANT, RESULT, SEEN_BYTES.cast_signed());
    it.constant(op::EXIT, 0, 0);
    it.label("whole");
    it.load(op::LOAD_WORD, RESULT, FRAME, 0);
    it.constant(op::EXIT, 0, 0);
}
