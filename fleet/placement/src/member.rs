//! An edge as the registry tells it, and the JSON it is told in.
//!
//! A member is an object with `version` 1. Names it does not know are passed over, so that a later version may add some;
//! another number is refused. A file of members is an object with `version` and `members`. What comes from outside gets
//! a verdict, never a panic. Bounded by: [`MEMBER_BYTES_MAX`], [`FLEET_BYTES_MAX`], [`MEMBERS_MAX`].

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The version of the JSON that this program reads and writes.
pub const SCHEMA_VERSION: u32 = 1;

/// Most bytes of a member's JSON.
pub const MEMBER_BYTES_MAX: usize = 4096;

/// Most bytes of a file of members.
pub const FLEET_BYTES_MAX: usize = 16 << 20;

/// Most members of a fleet.
pub const MEMBERS_MAX: usize = 10_000;

/// Most bytes of a member's name, as of a host's.
pub const NAME_BYTES_MAX: usize = 253;

/// Most bytes of a member's URL.
pub const URL_BYTES_MAX: usize = 512;

/// Most bytes of the name of a zone.
pub const ZONE_BYTES_MAX: usize = 253;

/// An edge: a server that holds a share of the library.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Its name in the fleet, and as a pathway of content steering: letters, digits, `.`, `-` and `_`, a letter or a
    /// digit first. What it holds depends on it, so it keeps it for life.
    pub name: String,
    /// Where players reach it: `http` or `https`, a host, perhaps a port, and nothing behind them.
    pub url: String,
    /// Where it is, for clients that prefer one zone to another. May be empty.
    #[serde(default)]
    pub zone: String,
    /// Its room for content: its share of the titles is in proportion to it.
    pub capacity_bytes: u64,
    /// Whether it is about to leave.
    #[serde(default)]
    pub state: State,
    /// Whether it can serve now. Titles stay with a member that is not healthy, players do not.
    #[serde(default = "healthy")]
    pub healthy: bool,
    /// How much of what it can send it sends, 0 to 1.
    #[serde(default)]
    pub load: f64,
}

/// Whether a member is about to leave.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It stays.
    #[default]
    Serving,
    /// It goes on for those who use it, and gets no title and no player.
    Draining,
}

/// Why a member, or a file of them, is refused.
#[derive(Clone, PartialEq, Debug, Error)]
#[non_exhaustive]
pub enum MemberError {
    /// More bytes than a member or a file of them may have.
    #[error("{bytes} bytes: at most {most} are read")]
    TooLong {
        /// How many there are.
        bytes: usize,
        /// How many there may be.
        most: usize,
    },
    /// No JSON, or not that of a member: what is wrong, and where.
    #[error("{0}")]
    Json(String),
    /// Another version.
    #[error("version {0}: this program reads version {SCHEMA_VERSION}")]
    Version(u64),
    /// A name that is none.
    #[error(
        "name {0:?}: 1 to {NAME_BYTES_MAX} letters, digits, '.', '-' and '_' are a name, a letter or a digit first"
    )]
    Name(String),
    /// A URL that is none of an edge.
    #[error(
        "url {0:?} of {1}: http:// or https://, a host, perhaps a port, and no path are wanted"
    )]
    Url(String, String),
    /// A zone that is too long, or has characters that are none of a name.
    #[error("zone {0:?} of {1}: at most {ZONE_BYTES_MAX} letters, digits, '.', '-' and '_'")]
    Zone(String, String),
    /// No capacity.
    #[error("capacity_bytes of {0} is 0: it could hold nothing")]
    Capacity(String),
    /// A load that is no share.
    #[error("load of {1} is {0}: 0 to 1 is possible")]
    Load(f64, String),
    /// Two members with one name.
    #[error("two members are called {0}")]
    Twice(String),
    /// More members than a fleet may have.
    #[error("{0} members: at most {MEMBERS_MAX} are read")]
    TooMany(usize),
}

/// A member's JSON.
#[derive(Serialize, Deserialize)]
struct Document<T> {
    version: u32,
    #[serde(flatten)]
    content: T,
}

#[derive(Serialize, Deserialize)]
struct Members<T> {
    members: T,
}

/// What tells the version of a document whose other names may be those of a later one.
#[derive(Deserialize)]
struct Versioned {
    version: u64,
}

const fn healthy() -> bool {
    true
}

impl Member {
    /// One that serves, of capacity 1, without a zone or a load.
    #[must_use]
    pub fn new(name: impl Into<String>, url: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            url: url.into(),
            zone: String::new(),
            capacity_bytes: 1,
            state: State::Serving,
            healthy: true,
            load: 0.0,
        }
    }

    /// Whether titles are placed on it.
    #[must_use]
    pub fn takes_content(&self) -> bool {
        self.state == State::Serving
    }

    /// Whether players may be sent to it.
    #[must_use]
    pub fn takes_players(&self) -> bool {
        self.state == State::Serving && self.healthy
    }

    /// Its host, and its port if it is not that of the scheme.
    #[must_use]
    pub fn host(&self) -> &str {
        split(&self.url).map_or("", |(_, host)| host)
    }

    /// `http` or `https`.
    #[must_use]
    pub fn scheme(&self) -> &str {
        split(&self.url).map_or("", |(scheme, _)| scheme)
    }

    /// Refuses what could not be served by.
    ///
    /// # Errors
    /// What is wrong first, in the order of the fields.
    pub fn check(&self) -> Result<(), MemberError> {
        let name = || self.name.clone();
        if !is_name(&self.name) || self.name.len() > NAME_BYTES_MAX {
            return Err(MemberError::Name(shortened(&self.name)));
        }
        if split(&self.url).is_none() {
            return Err(MemberError::Url(shortened(&self.url), name()));
        }
        if self.zone.len() > ZONE_BYTES_MAX || !self.zone.bytes().all(is_name_byte) {
            return Err(MemberError::Zone(shortened(&self.zone), name()));
        }
        if self.capacity_bytes == 0 {
            return Err(MemberError::Capacity(name()));
        }
        if !(0.0..=1.0).contains(&self.load) {
            return Err(MemberError::Load(self.load, name()));
        }
        Ok(())
    }

    /// Its JSON, on one line.
    #[must_use]
    pub fn to_json(&self) -> String {
        json(self)
    }
}

/// What an error quotes of a text from outside.
fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

fn is_name(text: &str) -> bool {
    text.bytes()
        .next()
        .is_some_and(|it| it.is_ascii_alphanumeric())
        && text.bytes().all(is_name_byte)
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_')
}

/// The scheme and the authority of an edge's URL.
fn split(url: &str) -> Option<(&str, &str)> {
    if url.len() > URL_BYTES_MAX {
        return None;
    }
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = match authority.strip_prefix('[') {
        // An IPv6 address has its colons in brackets.
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            address.parse::<std::net::Ipv6Addr>().ok()?;
            (address, port)
        }
        None => {
            let end = authority.find(':').unwrap_or(authority.len());
            let host = &authority[..end];
            (is_name(host).then_some(host)?, &authority[end..])
        }
    };
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|it| it > 0) && !port.starts_with('+');
    let is_right = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
    (matches!(scheme, "http" | "https") && !host.is_empty() && is_right)
        .then_some((scheme, authority))
}

fn json<T: Serialize>(content: T) -> String {
    let document = Document {
        version: SCHEMA_VERSION,
        content,
    };
    serde_json::to_string(&document).expect("invariant: names and numbers have JSON")
}

/// Reads one member, as the registry has it.
///
/// # Errors
/// Says what is wrong, and with which member.
pub fn parse_member(bytes: &[u8]) -> Result<Member, MemberError> {
    let member: Member = parse(bytes, MEMBER_BYTES_MAX)?;
    member.check()?;
    Ok(member)
}

/// Reads a file of members: all of them, or what is wrong with the first that is.
///
/// # Errors
/// Says what is wrong, and with which member.
pub fn parse_fleet(bytes: &[u8]) -> Result<Vec<Member>, MemberError> {
    let Members::<Vec<Member>> { members } = parse(bytes, FLEET_BYTES_MAX)?;
    if members.len() > MEMBERS_MAX {
        return Err(MemberError::TooMany(members.len()));
    }
    let mut names = HashSet::new();
    for member in &members {
        member.check()?;
        if !names.insert(member.name.as_str()) {
            return Err(MemberError::Twice(member.name.clone()));
        }
    }
    Ok(members)
}

/// The file of these members.
#[must_use]
pub fn fleet_to_json(members: &[Member]) -> String {
    json(Members { members })
}

fn parse<T: for<'a> Deserialize<'a>>(bytes: &[u8], most: usize) -> Result<T, MemberError> {
    if bytes.len() > most {
        return Err(MemberError::TooLong {
            bytes: bytes.len(),
            most,
        });
    }
    let told = |error: serde_json::Error| MemberError::Json(error.to_string());
    let Versioned { version } = serde_json::from_slice(bytes).map_err(told)?;
    if version != u64::from(SCHEMA_VERSION) {
        return Err(MemberError::Version(version));
    }
    let document: Document<T> = serde_json::from_slice(bytes).map_err(told)?;
    Ok(document.content)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDGE: &str = r#"{"version":1,"name":"edge-1","url":"https://e1.example:8443","zone":"fra",
        "capacity_bytes":4000000000000,"state":"draining","healthy":false,"load":0.5,"later":[1]}"#;

    fn edge() -> Member {
        parse_member(EDGE.as_bytes()).unwrap()
    }

    #[test]
    fn a_member_is_read_and_written() {
        let member = edge();
        assert_eq!(
            (member.scheme(), member.host()),
            ("https", "e1.example:8443")
        );
        assert_eq!(member.state, State::Draining);
        assert!(!member.takes_content() && !member.takes_players());
        assert_eq!(parse_member(member.to_json().as_bytes()), Ok(member));
        let short =
            r#"{"version":1,"name":"a","url":"http://[2001:db8::1]:80/","capacity_bytes":1}"#;
        let short = parse_member(short.as_bytes()).unwrap();
        assert!(short.takes_players() && short.takes_content() && short.zone.is_empty());
        assert_eq!(short.host(), "[2001:db8::1]:80");
        let sick = Member {
            healthy: false,
            ..short
        };
        assert!(!sick.takes_players() && sick.takes_content());
    }

    #[test]
    fn what_is_wrong_with_a_member_is_told() {
        let changed = |from: &str, to: &str| {
            assert!(EDGE.contains(from));
            let error = parse_member(EDGE.replacen(from, to, 1).as_bytes()).unwrap_err();
            error.to_string()
        };
        for (from, to, told) in [
            (
                "\"version\":1",
                "\"version\":2",
                "version 2: this program reads version 1",
            ),
            ("\"version\":1,", "", "missing field `version`"),
            ("edge-1", "", "name \"\""),
            ("edge-1", ".", "name \".\""),
            ("edge-1", "a b", "name \"a b\""),
            (
                "https://",
                "ftp://",
                "url \"ftp://e1.example:8443\" of edge-1",
            ),
            (":8443", ":0", "url"),
            (":8443", ":65536", "url"),
            (":8443", ":+1", "url"),
            (":8443", "/path", "url"),
            (":8443", "?a", "url"),
            ("e1.example:8443", "", "url"),
            ("e1.example", "[::1", "url"),
            ("e1.example", "me@e1", "url"),
            ("\"fra\"", "\"f/ra\"", "zone \"f/ra\" of edge-1"),
            ("4000000000000", "0", "capacity_bytes of edge-1 is 0"),
            ("4000000000000", "-1", "invalid value"),
            ("0.5", "1.1", "load of edge-1 is 1.1"),
            ("0.5", "-0.1", "load of edge-1 is -0.1"),
            ("draining", "gone", "unknown variant `gone`"),
            ("{", "", "line 1"),
        ] {
            let error = changed(from, to);
            assert!(error.contains(told), "{to}: {error}");
        }
    }

    #[test]
    fn members_have_limits_on_both_sides() {
        let mut member = edge();
        member.name = "n".repeat(NAME_BYTES_MAX);
        member.zone = "z".repeat(ZONE_BYTES_MAX);
        member.url = format!("http://{}", "h".repeat(URL_BYTES_MAX - 7));
        member.load = 1.0;
        member.check().unwrap();
        for change in [
            |it: &mut Member| it.name.push('n'),
            |it: &mut Member| it.zone.push('z'),
            |it: &mut Member| it.url.push('h'),
            |it: &mut Member| it.load = f64::NAN,
        ] {
            let mut member = member.clone();
            change(&mut member);
            assert!(member.check().is_err());
        }
        let mut bytes = EDGE.as_bytes().to_vec();
        bytes.resize(MEMBER_BYTES_MAX, b' ');
        assert!(parse_member(&bytes).is_ok());
        bytes.push(b' ');
        assert_eq!(
            parse_member(&bytes),
            Err(MemberError::TooLong {
                bytes: 4097,
                most: 4096
            })
        );
    }

    #[test]
    fn a_fleet_is_read_whole_or_not_at_all() {
        let members = |count: usize| -> Vec<Member> {
            let member = |number: usize| Member {
                name: format!("edge-{number}"),
                ..edge()
            };
            (0..count).map(member).collect()
        };
        let three = members(3);
        assert_eq!(
            parse_fleet(fleet_to_json(&three).as_bytes()),
            Ok(three.clone())
        );
        assert_eq!(parse_fleet(br#"{"version":1,"members":[]}"#), Ok(vec![]));
        let twice = [&three[..], &three[1..2]].concat();
        assert_eq!(
            parse_fleet(fleet_to_json(&twice).as_bytes()),
            Err(MemberError::Twice("edge-1".into()))
        );
        let most = fleet_to_json(&members(MEMBERS_MAX));
        assert_eq!(parse_fleet(most.as_bytes()).unwrap().len(), MEMBERS_MAX);
        let more = fleet_to_json(&members(MEMBERS_MAX + 1));
        assert_eq!(
            parse_fleet(more.as_bytes()),
            Err(MemberError::TooMany(10_001))
        );
    }
}
