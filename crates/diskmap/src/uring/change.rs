//! What a file's status says about its content since an earlier status: the table of
//! `docs/develop/decisions/0004-file-change-detection.md`.
//!
//! Numbers in, a [`Finding`] out: it asks nobody. It refuses to call a file the same because nothing speaks
//! against it: what only bytes can tell is [`Finding::Unclear`]. Bounded: holds a few numbers for each file.

use crate::{FileStatus, PathEnd};

/// Seconds and nanoseconds since 1970.
type Time = (i64, i64);

/// The parts of a status that tell whether the content was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Identity {
    size_bytes: u64,
    modified: Time,
    changed: Time,
    /// Links, mode, owner, group.
    attributes: (u64, u32, u32, u32),
}

/// A file's identity at the last check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Baseline {
    pub(super) identity: Identity,
    /// `None` where there is no `/proc`.
    pub(super) path_end: Option<PathEnd>,
}

/// A status just asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    /// Device and inode.
    pub(super) file: (u64, u64),
    pub(super) identity: Identity,
    /// When it was read last; a file system may not keep that.
    accessed: Time,
}

/// What a status means for bytes read before it was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Finding {
    /// Neither content nor inode changed.
    Same,
    /// The inode changed, and the status tells how: not by a write.
    Explained,
    /// It was touched, or grew, or its inode changed in a way that the status does not tell: only its bytes tell
    /// whether those that it had are still there.
    Unclear,
    /// It was dated anew and is as long as before: overwritten, or about to grow. The kernel dates a write before it
    /// copies its bytes, and the file is longer only then.
    Dated,
    /// It was written.
    Changed,
}

impl From<&libc::stat> for Seen {
    fn from(status: &libc::stat) -> Self {
        #[cfg_attr(
            target_arch = "x86_64",
            expect(clippy::useless_conversion, reason = "st_nlink is 32 bits on others")
        )]
        let links = u64::from(status.st_nlink);
        let identity = Identity {
            size_bytes: u64::try_from(status.st_size).unwrap_or(0),
            modified: (status.st_mtime, status.st_mtime_nsec),
            changed: (status.st_ctime, status.st_ctime_nsec),
            attributes: (links, status.st_mode, status.st_uid, status.st_gid),
        };
        Self {
            file: (status.st_dev, status.st_ino),
            identity,
            accessed: (status.st_atime, status.st_atime_nsec),
        }
    }
}

impl From<&libc::statx> for Seen {
    fn from(status: &libc::statx) -> Self {
        let time = |time: libc::statx_timestamp| (time.tv_sec, i64::from(time.tv_nsec));
        let identity = Identity {
            size_bytes: status.stx_size,
            modified: time(status.stx_mtime),
            changed: time(status.stx_ctime),
            attributes: (
                status.stx_nlink.into(),
                status.stx_mode.into(),
                status.stx_uid,
                status.stx_gid,
            ),
        };
        Self {
            file: (
                libc::makedev(status.stx_dev_major, status.stx_dev_minor),
                status.stx_ino,
            ),
            identity,
            accessed: time(status.stx_atime),
        }
    }
}

impl From<&FileStatus> for Identity {
    fn from(status: &FileStatus) -> Self {
        let time = |(seconds, nanos): (i64, u32)| (seconds, i64::from(nanos));
        let &FileStatus {
            links,
            mode,
            user,
            group,
            ..
        } = status;
        Self {
            size_bytes: status.size_bytes,
            modified: time(status.modified),
            changed: time(status.changed),
            attributes: (links.into(), mode, user, group),
        }
    }
}

impl Identity {
    pub(super) const fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Whether it was modified less than so many seconds before `now_seconds`, or after.
    pub(super) const fn is_younger_than(&self, seconds: i64, now_seconds: i64) -> bool {
        self.modified.0 > now_seconds.saturating_sub(seconds)
    }

    /// Whether size and times are the same: neither content nor inode changed.
    pub(super) fn is_same(&self, now: &Self) -> bool {
        let times = |identity: &Self| (identity.size_bytes, identity.modified, identity.changed);
        times(self) == times(now)
    }
}

impl Seen {
    #[cfg(test)]
    pub(super) const fn new(file: (u64, u64), identity: Identity, accessed: Time) -> Self {
        Self {
            file,
            identity,
            accessed,
        }
    }

    /// Whether one call set all three times, which `touch` does and a write does not.
    pub(super) fn is_touched(&self) -> bool {
        let Identity {
            modified, changed, ..
        } = self.identity;
        modified == changed && self.accessed == changed
    }
}

impl Baseline {
    /// What `now` means. `path`: what the kernel calls the file now; needed only if the identity is not the same.
    pub(super) fn compare(&self, now: &Seen, path: Option<&[u8]>) -> Finding {
        let (before, after) = (&self.identity, &now.identity);
        if before.is_same(after) {
            return Finding::Same;
        }
        if after.size_bytes > before.size_bytes {
            return Finding::Unclear;
        }
        if after.size_bytes < before.size_bytes {
            return Finding::Changed;
        }
        if after.modified != before.modified {
            return if now.is_touched() {
                Finding::Unclear
            } else {
                Finding::Dated
            };
        }
        let is_renamed = match (self.path_end, path) {
            (Some(end), Some(path)) => !end.is_end_of(path),
            _ => false,
        };
        if before.attributes != after.attributes || is_renamed {
            Finding::Explained
        } else {
            Finding::Unclear
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity = Identity {
        size_bytes: 1000,
        modified: (50, 1),
        changed: (60, 1),
        attributes: (1, 0o100_644, 0, 0),
    };
    const PATH: Option<&[u8]> = Some(b"/srv/films/a");

    fn before() -> Baseline {
        Baseline {
            identity: IDENTITY,
            path_end: Some(PathEnd::of(b"/films/a")),
        }
    }

    fn seen(identity: Identity) -> Seen {
        Seen::new((1, 1), identity, (55, 5))
    }

    #[test]
    fn size_and_times_decide_what_may_have_been_written() {
        let later = |changed| Identity {
            changed,
            ..IDENTITY
        };
        let sized = |size_bytes, modified| Identity {
            size_bytes,
            modified,
            changed: (70, 7),
            ..IDENTITY
        };
        for (now, accessed, expected) in [
            (IDENTITY, (55, 5), Finding::Same),
            // Nothing but the time of a read.
            (IDENTITY, (99, 9), Finding::Same),
            (later((60, 2)), (55, 5), Finding::Unclear),
            (later((60, 0)), (60, 0), Finding::Unclear),
            (sized(999, (50, 1)), (70, 7), Finding::Changed),
            (sized(999, (70, 7)), (70, 7), Finding::Changed),
            (sized(0, (70, 7)), (55, 5), Finding::Changed),
            (sized(1001, (70, 7)), (55, 5), Finding::Unclear),
            (sized(1001, (50, 1)), (55, 5), Finding::Unclear),
            // touch: all three at once.
            (sized(1000, (70, 7)), (70, 7), Finding::Unclear),
            // A write, before or after which somebody read.
            (sized(1000, (70, 7)), (55, 5), Finding::Dated),
            (sized(1000, (70, 7)), (70, 8), Finding::Dated),
            (sized(1000, (70, 7)), (71, 7), Finding::Dated),
            // A time that somebody chose: touch -d, or -m.
            (sized(1000, (70, 6)), (70, 6), Finding::Dated),
            (sized(1000, (49, 1)), (70, 7), Finding::Dated),
        ] {
            let now = Seen::new((1, 1), now, accessed);
            assert_eq!(before().compare(&now, PATH), expected, "{now:?}");
            // A name of its own explains a new ctime, and nothing else.
            let moved = before().compare(&now, Some(b"/srv/moved"));
            let is_ctime_only = now.identity == later(now.identity.changed);
            match expected {
                Finding::Unclear if is_ctime_only => assert_eq!(moved, Finding::Explained),
                _ => assert_eq!(moved, expected, "{now:?}"),
            }
        }
    }

    #[test]
    fn links_mode_owner_or_path_explain_a_changed_ctime() {
        let before = before();
        let after = Identity {
            changed: (60, 2),
            ..IDENTITY
        };
        for attributes in [
            (0, 0o100_644, 0, 0),
            (2, 0o100_644, 0, 0),
            (1, 0o100_600, 0, 0),
            (1, 0o100_644, 1, 0),
            (1, 0o100_644, 0, 1),
        ] {
            let now = seen(Identity {
                attributes,
                ..after
            });
            assert_eq!(before.compare(&now, PATH), Finding::Explained, "{now:?}");
        }
        let all = Some(PathEnd::of(b"/srv/films/a"));
        for (path_end, path, expected) in [
            (before.path_end, "/srv/films/b", Finding::Explained),
            (before.path_end, "/srv/old/a", Finding::Explained),
            (before.path_end, "films/a", Finding::Explained),
            (before.path_end, "/srv/old-films/a", Finding::Explained),
            (before.path_end, "/films/a", Finding::Unclear),
            // The directory that is served was moved.
            (before.path_end, "/srv2/films/a", Finding::Unclear),
            (all, "/srv/films/a", Finding::Unclear),
            (all, "/srv2/films/a", Finding::Explained),
            (None, "/srv/films/b", Finding::Unclear),
        ] {
            let before = Baseline { path_end, ..before };
            let found = before.compare(&seen(after), Some(path.as_bytes()));
            assert_eq!(found, expected, "{path:?}");
        }
        assert_eq!(before.compare(&seen(after), None), Finding::Unclear);
    }

    #[test]
    fn a_file_is_young_for_less_than_so_many_seconds() {
        for (now, expected) in [(0, true), (50, true), (109, true), (110, false)] {
            assert_eq!(IDENTITY.is_younger_than(60, now), expected, "{now}");
        }
        assert!(IDENTITY.is_younger_than(60, i64::MIN));
        assert!(!IDENTITY.is_younger_than(60, i64::MAX));
    }
}
