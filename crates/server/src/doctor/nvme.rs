//! NVMe controllers: what holds each, and how one is given to a driver in user space (VFIO) and back.
//!
//! `bind` refuses a controller whose namespaces the host uses (mounted, swap, part of another block
//! device, opened exclusively), one of which that cannot be found out, one that no IOMMU protects the host from,
//! and one whose IOMMU group has other devices. `unbind` refuses one that a program uses. The kernel's driver is never
//! asked to force anything, and gets the controller back if the other driver does not take it.
//! Bounded by the controllers there are.
//!
//! Reading first: Documentation/ABI/testing/sysfs-bus-pci (`driver_override`), Documentation/driver-api/vfio.rst.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;

use store::raw::is_in_use;

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
    /// All that can be read.
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
    ///
    /// # Errors
    /// The kernel's driver has it, and what it made of it cannot be read.
    fn namespaces(&self, tree: &Tree) -> Result<Vec<String>, String> {
        let Some(name) = &self.name else {
            let is_unknown = self.driver.as_deref() == Some(NVME);
            return if is_unknown {
                Err(format!("the driver {NVME} has not named it"))
            } else {
                Ok(Vec::new())
            };
        };
        let below = tree.list(format!("{PCI}/{}/nvme/{name}", self.address))?;
        let mut namespaces: Vec<String> = below.iter().filter_map(|it| namespace(it)).collect();
        namespaces.sort();
        namespaces.dedup();
        Ok(namespaces)
    }

    /// Its disks, opened exclusively: while they are, nobody mounts one or a partition of it.
    ///
    /// # Errors
    /// Why the host needs it, or why that is not known.
    fn claim(&self, tree: &Tree) -> Result<Vec<File>, String> {
        let namespaces = self.namespaces(tree)?;
        let claims = namespaces.iter().map(|name| claim_disk(tree, name));
        claims.collect()
    }

    /// Refuses if a program has it open through VFIO, or if that is not known. A group is opened once only.
    fn check_closed(&self, tree: &Tree) -> Result<(), Failure> {
        let Some(group) = &self.iommu_group else {
            return Ok(());
        };
        let file = format!("dev/vfio/{group}");
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let (problem, remedy) = match options.open(tree.path(&file)) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                ("a program uses it".to_owned(), "end that program first")
            }
            Err(error) => (format!("/{file}: {error}"), "run as root"),
        };
        Err(Failure::refused(
            format!("{}: {problem}", self.address),
            remedy,
        ))
    }

    /// Other devices of its IOMMU group, but for bridges.
    fn neighbours(&self, tree: &Tree) -> Result<Vec<String>, String> {
        let Some(group) = &self.iommu_group else {
            return Ok(Vec::new());
        };
        let members = tree.list(format!("sys/kernel/iommu_groups/{group}/devices"))?;
        let is_other = |member: &String| {
            let class = tree
                .read(format!("{PCI}/{member}/class"))
                .unwrap_or_default();
            *member != self.address && !class.starts_with(BRIDGE_CLASS)
        };
        Ok(members.into_iter().filter(is_other).collect())
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

/// Opens a disk exclusively, which fails if anybody has it or one of its partitions so: whoever mounts or joins a
/// disk does, and so do some programs.
///
/// # Errors
/// Why the host needs it, or why that is not known: what cannot be read counts as in use.
fn claim_disk(tree: &Tree, disk: &str) -> Result<File, String> {
    let directory = format!("sys/block/{disk}");
    let parts = tree.list(&directory)?.into_iter();
    let parts = parts.filter(|name| name.starts_with(disk));
    let places = parts.map(|part| (part.clone(), format!("{directory}/{part}")));
    for (name, place) in std::iter::once((disk.to_owned(), directory.clone())).chain(places) {
        if let Some(purpose) = purpose(tree, &name, &place)? {
            return Err(purpose);
        }
        match File::open(tree.path(format!("dev/{name}"))) {
            Ok(device) => check_store(&name, &device)?,
            // By no other node, or it is refused below.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(format!("/dev/{name}: {error}")),
        }
    }
    let file = format!("dev/{disk}");
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_EXCL);
    options.open(tree.path(&file)).map_err(|error| {
        if error.raw_os_error() == Some(libc::EBUSY) {
            format!("another program has {disk} to itself")
        } else {
            format!("/{file} cannot be opened to see whether it is in use: {error}")
        }
    })
}

/// Whether a program has a raw store on a disk or a partition open: it shares the device, but has locks there.
///
/// # Errors
/// It has, or that is not known.
fn check_store(name: &str, device: &File) -> Result<(), String> {
    match is_in_use(device.as_fd()) {
        Ok(false) => Ok(()),
        Ok(true) => Err(format!("a program has the raw store on {name} open")),
        Err(error) => Err(format!("/dev/{name}: its locks are not known: {error}")),
    }
}

/// What the host uses a disk or a partition for, of which `place` is the directory in `/sys`; `None`: nothing.
///
/// # Errors
/// What cannot be read.
fn purpose(tree: &Tree, name: &str, place: &str) -> Result<Option<String>, String> {
    let unreadable = |file: &str| format!("/{file} cannot be read to see whether {name} is in use");
    let file = format!("{place}/dev");
    let number = tree.read(&file).ok_or_else(|| unreadable(&file))?;
    let file = "proc/self/mountinfo";
    let mounts = tree.read(file).ok_or_else(|| unreadable(file))?;
    let mut lines = mounts.lines().map(|line| line.split_whitespace());
    if let Some(mut fields) = lines.find(|fields| fields.clone().nth(2) == Some(&number)) {
        let point = fields.nth(4).unwrap_or("?");
        return Ok(Some(format!("{name} is mounted at {point}")));
    }
    // There is no such file where the kernel has no swap.
    let swaps = tree.read("proc/swaps").unwrap_or_default();
    let device = format!("/dev/{name}");
    let is_swap = |line: &str| line.split_whitespace().next() == Some(&device);
    if swaps.lines().any(is_swap) {
        return Ok(Some(format!("{name} is swap")));
    }
    let holders = tree.list(format!("{place}/holders"))?;
    let holder = holders.first();
    Ok(holder.map(|holder| format!("{name} is a part of {holder}")))
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
            .claim(tree)
            .map_or_else(|purpose| purpose, |_| "not in use".to_owned()),
    };
    let found = format!("{name}driver {driver}, {group}; {what}");
    Finding::good(controller.address.as_str(), found)
}

/// Gives a controller to a driver in user space.
///
/// # Errors
/// The host uses it, nothing protects the host from it, or the kernel refused. Then the kernel's driver has it again.
pub(crate) fn bind(device: &str) -> Result<(), Failure> {
    bind_in(&Tree::of_this_machine(), device)
}

/// Gives a controller back to the kernel.
///
/// # Errors
/// There is no such controller, or the kernel refused.
pub(crate) fn unbind(device: &str) -> Result<(), Failure> {
    unbind_in(&Tree::of_this_machine(), device)
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
    match controller.driver.as_deref() {
        Some(VFIO) => return Ok(()),
        Some(NVME) | None => {}
        Some(other) => {
            return Err(Failure::refused(
                format!("{address}: the driver {other} has it, and what for is not known"),
                format!("atlas nvme unbind {address}"),
            ));
        }
    }
    let in_use = |purpose: String| {
        Failure::refused(
            format!("{address}: {purpose}"),
            "take it out of use first, or choose another controller",
        )
    };
    let claims = controller.claim(tree).map_err(in_use)?;
    if controller.iommu_group.is_none() {
        return Err(Failure::refused(
            format!("{address}: no IOMMU stands between it and the host's memory"),
            "switch the IOMMU on in the firmware, and boot with intel_iommu=on or amd_iommu=on",
        ));
    }
    if let Some(neighbour) = controller.neighbours(tree).map_err(in_use)?.first() {
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
    let given = give_to(tree, address, VFIO);
    // Until then nobody could begin to use them.
    drop(claims);
    given.map_err(|failure| {
        let back = give_to(tree, address, NVME);
        let has_it = confirm(tree, address, NVME).is_ok();
        let back = match back {
            Err(error) if !has_it => format!("nor could it be given back: {error}"),
            _ => "the kernel's driver has it".to_owned(),
        };
        Failure::Refused(format!("{failure}; {back}"))
    })
}

fn unbind_in(tree: &Tree, device: &str) -> Result<(), Failure> {
    let controller = Controller::find(tree, device)?;
    let address = &controller.address;
    if controller.driver.as_deref() == Some(NVME) {
        return Ok(());
    }
    // The kernel would wait for that program's end.
    controller.check_closed(tree)?;
    give_to(tree, address, NVME)
}

/// Takes a device from the driver that has it, and has the kernel offer it to another. An empty override means
/// any that fits.
///
/// # Errors
/// The kernel refused one of the steps, or the driver did not take it.
fn give_to(tree: &Tree, address: &str, driver: &str) -> Result<(), Failure> {
    let refused = |what: &str, error: std::io::Error| {
        Failure::refused(format!("{address}: {what}: {error}"), "run as root")
    };
    let chosen = if driver == NVME { "" } else { driver };
    tree.write(
        format!("{PCI}/{address}/driver_override"),
        &format!("{chosen}\n"),
    )
    .map_err(|error| refused("choosing its driver", error))?;
    let now = tree.link_name(format!("{PCI}/{address}/driver"));
    if now.as_deref() == Some(driver) {
        return Ok(());
    }
    if now.is_some() {
        tree.write(format!("{PCI}/{address}/driver/unbind"), address)
            .map_err(|error| refused("taking it from its driver", error))?;
    }
    tree.write("sys/bus/pci/drivers_probe", address)
        .map_err(|error| refused("offering it to its new driver", error))?;
    confirm(tree, address, driver)
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

    /// What the kernel does: each driver takes what it is offered.
    fn kernel(tree: &Tree, written: &Path) {
        obey(tree, written, |_| true);
    }

    /// The same with a `vfio-pci` that takes nothing.
    fn kernel_without_vfio(tree: &Tree, written: &Path) {
        obey(tree, written, |driver| driver != "vfio-pci");
    }

    fn obey(tree: &Tree, written: &Path, takes: fn(&str) -> bool) {
        let driver = tree.path(DEVICE).join("driver");
        if written.ends_with("driver/unbind") {
            fs::remove_file(driver).unwrap();
        } else if written.ends_with("drivers_probe") {
            let chosen = tree.read(format!("{DEVICE}/driver_override"));
            let chosen = chosen.filter(|it| !it.is_empty());
            let chosen = chosen.unwrap_or_else(|| "nvme".to_owned());
            if takes(&chosen) {
                symlink(format!("../../drivers/{chosen}"), driver).unwrap();
            }
        }
    }

    fn tree(root: &TempDir) -> Tree {
        Tree::under(root.path()).with_kernel(kernel)
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
        write(at, "dev/nvme0n1", "");
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
        bind_in(&tree(root), ADDRESS).unwrap_err().to_string()
    }

    fn read(root: &TempDir, path: &str) -> String {
        fs::read_to_string(root.path().join(path)).unwrap()
    }

    #[test]
    fn a_controller_that_nobody_uses_is_given_away_and_back() {
        let root = machine();
        let tree = tree(&root);
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
        assert!(refusal(&root).contains("nvme3n1/dev cannot be read"));
        write(root.path(), "sys/block/nvme3n1/dev", "259:3\n");
        assert!(refusal(&root).contains("dev/nvme3n1 cannot be opened"));
        write(root.path(), "dev/nvme3n1", "");
        let mount = "2 1 259:3 / /srv/video rw - xfs /dev/nvme3n1 rw\n";
        write(root.path(), "proc/self/mountinfo", mount);
        let text = refusal(&root);
        assert!(text.contains("nvme3n1 is mounted at /srv/video"), "{text}");
    }

    #[test]
    fn a_mounted_disk_is_seen_behind_any_number_of_names() {
        let root = machine();
        let at = root.path();
        // Of the controller, of its directory, of the disk's partitions and of mounts: each sorts before it.
        for number in 0..300 {
            let function = format!("sys/bus/pci/devices/0000:00:{number:04x}.0/class");
            write(at, &function, "0x060000\n");
            let below = at.join(DEVICE).join("nvme/nvme0");
            fs::create_dir_all(below.join(format!("a{number:03}"))).unwrap();
            let part = format!("sys/block/nvme0n1/nvme0n1p0{number:03}/dev");
            write(at, &part, &format!("260:{number}\n"));
        }
        assert_eq!(findings(&tree(&root))[0].subject, ADDRESS);
        let others = (0..300).map(|it| format!("{it} 0 0:{it} / /a{it} rw - tmpfs tmpfs rw\n"));
        let mount = "999 1 259:1 / /srv/video rw - xfs /dev/nvme0n1p1 rw\n";
        let mounts: String = others.chain([mount.to_owned()]).collect();
        write(at, "proc/self/mountinfo", &mounts);
        let text = refusal(&root);
        assert!(
            text.contains("nvme0n1p1 is mounted at /srv/video"),
            "{text}"
        );
        // A neighbour in the IOMMU group behind as many.
        write(at, "proc/self/mountinfo", "");
        let members = at.join("sys/kernel/iommu_groups/7/devices");
        for number in 0..300 {
            fs::create_dir_all(members.join(format!("0000:00:{number:04x}.0"))).unwrap();
        }
        write(at, "sys/bus/pci/devices/0000:99:00.0/class", "0x020000\n");
        fs::create_dir_all(members.join("0000:99:00.0")).unwrap();
        let text = refusal(&root);
        assert!(text.contains("has 0000:99:00.0, too"), "{text}");
    }

    #[test]
    fn what_cannot_be_found_out_counts_as_in_use() {
        let root = machine();
        let at = root.path();
        for (gone, said) in [
            ("proc/self/mountinfo", "proc/self/mountinfo cannot be read"),
            (
                "sys/block/nvme0n1/nvme0n1p1/dev",
                "nvme0n1p1/dev cannot be read",
            ),
            ("dev/nvme0n1", "/dev/nvme0n1 cannot be opened"),
        ] {
            let before = read(&root, gone);
            fs::remove_file(at.join(gone)).unwrap();
            let text = refusal(&root);
            assert!(text.contains(said), "{gone}: {text}");
            write(at, gone, &before);
        }
        // A file where a directory is looked for.
        write(at, "sys/block/nvme0n1/holders", "");
        assert!(refusal(&root).contains("Not a directory"));
        fs::remove_file(at.join("sys/block/nvme0n1/holders")).unwrap();
        fs::rename(at.join(DEVICE).join("nvme"), at.join(DEVICE).join("later")).unwrap();
        assert!(refusal(&root).contains("has not named it"));
        fs::remove_file(at.join(DEVICE).join("driver")).unwrap();
        symlink("../../drivers/uio", at.join(DEVICE).join("driver")).unwrap();
        assert!(refusal(&root).contains("the driver uio has it"));
    }

    #[test]
    fn a_controller_that_the_other_driver_does_not_take_goes_back_to_the_kernel_s() {
        let root = machine();
        let tree = Tree::under(root.path()).with_kernel(kernel_without_vfio);
        let text = bind_in(&tree, ADDRESS).unwrap_err().to_string();
        assert!(text.contains("vfio-pci has not taken it"), "{text}");
        assert!(text.ends_with("the kernel's driver has it"), "{text}");
        assert_eq!(
            tree.link_name(format!("{DEVICE}/driver")).as_deref(),
            Some("nvme")
        );
        assert_eq!(read(&root, &format!("{DEVICE}/driver_override")), "\n");
        // Nor does it stay without a driver if one of the steps fails.
        let probe = root.path().join("sys/bus/pci/drivers/nvme/unbind");
        fs::remove_file(&probe).unwrap();
        fs::create_dir(&probe).unwrap();
        let text = bind_in(&tree, ADDRESS).unwrap_err().to_string();
        assert!(text.contains("taking it from its driver"), "{text}");
        assert!(text.ends_with("the kernel's driver has it"), "{text}");
        assert_eq!(read(&root, &format!("{DEVICE}/driver_override")), "\n");
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
    fn a_controller_with_a_raw_store_that_is_read_or_changed_is_refused() {
        use store::raw::{Access, Device, RawStore};
        for name in ["nvme0n1", "nvme0n1p1"] {
            let root = machine();
            write(root.path(), &format!("dev/{name}"), "");
            let device = Device::open(&root.path().join("dev").join(name), Access::Write);
            let lock = RawStore::unmounted(vec![device.unwrap()]);
            let lock = lock.lock_for_writing().unwrap();
            let refused = refusal(&root);
            let part = format!("a program has the raw store on {name} open");
            assert!(refused.contains(&part), "{refused}");
            drop(lock);
            bind_in(&tree(&root), ADDRESS).unwrap();
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
