//! An `io_uring` with whatever its kernel is good at, for entries of either size.
//!
//! Task work is deferred where the kernel can (`DEFER_TASKRUN`, Linux 6.1); older kernels have
//! cooperative task work (5.19) or none. It refuses SQPOLL; IOPOLL is for those who ask for it. Bounded by the
//! depth of the queue.

#![allow(
    unsafe_code,
    reason = "UNSAFETY: hands entries and buffers to the kernel, and reads an eventfd"
)]

use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use io_uring::{IoUring, Probe, Submitter, cqueue, squeue, types};
use memory::Arena;

/// How often a submission is tried that returns `EINTR`, `EAGAIN` or `EBUSY`.
const SUBMIT_ATTEMPTS_MAX: u32 = 8;
/// `IORING_ENTER_GETEVENTS`.
const ENTER_GETEVENTS: u32 = 1;

/// See the module.
pub(crate) struct Ring<S = squeue::Entry, C = cqueue::Entry>
where
    S: squeue::EntryMarker,
    C: cqueue::EntryMarker,
{
    ring: IoUring<S, C>,
    /// Takes no commands yet.
    is_disabled: bool,
    /// The eventfd of a ring with deferred task work. Other rings are polled themselves.
    wake: Option<OwnedFd>,
    /// The kernel looks for completions when it is entered, and no interrupt tells of them (IOPOLL).
    is_polled: bool,
}

/// `IoUring` does not implement `Debug`.
impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> fmt::Debug for Ring<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ring").field(&self.ring.as_raw_fd()).finish()
    }
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> Ring<S, C> {
    /// The best ring this kernel has, with room for `queue_depth` entries; the thread that will use it
    /// enables it.
    pub(crate) fn new(queue_depth: u32) -> Result<Self, i32> {
        Self::best(queue_depth, false)
    }

    /// The same, without interrupts: nothing tells of completions, so whoever has it reaps again and again.
    pub(crate) fn polled(queue_depth: u32) -> Result<Self, i32> {
        Self::best(queue_depth, true)
    }

    fn best(queue_depth: u32, is_polled: bool) -> Result<Self, i32> {
        let mut outcome = Err(libc::EINVAL);
        for level in [Level::Deferred, Level::Cooperative, Level::Plain] {
            outcome = Self::at(level, queue_depth, is_polled);
            // `EINVAL` means unknown flags; other errors would come without flags, too.
            if !matches!(outcome, Err(libc::EINVAL)) {
                break;
            }
        }
        outcome
    }

    pub(crate) fn at(level: Level, queue_depth: u32, is_polled: bool) -> Result<Self, i32> {
        let mut builder = IoUring::<S, C>::builder();
        if is_polled {
            builder.setup_iopoll();
        }
        match level {
            Level::Deferred => {
                // The thread that enables it is its single issuer.
                builder
                    .setup_r_disabled()
                    .setup_single_issuer()
                    .setup_defer_taskrun()
                    .setup_taskrun_flag()
                    .setup_submit_all();
            }
            Level::Cooperative => {
                builder
                    .setup_coop_taskrun()
                    .setup_taskrun_flag()
                    .setup_submit_all();
            }
            Level::Plain => {}
        }
        let errno = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        let ring = builder.build(queue_depth.next_power_of_two());
        let ring = ring.map_err(errno)?;
        let wake = match level {
            Level::Deferred if !is_polled => Some(event_fd().map_err(errno)?),
            _ => None,
        };
        if let Some(wake) = &wake {
            let submitter = ring.submitter();
            submitter
                .register_eventfd(wake.as_raw_fd())
                .map_err(errno)?;
        }
        Ok(Self {
            ring,
            wake,
            is_polled,
            is_disabled: level == Level::Deferred,
        })
    }

    /// Makes it ready for entries, for good: the calling thread is the one that will use it.
    pub(crate) fn enable(&mut self) -> Result<(), i32> {
        if !core::mem::take(&mut self.is_disabled) {
            return Ok(());
        }
        let enabled = self.ring.submitter().register_enable_rings();
        enabled.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
    }

    pub(crate) fn submitter(&self) -> Submitter<'_> {
        self.ring.submitter()
    }

    /// Adds an entry, for which there must be room: a table of commands is no longer than the ring.
    ///
    /// # Safety
    /// What the entry names stays open and mapped until its completion, and is used for nothing that
    /// the kernel's use of it forbids.
    pub(crate) unsafe fn push(&mut self, entry: &S) {
        // SAFETY: the caller's promise.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed
            .expect("invariant: the submission queue has an entry for every command of the table");
    }

    /// Whether entries wait for a submission.
    pub(crate) fn has_unsubmitted(&mut self) -> bool {
        !self.ring.submission().is_empty()
    }

    /// Submits what waits, by as few calls as the kernel lets us; counts them.
    pub(crate) fn submit(&mut self, calls: &mut u64) -> Result<(), i32> {
        let mut errno = libc::EAGAIN;
        for _ in 0..SUBMIT_ATTEMPTS_MAX {
            *calls += 1;
            match self.ring.submitter().submit() {
                Ok(_) if !self.has_unsubmitted() => return Ok(()),
                Ok(_) => {}
                Err(error) => {
                    errno = error.raw_os_error().unwrap_or(libc::EIO);
                    if ![libc::EINTR, libc::EAGAIN, libc::EBUSY].contains(&errno) {
                        break;
                    }
                }
            }
        }
        Err(errno)
    }

    /// Fills `batch` with user data and results of completions. Enters the kernel only if it has
    /// task work for this thread, which must run before its completions appear; counts the calls.
    pub(crate) fn reap(&mut self, batch: &mut [(u64, i32)], enter_calls: &mut u64) -> usize {
        if self.is_polled && self.ring.completion().is_empty() {
            *enter_calls += 1;
            let submitter = self.ring.submitter();
            // SAFETY: submits nothing, waits for nothing, passes no pointer. An error (EINTR) brings no
            // completions, and the next call of ours tries again.
            let _ = unsafe { submitter.enter::<libc::sigset_t>(0, 0, ENTER_GETEVENTS, None) };
        }
        let mut calls = TaskWorkCalls::default();
        loop {
            let ready = self.ring.completion().len();
            if !calls.is_due(self.ring.submission().taskrun(), ready) {
                break;
            }
            *enter_calls += 1;
            let submitter = self.ring.submitter();
            // SAFETY: submits nothing, waits for nothing, passes no pointer.
            let entered = unsafe { submitter.enter::<libc::sigset_t>(0, 0, ENTER_GETEVENTS, None) };
            self.clear_wake();
            // An error (EINTR) leaves the flag set, and the next call of ours tries again.
            if entered.is_err() {
                break;
            }
        }
        let mut count = 0;
        for (slot, cqe) in batch.iter_mut().zip(self.ring.completion()) {
            let cqe: cqueue::Entry = cqe.into();
            *slot = (cqe.user_data(), cqe.result());
            count += 1;
        }
        count
    }

    /// Submits, and waits for a completion, a second at most; false if it did not come.
    pub(crate) fn wait_a_second(&self) -> bool {
        let second = types::Timespec::new().sec(1);
        let arguments = types::SubmitArgs::new().timespec(&second);
        let submitter = self.ring.submitter();
        submitter.submit_with_args(1, &arguments).is_ok()
    }

    /// Whether the kernel knows an operation (`IORING_REGISTER_PROBE`).
    pub(crate) fn has_operation(&self, code: u8) -> bool {
        let mut probe = Probe::new();
        let probed = self.ring.submitter().register_probe(&mut probe);
        probed.is_ok() && probe.is_supported(code)
    }

    /// As [`crate::Disk::poll_fd`].
    pub(crate) fn poll_fd(&self) -> BorrowedFd<'_> {
        if let Some(wake) = &self.wake {
            return wake.as_fd();
        }
        // SAFETY: the ring keeps its descriptor open at least as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }

    /// As [`crate::Disk::clear_wake`].
    pub(crate) fn clear_wake(&self) {
        let Some(wake) = &self.wake else {
            return;
        };
        let mut count = 0_u64;
        // SAFETY: reads eight bytes, which is what an eventfd gives, into a number of ours. It does not
        // block; that it was clear already is no error.
        let _ = unsafe {
            libc::read(
                wake.as_raw_fd(),
                std::ptr::from_mut(&mut count).cast(),
                size_of::<u64>(),
            )
        };
    }

    /// Registers the regions of the arena as buffers of the same numbers; an error says what to do.
    pub(crate) fn register_buffers(&self, arena: &Arena) -> Result<(), String> {
        let buffers: Vec<_> = arena
            .regions()
            .map(|region| libc::iovec {
                iov_base: region.address.cast(),
                iov_len: region.length_bytes,
            })
            .collect();
        // SAFETY: the regions are mapped. The kernel pins their pages, so it writes to no other memory
        // even if the arena is gone by then.
        let registered = unsafe { self.ring.submitter().register_buffers(&buffers) };
        registered.map_err(|error| explain_registration(&error, arena.bytes()))
    }
}

/// Tries whether this process may use `io_uring`: sets a ring up, asks it something, and enters it.
///
/// # Errors
/// The name of the first system call that was refused, and errno. `EPERM` and `ENOSYS` come from filters of
/// system calls as well as from the kernel.
pub fn probe_io_uring() -> Result<(), (&'static str, i32)> {
    let ring: Ring = Ring::at(Level::Plain, 1, false).map_err(|errno| ("io_uring_setup", errno))?;
    let refused = |call| move |error: io::Error| (call, error.raw_os_error().unwrap_or(libc::EIO));
    let submitter = ring.submitter();
    let registered = submitter.register_probe(&mut Probe::new());
    registered.map_err(refused("io_uring_register"))?;
    // Of nothing: the call is made all the same.
    let entered = submitter.submit();
    entered.map_err(refused("io_uring_enter")).map(drop)
}

/// How often one [`Ring::reap`] enters the kernel for task work.
///
/// The kernel does some of the work in a call, and sets the flag again if there is more. But the flag may
/// also be set when there is none: an interrupt on another processor adds work, this thread's call does it
/// and clears the flag, and only then the interrupt sets it (`io_req_local_work_add`). Such a flag stays
/// until the next completion, so who waits for it to be cleared may wait for ever.
#[derive(Clone, Copy, Debug, Default)]
struct TaskWorkCalls {
    /// Completions in the ring before the last call.
    ready: usize,
    /// Calls in a row that brought none. The first call counts, too.
    fruitless: u32,
}

impl TaskWorkCalls {
    /// Calls in a row without a completion before the flag is taken for a stale one. A call does up to 20
    /// pieces of work, nearly all of which are completions.
    const FRUITLESS_MAX: u32 = 2;

    /// Whether to enter the kernel, with `ready` completions in the ring.
    const fn is_due(&mut self, is_flag_set: bool, ready: usize) -> bool {
        if ready > self.ready {
            self.fruitless = 0;
        }
        self.ready = ready;
        let is_due = is_flag_set && self.fruitless < Self::FRUITLESS_MAX;
        self.fruitless += 1;
        is_due
    }
}

/// Set-up flags of a ring, best first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Level {
    /// Linux 6.1: task work waits until this thread asks for completions.
    Deferred,
    /// Linux 5.19: task work waits for the thread's next system call instead of interrupting it,
    /// and a flag in the ring says that it waits.
    Cooperative,
    Plain,
}

/// `eventfd(2)`: readable while its count is not zero.
fn event_fd() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it, and nobody else has its number.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// What to do about a ring that the kernel refuses to set up. `first`: the Linux that has all it needs.
pub(crate) fn setup_remedy(errno: i32, first: &str) -> String {
    match errno {
        // Of a user without CAP_IPC_LOCK, the ring itself counts as locked memory.
        libc::ENOMEM => "raise RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK=, docker --ulimit memlock=-1), or grant \
                         CAP_IPC_LOCK"
            .into(),
        libc::EMFILE | libc::ENFILE => "raise the limit of open files (ulimit -n, LimitNOFILE=)".into(),
        libc::EPERM | libc::EACCES => "set the sysctl kernel.io_uring_disabled to 0, or let the seccomp profile \
                        (of the container, or SystemCallFilter= of the unit) allow io_uring_setup, io_uring_enter, \
                        io_uring_register and eventfd2"
            .into(),
        _ => format!(
            "let the seccomp profile (of the container, or SystemCallFilter= of the unit) allow io_uring_setup, \
             io_uring_enter, io_uring_register and eventfd2, or use Linux {first} or newer"
        ),
    }
}

fn explain_registration(error: &io::Error, bytes: usize) -> String {
    let errno = error.raw_os_error().unwrap_or(0);
    if errno == libc::ENOMEM {
        return format!(
            "the slots cannot be registered with io_uring (errno {errno}): raise RLIMIT_MEMLOCK \
             (ulimit -l, LimitMEMLOCK=, docker --ulimit memlock) to {bytes} bytes or more, or grant \
             CAP_IPC_LOCK"
        );
    }
    format!("the slots cannot be registered with io_uring (errno {errno})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_registration_says_what_to_do() {
        let short = explain_registration(&io::Error::from_raw_os_error(libc::ENOMEM), 1 << 21);
        assert!(
            short.contains("RLIMIT_MEMLOCK") && short.contains("2097152"),
            "{short}"
        );
        let other = explain_registration(&io::Error::from_raw_os_error(libc::EFAULT), 1 << 21);
        assert!(!other.contains("RLIMIT_MEMLOCK"), "{other}");
    }

    #[test]
    fn a_refused_ring_has_the_remedy_of_its_reason() {
        for (errno, part) in [
            (
                libc::ENOMEM,
                "RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK=, docker --ulimit memlock",
            ),
            (libc::EMFILE, "LimitNOFILE="),
            (libc::EPERM, "kernel.io_uring_disabled"),
            (libc::EPERM, "seccomp"),
            (libc::ENOSYS, "seccomp"),
            (libc::ENOSYS, "Linux 5.19 or newer"),
        ] {
            let remedy = setup_remedy(errno, "5.19");
            assert!(remedy.contains(part), "{errno}: {remedy}");
        }
        // A limit is no matter of filters.
        assert!(!setup_remedy(libc::ENOMEM, "5.19").contains("seccomp"));
    }

    #[test]
    fn a_flag_that_stays_set_without_work_is_asked_about_twice() {
        let mut calls = TaskWorkCalls::default();
        assert!(calls.is_due(true, 3));
        assert!(calls.is_due(true, 3));
        assert!(!calls.is_due(true, 3));
        assert!(!calls.is_due(true, 3));
    }

    #[test]
    fn the_kernel_is_entered_while_its_flag_is_set_and_calls_bring_completions() {
        let mut calls = TaskWorkCalls::default();
        for ready in 0..100 {
            assert!(calls.is_due(true, ready));
        }
        assert!(!calls.is_due(false, 100));
        let mut calls = TaskWorkCalls::default();
        assert!(!calls.is_due(false, 0));
    }
}
