//! What `atlas serve` tells at its monitoring listener: what viewers missed (`/misses`), and how often each object was asked
//! for (`/counts`). Lines of JSON; the first one says of which process they are.
//!
//! It refuses names that no file can have, lines that it does not understand, and replies of more than `REPLY_BYTES_MAX`.
//! A server that is not there is asked again.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::origin::is_name;
use crate::plan::Name;

/// Most bytes of a reply.
const REPLY_BYTES_MAX: usize = 256 << 20;
/// The longest that a reply may take.
const LIMIT: Duration = Duration::from_secs(10);

/// The first line of both.
#[derive(Deserialize, Debug)]
struct Head {
    instance: String,
    /// Of `/misses`: what to ask for the next time.
    next: Option<u64>,
    /// Of `/counts`: when counting began.
    began: Option<i64>,
}

/// A line of `/misses`.
#[derive(Deserialize, Debug)]
struct MissLine {
    path: String,
    #[serde(default)]
    site: String,
    directory: Option<PathBuf>,
    #[serde(default = "one")]
    requests: u64,
}

const fn one() -> u64 {
    1
}

/// A line of `/counts`.
#[derive(Deserialize, Debug)]
struct CountLine {
    path: String,
    #[serde(default)]
    site: String,
    directory: Option<PathBuf>,
    requests: u64,
    /// So many of them may have been for objects that were counted in its place before.
    #[serde(default)]
    excess_max: u64,
}

/// Names, and how often each was asked for since the last time.
pub type Requests = Vec<(Name, u64)>;

/// The listener of a server.
#[derive(Debug)]
pub struct Feed {
    client: reqwest::Client,
    server: SocketAddr,
    site: Option<String>,
    target: PathBuf,
    misses_of: String,
    next_miss: u64,
    counts_of: (String, Option<i64>),
    counted: HashMap<Name, u64>,
}

impl Feed {
    /// Of this listener; with a site only what is asked of that. What is beneath a directory beside the server's PATH is looked
    /// at only if that is `target`.
    ///
    /// # Errors
    /// The client cannot be made.
    pub fn new(server: SocketAddr, site: Option<String>, target: &Path) -> Result<Self, String> {
        let client = reqwest::Client::builder()
            .timeout(LIMIT)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build();
        Ok(Self {
            client: client.map_err(|error| format!("server: {error}"))?,
            server,
            site,
            target: std::path::absolute(target).map_err(|error| format!("target: {error}"))?,
            misses_of: String::new(),
            next_miss: 0,
            counts_of: Default::default(),
            counted: HashMap::new(),
        })
    }

    /// What viewers missed since the last time.
    ///
    /// # Errors
    /// Why it is not known, in a line.
    pub async fn misses(&mut self) -> Result<Requests, String> {
        let after = self.next_miss;
        let text = self.get(&format!("/misses?after={after}")).await?;
        let (head, lines): (Head, Vec<MissLine>) = parse(&text)?;
        let next = head.next.ok_or("/misses: its first line has no `next`")?;
        if head.instance != self.misses_of {
            self.misses_of = head.instance;
            if after > 0 {
                // Another process counts from the beginning: its first ones are asked for the next time.
                self.next_miss = 0;
                return Ok(Vec::new());
            }
        }
        self.next_miss = next;
        let names = lines.into_iter().filter_map(|it| {
            Some((
                self.name(&it.path, &it.site, it.directory.as_deref())?,
                it.requests,
            ))
        });
        Ok(names.collect())
    }

    /// How often each object was asked for since the last time.
    ///
    /// # Errors
    /// Why it is not known, in a line.
    pub async fn counts(&mut self) -> Result<Requests, String> {
        let text = self.get("/counts").await?;
        let (head, lines) = parse(&text)?;
        Ok(self.fresh(head, lines))
    }

    /// What is counted now and was not the last time.
    fn fresh(&mut self, head: Head, lines: Vec<CountLine>) -> Requests {
        let of = (head.instance, head.began);
        if of != self.counts_of {
            self.counts_of = of;
            self.counted.clear();
        }
        // Several sites may have one object.
        let mut all: HashMap<Name, (u64, u64)> = HashMap::new();
        for line in lines {
            if let Some(name) = self.name(&line.path, &line.site, line.directory.as_deref()) {
                let (requests, excess) = all.entry(name).or_default();
                *requests = requests.saturating_add(line.requests);
                *excess = excess.saturating_add(line.excess_max);
            }
        }
        let fresh = all.iter().map(|(name, (requests, excess))| {
            // One that is new in the server's table has the count of the one before it there.
            let before = self.counted.get(name).unwrap_or(excess);
            (Name::clone(name), requests.saturating_sub(*before))
        });
        let fresh = fresh.filter(|(_, requests)| *requests > 0).collect();
        let counted = all
            .into_iter()
            .map(|(name, (requests, _))| (name, requests));
        self.counted = counted.collect();
        fresh
    }

    /// The name of the object that a path of a site asks for, if that is looked at.
    fn name(&self, path: &str, site: &str, directory: Option<&Path>) -> Option<Name> {
        let is_mine = self.site.as_ref().is_none_or(|mine| mine == site)
            && directory.is_none_or(|directory| directory == self.target);
        is_mine.then(|| name_of(path)).flatten()
    }

    async fn get(&self, path: &str) -> Result<String, String> {
        let failed = |error: reqwest::Error| {
            let reason = std::error::Error::source(&error).map(ToString::to_string);
            let reason = reason.unwrap_or_else(|| error.to_string());
            format!("{} {path}: {reason}", self.server)
        };
        let sent = self
            .client
            .get(format!("http://{}{path}", self.server))
            .send();
        let mut response = sent.await.map_err(failed)?;
        if response.status() != reqwest::StatusCode::OK {
            return Err(format!("{} {path}: {}", self.server, response.status()));
        }
        let mut body = Vec::new();
        while let Some(bytes) = response.chunk().await.map_err(failed)? {
            body.extend_from_slice(&bytes);
            if body.len() > REPLY_BYTES_MAX {
                return Err(format!(
                    "{} {path}: more than {REPLY_BYTES_MAX} bytes",
                    self.server
                ));
            }
        }
        String::from_utf8(body).map_err(|_| format!("{} {path}: no UTF-8", self.server))
    }
}

/// The name of the object that a path asks for.
fn name_of(path: &str) -> Option<Name> {
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    let name = percent_decode_str(path.strip_prefix('/')?)
        .decode_utf8()
        .ok()?;
    is_name(&name).then(|| name.as_ref().into())
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<(Head, Vec<T>), String> {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let first = lines.next().ok_or("the server's reply is empty")?;
    let wrong = |error: serde_json::Error| format!("the server's reply: {error}");
    let head = serde_json::from_str(first).map_err(wrong)?;
    let lines = lines.map(serde_json::from_str).collect::<Result<_, _>>();
    Ok((head, lines.map_err(wrong)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_name_without_its_query_and_escapes() {
        let of = |path| name_of(path).map(|it| it.to_string());
        assert_eq!(of("/a/b%20c.ts?x=/y").as_deref(), Some("a/b c.ts"));
        for path in [
            "",
            "a",
            "/",
            "/a/",
            "/../a",
            "/a/%2e%2e/b",
            "/.htaccess",
            "/a%00",
            "/%ff",
        ] {
            assert_eq!(of(path), None, "{path}");
        }
    }

    fn feed() -> Feed {
        let server = ([127, 0, 0, 1], 1).into();
        Feed::new(server, Some("s".to_owned()), Path::new("/mnt/b")).unwrap()
    }

    #[test]
    fn what_is_beneath_another_directory_than_the_target_is_not_looked_at() {
        let name_in = |directory| feed().name("/a", "s", Option::map(directory, Path::new));
        assert_eq!(name_in(None), Some("a".into()));
        assert_eq!(name_in(Some("/mnt/b")), Some("a".into()));
        assert_eq!(name_in(Some("/mnt/c")), None);
        assert_eq!(feed().name("/a", "t", None), None);
    }

    #[test]
    fn counts_are_what_was_asked_for_since_the_last_time_and_newcomers_have_no_more_than_their_own()
    {
        let mut feed = feed();
        let mut fresh = |lines: &str| {
            let text = format!("{{\"instance\":\"x\",\"began\":1}}\n{lines}");
            let (head, lines) = parse(&text).unwrap();
            let mut fresh = feed.fresh(head, lines);
            fresh.sort();
            fresh
        };
        let line = |path: &str, requests: u64, more: &str| {
            format!("{{\"path\":\"/{path}\",\"site\":\"s\",\"requests\":{requests}{more}}}\n")
        };
        let other = "{\"path\":\"/a\",\"site\":\"t\",\"requests\":99}\n";
        let first = line("a", 5, "") + &line("b", 9, ",\"excess_max\":7") + other;
        assert_eq!(fresh(&first), [("a".into(), 5), ("b".into(), 2)]);
        // One that fell, one that rose, and one that took the place of another.
        let second = line("a", 3, "") + &line("b", 10, ",\"excess_max\":7");
        let second = second + &line("c", 12, ",\"excess_max\":12");
        assert_eq!(fresh(&second), [("b".into(), 1)]);
        assert_eq!(
            fresh(&(line("a", 4, "") + &line("c", 13, ""))),
            [("a".into(), 1), ("c".into(), 1)]
        );
    }

    #[test]
    fn lines_are_those_of_the_server() {
        let text = "{\"instance\":\"x\",\"next\":13}\n{\"sequence\":12,\"site\":\"s\",\"path\":\"/a\",\"requests\":3,\"last\":1}\n";
        let (head, lines): (Head, Vec<MissLine>) = parse(text).unwrap();
        assert_eq!((head.instance.as_str(), head.next), ("x", Some(13)));
        assert_eq!(
            (
                lines[0].path.as_str(),
                lines[0].requests,
                lines[0].site.as_str()
            ),
            ("/a", 3, "s")
        );
        assert!(parse::<MissLine>("").is_err());
        assert!(parse::<MissLine>("{\"instance\":1}").is_err());
    }
}
