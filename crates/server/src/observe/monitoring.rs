//! Access log, trace, metrics, health checks and lists of connections while the server runs.
//!
//! [`MonitoringSetup`] opens files and sockets while the process still has the rights it was started
//! with; [`Monitoring`] runs afterwards, with threads that have no more rights than the workers. It
//! refuses to make a worker wait: workers queue lines, and each [`Publisher`] stores its worker's
//! counters in atomics once a second at most. Bounds: those of [`crate::observe::access_log`] and
//! [`crate::observe::metrics`].

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{self, SystemTime};

use clock::Instant;
use memory::traffic::MemoryTraffic;
use session::{Histograms, SiteCounters};
use tracing::warn;

use crate::failure::Failure;
use crate::observe::access_log::{AccessLog, LogStyle, OpenLog};
use crate::observe::configuration::Configuration;
use crate::observe::connections::Asker;
use crate::observe::log;
use crate::observe::metrics::links::LinkInfo;
use crate::observe::metrics::listener::Listener;
use crate::observe::metrics::overview::{Outputs, Overview};
use crate::observe::metrics::{PUBLISH_EVERY, Page};
use crate::observe::output::Output;
use crate::observe::report::Pair;
use crate::settings::Settings;

/// Files and sockets of the monitoring, opened but not in use yet.
#[derive(Debug)]
pub(crate) struct MonitoringSetup {
    access_log: Option<OpenLog>,
    log_style: LogStyle,
    metrics: Option<(Listener, Result<MemoryTraffic, String>)>,
    configuration: Configuration,
}

impl MonitoringSetup {
    /// Opens what the settings ask for, with the rights of the start. A file that is made belongs to
    /// `owner`, a user and a group. `configuration` is in force. `inherit`: a socket that listens there already.
    ///
    /// # Errors
    /// What cannot be opened, and what to do about it.
    pub(crate) fn open(
        settings: &Settings,
        configuration: Configuration,
        owner: Option<(u32, u32)>,
        inherit: impl FnOnce(SocketAddr) -> Option<TcpListener>,
    ) -> Result<Self, Failure> {
        let access_log = settings.access_log.as_ref();
        Ok(Self {
            access_log: access_log.map(|target| target.open(owner)).transpose()?,
            log_style: settings.log_style,
            metrics: (settings.metrics)
                .map(|address| Self::open_metrics(address, inherit(address)))
                .transpose()?,
            configuration,
        })
    }

    /// What listens for those who ask for metrics, for a process that takes over.
    ///
    /// # Errors
    /// The kernel's: no descriptors.
    pub(crate) fn share(&self) -> io::Result<Option<OwnedFd>> {
        let listener = self.metrics.as_ref().map(|(listener, _)| listener.share());
        listener.transpose()
    }

    fn open_metrics(
        address: SocketAddr,
        inherited: Option<TcpListener>,
    ) -> Result<(Listener, Result<MemoryTraffic, String>), Failure> {
        let listener = match inherited {
            Some(socket) => Listener::new(socket),
            None => Listener::bind(address)?,
        };
        Ok((listener, MemoryTraffic::open(Path::new("/"))))
    }

    /// Whether it could be opened. Changes nothing. `is_running`: a server with the same addresses runs,
    /// which has the port.
    ///
    /// # Errors
    /// What could not be opened.
    pub(crate) fn check(settings: &Settings, is_running: bool) -> Result<(), Failure> {
        if let Some(target) = &settings.access_log {
            target.check()?;
        }
        match settings.metrics.map(Listener::bind) {
            Some(Err(Failure::NotNow(_))) if is_running => Ok(()),
            Some(Err(failure)) => Err(failure),
            Some(Ok(_)) | None => Ok(()),
        }
    }

    /// Starts the thread that writes the access log; `trace` is written already.
    ///
    /// # Errors
    /// There can be no thread.
    pub(crate) fn start(self, trace: Option<Arc<Output>>) -> Result<Monitoring, Failure> {
        let outputs = Outputs {
            access_log: self.access_log.map(OpenLog::start).transpose()?,
            log_style: self.log_style,
            trace,
        };
        Ok(Monitoring {
            outputs: Arc::new(outputs),
            metrics: self.metrics,
            links: Vec::new(),
            accepts: Arc::new(AtomicBool::new(true)),
            configuration: Arc::new(Mutex::new(self.configuration)),
        })
    }
}

/// The access log, the trace and the metrics of a running server.
#[derive(Debug, Default)]
pub(crate) struct Monitoring {
    outputs: Arc<Outputs>,
    /// `None`: nobody asks, or the threads have it.
    metrics: Option<(Listener, Result<MemoryTraffic, String>)>,
    /// How frames travel, by worker.
    links: Vec<LinkInfo>,
    /// Whether those who ask over HTTP are answered by this process.
    accepts: Arc<AtomicBool>,
    /// What is in force.
    configuration: Arc<Mutex<Configuration>>,
}

impl Monitoring {
    /// Whether those who ask over HTTP are answered by this process from now on.
    pub(crate) fn set_answering(&self, is_answering: bool) {
        self.accepts.store(is_answering, Ordering::Relaxed);
    }

    /// The same, which tells how frames travel.
    #[must_use]
    pub(crate) fn with_links(self, links: Vec<LinkInfo>) -> Self {
        Self { links, ..self }
    }

    /// What is written, for the workers.
    #[must_use]
    pub(crate) const fn outputs(&self) -> &Arc<Outputs> {
        &self.outputs
    }

    /// Whether counters are asked for over HTTP.
    #[must_use]
    pub(crate) const fn has_metrics(&self) -> bool {
        self.metrics.is_some()
    }

    /// Starts the threads that answer over HTTP, if there are to be any: what these pages say, and
    /// what `asker` is told.
    ///
    /// # Errors
    /// There can be no threads.
    pub(crate) fn listen(
        &mut self,
        pages: Vec<Arc<Page>>,
        asker: &Asker,
        start_unix_seconds: u64,
    ) -> Result<(), Failure> {
        let Some((listener, memory_traffic)) = self.metrics.take() else {
            return Ok(());
        };
        let overview = Overview::new(
            pages,
            Arc::clone(&self.outputs),
            std::mem::take(&mut self.links),
            memory_traffic,
            start_unix_seconds,
            Arc::clone(&self.configuration),
        );
        listener.start(&Arc::new(overview), asker, &self.accepts)
    }

    /// From now on this is in force.
    pub(crate) fn set_configuration(&self, configuration: Configuration) {
        *(self.configuration.lock()).unwrap_or_else(PoisonError::into_inner) = configuration;
    }

    /// Opens the access log's file again, which may have been renamed.
    pub(crate) fn reopen(&self) {
        if let Some(output) = &self.outputs.access_log {
            output.reopen();
        }
    }

    /// Waits until access log and trace are written, for a while.
    pub(crate) fn close(&self) {
        let Outputs {
            access_log, trace, ..
        } = &*self.outputs;
        for (name, output) in [("access log", access_log), ("trace", trace)] {
            if let Some(output) = output
                && !output.close(log::FLUSH_TIME_MAX)
            {
                warn!("{name}: the last lines could not be written in time");
            }
        }
    }
}

/// The access log of one worker, for its session; `None`: not configured.
#[must_use]
pub(crate) fn request_log(outputs: &Outputs) -> Option<AccessLog> {
    let output = outputs.access_log.as_ref()?;
    Some(AccessLog::new(
        Arc::clone(output),
        outputs.log_style,
        SystemTime::now,
    ))
}

/// What a worker has counted.
#[derive(Debug)]
pub(crate) struct Told<'a> {
    /// Counters and gauges.
    pub pairs: Vec<Pair>,
    /// How long things took.
    pub histograms: &'a Histograms,
    /// By site; empty: not counted.
    pub sites: &'a [SiteCounters],
}

/// What one worker says of itself.
#[derive(Debug)]
pub(crate) struct Publisher {
    page: Arc<Page>,
    /// Counters are asked for.
    has_readers: bool,
    published_at: Instant,
    /// A round made progress since the counters were published.
    is_changed: bool,
}

impl Publisher {
    /// For a worker with these counters, and those of so many sites, whose clock read zero at `epoch`.
    /// `has_readers`: they are asked for while it runs.
    #[must_use]
    pub(crate) fn new(
        counters: &[Pair],
        sites: usize,
        epoch: time::Instant,
        has_readers: bool,
    ) -> Self {
        Self {
            page: Arc::new(Page::new(counters, epoch).with_sites(sites)),
            has_readers,
            published_at: Instant::ZERO,
            is_changed: false,
        }
    }

    /// Where it is said.
    #[must_use]
    pub(crate) const fn page(&self) -> &Arc<Page> {
        &self.page
    }

    /// Call it after each round; `progressed`: the round did something.
    pub(crate) fn on_round<'a>(
        &mut self,
        now: Instant,
        progressed: bool,
        connections: usize,
        counters: impl FnOnce() -> Told<'a>,
    ) {
        self.page.beat(now, connections);
        self.is_changed |= progressed;
        let is_due = self.has_readers && self.is_changed;
        if is_due && now >= self.published_at + PUBLISH_EVERY {
            let told = counters();
            self.page.publish_sites(told.sites);
            self.page.publish(&told.pairs);
            self.page.publish_histograms(told.histograms);
            self.published_at = now;
            self.is_changed = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use clock::{Duration, Instant};
    use session::Histograms;

    use super::{Monitoring, Publisher, Told, request_log};
    use crate::observe::metrics::PUBLISH_EVERY;

    const NANO: Duration = Duration::from_nanos(1);

    #[test]
    fn counters_are_published_once_a_second_and_only_after_progress() {
        let epoch = std::time::Instant::now();
        let mut publisher = Publisher::new(&[("a_count", 0)], 0, epoch, true);
        let histograms = Histograms::default();
        let page = publisher.page().clone();
        let asked = Cell::new(0);
        let mut round = |at, progressed| {
            publisher.on_round(at, progressed, 3, || {
                asked.set(asked.get() + 1);
                Told {
                    pairs: vec![("a_count", asked.get())],
                    histograms: &histograms,
                    sites: &[],
                }
            });
            assert_eq!(page.connections(), 3);
            page.pairs().next().unwrap().1
        };
        let start = Instant::ZERO + PUBLISH_EVERY;
        assert_eq!(round(Instant::ZERO + (PUBLISH_EVERY - NANO), true), 0);
        // What happened before is published even by a round in which nothing does.
        assert_eq!(round(start, false), 1);
        assert_eq!(round(start + PUBLISH_EVERY, false), 1);
        assert_eq!(round(start + PUBLISH_EVERY, true), 2);
        assert_eq!(
            round(start + PUBLISH_EVERY + (PUBLISH_EVERY - NANO), true),
            2
        );
        assert_eq!(asked.get(), 2);
    }

    #[test]
    fn without_metrics_no_counters_are_collected() {
        let mut publisher = Publisher::new(&[], 0, std::time::Instant::now(), false);
        publisher.on_round(Instant::FAR_FUTURE, true, 1, || {
            unreachable!("nobody reads them")
        });
        let monitoring = Monitoring::default();
        assert!(!monitoring.has_metrics() && request_log(monitoring.outputs()).is_none());
        monitoring.reopen();
        monitoring.close();
    }
}
