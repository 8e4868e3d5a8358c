//! What an edge should hold, as a file: names with their priority and expiry.
//!
//! JSON lines, one object each: `{"name": "films/a/", "priority": 5, "expires": "2026-12-24T00:00:00Z", "pinned": true}`;
//! or, in a file that ends in `.toml`, the same as `[[object]]` tables. A name that ends in `/` means all beneath it, and the
//! longest one counts. `expires` is a date and time of RFC 3339, or seconds since 1970. It refuses keys that it does not know
//! and names that no request can ask for. Bounded by [`MANIFEST_BYTES_MAX`].

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;

use crate::origin::is_name;
use crate::plan::{Name, Versions, Wanted};
use crate::settings::located;

/// The longest manifest, bytes.
pub const MANIFEST_BYTES_MAX: u64 = 1 << 30;

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    #[serde(default)]
    priority: i32,
    expires: Option<Expires>,
    #[serde(default)]
    pinned: bool,
}

#[derive(Deserialize, Debug)]
#[serde(untagged)]
enum Expires {
    Seconds(i64),
    Text(String),
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Tables {
    #[serde(default)]
    object: Vec<Entry>,
}

/// A manifest.
#[derive(Clone, Debug, Default)]
pub struct Manifest {
    names: HashMap<Name, Wanted>,
    /// Without the slash at their ends.
    folders: HashMap<Name, Wanted>,
}

impl Manifest {
    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong, with the line.
    pub fn read(path: &Path) -> Result<Self, String> {
        let shown = path.display().to_string();
        let failed = |error: std::io::Error| format!("manifest {shown}: {error}");
        if std::fs::metadata(path).map_err(failed)?.len() > MANIFEST_BYTES_MAX {
            return Err(format!(
                "manifest {shown}: more than {MANIFEST_BYTES_MAX} bytes"
            ));
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        let is_toml = path.extension().is_some_and(|it| it == "toml");
        Self::parse(&text, is_toml).map_err(|problem| format!("manifest {shown}{problem}"))
    }

    fn parse(text: &str, is_toml: bool) -> Result<Self, String> {
        let mut manifest = Self::default();
        if is_toml {
            let tables: Tables = toml::from_str(text).map_err(|error| located("", text, &error))?;
            for entry in tables.object {
                let name = entry.name.clone();
                manifest
                    .insert(entry)
                    .map_err(|problem| format!(": {name:?}: {problem}"))?;
            }
            return Ok(manifest);
        }
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let at = |problem: String| format!(":{}: {problem}", index + 1);
            let entry: Entry = serde_json::from_str(line).map_err(|error| at(error.to_string()))?;
            manifest.insert(entry).map_err(at)?;
        }
        Ok(manifest)
    }

    fn insert(&mut self, entry: Entry) -> Result<(), String> {
        let name = entry.name.trim_start_matches('/');
        let (name, map) = match name.strip_suffix('/') {
            Some(folder) => (folder, &mut self.folders),
            None => (name, &mut self.names),
        };
        if !is_name(name) {
            return Err(format!(
                "{:?} is no name that a request can ask for",
                entry.name
            ));
        }
        let expires = match entry.expires {
            None => None,
            Some(Expires::Seconds(seconds)) => Some(seconds),
            Some(Expires::Text(text)) => {
                let date = chrono::DateTime::parse_from_rfc3339(&text).map_err(|_| {
                    format!("expires {text:?}: write it like \"2026-12-24T00:00:00Z\"")
                })?;
                Some(date.timestamp())
            }
        };
        let wanted = Wanted {
            priority: entry.priority,
            expires,
            is_pinned: entry.pinned,
        };
        map.insert(name.into(), wanted);
        Ok(())
    }

    /// Whether it names folders, which only a listing makes names of.
    #[must_use]
    pub fn has_folders(&self) -> bool {
        !self.folders.is_empty()
    }

    /// The names that are wanted, of those that the origin lists if it does.
    #[must_use]
    pub fn wanted(&self, versions: &Versions) -> HashMap<Name, Wanted> {
        let mut wanted = self.names.clone();
        let Versions::Listed(listed) = versions else {
            return wanted;
        };
        if self.folders.is_empty() {
            return wanted;
        }
        for name in listed.keys() {
            if !wanted.contains_key(name)
                && let Some(folder) = self.folder_of(name)
            {
                wanted.insert(Arc::clone(name), folder.clone());
            }
        }
        wanted
    }

    fn folder_of(&self, name: &str) -> Option<&Wanted> {
        let mut rest = name;
        while let Some((folder, _)) = rest.rsplit_once('/') {
            if let Some(wanted) = self.folders.get(folder) {
                return Some(wanted);
            }
            rest = folder;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::Stamp;

    fn listed(names: &[&str]) -> Versions {
        let stamps = names.iter().map(|name| ((*name).into(), Stamp::default()));
        Versions::Listed(stamps.collect())
    }

    #[test]
    fn lines_and_tables_say_the_same() {
        let lines = "{\"name\": \"a/b\", \"priority\": 5}\n\n{\"name\": \"/c/\", \"pinned\": true, \"expires\": 9}\n";
        let tables = "[[object]]\nname = \"a/b\"\npriority = 5\n[[object]]\nname = \"c/\"\npinned = true\nexpires = 9\n";
        for (text, is_toml) in [(lines, false), (tables, true)] {
            let manifest = Manifest::parse(text, is_toml).unwrap();
            let wanted = manifest.wanted(&listed(&["c/d/e", "c/f", "cc", "a/x"]));
            let mut names: Vec<_> = wanted.keys().map(AsRef::as_ref).collect();
            names.sort_unstable();
            assert_eq!(names, ["a/b", "c/d/e", "c/f"]);
            assert_eq!(wanted["a/b"].priority, 5);
            assert_eq!(
                (wanted["c/f"].is_pinned, wanted["c/f"].expires),
                (true, Some(9))
            );
            assert_eq!(manifest.wanted(&Versions::Unknown).len(), 1);
        }
    }

    #[test]
    fn the_longest_folder_counts_and_a_name_before_all() {
        let text = "{\"name\":\"a/\",\"priority\":1}\n{\"name\":\"a/b/\",\"priority\":2}\n{\"name\":\"a/b/c\",\"priority\":3}\n";
        let wanted = Manifest::parse(text, false)
            .unwrap()
            .wanted(&listed(&["a/x", "a/b/x", "a/b/c"]));
        assert_eq!(
            [
                wanted["a/x"].priority,
                wanted["a/b/x"].priority,
                wanted["a/b/c"].priority
            ],
            [1, 2, 3]
        );
    }

    #[test]
    fn an_error_names_the_line() {
        let of = |text: &str, is_toml| Manifest::parse(text, is_toml).unwrap_err();
        let good = "{\"name\":\"a\"}\n";
        assert!(of(&format!("{good}{{\"name\":1}}\n"), false).starts_with(":2: "));
        assert!(of("{\"name\":\"a\",\"prio\":1}", false).contains("unknown field `prio`"));
        assert!(of("{\"name\":\"../a\"}", false).contains("no name"));
        assert!(of("{\"name\":\"a\",\"expires\":\"soon\"}", false).contains("write it like"));
        assert!(of("[[object]]\nname = 1\n", true).starts_with(":2:8: "));
    }
}
