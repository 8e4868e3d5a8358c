//! Requests that are wrong, hostile or slow: each gets its status, and the server serves on.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::files::{self, name};
use super::setup::{Family, Setup};
use testbed::suite::{Outcome, Suite};

/// Seconds the server under test gives a request head (its configuration says so).
pub(crate) const HEAD_TIMEOUT_SECONDS: u64 = 2;

/// A refused request, and the statuses that are right for it.
type Refusal = (&'static str, &'static str, &'static [u16]);

/// Every one of these is a whole head once an empty line ends it: the answer must come without waiting for more.
const REFUSALS: [Refusal; 22] = [
    ("missing object", "GET /none HTTP/1.1\r\nHost: a", &[404]),
    (
        "directory without an index",
        "GET / HTTP/1.1\r\nHost: a",
        &[404],
    ),
    (
        "parent directory",
        "GET /../etc/passwd HTTP/1.1\r\nHost: a",
        OUTSIDE,
    ),
    (
        "encoded parent directory",
        "GET /%2e%2e/%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: a",
        OUTSIDE,
    ),
    (
        "encoded slash",
        "GET /..%2f..%2f..%2fetc%2fpasswd HTTP/1.1\r\nHost: a",
        OUTSIDE,
    ),
    (
        "encoded zero",
        "GET /1.mp4%00 HTTP/1.1\r\nHost: a",
        &[400, 404],
    ),
    ("known method", "DELETE /1.mp4 HTTP/1.1\r\nHost: a", &[405]),
    (
        "empty POST",
        "POST /1.mp4 HTTP/1.1\r\nHost: a\r\nContent-Length: 0",
        &[405],
    ),
    (
        "unknown method",
        "BREW /1.mp4 HTTP/1.1\r\nHost: a",
        &[405, 501],
    ),
    ("no host", "GET /1.mp4 HTTP/1.1", &[400]),
    (
        "two hosts",
        "GET /1.mp4 HTTP/1.1\r\nHost: a\r\nHost: b",
        &[400],
    ),
    ("two ports", "GET /1.mp4 HTTP/1.1\r\nHost: a:80:80", &[400]),
    (
        "unclosed bracket",
        "GET /1.mp4 HTTP/1.1\r\nHost: [::1",
        &[400],
    ),
    ("empty host", "GET /1.mp4 HTTP/1.1\r\nHost:", &[400]),
    (
        "coding and length of a POST",
        "POST /1.mp4 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
        &[400],
    ),
    (
        "two lengths of a POST",
        "POST /1.mp4 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2",
        &[400],
    ),
    ("version 3", "GET /1.mp4 HTTP/3.0\r\nHost: a", &[400, 505]),
    (
        "HTTP/2 preface",
        "PRI * HTTP/2.0\r\n\r\nSM",
        &[400, 405, 501, 505],
    ),
    (
        "folded line",
        "GET /1.mp4 HTTP/1.1\r\nHost: a\r\nX: b\r\n c",
        &[400],
    ),
    (
        "space before colon",
        "GET /1.mp4 HTTP/1.1\r\nHost : a",
        &[400],
    ),
    ("TLS hello", "\x16\x03\x01\x02\x00\x01\x00\x01", &[400, 501]),
    (
        "two lengths",
        "GET /1.mp4 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2",
        &[400],
    ),
];

/// For what is not below the served directory.
const OUTSIDE: &[u16] = &[400, 403, 404];

/// All checks of bad input.
pub(crate) fn run(suite: &mut Suite, setup: &Setup) {
    let label = |what: &str| format!("{} refuses: {what}", setup.name());
    let long = "x".repeat(64 * 1024);
    let head = format!("GET /1.mp4 HTTP/1.1\r\nHost: a\r\nX: {long}");
    let target = format!("GET /{long} HTTP/1.1\r\nHost: a");
    for (what, request, statuses) in REFUSALS.into_iter().chain([
        ("oversized head", &*head, &[431][..]),
        ("oversized target", &target, &[414, 431]),
    ]) {
        suite.run(&label(what), || {
            expect_status(setup, request, statuses)?;
            serves_on(setup)
        });
    }
    suite.run(&label("never-ending head"), || {
        dribble(setup)?;
        serves_on(setup)
    });
    suite.run(
        &format!("{} answers pipelined requests in order", setup.name()),
        || {
            pipeline(setup)?;
            Ok(Outcome::Passed)
        },
    );
    suite.run(
        &format!("{} closes after an HTTP/1.0 request", setup.name()),
        || {
            let mut client = setup.connect(Family::V4)?;
            client.send(b"GET /4096.mp4 HTTP/1.0\r\n\r\n")?;
            let head = client.read_head()?;
            ensure!(head.status == 200, "{}", head.status);
            client.read_checked(files::content(4096), 0, 4096)?;
            ensure!(client.is_closed()?, "more bytes after the reply");
            Ok(Outcome::Passed)
        },
    );
}

/// Sends a request on a connection of its own; its status must be one of `statuses`.
fn expect_status(setup: &Setup, request: &str, statuses: &[u16]) -> Result<()> {
    let mut client = setup.connect(Family::V4)?;
    // The server may refuse and close before all of a large request has been taken.
    let sent = client.send(format!("{request}\r\n\r\n").as_bytes());
    let head = match client.read_head() {
        Ok(head) => head,
        Err(error) => {
            sent.context("and no reply")?;
            return Err(error);
        }
    };
    ensure!(
        statuses.contains(&head.status),
        "{} instead of {statuses:?}",
        head.status
    );
    Ok(())
}

/// A refusal hurts nobody else.
fn serves_on(setup: &Setup) -> Result<Outcome> {
    let mut client = setup.connect(Family::V4).context("after the refusal")?;
    let (head, body) = client.exchange("GET", &name(4097), "")?;
    ensure!(
        head.status == 200 && body.len() == 4097,
        "after the refusal: {}",
        head.status
    );
    files::content(4097).check(0, &body)?;
    Ok(Outcome::Passed)
}

/// A client that sends one byte at a time and never ends its head gets 408 and is closed.
fn dribble(setup: &Setup) -> Result<()> {
    /// Slow enough to be a dribble, quick enough that many bytes fall into the timeout.
    const PACE: Duration = Duration::from_millis(100);
    let limit = Instant::now() + Duration::from_secs(HEAD_TIMEOUT_SECONDS * 10);
    let mut client = setup.connect(Family::V4)?;
    client.send(b"GET /1.mp4 HTTP/1.1\r\nHost: a\r\nX: ")?;
    while !client.has_input(PACE)? {
        ensure!(
            Instant::now() < limit,
            "still listening after ten times the timeout"
        );
        client.send(b"x")?;
    }
    let head = client.read_head()?;
    ensure!(head.status == 408, "{} instead of 408", head.status);
    client.read_body(&head, "GET")?;
    ensure!(client.is_closed()?, "open after 408");
    Ok(())
}

/// Three requests in one segment: three replies, in order.
fn pipeline(setup: &Setup) -> Result<()> {
    let sizes = [300_000, 1, 4097];
    let mut client = setup.connect(Family::V4)?;
    let requests: String = sizes
        .map(|size| format!("GET {} HTTP/1.1\r\nHost: a\r\n\r\n", name(size)))
        .concat();
    client.send(requests.as_bytes())?;
    for size in sizes {
        let head = client.read_head()?;
        ensure!(head.status == 200, "{}", head.status);
        client.read_checked(files::content(size), 0, size)?;
    }
    Ok(())
}
