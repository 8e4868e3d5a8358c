//! The edges' keys: listed once, then watched from the next revision on.
//!
//! A watch that no longer tells is worse than one that ends. So beside it the newest revision of the keys is asked for
//! every few seconds: an etcd that does not answer is lost then, and a watch that lags behind twice in a row is begun
//! anew from a list.
//!
//! A view is a copy of all members, so changes that come together are one: a view is made [`VIEW_AFTER`] after the first.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use placement::{MEMBERS_MAX, Member, parse_member};
use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::client::{Etcd, Header, KeyValue, encoded, number, range_end};
use crate::backoff::Backoff;
use crate::http::{Lines, RegistryError};
use crate::view::ViewSender;

/// How often the newest revision is asked for beside a watch.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(5);

/// How long after a change a view is made, for those that come meanwhile.
const VIEW_AFTER: Duration = Duration::from_millis(100);

/// A line of a watch.
#[derive(Debug, Deserialize)]
struct Line {
    #[serde(default)]
    result: Option<WatchReply>,
    #[serde(default)]
    error: Option<serde_json::Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WatchReply {
    header: Header,
    events: Vec<Event>,
    canceled: bool,
    cancel_reason: String,
    #[serde(deserialize_with = "number")]
    compact_revision: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Event {
    /// `DELETE`, or nothing for a put.
    #[serde(rename = "type")]
    kind: String,
    kv: KeyValue,
}

/// What the keys say.
#[derive(Debug, Default)]
struct Edges {
    keys: BTreeMap<Vec<u8>, Result<Member, String>>,
    /// The largest revision at which one of them changed, as far as it was told.
    newest: i64,
}

impl Edges {
    fn put(&mut self, pair: &KeyValue, prefix: &str) {
        self.newest = self.newest.max(pair.mod_revision);
        if self.keys.len() >= MEMBERS_MAX && !self.keys.contains_key(&pair.key) {
            return;
        }
        let key = String::from_utf8_lossy(&pair.key);
        let member = match parse_member(&pair.value) {
            Err(error) => Err(format!("{key}: {error}")),
            Ok(member) if key.strip_prefix(prefix) != Some(&member.name) => {
                Err(format!("{key}: the name in it is {}", member.name))
            }
            Ok(member) => Ok(member),
        };
        self.keys.insert(pair.key.clone(), member);
    }

    fn apply(&mut self, event: &Event, prefix: &str) {
        if event.kind == "DELETE" {
            self.keys.remove(&event.kv.key);
            self.newest = self.newest.max(event.kv.mod_revision);
        } else {
            self.put(&event.kv, prefix);
        }
    }

    /// Whether nobody is left after this. Such a list is not believed; what is known last before it should be the newest.
    fn would_be_empty(&self, event: &Event) -> bool {
        event.kind == "DELETE"
            && self
                .keys
                .iter()
                .all(|(key, edge)| edge.is_err() || *key == event.kv.key)
    }

    fn send(&self, views: &ViewSender) {
        let (mut members, mut refused) = (Vec::new(), Vec::new());
        for edge in self.keys.values() {
            match edge {
                Ok(member) => members.push(member.clone()),
                Err(why) => refused.push(why.clone()),
            }
        }
        views.learned(members, refused);
    }
}

/// Tells of the edges, for ever.
pub(crate) async fn follow(etcd: Etcd, views: ViewSender) {
    let mut backoff = Backoff::new();
    loop {
        let Err(error) = session(&etcd, &views, &mut backoff).await;
        views.lost(&error.to_string());
        tokio::time::sleep(backoff.wait()).await;
    }
}

/// A list and the watch behind it, until something is wrong.
async fn session(
    etcd: &Etcd,
    views: &ViewSender,
    backoff: &mut Backoff,
) -> Result<Infallible, RegistryError> {
    let list = etcd.range(json!({"limit": MEMBERS_MAX})).await?;
    let mut edges = Edges::default();
    for pair in &list.kvs {
        edges.put(pair, &etcd.prefix);
    }
    let mut lines = begin(etcd, list.header.revision.saturating_add(1)).await?;
    edges.send(views);
    backoff.reset();
    let ended = follow_lines(etcd, &mut lines, &mut edges, views).await;
    // What came last, before it is said that this is not known to be so any more.
    edges.send(views);
    ended
}

/// Applies what a watch says, until something is wrong.
async fn follow_lines(
    etcd: &Etcd,
    lines: &mut Lines,
    edges: &mut Edges,
    views: &ViewSender,
) -> Result<Infallible, RegistryError> {
    let mut view_due: Option<Instant> = None;
    let mut ticks = interval(LIVENESS_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    let mut lagged = false;
    loop {
        tokio::select! {
            line = lines.next() => {
                for event in &read(&line?)?.events {
                    // One that says that it drains and is gone then is known as such.
                    if view_due.is_some() && edges.would_be_empty(event) {
                        edges.send(views);
                    }
                    edges.apply(event, &etcd.prefix);
                    view_due.get_or_insert_with(|| Instant::now() + VIEW_AFTER);
                }
            }
            () = sleep_until(view_due.unwrap_or_else(Instant::now)), if view_due.is_some() => {
                edges.send(views);
                view_due = None;
            }
            _ = ticks.tick() => {
                let newest = json!({
                    "limit": 1, "keys_only": true, "sort_order": "DESCEND", "sort_target": "MOD",
                });
                let found = etcd.range(newest).await?;
                let revision = found.kvs.first().map_or(0, |pair| pair.mod_revision);
                let count = i64::try_from(edges.keys.len()).unwrap_or(i64::MAX);
                let is_behind = revision > edges.newest || found.count != count;
                if is_behind && lagged && count < i64::try_from(MEMBERS_MAX).unwrap_or(i64::MAX) {
                    let why = ": it did not tell of changes".to_owned();
                    return Err(RegistryError::Ended("etcd".to_owned(), why));
                }
                lagged = is_behind;
            }
        }
    }
}

async fn begin(etcd: &Etcd, revision: i64) -> Result<Lines, RegistryError> {
    let question = json!({"create_request": {
        "key": encoded(&etcd.prefix),
        "range_end": encoded(range_end(&etcd.prefix)),
        "start_revision": revision.to_string(),
    }});
    let mut lines = etcd.stream("/v3/watch", &question).await?;
    // The first line says that the watch is there. Until then a list may have missed what comes.
    let first = tokio::time::timeout(crate::CALL_TIMEOUT, lines.next()).await;
    let first = first.map_err(|_| RegistryError::Unreachable("etcd began no watch".to_owned()))?;
    read(&first?)?;
    Ok(lines)
}

fn read(line: &[u8]) -> Result<WatchReply, RegistryError> {
    let malformed = |why: String| RegistryError::Malformed("etcd".to_owned(), why);
    let line: Line = serde_json::from_slice(line).map_err(|error| malformed(error.to_string()))?;
    let ended = |why: String| RegistryError::Ended("etcd".to_owned(), why);
    if let Some(error) = line.error {
        return Err(ended(format!(": {error}")));
    }
    let reply = line
        .result
        .ok_or_else(|| malformed("a line without a result".to_owned()))?;
    if reply.canceled || reply.compact_revision > 0 {
        let reason = &reply.cancel_reason;
        return Err(ended(format!(
            " at revision {}: {reason} (compacted to {})",
            reply.header.revision, reply.compact_revision
        )));
    }
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str, value: &str, mod_revision: i64) -> KeyValue {
        KeyValue {
            key: format!("/e/{name}").into_bytes(),
            value: value.as_bytes().to_vec(),
            mod_revision,
        }
    }

    fn value(name: &str) -> String {
        format!(r#"{{"version":1,"name":"{name}","url":"http://{name}","capacity_bytes":1}}"#)
    }

    #[test]
    fn puts_and_deletes_are_applied_and_what_is_wrong_is_told_without_the_others() {
        let mut edges = Edges::default();
        edges.put(&pair("a", &value("a"), 3), "/e/");
        edges.put(&pair("b", "{", 4), "/e/");
        edges.put(&pair("c", &value("d"), 5), "/e/");
        let (sender, view) = tokio::sync::watch::channel(crate::View::default());
        let views = ViewSender::new(sender);
        edges.send(&views);
        let told = view.borrow().clone();
        assert_eq!(told.members.len(), 1);
        assert!(told.refused[0].starts_with("/e/b: "), "{:?}", told.refused);
        assert_eq!(told.refused[1], "/e/c: the name in it is d");
        let event = Event {
            kind: "DELETE".to_owned(),
            kv: pair("b", "", 6),
        };
        edges.apply(&event, "/e/");
        edges.apply(
            &Event {
                kind: String::new(),
                kv: pair("c", &value("c"), 7),
            },
            "/e/",
        );
        edges.send(&views);
        assert_eq!(
            (view.borrow().members.len(), view.borrow().refused.len()),
            (2, 0)
        );
        assert_eq!(edges.newest, 7);
        let gone = |name: &str| Event {
            kind: "DELETE".to_owned(),
            kv: pair(name, "", 8),
        };
        assert!(!edges.would_be_empty(&gone("a")));
        edges.apply(&gone("c"), "/e/");
        edges.put(&pair("odd", "{", 9), "/e/");
        assert!(edges.would_be_empty(&gone("a")) && !edges.would_be_empty(&gone("odd")));
    }

    #[test]
    fn lines_of_a_watch_are_read_or_end_it() {
        let told = read(br#"{"result":{"header":{"revision":"5"},"created":true}}"#).unwrap();
        assert_eq!((told.header.revision, told.events.len()), (5, 0));
        let text = br#"{"result":{"header":{"revision":"6"},"events":[{"kv":{"key":"YQ==","mod_revision":"6"}},
            {"type":"DELETE","kv":{"key":"YQ=="}}]}}"#;
        assert_eq!(read(text).unwrap().events[1].kind, "DELETE");
        for (line, told) in [
            (&b"{}"[..], "without a result"),
            (b"x", "cannot be read"),
            (br#"{"error":{"grpc_code":14}}"#, "ended the watch"),
            (
                br#"{"result":{"canceled":true,"cancel_reason":"no"}}"#,
                "no",
            ),
            (br#"{"result":{"compact_revision":"9"}}"#, "compacted to 9"),
        ] {
            let error = read(line).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }
}
