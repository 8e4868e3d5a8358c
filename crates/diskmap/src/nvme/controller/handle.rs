//! What users of a controller hold: the word that says whether it lives, and the mutex around the rest.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use clock::Instant;

use super::{
    ControllerCounters, ControllerError, ControllerIdentity, ControllerState, Inner, Namespace,
    Snapshot,
};
use crate::nvme::access::{DmaMemory, Registers};

/// A controller; clones are the same one.
pub struct Controller<R, D> {
    word: Arc<AtomicU64>,
    inner: Arc<Mutex<Inner<R, D>>>,
}

impl<R, D> Clone for Controller<R, D> {
    fn clone(&self) -> Self {
        Self {
            word: Arc::clone(&self.word),
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<R, D> fmt::Debug for Controller<R, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let snapshot = Snapshot::load(&self.word);
        f.debug_struct("Controller")
            .field("snapshot", &snapshot)
            .finish_non_exhaustive()
    }
}

impl<R: Registers, D: DmaMemory> Controller<R, D> {
    /// Takes a controller over and begins to bring it up, with as many as `queue_pairs` queue pairs
    /// (1..=[`super::QUEUE_PAIRS_MAX`]). `memory` is for the admin queues
    /// ([`super::ADMIN_MEMORY_BYTES`]). Poll it until it is ready.
    ///
    /// # Errors
    /// The controller is gone, or cannot be used with this driver.
    pub fn new(
        registers: R,
        memory: D,
        queue_pairs: u16,
        now: Instant,
    ) -> Result<Self, ControllerError> {
        let word = Arc::new(AtomicU64::new(0));
        let inner = Inner::new(registers, memory, queue_pairs, Arc::clone(&word), now)?;
        Ok(Self {
            word,
            inner: Arc::new(Mutex::new(inner)),
        })
    }

    /// Advances whatever is in progress, without waiting for anything. While it is pending, call it
    /// every millisecond or so. It is pending, too, while another worker polls it.
    pub fn poll(&self, now: Instant) -> ControllerState {
        self.with(|inner| inner.poll(now))
            .unwrap_or(ControllerState::Pending)
    }

    /// Begins an orderly shutdown: queue pairs are deleted, the controller is notified and then stopped.
    /// Commands in flight end in errors, so have them complete before. Poll it until it is shut down.
    pub fn begin_shutdown(&self, now: Instant) {
        self.lock().begin_shutdown(now);
    }

    /// What it says of itself; `None` until it was ready once.
    #[must_use]
    pub fn identity(&self) -> Option<ControllerIdentity> {
        let inner = self.lock();
        inner.known.as_ref().map(|known| known.identity.clone())
    }

    /// Its active namespaces, at most [`super::super::NAMESPACES_MAX`]; none until it was ready once.
    #[must_use]
    pub fn namespaces(&self) -> Vec<Namespace> {
        let inner = self.lock();
        let known = inner.known.as_ref();
        known.map_or_else(Vec::new, |known| known.namespaces.clone())
    }

    /// How many queue pairs it granted; 0 until it was ready once.
    #[must_use]
    pub fn queue_pairs(&self) -> u16 {
        self.lock()
            .known
            .as_ref()
            .map_or(0, |known| known.queue_pairs)
    }

    /// What happened since start.
    #[must_use]
    pub fn counters(&self) -> ControllerCounters {
        self.lock().counters
    }

    /// Why it was last reset or failed.
    #[must_use]
    pub fn last_error(&self) -> Option<ControllerError> {
        self.lock().last_error
    }

    /// What the word says.
    pub(in crate::nvme) fn snapshot(&self) -> Snapshot {
        Snapshot::load(&self.word)
    }

    /// Does something with the controller, unless another worker does right now.
    pub(in crate::nvme) fn with<T>(&self, f: impl FnOnce(&mut Inner<R, D>) -> T) -> Option<T> {
        match self.inner.try_lock() {
            Ok(mut inner) => Some(f(&mut inner)),
            Err(TryLockError::Poisoned(poisoned)) => Some(f(&mut poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Does something with the controller, once no other worker does. Not for the data path.
    pub(in crate::nvme) fn with_wait<T>(&self, f: impl FnOnce(&mut Inner<R, D>) -> T) -> T {
        f(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Inner<R, D>> {
        let locked = self.inner.lock();
        locked.unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
