//! What CUBIC and Reno have in common, and Reno's figures. CUBIC's are in `cubic/tests.rs`, BBR's in
//! `bbr/tests.rs`.

use clock::{Duration, Instant};

use super::{AckEvent, Congestion, CongestionControl, Controller as _, Start, WINDOW_BYTES_MAX};
use crate::stream::StreamOffset;

const SEGMENT: u16 = 1000;

/// An ACK of `bytes` with the window in use.
fn ack(congestion: &mut Congestion, bytes: u64) {
    ack_with(congestion, bytes, congestion.window());
}

fn ack_with(congestion: &mut Congestion, bytes: u64, outstanding_bytes_max: u64) {
    congestion.on_ack(&AckEvent {
        now: Instant::from_millis(1),
        bytes,
        outstanding_bytes_max,
        rtt: Duration::from_millis(100),
        sample: None,
        acknowledged: StreamOffset::ZERO,
        sent: StreamOffset::ZERO,
    });
}

/// Those whose window a loss reduces.
const BY_LOSS: [CongestionControl; 2] = [CongestionControl::Cubic, CongestionControl::Reno];

fn new(algorithm: CongestionControl, segment_bytes: u16) -> Congestion {
    let start = Start {
        segment_bytes,
        has_sack: true,
        seed: 1,
    };
    Congestion::new(algorithm, start)
}

fn each() -> impl Iterator<Item = (CongestionControl, Congestion)> {
    BY_LOSS
        .into_iter()
        .map(|algorithm| (algorithm, new(algorithm, SEGMENT)))
}

/// A controller whose last loss left it with this window.
fn avoiding(algorithm: CongestionControl, window: u64) -> Congestion {
    let mut congestion = new(algorithm, SEGMENT);
    congestion.force_window(window);
    congestion.on_loss();
    congestion.force_window(congestion.threshold());
    congestion
}

#[test]
fn algorithms_are_found_by_their_names_and_by_no_other() {
    for algorithm in CongestionControl::ALL {
        assert_eq!(
            CongestionControl::from_name(algorithm.name()),
            Some(algorithm)
        );
    }
    for other in ["", "Cubic", "newreno", "bbr3"] {
        assert_eq!(CongestionControl::from_name(other), None);
    }
    assert_eq!(CongestionControl::default(), CongestionControl::Cubic);
}

#[test]
fn slow_start_begins_with_ten_segments_and_doubles_each_round_up_to_the_greatest_window() {
    for (algorithm, mut congestion) in each() {
        assert_eq!(congestion.window(), 10_000, "{algorithm:?}");
        ack(&mut congestion, 10_000);
        assert_eq!(congestion.window(), 20_000, "{algorithm:?}");
        for _ in 0..30 {
            let window = congestion.window();
            ack(&mut congestion, window);
        }
        assert_eq!(congestion.window(), WINDOW_BYTES_MAX, "{algorithm:?}");
    }
}

#[test]
fn a_window_of_which_half_is_in_use_does_not_grow() {
    for (algorithm, mut congestion) in each() {
        ack_with(&mut congestion, 1000, 5000);
        assert_eq!(congestion.window(), 10_000, "{algorithm:?}");
        ack_with(&mut congestion, 1000, 5001);
        assert_eq!(congestion.window(), 11_000, "{algorithm:?}");
    }
}

#[test]
fn a_loss_reduces_ssthresh_at_once_and_cwnd_when_it_is_repaired() {
    for (algorithm, mut congestion) in each() {
        congestion.force_window(100_000);
        congestion.on_loss();
        let reduced = match algorithm {
            CongestionControl::Cubic => 70_000,
            _ => 50_000,
        };
        let windows = (congestion.window(), congestion.threshold());
        assert_eq!(windows, (100_000, reduced), "{algorithm:?}");
        congestion.on_recovered();
        let windows = (congestion.window(), congestion.threshold());
        assert_eq!(windows, (reduced, reduced), "{algorithm:?}");
    }
}

#[test]
fn a_timeout_leaves_one_segment_and_another_one_leaves_ssthresh() {
    for (algorithm, mut congestion) in each() {
        congestion.force_window(100_000);
        congestion.on_timeout();
        let threshold = congestion.threshold();
        assert!(threshold < 100_000, "{algorithm:?}");
        assert_eq!(congestion.window(), 1000, "{algorithm:?}");
        ack(&mut congestion, 1000);
        congestion.on_timeout_again();
        let windows = (congestion.window(), congestion.threshold());
        assert_eq!(windows, (1000, threshold), "{algorithm:?}");
        congestion.on_timeout_genuine();
        assert_eq!(congestion.window(), 3000, "{algorithm:?}");
    }
}

#[test]
fn ssthresh_is_at_least_two_segments() {
    for (algorithm, mut congestion) in each() {
        congestion.force_window(1000);
        congestion.on_loss();
        assert_eq!(congestion.threshold(), 2000, "{algorithm:?}");
    }
}

#[test]
fn an_undone_timeout_leaves_the_windows_as_they_were_or_larger() {
    for (algorithm, mut congestion) in each() {
        congestion.force_window(100_000);
        let before = congestion.snapshot();
        congestion.on_timeout();
        congestion.restore(before);
        assert_eq!(congestion.snapshot(), before, "{algorithm:?}");
        congestion.on_timeout();
        congestion.force_window(200_000);
        congestion.restore(before);
        assert_eq!(congestion.window(), 200_000, "{algorithm:?}");
    }
}

#[test]
fn reno_grows_by_one_segment_for_each_window_acknowledged() {
    let mut reno = avoiding(CongestionControl::Reno, 40_000);
    assert_eq!(reno.window(), 20_000);
    ack(&mut reno, 19_999);
    assert_eq!(reno.window(), 20_000);
    ack(&mut reno, 1);
    assert_eq!(reno.window(), 21_000);
    // Bytes beyond a window are not lost.
    ack(&mut reno, 31_500);
    assert_eq!(reno.window(), 22_000);
    ack(&mut reno, 11_500);
    assert_eq!(reno.window(), 23_000);
}

#[test]
fn reno_counts_what_is_left_of_an_ack_that_ends_slow_start() {
    let mut reno = avoiding(CongestionControl::Reno, 40_000);
    reno.on_timeout_again();
    ack(&mut reno, 18_999);
    assert_eq!(reno.window(), 19_999);
    ack(&mut reno, 20_000);
    assert_eq!(reno.window(), 20_000);
    ack(&mut reno, 1);
    assert_eq!(reno.window(), 21_000);
}

#[test]
fn a_pause_halves_the_window_for_each_timeout_down_to_the_initial_one() {
    for (algorithm, mut congestion) in each() {
        for (timeouts, window) in [(0, 50_000), (1, 25_000), (2, 12_500), (3, 10_000)] {
            congestion.force_window(50_000);
            congestion.on_idle(timeouts);
            assert_eq!(congestion.window(), window, "{algorithm:?}, {timeouts}");
        }
    }
}

/// Rounds of ten ACKs with the window in use, each with this sample.
fn round(congestion: &mut Congestion, round: u64, sample: Duration) {
    let window = congestion.window();
    for part in 0..10 {
        congestion.on_ack(&AckEvent {
            now: Instant::from_millis(1),
            bytes: window / 10,
            outstanding_bytes_max: congestion.window(),
            rtt: sample,
            sample: Some(sample),
            acknowledged: StreamOffset(round * 100 + part + 1),
            sent: StreamOffset((round + 1) * 100),
        });
    }
}

#[test]
fn a_longer_round_trip_ends_the_initial_slow_start_and_no_later_one() {
    for (algorithm, mut congestion) in each() {
        round(&mut congestion, 0, Duration::from_millis(20));
        assert_eq!(congestion.window(), 20_000, "{algorithm:?}");
        // Eight samples of the second round double it nearly; the last three ACKs count a quarter.
        round(&mut congestion, 1, Duration::from_millis(40));
        assert_eq!(
            congestion.window(),
            20_000 + 7 * 2000 + 3 * 500,
            "{algorithm:?}"
        );
        for later in 2..7 {
            assert_eq!(congestion.threshold(), u64::MAX, "{algorithm:?}");
            round(&mut congestion, later, Duration::from_millis(40));
        }
        assert!(congestion.threshold() < u64::MAX, "{algorithm:?}");
        let window = congestion.window();
        assert!(
            window < 35_500 * 4,
            "{algorithm:?}: a quarter in each of five rounds"
        );
        // After a timeout there is a threshold, and slow start leads to it whatever the RTT.
        congestion.on_timeout();
        let threshold = congestion.threshold();
        for (number, sample) in [
            (20, 20),
            (21, 40),
            (22, 80),
            (23, 160),
            (24, 320),
            (25, 640),
        ] {
            round(&mut congestion, number, Duration::from_millis(sample));
            ack(&mut congestion, 1000);
        }
        assert!(congestion.window() > threshold / 2, "{algorithm:?}");
    }
}

#[test]
fn the_initial_window_is_ten_segments_or_14_600_bytes_but_two_segments() {
    for (segment, window) in [
        (536, 5360),
        (1460, 14_600),
        (1461, 14_600),
        (7300, 14_600),
        (7301, 14_602),
        (8960, 17_920),
    ] {
        for algorithm in CongestionControl::ALL {
            let congestion = new(algorithm, segment);
            assert_eq!(congestion.window(), window, "{algorithm:?} {segment}");
        }
    }
}
