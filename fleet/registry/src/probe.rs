//! What the monitoring listener of `atlas serve` says of itself.

use std::time::Duration;

use reqwest::{Client, StatusCode};
use tokio::time::{Instant, timeout};

use crate::http::{RegistryError, body, client};

/// The longest that the listener may take: it is on this machine.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The counter of what left the server, frame by frame.
const SENT: &str = "atlas_link_transmitted_bytes_total";

/// What was seen.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Seen {
    /// It serves, with this share of what it can send.
    Ready(f64),
    /// It goes on for those who use it, and is about to end.
    Leaving,
    /// It answers that it is not well: it ends, or a worker hangs.
    Sick,
    /// It does not answer.
    Silent(String),
}

/// A listener, and what it counted last.
#[derive(Debug)]
pub(crate) struct Probe {
    client: Client,
    listener: String,
    send_bytes_a_second: f64,
    last: Option<(Instant, f64)>,
    load: f64,
}

impl Probe {
    /// A listener, `HOST:PORT`, of a server that can send so many bits a second.
    pub(crate) fn new(listener: &str, send_bits_a_second: u64) -> Result<Self, RegistryError> {
        #[expect(
            clippy::cast_precision_loss,
            reason = "of a rate the upper 53 bits are enough"
        )]
        let send_bytes_a_second = send_bits_a_second as f64 / 8.0;
        Ok(Self {
            client: client(None, None)?,
            listener: format!("http://{listener}"),
            send_bytes_a_second,
            last: None,
            load: 0.0,
        })
    }

    /// Looks.
    pub(crate) async fn look(&mut self) -> Seen {
        match timeout(TIMEOUT, self.ask()).await {
            Ok(Ok(seen)) => seen,
            Ok(Err(error)) => Seen::Silent(error.to_string()),
            Err(_) => Seen::Silent(format!("{} did not answer within 1 s", self.listener)),
        }
    }

    async fn ask(&mut self) -> Result<Seen, RegistryError> {
        // Asked twice: a server whose worker hung at first and is well by now is not about to end.
        if !self.is_ok("/ready").await? {
            if !self.is_ok("/health").await? {
                return Ok(Seen::Sick);
            }
            if !self.is_ok("/ready").await? {
                return Ok(Seen::Leaving);
            }
        }
        let metrics = self.get("/metrics").await?;
        let metrics = body(&self.listener, metrics).await?;
        self.count(Instant::now(), &String::from_utf8_lossy(&metrics));
        Ok(Seen::Ready(self.load))
    }

    async fn is_ok(&self, path: &str) -> Result<bool, RegistryError> {
        Ok(self.get(path).await?.status() == StatusCode::OK)
    }

    async fn get(&self, path: &str) -> Result<reqwest::Response, RegistryError> {
        let sent = self
            .client
            .get(format!("{}{path}", self.listener))
            .send()
            .await;
        sent.map_err(|error| RegistryError::Unreachable(crate::http::chain(&error)))
    }

    /// Takes the counter of these metrics.
    fn count(&mut self, now: Instant, metrics: &str) {
        let Some(sent) = sample(metrics, SENT) else {
            return;
        };
        if let Some((then, before)) = self.last {
            let seconds = (now - then).as_secs_f64();
            // Metrics are up to two seconds old, and a server that started anew counts from 0.
            if seconds < 2.0 && sent >= before {
                return;
            }
            let rate = (sent - before).max(0.0) / seconds.max(f64::EPSILON);
            self.load = (rate / self.send_bytes_a_second).clamp(0.0, 1.0);
        }
        self.last = Some((now, sent));
    }
}

/// The value of a sample without labels.
fn sample(metrics: &str, name: &str) -> Option<f64> {
    let mut lines = metrics.lines();
    lines.find_map(|line| {
        line.strip_prefix(name)?
            .strip_prefix(' ')?
            .split(' ')
            .next()?
            .parse()
            .ok()
    })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufStream};

    use super::*;

    #[test]
    fn a_sample_is_found_by_its_whole_name() {
        let text = "# HELP a_total A.\na_total_more 1\na_total{b=\"c\"} 2\na_total 3.5 1700\n";
        assert_eq!(sample(text, "a_total"), Some(3.5));
        assert_eq!(sample(text, "a"), None);
        assert_eq!(sample("a_total x\n", "a_total"), None);
    }

    #[test]
    fn the_load_is_the_rate_over_what_can_be_sent() {
        let mut probe = Probe::new("127.0.0.1:1", 8_000).unwrap();
        let start = Instant::now();
        let metrics = |bytes: u64| format!("{SENT} {bytes}\n");
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        probe.count(at(0), &metrics(10_000));
        assert_eq!(probe.load, 0.0);
        probe.count(at(2), &metrics(11_000));
        assert_eq!(probe.load, 0.5);
        // Too soon to tell.
        probe.count(at(3), &metrics(11_000));
        assert_eq!(probe.load, 0.5);
        probe.count(at(4), &metrics(21_000));
        assert_eq!(probe.load, 1.0);
        // It began anew.
        probe.count(at(5), &metrics(10));
        assert_eq!(probe.load, 0.0);
        probe.count(at(7), "nothing\n");
        assert_eq!(probe.load, 0.0);
    }

    /// What is seen of a listener that answers these questions so, in this order.
    async fn seen(answers: &'static [(&str, u16)]) -> Seen {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answer = async {
            for (path, status) in answers {
                let mut stream = BufStream::new(listener.accept().await.unwrap().0);
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    assert_ne!(stream.read_line(&mut head).await.unwrap(), 0);
                }
                assert!(head.starts_with(&format!("GET {path} ")), "{head}");
                let reply = format!(
                    "HTTP/1.1 {status} -\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
                );
                stream.write_all(reply.as_bytes()).await.unwrap();
                stream.flush().await.unwrap();
            }
        };
        let mut probe = Probe::new(&address, 1).unwrap();
        tokio::join!(probe.look(), answer).0
    }

    #[tokio::test]
    async fn a_worker_that_hung_and_is_well_again_does_not_make_the_server_one_that_ends() {
        let ready = Seen::Ready(0.0);
        assert_eq!(seen(&[("/ready", 200), ("/metrics", 200)]).await, ready);
        assert_eq!(seen(&[("/ready", 503), ("/health", 503)]).await, Seen::Sick);
        let leaves = &[("/ready", 503), ("/health", 200), ("/ready", 503)];
        assert_eq!(seen(leaves).await, Seen::Leaving);
        let recovers = &[
            ("/ready", 503),
            ("/health", 200),
            ("/ready", 200),
            ("/metrics", 200),
        ];
        assert_eq!(seen(recovers).await, ready);
    }
}
