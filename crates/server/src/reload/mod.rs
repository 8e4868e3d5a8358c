//! What is read again at SIGHUP while serving: the configuration file, certificates and keys.
//!
//! All of it is checked before any of it is used: else nothing changes. Of the file, [`RELOADED`] is used by requests
//! and handshakes that begin from then on; other keys are told, and wait for a restart.
//!
//! It refuses files that were not named at start, if the server has dropped the right to read them (decision 9).
//! Bounds: [`files::FILE_BYTES_MAX`] a file.

pub(crate) mod files;
pub(crate) mod folder;
mod loader;
pub(crate) mod reader;

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;

use sites::Sites;
use sites::links::LinkKey;
use tracing::level_filters::LevelFilter;

use crate::failure::Failure;
use crate::observe::configuration::Configuration;
use crate::observe::metrics::sites::SiteLabels;
use crate::settings::sites::{compile, directories};
use crate::settings::{FileConfig, Settings};
use crate::tls;
use files::OperatorFiles;
pub(crate) use loader::Loader;

/// Keys of the configuration file that a change of needs no restart.
pub(crate) const RELOADED: [&str; 12] = [
    "cache_control",
    "certificate",
    "certificates",
    "cors",
    "header",
    "hidden_files",
    "log",
    "proxy_protocol",
    "site",
    "ticket_keys",
    "trusted_proxies",
    "types",
];

/// What was read.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    /// `None`: nothing is served over TLS.
    pub tls: Option<worker::tls::Loaded>,
    /// Which reply a request gets.
    pub sites: Arc<Sites>,
    /// How many sites the operator has named.
    pub site_count: usize,
    /// Least severe level logged.
    pub log: LevelFilter,
    /// Keys whose new values wait for a restart.
    pub waiting: Vec<&'static str>,
    /// What is in force, for those who ask.
    pub configuration: Configuration,
}

/// What it is read from.
#[derive(Debug)]
pub(crate) struct Source {
    settings: Settings,
    files: OperatorFiles,
    tls: Option<tls::Source>,
    /// Of the sites so far.
    labels: RefCell<SiteLabels>,
}

impl Source {
    /// For a server with these settings. `files` reads now and later.
    ///
    /// # Errors
    /// As [`tls::Source::new`].
    pub(crate) fn new(settings: &Settings, files: OperatorFiles) -> Result<Self, Failure> {
        let tls = settings.https.as_ref().map(tls::Source::new).transpose()?;
        Ok(Self {
            settings: settings.clone(),
            files,
            tls,
            labels: RefCell::default(),
        })
    }

    /// The files that are read, now and at SIGHUP.
    #[must_use]
    pub(crate) fn paths(settings: &Settings) -> Vec<PathBuf> {
        let pairs = settings.https.iter().flat_map(|https| &https.pairs);
        let pairs = pairs.flat_map(|pair| [&pair.certificate.path, &pair.key.path]);
        let config = settings.source.args.config.iter();
        let tickets = settings
            .https
            .iter()
            .filter_map(|https| https.ticket_keys.as_ref());
        let tickets = tickets.map(|file| &file.path);
        let https = settings.https.iter();
        let folder = https.filter_map(|https| https.folder.as_ref());
        let folder = folder.map(|folder| &folder.path);
        let keys = settings.sites.iter().flat_map(|site| site.key_files());
        let mut paths: Vec<PathBuf> = config
            .chain(pairs)
            .chain(tickets)
            .chain(folder)
            .chain(keys)
            .cloned()
            .collect();
        paths.sort_unstable();
        paths.dedup();
        paths
    }

    /// What the settings of the start lead to.
    ///
    /// # Errors
    /// The files that are not what they must be.
    pub(crate) fn load_first(&self) -> Result<Loaded, Failure> {
        self.load_with(&self.settings)
    }

    /// The same, with the configuration file as it is now.
    ///
    /// # Errors
    /// The settings that are not what they must be; else the files.
    pub(crate) fn load(&self) -> Result<Loaded, Failure> {
        let args = &self.settings.source.args;
        let Some(path) = &args.config else {
            return self.load_first();
        };
        let text = self.files.read_file(path).and_then(|bytes| {
            String::from_utf8(bytes.to_vec()).map_err(|_| std::io::ErrorKind::InvalidData.into())
        });
        let file = FileConfig::of_text(path, text);
        let running = &self.settings.source.file;
        let after_restart = Settings::merge(args.clone(), file.clone())?;
        let mut waiting = running.differing(&after_restart.source.file);
        waiting.retain(|key| !RELOADED.contains(key));
        // Redirects lead to the port that is served now.
        let file = FileConfig {
            http: running.http.clone(),
            https: running.https.clone(),
            ..file
        };
        let settings = Settings::merge(args.clone(), file)?;
        let loaded = self.load_with(&settings)?;
        let running = Configuration::of(&self.settings);
        Ok(Loaded {
            configuration: loaded.configuration.with_running(&running, &waiting),
            waiting,
            ..loaded
        })
    }

    fn load_with(&self, settings: &Settings) -> Result<Loaded, Failure> {
        let opened = directories(&self.settings);
        let failures = RefCell::new(Vec::new());
        let mut sites = compile(settings, &opened, |link| {
            let text = self.files.read_file(link.file());
            let text = text.map_err(|error| link.refuse_file(&error));
            Ok(text
                .and_then(|text| link.parse_keys(&text))
                .unwrap_or_else(|failure| {
                    failures.borrow_mut().push(failure);
                    vec![LinkKey::new(b"none").expect("invariant: it has a length")]
                }))
        })?;
        let https = self.tls.as_ref().zip(settings.https.as_ref());
        let tls = https.map(|(source, https)| source.load(https, &self.files));
        let mut failures = failures.into_inner();
        let tls = tls
            .transpose()
            .map_err(|failure| failures.extend(failure.into_reasons()));
        Failure::all(failures)?;
        let mut labels = self.labels.borrow_mut();
        let names = settings.sites.iter().filter_map(|site| site.first_name());
        let numbers: Vec<u16> = names.map(|name| labels.number(name)).collect();
        sites = sites.with_numbers(&numbers);
        let configuration = Configuration::of(settings)
            .with_site_labels(labels.clone())
            .with_directories(opened);
        Ok(Loaded {
            tls: tls.ok().flatten(),
            sites: Arc::new(sites),
            site_count: settings.sites.len(),
            log: settings.log,
            waiting: Vec::new(),
            configuration,
        })
    }
}

/// Reads all files that settings name, with the rights of this process, and says what there is.
///
/// # Errors
/// The files that are not what they must be.
pub(crate) fn check(settings: &Settings) -> Result<String, Failure> {
    let loaded = Source::new(settings, OperatorFiles::direct())?.load_first()?;
    let certificates = loaded
        .tls
        .as_ref()
        .map_or(0, |tls| tls.certificates.count());
    let count =
        |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let (sites, certificates) = (
        count(loaded.site_count, "site"),
        count(certificates, "certificate"),
    );
    Ok(format!("{sites}, {certificates}"))
}

#[cfg(test)]
mod tests;
