//! Blocks to and from the devices of a raw store, through `diskmap`: many commands at once, in slots.
//!
//! It refuses to hide an error: the first one ends the transfer. Bounded by [`SLOTS`] slots of
//! [`SLOT_BYTES`].

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;

use clock::Instant;
use diskmap::uring::{Uring, UringConfig};
use diskmap::{Completion, DeviceRange, Disk as _, DiskError, FileIndex, FileSource, Read, Write};
use memory::{Arena, ArenaConfig, FilledSlot, FreeSlot, PageKind};
use rustix::event::{PollFd, PollFlags};
use store::raw::Device;
use volume::BLOCK_BYTES;

use crate::WriteError;

/// Commands in progress, each with a slot: enough for the queues of several devices.
const SLOTS: u32 = 32;
/// Bytes of a slot: a command of usual length for a device, a whole number of blocks.
pub(crate) const SLOT_BYTES: u32 = 256 << 10;
/// No time is measured here.
const NOW: Instant = Instant::ZERO;

/// The devices of a store, open in a ring.
#[derive(Debug)]
pub struct Transfer {
    arena: Arena,
    disk: Uring,
    devices: Vec<OpenDevice>,
    /// Completed reads by their place in order, from `taken` on.
    reads: VecDeque<Option<FilledSlot>>,
    /// Reads taken so far of those that were enqueued.
    taken: u64,
    failed: Option<DiskError>,
}

#[derive(Debug)]
struct OpenDevice {
    name: String,
    file: FileIndex,
    /// To make writes durable.
    descriptor: File,
}

impl Transfer {
    /// Opens a ring for these devices.
    ///
    /// # Errors
    /// The kernel refuses memory or a ring, or a device's blocks are too large.
    pub fn new(devices: &[Device]) -> Result<Self, WriteError> {
        let arena = Arena::new(ArenaConfig {
            slot_bytes: SLOT_BYTES,
            headroom_bytes: 0,
            tailroom_bytes: 0,
            pages: PageKind::Ordinary,
            ..ArenaConfig::new(SLOTS)
        });
        let arena = arena.map_err(|error| WriteError::Refused(error.to_string()))?;
        let config = UringConfig {
            queue_depth: SLOTS,
            files_max: u32::try_from(devices.len()).unwrap_or(u32::MAX),
            fixed_buffers: false,
            register_after_reads: u32::MAX,
            ..UringConfig::default()
        };
        let mut disk =
            Uring::new(config, &arena).map_err(|error| WriteError::Refused(error.to_string()))?;
        let mut open = Vec::new();
        for device in devices {
            let name = device.path.display().to_string();
            let failed =
                |error: &dyn std::fmt::Display| WriteError::Refused(format!("{name}: {error}"));
            let block_bytes = u64::from(BLOCK_BYTES);
            let range = DeviceRange {
                device: Arc::clone(&device.file),
                start_bytes: 0,
                length_bytes: device.size_bytes / block_bytes * block_bytes,
            };
            let opened = disk.open(FileSource::Range(range));
            let (file, limits) = opened.map_err(|error| failed(&error))?;
            if limits.block_bytes > BLOCK_BYTES {
                return Err(WriteError::Refused(format!(
                    "{name}: its blocks have {} bytes; use a device with blocks of at most {BLOCK_BYTES} bytes",
                    limits.block_bytes
                )));
            }
            let descriptor = device.file.try_clone().map_err(|error| failed(&error))?;
            open.push(OpenDevice {
                descriptor: descriptor.into(),
                name,
                file,
            });
        }
        Ok(Self {
            arena,
            disk,
            devices: open,
            reads: VecDeque::new(),
            taken: 0,
            failed: None,
        })
    }

    /// Writes whole blocks, which may be in progress when it returns.
    ///
    /// # Errors
    /// A command failed.
    pub fn write_blocks(
        &mut self,
        device: u16,
        block: u64,
        bytes: &[u8],
    ) -> Result<(), WriteError> {
        let mut offset_bytes = block * u64::from(BLOCK_BYTES);
        for piece in bytes.chunks(SLOT_BYTES as usize) {
            offset_bytes += self.write(device, offset_bytes, |target| {
                target[..piece.len()].copy_from_slice(piece);
                Ok::<_, WriteError>(piece.len())
            })?;
        }
        Ok(())
    }

    /// Writes what `fill` puts into a slot and returns the length of, with zeros up to a whole block.
    /// Returns the bytes written, 0 if there were none.
    ///
    /// # Errors
    /// What `fill` said, or a command that failed.
    pub fn write<E: From<WriteError>>(
        &mut self,
        device: u16,
        offset_bytes: u64,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<u64, E> {
        let slot = self.free_slot()?;
        let mut slot = slot.into_reading().into_filled(SLOT_BYTES);
        let target = self.arena.payload_mut(&mut slot);
        let filled = fill(target)?;
        if filled == 0 {
            self.arena.release(slot.into_free());
            return Ok(0);
        }
        let whole = filled.next_multiple_of(BLOCK_BYTES as usize);
        target[filled..whole].fill(0);
        let length_bytes = u32::try_from(whole).expect("invariant: at most a slot");
        let write = Write {
            file: self.devices[usize::from(device)].file,
            offset_bytes,
            length_bytes,
            slot,
            token: u64::MAX,
        };
        let accepted = self.disk.write(&mut self.arena, write);
        assert!(accepted.is_ok(), "the queue has an entry for each slot");
        self.submit()?;
        Ok(u64::from(length_bytes))
    }

    /// Waits for all writes, and makes them durable.
    ///
    /// # Errors
    /// A command failed, since the last time, or the flush.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        while self.disk.in_flight() > 0 {
            self.wait()?;
        }
        self.check()?;
        for device in &self.devices {
            let flushed = device.descriptor.sync_data();
            flushed.map_err(|error| {
                WriteError::Broken(format!("{}: cannot be flushed: {error}", device.name))
            })?;
        }
        Ok(())
    }

    /// Reads a part of a device that begins with a block, and passes its pieces in order.
    ///
    /// # Errors
    /// What `sink` said, or a command that failed.
    pub fn read<E: From<WriteError>>(
        &mut self,
        device: u16,
        start_bytes: u64,
        length_bytes: u64,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.taken = 0;
        let (mut asked_bytes, mut passed_bytes) = (0, 0);
        while passed_bytes < length_bytes {
            while asked_bytes < length_bytes
                && let Some(slot) = self.arena.reserve()
            {
                let left = (length_bytes - asked_bytes).min(SLOT_BYTES.into());
                let whole = left.next_multiple_of(BLOCK_BYTES.into());
                let read = Read {
                    file: self.devices[usize::from(device)].file,
                    offset_bytes: start_bytes + asked_bytes,
                    length_bytes: u32::try_from(whole).expect("invariant: at most a slot"),
                    slot,
                    token: self.taken + u64::try_from(self.reads.len()).unwrap_or(u64::MAX),
                };
                self.reads.push_back(None);
                let accepted = self.disk.read(&mut self.arena, read);
                assert!(accepted.is_ok(), "the queue has an entry for each slot");
                asked_bytes += left;
            }
            self.submit()?;
            let Some(slot) = self.next_read()? else {
                self.wait()?;
                continue;
            };
            let wanted = (length_bytes - passed_bytes).min(SLOT_BYTES.into());
            let bytes = self.arena.payload(&slot);
            let wanted = usize::try_from(wanted).expect("invariant: at most a slot");
            let Some(bytes) = bytes.get(..wanted) else {
                let name = &self.devices[usize::from(device)].name;
                return Err(WriteError::Broken(format!("{name}: it ends too early")).into());
            };
            passed_bytes += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            let outcome = sink(bytes);
            self.arena.release(slot.into_free());
            outcome?;
        }
        Ok(())
    }

    /// The next read in order, if it is complete.
    fn next_read(&mut self) -> Result<Option<FilledSlot>, WriteError> {
        self.check()?;
        if !matches!(self.reads.front(), Some(Some(_))) {
            return Ok(None);
        }
        self.taken += 1;
        Ok(self.reads.pop_front().flatten())
    }

    fn free_slot(&mut self) -> Result<FreeSlot, WriteError> {
        loop {
            if let Some(slot) = self.arena.reserve() {
                return Ok(slot);
            }
            self.wait()?;
        }
    }

    fn submit(&mut self) -> Result<(), WriteError> {
        let submitted = self.disk.sqsync(NOW);
        submitted.map_err(|error| WriteError::Broken(error.to_string()))
    }

    /// Waits for at least one completion, and takes all there are.
    fn wait(&mut self) -> Result<(), WriteError> {
        while self.take_completions() == 0 {
            let ring = self.disk.poll_fd().expect("invariant: a real disk");
            let mut polled = [PollFd::new(&ring, PollFlags::IN)];
            match rustix::event::poll(&mut polled, None) {
                // After EINTR something may be complete, too.
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(WriteError::Broken(format!("poll: {error}"))),
            }
            self.disk.clear_wake();
        }
        self.check()
    }

    fn take_completions(&mut self) -> usize {
        let (taken, reads, failed) = (self.taken, &mut self.reads, &mut self.failed);
        let sink = &mut |arena: &mut Arena, completion: Completion| {
            let place = completion.token.checked_sub(taken);
            let place = place.and_then(|place| reads.get_mut(usize::try_from(place).ok()?));
            match (completion.result, place) {
                (Ok(slot), Some(place)) => *place = Some(slot),
                (Ok(slot), None) => arena.release(slot.into_free()),
                (Err((slot, error)), _) => {
                    arena.release(slot);
                    failed.get_or_insert(error);
                }
            }
        };
        let arena = &mut self.arena;
        self.disk.consume_completions(NOW, arena, usize::MAX, sink)
    }

    /// # Errors
    /// A command failed.
    fn check(&self) -> Result<(), WriteError> {
        match self.failed {
            None => Ok(()),
            Some(error) => {
                let names: Vec<_> = self.devices.iter().map(|it| it.name.as_str()).collect();
                Err(WriteError::Broken(format!("{}: {error}", names.join(","))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use store::raw::Access;
    use tempfile::NamedTempFile;

    use super::*;

    const BLOCK: usize = BLOCK_BYTES as usize;
    const SLOT: usize = SLOT_BYTES as usize;

    fn image(blocks: usize) -> NamedTempFile {
        let file = NamedTempFile::new().unwrap();
        file.as_file().set_len((blocks * BLOCK) as u64).unwrap();
        file
    }

    fn open(image: &NamedTempFile, access: Access) -> Transfer {
        let device = Device::open(image.path(), access).unwrap();
        Transfer::new(&[device]).unwrap()
    }

    fn content(length: usize) -> Vec<u8> {
        (0..length)
            .map(|place| u8::try_from((place / 5 + place / 4096) % 251).unwrap())
            .collect()
    }

    /// What was read of the only device.
    fn read(transfer: &mut Transfer, start: usize, length: usize) -> Result<Vec<u8>, WriteError> {
        let mut bytes = Vec::new();
        let sink = &mut |piece: &[u8]| {
            bytes.extend_from_slice(piece);
            Ok::<_, WriteError>(())
        };
        transfer.read(0, start as u64, length as u64, sink)?;
        Ok(bytes)
    }

    #[test]
    fn what_is_written_is_there_after_a_flush_and_read_in_order() {
        // More than there are slots.
        let blocks = (SLOTS as usize + 9) * SLOT / BLOCK + 3;
        let image = image(blocks + 2);
        let mut transfer = open(&image, Access::Write);
        let bytes = content(blocks * BLOCK);
        transfer.write_blocks(0, 1, &bytes).unwrap();
        transfer.flush().unwrap();
        assert_eq!(transfer.disk.in_flight(), 0);
        let written = std::fs::read(image.path()).unwrap();
        assert!(written[BLOCK..BLOCK + bytes.len()] == bytes);
        for length in [
            0,
            1,
            BLOCK,
            SLOT - 1,
            SLOT,
            SLOT + 1,
            bytes.len() - 1,
            bytes.len(),
        ] {
            let found = read(&mut transfer, BLOCK, length).unwrap();
            assert!(found == bytes[..length], "{length} bytes");
        }
        assert_eq!(transfer.arena.free_count(), transfer.arena.slot_count());
    }

    #[test]
    fn the_last_block_is_filled_with_zeros() {
        let image = image(2);
        std::fs::write(image.path(), vec![7; 2 * BLOCK]).unwrap();
        let mut transfer = open(&image, Access::Write);
        let fill = |target: &mut [u8]| {
            target[..5].copy_from_slice(b"hello");
            Ok::<_, WriteError>(5)
        };
        assert_eq!(transfer.write(0, 0, fill).unwrap(), u64::from(BLOCK_BYTES));
        assert_eq!(transfer.write(0, 0, |_| Ok::<_, WriteError>(0)).unwrap(), 0);
        transfer.flush().unwrap();
        let written = std::fs::read(image.path()).unwrap();
        assert_eq!(&written[..5], b"hello");
        assert!(written[5..BLOCK].iter().all(|byte| *byte == 0));
        assert!(written[BLOCK..].iter().all(|byte| *byte == 7));
    }

    #[test]
    fn a_write_that_failed_fails_the_flush() {
        let image = image(2);
        let mut transfer = open(&image, Access::Read { direct: false });
        // It may be known only later that it failed.
        let written = transfer.write_blocks(0, 0, &[1; BLOCK]);
        assert!(written.is_ok(), "{written:?}");
        let error = transfer.flush().unwrap_err();
        assert!(error.to_string().contains("errno 9"), "{error}");
    }

    #[test]
    fn a_device_that_became_shorter_is_an_error() {
        let image = image(4);
        let mut transfer = open(&image, Access::Read { direct: false });
        image.as_file().set_len(BLOCK as u64 + 1).unwrap();
        assert!(read(&mut transfer, 0, BLOCK).is_ok());
        assert!(read(&mut transfer, 0, 3 * BLOCK).is_err());
    }
}
