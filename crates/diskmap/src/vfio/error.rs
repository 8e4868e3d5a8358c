//! Why a controller cannot be used by VFIO, and what to do about it.

use super::PciAddress;
use crate::nvme::{ControllerError, NvmeError};

/// Why there is no controller or queue pair; each message of a platform's ends in what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VfioError {
    /// No PCI address.
    #[error("{text:?} is no PCI address: it looks like 0000:01:00.0 (ls /sys/bus/pci/devices)")]
    Address {
        /// As given.
        text: String,
    },
    /// Another processor than those whose memory order was thought of.
    #[error("NVMe controllers in user space are for x86-64 only: use the kernel's driver")]
    Architecture,
    /// Nothing there.
    #[error("{address}: no such PCI device; ls /sys/bus/pci/devices lists all")]
    NoDevice {
        /// As given.
        address: PciAddress,
    },
    /// Something else there.
    #[error("{address} is no NVMe controller: atlas doctor lists those there are")]
    NotNvme {
        /// As given.
        address: PciAddress,
    },
    /// Another driver has it.
    #[error("{address} belongs to the driver {driver}: atlas nvme bind {address}")]
    NotBound {
        /// As given.
        address: PciAddress,
        /// Its name, or "none".
        driver: String,
    },
    /// Nothing stops it from accessing all memory.
    #[error(
        "{address}: no IOMMU stands between it and the host's memory: switch the IOMMU on in the \
         firmware, and boot with intel_iommu=on or amd_iommu=on"
    )]
    NoIommu {
        /// As given.
        address: PciAddress,
    },
    /// The kernel has no VFIO for this IOMMU.
    #[error(
        "the kernel has no VFIO with an IOMMU of type 1 version 2: modprobe vfio-pci \
         vfio_iommu_type1"
    )]
    NoVfio,
    /// The group's file cannot be opened.
    #[error("/dev/vfio/{group} cannot be opened (errno {errno}): {}", open_remedy(*errno))]
    GroupFile {
        /// Number of the IOMMU group.
        group: u32,
        /// What the kernel said.
        errno: i32,
    },
    /// Other devices of the group are still in use by the host.
    #[error(
        "IOMMU group {group} of {address} is not viable: give {neighbours} to vfio-pci, too, or put \
         the controller in another slot"
    )]
    NotViable {
        /// As given.
        address: PciAddress,
        /// Number of the IOMMU group.
        group: u32,
        /// The other devices.
        neighbours: String,
    },
    /// Its interrupts could be made to hit anything.
    #[error(
        "the IOMMU does not remap interrupts, so a device could forge them: switch interrupt \
         remapping on in the firmware"
    )]
    NoInterruptRemapping,
    /// Its registers or its pages are not such as the driver can use.
    #[error("{address}: {what}: use the kernel's driver (atlas nvme unbind {address})")]
    Unsupported {
        /// As given.
        address: PciAddress,
        /// What is missing.
        what: &'static str,
    },
    /// Memory that a device accesses is locked.
    #[error(
        "{length_bytes} bytes cannot be locked for the controller: raise RLIMIT_MEMLOCK (ulimit -l, \
         LimitMEMLOCK=) by as much, or grant CAP_IPC_LOCK"
    )]
    LockedMemory {
        /// As much as was to be locked.
        length_bytes: u64,
    },
    /// As many mappings as the kernel lets a container have.
    #[error(
        "the kernel maps no more memory for the controller: raise dma_entry_limit of the module \
         vfio_iommu_type1"
    )]
    MappingCount,
    /// No bus addresses.
    #[error("the IOMMU has no addresses for {length_bytes} bytes: configure fewer slots")]
    Addresses {
        /// As much as was to be mapped.
        length_bytes: u64,
    },
    /// Something that should not fail.
    #[error("{what} failed (errno {errno}): see dmesg")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        errno: i32,
    },
    /// The controller itself.
    #[error(transparent)]
    Controller(#[from] ControllerError),
    /// The queue pair.
    #[error(transparent)]
    QueuePair(#[from] NvmeError),
}

const fn open_remedy(errno: i32) -> &'static str {
    match errno {
        libc::EBUSY => "another process uses the controller",
        libc::EACCES | libc::EPERM => "run as root, or make the file the user's (chown)",
        _ => "modprobe vfio-pci, and see dmesg",
    }
}

/// What [`super::sys::map`] failed of.
pub(super) fn of_map(errno: i32, length_bytes: u64) -> VfioError {
    match errno {
        libc::ENOMEM => VfioError::LockedMemory { length_bytes },
        libc::ENOSPC => VfioError::MappingCount,
        errno => VfioError::System {
            what: "mapping memory for the controller",
            errno,
        },
    }
}

/// What choosing the IOMMU failed of.
pub(super) fn of_set_iommu(errno: i32) -> VfioError {
    match errno {
        libc::EPERM => VfioError::NoInterruptRemapping,
        libc::ENODEV | libc::EINVAL | libc::ENOTTY => VfioError::NoVfio,
        errno => VfioError::System {
            what: "choosing the IOMMU",
            errno,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_to_do() {
        let group = |errno| VfioError::GroupFile { group: 7, errno }.to_string();
        assert!(group(libc::EBUSY).contains("another process"));
        assert!(group(libc::EACCES).contains("chown"));
        assert!(group(libc::ENOENT).contains("modprobe vfio-pci"));
        let mapped = |errno| of_map(errno, 8192).to_string();
        assert!(mapped(libc::ENOMEM).contains("8192 bytes"));
        assert!(mapped(libc::ENOMEM).contains("RLIMIT_MEMLOCK"));
        assert!(mapped(libc::ENOSPC).contains("dma_entry_limit"));
        assert!(mapped(libc::EIO).contains("errno 5"));
        assert_eq!(of_set_iommu(libc::EPERM), VfioError::NoInterruptRemapping);
        assert_eq!(of_set_iommu(libc::ENODEV), VfioError::NoVfio);
        assert!(of_set_iommu(libc::EIO).to_string().contains("errno 5"));
    }
}
