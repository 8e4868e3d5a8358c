//! Who holds what: by weight, with the least movement, in any order of the members, and for good.

use std::collections::BTreeSet;

use placement::{Member, Placement, State, holders};
use proptest::prelude::*;

fn member(name: &str, capacity_bytes: u64) -> Member {
    Member {
        capacity_bytes,
        ..Member::new(name, format!("http://{name}"))
    }
}

/// Edges with these capacities in TB.
fn edges(capacities: &[u64]) -> Vec<Member> {
    let edge = |(number, capacity): (usize, &u64)| {
        member(
            &format!("edge-{}", number + 1),
            capacity * 1_000_000_000_000,
        )
    };
    capacities.iter().enumerate().map(edge).collect()
}

fn names<'a>(members: &[&'a Member]) -> Vec<&'a str> {
    members.iter().map(|member| member.name.as_str()).collect()
}

/// Made by another implementation, of the module's description. Whoever changes one of these moves every title of every
/// fleet.
#[test]
fn titles_stay_where_they_are_in_every_version() {
    let mut members = edges(&[4, 4, 8, 2]);
    members.push(member("node-a.example", 1_000_000_000_000));
    let placement = Placement::new(&members);
    let long = "a".repeat(300);
    for (title, ranked) in [
        ("", [2, 0, 1, 4, 3]),
        ("films/alien", [1, 2, 0, 3, 4]),
        ("films/aliens", [2, 0, 1, 4, 3]),
        ("live/one", [2, 0, 1, 3, 4]),
        ("шрек", [3, 1, 0, 2, 4]),
        (&long[..], [1, 2, 3, 0, 4]),
    ] {
        assert_eq!(placement.holders(title, 5), ranked, "{title}");
    }
}

#[test]
fn titles_are_held_in_proportion_to_capacity() {
    let capacities = [1, 2, 3, 4, 10];
    let members = edges(&capacities);
    let placement = Placement::new(&members);
    let titles = 50_000;
    let mut held = [0_u32; 5];
    for title in 0..titles {
        held[placement.holders(&format!("title/{title}"), 1)[0]] += 1;
    }
    for (held, capacity) in held.into_iter().zip(capacities) {
        let (held, share) = (f64::from(held), f64::from(titles) * capacity as f64 / 20.0);
        // Five standard deviations of a binomial distribution.
        assert!(
            (held - share).abs() < 5.0 * share.sqrt(),
            "{held} of {share}"
        );
    }
}

#[test]
fn several_copies_of_a_title_are_on_several_edges_and_as_even() {
    let members = edges(&[4; 50]);
    let placement = Placement::new(&members);
    let titles = 20_000;
    let mut held = [0_u32; 50];
    for title in 0..titles {
        let holders = placement.holders(&title.to_string(), 3);
        assert_eq!(holders.iter().collect::<BTreeSet<_>>().len(), 3);
        holders.into_iter().for_each(|index| held[index] += 1);
    }
    let share = f64::from(titles) * 3.0 / 50.0;
    for held in held {
        assert!(
            (f64::from(held) - share).abs() < 5.0 * share.sqrt(),
            "{held} of {share}"
        );
    }
}

#[test]
fn a_member_that_drains_holds_nothing_and_one_that_is_sick_keeps_its_share() {
    let mut members = edges(&[4, 4, 4]);
    let before = names(&holders(&members, "a", 3)).join(" ");
    members.iter_mut().for_each(|it| it.healthy = false);
    assert_eq!(names(&holders(&members, "a", 3)).join(" "), before);
    members[1].state = State::Draining;
    let left = names(&holders(&members, "a", 3)).join(" ");
    assert_eq!(left, before.replace("edge-2", "").trim().replace("  ", " "));
    assert!(!Placement::new(&members).is_holder(1, "a", 3));
}

#[test]
fn there_may_be_fewer_members_than_copies_or_none() {
    assert!(holders(&[], "a", 3).is_empty());
    assert!(holders(&edges(&[1]), "a", 0).is_empty());
    assert_eq!(holders(&edges(&[1, 1]), "a", 3).len(), 2);
}

fn fleets() -> impl Strategy<Value = Vec<Member>> {
    proptest::collection::btree_map("[a-z0-9][a-z0-9.-]{0,8}", 1..u64::MAX, 1..20).prop_map(
        |fleet| {
            fleet
                .into_iter()
                .map(|(name, room)| member(&name, room))
                .collect()
        },
    )
}

proptest! {
    #[test]
    fn the_order_of_the_members_does_not_matter(
        members in fleets(), title in ".{0,40}", copies in 0_usize..6, seed in any::<usize>(),
    ) {
        let mut other = members.clone();
        let length = other.len();
        other.rotate_left(seed % length);
        other.swap(0, seed / 7 % length);
        let (one, two) = (holders(&members, &title, copies), holders(&other, &title, copies));
        prop_assert_eq!(names(&one), names(&two));
        prop_assert_eq!(one.len(), copies.min(members.len()));
    }

    #[test]
    fn a_member_that_leaves_moves_its_share_only(
        members in fleets(), titles in proptest::collection::vec(".{0,20}", 1..40), gone in any::<usize>(),
    ) {
        let gone = gone % members.len();
        let mut left = members.clone();
        let leaver = left.remove(gone);
        for title in &titles {
            let (before, after) = (holders(&members, title, 3), holders(&left, title, 3));
            let kept: Vec<&str> = names(&before).into_iter().filter(|it| *it != leaver.name).collect();
            // What was held besides stays in its order, and one more follows if there was a copy to replace.
            prop_assert_eq!(&names(&after)[..kept.len()], &kept[..]);
            prop_assert_eq!(after.len(), 3.min(left.len()));
        }
    }

    #[test]
    fn holders_are_those_whose_place_is_before_the_number_of_copies(
        members in fleets(), title in ".{0,20}", copies in 0_usize..6,
    ) {
        let placement = Placement::new(&members);
        let all = placement.holders(&title, members.len());
        let few = placement.holders(&title, copies);
        prop_assert_eq!(&all[..copies.min(members.len())], &few[..]);
        for index in 0..members.len() {
            prop_assert_eq!(placement.is_holder(index, &title, copies), few.contains(&index));
        }
    }

    #[test]
    fn whatever_bytes_come_a_member_is_one_or_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(member) = placement::parse_member(&bytes) {
            prop_assert_eq!(member.check(), Ok(()));
        }
        let _ = placement::parse_fleet(&bytes);
    }

    #[test]
    fn whatever_the_url_its_host_is_told_or_it_is_refused(url in "https?://[a-z\\[\\]:/@?#0-9.-]{0,20}") {
        let member = Member { url, ..member("a", 1) };
        prop_assert_eq!(member.check().is_ok(), !member.host().is_empty());
    }
}
