//! `atlas store ls`, `get`, `verify` and `stat`: nothing is changed.
//!
//! Whoever reads has a lock on the catalogue, so that a writer meanwhile leaves its objects alone.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;

use volume::{BLOCK_BYTES, ContentDigest, Editor, Entry, RUN_BYTES, Time};

use super::progress::Progress;
use super::{Reading, Stop, units};
use crate::failure::Failure;
use crate::start::refuse_raw;
use writer::Transfer;

/// Lists all objects.
pub(super) fn list(store: &Path, long: bool) -> Result<(), Failure> {
    let reading = Reading::open(store)?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    for entry in reading.loaded.catalogue.entries() {
        let written = if long {
            let size = units::size(entry.size_bytes);
            let modified = utc(entry.modified);
            let name = units::name(&entry.name);
            writeln!(out, "{size:>10}  {modified}  {}  {name}", entry.tag)
        } else {
            writeln!(out, "{}", units::name(&entry.name))
        };
        if written.is_err() {
            // Nobody reads on.
            return Ok(());
        }
    }
    let _ = out.flush();
    Ok(())
}

/// A time as `2025-01-31 23:59:59Z`.
fn utc(time: Time) -> String {
    let (days, second) = (
        time.seconds.div_euclid(86_400),
        time.seconds.rem_euclid(86_400),
    );
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    // Years from March, so that the day that leap years add is their last: Howard Hinnant,
    // "chrono-Compatible Low-Level Date Algorithms", civil_from_days.
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z")
}

/// Runs of an object that are not what they were: first and last byte of each.
fn read_object(
    transfer: &mut Transfer,
    entry: &Entry,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<Vec<(u64, u64)>, Failure> {
    let start = entry.extent.start * u64::from(BLOCK_BYTES);
    let mut digest = ContentDigest::new();
    transfer.read(entry.extent.device, start, entry.size_bytes, &mut |bytes| {
        digest.update(bytes);
        sink(bytes)
    })?;
    let (runs, _) = digest.finish();
    let pairs = (0_u64..).zip(runs.iter().zip(&entry.runs));
    let damaged = pairs.filter(|(_, (found, stored))| found != stored);
    let run_bytes = u64::from(RUN_BYTES);
    let range = |(index, _): (u64, _)| {
        let first = index * run_bytes;
        (first, (first + run_bytes).min(entry.size_bytes) - 1)
    };
    Ok(damaged.map(range).collect())
}

/// Writes an object to stdout.
pub(super) fn get(store: &Path, name: &str, stop: &Stop) -> Result<(), Failure> {
    let reading = Reading::open(store)?;
    let entry = find(&reading, name)?;
    // Whoever takes the bytes may be slow: only this object is kept meanwhile.
    reading.raw.lock_extent(entry.extent).map_err(refuse_raw)?;
    reading.raw.unlock(reading.loaded.catalogue.sequence());
    let mut out = io::stdout().lock();
    let damaged = read_object(&mut reading.transfer()?, entry, &mut |bytes| {
        stop.check()?;
        let written = out.write_all(bytes);
        written.map_err(|error| Failure::Broken(format!("stdout: {error}")))
    })?;
    out.flush()
        .map_err(|error| Failure::Broken(format!("stdout: {error}")))?;
    match damaged.first() {
        None => Ok(()),
        Some((first, last)) => Err(Failure::Broken(format!(
            "{name}: bytes {first} to {last} are damaged, and perhaps more"
        ))),
    }
}

fn find<'a>(reading: &'a Reading, name: &str) -> Result<&'a Entry, Failure> {
    let name = name.trim_start_matches('/');
    reading.loaded.catalogue.find(name).ok_or_else(|| {
        Failure::refused(
            format!("{name}: no such object"),
            "atlas store ls lists all",
        )
    })
}

/// Reads objects, all if none is named, and compares them with their checksums.
pub(super) fn verify(store: &Path, names: &[String], stop: &Stop) -> Result<(), Failure> {
    let reading = Reading::open(store)?;
    let catalogue = &reading.loaded.catalogue;
    let named = names.iter().map(|name| find(&reading, name));
    let named = named.collect::<Result<Vec<_>, _>>()?;
    let entries = match names {
        [] => catalogue.entries().iter().collect(),
        _ => named,
    };
    let mut progress = Progress::new(entries.iter().map(|it| it.size_bytes).sum());
    let mut transfer = reading.transfer()?;
    let mut found = Vec::new();
    if let Some(error) = reading.loaded.damage {
        found.push(format!("the newest catalogue: {error}"));
    }
    match reading.raw.check_copies().map_err(refuse_raw)? {
        Some(faults) => found.extend(faults.iter().map(ToString::to_string)),
        None => {
            let text = "another process changes the store: its copies are not looked at";
            let _ = writeln!(io::stderr(), "{text}");
        }
    }
    for entry in &entries {
        let read = read_object(&mut transfer, entry, &mut |bytes| {
            stop.check()?;
            progress.add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
            Ok(())
        });
        let device = &reading.raw.devices()[usize::from(entry.extent.device)];
        let device = device.path.display();
        let start = entry.extent.start * u64::from(BLOCK_BYTES);
        match read {
            Ok(damaged) => found.extend(damaged.iter().map(|(first, last)| {
                let place = start + first;
                let name = units::name(&entry.name);
                format!("{name}: bytes {first} to {last} are damaged ({device}, from byte {place})")
            })),
            Err(stopped @ Failure::Stopped { .. }) => return Err(stopped),
            Err(error) => {
                let name = units::name(&entry.name);
                found.push(format!("{name}: cannot be read: {error}"));
                // Reads of the old one may be in progress.
                transfer = reading.transfer()?;
            }
        }
    }
    progress.end();
    let mut out = io::stdout().lock();
    for line in &found {
        let _ = writeln!(out, "{line}");
    }
    let bytes = entries.iter().map(|it| it.size_bytes).sum();
    let (count, size) = (entries.len(), units::size(bytes));
    if !found.is_empty() {
        return Err(Failure::Broken(format!(
            "{} faults in {count} objects ({size})",
            found.len()
        )));
    }
    let _ = writeln!(out, "{count} objects ({size}) are whole");
    Ok(())
}

/// Tells what the store has and what room there is.
pub(super) fn stat(store: &Path) -> Result<(), Failure> {
    let reading = Reading::open(store)?;
    let catalogue = reading.loaded.catalogue.clone();
    let geometry = catalogue.geometry().clone();
    let size = units::size;
    let block = u64::from(BLOCK_BYTES);
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{name:<14} {value}");
    };
    line("store", geometry.id.to_string());
    for (number, device) in reading.raw.devices().iter().enumerate() {
        let bytes = geometry.device_blocks[number] * block;
        let path = device.path.display();
        line(
            &format!("device {number}"),
            format!("{path} ({})", size(bytes)),
        );
    }
    line(
        "catalogue",
        format!(
            "number {}, {} of {}",
            catalogue.sequence(),
            size(catalogue.encoded_bytes()),
            size(geometry.area_bytes())
        ),
    );
    let content = catalogue.content_bytes();
    line(
        "objects",
        format!("{} ({})", catalogue.entries().len(), size(content)),
    );
    let readers = reading.raw.readers().map_err(refuse_raw)?;
    let editor = Editor::new(catalogue, &readers);
    let all = geometry.data_blocks() * block;
    line(
        "free",
        format!("{} of {}", size(editor.free_bytes()), size(all)),
    );
    line("largest run", size(editor.largest_free_bytes()));
    if editor.waiting_bytes() > 0 {
        let waiting = size(editor.waiting_bytes());
        let why = if editor.would_free(&readers) {
            "of removed objects, free with the next change"
        } else {
            "of removed objects, free when a server has ended sending them"
        };
        line("waiting", format!("{waiting} {why}"));
    }
    if let Some(oldest) = readers.oldest() {
        line(
            "read",
            format!("by another process, from catalogue {oldest} on"),
        );
    }
    if !reading.loaded.lagging.is_empty() {
        line(
            "behind",
            format!(
                "devices {:?}, after a power cut: the next change brings them up to date",
                reading.loaded.lagging
            ),
        );
    }
    if let Some(error) = reading.loaded.damage {
        line("damage", format!("the newest catalogue: {error}"));
    }
    for fault in &reading.loaded.faults {
        line("copy", fault.to_string());
    }
    if reading.loaded.unknown.is_some() {
        let text = "there may be a newer catalogue, which cannot be read: nothing can be changed";
        line("unknown", text.to_owned());
    }
    let _ = write!(io::stdout(), "{text}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Time, utc};

    #[test]
    fn times_are_those_of_the_calendar() {
        // From `date -u -d @SECONDS`.
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00Z"),
            (-1, "1969-12-31 23:59:59Z"),
            (951_782_399, "2000-02-28 23:59:59Z"),
            (951_782_400, "2000-02-29 00:00:00Z"),
            (951_868_800, "2000-03-01 00:00:00Z"),
            (1_735_689_599, "2024-12-31 23:59:59Z"),
            (4_107_542_400, "2100-03-01 00:00:00Z"),
        ] {
            assert_eq!(utc(Time { seconds, nanos: 0 }), text);
        }
    }
}
