//! A change of the store, as the writes and flushes that make it, in order.
//!
//! ```text
//!  flush                     data of new objects, written before, is durable
//!  catalogue, each device    over the older of the two there
//!  flush
//!  superblock, each device   over the older of the two there: from the first one on, the change is made
//!  flush                     and it stays
//! ```
//!
//! **What is written depends on nothing that is not durable.** It refuses to be asked for a step before
//! the one before it is complete: that is the caller's promise. Bounded by three flushes
//! and two writes for each device.

use std::collections::VecDeque;

use crate::catalogue::{as_u64, padded};
use crate::digest::sha256;
use crate::mount::slot_of;
use crate::superblock::Superblock;
use crate::{Catalogue, SUPERBLOCKS};

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step<'a> {
    /// Write these blocks; in any order, and not necessarily durable.
    Write {
        /// The device's number.
        device: u16,
        /// First block.
        block: u64,
        /// Whole blocks.
        bytes: &'a [u8],
    },
    /// Make all writes so far durable, on all devices.
    Flush,
    /// The change is durable: [`Commit::into_catalogue`] has what is on the devices now.
    Done,
}

/// A step to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Planned {
    Flush,
    /// Of this device, in the place of this sequence number.
    Catalogue(u16, u64),
    Superblock(u16, u64),
}

/// A change that is being made.
#[derive(Debug)]
pub struct Commit {
    catalogue: Catalogue,
    plan: VecDeque<Planned>,
    catalogue_bytes: u64,
    digest: [u8; 32],
    encoded: Vec<u8>,
    superblock: Vec<u8>,
}

/// Faults that the crash tests must find.
#[cfg(test)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// The data is not flushed before the catalogue's superblock.
    NoDataFlush,
    /// The catalogue is not flushed before its superblock.
    NoCatalogueFlush,
    /// The commit is said to be done before its superblock is durable.
    NoLastFlush,
    /// The superblock comes before the catalogue.
    SuperblockFirst,
    /// The catalogue overwrites the current one.
    SameArea,
    /// The superblock overwrites the current one.
    SameSlot,
    /// Space is used again while the catalogue before still has it: see `Editor`.
    EarlyReuse,
}

impl Commit {
    /// Writes `catalogue`, which fits its area.
    pub(crate) fn new(catalogue: Catalogue) -> Self {
        let devices: Vec<_> = (0..device_count(&catalogue)).collect();
        Self::on(catalogue, &devices)
    }

    fn on(catalogue: Catalogue, devices: &[u16]) -> Self {
        let encoded = catalogue.encode();
        let area_bytes = catalogue.geometry().area_bytes();
        assert!(as_u64(encoded.len()) <= area_bytes, "checked by the editor");
        let sequence = catalogue.sequence();
        let devices = devices.iter();
        let catalogues = devices.clone().map(|it| Planned::Catalogue(*it, sequence));
        let superblocks = devices.map(|it| Planned::Superblock(*it, sequence));
        let plan = [Planned::Flush].into_iter();
        let plan = plan.chain(catalogues).chain([Planned::Flush]);
        let plan = plan.chain(superblocks).chain([Planned::Flush]);
        Self {
            plan: plan.collect(),
            catalogue_bytes: as_u64(encoded.len()),
            digest: sha256(&encoded),
            encoded: padded(encoded),
            superblock: Vec::new(),
            catalogue,
        }
    }

    /// The first catalogue of a new store. Everything before the catalogue areas is to be zero, and
    /// durably so, before its first step.
    ///
    /// # Panics
    /// If the catalogue is not one of [`Catalogue::empty`].
    #[must_use]
    pub fn first(catalogue: Catalogue) -> Self {
        assert!(catalogue.sequence() == 1, "the first catalogue is number 1");
        Self::new(catalogue)
    }

    /// Writes the catalogue that counts to devices that do not have it: [`crate::Mounting::lagging`].
    #[must_use]
    pub fn repair(catalogue: Catalogue, devices: &[u16]) -> Self {
        Self::on(catalogue, devices)
    }

    /// The same with a fault, to see that the crash tests find it.
    #[cfg(test)]
    pub(crate) fn with_fault(mut self, fault: Option<Fault>) -> Self {
        let middle = self.plan.iter().rposition(|it| *it == Planned::Flush);
        let middle = middle.map(|last| last - usize::from(device_count(&self.catalogue)) - 1);
        let middle = middle.expect("three flushes");
        match fault {
            // A flush of the catalogue makes the data durable, too.
            Some(Fault::NoDataFlush) => {
                self.plan.remove(middle);
                self.plan.pop_front();
            }
            Some(Fault::NoCatalogueFlush) => {
                self.plan.remove(middle);
            }
            Some(Fault::NoLastFlush) => {
                self.plan.pop_back();
            }
            Some(Fault::SuperblockFirst) => self.plan.rotate_left(middle),
            Some(Fault::SameArea | Fault::SameSlot) => {
                for step in &mut self.plan {
                    match step {
                        Planned::Catalogue(_, sequence) if fault == Some(Fault::SameArea) => {
                            *sequence += 1;
                        }
                        Planned::Superblock(_, sequence) if fault == Some(Fault::SameSlot) => {
                            *sequence += 1;
                        }
                        _ => {}
                    }
                }
            }
            Some(Fault::EarlyReuse) | None => {}
        }
        self
    }

    /// The next step. To be called when the step before is complete. After an error of a device, drop
    /// the commit and read the store anew: it has the old catalogue or the new one.
    pub fn next_step(&mut self) -> Step<'_> {
        match self.plan.pop_front() {
            None => Step::Done,
            Some(Planned::Flush) => Step::Flush,
            Some(Planned::Catalogue(device, sequence)) => Step::Write {
                device,
                block: self.catalogue.geometry().area_start(sequence),
                bytes: &self.encoded,
            },
            Some(Planned::Superblock(device, sequence)) => {
                self.superblock = self.superblock_of(device).encode();
                Step::Write {
                    device,
                    block: SUPERBLOCKS[slot_of(sequence)],
                    bytes: &self.superblock,
                }
            }
        }
    }

    fn superblock_of(&self, device: u16) -> Superblock {
        let geometry = self.catalogue.geometry();
        Superblock {
            id: geometry.id,
            device,
            device_count: device_count(&self.catalogue),
            device_blocks: geometry.device_blocks[usize::from(device)],
            area_blocks: geometry.area_blocks,
            sequence: self.catalogue.sequence(),
            catalogue_bytes: self.catalogue_bytes,
            catalogue_digest: self.digest,
        }
    }

    /// What the devices have once the last step is done.
    ///
    /// # Panics
    /// If it is not.
    #[must_use]
    pub fn into_catalogue(self) -> Catalogue {
        assert!(self.plan.is_empty(), "the commit is not complete");
        self.catalogue
    }

    /// The catalogue that was to be written.
    #[cfg(test)]
    pub(crate) fn into_parts(self) -> Catalogue {
        self.catalogue
    }
}

fn device_count(catalogue: &Catalogue) -> u16 {
    let count = catalogue.geometry().device_blocks.len();
    u16::try_from(count).expect("invariant: at most DEVICES_MAX devices")
}
