//! Memory for reads that are in flight: slots of the product's arena, found by place.
//!
//! The same memory for every way to read, so that only the way differs. A place's slot is a
//! [`ReadingSlot`] while the kernel may write there, and an arena that misses slots keeps its
//! memory mapped: so no error path hands the kernel memory that is gone.

use anyhow::{Context as _, Result, ensure};
use memory::{Arena, ArenaConfig, ReadingSlot};

use super::Sink;

/// An arena of one slot a place.
pub(super) fn arena(window: u32, read_bytes: u32) -> Result<Arena> {
    let config = ArenaConfig {
        slot_bytes: read_bytes,
        ..ArenaConfig::new(window)
    };
    Ok(Arena::new(config)?)
}

/// The places of one window.
#[derive(Debug)]
pub(super) struct Slots {
    arena: Arena,
    reading: Vec<Option<ReadingSlot>>,
    read_bytes: u32,
    in_flight: u32,
}

impl Slots {
    pub(super) fn new(window: u32, read_bytes: u32) -> Result<Self> {
        Ok(Self {
            arena: arena(window, read_bytes)?,
            reading: (0..window).map(|_| None).collect(),
            read_bytes,
            in_flight: 0,
        })
    }

    /// Where the kernel is to write `read_bytes` bytes, until `finish` of the same place.
    pub(super) fn start(&mut self, place: u32) -> Result<*mut u8> {
        let entry = self
            .reading
            .get_mut(place as usize)
            .context("there is no such place")?;
        ensure!(entry.is_none(), "place {place} has a read in flight");
        let slot = self.arena.reserve().context("invariant: a slot a place")?;
        let slot = entry.insert(slot.into_reading());
        self.in_flight += 1;
        Ok(self.arena.device_address(slot))
    }

    /// The kernel is done with a place; `result` is bytes read, or a negative errno.
    pub(super) fn finish(&mut self, place: u64, result: i64, sink: &mut Sink<'_>) -> Result<()> {
        let index = usize::try_from(place)?;
        let slot = self
            .reading
            .get_mut(index)
            .and_then(Option::take)
            .context("the kernel told of a read nobody asked for")?;
        self.in_flight -= 1;
        if let Ok(errno) = i32::try_from(-result)
            && errno > 0
        {
            self.arena.release(slot.into_free());
            return Err(std::io::Error::from_raw_os_error(errno)).context("a read failed");
        }
        let is_whole = result == i64::from(self.read_bytes);
        if !is_whole {
            self.arena.release(slot.into_free());
            anyhow::bail!("a read brought {result} bytes of {}", self.read_bytes);
        }
        let filled = slot.into_filled(self.read_bytes);
        sink(u32::try_from(place)?, self.arena.payload(&filled));
        self.arena.release(filled.into_free());
        Ok(())
    }

    /// Places that are not home: enqueued or with the kernel.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    pub(super) fn read_bytes(&self) -> u32 {
        self.read_bytes
    }
}
