//! What hurt clients in a round, put into words for the log.

use std::fmt::Write as _;

use clock::Instant;
use diskmap::{Disk, DiskError};
use link::Link;
use session::Trouble;

use super::Worker;
use super::objects::Objects;
use crate::warnings::{Kind, Warnings, push_errno};

impl<L: Link, D: Disk> Worker<L, D> {
    /// Takes the conductor's troubles of this round.
    pub(super) fn note_troubles(&mut self, now: Instant) {
        while let Some((trouble, count)) = self.conductor.poll_trouble() {
            let (warnings, objects) = (&mut self.warnings, &self.objects);
            note(warnings, now, objects, trouble, count);
        }
    }
}

/// A read failed, and the connection it was for is reset.
pub(super) fn note_read(
    warnings: &mut Warnings,
    now: Instant,
    error: DiskError,
    path: impl FnOnce() -> String,
) {
    match error {
        DiskError::Changed => note_change(warnings, now, 1, path),
        DiskError::Io(errno) => warnings.note(now, Kind::ReadFailed, 1, |text| {
            let _ = write!(text, "{}: ", path());
            push_errno(text, errno);
            text.push_str("; see the kernel's log for the device");
        }),
        error => warnings.note(now, Kind::ReadFailed, 1, |text| {
            let _ = write!(text, "{}: {error}", path());
        }),
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

fn note(warnings: &mut Warnings, now: Instant, objects: &Objects, trouble: Trouble, count: u64) {
    let (kind, peer) = match trouble {
        Trouble::ReadShort { object, .. } => {
            return note_change(warnings, now, count, || objects.path_of(object));
        }
        Trouble::ContentChanged { object, .. } => {
            return note_change(warnings, now, count, || objects.path_of(object));
        }
        Trouble::SlotFamine => {
            return warnings.note(now, Kind::SlotFamine, count, |text| {
                text.push_str("all are in use; more `slots` help if the disk is quick enough");
            });
        }
        Trouble::ConnectionTableFull { peer } => (Kind::ConnectionTableFull, peer),
        Trouble::HalfOpenTableFull { peer } => (Kind::HalfOpenTableFull, peer),
        Trouble::HandshakeRefused { peer } => (Kind::HandshakeRefused, peer),
        Trouble::HandshakeOverflow { peer } => (Kind::HandshakeOverflow, peer),
        Trouble::HandshakeTimedOut { peer } => (Kind::HandshakeTimedOut, peer),
        Trouble::SendTimedOut { peer } => (Kind::SendTimedOut, peer),
        Trouble::KeyExhausted { peer } => (Kind::KeyExhausted, peer),
    };
    warnings.note(now, kind, count, |text| {
        let _ = write!(text, "{peer}");
    });
}
