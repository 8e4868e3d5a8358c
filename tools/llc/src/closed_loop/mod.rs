//! A server in a closed loop: connections whose acknowledgements ask for more, disks, workers, NICs. It makes the touches
//! that the caches see, at the times that queues give them.
//!
//! A connection has a window of reads in flight; when an object is acknowledged whole, the next is asked for. A worker
//! polls: a round takes back slots, gets through acknowledgements, submits reads, and sends what was read. It refuses to
//! be TCP (no loss, no pacing) and lets nothing wait for DRAM: how fast a core is is a parameter. Bounded by: the virtual
//! time of a run.

mod run;

use crate::cache::Access;
use crate::layout::Layout;
use crate::machine::Machine;
use crate::replay::Report;

/// What clients do.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Load {
    /// Connections, spread over workers and NICs.
    pub connections: u32,
    /// Bytes that a connection may have in flight: the mean. Each has whole reads, at least one.
    pub window_bytes: u32,
    /// Bytes of an object, in whole reads, at least one.
    pub object_bytes: u32,
    /// Round-trip times are even between these, one for each connection.
    pub rtt_ms: (f64, f64),
}

/// What the server runs on, but for its caches.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Hardware {
    /// Cores that serve.
    pub workers: u16,
    /// Disks. A read goes to any.
    pub disks: u32,
    /// Rate of each disk.
    pub disk_gbps: f64,
    /// Time that a read takes beside that for its bytes.
    pub disk_us: f64,
    /// NICs. A connection stays with one.
    pub nics: u32,
    /// Payload that each sends.
    pub nic_gbps: f64,
    /// Payload that a worker may have in the ring of one NIC. What finds no room waits in its slot.
    pub ring_bytes: u32,
}

/// Which free slot is read into next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The one given back last.
    Lifo,
    /// The one given back first.
    Fifo,
}

/// What a core does to payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sealing {
    /// Nothing: plaintext, or the NIC seals.
    None,
    /// It seals where the disk wrote.
    InPlace,
    /// It loads there and writes elsewhere, by this kind of store.
    Elsewhere(Access),
}

/// Lines beside the payload that a server touches.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Metadata {
    /// Of a connection, for each read: half are loaded, half stored.
    pub connection_lines: u32,
    /// Lines that the NIC receives for each read (acknowledgements), and a core loads.
    pub received_lines: u32,
    /// Lines of headers for each 1,448 B, which a core stores and the NIC reads.
    pub header_lines: u32,
    /// Lines for each 4 KiB that no cache ever has: a kernel's structures.
    pub cold_lines: f64,
}

/// How a server works.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Server {
    /// Bytes of a read, a multiple of 4 KiB.
    pub read_bytes: u32,
    /// Where slots are.
    pub layout: Layout,
    /// Slots of each worker.
    pub slots: u32,
    /// Which is next.
    pub order: Order,
    /// Most slots of each worker in use: being read into, filled, or with the NIC.
    pub bound: u32,
    /// Most reads in flight of each worker.
    pub reads_in_flight: u32,
    /// What is done to payload.
    pub sealing: Sealing,
    /// Payload that a core gets through, all its work for it included.
    pub core_gbps: f64,
    /// A round takes at least so long.
    pub poll_us: f64,
    /// Most completed reads of a round.
    pub batch: u32,
    /// Frames leave when the round has got through all of them, not one by one.
    pub sends_in_batches: bool,
    /// Reads are submitted before completed ones are sealed and sent, not after.
    pub reads_first: bool,
    /// From the round that finds that the NIC has sent a slot until it is free.
    pub give_back_us: f64,
    /// Mean wait in a socket buffer.
    pub socket_wait_ms: f64,
    /// Payload is in memory already (a buffer cache): no disk writes it.
    pub is_cached: bool,
    /// The rest.
    pub metadata: Metadata,
}

/// A server on a machine under a load.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Case {
    /// The server.
    pub server: Server,
    /// The load.
    pub load: Load,
    /// The hardware.
    pub hardware: Hardware,
    /// Its caches.
    pub machine: Machine,
}

/// What a run shows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Outcome {
    /// Payload sent.
    pub gbps: f64,
    /// Memory traffic.
    pub report: Report,
    /// LLC misses of the processor, in millions a second.
    pub misses_m_s: f64,
    /// Bytes of slots in use, of all workers: the mean.
    pub used_bytes: f64,
    /// Accesses that the model made.
    pub accesses: u64,
}

impl Case {
    /// Runs the loop: 110 ms of virtual time, of which the last 20 are counted, and 12 before them fill the caches.
    ///
    /// # Panics
    /// A worker's slots are more than [`crate::layout`] has room for.
    #[must_use]
    pub fn run(&self, seed: u64) -> Outcome {
        run::Loop::new(self, seed).run()
    }
}

#[cfg(test)]
mod tests {
    use super::Order;
    use crate::rivals::{Protocol, atlas_bounded, on_paper_machine};

    #[test]
    fn a_run_is_its_seed_and_keeps_its_bound() {
        let mut case = on_paper_machine(atlas_bounded(Protocol::Tls, 20), 4, 8_000);
        let first = case.run(5);
        assert_eq!(first, case.run(5));
        assert_ne!(first, case.run(6));
        let most = 20.0 * 4.0 * f64::from(case.server.read_bytes);
        assert!(first.used_bytes <= most, "{first:?}");
        assert!((65.0..73.3).contains(&first.gbps), "{first:?}");
        // Neither the bound nor the order does it alone.
        case.server.order = Order::Fifo;
        let fifo = case.run(5);
        assert!(fifo.report.written > 3.0 * first.report.written, "{fifo:?}");
    }
}
