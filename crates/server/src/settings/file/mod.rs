//! The configuration file as it is written: how it is read, and the types of its values.
//!
//! It refuses unknown keys and values of another kind, with their place ([`reader`], [`text`]); what a value may
//! be, is checked where it is kept. Bounded by the file, which is read whole.

mod reader;
mod text;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::table::{CommonArgs, FileConfig};
use crate::failure::Failure;

pub(crate) use reader::{Reader, Table, Value, Written};
pub(crate) use text::{FileText, name_of};

/// A certificate and its key, as the file names them.
#[derive(Clone, PartialEq, Debug, Default, serde::Serialize)]
pub(crate) struct CertificateTable {
    /// PEM file of the chain.
    pub cert: PathBuf,
    /// PEM file of the private key.
    pub key: PathBuf,
}

impl Table for CertificateTable {
    const NAME: &'static str = "[[certificate]]";
    const KEYS: &'static [&'static str] = &["cert", "key"];
    const REQUIRED: &'static [&'static str] = Self::KEYS;

    fn read_key(&mut self, key: &str, value: &Value<'_>, reader: &mut Reader<'_>) {
        let path = PathBuf::read(value, "", reader).unwrap_or_default();
        match key {
            "cert" => self.cert = path,
            _ => self.key = path,
        }
    }
}

/// A number as it was written, or a word or a number with its unit: what is right, the key says.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub(crate) struct Amount(pub String);

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
    /// Reads the file that the command line names, if it names one.
    #[must_use]
    pub(crate) fn of_args(args: &CommonArgs) -> Self {
        let path = args.config.as_deref();
        path.map_or_else(Self::default, Self::read)
    }

    /// Reads the file at `path`. What is wrong with it, its source tells.
    #[must_use]
    pub(crate) fn read(path: &Path) -> Self {
        Self::of_text(path, std::fs::read_to_string(path))
    }

    /// As [`FileConfig::read`], of what was read at `path`.
    #[must_use]
    pub(crate) fn of_text(path: &Path, text: io::Result<String>) -> Self {
        let mut source = FileText::new(path, String::new());
        let config = match text {
            Ok(text) => {
                source = FileText::new(path, text);
                reader::read(&mut source)
            }
            Err(error) => {
                source.problems.push(Failure::refused(
                    format!("{}: {error}", path.display()),
                    "name a readable TOML file",
                ));
                Self::default()
            }
        };
        Self {
            source: Arc::new(source),
            ..config
        }
    }
}

#[cfg(test)]
mod tests;
