//! Machines: the shape of their caches, and what their devices' writes do there.
//!
//! Only what the model uses. L1, prefetchers, coherence between cores and the bandwidth of DRAM are not modelled.

/// Which line of a set makes room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replacement {
    /// The one touched longest ago.
    Lru,
    /// Re-reference interval prediction of two bits: a new line is at 2, a touched one at 0, and one at 3 leaves.
    Srrip,
    /// Any.
    Random,
}

/// What a line that a device writes does when no cache has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceWrites {
    /// It is put into one of the first ways of the LLC (Intel DDIO, AMD SDCI): of how many, at least one.
    Allocate {
        /// How many.
        ways: u32,
    },
    /// It goes to DRAM, and leaves the caches that have it (DDIO off, AMD without SDCI).
    Bypass,
}

/// A cache that is private to each core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrivateCache {
    /// Sets, a power of two.
    pub sets: u32,
    /// Ways.
    pub ways: u32,
}

/// How an address selects a set of a slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Index {
    /// By the bits right above the line's: 6-16 for 2,048 sets.
    PlainBits,
    /// By a hash of all bits.
    Hash,
}

/// The caches of a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Machine {
    /// What it is called in tables.
    pub name: &'static str,
    /// Slices of the LLC, a power of two up to 32.
    pub slices: u32,
    /// Sets of a slice, a power of two.
    pub sets: u32,
    /// Ways of the LLC, up to 20.
    pub ways: u32,
    /// How the set is chosen.
    pub index: Index,
    /// Which line makes room in the LLC. In private caches it is the one touched longest ago.
    pub replacement: Replacement,
    /// What device writes do.
    pub device_writes: DeviceWrites,
    /// Each core's own cache, of which the LLC holds the victims. `None`: the LLC holds all that private caches hold.
    pub private: Option<PrivateCache>,
}

impl Machine {
    /// The paper's Intel E5-2667v3: 20 MiB that include the private caches. DDIO has 2 of 20 ways by default.
    #[must_use]
    pub const fn haswell(ddio_ways: u32) -> Self {
        Self {
            name: "Intel E5-2667v3",
            slices: 8,
            sets: 2048,
            ways: 20,
            index: Index::PlainBits,
            replacement: Replacement::Srrip,
            device_writes: DeviceWrites::Allocate { ways: ddio_ways },
            private: None,
        }
    }

    /// An Intel since Skylake-SP: 2 MiB for each core, and a LLC of 32 MiB for what leaves them.
    #[must_use]
    pub const fn intel_victim(ddio_ways: u32) -> Self {
        Self {
            name: "Intel, victim LLC",
            slices: 16,
            sets: 2048,
            ways: 16,
            index: Index::PlainBits,
            replacement: Replacement::Srrip,
            device_writes: DeviceWrites::Allocate { ways: ddio_ways },
            private: Some(PrivateCache {
                sets: 2048,
                ways: 16,
            }),
        }
    }

    /// An AMD without cache injection: 1 MiB for each core, 32 MiB of L3 for what leaves them.
    #[must_use]
    pub const fn amd() -> Self {
        Self {
            name: "AMD, no injection",
            index: Index::Hash,
            device_writes: DeviceWrites::Bypass,
            private: Some(PrivateCache {
                sets: 1024,
                ways: 16,
            }),
            ..Self::intel_victim(16)
        }
    }

    /// An AMD whose devices write into so many of the L3's 16 ways (SDCI, Zen 5 and later).
    #[must_use]
    pub const fn amd_sdci(ways: u32) -> Self {
        Self {
            name: "AMD SDCI",
            device_writes: DeviceWrites::Allocate { ways },
            ..Self::amd()
        }
    }

    /// The same with another replacement.
    #[must_use]
    pub const fn with_replacement(self, replacement: Replacement) -> Self {
        Self {
            replacement,
            ..self
        }
    }

    /// Bytes of the LLC.
    #[must_use]
    pub const fn llc_bytes(&self) -> u64 {
        self.slices as u64 * self.sets as u64 * self.ways as u64 * 64
    }
}
