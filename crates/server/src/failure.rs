//! Why `atlas` ended: one line with its remedy, and an exit code.
//!
//! It refuses chains of "caused by": the code that makes a [`Failure`] knows the remedy. Bound: one
//! line.

use std::fmt;
use std::io;

use crate::start::host;

/// The exit code after a normal end.
pub(crate) const EXIT_OK: u8 = 0;
/// The exit code after an error while serving: the interface was removed, the disk's queue failed.
pub(crate) const EXIT_BROKEN: u8 = 1;
/// The exit code when serving could not begin, and will not the next time: usage, configuration, missing
/// rights or devices. A service manager is not to try again.
pub(crate) const EXIT_REFUSED: u8 = 2;
/// The exit code when serving could not begin now, for a reason that may pass: `EX_TEMPFAIL` of
/// sysexits(3). A service manager is to try again.
pub(crate) const EXIT_NOT_NOW: u8 = 75;
/// What is added to a signal's number when a second one ended the server at once, as a shell does
/// for a process that the signal killed.
pub(crate) const EXIT_INTERRUPTED: u8 = 128;

/// Every exit code of `atlas serve`, and what it means: for `--help`, and held against the documents.
pub(crate) const EXIT_CODES: [(&str, &str); 5] = [
    ("0", "ended by SIGINT or SIGTERM"),
    (
        "1",
        "an error while serving (interface removed, device failure)",
    ),
    (
        "2",
        "serving could not begin, and will not the next time: stderr says why, and names the remedy",
    ),
    (
        "75",
        "serving could not begin now (interface not there yet, address or port taken): try again",
    ),
    (
        "130, 143",
        "a second SIGINT or SIGTERM reset the replies in progress",
    ),
];

/// A reason to end, in one line, or several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// Serving could not begin. The text ends in what the operator can do.
    Refused(String),
    /// Serving could not begin, for a reason that may pass by itself. The text ends in what the operator
    /// can do.
    NotNow(String),
    /// Several reasons, each for itself, none of them this.
    Several(Vec<Self>),
    /// Serving broke off.
    Broken(String),
    /// A signal ended a command that changes nothing then.
    Stopped {
        /// The signal's number.
        signal: i32,
        /// What is so.
        text: String,
    },
    /// A second SIGINT or SIGTERM broke off what was being finished.
    Interrupted {
        /// The signal's number.
        signal: i32,
        /// Connections that were reset.
        connections: usize,
    },
}

impl Failure {
    /// Serving cannot begin because of `problem`; `remedy` says what to do.
    #[must_use]
    pub(crate) fn refused(problem: impl AsRef<str>, remedy: impl AsRef<str>) -> Self {
        Self::Refused(format!(
            "{}; {}",
            one_line(problem.as_ref()),
            one_line(remedy.as_ref())
        ))
    }

    /// The same for a reason that may pass by itself.
    #[must_use]
    pub(crate) fn not_now(problem: impl AsRef<str>, remedy: impl AsRef<str>) -> Self {
        match Self::refused(problem, remedy) {
            Self::Refused(text) => Self::NotNow(text),
            other => other,
        }
    }

    /// The same for what the kernel answered: [`Failure::not_now`] where that may pass by itself. Where it
    /// may be a filter of system calls that has answered, the remedy says so.
    #[must_use]
    pub(crate) fn of_error(
        error: &io::Error,
        problem: impl AsRef<str>,
        remedy: impl AsRef<str>,
    ) -> Self {
        match error.raw_os_error() {
            Some(errno) if may_pass(errno) => Self::not_now(problem, remedy),
            Some(libc::EPERM | libc::ENOSYS) if host::has_filter() => {
                let remedy = remedy.as_ref();
                Self::refused(
                    problem,
                    format!(
                        "{remedy}; a filter of system calls is in force here, which may have refused it: see the \
                         seccomp profile of the container, or SystemCallFilter= of the unit"
                    ),
                )
            }
            _ => Self::refused(problem, remedy),
        }
    }

    /// The same, with words in front of why serving could not begin.
    #[must_use]
    pub(crate) fn behind(self, words: &str) -> Self {
        match self {
            Self::Refused(text) => Self::Refused(format!("{words}{text}")),
            Self::NotNow(text) => Self::NotNow(format!("{words}{text}")),
            Self::Several(reasons) => {
                Self::Several(reasons.into_iter().map(|it| it.behind(words)).collect())
            }
            other => other,
        }
    }

    /// All of these, if there are any.
    ///
    /// # Errors
    /// They.
    pub(crate) fn all(mut reasons: Vec<Self>) -> Result<(), Self> {
        match reasons.len() {
            0 => Ok(()),
            1 => Err(reasons.remove(0)),
            _ => Err(Self::Several(reasons)),
        }
    }

    /// Each reason for itself: one, but for [`Failure::Several`].
    #[must_use]
    pub(crate) fn reasons(&self) -> &[Self] {
        match self {
            Self::Several(reasons) => reasons,
            one => std::slice::from_ref(one),
        }
    }

    /// The same, taken apart.
    #[must_use]
    pub(crate) fn into_reasons(self) -> Vec<Self> {
        match self {
            Self::Several(reasons) => reasons,
            one => vec![one],
        }
    }

    /// The process's exit code for it.
    #[must_use]
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(_) => EXIT_REFUSED,
            Self::NotNow(_) => EXIT_NOT_NOW,
            // One that will not pass decides.
            Self::Several(reasons) => {
                let codes = reasons.iter().map(Self::exit_code);
                codes.min().unwrap_or(EXIT_REFUSED)
            }
            Self::Broken(_) => EXIT_BROKEN,
            Self::Stopped { signal, .. } | Self::Interrupted { signal, .. } => {
                u8::try_from(*signal).map_or(EXIT_BROKEN, |signal| {
                    EXIT_INTERRUPTED.saturating_add(signal)
                })
            }
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(text)
            | Self::NotNow(text)
            | Self::Broken(text)
            | Self::Stopped { text, .. } => f.write_str(&one_line(text)),
            Self::Several(reasons) => {
                let texts: Vec<String> = reasons.iter().map(Self::to_string).collect();
                f.write_str(&texts.join(" | "))
            }
            Self::Interrupted { connections, .. } => write!(
                f,
                "a second signal ended the server at once: {connections} connections were reset"
            ),
        }
    }
}

/// Whether what the kernel answered may be otherwise soon, though nobody changes a setting: something is
/// not there yet, is in use, has no room, or does not answer.
#[must_use]
pub(crate) const fn may_pass(errno: i32) -> bool {
    matches!(
        errno,
        libc::EAGAIN
            | libc::EADDRINUSE
            | libc::EADDRNOTAVAIL
            | libc::EBUSY
            | libc::EINTR
            | libc::EIO
            | libc::ENETDOWN
            | libc::ENFILE
            | libc::ENOBUFS
            | libc::ENODEV
            | libc::ENOSPC
            | libc::ENOTCONN
            | libc::ENXIO
            | libc::ESTALE
            | libc::ETIMEDOUT
    )
}

/// Parsers of foreign formats (TOML above all) explain themselves over several lines. The promise
/// is one line, so the breaks become spaces.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::{EXIT_BROKEN, EXIT_CODES, EXIT_NOT_NOW, EXIT_OK, EXIT_REFUSED, Failure};

    #[test]
    fn a_failure_is_always_one_line() {
        let failure = Failure::refused("config:\n  | bad\n", "fix\nit");
        assert_eq!(failure.to_string(), "config: | bad; fix it");
    }

    #[test]
    fn the_exit_code_tells_whether_it_is_worth_trying_again() {
        assert_eq!(Failure::refused("a", "b").exit_code(), EXIT_REFUSED);
        assert_eq!(Failure::not_now("a", "b").exit_code(), EXIT_NOT_NOW);
        assert_eq!(Failure::Broken("a".into()).exit_code(), EXIT_BROKEN);
        let interrupted = Failure::Interrupted {
            signal: libc::SIGTERM,
            connections: 1,
        };
        assert_eq!(interrupted.exit_code(), 143);
    }

    #[test]
    fn what_the_kernel_says_of_the_moment_is_worth_trying_again() {
        let code = |errno| {
            let error = std::io::Error::from_raw_os_error(errno);
            Failure::of_error(&error, "a", "b").exit_code()
        };
        for errno in [libc::EADDRINUSE, libc::ENODEV, libc::EBUSY, libc::ESTALE] {
            assert_eq!(code(errno), EXIT_NOT_NOW, "{errno}");
        }
        for errno in [libc::EACCES, libc::EPERM, libc::ENOENT, libc::ENOSYS] {
            assert_eq!(code(errno), EXIT_REFUSED, "{errno}");
        }
        let several = |reasons: &[Failure]| Failure::Several(reasons.to_vec()).exit_code();
        let (now, never) = (Failure::not_now("a", "b"), Failure::refused("a", "b"));
        assert_eq!(several(&[now.clone(), now.clone()]), EXIT_NOT_NOW);
        assert_eq!(several(&[now, never]), EXIT_REFUSED);
        let behind = Failure::not_now("a", "b").behind("PATH ");
        assert_eq!(behind, Failure::NotNow("PATH a; b".into()));
    }

    #[test]
    fn the_exit_codes_are_listed_and_in_the_unit() {
        let codes = EXIT_CODES.map(|(codes, _)| codes);
        for code in [EXIT_OK, EXIT_BROKEN, EXIT_REFUSED, EXIT_NOT_NOW] {
            assert!(codes.contains(&code.to_string().as_str()), "{code}");
        }
        // A manager tries again after any other one, however often.
        let unit = include_str!("../../../dist/atlas.service");
        for line in [
            &format!("RestartPreventExitStatus={EXIT_REFUSED}"),
            "Restart=on-failure",
            "StartLimitIntervalSec=0",
        ] {
            assert!(unit.lines().any(|other| other == line), "{line}");
        }
    }
}
