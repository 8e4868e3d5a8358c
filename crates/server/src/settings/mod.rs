//! The settings of the server: flags override the file, the file overrides defaults; every value is
//! checked.
//!
//! It refuses to query the host (see [`crate::start`]), but for the number of its processors where
//! `workers` is `auto`: else the same command line and file resolve to the same settings on any machine.
//! Every error names the flag or key, the value and the remedy. Bounds:
//! the ranges in [`crate::config`].

mod link;
mod sources;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ::link::ZeroCopy;
use http::{ContentTypes, ExtraFields, FieldProblem, ReplyConfig};
use record::AeadLibrary;
use session::{CongestionControl, SourceFilter};
use tracing::level_filters::LevelFilter;

use crate::access_log::AccessLogTarget;
use crate::cidr::Cidr;
use crate::cli::{CommonArgs, ServeArgs, TlsArgs};
use crate::coalescing::Pauses;
use crate::config::{
    self, CertificateTable, DefaultValue, FileConfig, Number, NumberOrAuto, PortOrOff, Seconds,
};
use crate::cores;
use crate::failure::Failure;
use crate::privileges::UserName;
use worker::tls::CERTIFICATES_MAX;

use crate::tls::{NamedPath, PairPaths};
use crate::trace::{Peers, TraceSettings};

pub use link::{LinkChoice, MacSetting};
use link::{
    check_busy_poll, default_addresses, parse_addresses, parse_link, parse_mac, parse_zero_copy,
};
use sources::resolve_sources;

/// Most addresses one server answers at.
pub const ADDRESSES_MAX: usize = 16;
/// Levels from the quietest to the loudest; `-v` and `-q` step through them.
const LEVELS: [LevelFilter; 5] = [
    LevelFilter::ERROR,
    LevelFilter::WARN,
    LevelFilter::INFO,
    LevelFilter::DEBUG,
    LevelFilter::TRACE,
];

/// Everything the server runs with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
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
    /// Which sources are served.
    pub source_filter: SourceFilter,
    /// TCP port of plain HTTP.
    pub http_port: Option<u16>,
    /// HTTP over TLS.
    pub https: Option<Https>,
    /// The user to become once everything is opened, and where it was configured.
    pub user: Option<(UserName, Origin)>,
    /// What every TCP connection is like.
    pub tcp: session::TcpConfig,
    /// The library whose AEADs seal; `None`: the one that is faster on this processor.
    pub aead_library: Option<AeadLibrary>,
    /// Whether the process may be dumped and debugged.
    pub core_dumps: bool,
    /// Where frames are also written.
    pub pcap: Option<PathBuf>,
    /// Whose connections are traced, and where to.
    pub trace: Option<TraceSettings>,
    /// What replies say: CORS, caching, content types, fields of the operator's own.
    pub replies: ReplyConfig,
    /// Where a line for each request is written.
    pub access_log: Option<AccessLogTarget>,
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

/// What serving over TLS needs. At least one of `http_port` and this is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Https {
    /// TCP port, another than that of plain HTTP.
    pub port: u16,
    /// Certificates and their keys: 1..=[`CERTIFICATES_MAX`].
    pub pairs: Vec<PairPaths>,
    /// How the operator asked for the connections' secrets to be logged, if at all.
    pub secrets_origin: Option<Origin>,
}

/// Bounds on memory and time. See `docs/run/configuration.md` for each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
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
    /// For a request head to be finished.
    pub head_timeout: Duration,
    /// For a persistent connection to ask again.
    pub idle_timeout: Duration,
    /// For a client to acknowledge something of its reply.
    pub send_timeout: Duration,
    /// For clients of an object that was replaced or removed.
    pub replaced_timeout: Duration,
    /// For replies to finish after SIGINT or SIGTERM.
    pub shutdown_grace: Duration,
}

impl Limits {
    /// What each of `workers` workers may have: an equal share of what is bounded for all. A source's
    /// connections are spread by their ports, so that a share of them is rounded up.
    ///
    /// # Panics
    /// Without workers.
    #[must_use]
    pub fn share(&self, workers: u32) -> Self {
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
pub enum Origin {
    /// This flag.
    Flag(&'static str),
    /// This key of this file.
    Key(PathBuf, &'static str),
    /// Nowhere: the built-in default of this flag.
    Default(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => f.write_str(flag),
            Self::Key(file, key) => write!(f, "{}: {key}", file.display()),
            Self::Default(flag) => write!(f, "{flag} (default)"),
        }
    }
}

impl Settings {
    /// Resolves `atlas serve`, reading the configuration file if the command line names one.
    ///
    /// # Errors
    /// The first setting that is not what it must be.
    pub fn resolve(args: ServeArgs) -> Result<Self, Failure> {
        let file = read_file(&args.common)?;
        Self::merge(args, file)
    }

    /// Lays the flags of `atlas serve` over file over defaults.
    ///
    /// # Errors
    /// The first setting that is not what it must be.
    pub fn merge(args: ServeArgs, file: FileConfig) -> Result<Self, Failure> {
        Self::lay(args.common, args.tls, file)
    }

    /// Lays flags over file over defaults.
    pub(crate) fn lay(
        args: CommonArgs,
        tls: TlsArgs,
        mut file: FileConfig,
    ) -> Result<Self, Failure> {
        let keys = Keys {
            file: args.config.unwrap_or_default(),
        };
        let (link, link_origin) = keys.pick(args.link, file.link.take(), "--link", "link");
        let link = parse_link(
            link.as_deref().unwrap_or(config::LINK_DEFAULT),
            &link_origin,
        )?;
        let (mac, mac_origin) = keys.pick(args.mac, file.mac.take(), "--mac", "mac");
        let (zero_copy, zero_copy_origin) = keys.pick(
            args.zero_copy,
            file.zero_copy.take(),
            "--zero-copy",
            "zero_copy",
        );
        let zero_copy = parse_zero_copy(zero_copy.as_deref(), &zero_copy_origin, &link)?;
        let (busy_poll, origin) = keys.number(
            args.busy_poll,
            file.busy_poll_us.take(),
            "--busy-poll",
            "busy_poll_us",
        );
        let busy_poll = check(busy_poll, &config::BUSY_POLL_US, &origin)?;
        let has_coalescing = file.coalesce_us.is_some_and(|pause| pause != 0);
        let busy_poll = check_busy_poll(busy_poll, &origin, &link, has_coalescing)?;
        let typed = (!args.addresses.is_empty()).then_some(args.addresses);
        let (addresses, addresses_origin) =
            keys.pick(typed, file.address.take(), "--address", "address");
        let is_address_shared = addresses.is_none() && link.can_share_addresses();
        let (addresses, virtual_addresses) = if is_address_shared {
            Default::default()
        } else {
            let addresses = addresses.map_or_else(|| default_addresses(&link, &link_origin), Ok)?;
            parse_addresses(&addresses, &addresses_origin)?
        };
        let mac = parse_mac(mac.as_deref(), &mac_origin, &link, is_address_shared)?;
        let (http_port, https) = resolve_ports(&keys, args.http, tls, &mut file)?;
        let written = file.workers.take().map(|NumberOrAuto(text)| text);
        let (workers, origin) = keys.pick(args.workers, written, "--workers", "workers");
        let workers = parse_workers(workers.as_deref(), &origin, &link)?;
        let (aead_library, origin) = keys.pick(None, file.aead_library.take(), "", "aead_library");
        let aead_library = parse_aead_library(aead_library.as_deref(), &origin)?;
        let congestion = file.congestion_control.take();
        let (congestion, origin) = keys.pick(None, congestion, "", "congestion_control");
        let congestion = parse_congestion(congestion.as_deref(), &origin)?;
        let is_paced = file.pacing.unwrap_or(true);
        check_pacing(congestion, is_paced, &origin)?;
        let replies = resolve_replies(&keys, args.cors, args.headers, &mut file)?;
        Ok(Self {
            path: args.path,
            link,
            mac,
            zero_copy,
            zero_copy_origin,
            busy_poll,
            addresses,
            virtual_addresses,
            addresses_origin,
            is_address_shared,
            is_address_checked: file.address_check.unwrap_or(true) && !is_address_shared,
            source_filter: resolve_sources(&keys, args.allow, args.deny, &mut file)?,
            http_port,
            https,
            user: resolve_user(&keys, args.user, file.user.take())?,
            tcp: session::TcpConfig {
                congestion,
                is_paced,
                reduces_idle_window: file.slow_start_after_idle.unwrap_or(true),
                accepts_ecn: file.ecn.unwrap_or(true),
                probes_path_mtu: file.mtu_probing.unwrap_or(true),
                rate_max: keys
                    .limit_if_any(file.connection_rate_max, &config::CONNECTION_RATE_MAX)?,
                ..session::TcpConfig::default()
            },
            aead_library,
            core_dumps: args.core_dumps || file.core_dumps.unwrap_or(false),
            pcap: args.pcap.or(file.pcap.take()),
            trace: resolve_trace(&keys, args.trace, args.trace_peer, &mut file)?,
            replies,
            access_log: args
                .access_log
                .or(file.access_log.take())
                .map(AccessLogTarget::parse),
            metrics: resolve_metrics(&keys, args.metrics, file.metrics.take())?,
            buffered: file.buffered.unwrap_or(false),
            nvme_passthrough: file.nvme_passthrough.unwrap_or(false),
            log: resolve_level(args.verbose, args.quiet, file.log.take(), &keys)?,
            limits: resolve_limits(&keys, &file, workers)?,
            workers,
        })
    }

    /// Worker threads, as a size.
    #[must_use]
    pub fn workers_count(&self) -> usize {
        narrow(self.workers.into())
    }

    /// Our addresses without their subnets.
    #[must_use]
    pub fn own_addresses(&self) -> Vec<IpAddr> {
        self.addresses.iter().map(Cidr::address).collect()
    }

    /// Those of our addresses that we answer ARP and neighbour discovery for.
    #[must_use]
    pub fn answered_addresses(&self) -> Vec<IpAddr> {
        let mut addresses = self.own_addresses();
        addresses.retain(|address| !self.virtual_addresses.contains(address));
        addresses
    }

    /// `http://10.77.0.2/ http://[fd77::2]/ https://10.77.0.2/ ...`: where clients find the server.
    #[must_use]
    pub fn urls(&self) -> String {
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
            urls.extend(self.addresses.iter().map(|cidr| match cidr.address() {
                IpAddr::V4(address) => format!("{scheme}://{address}{port}/"),
                IpAddr::V6(address) => format!("{scheme}://[{address}]{port}/"),
            }));
        }
        urls.join(" ")
    }
}

fn resolve_trace(
    keys: &Keys,
    typed: Option<PathBuf>,
    typed_peer: Option<String>,
    file: &mut FileConfig,
) -> Result<Option<TraceSettings>, Failure> {
    let (path, path_origin) = keys.pick(typed, file.trace.take(), "--trace", "trace");
    let (peer, peer_origin) = keys.pick(
        typed_peer,
        file.trace_peer.take(),
        "--trace-peer",
        "trace_peer",
    );
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

fn resolve_metrics(
    keys: &Keys,
    typed: Option<String>,
    written: Option<String>,
) -> Result<Option<SocketAddr>, Failure> {
    let (text, origin) = keys.pick(typed, written, "--metrics", "metrics");
    let Some(text) = text else { return Ok(None) };
    match text.parse::<SocketAddr>() {
        Ok(address) if address.port() > 0 => Ok(Some(address)),
        _ => Err(Failure::refused(
            format!("{origin} {text}: not an address with a port"),
            "write it like 127.0.0.1:9100 or [::1]:9100",
        )),
    }
}

/// The configuration file that the command line names; an empty one if it names none.
pub(crate) fn read_file(args: &CommonArgs) -> Result<FileConfig, Failure> {
    args.config
        .as_deref()
        .map_or_else(|| Ok(FileConfig::default()), FileConfig::read)
}

fn resolve_limits(keys: &Keys, file: &FileConfig, workers: u32) -> Result<Limits, Failure> {
    let shared = |value, number| keys.shared_limit(value, number, workers);
    Ok(Limits {
        connections_max: narrow(shared(file.connections_max, &config::CONNECTIONS_MAX)?),
        connections_per_source_max: keys
            .limit_if_any(
                file.connections_per_source_max,
                &config::CONNECTIONS_PER_SOURCE_MAX,
            )?
            .map(narrow),
        slots: narrow(shared(file.slots, &config::SLOTS)?),
        disk_queue_depth: narrow(shared(file.disk_queue_depth, &config::DISK_QUEUE_DEPTH)?),
        coalesce: keys
            .limit_if_any(file.coalesce_us, &config::COALESCE_US)?
            .map_or(Pauses::ByRoundTrip, |micros| {
                Pauses::Fixed(Duration::from_micros(micros))
            }),
        objects_max: keys
            .limit_if_any(file.objects_max, &config::OBJECTS_MAX)?
            .map(narrow),
        tls_key_records_max: keys
            .limit_if_any(file.tls_key_records_max, &config::TLS_KEY_RECORDS_MAX)?,
        head_timeout: keys.seconds(file.head_timeout_seconds, &config::HEAD_TIMEOUT_SECONDS)?,
        idle_timeout: keys.seconds(file.idle_timeout_seconds, &config::IDLE_TIMEOUT_SECONDS)?,
        send_timeout: keys.seconds(file.send_timeout_seconds, &config::SEND_TIMEOUT_SECONDS)?,
        replaced_timeout: keys.seconds(
            file.replaced_timeout_seconds,
            &config::REPLACED_TIMEOUT_SECONDS,
        )?,
        shutdown_grace: keys
            .seconds(file.shutdown_grace_seconds, &config::SHUTDOWN_GRACE_SECONDS)?,
    })
}

/// What replies say, every field and type checked.
fn resolve_replies(
    keys: &Keys,
    cors: bool,
    headers: Vec<String>,
    file: &mut FileConfig,
) -> Result<ReplyConfig, Failure> {
    let cors = cors || file.cors.unwrap_or(false);
    let typed = (!headers.is_empty()).then_some(headers);
    let (headers, origin) = keys.pick(typed, file.header.take(), "--header", "header");
    let extra_fields = parse_headers(&headers.unwrap_or_default(), cors, &origin)?;
    Ok(ReplyConfig {
        cors,
        cache_control: file.cache_control.unwrap_or(true),
        types: parse_types(keys, file.types.take().unwrap_or_default())?,
        extra_fields,
    })
}

fn parse_headers(lines: &[String], cors: bool, origin: &Origin) -> Result<ExtraFields, Failure> {
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
    if fields.has_credentials_for_any_origin(cors) {
        return Err(Failure::refused(
            format!("{origin}: Access-Control-Allow-Credentials for pages of any origin"),
            "browsers refuse that; name the one origin: 'Access-Control-Allow-Origin: https://NAME'",
        ));
    }
    Ok(fields)
}

fn parse_types(keys: &Keys, table: BTreeMap<String, String>) -> Result<ContentTypes, Failure> {
    let mut types = ContentTypes::default();
    let (_, origin) = keys.pick(None, Some(()), "types", "types");
    for (extension, content_type) in table {
        types.insert(&extension, &content_type).map_err(|problem| {
            Failure::refused(
                format!("{origin}.{extension:?} {content_type:?}: {problem}"),
                "write extension = \"type/subtype\", like mkv = \"video/x-matroska\"",
            )
        })?;
    }
    Ok(types)
}

/// The ports, which depend on each other, and what TLS needs.
fn resolve_ports(
    keys: &Keys,
    http: Option<String>,
    tls: TlsArgs,
    file: &mut FileConfig,
) -> Result<(Option<u16>, Option<Https>), Failure> {
    let (http, http_origin) = keys.port(http, file.http.take(), "--http", "http");
    let http_port = check_port(http, &config::HTTP, &http_origin)?;
    let (https, https_origin) = keys.port(tls.https, file.https.take(), "--https", "https");
    let is_off_said = https.is_some();
    let https_port = check_port(https, &config::HTTPS, &https_origin)?;
    let secrets = keys.pick(
        tls.log_tls_secrets.then_some(true),
        file.log_tls_secrets,
        "--log-tls-secrets",
        "log_tls_secrets",
    );
    let secrets_origin = matches!(secrets.0, Some(true)).then_some(secrets.1);
    let (pairs, pairs_origin) =
        resolve_pairs(keys, tls.certificates, tls.keys, file.certificate.take())?;
    let Some(port) = https_port else {
        let useless = [
            (!pairs.is_empty()).then_some(&pairs_origin),
            secrets_origin.as_ref(),
        ];
        return match useless.into_iter().flatten().next() {
            // A file may keep its certificates while its https is off.
            Some(origin) if !is_off_said => Err(Failure::refused(
                format!("{origin}: means nothing without --https"),
                "give --https a port, like 443, or leave it out",
            )),
            _ if http_port.is_none() => Err(Failure::refused(
                format!("{http_origin} {}: nothing is left to serve on", config::OFF),
                "give --https a port, or --http",
            )),
            _ => Ok((http_port, None)),
        };
    };
    if pairs.is_empty() {
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
        pairs,
        secrets_origin,
    };
    Ok((http_port, Some(https)))
}

fn resolve_user(
    keys: &Keys,
    typed: Option<String>,
    written: Option<String>,
) -> Result<Option<(UserName, Origin)>, Failure> {
    let (text, origin) = keys.pick(typed, written, "--user", "user");
    let Some(text) = text else { return Ok(None) };
    match UserName::parse(&text) {
        Some(name) => Ok(Some((name, origin))),
        None => Err(Failure::refused(
            format!("{origin} {text}: not a user"),
            "write NAME or NAME:GROUP, or numbers",
        )),
    }
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
        let of = |key| Origin::Key(keys.file.clone(), key);
        let pair = |table: CertificateTable| PairPaths {
            certificate: named(&of("certificate.cert"), table.cert),
            key: named(&of("certificate.key"), table.key),
        };
        tables.into_iter().map(pair).collect()
    });
    let typed = (!typed.is_empty()).then_some(typed);
    let (pairs, origin) = keys.pick(typed, written, flag, "certificate");
    let pairs = pairs.unwrap_or_default();
    if pairs.len() > CERTIFICATES_MAX {
        return Err(Failure::refused(
            format!("{origin}: {} certificates", pairs.len()),
            format!("give at most {CERTIFICATES_MAX}"),
        ));
    }
    Ok((pairs, origin))
}

/// Takes values from the flag, else from the file, and remembers which.
struct Keys {
    file: PathBuf,
}

impl Keys {
    fn pick<T>(
        &self,
        typed: Option<T>,
        written: Option<T>,
        flag: &'static str,
        key: &'static str,
    ) -> (Option<T>, Origin) {
        match (typed, written) {
            (Some(value), _) => (Some(value), Origin::Flag(flag)),
            (None, Some(value)) => (Some(value), Origin::Key(self.file.clone(), key)),
            (None, None) => (None, Origin::Default(flag)),
        }
    }

    fn number(
        &self,
        typed: Option<String>,
        written: Option<i64>,
        flag: &'static str,
        key: &'static str,
    ) -> (Option<String>, Origin) {
        self.pick(typed, written.map(|value| value.to_string()), flag, key)
    }

    fn port(
        &self,
        typed: Option<String>,
        written: Option<PortOrOff>,
        flag: &'static str,
        key: &'static str,
    ) -> (Option<String>, Origin) {
        self.pick(typed, written.map(|PortOrOff(port)| port), flag, key)
    }

    /// A limit that need not have a value.
    fn limit_if_any(&self, written: Option<i64>, number: &Number) -> Result<Option<u64>, Failure> {
        written
            .map(|value| self.limit(Some(value), number))
            .transpose()
    }

    /// A limit: only the file has them.
    fn limit(&self, written: Option<i64>, number: &Number) -> Result<u64, Failure> {
        let (value, origin) = self.number(None, written, number.name, number.name);
        check(value, number, &origin)
    }

    /// A limit that `workers` workers share: each has as much as one needs at least. Its default is for
    /// each worker.
    fn shared_limit(
        &self,
        written: Option<i64>,
        number: &Number,
        workers: u32,
    ) -> Result<u64, Failure> {
        let value = self.limit(written, number)?;
        let (least, most) = (*number.range.start(), *number.range.end());
        let workers = u64::from(workers);
        if written.is_none() {
            return Ok((value * workers).min(most));
        }
        if value / workers >= least {
            return Ok(value);
        }
        let (name, file) = (number.name, self.file.display());
        Err(Failure::refused(
            format!("{file}: {name} {value}: too few for {workers} workers"),
            format!("use at least {}, or fewer workers", least * workers),
        ))
    }

    fn seconds(&self, written: Option<Seconds>, number: &Number) -> Result<Duration, Failure> {
        let written = written.map(|Seconds(seconds)| seconds);
        Ok(Duration::from_secs(self.limit(written, number)?))
    }
}

/// The value, or the default, within its range.
fn check(value: Option<String>, number: &Number, origin: &Origin) -> Result<u64, Failure> {
    match (value, number.default) {
        (Some(text), _) => check_range(&text, number, origin, ""),
        (None, DefaultValue::Fixed(value)) => Ok(value),
        (None, DefaultValue::Said(_)) => {
            unreachable!("numbers without a default are optional")
        }
    }
}

/// A port, or none if it is said to be off or has no default.
fn check_port(
    value: Option<String>,
    number: &Number,
    origin: &Origin,
) -> Result<Option<u16>, Failure> {
    match (value, number.default) {
        (Some(text), _) if text == config::OFF => Ok(None),
        (Some(text), _) => check_range(&text, number, origin, ", or off").map(|p| Some(narrow(p))),
        (None, DefaultValue::Fixed(port)) => Ok(Some(narrow(port))),
        (None, DefaultValue::Said(_)) => Ok(None),
    }
}

/// `otherwise` is what else than a number could be written.
fn check_range(
    text: &str,
    number: &Number,
    origin: &Origin,
    otherwise: &str,
) -> Result<u64, Failure> {
    match text.parse() {
        Ok(value) if number.range.contains(&value) => Ok(value),
        _ => {
            let (least, most) = (number.range.start(), number.range.end());
            let digits = text.strip_prefix('-').unwrap_or(text);
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            let problem = if is_number {
                "out of range"
            } else {
                "not a whole number"
            };
            Err(Failure::refused(
                format!("{origin} {text}: {problem}"),
                format!("use {least} to {most} ({}){otherwise}", number.unit),
            ))
        }
    }
}

/// How many workers: a number, or one for each processor; on a machine with several NUMA nodes, for each at
/// the node of the interface.
fn parse_workers(text: Option<&str>, origin: &Origin, link: &LinkChoice) -> Result<u32, Failure> {
    let range = &config::WORKERS.range;
    let Some(text) = text else { return Ok(1) };
    if text == config::AUTO {
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
                config::AUTO
            ),
        )
    })
}

/// The ranges of [`config`] are made so that every value fits where it is kept.
fn narrow<T: TryFrom<u64>>(value: u64) -> T {
    T::try_from(value)
        .ok()
        .expect("invariant: the setting's range fits its type")
}

fn parse_congestion(text: Option<&str>, origin: &Origin) -> Result<CongestionControl, Failure> {
    let Some(name) = text else {
        return Ok(CongestionControl::default());
    };
    CongestionControl::from_name(name).ok_or_else(|| {
        Failure::refused(
            format!("{origin} {name}: unknown algorithm"),
            "write cubic, reno or bbr",
        )
    })
}

/// An algorithm whose rate limits the sender needs pacing.
fn check_pacing(
    congestion: CongestionControl,
    is_paced: bool,
    origin: &Origin,
) -> Result<(), Failure> {
    if is_paced || !congestion.needs_pacing() {
        return Ok(());
    }
    Err(Failure::refused(
        format!("{origin} {}: needs pacing", congestion.name()),
        "write pacing = true, or cubic or reno",
    ))
}

/// The library's name, or `auto`.
fn parse_aead_library(text: Option<&str>, origin: &Origin) -> Result<Option<AeadLibrary>, Failure> {
    match text {
        None | Some("auto") => Ok(None),
        Some(name) => AeadLibrary::from_name(name).map(Some).ok_or_else(|| {
            Failure::refused(
                format!("{origin} {name}: unknown library"),
                "write auto, aws-lc or ring",
            )
        }),
    }
}

fn resolve_level(
    verbose: u8,
    quiet: u8,
    written: Option<String>,
    keys: &Keys,
) -> Result<LevelFilter, Failure> {
    let names = ["error", "warn", "info", "debug", "trace"];
    let place = |name: &str| names.iter().position(|known| *known == name);
    let default = place(config::LOG_DEFAULT).expect("invariant: the default is a level");
    if verbose == 0 && quiet == 0 {
        let Some(name) = written else {
            return Ok(LEVELS[default]);
        };
        let (_, origin) = keys.pick(None, Some(&name), "-v", "log");
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
