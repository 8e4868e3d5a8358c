//! `atlas store init`: makes a store on devices that hold nothing else.
//!
//! **What a device holds is not overwritten unless that is said twice**: by `--overwrite-existing`, and
//! by YES when asked with the name of what is there, as wipefs and cryptsetup do. What cannot be read counts
//! as something. It refuses devices that are mounted, and those of a store that is being read or changed,
//! whatever is said, also if not all of its devices are named. From before the question until all is written
//! nobody can begin to read or to change a store on them: locks on each device keep them away.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, Write as _};
use std::path::{Path, PathBuf};

use store::raw::{Access, Device, RawStore, names_in};
use volume::{AREAS_START, BLOCK_BYTES, Catalogue, Commit, Geometry, LOOKED_AT_BYTES, StoreId};

use super::units;
use crate::failure::Failure;
use crate::settings::cli::StoreInitArgs;
use crate::settings::parse_size;
use crate::start::host;
use crate::start::refuse_raw;
use writer::{Transfer, Writing};

/// Makes the store.
pub(super) fn run(args: &StoreInitArgs) -> Result<(), Failure> {
    let names = names_in(&args.store);
    let size = args.size.as_deref().map(|text| parse("--size", text));
    let size = size.transpose()?;
    let area = args.catalogue_size.as_deref();
    let area = area
        .map(|text| parse("--catalogue-size", text))
        .transpose()?;
    let images = names.iter().map(|name| make_image(name, size));
    let is_new = images.collect::<Result<Vec<_>, _>>()?;
    let made = make(&names, area, args.overwrite_existing);
    if made.is_err() {
        for (name, _) in names.iter().zip(is_new).filter(|(_, is_new)| *is_new) {
            // What is left is an empty image, which the next attempt takes.
            let _ = fs::remove_file(name);
        }
    }
    made
}

fn parse(flag: &str, text: &str) -> Result<u64, Failure> {
    parse_size(text).map_err(|_| {
        Failure::refused(
            format!("{flag} {text}: expected a size such as 64G or 64MiB"),
            "write whole bytes, or a number with KiB, MiB, GiB or TiB (or K, M, G, T), or kB, MB, GB or TB",
        )
    })
}

fn make(names: &[PathBuf], area: Option<u64>, may_overwrite: bool) -> Result<(), Failure> {
    let devices = names.iter().map(|name| Device::open(name, Access::Write));
    let devices = devices.collect::<Result<Vec<_>, _>>().map_err(refuse_raw)?;
    check_distinct(names)?;
    let block = u64::from(BLOCK_BYTES);
    let blocks: Vec<_> = devices.iter().map(|it| it.size_bytes / block).collect();
    let area_blocks = area.map_or_else(
        || Geometry::usual_area_blocks(blocks.iter().sum()),
        volume::blocks_of,
    );
    let seed = host::random_seed();
    let seed = seed.map_err(|error| Failure::Broken(format!("getrandom: {error}")))?;
    let mut id = StoreId::default();
    id.0.copy_from_slice(&seed[..16]);
    let geometry = Geometry::new(id, blocks, area_blocks)
        .map_err(|error| Failure::refused(error.to_string(), "use larger devices"))?;
    let raw = RawStore::unmounted(devices.clone());
    let lock = raw.lock_for_making().map_err(refuse_raw)?;
    confirm(&devices, may_overwrite)?;
    let mut transfer = Transfer::new(&devices)?;
    let zeros = vec![0; LOOKED_AT_BYTES];
    for (number, device) in (0..).zip(&devices) {
        let blocks = device.size_bytes / block;
        // A partition table has a copy at the end.
        let tail = volume::blocks_of(LOOKED_AT_BYTES as u64).min(blocks - AREAS_START);
        let tail_bytes = usize::try_from(tail * block).expect("invariant: at most a MiB");
        transfer.write_blocks(number, blocks - tail, &zeros[..tail_bytes])?;
        // Behind it, so that a device whose first MiB is zero is a store to be made, whatever happens.
        transfer.write_blocks(number, 0, &zeros)?;
    }
    transfer.flush()?;
    let data_bytes = geometry.data_blocks() * block;
    let area_bytes = geometry.area_bytes();
    let mut writing = Writing::new(raw, transfer, lock);
    writing.carry_out(Commit::first(Catalogue::empty(geometry)))?;
    let _ = writeln!(
        io::stdout(),
        "store {id}: {} for objects, {} for the catalogue",
        units::size(data_bytes),
        units::size(area_bytes)
    );
    Ok(())
}

fn check_distinct(names: &[PathBuf]) -> Result<(), Failure> {
    let mut seen = Vec::new();
    for name in names {
        let real = fs::canonicalize(name).unwrap_or_else(|_| name.clone());
        if seen.contains(&real) {
            return Err(Failure::refused(
                format!("{}: named twice", name.display()),
                "name each device once",
            ));
        }
        seen.push(real);
    }
    Ok(())
}

/// Makes an image file of this size where there is none; whether it did.
fn make_image(name: &Path, size: Option<u64>) -> Result<bool, Failure> {
    let shown = name.display();
    let failed =
        |error: io::Error| Failure::refused(format!("{shown}: {error}"), "name another file");
    match (fs::metadata(name), size) {
        (Ok(_), None) => Ok(false),
        (Ok(metadata), Some(size)) if metadata.len() == size => Ok(false),
        (Ok(_), Some(_)) => Err(Failure::refused(
            format!("{shown}: it exists"),
            "leave out --size, which is for a new image",
        )),
        (Err(error), None) if error.kind() == io::ErrorKind::NotFound => Err(Failure::refused(
            format!("{shown}: there is no such device or image"),
            "name one, or make an image with --size",
        )),
        (Err(error), Some(size)) if error.kind() == io::ErrorKind::NotFound => {
            let file = OpenOptions::new().write(true).create_new(true).open(name);
            let file = file.map_err(failed)?;
            file.set_len(size).map_err(failed)?;
            // So that its name is there after a power cut, too.
            let parent = name.parent().filter(|it| !it.as_os_str().is_empty());
            let directory = File::open(parent.unwrap_or(Path::new(".")));
            directory.and_then(|it| it.sync_all()).map_err(failed)?;
            Ok(true)
        }
        (Err(error), _) => Err(failed(error)),
    }
}

/// What a device holds; `None`: nothing.
fn content_of(device: &Device) -> Option<String> {
    let end = device.size_bytes.saturating_sub(LOOKED_AT_BYTES as u64);
    let start = end / u64::from(BLOCK_BYTES) * u64::from(BLOCK_BYTES);
    let parts = [
        device.read(0, LOOKED_AT_BYTES),
        device.read(start, LOOKED_AT_BYTES + BLOCK_BYTES as usize),
    ];
    match parts {
        [Ok(first), Ok(last)] => volume::content_of(&first, &last),
        [Err(error), _] | [_, Err(error)] => Some(format!("what cannot be read ({error})")),
    }
}

/// # Errors
/// A device holds something, and nobody wants it overwritten.
fn confirm(devices: &[Device], may_overwrite: bool) -> Result<(), Failure> {
    let held = devices.iter().filter_map(|device| {
        let content = content_of(device)?;
        Some(format!("{} holds {content}", device.path.display()))
    });
    let held: Vec<_> = held.collect();
    if held.is_empty() {
        return Ok(());
    }
    let held = held.join(", ");
    if !may_overwrite {
        return Err(Failure::refused(
            held,
            "to destroy that, use --overwrite-existing",
        ));
    }
    let _ = write!(
        io::stderr(),
        "{held}.\nAll of it will be lost. Type YES to go on: "
    );
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    if read.is_err() || answer.trim_end() != "YES" {
        return Err(Failure::refused(held, "nothing was changed"));
    }
    Ok(())
}
