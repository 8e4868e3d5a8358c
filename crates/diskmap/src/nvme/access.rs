//! What the driver needs of a platform: the registers of one controller, memory for queues, and the
//! slots of an arena as the controller sees them.
//!
//! Whoever implements these traits does what is unsafe about a device: mapping BAR 0, and letting the
//! controller access memory through an IOMMU. The driver passes on bus addresses and never a pointer.
//! The names `sync_for_device` and `sync_for_cpu` are those of Linux's DMA API.

use memory::{Arena, FilledSlot};

/// The registers of one controller: BAR 0 (NVM Express Base Specification 2.0, Controller Properties).
///
/// Offsets are in bytes from the start of the BAR and aligned to the width. A controller that is gone
/// reads as all ones. Clones access the same controller.
pub trait Registers: Clone {
    /// Size of the BAR, bytes: no register beyond it is accessed.
    fn length_bytes(&self) -> u64;

    /// Reads 32 bits.
    fn read_u32(&self, offset_bytes: u64) -> u32;

    /// Reads 64 bits, at once or as two times 32.
    fn read_u64(&self, offset_bytes: u64) -> u64;

    /// Writes 32 bits, behind everything that [`DmaMemory::release`] was called for.
    fn write_u32(&self, offset_bytes: u64, value: u32);

    /// Writes 64 bits, at once or as two times 32.
    fn write_u64(&self, offset_bytes: u64, value: u64);

    /// The platform's last resort (PCI function level reset): true if from now on the controller
    /// accesses no memory, and its registers are as after power-on.
    fn reset_function(&self) -> bool;
}

/// Memory that a controller may read and write, for queues and lists: zeroed, aligned to 4 KiB, in one
/// piece on the bus too.
///
/// The controller writes it at any time, so it is read and written by copies only, and no reference
/// to it exists. When it is dropped, the controller's access ends before the memory is freed: a queue
/// pair may be dropped while the controller still knows it.
pub trait DmaMemory {
    /// Its size, bytes.
    fn length_bytes(&self) -> usize;

    /// The bus address of its first byte.
    fn bus_address(&self) -> u64;

    /// Loads 32 bits, aligned to 4 bytes. What is read after it is at least as new (acquire).
    fn load_u32(&self, offset_bytes: usize) -> u32;

    /// Copies bytes out.
    fn read(&self, offset_bytes: usize, bytes: &mut [u8]);

    /// Copies bytes in.
    fn write(&mut self, offset_bytes: usize, bytes: &[u8]);

    /// Makes everything written so far visible to the controller before the next register is written.
    fn release(&self);
}

/// The slots of one arena, which the controller may read and write, in one piece on the bus too. When
/// this is dropped, the controller's access ends; the arena itself stays mapped while slots are missing.
pub trait DmaSlots {
    /// The bus address of the arena's first byte ([`Arena::slot_memory`]), a multiple of 4 KiB.
    fn bus_address(&self) -> u64;

    /// Makes the bytes of a slot visible to the controller, which will read them. Nothing to do where
    /// caches are coherent.
    fn sync_for_device(&mut self, _arena: &Arena, _slot: &FilledSlot) {}

    /// Makes the bytes that the controller wrote visible to the processor. Nothing to do where caches
    /// are coherent.
    fn sync_for_cpu(&mut self, _arena: &mut Arena, _slot: &mut FilledSlot) {}
}
