//! Packets between the workers of two processes of a take-over.
//!
//! Each worker of the predecessor has a socket that all workers of the successor send to, by the hash of
//! [`link::steering`], so that most reach the worker that has the connection; what it sends back, which is little,
//! reaches the successor's first worker. It refuses to wait: a packet that finds no room is lost, and counted.
//! Bounds: [`super::PACKETS_BYTES_MAX`] wait, [`CROSSING_MAX`] are read in a round from each.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use clock::Instant;
use diskmap::Disk;
use link::{Link, steering};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use session::{CROSSING_MAX, MESSAGE_BYTES_MAX, Process};
use worker::Worker;

/// What all workers of the successor send by: a socket for each worker of the predecessor.
pub(crate) type ToPredecessor = Arc<Vec<OwnedFd>>;

/// A worker's sockets.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    from_successor: Option<OwnedFd>,
    to_successor: Option<Arc<OwnedFd>>,
    /// The first worker's.
    from_predecessor: Option<OwnedFd>,
    to_predecessor: Option<ToPredecessor>,
    /// A message.
    buffer: Vec<u8>,
}

/// What became of the packets of a round.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Passed {
    /// Found no room.
    pub lost: u64,
    /// Meant nothing.
    pub refused: u64,
}

impl Packets {
    /// There is a successor; `None`: it is gone.
    pub(crate) fn set_successor(&mut self, ends: Option<(OwnedFd, Arc<OwnedFd>)>) {
        (self.from_successor, self.to_successor) = ends.unzip();
    }

    /// There is a predecessor. `from`: where its packets come from, for the first worker.
    pub(crate) fn set_predecessor(&mut self, to: ToPredecessor, from: Option<OwnedFd>) {
        (self.to_predecessor, self.from_predecessor) = (Some(to), from);
    }

    /// The predecessor has ended.
    pub(crate) fn forget_predecessor(&mut self) {
        (self.to_predecessor, self.from_predecessor) = (None, None);
    }

    /// What to wait for, at most two.
    pub(crate) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let both = [&self.from_successor, &self.from_predecessor];
        both.into_iter().flatten().map(|socket| socket.as_fd())
    }

    /// Hands the worker what came. To be called before a round, which goes on with it.
    pub(crate) fn read<L: Link, D: Disk>(
        &mut self,
        now: Instant,
        worker: &mut Worker<L, D>,
    ) -> Passed {
        let mut passed = Passed::default();
        let Self {
            from_successor,
            from_predecessor,
            buffer,
            ..
        } = self;
        let sockets = [
            (Process::Successor, from_successor),
            (Process::Predecessor, from_predecessor),
        ];
        for (process, socket) in sockets {
            let Some(open) = socket else { continue };
            buffer.resize(MESSAGE_BYTES_MAX, 0);
            for _ in 0..CROSSING_MAX {
                match recv(&*open, buffer.as_mut_slice(), RecvFlags::DONTWAIT) {
                    Ok((_, 0)) => {
                        // All who could send have ended, as the supervisor will hear.
                        *socket = None;
                        break;
                    }
                    Ok((_, length)) => {
                        let message = buffer.get(..length).unwrap_or_default();
                        let taken = worker.handle_crossing(now, process, message);
                        passed.refused += u64::from(taken.is_err());
                    }
                    Err(_) => break,
                }
            }
        }
        passed
    }

    /// Sends what the worker has for other processes.
    pub(crate) fn write<L: Link, D: Disk>(&mut self, worker: &mut Worker<L, D>) -> Passed {
        let mut passed = Passed::default();
        while let Some((process, stray)) = worker.poll_crossing() {
            if !stray.write_message(&mut self.buffer) {
                passed.refused += 1;
                continue;
            }
            let message = self.buffer.as_slice();
            let socket = match process {
                Process::Successor => self.to_successor.as_deref(),
                Process::Predecessor => self.to_predecessor.as_ref().and_then(|sockets| {
                    let frame = message.get(1..).unwrap_or_default();
                    sockets.get(steering::queue_of(frame, sockets.len()))
                }),
            };
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let is_sent = socket.is_some_and(|socket| send(socket, message, flags).is_ok());
            passed.lost += u64::from(!is_sent);
        }
        passed
    }
}
