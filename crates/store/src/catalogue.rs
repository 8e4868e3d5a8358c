//! Objects that are entries of a list: for simulation.
//!
//! It has no files, descriptors or threads, and the same calls have the same answers. An entry may
//! be made to answer later, so that both ways an answer comes can be walked, and a device to answer
//! not at all for a while, as a disk or mount that hangs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::root::{Miss, Way};
use crate::threads::Reply;
use crate::{Facts, Lane, Opened, Opening, Source, StoreRefusal};

/// What a path of a catalogue leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CatalogueEntry {
    /// The file of the simulated disk: comes out as [`Source::Simulated`].
    pub source: u32,
    /// What is known of it. Change any of it with the entry to make it another object.
    pub facts: Facts,
    /// Whether look-ups are answered by [`crate::Store::poll_answer`], and not at once.
    pub answers_later: bool,
}

/// Paths and what they lead to.
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

    /// Takes away what is under a path; whether there was anything.
    pub fn remove(&mut self, path: &str) -> bool {
        let name = crate::path::name_of(path);
        name.is_some_and(|name| self.entries.remove(name).is_some())
    }

    /// From now on entries of a device (see [`Facts::device`]) answer no look-up, or answer again.
    /// What was asked meanwhile is answered then.
    pub fn set_hung(&mut self, device: u64, is_hung: bool) {
        if is_hung {
            self.hung.insert(device);
        } else {
            self.hung.remove(&device);
        }
    }

    pub(crate) fn lane_of(&self, name: &str) -> Lane {
        Lane::of_device(self.device_of(name))
    }

    pub(crate) fn open_object(&self, name: &str) -> Opening {
        match self.entries.get(name) {
            Some(entry) if entry.answers_later || self.is_hung(name) => {
                Opening::Waits(self.lane_of(name), Way::Beneath)
            }
            _ => Opening::Done(self.answer(name)),
        }
    }

    pub(crate) fn submit(&mut self, id: u64, name: String) {
        self.asked.push_back((id, name));
    }

    /// Answers in the order of asking, each with what is there by then.
    pub(crate) fn poll_reply(&mut self) -> Option<Reply> {
        let answers = |(_, name): &(u64, String)| !self.is_hung(name);
        let place = self.asked.iter().position(answers)?;
        let (id, name) = self.asked.remove(place)?;
        let result = self.answer(&name).map_err(Miss::Refused);
        Some(Reply::LookUp { id, name, result })
    }

    fn answer(&self, name: &str) -> Result<Opened, StoreRefusal> {
        match self.entries.get(name) {
            Some(entry) => Ok(Opened {
                source: Source::Simulated(entry.source),
                facts: entry.facts,
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
        self.hung.contains(&self.device_of(name))
    }

    fn device_of(&self, name: &str) -> u64 {
        self.entries.get(name).map_or(0, |entry| entry.facts.device)
    }
}
