//! Runs of reads: reads of adjacent blocks that are enqueued one after another become one entry of the
//! submission queue.
//!
//! `IORING_OP_READV_FIXED` (Linux 6.15) reads consecutive bytes of a file into several places of a registered buffer,
//! so the kernel has one request for a run, and the device one command as large as it takes. Each read stays a command
//! of the table; the entry is the first one's, and each knows the next ([`Command::next`](super::commands::Command)).
//! What a run brought is dealt out in order. What it failed with is not: an error may be that of another
//! read's block, so each is issued again by itself.
//!
//! It refuses what is not a read of the same file at the end of the run, in the same registered buffer. Bounded by
//! [`RUN_READS_MAX`], and by the depth of the queue.

use std::mem::offset_of;

/// Most reads of a run: with slots of 64 KiB half a MiB, the session's turn.
pub(super) const RUN_READS_MAX: usize = 8;

/// `struct iovec` without its pointer, which would bind the disk to one thread: where in the arena, and how many bytes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    address: usize,
    length_bytes: usize,
}

const _: () = assert!(
    size_of::<Place>() == size_of::<libc::iovec>()
        && offset_of!(Place, address) == offset_of!(libc::iovec, iov_base)
        && offset_of!(Place, length_bytes) == offset_of!(libc::iovec, iov_len),
    "the kernel reads places as iovecs"
);

/// What a run's reads have in common, and where it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    /// The first command's `user_data`.
    pub(super) first: u64,
    /// The last command's.
    last: u64,
    /// Entry in the file table.
    pub(super) file: u16,
    /// The registered buffer.
    pub(super) region: u16,
    /// Where it starts in the file.
    pub(super) offset_bytes: u64,
    /// Where it ends.
    end_bytes: u64,
    /// Its places, from this one to the last.
    first_place: usize,
}

/// A read that lengthens a run, if it is adjacent, or begins one.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdjacentRead {
    pub(super) user_data: u64,
    pub(super) file: u16,
    pub(super) region: u16,
    pub(super) offset_bytes: u64,
    pub(super) address: *mut u8,
    pub(super) length_bytes: u32,
}

/// The run that grows, and the places of all runs that were not submitted yet.
#[derive(Debug)]
pub(super) struct Runs {
    is_on: bool,
    growing: Option<Run>,
    /// The kernel reads them when it is entered, so they do not move until then: the memory is never enlarged.
    places: Vec<Place>,
}

impl Runs {
    /// For a queue of this depth.
    pub(super) fn new(is_on: bool, queue_depth: u32) -> Self {
        let capacity = if is_on { queue_depth as usize } else { 0 };
        Self {
            is_on,
            growing: None,
            places: Vec::with_capacity(capacity),
        }
    }

    /// Whether another read can be part of a run.
    pub(super) const fn has_room(&self) -> bool {
        self.is_on && self.places.len() < self.places.capacity()
    }

    /// Makes no runs any more: the kernel or a file system refused one.
    pub(super) const fn turn_off(&mut self) {
        self.is_on = false;
    }

    /// Lengthens the run that grows; returns the command that the read follows. `None`: it does not belong to it.
    pub(super) fn lengthen(&mut self, read: &AdjacentRead) -> Option<u64> {
        let run = self.growing.as_mut()?;
        let is_next = run.file == read.file
            && run.region == read.region
            && run.end_bytes == read.offset_bytes
            && self.places.len() - run.first_place < RUN_READS_MAX;
        if !is_next {
            return None;
        }
        let before = std::mem::replace(&mut run.last, read.user_data);
        run.end_bytes += u64::from(read.length_bytes);
        self.places.push(Place::of(read));
        Some(before)
    }

    /// Begins a run; the one that grew before was taken.
    pub(super) fn begin(&mut self, read: &AdjacentRead) {
        debug_assert!(self.growing.is_none(), "a run was forgotten");
        self.growing = Some(Run {
            first: read.user_data,
            last: read.user_data,
            file: read.file,
            region: read.region,
            offset_bytes: read.offset_bytes,
            end_bytes: read.offset_bytes + u64::from(read.length_bytes),
            first_place: self.places.len(),
        });
        self.places.push(Place::of(read));
    }

    /// The run that grew, to be submitted.
    pub(super) const fn take(&mut self) -> Option<Run> {
        self.growing.take()
    }

    /// The places of the run that was taken last, in order.
    pub(super) fn places_of(&self, run: &Run) -> &[Place] {
        self.places.get(run.first_place..).unwrap_or_default()
    }

    /// The kernel has read all places.
    pub(super) fn forget_submitted(&mut self) {
        debug_assert!(self.growing.is_none(), "a run was not submitted");
        self.places.clear();
    }
}

impl Place {
    fn of(read: &AdjacentRead) -> Self {
        Self {
            address: read.address.expose_provenance(),
            length_bytes: read.length_bytes as usize,
        }
    }

    pub(super) fn pointer(self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address)
    }

    pub(super) fn length_bytes(self) -> u32 {
        u32::try_from(self.length_bytes).unwrap_or(u32::MAX)
    }
}

/// Deals out the result of a run: what its first read gets, which wants so many bytes, and what is left for the others.
/// `EAGAIN`: it is issued again.
pub(super) fn deal(result: i32, wanted_bytes: u32) -> (i32, i32) {
    const AGAIN: i32 = -libc::EAGAIN;
    let wanted = i32::try_from(wanted_bytes).unwrap_or(i32::MAX);
    match result {
        ..=0 => (AGAIN, AGAIN),
        bytes if bytes <= wanted => (bytes, AGAIN),
        bytes => (wanted, bytes - wanted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(user_data: u64, offset_bytes: u64) -> AdjacentRead {
        AdjacentRead {
            user_data,
            file: 1,
            region: 0,
            offset_bytes,
            address: std::ptr::without_provenance_mut(0x1000),
            length_bytes: 4096,
        }
    }

    fn begun() -> Runs {
        let mut runs = Runs::new(true, 64);
        runs.begin(&read(7, 8192));
        runs
    }

    #[test]
    fn the_next_blocks_of_the_same_file_lengthen_a_run() {
        let next = read(8, 12_288);
        assert_eq!(begun().lengthen(&next), Some(7));
        let others = [
            AdjacentRead { file: 2, ..next },
            AdjacentRead { region: 1, ..next },
            read(8, 8192),
            read(8, 16_384),
            read(8, 4096),
        ];
        for other in others {
            assert_eq!(begun().lengthen(&other), None, "{other:?}");
        }
        let mut ended = begun();
        let run = ended.take().expect("it grew");
        assert_eq!(
            (run.first, run.last, ended.places_of(&run).len()),
            (7, 7, 1)
        );
        assert_eq!(ended.lengthen(&next), None);
        assert_eq!(ended.take(), None);
    }

    #[test]
    fn a_run_has_at_most_so_many_reads() {
        let mut runs = begun();
        for index in 1..RUN_READS_MAX as u64 {
            assert_eq!(
                runs.lengthen(&read(7 + index, 8192 + index * 4096)),
                Some(6 + index)
            );
        }
        let index = RUN_READS_MAX as u64;
        let more = read(7 + index, 8192 + index * 4096);
        assert_eq!(runs.lengthen(&more), None);
        let run = runs.take().expect("it grew");
        let count = runs.places_of(&run).len();
        assert_eq!((run.last, count), (6 + index, RUN_READS_MAX));
        runs.begin(&more);
        let run = runs.take().expect("another");
        let count = runs.places_of(&run).len();
        assert_eq!((run.offset_bytes, count), (more.offset_bytes, 1));
    }

    #[test]
    fn there_is_room_for_as_many_reads_as_the_queue_has_and_the_places_do_not_move() {
        let mut runs = Runs::new(true, 16);
        let room = runs.places.capacity() as u64;
        let start = runs.places.as_ptr();
        for index in 0..room {
            assert!(runs.has_room());
            let read = read(index, index * 4096);
            if runs.lengthen(&read).is_none() {
                runs.take();
                runs.begin(&read);
            }
        }
        assert!(!runs.has_room());
        assert_eq!(runs.places.as_ptr(), start);
        runs.take();
        runs.forget_submitted();
        assert!(runs.has_room());
        runs.turn_off();
        assert!(!runs.has_room());
        assert!(!Runs::new(false, 16).has_room());
    }

    #[test]
    fn what_came_is_dealt_out_and_errors_are_not() {
        let again = -libc::EAGAIN;
        assert_eq!(deal(12_288, 4096), (4096, 8192));
        assert_eq!(deal(4097, 4096), (4096, 1));
        assert_eq!(deal(4096, 4096), (4096, again));
        assert_eq!(deal(100, 4096), (100, again));
        assert_eq!(deal(0, 4096), (again, again));
        assert_eq!(deal(-libc::EIO, 4096), (again, again));
    }
}
