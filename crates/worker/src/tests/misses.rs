//! Names that are not there: they are told once, waited for in bounded memory, and found when they come.

use clock::{Duration, Instant, UnixTime};
use diskmap::sim::SimDisk;
use session::{LookupError, LookupPlan, LookupPurpose, LookupToken};
use store::{Catalogue, CatalogueEntry, Metadata, Store, StoreConfig};

use super::super::objects::{LookupAnswer, Objects};
use crate::requests::{COUNTED_MAX, HELD_NAMES_MAX, LOOK_EVERY, MISSED_OF_WORKER_MAX};
use crate::testing::{FILE_BYTES, Setup, content};

const START: Instant = Instant::from_millis(1);
const HOLD: Duration = Duration::from_secs(5);

/// A store in which nothing is.
struct Empty {
    objects: Objects,
    disk: SimDisk,
    answers_later: bool,
}

impl Empty {
    fn new(connections: usize, answers_later: bool) -> Self {
        let disk = SimDisk::new(Setup::default().disk);
        let config = StoreConfig {
            objects_max: 64,
            lookups_max: 64,
            ..StoreConfig::default()
        };
        let store = Store::catalogue(Catalogue::new(), config);
        let mut objects = Objects::new(store, connections);
        objects.keep_names(true);
        objects.set_unix_time(UnixTime {
            seconds: 1_700_000_000,
            nanos: 0,
        });
        Self {
            objects,
            disk,
            answers_later,
        }
    }

    /// From now on there is this object.
    fn insert(&mut self, path: &str) {
        let source = self.disk.add_file(content(0));
        let metadata = Metadata {
            size_bytes: FILE_BYTES,
            ..Metadata::default()
        };
        let entry = CatalogueEntry {
            source,
            metadata,
            answers_later: self.answers_later,
        };
        let catalogue = self.objects.store_mut().catalogue_mut();
        catalogue.expect("it has one").insert(path, entry);
    }

    fn ask(&mut self, number: u64, path: &str, hold: Duration) -> Option<LookupAnswer> {
        let plan = LookupPlan {
            token: LookupToken(number),
            directory: 0,
            path: path.to_owned(),
            site: 3,
            purpose: LookupPurpose::Object { hold },
        };
        let answer = self.objects.look_up(START, &mut self.disk, plan);
        answer.map(|(_, answer)| answer)
    }

    /// Goes on with all that is due; how many requests that were, and the answers.
    fn go_on(&mut self, now: Instant) -> (usize, Vec<(u64, LookupAnswer)>) {
        let (mut due, mut answers) = (0, Vec::new());
        loop {
            let answered = if let Some(late) = self.objects.poll_answer(now, &mut self.disk) {
                Some(late)
            } else if let Some(waiting) = self.objects.poll_waiting(now) {
                self.objects.ask(now, &mut self.disk, waiting)
            } else if let Some(held) = self.objects.go_on_with_held(now, &mut self.disk) {
                due += 1;
                held
            } else {
                return (due, answers);
            };
            if let Some((LookupToken(number), answer)) = answered {
                if let Ok(object) = &answer {
                    self.objects.release(object.handle);
                }
                answers.push((number, answer));
            }
        }
    }
}

#[test]
fn thousands_of_misses_of_one_name_wait_in_one_entry_until_it_comes() {
    const CLIENTS: u64 = 10_000;
    for answers_later in [false, true] {
        let mut store = Empty::new(10_000, answers_later);
        for number in 0..CLIENTS {
            assert!(
                store.ask(number, "/live/a.m3u8", HOLD).is_none(),
                "it waits"
            );
        }
        let missed = store.objects.take_missed();
        assert_eq!((missed.len(), missed[0].requests), (1, CLIENTS));
        let told = (missed[0].site, &*missed[0].path, missed[0].last);
        assert_eq!(told, (3, "/live/a.m3u8", 1_700_000_000));
        // One of them looks, every 100 ms.
        let mut now = START;
        for _ in 0..10 {
            let next = store.objects.poll_timeout().unwrap();
            assert_eq!(next, now + LOOK_EVERY);
            assert_eq!(store.go_on(next - Duration::from_nanos(1)).0, 0);
            let (due, answers) = store.go_on(next);
            assert_eq!((due, answers.len()), (1, 0));
            now = next;
        }
        let counters = store.objects.counters();
        assert_eq!(counters.server_holding_lookups.0, CLIENTS);
        assert_eq!(counters.server_held_lookups, CLIENTS);
        store.insert("/live/a.m3u8");
        now += LOOK_EVERY;
        let (_, answers) = store.go_on(now);
        assert!(answers.iter().all(|(_, answer)| answer.is_ok()));
        let mut numbers: Vec<u64> = answers.iter().map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..CLIENTS), "each is answered once");
        let counters = store.objects.counters();
        assert_eq!(counters.server_holding_lookups.0, 0);
        assert_eq!(counters.server_held_found_lookups, CLIENTS);
        assert_eq!(store.go_on(now + HOLD).0, 0);
        assert_eq!(store.objects.take_missed(), []);
        assert_eq!(store.objects.counted(0, 9).0[0].requests, CLIENTS);
    }
}

#[test]
fn what_does_not_come_in_time_is_told_to_be_missing() {
    let mut store = Empty::new(10, false);
    for number in 0..10 {
        // Two that wait less long, by another rule.
        let hold = if number < 8 { HOLD } else { HOLD / 2 };
        assert!(store.ask(number, "/a", hold).is_none());
    }
    let mut gone = Vec::new();
    let mut now = START;
    while gone.len() < 10 {
        now = store.objects.poll_timeout().unwrap();
        let (_, answers) = store.go_on(now);
        for (number, answer) in answers {
            assert!(matches!(answer, Err(LookupError::NotFound)));
            gone.push((number, now.since(START)));
        }
    }
    assert_eq!(now.since(START), HOLD);
    gone.sort_unstable();
    let expected = (0..10).map(|number| (number, if number < 8 { HOLD } else { HOLD / 2 }));
    assert!(gone.into_iter().eq(expected));
}

#[test]
fn a_file_system_that_hangs_has_one_look_up_of_a_name_that_is_waited_for() {
    const CLIENTS: u64 = 20;
    let mut store = Empty::new(100, false);
    for number in 0..CLIENTS {
        assert!(store.ask(number, "/a", HOLD).is_none(), "it waits");
    }
    let hang = |store: &mut Empty, hangs| {
        let catalogue = store.objects.store_mut().catalogue_mut();
        catalogue.expect("it has one").set_hung(0, hangs);
    };
    store.insert("/a");
    hang(&mut store, true);
    let (mut now, mut looks) = (START, 0);
    for _ in 0..10 {
        now += LOOK_EVERY;
        let (due, answers) = store.go_on(now);
        assert_eq!(answers.len(), 0);
        looks += due;
    }
    assert_eq!(looks, 1);
    hang(&mut store, false);
    let (_, answers) = store.go_on(now);
    assert!(answers.iter().all(|(_, answer)| answer.is_ok()));
    assert_eq!(answers.len() as u64, CLIENTS);
}

#[test]
fn a_look_up_that_fails_is_followed_by_that_of_another_request() {
    let mut store = Empty::new(100, false);
    for number in 0..3 {
        assert!(store.ask(number, "/a/b", HOLD).is_none(), "it waits");
    }
    // Now it is a directory, and one that asks for it gets no object.
    store.insert("/a/b/c");
    let mut now = START;
    for number in 0..3 {
        now += LOOK_EVERY;
        let (due, answers) = store.go_on(now);
        assert_eq!(due, 1);
        assert!(matches!(answers[..], [(it, Err(LookupError::Directory))] if it == number));
    }
    assert_eq!(store.objects.counters().server_holding_lookups.0, 0);
}

#[test]
fn thousands_of_names_take_no_more_memory_than_there_is_for_them() {
    let mut store = Empty::new(1000, false);
    let mut waiting = 0;
    for number in 0..10_000 {
        match store.ask(number, &format!("/{number}"), HOLD) {
            None => waiting += 1,
            Some(answer) => assert!(matches!(answer, Err(LookupError::NotFound))),
        }
    }
    assert_eq!(waiting, HELD_NAMES_MAX);
    // Neither do requests of more clients than there may be.
    let more = (0..1000).filter(|number| store.ask(*number, "/0", HOLD).is_none());
    assert_eq!(more.count(), 1000 - HELD_NAMES_MAX);
    // Of 11,000 requests 1,000 wait.
    let refused = store.objects.counters().server_hold_refused_lookups;
    assert_eq!(refused, 10_000);
    let forgotten = store.objects.counters().server_forgotten_misses;
    let missed = store.objects.take_missed();
    assert_eq!(missed.len(), MISSED_OF_WORKER_MAX);
    assert!(forgotten >= 10_000 - MISSED_OF_WORKER_MAX as u64);
    // An object that is there is found meanwhile.
    store.insert("/there");
    let found = store.ask(1, "/there", HOLD).unwrap().unwrap();
    store.objects.release(found.handle);
    for number in 0..10_000 {
        store.ask(number, &format!("/there{number}"), Duration::ZERO);
    }
    assert!(store.objects.counted(0, COUNTED_MAX).0.len() == 1);
}

#[test]
fn what_is_no_object_that_was_asked_for_is_no_miss() {
    let mut store = Empty::new(10, false);
    for purpose in [LookupPurpose::Coding, LookupPurpose::ErrorPage] {
        let plan = LookupPlan {
            token: LookupToken(1),
            directory: 0,
            path: "/a".to_owned(),
            site: 0,
            purpose,
        };
        let answer = store.objects.look_up(START, &mut store.disk, plan);
        assert!(matches!(answer, Some((_, Err(LookupError::NotFound)))));
    }
    assert_eq!(store.objects.take_missed(), []);
    // Nothing is kept for nobody.
    store.objects.keep_names(false);
    assert!(store.ask(1, "/a", Duration::ZERO).is_some());
    store.insert("/b");
    let found = store.ask(1, "/b", Duration::ZERO).unwrap().unwrap();
    store.objects.release(found.handle);
    assert_eq!(store.objects.take_missed(), []);
    assert!(store.objects.counted(0, 1).0.is_empty());
}
