//! A smoltcp device over two queues: what the simulated port delivered, and what goes to it.

use std::collections::VecDeque;

use smoltcp::phy::{self, DeviceCapabilities, Medium};
use smoltcp::time::Instant;

/// Ethernet header bytes: smoltcp counts them into its MTU.
const ETHERNET_BYTES: usize = 14;

/// Frames in and out of one client.
#[derive(Debug)]
pub(crate) struct QueueDevice {
    /// Frames that arrived and were not looked at yet.
    pub(crate) arrived: VecDeque<Vec<u8>>,
    /// Frames that wait to be carried to the port.
    pub(crate) leaving: VecDeque<Vec<u8>>,
    mtu_bytes: usize,
}

impl QueueDevice {
    pub(crate) fn new(mtu_bytes: u16) -> Self {
        Self {
            arrived: VecDeque::new(),
            leaving: VecDeque::new(),
            mtu_bytes: usize::from(mtu_bytes),
        }
    }
}

/// One arrived frame.
#[derive(Debug)]
pub(crate) struct Arrived(Vec<u8>);

impl phy::RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, look: F) -> R {
        look(&self.0)
    }
}

/// Room for one leaving frame.
#[derive(Debug)]
pub(crate) struct Leaving<'a>(&'a mut VecDeque<Vec<u8>>);

impl phy::TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        let mut frame = vec![0; length];
        let result = write(&mut frame);
        self.0.push_back(frame);
        result
    }
}

impl phy::Device for QueueDevice {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Leaving<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Arrived, Leaving<'_>)> {
        let frame = self.arrived.pop_front()?;
        Some((Arrived(frame), Leaving(&mut self.leaving)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Leaving<'_>> {
        Some(Leaving(&mut self.leaving))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.mtu_bytes + ETHERNET_BYTES;
        capabilities
    }
}
