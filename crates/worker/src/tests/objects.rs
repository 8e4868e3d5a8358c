//! More look-ups than a small store has room for: which wait, which are refused, and when.

use clock::{Duration, Instant};
use diskmap::sim::SimDisk;
use session::{LookupError, LookupPlan, LookupPurpose, LookupToken, Object, ObjectHandle};
use store::{Catalogue, CatalogueEntry, Metadata, Store, StoreConfig};

use super::super::objects::{LOOKUP_WAIT_MAX, OPENS_MAX, Objects};
use super::warnings::told;
use crate::testing::{FILE_BYTES, Setup, World, content, find_head_end};
use wire::{SeqNumber, TcpFlags};

const OBJECT: LookupPurpose = LookupPurpose::Object {
    hold: Duration::ZERO,
};
const NOW: Instant = Instant::from_millis(1);
/// Files of device 0; those behind them are on device 1.
const HERE_FILES: u32 = 200;
/// All files.
const FILES: u32 = 300;

/// Objects that connections use, one each.
struct Crowd {
    objects: Objects,
    disk: SimDisk,
    /// What a connection is being sent.
    used: Vec<Option<ObjectHandle>>,
    next_file: u32,
}

impl Crowd {
    /// Room for `objects_max` objects and `lookups_max` look-ups under way.
    fn new(
        connections: usize,
        objects_max: usize,
        lookups_max: usize,
        answers_later: bool,
    ) -> Self {
        let setup = Setup::default();
        let mut disk = SimDisk::new(setup.disk);
        let mut catalogue = Catalogue::new();
        for file in 0..FILES {
            let source = disk.add_file(content(file));
            let metadata = Metadata {
                size_bytes: FILE_BYTES,
                inode: file.into(),
                device: u64::from(file >= HERE_FILES),
                ..Metadata::default()
            };
            let entry = CatalogueEntry {
                source,
                metadata,
                answers_later,
            };
            catalogue.insert(&format!("/{file}"), entry);
        }
        let config = StoreConfig {
            objects_max,
            lookups_max,
            ..StoreConfig::default()
        };
        Self {
            objects: Objects::new(Store::catalogue(catalogue, config), connections),
            disk,
            used: vec![None; connections],
            next_file: 0,
        }
    }

    /// A connection asks for a file that nobody asked for before.
    fn ask(&mut self, now: Instant, connection: usize) {
        assert_eq!(self.used[connection], None, "one request at a time");
        let plan = LookupPlan {
            token: LookupToken(u64::try_from(connection).unwrap()),
            directory: 0,
            path: format!("/{}", self.next_file),
            site: 0,
            purpose: OBJECT,
        };
        self.next_file += 1;
        let answer = self.objects.look_up(now, &mut self.disk, plan);
        self.take(answer.into_iter().collect());
    }

    fn take(&mut self, answers: Vec<(LookupToken, Result<Object, LookupError>)>) {
        for (LookupToken(connection), answer) in answers {
            let object = answer.unwrap_or_else(|error| panic!("{connection} is told {error:?}"));
            self.used[usize::try_from(connection).unwrap()] = Some(object.handle);
        }
    }

    /// The worker's round, without requests.
    fn round(&mut self, now: Instant) {
        let mut answers = Vec::new();
        while let Some(answer) = self.objects.poll_answer(now, &mut self.disk) {
            answers.push(answer);
        }
        self.objects.close_unused(&mut self.disk);
        while let Some(question) = self.objects.poll_waiting(now) {
            answers.extend(self.objects.ask(now, &mut self.disk, question));
        }
        self.objects.close_unused(&mut self.disk);
        self.take(answers);
    }

    /// The reply is over.
    fn finish(&mut self, connection: usize) {
        let object = self.used[connection].take().expect("it was answered");
        self.objects.release(object);
    }
}

/// A recording is appended to between its look-up and its open: the disk has another length than the store saw.
#[test]
fn a_file_that_changes_before_it_is_open_is_looked_up_again_some_times() {
    for answers_later in [false, true] {
        let mut crowd = Crowd::new(1, 1, 1, answers_later);
        let catalogue = crowd.objects.store_mut().catalogue_mut();
        let metadata = Metadata {
            size_bytes: FILE_BYTES - 1,
            ..Metadata::default()
        };
        let entry = CatalogueEntry {
            source: 0,
            metadata,
            answers_later,
        };
        catalogue.expect("it has one").insert("/0", entry);
        let plan = LookupPlan {
            token: LookupToken(0),
            directory: 0,
            path: "/0".to_owned(),
            site: 0,
            purpose: OBJECT,
        };
        let mut answer = crowd.objects.look_up(NOW, &mut crowd.disk, plan);
        if answers_later {
            assert!(answer.is_none(), "it comes later");
            answer = crowd.objects.poll_answer(NOW, &mut crowd.disk);
        }
        let (_, answer) = answer.expect("it is answered");
        assert_eq!(answer.err(), Some(LookupError::Busy));
        let opened = crowd.objects.store().counters().store_opened_objects;
        assert_eq!(opened, u64::from(OPENS_MAX));
    }
}

/// Every connection requests a new file when it has received the last one. There is an object for
/// each connection, so no request is refused, however small the limit of look-ups.
#[test]
fn an_object_for_each_connection_is_enough() {
    const CONNECTIONS: usize = 7;
    for objects_max in [CONNECTIONS, CONNECTIONS + 1] {
        for (lookups_max, answers_later) in [(1, true), (2, true), (64, true), (2, false)] {
            let mut crowd = Crowd::new(CONNECTIONS, objects_max, lookups_max, answers_later);
            for connection in 0..CONNECTIONS {
                crowd.ask(NOW, connection);
            }
            let mut replies = 0;
            while crowd.next_file < 200 {
                crowd.round(NOW);
                for connection in 0..CONNECTIONS {
                    if crowd.used[connection].is_some() && crowd.next_file < 200 {
                        crowd.finish(connection);
                        crowd.ask(NOW, connection);
                        replies += 1;
                    }
                }
            }
            assert_eq!(replies, 200 - CONNECTIONS);
            assert_eq!(crowd.objects.counters().server_overdue_lookups, 0);
            assert_eq!(crowd.objects.store().counters().store_refused_lookups, 0);
        }
    }
}

#[test]
fn waiting_look_ups_are_served_in_order() {
    let mut crowd = Crowd::new(4, 1, 1, true);
    for connection in 0..4 {
        crowd.ask(NOW, connection);
    }
    for connection in 0..4 {
        crowd.round(NOW);
        let served: Vec<bool> = crowd.used.iter().map(Option::is_some).collect();
        let expected: Vec<bool> = (0..4).map(|other| other == connection).collect();
        assert_eq!(served, expected);
        crowd.finish(connection);
        // Room at last; the catalogue answers in the round after.
        crowd.round(NOW);
    }
    assert_eq!(crowd.objects.counters().server_waiting_lookups, 3);
}

#[test]
fn a_waiting_look_up_is_refused_at_its_deadline() {
    let mut crowd = Crowd::new(2, 1, 1, false);
    crowd.ask(NOW, 0);
    crowd.ask(NOW, 1);
    let deadline = NOW + LOOKUP_WAIT_MAX;
    assert_eq!(crowd.objects.poll_timeout(), Some(deadline));
    crowd.round(NOW + (LOOKUP_WAIT_MAX - Duration::from_nanos(1)));
    assert_eq!(crowd.used[1], None, "still waiting");
    let question = crowd
        .objects
        .poll_waiting(deadline)
        .expect("its time is up");
    let answer = crowd.objects.ask(deadline, &mut crowd.disk, question);
    assert!(
        matches!(answer, Some((LookupToken(1), Err(LookupError::Busy)))),
        "{answer:?}"
    );
    assert_eq!(crowd.objects.counters().server_overdue_lookups, 1);
    assert_eq!(crowd.objects.poll_timeout(), None);
}

#[test]
fn as_many_look_ups_wait_as_there_may_be_connections() {
    let mut crowd = Crowd::new(3, 1, 1, false);
    for connection in 0..3 {
        crowd.ask(NOW, connection);
    }
    // One connection was closed, and another was opened.
    crowd.ask(NOW, 1);
    let plan = LookupPlan {
        token: LookupToken(2),
        directory: 0,
        path: "/100".into(),
        site: 0,
        purpose: OBJECT,
    };
    let answer = crowd.objects.look_up(NOW, &mut crowd.disk, plan);
    assert!(
        matches!(answer, Some((LookupToken(2), Err(LookupError::Busy)))),
        "{answer:?}"
    );
    assert_eq!(crowd.objects.counters().server_overdue_lookups, 1);
}

/// With room for one object: a connection receives it and acknowledges nothing, another waits.
/// Returns the world, and the first connection's port and next sequence number.
fn world_with_its_only_object_in_use() -> (World, (u16, SeqNumber)) {
    let mut world = World::connected(Setup {
        files: 2,
        objects_max: 1,
        ..Setup::default()
    });
    world.ask(0);
    world.settle();
    let first = (world.client.source_port, world.client.next);
    world.reconnect();
    world.ask(1);
    world.settle();
    assert_eq!(world.counter("server_waiting_lookups"), 1);
    (world, first)
}

#[test]
fn a_request_waits_for_an_object_to_come_free() {
    let (mut world, first) = world_with_its_only_object_in_use();
    let before = world.client.received.len();
    // The end of the first connection is all it takes.
    let second = (world.client.source_port, world.client.next);
    (world.client.source_port, world.client.next) = first;
    world.client.send_flags(world.now, TcpFlags::RST, b"");
    (world.client.source_port, world.client.next) = second;
    world.receive(before + 1);
    let head = before + find_head_end(&world.client.received[before..]);
    world.receive(head + super::bytes(&content(1)).len());
    assert!(world.client.received[before..].starts_with(b"HTTP/1.1 200"));
    assert_eq!(world.counter("server_overdue_lookups"), 0);
}

#[test]
fn a_request_that_waits_too_long_gets_a_503() {
    let (mut world, _) = world_with_its_only_object_in_use();
    let asked_at = world.now;
    let before = world.client.received.len();
    world.receive(before + 1);
    let reply = String::from_utf8_lossy(&world.client.received[before..]).to_lowercase();
    assert!(reply.starts_with("http/1.1 503"), "{reply}");
    assert!(reply.contains("retry-after:"), "{reply}");
    assert!(world.now >= asked_at + LOOKUP_WAIT_MAX);
    assert_eq!(world.counter("server_overdue_lookups"), 1);
    let lines = told(&mut world);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].starts_with("look-up overdue: /1: no room for 10 s"),
        "{lines:?}"
    );
}

/// More look-ups of a device that hangs than it may have; then look-ups of another device.
#[test]
fn a_device_that_hangs_delays_no_look_ups_of_others() {
    let mut crowd = Crowd::new(20, 20, 8, true);
    crowd.next_file = HERE_FILES;
    let catalogue = crowd.objects.store_mut().catalogue_mut().unwrap();
    catalogue.set_hung(1, true);
    for connection in 0..10 {
        crowd.ask(NOW, connection);
    }
    assert_eq!(
        crowd.objects.counters().server_waiting_lookups,
        8,
        "a device has two of eight"
    );
    crowd.next_file = 0;
    for connection in 10..20 {
        crowd.ask(NOW, connection);
    }
    // Two of them are asked each round, one after the other.
    for _ in 0..5 {
        crowd.round(NOW);
    }
    let served: Vec<bool> = crowd.used.iter().map(Option::is_some).collect();
    let expected: Vec<bool> = (0..20).map(|connection| connection >= 10).collect();
    assert_eq!(served, expected);
    assert!(
        crowd.objects.poll_waiting(NOW).is_none(),
        "nothing to spin on"
    );
}

#[test]
fn a_request_to_a_device_that_hangs_gets_a_503_and_keeps_its_connection() {
    let mut world = World::connected(Setup::default());
    let hang = |world: &mut World, is_hung| {
        let catalogue = world.worker.store_mut().catalogue_mut().unwrap();
        catalogue.set_hung(0, is_hung);
    };
    hang(&mut world, true);
    let asked_at = world.now;
    world.ask(0);
    world.receive(1);
    assert!(world.now >= asked_at + StoreConfig::default().lookup_time_max);
    let head = find_head_end(&world.client.received);
    assert!(world.client.received.starts_with(b"HTTP/1.1 503"));
    assert_eq!(world.counter("store_overdue_lookups"), 1);
    let line = "look-up overdue: /0: its file system does not answer; see its mount";
    assert_eq!(told(&mut world), [line]);

    hang(&mut world, false);
    let before = world.client.received.len();
    assert!(before >= head);
    world.ask(0);
    world.receive(before + 1);
    assert!(world.client.received[before..].starts_with(b"HTTP/1.1 200"));
    assert_eq!(world.counter("tcp_established_count"), 1);
    assert_eq!(world.counter("store_late_lookups"), 1);
}

#[test]
fn an_unused_object_is_closed_and_no_timer_remains() {
    let mut world = World::connected(Setup::default());
    world.ask(0);
    world.receive(usize::try_from(FILE_BYTES).unwrap());
    world.settle();
    let unused_max = StoreConfig::default().unused_time_max;
    let due = world.worker.store().poll_timeout().expect("it is unused");
    assert!(due >= world.now + unused_max.saturating_sub(Duration::from_secs(1)));
    assert_eq!(world.counter("store_closed_objects"), 0);
    world.now = due;
    world.settle();
    assert_eq!(world.counter("store_closed_objects"), 1);
    assert_eq!(world.worker.store().poll_timeout(), None);
}

/// A deleted file is still being sent.
#[test]
fn an_object_in_use_stays_open() {
    let mut world = World::connected(Setup::default());
    world.ask(0);
    world.settle();
    let catalogue = world.worker.store_mut().catalogue_mut().unwrap();
    assert!(catalogue.remove("/0"));
    // The client acknowledges nothing for as long as an unused object would stay.
    world.now += StoreConfig::default().unused_time_max + Duration::from_secs(1);
    world.settle();
    assert_eq!(world.counter("store_closed_objects"), 0);
    world.receive(usize::try_from(FILE_BYTES).unwrap());
    let head = find_head_end(&world.client.received);
    world.receive(head + super::bytes(&content(0)).len());
    assert_eq!(world.client.received[head..], super::bytes(&content(0)));
}

#[test]
fn clients_of_an_object_that_was_removed_long_ago_are_reset() {
    let long = Duration::from_secs(20);
    let mut world = World::connected(Setup {
        files: 2,
        retired_time_max: long,
        ..Setup::default()
    });
    world.ask(0);
    world.receive(1);
    let catalogue = world.worker.store_mut().catalogue_mut().unwrap();
    assert!(catalogue.remove("/0"));
    world.now += Duration::from_secs(2);
    // Somebody else finds that it is gone; the first client goes on slowly.
    world.reconnect();
    world.client.received.clear();
    world.ask(0);
    world.receive(20);
    assert!(world.client.received.starts_with(b"HTTP/1.1 404"));
    let due = world.now + long;
    world.now = due - Duration::from_millis(1);
    world.settle();
    world.client.receive(world.now);
    assert_eq!(
        (world.client.resets, world.counter("store_closed_objects")),
        (0, 0)
    );
    assert!(
        world
            .worker
            .store()
            .poll_timeout()
            .is_some_and(|next| next <= due)
    );
    world.now = due;
    world.settle();
    world.client.receive(world.now);
    assert_eq!(
        (world.client.resets, world.counter("store_closed_objects")),
        (1, 1)
    );
    assert_eq!(world.counter("store_outdated_objects"), 1);
    let line = world.worker.poll_warning(world.now).expect("a line").text;
    assert!(
        line.contains("replaced or removed is sent for too long"),
        "{line}"
    );
    // The others are not.
    world.client.received.clear();
    world.fetch(1);
    assert_eq!(world.client.resets, 1);
}
