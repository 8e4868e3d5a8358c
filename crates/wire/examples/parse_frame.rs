//! Takes frames apart, given in hexadecimal, one per line of standard input:
//!
//! ```text
//! echo ffffffffffff02000000000208060001080006040001020000000002\
//! 0a0000020000000000000a000001 | cargo run -p atlas-wire --example parse_frame
//! ```
#![expect(clippy::print_stdout, reason = "showing is what an example is for")]

use std::io::{self, BufRead as _};

use wire::{ChecksumState, Incoming, parse_frame};

fn main() -> io::Result<()> {
    for line in io::stdin().lock().lines() {
        match from_hexadecimal(line?.trim()) {
            Some(frame) => println!("{}", describe(&frame)),
            None => println!("not hexadecimal"),
        }
    }
    Ok(())
}

fn describe(frame: &[u8]) -> String {
    match parse_frame(frame, ChecksumState::Unverified) {
        Ok(Incoming::Tcp {
            path,
            segment,
            payload,
            ..
        }) => format!(
            "{} port {} > {} port {}: {} sequence {} window {}, {} bytes",
            path.source,
            segment.source_port,
            path.destination,
            segment.destination_port,
            segment.flags,
            segment.sequence.0,
            segment.window,
            payload.len(),
        ),
        Ok(other) => format!("{other:?}"),
        Err(reason) => format!("refused: {reason}"),
    }
}

fn from_hexadecimal(text: &str) -> Option<Vec<u8>> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else {
        return None;
    };
    let byte = |pair: &[u8; 2]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    pairs.iter().map(byte).collect()
}
