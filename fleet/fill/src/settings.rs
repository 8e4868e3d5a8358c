//! Settings: a TOML file, and a few flags over it.
//!
//! It refuses keys that it does not know, amounts without their range, and origins and targets that cannot be; an error
//! has the file, the line and the column. Durations, rates and sizes have units, as in `atlas.toml`.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use amount::{AmountProblem, TimeUnit, parse_duration, parse_rate, parse_size};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, Visitor};

use crate::fetch::REQUEST_BYTES;
use crate::origin::{OriginSettings, check_url};
use crate::plan::Names;
use crate::rate::{WINDOWS_MAX, Window};

/// Most requests at once, whatever the memory.
const REQUESTS_MAX: u64 = 512;
/// Shortest and longest part.
const PART_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=1 << 30;

/// A text or a number.
struct Written(String);

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Written;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text with a unit, or a number")
            }
            fn visit_str<E>(self, text: &str) -> Result<Written, E> {
                Ok(Written(text.to_owned()))
            }
            fn visit_i64<E>(self, number: i64) -> Result<Written, E> {
                Ok(Written(number.to_string()))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Written, E> {
                Ok(Written(number.to_string()))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

fn amount<'de, D: Deserializer<'de>>(
    deserializer: D,
    parse: impl FnOnce(&str) -> Result<u64, AmountProblem>,
    example: &str,
) -> Result<u64, D::Error> {
    let Written(text) = Written::deserialize(deserializer)?;
    parse(&text).map_err(|problem| {
        D::Error::custom(match problem {
            AmountProblem::BitsOrBytes => {
                format!("{text:?} may be of bits or of bytes: write {example}")
            }
            AmountProblem::Syntax => format!("{text:?} is no such amount: write it like {example}"),
            AmountProblem::Range => format!("{text:?} is out of range"),
        })
    })
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    amount(deserializer, parse_size, "\"8MiB\" or \"900GB\"").map(Some)
}

fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    amount(deserializer, parse_rate, "\"1200Mbit/s\" or \"100MB/s\"").map(Some)
}

fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let parse = |text: &str| parse_duration(text, TimeUnit::Seconds);
    let micros = amount(deserializer, parse, "\"20s\" or \"1h30m\"")?;
    Ok(Some(Duration::from_micros(micros)))
}

/// The file.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct FileSettings {
    origin: Option<String>,
    endpoint: Option<String>,
    region: Option<String>,
    credentials: Option<PathBuf>,
    target: Option<PathBuf>,
    staging: Option<PathBuf>,
    manifest: Option<PathBuf>,
    #[serde(default, deserialize_with = "seconds")]
    list_seconds: Option<Duration>,
    #[serde(default, deserialize_with = "size")]
    memory: Option<u64>,
    #[serde(default, deserialize_with = "size")]
    part: Option<u64>,
    #[serde(default, deserialize_with = "rate")]
    rate: Option<u64>,
    #[serde(default)]
    windows: Vec<String>,
    #[serde(default, deserialize_with = "seconds")]
    stall_seconds: Option<Duration>,
    #[serde(default, deserialize_with = "size")]
    capacity: Option<u64>,
    high_percent: Option<u64>,
    low_percent: Option<u64>,
    removals_percent_max: Option<u64>,
    #[serde(default)]
    pinned: Vec<String>,
    #[serde(default)]
    live: Vec<String>,
    #[serde(default, deserialize_with = "seconds")]
    live_seconds: Option<Duration>,
    server: Option<SocketAddr>,
    site: Option<String>,
    #[serde(default, deserialize_with = "seconds")]
    misses_seconds: Option<Duration>,
    #[serde(default, deserialize_with = "seconds")]
    counts_seconds: Option<Duration>,
    metrics: Option<SocketAddr>,
}

/// What flags say; they count more than the file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// As the key.
    pub origin: Option<String>,
    /// As the key.
    pub target: Option<PathBuf>,
    /// As the key.
    pub manifest: Option<PathBuf>,
    /// As the key.
    pub rate: Option<String>,
    /// As the key.
    pub metrics: Option<SocketAddr>,
}

/// Settings that can be gone by.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the library is.
    pub origin: OriginSettings,
    /// Where copies are kept.
    pub target: PathBuf,
    /// Where they are until they are whole, if that is a raw store.
    pub staging: Option<PathBuf>,
    /// What is wanted; without it all that the origin has.
    pub manifest: Option<PathBuf>,
    /// How often the origin is listed and the manifest read.
    pub list_every: Duration,
    /// Requests at once, by the memory for them.
    pub requests: usize,
    /// Bytes of a part.
    pub part_bytes: u64,
    /// Bytes a second.
    pub rate: Option<u64>,
    /// When, and how fast.
    pub windows: Vec<Window>,
    /// Most bytes of copies.
    pub capacity_bytes: Option<u64>,
    /// Share of them at which some leave.
    pub high_percent: u64,
    /// Share of them until which they leave.
    pub low_percent: u64,
    /// Share of the copies that one listing may remove.
    pub removals_percent_max: u64,
    /// Which stay, and which are asked for again.
    pub names: GlobNames,
    /// How often those are.
    pub live_every: Duration,
    /// Where `atlas serve` tells what was missed and asked for.
    pub server: Option<SocketAddr>,
    /// Of which site.
    pub site: Option<String>,
    /// How often it is asked what was missed.
    pub misses_every: Duration,
    /// How often it is asked for its counts.
    pub counts_every: Duration,
    /// Where metrics are served.
    pub metrics: Option<SocketAddr>,
}

/// Names by globs.
#[derive(Clone, Debug, Default)]
pub struct GlobNames {
    pinned: GlobSet,
    live: GlobSet,
}

impl Names for GlobNames {
    fn is_pinned(&self, name: &str) -> bool {
        self.pinned.is_match(name)
    }

    fn is_live(&self, name: &str) -> bool {
        self.live.is_match(name)
    }
}

impl Settings {
    /// Reads the file, if there is one, and puts the flags over it.
    ///
    /// # Errors
    /// What is wrong, one line each.
    pub fn load(path: Option<&Path>, overrides: Overrides) -> Result<Self, String> {
        let (text, shown) = match path {
            None => (String::new(), String::new()),
            Some(path) => {
                let text = std::fs::read_to_string(path);
                let text = text.map_err(|error| format!("--config {}: {error}", path.display()))?;
                (text, path.display().to_string())
            }
        };
        Self::parse(&text, &shown, overrides)
    }

    /// The same of a text; `shown` is its name.
    ///
    /// # Errors
    /// What is wrong.
    pub fn parse(text: &str, shown: &str, overrides: Overrides) -> Result<Self, String> {
        let file: FileSettings =
            toml::from_str(text).map_err(|error| located(shown, text, &error))?;
        // What a key says wrongly is told with the file's name.
        let at = |key: &str, problem: String| {
            let place = if shown.is_empty() {
                String::new()
            } else {
                format!("{shown}: ")
            };
            format!("{place}{key}: {problem}")
        };
        let [high, low, removals_percent_max] =
            percents(&file).map_err(|(key, problem)| at(key, problem))?;
        let url = overrides.origin.or(file.origin).ok_or_else(|| {
            at(
                "origin",
                "not given; write origin = \"s3://BUCKET/PREFIX\", or name it behind atlas-fill"
                    .into(),
            )
        })?;
        check_url(&url)?;
        let target = overrides.target.or(file.target).ok_or_else(|| {
            at(
                "target",
                "not given; write target = \"/srv/video\", or name it behind the origin".into(),
            )
        })?;
        let rate = match overrides.rate {
            None => file.rate,
            Some(text) => Some(parse_rate(&text).map_err(|_| {
                format!("--rate {text}: no rate; write it like 1200Mbit/s or 100MB/s")
            })?),
        };
        if rate == Some(0) {
            return Err(at(
                "rate",
                "0 would fill nothing; leave it out for no limit".into(),
            ));
        }
        let memory = file.memory.unwrap_or(64 << 20);
        let requests = memory / REQUEST_BYTES;
        if requests == 0 {
            return Err(at(
                "memory",
                format!("less than {REQUEST_BYTES} bytes, which one request takes"),
            ));
        }
        let part_bytes = file.part.unwrap_or(8 << 20);
        if !PART_BYTES.contains(&part_bytes) {
            return Err(at("part", "not from 64KiB to 1GiB".into()));
        }
        if file.windows.len() > WINDOWS_MAX {
            return Err(at("windows", format!("more than {WINDOWS_MAX}")));
        }
        let windows = file.windows.iter().map(|text| Window::parse(text));
        let windows = windows
            .collect::<Result<_, _>>()
            .map_err(|problem| at("windows", problem))?;
        let not_zero = |key, value, default_seconds| {
            at_least_some(value, default_seconds).map_err(|problem| at(key, problem))
        };
        Ok(Self {
            origin: OriginSettings {
                url,
                endpoint: file.endpoint,
                region: file.region,
                credentials: file.credentials,
                stall: not_zero("stall_seconds", file.stall_seconds, 20)?,
            },
            target,
            staging: file.staging,
            manifest: overrides.manifest.or(file.manifest),
            list_every: not_zero("list_seconds", file.list_seconds, 300)?,
            requests: usize::try_from(requests.min(REQUESTS_MAX)).unwrap_or(1),
            part_bytes,
            rate,
            windows,
            capacity_bytes: file.capacity,
            high_percent: high,
            low_percent: low,
            removals_percent_max,
            names: GlobNames {
                pinned: globs(&file.pinned).map_err(|problem| at("pinned", problem))?,
                live: globs(&file.live).map_err(|problem| at("live", problem))?,
            },
            live_every: not_zero("live_seconds", file.live_seconds, 2)?,
            server: file.server,
            site: file.site,
            misses_every: not_zero("misses_seconds", file.misses_seconds, 1)?,
            counts_every: not_zero("counts_seconds", file.counts_seconds, 30)?,
            metrics: overrides.metrics.or(file.metrics),
        })
    }
}

/// A time between two things, or the default.
fn at_least_some(value: Option<Duration>, default_seconds: u64) -> Result<Duration, String> {
    let value = value.unwrap_or(Duration::from_secs(default_seconds));
    if value.is_zero() {
        return Err("0 would leave no time between".to_owned());
    }
    Ok(value)
}

/// The marks of a store's room, and the share that a listing may remove.
fn percents(file: &FileSettings) -> Result<[u64; 3], (&'static str, String)> {
    let (high, low) = (
        file.high_percent.unwrap_or(95),
        file.low_percent.unwrap_or(90),
    );
    if !(1..=high).contains(&low) || high > 100 {
        let problem = format!("{low} and {high}: they rise, from 1 to 100");
        return Err(("low_percent, high_percent", problem));
    }
    let removals = file.removals_percent_max.unwrap_or(50);
    if removals > 100 {
        return Err(("removals_percent_max", "more than 100".to_owned()));
    }
    Ok([high, low, removals])
}

/// A star is within a part of a name, two stars go over several, as in the rules of sites.
fn globs(patterns: &[String]) -> Result<GlobSet, String> {
    let mut builder = GlobSetBuilder::new();
    for pattern in patterns {
        let glob = GlobBuilder::new(pattern.trim_start_matches('/'))
            .literal_separator(true)
            .build();
        builder.add(glob.map_err(|error| error.to_string())?);
    }
    builder.build().map_err(|error| error.to_string())
}

/// An error of the file, with its line and column, and the line itself.
pub(crate) fn located(shown: &str, text: &str, error: &toml::de::Error) -> String {
    let problem = error
        .message()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let Some(span) = error.span() else {
        return format!("{shown}: {problem}");
    };
    let before = &text[..span.start.min(text.len())];
    let line = before.matches('\n').count() + 1;
    let column = before
        .rsplit('\n')
        .next()
        .unwrap_or_default()
        .chars()
        .count()
        + 1;
    let content = text.lines().nth(line - 1).unwrap_or_default().trim();
    format!("{shown}:{line}:{column}: {problem}: {content}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Settings, String> {
        let base = "origin = \"s3://b/p\"\ntarget = \"/srv/video\"\n";
        Settings::parse(&format!("{base}{text}"), "fill.toml", Overrides::default())
    }

    #[test]
    fn amounts_have_units_and_the_rest_has_defaults() {
        let settings = parse("").unwrap();
        assert_eq!((settings.requests, settings.part_bytes), (64, 8 << 20));
        assert_eq!((settings.low_percent, settings.high_percent), (90, 95));
        let settings = parse(
            "rate = \"1200Mbit/s\"\nmemory = \"8MiB\"\nlist_seconds = \"1h30m\"\nlive_seconds = 4\n\
             capacity = \"900GB\"\nwindows = [\"02:00-14:00 1Gbit/s\"]\nserver = \"127.0.0.1:9100\"\n",
        );
        let settings = settings.unwrap();
        assert_eq!(settings.rate, Some(150_000_000));
        assert_eq!((settings.requests, settings.windows.len()), (8, 1));
        assert_eq!(settings.list_every, Duration::from_secs(5_400));
        assert_eq!(settings.live_every, Duration::from_secs(4));
        assert_eq!(settings.capacity_bytes, Some(900_000_000_000));
    }

    #[test]
    fn an_error_names_the_line_and_what_to_write() {
        for (text, wanted) in [
            (
                "rate = \"1.2Gb/s\"",
                "fill.toml:3:8: \"1.2Gb/s\" is no such amount: write it like \"1200Mbit/s\"",
            ),
            ("rate = \"10M\"", "may be of bits or of bytes"),
            ("rat = 1", "unknown field `rat`"),
            ("rate = 0", "fill.toml: rate: 0 would fill nothing"),
            ("memory = \"512KiB\"", "memory: less than"),
            ("part = \"1k\"", "part: not from"),
            ("low_percent = 96", "they rise"),
            ("high_percent = 101", "they rise"),
            ("removals_percent_max = 101", "more than 100"),
            ("windows = [\"2-3\"]", "windows: \"2-3\""),
            ("stall_seconds = 0", "stall_seconds: 0"),
            ("pinned = [\"a{\"]", "pinned: "),
            ("server = \"here\"", "fill.toml:3:"),
            ("live = 3", "fill.toml:3:8: "),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
        let error = Settings::parse("", "", Overrides::default()).unwrap_err();
        assert!(error.starts_with("origin: not given"), "{error}");
    }

    #[test]
    fn the_smallest_memory_is_that_of_one_request() {
        assert_eq!(parse("memory = \"1MiB\"").unwrap().requests, 1);
        assert_eq!(parse("memory = \"1T\"").unwrap().requests, 512);
    }

    #[test]
    fn stars_are_those_of_the_rules_of_sites() {
        let settings = parse("pinned = [\"/news/*\"]\nlive = [\"live/**/*.m3u8\"]\n").unwrap();
        assert!(settings.names.is_pinned("news/a") && !settings.names.is_pinned("news/a/b"));
        assert!(settings.names.is_live("live/a/b.m3u8") && settings.names.is_live("live/b.m3u8"));
        assert!(!settings.names.is_live("live/b.ts"));
    }

    /// The rows of the table of settings in docs/run/fill.md: keys, and the default of each.
    fn table() -> Vec<(Vec<String>, String)> {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/run/fill.md");
        let page = std::fs::read_to_string(page).unwrap();
        let (_, table) = page.split_once("| Key | Default | What |\n").unwrap();
        let rows = table.lines().skip(1).take_while(|it| it.starts_with('|'));
        let cells = |row: &str| {
            let mut cells = row.split('|').skip(1).map(|it| it.trim().to_owned());
            let keys = cells.next().unwrap();
            let keys = keys.split(", ").map(|it| it.trim_matches('`').to_owned());
            (keys.collect(), cells.next().unwrap())
        };
        rows.map(cells).collect()
    }

    #[test]
    fn the_table_of_settings_has_every_key_and_its_default() {
        let error = parse("no_such_key = 1").unwrap_err();
        let (_, known) = error.split_once("expected one of ").unwrap();
        let known = known.split(", ").map(|it| it.split('`').nth(1).unwrap());
        let mut known: Vec<String> = known.map(str::to_owned).collect();
        let table = table();
        let mut written: Vec<String> = table.iter().flat_map(|(keys, _)| keys.clone()).collect();
        known.sort();
        written.sort();
        assert_eq!(written, known);
        let shown = |text: &str| format!("{:?}", parse(text).unwrap());
        for (keys, default) in table {
            let values: Vec<&str> = default.split(", ").collect();
            if !default.starts_with('`') || values.len() != keys.len() {
                continue;
            }
            for (key, value) in keys.iter().zip(values) {
                let value = value.trim_matches('`');
                // A default that is named by where it comes from is no value.
                if toml::from_str::<toml::Table>(&format!("{key} = {value}")).is_ok() {
                    assert_eq!(shown(&format!("{key} = {value}\n")), shown(""), "{key}");
                }
            }
        }
    }

    #[test]
    fn flags_count_more_than_the_file() {
        let overrides = Overrides {
            origin: Some("file:///a".into()),
            target: Some("/b".into()),
            rate: Some("1MB/s".into()),
            ..Overrides::default()
        };
        let text = "origin = \"s3://b\"\ntarget = \"/srv\"\nrate = 5\n";
        let settings = Settings::parse(text, "f", overrides).unwrap();
        assert_eq!(settings.origin.url, "file:///a");
        assert_eq!(
            (settings.target.to_str(), settings.rate),
            (Some("/b"), Some(1_000_000))
        );
    }
}
