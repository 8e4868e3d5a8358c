//! A BPF program written out instruction by instruction, jumps by label.
//!
//! It refuses labels that do not stand anywhere: an invariant, as all programs are here. Bounded by
//! the program; nothing runs.

/// One instruction: opcode, registers, jump offset, constant (Documentation/bpf/standardization).
pub type Instruction = u64;

/// A register: 0 has results, 1 to 5 arguments, 6 to 9 outlive calls.
pub(super) type Register = u8;

/// The end of the stack.
pub(super) const FRAME_POINTER: Register = 10;

// linux/bpf.h, linux/bpf_common.h: class | size, source or operation | mode.
pub(super) mod opcode {
    pub(in super::super) const LOAD_CONSTANT: u8 = 0x18;
    pub(in super::super) const PACKET_WORD: u8 = 0x20;
    pub(in super::super) const PACKET_HALF: u8 = 0x28;
    pub(in super::super) const PACKET_BYTE: u8 = 0x30;
    pub(in super::super) const PACKET_WORD_AT: u8 = 0x40;
    pub(in super::super) const PACKET_HALF_AT: u8 = 0x48;
    pub(in super::super) const PACKET_BYTE_AT: u8 = 0x50;
    pub(in super::super) const LOAD_WORD: u8 = 0x61;
    pub(in super::super) const LOAD_BYTE: u8 = 0x71;
    pub(in super::super) const LOAD_DOUBLE: u8 = 0x79;
    pub(in super::super) const STORE_WORD: u8 = 0x63;
    pub(in super::super) const STORE_BYTE: u8 = 0x73;
    pub(in super::super) const STORE_DOUBLE: u8 = 0x7b;
    pub(in super::super) const ADD_CONSTANT: u8 = 0x07;
    pub(in super::super) const ADD: u8 = 0x0f;
    pub(in super::super) const ADD_32: u8 = 0x0c;
    pub(in super::super) const SUBTRACT: u8 = 0x1f;
    pub(in super::super) const SUBTRACT_32: u8 = 0x1c;
    pub(in super::super) const SUBTRACT_CONSTANT: u8 = 0x17;
    pub(in super::super) const SUBTRACT_CONSTANT_32: u8 = 0x14;
    pub(in super::super) const AND_CONSTANT: u8 = 0x57;
    pub(in super::super) const OR: u8 = 0x4f;
    pub(in super::super) const SHIFT_LEFT: u8 = 0x67;
    pub(in super::super) const SHIFT_RIGHT: u8 = 0x77;
    pub(in super::super) const SHIFT_RIGHT_SIGNED: u8 = 0xc7;
    pub(in super::super) const MOVE: u8 = 0xbf;
    pub(in super::super) const MOVE_CONSTANT: u8 = 0xb7;
    pub(in super::super) const JUMP: u8 = 0x05;
    pub(in super::super) const IF_EQUAL: u8 = 0x15;
    pub(in super::super) const IF_UNEQUAL: u8 = 0x55;
    pub(in super::super) const IF_ABOVE: u8 = 0x25;
    pub(in super::super) const IF_AT_LEAST: u8 = 0x35;
    pub(in super::super) const IF_BELOW: u8 = 0xa5;
    pub(in super::super) const IF_AT_MOST: u8 = 0xb5;
    pub(in super::super) const IF_BIT: u8 = 0x45;
    pub(in super::super) const IF_AT_LEAST_SIGNED: u8 = 0x7d;
    pub(in super::super) const IF_BELOW_SIGNED: u8 = 0xc5;
    pub(in super::super) const IF_AT_MOST_SIGNED: u8 = 0xd5;
    pub(in super::super) const CALL: u8 = 0x85;
    pub(in super::super) const EXIT: u8 = 0x95;
}

/// The mark of a constant that stands for a map: the number of its descriptor (`BPF_PSEUDO_MAP_FD`).
const MAP_MARK: u8 = 1;

/// A program that is being written.
#[derive(Debug, Default)]
pub(super) struct Program {
    instructions: Vec<(u8, u8, u8, i16, i32)>,
    labels: Vec<(&'static str, usize)>,
    jumps: Vec<(usize, &'static str)>,
}

impl Program {
    /// The next instruction has this name.
    pub(super) fn label(&mut self, name: &'static str) {
        self.labels.push((name, self.instructions.len()));
    }

    /// Any instruction but jumps.
    pub(super) fn put(
        &mut self,
        opcode: u8,
        target: Register,
        source: Register,
        offset: i16,
        constant: i32,
    ) {
        let instruction = (opcode, target, source, offset, constant);
        self.instructions.push(instruction);
    }

    /// `target = target <operation> constant`, or `target = constant`.
    pub(super) fn constant(&mut self, opcode: u8, target: Register, constant: i32) {
        self.put(opcode, target, 0, 0, constant);
    }

    /// `target = target <operation> source`, or `target = source`.
    pub(super) fn register(&mut self, opcode: u8, target: Register, source: Register) {
        self.put(opcode, target, source, 0, 0);
    }

    /// `target = *(source + offset)`.
    pub(super) fn load(&mut self, opcode: u8, target: Register, source: Register, offset: i16) {
        self.put(opcode, target, source, offset, 0);
    }

    /// `*(target + offset) = source`.
    pub(super) fn store(&mut self, opcode: u8, target: Register, offset: i16, source: Register) {
        self.put(opcode, target, source, offset, 0);
    }

    /// Jumps if `register <comparison> constant`.
    pub(super) fn jump(&mut self, opcode: u8, register: Register, constant: i32, to: &'static str) {
        self.jumps.push((self.instructions.len(), to));
        self.put(opcode, register, 0, 0, constant);
    }

    /// Jumps if `left <comparison> right`.
    pub(super) fn jump_by(
        &mut self,
        opcode: u8,
        left: Register,
        right: Register,
        to: &'static str,
    ) {
        self.jumps.push((self.instructions.len(), to));
        self.put(opcode, left, right, 0, 0);
    }

    /// `target = the map of this descriptor`.
    pub(super) fn map(&mut self, target: Register, descriptor: i32) {
        self.put(opcode::LOAD_CONSTANT, target, MAP_MARK, 0, descriptor);
        self.put(0, 0, 0, 0, 0);
    }

    /// The program as the kernel takes it.
    pub(super) fn assemble(mut self) -> Vec<Instruction> {
        for (at, name) in &self.jumps {
            let mut labels = self.labels.iter();
            let label = labels.find(|it| it.0 == *name);
            let (_, target) = label.expect("invariant: each jump has its label");
            // Counted from the instruction behind the jump.
            let offset = i64::try_from(*target).and_then(|it| Ok(it - i64::try_from(*at)? - 1));
            let offset = offset.ok().and_then(|it| i16::try_from(it).ok());
            if let Some(jump) = self.instructions.get_mut(*at) {
                jump.3 = offset.expect("invariant: programs are short");
            }
        }
        let instructions = self.instructions.into_iter();
        instructions.map(encode).collect()
    }
}

/// `struct bpf_insn` as the eight bytes it is on this machine.
fn encode((opcode, target, source, offset, constant): (u8, u8, u8, i16, i32)) -> Instruction {
    let [o0, o1] = offset.to_ne_bytes();
    let [c0, c1, c2, c3] = constant.to_ne_bytes();
    // The two registers share a byte, the first in its lower half on little-endian machines.
    let registers = if cfg!(target_endian = "little") {
        source << 4 | target
    } else {
        target << 4 | source
    };
    u64::from_ne_bytes([opcode, registers, o0, o1, c0, c1, c2, c3])
}
