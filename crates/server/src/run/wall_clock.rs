//! The wall clock, for the `Date` of replies and the age of files.
//!
//! It may be set back or forth while we serve, so it is read again in every round. It refuses to be
//! used for timers, which use the monotonic clock. The coarse clock is a read of memory that the
//! kernel updates every 1 to 10 ms, whatever the clock source. It is also the clock that the kernel dates
//! files by: what is written after it was read is never dated before. Bound: one call a round.

#![allow(
    unsafe_code,
    reason = "UNSAFETY: clock_gettime(2) into a structure of ours"
)]

use clock::UnixTime;

/// The time now (`CLOCK_REALTIME_COARSE`). No clock reads 1970.
#[must_use]
pub(crate) fn now() -> UnixTime {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one `timespec`, which is ours; on failure it writes nothing.
    let _ = unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &raw mut time) };
    UnixTime {
        seconds: time.tv_sec,
        nanos: u32::try_from(time.tv_nsec).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::time::SystemTime;

    use super::{UnixTime, now};

    #[test]
    fn it_is_the_hosts_clock() {
        let fine = || {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            since.unwrap().as_secs()
        };
        // The coarse clock lags by a tick at most, so by a second at most if it is cut to seconds.
        let before = fine() - 1;
        let coarse = now().whole_seconds();
        assert!((before..=fine()).contains(&coarse), "{before} {coarse}");
    }

    #[test]
    fn what_is_written_after_it_was_read_is_not_dated_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        for _ in 0..1000 {
            let read = now();
            std::fs::write(&path, "content").unwrap();
            let status = std::fs::metadata(&path).unwrap();
            let written = UnixTime {
                seconds: status.mtime(),
                nanos: u32::try_from(status.mtime_nsec()).unwrap(),
            };
            assert!(written >= read, "{written:?} {read:?}");
        }
    }
}
