//! TIME-WAIT: the four-tuple of a closed connection is not reused for two maximum segment lifetimes,
//! so that a late duplicate segment cannot disturb a new connection (RFC 9293 s3.3.2, s3.6.1).
//!
//! Several clients behind one address translator use the same four-tuples, with sequence numbers and
//! timestamps that have nothing to do with each other. A SYN that is not certainly newer is answered by
//! an ACK. Its client knows nothing of that connection and sends a reset at the number acknowledged
//! (RFC 9293 s3.10.7.3), then its SYN again. RFC 1337 s3 wants such resets ignored, and then the client
//! waits for the end of TIME-WAIT; Linux (`tcp_rfc1337` = 0) ends TIME-WAIT. Neither is done here: the
//! reset tells that no peer is left, so the next SYN opens a connection, whatever its numbers, but all else
//! is treated as before. What RFC 1337 s2 fears of an early end does not follow: a FIN that comes again
//! is acknowledged and not reset, old duplicates meet this entry and no listener, and the new connection's
//! initial sequence number is beyond the old one's.
//!
//! An entry is a few words. The table is bounded; when it is full the oldest entry is evicted, which
//! weakens the protection but never refuses a new client.

use clock::{Duration, Instant};
use wire::{SeqNumber, TcpFlags, TcpOptions, TcpRepr};

use crate::listener::is_connection_request;
use crate::receive::TimestampState;
use crate::table::FourTuple;

/// Twice the maximum segment lifetime, as in Linux (RFC 9293 s3.4.2 leaves MSL to us).
pub const DURATION: Duration = Duration::from_secs(60);

/// Distance from the old connection's last sequence number to the initial one of a new connection
/// with its four-tuple, so that ACKs slightly beyond what was sent do not reach the new one either.
const ISS_GAP: u32 = 1 << 16;

/// The state kept of a closed connection.
#[derive(Clone, Copy, Debug)]
pub struct TimeWait {
    tuple: FourTuple,
    send_next: SeqNumber,
    receive_next: SeqNumber,
    timestamps: Option<TimestampState>,
    /// The peer has not sent its FIN: we closed an idle connection and kept no more than this.
    peer_is_open: bool,
    /// A reset said that the peer has no such connection any more: any SYN is that of a new one.
    peer_is_gone: bool,
    expires_at: Instant,
}

/// What a segment means to a four-tuple in TIME-WAIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeWaitVerdict {
    /// An old duplicate, or a reset: there is nothing to do.
    Ignore,
    /// The peer's FIN: it did not receive our last ACK; this is it again. No limit: whoever knows where
    /// the FIN belongs is the peer, or sees its segments.
    Acknowledge(TcpRepr),
    /// Any other segment that is answered, which anybody may have forged: answer it with this ACK if the
    /// host's limit of challenge ACKs permits another one (RFC 5961 s7).
    Challenge(TcpRepr),
    /// The peer sent data after we closed the connection: answer with a reset, as for a connection
    /// that does not exist (RFC 9293 s3.6.1).
    Reset,
    /// The SYN of a new connection with the same four-tuple, which is certainly newer than the old
    /// one (RFC 6191 s2), or whose client has said that it has no other: remove the entry and handle the SYN as for a new connection.
    Reopen {
        /// The least initial sequence number with which segments of the old connection that are
        /// still in the network do not fall into the new one (RFC 9293 s3.6.1).
        iss_min: SeqNumber,
    },
}

impl TimeWait {
    /// An entry that begins at `now`.
    #[must_use]
    pub fn new(
        now: Instant,
        tuple: FourTuple,
        send_next: SeqNumber,
        receive_next: SeqNumber,
        timestamps: Option<TimestampState>,
    ) -> Self {
        Self {
            tuple,
            send_next,
            receive_next,
            timestamps,
            peer_is_open: false,
            peer_is_gone: false,
            expires_at: now + DURATION,
        }
    }

    /// The same for a connection whose peer has not sent its FIN. Ours is sent once: if it is lost,
    /// the peer finds out when it next sends.
    #[must_use]
    pub const fn with_open_peer(mut self) -> Self {
        self.peer_is_open = true;
        self
    }

    /// Both ends.
    #[must_use]
    pub const fn tuple(&self) -> FourTuple {
        self.tuple
    }

    /// When the four-tuple is free again.
    #[must_use]
    pub const fn expires_at(&self) -> Instant {
        self.expires_at
    }

    /// A segment with this four-tuple arrived.
    #[must_use]
    pub fn handle_segment(
        &mut self,
        now: Instant,
        segment: &TcpRepr,
        payload: usize,
    ) -> TimeWaitVerdict {
        if segment.flags.contains(TcpFlags::RST) {
            // RFC 5961 s3.2: exactly there. No PAWS (RFC 7323 s5.2): another client behind the same
            // address has another timestamp clock.
            self.peer_is_gone |= segment.sequence == self.receive_next;
            return TimeWaitVerdict::Ignore;
        }
        let is_later = segment.sequence.distance(self.receive_next) > 0;
        if is_connection_request(segment) {
            let newer_stamp = match (&self.timestamps, segment.options.timestamps) {
                (Some(state), Some(stamp)) => state.is_newer(stamp.value),
                _ => false,
            };
            if is_later || newer_stamp || self.peer_is_gone {
                return TimeWaitVerdict::Reopen {
                    iss_min: self.send_next.wrapping_add(ISS_GAP),
                };
            }
        }
        let occupies = payload > 0
            || segment.flags.contains(TcpFlags::FIN)
            || segment.flags.contains(TcpFlags::SYN);
        if !occupies && !is_later {
            return TimeWaitVerdict::Ignore;
        }
        if self.peer_is_open && payload > 0 {
            return TimeWaitVerdict::Reset;
        }
        let acknowledgment = self.acknowledgment(now);
        match self.is_peers_fin(segment, payload) {
            true if self.peer_is_open => TimeWaitVerdict::Acknowledge(TcpRepr {
                acknowledgment: self.receive_next.wrapping_add(1),
                ..acknowledgment
            }),
            true => TimeWaitVerdict::Acknowledge(acknowledgment),
            false => TimeWaitVerdict::Challenge(acknowledgment),
        }
    }

    /// Whether a segment ends with the peer's FIN, which is the last thing before RCV.NXT, or the next at
    /// it if the peer had not sent it.
    fn is_peers_fin(&self, segment: &TcpRepr, payload: usize) -> bool {
        let is_fin =
            segment.flags.contains(TcpFlags::FIN) && !segment.flags.contains(TcpFlags::SYN);
        let Ok(payload) = u32::try_from(payload) else {
            return false;
        };
        let fin_at = segment.sequence.wrapping_add(payload);
        let next = fin_at.wrapping_add(u32::from(!self.peer_is_open));
        is_fin && next == self.receive_next
    }

    /// The last ACK of the connection.
    #[must_use]
    pub fn acknowledgment(&self, now: Instant) -> TcpRepr {
        TcpRepr {
            source_port: self.tuple.local.port(),
            destination_port: self.tuple.peer.port(),
            sequence: self.send_next,
            acknowledgment: self.receive_next,
            flags: TcpFlags::ACK,
            window: 0,
            options: TcpOptions {
                timestamps: self.timestamps.map(|state| state.stamp(now)),
                ..TcpOptions::default()
            },
        }
    }
}

/// A bounded table of four-tuples in TIME-WAIT, oldest first.
#[derive(Debug)]
pub struct TimeWaitTable {
    /// A ring: all entries wait equally long, so the oldest expires first. An entry removed early
    /// leaves a gap, but never at `oldest`, so the next entry to expire is found at once.
    ring: Vec<Option<TimeWait>>,
    oldest: usize,
    used: usize,
}

impl TimeWaitTable {
    /// Room for `capacity` entries, allocated now; at least one.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            ring: vec![None; capacity.max(1)],
            oldest: 0,
            used: 0,
        }
    }

    /// Inserts an entry. Returns its index, and the four-tuple of the oldest entry if it was evicted.
    pub fn insert(&mut self, entry: TimeWait) -> (u32, Option<FourTuple>) {
        let evicted = if self.used == self.ring.len() {
            self.pop_oldest()
        } else {
            None
        };
        let position = (self.oldest + self.used) % self.ring.len();
        self.ring[position] = Some(entry);
        self.used += 1;
        let index =
            u32::try_from(position).expect("invariant: a table has fewer than 2^32 entries");
        (index, evicted)
    }

    /// The entry at an index; `None` if it was removed.
    pub fn entry_mut(&mut self, index: u32) -> Option<&mut TimeWait> {
        self.ring.get_mut(index as usize)?.as_mut()
    }

    /// Removes an entry early: its four-tuple is used again.
    pub fn remove(&mut self, index: u32) {
        if let Some(slot) = self.ring.get_mut(index as usize) {
            *slot = None;
        }
        self.skip_removed();
    }

    /// When the next entry expires.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Instant> {
        self.ring[self.oldest].as_ref().map(TimeWait::expires_at)
    }

    /// Takes out an expired entry.
    pub fn pop_expired(&mut self, now: Instant) -> Option<FourTuple> {
        self.next_expiry().filter(|expiry| *expiry <= now)?;
        self.pop_oldest()
    }

    fn pop_oldest(&mut self) -> Option<FourTuple> {
        let entry = self.ring[self.oldest].take()?;
        self.skip_removed();
        Some(entry.tuple())
    }

    fn skip_removed(&mut self) {
        while self.used > 0 && self.ring[self.oldest].is_none() {
            self.oldest = (self.oldest + 1) % self.ring.len();
            self.used -= 1;
        }
    }
}

#[cfg(test)]
mod tests;
