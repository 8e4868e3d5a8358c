//! Redirects: where a request is sent, by its name, its path, and what the wildcards of its rule's glob stand for.
//!
//! It refuses what a client could make another host of: wildcards before the end of the host, and two slashes at the
//! beginning of a path, which name one. What stands in place of a variable is of the grammar of URIs, so that it ends no field
//! line, and what stands for the path or for a wildcard ends no value of a query. `$request_uri` has a query, which may hold
//! `&`, and is put in as it is. Bounds: [`WILDCARDS_MAX`]; a location that is longer than a target may be is
//! refused where it is sent.

use globset::Glob;
use http::{Request, Status, TARGET_BYTES_MAX};
use regex_automata::meta::Regex;
use regex_automata::util::syntax;

use crate::template::{self, Piece};

/// Most wildcards of a glob that a redirect can name.
pub const WILDCARDS_MAX: usize = 9;

/// Where a request is sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Redirect {
    status: Status,
    pieces: Vec<Piece<Variable>>,
    /// Whether it begins with a host, or with a scheme and one.
    has_host: bool,
    /// The globs of its rule, if it names wildcards.
    globs: Vec<Wildcards>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Variable {
    Host,
    Path,
    PathAndQuery,
    /// By its index.
    Wildcard(usize),
}

/// Longer names first, since the shorter ones begin like them.
const VARIABLES: [(&str, Variable); 3 + WILDCARDS_MAX] = [
    ("$request_uri", Variable::PathAndQuery),
    ("$host", Variable::Host),
    ("$uri", Variable::Path),
    ("$1", Variable::Wildcard(0)),
    ("$2", Variable::Wildcard(1)),
    ("$3", Variable::Wildcard(2)),
    ("$4", Variable::Wildcard(3)),
    ("$5", Variable::Wildcard(4)),
    ("$6", Variable::Wildcard(5)),
    ("$7", Variable::Wildcard(6)),
    ("$8", Variable::Wildcard(7)),
    ("$9", Variable::Wildcard(8)),
];

/// Why something cannot be redirected to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedirectProblem {
    /// Neither 301, 302, 307 nor 308.
    #[error("not a status of a redirect")]
    Status,
    /// A byte that no URI has, or neither a slash nor `http://` nor `https://` at the beginning.
    #[error("not a URI")]
    Syntax,
    /// A variable other than `$host`, `$uri`, `$request_uri` and `$1` to `$9`.
    #[error("unknown variable")]
    Variable,
    /// A wildcard stands where it would be a part of the host.
    #[error("what a wildcard stands for would be a part of the host, and so lead anywhere")]
    Host,
}

impl Redirect {
    /// To what the text says: `$host` stands for the name the client used, without a port; `$uri` for the path,
    /// `$request_uri` for path and query; `$1` for what the first `*` or `**` of the rule's glob stands for.
    ///
    /// # Errors
    /// [`RedirectProblem`].
    pub fn new(code: u16, text: &str) -> Result<Self, RedirectProblem> {
        let redirects = [
            Status::MovedPermanently,
            Status::Found,
            Status::TemporaryRedirect,
            Status::PermanentRedirect,
        ];
        let status = redirects.into_iter().find(|status| status.code() == code);
        let status = status.ok_or(RedirectProblem::Status)?;
        let belongs = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte);
        if !text.bytes().all(belongs) {
            return Err(RedirectProblem::Syntax);
        }
        let starts = ["http://", "https://", "//", "/"];
        let mut known = starts.into_iter();
        let start = known.find(|start| text.starts_with(start));
        let start = start.ok_or(RedirectProblem::Syntax)?;
        let pieces = template::split(text, &VARIABLES).ok_or(RedirectProblem::Variable)?;
        let has_host = start != "/";
        if has_host && !ends_host_first(&pieces, start) {
            return Err(RedirectProblem::Host);
        }
        Ok(Self {
            status,
            pieces,
            has_host,
            globs: Vec::new(),
        })
    }

    /// Its status.
    pub(crate) const fn status(&self) -> Status {
        self.status
    }

    /// How many wildcards of a glob there must be for it.
    #[must_use]
    pub fn wildcards(&self) -> usize {
        let numbers = self.pieces.iter().map(|piece| match piece {
            Piece::Variable(Variable::Wildcard(index)) => index + 1,
            _ => 0,
        });
        numbers.max().unwrap_or(0)
    }

    /// It is of a rule with this pattern, besides others.
    ///
    /// # Errors
    /// The pattern has too few wildcards for it, in words.
    pub(crate) fn add_pattern(&mut self, pattern: &str, glob: &Glob) -> Result<(), String> {
        let named = self.wildcards();
        if named == 0 {
            return Ok(());
        }
        if !pattern.starts_with('/') {
            return Err(format!(
                "{pattern:?}: a glob of a redirect with $1 begins with a slash"
            ));
        }
        let (wildcards, count) = Wildcards::new(pattern, glob)?;
        if count < named {
            return Err(format!(
                "{pattern:?} has {count} wildcards, and its redirect names ${named}"
            ));
        }
        self.globs.push(wildcards);
        Ok(())
    }

    /// Where this request is sent, whose path is `path` without a token; `None`: no glob is for it.
    pub(crate) fn location(&self, request: &Request<'_>, path: &str) -> Option<String> {
        let stand_for = if self.globs.is_empty() {
            [""; WILDCARDS_MAX]
        } else {
            self.globs.iter().find_map(|glob| glob.find(path))?
        };
        let mut location = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => location.push_str(text),
                Piece::Variable(Variable::Host) => location.push_str(host_of(request)),
                Piece::Variable(Variable::Path) => {
                    http::push_path_piece(&mut location, &request.path);
                }
                Piece::Variable(Variable::PathAndQuery) => {
                    request.push_path(&mut location);
                    request.push_query(&mut location);
                }
                Piece::Variable(Variable::Wildcard(index)) => {
                    let text = stand_for.get(*index).copied().unwrap_or_default();
                    http::push_path_piece(&mut location, text);
                }
            }
            if location.len() > TARGET_BYTES_MAX {
                // It is too long, however it goes on.
                break;
            }
        }
        if !self.has_host {
            // `/$1/$2` with an empty first one: a client would take what is behind two slashes for a host.
            let slashes = location.bytes().take_while(|&byte| byte == b'/').count();
            location.drain(1..slashes.max(1));
        }
        Some(location)
    }
}

/// Whether the host is over before the first wildcard. `start`: what the host follows.
fn ends_host_first(pieces: &[Piece<Variable>], start: &str) -> bool {
    let mut skipped = start.len();
    for piece in pieces {
        match piece {
            Piece::Text(text) => {
                let text = text.get(skipped..).unwrap_or_default();
                skipped = 0;
                if text.contains(['/', '?', '#']) {
                    return true;
                }
            }
            Piece::Variable(Variable::Host) => {}
            Piece::Variable(Variable::Path | Variable::PathAndQuery) => return true,
            Piece::Variable(Variable::Wildcard(_)) => return false,
        }
    }
    true
}

/// The name the client used, without a port; it is of the grammar, since a request has no other.
fn host_of<'a>(request: &Request<'a>) -> &'a str {
    let authority = core::str::from_utf8(request.host.unwrap_or_default()).unwrap_or_default();
    match authority.rfind(']') {
        Some(end) => &authority[..=end],
        None => authority.split(':').next().unwrap_or_default(),
    }
}

/// A glob that says what its wildcards stand for.
#[derive(Clone, Debug)]
struct Wildcards {
    pattern: Box<str>,
    regex: Regex,
}

impl PartialEq for Wildcards {
    fn eq(&self, other: &Self) -> bool {
        self.pattern == other.pattern
    }
}

impl Eq for Wildcards {}

impl Wildcards {
    /// The glob, and how many wildcards it has.
    fn new(pattern: &str, glob: &Glob) -> Result<(Self, usize), String> {
        let (regex, count) = with_groups(glob.regex());
        // As globset compiles it.
        let config = syntax::Config::new().utf8(false).dot_matches_new_line(true);
        let regex = Regex::builder().syntax(config).build(&regex);
        let regex = regex.map_err(|error| format!("{pattern:?}: {error}"))?;
        let pattern = pattern.into();
        Ok((Self { pattern, regex }, count))
    }

    /// What the first wildcards stand for; `None`: the glob is for another path.
    fn find<'a>(&self, path: &'a str) -> Option<[&'a str; WILDCARDS_MAX]> {
        let mut found = self.regex.create_captures();
        self.regex.captures(path, &mut found);
        found.is_match().then_some(())?;
        let mut texts = [""; WILDCARDS_MAX];
        for (text, group) in texts.iter_mut().zip(1..) {
            if let Some(span) = found.get_group(group) {
                // `?` is a byte, and may end within a character.
                *text = path.get(span.range())?;
            }
        }
        Some(texts)
    }
}

/// The regular expression of a glob with a group for each `*` and `**` that is not its beginning, and their count.
fn with_groups(regex: &str) -> (String, usize) {
    /// What globset writes for `*`, `/**/` and `/**`; no literal text is written so, since it is escaped.
    const WILDCARDS: [(&str, &str); 3] = [
        ("[^/]*", "([^/]*)"),
        ("(?:/|/.*/)", "(?:/|/(.*)/)"),
        ("/.*", "/(.*)"),
    ];
    let mut grouped = String::new();
    let mut count = 0;
    let mut rest = regex;
    while let Some(first) = rest.chars().next() {
        let mut known = WILDCARDS.iter();
        if let Some((text, group)) = known.find(|(text, _)| rest.starts_with(text)) {
            grouped.push_str(group);
            count += 1;
            rest = rest.get(text.len()..).unwrap_or_default();
            continue;
        }
        let length = match first {
            '\\' => 1 + rest.chars().nth(1).map_or(0, char::len_utf8),
            '[' => class_bytes(rest),
            _ => first.len_utf8(),
        };
        let (plain, behind) = rest.split_at(length);
        grouped.push_str(plain);
        rest = behind;
    }
    (grouped, count)
}

/// The length of the class that a text begins with.
fn class_bytes(text: &str) -> usize {
    let mut is_escaped = false;
    let end = text.find(|it: char| {
        let is_end = it == ']' && !is_escaped;
        is_escaped = it == '\\' && !is_escaped;
        is_end
    });
    end.map_or(text.len(), |end| end + 1)
}

#[cfg(test)]
mod tests {
    use http::{Parsed, parse_request};

    use super::*;
    use crate::rules::{Action, Rule};
    use crate::{Client, Site, Sites, Verdict};

    /// Where a rule with this pattern sends a path; or why there is no such rule.
    fn sent(pattern: &str, to: &str, target: &str) -> Result<String, String> {
        let redirect = Redirect::new(302, to).map_err(|problem| problem.to_string())?;
        let rule = Rule {
            action: Action::Redirect(redirect),
            ..Rule::default()
        };
        let site = Site {
            rules: vec![(
                vec!["/never/*/*/*/*/*/*/*/*/*".into(), pattern.into()],
                rule,
            )],
            ..Site::default()
        };
        let sites = Sites::new(Vec::new(), site).map_err(|(_, problem)| problem.to_string())?;
        let head = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        let Parsed::Complete { request, .. } = parse_request(head.as_bytes()) else {
            panic!("{head}");
        };
        let client = Client {
            source: [192, 0, 2, 7].into(),
            is_secure: true,
            unix_seconds: 0,
        };
        match sites.decide(&request, &client) {
            Verdict::Redirect(Status::Found, location) => Ok(location),
            other => Ok(format!("{other:?}")),
        }
    }

    fn location(pattern: &str, to: &str, target: &str) -> String {
        sent(pattern, to, target).unwrap()
    }

    #[test]
    fn a_redirect_knows_the_request() {
        let head = "GET http://A.example:8080/a%20b?c=%20d HTTP/1.1\r\nHost: x\r\n\r\n";
        let Parsed::Complete { request, .. } = parse_request(head.as_bytes()) else {
            panic!("a whole head");
        };
        for (text, location) in [
            ("/b", "/b"),
            (
                "https://b.example$request_uri",
                "https://b.example/a%20b?c=%20d",
            ),
            ("https://$host:8443$uri#x", "https://A.example:8443/a%20b#x"),
            ("//b.example$uri", "//b.example/a%20b"),
            ("/x?u=$request_uri", "/x?u=/a%20b?c=%20d"),
        ] {
            let redirect = Redirect::new(302, text).unwrap();
            assert_eq!(redirect.location(&request, "").unwrap(), location);
        }
        for (code, text, problem) in [
            (304, "/b", RedirectProblem::Status),
            (302, "", RedirectProblem::Syntax),
            (302, "b.example", RedirectProblem::Syntax),
            (302, "$1", RedirectProblem::Syntax),
            (302, "/a b", RedirectProblem::Syntax),
            (302, "/a\r\nX: y", RedirectProblem::Syntax),
            (302, "/$args", RedirectProblem::Variable),
            (302, "/$0", RedirectProblem::Variable),
        ] {
            assert_eq!(Redirect::new(code, text), Err(problem), "{text}");
        }
    }

    #[test]
    fn a_number_stands_for_what_the_wildcard_of_the_glob_stands_for() {
        for (pattern, to, target, expected) in [
            ("/old/*", "/new/$1", "/old/a.mp4?q", "/new/a.mp4"),
            ("/old/**", "/new/$1", "/old/a/b/c.mp4", "/new/a/b/c.mp4"),
            ("/old/**", "/new/$1", "/old/", "/new/"),
            ("/a/**/*.ts", "/b/$2/$1", "/a/x/y/1.ts", "/b/1/x/y"),
            ("/a/**/*.ts", "/b/$1/$2", "/a/1.ts", "/b//1"),
            ("/a/*-*.ts", "/$2/$1", "/a/x-y-z.ts", "/z/x-y"),
            ("/[ab]?{c,d}*", "/$1", "/axcz", "/z"),
            ("/{a*,b*}", "/$1/$2", "/bx", "/x"),
            ("/+(*).[*]*", "/$1$2", "/+(x).*y", "/xy"),
            (
                "/*/*/*/*/*/*/*/*/*",
                "/$9$8$1",
                "/a/b/c/d/e/f/g/h/i",
                "/iha",
            ),
            (
                "/a/*",
                "https://b.example/$1?p=$1",
                "/a/x",
                "https://b.example/x?p=x",
            ),
            ("/a/*", "https://$host/$1$1", "/a/x", "https://a/xx"),
        ] {
            assert_eq!(location(pattern, to, target), expected, "{pattern} {to}");
        }
    }

    #[test]
    fn what_a_wildcard_stands_for_is_encoded() {
        for (to, expected) in [
            ("/n/$1", "/n/a%20b%3Fc%23%25&d=%C3%A9+"),
            ("/n?v=$1", "/n?v=a%20b%3Fc%23%25%26d%3D%C3%A9%2B"),
            ("/n#$1", "/n#a%20b%3Fc%23%25%26d%3D%C3%A9%2B"),
        ] {
            let target = "/o/a%20b%3Fc%23%25&d=%C3%A9+";
            assert_eq!(location("/o/*", to, target), expected, "{to}");
        }
        // One byte of two.
        assert!(location("/o/?*", "/n/$1", "/o/%C3%A9").contains("NotFound"));
    }

    #[test]
    fn no_client_adds_a_parameter_by_its_path() {
        for (to, target, expected) in [
            ("/x?u=$uri", "/a&b", "/x?u=/a%26b"),
            ("/x?u=$uri&v=1", "/a&v=2=+", "/x?u=/a%26v%3D2%3D%2B&v=1"),
            ("/x#$uri", "/a&b%23", "/x#/a%26b%23"),
            // In a path they are what they were.
            ("/x$uri", "/a&b=c", "/x/a&b=c"),
        ] {
            assert_eq!(location("/**", to, target), expected, "{to} {target}");
        }
    }

    #[test]
    fn no_client_chooses_the_host() {
        for to in [
            "https://$1",
            "https://$1/x",
            "http://b.example$1",
            "https://b.example:$1/",
            "https://$host$1",
            "//$1",
            "//b.example$1",
        ] {
            let refused = sent("/o/*", to, "/o/x").unwrap_err();
            assert!(refused.contains("part of the host"), "{to}: {refused}");
        }
        for (to, expected) in [
            ("https://b.example/$1", "https://b.example/evil.example"),
            ("https://b.example?$1", "https://b.example?evil.example"),
            ("//b.example/$1", "//b.example/evil.example"),
            (
                "https://b.example$uri$1",
                "https://b.example/o/evil.exampleevil.example",
            ),
            ("/$1", "/evil.example"),
        ] {
            assert_eq!(location("/o/*", to, "/o/evil.example"), expected, "{to}");
        }
        for (pattern, to, target) in [
            ("/*x/*", "/$1/$2", "/x/evil.example"),
            ("/o/**", "/$1", "/o//evil.example"),
            ("/o/**", "/$1", "/o/%2F%2Fevil.example"),
            ("/evil.example", "/$uri", "/evil.example"),
        ] {
            assert_eq!(location(pattern, to, target), "/evil.example", "{target}");
        }
        assert_eq!(location("/o/*", "/$1/", "/o/"), "/");
    }

    #[test]
    fn every_glob_has_as_many_wildcards_as_are_named() {
        for (pattern, to, problem) in [
            (
                "/o/*",
                "/$2",
                "\"/o/*\" has 1 wildcards, and its redirect names $2",
            ),
            ("/o", "/$1", "\"/o\" has 0 wildcards"),
            ("*.ts", "/$1", "begins with a slash"),
        ] {
            let refused = sent(pattern, to, "/o/x").unwrap_err();
            assert!(refused.contains(problem), "{refused}");
        }
        // Without a number a glob is as it likes.
        assert_eq!(location("*.ts", "/b", "/a.ts"), "/b");
    }

    #[test]
    fn a_location_is_made_no_longer_than_it_may_be() {
        let long = "x".repeat(TARGET_BYTES_MAX - 10);
        let target = format!("/o/{long}");
        let to = "/$1".repeat(TARGET_BYTES_MAX);
        let made = location("/o/*", &to, &target);
        assert!(made.len() > TARGET_BYTES_MAX, "it is refused");
        assert!(made.len() < 3 * TARGET_BYTES_MAX);
    }
}
