//! Start-up: checks that the host has what the settings need, creates the parts and connects them.
//!
//! The checks run from the cheapest to the most expensive: directory, user, certificates, addresses,
//! interface and permissions, descriptors, memory, disk, the network (see [`crate::claim`]). It
//! refuses to start half: the first check that fails is reported in one line with its remedy.
//!
//! Everything that needs a privilege is opened first; then privileges are dropped
//! ([`crate::privileges`]). The rest is done as the user that serves: create the capture, probe the
//! network for our addresses, open the directory, start the store's threads. So all threads have the
//! same rights.
//!
//! A check that only costs speed (ordinary pages instead of huge ones) is logged with its remedy, and
//! the server starts. Bounds: `DESCRIPTORS_RESERVED`, `FILES_TRIED_MAX`.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant as RealInstant, SystemTime};

use diskmap::uring::{Uring, UringConfig};
use link::{
    CaptureConfig, Captured, InterfaceAddress, Link, MacChoice, Packet, PacketConfig, SetupError,
    Tap, TapConfig, ZeroCopy,
};
use memory::{Arena, ArenaConfig, PageKind};
use record::AeadLibrary;
use session::Conductor;
use store::{Direct, DirectSupport, Store, StoreConfig, StoreError};
use tracing::{debug, info, warn};

use crate::aead::Measurement;
use crate::cidr::Cidr;
use crate::claim::{self, Locks};
use crate::config;
use crate::failure::Failure;
use crate::host;
use crate::link_watch::LinkWatch;
use crate::log;
use crate::monitoring::MonitoringSetup;
use crate::output::Output;
use crate::privileges::{self, Identity};
use crate::run::{self, Serving, Sleeps};
use crate::settings::{Https, Limits, LinkChoice, MacSetting, Settings};
use crate::signals::Signals;
use crate::tls::{self, Handshaker, PemFiles};
use crate::trace::PeerTrace;
use crate::wall_clock;
use crate::worker::Worker;

/// Descriptors reserved for everything that is not an open object: ring, link, store, log, capture,
/// and objects that wait to be closed ([`store::CLOSED_HANDLES_MAX`], [`store::CLOSES_MAX`]).
const DESCRIPTORS_RESERVED: u64 = 384;

/// Files of the directory that are tried at start.
const FILES_TRIED_MAX: usize = 64;

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
    signals: Signals,
    /// The user that serves.
    identity: Identity,
    /// The TLS configuration, and the files it was loaded from.
    tls: Option<(tls::Loaded, tls::Source)>,
    monitoring: MonitoringSetup,
    /// Held to the end.
    locks: Locks,
}

/// Starts the server and serves until it ends.
///
/// # Errors
/// A failed check (exit code 2), or an error while serving (exit code 1).
pub fn serve(settings: &Settings) -> Result<(), Failure> {
    let epoch = Epoch::now();
    // First: before this, SIGUSR1 or SIGHUP would end the process.
    let signals = Signals::install().map_err(|error| {
        Failure::refused(
            format!("signal handlers: {error}"),
            "raise the limit of open files",
        )
    })?;
    check_directory(&settings.path)?;
    let identity = Identity::resolve(settings)?;
    let tls = load_tls(settings, &identity)?;
    check_addresses(settings)?;
    let monitoring = MonitoringSetup::open(settings, &identity)?;
    let locks = claim::lock(settings)?;
    let context = StartupContext {
        epoch,
        signals,
        identity,
        tls,
        monitoring,
        locks,
    };
    match &settings.link {
        LinkChoice::Tap(name) => {
            let config = TapConfig {
                name: name.clone(),
                host_addresses: host_ends(&settings.addresses),
            };
            let tap = Tap::open(&config).map_err(refuse_link)?;
            serve_on(tap, settings, context)
        }
        LinkChoice::Packet(interface) => {
            let config = PacketConfig {
                mac: match settings.mac {
                    MacSetting::Own => MacChoice::Own,
                    MacSetting::Interface => MacChoice::Interface,
                },
                zero_copy: settings.zero_copy,
                ..PacketConfig::new(interface, &settings.own_addresses())
            };
            let packet = Packet::open(&config).map_err(refuse_link)?;
            serve_on(packet, settings, context)
        }
    }
}

/// Runs the checks of [`serve`] that touch no interface, and prints the result on stdout.
///
/// # Errors
/// The check that failed.
pub fn check(settings: &Settings) -> Result<(), Failure> {
    check_directory(&settings.path)?;
    let identity = Identity::resolve(settings)?;
    load_tls(settings, &identity)?;
    check_addresses(settings)?;
    objects_max(settings.limits.objects_max, raise_descriptor_limit()?)?;
    identity.assume()?;
    check_directory_as(&settings.path, &identity)?;
    let urls = settings.urls();
    // If stdout is closed, the exit code still tells.
    let _ = writeln!(io::stdout(), "ok: could serve {urls} as {identity}");
    Ok(())
}

/// Reads the certificates, if TLS is configured.
fn load_tls(
    settings: &Settings,
    identity: &Identity,
) -> Result<Option<(tls::Loaded, tls::Source)>, Failure> {
    let Some(https) = &settings.https else {
        return Ok(None);
    };
    let source = tls::Source::new(https, pem_files(https, identity)?)?;
    Ok(Some((source.load()?, source)))
}

/// What reads certificates and keys, also at a later SIGHUP: this process, or the reader process.
fn pem_files(https: &Https, identity: &Identity) -> Result<PemFiles, Failure> {
    let start = || {
        if !identity.loses_files()? {
            return Ok(PemFiles::direct());
        }
        let files = https.pairs.iter();
        let files = files.flat_map(|pair| [&pair.certificate.path, &pair.key.path]);
        PemFiles::by_reader(files.cloned().collect(), identity)
    };
    start().map_err(|error: io::Error| {
        Failure::refused(
            format!("a process to read certificates cannot be started: {error}"),
            "see that /proc is mounted and processes may be started",
        )
    })
}

fn start_loader(source: tls::Source, loaded: &tls::Loaded) -> Result<tls::Loader, Failure> {
    tls::Loader::start(source, loaded).map_err(|error| {
        Failure::refused(
            format!("the thread that reads certificates: {error}"),
            "raise the limits of threads and of open files",
        )
    })
}

/// Opens the rest of what needs a privilege, drops privileges, and wraps the link in a capture if
/// one is configured.
fn serve_on<L: Link>(
    mut link: L,
    settings: &Settings,
    context: StartupContext,
) -> Result<(), Failure> {
    let limits = &settings.limits;
    let mut descriptors = raise_descriptor_limit()?;
    if link.zero_copy().is_ok() {
        descriptors = descriptors.saturating_sub(limits.slots.into());
    }
    let objects_max = objects_max(limits.objects_max, descriptors)?;
    let is_chosen = limits.objects_max.is_some();
    if let Some(warning) = few_objects_warning(objects_max, is_chosen, limits.connections_max) {
        warn!("{warning}");
    }
    let (arena, zero_copy) = make_slots(&mut link, settings)?;
    let disk = make_disk(limits.disk_queue_depth, handles_max(objects_max), &arena)?;
    let storage = Storage {
        objects_max,
        arena,
        disk,
        zero_copy,
    };
    context.identity.assume()?;
    privileges::set_core_dumps(settings.core_dumps)?;
    check_directory_as(&settings.path, &context.identity)?;
    let Some(path) = &settings.pcap else {
        return assemble(link, settings, context, storage);
    };
    let epoch_nanos = u64::try_from(context.epoch.unix().as_nanos()).unwrap_or(u64::MAX);
    let config = CaptureConfig {
        epoch_nanos,
        ..CaptureConfig::default()
    };
    let captured = Captured::create(link, path, config).map_err(|error| {
        let (path, identity) = (path.display(), &context.identity);
        match error.raw_os_error() {
            Some(libc::ELOOP) => Failure::refused(
                format!("--pcap {path}: that is a symbolic link"),
                "name a file",
            ),
            _ => Failure::refused(
                format!("--pcap {path}: {error}"),
                format!("name a file that can be written by {identity}"),
            ),
        }
    })?;
    assemble(captured, settings, context, storage)
}

/// The disk and the slots it reads into.
#[derive(Debug)]
struct Storage {
    objects_max: u32,
    arena: Arena,
    disk: Uring,
    /// Whether frames are sent from the slots, for the log: `yes`, or `no (why)`.
    zero_copy: String,
}

/// Creates every part that needs no privilege, and serves.
fn assemble<L: Link>(
    mut link: L,
    settings: &Settings,
    context: StartupContext,
    storage: Storage,
) -> Result<(), Failure> {
    let StartupContext {
        epoch,
        signals,
        identity,
        tls,
        monitoring,
        locks: _locks,
    } = context;
    let clock = || run::now_since(epoch.real);
    let Some(link_watch) = claim::claim(&mut link, settings, &signals, clock)? else {
        info!("ended before serving");
        return Ok(());
    };
    let has_own_mac =
        matches!(settings.link, LinkChoice::Packet(_)) && settings.mac == MacSetting::Own;
    let link_watch = LinkWatch::new(link_watch, clock(), has_own_mac);
    let limits = &settings.limits;
    let store = open_store(settings, storage.objects_max)?;
    assert_eq!(
        store.handles_max(),
        handles_max(storage.objects_max),
        "the disk's table has an entry for each handle of the store"
    );
    let seed = host::random_seed().map_err(|error| {
        Failure::refused(
            format!("getrandom: {error}"),
            "allow it in the seccomp profile",
        )
    })?;
    let aead = choose_aead_library(settings);
    let aead_library = aead
        .as_ref()
        .map_or_else(AeadLibrary::default, |(library, _)| *library);
    let conductor = Conductor::new(conductor_config(settings, &link, aead_library, seed));
    #[cfg(feature = "emulate")]
    if settings.is_sealing_emulated() {
        warn!("emulated TLS: files are sealed under a publicly known key; for benchmarks only");
    }
    debug!(capabilities = ?link.capabilities(), seconds = epoch.real.elapsed().as_secs_f32(), "started");
    info!(
        addresses = %settings.urls(),
        mtu_bytes = link.capabilities().mtu_bytes,
        segmentation_bytes_max = link.capabilities().segmentation_bytes_max,
        slots = limits.slots,
        zero_copy = %storage.zero_copy,
        objects_max = storage.objects_max,
        certificates = tls.as_ref().map_or(0, |(loaded, _)| loaded.certificates.count()),
        aead_library = aead.map(|(_, text)| tracing::field::display(text)),
        user = identity.name(),
        "serving {}",
        settings.path.display()
    );
    let (loader, handshaker) = match tls {
        Some((loaded, source)) => {
            let loader = start_loader(source, &loaded)?;
            let mut handshaker = Handshaker::new(loaded.config, limits.connections_max);
            handshaker.set_certificate_end(loaded.certificates.earliest_end());
            (Some(loader), Some(handshaker))
        }
        None => (None, None),
    };
    let Storage { arena, disk, .. } = storage;
    let mut worker = Worker::new(link, disk, store, conductor, arena, handshaker);
    let counters = run::counters(&worker, Sleeps::default());
    let trace = start_trace(settings, &mut worker, epoch)?;
    let monitoring = monitoring.start(&counters, epoch.real, epoch.unix().as_secs(), trace)?;
    if let Some(log) = monitoring.request_log() {
        worker.set_request_log(Box::new(log));
    }
    if let Err(error) = log::start() {
        warn!("no thread for the log, so writing to stderr may block the worker: {error}");
    }
    let serving = Serving::new(
        worker,
        signals,
        epoch.real,
        limits.shutdown_grace,
        loader,
        monitoring,
    )
    .with_link_watch(link_watch)
    .with_coalescing(limits.coalesce);
    serving.run(&settings.urls())
}

/// Starts the trace, if there is to be one: as the user that serves.
fn start_trace<L: Link>(
    settings: &Settings,
    worker: &mut Worker<L, Uring>,
    epoch: Epoch,
) -> Result<Option<Arc<Output>>, Failure> {
    let Some(trace) = &settings.trace else {
        return Ok(None);
    };
    let start_ms = u64::try_from(epoch.unix().as_millis()).unwrap_or(u64::MAX);
    let output = trace.start(start_ms)?;
    let sink = PeerTrace::new(trace.peers, Arc::clone(&output));
    worker.set_connection_trace(Box::new(sink));
    Ok(Some(output))
}

fn conductor_config<L: Link>(
    settings: &Settings,
    link: &L,
    aead_library: AeadLibrary,
    seed: [u8; 32],
) -> session::Config {
    let capabilities = link.capabilities();
    session::Config {
        addresses: settings.own_addresses(),
        mac: capabilities.mac,
        mtu_bytes: capabilities.mtu_bytes,
        segmentation_bytes_max: capabilities.segmentation_bytes_max,
        checksum_offload: capabilities.checksum_offload,
        http_port: settings.http_port,
        https_port: settings.https.as_ref().map(|https| https.port),
        // The limit of the cipher suite applies as well.
        key_records_max: settings.limits.tls_key_records_max.unwrap_or(u64::MAX),
        tcp: settings.tcp,
        aead_library,
        is_sealing_emulated: settings.is_sealing_emulated(),
        connections_max: settings.limits.connections_max,
        connections_per_source_max: settings.limits.connections_per_source_max,
        seed,
        replies: settings.replies.clone(),
        unix_seconds_at_start: wall_clock::unix_seconds(),
        head_timeout: settings.limits.head_timeout,
        idle_timeout: settings.limits.idle_timeout,
        send_timeout: settings.limits.send_timeout,
        read_limits: session::ReadLimits::default(),
        reads_max: reads_max(&settings.limits),
    }
}

/// The library that seals, and what the log says of it: the configured one, or the fastest here.
/// `None` if there is nothing to seal.
fn choose_aead_library(settings: &Settings) -> Option<(AeadLibrary, String)> {
    if settings.https.is_none() && !settings.is_sealing_emulated() {
        return None;
    }
    Some(match settings.aead_library {
        Some(library) => (library, format!("{} (configured)", library.name())),
        None => {
            let measurement = Measurement::take();
            (measurement.choice(), measurement.to_string())
        }
    })
}

/// Most reads in progress: limited by slots and by the disk's queue.
fn reads_max(limits: &Limits) -> usize {
    usize::try_from(limits.slots.min(limits.disk_queue_depth))
        .expect("invariant: a usize has at least 32 bits")
}

fn check_directory(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let refuse = |problem: &str, remedy: &str| {
        Err(Failure::refused(format!("PATH {shown}: {problem}"), remedy))
    };
    match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            refuse("there is no such directory", "name an existing one")
        }
        Err(error) => refuse(
            &error.to_string(),
            "name a directory that this user can reach",
        ),
        Ok(metadata) if !metadata.is_dir() => refuse(
            "that is not a directory",
            "name the directory the files are in",
        ),
        // Serving lists no directory, but one that cannot be listed is seldom the one intended.
        Ok(_) => match fs::read_dir(path) {
            Ok(_) => Ok(()),
            Err(error) => refuse(
                &error.to_string(),
                "let this user read it, or run as another",
            ),
        },
    }
}

/// Checks the directory again as the user that serves: the first check ran as root.
fn check_directory_as(path: &Path, identity: &Identity) -> Result<(), Failure> {
    let Err(error) = fs::read_dir(path) else {
        warn_of_unreadable_files(path, identity);
        return Ok(());
    };
    let path = path.display();
    Err(Failure::refused(
        format!("PATH {path}: {identity} cannot read it: {error}"),
        format!(
            "let everybody (chmod -R o+rX {path}, and o+x on the directories above), or name \
             another user with --user"
        ),
    ))
}

/// Warns at start if the serving user can read none of the first files.
fn warn_of_unreadable_files(path: &Path, identity: &Identity) {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    let is_closed = |entry: fs::DirEntry| {
        fs::File::open(entry.path())
            .is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    };
    let mut closed = files.take(FILES_TRIED_MAX).map(is_closed).peekable();
    if closed.peek().is_some() && closed.all(|is_closed| is_closed) {
        let path = path.display();
        warn!(
            "{path}: {identity} cannot read the files in it: requests for them get 403; \
             chmod -R o+rX {path}, or name another user with --user"
        );
    }
}

/// Refuses addresses of the host's kernel, which would answer for them as well.
fn check_addresses(settings: &Settings) -> Result<(), Failure> {
    let owned = host::interface_addresses().map_err(|error| {
        Failure::refused(
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

fn refuse_link(error: SetupError) -> Failure {
    Failure::Refused(format!("--link: {error}"))
}

fn raise_descriptor_limit() -> Result<u64, Failure> {
    host::raise_descriptor_limit().map_err(|error| {
        Failure::refused(
            format!("the limit of open files cannot be raised: {error}"),
            "allow setrlimit in the seccomp profile",
        )
    })
}

/// How many objects may be open, given the limit of descriptors.
fn objects_max(configured: Option<usize>, descriptors: u64) -> Result<u32, Failure> {
    let room = descriptors.saturating_sub(DESCRIPTORS_RESERVED);
    if room == 0 {
        return Err(Failure::refused(
            format!(
                "only {descriptors} files may be open, and {DESCRIPTORS_RESERVED} are needed \
                 beside those that are served"
            ),
            "raise the hard limit (ulimit -Hn, LimitNOFILE=), best to 65536",
        ));
    }
    let wanted = match configured {
        Some(count) => u64::try_from(count).unwrap_or(u64::MAX),
        None => room.clamp(1, *config::OBJECTS_MAX.range.end()),
    };
    if wanted > room {
        return Err(Failure::refused(
            format!(
                "objects_max {wanted}: only {descriptors} files may be open, \
                 {DESCRIPTORS_RESERVED} of them are reserved"
            ),
            format!("raise the hard limit (ulimit -Hn, LimitNOFILE=) or use at most {room}"),
        ));
    }
    u32::try_from(wanted).map_err(|_| {
        Failure::refused(
            format!("objects_max {wanted}: out of range"),
            "use a smaller one",
        )
    })
}

/// The warning if there may be more connections than open objects.
fn few_objects_warning(
    objects_max: u32,
    is_chosen: bool,
    connections_max: usize,
) -> Option<String> {
    let connections_max = u64::try_from(connections_max).unwrap_or(u64::MAX);
    if u64::from(objects_max) >= connections_max {
        return None;
    }
    let most = *config::OBJECTS_MAX.range.end();
    let descriptors = connections_max.min(most) + DESCRIPTORS_RESERVED;
    let remedy = match (u64::from(objects_max) == most, is_chosen) {
        (true, _) => "no server opens more: use a smaller connections_max".into(),
        (false, true) => "raise objects_max".into(),
        (false, false) => {
            format!("raise the hard limit (ulimit -Hn, LimitNOFILE=) to {descriptors}")
        }
    };
    Some(format!(
        "only {objects_max} files may be open, and there may be {connections_max} connections: if \
         each requests another file, requests wait, and get 503 if that takes long; {remedy}"
    ))
}

fn widen(count: u32) -> usize {
    usize::try_from(count).expect("invariant: a usize has at least 32 bits")
}

/// Number of handles of a store with this many objects.
fn handles_max(objects_max: u32) -> usize {
    widen(objects_max) + store::CLOSED_HANDLES_MAX
}

fn open_store(settings: &Settings, objects_max: u32) -> Result<Store, Failure> {
    let path = settings.path.display();
    let config = StoreConfig {
        objects_max: widen(objects_max),
        direct: if settings.buffered {
            Direct::Preferred
        } else {
            Direct::Required
        },
        ..StoreConfig::default()
    };
    let store = Store::open_directory(&settings.path, config).map_err(|error| match error {
        StoreError::NotDirect { path: file } => Failure::refused(
            format!(
                "PATH {path}: its file system refuses O_DIRECT (tried {})",
                file.display()
            ),
            "serve from ext4, xfs or btrfs, or set buffered = true in the configuration file",
        ),
        StoreError::OpenAt2(_) => Failure::Refused(error.to_string()),
        error => Failure::refused(
            format!("PATH {path}: {error}"),
            "see that this user may read the directory and start threads",
        ),
    })?;
    match store.direct_support() {
        DirectSupport::Direct => {}
        DirectSupport::Refused => {
            warn!("{path}: its file system refuses O_DIRECT: reading through the page cache");
        }
        DirectSupport::Unknown => info!("{path}: no file there to try O_DIRECT with"),
    }
    Ok(store)
}

/// Makes the slots, and lends them to the link if it sends from them; says whether it does.
fn make_slots<L: Link>(link: &mut L, settings: &Settings) -> Result<(Arena, String), Failure> {
    let config = ArenaConfig::new(settings.limits.slots);
    let lent = match link.zero_copy() {
        Ok(()) => {
            // The link puts other pages in their place, which it cannot do with huge ones.
            let arena = make_arena(ArenaConfig {
                pages: PageKind::Ordinary,
                ..config
            })?;
            link.borrow_slots(arena.slot_memory()).map(|()| arena)
        }
        Err(reason) => Err(reason),
    };
    match lent {
        Ok(arena) => Ok((arena, "yes".to_owned())),
        Err(reason) if settings.zero_copy == ZeroCopy::On => Err(Failure::refused(
            format!("{} on: {reason}", settings.zero_copy_origin),
            "use auto, or fewer slots",
        )),
        Err(reason) => Ok((make_arena(config)?, format!("no ({reason})"))),
    }
}

fn make_arena(config: ArenaConfig) -> Result<Arena, Failure> {
    let slots = config.slot_count;
    let arena =
        Arena::new(config).map_err(|error| Failure::Refused(format!("slots {slots}: {error}")))?;
    let mebibytes = arena.bytes() >> 20;
    match (arena.pages(), arena.fallback_reason()) {
        (PageKind::Ordinary, Some(reason)) => warn!(mebibytes, "slots: {reason}"),
        (_, Some(reason)) => info!(mebibytes, "slots: {reason}"),
        // As asked for: a link is to put its own pages in their place.
        (PageKind::Ordinary, None) => {}
        (pages, None) => info!(mebibytes, ?pages, "slots are in huge pages"),
    }
    Ok(arena)
}

fn make_disk(queue_depth: u32, files_max: usize, arena: &Arena) -> Result<Uring, Failure> {
    let files_max = u32::try_from(files_max).unwrap_or(u32::MAX);
    let config = UringConfig {
        queue_depth,
        files_max,
        return_closed_files: true,
        ..UringConfig::default()
    };
    let disk = Uring::new(config, arena).map_err(|error| Failure::Refused(error.to_string()))?;
    if let Some(reason) = disk.fallback_reason() {
        info!("io_uring without registered buffers or files: {reason}");
    }
    Ok(disk)
}

#[cfg(test)]
mod tests {
    use super::{DESCRIPTORS_RESERVED, few_objects_warning, host_ends, objects_max};
    use crate::cidr::Cidr;

    fn ends(texts: &[&str]) -> Vec<String> {
        let addresses: Vec<Cidr> = texts
            .iter()
            .map(|text| Cidr::parse(text).unwrap())
            .collect();
        let show = |end: &link::InterfaceAddress| format!("{}/{}", end.address, end.prefix_bits);
        host_ends(&addresses).iter().map(show).collect()
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
    fn objects_leave_descriptors_for_the_rest() {
        assert_eq!(objects_max(Some(100), DESCRIPTORS_RESERVED + 100), Ok(100));
        let refusal = objects_max(Some(101), DESCRIPTORS_RESERVED + 100)
            .unwrap_err()
            .to_string();
        assert!(
            refusal.starts_with("objects_max 101: only 484 files may be open"),
            "{refusal}"
        );
        assert!(refusal.ends_with("or use at most 100"), "{refusal}");
    }

    #[test]
    fn without_a_setting_objects_use_all_unreserved_descriptors() {
        assert_eq!(objects_max(None, DESCRIPTORS_RESERVED + 100), Ok(100));
        assert_eq!(objects_max(None, 1 << 40), Ok(65_000));
        let refusal = objects_max(None, DESCRIPTORS_RESERVED).unwrap_err();
        let refusal = refusal.to_string();
        assert!(
            refusal.contains("only 384 files may be open, and 384 are needed"),
            "{refusal}"
        );
        assert_eq!(objects_max(None, DESCRIPTORS_RESERVED + 1), Ok(1));
    }

    #[test]
    fn too_few_objects_for_the_connections_are_warned_of() {
        for is_chosen in [false, true] {
            assert_eq!(few_objects_warning(100, is_chosen, 100), None);
        }
        let warning = |objects, is_chosen, connections| {
            few_objects_warning(objects, is_chosen, connections).expect("a warning")
        };
        let few = warning(100, false, 101);
        assert!(few.starts_with("only 100 files may be open"), "{few}");
        assert!(few.ends_with("LimitNOFILE=) to 485"), "{few}");
        let chosen = warning(100, true, 101);
        assert!(chosen.ends_with("raise objects_max"), "{chosen}");
        let most = warning(65_000, false, 65_001);
        assert!(most.ends_with("a smaller connections_max"), "{most}");
        let descriptors = warning(100, false, 1 << 20);
        assert!(descriptors.ends_with("to 65384"), "{descriptors}");
    }
}
