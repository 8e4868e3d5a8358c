//! The calls of the access log: at the begin and at the end of each reply.

use http::HeadText;

use super::Conductor;
use crate::client::{Client, Exchange};
use crate::{LoggedRequest, RequestLog, STATUS_CLIENT_LEFT};

impl Conductor {
    /// Reports every request to `log` from now on.
    pub fn set_request_log(&mut self, log: Box<dyn RequestLog>) {
        self.request_log = Some(log);
    }

    /// The reply in `text` and `parts` is about to be queued. Its request is the first `head_bytes`
    /// of the input; `None`: all of the input.
    pub(super) fn log_request(&mut self, index: u32, head_bytes: Option<usize>, status: u16) {
        let Some(log) = self.request_log.as_deref_mut() else {
            return;
        };
        let Some(client) = self.clients.entry_mut(index) else {
            return;
        };
        let request = client.logged_request(head_bytes, status);
        let name = log.begin(&request);
        client.logged.push(name, &self.text, &self.parts);
    }

    /// The client leaves: logs the end of its replies.
    pub(super) fn log_departure(&mut self, client: &mut Client) {
        let Some(log) = self.request_log.as_deref_mut() else {
            return;
        };
        let unsent = client.stream.content_behind(client.tcp.sent());
        client.logged.cut(&unsent);
        client.logged.end_first(0, log);
        if let Exchange::LookUp { head_bytes, .. } = client.exchange {
            let request = client.logged_request(Some(head_bytes), STATUS_CLIENT_LEFT);
            if let Some(name) = log.begin(&request) {
                log.end(name, 0);
            }
        }
    }
}

impl Client {
    fn logged_request(&self, head_bytes: Option<usize>, status: u16) -> LoggedRequest<'_> {
        let input = self.input.as_slice();
        let head_bytes = head_bytes.unwrap_or(input.len());
        LoggedRequest {
            peer: self.tcp.tuple().peer.ip(),
            status,
            text: HeadText::find(input.get(..head_bytes).unwrap_or_default()),
        }
    }
}
