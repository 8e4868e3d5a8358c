//! A virtual wire between a [`SimLink`] and a [`SimPort`], seeded, on a virtual clock.
//!
//! The server holds the link and does not know that it is simulated; the simulator holds the
//! port and gives and takes raw frames there. The same seed and the same calls give the same
//! bytes at the same moments on any machine.
//!
//! ```text
//!  SimLink::transmit                 one Cable each way                     SimPort
//!   large frames -> transmit queue -> bottleneck -> faults -> delay  -> receive
//!                   (line rate, Full)  (rate, drop)
//!   receive      <- delay <- faults <- bottleneck                    <- send
//! ```
//!
//! A large frame is cut by `wire::cut` into complete MTU frames before any fault is applied, as a
//! device would. It refuses what a real link would refuse (too large, interface down) and panics
//! on what no caller may do (an offload that [`Capabilities`] does not offer).
//!
//! **Faults** ([`CableConfig`]) are loss, delay of single frames past younger ones, duplication,
//! and one flipped bit in an IP packet. One bit, because two can cancel out in the Internet
//! checksum; only in IP packets, because ARP has no checksum and Ethernet's would have caught it.
//!
//! Bounds: both queues have a limit; frames in flight are limited by rate times delay only, and
//! each is an allocation. For simulation only.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use clock::Instant;
use wire::{ChecksumState, MacAddress, Outgoing};

use crate::counters::LinkCounters;
use crate::error::{LinkError, TransmitError};
use crate::{Capabilities, ETHERNET_BYTES, IP_PACKET_BYTES_MAX, Link, Received};

mod cable;

use cable::{Cable, time_on_wire};
pub use cable::{CableConfig, CableCounters, MILLION};

/// The link's side of the wire, and the wire both ways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimConfig {
    /// MAC address the link says is ours.
    pub mac: MacAddress,
    /// Largest IP packet of one frame, bytes, both ways.
    pub mtu_bytes: u16,
    /// What the link says it can cut, bytes; 0: nothing.
    pub segmentation_bytes_max: u32,
    /// Whether the link says it completes checksums; needed for segmentation.
    pub checksum_offload: bool,
    /// Rate at which the transmit queue empties onto the wire, bits per second; 0: at once, so
    /// that it never fills.
    pub transmit_bits_per_second: u64,
    /// Frames the transmit queue holds before `Full`, at least 1; a large one counts once.
    pub transmit_queue_frames_max: usize,
    /// From the link to the port.
    pub to_port: CableConfig,
    /// From the port to the link.
    pub to_link: CableConfig,
}

impl Default for SimConfig {
    /// A wire without limits or faults, and a link with every offload.
    fn default() -> Self {
        Self {
            mac: MacAddress([0x02, 0, 0, 0, 0, 0x01]),
            mtu_bytes: 1_500,
            segmentation_bytes_max: IP_PACKET_BYTES_MAX,
            checksum_offload: true,
            transmit_bits_per_second: 0,
            transmit_queue_frames_max: 1_024,
            to_port: CableConfig::default(),
            to_link: CableConfig::default(),
        }
    }
}

/// Makes a wire and gives out its two ends.
///
/// # Panics
/// If the configuration contradicts itself: a rate above a million, segmentation without
/// checksums, a queue of nothing.
#[must_use]
pub fn pair(config: SimConfig, seed: u64) -> (SimLink, SimPort) {
    assert!(
        config.checksum_offload || config.segmentation_bytes_max == 0,
        "a link that cuts segments completes their checksums"
    );
    assert!(
        config.transmit_queue_frames_max > 0,
        "a transmit queue of nothing"
    );
    let shared = Rc::new(RefCell::new(Shared {
        to_port: Cable::new(config.to_port, seed, 0),
        to_link: Cable::new(config.to_link, seed, 1),
        queue: VecDeque::new(),
        line_free_at: Instant::ZERO,
        room_at: None,
        is_up: true,
        counters: LinkCounters::default(),
        config,
    }));
    (
        SimLink {
            shared: Rc::clone(&shared),
        },
        SimPort { shared },
    )
}

/// The end a server drives.
#[derive(Debug)]
pub struct SimLink {
    shared: Rc<RefCell<Shared>>,
}

/// The other end: raw frames, each at most an Ethernet header and the MTU.
#[derive(Debug)]
pub struct SimPort {
    shared: Rc<RefCell<Shared>>,
}

#[derive(Debug)]
struct Shared {
    config: SimConfig,
    to_port: Cable,
    to_link: Cable,
    /// When each frame of the transmit queue will have left it.
    queue: VecDeque<Instant>,
    /// When the last of them will have left.
    line_free_at: Instant,
    /// After `Full`: when there will be room. Until the caller comes back.
    room_at: Option<Instant>,
    is_up: bool,
    counters: LinkCounters,
}

impl Shared {
    fn transmit(&mut self, now: Instant, frame: &Outgoing<'_>) -> Result<(), TransmitError> {
        self.room_at = None;
        let bytes =
            frame.headers.len() + frame.payload.iter().map(|part| part.len()).sum::<usize>();
        if let Err(errno) = self.check(frame, bytes) {
            self.counters.lost_frames += 1;
            return Err(TransmitError::Lost(errno));
        }
        while self
            .queue
            .pop_front_if(|leaves_at| *leaves_at <= now)
            .is_some()
        {}
        if self.queue.len() >= self.config.transmit_queue_frames_max {
            self.counters.full_frames += 1;
            self.room_at = self.queue.front().copied();
            return Err(TransmitError::Full);
        }
        self.counters.count_transmitted(bytes);
        let Self {
            config,
            to_port,
            line_free_at,
            ..
        } = self;
        *line_free_at = (*line_free_at).max(now);
        wire::cut(frame, &mut |headers, payload| {
            let whole = [&[headers], payload].concat().concat();
            let packet_bytes = whole.len() - ETHERNET_BYTES;
            assert!(
                packet_bytes <= usize::from(config.mtu_bytes),
                "a segment was cut to {packet_bytes} bytes, the MTU is {}",
                config.mtu_bytes
            );
            *line_free_at += time_on_wire(whole.len(), config.transmit_bits_per_second);
            to_port.carry(*line_free_at, whole);
        });
        self.queue.push_back(self.line_free_at);
        Ok(())
    }

    /// Refuses what a real link would; the errno it would give.
    fn check(&mut self, frame: &Outgoing<'_>, bytes: usize) -> Result<(), i32> {
        let offload = &frame.offload;
        assert!(
            self.config.checksum_offload || offload.checksum.is_none(),
            "a partial checksum for a link without checksum offload"
        );
        assert!(
            self.config.segmentation_bytes_max > 0 || offload.segmentation.is_none(),
            "a large frame for a link without segmentation"
        );
        if !self.is_up {
            self.counters.down_events += 1;
            return Err(libc::ENETDOWN);
        }
        let packet_bytes_max = match offload.segmentation {
            Some(_) => self.config.segmentation_bytes_max,
            None => u32::from(self.config.mtu_bytes),
        };
        if bytes < ETHERNET_BYTES {
            return Err(libc::EINVAL);
        }
        if bytes > ETHERNET_BYTES + packet_bytes_max as usize {
            return Err(libc::EMSGSIZE);
        }
        Ok(())
    }

    /// The next frame for the link that has arrived by `now`; those that arrive while the
    /// interface is down are lost.
    fn receive(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.room_at = self.room_at.filter(|room_at| *room_at > now);
        if !self.is_up {
            self.to_link.lose_arrived(now);
            return None;
        }
        let frame = self.to_link.take_arrived(now)?;
        self.counters.count_received(frame.len());
        Some(frame)
    }

    fn set_up(&mut self, now: Instant, up: bool) {
        if self.is_up && !up {
            self.counters.down_events += 1;
        }
        // Going down, what was not received yet; coming up, what arrived meanwhile.
        if self.is_up != up {
            self.to_link.lose_arrived(now);
        }
        self.is_up = up;
    }

    fn next_event(&self) -> Option<Instant> {
        let moments = [
            self.to_port.next_arrival(),
            self.to_link.next_arrival(),
            self.room_at,
        ];
        moments.into_iter().flatten().min()
    }
}

impl SimLink {
    /// When something will next have happened on the wire: a frame arrives at either end, or the
    /// transmit queue that was `Full` has room. May be past, if what happened was not taken yet.
    #[must_use]
    pub fn next_event(&self) -> Option<Instant> {
        self.shared.borrow().next_event()
    }

    /// Takes the interface down or up at `now`.
    pub fn set_up(&mut self, now: Instant, up: bool) {
        self.shared.borrow_mut().set_up(now, up);
    }
}

impl Link for SimLink {
    fn capabilities(&self) -> Capabilities {
        let SimConfig {
            mac,
            mtu_bytes,
            segmentation_bytes_max,
            checksum_offload,
            ..
        } = self.shared.borrow().config;
        Capabilities {
            mac,
            mtu_bytes,
            segmentation_bytes_max,
            checksum_offload,
        }
    }

    fn receive(
        &mut self,
        now: Instant,
        frames_max: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, LinkError> {
        for handed in 0..frames_max {
            let frame = self.shared.borrow_mut().receive(now);
            let Some(frame) = frame else {
                return Ok(handed);
            };
            sink(Received {
                frame: &frame,
                checksum: ChecksumState::Unverified,
            });
        }
        Ok(frames_max)
    }

    fn transmit(&mut self, now: Instant, frame: &Outgoing<'_>) -> Result<(), TransmitError> {
        self.shared.borrow_mut().transmit(now, frame)
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> LinkCounters {
        self.shared.borrow().counters
    }
}

impl SimPort {
    /// Sends a frame towards the link at `now`. One larger than the MTU is dropped and counted.
    pub fn send(&mut self, now: Instant, frame: Vec<u8>) {
        let mut shared = self.shared.borrow_mut();
        if frame.len() > ETHERNET_BYTES + usize::from(shared.config.mtu_bytes) {
            shared.to_link.count_oversize();
        } else {
            shared.to_link.carry(now, frame);
        }
    }

    /// The next frame from the link that has arrived by `now`.
    pub fn receive(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.shared.borrow_mut().to_port.take_arrived(now)
    }

    /// As [`SimLink::next_event`].
    #[must_use]
    pub fn next_event(&self) -> Option<Instant> {
        self.shared.borrow().next_event()
    }

    /// Takes the link's interface down or up at `now`, as [`SimLink::set_up`].
    pub fn set_link_up(&mut self, now: Instant, up: bool) {
        self.shared.borrow_mut().set_up(now, up);
    }

    /// What happened on the way from the link to the port.
    #[must_use]
    pub fn counters_to_port(&self) -> CableCounters {
        self.shared.borrow().to_port.counters()
    }

    /// What happened on the way from the port to the link.
    #[must_use]
    pub fn counters_to_link(&self) -> CableCounters {
        self.shared.borrow().to_link.counters()
    }

    /// The link's counters, as [`Link::counters`].
    #[must_use]
    pub fn link_counters(&self) -> LinkCounters {
        self.shared.borrow().counters
    }
}

#[cfg(test)]
mod tests;
