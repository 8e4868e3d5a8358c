//! Rewrites a script so that it asks nothing of Linux: a copy, which lives as long as the run.
//!
//! Four things change, mechanically, and the table says what was left out:
//!
//! * **Commands** between back-ticks set up Linux by `sysctl` and `tc`. They are cut out, so that
//!   nothing of the machine changes.
//! * **Window scale.** Linux offers 8 in its SYN-ACK. We offer 0, because our window is 17 KiB.
//! * **PSH** is not compared: Linux sets it by how its buffers are filled; we set it on the last
//!   segment that is queued (RFC 9293 s3.9.1.2), which drill scripts check.
//! * **Code** between `%{` and `}%` is Python that looks at Linux's `TCP_INFO`. An assertion about
//!   `tcpi_snd_cwnd` becomes a `getsockopt` that our host answers. The others are left out.
//!
//! It refuses what [`Reason`] lists.

mod reason;
#[cfg(test)]
mod tests;

pub use reason::Reason;

/// Number of the option for [`crate::host::Option32::CongestionWindowSegments`]: none of Linux's.
pub const CONGESTION_WINDOW_OPTION: i32 = 16_724;

/// The option of the SYN-ACK as Linux has it, and as we do.
const SCALE_OF_LINUX: &str = "wscale 8";
const SCALE_OF_OURS: &str = "wscale 0";

/// All scripts in this folder are of TCP Fast Open, whatever their words.
const FAST_OPEN_FOLDER: &str = "fastopen/";

/// A script as our host is to pass it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Adapted {
    /// Its text.
    pub text: String,
    /// Assertions about the congestion window.
    pub assertions: usize,
    /// Assertions that were left out.
    pub assertions_left_out: usize,
}

/// Rewrites a script, whose path below the folder of scripts is `name`.
///
/// # Errors
/// It does not apply.
pub fn adapt(name: &str, text: &str) -> Result<Adapted, Reason> {
    if name.starts_with(FAST_OPEN_FOLDER) {
        return Err(Reason::FastOpen);
    }
    if let Some(reason) = Reason::of(&without_comments(text)) {
        return Err(reason);
    }
    let mut adapted = Adapted {
        text: String::new(),
        assertions: 0,
        assertions_left_out: 0,
    };
    let mut rest = text;
    while let Some((before, part, behind)) = next_part(rest) {
        adapted.text.push_str(before);
        match part {
            Part::Comment => {}
            Part::Command if is_timed(&adapted.text) => return Err(Reason::HostQueue),
            Part::Command => {}
            Part::Code(code) => adapted.replace_code(code),
        }
        rest = behind;
    }
    adapted.text.push_str(rest);
    let lines: Vec<String> = adapted.text.lines().map(adapt_line).collect();
    adapted.text = lines.join("\n") + "\n";
    Ok(adapted)
}

/// A part of a script that is no event.
enum Part<'a> {
    Comment,
    Command,
    Code(&'a str),
}

/// The next such part: what is before it, and what is behind.
fn next_part(text: &str) -> Option<(&str, Part<'_>, &str)> {
    let openings = ["//", "`", "%{"];
    let (start, opening) = openings
        .into_iter()
        .filter_map(|opening| Some((text.find(opening)?, opening)))
        .min()?;
    let before = &text[..start];
    let inside = &text[start + opening.len()..];
    let closing = match opening {
        "//" => "\n",
        "`" => "`",
        _ => "}%",
    };
    let end = inside.find(closing).unwrap_or(inside.len());
    let behind = match opening {
        // The line goes on.
        "//" => &inside[end..],
        _ => inside.get(end + closing.len()..).unwrap_or_default(),
    };
    let part = match opening {
        "//" => Part::Comment,
        "`" => Part::Command,
        _ => Part::Code(&inside[..end]),
    };
    Some((before, part, behind))
}

fn without_comments(text: &str) -> String {
    let lines = text.lines();
    let lines = lines.map(|line| line.split_once("//").map_or(line, |(before, _)| before));
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether the line that is being written has begun, with a time.
fn is_timed(text: &str) -> bool {
    !text.lines().last().unwrap_or_default().trim().is_empty() && !text.ends_with('\n')
}

impl Adapted {
    /// Puts calls in place of code, at the same time.
    fn replace_code(&mut self, code: &str) {
        let connection = accepted_descriptor(&self.text);
        let mut calls = Vec::new();
        for assertion in assertions(code) {
            match congestion_window(assertion) {
                Some(segments) => calls.push(format!(
                    "getsockopt({connection}, SOL_TCP, {CONGESTION_WINDOW_OPTION}, [{segments}], [4]) = 0"
                )),
                None => self.assertions_left_out += 1,
            }
        }
        self.assertions += calls.len();
        if calls.is_empty() {
            // The time at which the code stood counts for what follows.
            calls.push(format!(
                "setsockopt({connection}, SOL_SOCKET, SO_REUSEADDR, [1], 4) = 0"
            ));
        }
        self.text.push_str(&calls.join("\n+0 "));
    }
}

/// Assertions of Python code, without the word.
fn assertions(code: &str) -> impl Iterator<Item = &str> {
    let statements = code.split(['\n', ';']);
    let statements = statements.map(|it| it.split('#').next().unwrap_or_default().trim());
    statements.filter_map(|it| it.strip_prefix("assert "))
}

/// N of `tcpi_snd_cwnd == N, message`.
fn congestion_window(assertion: &str) -> Option<u32> {
    let value = assertion.strip_prefix("tcpi_snd_cwnd")?.trim_start();
    let value = value.strip_prefix("==")?;
    let value = value.split(',').next()?;
    value.trim().parse().ok()
}

/// The descriptor that the last `accept` so far returns, else that of the first socket.
fn accepted_descriptor(text: &str) -> u32 {
    let accept = text.rsplit_once("accept(").map(|(_, behind)| behind);
    let result = accept.and_then(|behind| behind.split_once("= "));
    let digits = result.map(|(_, behind)| {
        let end = behind.find(|c: char| !c.is_ascii_digit());
        &behind[..end.unwrap_or(behind.len())]
    });
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(3)
}

/// A line; only expectations of packets change.
fn adapt_line(line: &str) -> String {
    let mut words = line.split_whitespace();
    if words.nth(1) != Some(">") {
        return line.to_owned();
    }
    let flags = words.find(|word| !word.starts_with('['));
    let Some((before, behind)) = line.split_once('>') else {
        return line.to_owned();
    };
    let behind = behind.replace(SCALE_OF_LINUX, SCALE_OF_OURS);
    let behind = match flags {
        Some(flags) => behind.replacen(flags, &flags.replace('P', ""), 1),
        None => behind,
    };
    format!("{before}>{behind}")
}
