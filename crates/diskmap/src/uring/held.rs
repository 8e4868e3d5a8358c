//! Completions that are held while their file is verified, and the reads that verify it.
//!
//! **Each is handed out after at most two verifications**: the one under way when it came, and if that one's
//! status is older than it, the one that its own check may begin. A verification makes a few reads, one after the
//! other, in the place of the first completion that it holds (`verification`).
//!
//! A file on a mount that is not local may keep whoever asks for its status waiting, for ever. So the ring asks, and all
//! completions of such a file are held until it has answered.
//!
//! Bounded by the queue's depth: those held keep their places in the table of commands.

use io_uring::{opcode, types};

use super::Uring;
use super::commands::{Command, Entered};
use super::files::Check;
use super::verification::{Held, PAUSE, Step, Verification};
use crate::DiskError;

impl Uring {
    /// Holds a completion until the verification of its file ends, which its check has begun or found.
    pub(super) fn hold(&mut self, index: u32, command: Command, outcome: Result<(), DiskError>) {
        let file = command
            .file
            .expect("invariant: what is no file's is not checked");
        if self.files.hold(file, index, command, outcome) {
            self.enqueue_step(file);
        }
    }

    /// Enqueues the next step of a file's verification.
    fn enqueue_step(&mut self, file: u16) {
        let Some(verification) = self.files.verification(file) else {
            return;
        };
        let Some(carrier) = verification.carrier() else {
            return;
        };
        let entry = match verification.step() {
            Step::Pause => opcode::Timeout::new(&raw const PAUSE).build(),
            Step::Status(target) => {
                // The kernel refuses a registered file here.
                let number = types::Fd(self.files.at(file).raw_fd());
                self.files.check_calls += 1;
                opcode::Statx::new(number, c"".as_ptr(), target.cast())
                    .flags(libc::AT_EMPTY_PATH)
                    .mask(libc::STATX_BASIC_STATS)
                    .build()
            }
            Step::Read {
                offset_bytes,
                target,
                length_bytes,
            } => {
                let (number, flags, place) = self.target(Some(file), offset_bytes);
                self.counters.disk_verify_commands += 1;
                self.files.expect_read(file);
                let read = opcode::Read::new(types::Fd(number), target, length_bytes);
                read.offset(place).build().flags(flags)
            }
        };
        let user_data = self.commands.issue(carrier, Entered::Verification(file));
        self.push(&entry.user_data(user_data));
        self.has_unsubmitted_reissues = true;
    }

    /// A step of a file's verification ended.
    pub(super) fn advance_verification(&mut self, file: u16, result: i32) {
        let Some((held, round, outcome)) = self.files.advance(file, result) else {
            self.enqueue_step(file);
            return;
        };
        for Held {
            index,
            command,
            outcome: own,
            round: came,
        } in held
        {
            let outcome = if came <= round || outcome.is_err() {
                outcome
            } else {
                // It was read after the status was asked. One check serves all of them.
                match self.files.check(file) {
                    Ok(Check::Same) => Ok(()),
                    Ok(Check::Unclear) => {
                        self.hold(index, command, own);
                        continue;
                    }
                    Err(error) => Err(error),
                }
            };
            self.released.push_back((index, command, outcome.and(own)));
        }
    }

    /// Frees the places of completions that are held, but those where a read is under way, of a disk that is dropped;
    /// returns the memory of these.
    pub(super) fn give_up_held(&mut self) -> Vec<Verification> {
        for (index, ..) in self.released.drain(..) {
            self.commands.release(index);
        }
        let verifications = self.files.take_verifications();
        for index in verifications.iter().flat_map(Verification::waiting) {
            self.commands.release(index);
        }
        verifications
    }
}
