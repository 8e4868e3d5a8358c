//! The verification of a file whose status does not tell whether it was written: its witnesses are read again,
//! one after the other, and its completions are held meanwhile. That of a file on a mount that is not local begins
//! with the status, which may have to wait for somebody else's machine.
//!
//! **What was read before the status was asked is handed out if the witnesses, read after it, agree.** That status
//! is then the one to compare with. So a verification takes one read for each witness at most, however often the
//! file grows meanwhile; completions that came after its status wait for it, and are checked anew when it
//! ends.
//!
//! **A file that is dated anew, but no longer than before**, is looked at for [`LOOKS_MAX`] times [`PAUSE`]: it is about
//! to grow, or it was overwritten.
//!
//! Its steps are commands of the ring. They take the place of the first completion held in the table of
//! commands, so there is room for them, and the file stays open. It refuses to know the ring or the file: it says what
//! is to be read, and is told what came. Bounded by [`TRIES_MAX`] for a read that is interrupted, [`LOOKS_MAX`], two
//! blocks of memory, and the file's commands in flight.

use std::ops::Range;

use io_uring::types::Timespec;

use super::change::{Baseline, Seen};
use super::commands::Command;
use super::witness::{Agreed, Witnesses};
use crate::DiskError;
use memory::SLOT_ALIGNMENT_BYTES;

/// How often one read is tried that the kernel interrupts.
const TRIES_MAX: u8 = 16;

/// How often a file is looked at that was dated anew, until it counts as overwritten. A writer needs microseconds for
/// what is between date and length, unless others have its processor.
const LOOKS_MAX: u8 = 50;

/// Before each of those looks: 1 ms.
pub(super) static PAUSE: Timespec = Timespec::new().nsec(1_000_000);

/// A completion that waits for the end of a verification.
#[derive(Debug)]
pub(super) struct Held {
    /// Its place in the table of commands.
    pub(super) index: u32,
    pub(super) command: Command,
    /// How it ends if the file is the same.
    pub(super) outcome: Result<(), DiskError>,
    /// When it was reaped.
    pub(super) round: u64,
}

/// A command to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// A timeout of [`PAUSE`].
    Pause,
    /// `statx` of the file, to this place.
    Status(*mut u8),
    /// A read.
    Read {
        /// Where in the file it begins.
        offset_bytes: u64,
        /// To this place.
        target: *mut u8,
        /// How much.
        length_bytes: u32,
    },
}

/// What follows after a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// [`Verification::step`] is to be made.
    Next,
    /// The status was asked: [`Verification::judge`] is to be told what it means.
    Asked(Seen),
    /// All agree: what was read before the status is the file's.
    Same,
    /// It was written.
    Changed,
    /// It cannot be read: nothing is known.
    Failed(DiskError),
}

/// What is being done.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Phase {
    Pausing,
    AskingForStatus,
    /// These blocks.
    Reading(Range<u64>),
}

/// A verification under way.
#[derive(Debug)]
pub(super) struct Verification {
    /// The status that was compared with: again the one if nothing can be found out.
    pub(super) before: Baseline,
    /// The status that it is about; of a file whose status is being asked for, that before.
    pub(super) status: Baseline,
    /// Completions reaped in this round or before were read before that status.
    pub(super) round: u64,
    /// The file is written by this disk itself since: nothing is to be compared.
    pub(super) is_moot: bool,
    agreed: Agreed,
    phase: Phase,
    tries: u8,
    /// Pauses that were made.
    looks: u8,
    /// The kernel writes to it while a command is in flight.
    memory: Vec<u8>,
    held: Vec<Held>,
}

impl Verification {
    /// Of a file that has another status than `before`, and these witnesses; `None` if it has none.
    pub(super) fn begin(
        before: Baseline,
        status: Baseline,
        round: u64,
        witnesses: &Witnesses,
        block_bytes: u32,
    ) -> Option<Self> {
        let mut begun = Self::begin_with_status(before, round);
        begun.judge(status, witnesses, block_bytes).then_some(begun)
    }

    /// Of a file whose status is to be asked for: it covers what was reaped in this round or before.
    pub(super) fn begin_with_status(before: Baseline, round: u64) -> Self {
        Self {
            before,
            status: before,
            round,
            is_moot: false,
            agreed: Agreed::default(),
            phase: Phase::AskingForStatus,
            tries: 0,
            looks: 0,
            memory: memory_of(size_of::<libc::statx>()),
            held: Vec::new(),
        }
    }

    /// Of a file that is dated anew, and as long as before.
    pub(super) fn begin_with_look(before: Baseline, round: u64) -> Option<Self> {
        let mut begun = Self::begin_with_status(before, round);
        begun.look_again().then_some(begun)
    }

    /// The file's status is this one now, and does not tell whether it was written. Whether there is a witness.
    pub(super) fn judge(
        &mut self,
        status: Baseline,
        witnesses: &Witnesses,
        block_bytes: u32,
    ) -> bool {
        let Some(blocks) = witnesses.next_blocks(self.agreed, block_bytes) else {
            return false;
        };
        self.status = status;
        self.memory = memory_of(2 * block_bytes as usize);
        self.phase = Phase::Reading(blocks);
        true
    }

    /// The file is dated anew, and is as long as before: it is looked at again after a pause. Whether that was not
    /// done often enough.
    pub(super) fn look_again(&mut self) -> bool {
        self.looks += 1;
        self.phase = Phase::Pausing;
        self.looks <= LOOKS_MAX
    }

    /// Holds a completion; whether it is the first, in whose place the reads are.
    pub(super) fn hold(&mut self, held: Held) -> bool {
        self.held.push(held);
        self.held.len() == 1
    }

    /// The place in the table of commands for the reads.
    pub(super) fn carrier(&self) -> Option<u32> {
        self.held.first().map(|held| held.index)
    }

    /// The command to be made.
    pub(super) fn step(&mut self) -> Step {
        let Range { start, end } = match &self.phase {
            Phase::Pausing => return Step::Pause,
            Phase::AskingForStatus => return Step::Status(self.aligned().as_mut_ptr()),
            Phase::Reading(blocks) => blocks.clone(),
        };
        let length = u32::try_from(end - start);
        let length_bytes =
            length.expect("invariant: a witness is in two blocks, which slots limit");
        let memory = self.aligned();
        debug_assert!(length_bytes as usize <= memory.len());
        Step::Read {
            offset_bytes: start,
            target: memory.as_mut_ptr(),
            length_bytes,
        }
    }

    fn aligned(&mut self) -> &mut [u8] {
        let start = self
            .memory
            .as_ptr()
            .align_offset(SLOT_ALIGNMENT_BYTES as usize);
        self.memory.get_mut(start..).unwrap_or_default()
    }

    /// The step ended with a number of bytes, or an error of the kernel's, negative.
    pub(super) fn advance(
        &mut self,
        result: i32,
        witnesses: &Witnesses,
        block_bytes: u32,
    ) -> Progress {
        if self.is_moot {
            return Progress::Same;
        }
        if self.phase == Phase::Pausing {
            // Whatever it says, the next look is due.
            self.phase = Phase::AskingForStatus;
            return Progress::Next;
        }
        let Ok(bytes) = usize::try_from(result) else {
            let errno = result.saturating_neg();
            self.tries += 1;
            let is_transient = errno == libc::EAGAIN || errno == libc::EINTR;
            return if is_transient && self.tries < TRIES_MAX {
                Progress::Next
            } else {
                Progress::Failed(DiskError::Io(errno))
            };
        };
        self.tries = 0;
        let Phase::Reading(Range { start, .. }) = self.phase else {
            return Progress::Asked(self.seen());
        };
        let mut agreed = self.agreed;
        let memory = self.aligned();
        let read = &memory[..bytes.min(memory.len())];
        // If the read is too short for its witness, the file ends before it.
        let is_same = witnesses.compare(&mut agreed, start, read);
        self.agreed = agreed;
        if !is_same {
            return Progress::Changed;
        }
        match witnesses.next_blocks(self.agreed, block_bytes) {
            Some(blocks) => {
                self.phase = Phase::Reading(blocks);
                Progress::Next
            }
            None => Progress::Same,
        }
    }

    /// The status that the kernel has written.
    fn seen(&mut self) -> Seen {
        let memory = self.aligned();
        debug_assert!(memory.len() >= size_of::<libc::statx>());
        // SAFETY: there is room for a `statx`, aligned, and all of it is initialized; a `statx` is numbers.
        Seen::from(unsafe { &*memory.as_ptr().cast::<libc::statx>() })
    }

    /// The places in the table of commands of those that only wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = u32> {
        self.held.iter().skip(1).map(|held| held.index)
    }

    /// Those held, in the order in which they came.
    pub(super) fn into_held(self) -> Vec<Held> {
        self.held
    }
}

/// Memory for so many bytes, and what aligns them.
fn memory_of(bytes: usize) -> Vec<u8> {
    vec![0; bytes + SLOT_ALIGNMENT_BYTES as usize]
}

#[cfg(test)]
mod tests {
    use super::super::change::{Baseline, Identity};
    use super::super::witness::WITNESSES_MAX;
    use super::*;
    use crate::FileStatus;

    const BLOCK: u32 = 4096;

    fn baseline(size_bytes: u64) -> Baseline {
        let status = FileStatus {
            size_bytes,
            ..FileStatus::default()
        };
        Baseline {
            identity: Identity::from(&status),
            path_end: None,
        }
    }

    /// A file of two blocks that was read whole: witnesses in both.
    fn verifying() -> (Verification, Witnesses, Vec<u8>) {
        let content: Vec<u8> = (0..=250).cycle().take(8192).collect();
        let mut witnesses = Witnesses::default();
        witnesses.note_read(0, || &content);
        let begun = Verification::begin(baseline(8192), baseline(9000), 7, &witnesses, BLOCK);
        (begun.expect("there are witnesses"), witnesses, content)
    }

    /// Reads what is wanted from `content`, as the kernel does.
    fn read(verification: &mut Verification, content: &[u8]) -> i32 {
        let Step::Read {
            offset_bytes: start,
            length_bytes: length,
            ..
        } = verification.step()
        else {
            panic!("its status is known")
        };
        let start = usize::try_from(start).expect("a short file");
        let part = &content[start.min(content.len())..];
        let part = &part[..part.len().min(length as usize)];
        verification.aligned()[..part.len()].copy_from_slice(part);
        i32::try_from(part.len()).expect("two blocks at most")
    }

    fn run(now: &[u8]) -> (usize, Progress) {
        let (mut verification, witnesses, _) = verifying();
        for reads in 1..=WITNESSES_MAX {
            let result = read(&mut verification, now);
            let progress = verification.advance(result, &witnesses, BLOCK);
            if progress != Progress::Next {
                return (reads, progress);
            }
        }
        panic!("it ends after as many reads as there are witnesses");
    }

    #[test]
    fn it_ends_when_all_witnesses_agree_or_one_does_not() {
        let (.., content) = verifying();
        let grown = [content.clone(), vec![0; 5000]].concat();
        let with = |at: usize| {
            let mut content = content.clone();
            content[at] ^= 1;
            content
        };
        for (now, expected) in [
            (content.clone(), (2, Progress::Same)),
            (grown, (2, Progress::Same)),
            (with(0), (1, Progress::Changed)),
            (with(300), (2, Progress::Same)),
            (with(8191), (2, Progress::Changed)),
            (content[..8191].to_vec(), (2, Progress::Changed)),
            (content[..255].to_vec(), (1, Progress::Changed)),
            (Vec::new(), (1, Progress::Changed)),
        ] {
            assert_eq!(run(&now), expected, "{} bytes", now.len());
        }
    }

    #[test]
    fn an_interrupted_read_is_tried_again_and_a_failed_one_is_not() {
        for errno in [libc::EAGAIN, libc::EINTR] {
            let (mut verification, witnesses, _) = verifying();
            for _ in 1..TRIES_MAX {
                let progress = verification.advance(-errno, &witnesses, BLOCK);
                assert_eq!(progress, Progress::Next);
            }
            let progress = verification.advance(-errno, &witnesses, BLOCK);
            assert_eq!(progress, Progress::Failed(DiskError::Io(errno)));
        }
        let (mut verification, witnesses, _) = verifying();
        let progress = verification.advance(-libc::EIO, &witnesses, BLOCK);
        assert_eq!(progress, Progress::Failed(DiskError::Io(libc::EIO)));
    }

    #[test]
    fn a_file_that_is_dated_anew_is_looked_at_a_number_of_times() {
        let (_, witnesses, _) = verifying();
        let mut verification =
            Verification::begin_with_look(baseline(8192), 7).expect("it is the first look");
        for look in 1..=LOOKS_MAX {
            assert_eq!(verification.step(), Step::Pause, "look {look}");
            let progress = verification.advance(-libc::ETIME, &witnesses, BLOCK);
            assert_eq!(progress, Progress::Next);
            assert!(matches!(verification.step(), Step::Status(_)));
            let progress = verification.advance(0, &witnesses, BLOCK);
            assert!(matches!(progress, Progress::Asked(_)));
            assert_eq!(verification.look_again(), look < LOOKS_MAX, "look {look}");
        }
    }

    #[test]
    fn a_file_that_the_disk_writes_itself_is_not_compared() {
        let (mut verification, witnesses, _) = verifying();
        verification.is_moot = true;
        assert_eq!(verification.advance(0, &witnesses, BLOCK), Progress::Same);
    }

    #[test]
    fn without_a_witness_there_is_none() {
        let none = Witnesses::default();
        assert!(Verification::begin(baseline(1), baseline(2), 0, &none, BLOCK).is_none());
    }
}
