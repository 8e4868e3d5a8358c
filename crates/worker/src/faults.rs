//! Failures that affected clients in a round, as text for the log.

use std::fmt::Write as _;

use clock::Instant;
use diskmap::{Disk, DiskError, DiskNotice};
use link::Link;
use session::Warning;
use store::StoreRefusal;

use super::Worker;
use super::objects::{FaultKind, LOOKUP_WAIT_MAX, ObjectFault, Objects};
use crate::warnings::{Kind, Warnings, push_errno};

impl<L: Link, D: Disk> Worker<L, D> {
    /// Logs the faults of objects, and the warnings of the conductor, of this round.
    pub(super) fn log_warnings(&mut self, now: Instant) {
        while let Some(fault) = self.objects.poll_fault() {
            note_fault(&mut self.warnings, now, fault);
        }
        while let Some((warning, count)) = self.conductor.poll_warning() {
            let (warnings, objects) = (&mut self.warnings, &self.objects);
            note(warnings, now, objects, warning, count);
        }
        while let Some(notice) = self.disk.poll_notice() {
            note_controller(&mut self.warnings, now, &notice);
        }
    }
}

fn note_controller(warnings: &mut Warnings, now: Instant, notice: &DiskNotice) {
    match notice {
        DiskNotice::Reset {
            controller,
            error,
            commands,
        } => warnings.note(now, Kind::ControllerReset, 1, |text| {
            let _ = write!(
                text,
                "{controller}: {error}; {commands} commands of this worker are issued again"
            );
        }),
        DiskNotice::Failed { controller, error } => {
            warnings.note(now, Kind::ControllerFailed, 1, |text| {
                let _ = write!(text, "{controller}: {error}");
            });
        }
        // A kind that this version does not know.
        _ => {}
    }
}

fn note_fault(warnings: &mut Warnings, now: Instant, ObjectFault { path, what }: ObjectFault) {
    match what {
        FaultKind::Read(DiskError::Changed) => note_change(warnings, now, 1, || path),
        FaultKind::Read(error) => warnings.note(now, Kind::ReadFailed, 1, |text| {
            let _ = write!(text, "{path}: ");
            push_error(text, error);
            text.push_str("; see the kernel's log for the device");
        }),
        FaultKind::Open(error) => warnings.note(now, Kind::LookupFailed, 1, |text| {
            let _ = write!(text, "{path}: ");
            push_error(text, error);
        }),
        FaultKind::LookUp(StoreRefusal::TimedOut) => {
            warnings.note(now, Kind::LookupOverdue, 1, |text| {
                let _ = write!(
                    text,
                    "{path}: its file system does not answer; see its mount"
                );
            });
        }
        FaultKind::LookUp(StoreRefusal::Failed(errno)) => {
            warnings.note(now, Kind::LookupFailed, 1, |text| {
                let _ = write!(text, "{path}: ");
                push_errno(text, errno);
            });
        }
        FaultKind::LookUp(refusal) => warnings.note(now, Kind::LookupFailed, 1, |text| {
            let _ = write!(text, "{path}: {refusal}");
        }),
        FaultKind::Outdated => warnings.note(now, Kind::ObjectOutdated, 1, |text| {
            let _ = write!(text, "{path}; see replaced_timeout_seconds");
        }),
        FaultKind::NoRoom => warnings.note(now, Kind::LookupOverdue, 1, |text| {
            let seconds = LOOKUP_WAIT_MAX.as_secs();
            let _ = write!(
                text,
                "{path}: no room for {seconds} s, or too many wait for it; raise objects_max"
            );
        }),
    }
}

fn push_error(text: &mut String, error: DiskError) {
    match error {
        DiskError::Io(errno) => push_errno(text, errno),
        error => {
            let _ = write!(text, "{error}");
        }
    }
}

fn note_change(warnings: &mut Warnings, now: Instant, count: u64, path: impl FnOnce() -> String) {
    warnings.note(now, Kind::FileChanged, count, |text| {
        let _ = write!(
            text,
            "{}; to replace a file, rename the new one over it",
            path()
        );
    });
}

fn note(warnings: &mut Warnings, now: Instant, objects: &Objects, warning: Warning, count: u64) {
    let (kind, peer) = match warning {
        Warning::ReadShort { object, .. } => {
            return note_change(warnings, now, count, || objects.path_of(object));
        }
        Warning::ContentChanged { object, .. } => {
            return note_change(warnings, now, count, || objects.path_of(object));
        }
        Warning::SlotFamine => {
            return warnings.note(now, Kind::SlotFamine, count, |text| {
                text.push_str("all are in use; more `slots` help if the disk is quick enough");
            });
        }
        Warning::ConnectionTableFull { peer } => (Kind::ConnectionTableFull, peer),
        Warning::HalfOpenTableFull { peer } => (Kind::HalfOpenTableFull, peer),
        Warning::HandshakeRefused { peer } => (Kind::HandshakeRefused, peer),
        Warning::HandshakeOverflow { peer } => (Kind::HandshakeOverflow, peer),
        Warning::HandshakeTimedOut { peer } => (Kind::HandshakeTimedOut, peer),
        Warning::SendTimedOut { peer } => (Kind::SendTimedOut, peer),
        Warning::KeyExhausted { peer } => (Kind::KeyExhausted, peer),
    };
    warnings.note(now, kind, count, |text| {
        let _ = write!(text, "{peer}");
    });
}

#[cfg(test)]
mod tests {
    use clock::Instant;
    use diskmap::DiskError;
    use store::StoreRefusal;

    use super::note_fault;
    use crate::objects::{FaultKind, ObjectFault};
    use crate::warnings::Warnings;

    #[test]
    fn each_fault_is_logged_with_its_path_and_reason() {
        let changed = "file changed while it was being sent, connection reset: /a; to replace a \
                       file, rename the new one over it";
        for (what, expected) in [
            (
                FaultKind::Read(DiskError::Io(libc::EIO)),
                "read failed, connection reset: /a: Input/output error (os error 5); see the \
                 kernel's log for the device",
            ),
            (FaultKind::Read(DiskError::Changed), changed),
            (
                FaultKind::Open(DiskError::TableFull),
                "look-up failed: /a: the table of open files is full",
            ),
            (
                FaultKind::LookUp(StoreRefusal::Forbidden),
                "look-up failed: /a: not to be served",
            ),
            (
                FaultKind::LookUp(StoreRefusal::Failed(libc::ESTALE)),
                "look-up failed: /a: Stale file handle (os error 116)",
            ),
            (
                FaultKind::LookUp(StoreRefusal::TimedOut),
                "look-up overdue: /a: its file system does not answer; see its mount",
            ),
            (
                FaultKind::Outdated,
                "an object that was replaced or removed is sent for too long, connections reset: /a; \
                 see replaced_timeout_seconds",
            ),
            (
                FaultKind::NoRoom,
                "look-up overdue: /a: no room for 10 s, or too many wait for it; raise objects_max",
            ),
        ] {
            let mut warnings = Warnings::default();
            let path = "/a".into();
            note_fault(&mut warnings, Instant::ZERO, ObjectFault { path, what });
            let warning = warnings.poll(Instant::ZERO).expect("a line");
            assert_eq!(warning.text, expected);
        }
    }
}
