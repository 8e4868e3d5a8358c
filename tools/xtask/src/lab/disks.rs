//! `cargo xtask lab --disk nvme`: NVMe disks by our own driver, behind an IOMMU, in a guest that QEMU emulates.
//!
//! ```text
//!  guest: nvme_check -> diskmap::nvme -> diskmap::vfio | QEMU: IOMMU, NVMe controller | image
//!                       diskmap::passthru -> the kernel's driver
//! ```
//!
//! A disk is read and written through the kernel's driver, by `io_uring` passthrough, with a second program
//! beside it. Then the kernel writes it; our driver reads all of it over VFIO with several queue pairs, and writes the
//! upper half; after a restart of the controller it reads all again; and then the kernel compares all, and so
//! does the machine outside. `atlas nvme bind` and `unbind` give the controller away and back.
//! The IOMMU must have stopped nothing, until the driver is told addresses at which nothing is mapped.
//!
//! It says nothing about speed, nor about what real controllers do against the rules: for those there is the
//! emulated controller of `diskmap`. Bounded by: a limit on every command; two images of [`DISK_BYTES`].

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::guest::{self, Console};
use super::images;
use super::parts::{KernelAge, Parts};
use testbed::suite::{Outcome, Suite};

/// The guest's first process.
const INIT: &str = include_str!("disk.sh");

/// What the guest loads: the kernel's driver, and VFIO.
const MODULES: [&str; 3] = ["nvme", "vfio_pci", "vfio_iommu_type1"];

/// Queues without interrupts, for passthrough that polls.
const ARGUMENTS: [(&str, &str); 1] = [("nvme", "poll_queues=1")];

/// Size of each disk.
const DISK_BYTES: u64 = 24 << 20;

/// Longest time of one command in the guest, many times what it takes on a machine that does nothing else.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// How often the driver is told wrong addresses at most, before the kernel says that they were stopped: it
/// says ten lines in five seconds.
const ASTRAY_ATTEMPTS_MAX: u32 = 20;

/// The seeds of what the kernel writes, and of what the driver writes in its upper half.
const SEEDS: &str = "1 2";

/// A disk of the guest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Disk {
    /// Its PCI address in the guest.
    address: &'static str,
    device: u8,
    block_bytes: u32,
    /// Most pages of one command, as a power of two (MDTS): less than a slot, or more.
    mdts: u8,
    /// Whether other controllers could reach the namespace, too: the kernel then has it behind a path.
    has_paths: bool,
}

pub(super) const DISKS: [Disk; 2] = [
    Disk {
        address: "0000:00:04.0",
        device: 4,
        block_bytes: 512,
        mdts: 2,
        has_paths: false,
    },
    Disk {
        address: "0000:00:05.0",
        device: 5,
        block_bytes: 4096,
        mdts: 7,
        has_paths: true,
    },
];

impl Disk {
    /// Its namespace's block device (`nvme`) or generic device (`ng`), as the guest's shell finds it while the
    /// kernel's driver has it.
    pub(super) fn file(self, kind: &str) -> String {
        let controllers = format!("/sys/bus/pci/devices/{}/nvme", self.address);
        format!("/dev/{kind}$(ls {controllers} | tr -d a-z)n1")
    }

    /// The file of its IOMMU group.
    fn group(self) -> String {
        format!(
            "/dev/vfio/$(basename $(readlink /sys/bus/pci/devices/{}/iommu_group))",
            self.address
        )
    }

    fn name(self) -> String {
        format!("NVMe, blocks of {}", self.block_bytes)
    }
}

/// Runs all checks in one guest.
pub(super) fn run(
    suite: &mut Suite,
    parts: &Parts,
    (lab, scratch): (&Path, &Path),
    (atlas, check): (&Path, &Path),
) -> Result<()> {
    let programs = [("atlas", atlas), ("nvme_check", check)];
    let mut trial = boot(parts, (&lab.join("nvme.log"), scratch), &programs)?;
    suite.run("NVMe: atlas doctor", || trial.try_doctor());
    for disk in DISKS {
        trial.try_passthru(suite, disk);
        trial.try_vfio(suite, disk);
    }
    suite.run("NVMe: the guest's kernel", || {
        trial.refuse_complaints().map(|()| Outcome::Passed)
    });
    trial.end()?;
    for disk in DISKS {
        suite.run(&format!("{}: its image outside", disk.name()), || {
            let image = image(scratch, disk);
            let mut command = Command::new(check);
            command.arg("compare").arg(image).args(SEEDS.split(' '));
            testbed::process::run(&mut command).map(|_| Outcome::Passed)
        });
    }
    Ok(())
}

/// Starts the guest with its disks and these programs, by their names there.
fn boot(
    parts: &Parts,
    (log, scratch): (&Path, &Path),
    programs: &[(&str, &Path)],
) -> Result<Trial> {
    let kernel = parts.kernel(KernelAge::Old)?;
    let initramfs = scratch.join("initramfs");
    let mut files = vec![("init".to_owned(), 0o100_755, INIT.into())];
    for (name, path) in programs {
        files.push(images::program(name, path)?);
    }
    images::make_initramfs((parts, kernel), &files, (&MODULES, &ARGUMENTS), &initramfs)?;
    let mut command = parts.qemu(Command::new("env"));
    guest::common_arguments(&mut command, &kernel.image, &initramfs);
    command.args(guest::IOMMU).args(["-smp", "2"]);
    // With a thread for each processor QEMU 10.0 sometimes fails an assertion (iotlb_to_section) when
    // registers are mapped or bus mastering changes.
    command.args(["-accel", "tcg,thread=single"]);
    let kernel_arguments = format!("console=ttyS0 quiet panic=-1 {}", guest::IOMMU_ARGUMENTS);
    command.args(["-append", &kernel_arguments]);
    for disk in DISKS {
        attach(&mut command, disk, &image(scratch, disk))?;
    }
    let mut console = Console::start(command, log)?;
    let up = console.await_line("lab: up, ", Duration::from_secs(120))?;
    println!("        the guest is {}", up.trim_start_matches("lab: "));
    Ok(Trial { console })
}

/// Has QEMU emulate a controller with a namespace in a new image.
fn attach(command: &mut Command, disk: Disk, image: &Path) -> Result<()> {
    let file = File::create(image).with_context(|| format!("creating {}", image.display()))?;
    file.set_len(DISK_BYTES)?;
    let Disk {
        device,
        block_bytes,
        mdts,
        has_paths,
        ..
    } = disk;
    let mut controller =
        format!("nvme,id=c{device},serial=atlas{device},addr={device},mdts={mdts}");
    if has_paths {
        let subsystem = format!("nvme-subsys,id=s{device},nqn=atlas{device}");
        command.args(["-device", &subsystem]);
        controller += &format!(",subsys=s{device}");
    }
    let drive = format!("id=d{device},if=none,format=raw,file={}", image.display());
    let namespace = format!(
        "nvme-ns,drive=d{device},bus=c{device},logical_block_size={block_bytes},\
         physical_block_size={block_bytes}"
    );
    command.args(["-drive", &drive]);
    command.args(["-device", &controller]);
    command.args(["-device", &namespace]);
    Ok(())
}

fn image(scratch: &Path, disk: Disk) -> PathBuf {
    scratch.join(format!("nvme-{}.img", disk.block_bytes))
}

/// The guest, and what is tried in it.
pub(super) struct Trial {
    console: Console,
}

/// What a command said, and what it ended with.
struct Said {
    text: String,
    code: String,
}

impl Trial {
    /// Runs a command of the guest's shell.
    fn command(&mut self, command: &str) -> Result<Said> {
        self.console.tell(&format!("run {command}"))?;
        let mut text = String::new();
        loop {
            let line = self.console.await_line("lab: ", COMMAND_LIMIT)?;
            if let Some(said) = line.strip_prefix("lab: says ") {
                text += said;
                text += "\n";
            } else if let Some(code) = line.strip_prefix("lab: ended with ") {
                let code = code.to_owned();
                return Ok(Said { text, code });
            }
        }
    }

    /// Runs a command that must succeed; its output is shown if the lab's own program says it.
    pub(super) fn succeed(&mut self, command: &str) -> Result<String> {
        let said = self.command(command)?;
        for line in said.text.lines().filter(|line| line.starts_with("check: ")) {
            println!("        {}", line.trim_start_matches("check: "));
        }
        ensure!(said.code == "0", "{command}: {}", said.text.trim());
        Ok(said.text)
    }

    /// Runs a command that must fail and say why.
    fn fail(&mut self, command: &str, why: &str) -> Result<()> {
        let said = self.command(command)?;
        let text = said.text.trim();
        ensure!(said.code != "0", "{command} succeeds: {text}");
        ensure!(text.contains(why), "{command} says {text:?}");
        Ok(())
    }

    /// Fails if the guest's kernel complained of anything.
    pub(super) fn refuse_complaints(&mut self) -> Result<()> {
        let complaints = guest::said(&mut self.console, "complaints")?;
        guest::refuse(&complaints)
    }

    /// Switches the guest off.
    pub(super) fn end(self) -> Result<()> {
        self.console.end()
    }

    /// What the IOMMU has stopped since this was last asked.
    fn faults(&mut self) -> Result<Vec<String>> {
        guest::said(&mut self.console, "faults")
    }

    fn refuse_faults(&mut self) -> Result<()> {
        match self.faults()?.first() {
            None => Ok(()),
            Some(first) => bail!("the IOMMU has stopped something: {first}"),
        }
    }

    fn try_doctor(&mut self) -> Result<Outcome> {
        let said = self.command("atlas doctor")?;
        for disk in DISKS {
            let mut lines = said.text.lines();
            let line = lines.find(|line| line.contains(disk.address));
            let line = line.with_context(|| format!("no {}: {}", disk.address, said.text))?;
            println!("        {}", line.trim());
            ensure!(
                line.contains("driver nvme, IOMMU group") && line.contains("not in use"),
                "it says {line}"
            );
        }
        Ok(Outcome::Passed)
    }

    /// A check of its own for a disk.
    fn check(
        &mut self,
        suite: &mut Suite,
        disk: Disk,
        what: &str,
        check: impl FnOnce(&mut Self) -> Result<()>,
    ) {
        suite.run(&format!("{}: {what}", disk.name()), || {
            check(self).map(|()| Outcome::Passed)
        });
    }

    /// While the kernel's driver has it: what is refused, and passthrough.
    fn try_passthru(&mut self, suite: &mut Suite, disk: Disk) {
        let Disk { address, .. } = disk;
        let (file, generic) = (disk.file("nvme"), disk.file("ng"));
        self.check(suite, disk, "in use, it is not given away", |it| {
            it.succeed(&format!("mkswap {file} && swapon {file}"))?;
            it.fail(&format!("atlas nvme bind {address}"), "is swap")?;
            it.succeed(&format!("swapoff {file}")).map(drop)
        });
        self.check(suite, disk, "not given away, it is not opened", |it| {
            let why = format!("atlas nvme bind {address}");
            it.fail(&format!("nvme_check vfio {address} {SEEDS}"), &why)
        });
        self.check(
            suite,
            disk,
            "promises through io_uring, by a user without rights",
            |it| {
                it.succeed(&format!("chown nobody {generic}"))?;
                let promises = format!("nvme_check promises passthru {generic}");
                it.succeed(&format!("su -s /bin/sh nobody -c \"{promises}\""))
                    .map(drop)
            },
        );
        self.check(suite, disk, "promises without interrupts", |it| {
            it.succeed(&format!("nvme_check promises polled {generic}"))
                .map(drop)
        });
        self.check(
            suite,
            disk,
            "read and written through io_uring, by two programs",
            |it| {
                it.succeed(&format!("nvme_check fill {file} 1"))?;
                it.succeed(&format!("nvme_check passthru {generic} {SEEDS}"))?;
                it.succeed(&format!("nvme_check compare {file} {SEEDS}"))?;
                it.refuse_faults()
            },
        );
    }

    /// Given away and back, over VFIO.
    fn try_vfio(&mut self, suite: &mut Suite, disk: Disk) {
        let Disk { address, .. } = disk;
        let (file, group) = (disk.file("nvme"), disk.group());
        self.check(suite, disk, "promises over VFIO", |it| {
            it.succeed(&format!("atlas nvme bind {address}"))?;
            it.succeed(&format!("nvme_check promises vfio {address}"))?;
            it.succeed(&format!("atlas nvme unbind {address}"))?;
            it.refuse_faults()
        });
        self.check(
            suite,
            disk,
            "the kernel writes it, and gives it away",
            |it| {
                it.succeed(&format!("nvme_check fill {file} 1"))?;
                let controller = format!("$(ls /sys/bus/pci/devices/{address}/nvme)");
                it.succeed(&format!("atlas nvme bind {controller}"))?;
                let said = it.succeed("atlas doctor")?;
                let mut lines = said.lines().filter(|line| line.contains(address));
                let line = lines.next().context("the doctor says nothing of it")?;
                ensure!(line.contains("driver vfio-pci"), "it says {line}");
                Ok(())
            },
        );
        self.check(suite, disk, "read and written over VFIO", |it| {
            it.succeed(&format!("nvme_check vfio {address} {SEEDS}"))?;
            it.refuse_faults()
        });
        self.check(
            suite,
            disk,
            "a queue pair dropped with commands in flight",
            |it| {
                it.succeed(&format!("nvme_check abandon {address} {SEEDS}"))?;
                it.refuse_faults()
            },
        );
        self.check(
            suite,
            disk,
            "after a program that was killed at work",
            |it| {
                let load =
                    format!("rm -f /tmp/load; nvme_check load {address} > /tmp/load & pid=$!");
                let begun = "until grep -q 'being read' /tmp/load; do sleep 0.1; done";
                let killed = "kill -9 $pid; wait $pid; [ $? = 137 ]";
                it.succeed(&format!("{load}; {begun}; {killed}"))?;
                it.succeed(&format!("nvme_check abandon {address} {SEEDS}"))?;
                it.refuse_faults()
            },
        );
        self.check(suite, disk, "while a program uses it, nobody else gets it", |it| {
            it.succeed("rm -f /tmp/hold /tmp/held; mkfifo /tmp/hold")?;
            let hold = format!("nvme_check hold {address} < /tmp/hold > /tmp/held &");
            let begun = "exec 3> /tmp/hold; until grep -q open /tmp/held; do sleep 0.1; done";
            // They fail, which is what is wanted of both.
            let others = format!(
                "atlas nvme unbind {address} && exit 9; nvme_check vfio {address} {SEEDS} && exit 9"
            );
            let said = it.succeed(&format!("{hold} {begun}; {others}; exec 3>&-; wait"))?;
            ensure!(said.contains("a program uses it"), "unbind says {said}");
            ensure!(said.contains("another process uses"), "it says {said}");
            Ok(())
        });
        self.check(
            suite,
            disk,
            "with little locked memory, an error says so",
            |it| {
                it.succeed(&format!("chown nobody {group}"))?;
                let vfio = format!("nvme_check vfio {address} 1 2");
                let as_nobody = format!("su -s /bin/sh nobody -c '{vfio}'");
                it.fail(&format!("ulimit -l 64; {as_nobody}"), "RLIMIT_MEMLOCK")
            },
        );
        self.check(suite, disk, "addresses that are not mapped", |it| {
            for _ in 0..ASTRAY_ATTEMPTS_MAX {
                it.succeed(&format!("nvme_check astray {address} {SEEDS}"))?;
                let faults = it.faults()?;
                let device = address.trim_start_matches("0000:");
                if let Some(fault) = faults.iter().find(|line| line.contains(device)) {
                    println!("        of the IOMMU: {fault}");
                    return Ok(());
                }
            }
            bail!("the IOMMU has stopped nothing")
        });
        self.check(
            suite,
            disk,
            "given back, the kernel reads what was written",
            |it| {
                it.succeed(&format!("atlas nvme unbind {address}"))?;
                it.succeed(&format!("nvme_check compare {file} {SEEDS}"))?;
                it.refuse_faults()
            },
        );
    }
}
