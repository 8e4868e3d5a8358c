//! Connections shown to people: listed on request, and traced while they run.

use core::net::SocketAddr;

use clock::Instant;
use tcp::{CloseReason, FourTuple, StreamRange};
use wire::TcpRepr;

use super::Conductor;
use crate::client::{Client, Exchange};
use crate::connection_trace::{ConnectionTrace, TraceEnd, TraceEvent};
use crate::fetch::FetchState;
use crate::listing::{Activity, ListedConnection, PageLimits};

/// The trace, if there is one.
pub(super) type Trace = Option<Box<dyn ConnectionTrace>>;

impl Conductor {
    /// Asks `trace` about every connection that is established from now on.
    pub fn set_connection_trace(&mut self, trace: Box<dyn ConnectionTrace>) {
        self.trace = Some(trace);
    }

    /// Passes connections whose peers `is_wanted` to `sink`, from place `from` of the table on.
    /// Returns the place at which to go on; `None`: that was the last page.
    pub fn list_connections(
        &self,
        now: Instant,
        from: u32,
        limits: PageLimits,
        is_wanted: &dyn Fn(&SocketAddr) -> bool,
        sink: &mut dyn FnMut(ListedConnection),
    ) -> Option<u32> {
        let places = u32::try_from(self.config.connections_max).unwrap_or(u32::MAX);
        let end = from.saturating_add(limits.places_max).min(places);
        let mut rows = 0;
        for index in from..end {
            if rows == limits.rows_max {
                return Some(index);
            }
            let client = self.clients.entry(index);
            if let Some(client) = client.filter(|client| is_wanted(&client.tcp.tuple().peer)) {
                sink(client.listed(now));
                rows += 1;
            }
        }
        (end < places).then_some(end)
    }

    /// A connection was established: asks whether it is to be traced.
    pub(super) fn begin_trace(&mut self, now: Instant, index: u32) {
        let Some(trace) = &mut self.trace else { return };
        let Some(client) = self.clients.entry_mut(index) else {
            return;
        };
        let tuple = client.tcp.tuple();
        client.is_traced = trace.wants(&tuple);
        if client.is_traced {
            let info = client.tcp.info(now);
            trace.record(now, &tuple, &TraceEvent::Established(&info));
        }
    }

    /// A client leaves. Called before it is removed.
    pub(super) fn end_trace(&mut self, now: Instant, index: u32, end: TraceEnd) {
        if let Some(client) = self.clients.entry(index) {
            record(&mut self.trace, now, client, || TraceEvent::Ended(end));
        }
    }
}

/// Reports an event of a client, if the client is traced.
pub(super) fn record<'a>(
    trace: &mut Trace,
    now: Instant,
    client: &Client,
    event: impl FnOnce() -> TraceEvent<'a>,
) {
    if client.is_traced
        && let Some(trace) = trace
    {
        trace.record(now, &client.tcp.tuple(), &event());
    }
}

/// The client's TCP has processed a segment.
pub(super) fn record_arrival(
    trace: &mut Trace,
    now: Instant,
    client: &Client,
    segment: &TcpRepr,
    payload_bytes: usize,
    drop: Option<tcp::SegmentDrop>,
) {
    record(trace, now, client, || TraceEvent::Received {
        segment,
        payload_bytes,
        acknowledgment: client.tcp.offset_of(segment.acknowledgment),
        drop,
    });
}

/// The link took a segment of the client.
pub(super) fn record_sent(
    trace: &mut Trace,
    now: Instant,
    client: &Client,
    segment: &TcpRepr,
    range: StreamRange,
    is_retransmission: bool,
) {
    record(trace, now, client, || TraceEvent::Sent {
        segment,
        range,
        is_retransmission,
    });
}

/// The client's state has changed: what is lost, and all that TCP says.
pub(super) fn record_state(trace: &mut Trace, now: Instant, client: &Client) {
    if !client.is_traced {
        return;
    }
    let Some(trace) = trace else { return };
    let tuple: FourTuple = client.tcp.tuple();
    for range in client.tcp.lost_ranges() {
        trace.record(now, &tuple, &TraceEvent::Lost(range));
    }
    let info = client.tcp.info(now);
    trace.record(now, &tuple, &TraceEvent::Evaluated(&info));
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
    fn listed(&self, now: Instant) -> ListedConnection {
        let is_reading = |fetch: &&crate::fetch::Fetch| matches!(fetch.state, FetchState::Reading);
        ListedConnection {
            tuple: self.tcp.tuple(),
            is_tls: self.tls.is_some(),
            activity: self.activity(),
            object: self.stream.first_object(self.tcp.acknowledged()),
            replies: self.stream.replies(),
            reads: self.fetches.iter().filter(is_reading).count(),
            is_over_budget: self.read_waits.is_some_and(|until| until > now),
            info: self.tcp.info(now),
        }
    }

    fn activity(&self) -> Activity {
        if self.tls.as_ref().is_some_and(|tls| tls.is_handshaking()) {
            return Activity::Handshake;
        }
        if self.stream.replies() > 0 {
            return Activity::Reply;
        }
        match self.exchange {
            Exchange::Request(_) => Activity::Request,
            Exchange::Head(_) => Activity::Head,
            Exchange::LookUp { .. } => Activity::LookUp,
            Exchange::Replying | Exchange::Closing => Activity::Close,
        }
    }
}
