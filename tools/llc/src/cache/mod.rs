//! The caches of a machine and the DRAM behind them, a line of 64 B at a time.
//!
//! A device's write updates the line where it is, or goes where [`DeviceWrites`] says. A device's read takes the line
//! from the cache that has it and changes nothing there: it neither allocates nor counts as a use. The processor loads
//! and stores. Each access has the [`Stage`] that it is for, which a line keeps: so a line that goes back to DRAM tells
//! whether it was still to be sealed, to be sent, or had been sent.
//!
//! It refuses lines that two cores touch: a slot and what belongs to it have one worker, and no coherence between cores
//! is modelled. Bounded by: the machine's ways.

mod hash;
mod ways;

pub use hash::EIGHT_SLICES;

use crate::machine::{DeviceWrites, Machine, Replacement};

use hash::SetHash;
use ways::{Line, Place, State, Ways};

/// What an access is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The disk's controller writes payload.
    Fill,
    /// The processor seals payload.
    Seal,
    /// The NIC reads payload.
    Send,
    /// All that is no payload.
    Metadata,
}

/// Who accesses memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Agent {
    /// The disks' controllers.
    Disk,
    /// The processor's cores.
    Cpu,
    /// The NICs.
    Nic,
}

/// What is done to a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// A device writes it whole.
    DeviceWrite,
    /// A device reads it.
    DeviceRead,
    /// A core reads it.
    Load,
    /// A core writes a part of it, so it must have it first.
    Store,
    /// A core writes it whole and need not have it.
    StoreLine,
    /// A core writes it whole, past the caches (`MOVNTDQ`).
    StoreNonTemporal,
}

impl Agent {
    const fn of(access: Access, stage: Stage) -> Self {
        match (access, stage) {
            (Access::DeviceWrite, Stage::Fill) => Self::Disk,
            // Of metadata, frames that are received, and what is to be sent.
            (Access::DeviceWrite | Access::DeviceRead, _) => Self::Nic,
            _ => Self::Cpu,
        }
    }
}

/// Lines that DRAM read or wrote, by who caused it and a stage.
pub type ByCause = [[u64; 4]; 3];

/// What was counted. Indices are those of [`Agent`], then of [`Stage`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// All accesses to lines.
    pub accesses: u64,
    /// Lines read from DRAM, by who reads, and what for. Those of the processor are its LLC misses.
    pub reads: ByCause,
    /// Lines written to DRAM, by whose access evicted or wrote them, and the last stage of the line.
    pub writes: ByCause,
}

/// The caches, and what DRAM did.
#[derive(Debug)]
pub struct Cache {
    llc: Ways,
    llc_hash: SetHash,
    /// Of each core, if they are no part of the LLC.
    private: Vec<Ways>,
    private_hash: Option<SetHash>,
    device_writes: DeviceWrites,
    counts: Counts,
}

/// Every way.
const ANY_WAY: u32 = u32::MAX;

impl Cache {
    /// Empty caches of a machine with so many cores; `seed` is for random replacement.
    #[must_use]
    pub fn new(machine: &Machine, cores: u16, seed: u64) -> Self {
        let sets = machine.slices * machine.sets;
        let private = machine.private.into_iter();
        let private = private.flat_map(|it| std::iter::repeat_n(it, cores.into()));
        let lru = Replacement::Lru;
        Self {
            llc: Ways::new(sets, machine.ways, machine.replacement, seed),
            llc_hash: SetHash::of_llc(machine),
            private: private
                .map(|it| Ways::new(it.sets, it.ways, lru, seed))
                .collect(),
            private_hash: machine
                .private
                .map(|it| SetHash::of_private(it, machine.index)),
            device_writes: machine.device_writes,
            counts: Counts::default(),
        }
    }

    /// What was counted.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Counts from zero.
    pub fn restart_counting(&mut self) {
        self.counts = Counts::default();
    }

    /// An access to a line that belongs to `core`.
    #[inline]
    pub fn access(&mut self, access: Access, stage: Stage, core: u16, line: u32) {
        self.counts.accesses += 1;
        let set = self.llc_hash.set(line);
        let agent = Agent::of(access, stage);
        match access {
            Access::DeviceWrite => self.device_write(agent, stage, core, set, line),
            Access::DeviceRead => self.device_read(agent, stage, core, set, line),
            Access::StoreNonTemporal => {
                self.remove(core, set, line);
                self.count_write(agent, stage);
            }
            Access::Load | Access::Store | Access::StoreLine if self.private.is_empty() => {
                self.processor_in_llc(access, stage, set, line);
            }
            Access::Load | Access::Store | Access::StoreLine => {
                self.processor_in_private(access, stage, core, set, line);
            }
        }
    }

    /// How many dirty lines the caches hold: what a flush would write.
    #[must_use]
    pub fn dirty_lines(&self) -> u64 {
        let all = self.private.iter().chain([&self.llc]).flat_map(Ways::iter);
        all.filter(|(_, state)| state.is_dirty).count() as u64
    }

    fn device_write(&mut self, agent: Agent, stage: Stage, core: u16, set: usize, line: u32) {
        let state = State {
            is_dirty: true,
            stage,
        };
        let DeviceWrites::Allocate { ways } = self.device_writes else {
            self.remove(core, set, line);
            return self.count_write(agent, stage);
        };
        if let Some((private, place)) = self.find_private(core, line) {
            self.private[private].remove(place);
        }
        if let Some(place) = self.llc.find(set, line) {
            *self.llc.state(place) = state;
            self.llc.touch(place);
        } else {
            self.put_in_llc(agent, set, (line, state), ways);
        }
    }

    fn device_read(&mut self, agent: Agent, stage: Stage, core: u16, set: usize, line: u32) {
        if let Some(place) = self.llc.find(set, line) {
            self.llc.state(place).stage = stage;
        } else if let Some((private, place)) = self.find_private(core, line) {
            self.private[private].state(place).stage = stage;
        } else {
            self.count_read(agent, stage);
        }
    }

    /// In an LLC that has all that private caches have.
    fn processor_in_llc(&mut self, access: Access, stage: Stage, set: usize, line: u32) {
        let is_store = access != Access::Load;
        if let Some(place) = self.llc.find(set, line) {
            let state = self.llc.state(place);
            *state = State {
                is_dirty: state.is_dirty | is_store,
                stage,
            };
            return self.llc.touch(place);
        }
        if access != Access::StoreLine {
            self.count_read(Agent::Cpu, stage);
        }
        let state = State {
            is_dirty: is_store,
            stage,
        };
        self.put_in_llc(Agent::Cpu, set, (line, state), ANY_WAY);
    }

    /// In a private cache, from which lines go to the LLC, clean ones too.
    fn processor_in_private(
        &mut self,
        access: Access,
        stage: Stage,
        core: u16,
        set: usize,
        line: u32,
    ) {
        let is_store = access != Access::Load;
        if let Some((private, place)) = self.find_private(core, line) {
            let state = self.private[private].state(place);
            *state = State {
                is_dirty: state.is_dirty | is_store,
                stage,
            };
            return self.private[private].touch(place);
        }
        let mut is_dirty = is_store;
        if let Some(place) = self.llc.find(set, line) {
            is_dirty |= self.llc.remove(place).is_dirty;
        } else if access != Access::StoreLine {
            self.count_read(Agent::Cpu, stage);
        }
        let hash = self.private_hash.as_ref();
        let private_set = hash
            .expect("invariant: private caches have a hash")
            .set(line);
        let state = State { is_dirty, stage };
        let cache = &mut self.private[usize::from(core)];
        if let Some(victim) = cache.insert(private_set, (line, state), ANY_WAY) {
            self.put_in_llc(Agent::Cpu, self.llc_hash.set(victim.0), victim, ANY_WAY);
        }
    }

    fn put_in_llc(&mut self, agent: Agent, set: usize, line: Line, ways: u32) {
        if let Some((_, evicted)) = self.llc.insert(set, line, ways)
            && evicted.is_dirty
        {
            self.count_write(agent, evicted.stage);
        }
    }

    /// Takes a line out of all caches: it was overwritten, so what they hold is never written.
    fn remove(&mut self, core: u16, set: usize, line: u32) {
        if let Some((private, place)) = self.find_private(core, line) {
            self.private[private].remove(place);
        }
        if let Some(place) = self.llc.find(set, line) {
            self.llc.remove(place);
        }
    }

    fn find_private(&self, core: u16, line: u32) -> Option<(usize, Place)> {
        let set = self.private_hash.as_ref()?.set(line);
        let core = usize::from(core);
        Some((core, self.private[core].find(set, line)?))
    }

    const fn count_read(&mut self, agent: Agent, stage: Stage) {
        self.counts.reads[agent as usize][stage as usize] += 1;
    }

    const fn count_write(&mut self, agent: Agent, stage: Stage) {
        self.counts.writes[agent as usize][stage as usize] += 1;
    }
}
