//! The cache beside a naive one: a list for each set, LRU, written without looking at the model's code. On random streams
//! both count the same, to the last line.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "helpers of tests"
)]

use std::collections::BTreeMap;

use llc::cache::{Access, Cache, EIGHT_SLICES, Stage};
use llc::machine::{DeviceWrites, Index, Machine, PrivateCache, Replacement};
use llc::rng::Rng;

/// A line of a set's list. `way` is where it is, for the mask of device writes.
#[derive(Clone, Copy, Debug)]
struct Held {
    line: u32,
    is_dirty: bool,
    way: u32,
}

/// Sets of lists: what was used last is last.
#[derive(Debug)]
struct Lists {
    sets: BTreeMap<(u32, u32), Vec<Held>>,
    ways: u32,
}

impl Lists {
    fn take(&mut self, set: (u32, u32), line: u32) -> Option<Held> {
        let list = self.sets.entry(set).or_default();
        let at = list.iter().position(|held| held.line == line)?;
        Some(list.remove(at))
    }

    fn has(&self, set: (u32, u32), line: u32) -> bool {
        let list = self.sets.get(&set);
        list.is_some_and(|list| list.iter().any(|held| held.line == line))
    }

    fn push(&mut self, set: (u32, u32), line: u32, is_dirty: bool, ways: u32) -> Option<Held> {
        let list = self.sets.entry(set).or_default();
        let free = (0..ways.min(self.ways)).find(|way| list.iter().all(|held| held.way != *way));
        let (way, evicted) = match free {
            Some(way) => (way, None),
            None => {
                let oldest = list.iter().position(|held| held.way < ways).unwrap();
                let evicted = list.remove(oldest);
                (evicted.way, Some(evicted))
            }
        };
        list.push(Held {
            line,
            is_dirty,
            way,
        });
        evicted
    }
}

/// The naive model.
#[derive(Debug)]
struct Naive {
    machine: Machine,
    llc: Lists,
    private: Vec<Lists>,
    reads: u64,
    writes: u64,
    /// Clean lines that became dirty, and dirty ones that were overwritten past the caches.
    dirtied: u64,
    overwritten: u64,
}

impl Naive {
    fn new(machine: Machine, cores: usize) -> Self {
        let lists = |ways| Lists {
            sets: BTreeMap::new(),
            ways,
        };
        let shape = machine.private.unwrap_or(PrivateCache { sets: 1, ways: 1 });
        Self {
            machine,
            llc: lists(machine.ways),
            private: (0..cores).map(|_| lists(shape.ways)).collect(),
            reads: 0,
            writes: 0,
            dirtied: 0,
            overwritten: 0,
        }
    }

    fn set(&self, line: u32) -> (u32, u32) {
        let address = u64::from(line) << 6;
        let mut slice = 0;
        for (bit, of) in EIGHT_SLICES.iter().enumerate() {
            let ones = of.iter().filter(|it| address >> **it & 1 == 1).count() as u32;
            slice |= (ones % 2) << bit;
        }
        let slice = if self.machine.slices == 8 { slice } else { 0 };
        (slice, line % self.machine.sets)
    }

    fn private_set(&self, line: u32) -> (u32, u32) {
        (0, line % self.machine.private.map_or(1, |it| it.sets))
    }

    fn push_llc(&mut self, line: u32, is_dirty: bool, ways: u32) {
        let set = self.set(line);
        if let Some(evicted) = self.llc.push(set, line, is_dirty, ways) {
            self.writes += u64::from(evicted.is_dirty);
        }
    }

    fn access(&mut self, access: Access, core: usize, line: u32) {
        let (set, private_set) = (self.set(line), self.private_set(line));
        let is_private = self.machine.private.is_some();
        match access {
            Access::DeviceRead => {
                let is_held = self.llc.has(set, line) || self.private[core].has(private_set, line);
                self.reads += u64::from(!is_held);
            }
            Access::DeviceWrite | Access::StoreNonTemporal => {
                let allocates = match (access, self.machine.device_writes) {
                    (Access::DeviceWrite, DeviceWrites::Allocate { ways }) => Some(ways),
                    _ => None,
                };
                let was_private = self.private[core].take(private_set, line);
                let (is_before, was) = match self.llc.take(set, line) {
                    Some(held) => (Some(held), Some(held)),
                    None => (None, was_private),
                };
                let was_dirty = was.is_some_and(|held| held.is_dirty);
                match (allocates, is_before) {
                    (None, _) => {
                        self.writes += 1;
                        self.overwritten += u64::from(was_dirty);
                        return;
                    }
                    (Some(_), Some(held)) => {
                        self.llc.sets.get_mut(&set).unwrap().push(Held {
                            is_dirty: true,
                            ..held
                        });
                    }
                    (Some(ways), None) => self.push_llc(line, true, ways),
                }
                self.dirtied += u64::from(!was_dirty);
            }
            Access::Load | Access::Store | Access::StoreLine => {
                let is_store = access != Access::Load;
                let near = if is_private {
                    &mut self.private[core]
                } else {
                    &mut self.llc
                };
                let near_set = if is_private { private_set } else { set };
                if let Some(held) = near.take(near_set, line) {
                    self.dirtied += u64::from(is_store && !held.is_dirty);
                    let held = Held {
                        is_dirty: held.is_dirty || is_store,
                        ..held
                    };
                    return near.sets.get_mut(&near_set).unwrap().push(held);
                }
                let from_llc = if is_private {
                    self.llc.take(set, line)
                } else {
                    None
                };
                self.reads += u64::from(from_llc.is_none() && access != Access::StoreLine);
                let was_dirty = from_llc.is_some_and(|held| held.is_dirty);
                self.dirtied += u64::from(is_store && !was_dirty);
                let is_dirty = was_dirty || is_store;
                if !is_private {
                    self.push_llc(line, is_dirty, u32::MAX);
                } else if let Some(victim) =
                    self.private[core].push(private_set, line, is_dirty, u32::MAX)
                {
                    self.push_llc(victim.line, victim.is_dirty, u32::MAX);
                }
            }
        }
    }
}

const CORES: u16 = 3;

/// A machine small enough that everything in it is evicted.
fn small(slices: u32, device_writes: DeviceWrites, private: Option<PrivateCache>) -> Machine {
    Machine {
        name: "small",
        slices,
        sets: 8,
        ways: 6,
        index: Index::PlainBits,
        replacement: Replacement::Lru,
        device_writes,
        private,
    }
}

fn machines() -> Vec<Machine> {
    let device_writes = [
        DeviceWrites::Allocate { ways: 1 },
        DeviceWrites::Allocate { ways: 2 },
        DeviceWrites::Allocate { ways: 6 },
        DeviceWrites::Bypass,
    ];
    let private = [None, Some(PrivateCache { sets: 4, ways: 2 })];
    let small = device_writes.into_iter().flat_map(|writes| {
        private.map(|private| [1, 8].map(|slices| small(slices, writes, private)))
    });
    let mut machines: Vec<Machine> = small.flatten().collect();
    machines.push(Machine {
        sets: 64,
        ..Machine::haswell(2).with_replacement(Replacement::Lru)
    });
    machines
}

/// A random access to one of some lines, of which a few are used often. A line belongs to one core.
fn draw(rng: &mut Rng, lines: u32) -> (Access, u16, u32) {
    const ACCESSES: [Access; 6] = [
        Access::DeviceWrite,
        Access::DeviceRead,
        Access::Load,
        Access::Store,
        Access::StoreLine,
        Access::StoreNonTemporal,
    ];
    let access = ACCESSES[rng.below(6) as usize];
    let span = if rng.below(2) == 0 { lines } else { lines / 8 };
    let number = rng.below(span);
    // Far apart, so that the slices' hash has many bits to count.
    let line = number % 256 + (number / 256) * 0x0013_0100;
    (access, (number % u32::from(CORES)) as u16, line)
}

#[test]
fn counts_are_those_of_a_naive_model() {
    for (index, machine) in machines().into_iter().enumerate() {
        let mut cache = Cache::new(&machine, CORES, 1);
        let mut naive = Naive::new(machine, CORES.into());
        let mut rng = Rng::new(index as u64);
        let lines = machine.slices * machine.sets * machine.ways * 3;
        for step in 0..150_000 {
            let (access, core, line) = draw(&mut rng, lines);
            cache.access(access, Stage::Metadata, core, line);
            naive.access(access, core.into(), line);
            let counts = cache.counts();
            let sum = |by: &[[u64; 4]; 3]| by.as_flattened().iter().sum::<u64>();
            let found = (sum(&counts.reads), sum(&counts.writes));
            assert_eq!(
                found,
                (naive.reads, naive.writes),
                "step {step}, {machine:?}"
            );
        }
        assert!(naive.reads > 10_000 && naive.writes > 10_000, "{machine:?}");
    }
}

#[test]
fn no_dirty_line_is_lost() {
    for machine in machines() {
        let mut cache = Cache::new(&machine, CORES, 1);
        let mut naive = Naive::new(machine, CORES.into());
        let mut rng = Rng::new(11);
        let mut past_caches = 0;
        for _ in 0..100_000 {
            let (access, core, line) = draw(&mut rng, 2000);
            cache.access(access, Stage::Metadata, core, line);
            naive.access(access, core.into(), line);
            past_caches += u64::from(match access {
                Access::StoreNonTemporal => true,
                Access::DeviceWrite => machine.device_writes == DeviceWrites::Bypass,
                _ => false,
            });
        }
        let written: u64 = cache.counts().writes.as_flattened().iter().sum();
        let evicted = written - past_caches;
        let accounted = evicted + cache.dirty_lines() + naive.overwritten;
        assert_eq!(accounted, naive.dirtied, "{machine:?}");
    }
}

#[test]
fn every_replacement_keeps_a_set_that_fits() {
    for replacement in [Replacement::Lru, Replacement::Srrip, Replacement::Random] {
        let machine = Machine::haswell(2).with_replacement(replacement);
        let mut cache = Cache::new(&machine, 1, 1);
        // 1 MiB, contiguous: at most 8 lines of a set's 20.
        for _ in 0..3 {
            (0..1 << 14).for_each(|line| cache.access(Access::Load, Stage::Metadata, 0, line));
        }
        assert_eq!(
            cache.counts().reads.as_flattened().iter().sum::<u64>(),
            1 << 14
        );
    }
}
