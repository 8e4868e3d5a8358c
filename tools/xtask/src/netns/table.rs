//! `Range` and conditional requests, form by form: the same answer as nginx for the same file.
//!
//! Compared are the status, the header fields that matter and the body. Left out: what HTTP leaves
//! to the server's taste (the text of error pages, the boundary between parts, `Server`).

use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail, ensure};

use super::files::{Library, name};
use super::setup::{Family, REFERENCE, Setup};
use testbed::client::{Client, Head};
use testbed::suite::{Outcome, Suite};

/// The file most forms are tried on: its last block is cut.
const SIZE_BYTES: u64 = 300_000;

/// `Range` field values. The file has 300000 bytes.
const RANGES: [&str; 55] = [
    "bytes=0-0",
    "bytes=0-99",
    "bytes=100-199",
    "bytes=0-",
    "bytes=1-",
    "bytes=299999-",
    "bytes=299999-299999",
    "bytes=299999-300000",
    "bytes=300000-",
    "bytes=300000-300001",
    "bytes=0-299999",
    "bytes=0-300000",
    "bytes=-1",
    "bytes=-100",
    "bytes=-0",
    "bytes=-300000",
    "bytes=-300001",
    "bytes=-999999999",
    "bytes=4095-4096",
    "bytes=4096-8191",
    "bytes=65535-65536",
    "bytes=5-4",
    "bytes=",
    "bytes=-",
    "bytes",
    "",
    "bytes=abc",
    "bytes=1-2-3",
    "bytes=1 -2",
    "bytes=1- 2",
    "bytes= 1-2",
    "bytes=0x10-20",
    "bytes=00-01",
    "bytes=+1-2",
    "bytes=1-2;",
    "items=0-1",
    "BYTES=0-1",
    "bytes=18446744073709551616-",
    "bytes=9223372036854775807-",
    "bytes=9223372036854775808-",
    "bytes=0-18446744073709551616",
    "bytes=0-9223372036854775807",
    "bytes=-9223372036854775807",
    "bytes=0-1,3-4",
    "bytes=0-1, 3-4",
    "bytes=0-1 , 3-4",
    "bytes=0-9,5-14",
    "bytes=0-0,-1",
    "bytes=10-19,0-9",
    "bytes=0-1,999999999-",
    "bytes=999999999-,999999999-",
    "bytes=0-,0-",
    "bytes=0-1,,2-3",
    "bytes=0-1,",
    "bytes=0-1,5-4",
];

/// Condition fields. `{tag}` and `{date}` are what the server itself said of the file.
const CONDITIONS: [&str; 37] = [
    "If-None-Match: {tag}",
    "If-None-Match: W/{tag}",
    "If-None-Match: \"other\"",
    "If-None-Match: \"other\", {tag}",
    "If-None-Match: \"other\",{tag},\"third\"",
    "If-None-Match: *",
    "If-Modified-Since: {date}",
    "If-Modified-Since: Mon, 01 Jan 2001 00:00:00 GMT",
    "If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT",
    "If-Modified-Since: Monday, 01-Jan-01 00:00:00 GMT",
    "If-Modified-Since: Mon Jan  1 00:00:00 2001",
    "If-Modified-Since: yesterday",
    "If-Unmodified-Since: {date}",
    "If-Unmodified-Since: Mon, 01 Jan 2001 00:00:00 GMT",
    "If-Unmodified-Since: Fri, 01 Jan 2100 00:00:00 GMT",
    "If-Match: {tag}",
    "If-Match: \"other\"",
    "If-Match: \"other\", {tag}",
    "If-Match: *",
    "If-Match: W/{tag}",
    "If-None-Match: \"other\"\r\nIf-Modified-Since: Mon, 01 Jan 2001 00:00:00 GMT",
    "If-Match: {tag}\r\nIf-None-Match: {tag}",
    "If-Match: \"other\"\r\nIf-None-Match: {tag}",
    "Range: bytes=0-9\r\nIf-Range: {tag}",
    "Range: bytes=0-9\r\nIf-Range: \"other\"",
    "Range: bytes=0-9\r\nIf-Range: W/{tag}",
    "Range: bytes=0-9\r\nIf-Range: {date}",
    "Range: bytes=0-9\r\nIf-Range: Mon, 01 Jan 2001 00:00:00 GMT",
    "Range: bytes=0-9\r\nIf-Range: Fri, 01 Jan 2100 00:00:00 GMT",
    "Range: bytes=999999-\r\nIf-Range: \"other\"",
    "Range: bytes=999999-\r\nIf-Range: {tag}",
    "Range: bytes=0-9\r\nIf-None-Match: {tag}",
    "Range: bytes=0-9\r\nIf-None-Match: \"other\"",
    "Range: bytes=0-9\r\nIf-Match: \"other\"",
    "Range: bytes=0-9\r\nIf-Match: {tag}",
    "Range: bytes=0-9\r\nIf-Modified-Since: {date}",
    "If-Range: {tag}",
];

/// `Range` values on a file of no and of one byte.
const TINY_RANGES: [&str; 7] = [
    "bytes=0-",
    "bytes=0-0",
    "bytes=1-",
    "bytes=-1",
    "bytes=-0",
    "bytes=0-5",
    "bytes=-5",
];

/// Where nginx 1.22 and RFC 9110 part, Atlas keeps to the RFC: method, field lines, status.
const BY_THE_RFC: [(&str, &str, u16); 4] = [
    // s14.2: "A server MUST ignore a Range header field received with a request method [...] for
    // which range handling is not defined." Only GET has it.
    ("HEAD", "Range: bytes=0-9", 200),
    ("HEAD", "Range: bytes=999999-", 200),
    // s13.1.3: "A recipient MUST ignore If-Modified-Since if the request contains an
    // If-None-Match header field".
    (
        "GET",
        "If-None-Match: {tag}\r\nIf-Modified-Since: Mon, 01 Jan 2001 00:00:00 GMT",
        304,
    ),
    (
        "HEAD",
        "If-None-Match: {tag}\r\nIf-Modified-Since: Mon, 01 Jan 2001 00:00:00 GMT",
        304,
    ),
];

/// Fields compared on replies that carry the object or a part of it.
const FIELDS: [&str; 4] = [
    "content-length",
    "content-range",
    "content-type",
    "last-modified",
];

/// All forms, one check for each table.
pub(crate) fn run(suite: &mut Suite, setup: &Setup, library: &Library) {
    let reference = match setup.start_reference(library.root()) {
        Ok(reference) => reference,
        Err(error) => return suite.fail("start nginx as the reference", &format!("{error:#}")),
    };
    let mut check = |what: &str, forms: &mut dyn Iterator<Item = (u64, String)>| {
        let label = format!("{} {what} as nginx", setup.name());
        suite.run(&label, || {
            if reference.is_none() {
                return Ok(Outcome::Skipped("nginx is not installed".to_owned()));
            }
            let mut wrong = Vec::new();
            for (size, lines) in forms {
                let has_range = lines.starts_with("Range:");
                let methods: &[&str] = if has_range {
                    &["GET"]
                } else {
                    &["GET", "HEAD"]
                };
                for method in methods {
                    if let Err(difference) = compare(setup, method, size, &lines)? {
                        wrong.push(format!("{method} {size} B {lines:?}: {difference:#}"));
                    }
                }
            }
            ensure!(
                wrong.is_empty(),
                "{} differ:\n  {}",
                wrong.len(),
                wrong.join("\n  ")
            );
            Ok(Outcome::Passed)
        });
    };
    let ranges = |size, values: &'static [&'static str]| {
        values
            .iter()
            .map(move |value| (size, format!("Range: {value}\r\n")))
    };
    check("Range forms", &mut ranges(SIZE_BYTES, &RANGES));
    check(
        "Range forms of tiny files",
        &mut ranges(0, &TINY_RANGES).chain(ranges(1, &TINY_RANGES)),
    );
    check(
        "conditional forms",
        &mut CONDITIONS
            .iter()
            .map(|lines| (SIZE_BYTES, format!("{lines}\r\n"))),
    );
}

/// Where the reference is not followed.
pub(crate) fn run_by_the_rfc(suite: &mut Suite, setup: &Setup) {
    suite.run(
        &format!("{} forms where nginx leaves the RFC", setup.name()),
        || {
            for (method, lines, status) in BY_THE_RFC {
                let lines = format!("{lines}\r\n");
                let (head, body) = ask(
                    setup,
                    setup.address(Family::V4)?,
                    method,
                    SIZE_BYTES,
                    &lines,
                )?;
                ensure!(head.status == status, "{method} {lines:?}: {}", head.status);
                ensure!(body.is_empty(), "{method} {lines:?}: a body");
            }
            Ok(Outcome::Passed)
        },
    );
}

/// One request and its reply; `{tag}` and `{date}` become what the server says of the file.
fn ask(
    setup: &Setup,
    address: SocketAddr,
    method: &str,
    size: u64,
    lines: &str,
) -> Result<(Head, Vec<u8>)> {
    let mut client = Client::connect(setup.client(), address)?;
    let (head, _) = client.exchange("HEAD", &name(size), "")?;
    let own = |name: &str| head.field(name).unwrap_or_default().to_owned();
    let lines = lines
        .replace("{tag}", &own("etag"))
        .replace("{date}", &own("last-modified"));
    client.exchange(method, &name(size), &lines)
}

/// Asks both servers the same and compares the answers; the inner error is a difference.
fn compare(setup: &Setup, method: &str, size: u64, lines: &str) -> Result<Result<()>> {
    let answer = |address| {
        let (head, body) = ask(setup, address, method, size, lines)?;
        Answer::new(&head, body).context("its answer")
    };
    let ours = answer(setup.address(Family::V4)?).context("atlas")?;
    let theirs = answer(REFERENCE.parse()?).context("nginx")?;
    Ok(ours.same_as(&theirs))
}

/// A reply reduced to what must be the same.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    fields: Vec<(&'static str, Option<String>)>,
    body: Vec<Part>,
}

/// A body, or one part of a multipart body.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    content_type: Option<String>,
    content_range: Option<String>,
    bytes: Vec<u8>,
}

impl Answer {
    fn new(head: &Head, body: Vec<u8>) -> Result<Self> {
        let field = |name: &str| head.field(name).map(str::to_owned);
        let mut fields = Vec::new();
        let mut parts = Vec::new();
        match head.status {
            200 | 206 => {
                fields.extend(FIELDS.map(|name| (name, field(name))));
                // nginx leaves it out of partial replies.
                if head.status == 200 {
                    fields.push(("accept-ranges", field("accept-ranges")));
                }
                let boundary = head.field("content-type").and_then(boundary);
                if let Some(boundary) = boundary {
                    // Their lengths differ by the boundaries'; the parts are compared instead.
                    fields.retain(|(name, _)| !matches!(*name, "content-length" | "content-type"));
                    fields.push(("content-type", Some("multipart/byteranges".to_owned())));
                    if !body.is_empty() {
                        parts = multipart(&body, boundary)?;
                    }
                } else {
                    parts.push(Part {
                        content_type: None,
                        content_range: None,
                        bytes: body,
                    });
                }
            }
            304 => fields.push(("last-modified", field("last-modified"))),
            416 => fields.push(("content-range", field("content-range"))),
            _ => {}
        }
        Ok(Self {
            status: head.status,
            fields,
            body: parts,
        })
    }

    fn same_as(&self, other: &Self) -> Result<()> {
        ensure!(
            self.status == other.status,
            "{} instead of {}",
            self.status,
            other.status
        );
        for (ours, theirs) in self.fields.iter().zip(&other.fields) {
            ensure!(ours == theirs, "{ours:?} instead of {theirs:?}");
        }
        ensure!(self == other, "the bodies differ");
        Ok(())
    }
}

/// The boundary of a multipart content type.
fn boundary(content_type: &str) -> Option<&str> {
    let rest = content_type.strip_prefix("multipart/byteranges")?;
    let (_, boundary) = rest.split_once("boundary=")?;
    Some(boundary.trim_matches('"'))
}

/// Takes a multipart body apart (RFC 2046 s5.1.1), strictly: nothing before or after the parts.
fn multipart(body: &[u8], boundary: &str) -> Result<Vec<Part>> {
    let delimiter = format!("\r\n--{boundary}");
    let mut parts = Vec::new();
    // The first delimiter may lack its line break.
    let mut rest = body.strip_prefix(b"\r\n".as_slice()).unwrap_or(body);
    rest = rest
        .strip_prefix(&delimiter.as_bytes()[2..])
        .context("no boundary at the start")?;
    while rest != b"--\r\n" {
        rest = rest
            .strip_prefix(b"\r\n".as_slice())
            .context("no line break after a boundary")?;
        let head_end = find(rest, b"\r\n\r\n").context("a part without an end of its head")?;
        let head = std::str::from_utf8(&rest[..head_end]).context("a part's head is ASCII")?;
        let value = |name: &str| {
            head.split("\r\n").find_map(|line| {
                let (field, value) = line.split_once(':')?;
                field
                    .eq_ignore_ascii_case(name)
                    .then(|| value.trim().to_owned())
            })
        };
        let (content_type, content_range) = (value("content-type"), value("content-range"));
        rest = &rest[head_end + 4..];
        let end = find(rest, delimiter.as_bytes()).context("a part without an end")?;
        parts.push(Part {
            content_type,
            content_range,
            bytes: rest[..end].to_vec(),
        });
        rest = &rest[end + delimiter.len()..];
        if rest.is_empty() {
            bail!("no closing boundary");
        }
    }
    Ok(parts)
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"\r\n--B\r\nContent-Type: a/b\r\nContent-Range: bytes 0-1/9\r\n\r\nxy\
                          \r\n--B\r\nContent-Range: bytes 3-3/9\r\n\r\nz\r\n--B--\r\n";

    #[test]
    fn parts_are_found() {
        let parts = multipart(BODY, "B").expect("two parts");
        assert_eq!(parts.len(), 2);
        assert_eq!(parts[0].bytes, b"xy");
        assert_eq!(parts[0].content_type.as_deref(), Some("a/b"));
        assert_eq!(parts[1].content_range.as_deref(), Some("bytes 3-3/9"));
    }

    #[test]
    fn broken_multipart_is_refused() {
        assert!(multipart(BODY, "C").is_err());
        assert!(multipart(&BODY[..BODY.len() - 1], "B").is_err());
        assert!(multipart(&BODY[..BODY.len() - 4], "B").is_err());
    }

    #[test]
    fn answers_differ_in_status_field_or_body() {
        let head = |status, range: &str| Head {
            status,
            fields: vec![("content-range".to_owned(), range.to_owned())],
        };
        let answer = |status, range, body: &[u8]| {
            Answer::new(&head(status, range), body.to_vec()).expect("an answer")
        };
        let base = answer(206, "bytes 0-1/9", b"xy");
        assert!(base.same_as(&answer(206, "bytes 0-1/9", b"xy")).is_ok());
        assert!(base.same_as(&answer(200, "bytes 0-1/9", b"xy")).is_err());
        assert!(base.same_as(&answer(206, "bytes 0-2/9", b"xy")).is_err());
        assert!(base.same_as(&answer(206, "bytes 0-1/9", b"xz")).is_err());
    }
}
