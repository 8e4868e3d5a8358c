//! Storms of misses: thousands of clients that ask for one object that is not there, or for a name each.
//!
//! The origin counts what it was asked. Beside it a stream goes on, whose bytes are compared and whose silences are told.
//! Bounded by: the connections, which are all there before the first asks, and the time a request is held.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use testbed::client::Client;
use testbed::content::{Content, OBJECT_SEED};

use crate::edge::{Fleet, STORM_FOLDER};
use crate::faults::plan_with_films;
use crate::library::Object;
use crate::origin::Who;
use crate::stage::{Stage, await_true};

/// The object of the first storm.
const STORM_BYTES: u64 = 4_096;

/// Descriptors beside those of the storm.
const SPARE_DESCRIPTORS: u64 = 1_000;

/// Replies come after the object, or after the longest hold.
const REPLY_LIMIT: Duration = Duration::from_secs(60);

/// What a storm's replies were, and how long it took.
#[derive(Debug, Default)]
struct Replies {
    whole: u64,
    redirected: u64,
    absent: u64,
    seconds: f64,
}

/// Runs all storms of so many clients against one edge.
pub(crate) fn run(stage: &Stage, clients: usize) -> Result<()> {
    let wanted = u64::try_from(clients)? + SPARE_DESCRIPTORS;
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    ensure!(
        maximum.is_none_or(|it| it >= wanted),
        "{maximum:?} descriptors are allowed, {wanted} are needed"
    );
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum.or(Some(wanted)),
            maximum,
        },
    )?;
    let fleet = Fleet::start(stage, plan_with_films(stage), 1)?;
    let object = Object {
        name: format!("{STORM_FOLDER}/one.bin"),
        content: Content::new(OBJECT_SEED - 1, STORM_BYTES),
    };
    stage
        .origin
        .upload(&stage.core, std::slice::from_ref(&object))?;
    let elsewhere = &stage.objects[0];
    let before = fleet.memory(1)?;

    let held = beside_a_stream(
        stage,
        &format!("{clients} clients ask for one name, held"),
        || {
            let mark = stage.origin.mark()?;
            let replies = ask(stage, clients, |_| object.name.clone(), Some(&object))?;
            ensure!(replies.whole == clients as u64, "{replies:?}");
            once(stage, mark, &object)?;
            Ok(replies)
        },
    );
    held?;
    let redirected = format!("{clients} clients ask for one name, redirected");
    beside_a_stream(stage, &redirected, || {
        let mark = stage.origin.mark()?;
        let replies = ask(stage, clients, |_| elsewhere.name.clone(), None)?;
        ensure!(
            replies.redirected + replies.whole == clients as u64,
            "{replies:?}"
        );
        once(stage, mark, elsewhere)?;
        Ok(replies)
    })?;
    let absent = format!("{clients} clients ask for a name each that is nowhere, held");
    beside_a_stream(stage, &absent, || {
        let mark = stage.origin.mark()?;
        let name = |index| format!("{STORM_FOLDER}/absent-{index}");
        let replies = ask(stage, clients, name, None)?;
        ensure!(replies.absent == clients as u64, "{replies:?}");
        let asked = stage.origin.since(mark)?;
        let is_storm = |name: &str| name.starts_with(STORM_FOLDER);
        let asked = asked.iter().filter(|it| is_storm(&it.name)).count();
        println!("        the origin was asked {asked} times for {clients} names");
        Ok(replies)
    })?;
    let after = fleet.memory(1)?;
    for (name, before, after) in [
        ("atlas", before[0], after[0]),
        ("atlas-fill", before[1], after[1]),
    ] {
        println!(
            "        {name}: resident {} KiB before, {} KiB after, {} KiB at most; {} threads before, {} after",
            before[0], after[0], after[1], before[2], after[2]
        );
    }
    Ok(())
}

/// Fails unless an object was fetched by the edge once since then.
fn once(stage: &Stage, mark: u64, object: &Object) -> Result<()> {
    let fetches = || -> Result<usize> {
        let asked = stage.origin.since(mark)?;
        let is_fetch = |it: &&crate::origin::Request| {
            it.is_get() && it.who == Who::Edge && it.name == object.name
        };
        Ok(asked.iter().filter(is_fetch).count())
    };
    await_true("the object is fetched", || Ok(fetches()? > 0))?;
    let fetches = fetches()?;
    println!("        the origin was asked for it {fetches} times");
    ensure!(fetches == 1, "it was fetched {fetches} times");
    Ok(())
}

/// Opens all connections, asks on each, and then reads each reply.
fn ask(
    stage: &Stage,
    clients: usize,
    name: impl Fn(usize) -> String + Sync,
    object: Option<&Object>,
) -> Result<Replies> {
    let address: SocketAddr = "10.78.2.1:80".parse()?;
    stage.core.enter(|| {
        let mut all = Vec::with_capacity(clients);
        for _ in 0..clients {
            all.push(Client::connect_within(address, REPLY_LIMIT)?);
        }
        let start = Instant::now();
        for (index, client) in all.iter_mut().enumerate() {
            client.ask("GET", &format!("/{}", name(index)), "")?;
        }
        let mut replies = Replies::default();
        for (index, client) in all.iter_mut().enumerate() {
            let head = client
                .read_head()
                .with_context(|| format!("client {index}"))?;
            match (head.status, object) {
                (200, Some(object)) => {
                    client.read_checked(object.content, 0, object.content.size_bytes)?;
                    replies.whole += 1;
                }
                (200, None) => replies.whole += 1,
                (307, _) => replies.redirected += 1,
                (404, _) => replies.absent += 1,
                (status, _) => anyhow::bail!("client {index} got {status}"),
            }
        }
        replies.seconds = start.elapsed().as_secs_f64();
        Ok(replies)
    })
}

/// Runs a storm beside a stream, and tells both.
fn beside_a_stream(
    stage: &Stage,
    name: &str,
    storm: impl FnOnce() -> Result<Replies>,
) -> Result<()> {
    println!("        {name}:");
    let is_over = AtomicBool::new(false);
    let (replies, stream) = std::thread::scope(|scope| {
        let stream = scope.spawn(|| stage.core.enter(|| view(stage, &is_over)));
        let replies = storm();
        is_over.store(true, Ordering::Relaxed);
        (replies, stream.join())
    });
    let stream = stream.map_err(|_| anyhow::anyhow!("the stream panicked"))?;
    let replies = replies?;
    let (bytes, silence) = stream.context("the stream beside it")?;
    println!(
        "        {} whole, {} redirected, {} absent in {:.1} s; beside it a stream had {bytes} right bytes, and {} ms \
         at most without any",
        replies.whole,
        replies.redirected,
        replies.absent,
        replies.seconds,
        silence.as_millis()
    );
    Ok(())
}

/// Views long objects until the storm is over; bytes, and the longest silence within a reply.
fn view(stage: &Stage, is_over: &AtomicBool) -> Result<(u64, Duration)> {
    let mut client = Client::connect_within("10.78.2.1:80".parse()?, REPLY_LIMIT)?;
    let (mut bytes, mut longest) = (0, Duration::ZERO);
    for object in stage.long.iter().cycle() {
        let content = object.content;
        client.ask("GET", &format!("/{}", object.name), "")?;
        let head = client.read_head()?;
        ensure!(head.status == 200, "{}: {}", object.name, head.status);
        let (mut at, mut last) = (0, Instant::now());
        client.read_pieces(content.size_bytes, |piece| {
            content.check(at, piece)?;
            at += piece.len() as u64;
            longest = longest.max(last.elapsed());
            last = Instant::now();
            Ok(())
        })?;
        bytes += at;
        if is_over.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok((bytes, longest))
}
