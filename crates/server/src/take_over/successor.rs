//! A server's view of the process that takes over from it: from its start to this one's end.
//!
//! It refuses to let go of anything before the successor is ready, and a second one while the first starts. Bounds:
//! `take_over_start_seconds` until it is ready, [`SWITCH_TIME_MAX`] or [`PAUSE_TIME_MAX`] for the switch; then it is killed.
//! One that was told that it has the link has failed only once it has ended: till then it may use it.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::launcher::{Launcher, News};
use super::{Control, Hello, Message, PAUSE_TIME_MAX, ReceiveError, SWITCH_TIME_MAX, pair};

/// How long the launcher may take to say how a successor ended.
const NEWS_TIME_MAX_MS: i64 = 1_000;

/// How far a take-over is.
#[derive(Debug)]
enum Phase {
    /// It starts.
    Starting,
    /// It was told that it has the link.
    Switching,
    /// It was told so and then killed, for this reason, and has not ended yet.
    Ending(String),
    /// It has it.
    Done,
}

/// A process that takes over.
#[derive(Debug)]
struct Successor {
    control: Control,
    phase: Phase,
    /// When it is given up.
    deadline: Instant,
    /// Its number, once it is known.
    pid: Option<u32>,
    /// What it said last.
    failure: Option<String>,
    /// It passes packets of a successor of its own on: without it nobody has any for us.
    is_relaying: bool,
}

/// Where the successor's packets come from, by worker, and where ours go.
#[derive(Debug)]
pub(crate) struct Ends {
    pub from: Vec<OwnedFd>,
    pub to: Arc<OwnedFd>,
}

/// What the supervisor is to do.
#[derive(Debug)]
pub(crate) enum Step {
    /// Nothing.
    Wait,
    /// Answer no SYN any more, stop receiving if [`Succession::is_received_by_one`], then [`Succession::give`].
    Give(Ends),
    /// It has taken over: receive no more, finish.
    Taken(Option<u32>),
    /// It failed and has ended, before it had the link: go on as before.
    Failed(String),
    /// It failed, may use the link, and does not end although it was killed: nothing can be done but to say so.
    Unended(String),
    /// It has ended and its connections with it: take the link back.
    TakeBack,
    /// It has ended, and another process has the link: nobody has packets for us any more.
    Abandoned,
    /// The access log was moved away.
    Reopen,
    /// End, within so many milliseconds.
    End(u64),
}

/// Everything that a take-over needs.
#[derive(Debug)]
pub(crate) struct Succession {
    launcher: Launcher,
    hello: Hello,
    /// In the order of [`Hello`].
    shared: Vec<OwnedFd>,
    successor: Option<Successor>,
    /// How long a successor may take until it is ready.
    start_time: Duration,
}

impl Succession {
    pub(crate) const fn new(
        launcher: Launcher,
        hello: Hello,
        shared: Vec<OwnedFd>,
        start_time: Duration,
    ) -> Self {
        Self {
            launcher,
            hello,
            shared,
            successor: None,
            start_time,
        }
    }

    /// Whether another file lies where the server's program was.
    pub(crate) fn has_other_program(&self) -> bool {
        self.launcher.has_other_program()
    }

    /// Whether one process at a time can receive.
    pub(crate) fn is_received_by_one(&self) -> bool {
        !self.hello.xdp.is_empty()
    }

    /// How long a successor may take for the switch.
    fn switch_time(&self) -> Duration {
        if self.is_received_by_one() {
            PAUSE_TIME_MAX
        } else {
            SWITCH_TIME_MAX
        }
    }

    /// Whether a successor starts, or has taken over.
    pub(crate) const fn is_under_way(&self) -> bool {
        self.successor.is_some()
    }

    /// Whether a successor has the link.
    pub(crate) fn is_done(&self) -> bool {
        matches!(&self.successor, Some(it) if matches!(it.phase, Phase::Done))
    }

    /// Has a successor started.
    ///
    /// # Errors
    /// Why that cannot be now.
    pub(crate) fn begin(&mut self, now: Instant) -> Result<(), String> {
        if self.is_under_way() {
            return Err("another take-over is under way".into());
        }
        // What the launcher said of an earlier one.
        while self.launcher.news(0).is_some() {}
        let begin = || {
            let (ours, theirs) = pair()?;
            let control = Control::new(ours);
            let shared: Vec<_> = self.shared.iter().map(|it| it.as_fd()).collect();
            control.send(&Message::Hello(Box::new(self.hello.clone())), &shared)?;
            self.launcher.launch(theirs)?;
            Ok(control)
        };
        let control = begin().map_err(|error: std::io::Error| error.to_string())?;
        self.successor = Some(Successor {
            control,
            phase: Phase::Starting,
            deadline: now + self.start_time,
            pid: None,
            failure: None,
            is_relaying: false,
        });
        Ok(())
    }

    /// Readable when [`Succession::step`] has something.
    pub(crate) fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.successor.as_ref().map(|it| it.control.as_fd())
    }

    /// When [`Succession::step`] has something even if nothing comes.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let successor = self.successor.as_ref()?;
        let has_one = matches!(successor.phase, Phase::Starting | Phase::Switching);
        has_one.then_some(successor.deadline)
    }

    /// What has come, or is due.
    pub(crate) fn step(&mut self, now: Instant) -> Step {
        let switch_time = self.switch_time();
        let Some(successor) = &mut self.successor else {
            return Step::Wait;
        };
        match (successor.control.receive(), &successor.phase) {
            (Err(ReceiveError::Ended), Phase::Ending(problem)) => {
                let problem = problem.clone();
                let status = self.status();
                self.failed(&problem, status)
            }
            // What it said before it was killed.
            (Ok(_) | Err(ReceiveError::Malformed(_)), Phase::Ending(_)) => self.step(now),
            (Ok((Message::Failed(text), _)), _) => {
                successor.failure = Some(text);
                self.step(now)
            }
            (Ok((Message::Ready, mut sockets)), Phase::Starting)
                if sockets.len() == self.hello.workers + 1 =>
            {
                let to = Arc::new(sockets.pop().expect("invariant: there is one"));
                Step::Give(Ends { from: sockets, to })
            }
            (Ok((Message::Taken, _)), Phase::Switching) => {
                successor.phase = Phase::Done;
                if let Some(News::Started(pid)) = self.launcher.news(0) {
                    successor.pid = Some(pid);
                }
                Step::Taken(successor.pid)
            }
            (Ok((Message::Relaying, _)), Phase::Done) => {
                successor.is_relaying = true;
                self.step(now)
            }
            // The one that was to take over from it has ended.
            (Ok((Message::Taken, _)), Phase::Done) => {
                successor.is_relaying = false;
                self.step(now)
            }
            (Ok((Message::Reopen, _)), Phase::Done) => Step::Reopen,
            (Ok((Message::End(milliseconds), _)), Phase::Done) => Step::End(milliseconds),
            (Ok((message, _)), _) => self.give_up(&format!("{message:?} is not what comes now")),
            (Err(ReceiveError::Nothing), Phase::Starting) if now >= successor.deadline => {
                let seconds = self.start_time.as_secs();
                self.give_up(&format!(
                    "it was not ready after {seconds} s (take_over_start_seconds), and was killed"
                ))
            }
            (Err(ReceiveError::Nothing), Phase::Switching) if now >= successor.deadline => {
                let seconds = switch_time.as_secs();
                self.give_up(&format!(
                    "it did not receive after {seconds} s, and was killed"
                ))
            }
            (Err(ReceiveError::Nothing), _)
            | (Err(ReceiveError::Io(_)), Phase::Ending(_) | Phase::Done) => Step::Wait,
            (Err(ReceiveError::Ended), Phase::Done) => {
                let is_relaying = successor.is_relaying;
                self.successor = None;
                if is_relaying {
                    Step::Abandoned
                } else {
                    Step::TakeBack
                }
            }
            (Err(ReceiveError::Ended), _) => self.on_end(),
            (Err(error), _) => self.give_up(&error.to_string()),
        }
    }

    /// Tells the successor that this process answers no SYN any more. Its time for the switch begins.
    pub(crate) fn give(&mut self, now: Instant) {
        let switch_time = self.switch_time();
        if let Some(successor) = &mut self.successor {
            successor.phase = Phase::Switching;
            successor.deadline = now + switch_time;
            // Its end is told by the socket.
            let _ = successor.control.send(&Message::Given, &[]);
        }
    }

    /// Gives up a successor, which is killed.
    pub(crate) fn give_up(&mut self, problem: &str) -> Step {
        self.launcher.kill();
        let status = self.status();
        if let Some(successor) = &mut self.successor
            && status.is_none()
            && !matches!(successor.phase, Phase::Starting)
        {
            // The launcher does not answer, so the end of the socket tells.
            if matches!(successor.phase, Phase::Switching) {
                successor.phase = Phase::Ending(problem.into());
            }
            let pid = successor.pid.unwrap_or_default();
            return Step::Unended(format!(
                "{problem}; process {pid} was killed, and has not ended"
            ));
        }
        self.failed(problem, status)
    }

    /// Its socket is closed: it has ended. A server has the socket as its standard input until the kernel closes that, which
    /// is when none of its threads runs any more.
    fn on_end(&mut self) -> Step {
        let status = self.status().or_else(|| {
            self.launcher.kill();
            self.status()
        });
        self.failed("it ended", status)
    }

    fn failed(&mut self, problem: &str, status: Option<String>) -> Step {
        let said = self.successor.take().and_then(|it| it.failure);
        let status = status.map_or_else(String::new, |it| format!(" ({it})"));
        let said = said.map_or_else(String::new, |it| format!(": {it}"));
        Step::Failed(format!("{problem}{status}{said}"))
    }

    /// How it ended, if that is told in time.
    fn status(&mut self) -> Option<String> {
        loop {
            match self.launcher.news(NEWS_TIME_MAX_MS)? {
                News::Started(pid) => {
                    if let Some(successor) = &mut self.successor {
                        successor.pid = Some(pid);
                    }
                }
                News::Failed(errno) => {
                    let error = std::io::Error::from_raw_os_error(errno);
                    return Some(format!("it cannot be started: {error}"));
                }
                News::Ended(ended) => return Some(ended.to_string()),
            }
        }
    }
}
