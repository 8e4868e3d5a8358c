//! Why something failed: kinds that decide what is done next, and one line for people.
//!
//! It refuses to pass on what libraries say of a request: addresses, fields and replies of origins have credentials in
//! them. A reply's status and S3's code of an error are passed on, and the innermost reason of a connection.

use std::fmt;

/// What kind of failure it is. Reports and metrics have its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// The origin cannot be reached.
    Connect,
    /// It sent nothing for too long.
    Stalled,
    /// The connection broke in the middle.
    Broken,
    /// It said 5xx.
    Server,
    /// It said 429 or 503: not so fast.
    Throttled,
    /// It refuses these credentials: 401, 403.
    Denied,
    /// It redirects for ever, or elsewhere without saying where.
    Redirects,
    /// It said another status.
    Status,
    /// It does not have the object: 404, 410.
    Absent,
    /// The object changed while it was fetched.
    Changed,
    /// It sent more or less than it said.
    Length,
    /// The content is not what its digest says.
    Checksum,
    /// The reply is none of the protocol.
    Protocol,
    /// It does not send parts of objects.
    NoRanges,
    /// A file or device of this machine.
    Local,
    /// No space on this machine.
    NoSpace,
    /// No file can be made here under this name.
    Name,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::Connect,
        Self::Stalled,
        Self::Broken,
        Self::Server,
        Self::Throttled,
        Self::Denied,
        Self::Redirects,
        Self::Status,
        Self::Absent,
        Self::Changed,
        Self::Length,
        Self::Checksum,
        Self::Protocol,
        Self::NoRanges,
        Self::Local,
        Self::NoSpace,
        Self::Name,
    ];

    /// As reports and metrics have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Stalled => "stalled",
            Self::Broken => "broken",
            Self::Server => "server",
            Self::Throttled => "throttled",
            Self::Denied => "denied",
            Self::Redirects => "redirects",
            Self::Status => "status",
            Self::Absent => "absent",
            Self::Changed => "changed",
            Self::Length => "length",
            Self::Checksum => "checksum",
            Self::Protocol => "protocol",
            Self::NoRanges => "no_ranges",
            Self::Local => "local",
            Self::NoSpace => "no_space",
            Self::Name => "name",
        }
    }

    /// Whether the origin failed, whatever object was asked for.
    #[must_use]
    pub const fn is_of_origin(self) -> bool {
        matches!(self, Self::Connect | Self::Throttled)
    }

    /// Whether this machine failed: another object would, too.
    #[must_use]
    pub const fn is_local(self) -> bool {
        matches!(self, Self::Local | Self::NoSpace)
    }
}

/// A failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// What is done about it.
    pub kind: Kind,
    /// In a line, without credentials.
    pub text: String,
    /// When the origin said to come back, milliseconds from now.
    pub retry_after_ms: Option<u64>,
}

impl Fault {
    /// A failure of this kind.
    #[must_use]
    pub fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self {
            kind,
            text: text.into(),
            retry_after_ms: None,
        }
    }

    /// What a system call said of a path.
    #[must_use]
    pub fn of_io(what: &str, error: &std::io::Error) -> Self {
        let kind = match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Kind::NoSpace,
            _ => Kind::Local,
        };
        Self::new(kind, format!("{what}: {error}"))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_a_name_of_its_own_and_is_of_one_place() {
        let mut names: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Kind::ALL.len());
        assert!(
            Kind::ALL
                .iter()
                .all(|it| !(it.is_of_origin() && it.is_local()))
        );
    }

    #[test]
    fn a_full_disk_is_told_apart() {
        for (errno, kind) in [(28, Kind::NoSpace), (122, Kind::NoSpace), (13, Kind::Local)] {
            let error = std::io::Error::from_raw_os_error(errno);
            assert_eq!(Fault::of_io("x", &error).kind, kind, "{errno}");
        }
    }
}
