//! The guest: QEMU in a network namespace of its own, joined with it by a TAP, and its console.
//!
//! QEMU emulates the processor, too: what is tested is the driver, not the speed. It refuses to go on
//! when QEMU has ended. Bounded by: a limit on every wait for a line; QEMU ends with its guard.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

use super::parts::{KernelAge, Parts};
use super::trunk::{PLAIN_TAP, Trunk, VLAN};
use testbed::interrupt;
use testbed::namespace::Namespace;
use testbed::process::{Process, for_each_line};

/// The TAP at the clients' end.
pub(super) const TAP: &str = "lab0";

/// Addresses of the clients' end; the guest's kernel has 1 of each subnet, Atlas 2.
const CLIENT_ADDRESSES: [&str; 2] = ["10.77.0.3/24", "fd77::3/64"];

/// The clients' end of what has no tag, where the guest's kernel has 1, too.
const PLAIN_CLIENT: &str = "10.78.0.3/24";

/// The link that Atlas has in the guest.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GuestLink {
    /// A packet socket: slots on loan
    Packet,
    /// AF_XDP sockets, whose memory the device accesses itself
    Xdp,
    /// A VLAN device, over each kind of link
    Vlan,
}

impl GuestLink {
    /// The kernel it is tried with.
    pub(super) fn kernel(self) -> KernelAge {
        match self {
            Self::Packet => KernelAge::Old,
            Self::Xdp | Self::Vlan => KernelAge::New,
        }
    }
}

/// How files come to the guest, always from an NVMe controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GuestDisk {
    /// ext4, by the kernel's driver.
    Kernel,
    /// A raw store, by NVMe commands through the kernel's driver.
    Passthrough,
    /// A raw store, by Atlas's own driver, behind an IOMMU.
    Vfio,
}

impl GuestDisk {
    /// What is served.
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Kernel => "/srv",
            Self::Passthrough => "/dev/nvme0n1,/dev/nvme1n1",
            // Not in the order that the store has them in.
            Self::Vfio => "nvme:0000:00:05.0,nvme:0000:00:04.0/1",
        }
    }

    /// How many controllers it is on.
    pub(super) fn controllers(self) -> u8 {
        match self {
            Self::Kernel => 1,
            Self::Passthrough | Self::Vfio => 2,
        }
    }

    /// What the guest loads for it beside the kernel's driver.
    pub(super) fn modules(self) -> &'static [&'static str] {
        match self {
            Self::Kernel | Self::Passthrough => &[],
            Self::Vfio => &["vfio_pci", "vfio_iommu_type1"],
        }
    }
}

/// Device number of the first NVMe controller on the bus; others follow.
const FIRST_CONTROLLER: u8 = 4;

/// What the machine of a guest that gives a controller away has: an IOMMU that remaps interrupts, too, which
/// QEMU then must not leave to KVM.
pub(super) const IOMMU: [&str; 4] = [
    "-machine",
    "q35,kernel-irqchip=split",
    "-device",
    "intel-iommu,intremap=on,caching-mode=on",
];

/// What the guest's kernel is told for that. It tries its timer against the time that the processor takes, and
/// panics if interrupts of it are late: an emulated processor on a busy machine is late at times.
pub(super) const IOMMU_ARGUMENTS: &str = "intel_iommu=on no_timer_check";

/// A NIC that QEMU emulates, and how its driver is used.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Nic {
    /// Intel 82574L, driver e1000e
    E1000e,
    /// Intel 82576, driver igb
    Igb,
    /// virtio, driver virtio_net, which releases a frame when the device has read it
    VirtioNet,
    /// The same device, later, and driver without NAPI for sending, which releases a frame when it
    /// is queued: with zero copy, wrong bytes must arrive, or the lab finds nothing
    VirtioNetEarly,
}

impl Nic {
    /// Its name on the command line.
    pub(super) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether `zero_copy = "auto"` is to choose zero copy.
    pub(super) fn is_known_to_complete(self) -> bool {
        matches!(self, Self::E1000e | Self::Igb)
    }

    /// Whether its driver releases frames that the device has not read.
    pub(super) fn releases_early(self) -> bool {
        self == Self::VirtioNetEarly
    }

    /// Whether its transmitter can be switched off for a while. QEMU's Intel models read a frame when
    /// it is queued, so that nothing could be wrong with it afterwards. Its igb does not go on with
    /// what was queued when it is switched on again: the driver finds a hang.
    pub(super) fn can_pause(self) -> bool {
        self == Self::E1000e
    }

    /// What its module is told.
    pub(super) fn module_arguments(self) -> &'static [(&'static str, &'static str)] {
        if self.releases_early() {
            return &[("virtio_net", "napi_tx=0")];
        }
        &[]
    }

    /// Whether its driver has zero copy for AF_XDP.
    pub(super) fn has_xdp_zero_copy(self) -> bool {
        matches!(self, Self::Igb | Self::VirtioNet)
    }

    /// What QEMU is told. A virtio driver has zero copy for AF_XDP only if its device takes addresses
    /// of the bus and not those of the machine's memory (`iommu_platform`; `virtqueue_dma_dev`).
    fn device(self, link: GuestLink) -> &'static str {
        match (self, link) {
            (Self::E1000e, _) => "e1000e",
            (Self::Igb, _) => "igb",
            // Reads frames 2 ms after they were queued.
            (Self::VirtioNet | Self::VirtioNetEarly, GuestLink::Packet) => {
                "virtio-net-pci,tx=timer,x-txtimer=2000000"
            }
            (Self::VirtioNet | Self::VirtioNetEarly, GuestLink::Xdp | GuestLink::Vlan) => {
                "virtio-net-pci,tx=timer,x-txtimer=2000000,iommu_platform=on,disable-legacy=on"
            }
        }
    }

    /// Whether the TAP takes large frames. The Intel models cut them themselves, as the NICs do, so
    /// that packets of them can be lost one by one. virtio offers segmentation only if the TAP does.
    fn has_large_frames(self) -> bool {
        matches!(self, Self::VirtioNet | Self::VirtioNetEarly)
    }
}

/// QEMU, and the console of its guest.
#[derive(Debug)]
pub(super) struct Console {
    qemu: Process,
    console: ChildStdin,
    lines: Receiver<String>,
}

impl Console {
    /// Runs QEMU; what the console says is kept in `log`.
    pub(super) fn start(mut command: Command, log: &Path) -> Result<Self> {
        let log = File::create(log).with_context(|| format!("creating {}", log.display()))?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log.try_clone()?);
        let mut qemu = Process::spawn("QEMU", &mut command)?;
        let console = qemu.child().stdin.take().context("stdin is piped")?;
        let stdout = qemu.child().stdout.take().context("stdout is piped")?;
        Ok(Self {
            qemu,
            console,
            lines: lines(stdout, log),
        })
    }

    /// Says a line to the guest's first process.
    pub(super) fn tell(&mut self, command: &str) -> Result<()> {
        writeln!(self.console, "{command}").context("writing to the guest's console")
    }

    /// The next line that has `words` in it, from there on; what comes before is skipped.
    pub(super) fn await_line(&mut self, words: &str, limit: Duration) -> Result<String> {
        let mut last = String::new();
        let deadline = Instant::now() + limit;
        loop {
            interrupt::check()?;
            match self.lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => match line.find(words) {
                    Some(at) => return Ok(line[at..].to_owned()),
                    None if line.contains("panicked") => bail!("the guest: {line}"),
                    None => last = line,
                },
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(RecvTimeoutError::Timeout) => bail!(
                    "the guest does not say {words:?} in {} s; its last line: {last}",
                    limit.as_secs()
                ),
                Err(RecvTimeoutError::Disconnected) => bail!("QEMU has ended: {last}"),
            }
        }
    }

    /// Waits for the guest that was told to switch itself off.
    pub(super) fn end(mut self) -> Result<()> {
        self.tell("off")?;
        self.qemu.wait(Duration::from_secs(20)).map(drop)
    }
}

/// What QEMU is told whatever the guest is for: a machine, a kernel, and a first file system in memory.
pub(super) fn common_arguments(command: &mut Command, image: &Path, initramfs: &Path) {
    command.args(["-cpu", "max,-la57", "-m", "1024"]);
    command.args(["-nodefaults", "-no-reboot"]);
    command.args(["-display", "none", "-vga", "none", "-serial", "stdio"]);
    command.arg("-kernel").arg(image);
    command.arg("-initrd").arg(initramfs);
}

/// A guest with a NIC that runs. Fields are dropped in this order: QEMU, what its NIC leads to, then the
/// namespace that these are in.
#[derive(Debug)]
pub(super) struct Guest {
    console: Console,
    /// Between it and the clients, if it has a VLAN.
    pub(super) trunk: Option<Trunk>,
    pub(super) namespace: Namespace,
}

impl Guest {
    /// Starts the guest and waits until it can be told what to do; what its console says is kept in
    /// `log`.
    pub(super) fn start(
        parts: &Parts,
        (nic, link, disk): (Nic, GuestLink, GuestDisk),
        (initramfs, images): (&Path, &[PathBuf]),
        log: &Path,
    ) -> Result<Self> {
        let namespace = Namespace::new("lab")?;
        let trunk = if link == GuestLink::Vlan {
            let directory = initramfs.parent().context("a file has a directory")?;
            let trunk = Trunk::start(&namespace, TAP, directory)?;
            namespace.ip(&format!("address add {PLAIN_CLIENT} dev {PLAIN_TAP}"))?;
            namespace.ip(&format!("link set {PLAIN_TAP} up"))?;
            Some(trunk)
        } else {
            namespace.ip(&format!("tuntap add dev {TAP} mode tap vnet_hdr"))?;
            None
        };
        for address in CLIENT_ADDRESSES {
            namespace.ip(&format!("address add {address} dev {TAP}"))?;
        }
        namespace.ip(&format!("link set {TAP} up"))?;

        let mut command = parts.qemu(namespace.command("env"));
        let kernel = &parts.kernel(link.kernel())?.image;
        common_arguments(&mut command, kernel, initramfs);
        let mut kernel_arguments = "console=ttyS0 quiet panic=-1 iomem=relaxed".to_owned();
        if link == GuestLink::Vlan {
            kernel_arguments += &format!(" lab.vlan={VLAN}");
        }
        match disk {
            GuestDisk::Kernel | GuestDisk::Passthrough => command.args(["-machine", "q35"]),
            GuestDisk::Vfio => {
                kernel_arguments += " ";
                kernel_arguments += IOMMU_ARGUMENTS;
                command.args(IOMMU)
            }
        };
        command.args(["-accel", "tcg", "-smp", "1"]);
        command.args(["-append", &kernel_arguments]);
        for (number, image) in (FIRST_CONTROLLER..).zip(images) {
            let drive = format!(
                "id=disk{number},if=none,format=raw,readonly=on,file={}",
                image.display()
            );
            let controller = format!("nvme,drive=disk{number},serial=atlas{number},addr={number}");
            command.args(["-drive", &drive, "-device", &controller]);
        }
        let header = if nic.has_large_frames() { "on" } else { "off" };
        let backend = match &trunk {
            Some(trunk) => trunk.backend(),
            None => format!(
                "tap,id=net,ifname={TAP},script=no,downscript=no,vhost=off,vnet_hdr={header}"
            ),
        };
        command.args(["-netdev", &backend]);
        let device = format!("{},netdev=net,romfile=", nic.device(link));
        command.args(["-device", &device]);

        let mut guest = Self {
            console: Console::start(command, log)?,
            trunk,
            namespace,
        };
        let up = guest.await_line("lab: up, ", Duration::from_secs(120))?;
        println!("        the guest is {}", up.trim_start_matches("lab: "));
        Ok(guest)
    }

    /// As [`Console::tell`].
    pub(super) fn tell(&mut self, command: &str) -> Result<()> {
        self.console.tell(command)
    }

    /// As [`Console::await_line`].
    pub(super) fn await_line(&mut self, words: &str, limit: Duration) -> Result<String> {
        self.console.await_line(words, limit)
    }

    /// Ends the guest; an error says what its kernel complained of.
    pub(super) fn end(mut self) -> Result<()> {
        let complaints = said(&mut self.console, "complaints")?;
        self.console.end()?;
        refuse(&complaints)
    }
}

/// What the guest answers to a command of its first process: lines that begin with `lab: says`.
pub(super) fn said(console: &mut Console, command: &str) -> Result<Vec<String>> {
    console.tell(command)?;
    let mut all = Vec::new();
    loop {
        let line = console.await_line("lab: ", Duration::from_secs(20))?;
        match line.strip_prefix("lab: says ") {
            Some(text) => all.push(text.to_owned()),
            None => return Ok(all),
        }
    }
}

/// Fails if the guest's kernel complained.
pub(super) fn refuse(complaints: &[String]) -> Result<()> {
    let Some(first) = complaints.first() else {
        return Ok(());
    };
    let count = complaints.len();
    bail!("the guest's kernel complains {count} times, first: {first}")
}

/// Reads the console on a thread of its own, so that the guest never waits for us.
fn lines(mut stdout: std::process::ChildStdout, mut log: File) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        // Nobody to tell of an error: the receiver sees the end.
        let _ = for_each_line(&mut stdout, |line| {
            let _ = writeln!(log, "{line}");
            let _ = sender.send(line.to_owned());
        });
    });
    receiver
}
