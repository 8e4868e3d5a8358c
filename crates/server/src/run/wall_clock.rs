//! The wall clock, for the `Date` of replies.
//!
//! It may be set back or forth while we serve, so it is read again in every round. It refuses to be
//! used for timers, which use the monotonic clock. The coarse clock is a read of memory that the
//! kernel updates every 1 to 10 ms, whatever the clock source. Bound: one call a round.

#![allow(
    unsafe_code,
    reason = "UNSAFETY: clock_gettime(2) into a structure of ours"
)]

/// Unix time, whole seconds (`CLOCK_REALTIME_COARSE`). A clock before 1970, or none, reads 0.
#[must_use]
pub(crate) fn unix_seconds() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one `timespec`, which is ours; on failure it writes nothing.
    let _ = unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &raw mut time) };
    u64::try_from(time.tv_sec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::unix_seconds;

    #[test]
    fn it_is_the_hosts_clock() {
        let fine = || {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            since.unwrap().as_secs()
        };
        // The coarse clock lags by a tick at most, so by a second at most if it is cut to seconds.
        let before = fine() - 1;
        let coarse = unix_seconds();
        assert!((before..=fine()).contains(&coarse), "{before} {coarse}");
    }
}
