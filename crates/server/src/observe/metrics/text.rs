//! OpenMetrics text, version 1.0.0, which Prometheus and compatible systems read.
//!
//! Each counter is a metric family of its own. Its name is `atlas_` and the counter's, without
//! `_count`: OpenMetrics puts `_total` behind a counter's samples. What may fall is a gauge. A counter of
//! microseconds is told in seconds, the base unit.

use std::fmt::{Display, Write as _};

use counters::{Histogram, Kind, Meaning};

use super::links;
use super::memory_traffic;
use super::overview::Overview;
use super::process::ProcessFacts;
use super::sites;
use super::table::meaning_of;
use crate::observe::report::Pair;
use crate::start::host::CpuTimes;
use crate::version;

/// The media type of the text.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Everything that is told of the process, and what the kernel says of it.
#[must_use]
pub(crate) fn encode(overview: &Overview, process: &ProcessFacts) -> String {
    let mut text = Text::default();
    text.family(
        "atlas_build",
        "info",
        "Version of the server, and the commit that it is built from.",
    );
    text.sample(
        "atlas_build_info",
        &format!(
            "{{version=\"{}\",commit=\"{}\"}}",
            env!("CARGO_PKG_VERSION"),
            version::COMMIT
        ),
        1,
    );
    text.family(
        "atlas_start_time_seconds",
        "gauge",
        "Unix time of the server's start.",
    );
    let start = overview.start_unix_seconds();
    text.sample("atlas_start_time_seconds", "", start);
    if !overview.links().is_empty() {
        text.family(links::FAMILY, "info", links::HELP);
    }
    for (worker, link) in overview.links().iter().enumerate() {
        let sample = format!("{}_info", links::FAMILY);
        text.sample(&sample, &link.labels(worker), 1);
    }
    if let Some(CpuTimes { user_us, system_us }) = process.cpu {
        text.family(
            "atlas_cpu_seconds",
            "counter",
            "Processor time used, all threads together.",
        );
        for (mode, us) in [("user", user_us), ("system", system_us)] {
            let labels = format!("{{mode=\"{mode}\"}}");
            text.sample("atlas_cpu_seconds_total", &labels, Seconds(us));
        }
    }
    process.encode(start, &mut text);
    text.0
        .push_str(&memory_traffic::encode(overview.memory_traffic()));
    for pair in overview.pairs() {
        text.counter(pair);
    }
    for (meaning, histogram) in overview.histograms() {
        text.histogram(meaning, &histogram);
    }
    sites::encode(&overview.sites(), &mut text);
    text.0.push_str("# EOF\n");
    text.0
}

/// The media type of [`to_plain`].
pub(crate) const PLAIN_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The same in the older text format of Prometheus, version 0.0.4, for what reads no OpenMetrics: families are
/// named as their samples, there are no units, and what is information is a gauge.
#[must_use]
pub(crate) fn to_plain(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len());
    let mut suffix = "";
    for line in openmetrics.lines() {
        let mut words = line.splitn(4, ' ');
        let _ = match [(); 4].map(|()| words.next()) {
            [Some("#"), Some("UNIT" | "EOF"), ..] => Ok(()),
            [Some("#"), Some("TYPE"), Some(family), Some(kind)] => {
                let kind = match kind {
                    "counter" => {
                        suffix = "_total";
                        kind
                    }
                    "info" => {
                        suffix = "_info";
                        "gauge"
                    }
                    kind => {
                        suffix = "";
                        kind
                    }
                };
                writeln!(text, "# TYPE {family}{suffix} {kind}")
            }
            [Some("#"), Some("HELP"), Some(family), Some(help)] => {
                writeln!(text, "# HELP {family}{suffix} {help}")
            }
            _ => writeln!(text, "{line}"),
        };
    }
    text
}

/// The name of a counter's metric family.
#[must_use]
pub(crate) fn family_of(counter: &str) -> String {
    match counter.strip_suffix(MICROSECONDS) {
        Some(name) => format!("atlas_{name}_seconds"),
        None => format!(
            "atlas_{}",
            counter.strip_suffix("_count").unwrap_or(counter)
        ),
    }
}

/// The end of the name of a counter of microseconds.
const MICROSECONDS: &str = "_us";

/// A bucket's bound in seconds, with no more digits than it needs, but with one behind the point.
fn bound_text(bound_us: u64) -> String {
    let text = Seconds(bound_us).to_string();
    let short = text.trim_end_matches('0');
    if short.ends_with('.') {
        format!("{short}0")
    } else {
        short.to_owned()
    }
}

/// Microseconds, written as seconds.
pub(super) struct Seconds(pub(super) u64);

impl Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// The value of a label as OpenMetrics has it: what would end it is escaped, and what escapes.
pub(super) fn escaped(value: &str) -> String {
    let value = value.replace('\\', r"\\").replace('"', "\\\"");
    value.replace('\n', r"\n")
}

/// The text as far as it was written.
#[derive(Default)]
pub(super) struct Text(pub(super) String);

impl Text {
    fn counter(&mut self, (name, value): Pair) {
        let family = family_of(name);
        let meaning = meaning_of(name);
        let help = meaning.map_or("", |meaning| meaning.help);
        match meaning.map_or(Kind::Counter, |meaning| meaning.kind) {
            Kind::Counter => {
                self.family(&family, "counter", help);
                let sample = format!("{family}_total");
                if name.ends_with(MICROSECONDS) {
                    self.sample(&sample, "", Seconds(value));
                } else {
                    self.sample(&sample, "", value);
                }
            }
            // Histograms are no pairs.
            Kind::Gauge | Kind::Histogram => {
                self.family(&family, "gauge", help);
                self.sample(&family, "", value);
            }
        }
    }

    fn histogram(&mut self, meaning: &Meaning, histogram: &Histogram) {
        let family = family_of(meaning.name);
        self.family(&family, "histogram", meaning.help);
        self.buckets(&family, "", histogram);
    }

    /// The samples of a histogram. `label` is had by each of them; empty: none is.
    pub(super) fn buckets(&mut self, family: &str, label: &str, histogram: &Histogram) {
        let (comma, labels) = match label {
            "" => ("", String::new()),
            label => (",", format!("{{{label}}}")),
        };
        let bucket = format!("{family}_bucket");
        let mut all = 0;
        for (bound_us, count) in histogram.at_most() {
            let bound = bound_us.map_or_else(|| "+Inf".to_owned(), bound_text);
            self.sample(&bucket, &format!("{{{label}{comma}le=\"{bound}\"}}"), count);
            all = count;
        }
        let sum = Seconds(histogram.sum_ns() / 1_000);
        self.sample(&format!("{family}_sum"), &labels, sum);
        self.sample(&format!("{family}_count"), &labels, all);
    }

    /// The lines about a family. Its unit is the last word of its name, where that is one of the
    /// base units of OpenMetrics.
    pub(super) fn family(&mut self, family: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# TYPE {family} {kind}");
        for unit in ["bytes", "seconds"] {
            if family
                .strip_suffix(unit)
                .is_some_and(|rest| rest.ends_with('_'))
            {
                let _ = writeln!(self.0, "# UNIT {family} {unit}");
            }
        }
        if !help.is_empty() {
            debug_assert!(!help.contains(['\\', '"', '\n']), "{family}: needs escapes");
            let _ = writeln!(self.0, "# HELP {family} {help}");
        }
    }

    pub(super) fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use clock::Duration;
    use counters::{CounterSet as _, Kind};
    use session::Histograms;

    use super::{ProcessFacts, encode, family_of, to_plain};
    use crate::observe::metrics::Page;
    use crate::observe::metrics::overview::OutputCounters;
    use crate::observe::metrics::overview::tests::overview;
    use crate::observe::metrics::table::all;
    use crate::start::host::CpuTimes;

    #[test]
    fn counters_gauges_units_and_the_end_are_as_openmetrics_has_them() {
        let pairs = [
            ("tcp_open_count", 5),
            ("link_received_bytes", u64::MAX),
            ("memory_free_slots", 3),
            ("nobody_knows_count", 1),
            ("server_lent_slots_us", 2_000_003),
        ];
        let page = || {
            let page = Page::new(&pairs, std::time::Instant::now());
            let mut histograms = Histograms::default();
            let times = &mut histograms.http_first_byte_seconds;
            times.record(Duration::from_micros(50));
            times.record(Duration::from_millis(1_500));
            times.record(Duration::from_secs(601));
            page.publish_histograms(&histograms);
            page
        };
        let overview = overview(vec![page()]);
        let cpu = CpuTimes {
            user_us: 1_000_001,
            system_us: 999_999,
        };
        let text = encode(&overview, &ProcessFacts::of_cpu(Some(cpu)));
        for part in [
            "# TYPE atlas_build info\n# HELP atlas_build Version of the server, and the commit that it is built from.\natlas_build_info{version=\"",
            "# UNIT atlas_start_time_seconds seconds\n",
            "\natlas_start_time_seconds 1795340403\n",
            "# TYPE atlas_link info\n# HELP atlas_link How the frames",
            "\natlas_link_info{worker=\"0\",link=\"packet\",interface=\"eth0\",xdp=\"none\",zero_copy=\"false\",loans=\"true\",checksums=\"device\"} 1\n\
             atlas_link_info{worker=\"1\",link=\"packet\",",
            "\natlas_cpu_seconds_total{mode=\"user\"} 1.000001\n",
            "\natlas_cpu_seconds_total{mode=\"system\"} 0.999999\n",
            "# TYPE atlas_tcp_open counter\n# HELP atlas_tcp_open SYNs",
            "\natlas_tcp_open_total 5\n",
            "\natlas_memory_counters_info{state=\"",
            "# TYPE atlas_link_received_bytes counter\n# UNIT atlas_link_received_bytes bytes\n",
            "\natlas_link_received_bytes_total 18446744073709551615\n",
            "# TYPE atlas_memory_free_slots gauge\n",
            "\natlas_memory_free_slots 3\n",
            "# TYPE atlas_nobody_knows counter\natlas_nobody_knows_total 1\n",
            "# TYPE atlas_server_lent_slots_seconds counter\n# UNIT atlas_server_lent_slots_seconds seconds\n",
            "\natlas_server_lent_slots_seconds_total 2.000003\n",
            "# TYPE atlas_http_first_byte_seconds histogram\n# UNIT atlas_http_first_byte_seconds seconds\n",
            "\natlas_http_first_byte_seconds_bucket{le=\"0.00005\"} 1\n\
             atlas_http_first_byte_seconds_bucket{le=\"0.0001\"} 1\n",
            "_bucket{le=\"1.0\"} 1\natlas_http_first_byte_seconds_bucket{le=\"2.5\"} 2\n",
            "_bucket{le=\"600.0\"} 2\natlas_http_first_byte_seconds_bucket{le=\"+Inf\"} 3\n\
             atlas_http_first_byte_seconds_sum 602.500050\natlas_http_first_byte_seconds_count 3\n",
            "\natlas_disk_read_seconds_bucket{le=\"+Inf\"} 0\n",
        ] {
            assert!(text.contains(part), "no {part:?} in:\n{text}");
        }
        assert!(text.ends_with("\n# EOF\n") && !text.contains("atlas_site_"));
        assert!(!encode(&overview, &ProcessFacts::of_cpu(None)).contains("cpu"));
    }

    #[test]
    fn the_older_format_names_families_as_their_samples() {
        let openmetrics = "# TYPE a info\n# HELP a An a.\na_info{x=\"# UNIT\"} 1\n\
            # TYPE b_bytes counter\n# UNIT b_bytes bytes\n# HELP b_bytes All b.\nb_bytes_total 2\n\
            # TYPE c histogram\n# HELP c A c.\nc_bucket{le=\"+Inf\"} 3\n# TYPE d gauge\nd 4\n# EOF\n";
        let expected = "# TYPE a_info gauge\n# HELP a_info An a.\na_info{x=\"# UNIT\"} 1\n\
            # TYPE b_bytes_total counter\n# HELP b_bytes_total All b.\nb_bytes_total 2\n\
            # TYPE c histogram\n# HELP c A c.\nc_bucket{le=\"+Inf\"} 3\n# TYPE d gauge\nd 4\n";
        assert_eq!(to_plain(openmetrics), expected);
    }

    #[test]
    fn a_family_is_named_after_its_counter() {
        assert_eq!(family_of("tcp_open_count"), "atlas_tcp_open");
        assert_eq!(family_of("tcp_send_bytes"), "atlas_tcp_send_bytes");
        assert_eq!(family_of("a_cost_us"), "atlas_a_cost_seconds");
    }

    /// The names of metrics in a text.
    fn metrics_in(text: &str) -> BTreeSet<&str> {
        let is_end = |letter: char| !letter.is_ascii_alphanumeric() && letter != '_';
        let words = text.split(is_end);
        words.filter(|word| word.starts_with("atlas_")).collect()
    }

    #[test]
    fn every_metric_of_the_dashboard_and_the_alerts_is_exported() {
        let counters = all().filter(|meaning| meaning.kind != Kind::Histogram);
        let pairs: Vec<_> = counters.map(|meaning| (meaning.name, 0)).collect();
        let overview = overview(vec![Page::new(&pairs, std::time::Instant::now())]);
        let cpu = CpuTimes {
            user_us: 0,
            system_us: 0,
        };
        let text = encode(&overview, &ProcessFacts::of_cpu(Some(cpu)));
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let exported: BTreeSet<_> = samples.flat_map(metrics_in).collect();
        let dashboard = include_str!("../../../../../dist/grafana-dashboard.json");
        let json: serde_json::Value = serde_json::from_str(dashboard).unwrap();
        assert!(json["panels"].as_array().unwrap().len() > 10);
        for text in [dashboard, include_str!("../../../../../dist/alerts.yml")] {
            let named = metrics_in(text);
            assert!(named.len() > 10, "{named:?}");
            let unknown: Vec<_> = named.difference(&exported).collect();
            assert!(unknown.is_empty(), "not exported: {unknown:?}");
        }
    }

    /// `promtool check metrics`, where it is installed: names, units and help by Prometheus's conventions.
    #[test]
    fn promtool_finds_no_fault_with_the_older_format() {
        // No page has those of the outputs, which are the process's.
        let is_output = |name| OutputCounters::MEANINGS.iter().any(|it| it.name == name);
        let counters = all().filter(|it| it.kind != Kind::Histogram && !is_output(it.name));
        let pairs: Vec<_> = counters.map(|meaning| (meaning.name, 0)).collect();
        let page = || Page::new(&pairs, std::time::Instant::now()).with_sites(2);
        let overview = overview(vec![page(), page()]);
        let text = to_plain(&encode(&overview, &ProcessFacts::read()));
        assert!(text.contains("\natlas_site_reply_total{site=\"(other)\",class=\"5xx\"} 0\n"));
        let mut promtool = Command::new("promtool");
        promtool.args(["check", "metrics"]);
        let promtool = promtool.stdin(Stdio::piped()).stderr(Stdio::piped());
        let Ok(mut promtool) = promtool.spawn() else {
            eprintln!("SKIPPED: promtool is not installed (Debian: prometheus)");
            return;
        };
        let mut stdin = promtool.stdin.take().unwrap();
        stdin.write_all(text.as_bytes()).unwrap();
        drop(stdin);
        let output = promtool.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && told.is_empty(), "{told}");
    }
}
