//! The command line as it was typed: flags and their help, nothing resolved.
//!
//! The flags of settings are those of [`crate::settings`], which lays them over the configuration file. A
//! flag's text is kept as typed wherever an error message should be able to repeat it.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};

use crate::failure::EXIT_CODES;
use crate::reload::reader::ReaderArgs;
use crate::settings::CommonArgs;
use crate::take_over::launcher::LauncherArgs;
use crate::take_over::request::ReloadArgs;
use crate::version;

/// What follows `atlas --help`, in front of the exit codes.
const EXAMPLES: &str = "\
Examples:
  A first try, by any user, on this host; prints the URL to open:
    atlas try ~/Videos

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
    sudo atlas check /etc/atlas.toml /srv/video
    sudo atlas serve /srv/video --config /etc/atlas.toml

Keys of the file: atlas check --keys; those of sites: docs/run/sites.md. Deploying, examples and a unit for systemd: \
docs/run/deploy.md and dist/ of the source.

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
  SIGHUP           what atlas reload does: read --config, certificates and keys again, and
                   open PATH again. Sites, what replies say and certificates change for requests
                   and handshakes that begin from then on; for other settings, or another file
                   at the program's path, another process takes over. If anything is wrong, the
                   log says so and nothing changes. No connection is dropped

Output:
  stdout  one line once requests are answered: ready http://10.77.0.2/ https://10.77.0.2/ ...
          (with --access-log - a line for each request follows)
  stderr  the log, and at the end all counters, one line of JSON after 'summary '

Rights:
  tap:NAME      CAP_NET_ADMIN, and /dev/net/tun
  packet:IFACE  CAP_NET_RAW and CAP_NET_ADMIN
  xdp:IFACE, xdp+packet:IFACE, auto:IFACE
                CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF
  relay:ADDRESS none, but CAP_NET_BIND_SERVICE for ports below 1024
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

/// What follows `atlas try --help`.
const TRY_NOTES: &str = "\
Prints the URL of a file in DIR that opens on this host, and serves until Ctrl-C. Where this process may make \
a TAP interface (as root), it serves there, as atlas serve does. Anywhere else it is a relay: the host listens \
at an address of its own, 127.0.0.1 unless told otherwise, and a second TCP stack in this process passes all \
bytes on. That works in a container, on Wi-Fi and for an ordinary user, and takes several times the processor \
time. io_uring must be allowed: atlas doctor says whether it is.

Examples:
  atlas try ~/Videos
  atlas try ~/Videos --listen 0.0.0.0      # other machines, too, at this host's addresses
  atlas try . --port 9000";

/// What follows `atlas store --help`.
const STORE_NOTES: &str = "\
STORE is a block device or an image file; a store of several devices is named by all of them, joined by \
commas. atlas serve takes it in place of a directory, and finds what is added or replaced while it serves. \
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

/// What follows `atlas check --help`.
const CHECK_NOTES: &str = "\
All values that are wrong are told at once, each with file, line and column. Once all values are right, all files \
that are missing or wrong are told. Certificates, keys and secrets of links are read as they would be at a start, with \
the rights of this process. Nothing is changed.

Examples:
  atlas check atlas.toml
  sudo atlas check /etc/atlas/atlas.toml /srv/video
  atlas check --keys

Exit codes:
  0   right
  2   wrong: stderr says what
  75  something is not there yet that PATH or the link needs";

/// What follows `atlas reload --help`.
const RELOAD_NOTES: &str = "\
Does what SIGHUP does, and waits for the outcome. Sites, replies and certificates change in place. Where another setting \
has changed, or the program's file, another process takes over: it opens everything, takes the network interface, and the \
old one finishes the replies in progress. If anything is wrong, nothing changes, and stderr says what.

Examples:
  sudo atlas reload
  sudo atlas reload --take-over

Exit codes:
  0  done
  1  nothing has changed: stderr says why
  2  there is no server to ask";

/// What follows `atlas doctor --help`.
const DOCTOR_NOTES: &str = "\
Each line is a finding: ok; less (it works, but not everything or not at full speed); MISSING (no \
server starts without it). Below it, behind ->, what mends it. Nothing is changed. \
The exit code is 2 if something is MISSING, otherwise 0.

With --json it is one object: \"missing\", how many are, and \"findings\", an array of objects with \
\"section\", \"verdict\" (\"ok\", \"less\" or \"missing\"), \"subject\", \"found\" and \"remedy\" (null if nothing \
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
#[command(
    name = "atlas",
    version = version::SHORT,
    long_version = version::LONG,
    after_help = notes(),
    max_term_width = 100
)]
pub(crate) struct Cli {
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
pub(crate) enum Command {
    /// Serve the files of a directory, or of a raw store
    Serve(ServeArgs),
    /// Serve a directory on this machine for a try: needs no rights and no settings
    #[command(after_help = TRY_NOTES)]
    Try(TryArgs),
    /// Look whether a configuration file is right, and the files that it names
    #[command(after_help = CHECK_NOTES)]
    Check(CheckArgs),
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
    /// Show a server that runs, in the terminal: rate, connections, disk, slowest clients
    Top(TopArgs),
    /// Give an NVMe controller to a driver in user space, or back to the kernel
    Nvme {
        /// What to do.
        #[command(subcommand)]
        command: NvmeCommand,
    },
    /// Have a server that runs use its settings as they are now, and its program; no connection is dropped
    #[command(after_help = RELOAD_NOTES)]
    Reload(ReloadArgs),
    /// Internal: the process that starts another server, which takes over
    #[command(name = crate::take_over::launcher::COMMAND, hide = true)]
    Launch(LauncherArgs),
    /// Internal: the process that reads files for a server without the right to
    #[command(name = crate::reload::reader::COMMAND, hide = true)]
    ReadFiles(ReaderArgs),
}

/// The commands of `atlas store`. `STORE` is a device or image; several are joined by commas.
#[derive(Subcommand, Debug)]
pub(crate) enum StoreCommand {
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
pub(crate) struct StoreInitArgs {
    /// Block device or image file; several, joined by commas, become one store
    #[arg(value_name = "STORE")]
    pub store: PathBuf,

    /// Make image files of this size where there are none: bytes, or like 64G, 64GiB or 64GB
    ///
    /// K, M, G and T, and KiB, MiB, GiB and TiB, are powers of 1024; kB, MB, GB and TB are powers of 1000.
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
pub(crate) struct StoreAddArgs {
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

/// `atlas try`, as typed.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TryArgs {
    /// Directory whose files are served
    #[arg(value_name = "DIR")]
    pub path: PathBuf,

    /// Address of this host to listen at; 0.0.0.0 for all [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<IpAddr>,

    /// TCP port of this host [default: the first free one from 8080 on]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,

    /// Log more than warnings: -v what happens, -vv debug
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,
}

/// `atlas check`, as typed.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct CheckArgs {
    /// Configuration file (TOML)
    #[arg(value_name = "FILE", required_unless_present = "keys")]
    pub file: Option<PathBuf>,

    /// What is to be served with it: looks at all that a start looks at, as does
    /// atlas serve PATH --config FILE --check
    #[arg(value_name = "PATH")]
    pub path: Option<PathBuf>,

    /// List the keys of the file: what a change of it needs, default, range
    #[arg(long, exclusive = true)]
    pub keys: bool,
}

/// `atlas doctor`, as typed.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DoctorArgs {
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

/// `atlas top`, as typed.
#[derive(Args, Clone, Debug)]
pub(crate) struct TopArgs {
    /// What the server was given as --metrics
    #[arg(value_name = "ADDR:PORT", default_value = "127.0.0.1:9100")]
    pub server: SocketAddr,
}

/// The commands of `atlas nvme`.
#[derive(Subcommand, Debug)]
pub(crate) enum NvmeCommand {
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
pub(crate) struct ServeArgs {
    /// The directory, and the flags of settings.
    #[command(flatten)]
    pub common: CommonArgs,

    /// Look whether it could serve, then end: exit code 0 if so, that of a start and the reason if not
    ///
    /// Looks at all that a start looks at, as far as it changes nothing: it can run beside a server. Not
    /// whether another host has an address, nor at the content of NVMe controllers.
    #[arg(long)]
    pub check: bool,
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
