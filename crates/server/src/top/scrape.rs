//! What a server tells, read: `/metrics` and `/connections`.
//!
//! It refuses answers that are no 200, and takes of a text what it knows. Bounds: [`ANSWER_BYTES_MAX`],
//! [`ROWS_MAX`] connections, [`TIME_MAX`] for an answer.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Bytes of an answer, its head included.
pub(super) const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Connections that are asked for.
const ROWS_MAX: usize = 2_000;
/// Longest wait for the server.
const TIME_MAX: Duration = Duration::from_secs(5);

/// What a server told at a moment.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) metrics: Metrics,
    /// `None`: it does not tell us.
    pub(super) connections: Option<Vec<Connection>>,
}

/// A connection, as far as it is shown.
#[derive(Clone, PartialEq, Debug, serde::Deserialize)]
pub(super) struct Connection {
    pub(super) peer: String,
    pub(super) activity: String,
    pub(super) object: Option<String>,
    pub(super) limit: String,
    pub(super) rtt_ms: Option<f64>,
    pub(super) acked_bytes: u64,
    pub(super) sent_bytes: u64,
    pub(super) retransmitted_bytes: u64,
}

impl Sample {
    /// Asks the server.
    ///
    /// # Errors
    /// It does not answer, or tells no metrics.
    pub(super) fn take(server: SocketAddr) -> io::Result<Self> {
        let text = get(server, "/metrics")?;
        let rows = get(server, &format!("/connections?limit={ROWS_MAX}"));
        Ok(Self {
            at: Instant::now(),
            metrics: Metrics::parse(&text),
            // A server that is not on this host keeps them to itself.
            connections: rows.ok().map(|lines| parse_rows(&lines)),
        })
    }
}

/// The lines that are connections; others say where to go on.
pub(super) fn parse_rows(lines: &str) -> Vec<Connection> {
    let rows = lines.lines().map(serde_json::from_str);
    rows.filter_map(Result::ok).collect()
}

/// Values of samples, by name with labels, and their sums over labels by name alone.
#[derive(Clone, Debug, Default)]
pub(super) struct Metrics(HashMap<String, f64>);

impl Metrics {
    /// Of a text of OpenMetrics.
    pub(super) fn parse(text: &str) -> Self {
        let mut values = HashMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((sample, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let Ok(value) = value.parse::<f64>() else {
                continue;
            };
            values.insert(sample.to_owned(), value);
            if let Some((name, _)) = sample.split_once('{') {
                *values.entry(name.to_owned()).or_default() += value;
            }
        }
        Self(values)
    }

    /// The value of this name; 0 if there is none.
    pub(super) fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// The version that the server tells.
    pub(super) fn version(&self) -> &str {
        let mut names = self.0.keys();
        let info = names.find_map(|name| name.strip_prefix("atlas_build_info{version=\""));
        info.and_then(|rest| rest.split('"').next())
            .unwrap_or_default()
    }

    /// What `share` of the durations since `before` did not exceed, seconds, by a straight line within its
    /// bucket; `None`: there were none.
    pub(super) fn quantile(&self, before: &Self, family: &str, share: f64) -> Option<f64> {
        let prefix = format!("{family}_bucket{{le=\"");
        let bucket = |(name, value): (&String, &f64)| {
            let bound = name.strip_prefix(&prefix)?.strip_suffix("\"}")?;
            let bound = match bound {
                "+Inf" => f64::INFINITY,
                bound => bound.parse().ok()?,
            };
            Some((bound, value - before.get(name)))
        };
        let mut buckets: Vec<(f64, f64)> = self.0.iter().filter_map(bucket).collect();
        buckets.sort_unstable_by(|(one, _), (other, _)| one.total_cmp(other));
        let (_, all) = buckets.last().filter(|(_, all)| *all > 0.0)?;
        let wanted = share * all;
        let (mut below, mut count) = (0.0, 0.0);
        for (bound, at_most) in &buckets {
            if *at_most >= wanted {
                let inside = (wanted - count) / (at_most - count).max(f64::MIN_POSITIVE);
                let is_last = bound.is_infinite();
                return Some(if is_last {
                    below
                } else {
                    below + (bound - below) * inside
                });
            }
            (below, count) = (*bound, *at_most);
        }
        None
    }
}

/// The body of the answer to a GET.
/// The body of what a server answers to a path.
///
/// # Errors
/// It does not answer, or not with 200.
pub(crate) fn get(server: SocketAddr, target: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&server, TIME_MAX)?;
    stream.set_read_timeout(Some(TIME_MAX))?;
    stream.set_write_timeout(Some(TIME_MAX))?;
    // At once: a server may answer and close when it has read a part.
    let request = format!("GET {target} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    let status = head.lines().next().unwrap_or("no answer");
    if !status.starts_with("HTTP/1.1 200 ") {
        return Err(io::Error::other(status.to_owned()));
    }
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;

    use super::{Metrics, Sample, parse_rows};

    #[test]
    fn values_are_found_by_name_and_summed_over_labels() {
        let metrics = Metrics::parse(
            "# TYPE a counter\na_total 5\nb{x=\"1\"} 1.5\nb{x=\"2\"} 2\nno number\n\
             atlas_build_info{version=\"0.9\"} 1\n# EOF\n",
        );
        assert_eq!((metrics.get("a_total"), metrics.get("b")), (5.0, 3.5));
        assert_eq!((metrics.get("b{x=\"2\"}"), metrics.get("c")), (2.0, 0.0));
        assert_eq!(metrics.version(), "0.9");
        assert_eq!(Metrics::default().version(), "");
    }

    #[test]
    fn a_quantile_is_of_what_happened_in_between() {
        let text = |counts: [u32; 3]| {
            let [one, ten, all] = counts;
            Metrics::parse(&format!(
                "t_bucket{{le=\"1.0\"}} {one}\nt_bucket{{le=\"10.0\"}} {ten}\nt_bucket{{le=\"+Inf\"}} {all}\n"
            ))
        };
        let (before, now) = (text([5, 5, 5]), text([7, 9, 10]));
        let quantile = |share| now.quantile(&before, "t", share);
        assert_eq!(quantile(0.2), Some(0.5));
        assert_eq!(quantile(0.4), Some(1.0));
        assert_eq!(quantile(0.6), Some(5.5));
        assert_eq!(quantile(1.0), Some(10.0));
        assert_eq!(now.quantile(&now, "t", 0.5), None);
        assert_eq!(now.quantile(&before, "u", 0.5), None);
    }

    #[test]
    fn rows_are_connections_and_other_lines_are_skipped() {
        let row = "{\"peer\":\"192.0.2.7:5\",\"activity\":\"reply\",\"object\":null,\"limit\":\"disk\",\"rtt_ms\":1.5,\
            \"acked_bytes\":1,\"sent_bytes\":3,\"retransmitted_bytes\":0,\"more\":[]}";
        let rows = parse_rows(&format!("{row}\n{{\"next_from\":7}}\n"));
        assert_eq!(rows.len(), 1);
        assert_eq!(
            (rows[0].peer.as_str(), rows[0].rtt_ms),
            ("192.0.2.7:5", Some(1.5))
        );
    }

    #[test]
    fn a_server_that_keeps_its_connections_is_shown_without() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            for answer in [
                "200 OK\r\n\r\na 1\n",
                "403 Forbidden\r\n\r\n",
                "404 Not Found\r\n\r\n",
            ] {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 1024]).unwrap();
                write!(stream, "HTTP/1.1 {answer}").unwrap();
            }
        });
        let sample = Sample::take(address).unwrap();
        assert_eq!((sample.metrics.get("a"), sample.connections), (1.0, None));
        let refusal = Sample::take(address).unwrap_err();
        assert_eq!(refusal.to_string(), "HTTP/1.1 404 Not Found");
        server.join().unwrap();
    }
}
