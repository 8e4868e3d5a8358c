//! A raw store on namespaces of an NVMe controller that this process drives itself, by VFIO: PATH is
//! `nvme:ADDRESS`, or `nvme:ADDRESS/NAMESPACE`, several of them joined by commas.
//!
//! The catalogue is read once, at the start, through a queue pair of its own; no other process can change
//! it meanwhile, for none has the controller. It refuses namespaces of several controllers, and
//! controllers with too few queue pairs for the workers. Bounded by `volume::DEVICES_MAX` namespaces;
//! [`READ_SLOTS`] slots while the catalogue is read.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::thread;
use std::time::{Duration, Instant as RealInstant};

use diskmap::nvme::{ControllerState, NamespaceRange, NvmeConfig};
use diskmap::vfio::{PciAddress, Vfio, VfioController, VfioQueuePair};
use diskmap::{Disk as _, DiskError, FileIndex, FileLimits, FileSource, Read};
use memory::{Arena, ArenaConfig, PageKind};
use store::raw::{Blocks, RawError, Volume, find_catalogue};
use tracing::{info, warn};

use super::content::refuse_raw;
use crate::failure::Failure;
use crate::run::now_since;

/// How a namespace is named, instead of a path.
const PREFIX: &str = "nvme:";
/// Reads in progress while the catalogue is read.
const READ_SLOTS: u32 = 8;
/// Between looks at a controller that is on its way.
const LOOK_PAUSE: Duration = Duration::from_millis(1);
/// Between looks for completions while the catalogue is read.
const READ_PAUSE: Duration = Duration::from_micros(50);
/// Longest wait for the controller to be shut down, and for it to delete queues. A guess; the
/// specification has the controller say how long it may take for the first, usually some seconds.
const END_MAX: Duration = Duration::from_secs(10);

/// What PATH names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NvmeNames {
    /// Of the controller.
    address: PciAddress,
    /// As named, and the namespace; `None`: the only one.
    namespaces: Vec<(String, Option<u32>)>,
}

impl NvmeNames {
    /// `None`: PATH names no controller.
    pub(super) fn parse(path: &Path) -> Option<Result<Self, Failure>> {
        let text = path.to_str().filter(|text| text.starts_with(PREFIX))?;
        Some(parse(text))
    }
}

fn parse(text: &str) -> Result<NvmeNames, Failure> {
    let mut first = None;
    let mut namespaces = Vec::new();
    for name in text.split(',') {
        let refuse = |problem: String| {
            let remedy = "name nvme:ADDRESS or nvme:ADDRESS/NAMESPACE, such as nvme:0000:01:00.0/1";
            Failure::refused(format!("PATH {name}: {problem}"), remedy)
        };
        let rest = name.strip_prefix(PREFIX);
        let rest = rest.ok_or_else(|| refuse("the name of no NVMe controller".to_owned()))?;
        let (address, namespace) = match rest.split_once('/') {
            None => (rest, None),
            Some((address, number)) => match number.parse() {
                Ok(number) if number > 0 => (address, Some(number)),
                _ => return Err(refuse(format!("{number:?} is no namespace identifier"))),
            },
        };
        let address = PciAddress::from_str(address).map_err(|error| refuse(error.to_string()))?;
        if *first.get_or_insert(address) != address {
            return Err(Failure::refused(
                format!("PATH {text}: several controllers"),
                "use namespaces of one controller, or a server for each",
            ));
        }
        namespaces.push((name.to_owned(), namespace));
    }
    Ok(NvmeNames {
        address: first.expect("invariant: a split text has a first part"),
        namespaces,
    })
}

/// A controller that this process has, and the store on it.
#[derive(Debug)]
pub(super) struct NvmeContent {
    pub(super) volume: Volume,
    pub(super) controller: Controller,
}

/// A controller that was started; clones are the same one.
#[derive(Clone, Debug)]
pub(super) struct Controller {
    vfio: Vfio,
    controller: VfioController,
    /// The worker's clock.
    epoch: RealInstant,
}

impl NvmeContent {
    /// Takes the controller, starts it for as many workers, and reads the catalogue.
    ///
    /// # Errors
    /// What cannot be had, with the remedy.
    pub(super) fn open(
        names: &NvmeNames,
        workers: u32,
        epoch: RealInstant,
    ) -> Result<Self, Failure> {
        let address = names.address;
        let refuse = |error: &dyn std::fmt::Display| {
            Failure::Refused(format!("PATH {PREFIX}{address}: {error}"))
        };
        let vfio = Vfio::open(address).map_err(|error| refuse(&error))?;
        // One more, for the catalogue.
        let wanted = u16::try_from(workers + 1).unwrap_or(u16::MAX);
        let controller = vfio
            .start(wanted, &mut || {
                thread::sleep(LOOK_PAUSE);
                now_since(epoch)
            })
            .map_err(|error| refuse(&error))?;
        let granted = controller.queue_pairs();
        if granted < wanted {
            return Err(Failure::refused(
                format!(
                    "PATH {PREFIX}{address}: the controller has {granted} I/O queue pairs, and \
                     {workers} workers and the catalogue need one each"
                ),
                "use fewer workers",
            ));
        }
        if let Some(identity) = controller.identity() {
            info!(
                model = %identity.model_number,
                serial = %identity.serial_number,
                "NVMe controller {address}"
            );
        }
        let controller = Controller {
            vfio,
            controller,
            epoch,
        };
        let volume = controller.read_catalogue(names, granted)?;
        Ok(Self { volume, controller })
    }
}

impl Controller {
    /// The queue pair of a worker, counted from 0.
    ///
    /// # Errors
    /// So much memory cannot be locked, with the remedy.
    pub(super) fn queue_pair(
        &self,
        worker: usize,
        queue_depth: u32,
        files_max: usize,
        arena: &Arena,
    ) -> Result<VfioQueuePair, Failure> {
        let usual = NvmeConfig::default();
        let config = NvmeConfig {
            queue_depth: u16::try_from(queue_depth)
                .unwrap_or(u16::MAX)
                .min(diskmap::nvme::QUEUE_DEPTH_MAX),
            files_max: u32::try_from(files_max)
                .unwrap_or(u32::MAX)
                .min(diskmap::nvme::FILES_MAX),
            ..usual
        };
        let queue_id = u16::try_from(worker + 1).expect("invariant: few workers are allowed");
        self.vfio
            .queue_pair(&self.controller, queue_id, arena, config)
            .map_err(|error| Failure::Refused(error.to_string()))
    }

    fn read_catalogue(&self, names: &NvmeNames, queue_id: u16) -> Result<Volume, Failure> {
        let config = ArenaConfig {
            pages: PageKind::Ordinary,
            ..ArenaConfig::new(READ_SLOTS)
        };
        let arena = Arena::new(config).map_err(|error| Failure::Refused(error.to_string()))?;
        let config = NvmeConfig {
            queue_depth: u16::try_from(READ_SLOTS).expect("invariant: few slots"),
            ..NvmeConfig::default()
        };
        let disk = self
            .vfio
            .queue_pair(&self.controller, queue_id, &arena, config)
            .map_err(|error| Failure::Refused(error.to_string()))?;
        let reader = RefCell::new(Reader {
            arena,
            disk,
            epoch: self.epoch,
        });
        let (mut namespaces, mut ids) = (Vec::new(), Vec::new());
        for (name, id) in &names.namespaces {
            let (id, size_bytes) = self.find_namespace(name, *id)?;
            let namespace = Namespace::open(&reader, name.into(), id, size_bytes);
            namespaces.push(namespace.map_err(refuse_raw)?);
            ids.push(id);
        }
        let (order, loaded) = find_catalogue(&namespaces).map_err(refuse_raw)?;
        drop(namespaces);
        reader.into_inner().end();
        let shown: Vec<_> = order
            .iter()
            .map(|&it| names.namespaces[it].0.as_str())
            .collect();
        let ids: Vec<_> = order.iter().map(|&it| ids[it]).collect();
        Ok(Volume::of_namespaces(shown.join(","), &ids, loaded))
    }

    /// Identifier and size of a namespace.
    fn find_namespace(&self, name: &str, id: Option<u32>) -> Result<(u32, u64), Failure> {
        let all = self.controller.namespaces();
        let list = || {
            let ids: Vec<_> = all.iter().map(|it| it.id.to_string()).collect();
            format!(
                "name one of its namespaces: {name}/N, where N is one of {}",
                ids.join(", ")
            )
        };
        let found = match (id, &all[..]) {
            (Some(id), _) => all.iter().find(|it| it.id == id),
            (None, [only]) => Some(only),
            (None, _) => None,
        };
        let Some(found) = found else {
            let problem = format!("PATH {name}: the controller has {} namespaces", all.len());
            return Err(Failure::refused(problem, list()));
        };
        match found.format {
            Ok(format) => Ok((found.id, format.size_bytes())),
            Err(error) => Err(Failure::refused(format!("PATH {name}: {error}"), list())),
        }
    }

    /// Has the controller stopped as the specification wants it, once no worker uses it any more.
    pub(super) fn shut_down(&self) {
        let end = RealInstant::now() + END_MAX;
        self.controller.begin_shutdown(now_since(self.epoch));
        loop {
            match self.controller.poll(now_since(self.epoch)) {
                ControllerState::ShutDown => return,
                ControllerState::Failed(error) => {
                    return warn!("the NVMe controller was not shut down: {error}");
                }
                ControllerState::Pending | ControllerState::Ready => {}
            }
            if RealInstant::now() >= end {
                return warn!("the NVMe controller takes too long to shut down: it is reset");
            }
            thread::sleep(LOOK_PAUSE);
        }
    }
}

/// Reads, and waits for what it reads.
struct Reader {
    arena: Arena,
    disk: VfioQueuePair,
    epoch: RealInstant,
}

impl Reader {
    /// Each read ends, by the driver's timeouts if by nothing else.
    fn read(
        &mut self,
        file: FileIndex,
        limits: FileLimits,
        offset_bytes: u64,
        length: usize,
    ) -> Result<Vec<u8>, DiskError> {
        let end = offset_bytes.saturating_add(u64::try_from(length).unwrap_or(u64::MAX));
        let end = end.min(limits.size_bytes).max(offset_bytes);
        let mut bytes = vec![0; usize::try_from(end - offset_bytes).unwrap_or(usize::MAX)];
        let mut next = offset_bytes;
        let mut failed = None;
        while (next < end && failed.is_none()) || self.disk.in_flight() > 0 {
            while next < end && failed.is_none() {
                let Some(slot) = self.arena.reserve() else {
                    break;
                };
                let left = end - next;
                let length_bytes = u32::try_from(left)
                    .unwrap_or(u32::MAX)
                    .min(limits.read_bytes_max)
                    .next_multiple_of(limits.block_bytes);
                let read = Read {
                    file,
                    offset_bytes: next,
                    length_bytes,
                    slot,
                    token: next,
                };
                if let Err(refused) = self.disk.read(&mut self.arena, read) {
                    self.arena.release(refused.slot);
                    break;
                }
                next += u64::from(length_bytes);
            }
            let now = now_since(self.epoch);
            self.disk.sqsync(now)?;
            let mut sink = |arena: &mut Arena, completion: diskmap::Completion| {
                let slot = match completion.result {
                    Ok(slot) => {
                        let start = usize::try_from(completion.token - offset_bytes);
                        let target = bytes.get_mut(start.unwrap_or(usize::MAX)..);
                        let target = target.unwrap_or_default();
                        // The last block may reach beyond what is wanted.
                        let count = target.len().min(arena.payload(&slot).len());
                        target[..count].copy_from_slice(&arena.payload(&slot)[..count]);
                        slot.into_free()
                    }
                    Err((slot, error)) => {
                        failed = Some(error);
                        slot
                    }
                };
                arena.release(slot);
            };
            let count =
                self.disk
                    .consume_completions(now, &mut self.arena, widen(READ_SLOTS), &mut sink);
            if count == 0 {
                thread::sleep(READ_PAUSE);
            }
        }
        failed.map_or(Ok(bytes), Err)
    }

    /// Has the controller delete the queues, before their memory is given back.
    fn end(mut self) {
        let end = RealInstant::now() + END_MAX;
        while !self.disk.detach(now_since(self.epoch)) && RealInstant::now() < end {
            thread::sleep(LOOK_PAUSE);
        }
    }
}

/// A namespace to find a catalogue on.
struct Namespace<'a> {
    name: PathBuf,
    reader: &'a RefCell<Reader>,
    file: FileIndex,
    limits: FileLimits,
}

impl<'a> Namespace<'a> {
    fn open(
        reader: &'a RefCell<Reader>,
        name: PathBuf,
        namespace_id: u32,
        length_bytes: u64,
    ) -> Result<Self, RawError> {
        let range = NamespaceRange {
            namespace_id,
            start_bytes: 0,
            length_bytes,
        };
        let opened = reader.borrow_mut().disk.open(FileSource::Namespace(range));
        let (file, limits) = opened.map_err(|error| failed(&name, error))?;
        Ok(Self {
            name,
            reader,
            file,
            limits,
        })
    }
}

impl Blocks for Namespace<'_> {
    fn path(&self) -> &Path {
        &self.name
    }

    fn size_bytes(&self) -> u64 {
        self.limits.size_bytes
    }

    fn read(&self, offset_bytes: u64, length: usize) -> Result<Vec<u8>, RawError> {
        let mut reader = self.reader.borrow_mut();
        let bytes = reader.read(self.file, self.limits, offset_bytes, length);
        bytes.map_err(|error| failed(&self.name, error))
    }
}

fn failed(name: &Path, error: DiskError) -> RawError {
    RawError::Io {
        path: name.to_owned(),
        error: match error {
            DiskError::Io(errno) => io::Error::from_raw_os_error(errno),
            error => io::Error::other(error.to_string()),
        },
    }
}

fn widen(count: u32) -> usize {
    usize::try_from(count).expect("invariant: a usize has at least 32 bits")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{NvmeNames, PciAddress};

    fn parse(text: &str) -> Result<(PciAddress, Vec<Option<u32>>), String> {
        let names = NvmeNames::parse(Path::new(text)).expect("a controller is named");
        let names = names.map_err(|error| error.to_string())?;
        let namespaces = names.namespaces.into_iter().map(|(_, id)| id);
        Ok((names.address, namespaces.collect()))
    }

    #[test]
    fn controllers_and_namespaces_are_named() {
        let address: PciAddress = "0000:01:00.0".parse().unwrap();
        assert_eq!(parse("nvme:0000:01:00.0"), Ok((address, vec![None])));
        assert_eq!(parse("nvme:0000:01:00.0/1"), Ok((address, vec![Some(1)])));
        assert_eq!(
            parse("nvme:0000:01:00.0/2,nvme:0000:01:00.0/1"),
            Ok((address, vec![Some(2), Some(1)]))
        );
        assert!(NvmeNames::parse(Path::new("/dev/nvme0n1")).is_none());
        assert!(NvmeNames::parse(Path::new("./nvme:0000:01:00.0")).is_none());
    }

    #[test]
    fn what_is_no_name_is_refused_with_an_example() {
        for (text, problem) in [
            ("nvme:", "no PCI address"),
            ("nvme:01:00.0", "no PCI address"),
            ("nvme:0000:01:00.0/", "is no namespace identifier"),
            ("nvme:0000:01:00.0/0", "is no namespace identifier"),
            ("nvme:0000:01:00.0/4294967296", "is no namespace identifier"),
            (
                "nvme:0000:01:00.0,/dev/nvme0n1",
                "the name of no NVMe controller",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(problem), "{error}");
            assert!(error.contains("such as nvme:0000:01:00.0/1"), "{error}");
        }
        let error = parse("nvme:0000:01:00.0,nvme:0000:02:00.0").unwrap_err();
        assert!(error.contains("several controllers"), "{error}");
    }
}
