//! How a run ends: by SIGINT or SIGTERM, or when its time is over.
//!
//! The handlers (signal-hook's) only set a flag and write one byte to a socket pair, which ends a
//! sleep. A second signal does not wait: the handler itself ends the process, with the exit code
//! a shell gives to a process that the signal killed.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level::pipe};

/// What a shell adds to a signal's number to make an exit code.
const KILLED_BY_SIGNAL: i32 = 128;

/// Whether to end, and something to wait on for it. Once asked, it stays so.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    flag: Arc<AtomicBool>,
    waker: Arc<UnixStream>,
    wake: Arc<UnixStream>,
}

impl Ending {
    /// One that ends when [`Ending::request`] is called.
    pub(crate) fn by_request() -> io::Result<Self> {
        let (wake, waker) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        Ok(Self {
            flag: Arc::default(),
            waker: Arc::new(waker),
            wake: Arc::new(wake),
        })
    }

    /// One that ends at the first SIGINT or SIGTERM as well.
    pub(crate) fn by_signal() -> io::Result<Self> {
        let ending = Self::by_request()?;
        for signal in [SIGINT, SIGTERM] {
            // The order matters: the handler that ends the process looks at the flag before the
            // one registered after it sets it, so only the second signal meets it set.
            let code = KILLED_BY_SIGNAL + signal;
            flag::register_conditional_shutdown(signal, code, Arc::clone(&ending.flag))?;
            flag::register(signal, Arc::clone(&ending.flag))?;
            pipe::register(signal, ending.waker.try_clone()?)?;
        }
        Ok(ending)
    }

    /// Asks for the end.
    #[cfg(test)]
    pub(crate) fn request(&self) {
        use std::io::Write as _;
        self.flag.store(true, Ordering::Relaxed);
        // Full means that it is readable already.
        let _ = (&*self.waker).write(&[0]);
    }

    pub(crate) fn is_requested(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Readable from the request on.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
