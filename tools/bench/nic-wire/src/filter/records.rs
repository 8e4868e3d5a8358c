//! The program for TLS: it follows the records of each connection by their headers.
//!
//! A reader that sees the headers of each frame sees no record's. So the program
//! keeps, for each connection, the sequence number of the next header and how many records it has
//! counted, from the first byte of the stream on, in a watch of an array map that the reader has
//! mapped into its memory. The plaintext follows by arithmetic: what lies between two headers is
//! headers, overhead and plaintext. Both numbers are one aligned word, stored at once: a reader finds
//! them of one frame, perhaps of a later one than it has read.
//!
//! Frames are first transmissions in order, or retransmissions of what was counted. The program
//! refuses, with a reason in the watch and for good: a frame behind a header it has not seen, what
//! is no header, more than [`RECORDS_MAX`] headers in a frame. It counts nothing from there on. A
//! header may lie in several frames. How much of a frame is delivered is for [`super::watch`].
//!
//! Bounded by [`RECORDS_MAX`] times around its loop, 512 bytes of stack of which 56 are used.

use super::program::{FRAME_POINTER, Instruction, Program, Register, opcode as op};
use super::watch::{
    FLAG_WHOLE, FLAGS, FRAME, R1, R2, R3, R4, RESULT, SEQUENCE, SKB_LOAD_BYTES, TEXT_LENGTH,
    TEXT_PLACE, WATCH, Watching, deliver, find_watch,
};

/// Headers in a frame that are followed: 64 KiB of records of 512 bytes.
pub const RECORDS_MAX: i32 = 128;

/// Longest record behind its header (RFC 5246 s6.2.3; RFC 8446 s5.2 allows less).
const RECORD_BYTES_MAX: i32 = (1 << 14) + 2048;

// Offsets in a watch; those of the reader are in `watch`.
/// Sequence number of the next header, then the number of records before it: one word of the two.
pub(crate) const NEXT: i16 = 0;
const RECORDS: i16 = 4;
/// The first bytes of a header that is not complete, and how many.
pub(crate) const KEPT: i16 = 8;
const KEPT_COUNT: i16 = 12;
/// Why it is not followed any more; 0 if it is.
pub(crate) const LOST: i16 = 13;

/// Why a stream's records are not followed any more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Lost {
    /// A frame lies behind a header that was not seen.
    Gap = 1,
    /// What stands where a header is due is none.
    Header = 2,
    /// More than [`RECORDS_MAX`] headers in a frame.
    Many = 3,
    /// A frame is shorter than it says.
    Short = 4,
}

impl Lost {
    /// The reason of this number, if any.
    #[must_use]
    pub const fn of(number: u8) -> Option<Self> {
        match number {
            0 => None,
            1 => Some(Self::Gap),
            2 => Some(Self::Header),
            3 => Some(Self::Many),
            _ => Some(Self::Short),
        }
    }
}

/// Where in the text the next byte of a header is due.
const AT: Register = 7;
/// The text's length.
const LENGTH: Register = 9;

// On the stack, below what `watch` has there.
const HEADER: i16 = -40;
const HEADER_COUNT: i16 = -48;
const COUNTED: i16 = -56;

/// A header's length.
const HEADER_BYTES: i16 = 5;

/// The program.
#[must_use]
pub fn program(watching: &Watching) -> Vec<Instruction> {
    let mut it = Program::default();
    it.register(op::MOVE, FRAME, R1);
    find_watch(&mut it, watching);
    it.load(op::LOAD_BYTE, R1, WATCH, FLAGS);
    it.jump(op::IF_EQUAL, R1, 0, "whole");
    it.load(op::LOAD_BYTE, R1, WATCH, LOST);
    it.jump(op::IF_UNEQUAL, R1, 0, "verdict");
    follow(&mut it);
    end(&mut it);
    deliver(&mut it, watching);
    it.assemble()
}

/// Counts the headers in the text.
fn follow(it: &mut Program) {
    it.constant(op::MOVE_CONSTANT, R1, 0);
    it.store(op::STORE_DOUBLE, FRAME_POINTER, COUNTED, R1);
    it.store(op::STORE_DOUBLE, FRAME_POINTER, HEADER, R1);
    it.load(op::LOAD_BYTE, R2, WATCH, KEPT_COUNT);
    it.store(op::STORE_DOUBLE, FRAME_POINTER, HEADER_COUNT, R2);
    // AT = next header + bytes of it kept - sequence number, with its sign.
    it.load(op::LOAD_WORD, AT, WATCH, NEXT);
    it.register(op::ADD_32, AT, R2);
    it.load(op::LOAD_DOUBLE, R3, FRAME_POINTER, SEQUENCE);
    it.register(op::SUBTRACT_32, AT, R3);
    it.constant(op::SHIFT_LEFT, AT, 32);
    it.constant(op::SHIFT_RIGHT_SIGNED, AT, 32);
    it.load(op::LOAD_DOUBLE, LENGTH, FRAME_POINTER, TEXT_LENGTH);
    it.jump_by(op::IF_AT_LEAST_SIGNED, AT, LENGTH, "verdict");
    it.jump(op::IF_BELOW_SIGNED, AT, 0, "gap");
    it.jump(op::IF_EQUAL, R2, 0, "loop");
    it.load(op::LOAD_WORD, R1, WATCH, KEPT);
    it.store(op::STORE_WORD, FRAME_POINTER, HEADER, R1);
    let resumed = ["resume 2", "resume 3", "resume 4", "complete"];
    for (index, next) in (1..).zip(resumed) {
        it.load(op::LOAD_DOUBLE, R1, FRAME_POINTER, HEADER_COUNT);
        it.jump(op::IF_ABOVE, R1, index.into(), next);
        take_byte(it, index);
        it.label(next);
    }
    it.jump(op::JUMP, 0, 0, "header");

    it.label("loop");
    it.jump_by(op::IF_AT_LEAST_SIGNED, AT, LENGTH, "done");
    it.load(op::LOAD_DOUBLE, R1, FRAME_POINTER, COUNTED);
    it.jump(op::IF_AT_LEAST, R1, RECORDS_MAX, "many");
    it.register(op::MOVE, R3, LENGTH);
    it.register(op::SUBTRACT, R3, AT);
    it.jump(op::IF_BELOW_SIGNED, R3, HEADER_BYTES.into(), "tail");
    load_bytes(it, 0, HEADER_BYTES);
    it.constant(op::ADD_CONSTANT, AT, HEADER_BYTES.into());

    it.label("header");
    // The types change_cipher_spec, alert, handshake and application_data are 20 to 23.
    it.load(op::LOAD_BYTE, R1, FRAME_POINTER, HEADER);
    it.constant(op::SUBTRACT_CONSTANT, R1, 20);
    it.jump(op::IF_ABOVE, R1, 3, "no header");
    it.load(op::LOAD_BYTE, R1, FRAME_POINTER, HEADER + 1);
    it.jump(op::IF_UNEQUAL, R1, 3, "no header");
    it.load(op::LOAD_BYTE, R1, FRAME_POINTER, HEADER + 3);
    it.constant(op::SHIFT_LEFT, R1, 8);
    it.load(op::LOAD_BYTE, R2, FRAME_POINTER, HEADER + 4);
    it.register(op::OR, R1, R2);
    it.jump(op::IF_EQUAL, R1, 0, "no header");
    it.jump(op::IF_ABOVE, R1, RECORD_BYTES_MAX, "no header");
    it.register(op::ADD, AT, R1);
    it.load(op::LOAD_DOUBLE, R1, FRAME_POINTER, COUNTED);
    it.constant(op::ADD_CONSTANT, R1, 1);
    it.store(op::STORE_DOUBLE, FRAME_POINTER, COUNTED, R1);
    it.jump(op::JUMP, 0, 0, "loop");

    // One to four bytes of a header end the frame.
    it.label("tail");
    it.constant(op::MOVE_CONSTANT, R1, 0);
    it.store(op::STORE_DOUBLE, FRAME_POINTER, HEADER, R1);
    it.store(op::STORE_DOUBLE, FRAME_POINTER, HEADER_COUNT, R1);
    for index in 0..HEADER_BYTES - 1 {
        take_byte(it, index);
    }
    it.label("keep");
    it.load(op::LOAD_WORD, R1, FRAME_POINTER, HEADER);
    it.store(op::STORE_WORD, WATCH, KEPT, R1);
    it.load(op::LOAD_DOUBLE, R1, FRAME_POINTER, HEADER_COUNT);
    it.store(op::STORE_BYTE, WATCH, KEPT_COUNT, R1);
    // The header begins before what is kept of it.
    it.register(op::SUBTRACT, AT, R1);
    it.jump(op::JUMP, 0, 0, "store");
}

/// Takes byte `index` of a header, or keeps what there is of it.
fn take_byte(it: &mut Program, index: i16) {
    it.jump_by(op::IF_AT_LEAST_SIGNED, AT, LENGTH, "keep");
    load_bytes(it, index, 1);
    it.constant(op::ADD_CONSTANT, AT, 1);
    it.constant(op::MOVE_CONSTANT, R1, (index + 1).into());
    it.store(op::STORE_DOUBLE, FRAME_POINTER, HEADER_COUNT, R1);
}

/// Loads so many bytes of the text at AT to this place of the header.
fn load_bytes(it: &mut Program, index: i16, count: i16) {
    it.register(op::MOVE, R1, FRAME);
    it.load(op::LOAD_DOUBLE, R2, FRAME_POINTER, TEXT_PLACE);
    it.register(op::ADD, R2, AT);
    it.register(op::MOVE, R3, FRAME_POINTER);
    it.constant(op::ADD_CONSTANT, R3, (HEADER + index).into());
    it.constant(op::MOVE_CONSTANT, R4, count.into());
    it.constant(op::CALL, 0, SKB_LOAD_BYTES);
    it.jump(op::IF_UNEQUAL, RESULT, 0, "short");
}

fn end(it: &mut Program) {
    it.label("done");
    it.constant(op::MOVE_CONSTANT, R1, 0);
    it.store(op::STORE_BYTE, WATCH, KEPT_COUNT, R1);
    it.label("store");
    it.load(op::LOAD_DOUBLE, R1, FRAME_POINTER, SEQUENCE);
    it.register(op::ADD_32, R1, AT);
    it.load(op::LOAD_WORD, R2, WATCH, RECORDS);
    it.load(op::LOAD_DOUBLE, R3, FRAME_POINTER, COUNTED);
    it.register(op::ADD, R2, R3);
    it.constant(op::SHIFT_LEFT, R2, 32);
    it.register(op::OR, R2, R1);
    it.store(op::STORE_DOUBLE, WATCH, NEXT, R2);
    it.jump(op::JUMP, 0, 0, "verdict");
    let reasons = [
        ("gap", Lost::Gap),
        ("no header", Lost::Header),
        ("many", Lost::Many),
        ("short", Lost::Short),
    ];
    for (label, reason) in reasons {
        it.label(label);
        it.constant(op::MOVE_CONSTANT, R1, i32::from(reason as u8));
        it.jump(op::JUMP, 0, 0, "lost");
    }
    it.label("lost");
    it.store(op::STORE_BYTE, WATCH, LOST, R1);
    it.label("verdict");
    it.load(op::LOAD_BYTE, R1, WATCH, FLAGS);
    it.jump(op::IF_BIT, R1, FLAG_WHOLE.into(), "whole");
}
