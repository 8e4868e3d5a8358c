//! `cargo xtask soak store`: a raw store is served for minutes while it is changed without a pause.
//!
//! The server, with two workers, serves an image over a TAP in a network namespace. `atlas store` adds,
//! replaces and removes objects, trims, verifies and reads; the store is asked to be made anew, which must be
//! refused; the server gets SIGHUPs. Fast clients compare every byte with what was stored under the entity
//! tag of the reply, and slow ones do so for minutes with objects that were replaced long ago.
//!
//! It fails at a byte that differs, a reply or a command that is refused without a reason, a connection that
//! is reset, memory that grows ([`GROWTH_BYTES_MAX`] after the first minute), and space that does not come
//! back when the last client is gone. Bounded by `--minutes`, and a few minutes for the end.
//!
//! `cargo xtask soak nat` is the check of that name of `cargo xtask netns`, for minutes.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Display;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::{Args, Subcommand};
use rustix::process::Signal;
use testbed::client::{Client, Head};
use testbed::content::{self, Content};
use testbed::namespace::Namespace;
use testbed::program::Program;
use testbed::server::Server;
use testbed::{interrupt, is_root, process, scratch_directory};
use volume::ContentDigest;

use crate::netns::nat;

/// Most that the server's resident memory may grow after the first minute, bytes.
const GROWTH_BYTES_MAX: u64 = 16 << 20;
/// How long the server warms up: tables and buffers are used for the first time.
const WARM_UP: Duration = Duration::from_secs(60);
/// Names of objects, `o0` and so on.
const NAMES: u64 = 16;
/// Of those, the first ones that are always there.
const LASTING_NAMES: u64 = 4;
/// Largest object, bytes. All of them, and what clients may keep, are half of [`STORE_BYTES`].
const OBJECT_BYTES_MAX: u64 = 4 << 20;
/// Bytes of the store.
const STORE_BYTES: u64 = 256 << 20;
/// Clients that take whole objects as fast as they come.
const FAST_CLIENTS: u64 = 3;
/// Clients that take one for minutes.
const SLOW_CLIENTS: u64 = 6;
/// A slow client reads so much, and then waits: 32 KiB a second.
const SLOW_PIECE_BYTES: u64 = 16 << 10;
const SLOW_PAUSE: Duration = Duration::from_millis(500);
/// A command of the store takes seconds.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);
/// How long space may take to come back after the last client: looks of the server, once a second.
const SPACE_LIMIT: Duration = Duration::from_secs(30);
/// Where Atlas answers when it is not told otherwise.
const ADDRESS: &str = "10.77.0.2:80";

/// What is kept busy.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum Soak {
    /// A raw store that is changed while it is served (needs root)
    Store(StoreOptions),
    /// Two clients behind a NAT with few ports, beside the kernel's TCP (needs root)
    Nat(NatOptions),
}

/// Options of `soak nat`.
#[derive(Args, Clone, Debug)]
pub(crate) struct NatOptions {
    /// How long with timestamps, and how long without
    #[arg(long, value_name = "N", default_value_t = 180, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// The server to try (default: builds the release binary)
    #[arg(long, value_name = "PATH")]
    atlas: Option<PathBuf>,
}

/// Options of `soak store`.
#[derive(Args, Clone, Debug)]
pub(crate) struct StoreOptions {
    /// How long
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    minutes: u64,
    /// Images that the store is on
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=8))]
    devices: u64,
    /// What is chosen at random follows from it
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The server to try (default: builds the release binary)
    #[arg(long, value_name = "PATH")]
    atlas: Option<PathBuf>,
}

/// Runs it.
pub(crate) fn run_command(soak: &Soak) -> Result<()> {
    ensure!(is_root(), "it needs root, for a network namespace");
    match soak {
        Soak::Store(options) => soak_store(options),
        Soak::Nat(options) => {
            let atlas = Program::Atlas.find(options.atlas.as_deref())?;
            nat::soak(&atlas, Duration::from_secs(options.seconds))
        }
    }
}

fn soak_store(options: &StoreOptions) -> Result<()> {
    let atlas = Program::Atlas.find(options.atlas.as_deref())?;
    let directory = scratch_directory("soak")?;
    let site = Site::new(atlas, directory.path(), options.devices)?;
    let mut changes = Changes::new(&site, directory.path(), options.seed)?;
    for number in 0..LASTING_NAMES {
        changes.add(number)?;
    }
    let namespace = Namespace::new("soak")?;
    // A slow client's kernel would otherwise take whole objects at once.
    namespace.set("ipv4/tcp_rmem", "4096 16384 65536")?;
    let mut command = namespace.command("env");
    command.arg(&site.atlas).arg("serve").arg(&site.store);
    let server = Server::atlas(command.args(["--workers", "2"]))?;
    let crowd = Crowd::start(&namespace, &site, options.seed)?;
    let outcome = changes.run(&server, Duration::from_secs(60 * options.minutes));
    crowd.end(outcome)?;
    site.await_space()?;
    changes.report(server)
}

/// The store, and what was stored.
#[derive(Clone, Debug)]
struct Site {
    atlas: PathBuf,
    /// As `atlas` takes it.
    store: PathBuf,
    shared: Arc<Shared>,
}

/// What the threads share.
#[derive(Debug, Default)]
struct Shared {
    /// By entity tag, without its quotes; of all objects that ever were.
    contents: Mutex<HashMap<String, Content>>,
    /// The first thing that went wrong.
    problem: Mutex<Option<String>>,
    is_over: AtomicBool,
    replies: AtomicU64,
    missing: AtomicU64,
    bytes: AtomicU64,
    slow_replies: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed) || interrupt::is_set()
    }

    fn note_problem(&self, problem: impl Display) {
        lock(&self.problem).get_or_insert_with(|| problem.to_string());
    }

    /// # Errors
    /// The first thing that went wrong.
    fn check(&self) -> Result<()> {
        interrupt::check()?;
        let problem = lock(&self.problem).clone();
        problem.map_or(Ok(()), |problem| Err(anyhow!(problem)))
    }

    fn content_of(&self, tag: &str) -> Result<Content> {
        let known = lock(&self.contents).get(tag).copied();
        known.with_context(|| format!("an entity tag that nothing was stored under: {tag}"))
    }
}

impl Site {
    fn new(atlas: PathBuf, directory: &Path, devices: u64) -> Result<Self> {
        let images = (0..devices).map(|number| directory.join(format!("image{number}")));
        let names: Vec<_> = images.map(|image| image.display().to_string()).collect();
        let site = Self {
            atlas,
            store: names.join(",").into(),
            shared: Arc::default(),
        };
        let size = (STORE_BYTES / devices).next_multiple_of(1 << 20);
        site.succeed("init", &["--size", &size.to_string()])?;
        Ok(site)
    }

    fn run(&self, command: &str, words: &[&str]) -> Result<Output> {
        let mut atlas = Command::new(&self.atlas);
        atlas.args(["store", command]).arg(&self.store).args(words);
        process::output(&mut atlas, COMMAND_LIMIT)
    }

    fn succeed(&self, command: &str, words: &[&str]) -> Result<Vec<u8>> {
        let output = self.run(command, words)?;
        ensure!(
            output.status.success(),
            "atlas store {command} {words:?}: {}, {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(output.stdout)
    }

    /// It is never made anew while it is served.
    fn init_in_vain(&self) -> Result<()> {
        let output = self.run("init", &["--overwrite-existing"])?;
        ensure!(
            output.status.code() == Some(2),
            "atlas store init of a store that is served: {}, {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    }

    /// Waits until nothing of what was removed is kept any more.
    fn await_space(&self) -> Result<()> {
        let deadline = Instant::now() + SPACE_LIMIT;
        loop {
            // It frees what waits for another catalogue only.
            self.succeed("trim", &[])?;
            let text = String::from_utf8(self.succeed("stat", &[])?)?;
            let Some(waiting) = text.lines().find(|line| line.contains("waiting")) else {
                return Ok(());
            };
            ensure!(
                Instant::now() < deadline,
                "space does not come back though nobody is sent anything: {waiting}"
            );
            interrupt::check()?;
            std::thread::sleep(Duration::from_secs(1));
        }
    }
}

/// Seeded choices (xorshift).
#[derive(Clone, Debug)]
struct Choices(u64);

impl Choices {
    fn new(seed: u64, of_whom: u64) -> Self {
        let mixed = (seed << 8 ^ of_whom).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self(mixed | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Changes of the store, one after the other.
#[derive(Debug)]
struct Changes<'a> {
    site: &'a Site,
    /// A file is made here before it is added.
    directory: PathBuf,
    choices: Choices,
    there: BTreeSet<u64>,
    /// How often each command was carried out.
    counts: [(&'static str, u64); 7],
    memory: Memory,
}

/// Resident memory of the server, bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    warm: Option<u64>,
    most: u64,
    last: u64,
}

impl<'a> Changes<'a> {
    fn new(site: &'a Site, directory: &Path, seed: u64) -> Result<Self> {
        let directory = directory.join("files");
        fs::create_dir(&directory)?;
        Ok(Self {
            site,
            directory,
            choices: Choices::new(seed, 0),
            there: BTreeSet::new(),
            counts: ["add", "rm", "trim", "verify", "stat", "init", "SIGHUP"].map(|it| (it, 0)),
            memory: Memory::default(),
        })
    }

    /// Changes the store until it is time.
    fn run(&mut self, server: &Server, time: Duration) -> Result<()> {
        let start = Instant::now();
        let mut said = start;
        while start.elapsed() < time {
            self.site.shared.check()?;
            self.change(server)?;
            self.sample(server, start.elapsed() >= WARM_UP.min(time / 2))?;
            if said.elapsed() >= WARM_UP {
                said = Instant::now();
                println!("{:>4} s: {}", start.elapsed().as_secs(), self.progress());
            }
        }
        self.site.shared.check()
    }

    fn change(&mut self, server: &Server) -> Result<()> {
        let choice = self.choices.below(20);
        let number = self.choices.below(NAMES);
        let which = match choice {
            0..=11 => {
                self.add(number)?;
                0
            }
            12..=14 => {
                if number < LASTING_NAMES || !self.there.remove(&number) {
                    return Ok(());
                }
                self.site.succeed("rm", &[&format!("o{number}")])?;
                1
            }
            15 => {
                self.site.succeed("trim", &[])?;
                2
            }
            16 => {
                self.site.succeed("verify", &[])?;
                3
            }
            17 => {
                self.site.succeed("stat", &[])?;
                4
            }
            18 => {
                self.site.init_in_vain()?;
                5
            }
            _ => {
                server.signal(Signal::HUP)?;
                6
            }
        };
        self.counts[which].1 += 1;
        Ok(())
    }

    /// Adds an object, or replaces it.
    fn add(&mut self, number: u64) -> Result<()> {
        let content = Content {
            seed: self.choices.next(),
            size_bytes: self.choices.below(OBJECT_BYTES_MAX),
        };
        let path = self.directory.join(format!("o{number}"));
        content::write(content, &path)?;
        // Before it can be served.
        let tag = tag_of(&fs::read(&path)?);
        lock(&self.site.shared.contents).insert(tag, content);
        self.site.succeed("add", &[&path.display().to_string()])?;
        self.there.insert(number);
        Ok(())
    }

    fn sample(&mut self, server: &Server, is_warm: bool) -> Result<()> {
        let status = fs::read_to_string(format!("/proc/{}/status", server.id()))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = resident.and_then(|text| text.split_whitespace().next());
        let kib: u64 = kib.context("a process has VmRSS")?.parse()?;
        self.memory.last = kib << 10;
        self.memory.most = self.memory.most.max(self.memory.last);
        if is_warm && self.memory.warm.is_none() {
            self.memory.warm = Some(self.memory.last);
        }
        Ok(())
    }

    fn progress(&self) -> String {
        let shared = &self.site.shared;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        format!(
            "{} replies compared ({} MiB), {} of slow clients, {} not there; {} KiB resident",
            count(&shared.replies),
            count(&shared.bytes) >> 20,
            count(&shared.slow_replies),
            count(&shared.missing),
            self.memory.last >> 10
        )
    }

    /// Ends the server, and judges what was seen.
    fn report(self, server: Server) -> Result<()> {
        let stopped = server.stop()?;
        ensure!(
            stopped.status.success(),
            "the server ended with {}: {}",
            stopped.status,
            stopped.last_words()
        );
        println!("done: {}", self.progress());
        let counts = self.counts.map(|(name, count)| format!("{count} {name}"));
        println!("commands: {}", counts.join(", "));
        for name in ["store_failed_catalogues", "store_outdated_objects"] {
            ensure!(stopped.counter(name)? == 0, "{name} is not 0");
        }
        ensure!(
            stopped.counter("memory_free_slots")? == stopped.counter("memory_all_slots")?,
            "slots are lost"
        );
        let warm = self.memory.warm.context("it ran for some time")?;
        println!(
            "resident memory: {} KiB when warm, {} KiB at most, {} KiB at the end",
            warm >> 10,
            self.memory.most >> 10,
            self.memory.last >> 10
        );
        ensure!(
            self.memory.last <= warm + GROWTH_BYTES_MAX,
            "resident memory has grown by more than {} MiB",
            GROWTH_BYTES_MAX >> 20
        );
        Ok(())
    }
}

/// The entity tag of a content (docs/develop/store-format.md), without quotes.
fn tag_of(bytes: &[u8]) -> String {
    let mut digest = ContentDigest::new();
    digest.update(bytes);
    digest.finish().1.to_string()
}

/// All clients, and a process that reads the store beside them.
#[derive(Debug)]
struct Crowd {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Crowd {
    fn start(namespace: &Namespace, site: &Site, seed: u64) -> Result<Self> {
        let mut threads = Vec::new();
        let all = Arc::clone(&site.shared);
        for number in 0..FAST_CLIENTS + SLOW_CLIENTS {
            let choices = Choices::new(seed, 1 + number);
            let shared = Arc::clone(&site.shared);
            threads.push(namespace.spawn(move || {
                let outcome = if number < FAST_CLIENTS {
                    fetch_fast(&shared, choices)
                } else {
                    fetch_slowly(&shared, choices)
                };
                if let Err(error) = outcome {
                    shared.note_problem(format!("client {number}: {error:#}"));
                }
            })?);
        }
        let (site, choices) = (site.clone(), Choices::new(seed, 255));
        threads.push(std::thread::spawn(move || {
            if let Err(error) = read_beside(&site, choices) {
                site.shared.note_problem(format!("{error:#}"));
            }
        }));
        Ok(Self {
            shared: all,
            threads,
        })
    }

    /// Ends all, and returns what went wrong first.
    fn end(self, outcome: Result<()>) -> Result<()> {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let panics = self.threads.into_iter().filter_map(|it| it.join().err());
        let panics = panics.count();
        outcome?;
        ensure!(panics == 0, "{panics} clients panicked");
        self.shared.check()
    }
}

/// The content that a reply is of; `None`: there is no such object.
fn content_of_reply(shared: &Shared, number: u64, head: &Head) -> Result<Option<Content>> {
    match head.status {
        404 if number >= LASTING_NAMES => {
            shared.missing.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        }
        // The part begins behind the object's end.
        416 => return Ok(None),
        200 | 206 => {}
        status => bail!("o{number} is answered with {status}"),
    }
    let tag = head.field("etag").context("a reply without ETag")?;
    shared.content_of(tag.trim_matches('"')).map(Some)
}

/// Whole objects and parts of them, on one connection.
fn fetch_fast(shared: &Shared, mut choices: Choices) -> Result<()> {
    let address: SocketAddr = ADDRESS.parse()?;
    let mut client = Client::connect_from_here(address)?;
    while !shared.is_over() {
        if choices.below(16) == 0 {
            client = Client::connect_from_here(address)?;
        }
        let number = choices.below(NAMES);
        let start = choices.below(OBJECT_BYTES_MAX);
        let range = if choices.below(3) == 0 {
            format!("Range: bytes={start}-\r\n")
        } else {
            String::new()
        };
        client.ask("GET", &format!("/o{number}"), &range)?;
        let head = client.read_head()?;
        let content = content_of_reply(shared, number, &head)?;
        let Some(content) = content else {
            client.read_body(&head, "GET")?;
            continue;
        };
        let start = if head.status == 206 { start } else { 0 };
        let count = content.size_bytes - start.min(content.size_bytes);
        check_length(&head, count)?;
        client.read_checked(content, start, count)?;
        shared.replies.fetch_add(1, Ordering::Relaxed);
        shared.bytes.fetch_add(count, Ordering::Relaxed);
    }
    Ok(())
}

/// Whole objects, each for minutes: by then it was replaced.
fn fetch_slowly(shared: &Shared, mut choices: Choices) -> Result<()> {
    let address: SocketAddr = ADDRESS.parse()?;
    while !shared.is_over() {
        let number = choices.below(LASTING_NAMES);
        let mut client = Client::connect_from_here(address)?;
        client.ask("GET", &format!("/o{number}"), "Connection: close\r\n")?;
        let head = client.read_head()?;
        let content = content_of_reply(shared, number, &head)?;
        let content = content.context("a lasting object is there")?;
        check_length(&head, content.size_bytes)?;
        let mut at = 0;
        while at < content.size_bytes && !shared.is_over() {
            let count = SLOW_PIECE_BYTES.min(content.size_bytes - at);
            client.read_checked(content, at, count)?;
            at += count;
            shared.bytes.fetch_add(count, Ordering::Relaxed);
            std::thread::sleep(SLOW_PAUSE);
        }
        if at == content.size_bytes {
            shared.slow_replies.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

fn check_length(head: &Head, expected: u64) -> Result<()> {
    let length = head.field("content-length").and_then(|it| it.parse().ok());
    ensure!(
        length == Some(expected),
        "a reply of {length:?} bytes, and {expected} were stored"
    );
    Ok(())
}

/// Reads objects past the server.
fn read_beside(site: &Site, mut choices: Choices) -> Result<()> {
    while !site.shared.is_over() {
        let name = format!("o{}", choices.below(LASTING_NAMES));
        let bytes = site.succeed("get", &[&name])?;
        let content = site.shared.content_of(&tag_of(&bytes))?;
        content.check(0, &bytes)?;
        ensure!(
            content.size_bytes == bytes.len() as u64,
            "{name}: not all of its bytes"
        );
        std::thread::sleep(SLOW_PAUSE);
    }
    Ok(())
}
