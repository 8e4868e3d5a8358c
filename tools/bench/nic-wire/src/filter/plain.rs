//! The program for plain HTTP: a frame is shortened to its headers.
//!
//! It refuses nothing more than [`super::watch`] does. Bounded: no loop.

use super::program::{FRAME_POINTER, Instruction, Program, opcode as op};
use super::watch::{FRAME, R1, SEQUENCE, Watching, deliver, find_watch, if_sampled};
use super::{SEEN_BYTES, WholeShare};

/// The program; of sampled connections this share is delivered whole.
#[must_use]
pub fn program(watching: &Watching, whole: WholeShare) -> Vec<Instruction> {
    let mut it = Program::default();
    it.register(op::MOVE, FRAME, R1);
    // __sk_buff.len is the first field.
    it.load(op::LOAD_WORD, R1, FRAME, 0);
    it.jump(op::IF_AT_MOST, R1, SEEN_BYTES.cast_signed(), "whole");
    find_watch(&mut it, watching);
    if_sampled(&mut it, watching, "share");
    it.jump(op::JUMP, 0, 0, "shorten");
    it.label("share");
    it.load(op::LOAD_DOUBLE, R1, FRAME_POINTER, SEQUENCE);
    it.constant(op::AND_CONSTANT, R1, whole.mask().cast_signed());
    it.jump(op::IF_EQUAL, R1, 0, "whole");
    it.label("shorten");
    deliver(&mut it, watching);
    it.assemble()
}
