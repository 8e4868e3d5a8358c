//! The BPF program that looks at each frame the server sends, and decides how much of it the TAP's
//! reader gets: all, or the first [`SEEN_BYTES`].
//!
//! It is a socket filter on the TAP (`TUNSETFILTEREBPF`). The kernel runs it where a NIC's driver
//! would take the frame, shortens the frame to what the program returns, and counts it as sent: so
//! the sender's pages are released as by a NIC after DMA, and neither the queueing discipline nor a
//! sender that bypasses it (`PACKET_QDISC_BYPASS`) sees anything else than a NIC. That is why this is
//! no program at the egress of traffic control: frames that bypass the queueing discipline never come
//! there.
//!
//! It refuses to look further than the Ethernet header and the destination port: an IPv4 packet
//! with options or an IPv6 packet with extension headers is taken for a flow by other bytes, which
//! costs a sampled flow its sample. Bounded: eleven instructions for each frame, no loop, no map.

/// Bytes that the reader gets of a frame that is not sampled: headers, and a reply's head.
pub const SEEN_BYTES: u32 = 512;

/// The bit of a client's port that marks a sampled connection.
pub const SAMPLED_PORT_BIT: u16 = 0x8000;

/// One instruction: opcode, registers, jump offset, constant (Documentation/bpf/standardization).
type Instruction = u64;

// linux/bpf.h, linux/bpf_common.h: class | size, source or operation | mode.
const LOAD_FIELD_WORD: u8 = 0x61;
const LOAD_PACKET_HALF: u8 = 0x28;
const MOVE_REGISTER: u8 = 0xbf;
const MOVE_CONSTANT: u8 = 0xb7;
const JUMP: u8 = 0x05;
const JUMP_IF_EQUAL: u8 = 0x15;
const JUMP_IF_AT_MOST: u8 = 0xb5;
const JUMP_IF_BIT: u8 = 0x45;
const EXIT: u8 = 0x95;

const RESULT: u8 = 0;
/// The argument: the frame.
const ARGUMENT: u8 = 1;
/// Where loads from the packet expect the frame.
const FRAME: u8 = 6;
const LENGTH: u8 = 7;

const ETHERTYPE_OFFSET: i32 = 12;
const PORT_OFFSET_V4: i32 = 14 + 20 + 2;
const PORT_OFFSET_V6: i32 = 14 + 40 + 2;
const ETHERTYPE_V6: i32 = 0x86dd;

/// The program.
#[must_use]
#[expect(clippy::cast_possible_wrap, reason = "small constants")]
pub fn program() -> [Instruction; 13] {
    [
        instruction(MOVE_REGISTER, FRAME, ARGUMENT, 0, 0),
        // __sk_buff.len is the first field.
        instruction(LOAD_FIELD_WORD, LENGTH, FRAME, 0, 0),
        instruction(JUMP_IF_AT_MOST, LENGTH, 0, 8, SEEN_BYTES as i32), // to WHOLE
        instruction(LOAD_PACKET_HALF, 0, 0, 0, ETHERTYPE_OFFSET),
        instruction(JUMP_IF_EQUAL, RESULT, 0, 2, ETHERTYPE_V6), // to V6
        instruction(LOAD_PACKET_HALF, 0, 0, 0, PORT_OFFSET_V4),
        instruction(JUMP, 0, 0, 1, 0), // to PORT
        // V6:
        instruction(LOAD_PACKET_HALF, 0, 0, 0, PORT_OFFSET_V6),
        // PORT:
        instruction(JUMP_IF_BIT, RESULT, 0, 2, SAMPLED_PORT_BIT as i32), // to WHOLE
        instruction(MOVE_CONSTANT, RESULT, 0, 0, SEEN_BYTES as i32),
        instruction(EXIT, 0, 0, 0, 0),
        // WHOLE:
        instruction(MOVE_REGISTER, RESULT, LENGTH, 0, 0),
        instruction(EXIT, 0, 0, 0, 0),
    ]
}

/// `struct bpf_insn` as the eight bytes it is on this machine.
const fn instruction(opcode: u8, target: u8, source: u8, offset: i16, constant: i32) -> u64 {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What the program returns for a frame.
    fn run(frame: &[u8]) -> u64 {
        let mut registers = [0_u64; 11];
        let mut at = 0_usize;
        for _ in 0..program().len() {
            let [opcode, pair, o0, o1, c0, c1, c2, c3] = program()[at].to_le_bytes();
            let (target, source) = (usize::from(pair & 15), usize::from(pair >> 4));
            let constant = u32::from_le_bytes([c0, c1, c2, c3]);
            let value = registers[target];
            let jumps = match opcode {
                MOVE_REGISTER => {
                    registers[target] = registers[source];
                    false
                }
                MOVE_CONSTANT => {
                    registers[target] = constant.into();
                    false
                }
                LOAD_FIELD_WORD => {
                    registers[target] = frame.len() as u64;
                    false
                }
                LOAD_PACKET_HALF => {
                    let from = constant as usize;
                    let half = [frame[from], frame[from + 1]];
                    registers[0] = u16::from_be_bytes(half).into();
                    false
                }
                JUMP => true,
                JUMP_IF_EQUAL => value == u64::from(constant),
                JUMP_IF_AT_MOST => value <= u64::from(constant),
                JUMP_IF_BIT => value & u64::from(constant) != 0,
                EXIT => return registers[0],
                _ => unreachable!("opcode {opcode:#x}"),
            };
            at += 1;
            if jumps {
                at += usize::from(u16::from_le_bytes([o0, o1]));
            }
        }
        unreachable!("a program without a loop ends");
    }

    fn frame(ethertype: u16, port_offset: i32, port: u16, length: usize) -> Vec<u8> {
        let mut frame = vec![0xff; length];
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        let offset = usize::try_from(port_offset).expect("positive");
        frame[offset..offset + 2].copy_from_slice(&port.to_be_bytes());
        frame
    }

    #[test]
    fn large_frames_are_shortened_unless_their_port_is_sampled() {
        for (ethertype, offset) in [(0x0800, PORT_OFFSET_V4), (0x86dd, PORT_OFFSET_V6)] {
            let of = |port, length| run(&frame(ethertype, offset, port, length));
            assert_eq!(of(0x7fff, 512), 512);
            assert_eq!(of(0x7fff, 513), 512);
            assert_eq!(of(0x7fff, 65_549), 512);
            assert_eq!(of(0x8000, 65_549), 65_549);
            assert_eq!(of(0xffff, 513), 513);
        }
    }
}
