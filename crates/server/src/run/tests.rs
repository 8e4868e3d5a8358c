//! How serving ends after an error: connections are reset, so that no client waits for a timeout.

use std::time;

use clock::Duration;
use diskmap::DiskError;
use diskmap::sim::SimDisk;
use link::sim::{SimConfig as LinkConfig, SimLink};
use store::{Store, StoreConfig};

use worker::Step;
use worker::requests::Missed;
use worker::testing::{CONNECTIONS_MAX, Client, Setup, World};

use super::{Drive, Question, Serving};
use crate::failure::{EXIT_BROKEN, EXIT_REFUSED, Failure};
use crate::observe::metrics::table::meaning_of;
use crate::observe::monitoring::Monitoring;
use crate::reload::{self, files::OperatorFiles};
use crate::run::coalescing::{Pauses, Sleep};
use crate::run::mailbox::{Command, Mailbox, mailbox};
use crate::run::signals::Signals;
use rustix::process::geteuid;

use crate::run::supervisor::{Supervisor, Workers};
use crate::run::taking_over::TakeOver;
use crate::run::wait::{Source, wait};
use crate::settings::{Limits, Settings};

fn drive(epoch: time::Instant, mailbox: Mailbox) -> Drive {
    Drive {
        number: 0,
        epoch,
        mailbox,
        next_worker: None,
        supervisor: None,
        coalesce: Pauses::Fixed(Duration::ZERO),
        busy_poll: Duration::ZERO,
        has_readers: false,
        link_watch: None,
    }
}

/// Runs the world's worker on the real clock until it ends; gives back what came of it and the
/// client, which has taken what was sent by then.
fn run_to_the_end(world: World) -> (Failure, Client) {
    let World {
        worker,
        mut client,
        now,
    } = world;
    let epoch = time::Instant::now() - Duration::from_nanos(now.as_nanos());
    let (_sender, mailbox) = mailbox().unwrap();
    let serving = Serving::new(worker, drive(epoch, mailbox));
    let (outcome, counters) = serving.run();
    assert!(counters.contains(&("server_open_connections", 0)));
    let failure = outcome.unwrap_err();
    client.receive(now + Duration::from_secs(60));
    (failure, client)
}

#[test]
fn a_disk_that_takes_no_more_reads_ends_in_resets() {
    let mut world = World::connected(Setup::default());
    world.ask(0);
    let error = DiskError::Io(libc::EBADF);
    world.worker.disk_mut().refuse_submits(error);
    let (failure, client) = run_to_the_end(world);
    assert_eq!(failure.exit_code(), EXIT_BROKEN);
    assert!(failure.to_string().contains("takes no more reads"));
    assert_eq!(client.resets, 1, "the client still waits");
}

#[test]
fn resets_wait_for_room_on_the_link() {
    // A reset takes some milliseconds, and only one may wait.
    let link = LinkConfig {
        transmit_bits_per_second: 100_000,
        transmit_queue_frames_max: 1,
        ..LinkConfig::default()
    };
    let mut world = World::connected(Setup {
        link,
        ..Setup::default()
    });
    for _ in 1..CONNECTIONS_MAX {
        world.reconnect();
    }
    world.ask(0);
    let error = DiskError::Io(libc::EBADF);
    world.worker.disk_mut().refuse_submits(error);
    let (_, client) = run_to_the_end(world);
    assert_eq!(client.resets, CONNECTIONS_MAX);
}

#[test]
fn names_that_are_told_to_nobody_are_told_to_who_asks_next() {
    let World { worker, .. } = World::connected(Setup::default());
    let (sender, mailbox) = mailbox().unwrap();
    let mut serving = Serving::new(worker, drive(time::Instant::now(), mailbox));
    let missed = Missed {
        site: 0,
        directory: 0,
        path: "/none".into(),
        requests: 3,
        last: 7,
    };
    serving.worker.put_back_missed(vec![missed.clone()]);
    for (is_gone, expected) in [
        (true, None),
        (false, Some(vec![missed])),
        (false, Some(vec![])),
    ] {
        let (reply, answer) = std::sync::mpsc::sync_channel(1);
        let answer = Some(answer).filter(|_| !is_gone);
        assert!(sender.ask(Question::Missed(reply)));
        let _ = serving.read_mail(clock::Instant::ZERO);
        assert_eq!(answer.map(|answer| answer.try_recv().unwrap()), expected);
    }
}

#[test]
fn mail_ends_each_pause_and_look_ups_only_those_of_a_worker_with_time() {
    let World { worker, .. } = World::connected(Setup::default());
    let (sender, mailbox) = mailbox().unwrap();
    let drive = Drive {
        coalesce: Pauses::Fixed(Duration::from_micros(1)),
        ..drive(time::Instant::now(), mailbox)
    };
    let mut serving = Serving::new(worker, drive);
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_directory(directory.path(), StoreConfig::default());
    *serving.worker.store_mut() = store.unwrap();
    let nothing_due = Step {
        progressed: false,
        blocked_on_link: false,
        next_timeout: None,
        next_look: None,
    };
    // The processor's use is looked at when the test says so, and never by the machine's clock, which does not come so far.
    let start = clock::Instant::from_millis(1_000_000);
    let mut is_ended = |now: clock::Instant, has_mail: bool, has_answer: bool| {
        let used = || now.since(start);
        serving.coalescing.on_slept(Sleep::Wait, now, now, used);
        if has_mail {
            sender.command(Command::ReopenDirectory);
        }
        if has_answer {
            let store = serving.worker.store_mut();
            store.reopen();
            wait(&[Source::readable(store.poll_fd().unwrap())], None).unwrap();
        }
        serving.sleep(&nothing_due).unwrap()
    };
    assert!(!is_ended(start, false, false));
    assert!(is_ended(start, true, false));
    assert!(is_ended(start, false, true));
    // Of this second, the worker used all of its processor.
    let busy = start + Duration::from_millis(1_000);
    assert!(!is_ended(busy, false, true));
    assert!(is_ended(busy, true, true));
    assert_eq!(serving.counters.server_pause_events, 5);
    assert_eq!(serving.counters.server_sleep_events, 0);
}

/// Two workers that serve a client each; the disk of those in `broken` takes no reads. `others` are not
/// started yet.
fn supervised(broken: &'static [usize], others: usize) -> Workers {
    let mut workers = Workers::new(2 + others).unwrap();
    for _ in 0..2 {
        workers
            .start(None, |channels| {
                let number = channels.number;
                let mut world = World::connected(Setup::default());
                world.ask(0);
                if broken.contains(&number) {
                    let error = DiskError::Io(libc::EBADF);
                    world.worker.disk_mut().refuse_submits(error);
                }
                Ok(Serving::new(
                    world.worker,
                    Drive {
                        number,
                        next_worker: channels.next_worker,
                        supervisor: Some(channels.supervisor),
                        ..drive(time::Instant::now(), channels.mailbox)
                    },
                ))
            })
            .unwrap();
    }
    workers
}

fn supervise(workers: Workers) -> Failure {
    let signals = Signals::install().unwrap();
    let limits = Limits {
        shutdown_grace: Duration::from_secs(600),
        ..Limits::default()
    };
    let files = reload::Source::new(&Settings::default(), OperatorFiles::direct()).unwrap();
    let loaded = files.load_first().unwrap();
    let loader = reload::Loader::start(files, &loaded).unwrap();
    let take_over = TakeOver::new(Err("none".into()), None, geteuid());
    let monitoring = Monitoring::default();
    let supervisor = Supervisor::new(workers, signals, &limits, loader, monitoring, take_over);
    // It would not return if a worker went on.
    supervisor.run("", 0).unwrap_err()
}

#[test]
fn a_worker_that_fails_ends_all() {
    let failure = supervise(supervised(&[1], 0));
    assert_eq!(failure.exit_code(), EXIT_BROKEN);
    assert!(failure.to_string().contains("takes no more reads"));
}

#[test]
fn a_worker_that_panics_or_does_not_start_ends_all() {
    let start = |make: fn() -> Failure| {
        let mut workers = supervised(&[], 1);
        let refused = move |_| Err::<Serving<SimLink, SimDisk>, _>(make());
        workers.start(None, refused).unwrap();
        supervise(workers)
    };
    let failure = start(|| panic!("as a test"));
    assert_eq!(failure.exit_code(), EXIT_BROKEN);
    assert_eq!(
        failure.to_string(),
        "worker 2 ended by a fault of the server"
    );
    let failure = start(|| Failure::refused("a", "b"));
    assert_eq!(
        (failure.exit_code(), failure.to_string().as_str()),
        (EXIT_REFUSED, "a; b")
    );
}

#[test]
fn each_counter_of_a_worker_has_a_meaning() {
    let world = World::connected(Setup::default());
    for (name, _) in world.worker.counters() {
        assert!(meaning_of(name).is_some(), "{name} has none");
    }
}
