//! The loop: one task that has the plan, tells it what came, and does what it says.
//!
//! Objects are fetched by tasks of their own; the plan is only ever touched here. If the origin fails nothing is asked of
//! it but one object at a time, later each time, until one comes. If this machine fails (a full disk), the same. It ends
//! by SIGINT and SIGTERM: what is in flight stays as partial objects, which the next start goes on with.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use chrono::Timelike as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::backoff::Backoff;
use crate::copies::Target;
use crate::fault::{Fault, Kind};
use crate::feed::{Feed, Requests};
use crate::fetch::{Fetched, Fetcher, Pace, blocking};
use crate::health::OriginHealth;
use crate::manifest::Manifest;
use crate::metrics::{self, Counters};
use crate::origin::{Listing, Origin};
use crate::partial;
use crate::plan::{
    ATTEMPTS_MAX, Fetch, Now, Outcome, Plan, PlanConfig, Removals, Step, Versions, Wanted,
};
use crate::policy::Name;
use crate::random::Random;
use crate::rate::{Allowed, allowed};
use crate::report::{Event, Report};
use crate::settings::Settings;
use crate::stamp::Stamp;

/// With `--once`: attempts at one object.
const ONCE_ATTEMPTS_MAX: u32 = 3;
/// With `--once`: failures of the origin in a row.
const ONCE_FAILURES_MAX: u32 = 5;
/// Least time between two readings of the credentials, milliseconds: after each one connections are made anew.
const RENEW_EVERY_MS: u64 = 500;
/// How often progress is told where there is no terminal, and where there is one.
const PROGRESS_EVERY: [Duration; 2] = [Duration::from_secs(10), Duration::from_millis(250)];
/// The longest sleep: the time of day is looked at again.
const SLEEP_MAX: Duration = Duration::from_secs(5);

/// Why it ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// All that is wanted is there.
    Done,
    /// Something is not.
    Incomplete,
    /// SIGINT came.
    Interrupted,
    /// SIGTERM came.
    Terminated,
}

/// How it runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mode {
    /// Until all is there, instead of for ever.
    pub once: bool,
    /// Only tells.
    pub dry_run: bool,
    /// Takes a directory with files of others.
    pub adopt: bool,
}

/// A fetch that is over: what, when it began, milliseconds, and what came of it.
type Done = (Fetch, u64, Result<Placed, Fault>);

/// What came of a fetch.
#[derive(Debug)]
enum Placed {
    Stored {
        stamp: Stamp,
        verified: &'static str,
        resumed_bytes: u64,
    },
    Unchanged,
    Described(Stamp),
}

/// What comes of the server.
#[derive(Debug)]
enum FromServer {
    Misses(Requests),
    Counts(Requests),
    Failed(String),
}

/// The filler.
#[derive(Debug)]
struct Filler {
    settings: Settings,
    mode: Mode,
    origin: Arc<Origin>,
    target: Arc<Target>,
    fetcher: Arc<Fetcher>,
    plan: Plan,
    counters: Arc<Counters>,
    report: Report,
    random: Random,
    start: Instant,
    jobs: JoinSet<Done>,
    /// When those that are in flight began.
    jobs_began_ms: Vec<u64>,
    listings: JoinSet<(u64, Result<Listing, Fault>)>,
    list_due_ms: u64,
    is_listed: bool,
    manifest: Option<Manifest>,
    origin_health: OriginHealth,
    local_backoff: Backoff,
    renew_due_ms: u64,
    progress_due_ms: u64,
    progress_bytes: (u64, u64),
    has_failed: bool,
    /// What could not be removed: it is tried again.
    unremoved: HashSet<Name>,
}

/// Runs until the end.
///
/// # Errors
/// Why it cannot begin, with the remedy.
pub async fn run(settings: Settings, mode: Mode) -> Result<End, String> {
    let origin = Arc::new(Origin::new(settings.origin.clone())?);
    if !origin.can_list() && settings.manifest.is_none() && settings.server.is_none() {
        return Err(format!(
            "origin {:?}: over HTTP it cannot be listed; name what is wanted (manifest), or the server whose viewers miss it \
             (server)",
            settings.origin.url
        ));
    }
    if mode.dry_run {
        return dry_run(&settings, &origin).await;
    }
    let staging = settings.staging.as_deref();
    // Until the signals are taken over they end it, also while it waits.
    let mut tell = |text: &str| Report::default().tell(&Event::Note { text });
    let target = Target::open(&settings.target, staging, mode.adopt, &mut tell)?;
    let target = Arc::new(target);
    let mut stop = [SignalKind::interrupt(), SignalKind::terminate()].map(signal);
    let [interrupt, terminate] = &mut stop;
    let (Ok(interrupt), Ok(terminate)) = (interrupt, terminate) else {
        return Err("signal handlers cannot be installed".to_owned());
    };
    let counters = Arc::new(Counters::default());
    counters.origin_up.store(1, Ordering::Relaxed);
    if let Some(address) = settings.metrics {
        let listener = metrics::listen(address).await?;
        tokio::spawn(metrics::serve(listener, Arc::clone(&counters)));
    }
    let server = match settings.server {
        // With --once nobody waits for what viewers ask.
        Some(server) if !mode.once => Some(listen(server, &settings)?),
        _ => None,
    };
    let mut filler = Filler::new(settings, mode, origin, target, counters)?;
    let end = filler.run(server, interrupt, terminate).await;
    filler.jobs.shutdown().await;
    filler.listings.shutdown().await;
    filler.publish();
    let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    filler.report.end();
    filler.report.tell(&Event::Ended {
        fetched: of(&filler.counters.fetched),
        fetched_bytes: of(&filler.counters.fetched_bytes),
        removed: of(&filler.counters.removed) + of(&filler.counters.evicted),
        failed: filler.plan.failed_count(),
    });
    Ok(end)
}

/// Asks the server again and again what viewers missed and asked for.
fn listen(
    server: std::net::SocketAddr,
    settings: &Settings,
) -> Result<mpsc::Receiver<FromServer>, String> {
    let mut feed = Feed::new(server, settings.site.clone(), &settings.target)?;
    let (misses_every, counts_every) = (settings.misses_every, settings.counts_every);
    // A slow loop holds the questions up, not the memory.
    let (sender, receiver) = mpsc::channel(4);
    tokio::spawn(async move {
        let mut counts_due = Instant::now();
        loop {
            let misses = feed
                .misses()
                .await
                .map_or_else(FromServer::Failed, FromServer::Misses);
            if sender.send(misses).await.is_err() {
                return;
            }
            if Instant::now() >= counts_due {
                counts_due = Instant::now() + counts_every;
                let counts = feed
                    .counts()
                    .await
                    .map_or_else(FromServer::Failed, FromServer::Counts);
                if sender.send(counts).await.is_err() {
                    return;
                }
            }
            tokio::time::sleep(misses_every).await;
        }
    });
    Ok(receiver)
}

/// Fetches an object and gives it its place; if it can have none, nothing is fetched.
async fn fetch_to(target: &Arc<Target>, fetcher: &Fetcher, job: &Fetch) -> Result<Placed, Fault> {
    let size_bytes = job.listed.map_or(0, |it| it.size_bytes);
    on_target(target, &job.name, move |target, name| {
        target.check(name, size_bytes)
    })
    .await?;
    match fetcher.fetch(job).await? {
        Fetched::Unchanged => Ok(Placed::Unchanged),
        Fetched::Described(stamp) => Ok(Placed::Described(stamp)),
        Fetched::Whole {
            finished,
            verified,
            resumed_bytes,
        } => {
            let stamp = finished.stamp;
            on_target(target, &job.name, |target, name| {
                target.place(finished, name)
            })
            .await?;
            Ok(Placed::Stored {
                stamp,
                verified,
                resumed_bytes,
            })
        }
    }
}

async fn on_target(
    target: &Arc<Target>,
    name: &Name,
    work: impl FnOnce(&Target, &str) -> Result<(), Fault> + Send + 'static,
) -> Result<(), Fault> {
    let (target, of_work) = (Arc::clone(target), Arc::clone(name));
    let done = blocking(move || Ok(work(&target, &of_work))).await;
    done.unwrap_or_else(|error| Err(Fault::of_io(name, &error)))
}

fn plan_config(settings: &Settings, mode: Mode, seed: u64) -> PlanConfig {
    PlanConfig {
        capacity_bytes: settings.capacity_bytes,
        high_percent: settings.high_percent,
        low_percent: settings.low_percent,
        removals_percent_max: settings.removals_percent_max,
        attempts_max: if mode.once {
            ONCE_ATTEMPTS_MAX
        } else {
            ATTEMPTS_MAX
        },
        live_ms: millis(settings.live_every),
        names: Box::new(settings.names.clone()),
        seed,
    }
}

fn read_manifest(settings: &Settings) -> Result<Option<Manifest>, String> {
    settings.manifest.as_deref().map(Manifest::read).transpose()
}

fn wanted(manifest: Option<&Manifest>, versions: &Versions) -> Option<HashMap<Name, Wanted>> {
    manifest.map(|manifest| manifest.wanted(versions))
}

impl Filler {
    fn new(
        settings: Settings,
        mode: Mode,
        origin: Arc<Origin>,
        target: Arc<Target>,
        counters: Arc<Counters>,
    ) -> Result<Self, String> {
        let manifest = read_manifest(&settings)?;
        if manifest.as_ref().is_some_and(Manifest::has_folders) && !origin.can_list() {
            return Err("manifest: it names folders (names that end in /), and over HTTP the origin cannot be listed; name \
                 each object"
                .to_owned());
        }
        let held = target.inventory().map_err(|fault| fault.text)?;
        let versions: HashMap<&str, Stamp> = held.iter().map(|(name, it)| (&**name, *it)).collect();
        // Of a raw store's objects that were added just before the process ended.
        partial::clean_unused(target.partial_folder(), |name, stamp| {
            versions.get(name) == Some(&stamp)
        })
        .map_err(|error| format!("{}: {error}", target.partial_folder().display()))?;
        let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let seed = seed.map_or(0, millis) ^ (u64::from(std::process::id()) << 32);
        let plan = Plan::new(plan_config(&settings, mode, seed), held);
        let report = Report::default();
        report.tell(&Event::Started {
            objects: plan.held_count(),
            bytes: plan.held_bytes(),
        });
        let fetcher = Fetcher {
            origin: Arc::clone(&origin),
            folder: target.partial_folder().to_owned(),
            part_bytes: settings.part_bytes,
            permits: Arc::new(Semaphore::new(settings.requests)),
            pace: Arc::new(Pace::default()),
            received_bytes: Arc::clone(&counters.received_bytes),
        };
        Ok(Self {
            fetcher: Arc::new(fetcher),
            settings,
            mode,
            origin,
            target,
            plan,
            counters,
            report,
            random: Random::new(seed),
            start: Instant::now(),
            jobs: JoinSet::new(),
            jobs_began_ms: Vec::new(),
            listings: JoinSet::new(),
            list_due_ms: 0,
            is_listed: false,
            manifest,
            origin_health: OriginHealth::default(),
            local_backoff: Backoff::default(),
            renew_due_ms: 0,
            progress_due_ms: 0,
            progress_bytes: (0, 0),
            has_failed: false,
            unremoved: HashSet::new(),
        })
    }

    fn now(&self) -> Now {
        Now {
            millis: millis(self.start.elapsed()),
            unix_seconds: chrono::Utc::now().timestamp(),
        }
    }

    async fn run(
        &mut self,
        mut server: Option<mpsc::Receiver<FromServer>>,
        interrupt: &mut Signal,
        terminate: &mut Signal,
    ) -> End {
        self.measure();
        loop {
            let now = self.now();
            let allowed = self.allowed();
            self.fetcher.pace.set_rate(allowed.rate);
            self.list_if_due(now);
            let wake_ms = self.start_fetches(now, allowed.is_open).await;
            self.tell_progress(now);
            if self.mode.once
                && let Some(end) = self.end(allowed).await
            {
                return end;
            }
            let wake = Duration::from_millis(wake_ms.saturating_sub(now.millis)).min(SLEEP_MAX);
            tokio::select! {
                _ = interrupt.recv() => return End::Interrupted,
                _ = terminate.recv() => return End::Terminated,
                Some(done) = self.jobs.join_next() => match done {
                    Ok(done) => self.handle_fetched(done),
                    Err(error) => panic!("a fetch broke off: {error}"),
                },
                Some(listed) = self.listings.join_next() => match listed {
                    Ok((began_ms, listed)) => self.handle_listed(began_ms, listed).await,
                    Err(error) => panic!("a listing broke off: {error}"),
                },
                Some(said) = next(&mut server) => self.handle_from_server(said),
                () = tokio::time::sleep(wake) => {}
            }
        }
    }

    fn allowed(&self) -> Allowed {
        let time = chrono::Local::now().time();
        let minute = time.hour() * 60 + time.minute();
        allowed(&self.settings.windows, self.settings.rate, minute)
    }

    /// With `--once`: whether it is over.
    async fn end(&mut self, allowed: Allowed) -> Option<End> {
        let failures = self
            .origin_health
            .failures()
            .max(self.local_backoff.failures());
        if failures >= ONCE_FAILURES_MAX {
            return Some(End::Incomplete);
        }
        let is_idle = self.jobs.is_empty() && self.listings.is_empty();
        if !self.is_listed || !is_idle || (allowed.is_open && self.plan.waiting_count() > 0) {
            return None;
        }
        let removals = self.plan.end_round();
        self.handle_removals(removals).await;
        if !allowed.is_open {
            let text = "outside of all windows: nothing was fetched";
            self.report.tell(&Event::Note { text });
        }
        let is_whole = !self.has_failed && self.plan.failed_count() == 0;
        Some(if is_whole { End::Done } else { End::Incomplete })
    }

    /// When the origin, or this machine, may be tried again.
    fn due_ms(&self) -> u64 {
        self.origin_health.due_ms().max(self.local_backoff.due_ms())
    }

    fn is_failing(&self) -> bool {
        self.origin_health.is_failing() || self.local_backoff.failures() > 0
    }

    /// Whether another fetch may begin. While something fails one object tries it, beside those that were in flight before.
    fn may_start(&self) -> bool {
        let due_ms = self.due_ms();
        let is_tried = || self.jobs_began_ms.iter().any(|it| *it >= due_ms);
        self.jobs.len() < self.settings.requests && !(self.is_failing() && is_tried())
    }

    fn list_if_due(&mut self, now: Now) {
        let is_due = now.millis >= self.list_due_ms.max(self.origin_health.due_ms());
        if !is_due || !self.listings.is_empty() {
            return;
        }
        if self.mode.once && self.is_listed {
            return;
        }
        self.list_due_ms = now.millis + millis(self.settings.list_every);
        let origin = Arc::clone(&self.origin);
        let began_ms = now.millis;
        if !self.origin.can_list() {
            self.listings.spawn(async move {
                let listing = Listing {
                    objects: HashMap::new(),
                    skipped: 0,
                };
                (began_ms, Ok(listing))
            });
            return;
        }
        self.listings
            .spawn(async move { (began_ms, origin.list().await) });
    }

    async fn handle_listed(&mut self, began_ms: u64, listed: Result<Listing, Fault>) {
        let now = self.now();
        let listing = match listed {
            Ok(listing) => listing,
            Err(fault) => {
                self.count_failure(&fault);
                self.list_due_ms = 0;
                let random = &mut self.random;
                let wait_ms = self
                    .origin_health
                    .listing_failed(now.millis, &fault, random);
                return self.origin_failed(&fault, wait_ms);
            }
        };
        match read_manifest(&self.settings) {
            Ok(manifest) => self.manifest = manifest,
            // The last one that could be read counts.
            Err(problem) => {
                let fault = Fault::new(Kind::Local, problem);
                self.report
                    .waiting("manifest", &fault, millis(self.settings.list_every));
            }
        }
        let versions = if self.origin.can_list() {
            self.origin_succeeded(began_ms);
            self.report.tell(&Event::Listed {
                objects: listing.objects.len(),
                skipped: listing.skipped,
                seconds: crate::report::seconds(now.millis - began_ms),
            });
            Versions::Listed(listing.objects)
        } else {
            Versions::Unknown
        };
        self.is_listed = true;
        self.measure();
        let wanted = wanted(self.manifest.as_ref(), &versions);
        let removals = self.plan.update(now, began_ms, wanted, versions);
        self.handle_removals(removals).await;
    }

    async fn handle_removals(&mut self, removals: Removals) {
        if removals.refused > 0 {
            self.has_failed = true;
            self.report.tell(&Event::removals_refused(removals.refused));
        }
        let mut names = removals.names;
        let plan = &self.plan;
        let left = self.unremoved.extract_if(|name| !plan.is_busy(name));
        names.extend(left);
        self.remove(names, "origin").await;
    }

    /// What there is room for: what is set, or what the file system has.
    fn measure(&mut self) {
        if let Some(free_bytes) = self.target.free_bytes() {
            // The plan keeps room for all of what is in flight: what of it has come is not taken off twice.
            let come = self.plan.busy_names();
            let come = come.map(|name| self.target.partial_bytes(name));
            let there = come.fold(free_bytes, u64::saturating_add);
            let most = capacity(&self.settings, self.plan.held_bytes(), there);
            self.plan.set_capacity(most);
        }
    }

    /// Begins what may be begun. Returns when something is to be looked at again, milliseconds.
    async fn start_fetches(&mut self, now: Now, is_open: bool) -> u64 {
        let later = now.millis + millis(SLEEP_MAX);
        let list_due_ms = self.list_due_ms.max(self.origin_health.due_ms());
        let mut wake_ms = later
            .min(list_due_ms.max(now.millis + 1))
            .min(self.progress_due_ms);
        if now.millis < self.due_ms() {
            return wake_ms.min(self.due_ms());
        }
        while self.may_start() {
            let step = if self.is_failing() {
                self.plan.next_attempt(now, is_open)
            } else {
                self.plan.next_step(now, is_open)
            };
            match step {
                Step::Fetch(job) => self.start_fetch(now.millis, job),
                Step::Evict(names) => self.remove(names, "room").await,
                Step::Wait(due_ms) => {
                    wake_ms = wake_ms.min(due_ms);
                    break;
                }
                Step::Idle => break,
            }
        }
        wake_ms
    }

    fn start_fetch(&mut self, began_ms: u64, job: Fetch) {
        let (fetcher, target) = (Arc::clone(&self.fetcher), Arc::clone(&self.target));
        self.jobs_began_ms.push(began_ms);
        self.jobs.spawn(async move {
            let placed = fetch_to(&target, &fetcher, &job).await;
            (job, began_ms, placed)
        });
    }

    fn handle_fetched(&mut self, (job, began_ms, placed): Done) {
        let now = self.now();
        if let Some(index) = self.jobs_began_ms.iter().position(|it| *it == began_ms) {
            self.jobs_began_ms.swap_remove(index);
        }
        let name = &job.name;
        let add = |counter: &std::sync::atomic::AtomicU64, count| {
            counter.fetch_add(count, Ordering::Relaxed);
        };
        let outcome = match placed {
            Ok(placed) => {
                self.origin_succeeded(began_ms);
                if self.local_backoff.succeeded(began_ms) {
                    self.report.recovered("local");
                }
                match placed {
                    Placed::Unchanged => Outcome::Unchanged,
                    Placed::Described(stamp) => Outcome::Described(stamp),
                    Placed::Stored {
                        stamp,
                        verified,
                        resumed_bytes,
                    } => {
                        add(&self.counters.fetched, 1);
                        add(&self.counters.fetched_bytes, stamp.size_bytes);
                        add(&self.counters.resumed_bytes, resumed_bytes);
                        add(&self.counters.verified, u64::from(verified != "length"));
                        if job.is_missed {
                            add(&self.counters.miss_bytes, stamp.size_bytes);
                        }
                        self.report.tell(&Event::Fetched {
                            name,
                            bytes: stamp.size_bytes,
                            verified,
                            resumed_bytes,
                            missed: job.is_missed,
                            seconds: crate::report::seconds(now.millis - began_ms),
                        });
                        self.unremoved.remove(name);
                        Outcome::Stored(stamp)
                    }
                }
            }
            Err(fault) => self.handle_fault(&job, began_ms, &fault),
        };
        self.plan.finished(now, name, outcome);
    }

    fn handle_fault(&mut self, job: &Fetch, began_ms: u64, fault: &Fault) -> Outcome {
        self.count_failure(fault);
        if fault.kind == Kind::Absent && job.listed.is_none() {
            self.origin_succeeded(began_ms);
            if !job.is_missed {
                self.has_failed = true;
                self.report.failed(&job.name, fault);
            }
            return Outcome::Absent;
        }
        let now_ms = self.now().millis;
        if fault.kind.is_local() {
            let wait_ms = self.local_backoff.failed(now_ms, None, &mut self.random);
            self.report.waiting("local", fault, wait_ms);
            self.measure();
            return Outcome::Failed;
        }
        // Without a listing only objects tell.
        let has_failed_before = self.plan.has_failed(&job.name) && self.origin.can_list();
        let random = &mut self.random;
        let health = &mut self.origin_health;
        match health.failed(now_ms, fault, has_failed_before, random) {
            Some(wait_ms) => self.origin_failed(fault, wait_ms),
            None => self.report.failed(&job.name, fault),
        }
        Outcome::Failed
    }

    /// Counts it, and reads credentials again that were refused.
    fn count_failure(&mut self, fault: &Fault) {
        self.counters.failed(fault.kind);
        let now_ms = self.now().millis;
        if fault.kind != Kind::Denied || now_ms < self.renew_due_ms {
            return;
        }
        self.renew_due_ms = now_ms + RENEW_EVERY_MS;
        if let Err(problem) = self.origin.renew() {
            let fault = Fault::new(Kind::Denied, problem);
            self.report.waiting("credentials", &fault, RENEW_EVERY_MS);
        } else {
            self.report.recovered("credentials");
        }
    }

    fn origin_failed(&mut self, fault: &Fault, wait_ms: u64) {
        self.counters.origin_up.store(0, Ordering::Relaxed);
        self.report.waiting("origin", fault, wait_ms);
    }

    fn origin_succeeded(&mut self, began_ms: u64) {
        if self.origin_health.succeeded(began_ms) {
            self.counters.origin_up.store(1, Ordering::Relaxed);
            self.report.recovered("origin");
        }
    }

    async fn remove(&mut self, names: Vec<Name>, reason: &'static str) {
        if names.is_empty() {
            return;
        }
        let target = Arc::clone(&self.target);
        let removed = blocking(move || Ok(target.remove(names))).await;
        for (name, done) in removed.unwrap_or_default() {
            if let Err(fault) = done {
                self.counters.failed(fault.kind);
                self.report.failed(&name, &fault);
                self.unremoved.insert(name);
                continue;
            }
            let counter = match reason {
                "room" => &self.counters.evicted,
                _ => &self.counters.removed,
            };
            counter.fetch_add(1, Ordering::Relaxed);
            self.report.tell(&Event::Removed {
                name: &name,
                reason,
            });
        }
    }

    fn handle_from_server(&mut self, said: FromServer) {
        let now = self.now();
        match said {
            FromServer::Failed(text) => {
                let fault = Fault::new(Kind::Connect, text);
                return self
                    .report
                    .waiting("server", &fault, millis(self.settings.misses_every));
            }
            FromServer::Misses(misses) => {
                for (name, requests) in misses {
                    self.counters.misses.fetch_add(requests, Ordering::Relaxed);
                    self.plan.missed(now, &name, requests);
                }
            }
            FromServer::Counts(counts) => {
                for (name, requests) in counts {
                    self.plan.requested(&name, requests);
                    if let Some(stamp) = self.plan.held_stamp(&name) {
                        self.counters.hits.fetch_add(requests, Ordering::Relaxed);
                        let bytes = requests.saturating_mul(stamp.size_bytes);
                        self.counters.hit_bytes.fetch_add(bytes, Ordering::Relaxed);
                    }
                }
            }
        }
        self.report.recovered("server");
    }

    fn publish(&self) {
        let now = self.now();
        let set = |counter: &std::sync::atomic::AtomicU64, value| {
            counter.store(value, Ordering::Relaxed);
        };
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        set(&self.counters.held, count(self.plan.held_count()));
        set(&self.counters.held_bytes, self.plan.held_bytes());
        set(&self.counters.waiting, count(self.plan.waiting_count()));
        set(&self.counters.waiting_bytes, self.plan.waiting_bytes());
        set(&self.counters.oldest_ms, self.plan.oldest_ms(now));
        set(&self.counters.misses_dropped, self.plan.misses_dropped());
        set(&self.counters.left_out, self.plan.left_out());
    }

    fn tell_progress(&mut self, now: Now) {
        if now.millis < self.progress_due_ms {
            return;
        }
        let every = millis(PROGRESS_EVERY[usize::from(self.report.has_bar())]);
        self.progress_due_ms = now.millis + every;
        self.publish();
        let received = self.counters.received_bytes.load(Ordering::Relaxed);
        let (since_ms, before) = self.progress_bytes;
        let elapsed_ms = (now.millis - since_ms).max(1);
        let rate = (received - before).saturating_mul(1000) / elapsed_ms;
        self.progress_bytes = (now.millis, received);
        let whole = self.counters.fetched_bytes.load(Ordering::Relaxed);
        let waiting_bytes = self.plan.waiting_bytes();
        if self.report.has_bar() || rate > 0 {
            self.report.tell(&Event::Progress {
                objects: self.plan.held_count(),
                bytes: self.plan.held_bytes(),
                waiting: self.plan.waiting_count(),
                waiting_bytes,
                // Those of fetches that failed are among them.
                come_bytes: received.saturating_sub(whole).min(waiting_bytes),
                rate,
            });
        }
    }
}

/// What the server says next, if it is listened to.
async fn next(server: &mut Option<mpsc::Receiver<FromServer>>) -> Option<FromServer> {
    match server {
        Some(server) => server.recv().await,
        None => None,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// What there is room for: what is set, or what is there.
fn capacity(settings: &Settings, held_bytes: u64, free_bytes: u64) -> u64 {
    let there = held_bytes.saturating_add(free_bytes);
    settings.capacity_bytes.map_or(there, |set| set.min(there))
}

/// Tells what would be done, and does nothing.
async fn dry_run(settings: &Settings, origin: &Origin) -> Result<End, String> {
    let mode = Mode::default();
    let manifest = read_manifest(settings)?;
    let (held, free_bytes) = Target::look(&settings.target)?;
    let mut plan = Plan::new(plan_config(settings, mode, 0), held);
    if let Some(free_bytes) = free_bytes {
        plan.set_capacity(capacity(settings, plan.held_bytes(), free_bytes));
    }
    let versions = if origin.can_list() {
        let listing = origin.list().await.map_err(|fault| fault.text)?;
        Versions::Listed(listing.objects)
    } else {
        Versions::Unknown
    };
    let report = Report::default();
    let would = |step, name: &str, bytes| report.tell(&Event::Would { step, name, bytes });
    let now = Now {
        millis: 0,
        unix_seconds: chrono::Utc::now().timestamp(),
    };
    let wanted = wanted(manifest.as_ref(), &versions);
    let removals = plan.update(now, 0, wanted, versions);
    for name in &removals.names {
        would("remove", name, None);
    }
    if removals.refused > 0 {
        report.tell(&Event::removals_refused(removals.refused));
    }
    loop {
        match plan.next_step(now, true) {
            Step::Fetch(job) => {
                would("fetch", &job.name, job.listed.map(|it| it.size_bytes));
                let stamp = job.listed.or(job.held).unwrap_or_default();
                plan.finished(now, &job.name, Outcome::Stored(stamp));
            }
            Step::Evict(names) => names.iter().for_each(|name| would("evict", name, None)),
            Step::Wait(_) | Step::Idle => break,
        }
    }
    report.end();
    Ok(End::Done)
}
