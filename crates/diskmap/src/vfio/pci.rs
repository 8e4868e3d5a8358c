//! PCI devices as `/sys` shows them: which driver has one, and which IOMMU group it is in.
//!
//! It refuses what is no NVMe controller, what another driver has, and what no IOMMU keeps away from the
//! host's memory. Bounded by: a few small files of each device.
//!
//! Reading first: Documentation/driver-api/vfio.rst, Documentation/ABI/testing/sysfs-kernel-iommu_groups.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::{VfioError, sys};

/// The driver that hands a device to user space.
const VFIO_PCI: &str = "vfio-pci";
/// PCI class of an NVM Express I/O controller (PCI Code and ID Assignment: base 01h, sub 08h, 02h).
const NVME_CLASS: &str = "0x010802";
/// What the kernel calls a group that no IOMMU is behind (CONFIG_VFIO_NOIOMMU).
const NO_IOMMU_GROUP: &str = "vfio-noiommu";
/// Most devices of a group that an error names.
const NEIGHBOURS_MAX: usize = 8;

/// Domain, bus, device and function of a PCI device, such as `0000:01:00.0`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl FromStr for PciAddress {
    type Err = VfioError;

    /// As `/sys/bus/pci/devices` has it: hexadecimal, a domain of four to eight digits.
    fn from_str(text: &str) -> Result<Self, VfioError> {
        parse(text).ok_or_else(|| VfioError::Address {
            text: text.to_owned(),
        })
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let hexadecimal = |text: &str, digits: std::ops::RangeInclusive<usize>| {
        let is_sound =
            digits.contains(&text.len()) && text.bytes().all(|it| it.is_ascii_hexdigit());
        u32::from_str_radix(text, 16).ok().filter(|_| is_sound)
    };
    let address = PciAddress {
        domain: hexadecimal(domain, 4..=8)?,
        bus: u8::try_from(hexadecimal(bus, 2..=2)?).ok()?,
        device: u8::try_from(hexadecimal(device, 2..=2)?).ok()?,
        function: u8::try_from(hexadecimal(function, 1..=1)?).ok()?,
    };
    (address.device < 32 && address.function < 8).then_some(address)
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// The files of a machine, under a root that tests choose.
#[derive(Clone, Debug)]
pub(super) struct Host {
    root: PathBuf,
}

impl Host {
    pub(super) fn this() -> Self {
        Self {
            root: PathBuf::from("/"),
        }
    }

    /// The file of a group that VFIO has, once everything shows that it may be opened.
    pub(super) fn find_group(&self, address: PciAddress) -> Result<Group, VfioError> {
        let device = self.root.join(format!("sys/bus/pci/devices/{address}"));
        let class = fs::read_to_string(device.join("class"));
        let class = class.map_err(|_| VfioError::NoDevice { address })?;
        if class.trim() != NVME_CLASS {
            return Err(VfioError::NotNvme { address });
        }
        let driver = link_name(&device.join("driver"));
        if driver.as_deref() != Some(VFIO_PCI) {
            return Err(VfioError::NotBound {
                address,
                driver: driver.unwrap_or_else(|| "none".to_owned()),
            });
        }
        let number = link_name(&device.join("iommu_group")).and_then(|name| name.parse().ok());
        let Some(number) = number else {
            return Err(VfioError::NoIommu { address });
        };
        let directory = self.root.join(format!("sys/kernel/iommu_groups/{number}"));
        let name = fs::read_to_string(directory.join("name")).unwrap_or_default();
        let without = self.root.join(format!("dev/vfio/noiommu-{number}"));
        if name.trim() == NO_IOMMU_GROUP || without.exists() {
            return Err(VfioError::NoIommu { address });
        }
        Ok(Group {
            number,
            file: self.root.join(format!("dev/vfio/{number}")),
            container: self.root.join("dev/vfio/vfio"),
            members: directory.join("devices"),
        })
    }
}

/// An IOMMU group: the devices that an IOMMU cannot tell apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Group {
    pub(super) number: u32,
    pub(super) file: PathBuf,
    pub(super) container: PathBuf,
    members: PathBuf,
}

impl Group {
    /// Whether this process may open it, without opening it: a process that has it would have to give it
    /// up first.
    pub(super) fn check_rights(&self) -> Result<(), VfioError> {
        sys::check_access(&self.container).map_err(|_| VfioError::NoVfio)?;
        let group = self.number;
        sys::check_access(&self.file).map_err(|errno| VfioError::GroupFile { group, errno })
    }

    /// Its other devices, sorted, for an error.
    pub(super) fn neighbours(&self, address: PciAddress) -> String {
        let entries = fs::read_dir(&self.members).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let own = address.to_string();
        let mut others: Vec<String> = names.filter(|name| *name != own).collect();
        others.sort();
        others.truncate(NEIGHBOURS_MAX);
        others.join(", ")
    }
}

/// The last part of what a link points to.
fn link_name(link: &Path) -> Option<String> {
    let target = fs::read_link(link).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    const DEVICE: &str = "sys/bus/pci/devices/0000:01:00.0";

    fn address() -> PciAddress {
        "0000:01:00.0".parse().expect("a PCI address")
    }

    fn write(root: &TempDir, path: &str, text: &str) {
        let file = root.path().join(path);
        fs::create_dir_all(file.parent().expect("a folder")).expect("room");
        fs::write(file, text).expect("room");
    }

    fn link(root: &TempDir, path: &str, target: &str) {
        let place = root.path().join(path);
        if place.is_symlink() {
            fs::remove_file(&place).expect("our own link");
        }
        symlink(target, place).expect("room");
    }

    /// A machine with a controller that VFIO has, in group 7.
    fn machine() -> TempDir {
        let root = tempfile::tempdir().expect("a directory");
        write(&root, &format!("{DEVICE}/class"), "0x010802\n");
        link(&root, &format!("{DEVICE}/driver"), "../../drivers/vfio-pci");
        let group = "../../../../kernel/iommu_groups/7";
        link(&root, &format!("{DEVICE}/iommu_group"), group);
        for member in ["0000:01:00.0", "0000:01:00.1", "0000:00:01.0"] {
            write(
                &root,
                &format!("sys/kernel/iommu_groups/7/devices/{member}"),
                "",
            );
        }
        root
    }

    #[test]
    fn rights_are_checked_without_opening() {
        let root = machine();
        let group = find(&root).expect("VFIO has it");
        assert_eq!(group.check_rights(), Err(VfioError::NoVfio));
        write(&root, "dev/vfio/vfio", "");
        let (number, errno) = (group.number, libc::ENOENT);
        let missing = VfioError::GroupFile {
            group: number,
            errno,
        };
        assert_eq!(group.check_rights(), Err(missing));
        write(&root, "dev/vfio/7", "");
        assert_eq!(group.check_rights(), Ok(()));
    }

    fn find(root: &TempDir) -> Result<Group, VfioError> {
        let host = Host {
            root: root.path().to_owned(),
        };
        host.find_group(address())
    }

    #[test]
    fn addresses_are_read_as_the_kernel_writes_them() {
        for text in ["0000:01:00.0", "10000:e1:1f.7", "ffffffff:ff:00.0"] {
            let address: PciAddress = text.parse().expect("a PCI address");
            assert_eq!(address.to_string(), text);
        }
        for text in [
            "",
            "01:00.0",
            "000:01:00.0",
            "123456789:01:00.0",
            "0000:1:00.0",
            "0000:01:20.0",
            "0000:01:00.8",
            "0000:01:00",
            "0000:01:00.00",
            "0000:+1:00.0",
            "0000:01:00.0/..",
        ] {
            let error = text.parse::<PciAddress>().expect_err(text);
            assert!(error.to_string().contains("0000:01:00.0"), "{error}");
        }
    }

    #[test]
    fn the_group_of_a_controller_is_found() {
        let root = machine();
        let group = find(&root).expect("all is well");
        assert_eq!(group.number, 7);
        assert_eq!(group.file, root.path().join("dev/vfio/7"));
        assert_eq!(group.neighbours(address()), "0000:00:01.0, 0000:01:00.1");
    }

    #[test]
    fn what_is_no_nvme_controller_of_ours_is_refused() {
        let root = machine();
        link(&root, &format!("{DEVICE}/driver"), "../../drivers/nvme");
        let error = find(&root).expect_err("another driver has it");
        assert!(error.to_string().contains("atlas nvme bind 0000:01:00.0"));
        assert!(matches!(error, VfioError::NotBound { driver, .. } if driver == "nvme"));
        fs::remove_file(root.path().join(DEVICE).join("driver")).expect("our own link");
        let error = find(&root).expect_err("no driver has it");
        assert!(matches!(error, VfioError::NotBound { driver, .. } if driver == "none"));
        write(&root, &format!("{DEVICE}/class"), "0x020000\n");
        let error = find(&root).expect_err("a NIC");
        assert!(matches!(error, VfioError::NotNvme { .. }));
        let none = tempfile::tempdir().expect("a directory");
        let error = find(&none).expect_err("no such device");
        assert!(matches!(error, VfioError::NoDevice { .. }));
    }

    #[test]
    fn a_group_without_an_iommu_is_refused() {
        let root = machine();
        write(&root, "dev/vfio/noiommu-7", "");
        let error = find(&root).expect_err("only without an IOMMU");
        assert!(matches!(error, VfioError::NoIommu { .. }));
        fs::remove_file(root.path().join("dev/vfio/noiommu-7")).expect("our own file");
        find(&root).expect("all is well again");
        write(&root, "sys/kernel/iommu_groups/7/name", "vfio-noiommu\n");
        let error = find(&root).expect_err("the group says so");
        assert!(error.to_string().contains("intel_iommu=on"), "{error}");
        fs::remove_file(root.path().join(DEVICE).join("iommu_group")).expect("our own link");
        let error = find(&root).expect_err("no group");
        assert!(matches!(error, VfioError::NoIommu { .. }));
    }
}
