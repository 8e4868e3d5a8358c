//! TCP headers and options (RFC 9293 s3.1, RFC 7323, RFC 2018).
//!
//! Refused: data offsets outside the segment, options with impossible lengths, port zero. Unknown
//! options are skipped; the urgent pointer and the reserved bits are not looked at.

mod flags;
mod options;
mod sequence;

pub use flags::TcpFlags;
pub use options::{
    OPTIONS_BYTES_MAX, SACK_BLOCKS_MAX, SackBlocks, TcpOptions, Timestamps, WINDOW_SCALE_MAX,
};
pub use sequence::SeqNumber;

use crate::field;
use crate::reason::DropReason;
use crate::writer::Writer;

/// Bytes of a header without options.
pub const HEADER_BYTES: usize = 20;
/// Bytes of the longest header: the data offset counts to 15 words.
pub const HEADER_BYTES_MAX: usize = HEADER_BYTES + OPTIONS_BYTES_MAX;
/// Offset of the checksum in the header.
pub const CHECKSUM_OFFSET: usize = 16;

/// A received segment whose data offset is sound.
#[derive(Clone, Copy, Debug)]
pub struct TcpSegment<'a> {
    header: &'a [u8; HEADER_BYTES],
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> TcpSegment<'a> {
    /// Splits a segment into header, options and payload. The checksum is the caller's to verify,
    /// since it takes the IP addresses: see [`crate::checksum::is_valid`].
    ///
    /// # Errors
    /// [`DropReason::TcpTooShort`], [`DropReason::TcpBadDataOffset`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DropReason> {
        let (header, rest) = bytes
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or(DropReason::TcpTooShort)?;
        let header_bytes = usize::from(header[12] >> 4) * 4;
        let (options, payload) = header_bytes
            .checked_sub(HEADER_BYTES)
            .and_then(|options_bytes| rest.split_at_checked(options_bytes))
            .ok_or(DropReason::TcpBadDataOffset)?;
        Ok(Self {
            header,
            options,
            payload,
        })
    }

    /// The header and its options as values.
    ///
    /// # Errors
    /// [`DropReason::TcpBadOption`], [`DropReason::TcpPortZero`].
    pub fn repr(&self) -> Result<TcpRepr, DropReason> {
        let repr = TcpRepr {
            source_port: field::u16::<0, _>(self.header),
            destination_port: field::u16::<2, _>(self.header),
            sequence: SeqNumber(field::u32::<4, _>(self.header)),
            acknowledgment: SeqNumber(field::u32::<8, _>(self.header)),
            flags: TcpFlags(self.header[13]),
            window: field::u16::<14, _>(self.header),
            options: TcpOptions::parse(self.options)?,
        };
        if repr.source_port == 0 || repr.destination_port == 0 {
            return Err(DropReason::TcpPortZero);
        }
        Ok(repr)
    }

    /// What follows the options.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// A TCP header as values.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpRepr {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// SEG.SEQ.
    pub sequence: SeqNumber,
    /// SEG.ACK; meaningful only with `ACK`.
    pub acknowledgment: SeqNumber,
    /// Control bits.
    pub flags: TcpFlags,
    /// SEG.WND as on the wire, unscaled.
    pub window: u16,
    /// Options.
    pub options: TcpOptions,
}

impl TcpRepr {
    /// Bytes of the header when emitted: options included, padded to a multiple of four.
    #[must_use]
    pub const fn header_bytes(&self) -> usize {
        HEADER_BYTES + self.options.bytes()
    }

    /// Writes the header, its checksum zero, and returns its length.
    pub fn emit(&self, header: &mut [u8; HEADER_BYTES_MAX]) -> usize {
        let header_bytes = self.header_bytes();
        let data_offset = u8::try_from((header_bytes / 4) << 4)
            .expect("invariant: a header is at most fifteen words");
        let mut writer = Writer::new(header);
        writer
            .u16(self.source_port)
            .u16(self.destination_port)
            .u32(self.sequence.0)
            .u32(self.acknowledgment.0)
            .bytes(&[data_offset, self.flags.0])
            .u16(self.window)
            .u16(0)
            .u16(0);
        self.options.emit(&mut writer);
        debug_assert_eq!(
            writer.remaining(),
            HEADER_BYTES_MAX - header_bytes,
            "length foretold"
        );
        header_bytes
    }
}
