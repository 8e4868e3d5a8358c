//! Replays a trace over a layout and a machine, and reports what DRAM had to do for it.

use crate::cache::{Access, Agent, ByCause, Cache, Stage};
use crate::layout::{Layout, PhysicalMemory, Region, WORKERS_MAX};
use crate::machine::Machine;
use crate::trace::{Event, Touch};

/// A run of a trace.
#[derive(Debug)]
pub struct Replay {
    layout: Layout,
    memory: PhysicalMemory,
    cache: Cache,
}

/// DRAM traffic of a run, as multiples of the bytes sent.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Report {
    /// Bytes read from DRAM over bytes sent.
    pub read: f64,
    /// Bytes written to DRAM over bytes sent.
    pub written: f64,
    /// [`Self::read`] by who reads and what for; indices are those of [`Agent`], then of [`Stage`].
    pub reads: [[f64; 4]; 3],
    /// [`Self::written`] by whose access evicted or wrote a line, and the last stage of the line.
    pub writes: [[f64; 4]; 3],
    /// Accesses of the processor that read DRAM: its LLC misses.
    pub cpu_misses: u64,
}

impl Replay {
    /// Starts with empty caches; `seed` scatters the memory's pages and draws what is random.
    #[must_use]
    pub fn new(machine: Machine, layout: Layout, seed: u64) -> Self {
        Self {
            layout,
            memory: PhysicalMemory::new(seed),
            cache: Cache::new(&machine, WORKERS_MAX, seed),
        }
    }

    /// Takes the next event. Events come in the order of their times.
    ///
    /// # Panics
    /// The worker or the slot is past what [`crate::layout`] has room for.
    pub fn take(&mut self, event: &Event) {
        let (region, offset) = (Region::Arena(event.worker), self.place(event));
        match event.touch {
            Touch::DiskWrite => {
                self.access(
                    region,
                    offset,
                    event.bytes,
                    &[(Access::DeviceWrite, Stage::Fill)],
                );
            }
            // A line is loaded, and stored before it can leave again: one access to the caches.
            Touch::Seal => {
                self.access(region, offset, event.bytes, &[(Access::Store, Stage::Seal)])
            }
            Touch::NicRead => {
                self.access(
                    region,
                    offset,
                    event.bytes,
                    &[(Access::DeviceRead, Stage::Send)],
                );
            }
        }
    }

    /// Where an event's bytes are in the arena.
    pub(crate) fn place(&self, event: &Event) -> u64 {
        self.layout.offset_bytes(event.slot, event.offset_bytes)
    }

    /// Does `accesses`, in turn, to each line of some bytes of a region.
    pub(crate) fn access(
        &mut self,
        region: Region,
        offset_bytes: u64,
        bytes: u32,
        accesses: &[(Access, Stage)],
    ) {
        let core = region.worker();
        for line in self.memory.lines(region, offset_bytes, bytes.into()) {
            for (access, stage) in accesses {
                self.cache.access(*access, *stage, core, line);
            }
        }
    }

    /// Accesses to lines that were counted.
    pub(crate) const fn accesses(&self) -> u64 {
        self.cache.counts().accesses
    }

    /// Forgets what was counted so far, but not what the caches hold: the end of the warm-up.
    pub fn restart_counting(&mut self) {
        self.cache.restart_counting();
    }

    /// What was counted since the start or the last [`Self::restart_counting`], in which `bytes_sent` left.
    #[must_use]
    pub fn report(&self, bytes_sent: u64) -> Report {
        let counts = self.cache.counts();
        let ratio = |lines: u64| (lines * 64) as f64 / bytes_sent.max(1) as f64;
        let ratios = |lines: &ByCause| lines.map(|stages| stages.map(ratio));
        let sum = |lines: &ByCause| ratio(lines.as_flattened().iter().sum());
        Report {
            read: sum(&counts.reads),
            written: sum(&counts.writes),
            reads: ratios(&counts.reads),
            writes: ratios(&counts.writes),
            cpu_misses: counts.reads[Agent::Cpu as usize].iter().sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Replacement;

    /// Reads and writes of each byte when the disk fills all of `slots` slots, 60 KiB of each, before they are touched
    /// otherwise, and so on in turn.
    fn replay(layout: Layout, slots: u32, touches: &[Touch]) -> Report {
        const BYTES: u32 = 60 << 10;
        const TURNS: u32 = 4;
        let machine = Machine::haswell(2).with_replacement(Replacement::Lru);
        let mut replay = Replay::new(machine, layout, 3);
        for turn in 0..TURNS {
            if turn == TURNS / 2 {
                replay.restart_counting();
            }
            for touch in touches {
                for slot in 0..slots {
                    replay.take(&Event {
                        at_ns: 0,
                        worker: 2,
                        touch: *touch,
                        slot,
                        offset_bytes: 0,
                        bytes: BYTES,
                    });
                }
            }
        }
        replay.report(u64::from(BYTES * slots * TURNS / 2))
    }

    const TLS: [Touch; 3] = [Touch::DiskWrite, Touch::Seal, Touch::NicRead];

    #[test]
    fn slots_that_fit_need_no_memory_and_others_as_much_as_figure_12_says() {
        // Sealing has put 6 MB anywhere in the LLC, where the disk updates them.
        let few = replay(Layout::ARENA, 100, &TLS);
        assert_eq!((few.read, few.written, few.cpu_misses), (0.0, 0.0, 0));
        // 39 MB (12c): all is read to be sealed, and to be sent what is sealed before the last 20 MiB.
        let many = replay(Layout::ARENA, 640, &TLS);
        let share = Machine::haswell(2).llc_bytes() as f64 / f64::from(640 * (60 << 10));
        let near = |value: f64, expected: f64| (value - expected).abs() < 0.01;
        assert!(near(many.read, 2.0 - share), "{many:?}");
        // What is filled or sealed is written, and of what is sent the two ways in which the disk writes anew.
        assert!(near(many.written, 2.0 - share + share * 0.1), "{many:?}");
        // 12b: all but what fits the two ways.
        let plaintext = replay(Layout::ARENA, 640, &[Touch::DiskWrite, Touch::NicRead]);
        assert!(
            near(plaintext.read, 1.0 - share * 0.1) && near(plaintext.written, 1.0),
            "{plaintext:?}"
        );
        assert_eq!(plaintext.cpu_misses, 0);
    }

    #[test]
    fn two_colours_use_the_sets_that_one_leaves_empty() {
        // 10 MB, half of the LLC, which lie in half of its sets or in all of them.
        let one = replay(Layout::LENT, 170, &TLS);
        let two = replay(Layout::TWO_COLOURS, 170, &TLS);
        assert!(two.read < one.read / 3.0, "{one:?} {two:?}");
    }
}
