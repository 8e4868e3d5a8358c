//! The configuration file as it is written: how it is read, and the types of its values.
//!
//! It refuses unknown keys and values of another kind, with the line; what a value may be, is checked
//! where it is kept. Bounded by the file, which is read whole.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

use super::key::{AUTO, OFF};
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

/// A whole number as it was written, so that one out of range reaches the message that names its range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct WholeNumber(pub String);

/// A port as it was written: a number, or a word, which is [`OFF`] if it is right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PortOrOff(pub String);

/// A number of workers as it was written: a number, or a word, which is [`AUTO`] if it is right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NumberOrAuto(pub String);

impl<'de> Deserialize<'de> for WholeNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        i64::deserialize(deserializer).map(|number| Self(number.to_string()))
    }
}

impl<'de> Deserialize<'de> for PortOrOff {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expecting = format!("a TCP port or \"{OFF}\"");
        deserializer
            .deserialize_any(NumberOrWord(expecting))
            .map(Self)
    }
}

impl<'de> Deserialize<'de> for NumberOrAuto {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expecting = format!("a number or \"{AUTO}\"");
        deserializer
            .deserialize_any(NumberOrWord(expecting))
            .map(Self)
    }
}

/// A time as it was written: whole seconds, or a number with its unit, `"20s"`, `"2m"`, `"1h"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seconds(pub i64);

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

/// Takes both as text. Says this where it finds anything else.
struct NumberOrWord(String);

impl Visitor<'_> for NumberOrWord {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }

    fn visit_i64<E>(self, number: i64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_str<E>(self, word: &str) -> Result<String, E> {
        Ok(word.into())
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

impl Typed<WholeNumber> for Option<String> {
    fn given(&self) -> Option<WholeNumber> {
        self.clone().map(WholeNumber)
    }
}

impl Typed<PortOrOff> for Option<String> {
    fn given(&self) -> Option<PortOrOff> {
        self.clone().map(PortOrOff)
    }
}

impl Typed<NumberOrAuto> for Option<String> {
    fn given(&self) -> Option<NumberOrAuto> {
        self.clone().map(NumberOrAuto)
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
