//! Sleeps in the kernel until a descriptor is ready or a timeout passes.
//!
//! It refuses to busy-poll, so that an idle server uses no processor time: after [`EMPTY_ROUNDS`]
//! rounds without progress the worker sleeps, in [`wait`]; if the operator chose to have the
//! device polled, after the time of [`crate::run::busy_poll`]. Bounded by [`SOURCES_MAX`].

#![allow(unsafe_code, reason = "UNSAFETY: ppoll(2) on an array of ours")]

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Rounds without progress before the worker sleeps. One: the round that found nothing has just
/// asked every source. Spinning for eight did not pay: six downloads over a tap cost 0.20 to 0.28
/// core-seconds per GB with it and 0.19 to 0.27 without, on two shared cores.
pub(crate) const EMPTY_ROUNDS: u32 = 1;
/// Most descriptors waited for at once: mailbox, link (to receive, and to send), disk, store, notifications, packets
/// of two other processes.
pub(crate) const SOURCES_MAX: usize = 8;

/// A descriptor to wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'fd> {
    /// The descriptor; readable when there is something to do.
    pub fd: BorrowedFd<'fd>,
    /// Whether to wait until it is writable, too.
    pub or_writable: bool,
}

impl<'fd> Source<'fd> {
    /// Waits until `fd` can be read.
    #[must_use]
    pub(crate) const fn readable(fd: BorrowedFd<'fd>) -> Self {
        Self {
            fd,
            or_writable: false,
        }
    }
}

/// Which sources are ready.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Ready([bool; SOURCES_MAX]);

impl Ready {
    /// Any of them.
    #[must_use]
    pub(crate) fn is_any(self) -> bool {
        self.0.contains(&true)
    }

    /// The one at this place.
    #[must_use]
    pub(crate) fn has(self, place: usize) -> bool {
        self.0.get(place) == Some(&true)
    }
}

/// Blocks until one of `sources` is ready, `timeout` has passed, or a signal was handled. `None`
/// waits for ever.
///
/// Returns which of them are.
///
/// # Errors
/// What the kernel said; an interrupted wait is not an error.
///
/// # Panics
/// With more than [`SOURCES_MAX`] sources.
pub(crate) fn wait(sources: &[Source<'_>], timeout: Option<Duration>) -> io::Result<Ready> {
    assert!(
        sources.len() <= SOURCES_MAX,
        "{} sources to wait for",
        sources.len()
    );
    let mut polled = [libc::pollfd {
        fd: -1,
        events: 0,
        revents: 0,
    }; SOURCES_MAX];
    for (place, source) in polled.iter_mut().zip(sources) {
        place.fd = source.fd.as_raw_fd();
        place.events = libc::POLLIN;
        if source.or_writable {
            place.events |= libc::POLLOUT;
        }
    }
    let timeout = timeout.map(timespec);
    let timeout = timeout
        .as_ref()
        .map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the array and the time are ours and outlive the call; unused places have fd -1,
    // which the kernel skips. No signal mask is given.
    let ready = unsafe {
        libc::ppoll(
            polled.as_mut_ptr(),
            SOURCES_COUNT,
            timeout,
            std::ptr::null(),
        )
    };
    if ready >= 0 {
        return Ok(Ready(polled.map(|place| place.revents != 0)));
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted {
        Ok(Ready::default())
    } else {
        Err(error)
    }
}

/// [`SOURCES_MAX`] as the kernel wants it.
const SOURCES_COUNT: libc::nfds_t = SOURCES_MAX as libc::nfds_t;

/// How much later than asked for the kernel may end a sleep, to end several at once. Its default, 50 us,
/// is half a pause.
const TIMER_SLACK: NonZeroU64 = NonZeroU64::new(1_000).expect("not zero");

/// Has sleeps of this thread end within a microsecond of their time, not within 50.
///
/// # Errors
/// What the kernel said.
pub(crate) fn end_sleeps_on_time() -> io::Result<()> {
    Ok(rustix::thread::set_current_timer_slack(Some(TIMER_SLACK))?)
}

/// Times beyond what the kernel can count wait as long as it can.
fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(duration.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(
            i32::try_from(duration.subsec_nanos()).expect("invariant: below 10^9"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::{Source, wait};
    use std::io::Write as _;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[test]
    fn a_ready_source_ends_the_wait() {
        let (mut writer, reader) = UnixStream::pair().unwrap();
        writer.write_all(b"x").unwrap();
        let (_quiet_end, quiet) = UnixStream::pair().unwrap();
        let sources = [&quiet, &reader].map(|it| Source::readable(it.as_fd()));
        let ready = wait(&sources, None).unwrap();
        assert!(ready.is_any() && ready.has(1));
        assert!(!ready.has(0) && !ready.has(2));
    }

    #[test]
    fn a_quiet_source_is_given_up_at_the_timeout() {
        let (_writer, reader) = UnixStream::pair().unwrap();
        let source = Source::readable(reader.as_fd());
        let is_any = |sources: &[Source<'_>], nanos| {
            let ready = wait(sources, Some(Duration::from_nanos(nanos)));
            ready.unwrap().is_any()
        };
        assert!(!is_any(&[source], 0));
        assert!(!is_any(&[source], 1));
        assert!(!is_any(&[], 0));
    }

    #[test]
    fn writability_counts_only_when_asked_for() {
        let (_writer, reader) = UnixStream::pair().unwrap();
        let source = Source {
            fd: reader.as_fd(),
            or_writable: true,
        };
        assert!(wait(&[source], None).unwrap().is_any());
    }

    #[test]
    fn the_longest_duration_is_taken() {
        let (_writer, reader) = UnixStream::pair().unwrap();
        let source = Source {
            fd: reader.as_fd(),
            or_writable: true,
        };
        assert!(wait(&[source], Some(Duration::MAX)).unwrap().is_any());
    }
}
