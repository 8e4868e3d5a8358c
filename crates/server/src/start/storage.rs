//! What a worker stores in and reads from: slots, disk and store, within its share of the limits.

use std::path::{Path, PathBuf};

use diskmap::uring::{Uring, UringConfig};
use link::{CopyReason, Link, ZeroCopy};
use memory::{Arena, ArenaConfig, PageKind};
use store::{Direct, DirectSupport, Store, StoreConfig, StoreError};
use tracing::{info, warn};

use crate::failure::Failure;
use crate::settings::sites::directories;
use crate::settings::table::OBJECTS_MAX;
use crate::settings::{Limits, Settings};
use crate::start::host;

use super::content::{Content, StartedContent};
use super::worker_disk::WorkerDisk;

/// Descriptors reserved for everything that is not an open object, for each worker: ring, link, store,
/// log, capture, and objects that wait to be closed ([`store::CLOSED_HANDLES_MAX`],
/// [`store::CLOSES_MAX`]).
const DESCRIPTORS_RESERVED: u64 = 384;

/// The disk of a worker and the slots it reads into.
#[derive(Debug)]
pub(super) struct Storage {
    pub(super) arena: Arena,
    /// To be enabled by the worker's thread.
    pub(super) disk: WorkerDisk,
    /// Whether frames are sent from the slots, for the log: `yes`, or `no (why)`.
    pub(super) zero_copy: String,
    /// The same.
    pub(super) lends: bool,
}

impl Storage {
    /// Makes the slots of a worker with these limits, lends them to the link if it sends from them, and
    /// makes its disk of what is served. `worker`: its number.
    ///
    /// # Errors
    /// What cannot be had, with the remedy.
    pub(super) fn make<L: Link>(
        link: &mut L,
        settings: &Settings,
        limits: &Limits,
        objects_max: u32,
        (content, worker): (&Content, usize),
    ) -> Result<Self, Failure> {
        let (arena, not_lent) = make_slots(link, settings, limits.slots)?;
        let (depth, files_max) = (limits.disk_queue_depth, handles_max(objects_max));
        let disk = match content {
            Content::Nvme(_, controllers) => {
                let disk = controllers.disk(worker, depth, files_max, &arena)?;
                WorkerDisk::Nvme(Box::new(disk))
            }
            Content::Raw(_, Some(namespaces)) => {
                let disk = namespaces.disk(depth, files_max, &arena)?;
                WorkerDisk::Passthru(Box::new(disk))
            }
            Content::Directories(..) | Content::Raw(_, None) => {
                WorkerDisk::Uring(Box::new(make_disk(depth, files_max, &arena)?))
            }
        };
        Ok(Self {
            arena,
            disk,
            lends: not_lent.is_none(),
            zero_copy: not_lent.map_or_else(|| "yes".to_owned(), |why| format!("no ({why})")),
        })
    }
}

pub(super) fn raise_descriptor_limit() -> Result<u64, Failure> {
    host::raise_descriptor_limit().map_err(|error| {
        Failure::of_error(
            &error,
            format!("the limit of open files cannot be raised: {error}"),
            "allow setrlimit in the seccomp profile",
        )
    })
}

/// What is left of the descriptors beside the directories that sites name, of which each worker opens each.
pub(super) fn descriptors_beside_roots(settings: &Settings, descriptors: u64) -> u64 {
    let directories = u64::try_from(directories(settings).len()).unwrap_or(u64::MAX);
    descriptors.saturating_sub(directories.saturating_mul(settings.workers.into()))
}

/// Most reads in progress: limited by slots and by the disk's queue.
pub(super) fn reads_max(limits: &Limits) -> usize {
    usize::try_from(limits.slots.min(limits.disk_queue_depth))
        .expect("invariant: a usize has at least 32 bits")
}

/// Most slots that are kept between bursts: three of four, so that reads need not take them back as a rule.
pub(super) const fn kept_slots_max(limits: &Limits) -> usize {
    limits.slots as usize * 3 / 4
}

/// Bytes of copies of what other slots hold, for each slot.
const COPY_BYTES_EACH: usize = 128 << 10;

/// Bytes of those copies: with 512 slots 64 MiB, 50 ms of 10 Gb/s. Memory that is not used is not taken.
pub(super) const fn kept_copy_bytes(limits: &Limits) -> usize {
    limits.slots as usize * COPY_BYTES_EACH
}

/// How many objects may be open in all, given the limit of descriptors: at least one for each worker.
pub(super) fn objects_max(
    configured: Option<usize>,
    descriptors: u64,
    workers: u32,
) -> Result<u32, Failure> {
    let workers = u64::from(workers);
    let reserved = DESCRIPTORS_RESERVED * workers;
    let room = descriptors.saturating_sub(reserved);
    if room < workers {
        return Err(Failure::refused(
            format!(
                "only {descriptors} files may be open, and {reserved} are needed \
                 beside those that are served"
            ),
            "raise the hard limit (ulimit -Hn, LimitNOFILE=), best to 65536",
        ));
    }
    let wanted = match configured {
        Some(count) => u64::try_from(count).unwrap_or(u64::MAX),
        None => room.min(OBJECTS_MAX.number().most * workers),
    };
    if wanted < workers {
        return Err(Failure::refused(
            format!("objects_max {wanted}: too few for {workers} workers"),
            format!("use at least {workers}, or fewer workers"),
        ));
    }
    if wanted > room {
        return Err(Failure::refused(
            format!(
                "objects_max {wanted}: only {descriptors} files may be open, \
                 {reserved} of them are reserved"
            ),
            format!("raise the hard limit (ulimit -Hn, LimitNOFILE=) or use at most {room}"),
        ));
    }
    u32::try_from(wanted).map_err(|_| {
        Failure::refused(
            format!("objects_max {wanted}: out of range"),
            "use a smaller one",
        )
    })
}

/// The warning if there may be more connections than open objects.
pub(super) fn few_objects_warning(
    objects_max: u32,
    is_chosen: bool,
    connections_max: usize,
) -> Option<String> {
    let connections_max = u64::try_from(connections_max).unwrap_or(u64::MAX);
    if u64::from(objects_max) >= connections_max {
        return None;
    }
    let most = OBJECTS_MAX.number().most;
    let descriptors = connections_max.min(most) + DESCRIPTORS_RESERVED;
    let remedy = match (u64::from(objects_max) == most, is_chosen) {
        (true, _) => "no server opens more: use a smaller connections_max".into(),
        (false, true) => "raise objects_max".into(),
        (false, false) => {
            format!("raise the hard limit (ulimit -Hn, LimitNOFILE=) to {descriptors}")
        }
    };
    Some(format!(
        "only {objects_max} files may be open, and there may be {connections_max} connections: if \
         each requests another file, requests wait, and get 503 if that takes long; {remedy}"
    ))
}

fn widen(count: u32) -> usize {
    usize::try_from(count).expect("invariant: a usize has at least 32 bits")
}

/// Number of handles of a store with this many objects.
pub(super) fn handles_max(objects_max: u32) -> usize {
    widen(objects_max) + store::CLOSED_HANDLES_MAX
}

/// Opens a worker's store of what is served. `is_first`: what is found out about it is logged.
pub(super) fn open_store(
    content: &StartedContent,
    settings: &Settings,
    objects_max: u32,
    is_first: bool,
) -> Result<Store, Failure> {
    let path = settings.path.display();
    let config = StoreConfig {
        objects_max: widen(objects_max),
        direct: if settings.buffered {
            Direct::Preferred
        } else {
            Direct::Required
        },
        retired_time_max: settings.limits.replaced_timeout,
        ..StoreConfig::default()
    };
    if let StartedContent::Volume(volume, _) = content {
        return Store::open_volume(volume, config)
            .map_err(|error| Failure::refused(error.to_string(), "raise the limit of open files"));
    }
    let beside = match content {
        StartedContent::Directories(beside) => beside.as_slice(),
        StartedContent::Volume(..) => &[],
    };
    let all = [settings.path.as_path()].into_iter();
    let all: Vec<&Path> = all.chain(beside.iter().map(PathBuf::as_path)).collect();
    let store = Store::open_directories(&all, config).map_err(|error| match error {
        StoreError::NotDirect { path: file } => Failure::refused(
            format!(
                "{}: its file system refuses O_DIRECT (tried {})",
                named(settings, beside, &file),
                file.display()
            ),
            "serve from ext4, xfs or btrfs, or set buffered = true in the configuration file",
        ),
        StoreError::OpenAt2(_) => Failure::Refused(error.to_string()),
        StoreError::Directory { path, error } => Failure::of_error(
            &error,
            format!("{}: {error}", named(settings, beside, &path)),
            "see that this user may read the directory",
        ),
        StoreError::Threads(error) => Failure::of_error(
            &error,
            format!("PATH {path}: its threads cannot be started: {error}"),
            "raise the limits of threads (ulimit -u) and of open files",
        ),
        error => Failure::Refused(format!("PATH {path}: {error}")),
    })?;
    match store.direct_support() {
        _ if !is_first => {}
        DirectSupport::Direct => {}
        DirectSupport::Refused => {
            warn!("{path}: its file system refuses O_DIRECT: reading through the page cache");
        }
        DirectSupport::Unknown => info!("{path}: no file there to try O_DIRECT with"),
    }
    for mount in store.mounts_without_direct().iter().filter(|_| is_first) {
        warn!(
            "{}: {}",
            mount.display(),
            effect_without_direct(settings.buffered)
        );
    }
    Ok(store)
}

/// What messages call the directory that a path is in: PATH, or the one that a site names beside it.
fn named(settings: &Settings, beside: &[PathBuf], path: &Path) -> String {
    let is_in = |directory: &&PathBuf| path.starts_with(directory);
    match beside.iter().find(is_in) {
        Some(directory) if !path.starts_with(&settings.path) => {
            format!("directory {}", directory.display())
        }
        _ => format!("PATH {}", settings.path.display()),
    }
}

/// What becomes of the files of a mount beneath PATH that refuses `O_DIRECT`.
pub(super) const fn effect_without_direct(is_buffered: bool) -> &'static str {
    if is_buffered {
        "this file system refuses O_DIRECT: its files are read through the page cache"
    } else {
        "this file system refuses O_DIRECT: its files get 500; set buffered = true, or serve them from \
         ext4, xfs or btrfs"
    }
}

/// Makes the slots, and lends them to the link if it sends from them; says why not.
fn make_slots<L: Link>(
    link: &mut L,
    settings: &Settings,
    slots: u32,
) -> Result<(Arena, Option<CopyReason>), Failure> {
    let config = ArenaConfig::new(slots);
    let lent = match link.zero_copy() {
        Ok(()) => {
            let stride_bytes = link.lent_stride_bytes(config.stride_bytes());
            // The link puts other pages in their place, which it cannot do with huge ones.
            let arena = make_arena(ArenaConfig {
                pages: PageKind::Ordinary,
                ..config.with_stride_bytes(stride_bytes)
            })?;
            link.borrow_slots(arena.slot_memory()).map(|()| arena)
        }
        Err(reason) => Err(reason),
    };
    match lent {
        Ok(arena) => Ok((arena, None)),
        Err(reason) if settings.zero_copy == ZeroCopy::On => Err(Failure::refused(
            format!("{} on: {reason}", settings.zero_copy_origin),
            "use auto, or fewer slots",
        )),
        Err(reason) => Ok((make_arena(config)?, Some(reason))),
    }
}

fn make_arena(config: ArenaConfig) -> Result<Arena, Failure> {
    let slots = config.slot_count;
    let arena =
        Arena::new(config).map_err(|error| Failure::Refused(format!("slots {slots}: {error}")))?;
    let mebibytes = arena.bytes() >> 20;
    match (arena.pages(), arena.fallback_reason()) {
        (PageKind::Ordinary, Some(reason)) => warn!(mebibytes, "slots: {reason}"),
        (_, Some(reason)) => info!(mebibytes, "slots: {reason}"),
        // As asked for: a link is to put its own pages in their place.
        (PageKind::Ordinary, None) => {}
        (pages, None) => info!(mebibytes, ?pages, "slots are in huge pages"),
    }
    Ok(arena)
}

/// How a worker's ring is made.
pub(super) fn uring_config(queue_depth: u32, files_max: u32) -> UringConfig {
    UringConfig {
        queue_depth,
        files_max,
        return_closed_files: true,
        ..UringConfig::default()
    }
}

fn make_disk(queue_depth: u32, files_max: usize, arena: &Arena) -> Result<Uring, Failure> {
    let files_max = u32::try_from(files_max).unwrap_or(u32::MAX);
    let config = uring_config(queue_depth, files_max);
    let disk =
        Uring::new_disabled(config, arena).map_err(|error| Failure::Refused(error.to_string()))?;
    if let Some(reason) = disk.fallback_reason() {
        info!("io_uring without registered buffers or files: {reason}");
    }
    Ok(disk)
}

#[cfg(test)]
mod tests {
    use super::{DESCRIPTORS_RESERVED, few_objects_warning, objects_max};

    #[test]
    fn objects_leave_descriptors_for_the_rest() {
        assert_eq!(
            objects_max(Some(100), DESCRIPTORS_RESERVED + 100, 1),
            Ok(100)
        );
        assert_eq!(
            objects_max(Some(100), 3 * DESCRIPTORS_RESERVED + 100, 3),
            Ok(100)
        );
        assert_eq!(objects_max(Some(3), 1 << 40, 3), Ok(3));
        assert_eq!(
            objects_max(Some(2), 1 << 40, 3).unwrap_err().to_string(),
            "objects_max 2: too few for 3 workers; use at least 3, or fewer workers"
        );
        let refusal = objects_max(Some(101), DESCRIPTORS_RESERVED + 100, 1)
            .unwrap_err()
            .to_string();
        assert!(
            refusal.starts_with("objects_max 101: only 484 files may be open"),
            "{refusal}"
        );
        assert!(refusal.ends_with("or use at most 100"), "{refusal}");
    }

    #[test]
    fn without_a_setting_objects_use_all_unreserved_descriptors() {
        assert_eq!(objects_max(None, DESCRIPTORS_RESERVED + 100, 1), Ok(100));
        assert_eq!(objects_max(None, 1 << 40, 1), Ok(65_000));
        assert_eq!(objects_max(None, 1 << 40, 2), Ok(130_000));
        let refusal = objects_max(None, DESCRIPTORS_RESERVED, 1).unwrap_err();
        let refusal = refusal.to_string();
        assert!(
            refusal.contains("only 384 files may be open, and 384 are needed"),
            "{refusal}"
        );
        assert_eq!(objects_max(None, DESCRIPTORS_RESERVED + 1, 1), Ok(1));
        assert_eq!(objects_max(None, 2 * DESCRIPTORS_RESERVED + 2, 2), Ok(2));
        assert!(objects_max(None, 2 * DESCRIPTORS_RESERVED + 1, 2).is_err());
    }

    #[test]
    fn too_few_objects_for_the_connections_are_warned_of() {
        for is_chosen in [false, true] {
            assert_eq!(few_objects_warning(100, is_chosen, 100), None);
        }
        let warning = |objects, is_chosen, connections| {
            few_objects_warning(objects, is_chosen, connections).expect("a warning")
        };
        let few = warning(100, false, 101);
        assert!(few.starts_with("only 100 files may be open"), "{few}");
        assert!(few.ends_with("LimitNOFILE=) to 485"), "{few}");
        let chosen = warning(100, true, 101);
        assert!(chosen.ends_with("raise objects_max"), "{chosen}");
        let most = warning(65_000, false, 65_001);
        assert!(most.ends_with("a smaller connections_max"), "{most}");
        let descriptors = warning(100, false, 1 << 20);
        assert!(descriptors.ends_with("to 65384"), "{descriptors}");
    }
}
