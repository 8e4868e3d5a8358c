//! An object that is being fetched: a file with holes, and beside it a record of which parts are there.
//!
//! **A part is recorded after it was written, so whatever ends the process, what is recorded is there.** A power cut may
//! lose what was written and keep its record, so a partial object counts only in the boot it was begun in. The record is
//! a header and a line a part, all of them appended; a line that was cut off is no line. The whole is flushed before it
//! gets its name. It refuses a record of another object, another version or another size of parts.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest;
use rustix::fs::{Timespec, Timestamps};
use serde::{Deserialize, Serialize};

use crate::checks::{Expected, Verifier};
use crate::stamp::Stamp;

/// Bytes that are read at once to be compared.
const READ_BYTES: usize = 256 << 10;
/// After this nobody goes on with a partial object.
const UNUSED_AGE: std::time::Duration = std::time::Duration::from_secs(7 * 86_400);
/// How a record begins: another format has another name.
const FORMAT: &str = "atlas-fill partial 1";

/// What a record begins with.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
struct Header {
    format: String,
    name: String,
    size_bytes: u64,
    seconds: i64,
    nanos: u32,
    part_bytes: u64,
    boot: String,
}

/// A partial object.
#[derive(Debug)]
pub struct Partial {
    path: PathBuf,
    record_path: PathBuf,
    file: Arc<File>,
    record: File,
    stamp: Stamp,
    part_bytes: u64,
    is_done: Vec<bool>,
}

/// Where an object's partial files are in a folder.
fn paths(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    let digest = digest::digest(&digest::SHA256, name.as_bytes());
    let key: String = digest.as_ref()[..16]
        .iter()
        .map(|it| format!("{it:02x}"))
        .collect();
    (
        folder.join(format!("{key}.part")),
        folder.join(format!("{key}.record")),
    )
}

/// Tells boots of this machine apart.
fn boot() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    boot.map_or_else(|_| String::new(), |text| text.trim().to_owned())
}

impl Partial {
    /// Begins one, in place of any that was there.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn create(folder: &Path, name: &str, stamp: Stamp, part_bytes: u64) -> io::Result<Self> {
        let (path, record_path) = paths(folder, name);
        // The record first: without it the file counts for nothing.
        remove(&record_path)?;
        remove(&path)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(&path)?;
        let mut options = OpenOptions::new();
        options.append(true).create_new(true).mode(0o600);
        let mut record = options.open(&record_path)?;
        let header = Header {
            format: FORMAT.to_owned(),
            name: name.to_owned(),
            size_bytes: stamp.size_bytes,
            seconds: stamp.seconds,
            nanos: stamp.nanos,
            part_bytes,
            boot: boot(),
        };
        let mut line = serde_json::to_string(&header)?;
        line.push('\n');
        record.write_all(line.as_bytes())?;
        Ok(Self {
            path,
            record_path,
            file: Arc::new(file),
            record,
            is_done: vec![false; part_count(stamp.size_bytes, part_bytes)],
            stamp,
            part_bytes,
        })
    }

    /// Goes on with one that is there, if it is of this version.
    #[must_use]
    pub fn resume(folder: &Path, name: &str, stamp: Stamp, part_bytes: u64) -> Option<Self> {
        let (path, record_path) = paths(folder, name);
        let text = std::fs::read_to_string(&record_path).ok()?;
        let (first, rest) = text.split_once('\n')?;
        let header: Header = serde_json::from_str(first).ok()?;
        let wanted = Header {
            format: FORMAT.to_owned(),
            name: name.to_owned(),
            size_bytes: stamp.size_bytes,
            seconds: stamp.seconds,
            nanos: stamp.nanos,
            part_bytes,
            boot: boot(),
        };
        if header != wanted {
            return None;
        }
        let file = OpenOptions::new().read(true).write(true).open(&path).ok()?;
        let record = OpenOptions::new().append(true).open(&record_path).ok()?;
        let mut is_done = vec![false; part_count(stamp.size_bytes, part_bytes)];
        let length = file.metadata().ok()?.len();
        // The last line may have been cut off.
        let whole = rest.rfind('\n').map_or("", |end| &rest[..end]);
        for part in whole.lines().filter_map(|line| line.parse::<usize>().ok()) {
            let range = range_of(part, part_bytes, stamp.size_bytes);
            if let Some(is_done) = is_done.get_mut(part) {
                *is_done = range.end <= length;
            }
        }
        // What was cut off goes, so that the next line is one.
        let lines = whole.len() + usize::from(!whole.is_empty());
        let kept = u64::try_from(first.len() + 1 + lines).ok()?;
        record.set_len(kept).ok()?;
        Some(Self {
            path,
            record_path,
            file: Arc::new(file),
            record,
            stamp,
            part_bytes,
            is_done,
        })
    }

    /// The file, to be written at offsets.
    #[must_use]
    pub fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// The parts that are not there: their numbers and ranges.
    #[must_use]
    pub fn missing(&self) -> Vec<(usize, std::ops::Range<u64>)> {
        let parts = self
            .is_done
            .iter()
            .enumerate()
            .filter(|(_, is_done)| !**is_done);
        let range = |part| range_of(part, self.part_bytes, self.stamp.size_bytes);
        parts.map(|(part, _)| (part, range(part))).collect()
    }

    /// Bytes of the parts that are there.
    #[must_use]
    pub fn done_bytes(&self) -> u64 {
        let parts = self
            .is_done
            .iter()
            .enumerate()
            .filter(|(_, is_done)| **is_done);
        let range = |part| range_of(part, self.part_bytes, self.stamp.size_bytes);
        parts
            .map(|(part, _)| range(part))
            .map(|it| it.end - it.start)
            .sum()
    }

    /// Records that a part has been written.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn mark_done(&mut self, part: usize) -> io::Result<()> {
        self.record.write_all(format!("{part}\n").as_bytes())?;
        self.is_done[part] = true;
        Ok(())
    }

    /// Whether the content is what its digest says.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn verify(&self, expected: &Expected) -> io::Result<bool> {
        let mut verifier = Verifier::new(expected.algorithm);
        let mut buffer = vec![0; READ_BYTES];
        let mut offset = 0;
        loop {
            let count = self.file.read_at(&mut buffer, offset)?;
            if count == 0 {
                return Ok(verifier.finish() == expected.value);
            }
            verifier.update(&buffer[..count]);
            offset += u64::try_from(count).unwrap_or(u64::MAX);
        }
    }

    /// Makes the whole durable, with the time and mode of a copy.
    ///
    /// # Errors
    /// What the kernel said; a file of another length.
    pub fn finish(self) -> io::Result<Finished> {
        assert!(self.is_done.iter().all(|it| *it), "every part is there");
        let length = self.file.metadata()?.len();
        if length != self.stamp.size_bytes {
            return Err(io::Error::other(format!("it has {length} bytes")));
        }
        self.file.set_permissions(Permissions::from_mode(0o644))?;
        let time = Timespec {
            tv_sec: self.stamp.seconds,
            tv_nsec: self.stamp.nanos.into(),
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        rustix::fs::futimens(&self.file, &times)?;
        self.file.sync_all()?;
        Ok(Finished {
            path: self.path,
            record_path: self.record_path,
            stamp: self.stamp,
        })
    }

    /// Removes it.
    pub fn discard(self) {
        // What stays is found by the next start.
        let _ = remove(&self.record_path);
        let _ = remove(&self.path);
    }
}

/// A whole object that has no name yet. One that is dropped stays, and the next fetch goes on with it.
#[derive(Debug)]
pub struct Finished {
    /// Where it is.
    pub path: PathBuf,
    record_path: PathBuf,
    /// Its version.
    pub stamp: Stamp,
}

impl Finished {
    /// It has its name.
    pub fn placed(self) {
        let _ = remove(&self.record_path);
    }

    /// It cannot have its name.
    pub fn discard(self) {
        let _ = remove(&self.record_path);
        let _ = remove(&self.path);
    }
}

/// Bytes of the disk that the partial file of an object takes.
#[must_use]
pub fn allocated_bytes(folder: &Path, name: &str) -> u64 {
    let (path, _) = paths(folder, name);
    std::fs::metadata(path).map_or(0, |it| it.blocks().saturating_mul(512))
}

/// The partial objects' files in a folder, which may have others.
fn own_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let is_own = |path: &PathBuf| {
        let stem = path
            .file_stem()
            .and_then(|it| it.to_str())
            .unwrap_or_default();
        let is_key = stem.len() == 32 && stem.bytes().all(|it| it.is_ascii_hexdigit());
        is_key
            && path
                .extension()
                .is_some_and(|it| it == "part" || it == "record")
    };
    let entries = std::fs::read_dir(folder)?;
    let paths = entries.map(|entry| entry.map(|it| it.path()));
    let paths: io::Result<Vec<PathBuf>> = paths.collect();
    Ok(paths?.into_iter().filter(is_own).collect())
}

/// Removes what no process can go on with: of another boot or format, or without its record.
///
/// # Errors
/// The folder cannot be read.
pub fn clean(folder: &Path) -> io::Result<usize> {
    let boot = boot();
    let mut removed = 0;
    let is_usable = |record_path: &Path| {
        let header = std::fs::read_to_string(record_path).ok().and_then(|text| {
            let (first, _) = text.split_once('\n')?;
            serde_json::from_str::<Header>(first).ok()
        });
        header.is_some_and(|it| it.format == FORMAT && it.boot == boot)
    };
    for path in own_files(folder)? {
        let record_path = path.with_extension("record");
        if !is_usable(&record_path) || !path.with_extension("part").exists() {
            remove(&path)?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Removes what nobody will go on with: of objects that are there in that version, and what is older than
/// `UNUSED_AGE`.
///
/// # Errors
/// The folder cannot be read.
pub fn clean_unused(folder: &Path, is_held: impl Fn(&str, Stamp) -> bool) -> io::Result<()> {
    for path in own_files(folder)? {
        if path.extension().is_none_or(|it| it != "record") {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(&path) else {
            continue;
        };
        let header = text
            .split_once('\n')
            .and_then(|(first, _)| serde_json::from_str::<Header>(first).ok());
        let is_useless = header.is_some_and(|it| {
            let stamp = Stamp {
                size_bytes: it.size_bytes,
                seconds: it.seconds,
                nanos: it.nanos,
            };
            is_held(&it.name, stamp)
        });
        let age = std::fs::metadata(&path).and_then(|it| it.modified()).ok();
        let age = age.and_then(|time| time.elapsed().ok());
        if is_useless || age.is_some_and(|age| age > UNUSED_AGE) {
            remove(&path)?;
            remove(&path.with_extension("part"))?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn part_count(size_bytes: u64, part_bytes: u64) -> usize {
    usize::try_from(size_bytes.div_ceil(part_bytes)).unwrap_or(usize::MAX)
}

fn range_of(part: usize, part_bytes: u64, size_bytes: u64) -> std::ops::Range<u64> {
    let start = (u64::try_from(part).unwrap_or(u64::MAX)).saturating_mul(part_bytes);
    start..start.saturating_add(part_bytes).min(size_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::Algorithm;

    const PART: u64 = 4;

    fn stamp(size_bytes: u64) -> Stamp {
        Stamp::new(size_bytes, 1_700_000_000, Some("e"))
    }

    fn create(folder: &Path, size_bytes: u64) -> Partial {
        Partial::create(folder, "a/b", stamp(size_bytes), PART).unwrap()
    }

    fn resume(folder: &Path, size_bytes: u64) -> Option<Partial> {
        Partial::resume(folder, "a/b", stamp(size_bytes), PART)
    }

    #[test]
    fn parts_that_are_recorded_are_there_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let mut partial = create(folder.path(), 10);
        let parts: Vec<_> = partial
            .missing()
            .into_iter()
            .map(|(_, range)| range)
            .collect();
        assert_eq!(parts, [0..4, 4..8, 8..10]);
        partial.file().write_all_at(b"89", 8).unwrap();
        partial.mark_done(2).unwrap();
        drop(partial);
        let mut partial = resume(folder.path(), 10).unwrap();
        assert_eq!((partial.done_bytes(), partial.missing().len()), (2, 2));
        partial.file().write_all_at(b"01234567", 0).unwrap();
        partial.mark_done(0).unwrap();
        partial.mark_done(1).unwrap();
        let md5 = Expected {
            algorithm: Algorithm::Crc32,
            value: vec![0xA6, 0x84, 0xC7, 0xC6],
        };
        assert!(partial.verify(&md5).unwrap());
        let finished = partial.finish().unwrap();
        let metadata = std::fs::metadata(&finished.path).unwrap();
        assert_eq!(
            (metadata.len(), metadata.permissions().mode() & 0o777),
            (10, 0o644)
        );
        finished.placed();
        assert!(resume(folder.path(), 10).is_none());
    }

    #[test]
    fn a_line_that_was_cut_off_and_a_part_that_is_not_there_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let mut partial = create(folder.path(), 60);
        partial.file().write_all_at(&[1; 44], 0).unwrap();
        partial.mark_done(0).unwrap();
        // As if the process had ended within the line of part 10.
        partial.record.write_all(b"1").unwrap();
        drop(partial);
        let mut partial = resume(folder.path(), 60).unwrap();
        assert_eq!(partial.missing().len(), 14);
        partial.mark_done(10).unwrap();
        // Its bytes are beyond the end.
        partial.mark_done(14).unwrap();
        drop(partial);
        let partial = resume(folder.path(), 60).unwrap();
        let missing: Vec<_> = partial
            .missing()
            .into_iter()
            .map(|(part, _)| part)
            .collect();
        let wanted: Vec<usize> = (1..15).filter(|part| *part != 10).collect();
        assert_eq!(missing, wanted);
    }

    #[test]
    fn another_version_or_size_of_parts_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        drop(create(folder.path(), 10));
        assert!(resume(folder.path(), 10).is_some());
        let of = |name: &str, stamp, part_bytes| {
            Partial::resume(folder.path(), name, stamp, part_bytes).is_some()
        };
        assert!(of("a/b", stamp(10), PART));
        assert!(!of("a/b", stamp(11), PART));
        assert!(!of("a/b", Stamp::new(10, 1_700_000_000, Some("f")), PART));
        assert!(!of("a/b", stamp(10), PART + 1));
        assert!(!of("a/c", stamp(10), PART));
    }

    #[test]
    fn what_cannot_be_gone_on_with_is_removed_at_the_start_and_nothing_of_others() {
        let folder = tempfile::tempdir().unwrap();
        drop(create(folder.path(), 10));
        for foreign in ["0.part", "1.record", "film.mp4"] {
            std::fs::write(folder.path().join(foreign), "x").unwrap();
        }
        std::fs::write(paths(folder.path(), "0").0, "x").unwrap();
        std::fs::write(paths(folder.path(), "1").1, "{}\n").unwrap();
        let (path, record_path) = paths(folder.path(), "other");
        std::fs::write(&path, "x").unwrap();
        let text = std::fs::read_to_string(paths(folder.path(), "a/b").1).unwrap();
        std::fs::write(&record_path, text.replace(&boot(), "another")).unwrap();
        assert_eq!(clean(folder.path()).unwrap(), 4);
        assert!(resume(folder.path(), 10).is_some());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 5);
        clean_unused(folder.path(), |name, held| {
            (name, held) == ("a/b", stamp(9))
        })
        .unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 5);
        clean_unused(folder.path(), |name, held| {
            (name, held) == ("a/b", stamp(10))
        })
        .unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
    }
}
