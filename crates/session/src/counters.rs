//! Counters since the start: plain integers with one owner, no locks.

use tcp::{PathEvents, SegmentDrop};
use wire::DropReason;

macro_rules! counters {
    ($($(#[doc = $doc:expr])+ $name:ident,)+) => {
        /// Totals since start.
        #[derive(Clone, Debug)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: u64,)+
            /// Frames refused, by [`DropReason::index`].
            pub wire_drops: [u64; DropReason::COUNT],
            /// Segments refused by a connection, in the order of [`SegmentDrop::ALL`].
            pub tcp_drops: [u64; SegmentDrop::COUNT],
        }

        impl Default for Counters {
            fn default() -> Self {
                Self {
                    $($name: 0,)+
                    wire_drops: [0; DropReason::COUNT],
                    tcp_drops: [0; SegmentDrop::COUNT],
                }
            }
        }

        impl Counters {
            /// Name and meaning of every counter of [`Counters::as_pairs`], in the same order.
            pub const MEANINGS: &'static [(&'static str, &'static str)] = &[
                $((stringify!($name), concat!($($doc),+)),)+
                ("wire_drop_count", "Frames received and dropped, for any reason."),
                ("tcp_drop_count", "Segments received and dropped by their connection, for any reason."),
            ];

            /// Name and value of every counter that stands for itself, in a fixed order.
            pub fn as_pairs(&self) -> Vec<(&'static str, u64)> {
                let mut pairs = vec![$((stringify!($name), self.$name),)+];
                pairs.push(("wire_drop_count", self.wire_drops.iter().sum()));
                pairs.push(("tcp_drop_count", self.tcp_drops.iter().sum()));
                pairs
            }
        }
    };
}

counters! {
    /// Frames received.
    wire_receive_frames,
    /// Frames received whose destination address is none of ours.
    wire_foreign_frames,
    /// Answers to ARP, neighbour solicitations and echo requests, queued to be sent.
    wire_answer_frames,
    /// Answers dropped because the queue of answers was full.
    wire_answer_overflow_count,
    /// Frames received by which another host claimed one of our addresses.
    wire_conflict_frames,
    /// Announcements sent to defend an address against such a claim.
    wire_defense_frames,
    /// Frames not answered because `allow` and `deny` do not let their source be served.
    wire_denied_frames,
    /// Fragments of packets to our addresses.
    wire_fragment_frames,
    /// Packets put together of their fragments.
    wire_reassembled_count,
    /// Packets given up because a fragment was missing for 30 s.
    wire_reassembly_timeout_count,
    /// Packets given up, with fragments missing, because the fragments of others needed the room.
    wire_reassembly_evicted_count,
    /// Packets discarded because their fragments overlapped, contradicted each other, or were too many or
    /// too large.
    wire_reassembly_refused_count,
    /// ARP requests and neighbour solicitations sent because clients did not answer.
    wire_neighbor_request_frames,
    /// Segments that belonged to no connection, answered by a reset.
    tcp_refused_segments,
    /// Segments that belonged to no connection, not answered: the limit of resets a second was reached.
    tcp_reset_limited_count,
    /// Challenge ACKs sent: answers to resets, SYNs and ACKs that may be forged (RFC 5961).
    tcp_challenge_count,
    /// Challenge ACKs not sent because the limit of a second was reached.
    tcp_challenge_limited_count,
    /// SYNs accepted: a half-open connection was created.
    tcp_open_count,
    /// TCP handshakes completed.
    tcp_established_count,
    /// TCP handshakes of `tcp_established_count` that agreed on ECN.
    tcp_ecn_count,
    /// Times a congestion window was reduced because the client echoed a mark (ECN).
    tcp_ecn_reduction_count,
    /// TCP handshakes refused because the table of connections was full and no connection was idle.
    tcp_overflow_count,
    /// Segments, and ICMP errors about segments, of no connection here that were passed on to the next
    /// worker.
    tcp_stray_passed_count,
    /// Segments and ICMP errors from other workers that belonged to a connection here.
    tcp_stray_taken_count,
    /// Segments and ICMP errors that were not passed on because too many were waiting for that.
    tcp_stray_dropped_count,
    /// Segments and ICMP errors from other workers that belonged to no connection of any worker.
    tcp_stray_unclaimed_count,
    /// TCP handshakes refused because their source had `connections_per_source_max` connections.
    tcp_source_refused_count,
    /// Idle connections closed to make room for a new one.
    tcp_evicted_count,
    /// Connections reset to make room for a new one: their source had far more than the new one's.
    tcp_source_evicted_count,
    /// SYNs answered by a SYN cookie because the table of half-open connections was full.
    tcp_cookie_sent_count,
    /// SYNs dropped because SYN cookies were in use and a batch of frames had more SYNs than are answered.
    tcp_cookie_limited_count,
    /// TCP handshakes of `tcp_established_count` that were completed with a SYN cookie.
    tcp_cookie_accepted_count,
    /// ACKs of no connection that arrived while SYN cookies were in use and had no valid one.
    tcp_cookie_refused_count,
    /// Half-open connections dropped because no ACK of the SYN-ACK arrived.
    tcp_handshake_timeout_count,
    /// Connections that ended with a FIN of both sides.
    tcp_finished_count,
    /// Connections reset by the client.
    tcp_reset_count,
    /// Connections ended because retransmissions, probes or our FIN were not acknowledged in time.
    tcp_timeout_count,
    /// Connections reset by us: failed reads, send timeouts, shutdown.
    tcp_abort_count,
    /// Segments with data that the link took; one to be segmented by the NIC counts once.
    tcp_send_segments,
    /// Data bytes of `tcp_send_segments`, retransmissions included.
    tcp_send_bytes,
    /// Segments of `tcp_send_segments` that were retransmissions.
    tcp_retransmit_segments,
    /// Data bytes of `tcp_retransmit_segments`.
    tcp_retransmit_bytes,
    /// Spurious retransmission timeouts (RFC 4015): no segment was lost, and the congestion window
    /// was restored.
    tcp_spurious_timeout_count,
    /// Reductions of a congestion window that were undone because DSACKs showed that nothing was lost.
    tcp_spurious_recovery_count,
    /// Segments without data that the link took: ACKs, FINs, probes.
    tcp_control_segments,
    /// Times the next hop of a connection changed: to the source MAC of its client's segments, or to the
    /// station that took over from one which does not answer.
    tcp_next_hop_change_count,
    /// ICMP reports of a smaller path MTU that quoted a segment in flight.
    tcp_packet_too_big_count,
    /// Black holes detected: large packets to a client were lost again and again, without a report, and
    /// smaller ones are sent.
    tcp_mtu_black_hole_count,
    /// Probes of a larger packet sent.
    tcp_mtu_probe_count,
    /// Probes of `tcp_mtu_probe_count` that arrived: larger packets are sent from then on.
    tcp_mtu_probe_success_count,
    /// Probes of `tcp_mtu_probe_count` that were lost.
    tcp_mtu_probe_lost_count,
    /// TLS handshakes completed.
    tls_handshake_count,
    /// Handshakes of `tls_handshake_count` that resumed a session.
    tls_resumed_count,
    /// TLS handshakes that failed: we sent or received an alert, or the client spoke no TLS.
    tls_handshake_refused_count,
    /// TLS handshakes not complete within `head_timeout_seconds`.
    tls_handshake_timeout_count,
    /// TLS handshakes reset because too many were in progress, and they waited for their clients.
    tls_handshake_overflow_count,
    /// Connections reset because too many ClientHellos were waiting.
    tls_hello_refused_count,
    /// SYNs to the TLS port dropped because many ClientHellos were waiting.
    tls_syn_dropped_count,
    /// Alerts sent after the handshake, for records that could not be decrypted or were invalid.
    tls_alert_count,
    /// Fatal alerts received after the handshake.
    tls_peer_alert_count,
    /// KeyUpdates sent: one for each new key of ours.
    tls_key_update_count,
    /// TLS 1.2 connections reset because their key had reached its limit of records.
    tls_key_exhausted_count,
    /// Records of objects sealed for the first time.
    record_seal_count,
    /// Records of objects sealed again, to retransmit or to send the rest of them.
    record_reseal_count,
    /// Content bytes of `record_seal_count` and `record_reseal_count`.
    record_seal_bytes,
    /// Connections reset because a record that was sealed again got another tag: its file changed.
    record_reseal_mismatch_count,
    /// Attempts to parse a request head.
    http_parse_count,
    /// Bytes parsed by `http_parse_count`; those of a head that arrives in pieces count each time.
    http_parse_bytes,
    /// Request heads parsed successfully.
    http_request_count,
    /// Replies queued, of any status.
    http_reply_count,
    /// Replies queued with a status of 400 or above.
    http_error_count,
    /// Request heads not complete within `head_timeout_seconds`.
    http_timeout_count,
    /// Connections closed after `idle_timeout_seconds` without a request.
    http_idle_close_count,
    /// Connections reset because the client acknowledged too little for `send_timeout_seconds`.
    http_stall_count,
    /// Reads of the disk requested.
    session_read_count,
    /// Bytes of `session_read_count`, those for alignment included.
    session_read_bytes,
    /// Reads of `session_read_count` for retransmissions.
    session_reread_count,
    /// Times a read was deferred because its connection had used its read budget.
    session_read_deferred_count,
    /// Times a read was deferred because its device had as many reads in progress as it may have.
    session_device_capped_count,
    /// Times a read was deferred because no slot was free.
    session_slot_famine_count,
    /// Reads that failed with an error of the device or file system.
    session_read_error_count,
    /// Reads refused because the object had changed on the disk.
    session_read_changed_count,
    /// Reads that ended before the object does.
    session_read_short_count,
    /// Reads whose bytes were not needed any more when they arrived.
    session_read_stale_count,
}

impl Counters {
    /// Adds what a connection learned of its path's MTU.
    pub(crate) fn note_path_events(&mut self, events: PathEvents) {
        self.tcp_mtu_black_hole_count += u64::from(events.black_holes);
        self.tcp_mtu_probe_count += u64::from(events.probes_sent);
        self.tcp_mtu_probe_success_count += u64::from(events.probes_passed);
        self.tcp_mtu_probe_lost_count += u64::from(events.probes_lost);
    }

    /// Frames dropped, by reason; reasons that did not occur are left out.
    pub fn wire_drop_pairs(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let reasons = DropReason::ALL.iter().map(|reason| reason.as_str());
        reasons.zip(self.wire_drops).filter(|(_, count)| *count > 0)
    }

    /// Segments dropped, by reason; reasons that did not occur are left out.
    pub fn tcp_drop_pairs(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let reasons = SegmentDrop::ALL.iter().map(|reason| reason.as_str());
        reasons.zip(self.tcp_drops).filter(|(_, count)| *count > 0)
    }
}
