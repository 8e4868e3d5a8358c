//! A progress bar on stderr, if that is a terminal: one line, written over a few times a second.
//!
//! It refuses to write anything elsewhere, so that logs stay readable. Bound: one line.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use super::units;

/// Shortest time between two lines.
const INTERVAL: Duration = Duration::from_millis(200);
/// Width of the bar, characters.
const BAR_WIDTH: u64 = 24;

/// A bar.
#[derive(Debug)]
pub(super) struct Progress {
    /// `None`: stderr is no terminal.
    shown: Option<Shown>,
    all_bytes: u64,
    done_bytes: u64,
}

#[derive(Debug)]
struct Shown {
    started: Instant,
    last: Option<Instant>,
}

impl Progress {
    pub(super) fn new(all_bytes: u64) -> Self {
        let shown = std::io::stderr().is_terminal().then(|| Shown {
            started: Instant::now(),
            last: None,
        });
        Self {
            shown,
            all_bytes,
            done_bytes: 0,
        }
    }

    pub(super) fn add(&mut self, bytes: u64) {
        self.done_bytes += bytes;
        let Some(shown) = &mut self.shown else {
            return;
        };
        if shown.last.is_some_and(|last| last.elapsed() < INTERVAL) {
            return;
        }
        shown.last = Some(Instant::now());
        let line = line(self.done_bytes, self.all_bytes, shown.started.elapsed());
        // A terminal that is gone ends the process by its own signal.
        let _ = write!(std::io::stderr(), "\r{line}\x1b[K");
    }

    /// Removes the bar.
    pub(super) fn end(&mut self) {
        if self.shown.take().is_some_and(|shown| shown.last.is_some()) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}

/// The bar after some time.
fn line(done: u64, all: u64, elapsed: Duration) -> String {
    let part = |of: u64| {
        let scaled = u128::from(done.min(all)) * u128::from(of) / u128::from(all.max(1));
        u64::try_from(scaled).unwrap_or(of)
    };
    let filled = usize::try_from(part(BAR_WIDTH)).unwrap_or(0);
    let empty = usize::try_from(BAR_WIDTH).unwrap_or(0) - filled;
    let millis = elapsed.as_millis().max(1);
    let rate = u64::try_from(u128::from(done) * 1000 / millis).unwrap_or(u64::MAX);
    let left = all.saturating_sub(done).checked_div(rate);
    let left = left.map_or_else(String::new, |seconds| {
        format!(", {}:{:02} left", seconds / 60, seconds % 60)
    });
    format!(
        "[{}{}] {:3} %  {} of {}, {}/s{left}",
        "#".repeat(filled),
        " ".repeat(empty),
        part(100),
        units::size(done),
        units::size(all),
        units::size(rate)
    )
}

#[cfg(test)]
mod tests {
    use super::{Duration, line};

    #[test]
    fn the_bar_shows_share_rate_and_time_left() {
        let second = Duration::from_secs(1);
        assert_eq!(
            line(1 << 20, 4 << 20, second),
            "[######                  ]  25 %  1.00 MiB of 4.00 MiB, 1.00 MiB/s, 0:03 left"
        );
        let full = line(5, 5, second);
        assert!(
            full.starts_with("[########################] 100 %"),
            "{full}"
        );
        assert!(line(0, 0, Duration::ZERO).contains("0 %"));
        assert!(line(9, 5, second).contains("100 %"));
    }
}
