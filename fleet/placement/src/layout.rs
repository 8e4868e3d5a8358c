//! Which paths belong together as one title, and on how many edges a title is.
//!
//! The unit of placement is the title, not the object: a player stays with one edge for as long as it can, so that edge
//! should have all of a film's segments. Refuses what could not be meant. Bounded by: [`RULES_MAX`], [`COPIES_MAX`].

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Most copies of a title. More of one title than this serve nobody faster.
pub const COPIES_MAX: usize = 1024;

/// Most rules of a layout.
pub const RULES_MAX: usize = 1024;

/// Most components of a path that name a title.
const COMPONENTS_MAX: usize = 16;

/// How a library is laid out over a fleet. The filler of every edge and every steerer have the same one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Layout {
    /// On how many edges a title is, if no rule says otherwise: 1 to [`COPIES_MAX`].
    pub copies: usize,
    /// How many of a path's first components name its title, 1 to 16: with 2, `/films/alien/1080p/7.m4s` belongs to
    /// `films/alien`. A path that has no more than these is a title of its own.
    pub title_components: usize,
    /// Whether each zone has its own copies of every title, so that clients need no other zone's edges.
    pub by_zone: bool,
    /// Exceptions. Of those whose prefix fits, the longest counts.
    pub rules: Vec<Rule>,
}

/// An exception to a layout for the paths that begin so.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// How the paths begin. Whole components are compared: `/live` is not the beginning of `/lives/a`.
    pub prefix: String,
    /// In place of [`Layout::copies`].
    #[serde(default)]
    pub copies: Option<usize>,
    /// In place of [`Layout::title_components`].
    #[serde(default)]
    pub title_components: Option<usize>,
}

/// Where a path belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place<'a> {
    /// What [`holders`](crate::holders) is asked with: without a slash at its beginning, so that the keys of a bucket
    /// and the paths of URLs agree.
    pub title: &'a str,
    /// On how many edges it is.
    pub copies: usize,
}

/// Why a layout is refused.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A number of copies that cannot be.
    #[error("copies is {0}: 1 to {COPIES_MAX} are possible")]
    Copies(usize),
    /// A number of components that cannot be.
    #[error("title_components is {0}: 1 to {COMPONENTS_MAX} are possible")]
    Components(usize),
    /// Too many rules.
    #[error("there are {0} rules: {RULES_MAX} are possible")]
    Rules(usize),
    /// Two rules for one prefix.
    #[error("two rules have the prefix {0:?}")]
    Twice(String),
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            copies: 2,
            title_components: 1,
            by_zone: false,
            rules: Vec::new(),
        }
    }
}

impl Layout {
    /// Refuses what cannot be meant.
    ///
    /// # Errors
    /// The first number out of its range, or the first prefix that two rules have.
    pub fn check(&self) -> Result<(), LayoutError> {
        if self.rules.len() > RULES_MAX {
            return Err(LayoutError::Rules(self.rules.len()));
        }
        let copies = self.rules.iter().filter_map(|rule| rule.copies);
        for copies in copies.chain([self.copies]) {
            if !(1..=COPIES_MAX).contains(&copies) {
                return Err(LayoutError::Copies(copies));
            }
        }
        let components = self.rules.iter().filter_map(|rule| rule.title_components);
        for components in components.chain([self.title_components]) {
            if !(1..=COMPONENTS_MAX).contains(&components) {
                return Err(LayoutError::Components(components));
            }
        }
        for (index, rule) in self.rules.iter().enumerate() {
            let mut earlier = self.rules[..index].iter();
            if earlier.any(|it| plain(&it.prefix) == plain(&rule.prefix)) {
                return Err(LayoutError::Twice(rule.prefix.clone()));
            }
        }
        Ok(())
    }

    /// Where a path belongs, decoded and without its query. A bucket's key is one without the slash at its beginning.
    #[must_use]
    pub fn place<'a>(&self, path: &'a str) -> Place<'a> {
        let path = path.trim_start_matches('/');
        let rule = self
            .rules
            .iter()
            .filter(|rule| begins(path, plain(&rule.prefix)))
            .max_by_key(|rule| plain(&rule.prefix).len());
        let components = rule
            .and_then(|rule| rule.title_components)
            .unwrap_or(self.title_components);
        Place {
            title: title(path, components),
            copies: rule.and_then(|rule| rule.copies).unwrap_or(self.copies),
        }
    }
}

/// A prefix without the slashes around it.
fn plain(prefix: &str) -> &str {
    prefix.trim_matches('/')
}

/// Whether a path begins by these whole components.
fn begins(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| prefix.is_empty() || rest.is_empty() || rest.starts_with('/'))
}

fn title(path: &str, components: usize) -> &str {
    let end = path.match_indices('/').nth(components.saturating_sub(1));
    end.map_or(path, |(end, _)| &path[..end])
}

/// How many copies a title with this share of a fleet's requests needs, so that none of its holders gets more requests
/// of it than `held_share_max` of what an edge gets in the mean: at least `least`, at most one for each member.
///
/// With 1,000 members and `held_share_max` 0.1 a title with a hundredth of all requests is on 100 of them.
#[must_use]
pub fn copies_for_share(share: f64, members: usize, held_share_max: f64, least: usize) -> usize {
    let most = members.min(COPIES_MAX);
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a small count, and `as` keeps what is out of range at its ends"
    )]
    let wanted = (share * members as f64 / held_share_max).ceil() as usize;
    wanted.max(least).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(prefix: &str, copies: Option<usize>, title_components: Option<usize>) -> Rule {
        Rule {
            prefix: prefix.to_owned(),
            copies,
            title_components,
        }
    }

    #[test]
    fn a_title_is_the_first_components_of_a_path_and_the_longest_rule_counts() {
        let layout = Layout {
            copies: 2,
            title_components: 2,
            by_zone: false,
            rules: vec![
                rule("/live/", Some(8), Some(1)),
                rule("/live/sports", Some(20), None),
                rule("hot", Some(5), None),
            ],
        };
        layout.check().unwrap();
        for (path, title, copies) in [
            ("/films/alien/1080p/7.m4s", "films/alien", 2),
            ("films/alien/1080p/7.m4s", "films/alien", 2),
            ("/films/alien", "films/alien", 2),
            ("/film.mp4", "film.mp4", 2),
            ("/", "", 2),
            ("/live/one/a.ts", "live", 8),
            ("/lives/one/a.ts", "lives/one", 2),
            ("/live/sports/a/b.ts", "live/sports", 20),
            ("/hot", "hot", 5),
        ] {
            assert_eq!(layout.place(path), Place { title, copies }, "{path}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let check = |copies, title_components, rules| {
            let layout = Layout {
                copies,
                title_components,
                by_zone: false,
                rules,
            };
            layout.check()
        };
        assert_eq!(check(1, 1, vec![]), Ok(()));
        assert_eq!(check(COPIES_MAX, 16, vec![]), Ok(()));
        assert_eq!(check(0, 1, vec![]), Err(LayoutError::Copies(0)));
        assert_eq!(check(1025, 1, vec![]), Err(LayoutError::Copies(1025)));
        assert_eq!(check(1, 0, vec![]), Err(LayoutError::Components(0)));
        assert_eq!(check(1, 17, vec![]), Err(LayoutError::Components(17)));
        let twice = vec![rule("/a", None, None), rule("a/", None, None)];
        assert_eq!(check(1, 1, twice), Err(LayoutError::Twice("a/".into())));
        let copies = vec![rule("/a", Some(0), None)];
        assert_eq!(check(1, 1, copies), Err(LayoutError::Copies(0)));
        let rules = |count: usize| {
            (0..count)
                .map(|n| rule(&n.to_string(), None, None))
                .collect()
        };
        assert_eq!(check(1, 1, rules(RULES_MAX)), Ok(()));
        assert_eq!(
            check(1, 1, rules(RULES_MAX + 1)),
            Err(LayoutError::Rules(1025))
        );
    }

    #[test]
    fn popular_titles_are_on_more_edges() {
        for (share, members, copies) in [
            (0.0, 1000, 2),
            (1e-6, 1000, 2),
            (0.000_2, 1000, 2),
            (0.000_21, 1000, 3),
            (0.01, 1000, 100),
            (1.0, 1000, 1000),
            (1.0, 3, 3),
            (0.0, 1, 1),
            (0.5, 0, 0),
        ] {
            assert_eq!(copies_for_share(share, members, 0.1, 2), copies, "{share}");
        }
    }
}
