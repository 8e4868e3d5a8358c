//! A layout over members: who holds a path, and whom to send a client to.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::rendezvous::{Placement, spread};
use crate::{Layout, LayoutError, Member};

/// From this load on a member comes behind those with less, however near it is.
pub const BUSY_LOAD: f64 = 0.9;

/// The members of a fleet and its layout, ready to be asked.
#[derive(Clone, Debug)]
pub struct Fleet {
    members: Arc<Vec<Member>>,
    layout: Layout,
    /// One group of all members, or one for each zone.
    groups: BTreeMap<String, Group>,
}

/// Members over which titles are placed.
#[derive(Clone, Debug)]
struct Group {
    /// Their indices in the fleet.
    members: Vec<usize>,
    placement: Placement,
}

/// A member that a client may be sent to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// Which of the fleet's members.
    pub index: usize,
    /// Whether it holds what is asked for. One that does not would hold it next, if a holder left.
    pub is_holder: bool,
}

impl Fleet {
    /// A fleet.
    ///
    /// # Errors
    /// A layout that cannot be meant.
    pub fn new(members: Arc<Vec<Member>>, layout: Layout) -> Result<Self, LayoutError> {
        layout.check()?;
        let mut zones: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (index, member) in members.iter().enumerate() {
            let zone = if layout.by_zone { &member.zone[..] } else { "" };
            zones.entry(zone.to_owned()).or_default().push(index);
        }
        let group = |indices: Vec<usize>| Group {
            placement: Placement::of(indices.iter().map(|index| &members[*index])),
            members: indices,
        };
        let groups = zones
            .into_iter()
            .map(|(zone, indices)| (zone, group(indices)));
        Ok(Self {
            groups: groups.collect(),
            layout,
            members,
        })
    }

    /// Its members.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Its layout.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether the member with this name holds a path: what its filler asks.
    #[must_use]
    pub fn holds(&self, name: &str, path: &str) -> bool {
        let place = self.layout.place(path);
        self.groups.values().any(|group| {
            let place_of = |index: &usize| self.members[*index].name == name;
            let own = group.members.iter().position(place_of);
            own.is_some_and(|own| group.placement.is_holder(own, place.title, place.copies))
        })
    }

    /// Whom to send a client to for a path, best first, at most so many. Nobody who drains or is not healthy is one.
    ///
    /// `zones` are those that the client prefers, best first. Holders come before others. Then those with a load below
    /// [`BUSY_LOAD`] come first, then the nearer ones, and holders among these in an order that depends on `client`, an
    /// address or a network, so that clients spread over them by what each has left.
    #[must_use]
    pub fn choices(&self, path: &str, zones: &[String], client: &str, most: usize) -> Vec<Choice> {
        let place = self.layout.place(path);
        let mut found: Vec<(Key, Choice)> = Vec::new();
        for group in self.groups.values() {
            let ranked = group.placement.holders(place.title, place.copies + most);
            for (rank, own) in ranked.into_iter().enumerate() {
                let index = group.members[own];
                let member = &self.members[index];
                if !member.takes_players() {
                    continue;
                }
                let is_holder = rank < place.copies;
                #[expect(clippy::cast_precision_loss, reason = "a rank is small")]
                let order = if is_holder {
                    spread(member, place.title, client)
                } else {
                    rank as f64
                };
                let key = Key {
                    is_other: !is_holder,
                    is_busy: member.load >= BUSY_LOAD,
                    distance: distance(zones, member),
                    order,
                };
                found.push((key, Choice { index, is_holder }));
            }
        }
        found.sort_by(|(a, one), (b, two)| {
            let names = || {
                self.members[one.index]
                    .name
                    .cmp(&self.members[two.index].name)
            };
            let keys = a.partial_cmp(b).expect("invariant: costs are numbers");
            keys.then_with(names)
        });
        found
            .into_iter()
            .take(most)
            .map(|(_, choice)| choice)
            .collect()
    }
}

/// What orders choices, in the order of its fields.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
struct Key {
    is_other: bool,
    is_busy: bool,
    distance: usize,
    /// Of holders: the cost for this client. Of others: the place by which they would hold it next.
    order: f64,
}

/// The place of a member's zone among those that a client prefers.
fn distance(zones: &[String], member: &Member) -> usize {
    let place = zones.iter().position(|zone| *zone == member.zone);
    place.unwrap_or(zones.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;

    fn member(name: &str, zone: &str) -> Member {
        Member {
            zone: zone.to_owned(),
            ..Member::new(name, format!("http://{name}"))
        }
    }

    fn fleet(members: Vec<Member>, copies: usize, by_zone: bool) -> Fleet {
        let layout = Layout {
            copies,
            by_zone,
            ..Layout::default()
        };
        Fleet::new(Arc::new(members), layout).unwrap()
    }

    fn ten() -> Vec<Member> {
        (0..10)
            .map(|number| member(&format!("e{number}"), ["a", "b"][number % 2]))
            .collect()
    }

    fn names(fleet: &Fleet, choices: &[Choice]) -> Vec<String> {
        choices
            .iter()
            .map(|it| fleet.members()[it.index].name.clone())
            .collect()
    }

    #[test]
    fn clients_spread_over_the_holders_and_each_stays_with_its_own() {
        let fleet = fleet(ten(), 3, false);
        let mut first = BTreeMap::new();
        for client in 0..300 {
            let client = format!("192.0.2.{client}");
            let choices = fleet.choices("/film/1.ts", &[], &client, 4);
            assert_eq!(choices, fleet.choices("/film/master.m3u8", &[], &client, 4));
            let is_holder: Vec<bool> = choices.iter().map(|it| it.is_holder).collect();
            assert_eq!(is_holder, [true, true, true, false]);
            for choice in &choices {
                let name = &fleet.members()[choice.index].name;
                assert_eq!(fleet.holds(name, "/film/2.ts"), choice.is_holder);
            }
            *first.entry(choices[0].index).or_insert(0) += 1;
        }
        assert!(
            first.len() == 3 && first.values().all(|count| *count > 60),
            "{first:?}"
        );
    }

    #[test]
    fn who_cannot_serve_is_no_choice_and_who_is_busy_comes_later() {
        let mut members = ten();
        let before = fleet(members.clone(), 2, false);
        let choices = before.choices("/film", &[], "c", 3);
        members[choices[0].index].healthy = false;
        members[choices[1].index].load = BUSY_LOAD;
        let after = fleet(members.clone(), 2, false);
        let left = after.choices("/film", &[], "c", 3);
        // The holder that is busy is a holder still; the sick one's place is not taken over.
        assert_eq!(left[0], choices[1]);
        assert_eq!(left[1].index, choices[2].index);
        assert!(!left[1].is_holder);
        members[choices[1].index].state = State::Draining;
        let last = fleet(members, 2, false).choices("/film", &[], "c", 3);
        assert!(
            last.iter()
                .all(|it| it.index != choices[0].index && it.index != choices[1].index)
        );
        assert!(last[0].is_holder);
    }

    #[test]
    fn a_client_gets_the_holders_of_its_zone_first() {
        let fleet = fleet(ten(), 2, true);
        let zone_of = |choice: &Choice| &fleet.members()[choice.index].zone;
        for (zones, wanted) in [
            (["a", "b"], ["a", "a", "b", "b"]),
            (["b", "a"], ["b", "b", "a", "a"]),
        ] {
            let zones = zones.map(str::to_owned);
            let choices = fleet.choices("/film", &zones, "c", 4);
            let found: Vec<&String> = choices.iter().map(zone_of).collect();
            assert_eq!(found, wanted);
            assert!(choices.iter().all(|it| it.is_holder));
        }
        let holders = ten()
            .into_iter()
            .filter(|it| fleet.holds(&it.name, "/film"));
        assert_eq!(holders.count(), 4);
        assert!(!fleet.holds("nobody", "/film"));
    }

    #[test]
    fn an_empty_fleet_has_no_choices() {
        let empty = fleet(vec![], 2, false);
        assert!(names(&empty, &empty.choices("/a", &[], "", 3)).is_empty());
        let none = Layout {
            copies: 0,
            ..Layout::default()
        };
        assert_eq!(
            Fleet::new(Arc::default(), none).unwrap_err(),
            LayoutError::Copies(0)
        );
    }
}
