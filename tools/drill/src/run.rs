//! Carries a script out: moves the clock, sends what the peer and the disk send, and compares what
//! leaves the server with what is expected.
//!
//! What is expected must be the next thing its actor sees. Whatever leaves the server must be
//! expected: the clock does not move, and no actor acts, while something was not looked at.

use core::ops::Range;

use clock::{Duration, Instant};

use crate::compare::{self, describe_read};
use crate::content::Content;
use crate::failure::Failure;
use crate::peer::Peer;
use crate::script::{Bits, Event, Expected, Line, Script, Segment, When};
use crate::server::{START, Server};

/// What happened in a run, a line each, with times.
pub type Trace = Vec<String>;

/// Runs a script. The trace is of everything until its end or its failure.
///
/// # Errors
/// What was expected and did not happen, or happened and was not expected.
pub fn run(script: &Script) -> (Trace, Result<(), Failure>) {
    let content = match Content::new(&script.setup) {
        Ok(content) => content,
        Err(problem) => return (Trace::new(), Err(failure(script, None, problem))),
    };
    let mut run = Run {
        server: Server::new(&script.setup, content),
        peer: Peer::new(&script.setup),
        before: START,
        trace: Trace::new(),
    };
    let result = run.all(script);
    (run.trace, result)
}

fn failure(script: &Script, line: Option<&Line>, problem: String) -> Failure {
    Failure {
        file: script.file.clone(),
        line: line.map_or(0, |line| line.number),
        text: line.map(|line| line.text.clone()).unwrap_or_default(),
        problem,
        before: Trace::new(),
    }
}

/// Lines of the trace that a failure repeats.
const BEFORE_MAX: usize = 12;

struct Run {
    server: Server,
    peer: Peer,
    /// When the last line happened.
    before: Instant,
    trace: Trace,
}

impl Run {
    fn all(&mut self, script: &Script) -> Result<(), Failure> {
        let mut result = Ok(());
        if let Some(round_trip) = script.setup.connect {
            result = self
                .connect(round_trip)
                .map_err(|problem| failure(script, None, problem));
        }
        for line in &script.lines {
            if result.is_ok() {
                let done = self.line(line);
                result = done.map_err(|problem| failure(script, Some(line), problem));
            }
        }
        if result.is_ok() {
            let done = self.end();
            result = done.map_err(|problem| failure(script, script.lines.last(), problem));
        }
        result.map_err(|failure| Failure {
            before: self.trace[self.trace.len().saturating_sub(BEFORE_MAX)..].to_vec(),
            ..failure
        })
    }

    /// The handshake of the setting `connect`.
    fn connect(&mut self, round_trip: Duration) -> Result<(), String> {
        let syn = Bits {
            syn: true,
            ..Bits::default()
        };
        let opening = Segment {
            bits: syn,
            ..Segment::default()
        };
        self.peer_sends(&opening)?;
        let syn_ack = Expected {
            bits: syn,
            sequence: Some(0..0),
            ack: Some(1),
            ..Expected::default()
        };
        let at_once = When {
            is_relative: true,
            time: Duration::ZERO,
            tolerance: Duration::ZERO,
        };
        self.peer_expects(&at_once, &syn_ack)?;
        self.advance_quietly(START + round_trip)?;
        self.before = self.server.now();
        let answer = Segment {
            ack: Some(1),
            ..Segment::default()
        };
        self.peer_sends(&answer)
    }

    fn line(&mut self, line: &Line) -> Result<(), String> {
        let at = self.time_of(&line.when);
        if at < self.server.now() {
            return Err(format!(
                "it is {} already, after {}",
                seconds(self.server.now()),
                seconds(at)
            ));
        }
        match &line.event {
            Event::PeerExpects(expected) => return self.peer_expects(&line.when, expected),
            Event::DiskExpects(range) => return self.disk_expects(&line.when, range),
            _ => self.advance_quietly(at)?,
        }
        self.before = at;
        match &line.event {
            Event::PeerSends(segment) => self.peer_sends(segment)?,
            Event::RouterReports {
                mtu_bytes,
                sequence,
            } => {
                self.note(format!("router > too_big mtu {mtu_bytes} seq {sequence}"));
                let frame = self.peer.report(*sequence, *mtu_bytes);
                self.act(|server| server.receive(&frame));
            }
            Event::DiskAnswers(answer, which) => {
                self.note(compare::describe_answer(*answer, which.as_ref()));
                let mut done = Ok(());
                self.act(|server| done = server.answer(*answer, which.as_ref()));
                done.map_err(|there| format!("there is no such read to answer; {there}"))?;
            }
            Event::DiskQueue { is_full } => {
                let state = if *is_full { "full" } else { "free" };
                self.note(format!("disk = {state}"));
                self.act(|server| server.set_disk_full(*is_full));
            }
            Event::Wait | Event::PeerExpects(_) | Event::DiskExpects(_) => {}
        }
        Ok(())
    }

    fn time_of(&self, when: &When) -> Instant {
        let from = if when.is_relative { self.before } else { START };
        from + when.time
    }

    fn peer_sends(&mut self, segment: &Segment) -> Result<(), String> {
        let frame = self.peer.frame(segment, millis(self.server.now()))?;
        let sent = compare::describe_sent(&self.peer, &frame);
        self.note(format!("peer > {sent}"));
        self.act(|server| server.receive(&frame));
        Ok(())
    }

    /// Lets the server do something, and traces what leaves it.
    fn act(&mut self, action: impl FnOnce(&mut Server)) {
        action(&mut self.server);
        self.trace_new(0, 0);
    }

    /// Traces packets and reads behind the first `packets` and `reads`, which were traced before.
    fn trace_new(&mut self, packets: usize, reads: usize) {
        for read in self.server.reads.iter().skip(reads) {
            let text = describe_read(&read.range);
            self.trace
                .push(format!("{} disk ? {text}", seconds(read.at)));
        }
        let mut new = self.server.packets.iter().skip(packets).peekable();
        if let Some(first) = new.peek() {
            self.peer.see(first, millis(first.at));
        }
        for (at, text) in compare::runs(&self.peer, new) {
            self.trace.push(format!("{} peer < {text}", seconds(at)));
        }
    }

    fn note(&mut self, text: String) {
        let now = self.server.now();
        self.trace.push(format!("{} {text}", seconds(now)));
    }

    /// Moves the clock; nothing may leave the server meanwhile.
    fn advance_quietly(&mut self, until: Instant) -> Result<(), String> {
        self.refuse_unseen("before this line")?;
        self.advance(until);
        self.refuse_unseen("before this line")
    }

    fn advance(&mut self, until: Instant) {
        if self.server.is_quiet() {
            self.server.advance(until);
            self.trace_new(0, 0);
        }
    }

    /// Fails if something left the server that no line expected.
    fn refuse_unseen(&mut self, when: &str) -> Result<(), String> {
        match self.unseen() {
            None => Ok(()),
            Some(seen) => Err(format!("expected: nothing more {when}\nseen:     {seen}")),
        }
    }

    fn unseen(&self) -> Option<String> {
        if let Some(read) = self.server.reads.front() {
            let text = describe_read(&read.range);
            return Some(format!("at {}: disk ? {text}", seconds(read.at)));
        }
        let (at, text) = compare::runs(&self.peer, self.server.packets.iter()).next()?;
        Some(format!("at {}: peer < {text}", seconds(at)))
    }

    fn end(&mut self) -> Result<(), String> {
        self.refuse_unseen("until the end of the script")?;
        match self.server.missing_slots() {
            0 => Ok(()),
            missing => Err(format!(
                "no connection is left, and {missing} slots did not come back"
            )),
        }
    }

    /// The moments at which what is expected may come.
    fn window_of(&self, when: &When) -> (Instant, Instant) {
        let at = self.time_of(when);
        let early = at.since(START).saturating_sub(when.tolerance);
        (START + early, at + when.tolerance)
    }

    fn disk_expects(&mut self, when: &When, range: &Range<u64>) -> Result<(), String> {
        let (early, late) = self.window_of(when);
        let wanted = format!("{}: {}", span(early, late), describe_read(range));
        self.advance(late);
        let Some(read) = self.server.reads.pop_front() else {
            let instead = self.unseen();
            let seen = instead.unwrap_or_else(|| "no read until then".to_owned());
            return Err(format!("expected: {wanted}\nseen:     {seen}"));
        };
        let is_timely = early <= read.at && read.at <= late;
        if !is_timely || read.range != *range {
            let seen = describe_read(&read.range);
            return Err(format!(
                "expected: {wanted}\nseen:     at {}: {seen}",
                seconds(read.at)
            ));
        }
        self.before = read.at;
        Ok(())
    }

    fn peer_expects(&mut self, when: &When, expected: &Expected) -> Result<(), String> {
        let (early, late) = self.window_of(when);
        self.advance(late);
        let wanted = || {
            let span = span(early, late);
            format!("{span}: {}", compare::describe_expected(expected))
        };
        let seen = self.unseen_packets();
        if self.server.packets.is_empty() {
            let instead = self.unseen();
            let seen = instead.unwrap_or_else(|| "no segment until then".to_owned());
            return Err(format!("expected: {}\nseen:     {seen}", wanted()));
        }
        let at = self.take(expected, early, late).map_err(|problem| {
            format!(
                "expected: {}\nseen:     {seen}\nwrong:    {problem}",
                wanted()
            )
        })?;
        self.before = at;
        Ok(())
    }

    fn unseen_packets(&self) -> String {
        let runs = compare::runs(&self.peer, self.server.packets.iter());
        let lines: Vec<String> = runs
            .map(|(at, text)| format!("at {}: {text}", seconds(at)))
            .collect();
        lines.join("\n          ")
    }

    /// Takes the packets of an expected range, or one packet, and compares them.
    fn take(
        &mut self,
        expected: &Expected,
        early: Instant,
        late: Instant,
    ) -> Result<Instant, String> {
        let Some(first) = self.server.packets.front() else {
            return Err("there is no segment".to_owned());
        };
        let at = first.at;
        self.peer.see(first, millis(first.at));
        if at < early || at > late {
            return Err(format!("the time is {}", seconds(at)));
        }
        let mut matching = compare::Matching::new(expected, self.peer.segment_bytes());
        while let Some(packet) = self.server.packets.pop_front() {
            if packet.at != at {
                return Err(format!("the rest comes at {}", seconds(packet.at)));
            }
            let is_whole = matching.take(&self.peer, &packet)?;
            if let Some(offset) = text_offset(&self.peer, &packet) {
                self.server.content().check(offset, &packet.payload)?;
            }
            self.peer.learn(&packet, millis(at));
            if is_whole {
                return Ok(at);
            }
        }
        Err("the rest is missing".to_owned())
    }
}

/// Where in the server's stream the text of a packet begins; `None`: it has none.
fn text_offset(peer: &Peer, packet: &crate::server::Packet) -> Option<u64> {
    if packet.payload.is_empty() {
        return None;
    }
    u64::try_from(peer.relative(packet.segment.sequence) - 1).ok()
}

fn millis(at: Instant) -> i64 {
    i64::try_from(at.as_millis() - START.as_millis()).unwrap_or(i64::MAX)
}

/// A time of the script, in seconds.
fn seconds(at: Instant) -> String {
    let nanos = at.since(START).as_nanos();
    let (whole, part) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    let text = format!("{whole}.{part:09}");
    // Microseconds, unless there is more to say.
    text.strip_suffix("000").map_or(text.clone(), str::to_owned)
}

fn span(early: Instant, late: Instant) -> String {
    if early == late {
        format!("at {}", seconds(early))
    } else {
        format!("from {} to {}", seconds(early), seconds(late))
    }
}
