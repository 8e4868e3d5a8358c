//! The host, shared by packetdrill's two threads: the main one, which lets time pass and carries
//! packets, and one for calls that block.
//!
//! Virtual time must not pass while the second thread is on its way from being woken to reading the
//! clock, which is what packetdrill does last in a call. So [`Shared::advance`] waits for it after
//! each step. Bounded by [`SETTLE_MAX`] of real time, after which it goes on, and the script sees a
//! call that returns late.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration as RealDuration;

use clock::{Duration, Instant};

use crate::host::{Errno, Host, Packet, Settings};

/// Real time that a woken thread may take.
const SETTLE_MAX: RealDuration = RealDuration::from_secs(2);

/// See the module.
#[derive(Debug)]
pub(super) struct Shared {
    /// The main thread. Its calls never block: nobody would let time pass.
    main: ThreadId,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    host: Host,
    /// Counts what may let a blocked call go on.
    changes: u64,
    /// The blocked call tried after that many changes, in vain.
    tried: Option<u64>,
    /// A call that had blocked returned, in this thread, which has not read the clock since.
    returning: Option<ThreadId>,
    /// Who read the clock last, if nothing else was called since.
    clock_reader: Option<ThreadId>,
}

impl Shared {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            main: thread::current().id(),
            state: Mutex::new(State {
                host: Host::new(settings),
                changes: 0,
                tried: None,
                returning: None,
                clock_reader: None,
            }),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic aborts the process: it cannot leave this crate through C.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call that returns at once.
    pub(super) fn call<T>(&self, action: impl FnOnce(&mut Host) -> T) -> T {
        let mut state = self.lock();
        let result = action(&mut state.host);
        self.note_change(&mut state);
        result
    }

    /// A call that blocks while it returns [`Errno::AGAIN`], if the descriptor does and the thread may.
    pub(super) fn blocking<T>(
        &self,
        descriptor: i32,
        mut action: impl FnMut(&mut Host) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let mut state = self.lock();
        let is_main = thread::current().id() == self.main;
        let may_block = !is_main && state.host.is_blocking(descriptor);
        let mut has_blocked = false;
        loop {
            let result = action(&mut state.host);
            if !may_block || !matches!(result, Err(Errno::AGAIN)) {
                state.tried = None;
                state.returning = has_blocked.then(|| thread::current().id());
                self.note_change(&mut state);
                return result;
            }
            has_blocked = true;
            state.tried = Some(state.changes);
            self.changed.notify_all();
            let seen = state.changes;
            while state.changes == seen {
                let waiting = self.changed.wait(state);
                state = waiting.unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn note_change(&self, state: &mut State) {
        state.changes += 1;
        state.clock_reader = None;
        self.changed.notify_all();
    }

    /// Reads the clock. Whoever does so again and again, waiting, sees a microsecond pass each time.
    pub(super) fn now(&self) -> Instant {
        let mut state = self.lock();
        let reader = thread::current().id();
        if state.clock_reader == Some(reader) {
            let next = state.host.now() + Duration::from_micros(1);
            state.host.advance(next);
        }
        state.clock_reader = Some(reader);
        if state.returning == Some(reader) {
            state.returning = None;
            self.changed.notify_all();
        }
        state.host.now()
    }

    /// Lets time pass.
    pub(super) fn advance(&self, duration: Duration) {
        let mut state = self.lock();
        let until = state.host.now() + duration;
        loop {
            state = self.settle(state);
            if state.host.now() >= until {
                return;
            }
            state.host.advance_one_step(until);
            self.note_change(&mut state);
        }
    }

    /// The next packet that leaves.
    pub(super) fn next_packet(&self) -> Option<Packet> {
        let mut state = self.lock();
        if !state.host.has_packet() {
            state = self.settle(state);
        }
        let packet = state.host.next_packet();
        self.note_change(&mut state);
        packet
    }

    /// Waits until no thread is between being woken and having read the clock.
    fn settle<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let is_unsettled = |state: &mut State| {
            let is_woken = state.tried.is_some_and(|tried| tried != state.changes);
            is_woken || state.returning.is_some()
        };
        let waited = self
            .changed
            .wait_timeout_while(state, SETTLE_MAX, is_unsettled);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

#[cfg(test)]
mod tests {
    use wire::TcpFlags;

    use super::*;
    use crate::host::tests::connect;

    /// Waits, in real time, until the other thread is blocked.
    fn await_blocked(shared: &Shared) {
        while shared.lock().tried.is_none() {
            thread::yield_now();
        }
    }

    #[test]
    fn a_blocked_call_returns_at_the_moment_it_can() {
        let shared = Shared::new(Settings::default());
        let (mut peer, connection) = shared.call(connect);
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let bytes = shared.blocking(connection, |host| host.read(connection, 10));
                (bytes, shared.now())
            });
            await_blocked(&shared);
            shared.advance(Duration::from_millis(100));
            let arrival = shared.call(|host| host.now());
            shared.call(|host| host.receive(&peer.packet(TcpFlags::ACK, 1, b"request")));
            // The clock does not move before the reader has read it.
            shared.advance(Duration::from_millis(50));
            let (bytes, at) = reader.join().unwrap();
            assert_eq!((bytes.unwrap().as_slice(), at), (&b"request"[..], arrival));
        });
    }

    #[test]
    fn the_main_thread_and_nonblocking_sockets_do_not_block() {
        let shared = Shared::new(Settings::default());
        let (_, connection) = shared.call(connect);
        let read = || shared.blocking(connection, |host| host.read(connection, 10));
        assert_eq!(read(), Err(Errno::AGAIN));
        let set = shared.call(|host| host.set_nonblocking(connection, true));
        assert_eq!(set, Ok(()));
        thread::scope(|scope| {
            let other = scope.spawn(read);
            assert_eq!(other.join().unwrap(), Err(Errno::AGAIN));
        });
    }

    #[test]
    fn whoever_waits_by_reading_the_clock_sees_it_move() {
        let shared = Shared::new(Settings::default());
        let first = shared.now();
        assert_eq!(shared.now(), first + Duration::from_micros(1));
        shared.call(|_| ());
        assert_eq!(shared.now(), first + Duration::from_micros(1));
    }
}
