//! Admin commands: which is sent next, and what its completion means.

use clock::Instant;

use super::{
    ADMIN_ENTRIES, ADMIN_TIMEOUT, ControllerError, IDENTIFY_OFFSET_BYTES, Inner, Known, Namespace,
    NamespaceError, Phase, State,
};
use crate::nvme::access::{DmaMemory, Registers};
use crate::nvme::command::{
    CNS_ACTIVE_NAMESPACES, CNS_CONTROLLER, CNS_NAMESPACE, CompletionEntry,
    FEATURE_NUMBER_OF_QUEUES, SubmissionEntry, admin,
};
use crate::nvme::identify::{
    ControllerIdentity, IdentifyData, NamespaceFormat, parse_namespace_list,
};
use crate::nvme::{PAGE_BYTES, Status};

/// Physically contiguous, in dword 11 of the commands that create queues. Interrupts stay disabled.
const CONTIGUOUS: u32 = 1;

/// An admin command that the driver sends (NVM Express Base Specification 2.0, Admin Command Set).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AdminCommand {
    /// Identify, CNS 01h.
    IdentifyController,
    /// Set Features, Number of Queues.
    NumberOfQueues,
    /// Identify, CNS 02h.
    ListNamespaces,
    /// Identify, CNS 00h, of a namespace.
    IdentifyNamespace(u32),
    /// Create I/O Completion Queue.
    CreateCompletionQueue(u16),
    /// Create I/O Submission Queue.
    CreateSubmissionQueue(u16),
    /// Delete I/O Submission Queue.
    DeleteSubmissionQueue(u16),
    /// Delete I/O Completion Queue.
    DeleteCompletionQueue(u16),
    /// Abort.
    Abort {
        /// Of which queue pair.
        queue_id: u16,
        /// Which command.
        command_id: u16,
    },
}

/// The admin command that the controller has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::nvme) struct Outstanding {
    command_id: u16,
    deadline: Instant,
    command: AdminCommand,
}

/// Where the queues of a pair are.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(in crate::nvme) struct QueueAddresses {
    pub(in crate::nvme) submission: u64,
    pub(in crate::nvme) completion: u64,
    /// Entries of each.
    pub(in crate::nvme) entry_count: u16,
}

/// How far a queue pair is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(in crate::nvme) enum PairState {
    /// The controller does not know it.
    #[default]
    Absent,
    /// To be made.
    Wanted,
    /// Its completion queue is made.
    HalfMade,
    /// It takes commands.
    Live,
    /// Its submission queue is to be deleted.
    Retired,
    /// Its completion queue is to be deleted.
    HalfDeleted,
    /// The controller refused to make it.
    Refused(ControllerError),
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(in crate::nvme) struct Pair {
    queues: QueueAddresses,
    state: PairState,
}

impl Pair {
    /// Whatever the controller knows of it is to be deleted.
    pub(super) fn retire(&mut self) {
        self.state = match self.state {
            PairState::Live => PairState::Retired,
            PairState::HalfMade => PairState::HalfDeleted,
            PairState::Wanted | PairState::Refused(_) => PairState::Absent,
            other => other,
        };
    }
}

impl<R: Registers, D: DmaMemory> Inner<R, D> {
    /// CSTS.RDY is 1: asks who it is.
    pub(super) fn begin_identify(&mut self) {
        self.identity = None;
        self.namespaces.clear();
        self.queue_pairs_granted = 0;
        self.questions.extend([
            AdminCommand::IdentifyController,
            AdminCommand::NumberOfQueues,
            AdminCommand::ListNamespaces,
        ]);
        self.state = State::Identifying;
    }

    /// Takes a completion, or sends a command; false if there is neither.
    pub(super) fn serve_admin(&mut self, now: Instant) -> bool {
        if let Some(entry) = self.completion.pop(&self.memory) {
            self.completion.ring(&self.registers);
            self.handle_completion(now, entry);
            return true;
        }
        if let Some(outstanding) = self.outstanding {
            let is_late = now >= outstanding.deadline;
            if is_late {
                self.restart(now, ControllerError::AdminTimeout(outstanding.command));
            }
            return is_late;
        }
        if let Some(command) = self.next_command() {
            self.send(now, command);
            return true;
        }
        match self.state {
            State::Identifying => self.finish_identify(),
            State::Deleting => self.notify_shutdown(now),
            _ => return false,
        }
        true
    }

    fn next_command(&mut self) -> Option<AdminCommand> {
        if self.state == State::Identifying {
            return self.questions.pop_front();
        }
        let command_of = |(pair, queue_id): (&Pair, u16)| match pair.state {
            PairState::Wanted => Some(AdminCommand::CreateCompletionQueue(queue_id)),
            PairState::HalfMade => Some(AdminCommand::CreateSubmissionQueue(queue_id)),
            PairState::Retired => Some(AdminCommand::DeleteSubmissionQueue(queue_id)),
            PairState::HalfDeleted => Some(AdminCommand::DeleteCompletionQueue(queue_id)),
            PairState::Absent | PairState::Live | PairState::Refused(_) => None,
        };
        let of_pairs = self.pairs.iter().zip(1..).find_map(command_of);
        of_pairs.or_else(|| {
            let (queue_id, command_id) = self.aborts.pop_front()?;
            self.counters.abort_count += 1;
            Some(AdminCommand::Abort {
                queue_id,
                command_id,
            })
        })
    }

    fn send(&mut self, now: Instant, command: AdminCommand) {
        // FFFFh is reserved for error logs.
        self.next_command_id = (self.next_command_id + 1) % u16::MAX;
        let entry = SubmissionEntry {
            command_id: self.next_command_id,
            ..self.entry_of(command)
        };
        if entry.opcode == admin::IDENTIFY {
            self.memory
                .write(IDENTIFY_OFFSET_BYTES, &[0; PAGE_BYTES as usize]);
        }
        self.submission.push(&mut self.memory, entry);
        self.submission.ring(&self.registers, &self.memory);
        self.outstanding = Some(Outstanding {
            command_id: self.next_command_id,
            deadline: now + ADMIN_TIMEOUT,
            command,
        });
    }

    fn entry_of(&self, command: AdminCommand) -> SubmissionEntry {
        let data = self.memory.bus_address() + IDENTIFY_OFFSET_BYTES as u64;
        let identify = |cns: u32, namespace_id: u32| SubmissionEntry {
            opcode: admin::IDENTIFY,
            namespace_id,
            prp1: data,
            dwords: [cns, 0, 0],
            ..SubmissionEntry::default()
        };
        let queue = |opcode: u8, prp1: u64, dwords: [u32; 2]| SubmissionEntry {
            opcode,
            prp1,
            dwords: [dwords[0], dwords[1], 0],
            ..SubmissionEntry::default()
        };
        let sized = |queue_id: u16| {
            let queues = self.pairs[usize::from(queue_id) - 1].queues;
            let size = u32::from(queues.entry_count - 1) << 16 | u32::from(queue_id);
            (queues, size)
        };
        match command {
            AdminCommand::IdentifyController => identify(CNS_CONTROLLER, 0),
            AdminCommand::ListNamespaces => identify(CNS_ACTIVE_NAMESPACES, 0),
            AdminCommand::IdentifyNamespace(id) => identify(CNS_NAMESPACE, id),
            AdminCommand::NumberOfQueues => {
                let count = u32::from(self.queue_pairs_wanted) - 1;
                let both = count << 16 | count;
                queue(admin::SET_FEATURES, 0, [FEATURE_NUMBER_OF_QUEUES, both])
            }
            AdminCommand::CreateCompletionQueue(id) => {
                let (queues, size) = sized(id);
                let dwords = [size, CONTIGUOUS];
                queue(admin::CREATE_COMPLETION_QUEUE, queues.completion, dwords)
            }
            AdminCommand::CreateSubmissionQueue(id) => {
                let (queues, size) = sized(id);
                let dwords = [size, u32::from(id) << 16 | CONTIGUOUS];
                queue(admin::CREATE_SUBMISSION_QUEUE, queues.submission, dwords)
            }
            AdminCommand::DeleteSubmissionQueue(id) => {
                queue(admin::DELETE_SUBMISSION_QUEUE, 0, [id.into(), 0])
            }
            AdminCommand::DeleteCompletionQueue(id) => {
                queue(admin::DELETE_COMPLETION_QUEUE, 0, [id.into(), 0])
            }
            AdminCommand::Abort {
                queue_id,
                command_id,
            } => {
                let which = u32::from(command_id) << 16 | u32::from(queue_id);
                queue(admin::ABORT, 0, [which, 0])
            }
        }
    }

    fn handle_completion(&mut self, now: Instant, entry: CompletionEntry) {
        let is_sound = entry.queue_id == 0
            && self
                .submission
                .is_plausible_head(entry.submission_head, ADMIN_ENTRIES - 1);
        let answered = self
            .outstanding
            .take_if(|outstanding| is_sound && outstanding.command_id == entry.command_id);
        let Some(Outstanding { command, .. }) = answered else {
            self.counters.stale_admin_completions += 1;
            return;
        };
        if let Err(error) = self.handle_answer(command, entry) {
            self.restart(now, error);
        }
    }

    /// What an answer means; an error means a reset.
    fn handle_answer(
        &mut self,
        command: AdminCommand,
        entry: CompletionEntry,
    ) -> Result<(), ControllerError> {
        let status = entry.status;
        let refusal = ControllerError::Admin { command, status };
        let success = if status.is_success() {
            Ok(())
        } else {
            Err(refusal)
        };
        match command {
            AdminCommand::IdentifyController => {
                success?;
                self.identity = Some(ControllerIdentity::parse(&self.identify_data())?);
            }
            AdminCommand::NumberOfQueues => {
                success?;
                // Submission queues in the lower half, completion queues in the upper, one less each.
                let granted = (entry.result & 0xffff).min(entry.result >> 16) + 1;
                let granted = u16::try_from(granted).unwrap_or(u16::MAX);
                self.queue_pairs_granted = granted.min(self.queue_pairs_wanted);
            }
            AdminCommand::ListNamespaces => {
                success?;
                let ids = parse_namespace_list(&self.identify_data())?;
                let questions = ids.into_iter().map(AdminCommand::IdentifyNamespace);
                self.questions.extend(questions);
            }
            AdminCommand::IdentifyNamespace(id) => self.note_namespace(id, status),
            AdminCommand::CreateCompletionQueue(id) => {
                self.set_pair(id, PairState::Wanted, PairState::HalfMade, success);
            }
            AdminCommand::CreateSubmissionQueue(id) => {
                self.set_pair(id, PairState::HalfMade, PairState::Live, success);
            }
            AdminCommand::DeleteSubmissionQueue(id) => {
                self.set_pair(id, PairState::Retired, PairState::HalfDeleted, Ok(()));
            }
            AdminCommand::DeleteCompletionQueue(id) => {
                self.set_pair(id, PairState::HalfDeleted, PairState::Absent, Ok(()));
            }
            // Whether it worked is seen by the command's own completion, or by its lack.
            AdminCommand::Abort { .. } => {}
        }
        Ok(())
    }

    fn identify_data(&self) -> Box<IdentifyData> {
        let mut data = Box::new([0; PAGE_BYTES as usize]);
        self.memory.read(IDENTIFY_OFFSET_BYTES, &mut data[..]);
        data
    }

    fn note_namespace(&mut self, id: u32, status: Status) {
        let format = if status.is_success() {
            NamespaceFormat::parse(&self.identify_data()).map_err(NamespaceError::from)
        } else {
            Err(NamespaceError::Status(status))
        };
        self.namespaces.push(Namespace { id, format });
    }

    /// Moves a pair on, unless it was retired meanwhile: then what was just made is deleted, too.
    fn set_pair(
        &mut self,
        queue_id: u16,
        from: PairState,
        to: PairState,
        success: Result<(), ControllerError>,
    ) {
        let pair = &mut self.pairs[usize::from(queue_id) - 1];
        match success {
            Err(error) if pair.state == from => pair.state = PairState::Refused(error),
            Err(_) => {}
            Ok(()) if pair.state == from => pair.state = to,
            Ok(()) if to == PairState::HalfMade && pair.state == PairState::Absent => {
                pair.state = PairState::HalfDeleted;
            }
            Ok(()) if to == PairState::Live && pair.state == PairState::HalfDeleted => {
                pair.state = PairState::Retired;
            }
            Ok(()) => {}
        }
    }

    /// All questions are answered.
    fn finish_identify(&mut self) {
        let Some(identity) = self.identity.take() else {
            unreachable!("the first question was answered");
        };
        let found = Known {
            identity,
            namespaces: core::mem::take(&mut self.namespaces),
            queue_pairs: self.queue_pairs_granted,
        };
        if self.known.as_ref().is_some_and(|known| *known != found) {
            self.clear_enable();
            self.fail(ControllerError::Changed, Phase::Dead);
            return;
        }
        self.known = Some(found);
        self.starts = 0;
        self.state = State::Ready;
        self.publish(Phase::Ready);
    }

    /// Asks for a queue pair, or how far it is. Its memory must be zeroed when it is first asked for.
    pub(in crate::nvme) fn attach(&mut self, queue_id: u16, queues: QueueAddresses) -> PairState {
        if self.state != State::Ready {
            return PairState::Absent;
        }
        if queue_id == 0 || queue_id > self.queue_pairs_granted {
            return PairState::Refused(ControllerError::QueuePairs(queue_id));
        }
        let is_being_created = self.is_being_created(queue_id);
        let pair = &mut self.pairs[usize::from(queue_id) - 1];
        if pair.state == PairState::Absent {
            if is_being_created {
                return PairState::Absent;
            }
            *pair = Pair {
                queues,
                state: PairState::Wanted,
            };
        } else if pair.queues != queues {
            return PairState::Refused(ControllerError::QueueInUse(queue_id));
        }
        pair.state
    }

    /// Deletes a queue pair; true once the controller does not know it.
    pub(in crate::nvme) fn detach(&mut self, queue_id: u16) -> bool {
        let pair = &mut self.pairs[usize::from(queue_id) - 1];
        pair.retire();
        pair.state == PairState::Absent && !self.is_being_created(queue_id)
    }

    /// Whether the controller has the command that creates a completion queue, and so its address: of a pair that is
    /// absent, because it was retired since, this queue is deleted as soon as it is there.
    fn is_being_created(&self, queue_id: u16) -> bool {
        let command = self.outstanding.map(|outstanding| outstanding.command);
        command == Some(AdminCommand::CreateCompletionQueue(queue_id))
    }

    /// Whether a command is with the controller or waits to be sent.
    pub(in crate::nvme) fn is_busy(&self) -> bool {
        self.outstanding.is_some() || !self.aborts.is_empty()
    }

    /// Asks for a command to be aborted; false if there are as many waiting as can be.
    pub(in crate::nvme) fn abort(&mut self, queue_id: u16, command_id: u16) -> bool {
        let has_room = self.state == State::Ready && self.aborts.len() < self.pairs.len();
        if has_room {
            self.aborts.push_back((queue_id, command_id));
        }
        has_room
    }
}
