//! Reads under way, by device: a disk that hangs hurts who wants its own objects, and nobody else.
//!
//! A read takes a slot and a place of the disk's queue, and gives them back by its completion only.
//! A device that completes nothing would gather them all. So once there are two devices, each may
//! have as many reads under way as places are left free, and no more: one that hangs gets half
//! of them, the next a quarter, and the others go on with the rest. Clients of a device without
//! room wait in a line of its own, where nobody else waits behind them. A device that has been the
//! only one so far has no limit: there is nobody it could hurt.
//!
//! A client is read for from one device at a time: what is sent in order would wait in its slots
//! for the reply before.
//!
//! Bounds: [`DEVICES_MAX`] devices, each with a line as long as there may be connections, allocated
//! when the first object of the device is looked up. A client may stand in several of them, if what
//! it waits for changed meanwhile; it is asked again what it wants before it gets a read.

use crate::run_queue::RunQueue;

/// Devices told apart; all further ones count as the last. Servers have one for each disk.
pub const DEVICES_MAX: usize = 32;

/// Names a device that objects are on; less than [`DEVICES_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct DeviceIndex(u8);

impl DeviceIndex {
    /// The device that was the `place`-th to be seen, from 0. Those from the last place on share it.
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
    /// Clients that wait until there is room.
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

    /// Has a client wait for the device; whether it did not yet.
    pub(crate) fn wait(&mut self, device: DeviceIndex, client: u32) -> bool {
        self.devices[device.place()].waiting.push_new(client)
    }

    /// The first client that waits for a device that has room again.
    pub(crate) fn pop_ready(&mut self) -> Option<u32> {
        if !self.are_many() {
            return None;
        }
        let free = self.free();
        let mut ready = self.devices.iter_mut().filter(|it| it.reads < free);
        ready.find_map(|device| device.waiting.pop())
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

    /// How many reads a device gets that completes none.
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
    fn even_a_single_place_is_used() {
        let mut reads = devices(2, 1);
        assert_eq!(take_all(&mut reads, 1), 1);
        assert_eq!(take_all(&mut reads, 0), 0);
    }

    #[test]
    fn who_waits_comes_once_there_is_room_and_in_order() {
        let mut reads = devices(2, 8);
        let (hung, other) = (DeviceIndex::new(0), DeviceIndex::new(1));
        assert_eq!(take_all(&mut reads, 0), 4);
        assert!(reads.wait(hung, 3) && reads.wait(hung, 1));
        assert!(!reads.wait(hung, 3), "it waits already");
        assert_eq!(reads.pop_ready(), None);
        reads.end(hung);
        assert_eq!(reads.pop_ready(), Some(3));
        // Room comes from others' completions too.
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
