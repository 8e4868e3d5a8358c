//! Failures that affect clients, as log lines: one line for each kind in ten seconds.
//!
//! The other rooms report errors and events ([`session::Warning`]); here they become text that says
//! what happened, to whom, why, and what to do. Text is formatted only for events that are logged. It
//! refuses to log requests for files that do not exist.
//!
//! Bounds: a [`Limiter`] and one waiting line for each [`Kind`].

use std::collections::VecDeque;
use std::fmt::Write as _;

use clock::{Duration, Instant};

use crate::limiter::{Limiter, and_more};

/// How severe a line is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    /// A transfer failed, or may soon fail, for which the server or its host may be the cause.
    Warning,
    /// Probably caused by the client.
    Info,
}

macro_rules! kinds {
    ($($(#[doc = $doc:expr])+ $name:ident: $severity:ident, $title:expr;)+) => {
        /// What lines are about. Each kind is limited by itself.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Kind {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Kind {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// How severe it is.
            #[must_use]
            pub const fn severity(self) -> Severity {
                match self {
                    $(Self::$name => Severity::$severity,)+
                }
            }

            /// What its lines begin with.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self {
                    $(Self::$name => $title,)+
                }
            }
        }
    };
}

kinds! {
    /// A read failed.
    ReadFailed: Warning, "read failed, connection reset";
    /// A file changed while it was being sent.
    FileChanged: Warning, "file changed while it was being sent, connection reset";
    /// An object was in use for too long after its name led elsewhere.
    ObjectOutdated: Info, "an object that was replaced or removed is sent for too long, connections reset";
    /// A look-up failed.
    LookupFailed: Warning, "look-up failed";
    /// A look-up took too long.
    LookupOverdue: Warning, "look-up overdue";
    /// The table of connections is full.
    ConnectionTableFull: Warning, "connection refused, connections_max are open";
    /// The table of half-open connections is full.
    HalfOpenTableFull: Warning, "SYN cookies in use, too many TCP handshakes are under way";
    /// A TLS handshake was refused.
    HandshakeRefused: Info, "TLS handshake refused";
    /// A TLS handshake was given up for another.
    HandshakeOverflow: Warning, "TLS handshake given up, too many are under way";
    /// A TLS handshake did not end in time.
    HandshakeTimedOut: Info, "TLS handshake not finished in time";
    /// No slot was free.
    SlotFamine: Warning, "reads wait for a free slot";
    /// A client took nothing for too long.
    SendTimedOut: Info, "client acknowledged nothing in time, connection reset";
    /// A key of TLS 1.2 was used up.
    KeyExhausted: Info, "TLS 1.2 key used up, connection reset";
    /// An NVMe controller was reset.
    ControllerReset: Warning, "NVMe controller reset";
    /// An NVMe controller has failed.
    ControllerFailed: Warning, "NVMe controller failed, reads from it fail until the server is started again";
    /// The link lost frames.
    FrameLost: Warning, "frame lost, the kernel refused it";
}

/// Interval of the checks for events without a line.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// A line for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Warning {
    /// How severe it is.
    pub severity: Severity,
    /// What it says.
    pub text: String,
}

/// Decides what becomes a line.
#[derive(Debug)]
pub struct Warnings {
    limiters: Vec<Limiter>,
    waiting: VecDeque<Warning>,
    polled_at: Instant,
}

impl Default for Warnings {
    fn default() -> Self {
        Self {
            limiters: vec![Limiter::default(); Kind::ALL.len()],
            waiting: VecDeque::with_capacity(Kind::ALL.len()),
            polled_at: Instant::ZERO,
        }
    }
}

impl Warnings {
    /// It happened `count` times. `write` says more of the last time: whom, what, why, what to do.
    pub fn note(&mut self, now: Instant, kind: Kind, count: u64, write: impl FnOnce(&mut String)) {
        let Some(limiter) = self.limiters.get_mut(kind as usize) else {
            return;
        };
        if let Some(before) = limiter.admit(now, count) {
            let mut text = format!("{}: ", kind.title());
            write(&mut text);
            text.push_str(&and_more(before));
            self.push(kind, text);
        }
    }

    /// The next line.
    pub fn poll(&mut self, now: Instant) -> Option<Warning> {
        if now >= self.polled_at + POLL_EVERY {
            self.polled_at = now;
            for &kind in Kind::ALL {
                let limiter = self.limiters.get_mut(kind as usize);
                if let Some(count) = limiter.and_then(|limiter| limiter.poll(now)) {
                    self.push(kind, format!("{}: {count} more like it", kind.title()));
                }
            }
        }
        self.waiting.pop_front()
    }

    /// Polled every round, at most two lines of a kind wait. The limit holds without polls, too.
    fn push(&mut self, kind: Kind, text: String) {
        if self.waiting.len() < 2 * Kind::ALL.len() {
            let severity = kind.severity();
            self.waiting.push_back(Warning { severity, text });
        }
    }
}

/// Adds an errno's name to a line.
pub fn push_errno(text: &mut String, errno: i32) {
    let _ = write!(text, "{}", std::io::Error::from_raw_os_error(errno));
}

#[cfg(test)]
mod tests {
    use super::{Kind, POLL_EVERY, Severity, Warning, Warnings, push_errno};
    use crate::limiter::LINE_EVERY;
    use clock::Instant;

    fn drain(warnings: &mut Warnings, now: Instant) -> Vec<String> {
        std::iter::from_fn(|| warnings.poll(now))
            .map(|warning| warning.text)
            .collect()
    }

    #[test]
    fn a_kind_is_logged_at_once_and_then_counted() {
        let mut warnings = Warnings::default();
        let start = Instant::from_millis(1);
        warnings.note(start, Kind::ReadFailed, 1, |text| {
            text.push_str("/a: ");
            push_errno(text, libc::EIO);
        });
        assert_eq!(
            drain(&mut warnings, start),
            ["read failed, connection reset: /a: Input/output error (os error 5)"]
        );
        warnings.note(start, Kind::ReadFailed, 3, |_| {
            unreachable!("it is no line")
        });
        assert_eq!(drain(&mut warnings, start), [""; 0]);
        warnings.note(start + LINE_EVERY, Kind::ReadFailed, 2, |text| {
            text.push_str("/b")
        });
        assert_eq!(
            drain(&mut warnings, start + LINE_EVERY),
            ["read failed, connection reset: /b (and 4 more like it before)"]
        );
    }

    #[test]
    fn kinds_do_not_silence_each_other() {
        let mut warnings = Warnings::default();
        for &kind in Kind::ALL {
            warnings.note(Instant::ZERO, kind, 1, |text| text.push('x'));
        }
        let told = drain(&mut warnings, Instant::ZERO);
        assert_eq!(told.len(), Kind::ALL.len());
        assert!(told.iter().all(|text| text.ends_with(": x")), "{told:?}");
    }

    #[test]
    fn counted_events_are_logged_after_the_interval() {
        let mut warnings = Warnings::default();
        let start = Instant::ZERO;
        warnings.note(start, Kind::SlotFamine, 1, |text| text.push('x'));
        warnings.note(start, Kind::SlotFamine, 1_000, |_| {});
        assert_eq!(drain(&mut warnings, start).len(), 1);
        let end = start + LINE_EVERY;
        assert_eq!(
            drain(&mut warnings, end),
            ["reads wait for a free slot: 1000 more like it"]
        );
        assert_eq!(drain(&mut warnings, end + LINE_EVERY), [""; 0]);
    }

    #[test]
    fn lines_that_are_not_polled_are_bounded() {
        let mut warnings = Warnings::default();
        let mut now = Instant::ZERO;
        for _ in 0..1_000 {
            now += LINE_EVERY + POLL_EVERY;
            warnings.note(now, Kind::FrameLost, 1, |_| {});
        }
        assert_eq!(drain(&mut warnings, now).len(), 2 * Kind::ALL.len());
    }

    #[test]
    fn a_failure_caused_by_the_client_is_no_warning() {
        let mut warnings = Warnings::default();
        warnings.note(Instant::ZERO, Kind::SendTimedOut, 1, |_| {});
        let told: Warning = warnings.poll(Instant::ZERO).unwrap();
        assert_eq!(told.severity, Severity::Info);
        assert_eq!(Kind::ReadFailed.severity(), Severity::Warning);
    }
}
