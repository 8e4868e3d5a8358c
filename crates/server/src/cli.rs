//! The command line as it was typed: flags and their help, nothing resolved.
//!
//! It refuses to know defaults or limits: those are one table in [`crate::config`], which
//! [`crate::settings`] lays under the configuration file and these flags. A flag's text is kept as
//! typed wherever an error message should be able to repeat it.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};

use crate::failure::EXIT_CODES;
use crate::tls::reader::ReaderArgs;

/// What follows `atlas --help`, in front of the exit codes.
const EXAMPLES: &str = "\
Examples:
  Serve /srv/video on a new TAP interface, then fetch from it:
    sudo atlas serve /srv/video
    curl -O http://10.77.0.2/film.mp4

  The same for IPv4 and IPv6, on port 8080:
    sudo atlas serve /srv/video --address 10.77.0.2/24 --address fd77::2/64 --http 8080

  On an existing interface, with an address that no other host on its network has:
    sudo atlas serve /srv/video --link packet:eth1 --address 192.0.2.10/24

  Over TLS, besides plain HTTP or (--http off) instead of it:
    sudo atlas serve /srv/video --https 443 --cert chain.pem --key key.pem

  From a block device without a file system:
    sudo atlas store init /dev/nvme0n1
    sudo atlas store add /dev/nvme0n1 /srv/video
    sudo atlas serve /dev/nvme0n1

  With everything in a file, after a look whether it could be served:
    sudo atlas serve /srv/video --config /etc/atlas.toml --check
    sudo atlas serve /srv/video --config /etc/atlas.toml

Deploying, every setting, an example and a unit for systemd: docs/run/deploy.md, docs/run/configuration.md,
dist/

Exit codes:
";

/// What follows `atlas --help`.
fn notes() -> String {
    let codes = EXIT_CODES.map(|(code, meaning)| format!("  {code:<9} {meaning}"));
    format!("{EXAMPLES}{}", codes.join("\n"))
}

/// What follows `atlas serve --help`.
const SERVE_NOTES: &str = "\
Signals:
  SIGINT, SIGTERM  finish the replies in progress, then end; a second one resets them and ends
  SIGUSR1          open the access log again, and print all counters to stderr, one line of
                   JSON after 'counters '
  SIGHUP           read the certificates and keys of --https again; if one is unusable, the log
                   says so and the old ones stay; open PATH again, in case it is a symbolic link
                   that has changed; no connection is dropped. Nothing else is read again: other
                   settings need a restart

Output:
  stdout  one line once requests are answered: ready http://10.77.0.2/ https://10.77.0.2/ ...
          (with --access-log - a line for each request follows)
  stderr  the log, and at the end all counters, one line of JSON after 'summary '

Rights:
  tap:NAME      CAP_NET_ADMIN, and /dev/net/tun
  packet:IFACE  CAP_NET_RAW and CAP_NET_ADMIN
  xdp:IFACE, xdp+packet:IFACE, auto:IFACE
                CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF
  Run as root or, without XDP: sudo setcap cap_net_admin,cap_net_raw+ep $(command -v atlas)
  The server drops them once everything is opened: see --user. Files that its user cannot read
  are answered with 403; certificates and keys may belong to root.

Examples:
  sudo atlas serve /srv/video
  sudo atlas serve /srv/video --address 10.77.0.2/24 --address fd77::2/64 --http 8080
  sudo atlas serve /srv/video --link packet:eth1 --address 192.0.2.10/24
  sudo atlas serve /srv/video --link packet:eth1 --mac interface --address 192.0.2.10/24
  sudo atlas serve /srv/video --https 443 --cert chain.pem --key key.pem
  sudo atlas serve /srv/video --http off --https 443 \\
    --cert a-chain.pem --key a-key.pem --cert b-chain.pem --key b-key.pem
  sudo atlas serve /srv/video --config /etc/atlas.toml --pcap /tmp/atlas.pcap -v";

/// What follows `atlas store --help`.
const STORE_NOTES: &str = "\
STORE is a block device or an image file; a store of several devices is named by all of them, joined by
commas. atlas serve takes it in place of a directory, and finds what is added or replaced while it serves.
An add or rm that is interrupted, by a signal or a power cut, leaves the store as it was.

Examples:
  sudo atlas store init /dev/nvme0n1,/dev/nvme1n1
  sudo atlas store add /dev/nvme0n1,/dev/nvme1n1 /srv/video
  sudo atlas serve /dev/nvme0n1,/dev/nvme1n1
  atlas store init films.img --size 64G

Exit codes:
  0  done
  1  a failure on the way, no room, or damage that was found
  2  not begun: the one line on stderr names the remedy
  130, 143  SIGINT or SIGTERM ended it";

/// What follows `atlas doctor --help`.
const DOCTOR_NOTES: &str = "\
Each line is a finding: ok; less (it works, but not everything or not at full speed); MISSING (no
server starts without it). Below it, behind ->, what mends it. Nothing is changed.
The exit code is 2 if something is MISSING, otherwise 0.

With --json it is one object: \"missing\", how many are, and \"findings\", an array of objects with
\"section\", \"verdict\" (\"ok\", \"less\" or \"missing\"), \"subject\", \"found\" and \"remedy\" (null if nothing
is to be mended). These names stay.

Examples:
  sudo atlas doctor
  sudo atlas doctor /srv/video --config /etc/atlas/atlas.toml
  sudo atlas doctor --json | jq -r '.findings[] | select(.verdict != \"ok\") | .remedy'";

/// Serves files over HTTP and HTTPS from its own TCP/IP stack, straight from disk to wire.
///
/// A piece of a file is read from the disk (O_DIRECT) when a client's TCP acknowledgment makes room
/// for it, and sent at once from the buffer it was read into. There is no page cache and no socket
/// buffer in between.
#[derive(Parser, Debug)]
#[command(name = "atlas", version, after_help = notes(), max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one, made once and taken apart at once"
)]
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Serve the files of a directory, or of a raw store
    Serve(ServeArgs),
    /// Tell what this machine offers, and the command that mends what is missing
    #[command(after_help = DOCTOR_NOTES)]
    Doctor(DoctorArgs),
    /// Make and change a raw store: objects on block devices or images, without a file system
    #[command(after_help = STORE_NOTES)]
    Store {
        /// What to do.
        #[command(subcommand)]
        command: StoreCommand,
    },
    /// Give an NVMe controller to a driver in user space, or back to the kernel
    Nvme {
        /// What to do.
        #[command(subcommand)]
        command: NvmeCommand,
    },
    /// Internal: the process that reads certificates for a server without the right to
    #[command(name = crate::tls::reader::COMMAND, hide = true)]
    ReadCertificates(ReaderArgs),
}

/// The commands of `atlas store`. `STORE` is a device or image; several are joined by commas.
#[derive(Subcommand, Debug)]
pub enum StoreCommand {
    /// Make a store on devices that hold nothing else
    Init(StoreInitArgs),
    /// Add files, all or none; a directory's files have names relative to it
    Add(StoreAddArgs),
    /// List the names of all objects
    Ls {
        /// Device or image of the store
        #[arg(value_name = "STORE")]
        store: PathBuf,
        /// With size, time of the last change, and tag
        #[arg(short, long)]
        long: bool,
    },
    /// Remove objects, all or none
    Rm {
        /// Device or image of the store
        #[arg(value_name = "STORE")]
        store: PathBuf,
        /// Names of objects
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        /// What is beneath a name, too
        #[arg(short = 'r', long = "recursive")]
        tree: bool,
    },
    /// Write an object to stdout, and compare it with its checksums
    Get {
        /// Device or image of the store
        #[arg(value_name = "STORE")]
        store: PathBuf,
        /// Name of the object
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Read objects and compare them with their checksums; exit code 1 if one is damaged
    Verify {
        /// Device or image of the store
        #[arg(value_name = "STORE")]
        store: PathBuf,
        /// Names of objects [default: all]
        #[arg(value_name = "NAME")]
        names: Vec<String>,
    },
    /// Discard what is free on the devices, as fstrim does; images get holes
    Trim {
        /// Device or image of the store
        #[arg(value_name = "STORE")]
        store: PathBuf,
    },
    /// Tell what the store has and what room there is
    Stat {
        /// Device or image of the store
        #[arg(value_name = "STORE")]
        store: PathBuf,
    },
}

/// `atlas store init`, as typed.
#[derive(Args, Clone, Debug)]
pub struct StoreInitArgs {
    /// Block device or image file; several, joined by commas, become one store
    #[arg(value_name = "STORE")]
    pub store: PathBuf,

    /// Make image files of this size (bytes, or with K, M, G, T) where there are none
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,

    /// Room for the catalogue, twice on each device [default: 1/256 of the store, 256K to 1G]
    ///
    /// An object takes 64 bytes, its name, and 16 bytes for each MiB.
    #[arg(long, value_name = "SIZE")]
    pub catalogue_size: Option<String>,

    /// Destroy what the devices hold; asks once more, and goes on only if YES is typed
    #[arg(long)]
    pub overwrite_existing: bool,
}

/// `atlas store add`, as typed.
#[derive(Args, Clone, Debug)]
pub struct StoreAddArgs {
    /// Device or image of the store
    #[arg(value_name = "STORE")]
    pub store: PathBuf,

    /// Files and directories
    ///
    /// A directory's files have names relative to it; a file has its own. A name that is there already
    /// gets the new content, unless size and time of the file are those of the object. Symbolic links in
    /// directories are left out.
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,

    /// Directory in the store for what is added
    #[arg(long, value_name = "NAME")]
    pub under: Option<String>,

    /// Content type of what is added [default: by the names' extensions]
    #[arg(long = "type", value_name = "TYPE")]
    pub content_type: Option<String>,
}

/// `atlas doctor`, as typed.
#[derive(Args, Clone, Debug, Default)]
pub struct DoctorArgs {
    /// What is to be served: tries whether the serving user may read it, and whether it has O_DIRECT
    #[arg(value_name = "PATH")]
    pub path: Option<PathBuf>,

    /// Configuration file (TOML) that it is to be served with: tells its user, memory and link
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Print the findings as JSON
    #[arg(long)]
    pub json: bool,
}

/// The commands of `atlas nvme`.
#[derive(Subcommand, Debug)]
pub enum NvmeCommand {
    /// Give it to vfio-pci, for a driver in user space; refused while the host uses it
    Bind {
        /// Its PCI address, like 0000:01:00.0, or its name, like nvme0
        #[arg(value_name = "DEV")]
        device: String,
    },
    /// Give it back to the kernel's driver
    Unbind {
        /// Its PCI address, like 0000:01:00.0, or its name
        #[arg(value_name = "DEV")]
        device: String,
    },
}

/// `atlas serve`, as typed.
#[derive(Args, Clone, Debug, Default)]
#[command(after_long_help = SERVE_NOTES)]
pub struct ServeArgs {
    /// All that is not about TLS.
    #[command(flatten)]
    pub common: CommonArgs,

    /// Look whether it could serve, then end: exit code 0 if so, that of a start and the reason if not
    ///
    /// Looks at all that a start looks at, as far as it changes nothing: it can run beside a server. Not
    /// whether another host has an address, nor at the content of NVMe controllers.
    #[arg(long)]
    pub check: bool,

    /// What only serving over TLS takes.
    #[command(flatten)]
    pub tls: TlsArgs,
}

/// The flags of TLS.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "TLS")]
pub struct TlsArgs {
    /// TCP port of HTTP over TLS, 1 to 65535, or off [default: off]
    ///
    /// TLS 1.3 and 1.2. Needs --cert and --key.
    #[arg(long, value_name = "PORT")]
    pub https: Option<String>,

    /// Certificate chain, PEM: the server's own first, then its issuers; may be repeated
    ///
    /// The n-th --cert belongs to the n-th --key. Of several, a client gets the first one for the
    /// server name it sends (SNI) with a key type it supports; if there is none, the first one.
    /// SIGHUP reads them again.
    #[arg(long = "cert", value_name = "PEM", action = ArgAction::Append)]
    pub certificates: Vec<PathBuf>,

    /// Private key of the --cert with the same number, PEM, not encrypted; may be repeated
    #[arg(long = "key", value_name = "PEM", action = ArgAction::Append)]
    pub keys: Vec<PathBuf>,

    /// Write the secrets of every TLS connection to the file $SSLKEYLOGFILE names [default: off]
    ///
    /// For debugging: with that file the connections can be decrypted. Without this flag the
    /// variable is ignored.
    #[arg(long)]
    pub log_tls_secrets: bool,
}

/// The flags that are not about TLS, and the directory.
#[derive(Args, Clone, Debug, Default)]
pub struct CommonArgs {
    /// Directory whose regular files are served, or a raw store (see atlas store)
    ///
    /// Files are taken to be immutable: to replace one, rename the new file over it. A file that
    /// changes while it is being sent is never sent mixed: its connections are reset.
    ///
    /// A raw store is its devices or images, joined by commas; or nvme:ADDRESS, such as
    /// nvme:0000:01:00.0, if Atlas is to drive the NVMe controller itself (see atlas nvme).
    #[arg(value_name = "PATH")]
    pub path: PathBuf,

    /// Interface to serve on: tap:NAME, packet:IFACE, xdp:IFACE ... [default: tap:atlas0]
    ///
    /// tap:NAME makes (or takes over) a TAP interface; the host's end of it gets the first free
    /// address of each --address subnet, so the host itself can be the first client. If NAME is a
    /// macvtap, it is opened, and keeps the addresses it has.
    ///
    /// packet:IFACE uses an existing interface through an AF_PACKET socket; the host's own
    /// addresses on it keep working.
    ///
    /// xdp:IFACE uses AF_XDP sockets, one for each receive queue, and as many workers. Without
    /// --address it serves at the host's own addresses there: an XDP program takes TCP to the
    /// server's ports, and the host keeps all else. The program is gone when the server is.
    ///
    /// xdp+packet:IFACE receives as xdp:IFACE does and sends as packet:IFACE does, for devices that
    /// segment TCP.
    ///
    /// auto:IFACE chooses one of these three, and the log says why: xdp+packet where the device
    /// segments TCP and its driver runs XDP programs, xdp where the device does not segment and its
    /// driver has zero copy, packet elsewhere.
    /// Without --address it shares the host's, which needs XDP. auto alone takes the interface of the
    /// default route.
    #[arg(long, value_name = "LINK")]
    pub link: Option<String>,

    /// MAC address to be reached at on an existing interface: own or interface [default: own]
    ///
    /// own is one made for this server, beside the interface's. Networks that let only known MAC
    /// addresses through (most clouds, many container networks, Wi-Fi) drop what is sent to it:
    /// there, interface shares the interface's own with the kernel.
    #[arg(long, value_name = "MAC")]
    pub mac: Option<String>,

    /// Send frames from where the disk put them on packet: or xdp:IFACE: auto, on or off [default: auto]
    ///
    /// auto does so where the device segments TCP and its driver is known to say truthfully when it
    /// has read a frame; the log says whether, and why not. on does so on any interface, off nowhere.
    /// With xdp:IFACE, auto also has the device access the sockets' memory itself where it can.
    #[arg(long, value_name = "WHEN")]
    pub zero_copy: Option<String>,

    /// Poll the device for so many microseconds without work, then sleep: 0 to 1000000 [default: 0]
    ///
    /// With xdp:IFACE and xdp+packet:IFACE. Under traffic each worker then uses all of its core; an idle
    /// server sleeps. The interface should defer its interrupts: docs/run/deploy.md says how.
    #[arg(long, value_name = "MICROSECONDS")]
    pub busy_poll: Option<String>,

    /// Address to answer at, with its prefix length; may be repeated [default: 10.77.0.2/24]
    ///
    /// The server's own address, IPv4 or IPv6, which neither this host nor another host on the
    /// network may use: the server answers ARP and neighbour discovery for it. It probes the
    /// network first, and does not start if the address is in use.
    ///
    /// 192.0.2.80/32,noarp is an address that another station answers ARP for, a load balancer that sends
    /// its packets to the server (LVS-DR): the server says nothing about it.
    #[arg(long = "address", value_name = "CIDR", action = ArgAction::Append)]
    pub addresses: Vec<String>,

    /// Serve clients of this network only, 192.0.2.0/24; may be repeated [default: everybody]
    ///
    /// All others get no answer, as from a packet filter that drops. Most links pass the host's
    /// firewall by, so that it cannot do this.
    #[arg(long = "allow", value_name = "NETWORK", action = ArgAction::Append)]
    pub allow: Vec<String>,

    /// Do not answer clients of this network; may be repeated [default: nobody]
    ///
    /// It wins over --allow.
    #[arg(long = "deny", value_name = "NETWORK", action = ArgAction::Append)]
    pub deny: Vec<String>,

    /// TCP port of plain HTTP, 1 to 65535, or off [default: 80]
    #[arg(long, value_name = "PORT")]
    pub http: Option<String>,

    /// User to become once everything is opened: NAME or NAME:GROUP, or numbers
    ///
    /// Started as root, the server drops all privileges before the first frame is read: it becomes
    /// this user, which must be able to read the files it serves, with no capabilities and no
    /// other groups. Without the flag that is the user atlas if there is one, else nobody. --user
    /// root keeps it root. Started as another user, it stays that user and drops its capabilities.
    #[arg(long, value_name = "NAME[:GROUP]")]
    pub user: Option<String>,

    /// Allow core dumps and debuggers, which see keys and what is served [default: off]
    #[arg(long)]
    pub core_dumps: bool,

    /// Worker threads, best one for each processor: a number, or auto [default: 1]
    #[arg(long, value_name = "N|auto")]
    pub workers: Option<String>,

    /// Configuration file (TOML); flags win over it
    ///
    /// Every setting there is, with its unit, default and range: docs/run/configuration.md.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Write every frame sent and received to a pcap file (slow: for debugging)
    ///
    /// The file is made by --user and readable by that user only. A symbolic link is refused. Of
    /// several workers, the first writes FILE, the second FILE.1, and so on.
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,

    /// Write what TCP does on connections of --trace-peer to a qlog file (JSON-SEQ, for qvis)
    ///
    /// For streams that are slow or stuck: segments, losses, windows, RTTs and reads of the disk. The
    /// file is made by --user, is readable by that user only, and ends at 1 GiB. A symbolic link is
    /// refused. docs/run/slow-streams.md shows how to read it. To list connections without a trace, see
    /// --metrics.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Client whose connections are traced: its address, or address and port
    #[arg(long, value_name = "ADDR[:PORT]")]
    pub trace_peer: Option<String>,

    /// Write a line for each request to FILE, in the combined log format; - is stdout
    ///
    /// The line is written when the reply is over. SIGUSR1 opens the file again, so that it can be
    /// rotated. If the disk or the reader is too slow, lines are dropped and counted; serving does
    /// not wait.
    #[arg(long, value_name = "FILE")]
    pub access_log: Option<PathBuf>,

    /// Answer at this address of the host's own with metrics and health [default: off]
    ///
    /// http://ADDR:PORT/metrics has every counter as OpenMetrics text; /health is 200 while the
    /// server serves, 503 while it ends or hangs. /connections lists connections as lines of JSON,
    /// those of one client with ?peer=ADDR, and is answered to this host only. Plain HTTP through the
    /// host's own TCP: name a loopback address, like 127.0.0.1:9100, or one of a management network.
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics: Option<String>,

    /// Let web pages of any origin play what is served (CORS) [default: off]
    ///
    /// Adds Access-Control-Allow-Origin: * and answers preflight requests. Players that run in a
    /// page of another origin need it.
    #[arg(long)]
    pub cors: bool,

    /// Header field to add to replies, 'Name: value'; may be repeated [default: none]
    ///
    /// It is added to every 200, 206, 301 and 304. A Cache-Control replaces the default one.
    #[arg(long = "header", value_name = "FIELD", action = ArgAction::Append)]
    pub headers: Vec<String>,

    /// Log more: -v debug, -vv trace
    #[arg(short, long, action = ArgAction::Count, conflicts_with = "quiet")]
    pub verbose: u8,

    /// Log less: -q warnings and errors, -qq errors only
    #[arg(short, long, action = ArgAction::Count)]
    pub quiet: u8,
}

#[cfg(test)]
mod tests {
    use super::{Cli, Command};
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn addresses_keep_their_order() {
        let words = ["atlas", "serve", "/srv", "--address", "b", "--address", "a"];
        let Command::Serve(args) = Cli::try_parse_from(words).unwrap().command else {
            panic!("serve was typed");
        };
        assert_eq!(args.common.addresses, ["b", "a"]);
    }

    #[test]
    fn verbose_and_quiet_exclude_each_other() {
        assert!(Cli::try_parse_from(["atlas", "serve", "/srv", "-v", "-q"]).is_err());
        assert!(Cli::try_parse_from(["atlas", "serve", "/srv", "-vv"]).is_ok());
    }
}
