//! The 10-byte virtio-net header in front of every frame of a tap and of a packet socket.
//!
//! Virtio 1.2, s5.1.6 `struct virtio_net_hdr` without `num_buffers`, in the byte order of this
//! host: that is what the kernel means for both descriptors unless told otherwise
//! (`TUNSETVNETLE`). The header names what is left to do with a frame: complete its checksum, cut
//! it. It refuses sizes larger than a `u16` as a programming error: links refuse larger frames
//! first. Bound: 10 bytes per frame, on the stack.

use wire::{ChecksumState, Offload, SegmentationKind};

/// Bytes of the header on the descriptor.
pub(crate) const VNET_HEADER_BYTES: usize = 10;

/// `csum_start` and `csum_offset` hold; the checksum field holds the pseudo-header sum.
const FLAG_NEEDS_CSUM: u8 = 1;
/// Somebody has verified the checksum.
const FLAG_DATA_VALID: u8 = 2;
/// A large TCP segment over IPv4.
const GSO_TCPV4: u8 = 1;
/// A large TCP segment over IPv6.
const GSO_TCPV6: u8 = 4;

/// `struct virtio_net_hdr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VnetHeader {
    /// [`FLAG_NEEDS_CSUM`], [`FLAG_DATA_VALID`].
    flags: u8,
    /// `GSO_` kind, 0 for a frame that is not cut.
    gso_type: u8,
    /// Bytes of Ethernet, IP and transport headers, and of the payload that is to stay linear with
    /// them. The kernel keeps these bytes in one piece and puts the rest into pages; 0 would make it
    /// allocate 64 KB in one piece.
    hdr_len: u16,
    /// Payload bytes of each cut segment.
    gso_size: u16,
    /// Where the checksum starts, from the start of the frame.
    csum_start: u16,
    /// Where it is stored, from `csum_start`.
    csum_offset: u16,
}

impl VnetHeader {
    /// The header that asks the kernel for `offload` on a frame of which it is to keep
    /// `linear_bytes` in one piece, the headers at least.
    pub(crate) fn from_offload(offload: &Offload, linear_bytes: usize) -> Self {
        assert!(
            offload.segmentation.is_none() || offload.checksum.is_some(),
            "segmentation without a partial checksum: each cut segment needs its own"
        );
        let mut header = Self {
            hdr_len: u16::try_from(linear_bytes).expect("invariant: headers fit 64 KB"),
            ..Self::default()
        };
        if let Some(checksum) = offload.checksum {
            header.flags = FLAG_NEEDS_CSUM;
            header.csum_start = checksum.start;
            header.csum_offset = checksum.offset;
        }
        if let Some(segmentation) = offload.segmentation {
            header.gso_type = match segmentation.kind {
                SegmentationKind::TcpV4 => GSO_TCPV4,
                SegmentationKind::TcpV6 => GSO_TCPV6,
            };
            header.gso_size = segmentation.segment_bytes;
        }
        header
    }

    /// What a received frame's header says of its checksum.
    ///
    /// `NEEDS_CSUM` means that the sender shares this host's memory and never computed it.
    pub(crate) const fn checksum_state(self) -> ChecksumState {
        if self.flags & (FLAG_NEEDS_CSUM | FLAG_DATA_VALID) == 0 {
            ChecksumState::Unverified
        } else {
            ChecksumState::Trusted
        }
    }

    /// The bytes as the descriptor takes them.
    pub(crate) const fn to_bytes(self) -> [u8; VNET_HEADER_BYTES] {
        let [hdr_len_0, hdr_len_1] = self.hdr_len.to_ne_bytes();
        let [gso_size_0, gso_size_1] = self.gso_size.to_ne_bytes();
        let [start_0, start_1] = self.csum_start.to_ne_bytes();
        let [offset_0, offset_1] = self.csum_offset.to_ne_bytes();
        [
            self.flags,
            self.gso_type,
            hdr_len_0,
            hdr_len_1,
            gso_size_0,
            gso_size_1,
            start_0,
            start_1,
            offset_0,
            offset_1,
        ]
    }

    /// Splits what a descriptor gave into header and frame; `None` if it is too short.
    pub(crate) fn split(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (header, frame) = bytes.split_first_chunk::<VNET_HEADER_BYTES>()?;
        let [flags, gso_type, h0, h1, s0, s1, c0, c1, o0, o1] = *header;
        let header = Self {
            flags,
            gso_type,
            hdr_len: u16::from_ne_bytes([h0, h1]),
            gso_size: u16::from_ne_bytes([s0, s1]),
            csum_start: u16::from_ne_bytes([c0, c1]),
            csum_offset: u16::from_ne_bytes([o0, o1]),
        };
        Some((header, frame))
    }
}

#[cfg(test)]
mod tests {
    use wire::{ChecksumState, Offload, PartialChecksum, Segmentation, SegmentationKind};

    use super::{VNET_HEADER_BYTES, VnetHeader};

    fn offload(kind: Option<SegmentationKind>) -> Offload {
        Offload {
            checksum: Some(PartialChecksum {
                start: 34,
                offset: 16,
            }),
            segmentation: kind.map(|kind| Segmentation {
                kind,
                segment_bytes: 1_448,
            }),
        }
    }

    #[test]
    fn the_struct_has_the_size_of_the_kernel_s() {
        assert_eq!(size_of::<VnetHeader>(), VNET_HEADER_BYTES);
        assert_eq!(
            VNET_HEADER_BYTES, 10,
            "virtio 1.2 s5.1.6, without num_buffers"
        );
    }

    #[test]
    fn offloads_become_the_documented_bytes() {
        let mut expected = [0_u8; VNET_HEADER_BYTES];
        let plain = VnetHeader::from_offload(&Offload::default(), 54);
        expected[2..4].copy_from_slice(&54_u16.to_ne_bytes());
        assert_eq!(plain.to_bytes(), expected);

        expected[0] = 1;
        expected[6..8].copy_from_slice(&34_u16.to_ne_bytes());
        expected[8..].copy_from_slice(&16_u16.to_ne_bytes());
        assert_eq!(
            VnetHeader::from_offload(&offload(None), 54).to_bytes(),
            expected
        );

        expected[4..6].copy_from_slice(&1_448_u16.to_ne_bytes());
        for (kind, number) in [(SegmentationKind::TcpV4, 1), (SegmentationKind::TcpV6, 4)] {
            expected[1] = number;
            assert_eq!(
                VnetHeader::from_offload(&offload(Some(kind)), 54).to_bytes(),
                expected
            );
        }
    }

    #[test]
    fn an_emitted_header_parses_to_itself() {
        let header = VnetHeader::from_offload(&offload(Some(SegmentationKind::TcpV6)), 86);
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend_from_slice(b"frame");
        assert_eq!(
            VnetHeader::split(&bytes),
            Some((header, b"frame".as_slice()))
        );
    }

    #[test]
    fn a_header_cut_short_is_refused() {
        assert_eq!(VnetHeader::split(&[0; VNET_HEADER_BYTES - 1]), None);
        let whole = VnetHeader::split(&[0; VNET_HEADER_BYTES]);
        assert_eq!(whole, Some((VnetHeader::default(), [].as_slice())));
    }

    #[test]
    fn either_flag_makes_the_checksum_trusted() {
        let state = |flags| {
            VnetHeader {
                flags,
                ..VnetHeader::default()
            }
            .checksum_state()
        };
        assert_eq!(state(0), ChecksumState::Unverified);
        assert_eq!(state(1), ChecksumState::Trusted);
        assert_eq!(state(2), ChecksumState::Trusted);
        assert_eq!(
            state(4),
            ChecksumState::Unverified,
            "RSC_INFO says nothing of checksums"
        );
    }

    #[test]
    #[should_panic(expected = "segmentation without a partial checksum")]
    fn segmentation_needs_a_partial_checksum() {
        let offload = Offload {
            checksum: None,
            ..offload(Some(SegmentationKind::TcpV4))
        };
        let _ = VnetHeader::from_offload(&offload, 54);
    }
}
