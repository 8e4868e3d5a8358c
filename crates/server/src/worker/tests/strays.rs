//! Segments that reach another worker than has their connection, and the mailbox they go through.

use session::Stray;
use wire::TcpFlags;

use super::{Client, Setup, World};
use crate::mailbox::{STRAYS_MAX, mailbox};

const REQUEST: &[u8] = b"GET /0 HTTP/1.1\r\nHost: a\r\n\r\n";

/// What a worker without connections makes of a client's request to another worker.
fn stray_request(client: &Client) -> (World, Stray) {
    let mut wrong = World::new(Setup::default());
    wrong.worker.conductor.set_other_workers(1);
    wrong.settle();
    wrong.client.next = client.next;
    wrong.client.expected = client.expected;
    wrong.client.send_flags(wrong.now, TcpFlags::ACK, REQUEST);
    wrong.run_until(|_| true);
    let stray = wrong
        .worker
        .poll_stray()
        .expect("it has no such connection");
    assert!(wrong.worker.poll_stray().is_none());
    (wrong, stray)
}

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

#[test]
fn a_stray_that_finds_no_room_in_the_mailbox_is_lost() {
    let world = World::connected(Setup::default());
    let (_, stray) = stray_request(&world.client);
    let (sender, mailbox) = mailbox().unwrap();
    for _ in 0..STRAYS_MAX {
        assert!(sender.pass(stray.clone()));
    }
    assert!(!sender.pass(stray.clone()));
    // Whoever passed them announces them, once.
    assert!(!mailbox.take_has_mail());
    sender.announce();
    assert!(mailbox.take_has_mail() && mailbox.poll_stray().is_some());
    assert!(sender.pass(stray.clone()) && !sender.pass(stray.clone()));
    drop(mailbox);
    assert!(!sender.pass(stray), "the worker has ended");
}
