//! The paths, what is fetched over them, and the addresses of both ends.

use std::time::Duration;

use bottleneck::{Disorder, LegPlan, PathPlan};
use testbed::content::Content;

/// Connections of a client, all at once; every second is over IPv6.
pub const CONNECTIONS: u64 = 8;

/// What each connection fetches, in this order: a reply in one segment, one of some segments with a
/// last block that is not full, and one that fills windows.
pub const FILE_BYTES: [u64; 3] = [1, 15_361, 400_000];

/// Prefix lengths on the path.
pub const PREFIX_V4: u8 = 24;
/// See [`PREFIX_V4`].
pub const PREFIX_V6: u8 = 64;

/// Where the server listens.
pub const PORT: u16 = 80;

/// The client's MAC address: one that is administered locally.
pub const CLIENT_MAC: [u8; 6] = [0x02, 0, 0, 0, 0x77, 0x09];
/// Its IPv4 address.
pub const CLIENT_V4: &str = "10.77.0.9";
/// Its IPv6 address.
pub const CLIENT_V6: &str = "fd77::9";

/// The bottleneck, bits a second. Its buffer has no limit: only what is planned is lost.
const RATE_BITS: u64 = 200_000_000;

/// One-way delay, each way.
const DELAY: Duration = Duration::from_millis(5);

/// A frame that is held back is overtaken by what is sent in this time.
const REORDER_DELAY: Duration = Duration::from_millis(4);

/// What a path does to frames, both ways the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scenario {
    /// Its name in checks and tables.
    pub name: &'static str,
    /// Frames in a million that are lost.
    pub loss_ppm: u32,
    /// What happens to the order and the number of the others.
    pub disorder: Disorder,
    /// What all of that is drawn from.
    pub seed: u64,
}

/// All of them.
pub const SCENARIOS: [Scenario; 4] = [
    Scenario {
        name: "no faults",
        loss_ppm: 0,
        disorder: Disorder::NONE,
        seed: 1,
    },
    Scenario {
        name: "1 % loss",
        loss_ppm: 10_000,
        disorder: Disorder::NONE,
        seed: 2,
    },
    Scenario {
        name: "5 % loss",
        loss_ppm: 50_000,
        disorder: Disorder::NONE,
        seed: 3,
    },
    Scenario {
        name: "1 % loss, 2 % reordered, 2 % doubled",
        loss_ppm: 10_000,
        disorder: Disorder {
            reorder_ppm: 20_000,
            reorder_delay: REORDER_DELAY,
            duplicate_ppm: 20_000,
            ..Disorder::NONE
        },
        seed: 4,
    },
];

impl Scenario {
    /// The path; the two directions draw from seeds of their own.
    #[must_use]
    pub const fn plan(&self) -> PathPlan {
        PathPlan {
            forth: self.leg(self.seed * 2),
            back: self.leg(self.seed * 2 + 1),
        }
    }

    const fn leg(&self, seed: u64) -> LegPlan {
        LegPlan {
            rate_bits: RATE_BITS,
            buffer_bytes: u64::MAX,
            delay: DELAY,
            delay_noise: Duration::ZERO,
            loss_ppm: self.loss_ppm,
            seed,
            disorder: self.disorder,
        }
    }
}

/// The file of a size. Seeds differ, so no two files share a sequence of bytes.
#[must_use]
pub const fn content(size_bytes: u64) -> Content {
    Content::new(size_bytes + 1, size_bytes)
}

/// The name of the file of a size.
#[must_use]
pub fn file_name(size_bytes: u64) -> String {
    format!("{size_bytes}.bin")
}

/// Body bytes that a client compares in all.
#[must_use]
pub fn total_bytes() -> u64 {
    FILE_BYTES.iter().sum::<u64>() * CONNECTIONS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_of_directions_and_scenarios_differ() {
        let mut seeds: Vec<u64> = SCENARIOS
            .iter()
            .flat_map(|it| [it.plan().forth.seed, it.plan().back.seed])
            .collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 2 * SCENARIOS.len());
    }

    #[test]
    fn a_frame_that_is_held_back_is_overtaken() {
        // In that time the bottleneck lets more than three frames pass: more than the threshold of
        // duplicate ACKs.
        let millis = u64::try_from(REORDER_DELAY.as_millis()).unwrap();
        assert!(RATE_BITS / 8 / 1_000 * millis > 3 * 1_514);
    }
}
