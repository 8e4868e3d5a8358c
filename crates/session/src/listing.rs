//! A connection as it is shown to operators, and where in its table it is.
//!
//! Refused: half-open connections and those in TIME-WAIT, which send nothing. Bounds: the caller
//! asks for a page at a time, and says how many places of the table may be looked at for it.

use tcp::{ConnectionInfo, FourTuple};

use crate::ObjectHandle;

/// What a connection is waiting for or doing, above TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activity {
    /// A TLS handshake is under way.
    Handshake,
    /// It waits for the first byte of a request.
    Request,
    /// It waits for the rest of a request's head.
    Head,
    /// The path of its request is being looked up.
    LookUp,
    /// A reply is under way.
    Reply,
    /// It takes no more requests, and nothing is left to send but the end.
    Close,
}

impl Activity {
    /// The name in listings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Handshake => "handshake",
            Self::Request => "request",
            Self::Head => "head",
            Self::LookUp => "look_up",
            Self::Reply => "reply",
            Self::Close => "close",
        }
    }
}

/// One connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedConnection {
    /// Both ends.
    pub tuple: FourTuple,
    /// Whether it is on the port of TLS.
    pub is_tls: bool,
    /// What it is doing.
    pub activity: Activity,
    /// The object that the first byte not acknowledged is of, or the next one that is.
    pub object: Option<ObjectHandle>,
    /// Replies not acknowledged to their end.
    pub replies: usize,
    /// Reads of the disk under way for it.
    pub reads: usize,
    /// It may not read now, because it used its read budget ([`crate::ReadLimits`]).
    pub is_over_budget: bool,
    /// What TCP says.
    pub info: ConnectionInfo,
}

/// How much of the table a page may cover.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageLimits {
    /// Connections on the page.
    pub rows_max: usize,
    /// Places looked at; one without a connection costs as much as one that is not wanted.
    pub places_max: u32,
}
