//! `atlas store add` and `rm`.
//!
//! All files of one call become objects together, or none does. Space for all is found before the first
//! byte is written. A file that has the size and time of the object of its name is left out, as rsync does.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use volume::{Editor, Entry, Extent, is_name};

use super::files::{Found, Item, Status, Unopened};
use super::progress::Progress;
use super::{Stop, units};
use crate::failure::Failure;
use crate::settings::cli::StoreAddArgs;
use writer::Writing;

/// Imports files.
pub(super) fn add(args: &StoreAddArgs, stop: &Stop) -> Result<(), Failure> {
    let content_type = checked_type(args.content_type.as_deref())?;
    let prefix = checked_prefix(args.under.as_deref())?;
    let mut found = Found::default();
    for path in &args.paths {
        found.gather(path, &prefix)?;
    }
    check_names(&found.items)?;
    let (mut writing, editor) = Writing::open(&args.store)?;
    let count = found.items.len();
    found
        .items
        .retain(|item| !is_known(&editor, item, content_type));
    let unchanged = count - found.items.len();
    let replaced = found
        .items
        .iter()
        .filter(|it| editor.find(&it.name).is_some());
    let replaced = replaced.count();
    let all_bytes = found.items.iter().map(|it| it.status.size_bytes).sum();
    let added = found.items.iter();
    let added = added.map(|it| (it.name.as_str(), content_type, it.status.size_bytes));
    let checked = editor.check_catalogue(added);
    checked.map_err(|error| Failure::Broken(format!("{error}; the store is as it was")))?;
    let (mut editor, extents) = allocate(&mut writing, editor, &found.items)?;
    let mut progress = Progress::new(all_bytes);
    for (item, extent) in found.items.iter().zip(extents) {
        let entry = import(
            &mut writing,
            item,
            extent,
            content_type,
            &mut progress,
            stop,
        )?;
        editor.insert(entry);
    }
    stop.check()?;
    if editor.has_changed() {
        writing.commit(editor)?;
    }
    progress.end();
    let added = found.items.len() - replaced;
    let mut text = format!(
        "{added} added, {replaced} replaced ({})",
        units::size(all_bytes)
    );
    if unchanged > 0 {
        text += &format!(", {unchanged} unchanged");
    }
    if found.skipped > 0 {
        text += &format!(", {} skipped: no regular files", found.skipped);
    }
    let _ = writeln!(io::stdout(), "{text}");
    Ok(())
}

fn checked_type(content_type: Option<&str>) -> Result<&str, Failure> {
    let content_type = content_type.unwrap_or_default();
    let checked = http::ContentTypes::default().insert("x", content_type);
    match checked {
        Err(problem) if !content_type.is_empty() => Err(Failure::refused(
            format!("--type {content_type}: {problem}"),
            "write it like video/mp4",
        )),
        _ => Ok(content_type),
    }
}

/// What goes before each name: empty, or a name and a slash.
fn checked_prefix(under: Option<&str>) -> Result<String, Failure> {
    let Some(under) = under else {
        return Ok(String::new());
    };
    let name = under.trim_matches('/');
    if name.is_empty() {
        return Ok(String::new());
    }
    if !is_name(name) {
        return Err(Failure::refused(
            format!("--under {under}: not the name of a directory"),
            "leave out empty segments, . and ..",
        ));
    }
    Ok(format!("{name}/"))
}

fn check_names(items: &[Item]) -> Result<(), Failure> {
    let mut names = BTreeSet::new();
    match items.iter().find(|item| !names.insert(&item.name)) {
        None => Ok(()),
        Some(item) => Err(Failure::refused(
            format!("two files would have the name {}", item.name),
            "add one of them with --under",
        )),
    }
}

fn is_known(editor: &Editor, item: &Item, content_type: &str) -> bool {
    editor.find(&item.name).is_some_and(|entry| {
        let status = (entry.size_bytes, entry.modified);
        status == (item.status.size_bytes, item.status.modified)
            && *entry.content_type == *content_type
    })
}

/// Space for all files, the largest first.
fn allocate(
    writing: &mut Writing,
    editor: Editor,
    items: &[Item],
) -> Result<(Editor, Vec<Extent>), Failure> {
    let sizes: Vec<u64> = items.iter().map(|it| it.status.size_bytes).collect();
    writing.allocate(editor, &sizes)?.map_err(|(_, unplaced)| {
        let (size, error) = (units::size, unplaced.error);
        let name = &items[unplaced.index].name;
        let mut text = format!(
            "{name}: no room for {} in one piece: the largest free run has {}, {} are free in all",
            size(error.wanted_bytes),
            size(error.largest_bytes),
            size(error.free_bytes)
        );
        if error.waiting_bytes > 0 {
            text += &format!(
                ", and {} of removed objects are still being sent",
                size(error.waiting_bytes)
            );
        }
        Failure::Broken(format!("{text}; the store is as it was"))
    })
}

/// Writes a file's content to its extent.
fn import(
    writing: &mut Writing,
    item: &Item,
    extent: Extent,
    content_type: &str,
    progress: &mut Progress,
    stop: &Stop,
) -> Result<Entry, Failure> {
    let path = item.path.display();
    let failed =
        |error: io::Error| Failure::Broken(format!("{path}: {error}; the store is as it was"));
    let changed = || {
        Failure::Broken(format!(
            "{path}: it changed while it was read; the store is as it was"
        ))
    };
    let mut file = item.open().map_err(|error| match error {
        Unopened::Changed => changed(),
        Unopened::Failed(error) => failed(error),
    })?;
    let written = writing.write_content(extent, item.status.size_bytes, |target| {
        stop.check()?;
        let filled = read_full(&mut file, target).map_err(failed)?;
        progress.add(u64::try_from(filled).unwrap_or(u64::MAX));
        Ok::<_, Failure>(filled)
    });
    let (runs, tag) = written?.ok_or_else(changed)?;
    if Status::of_file(&file).map_err(failed)? != item.status {
        return Err(changed());
    }
    Ok(Entry {
        name: item.name.as_str().into(),
        content_type: content_type.into(),
        extent,
        size_bytes: item.status.size_bytes,
        modified: item.status.modified,
        added: 0,
        tag,
        runs: runs.into(),
    })
}

/// Reads until the target is full or the file ends.
fn read_full(file: &mut File, target: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < target.len() {
        match file.read(&mut target[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Removes objects; with `tree`, all whose names begin with one that is given and a slash, too.
pub(super) fn remove(store: &Path, names: &[String], tree: bool) -> Result<(), Failure> {
    let (mut writing, mut editor) = Writing::open(store)?;
    let mut removed = BTreeSet::new();
    for name in names {
        let before = removed.len();
        if editor.find(name).is_some() {
            removed.insert(name.clone());
        }
        let beneath = format!("{}/", name.trim_end_matches('/'));
        let beneath: Vec<_> = editor.names_from(&beneath).map(str::to_owned).collect();
        if tree {
            removed.extend(beneath);
        } else if removed.len() == before && !beneath.is_empty() {
            return Err(Failure::refused(
                match beneath.len() {
                    1 => format!("{name}: an object is beneath it"),
                    count => format!("{name}: {count} objects are beneath it"),
                },
                "name each, or use -r",
            ));
        }
        if removed.len() == before && editor.find(name).is_none() {
            return Err(Failure::refused(
                format!("{name}: no such object"),
                "atlas store ls lists all; nothing was changed",
            ));
        }
    }
    for name in &removed {
        editor.remove(name);
    }
    writing.commit(editor)?;
    let _ = writeln!(io::stdout(), "{} removed", removed.len());
    Ok(())
}
