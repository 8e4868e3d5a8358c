//! One controller: brought up, identified, reset, shut down; its queue pairs made and commands aborted.
//!
//! A state machine that [`Controller::poll`] advances; nothing here waits or reads a clock:
//!
//! ```text
//!             CSTS.RDY = 0          CSTS.RDY = 1            all answered
//!  Stopping ──────────────▶ Starting ───────────▶ Identifying ──────────▶ Ready
//!     ▲ CC.EN = 0             │ CC.EN = 1            │                      │ fatal status, a
//!     └───────────────────────┴──────────────────────┴──────────────────────┘ command overdue
//! ```
//!
//! Clones of a [`Controller`] are the same controller: each worker has one, with a queue pair of its own
//! ([`super::Nvme`]). On the data path they share an atomic word that says whether the controller still
//! is the one that their queues were made on; the mutex is only for everything else, and nobody waits
//! for it. After a reset each makes its queues anew and issues again what it had issued.
//!
//! It asks for no asynchronous events and no interrupts, and sends one admin command at a time, so that
//! one abort is in progress at most. Bounded by [`QUEUE_PAIRS_MAX`], [`NAMESPACES_MAX`], and by the
//! attempts and timeouts below.
//!
//! NVM Express Base Specification 2.0: Memory-based Transport Controller Initialization (PCIe), Memory-based
//! Transport Controller Shutdown (PCIe), Controller Level Reset.
//!
//! [`NAMESPACES_MAX`]: super::NAMESPACES_MAX

mod admin;
mod handle;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clock::{Duration, Instant};

use super::access::{DmaMemory, Registers};
use super::canary::Canary;
use super::command::{COMPLETION_ENTRY_BYTES, SUBMISSION_ENTRY_BYTES};
use super::identify::{ControllerIdentity, IdentifyError, NamespaceFormat};
use super::queue::{CompletionRing, SubmissionRing};
use super::registers::{
    ACQ, AQA, ASQ, CAP, CC, CC_ENABLE, CC_ENTRY_SIZES, CC_SHUTDOWN_MASK, CC_SHUTDOWN_NORMAL, CSTS,
    Capabilities, CapabilityError, ControllerStatus, INTMS, VS,
};
use super::{PAGE_BYTES, Status};
pub use admin::AdminCommand;
use admin::{Outstanding, Pair};
pub(super) use admin::{PairState, QueueAddresses};
pub use handle::Controller;

/// Most queue pairs of a controller, and so workers on it.
pub const QUEUE_PAIRS_MAX: u16 = 64;
/// How long an admin command may take before the controller is reset. A guess.
pub const ADMIN_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the controller is asked to stop, each time for as long as CAP.TO, before its function is
/// reset.
pub const STOP_ATTEMPTS_MAX: u32 = 3;
/// How often in a row the controller is started without becoming ready before it counts as failed.
pub const STARTS_MAX: u32 = 3;
/// How long a normal shutdown may take if the controller does not say (RTD3E). A guess.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// Memory for the admin queues and the data of Identify, bytes.
pub const ADMIN_MEMORY_BYTES: usize = 3 * PAGE_BYTES as usize;

/// Entries of the admin queues.
const ADMIN_ENTRIES: u16 = 16;
/// Where the admin completion queue begins in memory; the submission queue is at 0.
const COMPLETION_OFFSET_BYTES: usize = PAGE_BYTES as usize;
/// Where the data of Identify goes.
const IDENTIFY_OFFSET_BYTES: usize = 2 * PAGE_BYTES as usize;
/// Most changes of state in one poll.
const STEPS_MAX: u32 = 64;

const _: () = assert!(ADMIN_ENTRIES as usize * SUBMISSION_ENTRY_BYTES <= COMPLETION_OFFSET_BYTES);
const _: () = assert!(ADMIN_ENTRIES as usize * COMPLETION_ENTRY_BYTES <= PAGE_BYTES as usize);

/// Why a controller is of no use, or was reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControllerError {
    /// Registers read as all ones.
    #[error("the NVMe controller is gone: its registers read as all ones")]
    Gone,
    /// Its capabilities do not fit.
    #[error("the NVMe controller cannot be used: {0}")]
    Capability(#[from] CapabilityError),
    /// Its data of Identify does not fit.
    #[error("the NVMe controller cannot be used: {0}")]
    Identify(#[from] IdentifyError),
    /// A doorbell would be beyond the BAR.
    #[error("the doorbells of {queue_pairs} queue pairs do not fit the BAR of {bar_bytes} bytes")]
    Doorbells {
        /// As configured.
        queue_pairs: u16,
        /// Size of BAR 0.
        bar_bytes: u64,
    },
    /// Too little memory, or not aligned.
    #[error(
        "{given_bytes} bytes of DMA memory aligned to 4 KiB are given where {needed_bytes} are needed"
    )]
    Memory {
        /// Bytes needed.
        needed_bytes: usize,
        /// Bytes given.
        given_bytes: usize,
    },
    /// As many queue pairs as nobody can have.
    #[error("{0} queue pairs: choose 1 to {QUEUE_PAIRS_MAX}")]
    QueuePairs(u16),
    /// Two users of one queue pair.
    #[error("queue pair {0} is in use")]
    QueueInUse(u16),
    /// CSTS.RDY did not become 0.
    #[error("the NVMe controller did not stop (CSTS.RDY stays 1)")]
    StopTimeout,
    /// CSTS.RDY did not become 1.
    #[error("the NVMe controller did not start (CSTS.RDY stays 0)")]
    StartTimeout,
    /// CSTS.CFS.
    #[error("the NVMe controller reports a fatal status (CSTS.CFS)")]
    Fatal,
    /// CSTS.RDY became 0 without our doing.
    #[error("the NVMe controller was reset by somebody else (CSTS.RDY is 0)")]
    ResetByOthers,
    /// An admin command took too long.
    #[error("the NVMe controller did not answer {0:?}")]
    AdminTimeout(AdminCommand),
    /// An admin command failed.
    #[error("the NVMe controller refuses {command:?}: {status}")]
    Admin {
        /// Which one.
        command: AdminCommand,
        /// Why.
        status: Status,
    },
    /// An I/O command took too long, also to be aborted.
    #[error("an NVMe command on queue {queue_id} neither completed nor could be aborted")]
    CommandTimeout {
        /// Its queue pair.
        queue_id: u16,
    },
    /// After a reset it says other things of itself than before.
    #[error("the NVMe controller is another one after its reset, or its namespaces changed")]
    Changed,
}

/// Why a namespace cannot be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NamespaceError {
    /// Its format does not fit.
    #[error(transparent)]
    Format(#[from] IdentifyError),
    /// It could not be identified.
    #[error("Identify failed: {0}")]
    Status(Status),
}

/// An active namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Namespace {
    /// Namespace Identifier (NSID).
    pub id: u32,
    /// How it is formatted, or why it cannot be opened.
    pub format: Result<NamespaceFormat, NamespaceError>,
}

/// What one controller did since start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ControllerCounters {
    /// Times it was stopped because something failed.
    pub reset_count: u64,
    /// Times its PCI function was reset.
    pub function_reset_count: u64,
    /// Commands that it was asked to abort.
    pub abort_count: u64,
    /// Admin completions for no command; ignored.
    pub stale_admin_completions: u64,
}

/// What [`Controller::poll`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ControllerState {
    /// On its way; poll again in a millisecond or so.
    Pending,
    /// Queue pairs can be made.
    Ready,
    /// It was shut down.
    ShutDown,
    /// It is of no use any more.
    Failed(ControllerError),
}

/// What the controller's word says to those on the data path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// It may still execute commands of the last epoch.
    Stopping,
    /// It executes no commands of any earlier epoch, and accesses none of their memory.
    Stopped,
    /// It takes commands of this epoch.
    Ready,
    /// It takes no commands any more, and accesses no memory.
    Dead,
    /// It takes no commands any more, but could not be stopped: what it has it may still access.
    Runaway,
}

/// The controller's word: how often it was stopped, and what it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Snapshot {
    pub(super) epoch: u64,
    pub(super) phase: Phase,
}

impl Snapshot {
    /// Behind the load everything is visible that was written before the word was.
    pub(super) fn load(word: &AtomicU64) -> Self {
        let word = word.load(Ordering::Acquire);
        let phase = match word & 7 {
            0 => Phase::Stopping,
            1 => Phase::Stopped,
            2 => Phase::Ready,
            3 => Phase::Dead,
            _ => Phase::Runaway,
        };
        Self {
            epoch: word >> 3,
            phase,
        }
    }

    fn store(self, word: &AtomicU64) {
        word.store(self.epoch << 3 | self.phase as u64, Ordering::Release);
    }
}

/// What is to be told of a controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Trouble {
    /// It was reset for this reason, and is or will be in use again.
    Reset(ControllerError),
    /// It is of no use any more.
    Failed(ControllerError),
}

/// What follows a stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AfterStop {
    Start,
    End,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// CC.EN is 0; CSTS.RDY will follow.
    Stopping {
        deadline: Instant,
        attempts: u32,
        next: AfterStop,
    },
    /// CC.EN is 1; CSTS.RDY will follow.
    Starting {
        deadline: Instant,
    },
    /// Asking what it is.
    Identifying,
    /// Queue pairs are made, commands are aborted.
    Ready,
    /// Queue pairs are deleted before a shutdown.
    Deleting,
    /// CC.SHN is set; CSTS.SHST will follow.
    Notifying {
        deadline: Instant,
    },
    ShutDown,
    Failed(ControllerError),
}

/// What the controller said of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Known {
    pub(super) identity: ControllerIdentity,
    pub(super) namespaces: Vec<Namespace>,
    pub(super) queue_pairs: u16,
}

/// The controller itself, behind the mutex.
#[derive(Debug)]
pub(super) struct Inner<R, D> {
    registers: R,
    memory: D,
    word: Arc<AtomicU64>,
    queue_pairs_wanted: u16,
    pub(super) capabilities: Capabilities,
    state: State,
    epoch: u64,
    /// Starts in a row that did not lead to `Ready`.
    starts: u32,
    /// A shutdown was asked for: no start follows a stop any more.
    is_ending: bool,
    submission: SubmissionRing,
    completion: CompletionRing,
    next_command_id: u16,
    outstanding: Option<Outstanding>,
    /// What is still to be asked.
    questions: VecDeque<AdminCommand>,
    /// What was answered since the last start.
    identity: Option<ControllerIdentity>,
    namespaces: Vec<Namespace>,
    queue_pairs_granted: u16,
    /// What was answered in all since the first start.
    pub(super) known: Option<Known>,
    /// By queue identifier less one.
    pairs: Vec<Pair>,
    /// Queue and command identifiers to be aborted: at most one of each pair.
    aborts: VecDeque<(u16, u16)>,
    last_error: Option<ControllerError>,
    pub(super) counters: ControllerCounters,
}

impl<R: Registers, D: DmaMemory> Inner<R, D> {
    /// Checks what can be checked at once, and begins with a stop.
    fn new(
        registers: R,
        memory: D,
        queue_pairs: u16,
        word: Arc<AtomicU64>,
        now: Instant,
    ) -> Result<Self, ControllerError> {
        if !(1..=QUEUE_PAIRS_MAX).contains(&queue_pairs) {
            return Err(ControllerError::QueuePairs(queue_pairs));
        }
        let given_bytes = memory.length_bytes();
        let is_aligned = memory.bus_address().is_multiple_of(PAGE_BYTES.into());
        if given_bytes < ADMIN_MEMORY_BYTES || !is_aligned {
            return Err(ControllerError::Memory {
                needed_bytes: ADMIN_MEMORY_BYTES,
                given_bytes,
            });
        }
        let bar_bytes = registers.length_bytes();
        let doorbells = ControllerError::Doorbells {
            queue_pairs,
            bar_bytes,
        };
        if bar_bytes < super::registers::DOORBELLS {
            return Err(doorbells);
        }
        if ControllerStatus(registers.read_u32(CSTS)).is_gone() {
            return Err(ControllerError::Gone);
        }
        let capabilities = Capabilities::parse(registers.read_u64(CAP), registers.read_u32(VS))?;
        if capabilities.completion_doorbell(queue_pairs) + 4 > bar_bytes {
            return Err(doorbells);
        }
        let mut inner = Self {
            word,
            queue_pairs_wanted: queue_pairs,
            state: State::Identifying,
            epoch: 0,
            starts: 0,
            is_ending: false,
            submission: SubmissionRing::new(0, ADMIN_ENTRIES, capabilities.submission_doorbell(0)),
            completion: CompletionRing::new(
                COMPLETION_OFFSET_BYTES,
                ADMIN_ENTRIES,
                capabilities.completion_doorbell(0),
                Canary::default(),
            ),
            next_command_id: 0,
            outstanding: None,
            questions: VecDeque::new(),
            identity: None,
            namespaces: Vec::new(),
            queue_pairs_granted: 0,
            known: None,
            pairs: vec![Pair::default(); usize::from(queue_pairs)],
            aborts: VecDeque::new(),
            last_error: None,
            counters: ControllerCounters::default(),
            registers,
            memory,
            capabilities,
        };
        inner.begin_stop(now, AfterStop::Start);
        Ok(inner)
    }

    /// Advances the state machine as far as the controller lets it.
    pub(super) fn poll(&mut self, now: Instant) -> ControllerState {
        for _ in 0..STEPS_MAX {
            if !self.step(now) {
                break;
            }
        }
        match self.state {
            State::Ready => ControllerState::Ready,
            State::ShutDown => ControllerState::ShutDown,
            State::Failed(error) => ControllerState::Failed(error),
            _ => ControllerState::Pending,
        }
    }

    /// One change of state; false if there is none to be made now.
    fn step(&mut self, now: Instant) -> bool {
        if matches!(self.state, State::ShutDown | State::Failed(_)) {
            return false;
        }
        let status = ControllerStatus(self.registers.read_u32(CSTS));
        if status.is_gone() {
            self.handle_gone(now);
            return true;
        }
        match self.state {
            // A controller that ignored the write of CC has not stopped, even if it was not ready.
            State::Stopping { next, .. } if !status.is_ready() && !self.is_enabled() => {
                self.handle_stopped(now, next);
            }
            State::Stopping {
                deadline,
                attempts,
                next,
            } if now >= deadline => self.stop_again(now, attempts, next),
            State::Starting { .. } | State::Identifying | State::Ready | State::Deleting
                if status.is_fatal() =>
            {
                self.restart(now, ControllerError::Fatal);
            }
            State::Identifying | State::Ready | State::Deleting if !status.is_ready() => {
                self.restart(now, ControllerError::ResetByOthers);
            }
            State::Starting { .. } if status.is_ready() => self.begin_identify(),
            State::Starting { deadline } if now >= deadline => {
                self.restart(now, ControllerError::StartTimeout);
            }
            State::Identifying | State::Ready | State::Deleting => return self.serve_admin(now),
            State::Notifying { deadline } if status.is_shut_down() || now >= deadline => {
                self.begin_stop(now, AfterStop::End);
            }
            _ => return false,
        }
        true
    }

    /// Why it was last reset, or that it failed for good.
    pub(super) const fn trouble(&self) -> Option<Trouble> {
        match (self.state, self.last_error) {
            (State::Failed(error), _) => Some(Trouble::Failed(error)),
            (State::ShutDown, _) => None,
            (_, Some(error)) => Some(Trouble::Reset(error)),
            (_, None) => None,
        }
    }

    /// To be cloned by queue pairs, for their doorbells.
    pub(super) const fn registers(&self) -> &R {
        &self.registers
    }

    fn publish(&self, phase: Phase) {
        let epoch = self.epoch;
        Snapshot { epoch, phase }.store(&self.word);
    }

    /// Clears CC.EN. Whoever has commands with the controller learns of it by the word.
    fn begin_stop(&mut self, now: Instant, next: AfterStop) {
        let next = if self.is_ending { AfterStop::End } else { next };
        self.epoch += 1;
        self.publish(Phase::Stopping);
        self.outstanding = None;
        self.questions.clear();
        self.aborts.clear();
        self.pairs.fill(Pair::default());
        self.clear_enable();
        self.state = State::Stopping {
            deadline: now + self.capabilities.ready_timeout,
            attempts: 1,
            next,
        };
    }

    fn is_enabled(&self) -> bool {
        self.registers.read_u32(CC) & CC_ENABLE != 0
    }

    fn clear_enable(&self) {
        let configuration = self.registers.read_u32(CC) & !(CC_ENABLE | CC_SHUTDOWN_MASK);
        self.registers.write_u32(CC, configuration);
    }

    /// CSTS.RDY has not followed in time.
    fn stop_again(&mut self, now: Instant, attempts: u32, next: AfterStop) {
        if attempts < STOP_ATTEMPTS_MAX {
            self.clear_enable();
            self.state = State::Stopping {
                deadline: now + self.capabilities.ready_timeout,
                attempts: attempts + 1,
                next,
            };
            return;
        }
        self.counters.function_reset_count += 1;
        if !self.registers.reset_function() {
            self.fail(ControllerError::StopTimeout, Phase::Runaway);
        } else if ControllerStatus(self.registers.read_u32(CSTS)).is_ready() {
            self.fail(ControllerError::StopTimeout, Phase::Dead);
        } else {
            self.handle_stopped(now, next);
        }
    }

    /// The controller accesses no memory any more, and may be configured.
    fn handle_stopped(&mut self, now: Instant, next: AfterStop) {
        if next == AfterStop::End {
            self.publish(Phase::Dead);
            self.state = State::ShutDown;
            return;
        }
        self.publish(Phase::Stopped);
        self.submission.clear();
        self.completion.clear(&mut self.memory);
        self.memory.release();
        let bus_address = self.memory.bus_address();
        let entries = u32::from(ADMIN_ENTRIES) - 1;
        self.registers.write_u32(AQA, entries << 16 | entries);
        self.registers.write_u64(ASQ, bus_address);
        let completion_address = bus_address + COMPLETION_OFFSET_BYTES as u64;
        self.registers.write_u64(ACQ, completion_address);
        // The admin queue always has interrupts, and completions are polled for: a device that asserts a pin which
        // nobody handles may have the kernel switch off the line, for others on it too. The reset has
        // cleared the mask, so only here it lasts.
        self.registers.write_u32(INTMS, u32::MAX);
        self.registers.write_u32(CC, CC_ENTRY_SIZES | CC_ENABLE);
        self.state = State::Starting {
            deadline: now + self.capabilities.ready_timeout,
        };
    }

    /// Something failed: stops the controller and starts it again, a limited number of times in a row.
    fn restart(&mut self, now: Instant, error: ControllerError) {
        self.last_error = Some(error);
        self.counters.reset_count += 1;
        self.starts += 1;
        if self.starts < STARTS_MAX {
            self.begin_stop(now, AfterStop::Start);
            return;
        }
        // It was never ready since it last stopped, so no queue pair was made and nobody's memory but the
        // admin queues' is known to it.
        self.clear_enable();
        self.fail(error, Phase::Dead);
    }

    /// A command of a queue pair neither completed nor could be aborted. Ignored if the controller was
    /// stopped since `epoch`.
    pub(super) fn report_stuck(&mut self, now: Instant, epoch: u64, queue_id: u16) {
        if self.epoch == epoch && self.state == State::Ready {
            self.restart(now, ControllerError::CommandTimeout { queue_id });
        }
    }

    fn fail(&mut self, error: ControllerError, phase: Phase) {
        self.last_error = Some(error);
        self.outstanding = None;
        self.publish(phase);
        self.state = State::Failed(error);
    }

    /// All registers read as ones: it was removed, or its function is being reset by others. Such a
    /// function is off the bus, and accesses no memory.
    fn handle_gone(&mut self, now: Instant) {
        self.counters.function_reset_count += 1;
        let is_reset = self.registers.reset_function();
        if is_reset && !ControllerStatus(self.registers.read_u32(CSTS)).is_gone() {
            self.restart(now, ControllerError::Gone);
        } else {
            self.epoch += 1;
            self.fail(ControllerError::Gone, Phase::Dead);
        }
    }

    /// Deletes the queue pairs, then notifies the controller and stops it. Commands that it has end
    /// in errors.
    pub(super) fn begin_shutdown(&mut self, now: Instant) {
        self.is_ending = true;
        match self.state {
            State::Ready => {
                self.epoch += 1;
                self.publish(Phase::Stopping);
                self.aborts.clear();
                for pair in &mut self.pairs {
                    pair.retire();
                }
                self.state = State::Deleting;
            }
            State::Starting { .. } | State::Identifying => self.begin_stop(now, AfterStop::End),
            State::Stopping {
                deadline, attempts, ..
            } => {
                self.state = State::Stopping {
                    deadline,
                    attempts,
                    next: AfterStop::End,
                };
            }
            State::Deleting | State::Notifying { .. } | State::ShutDown | State::Failed(_) => {}
        }
    }

    /// CC.SHN: a normal shutdown, after the queue pairs are gone.
    fn notify_shutdown(&mut self, now: Instant) {
        let identity = self.known.as_ref().map(|known| &known.identity);
        let most_us = identity.map_or(0, |identity| identity.shutdown_us_max);
        let most = Duration::from_micros(most_us.into()).max(SHUTDOWN_TIMEOUT);
        let configuration = self.registers.read_u32(CC) & !CC_SHUTDOWN_MASK;
        let notified = configuration | CC_SHUTDOWN_NORMAL;
        self.registers.write_u32(CC, notified);
        self.state = State::Notifying {
            deadline: now + most,
        };
    }
}
