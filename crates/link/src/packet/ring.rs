//! The receive ring (`PACKET_RX_RING`): the kernel writes frames to shared memory, so receiving one
//! takes no system call.
//!
//! A TPACKET_V2 ring of [`RING_ENTRIES`] entries of [`ENTRY_BYTES`]. Receiving an acknowledgment
//! costs half of what it costs by `recvmmsg` in batches of 64 (docs/develop/decisions/0005-packet-io.md).
//! Only receive offload and uploads make frames too large for an entry. The kernel queues such a
//! frame whole on the socket and puts a truncated copy into the ring; it is received from the socket
//! when its entry is reached.
//!
//! It refuses to lend ring memory: a frame is copied out (66 bytes, mostly) and its entry returned
//! to the kernel before the caller sees the frame. So no reference is ever formed to bytes the
//! kernel may write (to a status word only as an atomic), and a slow reader cannot stop the ring.
//!
//! It also refuses virtio-net headers. With them, the kernel drops a frame whose offload they cannot
//! express (fragmented UDP from a neighbouring guest, SCTP) after it has marked the entry as being
//! filled, and never clears the mark: the ring then stalls for good (tried on Linux 6.18). The
//! entry's status has what the header would say of the checksum.
//!
//! Bounds: 4 MiB of ring, allocated by the kernel at start; two buffers of 2 KB and 64 KB. When the
//! ring is full the kernel drops frames, counts them, and sets a flag in the next entry.
//!
//! Reading first: Documentation/networking/packet_mmap.rst; `tpacket_rcv` in net/packet.
#![allow(
    unsafe_code,
    reason = "UNSAFETY: maps the ring and reads what the kernel wrote there"
)]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use wire::ChecksumState;

use crate::ETHERNET_BYTES;
use crate::sys;

/// Bytes of one entry: room for a full Ethernet frame of 1,500 bytes behind the ring's header.
const ENTRY_BYTES: usize = 2_048;

/// Entries of the ring: 2 ms of a million acknowledgments a second. Acknowledgments touch a tenth
/// of its memory, which fits the second level cache.
const RING_ENTRIES: usize = 2_048;

const RING_BYTES: usize = ENTRY_BYTES * RING_ENTRIES;

/// `tp_block_size`, which the kernel allocates in one piece: any multiple of the page size.
const BLOCK_BYTES: usize = 65_536;

/// Room for the largest frame: Ethernet header, IPv6 with 65,535 bytes of payload.
const LARGE_BYTES: usize = ETHERNET_BYTES + 65_575;

/// `struct tpacket2_hdr` up to the last field we read: status, length, kept length (32 bits each),
/// offset of the frame (16 bits).
const OFFSET_LENGTH: usize = 4;
const OFFSET_KEPT_LENGTH: usize = 8;
const OFFSET_FRAME_OFFSET: usize = 12;

const TPACKET_V2: i32 = 1;
/// The entry is ours.
const STATUS_USER: u32 = 1;
/// The frame is on the socket's queue, whole.
const STATUS_COPY: u32 = 2;
/// The kernel has dropped frames since it was last asked how many.
const STATUS_LOSING: u32 = 4;
/// The sender shares this host's memory and never computed the checksum.
const STATUS_CHECKSUM_UNFINISHED: u32 = 1 << 3;
/// Somebody has verified the checksum.
const STATUS_CHECKSUM_VALID: u32 = 1 << 7;
/// The entry is the kernel's.
const STATUS_KERNEL: u32 = 0;

/// One received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingFrame<'a> {
    /// The frame, and what is known of its transport checksum.
    Complete(&'a [u8], ChecksumState),
    /// It was larger than there was room for.
    Truncated,
}

/// The ring of one socket, and the memory frames are copied out to.
#[derive(Debug)]
pub(super) struct ReceiveRing {
    /// [`RING_BYTES`] shared with the kernel.
    memory: NonNull<u8>,
    /// Index of the entry that is read next.
    next: usize,
    /// Whether an entry had `STATUS_LOSING`, since this was last asked for.
    is_losing: bool,
    /// The pending errno that was read in place of a large frame, until it is asked for.
    error: Option<i32>,
    small: Box<[u8]>,
    large: Box<[u8]>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and to this value alone; the kernel
// writes it from any processor. Whoever has the value, one thread at a time, uses it.
unsafe impl Send for ReceiveRing {}

/// The fields of an entry's header.
struct EntryHeader {
    status: u32,
    length: usize,
    kept_length: usize,
    frame_offset: usize,
}

impl ReceiveRing {
    /// Makes the ring of a packet socket; before it is bound, so that no frame misses it. The
    /// socket must not want virtio-net headers.
    pub(super) fn new(socket: BorrowedFd<'_>) -> Result<Self, i32> {
        let level = libc::SOL_PACKET;
        sys::set_integer(socket, level, libc::PACKET_VERSION, TPACKET_V2)?;
        // Any value but 0 has the same meaning: queue large frames whole.
        sys::set_integer(socket, level, libc::PACKET_COPY_THRESH, 1)?;
        sys::set_receive_ring(socket, BLOCK_BYTES, ENTRY_BYTES, RING_ENTRIES)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (flags, fd) = (libc::MAP_SHARED, socket.as_raw_fd());
        // SAFETY: a new mapping at an address the kernel chooses; nothing of ours is there.
        let memory =
            unsafe { libc::mmap(std::ptr::null_mut(), RING_BYTES, protection, flags, fd, 0) };
        if memory == libc::MAP_FAILED {
            return Err(sys::last_errno());
        }
        Ok(Self {
            memory: NonNull::new(memory.cast()).expect("invariant: mmap does not map 0"),
            next: 0,
            is_losing: false,
            error: None,
            small: vec![0; ENTRY_BYTES].into_boxed_slice(),
            large: vec![0; LARGE_BYTES].into_boxed_slice(),
        })
    }

    /// Takes the next frame out, if there is one.
    pub(super) fn take(&mut self, socket: BorrowedFd<'_>) -> Option<RingFrame<'_>> {
        let entry = self.entry()?;
        self.is_losing |= entry.status & STATUS_LOSING != 0;
        let kept = self.copy_out(&entry);
        // The entry has been copied: from here on the kernel may write it.
        self.status().store(STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % RING_ENTRIES;
        let checksum = checksum_state(entry.status);
        if entry.status & STATUS_COPY != 0 {
            return Some(self.take_large(socket, checksum));
        }
        match kept.and_then(|bytes| self.small.get(..bytes)) {
            Some(bytes) if entry.kept_length == entry.length => {
                Some(RingFrame::Complete(bytes, checksum))
            }
            _ => Some(RingFrame::Truncated),
        }
    }

    /// Whether the kernel has reported dropped frames since the last call.
    pub(super) const fn take_losing(&mut self) -> bool {
        std::mem::replace(&mut self.is_losing, false)
    }

    /// Takes the pending errno that was read in place of a large frame.
    pub(super) const fn take_error(&mut self) -> Option<i32> {
        self.error.take()
    }

    /// The frame of the entry just returned, from the socket's queue: both have the same order.
    fn take_large(&mut self, socket: BorrowedFd<'_>, checksum: ChecksumState) -> RingFrame<'_> {
        let mut received = sys::receive(socket, &mut self.large);
        if received == Err(libc::ENETDOWN) {
            // A pending socket error is reported first, once, and the frame is still queued. Left
            // there, it would be taken for the next large frame.
            self.error = Some(libc::ENETDOWN);
            received = sys::receive(socket, &mut self.large);
        }
        match received {
            Ok(length) => {
                let frame = self.large.get(..length);
                frame.map_or(RingFrame::Truncated, |frame| {
                    RingFrame::Complete(frame, checksum)
                })
            }
            // Impossible unless the queue has no frame; then the frame is lost, and counted.
            Err(_) => RingFrame::Truncated,
        }
    }

    /// The next entry's header, if the kernel has filled the entry.
    fn entry(&self) -> Option<EntryHeader> {
        let status = self.status().load(Ordering::Acquire);
        if status & STATUS_USER == 0 {
            return None;
        }
        let small = |number: u32| usize::try_from(number).expect("invariant: usize has 32 bits");
        let length = self.word(OFFSET_LENGTH).cast::<u32>();
        // SAFETY: an aligned word of an entry that is ours: the kernel does not write it.
        let length = small(unsafe { length.read() });
        let kept_length = self.word(OFFSET_KEPT_LENGTH).cast::<u32>();
        // SAFETY: as above.
        let kept_length = small(unsafe { kept_length.read() });
        let frame_offset = self.word(OFFSET_FRAME_OFFSET).cast::<u16>();
        // SAFETY: as above, of 16 bits.
        let frame_offset = usize::from(unsafe { frame_offset.read() });
        Some(EntryHeader {
            status,
            length,
            kept_length,
            frame_offset,
        })
    }

    /// Copies the frame out; how many bytes, `None` if the header contradicts the entry's size.
    fn copy_out(&mut self, entry: &EntryHeader) -> Option<usize> {
        let length = entry.kept_length;
        let end = entry.frame_offset.checked_add(length)?;
        if end > ENTRY_BYTES || entry.frame_offset == ENTRY_BYTES {
            return None;
        }
        let source = self.word(entry.frame_offset).as_ptr().cast_const();
        // SAFETY: both are good for `length` <= ENTRY_BYTES bytes and do not overlap; the entry
        // is ours, so the kernel does not write the source.
        unsafe { source.copy_to_nonoverlapping(self.small.as_mut_ptr(), length) };
        Some(length)
    }

    /// The status word of the next entry, which both sides write.
    fn status(&self) -> &AtomicU32 {
        let word = self.word(0).cast::<u32>();
        // SAFETY: an aligned word inside the mapping, which lives as long as `self`, and which
        // both sides access atomically.
        unsafe { AtomicU32::from_ptr(word.as_ptr()) }
    }

    /// A position in the next entry.
    fn word(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(
            offset < ENTRY_BYTES && self.next < RING_ENTRIES,
            "outside the ring"
        );
        // SAFETY: inside the mapping, by the above.
        unsafe { self.memory.add(self.next * ENTRY_BYTES + offset) }
    }
}

/// What an entry's status says of its frame's checksum.
const fn checksum_state(status: u32) -> ChecksumState {
    if status & (STATUS_CHECKSUM_UNFINISHED | STATUS_CHECKSUM_VALID) == 0 {
        ChecksumState::Unverified
    } else {
        ChecksumState::Trusted
    }
}

impl Drop for ReceiveRing {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, to which no pointer remains.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), RING_BYTES) };
    }
}

const _: () =
    assert!(BLOCK_BYTES.is_multiple_of(ENTRY_BYTES) && RING_BYTES.is_multiple_of(BLOCK_BYTES));

#[cfg(test)]
mod tests {
    use super::{ChecksumState, STATUS_LOSING, STATUS_USER, checksum_state};

    #[test]
    fn either_checksum_status_makes_the_checksum_trusted() {
        assert_eq!(
            checksum_state(STATUS_USER | STATUS_LOSING),
            ChecksumState::Unverified
        );
        // linux/if_packet.h: TP_STATUS_CSUMNOTREADY, TP_STATUS_CSUM_VALID.
        assert_eq!(checksum_state(STATUS_USER | 8), ChecksumState::Trusted);
        assert_eq!(checksum_state(STATUS_USER | 128), ChecksumState::Trusted);
    }
}
