//! Memory as the emulated controller sees it: what was mapped for it, and nothing else.

/// Memory that was mapped.
#[derive(Debug)]
struct Region {
    start: u64,
    bytes: Vec<u8>,
    is_mapped: bool,
}

/// An access that an IOMMU would stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BusFault {
    pub(super) address: u64,
}

/// Everything that was mapped.
#[derive(Debug, Default)]
pub(super) struct Bus {
    regions: Vec<Region>,
}

/// Where the first mapping is.
const FIRST_ADDRESS: u64 = 0x10_0000;
/// Unmapped between mappings.
const GAP_BYTES: u64 = 0x1_0000;

impl Bus {
    /// Maps zeroes; returns the mapping's number and its address, a multiple of 4 KiB.
    pub(super) fn map(&mut self, length_bytes: usize) -> (usize, u64) {
        let end = |region: &Region| region.start + region.bytes.len() as u64;
        let last = self.regions.last().map_or(FIRST_ADDRESS, end);
        let start = (last + GAP_BYTES).next_multiple_of(4096);
        self.regions.push(Region {
            start,
            bytes: vec![0; length_bytes],
            is_mapped: true,
        });
        (self.regions.len() - 1, start)
    }

    pub(super) fn unmap(&mut self, region: usize) {
        let region = &mut self.regions[region];
        region.is_mapped = false;
        region.bytes.fill(0);
    }

    /// The processor's view of a mapping.
    pub(super) fn region(&mut self, region: usize) -> &mut [u8] {
        &mut self.regions[region].bytes
    }

    /// The controller's view of `length_bytes` from `address` on.
    pub(super) fn access(
        &mut self,
        address: u64,
        length_bytes: usize,
    ) -> Result<&mut [u8], BusFault> {
        let fault = BusFault { address };
        let containing = self.regions.iter_mut().find_map(|region| {
            let offset = usize::try_from(address.checked_sub(region.start)?).ok()?;
            let end = offset.checked_add(length_bytes)?;
            let is_inside = region.is_mapped && end <= region.bytes.len();
            is_inside.then(|| &mut region.bytes[offset..end])
        });
        containing.ok_or(fault)
    }
}
