//! Viewers that are plain programs: they ask the steering which edges have an object, take it from the first that gives
//! it, go on at the next from the byte where one fails, and compare every byte.
//!
//! Bounded by: a limit on every connection and every silence, and one round over the edges and the origin.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use testbed::client::{Client, Head};
use testbed::interrupt;

use crate::library::Object;
use crate::origin::{ADDRESS, in_threads};

/// Where the steering answers.
pub(crate) const STEERING: &str = "10.78.0.1:8090";

/// The longest silence of an edge: after that a viewer goes elsewhere.
const SILENCE_LIMIT: Duration = Duration::from_secs(4);

/// That of the origin, behind which there is nothing: here it has what others leave of the processors.
const ORIGIN_SILENCE_LIMIT: Duration = Duration::from_secs(30);

/// Most of those that went wrong that a message names.
const TOLD_MAX: usize = 10;

/// Viewers at once.
const VIEWERS: usize = 48;

/// What became of requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    /// Answered by an edge.
    pub(crate) hits: u64,
    pub(crate) hit_bytes: u64,
    /// Sent on to the origin by an edge.
    pub(crate) redirected: u64,
    /// Asked of the origin because no edge could be.
    pub(crate) without_edge: u64,
    /// Times that an edge failed and another place went on, by what failed.
    pub(crate) moved: HashMap<&'static str, u64>,
    /// Requests that nobody answered, and bytes that were not the object's: why.
    pub(crate) failed: Vec<String>,
    pub(crate) wrong: Vec<String>,
    /// Who gave the last byte, and how often.
    pub(crate) places: HashMap<String, u64>,
    /// From the question of the steering to the last byte, microseconds.
    pub(crate) micros: Vec<u64>,
}

impl Tally {
    pub(crate) fn moves(&self) -> u64 {
        self.moved.values().sum()
    }

    /// A share of the requests' times, in milliseconds.
    pub(crate) fn millis_at(&self, share: f64) -> f64 {
        let mut sorted = self.micros.clone();
        sorted.sort_unstable();
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an index of a list in memory, and hours, which are below 2^52 us"
        )]
        let index = (sorted.len() as f64 * share) as usize;
        let micros = sorted.get(index.min(sorted.len().saturating_sub(1)));
        micros.map_or(0.0, |it| *it as f64 / 1_000.0)
    }

    /// Fails if anything was wrong or did not come.
    pub(crate) fn check(&self) -> Result<()> {
        for (what, all) in [("wrong bytes", &self.wrong), ("failed", &self.failed)] {
            let first = all.get(..TOLD_MAX).unwrap_or(all);
            ensure!(all.is_empty(), "{what}: {} such as {first:?}", all.len());
        }
        Ok(())
    }
}

/// What all viewers of a run share.
#[derive(Debug, Default)]
pub(crate) struct Audience {
    tally: Mutex<Tally>,
    /// Requests since the beginning.
    pub(crate) done: AtomicUsize,
    /// Whether no more are to be made.
    pub(crate) is_over: AtomicBool,
}

impl Audience {
    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn taken(&self) -> Tally {
        self.tally().clone()
    }

    /// Asks for a trace's objects at a rate, in this order; to be called inside a namespace.
    pub(crate) fn play(&self, objects: &[Object], trace: &[usize], rate: u32) -> Result<()> {
        let start = Instant::now();
        let next = AtomicUsize::new(0);
        let view = || -> Result<()> {
            let mut viewer = Viewer::new(self);
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(object) = trace.get(index) else {
                    return Ok(());
                };
                if self.is_over.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let due = start + Duration::from_secs(1) * u32::try_from(index)? / rate;
                // A paced trace: the filler has the time between requests that it has for viewers.
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                interrupt::check()?;
                viewer.view(&objects[*object]);
                self.done.fetch_add(1, Ordering::Relaxed);
            }
        };
        in_threads(VIEWERS, view)
    }
}

/// Why a place did not give all of an object.
#[derive(Debug)]
enum Trouble {
    /// Another place may.
    Elsewhere(&'static str),
    /// Its bytes are not the object's.
    Wrong(String),
}

/// One viewer, with a connection to each server that it asked.
#[derive(Debug)]
pub(crate) struct Viewer<'a> {
    audience: &'a Audience,
    clients: HashMap<String, Client>,
    /// The edges told last: what a viewer goes by while no steering answers.
    edges: Vec<String>,
}

impl<'a> Viewer<'a> {
    pub(crate) fn new(audience: &'a Audience) -> Self {
        Self {
            audience,
            clients: HashMap::new(),
            edges: Vec::new(),
        }
    }

    /// Takes an object from wherever it can be had.
    pub(crate) fn view(&mut self, object: &Object) {
        let start = Instant::now();
        self.resolve(object);
        let places = self.edges.clone();
        let mut at = 0;
        let mut end = None;
        for place in places {
            match self.take(&place, object, &mut at) {
                Ok(is_hit) => {
                    end = Some((is_hit, place));
                    break;
                }
                Err(Trouble::Wrong(why)) => {
                    let told = format!("{} from {place}: {why}", object.name);
                    return self.audience.tally().wrong.push(told);
                }
                Err(Trouble::Elsewhere(why)) => {
                    *self.audience.tally().moved.entry(why).or_default() += 1;
                }
            }
        }
        let mut told = None;
        if end.is_none()
            && let Err(trouble) = self.take(ADDRESS, object, &mut at)
        {
            told = Some(format!("{}: {trouble:?}", object.name));
        }
        let mut tally = self.audience.tally();
        tally.requests += 1;
        tally.bytes += object.content.size_bytes;
        let place = match end {
            Some((true, place)) => {
                tally.hits += 1;
                tally.hit_bytes += object.content.size_bytes;
                place
            }
            Some((false, place)) => {
                tally.redirected += 1;
                format!("origin for {place}")
            }
            None => {
                tally.without_edge += 1;
                "origin alone".to_owned()
            }
        };
        *tally.places.entry(place).or_default() += 1;
        tally.failed.extend(told);
        let micros = u64::try_from(start.elapsed().as_micros());
        tally.micros.push(micros.unwrap_or(u64::MAX));
    }

    /// The edges for an object, first those that have it.
    fn resolve(&mut self, object: &Object) {
        let target = format!("/resolve?path=/{}", object.name);
        let mut ask = || -> Result<Vec<String>> {
            let mut client = match self.clients.remove(STEERING) {
                Some(client) => client,
                None => Client::connect_within(STEERING.parse()?, SILENCE_LIMIT)?,
            };
            let (head, body) = client.exchange("GET", &target, "")?;
            ensure!(head.status == 200, "{}", head.status);
            self.clients.insert(STEERING.to_owned(), client);
            edges_of(&body)
        };
        // A connection that was closed meanwhile is made anew.
        match ask().or_else(|_| ask()) {
            Ok(edges) => self.edges = edges,
            Err(_) => {
                let mut tally = self.audience.tally();
                *tally.moved.entry("no steering").or_default() += 1;
            }
        }
    }

    /// Takes the rest of an object from a place; whether that had it, or the origin did.
    fn take(&mut self, place: &str, object: &Object, at: &mut u64) -> Result<bool, Trouble> {
        let path = format!("/{}", object.name);
        let head = self.ask(place, &path, *at)?;
        if head.status != 307 {
            self.receive(place, &head, object, at)?;
            return Ok(true);
        }
        let location = head.field("location").unwrap_or_default();
        let (host, path) = location
            .strip_prefix("http://")
            .and_then(|rest| rest.split_once('/'))
            .ok_or(Trouble::Elsewhere("no location"))?;
        let host = match host.contains(':') {
            true => host.to_owned(),
            false => format!("{host}:80"),
        };
        let head = self.ask(&host, &format!("/{path}"), *at)?;
        self.receive(&host, &head, object, at)?;
        Ok(false)
    }

    fn ask(&mut self, place: &str, path: &str, at: u64) -> Result<Head, Trouble> {
        let range = match at {
            0 => String::new(),
            at => format!("Range: bytes={at}-\r\n"),
        };
        let limit = match self.edges.iter().any(|edge| edge == place) {
            true => SILENCE_LIMIT,
            false => ORIGIN_SILENCE_LIMIT,
        };
        if let Some(mut client) = self.clients.remove(place) {
            let start = Instant::now();
            let asked = client.ask("GET", path, &range);
            if let Ok(head) = asked.and_then(|()| client.read_head()) {
                self.clients.insert(place.to_owned(), client);
                return Ok(head);
            }
            // One that was closed meanwhile fails at once.
            if start.elapsed() >= limit {
                return Err(Trouble::Elsewhere("no reply"));
            }
        }
        let address: SocketAddr = place
            .parse()
            .map_err(|_| Trouble::Elsewhere("no address"))?;
        let mut client = Client::connect_within(address, limit)
            .map_err(|_| Trouble::Elsewhere("no connection"))?;
        let asked = client.ask("GET", path, &range);
        let head = asked
            .and_then(|()| client.read_head())
            .map_err(|_| Trouble::Elsewhere("no reply"))?;
        self.clients.insert(place.to_owned(), client);
        Ok(head)
    }

    fn receive(
        &mut self,
        place: &str,
        head: &Head,
        object: &Object,
        at: &mut u64,
    ) -> Result<(), Trouble> {
        let content = object.content;
        let status = if *at == 0 { 200 } else { 206 };
        if head.status != status {
            return Err(Trouble::Elsewhere("another status"));
        }
        let left = content.size_bytes - *at;
        let length = head.field("content-length").and_then(|it| it.parse().ok());
        if length != Some(left) {
            return Err(Trouble::Wrong(format!("{length:?} of {left} bytes")));
        }
        let mut client = self.clients.remove(place).expect("invariant: it was asked");
        let mut wrong = None;
        let received = client.read_pieces(left, |piece| {
            let checked = content.check(*at, piece);
            if let Err(why) = &checked {
                wrong = Some(why.to_string());
            }
            *at += piece.len() as u64;
            checked
        });
        match (wrong, received) {
            (Some(why), _) => Err(Trouble::Wrong(why)),
            (None, Err(_)) => Err(Trouble::Elsewhere("broke off")),
            (None, Ok(())) => {
                self.clients.insert(place.to_owned(), client);
                Ok(())
            }
        }
    }
}

/// The edges of an answer of `/resolve`, as addresses.
pub(crate) fn edges_of(body: &[u8]) -> Result<Vec<String>> {
    let told: serde_json::Value = serde_json::from_slice(body)?;
    let edges = told["edges"].as_array().context("no edges")?;
    let edges = edges.iter().map(|edge| {
        let url = edge["url"].as_str().context("an edge has a URL")?;
        let host = url.strip_prefix("http://").context("plain HTTP")?;
        Ok(match host.contains(':') {
            true => host.to_owned(),
            false => format!("{host}:80"),
        })
    });
    edges.collect()
}
