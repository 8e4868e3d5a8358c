//! Output: claims of data, headers for data segments, and segments without data.

use clock::Instant;
use wire::{Ecn, TcpFlags, TcpRepr};

use super::timers::Acknowledgment;
use super::{Connection, Demand};
use crate::recovery::RecoveryState;
use crate::send::Fin;
use crate::stream::{StreamOffset, StreamRange};

/// Bytes that the session fetches. There is one for each fetch, and it cannot be copied: what was not
/// claimed cannot be admitted, and what was given back cannot be admitted any more:
///
/// ```compile_fail,E0382
/// fn send_what_was_returned(connection: &mut tcp::Connection, claim: tcp::Claim) {
///     connection.return_claim(claim);
///     let _ = connection.admit(&claim);
/// }
/// ```
#[derive(PartialEq, Eq, Debug)]
#[must_use]
pub struct Claim {
    range: StreamRange,
    is_retransmission: bool,
    /// When it could be claimed.
    since: Instant,
}

/// The part of a claim that must still be sent. Nothing else can be, and nothing twice:
///
/// ```compile_fail,E0382
/// fn send_twice(connection: &mut tcp::Connection, now: clock::Instant, claim: &tcp::Claim) {
///     if let Some(admitted) = connection.admit(claim) {
///         connection.on_transmitted(now, admitted);
///         connection.on_transmitted(now, admitted);
///     }
/// }
/// ```
///
/// A claim is not what must still be sent:
///
/// ```compile_fail,E0308
/// fn send_what_may_be_acknowledged(connection: &mut tcp::Connection, claim: tcp::Claim) {
///     connection.on_transmitted(clock::Instant::ZERO, claim);
/// }
/// ```
#[derive(PartialEq, Eq, Debug)]
#[must_use]
pub struct Admitted {
    range: StreamRange,
    since: Instant,
}

impl Admitted {
    /// The bytes.
    #[must_use]
    pub const fn range(&self) -> StreamRange {
        self.range
    }

    /// Its first `bytes`, or all if there are fewer.
    pub fn beginning(self, bytes: u64) -> Self {
        let bytes = bytes.min(self.range.bytes());
        Self {
            range: StreamRange::new(self.range.start, self.range.start + bytes),
            ..self
        }
    }
}

#[cfg(test)]
impl Claim {
    pub(super) const fn forged(range: StreamRange, is_retransmission: bool) -> Self {
        Self {
            range,
            is_retransmission,
            since: Instant::FAR_FUTURE,
        }
    }
}

#[cfg(test)]
impl Admitted {
    /// Of a disk without delay.
    pub(super) const fn forged(range: StreamRange) -> Self {
        Self {
            range,
            since: Instant::FAR_FUTURE,
        }
    }
}

/// How a frame is cut into packets, and the ECN field of their IP headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Framing {
    /// Payload of each packet but the last, bytes.
    pub segment_bytes: u16,
    /// The frame has one packet only.
    pub is_single: bool,
    /// ECN field.
    pub ecn: Ecn,
}

impl Framing {
    /// A segment without data.
    pub const CONTROL: Self = Self {
        segment_bytes: 0,
        is_single: true,
        ecn: Ecn::NotEct,
    };
}

/// A segment without data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    /// An acknowledgment.
    Ack,
    /// Our FIN, sent for the first time or retransmitted.
    Fin,
    /// A probe with the sequence number SND.UNA - 1, which the peer must answer: keep-alive, zero
    /// window.
    Probe,
}

impl Connection {
    /// The session fetches the beginning of what is demanded, up to `end`.
    ///
    /// # Panics
    /// If `end` is not in the demand's range, or if the demand is an old one.
    pub fn claim(&mut self, now: Instant, demand: Demand, end: StreamOffset) -> Claim {
        let Demand {
            range,
            is_retransmission,
            ..
        } = demand;
        assert!(
            range.start < end && end <= range.end,
            "what is claimed was demanded"
        );
        self.take(now, StreamRange::new(range.start, end), is_retransmission)
    }

    pub(super) fn take(
        &mut self,
        now: Instant,
        range: StreamRange,
        is_retransmission: bool,
    ) -> Claim {
        self.check_restart(now);
        let rate = self.pacing_rate();
        self.pacer.on_claimed(now, range.bytes(), rate);
        if is_retransmission {
            self.flight.claim(range);
        } else {
            assert_eq!(
                range.start, self.send.claimed,
                "new bytes are claimed in order"
            );
            self.send.claimed = range.end;
            self.send.claimed_once = range.end.max(self.send.claimed_once);
            self.sws_override_due = false;
        }
        if let Some(probe) = &mut self.tail_probe
            && probe.is_due
        {
            probe.is_due = false;
            probe.claimed = Some(range.start);
        }
        if let RecoveryState::Recovery {
            reduction: Some(reduction),
            ..
        } = &mut self.recovery
        {
            reduction.on_sent(range.bytes());
        }
        Claim {
            range,
            is_retransmission,
            since: self.demanded_since(now),
        }
    }

    /// The most recent claim could not be carried out: its bytes are demanded again.
    pub fn return_claim(&mut self, claim: Claim) {
        let Claim {
            range,
            is_retransmission,
            since,
        } = claim;
        self.on_demand(since);
        let rate = self.pacing_rate();
        self.pacer.on_returned(range.bytes(), rate);
        if is_retransmission {
            self.flight.return_claim(range);
        } else if range.end == self.send.claimed {
            self.send.claimed = range.start.max(self.send.nxt);
        }
        if let RecoveryState::Recovery {
            reduction: Some(reduction),
            ..
        } = &mut self.recovery
        {
            reduction.on_returned(range.bytes());
        }
        if let Some(probe) = &mut self.tail_probe
            && probe.claimed == Some(range.start)
        {
            probe.is_due = true;
            probe.claimed = None;
        }
        if self.retransmit.is_none() {
            self.start_timer_for_returned_claim();
        }
    }

    /// A claim was returned and no timer is running. If the window was closed meanwhile, the
    /// zero-window timer starts, counted from the last segment received. Otherwise the claim was a
    /// small one that the override timer permitted, and the permission stays. Restarting that timer
    /// in the past would make it fire at once, each time the disk has no room.
    fn start_timer_for_returned_claim(&mut self) {
        if self.send.admitted().is_empty() {
            self.restart_retransmit(self.last_received_at);
        } else {
            self.sws_override_due = true;
        }
    }

    /// No fetch is under way: turns all claimed retransmissions back into lost bytes.
    pub fn void_claims(&mut self) {
        self.flight.void_claims();
    }

    /// The part of a claim that must still be sent: an ACK may have arrived or a timer may have fired
    /// meanwhile. New bytes are sent in order, so a claim beyond SND.NXT is refused.
    pub fn admit(&self, claim: &Claim) -> Option<Admitted> {
        let range = claim.range;
        let unsent = StreamRange::new(self.send.nxt, self.send.claimed);
        let new = range
            .intersection(unsent)
            .filter(|_| range.start <= self.send.nxt);
        let range = new.or_else(|| self.flight.claimed_within(range))?;
        let since = claim.since;
        Some(Admitted { range, since })
    }

    /// How a frame that begins with these bytes is cut. Its header may belong to a part of them.
    ///
    /// A probe of a larger segment (RFC 4821) is a single packet, which begins a frame.
    ///
    /// A frame with CWR is a single packet. The link may segment in hardware that repeats the flag on
    /// every packet: Linux asks drivers for NETIF_F_TSO_ECN, which not all have, and the receiver would
    /// take a later packet with CWR for an answer to a mark that came between them.
    #[must_use]
    pub fn framing(&self, admitted: &Admitted) -> Framing {
        let is_new = self.is_new(admitted);
        let owes_cwr = is_new && self.owes_cwr();
        let probe = self.size_probe(admitted).filter(|_| !owes_cwr);
        Framing {
            segment_bytes: probe.unwrap_or(self.sizes.current),
            is_single: owes_cwr || probe.is_some(),
            ecn: if is_new && self.uses_ecn() {
                Ecn::Ect0
            } else {
                Ecn::NotEct
            },
        }
    }

    /// Whether a frame of these bytes, cut as [`Connection::framing`] said, is a probe.
    fn is_size_probe_frame(&self, admitted: &Admitted) -> bool {
        let bytes = self.size_probe(admitted).filter(|_| !self.owes_cwr());
        bytes.is_some_and(|bytes| u64::from(bytes) == admitted.range.bytes())
    }

    /// Whether these bytes are sent for the first time.
    fn is_new(&self, admitted: &Admitted) -> bool {
        admitted.range.start == self.send.nxt
    }

    /// The header of a segment that carries these bytes; its payload may be cut into packets as
    /// [`Connection::framing`] says.
    #[must_use]
    pub fn segment(&self, now: Instant, admitted: &Admitted) -> TcpRepr {
        let range = admitted.range;
        let mut flags = TcpFlags::ACK;
        if range.end == self.send.end {
            // RFC 9293 s3.9.1.2: PSH on the last segment that is queued.
            flags = flags.union(TcpFlags::PSH);
        }
        if self.is_new(admitted) && self.owes_cwr() {
            flags = flags.union(TcpFlags::CWR);
        }
        self.header(now, range.start, flags)
    }

    /// These bytes were sent.
    ///
    /// # Panics
    /// If they are neither claimed new data nor were sent before: they were admitted before the last
    /// segment or timeout.
    pub fn on_transmitted(&mut self, now: Instant, admitted: Admitted) {
        let is_probe = self.is_size_probe_frame(&admitted);
        let Admitted { range, since } = admitted;
        let in_flight_before = self.flight.in_flight_bytes();
        if range.start == self.send.nxt {
            assert!(range.end <= self.send.claimed, "sent bytes were claimed");
            if is_probe {
                self.on_size_probe_sent(range);
            }
            self.flight.push(now, range);
            self.send.nxt = range.end;
            self.on_new_data_sent();
        } else {
            assert!(
                range.end <= self.send.nxt,
                "retransmitted bytes were sent before"
            );
            self.flight.on_retransmitted(now, range);
            self.record_resend(now);
            self.record_resent_bytes(range);
            self.count_retransmitted(range.bytes());
        }
        self.sample_sent(now, since, in_flight_before);
        self.sent_at = now;
        self.on_segment_left();
        self.on_data_left(now, in_flight_before > 0);
    }

    /// The segment without data to send now, if any.
    #[must_use]
    pub fn control(&self) -> Option<Control> {
        if self.wants_fin() {
            Some(Control::Fin)
        } else if self.probe_due {
            Some(Control::Probe)
        } else if self.acknowledgment == Acknowledgment::Now {
            Some(Control::Ack)
        } else {
            None
        }
    }

    /// The header of a segment without data.
    #[must_use]
    pub fn control_segment(&self, now: Instant, control: Control) -> TcpRepr {
        match control {
            Control::Ack => self.header(now, self.send.nxt, TcpFlags::ACK),
            Control::Fin => self.header(now, self.send.end, TcpFlags::ACK.union(TcpFlags::FIN)),
            Control::Probe => {
                let mut probe = self.header(now, self.send.una, TcpFlags::ACK);
                probe.sequence = probe.sequence.wrapping_add(u32::MAX);
                probe
            }
        }
    }

    /// A segment without data was sent.
    pub fn on_control_transmitted(&mut self, now: Instant, control: Control) {
        match control {
            Control::Ack => {}
            Control::Fin => self.on_fin_left(now),
            Control::Probe => {
                self.probe_due = false;
                self.probes += 1;
                self.probed_at = now;
            }
        }
        self.on_segment_left();
    }

    fn on_fin_left(&mut self, now: Instant) {
        let in_flight_before = self.flight.in_flight_bytes();
        let fin = StreamRange::new(self.send.end, self.send.end + 1);
        if self.send.fin == Fin::Queued {
            self.send.fin = Fin::Sent;
            self.send.nxt = fin.end;
            self.send.claimed = fin.end;
            self.flight.push(now, fin);
            self.on_fin_sent(now);
        } else {
            self.flight.on_retransmitted(now, fin);
            self.record_resend(now);
            self.record_resent_bytes(fin);
        }
        self.sample_sent(now, now, in_flight_before);
        self.on_data_left(now, in_flight_before > 0);
    }

    /// Every segment carries our ACK.
    fn on_segment_left(&mut self) {
        self.receive.on_ack_sent();
        self.acknowledgment = Acknowledgment::None;
    }

    fn header(&self, now: Instant, offset: StreamOffset, flags: TcpFlags) -> TcpRepr {
        TcpRepr {
            source_port: self.tuple.local.port(),
            destination_port: self.tuple.peer.port(),
            sequence: self.send.sequence_of(offset),
            acknowledgment: self.receive.nxt,
            flags: flags.union(self.echo_flag()),
            window: self.receive.window(),
            options: self.options(now),
        }
    }
}
