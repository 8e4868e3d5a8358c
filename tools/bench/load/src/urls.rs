//! The URLs of a run: parsed, numbered patterns written out, sorted by server.
//!
//! It refuses what is not `http://` or `https://`, user names, and text that could not stand in a
//! request as it is. Bounded by: [`URLS_MAX`].

use std::collections::HashMap;
use std::fmt;

use anyhow::{Context as _, Result, bail, ensure};

/// The most URLs of a run: some hundred bytes of memory each.
pub(crate) const URLS_MAX: usize = 4 << 20;

/// Where requests go: what stands before the path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    /// `https`.
    pub(crate) is_tls: bool,
    /// A name or an address; an IPv6 address without its brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}", bracketed(&self.host), self.port)
    }
}

impl Origin {
    /// What a request's `Host` is to say: the port only where it is not the usual one.
    pub(crate) fn authority(&self, host: &str) -> String {
        let usual = if self.is_tls { 443 } else { 80 };
        if self.port == usual {
            bracketed(host)
        } else {
            format!("{}:{}", bracketed(host), self.port)
        }
    }
}

fn bracketed(host: &str) -> String {
    if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}

/// All URLs of a run.
#[derive(Debug, Default)]
pub(crate) struct Urls {
    /// Each server once, in the order they were named.
    pub(crate) origins: Vec<Origin>,
    /// The path of each URL, and which of `origins` it is at.
    pub(crate) paths: Vec<(u32, Box<str>)>,
    numbers: HashMap<Origin, u32>,
}

impl Urls {
    /// Adds all URLs a pattern stands for.
    ///
    /// # Errors
    /// A pattern that is broken, a URL that cannot be asked for, too many of them.
    pub(crate) fn add(&mut self, pattern: &str) -> Result<()> {
        for url in expand(pattern)? {
            let (origin, path) = parse(&url).with_context(|| format!("the URL {url:?}"))?;
            ensure!(self.paths.len() < URLS_MAX, "more than {URLS_MAX} URLs");
            let number = match self.numbers.get(&origin) {
                Some(number) => *number,
                None => {
                    let number = u32::try_from(self.origins.len()).context("too many servers")?;
                    self.origins.push(origin.clone());
                    self.numbers.insert(origin, number);
                    number
                }
            };
            self.paths.push((number, path.into()));
        }
        Ok(())
    }

    /// Adds the patterns of a file's lines; empty ones and those that begin with `#` say nothing.
    ///
    /// # Errors
    /// See [`Urls::add`]; the line is named.
    pub(crate) fn add_lines(&mut self, text: &str) -> Result<()> {
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                self.add(line)
                    .with_context(|| format!("line {}", index + 1))?;
            }
        }
        Ok(())
    }

    /// The URL of that number, as one would write it.
    pub(crate) fn show(&self, url: u32) -> String {
        let found = usize::try_from(url).ok().and_then(|at| self.paths.get(at));
        let Some((origin, path)) = found else {
            return format!("URL {url}");
        };
        let origin = usize::try_from(*origin)
            .ok()
            .and_then(|at| self.origins.get(at));
        origin.map_or_else(|| path.to_string(), |origin| format!("{origin}{path}"))
    }
}

/// Writes a pattern out: `{3..12}` becomes each number, `{003..012}` with leading zeros; several
/// in one pattern become all their combinations, the last counting fastest.
fn expand(pattern: &str) -> Result<Vec<String>> {
    let Some(range) = Range::find(pattern)? else {
        return Ok(vec![pattern.to_owned()]);
    };
    let rests = expand(range.after)?;
    let count = range.last - range.first;
    let total = usize::try_from(count)
        .ok()
        .and_then(|count| count.checked_add(1)?.checked_mul(rests.len()))
        .filter(|total| *total <= URLS_MAX);
    let total = total.with_context(|| format!("{pattern:?} is more than {URLS_MAX} URLs"))?;
    let mut all = Vec::with_capacity(total);
    for number in range.first..=range.last {
        for rest in &rests {
            let Range { before, digits, .. } = range;
            all.push(format!("{before}{number:0digits$}{rest}"));
        }
    }
    Ok(all)
}

/// The first numbered range of a pattern.
#[derive(Clone, Copy, Debug)]
struct Range<'a> {
    before: &'a str,
    first: u64,
    last: u64,
    /// Digits to write at least.
    digits: usize,
    after: &'a str,
}

impl<'a> Range<'a> {
    fn find(pattern: &'a str) -> Result<Option<Self>> {
        let Some((before, rest)) = pattern.split_once('{') else {
            return Ok(None);
        };
        let broken = || format!("{pattern:?}: a range is written {{FIRST..LAST}}");
        let (inside, after) = rest.split_once('}').with_context(broken)?;
        let (from, to) = inside.split_once("..").with_context(broken)?;
        let (first, last) = (
            from.parse::<u64>().with_context(broken)?,
            to.parse::<u64>().with_context(broken)?,
        );
        ensure!(first <= last, "{pattern:?}: a range counts upwards");
        let is_padded = from.len() > 1 && from.starts_with('0');
        Ok(Some(Self {
            before,
            first,
            last,
            digits: if is_padded { from.len() } else { 1 },
            after,
        }))
    }
}

/// Takes a URL apart: the server, and the path with its query.
fn parse(url: &str) -> Result<(Origin, String)> {
    let (scheme, rest) = url.split_once("://").context("no http:// or https://")?;
    let is_tls = match scheme {
        "http" => false,
        "https" => true,
        other => bail!("{other}:// is neither http:// nor https://"),
    };
    let rest = rest.split('#').next().unwrap_or(rest);
    let cut = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(cut);
    ensure!(!authority.contains('@'), "no user names");
    ensure!(
        path.bytes().all(|byte| byte.is_ascii_graphic()),
        "a path may have no blanks and nothing beyond ASCII: write it with %"
    );
    let (host, port) = split_port(authority)?;
    ensure!(!host.is_empty(), "no host");
    let port = match port {
        Some(port) => port.parse().context("the port")?,
        None if is_tls => 443,
        None => 80,
    };
    let path = if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/{path}")
    };
    let host = host.to_ascii_lowercase();
    Ok((Origin { is_tls, host, port }, path))
}

/// Host and port; an IPv6 address stands in brackets.
fn split_port(authority: &str) -> Result<(&str, Option<&str>)> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').context("a bracket without its end")?;
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if rest.is_empty() => Ok((host, None)),
            None => bail!("{rest:?} behind an address"),
        };
    }
    match authority.split_once(':') {
        Some((_, port)) if port.contains(':') => bail!("an IPv6 address stands in brackets"),
        Some((host, port)) => Ok((host, Some(port))),
        None => Ok((authority, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        for (url, is_tls, host, port, path) in [
            ("http://10.0.0.2/a.bin", false, "10.0.0.2", 80, "/a.bin"),
            ("https://Atlas.Test", true, "atlas.test", 443, "/"),
            ("http://h:8080/a?b=c#d", false, "h", 8080, "/a?b=c"),
            ("http://h?b", false, "h", 80, "/?b"),
            ("https://[fd00::2]:8443/x", true, "fd00::2", 8443, "/x"),
            ("http://[::1]/", false, "::1", 80, "/"),
        ] {
            let (origin, found) = parse(url).expect(url);
            let expected = Origin {
                is_tls,
                host: host.to_owned(),
                port,
            };
            assert_eq!((origin, found.as_str()), (expected, path), "{url}");
        }
    }

    #[test]
    fn what_cannot_be_asked_for_is_refused() {
        for url in [
            "10.0.0.2/a",
            "ftp://h/a",
            "http:///a",
            "http://u@h/a",
            "http://h:99999/",
            "http://h:/",
            "http://fd00::2/",
            "http://[::1/",
            "http://[::1]x/",
            "http://h/a b",
            "http://h/\r\nX: y",
            "http://h/ä",
        ] {
            assert!(parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_range_is_written_out() {
        assert_eq!(expand("a{9..11}b").expect("three"), ["a9b", "a10b", "a11b"]);
        assert_eq!(expand("{08..10}").expect("three"), ["08", "09", "10"]);
        assert_eq!(expand("{0..0}").expect("one"), ["0"]);
        assert_eq!(
            expand("{0..1}/{3..4}").expect("four"),
            ["0/3", "0/4", "1/3", "1/4"]
        );
        assert_eq!(expand("plain").expect("one"), ["plain"]);
        for broken in ["{", "{1}", "{1..", "{2..1}", "{a..b}", "{-1..2}", "{..3}"] {
            assert!(expand(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn the_number_of_urls_has_a_limit() {
        let last = URLS_MAX - 1;
        assert_eq!(
            expand(&format!("{{0..{last}}}")).expect("all").len(),
            URLS_MAX
        );
        assert!(expand(&format!("{{0..{URLS_MAX}}}")).is_err());
        assert!(expand("{0..99999}{0..99999}").is_err());
        assert!(expand("{0..18446744073709551615}").is_err());
    }

    #[test]
    fn urls_are_sorted_by_server_and_lines_may_be_comments() {
        let mut urls = Urls::default();
        urls.add_lines("# a comment\n\nhttp://a/{1..2}\n https://a/3 \nhttp://a/4\n")
            .expect("four");
        let servers: Vec<u32> = urls.paths.iter().map(|(server, _)| *server).collect();
        assert_eq!(servers, [0, 0, 1, 0]);
        assert_eq!(urls.origins.len(), 2);
        assert_eq!(urls.show(2), "https://a:443/3");
        let error = urls.add_lines("http://a/1\nnonsense").expect_err("line 2");
        assert!(error.to_string().contains("line 2"), "{error:#}");
    }

    #[test]
    fn the_host_of_a_request_names_an_unusual_port() {
        let authority = |url: &str| {
            let (origin, _) = parse(url).expect(url);
            origin.authority(&origin.host)
        };
        assert_eq!(authority("http://h:80/"), "h");
        assert_eq!(authority("http://h:443/"), "h:443");
        assert_eq!(authority("https://[::1]:443/"), "[::1]");
        assert_eq!(authority("https://[::1]:1/"), "[::1]:1");
    }
}
