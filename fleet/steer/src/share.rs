//! An edge's share of the library's manifest: what its `atlas-fill` should want.
//!
//! The library's manifest is that of `atlas-fill`, a JSON object a line with a `name`. The lines of the titles that this
//! edge holds go into a file of their own, unchanged, which replaces the one before when it is whole. It is written again
//! when the library's file is another, so that is to be renamed into place as well. Bounded by [`LINE_BYTES_MAX`]; no more
//! than a line is kept in memory.

use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use placement::{Fleet, Layout, Member};
use serde::Deserialize;
use tempfile::NamedTempFile;

/// Most bytes of a line.
pub const LINE_BYTES_MAX: u64 = 64 << 10;

/// The library's manifest, and where the share of an edge goes.
#[derive(Clone, Debug)]
pub struct Share {
    manifest: PathBuf,
    out: PathBuf,
    edge: Member,
    layout: Layout,
}

/// What of a file's status changes when its content does: its inode, length, and the time of its change.
pub type FileState = (u64, u64, i64, i64);

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Lines of the library.
    pub all: u64,
    /// Those of them that the edge holds.
    pub held: u64,
}

#[derive(Deserialize)]
struct Line {
    name: String,
}

impl Share {
    /// The share of this edge.
    #[must_use]
    pub fn new(library: &Path, out: &Path, edge: Member, layout: Layout) -> Self {
        Self {
            manifest: library.to_owned(),
            out: out.to_owned(),
            edge,
            layout,
        }
    }

    /// Of the library's file; `None` if it cannot be looked at.
    #[must_use]
    pub fn manifest_state(&self) -> Option<FileState> {
        let status = std::fs::metadata(&self.manifest).ok()?;
        let (seconds, nanos) = (status.mtime(), status.mtime_nsec());
        Some((status.ino(), status.len(), seconds, nanos))
    }

    /// Writes the share that follows from these members. The edge itself counts as one of them, serving: it is filled
    /// before it is listed, and what it holds is not thrown away while it drains.
    ///
    /// # Errors
    /// A file that cannot be read or written, or a line that is none; the old file stays.
    pub fn write(&self, members: &[Member]) -> Result<Shared> {
        let others = members.iter().filter(|it| it.name != self.edge.name);
        let members = others.cloned().chain([self.edge.clone()]).collect();
        let fleet = Fleet::new(Arc::new(members), self.layout.clone())?;
        let library = &self.manifest;
        let file = File::open(library).with_context(|| format!("reading {}", library.display()))?;
        let folder = self.out.parent().filter(|it| *it != Path::new(""));
        let folder = folder.unwrap_or(Path::new("."));
        let whole = || format!("writing {}", self.out.display());
        let new = NamedTempFile::new_in(folder).with_context(whole)?;
        let mut writer = BufWriter::new(new);
        let mut reader = BufReader::new(file);
        let mut shared = Shared { all: 0, held: 0 };
        let mut text = String::new();
        for number in 1_u64.. {
            text.clear();
            let read = (&mut reader).take(LINE_BYTES_MAX + 1).read_line(&mut text);
            let place = || format!("{} line {number}", library.display());
            if read.with_context(place)? == 0 {
                break;
            }
            ensure!(text.len() as u64 <= LINE_BYTES_MAX, "{}: too long", place());
            if text.trim().is_empty() {
                continue;
            }
            let line: Line = serde_json::from_str(&text).with_context(place)?;
            shared.all += 1;
            if self.holds(&fleet, &line.name).with_context(place)? {
                shared.held += 1;
                writeln!(writer, "{}", text.trim_end()).with_context(whole)?;
            }
        }
        let new = writer.into_inner().map_err(|error| error.into_error());
        let new = new.with_context(whole)?;
        let mode = std::fs::Permissions::from_mode(0o644);
        new.as_file().set_permissions(mode).with_context(whole)?;
        new.persist(&self.out).with_context(whole)?;
        Ok(shared)
    }

    fn holds(&self, fleet: &Fleet, name: &str) -> Result<bool> {
        if let Some(folder) = name.strip_suffix('/') {
            // Whether this is one title or many is told by what is one component more.
            let inside = format!("{folder}/x/x");
            let place = self.layout.place(&inside);
            if place.title.len() > folder.trim_start_matches('/').len() {
                bail!("{name:?} has several titles in it: name each of them");
            }
        }
        Ok(fleet.holds(&self.edge.name, name))
    }
}

/// What of the members a share follows from: a change of loads or health is none.
#[must_use]
pub fn holders_of(members: &[Member]) -> Vec<(String, String, u64)> {
    let holders = members.iter().filter(|it| it.takes_content());
    let key = |it: &Member| (it.name.clone(), it.zone.clone(), it.capacity_bytes);
    holders.map(key).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use placement::State;

    use super::*;

    fn edge(number: u32) -> Member {
        Member::new(format!("e{number}"), "http://e")
    }

    fn layout() -> Layout {
        Layout {
            copies: 1,
            title_components: 2,
            ..Layout::default()
        }
    }

    #[test]
    fn every_line_is_in_the_shares_of_as_many_edges_as_there_are_copies() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("library");
        let lines: Vec<String> = (0..90)
            .map(|n| format!("{{\"name\": \"films/{n}/\", \"priority\": 5}}"))
            .chain(["{\"name\":\"a.mp4\"}".to_owned()])
            .collect();
        fs::write(&library, lines.join("\n\n")).unwrap();
        let members: Vec<Member> = (0..3).map(edge).collect();
        let mut all = Vec::new();
        for member in &members {
            let out = folder.path().join(&member.name);
            let share = Share::new(&library, &out, member.clone(), layout());
            let shared = share.write(&members).unwrap();
            assert_eq!(shared.all, 91);
            // One that is not listed gets the same.
            let others: Vec<Member> = members.iter().filter(|it| *it != member).cloned().collect();
            assert_eq!(share.write(&others).unwrap(), shared);
            let text = fs::read_to_string(&out).unwrap();
            assert_eq!(text.lines().count() as u64, shared.held);
            assert!(shared.held > 10, "{shared:?}");
            all.extend(text.lines().map(str::to_owned));
        }
        all.sort();
        let mut lines = lines;
        lines.sort();
        assert_eq!(all, lines);
    }

    #[test]
    fn a_line_that_is_none_is_told_and_the_old_share_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (library, out) = (folder.path().join("library"), folder.path().join("out"));
        fs::write(&out, "old").unwrap();
        let share = Share::new(&library, &out, edge(0), layout());
        let long = format!("{{\"name\":\"{}\"}}", "a".repeat(64 << 10));
        for (line, told) in [
            ("{}", "missing field `name`"),
            ("{\"name\": \"films/\"}", "several titles"),
            (&long[..], "too long"),
        ] {
            fs::write(&library, format!("{{\"name\":\"a\"}}\n{line}\n")).unwrap();
            let error = format!("{:#}", share.write(&[]).unwrap_err());
            assert!(error.contains("line 2") && error.contains(told), "{error}");
            assert_eq!(fs::read_to_string(&out).unwrap(), "old");
        }
        fs::write(&library, "{\"name\": \"films/a/\"}\n").unwrap();
        assert_eq!(share.write(&[]).unwrap(), Shared { all: 1, held: 1 });
    }

    #[test]
    fn loads_and_health_move_nothing() {
        let mut members: Vec<Member> = (0..3).map(edge).collect();
        let before = holders_of(&members);
        members[0].load = 1.0;
        members[1].healthy = false;
        assert_eq!(holders_of(&members), before);
        members[2].state = State::Draining;
        assert_eq!(holders_of(&members).len(), 2);
    }
}
