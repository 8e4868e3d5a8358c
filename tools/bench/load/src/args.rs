//! The command line, and the plan it is resolved to.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use testbed::tls_client::{ClientOptions, Suite, Version, client_config};

/// The most connections of a run.
const CONNECTIONS_MAX: usize = 1 << 20;

/// Fewest and most arrivals a second.
const ARRIVALS_MIN: f64 = 0.01;
const ARRIVALS_MAX: f64 = 1e6;

/// The longest of any time on the command line, seconds: a month.
const SECONDS_MAX: f64 = 2_678_400.0;

/// Where HTTPS is served if a URL does not say.
const HTTPS_PORT: u16 = 443;

const EXAMPLES: &str = "\
Examples:
  64 connections that ask for one object after another:
    atlas-bench load -c 64 --seconds 60 --ca ca.pem --server-name atlas.test --urls urls.txt
  a thousand handshakes a second, one request each:
    atlas-bench load -c 16000 --arrivals 1000 --insecure https://10.0.0.2/small.bin

The report is JSON. The exit code is 1 if any reply was wrong (status, length) or none came at all.";

/// Loads a server over TLS 1.3 with streams, or with handshakes that arrive at a rate.
///
/// Each connection asks for the next URL as soon as its last reply is complete. Bodies are counted record
/// by record and thrown away in the kernel, so that one core of this client keeps many of a server's busy.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct LoadArgs {
    /// What to ask for: https://ADDRESS/PATH
    #[arg(value_name = "URL", required_unless_present = "urls")]
    pub url: Vec<String>,
    /// A file of URLs of one server, one a line
    #[arg(long, value_name = "FILE")]
    pub urls: Option<PathBuf>,
    /// Connections at once
    #[arg(short, long, value_name = "N", default_value_t = 64)]
    pub connections: usize,
    /// Length of the window
    #[arg(short, long, value_name = "SECONDS", default_value_t = 10.0)]
    pub seconds: f64,
    /// Leaves the first seconds out of all figures
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    pub warm_up: f64,
    /// Opens so many connections a second, each for one request, whatever became of those before.
    /// --connections is how many there may be at once; what comes when all are in use is missed
    #[arg(long, value_name = "PER_SECOND")]
    pub arrivals: Option<f64>,
    /// Longest wait for a connection, or for the next byte of a reply
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    pub timeout: f64,
    /// Pause between two sweeps over the connections, milliseconds: woken by each segment instead,
    /// a client on the same machine slows its server. Delays are seen up to so much later
    #[arg(long, value_name = "MS", default_value_t = 1.0)]
    pub sweep_pause: f64,
    /// Trusts the authorities in this file, PEM
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Trusts whoever answers
    #[arg(long, conflicts_with = "ca")]
    pub insecure: bool,
    /// The name the certificate must have, and Host; without it the URL's address
    #[arg(long, value_name = "NAME")]
    pub server_name: Option<String>,
    /// Every body must be so long
    #[arg(long, value_name = "BYTES")]
    pub expect_bytes: Option<u64>,
    /// Reports what these cores did meanwhile: a server's on the same machine
    #[arg(long, value_name = "CORE", value_delimiter = ',')]
    pub watch_core: Vec<usize>,
}

/// What a run does: the command line, checked.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) server: SocketAddr,
    pub(crate) name: ServerName<'static>,
    /// The requests, in the order in which they are made, again and again.
    pub(crate) requests: Vec<String>,
    pub(crate) connections: usize,
    /// Length of the window after the warm-up.
    pub(crate) window: Duration,
    pub(crate) warm_up: Duration,
    /// Connections opened a second, whatever became of those before.
    pub(crate) arrivals: Option<f64>,
    pub(crate) timeout: Duration,
    pub(crate) sweep_pause: Duration,
    pub(crate) tls: Arc<ClientConfig>,
    pub(crate) body_bytes: Option<u64>,
    /// Cores whose time is reported.
    pub(crate) cores: Vec<usize>,
}

impl Plan {
    /// Checks the command line and reads its files.
    ///
    /// # Errors
    /// What cannot be done, by flag.
    pub(crate) fn new(args: &LoadArgs) -> Result<Self> {
        let (server, paths) = urls(args)?;
        ensure!(
            (1..=CONNECTIONS_MAX).contains(&args.connections),
            "--connections is 1 to {CONNECTIONS_MAX}"
        );
        ensure!(
            args.arrivals
                .is_none_or(|rate| (ARRIVALS_MIN..=ARRIVALS_MAX).contains(&rate)),
            "--arrivals is {ARRIVALS_MIN} to {ARRIVALS_MAX} a second"
        );
        let timeout = seconds("--timeout", args.timeout)?;
        ensure!(!timeout.is_zero(), "--timeout is above 0");
        let window = seconds("--seconds", args.seconds)?;
        ensure!(!window.is_zero(), "--seconds is above 0");
        let address = server.ip().to_string();
        let name = args.server_name.as_ref().unwrap_or(&address);
        let request = |path: &String| format!("GET {path} HTTP/1.1\r\nHost: {name}\r\n\r\n");
        Ok(Self {
            server,
            requests: paths.iter().map(request).collect(),
            name: ServerName::try_from(name.clone())
                .with_context(|| format!("{name} cannot stand in a certificate"))?,
            connections: args.connections,
            window,
            warm_up: seconds("--warm-up", args.warm_up)?,
            arrivals: args.arrivals,
            timeout,
            sweep_pause: seconds("--sweep-pause", args.sweep_pause / 1000.0)?,
            tls: client_config(ClientOptions {
                version: Some(Version::Tls13),
                suite: Some(Suite::Aes128Gcm),
                authorities: args.ca.as_deref(),
                is_insecure: args.insecure,
            })?,
            body_bytes: args.expect_bytes,
            cores: args.watch_core.clone(),
        })
    }
}

/// The one server, and the paths that it is asked for.
fn urls(args: &LoadArgs) -> Result<(SocketAddr, Vec<String>)> {
    let mut all = args.url.clone();
    if let Some(file) = &args.urls {
        let text = fs::read_to_string(file);
        let text = text.with_context(|| format!("--urls {}", file.display()))?;
        all.extend(text.lines().map(str::to_owned));
    }
    let mut servers = Vec::new();
    let mut paths = Vec::new();
    for url in &all {
        let (server, path) = split(url).with_context(|| format!("{url}: https://ADDRESS/PATH"))?;
        servers.push(server);
        paths.push(path);
    }
    servers.dedup();
    match servers.as_slice() {
        [server] => Ok((*server, paths)),
        _ => anyhow::bail!("URLs of one server, and at least one"),
    }
}

fn split(url: &str) -> Option<(SocketAddr, String)> {
    let rest = url.strip_prefix("https://")?;
    let (authority, path) = rest.split_once('/')?;
    let server = authority.parse().ok().or_else(|| {
        let address: IpAddr = authority.trim_matches(['[', ']']).parse().ok()?;
        Some(SocketAddr::new(address, HTTPS_PORT))
    })?;
    Some((server, format!("/{path}")))
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
        let it = plan("-s 2.5 --insecure https://[::1]:81/a/b https://[::1]:81/c").expect("a plan");
        assert_eq!(it.server, "[::1]:81".parse().expect("an address"));
        assert_eq!(it.requests[0], "GET /a/b HTTP/1.1\r\nHost: ::1\r\n\r\n");
        assert_eq!(it.requests.len(), 2);
        assert_eq!(it.window, Duration::from_millis(2500));
        assert_eq!(it.sweep_pause, Duration::from_millis(1));
        let it = plan("--insecure --server-name atlas.test https://127.0.0.1/").expect("a plan");
        assert_eq!(it.server.port(), 443);
        assert!(it.requests[0].contains("Host: atlas.test\r\n"));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "",
            "http://127.0.0.1/ --insecure",
            "https://127.0.0.1/",
            "https://127.0.0.1 --insecure",
            "https://127.0.0.1/ https://127.0.0.2/ --insecure",
            "https://127.0.0.1/ --insecure -c 0",
            "https://127.0.0.1/ --insecure -c 1048577",
            "https://127.0.0.1/ --insecure --seconds 0",
            "https://127.0.0.1/ --insecure --seconds -1",
            "https://127.0.0.1/ --insecure --seconds nan",
            "https://127.0.0.1/ --insecure --timeout 0",
            "https://127.0.0.1/ --insecure --arrivals 0",
            "https://127.0.0.1/ --insecure --arrivals 1000001",
            "https://127.0.0.1/ --insecure --warm-up 1e300",
            "--insecure --urls /nonexistent",
        ] {
            assert!(plan(line).is_err(), "{line}");
        }
        assert!(plan("https://127.0.0.1/ --insecure -c 1048576").is_ok());
        assert!(plan("https://127.0.0.1/ --insecure --arrivals 1000000").is_ok());
    }
}
