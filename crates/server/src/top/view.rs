//! What `atlas top` shows, and how.
//!
//! Bounds: [`POINTS_MAX`] rates, [`ROWS_MAX`] rows of each table.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize as _};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Row, Sparkline, Table};

use super::scrape::{Connection, Metrics, Sample};

/// Rates that are kept for the line.
pub(super) const POINTS_MAX: usize = 300;
/// Rows of a table.
const ROWS_MAX: usize = 64;

/// What is shown.
#[derive(Clone, Debug)]
pub(super) struct View {
    server: SocketAddr,
    version: String,
    /// Why the last question had no answer.
    problem: Option<String>,
    /// Kilobits a second, the newest last.
    rates: VecDeque<u64>,
    facts: Vec<[String; 2]>,
    /// Paths and how many connections they are sent on.
    paths: Vec<(String, usize)>,
    /// The slowest first; `None`: the server does not tell us.
    clients: Option<Vec<SlowClient>>,
}

/// A client that is being sent a reply.
#[derive(Clone, PartialEq, Debug)]
struct SlowClient {
    bits_per_second: f64,
    connection: Connection,
}

impl View {
    /// Before there are two answers to compare.
    pub(super) fn new(server: SocketAddr, first: &Sample) -> Self {
        Self {
            server,
            version: first.metrics.version().to_owned(),
            problem: None,
            rates: VecDeque::with_capacity(POINTS_MAX),
            facts: Vec::new(),
            paths: Vec::new(),
            clients: first.connections.as_ref().map(|_| Vec::new()),
        }
    }

    /// A question had no answer.
    pub(super) fn tell(&mut self, problem: String) {
        self.problem = Some(problem);
    }

    /// What happened between two answers.
    pub(super) fn take(&mut self, before: &Sample, now: &Sample) {
        self.problem = None;
        let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
        let seconds = seconds.max(1e-3);
        let rate =
            |name: &str| (now.metrics.get(name) - before.metrics.get(name)).max(0.0) / seconds;
        let bits = 8.0 * rate("atlas_tcp_send_bytes_total");
        if self.rates.len() == POINTS_MAX {
            self.rates.pop_front();
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rate, not below 0"
        )]
        self.rates.push_back((bits / 1e3) as u64);
        self.facts = facts(&now.metrics, &before.metrics, bits, &rate);
        let rows = now.connections.as_deref().unwrap_or_default();
        self.paths = paths(rows);
        let old = before.connections.as_deref().unwrap_or_default();
        self.clients = now
            .connections
            .as_ref()
            .map(|rows| slowest(old, rows, seconds));
    }

    /// Draws it.
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let [head, facts, line, tables] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(6),
            Constraint::Length(6),
            Constraint::Min(3),
        ])
        .areas(frame.area());
        let state = match &self.problem {
            Some(problem) => problem.clone().red(),
            None => "q ends".dim(),
        };
        let title = format!("atlas {} at {}  ", self.version, self.server);
        frame.render_widget(Line::from(vec![title.bold(), state]), head);
        self.draw_facts(frame, facts);
        let rates: Vec<u64> = self.newest(usize::from(line.width.saturating_sub(2)));
        let most = rates.iter().max().copied().unwrap_or_default();
        let title = format!("sent, at most {}", bits_text(1e3 * as_f64(most)));
        let plot = Sparkline::default()
            .block(Block::bordered().title(title))
            .data(rates)
            .style(Style::new().cyan());
        frame.render_widget(plot, line);
        let [paths, clients] =
            Layout::horizontal([Constraint::Percentage(35), Constraint::Percentage(65)])
                .areas(tables);
        self.draw_paths(frame, paths);
        self.draw_clients(frame, clients);
    }

    fn newest(&self, most: usize) -> Vec<u64> {
        let skipped = self.rates.len().saturating_sub(most);
        self.rates.iter().skip(skipped).copied().collect()
    }

    /// In three columns.
    fn draw_facts(&self, frame: &mut Frame<'_>, area: Rect) {
        let thirds = [Constraint::Ratio(1, 3); 3];
        let columns: [Rect; 3] = Layout::horizontal(thirds).areas(area);
        for (column, facts) in columns.into_iter().zip(self.facts.chunks(4)) {
            let rows = facts.iter().map(|fact| Row::new(fact.clone()));
            let widths = [Constraint::Length(16), Constraint::Min(8)];
            frame.render_widget(Table::new(rows, widths).block(Block::bordered()), column);
        }
    }

    fn draw_paths(&self, frame: &mut Frame<'_>, area: Rect) {
        let row = |(path, count): &(String, usize)| Row::new([count.to_string(), path.clone()]);
        let widths = [Constraint::Length(6), Constraint::Min(10)];
        let table = Table::new(self.paths.iter().map(row), widths)
            .header(Row::new(["conns", "path"]).bold())
            .block(Block::bordered().title("most sent now"));
        frame.render_widget(table, area);
    }

    fn draw_clients(&self, frame: &mut Frame<'_>, area: Rect) {
        let block = Block::bordered().title("slowest clients");
        let Some(clients) = &self.clients else {
            let text = Paragraph::new("the server lists its connections to its own host only");
            frame.render_widget(text.block(block), area);
            return;
        };
        let row = |client: &SlowClient| {
            let connection = &client.connection;
            let sent = as_f64(connection.sent_bytes + connection.retransmitted_bytes).max(1.0);
            Row::new([
                bits_text(client.bits_per_second),
                connection
                    .rtt_ms
                    .map_or("-".into(), |rtt| format!("{rtt:.1} ms")),
                format!(
                    "{:.1} %",
                    100.0 * as_f64(connection.retransmitted_bytes) / sent
                ),
                connection.limit.clone(),
                connection.peer.clone(),
                connection.object.clone().unwrap_or_default(),
            ])
        };
        let widths = [
            Constraint::Length(11),
            Constraint::Length(10),
            Constraint::Length(7),
            Constraint::Length(16),
            Constraint::Length(21),
            Constraint::Min(8),
        ];
        let names = ["rate", "RTT", "again", "waits for", "client", "path"];
        let table = Table::new(clients.iter().map(row), widths)
            .header(Row::new(names).bold())
            .block(block);
        frame.render_widget(table, area);
    }
}

fn facts(
    now: &Metrics,
    before: &Metrics,
    bits: f64,
    rate: &dyn Fn(&str) -> f64,
) -> Vec<[String; 2]> {
    let quantiles = |family: &str| {
        let shown = |share| {
            now.quantile(before, family, share)
                .map_or("-".into(), time_text)
        };
        format!("{} / {}", shown(0.5), shown(0.95))
    };
    let all = now.get("atlas_memory_all_slots");
    let used = all - now.get("atlas_memory_free_slots");
    let sent = rate("atlas_tcp_send_bytes_total").max(1.0);
    let again = 100.0 * rate("atlas_tcp_retransmit_bytes_total") / sent;
    let fact = |name: &str, value: String| [name.to_owned(), value];
    vec![
        fact("sent", bits_text(bits)),
        fact(
            "connections",
            format!("{:.0}", now.get("atlas_server_open_connections")),
        ),
        fact(
            "requests",
            format!("{:.1}/s", rate("atlas_http_request_total")),
        ),
        fact("errors", format!("{:.1}/s", rate("atlas_http_error_total"))),
        fact("first byte", quantiles("atlas_http_first_byte_seconds")),
        fact("last byte", quantiles("atlas_http_last_byte_seconds")),
        fact("RTT", quantiles("atlas_tcp_rtt_seconds")),
        fact("sent again", format!("{again:.2} %")),
        fact(
            "disk",
            format!("{:.2} GB/s", rate("atlas_disk_read_bytes_total") / 1e9),
        ),
        fact("disk read", quantiles("atlas_disk_read_seconds")),
        fact("cores", format!("{:.2}", rate("atlas_cpu_seconds_total"))),
        fact("slots", format!("{used:.0} of {all:.0}")),
    ]
}

/// What is sent on most connections.
fn paths(rows: &[Connection]) -> Vec<(String, usize)> {
    let mut counts = HashMap::<&str, usize>::new();
    for path in rows.iter().filter_map(|row| row.object.as_deref()) {
        *counts.entry(path).or_default() += 1;
    }
    let mut paths: Vec<_> = counts.into_iter().collect();
    paths.sort_unstable_by_key(|&(path, count)| (usize::MAX - count, path));
    let first = paths.into_iter().take(ROWS_MAX);
    first
        .map(|(path, count)| (path.to_owned(), count))
        .collect()
}

/// Clients that were being sent a reply at both times, the slowest first.
fn slowest(before: &[Connection], now: &[Connection], seconds: f64) -> Vec<SlowClient> {
    let old: HashMap<&str, u64> = before
        .iter()
        .map(|row| (row.peer.as_str(), row.acked_bytes))
        .collect();
    let client = |row: &Connection| {
        let acked = old.get(row.peer.as_str()).copied()?;
        // A new connection of the same port begins anew.
        let bytes = row.acked_bytes.checked_sub(acked)?;
        (row.activity == "reply").then(|| SlowClient {
            bits_per_second: 8.0 * as_f64(bytes) / seconds,
            connection: row.clone(),
        })
    };
    let mut clients: Vec<_> = now.iter().filter_map(client).collect();
    clients.sort_by(|one, other| one.bits_per_second.total_cmp(&other.bits_per_second));
    clients.truncate(ROWS_MAX);
    clients
}

#[expect(clippy::cast_precision_loss, reason = "shown with a few digits")]
const fn as_f64(number: u64) -> f64 {
    number as f64
}

fn bits_text(bits: f64) -> String {
    match bits {
        1e9.. => format!("{:.2} Gb/s", bits / 1e9),
        1e6.. => format!("{:.2} Mb/s", bits / 1e6),
        _ => format!("{:.1} kb/s", bits / 1e3),
    }
}

fn time_text(seconds: f64) -> String {
    match seconds {
        1.0.. => format!("{seconds:.2} s"),
        1e-3.. => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{:.0} us", seconds * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::{Connection, Metrics, Sample, View, bits_text, paths, slowest, time_text};

    fn connection(port: u16, path: Option<&str>, acked_bytes: u64) -> Connection {
        Connection {
            peer: format!("192.0.2.7:{port}"),
            activity: if path.is_some() { "reply" } else { "request" }.into(),
            object: path.map(str::to_owned),
            limit: "peer_window".into(),
            rtt_ms: Some(20.0),
            acked_bytes,
            sent_bytes: 900,
            retransmitted_bytes: 100,
        }
    }

    fn sample(at: Instant, text: &str, connections: Option<Vec<Connection>>) -> Sample {
        Sample {
            at,
            metrics: Metrics::parse(text),
            connections,
        }
    }

    fn screen(view: &View) -> String {
        let mut terminal = Terminal::new(TestBackend::new(130, 24)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn rates_times_paths_and_slow_clients_are_on_the_screen() {
        let start = Instant::now();
        let first = "atlas_build_info{version=\"0.9\"} 1\natlas_tcp_send_bytes_total 0\n";
        let old = vec![connection(1, Some("/a"), 0), connection(2, Some("/a"), 0)];
        let first = sample(start, first, Some(old));
        let mut view = View::new("127.0.0.1:9100".parse().unwrap(), &first);
        let second = "atlas_tcp_send_bytes_total 500000000\natlas_tcp_retransmit_bytes_total 5000000\n\
            atlas_server_open_connections 3\natlas_http_request_total 30\natlas_memory_all_slots 512\n\
            atlas_memory_free_slots 500\natlas_http_first_byte_seconds_bucket{le=\"0.001\"} 10\n\
            atlas_http_first_byte_seconds_bucket{le=\"+Inf\"} 10\natlas_cpu_seconds_total{mode=\"user\"} 1\n";
        let new = vec![
            connection(1, Some("/a"), 250_000),
            connection(2, Some("/a"), 250),
            connection(3, Some("/b"), 1),
        ];
        let second = sample(start + Duration::from_secs(2), second, Some(new));
        view.take(&first, &second);
        let shown = screen(&view);
        for part in [
            "atlas 0.9 at 127.0.0.1:9100",
            "2.00 Gb/s",
            "15.0/s",
            "500 us / 950 us",
            "1.00 %",
            "12 of 512",
            "0.50",
            "2      /a",
            "1      /b",
            "1.0 kb/s",
            "10.0 %",
            "192.0.2.7:2",
        ] {
            assert!(shown.contains(part), "no {part:?} in\n{shown}");
        }
        // One that was not there before has no rate.
        assert!(!shown.contains("192.0.2.7:3"), "{shown}");
        view.tell("no answer".into());
        assert!(screen(&view).contains("no answer"));
    }

    #[test]
    fn a_server_elsewhere_is_shown_without_clients() {
        let first = sample(Instant::now(), "", None);
        let mut view = View::new("192.0.2.1:9100".parse().unwrap(), &first);
        assert!(screen(&view).contains("to its own host only"));
        view.take(&first, &first);
        assert!(screen(&view).contains("to its own host only"));
        // One that lists them has no rates before its second answer.
        let first = sample(Instant::now(), "", Some(vec![connection(1, Some("/a"), 0)]));
        let mut view = View::new("127.0.0.1:9100".parse().unwrap(), &first);
        let shown = screen(&view);
        assert!(!shown.contains("to its own host only"), "{shown}");
        assert!(shown.contains("waits for"), "{shown}");
        view.take(&first, &first);
        assert!(screen(&view).contains("192.0.2.7:1"));
    }

    #[test]
    fn the_slowest_of_those_that_are_sent_something_come_first() {
        let before = [
            connection(1, Some("/a"), 9),
            connection(2, None, 0),
            connection(3, Some("/a"), 0),
        ];
        let now = [
            connection(1, Some("/a"), 8),
            connection(2, None, 0),
            connection(3, Some("/a"), 4),
        ];
        let slow = slowest(&before, &now, 2.0);
        assert_eq!(slow.len(), 1);
        assert!((slow[0].bits_per_second - 16.0).abs() < 1e-9);
        let rows = ["/b", "/a", "/b", "/c"].map(|path| connection(1, Some(path), 0));
        let expected = [
            ("/b".to_owned(), 2),
            ("/a".to_owned(), 1),
            ("/c".to_owned(), 1),
        ];
        assert_eq!(paths(&rows), expected);
    }

    #[test]
    fn numbers_have_units() {
        assert_eq!(bits_text(2.5e9), "2.50 Gb/s");
        assert_eq!(bits_text(999_999.0), "1000.0 kb/s");
        assert_eq!(
            (time_text(1.0), time_text(0.25)),
            ("1.00 s".into(), "250.0 ms".into())
        );
        assert_eq!(time_text(0.000_25), "250 us");
    }
}
