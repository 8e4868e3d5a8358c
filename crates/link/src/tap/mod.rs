//! Frames through a tap or a macvtap: a character device with a virtio-net header.
//!
//! A **tap** is a virtual wire to the host: the host's stack receives on the interface what we
//! write, with no device in between and in packets of up to 65,535 bytes. A **macvtap** is an
//! interface with a MAC of its own on top of an existing one; its descriptor behaves the same.
//!
//! It refuses to use an interface that is not a tap.
//!
//! **Several queues** ([`Tap::open_queues`]), each a descriptor and for one worker. The host hands a frame
//! to the queue that last sent to the same flow, and a new flow to one by hash (`tun_select_queue`). A
//! macvtap chooses by a hash of the flow always. An ICMP error is a flow of its own for both, so it may
//! reach another queue than the connection it is about.
//!
//! Bounds: for each queue, one receive buffer of `BUFFER_BYTES`, one system call for each frame either way
//! (neither device has a batched call). `SEND_BUFFER_BYTES` bounds the frames that the host has not
//! received yet; beyond it `transmit` returns `Full` and the descriptor becomes writable when there
//! is room.

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use clock::Instant;
use wire::Outgoing;

use crate::counters::LinkCounters;
use crate::error::{LinkError, SetupError, TransmitError};
use crate::interface::InterfaceAddress;
use crate::refusal::RefusalPeriod;
use crate::steering::QUEUES_MAX;
use crate::sys::{self, errno_of};
use crate::vnet::{VNET_HEADER_BYTES, VnetHeader};
use crate::{
    Capabilities, ETHERNET_BYTES, InterfaceState, Link, Received, STATE_CHECK_INTERVAL, Sent,
    gather, linear_bytes,
};

mod device;

use device::Device;

/// Room for the largest frame (IPv6 with 65,535 bytes of payload, a VLAN tag), its virtio-net
/// header, and one byte more: the device truncates a frame that does not fit and reports nothing,
/// so a full buffer means a truncated frame.
const BUFFER_BYTES: usize = VNET_HEADER_BYTES + ETHERNET_BYTES + 4 + 65_575 + 1;

/// Bytes of frames that may wait in the host behind a tap. A tap hands frames to the host's stack
/// while we write, so this is reached only behind a macvtap's queueing discipline. `[guess]`
const SEND_BUFFER_BYTES: i32 = 16 << 20;

/// What to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapConfig {
    /// Interface name, 1 to 15 bytes. A tap of this name is made, or attached to if it exists
    /// (persistent); if it names a macvtap, that is opened.
    pub name: String,
    /// Addresses for the host's end. Not used for a macvtap, which has no host's end.
    pub host_addresses: Vec<InterfaceAddress>,
}

/// A tap or macvtap, opened. Dropping it removes a tap that this process made; an existing one
/// stays and loses only the addresses we gave it.
#[derive(Debug)]
pub struct Tap {
    file: File,
    device: Device,
    buffer: Box<[u8]>,
    counters: LinkCounters,
    /// For how long the device has refused every frame.
    refusals: RefusalPeriod,
    /// For a macvtap: when to ask next whether it still exists.
    removal_check: Option<Instant>,
    /// Another process reads from the queue while it isn't.
    is_receiving: bool,
    /// The errno that reported the removal of the interface.
    gone: Option<i32>,
}

impl Tap {
    /// Opens (and if need be makes) the interface, sets it up and gives its host end its address.
    ///
    /// # Errors
    /// [`SetupError`], which says what to do.
    pub fn open(config: &TapConfig) -> Result<Self, SetupError> {
        let mut queues = Self::open_queues(config, 1)?;
        Ok(queues.remove(0))
    }

    /// Opens as many queues of the interface, 1 to [`QUEUES_MAX`]; see the module for which frames reach
    /// which. A tap that exists must have been made for several (`multi_queue`) or for one, as `queues`
    /// says. What [`Tap`] says of dropping happens with the last of them. The frames of a queue that is
    /// dropped go to others.
    ///
    /// # Errors
    /// [`SetupError`], which says what to do.
    pub fn open_queues(config: &TapConfig, queues: usize) -> Result<Vec<Self>, SetupError> {
        if !(1..=QUEUES_MAX).contains(&queues) {
            return Err(SetupError::QueueCount {
                count: queues,
                max: QUEUES_MAX,
            });
        }
        let (files, device) = Device::open(config, queues)?;
        Ok(Self::of_files(files, &device, true))
    }

    /// The same with the queues of another process ([`Tap::share`]), which stops reading from them when this one
    /// begins ([`Link::set_receiving`]).
    ///
    /// # Errors
    /// [`SetupError`], which says what to do.
    pub fn of_shared(config: &TapConfig, queues: Vec<OwnedFd>) -> Result<Vec<Self>, SetupError> {
        let files = queues.into_iter().map(File::from).collect();
        let (files, device) = Device::of_shared(config, files)?;
        Ok(Self::of_files(files, &device, false))
    }

    /// The queue, for another process.
    ///
    /// # Errors
    /// The kernel's: no descriptors.
    pub fn share(&self) -> std::io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }

    fn of_files(files: Vec<File>, device: &Device, is_receiving: bool) -> Vec<Self> {
        let queues = files.into_iter().map(|file| Self {
            file,
            removal_check: device.is_macvtap().then_some(Instant::ZERO),
            device: device.clone(),
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            counters: LinkCounters::default(),
            refusals: RefusalPeriod::default(),
            is_receiving,
            gone: None,
        });
        queues.collect()
    }

    /// Whether [`Tap::open_queues`] could succeed, as far as it can be known without making or changing
    /// an interface. Whether the capability is there is not looked at.
    ///
    /// # Errors
    /// [`SetupError`], which says what to do.
    pub fn check(name: &str, queues: usize) -> Result<(), SetupError> {
        device::check(name, queues)
    }

    /// Classifies the errno of a failed read: no frame, interface removed, or another error.
    fn handle_read_error(&mut self, now: Instant, errno: i32) {
        match errno {
            libc::EAGAIN => self.check_removal(now),
            errno if is_gone(errno) => self.gone = Some(errno),
            _ => self.counters.receive_errors += 1,
        }
    }

    /// A removed macvtap accepts every write and has nothing to read, so it has to be asked.
    fn check_removal(&mut self, now: Instant) {
        if self.removal_check.is_some_and(|due| now >= due) {
            self.removal_check = Some(now + STATE_CHECK_INTERVAL);
            self.gone = sys::tun_flags(self.file.as_fd()).err();
        }
    }

    /// Classifies the errno of a failed write.
    fn handle_write_error(&mut self, now: Instant, errno: i32) -> TransmitError {
        match errno {
            // The send buffer: the descriptor becomes writable when there is room.
            libc::EAGAIN => {
                self.counters.full_frames += 1;
                return TransmitError::Full;
            }
            // The kernel has no memory for the frame; nothing says when it will.
            libc::ENOBUFS => {
                if !self.refusals.record(now) {
                    self.counters.full_frames += 1;
                    return TransmitError::Full;
                }
                self.counters.refused_frames += 1;
            }
            // A tap answers EIO while its interface is down.
            libc::EIO | libc::ENETDOWN => self.counters.down_events += 1,
            errno if is_gone(errno) => self.gone = Some(errno),
            _ => {}
        }
        self.refusals.reset();
        self.counters.lost_frames += 1;
        TransmitError::Lost(errno)
    }
}

impl Link for Tap {
    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn apply_interface_state(&mut self, state: &InterfaceState) -> Capabilities {
        self.device.apply_interface_state(state)
    }

    fn set_receiving(&mut self, is_receiving: bool) -> Result<(), i32> {
        self.is_receiving = is_receiving;
        if !is_receiving {
            self.device.leave_host_addresses();
        }
        Ok(())
    }

    fn receive(
        &mut self,
        now: Instant,
        frames_max: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, LinkError> {
        let mut handed = 0;
        if !self.is_receiving {
            self.check_removal(now);
        }
        for _ in 0..frames_max {
            if self.gone.is_some() || !self.is_receiving {
                break;
            }
            let length = match self.file.read(&mut self.buffer) {
                Ok(length) => length,
                Err(error) => {
                    self.handle_read_error(now, errno_of(&error));
                    break;
                }
            };
            if length >= self.buffer.len() {
                self.counters.truncated_frames += 1;
                continue;
            }
            let bytes = self.buffer.get(..length).unwrap_or_default();
            let Some((header, frame)) = VnetHeader::split(bytes) else {
                self.counters.receive_errors += 1;
                continue;
            };
            self.counters.count_received(frame.len());
            handed += 1;
            sink(Received {
                frame,
                checksum: header.checksum_state(),
            });
        }
        match self.gone {
            Some(errno) if handed == 0 => Err(LinkError::Gone(errno)),
            _ => Ok(handed),
        }
    }

    fn transmit(&mut self, now: Instant, frame: &Outgoing<'_>) -> Result<Sent, TransmitError> {
        if let Some(errno) = self.gone {
            return Err(self.handle_write_error(now, errno));
        }
        let header = VnetHeader::from_offload(&frame.offload, linear_bytes(frame)).to_bytes();
        let (parts, count) = gather(&header, frame);
        let bytes = frame.bytes();
        let packet_bytes_max = self.device.capabilities().segmentation_bytes_max;
        if bytes > ETHERNET_BYTES + packet_bytes_max as usize {
            return Err(self.handle_write_error(now, libc::EMSGSIZE));
        }
        let parts: &[IoSlice<'_>] = parts.get(..count).unwrap_or_default();
        match self.file.write_vectored(parts) {
            Ok(written) => {
                debug_assert_eq!(
                    written,
                    VNET_HEADER_BYTES + bytes,
                    "a write to these devices takes the whole frame or fails"
                );
                self.refusals.reset();
                self.counters.count_transmitted(bytes);
                Ok(Sent::Copied)
            }
            Err(error) => Err(self.handle_write_error(now, errno_of(&error))),
        }
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.is_receiving.then(|| self.file.as_fd())
    }

    fn writable_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}

/// Whether an errno says that the interface behind the descriptor was removed: everything on a
/// tap's then answers `EBADFD`, questions to a macvtap's `ENOLINK`.
const fn is_gone(errno: i32) -> bool {
    matches!(
        errno,
        libc::EBADFD | libc::ENOLINK | libc::ENODEV | libc::ENXIO
    )
}

#[cfg(test)]
mod tests {
    use super::{QUEUES_MAX, SetupError, Tap, TapConfig};

    #[test]
    fn a_link_may_be_driven_by_another_thread_than_opened_it() {
        const fn is_send<T: Send>() {}
        is_send::<Tap>();
    }

    #[test]
    fn no_queue_and_one_more_than_possible_are_refused() {
        let config = TapConfig {
            // No tap, whatever the number of queues.
            name: "lo".to_owned(),
            host_addresses: Vec::new(),
        };
        let refusal = |queues| Tap::open_queues(&config, queues).unwrap_err();
        for count in [0, QUEUES_MAX + 1] {
            let max = QUEUES_MAX;
            assert_eq!(refusal(count), SetupError::QueueCount { count, max });
        }
        for count in [1, QUEUES_MAX] {
            assert!(matches!(refusal(count), SetupError::NotATap { .. }));
        }
    }
}
