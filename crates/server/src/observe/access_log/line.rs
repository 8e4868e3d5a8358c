//! The lines of the access log: one for each request, in the combined log format of nginx and Apache, or as JSON.
//!
//! ```text
//! 192.0.2.7 - - [22/Nov/2026:09:40:03 +0000] "GET /film.mp4 HTTP/1.1" 206 65536 "-" "curl/8.5.0"
//! {"peer":"192.0.2.7","method":"GET","target":"/film.mp4","protocol":"HTTP/1.1","host":"a.example","status":206,...
//! ```
//!
//! What clients choose is escaped, so that it is one field on one line: by `\xHH` as nginx does it, or as JSON, in
//! which bytes that are no UTF-8 become U+FFFD. Bound: [`FIELD_BYTES_MAX`] of each field that clients choose.

use std::io::Write as _;
use std::time::{Duration, SystemTime};

use session::LoggedRequest;

/// Most bytes written of a request line, a referer, a user agent or a host, escapes of the combined format included.
/// The rest is left out.
pub(super) const FIELD_BYTES_MAX: usize = 16_384;

/// `22/Nov/2026:09:40:03 +0000`
const TIME_BYTES: usize = 26;
/// Decimal digits of the largest number.
const NUMBER_BYTES_MAX: usize = 20;
/// An address, and what stands between the fields, at most.
const FRAME_BYTES_MAX: usize = 46 + TIME_BYTES + NUMBER_BYTES_MAX + 32;

/// How a line is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Format {
    /// As nginx and Apache have it.
    #[default]
    Combined,
    /// A JSON object.
    Json,
}

impl Format {
    const ALL: [(&'static str, Self); 2] = [("combined", Self::Combined), ("json", Self::Json)];

    /// The one of this name.
    #[must_use]
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find_map(|(known, format)| (known == name).then_some(format))
    }

    /// Its name.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        let mut all = Self::ALL.into_iter();
        let named = all.find_map(|(name, format)| (format == self).then_some(name));
        named.unwrap_or_default()
    }
}

/// A line of which the end of the reply is still missing.
#[derive(Debug)]
pub(super) struct Line {
    text: Vec<u8>,
    end: End,
}

/// What the end of the reply adds.
#[derive(Debug)]
enum End {
    /// A time in a place that is kept free, and a length.
    Combined { time_at: usize, length_at: usize },
    /// Further members, of a request that was answered from then on.
    Json { began: SystemTime },
}

impl Line {
    /// The beginning of a line, as it is when its reply begins, `now`.
    pub(super) fn new(format: Format, request: &LoggedRequest<'_>, now: SystemTime) -> Self {
        match format {
            Format::Combined => Self::combined(request),
            Format::Json => Self::json(request, now),
        }
    }

    fn combined(request: &LoggedRequest<'_>) -> Self {
        let text = &request.text;
        let fields = [
            Some(text.request_line).filter(|line| !line.is_empty()),
            text.referer,
            text.user_agent,
        ];
        let room: usize = fields.iter().flatten().map(|field| field.len()).sum();
        let mut line = Vec::with_capacity(FRAME_BYTES_MAX + room);
        let _ = write!(line, "{} - - [", request.peer);
        let time_at = line.len();
        line.extend_from_slice(&[0; TIME_BYTES]);
        line.extend_from_slice(b"] \"");
        push_escaped(&mut line, fields[0]);
        let _ = write!(line, "\" {} ", request.status);
        let length_at = line.len();
        line.extend_from_slice(b" \"");
        push_escaped(&mut line, fields[1]);
        line.extend_from_slice(b"\" \"");
        push_escaped(&mut line, fields[2]);
        line.extend_from_slice(b"\"\n");
        Self {
            text: line,
            end: End::Combined { time_at, length_at },
        }
    }

    fn json(request: &LoggedRequest<'_>, began: SystemTime) -> Self {
        let text = &request.text;
        let mut line = Vec::with_capacity(512);
        let _ = write!(line, "{{\"peer\":\"{}\"", request.peer);
        let words: Vec<&[u8]> = text.request_line.split(|&byte| byte == b' ').collect();
        if let [method, target, protocol] = words.as_slice() {
            push_member(&mut line, "method", Some(method));
            push_member(&mut line, "target", Some(target));
            push_member(&mut line, "protocol", Some(protocol));
        } else {
            push_member(&mut line, "request", Some(text.request_line));
        }
        push_member(&mut line, "host", text.host);
        let _ = write!(line, ",\"status\":{}", request.status);
        push_member(&mut line, "referer", text.referer);
        push_member(&mut line, "user_agent", text.user_agent);
        Self {
            text: line,
            end: End::Json { began },
        }
    }

    /// What it takes, bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.text.capacity()
    }

    /// The whole line, when its reply has ended, `now`.
    pub(super) fn finish(self, now: SystemTime, times: &mut TimeText, body_bytes: u64) -> Vec<u8> {
        let Self { mut text, end } = self;
        match end {
            End::Combined { time_at, length_at } => {
                if let Some(place) = text.get_mut(time_at..time_at + TIME_BYTES) {
                    place.copy_from_slice(times.combined(now));
                }
                let mut digits = [0; NUMBER_BYTES_MAX];
                let digits = decimal(body_bytes, &mut digits);
                text.splice(length_at..length_at, digits.iter().copied());
            }
            End::Json { began } => {
                // The clock may have been set back.
                let took = now.duration_since(began).unwrap_or_default();
                let (seconds, micros) = (took.as_secs(), took.subsec_micros());
                let _ = writeln!(
                    text,
                    ",\"body_bytes\":{body_bytes},\"reply_seconds\":{seconds}.{micros:06},\"time\":\"{}\"}}",
                    times.rfc3339(now)
                );
            }
        }
        text
    }
}

/// A member of a JSON object, unless there is no value.
fn push_member(line: &mut Vec<u8>, name: &str, value: Option<&[u8]>) {
    let Some(value) = value else { return };
    let value = value.get(..FIELD_BYTES_MAX).unwrap_or(value);
    let _ = write!(line, ",\"{name}\":");
    // Writing a text into memory cannot fail.
    let _ = serde_json::to_writer(&mut *line, &String::from_utf8_lossy(value));
}

/// What clients wrote, so that it is one field on one line, as nginx escapes it: quotes,
/// backslashes, control characters and whatever is not ASCII become `\xHH`. What is not there is
/// `-`.
pub(super) fn push_escaped(line: &mut Vec<u8>, field: Option<&[u8]>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let Some(field) = field else {
        line.push(b'-');
        return;
    };
    let end = line.len() + FIELD_BYTES_MAX;
    for &byte in field {
        let is_plain = matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
        let length = if is_plain { 1 } else { 4 };
        if line.len() + length > end {
            return;
        }
        if is_plain {
            line.push(byte);
        } else {
            let (high, low) = (usize::from(byte >> 4), usize::from(byte & 15));
            line.extend_from_slice(&[b'\\', b'x', HEX[high], HEX[low]]);
        }
    }
}

fn decimal(mut number: u64, digits: &mut [u8; NUMBER_BYTES_MAX]) -> &[u8] {
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + u8::try_from(number % 10).expect("invariant: a digit");
        number /= 10;
        if number == 0 {
            return &digits[start..];
        }
    }
}

/// Times as lines have them, made once a second.
#[derive(Debug)]
pub(super) struct TimeText {
    unix_seconds: Option<u64>,
    combined: [u8; TIME_BYTES],
    /// `2026-11-22T09:40:03`
    rfc3339: String,
}

impl Default for TimeText {
    fn default() -> Self {
        Self {
            unix_seconds: None,
            combined: [b'-'; TIME_BYTES],
            rfc3339: String::new(),
        }
    }
}

impl TimeText {
    /// Unix seconds of 9999-12-31 23:59:59, the last there is a text for.
    pub(super) const UNIX_SECONDS_MAX: u64 = 253_402_300_799;

    /// In UTC, like the `Date` of the reply: a log of several hosts needs no thought then.
    pub(super) fn combined(&mut self, time: SystemTime) -> &[u8; TIME_BYTES] {
        self.make(time);
        &self.combined
    }

    /// RFC 3339, with milliseconds.
    fn rfc3339(&mut self, time: SystemTime) -> String {
        let since = self.make(time);
        format!("{}.{:03}Z", self.rfc3339, since.subsec_millis())
    }

    /// Makes the texts of that second; the time since 1970.
    fn make(&mut self, time: SystemTime) -> Duration {
        let since = time.duration_since(SystemTime::UNIX_EPOCH);
        let since = since.unwrap_or_default();
        let since = since.min(Duration::from_secs(Self::UNIX_SECONDS_MAX));
        let seconds = since.as_secs();
        if self.unix_seconds.replace(seconds) != Some(seconds) {
            const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            // `Sun, 22 Nov 2026 09:40:03 GMT`
            let date = httpdate::fmt_http_date(time);
            let (day, month, year, clock) =
                (&date[5..7], &date[8..11], &date[12..16], &date[17..25]);
            let text = format!("{day}/{month}/{year}:{clock} +0000");
            self.combined.copy_from_slice(text.as_bytes());
            let number = MONTHS.find(month).unwrap_or_default() / 3 + 1;
            self.rfc3339 = format!("{year}-{number:02}-{day}T{clock}");
        }
        since
    }
}
