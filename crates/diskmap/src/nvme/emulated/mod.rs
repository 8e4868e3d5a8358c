//! An NVMe controller in ordinary memory, for tests: it does what the specification says, and on request
//! what it does not.
//!
//! It executes what the driver sends, at virtual times ([`Emulated::advance`]), in an order that its seed
//! or a script decides. [`Faults`] make it slow, wrong, stuck, fatal or gone. A command's data moves when
//! it completes, so a slot that is reused before is overwritten, and a completion that is believed too
//! early brings old bytes.
//!
//! **It checks the driver, too**: entries with wrong PRPs or fields, doorbells out of range or of no
//! queue, memory that is not mapped, a slot used by two commands, configuration at the wrong time. Each is
//! a line of [`Emulated::violations`], and a test that finds one has failed.
//!
//! It does not do what a driver cannot detect: to complete a command that it has not executed, with its
//! right identifier, as a success. Slots are copied to it and back ([`DmaSlots`]), so that it needs
//! no unsafe code. Bounded by [`EmulatedConfig`].

mod bus;
mod choices;
mod execute;
mod faults;
mod front;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clock::{Duration, Instant};
use memory::{Arena, FilledSlot, SlotMemory};

use super::access::{DmaMemory, DmaSlots, Registers};
use super::command::CompletionEntry;
use crate::sim::fill_pattern;
use bus::Bus;
use choices::Choices;
pub use faults::{AbortBehaviour, Faults};

/// Most violations that are kept.
const VIOLATIONS_MAX: usize = 32;

/// A namespace of an emulated controller: byte *n* of it is `pattern_byte(seed, n)` until it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EmulatedNamespace {
    /// Namespace Identifier.
    pub id: u32,
    /// Bytes of a block, as a power of two.
    pub block_shift: u8,
    /// Blocks.
    pub block_count: u64,
    /// Bytes of metadata for each block.
    pub metadata_bytes: u16,
    /// Seed of its bytes.
    pub seed: u64,
}

/// What an emulated controller is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EmulatedConfig {
    /// Seed of all choices.
    pub seed: u64,
    /// Its namespaces, by ascending identifier.
    pub namespaces: Vec<EmulatedNamespace>,
    /// Most entries of an I/O queue, 2..=65,536.
    pub queue_entries_max: u32,
    /// CAP.DSTRD.
    pub doorbell_stride: u8,
    /// MDTS.
    pub transfer_shift: u8,
    /// SGLS, of which bits 1:0 count: 0 without SGLs, 1 with, 2 with alignment to dwords.
    pub sgls: u32,
    /// Queue pairs it grants.
    pub queue_pairs: u16,
    /// How long CSTS.RDY takes to follow CC.EN.
    pub ready_latency: Duration,
    /// CAP as a whole, instead of what the fields above say.
    pub capabilities: Option<u64>,
    /// VS.
    pub version: u32,
}

impl EmulatedConfig {
    /// A sound controller with one namespace of 64 MiB in blocks of `1 << block_shift` bytes.
    #[must_use]
    pub fn new(seed: u64, block_shift: u8) -> Self {
        Self {
            seed,
            namespaces: vec![EmulatedNamespace {
                id: 1,
                block_shift,
                block_count: 1 << (26 - block_shift),
                metadata_bytes: 0,
                seed,
            }],
            queue_entries_max: 1024,
            doorbell_stride: 0,
            transfer_shift: 4,
            sgls: 0,
            queue_pairs: 8,
            ready_latency: Duration::from_millis(3),
            capabilities: None,
            version: 0x0001_0400,
        }
    }
}

/// What an emulated controller did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EmulatedCounters {
    /// Reads, writes and flushes fetched.
    pub io_commands: u64,
    /// I/O submission doorbells rung.
    pub doorbells: u64,
    /// Times it went from ready to not ready.
    pub stops: u64,
    /// Commands that an Abort ended.
    pub aborted: u64,
    /// Completions that no command of the driver has caused.
    pub forged: u64,
    /// Commands that ended in an error on request.
    pub failed: u64,
    /// Reads and writes whose data an SGL descriptor named.
    pub sgl_commands: u64,
    /// Commands that are never completed.
    pub stuck: u64,
    /// Flushes executed.
    pub flushes: u64,
    /// Times it was notified of a shutdown.
    pub shutdowns: u64,
}

/// A submission queue as the controller knows it.
#[derive(Clone, Copy, Debug)]
struct Submission {
    address: u64,
    entry_count: u32,
    head: u32,
    completion_queue: u16,
}

/// A completion queue as the controller knows it.
#[derive(Clone, Copy, Debug)]
struct CompletionQueue {
    address: u64,
    entry_count: u32,
    head: u32,
    tail: u32,
    phase: bool,
}

impl CompletionQueue {
    const fn is_full(&self) -> bool {
        (self.tail + 1) % self.entry_count == self.head
    }
}

/// A command that was fetched.
#[derive(Clone, Debug)]
struct Fetched {
    queue_id: u16,
    command_id: u16,
    opcode: u8,
    namespace_id: u32,
    dwords: [u32; 3],
    /// Where its data is: bus addresses and lengths.
    pieces: Vec<(u64, usize)>,
    /// What it will end with.
    status: super::Status,
    result: u32,
}

/// Something that is due at a time.
#[derive(Clone, Debug)]
enum Event {
    /// The command of a queue with an identifier is executed and completed.
    Complete(u16, u16),
    /// An entry for no command is written.
    Forge(u16, CompletionEntry),
    /// CSTS.RDY becomes this.
    Ready(bool),
    /// Shutdown processing is complete.
    ShutDown,
}

/// The registers.
#[derive(Clone, Copy, Debug, Default)]
struct RegisterFile {
    cc: u32,
    aqa: u32,
    asq: u64,
    acq: u64,
    /// Of the pin-based interrupts and those of MSI (INTMS).
    interrupt_mask: u32,
    is_ready: bool,
    is_fatal: bool,
    is_gone: bool,
    /// CSTS.SHST.
    shutdown_status: u32,
    /// It was reset, and the driver has not written CC since: it cannot know.
    is_reset_by_others: bool,
}

#[derive(Debug)]
struct State {
    config: EmulatedConfig,
    faults: Faults,
    choices: Choices,
    now: Instant,
    bus: Bus,
    /// Written to queue memory and not yet fenced.
    is_unfenced: bool,
    registers: RegisterFile,
    submissions: BTreeMap<u16, Submission>,
    completions: BTreeMap<u16, CompletionQueue>,
    fetched: BTreeMap<(u16, u16), Fetched>,
    /// Pages that the data of fetched commands is in.
    pages: BTreeSet<u64>,
    /// By time, a random lot, and the order they came in.
    events: BTreeMap<(Instant, u32, u64), Event>,
    event_count: u64,
    /// The identifier completed last on each queue.
    last_completed: BTreeMap<u16, u16>,
    /// Blocks that were written, by namespace and number.
    written: BTreeMap<(u32, u64), Vec<u8>>,
    violations: Vec<String>,
    counters: EmulatedCounters,
}

impl State {
    fn violation(&mut self, text: impl fmt::Display) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(format!("{:?}: {text}", self.now));
        }
    }

    fn schedule(&mut self, after: Duration, event: Event) {
        let lot = self.choices.below(1 << 16);
        self.event_count += 1;
        let key = (self.now + after, lot, self.event_count);
        self.events.insert(key, event);
    }

    fn latency(&mut self) -> Duration {
        let Faults {
            latency_min,
            latency_max,
            ..
        } = self.faults;
        self.choices.between(latency_min, latency_max)
    }

    fn advance(&mut self, now: Instant) {
        while let Some(entry) = self.events.first_entry() {
            let due = entry.key().0;
            if due > now {
                break;
            }
            let event = entry.remove();
            self.now = self.now.max(due);
            self.handle(event);
        }
        self.now = self.now.max(now);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Ready(is_ready) => self.change_ready(is_ready),
            Event::ShutDown => self.registers.shutdown_status = 0b10,
            // A controller that is gone or broken does nothing any more.
            _ if self.registers.is_gone || self.registers.is_fatal => {}
            Event::Complete(queue_id, command_id) => self.complete(queue_id, command_id),
            Event::Forge(queue_id, entry) => self.forge(queue_id, entry),
        }
    }

    /// Forgets all queues and commands.
    fn clear(&mut self) {
        self.submissions.clear();
        self.completions.clear();
        self.fetched.clear();
        self.pages.clear();
        self.last_completed.clear();
        self.events
            .retain(|_, event| matches!(event, Event::Ready(_) | Event::ShutDown));
    }

    fn content(&self, namespace: &EmulatedNamespace, first_block: u64, bytes: &mut [u8]) {
        let block_bytes = 1_usize << namespace.block_shift;
        for (block, target) in (first_block..).zip(bytes.chunks_mut(block_bytes)) {
            match self.written.get(&(namespace.id, block)) {
                Some(stored) => target.copy_from_slice(&stored[..target.len()]),
                None => fill_pattern(namespace.seed, block << namespace.block_shift, target),
            }
        }
    }
}

/// A handle of an emulated controller; clones are the same controller.
#[derive(Clone)]
pub struct Emulated {
    state: Arc<Mutex<State>>,
}

impl fmt::Debug for Emulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let registers = self.lock().registers;
        f.debug_struct("Emulated")
            .field("registers", &registers)
            .finish_non_exhaustive()
    }
}

impl Emulated {
    /// A controller after power-on, without faults.
    #[must_use]
    pub fn new(config: EmulatedConfig) -> Self {
        let choices = Choices::seeded(config.seed);
        Self::with_choices(config, choices)
    }

    /// The same, with choices that are made by bytes instead of a seed.
    #[must_use]
    pub fn with_script(config: EmulatedConfig, script: Vec<u8>) -> Self {
        Self::with_choices(config, Choices::script(script))
    }

    fn with_choices(config: EmulatedConfig, choices: Choices) -> Self {
        let state = State {
            config,
            faults: Faults::default(),
            choices,
            now: Instant::ZERO,
            bus: Bus::default(),
            is_unfenced: false,
            registers: RegisterFile::default(),
            submissions: BTreeMap::new(),
            completions: BTreeMap::new(),
            fetched: BTreeMap::new(),
            pages: BTreeSet::new(),
            events: BTreeMap::new(),
            event_count: 0,
            last_completed: BTreeMap::new(),
            written: BTreeMap::new(),
            violations: Vec::new(),
            counters: EmulatedCounters::default(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its registers.
    #[must_use]
    pub fn registers(&self) -> EmulatedRegisters {
        EmulatedRegisters {
            controller: self.clone(),
        }
    }

    /// Memory for queues, mapped until it is dropped.
    #[must_use]
    pub fn map_memory(&self, length_bytes: usize) -> EmulatedMemory {
        let (region, bus_address) = self.lock().bus.map(length_bytes);
        EmulatedMemory {
            controller: self.clone(),
            region,
            bus_address,
            length_bytes,
        }
    }

    /// The slots of an arena, mapped until it is dropped.
    #[must_use]
    pub fn map_slots(&self, arena: &Arena) -> EmulatedSlots {
        let slots = arena.slot_memory();
        let length_bytes = slots.stride_bytes() * slots.slot_count() as usize;
        let (region, bus_address) = self.lock().bus.map(length_bytes);
        EmulatedSlots {
            controller: self.clone(),
            region,
            bus_address,
            slots,
        }
    }

    /// Executes what is due.
    pub fn advance(&self, now: Instant) {
        self.lock().advance(now);
    }

    /// When the next thing is due; `None` if nothing is under way.
    #[must_use]
    pub fn next_event(&self) -> Option<Instant> {
        let state = self.lock();
        state.events.first_key_value().map(|((due, ..), _)| *due)
    }

    /// What it is.
    #[must_use]
    pub fn config(&self) -> EmulatedConfig {
        self.lock().config.clone()
    }

    /// Gives a namespace another number of blocks, as another driver might.
    pub fn resize(&self, namespace_id: u32, block_count: u64) {
        let mut state = self.lock();
        let namespaces = &mut state.config.namespaces;
        for namespace in namespaces.iter_mut().filter(|it| it.id == namespace_id) {
            namespace.block_count = block_count;
        }
    }

    /// Behaves differently from now on. What was fetched before keeps its fate.
    pub fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// CSTS.CFS: it does nothing until it is reset.
    pub fn set_fatal(&self) {
        self.lock().registers.is_fatal = true;
    }

    /// It is removed, or comes back as after power-on.
    pub fn set_gone(&self, is_gone: bool) {
        let mut state = self.lock();
        state.clear();
        state.events.clear();
        state.registers = RegisterFile {
            is_gone,
            is_reset_by_others: true,
            ..RegisterFile::default()
        };
    }

    /// What the driver did that a driver must not do.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// Completes what it would never have completed, also after a fatal status.
    pub fn complete_stuck(&self) {
        let mut state = self.lock();
        state.registers.is_fatal = false;
        let keys: Vec<(u16, u16)> = state.fetched.keys().copied().collect();
        for (queue_id, command_id) in keys {
            state.schedule(Duration::ZERO, Event::Complete(queue_id, command_id));
        }
    }

    /// What is stored in a namespace: `length_bytes` from a block on.
    ///
    /// # Panics
    /// If there is no such namespace.
    #[must_use]
    pub fn stored(&self, namespace_id: u32, first_block: u64, length_bytes: usize) -> Vec<u8> {
        let state = self.lock();
        let namespaces = &state.config.namespaces;
        let namespace = namespaces.iter().find(|it| it.id == namespace_id);
        let namespace = namespace.expect("a namespace of this controller");
        let mut bytes = vec![0; length_bytes];
        state.content(namespace, first_block, &mut bytes);
        bytes
    }

    /// Stores bytes in a namespace from a block on, as another driver has before; the last block is
    /// filled with zeros.
    ///
    /// # Panics
    /// If there is no such namespace.
    pub fn store(&self, namespace_id: u32, first_block: u64, bytes: &[u8]) {
        let mut state = self.lock();
        let namespaces = &state.config.namespaces;
        let namespace = namespaces.iter().find(|it| it.id == namespace_id);
        let block_bytes = 1
            << namespace
                .expect("a namespace of this controller")
                .block_shift;
        for (block, content) in (first_block..).zip(bytes.chunks(block_bytes)) {
            let mut content = content.to_vec();
            content.resize(block_bytes, 0);
            state.written.insert((namespace_id, block), content);
        }
    }

    /// Commands that it has not completed.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.lock().fetched.len()
    }

    /// Whether a command that it has not completed uses the page at a bus address.
    #[must_use]
    pub fn uses_page(&self, bus_address: u64) -> bool {
        self.lock().pages.contains(&(bus_address / 4096))
    }

    /// What it did.
    #[must_use]
    pub fn counters(&self) -> EmulatedCounters {
        self.lock().counters
    }
}

/// The registers of an emulated controller.
#[derive(Clone, Debug)]
pub struct EmulatedRegisters {
    controller: Emulated,
}

impl Registers for EmulatedRegisters {
    fn length_bytes(&self) -> u64 {
        // Doorbells of 64 queues at the widest stride, and the admin queues'.
        0x1000 + (4 << 15) * 2 * 66
    }

    fn read_u32(&self, offset_bytes: u64) -> u32 {
        self.controller.lock().read_register(offset_bytes)
    }

    fn read_u64(&self, offset_bytes: u64) -> u64 {
        let mut state = self.controller.lock();
        let low = state.read_register(offset_bytes);
        let high = state.read_register(offset_bytes + 4);
        u64::from(high) << 32 | u64::from(low)
    }

    fn write_u32(&self, offset_bytes: u64, value: u32) {
        self.controller.lock().write_register(offset_bytes, value);
    }

    fn write_u64(&self, offset_bytes: u64, value: u64) {
        self.controller
            .lock()
            .write_wide_register(offset_bytes, value);
    }

    fn reset_function(&self) -> bool {
        self.controller.lock().reset_function()
    }
}

/// Memory for queues of an emulated controller.
#[derive(Debug)]
pub struct EmulatedMemory {
    controller: Emulated,
    region: usize,
    bus_address: u64,
    length_bytes: usize,
}

impl DmaMemory for EmulatedMemory {
    fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    fn bus_address(&self) -> u64 {
        self.bus_address
    }

    fn load_u32(&self, offset_bytes: usize) -> u32 {
        let mut bytes = [0; 4];
        self.read(offset_bytes, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn read(&self, offset_bytes: usize, bytes: &mut [u8]) {
        let mut state = self.controller.lock();
        let region = state.bus.region(self.region);
        bytes.copy_from_slice(&region[offset_bytes..offset_bytes + bytes.len()]);
    }

    fn write(&mut self, offset_bytes: usize, bytes: &[u8]) {
        let mut state = self.controller.lock();
        state.is_unfenced = true;
        let region = state.bus.region(self.region);
        region[offset_bytes..offset_bytes + bytes.len()].copy_from_slice(bytes);
    }

    fn release(&self) {
        self.controller.lock().is_unfenced = false;
    }
}

impl Drop for EmulatedMemory {
    fn drop(&mut self) {
        self.controller.lock().bus.unmap(self.region);
    }
}

/// The slots of an arena, as an emulated controller sees them.
#[derive(Debug)]
pub struct EmulatedSlots {
    controller: Emulated,
    region: usize,
    bus_address: u64,
    slots: SlotMemory,
}

impl EmulatedSlots {
    fn payload_start(&self, slot: &FilledSlot) -> usize {
        let start = slot.index() as usize * self.slots.stride_bytes();
        start + self.slots.payload_offset_bytes(slot.index())
    }
}

impl DmaSlots for EmulatedSlots {
    fn bus_address(&self) -> u64 {
        self.bus_address
    }

    fn sync_for_device(&mut self, arena: &Arena, slot: &FilledSlot) {
        let start = self.payload_start(slot);
        let bytes = arena.payload(slot);
        let mut state = self.controller.lock();
        let region = state.bus.region(self.region);
        region[start..start + bytes.len()].copy_from_slice(bytes);
    }

    fn sync_for_cpu(&mut self, arena: &mut Arena, slot: &mut FilledSlot) {
        let start = self.payload_start(slot);
        let bytes = arena.payload_mut(slot);
        let mut state = self.controller.lock();
        let region = state.bus.region(self.region);
        bytes.copy_from_slice(&region[start..start + bytes.len()]);
    }
}

impl Drop for EmulatedSlots {
    fn drop(&mut self) {
        self.controller.lock().bus.unmap(self.region);
    }
}
