//! `/misses` and `/counts` beside `/metrics`: which names were asked for and are not there, and which objects are asked for
//! most, for a program that fills this server.
//!
//! Workers keep both in bounded memory ([`worker::requests`]) until a thread that answers HTTP asks them. It puts what they
//! missed into one table, in which each name has a number: so whoever asks says up to which number he knows them.
//!
//! It refuses to grow: of more than [`MISSES_TOLD_MAX`] names the one with the least number is forgotten, and an answer ends
//! before it has more than [`ANSWER_BYTES_MAX`].

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use serde::Serialize;
use worker::requests::{Counted, Missed, NAME_BYTES_MAX};

use crate::observe::connections::decode;

/// Most names that are not there and that are told.
pub(crate) const MISSES_TOLD_MAX: usize = 16_384;
/// Most bytes of an answer's lines: all names that are missed, if they are like those of most libraries.
pub(crate) const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Most bytes of the names that are not there: each has its name, a row of each table, and a part of these that is empty.
pub(crate) const MISSES_BYTES_MAX: usize =
    MISSES_TOLD_MAX * (NAME_BYTES_MAX + 2 * (size_of::<Told>() + size_of::<Key>() + 16));
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
    numbers: HashMap<Key, u64>,
    /// The number that was given last.
    last_number: u64,
}

/// What tells names apart: site, directory and path.
type Key = (u16, u16, Arc<str>);

#[derive(Debug)]
struct Told {
    key: Key,
    requests: u64,
    last: u64,
    /// When it got its number, Unix seconds.
    since: u64,
}

/// What the numbers of sites and directories stand for.
#[derive(Debug, Default)]
pub(crate) struct Labels {
    /// The first names of sites, by number.
    pub(crate) sites: Vec<String>,
    /// Directories beside PATH, whose numbers begin with 1.
    pub(crate) directories: Vec<String>,
}

/// Where a name is, in the JSON of both answers.
#[derive(Serialize)]
struct PlaceOfName<'a> {
    /// Its first name; nothing for sites that have no number, and for the one without names.
    site: &'a str,
    /// None: PATH, or the raw store.
    #[serde(skip_serializing_if = "Option::is_none")]
    directory: Option<&'a str>,
    path: String,
}

#[derive(Serialize)]
struct MissesLine<'a> {
    instance: &'a str,
    next: u64,
}

#[derive(Serialize)]
struct MissLine<'a> {
    sequence: u64,
    #[serde(flatten)]
    place: PlaceOfName<'a>,
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
    #[serde(flatten)]
    place: PlaceOfName<'a>,
    requests: u64,
    excess_max: u64,
    last: u64,
}

impl Misses {
    /// A worker has missed this.
    pub(crate) fn add(&mut self, missed: Missed) {
        let Missed {
            site,
            directory,
            path,
            requests,
            last,
        } = missed;
        let key = (site, directory, Arc::from(path));
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
            key: key.clone(),
            requests: before.map_or(requests, |told| told.requests),
            last,
            since: last,
        };
        self.names.insert(self.last_number, told);
        self.numbers.insert(key, self.last_number);
        if self.names.len() > MISSES_TOLD_MAX
            && let Some((_, told)) = self.names.pop_first()
        {
            self.numbers.remove(&told.key);
        }
    }

    /// The lines of JSON for who knows names up to a number.
    #[must_use]
    pub(crate) fn lines(&self, after: u64, instance: &Instance, labels: &Labels) -> String {
        let mut lines = String::new();
        let mut next = self.last_number;
        let mut last_told = after;
        for (&sequence, told) in self.names.range(after.saturating_add(1)..) {
            let line = line_of(&MissLine {
                sequence,
                place: labels.place(&told.key),
                requests: told.requests,
                last: told.last,
            });
            if lines.len() + line.len() > ANSWER_BYTES_MAX {
                next = last_told;
                break;
            }
            lines.push_str(&line);
            last_told = sequence;
        }
        let instance = &instance.0;
        line_of(&MissesLine { instance, next }) + &lines
    }
}

impl Labels {
    fn place(&self, (site, directory, path): &Key) -> PlaceOfName<'_> {
        let site = self.sites.get(usize::from(*site)).filter(|_| *site > 0);
        let directory = directory.checked_sub(1);
        PlaceOfName {
            site: site.map_or("", String::as_str),
            directory: directory
                .and_then(|index| self.directories.get(usize::from(index)))
                .map(String::as_str),
            path: encoded(path),
        }
    }
}

/// How often an object was asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Sum {
    requests: u64,
    excess_max: u64,
    last: u64,
}

/// The lines of JSON for what workers have counted since `began`, Unix seconds. `counted`: by worker. Of an
/// object that moved to another page while its worker was asked, and is there twice, the greater count holds.
#[must_use]
pub(crate) fn counts(
    counted: impl IntoIterator<Item = Vec<Counted>>,
    instance: &Instance,
    began: u64,
    labels: &Labels,
) -> String {
    let mut sums: HashMap<Key, Sum> = HashMap::new();
    for worker in counted {
        let mut own: HashMap<Key, Sum> = HashMap::with_capacity(worker.len());
        for it in worker {
            let sum = Sum {
                requests: it.requests,
                excess_max: it.excess_max,
                last: it.last,
            };
            let known = own.entry((it.site, it.directory, it.path)).or_default();
            *known = sum.max(*known);
        }
        for (key, sum) in own {
            let all = sums.entry(key).or_default();
            all.requests += sum.requests;
            all.excess_max += sum.excess_max;
            all.last = sum.last.max(all.last);
        }
    }
    let mut all: Vec<_> = sums.into_iter().collect();
    all.sort_unstable_by(|(key, one), (other_key, other)| {
        other.requests.cmp(&one.requests).then(key.cmp(other_key))
    });
    let instance = &instance.0;
    let mut lines = line_of(&CountsLine { instance, began });
    for (key, sum) in &all {
        let line = line_of(&CountLine {
            place: labels.place(key),
            requests: sum.requests,
            excess_max: sum.excess_max,
            last: sum.last,
        });
        if lines.len() + line.len() > ANSWER_BYTES_MAX {
            break;
        }
        lines.push_str(&line);
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

fn line_of(line: &impl Serialize) -> String {
    // Numbers and texts are always written.
    let mut text = serde_json::to_string(line).unwrap_or_default();
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use worker::requests::{Counted, Missed};

    use super::{
        ANSWER_BYTES_MAX, Instance, Labels, MISSES_TOLD_MAX, Misses, RENEWED_AFTER_SECONDS, counts,
        parse_after,
    };

    fn instance() -> Instance {
        Instance("i".into())
    }

    fn labels() -> Labels {
        Labels {
            sites: vec!["(other)".into(), "a.example".into()],
            directories: vec!["/mnt/b".into()],
        }
    }

    fn parsed(lines: &str) -> Vec<Value> {
        let lines = lines.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().unwrap()
    }

    fn missed(path: &str, requests: u64, last: u64) -> Missed {
        Missed {
            site: 1,
            directory: 0,
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
        // The same path beneath another directory is another name.
        misses.add(Missed {
            directory: 1,
            ..missed("/c", 1, 103)
        });
        let beneath = json!({"sequence": 3, "site": "a.example", "directory": "/mnt/b", "path": "/c", "requests": 1, "last": 103});
        assert_eq!(
            told(&misses, 2),
            [json!({"instance": "i", "next": 3}), beneath]
        );
        // One of another process has no such numbers.
        let none = [json!({"instance": "i", "next": 3})];
        assert_eq!(told(&misses, 99), none);
        assert_eq!(told(&misses, u64::MAX), none);
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
    fn of_too_many_names_the_oldest_is_forgotten() {
        let mut misses = Misses::default();
        for number in 1..=MISSES_TOLD_MAX + 1 {
            misses.add(missed(&format!("/{number}"), 1, 1));
        }
        assert_eq!(misses.names.len(), MISSES_TOLD_MAX);
        assert_eq!(misses.numbers.len(), MISSES_TOLD_MAX);
        let all = told(&misses, 0);
        assert_eq!(all.len(), MISSES_TOLD_MAX + 1);
        assert_eq!(all[1]["path"], json!("/2"));
        assert_eq!(all[0]["next"], json!(MISSES_TOLD_MAX + 1));
    }

    #[test]
    fn an_answer_has_an_end_however_long_names_are() {
        // Three times as long, as a URI has them.
        let long = |number: usize| format!("/{number}{}", "%".repeat(1000));
        let mut misses = Misses::default();
        for number in 1..=MISSES_TOLD_MAX {
            misses.add(missed(&long(number), 1, 1));
        }
        let (mut after, mut count) = (0, 0);
        for _ in 0..100 {
            let lines = misses.lines(after, &instance(), &labels());
            assert!(lines.len() < ANSWER_BYTES_MAX + 100, "{}", lines.len());
            let lines = parsed(&lines);
            count += lines.len() - 1;
            let next = lines[0]["next"].as_u64().unwrap();
            if next == after {
                break;
            }
            after = next;
        }
        assert_eq!((count, after), (MISSES_TOLD_MAX, MISSES_TOLD_MAX as u64));
        let many = (0..4096).map(|number| counted(1, &long(number), number as u64, 1));
        let lines = counts([many.collect()], &instance(), 99, &labels());
        assert!(lines.len() <= ANSWER_BYTES_MAX, "{}", lines.len());
        let lines = parsed(&lines);
        assert_eq!(
            lines[1]["requests"],
            json!(4095),
            "the most asked are there"
        );
    }

    fn counted(site: u16, path: &str, requests: u64, last: u64) -> Counted {
        Counted {
            site,
            directory: 0,
            path: path.into(),
            requests,
            excess_max: requests / 2,
            last,
        }
    }

    #[test]
    fn what_workers_count_is_added_up_and_the_most_asked_comes_first() {
        let one = vec![
            counted(1, "/a", 3, 7),
            counted(1, "/b", 4, 5),
            counted(9, "/a", 1, 9),
        ];
        // What moved to another page while this worker was asked is told twice.
        let other = vec![counted(1, "/a", 2, 8), counted(1, "/a", 1, 6)];
        let lines = counts([one, other], &instance(), 99, &labels());
        let expected = [
            json!({"instance": "i", "began": 99}),
            json!({"site": "a.example", "path": "/a", "requests": 5, "excess_max": 2, "last": 8}),
            json!({"site": "a.example", "path": "/b", "requests": 4, "excess_max": 2, "last": 5}),
            json!({"site": "", "path": "/a", "requests": 1, "excess_max": 0, "last": 9}),
        ];
        assert_eq!(parsed(&lines), expected);
        let beneath = |directory| Counted {
            directory,
            ..counted(1, "/a", 1, 1)
        };
        let both = [0, 1].map(beneath).to_vec();
        let lines = parsed(&counts([both], &instance(), 99, &labels()));
        let directories: Vec<_> = lines[1..].iter().map(|line| &line["directory"]).collect();
        assert_eq!(directories, [&Value::Null, &json!("/mnt/b")]);
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
