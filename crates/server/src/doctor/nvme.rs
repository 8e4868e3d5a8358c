//! NVMe controllers: what holds each, and how one is given to a driver in user space (VFIO) and back.
//!
//! `bind` refuses a controller whose namespaces the host uses (mounted, swap, part of another block
//! device, opened exclusively), one that no IOMMU protects the host from, and one whose IOMMU group has other
//! devices. `unbind` refuses one that a program uses. The kernel's driver is never asked to force anything.
//! Bounded by the controllers there are.
//!
//! Reading first: Documentation/ABI/testing/sysfs-bus-pci (`driver_override`), Documentation/driver-api/vfio.rst.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;

use super::Finding;
use super::tree::Tree;
use crate::failure::Failure;

/// The driver in user space's kernel half.
const VFIO: &str = "vfio-pci";
/// The kernel's own driver.
const NVME: &str = "nvme";
/// PCI class of an NVM Express I/O controller (PCI Code and ID Assignment: base 01h, sub 08h, 02h).
const CLASS: &str = "0x010802";
/// PCI base class of bridges, which share a group without harm.
const BRIDGE_CLASS: &str = "0x06";

const PCI: &str = "sys/bus/pci/devices";

/// A controller on the PCI bus.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Controller {
    /// Such as `0000:01:00.0`.
    address: String,
    driver: Option<String>,
    iommu_group: Option<String>,
    /// As the kernel's driver names it, such as `nvme0`.
    name: Option<String>,
}

impl Controller {
    fn all(tree: &Tree) -> Vec<Self> {
        let addresses = tree.names(PCI).into_iter();
        addresses
            .filter_map(|address| Self::at(tree, &address))
            .collect()
    }

    /// The device of this PCI address, if it is an NVMe controller.
    fn at(tree: &Tree, address: &str) -> Option<Self> {
        let device = format!("{PCI}/{address}");
        (tree.read(format!("{device}/class"))? == CLASS).then(|| Self {
            driver: tree.link_name(format!("{device}/driver")),
            iommu_group: tree.link_name(format!("{device}/iommu_group")),
            name: tree.names(format!("{device}/nvme")).into_iter().next(),
            address: address.to_owned(),
        })
    }

    /// By its PCI address or by its name.
    fn find(tree: &Tree, text: &str) -> Result<Self, Failure> {
        let text = text.strip_prefix("/dev/").unwrap_or(text);
        let all = Self::all(tree);
        let is_meant = |it: &&Self| it.address == text || it.name.as_deref() == Some(text);
        all.iter().find(is_meant).cloned().ok_or_else(|| {
            let known: Vec<_> = all.iter().map(|it| it.address.as_str()).collect();
            let known = match known.as_slice() {
                [] => "there is none on this machine".to_owned(),
                known => format!("choose from {}", known.join(", ")),
            };
            Failure::refused(
                format!("{text}: no NVMe controller of that PCI address or name"),
                known,
            )
        })
    }

    /// The block devices of its namespaces, such as `nvme0n1`. One that several controllers reach is
    /// below each of them as a path, such as `nvme0c1n1`; what is mounted is `nvme0n1`.
    fn namespaces(&self, tree: &Tree) -> Vec<String> {
        let Some(name) = &self.name else {
            return Vec::new();
        };
        let below = tree.names(format!("{PCI}/{}/nvme/{name}", self.address));
        let mut namespaces: Vec<String> = below.iter().filter_map(|it| namespace(it)).collect();
        namespaces.dedup();
        namespaces
    }

    /// Why the host needs it; `None` if it does not.
    fn use_of(&self, tree: &Tree) -> Option<String> {
        let namespaces = self.namespaces(tree);
        namespaces.iter().find_map(|name| use_of_disk(tree, name))
    }

    /// Whether a program has it open through VFIO: a group is opened once only.
    fn is_open(&self, tree: &Tree) -> bool {
        let Some(group) = &self.iommu_group else {
            return false;
        };
        let file = tree.path(format!("dev/vfio/{group}"));
        let opened = OpenOptions::new().read(true).write(true).open(file);
        opened.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
    }

    /// Other devices of its IOMMU group, but for bridges.
    fn neighbours(&self, tree: &Tree) -> Vec<String> {
        let Some(group) = &self.iommu_group else {
            return Vec::new();
        };
        let members = tree.names(format!("sys/kernel/iommu_groups/{group}/devices"));
        let is_other = |member: &String| {
            let class = tree
                .read(format!("{PCI}/{member}/class"))
                .unwrap_or_default();
            *member != self.address && !class.starts_with(BRIDGE_CLASS)
        };
        members.into_iter().filter(is_other).collect()
    }
}

/// The block device of a namespace (`nvme0n1`) or of a path to one (`nvme0c1n1`); `None` for all else that a
/// controller has below it, such as `ng0n1` and `hwmon0`.
fn namespace(name: &str) -> Option<String> {
    let (subsystem, id) = name.strip_prefix("nvme")?.split_once('n')?;
    let subsystem = subsystem.split('c').next()?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    (is_number(subsystem) && is_number(id)).then(|| format!("nvme{subsystem}n{id}"))
}

/// Why the host needs a disk or one of its partitions.
fn use_of_disk(tree: &Tree, disk: &str) -> Option<String> {
    let directory = format!("sys/block/{disk}");
    let parts = tree.names(&directory).into_iter();
    let parts = parts.filter(|name| name.starts_with(disk));
    let places = parts.map(|part| (part.clone(), format!("{directory}/{part}")));
    let mut devices = std::iter::once((disk.to_owned(), directory.clone())).chain(places);
    devices.find_map(|(name, place)| {
        let number = tree.read(format!("{place}/dev"))?;
        let mounts = tree.read("proc/self/mountinfo").unwrap_or_default();
        let mut lines = mounts.lines().map(|line| line.split_whitespace());
        if let Some(mut fields) = lines.find(|fields| fields.clone().nth(2) == Some(&number)) {
            let point = fields.nth(4).unwrap_or("?");
            return Some(format!("{name} is mounted at {point}"));
        }
        let swaps = tree.read("proc/swaps").unwrap_or_default();
        let device = format!("/dev/{name}");
        if swaps
            .lines()
            .any(|line| line.split_whitespace().next() == Some(&device))
        {
            return Some(format!("{name} is swap"));
        }
        let holders = tree.names(format!("{place}/holders"));
        if let Some(holder) = holders.first() {
            return Some(format!("{name} is a part of {holder}"));
        }
        // Whoever mounts or joins a disk holds it exclusively; so do some programs.
        let file = tree.path(format!("dev/{name}"));
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_EXCL)
            .open(file);
        let is_held = opened.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY));
        is_held.then(|| format!("another program has {name} to itself"))
    })
}

pub(super) fn findings(tree: &Tree) -> Vec<Finding> {
    let controllers = Controller::all(tree);
    if controllers.is_empty() {
        return vec![Finding::good(
            "controllers",
            "none; files are read through the kernel",
        )];
    }
    controllers.iter().map(|it| finding(tree, it)).collect()
}

fn finding(tree: &Tree, controller: &Controller) -> Finding {
    // A driver in user space gives it none.
    let name = controller.name.as_ref();
    let name = name.map_or_else(String::new, |name| format!("{name}, "));
    let group = controller.iommu_group.as_deref();
    let group = group.map_or_else(
        || "no IOMMU group".to_owned(),
        |it| format!("IOMMU group {it}"),
    );
    let driver = controller.driver.as_deref().unwrap_or("none");
    let what = match controller.driver.as_deref() {
        Some(VFIO) => "given to a driver in user space".to_owned(),
        _ => controller
            .use_of(tree)
            .unwrap_or_else(|| "not in use".to_owned()),
    };
    let found = format!("{name}driver {driver}, {group}; {what}");
    Finding::good(controller.address.as_str(), found)
}

/// Gives a controller to a driver in user space.
///
/// # Errors
/// The host uses it, nothing protects the host from it, or the kernel refused.
pub fn bind(device: &str) -> Result<(), Failure> {
    let tree = Tree::of_this_machine();
    let address = Controller::find(&tree, device)?.address;
    bind_in(&tree, device)?;
    confirm(&tree, &address, VFIO)
}

/// Gives a controller back to the kernel.
///
/// # Errors
/// There is no such controller, or the kernel refused.
pub fn unbind(device: &str) -> Result<(), Failure> {
    let tree = Tree::of_this_machine();
    let address = Controller::find(&tree, device)?.address;
    unbind_in(&tree, device)?;
    confirm(&tree, &address, NVME)
}

/// The kernel says nothing if no driver takes the device that it was offered.
fn confirm(tree: &Tree, address: &str, driver: &str) -> Result<(), Failure> {
    let now = Controller::at(tree, address).and_then(|it| it.driver);
    if now.as_deref() == Some(driver) {
        return Ok(());
    }
    let now = now.unwrap_or_else(|| "none".to_owned());
    Err(Failure::refused(
        format!("{address}: the driver {driver} has not taken it; its driver is {now}"),
        "see dmesg",
    ))
}

fn bind_in(tree: &Tree, device: &str) -> Result<(), Failure> {
    let controller = Controller::find(tree, device)?;
    let address = &controller.address;
    if controller.driver.as_deref() == Some(VFIO) {
        return Ok(());
    }
    if let Some(purpose) = controller.use_of(tree) {
        return Err(Failure::refused(
            format!("{address}: {purpose}"),
            "take it out of use first, or choose another controller",
        ));
    }
    if controller.iommu_group.is_none() {
        return Err(Failure::refused(
            format!("{address}: no IOMMU stands between it and the host's memory"),
            "switch the IOMMU on in the firmware, and boot with intel_iommu=on or amd_iommu=on",
        ));
    }
    if let Some(neighbour) = controller.neighbours(tree).first() {
        return Err(Failure::refused(
            format!(
                "{address}: its IOMMU group has {neighbour}, too, which could reach what it may"
            ),
            "put it in another slot",
        ));
    }
    if !tree.exists(format!("sys/bus/pci/drivers/{VFIO}")) {
        return Err(Failure::refused(
            format!("no driver {VFIO}"),
            format!("modprobe {VFIO}"),
        ));
    }
    give_to(tree, &controller, VFIO)
}

fn unbind_in(tree: &Tree, device: &str) -> Result<(), Failure> {
    let controller = Controller::find(tree, device)?;
    if controller.driver.as_deref() == Some(NVME) {
        return Ok(());
    }
    // The kernel would wait for that program's end.
    if controller.is_open(tree) {
        let address = &controller.address;
        return Err(Failure::refused(
            format!("{address}: a program uses it"),
            "end that program first",
        ));
    }
    give_to(tree, &controller, NVME)
}

/// Takes it from the driver that has it, and has the kernel offer it to another. An empty override means
/// any that fits.
fn give_to(tree: &Tree, controller: &Controller, driver: &str) -> Result<(), Failure> {
    let address = &controller.address;
    let refused = |what: &str, error: std::io::Error| {
        Failure::refused(format!("{address}: {what}: {error}"), "run as root")
    };
    let chosen = if driver == NVME { "" } else { driver };
    tree.write(
        format!("{PCI}/{address}/driver_override"),
        &format!("{chosen}\n"),
    )
    .map_err(|error| refused("choosing its driver", error))?;
    if controller.driver.is_some() {
        tree.write(format!("{PCI}/{address}/driver/unbind"), address)
            .map_err(|error| refused("taking it from its driver", error))?;
    }
    tree.write("sys/bus/pci/drivers_probe", address)
        .map_err(|error| refused("offering it to its new driver", error))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use tempfile::TempDir;

    use super::{Tree, bind_in, confirm, findings, namespace, unbind_in};

    const ADDRESS: &str = "0000:01:00.0";
    const DEVICE: &str = "sys/bus/pci/devices/0000:01:00.0";

    fn write(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    /// A machine with a controller `nvme0` in IOMMU group 7, behind a bridge, and its disk with a partition.
    fn machine() -> TempDir {
        let root = tempfile::tempdir().unwrap();
        let at = root.path();
        write(at, &format!("{DEVICE}/class"), "0x010802\n");
        write(at, &format!("{DEVICE}/nvme/nvme0/state"), "live");
        for below in ["nvme0n1", "ng0n1", "hwmon0"] {
            fs::create_dir_all(at.join(DEVICE).join("nvme/nvme0").join(below)).unwrap();
        }
        write(at, "sys/bus/pci/devices/0000:00:01.0/class", "0x060400\n");
        write(at, "sys/bus/pci/drivers/nvme/unbind", "");
        fs::create_dir_all(at.join("sys/bus/pci/drivers/vfio-pci")).unwrap();
        symlink("../../drivers/nvme", at.join(DEVICE).join("driver")).unwrap();
        symlink(
            "../../../../kernel/iommu_groups/7",
            at.join(DEVICE).join("iommu_group"),
        )
        .unwrap();
        for member in [ADDRESS, "0000:00:01.0"] {
            fs::create_dir_all(at.join("sys/kernel/iommu_groups/7/devices").join(member)).unwrap();
        }
        write(at, "sys/block/nvme0n1/dev", "259:0\n");
        write(at, "sys/block/nvme0n1/nvme0n1p1/dev", "259:1\n");
        write(at, "sys/block/sda/dev", "8:0\n");
        write(
            at,
            "proc/self/mountinfo",
            "1 0 8:0 / / rw - ext4 /dev/sda rw\n",
        );
        root
    }

    fn refusal(root: &TempDir) -> String {
        bind_in(&Tree::under(root.path()), ADDRESS)
            .unwrap_err()
            .to_string()
    }

    fn read(root: &TempDir, path: &str) -> String {
        fs::read_to_string(root.path().join(path)).unwrap()
    }

    #[test]
    fn a_controller_that_nobody_uses_is_given_away_and_back() {
        let root = machine();
        let tree = Tree::under(root.path());
        let found = findings(&tree).remove(0);
        assert_eq!(found.subject, ADDRESS);
        assert_eq!(found.found, "nvme0, driver nvme, IOMMU group 7; not in use");
        bind_in(&tree, "/dev/nvme0").unwrap();
        assert_eq!(
            read(&root, &format!("{DEVICE}/driver_override")),
            "vfio-pci\n"
        );
        assert_eq!(read(&root, "sys/bus/pci/drivers/nvme/unbind"), ADDRESS);
        assert_eq!(read(&root, "sys/bus/pci/drivers_probe"), ADDRESS);
        // What the kernel would have done.
        fs::remove_file(root.path().join(DEVICE).join("driver")).unwrap();
        symlink(
            "../../drivers/vfio-pci",
            root.path().join(DEVICE).join("driver"),
        )
        .unwrap();
        let found = findings(&tree).remove(0).found;
        assert!(
            found.ends_with("given to a driver in user space"),
            "{found}"
        );
        bind_in(&tree, ADDRESS).unwrap();
        unbind_in(&tree, ADDRESS).unwrap();
        assert_eq!(read(&root, &format!("{DEVICE}/driver_override")), "\n");
        assert_eq!(read(&root, "sys/bus/pci/drivers/vfio-pci/unbind"), ADDRESS);
    }

    #[test]
    fn a_controller_in_use_is_refused_and_left_alone() {
        let root = machine();
        let mount = "2 1 259:1 / /srv/video rw - xfs /dev/nvme0n1p1 rw\n";
        write(root.path(), "proc/self/mountinfo", mount);
        let text = refusal(&root);
        assert!(
            text.contains("nvme0n1p1 is mounted at /srv/video"),
            "{text}"
        );
        write(root.path(), "proc/self/mountinfo", "");
        write(
            root.path(),
            "proc/swaps",
            "Filename Type\n/dev/nvme0n1 partition\n",
        );
        assert!(refusal(&root).contains("nvme0n1 is swap"));
        write(root.path(), "proc/swaps", "Filename Type\n");
        fs::create_dir_all(root.path().join("sys/block/nvme0n1/holders/dm-0")).unwrap();
        assert!(refusal(&root).contains("nvme0n1 is a part of dm-0"));
        assert_eq!(read(&root, "sys/bus/pci/drivers/nvme/unbind"), "");
        assert!(!root.path().join(DEVICE).join("driver_override").exists());
    }

    #[test]
    fn a_controller_that_is_one_of_several_ways_to_a_disk_in_use_is_refused() {
        let root = machine();
        let below = root.path().join(DEVICE).join("nvme/nvme0");
        fs::rename(below.join("nvme0n1"), below.join("nvme3c0n1")).unwrap();
        write(root.path(), "sys/block/nvme3n1/dev", "259:3\n");
        bind_in(&Tree::under(root.path()), ADDRESS).unwrap();
        let mount = "2 1 259:3 / /srv/video rw - xfs /dev/nvme3n1 rw\n";
        write(root.path(), "proc/self/mountinfo", mount);
        let text = refusal(&root);
        assert!(text.contains("nvme3n1 is mounted at /srv/video"), "{text}");
    }

    #[test]
    fn namespaces_are_known_by_their_names() {
        let found = |name| namespace(name);
        assert_eq!(found("nvme0n1").as_deref(), Some("nvme0n1"));
        assert_eq!(found("nvme10c2n31").as_deref(), Some("nvme10n31"));
        for name in [
            "ng0n1",
            "nvme0",
            "nvme0n",
            "nvmen1",
            "nvme0n1p1",
            "hwmon0",
            "power",
        ] {
            assert_eq!(found(name), None, "{name}");
        }
    }

    #[test]
    fn a_controller_that_could_reach_the_host_s_memory_is_refused() {
        let root = machine();
        let neighbour = "sys/bus/pci/devices/0000:02:00.0/class";
        write(root.path(), neighbour, "0x020000\n");
        let member = root
            .path()
            .join("sys/kernel/iommu_groups/7/devices/0000:02:00.0");
        fs::create_dir_all(&member).unwrap();
        assert!(refusal(&root).contains("its IOMMU group has 0000:02:00.0, too"));
        fs::remove_dir(&member).unwrap();
        fs::remove_dir(root.path().join("sys/bus/pci/drivers/vfio-pci")).unwrap();
        assert!(refusal(&root).contains("modprobe vfio-pci"));
        fs::remove_file(root.path().join(DEVICE).join("iommu_group")).unwrap();
        assert!(refusal(&root).contains("no IOMMU"));
    }

    #[test]
    fn a_controller_that_no_driver_has_taken_is_told_of() {
        let root = machine();
        let tree = Tree::under(root.path());
        confirm(&tree, ADDRESS, "nvme").unwrap();
        let text = confirm(&tree, ADDRESS, "vfio-pci").unwrap_err().to_string();
        assert!(text.contains("its driver is nvme"), "{text}");
        fs::remove_file(root.path().join(DEVICE).join("driver")).unwrap();
        let text = confirm(&tree, ADDRESS, "vfio-pci").unwrap_err().to_string();
        assert!(text.contains("its driver is none"), "{text}");
    }

    #[test]
    fn what_is_no_controller_is_refused_with_those_there_are() {
        let root = machine();
        let tree = Tree::under(root.path());
        for text in ["nvme1", "0000:00:01.0", ""] {
            let error = bind_in(&tree, text).unwrap_err().to_string();
            assert!(error.contains("choose from 0000:01:00.0"), "{error}");
        }
        let empty = tempfile::tempdir().unwrap();
        let tree = Tree::under(empty.path());
        let error = unbind_in(&tree, "nvme0").unwrap_err().to_string();
        assert!(error.contains("there is none"), "{error}");
        assert!(findings(&tree)[0].found.starts_with("none"));
    }
}
