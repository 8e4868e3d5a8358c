//! The parser: settings first, then one line for each event. The grammar is in the README.
//!
//! It refuses what it does not know and says which word that is: a script with a slip must not pass
//! because a part of it was skipped. Bounded by the script: one pass, no look-ahead beyond a word.

use core::fmt::Display;
use core::ops::Range;
use core::str::FromStr;

use clock::Duration;
use session::CongestionControl;
use wire::Ecn;

use crate::script::{Answer, Bits, Event, Expected, Line, Script, Segment, Setup, Wanted, When};

/// Why a text is no script.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{file}:{line}: {problem}\n  | {text}")]
pub struct ParseError {
    /// The script's file.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// The line.
    pub text: String,
    /// What is wrong with it.
    pub problem: String,
}

type Parsed<T> = Result<T, String>;

/// Parses a script.
///
/// # Errors
/// The first line that is none.
pub fn parse(file: &str, text: &str) -> Result<Script, ParseError> {
    let mut script = Script {
        file: file.to_owned(),
        setup: Setup::default(),
        lines: Vec::new(),
    };
    let error = |line, text: &str, problem| ParseError {
        file: file.to_owned(),
        line,
        text: text.trim().to_owned(),
        problem,
    };
    if !text.starts_with('#') {
        let first = text.lines().next().unwrap_or_default();
        let problem = "a script begins with a comment that says what it shows";
        return Err(error(1, first, problem.to_owned()));
    }
    for (index, whole) in text.lines().enumerate() {
        let meaningful = whole.split('#').next().unwrap_or_default();
        let mut words = Words::new(meaningful);
        let Some(first) = words.next() else { continue };
        let parsed = if first.starts_with(|c: char| c == '+' || c.is_ascii_digit()) {
            parse_line(first, &mut words).map(|(when, event)| {
                script.lines.push(Line {
                    number: index + 1,
                    text: meaningful.trim().to_owned(),
                    when,
                    event,
                });
            })
        } else if script.lines.is_empty() {
            parse_setting(first, &mut words, &mut script.setup)
        } else {
            Err(format!(
                "\"{first}\" is no time; settings come before the first line"
            ))
        };
        parsed
            .and_then(|()| words.end())
            .map_err(|problem| error(index + 1, whole, problem))?;
    }
    Ok(script)
}

/// The words of a line that were not looked at yet.
struct Words<'a> {
    rest: core::str::SplitWhitespace<'a>,
}

impl<'a> Words<'a> {
    fn new(line: &'a str) -> Self {
        Self {
            rest: line.split_whitespace(),
        }
    }

    fn next(&mut self) -> Option<&'a str> {
        self.rest.next()
    }

    fn after(&mut self, key: &str) -> Parsed<&'a str> {
        self.next()
            .ok_or_else(|| format!("nothing stands behind \"{key}\""))
    }

    fn number<T: FromStr>(&mut self, key: &str) -> Parsed<T> {
        number(key, self.after(key)?)
    }

    fn end(&mut self) -> Parsed<()> {
        match self.next() {
            None => Ok(()),
            Some(word) => Err(format!("\"{word}\" is too much")),
        }
    }
}

fn number<T: FromStr>(key: &str, word: &str) -> Parsed<T> {
    word.parse()
        .map_err(|_| format!("\"{key}\" takes a number in its range, not \"{word}\""))
}

fn range<T: FromStr + PartialOrd + Display + Copy>(key: &str, word: &str) -> Parsed<Range<T>> {
    let (start, end) = word
        .split_once("..")
        .ok_or_else(|| format!("\"{key}\" takes a range like 1..1001, not \"{word}\""))?;
    let (start, end) = (number(key, start)?, number(key, end)?);
    if end <= start {
        return Err(format!("the range {start}..{end} is empty"));
    }
    Ok(start..end)
}

/// A number, or a range of them: `seq 5` is the empty range 5..5.
fn place(key: &str, word: &str) -> Parsed<Range<i64>> {
    if word.contains("..") {
        return range(key, word);
    }
    let at = number(key, word)?;
    Ok(at..at)
}

/// Seconds with up to nine decimals, exactly.
fn seconds(key: &str, word: &str) -> Parsed<Duration> {
    let problem = || format!("\"{key}\" takes seconds like 0.25, not \"{word}\"");
    let (whole, part) = word.split_once('.').unwrap_or((word, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    if !is_digits(whole) || !is_digits(part) || part.len() > 9 {
        return Err(problem());
    }
    let nanos = format!("{part:0<9}").parse().map_err(|_| problem())?;
    Ok(Duration::new(whole.parse().map_err(|_| problem())?, nanos))
}

/// One of two words; whether it is the first.
fn either(key: &str, word: &str, words: [&str; 2]) -> Parsed<bool> {
    match words.iter().position(|it| *it == word) {
        Some(index) => Ok(index == 0),
        None => {
            let [first, second] = words;
            Err(format!("\"{key}\" is {first} or {second}, not \"{word}\""))
        }
    }
}

/// `none`, or a value.
fn optional<T: FromStr>(key: &str, word: &str) -> Parsed<Option<T>> {
    match word {
        "none" => Ok(None),
        word => number(key, word).map(Some),
    }
}

fn parse_setting(key: &str, words: &mut Words<'_>, setup: &mut Setup) -> Parsed<()> {
    let value = words.after(key)?;
    match key {
        "mss" => setup.mss = optional(key, value)?,
        "window" => setup.window_bytes = number(key, value)?,
        "scale" => setup.scale = optional(key, value)?,
        "sack" => setup.sack = either(key, value, ["on", "off"])?,
        "timestamps" => setup.timestamps = either(key, value, ["on", "off"])?,
        "congestion_control" => {
            setup.congestion = CongestionControl::from_name(value)
                .ok_or_else(|| format!("no congestion control is called \"{value}\""))?;
        }
        "pacing" => setup.is_paced = either(key, value, ["on", "off"])?,
        "slow_start_after_idle" => {
            setup.reduces_idle_window = either(key, value, ["on", "off"])?;
        }
        "ecn" => setup.accepts_ecn = either(key, value, ["on", "off"])?,
        "mtu_probing" => setup.probes_path_mtu = either(key, value, ["on", "off"])?,
        "object" => setup.object_bytes = number(key, value)?,
        "head" => setup.head_bytes = number(key, value)?,
        "block" => setup.block_bytes = block(value)?,
        "disk" => setup.is_disk_immediate = either(key, value, ["immediate", "scripted"])?,
        "slots" => setup.slots = number(key, value)?,
        "mtu" => setup.mtu_bytes = number(key, value)?,
        "requests" => setup.closes = either(key, value, ["close", "keep"])?,
        "connect" => setup.connect = Some(seconds(key, value)?),
        "idle_timeout" => setup.idle_timeout = seconds(key, value)?,
        "send_timeout" => setup.send_timeout = seconds(key, value)?,
        _ => return Err(format!("\"{key}\" is no setting")),
    }
    Ok(())
}

fn block(value: &str) -> Parsed<u32> {
    let bytes: u32 = number("block", value)?;
    if bytes.is_power_of_two() {
        Ok(bytes)
    } else {
        Err(format!("\"block\" is a power of two, not {bytes}"))
    }
}

fn parse_line(time: &str, words: &mut Words<'_>) -> Parsed<(When, Event)> {
    let when = parse_when(time)?;
    let actor = words.after(time)?;
    let event = match actor {
        "wait" => Event::Wait,
        "peer" => match words.after(actor)? {
            ">" => Event::PeerSends(parse_segment(words)?),
            "<" => Event::PeerExpects(parse_expected(words)?),
            verb => return Err(format!("peer sends by > and expects by <, not \"{verb}\"")),
        },
        "disk" => match words.after(actor)? {
            "?" => parse_read(words)?,
            "=" => parse_answer(words)?,
            verb => {
                return Err(format!(
                    "disk expects by ? and answers by =, not \"{verb}\""
                ));
            }
        },
        "router" => parse_report(words)?,
        _ => {
            return Err(format!(
                "\"{actor}\" is none of peer, disk, router and wait"
            ));
        }
    };
    let expects = matches!(event, Event::PeerExpects(_) | Event::DiskExpects(_));
    if when.tolerance > Duration::ZERO && !expects {
        return Err("only what is expected has a tolerance".to_owned());
    }
    Ok((when, event))
}

/// `+0.2`, `1.5`, `+0.2~0.01`.
fn parse_when(word: &str) -> Parsed<When> {
    let (time, tolerance) = match word.split_once('~') {
        Some((time, tolerance)) => (time, seconds("~", tolerance)?),
        None => (word, Duration::ZERO),
    };
    Ok(When {
        is_relative: time.starts_with('+'),
        time: seconds("time", time.strip_prefix('+').unwrap_or(time))?,
        tolerance,
    })
}

/// Sets a control bit; whether the word is one.
fn set_bit(bits: &mut Bits, word: &str) -> bool {
    let bit = match word {
        "syn" => &mut bits.syn,
        "fin" => &mut bits.fin,
        "rst" => &mut bits.rst,
        "ece" => &mut bits.ece,
        "cwr" => &mut bits.cwr,
        _ => return false,
    };
    *bit = true;
    true
}

fn parse_segment(words: &mut Words<'_>) -> Parsed<Segment> {
    let mut segment = Segment::default();
    let mut is_empty = true;
    while let Some(word) = words.next() {
        is_empty = false;
        if set_bit(&mut segment.bits, word) {
            continue;
        }
        match word {
            "get" => segment.is_request = true,
            "seq" => segment.sequence = Some(place(word, words.after(word)?)?),
            "ack" => segment.ack = Some(words.number(word)?),
            "-ack" => segment.without_ack = true,
            "win" => segment.window_bytes = Some(words.number(word)?),
            "sack" => {
                let blocks = words.after(word)?.split(',');
                segment.sack = blocks.map(|it| range(word, it)).collect::<Parsed<_>>()?;
                if segment.sack.len() > wire::tcp::SACK_BLOCKS_MAX {
                    return Err("a header has room for four SACK blocks".to_owned());
                }
            }
            "ts" => segment.stamp = Some(words.number(word)?),
            "-ts" => segment.without_stamp = true,
            "ecr" => segment.echo = Some(words.number(word)?),
            "port" => segment.port = Some(words.number(word)?),
            "ect" => segment.ecn = Ecn::Ect0,
            "ce" => segment.ecn = Ecn::Ce,
            _ => return Err(format!("\"{word}\" is no part of a segment that is sent")),
        }
    }
    if is_empty {
        return Err("the peer sends nothing".to_owned());
    }
    if segment.is_request && segment.sequence.as_ref().is_some_and(|it| !it.is_empty()) {
        return Err(
            "\"get\" has a length of its own; \"seq\" names its first byte only".to_owned(),
        );
    }
    Ok(segment)
}

fn parse_expected(words: &mut Words<'_>) -> Parsed<Expected> {
    let mut expected = Expected::default();
    let mut is_empty = true;
    while let Some(word) = words.next() {
        is_empty = false;
        if set_bit(&mut expected.bits, word) {
            continue;
        }
        match word {
            "seq" => expected.sequence = Some(place(word, words.after(word)?)?),
            "ack" => expected.ack = Some(words.number(word)?),
            "win" => expected.window = Some(words.number(word)?),
            "psh" => expected.push = Some(true),
            "-psh" => expected.push = Some(false),
            "retrans" => expected.is_retransmission = true,
            "packets" => expected.packets = Some(words.number(word)?),
            "of" => expected.packet_bytes = Some(words.number(word)?),
            "mss" => expected.mss = Wanted::Is(words.number(word)?),
            "scale" => expected.scale = Wanted::Is(words.number(word)?),
            "-scale" => expected.scale = Wanted::Absent,
            "sackok" => expected.sack_permitted = Wanted::Is(()),
            "-sackok" => expected.sack_permitted = Wanted::Absent,
            "ts" => expected.stamp = Wanted::Is(words.number(word)?),
            "-ts" => expected.stamp = Wanted::Absent,
            "ecr" => expected.echo = Some(words.number(word)?),
            "ect" => expected.ecn = Some(Ecn::Ect0),
            "-ect" => expected.ecn = Some(Ecn::NotEct),
            _ => {
                return Err(format!(
                    "\"{word}\" is no part of a segment that is expected"
                ));
            }
        }
    }
    if is_empty {
        return Err("the peer expects nothing".to_owned());
    }
    let has_text = expected.sequence.as_ref().is_some_and(|it| !it.is_empty());
    if !has_text && (expected.packets.is_some() || expected.packet_bytes.is_some()) {
        return Err("\"packets\" and \"of\" describe text, and there is no range of it".to_owned());
    }
    if !has_text && expected.is_retransmission && !expected.bits.fin && !expected.bits.syn {
        return Err("\"retrans\" describes text, a FIN or a SYN, and there is none".to_owned());
    }
    Ok(expected)
}

fn parse_read(words: &mut Words<'_>) -> Parsed<Event> {
    match words.after("?")? {
        "read" => Ok(Event::DiskExpects(range("read", words.after("read")?)?)),
        word => Err(format!("disk expects a read, not \"{word}\"")),
    }
}

fn parse_answer(words: &mut Words<'_>) -> Parsed<Event> {
    let answer = match words.after("=")? {
        "done" => Answer::Done,
        "failed" => Answer::Failed,
        "changed" => Answer::Changed,
        "short" => Answer::Short(words.number("short")?),
        "full" => return Ok(Event::DiskQueue { is_full: true }),
        "free" => return Ok(Event::DiskQueue { is_full: false }),
        word => {
            return Err(format!(
                "\"{word}\" is none of done, failed, changed, short, full and free"
            ));
        }
    };
    let which = words.next().map(|word| range("read", word)).transpose()?;
    Ok(Event::DiskAnswers(answer, which))
}

fn parse_report(words: &mut Words<'_>) -> Parsed<Event> {
    let mut keys = |key: &str| match words.after("router")? {
        word if word == key => Ok(()),
        word => Err(format!("\"{key}\" is missing before \"{word}\"")),
    };
    keys(">")?;
    keys("too_big")?;
    keys("mtu")?;
    let mtu_bytes = words.number("mtu")?;
    match words.after("mtu")? {
        "seq" => Ok(Event::RouterReports {
            mtu_bytes,
            sequence: words.number("seq")?,
        }),
        word => Err(format!("\"seq\" is missing before \"{word}\"")),
    }
}

#[cfg(test)]
mod tests;
