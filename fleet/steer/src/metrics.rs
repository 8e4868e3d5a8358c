//! What is counted, as `/metrics` tells it: OpenMetrics text.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use placement::State;
use registry::Freshness;

use crate::steering::Snapshot;

/// Counters since the start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Manifests told.
    pub manifests: AtomicU64,
    /// Resolutions told.
    pub resolutions: AtomicU64,
    /// Redirects to an edge or the origin.
    pub redirects: AtomicU64,
    /// Answers that had no edge in them.
    pub without_edge: AtomicU64,
    /// Requests that were refused, 400 and above.
    pub refused: AtomicU64,
    /// Connections that were accepted.
    pub accepted: AtomicU64,
    /// Connections that are open.
    pub open: AtomicU64,
    /// Times that the registry was lost.
    pub lost: AtomicU64,
    /// Times that the view of the registry changed.
    pub changes: AtomicU64,
}

/// Adds one.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The page.
#[must_use]
pub fn page(counters: &Counters, snapshot: &Snapshot) -> String {
    let mut text = String::new();
    let mut counter = |name: &str, help: &str, samples: &[(&str, u64)]| {
        let _ = writeln!(
            text,
            "# TYPE atlas_steer_{name} counter\n# HELP atlas_steer_{name} {help}"
        );
        for (labels, value) in samples {
            let _ = writeln!(text, "atlas_steer_{name}_total{labels} {value}");
        }
    };
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    counter(
        "answers",
        "Questions answered.",
        &[
            ("{kind=\"manifest\"}", of(&counters.manifests)),
            ("{kind=\"resolve\"}", of(&counters.resolutions)),
            ("{kind=\"redirect\"}", of(&counters.redirects)),
        ],
    );
    let simple = [
        (
            "answers_without_edge",
            "Answers that had no edge in them.",
            &counters.without_edge,
        ),
        (
            "refused_requests",
            "Requests answered with a status of 400 or above.",
            &counters.refused,
        ),
        (
            "accepted_connections",
            "Connections accepted.",
            &counters.accepted,
        ),
        (
            "registry_lost",
            "Times that the registry did not answer any more.",
            &counters.lost,
        ),
        (
            "registry_changes",
            "Times that what is known of the registry changed.",
            &counters.changes,
        ),
    ];
    for (name, help, value) in simple {
        counter(name, help, &[("", of(value))]);
    }
    let mut gauge = |name: &str, help: &str, value: f64| {
        let _ = writeln!(
            text,
            "# TYPE atlas_steer_{name} gauge\n# HELP atlas_steer_{name} {help}"
        );
        let _ = writeln!(text, "atlas_steer_{name} {value}");
    };
    let members = snapshot.fleet.members();
    let number = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    let serving = members.iter().filter(|it| it.takes_players()).count();
    let draining = members
        .iter()
        .filter(|it| it.state == State::Draining)
        .count();
    let open = u32::try_from(of(&counters.open)).unwrap_or(u32::MAX);
    gauge(
        "open_connections",
        "Connections that are open.",
        f64::from(open),
    );
    gauge("members", "Members known.", number(members.len()));
    gauge(
        "members_serving",
        "Members that players are sent to.",
        number(serving),
    );
    gauge(
        "members_draining",
        "Members that are about to leave.",
        number(draining),
    );
    let (is_current, age) = match &snapshot.freshness {
        Freshness::Current => (1.0, 0.0),
        Freshness::Waiting => (0.0, 0.0),
        Freshness::LastKnown { since, .. } => (0.0, since.elapsed().as_secs_f64()),
    };
    gauge(
        "registry_current",
        "1 while members are those that the registry tells now.",
        is_current,
    );
    gauge(
        "registry_age_seconds",
        "How long members have been the last known ones.",
        age,
    );
    text.push_str("# EOF\n");
    text
}
