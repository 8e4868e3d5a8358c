//! The settings of the server: flags override the file, the file overrides defaults; every value is
//! checked.
//!
//! It refuses to query the host (see [`crate::start`]), but for the number of its processors where
//! `workers` is `auto`: else the same command line and file resolve to the same settings on any machine.
//! Every error names the flag or key, the value and the remedy. Bounds:
//! the ranges of the keys in [`table`].

pub(crate) mod cidr;
pub(crate) mod cli;
mod file;
mod key;
mod link;
mod place;
mod problems;
pub(crate) mod sites;
mod sources;
pub(crate) mod table;
mod user;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ::link::ZeroCopy;
use ::sites::networks::Network;
use http::{ContentTypes, Cors, ExtraFields, FieldProblem, ReplyConfig};
use record::AeadLibrary;
use tracing::level_filters::LevelFilter;

use self::cidr::Cidr;
use crate::failure::Failure;
use crate::observe::access_log::{AccessLogTarget, LogStyle};
use crate::observe::log::LogFormat;
use crate::run::coalescing::Pauses;
use crate::start::cores;
use worker::tls::CERTIFICATES_MAX;

use crate::observe::trace::{Peers, TraceSettings};
use crate::tls::{NamedPath, PairPaths};

pub(crate) use ::amount::parse_size;
pub(crate) use file::{Amount, CertificateTable, FileText};
pub(crate) use key::{Key, Number};
pub(crate) use link::{LinkChoice, MacSetting};
pub(crate) use table::{CommonArgs, FileConfig, KEYS, documentation, keys};
pub(crate) use user::UserName;

use file::name_of;
use link::{
    check_busy_poll, default_addresses, parse_addresses, parse_link, parse_mac, parse_zero_copy,
};
use place::{Place as _, Whole, narrow};
use problems::Problems;
use sources::{resolve_list, resolve_sources};

/// Most addresses one server answers at.
pub(crate) const ADDRESSES_MAX: usize = 16;
/// Most worker threads.
const WORKERS_MAX: u64 = 64;
/// Levels from the quietest to the loudest; `-v` and `-q` step through them.
const LEVELS: [LevelFilter; 5] = [
    LevelFilter::ERROR,
    LevelFilter::WARN,
    LevelFilter::INFO,
    LevelFilter::DEBUG,
    LevelFilter::TRACE,
];

/// Everything the server runs with. Its defaults are those of the settings, but for what a link or an address
/// decides.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// What they were made of: to be read again.
    pub source: Source,
    /// The directory served.
    pub path: PathBuf,
    /// The interface.
    pub link: LinkChoice,
    /// Our MAC address there; means nothing on a TAP.
    pub mac: MacSetting,
    /// Whether frames are sent from the slots; means nothing on a TAP.
    pub zero_copy: ZeroCopy,
    /// How the operator named it, for messages.
    pub zero_copy_origin: Origin,
    /// How long a worker without work has the kernel poll the device before it sleeps; zero: not at all.
    /// Only with AF_XDP links.
    pub busy_poll: Duration,
    /// Our addresses: 1..=[`ADDRESSES_MAX`], no two alike. None if they are the host's:
    /// those are found at start.
    pub addresses: Vec<Cidr>,
    /// Those of them that another station answers ARP and neighbour discovery for: given with `,noarp`, or the
    /// host's on loopback.
    pub virtual_addresses: Vec<IpAddr>,
    /// How the operator named the addresses, for messages: `--address`, or the key.
    pub addresses_origin: Origin,
    /// They are the host's own: of them only the server's ports are the server's.
    pub is_address_shared: bool,
    /// Whether the network is asked who has them before they are used.
    pub is_address_checked: bool,
    /// TCP port of plain HTTP.
    pub http_port: Option<u16>,
    /// HTTP over TLS.
    pub https: Option<Https>,
    /// The user to become once everything is opened, and where it was configured.
    pub user: Option<(UserName, Origin)>,
    /// What replies say, where no site says another thing.
    pub replies: ReplyConfig,
    /// Whether files whose name begins with a dot are served, where no site says.
    pub hidden_files: bool,
    /// Networks of proxies that are believed in whom they ask for.
    pub trusted_proxies: Vec<Network>,
    /// Whether their connections begin by the PROXY protocol.
    pub proxy_protocol: bool,
    /// The sites of the file.
    pub sites: Vec<sites::SiteSettings>,
    /// What connections are like: of each worker's conductor, all that does not depend on the link and on
    /// the number of workers.
    pub conductor: session::Config,
    /// The library whose AEADs seal; `None`: the one that is faster on this processor.
    pub aead_library: Option<AeadLibrary>,
    /// Whether the process may be dumped and debugged.
    pub core_dumps: bool,
    /// Whether it gives up files, programs and connections that it does not need.
    pub landlock: bool,
    /// Whether it gives up system calls that it does not need.
    pub seccomp: bool,
    /// Where frames are also written.
    pub pcap: Option<PathBuf>,
    /// Whose connections are traced, and where to.
    pub trace: Option<TraceSettings>,
    /// Where a line for each request is written.
    pub access_log: Option<AccessLogTarget>,
    /// How that line is written.
    pub log_style: LogStyle,
    /// How the log on stderr is written.
    pub log_format: LogFormat,
    /// Where metrics and health are answered, through the host's own TCP.
    pub metrics: Option<SocketAddr>,
    /// Whether the page cache may be used where `O_DIRECT` is refused.
    pub buffered: bool,
    /// Whether a raw store on NVMe namespaces is read by NVMe commands, past the block layer.
    pub nvme_passthrough: bool,
    /// Least severe level logged.
    pub log: LevelFilter,
    /// Worker threads.
    pub workers: u32,
    /// Bounds on memory and time, of all workers together.
    pub limits: Limits,
}

/// What settings are made of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Source {
    /// The command line.
    pub args: CommonArgs,
    /// The file, with the flags laid over it.
    pub file: FileConfig,
}

/// What serving over TLS needs. At least one of `http_port` and this is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Https {
    /// TCP port, another than that of plain HTTP.
    pub port: u16,
    /// A folder with more of them.
    pub folder: Option<NamedPath>,
    /// Certificates and their keys: up to [`CERTIFICATES_MAX`], one at least without a folder.
    pub pairs: Vec<PairPaths>,
    /// The file with the keys of tickets; `None`: the server makes its own.
    pub ticket_keys: Option<NamedPath>,
    /// How the operator asked for the connections' secrets to be logged, if at all.
    pub secrets_origin: Option<Origin>,
}

/// Bounds on memory and time. See `docs/run/configuration.md` for each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// Connections at once; half-open ones are bounded apart.
    pub connections_max: usize,
    /// Connections of one source; `None`: no limit.
    pub connections_per_source_max: Option<u32>,
    /// Read buffers of 64 KiB.
    pub slots: u32,
    /// Reads in flight.
    pub disk_queue_depth: u32,
    /// How long the worker pauses while wake-ups come faster than that; zero: never.
    pub coalesce: Pauses,
    /// Files held open; `None`: as many as `RLIMIT_NOFILE` allows.
    pub objects_max: Option<usize>,
    /// Records under one key of a TLS connection; `None`: as many as its suite allows.
    pub tls_key_records_max: Option<u64>,
    /// For clients of an object that was replaced or removed.
    pub replaced_timeout: Duration,
    /// From SIGINT or SIGTERM until the server refuses new connections.
    pub shutdown_delay: Duration,
    /// For replies to finish after that.
    pub shutdown_grace: Duration,
    /// For a process that takes over to be ready.
    pub take_over_start: Duration,
    /// For replies to finish after another process has taken over.
    pub take_over_deadline: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            source: Source::default(),
            path: PathBuf::new(),
            link: LinkChoice::Tap(String::new()),
            mac: MacSetting::Own,
            zero_copy: ZeroCopy::Auto,
            zero_copy_origin: Origin::Default(table::ZERO_COPY.flag),
            busy_poll: Duration::ZERO,
            addresses: Vec::new(),
            virtual_addresses: Vec::new(),
            addresses_origin: Origin::Default(table::ADDRESS.flag),
            is_address_shared: false,
            is_address_checked: true,
            http_port: Some(80),
            https: None,
            user: None,
            replies: ReplyConfig::default(),
            hidden_files: false,
            trusted_proxies: Vec::new(),
            proxy_protocol: false,
            sites: Vec::new(),
            conductor: session::Config::default(),
            aead_library: None,
            core_dumps: false,
            landlock: true,
            seccomp: true,
            pcap: None,
            trace: None,
            access_log: None,
            log_style: LogStyle::default(),
            log_format: LogFormat::default(),
            metrics: None,
            buffered: false,
            nvme_passthrough: false,
            log: LevelFilter::INFO,
            workers: 1,
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        let conductor = session::Config::default();
        Self {
            connections_max: conductor.connections_max,
            connections_per_source_max: conductor.connections_per_source_max,
            slots: 512,
            disk_queue_depth: 128,
            coalesce: Pauses::ByRoundTrip,
            objects_max: None,
            tls_key_records_max: None,
            replaced_timeout: Duration::from_secs(14_400),
            shutdown_delay: Duration::ZERO,
            shutdown_grace: Duration::from_secs(10),
            take_over_start: Duration::from_secs(60),
            take_over_deadline: Duration::from_secs(3_600),
        }
    }
}

impl Limits {
    /// What each of `workers` workers may have: an equal share of what is bounded for all. A source's
    /// connections are spread by their ports, so that a share of them is rounded up.
    ///
    /// # Panics
    /// Without workers.
    #[must_use]
    pub(crate) fn share(&self, workers: u32) -> Self {
        Self {
            connections_max: self.connections_max / narrow::<usize>(workers.into()),
            connections_per_source_max: self
                .connections_per_source_max
                .map(|most| most.div_ceil(workers)),
            slots: self.slots / workers,
            disk_queue_depth: self.disk_queue_depth / workers,
            ..self.clone()
        }
    }
}

/// Where a value came from, as messages name it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// This flag.
    Flag(&'static str),
    /// This key of this file, like `certificate[1].cert`.
    Key(Arc<FileText>, String),
    /// Nowhere: the built-in default of this flag.
    Default(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => f.write_str(flag),
            Self::Key(file, key) => write!(f, "{}: {}", file.place(key), name_of(key)),
            Self::Default(flag) => write!(f, "{flag} (default)"),
        }
    }
}

impl Settings {
    /// Resolves `atlas serve`, reading the configuration file if the command line names one.
    ///
    /// # Errors
    /// All settings that are not what they must be.
    pub(crate) fn resolve(args: CommonArgs) -> Result<Self, Failure> {
        let file = FileConfig::of_args(&args);
        Self::merge(args, file)
    }

    /// Lays the flags of `atlas serve` over file over defaults.
    ///
    /// # Errors
    /// All settings that are not what they must be. Those that do not suit each other are told when each by
    /// itself is right.
    pub(crate) fn merge(args: CommonArgs, mut file: FileConfig) -> Result<Self, Failure> {
        let keys = Keys::lay_flags(&args, &mut file);
        let mut problems = Problems::of_file(&keys.source);
        let source = Source {
            args: args.clone(),
            file: file.clone(),
        };
        let mut settings = Self {
            source,
            path: args.path,
            ..Self::default()
        };
        problems.take(settings.resolve_network(&keys, &mut file));
        let workers = file.workers.take().map(|Amount(text)| text);
        let origin = keys.origin(&table::WORKERS);
        let workers = parse_workers(workers.as_deref(), &origin, &settings.link);
        settings.workers = problems.take_some(workers).unwrap_or(1);
        // What depends on nothing else.
        file.settle(&keys, &mut settings, &mut problems);
        let is_relayed = settings.link.relayed_at().is_some();
        settings.is_address_checked &= !settings.is_address_shared && !is_relayed;
        settings.conductor.source_filter = problems
            .take_some(resolve_sources(&keys, &mut file))
            .unwrap_or_default();
        let level = resolve_level(args.verbose, args.quiet, file.log.take(), &keys);
        settings.log = problems.take_some(level).unwrap_or(LevelFilter::INFO);
        let lines = file.header.take().unwrap_or_default();
        let replies = &mut settings.replies;
        let origin = keys.origin(&table::HEADER);
        replies.extra_fields = problems.take(parse_headers(&lines, &replies.cors, &origin));
        replies.types = problems.take(parse_types(&keys, file.types.take().unwrap_or_default()));
        let proxies = file.trusted_proxies.take();
        let proxies = resolve_list(proxies, &keys.origin(&table::TRUSTED_PROXIES));
        settings.trusted_proxies = problems.take(proxies).unwrap_or_default();
        if settings.proxy_protocol && settings.trusted_proxies.is_empty() {
            problems.take_some::<()>(Err(Failure::refused(
                format!("{}: nobody may use it", keys.origin(&table::PROXY_PROTOCOL)),
                "name the networks of balancers in trusted_proxies",
            )));
        }
        let pairs = resolve_pairs(&keys, args.certificates, args.keys, file.certificate.take());
        let pairs = problems.take_some(pairs);
        settings.trace = problems.take(resolve_trace(&keys, &mut file));
        if let Some(pairs) = pairs.filter(|_| problems.is_empty()) {
            let tcp = &settings.conductor.tcp;
            problems.take(check_pacing(tcp, &keys.origin(&table::CONGESTION_CONTROL)));
            problems.take(settings.limits.spread(settings.workers, &keys));
            let https = resolve_https(&keys, settings.http_port, pairs, &mut file);
            settings.https = problems.take(https);
        } else {
            // In its place, so that what is wrong with a site is told, and not what that would lead to.
            settings.https = Some(Https {
                port: 443,
                folder: None,
                pairs: Vec::new(),
                ticket_keys: None,
                secrets_origin: None,
            });
        }
        let tables = file.site.take().unwrap_or_default();
        let resolved = sites::resolve(tables, lines, &keys.source, &mut settings, &mut problems);
        problems.take(resolved);
        problems.finish(&keys.source)?;
        Ok(settings)
    }

    /// Where the server is on the network.
    fn resolve_network(&mut self, keys: &Keys, file: &mut FileConfig) -> Result<(), Failure> {
        let link_origin = keys.origin(&table::LINK);
        let link = file.link.take();
        self.link = parse_link(link.as_deref().unwrap_or(key::LINK_DEFAULT), &link_origin)?;
        self.zero_copy_origin = keys.origin(&table::ZERO_COPY);
        let zero_copy = file.zero_copy.take();
        self.zero_copy = parse_zero_copy(zero_copy.as_deref(), &self.zero_copy_origin, &self.link)?;
        if let Some(Amount(text)) = file.busy_poll_us.take() {
            let origin = keys.origin(&table::BUSY_POLL_US);
            let polled = table::BUSY_POLL_US.parse_amount(&text, &origin)?;
            let pause = file.coalesce_us.as_ref().map(|Amount(text)| {
                table::COALESCE_US.parse_amount(text, &keys.origin(&table::COALESCE_US))
            });
            let has_coalescing = pause.transpose()?.is_some_and(|pause| pause > 0);
            self.busy_poll = check_busy_poll(polled, &origin, &self.link, has_coalescing)?;
        }
        self.addresses_origin = keys.origin(&table::ADDRESS);
        let addresses = file.address.take();
        self.is_address_shared = addresses.is_none() && self.link.can_share_addresses();
        if !self.is_address_shared {
            let default = || default_addresses(&self.link, &link_origin);
            let addresses = addresses.map_or_else(default, Ok)?;
            (self.addresses, self.virtual_addresses) =
                parse_addresses(&addresses, &self.addresses_origin)?;
        }
        let (mac, origin) = (file.mac.take(), keys.origin(&table::MAC));
        self.mac = parse_mac(mac.as_deref(), &origin, &self.link, self.is_address_shared)?;
        Ok(())
    }

    /// Worker threads, as a size.
    #[must_use]
    pub(crate) fn workers_count(&self) -> usize {
        narrow(self.workers.into())
    }

    /// Our addresses without their subnets.
    #[must_use]
    pub(crate) fn own_addresses(&self) -> Vec<IpAddr> {
        self.addresses.iter().map(Cidr::address).collect()
    }

    /// Those of our addresses that we answer ARP and neighbour discovery for.
    #[must_use]
    pub(crate) fn answered_addresses(&self) -> Vec<IpAddr> {
        let mut addresses = self.own_addresses();
        addresses.retain(|address| !self.virtual_addresses.contains(address));
        addresses
    }

    /// The addresses that clients name: ours, or the one of the host's that a relay listens at.
    fn client_addresses(&self) -> Vec<IpAddr> {
        match self.link.relayed_at() {
            // At any address of the host's, so also at this one.
            Some(IpAddr::V4(it)) if it.is_unspecified() => vec![Ipv4Addr::LOCALHOST.into()],
            Some(IpAddr::V6(it)) if it.is_unspecified() => vec![Ipv6Addr::LOCALHOST.into()],
            Some(address) => vec![address],
            None => self.own_addresses(),
        }
    }

    /// `http://10.77.0.2/ http://[fd77::2]/ https://10.77.0.2/ ...`: where clients find the server.
    #[must_use]
    pub(crate) fn urls(&self) -> String {
        let schemes = [
            ("http", 80, self.http_port),
            ("https", 443, self.https.as_ref().map(|https| https.port)),
        ];
        let mut urls = Vec::new();
        for (scheme, port_default, port) in schemes {
            let Some(port) = port else { continue };
            let port = if port == port_default {
                String::new()
            } else {
                format!(":{port}")
            };
            urls.extend(self.client_addresses().into_iter().map(|it| match it {
                IpAddr::V4(address) => format!("{scheme}://{address}{port}/"),
                IpAddr::V6(address) => format!("{scheme}://[{address}]{port}/"),
            }));
        }
        urls.join(" ")
    }
}

fn resolve_trace(keys: &Keys, file: &mut FileConfig) -> Result<Option<TraceSettings>, Failure> {
    let (path_origin, peer_origin) = (keys.origin(&table::TRACE), keys.origin(&table::TRACE_PEER));
    let (path, peer) = (file.trace.take(), file.trace_peer.take());
    match (path, peer) {
        (None, None) => Ok(None),
        (Some(file), Some(peer)) => match Peers::parse(&peer) {
            Some(peers) => Ok(Some(TraceSettings { file, peers })),
            None => Err(Failure::refused(
                format!("{peer_origin} {peer}: not an address"),
                "write it like 192.0.2.7, 192.0.2.7:50000, fd77::7 or [fd77::7]:50000",
            )),
        },
        (Some(file), None) => Err(Failure::refused(
            format!("{path_origin} {}: whose connections?", file.display()),
            "name a client with --trace-peer",
        )),
        (None, Some(peer)) => Err(Failure::refused(
            format!("{peer_origin} {peer}: there is no file"),
            "name one with --trace",
        )),
    }
}

fn parse_headers(
    lines: &[String],
    cors: &Cors,
    origin: &dyn fmt::Display,
) -> Result<ExtraFields, Failure> {
    let mut fields = ExtraFields::default();
    for line in lines {
        // Quoted, with control characters made visible: they are what may be wrong with it.
        let refuse = |problem: &dyn fmt::Display, remedy| {
            Err(Failure::refused(
                format!("{origin} {line:?}: {problem}"),
                remedy,
            ))
        };
        if let Err(problem) = fields.push(line) {
            let remedy = match problem {
                FieldProblem::Reserved => "leave it out; content types are set by [types]",
                FieldProblem::Twice => "leave out one of the two",
                FieldProblem::TooLong => "give fewer or shorter ones",
                _ => "write 'Name: value'",
            };
            return refuse(&problem, remedy);
        }
    }
    if fields.has_credentials_for_any_origin(*cors == Cors::AnyOrigin) {
        return Err(Failure::refused(
            format!("{origin}: Access-Control-Allow-Credentials for pages of any origin"),
            "browsers refuse that; name the one origin: 'Access-Control-Allow-Origin: https://NAME'",
        ));
    }
    Ok(fields)
}

fn parse_types(keys: &Keys, table: BTreeMap<String, String>) -> Result<ContentTypes, Failure> {
    let mut types = ContentTypes::default();
    for (extension, content_type) in table {
        types.insert(&extension, &content_type).map_err(|problem| {
            let place = keys.source.place(&format!("types.{extension}"));
            Failure::refused(
                format!("{place}: types.{extension:?} {content_type:?}: {problem}"),
                "write extension = \"type/subtype\", like mkv = \"video/x-matroska\"",
            )
        })?;
    }
    Ok(types)
}

/// The port of HTTPS, which depends on that of plain HTTP, and what TLS needs.
fn resolve_https(
    keys: &Keys,
    http_port: Option<u16>,
    (pairs, pairs_origin): (Vec<PairPaths>, Origin),
    file: &mut FileConfig,
) -> Result<Option<Https>, Failure> {
    let https_origin = keys.origin(&table::HTTPS);
    let written = file.https.take();
    let is_off_said = written.is_some();
    let mut https_port: Option<u16> = None;
    if let Some(written) = written {
        https_port.set(written, &table::HTTPS, &https_origin)?;
    }
    let secrets_origin =
        (file.log_tls_secrets == Some(true)).then(|| keys.origin(&table::LOG_TLS_SECRETS));
    let ticket_keys = file.ticket_keys.take().map(|path| NamedPath {
        origin: keys.origin(&table::TICKET_KEYS),
        path,
    });
    let folder = file.certificates.take().map(|path| NamedPath {
        origin: keys.origin(&table::CERTIFICATES),
        path,
    });
    let Some(port) = https_port else {
        let useless = [
            folder.as_ref().map(|folder| &folder.origin),
            (!pairs.is_empty()).then_some(&pairs_origin),
            ticket_keys.as_ref().map(|file| &file.origin),
            secrets_origin.as_ref(),
        ];
        return match useless.into_iter().flatten().next() {
            // A file may keep its certificates while its https is off.
            Some(origin) if !is_off_said => Err(Failure::refused(
                format!("{origin}: means nothing without --https"),
                "give --https a port, like 443, or leave it out",
            )),
            _ if http_port.is_none() => Err(Failure::refused(
                format!(
                    "{} {}: nothing is left to serve on",
                    keys.origin(&table::HTTP),
                    key::OFF
                ),
                "give --https a port, or --http",
            )),
            _ => Ok(None),
        };
    };
    if pairs.is_empty() && folder.is_none() {
        return Err(Failure::refused(
            format!("{https_origin} {port}: there is no certificate"),
            "give --cert and --key, or [[certificate]] in the configuration file",
        ));
    }
    if http_port == Some(port) {
        return Err(Failure::refused(
            format!("{https_origin} {port}: that is the port of plain HTTP"),
            "use another, or --http off",
        ));
    }
    let https = Https {
        port,
        folder,
        pairs,
        ticket_keys,
        secrets_origin,
    };
    Ok(Some(https))
}

/// The pairs as typed, else as written.
fn resolve_pairs(
    keys: &Keys,
    certificates: Vec<PathBuf>,
    typed_keys: Vec<PathBuf>,
    written: Option<Vec<CertificateTable>>,
) -> Result<(Vec<PairPaths>, Origin), Failure> {
    let (flag, key_flag) = ("--cert", "--key");
    if certificates.len() != typed_keys.len() {
        let (problem, remedy) = match (certificates.len(), typed_keys.len()) {
            (_, 0) => ("--cert without --key".into(), "give the key of each --cert"),
            (0, _) => ("--key without --cert".into(), "give the --cert of each key"),
            (certificates, keys) => (
                format!("--cert is given {certificates} times, --key {keys} times"),
                "give them in pairs",
            ),
        };
        return Err(Failure::refused(problem, remedy));
    }
    let named = |origin: &Origin, path| NamedPath {
        origin: origin.clone(),
        path,
    };
    let typed = certificates.into_iter().zip(typed_keys);
    let typed: Vec<_> = typed
        .map(|(certificate, key)| PairPaths {
            certificate: named(&Origin::Flag(flag), certificate),
            key: named(&Origin::Flag(key_flag), key),
        })
        .collect();
    let written = written.map(|tables| {
        let of = |index, key| {
            let key = format!("certificate[{index}].{key}");
            Origin::Key(Arc::clone(&keys.source), key)
        };
        let pair = |(index, table): (usize, CertificateTable)| PairPaths {
            certificate: named(&of(index, "cert"), table.cert),
            key: named(&of(index, "key"), table.key),
        };
        tables.into_iter().enumerate().map(pair).collect()
    });
    let (pairs, origin) = match (typed.is_empty(), written) {
        (true, Some(written)) => (written, keys.origin(&table::CERTIFICATE)),
        (_, _) => (typed, Origin::Flag(flag)),
    };
    if pairs.len() > CERTIFICATES_MAX {
        return Err(Failure::refused(
            format!("{origin}: {} certificates", pairs.len()),
            format!("give at most {CERTIFICATES_MAX}"),
        ));
    }
    Ok((pairs, origin))
}

/// Which keys have a value, and where it came from.
struct Keys {
    source: Arc<FileText>,
    written: Vec<&'static str>,
    typed: Vec<&'static str>,
}

impl Keys {
    /// Lays the flags over the file, and remembers which were given.
    fn lay_flags(args: &CommonArgs, file: &mut FileConfig) -> Self {
        let mut flags = FileConfig::default();
        flags.lay_flags(args);
        let written = file.names();
        file.lay_flags(args);
        Self {
            source: Arc::clone(&file.source),
            written,
            typed: flags.names(),
        }
    }

    /// How messages name the value of a key.
    fn origin(&self, key: &Key) -> Origin {
        if self.typed.contains(&key.name) {
            Origin::Flag(key.flag)
        } else if self.is_written(key) {
            Origin::Key(Arc::clone(&self.source), key.name.to_owned())
        } else {
            Origin::Default(key.flag)
        }
    }

    fn is_written(&self, key: &Key) -> bool {
        self.written.contains(&key.name)
    }
}

impl Limits {
    /// Limits that workers share: each has as much as one needs at least. Their defaults are for each worker.
    fn spread(&mut self, workers: u32, keys: &Keys) -> Result<(), Failure> {
        spread(
            &mut self.connections_max,
            &table::CONNECTIONS_MAX,
            workers,
            keys,
        )?;
        spread(&mut self.slots, &table::SLOTS, workers, keys)?;
        spread(
            &mut self.disk_queue_depth,
            &table::DISK_QUEUE_DEPTH,
            workers,
            keys,
        )
    }
}

fn spread<T: Whole>(place: &mut T, key: &Key, workers: u32, keys: &Keys) -> Result<(), Failure> {
    let Number { least, most, .. } = key.number();
    let (value, workers) = (place.number().unwrap_or_default(), u64::from(workers));
    if !keys.is_written(key) {
        *place = T::of((value * workers).min(most));
        return Ok(());
    }
    if value / workers >= least {
        return Ok(());
    }
    let origin = keys.origin(key);
    Err(Failure::refused(
        format!("{origin} {value}: too few for {workers} workers"),
        format!("use at least {}, or fewer workers", least * workers),
    ))
}

/// How many workers: a number, or one for each processor; on a machine with several NUMA nodes, for each at
/// the node of the interface.
fn parse_workers(text: Option<&str>, origin: &Origin, link: &LinkChoice) -> Result<u32, Failure> {
    let is_relayed = link.relayed_at().is_some();
    let range = 1..=if is_relayed { 1 } else { WORKERS_MAX };
    let Some(text) = text else { return Ok(1) };
    if text == key::AUTO {
        // Where the kernel does not say, one is right.
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let near = cores::near_first(link.interface()).ok();
        let near = near.and_then(|(_, near)| near);
        let processors = near.map_or(processors, |near| near.min(processors));
        let processors = u64::try_from(processors).unwrap_or(u64::MAX);
        return Ok(narrow(processors.clamp(*range.start(), *range.end())));
    }
    let number = text.parse::<u64>().ok();
    let number = number.filter(|number| range.contains(number));
    number.map(narrow).ok_or_else(|| {
        Failure::refused(
            format!("{origin} {text}: not a number of workers"),
            format!(
                "use {} to {}, best one for each processor, or {}",
                range.start(),
                range.end(),
                key::AUTO
            ),
        )
    })
}

/// An algorithm whose rate limits the sender needs pacing.
fn check_pacing(tcp: &session::TcpConfig, origin: &Origin) -> Result<(), Failure> {
    if tcp.is_paced || !tcp.congestion.needs_pacing() {
        return Ok(());
    }
    Err(Failure::refused(
        format!("{origin} {}: needs pacing", tcp.congestion.name()),
        "write pacing = true, or cubic or reno",
    ))
}

fn resolve_level(
    verbose: u8,
    quiet: u8,
    written: Option<String>,
    keys: &Keys,
) -> Result<LevelFilter, Failure> {
    let names = ["error", "warn", "info", "debug", "trace"];
    let place = |name: &str| names.iter().position(|known| *known == name);
    let default = place(key::LOG_DEFAULT).expect("invariant: the default is a level");
    if verbose == 0 && quiet == 0 {
        let Some(name) = written else {
            return Ok(LEVELS[default]);
        };
        let origin = keys.origin(&table::LOG);
        return place(&name).map(|place| LEVELS[place]).ok_or_else(|| {
            Failure::refused(
                format!("{origin} {name}: not a level"),
                "use error, warn, info, debug or trace",
            )
        });
    }
    let louder = default
        .saturating_add(usize::from(verbose))
        .saturating_sub(usize::from(quiet));
    Ok(LEVELS[louder.min(LEVELS.len() - 1)])
}

#[cfg(test)]
mod tests;
