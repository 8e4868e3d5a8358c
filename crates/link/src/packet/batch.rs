//! Memory for one batch of received frames, and the call that fills it.
//!
//! 64 buffers of 64 KB: a frame may be as large as receive offload makes it. Only the first
//! lines of a buffer are touched by an acknowledgment, so a batch of them stays in the first
//! level cache; that is also why a buffer's size is an odd number of cache lines, or all buffers
//! would begin in the same few cache sets.
//!
//! Bounds: 4.2 MB of address space, of which what the largest frames touched is resident.
#![allow(
    unsafe_code,
    reason = "UNSAFETY: recvmmsg writes through pointers kept between calls"
)]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use libc::{c_uint, iovec, mmsghdr, msghdr};

use crate::sys::last_errno;
use crate::vnet::VNET_HEADER_BYTES;
use crate::{ETHERNET_BYTES, RECEIVE_BATCH_FRAMES};

const CACHE_LINE_BYTES: usize = 64;

/// Bytes of one buffer: virtio-net header, Ethernet header, the largest IP packet (IPv6 with
/// 65,535 bytes of payload); rounded up.
const BUFFER_BYTES: usize = 1_025 * CACHE_LINE_BYTES;

const _: () = assert!(BUFFER_BYTES >= VNET_HEADER_BYTES + ETHERNET_BYTES + 65_575);
const _: () = assert!(BUFFER_BYTES / CACHE_LINE_BYTES % 2 == 1);

/// One received datagram.
#[derive(Clone, Copy, Debug)]
pub(super) enum Datagram<'a> {
    /// Virtio-net header and frame.
    Whole(&'a [u8]),
    /// It was larger than the buffer.
    Truncated,
}

/// Buffers for [`RECEIVE_BATCH_FRAMES`] frames and the kernel's description of them.
#[derive(Debug)]
pub(super) struct ReceiveBatch {
    /// Owns `RECEIVE_BATCH_FRAMES * BUFFER_BYTES` bytes. A raw pointer, because a `Box` would
    /// claim to be the only way to its memory while `vectors` is another.
    buffers: NonNull<[u8]>,
    /// Point into `buffers`, one each.
    _vectors: Box<[iovec]>,
    /// Point into `_vectors`, one each; the kernel writes lengths and flags here.
    headers: Box<[mmsghdr]>,
}

impl ReceiveBatch {
    pub(super) fn new() -> Self {
        let buffers = vec![0_u8; RECEIVE_BATCH_FRAMES * BUFFER_BYTES].into_boxed_slice();
        let buffers = NonNull::from(Box::leak(buffers));
        let base = buffers.cast::<u8>();
        let vector = |index: usize| {
            let offset = index * BUFFER_BYTES;
            // SAFETY: `offset` is inside the allocation: index < RECEIVE_BATCH_FRAMES.
            let start = unsafe { base.add(offset) };
            iovec {
                iov_base: start.as_ptr().cast(),
                iov_len: BUFFER_BYTES,
            }
        };
        let mut vectors: Box<[iovec]> = (0..RECEIVE_BATCH_FRAMES).map(vector).collect();
        let first = vectors.as_mut_ptr();
        let header = |index: usize| mmsghdr {
            msg_hdr: msghdr {
                msg_name: std::ptr::null_mut(),
                msg_namelen: 0,
                msg_iov: first.wrapping_add(index),
                msg_iovlen: 1,
                msg_control: std::ptr::null_mut(),
                msg_controllen: 0,
                msg_flags: 0,
            },
            msg_len: 0,
        };
        let headers = (0..RECEIVE_BATCH_FRAMES).map(header).collect();
        Self {
            buffers,
            _vectors: vectors,
            headers,
        }
    }

    /// Receives up to `count` datagrams without blocking, returns how many; they are then at the
    /// indices below that.
    pub(super) fn receive(&mut self, fd: BorrowedFd<'_>, count: usize) -> Result<usize, i32> {
        let count = count.min(self.headers.len());
        let length = c_uint::try_from(count).expect("invariant: a batch is small");
        let headers = self.headers.as_mut_ptr();
        let (fd, timeout) = (fd.as_raw_fd(), std::ptr::null_mut());
        // SAFETY: `length` headers are there; each names one vector and each vector one buffer of
        // `BUFFER_BYTES`, all owned by `self`, to which no reference lives: `&mut self`. libc's
        // type of the flags differs between C libraries, hence the cast.
        let received =
            unsafe { libc::recvmmsg(fd, headers, length, libc::MSG_DONTWAIT as _, timeout) };
        usize::try_from(received).map_err(|_| last_errno())
    }

    /// One datagram of the last batch.
    pub(super) fn datagram(&self, index: usize) -> Datagram<'_> {
        let header = self
            .headers
            .get(index)
            .expect("invariant: index inside the batch");
        let length = header.msg_len as usize;
        if header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 || length > BUFFER_BYTES {
            return Datagram::Truncated;
        }
        // SAFETY: index < RECEIVE_BATCH_FRAMES by the check above, so inside the allocation.
        let start = unsafe { self.buffers.cast::<u8>().add(index * BUFFER_BYTES) };
        // SAFETY: `length` bytes from there are inside the buffer and initialised; the kernel
        // writes to them only in `receive`, which borrows `self` mutably.
        Datagram::Whole(unsafe { std::slice::from_raw_parts(start.as_ptr(), length) })
    }
}

impl Drop for ReceiveBatch {
    fn drop(&mut self) {
        // SAFETY: `buffers` came from `Box::leak` and nothing points to it any more.
        drop(unsafe { Box::from_raw(self.buffers.as_ptr()) });
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use super::{BUFFER_BYTES, Datagram, ReceiveBatch};
    use crate::RECEIVE_BATCH_FRAMES;

    /// The datagrams of a batch, `None` for a truncated one.
    fn received(batch: &mut ReceiveBatch, from: &UnixDatagram, count: usize) -> Vec<Option<usize>> {
        let count = batch.receive(from.as_fd(), count).unwrap();
        let length = |index| match batch.datagram(index) {
            Datagram::Whole(bytes) => {
                assert!(
                    bytes
                        .iter()
                        .all(|&byte| usize::from(byte) == bytes.len() % 251)
                );
                Some(bytes.len())
            }
            Datagram::Truncated => None,
        };
        (0..count).map(length).collect()
    }

    #[test]
    fn a_batch_is_bounded_by_what_is_asked_and_by_what_waits() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let mut batch = ReceiveBatch::new();
        assert_eq!(batch.receive(ours.as_fd(), 64), Err(libc::EAGAIN));
        for length in 1..=5_u8 {
            theirs.send(&vec![length; usize::from(length)]).unwrap();
        }
        assert_eq!(received(&mut batch, &ours, 2), [Some(1), Some(2)]);
        let rest = received(&mut batch, &ours, RECEIVE_BATCH_FRAMES + 1);
        assert_eq!(
            rest,
            [Some(3), Some(4), Some(5)],
            "and no more than the buffers"
        );
    }

    #[test]
    fn a_datagram_of_a_buffer_is_whole_and_one_byte_more_is_not() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let mut batch = ReceiveBatch::new();
        for length in [BUFFER_BYTES, BUFFER_BYTES + 1, 7] {
            theirs
                .send(&vec![u8::try_from(length % 251).unwrap(); length])
                .unwrap();
        }
        assert_eq!(
            received(&mut batch, &ours, 64),
            [Some(BUFFER_BYTES), None, Some(7)]
        );
    }
}
