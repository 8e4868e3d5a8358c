//! The kept corpora of the fuzz targets, one archive each: `fuzz/seed_corpus/TARGET.tar.gz`.
//!
//! tar and gzip make and read them, so anybody can look into one. An archive's bytes depend on its
//! inputs alone: they are sorted by name and have neither times nor owners. It refuses an archive that
//! tar does not read. Bounded by: `LIMIT` for each call of tar.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::process::output;
use crate::workspace_root;

/// The longest that tar may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Where the archive of a target is, if it has one.
#[must_use]
pub fn archive(target: &str) -> PathBuf {
    let folder = workspace_root().join("fuzz/seed_corpus");
    folder.join(format!("{target}.tar.gz"))
}

/// The inputs of an archive as files of a new folder.
///
/// # Errors
/// There is no such archive, or tar does not read it.
pub fn unpack(archive: &Path) -> Result<TempDir> {
    let folder = tempfile::tempdir().context("making a folder for a corpus")?;
    tar(Command::new("tar")
        .args(["-xz", "--no-same-owner", "-f"])
        .arg(archive)
        .arg("-C")
        .arg(folder.path()))?;
    Ok(folder)
}

/// Makes an archive of the files of a folder.
///
/// # Errors
/// tar does not write it.
pub fn pack(folder: &Path, archive: &Path) -> Result<()> {
    tar(Command::new("tar")
        .args(["-c", "--format=ustar", "--sort=name", "--mtime=@0"])
        .args(["--owner=0", "--group=0", "--numeric-owner"])
        .args(["--mode=u=rwX,go=rX", "--use-compress-program=gzip -n9"])
        .arg("-f")
        .arg(archive)
        .arg("-C")
        .arg(folder)
        .arg("."))
}

fn tar(command: &mut Command) -> Result<()> {
    let ended = output(command, LIMIT)?;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{command:?}: {said}");
    Ok(())
}

/// The names and bytes of an archive's inputs, by name.
///
/// # Errors
/// There is no such archive, or tar does not read it.
pub fn inputs(archive: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let folder = unpack(archive)?;
    let mut inputs = Vec::new();
    for entry in fs::read_dir(folder.path())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        inputs.push((name, fs::read(entry.path())?));
    }
    inputs.sort();
    Ok(inputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked_and_the_same_inputs_make_the_same_bytes() {
        let place = tempfile::tempdir().unwrap();
        let archives = ["ab", "ba"].map(|order| {
            let folder = place.path().join(order);
            fs::create_dir(&folder).unwrap();
            for name in order.chars() {
                fs::write(folder.join(name.to_string()), [0, name as u8]).unwrap();
            }
            let archive = place.path().join(format!("{order}.tar.gz"));
            pack(&folder, &archive).unwrap();
            archive
        });
        let wanted =
            [("a", b'a'), ("b", b'b')].map(|(name, byte)| (name.to_owned(), vec![0, byte]));
        assert_eq!(inputs(&archives[0]).unwrap(), wanted);
        let [first, second] = archives.map(|it| fs::read(it).unwrap());
        assert_eq!(first, second);
    }

    #[test]
    fn an_archive_that_is_missing_or_cut_short_is_refused() {
        let (folder, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let archive = place.path().join("x.tar.gz");
        assert!(inputs(&archive).is_err());
        fs::write(folder.path().join("input"), [7; 100]).unwrap();
        pack(folder.path(), &archive).unwrap();
        assert_eq!(inputs(&archive).unwrap().len(), 1);
        let whole = fs::read(&archive).unwrap();
        fs::write(&archive, &whole[..whole.len() / 2]).unwrap();
        assert!(inputs(&archive).is_err());
    }
}
