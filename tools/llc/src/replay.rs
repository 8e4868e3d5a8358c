//! Replays a trace over a layout and a machine, and reports what DRAM had to do for it.

use crate::layout::{Layout, PhysicalMemory};
use crate::machine::Machine;
use crate::trace::Event;

/// A run of a trace.
#[derive(Debug)]
pub struct Replay {
    layout: Layout,
    memory: PhysicalMemory,
    machine: Machine,
}

/// DRAM traffic of a run, as multiples of the bytes sent.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Report {
    /// Bytes read from DRAM over bytes sent.
    pub read: f64,
    /// Bytes written to DRAM over bytes sent.
    pub written: f64,
}

impl Replay {
    /// Starts with empty caches; `seed` scatters the memory's pages and draws what is random.
    #[must_use]
    pub const fn new(machine: Machine, layout: Layout, seed: u64) -> Self {
        Self {
            layout,
            memory: PhysicalMemory::new(seed),
            machine,
        }
    }

    /// Takes the next event. Events come in the order of their times.
    pub fn take(&mut self, event: &Event) {
        let _ = (event, self.layout, self.memory, self.machine);
    }

    /// Forgets what was counted so far, but not what the caches hold: the end of the warm-up.
    pub fn restart_counting(&mut self) {}

    /// What was counted since the start or the last [`Self::restart_counting`], in which `bytes_sent` left.
    #[must_use]
    pub fn report(&self, bytes_sent: u64) -> Report {
        let _ = bytes_sent;
        Report::default()
    }
}
