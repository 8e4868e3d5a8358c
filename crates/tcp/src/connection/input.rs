//! A segment arrives: RFC 9293 s3.10.7.4, one function per step, with RFC 5961's stricter checks.

use clock::{Duration, Instant};
use wire::{Ecn, TcpFlags, TcpRepr};

use super::Connection;
use super::spurious::is_stamped_before;
use super::timers::{Acknowledgment, CHALLENGE_INTERVAL};
use super::undo::note_late;
use crate::canary::Fault;
use crate::congestion::{AckEvent, Controller as _};
use crate::receive::Unacceptable;
use crate::recovery::{
    DUPLICATE_THRESHOLD, RackContext, RateReduction, RecoveryProgress, RecoveryState,
};
use crate::send::Fin;
use crate::stream::{StreamOffset, StreamRange};
use crate::verdict::{Arrival, CloseReason, Outcome, SegmentDrop};

/// Resolution of an RTT sample from a timestamp: the timestamp clock ticks each millisecond.
const TIMESTAMP_GRANULARITY: Duration = Duration::from_millis(1);

/// What one ACK delivered, collected before anything is decided.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delivery {
    /// Bytes newly known to have arrived.
    pub(super) bytes: u64,
    /// The same, estimated for peers without SACK; for rate reduction.
    arrived: u64,
    /// The longest round trip among entries sent once, or that of the echoed timestamp; for SRTT.
    rtt: Option<Duration>,
    /// When the segment was sent whose timestamp is echoed, to the millisecond.
    pub(super) echoed_at: Option<Instant>,
    /// Some bytes certainly arrived by their first transmission, which was before the last timeout.
    pub(super) first_sendings: bool,
    /// SND.UNA moved.
    pub(super) advanced: bool,
    /// The bytes that the peer reported as received twice (DSACK, RFC 2883).
    duplicate: Option<StreamRange>,
    /// A SACK block reported something that we sent.
    pub(super) has_reports: bool,
    /// The peer says that packets were marked (ECE, RFC 3168).
    is_echo: bool,
    /// It ended a fast recovery without SACK, whose last step set cwnd to ssthresh; its RecoveryPoint.
    recovered: Option<StreamOffset>,
    /// Most bytes outstanding at once in the round trip before this ACK; the window grows only if it was
    /// in use.
    outstanding_bytes_max: u64,
    /// The window was used up before this ACK.
    is_window_limited: bool,
}

/// What an acceptable ACK field did.
#[derive(Clone, Copy, Debug, Default)]
struct Acknowledged {
    /// SND.UNA moved.
    advanced: bool,
    /// It showed that the last retransmission timeout was spurious.
    timeout_undone: bool,
    /// It showed that the retransmissions of the last loss event were needless.
    loss_undone: bool,
    /// It had an echo of a mark, which reduced the window.
    reduced_by_echo: bool,
}

impl Connection {
    /// A segment of this connection arrived with `payload_bytes` of text. `ecn`: the field of its IP
    /// header.
    pub fn handle_segment(
        &mut self,
        now: Instant,
        segment: &TcpRepr,
        ecn: Ecn,
        payload_bytes: usize,
    ) -> Arrival {
        match self.receive.check_sequence(now, segment, payload_bytes) {
            Ok(()) => {}
            Err(Unacceptable::StaleTimestamp) if self.is_overtaken_ack(segment, payload_bytes) => {}
            Err(reason) => return self.refuse_sequence(now, segment, payload_bytes, reason),
        }
        if segment.flags.contains(TcpFlags::RST) {
            return self.check_reset(now, segment);
        }
        if segment.flags.contains(TcpFlags::SYN) {
            // RFC 5961 s4.2: "irrespective of the sequence number, TCP MUST send an ACK".
            return self.challenged(now, SegmentDrop::UnexpectedSyn);
        }
        if !segment.flags.contains(TcpFlags::ACK) {
            return Arrival::dropped(SegmentDrop::NoAck);
        }
        self.last_received_at = now;
        self.probes = 0;
        self.probe_due = false;
        let Ok(acknowledged) = self.process_ack(now, segment, payload_bytes) else {
            return self.challenged(now, SegmentDrop::UnacceptableAck);
        };
        self.receive.remember_timestamp(now, segment);
        let mut arrival = self.process_text(now, segment, payload_bytes);
        if payload_bytes > 0 {
            self.note_mark(segment, ecn);
        }
        arrival.acknowledged = acknowledged.advanced;
        arrival.timeout_undone = acknowledged.timeout_undone;
        arrival.loss_undone = acknowledged.loss_undone;
        arrival.reduced_by_echo = acknowledged.reduced_by_echo;
        if arrival.outcome == Outcome::Open {
            arrival.outcome = self.after_ack_of_fin(now);
        }
        arrival
    }

    /// An ACK that a later one has overtaken, so that its timestamp looks old: it acknowledges nothing new,
    /// and may have reports that no other ACK has. PAWS (RFC 7323 s5.3) is to keep old duplicates of earlier
    /// sequence space out, so the timestamp must be of the last moments. Linux has the same exception
    /// (`tcp_disordered_ack`).
    fn is_overtaken_ack(&self, segment: &TcpRepr, payload_bytes: usize) -> bool {
        let others = TcpFlags::SYN.0 | TcpFlags::FIN.0 | TcpFlags::RST.0;
        let una = self.send.sequence_of(self.send.una);
        payload_bytes == 0
            && segment.flags.contains(TcpFlags::ACK)
            && segment.flags.0 & others == 0
            && segment.sequence == self.receive.nxt
            && segment.acknowledgment.distance(una) <= 0
            && self.receive.is_stamped_lately(segment)
    }

    /// First check failed. Retransmitted data means that our ACK was lost, so it is always answered.
    /// Other segments are answered at a bounded rate, because otherwise two desynchronised peers
    /// could ACK each other forever; a SYN is challenged, whatever comes with it (RFC 5961 s4.2).
    fn refuse_sequence(
        &mut self,
        now: Instant,
        segment: &TcpRepr,
        payload_bytes: usize,
        reason: Unacceptable,
    ) -> Arrival {
        let reason = match reason {
            Unacceptable::OutOfWindow => SegmentDrop::OutOfWindow,
            Unacceptable::StaleTimestamp => SegmentDrop::StaleTimestamp,
        };
        if segment.flags.contains(TcpFlags::RST) {
            return Arrival::dropped(reason);
        }
        if segment.flags.contains(TcpFlags::SYN) {
            return self.challenged(now, reason);
        }
        if payload_bytes > 0 || segment.flags.contains(TcpFlags::FIN) {
            self.acknowledgment = Acknowledgment::Now;
        } else if self.is_challenge_due(now) {
            // A keep-alive, or an old ACK: one that the peer's own TCP sent.
            self.send_challenge(now);
        }
        Arrival::dropped(reason)
    }

    /// RFC 5961 s3.2: a reset is accepted only exactly at RCV.NXT.
    fn check_reset(&mut self, now: Instant, segment: &TcpRepr) -> Arrival {
        if segment.sequence != self.receive.nxt {
            return self.challenged(now, SegmentDrop::InexactReset);
        }
        Arrival {
            outcome: Outcome::Closed(CloseReason::Reset),
            ..Arrival::ACCEPTED
        }
    }

    /// A segment that an attacker may have forged: dropped, and to be answered by a challenge ACK at a
    /// bounded rate (RFC 5961 s7). The genuine peer answers that with a reset at RCV.NXT, if it lost its
    /// state.
    fn challenged(&self, now: Instant, reason: SegmentDrop) -> Arrival {
        Arrival {
            challenge: self.is_challenge_due(now),
            ..Arrival::dropped(reason)
        }
    }

    fn is_challenge_due(&self, now: Instant) -> bool {
        let is_past = |at| now.since(at) >= CHALLENGE_INTERVAL;
        self.challenged_at.is_none_or(is_past)
    }

    /// The last segment is answered by a challenge ACK: its [`Arrival::challenge`] is set, and the host's
    /// limit permits another one.
    pub fn send_challenge(&mut self, now: Instant) {
        self.challenged_at = Some(now);
        self.acknowledgment = Acknowledgment::Now;
    }

    /// Fifth check: the ACK field. `Err` if the ACK is not acceptable (RFC 5961 s5.2).
    fn process_ack(
        &mut self,
        now: Instant,
        segment: &TcpRepr,
        payload_bytes: usize,
    ) -> Result<Acknowledged, ()> {
        let before = segment
            .acknowledgment
            .distance(self.send.sequence_of(self.send.una));
        // RFC 5961 s5.2: an old ACK is acceptable if it is at most MAX.SND.WND old.
        let check_age = |age: u64| {
            if age <= self.send.window_max() {
                Ok(Acknowledged::default())
            } else {
                Err(())
            }
        };
        let Some(ack) = self.send.offset_of(segment.acknowledgment) else {
            // Before the stream's start, so older than anything sent.
            return check_age(u64::from(before.unsigned_abs()));
        };
        if ack > self.send.nxt {
            return Err(());
        }
        if ack < self.send.una {
            check_age(self.send.una.since(ack))?;
            return Ok(self.take_late_reports(now, segment, ack));
        }
        let window_before = self.send.window();
        if self
            .send
            .update_window(segment.sequence, ack, segment.window)
        {
            self.window_probes_backoff = 0;
        }
        if window_before == 0 && self.send.window() > 0 {
            self.rtt.end_backoff();
        }
        // RFC 5681 s2, but for outstanding data, which `apply_delivery` checks.
        let is_duplicate = ack == self.send.una
            && payload_bytes == 0
            && !segment.flags.contains(TcpFlags::FIN)
            && self.send.window() == window_before;
        self.check_limited();
        let delivery = self.record_delivery(now, segment, ack, ack);
        let acknowledged = self.apply_delivery(now, ack, delivery, is_duplicate);
        if self.send.window() == 0 {
            // RFC 9293 s3.8.6: the peer may close its window on data in flight. Retransmissions then
            // serve as probes, and a peer that answers them must not time out.
            self.timeouts = 0;
        } else if window_before == 0 {
            self.restart_retransmit(now);
        }
        Ok(acknowledged)
    }

    /// The SACK blocks of an ACK that others have overtaken, as of an ACK of what is acknowledged now.
    /// Where many frames overtake each other, there is no room for all holes in the later ACKs, and no
    /// duplicate is reported twice (RFC 2883 s4).
    fn take_late_reports(
        &mut self,
        now: Instant,
        segment: &TcpRepr,
        ack: StreamOffset,
    ) -> Acknowledged {
        if !self.sack.is_agreed() || segment.options.sack.as_slice().is_empty() {
            return Acknowledged::default();
        }
        self.check_limited();
        let una = self.send.una;
        let delivery = self.record_delivery(now, segment, una, ack);
        self.apply_delivery(now, una, delivery, false)
    }

    /// Moves SND.UNA, marks SACKed bytes, and collects what was delivered. `segment_ack` is that of the
    /// segment: less than `ack` if others have overtaken it.
    fn record_delivery(
        &mut self,
        now: Instant,
        segment: &TcpRepr,
        ack: StreamOffset,
        segment_ack: StreamOffset,
    ) -> Delivery {
        let outstanding = self.outstanding_bytes();
        let nxt = self.send.nxt;
        let mut delivery = Delivery {
            outstanding_bytes_max: self.window_use.on_ack(outstanding, ack, nxt),
            is_window_limited: self.is_window_limited(now),
            advanced: ack > self.send.una,
            duplicate: self.reported_duplicate(segment, segment_ack),
            is_echo: self.is_echo(segment),
            echoed_at: self.receive.echoed_at(now, segment),
            ..Delivery::default()
        };
        let advanced = delivery.advanced;
        let (rack, rtt_min) = (&mut self.rack, self.rtt.minimum());
        let delivery_rate = &mut self.delivery_rate;
        let echoed_at = delivery.echoed_at;
        let timed_out_end = match self.recovery {
            RecoveryState::Loss { high } => high,
            RecoveryState::Open | RecoveryState::Recovery { .. } => StreamOffset::ZERO,
        };
        let is_sample_refused = self.config.canary.is(Fault::NoSampleOfRetransmission);
        let (una, has_rtt) = (self.send.una, self.rtt.smoothed().is_some());
        let records = &mut self.loss_records;
        let mut largest_bytes = 0;
        let mut is_ambiguous = false;
        let mut on_delivered = |entry: &crate::flight::Transmission| {
            if let Some(rate) = delivery_rate {
                rate.on_delivered(now, entry);
            }
            delivery.bytes += entry.end.since(entry.start);
            largest_bytes = entry.end.since(entry.start).max(largest_bytes);
            // RFC 8985 s6.2, step 2: an echo of a timestamp from before the retransmission means
            // that the first transmission arrived.
            let is_first = entry.retransmitted
                && echoed_at.is_some_and(|echoed| is_stamped_before(echoed, entry.sent_at));
            if !is_first {
                rack.on_delivered(now, entry, rtt_min);
            }
            let resent_before = now.since(entry.sent_at);
            // Only an ACK that moves SND.UNA echoes the timestamp of what it acknowledges, first of all. Where none is
            // echoed the round trip tells; the smallest so far need not be the smallest there is.
            let is_echoed = echoed_at.is_some() && advanced && entry.start == una;
            let is_sooner = has_rtt && resent_before < rtt_min;
            let is_late = entry.retransmitted && if is_echoed { is_first } else { is_sooner };
            if is_late && let Some(multiple) = note_late(records, entry.range()) {
                rack.on_late(resent_before, multiple, rtt_min);
            }
            delivery.first_sendings |= !entry.retransmitted && entry.end <= timed_out_end;
            if entry.retransmitted {
                is_ambiguous = true;
            } else {
                let sample = now.since(entry.sent_at);
                delivery.rtt = Some(delivery.rtt.map_or(sample, |old| old.max(sample)));
            }
        };
        self.flight.acknowledge(ack, &mut on_delivered);
        self.send.una = ack;
        let mut has_reports = delivery.duplicate.is_some();
        if self.sack.is_agreed() {
            let mut blocks: [Option<StreamRange>; 4] = [None; 4];
            for (place, block) in blocks.iter_mut().zip(segment.options.sack.as_slice()) {
                *place = self.send.reported_range(*block);
            }
            // In stream order, or two new blocks of one ACK would look like reordering.
            blocks.sort_unstable_by_key(|block| block.map(|range| range.start));
            for range in blocks.into_iter().flatten() {
                has_reports = true;
                self.flight.sack(range, &mut on_delivered);
            }
        }
        delivery.has_reports = has_reports;
        // All packets of one entry except the last have the current segment size.
        let packet_bytes = u16::try_from(largest_bytes).unwrap_or(u16::MAX);
        self.note_arrived(packet_bytes.min(self.sizes.current));
        if delivery.advanced && self.path.is_some() {
            self.discard_refuted_path_report();
            self.update_size_probe(now);
        }
        if is_ambiguous {
            // Karn's rule (RFC 6298 s3): no sample from retransmitted bytes. Bytes sent once give
            // none either: they may have arrived long before the hole was filled. An echoed
            // timestamp gives a sample if SND.UNA moved (RFC 7323 s4.1).
            delivery.rtt = delivery
                .echoed_at
                .filter(|_| delivery.advanced && !is_sample_refused)
                .map(|echoed| now.since(echoed).max(TIMESTAMP_GRANULARITY));
            // Without SACK, bytes sent once may have been acknowledged only after a retransmission.
            delivery.first_sendings &= self.sack.is_used();
        }
        delivery
    }

    /// Updates the RTT estimate, detects losses, adjusts the congestion window and restarts the
    /// timers, in this order.
    fn apply_delivery(
        &mut self,
        now: Instant,
        ack: StreamOffset,
        mut delivery: Delivery,
        duplicate: bool,
    ) -> Acknowledged {
        if let Some(sample) = delivery.rtt {
            let ends_round = ack > self.rtt_round_end;
            if ends_round {
                self.rtt_round_end = self.send.nxt;
            }
            self.rtt.on_sample(sample, ends_round);
        }
        if delivery.duplicate.is_some() {
            self.rack.on_dsack(ack, self.send.nxt);
        }
        self.check_tail_probe(ack, &delivery, duplicate);
        let duplicate = duplicate && !self.flight.is_empty();
        self.judge_reports(&delivery, duplicate);
        delivery.arrived = self.estimate_arrived(&delivery, duplicate);
        if delivery.advanced && self.config.canary.is(Fault::NoSampleOfRetransmission) {
            self.rtt.end_backoff();
        }
        if delivery.advanced {
            self.timeouts = 0;
            self.duplicate_acks = 0;
            self.progress_at = now;
        }
        let timeout_undone = self.check_spurious_timeout(now, ack, &delivery, duplicate);
        let recovery_point = match self.recovery {
            RecoveryState::Recovery { high, .. } => Some(high),
            RecoveryState::Open | RecoveryState::Loss { .. } => None,
        };
        if delivery.advanced && self.recovery != RecoveryState::Open {
            self.sample_repaired();
        }
        let has_ended = self.end_recovery(ack);
        delivery.recovered = recovery_point.filter(|_| has_ended && !self.sack.is_used());
        let loss_undone = self.check_needless_resends(delivery.duplicate);
        let has_new_loss = if self.sack.is_used() {
            self.detect_losses(now, &delivery)
        } else {
            self.count_duplicates(now, &delivery)
        };
        let reduced_by_echo = delivery.is_echo && self.on_echo();
        self.adjust_window(now, &delivery, has_new_loss);
        let has_arrived = delivery.advanced || delivery.bytes > 0;
        let is_partial = delivery.advanced && self.is_later_partial_ack();
        if has_arrived && !is_partial || self.flight.is_empty() {
            self.restart_retransmit(now);
        }
        Acknowledged {
            advanced: delivery.advanced,
            timeout_undone,
            loss_undone,
            reduced_by_echo,
        }
    }

    /// An ACK of new data arrived: whether it is a partial one that is not the first of its recovery, without SACK. Each
    /// names one hole, and only the first restarts the retransmission timer, so that many holes are repaired by a timeout
    /// (RFC 6582 s3.2, step 3; "impatient" in RFC 3782 s4). Not again before there is a sample of the RTT, or the timer would
    /// be doubled in each recovery.
    fn is_later_partial_ack(&mut self) -> bool {
        let is_recovering = matches!(self.recovery, RecoveryState::Recovery { .. });
        let is_partial = is_recovering && !self.sack.is_used() && !self.rtt.is_backed_off();
        is_partial && core::mem::replace(&mut self.has_partial_ack, true)
    }

    /// RACK's reordering timer fired: segments that did not arrive in time are now lost.
    pub(super) fn on_reordering_timeout(&mut self, now: Instant) {
        let delivery = Delivery::default();
        if self.detect_losses(now, &delivery) {
            self.adjust_window(now, &delivery, true);
            self.restart_retransmit(now);
        }
    }

    /// RACK marks losses in the log; a first loss begins a recovery. Returns whether there were any.
    fn detect_losses(&mut self, now: Instant, delivery: &Delivery) -> bool {
        let context = RackContext {
            is_recovering: self.recovery != RecoveryState::Open,
            segment_bytes: u64::from(self.sizes.current),
        };
        let outstanding = self.outstanding_bytes();
        let probe = self.size_probe_under_way();
        let mut is_probe_lost = false;
        let (delivery_rate, congestion) = (&mut self.delivery_rate, &mut self.congestion);
        let on_lost = |entry: &crate::flight::Transmission| {
            let of_probe = probe.and_then(|probe| probe.intersection(entry.range()));
            is_probe_lost |= of_probe.is_some();
            if of_probe != Some(entry.range())
                && let Some(rate) = delivery_rate
                && let Some(lost) = rate.on_lost(now, entry)
            {
                congestion.on_lost(&lost);
            }
        };
        let (lost, next) = self
            .rack
            .detect(now, &mut self.flight, &self.rtt, context, on_lost);
        self.reordering = next;
        if is_probe_lost {
            let is_alone = self.recovery == RecoveryState::Open
                && probe.is_some_and(|probe| probe.bytes() == lost);
            self.on_size_probe_lost(now, is_alone);
            if is_alone {
                return false;
            }
        }
        if lost > 0 {
            self.begin_recovery(outstanding + delivery.arrived);
        }
        lost > 0
    }

    /// A loss was detected: reduces the window, once per round trip of data (RFC 6675 s5).
    /// `flight_bytes`: what was outstanding before the ACK that showed it.
    fn begin_recovery(&mut self, flight_bytes: u64) {
        if self.recovery != RecoveryState::Open {
            return;
        }
        if self.is_reduced_for_this_window() {
            self.forget_losses();
        } else {
            self.record_loss();
            self.congestion.on_loss();
            self.note_reduction();
        }
        self.pacer.on_loss();
        self.recover = Some(self.send.nxt);
        let is_reduced = self.congestion.reduces_by_rate();
        self.recovery = RecoveryState::Recovery {
            high: self.send.nxt,
            reduction: is_reduced.then(|| RateReduction::new(flight_bytes)),
        };
        self.has_partial_ack = false;
    }

    /// RFC 9937 s5: without SACK each duplicate ACK counts as one segment delivered, and these are
    /// subtracted from the bytes that a later ACK covers.
    fn estimate_arrived(&self, delivery: &Delivery, duplicate: bool) -> u64 {
        let segment = u64::from(self.sizes.current);
        if self.sack.is_used() {
            delivery.bytes
        } else if duplicate {
            segment
        } else {
            delivery
                .bytes
                .saturating_sub(u64::from(self.duplicate_acks) * segment)
        }
    }

    /// Loss detection without SACK (RFC 6582): three duplicate ACKs, and each partial ACK after them,
    /// mean that the oldest segment is lost. After a timeout duplicate ACKs are ignored until more
    /// is acknowledged than was sent when the timer fired, because they may answer needless
    /// retransmissions (RFC 6582 s3.2, step 2).
    /// Returns whether it considers a segment lost.
    fn count_duplicates(&mut self, now: Instant, delivery: &Delivery) -> bool {
        let partial = delivery.advanced && matches!(self.recovery, RecoveryState::Recovery { .. });
        let third = self.duplicate_acks == DUPLICATE_THRESHOLD && self.is_duplicate_meaningful();
        let is_lost = third || partial;
        if third && self.is_size_probe(Some(self.send.una)) {
            let probe = self.size_probe_under_way();
            let bytes = probe.map_or(0, StreamRange::bytes);
            let _ = self.flight.mark_head_lost(bytes);
            self.on_size_probe_lost(now, true);
            return false;
        }
        if is_lost {
            let flight_bytes = self.outstanding_bytes();
            let head = self.flight.mark_head_lost(u64::from(self.sizes.current));
            if let Some(head) = head {
                self.sample_lost(now, &head);
            }
            self.begin_recovery(flight_bytes);
        }
        is_lost
    }

    /// Whether duplicate ACKs show that segments left the network, and not that needless retransmissions
    /// arrived (RFC 6582 s3.2, step 2).
    pub(super) fn is_duplicate_meaningful(&self) -> bool {
        self.recovery == RecoveryState::Open
            && self.recover.is_none_or(|recover| self.send.una > recover)
    }

    /// Ends the recovery once everything is acknowledged that was outstanding when it began. Returns
    /// whether it did.
    fn end_recovery(&mut self, ack: StreamOffset) -> bool {
        match self.recovery {
            RecoveryState::Recovery { high, .. } if ack >= high => {
                self.congestion.on_recovered();
            }
            RecoveryState::Loss { high } if ack >= high => {
                self.congestion.on_timeout_repaired();
                self.timeout_record = None;
            }
            _ => return false,
        }
        self.rack.on_recovery_end();
        self.recovery = RecoveryState::Open;
        true
    }

    /// Tells the controller and rate reduction what an ACK or RACK's timer brought. `has_new_loss`:
    /// it also showed that more was lost.
    fn adjust_window(&mut self, now: Instant, delivery: &Delivery, has_new_loss: bool) {
        let outstanding_bytes = self.outstanding_bytes();
        let uses_sack = self.sack.is_used();
        // Where segments overtake each other, most of a window may be SACKed when a late one arrives, and
        // it has passed the path like what comes in order. Elsewhere a SACK hints at a loss. As in Linux
        // (`tcp_may_raise_cwnd`).
        let is_reordered = self.recovery == RecoveryState::Open
            && self.rack.has_seen_reordering()
            && delivery.bytes > 0;
        let may_grow = delivery.advanced || is_reordered;
        match &mut self.recovery {
            RecoveryState::Recovery {
                reduction: Some(reduction),
                ..
            } => {
                reduction.on_progress(&RecoveryProgress {
                    delivered_bytes: delivery.arrived,
                    outstanding_bytes,
                    threshold: self.congestion.threshold(),
                    segment_bytes: u64::from(self.sizes.current),
                    is_safe: delivery.advanced && !has_new_loss,
                    is_partial: delivery.advanced && !uses_sack,
                });
            }
            RecoveryState::Open | RecoveryState::Loss { .. } if may_grow => {
                let window_bytes = self.congestion.window();
                self.pacer
                    .on_acknowledged(delivery.bytes, window_bytes, self.sizes.current);
                // RFC 3168 s6.1.2: no growth by an ACK with ECE.
                if !delivery.is_echo {
                    self.grow_window(now, delivery);
                }
            }
            _ => {}
        }
        self.sample_ack(now, delivery.is_window_limited);
    }

    fn grow_window(&mut self, now: Instant, delivery: &Delivery) {
        // RFC 6582 s3.2, step 3: the ACK that ends a recovery covers what arrived long before it, which does not count for
        // growth. With SACK the bytes are those that have just arrived, and they do, as in Linux.
        let counted = delivery
            .recovered
            .map_or(u64::MAX, |high| self.send.una.since(high));
        self.congestion.on_ack(&AckEvent {
            now,
            bytes: delivery.bytes.min(counted),
            outstanding_bytes_max: delivery.outstanding_bytes_max,
            rtt: self.rtt.smoothed().unwrap_or_default(),
            sample: delivery.rtt,
            acknowledged: self.send.una,
            sent: self.send.nxt,
        });
    }

    /// RFC 8985 s7.4: detects whether the tail loss probe repaired a loss.
    fn check_tail_probe(&mut self, ack: StreamOffset, delivery: &Delivery, duplicate: bool) {
        let Some(probe) = self.tail_probe else { return };
        if ack < probe.end {
            return;
        }
        if !probe.is_retransmission || delivery.duplicate.is_some() {
            self.tail_probe = None;
        } else if ack > probe.end {
            // No DSACK: the probe repaired a loss that nothing else would have detected, so the
            // window is reduced.
            self.tail_probe = None;
            if self.recovery == RecoveryState::Open {
                self.congestion.on_loss();
                self.congestion.on_recovered();
                self.forget_losses();
                self.note_reduction();
            }
        } else if duplicate {
            // The second copy, from a peer that does not report duplicates.
            self.tail_probe = None;
        }
    }

    /// Seventh and eighth check: text and FIN.
    fn process_text(&mut self, now: Instant, segment: &TcpRepr, payload_bytes: usize) -> Arrival {
        let mut arrival = Arrival::ACCEPTED;
        if payload_bytes == 0 && !segment.flags.contains(TcpFlags::FIN) {
            return arrival;
        }
        if !self.takes_text() {
            self.acknowledgment = Acknowledgment::Now;
            return arrival;
        }
        let text = self.receive.process_text(segment, payload_bytes);
        if text.dropped || text.fin || text.payload.is_empty() {
            self.acknowledgment = Acknowledgment::Now;
        } else {
            // The peer's segments are as large as ours, or smaller. If they are larger, because only our
            // direction of the path is narrow, none of its ACKs is delayed.
            let is_merged = payload_bytes > usize::from(self.segment_bytes());
            let deadline = now + self.config.ack_delay;
            self.acknowledgment = self.acknowledgment.after_text(is_merged, deadline);
        }
        if text.fin {
            arrival.outcome = self.on_peer_fin();
            arrival.peer_finished = true;
        }
        arrival.text = text.payload;
        arrival
    }

    /// Whether the session may still append: our FIN is not queued.
    #[must_use]
    pub fn can_append(&self) -> bool {
        self.send.fin == Fin::NotQueued
    }
}
