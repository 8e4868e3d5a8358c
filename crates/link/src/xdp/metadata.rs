//! What a frame that is sent asks of the kernel or the device, in the bytes before it (Linux 6.8):
//! `struct xsk_tx_metadata`. Here it is always the transport checksum.
//!
//! Where the kernel copies, it keeps the request with its copy (`CHECKSUM_PARTIAL`), as it does for every
//! socket's frames. In zero copy the driver has it, or ignores it: then nobody would finish the checksum, so
//! the device is asked first ([`crate::netlink::Generic::device`]).
//!
//! It refuses to ask for timestamps and launch times: nothing here would use them. Bound: 24 bytes.
//!
//! Reading first: Documentation/networking/xsk-tx-metadata.rst; linux/if_xdp.h.

use wire::PartialChecksum;

/// Bytes of the structure, and between the page's start and the first byte of its first descriptor.
pub(super) const METADATA_BYTES: u32 = 24;

/// The metadata that asks for a frame's checksum, whose field holds the pseudo-header's sum: flags, where
/// the sum starts, and where it is stored from there. The frame has `tag_bytes` more before its IP header
/// than `checksum` knows of.
pub(super) fn checksum_request(
    checksum: PartialChecksum,
    tag_bytes: usize,
) -> [u8; METADATA_BYTES as usize] {
    let tag_bytes = u16::try_from(tag_bytes).expect("invariant: a tag is short");
    let mut bytes = [0; METADATA_BYTES as usize];
    let (flags, rest) = bytes.split_at_mut(8);
    let (start, rest) = rest.split_at_mut(2);
    let (offset, _) = rest.split_at_mut(2);
    flags.copy_from_slice(&u64::from(libc::XDP_TXMD_FLAGS_CHECKSUM).to_ne_bytes());
    start.copy_from_slice(&(checksum.start + tag_bytes).to_ne_bytes());
    offset.copy_from_slice(&checksum.offset.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use wire::PartialChecksum;

    use super::{METADATA_BYTES, checksum_request};

    #[test]
    fn the_bytes_are_those_of_the_kernel_s_structure() {
        let checksum = PartialChecksum {
            start: 34,
            offset: 16,
        };
        for (tag_bytes, start) in [(0, 34_u16), (4, 38)] {
            let mut expected = [0; 24];
            expected[..8].copy_from_slice(&2_u64.to_ne_bytes());
            expected[8..10].copy_from_slice(&start.to_ne_bytes());
            expected[10..12].copy_from_slice(&16_u16.to_ne_bytes());
            assert_eq!(checksum_request(checksum, tag_bytes), expected);
        }
        // Of Linux 6.8; a launch time of 64 bits is behind it since 6.14.
        let first = size_of::<libc::xsk_tx_metadata>();
        assert_eq!(METADATA_BYTES as usize, first + size_of::<u64>());
        let request = std::mem::offset_of!(libc::xsk_tx_metadata, xsk_tx_metadata_union);
        let start = std::mem::offset_of!(libc::xsk_tx_metadata_request, csum_start);
        let offset = std::mem::offset_of!(libc::xsk_tx_metadata_request, csum_offset);
        assert_eq!((request + start, request + offset), (8, 10));
    }
}
