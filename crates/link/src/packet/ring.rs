//! The receive ring: frames the kernel has already put into memory we share, for no system call.
//!
//! A TPACKET_V2 ring of [`RING_FRAMES`] places of [`PLACE_BYTES`]. An acknowledgment costs half of
//! what `recvmmsg` takes for it in batches of 64 (docs/decisions/0005-packet-io.md). Frames too
//! large for a place, which only receive offload and uploads make, are queued whole on the socket
//! beside their shortened copy in the ring, and are received from there in their turn.
//!
//! It refuses to lend ring memory: a frame is copied out (66 bytes, mostly) and its place given
//! back before anybody sees it. So no reference is ever formed to bytes the kernel may write (to
//! a status word only as an atomic), and a slow reader cannot stop the ring.
//!
//! It also refuses virtio-net headers. With them the kernel drops a frame whose offload it has no
//! word for (fragmented UDP from a neighbouring guest, SCTP) after it has marked the place as being
//! filled, and never takes the mark off: from then on the ring is dead (tried on Linux 6.18). What
//! the header would say of the checksum, the place's status says too.
//!
//! Bounds: 4 MiB of ring, allocated by the kernel at start; two copies of 2 KB and 64 KB. When
//! the ring is full the kernel drops, counts, and says so with the next frame.
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

/// Bytes of one place: room for a full Ethernet frame of 1,500 bytes behind the ring's header.
const PLACE_BYTES: usize = 2_048;

/// Places of the ring: 2 ms of a million acknowledgments a second. Also small enough that what
/// they touch of it, a tenth, stays in the second level cache.
const RING_FRAMES: usize = 2_048;

const RING_BYTES: usize = PLACE_BYTES * RING_FRAMES;

/// What the kernel allocates in one piece; any multiple of the page size would do.
const BLOCK_BYTES: usize = 65_536;

/// Room for the largest frame: Ethernet header, IPv6 with 65,535 bytes of payload.
const LARGE_BYTES: usize = ETHERNET_BYTES + 65_575;

/// `struct tpacket2_hdr` up to the last field we read: status, length, kept length (32 bits each),
/// offset of the frame (16 bits).
const AT_LENGTH: usize = 4;
const AT_KEPT_LENGTH: usize = 8;
const AT_FRAME_OFFSET: usize = 12;

const TPACKET_V2: i32 = 1;
/// The place is ours.
const STATUS_USER: u32 = 1;
/// The frame is on the socket's queue, whole.
const STATUS_COPY: u32 = 2;
/// The kernel has dropped frames since it was last asked how many.
const STATUS_LOSING: u32 = 4;
/// The sender shares this host's memory and never computed the checksum.
const STATUS_CHECKSUM_UNFINISHED: u32 = 1 << 3;
/// Somebody has verified the checksum.
const STATUS_CHECKSUM_VALID: u32 = 1 << 7;
/// The place is the kernel's.
const STATUS_KERNEL: u32 = 0;

/// One received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken<'a> {
    /// The frame, and what is known of its transport checksum.
    Whole(&'a [u8], ChecksumState),
    /// It was larger than there was room for.
    Truncated,
}

/// The ring of one socket, and the memory frames are copied out to.
#[derive(Debug)]
pub(super) struct ReceiveRing {
    /// [`RING_BYTES`] shared with the kernel.
    memory: NonNull<u8>,
    /// The place the kernel fills next, or has filled.
    next: usize,
    /// Whether the kernel said that it drops, since this was last asked for.
    has_lost: bool,
    /// The errno that came in place of a large frame, until it is asked for.
    error: Option<i32>,
    small: Box<[u8]>,
    large: Box<[u8]>,
}

/// What a place's header says.
struct Place {
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
        sys::set_receive_ring(socket, BLOCK_BYTES, PLACE_BYTES, RING_FRAMES)?;
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
            has_lost: false,
            error: None,
            small: vec![0; PLACE_BYTES].into_boxed_slice(),
            large: vec![0; LARGE_BYTES].into_boxed_slice(),
        })
    }

    /// Takes the next frame out, if there is one.
    pub(super) fn take(&mut self, socket: BorrowedFd<'_>) -> Option<Taken<'_>> {
        let place = self.place()?;
        self.has_lost |= place.status & STATUS_LOSING != 0;
        let kept = self.copy_out(&place);
        // The place is read: from here on it may be written again.
        self.status().store(STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % RING_FRAMES;
        let checksum = checksum_state(place.status);
        if place.status & STATUS_COPY != 0 {
            return Some(self.take_large(socket, checksum));
        }
        match kept.and_then(|bytes| self.small.get(..bytes)) {
            Some(bytes) if place.kept_length == place.length => Some(Taken::Whole(bytes, checksum)),
            _ => Some(Taken::Truncated),
        }
    }

    /// Whether frames came with word of others that were dropped, since the last question.
    pub(super) const fn has_lost(&mut self) -> bool {
        std::mem::replace(&mut self.has_lost, false)
    }

    /// The errno that waited on the socket when a frame was received from its queue, once.
    pub(super) const fn take_error(&mut self) -> Option<i32> {
        self.error.take()
    }

    /// The frame of the place just given back, from the socket's queue: they are in one order.
    fn take_large(&mut self, socket: BorrowedFd<'_>, checksum: ChecksumState) -> Taken<'_> {
        let mut received = sys::receive(socket, &mut self.large);
        if received == Err(libc::ENETDOWN) {
            // An error that waits on the socket is told first, once, and the frame is still
            // queued. Left there, it would be taken for the next large one.
            self.error = Some(libc::ENETDOWN);
            received = sys::receive(socket, &mut self.large);
        }
        match received {
            Ok(length) => {
                let frame = self.large.get(..length);
                frame.map_or(Taken::Truncated, |frame| Taken::Whole(frame, checksum))
            }
            // Cannot be without a frame there; then it is lost, and counted as such.
            Err(_) => Taken::Truncated,
        }
    }

    /// The next place's header, if the place is ours.
    fn place(&self) -> Option<Place> {
        let status = self.status().load(Ordering::Acquire);
        if status & STATUS_USER == 0 {
            return None;
        }
        let small = |number: u32| usize::try_from(number).expect("invariant: usize has 32 bits");
        let length = self.word(AT_LENGTH).cast::<u32>();
        // SAFETY: an aligned word of a place that is ours: the kernel does not write it.
        let length = small(unsafe { length.read() });
        let kept_length = self.word(AT_KEPT_LENGTH).cast::<u32>();
        // SAFETY: as above.
        let kept_length = small(unsafe { kept_length.read() });
        let frame_offset = self.word(AT_FRAME_OFFSET).cast::<u16>();
        // SAFETY: as above, of 16 bits.
        let frame_offset = usize::from(unsafe { frame_offset.read() });
        Some(Place {
            status,
            length,
            kept_length,
            frame_offset,
        })
    }

    /// Copies the frame out; how many bytes, `None` if the header contradicts the place's size.
    fn copy_out(&mut self, place: &Place) -> Option<usize> {
        let length = place.kept_length;
        let end = place.frame_offset.checked_add(length)?;
        if end > PLACE_BYTES || place.frame_offset == PLACE_BYTES {
            return None;
        }
        let source = self.word(place.frame_offset).as_ptr().cast_const();
        // SAFETY: both are good for `length` <= PLACE_BYTES bytes and do not overlap; the place
        // is ours, so the kernel does not write the source.
        unsafe { source.copy_to_nonoverlapping(self.small.as_mut_ptr(), length) };
        Some(length)
    }

    /// The status word of the next place: the kernel and we change it in turns.
    fn status(&self) -> &AtomicU32 {
        let word = self.word(0).cast::<u32>();
        // SAFETY: an aligned word inside the mapping, which lives as long as `self`, and which
        // both sides access atomically.
        unsafe { AtomicU32::from_ptr(word.as_ptr()) }
    }

    /// A position in the next place.
    fn word(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(
            offset < PLACE_BYTES && self.next < RING_FRAMES,
            "outside the ring"
        );
        // SAFETY: inside the mapping, by the above.
        unsafe { self.memory.add(self.next * PLACE_BYTES + offset) }
    }
}

/// What a place's status says of its frame's checksum.
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
    assert!(BLOCK_BYTES.is_multiple_of(PLACE_BYTES) && RING_BYTES.is_multiple_of(BLOCK_BYTES));

#[cfg(test)]
mod tests {
    use super::{ChecksumState, STATUS_LOSING, STATUS_USER, checksum_state};

    #[test]
    fn either_word_of_the_kernel_makes_the_checksum_trusted() {
        assert_eq!(
            checksum_state(STATUS_USER | STATUS_LOSING),
            ChecksumState::Unverified
        );
        // linux/if_packet.h: TP_STATUS_CSUMNOTREADY, TP_STATUS_CSUM_VALID.
        assert_eq!(checksum_state(STATUS_USER | 8), ChecksumState::Trusted);
        assert_eq!(checksum_state(STATUS_USER | 128), ChecksumState::Trusted);
    }
}
