//! Stores on emulated controllers: found, read, and the controllers' end. Time is virtual.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use clock::Instant;
use diskmap::nvme::emulated::{
    Emulated, EmulatedConfig, EmulatedMemory, EmulatedNamespace, EmulatedRegisters, EmulatedSlots,
    Faults,
};
use diskmap::nvme::{
    ADMIN_MEMORY_BYTES, Controller, ControllerState, Nvme, NvmeConfig, Status, memory_bytes,
};
use diskmap::vfio::{PciAddress, VfioError};
use diskmap::{Completion, Disk as _, DiskError, DiskNotice, FileSource, Read};
use memory::{Arena, ArenaConfig};
use store::raw::Volume;
use store::{LookUp, NamespaceId, Source, Store, StoreConfig};
use volume::{
    BLOCK_BYTES, Catalogue, Commit, ContentDigest, Editor, Entry, Extent, Geometry, Step, StoreId,
    Time,
};

use super::names::NvmeNames;
use super::platform::{ControllerOf, Platform, QueuePairOf, QueuePairsOf};
use super::{Controllers, END_MAX};

/// Blocks of 4 KiB of each namespace.
const BLOCKS: u64 = 2048;
/// Workers of each server.
const WORKERS: u32 = 2;

/// A machine with emulated controllers; clones are the same one.
#[derive(Clone, Debug)]
struct Machine {
    controllers: Rc<Vec<(PciAddress, Emulated)>>,
    now: Rc<Cell<Instant>>,
}

/// A controller that was taken; it is reset when it is given back.
#[derive(Debug)]
struct Taken(Emulated);

impl Drop for Taken {
    fn drop(&mut self) {
        use diskmap::nvme::Registers as _;
        self.0.registers().reset_function();
    }
}

impl Platform for Machine {
    type Device = Taken;
    type Registers = EmulatedRegisters;
    type Memory = EmulatedMemory;
    type Slots = EmulatedSlots;

    fn open(&self, address: PciAddress) -> Result<Taken, VfioError> {
        let mut controllers = self.controllers.iter();
        let found = controllers.find(|(it, _)| *it == address);
        let (_, emulated) = found.ok_or(VfioError::NoDevice { address })?;
        Ok(Taken(emulated.clone()))
    }

    fn start(&self, device: &Taken, queue_pairs: u16) -> Result<ControllerOf<Self>, VfioError> {
        let memory = device.0.map_memory(ADMIN_MEMORY_BYTES);
        let registers = device.0.registers();
        let controller = Controller::new(registers, memory, queue_pairs, self.now())?;
        loop {
            self.wait(Duration::from_millis(1));
            match controller.poll(self.now()) {
                ControllerState::Pending => {}
                ControllerState::Failed(error) => return Err(error.into()),
                ControllerState::Ready | ControllerState::ShutDown => return Ok(controller),
            }
        }
    }

    fn queue_pair(
        &self,
        device: &Taken,
        controller: &ControllerOf<Self>,
        queue_id: u16,
        arena: &Arena,
        config: NvmeConfig,
    ) -> Result<QueuePairOf<Self>, VfioError> {
        let memory = device.0.map_memory(memory_bytes(config.queue_depth, arena));
        let slots = device.0.map_slots(arena);
        Ok(Nvme::new(
            controller, queue_id, memory, slots, arena, config,
        )?)
    }

    fn now(&self) -> Instant {
        self.now.get()
    }

    fn wait(&self, time: Duration) {
        self.now.set(self.now.get() + time);
        for (_, emulated) in self.controllers.iter() {
            emulated.advance(self.now.get());
        }
    }
}

fn address(number: usize) -> PciAddress {
    format!("0000:{number:02x}:00.0").parse().unwrap()
}

fn namespace(id: u32) -> EmulatedNamespace {
    EmulatedNamespace {
        id,
        block_shift: 12,
        block_count: BLOCKS,
        metadata_bytes: 0,
        seed: 1,
    }
}

/// Controllers 1, 2 and so on, with as many namespaces each.
fn machine(namespaces: &[u32]) -> Machine {
    let controller = |(number, count): (usize, &u32)| {
        let config = EmulatedConfig {
            namespaces: (1..=*count).map(namespace).collect(),
            ..EmulatedConfig::new(1, 12)
        };
        (address(number + 1), Emulated::new(config))
    };
    Machine {
        controllers: Rc::new(namespaces.iter().enumerate().map(controller).collect()),
        now: Rc::new(Cell::new(Instant::from_millis(1))),
    }
}

impl Machine {
    fn emulated(&self, number: usize) -> &Emulated {
        &self.controllers[number - 1].1
    }

    /// Makes a store on namespaces (number of the controller, NSID) with an object on each device, whose
    /// name is the device's number.
    fn make_store(&self, id: u8, devices: &[(usize, u32)]) {
        let write = |device: u16, block: u64, bytes: &[u8]| {
            let (number, id) = devices[usize::from(device)];
            self.emulated(number).store(id, block, bytes);
        };
        let carry_out = |mut commit: Commit| {
            loop {
                match commit.next_step() {
                    Step::Write {
                        device,
                        block,
                        bytes,
                    } => write(device, block, bytes),
                    Step::Flush => {}
                    Step::Done => return commit.into_catalogue(),
                }
            }
        };
        for number in 0..u16::try_from(devices.len()).unwrap() {
            write(number, 0, &[0; 1 << 20]);
        }
        let blocks = vec![BLOCKS; devices.len()];
        let geometry = Geometry::new(StoreId([id; 16]), blocks, 16).unwrap();
        let data_start = geometry.area_start(0).max(geometry.area_start(1)) + 16;
        let catalogue = carry_out(Commit::first(Catalogue::empty(geometry)));
        let mut editor = Editor::new(catalogue, &volume::Readers::default());
        for number in 0..u16::try_from(devices.len()).unwrap() {
            let content = content(number);
            let extent = loop {
                // The space of any device may come first; what is not wanted here is not used.
                let extent = editor.allocate(content.len() as u64).unwrap();
                if extent.device == number {
                    break extent;
                }
            };
            assert!(extent.start >= data_start);
            write(number, extent.start, &content);
            editor.insert(entry(number, extent, &content));
        }
        carry_out(editor.commit().unwrap());
    }

    fn open(&self, path: &str) -> Result<(Controllers<Self>, Volume), String> {
        let names = NvmeNames::parse(Path::new(path)).expect("controllers are named");
        let opened = Controllers::open(self.clone(), &names.unwrap(), WORKERS);
        opened.map_err(|failure| failure.to_string())
    }

    fn check_violations(&self) {
        for (_, emulated) in self.controllers.iter() {
            assert_eq!(emulated.violations(), [""; 0]);
        }
    }
}

fn content(device: u16) -> Vec<u8> {
    let byte = u8::try_from(device).unwrap() + 1;
    vec![byte; 3 * BLOCK_BYTES as usize - 7]
}

fn entry(device: u16, extent: Extent, content: &[u8]) -> Entry {
    let mut digest = ContentDigest::new();
    digest.update(content);
    let (runs, tag) = digest.finish();
    Entry {
        name: device.to_string().into(),
        content_type: "".into(),
        extent,
        size_bytes: content.len() as u64,
        modified: Time {
            seconds: 1_700_000_000,
            nanos: 0,
        },
        added: 0,
        tag,
        runs: runs.into(),
    }
}

/// A worker's disk and store.
struct Worker {
    machine: Machine,
    arena: Arena,
    disk: QueuePairsOf<Machine>,
    store: Store,
}

impl Worker {
    fn new(
        machine: &Machine,
        number: usize,
        (controllers, volume): &(Controllers<Machine>, Volume),
    ) -> Self {
        let arena = Arena::new(ArenaConfig::new(8)).unwrap();
        Self {
            machine: machine.clone(),
            disk: controllers.disk(number, 8, 8, &arena).unwrap(),
            arena,
            store: Store::open_volume(volume, StoreConfig::default()).unwrap(),
        }
    }

    /// Looks an object up, and reads it as the server does.
    fn read(&mut self, name: &str) -> Result<Vec<u8>, DiskError> {
        let found = self
            .store
            .look_up(self.machine.now(), 0, &format!("/{name}"));
        let LookUp::Ready(found) = found else {
            panic!("{name} is not there: {found:?}");
        };
        let Some(Source::Namespace {
            namespace: NamespaceId { controller, id },
            start_bytes,
        }) = found.opened
        else {
            panic!("{name} was opened before, or is no range of a namespace");
        };
        let range = diskmap::nvme::NamespaceRange {
            controller,
            namespace_id: id,
            start_bytes,
            length_bytes: found.metadata.size_bytes,
        };
        let (file, _) = self.disk.open(FileSource::Namespace(range))?;
        let read = Read {
            file,
            offset_bytes: 0,
            length_bytes: 3 * BLOCK_BYTES,
            slot: self.arena.reserve().unwrap(),
            token: 0,
        };
        self.disk.read(&mut self.arena, read).unwrap();
        let end = self.machine.now() + Duration::from_secs(60);
        let mut outcome = None;
        self.disk.sqsync(self.machine.now())?;
        while outcome.is_none() {
            assert!(self.machine.now() < end, "it never completes");
            self.machine.wait(Duration::from_millis(1));
            let sink = &mut |arena: &mut Arena, Completion { result, .. }: Completion| {
                let (slot, result) = match result {
                    Ok(slot) => {
                        let bytes = arena.payload(&slot).to_vec();
                        (slot.into_free(), Ok(bytes))
                    }
                    Err((slot, error)) => (slot, Err(error)),
                };
                arena.release(slot);
                outcome = Some(result);
            };
            let now = self.machine.now();
            self.disk.consume_completions(now, &mut self.arena, 8, sink);
        }
        self.disk.close(file);
        let handle = found.handle;
        self.store.retire(handle);
        self.store.release(handle);
        while self.store.poll_closed().is_some() {}
        outcome.unwrap()
    }
}

#[test]
fn a_store_on_several_controllers_is_found_in_any_order() {
    let machine = machine(&[1, 2, 1]);
    machine.make_store(7, &[(2, 2), (1, 1), (3, 1)]);
    let (one, two, three) = (
        "nvme:0000:01:00.0",
        "nvme:0000:02:00.0/2",
        "nvme:0000:03:00.0",
    );
    for path in [
        format!("{one},{two},{three}"),
        format!("{three},{two},{one}"),
        format!("{two},{one}/1,{three}"),
    ] {
        let opened = machine.open(&path).unwrap();
        assert!(opened.1.name().starts_with(two), "{}", opened.1.name());
        let mut workers = [0, 1].map(|number| Worker::new(&machine, number, &opened));
        for worker in &mut workers {
            for device in 0..3 {
                assert_eq!(
                    worker.read(&device.to_string()),
                    Ok(content(device)),
                    "{path}"
                );
            }
        }
        drop(workers);
        opened.0.shut_down();
        machine.check_violations();
    }
}

#[test]
fn members_that_are_missing_foreign_or_doubled_are_named() {
    let machine = machine(&[2, 1, 1, 1]);
    machine.make_store(7, &[(1, 1), (2, 1)]);
    machine.make_store(8, &[(3, 1)]);
    for (path, said) in [
        (
            "nvme:0000:02:00.0",
            "PATH nvme:0000:02:00.0: the store has 2 devices, and 1 were named",
        ),
        (
            "nvme:0000:02:00.0,nvme:0000:03:00.0",
            "PATH nvme:0000:03:00.0: it belongs to store",
        ),
        (
            "nvme:0000:02:00.0,nvme:0000:04:00.0",
            "PATH nvme:0000:04:00.0: no store",
        ),
        (
            "nvme:0000:02:00.0,nvme:0000:02:00.0/1",
            "PATH nvme:0000:02:00.0/1: named twice",
        ),
        (
            "nvme:0000:01:00.0,nvme:0000:02:00.0",
            "PATH nvme:0000:01:00.0: the controller has 2 namespaces; name one of its namespaces: \
             nvme:0000:01:00.0/N, where N is one of 1, 2",
        ),
        (
            "nvme:0000:01:00.0/3,nvme:0000:02:00.0",
            "where N is one of 1, 2",
        ),
        (
            "nvme:0000:01:00.0/1,nvme:0000:09:00.0",
            "PATH nvme:0000:09:00.0: 0000:09:00.0: no such PCI device",
        ),
    ] {
        let error = machine.open(path).expect_err(path);
        assert!(error.contains(said), "{path}: {error}");
        machine.check_violations();
    }
    assert!(
        machine
            .open("nvme:0000:01:00.0/1,nvme:0000:02:00.0")
            .is_ok()
    );
}

/// The same namespace by two controllers, as in a subsystem with several.
#[test]
fn a_namespace_that_two_controllers_reach_is_no_second_device() {
    let machine = machine(&[1, 1]);
    for number in [1, 2] {
        machine.make_store(7, &[(number, 1)]);
    }
    let error = machine
        .open("nvme:0000:01:00.0,nvme:0000:02:00.0")
        .unwrap_err();
    let said = "the store has 1 devices, and 2 were named";
    assert!(error.contains(said), "{error}");
}

#[test]
fn a_controller_with_too_few_queue_pairs_is_refused_and_all_are_shut_down() {
    for (queue_pairs, is_enough) in [(2, false), (3, true)] {
        let config = EmulatedConfig {
            namespaces: vec![namespace(1)],
            queue_pairs,
            ..EmulatedConfig::new(1, 12)
        };
        let mut machine = machine(&[1, 1]);
        let controllers = vec![
            machine.controllers[0].clone(),
            (address(2), Emulated::new(config)),
        ];
        machine.controllers = Rc::new(controllers);
        machine.make_store(7, &[(1, 1), (2, 1)]);
        let opened = machine.open("nvme:0000:01:00.0,nvme:0000:02:00.0");
        match opened {
            Ok(_) => assert!(is_enough),
            Err(error) => {
                let said = "PATH nvme:0000:02:00.0: the controller has 2 I/O queue pairs, and 2 \
                            workers and the catalogue need one each; use fewer workers";
                assert_eq!(error, said);
                assert!(!is_enough);
                for number in [1, 2] {
                    assert_eq!(machine.emulated(number).counters().shutdowns, 1);
                }
            }
        }
        machine.check_violations();
    }
}

#[test]
fn a_controller_that_does_not_start_has_the_others_shut_down() {
    let machine = machine(&[1, 1]);
    machine.emulated(2).set_faults(Faults {
        starts_ignored: u32::MAX,
        ..Faults::default()
    });
    let error = machine
        .open("nvme:0000:01:00.0,nvme:0000:02:00.0")
        .unwrap_err();
    let said = "PATH nvme:0000:02:00.0: the NVMe controller did not start";
    assert!(error.contains(said), "{error}");
    assert_eq!(machine.emulated(1).counters().shutdowns, 1);
}

/// Reads of the catalogue that get no answer are tried again after a reset.
#[test]
fn a_catalogue_is_read_from_a_controller_that_needs_a_reset() {
    let machine = machine(&[1]);
    machine.make_store(7, &[(1, 1)]);
    // Some reads of the catalogue are among the first hundred commands that get no answer.
    machine.emulated(1).set_faults(Faults {
        stuck_chance: diskmap::sim::CHANCE_SCALE / 2,
        ..Faults::default()
    });
    let opened = machine.open("nvme:0000:01:00.0").unwrap();
    assert!(machine.emulated(1).counters().stuck > 0);
    machine.emulated(1).set_faults(Faults::default());
    assert_eq!(Worker::new(&machine, 0, &opened).read("0"), Ok(content(0)));
    machine.check_violations();
}

#[test]
fn a_catalogue_that_cannot_be_read_is_an_error_of_its_namespace() {
    let machine = machine(&[1, 1]);
    machine.make_store(7, &[(1, 1), (2, 1)]);
    machine.emulated(2).set_faults(Faults {
        error_chance: diskmap::sim::CHANCE_SCALE,
        // Unrecovered Read Error.
        statuses: vec![Status::from_entry(0x281 << 1)],
        ..Faults::default()
    });
    let error = machine
        .open("nvme:0000:01:00.0,nvme:0000:02:00.0")
        .unwrap_err();
    assert!(error.starts_with("PATH nvme:0000:02:00.0: "), "{error}");
    assert!(error.contains("atlas nvme unbind"), "{error}");
    machine.check_violations();
}

#[test]
fn a_controller_that_fails_while_serving_fails_its_reads_only() {
    let machine = machine(&[1, 1]);
    machine.make_store(7, &[(1, 1), (2, 1)]);
    let opened = machine.open("nvme:0000:01:00.0,nvme:0000:02:00.0").unwrap();
    let mut worker = Worker::new(&machine, 0, &opened);
    machine.emulated(2).set_gone(true);
    assert_eq!(worker.read("1"), Err(DiskError::Io(libc::ENODEV)));
    assert_eq!(worker.read("0"), Ok(content(0)));
    let Some(DiskNotice::Failed { controller, .. }) = worker.disk.poll_notice() else {
        panic!("it is told of");
    };
    assert_eq!(&*controller, "0000:02:00.0");
    drop(worker);
    // The other one has its orderly end.
    opened.0.shut_down();
    assert_eq!(machine.emulated(1).counters().shutdowns, 1);
}

#[test]
fn controllers_are_shut_down_together_and_waited_for_until_a_limit() {
    let machine = machine(&[1, 1]);
    machine.make_store(7, &[(1, 1), (2, 1)]);
    let opened = machine.open("nvme:0000:01:00.0,nvme:0000:02:00.0").unwrap();
    let begun = machine.now();
    opened.0.shut_down();
    assert!(machine.now().since(begun) < END_MAX);
    for number in [1, 2] {
        assert_eq!(machine.emulated(number).counters().shutdowns, 1);
    }
    drop(opened);

    let opened = machine.open("nvme:0000:01:00.0,nvme:0000:02:00.0").unwrap();
    // It never stops.
    machine.emulated(2).set_faults(Faults {
        stops_refused: u32::MAX,
        is_function_reset_refused: true,
        ..Faults::default()
    });
    let begun = machine.now();
    opened.0.shut_down();
    assert!(machine.now().since(begun) <= END_MAX + Duration::from_millis(1));
    assert_eq!(machine.emulated(1).counters().shutdowns, 2);
}
