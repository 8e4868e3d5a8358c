//! What the server runs with: flags over file over defaults, every value checked.
//!
//! It refuses to look at the host (see [`crate::start`]): the same command line and file resolve
//! to the same settings on any machine. Every refusal names the flag or key, the value and the
//! remedy.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use tracing::level_filters::LevelFilter;

use crate::cidr::Cidr;
use crate::cli::ServeArgs;
use crate::config::{self, FileConfig, Number};
use crate::failure::Failure;

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

/// The interface to serve on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkChoice {
    /// A TAP interface of this name, made if it does not exist.
    Tap(String),
    /// An existing interface, through an `AF_PACKET` socket.
    Packet(String),
}

/// Everything the server runs with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The directory served.
    pub path: PathBuf,
    /// The interface.
    pub link: LinkChoice,
    /// Our addresses: 1..=[`ADDRESSES_MAX`], no two alike.
    pub addresses: Vec<Cidr>,
    /// How the operator named the addresses, for messages: `--address`, or the key.
    pub addresses_origin: Origin,
    /// TCP port of plain HTTP.
    pub http_port: u16,
    /// Where frames are also written.
    pub pcap: Option<PathBuf>,
    /// Whether pages of any origin may play what is served.
    pub cors: bool,
    /// Whether the page cache may be used where `O_DIRECT` is refused.
    pub buffered: bool,
    /// Least severe level logged.
    pub log: LevelFilter,
    /// Bounds on memory and time.
    pub limits: Limits,
}

/// Bounds on memory and time. See `docs/configuration.md` for each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Connections at once; half-open ones are bounded apart.
    pub connections_max: usize,
    /// Read buffers of 64 KiB.
    pub slots: u32,
    /// Reads in flight.
    pub disk_queue_depth: u32,
    /// Files held open; `None`: as many as `RLIMIT_NOFILE` allows.
    pub objects_max: Option<usize>,
    /// For a request head to be finished.
    pub head_timeout: Duration,
    /// For a persistent connection to ask again.
    pub idle_timeout: Duration,
    /// For a client to acknowledge something of its reply.
    pub send_timeout: Duration,
    /// For replies to finish after SIGINT or SIGTERM.
    pub shutdown_grace: Duration,
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
    /// Resolves the command line, reading the configuration file if it names one.
    ///
    /// # Errors
    /// The first setting that is not what it must be.
    pub fn resolve(args: ServeArgs) -> Result<Self, Failure> {
        let file = match &args.config {
            Some(path) => FileConfig::read(path)?,
            None => FileConfig::default(),
        };
        Self::merge(args, file)
    }

    /// Lays flags over file over defaults.
    ///
    /// # Errors
    /// The first setting that is not what it must be.
    pub fn merge(args: ServeArgs, file: FileConfig) -> Result<Self, Failure> {
        let keys = Keys {
            file: args.config.unwrap_or_default(),
        };
        let (link, link_origin) = keys.pick(args.link, file.link, "--link", "link");
        let link = parse_link(
            link.as_deref().unwrap_or(config::LINK_DEFAULT),
            &link_origin,
        )?;
        let typed = (!args.addresses.is_empty()).then_some(args.addresses);
        let (addresses, addresses_origin) = keys.pick(typed, file.address, "--address", "address");
        let addresses = addresses.unwrap_or_else(|| vec![config::ADDRESS_DEFAULT.into()]);
        let addresses = parse_addresses(&addresses, &addresses_origin)?;
        let (http, origin) = keys.number(args.http, file.http, "--http", "http");
        let http_port = check(http, &config::HTTP, &origin)?;
        let (workers, origin) = keys.number(args.workers, file.workers, "--workers", "workers");
        check_workers(workers, &origin)?;
        Ok(Self {
            path: args.path,
            link,
            addresses,
            addresses_origin,
            http_port: narrow(http_port),
            pcap: args.pcap.or(file.pcap),
            cors: args.cors || file.cors.unwrap_or(false),
            buffered: file.buffered.unwrap_or(false),
            log: resolve_level(args.verbose, args.quiet, file.log, &keys)?,
            limits: Limits {
                connections_max: narrow(
                    keys.limit(file.connections_max, &config::CONNECTIONS_MAX)?,
                ),
                slots: narrow(keys.limit(file.slots, &config::SLOTS)?),
                disk_queue_depth: narrow(
                    keys.limit(file.disk_queue_depth, &config::DISK_QUEUE_DEPTH)?,
                ),
                objects_max: match file.objects_max {
                    Some(_) => Some(narrow(keys.limit(file.objects_max, &config::OBJECTS_MAX)?)),
                    None => None,
                },
                head_timeout: keys
                    .seconds(file.head_timeout_seconds, &config::HEAD_TIMEOUT_SECONDS)?,
                idle_timeout: keys
                    .seconds(file.idle_timeout_seconds, &config::IDLE_TIMEOUT_SECONDS)?,
                send_timeout: keys
                    .seconds(file.send_timeout_seconds, &config::SEND_TIMEOUT_SECONDS)?,
                shutdown_grace: keys
                    .seconds(file.shutdown_grace_seconds, &config::SHUTDOWN_GRACE_SECONDS)?,
            },
        })
    }

    /// Our addresses without their subnets.
    #[must_use]
    pub fn own_addresses(&self) -> Vec<IpAddr> {
        self.addresses.iter().map(Cidr::address).collect()
    }

    /// `http://10.77.0.2/ http://[fd77::2]:8080/`: where clients find the server.
    #[must_use]
    pub fn urls(&self) -> String {
        let port = match self.http_port {
            80 => String::new(),
            port => format!(":{port}"),
        };
        let url = |cidr: &Cidr| match cidr.address() {
            IpAddr::V4(address) => format!("http://{address}{port}/"),
            IpAddr::V6(address) => format!("http://[{address}]{port}/"),
        };
        self.addresses.iter().map(url).collect::<Vec<_>>().join(" ")
    }
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

    /// A limit: only the file has them.
    fn limit(&self, written: Option<i64>, number: &Number) -> Result<u64, Failure> {
        let (value, origin) = self.number(None, written, number.name, number.name);
        check(value, number, &origin)
    }

    fn seconds(&self, written: Option<i64>, number: &Number) -> Result<Duration, Failure> {
        Ok(Duration::from_secs(self.limit(written, number)?))
    }
}

/// The value, or the default, within its range.
fn check(value: Option<String>, number: &Number, origin: &Origin) -> Result<u64, Failure> {
    let Some(text) = value else {
        return Ok(number
            .default
            .expect("invariant: numbers without a default are optional"));
    };
    match text.parse() {
        Ok(value) if number.range.contains(&value) => Ok(value),
        _ => {
            let (least, most) = (number.range.start(), number.range.end());
            Err(Failure::refused(
                format!("{origin} {text}: out of range"),
                format!("use {least} to {most} ({})", number.unit),
            ))
        }
    }
}

fn check_workers(value: Option<String>, origin: &Origin) -> Result<(), Failure> {
    let Some(text) = value else { return Ok(()) };
    match text.parse::<u64>() {
        Ok(1) => Ok(()),
        Ok(more) if more > 1 => Err(Failure::refused(
            format!("{origin} {more}: more than one worker is not supported yet"),
            format!("use 1, or run {more} servers on addresses and interfaces of their own"),
        )),
        _ => Err(Failure::refused(
            format!("{origin} {text}: not a number of workers"),
            "use 1",
        )),
    }
}

/// The ranges of [`config`] are made so that every value fits where it is kept.
fn narrow<T: TryFrom<u64>>(value: u64) -> T {
    T::try_from(value)
        .ok()
        .expect("invariant: the setting's range fits its type")
}

/// Whether the name is an interface's is for the link room to say, which also knows whether there
/// is such an interface.
fn parse_link(text: &str, origin: &Origin) -> Result<LinkChoice, Failure> {
    let refuse = |problem: &str| {
        Failure::refused(
            format!("{origin} {text}: {problem}"),
            "write tap:NAME for a TAP interface or packet:IFACE for an existing one",
        )
    };
    let (kind, name) = text
        .split_once(':')
        .ok_or_else(|| refuse("no kind of link"))?;
    match kind {
        "tap" => Ok(LinkChoice::Tap(name.into())),
        "packet" => Ok(LinkChoice::Packet(name.into())),
        _ => Err(refuse("unknown kind of link")),
    }
}

fn parse_addresses(texts: &[String], origin: &Origin) -> Result<Vec<Cidr>, Failure> {
    if texts.is_empty() || texts.len() > ADDRESSES_MAX {
        return Err(Failure::refused(
            format!("{origin}: {} addresses", texts.len()),
            format!("give 1 to {ADDRESSES_MAX}"),
        ));
    }
    let mut addresses: Vec<Cidr> = Vec::new();
    for text in texts {
        let cidr = Cidr::parse(text).map_err(|error| {
            Failure::refused(format!("{origin} {text}: {error}"), error.remedy())
        })?;
        if addresses
            .iter()
            .any(|other| other.address() == cidr.address())
        {
            return Err(Failure::refused(
                format!("{origin} {text}: the address is given twice"),
                "leave one of them out",
            ));
        }
        addresses.push(cidr);
    }
    Ok(addresses)
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
