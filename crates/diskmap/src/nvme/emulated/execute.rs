//! The commands of the emulated controller: fetched, checked, executed, completed.

use clock::Duration;

use super::super::command::{
    CNS_ACTIVE_NAMESPACES, CNS_CONTROLLER, CNS_NAMESPACE, CompletionEntry,
    FEATURE_NUMBER_OF_QUEUES, PSDT_SGL, admin, io,
};
use super::{
    AbortBehaviour, CompletionQueue, EmulatedNamespace, Event, Fetched, State, Submission,
};
use crate::nvme::Status;

/// How long a completion waits for room in its queue before it is tried again.
const FULL_DELAY: Duration = Duration::from_micros(20);
/// Longest time from a completion to its duplicate.
const DUPLICATE_DELAY_MAX: Duration = Duration::from_millis(2);
/// A bit of a command identifier that the driver may use to tell issues apart.
const OTHER_GENERATION: u16 = 1 << 10;

/// Bytes of Identify's data that the driver looks at: sizes, formats, limits, a list's beginning.
const TELLING_OFFSETS: [usize; 16] = [
    0, 1, 3, 4, 5, 7, 25, 26, 77, 128, 130, 134, 512, 513, 514, 515,
];

const INVALID_FIELD: Status = Status::new(0, 0x02, true);
const DATA_TRANSFER_ERROR: Status = Status::new(0, 0x04, true);
const ABORT_REQUESTED: Status = Status::new(0, 0x07, false);
const INVALID_QUEUE: Status = Status::new(1, 0x01, true);

/// A little-endian number in an entry.
fn number(entry: &[u8; 64], at: usize) -> u32 {
    u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]])
}

fn wide(entry: &[u8; 64], at: usize) -> u64 {
    u64::from(number(entry, at + 4)) << 32 | u64::from(number(entry, at))
}

impl State {
    /// Fetches the entry at an address, and decides what will become of it.
    pub(super) fn fetch(&mut self, queue_id: u16, address: u64) {
        let mut entry = [0; 64];
        match self.bus.access(address, 64) {
            Ok(bytes) => entry.copy_from_slice(bytes),
            Err(fault) => return self.violation(format_args!("fetches from {fault:?}")),
        }
        let [_, _, low, high, ..] = entry;
        let mut command = Fetched {
            queue_id,
            command_id: u16::from_le_bytes([low, high]),
            opcode: entry[0],
            namespace_id: number(&entry, 4),
            dwords: [40, 44, 48].map(|at| number(&entry, at)),
            pieces: Vec::new(),
            status: Status::SUCCESS,
            result: 0,
        };
        // Dwords 2 to 5 (metadata), and 13 to 15 are 0 in all that this driver sends.
        let reserved = [&entry[8..24], &entry[52..]];
        if reserved.concat().iter().any(|byte| *byte != 0) {
            self.violation(format_args!("reserved fields: {entry:x?}"));
        }
        let key = (queue_id, command.command_id);
        if self.fetched.contains_key(&key) || command.command_id == u16::MAX {
            return self.violation(format_args!("command identifier {key:?} is in use"));
        }
        let prps = (wide(&entry, 24), wide(&entry, 32));
        let flags = entry[1];
        // Admin commands have PRPs (NVMe over PCIe), and so have those without data.
        let may_be_sgl = queue_id > 0 && command.opcode != io::FLUSH;
        if flags != 0 && !(flags == PSDT_SGL && may_be_sgl) {
            self.violation(format_args!("flags {flags:#x}: {entry:x?}"));
        }
        if queue_id == 0 {
            self.start_admin(command, prps);
            return;
        }
        self.counters.io_commands += 1;
        if let Err(text) = self.check_io(&mut command, prps, flags == PSDT_SGL) {
            self.violation(format_args!("{text}: {command:?}"));
            command.status = INVALID_FIELD;
        }
        self.start_io(command);
    }

    fn namespace(&self, id: u32) -> Option<EmulatedNamespace> {
        let namespaces = &self.config.namespaces;
        namespaces.iter().find(|it| it.id == id).copied()
    }

    /// Checks a Read, Write or Flush, and finds where its data is.
    fn check_io(
        &mut self,
        command: &mut Fetched,
        data: (u64, u64),
        is_sgl: bool,
    ) -> Result<(), &'static str> {
        let namespace = self.namespace(command.namespace_id);
        let namespace = namespace.ok_or("no such namespace")?;
        match command.opcode {
            io::FLUSH => return Ok(()),
            io::READ | io::WRITE => {}
            _ => return Err("no such opcode"),
        }
        let [low, high, count] = command.dwords;
        let first_block = u64::from(high) << 32 | u64::from(low);
        if count > 0xffff {
            return Err("flags in dword 12");
        }
        let blocks = u64::from(count) + 1;
        let end = first_block.checked_add(blocks);
        if end.is_none_or(|end| end > namespace.block_count) {
            return Err("blocks out of range");
        }
        let length_bytes = blocks << namespace.block_shift;
        let most = 4096_u64.checked_shl(self.config.transfer_shift.into());
        if self.config.transfer_shift > 0 && most.is_some_and(|most| length_bytes > most) {
            return Err("more than MDTS");
        }
        let length_bytes = usize::try_from(length_bytes).map_err(|_| "too long")?;
        command.pieces = if is_sgl {
            self.counters.sgl_commands += 1;
            self.block_of(data, length_bytes)?
        } else {
            self.walk(data, length_bytes)?
        };
        for (address, _) in &command.pieces {
            if !self.pages.insert(address / 4096) {
                return Err("memory that another command uses");
            }
        }
        Ok(())
    }

    /// Where `length_bytes` are that one SGL Data Block descriptor names, by pages.
    fn block_of(
        &mut self,
        (address, rest): (u64, u64),
        length_bytes: usize,
    ) -> Result<Vec<(u64, usize)>, &'static str> {
        let is_aligned = address % 4 == 0 && rest % 4 == 0;
        match self.config.sgls & 0b11 {
            0b01 => {}
            0b10 if is_aligned => {}
            0b10 => return Err("an SGL descriptor is not aligned"),
            _ => return Err("an SGL descriptor, and SGLs were not offered"),
        }
        // Type and sub type are in the last byte, before them three reserved ones.
        if rest >> 32 != 0 {
            return Err("no SGL Data Block descriptor");
        }
        if rest != length_bytes as u64 {
            return Err("an SGL descriptor of another length than the command");
        }
        if self.bus.access(address, length_bytes).is_err() {
            return Err("an SGL descriptor names memory that is not mapped");
        }
        let mut pieces = Vec::new();
        let (mut next, mut left) = (address, length_bytes);
        while left > 0 {
            let room = usize::try_from(4096 - next % 4096).map_err(|_| "too long")?;
            let length = left.min(room);
            pieces.push((next, length));
            next += length as u64;
            left -= length;
        }
        Ok(pieces)
    }

    /// Where `length_bytes` are that two PRP entries name (Physical Region Page Entry and List).
    fn walk(
        &mut self,
        (prp1, prp2): (u64, u64),
        length_bytes: usize,
    ) -> Result<Vec<(u64, usize)>, &'static str> {
        if prp1 % 4 != 0 {
            return Err("PRP 1 is not aligned");
        }
        let first = usize::try_from(4096 - prp1 % 4096).map_err(|_| "too long")?;
        let mut pieces = vec![(prp1, first.min(length_bytes))];
        let mut left = length_bytes.saturating_sub(first);
        if left == 0 {
            if prp2 != 0 {
                return Err("PRP 2 is reserved here");
            }
        } else if left <= 4096 {
            pieces.push((prp2, left));
        } else {
            if prp2 % 8 != 0 {
                return Err("the PRP list is not aligned");
            }
            let mut list = prp2;
            while left > 0 {
                let mut entry = self.load(list)?;
                if (list + 8) % 4096 == 0 && left > 4096 {
                    if entry % 4096 != 0 {
                        return Err("the next PRP list is not aligned");
                    }
                    list = entry;
                    entry = self.load(list)?;
                }
                pieces.push((entry, left.min(4096)));
                left = left.saturating_sub(4096);
                list += 8;
            }
        }
        for &(address, length) in &pieces {
            if address != prp1 && address % 4096 != 0 {
                return Err("a PRP entry is not aligned");
            }
            if self.bus.access(address, length).is_err() {
                return Err("a PRP entry names memory that is not mapped");
            }
        }
        Ok(pieces)
    }

    fn load(&mut self, address: u64) -> Result<u64, &'static str> {
        let bytes = self.bus.access(address, 8);
        let bytes = bytes.map_err(|_| "the PRP list is not mapped")?;
        let bytes: [u8; 8] = bytes.try_into().map_err(|_| "eight bytes")?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Decides when and how an I/O command ends.
    fn start_io(&mut self, mut command: Fetched) {
        let key = (command.queue_id, command.command_id);
        let latency = self.latency();
        self.forge_before(&command, latency);
        if self.choices.happens(self.faults.error_chance) && !self.faults.statuses.is_empty() {
            command.status = self.draw_status();
            self.counters.failed += 1;
        }
        self.fetched.insert(key, command);
        if self.choices.happens(self.faults.stuck_chance) {
            self.counters.stuck += 1;
        } else {
            self.schedule(latency, Event::Complete(key.0, key.1));
        }
    }

    fn draw_status(&mut self) -> Status {
        let count = u32::try_from(self.faults.statuses.len()).unwrap_or(u32::MAX);
        let at = self.choices.below(count) as usize;
        self.faults.statuses[at]
    }

    /// Completions that the driver must not believe, before the true one.
    fn forge_before(&mut self, command: &Fetched, latency: Duration) {
        let sound = CompletionEntry {
            result: 0,
            submission_head: 0,
            queue_id: command.queue_id,
            command_id: command.command_id,
            status: Status::SUCCESS,
            phase: false,
        };
        let entry_count = self.submissions.get(&command.queue_id);
        let entry_count = entry_count.map_or(0, |queue| queue.entry_count);
        let mut forged = Vec::new();
        if self.choices.happens(self.faults.unknown_chance) {
            let command_id = match self.choices.below(3) {
                0 => u16::try_from(self.choices.below(1 << 16)).unwrap_or(0),
                1 => command.command_id ^ OTHER_GENERATION,
                _ => *self
                    .last_completed
                    .get(&command.queue_id)
                    .unwrap_or(&u16::MAX),
            };
            let submission_head = self.head_of(command.queue_id);
            forged.push(CompletionEntry {
                command_id,
                submission_head,
                ..sound
            });
        }
        if self.choices.happens(self.faults.wrong_queue_chance) {
            forged.push(CompletionEntry {
                queue_id: command.queue_id + 1,
                submission_head: self.head_of(command.queue_id),
                ..sound
            });
        }
        if self.choices.happens(self.faults.wrong_head_chance) {
            let submission_head = u16::try_from(entry_count).unwrap_or(u16::MAX);
            forged.push(CompletionEntry {
                submission_head,
                ..sound
            });
        }
        for entry in forged {
            let after = self.choices.between(Duration::ZERO, latency);
            self.schedule(after, Event::Forge(command.queue_id, entry));
        }
        if self.choices.happens(self.faults.old_phase_chance) {
            self.write_with_old_phase(command.queue_id, sound);
        }
    }

    fn head_of(&self, queue_id: u16) -> u16 {
        let head = self
            .submissions
            .get(&queue_id)
            .map_or(0, |queue| queue.head);
        u16::try_from(head).unwrap_or(u16::MAX)
    }

    /// An entry where the next one will be, that is not new.
    fn write_with_old_phase(&mut self, queue_id: u16, entry: CompletionEntry) {
        let Some((number, queue)) = self.completion_queue_of(queue_id) else {
            return;
        };
        if queue.is_full() {
            return;
        }
        self.counters.forged += 1;
        let entry = CompletionEntry {
            phase: !queue.phase,
            submission_head: self.head_of(queue_id),
            ..entry
        };
        self.write_entry(number, &queue, entry);
    }

    fn completion_queue_of(&self, queue_id: u16) -> Option<(u16, CompletionQueue)> {
        let number = self.submissions.get(&queue_id)?.completion_queue;
        Some((number, *self.completions.get(&number)?))
    }

    fn write_entry(&mut self, number: u16, queue: &CompletionQueue, entry: CompletionEntry) {
        let address = queue.address + u64::from(queue.tail) * 16;
        match self.bus.access(address, 16) {
            Ok(bytes) => bytes.copy_from_slice(&entry.to_bytes()),
            Err(fault) => self.violation(format_args!("completion queue {number} at {fault:?}")),
        }
    }

    /// Writes an entry behind the tail; false if there is no room.
    fn post(&mut self, queue_id: u16, entry: CompletionEntry) -> bool {
        let Some((number, mut queue)) = self.completion_queue_of(queue_id) else {
            return true;
        };
        if queue.is_full() {
            return false;
        }
        // The admin queue always has interrupts, vector 0; I/O queues are created without.
        if number == 0 && self.registers.interrupt_mask & 1 == 0 {
            self.violation("an interrupt, which nobody handles: INTMS has no bit for it");
        }
        let phase = queue.phase;
        self.write_entry(number, &queue, CompletionEntry { phase, ..entry });
        queue.tail += 1;
        if queue.tail == queue.entry_count {
            queue.tail = 0;
            queue.phase = !queue.phase;
        }
        self.completions.insert(number, queue);
        true
    }

    pub(super) fn forge(&mut self, queue_id: u16, entry: CompletionEntry) {
        let is_sound_queue = entry.queue_id == queue_id;
        let entry_count = self.submissions.get(&queue_id);
        let is_sound_head =
            entry_count.is_some_and(|queue| u32::from(entry.submission_head) < queue.entry_count);
        // One that the driver could not tell from a true one would be a lie.
        let is_in_use = self.fetched.contains_key(&(queue_id, entry.command_id));
        if is_sound_queue && is_sound_head && is_in_use {
            return;
        }
        if self.post(queue_id, entry) {
            self.counters.forged += 1;
        }
    }

    /// Executes and completes a command that was not aborted meanwhile.
    pub(super) fn complete(&mut self, queue_id: u16, command_id: u16) {
        let has_room = self
            .completion_queue_of(queue_id)
            .is_some_and(|(_, queue)| !queue.is_full());
        if !has_room {
            self.schedule(FULL_DELAY, Event::Complete(queue_id, command_id));
            return;
        }
        let Some(mut command) = self.fetched.remove(&(queue_id, command_id)) else {
            return;
        };
        for (address, _) in &command.pieces {
            self.pages.remove(&(address / 4096));
        }
        if queue_id == 0 {
            self.execute_admin(&mut command);
        } else if command.status.is_success() {
            self.execute_io(&mut command);
        }
        let entry = CompletionEntry {
            result: command.result,
            submission_head: self.head_of(queue_id),
            queue_id,
            command_id,
            status: command.status,
            phase: false,
        };
        self.last_completed.insert(queue_id, command_id);
        let is_posted = self.post(queue_id, entry);
        debug_assert!(is_posted, "there was room");
        if queue_id != 0 && self.choices.happens(self.faults.duplicate_chance) {
            let after = self.choices.between(Duration::ZERO, DUPLICATE_DELAY_MAX);
            self.schedule(after, Event::Forge(queue_id, entry));
        }
    }

    fn execute_io(&mut self, command: &mut Fetched) {
        if command.opcode == io::FLUSH {
            self.counters.flushes += 1;
            return;
        }
        let Some(namespace) = self.namespace(command.namespace_id) else {
            return;
        };
        let length_bytes = command.pieces.iter().map(|(_, length)| length).sum();
        let mut bytes = vec![0; length_bytes];
        let [low, high, _] = command.dwords;
        let first_block = u64::from(high) << 32 | u64::from(low);
        let is_read = command.opcode == io::READ;
        if is_read {
            self.content(&namespace, first_block, &mut bytes);
        }
        let mut at = 0;
        for &(address, length) in &command.pieces {
            let part = &mut bytes[at..at + length];
            at += length;
            match self.bus.access(address, length) {
                Ok(memory) if is_read => memory.copy_from_slice(part),
                Ok(memory) => part.copy_from_slice(memory),
                Err(fault) => {
                    command.status = DATA_TRANSFER_ERROR;
                    return self.violation(format_args!("data at {fault:?}: {command:?}"));
                }
            }
        }
        if !is_read {
            let blocks = bytes.chunks(1 << namespace.block_shift);
            for (block, stored) in (first_block..).zip(blocks) {
                self.written.insert((namespace.id, block), stored.to_vec());
            }
        }
    }

    /// Decides when and how an admin command ends.
    fn start_admin(&mut self, mut command: Fetched, (prp1, prp2): (u64, u64)) {
        let key = (0, command.command_id);
        if command.opcode == admin::IDENTIFY {
            if prp1 % 4096 != 0 || prp2 != 0 {
                self.violation(format_args!("Identify to {prp1:#x}, {prp2:#x}"));
            }
            command.pieces = vec![(prp1, 4096)];
        } else {
            // The address of a queue, not of data.
            command.namespace_id = 0;
            command.pieces = Vec::new();
            self.create_queue(&mut command, prp1);
        }
        if self.choices.happens(self.faults.admin_error_chance) && !self.faults.statuses.is_empty()
        {
            command.status = self.draw_status();
            self.counters.failed += 1;
        }
        let never =
            command.opcode == admin::ABORT && self.faults.abort == AbortBehaviour::NeverCompletes;
        let latency = self.latency();
        self.fetched.insert(key, command);
        if never || self.choices.happens(self.faults.admin_stuck_chance) {
            self.counters.stuck += 1;
        } else {
            self.schedule(latency, Event::Complete(key.0, key.1));
        }
    }

    /// Create I/O Completion Queue and Create I/O Submission Queue.
    fn create_queue(&mut self, command: &mut Fetched, address: u64) {
        let is_submission = match command.opcode {
            admin::CREATE_SUBMISSION_QUEUE => true,
            admin::CREATE_COMPLETION_QUEUE => false,
            _ => return,
        };
        let [size, attributes, _] = command.dwords;
        let queue_id = u16::try_from(size & 0xffff).unwrap_or(0);
        let entry_count = (size >> 16) + 1;
        let partner = u16::try_from(attributes >> 16).unwrap_or(0);
        let entry_bytes = if is_submission { 64 } else { 16 };
        let length_bytes = entry_count as usize * entry_bytes;
        let is_mapped = self.bus.access(address, length_bytes).is_ok();
        let exists = if is_submission {
            self.submissions.contains_key(&queue_id) || !self.completions.contains_key(&partner)
        } else {
            self.completions.contains_key(&queue_id) || partner != 0
        };
        let is_sound = (2..=self.config.queue_entries_max).contains(&entry_count)
            && (1..=self.config.queue_pairs).contains(&queue_id)
            && address.is_multiple_of(4096)
            && is_mapped
            && attributes & 0xffff == 1
            && !exists;
        if !is_sound {
            self.violation(format_args!("queue at {address:#x}: {command:?}"));
            command.status = INVALID_QUEUE;
            return;
        }
        // It is used only once the command has completed, so it may exist from now on.
        if is_submission {
            let queue = Submission {
                address,
                entry_count,
                head: 0,
                completion_queue: partner,
            };
            self.submissions.insert(queue_id, queue);
            return;
        }
        let is_zeroed = self
            .bus
            .access(address, length_bytes)
            .is_ok_and(|bytes| bytes.iter().all(|byte| *byte == 0));
        if !is_zeroed {
            self.violation("a completion queue that is not zeroed");
        }
        let queue = CompletionQueue {
            address,
            entry_count,
            head: 0,
            tail: 0,
            phase: true,
        };
        self.completions.insert(queue_id, queue);
    }

    fn execute_admin(&mut self, command: &mut Fetched) {
        let [first, second, _] = command.dwords;
        let queue_id = u16::try_from(first & 0xffff).unwrap_or(0);
        match command.opcode {
            _ if !command.status.is_success() => self.undo_create(command, queue_id),
            admin::IDENTIFY => self.identify(command),
            admin::SET_FEATURES => {
                if first != FEATURE_NUMBER_OF_QUEUES || second >> 16 != second & 0xffff {
                    self.violation(format_args!("{command:?}"));
                }
                let granted = u32::from(self.config.queue_pairs) - 1;
                command.result = granted << 16 | granted;
            }
            admin::CREATE_COMPLETION_QUEUE | admin::CREATE_SUBMISSION_QUEUE => {}
            admin::DELETE_SUBMISSION_QUEUE => {
                if queue_id == 0 || self.submissions.remove(&queue_id).is_none() {
                    command.status = INVALID_QUEUE;
                    self.violation(format_args!("{command:?}"));
                }
            }
            admin::DELETE_COMPLETION_QUEUE => {
                let mut users = self.submissions.values();
                let is_used = users.any(|queue| queue.completion_queue == queue_id);
                if is_used || queue_id == 0 || self.completions.remove(&queue_id).is_none() {
                    command.status = INVALID_QUEUE;
                    self.violation(format_args!("{command:?}"));
                }
            }
            admin::ABORT => self.abort(command),
            _ => self.violation(format_args!("{command:?}")),
        }
    }

    /// A queue whose creation fails does not exist.
    fn undo_create(&mut self, command: &Fetched, queue_id: u16) {
        match command.opcode {
            admin::CREATE_SUBMISSION_QUEUE => {
                self.submissions.remove(&queue_id);
            }
            admin::CREATE_COMPLETION_QUEUE => {
                self.completions.remove(&queue_id);
            }
            _ => {}
        }
    }

    fn abort(&mut self, command: &mut Fetched) {
        let which = command.dwords[0];
        let queue_id = u16::try_from(which & 0xffff).unwrap_or(0);
        let command_id = u16::try_from(which >> 16).unwrap_or(0);
        // Dword 0, bit 0: the command was not aborted.
        command.result = 1;
        match self.faults.abort {
            AbortBehaviour::Fails => command.status = Status::new(1, 0x03, false),
            AbortBehaviour::NotAborted | AbortBehaviour::NeverCompletes => {}
            AbortBehaviour::Works => {
                if let Some(aborted) = self.fetched.get_mut(&(queue_id, command_id)) {
                    aborted.status = ABORT_REQUESTED;
                    command.result = 0;
                    self.counters.aborted += 1;
                    self.schedule(Duration::ZERO, Event::Complete(queue_id, command_id));
                }
            }
        }
    }

    fn identify(&mut self, command: &mut Fetched) {
        let mut data = vec![0; 4096];
        match command.dwords[0] {
            CNS_CONTROLLER => self.identify_controller(&mut data),
            CNS_ACTIVE_NAMESPACES => {
                let ids = self.config.namespaces.iter().map(|namespace| namespace.id);
                for (id, target) in ids.zip(data.chunks_exact_mut(4)) {
                    target.copy_from_slice(&id.to_le_bytes());
                }
            }
            CNS_NAMESPACE => {
                if let Some(namespace) = self.namespace(command.namespace_id) {
                    data[..8].copy_from_slice(&namespace.block_count.to_le_bytes());
                    data[128..130].copy_from_slice(&namespace.metadata_bytes.to_le_bytes());
                    data[130] = namespace.block_shift;
                }
            }
            _ => self.violation(format_args!("{command:?}")),
        }
        if self.choices.happens(self.faults.identify_garbage_chance) {
            for _ in 0..=self.choices.below(8) {
                let at = match self.choices.below(2) {
                    0 => TELLING_OFFSETS[self.choices.below(16) as usize],
                    _ => self.choices.below(4096) as usize,
                };
                data[at] = self.choices.below(256).to_le_bytes()[0];
            }
        }
        for &(address, length) in &command.pieces {
            match self.bus.access(address, length) {
                Ok(memory) => memory.copy_from_slice(&data[..length]),
                Err(fault) => self.violation(format_args!("Identify at {fault:?}")),
            }
        }
    }

    fn identify_controller(&self, data: &mut [u8]) {
        let mut text = |range: core::ops::Range<usize>, text: &str| {
            data[range.clone()].fill(b' ');
            data[range][..text.len()].copy_from_slice(text.as_bytes());
        };
        text(4..24, "EMULATED");
        text(24..64, "Atlas emulated controller");
        text(64..72, "1");
        data[77] = self.config.transfer_shift;
        data[512] = 0x66;
        data[513] = 0x44;
        data[536..540].copy_from_slice(&self.config.sgls.to_le_bytes());
    }
}
