//! The NVMe driver against an emulated controller that does whatever bytes say.
//!
//! An input is a head (what the controller is, and how it misbehaves), a number of actions of the
//! driver's user, and the rest, by which the controller makes its choices: latencies, orders, errors,
//! forged completions. Whatever they are, the driver does not panic, does nothing that the emulated
//! controller objects to, brings the bytes that are stored, and completes what it accepted once. Only a
//! controller that nothing can stop keeps its slots.
//!
//! A controller that lies about what it is (its capabilities, its data of Identify) makes the driver
//! do what it then objects to: of such a run only panics, completions and slots count.
//!
//! Bounded by [`ACTIONS_MAX`] and [`STEPS_MAX`].

use std::cell::Cell;
use std::collections::BTreeMap;

use clock::{Duration, Instant};
use diskmap::nvme::emulated::{
    AbortBehaviour, Emulated, EmulatedConfig, EmulatedMemory, EmulatedRegisters, EmulatedSlots,
    Faults,
};
use diskmap::nvme::{
    ADMIN_MEMORY_BYTES, Controller, ControllerError, ControllerState, Flush, NamespaceRange, Nvme,
    NvmeConfig, Status, memory_bytes,
};
use diskmap::sim::CHANCE_SCALE;
use diskmap::{Completion, Disk as _, FileIndex, FileLimits, FileSource, Read, Write};
use memory::{Arena, ArenaConfig, PageKind};

/// Most actions of an input.
const ACTIONS_MAX: usize = 255;
/// Most steps until nothing is in flight; a reset takes some 30, and a command is reissued 4 times.
const STEPS_MAX: u32 = 100_000;
/// How time passes where nothing but timeouts is left: CAP.TO is up to 127 s, for each of nine attempts.
const COARSE: Duration = Duration::from_millis(20);
/// Steps that are as short as the driver asks for.
const FINE_STEPS: u32 = 2000;
/// Reads are of the first half of the namespace, writes of the second.
const HALF_BYTES: u64 = 32 << 20;
/// Payload of a slot: more than two pages, so that there are PRP lists.
const SLOT_BYTES: u32 = 16_384;
/// Most commands in flight.
const QUEUE_DEPTH_MAX: u16 = 32;
/// The only namespace.
const NAMESPACE: u32 = 1;

thread_local! {
    /// The arena of the last run, all of whose slots came back: mapping one takes longer than most runs.
    static SPARE_ARENA: Cell<Option<Arena>> = const { Cell::new(None) };
}

/// Takes bytes from the front; zeroes when none are left.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// A chance in millionths: never if the byte is 0.
    fn chance(&mut self) -> u32 {
        u32::from(self.byte()) * (CHANCE_SCALE / 256)
    }
}

/// What the first bytes say.
struct Plan {
    config: EmulatedConfig,
    faults: Faults,
    queue_depth: u16,
    /// It does not lie about what it is.
    is_honest: bool,
}

fn plan(input: &mut Input<'_>) -> Plan {
    let shape = input.byte();
    let block_shift = if shape & 1 == 0 { 9 } else { 12 };
    let mut config = EmulatedConfig {
        transfer_shift: shape >> 1 & 3,
        doorbell_stride: shape >> 4,
        queue_entries_max: 2 + u32::from(input.byte()),
        ..EmulatedConfig::new(7, block_shift)
    };
    let queue_depth = 1 + u16::from(input.byte()) % QUEUE_DEPTH_MAX;
    let lie = input.byte();
    if lie >= 192 {
        // One bit of CAP is another.
        let sound = u64::from(config.queue_entries_max - 1) | 2 << 24 | 1 << 37;
        config.capabilities = Some(sound ^ 1 << (lie - 192));
    }
    let [error, stuck, late] = [0; 3].map(|_: u32| input.chance());
    let faults = Faults {
        latency_max: Duration::from_micros(100 + u64::from(late) * 10),
        error_chance: error,
        stuck_chance: stuck,
        duplicate_chance: input.chance(),
        unknown_chance: input.chance(),
        wrong_queue_chance: input.chance(),
        wrong_head_chance: input.chance(),
        old_phase_chance: input.chance(),
        admin_stuck_chance: input.chance() / 8,
        admin_error_chance: input.chance() / 8,
        identify_garbage_chance: input.chance(),
        abort: match input.byte() % 4 {
            0 => AbortBehaviour::Works,
            1 => AbortBehaviour::NotAborted,
            2 => AbortBehaviour::Fails,
            _ => AbortBehaviour::NeverCompletes,
        },
        stops_refused: u32::from(input.byte() % 8),
        is_function_reset_refused: input.byte() & 1 != 0,
        starts_ignored: u32::from(input.byte() % 4),
        statuses: statuses(input.byte()),
        ..Faults::default()
    };
    Plan {
        is_honest: config.capabilities.is_none() && faults.identify_garbage_chance == 0,
        config,
        faults,
        queue_depth,
    }
}

/// Statuses of one class, as completion queue entries have them.
fn statuses(class: u8) -> Vec<Status> {
    let codes: [u16; 3] = match class % 4 {
        0 => [0x0006, 0x0004, 0x0082],
        1 => [0x4002, 0x4080, 0x0080],
        2 => [0x0281, 0x4281, 0x0180],
        _ => [0x0303, 0x07ff, 0x47ff],
    };
    codes.map(|code| Status::from_entry(code << 1)).to_vec()
}

/// What a command that was accepted is expected to do.
#[derive(Clone, Copy, Debug)]
struct Expected {
    /// Where in the namespace; `None` for a flush.
    range: Option<(u64, u32)>,
}

/// The driver's user.
struct User {
    emulated: Emulated,
    controller: Controller<EmulatedRegisters, EmulatedMemory>,
    disk: Nvme<EmulatedRegisters, EmulatedMemory, EmulatedSlots>,
    arena: Arena,
    file: FileIndex,
    limits: FileLimits,
    block_shift: u8,
    now: Instant,
    next_token: u64,
    expected: BTreeMap<u64, Expected>,
    is_honest: bool,
}

/// Runs one input.
///
/// # Panics
/// If the driver breaks a promise.
pub fn drive_fuzzed_controller(bytes: &[u8]) {
    drive(bytes);
}

/// The same; how many commands were accepted.
fn drive(bytes: &[u8]) -> u64 {
    let mut input = Input(bytes);
    let plan = plan(&mut input);
    let action_count = usize::from(input.byte())
        .min(ACTIONS_MAX)
        .min(input.0.len());
    let (actions, script) = input.0.split_at(action_count);
    let is_honest = plan.is_honest;
    let emulated = Emulated::with_script(plan.config.clone(), script.to_vec());
    let mut accepted = 0;
    if let Some(mut user) = bring_up(&emulated, &plan) {
        let mut actions = Input(actions);
        while !actions.0.is_empty() {
            user.act(&mut actions);
        }
        user.finish();
        accepted = user.next_token;
        let arena = user.arena;
        if arena.free_count() == arena.slot_count() {
            SPARE_ARENA.set(Some(arena));
        }
    }
    let violations = emulated.violations();
    assert!(!is_honest || violations.is_empty(), "{violations:#?}");
    accepted
}

/// Until there is a queue pair with an open range; `None` if the driver refuses the controller.
fn bring_up(emulated: &Emulated, plan: &Plan) -> Option<User> {
    emulated.set_faults(plan.faults.clone());
    let memory = emulated.map_memory(ADMIN_MEMORY_BYTES);
    let mut now = Instant::from_millis(1);
    let controller = Controller::new(emulated.registers(), memory, 1, now).ok()?;
    let mut steps = 0;
    while controller.poll(now) == ControllerState::Pending {
        steps += 1;
        assert!(steps < STEPS_MAX, "it is pending for ever");
        now += COARSE;
        emulated.advance(now);
    }
    if let ControllerState::Failed(error) = controller.poll(now) {
        assert!(!error.to_string().is_empty());
        return None;
    }
    let arena = SPARE_ARENA.take().unwrap_or_else(|| {
        let arena = Arena::new(ArenaConfig {
            slot_bytes: SLOT_BYTES,
            pages: PageKind::Ordinary,
            ..ArenaConfig::new(u32::from(QUEUE_DEPTH_MAX) + 1)
        });
        arena.expect("some MiB")
    });
    let config = NvmeConfig {
        queue_depth: plan.queue_depth,
        ..NvmeConfig::default()
    };
    let memory = emulated.map_memory(memory_bytes(plan.queue_depth, &arena));
    let slots = emulated.map_slots(&arena);
    let mut disk = Nvme::new(&controller, 1, memory, slots, &arena, config).ok()?;
    let range = NamespaceRange {
        controller: 0,
        namespace_id: NAMESPACE,
        start_bytes: 0,
        length_bytes: 2 * HALF_BYTES,
    };
    let (file, limits) = disk.open(FileSource::Namespace(range)).ok()?;
    Some(User {
        block_shift: plan.config.namespaces[0].block_shift,
        emulated: emulated.clone(),
        controller,
        disk,
        arena,
        file,
        limits,
        now,
        next_token: 0,
        expected: BTreeMap::new(),
        is_honest: plan.is_honest,
    })
}

impl User {
    fn act(&mut self, actions: &mut Input<'_>) {
        match actions.byte() % 12 {
            0..=2 => {
                let (at, length) = (actions.byte(), actions.byte());
                self.read(at, length);
            }
            3 => {
                let length = actions.byte();
                self.write(length);
            }
            4 => self.flush(),
            5 => self.disk.sqsync(self.now).expect("never fails"),
            6 => {
                self.step();
                self.consume(usize::MAX);
            }
            7 => {
                self.now += Duration::from_millis(u64::from(actions.byte()) * 64);
                self.emulated.advance(self.now);
                self.consume(usize::MAX);
            }
            8 => self.consume(1),
            9 => self.emulated.set_fatal(),
            10 => self.emulated.set_gone(actions.byte() & 1 != 0),
            _ => match actions.byte() % 8 {
                0 => self.controller.begin_shutdown(self.now),
                1 => self.emulated.set_faults(Faults::default()),
                _ => {
                    self.disk.poll(self.now);
                }
            },
        }
    }

    /// Whole blocks, at most a slot.
    fn length(&self, byte: u8) -> u32 {
        let block_bytes = self.limits.block_bytes;
        (1 + u32::from(byte) % (SLOT_BYTES / block_bytes)) * block_bytes
    }

    fn read(&mut self, at: u8, length: u8) {
        let Some(slot) = self.arena.reserve() else {
            return;
        };
        let offset_bytes = u64::from(at) * 4096;
        let length_bytes = self.length(length);
        let read = Read {
            file: self.file,
            offset_bytes,
            length_bytes,
            slot,
            token: self.next_token,
        };
        match self.disk.read(&mut self.arena, read) {
            Ok(()) => self.expect(Some((offset_bytes, length_bytes))),
            Err(read) => self.arena.release(read.slot),
        }
    }

    /// Each write has a place of its own.
    fn write(&mut self, length: u8) {
        let Some(slot) = self.arena.reserve() else {
            return;
        };
        let length_bytes = self.length(length);
        let offset_bytes = HALF_BYTES + self.next_token * u64::from(SLOT_BYTES);
        let mut slot = slot.into_reading().into_filled(length_bytes);
        self.arena.payload_mut(&mut slot).fill(length | 1);
        let write = Write {
            file: self.file,
            offset_bytes,
            length_bytes,
            slot,
            token: self.next_token,
        };
        match self.disk.write(&mut self.arena, write) {
            Ok(()) => self.expect(Some((offset_bytes, length_bytes))),
            Err(write) => self.arena.release(write.slot.into_free()),
        }
    }

    fn flush(&mut self) {
        let Some(slot) = self.arena.reserve() else {
            return;
        };
        let (file, token) = (self.file, self.next_token);
        match self.disk.flush(Flush { file, slot, token }) {
            Ok(()) => self.expect(None),
            Err(flush) => self.arena.release(flush.slot),
        }
    }

    fn expect(&mut self, range: Option<(u64, u32)>) {
        self.expected.insert(self.next_token, Expected { range });
        self.next_token += 1;
    }

    /// Lets time pass until the next thing happens; false if nothing will.
    fn step(&mut self) -> bool {
        let next = clock::earlier(self.emulated.next_event(), self.disk.next_deadline());
        if let Some(next) = next {
            self.now = next.max(self.now);
            self.emulated.advance(self.now);
        }
        next.is_some()
    }

    fn consume(&mut self, completions_max: usize) {
        let Self {
            disk,
            arena,
            expected,
            emulated,
            block_shift,
            is_honest,
            ..
        } = self;
        let sink = &mut |arena: &mut Arena, Completion { token, result }: Completion| {
            let Some(Expected { range }) = expected.remove(&token) else {
                panic!("token {token} completed without being in flight");
            };
            let slot = match (result, range) {
                (Ok(slot), Some((offset_bytes, length_bytes))) if *is_honest => {
                    let first_block = offset_bytes >> *block_shift;
                    let stored = emulated.stored(NAMESPACE, first_block, length_bytes as usize);
                    assert!(arena.payload(&slot) == stored, "other bytes than stored");
                    slot.into_free()
                }
                (Ok(slot), _) => slot.into_free(),
                (Err((slot, _)), _) => slot,
            };
            arena.release(slot);
        };
        let count = disk.consume_completions(self.now, arena, completions_max, sink);
        assert!(count <= completions_max, "more completions than asked for");
    }

    /// From now on the controller is sound, as far as it is alive: everything completes.
    fn finish(&mut self) {
        self.emulated.set_faults(Faults::default());
        self.disk.sqsync(self.now).expect("never fails");
        let mut steps = 0;
        // Without a deadline the driver waits for nothing: nothing stops the controller, which keeps what it has.
        while self.disk.in_flight() > 0 && self.disk.next_deadline().is_some() && self.step() {
            steps += 1;
            assert!(steps < STEPS_MAX, "commands never complete");
            if steps > FINE_STEPS {
                self.now += COARSE;
                self.emulated.advance(self.now);
            }
            self.consume(usize::MAX);
        }
        self.consume(usize::MAX);
        let lost = self.arena.slot_count() - self.arena.free_count();
        assert_eq!(lost, self.disk.in_flight(), "slots were lost");
        assert_eq!(lost, self.expected.len(), "tokens were lost");
        let failed = ControllerState::Failed(ControllerError::StopTimeout);
        assert!(
            lost == 0 || self.controller.poll(self.now) == failed,
            "{lost} commands of a controller that was stopped"
        );
        // A runaway that completes them after all gives their slots back.
        self.emulated.complete_stuck();
        self.now += COARSE;
        self.emulated.advance(self.now);
        self.consume(usize::MAX);
    }
}

/// Seed inputs: sound and faulty controllers, each with reads and writes.
#[must_use]
pub fn controller_seeds() -> Vec<Vec<u8>> {
    let work: Vec<u8> = [
        0, 3, 31, 3, 7, 4, 5, 0, 9, 0, 6, 6, 1, 8, 30, 5, 7, 1, 7, 255, 2, 0, 0, 5, 6, 7, 200,
    ]
    .into();
    let mut seeds = Vec::new();
    let scripts = |fault| [37, 101, 29, 0].map(|factor| (fault, factor));
    for (fault, factor) in (0..19).flat_map(scripts) {
        // Shape, entries, depth, lie, error, stuck, late, and so on: one of them is set.
        let mut head = vec![0x02, 14, 7, 0];
        head.extend([0; 16]);
        head[4 + fault % 16] = 128;
        if fault >= 16 {
            head[3] = 200 + u8::try_from(fault).unwrap_or(0);
        }
        let count = u8::try_from(work.len()).unwrap_or(u8::MAX);
        let script = (0..200_u8).map(|byte: u8| byte.wrapping_mul(factor));
        seeds.push([&head[..], &[count], &work, &script.collect::<Vec<_>>()].concat());
    }
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_is_survived() {
        let accepted = controller_seeds().into_iter().map(|seed| drive(&seed));
        let working = accepted.filter(|accepted| *accepted > 5).count();
        assert!(working >= 48, "{working} seeds have commands");
        assert_eq!(drive(&[]), 0);
    }

    #[test]
    fn random_inputs_are_survived() {
        let mut word = 1_u64;
        for _ in 0..300 {
            let mut input = Vec::new();
            for _ in 0..60 {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // Many zeroes, so that few faults come at once.
                let bytes = word.to_be_bytes();
                let mask = if bytes[0] & 1 == 0 { 0 } else { 0xff };
                input.extend(bytes[..4].iter().map(|byte| byte & mask));
            }
            drive_fuzzed_controller(&input);
        }
    }
}
