//! What a connection is doing, for people: the terms of Linux's `tcp_info` where they fit.
//!
//! Nearly everything is computed from the state when it is asked for. Kept for this alone are
//! [`Account`] and [`Totals`]: two counters that only a retransmission changes, and the times that each
//! [`Limit`] took, which change when the limit does.
//!
//! Refused: a history, and rates. Who asks twice divides the difference by the time between.

use clock::{Duration, Instant};
use wire::SeqNumber;

use super::{Connection, State};
use crate::congestion::{CongestionControl, Controller as _};
use crate::flight::SegmentState;
use crate::pacing::PacingRate;
use crate::recovery::RecoveryState;
use crate::stream::{StreamOffset, StreamRange};

/// What keeps a connection from sending more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// Everything that was queued was sent: no request, or what is left are acknowledgments.
    NothingToSend,
    /// The disk: at least as many bytes are being read as are in the network.
    Disk,
    /// Half of what the windows permit, or more, is neither in the network nor being read: the
    /// session waits for a slot, for the read budget or for its turn.
    Application,
    /// The peer's window (`tcpi_rwnd_limited`).
    PeerWindow,
    /// The congestion window.
    CongestionWindow,
    /// The pacing rate.
    Pacing,
}

impl Limit {
    /// Number of limits.
    pub const COUNT: usize = 6;
    /// All limits, in the order of their discriminants.
    pub const ALL: [Self; Self::COUNT] = [
        Self::NothingToSend,
        Self::Disk,
        Self::Application,
        Self::PeerWindow,
        Self::CongestionWindow,
        Self::Pacing,
    ];

    /// The name in listings and traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NothingToSend => "nothing_to_send",
            Self::Disk => "disk",
            Self::Application => "application",
            Self::PeerWindow => "peer_window",
            Self::CongestionWindow => "congestion_window",
            Self::Pacing => "pacing",
        }
    }
}

/// The state of congestion control (`tcpi_ca_state`). Linux's fifth, CWR, is for ECN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CongestionState {
    /// No sign of loss.
    Open,
    /// SACKs or duplicate ACKs arrived; nothing is considered lost yet.
    Disorder,
    /// Fast recovery.
    Recovery,
    /// The retransmission timer fired.
    Loss,
}

impl CongestionState {
    /// The name in listings and traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Disorder => "disorder",
            Self::Recovery => "recovery",
            Self::Loss => "loss",
        }
    }
}

impl State {
    /// The name in listings and traces, as RFC 9293 s3.3.2 has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Established => "established",
            Self::CloseWait => "close_wait",
            Self::FinWait1 => "fin_wait_1",
            Self::FinWait2(_) => "fin_wait_2",
            Self::Closing => "closing",
            Self::LastAck => "last_ack",
        }
    }
}

/// What [`Connection::info`] returns. Linux's name of a field is in parentheses. Bytes are of our
/// stream, over TLS of ciphertext; a FIN counts as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionInfo {
    /// State of RFC 9293 (`tcpi_state`).
    pub state: State,
    /// The algorithm.
    pub congestion_control: CongestionControl,
    /// State of congestion control (`tcpi_ca_state`).
    pub congestion_state: CongestionState,
    /// What keeps it from sending more, at this moment.
    pub limit: Limit,
    /// How long each of [`Limit::ALL`] was in force since the connection was established
    /// (`tcpi_busy_time`, `tcpi_rwnd_limited`, `tcpi_sndbuf_limited` are of this kind).
    pub limit_times: [Duration; Limit::COUNT],
    /// Both sides agreed on SACK.
    pub has_sack: bool,
    /// Both sides agreed on timestamps.
    pub has_timestamps: bool,
    /// Payload of one packet, bytes (`tcpi_snd_mss`).
    pub segment_bytes: u16,
    /// The most that the peer's MSS and our link permit, bytes; more than `segment_bytes` if the path
    /// carries less.
    pub segment_bytes_limit: u16,
    /// SRTT (`tcpi_rtt`); `None` before the first sample.
    pub smoothed_rtt: Option<Duration>,
    /// RTTVAR (`tcpi_rttvar`).
    pub rtt_variation: Duration,
    /// Least RTT seen (`tcpi_min_rtt`); `None` before the first sample.
    pub minimum_rtt: Option<Duration>,
    /// The retransmission timeout, with its backoff (`tcpi_rto`).
    pub retransmission_timeout: Duration,
    /// How often it was doubled since the last RTT sample (`tcpi_backoff`).
    pub backoff: u32,
    /// Timeouts in a row without new data acknowledged (`tcpi_retransmits`).
    pub timeouts: u32,
    /// Unanswered keep-alive or zero-window probes in a row (`tcpi_probes`).
    pub probes: u32,
    /// cwnd, bytes (`tcpi_snd_cwnd`, in segments there).
    pub congestion_window_bytes: u64,
    /// ssthresh, bytes (`tcpi_snd_ssthresh`); `None` before the first loss.
    pub threshold_bytes: Option<u64>,
    /// SND.WND, bytes (`tcpi_snd_wnd`): counted from SND.UNA.
    pub peer_window_bytes: u64,
    /// What is sent is limited by the server, not by the network, so samples of the delivery rate say nothing of the path
    /// (`tcpi_delivery_rate_app_limited`). `false` where congestion control takes no samples.
    pub is_rate_limited: bool,
    /// Bytes a second at which it is paced (`tcpi_pacing_rate`); `None`: it is not paced.
    pub pacing_bytes_per_second: Option<u64>,
    /// Sent and not acknowledged (`tcpi_unacked`): in flight, SACKed, and lost.
    pub unacknowledged_bytes: u64,
    /// Of these, believed to be in the network ("pipe" of RFC 6675).
    pub in_flight_bytes: u64,
    /// Of these, received above a hole (`tcpi_sacked`).
    pub sacked_bytes: u64,
    /// Of these, considered lost, to be read again or being read (`tcpi_lost`).
    pub lost_bytes: u64,
    /// Being read from the disk: new bytes, and lost ones.
    pub reading_bytes: u64,
    /// Queued and neither sent nor being read (`tcpi_notsent_bytes`).
    pub unsent_bytes: u64,
    /// Acknowledged (`tcpi_bytes_acked`).
    pub acknowledged_bytes: u64,
    /// Sent for the first time; with `retransmitted_bytes` it is all that was sent
    /// (`tcpi_bytes_sent`).
    pub sent_bytes: u64,
    /// Sent again (`tcpi_bytes_retrans`).
    pub retransmitted_bytes: u64,
    /// Segments sent again, as they were handed to the link, which may cut one into many packets.
    pub retransmitted_segments: u64,
    /// Since it was established.
    pub since_established: Duration,
    /// Since data was last sent (`tcpi_last_data_sent`).
    pub since_sent: Duration,
    /// Since a segment last arrived that was accepted (`tcpi_last_ack_recv`).
    pub since_received: Duration,
    /// Since SND.UNA last moved, or data was first queued after an idle time.
    pub since_progress: Duration,
}

/// What is kept for [`ConnectionInfo`] alone, and every turn asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Account {
    limit: Limit,
    limited_since: Instant,
    retransmitted_bytes: u64,
}

/// What is kept for [`ConnectionInfo`] alone. A turn that changes no limit does not touch it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Totals {
    established_at: Instant,
    /// Nanoseconds that each limit took, the one in force not counted.
    limit_nanos: [u64; Limit::COUNT],
    retransmitted_segments: u64,
}

impl Account {
    /// A connection is established.
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            limit: Limit::NothingToSend,
            limited_since: now,
            retransmitted_bytes: 0,
        }
    }
}

impl Totals {
    /// A connection is established.
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            established_at: now,
            limit_nanos: [0; Limit::COUNT],
            retransmitted_segments: 0,
        }
    }
}

impl Connection {
    /// What the connection is doing. It costs as much as an ACK, and changes nothing.
    #[must_use]
    pub fn info(&self, now: Instant) -> ConnectionInfo {
        let threshold = self.congestion.threshold();
        ConnectionInfo {
            state: self.state,
            congestion_control: self.config.congestion,
            congestion_state: self.congestion_state(),
            limit: self.limit(now),
            limit_times: self.limit_times(now),
            has_sack: self.sack.is_agreed(),
            has_timestamps: self.receive.timestamps.is_some(),
            segment_bytes: self.sizes.current,
            segment_bytes_limit: self.sizes.limit(),
            smoothed_rtt: self.rtt.smoothed(),
            rtt_variation: self.rtt.variation(),
            minimum_rtt: self.rtt.smoothed().map(|_| self.rtt.minimum()),
            retransmission_timeout: self.rtt.timeout(),
            backoff: self.rtt.backoff(),
            timeouts: self.timeouts,
            probes: self.probes,
            congestion_window_bytes: self.congestion_window(),
            threshold_bytes: (threshold != u64::MAX).then_some(threshold),
            peer_window_bytes: self.send.window(),
            pacing_bytes_per_second: match self.pacing_rate() {
                PacingRate::Unlimited => None,
                PacingRate::Limited(rate) => Some(rate),
            },
            is_rate_limited: self.is_rate_limited(),
            unacknowledged_bytes: self.send.nxt.since(self.send.una),
            in_flight_bytes: self.flight.in_flight_bytes(),
            sacked_bytes: self.flight.sacked_bytes(),
            lost_bytes: self.flight.lost_bytes() + self.flight.claimed_bytes(),
            reading_bytes: self.reading_bytes(),
            unsent_bytes: self.send.unclaimed_bytes(),
            acknowledged_bytes: self.send.una.0,
            sent_bytes: self.send.nxt.0,
            retransmitted_bytes: self.account.retransmitted_bytes,
            retransmitted_segments: self.totals.retransmitted_segments,
            since_established: now.since(self.totals.established_at),
            since_sent: now.since(self.sent_at),
            since_received: now.since(self.last_received_at),
            since_progress: now.since(self.progress_at),
        }
    }

    /// Call this after the connection's state changed: counts the time of what limited it until
    /// now.
    pub fn count_limit(&mut self, now: Instant) {
        let limit = self.limit(now);
        let Account {
            limit: before,
            limited_since: since,
            ..
        } = self.account;
        if limit != before {
            let nanos = now.as_nanos().saturating_sub(since.as_nanos());
            self.totals.limit_nanos[before as usize] += nanos;
            self.account.limit = limit;
            self.account.limited_since = now;
        }
    }

    /// A segment was sent again.
    pub(super) const fn count_retransmitted(&mut self, bytes: u64) {
        self.account.retransmitted_bytes += bytes;
        self.totals.retransmitted_segments += 1;
    }

    /// Time of each limit until `now`.
    fn limit_times(&self, now: Instant) -> [Duration; Limit::COUNT] {
        let mut times = self.totals.limit_nanos.map(Duration::from_nanos);
        times[self.account.limit as usize] += now.since(self.account.limited_since);
        times
    }

    /// Bytes sent more than once.
    #[must_use]
    pub const fn retransmitted_bytes(&self) -> u64 {
        self.account.retransmitted_bytes
    }

    /// What was sent and is considered lost, in stream order: to be read again, or being read.
    pub fn lost_ranges(&self) -> impl Iterator<Item = StreamRange> + '_ {
        let is_lost = |state| matches!(state, SegmentState::Lost | SegmentState::Claimed);
        let entries = self.flight.iter();
        let lost = entries.filter(move |entry| is_lost(entry.state));
        lost.map(|entry| entry.range())
    }

    /// The offset in our stream of a sequence number that the peer names; `None` if that is before
    /// the stream's start.
    #[must_use]
    pub fn offset_of(&self, sequence: SeqNumber) -> Option<StreamOffset> {
        self.send.offset_of(sequence)
    }

    fn is_rate_limited(&self) -> bool {
        let rate = self.delivery_rate.as_ref();
        rate.is_some_and(|rate| rate.is_limited())
    }

    /// Bytes being read from the disk.
    fn reading_bytes(&self) -> u64 {
        self.send.fetching_bytes() + self.flight.claimed_bytes()
    }

    fn congestion_state(&self) -> CongestionState {
        match self.recovery {
            RecoveryState::Recovery { .. } => CongestionState::Recovery,
            RecoveryState::Loss { .. } => CongestionState::Loss,
            RecoveryState::Open => {
                if self.flight.sacked_bytes() > 0 || self.duplicate_acks > 0 {
                    CongestionState::Disorder
                } else {
                    CongestionState::Open
                }
            }
        }
    }

    /// What keeps the connection from sending more. The session holds small demands back, a third
    /// of a window at most; so it is not the limit before half of a window is unused.
    fn limit(&self, now: Instant) -> Limit {
        let in_flight = self.flight.in_flight_bytes();
        let reading = self.reading_bytes();
        if reading > 0 && reading >= in_flight {
            return Limit::Disk;
        }
        let is_any_lost = self.flight.lost_bytes() > 0;
        if !is_any_lost && self.send.unclaimed_bytes() == 0 {
            return Limit::NothingToSend;
        }
        if self.pacing_waits_until(now).is_some() {
            return Limit::Pacing;
        }
        let outstanding = in_flight + reading;
        let congestion_window = self.congestion_window();
        let window = congestion_window.min(self.send.window());
        let admitted = self.send.admitted();
        if 2 * outstanding < window {
            let is_cut = !is_any_lost && admitted.end < self.send.end;
            return if is_cut && self.is_silly_window(admitted.bytes()) {
                Limit::PeerWindow
            } else {
                Limit::Application
            };
        }
        let room = congestion_window.saturating_sub(outstanding);
        // Lost bytes are within the window that the peer offered once.
        if is_any_lost || admitted.bytes() >= room {
            Limit::CongestionWindow
        } else if admitted.end < self.send.end {
            Limit::PeerWindow
        } else {
            Limit::Application
        }
    }
}
