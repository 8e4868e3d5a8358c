//! Why `atlas` ended: one line with its remedy, and an exit code.
//!
//! It refuses chains of "caused by": the code that makes a [`Failure`] knows the remedy. Bound: one
//! line.

use std::fmt;

/// The exit code after a normal end.
pub const EXIT_OK: u8 = 0;
/// The exit code after an error while serving: the interface was removed, the disk's queue failed.
pub const EXIT_BROKEN: u8 = 1;
/// The exit code when serving could not begin: usage, configuration, missing rights or devices.
pub const EXIT_REFUSED: u8 = 2;
/// What is added to a signal's number when a second one ended the server at once, as a shell does
/// for a process that the signal killed.
pub const EXIT_INTERRUPTED: u8 = 128;

/// A reason to end, in one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// Serving could not begin. The text ends in what the operator can do.
    Refused(String),
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
    pub fn refused(problem: impl AsRef<str>, remedy: impl AsRef<str>) -> Self {
        Self::Refused(format!(
            "{}; {}",
            one_line(problem.as_ref()),
            one_line(remedy.as_ref())
        ))
    }

    /// The process's exit code for it.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(_) => EXIT_REFUSED,
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
            Self::Refused(text) | Self::Broken(text) | Self::Stopped { text, .. } => {
                f.write_str(&one_line(text))
            }
            Self::Interrupted { connections, .. } => write!(
                f,
                "a second signal ended the server at once: {connections} connections were reset"
            ),
        }
    }
}

/// Parsers of foreign formats (TOML above all) explain themselves over several lines. The promise
/// is one line, so the breaks become spaces.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::{EXIT_BROKEN, EXIT_REFUSED, Failure};

    #[test]
    fn a_failure_is_always_one_line() {
        let failure = Failure::refused("config:\n  | bad\n", "fix\nit");
        assert_eq!(failure.to_string(), "config: | bad; fix it");
    }

    #[test]
    fn only_a_refusal_exits_with_two() {
        assert_eq!(Failure::refused("a", "b").exit_code(), EXIT_REFUSED);
        assert_eq!(Failure::Broken("a".into()).exit_code(), EXIT_BROKEN);
        let interrupted = Failure::Interrupted {
            signal: libc::SIGTERM,
            connections: 1,
        };
        assert_eq!(interrupted.exit_code(), 143);
    }
}
