//! What the page cache has of a file, without waiting for the disk: the first and the last bytes of a file that was
//! just written.
//!
//! It refuses to read what is not there ([`ends`] is `None` then), and to read from the disk: `O_DIRECT` is taken off the
//! descriptor meanwhile, which is cheaper than another open by `/proc`. The kernel reads a page ahead that is not there,
//! although nobody waits for it: one page, since it is told not to expect more. Bounded by [`WITNESS_BYTES_MAX`] bytes at each
//! end. Only young files are asked for it (`docs/develop/decisions/0004-file-change-detection.md`).

use std::os::fd::{AsRawFd as _, BorrowedFd};

use super::witness::{WITNESS_BYTES_MAX, end_start};

/// The first and the last bytes of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    first: [u8; WITNESS_BYTES_MAX],
    last: [u8; WITNESS_BYTES_MAX],
    length_bytes: usize,
    /// Where the last ones begin.
    pub(super) last_start: u64,
}

impl Ends {
    pub(super) fn first(&self) -> &[u8] {
        &self.first[..self.length_bytes]
    }

    pub(super) fn last(&self) -> &[u8] {
        &self.last[..self.length_bytes]
    }
}

/// Those of a local file of that size, on which no command is in flight; `None` if they are not all in the page
/// cache, or the kernel refuses.
pub(super) fn ends(file: BorrowedFd<'_>, size_bytes: u64) -> Option<Ends> {
    let length_bytes = usize::try_from(size_bytes).unwrap_or(usize::MAX);
    let mut ends = Ends {
        first: [0; WITNESS_BYTES_MAX],
        last: [0; WITNESS_BYTES_MAX],
        length_bytes: length_bytes.min(WITNESS_BYTES_MAX),
        last_start: end_start(size_bytes),
    };
    let length = ends.length_bytes;
    let are_read = without_direct(file, || {
        read_cached(file, &mut ends.first[..length], 0)
            && read_cached(file, &mut ends.last[..length], ends.last_start)
    });
    are_read?.then_some(ends)
}

/// Runs `read` while the descriptor has no `O_DIRECT`; `None` if the kernel refuses.
fn without_direct<T>(file: BorrowedFd<'_>, read: impl FnOnce() -> T) -> Option<T> {
    // SAFETY: takes and returns plain numbers.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return None;
    }
    if flags & libc::O_DIRECT == 0 {
        return Some(read());
    }
    // SAFETY: the same.
    let set =
        |flags: libc::c_int| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) } == 0;
    if !set(flags & !libc::O_DIRECT) {
        return None;
    }
    // SAFETY: takes and returns plain numbers. A refusal costs pages that are read ahead.
    let _ = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
    let read = read();
    // It had the flag, so the file can have it.
    set(flags).then_some(read)
}

/// Fills `bytes` with what the file has at an offset, if all of it is cached.
fn read_cached(file: BorrowedFd<'_>, bytes: &mut [u8], offset_bytes: u64) -> bool {
    let Ok(offset) = libc::off_t::try_from(offset_bytes) else {
        return false;
    };
    let part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: one place, which is ours alone and as long as it says.
    let read = unsafe {
        libc::preadv2(
            file.as_raw_fd(),
            &raw const part,
            1,
            offset,
            libc::RWF_NOWAIT,
        )
    };
    usize::try_from(read).is_ok_and(|read| read == bytes.len())
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::io::Write as _;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::OpenOptionsExt as _;

    use super::*;

    #[test]
    fn both_ends_of_a_file_just_written_are_there() {
        for size_bytes in [0_u64, 1, 255, 256, 257, 5000] {
            let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
            let content: Vec<u8> = (0..size_bytes).map(|at| at.to_le_bytes()[0]).collect();
            file.write_all(&content).expect("room for it");
            let read = File::open(file.path()).expect("our own file");
            let Some(ends) = ends(read.as_fd(), size_bytes) else {
                eprintln!("SKIPPED: no reads without waiting here");
                return;
            };
            let length = content.len().min(256);
            assert_eq!(ends.first(), &content[..length], "{size_bytes}");
            assert_eq!(ends.last(), &content[content.len() - length..]);
            assert_eq!(ends.last_start, (content.len() - length) as u64);
        }
    }

    #[test]
    fn a_file_shorter_than_it_is_said_to_be_has_none() {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(b"four").expect("room for it");
        assert!(ends(file.as_file().as_fd(), 5).is_none());
    }

    #[test]
    fn a_descriptor_is_direct_again_afterwards() {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(b"four").expect("room for it");
        let direct = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(file.path());
        let Ok(direct) = direct else {
            eprintln!("SKIPPED: no O_DIRECT here");
            return;
        };
        let flags = || {
            // SAFETY: takes and returns plain numbers.
            unsafe { libc::fcntl(direct.as_raw_fd(), libc::F_GETFL) }
        };
        let before = flags();
        let found = ends(direct.as_fd(), 4).expect("it was just written");
        assert_eq!((found.first(), found.last()), (&b"four"[..], &b"four"[..]));
        assert_eq!(flags(), before);
    }
}
