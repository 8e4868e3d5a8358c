//! The command line, and the plan it is resolved to.

use std::fs;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::content::{OBJECT_SEED, Reference};
use crate::schedule::{Amount, Pace};
use crate::socket::check_sources;
use crate::tls::{ClientOptions, Suite, Version, client_config};
use crate::urls::Urls;

/// The most connections of a run.
const CONNECTIONS_MAX: usize = 1 << 20;

/// Fewest and most arrivals a second.
const ARRIVALS_MIN: f64 = 0.01;
const ARRIVALS_MAX: f64 = 1e6;

/// Length of a run nobody gave one, seconds.
const SECONDS_DEFAULT: f64 = 10.0;

/// The longest of any time on the command line, seconds: a month.
const SECONDS_MAX: f64 = 2_678_400.0;

const EXAMPLES: &str = "\
Examples:
  16,000 connections over 13,020 objects for a minute:
    atlas-bench load -c 16000 --seconds 60 'http://10.0.0.2/{0..13019}.bin'
  each object once, each byte compared with the directory that is served:
    atlas-bench load --once --verify-against /srv/films 'http://10.0.0.2/{0..13019}.bin'
  TLS 1.3, records counted; one URL in a hundred opened and compared:
    atlas-bench load -c 4000 --ca ca.pem --server-name atlas.test --verify-sample 130 \\
      --verify-against /srv/films --urls urls.txt
  players: a chunk each 4 seconds, 30 seconds to come up:
    atlas-bench load -c 8000 --chunk-every 4 --ramp-up 30 --seconds 120 --urls urls.txt
  handshakes: a connection for each request, sessions resumed:
    atlas-bench load -c 64 --close --resume --insecure https://10.0.0.2/small.bin

The exit code is 1 if any reply was wrong (status, length, bytes) or none came at all.";

/// Loads a server with connections that ask for one object after another.
///
/// Each connection takes the next URL of a seeded shuffle as soon as its last reply is complete.
/// Bodies are counted and thrown away in the kernel, over TLS record by record, so that one core
/// of this client keeps many of a server's busy; with --verify they are compared instead.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct LoadArgs {
    /// What to ask for: http:// or https://; {0..99} stands for each number, {00..99} keeps zeros
    #[arg(value_name = "URL", required_unless_present = "urls")]
    pub url: Vec<String>,
    /// A file of URLs, one or one pattern a line
    #[arg(long, value_name = "FILE")]
    pub urls: Option<PathBuf>,
    /// Connections at once
    #[arg(short, long, value_name = "N", default_value_t = 64)]
    pub connections: usize,

    /// Ends after so many seconds (10 if nothing else ends it)
    #[arg(short, long, value_name = "SECONDS", group = "end")]
    pub seconds: Option<f64>,
    /// Ends after so many requests
    #[arg(short = 'n', long, value_name = "N", group = "end")]
    pub requests: Option<u64>,
    /// Asks for each URL once; with --seconds not longer than that
    #[arg(long, conflicts_with = "requests")]
    pub once: bool,
    /// Leaves the first seconds out of all figures
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    pub warm_up: f64,
    /// Opens the connections over so many seconds, each asking at once; without it none asks
    /// before all stand
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    pub ramp_up: f64,
    /// The shuffle's seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Asks like a player: a chunk each so many seconds on each connection, begun at random; a
    /// chunk that takes longer is late
    #[arg(long, value_name = "SECONDS")]
    pub chunk_every: Option<f64>,
    /// A connection for each request. Who closes it first keeps its port busy for a while: the
    /// server, which is asked to, or --close=client
    #[arg(
        long,
        value_name = "WHO",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "server"
    )]
    pub close: Option<Close>,
    /// Opens so many connections a second, each for one request, whatever became of those before.
    /// --connections is how many there may be at once; what comes when all are in use is missed
    #[arg(
        long,
        value_name = "PER_SECOND",
        requires = "close",
        conflicts_with_all = ["chunk_every", "ramp_up", "requests", "once"]
    )]
    pub arrivals: Option<f64>,
    /// Longest wait for a connection, or for the next byte of a reply
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    pub timeout: f64,
    /// Connections being opened at once: servers accept so many without dropping any
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub connect_at_once: usize,
    /// Addresses of this host to connect from, in turn: each has some 28,000 ports
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub source: Vec<IpAddr>,
    /// Each socket's receive buffer, bytes; without it the kernel's own choice
    #[arg(long, value_name = "BYTES")]
    pub receive_buffer: Option<usize>,
    /// Pause between two sweeps over the connections, milliseconds: woken by each segment instead,
    /// a client on the same machine slows its server. Delays are seen up to so much later
    #[arg(long, value_name = "MS", default_value_t = 1.0)]
    pub sweep_pause: f64,

    /// Offers this version of TLS only
    #[arg(long, value_name = "VERSION", value_enum)]
    pub tls_version: Option<Version>,
    /// Offers suites of this AEAD only
    #[arg(long, value_name = "AEAD", value_enum)]
    pub suite: Option<Suite>,
    /// Trusts the authorities in this file, PEM
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Trusts whoever answers
    #[arg(long, conflicts_with = "ca")]
    pub insecure: bool,
    /// The name the certificate must have, and Host; without it the URL's
    #[arg(long, value_name = "NAME")]
    pub server_name: Option<String>,
    /// Resumes TLS sessions
    #[arg(long)]
    pub resume: bool,

    /// Compares every byte of every body, with seeded content unless --verify-against is given
    #[arg(long)]
    pub verify: bool,
    /// Compares with the files below this directory
    #[arg(long, value_name = "DIR")]
    pub verify_against: Option<PathBuf>,
    /// Seed of the content: that of an object is the seed plus the last number in its path
    #[arg(long, value_name = "N", default_value_t = OBJECT_SEED, hide_default_value = true)]
    pub verify_seed: u64,
    /// Compares only so many of the URLs, spread over the list; other bodies are counted
    #[arg(long, value_name = "N")]
    pub verify_sample: Option<usize>,
    /// Every body must be so long
    #[arg(long, value_name = "BYTES")]
    pub expect_bytes: Option<u64>,

    /// Reports what these cores did meanwhile: a server's on the same machine
    #[arg(long, value_name = "CORE", value_delimiter = ',')]
    pub watch_core: Vec<usize>,
    /// Prints the report as JSON
    #[arg(long)]
    pub json: bool,
    /// Shows progress each second even where stderr is no terminal
    #[arg(long)]
    pub progress: bool,
}

/// Who closes a connection first.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Close {
    /// The server, asked to by `Connection: close`
    Server,
    /// The client, when it has its reply
    Client,
}

/// A server of a run, resolved.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) tls: Option<ServerName<'static>>,
    /// What `Host` says.
    pub(crate) authority: String,
}

/// What a run does: the command line, checked.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) urls: Urls,
    /// One for each of the URLs' origins.
    pub(crate) servers: Vec<Server>,
    pub(crate) connections: usize,
    pub(crate) amount: Amount,
    /// Length of the window after the warm-up, if time ends the run.
    pub(crate) window: Option<Duration>,
    pub(crate) warm_up: Duration,
    pub(crate) ramp_up: Duration,
    pub(crate) seed: u64,
    pub(crate) pace: Option<Pace>,
    /// Connections opened a second, whatever became of those before.
    pub(crate) arrivals: Option<f64>,
    pub(crate) close: Option<Close>,
    pub(crate) timeout: Duration,
    pub(crate) connect_at_once: usize,
    pub(crate) sources: Vec<IpAddr>,
    pub(crate) receive_buffer_bytes: Option<usize>,
    pub(crate) sweep_pause: Duration,
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// Each connection keeps tickets and resumes its sessions.
    pub(crate) resumes: bool,
    pub(crate) verification: Option<Verification>,
    pub(crate) body_bytes: Option<u64>,
    /// Cores whose time is reported.
    pub(crate) cores: Vec<usize>,
}

/// Which bodies are compared, and with what.
#[derive(Debug)]
pub(crate) struct Verification {
    pub(crate) reference: Reference,
    /// So many of the URLs; all if none.
    pub(crate) sample: Option<usize>,
}

impl Verification {
    /// Whether the body of that URL, of so many, is compared: a sample is spread evenly.
    pub(crate) fn covers(&self, url: u32, urls: usize) -> bool {
        let Some(sample) = self.sample else {
            return true;
        };
        let (url, urls, sample) = (u128::from(url), urls as u128, sample as u128);
        // The URL at which a sample's next step begins.
        sample > 0 && (url * sample).div_ceil(urls.max(1)) * urls / sample.max(1) == url
            || sample >= urls
    }
}

impl Plan {
    /// Checks the command line, reads its files and resolves its names.
    ///
    /// # Errors
    /// What cannot be done, by flag.
    pub(crate) fn new(args: &LoadArgs) -> Result<Self> {
        let urls = read_urls(args)?;
        ensure!(
            (1..=CONNECTIONS_MAX).contains(&args.connections),
            "--connections is 1 to {CONNECTIONS_MAX}"
        );
        ensure!(
            urls.origins.len() <= args.connections,
            "--connections: {} servers need a connection each",
            urls.origins.len()
        );
        ensure!(args.connect_at_once > 0, "--connect-at-once is above 0");
        let servers = resolve(args, &urls)?;
        let is_tls = servers.iter().any(|server| server.tls.is_some());
        let pace = args
            .chunk_every
            .map(|every| seconds("--chunk-every", every))
            .transpose()?;
        ensure!(
            pace.is_none_or(|every| !every.is_zero()),
            "--chunk-every is above 0"
        );
        ensure!(
            args.arrivals
                .is_none_or(|rate| (ARRIVALS_MIN..=ARRIVALS_MAX).contains(&rate)),
            "--arrivals is {ARRIVALS_MIN} to {ARRIVALS_MAX} a second"
        );
        let timeout = seconds("--timeout", args.timeout)?;
        ensure!(!timeout.is_zero(), "--timeout is above 0");
        let (amount, window) = length(args)?;
        Ok(Self {
            servers,
            connections: args.connections,
            amount,
            window,
            warm_up: seconds("--warm-up", args.warm_up)?,
            ramp_up: seconds("--ramp-up", args.ramp_up)?,
            seed: args.seed,
            pace: pace.map(|every| Pace { every }),
            arrivals: args.arrivals,
            close: args.close,
            timeout,
            connect_at_once: match args.arrivals {
                Some(_) => args.connections,
                None => args.connect_at_once,
            },
            sources: args.source.clone(),
            receive_buffer_bytes: args.receive_buffer,
            sweep_pause: seconds("--sweep-pause", args.sweep_pause / 1000.0)?,
            tls: is_tls
                .then(|| {
                    client_config(ClientOptions {
                        version: args.tls_version,
                        suite: args.suite,
                        authorities: args.ca.as_deref(),
                        is_insecure: args.insecure,
                    })
                })
                .transpose()?,
            resumes: args.resume,
            verification: verification(args),
            body_bytes: args.expect_bytes,
            cores: args.watch_core.clone(),
            urls,
        })
    }

    /// The numbers of each server's URLs.
    pub(crate) fn urls_of_servers(&self) -> Vec<Vec<u32>> {
        let mut all = vec![Vec::new(); self.servers.len()];
        for ((server, _), url) in self.urls.paths.iter().zip(0..) {
            let server = usize::try_from(*server).ok();
            if let Some(urls) = server.and_then(|at| all.get_mut(at)) {
                urls.push(url);
            }
        }
        all
    }
}

fn read_urls(args: &LoadArgs) -> Result<Urls> {
    let mut urls = Urls::default();
    for pattern in &args.url {
        urls.add(pattern)?;
    }
    if let Some(file) = &args.urls {
        let reading = || format!("--urls {}", file.display());
        let text = fs::read_to_string(file).with_context(reading)?;
        urls.add_lines(&text).with_context(reading)?;
    }
    ensure!(!urls.paths.is_empty(), "no URL to ask for");
    Ok(urls)
}

fn resolve(args: &LoadArgs, urls: &Urls) -> Result<Vec<Server>> {
    let mut servers = Vec::new();
    for origin in &urls.origins {
        let host = origin.host.as_str();
        let mut found = (host, origin.port)
            .to_socket_addrs()
            .with_context(|| format!("resolving {host}"))?;
        let address = found
            .next()
            .with_context(|| format!("{host} has no address"))?;
        check_sources(&args.source, address)?;
        let name = args.server_name.as_deref().unwrap_or(host);
        let tls = origin
            .is_tls
            .then(|| ServerName::try_from(name.to_owned()))
            .transpose()
            .with_context(|| format!("{name} cannot stand in a certificate"))?;
        servers.push(Server {
            address,
            tls,
            authority: origin.authority(name),
        });
    }
    Ok(servers)
}

fn length(args: &LoadArgs) -> Result<(Amount, Option<Duration>)> {
    let window = match (args.seconds, args.requests, args.once) {
        (Some(length), _, _) => length,
        (None, Some(requests), _) => {
            ensure!(requests > 0, "--requests is above 0");
            return Ok((Amount::Requests(requests), None));
        }
        (None, None, true) => return Ok((Amount::Once, None)),
        (None, None, false) => SECONDS_DEFAULT,
    };
    let window = seconds("--seconds", window)?;
    ensure!(!window.is_zero(), "--seconds is above 0");
    let amount = if args.once {
        Amount::Once
    } else {
        Amount::Endless
    };
    Ok((amount, Some(window)))
}

fn verification(args: &LoadArgs) -> Option<Verification> {
    let is_wanted = args.verify || args.verify_sample.is_some() || args.verify_against.is_some();
    is_wanted.then(|| Verification {
        reference: args
            .verify_against
            .clone()
            .map_or(Reference::Seeded(args.verify_seed), Reference::Directory),
        sample: args.verify_sample,
    })
}

fn seconds(flag: &str, value: f64) -> Result<Duration> {
    ensure!(
        (0.0..=SECONDS_MAX).contains(&value),
        "{flag} {value} is not a time between 0 and {SECONDS_MAX} s"
    );
    Ok(Duration::from_secs_f64(value))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        load: LoadArgs,
    }

    fn plan(line: &str) -> Result<Plan> {
        let words = std::iter::once("load").chain(line.split_whitespace());
        Plan::new(&Command::try_parse_from(words)?.load)
    }

    #[test]
    fn a_line_becomes_a_plan() {
        let it = plan("-c 3 -s 2.5 http://127.0.0.1:81/{0..2} http://[::1]/x").expect("a plan");
        assert_eq!(it.urls_of_servers(), [vec![0, 1, 2], vec![3]]);
        assert_eq!(it.window, Some(Duration::from_millis(2500)));
        assert_eq!(it.amount, Amount::Endless);
        assert_eq!(it.servers[0].authority, "127.0.0.1:81");
        assert_eq!(it.servers[1].address, "[::1]:80".parse().expect("address"));
        assert_eq!(it.sweep_pause, Duration::from_millis(1));
        assert!(it.verification.is_none() && it.tls.is_none());
        let it = plan("http://127.0.0.1/ --once --verify").expect("a plan");
        assert_eq!((it.amount, it.window), (Amount::Once, None));
        assert!(it.verification.is_some());
        let it = plan("http://127.0.0.1/ --once --seconds 1").expect("a plan");
        assert_eq!(
            (it.amount, it.window),
            (Amount::Once, Some(Duration::from_secs(1)))
        );
        let it = plan("http://127.0.0.1/ -n 7").expect("a plan");
        assert_eq!(it.amount, Amount::Requests(7));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "",
            "http://127.0.0.1/ -c 0",
            "http://127.0.0.1/ -c 1048577",
            "-c 1 http://127.0.0.1/ http://127.0.0.2/",
            "http://127.0.0.1/ --seconds 0",
            "http://127.0.0.1/ --seconds -1",
            "http://127.0.0.1/ --seconds nan",
            "http://127.0.0.1/ --requests 1 --once",
            "http://127.0.0.1/ --requests 1 --seconds 1",
            "http://127.0.0.1/ -n 0",
            "http://127.0.0.1/ --chunk-every 0",
            "http://127.0.0.1/ --timeout 0",
            "http://127.0.0.1/ --connect-at-once 0",
            "http://127.0.0.1/ --arrivals 10",
            "http://127.0.0.1/ --close --arrivals 0",
            "http://127.0.0.1/ --close --arrivals 1000001",
            "http://127.0.0.1/ --close --arrivals 10 --once",
            "http://127.0.0.1/ --source ::1",
            "http://127.0.0.1/ --warm-up 1e300",
            "https://127.0.0.1/",
            "--urls /nonexistent",
        ] {
            assert!(plan(line).is_err(), "{line}");
        }
        assert!(plan("https://127.0.0.1/ --insecure").is_ok());
        assert!(plan("http://127.0.0.1/ -c 1048576").is_ok());
        assert!(plan("http://127.0.0.1/ --close --arrivals 1000000").is_ok());
    }

    #[test]
    fn a_sample_has_its_size_and_is_spread() {
        let covered = |sample, urls: u32| -> Vec<u32> {
            let verification = Verification {
                reference: Reference::Seeded(0),
                sample: Some(sample),
            };
            (0..urls)
                .filter(|url| verification.covers(*url, urls as usize))
                .collect()
        };
        assert_eq!(covered(2, 10), [0, 5]);
        assert_eq!(covered(3, 10), [0, 3, 6]);
        assert_eq!(covered(0, 10), [0; 0]);
        assert_eq!(covered(10, 10).len(), 10);
        assert_eq!(covered(11, 10).len(), 10);
        assert_eq!(covered(130, 13_020).len(), 130);
        assert_eq!(covered(777, 13_020).len(), 777);
    }
}
