//! The TAP: made, set up and taken down; frames one by one.
//!
//! It lives in the network namespace of the thread that opens it. Addresses and state are set by
//! iproute2's `ip`. An interface that is there already is attached to and left as it is afterwards
//! but for what was set; one that is made here goes with its descriptor.
//!
//! It refuses interfaces that are no TAPs (the kernel does). Bounds: [`QUEUE_FRAMES`] frames wait to be
//! read; what comes beyond is lost and counted by `Tap::dropped_frames`: a run that lost any is
//! void. One system call for each frame either way.

use std::fs::{self, File, OpenOptions};
use std::io::{Error, ErrorKind, IoSlice, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::filter::{self, Instruction};
use crate::frame::VNET_HEADER_BYTES;
use crate::sys;

/// Frames that may wait for the reader: as many as thousands of connections have on their way, whose
/// windows nothing but this queue bounds when the clients are slower than the server.
pub const QUEUE_FRAMES: u32 = 131_072;

/// Room for the largest frame: virtio-net header, Ethernet, IPv6 with 65,535 bytes of payload.
pub(crate) const FRAME_BYTES_MAX: usize = VNET_HEADER_BYTES + 14 + 40 + 65_535;

/// A TAP whose frames are shortened by [`crate::filter`].
#[derive(Debug)]
pub(crate) struct Tap {
    file: File,
    name: String,
    program: OwnedFd,
    /// The kernel measures programs while this lives.
    measuring: Option<OwnedFd>,
}

impl Tap {
    /// Opens a TAP, makes it if it is not there, has this program shorten its frames, and gives the host
    /// its addresses on it (CIDR).
    pub(crate) fn open(
        name: &str,
        host_addresses: &[String],
        program: &[Instruction],
    ) -> Result<Self> {
        let file = attach(name, true)?;
        let fd = file.as_fd();
        sys::offload(fd).context("taking the TAP's offloads")?;
        let program = sys::load_filter(program).context("loading a BPF program")?;
        sys::set_filter(fd, program.as_fd()).context("attaching a BPF program to the TAP")?;
        let steering = sys::load_filter(&filter::first_queue());
        let steering = steering.context("loading a BPF program")?;
        sys::set_steering(fd, steering.as_fd()).context("attaching a BPF program to the TAP")?;
        let measuring = sys::measure_programs().context("measuring BPF programs")?;
        ip(&format!("link set dev {name} txqueuelen {QUEUE_FRAMES} up"))?;
        for address in host_addresses {
            let nodad = if address.contains(':') { " nodad" } else { "" };
            ip(&format!("address replace {address} dev {name}{nodad}"))?;
        }
        Ok(Self {
            file,
            name: name.to_owned(),
            program,
            measuring: Some(measuring),
        })
    }

    /// Has what is received on the interface worked on by this core, as a NIC's interrupt would:
    /// else the core that writes to the TAP does it.
    pub(crate) fn steer_to(&self, core: usize) -> Result<()> {
        let name = &self.name;
        let of_sysfs = fs::read_to_string(format!("/sys/class/net/{name}/ifindex"));
        let index = ip(&format!("-oneline link show dev {name}"))?;
        let is_ours = of_sysfs.is_ok_and(|it| index.starts_with(&format!("{}:", it.trim())));
        ensure!(
            is_ours,
            "/sys shows another network namespace: run inside by `ip netns exec`, or leave \
             --server-core out"
        );
        let mut mask = format!("{:x}", 1_u32 << (core % 32));
        for _ in 0..core / 32 {
            mask.push_str(",00000000");
        }
        let path = format!("/sys/class/net/{name}/queues/rx-0/rps_cpus");
        fs::write(&path, mask).with_context(|| format!("writing {path}"))
    }

    /// Receives a frame with its virtio-net header, if one waits: its length.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        match self.file.read(buffer) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error).context("reading from the TAP"),
        }
    }

    /// Sends a frame in parts, the virtio-net header first. One that the host has no room for is lost, as on a wire.
    pub(crate) fn send(&mut self, parts: [&[u8]; 3]) -> Result<()> {
        // The device takes whole frames or none.
        let sent = self.file.write_vectored(&parts.map(IoSlice::new)).map(drop);
        match sent.as_ref().err().and_then(Error::raw_os_error) {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => Ok(()),
            _ => sent.context("writing to the TAP; is the interface up?"),
        }
    }

    /// Frames of the server that found no room before the reader, since the interface was made.
    pub(crate) fn dropped_frames(&self) -> Result<u64> {
        dropped_frames(&self.name)
    }

    /// The kernel measures programs no more.
    pub(crate) fn end_measuring(&mut self) {
        self.measuring = None;
    }

    /// How long the program ran while that was measured, nanoseconds, and how often.
    pub(crate) fn filter_cost(&self) -> Result<(u64, u64)> {
        sys::program_cost(self.program.as_fd()).context("asking what a BPF program cost")
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Makes a TAP whose frames are those of a wire: no virtio-net header, no large segments, no unfinished
/// checksums. It is down, has no address, and goes with its descriptor, which does not block.
///
/// # Errors
/// No permission (`CAP_NET_ADMIN`), no `/dev/net/tun`, or an interface of that name that is no TAP.
pub fn open_plain(name: &str) -> Result<File> {
    attach(name, false)
}

fn attach(name: &str, has_virtio_header: bool) -> Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")
        .context("opening /dev/net/tun; load it with `modprobe tun`")?;
    sys::attach_tap(file.as_fd(), name, has_virtio_header)
        .with_context(|| format!("attaching to the TAP {name}: it needs CAP_NET_ADMIN"))?;
    Ok(file)
}

/// Frames that found no room before the reader of an interface of this thread's network namespace, since it was made.
///
/// # Errors
/// There is no such interface.
pub fn dropped_frames(name: &str) -> Result<u64> {
    let path = "/proc/thread-self/net/dev";
    let table = fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
    transmit_drops(&table, name).with_context(|| format!("{path} has no line for {name}"))
}

/// The column of dropped transmitted frames in `/proc/net/dev`.
fn transmit_drops(table: &str, name: &str) -> Option<u64> {
    let mut lines = table.lines().filter_map(|line| line.split_once(':'));
    let (_, columns) = lines.find(|(found, _)| found.trim() == name)?;
    columns.split_whitespace().nth(11)?.parse().ok()
}

fn ip(words: &str) -> Result<String> {
    let output = Command::new("ip")
        .args(words.split_whitespace())
        .output()
        .context("running ip (iproute2)")?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("ip {words}: {}", text.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    #[test]
    fn drops_are_in_the_twelfth_column() {
        let table = "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop\n\
                     wire0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n";
        assert_eq!(super::transmit_drops(table, "wire0"), Some(12));
        assert_eq!(super::transmit_drops(table, "wire"), None);
    }
}
