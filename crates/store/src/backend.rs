//! What a store looks names up in: directories, a catalogue, or a raw store.
//!
//! It refuses to have one of them answer what only another can. No bound of its own.

use std::os::fd::OwnedFd;

use clock::Instant;

use crate::directory::Directories;
use crate::raw::Served;
use crate::root::Resolve;
use crate::threads::Reply;
use crate::{Catalogue, DeviceId, Metadata, Opening};

/// See the module.
#[derive(Debug)]
pub(crate) enum Backend {
    Directories(Directories),
    Catalogue(Catalogue),
    Volume(Box<Served>),
}

impl Backend {
    pub(crate) fn open_object(
        &mut self,
        now: Instant,
        name: &str,
        known: Option<&Metadata>,
    ) -> Opening {
        match self {
            Self::Directories(directories) => directories.open_object(now, name, known),
            Self::Catalogue(catalogue) => catalogue.open_object(name, known),
            Self::Volume(_) => unreachable!("a raw store is asked otherwise"),
        }
    }

    pub(crate) fn poll_unneeded(&mut self) -> Option<(DeviceId, OwnedFd)> {
        match self {
            Self::Directories(directories) => directories.poll_unneeded(),
            Self::Catalogue(_) | Self::Volume(_) => None,
        }
    }

    pub(crate) fn device_of_key(&self, key: &str) -> DeviceId {
        match self {
            Self::Directories(directories) => directories.device_of_key(key),
            Self::Catalogue(catalogue) => catalogue.device_of_name(key),
            Self::Volume(served) => served.device_of_name(key),
        }
    }

    /// How many directories there are.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Directories(directories) => directories.count(),
            Self::Catalogue(_) | Self::Volume(_) => 1,
        }
    }

    /// Has a thread open a name.
    pub(crate) fn submit(&mut self, id: u64, name: String, device: DeviceId, resolve: Resolve) {
        match self {
            Self::Directories(directories) => directories.submit(id, name, device, resolve),
            Self::Catalogue(catalogue) => catalogue.submit(id, name),
            Self::Volume(_) => unreachable!("a raw store answers at once"),
        }
    }

    /// Cancels a submitted look-up that no thread has taken.
    pub(crate) fn withdraw(&mut self, id: u64, device: DeviceId) -> bool {
        match self {
            Self::Directories(directories) => directories.withdraw(id, device),
            // As if a thread had taken each of them.
            Self::Catalogue(_) | Self::Volume(_) => false,
        }
    }

    /// Hands a descriptor to the threads; `false` if the backend has none.
    pub(crate) fn close(&mut self, device: DeviceId, descriptor: OwnedFd) -> bool {
        match self {
            Self::Directories(directories) => {
                directories.close(device, descriptor);
                true
            }
            Self::Catalogue(_) | Self::Volume(_) => false,
        }
    }

    pub(crate) fn poll_reply(&mut self, now: Instant) -> Option<Reply> {
        match self {
            Self::Directories(directories) => directories.poll_reply(now),
            Self::Catalogue(catalogue) => catalogue.poll_reply(),
            Self::Volume(_) => None,
        }
    }
}
