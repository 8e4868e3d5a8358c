//! Places of a table in the order in which they were appended: connections that wait for a request, slots that are kept.
//!
//! A doubly linked list whose links are in a table by place: every operation is O(1).
//! Bound: one link for each place, allocated at start.

use clock::Instant;

/// Marks the end of the list.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
    /// When it was appended; `None`: it is not in the list.
    since: Option<Instant>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct AgeList {
    links: Box<[Link]>,
    first: u32,
    last: u32,
}

impl AgeList {
    /// Room for the places `0..capacity`.
    pub(crate) fn new(capacity: usize) -> Self {
        let unlinked = Link {
            previous: NONE,
            next: NONE,
            since: None,
        };
        Self {
            links: vec![unlinked; capacity].into_boxed_slice(),
            first: NONE,
            last: NONE,
        }
    }

    /// Whether it is to be in the list. One that is already stays where it is. `now` never decreases, so the list
    /// is in order.
    pub(crate) fn set(&mut self, now: Instant, index: u32, is_in: bool) {
        match (self.links[index as usize].since, is_in) {
            (None, true) => self.append(now, index),
            (Some(_), false) => self.remove(index),
            (None, false) | (Some(_), true) => {}
        }
    }

    /// The one that was appended first, and when.
    pub(crate) fn first(&self) -> Option<(u32, Instant)> {
        let link = self.links.get(self.first as usize)?;
        link.since.map(|since| (self.first, since))
    }

    /// The one that was appended next after it, and when; `None`: it is the last, or not in the list.
    pub(crate) fn after(&self, index: u32) -> Option<(u32, Instant)> {
        let link = self.links.get(index as usize)?;
        let next = link.since.and(self.links.get(link.next as usize))?;
        next.since.map(|since| (link.next, since))
    }

    /// Whether it is in the list.
    pub(crate) fn has(&self, index: u32) -> bool {
        let link = self.links.get(index as usize);
        link.is_some_and(|link| link.since.is_some())
    }

    fn append(&mut self, now: Instant, index: u32) {
        self.links[index as usize] = Link {
            previous: self.last,
            next: NONE,
            since: Some(now),
        };
        match self.links.get_mut(self.last as usize) {
            Some(last) => last.next = index,
            None => self.first = index,
        }
        self.last = index;
    }

    /// Takes it out if it is in the list.
    pub(crate) fn remove(&mut self, index: u32) {
        let Link {
            previous,
            next,
            since,
        } = self.links[index as usize];
        if since.is_none() {
            return;
        }
        self.links[index as usize].since = None;
        match self.links.get_mut(previous as usize) {
            Some(link) => link.next = next,
            None => self.first = next,
        }
        match self.links.get_mut(next as usize) {
            Some(link) => link.previous = previous,
            None => self.last = previous,
        }
    }
}

#[cfg(test)]
mod tests {
    use clock::Instant;
    use proptest::prelude::*;

    use super::AgeList;

    #[test]
    fn waiting_on_keeps_the_place_and_coming_back_does_not() {
        let at = Instant::from_millis;
        let mut list = AgeList::new(2);
        list.set(at(1), 0, true);
        list.set(at(2), 1, true);
        list.set(at(3), 0, true);
        assert_eq!(list.first(), Some((0, at(1))));
        list.set(at(4), 0, false);
        list.set(at(5), 0, true);
        assert_eq!(list.first(), Some((1, at(2))));
        list.set(at(6), 1, false);
        assert_eq!(list.first(), Some((0, at(5))));
    }

    proptest! {
        #[test]
        fn the_list_agrees_with_a_vector(
            steps in proptest::collection::vec((0u32..6, any::<bool>()), 0..200),
        ) {
            let mut list = AgeList::new(6);
            let mut twin: Vec<(u32, Instant)> = Vec::new();
            for (millis, (index, is_idle)) in (0..).zip(steps) {
                let now = Instant::from_millis(millis);
                list.set(now, index, is_idle);
                let known = twin.iter().position(|(other, _)| *other == index);
                match (known, is_idle) {
                    (None, true) => twin.push((index, now)),
                    (Some(place), false) => drop(twin.remove(place)),
                    _ => {}
                }
                prop_assert_eq!(list.first(), twin.first().copied());
                for (place, (index, _)) in twin.iter().enumerate() {
                    prop_assert_eq!(list.after(*index), twin.get(place + 1).copied());
                }
            }
            while let Some((index, since)) = list.first() {
                prop_assert_eq!((index, since), twin.remove(0));
                list.set(since, index, false);
            }
            prop_assert!(twin.is_empty());
        }
    }
}
