//! The log on stderr, which may block: a terminal that was stopped, a pipe without a reader.
//!
//! Before [`start`], lines are written synchronously, so that an operator sees in order why a start
//! failed. After it a separate thread writes ([`crate::observe::output`]): it refuses to make the worker wait
//! for stderr. Bound: [`QUEUE`]; lines beyond are dropped and counted ([`dropped`]). After [`close`]
//! lines are written synchronously again.
//!
//! Where stderr is a stream of systemd's journal, each line begins with its priority (sd-daemon(3)), which
//! the journal takes off.
//!
//! There is one log per process, because there is one stderr.

use std::env;
use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd;
use std::os::linux::fs::MetadataExt as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{self, FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::observe::output::{Output, OutputLimits, Target};

/// What may wait for stderr. A line is some hundred bytes, the one with all counters some thousand.
pub(crate) const QUEUE: OutputLimits = OutputLimits {
    bytes_max: 1 << 20,
    pause: Duration::ZERO,
};
/// Longest wait for stderr at the end.
pub(crate) const FLUSH_TIME_MAX: Duration = Duration::from_secs(1);

static OUTPUT: OnceLock<Output> = OnceLock::new();
static MODE: AtomicU8 = AtomicU8::new(DIRECT);
/// Lines are written at once.
const DIRECT: u8 = 0;
/// Lines are handed to the thread.
const QUEUED: u8 = 1;
/// Stderr took nothing for too long: lines are dropped, or the process would never end.
const STUCK: u8 = 2;

struct Stderr(File);

impl Target for Stderr {
    fn write_lines(&mut self, lines: &[u8]) -> io::Result<()> {
        self.0.write_all(lines)
    }
}

/// Changes the least severe level that is logged.
static SET_LEVEL: OnceLock<Box<dyn Fn(LevelFilter) + Send + Sync>> = OnceLock::new();

/// How lines are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// A JSON object each.
    Json,
}

impl LogFormat {
    const ALL: [(&'static str, Self); 2] = [("text", Self::Text), ("json", Self::Json)];

    /// The one of this name.
    #[must_use]
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find_map(|(known, format)| (known == name).then_some(format))
    }

    /// Its name.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// Lines of JSON are wanted.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Whether each line is a JSON object.
#[must_use]
pub(crate) fn is_json() -> bool {
    IS_JSON.load(Ordering::Relaxed)
}

/// Writes events as JSON objects: `time`, `level`, `message` and what an event has besides.
#[derive(Clone, Copy, Debug)]
struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut members = Members(Map::new());
        members.0.insert("time".into(), time.into());
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        members.0.insert("level".into(), level.into());
        event.record(&mut members);
        writeln!(writer, "{}", Value::Object(members.0))
    }
}

/// What an event has, by name.
struct Members(Map<String, Value>);

impl Visit for Members {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let text = format!("{value:?}");
        self.0.insert(field.name().into(), text.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().into(), value.into());
    }
}

/// Begins the log, from this level on: the first call in a process does.
pub(crate) fn init(level: LevelFilter, format: LogFormat) {
    IS_JSON.store(format == LogFormat::Json, Ordering::Relaxed);
    // Colours only on a terminal, and not if NO_COLOR is set (no-color.org).
    let is_colour_unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let (filter, handle) = reload::Layer::new(level);
    let lines = fmt::layer()
        .with_writer(LogWriters)
        .with_ansi(io::stderr().is_terminal() && !is_colour_unwanted)
        .with_target(false)
        // It would report a log that cannot be written by `eprintln!`, which panics then.
        .log_internal_errors(false);
    let log = tracing_subscriber::registry().with(filter);
    match format {
        LogFormat::Text => log.with(lines).init(),
        LogFormat::Json => log.with(lines.event_format(JsonLines)).init(),
    }
    let set = move |level| {
        // The log is there as long as the process.
        let _ = handle.reload(level);
    };
    let _ = SET_LEVEL.set(Box::new(set));
}

/// From now on, lines of this level and of more severe ones are logged.
pub(crate) fn set_level(level: LevelFilter) {
    if let Some(set) = SET_LEVEL.get() {
        set(level);
    }
}

/// Starts the thread. It has the rights of the calling thread.
///
/// # Errors
/// There can be no thread, or stderr is closed: lines are written at once, as before.
pub(crate) fn start() -> io::Result<()> {
    if OUTPUT.get().is_some() {
        return Ok(());
    }
    let stderr = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let output = Output::spawn("atlas-log", QUEUE, Stderr(stderr))?;
    if OUTPUT.set(output).is_ok() {
        MODE.store(QUEUED, Ordering::Release);
    }
    Ok(())
}

/// Names the stream that stdout or stderr is connected to, as `device:inode` (systemd.exec(5)).
pub(crate) const JOURNAL_VARIABLE: &str = "JOURNAL_STREAM";

/// What stands before a line of this level on stderr.
#[must_use]
pub(crate) fn priority(level: Level) -> &'static str {
    static IS_JOURNAL: OnceLock<bool> = OnceLock::new();
    let is_journal = *IS_JOURNAL.get_or_init(|| {
        let stream = std::env::var(JOURNAL_VARIABLE);
        stream.is_ok_and(|stream| is_stream(&stream, &io::stderr()))
    });
    if is_journal { prefix(level) } else { "" }
}

/// Whether a descriptor is this `device:inode`.
fn is_stream(stream: &str, descriptor: &impl AsFd) -> bool {
    let file = descriptor.as_fd().try_clone_to_owned().map(File::from);
    let metadata = file.and_then(|file| file.metadata());
    metadata.is_ok_and(|it| stream == format!("{}:{}", it.st_dev(), it.st_ino()))
}

/// Priorities of syslog(3).
const fn prefix(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

/// Writes or queues a line with its line break. Errors are ignored: stderr may be closed.
pub(crate) fn write(line: &[u8]) {
    match (MODE.load(Ordering::Acquire), OUTPUT.get()) {
        (QUEUED, Some(output)) => {
            output.push(line);
        }
        (STUCK, _) => {}
        _ => {
            let _ = io::stderr().write_all(line);
        }
    }
}

/// Waits until everything was written, [`FLUSH_TIME_MAX`] at most. What comes after that is
/// written at once, unless stderr is stuck.
pub(crate) fn close() {
    if MODE.load(Ordering::Acquire) == QUEUED
        && let Some(output) = OUTPUT.get()
    {
        let is_written = output.close(FLUSH_TIME_MAX);
        MODE.store(if is_written { DIRECT } else { STUCK }, Ordering::Release);
    }
}

/// Lines that found no room or could not be written, since start.
#[must_use]
pub(crate) fn dropped() -> u64 {
    OUTPUT.get().map_or(0, Output::dropped)
}

/// What the tracing subscriber writes to. It writes each event at once, so each write is a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogWriter {
    priority: &'static str,
}

/// Makes a writer for each event.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogWriters;

impl MakeWriter<'_> for LogWriters {
    type Writer = LogWriter;

    fn make_writer(&self) -> LogWriter {
        LogWriter {
            priority: priority(Level::INFO),
        }
    }

    fn make_writer_for(&self, event: &Metadata<'_>) -> LogWriter {
        LogWriter {
            priority: priority(*event.level()),
        }
    }
}

impl io::Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.priority.is_empty() {
            write(line);
        } else {
            write(&[self.priority.as_bytes(), line].concat());
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Before a panic is told, what was logged before it is.
pub(crate) fn install_panic_hook() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        close();
        tell(panic);
    }));
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::linux::fs::MetadataExt as _;

    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use tracing::Level;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::{JsonLines, LogFormat, is_stream, prefix};

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_is_an_object_on_a_line() {
        let lines = Lines::default();
        let to = lines.clone();
        let layer = tracing_subscriber::fmt::layer().with_writer(move || to.clone());
        let log = tracing_subscriber::registry().with(layer.event_format(JsonLines));
        tracing::subscriber::with_default(log, || {
            tracing::warn!(bytes = 7_u64, is_odd = true, "a \"word\"\nand {}", 1);
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert!(
            text.ends_with("}\n") && text.matches('\n').count() == 1,
            "{text}"
        );
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["level"], "warn");
        assert_eq!(json["message"], "a \"word\"\nand 1");
        assert_eq!((&json["bytes"], &json["is_odd"]), (&7.into(), &true.into()));
        assert!(json["time"].as_str().unwrap().ends_with('Z'), "{text}");
    }

    #[test]
    fn formats_have_names() {
        for format in [LogFormat::Text, LogFormat::Json] {
            assert_eq!(LogFormat::from_name(format.name()), Some(format));
        }
        assert_eq!(LogFormat::from_name("JSON"), None);
    }

    #[test]
    fn the_journal_s_stream_is_told_by_device_and_inode() {
        let file = File::open("/proc/self/exe").unwrap();
        let metadata = file.metadata().unwrap();
        let stream = format!("{}:{}", metadata.st_dev(), metadata.st_ino());
        assert!(is_stream(&stream, &file));
        let other = File::open("/dev/null").unwrap();
        assert!(!is_stream(&stream, &other));
        for malformed in ["", ":", "1", "a:b"] {
            assert!(!is_stream(malformed, &file), "{malformed}");
        }
    }

    #[test]
    fn levels_have_the_priorities_of_syslog() {
        let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG];
        assert_eq!(levels.map(prefix), ["<3>", "<4>", "<6>", "<7>"]);
    }
}
