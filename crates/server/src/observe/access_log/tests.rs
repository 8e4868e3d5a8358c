use std::io::Read as _;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, symlink};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, SystemTime};

use http::HeadText;
use record::Version;
use session::{LoggedRequest, ReplyEnd, RequestLog as _, RequestName, TlsSession};

use super::line::{FIELD_BYTES_MAX, push_escaped};
use super::{
    AccessLog, AccessLogTarget, Fields, Format, Line, LogStyle, PENDING_BYTES_MAX, QUEUE, TimeText,
};
use crate::observe::output::tests::LONG;
use crate::observe::output::{Output, Target};
use crate::start::files::tests::make_fifo;

struct Lines(Sender<Vec<u8>>);

impl Target for Lines {
    fn write_lines(&mut self, lines: &[u8]) -> std::io::Result<()> {
        self.0.send(lines.to_vec()).map_err(std::io::Error::other)
    }
}

fn noon() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_340_403)
}

fn log() -> (AccessLog, Receiver<Vec<u8>>) {
    log_of(Format::Combined)
}

fn log_of(format: Format) -> (AccessLog, Receiver<Vec<u8>>) {
    log_in(LogStyle {
        format,
        ..LogStyle::default()
    })
}

fn log_in(style: LogStyle) -> (AccessLog, Receiver<Vec<u8>>) {
    let (sender, lines) = channel();
    let output = Output::spawn("test", QUEUE, Lines(sender)).unwrap();
    (AccessLog::new(Arc::new(output), style, noon), lines)
}

/// Of so many bytes, and no other news.
fn end(body_bytes: u64) -> ReplyEnd {
    ReplyEnd {
        body_bytes,
        ..ReplyEnd::default()
    }
}

fn request<'a>(peer: &str, head: &'a [u8]) -> LoggedRequest<'a> {
    LoggedRequest {
        peer: peer.parse::<IpAddr>().unwrap(),
        status: 200,
        text: HeadText::find(head),
        tls: None,
        cmcd: None,
    }
}

fn line(peer: &str, head: &[u8], body_bytes: u64) -> String {
    line_of(Format::Combined, peer, head, body_bytes)
}

fn line_of(format: Format, peer: &str, head: &[u8], body_bytes: u64) -> String {
    let (mut log, lines) = log_of(format);
    let name = log.begin(&request(peer, head)).unwrap();
    log.end(name, &end(body_bytes));
    String::from_utf8(lines.recv_timeout(LONG).unwrap()).unwrap()
}

#[test]
fn a_line_has_the_combined_format() {
    let head = b"GET /a%20b?c HTTP/1.1\r\nReferer: http://x/\r\nUser-Agent: curl/8.5.0 (x)\r\n\r\n";
    assert_eq!(
        line("192.0.2.7", head, 65_536),
        "192.0.2.7 - - [22/Nov/2026:09:40:03 +0000] \"GET /a%20b?c HTTP/1.1\" 200 65536 \
         \"http://x/\" \"curl/8.5.0 (x)\"\n"
    );
    assert_eq!(
        line("2001:db8::1", b"", u64::MAX),
        format!(
            "2001:db8::1 - - [22/Nov/2026:09:40:03 +0000] \"-\" 200 {} \"-\" \"-\"\n",
            u64::MAX
        )
    );
}

#[test]
fn a_line_of_json_has_what_a_machine_reads() {
    let head = b"GET /a%20b?c HTTP/1.1\r\nHost: a.example\r\nReferer: http://x/\r\n\
        User-Agent: \"\\\x01\xc3\xa9\xff\r\n\r\n";
    let line = line_of(Format::Json, "2001:db8::1", head, u64::MAX);
    assert!(
        line.ends_with("}\n") && line.matches('\n').count() == 1,
        "{line}"
    );
    let json: serde_json::Value = serde_json::from_str(&line).unwrap();
    for (name, value) in [
        ("peer", "2001:db8::1"),
        ("method", "GET"),
        ("target", "/a%20b?c"),
        ("protocol", "HTTP/1.1"),
        ("host", "a.example"),
        ("referer", "http://x/"),
        ("user_agent", "\"\\\u{1}é\u{fffd}"),
        ("time", "2026-11-22T09:40:03.000Z"),
    ] {
        assert_eq!(json[name], value, "{line}");
    }
    assert_eq!(
        (json["status"].as_u64(), json["body_bytes"].as_u64()),
        (Some(200), Some(u64::MAX))
    );
    for absent in [
        "tls",
        "tls_resumed",
        "cmcd",
        "first_byte_seconds",
        "rtt_seconds",
    ] {
        assert_eq!(json.get(absent), None, "{line}");
    }
    assert_eq!(json.get("request"), None);
    let odd: serde_json::Value =
        serde_json::from_str(&line_of(Format::Json, "192.0.2.7", b"GET /", 0)).unwrap();
    assert_eq!(odd["request"], "GET /");
    assert_eq!((odd.get("host"), odd.get("method")), (None, None));
}

#[test]
fn the_end_of_a_reply_tells_times_and_bytes() {
    let cmcd = http::Cmcd {
        is_starved: true,
        buffer_ms: Some(2_100),
        session: Some("a\"b".into()),
        ..http::Cmcd::default()
    };
    let request = LoggedRequest {
        tls: Some(TlsSession {
            version: Version::Tls13,
            is_resumed: true,
        }),
        cmcd: Some(&cmcd),
        ..request("192.0.2.7", b"GET / HTTP/1.1\r\n\r\n")
    };
    let end = ReplyEnd {
        body_bytes: 1,
        stream_bytes: 200,
        retransmitted_bytes: 30,
        first_byte: Some(Duration::from_micros(45)),
        last_byte: Duration::from_micros(61_002_003),
        smoothed_rtt: Some(Duration::from_millis(20)),
    };
    let style = LogStyle {
        format: Format::Json,
        ..LogStyle::default()
    };
    let line = Line::new(style, &request, 0xabc, Vec::new());
    let now = noon() + Duration::from_millis(7);
    let line = line.finish(now, &mut TimeText::default(), &end);
    let line = String::from_utf8(line).unwrap();
    let tail = ",\"tls\":\"1.3\",\"tls_resumed\":true,\
        \"cmcd\":{\"bs\":true,\"bl\":2100,\"sid\":\"a\\\"b\"},\
        \"body_bytes\":1,\"sent_bytes\":200,\"retransmitted_bytes\":30,\"first_byte_seconds\":0.000045,\
        \"last_byte_seconds\":61.002003,\"rtt_seconds\":0.020000,\"time\":\"2026-11-22T09:40:03.007Z\"}\n";
    assert!(line.ends_with(tail), "{line}");
    assert!(
        line.starts_with("{\"id\":\"0000000000000abc\",\"peer\":"),
        "{line}"
    );
}

#[test]
fn lines_of_json_have_the_fields_that_were_chosen() {
    let names = |names: &[&str]| {
        names
            .iter()
            .map(|&name| name.to_owned())
            .collect::<Vec<_>>()
    };
    let fields = Fields::from_names(&names(&["status", "time", "target"])).unwrap();
    let (mut log, lines) = log_in(LogStyle {
        format: Format::Json,
        fields,
        ..LogStyle::default()
    });
    for head in [&b"GET /a HTTP/1.1\r\n\r\n"[..], b"GET /a\r\n\r\n"] {
        let name = log.begin(&request("192.0.2.7", head)).unwrap();
        log.end(name, &end(1));
    }
    let line = || String::from_utf8(lines.recv_timeout(LONG).unwrap()).unwrap();
    let time = "\"time\":\"2026-11-22T09:40:03.000Z\"}\n";
    let expected = format!(
        "{{\"target\":\"/a\",\"status\":200,{time}{{\"request\":\"GET /a\",\"status\":200,{time}"
    );
    let mut seen = line();
    while seen.len() < expected.len() {
        seen += &line();
    }
    assert_eq!(seen, expected);
    let unknown = names(&["time", "size"]);
    assert_eq!(Fields::from_names(&unknown), Err("size"));
}

#[test]
fn of_so_many_successes_one_is_logged_and_of_errors_all() {
    let (mut log, _lines) = log_in(LogStyle {
        sample: 3,
        ..LogStyle::default()
    });
    let mut is_logged = |status| {
        let request = LoggedRequest {
            status,
            ..request("192.0.2.7", b"GET / HTTP/1.1\r\n\r\n")
        };
        let name = log.begin(&request);
        name.map(|name| log.end(name, &end(0))).is_some()
    };
    let statuses = [200, 206, 399, 404, 500, 400, 200, 304];
    let logged = statuses.map(&mut is_logged);
    assert_eq!(logged, [true, false, false, true, true, true, true, false]);
}

#[test]
fn fields_are_escaped_as_nginx_does() {
    let head = b"GET /\"\\\x7f\xc3\xa9~ HTTP/1.1\r\nUser-Agent: a\tb\x1f !\r\n\r\n";
    let line = line("192.0.2.7", head, 0);
    assert!(
        line.contains(r#" "GET /\x22\x5C\x7F\xC3\xA9~ HTTP/1.1" 200 0 "-" "a\x09b\x1F !""#),
        "{line}"
    );
    let all: Vec<u8> = (0..=255).filter(|byte| *byte != b'\n').collect();
    let line = self::line("192.0.2.7", &[b"x", &all[..], b"\n\n"].concat(), 0);
    assert!(line.is_ascii());
    assert_eq!(line.matches('\n').count(), 1);
    assert_eq!(line.matches('"').count(), 6);
}

#[test]
fn a_field_is_cut_at_its_bound() {
    let cut = |field: &[u8]| {
        let mut line = Vec::new();
        push_escaped(&mut line, Some(field));
        line
    };
    assert_eq!(cut(&[b'a'; FIELD_BYTES_MAX]).len(), FIELD_BYTES_MAX);
    assert_eq!(cut(&[b'a'; FIELD_BYTES_MAX + 1]).len(), FIELD_BYTES_MAX);
    assert_eq!(cut(&[0; FIELD_BYTES_MAX / 4]).len(), FIELD_BYTES_MAX);
    assert_eq!(cut(&[0; FIELD_BYTES_MAX / 4 + 1]).len(), FIELD_BYTES_MAX);
    // An escape is written whole or not at all.
    let odd = [&[b'a'; FIELD_BYTES_MAX - 3][..], &[0]].concat();
    assert_eq!(cut(&odd).len(), FIELD_BYTES_MAX - 3);
}

#[test]
fn a_line_is_one_allocation_unless_it_is_escaped() {
    let head = b"GET / HTTP/1.1\r\nReferer: a\r\nUser-Agent: b\r\n\r\n";
    let request = request("ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255", head);
    let line = Line::new(LogStyle::default(), &request, 0, Vec::new());
    let room = line.bytes();
    let whole = line.finish(noon(), &mut TimeText::default(), &end(u64::MAX));
    assert_eq!(whole.capacity(), room);
}

#[test]
fn requests_under_way_are_bounded_and_their_room_comes_back() {
    let (mut log, _lines) = log();
    let agent = [
        b"GET / HTTP/1.1\r\nUser-Agent: ",
        &[b'a'; 7000][..],
        b"\r\n\r\n",
    ]
    .concat();
    let request = request("192.0.2.7", &agent);
    let mut names: Vec<RequestName> = Vec::new();
    while let Some(name) = log.begin(&request) {
        names.push(name);
    }
    assert_eq!(log.output.dropped(), 1);
    let bytes = log.pending_bytes / names.len();
    assert!(log.pending_bytes <= PENDING_BYTES_MAX);
    assert!(log.pending_bytes + bytes > PENDING_BYTES_MAX);
    let name = names.pop().unwrap();
    log.end(name, &end(0));
    assert_eq!(log.begin(&request), Some(name), "names are used again");
    assert_eq!(log.begin(&request), None);
    names.push(name);
    for name in names {
        log.end(name, &end(0));
    }
    assert_eq!(log.pending_bytes, 0);
}

#[test]
fn the_time_is_formatted_once_a_second() {
    let mut text = TimeText::default();
    let mut at = |seconds, millis| {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(seconds * 1000 + millis);
        String::from_utf8(text.combined(time).to_vec()).unwrap()
    };
    assert_eq!(at(0, 0), "01/Jan/1970:00:00:00 +0000");
    assert_eq!(at(0, 999), "01/Jan/1970:00:00:00 +0000");
    assert_eq!(at(1_709_164_799, 0), "28/Feb/2024:23:59:59 +0000");
    assert_eq!(at(1_709_164_800, 0), "29/Feb/2024:00:00:00 +0000");
    assert_eq!(
        at(TimeText::UNIX_SECONDS_MAX, 0),
        "31/Dec/9999:23:59:59 +0000"
    );
    assert_eq!(
        at(TimeText::UNIX_SECONDS_MAX + 1, 0),
        "31/Dec/9999:23:59:59 +0000"
    );
    let before = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
    assert_eq!(&text.combined(before)[..11], b"01/Jan/1970");
}

#[test]
fn a_file_is_appended_to_and_opened_again_where_it_was() {
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("access.log");
    std::fs::write(&path, "before\n").unwrap();
    let mut open = AccessLogTarget::parse(path.clone()).open(None).unwrap();
    open.write_lines(b"1\n").unwrap();
    let moved = directory.path().join("access.log.1");
    std::fs::rename(&path, &moved).unwrap();
    open.write_lines(b"2\n").unwrap();
    open.reopen();
    open.write_lines(b"3\n").unwrap();
    assert_eq!(std::fs::read_to_string(&moved).unwrap(), "before\n1\n2\n");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "3\n");
    // A directory where the file was cannot be opened: the old file goes on.
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    open.reopen();
    open.write_lines(b"4\n").unwrap();
}

#[test]
fn a_file_that_cannot_be_written_is_refused_with_its_name() {
    let directory = tempfile::TempDir::new().unwrap();
    let target = AccessLogTarget::parse(directory.path().into());
    let refusal = target.open(None).unwrap_err().to_string();
    assert!(refusal.starts_with("--access-log /"), "{refusal}");
    assert!(
        refusal.contains("; name a file that can be written"),
        "{refusal}"
    );
}

#[test]
fn a_new_log_file_belongs_to_the_serving_user() {
    let directory = tempfile::TempDir::new().unwrap();
    let (path, link) = (directory.path().join("new"), directory.path().join("link"));
    let own = directory.path().metadata().unwrap();
    // Only root may give a file away, and nobody else has reason to.
    let owner = if own.uid() == 0 {
        (12_345, 23_456)
    } else {
        (own.uid(), own.gid())
    };
    let owner_of = |log: &super::OpenLog| {
        let metadata = log.file.as_ref().unwrap().metadata().unwrap();
        (metadata.uid(), metadata.gid())
    };
    let target = AccessLogTarget::parse(path.clone());
    assert_eq!(owner_of(&target.open(Some(owner)).unwrap()), owner);
    // One that was there keeps its owner.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "").unwrap();
    let kept = owner_of(&target.open(Some(owner)).unwrap());
    assert_eq!(kept, (own.uid(), own.gid()));
    symlink(&path, &link).unwrap();
    let refusal = AccessLogTarget::parse(link).open(None).unwrap_err();
    assert!(
        refusal.to_string().contains("symbolic link; name a file"),
        "{refusal}"
    );
}

#[test]
fn a_fifo_is_written_to_while_somebody_reads_it() {
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("fifo");
    make_fifo(&path);
    let target = AccessLogTarget::parse(path.clone());
    target.check().unwrap();
    // Nobody reads it: that neither holds up nor fails the start.
    let mut log = target.open(None).unwrap();
    assert!(log.write_lines(b"lost\n").is_err());
    let reader = || {
        let mut options = std::fs::OpenOptions::new();
        options
            .custom_flags(libc::O_NONBLOCK)
            .read(true)
            .open(&path)
    };
    let read = |mut from: &std::fs::File| {
        let mut text = [0; 64];
        let length = from.read(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    let first = reader().unwrap();
    log.write_lines(b"1\n").unwrap();
    assert_eq!(read(&first), "1\n");
    drop(first);
    assert!(log.write_lines(b"lost\n").is_err());
    let second = reader().unwrap();
    log.write_lines(b"2\n").unwrap();
    assert_eq!(read(&second), "2\n");
    // Reopening is what it is for a file.
    log.reopen();
    log.write_lines(b"3\n").unwrap();
    assert_eq!(read(&second), "3\n");
}

#[test]
fn a_dash_is_stdout() {
    assert_eq!(AccessLogTarget::parse("-".into()), AccessLogTarget::Stdout);
    let file = AccessLogTarget::parse("./-".into());
    assert_eq!(file, AccessLogTarget::File("./-".into()));
}

#[test]
fn a_failed_write_is_an_error() {
    let full = AccessLogTarget::parse("/dev/full".into());
    let mut open = full.open(None).unwrap();
    let error = open.write_lines(b"line\n").unwrap_err();
    open.on_error(&error);
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
}
