//! Failures that affect clients are logged with the file or the client.

use link::Link;
use wire::{Outgoing, TcpFlags};

use diskmap::sim::{SimConfig as DiskConfig, SimContent};

use super::*;
use crate::limiter::LINE_EVERY;
use crate::testing::{CLIENT, FILE_BYTES, SLOTS};
use crate::warnings::Warning;

pub(super) fn told(world: &mut World) -> Vec<String> {
    let now = world.now;
    std::iter::from_fn(|| world.worker.poll_warning(now))
        .map(|Warning { text, .. }| text)
        .collect()
}

#[test]
fn a_served_request_logs_nothing() {
    let mut world = World::connected(Setup::default());
    world.fetch(0);
    world.ask(7);
    world.receive(bytes(&content(0)).len() + 200);
    assert_eq!(
        told(&mut world),
        [""; 0],
        "nor is one that asks for nothing"
    );
}

#[test]
fn a_failed_read_is_logged_with_the_file_and_the_errno() {
    let disk = DiskConfig {
        error_chance: u32::MAX,
        ..Setup::default().disk
    };
    let mut world = World::connected(Setup {
        disk,
        ..Setup::default()
    });
    world.ask(0);
    world.run_until(|client| client.is_reset);
    let line = "read failed, connection reset: /0: Input/output error (os error 5)";
    let lines = told(&mut world);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with(line), "{lines:?}");
    // At once, it is counted; in time, it is told again.
    for expected in [0, 1] {
        world.reconnect();
        world.ask(0);
        world.run_until(|client| client.is_reset);
        let lines = told(&mut world);
        assert_eq!(lines.len(), expected, "{lines:?}");
        assert!(
            lines.iter().all(|line| line.contains(" more like it")),
            "{lines:?}"
        );
        world.now += LINE_EVERY;
    }
}

#[test]
fn a_file_that_changed_is_logged_with_its_path() {
    let mut world = World::connected(Setup::default());
    world.ask(0);
    world.receive(1);
    let other = SimContent::Pattern {
        seed: 99,
        size_bytes: FILE_BYTES,
    };
    let disk = world.worker.disk_mut();
    disk.change_file(0, other, SimChange::Detected);
    world.run_until(|client| client.is_reset);
    let lines = told(&mut world);
    let line = "file changed while it was being sent, connection reset: /0; to replace a file";
    assert!(lines[0].starts_with(line), "{lines:?}");
}

#[test]
fn a_client_refused_for_lack_of_room_is_logged() {
    let mut world = World::connected(Setup::default());
    for _ in 1..CONNECTIONS_MAX {
        world.reconnect();
    }
    assert_eq!(told(&mut world), [""; 0]);
    world.client.source_port += 1;
    world.client.send_flags(world.now, TcpFlags::SYN, b"");
    world.settle();
    let peer = format!("{CLIENT}:{}", world.client.source_port);
    let line = format!("connection refused, connections_max are open: {peer}");
    assert_eq!(told(&mut world), [line]);
}

/// A link that loses every frame.
struct Losing;

impl Link for Losing {
    fn capabilities(&self) -> Capabilities {
        Gone.capabilities()
    }

    fn receive(
        &mut self,
        _now: Instant,
        _frames_max: usize,
        _sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, LinkError> {
        Ok(0)
    }

    fn transmit(
        &mut self,
        _now: Instant,
        _frame: &Outgoing<'_>,
    ) -> Result<link::Sent, TransmitError> {
        Err(TransmitError::Lost(libc::ENETDOWN))
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[test]
fn lost_frames_are_logged_with_the_errno() {
    let setup = Setup::default();
    let (disk, conductor) = (
        SimDisk::new(setup.disk),
        conductor(
            Losing.capabilities(),
            super::CONNECTIONS_MAX,
            SLOTS as usize,
        ),
    );
    let mut worker = Worker::new(Losing, disk, store(&setup), conductor, arena(), None);
    // It announces its address.
    worker.step(Instant::ZERO).unwrap();
    let Warning { text, .. } = worker.poll_warning(Instant::ZERO).expect("a line");
    let line = "frame lost, the kernel refused it: Network is down (os error 100)";
    assert_eq!(text, line);
    assert_eq!(worker.poll_warning(Instant::ZERO), None);
}
