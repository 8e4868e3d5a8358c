//! What the page cache has of a file, without waiting for the disk: the first and the last bytes of a file that was
//! just written.
//!
//! It refuses to read what is not there ([`ends`] is `None` then), and to use a descriptor with `O_DIRECT`, which
//! would read from the disk: it opens the file once more, by `/proc`. Bounded by [`WITNESS_BYTES_MAX`] bytes at each
//! end. It costs some 2 us, so only young files are asked for it (`docs/develop/decisions/0004-file-change-detection.md`).

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;

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

/// Those of a local file of that size; `None` if they are not all in the page cache, or the kernel refuses.
pub(super) fn ends(file: BorrowedFd<'_>, size_bytes: u64) -> Option<Ends> {
    let cached = reopen(file)?;
    let length_bytes = usize::try_from(size_bytes).unwrap_or(usize::MAX);
    let mut ends = Ends {
        first: [0; WITNESS_BYTES_MAX],
        last: [0; WITNESS_BYTES_MAX],
        length_bytes: length_bytes.min(WITNESS_BYTES_MAX),
        last_start: end_start(size_bytes),
    };
    let length = ends.length_bytes;
    let are_read = read_cached(&cached, &mut ends.first[..length], 0)
        && read_cached(&cached, &mut ends.last[..length], ends.last_start);
    are_read.then_some(ends)
}

/// The same file without `O_DIRECT`.
fn reopen(file: BorrowedFd<'_>) -> Option<File> {
    // SAFETY: takes and returns plain numbers.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return None;
    }
    let flags = flags & libc::O_NOATIME | libc::O_NONBLOCK;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    opened.ok()
}

/// Fills `bytes` with what the file has at an offset, if all of it is cached.
fn read_cached(file: &File, bytes: &mut [u8], offset_bytes: u64) -> bool {
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
    use std::io::Write as _;
    use std::os::fd::AsFd as _;

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
        // Not open for reading.
        let write = OpenOptions::new().write(true).open(file.path());
        let write = write.expect("our own file");
        assert!(ends(write.as_fd(), 4).is_some(), "it is opened anew");
    }
}
