//! Connections listed for operators.

use core::net::SocketAddr;

use clock::Instant;

use super::Conductor;
use crate::client::{Client, Exchange};
use crate::fetch::FetchState;
use crate::listing::{Activity, ListedConnection, PageLimits};

impl Conductor {
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
        let places = self.connections.places();
        let end = from.saturating_add(limits.places_max).min(places);
        let mut rows = 0;
        for index in from..end {
            if rows == limits.rows_max {
                return Some(index);
            }
            let client = self.connections.clients.entry(index);
            if let Some(client) = client.filter(|client| is_wanted(&client.tcp.tuple().peer)) {
                sink(client.listed(now));
                rows += 1;
            }
        }
        (end < places).then_some(end)
    }
}

impl Client {
    fn listed(&self, now: Instant) -> ListedConnection {
        let is_reading =
            |fetch: &&crate::fetch::Fetch| matches!(fetch.state, FetchState::Reading(_));
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
            Exchange::LookUp(_) | Exchange::Changed(..) => Activity::LookUp,
            Exchange::Unsent(_) | Exchange::Replying | Exchange::Closing => Activity::Close,
        }
    }
}
