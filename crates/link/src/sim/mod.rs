//! A virtual wire between a [`SimLink`] and a [`SimPort`], seeded, on a virtual clock.
//!
//! The server holds the link and does not know that it is simulated; the simulator holds the
//! port and gives and takes raw frames there. The same seed and the same calls give the same
//! bytes at the same moments on any machine.
//!
//! ```text
//!  SimLink::transmit                 one Path each way                      SimPort
//!   large frames -> transmit queue -> bottleneck -> faults -> delay  -> receive
//!                   (line rate, Full)  (rate, drop)
//!   receive      <- delay <- faults <- bottleneck                    <- send
//! ```
//!
//! `wire::cut` segments a large frame into complete MTU frames before any fault is applied, as a
//! device would. It refuses what a real link refuses (too large, interface down) and panics
//! on programming errors (an offload that [`Capabilities`] does not offer).
//!
//! **Faults** ([`PathConfig`]) are loss, reordering, duplication, and one flipped bit in an IP
//! packet. One bit, because two can cancel out in the Internet checksum; only in IP packets, because
//! ARP has no checksum and Ethernet's would have caught it.
//!
//! **A link that borrows slots** ([`SimConfig::borrows_slots`]) reads them when a device would: when the
//! frame leaves, [`SimConfig::device_delay`] after its turn in the queue. Whoever writes a slot before
//! it was given back changes what the port receives. A device can stop for a while
//! ([`SimLink::set_stopped`]), and never tell that it has read a slot ([`SimConfig::kept_slots_ppm`]).
//!
//! **Several links share a line** ([`SimLink::attach`]) as the queues of one NIC: see [`SimNic`].
//!
//! Bounds: both queues have a limit; frames in flight are limited by rate times delay only, and
//! each is an allocation. For simulation only.
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use clock::{Duration, Instant, earlier};
use memory::SlotMemory;
use wire::{ChecksumState, MacAddress, Outgoing};

use crate::counters::LinkCounters;
use crate::error::{LinkError, TransmitError};
use crate::{
    Capabilities, Checksums, CopyReason, ETHERNET_BYTES, FramePath, IP_PACKET_BYTES_MAX, Link,
    Received, Sent,
};

mod device;
mod nic;
mod path;

use device::Device;

pub use device::SlotRead;
pub use nic::{NicConfig, SimNic};
pub use path::{MILLION, PathConfig, PathCounters};
use path::{Path, time_on_wire};

/// The link's capabilities and transmit queue, and both directions of the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimConfig {
    /// The link's MAC address.
    pub mac: MacAddress,
    /// Largest IP packet of one frame, bytes, both ways.
    pub mtu_bytes: u16,
    /// Largest packet the link segments, bytes; 0: none.
    pub segmentation_bytes_max: u32,
    /// Whether the link completes checksums; needed for segmentation.
    pub checksum_offload: bool,
    /// Rate at which the transmit queue empties, bits per second; 0: at once, so that it never
    /// fills.
    pub transmit_bits_per_second: u64,
    /// Frames the transmit queue holds before `Full`, at least 1; a large one counts once.
    pub transmit_queue_frames_max: usize,
    /// Whether frames are sent from lent slots.
    pub borrows_slots: bool,
    /// How long a device that borrows slots takes for a frame, beside its turn in the queue.
    pub device_delay: Duration,
    /// Slots on loan in a million that it never gives back, as when a driver forgets a completion.
    pub kept_slots_ppm: u32,
    /// From the link to the port.
    pub to_port: PathConfig,
    /// From the port to the link.
    pub to_link: PathConfig,
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
            borrows_slots: false,
            device_delay: Duration::ZERO,
            kept_slots_ppm: 0,
            to_port: PathConfig::default(),
            to_link: PathConfig::default(),
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
        to_port: Path::new(config.to_port, seed, 0),
        to_link: Path::new(config.to_link, seed, 1),
        queue: VecDeque::new(),
        line_free_at: Instant::ZERO,
        writable_at: None,
        device: None,
        nic: None,
        seed,
        is_up: true,
        shared_addresses: Vec::new(),
        share_refusal: None,
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
    to_port: Path,
    to_link: Path,
    /// When each frame of the transmit queue will have left it.
    queue: VecDeque<Instant>,
    /// When the last frame will have left.
    line_free_at: Instant,
    /// After `Full`: when there will be room, until the next call.
    writable_at: Option<Instant>,
    /// Present if it borrows slots.
    device: Option<Device>,
    /// The line that it shares with others, and its queue there.
    nic: Option<(SimNic, usize)>,
    seed: u64,
    is_up: bool,
    shared_addresses: Vec<IpAddr>,
    /// The next attempt to share addresses fails with this `errno`.
    share_refusal: Option<i32>,
    counters: LinkCounters,
}

impl Shared {
    /// The device reads the frames whose turn has come, and they leave.
    fn read_frames(&mut self, now: Instant) {
        let Self {
            config,
            to_port,
            device,
            nic,
            is_up,
            ..
        } = self;
        if let (Some(device), Some((nic, queue))) = (&mut *device, nic) {
            while let Some(reads_at) = nic.take_read(*queue) {
                device.decide(reads_at);
            }
        }
        let mut send = |at, frame: &Outgoing<'_>| {
            if *is_up {
                let mut leaves_at = at;
                cut(config, frame, &mut leaves_at, to_port);
            }
        };
        if let Some(device) = device {
            while device.read(now, &mut send) {}
        }
    }

    fn transmit(&mut self, now: Instant, frame: &Outgoing<'_>) -> Result<Sent, TransmitError> {
        self.read_frames(now);
        self.writable_at = None;
        let bytes = frame.bytes();
        if let Err(errno) = self.check(frame, bytes) {
            self.counters.lost_frames += 1;
            return Err(TransmitError::Lost(errno));
        }
        while self
            .queue
            .pop_front_if(|leaves_at| *leaves_at <= now)
            .is_some()
        {}
        let frames_max = self.config.transmit_queue_frames_max;
        let waiting = self.device.as_ref().map_or(0, Device::waiting_frames);
        let has_room = (self.nic.as_ref()).is_none_or(|(nic, queue)| nic.has_room(*queue, bytes));
        if self.queue.len().max(waiting) >= frames_max || !has_room {
            self.counters.full_frames += 1;
            self.writable_at = self.queue.front().copied();
            return Err(TransmitError::Full);
        }
        self.counters.count_transmitted(bytes);
        self.line_free_at = self.line_free_at.max(now);
        let sent = match &mut self.device {
            Some(device) => {
                let mut reads_at = Some(self.line_free_at + self.config.device_delay);
                if let Some((nic, queue)) = &self.nic {
                    nic.hand_over(*queue, now, frame);
                    reads_at = None;
                }
                let sent = device.accept(reads_at, frame);
                self.line_free_at += time_on_wire(bytes, self.config.transmit_bits_per_second);
                self.counters.lent_frames += u64::from(sent != Sent::Copied);
                sent
            }
            None => {
                cut(
                    &self.config,
                    frame,
                    &mut self.line_free_at,
                    &mut self.to_port,
                );
                Sent::Copied
            }
        };
        self.queue.push_back(self.line_free_at);
        Ok(sent)
    }

    /// Names the slots that the device has read.
    fn give_back(&mut self, now: Instant, sink: &mut dyn FnMut(u32)) {
        self.read_frames(now);
        if let Some(device) = &mut self.device {
            device.give_back(sink);
        }
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
        self.read_frames(now);
        self.writable_at = self.writable_at.filter(|writable_at| *writable_at > now);
        if !self.is_up {
            self.to_link.drop_arrived(now);
            return None;
        }
        let frame = self.to_link.take_arrived(now)?;
        self.counters.count_received(frame.len());
        Some(frame)
    }

    fn set_up(&mut self, now: Instant, up: bool) {
        self.read_frames(now);
        if self.is_up && !up {
            self.counters.down_events += 1;
        }
        // Going down: frames not received yet. Coming up: frames that arrived meanwhile.
        if self.is_up != up {
            self.to_link.drop_arrived(now);
        }
        self.is_up = up;
    }

    /// When the device has read its next frame.
    fn next_read(&self) -> Option<Instant> {
        let decided = self.device.as_ref().and_then(Device::next_read);
        let turn = || (self.nic.as_ref()).and_then(|(nic, queue)| nic.next_read(*queue));
        decided.or_else(turn)
    }

    fn next_event(&self) -> Option<Instant> {
        let moments = [
            self.next_read(),
            self.to_port.next_arrival(),
            self.to_link.next_arrival(),
            self.writable_at,
        ];
        moments.into_iter().flatten().min()
    }
}

impl SimLink {
    /// When the next event is: a frame arrives at either end, or the transmit queue that was `Full`
    /// has room. May be in the past, if the frame was not received yet.
    #[must_use]
    pub fn next_event(&self) -> Option<Instant> {
        self.shared.borrow().next_event()
    }

    /// Stops a device that borrows slots, or lets it go on: meanwhile it reads no frame.
    pub fn set_stopped(&mut self, now: Instant, is_stopped: bool) {
        let mut shared = self.shared.borrow_mut();
        shared.read_frames(now);
        if let Some(device) = &mut shared.device {
            device.set_stopped(is_stopped);
        }
    }

    /// The device gets a queue of a NIC, whose line takes the place of [`SimConfig::transmit_bits_per_second`] and
    /// [`SimConfig::device_delay`], and records what it reads of slots: see [`SimLink::take_slot_reads`].
    ///
    /// # Panics
    /// If the link has not borrowed slots yet, or sends at a rate of its own.
    pub fn attach(&mut self, nic: &SimNic) {
        let mut shared = self.shared.borrow_mut();
        assert_eq!(shared.config.transmit_bits_per_second, 0, "two rates");
        let device = shared.device.as_mut().expect("slots to read");
        device.set_recording();
        shared.nic = Some((nic.clone(), nic.add_queue()));
    }

    /// What the device of an attached link has read of slots since the last call, in order.
    pub fn take_slot_reads(&mut self) -> Vec<SlotRead> {
        let mut shared = self.shared.borrow_mut();
        let device = shared.device.as_mut();
        device.map(Device::take_record).unwrap_or_default()
    }

    /// A deliberate fault: from now on slots are given back before the device has read them.
    pub fn give_back_early(&mut self) {
        if let Some(device) = &mut self.shared.borrow_mut().device {
            device.set_early();
        }
    }

    /// Takes the interface down or up at `now`.
    pub fn set_up(&mut self, now: Instant, up: bool) {
        self.shared.borrow_mut().set_up(now, up);
    }

    /// The next [`Link::share_addresses`] fails with this `errno`.
    pub fn refuse_next_share(&mut self, errno: i32) {
        self.shared.borrow_mut().share_refusal = Some(errno);
    }

    /// The addresses of the last [`Link::share_addresses`] that succeeded.
    #[must_use]
    pub fn shared_addresses(&self) -> Vec<IpAddr> {
        self.shared.borrow().shared_addresses.clone()
    }
}

impl Link for SimLink {
    fn share_addresses(&mut self, addresses: &[IpAddr]) -> Result<(), i32> {
        let mut shared = self.shared.borrow_mut();
        if let Some(errno) = shared.share_refusal.take() {
            return Err(errno);
        }
        shared.shared_addresses = addresses.to_vec();
        Ok(())
    }

    fn frame_path(&self) -> FramePath {
        FramePath {
            checksums: Checksums::Software,
            ..FramePath::default()
        }
    }

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

    fn zero_copy(&self) -> Result<(), CopyReason> {
        let is_borrowing = self.shared.borrow().config.borrows_slots;
        is_borrowing.then_some(()).ok_or(CopyReason::Off)
    }

    fn borrow_slots(&mut self, slots: SlotMemory) -> Result<(), CopyReason> {
        self.zero_copy()?;
        let mut shared = self.shared.borrow_mut();
        let device = Device::new(slots, shared.config.kept_slots_ppm, shared.seed);
        shared.device = Some(device);
        Ok(())
    }

    fn give_back(&mut self, now: Instant, sink: &mut dyn FnMut(u32)) {
        self.shared.borrow_mut().give_back(now, sink);
    }

    fn transmit(&mut self, now: Instant, frame: &Outgoing<'_>) -> Result<Sent, TransmitError> {
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
            shared.to_link.send(now, frame);
        }
    }

    /// The next frame from the link that has arrived by `now`.
    pub fn receive(&mut self, now: Instant) -> Option<Vec<u8>> {
        let mut shared = self.shared.borrow_mut();
        shared.read_frames(now);
        shared.to_port.take_arrived(now)
    }

    /// As [`SimLink::next_event`].
    #[must_use]
    pub fn next_event(&self) -> Option<Instant> {
        self.shared.borrow().next_event()
    }

    /// When the next frame from the link arrives, as far as that is decided.
    #[must_use]
    pub fn next_arrival(&self) -> Option<Instant> {
        let shared = self.shared.borrow();
        earlier(shared.next_read(), shared.to_port.next_arrival())
    }

    /// Takes the link's interface down or up at `now`, as [`SimLink::set_up`].
    pub fn set_link_up(&mut self, now: Instant, up: bool) {
        self.shared.borrow_mut().set_up(now, up);
    }

    /// What happened on the way from the link to the port.
    #[must_use]
    pub fn counters_to_port(&self) -> PathCounters {
        self.shared.borrow().to_port.counters()
    }

    /// What happened on the way from the port to the link.
    #[must_use]
    pub fn counters_to_link(&self) -> PathCounters {
        self.shared.borrow().to_link.counters()
    }

    /// The link's counters, as [`Link::counters`].
    #[must_use]
    pub fn link_counters(&self) -> LinkCounters {
        self.shared.borrow().counters
    }
}

/// Puts the segments of a frame on the wire, the first at `leaves_at`.
fn cut(config: &SimConfig, frame: &Outgoing<'_>, leaves_at: &mut Instant, to_port: &mut Path) {
    wire::cut(frame, &mut |headers, payload| {
        let whole = [&[headers], payload].concat().concat();
        let packet_bytes = whole.len() - ETHERNET_BYTES;
        assert!(
            packet_bytes <= usize::from(config.mtu_bytes),
            "a segment was cut to {packet_bytes} bytes, the MTU is {}",
            config.mtu_bytes
        );
        *leaves_at += time_on_wire(whole.len(), config.transmit_bits_per_second);
        to_port.send(*leaves_at, whole);
    });
}

#[cfg(test)]
mod tests;
