//! What happens, told: a bar and lines on a terminal, JSON lines elsewhere.
//!
//! **A failure is told once**: again only when it is of another kind, or was over in between; of objects at most
//! `LINES_MAX` of a kind in a minute. It refuses to tell anything that has credentials: it gets only what
//! [`crate::fault::Fault`] lets through. Lines go to stdout, the bar and its lines to stderr.

use std::collections::HashMap;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::fault::{Fault, Kind};

/// Lines of a kind of failure in a minute.
const LINES_MAX: u32 = 10;
const MINUTE: Duration = Duration::from_secs(60);

/// What happens.
#[derive(Serialize, Clone, Debug)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<'a> {
    /// It begins.
    Started {
        /// What was there.
        objects: usize,
        /// Bytes of it.
        bytes: u64,
    },
    /// The origin was listed.
    Listed {
        /// Objects with names that can be asked for.
        objects: usize,
        /// Others.
        skipped: usize,
        /// How long it took.
        seconds: f64,
    },
    /// An object is there.
    Fetched {
        /// Its name.
        name: &'a str,
        /// Its length.
        bytes: u64,
        /// What was compared beside the length, or `length`.
        verified: &'static str,
        /// Bytes that were there before.
        resumed_bytes: u64,
        /// Whether a viewer had missed it.
        missed: bool,
        /// How long it took.
        seconds: f64,
    },
    /// An object has gone.
    Removed {
        /// Its name.
        name: &'a str,
        /// `origin`: that has it no more, or it expired; `room`.
        reason: &'static str,
    },
    /// Too much would be removed.
    RemovalsRefused {
        /// Objects that the origin does not have.
        objects: usize,
        /// What to do.
        remedy: &'static str,
    },
    /// An object did not come; it is tried again.
    Failed {
        /// Its name.
        name: &'a str,
        /// The kind.
        kind: &'static str,
        /// Why.
        text: &'a str,
    },
    /// The origin or this machine fails; it is tried again.
    Waiting {
        /// The kind.
        kind: &'static str,
        /// Why.
        text: &'a str,
        /// When it is tried again.
        seconds: f64,
    },
    /// It goes on.
    Recovered {
        /// The kind that is over.
        kind: &'static str,
    },
    /// Something beside the objects.
    Note {
        /// In a line.
        text: &'a str,
    },
    /// Where it is.
    Progress {
        /// Objects that are there.
        objects: usize,
        /// Bytes of them.
        bytes: u64,
        /// Objects that are to come.
        waiting: usize,
        /// Bytes of those, as far as known.
        waiting_bytes: u64,
        /// Bytes of those that have come.
        come_bytes: u64,
        /// Bytes a second since the last one.
        rate: u64,
    },
    /// It ends.
    Ended {
        /// Objects fetched.
        fetched: u64,
        /// Bytes of them.
        fetched_bytes: u64,
        /// Objects removed.
        removed: u64,
        /// Objects that did not come.
        failed: usize,
    },
    /// What would be done.
    Would {
        /// `fetch`, `remove` or `evict`.
        step: &'static str,
        /// Its name.
        name: &'a str,
        /// Its length, if it is known.
        bytes: Option<u64>,
    },
}

impl Event<'_> {
    /// The origin lacks so many objects that it is more likely to be wrong.
    #[must_use]
    pub const fn removals_refused(objects: usize) -> Self {
        Self::RemovalsRefused {
            objects,
            remedy: "if they are to go, raise removals_percent_max, up to 100",
        }
    }
}

/// Tells it.
#[derive(Debug)]
pub struct Report {
    bar: Option<ProgressBar>,
    waiting: HashMap<&'static str, Kind>,
    lines: HashMap<Kind, (Instant, u32)>,
}

impl Default for Report {
    fn default() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            let template =
                "[{bar:24}] {percent:>3} %  {bytes} of {total_bytes}, {bytes_per_sec}, {msg}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("## "));
            }
            bar
        });
        Self {
            bar,
            waiting: HashMap::new(),
            lines: HashMap::new(),
        }
    }
}

impl Report {
    /// Tells an event.
    pub fn tell(&self, event: &Event<'_>) {
        match (&self.bar, event) {
            (
                Some(bar),
                Event::Progress {
                    bytes,
                    waiting,
                    waiting_bytes,
                    come_bytes,
                    ..
                },
            ) => {
                bar.set_length(bytes + waiting_bytes);
                bar.set_position(bytes + come_bytes);
                bar.set_message(format!("{waiting} objects to come"));
            }
            // The bar shows them.
            (Some(_), Event::Fetched { .. }) => {}
            (Some(bar), event) => bar.suspend(|| {
                let _ = writeln!(std::io::stderr(), "{}", line(event));
            }),
            (None, event) => {
                let now = chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
                if let Ok(serde_json::Value::Object(mut object)) = serde_json::to_value(event) {
                    object.insert("time".into(), now.into());
                    let text = serde_json::Value::Object(object).to_string();
                    let _ = writeln!(std::io::stdout(), "{text}");
                }
            }
        }
    }

    /// Tells that something waits because of a failure; `what` is it. Once for each kind in a row.
    pub fn waiting(&mut self, what: &'static str, fault: &Fault, wait_ms: u64) {
        if self.waiting.insert(what, fault.kind) != Some(fault.kind) {
            self.tell(&Event::Waiting {
                kind: fault.kind.name(),
                text: &fault.text,
                seconds: seconds(wait_ms),
            });
        }
    }

    /// Tells that it goes on, if it had waited.
    pub fn recovered(&mut self, what: &'static str) {
        if let Some(kind) = self.waiting.remove(what) {
            self.tell(&Event::Recovered { kind: kind.name() });
        }
    }

    /// Tells that an object failed, if not too many have.
    pub fn failed(&mut self, name: &str, fault: &Fault) {
        let now = Instant::now();
        let (since, count) = self.lines.entry(fault.kind).or_insert((now, 0));
        if now.duration_since(*since) > MINUTE {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        if *count <= LINES_MAX {
            self.tell(&Event::Failed {
                name,
                kind: fault.kind.name(),
                text: &fault.text,
            });
        }
    }

    /// Whether there is a bar.
    #[must_use]
    pub fn has_bar(&self) -> bool {
        self.bar.is_some()
    }

    /// Removes the bar.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A line for people.
fn line(event: &Event<'_>) -> String {
    match event {
        Event::Started { objects, bytes } => format!("{objects} objects are here, {bytes} bytes"),
        Event::Listed {
            objects,
            skipped,
            seconds,
        } => {
            let skipped = match skipped {
                0 => String::new(),
                count => format!(", {count} more have names that cannot be asked for"),
            };
            format!("the origin has {objects} objects{skipped} ({seconds:.1} s)")
        }
        Event::Fetched {
            name,
            bytes,
            verified,
            ..
        } => format!("{name}: {bytes} bytes, {verified}"),
        Event::Removed { name, reason } => format!("{name}: removed ({reason})"),
        Event::RemovalsRefused { objects, remedy } => {
            format!("the origin lacks {objects} objects that are here: none is removed; {remedy}")
        }
        Event::Failed { text, .. } => format!("{text}; it is tried again"),
        Event::Waiting { text, seconds, .. } => format!("{text}; next attempt in {seconds:.0} s"),
        Event::Recovered { kind } => format!("it goes on ({kind} is over)"),
        Event::Note { text } => (*text).to_owned(),
        Event::Progress { .. } => String::new(),
        Event::Ended {
            fetched,
            fetched_bytes,
            removed,
            failed,
        } => {
            format!("{fetched} fetched ({fetched_bytes} bytes), {removed} removed, {failed} failed")
        }
        Event::Would { step, name, bytes } => match bytes {
            Some(bytes) => format!("would {step} {name} ({bytes} bytes)"),
            None => format!("would {step} {name}"),
        },
    }
}

/// Milliseconds as seconds.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "for people")]
pub fn seconds(millis: u64) -> f64 {
    millis as f64 / 1000.0
}
