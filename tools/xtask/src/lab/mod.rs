//! `cargo xtask lab`: zero copy with the drivers of real NICs, in a guest that QEMU emulates.
//!
//! A frame on loan is read by the device from the slot that the disk filled. If a driver said too
//! early that the device has read it, the slot would be used again, and wrong bytes would be sent; no
//! veth or TAP has such a driver. So a guest runs Debian's kernel with a NIC that QEMU emulates, and
//! Atlas in it, built with assertions: a slot is overwritten as soon as it is given back. Clients
//! outside fetch files and compare every byte.
//!
//! ```text
//!  guest: NVMe -> Atlas -> driver -> NIC | QEMU | TAP -> clients: curl
//!         (emulated)             (emulated)      (a namespace of its own)
//! ```
//!
//! Through AF_XDP sockets, in zero copy, the device reads and writes the sockets' memory itself (`xdp`).
//! A VLAN device of the guest's is served over each link (`vlan`, `trunk`).
//!
//! It refuses to pass if nothing was lent, if bytes differ, or if the guest's kernel complains. It says
//! nothing about speed, nor about what a real device does with its DMA. Bounded by: a limit on every
//! wait; about a gigabyte of files that are kept for the next run.

mod checks;
mod disks;
mod guest;
mod images;
mod parts;
mod store;
mod trunk;
mod vlan;
mod xdp;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};

use self::checks::{Counts, Start, Way};
use self::guest::{Guest, GuestDisk, GuestLink, Nic};
use self::parts::{KernelAge, Parts};
use testbed::certificate::{Authority, KeyKind};
use testbed::namespace::Namespace;
use testbed::packages;
use testbed::process::{Process, background_cargo};
use testbed::suite::{Outcome, Suite};
use testbed::{interrupt, is_root, scratch_directory, target_directory, workspace_root};

/// A first build on a small machine takes minutes.
const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// What the server is built for, to be told apart from what runs while it is built.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// What cargo is told to build of the server and of what checks NVMe controllers.
const SERVER: [&str; 4] = ["--package", "atlas-server", "--bin", "atlas"];
const NVME_CHECK: [&str; 4] = ["--package", "atlas-diskmap", "--example", "nvme_check"];

/// The profile of what runs with assertions in a guest.
const PROFILE: &str = "lab";

/// The server's addresses, its own and the guest's, which its certificate names.
const ADDRESSES: [&str; 4] = ["10.77.0.2", "fd77::2", "10.77.0.1", "fd77::1"];

const LONG_HELP: &str = "\
Needs root, a TAP, and 1 GB in the target directory. The first run fetches two Debian kernels, busybox and
QEMU with apt-get, without installing them, and builds the server once more, static and with
assertions. A NIC then takes one to four minutes. What cannot be had is reported as SKIPPED, and the
exit code is 0; it is 1 if a byte was wrong, a frame was copied that need not be, or the server or the
guest's kernel failed. Logs of the guests: target/lab/NIC.log,
with AF_XDP target/lab/xdp-NIC.log, in a VLAN target/lab/vlan-NIC.log, of a raw store target/lab/store-NIC.log.

virtio-net-early shows that the lab finds what it looks for: its driver gives frames back before the
device has read them, so clients must get wrong bytes.";

/// Options of `lab`.
#[derive(Args, Clone, Debug)]
#[command(after_help = LONG_HELP)]
pub(crate) struct LabOptions {
    /// The NICs to try, separated by commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "e1000e,igb,virtio-net,virtio-net-early"
    )]
    nic: Vec<Nic>,
    /// The server's links to try, separated by commas; xdp and vlan with the NICs whose drivers have zero
    /// copy for AF_XDP (igb, virtio-net)
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "packet,xdp,vlan"
    )]
    link: Vec<GuestLink>,
    /// Tries disks with a driver of our own, behind an IOMMU
    #[arg(long, value_enum, conflicts_with_all = ["nic", "link"])]
    disk: Option<DiskKind>,
    /// The server to test; static, as the guest has no libraries (default: builds it)
    #[arg(long, value_name = "PATH")]
    atlas: Option<PathBuf>,
}

/// Disks that QEMU emulates.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DiskKind {
    /// NVMe controllers with blocks of 512 and of 4,096 bytes, without a NIC: in one to two minutes
    Nvme,
    /// A raw store on two NVMe controllers, served through an e1000e
    Store,
}

impl DiskKind {
    /// Whether the guest has a NIC.
    fn has_nic(self) -> bool {
        self == Self::Store
    }
}

/// Runs all checks; fails if one does.
pub(crate) fn run_command(options: &LabOptions) -> Result<()> {
    let mut suite = Suite::default();
    run_into(&mut suite, options)?;
    suite.close()
}

/// Builds what [`run_disk_checks`] needs, in a thread, while other checks wait for the network. What does not build is
/// reported there, where it is built again.
#[must_use = "the thread is to be joined"]
pub(crate) fn build_ahead() -> JoinHandle<()> {
    std::thread::spawn(|| {
        let lab = target_directory().join("lab");
        for what in [SERVER, NVME_CHECK] {
            if run_build(background_cargo(), &lab, PROFILE, &what).is_err() {
                break;
            }
        }
    })
}

/// The server that guests run, linked with no library.
pub(crate) fn static_server() -> Result<PathBuf> {
    build_as(&target_directory().join("lab"), PROFILE, &SERVER, "atlas")
}

/// Tries the disks, which takes some minutes, once the thread of [`build_ahead`] has ended.
pub(crate) fn run_disk_checks(suite: &mut Suite, ahead: JoinHandle<()>) {
    // A panic has been printed, and what is missing is built below.
    let _ = ahead.join();
    for disk in [DiskKind::Nvme, DiskKind::Store] {
        let options = LabOptions {
            nic: Vec::new(),
            link: Vec::new(),
            disk: Some(disk),
            atlas: None,
        };
        if let Err(error) = run_into(suite, &options) {
            suite.fail("lab", &format!("{error:#}"));
        }
    }
}

fn run_into(suite: &mut Suite, options: &LabOptions) -> Result<()> {
    let lab = target_directory().join("lab");
    fs::create_dir_all(&lab).with_context(|| format!("making {}", lab.display()))?;
    match prepare(&lab, options) {
        Err(_) if interrupt::is_set() => suite.skip("lab", "interrupted"),
        Err(error) => suite.skip("lab", &format!("{error:#}")),
        Ok(parts) if options.disk == Some(DiskKind::Nvme) => {
            run_disks(suite, options, &lab, &parts)?;
        }
        Ok(parts) => run(suite, options, &lab, &parts)?,
    }
    Ok(())
}

/// What must be there for any of it; an error says what is not. A guest without a NIC needs no rights.
fn prepare(lab: &Path, options: &LabOptions) -> Result<Parts> {
    let is_without_nic = options.disk.is_some_and(|disk| !disk.has_nic());
    let ages: Vec<KernelAge> = match options.disk {
        Some(_) => vec![KernelAge::Old],
        None => options.link.iter().map(|link| link.kernel()).collect(),
    };
    if !is_without_nic {
        ensure!(is_root(), "making network namespaces needs root");
        ensure!(Path::new("/dev/net/tun").exists(), "no /dev/net/tun");
    }
    packages::ensure_installed(&packages::FOR_LAB)?;
    if !is_without_nic {
        Namespace::new("try").context("no network namespaces")?;
    }
    Parts::find_or_fetch(lab, &ages)
}

/// What is tried with disks.
fn run_disks(suite: &mut Suite, options: &LabOptions, lab: &Path, parts: &Parts) -> Result<()> {
    let atlas = match &options.atlas {
        Some(path) => path.clone(),
        None => build(lab, &SERVER, "atlas")?,
    };
    let check = build(lab, &NVME_CHECK, "examples/nvme_check")?;
    let scratch = scratch_directory("lab")?;
    let mut checks = Suite::default();
    let outcome = disks::run(&mut checks, parts, (lab, scratch.path()), (&atlas, &check));
    suite.add(checks);
    suite.run("NVMe: the guest", || outcome.map(|()| Outcome::Passed));
    Ok(())
}

fn run(suite: &mut Suite, options: &LabOptions, lab: &Path, parts: &Parts) -> Result<()> {
    let atlas = match &options.atlas {
        Some(path) => path.clone(),
        None => build(lab, &SERVER, "atlas")?,
    };
    let scratch = scratch_directory("lab")?;
    let content = scratch.path().join("content");
    let fixture = Fixture {
        parts,
        lab,
        atlas: &atlas,
        names: images::write_files(&content)?,
        content,
        scratch: scratch.path(),
    };
    let disk = match options.disk {
        Some(DiskKind::Store) => {
            images::make_store(&atlas, &fixture.content, &fixture.disks(GuestDisk::Vfio))?;
            GuestDisk::Vfio
        }
        _ => {
            images::make_disk(&fixture.content, &fixture.disks(GuestDisk::Kernel)[0])?;
            GuestDisk::Kernel
        }
    };
    for (nic, link) in cases(options) {
        let name = format!("{}: the guest", case_name(nic, link, disk));
        // Its ways are checks of their own; this one is what they have in common.
        let mut ways = Suite::default();
        let mut outcome = Err(anyhow::anyhow!("not tried"));
        if !interrupt::is_set() {
            outcome = fixture.try_nic(&mut ways, (nic, link, disk));
        }
        suite.add(ways);
        suite.run(&name, || outcome.map(|()| Outcome::Passed));
    }
    Ok(())
}

/// What is to be tried: with AF_XDP, only NICs whose drivers have zero copy for it; with a disk of our own,
/// one NIC.
fn cases(options: &LabOptions) -> Vec<(Nic, GuestLink)> {
    if options.disk.is_some() {
        return vec![(Nic::E1000e, GuestLink::Packet)];
    }
    let of_link = |&link: &GuestLink| {
        let nics = options.nic.iter().copied();
        let nics = nics.filter(move |nic| link == GuestLink::Packet || nic.has_xdp_zero_copy());
        nics.map(move |nic| (nic, link))
    };
    options.link.iter().flat_map(of_link).collect()
}

/// Builds a program so that it runs where there are no libraries, with assertions; where it is.
fn build(lab: &Path, what: &[&str], file: &str) -> Result<PathBuf> {
    println!("building {file}, static and with assertions");
    build_as(lab, PROFILE, what, file)
}

/// Builds a program with a profile, so that it runs where there are no libraries; where it is.
fn build_as(lab: &Path, profile: &str, what: &[&str], file: &str) -> Result<PathBuf> {
    let directory = run_build(Command::new("cargo"), lab, profile, what)
        .with_context(|| format!("{file} does not build"))?;
    Ok(directory.join(TARGET).join(profile).join(file))
}

/// Runs a build by a command that starts cargo; the target directory.
///
/// Static: glibc's static libraries are part of its development package, and nothing that is called
/// needs a shared one.
fn run_build(mut cargo: Command, lab: &Path, profile: &str, what: &[&str]) -> Result<PathBuf> {
    let directory = lab.join("build");
    cargo.args(["build", "--quiet", "--profile", profile, "--target", TARGET]);
    cargo.args(what).arg("--target-dir").arg(&directory);
    cargo
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .current_dir(workspace_root())
        .stdin(Stdio::null());
    let status = Process::spawn_tree("cargo build", &mut cargo)?.wait(BUILD_LIMIT)?;
    ensure!(status.success(), "{status}");
    Ok(directory)
}

/// What all guests have in common.
struct Fixture<'a> {
    parts: &'a Parts,
    lab: &'a Path,
    atlas: &'a Path,
    content: PathBuf,
    names: Vec<String>,
    scratch: &'a Path,
}

impl Fixture<'_> {
    /// The images of the disks.
    fn disks(&self, disk: GuestDisk) -> Vec<PathBuf> {
        let image = |number| self.scratch.join(format!("disk{number}.img"));
        (0..disk.controllers()).map(image).collect()
    }

    /// Starts a guest with this NIC and tries everything with it.
    fn try_nic(
        &self,
        suite: &mut Suite,
        (nic, link, disk): (Nic, GuestLink, GuestDisk),
    ) -> Result<()> {
        let authority = Authority::new()?;
        let authority_file = self.scratch.join("authority.pem");
        fs::write(&authority_file, authority.pem())?;
        let identity = authority.issue(KeyKind::Ecdsa, &ADDRESSES)?;
        let identity = identity.write(self.scratch, "lab")?;
        let initramfs = self.scratch.join("initramfs");
        let parts = (self.parts, self.parts.kernel(link.kernel())?);
        let files = images::server_files(self.atlas, &identity)?;
        let modules = [&images::MODULES, disk.modules()].concat();
        let modules = (&modules[..], nic.module_arguments());
        images::make_initramfs(parts, &files, modules, &initramfs)?;
        let name = case_name(nic, link, disk);
        let log = self.lab.join(format!("{name}.log"));
        let images = self.disks(disk);
        let files = (&*initramfs, &*images);
        let guest = Guest::start(self.parts, (nic, link, disk), files, &log)?;
        let mut trial = Trial {
            fixture: self,
            nic,
            disk,
            name,
            authority: authority_file,
            guest,
        };
        match (link, disk) {
            (_, GuestDisk::Vfio) => trial.try_store(suite)?,
            (GuestLink::Packet, _) => trial.try_packet(suite)?,
            (GuestLink::Xdp, _) => trial.try_xdp(suite)?,
            (GuestLink::Vlan, _) => trial.try_vlan(suite)?,
        }
        trial.guest.end()
    }
}

/// The NIC's name, with the link's and the disk's if they are not the usual ones.
fn case_name(nic: Nic, link: GuestLink, disk: GuestDisk) -> String {
    match (link, disk) {
        (_, GuestDisk::Vfio) => format!("store-{}", nic.name()),
        (GuestLink::Packet, _) => nic.name(),
        (GuestLink::Xdp, _) => format!("xdp-{}", nic.name()),
        (GuestLink::Vlan, _) => format!("vlan-{}", nic.name()),
    }
}

/// One guest, and what is tried with it.
struct Trial<'a> {
    fixture: &'a Fixture<'a>,
    nic: Nic,
    disk: GuestDisk,
    /// Of the case, for the names of checks.
    name: String,
    authority: PathBuf,
    guest: Guest,
}

impl Trial<'_> {
    /// Slots on loan to a packet socket.
    fn try_packet(&mut self, suite: &mut Suite) -> Result<()> {
        let start = |choice| Start {
            link: "packet",
            choice,
            is_shared: false,
            disk: self.disk,
        };
        let nic = self.nic;
        suite.run(&format!("{}: zero_copy = \"auto\"", self.name), || {
            let said = checks::start_server(&mut self.guest, start("auto"))?.lends;
            checks::stop_server(&mut self.guest)?;
            println!("        atlas says zero_copy={said}");
            ensure!(
                (said == "yes") == nic.is_known_to_complete(),
                "it says {said}"
            );
            Ok(Outcome::Passed)
        });
        let said = checks::start_server(&mut self.guest, start("on"))?.lends;
        ensure!(said == "yes", "zero_copy = \"on\": it says {said}");
        if nic.can_pause() {
            self.guest.tell("pauses")?;
            println!(
                "        {}",
                self.guest.await_line("pauses", Duration::from_secs(20))?
            );
        }
        let is_tried = |way: &Way| !nic.releases_early() || !(way.is_v6 || way.has_loss);
        for way in Way::all(false).filter(is_tried) {
            self.try_way(suite, way, |counts, _| counts.check_lent(way));
        }
        checks::stop_server(&mut self.guest).map(drop)
    }

    /// Fetches all files one way, in a check of its own; `judge` looks at what the server counted.
    fn try_way(
        &mut self,
        suite: &mut Suite,
        way: Way,
        judge: impl FnOnce(Counts, &mut Guest) -> Result<()>,
    ) {
        let releases_early = self.nic.releases_early();
        suite.run(&format!("{}: {}", self.name, way.name()), || {
            match self.fetch(way, judge) {
                Err(error) if releases_early && checks::is_wrong_byte(&error, way) => {
                    println!("        wrong, as expected: {error:#}");
                    Ok(Outcome::Passed)
                }
                Ok(()) if releases_early => {
                    bail!("frames were given back too early, and no byte was wrong")
                }
                outcome => outcome.map(|()| Outcome::Passed),
            }
        });
    }

    fn fetch(
        &mut self,
        way: Way,
        judge: impl FnOnce(Counts, &mut Guest) -> Result<()>,
    ) -> Result<()> {
        let (fixture, guest) = (self.fixture, &mut self.guest);
        let before = checks::counts(guest)?;
        let files = (&*fixture.content, &*fixture.names);
        checks::fetch(guest, way, files, &self.authority, fixture.scratch)?;
        let counts = checks::counts(guest)?.since(before);
        judge(counts, guest)
    }
}
