//! How serving ends after an error: connections are reset, so that no client waits for a timeout.

use std::time;

use clock::Duration;
use diskmap::DiskError;
use link::sim::SimConfig as LinkConfig;

use super::{CONNECTIONS_MAX, Client, Setup, World};
use crate::failure::{EXIT_BROKEN, Failure};
use crate::monitoring::Monitoring;
use crate::run::Serving;
use crate::signals::Signals;

/// Runs the world's worker on the real clock until it ends; gives back what came of it and the
/// client, which has taken what was sent by then.
fn run_to_the_end(world: World) -> (Failure, Client) {
    let World {
        worker,
        mut client,
        now,
    } = world;
    let epoch = time::Instant::now() - Duration::from_nanos(now.as_nanos());
    let signals = Signals::install().unwrap();
    let serving = Serving::new(
        worker,
        signals,
        epoch,
        Duration::ZERO,
        None,
        Monitoring::default(),
    );
    let failure = serving.run("").unwrap_err();
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
