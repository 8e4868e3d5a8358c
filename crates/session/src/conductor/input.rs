//! What a client sent is taken: its records are opened if it speaks TLS, and its requests parsed.
//!
//! Refused: more than [`REPLIES_MAX`](crate::stream_map::REPLIES_MAX) requests that are not answered to
//! their end. What arrives beyond waits in the client's input, which the receive window bounds.

use core::net::IpAddr;

use clock::{Duration, Instant};
use http::{Coding, Method, Parsed, Request, Status};
use sites::Verdict;
use sites::rules::OnMiss;

use super::Conductor;
use super::replies::ReplyDraft;
use crate::client::{Client, Exchange, HeldRequest, low_micros};
use crate::{Config, LookupPlan, LookupPurpose, LookupToken, TlsToken};

impl Conductor {
    /// Processes what arrived: opens the client's records and parses its requests.
    pub(super) fn take_input(&mut self, now: Instant, index: u32) {
        loop {
            self.take_requests(now, index);
            if !self.open_records(now, index) {
                break;
            }
        }
        // Requests that came before the client's end are answered first.
        if let Some(client) = self.connections.clients.entry_mut(index)
            && client.has_half_closed()
            && client.takes_requests()
            && !client.tls.as_ref().is_some_and(|tls| tls.is_busy())
        {
            client.stop_taking_requests();
        }
    }

    /// Parses the requests that arrived, until one needs a look-up or more bytes.
    fn take_requests(&mut self, now: Instant, index: u32) {
        while let Some(client) = self.connections.clients.entry_mut(index)
            && client.takes_requests()
        {
            if !client.skip_body() || !client.head.is_due(client.input.as_slice()) {
                client.await_more(now);
                return;
            }
            let input_bytes = client.input.len();
            self.telemetry.counters.http_parse_count += 1;
            let (request, head_bytes) = match http::parse_request(client.input.as_slice()) {
                Parsed::Complete {
                    request,
                    head_bytes,
                } => (request, head_bytes),
                Parsed::Incomplete => {
                    self.telemetry.counters.http_parse_bytes += input_bytes as u64;
                    client.head.on_incomplete(input_bytes);
                    client.await_more(now);
                    return;
                }
                Parsed::Refused(refusal) => {
                    self.telemetry.counters.http_parse_bytes += input_bytes as u64;
                    self.refuse_request(now, index, refusal);
                    return;
                }
            };
            client.asked_us = low_micros(now);
            self.telemetry.counters.http_request_count += 1;
            self.telemetry.counters.http_parse_bytes += head_bytes as u64;
            let held = HeldRequest {
                head_bytes: u16::try_from(head_bytes).expect("invariant: HEAD_BYTES_MAX"),
                body_bytes: request.body_bytes,
                beginnings: 0,
                coding: None,
                error: None,
                is_last: false,
            };
            let source = self.config.sites.source(&request, client.source());
            if !self.config.source_filter.serves(source) {
                // Only a trusted proxy, and whom one forwards, gets here.
                self.telemetry.counters.session_denied_count += 1;
                self.answer(now, index, held, &Verdict::Refuse(Status::Forbidden));
                continue;
            }
            if request.method == Method::Options {
                self.queue(now, index, held, None, http::options_reply);
                continue;
            }
            let found = self.config.sites.find(&request, &mut self.draft.last_rule);
            let has_limit = found.rule.limit.is_some() || client.is_ruled;
            let decided = decide(&self.config, &mut self.draft, client, request, None);
            let is_refused = matches!(decided, Err(Verdict::Refuse(_)));
            if has_limit && !is_refused && !self.admit(now, index, source) {
                self.telemetry.counters.http_limited_count += 1;
                self.refuse_or_ask(now, index, held, Status::TooManyRequests);
                continue;
            }
            self.ask_or_answer(now, index, held, decided);
        }
    }

    /// Whether the request at the start of the input, which is served to `source`, is within the limit of its rule.
    fn admit(&mut self, now: Instant, index: u32, source: IpAddr) -> bool {
        let Some(client) = self.connections.clients.entry_mut(index) else {
            return true;
        };
        let sites = &self.config.sites;
        let Some(request) = request_of(client) else {
            return true;
        };
        let rule = sites.find(&request, &mut self.draft.last_rule).rule;
        client.hold(|held| sites.admit(rule, source, now.as_nanos(), held))
    }

    /// Has a path looked up for the request at the start of the input, or answers it.
    fn ask_or_answer(
        &mut self,
        now: Instant,
        index: u32,
        held: HeldRequest,
        decided: Result<Asked, Verdict>,
    ) {
        match decided {
            Ok(Asked {
                directory,
                path,
                coding,
                is_private,
                site,
                hold,
            }) => {
                if let Some(client) = self.connections.clients.entry_mut(index) {
                    client.exchange = Exchange::LookUp(HeldRequest { coding, ..held });
                    client.is_private = is_private;
                    self.lookups.push_back(LookupPlan {
                        token: token_of(client.token(index)),
                        directory,
                        path,
                        site,
                        purpose: match (held.error, coding) {
                            (Some(_), _) => LookupPurpose::ErrorPage,
                            (None, Some(_)) => LookupPurpose::Coding,
                            (None, None) => LookupPurpose::Object { hold },
                        },
                    });
                }
            }
            Err(Verdict::Refuse(status)) => self.refuse_or_ask(now, index, held, status),
            Err(verdict) => self.answer(now, index, held, &verdict),
        }
    }

    /// Answers a request by an error, whose body is looked up first, if it is an object.
    pub(super) fn refuse_or_ask(
        &mut self,
        now: Instant,
        index: u32,
        held: HeldRequest,
        status: Status,
    ) {
        let client = self.connections.clients.entry(index);
        let request = client.filter(|_| held.error.is_none()).and_then(request_of);
        let page = request.and_then(|request| self.config.sites.error_page(&request, status));
        match page.cloned() {
            Some(place) => {
                let error = Some(status);
                let page = Asked {
                    directory: place.directory,
                    path: place.path.unwrap_or_default(),
                    coding: None,
                    is_private: false,
                    site: 0,
                    hold: Duration::ZERO,
                };
                let held = HeldRequest { error, ..held };
                self.ask_or_answer(now, index, held, Ok(page));
            }
            None => self.answer(
                now,
                index,
                held,
                &Verdict::Refuse(held.error.unwrap_or(status)),
            ),
        }
    }

    /// Sends a client where an object is that is not here. Whether there is such a place.
    pub(super) fn redirect_miss(&mut self, now: Instant, index: u32, held: HeldRequest) -> bool {
        let client = self.connections.clients.entry(index);
        let request = client.filter(|_| held.error.is_none()).and_then(request_of);
        let Some(request) = request else {
            return false;
        };
        self.telemetry.counters.http_miss_count += 1;
        let found = self.config.sites.find(&request, &mut self.draft.last_rule);
        let Some(location) = found.miss_location(&request) else {
            return false;
        };
        self.telemetry.counters.http_miss_redirect_count += 1;
        self.queue(now, index, held, None, |request, options, text, parts| {
            http::miss_redirect_reply(&location, request, options, text, parts)
        });
        true
    }

    /// Asks for an object that is not there in the coding that was asked for: in the next, or as it is. Whether
    /// there is such a thing.
    pub(super) fn ask_without(&mut self, now: Instant, index: u32, held: HeldRequest) -> bool {
        let Some(client) = self.connections.clients.entry(index) else {
            return false;
        };
        let Some(request) = request_of(client).filter(|_| held.coding.is_some()) else {
            return false;
        };
        let after = held.coding;
        let decided = decide(&self.config, &mut self.draft, client, request, after);
        self.ask_or_answer(now, index, held, decided);
        true
    }

    /// If it is time to, asks again for what has changed.
    pub(super) fn look_up_again(&mut self, now: Instant, index: u32) {
        let client = self.connections.clients.entry_mut(index);
        if let Some(client) = client
            && let Some((at, held)) = client.to_look_up_again()
            && at <= now
        {
            let parsed = http::parse_request(client.input.as_slice());
            let Parsed::Complete { request, .. } = parsed else {
                unreachable!("a request that was complete stays so");
            };
            let decided = decide(&self.config, &mut self.draft, client, request, None);
            self.ask_or_answer(now, index, held, decided);
            self.take_input(now, index);
        }
    }

    /// Answers a request that asks for no object, or for none that it may have.
    fn answer(&mut self, now: Instant, index: u32, held: HeldRequest, verdict: &Verdict) {
        self.queue(now, index, held, None, |request, options, text, parts| {
            let status = match verdict {
                Verdict::Redirect(status, location) => {
                    return http::redirect_reply(*status, location, request, options, text, parts);
                }
                Verdict::Refuse(status) => *status,
                Verdict::Serve(_) => unreachable!("it is looked up"),
            };
            let head_only = request.method == Method::Head;
            let close = !(request.keep_alive && options.keep_alive);
            http::error_reply(status, head_only, close, options, text, parts)
        });
    }
}

/// The request at the start of a client's input.
fn request_of(client: &Client) -> Option<Request<'_>> {
    match http::parse_request(client.input.as_slice()) {
        Parsed::Complete { request, .. } => Some(request),
        _ => None,
    }
}

/// What is looked up.
pub(super) struct Asked {
    directory: u16,
    path: String,
    coding: Option<Coding>,
    is_private: bool,
    site: u16,
    /// How long it is waited for if it is not there.
    hold: Duration,
}

/// What to look up for a client's request, or how it is answered without. `after`: that coding was not there, and none
/// before it.
fn decide(
    config: &Config,
    draft: &mut ReplyDraft,
    client: &Client,
    request: Request<'_>,
    after: Option<Coding>,
) -> Result<Asked, Verdict> {
    let asking = sites::Client {
        source: config.sites.source(&request, client.source()),
        is_secure: client.tls.is_some(),
        unix_seconds: draft.unix_seconds,
    };
    let found = config.sites.find(&request, &mut draft.last_rule);
    match found.decide(&request, &asking) {
        Verdict::Serve(place) => {
            let mut codings = place.codings.into_iter().flatten();
            if let Some(after) = after {
                let _passed = codings.find(|coding| *coding == after);
            }
            let coding = codings.next();
            let mut path = request.into_object_path(place.path);
            path.push_str(coding.map_or("", Coding::suffix));
            let hold = match found.rule.on_miss {
                OnMiss::Hold { milliseconds } => Duration::from_millis(milliseconds.into()),
                OnMiss::NotFound | OnMiss::Redirect(_) => Duration::ZERO,
            };
            Ok(Asked {
                directory: place.directory,
                path,
                coding,
                is_private: place.is_private,
                site: found.number(),
                hold,
            })
        }
        verdict => Err(verdict),
    }
}

fn token_of(TlsToken { index, serial }: TlsToken) -> LookupToken {
    LookupToken(u64::from(index) << 32 | u64::from(serial))
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves of a token")]
pub(super) const fn untoken(token: LookupToken) -> TlsToken {
    TlsToken {
        index: (token.0 >> 32) as u32,
        serial: token.0 as u32,
    }
}
