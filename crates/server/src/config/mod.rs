//! The settings' one table (name, unit, default, range, meaning); the configuration file is in `file`.
//!
//! `cargo xtask tidy` compares the table in `docs/run/configuration.md` with [`KEYS`]. Nothing is resolved here: see
//! [`crate::settings`].

use std::ops::RangeInclusive;

mod file;

pub use file::{CertificateTable, FileConfig, NumberOrAuto, PortOrOff, Seconds};

/// A whole-number setting: its key and what it may be.
#[derive(Clone, Debug)]
pub struct Number {
    /// The key in the file.
    pub name: &'static str,
    /// What one of it is.
    pub unit: &'static str,
    /// The value when neither flag nor file gives one.
    pub default: DefaultValue,
    /// Both ends are allowed.
    pub range: RangeInclusive<u64>,
}

/// The value of a number that is not configured.
#[derive(Clone, Copy, Debug)]
pub enum DefaultValue {
    /// This.
    Fixed(u64),
    /// None: what happens then, as the documentation says it.
    Said(&'static str),
}

/// The value that disables a port.
pub const OFF: &str = "off";
/// The value for as many workers as there are processors.
pub const AUTO: &str = "auto";

/// TCP port of plain HTTP.
pub static HTTP: Number = number("http", "TCP port", Some(80), 1..=65_535);
/// TCP port of HTTP over TLS.
pub static HTTPS: Number = Number {
    default: DefaultValue::Said("`\"off\"`"),
    ..number("https", "TCP port", None, 1..=65_535)
};
/// Records under one key.
pub static TLS_KEY_RECORDS_MAX: Number = Number {
    default: DefaultValue::Said("2^23 with AES-GCM, else none"),
    ..number("tls_key_records_max", "records", None, 64..=1 << 23)
};
/// Most that one connection is sent.
pub static CONNECTION_RATE_MAX: Number = number(
    "connection_rate_max",
    "bytes a second",
    None,
    10_000..=100_000_000_000,
);
/// Worker threads.
pub static WORKERS: Number = number("workers", "threads", Some(1), 1..=64);
/// Connections at once; half-open ones are bounded apart.
pub static CONNECTIONS_MAX: Number = number(
    "connections_max",
    "connections",
    Some(16_384),
    1..=1_048_576,
);
/// Connections of one source.
pub static CONNECTIONS_PER_SOURCE_MAX: Number = Number {
    default: DefaultValue::Said("no limit"),
    ..number(
        "connections_per_source_max",
        "connections",
        None,
        1..=1_048_576,
    )
};
/// Read buffers.
pub static SLOTS: Number = number("slots", "buffers of 64 KiB", Some(512), 16..=65_536);
/// Reads in flight.
pub static DISK_QUEUE_DEPTH: Number = number("disk_queue_depth", "reads", Some(128), 1..=4_096);
/// Files held open.
pub static OBJECTS_MAX: Number = number("objects_max", "files", None, 1..=65_000);
/// Time in which wake-ups are gathered.
pub static COALESCE_US: Number = Number {
    default: DefaultValue::Said("by round-trip times: 100 to 1000"),
    ..number("coalesce_us", "microseconds", None, 0..=10_000)
};
/// Time for which the device is polled without work.
pub static BUSY_POLL_US: Number = number("busy_poll_us", "microseconds", Some(0), 0..=1_000_000);
/// Time for a request head.
pub static HEAD_TIMEOUT_SECONDS: Number =
    number("head_timeout_seconds", "seconds", Some(20), 1..=3_600);
/// Time between requests.
pub static IDLE_TIMEOUT_SECONDS: Number =
    number("idle_timeout_seconds", "seconds", Some(75), 1..=86_400);
/// Time for a client to acknowledge something of its reply.
pub static SEND_TIMEOUT_SECONDS: Number =
    number("send_timeout_seconds", "seconds", Some(60), 1..=3_600);
/// Time for the clients of an object that was replaced or removed.
pub static REPLACED_TIMEOUT_SECONDS: Number = number(
    "replaced_timeout_seconds",
    "seconds",
    Some(14_400),
    1..=604_800,
);
/// Time to finish replies after SIGINT or SIGTERM.
pub static SHUTDOWN_GRACE_SECONDS: Number =
    number("shutdown_grace_seconds", "seconds", Some(10), 0..=3_600);

const fn number(
    name: &'static str,
    unit: &'static str,
    default: Option<u64>,
    range: RangeInclusive<u64>,
) -> Number {
    let default = match default {
        Some(value) => DefaultValue::Fixed(value),
        None => DefaultValue::Said("found at start"),
    };
    Number {
        name,
        unit,
        default,
        range,
    }
}

/// The interface when none is given.
pub const LINK_DEFAULT: &str = "tap:atlas0";
/// Our address when none is given.
pub const ADDRESS_DEFAULT: &str = "10.77.0.2/24";
/// Whose MAC when it is not said.
pub const MAC_DEFAULT: &str = "own";
/// The log level when neither `log` nor `-v` nor `-q` is given.
pub const LOG_DEFAULT: &str = "info";

/// One row of the settings' table, as the documentation shows it.
#[derive(Clone, Debug)]
pub struct Key {
    /// The key in the file.
    pub name: &'static str,
    /// The flag that wins over it; empty if there is none.
    pub flag: &'static str,
    /// What is allowed.
    pub kind: Kind,
    /// What it does.
    pub about: &'static str,
}

/// What a setting may be.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A whole number.
    Number(&'static Number),
    /// A whole number, or [`OFF`].
    NumberOrOff(&'static Number),
    /// Anything else, as the documentation says it.
    Other {
        /// TOML type.
        unit: &'static str,
        /// As it would be written in the file.
        default: &'static str,
        /// What is allowed.
        range: &'static str,
    },
}

impl Key {
    const fn number(number: &'static Number, flag: &'static str, about: &'static str) -> Self {
        Self {
            name: number.name,
            flag,
            kind: Kind::Number(number),
            about,
        }
    }

    const fn port(number: &'static Number, flag: &'static str, about: &'static str) -> Self {
        Self {
            kind: Kind::NumberOrOff(number),
            ..Self::number(number, flag, about)
        }
    }

    const fn flag(name: &'static str, flag: &'static str, about: &'static str) -> Self {
        Self {
            flag,
            ..Self::switch(name, "`false`", about)
        }
    }

    /// A boolean without a flag.
    const fn switch(name: &'static str, default: &'static str, about: &'static str) -> Self {
        let (unit, range) = ("boolean", "`true`, `false`");
        Self {
            name,
            flag: "",
            kind: Kind::Other {
                unit,
                default,
                range,
            },
            about,
        }
    }

    /// The row: key, flag, unit, default, range, meaning.
    fn markdown(&self) -> String {
        let Self {
            name,
            flag,
            kind,
            about,
        } = self;
        let flag = if flag.is_empty() {
            "-".into()
        } else {
            format!("`{flag}`")
        };
        let (unit, default, range) = match kind {
            Kind::Other {
                unit,
                default,
                range,
            } => ((*unit).into(), (*default).into(), (*range).into()),
            Kind::Number(number) => number.markdown(),
            Kind::NumberOrOff(number) => {
                let (unit, default, range) = number.markdown();
                (unit, default, format!("{range}, or `\"{OFF}\"`"))
            }
        };
        format!("| `{name}` | {flag} | {unit} | {default} | {range} | {about} |\n")
    }
}

impl Number {
    /// Unit, default and range.
    fn markdown(&self) -> (String, String, String) {
        let (least, most) = (self.range.start(), self.range.end());
        let range = if least == most {
            format!("{least}")
        } else {
            format!("{least} to {most}")
        };
        let default = match self.default {
            DefaultValue::Fixed(value) => format!("`{value}`"),
            DefaultValue::Said(text) => text.into(),
        };
        (self.unit.into(), default, range)
    }
}

/// Every setting, in the order of the documentation.
pub static KEYS: [Key; 46] = [
    Key {
        name: "link",
        flag: "--link",
        kind: Kind::Other {
            unit: "string",
            default: "`\"tap:atlas0\"`",
            range: "`tap:NAME`, `packet:IFACE`, `xdp:IFACE`, `xdp+packet:IFACE`, `auto:IFACE`, `auto`",
        },
        about: "Interface to serve on. `tap:` makes the interface and gives the host's end the \
                first free address of each subnet; `packet:` takes an existing one; `xdp:` takes \
                one by AF_XDP, with as many workers as it has receive queues, and without \
                `address` serves the ports of the host's own addresses; `xdp+packet:` receives \
                so and sends as `packet:` does; `auto:` chooses one of these three, and `auto` \
                the interface of the default route as well.",
    },
    Key {
        name: "mac",
        flag: "--mac",
        kind: Kind::Other {
            unit: "string",
            default: "`\"own\"`",
            range: "`own`, `interface`",
        },
        about: "MAC address the server is reached at, not with `tap:`: one of its own, or the \
                interface's, shared with the kernel. See below.",
    },
    Key {
        name: "zero_copy",
        flag: "--zero-copy",
        kind: Kind::Other {
            unit: "string",
            default: "`\"auto\"`",
            range: "`auto`, `on`, `off`",
        },
        about: "Whether the network device reads frames where the disk put them, with `packet:`, `xdp:` and \
                `xdp+packet:`: where device and driver allow it, always, or never. See below.",
    },
    Key {
        name: "address",
        flag: "--address",
        kind: Kind::Other {
            unit: "array of strings",
            default: "`[\"10.77.0.2/24\"]` with `tap:`",
            range: "1 to 16 of `ADDRESS/BITS` or `ADDRESS/BITS,noarp`",
        },
        about: "Addresses the server answers at. None may be the host's own, nor name a network \
                or its broadcast. With `packet:` there must be one. For one with `,noarp` another station \
                answers ARP: see [virtual addresses](deploy.md#virtual-addresses).",
    },
    Key {
        name: "address_check",
        flag: "",
        kind: Kind::Other {
            unit: "boolean",
            default: "`true`",
            range: "`true`, `false`",
        },
        about: "Whether the network is probed, before serving, for hosts that use one of the \
                addresses. See below.",
    },
    Key {
        name: "allow",
        flag: "--allow",
        kind: Kind::Other {
            unit: "array of strings",
            default: "everybody",
            range: "1 to 16384 of `NETWORK/BITS` or addresses",
        },
        about: "Networks whose clients are served; others get no answer at all, as from a packet filter. Flags \
                replace all of them. See below.",
    },
    Key {
        name: "deny",
        flag: "--deny",
        kind: Kind::Other {
            unit: "array of strings",
            default: "nobody",
            range: "1 to 16384 of `NETWORK/BITS` or addresses",
        },
        about: "Networks whose clients get no answer, also those within a network of `allow`.",
    },
    Key::port(&HTTP, "--http", "Port of plain HTTP."),
    Key::port(
        &HTTPS,
        "--https",
        "Port of HTTP over TLS 1.3 and 1.2, another than `http`. Needs a `certificate`.",
    ),
    Key {
        name: "certificate",
        flag: "--cert, --key",
        kind: Kind::Other {
            unit: "array of tables",
            default: "none",
            range: "1 to 16 of `cert` and `key`, PEM files",
        },
        about: "Certificate chain, the server's own first, and its private key. A client gets the \
                first one made for the name it asks for (SNI) with a kind of key it knows, else \
                the first. Flags replace all of them. SIGHUP reads the files again.",
    },
    Key::flag(
        "log_tls_secrets",
        "--log-tls-secrets",
        "Whether the secrets of TLS connections are written to the file that the variable \
         SSLKEYLOGFILE names. For debugging: with that file the connections can be decrypted.",
    ),
    Key {
        name: "user",
        flag: "--user",
        kind: Kind::Other {
            unit: "string",
            default: "`atlas` if there is such a user, else `nobody`",
            range: "`NAME`, `NAME:GROUP`, or numbers",
        },
        about: "User to become when started as root, once everything is opened. It must be able \
                to read what is served. `root` stays root, with all its privileges.",
    },
    Key {
        name: "congestion_control",
        flag: "",
        kind: Kind::Other {
            unit: "string",
            default: "`\"cubic\"`",
            range: "`cubic`, `reno`, `bbr`",
        },
        about: "How a connection's window grows, and how far a loss reduces it: CUBIC (RFC 9438); Reno \
                (RFC 5681), which takes less beside other traffic; or BBR version 3 \
                (draft-ietf-ccwg-bbr), which keeps its rate on paths that lose 1 %, fills no large \
                buffers, and needs `pacing`.",
    },
    Key::switch(
        "pacing",
        "`true`",
        "Whether what the congestion window permits is sent over a round trip, and read from the disk \
         just in time, or at once. Bursts fill the buffers of slow links. `false` costs less where \
         all clients have fast ones.",
    ),
    Key::switch(
        "slow_start_after_idle",
        "`true`",
        "Whether the congestion window is halved for each retransmission timeout that a connection has sent \
         nothing for (RFC 2861; RFC 5681 s4.1), so that the next reply begins with slow start. As \
         `tcp_slow_start_after_idle` of Linux. `false`: viewers who ask for a piece every few seconds get \
         it in fewer round trips, at the rate of the last one, although the path may have changed since.",
    ),
    Key::switch(
        "ecn",
        "`true`",
        "Whether explicit congestion notification (RFC 3168) is used with clients that ask for it: routers \
         can then mark packets instead of dropping them. As `tcp_ecn = 2` of Linux, its default. With `congestion_control = \"bbr\"` it is never used: BBR answers no \
         marks.",
    ),
    Key::switch(
        "mtu_probing",
        "`true`",
        "Whether a connection sends smaller packets when large ones are lost again and again and no \
         router says why (a black hole, RFC 4821), and tries larger ones later, as it does after a \
         router's report. As `tcp_mtu_probing = 1` of Linux. `false`: routers' reports alone reduce \
         the packet size, for the rest of the connection.",
    ),
    Key::number(
        &CONNECTION_RATE_MAX,
        "",
        "Most that one connection is sent. Every reply has it, and a client may have several \
         connections.",
    ),
    Key {
        name: "aead_library",
        flag: "",
        kind: Kind::Other {
            unit: "string",
            default: "`\"auto\"`",
            range: "`auto`, `aws-lc`, `ring`",
        },
        about: "Library that seals TLS records. `auto` measures at start which is faster on this \
                processor; the log names it. aws-lc wipes keys that are no longer used, ring does \
                not.",
    },
    Key::flag(
        "core_dumps",
        "--core-dumps",
        "Whether the process may be dumped and debugged. Its memory has keys in it.",
    ),
    Key {
        name: "workers",
        flag: "--workers",
        kind: Kind::Other {
            unit: "threads, or string",
            default: "`1`",
            range: "1-64, `auto`",
        },
        about: "Threads that serve, each with a queue of the interface, a ring of the disk and \
                buffers of its own. `auto`: one for each processor that the server may use, of \
                several NUMA nodes at the interface's. Of several, each is bound to its processor. `connections_max`, `slots` and \
                `disk_queue_depth` hold for all together, and each has its share; their defaults \
                are for each.",
    },
    Key {
        name: "pcap",
        flag: "--pcap",
        kind: Kind::Other {
            unit: "string",
            default: "none",
            range: "a file to be written",
        },
        about: "Every frame sent and received is also written there. Slow: for debugging.",
    },
    Key {
        name: "trace",
        flag: "--trace",
        kind: Kind::Other {
            unit: "string",
            default: "none",
            range: "a file to be written",
        },
        about: "What TCP does on connections of `trace_peer` is written there as qlog, up to 1 GiB. \
                [How to read it](slow-streams.md).",
    },
    Key {
        name: "trace_peer",
        flag: "--trace-peer",
        kind: Kind::Other {
            unit: "string",
            default: "none",
            range: "`ADDRESS` or `ADDRESS:PORT`",
        },
        about: "The client whose connections are traced, 64 of them at once.",
    },
    Key {
        name: "access_log",
        flag: "--access-log",
        kind: Kind::Other {
            unit: "string",
            default: "none",
            range: "a file to be written, or `-` for stdout",
        },
        about: "A line for each request, in the combined log format, when its reply is over. \
                SIGUSR1 opens the file again.",
    },
    Key {
        name: "metrics",
        flag: "--metrics",
        kind: Kind::Other {
            unit: "string",
            default: "none",
            range: "`ADDRESS:PORT` of the host's own",
        },
        about: "Where `/metrics` (OpenMetrics text) and `/health` are answered, over plain HTTP \
                through the host's own TCP, not through the link. [What the metrics \
                mean](metrics.md). `/connections` lists connections, for this host only: [what it \
                says](slow-streams.md).",
    },
    Key::flag(
        "cors",
        "--cors",
        "Whether web pages of any origin may play what is served \
         (`Access-Control-Allow-Origin: *`), or those of the origin that `header` names.",
    ),
    Key {
        name: "header",
        flag: "--header",
        kind: Kind::Other {
            unit: "array of strings",
            default: "none",
            range: "`NAME: VALUE`, 4096 bytes together",
        },
        about: "Header fields added to every 200, 206, 301 and 304; `Access-Control-` fields to every \
                reply, and `Strict-Transport-Security` over TLS only. The server's own, such as \
                `Content-Length` and `Date`, cannot be added. Flags replace all of them.",
    },
    Key::switch(
        "cache_control",
        "`true`",
        "Whether `Cache-Control` is said of playlists and media, see below. One in `header` \
         replaces it.",
    ),
    Key {
        name: "types",
        flag: "",
        kind: Kind::Other {
            unit: "table of strings",
            default: "none",
            range: "at most 64 of `extension = \"type/subtype\"`",
        },
        about: "Content types by file name extension, over the built-in ones.",
    },
    Key {
        name: "log",
        flag: "-v, -q",
        kind: Kind::Other {
            unit: "string",
            default: "`\"info\"`",
            range: "`error`, `warn`, `info`, `debug`, `trace`",
        },
        about: "Least severe level that is logged. Each `-v` is one level more than the default, \
                each `-q` one less.",
    },
    Key::flag(
        "buffered",
        "",
        "Whether to read through the page cache where the filesystem refuses `O_DIRECT`. Slow: \
         for trying things out.",
    ),
    Key::flag(
        "nvme_passthrough",
        "",
        "Whether a raw store is read by NVMe commands (io_uring passthrough), past the block layer. \
         PATH must then be whole namespaces of NVMe controllers, such as `/dev/nvme0n1`, which \
         other programs may use as well; not `nvme:ADDRESS`.",
    ),
    Key::number(
        &CONNECTIONS_MAX,
        "",
        "Connections at once; half-open ones are bounded apart. For one more, the connection that \
         has waited longest for a request is closed, if for a second at least; without one, the \
         new client is refused. Their table is made at start.",
    ),
    Key::number(
        &CONNECTIONS_PER_SOURCE_MAX,
        "",
        "Connections at once of one IPv4 address, or of one IPv6 network of 64 bits. More are \
         refused. Thousands of clients may share the IPv4 address of a carrier's NAT.",
    ),
    Key::number(
        &SLOTS,
        "",
        "Buffers that reads go to and segments leave from: 72 KiB of memory each, 128 KiB \
         where frames are sent from them. What is needed is rate x disk latency, not rate x round-trip time.",
    ),
    Key::number(&DISK_QUEUE_DEPTH, "", "Reads in flight at once."),
    Key::number(
        &COALESCE_US,
        "",
        "While frames and reads come faster than one in this time, the worker sleeps that long \
         instead of being woken by each, and handles them together: more traffic for a core, and \
         up to this much latency. If it is not given, a sixteenth of the shortest round-trip time of the clients \
         that are there, but 100 at least and 1000 at most. `0`: never.",
    ),
    Key::number(
        &BUSY_POLL_US,
        "--busy-poll",
        "With `xdp:` and `xdp+packet:`: for how long a worker that has nothing to do goes on polling the \
         network device before it sleeps. In place of `coalesce_us`. `0`: it sleeps at once. [What it \
         takes](deploy.md#busy-polling).",
    ),
    Key::number(
        &OBJECTS_MAX,
        "",
        "Files held open at once, one descriptor each; by default as many as `RLIMIT_NOFILE` \
         allows. When all are in use, requests for others wait, and get 503 after ten seconds.",
    ),
    Key::number(
        &TLS_KEY_RECORDS_MAX,
        "",
        "Records sealed under one key of a TLS connection, at most; then the key is changed \
         (TLS 1.3) or the connection ends (TLS 1.2). What its suite allows is never exceeded.",
    ),
    Key::number(
        &HEAD_TIMEOUT_SECONDS,
        "",
        "A client has this long to finish a request head (after it, 408), or the handshake of TLS.",
    ),
    Key::number(
        &IDLE_TIMEOUT_SECONDS,
        "",
        "A connection without a request is closed after this, from the acknowledgment of its last reply on, if it has had one.",
    ),
    Key::number(
        &SEND_TIMEOUT_SECONDS,
        "",
        "A client that acknowledges less of its reply than 256 bytes a second, over this time, is reset.",
    ),
    Key::number(
        &REPLACED_TIMEOUT_SECONDS,
        "",
        "A file or object that was replaced or removed is sent on for this long to the clients that had asked for it before; then they are reset, and its space can be used again.",
    ),
    Key::number(
        &SHUTDOWN_GRACE_SECONDS,
        "",
        "After SIGINT or SIGTERM, replies in progress have this long to finish; the rest is reset.",
    ),
];

/// The table of `docs/run/configuration.md`: a row for each of [`KEYS`].
#[must_use]
pub fn documentation() -> String {
    let rows: String = KEYS.iter().map(Key::markdown).collect();
    format!(
        "| Key | Flag | Type or unit | Default | Range | Meaning |\n|---|---|---|---|---|---|\n{rows}"
    )
}

#[cfg(test)]
mod tests;
