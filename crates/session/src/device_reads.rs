//! Reads under way, counted by device: a disk that hangs delays only clients of its own objects.
//!
//! A read takes one slot and one entry of the disk's queue until its completion. Without a limit, a
//! device that completes nothing would collect all of them. So once there are two devices, each may
//! have at most as many reads under way as the number that is still free: the first device that
//! hangs gets half of them, the second one a quarter, and the others share the rest. Clients of a
//! device at its limit wait in a queue of that device, so they delay no client of another one. A
//! single device has no limit.
//!
//! A client has reads under way on one device at a time: replies are sent in order, so slots read
//! for the second reply would only wait for the first one.
//!
//! Bounds: [`DEVICES_MAX`] devices, each with a queue as long as there may be connections, allocated
//! when the first object of the device is looked up. A client may be in several queues if its next
//! read changed meanwhile; its demand is evaluated again before it gets a read.

use crate::run_queue::RunQueue;

/// Devices counted separately; all further ones share the last index. Servers have one for each
/// disk.
pub const DEVICES_MAX: usize = 32;

/// Index of a device that holds objects; less than [`DEVICES_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct DeviceIndex(u8);

impl DeviceIndex {
    /// The device that was seen as number `place`, from 0. Numbers beyond the limit share the last
    /// index.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "less than DEVICES_MAX")]
    pub const fn new(place: usize) -> Self {
        const { assert!(DEVICES_MAX <= u8::MAX as usize) };
        let last = DEVICES_MAX - 1;
        Self(if place < last { place } else { last } as u8)
    }

    const fn place(self) -> usize {
        self.0 as usize
    }

    /// As a part of a token.
    pub(crate) const fn number(self) -> u8 {
        self.0
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct DeviceReads {
    /// By [`DeviceIndex`].
    devices: Vec<Device>,
    /// Reads under way at once, at most.
    reads_max: usize,
    /// Reads under way.
    reads: usize,
    connections_max: usize,
}

#[derive(Debug)]
struct Device {
    /// Reads under way.
    reads: usize,
    /// Clients that wait until the device has room.
    waiting: RunQueue,
}

impl DeviceReads {
    pub(crate) const fn new(reads_max: usize, connections_max: usize) -> Self {
        Self {
            devices: Vec::new(),
            reads_max,
            reads: 0,
            connections_max,
        }
    }

    /// An object of the device was found.
    pub(crate) fn see(&mut self, device: DeviceIndex) {
        while self.devices.len() <= device.place() {
            let waiting = RunQueue::new(self.connections_max);
            self.devices.push(Device { reads: 0, waiting });
        }
    }

    /// Whether there is more than one device.
    pub(crate) const fn are_many(&self) -> bool {
        self.devices.len() > 1
    }

    /// Whether the device may have one more read.
    pub(crate) fn has_room(&self, device: DeviceIndex) -> bool {
        !self.are_many() || self.devices[device.place()].reads < self.free()
    }

    /// Puts a client on the device's queue; returns whether it was not on it yet.
    pub(crate) fn wait(&mut self, device: DeviceIndex, client: u32) -> bool {
        self.devices[device.place()].waiting.push_new(client)
    }

    /// Takes the first client off the queue of a device that has room again.
    pub(crate) fn pop_ready(&mut self) -> Option<u32> {
        if !self.are_many() {
            return None;
        }
        let free = self.free();
        let mut ready = self.devices.iter_mut().filter(|it| it.reads < free);
        ready.find_map(|device| device.waiting.pop())
    }

    /// Whether [`Self::pop_ready`] would return a client.
    pub(crate) fn has_ready(&self) -> bool {
        let free = self.free();
        let mut ready = self.devices.iter().filter(|it| it.reads < free);
        self.are_many() && ready.any(|device| device.waiting.ahead(0).is_some())
    }

    /// A read was planned.
    pub(crate) fn begin(&mut self, device: DeviceIndex) {
        self.devices[device.place()].reads += 1;
        self.reads += 1;
    }

    /// A read was completed, or given back.
    pub(crate) fn end(&mut self, device: DeviceIndex) {
        self.devices[device.place()].reads -= 1;
        self.reads -= 1;
    }

    const fn free(&self) -> usize {
        self.reads_max.saturating_sub(self.reads)
    }
}

#[cfg(test)]
mod tests {
    use super::{DEVICES_MAX, DeviceIndex, DeviceReads};

    fn devices(count: usize, reads_max: usize) -> DeviceReads {
        let mut reads = DeviceReads::new(reads_max, 4);
        (0..count).for_each(|place| reads.see(DeviceIndex::new(place)));
        reads
    }

    /// How many reads a device gets if it completes none.
    fn take_all(reads: &mut DeviceReads, place: usize) -> usize {
        let device = DeviceIndex::new(place);
        let mut taken = 0;
        while taken < 1000 && reads.has_room(device) {
            reads.begin(device);
            taken += 1;
        }
        taken
    }

    #[test]
    fn an_only_device_has_no_limit() {
        assert_eq!(take_all(&mut devices(1, 16), 0), 1000);
    }

    #[test]
    fn devices_that_hang_leave_room_to_others() {
        let mut reads = devices(4, 16);
        let taken: Vec<usize> = (0..4).map(|place| take_all(&mut reads, place)).collect();
        assert_eq!(taken, [8, 4, 2, 1]);
        reads.end(DeviceIndex::new(3));
        assert!(reads.has_room(DeviceIndex::new(3)));
        assert!(!reads.has_room(DeviceIndex::new(2)));
    }

    #[test]
    fn a_limit_of_one_read_is_used() {
        let mut reads = devices(2, 1);
        assert_eq!(take_all(&mut reads, 1), 1);
        assert_eq!(take_all(&mut reads, 0), 0);
    }

    #[test]
    fn waiting_clients_are_read_for_in_order() {
        let mut reads = devices(2, 8);
        let (hung, other) = (DeviceIndex::new(0), DeviceIndex::new(1));
        assert_eq!(take_all(&mut reads, 0), 4);
        assert!(reads.wait(hung, 3) && reads.wait(hung, 1));
        assert!(!reads.wait(hung, 3), "it waits already");
        assert!(!reads.has_ready());
        assert_eq!(reads.pop_ready(), None);
        reads.end(hung);
        assert!(reads.has_ready());
        assert_eq!(reads.pop_ready(), Some(3));
        // Completions of other devices make room too.
        reads.begin(other);
        reads.begin(other);
        assert_eq!(reads.pop_ready(), None);
        reads.end(other);
        assert_eq!(reads.pop_ready(), Some(1));
        assert_eq!(reads.pop_ready(), None, "nobody waits any more");
    }

    #[test]
    fn devices_beyond_the_limit_count_as_the_last() {
        assert_ne!(
            DeviceIndex::new(DEVICES_MAX - 2),
            DeviceIndex::new(DEVICES_MAX - 1)
        );
        assert_eq!(
            DeviceIndex::new(DEVICES_MAX - 1),
            DeviceIndex::new(DEVICES_MAX)
        );
        let mut reads = devices(DEVICES_MAX + 1, 4);
        assert_eq!(take_all(&mut reads, DEVICES_MAX), 2);
        assert_eq!(take_all(&mut reads, DEVICES_MAX - 1), 0);
    }
}
