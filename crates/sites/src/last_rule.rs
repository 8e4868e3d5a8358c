//! The rule that was found last: a request asks for its rule when it is decided and when its reply is written.
//!
//! It refuses to know whose request it was: another one of the same name and path has the same rule. Bounded by the
//! longest head of a request.

use http::Request;

/// Which rule that was; of one [`crate::Sites`]: with another begins another.
#[derive(Clone, Debug, Default)]
pub struct LastRule {
    authority: Vec<u8>,
    path: String,
    found: Option<RuleIndex>,
    /// Room for patterns that match.
    pub(crate) matched: Vec<usize>,
}

/// A rule by its site and its place there; `None`: the site for all other names, and what holds without a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RuleIndex {
    pub(crate) site: Option<usize>,
    pub(crate) rule: Option<usize>,
}

impl LastRule {
    /// The rule of a request, if it was found last.
    pub(crate) fn get(&self, request: &Request<'_>) -> Option<RuleIndex> {
        let authority = request.host.unwrap_or_default();
        let is_same = self.path == *request.path && self.authority == authority;
        self.found.filter(|_| is_same)
    }

    pub(crate) fn set(&mut self, request: &Request<'_>, found: RuleIndex) {
        self.authority.clear();
        self.authority
            .extend_from_slice(request.host.unwrap_or_default());
        self.path.clear();
        self.path.push_str(&request.path);
        self.found = Some(found);
    }
}
