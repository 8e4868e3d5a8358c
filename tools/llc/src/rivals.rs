//! Servers: the paper's, those it was compared with, Linux, and ours.

use crate::cache::Access;
use crate::closed_loop::{Case, Hardware, Load, Metadata, Order, Sealing, Server};
use crate::layout::Layout;
use crate::machine::Machine;

/// Plaintext, or who seals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// Nobody.
    Plaintext,
    /// The server's cores.
    Tls,
}

/// Parameters that the paper does not give and that were chosen so that one of its numbers comes out.
pub mod fitted {
    /// How long a round of the paper's Atlas takes at least: netmap's batches. Fitted to 0.65 reads for each byte at
    /// 2,000 connections.
    pub const ATLAS_2017_POLL_US: f64 = 200.0;
    /// Lines of kernel structures for each 4 KiB that Netflix's stack touches cold. Fitted to its 1.5 reads for each
    /// byte in plaintext, of which the NIC's are one.
    pub const NETFLIX_COLD_LINES: f64 = 30.0;
    /// Payload that a core of the paper's Atlas seals and sends. Fitted to 72 Gb/s on four cores that are nearly full.
    pub const ATLAS_2017_TLS_CORE_GBPS: f64 = 18.8;
}

/// No lines but those of connections and of what is received.
const METADATA: Metadata = Metadata {
    connection_lines: 12,
    received_lines: 6,
    header_lines: 0,
    cold_lines: 0.0,
};

/// The paper's Atlas (section 3): buffers of 16 KiB, sealed in place, packets of 1,448 B in netmap's rings. Its buffers
/// come back late and in batches, so that they are used in turn and not the warmest first (section 5, figure 12a).
#[must_use]
pub const fn atlas_2017(protocol: Protocol) -> Server {
    let is_tls = matches!(protocol, Protocol::Tls);
    Server {
        read_bytes: 16 << 10,
        layout: Layout::PACKED,
        slots: 2048,
        order: Order::Fifo,
        bound: u32::MAX,
        reads_in_flight: 512,
        sealing: if is_tls {
            Sealing::InPlace
        } else {
            Sealing::None
        },
        core_gbps: if is_tls {
            fitted::ATLAS_2017_TLS_CORE_GBPS
        } else {
            60.0
        },
        poll_us: fitted::ATLAS_2017_POLL_US,
        batch: 64,
        sends_in_batches: true,
        reads_first: false,
        give_back_us: 0.0,
        socket_wait_ms: 0.0,
        is_cached: false,
        metadata: Metadata {
            header_lines: 2,
            ..METADATA
        },
    }
}

/// Netflix's stack as the paper measured it: asynchronous `sendfile`, TLS in the kernel, out of place by ISA-L's
/// non-temporal stores, so without a copy and without reading what is overwritten (Stewart et al., "Optimizing TLS for
/// High-Bandwidth Applications in FreeBSD", 2015; Gallatin's talks since). Eight cores, as many Gb/s of each as figures
/// 1 and 2 have.
#[must_use]
pub const fn netflix(protocol: Protocol, is_cached: bool) -> Server {
    let is_tls = matches!(protocol, Protocol::Tls);
    Server {
        slots: 1 << 15,
        reads_in_flight: u32::MAX,
        sealing: if is_tls {
            Sealing::Elsewhere(Access::StoreNonTemporal)
        } else {
            Sealing::None
        },
        core_gbps: match (is_tls, is_cached) {
            (false, _) => 20.0,
            (true, true) => 8.5,
            (true, false) => 5.9,
        },
        sends_in_batches: false,
        socket_wait_ms: 5.0,
        is_cached,
        metadata: Metadata {
            cold_lines: fitted::NETFLIX_COLD_LINES,
            ..METADATA
        },
        ..atlas_2017(protocol)
    }
}

/// Linux: `sendfile` from the page cache, payload only. A NIC that seals touches the same.
#[must_use]
pub const fn linux_sendfile() -> Server {
    Server {
        metadata: METADATA,
        ..netflix(Protocol::Plaintext, false)
    }
}

/// Linux: kTLS in software, which seals from the page cache into pages of its own by ordinary stores, payload only
/// (`net/tls/tls_sw.c`).
#[must_use]
pub const fn linux_ktls() -> Server {
    Server {
        sealing: Sealing::Elsewhere(Access::Store),
        metadata: METADATA,
        ..netflix(Protocol::Tls, false)
    }
}

/// This project's worker without a bound: reads of 60 KiB into the warmest slot, sealed in place, frames handed over one
/// by one. It has 512 slots, in one colour.
#[must_use]
pub const fn atlas(protocol: Protocol) -> Server {
    Server {
        read_bytes: 60 << 10,
        layout: Layout::LENT,
        slots: 512,
        order: Order::Lifo,
        reads_in_flight: 256,
        core_gbps: match protocol {
            Protocol::Plaintext => 60.0,
            Protocol::Tls => 25.0,
        },
        poll_us: 5.0,
        sends_in_batches: false,
        reads_first: true,
        metadata: Metadata {
            received_lines: 12,
            ..METADATA
        },
        ..atlas_2017(protocol)
    }
}

/// The same with so many slots of each worker in use, in two colours.
#[must_use]
pub const fn atlas_bounded(protocol: Protocol, bound: u32) -> Server {
    Server {
        bound,
        layout: Layout::TWO_COLOURS,
        ..atlas(protocol)
    }
}

/// The paper's machine, with so many cores at work: 4 disks (figure 6: full rate at a window of 128 in 0.75 ms, 3 ms at
/// 512), two NICs of 40 Gb/s that send 73 Gb/s of payload (figure 11a), eight rings of 1,024 packets.
#[must_use]
pub const fn paper_hardware(workers: u16) -> Hardware {
    Hardware {
        workers,
        disks: 4,
        disk_gbps: 22.4,
        disk_us: 90.0,
        nics: 2,
        nic_gbps: 36.6,
        ring_bytes: 1024 * 1448,
    }
}

/// The paper's clients: objects of 300 KB, 10-40 ms. The window gives the throughput of figure 11a at 2,000 connections
/// (13 % below Netflix's). With more, each has less, but all together want a third more than the NICs send.
#[must_use]
pub fn paper_load(connections: u32) -> Load {
    Load {
        connections,
        window_bytes: 93_500.min((256 << 20) / connections),
        object_bytes: 300_000,
        rtt_ms: (10.0, 40.0),
    }
}

/// A server on the paper's machine, DDIO with 2 of 20 ways.
#[must_use]
pub fn on_paper_machine(server: Server, workers: u16, connections: u32) -> Case {
    Case {
        server,
        load: paper_load(connections),
        hardware: paper_hardware(workers),
        machine: Machine::haswell(2),
    }
}
