//! The look-ups under way in the threads: whose they are, how long they have, and whom they ask.
//!
//! A look-up that is not answered in its time is answered for it, and then abandoned: its place
//! stays taken until the thread that waits comes back with it, for that thread may have a file
//! open by then. So a file system that never answers keeps its places for good, and that is why
//! one [`Lane`] may have a part of them only.
//!
//! It refuses to know files or threads. All of it is allocated at start but for the names of lanes;
//! bounded by `lookups_max`.

use std::collections::VecDeque;

use clock::Instant;

use crate::Lane;

/// A lane may have this part of the look-ups, and of the threads: three that hang leave as much to
/// the others.
pub(crate) const LANE_SHARE: usize = 4;

/// The share of a lane in `whole`: at least one.
pub(crate) const fn lane_share(whole: usize) -> usize {
    let share = whole / LANE_SHARE;
    if share == 0 { 1 } else { share }
}

/// A look-up under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pending {
    /// The asker's.
    pub(crate) token: u64,
    /// Whom it asks.
    pub(crate) lane: Lane,
    /// The asker was told that it took too long.
    pub(crate) is_abandoned: bool,
}

#[derive(Clone, Debug, Default)]
struct Place {
    generation: u32,
    pending: Option<Pending>,
}

#[derive(Debug)]
pub(crate) struct Lookups {
    places: Vec<Place>,
    free: Vec<u32>,
    /// By deadline, which is the order of asking; with some that were answered.
    deadlines: VecDeque<(Instant, u64)>,
    /// How many each lane has; those that have none may be missing.
    lanes: Vec<(Lane, usize)>,
    lane_max: usize,
}

impl Lookups {
    pub(crate) fn new(lookups_max: usize) -> Self {
        let count = u32::try_from(lookups_max).expect("invariant: few look-ups");
        Self {
            places: vec![Place::default(); lookups_max],
            free: (0..count).rev().collect(),
            deadlines: VecDeque::with_capacity(2 * lookups_max),
            lanes: Vec::new(),
            lane_max: lane_share(lookups_max),
        }
    }

    /// Whether one more may ask `lane`.
    pub(crate) fn has_room(&self, lane: Lane) -> bool {
        !self.free.is_empty() && self.count_of(lane) < self.lane_max
    }

    /// Takes a place for a look-up that there is room for; names it.
    pub(crate) fn begin(&mut self, token: u64, lane: Lane, deadline: Instant) -> u64 {
        assert!(self.has_room(lane), "more look-ups than {lane:?} may have");
        let place = self.free.pop().expect("invariant: there is room");
        let entry = &mut self.places[place as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.pending = Some(Pending {
            token,
            lane,
            is_abandoned: false,
        });
        let id = u64::from(entry.generation) << 32 | u64::from(place);
        self.add(lane);
        self.note_deadline(deadline, id);
        id
    }

    /// Has a look-up ask another lane, if that has room.
    pub(crate) fn redirect(&mut self, id: u64, lane: Lane) -> bool {
        if self.count_of(lane) >= self.lane_max {
            return false;
        }
        let pending = self.pending_mut(id).expect("invariant: it is under way");
        let before = core::mem::replace(&mut pending.lane, lane);
        self.subtract(before);
        self.add(lane);
        true
    }

    /// A look-up has come back.
    pub(crate) fn finish(&mut self, id: u64) -> Pending {
        let pending = self.pending_mut(id).copied();
        let pending = pending.expect("invariant: each look-up comes back once");
        let place = place_of(id);
        self.places[place as usize].pending = None;
        self.free.push(place);
        self.subtract(pending.lane);
        self.forget_answered();
        pending
    }

    /// A look-up whose time is up, from now on abandoned.
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

    /// Takes what was answered off the front of the deadlines.
    fn forget_answered(&mut self) {
        while let Some(&(_, id)) = self.deadlines.front()
            && !self.is_waiting(id)
        {
            self.deadlines.pop_front();
        }
    }

    fn note_deadline(&mut self, deadline: Instant, id: u64) {
        if self.deadlines.len() == 2 * self.places.len() {
            // At least half of them were answered.
            let mut deadlines = core::mem::take(&mut self.deadlines);
            deadlines.retain(|&(_, id)| self.is_waiting(id));
            self.deadlines = deadlines;
        }
        self.deadlines.push_back((deadline, id));
    }

    fn is_waiting(&self, id: u64) -> bool {
        let place = &self.places[place_of(id) as usize];
        place.generation == generation_of(id)
            && place.pending.is_some_and(|pending| !pending.is_abandoned)
    }

    fn pending_mut(&mut self, id: u64) -> Option<&mut Pending> {
        let place = self.places.get_mut(place_of(id) as usize)?;
        let is_it = place.generation == generation_of(id);
        place.pending.as_mut().filter(|_| is_it)
    }

    fn count_of(&self, lane: Lane) -> usize {
        let known = self.lanes.iter().find(|(known, _)| *known == lane);
        known.map_or(0, |(_, count)| *count)
    }

    fn add(&mut self, lane: Lane) {
        match self.lanes.iter_mut().find(|(known, _)| *known == lane) {
            Some((_, count)) => *count += 1,
            None => self.lanes.push((lane, 1)),
        }
    }

    fn subtract(&mut self, lane: Lane) {
        let index = self.lanes.iter().position(|(known, _)| *known == lane);
        let index = index.expect("invariant: a lane stays as long as a look-up asks it");
        self.lanes[index].1 -= 1;
        if self.lanes[index].1 == 0 {
            self.lanes.swap_remove(index);
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half of a name")]
const fn place_of(id: u64) -> u32 {
    id as u32
}

const fn generation_of(id: u64) -> u32 {
    (id >> 32) as u32
}

#[cfg(test)]
mod tests {
    use clock::Duration;

    use super::*;

    const A: Lane = Lane::of_device(1);
    const B: Lane = Lane::of_device(2);

    fn at(milliseconds: u64) -> Instant {
        Instant::from_millis(milliseconds)
    }

    #[test]
    fn a_lane_has_its_share_and_no_more() {
        let mut lookups = Lookups::new(8);
        let first = lookups.begin(1, A, at(9));
        assert!(lookups.has_room(A));
        lookups.begin(2, A, at(9));
        assert!(!lookups.has_room(A) && lookups.has_room(B));
        assert_eq!(lookups.finish(first).token, 1);
        assert!(lookups.has_room(A));
    }

    #[test]
    fn all_lanes_together_have_what_there_is() {
        let mut lookups = Lookups::new(4);
        let lanes: Vec<Lane> = (0..5).map(Lane::of_device).collect();
        for lane in &lanes[..4] {
            assert!(lookups.has_room(*lane));
            lookups.begin(0, *lane, at(9));
        }
        assert!(!lookups.has_room(lanes[4]));
        assert_eq!((lane_share(0), lane_share(7), lane_share(8)), (1, 1, 2));
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
        // It keeps its place until it comes back.
        lookups.begin(8, A, at(20));
        assert!(!lookups.has_room(A));
        assert!(lookups.finish(id).is_abandoned);
        assert!(lookups.has_room(A));
    }

    #[test]
    fn what_was_answered_has_no_deadline() {
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
    fn a_look_up_moves_to_a_lane_that_has_room() {
        let mut lookups = Lookups::new(4);
        let id = lookups.begin(1, A, at(9));
        assert!(lookups.redirect(id, B));
        assert!(lookups.has_room(A) && !lookups.has_room(B));
        let other = lookups.begin(2, A, at(9));
        assert!(!lookups.redirect(other, B), "B has its share");
        assert_eq!(lookups.finish(other).lane, A);
        assert_eq!(lookups.finish(id).lane, B);
    }
}
