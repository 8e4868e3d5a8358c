//! The command line.

use std::net::{IpAddr, SocketAddrV4};
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use clock::Duration;
use rustls::pki_types::ServerName;

use crate::client::TlsClient;
use crate::filter::WholeShare;
use crate::frame::Addresses;
use crate::paths::Paths;
use crate::schedule::Distances;
use crate::tally::Work;
use crate::visits::AT_ONCE;

/// Most connections of a run, sampled ones included.
pub const CONNECTIONS_MAX: u32 = 1 << 20;

const NOTES: &str = "\
Example: bench/README.md. `cargo xtask bench figures --only ...` runs it beside a server; all of it is in one network namespace, where
it is started by `ip netns exec`. It says `ready wire0` on stderr when the interface is there, looks for the
server for --patience seconds, connects, and prints a JSON object at the end (--seconds, --passes, SIGINT,
SIGTERM). The exit code is 1 if a frame was lost before the clients, if any reply was wrong, or none came.

Rights: CAP_NET_ADMIN and CAP_BPF, CAP_SYS_ADMIN for the filter's run time; /dev/net/tun.";

/// Loads a server through a TAP that behaves as a NIC does, with clients that see headers only
///
/// The server's frames, up to 64 KiB, are shortened to their headers where a NIC's driver
/// would take them, and acknowledged by as many TCP clients as wanted, in one thread. Of a sample of
/// connections every byte is delivered and compared, or a share of them.
#[derive(Args, Clone, Debug)]
#[command(after_help = NOTES)]
pub struct WireArgs {
    /// The TAP; made if it is not there
    #[arg(long, value_name = "NAME", default_value = "wire0")]
    pub interface: String,
    /// The server's address and port
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub server: SocketAddrV4,
    /// An address for the kernel's end of the TAP, for servers that use the kernel's TCP
    #[arg(long, value_name = "CIDR")]
    pub host_address: Vec<String>,
    /// Connections of which headers are seen only
    #[arg(short, long, value_name = "N", default_value_t = 64)]
    pub connections: u32,
    /// More connections, of which bytes are compared
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub sample: u32,
    /// Of those, compares one in N stretches of 64 KiB only, over TLS one in N replies; a power of two up to 64
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_share)]
    pub compare_one_in: WholeShare,
    /// What to ask for: on each line a path, and the bytes of the object there, which holds seeded content; a line that
    /// stands there twice is asked for twice a pass
    #[arg(long, value_name = "FILE")]
    pub objects: PathBuf,
    /// Ends after so many seconds, the warm-up not counted
    #[arg(short, long, value_name = "SECONDS", default_value_t = 10)]
    pub seconds: u64,
    /// Ends when each path was asked for so often
    #[arg(long, value_name = "N")]
    pub passes: Option<u64>,
    /// Leaves at least so many seconds after all may ask out of all figures
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    pub warm_up: u64,
    /// Warms up until each connection has had so many replies; 3, or 0 with --passes
    #[arg(long, value_name = "N")]
    pub warm_up_replies: Option<u32>,
    /// and so many bytes of bodies; 1,000,000, or 0 with --passes
    #[arg(long, value_name = "BYTES")]
    pub warm_up_bytes: Option<u64>,
    /// Longest wait for anything: a connection more that stands, a byte more
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub patience: u64,
    /// Each connection asks every so many seconds, as a player does; else when it has its reply
    #[arg(long, value_name = "SECONDS", value_parser = parse_every)]
    pub every: Option<Duration>,
    /// Visitors a second from the warm-up on, whatever became of those before: each connects, asks once and goes
    #[arg(long, value_name = "N", requires = "visit_path",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub visits: Option<u32>,
    /// What they ask for
    #[arg(long, value_name = "PATH", requires = "visit_bytes")]
    pub visit_path: Option<String>,
    /// Its size, bytes
    #[arg(long, value_name = "BYTES")]
    pub visit_bytes: Option<u64>,
    /// Speaks TLS 1.3, with AES-128-GCM, and trusts the authorities in this file, PEM
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// The name the certificate must have, and Host; without it the server's address
    #[arg(long, value_name = "NAME")]
    pub server_name: Option<String>,
    /// Round trip, milliseconds: 20, or 10-40 for constant ones evenly spread over the connections
    #[arg(long, value_name = "MS", default_value = "0", value_parser = parse_range)]
    pub rtt: (Duration, Duration),
    /// Bytes of the largest IP packet, the interface's MTU: what MSS the clients announce
    #[arg(long, value_name = "BYTES", default_value_t = 1500,
          value_parser = clap::value_parser!(u16).range(1280..=9000))]
    pub mtu: u16,
    /// Packets of the server lost, in a million
    #[arg(long, value_name = "PPM", default_value_t = 0)]
    pub loss: u32,
    /// Decides the order of paths, distances, losses
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Runs the clients on this core
    #[arg(long, value_name = "CORE")]
    pub core: Option<usize>,
    /// The server's core: what comes for it is worked on there (RPS), and its time is reported
    #[arg(long, value_name = "CORE")]
    pub server_core: Option<usize>,
}

fn parse_every(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().map_err(|error| error.to_string())?;
    if (0.001..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("0.001 to 3600 seconds".to_owned())
    }
}

fn parse_share(text: &str) -> Result<WholeShare, String> {
    let share = text.parse().ok().and_then(WholeShare::one_in);
    share.ok_or_else(|| format!("a power of two up to {}", WholeShare::ONE_IN_MAX))
}

fn parse_range(text: &str) -> Result<(Duration, Duration), String> {
    let parse = |it: &str| {
        let millis = it.parse::<f64>().map_err(|error| error.to_string())?;
        if (0.0..=10_000.0).contains(&millis) {
            Ok(Duration::from_secs_f64(millis / 1000.0))
        } else {
            Err("0 to 10000 ms".to_owned())
        }
    };
    let (least, most) = text.split_once('-').unwrap_or((text, text));
    let (least, most) = (parse(least)?, parse(most)?);
    if most < least {
        return Err(format!("{text}: the first is the shortest"));
    }
    Ok((least, most))
}

impl WireArgs {
    /// Who talks to whom.
    pub(crate) fn addresses(&self) -> Result<Addresses> {
        let server = *self.server.ip();
        let total = u64::from(self.connections) + u64::from(self.sample);
        ensure!(
            (1..=u64::from(CONNECTIONS_MAX)).contains(&total),
            "1 to {CONNECTIONS_MAX} connections, sampled ones included"
        );
        Ok(Addresses {
            server,
            port: self.server.port(),
            client: server.to_bits().wrapping_add(4096).into(),
            unsampled: self.connections + self.visits.map_or(0, |_| AT_ONCE),
            sampled: self.sample,
        })
    }

    /// What is asked.
    pub(crate) fn paths(&self) -> Result<Paths> {
        let file = &self.objects;
        let text = std::fs::read_to_string(file);
        let text = text.with_context(|| format!("reading {}", file.display()))?;
        let object = |line: &str| {
            let (path, bytes) = line.split_once(' ')?;
            Some((path.to_owned(), bytes.parse().ok()?))
        };
        let objects = text.lines().map(|line| {
            let object = object(line);
            object.with_context(|| format!("{}: not a path and bytes: {line}", file.display()))
        });
        let objects = objects.collect::<Result<Vec<(String, u64)>>>()?;
        let port = self.server.port();
        let address = self.server.ip().to_string();
        let name = self.server_name.as_ref().unwrap_or(&address);
        let host = match (&self.ca, port) {
            (None, 80) | (Some(_), 443) => name.clone(),
            _ => format!("{name}:{port}"),
        };
        let passes = self.passes.unwrap_or(u64::MAX);
        ensure!(passes > 0, "--passes is above 0");
        let mut paths = Paths::new(&objects, &host, (self.seed, passes))?;
        if let Some((path, bytes)) = self.visit_path.as_ref().zip(self.visit_bytes) {
            paths.add_visit(path, bytes, &host)?;
        }
        Ok(paths)
    }

    /// How handshakes are made.
    pub(crate) fn tls_client(&self) -> Result<Option<TlsClient>> {
        let Some(authorities) = &self.ca else {
            return Ok(None);
        };
        let name = match &self.server_name {
            Some(name) => ServerName::try_from(name.clone())
                .with_context(|| format!("--server-name {name}: not a name"))?,
            None => ServerName::IpAddress(IpAddr::V4(*self.server.ip()).into()),
        };
        TlsClient::new(authorities, name).map(Some)
    }

    /// When a connection is warm.
    pub(crate) fn warm_up_work(&self) -> Work {
        let default = |value| if self.passes.is_some() { 0 } else { value };
        Work {
            replies: self.warm_up_replies.unwrap_or(default(3)),
            bytes: self
                .warm_up_bytes
                .unwrap_or_else(|| default(1_000_000).into()),
        }
    }

    pub(crate) const fn distances(&self) -> Distances {
        Distances {
            least: self.rtt.0,
            most: self.rtt.1,
            seed: self.seed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_is_one_or_a_range() {
        let millis = Duration::from_millis;
        assert_eq!(parse_range("20"), Ok((millis(20), millis(20))));
        assert_eq!(parse_range("10-40"), Ok((millis(10), millis(40))));
        assert!(parse_range("40-10").is_err() && parse_range("x").is_err());
        assert!(parse_range("10001").is_err());
    }

    #[test]
    fn a_period_is_a_millisecond_to_an_hour() {
        assert_eq!(parse_every("0.001"), Ok(Duration::from_millis(1)));
        assert_eq!(parse_every("3600"), Ok(Duration::from_secs(3600)));
        for wrong in ["0.0009", "3600.1", "-1", "NaN", "x"] {
            assert!(parse_every(wrong).is_err(), "{wrong}");
        }
    }

    fn parse(flags: &str) -> Result<WireArgs, clap::Error> {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            args: WireArgs,
        }
        let line = format!("wire --server 10.0.0.1:80 --objects {flags}");
        let cli: Cli = clap::Parser::try_parse_from(line.split_whitespace())?;
        Ok(cli.args)
    }

    #[test]
    fn objects_come_from_a_file_with_their_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("objects");
        let paths = |text: &str| {
            std::fs::write(&file, text).unwrap();
            parse(&file.display().to_string()).unwrap().paths()
        };
        let asked = paths("/b 7\n/c 8\n/b 7\n").unwrap();
        let of = |it| (asked.path(it), asked.size(it));
        assert_eq!([of(0), of(1), of(2)], [("/b", 7), ("/c", 8), ("/b", 7)]);
        for wrong in ["b 7\n", "/b\n", "/b x\n", ""] {
            paths(wrong).expect_err(wrong);
        }
        std::fs::remove_file(&file).unwrap();
        let missing = parse(&file.display().to_string()).unwrap().paths();
        let missing = missing.expect_err("no file");
        assert!(format!("{missing:#}").contains("reading"), "{missing:#}");
    }

    #[test]
    fn an_mtu_is_one_of_ipv6_or_a_jumbo_frame_at_most() {
        assert!(parse("/a --mtu 1280").is_ok() && parse("/a --mtu 9000").is_ok());
        assert!(parse("/a --mtu 9001").is_err() && parse("/a --mtu 1279").is_err());
    }

    #[test]
    fn passes_are_counted_from_the_first_reply_unless_asked_otherwise() {
        let work = |flags: &str| {
            let work = parse(&format!("/a {flags}")).unwrap().warm_up_work();
            (work.replies, work.bytes)
        };
        assert_eq!(work(""), (3, 1_000_000));
        assert_eq!(work("--passes 2"), (0, 0));
        assert_eq!(work("--passes 2 --warm-up-replies 1"), (1, 0));
        assert_eq!(work("--warm-up-replies 0 --warm-up-bytes 5"), (0, 5));
    }
}
