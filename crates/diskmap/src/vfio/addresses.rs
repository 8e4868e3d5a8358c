//! Bus addresses: which are taken, and where what is to be mapped next goes.
//!
//! Mappings lie in ranges that the IOMMU maps, at multiples of 2 MiB, so that huge pages can be mapped
//! as such, and with addresses between them that nothing is mapped at: a controller that goes beyond
//! one of them is stopped. It refuses address 0, which controllers may take for "none". Bounded by
//! what there are mappings of.

/// Mappings begin at multiples of this.
const ALIGNMENT_BYTES: u64 = 2 << 20;
/// Least unmapped bytes behind each.
const GAP_BYTES: u64 = 1 << 20;
/// Below this nothing is mapped.
const FIRST_ADDRESS: u64 = ALIGNMENT_BYTES;
/// Where the kernel does not say which addresses can be mapped: behind the first 4 GiB, in which
/// interrupts have their addresses, and within what all IOMMUs can map (39 bits).
const USUAL_RANGE: (u64, u64) = (1 << 32, (1 << 39) - 1);

/// See the module.
#[derive(Debug)]
pub(super) struct Addresses {
    /// First and last address of each range, ascending.
    ranges: Vec<(u64, u64)>,
    /// Start and length of what is mapped, ascending.
    taken: Vec<(u64, u64)>,
}

impl Addresses {
    pub(super) fn new(ranges: Option<Vec<(u64, u64)>>) -> Self {
        let mut ranges = ranges.unwrap_or_else(|| vec![USUAL_RANGE]);
        ranges.sort_unstable();
        Self {
            ranges,
            taken: Vec::new(),
        }
    }

    /// Takes addresses for `length_bytes`, at least one; `None` if there is no room.
    pub(super) fn take(&mut self, length_bytes: u64) -> Option<u64> {
        let start = self.find(length_bytes)?;
        let index = self.taken.partition_point(|(taken, _)| *taken < start);
        self.taken.insert(index, (start, length_bytes));
        Some(start)
    }

    fn find(&self, length_bytes: u64) -> Option<u64> {
        self.ranges.iter().find_map(|&(first, last)| {
            let mut start = first.max(FIRST_ADDRESS);
            start = start.checked_next_multiple_of(ALIGNMENT_BYTES)?;
            for &(taken, taken_bytes) in &self.taken {
                let end = start.checked_add(length_bytes)?.checked_add(GAP_BYTES)?;
                // Both ends were checked when it was taken.
                let behind = taken + taken_bytes + GAP_BYTES;
                if taken < end && start < behind {
                    start = behind.checked_next_multiple_of(ALIGNMENT_BYTES)?;
                }
            }
            let end = start.checked_add(length_bytes)?.checked_add(GAP_BYTES)?;
            (end - 1 <= last).then_some(start)
        })
    }

    /// Gives addresses back that begin there.
    pub(super) fn give_back(&mut self, start: u64) {
        self.taken.retain(|(taken, _)| *taken != start);
    }

    /// Mappings there are.
    pub(super) fn count(&self) -> usize {
        self.taken.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn mappings_do_not_touch_and_room_is_used_again() {
        let mut addresses = Addresses::new(Some(vec![(0, 16 * MIB - 1)]));
        let first = addresses.take(4096).expect("room");
        assert_eq!(first, FIRST_ADDRESS, "not at 0");
        let second = addresses.take(3 * MIB).expect("room");
        assert_eq!(second, 4 * MIB);
        let third = addresses.take(MIB).expect("room");
        assert_eq!(third, 8 * MIB, "with a gap behind the second");
        addresses.give_back(second);
        assert_eq!(addresses.count(), 2);
        assert_eq!(addresses.take(3 * MIB), Some(second));
        addresses.give_back(second);
        assert_eq!(
            addresses.take(3 * MIB + 1),
            Some(10 * MIB),
            "too long there"
        );
    }

    #[test]
    fn a_mapping_fits_its_range_to_the_last_byte() {
        let range = |last| Addresses::new(Some(vec![(0, last)]));
        assert_eq!(range(4 * MIB - 1).take(MIB), Some(2 * MIB));
        assert_eq!(range(4 * MIB - 2).take(MIB), None);
        assert_eq!(Addresses::new(Some(Vec::new())).take(1), None);
        assert_eq!(range(u64::MAX).take(u64::MAX), None);
        assert_eq!(range(u64::MAX).take(u64::MAX - 3 * MIB), Some(2 * MIB));
    }

    #[test]
    fn reserved_addresses_are_left_out() {
        // The second range is too short, and the first given comes last.
        let ranges = vec![
            (1 << 32, u64::MAX),
            (0, 3 * MIB),
            (0xfee0_0000, 0xfeef_ffff),
        ];
        let mut addresses = Addresses::new(Some(ranges));
        assert_eq!(addresses.take(MIB), Some(1 << 32));
        let mut addresses = Addresses::new(None);
        assert_eq!(addresses.take(MIB), Some(USUAL_RANGE.0));
    }
}
