//! NVMe commands as the kernel's driver takes them: `struct nvme_uring_cmd` and `struct nvme_passthru_cmd`
//! (linux/nvme_ioctl.h), which are laid out alike up to their last word.

/// Size of either, bytes.
pub(super) const COMMAND_BYTES: usize = 72;
/// Bytes of an `io_uring` entry that are the command's.
pub(super) const ENTRY_COMMAND_BYTES: usize = 80;
/// `NVME_URING_CMD_IO`, `_IOWR('N', 0x80, struct nvme_uring_cmd)`.
pub(super) const URING_COMMAND: u32 = 0xc048_4e80;

/// A command: opcode and Namespace Identifier; address and length of the data; dwords 10 to 12. All else,
/// the timeout among it, is 0: the kernel's choice.
pub(super) fn command_bytes(
    (opcode, namespace_id): (u8, u32),
    (address, length_bytes): (u64, u32),
    dwords: [u32; 3],
) -> [u8; COMMAND_BYTES] {
    let mut bytes = [0; COMMAND_BYTES];
    bytes[0] = opcode;
    bytes[4..8].copy_from_slice(&namespace_id.to_ne_bytes());
    bytes[24..32].copy_from_slice(&address.to_ne_bytes());
    bytes[36..40].copy_from_slice(&length_bytes.to_ne_bytes());
    for (dword, target) in dwords.iter().zip(bytes[40..52].chunks_exact_mut(4)) {
        target.copy_from_slice(&dword.to_ne_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_laid_out_as_the_kernel_s_header_says() {
        let bytes = command_bytes((2, 7), (0x1122_3344_5566_7788, 0x4000), [1, 2, 31]);
        let expected = |at: usize, value: u32| {
            assert_eq!(bytes[at..at + 4], value.to_ne_bytes(), "at {at}");
        };
        assert_eq!(bytes[..4], [2, 0, 0, 0]);
        expected(4, 7);
        assert_eq!(bytes[24..32], 0x1122_3344_5566_7788_u64.to_ne_bytes());
        expected(36, 0x4000);
        for (at, value) in [(40, 1), (44, 2), (48, 31)] {
            expected(at, value);
        }
        let rest = bytes[8..24]
            .iter()
            .chain(&bytes[32..36])
            .chain(&bytes[52..]);
        assert!(rest.copied().all(|byte| byte == 0));
    }
}
