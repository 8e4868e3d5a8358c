//! The driver against the emulated controller.

mod bring_up;
mod matrix;
mod queue_pair;
mod queue_pairs;
mod recovery;

use std::collections::BTreeMap;

use memory::ArenaConfig;

use clock::Instant;

use super::canary::Fault;
use super::emulated::{
    AbortBehaviour, Emulated, EmulatedConfig, EmulatedMemory, EmulatedRegisters, EmulatedSlots,
    Faults,
};
use super::status::REISSUES_MAX;
use super::*;
use crate::sim::CHANCE_SCALE;
use crate::{Completion, Disk as _, DiskError, FileLimits, FileSource, Read, Write};

pub(super) type TestDisk = Nvme<EmulatedRegisters, EmulatedMemory, EmulatedSlots>;
pub(super) type TestController = Controller<EmulatedRegisters, EmulatedMemory>;

/// More than the longest run of the matrix needs (30,000).
const STEPS_MAX: u32 = 60_000;

/// Longer than any recovery takes.
const PATIENCE: Duration = Duration::from_secs(600);

/// A controller, brought up or not, as a test sees it.
pub(super) struct Host {
    emulated: Emulated,
    controller: TestController,
    now: Instant,
}

impl Host {
    pub(super) fn new(emulated: Emulated, queue_pairs: u16) -> Result<Self, ControllerError> {
        let memory = emulated.map_memory(ADMIN_MEMORY_BYTES);
        let now = Instant::from_millis(1);
        let controller = Controller::new(emulated.registers(), memory, queue_pairs, now)?;
        Ok(Self {
            emulated,
            controller,
            now,
        })
    }

    pub(super) fn wait(&mut self, time: Duration) {
        self.now += time;
        self.emulated.advance(self.now);
    }

    /// Polls until the controller is no longer on its way.
    pub(super) fn settle(&mut self) -> ControllerState {
        let end = self.now + PATIENCE;
        loop {
            match self.controller.poll(self.now) {
                ControllerState::Pending if self.now < end => {
                    self.wait(Duration::from_millis(1));
                }
                state => return state,
            }
        }
    }
}

/// A worker: an arena, its queue pair, and what it has in flight.
pub(super) struct Bench {
    emulated: Emulated,
    controller: TestController,
    disk: TestDisk,
    arena: Arena,
    now: Instant,
    file: FileIndex,
    block_bytes: u32,
    next_token: u64,
    /// Offset and length of what was accepted and is not completed.
    expected: BTreeMap<u64, Expected>,
    /// Errors of completed commands.
    errors: Vec<DiskError>,
    completed: u64,
    steps: u32,
}

#[derive(Clone, Copy, Debug)]
struct Expected {
    offset_bytes: u64,
    length_bytes: u32,
    /// What a write writes.
    byte: Option<u8>,
}

impl Bench {
    pub(super) fn new(config: EmulatedConfig, disk: NvmeConfig) -> Self {
        Self::with_canary(config, disk, Canary::default())
    }

    pub(super) fn with_canary(config: EmulatedConfig, disk: NvmeConfig, canary: Canary) -> Self {
        let block_bytes = 1 << config.namespaces[0].block_shift;
        let mut host = Host::new(Emulated::new(config), 1).expect("a sound controller");
        assert_eq!(host.settle(), ControllerState::Ready);
        let mut arena_config = ArenaConfig::new(u32::from(disk.queue_depth) + 8);
        arena_config.pages = memory::PageKind::Ordinary;
        let arena = Arena::new(arena_config).expect("some MiB");
        let memory = host
            .emulated
            .map_memory(memory_bytes(disk.queue_depth, &arena));
        let slots = host.emulated.map_slots(&arena);
        let disk =
            Nvme::with_canary(&host.controller, 1, memory, slots, &arena, disk, canary).unwrap();
        let mut bench = Self {
            emulated: host.emulated,
            controller: host.controller,
            disk,
            arena,
            now: host.now,
            file: FileIndex(0),
            block_bytes,
            next_token: 0,
            expected: BTreeMap::new(),
            errors: Vec::new(),
            completed: 0,
            steps: 0,
        };
        bench.file = bench.open(0, 64 << 20).expect("a sound namespace").0;
        bench
    }

    pub(super) fn open(
        &mut self,
        start_bytes: u64,
        length_bytes: u64,
    ) -> Result<(FileIndex, FileLimits), DiskError> {
        self.disk.open(FileSource::Namespace(NamespaceRange {
            controller: 0,
            namespace_id: 1,
            start_bytes,
            length_bytes,
        }))
    }

    /// Enqueues a read; false if the queue is full.
    pub(super) fn read(&mut self, offset_bytes: u64, length_bytes: u32) -> bool {
        let slot = self.arena.reserve().expect("a free slot");
        let read = Read {
            file: self.file,
            offset_bytes,
            length_bytes,
            slot,
            token: self.next_token,
        };
        if let Err(read) = self.disk.read(&mut self.arena, read) {
            self.arena.release(read.slot);
            return false;
        }
        self.expect(Expected {
            offset_bytes,
            length_bytes,
            byte: None,
        });
        true
    }

    /// Enqueues a write of equal bytes; false if the queue is full.
    pub(super) fn write(&mut self, offset_bytes: u64, length_bytes: u32, byte: u8) -> bool {
        let slot = self.arena.reserve().expect("a free slot");
        let mut slot = slot.into_reading().into_filled(length_bytes);
        self.arena.payload_mut(&mut slot).fill(byte);
        let write = Write {
            file: self.file,
            offset_bytes,
            length_bytes,
            slot,
            token: self.next_token,
        };
        if let Err(write) = self.disk.write(&mut self.arena, write) {
            self.arena.release(write.slot.into_free());
            return false;
        }
        self.expect(Expected {
            offset_bytes,
            length_bytes,
            byte: Some(byte),
        });
        true
    }

    fn expect(&mut self, expected: Expected) {
        self.expected.insert(self.next_token, expected);
        self.next_token += 1;
    }

    pub(super) fn submit(&mut self) {
        self.disk.sqsync(self.now).expect("never fails");
    }

    /// Consumes; an error says what is wrong with a completion.
    pub(super) fn consume(&mut self, completions_max: usize) -> Result<usize, String> {
        let mut wrong = None;
        let slots_address = self.disk.slots.bus_address();
        let slot_memory = self.arena.slot_memory();
        let Self {
            disk,
            arena,
            expected,
            errors,
            emulated,
            completed,
            ..
        } = self;
        let count = disk.consume_completions(
            self.now,
            arena,
            completions_max,
            &mut |arena, Completion { token, result }| {
                *completed += 1;
                let Some(expected) = expected.remove(&token) else {
                    wrong = Some(format!("token {token} completed without being in flight"));
                    return;
                };
                if let Err(text) = check(arena, emulated, expected, &result) {
                    wrong = Some(text);
                }
                let slot = match result {
                    Ok(slot) => slot.into_free(),
                    Err((slot, error)) => {
                        errors.push(error);
                        slot
                    }
                };
                let offset = slot.index() as usize * slot_memory.stride_bytes();
                let payload = offset + slot_memory.payload_offset_bytes(slot.index());
                if emulated.uses_page(slots_address + payload as u64) {
                    let text = "a slot came back that the controller still uses";
                    wrong = Some(String::from(text));
                }
                arena.release(slot);
            },
        );
        let violations = self.emulated.violations();
        match wrong {
            Some(text) => Err(text),
            None if violations.is_empty() => Ok(count),
            None => Err(violations.join("\n")),
        }
    }

    /// Lets time pass until the next thing happens; false if nothing will.
    pub(super) fn step(&mut self) -> bool {
        let next = clock::earlier(self.emulated.next_event(), self.disk.next_deadline());
        self.steps += 1;
        let Some(next) = next.filter(|_| self.steps < STEPS_MAX) else {
            return false;
        };
        self.now = next.max(self.now);
        self.emulated.advance(self.now);
        true
    }

    /// Consumes until nothing is in flight, and checks that nothing is lost.
    pub(super) fn finish(&mut self) -> Result<(), String> {
        self.submit();
        while self.disk.in_flight() > 0 {
            if !self.step() {
                return Err(format!("{} commands never complete", self.disk.in_flight()));
            }
            self.consume(usize::MAX)?;
        }
        self.check_quiet()
    }

    pub(super) fn check_quiet(&self) -> Result<(), String> {
        if !self.expected.is_empty() {
            return Err(format!("{} tokens never completed", self.expected.len()));
        }
        if self.arena.free_count() != self.arena.slot_count() {
            return Err(String::from("slots were lost"));
        }
        let violations = self.emulated.violations();
        if violations.is_empty() {
            Ok(())
        } else {
            Err(violations.join("\n"))
        }
    }
}

fn check(
    arena: &Arena,
    emulated: &Emulated,
    expected: Expected,
    result: &Result<memory::FilledSlot, (FreeSlot, DiskError)>,
) -> Result<(), String> {
    let Ok(slot) = result else {
        return Ok(());
    };
    let bytes = arena.payload(slot);
    let block_shift = emulated_block_shift(emulated);
    let first_block = expected.offset_bytes >> block_shift;
    let stored = emulated.stored(1, first_block, expected.length_bytes as usize);
    if bytes != stored {
        return Err(format!("other bytes than stored: {expected:?}"));
    }
    match expected.byte {
        Some(byte) if stored.iter().any(|it| *it != byte) => {
            Err(format!("a write that was not stored: {expected:?}"))
        }
        _ => Ok(()),
    }
}

fn emulated_block_shift(emulated: &Emulated) -> u8 {
    emulated.config().namespaces[0].block_shift
}
