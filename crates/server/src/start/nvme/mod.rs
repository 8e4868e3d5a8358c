//! A raw store on namespaces of NVMe controllers that this process drives itself, by VFIO.
//!
//! The catalogue is read once, at the start, through queue pairs of its own; no other process can change
//! it meanwhile, for none has the controllers. A controller that fails later fails the reads of its
//! namespaces, and the others are served on. It refuses controllers with too few queue pairs for the workers.
//! Bounded by `volume::DEVICES_MAX` namespaces; [`reader::READ_SLOTS`] slots while the catalogue is read.

mod names;
mod platform;
mod reader;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use diskmap::nvme::{ControllerState, NamespaceRange, NvmeConfig};
use diskmap::vfio::{PciAddress, Vfio, VfioError};
use memory::Arena;
use store::NamespaceId;
use store::raw::{RawError, Volume, find_catalogue};
use tracing::{info, warn};

use super::content::{refuse_to_serve, warn_of_copies};
use crate::failure::{Failure, may_pass};
pub(super) use names::NvmeNames;
use names::{NamedNamespace, PREFIX, named_twice};
pub(super) use platform::OverVfio;
pub(super) use platform::QueuePairsOf;
use platform::{ControllerOf, LOOK_PAUSE, Platform};
use reader::{Namespace, READ_SLOTS, Reader};

/// Longest wait for the controllers to be shut down, and for them to delete queues. A guess; the
/// specification has a controller say how long it may take for the first, usually some seconds.
const END_MAX: Duration = Duration::from_secs(10);

/// A controller that was started.
#[derive(Debug)]
struct Member<P: Platform> {
    address: PciAddress,
    /// The address, as notices have it.
    name: Arc<str>,
    device: P::Device,
    controller: ControllerOf<P>,
}

/// Controllers that were started, by their numbers.
#[derive(Debug)]
pub(super) struct Controllers<P: Platform> {
    platform: P,
    members: Vec<Member<P>>,
}

fn refuse(address: PciAddress, error: &VfioError) -> Failure {
    let text = format!("PATH {PREFIX}{address}: {error}");
    match error {
        // A server that ends gives it back, after a while.
        VfioError::GroupFile { errno, .. } if may_pass(*errno) => Failure::NotNow(text),
        _ => Failure::Refused(text),
    }
}

/// Checks what can be found out about controllers without taking them: that they are there, that `vfio-pci`
/// has them, and that this user may open them.
///
/// # Errors
/// What is missing, with the remedy.
pub(super) fn check(names: &NvmeNames) -> Result<(), Failure> {
    for address in &names.addresses {
        Vfio::check(*address).map_err(|error| refuse(*address, &error))?;
    }
    Ok(())
}

impl<P: Platform> Controllers<P> {
    /// Takes the controllers, starts them for as many workers, and reads the catalogue.
    ///
    /// # Errors
    /// What cannot be had, with the remedy. Controllers that were started are shut down then.
    pub(super) fn open(
        platform: P,
        names: &NvmeNames,
        workers: u32,
    ) -> Result<(Self, Volume), Failure> {
        let mut controllers = Self {
            platform,
            members: Vec::new(),
        };
        let volume = controllers
            .start(names, workers)
            .and_then(|queue_id| controllers.read_catalogue(names, queue_id));
        match volume {
            Ok(volume) => Ok((controllers, volume)),
            Err(failure) => {
                controllers.shut_down();
                Err(failure)
            }
        }
    }

    /// Takes all, and then starts them. Returns the number of the queue pairs that no worker has.
    fn start(&mut self, names: &NvmeNames, workers: u32) -> Result<u16, Failure> {
        let mut devices = Vec::new();
        for address in &names.addresses {
            let device = self.platform.open(*address);
            devices.push((*address, device.map_err(|error| refuse(*address, &error))?));
        }
        // One more, for the catalogue.
        let wanted = u16::try_from(workers + 1).unwrap_or(u16::MAX);
        for (address, device) in devices {
            let controller = self.platform.start(&device, wanted);
            let controller = controller.map_err(|error| refuse(address, &error))?;
            let granted = controller.queue_pairs();
            let (identity, resets) = (controller.identity(), controller.counters().reset_count);
            if let (Some(error), 1..) = (controller.last_error(), resets) {
                warn!(
                    resets,
                    "NVMe controller {address} was reset while it started: {error}"
                );
            }
            self.members.push(Member {
                address,
                name: address.to_string().into(),
                device,
                controller,
            });
            if granted < wanted {
                return Err(Failure::refused(
                    format!(
                        "PATH {PREFIX}{address}: the controller has {granted} I/O queue pairs, \
                         and {workers} workers and the catalogue need one each"
                    ),
                    "use fewer workers",
                ));
            }
            if let Some(identity) = identity {
                info!(
                    model = %identity.model_number,
                    serial = %identity.serial_number,
                    "NVMe controller {address}"
                );
            }
        }
        Ok(wanted)
    }

    /// The disk of a worker, counted from 0: a queue pair at each controller.
    ///
    /// # Errors
    /// So much memory cannot be locked, with the remedy.
    pub(super) fn disk(
        &self,
        worker: usize,
        queue_depth: u32,
        files_max: usize,
        arena: &Arena,
    ) -> Result<QueuePairsOf<P>, Failure> {
        let config = NvmeConfig {
            queue_depth: u16::try_from(queue_depth)
                .unwrap_or(u16::MAX)
                .min(diskmap::nvme::QUEUE_DEPTH_MAX),
            files_max: u32::try_from(files_max)
                .unwrap_or(u32::MAX)
                .min(diskmap::nvme::FILES_MAX),
            ..NvmeConfig::default()
        };
        let queue_id = u16::try_from(worker + 1).expect("invariant: few workers are allowed");
        self.queue_pairs(queue_id, arena, config)
    }

    fn queue_pairs(
        &self,
        queue_id: u16,
        arena: &Arena,
        config: NvmeConfig,
    ) -> Result<QueuePairsOf<P>, Failure> {
        let pair = |member: &Member<P>| {
            let (device, controller) = (&member.device, &member.controller);
            self.platform
                .queue_pair(device, controller, queue_id, arena, config)
                .map(|pair| (Arc::clone(&member.name), pair))
                .map_err(|error| refuse(member.address, &error))
        };
        let pairs = self.members.iter().map(pair);
        Ok(QueuePairsOf::<P>::new(pairs.collect::<Result<_, _>>()?))
    }

    fn read_catalogue(&self, names: &NvmeNames, queue_id: u16) -> Result<Volume, Failure> {
        let found = names.namespaces.iter().map(|it| self.find_namespace(it));
        let found = found.collect::<Result<Vec<_>, _>>()?;
        for (index, (range, name)) in found.iter().zip(&names.namespaces).enumerate() {
            if found[..index].contains(range) {
                return Err(named_twice(&name.name));
            }
        }
        let arena = reader::slots().map_err(|error| Failure::Refused(error.to_string()))?;
        let config = NvmeConfig {
            queue_depth: READ_SLOTS,
            ..NvmeConfig::default()
        };
        let reader = RefCell::new(Reader {
            disk: self.queue_pairs(queue_id, &arena, config)?,
            platform: &self.platform,
            arena,
        });
        let open = |(range, name): (&NamespaceRange, &NamedNamespace)| {
            Namespace::open(&reader, name.name.as_str().into(), *range)
        };
        let namespaces = found.iter().zip(&names.namespaces).map(open);
        let namespaces: Result<Vec<_>, _> = namespaces.collect();
        let loaded = namespaces.and_then(|namespaces| find_catalogue(&namespaces));
        reader.into_inner().end();
        let (order, loaded) = loaded.map_err(|error| match error {
            RawError::Io { path, error } => Failure::refused(
                format!("PATH {}: {error}", path.display()),
                "give the controller back (atlas nvme unbind), and see whether the kernel can read it",
            ),
            error => refuse_to_serve(error),
        })?;
        warn_of_copies(&loaded);
        let shown = order.iter().map(|&it| names.namespaces[it].name.as_str());
        let shown = shown.collect::<Vec<_>>().join(",");
        let id = |&it: &usize| NamespaceId {
            controller: found[it].controller,
            id: found[it].namespace_id,
        };
        let ids: Vec<_> = order.iter().map(id).collect();
        Ok(Volume::of_namespaces(shown, &ids, loaded))
    }

    /// All of a namespace.
    fn find_namespace(&self, named: &NamedNamespace) -> Result<NamespaceRange, Failure> {
        let NamedNamespace {
            name,
            controller,
            id,
        } = named;
        let all = self.members[*controller].controller.namespaces();
        let list = || {
            let ids: Vec<_> = all.iter().map(|it| it.id.to_string()).collect();
            let name = name.split('/').next().unwrap_or(name);
            format!(
                "name one of its namespaces: {name}/N, where N is one of {}",
                ids.join(", ")
            )
        };
        let found = match (id, &all[..]) {
            (Some(id), _) => all.iter().find(|it| it.id == *id),
            (None, [only]) => Some(only),
            (None, _) => None,
        };
        let Some(found) = found else {
            let problem = format!("PATH {name}: the controller has {} namespaces", all.len());
            return Err(Failure::refused(problem, list()));
        };
        match found.format {
            Ok(format) => Ok(NamespaceRange {
                controller: u16::try_from(*controller).expect("invariant: few can be named"),
                namespace_id: found.id,
                start_bytes: 0,
                length_bytes: format.size_bytes(),
            }),
            Err(error) => Err(Failure::refused(format!("PATH {name}: {error}"), list())),
        }
    }

    /// Has the controllers stopped as the specification wants it, once no worker uses them any more.
    pub(super) fn shut_down(&self) {
        let end = self.platform.now() + END_MAX;
        for member in &self.members {
            member.controller.begin_shutdown(self.platform.now());
        }
        let mut left: Vec<_> = self.members.iter().collect();
        loop {
            let now = self.platform.now();
            left.retain(|member| {
                let address = member.address;
                match member.controller.poll(now) {
                    ControllerState::ShutDown => false,
                    ControllerState::Failed(error) => {
                        warn!("the NVMe controller {address} was not shut down: {error}");
                        false
                    }
                    ControllerState::Pending | ControllerState::Ready => true,
                }
            });
            if left.is_empty() {
                return;
            }
            if now >= end {
                for Member { address, .. } in left {
                    warn!("the NVMe controller {address} takes too long to shut down: it is reset");
                }
                return;
            }
            self.platform.wait(LOOK_PAUSE);
        }
    }
}
