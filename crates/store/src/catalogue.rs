//! Objects that are entries of a list: for simulation.
//!
//! It refuses to use files, descriptors or threads, so the same calls have the same answers. To test
//! answers that come later, an entry can be set to answer later, and a device to answer no look-up
//! for a while, like a disk or mount that hangs. Bounded by the entries and the pending look-ups.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::root::{OpenError, Resolve};
use crate::threads::Reply;
use crate::{DeviceId, Metadata, Opened, Opening, Source, StoreRefusal};

/// An object of a catalogue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CatalogueEntry {
    /// The file of the simulated disk, returned as [`Source::Simulated`].
    pub source: u32,
    /// Its metadata. With any of it changed it is another object.
    pub metadata: Metadata,
    /// Whether look-ups are answered by [`crate::Store::poll_answer`], and not at once.
    pub answers_later: bool,
}

/// Objects by path.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    entries: BTreeMap<String, CatalogueEntry>,
    asked: VecDeque<(u64, String)>,
    /// Devices that do not answer.
    hung: BTreeSet<u64>,
}

impl Catalogue {
    /// An empty catalogue.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry under a path that starts with `/`, or replaces the one there.
    ///
    /// # Panics
    /// If no look-up could ever find the path.
    pub fn insert(&mut self, path: &str, entry: CatalogueEntry) {
        let name = crate::path::name_of(path);
        let name = name.expect("a catalogue's path is absolute and has plain segments");
        self.entries.insert(name.to_owned(), entry);
    }

    /// Removes the entry of a path; whether there was one.
    pub fn remove(&mut self, path: &str) -> bool {
        let name = crate::path::name_of(path);
        name.is_some_and(|name| self.entries.remove(name).is_some())
    }

    /// Makes a device (see [`Metadata::device`]) hang or answer again. Look-ups of its entries that
    /// came meanwhile are answered then.
    pub fn set_hung(&mut self, device: u64, is_hung: bool) {
        if is_hung {
            self.hung.insert(device);
        } else {
            self.hung.remove(&device);
        }
    }

    pub(crate) fn device_of_name(&self, name: &str) -> DeviceId {
        DeviceId::new(self.device_number_of(name))
    }

    /// Finds a name, unless it leads to the object that it led to before (`known`).
    pub(crate) fn open_object(&self, name: &str, known: Option<&Metadata>) -> Opening {
        match self.entries.get(name) {
            Some(entry) if entry.answers_later || self.is_hung(name) => {
                Opening::WouldBlock(self.device_of_name(name), Resolve::Beneath)
            }
            Some(entry) if known == Some(&entry.metadata) => Opening::Unchanged,
            _ => Opening::Done(self.answer(name)),
        }
    }

    pub(crate) fn submit(&mut self, id: u64, name: String) {
        self.asked.push_back((id, name));
    }

    /// Answers look-ups in order, each by the entries at the time of the answer.
    pub(crate) fn poll_reply(&mut self) -> Option<Reply> {
        let answers = |(_, name): &(u64, String)| !self.is_hung(name);
        let index = self.asked.iter().position(answers)?;
        let (id, name) = self.asked.remove(index)?;
        let result = self.answer(&name).map_err(OpenError::Refused);
        Some(Reply::LookUp {
            id,
            key: name,
            result,
        })
    }

    fn answer(&self, name: &str) -> Result<Opened, StoreRefusal> {
        match self.entries.get(name) {
            Some(entry) => Ok(Opened {
                source: Source::Simulated(entry.source),
                metadata: entry.metadata,
            }),
            None if self.is_directory(name) => Err(StoreRefusal::Directory),
            None => Err(StoreRefusal::NotFound),
        }
    }

    /// Whether an entry is beneath `name`.
    fn is_directory(&self, name: &str) -> bool {
        let beneath = format!("{name}/");
        let mut after = self.entries.range(beneath.clone()..);
        after
            .next()
            .is_some_and(|(entry, _)| entry.starts_with(&beneath))
    }

    fn is_hung(&self, name: &str) -> bool {
        self.hung.contains(&self.device_number_of(name))
    }

    fn device_number_of(&self, name: &str) -> u64 {
        self.entries
            .get(name)
            .map_or(0, |entry| entry.metadata.device)
    }
}
