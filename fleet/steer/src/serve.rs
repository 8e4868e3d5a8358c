//! The HTTP service: GET and HEAD, no bodies, one task for each connection.
//!
//! Bounded by `connections_max`: those beyond wait in the kernel's queue. A head has at most [`HEAD_BYTES_MAX`] and
//! [`FIELDS_MAX`] fields, and `idle_timeout_seconds` to come; a client that takes nothing of its answers for so long is
//! given up, too.

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use registry::Freshness;
use rustix::net::sockopt::set_tcp_user_timeout;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::metrics::{self, Counters, count};
use crate::request::{Asked, TargetError, parse};
use crate::settings::SteerSettings;
use crate::steering::{Steering, name_of};

/// Most bytes of a request's head.
pub const HEAD_BYTES_MAX: usize = 16 << 10;

/// Most fields of a request's head.
pub const FIELDS_MAX: usize = 64;

/// How long open connections may take to finish after the end of the service.
const GRACE: Duration = Duration::from_secs(5);

/// How long to wait after an error of accept(2): there are no descriptors, say.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What every connection is answered by.
#[derive(Debug)]
pub struct Service {
    steering: Arc<Steering>,
    /// What is counted.
    pub counters: Counters,
    /// Whether it is about to end: `/ready` is 503.
    pub is_leaving: AtomicBool,
    trusted_proxies: Vec<IpAddr>,
}

type Reply = Response<Full<Bytes>>;

impl Service {
    /// A service of this steering.
    #[must_use]
    pub fn new(steering: Arc<Steering>, settings: &SteerSettings) -> Self {
        Self {
            steering,
            counters: Counters::default(),
            is_leaving: AtomicBool::new(false),
            trusted_proxies: settings.trusted_proxies.clone(),
        }
    }

    /// The answer to a request.
    fn answer(&self, request: &Request<Incoming>, peer: IpAddr) -> Reply {
        let mut reply = match *request.method() {
            Method::GET | Method::HEAD if !request.body().is_end_stream() => {
                // What follows would be taken for the next request's head.
                let mut reply = text(StatusCode::BAD_REQUEST, "no body is wanted");
                set(&mut reply, header::CONNECTION, "close");
                reply
            }
            Method::GET | Method::HEAD => self.get(request, peer),
            Method::OPTIONS => {
                let mut reply = text(StatusCode::NO_CONTENT, "");
                set(
                    &mut reply,
                    header::ACCESS_CONTROL_ALLOW_METHODS,
                    "GET, HEAD",
                );
                set(&mut reply, header::ACCESS_CONTROL_ALLOW_HEADERS, "*");
                set(&mut reply, header::ACCESS_CONTROL_MAX_AGE, "86400");
                reply
            }
            _ => {
                let mut reply = text(StatusCode::METHOD_NOT_ALLOWED, "GET and HEAD are possible");
                set(&mut reply, header::ALLOW, "GET, HEAD, OPTIONS");
                set(&mut reply, header::CONNECTION, "close");
                reply
            }
        };
        // Players are in pages of other origins, and an answer is for this client and now.
        set(&mut reply, header::ACCESS_CONTROL_ALLOW_ORIGIN, "*");
        set(&mut reply, header::CACHE_CONTROL, "no-store");
        if reply.status().as_u16() >= 400 {
            count(&self.counters.refused);
        }
        reply
    }

    fn get(&self, request: &Request<Incoming>, peer: IpAddr) -> Reply {
        let target = request.uri().path_and_query().map_or("", |it| it.as_str());
        let asked = match parse(target) {
            Ok(asked) => asked,
            Err(error) => return refusal(error),
        };
        let client = Some(self.client(request.headers(), peer));
        match asked {
            Asked::Manifest(question) => {
                let manifest = self.steering.manifest(&question, client);
                count(&self.counters.manifests);
                self.count_edges(manifest.has_edges());
                with_type(manifest.to_json(), "application/json")
            }
            Asked::Resolve(question) => {
                count(&self.counters.resolutions);
                let resolution = self.steering.resolve(&question, client);
                with_type(resolution, "application/json")
            }
            Asked::Redirect(question, rest) => {
                let to = self.steering.redirect(&question, &rest, client);
                self.count_edges(to.is_some());
                let location = to.and_then(|it| HeaderValue::from_str(&it).ok());
                let Some(location) = location else {
                    let mut reply = text(StatusCode::SERVICE_UNAVAILABLE, "no edge is known");
                    set(&mut reply, header::RETRY_AFTER, "5");
                    return reply;
                };
                count(&self.counters.redirects);
                let mut reply = text(StatusCode::TEMPORARY_REDIRECT, "");
                reply.headers_mut().insert(header::LOCATION, location);
                reply
            }
            Asked::Health => self.health(),
            Asked::Ready => {
                let is_ready = !self.is_leaving.load(Ordering::Relaxed)
                    && !self.steering.snapshot().fleet.members().is_empty();
                if is_ready {
                    text(StatusCode::OK, "ready\n")
                } else {
                    text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
                }
            }
            Asked::Metrics => {
                let page = metrics::page(&self.counters, &self.steering.snapshot());
                let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                with_type(page, kind)
            }
        }
    }

    fn count_edges(&self, has_edges: bool) {
        if !has_edges {
            count(&self.counters.without_edge);
        }
    }

    /// 200 while players can be told of edges, by whatever members; the text says which.
    fn health(&self) -> Reply {
        let snapshot = self.steering.snapshot();
        let members = snapshot.fleet.members();
        let mut told = json!({
            "members": name_of(&snapshot.freshness),
            "count": members.len(),
            "serving": members.iter().filter(|it| it.takes_players()).count(),
        });
        if let Freshness::LastKnown { since, why } = &snapshot.freshness {
            told["seconds"] = since.elapsed().as_secs().into();
            told["why"] = why.as_str().into();
        }
        let mut reply = with_type(told.to_string(), "application/json");
        if members.is_empty() {
            *reply.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        reply
    }

    /// Who asks: the peer, or whom a trusted proxy names last.
    fn client(&self, headers: &HeaderMap, peer: IpAddr) -> IpAddr {
        let mut client = peer;
        let fields = headers.get_all("x-forwarded-for");
        let mut names: Vec<&str> = fields.iter().filter_map(|it| it.to_str().ok()).collect();
        names.reverse();
        let named = names.into_iter().flat_map(|field| field.rsplit(','));
        for name in named {
            if !self.trusted_proxies.contains(&client.to_canonical()) {
                break;
            }
            match name.trim().parse() {
                Ok(address) => client = address,
                Err(_) => break,
            }
        }
        client
    }
}

fn refusal(error: TargetError) -> Reply {
    let status = match error {
        TargetError::TooLong => StatusCode::URI_TOO_LONG,
        TargetError::Unknown => StatusCode::NOT_FOUND,
        _ => StatusCode::BAD_REQUEST,
    };
    text(status, &error.to_string())
}

fn text(status: StatusCode, text: &str) -> Reply {
    let mut reply = with_type(text.to_owned(), "text/plain; charset=utf-8");
    *reply.status_mut() = status;
    reply
}

fn with_type(body: String, kind: &'static str) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::from(body)));
    set(&mut reply, header::CONTENT_TYPE, kind);
    reply
}

fn set(reply: &mut Reply, name: header::HeaderName, value: &'static str) {
    reply
        .headers_mut()
        .insert(name, HeaderValue::from_static(value));
}

/// Serves until `stop` is ready; then what is under way has five seconds.
pub async fn run(
    listener: TcpListener,
    service: Arc<Service>,
    settings: &SteerSettings,
    stop: impl Future<Output = ()>,
) {
    let connections = Arc::new(Semaphore::new(settings.connections_max));
    let graceful = GracefulShutdown::new();
    let idle = Duration::from_secs(settings.idle_timeout_seconds);
    let idle_ms = u32::try_from(idle.as_millis()).unwrap_or(u32::MAX);
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(idle)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(FIELDS_MAX);
    let accept = async {
        loop {
            let permit = Arc::clone(&connections).acquire_owned().await;
            let permit = permit.expect("invariant: it is not closed");
            let (stream, peer): (_, SocketAddr) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!("no connection can be accepted: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            // A connection that the kernel cannot set this of is gone.
            let _ = set_tcp_user_timeout(&stream, idle_ms);
            count(&service.counters.accepted);
            service.counters.open.fetch_add(1, Ordering::Relaxed);
            let answering = Arc::clone(&service);
            let handler = service_fn(move |request: Request<Incoming>| {
                let reply = answering.answer(&request, peer.ip());
                async move { Ok::<_, Infallible>(reply) }
            });
            let connection = builder.serve_connection(TokioIo::new(stream), handler);
            let connection = graceful.watch(connection);
            let counted = Arc::clone(&service);
            tokio::spawn(async move {
                // What goes wrong on a connection is its client's.
                let _ = connection.await;
                counted.counters.open.fetch_sub(1, Ordering::Relaxed);
                drop(permit);
            });
        }
    };
    tokio::select! {
        () = stop => {}
        () = accept => {}
    }
    drop(listener);
    let _ = tokio::time::timeout(GRACE, graceful.shutdown()).await;
}
