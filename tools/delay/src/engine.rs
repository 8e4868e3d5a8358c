//! The loop around the middlebox: receive, hold, send, sleep.
//!
//! A round receives what waits and sends what is due. A round that had something to do is followed
//! by a sleep until [`Pace::round`] after its beginning, however much comes meanwhile: frames carry
//! the kernel's stamp, so nothing is lost by looking at them later, and a hundred thousand of them
//! a second cost ten thousand wake-ups. So a frame leaves up to that much late under load, and as
//! precisely as the kernel wakes us without. A round with nothing to do is followed by a sleep
//! until the next frame is due or one arrives. There is no spinning.
//!
//! Bounds: [`RECEIVE_BATCHES_MAX`] batches received in a round before others are sent;
//! [`REFUSALS_MAX`] attempts to send a frame that the device has no room for.

use std::os::fd::BorrowedFd;

use anyhow::{Context as _, Result, bail};
use clock::{Duration, Instant};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::ending::Ending;
use crate::ladder::Ladder;
use crate::middlebox::{Due, Middlebox, VNET_HEADER_BYTES};
use crate::port::{Receiver, Sender};
use crate::sys::{self, BATCH_FRAMES, Inbox};
use crate::time::{Clock, timespec};

/// Most batches received before what is due is sent. `[guess]`
const RECEIVE_BATCHES_MAX: usize = 16;

/// Rounds in which the device may refuse a frame for want of room before the frame is dropped.
const REFUSALS_MAX: u32 = 50;

/// How often an interface that is down is asked whether it was removed: nothing tells us.
const DOWN_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Most directions.
const DIRECTIONS_MAX: usize = 2;

/// When to wake up and when to end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Least time from the beginning of a round with work to the next one.
    pub(crate) round: Duration,
    /// When to end without being asked.
    pub(crate) end: Instant,
}

/// What the sending side of a direction did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sent {
    pub(crate) frames: u64,
    /// From the destination MAC on.
    pub(crate) bytes: u64,
    /// How late frames with a flow left: from their deadline until the system call that sent them
    /// had returned.
    pub(crate) lateness: Ladder,
    /// Frames the device had no room for.
    pub(crate) refused_frames: u64,
    /// Frames the kernel would not send.
    pub(crate) failed_frames: u64,
    /// Times that a frame was offered again.
    pub(crate) retries: u64,
}

/// One way through the middlebox.
pub(crate) struct Direction {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) middlebox: Middlebox,
    pub(crate) sent: Sent,
    /// Frames that the kernel dropped because we did not receive them in time.
    pub(crate) missed_frames: u64,
    /// Errors that came in place of frames.
    pub(crate) receive_errors: u64,
    receiver: Receiver,
    sender: Sender,
    inbox: Inbox,
    /// Due frames on their way to the kernel, in order; what is left here was refused.
    outbox: Vec<Due>,
    /// How often the first of them was.
    refusals: u32,
    is_down: bool,
}

impl Direction {
    pub(crate) fn new(
        (from, receiver): (&str, Receiver),
        (to, sender): (&str, Sender),
        middlebox: Middlebox,
    ) -> Self {
        Self {
            from: from.to_owned(),
            to: to.to_owned(),
            middlebox,
            sent: Sent::default(),
            missed_frames: 0,
            receive_errors: 0,
            receiver,
            sender,
            inbox: Inbox::new(),
            outbox: Vec::with_capacity(BATCH_FRAMES),
            refusals: 0,
            is_down: false,
        }
    }

    /// Frames that will not leave any more: to be asked at the end.
    pub(crate) fn held_frames(&self) -> u64 {
        self.middlebox.held_frames() + self.outbox.len() as u64
    }

    /// Receives what waits. Whether anything did.
    fn receive(&mut self, clock: Clock) -> Result<bool> {
        let mut any = false;
        for _ in 0..RECEIVE_BATCHES_MAX {
            let count = match self.inbox.receive(self.receiver.fd()) {
                Ok(count) => count,
                Err(libc::EAGAIN) => break,
                Err(errno) => {
                    self.note_error(errno)?;
                    break;
                }
            };
            any = true;
            self.is_down = false;
            let reading = clock.read();
            for index in 0..count {
                let arrived = reading.arrival(self.inbox.stamp(index));
                // The middlebox has counted what it made of the frame.
                let _ = self
                    .middlebox
                    .handle_frame(arrived, self.inbox.packet(index));
            }
            if count < BATCH_FRAMES {
                break;
            }
        }
        Ok(any)
    }

    /// Sends what is due. Whether anything was.
    fn send(&mut self, clock: Clock) -> Result<bool> {
        let mut any = false;
        loop {
            let now = clock.now();
            while self.outbox.len() < BATCH_FRAMES {
                match self.middlebox.poll_due(now) {
                    Some(due) => self.outbox.push(due),
                    None => break,
                }
            }
            if self.outbox.is_empty() {
                return Ok(any);
            }
            any = true;
            if !self.send_outbox(clock)? {
                return Ok(any);
            }
        }
    }

    /// Offers the outbox to the kernel. Whether it is worth offering the rest at once.
    fn send_outbox(&mut self, clock: Clock) -> Result<bool> {
        let mut packets: [&[u8]; BATCH_FRAMES] = [&[]; BATCH_FRAMES];
        for (packet, due) in packets.iter_mut().zip(&self.outbox) {
            *packet = self.middlebox.packet(due);
        }
        let packets = &packets[..self.outbox.len()];
        match sys::send_batch(self.sender.fd(), packets) {
            Ok(count) => {
                let bytes: usize = packets[..count].iter().map(|packet| packet.len()).sum();
                self.sent.bytes += (bytes - count * VNET_HEADER_BYTES) as u64;
                self.sent.frames += count as u64;
                let now = clock.now();
                for due in self.outbox.drain(..count) {
                    if due.was_held {
                        self.sent.lateness.record(now.since(due.deadline));
                    }
                    self.middlebox.release(due);
                }
                self.refusals = 0;
                Ok(true)
            }
            Err(libc::EAGAIN | libc::ENOBUFS) if self.refusals < REFUSALS_MAX => {
                self.refusals += 1;
                self.sent.retries += 1;
                Ok(false)
            }
            Err(libc::ENXIO | libc::ENODEV) => bail!("the interface {:?} was removed", self.to),
            Err(errno) => {
                let no_room = matches!(errno, libc::EAGAIN | libc::ENOBUFS);
                self.sent.refused_frames += u64::from(no_room);
                self.sent.failed_frames += u64::from(!no_room);
                self.refusals = 0;
                let first = self.outbox.remove(0);
                self.middlebox.release(first);
                Ok(true)
            }
        }
    }

    /// Sorts an error that came in place of frames.
    fn note_error(&mut self, errno: i32) -> Result<()> {
        self.receive_errors += 1;
        self.is_down |= errno == libc::ENETDOWN;
        if self.is_down && self.receiver.is_gone() {
            bail!("the interface {:?} was removed", self.from);
        }
        Ok(())
    }

    /// Notices what makes no noise.
    fn check(&mut self) -> Result<()> {
        if self.is_down && self.receiver.is_gone() {
            bail!("the interface {:?} was removed", self.from);
        }
        Ok(())
    }

    /// Asks the kernel what it dropped; it forgets what it has told.
    fn collect_missed(&mut self) {
        let drops = sys::take_drops(self.receiver.fd()).unwrap_or_default();
        self.missed_frames += u64::from(drops);
    }
}

/// Runs until it is asked to end. How many rounds had something to do.
pub(crate) fn run(
    directions: &mut [Direction],
    clock: Clock,
    pace: Pace,
    ending: &Ending,
) -> Result<u64> {
    let mut busy_rounds = 0;
    let outcome = loop {
        let begun = clock.now();
        if ending.is_requested() || begun >= pace.end {
            break Ok(busy_rounds);
        }
        match round(directions, clock) {
            Ok(true) => {
                busy_rounds += 1;
                clock.sleep_until((begun + pace.round).min(pace.end));
            }
            Ok(false) => wait(directions, clock, pace, ending)?,
            Err(error) => break Err(error),
        }
    };
    directions.iter_mut().for_each(Direction::collect_missed);
    outcome
}

/// Everything once. Whether there was anything to do.
fn round(directions: &mut [Direction], clock: Clock) -> Result<bool> {
    let mut any = false;
    for direction in directions {
        direction.check()?;
        any |= direction.receive(clock)?;
        any |= direction.send(clock)?;
    }
    Ok(any)
}

/// Sleeps until a frame arrives or is due, or the end is near.
fn wait(directions: &[Direction], clock: Clock, pace: Pace, ending: &Ending) -> Result<()> {
    let deadlines = directions
        .iter()
        .filter_map(|direction| direction.middlebox.next_deadline());
    let mut wake = deadlines.fold(pace.end, Instant::min);
    let now = clock.now();
    if directions.iter().any(|direction| direction.is_down) {
        wake = wake.min(now + DOWN_CHECK_INTERVAL);
    }
    let mut fds: [BorrowedFd<'_>; DIRECTIONS_MAX + 1] = [ending.fd(); DIRECTIONS_MAX + 1];
    for (fd, direction) in fds.iter_mut().skip(1).zip(directions) {
        *fd = direction.receiver.fd();
    }
    let mut polled = fds.each_ref().map(|fd| PollFd::new(fd, PollFlags::IN));
    let timeout = (wake != Instant::FAR_FUTURE).then(|| timespec(wake.since(now)));
    let polled = &mut polled[..=directions.len()];
    match poll(polled, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno).context("waiting for frames"),
    }
}
