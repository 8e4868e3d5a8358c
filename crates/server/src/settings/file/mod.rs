//! The configuration file as it is written: how it is read, and the types of its values.
//!
//! It refuses unknown keys and values of another kind, with the line; what a value may be, is checked
//! where it is kept. Bounded by the file, which is read whole.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, Visitor};

use super::table::FileConfig;
use crate::failure::Failure;

/// A certificate and its key, as the file names them.
#[derive(Clone, PartialEq, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CertificateTable {
    /// PEM file of the chain.
    pub cert: PathBuf,
    /// PEM file of the private key.
    pub key: PathBuf,
}

/// A number as it was written, or a word or a number with its unit: what is right, the key says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Amount(pub String);

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AmountVisitor)
    }
}

/// Takes both as text.
struct AmountVisitor;

impl Visitor<'_> for AmountVisitor {
    type Value = Amount;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number, or text")
    }

    fn visit_i64<E>(self, number: i64) -> Result<Amount, E> {
        Ok(Amount(number.to_string()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Amount, E> {
        Ok(Amount(text.into()))
    }
}

/// A flag as it was typed, which stands for what the file would have as `W`.
pub(super) trait Typed<W> {
    /// The value, if the flag was given.
    fn given(&self) -> Option<W>;
}

impl<W: Clone> Typed<W> for Option<W> {
    fn given(&self) -> Option<W> {
        self.clone()
    }
}

impl Typed<Amount> for Option<String> {
    fn given(&self) -> Option<Amount> {
        self.clone().map(Amount)
    }
}

impl Typed<bool> for bool {
    fn given(&self) -> Option<bool> {
        self.then_some(true)
    }
}

impl Typed<Vec<String>> for Vec<String> {
    fn given(&self) -> Option<Vec<String>> {
        (!self.is_empty()).then(|| self.clone())
    }
}

/// Half of each table: the flags of both halves are put together in the parent module.
impl Typed<Vec<CertificateTable>> for Vec<PathBuf> {
    fn given(&self) -> Option<Vec<CertificateTable>> {
        None
    }
}

impl FileConfig {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// When it cannot be read, is no TOML, or has a key or type that it should not have.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        Self::of_text(path, std::fs::read_to_string(path))
    }

    /// As [`FileConfig::read`], of what was read at `path`.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn of_text(path: &Path, text: io::Result<String>) -> Result<Self, Failure> {
        let shown = path.display();
        let text = text.map_err(|error| {
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
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| {
            let before = error
                .span()
                .map_or("", |span| text.get(..span.start).unwrap_or(""));
            let line = before.matches('\n').count() + 1;
            format!("line {line}: {}", error.message())
        })
    }
}

#[cfg(test)]
mod tests;
