//! Objects that are entries of a list: for simulation.
//!
//! It has no files, descriptors or threads, and the same calls have the same answers. An entry may
//! be made to answer later, so that both ways an answer comes can be walked.

use std::collections::{BTreeMap, VecDeque};

use crate::{Answer, Facts, Opened, Opening, Source, StoreRefusal};

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
    lookups_max: usize,
}

impl Catalogue {
    /// An empty catalogue of which at most `lookups_max` look-ups wait for their answers.
    #[must_use]
    pub fn new(lookups_max: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            asked: VecDeque::new(),
            lookups_max,
        }
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

    pub(crate) fn open_object(&self, name: &str) -> Opening {
        match self.entries.get(name) {
            Some(entry) if entry.answers_later => Opening::Waits,
            _ => Opening::Done(self.answer(name)),
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.asked.len() < self.lookups_max
    }

    pub(crate) fn submit(&mut self, token: u64, name: &str) {
        self.asked.push_back((token, name.to_owned()));
    }

    /// Answers in the order of asking, each with what is there by then.
    pub(crate) fn poll_answer(&mut self) -> Option<Answer> {
        let (token, name) = self.asked.pop_front()?;
        let result = self.answer(&name);
        Some(Answer {
            token,
            name,
            result,
        })
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
}
