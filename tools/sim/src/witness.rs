//! The server's link, with a witness: everything it sends is held against what it sent before,
//! see [`Repeats`].
//!
//! What the link took, or lost, has been sent; what it had no room for has not. It refuses to
//! change a frame, unless it is told to be the canary that alters what is sent again.

use std::os::fd::BorrowedFd;

use clock::Instant;
use link::sim::SimLink;
use link::{Capabilities, Link, LinkCounters, LinkError, Received, TransmitError};
use wire::Outgoing;

use crate::repeats::Repeats;
use crate::world::swap_payload_words;

/// See the module.
#[derive(Debug)]
pub(crate) struct Witness {
    link: SimLink,
    repeats: Repeats,
    alters_repeats: bool,
}

impl Witness {
    /// Reads along from now on.
    pub(crate) fn new(link: SimLink) -> Self {
        Self {
            link,
            repeats: Repeats::default(),
            alters_repeats: false,
        }
    }

    /// The link itself.
    pub(crate) const fn link_mut(&mut self) -> &mut SimLink {
        &mut self.link
    }

    /// What was seen.
    pub(crate) const fn repeats(&self) -> &Repeats {
        &self.repeats
    }

    /// From now on, what is sent again is not what was sent before.
    pub(crate) const fn alter_repeats(&mut self) {
        self.alters_repeats = true;
    }
}

impl Link for Witness {
    fn capabilities(&self) -> Capabilities {
        self.link.capabilities()
    }

    fn receive(
        &mut self,
        now: Instant,
        frames_max: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, LinkError> {
        self.link.receive(now, frames_max, sink)
    }

    fn transmit(&mut self, now: Instant, frame: &Outgoing<'_>) -> Result<(), TransmitError> {
        let mut whole = [&[frame.headers], frame.payload].concat().concat();
        let result = if self.alters_repeats && self.repeats.is_repeat(&whole) {
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
            self.repeats.handle_frame(&whole);
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
