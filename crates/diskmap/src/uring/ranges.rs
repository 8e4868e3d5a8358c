//! Devices whose ranges are open: asked for their limits once, and registered with the ring once, however
//! many of their ranges are opened and closed.
//!
//! A raw store opens a range for each object. Asked anew for each, a device takes three system calls, and
//! each read has its descriptor looked up. An entry, and its reference to the descriptor, ends with its last
//! range. Bounded by [`DEVICES_MAX`]; further devices are asked each time.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;

use super::limits::{Devices, status};
use crate::{DeviceRange, DiskError, FileLimits};

/// Devices in the table: as many as a raw store may have.
pub(super) const DEVICES_MAX: u8 = 64;

/// What a range needs to know of its device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// Of the whole device.
    pub(super) limits: FileLimits,
    /// Of the file system of its descriptor, or of devtmpfs.
    pub(super) device: (u32, u32),
}

/// A device with open ranges.
#[derive(Debug)]
struct RangedDevice {
    descriptor: Arc<OwnedFd>,
    facts: Facts,
    /// Open ones.
    ranges: u32,
    registration: Registration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Registration {
    /// Not tried yet.
    Due,
    Registered,
    Refused,
}

/// The table.
#[derive(Debug, Default)]
pub(super) struct RangedDevices {
    entries: Vec<Option<RangedDevice>>,
}

impl RangedDevices {
    /// Facts of the device of a range that is about to be opened, from the table or asked of the kernel: the
    /// latter also if the range ends behind what the table knows, for the device may have grown.
    pub(super) fn facts(
        &mut self,
        range: &DeviceRange,
        devices: &mut Devices,
        slot_bytes: u32,
    ) -> Result<Facts, DiskError> {
        let end_bytes = range.start_bytes.saturating_add(range.length_bytes);
        let place = self.find(&range.device);
        let known = place.and_then(|place| self.at(place));
        if let Some(known) = &known
            && end_bytes <= known.facts.limits.size_bytes
        {
            return Ok(known.facts);
        }
        let file = range.device.as_fd();
        let status = status(file)?;
        let facts = Facts {
            limits: devices.ask(file, &status, slot_bytes)?,
            device: (libc::major(status.st_dev), libc::minor(status.st_dev)),
        };
        if let Some(known) = known {
            known.facts = facts;
        }
        Ok(facts)
    }

    /// Counts one more range of a device; `None`: the table is full.
    pub(super) fn enter(&mut self, descriptor: &Arc<OwnedFd>, facts: Facts) -> Option<u8> {
        if let Some(place) = self.find(descriptor) {
            self.at(place)?.ranges += 1;
            return Some(place);
        }
        let free = self.entries.iter().position(Option::is_none);
        let place = free.unwrap_or(self.entries.len());
        let number = u8::try_from(place).ok().filter(|it| *it < DEVICES_MAX)?;
        if place == self.entries.len() {
            self.entries.push(None);
        }
        self.entries[place] = Some(RangedDevice {
            descriptor: Arc::clone(descriptor),
            facts,
            ranges: 1,
            registration: Registration::Due,
        });
        Some(number)
    }

    /// The descriptor at a place, if it is to be registered now.
    pub(super) fn due_registration(&mut self, place: u8) -> Option<RawFd> {
        let device = self.at(place)?;
        (device.registration == Registration::Due).then(|| device.descriptor.as_raw_fd())
    }

    /// The kernel has registered the device, or refused.
    pub(super) fn note_registration(&mut self, place: u8, is_registered: bool) {
        if let Some(device) = self.at(place) {
            device.registration = if is_registered {
                Registration::Registered
            } else {
                Registration::Refused
            };
        }
    }

    /// Whether reads of the device may name its place.
    pub(super) fn is_registered(&self, place: u8) -> bool {
        let device = self.entries.get(usize::from(place));
        let device = device.and_then(Option::as_ref);
        device.is_some_and(|device| device.registration == Registration::Registered)
    }

    /// Counts one range less. True if it was the last one of a registered device, which is to be
    /// unregistered and then removed.
    pub(super) fn leave(&mut self, place: u8) -> bool {
        let Some(device) = self.at(place) else {
            return false;
        };
        device.ranges -= 1;
        let is_last = device.ranges == 0;
        let is_registered = device.registration == Registration::Registered;
        if is_last && !is_registered {
            self.remove(place);
        }
        is_last && is_registered
    }

    /// Forgets a device without ranges.
    pub(super) fn remove(&mut self, place: u8) {
        self.entries[usize::from(place)] = None;
    }

    fn find(&self, descriptor: &Arc<OwnedFd>) -> Option<u8> {
        let is_it = |entry: &Option<RangedDevice>| {
            let entry = entry.as_ref();
            entry.is_some_and(|entry| Arc::ptr_eq(&entry.descriptor, descriptor))
        };
        let place = self.entries.iter().position(is_it)?;
        u8::try_from(place).ok()
    }

    fn at(&mut self, place: u8) -> Option<&mut RangedDevice> {
        self.entries.get_mut(usize::from(place))?.as_mut()
    }
}
