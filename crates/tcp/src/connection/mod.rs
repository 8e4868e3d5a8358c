//! One synchronised connection, from ESTABLISHED to its end.
//!
//! The methods, in the order a caller uses them after each batch of input:
//!
//! 1. [`Connection::handle_segment`], [`Connection::handle_timeout`]: input.
//! 2. [`Connection::append`], [`Connection::finish`]: the session sets the length of its stream.
//! 3. [`Connection::permission`]: whether bytes may be sent, and from when. [`Connection::credit`] also
//!    says which; that costs more. [`Connection::claim`] turns a
//!    demand into a [`Claim`], the session fetches its bytes, and [`Connection::admit`] returns the part
//!    that must still be sent.
//! 4. [`Connection::framing`] says how a frame is cut, [`Connection::segment`] returns the header;
//!    [`Connection::on_transmitted`] is called once the segment was sent. Timers and RTT samples start
//!    here and not at the claim.
//! 5. [`Connection::control`]: segments without data (ACK, FIN, probe), also in two steps.
//! 6. [`Connection::poll_timeout`]: when to call [`Connection::handle_timeout`].
//! 7. [`Connection::count_limit`]: for [`Connection::info`], which may be asked at any time.
//!
//! `now` never decreases between calls. If the link is full, step 4 comes later.

mod closing;
mod credit;
mod ecn;
mod info;
mod input;
mod output;
mod path;
mod probing;
mod sack;
mod sampling;
mod spurious;
mod timers;
mod undo;
mod window_use;

use core::mem::offset_of;
use std::sync::Arc;

use clock::{Duration, Instant};
use wire::{SeqNumber, TcpOptions};

use crate::canary::Canary;
use crate::congestion::{Congestion, CongestionControl, Controller as _, Start};
use crate::delivery_rate::DeliveryRate;
use crate::flight::Flight;
use crate::half_open::HalfOpen;
use crate::pacing::Pacer;
use crate::receive::ReceiveState;
use crate::recovery::{Rack, RecoveryState};
use crate::rtt::RttEstimator;
use crate::send::{Fin, SendState};
use crate::stream::StreamOffset;
use crate::table::FourTuple;

pub use closing::State;
pub use credit::{Credit, Demand, Permission};
use ecn::EcnState;
use info::{Account, Totals};
pub use info::{CongestionState, ConnectionInfo, Limit};
pub use output::{Admitted, Claim, Control, Framing};
pub use path::{PATH_REPORT_INTERVAL, PathEvents};
use path::{PathState, SegmentSizes};
pub use probing::{
    BASE_PACKET_BYTES_V4, BASE_PACKET_BYTES_V6, BLACK_HOLE_TIMEOUTS, BLACK_HOLE_TIMEOUTS_UNPROVEN,
};
use sack::SackReports;
use spurious::TimeoutRecord;
use timers::{Acknowledgment, TailProbe, TimerKind};
use undo::LossRecord;
use window_use::WindowUse;

/// Least MSS we send with: the default for IPv4 of RFC 9293 s3.7.1. A smaller one, set by a peer or
/// a router, would make us send one packet for every few bytes.
pub const SEGMENT_BYTES_MIN: u16 = 536;

/// How connections behave; the same for all of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Idle time before the first keep-alive probe (RFC 9293 s3.8.4).
    pub keep_alive_idle: Duration,
    /// Time between keep-alive probes.
    pub keep_alive_interval: Duration,
    /// Unanswered keep-alive probes before the connection times out.
    pub probes_max: u32,
    /// Retransmission timeouts in a row, or unanswered zero-window probes, before the connection
    /// times out (RFC 9293 s3.8.3, R2).
    pub timeouts_max: u32,
    /// How long our FIN may stay unacknowledged once all data before it is acknowledged, whatever
    /// the peer answers (RFC 9293 s3.8.3: at least 100 s; Linux's `tcp_orphan_retries` amounts to
    /// the same).
    pub orphan: Duration,
    /// How long FIN-WAIT-2 waits for the peer's FIN (Linux: `tcp_fin_timeout`).
    pub fin_wait_2: Duration,
    /// How long an ACK may be delayed, to be sent with data (RFC 9293 s3.8.6.3: below 0.5 s).
    pub ack_delay: Duration,
    /// Congestion control.
    pub congestion: CongestionControl,
    /// Whether what the congestion window permits is spread over a round trip ([`crate::pacing`]).
    pub is_paced: bool,
    /// Whether the congestion window is reduced when nothing was sent for longer than the retransmission
    /// timeout (RFC 2861; as Linux's `tcp_slow_start_after_idle`). BBR keeps its rate either way.
    pub reduces_idle_window: bool,
    /// Whether ECN is used if the peer asks for it (RFC 3168).
    pub accepts_ecn: bool,
    /// Whether the packet size is reduced in a black hole, and raised again by probes (RFC 4821).
    pub probes_path_mtu: bool,
    /// Most bytes a second; `None`: as congestion control permits.
    pub rate_max: Option<u64>,
    /// A fault that the simulator is to find; none in the product.
    pub canary: Canary,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            keep_alive_idle: Duration::from_secs(60),
            keep_alive_interval: Duration::from_secs(10),
            probes_max: 6,
            timeouts_max: 10,
            orphan: Duration::from_secs(100),
            fin_wait_2: Duration::from_secs(60),
            ack_delay: Duration::from_millis(40),
            congestion: CongestionControl::Cubic,
            is_paced: true,
            reduces_idle_window: true,
            accepts_ecn: true,
            probes_path_mtu: true,
            rate_max: None,
            canary: Canary::NONE,
        }
    }
}

/// A synchronised connection. It knows sequence space only; no byte of payload is in it.
///
/// Thousands of connections are in no cache when their turn comes, so the fields are in the order of how
/// often they are needed, which the compiler would change: first those of every turn, then those of an
/// ACK or a segment, last those of losses, probes and reports.
#[derive(Debug)]
#[repr(C)]
pub struct Connection {
    send: SendState,
    flight: Flight,
    pacer: Pacer,
    /// The one of retransmission timeout, tail loss probe and zero-window probe that is running.
    retransmit: Option<(TimerKind, Instant)>,
    /// RACK's reordering timer.
    reordering: Option<Instant>,
    /// Whether an ACK must be sent.
    acknowledgment: Acknowledgment,
    state: State,
    /// Payload of packets.
    sizes: SegmentSizes,
    /// What is known of the peer's SACK blocks.
    sack: SackReports,
    /// A probe segment must be sent (keep-alive or zero window).
    probe_due: bool,
    /// The override timer of sender SWS avoidance fired: a small segment must be sent
    /// (RFC 9293 s3.8.6.2.1).
    sws_override_due: bool,
    /// A partial ACK has come in this recovery (RFC 6582 s3.2, step 3), without SACK.
    has_partial_ack: bool,
    /// Duplicate ACKs in a row that reported nothing, while no SACK block ever has.
    duplicate_acks: u32,
    /// Timeouts in a row without new data acknowledged.
    timeouts: u32,
    /// Unanswered probes in a row.
    probes: u32,
    /// How often the interval of zero-window probes was doubled (RFC 9293 s3.8.6.1).
    window_probes_backoff: u32,
    /// When SND.UNA last moved, or data was first queued after an idle time.
    progress_at: Instant,
    /// Of all connections. Counted atomically, so that a connection can move to another thread.
    config: Arc<Config>,
    /// Samples of the delivery rate, if the controller needs them.
    delivery_rate: Option<Box<DeliveryRate>>,
    /// What is known of the path's MTU; `None`: peer and link alone limit the size of packets.
    path: Option<Box<PathState>>,
    /// What is kept for [`Connection::info`] alone, and changes often.
    account: Account,
    /// The tail loss probe under way.
    tail_probe: Option<TailProbe>,
    recovery: RecoveryState,
    congestion: Congestion,
    rtt: RttEstimator,
    /// SND.NXT when the last round trip of RTT samples ended.
    rtt_round_end: StreamOffset,
    receive: ReceiveState,
    /// When an acceptable segment last arrived.
    last_received_at: Instant,
    /// When data was last sent.
    sent_at: Instant,
    /// How much of the congestion window was in use.
    window_use: WindowUse,
    rack: Rack,
    /// Marks and their echoes; `None`: the handshake did not agree on ECN.
    ecn: Option<EcnState>,
    /// Reductions for a loss that may turn out to be needless, oldest first.
    loss_records: Vec<LossRecord>,
    tuple: FourTuple,
    /// What is kept for [`Connection::info`] alone, and changes seldom. With it begins what few turns
    /// need.
    totals: Totals,
    /// SND.NXT when a loss was last detected (RFC 6582 s3.2: "recover", plus one); for peers without
    /// SACK.
    recover: Option<StreamOffset>,
    /// The last retransmission timeout, while it may turn out to be spurious.
    timeout_record: Option<TimeoutRecord>,
    /// When the last probe was sent.
    probed_at: Instant,
    /// When our FIN was first sent; not valid before.
    fin_sent_at: Instant,
    /// When the last challenge ACK was sent (RFC 5961 s7).
    challenged_at: Option<Instant>,
}

/// Each connection that may ever be open takes this from start on.
const _: () = assert!(size_of::<Connection>() <= 1152, "18 cache lines");

impl Connection {
    /// Bytes at its beginning that segments, claims and timers need without losses: what is worth to be
    /// asked for before its turn ([`Connection::first_in_flight`]).
    pub const FREQUENT_BYTES: usize = offset_of!(Self, totals);

    /// The handshake is complete: `half_open` was acknowledged by a segment with this raw window.
    #[must_use]
    pub fn new(
        config: impl Into<Arc<Config>>,
        half_open: &HalfOpen,
        now: Instant,
        raw_window: u16,
    ) -> Self {
        let config = config.into();
        let timestamps = half_open.timestamps();
        let window = u64::from(raw_window) << half_open.peer_window_shift();
        let irs_next = half_open.receive_next();
        let mut rtt = if half_open.has_timed_out() {
            RttEstimator::after_lost_syn_ack()
        } else {
            RttEstimator::new()
        };
        if let Some(sample) = half_open.round_trip(now) {
            rtt.on_sample(sample, true);
        }
        rtt.plant(config.canary);
        let start = Start {
            segment_bytes: half_open.segment_bytes(),
            has_sack: half_open.sack_permitted(),
            seed: half_open.iss().0,
        };
        let mut congestion = Congestion::new(config.congestion, start);
        congestion.plant(config.canary);
        if half_open.has_timed_out_again() {
            // One segment and slow start (RFC 5681 s3.1).
            congestion.on_timeout_again();
        }
        Self {
            config,
            tuple: half_open.tuple(),
            state: State::Established,
            send: SendState::new(
                half_open.iss(),
                window,
                half_open.peer_window_shift(),
                irs_next,
            ),
            receive: ReceiveState::new(irs_next, half_open.window(), timestamps),
            flight: Flight::default(),
            rtt,
            delivery_rate: congestion.needs_samples().then(Box::default),
            pacer: Pacer::new().with_measured_rate(congestion.needs_samples()),
            congestion,
            rack: Rack::new(),
            rtt_round_end: StreamOffset::ZERO,
            recovery: RecoveryState::Open,
            sizes: SegmentSizes::new(half_open),
            ecn: half_open.uses_ecn().then(EcnState::default),
            sack: if half_open.sack_permitted() {
                SackReports::Expected
            } else {
                SackReports::NotAgreed
            },
            duplicate_acks: 0,
            recover: None,
            window_use: WindowUse::new(),
            timeout_record: None,
            loss_records: Vec::new(),
            retransmit: None,
            reordering: None,
            acknowledgment: Acknowledgment::None,
            tail_probe: None,
            probe_due: false,
            sws_override_due: false,
            has_partial_ack: false,
            timeouts: 0,
            probes: 0,
            probed_at: now,
            window_probes_backoff: 0,
            last_received_at: now,
            sent_at: now,
            fin_sent_at: now,
            progress_at: now,
            path: None,
            challenged_at: None,
            account: Account::new(now),
            totals: Totals::new(now),
        }
    }

    /// The session has `bytes` more to send. After [`Connection::finish`] they still come before the
    /// FIN.
    ///
    /// # Panics
    /// If the FIN was sent ([`Connection::has_sent_fin`]).
    pub fn append(&mut self, now: Instant, bytes: u64) {
        assert!(!self.has_sent_fin(), "nothing follows a FIN");
        self.check_limited();
        let was_idle = self.flight.is_empty() && self.send.unclaimed_bytes() == 0;
        if was_idle {
            self.update_size_probe(now);
            self.progress_at = now;
            self.congestion.on_application_limited();
            let idle = now.since(self.sent_at).as_nanos();
            // RFC 5681: idle for longer than the timeout, not for exactly as long.
            let timeouts = idle.saturating_sub(1) / self.rtt.timeout().as_nanos().max(1);
            if timeouts > 0 {
                self.forget_losses();
            }
            if self.config.reduces_idle_window {
                let timeouts = u64::try_from(timeouts).unwrap_or(u64::MAX);
                self.congestion.on_idle(timeouts);
            }
        }
        self.send.end += bytes;
        if self.retransmit.is_none() {
            self.restart_retransmit(now);
        }
    }

    /// Withdraws the last `bytes` that were appended: they will not be sent.
    ///
    /// # Panics
    /// If one of them was ever claimed.
    pub fn withdraw(&mut self, bytes: u64) {
        assert!(
            self.send.claimed_once + bytes <= self.send.end,
            "claimed bytes may have been sent"
        );
        self.send.end = self.send.end - bytes;
    }

    /// Withdraws everything that was appended from `from` on, claimed or not: none of it was sent, nor will be.
    /// Other bytes may be appended in its place. The claims that reach beyond `from` were given back before
    /// ([`Connection::return_claim`]).
    ///
    /// # Panics
    /// If one of the bytes was sent, or is not there.
    pub fn withdraw_unsent(&mut self, now: Instant, from: StreamOffset) {
        let SendState { nxt, end, .. } = self.send;
        assert!(nxt <= from && from <= end, "sent bytes stay");
        self.send.claimed = self.send.claimed.min(from);
        self.send.claimed_once = self.send.claimed_once.min(from);
        self.send.end = from;
        self.sws_override_due &= self.send.unclaimed_bytes() > 0;
        if self.flight.is_empty() {
            // Nothing may be left that a probe could ask the window for.
            self.restart_retransmit(now);
        }
    }

    /// Everything before this offset was claimed at least once and must not change any more: after a
    /// timeout bytes are claimed a second time, but the fetch of the first claim may still be under
    /// way, and its bytes may be sent.
    #[must_use]
    pub const fn claimed_once(&self) -> StreamOffset {
        self.send.claimed_once
    }

    /// Whether our FIN was sent, so that nothing more can be appended.
    #[must_use]
    pub fn has_sent_fin(&self) -> bool {
        self.send.fin == Fin::Sent
    }

    /// The stream ends after what was appended; a FIN follows the last byte.
    pub fn finish(&mut self) {
        if self.send.fin == Fin::NotQueued {
            self.send.fin = Fin::Queued;
        }
    }

    /// The session has room for `bytes` of requests.
    pub fn set_receive_window(&mut self, bytes: u16) {
        if self.receive.set_window(bytes) {
            self.acknowledgment = Acknowledgment::Now;
        }
    }

    /// From now on pacing permits bursts of `bytes` at least, because smaller ones would cost the session as much or more
    /// ([`crate::pacing`]). The windows bound them as ever.
    pub const fn set_burst_min(&mut self, bytes: u32) {
        self.pacer.set_burst_min(bytes);
    }

    /// Sends at most this many bytes a second from now on, in place of [`Config::rate_max`]. A connection that is
    /// told another rate than all have gets a configuration of its own.
    pub fn set_rate_max(&mut self, rate_max: Option<u64>) {
        if self.config.rate_max != rate_max {
            Arc::make_mut(&mut self.config).rate_max = rate_max;
        }
    }

    /// Both ends.
    #[must_use]
    pub const fn tuple(&self) -> FourTuple {
        self.tuple
    }

    /// The state of RFC 9293 s3.3.2.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Largest payload of one packet, bytes.
    #[must_use]
    pub const fn segment_bytes(&self) -> u16 {
        self.sizes.current
    }

    /// SND.UNA: everything before it was acknowledged and is never fetched again.
    #[must_use]
    pub fn acknowledged(&self) -> StreamOffset {
        self.send.una.min(self.send.end)
    }

    /// SND.NXT: everything before it was sent at least once.
    #[must_use]
    pub const fn sent(&self) -> StreamOffset {
        self.send.nxt
    }

    /// The end of what was appended.
    #[must_use]
    pub const fn end(&self) -> StreamOffset {
        self.send.end
    }

    /// Whether [`Connection::finish`] was called.
    #[must_use]
    pub fn is_finishing(&self) -> bool {
        self.send.fin != Fin::NotQueued
    }

    /// Whether everything appended was acknowledged.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.send.una >= self.send.end
    }

    /// When SND.UNA last moved, or data was first queued after an idle time.
    #[must_use]
    pub const fn progress_at(&self) -> Instant {
        self.progress_at
    }

    /// Whether `sequence` lies in SND.UNA..SND.NXT. An ICMP error must quote such a sequence number
    /// to be processed (RFC 5927 s4.1).
    #[must_use]
    pub fn is_in_flight(&self, sequence: SeqNumber) -> bool {
        self.send
            .offset_of(sequence)
            .is_some_and(|offset| self.send.una <= offset && offset < self.send.nxt)
    }

    /// Where the log of what is in flight begins: memory to be asked for before an ACK is applied.
    #[must_use]
    pub fn first_in_flight(&self) -> Option<&(impl Sized + use<>)> {
        self.flight.first()
    }

    /// Whether `acknowledgment` is SND.UNA. This holds for a segment that was just accepted, unless
    /// a newer one arrived before it.
    #[must_use]
    pub fn is_acknowledged_to(&self, acknowledgment: SeqNumber) -> bool {
        acknowledgment == self.send.sequence_of(self.send.una)
    }

    /// cwnd, bytes: that of rate reduction during a fast recovery that it governs, else the
    /// controller's.
    #[must_use]
    pub fn congestion_window(&self) -> u64 {
        match &self.recovery {
            RecoveryState::Recovery {
                reduction: Some(reduction),
                ..
            } => reduction.window(),
            _ => self.congestion.window(),
        }
    }

    /// SRTT; `None` before the first sample.
    #[must_use]
    pub const fn smoothed_rtt(&self) -> Option<Duration> {
        self.rtt.smoothed()
    }

    /// Bytes sent or being fetched that are neither known to have arrived nor considered lost.
    fn outstanding_bytes(&self) -> u64 {
        self.flight.in_flight_bytes() + self.flight.claimed_bytes() + self.send.fetching_bytes()
    }

    /// The options of every segment after the handshake (RFC 7323 s3.2).
    fn options(&self, now: Instant) -> TcpOptions {
        TcpOptions {
            timestamps: self.receive.timestamps.map(|state| state.stamp(now)),
            ..TcpOptions::default()
        }
    }
}

#[cfg(test)]
mod tests;
