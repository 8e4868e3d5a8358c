//! The whole process, put together for those who ask: the pages of all workers, added up, and what is
//! not a worker's.
//!
//! It takes no lock and stops no worker. Bounds: those of its parts.

use std::sync::{Arc, Mutex, PoisonError};

use counters::{CounterSet as _, Histogram, Meaning, Value as _, counters};
use memory::traffic::MemoryTraffic;
use session::{Histograms, SiteCounters};

use super::links::LinkInfo;
use super::{Health, Page};
use crate::observe::access_log::LogStyle;
use crate::observe::configuration::Configuration;
use crate::observe::log;
use crate::observe::output::Output;
use crate::observe::report::Pair;
use crate::observe::requests::Labels;

/// What threads of their own write.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    /// A line for each request; `None`: not configured.
    pub access_log: Option<Arc<Output>>,
    /// Which requests have lines there, and how they are written.
    pub log_style: LogStyle,
    /// Records of traced connections; `None`: not configured.
    pub trace: Option<Arc<Output>>,
}

counters! {
    /// What outputs dropped.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct OutputCounters {
        /// Lines of the access log dropped because the queue was full or writing failed.
        access_log_dropped_count: u64,
        /// Pieces of the trace dropped because the queue or the file was full or writing failed.
        trace_dropped_count: u64,
        /// Lines of the log on stderr dropped because the queue was full or writing failed.
        log_dropped_count: u64,
    }
}

impl Outputs {
    /// Adds the counters of the access log, the trace and the log. They are present even if there is
    /// none of these, so that every report has the same counters.
    #[must_use]
    pub(crate) fn with_own(&self, mut pairs: Vec<Pair>) -> Vec<Pair> {
        let dropped = |output: &Option<Arc<Output>>| output.as_ref().map_or(0, |it| it.dropped());
        let own = OutputCounters {
            access_log_dropped_count: dropped(&self.access_log),
            trace_dropped_count: dropped(&self.trace),
            log_dropped_count: log::dropped(),
        };
        pairs.extend(own.as_pairs());
        pairs
    }
}

/// Counters that say the same of each worker, at a moment: their greatest is told, not their sum.
const COMMON_SUFFIX: &str = "_unix_seconds";

/// Adds the counters of workers up by their places: all workers have the same, in the same order.
#[must_use]
pub(crate) fn sum(workers: impl IntoIterator<Item = Vec<Pair>>) -> Vec<Pair> {
    let mut workers = workers.into_iter();
    let mut sums = workers.next().unwrap_or_default();
    for pairs in workers {
        debug_assert!(
            pairs
                .iter()
                .map(|(name, _)| name)
                .eq(sums.iter().map(|(name, _)| name)),
            "two workers have other counters"
        );
        for ((name, sum), (_, value)) in sums.iter_mut().zip(pairs) {
            *sum = if name.ends_with(COMMON_SUFFIX) {
                value.max(*sum)
            } else {
                sum.saturating_add(value)
            };
        }
    }
    sums
}

/// Everything that is told of the process.
#[derive(Debug)]
pub(crate) struct Overview {
    workers: Vec<Arc<Page>>,
    outputs: Arc<Outputs>,
    /// By worker.
    links: Vec<LinkInfo>,
    /// Of the whole machine; else why not.
    memory_traffic: Result<MemoryTraffic, String>,
    /// Unix time of the start, seconds.
    start_unix_seconds: u64,
    /// What is in force.
    configuration: Arc<Mutex<Configuration>>,
}

impl Overview {
    /// Puts it together.
    #[must_use]
    pub(crate) const fn new(
        workers: Vec<Arc<Page>>,
        outputs: Arc<Outputs>,
        links: Vec<LinkInfo>,
        memory_traffic: Result<MemoryTraffic, String>,
        start_unix_seconds: u64,
        configuration: Arc<Mutex<Configuration>>,
    ) -> Self {
        Self {
            workers,
            outputs,
            links,
            memory_traffic,
            start_unix_seconds,
            configuration,
        }
    }

    /// What is in force.
    #[must_use]
    pub(crate) fn configuration(&self) -> Configuration {
        let configuration = self.configuration.lock();
        configuration
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The counters as the workers published them last, added up, and those of the outputs.
    #[must_use]
    pub(crate) fn pairs(&self) -> Vec<Pair> {
        let published = self.workers.iter().map(|page| page.pairs().collect());
        self.outputs.with_own(sum(published))
    }

    /// What the workers' histograms mean, and all of each together.
    pub(crate) fn histograms(&self) -> impl Iterator<Item = (&'static Meaning, Histogram)> {
        let mut sums = [Histogram::ZERO; Histograms::COUNT];
        for page in &self.workers {
            for (sum, histogram) in sums.iter_mut().zip(page.histograms()) {
                *sum = sum.plus(&histogram);
            }
        }
        Histograms::MEANINGS.iter().zip(sums)
    }

    /// What the numbers of sites and directories stand for.
    pub(crate) fn labels(&self) -> Labels {
        let configuration = self.configuration.lock();
        let configuration = configuration.unwrap_or_else(PoisonError::into_inner);
        configuration.labels()
    }

    /// The label of each site, by its number.
    pub(crate) fn site_labels(&self) -> Vec<String> {
        let configuration = self.configuration.lock();
        let configuration = configuration.unwrap_or_else(PoisonError::into_inner);
        configuration.site_labels().clone().into_labels()
    }

    /// The label of each site, and what all workers counted of it; empty: requests are not counted by site.
    pub(crate) fn sites(&self) -> Vec<(String, SiteCounters)> {
        let labels = self.site_labels();
        let mut pages = self.workers.iter().map(|page| page.sites());
        let mut sums: Vec<SiteCounters> = pages.next().into_iter().flatten().collect();
        for page in pages {
            for (sum, counters) in sums.iter_mut().zip(page) {
                *sum = sum.plus(&counters);
            }
        }
        labels.into_iter().zip(sums).collect()
    }

    /// That of the worker who is worst off.
    #[must_use]
    pub(crate) fn health(&self) -> Health {
        let each = self.workers.iter().map(|page| page.health(page.now()));
        each.max().unwrap_or(Health::Ending)
    }

    /// Whether it is to get new clients: all workers serve, and it is not about to end.
    #[must_use]
    pub(crate) fn is_ready(&self) -> bool {
        let mut workers = self.workers.iter();
        !self.workers.is_empty() && workers.all(|page| page.is_ready(page.now()))
    }

    /// Unix time of the workers' [`clock::Instant::ZERO`], nanoseconds.
    #[must_use]
    pub(crate) fn unix_nanos_at_zero(&self) -> u64 {
        (self.workers.first()).map_or(0, |page| page.unix_nanos_at_zero())
    }

    /// Whether the settings have connections traced to a file.
    #[must_use]
    pub(crate) fn is_tracing(&self) -> bool {
        self.outputs.trace.is_some()
    }

    /// How frames travel, by worker.
    #[must_use]
    pub(crate) fn links(&self) -> &[LinkInfo] {
        &self.links
    }

    /// How much of the machine's memory is read and written; or why that is not known.
    pub(crate) const fn memory_traffic(&self) -> &Result<MemoryTraffic, String> {
        &self.memory_traffic
    }

    /// Unix time of the start, seconds.
    #[must_use]
    pub(crate) const fn start_unix_seconds(&self) -> u64 {
        self.start_unix_seconds
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;
    use std::time;

    use clock::Instant;
    use session::SiteCounters;

    use super::{Configuration, LinkInfo, Outputs, Overview, sum};
    use crate::observe::metrics::sites::SiteLabels;
    use crate::observe::metrics::{Health, Page};

    /// Of these workers.
    pub(crate) fn overview(pages: Vec<Page>) -> Overview {
        let pages = pages.into_iter().map(Arc::new).collect();
        let link = LinkInfo {
            kind: "packet",
            interface: "eth0".to_owned(),
            path: link::FramePath::default(),
            lends: true,
        };
        let links = vec![link.clone(), link];
        let memory_traffic = Err("a test".to_owned());
        Overview::new(
            pages,
            Arc::default(),
            links,
            memory_traffic,
            1_795_340_403,
            Arc::default(),
        )
    }

    fn page(value: u64) -> Page {
        Page::new(&[("a_count", value), ("b_bytes", 1)], time::Instant::now())
    }

    #[test]
    fn counters_of_workers_are_added_up_and_those_of_outputs_come_once() {
        let all = overview(vec![page(1), page(u64::MAX), page(3)]).pairs();
        assert_eq!(all[..2], [("a_count", u64::MAX), ("b_bytes", 3)]);
        let own = Outputs::default().with_own(Vec::new());
        assert_eq!(all[2..], own);
        assert_eq!(sum([]), []);
        assert_eq!(sum([vec![("a_count", 7)]]), [("a_count", 7)]);
        let end = |seconds| vec![("tls_certificate_end_unix_seconds", seconds)];
        assert_eq!(sum([end(5), end(7), end(6)]), end(7));
    }

    #[test]
    fn what_workers_count_of_a_site_is_added_up_and_without_labels_nothing_is_told() {
        let mut labels = SiteLabels::default();
        labels.number("a.example");
        let configuration = Configuration::default().with_site_labels(labels);
        let counted = |request_count| {
            let page = page(0).with_sites(3);
            let site = |request_count| SiteCounters {
                request_count,
                ..SiteCounters::default()
            };
            page.publish_sites(&[site(1), site(request_count), site(9)]);
            page
        };
        let told = |pages: Vec<Page>| -> Vec<(String, u64)> {
            let overview = overview(pages);
            *overview.configuration.lock().unwrap() = configuration.clone();
            let sites = overview.sites().into_iter();
            sites
                .map(|(label, site)| (label, site.request_count))
                .collect()
        };
        let expected = [("(other)".to_owned(), 2), ("a.example".to_owned(), 12)];
        assert_eq!(told(vec![counted(5), counted(7)]), expected);
        assert_eq!(told(vec![page(0), page(0)]), []);
    }

    #[test]
    #[should_panic(expected = "other counters")]
    fn workers_with_other_counters_are_a_bug() {
        let _ = sum([vec![("a_count", 7)], vec![("b_count", 7)]]);
    }

    #[test]
    fn one_worker_that_hangs_or_ends_is_told_of() {
        let long_ago = time::Instant::now() - time::Duration::from_secs(60);
        let hung = || {
            let page = Page::new(&[], long_ago);
            page.beat(Instant::ZERO, 0);
            page
        };
        let ending = || {
            let page = page(0);
            page.end();
            page
        };
        assert_eq!(overview(vec![page(0), page(0)]).health(), Health::Serving);
        assert_eq!(overview(vec![page(0), ending()]).health(), Health::Ending);
        assert_eq!(overview(vec![hung(), page(0)]).health(), Health::Hanging);
        assert_eq!(overview(vec![ending(), hung()]).health(), Health::Hanging);
        assert_eq!(overview(Vec::new()).health(), Health::Ending);
    }
}
