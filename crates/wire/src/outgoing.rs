//! An outgoing frame: headers, gathered payload, and the work left to the link (offloads).
//!
//! Nothing here owns bytes or checks them: these are the types between the stack, which writes
//! headers and refers to payload, and the link, which sends. [`Outgoing::PARTS_MAX`] bounds the
//! gather.

/// One outgoing frame. Nothing in it is owned: when `Link::transmit` returns, the memory is the
/// caller's again, but for a slot that it says it has on loan.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Ethernet, IP and transport headers, contiguous.
    pub headers: &'a [u8],
    /// Payload parts in order, at most [`Outgoing::PARTS_MAX`].
    pub payload: &'a [&'a [u8]],
    /// Work left to the link.
    pub offload: Offload,
}

impl Outgoing<'_> {
    /// Most payload parts one frame may gather: text, and bytes of a slot.
    pub const PARTS_MAX: usize = 2;

    /// Bytes of the frame, headers included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let payload = self.payload.iter().map(|part| part.len());
        self.headers.len() + payload.sum::<usize>()
    }
}

/// Work left to the link, in the terms of a virtio-net header (virtio 1.2, 5.1.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offload {
    /// The transport checksum field holds the pseudo-header sum; the link completes it.
    pub checksum: Option<PartialChecksum>,
    /// The frame is larger than the MTU; the link (or the kernel, or the NIC) cuts it.
    pub segmentation: Option<Segmentation>,
}

/// Where the transport checksum starts and where it is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartialChecksum {
    /// Byte offset in the frame from which the sum runs to the end (start of the TCP header).
    pub start: u16,
    /// Byte offset of the checksum field, counted from `start`.
    pub offset: u16,
}

/// How to cut a large TCP segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segmentation {
    /// IP version of the frame.
    pub kind: SegmentationKind,
    /// Payload bytes of each cut segment.
    pub segment_bytes: u16,
}

/// The IP version a large TCP segment is cut under.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentationKind {
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
}
