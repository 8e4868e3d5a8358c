//! The names of sites: which one a request's authority names.
//!
//! It refuses names that DNS has not, ports, and IPv6 addresses without brackets: as written, not as a client writes
//! them, which is with any case, with a port and with the root's dot. Bounds: [`NAME_BYTES_MAX`]; a look-up is one of
//! a hash table, and one more for each label where there are wildcards.

use std::collections::HashMap;
use std::net::Ipv6Addr;

/// Longest name, bytes (RFC 1035 s2.3.4, without the root's dot).
pub const NAME_BYTES_MAX: usize = 253;
/// Longest label, bytes (RFC 1035 s2.3.4).
const LABEL_BYTES_MAX: usize = 63;

/// Why something is no name of a site.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NameProblem {
    /// Neither a name of DNS, nor an address, nor `*.` and a name.
    #[error("not the name of a host")]
    Syntax,
    /// It has a port behind it.
    #[error("a name and a port, and names have none")]
    Port,
    /// An IPv6 address as it stands in no URL.
    #[error("an IPv6 address without brackets")]
    Brackets,
    /// Another site has it.
    #[error("two sites have this name")]
    Twice,
}

/// Names, and the index of each one's site.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    exact: HashMap<Box<[u8]>, u32>,
    /// By what is behind `*.`.
    wildcards: HashMap<Box<[u8]>, u32>,
}

impl Names {
    pub(crate) fn insert(&mut self, name: &str, site: u32) -> Result<(), NameProblem> {
        let (table, name) = match name.strip_prefix("*.") {
            Some(rest) => (&mut self.wildcards, check_host_name(rest)?.to_owned()),
            None => (&mut self.exact, checked(name)?),
        };
        let mut lower = [0; NAME_BYTES_MAX];
        let key = normal(name.as_bytes(), &mut lower).ok_or(NameProblem::Syntax)?;
        match table.insert(key.into(), site) {
            Some(before) if before != site => Err(NameProblem::Twice),
            _ => Ok(()),
        }
    }

    /// The site that an authority names; of several wildcards the longest.
    pub(crate) fn find(&self, authority: &[u8]) -> Option<u32> {
        if self.exact.is_empty() && self.wildcards.is_empty() {
            return None;
        }
        let mut lower = [0; NAME_BYTES_MAX];
        let name = normal(authority, &mut lower)?;
        if let Some(&site) = self.exact.get(name) {
            return Some(site);
        }
        if self.wildcards.is_empty() {
            return None;
        }
        let dots = (0..name.len()).filter(|&at| name.get(at) == Some(&b'.'));
        let mut suffixes = dots.filter_map(|dot| name.get(dot + 1..));
        suffixes.find_map(|suffix| self.wildcards.get(suffix).copied())
    }
}

/// The name of an authority as the tables have it: in lower case, without port and root's dot. `None`: it is too
/// long for a name.
fn normal<'a>(authority: &[u8], lower: &'a mut [u8; NAME_BYTES_MAX]) -> Option<&'a [u8]> {
    let name = match authority.iter().position(|&byte| byte == b']') {
        Some(end) => authority.get(..=end)?,
        None => authority.split(|&byte| byte == b':').next()?,
    };
    let name = name.strip_suffix(b".").unwrap_or(name);
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    Some(lower)
}

/// A name or an address as clients write it (RFC 5952 s4, and RFC 3986 s3.2.2 for the brackets).
fn checked(name: &str) -> Result<String, NameProblem> {
    let in_brackets = |text: &str| {
        let inside = text.strip_prefix('[')?.strip_suffix(']')?;
        inside.parse::<Ipv6Addr>().ok()
    };
    if let Some(address) = in_brackets(name) {
        return Ok(format!("[{address}]"));
    }
    if name.parse::<Ipv6Addr>().is_ok() {
        return Err(NameProblem::Brackets);
    }
    if let Some((host, port)) = name.rsplit_once(':')
        && port.bytes().all(|byte| byte.is_ascii_digit())
        && (is_host_name(host) || in_brackets(host).is_some())
    {
        return Err(NameProblem::Port);
    }
    check_host_name(name).map(str::to_owned)
}

fn check_host_name(name: &str) -> Result<&str, NameProblem> {
    if is_host_name(name) {
        Ok(name)
    } else {
        Err(NameProblem::Syntax)
    }
}

/// RFC 1123 s2.1, and underscores, which some names have.
fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let belongs = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && label.bytes().all(belongs)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= NAME_BYTES_MAX && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(all: &[&str]) -> Names {
        let mut names = Names::default();
        for (site, name) in (1..).zip(all) {
            names.insert(name, site).unwrap();
        }
        names
    }

    #[test]
    fn a_name_is_found_however_a_client_writes_it() {
        let names = names(&["a.example", "192.0.2.1", "[2001:db8::1]"]);
        for authority in [
            "a.example",
            "A.Example:8080",
            "a.example.",
            "a.example.:443",
        ] {
            assert_eq!(names.find(authority.as_bytes()), Some(1), "{authority}");
        }
        assert_eq!(names.find(b"192.0.2.1:80"), Some(2));
        assert_eq!(names.find(b"[2001:DB8::1]:80"), Some(3));
        for other in ["", "b.example", "a.example.com", "xa.example", ".a.example"] {
            assert_eq!(names.find(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn the_longest_wildcard_wins_and_a_name_wins_over_wildcards() {
        let names = names(&["*.example", "*.b.example", "a.b.example"]);
        for (authority, site) in [
            ("a.b.example", Some(3)),
            ("c.b.example", Some(2)),
            ("d.c.b.example", Some(2)),
            ("b.example", Some(1)),
            ("example", None),
        ] {
            assert_eq!(names.find(authority.as_bytes()), site, "{authority}");
        }
    }

    #[test]
    fn names_are_those_of_dns() {
        let label = "a".repeat(LABEL_BYTES_MAX);
        let longest = [label.as_str(); 4].join(".")[..NAME_BYTES_MAX].to_owned();
        let mut names = Names::default();
        for name in [&longest, &label, "a-b_c.1", "*.a", "192.0.2.1", "[::1]"] {
            assert_eq!(names.insert(name, 1), Ok(()), "{name}");
        }
        let (too_long, long_label) = (format!("{longest}a"), format!("{label}a"));
        for name in [
            "",
            "*",
            "*.",
            "a..b",
            "a.",
            "-a",
            "a-",
            "a b",
            "a/b",
            "*a.b",
            &too_long,
            &long_label,
        ] {
            assert_eq!(names.insert(name, 1), Err(NameProblem::Syntax), "{name}");
        }
        for (name, problem) in [
            ("a.example:80", NameProblem::Port),
            ("a:", NameProblem::Port),
            ("[::1]:443", NameProblem::Port),
            ("192.0.2.1:80", NameProblem::Port),
            ("2001:db8::1", NameProblem::Brackets),
            ("::1", NameProblem::Brackets),
            ("a:b", NameProblem::Syntax),
            ("a.example:80/x", NameProblem::Syntax),
            ("-a:80", NameProblem::Syntax),
            ("[a]", NameProblem::Syntax),
            ("[::1", NameProblem::Syntax),
            ("[192.0.2.1]", NameProblem::Syntax),
            ("*.[::1]", NameProblem::Syntax),
            ("*.::1", NameProblem::Syntax),
        ] {
            assert_eq!(names.insert(name, 1), Err(problem), "{name}");
        }
        // However it is written, clients write it in one way.
        assert_eq!(names.insert("[2001:DB8:0:0::7]", 1), Ok(()));
        assert_eq!(names.find(b"[2001:db8::7]:80"), Some(1));
        assert_eq!(names.insert("A-B_C.1", 1), Ok(()));
        assert_eq!(names.insert("a-b_c.1", 2), Err(NameProblem::Twice));
        assert_eq!(names.find(longest.as_bytes()), Some(1));
        assert_eq!(names.find(too_long.as_bytes()), None);
    }
}
