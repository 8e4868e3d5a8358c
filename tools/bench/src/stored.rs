//! What a bench measured, as it is stored: JSON lines, the first of them the environment, each further one a
//! result, written when it is there.
//!
//! Pages are made from such a file alone. It refuses files of another format. Bounded by:
//! [`FILE_BYTES_MAX`] when reading.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Version of the format.
const FORMAT: u32 = 2;

/// Largest file that is read, bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// On what it ran.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Environment {
    /// [`FORMAT`].
    format: u32,
    /// What to type to do it again.
    pub(crate) command: String,
    /// What order and losses were drawn from.
    pub(crate) seed: u64,
    /// Size of each object, bytes; 0 where it means nothing.
    #[serde(default)]
    pub(crate) object_bytes: u32,
    /// Everything else, `(name, value)`.
    pub(crate) machine: Vec<(String, String)>,
}

impl Environment {
    pub(crate) fn new(command: String, seed: u64, machine: Vec<(String, String)>) -> Self {
        Self {
            format: FORMAT,
            command,
            seed,
            object_bytes: 0,
            machine,
        }
    }

    pub(crate) fn with_objects_of(self, object_bytes: u32) -> Self {
        Self {
            object_bytes,
            ..self
        }
    }

    /// Rows of a page's table: what was measured on.
    pub(crate) fn rows(&self) -> String {
        let mut text = String::from("| | |\n|---|---|\n");
        for (name, value) in &self.machine {
            let _ = writeln!(text, "| {name} | {value} |");
        }
        text
    }
}

/// Whether a file has results of `bench paths`, by the command that made it.
pub(crate) fn is_of_paths(path: &Path) -> Result<bool> {
    let (environment, _) = read::<serde_json::Value>(path)?;
    Ok(environment.command.starts_with("cargo xtask bench paths"))
}

/// Reads a file.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<(Environment, Vec<T>)> {
    let name = path.display();
    let size = fs::metadata(path).with_context(|| format!("looking at {name}"))?;
    ensure!(
        size.len() <= FILE_BYTES_MAX,
        "{name} has more than {FILE_BYTES_MAX} bytes"
    );
    let text = fs::read_to_string(path).with_context(|| format!("reading {name}"))?;
    parse(&text).with_context(|| format!("{name} is no file of results"))
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<(Environment, Vec<T>)> {
    let mut lines = text.lines();
    let first = lines.next().context("it is empty")?;
    let environment: Environment = serde_json::from_str(first).context("line 1")?;
    let format = environment.format;
    ensure!(
        format == FORMAT,
        "it is of format {format}, this is {FORMAT}"
    );
    let results = lines.enumerate().map(|(index, line)| {
        serde_json::from_str(line).with_context(|| format!("line {}", index + 2))
    });
    Ok((environment, results.collect::<Result<_>>()?))
}

/// A file of results being written.
#[derive(Debug)]
pub(crate) struct Writer(File);

impl Writer {
    /// Begins a file; one that is there is gone.
    pub(crate) fn create(path: &Path, environment: &Environment) -> Result<Self> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)
                .with_context(|| format!("making {}", directory.display()))?;
        }
        let file = File::create(path).with_context(|| format!("making {}", path.display()))?;
        let mut writer = Self(file);
        writer.add(environment)?;
        Ok(writer)
    }

    /// Adds a result.
    pub(crate) fn add(&mut self, value: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(value)? + "\n";
        let written = self.0.write_all(line.as_bytes());
        written.context("writing the results")
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "bytes of one run are far below 2^52"
)]
pub(crate) const fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn environment() -> Environment {
        let machine = vec![("kernel".to_owned(), "Linux".to_owned())];
        Environment::new("cargo xtask bench".to_owned(), 3, machine).with_objects_of(307_200)
    }

    #[test]
    fn what_is_written_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/results.jsonl");
        let mut writer = Writer::create(&path, &environment()).unwrap();
        writer.add(&1).unwrap();
        writer.add(&2).unwrap();
        assert_eq!(read(&path).unwrap(), (environment(), vec![1, 2]));
    }

    #[test]
    fn another_format_and_broken_lines_are_refused() {
        let good = serde_json::to_string(&environment()).unwrap();
        assert!(parse::<u64>(&good).is_ok());
        let other = good.replace("\"format\":2", "\"format\":1");
        let error = parse::<u64>(&other).unwrap_err();
        assert!(error.to_string().contains("format 1"), "{error}");
        let error = parse::<u64>(&format!("{good}\n{{}}\n")).unwrap_err();
        assert!(error.to_string().contains("line 2"), "{error}");
        assert!(parse::<u64>("").is_err());
    }
}
