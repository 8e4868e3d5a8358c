//! The worker, one round at a time.

mod misses;
mod objects;
mod overload;
mod strays;
mod tls;
mod warnings;

use std::os::fd::BorrowedFd;

use clock::{Duration, Instant, UnixTime};
use diskmap::sim::{SimChange, SimConfig as DiskConfig, SimContent, SimDisk};
use link::sim::SimConfig as LinkConfig;
use link::{Capabilities, Link, LinkError, Received, TransmitError};

use wire::{Outgoing, TcpFlags};

use super::{RECEIVE_FRAMES_MAX, Worker, WorkerError};
use crate::testing::{
    CLIENT_MAC, CONNECTIONS_MAX, DISK_LATENCY, FILE_BYTES, MODIFIED, Reads as _, SLOTS, Setup,
    World, arena, bytes, conductor, content, store,
};

#[test]
fn an_idle_worker_reports_no_progress() {
    let mut world = World::new(Setup::default());
    let step = world.step();
    assert!(!step.progressed && !step.blocked_on_link);
    assert_eq!(step.next_timeout, None);
    let (rounds, empty) = ("server_step_rounds", "server_empty_rounds");
    let (before, empty_before) = (world.counter(rounds), world.counter(empty));
    world.step();
    assert_eq!(world.counter(rounds), before + 1);
    assert_eq!(world.counter(empty), empty_before + 1);
}

#[test]
fn a_request_becomes_reads_in_the_round_it_arrives() {
    let mut world = World::connected(Setup::default());
    world.ask(0);
    assert!(world.step().progressed);
    assert!(world.worker.disk().in_flight_reads() > 0);
}

#[test]
fn a_completion_leaves_in_the_round_it_is_reaped() {
    let mut world = World::connected(Setup::default());
    world.ask(0);
    world.settle();
    let before = world.counter("link_transmitted_frames");
    world.now += DISK_LATENCY;
    assert!(world.step().progressed);
    assert!(world.counter("link_transmitted_frames") > before);
}

#[test]
fn an_acknowledgment_becomes_reads_in_the_round_it_arrives() {
    let mut world = World::connected(Setup::default());
    world.ask(0);
    world.settle();
    world.now += DISK_LATENCY;
    world.settle();
    assert_eq!(
        world.worker.disk().in_flight_reads(),
        0,
        "credit is used up"
    );
    world.client.receive(world.now);
    assert!(world.step().progressed);
    assert!(world.worker.disk().in_flight_reads() > 0);
}

#[test]
fn a_file_comes_whole_and_leaves_nothing_behind() {
    let mut world = World::connected(Setup::default());
    world.fetch(0);
    world.fetch(0);
    world.assert_quiet();
    assert_eq!(world.counter("store_opened_objects"), 1);
    assert_eq!(world.counter("store_shared_lookups"), 1);
}

#[test]
fn a_round_receives_no_more_than_its_bound() {
    let mut world = World::new(Setup::default());
    let before = world.counter("link_received_frames");
    for _ in 0..RECEIVE_FRAMES_MAX + 1 {
        // Segments for no connection: each is received and refused.
        world.client.send_flags(world.now, TcpFlags::RST, b"");
    }
    let bound = u64::try_from(RECEIVE_FRAMES_MAX).unwrap();
    assert!(world.step().progressed);
    assert_eq!(world.counter("link_received_frames"), before + bound);
    assert!(world.step().progressed);
    assert_eq!(world.counter("link_received_frames"), before + bound + 1);
    assert!(!world.step().progressed);
}

#[test]
fn received_frames_are_handled_before_due_timers() {
    // A connection that asks for nothing is closed in the end; not if its request waits unread.
    for (request, closed) in [
        (&b""[..], 1),
        (&b"GET /f0 HTTP/1.1\r\nHost: a\r\n\r\n"[..], 0),
    ] {
        let mut world = World::connected(Setup::default());
        world.now = world.worker.conductor().poll_timeout().expect("a timer");
        world.client.send_flags(world.now, TcpFlags::ACK, request);
        world.step();
        assert_eq!(world.counter("http_idle_close_count"), closed);
    }
}

#[test]
fn a_full_link_is_tried_again_in_time() {
    let link = LinkConfig {
        transmit_bits_per_second: 1_000_000_000,
        transmit_queue_frames_max: 1,
        ..LinkConfig::default()
    };
    let mut world = World::connected(Setup {
        link,
        ..Setup::default()
    });
    world.fetch(0);
    world.assert_quiet();
    assert!(world.counter("server_blocked_rounds") > 0);
    assert!(world.counter("link_full_frames") > 0);
}

impl World {
    /// Slots in use.
    fn slots_in_use(&self) -> usize {
        let arena = self.worker.arena();
        arena.slot_count() - arena.free_count()
    }

    /// Lets time pass until the client has `bytes` in all, or for so long: the most slots that were in use.
    fn most_slots_in_use(&mut self, bytes: usize, time: Duration) -> usize {
        let (end, mut most) = (self.now + time, 0);
        while self.client.received.len() < bytes && self.now < end {
            let step = self.settle();
            most = most.max(self.slots_in_use());
            self.client.receive(self.now);
            let events = [
                step.next_timeout,
                self.worker.disk().next_event(),
                self.worker.link().next_event(),
            ];
            let next = events.into_iter().flatten().min().unwrap_or(end);
            self.now = next.max(self.now + Duration::from_nanos(1));
        }
        most
    }
}

#[test]
fn a_full_link_is_no_reason_to_read_more() {
    let mut world = World::connected(Setup {
        link: LinkConfig {
            // 64 KiB take 13 ms.
            transmit_bits_per_second: 40_000_000,
            transmit_queue_frames_max: 1,
            ..LinkConfig::default()
        },
        ..Setup::default()
    });
    // Opens the window for all of the file.
    world.fetch(0);
    world.worker.slots.set_limit(2);
    let all = world.client.received.len() * 2;
    world.ask(0);
    let most = world.most_slots_in_use(all, Duration::from_secs(10));
    assert_eq!((world.client.received.len(), most), (all, 2));
    assert!(world.counter("link_full_frames") > 0);
    world.settle();
    world.assert_quiet();
}

#[test]
fn a_device_that_keeps_slots_is_no_reason_to_read_more() {
    let mut world = World::connected(Setup {
        link: LinkConfig {
            borrows_slots: true,
            ..LinkConfig::default()
        },
        ..Setup::default()
    });
    world.fetch(0);
    world.worker.slots.set_limit(1);
    let now = world.now;
    world.worker.link_mut().set_stopped(now, true);
    let all = world.client.received.len() * 2;
    world.ask(0);
    // Less than a retransmission timeout.
    let most = world.most_slots_in_use(all, Duration::from_millis(100));
    assert_eq!(most, 1);
    assert_eq!(world.counter("memory_limit_slots"), 1);
    let now = world.now;
    world.worker.link_mut().set_stopped(now, false);
    world.receive(all);
    world.assert_quiet();
}

#[test]
fn the_time_of_loans_is_counted() {
    let link = LinkConfig {
        borrows_slots: true,
        device_delay: Duration::from_millis(2),
        ..LinkConfig::default()
    };
    let mut world = World::connected(Setup {
        link,
        ..Setup::default()
    });
    world.fetch(0);
    let frames = world.counter("link_lent_frames");
    assert!(frames > 0);
    assert_eq!(world.counter("server_lent_slots_us"), 2_000 * frames);
    assert_eq!(world.counter("memory_lent_slots"), 0);
    world.assert_quiet();
}

#[test]
fn a_full_disk_queue_delays_reads_and_loses_none() {
    let disk = DiskConfig {
        queue_depth: 1,
        read_bytes_max: 4_096,
        ..Setup::default().disk
    };
    let mut world = World::connected(Setup {
        disk,
        ..Setup::default()
    });
    world.fetch(0);
    world.assert_quiet();
    assert!(world.counter("disk_queue_full_commands") > 0);
}

#[test]
fn a_disk_that_hangs_delays_reads_of_its_own_files_only() {
    let disk = DiskConfig {
        queue_depth: 2,
        ..Setup::default().disk
    };
    let mut world = World::connected(Setup {
        disk,
        files: 2,
        devices: 2,
        ..Setup::default()
    });
    // Both devices are known from here on.
    world.fetch(0);
    world.fetch(1);
    let capped = world.counter("session_device_capped_count");
    let now = world.now;
    world.worker.disk_mut().set_hung(now, 0, true);
    // The disk that hangs has a place for one read; the first client has a window for several.
    for _ in 0..3 {
        world.ask(0);
        world.settle();
        world.reconnect();
    }
    assert_eq!(world.worker.disk().in_flight_reads(), 1);
    assert_eq!(world.counter("session_device_capped_count"), capped + 3);
    world.fetch(1);
    assert_eq!(world.worker.disk().in_flight_reads(), 1);
    let reads = world.counter("session_read_count");
    let now = world.now;
    world.worker.disk_mut().set_hung(now, 0, false);
    world.fetch(0);
    assert!(world.counter("session_read_count") > reads + 3);
    world.assert_quiet();
}

#[test]
fn reads_that_are_held_back_begin_when_nothing_completes_for_a_while() {
    let mut world = World::connected(Setup {
        files: 2,
        devices: 2,
        ..Setup::default()
    });
    world.fetch(0);
    world.fetch(1);
    assert_eq!(world.counter("server_held_rounds"), 0);
    world.worker.slots.set_limit(1);
    let now = world.now;
    world.worker.disk_mut().set_hung(now, 0, true);
    world.ask(0);
    world.settle();
    assert_eq!(world.worker.disk().in_flight_reads(), 1);
    world.reconnect();
    world.ask(1);
    let step = world.settle();
    assert_eq!(
        world.worker.disk().in_flight_reads(),
        1,
        "the other is held back"
    );
    assert!(world.counter("server_held_rounds") > 0);
    let rises = step.next_timeout.expect("a held read has a time");
    assert!(rises <= world.now + Duration::from_millis(1));
    let before = world.client.received.len();
    world.receive(before + 1);
    let now = world.now;
    world.worker.disk_mut().set_hung(now, 0, false);
    world.reconnect();
    world.fetch(1);
    world.assert_quiet();
}

#[test]
fn late_answers_reach_their_look_ups() {
    let mut world = World::connected(Setup {
        answers_later: true,
        files: 3,
        ..Setup::default()
    });
    for file in [0, 1, 2, 0] {
        world.fetch(file);
    }
    world.assert_quiet();
}

/// What is written after the store has looked may be dated in the same second, however late the answer.
#[test]
fn a_file_is_as_old_as_it_was_when_the_store_was_asked() {
    let at = |after, nanos| UnixTime {
        seconds: MODIFIED.seconds + after,
        nanos,
    };
    for answers_later in [false, true] {
        let mut world = World::connected(Setup {
            answers_later,
            ..Setup::default()
        });
        for (asked, is_weak) in [(at(1, 6), true), (at(1, 7), false)] {
            world.client.received.clear();
            world.worker.set_unix_time(asked);
            let request = b"HEAD /0 HTTP/1.1\r\nHost: a\r\n\r\n";
            (world.client).send_flags(world.now, TcpFlags::ACK, request);
            world.step();
            world.worker.set_unix_time(at(60, 0));
            world.receive(1);
            let head = String::from_utf8_lossy(&world.client.received);
            assert_eq!(head.contains("ETag: W/"), is_weak, "{head}");
            assert_eq!(head.contains("Last-Modified: "), !is_weak, "{head}");
        }
    }
}

#[test]
fn objects_beyond_the_disks_table_are_refused_and_forgotten() {
    let disk = DiskConfig {
        files_max: 1,
        ..Setup::default().disk
    };
    let mut world = World::connected(Setup {
        disk,
        files: 2,
        ..Setup::default()
    });
    world.fetch(0);
    let before = world.client.received.len();
    world.ask(1);
    world.receive(before + 1);
    let reply = String::from_utf8_lossy(&world.client.received[before..]);
    assert!(reply.starts_with("HTTP/1.1 503"), "{reply}");
    world.assert_quiet();
    assert_eq!(
        world.counter("store_closed_objects"),
        1,
        "the one that was not opened"
    );
}

#[test]
fn a_changed_file_is_opened_anew_for_the_next_request() {
    for answers_later in [false, true] {
        let mut world = World::connected(Setup {
            answers_later,
            ..Setup::default()
        });
        world.fetch(0);
        let other = SimContent::Pattern {
            seed: 99,
            size_bytes: FILE_BYTES,
        };
        let disk = world.worker.disk_mut();
        disk.change_file(0, other.clone(), SimChange::Detected);
        // Its status tells nothing: the first read does, before anything of the reply was sent.
        world.fetch_as(0, &other);
        assert!(world.counter("disk_changed_commands") > 0);
        assert_eq!(world.counter("session_reply_anew_count"), 1);
        assert_eq!(world.worker.poll_warning(world.now), None);
        assert_eq!(world.counter("store_opened_objects"), 2);
        assert_eq!(world.counter("store_closed_objects"), 1);
        world.assert_quiet();
    }
}

#[test]
fn an_object_appended_to_is_sent_to_the_length_that_it_had() {
    let mut world = World::connected(Setup::default());
    world.fetch(0);
    let longer = SimContent::Pattern {
        seed: 0,
        size_bytes: FILE_BYTES + 100_000,
    };
    let disk = world.worker.disk_mut();
    disk.change_file(0, longer, SimChange::Verified);
    world.fetch(0);
    assert_eq!(world.counter("store_opened_objects"), 1);
    world.assert_quiet();
}

#[test]
fn each_counter_has_one_value() {
    let world = World::new(tls::with_tls());
    let mut names: Vec<&str> = world
        .worker
        .counters()
        .iter()
        .map(|(name, _)| *name)
        .collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

/// A link whose interface was removed.
struct Gone;

impl Link for Gone {
    fn capabilities(&self) -> Capabilities {
        let segmentation_bytes_max = 0;
        let mac = CLIENT_MAC;
        Capabilities {
            mac,
            mtu_bytes: 1_500,
            segmentation_bytes_max,
            checksum_offload: false,
        }
    }

    fn receive(
        &mut self,
        _now: Instant,
        _frames_max: usize,
        _sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, LinkError> {
        Err(LinkError::Gone(libc::ENODEV))
    }

    fn transmit(
        &mut self,
        _now: Instant,
        _frame: &Outgoing<'_>,
    ) -> Result<link::Sent, TransmitError> {
        Err(TransmitError::Lost(libc::ENODEV))
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[test]
fn a_removed_interface_ends_the_worker() {
    let setup = Setup::default();
    let conductor = conductor(Gone.capabilities(), CONNECTIONS_MAX, SLOTS as usize);
    let mut worker = Worker::new(
        Gone,
        SimDisk::new(setup.disk),
        store(&setup),
        conductor,
        arena(),
        None,
    );
    let outcome = worker.step(Instant::ZERO);
    assert_eq!(
        outcome,
        Err(WorkerError::Link(LinkError::Gone(libc::ENODEV)))
    );
}
