//! Counters as one line of JSON on stderr: `counters {…}` on SIGUSR1, `summary {…}` at the end.
//!
//! Names are `room_thing_unit`, values whole numbers; each name appears once, in alphabetical
//! order. It refuses to keep history: for rates, take the difference of two reports. Bound: one
//! line.

use tracing::Level;

use crate::observe::log;
use crate::start::host;

/// A counter's name and value.
pub(crate) type Pair = (&'static str, u64);

/// The word before the line that SIGUSR1 asks for.
pub(crate) const COUNTERS: &str = "counters";
/// The word before the line at the end.
pub(crate) const SUMMARY: &str = "summary";

/// `word {json}` for these counters.
#[must_use]
pub(crate) fn line(word: &str, pairs: &[Pair]) -> String {
    let object: serde_json::Map<String, serde_json::Value> = pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).into()))
        .collect();
    debug_assert_eq!(object.len(), pairs.len(), "two counters have the same name");
    format!("{word} {}", serde_json::Value::Object(object))
}

/// Adds the process's own counters, leaves out those that are 0 of a [`SUMMARY`] for the journal, and writes the line to stderr, as the log is written.
pub(crate) fn write(word: &str, mut pairs: Vec<Pair>) {
    if let Ok(times) = host::cpu_times() {
        pairs.push(("cpu_user_us", times.user_us));
        pairs.push(("cpu_system_us", times.system_us));
    }
    if word == SUMMARY && !log::priority(Level::INFO).is_empty() {
        // A journal keeps it for weeks, and most counters are 0.
        pairs.retain(|(_, value)| *value > 0);
    }
    let mut line = line(word, &pairs);
    if log::is_json() {
        line = format!("{{\"{word}\":{}}}", line.trim_start_matches(word));
    }
    let mut text = format!("{}{line}", log::priority(Level::INFO));
    text.push('\n');
    log::write(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::{SUMMARY, line};

    #[test]
    fn a_line_is_a_word_and_an_object() {
        let line = line(
            SUMMARY,
            &[("tcp_b_segments", 2), ("disk_a_bytes", u64::MAX)],
        );
        assert_eq!(
            line,
            r#"summary {"disk_a_bytes":18446744073709551615,"tcp_b_segments":2}"#
        );
    }
}
