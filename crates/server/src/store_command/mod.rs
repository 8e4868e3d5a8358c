//! `atlas store`: makes raw stores, changes them, and looks at them (`docs/develop/store-format.md`).
//!
//! [`writer`] changes it: until the last step of a change is durable the old catalogue counts, so whoever stops this
//! process, or the power, changes nothing. It refuses names that no request can have, and files that change
//! while they are read. Bounded by the slots of [`Transfer`], and by the catalogue in memory.

mod files;
mod import;
mod init;
mod inspect;
mod progress;
mod trim;
mod units;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use store::raw::{Access, RawError, RawStore, names_in};

use crate::failure::Failure;
use crate::settings::cli::StoreCommand;
use crate::start::refuse_raw;
use writer::{Transfer, WriteError};

/// Carries a command out.
///
/// # Errors
/// Why it was not: usage and devices (exit code 2), failures on the way and damage that was found
/// (exit code 1).
pub(crate) fn run(command: &StoreCommand) -> Result<(), Failure> {
    let stop = Stop::install()?;
    match command {
        StoreCommand::Init(args) => init::run(args),
        StoreCommand::Add(args) => import::add(args, &stop),
        StoreCommand::Rm { store, names, tree } => import::remove(store, names, *tree),
        StoreCommand::Ls { store, long } => inspect::list(store, *long),
        StoreCommand::Get { store, name } => inspect::get(store, name, &stop),
        StoreCommand::Verify { store, names } => inspect::verify(store, names, &stop),
        StoreCommand::Trim { store } => trim::run(store, &stop),
        StoreCommand::Stat { store } => inspect::stat(store),
    }
}

/// Whether SIGINT or SIGTERM came.
#[derive(Clone, Debug)]
struct Stop {
    signals: [(i32, Arc<AtomicBool>); 2],
}

impl Stop {
    fn install() -> Result<Self, Failure> {
        let signals = [libc::SIGINT, libc::SIGTERM].map(|signal| (signal, Arc::default()));
        for (signal, flag) in &signals {
            signal_hook::flag::register(*signal, Arc::clone(flag))
                .map_err(|error| Failure::Broken(format!("signal handlers: {error}")))?;
        }
        Ok(Self { signals })
    }

    /// # Errors
    /// A signal came.
    fn check(&self) -> Result<(), Failure> {
        let came = |it: &&(i32, Arc<AtomicBool>)| it.1.load(Ordering::Relaxed);
        match self.signals.iter().find(came) {
            Some((signal, _)) => Err(Failure::Stopped {
                signal: *signal,
                text: "stopped by a signal: the store is as it was".into(),
            }),
            None => Ok(()),
        }
    }
}

/// A store that is open to be read: with a lock, so that nothing of it is written over.
#[derive(Debug)]
struct Reading {
    raw: RawStore,
    loaded: store::raw::Loaded,
}

impl Reading {
    fn open(store: &Path) -> Result<Self, Failure> {
        let names = names_in(store);
        let raw = match RawStore::open(&names, Access::Read { direct: true }) {
            // An image may be on a file system without direct reads.
            Err(RawError::NotDirect(_)) => RawStore::open(&names, Access::Read { direct: false }),
            opened => opened,
        };
        let raw = raw.map_err(refuse_raw)?;
        let loaded = raw.load_locked().map_err(refuse_raw)?;
        Ok(Self { raw, loaded })
    }

    fn transfer(&self) -> Result<Transfer, Failure> {
        Ok(Transfer::new(self.raw.devices())?)
    }
}

impl From<WriteError> for Failure {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Refused(text) => Self::Refused(text),
            WriteError::Raw(error) => refuse_raw(error),
            error => Self::Broken(error.to_string()),
        }
    }
}
