//! What is told of clients while they are served: counters, warnings, the access log and the trace.
//!
//! It refuses nothing and decides nothing: a client is served alike whoever listens. Bounds: a warning of
//! each kind, and what a client's [`LoggedReplies`](crate::request_log::LoggedReplies) keep.

use core::net::IpAddr;

use clock::Instant;
use http::{HeadText, Parsed};
use sites::Sites;
use tcp::{CloseReason, FourTuple, SegmentDrop, StreamRange};
use wire::TcpRepr;

use super::Conductor;
use super::replies::ReplyDraft;
use crate::client::{Client, Exchange};
use crate::connection_trace::{ConnectionTrace, TraceEnd, TraceEvent};
use crate::counters::Counters;
use crate::request_log::UnsentBytes;
use crate::warning::PendingWarnings;
use crate::{LoggedRequest, RequestLog, STATUS_CLIENT_LEFT, Warning};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Telemetry {
    pub(super) counters: Counters,
    /// Events that harmed clients since the last poll.
    warnings: PendingWarnings,
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
}

impl Telemetry {
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

    /// `reply` is about to be queued. `asked`: who asks, and how many bytes of the input its request is; `None`: the
    /// peer, and all of it.
    pub(super) fn log_request(
        &mut self,
        client: &mut Client,
        asked: Option<(IpAddr, usize)>,
        status: u16,
        reply: &ReplyDraft,
    ) {
        let Some(log) = self.request_log.as_deref_mut() else {
            return;
        };
        let request = client.logged_request(asked, status);
        let name = log.begin(&request);
        client.logged.push(name, &reply.text, &reply.parts);
    }

    /// The reply that was queued last was taken back: its request is logged when it is answered again.
    pub(super) fn forget_last_request(&mut self, client: &mut Client) {
        if let Some(log) = self.request_log.as_deref_mut() {
            client.logged.forget_last(log);
        }
    }

    /// The client has acknowledged all of some replies: logs their end.
    pub(super) fn log_acknowledged(&mut self, client: &mut Client) {
        if let Some(log) = self.request_log.as_deref_mut() {
            client.logged.end_first(client.stream.replies(), log);
        }
    }

    /// Whether requests are logged.
    pub(super) const fn logs_requests(&self) -> bool {
        self.request_log.is_some()
    }

    /// The end of the client's stream was cut off, with what it had of objects: logs the end of the replies
    /// that were in it.
    pub(super) fn log_cut(&mut self, client: &mut Client, unsent: &UnsentBytes) {
        if let Some(log) = self.request_log.as_deref_mut() {
            client.logged.cut(unsent);
            client.logged.end_last(client.stream.replies(), log);
        }
    }

    /// The client leaves: logs the end of its replies.
    pub(super) fn log_departure(&mut self, client: &mut Client, sites: &Sites) {
        let Some(log) = self.request_log.as_deref_mut() else {
            return;
        };
        let unsent = client.stream.content_behind(client.tcp.sent());
        client.logged.cut(&unsent);
        client.logged.end_first(0, log);
        if let Exchange::LookUp(held) | Exchange::Changed(_, held) = client.exchange {
            let peer = client.source();
            let source = match http::parse_request(client.input.as_slice()) {
                Parsed::Complete { request, .. } => sites.source(&request, peer),
                _ => peer,
            };
            let asked = (source, usize::from(held.head_bytes));
            let request = client.logged_request(Some(asked), STATUS_CLIENT_LEFT);
            if let Some(name) = log.begin(&request) {
                log.end(name, 0);
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
        }
    }
}
