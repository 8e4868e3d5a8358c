//! Every setting: one entry each, in the order of `docs/run/configuration.md`.
//!
//! Of an entry are made the key, the field of the configuration file, the flag and its help, the row of the
//! page ([`documentation`]), and, if it names a place, the value. It refuses what is checked across settings:
//! that is in the parent module. Bound: this table.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use clap::ArgAction;

use super::file::{Amount, CertificateTable, FileText, Reader, Table, Typed, Value, Written};
use super::key::{Key, Kind, duration, number, port, rate, settings, text};
use super::place::Place;
use super::problems::Problems;
use super::sites::SiteTable;
use super::{Keys, Settings};
use crate::take_over;
use ::amount::TimeUnit::{Microseconds, Seconds};

settings! {
    first {
        /// Directory whose regular files are served, or a raw store (see atlas store)
        ///
        /// Files are taken to be immutable: to replace one, rename the new file over it. A file that
        /// changes while it is being sent is never sent mixed: its connections are reset.
        ///
        /// A raw store is its devices or images, joined by commas; or nvme:ADDRESS, such as
        /// nvme:0000:01:00.0, if Atlas is to drive the NVMe controller itself (see atlas nvme).
        #[arg(value_name = "PATH")]
        pub path: PathBuf,
        /// Configuration file (TOML); flags win over it
        ///
        /// atlas check --keys lists its keys; atlas check FILE tells what is wrong with it.
        #[arg(long, value_name = "FILE")]
        pub config: Option<PathBuf>,
    }
    last {
        /// Log more: -v debug, -vv trace
        #[arg(short, long, action = ArgAction::Count, conflicts_with = "quiet")]
        pub verbose: u8,
        /// Log less: -q warnings and errors, -qq errors only
        #[arg(short, long, action = ArgAction::Count)]
        pub quiet: u8,
    }

    LINK = link: String,
        text(
            "string",
            "`\"tap:atlas0\"`",
            "`tap:NAME`, `packet:IFACE`, `xdp:IFACE`, `xdp+packet:IFACE`, `auto:IFACE`, `auto`, \
             `relay:ADDRESS`, `relay`",
        ),
        "Interface to serve on. `tap:` makes the interface and gives the host's end the first free \
         address of each subnet; `packet:` takes an existing one; `xdp:` takes one by AF_XDP, with \
         as many workers as it has receive queues, and without `address` serves the ports of the \
         host's own addresses; `xdp+packet:` receives so and sends as `packet:` does; `auto:` \
         chooses one of these three, and `auto` the interface of the default route as well. `relay:` takes \
         clients through the host's own TCP, at an address of the host's (`relay` alone: 127.0.0.1), \
         slowly and by one worker: it needs no right.",
        flag "--link" {
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
            ///
            /// relay:ADDRESS needs no right and no interface: the host listens at this address of its own (relay
            /// alone: 127.0.0.1), and a second TCP stack in the server's process passes the bytes on. It is slow:
            /// for a first try (atlas try) and for machines that permit nothing else.
            #[arg(long, value_name = "LINK")]
            link: Option<String>,
        };

    MAC = mac: String,
        text("string", "`\"own\"`", "`own`, `interface`"),
        "MAC address the server is reached at, not with `tap:`: one of its own, or the interface's, \
         shared with the kernel. See below.",
        flag "--mac" {
            /// MAC address to be reached at on an existing interface: own or interface [default: own]
            ///
            /// own is one made for this server, beside the interface's. Networks that let only known MAC
            /// addresses through (most clouds, many container networks, Wi-Fi) drop what is sent to it:
            /// there, interface shares the interface's own with the kernel.
            #[arg(long, value_name = "MAC")]
            mac: Option<String>,
        };

    ZERO_COPY = zero_copy: String,
        text("string", "`\"auto\"`", "`auto`, `on`, `off`"),
        "Whether the network device reads frames where the disk put them, with `packet:`, `xdp:` \
         and `xdp+packet:`: where device and driver allow it, always, or never. See below.",
        flag "--zero-copy" {
            /// Send frames from where the disk put them on packet: or xdp:IFACE: auto, on or off [default: auto]
            ///
            /// auto does so where the device segments TCP and its driver is known to say truthfully when it
            /// has read a frame; the log says whether, and why not. on does so on any interface, off nowhere.
            /// With xdp:IFACE, auto also has the device access the sockets' memory itself where it can.
            #[arg(long, value_name = "WHEN")]
            zero_copy: Option<String>,
        };

    ADDRESS = address: Vec<String>,
        text(
            "array of strings",
            "`[\"10.77.0.2/24\"]` with `tap:` and `relay:`",
            "1 to 16 of `ADDRESS/BITS` or `ADDRESS/BITS,noarp`",
        ),
        "Addresses the server answers at. None may be the host's own, nor name a network or its \
         broadcast. With `packet:` there must be one. For one with `,noarp` another station \
         answers ARP: see [virtual addresses](deploy.md#virtual-addresses).",
        flag "--address" {
            /// Address to answer at, with its prefix length; may be repeated [default: 10.77.0.2/24]
            ///
            /// The server's own address, IPv4 or IPv6, which neither this host nor another host on the
            /// network may use: the server answers ARP and neighbour discovery for it. It probes the
            /// network first, and does not start if the address is in use.
            ///
            /// 192.0.2.80/32,noarp is an address that another station answers ARP for, a load balancer that sends
            /// its packets to the server (LVS-DR): the server says nothing about it.
            #[arg(long = "address", value_name = "CIDR", action = ArgAction::Append)]
            addresses: Vec<String>,
        };

    ADDRESS_CHECK = address_check: bool => is_address_checked,
        Kind::Switch,
        "Whether the network is probed, before serving, for hosts that use one of the addresses. \
         See below.";

    ALLOW = allow: Vec<String>,
        text("array of strings", "everybody", "1 to 16384 of `NETWORK/BITS` or addresses"),
        "Networks whose clients are served; others get no answer at all, as from a packet filter. \
         Flags replace all of them. See below.",
        flag "--allow" {
            /// Serve clients of this network only, 192.0.2.0/24; may be repeated [default: everybody]
            ///
            /// All others get no answer, as from a packet filter that drops. Most links pass the host's
            /// firewall by, so that it cannot do this.
            #[arg(long = "allow", value_name = "NETWORK", action = ArgAction::Append)]
            allow: Vec<String>,
        };

    DENY = deny: Vec<String>,
        text("array of strings", "nobody", "1 to 16384 of `NETWORK/BITS` or addresses"),
        "Networks whose clients get no answer, also those within a network of `allow`.",
        flag "--deny" {
            /// Do not answer clients of this network; may be repeated [default: nobody]
            ///
            /// It wins over --allow.
            #[arg(long = "deny", value_name = "NETWORK", action = ArgAction::Append)]
            deny: Vec<String>,
        };

    HTTP = http: Amount => http_port,
        port("TCP port", "", 1, 65_535),
        "Port of plain HTTP.",
        flag "--http" {
            /// TCP port of plain HTTP, 1 to 65535, or off [default: 80]
            #[arg(long, value_name = "PORT")]
            http: Option<String>,
        };

    HTTPS = https: Amount,
        port("TCP port", "`\"off\"`", 1, 65_535),
        "Port of HTTP over TLS 1.3 and 1.2, another than `http`. Needs a `certificate`.",
        flag "--https" {
            /// TCP port of HTTP over TLS, 1 to 65535, or off [default: off]
            ///
            /// TLS 1.3 and 1.2. Needs --cert and --key.
            #[arg(long, value_name = "PORT", help_heading = "TLS")]
            https: Option<String>,
        };

    CERTIFICATES = certificates: PathBuf,
        text("string", "none", "a folder, up to 1024 pairs"),
        "Certificates by name, behind those of `certificate`: `NAME.crt` beside `NAME.key`, and directories with \
         `fullchain.pem` and `privkey.pem` as certbot lays them out (`/etc/letsencrypt/live`). SIGHUP reads it again, \
         with what was added.";

    CERTIFICATE = certificate: Vec<CertificateTable>,
        text("array of tables", "none", "1 to 16 of `cert` and `key`, PEM files"),
        "Certificate chain, the server's own first, and its private key. A client gets the first \
         one made for the name it asks for (SNI) with a kind of key it knows, else the first. Flags \
         replace all of them. SIGHUP reads the files again.",
        flag "--cert, --key" {
            /// Certificate chain, PEM: the server's own first, then its issuers; may be repeated
            ///
            /// The n-th --cert belongs to the n-th --key. Of several, a client gets the first one for the
            /// server name it sends (SNI) with a key type it supports; if there is none, the first one.
            /// SIGHUP reads them again.
            #[arg(long = "cert", value_name = "PEM", action = ArgAction::Append, help_heading = "TLS")]
            certificates: Vec<PathBuf>,
            /// Private key of the --cert with the same number, PEM, not encrypted; may be repeated
            #[arg(long = "key", value_name = "PEM", action = ArgAction::Append, help_heading = "TLS")]
            keys: Vec<PathBuf>,
        };

    TICKET_KEYS = ticket_keys: PathBuf,
        text("string", "the server's own, until it ends", "a file of 1 to 4 lines"),
        "Keys of the tickets by which clients resume TLS sessions, 64 hexadecimal digits a line: the \
         first one seals, every one opens. With the same file, a client resumes at every server of a \
         name, and after a restart. Change them once a day: a new line in front, the last one away, \
         SIGHUP.";

    LOG_TLS_SECRETS = log_tls_secrets: bool,
        text("boolean", "`false`", "`true`, `false`"),
        "Whether the secrets of TLS connections are written to the file that the variable \
         SSLKEYLOGFILE names. For debugging: with that file the connections can be decrypted.",
        flag "--log-tls-secrets" {
            /// Write the secrets of every TLS connection to the file $SSLKEYLOGFILE names [default: off]
            ///
            /// For debugging: with that file the connections can be decrypted. Without this flag the
            /// variable is ignored.
            #[arg(long, help_heading = "TLS")]
            log_tls_secrets: bool,
        };

    USER = user: String => user,
        text(
            "string",
            "`atlas` if there is such a user, else `nobody`",
            "`NAME`, `NAME:GROUP`, or numbers",
        ),
        "User to become when started as root, once everything is opened. It must be able to read \
         what is served. `root` stays root, with all its privileges.",
        flag "--user" {
            /// User to become once everything is opened: NAME or NAME:GROUP, or numbers
            ///
            /// Started as root, the server drops all privileges before the first frame is read: it becomes
            /// this user, which must be able to read the files it serves, with no capabilities and no
            /// other groups. Without the flag that is the user atlas if there is one, else nobody. --user
            /// root keeps it root. Started as another user, it stays that user and drops its capabilities.
            #[arg(long, value_name = "NAME[:GROUP]")]
            user: Option<String>,
        };

    CONGESTION_CONTROL = congestion_control: String => conductor.tcp.congestion,
        text("string", "", "`cubic`, `reno`, `bbr`"),
        "How a connection's window grows, and how far a loss reduces it: CUBIC (RFC 9438); Reno \
         (RFC 5681), which takes less beside other traffic; or BBR version 3 (draft-ietf-ccwg-bbr), \
         which keeps its rate on paths that lose 1 %, fills no large buffers, and needs `pacing`.";

    PACING = pacing: bool => conductor.tcp.is_paced,
        Kind::Switch,
        "Whether what the congestion window permits is sent over a round trip, and read from the \
         disk just in time, or at once. Bursts fill the buffers of slow links. `false` costs less \
         where all clients have fast ones.";

    SLOW_START_AFTER_IDLE = slow_start_after_idle: bool => conductor.tcp.reduces_idle_window,
        Kind::Switch,
        "Whether the congestion window is halved for each retransmission timeout that a connection \
         has sent nothing for (RFC 2861; RFC 5681 s4.1), so that the next reply begins with slow \
         start. As `tcp_slow_start_after_idle` of Linux. `false`: viewers who ask for a piece every \
         few seconds get it in fewer round trips, at the rate of the last one, although the path \
         may have changed since.";

    ECN = ecn: bool => conductor.tcp.accepts_ecn,
        Kind::Switch,
        "Whether explicit congestion notification (RFC 3168) is used with clients that ask for it: \
         routers can then mark packets instead of dropping them. As `tcp_ecn = 2` of Linux, its \
         default. With `congestion_control = \"bbr\"` it is never used: BBR answers no marks.";

    MTU_PROBING = mtu_probing: bool => conductor.tcp.probes_path_mtu,
        Kind::Switch,
        "Whether a connection sends smaller packets when large ones are lost again and again and no \
         router says why (a black hole, RFC 4821), and tries larger ones later, as it does after a \
         router's report. As `tcp_mtu_probing = 1` of Linux. `false`: routers' reports alone reduce \
         the packet size, for the rest of the connection.";

    CONNECTION_RATE_MAX = connection_rate_max: Amount => conductor.tcp.rate_max,
        rate("found at start", 10_000, 100_000_000_000),
        "Most that one connection is sent. Every reply has it, and a client may have several \
         connections.";

    AEAD_LIBRARY = aead_library: String => aead_library,
        text("string", "`\"auto\"`", "`auto`, `aws-lc`, `ring`"),
        "Library that seals TLS records. `auto` measures at start which is faster on this \
         processor; the log names it. aws-lc wipes keys that are no longer used, ring does not.";

    CORE_DUMPS = core_dumps: bool => core_dumps,
        Kind::Switch,
        "Whether the process may be dumped and debugged. Its memory has keys in it.",
        flag "--core-dumps" {
            /// Allow core dumps and debuggers, which see keys and what is served [default: off]
            #[arg(long)]
            core_dumps: bool,
        };

    LANDLOCK = landlock: bool => landlock,
        Kind::Switch,
        "Whether the process gives up, once it serves, all files but those beside what is served, beside the \
         operator's files, and its logs; executing; and TCP connections. See [sandbox](deploy.md#sandbox).";

    SECCOMP = seccomp: bool => seccomp,
        Kind::Switch,
        "Whether it gives up, once it serves, all system calls but those of a list. See \
         [sandbox](deploy.md#sandbox).";

    WORKERS = workers: Amount,
        text("threads, or string", "`1`", "1-64, `auto`"),
        "Threads that serve, each with a queue of the interface, a ring of the disk and buffers of \
         its own. `auto`: one for each processor that the server may use, of several NUMA nodes at \
         the interface's. Of several, each is bound to its processor. `connections_max`, `slots` \
         and `disk_queue_depth` hold for all together, and each has its share; their defaults are \
         for each.",
        flag "--workers" {
            /// Worker threads, best one for each processor: a number, or auto [default: 1]
            #[arg(long, value_name = "N|auto")]
            workers: Option<String>,
        };

    PCAP = pcap: PathBuf => pcap,
        text("string", "none", "a file to be written"),
        "Every frame sent and received is also written there. Slow: for debugging.",
        flag "--pcap" {
            /// Write every frame sent and received to a pcap file (slow: for debugging)
            ///
            /// The file is made by --user and readable by that user only. A symbolic link is refused. Of
            /// several workers, the first writes FILE, the second FILE.1, and so on.
            #[arg(long, value_name = "FILE")]
            pcap: Option<PathBuf>,
        };

    TRACE = trace: PathBuf,
        text("string", "none", "a file to be written"),
        "What TCP does on connections of `trace_peer` is written there as qlog, up to 1 GiB. [How \
         to read it](slow-streams.md).",
        flag "--trace" {
            /// Write what TCP does on connections of --trace-peer to a qlog file (JSON-SEQ, for qvis)
            ///
            /// For streams that are slow or stuck: segments, losses, windows, RTTs and reads of the disk. The
            /// file is made by --user, is readable by that user only, and ends at 1 GiB. A symbolic link is
            /// refused. The page slow-streams.md of the documentation shows how to read it. To list connections without a trace, see
            /// --metrics.
            #[arg(long, value_name = "FILE")]
            trace: Option<PathBuf>,
        };

    TRACE_PEER = trace_peer: String,
        text("string", "none", "`ADDRESS` or `ADDRESS:PORT`"),
        "The client whose connections are traced, 64 of them at once.",
        flag "--trace-peer" {
            /// Client whose connections are traced: its address, or address and port
            #[arg(long, value_name = "ADDR[:PORT]")]
            trace_peer: Option<String>,
        };

    ACCESS_LOG = access_log: PathBuf => access_log,
        text("string", "none", "a file to be written, or `-` for stdout"),
        "A line for each request, when its reply is over. SIGUSR1 opens the file again.",
        flag "--access-log" {
            /// Write a line for each request to FILE; - is stdout
            ///
            /// The line is written when the reply is over. SIGUSR1 opens the file again, so that it can be
            /// rotated. If the disk or the reader is too slow, lines are dropped and counted; serving does
            /// not wait.
            #[arg(long, value_name = "FILE")]
            access_log: Option<PathBuf>,
        };

    ACCESS_LOG_FORMAT = access_log_format: String => log_style.format,
        text("string", "", "`combined`, `json`"),
        "How a line is written: the combined format of nginx and Apache, or a JSON object. \
         [What it may have](metrics.md#the-access-log).";

    ACCESS_LOG_FIELDS = access_log_fields: Vec<String> => log_style.fields,
        text("array of strings", "all of them", "[names of fields](metrics.md#the-access-log)"),
        "What lines of JSON have.";

    ACCESS_LOG_SAMPLE = access_log_sample: Amount => log_style.sample,
        number("requests", "", 1, 1_000_000),
        "Of so many requests of a worker with a status below 400 one has a line; those with 400 and above all have \
         theirs.";

    CMCD = cmcd: bool => conductor.reads_cmcd,
        Kind::Switch,
        "Whether what players say of their playback (CTA-5004, in the query or in fields) is counted and logged: \
         [buffers that ran empty, what is buffered, throughput](metrics.md#what-players-say).";

    METRICS = metrics: String => metrics,
        text("string", "none", "`ADDRESS:PORT` of the host's own"),
        "Where `/metrics` (OpenMetrics text), `/health` and `/ready` are answered, over plain HTTP through \
         the host's own TCP, not through the link, and at `/` a page that plots them. [What the metrics mean](metrics.md). \
         For this host only: `/connections` lists connections ([what it says](slow-streams.md)), `/config` and `/sites` \
         tell what is in force, `/pcap` and `/trace` what one client and the server say.",
        flag "--metrics" {
            /// Answer at this address of the host's own with metrics and health [default: off]
            ///
            /// http://ADDR:PORT/metrics has every counter as OpenMetrics text, / plots some; /health is 200 while
            /// the server serves, 503 while it ends or hangs; /ready is 503 from SIGTERM on as well. To this host
            /// only: /connections lists connections as lines of JSON, those of one client with ?peer=ADDR;
            /// /config, /sites, /pcap and /trace tell what is in force and what one client sends and gets. Plain
            /// HTTP through the host's own TCP: name a loopback address, like 127.0.0.1:9100, or one of a
            /// management network.
            #[arg(long, value_name = "ADDR:PORT")]
            metrics: Option<String>,
        };

    METRICS_BY_SITE = metrics_by_site: bool => conductor.counts_by_site,
        Kind::Switch,
        "Whether `/metrics` has requests, bytes, replies and times to the first byte by site as well: \
         [the first 256 sites](metrics.md#by-site).";

    CORS = cors: bool => replies.cors,
        Kind::Switch,
        "Whether web pages of any origin may play what is served (`Access-Control-Allow-Origin: \
         *`), or those of the origin that `header` names.",
        flag "--cors" {
            /// Let web pages of any origin play what is served (CORS) [default: off]
            ///
            /// Adds Access-Control-Allow-Origin: * and answers preflight requests. Players that run in a
            /// page of another origin need it.
            #[arg(long)]
            cors: bool,
        };

    HEADER = header: Vec<String>,
        text("array of strings", "none", "`NAME: VALUE`, 4096 bytes together"),
        "Header fields added to every 200, 206, 301 and 304; `Access-Control-` fields to every \
         reply, and `Strict-Transport-Security` over TLS only. The server's own, such as \
         `Content-Length` and `Date`, cannot be added. Flags replace all of them.",
        flag "--header" {
            /// Header field to add to replies, 'Name: value'; may be repeated [default: none]
            ///
            /// It is added to every 200, 206, 301 and 304. A Cache-Control replaces the default one.
            #[arg(long = "header", value_name = "FIELD", action = ArgAction::Append)]
            headers: Vec<String>,
        };

    CACHE_CONTROL = cache_control: bool => replies.cache_control,
        Kind::Switch,
        "Whether `Cache-Control` is said of playlists and media, see below. One in `header` \
         replaces it.";

    HIDDEN_FILES = hidden_files: bool => hidden_files,
        Kind::Switch,
        "Whether a path is served of which a part begins with a dot, like `/.htpasswd` or `/.git/config`, beside \
         those below `/.well-known/`. If not, it is not found.";

    SITE = site: Vec<SiteTable>,
        text("array of tables", "none", "up to 4096"),
        "Sites, by name, and rules for their paths. [What they may say](sites.md).";

    TRUSTED_PROXIES = trusted_proxies: Vec<String>,
        text("array of strings", "none", "1 to 16384 of `NETWORK/BITS` or addresses"),
        "Proxies and balancers whose `X-Forwarded-For` is believed: access log, rules and signed links \
         then go by the address that they name. Nobody else's is.";

    PROXY_PROTOCOL = proxy_protocol: bool => proxy_protocol,
        Kind::Switch,
        "Whether connections from `trusted_proxies` begin by the PROXY protocol (version 1 or 2), before TLS, and are \
         reset if they don't. Whom it names counts as whom `X-Forwarded-For` names. Others speak as ever.";

    TYPES = types: BTreeMap<String, String>,
        text("table of strings", "none", "at most 64 of `extension = \"type/subtype\"`"),
        "Content types by file name extension, over the built-in ones.";

    LOG = log: String,
        text("string", "`\"info\"`", "`error`, `warn`, `info`, `debug`, `trace`"),
        "Least severe level that is logged. Each `-v` is one level more than the default, each `-q` \
         one less.",
        flag "-v, -q" {
        };

    LOG_FORMAT = log_format: String => log_format,
        text("string", "", "`text`, `json`"),
        "How the log on stderr is written: for people, or as a JSON object a line.",
        flag "--log-format" {
            /// How the log on stderr is written: text or json [default: text]
            #[arg(long, value_name = "FORMAT")]
            log_format: Option<String>,
        };

    BUFFERED = buffered: bool => buffered,
        Kind::Switch,
        "Whether to read through the page cache where the filesystem refuses `O_DIRECT`. Slow: for \
         trying things out.";

    NVME_PASSTHROUGH = nvme_passthrough: bool => nvme_passthrough,
        Kind::Switch,
        "Whether a raw store is read by NVMe commands (io_uring passthrough), past the block layer. \
         PATH must then be whole namespaces of NVMe controllers, such as `/dev/nvme0n1`, which \
         other programs may use as well; not `nvme:ADDRESS`.";

    CONNECTIONS_MAX = connections_max: Amount => limits.connections_max,
        number("connections", "", 1, 1_048_576),
        "Connections at once; half-open ones are bounded apart. For one more, the connection that \
         has waited longest for a request is closed, if for a second at least; without one, the new \
         client is refused. Their table is made at start.";

    CONNECTIONS_PER_SOURCE_MAX = connections_per_source_max: Amount => limits.connections_per_source_max,
        number("connections", "no limit", 1, 1_048_576),
        "Connections at once of one IPv4 address, or of one IPv6 network of 64 bits. More are \
         refused. Thousands of clients may share the IPv4 address of a carrier's NAT.";

    SLOTS = slots: Amount => limits.slots,
        number("buffers of 64 KiB", "", 16, 65_536),
        "Buffers that reads go to and segments leave from: 72 KiB of memory each, 128 KiB where \
         frames are sent from them; and up to 128 KiB more for copies while the paths of clients \
         lose. What is needed is rate x disk latency, not rate x round-trip time.";

    DISK_QUEUE_DEPTH = disk_queue_depth: Amount => limits.disk_queue_depth,
        number("reads", "", 1, 4_096),
        "Reads in flight at once.";

    COALESCE_US = coalesce_us: Amount => limits.coalesce,
        duration(Microseconds, "by round-trip times: 100 to 2000", 0, 10_000),
        "While frames and reads come faster than one in this time, acknowledgments do not wake the \
         worker: they wait for so long at most, and are handled together. More traffic for a core. \
         Requests do not wait where an XDP program receives (`xdp:`, `xdp+packet:`), unless the worker \
         uses more than half of a processor. If it is not given, a sixth of the shortest round-trip \
         time of the clients that are there, a 48th where packets were lost, but 100 at least and \
         2000 at most. `0`: never.";

    BUSY_POLL_US = busy_poll_us: Amount,
        duration(Microseconds, "`0`", 0, 1_000_000),
        "With `xdp:` and `xdp+packet:`: for how long a worker that has nothing to do goes on \
         polling the network device before it sleeps. In place of `coalesce_us`. `0`: it sleeps at \
         once. [What it takes](deploy.md#busy-polling).",
        flag "--busy-poll" {
            /// Poll the device for so long without work, then sleep, like 50us: 0 to 1s [default: 0]
            ///
            /// A number alone is of microseconds. With xdp:IFACE and xdp+packet:IFACE. Under traffic each worker then uses all of its core; an idle
            /// server sleeps. The interface should defer its interrupts: the page deploy.md of the documentation says how.
            #[arg(long, value_name = "DURATION")]
            busy_poll: Option<String>,
        };

    OBJECTS_MAX = objects_max: Amount => limits.objects_max,
        number("files", "found at start", 1, 65_000),
        "Files held open at once, one descriptor each; by default as many as `RLIMIT_NOFILE` \
         allows. When all are in use, requests for others wait, and get 503 after ten seconds.";

    TLS_KEY_RECORDS_MAX = tls_key_records_max: Amount => limits.tls_key_records_max,
        number("records", "2^23 with AES-GCM, else none", 64, 1 << 23),
        "Records sealed under one key of a TLS connection, at most; then the key is changed (TLS \
         1.3) or the connection ends (TLS 1.2). What its suite allows is never exceeded.";

    HEAD_TIMEOUT_SECONDS = head_timeout_seconds: Amount => conductor.head_timeout,
        duration(Seconds, "", 1, 3_600),
        "A client has this long to finish a request head (after it, 408), or the handshake of TLS.";

    IDLE_TIMEOUT_SECONDS = idle_timeout_seconds: Amount => conductor.idle_timeout,
        duration(Seconds, "", 1, 86_400),
        "A connection without a request is closed after this, from the acknowledgment of its last \
         reply on, if it has had one.";

    SEND_TIMEOUT_SECONDS = send_timeout_seconds: Amount => conductor.send_timeout,
        duration(Seconds, "", 1, 3_600),
        "A client that acknowledges less of its reply than 256 bytes a second, over this time, is \
         reset.";

    REPLACED_TIMEOUT_SECONDS = replaced_timeout_seconds: Amount => limits.replaced_timeout,
        duration(Seconds, "", 1, 604_800),
        "A file or object that was replaced or removed is sent on for this long to the clients that \
         had asked for it before; then they are reset, and its space can be used again.";

    SHUTDOWN_DELAY_SECONDS = shutdown_delay_seconds: Amount => limits.shutdown_delay,
        duration(Seconds, "", 0, 3_600),
        "After SIGINT or SIGTERM, the server goes on for this long, new connections included, while \
         `/ready` is 503: a balancer or DNS has this long to send clients elsewhere.";

    SHUTDOWN_GRACE_SECONDS = shutdown_grace_seconds: Amount => limits.shutdown_grace,
        duration(Seconds, "", 0, 3_600),
        "After SIGINT or SIGTERM, and `shutdown_delay_seconds`, replies in progress have this long to \
         finish; the rest is reset.";

    TAKE_OVER_START_SECONDS = take_over_start_seconds: Amount => limits.take_over_start,
        duration(Seconds, "", 1, 600),
        "A process that takes over (`atlas reload`) has this long until it is ready; then it is killed, and nothing \
         has changed.";

    TAKE_OVER_DEADLINE_SECONDS = take_over_deadline_seconds: Amount => limits.take_over_deadline,
        duration(Seconds, "", 1, 604_800),
        "After another process has taken over (`atlas reload`), the old one has this long to finish replies in \
         progress; the rest is reset.";
}

/// A line for each of [`KEYS`], and what a change of it needs: SIGHUP, if `is_reloaded` says so, another process, or a
/// restart.
#[must_use]
pub(crate) fn keys(is_reloaded: impl Fn(&str) -> bool) -> String {
    let defaults = Settings::default();
    let lines = KEYS.iter().map(|key| {
        let needs = if is_reloaded(key.name) {
            "SIGHUP"
        } else if take_over::NEEDS_RESTART.contains(&key.name) {
            "restart"
        } else {
            "take-over"
        };
        key.line(&defaults, needs)
    });
    lines.collect()
}

/// The table of `docs/run/configuration.md`: a row for each of [`KEYS`].
#[must_use]
pub(crate) fn documentation() -> String {
    let defaults = Settings::default();
    let rows: String = KEYS.iter().map(|key| key.markdown(&defaults)).collect();
    format!(
        "| Key | Flag | Type or unit | Default | Range | Meaning |\n|---|---|---|---|---|---|\n{rows}"
    )
}
