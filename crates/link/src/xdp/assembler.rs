//! An assembler for the few eBPF instructions that the XDP program needs.
//!
//! Instructions are typed, jumps go to labels and only forward, so that a program always ends. It
//! refuses, as a programming error, what the kernel's verifier would refuse with less to say: a label
//! that is never bound or bound twice, a jump backwards, an instruction that is never reached, a program that
//! is too long. Bound: [`INSTRUCTIONS_MAX`].
//!
//! Reading first: RFC 9669, the instruction set.

use std::os::fd::RawFd;

/// Most instructions of a program: what the kernel takes from a process without `CAP_BPF`
/// (`BPF_MAXINSNS`); others may load more.
pub(super) const INSTRUCTIONS_MAX: usize = 4_096;

/// One instruction as the kernel takes it: `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) code: u8,
    /// Destination in the low four bits, source in the high four.
    pub(super) registers: u8,
    pub(super) offset: i16,
    pub(super) immediate: i32,
}

const _: () = assert!(size_of::<Instruction>() == 8);

// Instruction classes (RFC 9669 s3) and, or'ed to them, what is done.
const CLASS_LD: u8 = 0x00;
const CLASS_LDX: u8 = 0x01;
const CLASS_STX: u8 = 0x03;
const CLASS_JMP: u8 = 0x05;
/// Compares the low 32 bits.
const CLASS_JMP32: u8 = 0x06;
const CLASS_ALU64: u8 = 0x07;

/// The operand is a register (RFC 9669 s4.1), not the immediate.
const SOURCE_REGISTER: u8 = 0x08;
/// Memory at a register plus an offset (RFC 9669 s5.2).
const MODE_MEM: u8 = 0x60;
/// A 64-bit immediate in two instructions (RFC 9669 s5.4).
const WIDE_IMMEDIATE: u8 = CLASS_LD | 0x18;
/// In the source register of a wide immediate: the immediate is a map's descriptor.
const PSEUDO_MAP_FD: u8 = 1;
/// The same, and what is loaded is the address of the map's first value.
const PSEUDO_MAP_VALUE: u8 = 2;

const ALU_ADD: u8 = 0x00;
const ALU_AND: u8 = 0x50;
const ALU_MOVE: u8 = 0xb0;
const JUMP_ALWAYS: u8 = 0x00;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;

/// A register. `R0` has results; a call overwrites `R1` to `R5`, its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Register {
    R0 = 0,
    R1 = 1,
    R2 = 2,
    R3 = 3,
    R4 = 4,
    R5 = 5,
    R6 = 6,
    R7 = 7,
    R8 = 8,
    /// The end of the stack, which grows down.
    R10 = 10,
}

/// How many bytes a load reads; the rest of the register becomes zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Size {
    Word = 0x00,
    Half = 0x08,
    Byte = 0x10,
}

/// When a jump is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Condition {
    Equal = 0x10,
    /// Unsigned.
    Above = 0x20,
    /// Some bit is set in both.
    AnyBit = 0x40,
    NotEqual = 0x50,
    /// Unsigned.
    Below = 0xa0,
}

/// A place in the program that jumps go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(usize);

/// A program in the making.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    instructions: Vec<Instruction>,
    /// By label: the index of the instruction behind it, once bound.
    places: Vec<Option<usize>>,
    /// Index of a jump, and where it goes.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    /// A label, to be bound once.
    pub(super) fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// Binds a label to here.
    ///
    /// # Panics
    /// If it is bound already.
    pub(super) fn bind(&mut self, label: Label) {
        let here = self.instructions.len();
        let place = self.places.get_mut(label.0);
        let place = place.expect("invariant: labels come from this assembler");
        assert_eq!(place.replace(here), None, "a label is bound once");
    }

    pub(super) fn move_register(&mut self, to: Register, from: Register) {
        self.push(CLASS_ALU64 | ALU_MOVE | SOURCE_REGISTER, to, from, 0, 0);
    }

    pub(super) fn move_immediate(&mut self, to: Register, value: i32) {
        self.push(CLASS_ALU64 | ALU_MOVE, to, Register::R0, 0, value);
    }

    pub(super) fn add_immediate(&mut self, to: Register, value: i32) {
        self.push(CLASS_ALU64 | ALU_ADD, to, Register::R0, 0, value);
    }

    pub(super) fn and_immediate(&mut self, to: Register, mask: i32) {
        self.push(CLASS_ALU64 | ALU_AND, to, Register::R0, 0, mask);
    }

    /// Loads from the address in `from` plus `offset`, in this host's byte order.
    pub(super) fn load(&mut self, size: Size, to: Register, from: Register, offset: i16) {
        self.push(CLASS_LDX | MODE_MEM | size as u8, to, from, offset, 0);
    }

    /// Stores a word at the address in `to` plus `offset`.
    pub(super) fn store_word(&mut self, to: Register, offset: i16, from: Register) {
        let code = CLASS_STX | MODE_MEM | Size::Word as u8;
        self.push(code, to, from, offset, 0);
    }

    /// Loads the address of the map with this descriptor.
    pub(super) fn load_map(&mut self, to: Register, map: RawFd) {
        self.load_of_map(PSEUDO_MAP_FD, to, map);
    }

    /// Loads the address of the only value of the array map with this descriptor (Linux 5.2).
    pub(super) fn load_map_value(&mut self, to: Register, map: RawFd) {
        self.load_of_map(PSEUDO_MAP_VALUE, to, map);
    }

    fn load_of_map(&mut self, what: u8, to: Register, map: RawFd) {
        self.instructions.push(Instruction {
            code: WIDE_IMMEDIATE,
            registers: what << 4 | to as u8,
            offset: 0,
            immediate: map,
        });
        self.push(0, Register::R0, Register::R0, 0, 0);
    }

    pub(super) fn jump(&mut self, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.push(CLASS_JMP | JUMP_ALWAYS, Register::R0, Register::R0, 0, 0);
    }

    /// Jumps if the low 32 bits of a register compare so with `value`.
    pub(super) fn jump_if(&mut self, when: Condition, left: Register, value: u32, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        let code = CLASS_JMP32 | when as u8;
        self.push(code, left, Register::R0, 0, value.cast_signed());
    }

    /// Jumps if a register holds no address.
    pub(super) fn jump_if_null(&mut self, register: Register, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        let code = CLASS_JMP | Condition::Equal as u8;
        self.push(code, register, Register::R0, 0, 0);
    }

    /// Jumps if two registers compare so in all 64 bits, as addresses do.
    pub(super) fn jump_if_register(
        &mut self,
        when: Condition,
        left: Register,
        right: Register,
        to: Label,
    ) {
        self.jumps.push((self.instructions.len(), to));
        self.push(CLASS_JMP | when as u8 | SOURCE_REGISTER, left, right, 0, 0);
    }

    /// Calls a function of the kernel's by its number.
    pub(super) fn call(&mut self, function: i32) {
        self.push(CLASS_JMP | CALL, Register::R0, Register::R0, 0, function);
    }

    /// Ends the program; the verdict is in `R0`.
    pub(super) fn exit(&mut self) {
        self.push(CLASS_JMP | EXIT, Register::R0, Register::R0, 0, 0);
    }

    /// The program.
    ///
    /// # Panics
    /// If a label was never bound, a jump goes backwards, an instruction is never reached, or there are
    /// more than [`INSTRUCTIONS_MAX`].
    pub(super) fn finish(mut self) -> Vec<Instruction> {
        let length = self.instructions.len();
        assert!(length <= INSTRUCTIONS_MAX, "{length} instructions");
        for (at, label) in self.jumps {
            let place = self.places.get(label.0).copied().flatten();
            let place = place.expect("invariant: every label that is jumped to is bound");
            // A jump counts from the instruction behind it.
            let distance = place.checked_sub(at + 1);
            let distance = distance.expect("invariant: jumps go forward");
            let offset = i16::try_from(distance).expect("invariant: INSTRUCTIONS_MAX is less");
            if let Some(jump) = self.instructions.get_mut(at) {
                jump.offset = offset;
            }
        }
        assert_eq!(unreached(&self.instructions), None, "reached by no jump");
        self.instructions
    }

    fn push(&mut self, code: u8, to: Register, from: Register, offset: i16, immediate: i32) {
        self.instructions.push(Instruction {
            code,
            registers: (from as u8) << 4 | to as u8,
            offset,
            immediate,
        });
    }
}

/// The first instruction that is never reached. Jumps go forward only, so one pass tells.
fn unreached(program: &[Instruction]) -> Option<usize> {
    let mut is_reached = vec![false; program.len() + 1];
    is_reached[0] = true;
    for (at, instruction) in program.iter().enumerate() {
        if !is_reached[at] {
            return Some(at);
        }
        let class = instruction.code & 0x07;
        let is_jump = matches!(class, CLASS_JMP | CLASS_JMP32);
        let is_exit = is_jump && instruction.code & 0xf0 == EXIT;
        let is_call = is_jump && instruction.code & 0xf0 == CALL;
        let is_always = class == CLASS_JMP && instruction.code & 0xf0 == JUMP_ALWAYS;
        if is_jump && !is_exit && !is_call {
            let distance = usize::try_from(instruction.offset).unwrap_or_default();
            if let Some(target) = is_reached.get_mut(at + 1 + distance) {
                *target = true;
            }
        }
        if !is_exit && !is_always {
            is_reached[at + 1] = true;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{Assembler, Condition, INSTRUCTIONS_MAX, Instruction, Register, Size};

    /// An instruction by the numbers of RFC 9669.
    fn raw(code: u8, registers: u8, offset: i16, immediate: i32) -> Instruction {
        Instruction {
            code,
            registers,
            offset,
            immediate,
        }
    }

    #[test]
    fn each_instruction_has_the_encoding_of_the_rfc() {
        let mut code = Assembler::default();
        code.move_register(Register::R6, Register::R1);
        code.move_immediate(Register::R0, 2);
        code.add_immediate(Register::R4, 14);
        code.and_immediate(Register::R5, 0x0f);
        code.load(Size::Word, Register::R2, Register::R6, 4);
        code.load(Size::Half, Register::R4, Register::R2, 12);
        code.load(Size::Byte, Register::R4, Register::R7, -1);
        code.load_map(Register::R1, 9);
        code.call(51);
        code.exit();
        let expected = [
            raw(0xbf, 0x16, 0, 0),
            raw(0xb7, 0x00, 0, 2),
            raw(0x07, 0x04, 0, 14),
            raw(0x57, 0x05, 0, 15),
            raw(0x61, 0x62, 4, 0),
            raw(0x69, 0x24, 12, 0),
            raw(0x71, 0x74, -1, 0),
            raw(0x18, 0x11, 0, 9),
            raw(0x00, 0x00, 0, 0),
            raw(0x85, 0x00, 0, 51),
            raw(0x95, 0x00, 0, 0),
        ];
        assert_eq!(code.finish(), expected);
    }

    #[test]
    fn jumps_count_from_the_instruction_behind_them() {
        let mut code = Assembler::default();
        let (end, next) = (code.label(), code.label());
        code.jump_if(Condition::Equal, Register::R4, 0xffff_ffff, end);
        code.jump_if(Condition::NotEqual, Register::R4, 1, next);
        code.bind(next);
        code.jump_if(Condition::AnyBit, Register::R4, 1, end);
        code.jump_if(Condition::Below, Register::R4, 20, end);
        code.jump_if_register(Condition::Above, Register::R4, Register::R3, end);
        code.jump_if(Condition::Above, Register::R4, 7, end);
        code.jump(end);
        code.bind(end);
        code.exit();
        let expected = [
            raw(0x16, 0x04, 6, -1),
            raw(0x56, 0x04, 0, 1),
            raw(0x46, 0x04, 4, 1),
            raw(0xa6, 0x04, 3, 20),
            raw(0x2d, 0x34, 2, 0),
            raw(0x26, 0x04, 1, 7),
            raw(0x05, 0x00, 0, 0),
            raw(0x95, 0x00, 0, 0),
        ];
        assert_eq!(code.finish(), expected);
    }

    #[test]
    #[should_panic(expected = "every label that is jumped to is bound")]
    fn a_label_that_is_never_bound_is_a_programming_error() {
        let mut code = Assembler::default();
        let label = code.label();
        code.jump(label);
        let _ = code.finish();
    }

    #[test]
    #[should_panic(expected = "reached by no jump")]
    fn an_instruction_behind_the_end_that_no_jump_goes_to_is_a_programming_error() {
        let mut code = Assembler::default();
        let label = code.label();
        code.jump_if(Condition::Equal, Register::R1, 0, label);
        code.jump(label);
        code.move_immediate(Register::R0, 1);
        code.bind(label);
        code.exit();
        let _ = code.finish();
    }

    #[test]
    #[should_panic(expected = "a label is bound once")]
    fn a_label_bound_twice_is_a_programming_error() {
        let mut code = Assembler::default();
        let label = code.label();
        code.bind(label);
        code.exit();
        code.bind(label);
    }

    #[test]
    #[should_panic(expected = "jumps go forward")]
    fn a_jump_backwards_is_a_programming_error() {
        let mut code = Assembler::default();
        let label = code.label();
        code.bind(label);
        code.jump(label);
        let _ = code.finish();
    }

    #[test]
    fn a_program_of_the_greatest_length_is_taken() {
        let mut code = Assembler::default();
        (1..INSTRUCTIONS_MAX).for_each(|_| code.move_immediate(Register::R0, 2));
        code.exit();
        assert_eq!(code.finish().len(), INSTRUCTIONS_MAX);
    }

    #[test]
    #[should_panic(expected = "4097 instructions")]
    fn a_longer_program_is_a_programming_error() {
        let mut code = Assembler::default();
        (0..=INSTRUCTIONS_MAX).for_each(|_| code.exit());
        let _ = code.finish();
    }
}
