//! Segments that reach another worker than has their connection.

use crate::testing::{Setup, World, stray_request};

#[test]
fn a_request_that_reached_another_worker_is_answered_by_its_own() {
    let mut world = World::connected(Setup::default());
    world.worker.conductor.set_other_workers(1);
    let (wrong, stray) = stray_request(&world.client);
    assert_eq!(wrong.client.resets, 0);
    world.worker.handle_stray(world.now, stray);
    world.receive(1);
    assert!(world.worker.poll_stray().is_none());
}
