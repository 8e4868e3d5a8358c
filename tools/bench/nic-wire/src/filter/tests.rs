//! Both programs in a small interpreter, on frames made for the purpose.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an interpreter of registers; addresses fit"
)]

use super::program::{FRAME_POINTER, Instruction, opcode as op};
use super::records::{LOST, Lost, NEXT, RECORDS_MAX};
use super::watch::{
    FLAG_FOLLOW, FLAG_WHOLE, FLAGS, HEAD_BYTES, HEAD_END, HEAD_FULL, HEAD_STATE, HEAD_TEXT,
    HEAD_TEXT_BYTES, WATCH_BYTES, Watching,
};
use super::*;
use crate::frame::PORT_FIRST;

/// Addresses of the interpreter's memories, far from small numbers and from each other.
const STACK: u64 = 1 << 40;
const MAP: u64 = 1 << 41;
const HEADS: u64 = 1 << 42;
const CONTEXT: u64 = 1 << 43;
const STACK_BYTES: usize = 512;

/// More steps than any program here takes for a frame.
const STEPS_MAX: usize = 10_000;

/// What a program can reach.
struct Machine {
    registers: [u64; 11],
    stack: [u8; STACK_BYTES],
    /// The watches, one behind the other.
    map: Vec<u8>,
    /// The entries for heads.
    heads: Vec<u8>,
}

/// Descriptors of the two arrays.
const WATCHES_MAP: i32 = 3;
const HEADS_MAP: i32 = 4;

impl Machine {
    fn new(watching: &Watching) -> Self {
        Self {
            registers: [0; 11],
            stack: [0; STACK_BYTES],
            map: vec![0; watching.watch_count as usize * WATCH_BYTES],
            heads: vec![0; watching.head_count as usize * HEAD_BYTES],
        }
    }

    /// Memory at an address of the machine: the stack or an array, nothing beyond them.
    fn at(&mut self, address: u64, bytes: usize) -> &mut [u8] {
        let (memory, base) = match address {
            HEADS.. => (self.heads.as_mut_slice(), HEADS),
            MAP.. => (self.map.as_mut_slice(), MAP),
            _ => (self.stack.as_mut_slice(), STACK),
        };
        let from = usize::try_from(address - base).expect("inside");
        memory.get_mut(from..from + bytes).expect("inside")
    }

    fn load(&mut self, address: u64, bytes: usize) -> u64 {
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(self.at(address, bytes));
        u64::from_le_bytes(value)
    }

    fn store(&mut self, address: u64, bytes: usize, value: u64) {
        let value = value.to_le_bytes();
        self.at(address, bytes).copy_from_slice(&value[..bytes]);
    }

    /// What a program returns for a frame.
    fn run(&mut self, program: &[Instruction], frame: &[u8]) -> u64 {
        self.registers = [0; 11];
        self.registers[1] = CONTEXT;
        self.registers[usize::from(FRAME_POINTER)] = STACK + STACK_BYTES as u64;
        let mut at = 0_usize;
        for _ in 0..STEPS_MAX {
            let [opcode, pair, o0, o1, c0, c1, c2, c3] = program[at].to_le_bytes();
            let (target, source) = (usize::from(pair & 15), usize::from(pair >> 4));
            let offset = i16::from_le_bytes([o0, o1]);
            let constant = i32::from_le_bytes([c0, c1, c2, c3]);
            at += 1;
            match opcode {
                op::EXIT => return self.registers[0],
                op::LOAD_CONSTANT => {
                    self.registers[target] = match constant {
                        WATCHES_MAP => MAP,
                        HEADS_MAP => HEADS,
                        _ => unreachable!("map {constant}"),
                    };
                    at += 1;
                }
                op::CALL => self.call(constant, frame),
                _ if opcode & 7 == 5 => {
                    if self.jumps(opcode, target, source, constant) {
                        at = at.checked_add_signed(offset.into()).expect("inside");
                    }
                }
                _ if opcode & 7 == 0 => {
                    let base = if opcode & 0xe0 == 0x40 {
                        self.registers[source]
                    } else {
                        0
                    };
                    let from = usize::try_from(base).expect("small") + constant as usize;
                    let bytes = [4, 2, 1][usize::from(opcode >> 3 & 3)];
                    let bytes = frame.get(from..from + bytes).expect("inside");
                    let value = bytes.iter().fold(0, |all, it| all << 8 | u64::from(*it));
                    self.registers[..6].fill(0xdead);
                    self.registers[0] = value;
                }
                _ if matches!(opcode & 7, 1 | 3) => {
                    let bytes = [4, 2, 1, 8][usize::from(opcode >> 3 & 3)];
                    let (pointer, is_store) = match opcode & 7 {
                        1 => (self.registers[source], false),
                        _ => (self.registers[target], true),
                    };
                    let address = pointer.wrapping_add_signed(offset.into());
                    if is_store {
                        self.store(address, bytes, self.registers[source]);
                    } else if pointer == CONTEXT {
                        self.registers[target] = frame.len() as u64;
                    } else {
                        self.registers[target] = self.load(address, bytes);
                    }
                }
                _ => self.calculate(opcode, target, source, constant),
            }
        }
        unreachable!("a program ends");
    }

    fn operand(&self, opcode: u8, source: usize, constant: i32) -> u64 {
        if opcode & 8 == 0 {
            i64::from(constant).cast_unsigned()
        } else {
            self.registers[source]
        }
    }

    fn jumps(&self, opcode: u8, target: usize, source: usize, constant: i32) -> bool {
        let left = self.registers[target];
        let right = self.operand(opcode, source, constant);
        let (left_signed, right_signed) = (left.cast_signed(), right.cast_signed());
        match opcode & !8 {
            op::JUMP => true,
            op::IF_EQUAL => left == right,
            op::IF_UNEQUAL => left != right,
            op::IF_ABOVE => left > right,
            op::IF_AT_LEAST => left >= right,
            op::IF_BELOW => left < right,
            op::IF_AT_MOST => left <= right,
            op::IF_BIT => left & right != 0,
            0x75 => left_signed >= right_signed,
            op::IF_BELOW_SIGNED => left_signed < right_signed,
            op::IF_AT_MOST_SIGNED => left_signed <= right_signed,
            _ => unreachable!("opcode {opcode:#x}"),
        }
    }

    fn calculate(&mut self, opcode: u8, target: usize, source: usize, constant: i32) {
        let left = self.registers[target];
        let right = self.operand(opcode, source, constant);
        let value = match opcode & 0xf0 {
            0x00 => left.wrapping_add(right),
            0x10 => left.wrapping_sub(right),
            0x40 => left | right,
            0x50 => left & right,
            0x60 => left << right,
            0x70 => left >> right,
            0xb0 => right,
            0xc0 => (left.cast_signed() >> right).cast_unsigned(),
            _ => unreachable!("opcode {opcode:#x}"),
        };
        let is_narrow = opcode & 7 == 4;
        self.registers[target] = if is_narrow {
            value & 0xffff_ffff
        } else {
            value
        };
    }

    fn call(&mut self, helper: i32, frame: &[u8]) {
        let [_, first, second, third, fourth, ..] = self.registers;
        let result = match helper {
            1 => {
                let (memory, entry_bytes) = match first {
                    MAP => (&self.map, WATCH_BYTES),
                    HEADS => (&self.heads, HEAD_BYTES),
                    _ => unreachable!("{first:#x} is no map"),
                };
                let count = memory.len() / entry_bytes;
                let index = self.load(second, 4);
                assert!((index as usize) < count, "no such entry");
                first + index * entry_bytes as u64
            }
            26 => {
                let (from, bytes) = (second as usize, fourth as usize);
                assert!(bytes > 0);
                match frame.get(from..from + bytes) {
                    Some(found) => {
                        self.at(third, bytes).copy_from_slice(found);
                        0
                    }
                    None => (-14_i64).cast_unsigned(),
                }
            }
            _ => unreachable!("helper {helper}"),
        };
        self.registers[..6].fill(0xdead);
        self.registers[0] = result;
    }
}

#[test]
fn frames_past_the_queueing_discipline_go_to_the_first_queue() {
    assert_eq!(Machine::new(&WATCHING).run(&first_queue(), &[0; 9000]), 0);
}

#[test]
fn shares_are_powers_of_two_up_to_the_limit() {
    assert_eq!(WholeShare::one_in(1), Some(WholeShare::ALL));
    assert!(WholeShare::one_in(64).is_some());
    let none = [0, 3, 65, 128].map(WholeShare::one_in);
    assert_eq!(none, [None; 4]);
}

/// Where the frames of the tests go: the third connection of the second address, and another.
const FIRST_ADDRESS: u32 = 0x0a63_1001;
const WATCHES: u32 = 0x4000 + 4;
const WATCHED: usize = 0x4000 + 2;
const WATCHING: Watching = Watching {
    watches: WATCHES_MAP,
    heads: HEADS_MAP,
    first_address: FIRST_ADDRESS,
    unsampled: WATCHES,
    watch_count: WATCHES,
    head_count: WATCHES,
};

/// Bytes of the headers of its frames.
const HEADERS: u64 = 14 + 24 + 32;

/// A stream of records and the program that follows it; the stream passes the wrap.
struct Stream {
    machine: Machine,
    program: Vec<Instruction>,
    start: u32,
    bytes: Vec<u8>,
}

impl Stream {
    fn new(records: &[u16]) -> Self {
        let start = u32::MAX - 1000;
        let mut bytes = Vec::new();
        for record in records {
            bytes.extend([23, 3, 3]);
            bytes.extend(record.to_be_bytes());
            // What looks like headers everywhere.
            let fill = [23, 3, 3, 0, 9].iter().cycle().take((*record).into());
            bytes.extend(fill);
        }
        let mut stream = Self {
            machine: Machine::new(&WATCHING),
            program: records::program(&WATCHING),
            start,
            bytes,
        };
        stream.set(NEXT, 8, start.into());
        stream.set(HEAD_END, 4, start.into());
        stream.set(FLAGS, 1, FLAG_FOLLOW.into());
        stream
    }

    fn address(offset: i16) -> u64 {
        (MAP + (WATCHED * WATCH_BYTES) as u64).wrapping_add_signed(offset.into())
    }

    fn set(&mut self, offset: i16, bytes: usize, value: u64) {
        self.machine.store(Self::address(offset), bytes, value);
    }

    /// Next header, counted from the stream's beginning, and records.
    fn reached(&mut self) -> (u32, u32) {
        let word = self.machine.load(Self::address(NEXT), 8);
        let next = u32::try_from(word & 0xffff_ffff).expect("masked");
        (next.wrapping_sub(self.start), (word >> 32) as u32)
    }

    /// Empties the connection's entry for a head: the frame's sequence number and the first bytes of its text.
    fn take_head(&mut self) -> Option<(u32, Vec<u8>)> {
        let entry = HEADS + (WATCHED * HEAD_BYTES) as u64;
        let state = entry.wrapping_add_signed(HEAD_STATE.into());
        let word = self.machine.load(state, 8);
        self.machine.store(state, 8, 0);
        if word == 0 {
            return None;
        }
        let text = entry.wrapping_add_signed(HEAD_TEXT.into());
        let text = self.machine.at(text, HEAD_TEXT_BYTES).to_vec();
        Some(((word - HEAD_FULL) as u32, text))
    }

    fn lost(&mut self) -> Option<Lost> {
        Lost::of(self.machine.load(Self::address(LOST), 1) as u8)
    }

    /// Sends these bytes of the stream in one frame; what the program returns.
    fn send(&mut self, from: usize, to: usize) -> u64 {
        let text = self.bytes.get(from..to).expect("inside").to_vec();
        let from = u32::try_from(from).expect("short");
        self.send_text(self.start.wrapping_add(from), &text)
    }

    fn send_text(&mut self, sequence: u32, text: &[u8]) -> u64 {
        let frame = self.frame(sequence, text, PORT_FIRST + 2);
        self.machine.run(&self.program, &frame)
    }

    fn frame(&self, sequence: u32, text: &[u8], port: u16) -> Vec<u8> {
        let address = FIRST_ADDRESS + 1;
        let tcp_bytes = 32;
        let mut frame = vec![0xff; 12];
        frame.extend([0x08, 0x00, 0x46, 0]);
        frame.extend(
            u16::try_from(24 + tcp_bytes + text.len())
                .expect("fits")
                .to_be_bytes(),
        );
        frame.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1]);
        frame.extend(address.to_be_bytes());
        // IPv4 with options.
        frame.extend([1; 4]);
        frame.extend([1, 187]);
        frame.extend(port.to_be_bytes());
        frame.extend(sequence.to_be_bytes());
        frame.extend([0; 4]);
        frame.extend([0x80, 0x10]);
        frame.extend([0; 18]);
        frame.extend(text);
        // Padding behind the packet.
        frame.extend([23; 3]);
        frame
    }
}

/// Offsets of the headers of a stream of these records, its end last.
fn headers(records: &[u16]) -> Vec<u32> {
    let mut at = 0;
    let mut all = vec![0];
    all.extend(records.iter().map(|it| {
        at += u32::from(*it) + 5;
        at
    }));
    all
}

#[test]
fn headers_are_counted_however_frames_cut_them() {
    let records = [1300, 19, 16_401, 1, 700, 16_640, 33];
    let ends = headers(&records);
    for step in [1, 2, 3, 4, 5, 6, 7, 24, 536, 1448, 14_480, 40_000] {
        let mut stream = Stream::new(&records);
        let total = stream.bytes.len();
        for from in (0..total).step_by(step) {
            let to = (from + step).min(total);
            stream.send(from, to);
            // The header that was begun last counts once its five bytes are there.
            let counted = ends.iter().filter(|it| **it as usize + 5 <= to).count();
            let next = ends.get(counted).copied().unwrap_or(total as u32);
            let counted = u32::try_from(counted).expect("few");
            assert_eq!(stream.reached(), (next, counted), "{step}, {to}");
        }
        assert_eq!(stream.lost(), None);
    }
}

#[test]
fn retransmissions_count_nothing_and_new_text_behind_old_counts() {
    let mut stream = Stream::new(&[1000, 1000, 1000]);
    stream.send(0, 1008);
    stream.send(0, 1008);
    stream.send(500, 900);
    assert_eq!(
        stream.reached(),
        (1005, 1),
        "three bytes of a header are kept"
    );
    stream.send(1000, 1400);
    assert_eq!(stream.reached(), (2010, 2));
    stream.send(1400, 2010);
    assert_eq!(
        stream.reached(),
        (2010, 2),
        "it ends before the next header"
    );
    stream.send(1005, 3015);
    assert_eq!((stream.reached(), stream.lost()), ((3015, 3), None));
}

#[test]
fn what_cannot_be_followed_is_lost_for_good_and_nothing_is_counted_from_there() {
    let mut gap = Stream::new(&[1000, 1000]);
    gap.send(0, 1005);
    gap.send(1006, 1500);
    assert_eq!((gap.lost(), gap.reached()), (Some(Lost::Gap), (1005, 1)));
    gap.send(1005, 2010);
    assert_eq!((gap.lost(), gap.reached()), (Some(Lost::Gap), (1005, 1)));

    let lost = |header: [u8; 5]| {
        let mut stream = Stream::new(&[100]);
        stream.send_text(stream.start, &[&header[..], &[0; 10]].concat());
        stream.lost()
    };
    assert_eq!(lost([19, 3, 3, 0, 9]), Some(Lost::Header));
    assert_eq!(lost([20, 3, 3, 0, 9]), None);
    assert_eq!(
        lost([23, 3, 1, 0, 9]),
        None,
        "the first record of a client or server"
    );
    assert_eq!(lost([24, 3, 3, 0, 9]), Some(Lost::Header));
    assert_eq!(lost([23, 2, 3, 0, 9]), Some(Lost::Header));
    assert_eq!(lost([23, 3, 3, 0, 0]), Some(Lost::Header));
    assert_eq!(lost([23, 3, 3, 0x48, 0]), None);
    assert_eq!(lost([23, 3, 3, 0x48, 1]), Some(Lost::Header));
    assert_eq!(lost(*b"HTTP/"), Some(Lost::Header));

    let mut short = Stream::new(&[100, 100]);
    let mut frame = short.frame(short.start, &short.bytes, PORT_FIRST + 2);
    frame.truncate(frame.len() - 110);
    short.machine.run(&short.program, &frame);
    assert_eq!(short.lost(), Some(Lost::Short));
}

#[test]
fn as_many_records_as_are_bounded_fit_a_frame_and_one_more_does_not() {
    let most = usize::try_from(RECORDS_MAX).expect("positive");
    let mut stream = Stream::new(&vec![400; most]);
    stream.send(0, stream.bytes.len());
    assert_eq!((stream.reached().1, stream.lost()), (128, None));
    let mut stream = Stream::new(&vec![400; most + 1]);
    stream.send(0, stream.bytes.len());
    assert_eq!(
        (stream.reached(), stream.lost()),
        ((0, 0), Some(Lost::Many))
    );
    // A header kept from the frame before is one of them.
    let mut stream = Stream::new(&vec![400; most + 1]);
    stream.send(0, 407);
    stream.send(407, stream.bytes.len());
    assert_eq!((stream.reached().1, stream.lost()), (129, None));
}

#[test]
fn sampled_connections_are_followed_by_watches_behind_the_others() {
    let mut stream = Stream::new(&[16_401]);
    // Behind the watches of two connections that are not sampled, this is that of the second address's first sampled port.
    stream.program = records::program(&Watching {
        unsampled: 2,
        ..WATCHING
    });
    let sampled = |port| PORT_FIRST + port + SAMPLED_PORT_BIT;
    for (port, flags, expected, records) in [
        (1, FLAG_FOLLOW, None, 0),
        (2, FLAG_FOLLOW, Some(HEADERS), 0),
        (0, FLAG_FOLLOW, Some(HEADERS), 1),
        (0, FLAG_FOLLOW | FLAG_WHOLE, None, 1),
    ] {
        stream.set(FLAGS, 1, flags.into());
        let frame = stream.frame(stream.start, &stream.bytes, sampled(port));
        let result = stream.machine.run(&stream.program, &frame);
        let expected = expected.unwrap_or(frame.len() as u64);
        assert_eq!(
            (result, stream.reached().1),
            (expected, records),
            "{port}, {flags}"
        );
    }
}

#[test]
fn frames_are_whole_until_heads_or_headers_are_enough_and_for_those_that_are_not_followed() {
    let mut stream = Stream::new(&[16_401]);
    let all = stream.bytes.len();
    stream.set(FLAGS, 1, (FLAG_FOLLOW | FLAG_WHOLE).into());
    assert!(stream.send(0, all) > 16_000);
    assert_eq!(stream.reached(), (16_406, 1), "counted meanwhile");
    stream.set(FLAGS, 1, FLAG_FOLLOW.into());
    for (head_end, is_wanted) in [(1, true), (600, true), (0, false), (u32::MAX - 4, false)] {
        let head_end = stream.start.wrapping_add(head_end);
        stream.set(HEAD_END, 4, head_end.into());
        assert_eq!(stream.send(0, all), HEADERS, "{head_end}");
        assert_eq!(stream.take_head().is_some(), is_wanted, "{head_end}");
    }
    // A frame behind the head, beyond the wrap of sequence numbers.
    stream.set(HEAD_END, 4, stream.start.wrapping_add(512).into());
    for (from, is_wanted) in [(511, true), (512, false), (2000, false)] {
        assert_eq!(stream.send(from, all), HEADERS);
        assert_eq!(stream.take_head().is_some(), is_wanted, "{from}");
    }
    stream.set(FLAGS, 1, 0);
    assert!(stream.send(0, all) > 16_000);
    // Connections without a watch: a sampled one, ports below the first, and one behind the last watch.
    stream.set(FLAGS, 1, FLAG_FOLLOW.into());
    stream.set(HEAD_END, 4, stream.start.wrapping_add(1).into());
    for port in [
        PORT_FIRST + 2 + 0x8000,
        PORT_FIRST - 1,
        0x8000,
        PORT_FIRST + 4,
    ] {
        let frame = stream.frame(stream.start, &stream.bytes, port);
        let result = stream.machine.run(&stream.program, &frame);
        assert_eq!((result, stream.take_head()), (HEADERS, None), "{port}");
    }
    // An acknowledgment, and what is no TCP.
    let mut frame = stream.frame(stream.start, &[], PORT_FIRST + 2);
    assert_eq!(
        stream.machine.run(&stream.program, &frame),
        frame.len() as u64
    );
    frame[23] = 17;
    assert_eq!(
        stream.machine.run(&stream.program, &frame),
        frame.len() as u64
    );
    assert_eq!(stream.machine.run(&stream.program, &[0xff; 53]), 53);
    assert_eq!(stream.reached(), (16_406, 1));
}

#[test]
fn the_first_bytes_of_a_head_go_to_an_entry_until_it_is_full_and_stay_in_the_frame_then() {
    let plain = plain::program(&WATCHING, WholeShare::ALL);
    for program in [plain, records::program(&WATCHING)] {
        let mut stream = Stream::new(&[16_401]);
        stream.program.clone_from(&program);
        stream.set(HEAD_END, 4, stream.start.wrapping_add(1).into());
        let all = stream.bytes.len();
        let expected = (stream.start, stream.bytes[..HEAD_TEXT_BYTES].to_vec());
        assert_eq!(stream.send(0, all), HEADERS);
        // The reader has not taken it, and the frame comes again.
        assert_eq!(stream.send(0, all), 512);
        assert_eq!(stream.take_head(), Some(expected.clone()));
        assert_eq!(stream.send(0, all), HEADERS);
        assert_eq!(stream.take_head(), Some(expected));
    }
}

#[test]
fn a_frame_with_less_text_than_an_entry_and_a_connection_without_one_keep_their_first_bytes() {
    let mut stream = Stream::new(&[16_401]);
    stream.set(HEAD_END, 4, stream.start.wrapping_add(1).into());
    assert_eq!(stream.send(0, HEAD_TEXT_BYTES - 1), 512);
    assert_eq!(stream.take_head(), None);
    assert_eq!(stream.send(0, HEAD_TEXT_BYTES), HEADERS);
    assert!(stream.take_head().is_some());
    for (head_count, bytes) in [(0x4000 + 3, HEADERS), (0x4000 + 2, 512)] {
        stream.program = records::program(&Watching {
            head_count,
            ..WATCHING
        });
        assert_eq!(stream.send(0, 9000), bytes, "{head_count:#x}");
        assert_eq!(stream.take_head().is_some(), bytes == HEADERS);
    }
}

/// A stream of plain HTTP of one connection, of which no head is due.
fn plain_stream(unsampled: u32, share: WholeShare) -> Stream {
    let mut stream = Stream::new(&[]);
    let watching = Watching {
        unsampled,
        ..WATCHING
    };
    stream.program = plain::program(&watching, share);
    stream
}

#[test]
fn large_frames_of_plain_http_are_shortened() {
    let mut stream = plain_stream(WATCHES, WholeShare::ALL);
    let mut of = |text_bytes: u64| {
        let text = vec![7; text_bytes as usize];
        stream.send_text(stream.start, &text)
    };
    // With three bytes of padding.
    let longest_whole = 512 - HEADERS - 3;
    assert_eq!(of(longest_whole), 512);
    assert_eq!(of(longest_whole + 1), HEADERS);
    assert_eq!(of(65_000), HEADERS);
    assert_eq!(stream.take_head(), None);
}

#[test]
fn of_a_sampled_connection_one_stretch_in_so_many_is_whole() {
    let share = WholeShare::one_in(8).expect("a power of two");
    // The second address's first sampled port, behind the watches of two others; a port that is not sampled.
    let sampled = (2, PORT_FIRST | SAMPLED_PORT_BIT);
    for (unsampled, port) in [sampled, (WATCHES, PORT_FIRST + 2)] {
        let mut stream = plain_stream(unsampled, share);
        let is_sampled = port & SAMPLED_PORT_BIT != 0;
        for (sequence, is_whole) in [
            (0, true),
            (0xffff, true),
            (0x1_0000, false),
            (0x7_ffff, false),
            (0x8_0000, true),
            (u32::MAX, false),
        ] {
            assert_eq!(share.has(SeqNumber(sequence)), is_whole);
            stream.set(HEAD_END, 4, sequence.into());
            let frame = stream.frame(sequence, &[7; 9000], port);
            let expected = if is_whole && is_sampled {
                frame.len() as u64
            } else {
                HEADERS
            };
            let result = stream.machine.run(&stream.program, &frame);
            assert_eq!(result, expected, "{sequence:#x}, {port:#x}");
        }
    }
}
