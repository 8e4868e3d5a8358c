//! Instructions of classic BPF, as the programs of a packet socket are made of them.
//!
//! It refuses nothing: the kernel checks each program when it is attached. Bound: the kernel takes
//! 4,096 instructions. Reading first: Documentation/networking/filter.rst of the kernel.

use libc::sock_filter;

pub(super) const LOAD_WORD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
pub(super) const LOAD_HALF: u16 = 0x28; // BPF_LD | BPF_H | BPF_ABS
pub(super) const LOAD_BYTE: u16 = 0x30; // BPF_LD | BPF_B | BPF_ABS
pub(super) const LOAD_WORD_AT_X: u16 = 0x40; // BPF_LD | BPF_W | BPF_IND
pub(super) const LOAD_HALF_AT_X: u16 = 0x48; // BPF_LD | BPF_H | BPF_IND
pub(super) const LOAD_BYTE_AT_X: u16 = 0x50; // BPF_LD | BPF_B | BPF_IND
pub(super) const LOAD_CONSTANT: u16 = 0x00; // BPF_LD | BPF_IMM
/// X becomes four times the low four bits of a byte: the length of an IPv4 header.
pub(super) const LOAD_X_HEADER_BYTES: u16 = 0xb1; // BPF_LDX | BPF_B | BPF_MSH
pub(super) const LOAD_X_MEMORY: u16 = 0x61; // BPF_LDX | BPF_MEM
pub(super) const STORE: u16 = 0x02; // BPF_ST
pub(super) const TO_X: u16 = 0x07; // BPF_MISC | BPF_TAX
pub(super) const ADD_X: u16 = 0x0c; // BPF_ALU | BPF_ADD | BPF_X
pub(super) const MULTIPLY: u16 = 0x24; // BPF_ALU | BPF_MUL | BPF_K
pub(super) const AND: u16 = 0x54; // BPF_ALU | BPF_AND | BPF_K
pub(super) const SHIFT_LEFT: u16 = 0x64; // BPF_ALU | BPF_LSH | BPF_K
pub(super) const SHIFT_RIGHT: u16 = 0x74; // BPF_ALU | BPF_RSH | BPF_K
pub(super) const XOR_X: u16 = 0xac; // BPF_ALU | BPF_XOR | BPF_X
pub(super) const JUMP: u16 = 0x05; // BPF_JMP | BPF_JA
pub(super) const JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
pub(super) const JUMP_BITS: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
pub(super) const RETURN: u16 = 0x06; // BPF_RET | BPF_K
pub(super) const RETURN_A: u16 = 0x16; // BPF_RET | BPF_A

/// `SKF_AD_OFF + SKF_AD_PROTOCOL`: the frame's Ethertype, wherever its Ethernet header is.
pub(super) const PROTOCOL: u32 = 0xffff_f000;
/// `SKF_AD_OFF + SKF_AD_PKTTYPE`: to whom the frame is, `PACKET_OUTGOING` if this host sent it.
pub(super) const PACKET_TYPE: u32 = 0xffff_f000 + 4;
/// `SKF_AD_OFF + SKF_AD_VLAN_TAG`: the tag the kernel removed from the frame, 0 if it had none.
pub(super) const VLAN_TAG: u32 = 0xffff_f000 + 44;

pub(super) const fn step(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

pub(super) const fn plain(code: u16, k: u32) -> sock_filter {
    step(code, 0, 0, k)
}

#[cfg(test)]
pub(super) mod machine {
    //! Runs a program as the kernel does.

    use super::{
        ADD_X, AND, JUMP, JUMP_BITS, JUMP_EQUAL, LOAD_BYTE, LOAD_BYTE_AT_X, LOAD_CONSTANT,
        LOAD_HALF, LOAD_HALF_AT_X, LOAD_WORD, LOAD_WORD_AT_X, LOAD_X_HEADER_BYTES, LOAD_X_MEMORY,
        MULTIPLY, PACKET_TYPE, PROTOCOL, RETURN, RETURN_A, SHIFT_LEFT, SHIFT_RIGHT, STORE, TO_X,
        VLAN_TAG, XOR_X, sock_filter,
    };

    /// What a program sees of a frame.
    #[derive(Clone, Copy, Default)]
    pub(in crate::packet) struct View<'a> {
        /// The bytes from where the program's offsets count.
        pub(in crate::packet) bytes: &'a [u8],
        pub(in crate::packet) ethertype: u16,
        pub(in crate::packet) vlan_tag: u16,
        /// `PACKET_HOST`, which is 0, `PACKET_OUTGOING` or another.
        pub(in crate::packet) packet_type: u8,
    }

    impl View<'_> {
        /// A load; `None` beyond the end.
        fn load(&self, length: usize, at: u32) -> Option<u32> {
            match at {
                VLAN_TAG => return Some(u32::from(self.vlan_tag)),
                PROTOCOL => return Some(u32::from(self.ethertype)),
                PACKET_TYPE => return Some(u32::from(self.packet_type)),
                _ => {}
            }
            let start = usize::try_from(at).unwrap();
            let bytes = self.bytes.get(start..start + length)?;
            let value = bytes.iter();
            Some(value.fold(0, |value, &byte| value << 8 | u32::from(byte)))
        }
    }

    /// What the program returns; 0 if it loads beyond the end.
    pub(in crate::packet) fn run(program: &[sock_filter], view: View<'_>) -> u32 {
        let (mut a, mut x, mut at) = (0_u32, 0_u32, 0_usize);
        let mut memory = [0_u32; 16];
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let branch = |taken: bool| usize::from(if taken { jt } else { jf });
            let length = match code {
                LOAD_BYTE | LOAD_BYTE_AT_X => 1,
                LOAD_HALF | LOAD_HALF_AT_X => 2,
                _ => 4,
            };
            match code {
                LOAD_BYTE | LOAD_HALF | LOAD_WORD => match view.load(length, k) {
                    Some(value) => a = value,
                    None => return 0,
                },
                LOAD_BYTE_AT_X | LOAD_HALF_AT_X | LOAD_WORD_AT_X => {
                    match view.load(length, x.wrapping_add(k)) {
                        Some(value) => a = value,
                        None => return 0,
                    }
                }
                LOAD_X_HEADER_BYTES => match view.load(1, k) {
                    Some(value) => x = 4 * (value & 0x0f),
                    None => return 0,
                },
                LOAD_CONSTANT => a = k,
                LOAD_X_MEMORY => x = memory[usize::try_from(k).unwrap()],
                STORE => memory[usize::try_from(k).unwrap()] = a,
                TO_X => x = a,
                ADD_X => a = a.wrapping_add(x),
                MULTIPLY => a = a.wrapping_mul(k),
                AND => a &= k,
                SHIFT_LEFT => a <<= k,
                SHIFT_RIGHT => a >>= k,
                XOR_X => a ^= x,
                JUMP => at += usize::try_from(k).unwrap(),
                JUMP_EQUAL => at += branch(a == k),
                JUMP_BITS => at += branch(a & k != 0),
                RETURN => return k,
                RETURN_A => return a,
                code => panic!("instruction {code:#x} is not one the generators make"),
            }
        }
    }
}
