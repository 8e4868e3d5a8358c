//! A link that writes its frames to a pcap file: for debugging, not for measuring.
//!
//! It wraps any [`Link`] and does not change its behaviour. Frames are written as they were handed
//! over: a large frame as one large record, a partial checksum as it is, as on any host with
//! offloads. Outgoing frames are written once the link has taken them.
//!
//! It refuses to fail the link: the first write error ends the capture and is counted. It writes to
//! a file between frames, which may block: do not measure with it.
//!
//! Bounds: [`CaptureConfig::bytes_max`] of file, [`CaptureConfig::snap_bytes`] of each frame, one
//! buffer allocated at start.
//!
//! Format: draft-ietf-opsawg-pcap, nanosecond timestamps, little-endian on every host.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use clock::Instant;
use memory::SlotMemory;
use wire::Outgoing;

use crate::counters::LinkCounters;
use crate::error::{LinkError, TransmitError};
use crate::{Capabilities, CopyReason, FramePath, InterfaceState, Link, Received, Sent};

/// draft-ietf-opsawg-pcap s4: "Magic Number" of files with nanoseconds.
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const VERSION: [u16; 2] = [2, 4];
const LINKTYPE_ETHERNET: u32 = 1;
const FILE_HEADER_BYTES: u64 = 24;
const RECORD_HEADER_BYTES: u64 = 16;
/// Bytes collected before they are written.
const BUFFER_BYTES: usize = 256 * 1024;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// How much to capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureConfig {
    /// Bytes of each frame written at most.
    pub snap_bytes: u32,
    /// Bytes of the whole file at most; the first frame that would pass it ends the capture.
    pub bytes_max: u64,
    /// What the worker's start was in Unix time, nanoseconds: records then say the time of day.
    pub epoch_nanos: u64,
}

impl Default for CaptureConfig {
    /// Whole frames, one gigabyte, the worker's start as zero.
    fn default() -> Self {
        Self {
            snap_bytes: 262_144,
            bytes_max: 1 << 30,
            epoch_nanos: 0,
        }
    }
}

/// What was captured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureCounters {
    /// Frames written, whole or in part.
    pub written_frames: u64,
    /// Frames that passed after the capture had ended, or ended it.
    pub missed_frames: u64,
    /// Write errors; the first ends the capture.
    pub write_errors: u64,
}

/// A link and the file its frames are written to.
#[derive(Debug)]
pub struct Captured<L: Link, W: Write = BufWriter<File>> {
    link: L,
    capture: Capture<W>,
}

impl<L: Link> Captured<L> {
    /// Creates the file, readable by its owner alone, or truncates it. A symbolic link is not
    /// followed: in a directory that others may write to, it could point to any file.
    ///
    /// # Errors
    /// If the file cannot be created or written; `ELOOP` if it is a symbolic link, `ENXIO` if it is a FIFO
    /// that nobody reads.
    pub fn create(link: L, path: &Path, config: CaptureConfig) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        // The open of a FIFO would wait until somebody reads it. Held, so that its reader stays.
        let _opened = options
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path)?;
        let file = options.custom_flags(libc::O_NOFOLLOW).open(path)?;
        Self::new(link, BufWriter::with_capacity(BUFFER_BYTES, file), config)
    }
}

impl<L: Link, W: Write> Captured<L, W> {
    /// Writes to anything; it should buffer.
    ///
    /// # Errors
    /// If the file header cannot be written.
    pub fn new(link: L, output: W, config: CaptureConfig) -> io::Result<Self> {
        Ok(Self {
            link,
            capture: Capture::new(output, config)?,
        })
    }

    /// The link itself.
    pub const fn link(&self) -> &L {
        &self.link
    }

    /// What was captured until now.
    #[must_use]
    pub const fn capture_counters(&self) -> CaptureCounters {
        self.capture.counters
    }
}

impl<L: Link, W: Write> Link for Captured<L, W> {
    fn capabilities(&self) -> Capabilities {
        self.link.capabilities()
    }

    fn frame_path(&self) -> FramePath {
        self.link.frame_path()
    }

    fn is_polling_in_vain(&self) -> bool {
        self.link.is_polling_in_vain()
    }

    fn apply_interface_state(&mut self, state: &InterfaceState) -> Capabilities {
        self.link.apply_interface_state(state)
    }

    fn share_addresses(&mut self, addresses: &[IpAddr]) -> Result<(), i32> {
        self.link.share_addresses(addresses)
    }

    fn set_receiving(&mut self, is_receiving: bool) -> Result<(), i32> {
        self.link.set_receiving(is_receiving)
    }

    fn receive(
        &mut self,
        now: Instant,
        frames_max: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, LinkError> {
        let capture = &mut self.capture;
        let result = self.link.receive(now, frames_max, &mut |received| {
            capture.write(now, &[received.frame]);
            sink(received);
        });
        if !matches!(result, Ok(1..)) {
            // The link is idle: lets a reader of the file see all frames.
            capture.flush();
        }
        result
    }

    fn zero_copy(&self) -> Result<(), CopyReason> {
        self.link.zero_copy()
    }

    fn lent_stride_bytes(&self, stride_bytes: usize) -> usize {
        self.link.lent_stride_bytes(stride_bytes)
    }

    fn borrow_slots(&mut self, slots: SlotMemory) -> Result<(), CopyReason> {
        self.link.borrow_slots(slots)
    }

    fn return_slots(&mut self) {
        self.link.return_slots();
    }

    fn give_back(&mut self, now: Instant, sink: &mut dyn FnMut(u32)) {
        self.link.give_back(now, sink);
    }

    fn transmit(&mut self, now: Instant, frame: &Outgoing<'_>) -> Result<Sent, TransmitError> {
        let sent = self.link.transmit(now, frame)?;
        let mut parts = [frame.headers; 1 + Outgoing::PARTS_MAX];
        for (entry, part) in parts[1..].iter_mut().zip(frame.payload) {
            *entry = part;
        }
        let count = 1 + frame.payload.len();
        self.capture
            .write(now, parts.get(..count).unwrap_or(&parts));
        Ok(sent)
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.link.poll_fd()
    }

    fn request_fd(&self) -> Option<BorrowedFd<'_>> {
        self.link.request_fd()
    }

    fn clear_requests(&mut self) -> bool {
        self.link.clear_requests()
    }

    fn writable_fd(&self) -> Option<BorrowedFd<'_>> {
        self.link.writable_fd()
    }

    fn counters(&self) -> LinkCounters {
        self.link.counters()
    }
}

#[derive(Debug)]
struct Capture<W: Write> {
    output: W,
    config: CaptureConfig,
    written_bytes: u64,
    /// Whether something was written since the last flush.
    dirty: bool,
    ended: bool,
    counters: CaptureCounters,
}

impl<W: Write> Capture<W> {
    fn new(mut output: W, config: CaptureConfig) -> io::Result<Self> {
        output.write_all(&file_header(config.snap_bytes))?;
        Ok(Self {
            output,
            config,
            written_bytes: FILE_HEADER_BYTES,
            dirty: true,
            ended: false,
            counters: CaptureCounters::default(),
        })
    }

    /// Writes one frame, given in parts, unless the capture has ended.
    fn write(&mut self, now: Instant, parts: &[&[u8]]) {
        let frame_bytes: usize = parts.iter().map(|part| part.len()).sum();
        let frame_bytes = u32::try_from(frame_bytes).unwrap_or(u32::MAX);
        let kept_bytes = frame_bytes.min(self.config.snap_bytes);
        let after = self.written_bytes + RECORD_HEADER_BYTES + u64::from(kept_bytes);
        if self.ended || after > self.config.bytes_max {
            self.ended = true;
            self.counters.missed_frames += 1;
            return;
        }
        let time_nanos = self.config.epoch_nanos.saturating_add(now.as_nanos());
        match write_record(&mut self.output, time_nanos, kept_bytes, frame_bytes, parts) {
            Ok(()) => {
                self.written_bytes = after;
                self.dirty = true;
                self.counters.written_frames += 1;
            }
            Err(_) => {
                self.counters.missed_frames += 1;
                self.fail();
            }
        }
    }

    fn flush(&mut self) {
        if self.dirty && self.output.flush().is_err() {
            self.fail();
        }
        self.dirty = false;
    }

    fn fail(&mut self) {
        self.counters.write_errors += 1;
        self.ended = true;
    }
}

impl<W: Write> Drop for Capture<W> {
    fn drop(&mut self) {
        self.flush();
    }
}

/// What a file begins with. Of each frame it has `snap_bytes` at most.
#[must_use]
pub fn file_header(snap_bytes: u32) -> [u8; 24] {
    let mut header = [0; 24];
    header[..4].copy_from_slice(&MAGIC_NANOSECONDS.to_le_bytes());
    header[4..6].copy_from_slice(&VERSION[0].to_le_bytes());
    header[6..8].copy_from_slice(&VERSION[1].to_le_bytes());
    header[16..20].copy_from_slice(&snap_bytes.to_le_bytes());
    header[20..].copy_from_slice(&LINKTYPE_ETHERNET.to_le_bytes());
    header
}

/// Writes a frame, given in parts, of which `kept_bytes` of `frame_bytes` are kept. `time_nanos` is of Unix time.
///
/// # Errors
/// Those of `output`.
pub fn write_record(
    output: &mut impl Write,
    time_nanos: u64,
    kept_bytes: u32,
    frame_bytes: u32,
    parts: &[&[u8]],
) -> io::Result<()> {
    // The format has 32 bits for seconds: they last until 2106.
    let seconds = u32::try_from(time_nanos / NANOS_PER_SECOND).unwrap_or(u32::MAX);
    let nanos = u32::try_from(time_nanos % NANOS_PER_SECOND).expect("invariant: below 10^9");
    for word in [seconds, nanos, kept_bytes, frame_bytes] {
        output.write_all(&word.to_le_bytes())?;
    }
    let mut left = kept_bytes as usize;
    for part in parts {
        let (kept, _) = part.split_at(part.len().min(left));
        output.write_all(kept)?;
        left -= kept.len();
    }
    Ok(())
}

#[cfg(test)]
mod tests;
