//! The closing states (RFC 9293 s3.6) and the three ways in which a connection ends.

use clock::Instant;
use wire::{TcpFlags, TcpOptions, TcpRepr};

use super::Connection;
use crate::send::Fin;
use crate::time_wait::TimeWait;
use crate::verdict::{CloseReason, Outcome};

/// The synchronised states of RFC 9293 s3.3.2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Data both ways.
    Established,
    /// The peer sent its FIN; we have not sent ours.
    CloseWait,
    /// We sent a FIN; it is not acknowledged.
    FinWait1,
    /// Our FIN is acknowledged, since this time; the peer may still send.
    FinWait2(Instant),
    /// Both sent FINs; ours is not acknowledged.
    Closing,
    /// The peer's FIN came first, our FIN followed and is not acknowledged.
    LastAck,
}

impl Connection {
    /// Our FIN was sent for the first time.
    pub(super) fn on_fin_sent(&mut self, now: Instant) {
        self.fin_sent_at = now;
        self.state = match self.state {
            State::Established => State::FinWait1,
            State::CloseWait => State::LastAck,
            other => other,
        };
    }

    /// The peer's FIN is in order.
    pub(super) fn on_peer_fin(&mut self) -> Outcome {
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2(_) => return Outcome::TimeWait,
            State::CloseWait | State::Closing | State::LastAck => {}
        }
        Outcome::Open
    }

    /// Our FIN may have been acknowledged.
    pub(super) fn after_ack_of_fin(&mut self, now: Instant) -> Outcome {
        if !self.send.is_fin_acknowledged() {
            return Outcome::Open;
        }
        match self.state {
            State::FinWait1 => self.state = State::FinWait2(now),
            State::Closing => return Outcome::TimeWait,
            State::LastAck => return Outcome::Closed(CloseReason::Finished),
            State::Established | State::CloseWait | State::FinWait2(_) => {}
        }
        Outcome::Open
    }

    /// When an orphaned connection times out: our FIN was sent, all data before it is acknowledged,
    /// and the FIN is not. The time counts from the first transmission of the FIN, or from the last
    /// ACK of data if that came later. No answer of the peer extends it: otherwise a peer that
    /// acknowledges everything but the FIN, and answers each FIN with a zero window, would keep the
    /// connection for ever. While data is unacknowledged the session decides how long a peer may
    /// take ([`Connection::progress_at`]).
    pub(super) fn orphan_deadline(&self) -> Option<Instant> {
        let waits_for_ack = matches!(
            self.state,
            State::FinWait1 | State::Closing | State::LastAck
        );
        (waits_for_ack && self.is_idle())
            .then(|| self.fin_sent_at.max(self.progress_at) + self.config.orphan)
    }

    /// Whether text of the peer is still accepted: it has sent no FIN.
    #[must_use]
    pub const fn takes_text(&self) -> bool {
        matches!(
            self.state,
            State::Established | State::FinWait1 | State::FinWait2(_)
        )
    }

    /// The state that TIME-WAIT keeps.
    #[must_use]
    pub fn time_wait(&self, now: Instant) -> TimeWait {
        TimeWait::new(
            now,
            self.tuple,
            self.send.next_sequence(),
            self.receive.nxt,
            self.receive.timestamps,
        )
    }

    /// Closes the connection at once: the last segment, to be sent with all text that was appended
    /// and not claimed, and what is kept. The caller removes the connection, so the segment is
    /// never retransmitted.
    ///
    /// # Panics
    /// If something is under way: it would be lost.
    #[must_use]
    pub fn close_at_once(&self, now: Instant) -> (TcpRepr, TimeWait) {
        assert!(
            self.send.una == self.send.claimed && !self.has_sent_fin(),
            "data or a FIN under way would be lost"
        );
        let last = TcpRepr {
            flags: TcpFlags::FIN.union(TcpFlags::ACK),
            window: self.receive.window(),
            ..self.abort(now)
        };
        let end = self.send.sequence_of(self.send.end).wrapping_add(1);
        let (received, stamps) = (self.receive.nxt, self.receive.timestamps);
        let kept = TimeWait::new(now, self.tuple, end, received, stamps);
        (last, kept.with_open_peer())
    }

    /// The reset that aborts the connection (RFC 9293 s3.5.2). The caller removes the connection.
    #[must_use]
    pub fn abort(&self, now: Instant) -> TcpRepr {
        TcpRepr {
            source_port: self.tuple.local.port(),
            destination_port: self.tuple.peer.port(),
            sequence: self.send.next_sequence(),
            acknowledgment: self.receive.nxt,
            flags: TcpFlags::RST.union(TcpFlags::ACK),
            window: 0,
            options: TcpOptions {
                ..self.options(now)
            },
        }
    }

    /// Whether our FIN shall leave now, for the first time or again.
    pub(super) fn wants_fin(&self) -> bool {
        match self.send.fin {
            Fin::NotQueued => false,
            Fin::Queued => self.send.nxt == self.send.end && self.send.claimed == self.send.end,
            Fin::Sent => self
                .flight
                .first_lost(u64::MAX)
                .is_some_and(|lost| lost.start >= self.send.end),
        }
    }
}
