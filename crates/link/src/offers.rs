//! What an interface offers, before a link is opened on it.
//!
//! It refuses to guess: what only an attached program and a bound socket can tell, such as zero copy of
//! AF_XDP, is not asked here. Bounds: one socket, closed at the end; three queries.

use std::os::fd::AsFd as _;

use crate::error::SetupError;
use crate::features::{self, SegmentationFeatures};
use crate::interface::{InterfaceName, describe, device_of};
use crate::sys;

/// What an Ethernet interface can do for a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceOffers {
    /// The driver's name, as ethtool tells it; of a VLAN device, that of the interface below.
    pub driver: Option<String>,
    /// Its MTU, bytes.
    pub mtu_bytes: u32,
    /// Whether the device cuts large TCP segments itself, over both IP versions.
    pub segments_tcp: bool,
    /// Whether the driver is known to release a frame only when the device has read it, so that slots can
    /// be lent.
    pub tells_when_read: bool,
    /// How many receive queues the device has; `None` if it does not tell.
    pub receive_queues: Option<u32>,
}

/// What an interface offers.
///
/// # Errors
/// [`SetupError`]: there is no such interface, or it is not Ethernet.
pub fn interface_offers(interface: &str) -> Result<InterfaceOffers, SetupError> {
    let name = InterfaceName::parse(interface)?;
    let found = describe(name)?;
    found.ethernet_mac(name)?;
    // Any socket answers ethtool's queries, and needs no capability for it.
    let socket =
        sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0).map_err(|errno| SetupError::Kernel {
            operation: "opening a socket to ask for the device's features",
            name: name.as_str().to_owned(),
            errno,
        })?;
    let fd = socket.as_fd();
    let device = device_of(name, &found);
    let driver = features::driver(fd, device).filter(|driver| !driver.is_empty());
    let segmentation = SegmentationFeatures::look_up(fd, name);
    Ok(InterfaceOffers {
        mtu_bytes: found.mtu_bytes,
        segments_tcp: segmentation.is_some_and(|features| features.are_active(fd, name)),
        tells_when_read: driver
            .as_deref()
            .is_some_and(features::is_completing_driver),
        driver,
        receive_queues: crate::xdp::receive_queues(device),
    })
}
