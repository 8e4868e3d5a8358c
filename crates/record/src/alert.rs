//! Alerts (RFC 8446 s6).

/// Why a connection ends, as sent to the peer. The numbers are the protocol's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum AlertDescription {
    /// The sender will send nothing more.
    CloseNotify = 0,
    /// A message that is not allowed now.
    UnexpectedMessage = 10,
    /// A record that cannot be opened.
    BadRecordMac = 20,
    /// A record longer than allowed.
    RecordOverflow = 22,
    /// A field out of range.
    IllegalParameter = 47,
    /// A message that cannot be parsed.
    DecodeError = 50,
    /// A version we do not speak.
    ProtocolVersion = 70,
    /// An internal error of ours.
    InternalError = 80,
    /// TLS 1.2: a second handshake on the same connection is refused.
    NoRenegotiation = 100,
}

/// An alert message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alert {
    /// Level 2; else 1, warning.
    pub is_fatal: bool,
    /// Its cause.
    pub description: AlertDescription,
}

impl Alert {
    /// The sender will send nothing more (RFC 8446 s6.1).
    pub const CLOSE_NOTIFY: Self = Self {
        is_fatal: false,
        description: AlertDescription::CloseNotify,
    };

    /// The connection ends with this.
    #[must_use]
    pub const fn fatal(description: AlertDescription) -> Self {
        Self {
            is_fatal: true,
            description,
        }
    }

    /// The message.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 2] {
        [if self.is_fatal { 2 } else { 1 }, self.description as u8]
    }
}
