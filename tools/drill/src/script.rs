//! What a script says, as values: its settings and its lines. The parser makes them, the run
//! carries them out. Sequence numbers here are relative: 0 is the SYN, 1 the first byte.

use core::ops::Range;

use clock::Duration;
use session::CongestionControl;
use wire::Ecn;

/// A parsed script.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Script {
    /// Its file, as messages name it.
    pub file: String,
    /// The settings at its top.
    pub setup: Setup,
    /// Its lines, in order.
    pub lines: Vec<Line>,
}

/// The settings of a script: the peer, the object, the disk and the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setup {
    /// The MSS the peer's SYN offers, bytes; `None`: no option.
    pub mss: Option<u16>,
    /// The window that the peer advertises where a line says nothing else, bytes.
    pub window_bytes: u32,
    /// The window scale the peer's SYN offers; `None`: no option.
    pub scale: Option<u8>,
    /// Whether the peer's SYN permits SACK.
    pub sack: bool,
    /// Whether the peer has timestamps.
    pub timestamps: bool,
    /// Congestion control of the server.
    pub congestion: CongestionControl,
    /// Whether the server paces what it sends.
    pub is_paced: bool,
    /// Whether the server reduces the congestion window after an idle time.
    pub reduces_idle_window: bool,
    /// Whether the server uses ECN if the peer's SYN asks for it.
    pub accepts_ecn: bool,
    /// Whether the server reduces the packet size in a black hole, and probes for a larger one.
    pub probes_path_mtu: bool,
    /// Size of the object, bytes.
    pub object_bytes: u64,
    /// Size of the reply's head, bytes.
    pub head_bytes: u32,
    /// The disk's block, bytes; a power of two.
    pub block_bytes: u32,
    /// Every read is done at once and is not expected by a line.
    pub is_disk_immediate: bool,
    /// Slots of the arena.
    pub slots: u32,
    /// MTU of the server's link, bytes.
    pub mtu_bytes: u16,
    /// Requests have `Connection: close`.
    pub closes: bool,
    /// The connection begins before the first line, with a handshake of this round trip.
    pub connect: Option<Duration>,
    /// A connection without a request is closed after this time.
    pub idle_timeout: Duration,
    /// A client that acknowledges nothing for this long is reset.
    pub send_timeout: Duration,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            mss: Some(1000),
            window_bytes: 500_000,
            scale: Some(3),
            sack: true,
            timestamps: false,
            congestion: CongestionControl::default(),
            is_paced: true,
            reduces_idle_window: true,
            accepts_ecn: true,
            probes_path_mtu: true,
            object_bytes: 1_000_000,
            head_bytes: 1000,
            block_bytes: 8,
            is_disk_immediate: false,
            slots: 32,
            mtu_bytes: 1500,
            closes: false,
            connect: None,
            idle_timeout: Duration::from_secs(75),
            send_timeout: Duration::from_secs(60),
        }
    }
}

/// One line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// From 1.
    pub number: usize,
    /// As it stands in the file.
    pub text: String,
    /// When it happens.
    pub when: When,
    /// What happens.
    pub event: Event,
}

/// When a line happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct When {
    /// Counts from the line before, and not from the start of the script.
    pub is_relative: bool,
    /// The time.
    pub time: Duration,
    /// How much earlier or later what is expected may come.
    pub tolerance: Duration,
}

/// What happens, or is expected to happen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Nothing is expected until then.
    Wait,
    /// The peer sends a segment.
    PeerSends(Segment),
    /// The peer expects a segment, or several packets of one range.
    PeerExpects(Expected),
    /// A router reports that the packet which begins at `sequence` is too big for a link with this
    /// MTU.
    RouterReports {
        /// MTU of the router's link, bytes.
        mtu_bytes: u16,
        /// Sequence number of the quoted segment.
        sequence: i64,
    },
    /// The disk expects a read of this range of the object.
    DiskExpects(Range<u64>),
    /// The disk answers a read: that of this range, or the oldest one.
    DiskAnswers(Answer, Option<Range<u64>>),
    /// The queue of the disk is full, or has room again.
    DiskQueue {
        /// Reads are returned.
        is_full: bool,
    },
}

/// How the disk answers a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// All bytes were read.
    Done,
    /// An error of the device.
    Failed,
    /// The object has changed since it was opened.
    Changed,
    /// Only so many bytes were read.
    Short(u32),
}

/// Control bits of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bits {
    /// SYN.
    pub syn: bool,
    /// FIN.
    pub fin: bool,
    /// RST.
    pub rst: bool,
    /// ECE.
    pub ece: bool,
    /// CWR.
    pub cwr: bool,
}

/// A segment that the peer sends. What is `None` has a default; the README has them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Segment {
    /// Control bits.
    pub bits: Bits,
    /// Sequence numbers of its text; empty: no text.
    pub sequence: Option<Range<i64>>,
    /// The next request.
    pub is_request: bool,
    /// SEG.ACK.
    pub ack: Option<i64>,
    /// No ACK bit.
    pub without_ack: bool,
    /// SEG.WND, bytes, before scaling.
    pub window_bytes: Option<u32>,
    /// SACK blocks in this order.
    pub sack: Vec<Range<i64>>,
    /// TSval, milliseconds of the script.
    pub stamp: Option<i64>,
    /// TSecr, milliseconds of the script.
    pub echo: Option<i64>,
    /// No timestamp option.
    pub without_stamp: bool,
    /// Destination port, if not that of the server.
    pub port: Option<u16>,
    /// ECN field of the IP header.
    pub ecn: Ecn,
}

/// An option that a line expects, expects to be absent, or does not look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Wanted<T> {
    /// Not looked at.
    #[default]
    Any,
    /// Must be absent.
    Absent,
    /// Must be there with this value.
    Is(T),
}

/// A segment that the peer expects. SYN, FIN and RST must be as the line says; ECE and CWR, too.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Expected {
    /// Control bits.
    pub bits: Bits,
    /// Sequence numbers of its text. Empty: a segment without text. `None`: not looked at.
    pub sequence: Option<Range<i64>>,
    /// SEG.ACK.
    pub ack: Option<i64>,
    /// SEG.WND as on the wire.
    pub window: Option<u16>,
    /// PSH on the last packet.
    pub push: Option<bool>,
    /// The text was sent before. If not, it must be new.
    pub is_retransmission: bool,
    /// Number of packets.
    pub packets: Option<usize>,
    /// Text of all packets but the last, bytes; `None`: that of a full segment.
    pub packet_bytes: Option<u16>,
    /// MSS option.
    pub mss: Wanted<u16>,
    /// Window scale option.
    pub scale: Wanted<u8>,
    /// SACK-permitted option.
    pub sack_permitted: Wanted<()>,
    /// TSval, milliseconds of the script.
    pub stamp: Wanted<i64>,
    /// TSecr, milliseconds of the script.
    pub echo: Option<i64>,
    /// ECN field of the IP headers; `None`: not looked at.
    pub ecn: Option<Ecn>,
}
