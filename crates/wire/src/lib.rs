//! Bytes on the wire: Ethernet, ARP, IPv4, IPv6, ICMP, ICMPv6 and TCP, as views and
//! representations.
//!
//! **Parsing never allocates and never panics.**
//!
//! A *view* (`Ipv4Packet`, `TcpSegment`, ...) borrows received bytes whose lengths have been
//! checked once; a *representation* (`TcpRepr`, `ArpRepr`, ...) is the same header as plain values,
//! and can be emitted. Most callers need neither: [`parse_frame`] takes a whole frame apart and
//! says in one word what it is, or in one [`DropReason`] why it was refused; [`emit_tcp`] and its
//! sisters write whole frames; [`cut`] does in software what segmentation offload does elsewhere.
//!
//! A fragment is taken apart alone; who puts fragments together has [`parse_reassembled`] for what they
//! make. Refused: tags of VLANs (a priority tag is skipped), jumbograms, IPv6 routing headers, every
//! transport but TCP and ICMP.
//!
//! Bounds: a frame carries at most one IP packet of 65,535 bytes (65,575 with an IPv6 header), TCP
//! options at most 40 bytes, IPv6 extension headers at most [`ipv6::EXTENSION_BYTES_MAX`].
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod arp;
pub mod checksum;
pub mod ecn;
pub mod emit;
pub mod ethernet;
pub mod fragment;
pub mod icmpv4;
pub mod icmpv6;
pub mod incoming;
pub mod ipv4;
pub mod ipv6;
pub mod listener;
pub mod outgoing;
pub mod quote;
pub mod reason;
pub mod segment;
pub mod tcp;

mod field;
mod writer;

pub use arp::{ArpOperation, ArpRepr};
pub use ecn::{Ecn, read_ecn, set_ecn};
pub use emit::{
    HEADERS_BYTES_MAX, Route, TcpChecksum, emit_arp, emit_arp_probe, emit_arp_reply,
    emit_arp_request, emit_echo_reply, emit_gratuitous_arp, emit_listener_report,
    emit_neighbor_advertisement, emit_neighbor_solicitation, emit_tcp,
    emit_unsolicited_advertisement,
};
pub use ethernet::MacAddress;
pub use fragment::{Fragment, FragmentPlace};
pub use incoming::{ChecksumState, Incoming, Path, parse_frame, parse_reassembled};
pub use listener::ListenerReport;
pub use outgoing::{Offload, Outgoing, PartialChecksum, Segmentation, SegmentationKind};
pub use quote::OriginalTcp;
pub use reason::DropReason;
pub use segment::{FrameSink, complete_checksum, cut, cut_unfinished};
pub use tcp::{SackBlocks, SeqNumber, TcpFlags, TcpOptions, TcpRepr, TcpSegment, Timestamps};
