//! The HTTP client of `object_store`: what a reply's fields say of the content, what a refusal says, and that no reply's
//! head is waited for too long.
//!
//! Statuses become [`Fault`]s here, since what `object_store` makes of them has lost `Retry-After` and is shown with the
//! request's address. It refuses redirects to another host, which would get the request's credentials. Bounded by
//! [`BODY_BYTES_MAX`] of a refusal's body, [`PAGE_BYTES_MAX`] of a listing's page, and [`REDIRECTS_MAX`].

use std::error::Error;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::StreamExt as _;
use object_store::CredentialProvider;
use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::client::{
    ClientConfigKey, ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind,
    HttpRequest, HttpResponse, HttpService,
};
use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::redirect::{Action, Attempt, Policy};

use super::build::innermost;
use crate::fault::{Fault, Kind};

/// How much of a refusal's body is read.
const BODY_BYTES_MAX: usize = 4096;
/// Most bytes of a page of a listing: 5,000 names of the longest, each byte of them escaped.
const PAGE_BYTES_MAX: usize = 32 << 20;
/// Most redirects in a row.
const REDIRECTS_MAX: usize = 10;
/// Longest wait for a connection: to the origin, and to who gives credentials on this machine.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const METADATA_CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// Fields that say something of the content.
const FIELDS: [&str; 12] = [
    "etag",
    "content-encoding",
    "content-md5",
    "repr-digest",
    "x-amz-checksum-crc32",
    "x-amz-checksum-crc32c",
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-sha256",
    "x-amz-checksum-type",
    "x-amz-server-side-encryption",
    "x-amz-server-side-encryption-customer-algorithm",
    "x-ms-blob-content-md5",
];
/// The same, of which there may be several.
const REPEATED: &str = "x-goog-hash";

/// The fields of a reply that say something of the content.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields(Vec<(&'static str, String)>);

impl Fields {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> + Clone {
        self.0.iter().map(|(name, value)| (*name, value.as_str()))
    }
}

/// What a request is signed with once more.
#[derive(Clone, Debug)]
pub(super) struct Signing {
    pub(super) region: String,
    /// Known once the client is built.
    pub(super) credentials: Arc<OnceLock<Arc<dyn CredentialProvider<Credential = AwsCredential>>>>,
}

/// Makes clients that observe.
#[derive(Debug)]
pub(super) struct Connector {
    stall: Duration,
    signing: Option<Signing>,
    /// Fields of each request.
    fields: HeaderMap,
}

impl Connector {
    pub(super) fn new(stall: Duration, signing: Option<Signing>) -> Self {
        Self {
            stall,
            signing,
            fields: HeaderMap::new(),
        }
    }

    pub(super) fn with_fields(mut self, fields: HeaderMap) -> Self {
        self.fields = fields;
        self
    }

    /// HTTP/1.1 only: over it a reply has no more in memory than its connection's buffers. What takes long is found by
    /// waiting for the next byte, not by the time of all of it.
    fn client(&self, options: &ClientOptions) -> reqwest::Result<reqwest::Client> {
        let value = |key| options.get_config_value(&key);
        // Those of the origin have none: `object_store` sets one for its clients of metadata services.
        let connect_limit = match value(ClientConfigKey::ConnectTimeout) {
            None => CONNECT_LIMIT,
            Some(_) => METADATA_CONNECT_LIMIT,
        };
        reqwest::Client::builder()
            .user_agent(concat!("atlas-fill/", env!("CARGO_PKG_VERSION")))
            .default_headers(self.fields.clone())
            .http1_only()
            .https_only(value(ClientConfigKey::AllowHttp).is_none_or(|it| it != "true"))
            .connect_timeout(connect_limit)
            .redirect(Policy::custom(redirected))
            .build()
    }
}

/// Follows redirects of the host that was asked.
fn redirected(attempt: Attempt<'_>) -> Action {
    let fault = |text: &str| Fault::new(Kind::Redirects, text);
    if attempt.previous().len() > REDIRECTS_MAX {
        return attempt.error(fault("the origin redirects for ever"));
    }
    let is_same = attempt
        .previous()
        .last()
        .is_some_and(|from| is_same_host(from, attempt.url()));
    if is_same {
        return attempt.follow();
    }
    attempt.error(fault(
        "the origin redirects to another host, which must not get its credentials; if that is to be asked, name it as origin",
    ))
}

/// Whether a redirect stays at the host and port, or leads to TLS there.
fn is_same_host(from: &Url, to: &Url) -> bool {
    let is_upgrade = from.scheme() == "http" && to.scheme() == "https";
    let is_same_port =
        from.scheme() == to.scheme() && from.port_or_known_default() == to.port_or_known_default();
    let is_usual_port = from.port().is_none() && to.port().is_none();
    from.host_str() == to.host_str() && (is_same_port || (is_upgrade && is_usual_port))
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = self
            .client(options)
            .map_err(|error| object_store::Error::Generic {
                store: "HTTP client",
                source: Box::new(error),
            })?;
        Ok(HttpClient::new(Observed {
            inner: HttpClient::new(inner),
            stall: self.stall,
            signing: self.signing.clone(),
        }))
    }
}

#[derive(Debug)]
struct Observed {
    inner: HttpClient,
    stall: Duration,
    signing: Option<Signing>,
}

impl Observed {
    /// Asks S3 for its digests, which it gives only to those who ask, by a field that is to be signed.
    async fn ask_for_digests(&self, request: &mut HttpRequest) {
        let Some(signing) = &self.signing else {
            return;
        };
        let field = "x-amz-checksum-mode";
        if !request.headers().contains_key("authorization") {
            // Of public buckets nothing is signed.
            request
                .headers_mut()
                .insert(field, HeaderValue::from_static("ENABLED"));
            return;
        }
        let Some(provider) = signing.credentials.get() else {
            return;
        };
        let Ok(credential) = provider.get_credential().await else {
            return;
        };
        let mut signed = request.clone();
        signed.headers_mut().remove("authorization");
        signed
            .headers_mut()
            .insert(field, HeaderValue::from_static("ENABLED"));
        let authorizer = AwsAuthorizer::new(&credential, "s3", &signing.region);
        if authorizer.try_authorize(&mut signed, None).is_ok() {
            *request = signed;
        }
    }
}

impl Observed {
    async fn observe(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let is_part = request.headers().contains_key("range");
        let method = request.method().clone();
        // Of instances' metadata and of tokens the providers themselves look at the status.
        let is_of_origin = !is_metadata(request.uri().host().unwrap_or_default())
            && matches!(method.as_str(), "GET" | "HEAD" | "PROPFIND");
        let query = request.uri().query();
        let is_object = query.is_none();
        let is_listing = query.is_some_and(is_listing);
        if is_of_origin && is_object && !is_part {
            self.ask_for_digests(&mut request).await;
        }
        let sent = tokio::time::timeout(self.stall, self.inner.execute(request));
        let mut response = sent.await.map_err(|_| {
            let text = format!("the origin sent nothing for {} s", self.stall.as_secs_f32());
            HttpError::new(HttpErrorKind::Timeout, Fault::new(Kind::Stalled, text))
        })??;
        if !is_of_origin {
            return Ok(response);
        }
        let status = response.status().as_u16();
        if status >= 400 {
            let fault = refusal(response, self.stall).await;
            return Err(HttpError::new(HttpErrorKind::Unknown, fault));
        }
        if is_part && status == 200 {
            let fault = Fault::new(Kind::NoRanges, "the origin does not send parts of objects");
            return Err(HttpError::new(HttpErrorKind::Unknown, fault));
        }
        let fields = fields_of(&response);
        response.extensions_mut().insert(fields);
        if is_listing {
            return read_page(response).await;
        }
        Ok(response)
    }
}

/// Whether a request is for a page of a listing: of S3 and Google, or of Azure.
fn is_listing(query: &str) -> bool {
    let mut pairs = query.split('&');
    pairs.any(|it| it.starts_with("list-type=") || it == "comp=list")
}

/// Reads a page of a listing, which `object_store` has in memory as a whole.
async fn read_page(response: HttpResponse) -> Result<HttpResponse, HttpError> {
    let (parts, body) = response.into_parts();
    let mut stream = body.bytes_stream();
    let mut page = Vec::new();
    while let Some(bytes) = stream.next().await {
        page.extend_from_slice(&bytes?);
        if page.len() > PAGE_BYTES_MAX {
            let text = format!("the origin sends more than {PAGE_BYTES_MAX} bytes as a page");
            let fault = Fault::new(Kind::Protocol, text);
            return Err(HttpError::new(HttpErrorKind::Unknown, fault));
        }
    }
    Ok(HttpResponse::from_parts(parts, page.into()))
}

impl HttpService for Observed {
    fn call<'life, 'future>(
        &'life self,
        request: HttpRequest,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'future>>
    where
        'life: 'future,
        Self: 'future,
    {
        Box::pin(self.observe(request))
    }
}

fn is_metadata(host: &str) -> bool {
    host.starts_with("169.254.") || host == "metadata.google.internal" || host.contains("fd00:ec2:")
}

fn fields_of(response: &HttpResponse) -> Fields {
    let headers = response.headers();
    let mut found = Vec::new();
    for name in FIELDS {
        if let Some(Ok(value)) = headers.get(name).map(HeaderValue::to_str) {
            found.push((name, value.to_owned()));
        }
    }
    for value in headers
        .get_all(REPEATED)
        .iter()
        .filter_map(|it| it.to_str().ok())
    {
        found.push((REPEATED, value.to_owned()));
    }
    Fields(found)
}

/// S3's code for an object in an archive.
const ARCHIVED: &str = "InvalidObjectState";

/// What a reply of 400 and above means.
async fn refusal(response: HttpResponse, stall: Duration) -> Fault {
    let status = response.status().as_u16();
    let retry_after = response.headers().get("retry-after");
    let retry_after = retry_after
        .and_then(|it| it.to_str().ok())
        .and_then(retry_after_ms);
    let length = response.headers().get("content-length");
    let length = length.and_then(|it| it.to_str().ok()?.parse::<usize>().ok());
    let code = if length.is_some_and(|it| it <= BODY_BYTES_MAX) {
        let body = tokio::time::timeout(stall, response.into_body().bytes()).await;
        body.ok()
            .and_then(Result::ok)
            .and_then(|body| code_of(&String::from_utf8_lossy(&body)))
    } else {
        None
    };
    let mut fault = Fault::new(
        kind_of(status, code.as_deref()),
        said(status, code.as_deref()),
    );
    fault.retry_after_ms = retry_after;
    fault
}

fn kind_of(status: u16, code: Option<&str>) -> Kind {
    match (status, code) {
        // S3 has 400 for these.
        (400, Some("ExpiredToken" | "InvalidToken" | "TokenRefreshRequired")) | (401 | 407, _) => {
            Kind::Denied
        }
        // Nobody's credentials help.
        (403, Some(ARCHIVED)) => Kind::Status,
        (403, _) => Kind::Denied,
        // Not of an object: nothing there is known to be gone.
        (404, Some("NoSuchBucket" | "ContainerNotFound")) => Kind::Status,
        (404 | 410, _) => Kind::Absent,
        (412, _) => Kind::Changed,
        (429 | 503, _) => Kind::Throttled,
        (500.., _) => Kind::Server,
        _ => Kind::Status,
    }
}

fn said(status: u16, code: Option<&str>) -> String {
    let shown = code.map_or_else(String::new, |code| format!(" ({code})"));
    let remedy = match (status, code) {
        (403, Some(ARCHIVED)) => "; it is archived: restore it at the origin",
        (401 | 403, _) => "; see the credentials: they are read again before the next attempt",
        _ => "",
    };
    format!("the origin says {status}{shown}{remedy}")
}

/// The code of an error of S3, Google or Azure: a word, and nothing else of the body.
fn code_of(body: &str) -> Option<String> {
    let (_, rest) = body.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let is_word =
        !code.is_empty() && code.len() <= 64 && code.bytes().all(|it| it.is_ascii_alphanumeric());
    is_word.then(|| code.to_owned())
}

/// Seconds, or a date.
fn retry_after_ms(text: &str) -> Option<u64> {
    if let Ok(seconds) = text.trim().parse::<u64>() {
        return Some(seconds.saturating_mul(1000));
    }
    let date = chrono::DateTime::parse_from_rfc2822(text.trim()).ok()?;
    let left = date.timestamp_millis() - chrono::Utc::now().timestamp_millis();
    Some(u64::try_from(left).unwrap_or(0))
}

/// What an error of `object_store` means, in a line without the request's address.
pub(super) fn fault_of(what: &str, error: &object_store::Error) -> Fault {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    let mut kind = match error {
        object_store::Error::NotFound { .. } => Kind::Absent,
        object_store::Error::Precondition { .. } => Kind::Changed,
        object_store::Error::PermissionDenied { .. }
        | object_store::Error::Unauthenticated { .. } => Kind::Denied,
        _ => Kind::Protocol,
    };
    while let Some(error) = next {
        if let Some(fault) = error.downcast_ref::<Fault>() {
            let mut fault = fault.clone();
            fault.text = format!("{what}: {}", fault.text);
            return fault;
        }
        if let Some(error) = error.downcast_ref::<reqwest::Error>() {
            kind = if error.is_redirect() {
                Kind::Redirects
            } else if error.is_connect() {
                Kind::Connect
            } else if error.is_timeout() {
                Kind::Stalled
            } else {
                Kind::Broken
            };
        }
        if kind == Kind::Protocol && error.downcast_ref::<std::io::Error>().is_some() {
            kind = Kind::Local;
        }
        next = error.source();
    }
    // Of whoever gives credentials the text has only an address.
    if error.to_string().contains("169.254.") {
        let text =
            "no credentials in the environment or a file, and the instance's metadata has none";
        return Fault::new(Kind::Denied, format!("{what}: {text}"));
    }
    let reason = innermost(error);
    if reason.starts_with("Received redirect without LOCATION") {
        let text = format!("{what}: the origin is elsewhere: see `region` and `endpoint`");
        return Fault::new(Kind::Redirects, text);
    }
    Fault::new(kind, format!("{what}: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_its_kind_by_status_and_code() {
        for (status, code, kind) in [
            (400, Some("ExpiredToken"), Kind::Denied),
            (400, None, Kind::Status),
            (401, None, Kind::Denied),
            (403, Some("AccessDenied"), Kind::Denied),
            (403, Some("InvalidObjectState"), Kind::Status),
            (404, None, Kind::Absent),
            (404, Some("NoSuchKey"), Kind::Absent),
            (404, Some("NoSuchBucket"), Kind::Status),
            (412, None, Kind::Changed),
            (416, None, Kind::Status),
            (429, None, Kind::Throttled),
            (500, None, Kind::Server),
            (503, Some("SlowDown"), Kind::Throttled),
            (599, None, Kind::Server),
        ] {
            assert_eq!(kind_of(status, code), kind, "{status}");
        }
        let body = "<Error><Code>ExpiredToken</Code><AWSAccessKeyId>AKIA</AWSAccessKeyId></Error>";
        let code = code_of(body);
        let text = said(403, code.as_deref());
        assert!(
            text.contains("403 (ExpiredToken)") && !text.contains("AKIA"),
            "{text}"
        );
        assert_eq!(code_of("<Code>a b</Code>"), None);
        assert!(said(403, Some("InvalidObjectState")).contains("restore it"));
    }

    #[test]
    fn a_redirect_may_lead_to_the_same_host_and_to_tls_there() {
        let is_same =
            |from: &str, to: &str| is_same_host(&from.parse().unwrap(), &to.parse().unwrap());
        assert!(is_same("https://a/b", "https://a:443/c"));
        assert!(is_same("http://a/b", "https://a/b"));
        for (from, to) in [
            ("https://a/b", "https://b/b"),
            ("https://a/b", "https://a.b/b"),
            ("https://a/b", "http://a/b"),
            ("https://a/b", "https://a:8443/b"),
            ("http://a:81/b", "https://a/b"),
        ] {
            assert!(!is_same(from, to), "{from} {to}");
        }
    }

    #[test]
    fn listings_are_told_from_objects() {
        assert!(is_listing("list-type=2&prefix=a"));
        assert!(is_listing("restype=container&comp=list"));
        assert!(!is_listing("sv=2024&sig=list-type=2"));
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        assert_eq!(retry_after_ms("120"), Some(120_000));
        assert_eq!(retry_after_ms("Fri, 31 Dec 1999 23:59:59 GMT"), Some(0));
        let later = chrono::Utc::now() + chrono::TimeDelta::seconds(90);
        let left = retry_after_ms(&later.to_rfc2822()).unwrap();
        assert!((80_000..=90_000).contains(&left), "{left}");
        assert_eq!(retry_after_ms("soon"), None);
    }
}
