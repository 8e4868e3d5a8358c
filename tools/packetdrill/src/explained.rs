//! Why scripts fail that do: each differs from Linux by design. A script that fails without an
//! explanation here fails the test, and so does one that has an explanation and passes.

/// Scripts, by their path below the folder of scripts, and why they fail.
const EXPLAINED: &[(&str, &str)] = &[
    ("cubic/cubic-bulk-166k-idle-restart.pkt", HYSTART),
    ("cubic/cubic-bulk-166k.pkt", HYSTART),
    ("cubic/cubic-hystart-delay-rtt-jumps-upward.pkt", HYSTART),
    (
        "cwnd_moderation/cwnd-moderation-ecn-enter-cwr-no-moderation-700.pkt",
        "ECN is not agreed",
    ),
    (
        "fast_recovery/prr-ss-ack-below-snd_una-cubic.pkt",
        "One ACK is of a retransmission and of an older segment. RACK.rtt is that of the one sent last \
         (RFC 8985 s6.2, step 2, goes in the order of sending), in Linux that of the one with the \
         highest number: 12 ms, not 22. So another segment is overdue at once, and rate reduction \
         permits two segments, not three.",
    ),
    (
        "fast_retransmit/fr-4pkt-fack-last-byte.pkt",
        "A SACK of the last byte of a segment counts as a delivery (RFC 2018 s3 knows bytes only), so \
         RACK retransmits a quarter of a round trip later. Linux counts whole segments, and waits for \
         its tail loss probe and its timeout.",
    ),
    (
        "fast_retransmit/fr-4pkt-fack-last-mss.pkt",
        "RACK waits a quarter of the least round trip, 25 ms (RFC 8985 s6.2, step 4); the script \
         expects 40.",
    ),
    (
        "limited_transmit/limited-transmit-no-sack.pkt",
        "Passes but for the ACK that follows the duplicates: our window grows by all three segments \
         that it covers, Linux's by one, because two were counted by duplicate ACKs before.",
    ),
    (
        "shutdown/shutdown-rdwr-send-queue-ack-close.pkt",
        "The FIN leaves in a segment of its own, not with the last text.",
    ),
    (
        "slow_start/slow-start-fq-ack-per-2pkt.pkt",
        "Expects the pacing of Linux's fq queue. Ours is off here; drill scripts check it.",
    ),
    (
        "ts_recent/invalid_ack.pkt",
        "A segment that acknowledges what was never sent is answered by an ACK (RFC 9293 s3.10.7.4, \
         fifth check; RFC 5961 s5.2). Linux drops it silently.",
    ),
];

const HYSTART: &str = "HyStart++ (RFC 9406) slows growth down to a quarter where Linux's HyStart still doubles the \
     window, or ends it at another window.";

/// The explanation of a script's failure.
#[must_use]
pub fn explanation(script: &str) -> Option<&'static str> {
    let found = EXPLAINED.iter().find(|(name, _)| *name == script);
    found.map(|(_, why)| *why)
}
