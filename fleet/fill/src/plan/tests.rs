//! The plan, step by step.

use super::*;

#[derive(Debug)]
struct TestNames;

impl Names for TestNames {
    fn is_pinned(&self, name: &str) -> bool {
        name.starts_with("pinned")
    }

    fn is_live(&self, name: &str) -> bool {
        name.starts_with("live")
    }
}

fn config(capacity_bytes: Option<u64>) -> PlanConfig {
    PlanConfig {
        capacity_bytes,
        high_percent: 90,
        low_percent: 80,
        removals_percent_max: 50,
        attempts_max: 3,
        live_ms: 2_000,
        names: Box::new(TestNames),
        seed: 1,
    }
}

fn at(millis: u64) -> Now {
    Now {
        millis,
        unix_seconds: 1_000,
    }
}

fn stamp(size_bytes: u64, etag: &str) -> Stamp {
    Stamp::new(size_bytes, 1, Some(etag))
}

fn listed(objects: &[(&str, u64)]) -> Versions {
    let objects = objects
        .iter()
        .map(|(name, size)| ((*name).into(), stamp(*size, "1")));
    Versions::Listed(objects.collect())
}

fn held(objects: &[(&str, u64)]) -> Vec<(Name, Stamp)> {
    let objects = objects
        .iter()
        .map(|(name, size)| ((*name).into(), stamp(*size, "1")));
    objects.collect()
}

/// A plan for a store with such objects, and an origin that lists such.
fn plan(capacity_bytes: Option<u64>, here: &[(&str, u64)], there: &[(&str, u64)]) -> Plan {
    let mut plan = Plan::new(config(capacity_bytes), held(here));
    plan.update(at(0), 0, None, listed(there));
    plan
}

/// Does what the plan says until it waits, and returns it in words.
fn run(plan: &mut Plan, now: Now) -> Vec<String> {
    let mut done = Vec::new();
    loop {
        match plan.next_step(now, true) {
            Step::Fetch(fetch) => {
                done.push(fetch.name.to_string());
                let stamp = fetch.listed.unwrap_or(stamp(1, "asked"));
                plan.finished(now, &fetch.name, Outcome::Stored(stamp));
            }
            Step::Evict(names) => done.extend(names.iter().map(|name| format!("-{name}"))),
            Step::Wait(_) | Step::Idle => return done,
        }
    }
}

fn fetch(plan: &mut Plan, now: Now) -> Fetch {
    match plan.next_step(now, true) {
        Step::Fetch(fetch) => fetch,
        step => panic!("{step:?}"),
    }
}

#[test]
fn what_is_missing_or_of_another_version_is_fetched_playlists_first() {
    let there = [("a.ts", 1), ("b.m3u8", 1), ("c.ts", 1), ("d.MPD", 1)];
    let mut plan = plan(None, &[("c.ts", 1)], &there);
    assert_eq!(run(&mut plan, at(0)), ["b.m3u8", "d.MPD", "a.ts"]);
    assert_eq!(plan.next_step(at(0), true), Step::Idle);
    let mut versions = listed(&there);
    if let Versions::Listed(listed) = &mut versions {
        listed.insert("c.ts".into(), stamp(1, "2"));
    }
    plan.update(at(1), 0, None, versions);
    let again = fetch(&mut plan, at(1));
    assert_eq!((&*again.name, again.held), ("c.ts", Some(stamp(1, "1"))));
}

#[test]
fn priority_counts_before_the_kind_and_misses_before_all() {
    let mut plan = Plan::new(config(None), Vec::new());
    let wanted = [("low.m3u8", 1), ("high.ts", 9), ("high.mpd", 9)];
    let wanted = wanted.map(|(name, priority)| {
        let wanted = Wanted {
            priority,
            ..Wanted::default()
        };
        (Name::from(name), wanted)
    });
    let there = [
        ("low.m3u8", 1),
        ("high.ts", 1),
        ("high.mpd", 1),
        ("other.ts", 1),
        ("other.m3u8", 1),
    ];
    plan.update(at(0), 0, Some(wanted.into()), listed(&there));
    plan.missed(at(0), &"other.ts".into(), 1);
    plan.missed(at(0), &"other.m3u8".into(), 1);
    assert_eq!(
        run(&mut plan, at(0)),
        ["other.m3u8", "other.ts", "high.mpd", "high.ts", "low.m3u8"]
    );
}

#[test]
fn an_object_is_fetched_once_however_many_ask() {
    let mut plan = plan(None, &[], &[("a", 1)]);
    let name = Name::from("a");
    for _ in 0..1_000 {
        plan.missed(at(0), &name, 1);
    }
    let first = fetch(&mut plan, at(0));
    assert!(first.is_missed);
    plan.missed(at(0), &name, 1);
    plan.update(at(1), 0, None, listed(&[("a", 1)]));
    assert_eq!(plan.next_step(at(1), true), Step::Idle);
    plan.finished(at(2), &name, Outcome::Stored(stamp(1, "1")));
    plan.missed(at(3), &name, 1);
    plan.update(at(3), 0, None, listed(&[("a", 1)]));
    assert_eq!(plan.next_step(at(3), true), Step::Idle);
}

#[test]
fn a_name_that_the_origin_does_not_have_is_asked_for_again_only_later() {
    let mut plan = plan(None, &[], &[]);
    let name = Name::from("absent");
    plan.missed(at(0), &name, 1);
    assert_eq!(fetch(&mut plan, at(0)).listed, None);
    plan.finished(at(0), &name, Outcome::Absent);
    plan.missed(at(ABSENT_MS - 1), &name, 1);
    assert_eq!(plan.next_step(at(ABSENT_MS - 1), true), Step::Idle);
    plan.missed(at(ABSENT_MS), &name, 1);
    assert_eq!(&*fetch(&mut plan, at(ABSENT_MS)).name, "absent");
}

#[test]
fn absent_names_are_bounded_and_the_rest_is_dropped() {
    let mut plan = plan(None, &[], &[]);
    for index in 0..MISSES_MAX + 5 {
        plan.missed(at(0), &Name::from(format!("{index}")), 1);
    }
    assert_eq!(
        (plan.waiting_count(), plan.misses_dropped()),
        (MISSES_MAX, 5)
    );
    for _ in 0..MISSES_MAX {
        let name = fetch(&mut plan, at(0)).name;
        plan.finished(at(0), &name, Outcome::Absent);
    }
    assert!(plan.absent.len() <= ABSENT_MAX && plan.missed_count == 0);
    // Entries whose time is over make room.
    plan.next_step(at(ABSENT_MS), true);
    assert_eq!(plan.absent.len(), 0);
}

#[test]
fn outside_of_a_window_only_what_was_missed_is_fetched() {
    let mut plan = plan(None, &[], &[("a", 1), ("b", 1)]);
    assert_eq!(plan.next_step(at(0), false), Step::Idle);
    plan.missed(at(0), &"b".into(), 1);
    let Step::Fetch(fetch) = plan.next_step(at(0), false) else {
        panic!("b was missed");
    };
    assert_eq!(&*fetch.name, "b");
    assert_eq!(plan.next_step(at(0), false), Step::Idle);
}

#[test]
fn what_is_wanted_fills_to_the_lower_mark_and_misses_evict_down_to_it() {
    let there: Vec<(String, u64)> = (0..20).map(|index| (format!("{index:02}"), 10)).collect();
    let there: Vec<(&str, u64)> = there
        .iter()
        .map(|(name, size)| (name.as_str(), *size))
        .collect();
    let mut plan = plan(Some(100), &[], &there);
    // 80 of 100.
    assert_eq!(run(&mut plan, at(0)).len(), 8);
    assert!(plan.left_out() > 0);
    plan.missed(at(1), &"15".into(), 1);
    // 90 of 100: up to the upper mark nothing leaves.
    assert_eq!(run(&mut plan, at(1)), ["15"]);
    plan.missed(at(2), &"16".into(), 1);
    // Down to the lower mark, the new one included.
    assert_eq!(run(&mut plan, at(2)), ["-00", "-01", "16"]);
    assert_eq!(plan.held_bytes(), 80);
    // What left does not come back by itself.
    plan.update(at(3), 2, None, listed(&there));
    assert_eq!(run(&mut plan, at(3)), [""; 0]);
    plan.missed(at(4), &"00".into(), 1);
    assert_eq!(run(&mut plan, at(4)), ["00"]);
}

#[test]
fn what_is_pinned_or_in_flight_never_leaves_for_room() {
    let here = [("pinned1", 40), ("pinned2", 40)];
    let there = [("pinned1", 40), ("pinned2", 40), ("new", 20)];
    let mut plan = plan(Some(100), &here, &there);
    plan.missed(at(0), &"new".into(), 1);
    assert_eq!(run(&mut plan, at(0)), [""; 0]);
    assert_eq!(plan.held_count(), 2);
    // Even so it goes when the origin does not have it.
    let removals = plan.update(at(1), 0, None, listed(&[("pinned2", 40), ("new", 20)]));
    assert_eq!(removals.names, ["pinned1".into()]);
    assert_eq!(run(&mut plan, at(1)), ["new"]);
}

#[test]
fn what_is_wanted_evicts_only_what_has_a_lower_priority() {
    let mut plan = Plan::new(config(Some(100)), held(&[("old", 40), ("equal", 40)]));
    let wanted = |priority| Wanted {
        priority,
        ..Wanted::default()
    };
    let names = HashMap::from([
        ("equal".into(), wanted(5)),
        ("new".into(), wanted(5)),
        ("more".into(), wanted(5)),
    ]);
    plan.update(
        at(0),
        0,
        Some(names),
        listed(&[("old", 40), ("equal", 40), ("new", 40), ("more", 40)]),
    );
    assert_eq!(run(&mut plan, at(0)), ["-old", "more"]);
    assert_eq!(plan.next_step(at(0), true), Step::Idle);
}

#[test]
fn a_replacement_has_room_for_both_versions_or_others_leave() {
    let mut plan = Plan::new(config(Some(100)), held(&[("a", 40), ("b", 40)]));
    let versions = Versions::Listed(
        [("a", "2"), ("b", "1")]
            .map(|(name, etag)| (name.into(), stamp(40, etag)))
            .into(),
    );
    plan.update(at(0), 0, None, versions);
    assert_eq!(run(&mut plan, at(0)), ["-b", "a"]);
    assert_eq!(plan.held_bytes(), 40);
}

#[test]
fn a_listing_that_lacks_most_of_what_is_here_removes_nothing() {
    let names: Vec<String> = (0..30).map(|index| index.to_string()).collect();
    let all: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let removed = |there: &[(&str, u64)]| {
        let mut plan = Plan::new(config(None), held(&all));
        let removals = plan.update(at(0), 0, None, listed(there));
        (removals.names.len(), removals.refused, plan.held_count())
    };
    assert_eq!(removed(&all), (0, 0, 30));
    assert_eq!(removed(&all[..15]), (15, 0, 15));
    assert_eq!(removed(&all[..14]), (0, 16, 30));
    assert_eq!(removed(&[]), (0, 30, 30));
    // A few are any share of a small store, but not all.
    let mut plan = Plan::new(config(None), held(&all[..3]));
    assert_eq!(
        plan.update(at(0), 0, None, listed(&all[..1])).names.len(),
        2
    );
    assert_eq!(plan.update(at(0), 0, None, listed(&[])).refused, 1);
    let mut all_may_go = config(None);
    all_may_go.removals_percent_max = 100;
    let mut plan = Plan::new(all_may_go, held(&all));
    assert_eq!(plan.update(at(0), 0, None, listed(&[])).names.len(), 30);
}

#[test]
fn what_came_while_the_listing_was_made_stays() {
    let mut plan = plan(None, &[("a", 1)], &[("a", 1)]);
    plan.missed(at(5), &"new".into(), 1);
    fetch(&mut plan, at(5));
    plan.finished(at(6), &"new".into(), Outcome::Stored(stamp(1, "1")));
    assert_eq!(plan.update(at(7), 4, None, listed(&[("a", 1)])).names, []);
    assert_eq!(
        plan.update(at(8), 7, None, listed(&[("a", 1)])).names,
        ["new".into()]
    );
}

#[test]
fn what_expires_goes_though_the_origin_has_it() {
    let mut plan = Plan::new(config(None), held(&[("a", 1), ("b", 1)]));
    let until = |seconds| Wanted {
        expires: Some(seconds),
        ..Wanted::default()
    };
    let names = HashMap::from([
        ("a".into(), until(1_000)),
        ("b".into(), until(1_001)),
        ("c".into(), until(999)),
    ]);
    let removals = plan.update(
        at(0),
        0,
        Some(names),
        listed(&[("a", 1), ("b", 1), ("c", 1)]),
    );
    assert_eq!(removals.names, ["a".into()]);
    assert_eq!(run(&mut plan, at(0)), [""; 0]);
}

#[test]
fn a_live_playlist_is_asked_for_again_at_its_age() {
    let mut plan = plan(None, &[("live.m3u8", 1)], &[("live.m3u8", 1)]);
    assert_eq!(plan.next_step(at(0), true), Step::Wait(2_000));
    let again = fetch(&mut plan, at(2_000));
    // The listing is older than what is asked for.
    assert_eq!((again.listed, again.held.is_some()), (None, true));
    plan.finished(at(2_500), &again.name, Outcome::Unchanged);
    assert_eq!(plan.next_step(at(2_500), false), Step::Wait(4_500));
    let again = fetch(&mut plan, at(4_500));
    plan.finished(at(4_600), &again.name, Outcome::Stored(stamp(9, "2")));
    assert_eq!(plan.held_bytes(), 9);
    // The origin ended it.
    let again = fetch(&mut plan, at(6_600));
    plan.finished(at(6_600), &again.name, Outcome::Absent);
    let later = 6_600 + ABSENT_MS + 2_000;
    assert_eq!(plan.next_step(at(9_000), true), Step::Wait(later));
    // The listing says so, too.
    let removals = plan.update(at(9_000), 9_000, None, listed(&[("other", 1)]));
    assert_eq!(removals.names, ["live.m3u8".into()]);
    assert_eq!(run(&mut plan, at(9_000)), ["other"]);
    assert_eq!(plan.next_step(at(later), true), Step::Idle);
}

#[test]
fn a_live_playlist_has_one_timer_however_often_it_is_stored() {
    let mut plan = plan(None, &[("live.m3u8", 1)], &[("live.m3u8", 1)]);
    for version in 0..5_u64 {
        let now = at(version * 100);
        let there = [("live.m3u8".into(), stamp(1, &format!("v{version}")))];
        plan.update(now, 0, None, Versions::Listed(there.into()));
        assert_eq!(run(&mut plan, now), ["live.m3u8"]);
    }
    assert_eq!(plan.live_due.len(), 1);
    assert_eq!(plan.next_step(at(1_000), true), Step::Wait(2_400));
}

#[test]
fn a_live_playlist_that_found_no_room_is_asked_for_again() {
    let mut plan = plan(Some(10), &[("live.m3u8", 1)], &[("live.m3u8", 1)]);
    let job = fetch(&mut plan, at(2_000));
    plan.finished(at(2_000), &job.name, Outcome::Described(stamp(99, "2")));
    assert_eq!(plan.next_step(at(2_000), true), Step::Wait(4_000));
}

#[test]
fn an_object_that_fails_waits_longer_each_time_and_then_for_the_next_listing() {
    let there = [("a", 1), ("b", 1)];
    let mut plan = plan(None, &[], &there);
    let mut now_ms = 0;
    for attempt in 0..3 {
        let job = fetch(&mut plan, at(now_ms));
        assert_eq!(&*job.name, "a", "{attempt}");
        plan.finished(at(now_ms), &job.name, Outcome::Failed);
        if attempt == 0 {
            // Others go on.
            assert_eq!(run(&mut plan, at(now_ms)), ["b"]);
        }
        assert_eq!(plan.failed_count(), 1);
        match plan.next_step(at(now_ms), true) {
            Step::Wait(due_ms) if attempt < 2 => now_ms = due_ms,
            Step::Idle if attempt == 2 => {}
            step => panic!("{attempt}: {step:?}"),
        }
    }
    plan.update(at(now_ms), 0, None, listed(&there));
    assert_eq!(run(&mut plan, at(now_ms)), ["a"]);
    assert_eq!((plan.failed_count(), plan.waiting_count()), (0, 0));
}

#[test]
fn while_the_origin_fails_what_has_not_failed_is_tried_first() {
    let mut plan = plan(None, &[], &[("a", 7), ("b", 1), ("c.m3u8", 1)]);
    let attempt = |plan: &mut Plan, now_ms| {
        let Step::Fetch(job) = plan.next_attempt(at(now_ms), true) else {
            return String::new();
        };
        plan.finished(at(now_ms), &job.name, Outcome::Failed);
        job.name.to_string()
    };
    assert_eq!(attempt(&mut plan, 0), "c.m3u8");
    assert_eq!((plan.waiting_bytes(), plan.oldest_ms(at(9))), (9, 9));
    // Also when it would be its turn again, and nothing that is not allowed.
    assert_eq!(plan.next_attempt(at(5_000), false), Step::Idle);
    assert_eq!(attempt(&mut plan, 5_000), "a");
    assert_eq!(attempt(&mut plan, 10_000), "b");
    assert_eq!(attempt(&mut plan, 15_000), "c.m3u8");
    assert_eq!(attempt(&mut plan, 15_000), "a");
    assert_eq!(run(&mut plan, at(60_000)), ["c.m3u8", "a", "b"]);
    assert_eq!(plan.oldest_ms(at(99_000)), 0);
}

#[test]
fn without_a_listing_each_held_object_s_version_is_asked_for() {
    let mut plan = Plan::new(config(None), held(&[("a", 1)]));
    let names = || {
        HashMap::from([
            ("a".into(), Wanted::default()),
            ("b".into(), Wanted::default()),
        ])
    };
    let removals = plan.update(at(0), 0, Some(names()), Versions::Unknown);
    assert_eq!(removals, Removals::default());
    let job = fetch(&mut plan, at(0));
    assert_eq!((job.listed, job.held), (None, Some(stamp(1, "1"))));
    // It has it no more, which counts when it was asked for all.
    plan.finished(at(0), &job.name, Outcome::Absent);
    assert_eq!(run(&mut plan, at(0)), ["b"]);
    assert_eq!(plan.held_count(), 2);
    let removals = plan.update(at(1), 0, Some(names()), Versions::Unknown);
    assert_eq!((removals.names, removals.refused), (vec!["a".into()], 0));
    assert_eq!(plan.held_count(), 1);
}

/// What is removed and refused when an origin that cannot be listed lacks so many of the 30 objects that are held.
fn removed_of_thirty(absent: usize) -> (usize, usize, usize) {
    let names: Vec<String> = (0..30).map(|index| format!("{index:02}")).collect();
    let all: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let mut plan = Plan::new(config(None), held(&all));
    let wanted = || {
        let names = names
            .iter()
            .map(|it| (it.as_str().into(), Wanted::default()));
        Some(names.collect())
    };
    plan.update(at(0), 0, wanted(), Versions::Unknown);
    for name in &names {
        let job = fetch(&mut plan, at(0));
        let is_absent = name.parse::<usize>().unwrap() < absent;
        let outcome = if is_absent {
            Outcome::Absent
        } else {
            Outcome::Unchanged
        };
        plan.finished(at(0), &job.name, outcome);
    }
    assert_eq!(plan.held_count(), 30);
    let removals = plan.update(at(1), 0, wanted(), Versions::Unknown);
    (removals.names.len(), removals.refused, plan.held_count())
}

#[test]
fn an_origin_that_lacks_most_of_what_it_is_asked_for_removes_nothing() {
    assert_eq!(removed_of_thirty(0), (0, 0, 30));
    assert_eq!(removed_of_thirty(15), (15, 0, 15));
    assert_eq!(removed_of_thirty(16), (0, 16, 30));
    assert_eq!(removed_of_thirty(30), (0, 30, 30));
}

#[test]
fn an_object_whose_size_is_not_known_is_described_before_anything_leaves_for_it() {
    let here = [("a", 40), ("b", 30)];
    let mut plan = plan(Some(100), &here, &here);
    for name in ["fits", "large"] {
        plan.missed(at(0), &name.into(), 1);
    }
    let (fits, large) = (fetch(&mut plan, at(0)), fetch(&mut plan, at(0)));
    assert_eq!((fits.listed, large.listed), (None, None));
    plan.finished(at(0), &large.name, Outcome::Described(stamp(101, "1")));
    // It would not fit though all left: nothing does, and it is not asked for at once again.
    assert_eq!(plan.next_step(at(0), true), Step::Idle);
    plan.missed(at(1), &large.name, 1);
    assert_eq!(plan.next_step(at(1), true), Step::Idle);
    assert_eq!((plan.held_bytes(), plan.left_out()), (70, 1));
    plan.finished(at(1), &fits.name, Outcome::Described(stamp(15, "1")));
    let job = fetch(&mut plan, at(1));
    assert_eq!((&*job.name, job.listed), ("fits", Some(stamp(15, "1"))));
    assert_eq!(plan.reserved_bytes, 15);
    // It has grown meanwhile: later, with that size.
    plan.finished(at(1), &job.name, Outcome::Described(stamp(16, "2")));
    let Step::Wait(due_ms) = plan.next_step(at(1), true) else {
        panic!("it is delayed");
    };
    let job = fetch(&mut plan, at(due_ms));
    assert_eq!((job.listed, job.is_missed), (Some(stamp(16, "2")), true));
}

/// Thousands of random steps: the plan's sums are those of what it holds, and no object is in flight twice.
#[test]
fn sums_agree_after_any_steps() {
    let mut random = Random::new(7);
    for _ in 0..30 {
        let mut plan = Plan::new(config(Some(200)), held(&[("1", 5), ("pinned2", 6)]));
        let mut busy: Vec<Fetch> = Vec::new();
        let mut now_ms = 0;
        for _ in 0..400 {
            now_ms += random.below(2_000);
            let now = at(now_ms);
            match random.below(8) {
                0 => {
                    let there = (0..random.below(40)).map(|index| {
                        let name = ["", "pinned", "live"][usize::try_from(index % 3).unwrap()];
                        (
                            Name::from(format!("{name}{index}")),
                            stamp(1 + random.below(20), "x"),
                        )
                    });
                    let there = there.collect();
                    plan.update(now, now_ms / 2, None, Versions::Listed(there));
                }
                1 => plan.missed(now, &Name::from(random.below(60).to_string()), 1),
                2 => plan.requested(&random.below(60).to_string(), 1),
                3 | 4 if !busy.is_empty() => {
                    let index = usize::try_from(random.below(busy.len() as u64)).unwrap();
                    let job = busy.swap_remove(index);
                    let stored = Outcome::Stored(job.listed.unwrap_or(stamp(3, "y")));
                    let described = Outcome::Described(stamp(1 + random.below(90), "z"));
                    let outcomes = [
                        stored,
                        stored,
                        Outcome::Unchanged,
                        Outcome::Absent,
                        Outcome::Failed,
                        Outcome::Failed,
                        described,
                        described,
                    ];
                    let outcome = outcomes[usize::try_from(random.below(8)).unwrap()];
                    plan.finished(now, &job.name, outcome);
                }
                _ => {
                    if let Step::Fetch(job) = plan.next_step(now, random.below(2) == 0) {
                        assert!(busy.iter().all(|it| it.name != job.name), "{}", job.name);
                        busy.push(job);
                    }
                }
            }
            let sum: u64 = plan.held.values().map(|it| it.stamp.size_bytes).sum();
            assert_eq!(plan.held_bytes(), sum);
            assert_eq!(plan.policy.bytes(), sum);
            let reserved: u64 = plan.busy.values().map(Busy::reserved_bytes).sum();
            assert_eq!(plan.reserved_bytes, reserved);
            assert!(plan.queue.len() <= plan.queued.len());
            assert!(
                plan.delayed
                    .iter()
                    .all(|(_, name)| plan.queued.contains_key(name))
            );
            let due = plan.held.values().filter(|it| it.live_due_ms.is_some());
            assert_eq!(plan.live_due.len(), due.count());
            let missed = plan.queued.values().filter(|it| it.key.class.is_missed());
            assert_eq!(plan.missed_count, missed.count());
        }
    }
}
