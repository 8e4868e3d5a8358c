//! Failures that affected a client, for the server's log: values, not text.
//!
//! Counters count them; this keeps the client and the object of the last event of each kind
//! since the last poll. Its memory is constant: there is one entry for each kind.

use core::net::SocketAddr;

use crate::ObjectHandle;

/// A failure that affected a client. A request for an object that does not exist is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Warning {
    /// A SYN was refused: the connection table is full, and no connection is idle.
    ConnectionTableFull {
        /// The client that was refused.
        peer: SocketAddr,
    },
    /// A SYN was answered by a SYN cookie: the half-open table is full.
    HalfOpenTableFull {
        /// The client.
        peer: SocketAddr,
    },
    /// A TLS handshake was refused.
    HandshakeRefused {
        /// The client.
        peer: SocketAddr,
    },
    /// A TLS handshake was reset because too many were in progress.
    HandshakeOverflow {
        /// The client.
        peer: SocketAddr,
    },
    /// A TLS handshake was not complete in time.
    HandshakeTimedOut {
        /// The client.
        peer: SocketAddr,
    },
    /// A read was due, and no slot was free.
    SlotFamine,
    /// A read ended before the object does; the connection was reset.
    ReadShort {
        /// The client.
        peer: SocketAddr,
        /// The object it was being sent.
        object: ObjectHandle,
    },
    /// A record that was sealed again got another tag; the connection was reset.
    ContentChanged {
        /// The client.
        peer: SocketAddr,
        /// The object it was being sent.
        object: ObjectHandle,
    },
    /// A client acknowledged nothing of a reply for too long; the connection was reset.
    SendTimedOut {
        /// The client.
        peer: SocketAddr,
    },
    /// The key of a TLS 1.2 connection reached its limit of records; the connection was reset.
    KeyExhausted {
        /// The client.
        peer: SocketAddr,
    },
}

/// Number of kinds of [`Warning`].
const KINDS: usize = 10;

impl Warning {
    const fn index(&self) -> usize {
        match self {
            Self::ConnectionTableFull { .. } => 0,
            Self::HalfOpenTableFull { .. } => 1,
            Self::HandshakeRefused { .. } => 2,
            Self::HandshakeOverflow { .. } => 3,
            Self::HandshakeTimedOut { .. } => 4,
            Self::SlotFamine => 5,
            Self::ReadShort { .. } => 6,
            Self::ContentChanged { .. } => 7,
            Self::SendTimedOut { .. } => 8,
            Self::KeyExhausted { .. } => 9,
        }
    }
}

/// The last event of each kind, and how many there were.
#[derive(Debug, Default)]
pub(crate) struct PendingWarnings {
    last: [Option<(Warning, u64)>; KINDS],
    /// How many kinds are in `last`.
    kinds: usize,
}

impl PendingWarnings {
    pub(crate) fn note(&mut self, warning: Warning) {
        let entry = &mut self.last[warning.index()];
        self.kinds += usize::from(entry.is_none());
        let before = entry.map_or(0, |(_, count)| count);
        *entry = Some((warning, before + 1));
    }

    /// Takes one kind out: its last event, and how many there were since the kind was last polled.
    pub(crate) fn poll(&mut self) -> Option<(Warning, u64)> {
        if self.kinds == 0 {
            return None;
        }
        self.kinds -= 1;
        self.last.iter_mut().find_map(Option::take)
    }
}

#[cfg(test)]
mod tests {
    use super::{KINDS, PendingWarnings, Warning};
    use crate::ObjectHandle;

    #[test]
    fn each_kind_keeps_its_last_event() {
        let peer = |port| ([192, 0, 2, 7], port).into();
        let object = ObjectHandle(1);
        let all = |port| {
            let peer = peer(port);
            [
                Warning::ConnectionTableFull { peer },
                Warning::HalfOpenTableFull { peer },
                Warning::HandshakeRefused { peer },
                Warning::HandshakeOverflow { peer },
                Warning::HandshakeTimedOut { peer },
                Warning::SlotFamine,
                Warning::ReadShort { peer, object },
                Warning::ContentChanged { peer, object },
                Warning::SendTimedOut { peer },
                Warning::KeyExhausted { peer },
            ]
        };
        assert_eq!(all(0).len(), KINDS);
        let mut warnings = PendingWarnings::default();
        assert_eq!(warnings.poll(), None);
        all(1)
            .into_iter()
            .chain(all(2))
            .for_each(|warning| warnings.note(warning));
        let told: Vec<_> = std::iter::from_fn(|| warnings.poll()).collect();
        assert_eq!(told, all(2).map(|warning| (warning, 2)));
        warnings.note(Warning::SlotFamine);
        assert_eq!(warnings.poll(), Some((Warning::SlotFamine, 1)));
        assert_eq!(warnings.poll(), None);
    }
}
