//! BBR over a bottleneck: its course through the states, what it carries, how much it queues, how two
//! flows share. And the disk, which limits samples where it is late.

mod path;

use clock::Duration;

use self::path::{Path, World};
use super::millis;
use crate::congestion::CongestionControl;
use crate::connection::Permission;

/// 10 Mb/s and 40 ms: a BDP of 50 000 bytes.
const PATH: Path = Path {
    rate: 1_250_000,
    buffer: 500_000,
    rtt: Duration::from_millis(40),
    loses_every: 0,
    disk: Duration::ZERO,
};
const BDP: u64 = 50_000;
/// Payload of a packet on this path, percent of the packet.
const PAYLOAD_PERCENT: u64 = 96;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A world whose flows have more to send than they ever will.
fn world(path: Path, congestion: CongestionControl, starts: &[Duration]) -> World {
    let mut world = World::new(path, congestion, starts);
    for flow in &mut world.flows {
        flow.driver.append(1 << 32);
    }
    world
}

fn bbr(path: Path) -> World {
    world(path, CongestionControl::Bbr, &[Duration::ZERO])
}

/// Percent of the path's rate that the flow `index` receives in the next seconds.
fn goodput(world: &mut World, index: usize, seconds: u64) -> u64 {
    let before = world.flows[index].received;
    world.run(secs(seconds), |_| {});
    let bytes = world.flows[index].received - before;
    let possible = world.path.rate * PAYLOAD_PERCENT / 100 * seconds;
    bytes * 100 / possible
}

/// Mean bytes in the bottleneck's queue when a packet comes.
fn mean_queue(world: &mut World, seconds: u64) -> u64 {
    world.queued = (0, 0);
    world.run(secs(seconds), |_| {});
    world.queued.0 / world.queued.1.max(1)
}

#[test]
fn a_flow_goes_through_all_states_in_their_order() {
    let mut world = bbr(PATH);
    let mut course: Vec<String> = Vec::new();
    world.run(secs(12), |world| {
        let state = world.flows[0].driver.connection.congestion.bbr().0;
        if course.last() != Some(&state) {
            course.push(state);
        }
    });
    assert_eq!(course[..2], ["Startup", "Drain"]);
    let cycle = ["Cruise", "Refill", "Up", "Down", "Cruise"];
    assert!(
        course.windows(5).any(|states| states == cycle),
        "{course:?}"
    );
    assert!(
        course.windows(2).any(|two| two == ["ProbeRtt", "Cruise"]),
        "{course:?}"
    );
}

#[test]
fn a_flow_uses_the_path_and_queues_little_of_a_large_buffer() {
    let mut world = bbr(PATH);
    world.run(secs(3), |_| {});
    let carried = goodput(&mut world, 0, 10);
    assert!(carried >= 90, "{carried} %");
    assert_eq!(world.dropped, 0);
    let queue = mean_queue(&mut world, 10);
    assert!(queue < BDP, "{queue} bytes of ten times the BDP");
    let mut loss_based = self::world(PATH, CongestionControl::Reno, &[Duration::ZERO]);
    loss_based.run(secs(13), |_| {});
    let reno = mean_queue(&mut loss_based, 10);
    assert!(reno > 2 * queue, "Reno queues {reno}, BBR {queue}");
}

#[test]
fn losses_below_2_percent_cost_little() {
    for (loses_every, least) in [(1000, 90), (100, 80)] {
        let mut world = bbr(Path {
            loses_every,
            ..PATH
        });
        world.run(secs(3), |_| {});
        let carried = goodput(&mut world, 0, 20);
        assert!(carried >= least, "one of {loses_every}: {carried} %");
    }
}

#[test]
fn two_flows_share_within_a_factor_of_two() {
    let starts = [Duration::ZERO, secs(5)];
    let mut world = world(PATH, CongestionControl::Bbr, &starts);
    world.run(secs(25), |_| {});
    let before = [world.flows[0].received, world.flows[1].received];
    world.run(secs(30), |_| {});
    let carried = [0, 1].map(|index| world.flows[index].received - before[index]);
    let share = carried[1] * 100 / (carried[0] + carried[1]);
    assert!((33..=67).contains(&share), "{share} %");
    let all = (carried[0] + carried[1]) * 100 / (world.path.rate * 30);
    assert!(all >= 85, "{all} % together");
}

#[test]
fn a_path_that_becomes_slower_is_learned_within_two_cycles() {
    let mut world = bbr(PATH);
    world.run(secs(5), |_| {});
    world.path.rate /= 4;
    world.run(secs(12), |_| {});
    let known = world.flows[0].driver.connection.congestion.bbr().1;
    let rate = world.path.rate;
    assert!(known <= rate * 5 / 4, "{known} of {rate}");
    let carried = goodput(&mut world, 0, 10);
    assert!(carried >= 80, "{carried} %");
}

#[test]
fn a_path_that_becomes_faster_is_used() {
    let mut world = bbr(PATH);
    world.run(secs(5), |_| {});
    world.path.rate *= 4;
    world.run(secs(12), |_| {});
    let carried = goodput(&mut world, 0, 5);
    assert!(carried >= 80, "{carried} %");
}

/// Reads that take the same time each, less than a round trip, change no rate.
#[test]
fn a_disk_with_an_even_delay_does_not_reduce_the_rate() {
    let mut world = bbr(Path {
        disk: millis(5),
        ..PATH
    });
    world.run(secs(3), |_| {});
    let carried = goodput(&mut world, 0, 10);
    assert!(carried >= 90, "{carried} %");
}

/// A disk that hangs empties the path. What is measured then is the disk's rate, and must not be
/// taken for the path's.
#[test]
fn the_bandwidth_is_not_that_of_a_disk_that_is_late() {
    let mut world = bbr(PATH);
    world.run(secs(5), |_| {});
    let bandwidth = |world: &World| world.flows[0].driver.connection.congestion.bbr().1;
    let before = bandwidth(&world);
    world.path.disk = millis(400);
    world.run(secs(20), |_| {});
    let carried = goodput(&mut world, 0, 5);
    assert!(carried < 50, "the disk is the limit: {carried} %");
    let late = bandwidth(&world);
    assert!(late * 10 >= before * 9, "{before}, with the disk {late}");
    world.path.disk = Duration::ZERO;
    world.run(secs(1), |_| {});
    let carried = goodput(&mut world, 0, 5);
    assert!(carried >= 85, "{carried} %");
}

/// The session had no slot for a while, or many turns before this one: the time counts from when it is demanded.
#[test]
fn what_was_not_claimed_when_it_was_demanded_was_late_when_it_is_sent() {
    for (is_demanded, ends, is_limited) in [
        (false, false, false),
        (true, false, true),
        (true, true, false),
    ] {
        let mut world = bbr(PATH);
        world.run(secs(4), |_| {});
        let connection = &mut world.flows[0].driver.connection;
        if is_demanded {
            connection.on_permission(world.now, Permission::Now);
        }
        if ends {
            connection.on_permission(world.now, Permission::Nothing);
        }
        world.hangs_until = world.now + millis(100);
        world.run(millis(101), |_| {});
        let connection = &world.flows[0].driver.connection;
        assert_eq!(
            connection.delivery_rate.as_ref().map(|it| it.is_limited()),
            Some(is_limited)
        );
    }
}

#[test]
fn after_an_idle_time_the_path_is_in_use_within_two_round_trips() {
    let mut world = World::new(PATH, CongestionControl::Bbr, &[Duration::ZERO]);
    world.flows[0].driver.append(5_000_000);
    world.run(secs(30), |_| {});
    assert_eq!(world.flows[0].received, 5_000_000);
    world.flows[0].driver.append(1 << 30);
    world.run(millis(80), |_| {});
    let before = world.flows[0].received;
    world.run(secs(1), |_| {});
    let carried = (world.flows[0].received - before) * 100 / world.path.rate;
    assert!(carried >= 80, "{carried} %");
}
