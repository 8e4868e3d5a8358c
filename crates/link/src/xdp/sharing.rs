//! AF_XDP sockets that pass from one process to another, which takes over: the sockets, their memory, the map and the
//! attachment stay what they are, so the device notices nothing and no frame is lost.
//!
//! One process at a time uses the rings: the one that stops leaves them as they are, and what it had queued comes back
//! to the one that goes on. That one counts what is outstanding by the rings' indices, and sends by a packet socket until
//! all of it is back. They are right whenever the other was killed: entries are stored before indices are, and received
//! ones given back only after a frame's last descriptor. Between the indices of two rings, up to a batch of cells may be
//! lost to receiving. The one that has stopped does not use the rings again unless it takes them back. Each has a program
//! and a map of addresses of its own, and attaches the program when it begins.
//!
//! It refuses to hand over while the device may read slots: they would come back to the other process. Slots are
//! memory of the process that made the socket, so the other copies what it sends. Bound: [`LOANS_TIME_MAX`].

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::bpf::{self, Place};
use super::queue::{Queue, Shape};
use super::setup::kernel;
use super::vlan::Device;
use super::{CELLS_MAX, CELLS_MIN, Xdp};
use crate::error::SetupError;

/// How long the device may take to read the slots that it was lent.
const LOANS_TIME_MAX: Duration = Duration::from_millis(50);

/// What a process needs to know of a socket of another's, beside its descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpShape {
    /// Cells for receiving.
    pub receive_cells: u32,
    /// Cells for sending.
    pub transmit_cells: u32,
    /// Bytes of slots behind them, which belong to the process that made the socket.
    pub slots_bytes: u64,
    /// Whether a frame may have several descriptors.
    pub has_pieces: bool,
    /// Whether the memory is registered for metadata.
    pub has_metadata: bool,
    /// Whether checksums are left to the kernel or the device.
    pub finishes_checksums: bool,
    /// Whether the program runs in the driver.
    pub is_in_driver: bool,
}

impl XdpShape {
    /// Whether a socket can have it.
    pub(super) fn is_possible(&self) -> bool {
        let cells = [self.receive_cells, self.transmit_cells];
        let is_count = |it: &u32| it.is_power_of_two() && (CELLS_MIN..=CELLS_MAX).contains(it);
        // No memory is larger.
        let is_size = usize::try_from(self.slots_bytes).is_ok_and(|bytes| bytes <= usize::MAX / 4);
        cells.iter().all(is_count) && is_size
    }
}

/// The sockets of another process.
#[derive(Debug)]
pub(super) struct SharedSockets {
    /// The attachment's BPF link.
    pub(super) link: OwnedFd,
    /// The map of sockets.
    pub(super) map: OwnedFd,
    /// By queue: the socket, and the file that its memory is.
    pub(super) queues: VecDeque<(XdpShape, [OwnedFd; 2])>,
}

impl SharedSockets {
    /// `None`: it is not what [`Xdp::share`] gives, queue by queue.
    pub(super) fn new(shapes: &[XdpShape], descriptors: Vec<OwnedFd>) -> Option<Self> {
        let mut descriptors = descriptors.into_iter();
        let (link, map) = (descriptors.next()?, descriptors.next()?);
        let mut queues = VecDeque::new();
        for shape in shapes.iter().filter(|shape| shape.is_possible()) {
            queues.push_back((*shape, [descriptors.next()?, descriptors.next()?]));
        }
        let is_whole = queues.len() == shapes.len() && descriptors.next().is_none();
        is_whole.then_some(Self { link, map, queues })
    }

    /// Where the program runs.
    pub(super) fn place(&self) -> Place {
        match self.queues.front() {
            Some((shape, _)) if shape.is_in_driver => Place::Driver,
            _ => Place::Generic,
        }
    }
}

/// A queue with a socket of another process, which is bound. Its options stay what they are.
pub(super) fn take_queue(
    device: &Device,
    (shape, [socket, file]): (XdpShape, [OwnedFd; 2]),
) -> Result<Queue, SetupError> {
    let failed = |errno| kernel(device.name, "taking an AF_XDP socket over", errno);
    let queue_shape = Shape {
        receive_cells: shape.receive_cells,
        transmit_cells: shape.transmit_cells,
        slots_bytes: usize::try_from(shape.slots_bytes).map_err(|_| failed(libc::EPROTO))?,
        has_pieces: shape.has_pieces,
        tag: device.tag_bytes(),
        has_metadata: shape.has_metadata,
    };
    let queue = Queue::of_shared(queue_shape, (socket, file));
    let mut queue = queue.map_err(|(_, errno)| failed(errno))?;
    if shape.has_metadata && shape.finishes_checksums {
        queue.leave_checksums();
    }
    Ok(queue)
}

impl Xdp {
    /// What another process needs for [`Xdp::of_shared`], of all queues in their order: the first one's descriptors
    /// are four, the others' two.
    ///
    /// # Errors
    /// The kernel's: no descriptors.
    pub fn share(&self) -> io::Result<(XdpShape, Vec<OwnedFd>)> {
        let (shape, queue) = self.queue.share()?;
        let shape = XdpShape {
            receive_cells: shape.receive_cells,
            transmit_cells: shape.transmit_cells,
            slots_bytes: shape.slots_bytes as u64,
            has_pieces: shape.has_pieces,
            has_metadata: shape.has_metadata,
            finishes_checksums: self.queue.finishes_checksums(),
            is_in_driver: self.is_in_driver(),
        };
        let mut descriptors = Vec::new();
        if self.queue_index == 0 {
            descriptors.push(self.attachment.link.try_clone()?);
            descriptors.push(self.attachment.map.try_clone()?);
        }
        descriptors.extend(queue);
        Ok((shape, descriptors))
    }

    /// As [`Link::set_receiving`](crate::Link::set_receiving).
    pub(super) fn set_using(&mut self, is_using: bool) -> Result<(), i32> {
        if is_using == self.is_using {
            return Ok(());
        }
        if is_using {
            self.begin()?;
        } else {
            self.stop()?;
        }
        self.is_using = is_using;
        Ok(())
    }

    fn begin(&mut self) -> Result<(), i32> {
        let attachment = &self.attachment;
        if self.queue_index == 0 {
            match bpf::replace_program(&attachment.link, &attachment.program) {
                // Before Linux 5.19. The other program takes the same frames, if it has the same addresses.
                Err(libc::EPERM) if attachment.address_map.is_none() => {}
                replaced => replaced?,
            }
        }
        if !self.is_in_map {
            bpf::set_queue(&attachment.map, self.queue_index, self.queue.socket())?;
            self.is_in_map = true;
        }
        self.queue.resume();
        self.statistics_before = self.queue.statistics();
        // What another process has put into the ring may wait for a call.
        let _ = self.queue.kick();
        Ok(())
    }

    fn stop(&mut self) -> Result<(), i32> {
        let deadline = Instant::now() + LOANS_TIME_MAX;
        loop {
            self.queue.reap();
            if self.queue.are_loans_back() {
                break;
            }
            if Instant::now() >= deadline {
                return Err(libc::EBUSY);
            }
            let _ = self.queue.kick();
            std::thread::yield_now();
        }
        self.queue.pause();
        self.statistics_kept = self.statistics();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;

    use super::{SharedSockets, XdpShape};
    use crate::xdp::{CELLS_MAX, CELLS_MIN};

    const SHAPE: XdpShape = XdpShape {
        receive_cells: CELLS_MIN,
        transmit_cells: CELLS_MAX,
        slots_bytes: 0,
        has_pieces: false,
        has_metadata: false,
        finishes_checksums: false,
        is_in_driver: true,
    };

    fn descriptors(count: usize) -> Vec<OwnedFd> {
        let open = |_| File::open("/dev/null").unwrap().into();
        (0..count).map(open).collect()
    }

    #[test]
    fn two_descriptors_of_all_and_two_of_each_queue_are_taken_and_no_other_number() {
        for (queues, count, is_taken) in [
            (1, 4, true),
            (1, 3, false),
            (1, 5, false),
            (2, 6, true),
            (2, 5, false),
            (64, 130, true),
            (0, 1, false),
        ] {
            let shared = SharedSockets::new(&vec![SHAPE; queues], descriptors(count));
            assert_eq!(shared.is_some(), is_taken, "{queues} {count}");
        }
    }

    #[test]
    fn a_shape_that_no_socket_has_is_refused() {
        for (receive_cells, slots_bytes, is_taken) in [
            (CELLS_MIN / 2, 0, false),
            (CELLS_MIN, 0, true),
            (CELLS_MIN + 1, 0, false),
            (CELLS_MAX, 0, true),
            (2 * CELLS_MAX, 0, false),
            (CELLS_MAX, 1 << 40, true),
            (CELLS_MAX, u64::MAX, false),
        ] {
            let shape = XdpShape {
                receive_cells,
                slots_bytes,
                ..SHAPE
            };
            let shared = SharedSockets::new(&[shape], descriptors(4));
            assert_eq!(shared.is_some(), is_taken, "{receive_cells} {slots_bytes}");
        }
    }
}
