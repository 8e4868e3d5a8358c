//! Sites: which reply a request gets, by name, path, network and signature.
//!
//! A server has one [`Sites`], made at load and not changed after, but for what [`limits`] and [`bandwidth`] count.
//! [`Sites::decide`] says of a parsed request whether it is served, sent elsewhere or refused, and what the reply says beside. A server without sites has one
//! that serves everything, and a look-up of nothing.
//!
//! ```text
//!  name ─▶ site ─▶ over TLS? ─▶ token off the path ─▶ hidden? ─▶ rule ─▶ network ─▶ signed link ─▶ limit ─▶ action, or folder
//! ```
//!
//! It refuses hidden files: a path of which a segment begins with a dot is not found, but for `/.well-known/`
//! (RFC 8615). It reads no file and no clock. Bounds: [`SITES_MAX`], [`NAMES_MAX`], and those of [`names`],
//! [`rules`], [`redirects`], [`networks`], [`links`] and [`limits`]; deciding allocates where a path or a location is made.

#![forbid(unsafe_code)]

pub mod bandwidth;
mod last_rule;
pub mod limits;
pub mod links;
pub mod names;
pub mod networks;
pub mod preface;
mod proxies;
pub mod redirects;
pub mod rules;
mod template;

use std::net::IpAddr;
use std::sync::Arc;

pub use last_rule::LastRule;

use http::{Codings, ReplyConfig, Request, Status};

use last_rule::RuleIndex;
use limits::{Counted, Held};
use links::{Asked, Audience};
use names::{NameProblem, Names};
use networks::Network;
use proxies::Proxies;
use redirects::Redirect;
use rules::{Action, OnMiss, PatternProblem, Rule, Rules};

/// Most sites.
pub const SITES_MAX: usize = 4096;
/// Most names of a site.
pub const NAMES_MAX: usize = 256;
/// Most sites that are told apart where requests are counted; greatest of [`Found::number`].
pub const SITES_COUNTED_MAX: u16 = 256;

/// Where certificate authorities look for a proof, over plain HTTP (RFC 8555 s8.3).
const ACME_PREFIX: &str = "/.well-known/acme-challenge/";
/// RFC 8615.
const WELL_KNOWN_PREFIX: &str = "/.well-known/";

/// A site as it is configured.
#[derive(Clone, Debug, Default)]
pub struct Site {
    /// Its names, `*.` before one for all below it.
    pub names: Vec<String>,
    /// Where requests over plain HTTP are sent; `None`: they are served.
    pub https: Option<Redirect>,
    /// Whether files and directories whose name begins with a dot are served.
    pub serves_hidden: bool,
    /// Objects that are the bodies of these errors, by the paths that a request would have.
    pub error_pages: Vec<(Status, String)>,
    /// Rules and their patterns.
    pub rules: Vec<(Vec<String>, Rule)>,
    /// What holds for paths without a rule.
    pub otherwise: Rule,
}

/// Why there are no such sites.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SiteProblem {
    /// A name of one.
    #[error("{name:?}: {problem}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        problem: NameProblem,
    },
    /// A pattern of one's rules.
    #[error("{0}")]
    Pattern(#[from] PatternProblem),
}

/// See the crate.
#[derive(Clone, Debug, Default)]
pub struct Sites {
    names: Names,
    sites: Vec<Compiled>,
    /// For requests that name none of them.
    default: Compiled,
    proxies: Proxies,
    /// `None`: no rule has a limit.
    counted: Option<Arc<Counted>>,
}

#[derive(Clone, Debug, Default)]
struct Compiled {
    /// As [`Found::number`].
    number: u16,
    https: Option<Redirect>,
    serves_hidden: bool,
    error_pages: Vec<(Status, Place)>,
    rules: Rules,
    otherwise: Rule,
    /// Of its rules' signed links, each once.
    token_names: Vec<Box<str>>,
}

/// What is known of a client beside its request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Client {
    /// Its address ([`Sites::source`]).
    pub source: IpAddr,
    /// Whether it speaks TLS.
    pub is_secure: bool,
    /// When it asks, Unix seconds.
    pub unix_seconds: u64,
}

/// What is done with a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The object is looked up.
    Serve(Place),
    /// It is answered with this status and location.
    Redirect(Status, String),
    /// It is refused.
    Refuse(Status),
}

/// Where an object is looked up.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// In which of the store's directories.
    pub directory: u16,
    /// By which path, in place of the request's; `None`: by that.
    pub path: Option<String>,
    /// In which codings it is looked for, before it is as it is.
    pub codings: Codings,
    /// Whether it is for this client only, though others may ask by the same URL: a cookie opened it, or a link for
    /// one address.
    pub is_private: bool,
}

impl Sites {
    /// These sites, and the one for all other names.
    ///
    /// # Errors
    /// The index of a site, and what is wrong with it.
    pub fn new(sites: Vec<Site>, default: Site) -> Result<Self, (usize, SiteProblem)> {
        let mut names = Names::default();
        let mut compiled = Vec::with_capacity(sites.len());
        for (site, index) in sites.into_iter().zip(0_u32..) {
            let at = |problem| (compiled.len(), problem);
            for name in &site.names {
                names.insert(name, index).map_err(|problem| {
                    let name = name.clone();
                    at(SiteProblem::Name { name, problem })
                })?;
            }
            let site = Compiled::new(site).map_err(|problem| at(problem.into()))?;
            compiled.push(site);
        }
        let default = Compiled::new(default).map_err(|problem| (compiled.len(), problem.into()))?;
        let mut sites = Self {
            names,
            sites: compiled,
            default,
            ..Self::default()
        };
        sites.number_limits();
        Ok(sites)
    }

    /// The same, whose requests are counted by these numbers ([`Found::number`]), in the order of [`Sites::new`]. Those
    /// above [`SITES_COUNTED_MAX`] count as 0.
    #[must_use]
    pub fn with_numbers(mut self, numbers: &[u16]) -> Self {
        for (site, &number) in self.sites.iter_mut().zip(numbers) {
            site.number = if number > SITES_COUNTED_MAX {
                0
            } else {
                number
            };
        }
        self
    }

    /// Tells limits apart: rules without one of their own share that of their site.
    fn number_limits(&mut self) {
        let mut last = 0;
        let mut number = |limit: &mut limits::Limit| {
            last += 1;
            limit.number = last;
        };
        for site in self.sites.iter_mut().chain([&mut self.default]) {
            site.otherwise.limit.iter_mut().for_each(&mut number);
            for rule in site.rules.iter_mut() {
                match &mut rule.limit {
                    Some(limit) => number(limit),
                    none => *none = site.otherwise.limit,
                }
            }
        }
        self.counted = (last > 0).then(|| Arc::new(Counted::new()));
    }

    /// Whether a request that is not refused is within the limit of its rule at `now_ns`, the workers' time; if so,
    /// `held` counts its connection.
    pub fn admit(
        &self,
        rule: &Rule,
        source: IpAddr,
        now_ns: u64,
        held: &mut Option<Box<Held>>,
    ) -> bool {
        match (&rule.limit, &self.counted) {
            (Some(limit), Some(counted)) => counted.admit(limit, source, now_ns, held),
            _ => {
                *held = None;
                true
            }
        }
    }

    /// The same, which believe what proxies in these networks say of who asks.
    #[must_use]
    pub fn with_proxies(self, networks: &[Network]) -> Self {
        let proxies = Proxies::new(networks);
        Self { proxies, ..self }
    }

    /// The same, to which those proxies begin connections by the PROXY protocol, if they are to.
    #[must_use]
    pub fn with_prefaces(self, are_awaited: bool) -> Self {
        let proxies = self.proxies.with_prefaces(are_awaited);
        Self { proxies, ..self }
    }

    /// Whether this is a proxy or balancer whose word about its clients counts.
    #[must_use]
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.proxies.trusts(peer)
    }

    /// Whether a connection from this address begins by the PROXY protocol ([`preface`]).
    #[must_use]
    pub fn awaits_preface(&self, peer: IpAddr) -> bool {
        self.proxies.awaits_preface(peer)
    }

    /// One site for all names, whose replies are these.
    #[must_use]
    pub fn of_replies(replies: ReplyConfig) -> Self {
        let mut sites = Self::default();
        sites.default.otherwise.replies = replies;
        sites
    }

    /// What replies say to those whose request could not be read.
    #[must_use]
    pub const fn default_replies(&self) -> &ReplyConfig {
        &self.default.otherwise.replies
    }

    /// What holds for this request. `last` is of these sites, and of no others.
    #[must_use]
    pub fn find(&self, request: &Request<'_>, last: &mut LastRule) -> Found<'_> {
        if self.sites.is_empty() && self.default.rules.is_empty() {
            return self.found(RuleIndex::default());
        }
        if let Some(index) = last.get(request) {
            return self.found(index);
        }
        let site = self.names.find(request.host.unwrap_or_default());
        let site = site.and_then(|site| usize::try_from(site).ok());
        let compiled = self.compiled(site);
        let (_, path) = compiled.split_token(&request.path);
        let rule = compiled.rules.find(path, &mut last.matched);
        let index = RuleIndex { site, rule };
        last.set(request, index);
        self.found(index)
    }

    fn found(&self, RuleIndex { site, rule }: RuleIndex) -> Found<'_> {
        let site = self.compiled(site);
        let rule = rule.and_then(|rule| site.rules.get(rule));
        Found {
            site,
            rule: rule.unwrap_or(&site.otherwise),
        }
    }

    /// That of [`Found::number`], of the request's site.
    #[must_use]
    pub fn number(&self, request: &Request<'_>) -> u16 {
        self.site(request).number
    }

    /// What replies to this request say.
    #[must_use]
    pub fn replies(&self, request: &Request<'_>) -> &ReplyConfig {
        &self.find(request, &mut LastRule::default()).rule.replies
    }

    /// The object that is the body of this error; `None`: it has none.
    #[must_use]
    pub fn error_page(&self, request: &Request<'_>, status: Status) -> Option<&Place> {
        let mut pages = self.site(request).error_pages.iter();
        pages.find_map(|(known, place)| (*known == status).then_some(place))
    }

    /// Who asks: the peer, or whom it asks for.
    #[must_use]
    pub fn source(&self, request: &Request<'_>, peer: IpAddr) -> IpAddr {
        self.proxies.source(peer, request.forwarded_for)
    }

    /// What is done with a request that asks for an object.
    #[must_use]
    pub fn decide(&self, request: &Request<'_>, client: &Client) -> Verdict {
        let found = self.find(request, &mut LastRule::default());
        found.decide(request, client)
    }

    fn site(&self, request: &Request<'_>) -> &Compiled {
        let named = self.names.find(request.host.unwrap_or_default());
        self.compiled(named.and_then(|site| usize::try_from(site).ok()))
    }

    fn compiled(&self, site: Option<usize>) -> &Compiled {
        let site = site.and_then(|site| self.sites.get(site));
        site.unwrap_or(&self.default)
    }
}

/// What holds for a request.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    site: &'a Compiled,
    /// Its rule.
    pub rule: &'a Rule,
}

impl Found<'_> {
    /// The number by which requests of the site are counted, 1 to [`SITES_COUNTED_MAX`]; 0: together with those of
    /// all sites that have none.
    #[must_use]
    pub const fn number(&self) -> u16 {
        self.site.number
    }

    /// What is done with the request, if it asks for an object.
    #[must_use]
    pub fn decide(&self, request: &Request<'_>, client: &Client) -> Verdict {
        self.site.decide(self.rule, request, client)
    }

    /// Where the request is sent (307) if its object is not there; `None`: nowhere.
    #[must_use]
    pub fn miss_location(&self, request: &Request<'_>) -> Option<String> {
        match &self.rule.on_miss {
            OnMiss::Redirect(to) => to.location(request, ""),
            OnMiss::NotFound | OnMiss::Hold { .. } => None,
        }
    }
}

impl Compiled {
    fn new(site: Site) -> Result<Self, PatternProblem> {
        let rules = Rules::new(site.rules)?;
        let mut token_names: Vec<Box<str>> = Vec::new();
        let links = rules.iter().chain([&site.otherwise]);
        let links = links.filter_map(|rule| rule.links.as_ref()?.token_name());
        for name in links {
            if !token_names.iter().any(|known| **known == *name) {
                token_names.push(name.into());
            }
        }
        let folder = &site.otherwise.folder;
        let pages = site.error_pages.into_iter().map(|(status, path)| {
            let place = Place {
                directory: folder.directory(),
                path: Some(folder.map(&path).unwrap_or(path)),
                ..Place::default()
            };
            (status, place)
        });
        Ok(Self {
            number: 0,
            https: site.https,
            serves_hidden: site.serves_hidden,
            error_pages: pages.collect(),
            rules,
            otherwise: site.otherwise,
            token_names,
        })
    }

    /// The token at the front of a path, and the path without it.
    fn split_token<'a>(&self, path: &'a str) -> (Option<&'a str>, &'a str) {
        let mut names = self.token_names.iter();
        match names.find_map(|name| links::split_path(path, name)) {
            Some((token, rest)) => (Some(token), rest),
            None => (None, path),
        }
    }

    fn decide(&self, rule: &Rule, request: &Request<'_>, client: &Client) -> Verdict {
        if let Some(https) = &self.https
            && !client.is_secure
            && !request.path.starts_with(ACME_PREFIX)
        {
            return redirect(https, request, &request.path);
        }
        let (path_token, path) = self.split_token(&request.path);
        if !self.serves_hidden && is_hidden(path) {
            return Verdict::Refuse(Status::NotFound);
        }
        let is_served = |networks: &networks::SourceFilter| networks.serves(client.source);
        if !rule.networks.as_ref().is_none_or(is_served) {
            return Verdict::Refuse(Status::Forbidden);
        }
        let mut is_private = false;
        if let Some(links) = &rule.links {
            let asked = Asked {
                path,
                path_token,
                query: request.query.unwrap_or_default(),
                cookie: request.cookie.unwrap_or_default(),
                source: client.source,
                unix_seconds: client.unix_seconds,
            };
            match links.audience(&asked) {
                Some(audience) => is_private = audience == Audience::Client,
                None => return Verdict::Refuse(Status::Forbidden),
            }
        }
        match &rule.action {
            Action::Serve => {
                let looked_up = rule.folder.map(path);
                let offered = &rule.replies.precompressed;
                Verdict::Serve(Place {
                    directory: rule.folder.directory(),
                    path: looked_up.or_else(|| path_token.map(|_| path.to_owned())),
                    codings: if offered.is_empty() {
                        Codings::default()
                    } else {
                        request.preferred(offered)
                    },
                    is_private,
                })
            }
            Action::Redirect(to) => redirect(to, request, path),
            Action::Refuse(status) => Verdict::Refuse(*status),
        }
    }
}

fn redirect(to: &Redirect, request: &Request<'_>, path: &str) -> Verdict {
    match to.location(request, path) {
        Some(location) => Verdict::Redirect(to.status(), location),
        None => Verdict::Refuse(Status::NotFound),
    }
}

/// Whether a segment of the path begins with a dot.
fn is_hidden(path: &str) -> bool {
    let path = path
        .strip_prefix(WELL_KNOWN_PREFIX)
        .map_or(path, |rest| rest);
    path.starts_with('.') || path.contains("/.")
}

#[cfg(test)]
mod tests;
