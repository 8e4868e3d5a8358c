//! What is told of clients while they are served: counters, warnings, the access log and the trace.
//!
//! It refuses nothing and decides nothing: a client is served alike whoever listens. Bounds: a warning of
//! each kind, and what a client's [`Replies`](crate::request_log::Replies) keep.

use core::net::IpAddr;

use clock::{Duration, Instant};
use http::{Cmcd, HeadText, Parsed};
use sites::{SITES_COUNTED_MAX, Sites};
use tcp::{CloseReason, FourTuple, SegmentDrop, StreamRange};
use wire::TcpRepr;

use super::Conductor;
use super::replies::ReplyDraft;
use crate::client::{Client, Exchange};
use crate::connection_trace::{ConnectionTrace, TraceEnd, TraceEvent};
use crate::counters::{Counters, Histograms, SiteCounters};
use crate::request_log::{Reply, UnsentBytes};
use crate::warning::PendingWarnings;
use crate::{Config, LoggedRequest, ReplyEnd, RequestLog, STATUS_CLIENT_LEFT, Warning};

/// A request that is answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    /// Who asks, and how many bytes of the input its request is; `None`: the peer, and all of it.
    pub(super) asked: Option<(IpAddr, usize)>,
    /// Its site's number ([`sites::Found::number`]).
    pub(super) site: u16,
    /// The reply's.
    pub(super) status: u16,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Telemetry {
    pub(super) counters: Counters,
    pub(super) histograms: Histograms,
    /// By [`sites::Found::number`]; empty: requests are not counted by site.
    by_site: Box<[SiteCounters]>,
    /// Events that harmed clients since the last poll.
    warnings: PendingWarnings,
    /// What players say of their playback is read.
    reads_cmcd: bool,
    /// Receives every request; `None`: requests are not logged.
    request_log: Option<Box<dyn RequestLog>>,
    /// Receives what happens to the connections that it wants; `None`: none is traced.
    trace: Option<Box<dyn ConnectionTrace>>,
}

impl Conductor {
    /// Counters so far.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.telemetry.counters
    }

    /// How long things took so far.
    #[must_use]
    pub const fn histograms(&self) -> &Histograms {
        &self.telemetry.histograms
    }

    /// What became of the requests of each site so far, by [`sites::Found::number`]; empty: they are not counted by
    /// site.
    #[must_use]
    pub const fn site_counters(&self) -> &[SiteCounters] {
        &self.telemetry.by_site
    }

    /// An event that harmed a client: the last one of its kind, and how many of that kind there were
    /// since the last poll.
    pub fn poll_warning(&mut self) -> Option<(Warning, u64)> {
        self.telemetry.warnings.poll()
    }

    /// Reports every request to `log` from now on.
    pub fn set_request_log(&mut self, log: Box<dyn RequestLog>) {
        self.telemetry.request_log = Some(log);
    }

    /// Asks `trace` about every connection that is established from now on.
    pub fn set_connection_trace(&mut self, trace: Box<dyn ConnectionTrace>) {
        self.telemetry.trace = Some(trace);
    }

    /// Asks `trace` about every connection there is, and about those that are established from now on; `None`: none
    /// is traced any more. Looks at the whole table once.
    pub fn trace_from_now(&mut self, now: Instant, trace: Option<Box<dyn ConnectionTrace>>) {
        self.telemetry.trace = trace;
        for index in 0..self.connections.places() {
            if let Some(client) = self.connections.clients.entry_mut(index) {
                client.is_traced = false;
                self.telemetry.begin_trace(now, client);
            }
        }
    }
}

impl Telemetry {
    pub(super) fn new(config: &Config) -> Self {
        let sites = if config.counts_by_site {
            usize::from(SITES_COUNTED_MAX) + 1
        } else {
            0
        };
        Self {
            reads_cmcd: config.reads_cmcd,
            by_site: vec![SiteCounters::default(); sites].into(),
            ..Self::default()
        }
    }

    /// Something harmed a client.
    pub(super) fn warn(&mut self, warning: Warning) {
        self.warnings.note(warning);
    }

    /// A connection was established: asks whether it is to be traced.
    pub(super) fn begin_trace(&mut self, now: Instant, client: &mut Client) {
        let Some(trace) = &mut self.trace else { return };
        let tuple = client.tcp.tuple();
        client.is_traced = trace.wants(&tuple);
        if client.is_traced {
            let info = client.tcp.info(now);
            trace.record(now, &tuple, &TraceEvent::Established(&info));
        }
    }

    /// Reports an event of a client that is traced.
    pub(super) fn record_of(&mut self, now: Instant, tuple: &FourTuple, event: &TraceEvent<'_>) {
        if let Some(trace) = &mut self.trace {
            trace.record(now, tuple, event);
        }
    }

    /// Reports an event of a client, if the client is traced.
    pub(super) fn record<'a>(
        &mut self,
        now: Instant,
        client: &Client,
        event: impl FnOnce() -> TraceEvent<'a>,
    ) {
        if client.is_traced
            && let Some(trace) = &mut self.trace
        {
            trace.record(now, &client.tcp.tuple(), &event());
        }
    }

    /// The client's TCP has processed a segment.
    pub(super) fn record_arrival(
        &mut self,
        now: Instant,
        client: &Client,
        segment: &TcpRepr,
        payload_bytes: usize,
        drop: Option<SegmentDrop>,
    ) {
        self.record(now, client, || TraceEvent::Received {
            segment,
            payload_bytes,
            acknowledgment: client.tcp.offset_of(segment.acknowledgment),
            drop,
        });
    }

    /// The link took a segment of the client.
    pub(super) fn record_sent(
        &mut self,
        now: Instant,
        client: &Client,
        segment: &TcpRepr,
        range: StreamRange,
        is_retransmission: bool,
    ) {
        self.record(now, client, || TraceEvent::Sent {
            segment,
            range,
            is_retransmission,
        });
    }

    /// The client's state has changed: what is lost, and all that TCP says.
    #[inline]
    pub(super) fn record_state(&mut self, now: Instant, client: &Client) {
        if !client.is_traced {
            return;
        }
        let Some(trace) = &mut self.trace else { return };
        let tuple: FourTuple = client.tcp.tuple();
        for range in client.tcp.lost_ranges() {
            trace.record(now, &tuple, &TraceEvent::Lost(range));
        }
        let info = client.tcp.info(now);
        trace.record(now, &tuple, &TraceEvent::Evaluated(&info));
    }

    /// The reply in `draft` was queued in `range` of the stream.
    pub(super) fn log_request(
        &mut self,
        now: Instant,
        client: &mut Client,
        answered: Answered,
        draft: &ReplyDraft,
        range: StreamRange,
    ) {
        let Answered {
            asked,
            site,
            status,
        } = answered;
        let mut name = None;
        if self.reads_cmcd || self.request_log.is_some() {
            let request = client.logged_request(asked, status);
            let cmcd = self.reads_cmcd.then(|| Cmcd::find(&request.text)).flatten();
            if let Some(cmcd) = &cmcd {
                self.note_cmcd(cmcd);
            }
            let log = self.request_log.as_deref_mut();
            name = log.and_then(|log| {
                log.begin(&LoggedRequest {
                    cmcd: cmcd.as_ref(),
                    ..request
                })
            });
        }
        let retransmitted = client.tcp.retransmitted_bytes();
        let parts = (draft.text.as_slice(), draft.parts.as_slice());
        let asked_at = now - client.asked_for(now);
        let reply = Reply::new(name, (site, status), asked_at, range, retransmitted, parts);
        client.replies.push(reply);
        client.has_unbegun_reply = true;
    }

    /// A player told of its playback.
    fn note_cmcd(&mut self, cmcd: &Cmcd) {
        self.counters.http_cmcd_count += 1;
        self.counters.http_cmcd_starvation_count += u64::from(cmcd.is_starved);
        if let Some(kilobits) = cmcd.throughput_kbps {
            self.counters.http_cmcd_throughput_count += 1;
            self.counters.http_cmcd_throughput_bytes += u64::from(kilobits) * 125;
        }
        if let Some(millis) = cmcd.buffer_ms {
            let buffer = Duration::from_millis(millis.into());
            self.histograms.http_cmcd_buffer_seconds.record(buffer);
        }
    }

    /// The reply that was queued last was taken back: its request is logged when it is answered again.
    pub(super) fn forget_last_request(&mut self, client: &mut Client) {
        let name = client.replies.forget_last();
        if let (Some(log), Some(name)) = (&mut self.request_log, name) {
            log.forget(name);
        }
    }

    /// The client was sent something, and a reply had not begun before.
    pub(super) fn note_begun(&mut self, now: Instant, client: &mut Client) {
        let times = &mut self.histograms.http_first_byte_seconds;
        let sent = client.tcp.sent();
        client.has_unbegun_reply = client.replies.begin(now, sent, |time| times.record(time));
    }

    /// The client has acknowledged all of some replies: they are over.
    pub(super) fn log_acknowledged(&mut self, now: Instant, client: &mut Client) {
        while let Some(reply) = client.replies.pop_first(client.stream.replies()) {
            let end = self.log_end(now, client, &reply);
            self.histograms.http_last_byte_seconds.record(end.last_byte);
        }
    }

    /// A reply is over.
    fn log_end(&mut self, now: Instant, client: &Client, reply: &Reply) -> ReplyEnd {
        let rtt = client.tcp.smoothed_rtt();
        let end = reply.end(
            now,
            client.tcp.sent(),
            client.tcp.retransmitted_bytes(),
            rtt,
        );
        if let Some(rtt) = rtt {
            self.histograms.tcp_rtt_seconds.record(rtt);
        }
        if let (Some(log), Some(name)) = (&mut self.request_log, reply.name) {
            log.end(name, &end);
        }
        self.count_by_site(reply.site, reply.status, &end);
        end
    }

    /// A request of the site with this number is over.
    fn count_by_site(&mut self, site: u16, status: u16, end: &ReplyEnd) {
        if let Some(counters) = self.by_site.get_mut(usize::from(site)) {
            counters.note(status, end);
        }
    }

    /// The end of the client's stream was cut off, with what it had of objects: the replies that were in it
    /// are over.
    pub(super) fn log_cut(&mut self, now: Instant, client: &mut Client, unsent: &UnsentBytes) {
        client.replies.cut(unsent);
        while let Some(reply) = client.replies.pop_last(client.stream.replies()) {
            self.log_end(now, client, &reply);
        }
    }

    /// The client leaves: its replies are over.
    pub(super) fn log_departure(&mut self, now: Instant, client: &mut Client, sites: &Sites) {
        if !client.replies.is_empty() {
            let unsent = client.stream.content_behind(client.tcp.sent());
            client.replies.cut(&unsent);
        }
        while let Some(reply) = client.replies.pop_first(0) {
            self.log_end(now, client, &reply);
        }
        if self.request_log.is_none() && self.by_site.is_empty() {
            return;
        }
        if let Exchange::LookUp(held) | Exchange::Changed(_, held) = client.exchange {
            let peer = client.source();
            let (source, site) = match http::parse_request(client.input.as_slice()) {
                Parsed::Complete { request, .. } => {
                    (sites.source(&request, peer), sites.number(&request))
                }
                _ => (peer, 0),
            };
            let end = ReplyEnd {
                last_byte: client.asked_for(now),
                smoothed_rtt: client.tcp.smoothed_rtt(),
                ..ReplyEnd::default()
            };
            self.count_by_site(site, STATUS_CLIENT_LEFT, &end);
            let asked = (source, usize::from(held.head_bytes));
            let request = client.logged_request(Some(asked), STATUS_CLIENT_LEFT);
            if let Some(log) = &mut self.request_log
                && let Some(name) = log.begin(&request)
            {
                log.end(name, &end);
            }
        }
    }
}

impl From<CloseReason> for TraceEnd {
    fn from(reason: CloseReason) -> Self {
        match reason {
            CloseReason::Finished => Self::Finished,
            CloseReason::Reset => Self::Reset,
            CloseReason::TimedOut => Self::TimedOut,
        }
    }
}

impl Client {
    fn logged_request(&self, asked: Option<(IpAddr, usize)>, status: u16) -> LoggedRequest<'_> {
        let input = self.input.as_slice();
        let peer = self.source();
        let (peer, head_bytes) = asked.unwrap_or((peer, input.len()));
        LoggedRequest {
            peer,
            status,
            text: HeadText::find(input.get(..head_bytes).unwrap_or_default()),
            tls: self.tls.as_ref().and_then(|tls| tls.session),
            cmcd: None,
        }
    }
}
