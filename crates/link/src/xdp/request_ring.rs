//! Whether a request has come: a ring of BPF's, into which the program puts a record for each frame that is longer
//! than an acknowledgment.
//!
//! Acknowledgments can wait for a while until there are more of them, and a request can't; the receive ring's descriptor
//! is readable for both. This one's is readable for requests.
//!
//! A worker clears it before it sleeps. Otherwise it fills up, and the kernel wakes nobody: it tells of a record only if
//! all before it were read. What is no request and as long has a record, too; a SYN or a FIN has none.
//!
//! It refuses to read the records: that there is one is all that they say. Bound: [`RING_BYTES`], and two pages for the
//! indices.
//!
//! Reading first: Documentation/bpf/ringbuf.rst.
#![allow(
    unsafe_code,
    reason = "UNSAFETY: reads and writes indices in memory that the kernel shares"
)]

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::bpf;
use super::mapping::Mapping;

/// Bytes of records: a page, the least there is, of 256 records.
const RING_BYTES: u32 = 4_096;
/// An index is at the beginning of a page of its own: first the reader's, then the program's.
const PAGE_BYTES: usize = 4_096;

/// The ring of a receive queue.
#[derive(Debug)]
pub(super) struct RequestRing {
    map: OwnedFd,
    /// Bytes of records that were read, ever: ours.
    read: Mapping,
    /// Bytes of records that were written, ever: the program's.
    written: Mapping,
}

impl RequestRing {
    /// An empty ring.
    ///
    /// # Errors
    /// The errno of what the kernel refuses.
    pub(super) fn new() -> Result<Self, i32> {
        let map = bpf::create_ring(RING_BYTES)?;
        let read = Mapping::of_descriptor(map.as_fd(), 0, PAGE_BYTES)?;
        let offset = libc::off_t::try_from(PAGE_BYTES).expect("invariant: a small number");
        let written = Mapping::to_read(map.as_fd(), offset, PAGE_BYTES)?;
        Ok(Self { map, read, written })
    }

    /// The ring as a map.
    pub(super) const fn map(&self) -> &OwnedFd {
        &self.map
    }

    /// Readable while there are records.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }

    /// Reads all records. Frames are to be looked for behind it: those of these records are in the receive ring by then,
    /// or on their way.
    pub(super) fn clear(&mut self) {
        let written = index(&self.written).load(Ordering::Acquire);
        index(&self.read).store(written, Ordering::Release);
    }
}

/// A map of such rings, by receive queue, that has none yet.
pub(super) fn map_of_rings(queues_max: u32) -> Result<OwnedFd, i32> {
    let example = bpf::create_ring(RING_BYTES)?;
    bpf::create_ring_map(queues_max, &example)
}

fn index(page: &Mapping) -> &AtomicU64 {
    // SAFETY: inside the page, aligned, and mapped as long as it; both sides access it atomically. The program's is
    // only loaded, so that it may be in pages that can't be written.
    unsafe { page.pointer::<AtomicU64>(0).as_ref() }
}
