//! What is reported of a connection.

use clock::Duration;

use super::super::{CongestionState, Limit, State};
use super::{
    Config, Driver, INITIAL_WINDOW, MSS, PEER, PEER_WITHOUT_SACK, Peer, RTO, START, ack, millis,
    range,
};

impl Driver {
    fn limit(&self) -> Limit {
        self.connection.info(self.now).limit
    }

    /// Acknowledges everything sent, and names the limit of what is left.
    fn limit_with(peer: Peer, bytes: u64) -> Limit {
        Self::sending(peer, bytes).limit()
    }
}

#[test]
fn a_window_is_the_limit_when_it_is_the_smaller_one() {
    let window = |window| Peer { window, ..PEER };
    assert_eq!(
        Driver::limit_with(window(10_000), 50_000),
        Limit::CongestionWindow
    );
    assert_eq!(Driver::limit_with(window(9_000), 50_000), Limit::PeerWindow);
    assert_eq!(Driver::limit_with(window(0), 50_000), Limit::PeerWindow);
    // Everything was sent.
    assert_eq!(
        Driver::limit_with(PEER, INITIAL_WINDOW),
        Limit::NothingToSend
    );
    assert_eq!(
        Driver::limit_with(PEER, INITIAL_WINDOW + 1),
        Limit::CongestionWindow
    );
    assert_eq!(Driver::new().limit(), Limit::NothingToSend);
}

#[test]
fn a_window_too_small_to_be_used_is_the_limit_though_nothing_is_in_flight() {
    let limit_with = |window| {
        let mut driver = Driver::sending(PEER, 50_000);
        driver.accept(ack(10_000).window(window));
        driver.limit()
    };
    // Half of the largest window and a segment are more; so this is the least that is used.
    assert_eq!(limit_with(999), Limit::PeerWindow);
    assert_eq!(limit_with(1000), Limit::Application);
}

#[test]
fn the_disk_is_the_limit_while_at_least_half_is_being_read() {
    let mut driver = Driver::new();
    driver.append(50_000);
    assert_eq!(driver.limit(), Limit::Application);
    let claimed = driver.claim();
    assert_eq!(claimed, range(0, INITIAL_WINDOW));
    assert_eq!(driver.limit(), Limit::Disk);
    driver.transmit(range(0, 5 * MSS));
    assert_eq!(driver.limit(), Limit::Disk);
    driver.transmit(range(5 * MSS, 5 * MSS + 1));
    assert_eq!(driver.limit(), Limit::CongestionWindow);
}

#[test]
fn the_application_is_the_limit_while_more_than_half_of_the_window_is_unused() {
    let mut driver = Driver::sending(PEER, 5 * MSS);
    driver.append(50_000);
    // What is queued is permitted, and nobody claims it.
    assert_eq!(driver.limit(), Limit::CongestionWindow);
    let mut driver = Driver::sending(PEER, 5 * MSS - 1);
    driver.append(50_000);
    assert_eq!(driver.limit(), Limit::Application);
    // All that is left fits into both windows.
    let mut driver = Driver::sending(PEER, 6 * MSS);
    driver.append(MSS);
    assert_eq!(driver.limit(), Limit::Application);
}

#[test]
fn pacing_is_the_limit_until_its_schedule_permits_more() {
    let mut driver = Driver::configured(PEER, Config::default());
    driver.append(50_000);
    let _ = driver.flush();
    assert_eq!(driver.limit(), Limit::CongestionWindow);
    driver.pass(millis(1)).accept(ack(1000));
    let due = driver.connection.pacing_waits_until(driver.now);
    let due = due.expect("it is paced");
    assert_eq!(driver.limit(), Limit::Pacing);
    // It is permitted, and nobody claims it.
    driver.at(due);
    assert_eq!(driver.limit(), Limit::CongestionWindow);
}

#[test]
fn the_times_of_all_limits_add_up_to_the_age_of_the_connection() {
    let mut driver = Driver::new();
    driver.connection.count_limit(driver.now);
    driver.pass(millis(40)).append(50_000);
    driver.connection.count_limit(driver.now);
    driver.pass(millis(3));
    let _ = driver.flush();
    driver.connection.count_limit(driver.now);
    driver.pass(millis(100));
    let info = driver.connection.info(driver.now);
    let time = |limit: Limit| info.limit_times[limit as usize];
    assert_eq!(time(Limit::NothingToSend), millis(40));
    assert_eq!(time(Limit::Application), millis(3));
    assert_eq!(time(Limit::CongestionWindow), millis(100));
    assert_eq!(
        info.limit_times.iter().sum::<Duration>(),
        info.since_established
    );
    assert_eq!(info.since_established, millis(143));
    // It did not change in between.
    driver.connection.count_limit(driver.now);
    assert_eq!(driver.connection.info(driver.now), info);
}

#[test]
fn bytes_and_times_are_those_of_the_connection() {
    let mut driver = Driver::sending(PEER, 50_000);
    driver.pass(millis(100)).accept(ack(2000).sack(4000, 5000));
    let info = driver.connection.info(driver.now);
    assert_eq!(
        (info.state, info.congestion_state),
        (State::Established, CongestionState::Disorder)
    );
    assert_eq!((info.acknowledged_bytes, info.sent_bytes), (2000, 10_000));
    assert_eq!(
        (
            info.unacknowledged_bytes,
            info.sacked_bytes,
            info.in_flight_bytes
        ),
        (8000, 1000, 7000)
    );
    assert_eq!(
        (info.unsent_bytes, info.reading_bytes, info.lost_bytes),
        (40_000, 0, 0)
    );
    assert_eq!(info.congestion_window_bytes, driver.window());
    assert_eq!(
        (info.threshold_bytes, info.peer_window_bytes),
        (None, 60_000)
    );
    assert_eq!(
        (info.smoothed_rtt, info.minimum_rtt),
        (Some(millis(100)), Some(millis(100)))
    );
    // That of the first sample, until a round trip has ended.
    assert_eq!((info.rtt_variation, info.backoff), (millis(50), 0));
    assert!(info.has_sack && !info.has_timestamps);
    assert_eq!(u64::from(info.segment_bytes), MSS);
    assert_eq!(info.pacing_bytes_per_second, None);
    driver.pass(millis(7));
    let info = driver.connection.info(driver.now);
    assert_eq!(
        (info.since_received, info.since_progress),
        (millis(7), millis(7))
    );
    assert_eq!(
        (info.since_sent, info.since_established),
        (millis(107), millis(107))
    );
}

#[test]
fn retransmissions_are_counted_and_the_timer_tells_its_backoff() {
    let mut driver = Driver::sending(PEER_WITHOUT_SACK, 3 * MSS);
    assert_eq!(driver.wait(), RTO);
    let _ = driver.fire();
    let _ = driver.flush();
    let info = driver.connection.info(driver.now);
    assert_eq!(info.congestion_state, CongestionState::Loss);
    assert_eq!((info.backoff, info.timeouts), (1, 1));
    assert_eq!(info.retransmission_timeout, 2 * RTO);
    assert_eq!(
        (info.retransmitted_bytes, info.retransmitted_segments),
        (MSS, 1)
    );
    assert_eq!((info.lost_bytes, info.in_flight_bytes), (2 * MSS, MSS));
    let lost: Vec<_> = driver.connection.lost_ranges().collect();
    assert_eq!(lost, [range(MSS, 3 * MSS)]);
    // CUBIC: 0.7 of the window.
    assert_eq!(info.threshold_bytes, Some(7 * MSS));
    assert_eq!(driver.now.since(START), RTO);
}
