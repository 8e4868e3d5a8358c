//! The rules of a site: which one a path has.
//!
//! The first rule of which a pattern matches is the path's, and no other. A pattern that begins with a slash is for
//! the whole path, one that doesn't for the last segment, in any directory: `/live/**`, `*.m3u8`. `*` and `?` match
//! no slash, `**` does. All patterns are compiled into one matcher at load.
//!
//! It refuses patterns that are none. Bounds: [`RULES_MAX`], [`PATTERNS_MAX`].

use globset::{Candidate, GlobBuilder, GlobSet, GlobSetBuilder};
use http::{ReplyConfig, Status};

use crate::bandwidth::Bandwidth;
use crate::limits::Limit;
use crate::links::Links;
use crate::networks::SourceFilter;
use crate::redirects::Redirect;

/// Most rules of a site.
pub const RULES_MAX: usize = 256;
/// Most patterns of a site's rules together.
pub const PATTERNS_MAX: usize = 1024;

/// What holds for some paths of a site.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rule {
    /// What replies say.
    pub replies: ReplyConfig,
    /// Whom they are for.
    pub networks: Option<SourceFilter>,
    /// What a request must prove.
    pub links: Option<Links>,
    /// Where its paths are looked up.
    pub folder: Folder,
    /// How many connections and requests of a client's network; `None`: as the site has it.
    pub limit: Option<Limit>,
    /// How fast replies are sent; `None`: as fast as the server's are.
    pub rate: Option<Rate>,
    /// How fast all replies together are sent; `None`: as fast as there are connections.
    pub bandwidth: Option<Bandwidth>,
    /// What is done.
    pub action: Action,
    /// What is done if it is served and its object is not there.
    pub on_miss: OnMiss,
}

/// What is done with a request whose object is not there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum OnMiss {
    /// It is told so.
    #[default]
    NotFound,
    /// It is sent elsewhere, where the object is.
    Redirect(Redirect),
    /// It waits for the object.
    Hold {
        /// How long, milliseconds.
        milliseconds: u32,
    },
}

/// How fast a reply is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Most bytes a second.
    pub bytes_per_second: u64,
    /// So many bytes of each reply are sent before that holds.
    pub after_bytes: u64,
}

/// Where paths are looked up: the beginning of a path is cut off, and another is put in its place.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Folder {
    /// What is cut off where a path begins with it: empty, or a path without a slash at its end.
    cut: Box<str>,
    /// What stands before the rest: the same.
    root: Box<str>,
    /// In which of the store's directories.
    directory: u16,
}

/// Why something is no folder: it does not begin with a slash, ends with one, or has an empty, `.` or `..` part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not an absolute path without . and .. and without a slash at its end")]
pub struct FolderProblem;

impl Folder {
    /// `cut` and `root` are absolute paths without a slash at their ends, or empty.
    ///
    /// # Errors
    /// One of them is something else.
    pub fn new(cut: &str, root: &str) -> Result<Self, FolderProblem> {
        let is_part = |part: &str| !matches!(part, "" | "." | "..");
        let is_folder = |path: &str| {
            let parts = path.strip_prefix('/');
            path.is_empty() || parts.is_some_and(|parts| parts.split('/').all(is_part))
        };
        if !is_folder(cut) || !is_folder(root) {
            return Err(FolderProblem);
        }
        Ok(Self {
            cut: cut.into(),
            root: root.into(),
            directory: 0,
        })
    }

    /// The same in the store's directory with this index, in place of its first.
    #[must_use]
    pub fn in_directory(self, directory: u16) -> Self {
        Self { directory, ..self }
    }

    /// In which of the store's directories its paths are looked up.
    pub(crate) const fn directory(&self) -> u16 {
        self.directory
    }

    /// The path that is looked up for another; `None`: that one.
    pub(crate) fn map(&self, path: &str) -> Option<String> {
        let rest = path.strip_prefix(&*self.cut);
        let rest = rest.filter(|rest| rest.starts_with('/')).unwrap_or(path);
        let is_same = rest.len() == path.len() && self.root.is_empty();
        (!is_same).then(|| [&*self.root, rest].concat())
    }
}

/// What is done with a request that may be served.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Action {
    /// It is served.
    #[default]
    Serve,
    /// It is sent elsewhere.
    Redirect(Redirect),
    /// It is refused with this error.
    Refuse(Status),
}

/// A pattern that is none.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{problem}")]
pub struct PatternProblem {
    /// What is wrong with it.
    pub problem: String,
}

/// Rules, and which paths they are for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    rules: Vec<Rule>,
    matcher: GlobSet,
    /// By pattern, the index of its rule.
    rule_of: Vec<usize>,
}

impl Rules {
    /// Of rules and their patterns.
    pub(crate) fn new(mut rules: Vec<(Vec<String>, Rule)>) -> Result<Self, PatternProblem> {
        let mut matcher = GlobSetBuilder::new();
        let mut rule_of = Vec::new();
        let problem = |error: globset::Error| PatternProblem {
            problem: error.to_string(),
        };
        for (index, (patterns, rule)) in rules.iter_mut().enumerate() {
            for pattern in patterns {
                let whole = if pattern.starts_with('/') {
                    pattern.clone()
                } else {
                    format!("**/{pattern}")
                };
                let mut glob = GlobBuilder::new(&whole);
                glob.literal_separator(true).backslash_escape(false);
                let glob = glob.build().map_err(problem)?;
                if let Action::Redirect(redirect) = &mut rule.action {
                    let added = redirect.add_pattern(pattern, &glob);
                    added.map_err(|problem| PatternProblem { problem })?;
                }
                matcher.add(glob);
                rule_of.push(index);
            }
        }
        Ok(Self {
            rules: rules.into_iter().map(|(_, rule)| rule).collect(),
            matcher: matcher.build().map_err(problem)?,
            rule_of,
        })
    }

    /// Which rule is a path's. `matched` is room for patterns that match.
    pub(crate) fn find(&self, path: &str, matched: &mut Vec<usize>) -> Option<usize> {
        if self.rules.is_empty() {
            return None;
        }
        let path = Candidate::new(path);
        self.matcher.matches_candidate_into(&path, matched);
        let rules = matched
            .iter()
            .filter_map(|&pattern| self.rule_of.get(pattern));
        rules.min().copied()
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Rule> {
        self.rules.get(index)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Rule> {
        self.rules.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(patterns: &[&[&str]], path: &str) -> Option<u16> {
        let rule = |code: usize| Rule {
            action: Action::Refuse(if code == 0 {
                Status::Forbidden
            } else {
                Status::Gone
            }),
            ..Rule::default()
        };
        let strings = |patterns: &[&str]| patterns.iter().map(|&it| it.into()).collect();
        let rules = patterns.iter().enumerate();
        let rules = rules.map(|(index, patterns)| (strings(patterns), rule(index)));
        let rules = Rules::new(rules.collect()).unwrap();
        let found = rules.find(path, &mut Vec::new());
        let action = found.map(|index| rules.get(index).unwrap().action.clone());
        action.map(|action| match action {
            Action::Refuse(status) => status.code(),
            _ => 0,
        })
    }

    #[test]
    fn the_first_rule_that_matches_is_the_paths() {
        let rules: &[&[&str]] = &[&["/a/**", "*.m3u8"], &["/**"]];
        for (path, code) in [
            ("/a/b", 403),
            ("/a/b/c", 403),
            ("/a/", 403),
            ("/x.m3u8", 403),
            ("/b/x.m3u8", 403),
            ("/b/x.m4s", 410),
            ("/", 410),
            ("/a", 410),
        ] {
            assert_eq!(found(rules, path), Some(code), "{path}");
        }
        assert_eq!(found(&[], "/a"), None);
        assert_eq!(found(&[&["/a/**"]], "/b/a/c"), None);
    }

    #[test]
    fn a_pattern_is_a_glob() {
        for (pattern, path, is_matched) in [
            ("/a/*.ts", "/a/b.ts", true),
            ("/a/*.ts", "/a/b/c.ts", false),
            ("/a/**/*.ts", "/a/b/c.ts", true),
            ("/a/**/*.ts", "/a/c.ts", true),
            ("/a?", "/ab", true),
            ("/a?", "/a/", false),
            ("/{a,b}/*", "/b/c", true),
            ("/[ab]", "/c", false),
            ("/a*", "/a/", false),
            ("index.m3u8", "/a/index.m3u8", true),
            ("index.m3u8", "/a/xindex.m3u8", false),
            ("/A", "/a", false),
        ] {
            let is_found = found(&[&[pattern]], path).is_some();
            assert_eq!(is_found, is_matched, "{pattern} {path}");
        }
        for wrong in ["/[a", "/{a", "/[b-a]"] {
            let rules = vec![(vec![wrong.to_owned()], Rule::default())];
            assert!(Rules::new(rules).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_folder_is_put_before_what_is_left_of_a_path() {
        for (cut, root, path, looked_up) in [
            ("", "", "/a", None),
            ("", "/r/s", "/a/", Some("/r/s/a/")),
            ("/a", "", "/a/b", Some("/b")),
            ("/a", "", "/a/", Some("/")),
            ("/a", "/r", "/a/b", Some("/r/b")),
            ("/a", "/r", "/ab", Some("/r/ab")),
            ("/a", "/r", "/a", Some("/r/a")),
            ("/a", "", "/b", None),
        ] {
            let folder = Folder::new(cut, root).unwrap();
            assert_eq!(
                folder.map(path).as_deref(),
                looked_up,
                "{cut} {root} {path}"
            );
        }
        for wrong in ["/", "a", "/a/", "//a", "/a//b", "/..", "/a/../b", "/."] {
            assert_eq!(Folder::new("", wrong), Err(FolderProblem), "{wrong}");
            assert_eq!(Folder::new(wrong, ""), Err(FolderProblem), "{wrong}");
        }
    }
}
