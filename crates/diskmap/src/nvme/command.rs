//! Submission and completion queue entries (NVM Express Base Specification 2.0, Submission Queue Entry and
//! Common Completion Queue Entry), and the few commands that are sent.
//!
//! It refuses lists of SGL descriptors, fused commands and metadata. An entry is plain data: whether it is sound is for
//! those to say who build it, and for [`super::queue`] and the tables of commands when one arrives.

use super::Status;

/// Size of a submission queue entry.
pub(super) const SUBMISSION_ENTRY_BYTES: usize = 64;
/// Size of a completion queue entry.
pub(super) const COMPLETION_ENTRY_BYTES: usize = 16;

/// Opcodes of the NVM command set (NVM Command Set Specification 1.0, Opcodes for NVM Commands).
pub(super) mod io {
    /// Flush.
    pub(in crate::nvme) const FLUSH: u8 = 0x00;
    /// Write.
    pub(in crate::nvme) const WRITE: u8 = 0x01;
    /// Read.
    pub(in crate::nvme) const READ: u8 = 0x02;
}

/// Opcodes of admin commands (NVM Express Base Specification 2.0, Admin Command Set).
pub(crate) mod admin {
    /// Delete I/O Submission Queue.
    pub(in crate::nvme) const DELETE_SUBMISSION_QUEUE: u8 = 0x00;
    /// Create I/O Submission Queue.
    pub(in crate::nvme) const CREATE_SUBMISSION_QUEUE: u8 = 0x01;
    /// Delete I/O Completion Queue.
    pub(in crate::nvme) const DELETE_COMPLETION_QUEUE: u8 = 0x04;
    /// Create I/O Completion Queue.
    pub(in crate::nvme) const CREATE_COMPLETION_QUEUE: u8 = 0x05;
    /// Identify.
    pub(crate) const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub(in crate::nvme) const ABORT: u8 = 0x08;
    /// Set Features.
    pub(in crate::nvme) const SET_FEATURES: u8 = 0x09;
}

/// CNS of Identify: a namespace.
pub(crate) const CNS_NAMESPACE: u32 = 0;
/// CNS of Identify: the controller.
pub(super) const CNS_CONTROLLER: u32 = 1;
/// CNS of Identify: the list of active namespaces.
pub(super) const CNS_ACTIVE_NAMESPACES: u32 = 2;
/// Feature identifier: Number of Queues.
pub(super) const FEATURE_NUMBER_OF_QUEUES: u32 = 7;

/// PRP or SGL for Data Transfer (PSDT) in the second byte: an SGL, and metadata without one.
pub(super) const PSDT_SGL: u8 = 0b01 << 6;

/// A submission queue entry, by its fields.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct SubmissionEntry {
    /// Opcode (OPC).
    pub(super) opcode: u8,
    /// Command Identifier (CID).
    pub(super) command_id: u16,
    /// Namespace Identifier (NSID).
    pub(super) namespace_id: u32,
    /// PRP Entry 1, or with `is_sgl` the address of one SGL Data Block descriptor.
    pub(super) prp1: u64,
    /// PRP Entry 2, or with `is_sgl` the descriptor's length, 32 bits; type and sub type, in its last byte, are
    /// 0: a data block at an address.
    pub(super) prp2: u64,
    /// The data is named by an SGL descriptor instead of PRPs (PSDT 01b).
    pub(super) is_sgl: bool,
    /// Command dwords 10 to 12; 13 to 15 are 0 in all commands that are sent.
    pub(super) dwords: [u32; 3],
}

impl SubmissionEntry {
    /// As the controller reads it.
    pub(super) fn to_bytes(self) -> [u8; SUBMISSION_ENTRY_BYTES] {
        let mut bytes = [0; SUBMISSION_ENTRY_BYTES];
        bytes[0] = self.opcode;
        // FUSE is 0: not fused.
        bytes[1] = if self.is_sgl { PSDT_SGL } else { 0 };
        bytes[2..4].copy_from_slice(&self.command_id.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.namespace_id.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.prp1.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.prp2.to_le_bytes());
        for (dword, target) in self.dwords.iter().zip(bytes[40..52].chunks_exact_mut(4)) {
            target.copy_from_slice(&dword.to_le_bytes());
        }
        bytes
    }
}

/// Dwords 10 to 12 of Read and Write: Starting LBA, and Number of Logical Blocks (one less). For
/// queue pairs and for `io_uring` passthrough alike.
pub(super) fn block_dwords(first_block: u64, block_count: u32) -> [u32; 3] {
    debug_assert!(
        (1..=0x1_0000).contains(&block_count),
        "{block_count} blocks"
    );
    let [a, b, c, d, e, f, g, h] = first_block.to_le_bytes();
    [
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
        block_count - 1,
    ]
}

/// A completion queue entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CompletionEntry {
    /// Command-specific (dword 0).
    pub(super) result: u32,
    /// SQ Head Pointer.
    pub(super) submission_head: u16,
    /// SQ Identifier.
    pub(super) queue_id: u16,
    /// Command Identifier.
    pub(super) command_id: u16,
    /// Status Field.
    pub(super) status: Status,
    /// Phase Tag.
    pub(super) phase: bool,
}

impl CompletionEntry {
    /// As the controller wrote it.
    pub(super) fn from_bytes(bytes: &[u8; COMPLETION_ENTRY_BYTES]) -> Self {
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Self {
            result: u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            submission_head: half(8),
            queue_id: half(10),
            command_id: half(12),
            status: Status::from_entry(half(14)),
            phase: half(14) & 1 != 0,
        }
    }

    /// As a controller writes it.
    pub(super) fn to_bytes(self) -> [u8; COMPLETION_ENTRY_BYTES] {
        let mut bytes = [0; COMPLETION_ENTRY_BYTES];
        bytes[0..4].copy_from_slice(&self.result.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.submission_head.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.queue_id.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.command_id.to_le_bytes());
        bytes[14..16].copy_from_slice(&self.status.to_entry(self.phase).to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_laid_out_as_the_specification_says() {
        let entry = SubmissionEntry {
            opcode: io::READ,
            command_id: 0x1234,
            namespace_id: 1,
            prp1: 0x1000,
            prp2: 0x2000,
            dwords: block_dwords(0x1_0000_0002, 8),
            is_sgl: false,
        };
        let bytes = entry.to_bytes();
        assert_eq!(bytes[..8], [2, 0, 0x34, 0x12, 1, 0, 0, 0]);
        assert_eq!(bytes[24..34], [0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x20]);
        assert_eq!(bytes[40..52], [2, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0]);
        assert!(bytes[8..24].iter().chain(&bytes[52..]).all(|b| *b == 0));
    }

    #[test]
    fn a_descriptor_takes_the_place_of_prps() {
        let entry = SubmissionEntry {
            opcode: io::READ,
            prp1: 0x1234_5000,
            prp2: 0xf_f000,
            is_sgl: true,
            ..SubmissionEntry::default()
        };
        let bytes = entry.to_bytes();
        assert_eq!(bytes[..2], [2, 0x40]);
        // Address, length, three reserved bytes, type and sub type.
        assert_eq!(bytes[24..32], [0, 0x50, 0x34, 0x12, 0, 0, 0, 0]);
        assert_eq!(bytes[32..40], [0, 0xf0, 0xf, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_completion_survives_its_bytes() {
        let entry = CompletionEntry {
            result: 0xdead_beef,
            submission_head: 3,
            queue_id: 4,
            command_id: 5,
            status: Status::new(2, 0x81, true),
            phase: true,
        };
        assert_eq!(CompletionEntry::from_bytes(&entry.to_bytes()), entry);
    }
}
