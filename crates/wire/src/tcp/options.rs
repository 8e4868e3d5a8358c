//! TCP options (RFC 9293 s3.1, RFC 7323, RFC 2018).
//!
//! Layouts we emit keep every option's 32-bit fields on 32-bit boundaries, as RFC 7323 appendix A
//! advises and as receivers' fast paths expect:
//!
//! ```text
//! MSS                           | 2  4  mss(2)                       |
//! SACK permitted and timestamps | 4  2  8  10 | value | echo         |
//! either of the two alone       | 1  1  4  2  |   or  | 1  1  8  10 | value | echo |
//! window scale                  | 1  3  3  shift                     |
//! SACK                          | 1  1  5  2+8n | left | right | ... |
//! ```

use super::SeqNumber;
use crate::reason::DropReason;
use crate::writer::Writer;

/// Most bytes of options: the data offset counts to 15 words, five of which are the header.
pub const OPTIONS_BYTES_MAX: usize = 40;
/// Most SACK blocks a header has room for (RFC 2018 s3).
pub const SACK_BLOCKS_MAX: usize = 4;
/// Largest window scale shift (RFC 7323 s2.3); a larger one received counts as this one.
pub const WINDOW_SCALE_MAX: u8 = 14;

const KIND_END: u8 = 0;
const KIND_NOP: u8 = 1;
const KIND_MSS: u8 = 2;
const KIND_WINDOW_SCALE: u8 = 3;
const KIND_SACK_PERMITTED: u8 = 4;
const KIND_SACK: u8 = 5;
const KIND_TIMESTAMPS: u8 = 8;

const MSS_BYTES: u8 = 4;
const WINDOW_SCALE_BYTES: u8 = 3;
const SACK_PERMITTED_BYTES: u8 = 2;
const TIMESTAMPS_BYTES: u8 = 10;
/// Bytes of one SACK block.
const SACK_BLOCK_BYTES: usize = 8;

/// The timestamps option (RFC 7323 s3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Timestamps {
    /// TSval.
    pub value: u32,
    /// TSecr.
    pub echo: u32,
}

/// Up to four SACK blocks (RFC 2018 s3), `(left edge, right edge)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SackBlocks {
    blocks: [(SeqNumber, SeqNumber); SACK_BLOCKS_MAX],
    count: u8,
}

impl SackBlocks {
    /// Adds a block; a fifth is ignored.
    pub fn push(&mut self, left: SeqNumber, right: SeqNumber) {
        if let Some(place) = self.blocks.get_mut(usize::from(self.count)) {
            *place = (left, right);
            self.count += 1;
        }
    }

    /// The blocks in the order they came.
    #[must_use]
    pub fn as_slice(&self) -> &[(SeqNumber, SeqNumber)] {
        &self.blocks[..usize::from(self.count)]
    }
}

/// The options this stack understands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpOptions {
    /// Maximum segment size (RFC 9293 s3.7.1), bytes.
    pub mss: Option<u16>,
    /// Window scale shift (RFC 7323 s2), 0..=14 after clamping.
    pub window_scale: Option<u8>,
    /// SACK permitted (RFC 2018 s2).
    pub sack_permitted: bool,
    /// Timestamps (RFC 7323 s3).
    pub timestamps: Option<Timestamps>,
    /// SACK blocks (RFC 2018 s3).
    pub sack: SackBlocks,
}

impl TcpOptions {
    /// Parses the bytes between the fixed header and the payload. Unknown kinds are skipped; of an
    /// option that comes twice the later one counts, but SACK blocks add up.
    ///
    /// # Errors
    /// [`DropReason::TcpBadOption`] for a length below 2, one beyond the header, and one that a
    /// known kind cannot have.
    pub fn parse(bytes: &[u8]) -> Result<Self, DropReason> {
        let mut options = Self::default();
        let mut rest = bytes;
        while let [kind, after @ ..] = rest {
            match *kind {
                KIND_END => break,
                KIND_NOP => rest = after,
                kind => {
                    let [length, after @ ..] = after else {
                        return Err(DropReason::TcpBadOption);
                    };
                    let (data, after) = usize::from(*length)
                        .checked_sub(2)
                        .and_then(|data_bytes| after.split_at_checked(data_bytes))
                        .ok_or(DropReason::TcpBadOption)?;
                    options.parse_one(kind, data)?;
                    rest = after;
                }
            }
        }
        Ok(options)
    }

    fn parse_one(&mut self, kind: u8, data: &[u8]) -> Result<(), DropReason> {
        match (kind, data) {
            (KIND_MSS, &[high, low]) => self.mss = Some(u16::from_be_bytes([high, low])),
            (KIND_WINDOW_SCALE, &[shift]) => self.window_scale = Some(shift.min(WINDOW_SCALE_MAX)),
            (KIND_SACK_PERMITTED, &[]) => self.sack_permitted = true,
            (KIND_TIMESTAMPS, data) => {
                let ([value, echo], []) = data.as_chunks::<4>() else {
                    return Err(DropReason::TcpBadOption);
                };
                let value = u32::from_be_bytes(*value);
                let echo = u32::from_be_bytes(*echo);
                self.timestamps = Some(Timestamps { value, echo });
            }
            (KIND_SACK, data) => {
                let (edges @ [_, ..], []) = data.as_chunks::<SACK_BLOCK_BYTES>() else {
                    return Err(DropReason::TcpBadOption);
                };
                for &[a, b, c, d, e, f, g, h] in edges {
                    let left = SeqNumber(u32::from_be_bytes([a, b, c, d]));
                    let right = SeqNumber(u32::from_be_bytes([e, f, g, h]));
                    self.sack.push(left, right);
                }
            }
            (KIND_MSS | KIND_WINDOW_SCALE | KIND_SACK_PERMITTED, _) => {
                return Err(DropReason::TcpBadOption);
            }
            _ => {}
        }
        Ok(())
    }

    /// Bytes of these options when emitted, a multiple of four.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        let blocks = self.emitted_sack_blocks();
        let sack_bytes = if blocks == 0 {
            0
        } else {
            4 + blocks * SACK_BLOCK_BYTES
        };
        self.bytes_before_sack() + sack_bytes
    }

    /// How many SACK blocks there is room for beside the other options; the first ones are sent.
    /// Three with timestamps, four without (RFC 2018 s3).
    #[must_use]
    pub const fn emitted_sack_blocks(&self) -> usize {
        let room = (OPTIONS_BYTES_MAX - self.bytes_before_sack() - 4) / SACK_BLOCK_BYTES;
        let count = self.sack.count as usize;
        if count < room { count } else { room }
    }

    const fn bytes_before_sack(&self) -> usize {
        let mss = if self.mss.is_some() { 4 } else { 0 };
        let scale = if self.window_scale.is_some() { 4 } else { 0 };
        let timing = match (self.sack_permitted, self.timestamps.is_some()) {
            (_, true) => 12,
            (true, false) => 4,
            (false, false) => 0,
        };
        mss + timing + scale
    }

    /// Writes the options in the layouts above.
    pub(crate) fn emit(&self, writer: &mut Writer<'_>) {
        if let Some(mss) = self.mss {
            writer.bytes(&[KIND_MSS, MSS_BYTES]).u16(mss);
        }
        if self.sack_permitted {
            if self.timestamps.is_none() {
                writer.bytes(&[KIND_NOP, KIND_NOP]);
            }
            writer.bytes(&[KIND_SACK_PERMITTED, SACK_PERMITTED_BYTES]);
        }
        if let Some(Timestamps { value, echo }) = self.timestamps {
            if !self.sack_permitted {
                writer.bytes(&[KIND_NOP, KIND_NOP]);
            }
            writer
                .bytes(&[KIND_TIMESTAMPS, TIMESTAMPS_BYTES])
                .u32(value)
                .u32(echo);
        }
        if let Some(shift) = self.window_scale {
            debug_assert!(
                shift <= WINDOW_SCALE_MAX,
                "RFC 7323 s2.3 forbids a shift of {shift}"
            );
            writer.bytes(&[KIND_NOP, KIND_WINDOW_SCALE, WINDOW_SCALE_BYTES, shift]);
        }
        self.emit_sack(writer);
    }

    fn emit_sack(&self, writer: &mut Writer<'_>) {
        let blocks = self.sack.as_slice();
        let blocks = blocks.get(..self.emitted_sack_blocks()).unwrap_or(blocks);
        if blocks.is_empty() {
            return;
        }
        let length = u8::try_from(2 + blocks.len() * SACK_BLOCK_BYTES)
            .expect("invariant: at most four blocks");
        writer.bytes(&[KIND_NOP, KIND_NOP, KIND_SACK, length]);
        for (left, right) in blocks {
            writer.u32(left.0).u32(right.0);
        }
    }
}
