//! Events that harmed a client, for the server's log: values, not text.
//!
//! Counters count such events; this keeps the client and the object of the last event of each kind
//! since the last poll. Its memory is constant: there is one entry for each kind.

use core::net::SocketAddr;

use crate::ObjectHandle;

/// An event that harmed a client. A request for an object that does not exist is not one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// A SYN was refused: the connection table is full.
    ConnectionTableFull {
        /// The client that was refused.
        peer: SocketAddr,
    },
    /// A half-open connection was evicted for a new one: the half-open table is full.
    HalfOpenTableFull {
        /// The client of the new connection.
        peer: SocketAddr,
    },
    /// A TLS handshake was refused.
    HandshakeRefused {
        /// Whose.
        peer: SocketAddr,
    },
    /// A TLS handshake was given up because too many were under way.
    HandshakeOverflow {
        /// Whose.
        peer: SocketAddr,
    },
    /// A TLS handshake did not end in time.
    HandshakeTimedOut {
        /// Whose.
        peer: SocketAddr,
    },
    /// A read was due, and no slot was free.
    SlotFamine,
    /// A read ended before the object should; the connection was reset.
    ReadShort {
        /// Who lost its connection.
        peer: SocketAddr,
        /// What it was being sent.
        object: ObjectHandle,
    },
    /// A record, sealed again, was not what it had been; the connection was reset.
    ContentChanged {
        /// Who lost its connection.
        peer: SocketAddr,
        /// What it was being sent.
        object: ObjectHandle,
    },
    /// A client acknowledged nothing of a reply for too long; the connection was reset.
    SendTimedOut {
        /// Who.
        peer: SocketAddr,
    },
    /// The key of a TLS 1.2 connection had sealed all it may; the connection was reset.
    KeyExhausted {
        /// Who lost its connection.
        peer: SocketAddr,
    },
}

/// Kinds of [`Trouble`].
const KINDS: usize = 10;

impl Trouble {
    const fn place(&self) -> usize {
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
pub(crate) struct Troubles {
    last: [Option<(Trouble, u64)>; KINDS],
    /// How many kinds are in `last`.
    kinds: usize,
}

impl Troubles {
    pub(crate) fn note(&mut self, trouble: Trouble) {
        let place = &mut self.last[trouble.place()];
        self.kinds += usize::from(place.is_none());
        let before = place.map_or(0, |(_, count)| count);
        *place = Some((trouble, before + 1));
    }

    /// Takes one kind out: its last event, and how many there were since the kind was last polled.
    pub(crate) fn poll(&mut self) -> Option<(Trouble, u64)> {
        if self.kinds == 0 {
            return None;
        }
        self.kinds -= 1;
        self.last.iter_mut().find_map(Option::take)
    }
}

#[cfg(test)]
mod tests {
    use super::{KINDS, Trouble, Troubles};
    use crate::ObjectHandle;

    #[test]
    fn each_kind_keeps_its_last_event() {
        let peer = |port| ([192, 0, 2, 7], port).into();
        let object = ObjectHandle(1);
        let all = |port| {
            let peer = peer(port);
            [
                Trouble::ConnectionTableFull { peer },
                Trouble::HalfOpenTableFull { peer },
                Trouble::HandshakeRefused { peer },
                Trouble::HandshakeOverflow { peer },
                Trouble::HandshakeTimedOut { peer },
                Trouble::SlotFamine,
                Trouble::ReadShort { peer, object },
                Trouble::ContentChanged { peer, object },
                Trouble::SendTimedOut { peer },
                Trouble::KeyExhausted { peer },
            ]
        };
        assert_eq!(all(0).len(), KINDS);
        let mut troubles = Troubles::default();
        assert_eq!(troubles.poll(), None);
        all(1)
            .into_iter()
            .chain(all(2))
            .for_each(|trouble| troubles.note(trouble));
        let told: Vec<_> = std::iter::from_fn(|| troubles.poll()).collect();
        assert_eq!(told, all(2).map(|trouble| (trouble, 2)));
        troubles.note(Trouble::SlotFamine);
        assert_eq!(troubles.poll(), Some((Trouble::SlotFamine, 1)));
        assert_eq!(troubles.poll(), None);
    }
}
