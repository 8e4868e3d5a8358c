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
//! It refuses to pass if nothing was lent, if bytes differ, or if the guest's kernel complains. It says
//! nothing about speed, nor about what a real device does with its DMA. Bounded by: a limit on every
//! wait; about a gigabyte of files that are kept for the next run.

mod checks;
mod guest;
mod images;
mod parts;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;

use self::checks::{Counts, Way};
use self::guest::{Guest, Nic};
use self::parts::Parts;
use testbed::certificate::{Authority, KeyKind};
use testbed::namespace::Namespace;
use testbed::packages;
use testbed::process::Process;
use testbed::suite::{Outcome, Suite};
use testbed::{interrupt, is_root, scratch_directory, target_directory, workspace_root};

/// A first build on a small machine takes minutes.
const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// What the server is built for, to be told apart from what runs while it is built.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The server's addresses, which its certificate names.
const ADDRESSES: [&str; 2] = ["10.77.0.2", "fd77::2"];

const LONG_HELP: &str = "\
Needs root, a TAP, and 1 GB in the target directory. The first run fetches a Debian kernel, busybox and
QEMU with apt-get, without installing them, and builds the server once more, static and with
assertions. A NIC then takes one to four minutes. What cannot be had is reported as SKIPPED, and the
exit code is 0; it is 1 if a byte was wrong, a frame was copied that need not be, or the server or the
guest's kernel failed. Logs of the guests: target/lab/NIC.log.

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
    /// The server to test; static, as the guest has no libraries (default: builds it)
    #[arg(long, value_name = "PATH")]
    atlas: Option<PathBuf>,
}

/// Runs all checks; fails if one does.
pub(crate) fn run_command(options: &LabOptions) -> Result<()> {
    let mut suite = Suite::default();
    let lab = target_directory().join("lab");
    fs::create_dir_all(&lab).with_context(|| format!("making {}", lab.display()))?;
    match prepare(&lab) {
        Err(_) if interrupt::is_set() => suite.skip("lab", "interrupted"),
        Err(error) => suite.skip("lab", &format!("{error:#}")),
        Ok(parts) => run(&mut suite, options, &lab, &parts)?,
    }
    suite.close()
}

/// What must be there for any of it; an error says what is not.
fn prepare(lab: &Path) -> Result<Parts> {
    ensure!(is_root(), "making network namespaces needs root");
    ensure!(Path::new("/dev/net/tun").exists(), "no /dev/net/tun");
    packages::ensure_installed(&packages::FOR_LAB)?;
    Namespace::new("try").context("no network namespaces")?;
    Parts::find_or_fetch(lab)
}

fn run(suite: &mut Suite, options: &LabOptions, lab: &Path, parts: &Parts) -> Result<()> {
    let atlas = match &options.atlas {
        Some(path) => path.clone(),
        None => build(lab)?,
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
    images::make_disk(&fixture.content, &fixture.disk())?;
    let mut rows = Vec::new();
    for &nic in &options.nic {
        let name = format!("{}: the guest", nic.name());
        // Its ways are checks of their own; this one is what they have in common.
        let mut ways = Suite::default();
        let mut outcome = Err(anyhow::anyhow!("not tried"));
        if !interrupt::is_set() {
            outcome = fixture.try_nic(&mut ways, nic, &mut rows);
        }
        suite.passed += ways.passed;
        suite.failed.append(&mut ways.failed);
        suite.skipped.append(&mut ways.skipped);
        suite.run(&name, || outcome.map(|()| Outcome::Passed));
    }
    print_table(&rows);
    Ok(())
}

/// Builds the server so that it runs where there are no libraries, with assertions.
///
/// Static: glibc's static libraries are part of its development package, and nothing the server calls
/// needs a shared one.
fn build(lab: &Path) -> Result<PathBuf> {
    println!("building the server, static and with assertions");
    let directory = lab.join("build");
    let mut command = Command::new("cargo");
    command.args(["build", "--quiet", "--profile", "lab", "--target", TARGET]);
    command.args(["--package", "atlas-server", "--bin", "atlas"]);
    command.arg("--target-dir").arg(&directory);
    command
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .current_dir(workspace_root())
        .stdin(Stdio::null());
    let status = Process::spawn_tree("cargo build", &mut command)?.wait(BUILD_LIMIT)?;
    ensure!(status.success(), "the server does not build ({status})");
    Ok(directory.join(TARGET).join("lab/atlas"))
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

/// A line of the table.
struct Row {
    nic: String,
    driver: String,
    way: Way,
    bytes: u64,
    counts: Counts,
    verdict: String,
}

impl Fixture<'_> {
    fn disk(&self) -> PathBuf {
        self.scratch.join("disk.img")
    }

    /// Starts a guest with this NIC and tries everything with it.
    fn try_nic(&self, suite: &mut Suite, nic: Nic, rows: &mut Vec<Row>) -> Result<()> {
        let authority = Authority::new()?;
        let authority_file = self.scratch.join("authority.pem");
        fs::write(&authority_file, authority.pem())?;
        let identity = authority.issue(KeyKind::Ecdsa, &ADDRESSES)?;
        let identity = identity.write(self.scratch, "lab")?;
        let initramfs = self.scratch.join("initramfs");
        let arguments = nic.module_arguments();
        images::make_initramfs(self.parts, self.atlas, &identity, arguments, &initramfs)?;
        let log = self.lab.join(format!("{}.log", nic.name()));
        let disk = self.disk();
        let mut guest = Guest::start(self.parts, nic, (&initramfs, &disk), &log)?;

        let name = nic.name();
        suite.run(&format!("{name}: zero_copy = \"auto\""), || {
            let said = checks::start_server(&mut guest, "auto")?;
            checks::stop_server(&mut guest)?;
            println!("        atlas says zero_copy={said}");
            ensure!(
                (said == "yes") == nic.is_known_to_complete(),
                "it says {said}"
            );
            Ok(Outcome::Passed)
        });
        let said = checks::start_server(&mut guest, "on")?;
        ensure!(said == "yes", "zero_copy = \"on\": it says {said}");
        if nic.can_pause() {
            guest.tell("pauses")?;
            println!(
                "        {}",
                guest.await_line("pauses", Duration::from_secs(20))?
            );
        }
        let ways = Way::all().filter(|way| !nic.releases_early() || !(way.is_v6 || way.has_loss));
        for way in ways {
            let (ip, protocol, loss) = (way.ip(), way.protocol(), way.loss());
            let mut row = Row {
                nic: name.clone(),
                driver: guest.driver.clone(),
                way,
                bytes: 0,
                counts: Counts::default(),
                verdict: String::new(),
            };
            suite.run(&format!("{name}: {ip}, {protocol}, loss {loss}"), || {
                let outcome = self.try_way(&mut guest, way, &authority_file, &mut row);
                row.verdict = match &outcome {
                    Ok(()) => "same".to_owned(),
                    Err(error) => format!("{error:#}"),
                };
                match outcome {
                    Err(error) if nic.releases_early() && checks::is_wrong_byte(&error, way) => {
                        row.verdict = format!("wrong, as expected: {error:#}");
                        Ok(Outcome::Passed)
                    }
                    Ok(()) if nic.releases_early() => {
                        bail!("frames were given back too early, and no byte was wrong")
                    }
                    outcome => outcome.map(|()| Outcome::Passed),
                }
            });
            rows.push(row);
        }
        checks::stop_server(&mut guest)?;
        guest.end()
    }

    fn try_way(&self, guest: &mut Guest, way: Way, authority: &Path, row: &mut Row) -> Result<()> {
        let before = checks::counts(guest)?;
        let files = (&*self.content, &*self.names);
        let fetched = checks::fetch(guest, way, files, authority, self.scratch);
        row.counts = checks::counts(guest)?.since(before);
        row.bytes = fetched?;
        row.counts.check_lent(way)
    }
}

fn print_table(rows: &[Row]) {
    println!();
    println!(
        "| NIC | Kernel, driver | IP | Protocol | Loss | Bytes compared | Bytes sent | Frames lent \
         | Frames copied | Link full | Segments sent again | Bytes received |"
    );
    println!("|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---|");
    for row in rows {
        let counts = row.counts;
        println!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            row.nic,
            row.driver,
            row.way.ip(),
            row.way.protocol(),
            row.way.loss(),
            row.bytes,
            counts.sent_bytes,
            counts.lent_frames,
            counts.sent_frames - counts.lent_frames,
            counts.full_frames,
            counts.retransmitted_segments,
            row.verdict.lines().next().unwrap_or_default()
        );
    }
    println!();
}
