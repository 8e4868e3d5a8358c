//! The look-ups pending in the threads: their tokens, deadlines and devices.
//!
//! A look-up that is not answered by its deadline is refused and marked as abandoned. Its entry
//! stays in use until the thread returns, because that thread may have opened a file by then. So a
//! file system that never answers occupies its entries for good; therefore one [`DeviceId`] may
//! have only a share of them.
//!
//! It refuses to know files or threads. Bounded by `lookups_max`; all of it but the list of devices
//! is allocated at start.

use std::collections::VecDeque;

use clock::Instant;

use crate::DeviceId;

/// One device may have 1/4 of the look-ups and of the threads: with three devices that hang, the
/// others still have 1/4.
pub(crate) const DEVICE_SHARE: usize = 4;

/// The share of a device in `whole`: at least one.
pub(crate) const fn device_share(whole: usize) -> usize {
    let share = whole / DEVICE_SHARE;
    if share == 0 { 1 } else { share }
}

/// A pending look-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pending {
    /// The caller's token.
    pub(crate) token: u64,
    /// The device it depends on.
    pub(crate) device: DeviceId,
    /// It was refused at its deadline.
    pub(crate) is_abandoned: bool,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    generation: u32,
    pending: Option<Pending>,
}

#[derive(Debug)]
pub(crate) struct Lookups {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// In the order of the deadlines, which is the order of the look-ups; may contain answered ones.
    deadlines: VecDeque<(Instant, u64)>,
    /// Number of look-ups of each device; devices without any may be missing.
    devices: Vec<(DeviceId, usize)>,
    device_max: usize,
}

impl Lookups {
    pub(crate) fn new(lookups_max: usize) -> Self {
        let count = u32::try_from(lookups_max).expect("invariant: few look-ups");
        Self {
            entries: vec![Entry::default(); lookups_max],
            free: (0..count).rev().collect(),
            deadlines: VecDeque::with_capacity(2 * lookups_max),
            devices: Vec::new(),
            device_max: device_share(lookups_max),
        }
    }

    /// Whether `device` may have one more look-up.
    pub(crate) fn has_room(&self, device: DeviceId) -> bool {
        !self.free.is_empty() && self.count_of(device) < self.device_max
    }

    /// Adds a look-up, for which there must be room; returns its identifier.
    pub(crate) fn begin(&mut self, token: u64, device: DeviceId, deadline: Instant) -> u64 {
        assert!(
            self.has_room(device),
            "more look-ups than {device:?} may have"
        );
        let index = self.free.pop().expect("invariant: there is room");
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.pending = Some(Pending {
            token,
            device,
            is_abandoned: false,
        });
        let id = u64::from(entry.generation) << 32 | u64::from(index);
        self.add(device);
        self.note_deadline(deadline, id);
        id
    }

    /// Moves a look-up to another device, if that has room.
    pub(crate) fn redirect(&mut self, id: u64, device: DeviceId) -> bool {
        if self.count_of(device) >= self.device_max {
            return false;
        }
        let pending = self.pending_mut(id).expect("invariant: it is under way");
        let before = core::mem::replace(&mut pending.device, device);
        self.subtract(before);
        self.add(device);
        true
    }

    /// Removes a look-up that a thread has answered.
    pub(crate) fn finish(&mut self, id: u64) -> Pending {
        let pending = self.pending_mut(id).copied();
        let pending = pending.expect("invariant: each look-up comes back once");
        let index = index_of(id);
        self.entries[index as usize].pending = None;
        self.free.push(index);
        self.subtract(pending.device);
        self.forget_answered();
        pending
    }

    /// A look-up past its deadline; marks it as abandoned.
    pub(crate) fn poll_overdue(&mut self, now: Instant) -> Option<(u64, Pending)> {
        let &(deadline, id) = self.deadlines.front()?;
        if now < deadline {
            return None;
        }
        self.deadlines.pop_front();
        self.forget_answered();
        let pending = self.pending_mut(id).expect("invariant: it is waiting");
        pending.is_abandoned = true;
        Some((id, *pending))
    }

    /// When [`Lookups::poll_overdue`] next has something.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.front().map(|(deadline, _)| *deadline)
    }

    /// Removes answered look-ups from the front of the deadlines.
    fn forget_answered(&mut self) {
        while let Some(&(_, id)) = self.deadlines.front()
            && !self.is_waiting(id)
        {
            self.deadlines.pop_front();
        }
    }

    fn note_deadline(&mut self, deadline: Instant, id: u64) {
        if self.deadlines.len() == 2 * self.entries.len() {
            // At least half of them were answered.
            let mut deadlines = core::mem::take(&mut self.deadlines);
            deadlines.retain(|&(_, id)| self.is_waiting(id));
            self.deadlines = deadlines;
        }
        self.deadlines.push_back((deadline, id));
    }

    fn is_waiting(&self, id: u64) -> bool {
        let entry = &self.entries[index_of(id) as usize];
        entry.generation == generation_of(id)
            && entry.pending.is_some_and(|pending| !pending.is_abandoned)
    }

    fn pending_mut(&mut self, id: u64) -> Option<&mut Pending> {
        let entry = self.entries.get_mut(index_of(id) as usize)?;
        let is_current = entry.generation == generation_of(id);
        entry.pending.as_mut().filter(|_| is_current)
    }

    fn count_of(&self, device: DeviceId) -> usize {
        let known = self.devices.iter().find(|(known, _)| *known == device);
        known.map_or(0, |(_, count)| *count)
    }

    fn add(&mut self, device: DeviceId) {
        match self.devices.iter_mut().find(|(known, _)| *known == device) {
            Some((_, count)) => *count += 1,
            None => self.devices.push((device, 1)),
        }
    }

    fn subtract(&mut self, device: DeviceId) {
        let index = self.devices.iter().position(|(known, _)| *known == device);
        let index = index.expect("invariant: a device stays as long as a look-up asks it");
        self.devices[index].1 -= 1;
        if self.devices[index].1 == 0 {
            self.devices.swap_remove(index);
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the lower half of an identifier"
)]
const fn index_of(id: u64) -> u32 {
    id as u32
}

const fn generation_of(id: u64) -> u32 {
    (id >> 32) as u32
}

#[cfg(test)]
mod tests {
    use clock::Duration;

    use super::*;

    const A: DeviceId = DeviceId::new(1);
    const B: DeviceId = DeviceId::new(2);

    fn at(milliseconds: u64) -> Instant {
        Instant::from_millis(milliseconds)
    }

    #[test]
    fn a_device_has_no_more_than_its_share() {
        let mut lookups = Lookups::new(8);
        let first = lookups.begin(1, A, at(9));
        assert!(lookups.has_room(A));
        lookups.begin(2, A, at(9));
        assert!(!lookups.has_room(A) && lookups.has_room(B));
        assert_eq!(lookups.finish(first).token, 1);
        assert!(lookups.has_room(A));
    }

    #[test]
    fn all_devices_together_have_no_more_than_the_total() {
        let mut lookups = Lookups::new(4);
        let devices: Vec<DeviceId> = (0..5).map(DeviceId::new).collect();
        for device in &devices[..4] {
            assert!(lookups.has_room(*device));
            lookups.begin(0, *device, at(9));
        }
        assert!(!lookups.has_room(devices[4]));
        assert_eq!(
            (device_share(0), device_share(7), device_share(8)),
            (1, 1, 2)
        );
    }

    #[test]
    fn a_look_up_is_overdue_at_its_deadline_and_once() {
        let mut lookups = Lookups::new(8);
        let id = lookups.begin(7, A, at(10));
        assert_eq!(lookups.poll_timeout(), Some(at(10)));
        assert_eq!(
            lookups.poll_overdue(at(9) + Duration::from_micros(999)),
            None
        );
        let (overdue, pending) = lookups.poll_overdue(at(10)).expect("its time is up");
        assert_eq!((overdue, pending.token), (id, 7));
        assert_eq!(lookups.poll_overdue(at(99)), None);
        // It keeps its entry until the thread answers.
        lookups.begin(8, A, at(20));
        assert!(!lookups.has_room(A));
        assert!(lookups.finish(id).is_abandoned);
        assert!(lookups.has_room(A));
    }

    #[test]
    fn an_answered_look_up_has_no_deadline() {
        let mut lookups = Lookups::new(4);
        for round in 0..100 {
            let id = lookups.begin(round, A, at(round));
            assert!(!lookups.finish(id).is_abandoned);
        }
        assert!(lookups.deadlines.len() <= 8);
        assert_eq!(lookups.poll_overdue(at(1_000)), None);
        assert_eq!(lookups.poll_timeout(), None);
    }

    #[test]
    fn a_look_up_moves_to_a_device_that_has_room() {
        let mut lookups = Lookups::new(4);
        let id = lookups.begin(1, A, at(9));
        assert!(lookups.redirect(id, B));
        assert!(lookups.has_room(A) && !lookups.has_room(B));
        let other = lookups.begin(2, A, at(9));
        assert!(!lookups.redirect(other, B), "B has its share");
        assert_eq!(lookups.finish(other).device, A);
        assert_eq!(lookups.finish(id).device, B);
    }
}
