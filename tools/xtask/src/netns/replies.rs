//! What replies say, to curl and to a client of our own: the date, directories, content types,
//! caching, added fields, preflights, long targets; and a download that goes on at another server.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};

use super::files::{Access, Library, age, content, name};
use super::https::Fixture;
use super::setup::{Family, Setup};
use testbed::client::Head;
use testbed::curl::Curl;
use testbed::process::output;
use testbed::suite::{Outcome, Suite};

/// What the server of these checks is configured with.
pub(crate) const CONFIG: &str = "cors = true\n\
    header = [\"X-Added: by the operator\"]\n\
    [types]\n\
    own = \"video/x-own\"\n";

/// A page, and where it is.
const PAGE: &[u8] = b"<!doctype html><title>A page</title>\n";
const FOLDER: &str = "folder";

/// The file a download of which is broken off, and how much of it came before.
const RESUMED_BYTES: u64 = 8 << 20;
const RECEIVED_BYTES: u64 = 1_234_567;

/// Copying some megabytes.
const COPY_LIMIT: Duration = Duration::from_secs(60);

/// A check on a setup whose server runs.
type Check = fn(&Setup) -> Result<()>;

/// All checks that share a server.
pub(crate) fn run(suite: &mut Suite, setup: &Setup, library: &Library) {
    let checks: [(&str, Check); 6] = [
        ("Date is the wall clock's", date),
        ("directories have an index and a right name", directories),
        ("content types and caching", types_and_caching),
        ("added fields", added_fields),
        ("a preflight with fields of a player's own", preflight),
        ("a target of 8 KiB", long_target),
    ];
    // Once for all: a file that is written while it is served resets whoever is being sent it.
    if let Err(error) = add_files(library) {
        return suite.fail("write the files of the replies", &format!("{error:#}"));
    }
    for (what, check) in checks {
        suite.run(&format!("{} {what}", setup.name()), || {
            check(setup).map(|()| Outcome::Passed)
        });
    }
}

/// What the checks ask for besides the library's files.
fn add_files(library: &Library) -> Result<()> {
    let folder = library.root().join(FOLDER);
    fs::create_dir_all(&folder)?;
    for file in ["index.html", "list.m3u8", "segment.ts", "a.own"] {
        let path = folder.join(file);
        fs::write(&path, PAGE)?;
        age(&path)?;
    }
    Ok(())
}

/// This host's time so long ago, whole Unix seconds.
fn unix_seconds(ago: Duration) -> Result<i64> {
    let since = (SystemTime::now() - ago).duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(i64::try_from(since.as_secs())?)
}

/// Asks until a second begins, so that a date that lags or leads by part of one is seen.
fn date(setup: &Setup) -> Result<()> {
    /// The server goes by the kernel's coarse clock, which lags by a tick of 10 ms at most.
    const LAG_MAX: Duration = Duration::from_millis(20);
    let mut client = setup.connect(Family::V4)?;
    let first = unix_seconds(LAG_MAX)?;
    loop {
        let before = unix_seconds(LAG_MAX)?;
        let (head, _) = client.exchange("HEAD", &name(1), "")?;
        let after = unix_seconds(Duration::ZERO)?;
        let date = head.field("date").context("no Date")?;
        let said = unix_seconds_of(date)?;
        ensure!(
            (before..=after).contains(&said),
            "{date} ({said}) is not within {before} to {after}"
        );
        if before > first {
            return Ok(());
        }
    }
}

/// Reads `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110 s5.6.7) with the system's own `date`.
fn unix_seconds_of(date: &str) -> Result<i64> {
    let output = output(
        Command::new("date").args(["-u", "+%s", "-d", date]),
        COPY_LIMIT,
    )?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim()
        .parse()
        .with_context(|| format!("not a date: {date}"))
}

fn directories(setup: &Setup) -> Result<()> {
    let mut client = setup.connect(Family::V4)?;
    for (path, status, location) in [
        ("/folder/", 200, None),
        ("/folder/?a=b", 200, None),
        ("/folder", 301, Some("/folder/")),
        ("/folder?a=b", 301, Some("/folder/?a=b")),
        ("/folder/index.html", 200, None),
        ("/folder/index.html/", 404, None),
        ("/", 404, None),
    ] {
        let (head, body) = client.exchange("GET", path, "")?;
        expect(&head, path, status)?;
        ensure!(head.field("location") == location, "{path}: {head:?}");
        ensure!(status != 200 || body == PAGE, "{path}: another page");
        let (of_head, _) = client.exchange("HEAD", path, "")?;
        ensure!(
            without_date(&of_head) == without_date(&head),
            "HEAD {path}: {of_head:?}"
        );
    }
    // And curl finds its way.
    let url = Access::Http.url(setup, Family::V4, "/folder?a=b")?;
    let curl = Curl::start(
        setup.client(),
        &["-L", "-w", "%{stderr}%{url_effective}", &url],
    )?;
    let end = curl.fail()?;
    ensure!(
        end.code == 0 && end.stderr.ends_with("/folder/?a=b"),
        "curl -L: {} ({})",
        end.stderr,
        end.code
    );
    Ok(())
}

/// The fields, but for the one that time changes.
fn without_date(head: &Head) -> Vec<&(String, String)> {
    let mut fields: Vec<_> = head.fields.iter().collect();
    fields.retain(|(name, _)| name != "date");
    fields
}

fn expect(head: &Head, what: &str, status: u16) -> Result<()> {
    ensure!(
        head.status == status,
        "{what}: {} instead of {status}",
        head.status
    );
    Ok(())
}

fn types_and_caching(setup: &Setup) -> Result<()> {
    let mut client = setup.connect(Family::V4)?;
    let media = Some("public, max-age=3600");
    for (file, content_type, caching) in [
        ("index.html", "text/html; charset=utf-8", None),
        (
            "list.m3u8",
            "application/vnd.apple.mpegurl",
            Some("no-cache"),
        ),
        ("segment.ts", "video/mp2t", media),
        ("a.own", "video/x-own", media),
    ] {
        let path = format!("/{FOLDER}/{file}");
        let (whole, _) = client.exchange("GET", &path, "")?;
        expect(&whole, &path, 200)?;
        let said = whole.field("content-type");
        ensure!(said == Some(content_type), "{path}: {said:?}");
        let tag = whole.field("etag").context("no ETag")?;
        let unchanged = format!("If-None-Match: {tag}\r\n");
        for (lines, status) in [("Range: bytes=0-9\r\n", 206), (&*unchanged, 304)] {
            let (head, _) = client.exchange("GET", &path, lines)?;
            expect(&head, &path, status)?;
            ensure!(head.field("cache-control") == caching, "{path}: {head:?}");
            ensure!(head.field("etag") == Some(tag), "{path}: {head:?}");
        }
    }
    Ok(())
}

fn added_fields(setup: &Setup) -> Result<()> {
    let mut client = setup.connect(Family::V4)?;
    for (path, lines, status) in [
        (name(4096), "", 200),
        (name(4096), "Range: bytes=0-9\r\n", 206),
        (name(4096), "If-None-Match: *\r\n", 304),
        ("/none".to_owned(), "", 404),
    ] {
        let (head, _) = client.exchange("GET", &path, lines)?;
        expect(&head, &path, status)?;
        let added = (status < 400).then_some("by the operator");
        ensure!(head.field("x-added") == added, "{status}: {head:?}");
    }
    Ok(())
}

/// What a page asks before its player may send CMCD (CTA-5004) in fields.
fn preflight(setup: &Setup) -> Result<()> {
    const NAMES: &str = "cmcd-object,cmcd-request,cmcd-session,range";
    let mut client = setup.connect(Family::V4)?;
    let lines = format!(
        "Origin: https://player.example\r\nAccess-Control-Request-Method: GET\r\n\
         Access-Control-Request-Headers: {NAMES}\r\n"
    );
    let (head, _) = client.exchange("OPTIONS", &name(4096), &lines)?;
    expect(&head, "OPTIONS", 200)?;
    let granted = head.field("access-control-allow-headers");
    ensure!(granted == Some(NAMES), "{head:?}");
    ensure!(
        head.field("access-control-allow-origin") == Some("*"),
        "{head:?}"
    );
    let lines = "Origin: https://player.example\r\nCMCD-Object: br=3200\r\n";
    let (head, _) = client.exchange("GET", &name(4096), lines)?;
    expect(&head, "GET", 200)?;
    ensure!(
        head.field("access-control-allow-origin") == Some("*"),
        "{head:?}"
    );
    Ok(())
}

/// A signed URL as long as any may be, and one byte more.
fn long_target(setup: &Setup) -> Result<()> {
    const TARGET_BYTES_MAX: usize = 8192;
    for (bytes, status) in [(TARGET_BYTES_MAX, 200), (TARGET_BYTES_MAX + 1, 414)] {
        let mut client = setup.connect(Family::V6)?;
        let start = format!("{}?signature=", name(4096));
        let target = format!("{start}{}", "s".repeat(bytes - start.len()));
        // Whoever refuses may close before all of it has been taken.
        let sent = client.ask("GET", &target, "");
        let head = client.read_head().or_else(|error| sent.and(Err(error)))?;
        expect(&head, &format!("{bytes} B"), status)?;
    }
    Ok(())
}

/// A download that one server broke off goes on at another, which has a copy of the file with the
/// same times: what a client does when a fleet changes beneath it.
pub(crate) fn resume_elsewhere(fixture: Fixture<'_>) -> Result<Outcome> {
    let Fixture { setup, library, .. } = fixture;
    let copy = testbed::scratch_directory("copy")?;
    let file = name(RESUMED_BYTES);
    let mut command = Command::new("cp");
    command
        .arg("-p")
        .arg(library.path(RESUMED_BYTES))
        .arg(copy.path());
    let copied = output(&mut command, COPY_LIMIT)?;
    ensure!(copied.status.success(), "cp -p: {}", copied.status);

    let first = setup.start(library.root(), None, None)?;
    let (tag, modified) = validators(setup, &file)?;
    fetch_part(
        setup,
        &format!("0-{}", RECEIVED_BYTES - 1),
        &[],
        0,
        RECEIVED_BYTES,
    )?;
    first.stop()?;

    let second = setup.start(copy.path(), None, None)?;
    ensure!(
        validators(setup, &file)? == (tag.clone(), modified.clone()),
        "another ETag or Last-Modified than {tag} {modified} for the copy"
    );
    let rest = RESUMED_BYTES - RECEIVED_BYTES;
    for validator in [tag, modified] {
        let condition = format!("If-Range: {validator}");
        let offset = format!("{RECEIVED_BYTES}-");
        fetch_part(setup, &offset, &["-H", &condition], RECEIVED_BYTES, rest)?;
    }
    resume_by_curl(setup, copy.path())?;
    second.stop()?;
    Ok(Outcome::Passed)
}

/// What the server says to tell versions of a file apart.
fn validators(setup: &Setup, path: &str) -> Result<(String, String)> {
    let mut client = setup.connect(Family::V4)?;
    let (head, _) = client.exchange("HEAD", path, "")?;
    expect(&head, path, 200)?;
    let field = |name: &str| {
        let value = head.field(name).with_context(|| format!("no {name}"))?;
        Ok::<_, anyhow::Error>(value.to_owned())
    };
    Ok((field("etag")?, field("last-modified")?))
}

/// Part of the file by curl; the status must be 206.
fn fetch_part(setup: &Setup, range: &str, options: &[&str], offset: u64, count: u64) -> Result<()> {
    let url = Access::Http.url(setup, Family::V4, &name(RESUMED_BYTES))?;
    let mut arguments = vec!["-r", range, "-w", "%{stderr}%{http_code}"];
    arguments.extend(options);
    arguments.push(&url);
    let mut curl = Curl::start(setup.client(), &arguments)?;
    curl.read_checked(content(RESUMED_BYTES), offset, count)?;
    let status = curl.finish()?;
    ensure!(status == "206", "{range}: {status}");
    Ok(())
}

/// `curl -C -` finds what is there already and asks for the rest.
fn resume_by_curl(setup: &Setup, folder: &Path) -> Result<()> {
    let partial = folder.join("partial");
    let mut bytes = vec![0; usize::try_from(RECEIVED_BYTES)?];
    content(RESUMED_BYTES).fill(0, &mut bytes);
    fs::write(&partial, bytes)?;
    let url = Access::Http.url(setup, Family::V4, &name(RESUMED_BYTES))?;
    let shown = partial.to_string_lossy();
    let arguments = ["-C", "-", "-o", &shown, "-w", "%{stderr}%{http_code}", &url];
    let status = Curl::start(setup.client(), &arguments)?.finish()?;
    ensure!(status == "206", "curl -C -: {status}");
    let received = fs::read(&partial)?;
    ensure!(
        received.len() as u64 == RESUMED_BYTES,
        "{} bytes",
        received.len()
    );
    content(RESUMED_BYTES).check(0, &received)
}
