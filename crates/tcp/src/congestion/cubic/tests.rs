//! CUBIC against the figures of RFC 9438.

use clock::{Duration, Instant};

use super::{AckEvent, Controller as _, Cubic, WINDOW_BYTES_MAX, cube_root};
use crate::stream::StreamOffset;

const SEGMENT: u16 = 1000;
const RTT: Duration = Duration::from_millis(100);

/// An ACK of `bytes` with the window in use.
fn ack(cubic: &mut Cubic, now: Instant, bytes: u64, rtt: Duration) {
    cubic.on_ack(&AckEvent {
        now,
        bytes,
        outstanding_bytes_max: cubic.window(),
        rtt,
        sample: None,
        acknowledged: StreamOffset::ZERO,
        sent: StreamOffset::ZERO,
    });
}

#[test]
fn cube_root_is_exact_on_both_sides_of_a_cube() {
    for root in [0u64, 1, 2, 10, 1234, 2_642_245] {
        assert_eq!(cube_root(root.pow(3)), root);
        if root > 1 {
            assert_eq!(cube_root(root.pow(3) - 1), root - 1);
        }
    }
    assert_eq!(cube_root(u64::MAX), 2_642_245);
}

#[test]
fn starts_with_ten_segments_and_doubles_each_round() {
    let mut cubic = Cubic::new(SEGMENT);
    assert_eq!(cubic.window(), 10_000);
    assert!(cubic.window.is_slow_start());
    ack(&mut cubic, Instant::ZERO, 10_000, RTT);
    assert_eq!(cubic.window(), 20_000);
}

#[test]
fn a_loss_sets_the_threshold_to_seven_tenths() {
    let mut cubic = Cubic::new(SEGMENT);
    cubic.force_window(100_000);
    cubic.on_loss();
    assert_eq!(cubic.threshold(), 70_000);
    // Fast convergence: a second loss below the old maximum remembers less than it had.
    cubic.force_window(70_000);
    cubic.on_loss();
    assert_eq!(cubic.threshold(), 49_000);
    assert_eq!(cubic.window_max, 59_500);
}

#[test]
fn the_threshold_never_falls_below_two_segments() {
    let mut cubic = Cubic::new(SEGMENT);
    cubic.force_window(2000);
    cubic.on_loss();
    assert_eq!(cubic.threshold(), 2000);
    cubic.on_timeout();
    assert_eq!(cubic.threshold(), 2000);
    assert_eq!(cubic.window(), 1000);
}

#[test]
fn the_window_is_back_at_its_maximum_after_k_and_beyond_it_later() {
    let mut cubic = Cubic::new(SEGMENT);
    cubic.force_window(1_000_000);
    cubic.on_loss();
    cubic.on_recovered();
    // K = cbrt(300 segments / 0.4) = 9.086 s.
    let mut now = Instant::from_millis(1);
    let rounds = |cubic: &mut Cubic, now: &mut Instant, count: u32| {
        for _ in 0..count {
            let window = cubic.window();
            ack(cubic, *now, window, RTT);
            *now += RTT;
        }
    };
    rounds(&mut cubic, &mut now, 88);
    let near_k = cubic.window();
    assert!(
        (990_000..=1_010_000).contains(&near_k),
        "at K the window is W_max, got {near_k}"
    );
    rounds(&mut cubic, &mut now, 92);
    // 9.1 s after K: 0.4 * 9.1^3 = 301 segments above.
    let later = cubic.window();
    assert!(
        (1_270_000..=1_330_000).contains(&later),
        "convex growth, got {later}"
    );
}

#[test]
fn short_round_trips_grow_by_alpha_also_above_the_window_of_the_last_loss() {
    let mut cubic = Cubic::new(SEGMENT);
    cubic.force_window(20_000);
    cubic.on_loss();
    cubic.on_recovered();
    let mut now = Instant::from_millis(1);
    for _ in 0..40 {
        let window = cubic.window();
        ack(&mut cubic, now, window, Duration::from_millis(1));
        now += Duration::from_millis(1);
    }
    // 40 ms is nothing to the cubic curve. 14,000 bytes and 40 times 9/17 of a segment: in 12 rounds the
    // window is what it was before the loss, and one segment a round from there on would make 48,000.
    let window = cubic.window();
    assert!((34_000..36_000).contains(&window), "{window}");
}

#[test]
fn the_window_has_a_greatest_size() {
    let mut cubic = Cubic::new(SEGMENT);
    for _ in 0..64 {
        let window = cubic.window();
        ack(&mut cubic, Instant::ZERO, window, RTT);
    }
    assert_eq!(cubic.window(), WINDOW_BYTES_MAX);
}

#[test]
fn idleness_halves_the_window_for_each_timeout_down_to_the_initial_one() {
    let mut cubic = Cubic::new(SEGMENT);
    cubic.force_window(5000);
    cubic.on_idle(100);
    assert_eq!(cubic.window(), 5000, "it is never raised");
    cubic.force_window(50_000);
    cubic.on_idle(0);
    assert_eq!(cubic.window(), 50_000);
    for (timeouts, window) in [(1, 25_000), (2, 12_500), (3, 10_000), (u64::MAX, 10_000)] {
        cubic.force_window(50_000);
        cubic.on_idle(timeouts);
        assert_eq!(cubic.window(), window, "after {timeouts}");
    }
}

#[test]
fn after_idleness_slow_start_leads_back_to_where_the_window_was() {
    let mut cubic = Cubic::new(SEGMENT);
    cubic.on_loss();
    cubic.force_window(80_000);
    cubic.on_idle(1);
    assert_eq!((cubic.window(), cubic.threshold()), (40_000, 60_000));
    assert!(cubic.window.is_slow_start());
}

/// RFC 5681 s3.1: ssthresh is where slow start ends, however much one ACK acknowledges.
#[test]
fn one_large_ack_does_not_carry_slow_start_past_its_threshold() {
    let after = |bytes| {
        let mut cubic = Cubic::new(SEGMENT);
        cubic.force_window(1_000_000);
        cubic.on_timeout();
        assert_eq!((cubic.window(), cubic.threshold()), (1000, 700_000));
        ack(&mut cubic, Instant::from_millis(1), bytes, RTT);
        (cubic.window(), cubic.window.is_slow_start())
    };
    assert_eq!(after(698_999), (699_999, true));
    assert_eq!(after(699_000), (700_000, false));
    let (window, _) = after(1_000_000);
    // The curve's first step towards 1 000 000, which is K = 9 s away.
    assert!((700_001..=710_000).contains(&window), "{window}");
}

/// RFC 9438 s5.8: a pause in which the window is not in use leaves the curve where it was.
#[test]
fn time_in_which_the_window_is_not_in_use_does_not_count() {
    let windows = |pause: Duration| {
        let mut cubic = Cubic::new(SEGMENT);
        cubic.force_window(200_000);
        cubic.on_loss();
        cubic.on_recovered();
        let mut now = Instant::from_millis(1);
        let mut windows = Vec::new();
        for round in 0..40 {
            let window = cubic.window();
            for _ in 0..10 {
                ack(&mut cubic, now, window / 10, RTT);
            }
            windows.push(cubic.window());
            if round == 20 && !pause.is_zero() {
                cubic.on_application_limited();
                now += pause;
                cubic.on_application_limited();
            }
            // The first round after a pause begins a round trip later in neither case.
            let is_next_at_once = round == 20;
            now += if is_next_at_once { Duration::ZERO } else { RTT };
        }
        windows
    };
    let expected = windows(Duration::ZERO);
    assert_eq!(windows(Duration::from_secs(60)), expected);
    assert!(expected.windows(2).all(|pair| pair[1] < pair[0] * 11 / 10));
}
