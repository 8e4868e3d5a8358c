//! An origin of the tests' own: an HTTP server on loopback that speaks enough of S3 to be listed, and does what is wrong as
//! it is told; and the program as a process.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fill::checks::{Algorithm, Verifier};
use serde_json::Value;

/// No test waits longer for anything.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// What an object's replies do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// The head says so, and the body ends after so many bytes.
    Cut(usize),
    /// Nothing more comes after so many bytes.
    Stall(usize),
    /// The reply waits until nothing is wrong any more.
    Held,
    /// So many bytes more than the object or the part has. Of a whole object in chunks, without a length; of a listing
    /// spaces.
    Longer(usize),
    /// Another length than the listing's.
    Length(usize),
    /// A byte is another.
    Bytes,
    /// This status, with these fields and this code in the body.
    Status(u16, String, String),
    /// To itself, for ever.
    Redirect,
    /// To this address.
    RedirectTo(SocketAddr),
    /// Requests for parts are answered with all of it.
    NoRanges,
}

#[derive(Clone, Debug)]
struct Object {
    content: Vec<u8>,
    etag: String,
    modified: i64,
    wrong: Vec<Wrong>,
    /// What the listing says of its length, if that is another one.
    listed_length: Option<u64>,
}

#[derive(Debug, Default)]
struct Shared {
    objects: BTreeMap<String, Object>,
    /// For all replies to the listing.
    listing: Vec<Wrong>,
    is_empty: bool,
    /// Requests by method and name.
    requests: Vec<String>,
    /// The `Authorization` of the last one.
    authorization: String,
    /// Only this access key is let in.
    key: Option<String>,
    /// Bytes a second that each reply is sent with.
    rate: Option<usize>,
    misses: String,
    counts: String,
}

/// The origin.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    shared: Arc<(Mutex<Shared>, Condvar)>,
    is_over: Arc<AtomicBool>,
}

/// 2024-01-01.
const MODIFIED: i64 = 1_704_067_200;

pub(crate) fn md5(bytes: &[u8]) -> String {
    let mut verifier = Verifier::new(Algorithm::Md5);
    verifier.update(bytes);
    verifier
        .finish()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Content that no other place or name has.
pub(crate) fn content(name: &str, length: usize) -> Vec<u8> {
    let mut random = fill::random::Random::new(name.bytes().map(u64::from).sum());
    (0..length)
        .map(|_| random.draw().to_le_bytes()[0])
        .collect()
}

impl Origin {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new((Mutex::new(Shared::default()), Condvar::new()));
        let is_over = Arc::new(AtomicBool::new(false));
        let (server, over) = (Arc::clone(&shared), Arc::clone(&is_over));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let (server, over) = (Arc::clone(&server), Arc::clone(&over));
                std::thread::spawn(move || {
                    if let Ok(stream) = stream {
                        let _ = serve(&stream, &server, &over);
                    }
                });
            }
        });
        Self {
            address,
            shared,
            is_over,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.0.lock().unwrap()
    }

    /// Puts an object, as S3 has one that was uploaded in one part.
    pub(crate) fn put(&self, name: &str, content: &[u8]) {
        self.put_with(name, content, &md5(content));
    }

    pub(crate) fn put_with(&self, name: &str, content: &[u8], etag: &str) {
        let object = Object {
            content: content.to_vec(),
            etag: etag.to_owned(),
            modified: MODIFIED,
            wrong: Vec::new(),
            listed_length: None,
        };
        self.lock().objects.insert(name.to_owned(), object);
    }

    pub(crate) fn remove(&self, name: &str) {
        self.lock().objects.remove(name).unwrap();
    }

    /// From now on this is wrong with an object; `None`: nothing.
    pub(crate) fn wrong(&self, name: &str, wrong: Option<Wrong>) {
        self.wrong_all(&[name], wrong.as_ref());
    }

    /// The same of several, at once.
    pub(crate) fn wrong_all(&self, names: &[impl AsRef<str>], wrong: Option<&Wrong>) {
        let mut shared = self.lock();
        for name in names {
            let object = shared.objects.get_mut(name.as_ref()).unwrap();
            object.wrong = wrong.into_iter().cloned().collect();
        }
        drop(shared);
        self.shared.1.notify_all();
    }

    /// The listing says this of an object's length.
    pub(crate) fn length_listed(&self, name: &str, length: u64) {
        self.lock().objects.get_mut(name).unwrap().listed_length = Some(length);
    }

    /// The same of the listing.
    pub(crate) fn wrong_listing(&self, wrong: Option<Wrong>) {
        self.lock().listing = wrong.into_iter().collect();
    }

    /// Whether the listing has nothing in it.
    pub(crate) fn list_nothing(&self, is_empty: bool) {
        self.lock().is_empty = is_empty;
    }

    /// Lets in only this access key.
    pub(crate) fn let_in(&self, key: &str) {
        self.lock().key = Some(key.to_owned());
    }

    /// How fast each reply is sent, bytes a second.
    pub(crate) fn rate(&self, rate: Option<usize>) {
        self.lock().rate = rate;
    }

    pub(crate) fn tell(&self, misses: &str, counts: &str) {
        let mut shared = self.lock();
        (shared.misses, shared.counts) = (misses.to_owned(), counts.to_owned());
    }

    /// Requests so far that begin so.
    pub(crate) fn count(&self, start: &str) -> usize {
        self.lock()
            .requests
            .iter()
            .filter(|it| it.starts_with(start))
            .count()
    }

    /// The first request that begins so.
    pub(crate) fn first(&self, start: &str) -> String {
        let shared = self.lock();
        let first = shared.requests.iter().find(|it| it.starts_with(start));
        first.cloned().unwrap_or_default()
    }

    /// Waits until there were so many requests that begin so.
    pub(crate) fn wait_for(&self, start: &str, count: usize) {
        let has = |shared: &Shared| {
            shared
                .requests
                .iter()
                .filter(|it| it.starts_with(start))
                .count()
                >= count
        };
        let deadline = Instant::now() + LIMIT;
        let mut shared = self.lock();
        while !has(&shared) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no {count} of {start}");
            shared = self.shared.1.wait_timeout(shared, left).unwrap().0;
        }
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

type Server = (Mutex<Shared>, Condvar);

/// A request's head.
struct Request {
    method: String,
    target: String,
    fields: HashMap<String, String>,
}

impl Request {
    fn read(reader: &mut impl std::io::BufRead) -> std::io::Result<Option<Self>> {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut fields = HashMap::new();
        loop {
            let mut field = String::new();
            reader.read_line(&mut field)?;
            let Some((name, value)) = field.trim_end().split_once(": ") else {
                break;
            };
            fields.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        let mut parts = line.split(' ').map(str::to_owned);
        Ok(Some(Self {
            method: parts.next().unwrap_or_default(),
            target: parts.next().unwrap_or_default(),
            fields,
        }))
    }

    fn path_and_query(&self) -> (&str, &str) {
        self.target.split_once('?').unwrap_or((&self.target, ""))
    }

    fn is_feed(&self) -> bool {
        matches!(self.path_and_query().0, "/misses" | "/counts")
    }

    fn is_listing(&self) -> bool {
        self.path_and_query().1.contains("list-type=2")
    }

    /// The object's name, without the bucket.
    fn name(&self) -> String {
        let (path, _) = self.path_and_query();
        let name = percent_encoding::percent_decode_str(path).decode_utf8_lossy();
        let name = name.trim_start_matches('/');
        let name = name.strip_prefix("bucket").unwrap_or(name);
        name.trim_start_matches('/').to_owned()
    }
}

/// Of what was missed, the first line and those that were not told yet, as `atlas serve` would.
fn after(misses: &str, query: &str) -> String {
    let told: u64 = query.trim_start_matches("after=").parse().unwrap();
    let is_new = |line: &&str| {
        let line: Value = serde_json::from_str(line).unwrap_or_default();
        line["sequence"]
            .as_u64()
            .is_none_or(|sequence| sequence >= told)
    };
    misses.split_inclusive('\n').filter(is_new).collect()
}

/// A reply, what is wrong with it, and how fast it is sent.
type Answer = (Vec<u8>, Option<Wrong>, Option<usize>);

fn answer(request: &Request, shared: &mut Shared) -> Answer {
    let (method, fields, name) = (&request.method, &request.fields, request.name());
    let kind = if request.is_listing() { "LIST" } else { method };
    let range = fields
        .get("range")
        .map_or(String::new(), |range| format!(" {range}"));
    let shown = if request.is_feed() {
        &request.target
    } else {
        &name
    };
    shared.requests.push(format!("{kind} {shown}{range}"));
    shared.authorization = fields.get("authorization").cloned().unwrap_or_default();
    if request.is_feed() {
        let is_misses = request.target.starts_with("/misses");
        let text = if is_misses {
            after(&shared.misses, request.path_and_query().1)
        } else {
            shared.counts.clone()
        };
        return (whole(200, "", text.as_bytes()), None, None);
    }
    let is_let_in = |key: &String| shared.authorization.contains(&format!("Credential={key}/"));
    if shared.key.as_ref().is_some_and(|key| !is_let_in(key)) {
        let body = "<Error><Code>ExpiredToken</Code><Secret>of the request</Secret></Error>";
        return (status(403, "", body, method), None, None);
    }
    if request.is_listing() {
        let mut list = list(shared, request.path_and_query().1);
        if let Some(Wrong::Longer(bytes)) = shared.listing.first() {
            list += &" ".repeat(*bytes);
        }
        let reply = whole(200, "Content-Type: application/xml\r\n", list.as_bytes());
        return (reply, shared.listing.first().cloned(), None);
    }
    let Some(object) = shared.objects.get(&name) else {
        let body = "<Error><Code>NoSuchKey</Code></Error>";
        return (status(404, "", body, method), None, None);
    };
    let wrong = object.wrong.first().cloned();
    let reply = object_reply(object, fields, method, wrong.as_ref());
    (reply, wrong, shared.rate)
}

fn serve(stream: &TcpStream, server: &Server, over: &AtomicBool) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(request) = Request::read(&mut reader)? {
        let (reply, wrong, rate) = answer(&request, &mut server.0.lock().unwrap());
        server.1.notify_all();
        let method = request.method.as_str();
        let stream = &mut &*stream;
        let head = |bytes: usize| {
            let head = reply.windows(4).position(|it| it == b"\r\n\r\n").unwrap() + 4;
            &reply[..(head + bytes).min(reply.len())]
        };
        match wrong {
            Some(Wrong::Status(code, extra, name)) => {
                let body = format!("<Error><Code>{name}</Code></Error>");
                stream.write_all(&status(code, &extra, &body, method))?;
            }
            Some(Wrong::Redirect) => {
                let extra = format!("Location: {}\r\n", request.target);
                stream.write_all(&status(302, &extra, "", method))?;
            }
            Some(Wrong::RedirectTo(address)) => {
                let extra = format!("Location: http://{address}{}\r\n", request.target);
                stream.write_all(&status(302, &extra, "", method))?;
            }
            Some(Wrong::Cut(bytes)) if method == "GET" => {
                stream.write_all(head(bytes))?;
                return stream.shutdown(std::net::Shutdown::Both);
            }
            Some(Wrong::Stall(bytes)) if method == "GET" => {
                stream.write_all(head(bytes))?;
                // Until the other side has had enough of it.
                let mut rest = [0; 1];
                while !over.load(Ordering::Relaxed) {
                    if reader.read(&mut rest)? == 0 {
                        return Ok(());
                    }
                }
            }
            Some(Wrong::Held) => {
                wait_until_free(server, &request.name());
                send(stream, &reply, rate)?;
            }
            _ => send(stream, &reply, rate)?,
        }
    }
    Ok(())
}

fn wait_until_free(server: &Server, name: &str) {
    let is_held = |shared: &mut Shared| {
        let object = shared.objects.get(name);
        object.is_some_and(|it| it.wrong.first() == Some(&Wrong::Held))
    };
    let shared = server.0.lock().unwrap();
    drop(server.1.wait_timeout_while(shared, LIMIT, is_held).unwrap());
}

fn send(stream: &mut &TcpStream, reply: &[u8], rate: Option<usize>) -> std::io::Result<()> {
    let Some(rate) = rate else {
        return stream.write_all(reply);
    };
    for piece in reply.chunks((rate / 50).max(1)) {
        stream.write_all(piece)?;
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn whole(code: u16, extra: &str, body: &[u8]) -> Vec<u8> {
    let mut reply = format!(
        "HTTP/1.1 {code} X\r\nContent-Length: {}\r\n{extra}\r\n",
        body.len()
    )
    .into_bytes();
    reply.extend_from_slice(body);
    reply
}

fn status(code: u16, extra: &str, body: &str, method: &str) -> Vec<u8> {
    whole(
        code,
        extra,
        if method == "HEAD" {
            b""
        } else {
            body.as_bytes()
        },
    )
}

fn object_reply(
    object: &Object,
    fields: &HashMap<String, String>,
    method: &str,
    wrong: Option<&Wrong>,
) -> Vec<u8> {
    if fields
        .get("if-match")
        .is_some_and(|it| it.trim_matches('"') != object.etag)
    {
        return status(
            412,
            "",
            "<Error><Code>PreconditionFailed</Code></Error>",
            method,
        );
    }
    let mut content = object.content.clone();
    match wrong {
        Some(Wrong::Bytes) => {
            let middle = content.len() / 2;
            content[middle] ^= 1;
        }
        Some(Wrong::Length(length)) => content.resize(*length, 0),
        _ => {}
    }
    let date = chrono::DateTime::from_timestamp(object.modified, 0).unwrap();
    let date = date.format("%a, %d %b %Y %H:%M:%S GMT");
    let extra = format!("ETag: \"{}\"\r\nLast-Modified: {date}\r\n", object.etag);
    let longer = match wrong {
        Some(Wrong::Longer(bytes)) => *bytes,
        _ => 0,
    };
    let range = fields
        .get("range")
        .filter(|_| wrong != Some(&Wrong::NoRanges));
    if let Some(range) = range {
        let (start, end) = range.trim_start_matches("bytes=").split_once('-').unwrap();
        let (start, end): (usize, usize) = (start.parse().unwrap(), end.parse().unwrap());
        let end = (end + 1).min(content.len());
        let extra = format!(
            "{extra}Content-Range: bytes {start}-{}/{}\r\n",
            end - 1,
            content.len()
        );
        let mut part = content[start.min(end)..end].to_vec();
        part.resize(part.len() + longer, 0);
        return whole(206, &extra, &part);
    }
    if method == "HEAD" {
        let length = content.len();
        return format!("HTTP/1.1 200 X\r\nContent-Length: {length}\r\n{extra}\r\n").into_bytes();
    }
    if longer > 0 {
        content.resize(content.len() + longer, 0);
        let head = format!(
            "HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n{extra}\r\n{:x}\r\n",
            content.len()
        );
        return [head.as_bytes(), &content, b"\r\n0\r\n\r\n"].concat();
    }
    whole(200, &extra, &content)
}

fn list(shared: &Shared, query: &str) -> String {
    let prefix = query
        .split('&')
        .find_map(|it| it.strip_prefix("prefix="))
        .unwrap_or_default();
    let prefix = percent_encoding::percent_decode_str(prefix).decode_utf8_lossy();
    let mut text =
        String::from("<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>false</IsTruncated>");
    for (name, object) in &shared.objects {
        if shared.is_empty || !name.starts_with(prefix.as_ref()) {
            continue;
        }
        let date = chrono::DateTime::from_timestamp(object.modified, 0).unwrap();
        let _ = write!(
            text,
            "<Contents><Key>{name}</Key><LastModified>{}</LastModified><ETag>&quot;{}&quot;</ETag><Size>{}</Size></Contents>",
            date.format("%Y-%m-%dT%H:%M:%S.000Z"),
            object.etag,
            object.listed_length.unwrap_or(object.content.len() as u64)
        );
    }
    text + "</ListBucketResult>"
}

/// The program, with an origin and a target.
#[derive(Debug)]
pub(crate) struct Edge {
    pub(crate) folder: tempfile::TempDir,
    settings: String,
}

impl Edge {
    /// Of the bucket's prefix `films`, with quick settings for tests.
    pub(crate) fn new(origin: &Origin) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("video")).unwrap();
        let settings = format!(
            "origin = \"s3://bucket/films\"\nendpoint = \"http://{}\"\ntarget = \"{}\"\npart = \"64KiB\"\n\
             list_seconds = \"1s\"\nstall_seconds = \"500ms\"\n",
            origin.address,
            folder.path().join("video").display()
        );
        let edge = Self { folder, settings };
        edge.credentials("KEY");
        let credentials = edge.path("credentials");
        edge.set(&format!("credentials = \"{}\"\n", credentials.display()))
    }

    /// Other settings in place of those there are.
    pub(crate) fn replace(mut self, settings: &str) -> Self {
        self.settings.clear();
        self.set(settings)
    }

    /// Adds settings.
    pub(crate) fn set(mut self, settings: &str) -> Self {
        self.settings += settings;
        std::fs::write(self.path("fill.toml"), &self.settings).unwrap();
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn credentials(&self, key: &str) {
        let text = format!(
            "AWS_ACCESS_KEY_ID={key}\nAWS_SECRET_ACCESS_KEY=hunter2\nAWS_REGION=us-east-1\n"
        );
        std::fs::write(self.path("credentials"), text).unwrap();
    }

    pub(crate) fn start(&self, flags: &[&str]) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_atlas-fill"));
        command
            .arg("--config")
            .arg(self.path("fill.toml"))
            .args(flags);
        for (name, _) in std::env::vars() {
            let is_other = ["AWS_", "http", "HTTP", "ALL_", "all_", "NO_", "no_"];
            if is_other.iter().any(|start| name.starts_with(start)) {
                command.env_remove(name);
            }
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        let stdout = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Running {
            child,
            lines,
            seen: Vec::new(),
        }
    }

    /// Runs it until all is there.
    pub(crate) fn once(&self, flags: &[&str]) -> Ended {
        let mut running = self.start(&[&["--once"], flags].concat());
        let status = running.wait();
        running.ended(status)
    }

    pub(crate) fn read(&self, name: &str) -> Option<Vec<u8>> {
        std::fs::read(self.path("video").join(name)).ok()
    }

    /// Names in the target, without the filler's own.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        walk(&self.path("video"), "", &mut names);
        names.sort();
        names
    }
}

fn walk(folder: &Path, prefix: &str, names: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        if name.starts_with('.') {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            walk(&entry.path(), &format!("{name}/"), names);
        } else {
            names.push(name);
        }
    }
}

/// A process of it.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) child: Child,
    lines: Receiver<String>,
    pub(crate) seen: Vec<Value>,
}

/// What it left.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) events: Vec<Value>,
    pub(crate) stderr: String,
}

impl Running {
    /// Waits for an event of which this is so.
    pub(crate) fn wait_for(&mut self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            let line = line.unwrap_or_else(|_| {
                let last: Vec<String> = self
                    .seen
                    .iter()
                    .rev()
                    .take(20)
                    .map(Value::to_string)
                    .collect();
                panic!("no {what}; the last ones: {last:#?}")
            });
            let event: Value = serde_json::from_str(&line).unwrap();
            self.seen.push(event.clone());
            if is_it(&event) {
                return event;
            }
        }
    }

    pub(crate) fn wait_for_event(&mut self, event: &str) -> Value {
        self.wait_for(event, |it| it["event"] == event)
    }

    pub(crate) fn wait_for_name(&mut self, event: &str, name: &str) -> Value {
        self.wait_for(event, |it| it["event"] == event && it["name"] == name)
    }

    /// Waits until this has been told of the name, if it has not been yet.
    pub(crate) fn wait_until_told(&mut self, event: &str, name: &str) {
        let is_it = |it: &Value| it["event"] == event && it["name"] == name;
        if !self.seen.iter().any(is_it) {
            self.wait_for(event, is_it);
        }
    }

    /// Waits for the event of each of these names, in any order.
    pub(crate) fn wait_for_names(&mut self, event: &str, names: &[String]) -> Vec<Value> {
        let mut left: Vec<&String> = names.iter().collect();
        let mut found = Vec::new();
        while !left.is_empty() {
            let one = self.wait_for(&format!("{event} of {left:?}"), |it| {
                it["event"] == event && left.iter().any(|name| it["name"] == name.as_str())
            });
            left.retain(|name| one["name"] != name.as_str());
            found.push(one);
        }
        found
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn terminate(self) -> Ended {
        self.end_by(rustix::process::Signal::TERM)
    }

    pub(crate) fn end_by(mut self, signal: rustix::process::Signal) -> Ended {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
        let status = self.wait();
        self.ended(status)
    }

    fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            if Instant::now() > deadline {
                let _ = self.child.kill();
                self.seen.extend(self.lines.try_iter().map(Value::from));
                panic!("it does not end: {:#?}", self.seen);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn ended(mut self, status: ExitStatus) -> Ended {
        let mut stderr = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut stderr)
            .unwrap();
        let lines: Vec<String> = self.lines.iter().collect();
        let events = lines.iter().map(|line| serde_json::from_str(line).unwrap());
        let mut all = std::mem::take(&mut self.seen);
        all.extend(events);
        Ended {
            code: status.code(),
            events: all,
            stderr,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// The events of this kind.
    pub(crate) fn of(&self, event: &str) -> Vec<&Value> {
        self.events
            .iter()
            .filter(|it| it["event"] == event)
            .collect()
    }
}
