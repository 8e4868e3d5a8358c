//! Metrics and health for those who watch many servers: `--metrics ADDR:PORT`.
//!
//! Each worker copies its counters to a [`Page`] of atomics, at most once in [`PUBLISH_EVERY`];
//! threads of their own ([`listener`]) read the pages, add them up ([`overview`]) and answer `/metrics`
//! with OpenMetrics text ([`text`]), `/health` and `/ready`, over the host's own TCP. They cannot delay a worker:
//! they share only those atomics with it. It refuses to keep history. It has no access control: bind it to a loopback
//! or management address. Bounds: see [`listener`].

pub(crate) mod links;
pub(crate) mod listener;
mod memory_traffic;
pub(crate) mod overview;
pub(crate) mod process;
pub(crate) mod sites;
pub(crate) mod table;
pub(crate) mod text;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time;

use clock::{Duration, Instant};
use counters::Histogram;
use session::{Histograms, SiteCounters};

use crate::observe::report::Pair;

/// Least time between two copies of the counters. An idle worker wakes once a second
/// ([`crate::run::IDLE_SLEEP_MAX`]), so that what a page says is two seconds old at most.
pub(crate) const PUBLISH_EVERY: Duration = Duration::from_secs(1);
/// A worker whose last round was longer ago than this hangs: it wakes once a second even if there
/// is nothing to do.
pub(crate) const ROUND_AGE_MAX: Duration = Duration::from_secs(5);

/// Where a worker is between its start and its end; the worst is the greatest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Health {
    /// It takes requests.
    Serving,
    /// It finishes replies, and takes no new requests.
    Ending,
    /// Its last round was longer ago than [`ROUND_AGE_MAX`].
    Hanging,
}

/// What a worker publishes. One writes, any number read; a reader may see counters of two
/// publications side by side, each of them right.
#[derive(Debug)]
pub(crate) struct Page {
    names: Vec<&'static str>,
    values: Vec<AtomicU64>,
    histograms: [[AtomicU64; Histogram::VALUES]; Histograms::COUNT],
    /// By site; empty: requests are not counted by site.
    sites: Vec<[AtomicU64; SiteCounters::VALUES]>,
    /// The worker's time at its last round, nanoseconds.
    round_at: AtomicU64,
    /// Its connections then.
    connections: AtomicUsize,
    /// It is to end soon, and serves until then.
    is_leaving: AtomicBool,
    is_ending: AtomicBool,
    is_finished: AtomicBool,
    /// The real clock's reading at the worker's [`Instant::ZERO`].
    epoch: time::Instant,
}

impl Page {
    /// A page for counters of these names, which hold these values.
    #[must_use]
    pub(crate) fn new(pairs: &[Pair], epoch: time::Instant) -> Self {
        let page = Self {
            names: pairs.iter().map(|(name, _)| *name).collect(),
            values: pairs.iter().map(|_| AtomicU64::new(0)).collect(),
            histograms: Default::default(),
            sites: Vec::new(),
            round_at: AtomicU64::new(0),
            connections: AtomicUsize::new(0),
            is_leaving: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            is_finished: AtomicBool::new(false),
            epoch,
        };
        page.publish(pairs);
        page.beat(page.now(), 0);
        page
    }

    /// The same page, which holds the counters of so many sites, too.
    #[must_use]
    pub(crate) fn with_sites(mut self, count: usize) -> Self {
        let zeros = || std::array::from_fn(|_| AtomicU64::new(0));
        self.sites.resize_with(count, zeros);
        self
    }

    /// Copies the counters, which are those the page was made for, in the same order.
    pub(crate) fn publish(&self, pairs: &[Pair]) {
        debug_assert!(
            pairs.iter().map(|(name, _)| name).eq(&self.names),
            "the counters have other names than at start"
        );
        for (place, (_, value)) in self.values.iter().zip(pairs) {
            place.store(*value, Ordering::Relaxed);
        }
    }

    /// Copies the histograms.
    pub(crate) fn publish_histograms(&self, histograms: &Histograms) {
        for (places, histogram) in self.histograms.iter().zip(histograms.each()) {
            for (place, value) in places.iter().zip(histogram.values()) {
                place.store(value, Ordering::Relaxed);
            }
        }
    }

    /// The histograms as they were published last, in the order of [`Histograms::each`].
    pub(crate) fn histograms(&self) -> [Histogram; Histograms::COUNT] {
        self.histograms.each_ref().map(|places| {
            let values = places.each_ref();
            Histogram::from_values(values.map(|value| value.load(Ordering::Relaxed)))
        })
    }

    /// Copies what was counted by site.
    pub(crate) fn publish_sites(&self, sites: &[SiteCounters]) {
        for (places, counters) in self.sites.iter().zip(sites) {
            for (place, value) in places.iter().zip(counters.values()) {
                place.store(value, Ordering::Relaxed);
            }
        }
    }

    /// What was counted by site as it was published last; empty: nothing is.
    pub(crate) fn sites(&self) -> impl Iterator<Item = SiteCounters> {
        self.sites.iter().map(|places| {
            let values = places.each_ref();
            SiteCounters::from_values(values.map(|value| value.load(Ordering::Relaxed)))
        })
    }

    /// The worker has made a round, and has so many connections.
    pub(crate) fn beat(&self, now: Instant, connections: usize) {
        self.round_at.store(now.as_nanos(), Ordering::Relaxed);
        self.connections.store(connections, Ordering::Relaxed);
    }

    /// Connections at the last round.
    #[must_use]
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// The worker is to get no new clients, although it takes them.
    pub(crate) fn leave(&self) {
        self.is_leaving.store(true, Ordering::Release);
    }

    /// Whether the worker is to get new clients.
    #[must_use]
    pub(crate) fn is_ready(&self, now: Instant) -> bool {
        self.health(now) == Health::Serving && !self.is_leaving.load(Ordering::Acquire)
    }

    /// The worker takes no new requests any more.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::Release);
    }

    /// All that it had to send has been acknowledged.
    pub(crate) fn finish(&self) {
        self.is_finished.store(true, Ordering::Release);
    }

    /// Whether that is so.
    #[must_use]
    pub(crate) fn is_finished(&self) -> bool {
        self.is_finished.load(Ordering::Acquire)
    }

    /// How the worker is at `now`, its own time.
    #[must_use]
    pub(crate) fn health(&self, now: Instant) -> Health {
        let round_at = Instant::from_nanos(self.round_at.load(Ordering::Relaxed));
        if now > round_at + ROUND_AGE_MAX {
            Health::Hanging
        } else if self.is_ending.load(Ordering::Relaxed) {
            Health::Ending
        } else {
            Health::Serving
        }
    }

    /// Unix time of the worker's [`Instant::ZERO`], nanoseconds.
    #[must_use]
    pub(crate) fn unix_nanos_at_zero(&self) -> u64 {
        let unix = time::SystemTime::now().duration_since(time::UNIX_EPOCH);
        let zero = unix
            .unwrap_or_default()
            .saturating_sub(self.epoch.elapsed());
        u64::try_from(zero.as_nanos()).unwrap_or(u64::MAX)
    }

    /// The worker's time.
    #[must_use]
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// The counters as they were published last.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = Pair> + '_ {
        let values = self
            .values
            .iter()
            .map(|value| value.load(Ordering::Relaxed));
        self.names.iter().copied().zip(values)
    }
}

#[cfg(test)]
mod tests {
    use super::{Health, Page, ROUND_AGE_MAX};
    use clock::{Duration, Instant};

    fn page() -> Page {
        Page::new(&[("a_count", 1), ("b_bytes", 2)], std::time::Instant::now())
    }

    #[test]
    fn a_page_has_the_values_published_last() {
        let page = page();
        assert_eq!(
            page.pairs().collect::<Vec<_>>(),
            [("a_count", 1), ("b_bytes", 2)]
        );
        page.publish(&[("a_count", 3), ("b_bytes", u64::MAX)]);
        assert_eq!(
            page.pairs().collect::<Vec<_>>(),
            [("a_count", 3), ("b_bytes", u64::MAX)]
        );
    }

    #[test]
    #[should_panic(expected = "other names")]
    fn other_counters_are_not_taken_for_these() {
        page().publish(&[("b_bytes", 2), ("a_count", 1)]);
    }

    #[test]
    fn a_worker_without_a_recent_round_is_reported_as_hung() {
        let page = page();
        let round = Instant::from_millis(1000);
        page.beat(round, 5);
        assert_eq!(page.connections(), 5);
        assert_eq!(page.health(round + ROUND_AGE_MAX), Health::Serving);
        let late = round + ROUND_AGE_MAX + Duration::from_nanos(1);
        assert_eq!(page.health(late), Health::Hanging);
        page.beat(late, 0);
        assert_eq!(page.health(late), Health::Serving);
        assert!(page.is_ready(late));
        page.leave();
        assert!(!page.is_ready(late));
        assert_eq!(page.health(late), Health::Serving);
        // A reader's clock may be read before the round it reads of.
        assert_eq!(page.health(round), Health::Serving);
        page.beat(late, 1);
        page.end();
        assert!(!page.is_finished());
        page.finish();
        assert!(page.is_finished());
        assert_eq!(page.health(late), Health::Ending);
        assert_eq!(
            page.health(late + late.since(Instant::ZERO) + ROUND_AGE_MAX),
            Health::Hanging
        );
    }
}
