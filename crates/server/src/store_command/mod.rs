//! `atlas store`: makes raw stores, changes them, and looks at them (`docs/develop/store-format.md`).
//!
//! Who changes a store holds its writer's lock, and writes through `diskmap`. Until the last step of a
//! change is durable the old catalogue counts: whoever stops this process, or the power, changes nothing.
//! It refuses names that no request can have, and files that change while they are read. Bounded by the
//! slots of `transfer::Transfer`, and by the catalogue in memory.

mod files;
mod import;
mod init;
mod inspect;
mod progress;
mod transfer;
mod trim;
mod units;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use store::raw::{Access, RawError, RawStore, WriterLock, names_in};
use volume::{Commit, Editor, Readers, Step};

use crate::failure::Failure;
use crate::settings::cli::StoreCommand;
use crate::start::refuse_raw;
use transfer::Transfer;

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

/// A store that is open to be changed.
#[derive(Debug)]
struct Writing {
    raw: RawStore,
    transfer: Transfer,
    /// Held until all is written.
    _lock: WriterLock,
}

impl Writing {
    /// Opens it, and brings devices up to date that a power cut left behind. It refuses to write where that
    /// could destroy something that is not known: the newest catalogue, or what a reader of it is sending.
    fn open(store: &Path) -> Result<(Self, Editor), Failure> {
        let raw = RawStore::open(&names_in(store), Access::Write).map_err(refuse_raw)?;
        let lock = raw.lock_for_writing().map_err(refuse_raw)?;
        let mut writing = Self {
            transfer: Transfer::new(raw.devices())?,
            raw,
            _lock: lock,
        };
        let loaded = writing.raw.load().map_err(refuse_raw)?;
        if let Some(error) = loaded.damage {
            return Err(Failure::refused(
                format!(
                    "{}: the newest catalogue is damaged: {error}",
                    writing.raw.name()
                ),
                "save what is there (atlas store get), and make the store anew",
            ));
        }
        if let Some(fault) = loaded.unknown {
            return Err(Failure::refused(
                format!("{fault}; it may name a newer catalogue, which would be lost"),
                "save what is there (atlas store get), and make the store anew",
            ));
        }
        let sequence = loaded.catalogue.sequence();
        if writing.raw.has_reader_after(sequence).map_err(refuse_raw)? {
            return Err(Failure::refused(
                format!(
                    "{}: a server reads a newer catalogue than {sequence}, the newest that can be read",
                    writing.raw.name()
                ),
                "see which copies are damaged (atlas store verify)",
            ));
        }
        if !loaded.lagging.is_empty() {
            let repair = Commit::repair(loaded.catalogue.clone(), &loaded.lagging);
            writing.carry_out(repair)?;
        }
        let editor = Editor::new(loaded.catalogue, &writing.readers()?);
        Ok((writing, editor))
    }

    fn readers(&self) -> Result<Readers, Failure> {
        self.raw.readers().map_err(refuse_raw)
    }

    /// Makes the change, and begins the next one.
    fn commit(&mut self, editor: Editor) -> Result<Editor, Failure> {
        let commit = editor.commit();
        let commit = commit.map_err(|error| Failure::Broken(error.to_string()))?;
        let catalogue = self.carry_out(commit)?;
        Ok(Editor::new(catalogue, &self.readers()?))
    }

    fn carry_out(&mut self, mut commit: Commit) -> Result<volume::Catalogue, Failure> {
        loop {
            match commit.next_step() {
                Step::Write {
                    device,
                    block,
                    bytes,
                } => self.transfer.write_blocks(device, block, bytes)?,
                Step::Flush => self.transfer.flush()?,
                Step::Done => return Ok(commit.into_catalogue()),
            }
        }
    }

    /// Makes space free that waits for nothing but another catalogue, if nothing is changed yet.
    fn free_space(&mut self, editor: Editor) -> Result<Editor, Failure> {
        if !editor.has_changed() && editor.would_free(&self.readers()?) {
            return self.commit(editor);
        }
        Ok(editor)
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
        Transfer::new(self.raw.devices())
    }
}
