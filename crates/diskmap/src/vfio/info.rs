//! What the kernel says of devices, regions and IOMMUs: structures with a chain of capabilities behind
//! them (linux/vfio.h, "INFO capability chains").
//!
//! It refuses a chain that leads out of the answer or goes on for ever, by taking what came before.
//! Bounded by [`CAPABILITIES_MAX`].

/// Most capabilities of a chain that are looked at.
const CAPABILITIES_MAX: usize = 32;

/// `VFIO_DEVICE_FLAGS_RESET`.
const DEVICE_RESET: u32 = 1;
/// `VFIO_DEVICE_FLAGS_PCI`.
const DEVICE_PCI: u32 = 2;
/// `VFIO_REGION_INFO_FLAG_READ | _WRITE | _MMAP`.
const REGION_MAPPABLE: u32 = 7;
/// `VFIO_REGION_INFO_FLAG_CAPS`.
const REGION_HAS_CAPABILITIES: u32 = 8;
/// `VFIO_REGION_INFO_CAP_SPARSE_MMAP`.
const SPARSE_MMAP: u16 = 1;
/// `VFIO_IOMMU_INFO_PGSIZES`.
const IOMMU_PAGE_SIZES: u32 = 1;
/// `VFIO_IOMMU_INFO_CAPS`.
const IOMMU_HAS_CAPABILITIES: u32 = 2;
/// `VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE`.
const IOVA_RANGE: u16 = 1;

/// Of a device (`struct vfio_device_info`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DeviceInfo {
    pub(super) is_pci: bool,
    pub(super) can_reset: bool,
}

impl DeviceInfo {
    pub(super) fn parse(bytes: &[u8]) -> Self {
        let flags = u32_at(bytes, 4).unwrap_or(0);
        Self {
            is_pci: flags & DEVICE_PCI != 0,
            can_reset: flags & DEVICE_RESET != 0,
        }
    }
}

/// Of a region (`struct vfio_region_info`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RegionInfo {
    /// Where it is in the device's descriptor.
    pub(super) offset_bytes: u64,
    /// How much of it can be mapped, from its start on; 0 if nothing.
    pub(super) mappable_bytes: u64,
}

impl RegionInfo {
    pub(super) fn parse(bytes: &[u8]) -> Self {
        let flags = u32_at(bytes, 4).unwrap_or(0);
        let size = u64_at(bytes, 16).unwrap_or(0);
        let is_mappable = flags & REGION_MAPPABLE == REGION_MAPPABLE;
        let mut mappable_bytes = if is_mappable { size } else { 0 };
        // Older kernels let nobody map the page with the table of interrupts.
        let areas = if flags & REGION_HAS_CAPABILITIES != 0 {
            capability(bytes, u32_at(bytes, 12), SPARSE_MMAP)
        } else {
            None
        };
        if let Some(areas) = areas {
            let first = ranges(areas).find(|(start, _)| *start == 0);
            mappable_bytes = mappable_bytes.min(first.map_or(0, |(_, size)| size));
        }
        Self {
            offset_bytes: u64_at(bytes, 24).unwrap_or(0),
            mappable_bytes,
        }
    }
}

/// Of an IOMMU (`struct vfio_iommu_type1_info`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct IommuInfo {
    /// The sizes of pages that it maps, a bit each; `None` if the kernel does not say.
    pub(super) page_sizes: Option<u64>,
    /// First and last bus address of what can be mapped; `None` if the kernel does not say (before 5.4).
    pub(super) ranges: Option<Vec<(u64, u64)>>,
}

impl IommuInfo {
    pub(super) fn parse(bytes: &[u8]) -> Self {
        let flags = u32_at(bytes, 4).unwrap_or(0);
        let page_sizes = u64_at(bytes, 8).filter(|_| flags & IOMMU_PAGE_SIZES != 0);
        let found = if flags & IOMMU_HAS_CAPABILITIES != 0 {
            capability(bytes, u32_at(bytes, 16), IOVA_RANGE)
        } else {
            None
        };
        Self {
            page_sizes,
            ranges: found.map(|found| ranges(found).collect()),
        }
    }
}

/// The capability with this identifier, from its header on.
fn capability(bytes: &[u8], first: Option<u32>, wanted: u16) -> Option<&[u8]> {
    let mut next = first?;
    for _ in 0..CAPABILITIES_MAX {
        if next == 0 {
            return None;
        }
        let capability = bytes.get(usize::try_from(next).ok()?..)?;
        let id = capability.get(..2)?;
        if u16::from_ne_bytes([id[0], id[1]]) == wanted {
            return Some(capability);
        }
        next = u32_at(capability, 4)?;
    }
    None
}

/// The pairs of 64 bits of a capability: its header is followed by their number and four bytes.
fn ranges(capability: &[u8]) -> impl Iterator<Item = (u64, u64)> + '_ {
    let count = u32_at(capability, 8).unwrap_or(0) as usize;
    let pairs = capability.get(16..).unwrap_or_default().chunks_exact(16);
    let pair = |pair: &[u8]| Some((u64_at(pair, 0)?, u64_at(pair, 8)?));
    pairs.take(count).filter_map(pair)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of 32 bits, as the kernel writes them.
    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn a_device_says_what_it_is() {
        let parse = |flags| DeviceInfo::parse(&words(&[20, flags, 9, 5, 0]));
        let (is_pci, can_reset) = (true, true);
        assert_eq!(parse(3), DeviceInfo { is_pci, can_reset });
        assert!(!parse(2).can_reset && !parse(1).is_pci);
        assert!(!DeviceInfo::parse(&[]).is_pci);
    }

    #[test]
    fn a_region_is_mapped_as_far_as_the_kernel_lets_us() {
        let region = |flags, capability: &[u32]| {
            let head = [32, flags, 0, 32, 0x4000, 0, 0x10_0000, 1];
            RegionInfo::parse(&words(&[&head[..], capability].concat()))
        };
        let whole = region(7, &[]);
        assert_eq!(whole.mappable_bytes, 0x4000);
        assert_eq!(whole.offset_bytes, 0x1_0010_0000);
        assert_eq!(region(3, &[]).mappable_bytes, 0, "not to be mapped");
        assert_eq!(region(5, &[]).mappable_bytes, 0, "not to be written");
        // Two areas around a page, which is the table of interrupts.
        let sparse = [0x1_0001, 0, 2, 0, 0x3000, 0, 0x1000, 0, 0, 0, 0x2000, 0];
        assert_eq!(region(15, &sparse).mappable_bytes, 0x2000);
        assert_eq!(region(7, &sparse).mappable_bytes, 0x4000, "no such flag");
        assert_eq!(region(15, &sparse[..8]).mappable_bytes, 0);
        // Another capability, and none behind it.
        assert_eq!(region(15, &[0x1_0002, 0]).mappable_bytes, 0x4000);
    }

    #[test]
    fn an_iommu_says_which_addresses_it_maps() {
        let iommu = |flags, first, rest: &[u32]| {
            let head = [24, flags, 0x4020_1000, 0, first, 0];
            IommuInfo::parse(&words(&[&head[..], rest].concat()))
        };
        let [low, high] = [(0, 0xfedf_ffff), (0xfef0_0000, 0x7f_ffff_ffff)];
        let chain = [
            // Capability 3, and behind it capability 1 at byte 36.
            0x1_0003,
            36,
            0xffff, //
            0x1_0001,
            0,
            2,
            0, //
            0,
            0,
            0xfedf_ffff,
            0, //
            0xfef0_0000,
            0,
            0xffff_ffff,
            0x7f,
        ];
        let info = iommu(3, 24, &chain);
        assert_eq!(info.page_sizes, Some(0x4020_1000));
        assert_eq!(info.ranges, Some(vec![low, high]));
        assert_eq!(
            iommu(3, 24, &chain[..11]).ranges,
            Some(vec![low]),
            "cut off"
        );
        assert_eq!(iommu(1, 24, &chain).ranges, None);
        assert_eq!(iommu(2, 24, &chain).page_sizes, None);
    }

    #[test]
    fn a_chain_that_leads_nowhere_or_in_a_circle_ends() {
        let iommu = |first, rest: &[u32]| {
            let head = [24, 2, 0, 0, first, 0];
            IommuInfo::parse(&words(&[&head[..], rest].concat())).ranges
        };
        assert_eq!(iommu(0, &[]), None);
        assert_eq!(iommu(u32::MAX, &[]), None);
        assert_eq!(iommu(24, &[0x1_0007, 24]), None, "itself");
        assert_eq!(iommu(24, &[0x1_0007]), None, "cut off");
    }
}
