//! How the values of the configuration file are read: each key of a table by its type.
//!
//! It goes on after what is wrong, so that all of it is told at once, with its place. It refuses keys that a table
//! does not have, and says which one may have been meant. Bounds: the file.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::text::{FileText, name_of};
use super::{Amount, CertificateTable};
use crate::failure::Failure;
use crate::settings::sites::{LimitTable, LinkTable, MissTable, RuleTable, SiteTable};
use crate::settings::table::FileConfig;

/// Most characters of a value that a message repeats.
const FOUND_MAX: usize = 40;

/// A value with its place.
pub(crate) type Value<'i> = Spanned<DeValue<'i>>;

/// What can be a value.
pub(crate) trait Written: Sized {
    /// The value; `None` if it is none, which the reader was told. `expected` is what an [`Amount`] is, in words.
    fn read(value: &Value<'_>, expected: &str, reader: &mut Reader<'_>) -> Option<Self>;
}

/// A table with a fixed set of keys.
pub(crate) trait Table: Default {
    /// As messages name it.
    const NAME: &'static str;
    /// Its keys.
    const KEYS: &'static [&'static str];
    /// Those that it must have.
    const REQUIRED: &'static [&'static str] = &[];

    /// Reads the value of one of its keys.
    fn read_key(&mut self, key: &str, value: &Value<'_>, reader: &mut Reader<'_>);
}

/// Directives of nginx, and what is written in their place.
const NGINX: [(&str, &str); 42] = [
    ("add_header", "header = [\"NAME: VALUE\"]"),
    ("alias", "root, and strip_prefix in [[site.rule]]"),
    (
        "auth_basic",
        "nothing: links can be signed, link of [[site.rule]]",
    ),
    ("autoindex", "nothing: directories are never listed"),
    ("brotli_static", "precompressed = [\"br\"]"),
    ("client_header_timeout", "head_timeout_seconds"),
    ("default_type", "nothing: application/octet-stream"),
    ("error_log", "log, and the journal or stderr"),
    ("error_page", "error_pages of [[site]]"),
    ("etag", "nothing: there is always one"),
    ("expires", "header = [\"Cache-Control: max-age=SECONDS\"]"),
    ("gzip", "nothing: what is served is compressed already"),
    ("index", "nothing: index.html"),
    ("keepalive_timeout", "idle_timeout_seconds"),
    ("gzip_static", "precompressed = [\"gzip\"]"),
    (
        "limit_conn",
        "limit = { connections = NUMBER } of [[site]] or [[site.rule]]",
    ),
    (
        "limit_conn_zone",
        "nothing: limit counts by the client's network",
    ),
    (
        "limit_rate",
        "connection_rate_max, rate of [[site.rule]], or bandwidth of all connections",
    ),
    ("limit_rate_after", "rate_after of [[site.rule]]"),
    (
        "limit_req",
        "limit = { requests = \"NUMBER/s\", burst = NUMBER } of [[site]] or [[site.rule]]",
    ),
    (
        "limit_req_zone",
        "nothing: limit counts by the client's network",
    ),
    ("listen", "http and https, ports of all sites"),
    ("location", "[[site.rule]] with paths"),
    ("log_format", "access_log_format"),
    ("map", "for origins, the list of cors"),
    ("open_file_cache", "nothing: open files are kept"),
    ("proxy_pass", "nothing: only files are served"),
    ("real_ip_header", "trusted_proxies"),
    ("return", "redirect and status of [[site.rule]]"),
    ("rewrite", "redirect or strip_prefix of [[site.rule]]"),
    (
        "secure_link",
        "link = { form = \"secure_link\", ... } of [[site.rule]]",
    ),
    (
        "secure_link_md5",
        "link = { form = \"secure_link\", ... } of [[site.rule]]",
    ),
    ("sendfile", "nothing: there is one way"),
    ("server", "[[site]]"),
    ("server_name", "names"),
    ("set_real_ip_from", "trusted_proxies"),
    ("ssl_certificate", "cert of [[certificate]]"),
    ("ssl_certificate_key", "key of [[certificate]]"),
    ("ssl_session_ticket_key", "ticket_keys"),
    (
        "try_files",
        "nothing for $uri =404, else on_miss = { redirect = \"URL\" }",
    ),
    (
        "worker_connections",
        "connections_max, of all workers together",
    ),
    ("worker_processes", "workers"),
];

/// Every table, for keys that are written in another than theirs.
const TABLES: [(&str, &[&str]); 7] = [
    (FileConfig::NAME, FileConfig::KEYS),
    (CertificateTable::NAME, CertificateTable::KEYS),
    (SiteTable::NAME, SiteTable::KEYS),
    (RuleTable::NAME, RuleTable::KEYS),
    (LimitTable::NAME, LimitTable::KEYS),
    (MissTable::NAME, MissTable::KEYS),
    (LinkTable::NAME, LinkTable::KEYS),
];

/// Collects where values are, and what is wrong.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    source: &'a mut FileText,
    /// The key that is being read: `site[2].rule[0].cors`.
    key: String,
}

/// Reads the text of a file; what is wrong is told to `source`.
pub(super) fn read(source: &mut FileText) -> FileConfig {
    let text = source.text().to_owned();
    let (table, errors) = DeTable::parse_recoverable(&text);
    for error in &errors {
        let place = source.place_at(error.span().map_or(0, |span| span.start));
        let problem = format!("{place}: {}", error.message());
        source.problems.push(Failure::Refused(problem));
    }
    if !errors.is_empty() {
        // What could be read of the rest may have been meant otherwise.
        return FileConfig::default();
    }
    let mut reader = Reader {
        source,
        key: String::new(),
    };
    reader.read_table(table.get_ref(), table.span())
}

impl Reader<'_> {
    fn refuse(&mut self, span: &Range<usize>, problem: &str) {
        let place = self.source.place_at(span.start);
        let failure = Failure::Refused(format!("{place}: {problem}"));
        self.source.problems.push(failure);
    }

    /// Tells that the value is of another kind.
    pub(crate) fn mismatch(&mut self, value: &Value<'_>, expected: &str) {
        let span = value.span();
        let found = self.source.text().get(span.clone()).unwrap_or_default();
        let found: String = found
            .lines()
            .next()
            .unwrap_or_default()
            .chars()
            .take(FOUND_MAX)
            .collect();
        let problem = format!("{} {found}: expected {expected}", name_of(&self.key));
        self.refuse(&span, &problem);
    }

    /// Does `read` with a key behind the one that is being read.
    fn below<T>(&mut self, part: &str, span: Range<usize>, read: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.key.len();
        if length > 0 && !part.starts_with('[') {
            self.key.push('.');
        }
        self.key.push_str(part);
        self.source.spans.insert(self.key.clone(), span);
        let value = read(self);
        self.key.truncate(length);
        value
    }

    fn read_table<T: Table>(&mut self, table: &DeTable<'_>, span: Range<usize>) -> T {
        let mut made = T::default();
        for (key, value) in table {
            let name: &str = key.get_ref();
            if T::KEYS.contains(&name) {
                self.below(name, value.span(), |reader| {
                    made.read_key(name, value, reader)
                });
            } else {
                let problem = unknown_key::<T>(name);
                self.refuse(&key.span(), &problem);
            }
        }
        for key in T::REQUIRED {
            if !table.contains_key(*key) {
                let others = T::KEYS.iter().filter_map(|other| {
                    let text = table.get(*other)?.get_ref().as_str()?;
                    Some(format!("{other} {text:?}"))
                });
                let beside: Vec<String> = others.collect();
                let beside = if beside.is_empty() {
                    String::new()
                } else {
                    format!(" beside {}", beside.join(", "))
                };
                self.refuse(&span, &format!("{}: {key} is missing{beside}", T::NAME));
            }
        }
        made
    }
}

/// What to say of a key that the table does not have.
fn unknown_key<T: Table>(key: &str) -> String {
    let others: Vec<&str> = TABLES
        .iter()
        .filter(|(_, keys)| keys.contains(&key))
        .map(|(name, _)| *name)
        .collect();
    let inside = match T::NAME {
        FileConfig::NAME => format!("{key}: unknown key"),
        table => format!("{key}: unknown key inside {table}"),
    };
    let near = T::KEYS
        .iter()
        .map(|known| (strsim::osa_distance(key, known), *known));
    // As many letters may be wrong as make a third of them.
    let is_near = |(distance, known): &(usize, &str)| {
        *distance <= key.chars().count().max(3) / 3 || (key.len() > 3 && known.starts_with(key))
    };
    let near = near.filter(is_near).min();
    let foreign = NGINX.iter().find(|(directive, _)| *directive == key);
    match (others.as_slice(), near) {
        // One letter is wrong, or two are exchanged.
        (_, Some((1, known))) => format!("{inside}; did you mean {known}?"),
        ([FileConfig::NAME], _) => {
            format!(
                "{inside}; it is a key of the file: write it above the first line with a [table]"
            )
        }
        ([_, ..], _) => format!("{inside}; it is a key of {}", others.join(" and of ")),
        ([], _) if foreign.is_some() => {
            let ours = foreign.map_or("", |(_, ours)| ours);
            format!("{inside}; what nginx says so is here {ours}")
        }
        ([], Some((_, known))) => format!("{inside}; did you mean {known}?"),
        ([], None) if T::NAME == FileConfig::NAME => {
            format!("{inside}; atlas check --keys lists those that there are")
        }
        ([], None) => format!("{inside}; it has {}", T::KEYS.join(", ")),
    }
}

impl Written for bool {
    fn read(value: &Value<'_>, _: &str, reader: &mut Reader<'_>) -> Option<Self> {
        let read = value.get_ref().as_bool();
        if read.is_none() {
            reader.mismatch(value, "true or false, without quotes");
        }
        read
    }
}

impl Written for String {
    fn read(value: &Value<'_>, _: &str, reader: &mut Reader<'_>) -> Option<Self> {
        let read = value.get_ref().as_str().map(Self::from);
        if read.is_none() {
            reader.mismatch(value, "a text in quotes");
        }
        read
    }
}

impl Written for PathBuf {
    fn read(value: &Value<'_>, expected: &str, reader: &mut Reader<'_>) -> Option<Self> {
        String::read(value, expected, reader).map(Self::from)
    }
}

/// A number, or a text.
impl Written for Amount {
    fn read(value: &Value<'_>, expected: &str, reader: &mut Reader<'_>) -> Option<Self> {
        match value.get_ref() {
            DeValue::String(text) => Some(Self(text.to_string())),
            DeValue::Integer(number) => {
                let digits = number.as_str();
                // What is too large for it is too large for every range.
                let number = i64::from_str_radix(digits, number.radix());
                Some(Self(number.map_or_else(
                    |_| digits.to_owned(),
                    |number| number.to_string(),
                )))
            }
            _ => {
                reader.mismatch(value, expected);
                None
            }
        }
    }
}

impl Written for Vec<String> {
    fn read(value: &Value<'_>, expected: &str, reader: &mut Reader<'_>) -> Option<Self> {
        let Some(array) = value.get_ref().as_array() else {
            reader.mismatch(value, "a list of texts, like [\"a\", \"b\"]");
            return None;
        };
        let texts = array
            .iter()
            .map(|value| String::read(value, expected, reader));
        // All of them are read, so that all that is wrong is told.
        let texts: Vec<Option<String>> = texts.collect();
        texts.into_iter().collect()
    }
}

impl Written for BTreeMap<String, String> {
    fn read(value: &Value<'_>, expected: &str, reader: &mut Reader<'_>) -> Option<Self> {
        let Some(table) = value.get_ref().as_table() else {
            reader.mismatch(value, "a table of texts");
            return None;
        };
        let mut texts = Self::new();
        for (key, value) in table {
            let name: &str = key.get_ref();
            let text = reader.below(name, value.span(), |reader| {
                String::read(value, expected, reader)
            });
            texts.extend(text.map(|text| (name.to_owned(), text)));
        }
        Some(texts)
    }
}

impl<T: Table> Written for T {
    fn read(value: &Value<'_>, _: &str, reader: &mut Reader<'_>) -> Option<Self> {
        let Some(table) = value.get_ref().as_table() else {
            reader.mismatch(value, "a table, like { KEY = VALUE }");
            return None;
        };
        Some(reader.read_table(table, value.span()))
    }
}

impl<T: Table> Written for Vec<T> {
    fn read(value: &Value<'_>, expected: &str, reader: &mut Reader<'_>) -> Option<Self> {
        let Some(array) = value.get_ref().as_array() else {
            reader.mismatch(value, &format!("tables, each below a line {}", T::NAME));
            return None;
        };
        let mut tables = Self::new();
        for (index, value) in array.iter().enumerate() {
            let table = reader.below(&format!("[{index}]"), value.span(), |reader| {
                T::read(value, expected, reader)
            });
            tables.extend(table);
        }
        Some(tables)
    }
}
