//! Which SYNs are accepted, what they are offered, and which ACKs complete a SYN cookie.
//!
//! Refused: SYNs to other ports than ours, all of them once the server shuts down, and more than
//! [`COOKIES_PER_BATCH_MAX`] SYN cookies for a batch of frames. It keeps nothing of a SYN; half-open
//! connections are in [`Connections`](super::connections::Connections).

use std::sync::Arc;

use clock::Instant;
use tcp::{Connection, FourTuple, HalfOpen, Listener, Offer, SynCookies};
use wire::{Ecn, TcpRepr};

use super::Received;
use super::connections::HalfOpenEntry;
use super::frames::mss_of_link;
use crate::client::INPUT_BYTES_MAX;
use crate::counters::Counters;
use crate::{Config, TcpConfig};

/// Most SYN cookies sent for one batch of frames; further SYNs of the batch are dropped, and a client
/// repeats its SYN after a second. A cookie costs a frame, some microseconds of the kernel's; reading
/// a SYN costs a tenth of that. So a flood takes a bounded part of each round, and connections that are
/// established keep theirs (decision 17 has the measurement).
pub(super) const COOKIES_PER_BATCH_MAX: u32 = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct Listening {
    listener: Listener,
    /// Answers SYNs while the half-open table is full.
    cookies: SynCookies,
    /// Sent for this batch of frames.
    cookies_in_batch: u32,
    /// New connections are accepted.
    pub(super) is_open: bool,
    /// What every connection is like, shared by all.
    tcp: Arc<TcpConfig>,
}

impl Listening {
    pub(super) fn new(config: &Config, key: [u8; 16]) -> Self {
        Self {
            listener: Listener::new(key),
            cookies: SynCookies::new(key),
            cookies_in_batch: 0,
            is_open: true,
            tcp: Arc::new(config.tcp),
        }
    }

    /// Whether new connections to a port are accepted.
    pub(super) fn accepts(&self, config: &Config, port: u16) -> bool {
        let port = Some(port);
        self.is_open && (port == config.http_port || port == config.https_port)
    }

    /// A batch of frames begins.
    pub(super) const fn begin_batch(&mut self) {
        self.cookies_in_batch = 0;
    }

    /// Whether no further SYN of this batch is answered by a cookie.
    pub(super) const fn is_out_of_cookies(&self) -> bool {
        self.cookies_in_batch == COOKIES_PER_BATCH_MAX
    }

    /// What we offer to the sender of a SYN.
    pub(super) fn offer(
        &self,
        now: Instant,
        config: &Config,
        tuple: &FourTuple,
        received: &Received<'_>,
    ) -> Offer {
        let segment_bytes = mss_of_link(received.path.source, config.mtu_bytes);
        Offer {
            accepts_ecn: self.tcp.accepts_ecn
                && self.tcp.congestion.answers_marks()
                && received.ecn == Ecn::NotEct,
            ..self
                .listener
                .offer(now, tuple, segment_bytes, INPUT_BYTES_MAX)
        }
    }

    /// The SYN-ACK that is a cookie.
    pub(super) fn answer_by_cookie(
        &mut self,
        now: Instant,
        tuple: &FourTuple,
        syn: &TcpRepr,
        offer: Offer,
    ) -> TcpRepr {
        self.cookies_in_batch += 1;
        self.cookies.answer(now, tuple, syn, offer)
    }

    /// The connection that a segment completes, if the segment acknowledges a SYN cookie. It is
    /// answered to the MAC address it came from.
    pub(super) fn accept_cookie(
        &mut self,
        now: Instant,
        config: &Config,
        tuple: &FourTuple,
        received: &Received<'_>,
        counters: &mut Counters,
    ) -> Option<HalfOpenEntry> {
        let Received { path, segment, .. } = received;
        if !self.accepts(config, segment.destination_port) || !self.cookies.is_expecting(now) {
            return None;
        }
        let offer = self.offer(now, config, tuple, received);
        let Some(half_open) = self.cookies.accept(now, tuple, segment, offer) else {
            counters.tcp_cookie_refused_count += 1;
            return None;
        };
        counters.tcp_cookie_accepted_count += 1;
        let route = path.reply_route();
        Some(HalfOpenEntry { half_open, route })
    }

    /// The three-way handshake is complete, with this window of the client's.
    pub(super) fn connect(&self, now: Instant, half_open: &HalfOpen, window: u16) -> Connection {
        Connection::new(Arc::clone(&self.tcp), half_open, now, window)
    }
}
