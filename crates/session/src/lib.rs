//! The conductor: turns the credit of ACKs into disk reads, and completed reads into TCP segments.
//!
//! Its input are frames, completions, answers of the store and the time; its output are look-ups,
//! reads and frames. It makes no system call, reads no clock and copies no payload: from its read to
//! its frame a byte is in a slot of the arena and nowhere else.
//!
//! **All memory it may use was counted at start.** Tables have the capacities of [`Config`]. Each
//! connection has at most 17 KiB of received bytes and as many that were parsed already (over TLS
//! also 32 KiB of opened bytes; from a proxy, what it says before: [`sites::preface::PREFACE_BYTES_MAX`];
//! buffers grow by doubling), eight replies' heads
//! ([`http::REPLY_TEXT_BYTES_MAX`]), sixteen fetches and a log of [`tcp::flight::ENTRIES_MAX`]
//! transmissions. These four grow when a connection first needs them. Besides, a look-up allocates
//! its path, a stray ([`STRAYS_MAX`]) its text, a device seen for the first time ([`DEVICES_MAX`]) a
//! queue of connections, and the queues that the caller polls each round grow to the most entries
//! they ever had.
//!
//! Reading first: [`Conductor`], then `fetch` (from credit to a read), `stream_map` (in place of a
//! socket buffer).
#![forbid(unsafe_code)]

mod address;
mod age_list;
mod canary;
mod client;
mod conductor;
mod connection_trace;
mod counters;
mod device_reads;
mod fetch;
mod forwarded;
mod granted;
mod input;
mod kept_slots;
mod listing;
mod next_hops;
mod outbox;
mod rates;
mod read_budget;
mod read_turns;
mod reassembly;
mod request_log;
mod run_queue;
mod shortest_rtt;
mod slab;
mod sources;
mod stream_map;
mod tls;
mod warning;

use core::net::IpAddr;
use std::sync::Arc;

use clock::Duration;
use memory::FreeSlot;
use sites::Sites;
use sites::networks::SourceFilter;
use wire::MacAddress;

pub use address::{AddressCheck, AddressConflict, DEFEND_INTERVAL, ProbeTimes};
pub use canary::{Canary, Fault};
pub use conductor::{
    CROSSING_MAX, Conductor, CrossingError, MESSAGE_BYTES_MAX, Process, STRAYS_MAX, Stray,
};
pub use connection_trace::{ConnectionTrace, TraceEnd, TraceEvent};
pub use counters::{Counters, Histograms, STATUS_CLASSES, SiteCounters};
pub use device_reads::{DEVICES_MAX, DeviceIndex};
pub use kept_slots::KEPT_FOR_MAX;
pub use listing::{Activity, ListedConnection, PageLimits};
pub use request_log::{
    LoggedRequest, ReplyEnd, RequestLog, RequestName, STATUS_CLIENT_LEFT, TlsSession,
};
pub use tcp::Config as TcpConfig;
pub use tcp::congestion::CongestionControl;
pub use warning::Warning;

/// The conductor's configuration; every size in it is a bound on memory.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whether what players say of their playback is counted, and passed to the access log ([`http::Cmcd`]).
    pub reads_cmcd: bool,
    /// Whether requests are counted by site as well ([`Conductor::site_counters`]).
    pub counts_by_site: bool,
    /// Addresses this stack answers for (IPv4 and IPv6).
    pub addresses: Vec<IpAddr>,
    /// Those of them that another station answers ARP and neighbour discovery for: a load balancer, or a router
    /// with a route to us. Nothing is said about them.
    pub virtual_addresses: Vec<IpAddr>,
    /// Whether they are announced at start: by one worker of several, and not if they are the host's too.
    pub are_addresses_announced: bool,
    /// Our MAC.
    pub mac: MacAddress,
    /// Link MTU, bytes.
    pub mtu_bytes: u16,
    /// Largest IP packet the link takes for segmentation, bytes; 0: no segmentation, the link gets
    /// packets of at most the MTU.
    pub segmentation_bytes_max: u32,
    /// Whether the link completes checksums. Segmentation needs it.
    pub checksum_offload: bool,
    /// Port of plain HTTP.
    pub http_port: Option<u16>,
    /// Port of HTTP over TLS.
    pub https_port: Option<u16>,
    /// Records one key seals before a KeyUpdate, at most; the algorithm may set less
    /// ([`record::Algorithm::records_max`]).
    pub key_records_max: u64,
    /// What every TCP connection is like.
    pub tcp: TcpConfig,
    /// The library whose AEADs seal.
    pub aead_library: record::AeadLibrary,
    /// Most connections at once.
    pub connections_max: usize,
    /// Most connections of one source, an IPv4 address or an IPv6 network of 64 bits; `None`: no
    /// limit.
    pub connections_per_source_max: Option<u32>,
    /// Which sources are served.
    pub source_filter: SourceFilter,
    /// Secret of this run: hash keys, initial sequence numbers.
    pub seed: [u8; 32],
    /// Which reply a request gets.
    pub sites: Arc<Sites>,
    /// Unix time at start, seconds, until [`Conductor::set_unix_seconds`] sets it.
    pub unix_seconds_at_start: u64,
    /// A client has this long to finish a request head (408 after), and a TLS handshake.
    pub head_timeout: Duration,
    /// A connection without a request is closed after this time, from the acknowledgment of its last reply
    /// on, if it has had one.
    pub idle_timeout: Duration,
    /// A client that acknowledges less of a reply than 256 bytes a second, over this time, is reset.
    pub send_timeout: Duration,
    /// Limits of the bytes read from the disk for a connection.
    pub read_limits: ReadLimits,
    /// Most replies to one request, 1 or more: each but the last found that its file had changed, and nothing of it
    /// had been sent.
    pub beginnings_max: u8,
    /// Most reads under way, as slots and the disk's queue have room. With objects on several
    /// devices, each may have at most as many as are still free: the first device that hangs gets
    /// half of them.
    pub reads_max: usize,
    /// Most slots that are kept after a burst was sent from them, for the next bursts of their clients and for what is
    /// lost; 65,535 at most count. 0: none, and each burst is read by itself.
    pub kept_slots_max: usize,
    /// Bytes of copies of what other slots hold, for clients whose paths lose. 0: none is made.
    pub kept_copy_bytes: usize,
    /// A fault, for the simulator to find.
    pub canary: Canary,
}

/// Of a manifest that is rewritten 200 times a second, with nine runnable threads for each processor, 5 replies in
/// 100 found it changed when there was one for a request, and 1 in 100 when there were four
/// (`cargo xtask netns --changes 3`).
const BEGINNINGS_MAX: u8 = 8;

impl Default for Config {
    /// What a server has whose operator says nothing, with neither addresses nor ports, at a link with
    /// the MTU of Ethernet that completes nothing. The seed is no secret.
    fn default() -> Self {
        Self {
            reads_cmcd: false,
            counts_by_site: false,
            addresses: Vec::new(),
            virtual_addresses: Vec::new(),
            are_addresses_announced: true,
            mac: MacAddress([2, 0, 0, 0, 0, 0]),
            mtu_bytes: 1500,
            segmentation_bytes_max: 0,
            checksum_offload: false,
            http_port: None,
            https_port: None,
            key_records_max: u64::MAX,
            tcp: TcpConfig::default(),
            aead_library: record::AeadLibrary::default(),
            connections_max: 16_384,
            connections_per_source_max: None,
            source_filter: SourceFilter::default(),
            seed: [0; 32],
            sites: Arc::default(),
            unix_seconds_at_start: 0,
            head_timeout: Duration::from_secs(20),
            idle_timeout: Duration::from_secs(75),
            send_timeout: Duration::from_secs(60),
            read_limits: ReadLimits::default(),
            beginnings_max: BEGINNINGS_MAX,
            reads_max: 128,
            kept_slots_max: 64,
            kept_copy_bytes: 0,
            canary: Canary::default(),
        }
    }
}

/// Limits of the bytes read from the disk for one connection: `factor` times the bytes of the stream
/// that were sent (retransmitted bytes count once), plus `burst_bytes`, plus
/// `floor_bytes_per_second` for each second of its life. A read beyond that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadLimits {
    /// Bytes read for each byte sent.
    pub factor: u64,
    /// Bytes that may be read before anything is sent, and in excess of `factor`.
    pub burst_bytes: u64,
    /// Bytes that may be read in each second even if nothing is acknowledged.
    pub floor_bytes_per_second: u64,
}

impl Default for ReadLimits {
    /// Limits that well-behaved clients do not reach:
    ///
    /// * `factor` 16. A file of a few bytes costs a block of 4 KiB for a head and a body of some
    ///   350 bytes: 12. A window of 2 KB over TLS costs a record of 15 KiB for each window: 9. Of
    ///   single segments lost over TLS, each costs a record or two, 20 to 40 KiB: with a tenth lost
    ///   that is 4 for each byte that arrives, and with half of them 16 to 30, where TCP hardly
    ///   sends at all.
    /// * `burst_bytes` 256 KiB. The initial window, lost packet by packet over TLS: ten records.
    /// * `floor_bytes_per_second` 32 KiB. More than a record a second, so that a segment can be
    ///   repeated each second for ever. 16,384 connections at the floor read 512 MiB a second.
    fn default() -> Self {
        Self {
            factor: 16,
            burst_bytes: 256 << 10,
            floor_bytes_per_second: 32 << 10,
        }
    }
}

/// Identifies an object that the store has opened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ObjectHandle(pub u32);

/// What the conductor needs to know of an object.
#[derive(Clone, Debug)]
pub struct Object {
    /// Returned in read plans and by [`Conductor::poll_released`].
    pub handle: ObjectHandle,
    /// Its metadata for HTTP.
    pub meta: http::ObjectMeta,
    /// Alignment of reads, bytes; a power of two.
    pub block_bytes: u32,
    /// Largest read, bytes.
    pub read_bytes_max: u32,
    /// The device it is on. Devices are numbered in the order in which they are first seen.
    pub device: DeviceIndex,
}

/// Why there is no object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookupError {
    /// 404.
    NotFound,
    /// 301 to the path with a slash: it is a directory.
    Directory,
    /// 403.
    Forbidden,
    /// 503: too many objects are open.
    Busy,
    /// 500.
    Failed,
}

/// What a look-up is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookupPurpose {
    /// The object that a client asked for. If it is not there, it may be waited for, for so long.
    Object {
        /// Zero: not at all.
        hold: Duration,
    },
    /// The same in another coding: without it there is the object as it is.
    Coding,
    /// The body of an error.
    ErrorPage,
}

/// A path to be looked up in the store; answered by [`Conductor::handle_lookup`], now or later.
#[derive(Clone, Debug)]
pub struct LookupPlan {
    /// To be given back.
    pub token: LookupToken,
    /// In which of the store's directories.
    pub directory: u16,
    /// Decoded, starts with `/`, without dot segments; of a directory that was asked for, the path
    /// of its index.
    pub path: String,
    /// Of which site ([`sites::Found::number`]).
    pub site: u16,
    /// What for.
    pub purpose: LookupPurpose,
}

/// Identifies a look-up under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LookupToken(pub u64);

/// Identifies a TLS client to the handshaker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TlsToken {
    /// Less than [`Config::connections_max`]; no two clients have the same at the same time.
    pub index: u32,
    /// Tells this client from earlier ones at the same index.
    pub serial: u32,
}

/// Which half of a connection a key is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Ours to the client.
    Send,
    /// The client's to us.
    Receive,
}

/// What the conductor asks of the TLS handshaker, by [`Conductor::poll_tls`] and
/// [`Conductor::poll_hello`]. All but [`TlsPlan::Forget`] are answered by
/// [`Conductor::handle_tls`], now or later. A client has at most one unanswered plan.
#[derive(Debug)]
pub enum TlsPlan {
    /// The client's next record during its handshake, header included. A token not seen before
    /// begins a handshake.
    Handshake {
        /// The client.
        token: TlsToken,
        /// One whole record.
        record: Vec<u8>,
    },
    /// The next traffic key of a client that speaks TLS 1.3 (RFC 8446 s7.2).
    NextKey {
        /// The client.
        token: TlsToken,
        /// Which half of the connection the key is for.
        direction: Direction,
    },
    /// The client is gone, or only the end of its connection is left: its state can be dropped.
    Forget {
        /// The client.
        token: TlsToken,
    },
}

/// An answer to a [`TlsPlan`].
#[derive(Debug)]
pub enum TlsAnswer {
    /// The handshake goes on.
    Continue {
        /// Whole records for the client; may be empty.
        flight: Vec<u8>,
    },
    /// The handshake is complete.
    Established {
        /// Whole records for the client that come before anything sealed by `send`; may be empty.
        flight: Vec<u8>,
        /// Our key, and the number of the first record under it.
        send: (record::TrafficKey, u64),
        /// The client's key, and the number of its next record.
        receive: (record::TrafficKey, u64),
        /// Whether the session was resumed.
        is_resumed: bool,
        /// Most content bytes of a record that the client takes: 63 to
        /// [`record::CONTENT_BYTES_MAX`].
        content_bytes_max: u16,
    },
    /// The handshake failed; the connection ends after the flight.
    Refused {
        /// Whole records: the alert.
        flight: Vec<u8>,
    },
    /// The key asked for.
    NextKey {
        /// The key of the half that was asked for. Its record numbers start at 0.
        key: record::TrafficKey,
    },
    /// An internal error, or no such client: the connection is reset.
    Failed,
}

/// A disk read to be enqueued; answered by [`Conductor::handle_completion`].
#[derive(Debug)]
pub struct ReadPlan {
    /// What to read.
    pub object: ObjectHandle,
    /// From where, bytes; a multiple of the object's block size.
    pub offset_bytes: u64,
    /// How much, bytes; a multiple of the object's block size. The last block of an object may
    /// reach past its end.
    pub length_bytes: u32,
    /// Where to.
    pub slot: FreeSlot,
    /// To be given back.
    pub token: u64,
}

/// Why a read failed; each reason has its own counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadError {
    /// The device or the kernel reported an error.
    Io,
    /// The object has changed since it was opened.
    Changed,
}

/// Whether the link accepted all frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransmitProgress {
    /// Nothing is left to send now.
    Done,
    /// The link was full: call again when it has room.
    Full,
}

/// The link's answer to a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transmitted {
    /// Accepted, or lost: TCP detects the loss.
    Taken,
    /// Accepted, and the link's device reads the last part of the payload in its slot, which is on
    /// loan from now on ([`memory::Arena::lend`]).
    Lent,
    /// No room.
    Full,
}
