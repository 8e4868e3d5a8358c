//! Start-up: checks that the host has what the settings need, creates the parts and connects them.
//!
//! The checks run from the cheapest to the most expensive: directory, user, certificates, addresses,
//! interface and permissions, descriptors, memory, disk, the network (see [`crate::start::claim`]). It
//! refuses to start half: the first check that fails is reported in one line with its remedy.
//!
//! Everything that needs a privilege is opened first, for each worker its queue of the link, its slots
//! and its disk; then privileges are dropped ([`crate::start::privileges`]). The rest is done as the user that
//! serves: create the captures, probe the network for our addresses, open the directory, start the
//! threads of stores and workers. So all threads have the same rights.
//!
//! A check that only costs speed (ordinary pages instead of huge ones) is logged with its remedy, and
//! the server starts. Bounds: `storage::DESCRIPTORS_RESERVED`, `content::FILES_TRIED_MAX`.

pub(crate) mod aead;
mod checks;
pub(crate) mod claim;
mod content;
pub(crate) mod cores;
pub(crate) mod files;
pub(crate) mod host;
pub(crate) mod host_addresses;
mod links;
pub(crate) mod memory_need;
pub(crate) mod nodes;
mod nvme;
pub(crate) mod own_file;
mod passthrough;
pub(crate) mod privileges;
mod probe;
pub(crate) mod routes;
pub(crate) mod sandbox;
mod storage;
mod worker_disk;
mod worker_link;

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant as RealInstant, SystemTime};

use clock::Instant;
use link::{
    CaptureConfig, Captured, InterfaceAddress, InterfaceWatch, Link as _, SetupError, ZeroCopy,
};
use record::AeadLibrary;
use rustix::process::{Uid, geteuid};
use session::Conductor;
use store::Store;
use tracing::{debug, info, warn};

use self::aead::Measurement;
use self::claim::Locks;
use self::host_addresses::HostAddresses;
use self::privileges::Identity;
use crate::failure::Failure;
use crate::observe::log;
use crate::observe::metrics::links::LinkInfo;
use crate::observe::metrics::overview::Outputs;
use crate::observe::monitoring::{self, MonitoringSetup};
use crate::observe::output::Output;
use crate::run::address_watch::AddressWatch;
use crate::run::coalescing::Pauses;
use crate::run::link_watch::LinkWatch;
use crate::run::signals::Signals;
use crate::run::supervisor::{Supervisor, WorkerChannels, Workers};
use crate::run::taking_over::TakeOver;
use crate::run::{self, Drive, Serving};
use crate::settings::cidr::Cidr;
use crate::settings::{Limits, LinkChoice, MacSetting, Settings};
use crate::take_over::launcher::Launcher;
use crate::take_over::predecessor::Predecessor;
use crate::take_over::successor::Succession;
use crate::take_over::{self, Hello, XdpQueue};
use worker::tls::Handshaker;

use crate::observe::trace::{PeerTrace, Peers};
use crate::reload::files::OperatorFiles;
use crate::reload::{self, Loaded, Loader};
use crate::run::wall_clock;
use worker::Worker;

pub(crate) use checks::{check, permits};
pub(crate) use content::refuse_raw;
pub(crate) use probe::{Probed, probe_path};

use content::Content;

use storage::{
    Storage, handles_max, kept_copy_bytes, kept_slots_max, open_store, raise_descriptor_limit,
    reads_max,
};
use worker_disk::WorkerDisk;
use worker_link::WorkerLink;

/// The worker's start on the monotonic and on the wall clock.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    real: RealInstant,
    wall: SystemTime,
}

impl Epoch {
    fn now() -> Self {
        Self {
            real: RealInstant::now(),
            wall: SystemTime::now(),
        }
    }

    /// Unix time of the start; 0 if the clock is before 1970.
    fn unix(self) -> Duration {
        self.wall
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
    }
}

/// What was opened before the interface.
#[derive(Debug)]
struct StartupContext {
    epoch: Epoch,
    content: Content,
    signals: Signals,
    /// The user that serves.
    identity: Identity,
    /// What was read of the operator's files, and what reads them again.
    loaded: Loaded,
    files: reload::Source,
    monitoring: MonitoringSetup,
    /// Held to the end.
    locks: Locks,
    /// The user that started the process.
    starter: Uid,
    /// What starts a process that takes over, or why none can.
    launcher: Result<Launcher, String>,
}

/// Starts the server and serves until it ends.
///
/// # Errors
/// A failed check, or an error while serving ([`crate::failure::EXIT_CODES`]).
pub(crate) fn serve(settings: &Settings) -> Result<(), Failure> {
    let mut predecessor = Predecessor::from_environment()?;
    let outcome = serve_after(settings, &mut predecessor);
    if let (Some(predecessor), Err(failure)) = (&predecessor, &outcome) {
        predecessor.tell_failure(failure);
    }
    outcome
}

/// The same. A predecessor is taken out once there are workers.
fn serve_after(settings: &Settings, predecessor: &mut Option<Predecessor>) -> Result<(), Failure> {
    let mut settings = with_host_addresses(settings)?;
    if let Some(predecessor) = predecessor {
        settings.link = predecessor.check(&settings)?;
    }
    let settings = &settings;
    let epoch = Epoch::now();
    // First: before this, SIGUSR1 or SIGHUP would end the process.
    let signals = Signals::install().map_err(|error| {
        Failure::of_error(
            &error,
            format!("signal handlers: {error}"),
            "raise the limit of open files",
        )
    })?;
    signals.set_starting(true);
    let starter = geteuid();
    let launcher = start_launcher(settings);
    let content = Content::open(settings, epoch.real)?;
    let launcher = match &content {
        Content::Nvme(..) => Err(take_over::OWN_CONTROLLER.into()),
        _ => launcher,
    };
    let identity = Identity::resolve(settings.user.as_ref())?;
    let files = open_files(settings, &identity)?;
    let loaded = files.load_first()?;
    check_addresses(settings)?;
    let owner = identity.new_owner();
    let monitoring =
        MonitoringSetup::open(settings, loaded.configuration.clone(), owner, |address| {
            predecessor.as_mut()?.take_metrics(address)
        })?;
    for (_, path) in written_later(settings) {
        files::make_for(owner, &path);
    }
    let locks = claim::lock(settings, &identity, |name| {
        predecessor.as_mut()?.take_lock(name)
    })?;
    let context = StartupContext {
        epoch,
        content,
        signals,
        identity,
        loaded,
        files,
        monitoring,
        locks,
        starter,
        launcher,
    };
    // Rings and cells come from the node of the interface, too.
    let first = processors(settings, settings.workers_count());
    let first = first.first().copied().flatten();
    let (links, link) = cores::on(first, || links::open(settings, predecessor.as_mut()))?;
    let settings = &Settings {
        link,
        ..settings.clone()
    };
    serve_on(links.for_workers(), settings, context, predecessor)
}

/// What starts a process that takes over, if one can, or why none can.
fn start_launcher(settings: &Settings) -> Result<Launcher, String> {
    if settings.link.relayed_at().is_some() {
        return Err(format!(
            "no process can take over the link {}",
            settings.link
        ));
    }
    if matches!(settings.link, LinkChoice::Xdp(_)) && settings.zero_copy == ZeroCopy::On {
        return Err(format!(
            "no process can take over {} with --zero-copy on: the sockets have the slots of this one",
            settings.link
        ));
    }
    if settings.pcap.is_some() || settings.trace.is_some() {
        return Err(
            "no process can take over while frames or connections are written to files".into(),
        );
    }
    Launcher::start().map_err(|error| {
        warn!("no process can take over later, because none starts it: {error}");
        format!("no process starts another that could take over: {error}")
    })
}

/// What reads the operator's files, also at a later SIGHUP: this process, or the reader process.
fn open_files(settings: &Settings, identity: &Identity) -> Result<reload::Source, Failure> {
    let paths = reload::Source::paths(settings);
    let start = || {
        if paths.is_empty() || !identity.loses_files()? {
            return Ok(OperatorFiles::direct());
        }
        OperatorFiles::by_reader(paths, identity)
    };
    let files = start().map_err(|error: io::Error| {
        Failure::of_error(
            &error,
            format!("a process to read files cannot be started: {error}"),
            "see that /proc is mounted and processes may be started",
        )
    })?;
    reload::Source::new(settings, files)
}

fn start_loader(source: reload::Source, loaded: &Loaded) -> Result<Loader, Failure> {
    Loader::start(source, loaded).map_err(|error| {
        Failure::of_error(
            &error,
            format!("the thread that reads files: {error}"),
            "raise the limits of threads and of open files",
        )
    })
}

/// A worker's parts that need a privilege to be opened.
#[derive(Debug)]
struct Opened {
    link: WorkerLink,
    storage: Storage,
    /// The processor it is bound to.
    processor: Option<usize>,
}

/// Opens the rest of what needs a privilege, drops privileges, and wraps the links in captures if
/// there are to be any.
fn serve_on(
    links: Vec<WorkerLink>,
    settings: &Settings,
    context: StartupContext,
    predecessor: &mut Option<Predecessor>,
) -> Result<(), Failure> {
    let limits = &settings.limits;
    let mut descriptors = storage::descriptors_beside_roots(settings, raise_descriptor_limit()?);
    if links.iter().any(|link| link.zero_copy().is_ok()) {
        descriptors = descriptors.saturating_sub(limits.slots.into());
    }
    if !context.content.has_descriptors() {
        // The objects of a raw store share those of its devices.
        descriptors = u64::MAX;
    }
    let objects_max = storage::objects_max(limits.objects_max, descriptors, settings.workers)?;
    let is_chosen = limits.objects_max.is_some();
    let warning = storage::few_objects_warning(objects_max, is_chosen, limits.connections_max);
    if let Some(warning) = warning {
        warn!("{warning}");
    }
    if settings.https.is_none() && settings.replies.extra_fields.has_secure() {
        warn!(
            "Strict-Transport-Security goes out over TLS only, and https is off: say it where TLS ends"
        );
    }
    let objects_max = objects_max / settings.workers;
    let share = limits.share(settings.workers);
    let processors = processors(settings, links.len());
    let open = |(number, (mut link, processor)): (usize, (WorkerLink, Option<usize>))| {
        let content = (&context.content, number);
        let make = || Storage::make(&mut link, settings, &share, objects_max, content);
        let storage = cores::on(processor, make)?;
        Ok(Opened {
            link,
            storage,
            processor,
        })
    };
    let opened = links.into_iter().zip(processors).enumerate().map(open);
    let opened = opened.collect::<Result<Vec<_>, Failure>>()?;
    let slots_bytes: usize = opened
        .iter()
        .map(|worker| worker.storage.arena.bytes())
        .sum();
    let need_bytes = memory_need::of_slots(slots_bytes as u64, settings);
    info!(
        memory_mebibytes_max = need_bytes.div_ceil(1 << 20),
        "memory needed at most"
    );
    memory_need::warn_of_limit(need_bytes);
    context.identity.assume()?;
    privileges::set_core_dumps(settings.core_dumps)?;
    sandbox::enter(settings);
    context.content.check_as(&context.identity)?;
    // What follows waits for signals, too.
    context.signals.set_starting(false);
    let capture = |(number, worker): (usize, Opened)| match &settings.pcap {
        Some(path) => worker.captured(&capture_path(path, number), &context),
        None => Ok(worker),
    };
    let opened = opened.into_iter().enumerate().map(capture);
    let opened = opened.collect::<Result<Vec<_>, Failure>>()?;
    assemble(opened, settings, context, objects_max, predecessor)
}

/// The processor of each worker.
fn processors(settings: &Settings, workers: usize) -> Vec<Option<usize>> {
    let order = cores::near_first(settings.link.interface());
    let (allowed, _) = order.unwrap_or_default();
    cores::assign(workers, &allowed)
}

/// Where a worker's frames are written: the path that was named, with the worker's number behind it
/// but for the first.
fn capture_path(path: &Path, worker: usize) -> PathBuf {
    if worker == 0 {
        return path.to_owned();
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{worker}"));
    name.into()
}

impl Opened {
    /// The same with its frames written to a file.
    fn captured(self, path: &Path, context: &StartupContext) -> Result<Self, Failure> {
        let epoch_nanos = u64::try_from(context.epoch.unix().as_nanos()).unwrap_or(u64::MAX);
        let config = CaptureConfig {
            epoch_nanos,
            ..CaptureConfig::default()
        };
        let captured = Captured::create(self.link, path, config);
        let captured = captured.map_err(|error| files::refuse("--pcap", path, &error))?;
        Ok(Self {
            link: WorkerLink::Captured(Box::new(captured)),
            ..self
        })
    }
}

/// The files that the serving user opens, once privileges are dropped, and the flags that name them.
fn written_later(settings: &Settings) -> Vec<(&'static str, PathBuf)> {
    let captures = settings.pcap.iter().flat_map(|path| {
        let workers = settings.workers_count();
        (0..workers).map(|worker| ("--pcap", capture_path(path, worker)))
    });
    let traces = settings.trace.iter();
    let traces = traces.map(|trace| ("--trace", trace.file.clone()));
    captures.chain(traces).collect()
}

/// Everything a worker is put together from, in its thread.
struct Parts {
    link: WorkerLink,
    storage: Storage,
    store: Store,
    conductor: session::Config,
    other_workers: u8,
    tls: Option<worker::tls::Loaded>,
    epoch: Epoch,
    outputs: Arc<Outputs>,
    trace_peers: Option<Peers>,
    link_watch: LinkWatch,
    coalesce: Pauses,
    busy_poll: Duration,
    has_readers: bool,
}

/// Creates every part that needs no privilege, and serves.
fn assemble(
    mut opened: Vec<Opened>,
    settings: &Settings,
    context: StartupContext,
    objects_max: u32,
    predecessor: &mut Option<Predecessor>,
) -> Result<(), Failure> {
    let StartupContext {
        epoch,
        content,
        signals,
        identity,
        loaded,
        files,
        monitoring,
        locks,
        starter,
        launcher,
    } = context;
    let (clock, is_held) = (|| run::now_since(epoch.real), predecessor.is_some());
    let first = opened.first_mut().expect("invariant: there is a worker");
    let Some(interface_watch) = claim::claim(&mut first.link, settings, &signals, is_held, clock)?
    else {
        info!("ended before serving");
        return Ok(());
    };
    let aead = choose_aead_library(settings);
    let aead_library = aead
        .as_ref()
        .map_or_else(AeadLibrary::default, |(library, _)| *library);
    let capabilities = first.link.capabilities();
    debug!(
        ?capabilities,
        seconds = epoch.real.elapsed().as_secs_f32(),
        "started"
    );
    info!(
        addresses = %settings.urls(),
        mtu_bytes = capabilities.mtu_bytes,
        segmentation_bytes_max = capabilities.segmentation_bytes_max,
        workers = settings.workers,
        slots = settings.limits.slots,
        zero_copy = %first.storage.zero_copy,
        objects_max = objects_max * settings.workers,
        certificates = loaded.tls.as_ref().map_or(0, |tls| tls.certificates.count()),
        sites = loaded.site_count,
        aead_library = aead.map(|(_, text)| tracing::field::display(text)),
        user = identity.name(),
        "serving {}",
        settings.path.display()
    );
    let loader = start_loader(files, &loaded)?;
    let shared = (&locks, &monitoring);
    let succession = succession(launcher, settings, predecessor.as_ref(), &opened, shared);
    let content = content.start()?;
    let monitoring = monitoring.start(start_trace(settings, epoch)?)?;
    let monitoring = monitoring.with_links(link_infos(&opened, settings));
    let limits = settings.limits.share(settings.workers);
    let mut workers = Workers::new(opened.len()).map_err(refuse_threads)?;
    // One seed: a sequence number that one worker chooses, or a SYN cookie, is to be right for all.
    let seed = random_seed()?;
    let mut watches = vec![interface_watch];
    for _ in 1..opened.len() {
        watches.push(InterfaceWatch::open(settings.link.interface()).map_err(refuse_link)?);
    }
    for (number, (worker, watch)) in opened.into_iter().zip(watches).enumerate() {
        let store = open_store(&content, settings, objects_max, number == 0)?;
        assert_eq!(
            store.handles_max(),
            handles_max(objects_max),
            "the disk's table has an entry for each handle of the store"
        );
        let is_first = number == 0;
        let link_watch = make_link_watch(watch, settings, clock(), is_first)?;
        let parts = Parts {
            conductor: session::Config {
                are_addresses_announced: is_first && !settings.is_address_shared,
                sites: Arc::clone(&loaded.sites),
                ..conductor_config(settings, &limits, &worker.link, aead_library, seed)
            },
            other_workers: u8::try_from(settings.workers - 1)
                .expect("invariant: few workers are allowed"),
            link: worker.link,
            storage: worker.storage,
            store,
            tls: loaded.tls.clone(),
            epoch,
            outputs: Arc::clone(monitoring.outputs()),
            trace_peers: settings.trace.as_ref().map(|trace| trace.peers),
            link_watch,
            coalesce: limits.coalesce,
            busy_poll: settings.busy_poll,
            has_readers: monitoring.has_metrics(),
        };
        workers
            .start(worker.processor, move |channels| {
                parts.put_together(channels)
            })
            .map_err(refuse_threads)?;
    }
    if let Err(error) = log::start() {
        warn!("no thread for the log, so writing to stderr may block a worker: {error}");
    }
    let take_over = TakeOver::new(succession, predecessor.take(), starter);
    let supervisor = Supervisor::new(workers, signals, &limits, loader, monitoring, take_over);
    let outcome = supervisor.run(&settings.urls(), epoch.unix().as_secs());
    content.end();
    outcome
}

/// What hands over to a process that takes over, or why none can.
fn succession(
    launcher: Result<Launcher, String>,
    settings: &Settings,
    predecessor: Option<&Predecessor>,
    workers: &[Opened],
    (locks, monitoring): (&Locks, &MonitoringSetup),
) -> Result<Succession, String> {
    let launcher = launcher?;
    let share = || {
        let (mut xdp, mut queues) = (Vec::new(), Vec::new());
        for worker in workers {
            let (shape, descriptors) = worker.link.share()?;
            xdp.extend(shape.map(XdpQueue::from));
            queues.extend(descriptors);
        }
        let (names, sockets) = locks.share()?;
        let metrics = monitoring.share()?;
        let hello = Hello {
            version: take_over::VERSION,
            workers: settings.workers_count(),
            link: settings.link.to_string(),
            station: take_over::station(settings),
            generation: predecessor.map_or(0, Predecessor::generation),
            queues: queues.len(),
            xdp,
            shared_ports: if settings.is_address_shared {
                shared_ports(settings)
            } else {
                Vec::new()
            },
            locks: names,
            metrics: settings.metrics.filter(|_| metrics.is_some()),
            knows_return: true,
        };
        let shared = queues.into_iter().chain(sockets).chain(metrics).collect();
        let start_time = settings.limits.take_over_start;
        Ok(Succession::new(launcher, hello, shared, start_time))
    };
    share().map_err(|error: io::Error| format!("no process can take over: {error}"))
}

/// What watches the link of a worker, and its addresses, if they or the ways to their clients may change.
fn make_link_watch(
    watch: InterfaceWatch,
    settings: &Settings,
    now: Instant,
    is_first: bool,
) -> Result<LinkWatch, Failure> {
    let has_own_mac = is_first && !settings.link.is_private() && settings.mac == MacSetting::Own;
    let mut link_watch = LinkWatch::new(watch, now, has_own_mac, is_first);
    let addresses = HostAddresses {
        all: settings.own_addresses(),
        virtual_addresses: settings.virtual_addresses.clone(),
        left_out_count: 0,
    };
    if let Some(addresses) = AddressWatch::new(addresses, settings.is_address_shared, is_first) {
        link_watch.follow(addresses).map_err(refuse_link)?;
    }
    Ok(link_watch)
}

/// How the frames of each worker travel.
fn link_infos(opened: &[Opened], settings: &Settings) -> Vec<LinkInfo> {
    let info = |worker: &Opened| LinkInfo {
        kind: settings.link.kind(),
        interface: settings.link.interface().to_owned(),
        path: worker.link.frame_path(),
        lends: worker.storage.lends,
    };
    opened.iter().map(info).collect()
}

impl Parts {
    fn put_together(
        self,
        channels: WorkerChannels,
    ) -> Result<Serving<WorkerLink, WorkerDisk>, Failure> {
        let Storage {
            arena, mut disk, ..
        } = self.storage;
        disk.enable()?;
        let connections_max = self.conductor.connections_max;
        let handshaker = self.tls.map(|loaded| {
            let mut handshaker = Handshaker::new(loaded.config, connections_max);
            handshaker.set_certificate_end(loaded.certificates.earliest_end());
            handshaker
        });
        let mut conductor = Conductor::new(self.conductor);
        conductor.set_other_workers(self.other_workers);
        let mut worker = Worker::new(self.link, disk, self.store, conductor, arena, handshaker);
        if let Some(log) = monitoring::request_log(&self.outputs) {
            worker.set_request_log(Box::new(log));
        }
        if let (Some(output), Some(peers)) = (&self.outputs.trace, self.trace_peers) {
            let sink = PeerTrace::new(peers, Arc::clone(output));
            worker.set_connection_trace(Box::new(sink));
        }
        let WorkerChannels {
            number,
            mailbox,
            next_worker,
            supervisor,
        } = channels;
        let drive = Drive {
            number,
            epoch: self.epoch.real,
            mailbox,
            next_worker,
            supervisor: Some(supervisor),
            coalesce: self.coalesce,
            busy_poll: self.busy_poll,
            has_readers: self.has_readers,
            link_watch: Some(self.link_watch),
        };
        Ok(Serving::new(worker, drive))
    }
}

fn random_seed() -> Result<[u8; 32], Failure> {
    host::random_seed().map_err(|error| {
        Failure::of_error(
            &error,
            format!("getrandom: {error}"),
            "allow it in the seccomp profile",
        )
    })
}

fn refuse_threads(error: io::Error) -> Failure {
    Failure::of_error(
        &error,
        format!("the workers cannot be started: {error}"),
        "raise the limits of threads (ulimit -u) and of open files, or use fewer workers",
    )
}

/// Starts the trace, if there is to be one: as the user that serves.
fn start_trace(settings: &Settings, epoch: Epoch) -> Result<Option<Arc<Output>>, Failure> {
    let Some(trace) = &settings.trace else {
        return Ok(None);
    };
    let start_ms = u64::try_from(epoch.unix().as_millis()).unwrap_or(u64::MAX);
    trace.start(start_ms).map(Some)
}

fn conductor_config(
    settings: &Settings,
    limits: &Limits,
    link: &WorkerLink,
    aead_library: AeadLibrary,
    seed: [u8; 32],
) -> session::Config {
    let capabilities = link.capabilities();
    session::Config {
        addresses: settings.own_addresses(),
        virtual_addresses: settings.virtual_addresses.clone(),
        mac: capabilities.mac,
        mtu_bytes: capabilities.mtu_bytes,
        segmentation_bytes_max: capabilities.segmentation_bytes_max,
        checksum_offload: capabilities.checksum_offload,
        http_port: settings.http_port,
        https_port: settings.https.as_ref().map(|https| https.port),
        // The limit of the cipher suite applies as well.
        key_records_max: limits.tls_key_records_max.unwrap_or(u64::MAX),
        aead_library,
        connections_max: limits.connections_max,
        connections_per_source_max: limits.connections_per_source_max,
        seed,
        unix_seconds_at_start: wall_clock::now().whole_seconds(),
        reads_max: reads_max(limits),
        kept_slots_max: kept_slots_max(limits),
        kept_copy_bytes: kept_copy_bytes(limits),
        ..settings.conductor.clone()
    }
}

/// The library that seals, and what the log says of it: the configured one, or the fastest here.
/// `None` if there is nothing to seal.
fn choose_aead_library(settings: &Settings) -> Option<(AeadLibrary, String)> {
    settings.https.as_ref()?;
    Some(match settings.aead_library {
        Some(library) => (library, format!("{} (configured)", library.name())),
        None => {
            let measurement = Measurement::take();
            (measurement.choice(), measurement.to_string())
        }
    })
}

/// The settings, with the addresses of the host in them if the server shares those.
fn with_host_addresses(settings: &Settings) -> Result<Settings, Failure> {
    let mut settings = settings.clone();
    if settings.is_address_shared {
        let found = host_addresses(&settings.link)?;
        let of_host = |it: &IpAddr| Cidr::of_host(*it);
        settings.addresses = found.all.iter().filter_map(of_host).collect();
        settings.virtual_addresses = found.virtual_addresses;
    }
    Ok(settings)
}

/// The host's own addresses that are served on this interface.
fn host_addresses(link: &LinkChoice) -> Result<HostAddresses, Failure> {
    let interface = link.interface();
    let found = HostAddresses::read(interface).map_err(|error| {
        Failure::of_error(
            &error,
            format!("the host's addresses cannot be listed: {error}"),
            "allow netlink sockets in the seccomp profile",
        )
    })?;
    if found.all.is_empty() {
        // DHCP may be on its way, and the interface itself.
        return Err(Failure::not_now(
            format!("--link {link}: the host has no address there that clients can name"),
            format!("give it one (ip addr add ADDRESS/BITS dev {interface}), or use --address"),
        ));
    }
    Ok(found)
}

/// Refuses addresses of the host's kernel, which would answer for them as well, unless it shares them.
fn check_addresses(settings: &Settings) -> Result<(), Failure> {
    if settings.is_address_shared {
        tell_shared_ports(settings);
        return Ok(());
    }
    if settings.link.relayed_at().is_some() {
        // Nobody but the relay sees them.
        return Ok(());
    }
    let owned = host::interface_addresses().map_err(|error| {
        Failure::of_error(
            &error,
            format!("the host's addresses cannot be listed: {error}"),
            "allow netlink sockets in the seccomp profile",
        )
    })?;
    for cidr in &settings.addresses {
        let address = cidr.address();
        if let Some(owner) = owned.iter().find(|owner| owner.address == address) {
            return Err(Failure::refused(
                format!(
                    "{} {cidr}: this host has that address on {}",
                    settings.addresses_origin, owner.interface
                ),
                "choose one that no host has",
            ));
        }
    }
    Ok(())
}

/// Says which ports of the host's are ours from now on, and warns of servers of the host's own on them.
fn tell_shared_ports(settings: &Settings) {
    let interface = settings.link.interface();
    for port in shared_ports(settings) {
        match host::listens_at(&settings.own_addresses(), port) {
            Ok(true) => warn!(
                "this host has a server of its own on port {port}: from {interface} it gets nothing any \
                 more; stop it, or choose another port"
            ),
            Ok(false) => info!(
                "port {port} of the host's addresses on {interface} is this server's: no other server of \
                 the host hears of clients there"
            ),
            Err(error) => warn!(
                "port {port} of the host's addresses on {interface} is this server's, and a server of the \
                 host's own on it would get nothing any more; whether there is one cannot be told: {error}"
            ),
        }
    }
}

/// Our ports, which are also what we take of the host's own addresses.
pub(crate) fn shared_ports(settings: &Settings) -> Vec<u16> {
    let https_port = settings.https.as_ref().map(|https| https.port);
    settings.http_port.into_iter().chain(https_port).collect()
}

/// For each subnet of ours one address for the host's end of a tap: the first free one.
fn host_ends(addresses: &[Cidr]) -> Vec<InterfaceAddress> {
    let mut taken: Vec<_> = addresses.iter().map(Cidr::address).collect();
    let mut ends: Vec<Cidr> = Vec::new();
    for cidr in addresses {
        if ends.iter().any(|end| cidr.contains(end.address())) {
            continue;
        }
        match cidr.first_free(&taken) {
            Some(end) => {
                taken.push(end.address());
                ends.push(end);
            }
            None => warn!("{cidr} has no room for the host's end: route to it by hand"),
        }
    }
    ends.iter()
        .map(|end| InterfaceAddress {
            address: end.address(),
            prefix_bits: end.prefix_bits(),
        })
        .collect()
}

/// Why a link cannot be opened, and whether it may be soon.
pub(crate) fn refuse_link(error: SetupError) -> Failure {
    let text = format!("--link: {error}");
    if error.may_pass() {
        Failure::NotNow(text)
    } else {
        Failure::Refused(text)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{capture_path, host_addresses, host_ends};
    use crate::settings::LinkChoice;
    use crate::settings::cidr::Cidr;

    fn ends(texts: &[&str]) -> Vec<String> {
        let addresses: Vec<Cidr> = texts
            .iter()
            .map(|text| Cidr::parse(text).unwrap())
            .collect();
        let show = |end: &link::InterfaceAddress| format!("{}/{}", end.address, end.prefix_bits);
        host_ends(&addresses).iter().map(show).collect()
    }

    #[test]
    fn each_worker_writes_a_capture_of_its_own() {
        let path = |worker| capture_path(Path::new("/tmp/a.pcap"), worker);
        assert_eq!(path(0), Path::new("/tmp/a.pcap"));
        assert_eq!(path(1), Path::new("/tmp/a.pcap.1"));
        assert_eq!(path(63), Path::new("/tmp/a.pcap.63"));
    }

    #[test]
    fn each_subnet_gets_one_host_end() {
        assert_eq!(
            ends(&["10.77.0.2/24", "fd77::2/64"]),
            ["10.77.0.1/24", "fd77::1/64"]
        );
        assert_eq!(ends(&["10.77.0.2/24", "10.77.0.1/24"]), ["10.77.0.3/24"]);
        assert_eq!(
            ends(&["10.77.0.1/24", "10.78.0.1/24"]),
            ["10.77.0.2/24", "10.78.0.2/24"]
        );
        assert_eq!(ends(&["10.77.0.2/32"]), [""; 0]);
    }

    #[test]
    fn the_host_s_addresses_are_those_that_a_url_can_name() {
        let refusal = host_addresses(&LinkChoice::Xdp("lo".into()))
            .unwrap_err()
            .to_string();
        assert!(
            refusal.starts_with("--link xdp:lo: the host has no address there"),
            "{refusal}"
        );
        assert!(
            refusal.contains("ip addr add ADDRESS/BITS dev lo"),
            "{refusal}"
        );
    }
}
