//! What happened since start: plain numbers, one owner, no locks.

use tcp::SegmentDrop;
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
                ("wire_drop_count", "Frames refused, for whatever reason."),
                ("tcp_drop_count", "Segments refused by their connection, for whatever reason."),
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
    /// Frames whose destination is none of our addresses.
    wire_foreign_frames,
    /// Answers to ARP, neighbour solicitations and echo requests that were queued.
    wire_answer_frames,
    /// Answers not sent because too many were waiting.
    wire_answer_overflow_count,
    /// Frames by which another station said that it has one of our addresses.
    wire_conflict_frames,
    /// Announcements that defended an address against them.
    wire_defense_frames,
    /// Segments for no connection, answered by a reset.
    tcp_refused_segments,
    /// SYNs that began a handshake.
    tcp_open_count,
    /// Handshakes completed.
    tcp_established_count,
    /// Handshakes refused because the table of connections was full, or forgotten because the
    /// half-open table was.
    tcp_overflow_count,
    /// Handshakes given up.
    tcp_handshake_timeout_count,
    /// Connections both sides finished.
    tcp_finished_count,
    /// Connections the peer reset.
    tcp_reset_count,
    /// Connections that stopped answering.
    tcp_timeout_count,
    /// Connections we reset: failed reads, stalled clients, the end of the server.
    tcp_abort_count,
    /// Data segments handed to the link; a large one counts once.
    tcp_send_segments,
    /// Bytes of them, retransmissions included.
    tcp_send_bytes,
    /// Data segments handed to the link again.
    tcp_retransmit_segments,
    /// Bytes of them.
    tcp_retransmit_bytes,
    /// Retransmission timeouts that turned out to be spurious: what was sent was merely late, and the
    /// congestion window is what it was.
    tcp_spurious_timeout_count,
    /// Segments without data: ACK, FIN, probes.
    tcp_control_segments,
    /// Times a connection's frames began to go to another MAC, because its peer's came from there.
    tcp_next_hop_change_count,
    /// ICMP told us the path takes smaller packets.
    tcp_packet_too_big_count,
    /// TLS handshakes completed.
    tls_handshake_count,
    /// Those of them that went on with a session of before.
    tls_resumed_count,
    /// TLS handshakes refused.
    tls_handshake_refused_count,
    /// TLS handshakes that did not end in time.
    tls_handshake_timeout_count,
    /// TLS handshakes reset because too many others waited for their clients too.
    tls_handshake_overflow_count,
    /// Clients reset at their first record because too many waited before them.
    tls_hello_refused_count,
    /// SYNs to the port of TLS not answered because many first records waited.
    tls_syn_dropped_count,
    /// Alerts sent about records that could not be opened or understood.
    tls_alert_count,
    /// Fatal alerts received after the handshake.
    tls_peer_alert_count,
    /// Keys of ours replaced by a KeyUpdate.
    tls_key_update_count,
    /// TLS 1.2 connections reset because their key had sealed all it may.
    tls_key_exhausted_count,
    /// Records of objects sealed for the first time.
    record_seal_count,
    /// Records of objects sealed again, because a part of them was lost or had to wait.
    record_reseal_count,
    /// Content bytes of both.
    record_seal_bytes,
    /// Connections reset because a record, sealed again, was not what it had been.
    record_reseal_mismatch_count,
    /// Times the input was looked at for a request's head.
    http_parse_count,
    /// Bytes looked at; those of a head that comes in pieces count each time.
    http_parse_bytes,
    /// Requests understood.
    http_request_count,
    /// Replies begun, of any status.
    http_reply_count,
    /// Replies of 4xx and 5xx.
    http_error_count,
    /// Request heads that did not arrive in time.
    http_timeout_count,
    /// Connections closed because they asked for nothing more.
    http_idle_close_count,
    /// Connections reset because the client took nothing for too long.
    http_stall_count,
    /// Reads planned.
    session_read_count,
    /// Bytes of them, alignment included.
    session_read_bytes,
    /// Reads that served bytes lost before.
    session_reread_count,
    /// Times a read had to wait because its client had much read for what it acknowledged.
    session_read_deferred_count,
    /// Times a read had to wait because its device had as many under way as it may have.
    session_device_capped_count,
    /// Times no slot was free for a read that was due.
    session_slot_famine_count,
    /// Reads that failed.
    session_read_error_count,
    /// Reads refused because the object had changed on the disk.
    session_read_changed_count,
    /// Reads that ended before the object should.
    session_read_short_count,
    /// Reads whose bytes nobody wanted any more.
    session_read_stale_count,
}

impl Counters {
    /// Frames refused by reason, those that occurred.
    pub fn wire_drop_pairs(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let reasons = DropReason::ALL.iter().map(|reason| reason.as_str());
        reasons.zip(self.wire_drops).filter(|(_, count)| *count > 0)
    }

    /// Segments refused by reason, those that occurred.
    pub fn tcp_drop_pairs(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let reasons = SegmentDrop::ALL.iter().map(|reason| reason.as_str());
        reasons.zip(self.tcp_drops).filter(|(_, count)| *count > 0)
    }
}
