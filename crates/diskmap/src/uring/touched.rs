//! Files that were seen touched before a read noted its time in them; one list for all disks of the process.
//!
//! `touch` sets atime, mtime and ctime to one moment, a write only the last two. That tells them apart until the file is
//! read and atime moves. Where the server's own reads move it (`FileStatus::notes_reads`), a disk looks at the file before it
//! submits a read, and what it finds is kept here for the checks behind the reads: its own, and those of other workers,
//! whose reads may be the second.
//!
//! It refuses to know a file by a status that is not exactly the one seen: after any write to it, that is another one.
//! Bounded by [`TOUCHED_MAX`] files; one more, and all others are forgotten, which are then taken for written.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::change::{Identity, Seen};

/// Most files in the list: so many that a whole tree of live segments may be touched at once.
const TOUCHED_MAX: usize = 4096;

/// By device and inode, the status that shows that it was touched.
type Touched = BTreeMap<(u64, u64), Identity>;

static TOUCHED: Mutex<Touched> = Mutex::new(BTreeMap::new());

fn list() -> MutexGuard<'static, Touched> {
    // Each change of the list is one insertion: it is whole whoever panicked.
    TOUCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps that a file was touched, which its status shows.
pub(super) fn note(seen: &Seen) {
    note_in(&mut list(), seen);
}

/// Whether a file was touched, and not written since.
pub(super) fn is_noted(seen: &Seen) -> bool {
    list().get(&seen.file) == Some(&seen.identity)
}

fn note_in(list: &mut Touched, seen: &Seen) {
    if list.len() >= TOUCHED_MAX && !list.contains_key(&seen.file) {
        list.clear();
    }
    list.insert(seen.file, seen.identity);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileStatus;

    fn seen(inode: u64, size_bytes: u64) -> Seen {
        let identity = Identity::from(&FileStatus {
            size_bytes,
            ..FileStatus::default()
        });
        Seen::new((1, inode), identity, (0, 0))
    }

    #[test]
    fn a_file_is_known_by_exactly_the_status_that_was_seen() {
        let file = seen(u64::MAX, 7);
        note(&file);
        assert!(is_noted(&file));
        assert!(!is_noted(&seen(u64::MAX, 8)), "it was written");
        assert!(!is_noted(&seen(u64::MAX - 1, 7)), "it is another file");
        let later = seen(u64::MAX, 8);
        note(&later);
        assert!(is_noted(&later) && !is_noted(&file));
    }

    #[test]
    fn one_file_more_than_there_is_room_for_empties_the_list() {
        let mut list = Touched::new();
        for inode in 1..=TOUCHED_MAX as u64 {
            note_in(&mut list, &seen(inode, 0));
        }
        // One that is in it is no other.
        note_in(&mut list, &seen(1, 1));
        assert_eq!(list.len(), TOUCHED_MAX);
        note_in(&mut list, &seen(0, 0));
        assert_eq!(list.keys().collect::<Vec<_>>(), [&(1, 0)]);
    }
}
