//! A raw store: objects on block devices or images, without a file system (`docs/develop/store-format.md`).
//!
//! [`RawStore`] is the devices: it finds the catalogue that counts, and holds the locks by which a
//! writer leaves alone what readers read. [`Volume`] is a raw store that is being served: a thread looks
//! every [`LOOK_INTERVAL`] whether there is a new catalogue, and all stores of a process share what it
//! read ([`crate::Store::open_volume`]). On namespaces of an NVMe controller that the process drives
//! itself, the catalogue is found by [`find_catalogue`], and nothing changes it.
//!
//! It refuses to write: who changes a store writes through `diskmap`. Bounded by
//! [`volume::DEVICES_MAX`] devices, and by the catalogue's size, in memory.

mod devices;
mod served;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unreadable;

pub use devices::{
    Access, Blocks, CopyFault, Device, Loaded, RawError, RawStore, WriterLock, find_catalogue,
    is_in_use, names_in,
};
pub use served::{LOOK_INTERVAL, Volume};

pub(crate) use served::{MOVED_MAX, Served};
