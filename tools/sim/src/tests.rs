//! The product passes, every canary is found, and a seed gives the same run twice.

use crate::scenario::{THEMES, Theme};
use crate::world::Canary;
use crate::world::frame_log::FrameLog;

/// Seeds of each of the faults of TLS.
const TLS_SEEDS: u64 = 40;
/// Seeds of each of the other tests: more is `cargo xtask sim`.
const PRODUCT_SEEDS: u64 = 60;
/// Runs of a SYN flood, of which each has thousands of frames more.
const FLOOD_SEEDS: u64 = 30;

/// The product passes, and a deliberate bug is found, in a few seeds.
#[test]
fn the_product_passes_and_every_canary_in_it_is_found() {
    for seed in 0..PRODUCT_SEEDS {
        let (outcome, _) = crate::run(seed, &THEMES[0], None, FrameLog::default());
        assert_eq!(outcome.violations, Vec::<String>::new(), "seed {seed}");
    }
    for (canary, theme, complaint) in COMPLAINTS {
        let theme = Theme::named(theme).expect("a theme");
        let seeds = match canary {
            // TCP's SWS avoidance stops windows below a segment, so few abusive peers reach the read
            // budget: one or two in a hundred runs. As few have more copies than there is room for.
            Canary::Reads | Canary::SentAfterGivenUp => 4 * PRODUCT_SEEDS,
            _ => PRODUCT_SEEDS,
        };
        let found = (0..seeds).any(|seed| {
            let (outcome, _) = crate::run(seed, theme, Some(canary), FrameLog::default());
            outcome
                .violations
                .iter()
                .any(|violation| violation.contains(complaint))
        });
        assert!(found, "{canary:?} was not found within {seeds} seeds");
    }
}

/// The faults of TLS are injected, and every check of TLS holds.
#[test]
fn the_product_meets_the_troubles_of_tls() {
    let troubles = [
        (
            "swarm",
            0,
            ["tls_resumed_count", "tls_handshake_refused_count"],
        ),
        (
            "swarm",
            0,
            ["client_sent_back_count", "client_key_update_count"],
        ),
        // A key reaches its limit in large objects only.
        (
            "keys",
            80,
            ["tls_key_update_count", "tls_key_exhausted_count"],
        ),
        (
            "reseal",
            0,
            ["record_reseal_count", "record_reseal_mismatch_count"],
        ),
        (
            "conduct",
            280,
            ["tls_alert_count", "tls_handshake_refused_count"],
        ),
        (
            "flood",
            0,
            ["tls_handshake_timeout_count", "record_seal_count"],
        ),
    ];
    for (theme, first, counters) in troubles {
        let met = sums(theme, first..first + TLS_SEEDS, counters);
        assert!(!met.contains(&0), "{theme}: {counters:?} {met:?}");
    }
}

/// Abusive peers and second attempts fill a table that has room for all planned connections. That the
/// server refuses nobody else is what [`Canary::Table`] shows.
#[test]
fn clients_are_refused_by_a_full_table_whoever_fills_it() {
    // A reset in the handshake, one between replies, and one that counted as a failed read.
    for seed in [25_743, 40_898, 46_720] {
        let (outcome, _) = crate::run(seed, &THEMES[0], None, FrameLog::default());
        assert_eq!(outcome.violations, Vec::<String>::new(), "seed {seed}");
        assert!(outcome.tally.refused_count > 0, "seed {seed}");
    }
}

/// A window update was lost, and the server's next probe came after the timeout of the handshake: its
/// FIN came with the rest of what the client had waited for.
#[test]
fn a_handshake_beyond_its_timeout_is_late() {
    let (outcome, _) = crate::run(3376, &THEMES[0], None, FrameLog::default());
    assert_eq!(outcome.violations, Vec::<String>::new());
    assert_eq!(outcome.tally.late_count, 2);
}

/// Sums of counters over runs of a theme, none of which may fail.
fn sums(theme: &str, seeds: core::ops::Range<u64>, counters: [&str; 2]) -> [u64; 2] {
    let theme = Theme::named(theme).expect("a theme");
    let mut sums = [0; 2];
    for seed in seeds {
        let (outcome, _) = crate::run(seed, theme, None, FrameLog::default());
        let name = theme.name;
        assert_eq!(outcome.violations, Vec::<String>::new(), "{name} {seed}");
        for (sum, wanted) in sums.iter_mut().zip(counters) {
            let named = outcome.counters.iter().find(|(name, _)| *name == wanted);
            *sum += named.expect("a counter of that name").1;
        }
    }
    sums
}

#[test]
fn replies_begin_anew_in_plaintext_and_over_tls_whatever_the_network_does() {
    for theme in ["changes", "rewrites"] {
        let counters = ["session_reply_anew_count", "record_seal_count"];
        let [anew, sealed] = sums(theme, 0..PRODUCT_SEEDS, counters);
        assert!(anew > 0 && sealed > 0, "{theme}: {anew}, {sealed} records");
    }
}

#[test]
fn honest_clients_never_wait_for_the_read_budget() {
    // Loss, reordering, narrow links, small windows, slow readers, TLS: reads are made again.
    let counters = ["session_read_deferred_count", "session_reread_count"];
    let [deferred, reread] = sums("network", 0..PRODUCT_SEEDS, counters);
    assert_eq!(deferred, 0);
    assert!(reread > 100, "{reread} reads again prove little");
}

#[test]
fn abusive_peers_wait_for_their_reads_and_are_reset() {
    let counters = ["session_read_deferred_count", "http_stall_count"];
    let [deferred, stalled] = sums("abusive", 0..PRODUCT_SEEDS, counters);
    assert!(deferred > 100, "{deferred} reads waited");
    assert!(stalled > 10, "{stalled} peers were given up");
}

#[test]
fn clients_get_in_by_cookies_during_a_syn_flood() {
    let counters = ["tcp_cookie_accepted_count", "tcp_cookie_refused_count"];
    let [accepted, refused] = sums("syn-flood", 0..FLOOD_SEEDS, counters);
    assert!(accepted > 50, "{accepted} clients got in by cookies");
    assert!(refused > 100, "{refused} ACKs were forged");
}

#[test]
fn streams_follow_a_router_that_hands_over() {
    let counters = ["tcp_next_hop_change_count", "http_stall_count"];
    let [moved, stalled] = sums("failover", 0..PRODUCT_SEEDS, counters);
    assert!(moved > 50, "{moved} streams moved");
    assert_eq!(stalled, 0);
}

#[test]
fn connections_go_on_as_strays_when_their_segments_change_worker() {
    let counters = ["tcp_stray_taken_count", "tcp_stray_unclaimed_count"];
    let [taken, unclaimed] = sums("workers", 0..2 * PRODUCT_SEEDS, counters);
    assert!(taken > 1000, "{taken} strays were handled");
    assert!(unclaimed > 50, "{unclaimed} segments were of no worker's");
    // Some wait for a reason of their worker's.
    let theme = Theme::named("workers").expect("a theme");
    let unnoticed = |seed| {
        let (outcome, _) = crate::run(seed, theme, None, FrameLog::default());
        let mut counters = outcome.counters.iter();
        let found = counters.find(|(name, _)| *name == "sim_unnoticed_strays");
        found.is_some_and(|(_, count)| *count > 0)
    };
    assert!((0..PRODUCT_SEEDS).any(unnoticed), "no wake-up was lost");
}

#[test]
fn connections_go_on_while_other_processes_take_over() {
    let counters = ["tcp_crossed_count", "http_reply_count"];
    let [crossed, replies] = sums("take-over", 0..2 * PRODUCT_SEEDS, counters);
    assert!(
        crossed > 1000,
        "{crossed} segments crossed, {replies} replies"
    );
}

#[test]
fn a_run_of_the_product_repeats() {
    let run = |seed, theme| {
        let (outcome, frame_log) = crate::run(seed, theme, None, FrameLog::new(true, true));
        (
            outcome.digest,
            outcome.lasted,
            outcome.counters,
            frame_log.lines().to_vec(),
        )
    };
    let mut is_sealed = false;
    for theme in THEMES {
        for seed in 0..4 {
            let first = run(seed, theme);
            assert!(first == run(seed, theme), "{} seed {seed}", theme.name);
            let counters = &first.2;
            is_sealed |= counters
                .iter()
                .any(|(name, value)| *name == "record_seal_count" && *value > 0);
        }
    }
    assert!(is_sealed, "nothing was sealed");
}

/// The violation that shows each canary.
const COMPLAINTS: [(Canary, &str, &str); 18] = [
    (Canary::WrongByte, "swarm", "wrong byte"),
    (Canary::Frame, "swarm", "wrong byte"),
    (Canary::Slot, "swarm", "resources: "),
    (Canary::Silence, "swarm", "hang"),
    (Canary::Repeat, "swarm", "is not what was first sent"),
    (Canary::Unnoticed, "swarm", "is not what was first sent"),
    (Canary::Unchecked, "changes", "wrong byte"),
    (Canary::Growth, "changes", "RST in a reply"),
    (Canary::Stale, "changes", "no tag of object"),
    (Canary::Cut, "rewrites", "the table was not full"),
    (Canary::Reads, "abusive", "too much was read"),
    (Canary::SendTimeout, "abusive", "is still open"),
    (Canary::Loan, "lending", "wrong byte"),
    (Canary::KeptTooLong, "swarm", "a slot was kept for"),
    (Canary::SentAfterGivenUp, "swarm", "cannot decrypt"),
    (Canary::Table, "famine", "the table was not full"),
    (Canary::Strays, "workers", "silence"),
    (Canary::Strays, "take-over", "silence"),
];
