//! The far end of a trunk: what stands between a guest that has a VLAN device and clients that have none.
//!
//! QEMU passes each frame of the guest's NIC as a datagram. Frames with the VLAN's tag go to one TAP,
//! without it, frames without a tag to another; both ways. So the clients need no driver for VLANs, and a
//! frame that the guest should not have sent is counted.
//!
//! ```text
//!  guest: eth0.100 -- eth0 | QEMU | datagrams | trunk -- lab0 (the VLAN's clients)
//!                                                     \- lab1 (the others)
//! ```
//!
//! It refuses frames with other tags: they are counted and dropped. Bounded by: one frame at a time; what
//! waits is in the sockets' and the TAPs' queues, which drop.

use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use testbed::namespace::Namespace;

/// The VLAN's number.
pub(super) const VLAN: u16 = 100;
/// The TAP of frames without a tag.
pub(super) const PLAIN_TAP: &str = "lab1";

/// Bytes of the MAC addresses, and of a tag behind them.
const ADDRESSES_BYTES: usize = 12;
const TAG_BYTES: usize = 4;
/// The tag of our frames: 802.1Q, priority 0.
const TAG: [u8; TAG_BYTES] = [0x81, 0x00, 0, 100];
/// No frame is larger.
const FRAME_BYTES_MAX: usize = 70_000;
/// Frames that are passed between two looks at the other sources.
const BATCH: usize = 64;

/// The thread that passes frames, which ends with this.
#[derive(Debug)]
pub(super) struct Trunk {
    directory: PathBuf,
    is_ended: Arc<AtomicBool>,
    refused: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Trunk {
    /// Makes both TAPs in the namespace, and begins. QEMU is told of it by [`Trunk::backend`].
    pub(super) fn start(namespace: &Namespace, tap: &str, directory: &Path) -> Result<Self> {
        let near = directory.join("trunk");
        // Of a guest before.
        let _ = std::fs::remove_file(&near);
        let socket = UnixDatagram::bind(&near).context("binding the trunk's socket")?;
        socket.set_nonblocking(true)?;
        let names = [tap.to_owned(), PLAIN_TAP.to_owned()];
        let taps = namespace.enter(|| {
            let open = |name: &String| nic_wire::tap::open_plain(name);
            Ok([open(&names[0])?, open(&names[1])?])
        })?;
        let (is_ended, refused) = (Arc::default(), Arc::default());
        let ends = Ends {
            socket,
            guest: directory.join("guest"),
            taps,
            refused: Arc::clone(&refused),
        };
        let flag: Arc<AtomicBool> = Arc::clone(&is_ended);
        let thread = std::thread::spawn(move || ends.run(&flag));
        Ok(Self {
            directory: directory.to_owned(),
            is_ended,
            refused,
            thread: Some(thread),
        })
    }

    /// What QEMU is told of the NIC's other end.
    pub(super) fn backend(&self) -> String {
        let (near, far) = (self.directory.join("guest"), self.directory.join("trunk"));
        let _ = std::fs::remove_file(&near);
        format!(
            "dgram,id=net,local.type=unix,local.path={},remote.type=unix,remote.path={}",
            near.display(),
            far.display()
        )
    }

    /// Frames of the guest that had another tag.
    pub(super) fn refused_frames(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl Drop for Trunk {
    fn drop(&mut self) {
        self.is_ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic has been printed.
            let _ = thread.join();
        }
    }
}

/// What frames pass between.
struct Ends {
    socket: UnixDatagram,
    /// Where QEMU receives.
    guest: PathBuf,
    /// Of the VLAN, and of frames without a tag.
    taps: [std::fs::File; 2],
    refused: Arc<AtomicU64>,
}

impl Ends {
    fn run(mut self, is_ended: &AtomicBool) {
        let pause = Timespec {
            tv_sec: 0,
            tv_nsec: i64::try_from(Duration::from_millis(50).as_nanos()).unwrap_or(0),
        };
        let mut buffer = vec![0; FRAME_BYTES_MAX];
        while !is_ended.load(Ordering::Relaxed) {
            let [vlan, plain] = &self.taps;
            let mut sources = [self.socket.as_fd(), vlan.as_fd(), plain.as_fd()]
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            // An interruption is as good as a timeout.
            let _ = poll(&mut sources, Some(&pause));
            for _ in 0..BATCH {
                if !self.pass_from_guest(&mut buffer) {
                    break;
                }
            }
            for place in [0, 1] {
                for _ in 0..BATCH {
                    if !self.pass_to_guest(place, &mut buffer) {
                        break;
                    }
                }
            }
        }
    }

    /// Whether there was a frame.
    fn pass_from_guest(&mut self, buffer: &mut [u8]) -> bool {
        let Ok(length) = self.socket.recv(buffer) else {
            return false;
        };
        let frame = buffer.get(..length).unwrap_or_default();
        // What a TAP has no room for is lost, as on a wire.
        let _ = match sort(frame) {
            Sorted::OfVlan(frame) => self.taps[0].write(&frame),
            Sorted::Plain => self.taps[1].write(frame),
            Sorted::Other => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                Ok(0)
            }
        };
        true
    }

    /// Whether there was a frame.
    fn pass_to_guest(&mut self, place: usize, buffer: &mut [u8]) -> bool {
        let Ok(length) = self.taps[place].read(buffer) else {
            return false;
        };
        let frame = buffer.get(..length).unwrap_or_default();
        let frame = if place == 0 {
            with_tag(frame)
        } else {
            frame.to_vec()
        };
        // Until QEMU is there, and while its queue is full, frames wait a little or are lost.
        for _ in 0..BATCH {
            match self.socket.send_to(&frame, &self.guest) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_micros(200));
                }
                _ => break,
            }
        }
        true
    }
}

/// Where a frame of the guest belongs.
#[derive(Debug, PartialEq, Eq)]
enum Sorted {
    /// Into the VLAN, without its tag.
    OfVlan(Vec<u8>),
    /// It has no tag.
    Plain,
    /// It has another tag, or one that is not as it should be.
    Other,
}

fn sort(frame: &[u8]) -> Sorted {
    match frame.get(ADDRESSES_BYTES..ADDRESSES_BYTES + TAG_BYTES) {
        Some(tag) if tag == TAG => {
            let (addresses, rest) = frame.split_at(ADDRESSES_BYTES);
            let rest = rest.get(TAG_BYTES..).unwrap_or_default();
            // A second tag would be of no VLAN of ours.
            if matches!(rest.first_chunk(), Some([0x81, 0x00] | [0x88, 0xa8])) {
                return Sorted::Other;
            }
            Sorted::OfVlan([addresses, rest].concat())
        }
        Some([0x81, 0x00, ..] | [0x88, 0xa8, ..]) | None => Sorted::Other,
        Some(_) => Sorted::Plain,
    }
}

fn with_tag(frame: &[u8]) -> Vec<u8> {
    let (addresses, rest) = frame.split_at(ADDRESSES_BYTES.min(frame.len()));
    [addresses, &TAG, rest].concat()
}

#[cfg(test)]
mod tests {
    use super::{Sorted, TAG, VLAN, sort, with_tag};

    #[test]
    fn frames_are_sorted_by_their_tags() {
        assert_eq!(TAG[2..], VLAN.to_be_bytes());
        let plain: Vec<u8> = (0..60).collect();
        assert_eq!(sort(&plain), Sorted::Plain);
        let ours = with_tag(&plain);
        assert_eq!(ours.len(), 64);
        assert_eq!(sort(&ours), Sorted::OfVlan(plain.clone()));
        assert_eq!(sort(&with_tag(&ours)), Sorted::Other, "two tags");
        let mut other = ours.clone();
        other[15] = 101;
        assert_eq!(sort(&other), Sorted::Other, "another VLAN");
        let mut other = ours;
        other[14] = 0x20;
        assert_eq!(sort(&other), Sorted::Other, "a priority");
        assert_eq!(sort(&plain[..15]), Sorted::Other, "too short");
    }
}
