//! Replies: what the store answered to a request's look-up is queued for its client.

use std::sync::Arc;

use clock::{Duration, Instant};
use http::{Method, Parsed, Part, Refusal, Reply, ReplyOptions, Request, Status};
use memory::Arena;
use sites::LastRule;
use tcp::StreamRange;

use super::Conductor;
use super::input::untoken;
use super::telemetry::Answered;
use crate::client::{Client, Exchange, HeldRequest, low_micros};
use crate::fetch::ReadShape;
use crate::stream_map::{Layout, ObjectPlace};
use crate::{LookupError, LookupToken, Object, TraceEvent};

/// A file that has changed is looked at again after this time: a program that writes a file anew has cut it first,
/// and writes microseconds later, unless it loses its processor. Each further time it is twice as long.
const CHANGED_PAUSE: Duration = Duration::from_millis(2);
/// How often the pause becomes twice as long: the last is 256 ms, which any writer that still runs gets its processor in.
const PAUSE_DOUBLINGS_MAX: u32 = 7;

/// The reply that is being written, before it is copied into its client's stream, and its date.
#[derive(Debug)]
pub(super) struct ReplyDraft {
    pub(super) text: Vec<u8>,
    pub(super) parts: Vec<Part>,
    /// The wall clock, Unix seconds: for `Date`, and for nothing else here.
    pub(super) unix_seconds: u64,
    /// The rule that was found last.
    pub(super) last_rule: LastRule,
}

impl ReplyDraft {
    pub(super) fn new(unix_seconds: u64) -> Self {
        Self {
            text: Vec::new(),
            parts: Vec::with_capacity(2 * http::RANGES_MAX + 2),
            unix_seconds,
            last_rule: LastRule::default(),
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
        let Some(held) = client.and_then(|client| client.looked_up()) else {
            // The client left meanwhile.
            self.released
                .extend(answer.ok().map(|object| object.handle));
            return;
        };
        if let Ok(object) = &answer
            && object.meta.size_bytes == 0
            && (1..self.config.beginnings_max).contains(&held.beginnings)
        {
            // Its writer has cut it, and is about to write.
            self.released.push(object.handle);
            self.pause(now, index, held.again());
            return;
        }
        match answer {
            Ok(object) => self.queue_object(now, index, held, &object),
            Err(LookupError::NotFound | LookupError::Directory)
                if self.ask_without(now, index, held) => {}
            Err(LookupError::NotFound) if self.redirect_miss(now, index, held) => {}
            Err(LookupError::Directory) if held.error.is_none() => {
                self.queue(now, index, held, None, refuse_directory);
            }
            Err(error) => self.refuse_or_ask(now, index, held, status_of(error)),
        }
        self.take_input(now, index);
        self.update_queues_and_timers(now, index);
    }

    /// Queues a reply with an object: what was asked for, or the body of an error.
    fn queue_object(&mut self, now: Instant, index: u32, held: HeldRequest, object: &Object) {
        let meta = &object.meta;
        let Some(status) = held.error else {
            self.queue(now, index, held, Some(object), {
                |request, options, text, parts| {
                    http::coded_reply(held.coding, request, meta, options, text, parts)
                }
            });
            return;
        };
        let sites = Arc::clone(&self.config.sites);
        self.queue(now, index, held, Some(object), {
            |request, options, text, parts| {
                let page = sites.error_page(request, status);
                let path = page.and_then(|page| page.path.as_deref());
                let page = (path.unwrap_or_default(), meta);
                http::error_page_reply(status, page, request, options, text, parts)
            }
        });
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
            is_private: false,
        };
        self.draft.clear();
        let ReplyDraft { text, parts, .. } = &mut self.draft;
        http::error_reply(status, head_only, true, &options, text, parts);
        client.asked_us = low_micros(now);
        self.telemetry.counters.http_reply_count += 1;
        self.telemetry.counters.http_error_count += 1;
        let answered = Answered {
            asked: None,
            site: 0,
            status: status.code(),
        };
        self.push_reply(now, index, None, answered);
        if let Some(client) = self.connections.clients.entry_mut(index) {
            client.stop_taking_requests();
        }
    }

    /// Queues the reply in the draft.
    fn push_reply(
        &mut self,
        now: Instant,
        index: u32,
        object: Option<ObjectPlace>,
        answered: Answered,
    ) {
        let frame_bytes = self.frame_bytes();
        let Some(client) = self.connections.clients.entry_mut(index) else {
            return;
        };
        let layout = client.layout(frame_bytes);
        let ReplyDraft { text, parts, .. } = &self.draft;
        let bytes = client.stream.push_reply(text, parts, object, layout);
        let start = client.tcp.end();
        client.tcp.append(now, bytes);
        let range = StreamRange::new(start, start + bytes);
        self.telemetry
            .log_request(now, client, answered, &self.draft, range);
        self.telemetry
            .record(now, client, || TraceEvent::Queued { range });
    }

    /// Has `write` answer the request at the start of the input, and queues what it wrote. A reply that needs a
    /// read may begin anew until something of it was sent.
    pub(super) fn queue(
        &mut self,
        now: Instant,
        index: u32,
        held: HeldRequest,
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
        let found = self.config.sites.find(&request, &mut self.draft.last_rule);
        let (rule, site) = (found.rule, found.number());
        let (rate, bandwidth) = (rule.rate, rule.bandwidth.as_ref());
        let mut options = ReplyOptions {
            config: &rule.replies,
            unix_seconds_now: self.draft.unix_seconds,
            keep_alive: self.listening.is_open && !self.crossing.has_successor,
            is_secure: client.tls.is_some(),
            origin: request.origin,
            is_private: client.is_private,
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
        let needs_read = parts.iter().any(|part| matches!(part, Part::Object { .. }));
        let status = reply.status.code();
        let source = (self.config.sites).source(&request, client.source());
        let answered = Answered {
            asked: Some((source, usize::from(held.head_bytes))),
            site,
            status,
        };
        let rate_max = self.config.tcp.rate_max;
        client.begin_rate(client.tcp.end(), rate, rate_max, bandwidth);
        self.push_reply(now, index, place, answered);
        if held.beginnings == 0 {
            self.telemetry.counters.http_reply_count += 1;
        }
        if status >= 400 {
            self.telemetry.counters.http_error_count += 1;
        }
        let Some(client) = self.connections.clients.entry_mut(index) else {
            return;
        };
        let held = HeldRequest {
            is_last: held.is_last || reply.close,
            ..held.again()
        };
        if needs_read {
            client.exchange = Exchange::Unsent(held);
        } else {
            client.end_request(held);
        }
    }

    /// The client may have been sent something: if the reply to its last request has begun, the next request is
    /// taken.
    pub(super) fn end_begun_request(&mut self, now: Instant, index: u32) {
        let client = self.connections.clients.entry_mut(index);
        let Some(client) = client else { return };
        if client.has_unbegun_reply {
            self.telemetry.note_begun(now, client);
        }
        if let Exchange::Unsent(held) = client.exchange
            && client.unsent().is_none()
        {
            client.end_request(held);
            self.take_input(now, index);
        }
    }

    /// A read found that its file has changed. If it was for a reply of which nothing was sent or sealed, that
    /// reply is taken back, and its path will be looked up again. Returns whether it was; if not, the reply cannot
    /// go on.
    pub(super) fn begin_anew(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        index: u32,
        read: &ReadShape,
    ) -> bool {
        let Some(client) = self.connections.clients.entry_mut(index) else {
            return false;
        };
        let Some((held, start)) = client.unsent() else {
            return false;
        };
        if read.stream_start < start || held.beginnings >= self.config.beginnings_max {
            return false;
        }
        if client.stream.take_back_reply(&mut self.released).is_none() {
            return false;
        }
        client.drop_fetches(arena, &mut self.kept, start);
        client.tcp.withdraw_unsent(now, start);
        self.telemetry.forget_last_request(client);
        self.telemetry.counters.session_reply_anew_count += 1;
        self.pause(now, index, held);
        true
    }

    /// The path of `held` will be looked up again.
    fn pause(&mut self, now: Instant, index: u32, held: HeldRequest) {
        if let Some(client) = self.connections.clients.entry_mut(index) {
            let doublings = u32::from(held.beginnings.saturating_sub(1));
            let pause = CHANGED_PAUSE * (1 << doublings.min(PAUSE_DOUBLINGS_MAX));
            client.exchange = Exchange::Changed(now + pause, held);
        }
        self.update_queues_and_timers(now, index);
    }
}

impl Client {
    fn layout(&self, frame_bytes: u64) -> Layout {
        Layout {
            frame_bytes,
            window_bytes: self.tcp.congestion_window(),
            content_bytes_max: self.stream.content_bytes_max(),
            has_lost: self.tcp.has_lost(),
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

/// What was asked for is a directory.
fn refuse_directory(
    request: &Request<'_>,
    options: &ReplyOptions<'_>,
    text: &mut Vec<u8>,
    parts: &mut Vec<Part>,
) -> Reply {
    // One whose name is that of an index file: a redirect would not help.
    if !request.is_for_directory() {
        return http::directory_reply(request, options, text, parts);
    }
    let head_only = request.method == Method::Head;
    let close = !(request.keep_alive && options.keep_alive);
    http::error_reply(Status::NotFound, head_only, close, options, text, parts)
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
