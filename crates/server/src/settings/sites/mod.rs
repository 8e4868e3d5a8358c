//! `[[site]]`: sites and their rules, as the file has them.
//!
//! Replies of a site say what those of the server say, but for what the site sets; those of a rule what the site's
//! say, but for what the rule sets. All is compiled once when the settings are resolved, so that a pattern or a
//! name that is none is told with its place, and again when the keys of links were read.
//!
//! It refuses keys that mean nothing beside each other. Bounds: those of the crate `sites`.

mod cors;
mod limits;
mod links;
mod misses;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use http::{Coding, Cors, Origins, ReplyConfig, Status};
use sites::bandwidth::Bandwidth;
use sites::limits::Limit;
use sites::links::{LinkForm, LinkKey, Links};
use sites::names::NameProblem;
use sites::networks::SourceFilter;
use sites::redirects::Redirect;
use sites::rules::{Action, Folder, OnMiss, PATTERNS_MAX, RULES_MAX, Rule};
use sites::{NAMES_MAX, SITES_MAX, Site, SiteProblem, Sites};

use self::cors::CorsChoice;
use self::limits::{resolve_bandwidth, resolve_limit, resolve_rate};
pub(crate) use self::links::LinkSettings;
use self::links::resolve_link;
use self::misses::{MissChoice, resolve_on_miss};
use super::file::{Amount, FileText, Reader, Table, Value, Written};
use super::problems::Problems;
use super::sources::resolve_list;
use super::{Settings, parse_headers};
use crate::failure::Failure;

/// Makes a table of the file of its entries: a field for each, and its part of `docs/run/sites.md`. An
/// entry is `KEY: TYPE, UNIT, RANGE, ABOUT`. `with FIELD: TABLE`: it has the keys of that table as well.
macro_rules! table {
    ($(#[$about:meta])+ $name:ident, $shown:literal $(, with $other:ident: $others:ty)? {
        $($key:ident: $type:ty, $unit:literal, $range:literal, $meaning:literal;)+
    }) => {
        $(#[$about])+
        #[derive(Clone, PartialEq, Debug, Default, serde::Serialize)]
        pub(crate) struct $name {
            $($key: Option<$type>,)+
            $(#[serde(flatten)] $other: $others,)?
        }

        impl Table for $name {
            const NAME: &'static str = $shown;
            const KEYS: &'static [&'static str] = {
                const OWN: &[&str] = &[$(stringify!($key)),+];
                const OTHERS: &[&str] = [$(<$others as Table>::KEYS,)? &[]][0];
                const ALL: [&str; OWN.len() + OTHERS.len()] = joined(OWN, OTHERS);
                &ALL
            };

            fn read_key(&mut self, key: &str, value: &Value<'_>, reader: &mut Reader<'_>) {
                match key {
                    $(stringify!($key) => {
                        self.$key = <$type as Written>::read(value, "a whole number", reader);
                    })+
                    _ => { $(self.$other.read_key(key, value, reader);)? }
                }
            }
        }

        impl $name {
            fn documentation() -> String {
                let rows = [$((stringify!($key), $unit, $range, $meaning)),+];
                let row = |(key, unit, range, meaning)| format!("| `{key}` | {unit} | {range} | {meaning} |\n");
                let rows: String = rows.into_iter().map(row).collect();
                format!("| Key | Type | Range | Meaning |\n|---|---|---|---|\n{rows}")
            }
        }
    };
}

/// The keys of two tables; `N` is how many they have.
const fn joined<const N: usize>(
    own: &[&'static str],
    others: &[&'static str],
) -> [&'static str; N] {
    let mut all = [""; N];
    let mut index = 0;
    while index < N {
        all[index] = if index < own.len() {
            own[index]
        } else {
            others[index - own.len()]
        };
        index += 1;
    }
    all
}

table! {
    /// `[[site]]`.
    SiteTable, "[[site]]", with shared: SharedTable {
        names: Vec<String>, "array of strings", "1 to 256",
            "Its names, as `Host` has them; `*.a.example` for all names below `a.example`. The site without \
             `names` answers all that name no other; without such a site, they get 421.";
        redirect_to_https: bool, "boolean", "",
            "Whether requests over plain HTTP are sent to the same URL over TLS (301), but those of certificate \
             authorities below `/.well-known/acme-challenge/`.";
        hidden_files: bool, "boolean", "",
            "As the server's `hidden_files`.";
        error_pages: BTreeMap<String, String>, "table of strings", "403, 404, 410, 429, 500, 503",
            "Files that are the bodies of errors, by their status: `error_pages = { 404 = \"/404.html\" }`. A path is \
             looked up as one of the site that has no rule. Without the file the error says its status only.";
        rule: Vec<RuleTable>, "array of tables", "up to 256",
            "`[[site.rule]]`: the first that is for a path holds, and no other.";
    }
}

table! {
    /// `[[site.rule]]`.
    RuleTable, "[[site.rule]]", with shared: SharedTable {
        paths: Vec<String>, "array of strings", "globs, up to 1024 of a site",
            "The paths it is for. A glob that begins with `/` is for whole paths, another for names of files \
             anywhere: `/live/**`, `*.m3u8`. `*` and `?` match no slash, `**` does, `{a,b}` and `[ab]` are \
             alternatives.";
        allow: Vec<String>, "array of strings", "1 to 16384 of `NETWORK/BITS` or addresses",
            "Networks whose clients are served; others get 403.";
        deny: Vec<String>, "array of strings", "1 to 16384 of `NETWORK/BITS` or addresses",
            "Networks whose clients get 403, also those within a network of `allow`.";
        link: LinkTable, "table", "see below",
            "Only signed links are served; others get 403.";
        rate: Amount, "rate, like `\"5Mbit/s\"`, or bytes a second", "10 kB/s to 100 GB/s",
            "Most that a connection is sent of each reply. The server's `connection_rate_max` holds beside it.";
        rate_after: Amount, "size, like `\"10MiB\"`, or bytes", "up to 2^63 - 1",
            "So many bytes of each reply are sent before `rate` holds: what a player fills its buffer with.";
        strip_prefix: String, "string", "like `/shows`",
            "What is cut off the beginning of a path before it is looked up, where the path goes on with a slash.";
        redirect: String, "string", "a URL, or a path",
            "Where requests are sent. `$host` stands for the name that the client used, `$uri` for the path, \
             `$request_uri` for path and query, `$1` to `$9` for what `*` and `**` of the glob stand for.";
        status: Amount, "number", "301, 302, 307, 308 with `redirect`; else 403, 404, 410",
            "With `redirect`, its status, 302 if it is not said. Without, the error that requests get.";
    }
}

table! {
    /// What both have: a site says it for all of its paths, a rule for its own, in place of the site.
    SharedTable, "[[site]] and [[site.rule]]" {
        root: String, "string", "like `/a.example`",
            "The folder beneath PATH in which paths are looked up; in a raw store, what names begin with.";
        directory: PathBuf, "string", "an absolute path, up to 64 of all sites",
            "A directory of the host in place of PATH, if that is a directory too, and of the site's `directory` and \
             `root`. `root` beside it is beneath it.";
        header: Vec<String>, "array of strings", "`NAME: VALUE`, 4096 bytes together",
            "As the server's `header`: a field takes the place of the site's or the server's of that name.";
        remove_header: Vec<String>, "array of strings", "names",
            "Fields of the server's `header`, and for a rule of the site's, that are not sent.";
        cors: CorsChoice, "boolean or array of strings", "up to 64 of `scheme://host[:port]`",
            "Pages of which origins may read replies: of none, of all, or of these. The reply names the one that \
             asks, and caches are told by `Vary`.";
        credentials: bool, "boolean", "",
            "Whether pages of the origins in `cors` may send cookies along.";
        cache_control: bool, "boolean", "",
            "As the server's `cache_control`.";
        precompressed: Vec<String>, "array of strings", "`br`, `zstd`, `gzip`; `[]` for none",
            "Codings in which files may lie beside others, with `.br`, `.zst` and `.gz` behind their names. Clients that \
             take one (`Accept-Encoding`) get that file, in the order of their preference, then of this list; \
             caches are told by `Vary`. Each costs a look-up more where it is missing.";
        limit: LimitTable, "table", "see below",
            "How many connections and requests of one client's network are taken at once; further requests get 429. \
             A site's counts what is asked for of all of it, but by rules with one of their own, which counts by itself.";
        bandwidth: Amount, "rate, like `\"2Gbit/s\"`, or bytes a second", "10 kB/s to 100 GB/s",
            "Most that all connections together are sent. A site's is for all of it, but for rules with one of their \
             own, which is beside it.";
        on_miss: MissChoice, "string or table", "`\"404\"`, or see below",
            "What is done when there is no such file or object.";
    }
}

table! {
    /// `on_miss` of a site or a rule.
    MissTable, "on_miss" {
        redirect: String, "string", "a URL, or a path",
            "Where such requests are redirected (307): as `redirect` of a rule, but without `$1` to `$9`. `{path}` stands for \
             path and query, as `$request_uri` does. No cache keeps the redirect.";
        hold: Amount, "duration, like `\"5s\"`, or seconds", "100 ms to 30 s",
            "How long such requests wait until it is there. Those that wait in vain get 404.";
    }
}

table! {
    /// `link` of a rule.
    LinkTable, "link" {
        keys: PathBuf, "string", "a file of 1 to 4 lines",
            "The secrets, a line each; empty lines and those that begin with `#` are none. Every one opens links, so \
             that a new one can be added before the old one goes. Those of tokens are in hexadecimal digits, up to \
             64 bytes.";
        form: String, "string", "`token`, `secure_link`",
            "How links are signed: by tokens, if it is not said, or as nginx's `secure_link` has it.";
        name: String, "string", "letters, digits, `_`, `-`",
            "Of tokens: the name of the query's parameter, of the cookie, and at the front of the path; `hdnts` if it \
             is not said.";
        hash_parameter: String, "string", "letters, digits, `_`, `-`",
            "Of `secure_link`: the query's parameter with the hash; `md5` if it is not said.";
        expires_parameter: String, "string", "letters, digits, `_`, `-`",
            "Of `secure_link`: the query's parameter with the time; `expires` if it is not said.";
        expression: String, "string", "with `$uri` and `$key`",
            "Of `secure_link`: what is hashed, `$secure_link_expires$uri$remote_addr $key` if it is not said. `$key` \
             stands for a line of `keys`.";
    }
}

table! {
    /// `limit` of a site or a rule.
    LimitTable, "limit" {
        connections: Amount, "number", "1 to 65535",
            "Connections of a client's network that are sent replies at once. One that waits for a request does not count.";
        requests: Amount, "rate, like `\"10/s\"` or `\"90/min\"`, or requests a second", "`1/min` to `1000/s`",
            "How fast requests of a client's network may come, refused ones not counted.";
        burst: Amount, "number", "0 to 100000",
            "How many requests may come before their time; as many as come in a second if it is not said.";
    }
}

/// The tables of `docs/run/sites.md`.
#[must_use]
pub(crate) fn documentation() -> String {
    format!(
        "`[[site]]`:\n\n{}\n`[[site.rule]]`:\n\n{}\n`[[site]]`, and `[[site.rule]]` in place of its site's:\n\n{}\n\
         `limit` of a site or a rule:\n\n{}\n`on_miss` of a site or a rule:\n\n{}\n`link` of a rule:\n\n{}",
        SiteTable::documentation(),
        RuleTable::documentation(),
        SharedTable::documentation(),
        LimitTable::documentation(),
        MissTable::documentation(),
        LinkTable::documentation()
    )
}

/// Errors that a rule may answer by.
const REFUSALS: [Status; 3] = [Status::Forbidden, Status::NotFound, Status::Gone];
/// Errors that may have files as their bodies: those that a request for an object of a site can get, but for 416, which
/// players ask for and nobody reads.
const ERRORS_WITH_PAGES: [Status; 6] = [
    Status::Forbidden,
    Status::NotFound,
    Status::Gone,
    Status::TooManyRequests,
    Status::InternalServerError,
    Status::ServiceUnavailable,
];

/// Most directories beside PATH: each worker has each of them open.
pub(crate) const DIRECTORIES_MAX: usize = 64;

/// A site, but for the keys of its links and the numbers of its directories.
#[derive(Clone, Debug)]
pub(crate) struct SiteSettings {
    place: Place,
    site: Site,
    /// In which directory paths are looked up that have no rule, and those of each rule, in place of PATH.
    directory: Option<PathBuf>,
    rule_directories: Vec<Option<PathBuf>>,
    links: Vec<LinkSettings>,
}

/// A place in the file, as messages name it.
#[derive(Clone, Debug)]
struct Place {
    file: Arc<FileText>,
    /// Its number, from 1.
    site: usize,
    /// The rule's, from 1.
    rule: Option<usize>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.at(""))
    }
}

impl Place {
    /// The place of a key of it, or of itself.
    fn at(&self, key: &str) -> String {
        let (site, rule) = (self.site - 1, self.rule.map(|rule| rule - 1));
        let path = match rule {
            Some(rule) => format!("site[{site}].rule[{rule}].{key}"),
            None => format!("site[{site}].{key}"),
        };
        let place = self.file.place(&path);
        match self.rule {
            Some(rule) => format!("{place}: site {}, rule {rule}", self.site),
            None => format!("{place}: site {}", self.site),
        }
    }

    /// A problem, which begins with the name of a key if it is one of a key.
    fn refuse(&self, problem: impl fmt::Display, remedy: impl AsRef<str>) -> Failure {
        let problem = problem.to_string();
        let end = problem.find(|it: char| !it.is_ascii_lowercase() && it != '_' && it != '.');
        let place = self.at(&problem[..end.unwrap_or(problem.len())]);
        Failure::refused(format!("{place}: {problem}"), remedy)
    }

    fn of_rule(&self, index: usize) -> Self {
        Self {
            rule: Some(index + 1),
            ..self.clone()
        }
    }
}

/// What holds for the server, a site or a rule.
#[derive(Clone)]
struct Level {
    /// The folder, and the directory in place of PATH, as the site names them.
    root: String,
    directory: Option<PathBuf>,
    /// The field lines that `replies` was made of.
    lines: Vec<String>,
    replies: ReplyConfig,
    bandwidth: Option<Bandwidth>,
    on_miss: OnMiss,
    /// Its own; none of above.
    limit: Option<Limit>,
}

impl SharedTable {
    /// Lays these keys over what holds above. In place of what is wrong it stays what it is there.
    fn lay_over(mut self, above: &Level, place: &Place, problems: &mut Problems) -> Level {
        let mut level = above.clone();
        if problems.take_some(self.say(&mut level, place)).is_none() {
            level = above.clone();
        }
        if let Some(directory) = problems.take(resolve_directory(self.directory, place)) {
            level.directory = Some(directory);
            level.root.clear();
        }
        if let Some(root) = self.root
            && problems
                .take_some(resolve_folder("", &root, place))
                .is_some()
        {
            level.root = root;
        }
        level.limit = problems.take(resolve_limit(self.limit, place));
        let bandwidth = problems.take(resolve_bandwidth(self.bandwidth, place));
        level.bandwidth = bandwidth.or(level.bandwidth);
        let on_miss = problems.take(resolve_on_miss(self.on_miss, place));
        level.on_miss = on_miss.unwrap_or(level.on_miss);
        level
    }

    /// Changes what replies say.
    fn say(&mut self, level: &mut Level, place: &Place) -> Result<(), Failure> {
        let name_of = |line: &str| {
            line.split(':')
                .next()
                .unwrap_or_default()
                .to_ascii_lowercase()
        };
        let added = self.header.take().unwrap_or_default();
        let removed = self.remove_header.take().unwrap_or_default();
        let removed: Vec<String> = removed
            .iter()
            .chain(&added)
            .map(|line| name_of(line))
            .collect();
        let Level { lines, replies, .. } = level;
        lines.retain(|line| !removed.contains(&name_of(line)));
        lines.extend(added);
        replies.cache_control = self.cache_control.unwrap_or(replies.cache_control);
        if let Some(names) = &self.precompressed {
            replies.precompressed = resolve_codings(names, place)?;
        }
        let has_credentials = self.credentials.unwrap_or(false);
        match &self.cors {
            Some(CorsChoice::Origins(origins)) => {
                let origins = Origins::new(origins, has_credentials).map_err(|problem| {
                    place.refuse(
                        format_args!("cors: {problem}"),
                        "write origins as browsers do, like https://player.example",
                    )
                })?;
                replies.cors = Cors::Origins(origins);
            }
            _ if has_credentials => {
                return Err(place.refuse(
                    "credentials for pages of any origin",
                    "browsers refuse that; list the origins beside it: cors = [\"https://NAME\"]",
                ));
            }
            Some(CorsChoice::Switch(true)) => replies.cors = Cors::AnyOrigin,
            Some(CorsChoice::Switch(false)) => replies.cors = Cors::Off,
            None => {}
        }
        replies.extra_fields = parse_headers(
            lines,
            &replies.cors,
            &format_args!("{}: header", place.at("header")),
        )?;
        Ok(())
    }
}

/// Reads the sites of the file, and tries whether they are any.
pub(super) fn resolve(
    tables: Vec<SiteTable>,
    lines: Vec<String>,
    file: &Arc<FileText>,
    settings: &mut Settings,
    problems: &mut Problems,
) -> Result<(), Failure> {
    if tables.len() > SITES_MAX {
        return Err(Failure::refused(
            format!("{}: {} sites", file.place("site"), tables.len()),
            format!("write at most {SITES_MAX}"),
        ));
    }
    let above = Level {
        root: String::new(),
        directory: None,
        lines,
        replies: settings.replies.clone(),
        bandwidth: None,
        on_miss: OnMiss::NotFound,
        limit: None,
    };
    let sites = tables.into_iter().enumerate().map(|(index, table)| {
        let place = Place {
            file: Arc::clone(file),
            site: index + 1,
            rule: None,
        };
        resolve_site(table, place, &above, settings, problems)
    });
    let sites: Vec<_> = sites.collect();
    let sites: Vec<_> = sites
        .into_iter()
        .filter_map(|site| problems.take_some(site))
        .collect();
    let without = sites.iter().filter(|site| site.site.names.is_empty());
    if let Some(second) = without.skip(1).last() {
        return Err(second.place.refuse(
            "a second site without names",
            "give it names, or write its rules into the other",
        ));
    }
    settings.sites = sites;
    if !problems.is_empty() {
        return Ok(());
    }
    let directories = directories(settings);
    if directories.len() > DIRECTORIES_MAX {
        return Err(Failure::refused(
            format!(
                "{}: {} directories beside PATH",
                file.place("site"),
                directories.len()
            ),
            format!("name at most {DIRECTORIES_MAX}, and folders beneath them by root"),
        ));
    }
    compile(settings, &directories, |_| {
        Ok(vec![
            LinkKey::new(b"tried").expect("invariant: it has a length"),
        ])
    })?;
    Ok(())
}

fn resolve_site(
    table: SiteTable,
    place: Place,
    above: &Level,
    settings: &Settings,
    problems: &mut Problems,
) -> Result<SiteSettings, Failure> {
    let names = table.names.unwrap_or_default();
    let rules = table.rule.unwrap_or_default();
    let patterns = rules
        .iter()
        .flat_map(|rule| &rule.paths)
        .map(Vec::len)
        .sum::<usize>();
    for (what, count, most) in [
        ("names", names.len(), NAMES_MAX),
        ("rules", rules.len(), RULES_MAX),
        ("paths of rules", patterns, PATTERNS_MAX),
    ] {
        if count > most {
            let remedy = format!("write at most {most}");
            return Err(place.refuse(format_args!("{count} {what}"), remedy));
        }
    }
    let https = match (table.redirect_to_https, &settings.https) {
        (Some(true), Some(https)) => {
            let port = (https.port != 443).then(|| format!(":{}", https.port));
            let to = format!("https://$host{}$request_uri", port.unwrap_or_default());
            let redirect = Redirect::new(Status::MovedPermanently.code(), &to);
            Some(redirect.expect("invariant: a URL"))
        }
        (Some(true), None) => {
            return Err(place.refuse(
                "redirect_to_https: https is off",
                "give https a port, like 443",
            ));
        }
        _ => None,
    };
    let level = table.shared.lay_over(above, &place, problems);
    let mut links = Vec::new();
    let mut resolved = Vec::new();
    let mut rule_directories = Vec::new();
    for (index, rule) in rules.into_iter().enumerate() {
        let place = place.of_rule(index);
        let resolving = resolve_rule(rule, &level, &place, problems);
        let Some(ResolvedRule {
            patterns,
            rule,
            directory,
            link,
        }) = problems.take_some(resolving)
        else {
            continue;
        };
        resolved.push((patterns, rule));
        rule_directories.push(directory);
        if let Some((form, file)) = link {
            links.push(LinkSettings {
                place,
                rule: index,
                form,
                file,
            });
        }
    }
    let site = Site {
        names,
        https,
        serves_hidden: table.hidden_files.unwrap_or(settings.hidden_files),
        error_pages: resolve_error_pages(table.error_pages.unwrap_or_default(), &place)?,
        rules: resolved,
        otherwise: Rule {
            replies: level.replies,
            folder: resolve_folder("", &level.root, &place)?,
            limit: level.limit,
            bandwidth: level.bandwidth,
            on_miss: level.on_miss,
            ..Rule::default()
        },
    };
    Ok(SiteSettings {
        place,
        site,
        directory: level.directory,
        rule_directories,
        links,
    })
}

fn resolve_codings(names: &[String], place: &Place) -> Result<Vec<Coding>, Failure> {
    let mut codings = Vec::new();
    for name in names {
        let mut known = Coding::ALL.into_iter();
        let coding = known.find(|coding| coding.name() == name);
        match coding.filter(|coding| !codings.contains(coding)) {
            Some(coding) => codings.push(coding),
            None => {
                return Err(place.refuse(
                    format_args!("precompressed {name:?}: unknown, or named twice"),
                    "name br, zstd and gzip, each once",
                ));
            }
        }
    }
    Ok(codings)
}

fn resolve_error_pages(
    pages: BTreeMap<String, String>,
    place: &Place,
) -> Result<Vec<(Status, String)>, Failure> {
    let pages = pages.into_iter().map(|(code, path)| {
        let mut known = ERRORS_WITH_PAGES.into_iter();
        let status = known.find(|status| status.code().to_string() == code);
        let is_path = Folder::new("", &path).is_ok() && !path.is_empty();
        status
            .filter(|_| is_path)
            .map(|status| (status, path.clone()))
            .ok_or_else(|| {
                place.refuse(
                    format_args!(
                        "error_pages {code} = {path:?}: not an error that has one, or no path"
                    ),
                    "write it like 404 = \"/404.html\"; 403, 404, 410, 429, 500 and 503 have one",
                )
            })
    });
    pages.collect()
}

fn resolve_directory(path: Option<PathBuf>, place: &Place) -> Result<Option<PathBuf>, Failure> {
    match path {
        Some(path) if !path.is_absolute() => Err(place.refuse(
            format_args!("directory {}: not an absolute path", path.display()),
            "write it like \"/srv/archive\"; root is for folders beneath PATH",
        )),
        path => Ok(path),
    }
}

/// The directories beside PATH that the sites name, each once. Their numbers in the store are from 1 on.
#[must_use]
pub(crate) fn directories(settings: &Settings) -> Vec<PathBuf> {
    let sites = settings.sites.iter();
    let mut all: Vec<PathBuf> = sites
        .flat_map(|site| site.rule_directories.iter().chain([&site.directory]))
        .flatten()
        .cloned()
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// A rule, but for the keys of its links and the number of its directory.
struct ResolvedRule {
    patterns: Vec<String>,
    rule: Rule,
    directory: Option<PathBuf>,
    link: Option<(LinkForm, PathBuf)>,
}

fn resolve_rule(
    table: RuleTable,
    above: &Level,
    place: &Place,
    problems: &mut Problems,
) -> Result<ResolvedRule, Failure> {
    let patterns = table.paths.unwrap_or_default();
    if patterns.is_empty() {
        let remedy = "name the paths that it is for, like paths = [\"/live/**\"]";
        return Err(place.refuse("paths: there are none", remedy));
    }
    let level = table.shared.lay_over(above, place, problems);
    let networks = |key, texts| resolve_list(texts, &format_args!("{}: {key}", place.at(key)));
    let (allowed, denied) = (
        networks("allow", table.allow)?,
        networks("deny", table.deny)?,
    );
    let is_limited = allowed.is_some() || denied.is_some();
    let filter = SourceFilter::new(allowed.as_deref(), &denied.unwrap_or_default());
    let cut = table.strip_prefix.unwrap_or_default();
    let rule = Rule {
        rate: resolve_rate(table.rate, table.rate_after, place)?,
        bandwidth: level.bandwidth,
        limit: level.limit,
        replies: level.replies,
        networks: is_limited.then_some(filter),
        links: None,
        folder: resolve_folder(&cut, &level.root, place)?,
        action: resolve_action(table.redirect, table.status, place)?,
        on_miss: level.on_miss,
    };
    let link = table
        .link
        .map(|table| resolve_link(table, place))
        .transpose()?;
    Ok(ResolvedRule {
        patterns,
        rule,
        directory: level.directory,
        link,
    })
}

fn resolve_folder(cut: &str, root: &str, place: &Place) -> Result<Folder, Failure> {
    Folder::new(cut, root).map_err(|problem| {
        let shown = if Folder::new(cut, "").is_err() {
            format!("strip_prefix {cut:?}")
        } else {
            format!("root {root:?}")
        };
        place.refuse(
            format_args!("{shown}: {problem}"),
            "write it like \"/a.example\"",
        )
    })
}

fn resolve_action(
    redirect: Option<String>,
    status: Option<Amount>,
    place: &Place,
) -> Result<Action, Failure> {
    let code = |status: Amount| status.0.parse().unwrap_or(u16::MAX);
    match (redirect, status) {
        (Some(to), status) => {
            let code = status.map_or(Status::Found.code(), code);
            let redirect = Redirect::new(code, &to).map_err(|problem| {
                place.refuse(
                    format_args!("redirect {to:?} with status {code}: {problem}"),
                    "write a URL like \"https://www.example$request_uri\", and 301, 302, 307 or 308",
                )
            })?;
            Ok(Action::Redirect(redirect))
        }
        (None, Some(status)) => {
            let code = code(status);
            let status = REFUSALS.into_iter().find(|status| status.code() == code);
            let refuse = || {
                let remedy = "use 403, 404 or 410, or say where to by redirect";
                place.refuse(format_args!("status {code}"), remedy)
            };
            Ok(Action::Refuse(status.ok_or_else(refuse)?))
        }
        (None, None) => Ok(Action::Serve),
    }
}

/// The sites, with the keys that `read` returns for each rule with links. `opened`: the directories that the store
/// has beside PATH.
///
/// # Errors
/// The first that is not what it must be.
pub(crate) fn compile(
    settings: &Settings,
    opened: &[PathBuf],
    read: impl Fn(&LinkSettings) -> Result<Vec<LinkKey>, Failure>,
) -> Result<Sites, Failure> {
    let mut named = Vec::new();
    let mut places = Vec::new();
    let mut default = Site {
        serves_hidden: settings.hidden_files,
        otherwise: Rule {
            replies: settings.replies.clone(),
            action: if settings.sites.is_empty() {
                Action::Serve
            } else {
                Action::Refuse(Status::MisdirectedRequest)
            },
            ..Rule::default()
        },
        ..Site::default()
    };
    let mut default_place = None;
    for settings in &settings.sites {
        let SiteSettings { place, links, .. } = settings;
        let mut site = settings.site_with_directories(opened)?;
        for link in links {
            let keys = read(link)?;
            if let Some((_, rule)) = site.rules.get_mut(link.rule) {
                rule.links = Some(Links::new(link.form.clone(), keys));
            }
        }
        if site.names.is_empty() {
            default = site;
            default_place = Some(place);
        } else {
            named.push(site);
            places.push(place);
        }
    }
    let sites = Sites::new(named, default);
    let sites = sites.map(|sites| {
        sites
            .with_proxies(&settings.trusted_proxies)
            .with_prefaces(settings.proxy_protocol)
    });
    sites.map_err(|(index, problem)| {
        let place = places.get(index).copied().or(default_place);
        let place = place.expect("invariant: without sites there is no pattern");
        refuse_site(&problem, place)
    })
}

fn refuse_site(problem: &SiteProblem, place: &Place) -> Failure {
    let SiteProblem::Name { name, problem } = problem else {
        return place.refuse(problem, "write globs, like \"/live/**\" and \"*.m3u8\"");
    };
    let remedy = match problem {
        NameProblem::Port => "write it without: ports are those of http and https, for all sites",
        NameProblem::Brackets => "write an IPv6 address in brackets, like \"[2001:db8::1]\"",
        NameProblem::Twice => "leave it to one of them",
        _ => "write it like \"video.example\", \"*.video.example\" or \"192.0.2.1\"",
    };
    place.refuse(format_args!("names: {name:?}: {problem}"), remedy)
}

impl SiteSettings {
    /// The site, whose folders have the numbers of their directories.
    fn site_with_directories(&self, opened: &[PathBuf]) -> Result<Site, Failure> {
        let mut site = self.site.clone();
        let rules = site.rules.iter_mut().map(|(_, rule)| rule);
        let rules = rules.zip(&self.rule_directories);
        for (rule, directory) in rules.chain([(&mut site.otherwise, &self.directory)]) {
            let Some(directory) = directory else { continue };
            let known = opened.iter().position(|known| known == directory);
            let number = known.and_then(|index| u16::try_from(index + 1).ok());
            let number = number.ok_or_else(|| {
                let shown = directory.display();
                self.place.refuse(
                    format_args!("directory {shown}: not one of those that were opened at start"),
                    "use atlas reload --take-over",
                )
            })?;
            let folder = std::mem::take(&mut rule.folder);
            rule.folder = folder.in_directory(number);
        }
        Ok(site)
    }

    /// The name by which it is counted: its first; `None`: it is for requests that name no site.
    pub(crate) fn first_name(&self) -> Option<&str> {
        self.site.names.first().map(String::as_str)
    }

    /// The files of its links' keys.
    pub(crate) fn key_files(&self) -> impl Iterator<Item = &PathBuf> {
        self.links.iter().map(|link| &link.file)
    }
}

#[cfg(test)]
mod tests;
