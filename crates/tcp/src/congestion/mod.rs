//! Congestion control: how many bytes may be in the network (RFC 5681).
//!
//! A [`Controller`] alone owns cwnd, ssthresh and the pacing rate. Loss detection tells it what
//! happened: an ACK, the first loss of a round trip, the end of a recovery, a timeout. During a fast
//! recovery the connection sends by rate reduction ([`crate::recovery`]), which aims for the
//! controller's ssthresh and leaves its cwnd alone; not with BBR, whose cwnd holds then, too. Windows
//! are in bytes.
//!
//! CUBIC and Reno learn from ACKs and losses. BBR has a model of the path and learns from samples of
//! the delivery rate ([`crate::delivery_rate`]), which only its connections take.

mod bbr;
mod cubic;
mod hystart;
mod reno;
mod window;

use clock::{Duration, Instant};

use bbr::Bbr;
use cubic::Cubic;
use reno::Reno;
pub(crate) use window::initial_window_bytes;

use crate::canary::Canary;
use crate::delivery_rate::{LostTransmission, RateSample};
use crate::pacing::PacingRate;
use crate::stream::StreamOffset;

/// Initial window in segments, as long as they are no more than [`INITIAL_WINDOW_BYTES`].
pub const INITIAL_WINDOW_SEGMENTS: u64 = 10;
/// Initial window of large segments, bytes, but at least two of them (RFC 6928 s2).
pub const INITIAL_WINDOW_BYTES: u64 = 14_600;
/// Greatest congestion window, bytes. 16 MiB is enough for 10 Gb/s at an RTT of 13 ms. It bounds the
/// flight of one connection, and so the length of its transmission log.
pub const WINDOW_BYTES_MAX: u64 = 16 << 20;
/// Least slow-start threshold, segments (RFC 5681 s3.1 eq. 4).
pub const THRESHOLD_SEGMENTS_MIN: u64 = 2;
/// cwnd in segments when F-RTO's new data has shown that a timeout was genuine (RFC 5682 s2.1, step
/// 3a): the new data, and one retransmission.
const GENUINE_TIMEOUT_SEGMENTS: u64 = 3;

/// How a window grows and how far a loss reduces it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum CongestionControl {
    /// RFC 9438. Linux's default.
    #[default]
    Cubic,
    /// RFC 5681 with RFC 6582: one segment each round trip, half after a loss.
    Reno,
    /// draft-ietf-ccwg-bbr: by a model of the path's rate and RTT.
    Bbr,
}

impl CongestionControl {
    /// All there are.
    pub const ALL: [Self; 3] = [Self::Cubic, Self::Reno, Self::Bbr];

    /// As Linux's `net.ipv4.tcp_congestion_control` spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Reno => "reno",
            Self::Bbr => "bbr",
        }
    }

    /// The algorithm of that [`CongestionControl::name`].
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|each| each.name() == name)
    }

    /// Whether it depends on pacing: its rate is what limits the sender, not its window.
    #[must_use]
    pub const fn needs_pacing(self) -> bool {
        matches!(self, Self::Bbr)
    }

    /// Whether it answers marks of routers as it answers losses, as RFC 3168 s6.1.2 asks of whoever
    /// agrees on ECN. BBR's draft leaves that open.
    #[must_use]
    pub const fn answers_marks(self) -> bool {
        !matches!(self, Self::Bbr)
    }
}

/// What is known of a connection when its controller begins.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// SMSS, bytes.
    pub segment_bytes: u16,
    /// Both sides agreed on SACK.
    pub has_sack: bool,
    /// Differs from connection to connection, for decisions that are to differ.
    pub seed: u32,
}

/// A cumulative acknowledgment outside a fast recovery. A SACK above a hole is none: it may turn out
/// to mean a loss (RFC 5681 s3.1).
#[derive(Clone, Copy, Debug)]
pub struct AckEvent {
    /// When it arrived.
    pub now: Instant,
    /// Bytes newly known to have arrived.
    pub bytes: u64,
    /// Most bytes outstanding at once in the round trip before it: a window that was not in use must not
    /// grow.
    pub outstanding_bytes_max: u64,
    /// SRTT; zero before the first sample.
    pub rtt: Duration,
    /// The RTT sample that it gave, if it gave one.
    pub sample: Option<Duration>,
    /// SND.UNA, after it.
    pub acknowledged: StreamOffset,
    /// SND.NXT.
    pub sent: StreamOffset,
}

/// The state that a reduction of the window changes; see [`Controller::restore`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Snapshot {
    window: u64,
    threshold: u64,
    /// CUBIC's `W_max`; zero elsewhere.
    window_max: u64,
}

/// The owner of one connection's cwnd and ssthresh.
pub trait Controller {
    /// cwnd, bytes: one segment to [`WINDOW_BYTES_MAX`]. With [`Controller::reduces_by_rate`] it holds
    /// outside a fast recovery only.
    fn window(&self) -> u64;

    /// ssthresh, bytes; `u64::MAX` before the first loss. A fast recovery aims for it.
    fn threshold(&self) -> u64;

    /// Whether a fast recovery sends by rate reduction (RFC 9937).
    fn reduces_by_rate(&self) -> bool {
        true
    }

    /// Whether it needs samples of the delivery rate.
    fn needs_samples(&self) -> bool {
        false
    }

    /// Whether it keeps the flight below what the path would carry, so that samples of the delivery
    /// rate are limited.
    fn limits_itself(&self) -> bool {
        false
    }

    /// How fast to send while the round trip takes `rtt`.
    fn pacing_rate(&self, rtt: Duration) -> PacingRate;

    /// Bytes were acknowledged.
    fn on_ack(&mut self, ack: &AckEvent);

    /// An ACK, in any state of a recovery, gave a sample. It comes after what the ACK shows to be
    /// lost.
    fn on_sample(&mut self, _: &RateSample) {}

    /// A transmission is considered lost.
    fn on_lost(&mut self, _: &LostTransmission) {}

    /// The peer agreed on SACK, and its blocks report nothing.
    fn on_sack_useless(&mut self) {}

    /// Something will be sent after an idle time in which there was nothing to send.
    fn on_restart(&mut self, _: Instant) {}

    /// The first loss of a round trip of data was detected: reduces ssthresh (RFC 5681 s3.2).
    fn on_loss(&mut self);

    /// The recovery that [`Controller::on_loss`] began is over: cwnd is ssthresh.
    fn on_recovered(&mut self);

    /// The retransmission timer fired: ssthresh as after a loss, one segment, slow start (RFC 5681
    /// s3.1).
    fn on_timeout(&mut self);

    /// The timer fired again, or during a recovery: one segment and slow start, but ssthresh stays as
    /// it was set at the start of this loss event (RFC 5681 s3.1; Linux). The current window is no
    /// measure of the path, because rate reduction or the first timeout set it.
    fn on_timeout_again(&mut self);

    /// F-RTO's new data has shown that the timeout was genuine (RFC 5682 s2.1, step 3a).
    fn on_timeout_genuine(&mut self);

    /// Everything that was in flight when the timer fired is acknowledged.
    fn on_timeout_repaired(&mut self) {}

    /// What the next reduction will change.
    fn snapshot(&self) -> Snapshot;

    /// Undoes the reduction since `before`, because there was no loss (RFC 4015 s3.2): cwnd is the
    /// one before, or the current one if that is larger.
    fn restore(&mut self, before: Snapshot);

    /// The sender is application-limited until the next ACK that is not.
    fn on_application_limited(&mut self);

    /// Nothing was sent for `timeouts` RTOs.
    fn on_idle(&mut self, timeouts: u64);

    /// Segments have this size from now on.
    fn on_segment_bytes(&mut self, segment_bytes: u16);
}

/// The controller of a connection: of the algorithm that its configuration names.
///
/// Its discriminant is beside the windows, which most turns need with it: the compiler would put it into
/// a field that few do.
#[derive(Clone, Debug)]
#[repr(u8)]
pub enum Congestion {
    /// RFC 9438.
    Cubic(Cubic),
    /// RFC 5681.
    Reno(Reno),
    /// draft-ietf-ccwg-bbr. Its model is larger than what the others need, who do not pay for it.
    Bbr(Box<Bbr>),
}

impl Congestion {
    /// A controller with the initial window of RFC 6928.
    #[must_use]
    pub fn new(algorithm: CongestionControl, start: Start) -> Self {
        match algorithm {
            CongestionControl::Cubic => Self::Cubic(Cubic::new(start.segment_bytes)),
            CongestionControl::Reno => Self::Reno(Reno::new(start.segment_bytes)),
            CongestionControl::Bbr => Self::Bbr(Box::new(Bbr::new(start))),
        }
    }

    /// Sets ssthresh as if a loss had.
    #[cfg(test)]
    pub(crate) fn force_threshold(&mut self, bytes: u64) {
        match self {
            Self::Cubic(cubic) => cubic.force_threshold(bytes),
            Self::Reno(reno) => reno.force_threshold(bytes),
            Self::Bbr(_) => unreachable!("BBR has no ssthresh"),
        }
    }

    /// The same with a fault. None was ever BBR's.
    pub(crate) const fn plant(&mut self, canary: Canary) {
        match self {
            Self::Cubic(cubic) => cubic.plant(canary),
            Self::Reno(reno) => reno.plant(canary),
            Self::Bbr(_) => {}
        }
    }

    /// BBR's state, and its bandwidth in bytes a second.
    #[cfg(test)]
    pub(crate) fn bbr(&self) -> (String, u64) {
        match self {
            Self::Bbr(bbr) => bbr.state_and_bandwidth(),
            Self::Cubic(_) | Self::Reno(_) => unreachable!("not BBR"),
        }
    }

    /// Sets cwnd as if the path had led to it.
    #[cfg(any(test, feature = "canaries"))]
    pub(crate) fn force_window(&mut self, bytes: u64) {
        match self {
            Self::Cubic(cubic) => cubic.force_window(bytes),
            Self::Reno(reno) => reno.force_window(bytes),
            Self::Bbr(bbr) => bbr.force_window(bytes),
        }
    }
}

/// Passes a call on to the algorithm.
macro_rules! of_algorithm {
    ($self:ident, $controller:ident => $call:expr) => {
        match $self {
            Congestion::Cubic($controller) => $call,
            Congestion::Reno($controller) => $call,
            Congestion::Bbr($controller) => $call,
        }
    };
}

impl Controller for Congestion {
    fn window(&self) -> u64 {
        of_algorithm!(self, controller => controller.window())
    }

    fn threshold(&self) -> u64 {
        of_algorithm!(self, controller => controller.threshold())
    }

    fn reduces_by_rate(&self) -> bool {
        of_algorithm!(self, controller => controller.reduces_by_rate())
    }

    fn needs_samples(&self) -> bool {
        of_algorithm!(self, controller => controller.needs_samples())
    }

    fn limits_itself(&self) -> bool {
        of_algorithm!(self, controller => controller.limits_itself())
    }

    fn pacing_rate(&self, rtt: Duration) -> PacingRate {
        of_algorithm!(self, controller => controller.pacing_rate(rtt))
    }

    fn on_ack(&mut self, ack: &AckEvent) {
        of_algorithm!(self, controller => controller.on_ack(ack));
    }

    fn on_sample(&mut self, sample: &RateSample) {
        of_algorithm!(self, controller => controller.on_sample(sample));
    }

    fn on_lost(&mut self, lost: &LostTransmission) {
        of_algorithm!(self, controller => controller.on_lost(lost));
    }

    fn on_sack_useless(&mut self) {
        of_algorithm!(self, controller => controller.on_sack_useless());
    }

    fn on_restart(&mut self, now: Instant) {
        of_algorithm!(self, controller => controller.on_restart(now));
    }

    fn on_loss(&mut self) {
        of_algorithm!(self, controller => controller.on_loss());
    }

    fn on_recovered(&mut self) {
        of_algorithm!(self, controller => controller.on_recovered());
    }

    fn on_timeout(&mut self) {
        of_algorithm!(self, controller => controller.on_timeout());
    }

    fn on_timeout_again(&mut self) {
        of_algorithm!(self, controller => controller.on_timeout_again());
    }

    fn on_timeout_genuine(&mut self) {
        of_algorithm!(self, controller => controller.on_timeout_genuine());
    }

    fn on_timeout_repaired(&mut self) {
        of_algorithm!(self, controller => controller.on_timeout_repaired());
    }

    fn snapshot(&self) -> Snapshot {
        of_algorithm!(self, controller => controller.snapshot())
    }

    fn restore(&mut self, before: Snapshot) {
        of_algorithm!(self, controller => controller.restore(before));
    }

    fn on_application_limited(&mut self) {
        of_algorithm!(self, controller => controller.on_application_limited());
    }

    fn on_idle(&mut self, timeouts: u64) {
        of_algorithm!(self, controller => controller.on_idle(timeouts));
    }

    fn on_segment_bytes(&mut self, segment_bytes: u16) {
        of_algorithm!(self, controller => controller.on_segment_bytes(segment_bytes));
    }
}

#[cfg(test)]
mod tests;
