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

/// Those that are told by site, at `/metrics` only ([`super::sites`]).
const BY_SITE: &[Meaning] = session::SiteCounters::MEANINGS;

/// Every counter that is told of the server as a whole.
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
    let told = all().map(|meaning| (meaning, true));
    let by_site = BY_SITE.iter().map(|meaning| (meaning, false));
    for (Meaning { name, kind, help }, is_on_stderr) in told.chain(by_site) {
        let family = family_of(name);
        let name = match kind {
            Kind::Counter | Kind::Gauge if is_on_stderr => format!("`{name}`"),
            _ => "-".to_owned(),
        };
        let (sample, kind) = match kind {
            Kind::Counter => (format!("{family}_total"), "counter"),
            Kind::Gauge => (family, "gauge"),
            Kind::Histogram => (family, "histogram"),
        };
        let _ = writeln!(text, "| {name} | `{sample}` | {kind} | {help} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{BY_SITE, Meaning, all, family_of, meaning_of};

    #[test]
    fn names_are_unique_and_meanings_are_sentences() {
        let all = || all().chain(BY_SITE);
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
