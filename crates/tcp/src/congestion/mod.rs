//! Congestion control: how many bytes may be in the network (RFC 5681).
//!
//! A [`Controller`] alone owns cwnd and ssthresh. Loss detection tells it what happened: an ACK, the
//! first loss of a round trip, the end of a recovery, a timeout. During a fast recovery the
//! connection sends by rate reduction ([`crate::recovery`]), which aims for the controller's ssthresh
//! and leaves its cwnd alone. Windows are in bytes.

mod cubic;
mod hystart;
mod reno;
mod window;

use clock::{Duration, Instant};

use crate::canary::Canary;
use cubic::Cubic;
use reno::Reno;

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
}

impl CongestionControl {
    /// All there are.
    pub const ALL: [Self; 2] = [Self::Cubic, Self::Reno];

    /// As Linux's `net.ipv4.tcp_congestion_control` spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Reno => "reno",
        }
    }

    /// The algorithm of that [`CongestionControl::name`].
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|each| each.name() == name)
    }
}

/// A cumulative acknowledgment outside a fast recovery. A SACK above a hole is none: it may turn out
/// to mean a loss (RFC 5681 s3.1).
#[derive(Clone, Copy, Debug)]
pub struct AckEvent {
    /// When it arrived.
    pub now: Instant,
    /// Bytes newly known to have arrived.
    pub bytes: u64,
    /// Bytes in the network before it: a window that was not in use must not grow.
    pub outstanding_bytes: u64,
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
    /// cwnd, bytes, outside a fast recovery: one segment to [`WINDOW_BYTES_MAX`].
    fn window(&self) -> u64;

    /// ssthresh, bytes; `u64::MAX` before the first loss. A fast recovery aims for it.
    fn threshold(&self) -> u64;

    /// How fast to send while the round trip takes `rtt`.
    fn pacing_rate(&self, rtt: Duration) -> PacingRate;

    /// Bytes were acknowledged.
    fn on_ack(&mut self, ack: &AckEvent);

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
#[derive(Clone, Copy, Debug)]
pub enum Congestion {
    /// RFC 9438.
    Cubic(Cubic),
    /// RFC 5681.
    Reno(Reno),
}

impl Congestion {
    /// A controller with the initial window of RFC 6928.
    #[must_use]
    pub fn new(algorithm: CongestionControl, segment_bytes: u16) -> Self {
        match algorithm {
            CongestionControl::Cubic => Self::Cubic(Cubic::new(segment_bytes)),
            CongestionControl::Reno => Self::Reno(Reno::new(segment_bytes)),
        }
    }

    /// Sets ssthresh as if a loss had.
    #[cfg(test)]
    pub(crate) fn force_threshold(&mut self, bytes: u64) {
        match self {
            Self::Cubic(cubic) => cubic.force_threshold(bytes),
            Self::Reno(reno) => reno.force_threshold(bytes),
        }
    }

    /// The same with a fault.
    pub(crate) const fn plant(&mut self, canary: Canary) {
        match self {
            Self::Cubic(cubic) => cubic.plant(canary),
            Self::Reno(reno) => reno.plant(canary),
        }
    }

    /// Sets cwnd as if the path had led to it.
    #[cfg(any(test, feature = "canaries"))]
    pub(crate) fn force_window(&mut self, bytes: u64) {
        match self {
            Self::Cubic(cubic) => cubic.force_window(bytes),
            Self::Reno(reno) => reno.force_window(bytes),
        }
    }
}

/// Passes a call on to the algorithm.
macro_rules! of_algorithm {
    ($self:ident, $controller:ident => $call:expr) => {
        match $self {
            Congestion::Cubic($controller) => $call,
            Congestion::Reno($controller) => $call,
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

    fn pacing_rate(&self, rtt: Duration) -> PacingRate {
        of_algorithm!(self, controller => controller.pacing_rate(rtt))
    }

    fn on_ack(&mut self, ack: &AckEvent) {
        of_algorithm!(self, controller => controller.on_ack(ack));
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
