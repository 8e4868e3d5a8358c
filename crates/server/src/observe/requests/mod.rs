//! `/misses` and `/counts` beside `/metrics`: which names were asked for and are not there, and which objects are asked for
//! most, for a program that fills this server.
//!
//! Workers keep both in bounded memory ([`worker::requests`]) until a thread that answers HTTP asks them. It puts what they
//! missed into one table, in which each name has a number: so whoever asks says up to which number he knows them.
//!
//! It refuses to grow: of more than [`MISSES_MAX`] names the one with the least number is forgotten, and an answer has
//! [`LINES_MAX`] lines.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use serde::Serialize;
use worker::requests::{Counted, Missed};

use crate::observe::connections::decode;

/// Most names that are not there and that are told.
pub(crate) const MISSES_MAX: usize = 16_384;
/// Most lines of an answer behind its first.
pub(crate) const LINES_MAX: usize = 10_000;
/// A name that is still asked for so long after it got its number, seconds, gets a new one: whoever was told it has not
/// brought it, or it has gone again.
pub(crate) const RENEWED_AFTER_SECONDS: u64 = 30;

/// Tells a process from others that answer at the same address.
#[derive(Clone, Debug)]
pub(crate) struct Instance(Arc<str>);

impl Instance {
    /// A random one.
    #[must_use]
    pub(crate) fn random() -> Self {
        // Each has keys of its own, which come from the kernel.
        let number = RandomState::new().hash_one(std::process::id());
        Self(format!("{number:016x}").into())
    }
}

/// Names that are not there.
#[derive(Debug, Default)]
pub(crate) struct Misses {
    names: BTreeMap<u64, Told>,
    numbers: HashMap<(u16, Arc<str>), u64>,
    /// The number that was given last.
    last_number: u64,
}

#[derive(Debug)]
struct Told {
    site: u16,
    path: Arc<str>,
    requests: u64,
    last: u64,
    /// When it got its number, Unix seconds.
    since: u64,
}

#[derive(Serialize)]
struct MissesLine<'a> {
    instance: &'a str,
    next: u64,
}

#[derive(Serialize)]
struct MissLine<'a> {
    sequence: u64,
    site: &'a str,
    path: &'a str,
    requests: u64,
    last: u64,
}

#[derive(Serialize)]
struct CountsLine<'a> {
    instance: &'a str,
    began: u64,
}

#[derive(Serialize)]
struct CountLine<'a> {
    path: &'a str,
    site: &'a str,
    requests: u64,
    last: u64,
}

impl Misses {
    /// A worker has missed this.
    pub(crate) fn add(&mut self, missed: Missed) {
        let Missed {
            site,
            path,
            requests,
            last,
        } = missed;
        let key = (site, Arc::from(path));
        let known = self.numbers.get(&key).copied();
        let before = known.and_then(|number| self.names.get_mut(&number));
        if let Some(told) = before {
            told.requests += requests;
            told.last = told.last.max(last);
            if told.last < told.since + RENEWED_AFTER_SECONDS {
                return;
            }
        }
        let before = known.and_then(|number| self.names.remove(&number));
        self.last_number += 1;
        let told = Told {
            site,
            path: Arc::clone(&key.1),
            requests: before.map_or(requests, |told| told.requests),
            last,
            since: last,
        };
        self.names.insert(self.last_number, told);
        self.numbers.insert(key, self.last_number);
        if self.names.len() > MISSES_MAX
            && let Some((_, told)) = self.names.pop_first()
        {
            self.numbers.remove(&(told.site, told.path));
        }
    }

    /// The lines of JSON for who knows names up to a number. `labels`: the names of sites, by number.
    #[must_use]
    pub(crate) fn lines(&self, after: u64, instance: &Instance, labels: &[String]) -> String {
        let newer = self.names.range(after.saturating_add(1)..);
        let told: Vec<_> = newer.take(LINES_MAX).collect();
        let next = told.last().map_or(self.last_number, |(number, _)| **number);
        let mut lines = String::new();
        let instance = &instance.0;
        push(&mut lines, &MissesLine { instance, next });
        for (&sequence, told) in told {
            let line = MissLine {
                sequence,
                site: label(labels, told.site),
                path: &encoded(&told.path),
                requests: told.requests,
                last: told.last,
            };
            push(&mut lines, &line);
        }
        lines
    }
}

/// The lines of JSON for what workers have counted since `began`, Unix seconds.
#[must_use]
pub(crate) fn counts(
    counted: impl IntoIterator<Item = Counted>,
    instance: &Instance,
    began: u64,
    labels: &[String],
) -> String {
    let mut sums: HashMap<(u16, Arc<str>), (u64, u64)> = HashMap::new();
    for Counted {
        site,
        path,
        requests,
        last,
    } in counted
    {
        let (sum, latest) = sums.entry((site, path)).or_default();
        *sum += requests;
        *latest = last.max(*latest);
    }
    let mut all: Vec<_> = sums.into_iter().collect();
    all.sort_unstable_by(|(key, one), (other_key, other)| other.cmp(one).then(key.cmp(other_key)));
    let mut lines = String::new();
    let instance = &instance.0;
    push(&mut lines, &CountsLine { instance, began });
    for ((site, path), (requests, last)) in all.iter().take(LINES_MAX) {
        let line = CountLine {
            path: &encoded(path),
            site: label(labels, *site),
            requests: *requests,
            last: *last,
        };
        push(&mut lines, &line);
    }
    lines
}

/// The number in a query `after=NUMBER`, 0 if there is none.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn parse_after(query: &[u8]) -> Result<u64, String> {
    let query = decode(query);
    if query.is_empty() {
        return Ok(0);
    }
    let number = query.strip_prefix("after=");
    let number = number.and_then(|number| number.parse().ok());
    number.ok_or_else(|| format!("{query}: there is after=NUMBER"))
}

/// A path as a URI has it, so that every name can be told from others.
fn encoded(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    http::push_path_piece(&mut text, path);
    text
}

/// The first name of a site; nothing for those that have no number, and for the one without names.
fn label(labels: &[String], site: u16) -> &str {
    match site {
        0 => "",
        site => labels.get(usize::from(site)).map_or("", String::as_str),
    }
}

fn push(lines: &mut String, line: &impl Serialize) {
    // Numbers and texts are always written.
    lines.push_str(&serde_json::to_string(line).unwrap_or_default());
    lines.push('\n');
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use worker::requests::{Counted, Missed};

    use super::{
        Instance, LINES_MAX, MISSES_MAX, Misses, RENEWED_AFTER_SECONDS, counts, parse_after,
    };

    fn instance() -> Instance {
        Instance("i".into())
    }

    fn labels() -> Vec<String> {
        vec!["(other)".into(), "a.example".into()]
    }

    fn parsed(lines: &str) -> Vec<Value> {
        let lines = lines.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().unwrap()
    }

    fn missed(path: &str, requests: u64, last: u64) -> Missed {
        Missed {
            site: 1,
            path: path.into(),
            requests,
            last,
        }
    }

    fn told(misses: &Misses, after: u64) -> Vec<Value> {
        parsed(&misses.lines(after, &instance(), &labels()))
    }

    #[test]
    fn a_name_that_is_missed_is_told_once_to_who_says_what_he_knows() {
        let mut misses = Misses::default();
        assert_eq!(told(&misses, 0), [json!({"instance": "i", "next": 0})]);
        misses.add(missed("/a \"é%?", 3, 100));
        misses.add(Missed {
            site: 0,
            ..missed("/c", 1, 101)
        });
        // Another worker's.
        misses.add(missed("/a \"é%?", 2, 102));
        let all = [
            json!({"instance": "i", "next": 2}),
            json!({"sequence": 1, "site": "a.example", "path": "/a%20%22%C3%A9%25%3F", "requests": 5, "last": 102}),
            json!({"sequence": 2, "site": "", "path": "/c", "requests": 1, "last": 101}),
        ];
        assert_eq!(told(&misses, 0), all);
        assert_eq!(told(&misses, 1)[1..], all[2..]);
        assert_eq!(told(&misses, 2), all[..1]);
        // One of another process has no such numbers.
        assert_eq!(told(&misses, 99), all[..1]);
        assert_eq!(told(&misses, u64::MAX), all[..1]);
    }

    #[test]
    fn a_name_that_is_missed_on_and_on_gets_a_new_number() {
        let mut misses = Misses::default();
        misses.add(missed("/a", 1, 100));
        misses.add(missed("/a", 1, 100 + RENEWED_AFTER_SECONDS - 1));
        assert_eq!(told(&misses, 1).len(), 1);
        misses.add(missed("/a", 1, 100 + RENEWED_AFTER_SECONDS));
        let lines = told(&misses, 1);
        assert_eq!(
            (&lines[1]["sequence"], &lines[1]["requests"]),
            (&json!(2), &json!(3))
        );
        assert_eq!(told(&misses, 0).len(), 2, "it is there once");
    }

    #[test]
    fn of_too_many_names_the_oldest_is_forgotten_and_an_answer_has_an_end() {
        let mut misses = Misses::default();
        for number in 1..=MISSES_MAX + 1 {
            misses.add(missed(&format!("/{number}"), 1, 1));
        }
        assert_eq!(misses.names.len(), MISSES_MAX);
        assert_eq!(misses.numbers.len(), MISSES_MAX);
        let first = told(&misses, 0);
        assert_eq!(first.len(), LINES_MAX + 1);
        assert_eq!(first[1]["path"], json!("/2"));
        let next = first[0]["next"].as_u64().unwrap();
        assert_eq!(next, LINES_MAX as u64 + 1);
        let rest = told(&misses, next);
        assert_eq!(rest.len(), MISSES_MAX - LINES_MAX + 1);
        assert_eq!(rest[0]["next"], json!(MISSES_MAX + 1));
    }

    #[test]
    fn what_workers_count_is_added_up_and_the_most_asked_comes_first() {
        let counted = |site, path: &str, requests, last| Counted {
            site,
            path: path.into(),
            requests,
            last,
        };
        let all = [
            counted(1, "/a", 3, 7),
            counted(1, "/b", 4, 5),
            counted(1, "/a", 2, 6),
            counted(9, "/a", 1, 9),
        ];
        let lines = counts(all, &instance(), 99, &labels());
        let expected = [
            json!({"instance": "i", "began": 99}),
            json!({"path": "/a", "site": "a.example", "requests": 5, "last": 7}),
            json!({"path": "/b", "site": "a.example", "requests": 4, "last": 5}),
            json!({"path": "/a", "site": "", "requests": 1, "last": 9}),
        ];
        assert_eq!(parsed(&lines), expected);
        let many = (0..=LINES_MAX).map(|number| counted(1, &format!("/{number}"), 1, 1));
        let lines = counts(many, &instance(), 99, &labels());
        assert_eq!(lines.lines().count(), LINES_MAX + 1);
    }

    #[test]
    fn what_was_told_before_is_said_by_a_number() {
        for (query, number) in [("", 0), ("after=0", 0), ("after=12", 12), ("after=%31", 1)] {
            assert_eq!(parse_after(query.as_bytes()), Ok(number), "{query}");
        }
        for query in [
            "after",
            "after=",
            "after=-1",
            "before=1",
            "after=1&x",
            "after=99999999999999999999",
        ] {
            assert!(parse_after(query.as_bytes()).is_err(), "{query}");
        }
    }

    #[test]
    fn each_process_has_a_name_of_its_own() {
        let (one, other) = (Instance::random(), Instance::random());
        assert_ne!(one.0, other.0);
        assert_eq!(one.0.len(), 16);
    }
}
