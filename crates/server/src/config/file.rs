//! The configuration file as it is written: its fields, and the values that are more than a number or a text.
//!
//! It refuses unknown keys and values of another kind, with the line; what a value may be, `settings`
//! checks by the table of keys. Bounded by the file, which is read whole.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

use super::{AUTO, OFF};
use crate::failure::Failure;

/// The configuration file as it was written. Numbers are wide and signed, so that a value out of
/// range reaches the message that names its range.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(
    missing_docs,
    reason = "each is a row of `keys`, which is where they are described"
)]
pub struct FileConfig {
    pub link: Option<String>,
    pub mac: Option<String>,
    /// `zero_copy`.
    pub zero_copy: Option<String>,
    pub address: Option<Vec<String>>,
    pub address_check: Option<bool>,
    pub allow: Option<Vec<String>>,
    pub deny: Option<Vec<String>>,
    pub http: Option<PortOrOff>,
    pub https: Option<PortOrOff>,
    pub certificate: Option<Vec<CertificateTable>>,
    pub log_tls_secrets: Option<bool>,
    pub user: Option<String>,
    pub congestion_control: Option<String>,
    pub pacing: Option<bool>,
    pub slow_start_after_idle: Option<bool>,
    pub ecn: Option<bool>,
    pub mtu_probing: Option<bool>,
    pub connection_rate_max: Option<i64>,
    pub aead_library: Option<String>,
    pub core_dumps: Option<bool>,
    pub workers: Option<NumberOrAuto>,
    pub pcap: Option<PathBuf>,
    pub trace: Option<PathBuf>,
    /// `trace_peer`.
    pub trace_peer: Option<String>,
    pub access_log: Option<PathBuf>,
    pub metrics: Option<String>,
    pub cors: Option<bool>,
    pub header: Option<Vec<String>>,
    pub cache_control: Option<bool>,
    pub types: Option<BTreeMap<String, String>>,
    pub log: Option<String>,
    pub buffered: Option<bool>,
    pub nvme_passthrough: Option<bool>,
    pub connections_max: Option<i64>,
    pub connections_per_source_max: Option<i64>,
    pub slots: Option<i64>,
    pub disk_queue_depth: Option<i64>,
    pub coalesce_us: Option<i64>,
    pub busy_poll_us: Option<i64>,
    pub objects_max: Option<i64>,
    pub tls_key_records_max: Option<i64>,
    pub head_timeout_seconds: Option<Seconds>,
    pub idle_timeout_seconds: Option<Seconds>,
    pub send_timeout_seconds: Option<Seconds>,
    pub replaced_timeout_seconds: Option<Seconds>,
    pub shutdown_grace_seconds: Option<Seconds>,
}

/// A certificate and its key, as the file names them.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateTable {
    /// PEM file of the chain.
    pub cert: PathBuf,
    /// PEM file of the private key.
    pub key: PathBuf,
}

/// A port as it was written: a number, or a word. Which word is for [`crate::settings`] to check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortOrOff(pub String);

impl<'de> Deserialize<'de> for PortOrOff {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PortVisitor)
    }
}

/// A number of workers as it was written: a number, or a word. Which word is for [`crate::settings`]
/// to check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NumberOrAuto(pub String);

impl<'de> Deserialize<'de> for NumberOrAuto {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberVisitor)
    }
}

/// A time as it was written: whole seconds, or a number with its unit, `"20s"`, `"2m"`, `"1h"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seconds(pub i64);

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SecondsVisitor)
    }
}

struct SecondsVisitor;

impl Visitor<'_> for SecondsVisitor {
    type Value = Seconds;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("whole seconds, or a whole number with s, m or h like \"20s\"")
    }

    fn visit_i64<E>(self, seconds: i64) -> Result<Seconds, E> {
        Ok(Seconds(seconds))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Seconds, E> {
        let units = [("s", 1), ("m", 60), ("h", 3_600)];
        let seconds = units.into_iter().find_map(|(unit, seconds)| {
            let count: i64 = text.strip_suffix(unit)?.parse().ok()?;
            count.checked_mul(seconds)
        });
        let unexpected = Unexpected::Str(text);
        seconds
            .map(Seconds)
            .ok_or_else(|| E::invalid_value(unexpected, &self))
    }
}

struct NumberVisitor;

impl Visitor<'_> for NumberVisitor {
    type Value = NumberOrAuto;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a number or \"{AUTO}\"")
    }

    fn visit_i64<E>(self, number: i64) -> Result<NumberOrAuto, E> {
        Ok(NumberOrAuto(number.to_string()))
    }

    fn visit_str<E>(self, word: &str) -> Result<NumberOrAuto, E> {
        Ok(NumberOrAuto(word.into()))
    }
}

struct PortVisitor;

impl Visitor<'_> for PortVisitor {
    type Value = PortOrOff;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a TCP port or \"{OFF}\"")
    }

    fn visit_i64<E>(self, port: i64) -> Result<PortOrOff, E> {
        Ok(PortOrOff(port.to_string()))
    }

    fn visit_str<E>(self, word: &str) -> Result<PortOrOff, E> {
        Ok(PortOrOff(word.into()))
    }
}

impl FileConfig {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// When it cannot be read, is no TOML, or has a key or type that it should not have.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::refused(
                format!("--config {shown}: {error}"),
                "name a readable TOML file, or leave --config out",
            )
        })?;
        Self::parse(&text).map_err(|problem| {
            Failure::refused(
                format!("--config {shown}: {problem}"),
                "docs/run/configuration.md lists every key with its type and range",
            )
        })
    }

    /// Reads the file's text; on error says line, column and what is wrong there.
    ///
    /// # Errors
    /// The problem, on one line.
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| {
            let before = error
                .span()
                .map_or("", |span| text.get(..span.start).unwrap_or(""));
            let line = before.matches('\n').count() + 1;
            format!("line {line}: {}", error.message())
        })
    }
}
