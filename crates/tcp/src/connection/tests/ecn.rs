//! Explicit congestion notification (RFC 3168): what may be marked, echoes, and CWR.

use wire::{Ecn, TcpFlags};

use super::Sent::{Ack, Again, Fin, New, Probe};
use super::{Driver, MSS, PEER, Peer, ack, millis};
use crate::congestion::Controller as _;
use crate::verdict::SegmentDrop;

const ECN: Peer = Peer { ecn: true, ..PEER };

/// The segments that left since the first `skip`: their ECN field and whether they have CWR.
fn left(driver: &Driver, skip: usize) -> Vec<(Ecn, bool)> {
    let headers = driver.headers.iter().zip(&driver.framings).skip(skip);
    headers
        .map(|(header, framing)| (framing.ecn, header.flags.contains(TcpFlags::CWR)))
        .collect()
}

/// Whether the last segment has ECE.
fn echoes(driver: &Driver) -> bool {
    driver.last_header().flags.contains(TcpFlags::ECE)
}

fn threshold(driver: &Driver) -> u64 {
    driver.connection.congestion.threshold()
}

#[test]
fn new_data_is_ect_and_nothing_else_is() {
    let mut driver = Driver::with(ECN);
    driver.append(3 * MSS);
    assert_eq!(driver.flush(), [New(0, 3000)]);
    driver.accept(ack(0).text(10));
    driver.pass(millis(40)).expire();
    assert_eq!(driver.flush(), [Ack]);
    // The tail loss probe, which sends again.
    driver.fire();
    assert_eq!(driver.flush(), [Again(2000, 3000)]);
    driver.connection.finish();
    assert_eq!(driver.flush(), [Fin]);
    let fields: Vec<Ecn> = left(&driver, 0).iter().map(|it| it.0).collect();
    let (ect, plain) = (Ecn::Ect0, Ecn::NotEct);
    assert_eq!(fields, [ect, plain, plain, plain]);
}

#[test]
fn a_window_probe_is_not_ect() {
    let mut driver = Driver::with(Peer { window: 0, ..ECN });
    driver.append(MSS);
    driver.fire();
    assert_eq!(driver.flush(), [Probe]);
    assert_eq!(left(&driver, 0), [(Ecn::NotEct, false)]);
}

#[test]
fn without_agreement_nothing_is_ect_and_echoes_and_marks_mean_nothing() {
    let mut driver = Driver::sending(PEER, 50_000);
    assert_eq!(left(&driver, 0), [(Ecn::NotEct, false)]);
    let arrival = driver.receive(ack(2000).with(TcpFlags::ECE).text(10).marked());
    assert!(!arrival.reduced_by_echo);
    assert_eq!(driver.window(), 12_000, "slow start");
    driver.flush();
    assert!(!echoes(&driver));
}

/// RFC 3168 s6.1.2: as after a loss, and once for each window of data.
#[test]
fn an_echo_reduces_the_window_once_for_each_window_of_data() {
    let mut driver = Driver::sending(ECN, 100_000);
    let arrival = driver.receive(ack(2000).with(TcpFlags::ECE));
    assert!(arrival.reduced_by_echo && arrival.drop.is_none());
    assert_eq!((driver.window(), threshold(&driver)), (7000, 7000));
    assert_eq!(driver.flush(), [], "8000 are outstanding");
    let arrival = driver.receive(ack(5000).with(TcpFlags::ECE));
    assert!(!arrival.reduced_by_echo);
    assert_eq!(
        driver.window(),
        7000,
        "an ACK with ECE is no reason to grow"
    );
    // The first new data has CWR, alone in its frame.
    let before = driver.headers.len();
    assert_eq!(driver.flush(), [New(10_000, 11_000), New(11_000, 12_000)]);
    assert_eq!(
        left(&driver, before),
        [(Ecn::Ect0, true), (Ecn::Ect0, false)]
    );
    // SND.NXT was 10,000: the receiver of everything before it has no CWR yet.
    let arrival = driver.receive(ack(10_000).with(TcpFlags::ECE));
    assert!(!arrival.reduced_by_echo);
    assert_eq!(driver.flush(), [New(12_000, 17_000)]);
    let arrival = driver.receive(ack(10_001).with(TcpFlags::ECE));
    assert!(
        arrival.reduced_by_echo,
        "a mark behind the CWR, or a lost CWR"
    );
    assert_eq!(driver.window(), 4900);
}

#[test]
fn the_window_grows_again_when_the_echo_ends() {
    let mut driver = Driver::sending(ECN, 100_000);
    driver.accept(ack(2000).with(TcpFlags::ECE));
    driver.accept(ack(5000).with(TcpFlags::ECE));
    driver.flush();
    driver.accept(ack(11_000).with(TcpFlags::ECE));
    assert_eq!(driver.window(), 4900);
    let mut driver = Driver::sending(ECN, 100_000);
    driver.accept(ack(2000).with(TcpFlags::ECE));
    driver.accept(ack(5000));
    driver.flush();
    let before = driver.window();
    for end in 12..=30 {
        driver.pass(millis(100)).accept(ack(end * 1000));
        driver.flush();
    }
    assert!(driver.window() > before);
}

#[test]
fn an_echo_leaves_two_segments_at_least() {
    let mut driver = Driver::sending(ECN, 1_000_000);
    driver.connection.congestion.force_window(2 * MSS);
    driver.accept(ack(1000).with(TcpFlags::ECE));
    assert_eq!(driver.window(), 2 * MSS);
}

/// One window of data, one reduction, whether it was marked or lost.
#[test]
fn a_loss_in_the_window_of_an_echo_does_not_reduce_again() {
    let mut driver = Driver::sending(ECN, 100_000);
    driver.accept(ack(1000).with(TcpFlags::ECE));
    assert_eq!(threshold(&driver), 7000);
    driver.accept(ack(1000).sack(2000, 5000));
    assert_eq!(driver.flush()[0], Again(1000, 2000));
    assert_eq!(threshold(&driver), 7000);
    // An echo during the recovery counts for the same window, too.
    let arrival = driver.receive(ack(5000).with(TcpFlags::ECE));
    assert!(!arrival.reduced_by_echo);
}

#[test]
fn a_loss_of_data_sent_after_the_reduction_reduces_again() {
    let mut driver = Driver::sending(ECN, 100_000);
    driver.accept(ack(5000).with(TcpFlags::ECE));
    assert_eq!(driver.flush(), [New(10_000, 11_000), New(11_000, 12_000)]);
    driver.pass(millis(100)).accept(ack(10_000));
    driver.flush();
    assert_eq!(threshold(&driver), 7000);
    let window = driver.window();
    // 10,000 was SND.NXT: the first byte of the next window of data is lost.
    driver
        .pass(millis(100))
        .accept(ack(10_000).sack(11_000, 15_000));
    assert_eq!(threshold(&driver), window * 7 / 10);
}

#[test]
fn the_first_new_data_after_a_fast_retransmit_has_cwr() {
    let mut driver = Driver::sending(ECN, 100_000);
    driver.accept(ack(0).sack(1000, 4000));
    let before = driver.headers.len();
    assert_eq!(driver.flush(), [Again(0, 1000)]);
    driver.accept(ack(10_000));
    let sent = driver.flush();
    assert_eq!(sent[0], New(10_000, 11_000));
    let packets = left(&driver, before);
    assert_eq!(packets[0], (Ecn::NotEct, false));
    assert_eq!(packets[1], (Ecn::Ect0, true));
    assert!(
        packets[2..]
            .iter()
            .all(|packet| *packet == (Ecn::Ect0, false))
    );
}

#[test]
fn the_first_new_data_after_a_timeout_has_cwr_unless_it_was_spurious() {
    for is_spurious in [false, true] {
        let mut driver = Driver::sending(
            Peer {
                timestamps: true,
                ..ECN
            },
            100_000,
        );
        let first_at = driver.now;
        // The tail loss probe, and the timeout.
        driver.fire();
        driver.flush();
        driver.fire();
        let before = driver.headers.len();
        let _ = driver.flush();
        let echoed = if is_spurious { first_at } else { driver.now };
        driver.pass(millis(100)).accept(ack(11_000).echo(echoed));
        let new_from = driver.headers.len();
        let _ = driver.flush();
        assert!(
            !left(&driver, before)[..new_from - before]
                .iter()
                .any(|it| it.1)
        );
        assert_eq!(left(&driver, new_from)[0].1, !is_spurious);
    }
}

/// RFC 3168 s6.1.3: ECE from a mark until CWR.
#[test]
fn a_marked_request_is_echoed_until_cwr() {
    let mut driver = Driver::with(ECN);
    driver.accept(ack(0).text(10));
    driver.append(100);
    driver.flush();
    assert!(!echoes(&driver));
    driver.accept(ack(0).text(10).marked());
    assert_eq!(driver.flush(), [Ack], "at once");
    assert!(echoes(&driver));
    driver.append(100);
    driver.flush();
    assert!(echoes(&driver), "data, too");
    driver.accept(ack(0).text(10).with(TcpFlags::CWR));
    assert_eq!(driver.flush(), [Ack]);
    assert!(!echoes(&driver));
}

#[test]
fn a_mark_on_the_packet_with_cwr_is_echoed_again() {
    let mut driver = Driver::with(ECN);
    driver.accept(ack(0).text(10).marked());
    driver.flush();
    driver.accept(ack(0).text(10).marked().with(TcpFlags::CWR));
    driver.flush();
    assert!(echoes(&driver));
}

/// Segments without text are not ECT; a mark on one, or on a segment outside the window, was forged or
/// set in error (RFC 3168 s6.1.4, s6.1.5).
#[test]
fn marks_count_on_acceptable_text_only() {
    let mut driver = Driver::with(ECN);
    driver.accept(ack(0).marked());
    driver.expect_drop(ack(0).at(-10).text(10).marked(), SegmentDrop::OutOfWindow);
    driver.append(100);
    driver.flush();
    assert!(!echoes(&driver));
    driver.accept(ack(0).text(10).marked());
    driver.flush();
    assert!(echoes(&driver));
    driver.accept(ack(0).with(TcpFlags::CWR));
    driver.append(100);
    driver.flush();
    assert!(echoes(&driver), "CWR comes with new data");
}
