//! Replies: what the store answered to a request's look-up is queued for its client.

use clock::Instant;
use http::{Method, Parsed, Part, Refusal, Reply, ReplyOptions, Request, Status};
use tcp::StreamRange;

use super::Conductor;
use super::input::untoken;
use crate::client::Client;
use crate::input::HeadProgress;
use crate::stream_map::{Layout, ObjectPlace};
use crate::{LookupError, LookupToken, Object, TraceEvent};

/// The reply that is being written, before it is copied into its client's stream, and its date.
#[derive(Debug)]
pub(super) struct ReplyDraft {
    pub(super) text: Vec<u8>,
    pub(super) parts: Vec<Part>,
    /// The wall clock, Unix seconds: for `Date`, and for nothing else here.
    pub(super) unix_seconds: u64,
}

impl ReplyDraft {
    pub(super) fn new(unix_seconds: u64) -> Self {
        Self {
            text: Vec::new(),
            parts: Vec::with_capacity(2 * http::RANGES_MAX + 2),
            unix_seconds,
        }
    }

    fn clear(&mut self) {
        self.text.clear();
        self.parts.clear();
    }
}

impl Conductor {
    /// The store's answer to a look-up. On `Ok`, the reply uses the object until
    /// [`Conductor::poll_released`] returns it.
    pub fn handle_lookup(
        &mut self,
        now: Instant,
        token: LookupToken,
        answer: Result<Object, LookupError>,
    ) {
        if let Ok(object) = &answer {
            self.reads.devices.see(object.device);
        }
        let token = untoken(token);
        let index = token.index;
        let client = self.connections.client_of(token);
        let Some(head_bytes) = client.and_then(Client::end_look_up) else {
            // The client left meanwhile.
            self.released
                .extend(answer.ok().map(|object| object.handle));
            return;
        };
        match answer {
            Ok(object) => self.queue(now, index, head_bytes, Some(&object), {
                |request, options, text, parts| {
                    http::reply(request, &object.meta, options, text, parts)
                }
            }),
            Err(error) => self.queue(now, index, head_bytes, None, {
                |request, options, text, parts| refuse_lookup(error, request, options, text, parts)
            }),
        }
        self.take_input(now, index);
        self.update_queues_and_timers(now, index);
    }

    /// The rest of a head did not arrive in time: 408, and the connection closes.
    pub(super) fn time_out_head(&mut self, now: Instant, index: u32) {
        self.telemetry.counters.http_timeout_count += 1;
        let refusal = Refusal {
            status: Status::RequestTimeout,
            head_only: false,
        };
        self.refuse_request(now, index, refusal);
    }

    /// Answers input that is not a valid request, and closes the connection.
    pub(super) fn refuse_with(&mut self, now: Instant, index: u32, status: Status) {
        let head_only = false;
        self.refuse_request(now, index, Refusal { status, head_only });
    }

    pub(super) fn refuse_request(&mut self, now: Instant, index: u32, refusal: Refusal) {
        let Some(client) = self.connections.clients.entry_mut(index) else {
            return;
        };
        let Refusal { status, head_only } = refusal;
        let options = ReplyOptions {
            config: self.config.sites.default_replies(),
            unix_seconds_now: self.draft.unix_seconds,
            keep_alive: false,
            is_secure: client.tls.is_some(),
            origin: None,
        };
        self.draft.clear();
        let ReplyDraft { text, parts, .. } = &mut self.draft;
        http::error_reply(status, head_only, true, &options, text, parts);
        self.telemetry
            .log_request(client, None, status.code(), &self.draft);
        self.telemetry.counters.http_reply_count += 1;
        self.telemetry.counters.http_error_count += 1;
        self.push_reply(now, index, None);
        if let Some(client) = self.connections.clients.entry_mut(index) {
            client.stop_taking_requests();
        }
    }

    /// Queues the reply in the draft.
    fn push_reply(&mut self, now: Instant, index: u32, object: Option<ObjectPlace>) {
        let frame_bytes = self.frame_bytes();
        let Some(client) = self.connections.clients.entry_mut(index) else {
            return;
        };
        let layout = client.layout(frame_bytes);
        let ReplyDraft { text, parts, .. } = &self.draft;
        let bytes = client.stream.push_reply(text, parts, object, layout);
        let start = client.tcp.end();
        client.tcp.append(now, bytes);
        self.telemetry.record(now, client, || TraceEvent::Queued {
            range: StreamRange::new(start, start + bytes),
        });
    }

    /// Has `write` answer the request at the start of the input, and queues what it wrote.
    pub(super) fn queue(
        &mut self,
        now: Instant,
        index: u32,
        head_bytes: usize,
        object: Option<&Object>,
        write: impl Fn(&Request<'_>, &ReplyOptions<'_>, &mut Vec<u8>, &mut Vec<Part>) -> Reply,
    ) {
        let frame_bytes = self.frame_bytes();
        let Some(client) = self.connections.clients.entry_mut(index) else {
            return;
        };
        // The request was parsed before the look-up; its bytes have not changed since.
        let Parsed::Complete { request, .. } = http::parse_request(client.input.as_slice()) else {
            unreachable!("a request that was complete stays so");
        };
        let mut options = ReplyOptions {
            config: self.config.sites.replies(&request),
            unix_seconds_now: self.draft.unix_seconds,
            keep_alive: self.listening.is_open,
            is_secure: client.tls.is_some(),
            origin: request.origin,
        };
        self.draft.clear();
        let ReplyDraft { text, parts, .. } = &mut self.draft;
        let mut reply = write(&request, &options, text, parts);
        let place = object.map(Object::place);
        if !reply.close && client.is_last_reply(parts, place, frame_bytes) {
            options.keep_alive = false;
            text.clear();
            parts.clear();
            reply = write(&request, &options, text, parts);
        }
        let body_bytes = request.body_bytes;
        let status = reply.status.code();
        self.telemetry
            .log_request(client, Some(head_bytes), status, &self.draft);
        client.input.take(head_bytes);
        client.body_bytes_left = body_bytes;
        client.head = HeadProgress::default();
        self.push_reply(now, index, place);
        let Some(client) = self.connections.clients.entry_mut(index) else {
            return;
        };
        self.telemetry.counters.http_reply_count += 1;
        if status >= 400 {
            self.telemetry.counters.http_error_count += 1;
        }
        if reply.close {
            client.stop_taking_requests();
        }
    }
}

impl Client {
    fn layout(&self, frame_bytes: u64) -> Layout {
        Layout {
            frame_bytes,
            window_bytes: self.tcp.congestion_window(),
            content_bytes_max: self.stream.content_bytes_max(),
        }
    }

    /// Whether a reply of `parts` must be the last on its connection: after it our TLS 1.2 key, which
    /// is never replaced, may have sealed more than half of the records it may seal. So every reply
    /// that needs at most half of a key's records is sent whole.
    fn is_last_reply(&self, parts: &[Part], object: Option<ObjectPlace>, frame_bytes: u64) -> bool {
        let Some(tls) = &self.tls else {
            return false;
        };
        let records = self.layout(frame_bytes).records_max(parts, object.as_ref());
        tls.is_half_used(self.stream.next_number() + records)
    }
}

/// There is no object to reply with.
fn refuse_lookup(
    error: LookupError,
    request: &Request<'_>,
    options: &ReplyOptions<'_>,
    text: &mut Vec<u8>,
    parts: &mut Vec<Part>,
) -> Reply {
    // A directory whose name is that of an index file: a redirect would not help.
    if error == LookupError::Directory && !request.is_for_directory() {
        return http::directory_reply(request, options, text, parts);
    }
    let head_only = request.method == Method::Head;
    let close = !(request.keep_alive && options.keep_alive);
    http::error_reply(status_of(error), head_only, close, options, text, parts)
}

const fn status_of(error: LookupError) -> Status {
    match error {
        LookupError::NotFound | LookupError::Directory => Status::NotFound,
        LookupError::Forbidden => Status::Forbidden,
        LookupError::Busy => Status::ServiceUnavailable,
        LookupError::Failed => Status::InternalServerError,
    }
}

impl Object {
    const fn place(&self) -> ObjectPlace {
        ObjectPlace {
            handle: self.handle,
            block_bytes: self.block_bytes,
            read_bytes_max: self.read_bytes_max,
            device: self.device,
        }
    }
}
