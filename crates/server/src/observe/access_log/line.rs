//! The lines of the access log: one for each request, in the combined log format of nginx and Apache, or as JSON.
//!
//! ```text
//! 192.0.2.7 - - [22/Nov/2026:09:40:03 +0000] "GET /film.mp4 HTTP/1.1" 206 65536 "-" "curl/8.5.0"
//! {"id":"5e3f...","peer":"192.0.2.7","method":"GET","target":"/film.mp4","protocol":"HTTP/1.1","status":206,...
//! ```
//!
//! What clients choose is escaped, so that it is one field on one line: by `\xHH` as nginx does it, or as JSON, in
//! which bytes that are no UTF-8 become U+FFFD. Bound: [`FIELD_BYTES_MAX`] of each field that clients choose.

use std::io::Write as _;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use http::Cmcd;
use record::Version;
use session::{LoggedRequest, ReplyEnd};

/// Most bytes written of a request line, a referer, a user agent or a host, escapes of the combined format included.
/// The rest is left out.
pub(super) const FIELD_BYTES_MAX: usize = 16_384;

const HEX: &[u8; 16] = b"0123456789ABCDEF";
/// What a line of JSON takes beside what the client chose: names, numbers, times.
const JSON_FRAME_BYTES: usize = 512;
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

/// What a line of JSON may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Field {
    Id,
    Peer,
    Method,
    Target,
    Protocol,
    Host,
    Status,
    Referer,
    UserAgent,
    Tls,
    TlsResumed,
    Cmcd,
    BodyBytes,
    SentBytes,
    RetransmittedBytes,
    FirstByte,
    LastByte,
    Rtt,
    Time,
}

impl Field {
    /// By their numbers.
    const ALL: [(&'static str, Self); 19] = [
        ("id", Self::Id),
        ("peer", Self::Peer),
        ("method", Self::Method),
        ("target", Self::Target),
        ("protocol", Self::Protocol),
        ("host", Self::Host),
        ("status", Self::Status),
        ("referer", Self::Referer),
        ("user_agent", Self::UserAgent),
        ("tls", Self::Tls),
        ("tls_resumed", Self::TlsResumed),
        ("cmcd", Self::Cmcd),
        ("body_bytes", Self::BodyBytes),
        ("sent_bytes", Self::SentBytes),
        ("retransmitted_bytes", Self::RetransmittedBytes),
        ("first_byte_seconds", Self::FirstByte),
        ("last_byte_seconds", Self::LastByte),
        ("rtt_seconds", Self::Rtt),
        ("time", Self::Time),
    ];
}

/// The fields that lines of JSON have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fields(u32);

impl Default for Fields {
    fn default() -> Self {
        Self(u32::MAX)
    }
}

impl Fields {
    /// Those of these names.
    ///
    /// # Errors
    /// A name that no field has.
    pub(crate) fn from_names(names: &[String]) -> Result<Self, &str> {
        let mut fields = Self(0);
        for name in names {
            let mut all = Field::ALL.into_iter();
            let (_, field) = all.find(|(known, _)| known == name).ok_or(name.as_str())?;
            fields.0 |= 1 << field as u32;
        }
        Ok(fields)
    }

    /// The names there are, for whoever wrote another.
    pub(crate) fn known() -> String {
        Field::ALL.map(|(name, _)| name).join(", ")
    }

    const fn has(self, field: Field) -> bool {
        self.0 & 1 << field as u32 != 0
    }
}

/// Which requests have lines, and how they are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LogStyle {
    /// How a line is written.
    pub format: Format,
    /// What lines of JSON have.
    pub fields: Fields,
    /// Of so many requests with a status below 400 one has a line. At least 1.
    pub sample: u32,
}

impl Default for LogStyle {
    fn default() -> Self {
        Self {
            format: Format::default(),
            fields: Fields::default(),
            sample: 1,
        }
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
    /// Further members, if they are among these.
    Json(Fields),
}

impl Line {
    /// The beginning of a line, as it is when its reply begins. `id` is the request's; the line is written to `room`,
    /// which is empty.
    pub(super) fn new(
        style: LogStyle,
        request: &LoggedRequest<'_>,
        id: u64,
        room: Vec<u8>,
    ) -> Self {
        match style.format {
            Format::Combined => Self::combined(request, room),
            Format::Json => Self::json(style.fields, request, id, room),
        }
    }

    fn combined(request: &LoggedRequest<'_>, mut line: Vec<u8>) -> Self {
        let text = &request.text;
        let fields = [
            Some(text.request_line).filter(|line| !line.is_empty()),
            text.referer,
            text.user_agent,
        ];
        let room: usize = fields.iter().flatten().map(|field| field.len()).sum();
        line.reserve(FRAME_BYTES_MAX + room);
        push_address(&mut line, request.peer);
        line.extend_from_slice(b" - - [");
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

    fn json(fields: Fields, request: &LoggedRequest<'_>, id: u64, mut line: Vec<u8>) -> Self {
        let text = &request.text;
        let chosen = [
            Some(text.request_line),
            text.host,
            text.referer,
            text.user_agent,
        ];
        let room: usize = chosen.iter().flatten().map(|text| text.len()).sum();
        line.reserve(JSON_FRAME_BYTES + room);
        line.push(b'{');
        let mut members = Members {
            line: &mut line,
            fields,
        };
        members.id(Field::Id, id);
        if let Some(line) = members.begin(Field::Peer) {
            line.push(b'"');
            push_address(line, request.peer);
            line.push(b'"');
        }
        let mut words = text.request_line.split(|&byte| byte == b' ');
        let three = [words.next(), words.next(), words.next()];
        if let ([Some(method), Some(target), Some(protocol)], None) = (three, words.next()) {
            members.text(Field::Method, Some(method));
            members.text(Field::Target, Some(target));
            members.text(Field::Protocol, Some(protocol));
        } else if fields.has(Field::Target) {
            members.begin_named("request");
            push_json(members.line, text.request_line);
        }
        members.text(Field::Host, text.host);
        members.number(Field::Status, request.status.into());
        members.text(Field::Referer, text.referer);
        members.text(Field::UserAgent, text.user_agent);
        if let Some(tls) = request.tls {
            let version: &[u8] = match tls.version {
                Version::Tls12 => b"1.2",
                Version::Tls13 => b"1.3",
            };
            members.text(Field::Tls, Some(version));
            if let Some(line) = members.begin(Field::TlsResumed) {
                let text: &[u8] = if tls.is_resumed { b"true" } else { b"false" };
                line.extend_from_slice(text);
            }
        }
        if let Some(cmcd) = request.cmcd {
            members.cmcd(cmcd);
        }
        Self {
            text: line,
            end: End::Json(fields),
        }
    }

    /// What it takes, bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.text.capacity()
    }

    /// The memory that it was written to.
    pub(super) fn into_room(self) -> Vec<u8> {
        self.text
    }

    /// The whole line, when its reply has ended, `now`.
    pub(super) fn finish(self, now: SystemTime, times: &mut TimeText, reply: &ReplyEnd) -> Vec<u8> {
        let Self { mut text, end } = self;
        match end {
            End::Combined { time_at, length_at } => {
                if let Some(place) = text.get_mut(time_at..time_at + TIME_BYTES) {
                    place.copy_from_slice(times.combined(now));
                }
                let mut digits = [0; NUMBER_BYTES_MAX];
                let digits = decimal(reply.body_bytes, &mut digits);
                text.splice(length_at..length_at, digits.iter().copied());
            }
            End::Json(fields) => {
                let line = &mut text;
                let mut members = Members { line, fields };
                members.number(Field::BodyBytes, reply.body_bytes);
                members.number(Field::SentBytes, reply.stream_bytes);
                members.number(Field::RetransmittedBytes, reply.retransmitted_bytes);
                members.seconds(Field::FirstByte, reply.first_byte);
                members.seconds(Field::LastByte, Some(reply.last_byte));
                members.seconds(Field::Rtt, reply.smoothed_rtt);
                if let Some(line) = members.begin(Field::Time) {
                    line.push(b'"');
                    times.push_rfc3339(now, line);
                    line.push(b'"');
                }
                text.extend_from_slice(b"}\n");
            }
        }
        text
    }
}

/// Adds members to a JSON object.
struct Members<'a> {
    line: &'a mut Vec<u8>,
    fields: Fields,
}

impl Members<'_> {
    /// Begins a member of this name: its value follows.
    fn begin_named(&mut self, name: &str) {
        if self.line.last() != Some(&b'{') {
            self.line.push(b',');
        }
        self.line.push(b'"');
        self.line.extend_from_slice(name.as_bytes());
        self.line.extend_from_slice(b"\":");
    }

    /// Begins the member of a field that was chosen; its value goes to what is returned.
    fn begin(&mut self, field: Field) -> Option<&mut Vec<u8>> {
        if !self.fields.has(field) {
            return None;
        }
        let (name, _) = Field::ALL[field as usize];
        self.begin_named(name);
        Some(self.line)
    }

    fn text(&mut self, field: Field, value: Option<&[u8]>) {
        if let Some(value) = value
            && let Some(line) = self.begin(field)
        {
            push_json(line, value);
        }
    }

    fn number(&mut self, field: Field, number: u64) {
        if let Some(line) = self.begin(field) {
            line.extend_from_slice(decimal(number, &mut [0; NUMBER_BYTES_MAX]));
        }
    }

    fn seconds(&mut self, field: Field, time: Option<Duration>) {
        if let Some(time) = time
            && let Some(line) = self.begin(field)
        {
            line.extend_from_slice(decimal(time.as_secs(), &mut [0; NUMBER_BYTES_MAX]));
            line.push(b'.');
            push_fraction(line, time.subsec_micros(), 6);
        }
    }

    fn id(&mut self, field: Field, id: u64) {
        if let Some(line) = self.begin(field) {
            let digits = id.to_be_bytes().map(|byte| [byte >> 4, byte & 15]);
            let digits = digits.as_flattened().iter();
            line.push(b'"');
            line.extend(digits.map(|digit| HEX[usize::from(*digit)].to_ascii_lowercase()));
            line.push(b'"');
        }
    }

    fn cmcd(&mut self, cmcd: &Cmcd) {
        let Some(line) = self.begin(Field::Cmcd) else {
            return;
        };
        line.push(b'{');
        let mut members = Members {
            line,
            fields: Fields::default(),
        };
        members.begin_named("bs");
        let starved: &[u8] = if cmcd.is_starved { b"true" } else { b"false" };
        members.line.extend_from_slice(starved);
        let numbers = [
            ("bl", cmcd.buffer_ms),
            ("mtp", cmcd.throughput_kbps),
            ("br", cmcd.bitrate_kbps),
        ];
        for (name, number) in numbers {
            if let Some(number) = number {
                members.begin_named(name);
                let mut digits = [0; NUMBER_BYTES_MAX];
                let digits = decimal(number.into(), &mut digits);
                members.line.extend_from_slice(digits);
            }
        }
        if let Some(session) = &cmcd.session {
            members.begin_named("sid");
            push_json(members.line, session.as_bytes());
        }
        members.line.push(b'}');
    }
}

/// An address as text.
fn push_address(line: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            for (index, octet) in address.octets().into_iter().enumerate() {
                if index > 0 {
                    line.push(b'.');
                }
                line.extend_from_slice(decimal(octet.into(), &mut [0; NUMBER_BYTES_MAX]));
            }
        }
        IpAddr::V6(address) => {
            // Writing into memory cannot fail.
            let _ = write!(line, "{address}");
        }
    }
}

/// A value as JSON text. Most are plain, and copied as they are.
fn push_json(line: &mut Vec<u8>, value: &[u8]) {
    let value = value.get(..FIELD_BYTES_MAX).unwrap_or(value);
    let is_plain = |&byte: &u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
    if value.iter().all(is_plain) {
        line.push(b'"');
        line.extend_from_slice(value);
        line.push(b'"');
    } else {
        // Writing a text into memory cannot fail.
        let _ = serde_json::to_writer(line, &String::from_utf8_lossy(value));
    }
}

/// A number with leading zeros, so that it has `digits`.
fn push_fraction(line: &mut Vec<u8>, number: u32, digits: usize) {
    let mut room = [0; NUMBER_BYTES_MAX];
    let text = decimal(number.into(), &mut room);
    line.extend(std::iter::repeat_n(b'0', digits.saturating_sub(text.len())));
    line.extend_from_slice(text);
}

/// What clients wrote, so that it is one field on one line, as nginx escapes it: quotes,
/// backslashes, control characters and whatever is not ASCII become `\xHH`. What is not there is
/// `-`.
pub(super) fn push_escaped(line: &mut Vec<u8>, field: Option<&[u8]>) {
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
    fn push_rfc3339(&mut self, time: SystemTime, line: &mut Vec<u8>) {
        let since = self.make(time);
        line.extend_from_slice(self.rfc3339.as_bytes());
        line.push(b'.');
        push_fraction(line, since.subsec_millis(), 3);
        line.push(b'Z');
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
