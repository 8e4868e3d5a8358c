//! The server's link, which compares every retransmission with the first transmission (see
//! [`Retransmissions`]), and counts the connections (see [`Occupancy`]).
//!
//! A frame that the link took or lost counts as sent; one that it had no room for does not. It
//! refuses to change a frame, except for the canary that alters retransmissions.

use std::os::fd::BorrowedFd;

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
    occupancy: Occupancy,
    alters_retransmissions: bool,
}

impl CheckedLink {
    /// Checks everything sent from now on.
    pub(crate) fn new(link: SimLink) -> Self {
        Self {
            link,
            retransmissions: Retransmissions::default(),
            occupancy: Occupancy::default(),
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

    /// Which connections there were.
    pub(crate) const fn occupancy(&self) -> &Occupancy {
        &self.occupancy
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
        let occupancy = &mut self.occupancy;
        self.link.receive(now, frames_max, &mut |received| {
            occupancy.on_received(now, received.frame);
            sink(received);
        })
    }

    fn zero_copy(&self) -> Result<(), CopyReason> {
        self.link.zero_copy()
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
            self.occupancy.on_sent(now, &whole);
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
