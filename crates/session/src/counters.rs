//! Counters since the start: plain integers with one owner, no locks.

use counters::{Histogram, counters};
use tcp::{PathEvents, SegmentDrop};
use wire::DropReason;

use crate::request_log::{ReplyEnd, STATUS_CLIENT_LEFT};

counters! {
    /// Totals since start.
    #[derive(Clone, Debug)]
    pub struct Counters {
        /// Frames received.
        pub wire_receive_frames: u64,
        /// Frames received whose destination address is none of ours.
        pub wire_foreign_frames: u64,
        /// Answers to ARP, neighbour solicitations and echo requests, queued to be sent.
        pub wire_answer_frames: u64,
        /// Answers dropped because the queue of answers was full.
        pub wire_answer_overflow_count: u64,
        /// Frames received by which another host claimed one of our addresses.
        pub wire_conflict_frames: u64,
        /// Announcements sent to defend an address against such a claim.
        pub wire_defense_frames: u64,
        /// Frames not answered because `allow` and `deny` do not let their source be served.
        pub wire_denied_frames: u64,
        /// Fragments of packets to our addresses.
        pub wire_fragment_frames: u64,
        /// Packets put together of their fragments.
        pub wire_reassembled_count: u64,
        /// Packets given up because a fragment was missing for 30 s.
        pub wire_reassembly_timeout_count: u64,
        /// Packets given up, with fragments missing, because the fragments of others needed the room.
        pub wire_reassembly_evicted_count: u64,
        /// Packets discarded because their fragments overlapped, contradicted each other, or were too many or
        /// too large.
        pub wire_reassembly_refused_count: u64,
        /// ARP requests and neighbour solicitations sent because clients did not answer.
        pub wire_neighbor_request_frames: u64,
        /// Segments that belonged to no connection, answered by a reset.
        pub tcp_refused_segments: u64,
        /// Segments that belonged to no connection, not answered: the limit of resets a second was reached.
        pub tcp_reset_limited_count: u64,
        /// Challenge ACKs sent: answers to resets, SYNs and ACKs that may be forged (RFC 5961).
        pub tcp_challenge_count: u64,
        /// Challenge ACKs not sent because the limit of a second was reached.
        pub tcp_challenge_limited_count: u64,
        /// SYNs accepted: a half-open connection was created.
        pub tcp_open_count: u64,
        /// TCP handshakes completed.
        pub tcp_established_count: u64,
        /// TCP handshakes of `tcp_established_count` that agreed on ECN.
        pub tcp_ecn_count: u64,
        /// Times a congestion window was reduced because the client echoed a mark (ECN).
        pub tcp_ecn_reduction_count: u64,
        /// TCP handshakes refused because the table of connections was full and no connection was idle.
        pub tcp_overflow_count: u64,
        /// Segments, and ICMP errors about segments, of no connection here that were passed on to the next
        /// worker.
        pub tcp_stray_passed_count: u64,
        /// Segments and ICMP errors from other workers that belonged to a connection here.
        pub tcp_stray_taken_count: u64,
        /// Segments and ICMP errors that were not passed on because too many were waiting for that.
        pub tcp_stray_dropped_count: u64,
        /// Segments and ICMP errors from other workers that belonged to no connection of any worker.
        pub tcp_stray_unclaimed_count: u64,
        /// Segments and ICMP errors that were passed on to the other process of a take-over: those of its
        /// connections, and of none.
        pub tcp_crossed_count: u64,
        /// Segments and ICMP errors for the other process of a take-over that were dropped because too many were
        /// waiting for that.
        pub tcp_crossing_dropped_count: u64,
        /// TCP handshakes refused because their source had `connections_per_source_max` connections.
        pub tcp_source_refused_count: u64,
        /// Idle connections closed to make room for a new one.
        pub tcp_evicted_count: u64,
        /// Connections reset to make room for a new one: their source had far more than the new one's.
        pub tcp_source_evicted_count: u64,
        /// SYNs answered by a SYN cookie because the table of half-open connections was full.
        pub tcp_cookie_sent_count: u64,
        /// SYNs dropped because SYN cookies were in use and a batch of frames had more SYNs than are answered.
        pub tcp_cookie_limited_count: u64,
        /// TCP handshakes of `tcp_established_count` that were completed with a SYN cookie.
        pub tcp_cookie_accepted_count: u64,
        /// ACKs of no connection that arrived while SYN cookies were in use and had no valid one.
        pub tcp_cookie_refused_count: u64,
        /// Half-open connections dropped because no ACK of the SYN-ACK arrived.
        pub tcp_handshake_timeout_count: u64,
        /// Connections that ended with a FIN of both sides.
        pub tcp_finished_count: u64,
        /// Connections reset by the client.
        pub tcp_reset_count: u64,
        /// Connections ended because retransmissions, probes or our FIN were not acknowledged in time.
        pub tcp_timeout_count: u64,
        /// Connections reset by us: failed reads, send timeouts, shutdown.
        pub tcp_abort_count: u64,
        /// Segments with data that the link took; one to be segmented by the NIC counts once.
        pub tcp_send_segments: u64,
        /// Data bytes of `tcp_send_segments`, retransmissions included.
        pub tcp_send_bytes: u64,
        /// Segments of `tcp_send_segments` that were retransmissions.
        pub tcp_retransmit_segments: u64,
        /// Data bytes of `tcp_retransmit_segments`.
        pub tcp_retransmit_bytes: u64,
        /// Spurious retransmission timeouts (RFC 4015): no segment was lost, and the congestion window
        /// was restored.
        pub tcp_spurious_timeout_count: u64,
        /// Reductions of a congestion window that were undone because DSACKs showed that nothing was lost.
        pub tcp_spurious_recovery_count: u64,
        /// Segments without data that the link took: ACKs, FINs, probes.
        pub tcp_control_segments: u64,
        /// Times the next hop of a connection changed: to the source MAC of its client's segments, or to the
        /// station that took over from one which does not answer.
        pub tcp_next_hop_change_count: u64,
        /// ICMP reports of a smaller path MTU that quoted a segment in flight.
        pub tcp_packet_too_big_count: u64,
        /// Black holes detected: large packets to a client were lost again and again, without a report, and
        /// smaller ones are sent.
        pub tcp_mtu_black_hole_count: u64,
        /// Probes of a larger packet sent.
        pub tcp_mtu_probe_count: u64,
        /// Probes of `tcp_mtu_probe_count` that arrived: larger packets are sent from then on.
        pub tcp_mtu_probe_success_count: u64,
        /// Probes of `tcp_mtu_probe_count` that were lost.
        pub tcp_mtu_probe_lost_count: u64,
        /// TLS handshakes completed.
        pub tls_handshake_count: u64,
        /// Handshakes of `tls_handshake_count` that resumed a session.
        pub tls_resumed_count: u64,
        /// TLS handshakes that failed: we sent or received an alert, or the client spoke no TLS.
        pub tls_handshake_refused_count: u64,
        /// TLS handshakes not complete within `head_timeout_seconds`.
        pub tls_handshake_timeout_count: u64,
        /// TLS handshakes reset because too many were in progress, and they waited for their clients.
        pub tls_handshake_overflow_count: u64,
        /// Connections reset because too many ClientHellos were waiting.
        pub tls_hello_refused_count: u64,
        /// SYNs to the TLS port dropped because many ClientHellos were waiting.
        pub tls_syn_dropped_count: u64,
        /// Alerts sent after the handshake, for records that could not be decrypted or were invalid.
        pub tls_alert_count: u64,
        /// Fatal alerts received after the handshake.
        pub tls_peer_alert_count: u64,
        /// KeyUpdates sent: one for each new key of ours.
        pub tls_key_update_count: u64,
        /// TLS 1.2 connections reset because their key had reached its limit of records.
        pub tls_key_exhausted_count: u64,
        /// Records of objects sealed for the first time.
        pub record_seal_count: u64,
        /// Records of objects sealed again, to retransmit or to send the rest of them.
        pub record_reseal_count: u64,
        /// Content bytes of `record_seal_count` and `record_reseal_count`.
        pub record_seal_bytes: u64,
        /// Connections reset because a record that was sealed again got another tag: its file changed.
        pub record_reseal_mismatch_count: u64,
        /// Attempts to parse a request head.
        pub http_parse_count: u64,
        /// Bytes parsed by `http_parse_count`; those of a head that arrives in pieces count each time.
        pub http_parse_bytes: u64,
        /// Request heads parsed successfully.
        pub http_request_count: u64,
        /// Requests with which players told of their playback (`cmcd`).
        pub http_cmcd_count: u64,
        /// Requests of `http_cmcd_count` whose player's buffer had run empty since the request before: viewers saw
        /// it stop (`bs`).
        pub http_cmcd_starvation_count: u64,
        /// Requests of `http_cmcd_count` whose player told a throughput that it measured (`mtp`).
        pub http_cmcd_throughput_count: u64,
        /// Those throughputs added up, bytes a second: divided by `http_cmcd_throughput_count`, their mean.
        pub http_cmcd_throughput_bytes: u64,
        /// Replies queued, of any status.
        pub http_reply_count: u64,
        /// Requests answered 429, because their client's network had reached the `limit` of a site or rule.
        pub http_limited_count: u64,
        /// Requests whose object was not there.
        pub http_miss_count: u64,
        /// Requests of `http_miss_count` that were sent elsewhere (`on_miss`).
        pub http_miss_redirect_count: u64,
        /// Replies queued with a status of 400 or above.
        pub http_error_count: u64,
        /// Request heads not complete within `head_timeout_seconds`.
        pub http_timeout_count: u64,
        /// Connections closed after `idle_timeout_seconds` without a request.
        pub http_idle_close_count: u64,
        /// Connections reset because the client acknowledged too little for `send_timeout_seconds`.
        pub http_stall_count: u64,
        /// Connections from trusted proxies that were reset because they did not begin by the PROXY protocol.
        pub session_preface_refused_count: u64,
        /// Connections that were reset, and requests answered 403, because a trusted proxy forwarded them for a client
        /// that `allow` and `deny` of the server do not serve.
        pub session_denied_count: u64,
        /// Reads of the disk requested.
        pub session_read_count: u64,
        /// Bytes of `session_read_count`, those for alignment included.
        pub session_read_bytes: u64,
        /// Reads of `session_read_count` for retransmissions.
        pub session_reread_count: u64,
        /// Fetches from a read buffer that was kept, without a read.
        pub session_kept_fetch_count: u64,
        /// Read buffers that were kept and given up before all of their bytes were sent.
        pub session_kept_given_up_count: u64,
        /// Bytes of read buffers that were copied, to be sent from the copy later.
        pub session_kept_copied_bytes: u64,
        /// Times a read was deferred because its connection had used its read budget.
        pub session_read_deferred_count: u64,
        /// Times a read was deferred because the `bandwidth` of its site or rule was used.
        pub session_bandwidth_deferred_count: u64,
        /// Times a read was deferred because its device had as many reads in progress as it may have.
        pub session_device_capped_count: u64,
        /// Times a read was deferred because no slot was free.
        pub session_slot_famine_count: u64,
        /// Reads that failed with an error of the device or file system.
        pub session_read_error_count: u64,
        /// Reads refused because the object had changed on the disk.
        pub session_read_changed_count: u64,
        /// Replies that began anew: the object had changed, and nothing of the reply had been sent.
        pub session_reply_anew_count: u64,
        /// Reads that ended before the object does.
        pub session_read_short_count: u64,
        /// Reads whose bytes were not needed any more when they arrived.
        pub session_read_stale_count: u64,
        /// Frames received and dropped, for any reason.
        // By [`DropReason::index`].
        pub wire_drop_count: [u64; DropReason::COUNT],
        /// Segments received and dropped by their connection, for any reason.
        // In the order of [`SegmentDrop::ALL`].
        pub tcp_drop_count: [u64; SegmentDrop::COUNT],
    }
}

counters! {
    /// How long things took, since start. Times are those of the rounds that see beginning and end.
    #[derive(Clone, Debug)]
    pub struct Histograms {
        /// From a request's head to the first byte of its reply that was sent.
        pub http_first_byte_seconds: Histogram,
        /// From a request's head to the acknowledgment of its reply's last byte.
        pub http_last_byte_seconds: Histogram,
        /// What players said they had buffered when they asked (`cmcd`, `bl`).
        pub http_cmcd_buffer_seconds: Histogram,
        /// The smoothed RTT of the connection at the end of each reply.
        pub tcp_rtt_seconds: Histogram,
        /// From the TCP handshake to the end of the TLS handshake.
        pub tls_handshake_seconds: Histogram,
        /// From a disk read's beginning to its completion.
        pub disk_read_seconds: Histogram,
    }
}

counters! {
    /// What became of the requests of one site, since start, if they are counted by site
    /// ([`crate::Config::counts_by_site`]). A reply counts when it is over: acknowledged, or its connection has ended.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct SiteCounters prefix "site_" {
        /// Requests whose reply is over, or whose client left before it began.
        pub request_count: u64,
        /// Bytes sent of replies that are over, once each: heads, bodies and the overhead of TLS.
        pub sent_bytes: u64,
        /// Replies that are over, by class of status.
        // In the order of [`STATUS_CLASSES`].
        pub reply_count: [u64; STATUS_CLASSES.len()],
        /// From a request's head to the first byte of its reply that was sent, of replies that are over.
        pub first_byte_seconds: Histogram,
    }
}

/// Classes of status that replies have (RFC 9110 s15); interim replies are none.
pub const STATUS_CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

impl SiteCounters {
    /// How many numbers [`SiteCounters::values`] are.
    pub const VALUES: usize = 2 + STATUS_CLASSES.len() + Histogram::VALUES;

    /// A request with this status is over.
    pub(crate) fn note(&mut self, status: u16, end: &ReplyEnd) {
        self.request_count += 1;
        self.sent_bytes += end.stream_bytes;
        let class = usize::from(status / 100).checked_sub(2);
        let class = class.filter(|_| status != STATUS_CLIENT_LEFT);
        if let Some(count) = class.and_then(|class| self.reply_count.get_mut(class)) {
            *count += 1;
        }
        if let Some(time) = end.first_byte {
            self.first_byte_seconds.record(time);
        }
    }

    /// What it holds, as numbers that may be added up: those of [`SiteCounters::from_values`].
    #[must_use]
    pub fn values(&self) -> [u64; Self::VALUES] {
        let own = [self.request_count, self.sent_bytes];
        let times = self.first_byte_seconds.values();
        let mut all = own.into_iter().chain(self.reply_count).chain(times);
        std::array::from_fn(|_| all.next().unwrap_or_default())
    }

    /// The counters that have these values.
    #[must_use]
    pub fn from_values(values: [u64; Self::VALUES]) -> Self {
        let mut values = values.into_iter();
        let mut next = || values.next().unwrap_or_default();
        Self {
            request_count: next(),
            sent_bytes: next(),
            reply_count: std::array::from_fn(|_| next()),
            first_byte_seconds: Histogram::from_values(std::array::from_fn(|_| next())),
        }
    }
}

impl Histograms {
    /// Their number.
    pub const COUNT: usize = 6;

    /// Each, in the order of the fields.
    #[must_use]
    pub const fn each(&self) -> [&Histogram; Self::COUNT] {
        [
            &self.http_first_byte_seconds,
            &self.http_last_byte_seconds,
            &self.http_cmcd_buffer_seconds,
            &self.tcp_rtt_seconds,
            &self.tls_handshake_seconds,
            &self.disk_read_seconds,
        ]
    }
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
        reasons
            .zip(self.wire_drop_count)
            .filter(|(_, count)| *count > 0)
    }

    /// Segments dropped, by reason; reasons that did not occur are left out.
    pub fn tcp_drop_pairs(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let reasons = SegmentDrop::ALL.iter().map(|reason| reason.as_str());
        reasons
            .zip(self.tcp_drop_count)
            .filter(|(_, count)| *count > 0)
    }
}
