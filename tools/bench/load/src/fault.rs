//! What can go wrong with a connection or a reply, by kind.

use std::fmt;

use rustix::io::Errno;

/// The kinds errors are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FaultKind {
    /// No connection could be made.
    Connect,
    /// A TLS handshake failed.
    Handshake,
    /// The server closed before the first byte of a reply that was asked for.
    Closed,
    /// The server reset a connection.
    Reset,
    /// Nothing came for too long.
    TimedOut,
    /// Sending or receiving failed in another way.
    Socket,
    /// A reply with another status than 200.
    Status,
    /// A body longer or shorter than it was to be, or cut short.
    Length,
    /// A head that is no HTTP/1.1 or does not tell the body's length.
    Head,
    /// TLS records that do not add up, do not open, or an alert.
    Records,
}

impl FaultKind {
    /// Whether a server that does this has answered wrongly, rather than not at all.
    pub(crate) fn is_wrong(self) -> bool {
        match self {
            Self::Status | Self::Length | Self::Head | Self::Records => true,
            Self::Connect
            | Self::Handshake
            | Self::Closed
            | Self::Reset
            | Self::TimedOut
            | Self::Socket => false,
        }
    }

    /// Its name in a report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Handshake => "handshake",
            Self::Closed => "closed",
            Self::Reset => "reset",
            Self::TimedOut => "timed_out",
            Self::Socket => "socket",
            Self::Status => "status",
            Self::Length => "length",
            Self::Head => "head",
            Self::Records => "records",
        }
    }
}

/// One thing that went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    text: String,
}

impl Fault {
    pub(crate) fn new(kind: FaultKind, text: impl Into<String>) -> Self {
        Self {
            kind,
            text: text.into(),
        }
    }

    /// What the kernel said while `doing` something with a connection that stood.
    pub(crate) fn of_socket(doing: &str, error: Errno) -> Self {
        let kind = match error {
            Errno::CONNRESET | Errno::PIPE => FaultKind::Reset,
            Errno::TIMEDOUT => FaultKind::TimedOut,
            _ => FaultKind::Socket,
        };
        Self::new(kind, format!("{doing}: {error}"))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.text)
    }
}
