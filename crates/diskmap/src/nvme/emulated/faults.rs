//! What an emulated controller does that a sound one does not.

use clock::Duration;

use crate::nvme::Status;

/// What an Abort does to a command that is not completed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum AbortBehaviour {
    /// The command ends in "Command Abort Requested".
    #[default]
    Works,
    /// The Abort completes and says that the command was not aborted.
    NotAborted,
    /// The Abort fails.
    Fails,
    /// The Abort never completes.
    NeverCompletes,
}

/// How an emulated controller misbehaves. Chances are in millionths
/// ([`crate::sim::CHANCE_SCALE`]), and of each I/O command unless said otherwise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Faults {
    /// Shortest time a command takes.
    pub latency_min: Duration,
    /// Longest time; uniform in between, so that commands overtake each other.
    pub latency_max: Duration,
    /// The completion comes a second time, later.
    pub duplicate_chance: u32,
    /// A completion with an identifier that no command has now: a random one, one of an earlier
    /// generation, or the last one again.
    pub unknown_chance: u32,
    /// A completion with the command's identifier and another queue's number, before it is done.
    pub wrong_queue_chance: u32,
    /// The same with a head pointer that is not in the queue.
    pub wrong_head_chance: u32,
    /// An entry that looks like its completion and has the old phase tag, before it is done.
    pub old_phase_chance: u32,
    /// It ends in one of `statuses` instead of being executed.
    pub error_chance: u32,
    /// Those.
    pub statuses: Vec<Status>,
    /// It is never completed.
    pub stuck_chance: u32,
    /// What an Abort does.
    pub abort: AbortBehaviour,
    /// How often CC.EN = 0 is ignored.
    pub stops_refused: u32,
    /// Whether the function can be reset.
    pub is_function_reset_refused: bool,
    /// How often CSTS.RDY does not become 1 after CC.EN did.
    pub starts_ignored: u32,
    /// An admin command is never completed.
    pub admin_stuck_chance: u32,
    /// An admin command ends in one of `statuses`.
    pub admin_error_chance: u32,
    /// Bytes of the data of an Identify are wrong.
    pub identify_garbage_chance: u32,
}

impl Default for Faults {
    /// None: a sound controller that takes 10 to 100 us.
    fn default() -> Self {
        Self {
            latency_min: Duration::from_micros(10),
            latency_max: Duration::from_micros(100),
            duplicate_chance: 0,
            unknown_chance: 0,
            wrong_queue_chance: 0,
            wrong_head_chance: 0,
            old_phase_chance: 0,
            error_chance: 0,
            statuses: Vec::new(),
            stuck_chance: 0,
            abort: AbortBehaviour::Works,
            stops_refused: 0,
            is_function_reset_refused: false,
            starts_ignored: 0,
            admin_stuck_chance: 0,
            admin_error_chance: 0,
            identify_garbage_chance: 0,
        }
    }
}
