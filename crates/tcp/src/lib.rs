//! Server-side TCP that owns sequence numbers, not bytes.
//!
//! It never opens a connection, keeps no payload, and makes no system call. Segments come in as
//! values; what may be sent comes out as ranges of the stream, which the session fetches, seals and
//! sends. A lost range is demanded again, and the session reads it from the disk again.
//!
//! Refused: active open, urgent data, out-of-order reassembly of requests (the client retransmits
//! them), fast open. Bounded: every table here has a capacity given at start; one connection's
//! log of transmissions has at most [`flight::ENTRIES_MAX`] entries and grows as needed.
//!
//! Reading first: RFC 9293 (TCP), 5961 (blind attacks), 6298 (RTO), 7323 (timestamps, PAWS, window
//! scale), 2018 and 2883 (SACK), 8985 (RACK-TLP), 3522, 3708, 4015 and 5682 (spurious timeouts and
//! recoveries), 9937 (rate reduction), 9438 (CUBIC), 9406 (HyStart++), draft-ietf-ccwg-bbr (BBR),
//! 6928 (initial window), 5927 (ICMP attacks), 6528 (initial sequence numbers), 3168 (ECN), 4987 (SYN
//! floods), 6191 (TIME-WAIT), 4821 and 8899 (path MTU). Then
//! [`connection`], whose verbs are the interface.
#![forbid(unsafe_code)]

pub mod answer_limit;
pub mod canary;
pub mod congestion;
pub mod connection;
pub mod delivery_rate;
pub mod flight;
pub mod half_open;
pub mod listener;
pub mod pacing;
pub mod receive;
pub mod recovery;
pub mod rtt;
pub mod send;
pub mod size_search;
pub mod stream;
pub mod syn_cookies;
pub mod table;
pub mod time_wait;
pub mod timer_queue;
pub mod verdict;

pub use answer_limit::{AnswerLimit, Answers};
pub use canary::{Canary, Fault};
pub use connection::{
    Admitted, Claim, Config, CongestionState, Connection, ConnectionInfo, Control, Credit, Demand,
    Framing, Limit, PathEvents, Permission, State,
};
pub use half_open::{HalfOpen, HalfOpenVerdict, Offer};
pub use listener::Listener;
pub use stream::{StreamOffset, StreamRange};
pub use syn_cookies::SynCookies;
pub use table::{FourTuple, Table, TableIndex, TableTag};
pub use time_wait::{TimeWait, TimeWaitTable, TimeWaitVerdict};
pub use timer_queue::TimerQueue;
pub use verdict::{Arrival, CloseReason, Outcome, SegmentDrop};
