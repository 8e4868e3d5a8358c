//! The server's link, which compares every retransmission with the first transmission (see
//! [`Retransmissions`]), and counts the connections (see [`Occupancy`]).
//!
//! A frame that the link took or lost counts as sent; one that it had no room for does not. It
//! refuses to change a frame, except for the canary that alters retransmissions.

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use clock::Instant;
use link::sim::SimLink;
use link::{
    Capabilities, CopyReason, Link, LinkCounters, LinkError, Received, Sent, TransmitError,
};
use memory::SlotMemory;
use wire::Outgoing;

use crate::occupancy::Occupancy;
use crate::retransmissions::Retransmissions;
use crate::world::swap_payload_words;

/// See the module.
#[derive(Debug)]
pub(crate) struct CheckedLink {
    link: SimLink,
    retransmissions: Retransmissions,
    /// Of all workers.
    occupancy: Rc<RefCell<Occupancy>>,
    /// The worker whose link it is.
    worker: usize,
    alters_retransmissions: bool,
}

impl CheckedLink {
    /// Checks everything sent from now on.
    pub(crate) fn new(link: SimLink, worker: usize, occupancy: &Rc<RefCell<Occupancy>>) -> Self {
        Self {
            link,
            retransmissions: Retransmissions::default(),
            occupancy: Rc::clone(occupancy),
            worker,
            alters_retransmissions: false,
        }
    }

    /// The link itself.
    pub(crate) const fn link_mut(&mut self) -> &mut SimLink {
        &mut self.link
    }

    /// What was sent so far.
    pub(crate) const fn retransmissions(&self) -> &Retransmissions {
        &self.retransmissions
    }

    /// When something happens at the link: a frame arrives at either end, or there is room.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        self.link.next_event()
    }

    /// Alters retransmissions from now on: a canary.
    pub(crate) const fn alter_retransmissions(&mut self) {
        self.alters_retransmissions = true;
    }
}

impl Link for CheckedLink {
    fn capabilities(&self) -> Capabilities {
        self.link.capabilities()
    }

    fn receive(
        &mut self,
        now: Instant,
        frames_max: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, LinkError> {
        let occupancy = &self.occupancy;
        self.link.receive(now, frames_max, &mut |received| {
            occupancy.borrow_mut().on_received(now, received.frame);
            sink(received);
        })
    }

    fn zero_copy(&self) -> Result<(), CopyReason> {
        self.link.zero_copy()
    }

    fn lent_stride_bytes(&self, stride_bytes: usize) -> usize {
        self.link.lent_stride_bytes(stride_bytes)
    }

    fn borrow_slots(&mut self, slots: SlotMemory) -> Result<(), CopyReason> {
        self.link.borrow_slots(slots)
    }

    fn return_slots(&mut self) {
        self.link.return_slots();
    }

    fn give_back(&mut self, now: Instant, sink: &mut dyn FnMut(u32)) {
        self.link.give_back(now, sink);
    }

    fn transmit(&mut self, now: Instant, frame: &Outgoing<'_>) -> Result<Sent, TransmitError> {
        let mut whole = [&[frame.headers], frame.payload].concat().concat();
        let result = if self.alters_retransmissions && self.retransmissions.is_repeat(&whole) {
            swap_payload_words(&mut whole);
            let payload = &whole[frame.headers.len()..];
            let altered = Outgoing {
                payload: &[payload],
                ..*frame
            };
            self.link.transmit(now, &altered)
        } else {
            self.link.transmit(now, frame)
        };
        if result != Err(TransmitError::Full) {
            self.retransmissions.handle_frame(&whole);
            let mut occupancy = self.occupancy.borrow_mut();
            occupancy.on_sent(now, self.worker, &whole);
        }
        result
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.link.poll_fd()
    }

    fn counters(&self) -> LinkCounters {
        self.link.counters()
    }
}
