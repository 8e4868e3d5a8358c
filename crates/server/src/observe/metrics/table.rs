//! Every struct of counters there is, for `docs/run/metrics.md` and for those who read metrics.
//!
//! `cargo xtask tidy` compares the table in the page with this one, and a test finds a struct that is
//! missing here. It refuses two counters of one name. Bound: fixed tables.

use std::fmt::Write as _;

use counters::{CounterSet as _, Kind, Meaning};
use diskmap::nvme::NvmeCounters;
use link::LinkCounters;
use worker::tls::HandshakeCounters;

use super::overview::OutputCounters;
use super::text::family_of;
use crate::run;

/// The structs, in the order of the page.
const SETS: [&[Meaning]; 11] = [
    worker::Counters::MEANINGS,
    worker::LookupCounters::MEANINGS,
    run::Counters::MEANINGS,
    OutputCounters::MEANINGS,
    LinkCounters::MEANINGS,
    diskmap::Counters::MEANINGS,
    NvmeCounters::MEANINGS,
    store::Counters::MEANINGS,
    HandshakeCounters::MEANINGS,
    session::Counters::MEANINGS,
    session::Histograms::MEANINGS,
];

/// Every counter.
pub(super) fn all() -> impl Iterator<Item = &'static Meaning> {
    SETS.into_iter().flatten()
}

/// What a counter means; `None` if there is none of that name.
#[must_use]
pub(crate) fn meaning_of(counter: &str) -> Option<&'static Meaning> {
    all().find(|meaning| meaning.name == counter)
}

/// The table of `docs/run/metrics.md`: a row for each counter.
#[must_use]
pub(crate) fn markdown() -> String {
    let mut text =
        String::from("| On stderr | At `/metrics` | Kind | Meaning |\n|---|---|---|---|\n");
    for Meaning { name, kind, help } in all() {
        let family = family_of(name);
        let (name, sample, kind) = match kind {
            Kind::Counter => (format!("`{name}`"), format!("{family}_total"), "counter"),
            Kind::Gauge => (format!("`{name}`"), family, "gauge"),
            Kind::Histogram => ("-".to_owned(), family, "histogram"),
        };
        let _ = writeln!(text, "| {name} | `{sample}` | {kind} | {help} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Meaning, all, family_of, meaning_of};

    #[test]
    fn names_are_unique_and_meanings_are_sentences() {
        let names: BTreeSet<_> = all().map(|meaning| meaning.name).collect();
        assert_eq!(names.len(), all().count());
        let families: BTreeSet<_> = names.iter().map(|name| family_of(name)).collect();
        assert_eq!(families.len(), names.len(), "two counters are one metric");
        for Meaning { name, help, .. } in all() {
            assert!(
                help.ends_with('.') && !help.contains(['\\', '"', '\n', '|']),
                "{name}: {help}"
            );
        }
        assert!(meaning_of("no_such_count").is_none());
    }
}
