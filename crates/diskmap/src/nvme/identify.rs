//! What Identify says (NVM Express Base Specification 2.0, Identify command; NVM Command Set Specification
//! 1.0, Identify command).
//!
//! The 4,096 bytes are the device's: each parser accepts what this driver can work with, and answers
//! the rest with an [`IdentifyError`]. Bounded by [`NAMESPACES_MAX`].

use super::PAGE_BYTES;

/// Most namespaces that are identified; further ones are ignored.
pub const NAMESPACES_MAX: usize = 32;

/// The data of one Identify command.
pub(crate) type IdentifyData = [u8; PAGE_BYTES as usize];

/// Why the data of an Identify command is of no use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentifyError {
    /// The controller takes no entries of 64 and 16 bytes.
    #[error(
        "its queue entries have other sizes than 64 and 16 bytes (SQES {sqes:#x}, CQES {cqes:#x})"
    )]
    EntrySizes {
        /// Submission Queue Entry Size.
        sqes: u8,
        /// Completion Queue Entry Size.
        cqes: u8,
    },
    /// A list of namespaces that does not ascend.
    #[error(
        "its list of active namespaces does not ascend: {0} follows a number that is not below it"
    )]
    NamespaceList(u32),
    /// A namespace without blocks.
    #[error("it has no blocks (NSZE)")]
    NoBlocks,
    /// FLBAS names a format that is not there.
    #[error("its format {0} does not exist (FLBAS)")]
    Format(u8),
    /// A format with metadata.
    #[error(
        "its format has {0} bytes of metadata for each block: format it without (nvme format -l)"
    )]
    Metadata(u16),
    /// Blocks of a size other than 512 and 4,096.
    #[error("its blocks have 2^{0} bytes: format it to 512 or 4096 (nvme format -l)")]
    BlockSize(u8),
    /// More bytes than 64 bits count.
    #[error("{0} blocks are more than can be addressed (NSZE)")]
    TooManyBlocks(u64),
}

/// What a controller says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControllerIdentity {
    /// Serial Number (SN), without padding.
    pub serial_number: String,
    /// Model Number (MN), without padding.
    pub model_number: String,
    /// Firmware Revision (FR), without padding.
    pub firmware_revision: String,
    /// Largest transfer of one command, bytes (MDTS); `None` if it has no limit.
    pub transfer_bytes_max: Option<u64>,
    /// Most commands in flight on one I/O queue (MAXCMD); `None` if it does not say.
    pub commands_max: Option<u16>,
    /// Whether data may be named by SGL descriptors (SGLS bits 1:0, with alignment to dwords or without).
    pub has_sgls: bool,
    /// Time a normal shutdown takes at most, microseconds (RTD3E); 0 if it does not say.
    pub shutdown_us_max: u32,
}

impl ControllerIdentity {
    /// The Identify Controller Data Structure.
    pub(super) fn parse(data: &IdentifyData) -> Result<Self, IdentifyError> {
        let (sqes, cqes) = (data[512], data[513]);
        let fits = |field: u8, size: u8| field & 0xf <= size && field >> 4 >= size;
        if !fits(sqes, 6) || !fits(cqes, 4) {
            return Err(IdentifyError::EntrySizes { sqes, cqes });
        }
        // MDTS is a power of two, in pages. One that is beyond 64 bits limits nothing.
        let transfer_bytes_max = match data[77] {
            0 => None,
            shift => u64::from(PAGE_BYTES).checked_shl(shift.into()),
        };
        let transfer_bytes_max = transfer_bytes_max.filter(|bytes| *bytes != 0);
        let commands_max = u16::from_le_bytes([data[514], data[515]]);
        Ok(Self {
            serial_number: text(&data[4..24]),
            model_number: text(&data[24..64]),
            firmware_revision: text(&data[64..72]),
            transfer_bytes_max,
            commands_max: (commands_max != 0).then_some(commands_max),
            has_sgls: matches!(data[536] & 0b11, 0b01 | 0b10),
            shutdown_us_max: dword(data, 88),
        })
    }
}

/// Printable ASCII without padding; whatever else is there becomes a question mark.
fn text(bytes: &[u8]) -> String {
    let printable = |byte: &u8| match byte {
        b' '..=b'~' => char::from(*byte),
        _ => '?',
    };
    let text: String = bytes.iter().map(printable).collect();
    text.trim().to_owned()
}

fn dword(data: &IdentifyData, at: usize) -> u32 {
    u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]])
}

/// The list of active namespaces: ascending, ended by 0 (CNS 02h). At most [`NAMESPACES_MAX`].
pub(super) fn parse_namespace_list(data: &IdentifyData) -> Result<Vec<u32>, IdentifyError> {
    let mut ids = Vec::new();
    let mut last = 0;
    for at in (0..data.len()).step_by(4) {
        let id = dword(data, at);
        if id == 0 {
            break;
        }
        if id <= last {
            return Err(IdentifyError::NamespaceList(id));
        }
        last = id;
        if ids.len() < NAMESPACES_MAX {
            ids.push(id);
        }
    }
    Ok(ids)
}

/// How a namespace is formatted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamespaceFormat {
    /// Blocks (NSZE).
    pub block_count: u64,
    /// Bytes of a block, as a power of two: 9 or 12 (LBADS).
    pub block_shift: u8,
}

impl NamespaceFormat {
    /// The Identify Namespace Data Structure of the NVM Command Set Specification.
    pub(crate) fn parse(data: &IdentifyData) -> Result<Self, IdentifyError> {
        let [a, b, c, d, e, f, g, h, ..] = *data;
        let block_count = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        if block_count == 0 {
            return Err(IdentifyError::NoBlocks);
        }
        // NLBAF is one less than the number of formats; FLBAS has its index in bits 3:0 and 6:5.
        let (formats, flbas) = (data[25], data[26]);
        let index = flbas & 0xf | (flbas >> 5 & 0b11) << 4;
        if index > formats.min(63) {
            return Err(IdentifyError::Format(index));
        }
        let format = dword(data, 128 + 4 * usize::from(index)).to_le_bytes();
        let metadata_bytes = u16::from_le_bytes([format[0], format[1]]);
        if metadata_bytes != 0 {
            return Err(IdentifyError::Metadata(metadata_bytes));
        }
        let block_shift = format[2];
        if block_shift != 9 && block_shift != 12 {
            return Err(IdentifyError::BlockSize(block_shift));
        }
        if block_count > u64::MAX >> block_shift {
            return Err(IdentifyError::TooManyBlocks(block_count));
        }
        Ok(Self {
            block_count,
            block_shift,
        })
    }

    /// Bytes of a block.
    #[must_use]
    pub const fn block_bytes(&self) -> u32 {
        1 << self.block_shift
    }

    /// Bytes of the namespace.
    #[must_use]
    pub const fn size_bytes(&self) -> u64 {
        self.block_count << self.block_shift
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controller() -> Box<IdentifyData> {
        let mut data = Box::new([0; 4096]);
        data[4..24].fill(b' ');
        data[4..8].copy_from_slice(b"S\x00\xffN");
        data[512] = 0x66;
        data[513] = 0x44;
        data
    }

    #[test]
    fn a_controller_tells_its_limits() {
        let mut data = controller();
        let identity = ControllerIdentity::parse(&data).unwrap();
        assert_eq!(identity.serial_number, "S??N");
        assert_eq!(identity.transfer_bytes_max, None);
        assert_eq!(identity.commands_max, None);
        data[77] = 5;
        data[514] = 64;
        let identity = ControllerIdentity::parse(&data).unwrap();
        assert_eq!(identity.transfer_bytes_max, Some(131_072));
        assert_eq!(identity.commands_max, Some(64));
        for huge in [52, 63, 64, 255] {
            data[77] = huge;
            let identity = ControllerIdentity::parse(&data).unwrap();
            assert_eq!(identity.transfer_bytes_max, None, "MDTS {huge}");
        }
        data[77] = 51;
        let identity = ControllerIdentity::parse(&data).unwrap();
        assert_eq!(identity.transfer_bytes_max, Some(1 << 63));
    }

    #[test]
    fn entries_of_other_sizes_are_refused() {
        for (sqes, cqes) in [
            (0, 0x44),
            (0x66, 0),
            (0x77, 0x44),
            (0x66, 0x55),
            (0x55, 0x44),
        ] {
            let mut data = controller();
            (data[512], data[513]) = (sqes, cqes);
            let refused = Err(IdentifyError::EntrySizes { sqes, cqes });
            assert_eq!(ControllerIdentity::parse(&data), refused);
        }
        let mut data = controller();
        (data[512], data[513]) = (0x76, 0x54);
        assert!(ControllerIdentity::parse(&data).is_ok());
    }

    #[test]
    fn lists_of_namespaces_ascend() {
        let list = |ids: &[u32]| {
            let mut data = Box::new([0; 4096]);
            for (id, target) in ids.iter().zip(data.chunks_exact_mut(4)) {
                target.copy_from_slice(&id.to_le_bytes());
            }
            parse_namespace_list(&data)
        };
        assert_eq!(list(&[]), Ok(vec![]));
        assert_eq!(list(&[1, 7, 0, 3]), Ok(vec![1, 7]));
        assert_eq!(list(&[1, 7, 7]), Err(IdentifyError::NamespaceList(7)));
        let most: Vec<u32> = (1..=1024).collect();
        assert_eq!(list(&most).unwrap().len(), NAMESPACES_MAX);
    }

    fn namespace(blocks: u64, formats: u8, flbas: u8, format: u32) -> Box<IdentifyData> {
        let mut data = Box::new([0; 4096]);
        data[..8].copy_from_slice(&blocks.to_le_bytes());
        (data[25], data[26]) = (formats, flbas);
        let index = usize::from(flbas & 0xf | (flbas >> 5 & 3) << 4);
        data[128 + 4 * index..][..4].copy_from_slice(&format.to_le_bytes());
        data
    }

    #[test]
    fn namespaces_on_both_sides_of_each_limit() {
        let parse = |blocks, formats, flbas, format| {
            NamespaceFormat::parse(&namespace(blocks, formats, flbas, format))
        };
        for (shift, bytes) in [(9, 512), (12, 4096)] {
            let format = parse(10, 0, 0, shift << 16).unwrap();
            assert_eq!(format.block_bytes(), bytes);
            assert_eq!(format.size_bytes(), 10 * u64::from(bytes));
        }
        for shift in [0_u8, 8, 10, 11, 13, 255] {
            let refused = parse(10, 0, 0, u32::from(shift) << 16);
            assert_eq!(refused, Err(IdentifyError::BlockSize(shift)));
        }
        assert_eq!(parse(0, 0, 0, 9 << 16), Err(IdentifyError::NoBlocks));
        assert_eq!(parse(10, 0, 1, 9 << 16), Err(IdentifyError::Format(1)));
        assert!(parse(10, 1, 1, 9 << 16).is_ok());
        assert!(parse(10, 17, 0x21, 9 << 16).is_ok(), "bits 6:5 count");
        assert_eq!(parse(10, 16, 0x21, 9 << 16), Err(IdentifyError::Format(17)));
        assert_eq!(
            parse(10, 0, 0, 9 << 16 | 8),
            Err(IdentifyError::Metadata(8))
        );
        let most = u64::MAX >> 9;
        assert!(parse(most, 0, 0, 9 << 16).is_ok());
        let refused = parse(most + 1, 0, 0, 9 << 16);
        assert_eq!(refused, Err(IdentifyError::TooManyBlocks(most + 1)));
    }
}
