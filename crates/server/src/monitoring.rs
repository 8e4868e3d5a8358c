//! Access log, trace, metrics, health checks and lists of connections while the server runs.
//!
//! [`MonitoringSetup`] opens files and sockets while the process still has the rights it was started
//! with; [`Monitoring`] runs afterwards, with threads that have no more rights than the worker. It
//! refuses to make the worker wait: the worker queues lines, and stores its counters in atomics once
//! a second at most. Bounds: those of [`crate::access_log`] and [`crate::metrics`].

use std::sync::Arc;
use std::time;
use std::time::SystemTime;

use clock::Instant;
use tracing::warn;

use crate::access_log::{AccessLog, OpenLog};
use crate::connections::{self, Questions};
use crate::failure::Failure;
use crate::log;
use crate::metrics::listener::{Listener, THREADS};
use crate::metrics::{PUBLISH_EVERY, Page};
use crate::output::Output;
use crate::privileges::Identity;
use crate::report::Pair;
use crate::settings::Settings;

/// Files and sockets of the monitoring, opened but not in use yet.
#[derive(Debug)]
pub struct MonitoringSetup {
    access_log: Option<OpenLog>,
    metrics: Option<Listener>,
}

impl MonitoringSetup {
    /// Opens what the settings ask for, with the rights of the start. `identity`: the user that
    /// serves.
    ///
    /// # Errors
    /// What cannot be opened, and what to do about it.
    pub fn open(settings: &Settings, identity: &Identity) -> Result<Self, Failure> {
        let owner = match identity {
            Identity::Other(account) => Some((account.uid, account.gid)),
            Identity::Same | Identity::Root => None,
        };
        let access_log = settings.access_log.as_ref();
        Ok(Self {
            access_log: access_log.map(|target| target.open(owner)).transpose()?,
            metrics: settings.metrics.map(Listener::bind).transpose()?,
        })
    }

    /// Starts the threads. `counters` are all there are, as they stand; `epoch` is when the
    /// worker's clock read zero; `trace` is written already.
    ///
    /// # Errors
    /// There can be no threads.
    pub fn start(
        self,
        counters: &[Pair],
        epoch: time::Instant,
        start_unix_seconds: u64,
        trace: Option<Arc<Output>>,
    ) -> Result<Monitoring, Failure> {
        let outputs = Outputs {
            access_log: self.access_log.map(OpenLog::start).transpose()?,
            trace,
        };
        let (mut page, mut questions) = (None, None);
        if let Some(listener) = self.metrics {
            let counters = outputs.with_own(counters.to_vec());
            let counters = Arc::new(Page::new(&counters, epoch, start_unix_seconds));
            let (asker, asked) = connections::channel(THREADS).map_err(|error| {
                Failure::refused(
                    format!("--metrics: no socket pair: {error}"),
                    "raise the limit of open files",
                )
            })?;
            listener.start(&counters, &asker)?;
            (page, questions) = (Some(counters), Some(asked));
        }
        Ok(Monitoring {
            outputs,
            page,
            questions,
            published_at: Instant::ZERO,
            is_changed: false,
        })
    }
}

/// What threads write.
#[derive(Debug, Default)]
struct Outputs {
    access_log: Option<Arc<Output>>,
    trace: Option<Arc<Output>>,
}

/// The access log and the metrics of a running server.
#[derive(Debug, Default)]
pub struct Monitoring {
    outputs: Outputs,
    page: Option<Arc<Page>>,
    /// Questions about connections.
    questions: Option<Questions>,
    published_at: Instant,
    /// A round made progress since the counters were published.
    is_changed: bool,
}

impl Monitoring {
    /// The access log, for the session; `None`: not configured.
    #[must_use]
    pub fn request_log(&self) -> Option<AccessLog> {
        let output = self.outputs.access_log.as_ref()?;
        Some(AccessLog::new(Arc::clone(output), SystemTime::now))
    }

    /// Call it after each round; `progressed`: the round did something.
    pub fn on_round(
        &mut self,
        now: Instant,
        progressed: bool,
        counters: impl FnOnce() -> Vec<Pair>,
    ) {
        let Some(page) = &self.page else { return };
        page.beat(now);
        self.is_changed |= progressed;
        if self.is_changed && now >= self.published_at + PUBLISH_EVERY {
            page.publish(&self.outputs.with_own(counters()));
            self.published_at = now;
            self.is_changed = false;
        }
    }

    /// Opens the access log's file again, which may have been renamed.
    pub fn reopen(&self) {
        if let Some(output) = &self.outputs.access_log {
            output.reopen();
        }
    }

    /// The server accepts no new requests any more.
    pub fn on_ending(&self) {
        if let Some(page) = &self.page {
            page.end();
        }
    }

    /// All counters, `counters` of the worker and its own.
    #[must_use]
    pub fn counters(&self, counters: Vec<Pair>) -> Vec<Pair> {
        self.outputs.with_own(counters)
    }

    /// Where questions about connections come from; `None`: nobody can ask.
    #[must_use]
    pub const fn questions(&self) -> Option<&Questions> {
        self.questions.as_ref()
    }

    /// Waits until access log and trace are written, for a while.
    pub fn close(&self) {
        let Outputs { access_log, trace } = &self.outputs;
        for (name, output) in [("access log", access_log), ("trace", trace)] {
            if let Some(output) = output
                && !output.close(log::FLUSH_TIME_MAX)
            {
                warn!("{name}: the last lines could not be written in time");
            }
        }
    }
}

impl Outputs {
    /// Adds the counters of the access log, the trace and the log. They are present even if there is
    /// none of these, so that every report has the same counters.
    fn with_own(&self, mut pairs: Vec<Pair>) -> Vec<Pair> {
        let dropped = |output: &Option<Arc<Output>>| output.as_ref().map_or(0, |it| it.dropped());
        pairs.push(("access_log_dropped_count", dropped(&self.access_log)));
        pairs.push(("trace_dropped_count", dropped(&self.trace)));
        pairs.push(("log_dropped_count", log::dropped()));
        pairs
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use clock::{Duration, Instant};

    use super::{Monitoring, Outputs};
    use crate::metrics::{Health, PUBLISH_EVERY, Page};

    const NANO: Duration = Duration::from_nanos(1);

    #[test]
    fn counters_are_published_once_a_second_and_only_after_progress() {
        let page = Page::new(
            &Outputs::default().with_own(vec![("a_count", 0)]),
            std::time::Instant::now(),
            0,
        );
        let page = Arc::new(page);
        let mut watch = Monitoring {
            page: Some(Arc::clone(&page)),
            ..Monitoring::default()
        };
        let asked = Cell::new(0);
        let mut round = |at, progressed| {
            watch.on_round(at, progressed, || {
                asked.set(asked.get() + 1);
                vec![("a_count", asked.get())]
            });
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
        watch.on_ending();
        assert_eq!(page.health(start), Health::Ending);
    }

    #[test]
    fn without_metrics_no_counters_are_collected() {
        let mut watch = Monitoring::default();
        watch.on_round(Instant::FAR_FUTURE, true, || {
            unreachable!("nobody reads them")
        });
        assert!(watch.request_log().is_none());
        watch.reopen();
        watch.close();
        let names: Vec<_> = watch
            .counters(Vec::new())
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(
            names,
            [
                "access_log_dropped_count",
                "trace_dropped_count",
                "log_dropped_count"
            ]
        );
    }
}
