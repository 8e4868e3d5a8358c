//! What the server runs with, for those who ask: `/config` and `/sites`.
//!
//! It tells what file and flags say, and the defaults of what they do not say. It holds no secret: keys of
//! certificates, tickets and links are named by their files. Bound: that of the configuration.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::metrics::sites::SiteLabels;
use super::requests::Labels;
use crate::settings::{KEYS, Settings};

/// The key of sites, which have a page of their own.
const SITES: &str = "site";

/// Settings that are in force, by key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Configuration {
    settings: Map<String, Value>,
    site_labels: SiteLabels,
    /// Those beside PATH that were opened at start, by number from 1 on.
    directories: Vec<PathBuf>,
}

impl Configuration {
    /// That of these settings.
    #[must_use]
    pub(crate) fn of(settings: &Settings) -> Self {
        let given = serde_json::to_value(&settings.source.file).unwrap_or_default();
        let told = |name: &str| given.get(name).filter(|value| !value.is_null()).cloned();
        let mut all = Map::new();
        all.insert("path".into(), settings.path.to_string_lossy().into());
        for key in KEYS {
            let shown = || {
                let text = key.shown_of(settings)?;
                Some(serde_json::from_str(&text).unwrap_or(Value::String(text)))
            };
            if let Some(value) = told(key.name).or_else(shown) {
                all.insert(key.name.into(), value);
            }
        }
        Self {
            settings: all,
            ..Self::default()
        }
    }

    /// The same, with the sites that requests are counted by.
    #[must_use]
    pub(crate) fn with_site_labels(self, site_labels: SiteLabels) -> Self {
        Self {
            site_labels,
            ..self
        }
    }

    /// The same, with the directories beside PATH that were opened at start.
    #[must_use]
    pub(crate) fn with_directories(self, directories: Vec<PathBuf>) -> Self {
        Self {
            directories,
            ..self
        }
    }

    /// The sites that requests are counted by.
    pub(crate) const fn site_labels(&self) -> &SiteLabels {
        &self.site_labels
    }

    /// What the numbers of sites and directories stand for.
    pub(crate) fn labels(&self) -> Labels {
        let shown = |directory: &PathBuf| directory.to_string_lossy().into_owned();
        Labels {
            sites: self.site_labels.clone().into_labels(),
            directories: self.directories.iter().map(shown).collect(),
        }
    }

    /// The same, but with what `running` has of these keys: their new values wait for a restart.
    #[must_use]
    pub(crate) fn with_running(mut self, running: &Self, keys: &[&str]) -> Self {
        for key in keys {
            match running.settings.get(*key) {
                Some(value) => self.settings.insert((*key).into(), value.clone()),
                None => self.settings.remove(*key),
            };
        }
        self
    }

    /// All but the sites, as a JSON object.
    #[must_use]
    pub(crate) fn config(&self) -> String {
        let mut settings = self.settings.clone();
        settings.remove(SITES);
        pretty(&Value::Object(settings))
    }

    /// The sites with their rules, as a JSON array.
    #[must_use]
    pub(crate) fn sites(&self) -> String {
        let none = Value::Array(Vec::new());
        pretty(&without_nulls(self.settings.get(SITES).unwrap_or(&none)))
    }
}

fn pretty(value: &Value) -> String {
    let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
    text.push('\n');
    text
}

/// Keys that were not written are left out.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let said = members.iter().filter(|(_, value)| !value.is_null());
            said.map(|(key, value)| (key.clone(), without_nulls(value)))
                .collect()
        }
        Value::Array(values) => values.iter().map(without_nulls).collect(),
        value => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::Configuration;
    use crate::settings::{CommonArgs, FileConfig, Settings};

    fn with_file(text: &str) -> Result<Settings, crate::failure::Failure> {
        let args = CommonArgs {
            path: "/srv".into(),
            config: Some("atlas.toml".into()),
            ..CommonArgs::default()
        };
        let text = Ok(text.to_owned());
        Settings::merge(args, FileConfig::of_text("atlas.toml".as_ref(), text))
    }

    fn parsed(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn what_was_given_and_what_is_default_is_told_and_sites_apart() {
        let file = "http = 81\n[[site]]\nnames = [\"a.example\"]\n[[site.rule]]\npaths = [\"/x/**\"]\nstatus = 404";
        let told = Configuration::of(&with_file(file).unwrap());
        let config = parsed(&told.config());
        assert_eq!(config["http"], json!("81"));
        assert_eq!(config["access_log_format"], json!("combined"));
        assert_eq!((config.get("site"), config.get("pcap")), (None, None));
        let sites =
            json!([{"names": ["a.example"], "rule": [{"paths": ["/x/**"], "status": "404"}]}]);
        assert_eq!(parsed(&told.sites()), sites);
        assert_eq!(parsed(&Configuration::default().sites()), json!([]));
    }

    #[test]
    fn what_waits_for_a_restart_is_told_as_it_runs() {
        let running = Configuration::of(&with_file("slots = 100").unwrap());
        let new = Configuration::of(&with_file("slots = 200\npcap = \"a\"\nhttp = 82").unwrap());
        let told = parsed(&new.with_running(&running, &["slots", "pcap"]).config());
        assert_eq!((&told["slots"], told.get("pcap")), (&json!("100"), None));
        assert_eq!(told["http"], json!("82"));
    }
}
