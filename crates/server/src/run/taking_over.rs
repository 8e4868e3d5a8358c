//! What the main thread has to do with other processes: the one it took over from, the one that takes over from it,
//! and those who ask for that.
//!
//! It refuses to change anything of the workers until the other process is ready. Bounds: those of
//! [`crate::take_over`]; workers have [`ANSWER_TIME_MAX`] for each step.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use rustix::process::Uid;
use tracing::{error, info, warn};

use crate::failure::Failure;
use crate::run::mailbox::Command;
use crate::run::notify;
use crate::run::supervisor::Supervisor;
use crate::take_over::Message;
use crate::take_over::predecessor::Predecessor;
use crate::take_over::request::{Asker, Requests};
use crate::take_over::successor::{Ends, Step, Succession};

/// How long a worker may take for what it is told: some rounds.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);
/// How often a process that finishes what it has looks whether that is done.
const LEAVING_CHECK_EVERY: Duration = Duration::from_millis(250);

/// See the module.
#[derive(Debug)]
pub(crate) struct TakeOver {
    /// Or why no process can take over.
    pub(super) succession: Result<Succession, String>,
    /// `None`: there was none, or it has ended.
    pub(super) predecessor: Option<Predecessor>,
    /// `None`: nobody is answered here.
    requests: Option<Requests>,
    starter: Uid,
    /// Who wait for the outcome of a reload.
    askers: Vec<Asker>,
    /// When what is left is reset, once another process has the link.
    deadline: Option<Instant>,
}

impl TakeOver {
    pub(crate) const fn new(
        succession: Result<Succession, String>,
        predecessor: Option<Predecessor>,
        starter: Uid,
    ) -> Self {
        Self {
            succession,
            predecessor,
            requests: None,
            starter,
            askers: Vec::new(),
            deadline: None,
        }
    }

    /// Whether another process has the link.
    pub(super) fn is_done(&self) -> bool {
        self.succession.as_ref().is_ok_and(Succession::is_done)
    }

    /// Lets those who may ask for a reload.
    pub(super) fn listen(&mut self) {
        match Requests::listen(self.starter) {
            Ok(requests) => self.requests = Some(requests),
            Err(error) => warn!("atlas reload finds no server: {error}"),
        }
    }

    /// What to wait for, at most three.
    pub(super) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let successor = self.succession.as_ref().ok().and_then(Succession::wake_fd);
        let predecessor = self.predecessor.as_ref().map(Predecessor::wake_fd);
        let requests = self.requests.as_ref().map(Requests::wake_fd);
        [successor, predecessor, requests].into_iter().flatten()
    }

    /// When to look even if nothing comes.
    pub(super) fn wake_at(&self, now: Instant) -> Option<Instant> {
        let starting = self.succession.as_ref().ok().and_then(Succession::deadline);
        let leaving = self.is_done().then_some(now + LEAVING_CHECK_EVERY);
        starting.into_iter().chain(leaving).min()
    }

    /// Tells the predecessor something, if there is one.
    pub(super) fn tell_predecessor(&self, message: &Message) {
        if let Some(predecessor) = &self.predecessor {
            // Its end is told by its socket.
            let _ = predecessor.tell(message);
        }
    }

    /// Tells the predecessor, if there is one, that no other process has the link any more.
    fn tell_return(&self) {
        if let Some(predecessor) = &self.predecessor {
            predecessor.tell_return();
        }
    }

    /// Tells those who wait how it went.
    pub(super) fn tell_askers(&mut self, outcome: Result<&str, &str>) {
        Asker::tell(&mut self.askers, outcome);
    }
}

impl Supervisor {
    /// Takes over from the predecessor, if there is one: from now on frames reach our workers.
    pub(super) fn switch(&mut self) -> Result<(), Failure> {
        let Some(predecessor) = &self.take_over.predecessor else {
            return Ok(());
        };
        let (to, from) = predecessor.switch()?;
        let mut from = Some(from);
        (self.workers).command(|| Command::SetPredecessor(Arc::clone(&to), from.take()));
        self.set_receiving(true)
            .map_err(|error| Failure::Broken(format!("taking over: receiving: {error}")))?;
        self.take_over.tell_predecessor(&Message::Taken);
        info!("took over: another process finishes the replies in progress");
        Ok(())
    }

    fn set_receiving(&self, is_receiving: bool) -> io::Result<()> {
        self.ask_workers(|reply| Command::SetReceiving(is_receiving, reply))
    }

    /// Has all workers do something, and waits until they have.
    fn ask_workers(
        &self,
        mut make: impl FnMut(std::sync::mpsc::SyncSender<io::Result<()>>) -> Command,
    ) -> io::Result<()> {
        let mut answers = Vec::new();
        self.workers.command(|| {
            let (reply, answer) = sync_channel(1);
            answers.push(answer);
            make(reply)
        });
        let deadline = Instant::now() + ANSWER_TIME_MAX;
        answers.into_iter().try_for_each(|answer| {
            let left = deadline.saturating_duration_since(Instant::now());
            let late = |_| io::Error::other("a worker does not answer");
            answer.recv_timeout(left).map_err(late)?
        })
    }

    /// Looks at what came from other processes.
    pub(super) fn look_at_processes(&mut self, now: Instant) {
        self.follow_successor(now);
        let predecessor = &self.take_over.predecessor;
        if predecessor.as_ref().is_some_and(Predecessor::has_ended) {
            self.take_over.predecessor = None;
            self.workers.command(|| Command::ForgetPredecessor);
            info!("the process that was taken over from has ended");
        }
        let asked = self.take_over.requests.as_ref().and_then(Requests::accept);
        if let Some((asker, is_take_over)) = asked {
            self.reload(now, Some(asker), is_take_over);
        }
        self.leave_in_time(now);
    }

    fn follow_successor(&mut self, now: Instant) {
        while let Ok(succession) = &mut self.take_over.succession {
            let step = succession.step(now);
            if matches!(step, Step::Wait) {
                return;
            }
            self.take_step(now, step);
        }
    }

    fn take_step(&mut self, now: Instant, step: Step) {
        match step {
            Step::Wait => {}
            Step::Give(ends) => self.hand_over(now, ends),
            Step::Taken(pid) => self.on_taken(now, pid),
            Step::Failed(text) => self.on_failure(&text),
            Step::Unended(text) => {
                error!("take-over: {text}: it may use the link until then, so end it");
                self.take_over.tell_askers(Err(&text));
            }
            Step::TakeBack => self.on_end_of_successor(),
            Step::Abandoned => {
                warn!("the process that passed packets on has ended: resetting connections");
                self.abort();
            }
            Step::Reopen => {
                self.monitoring.reopen();
                self.take_over.tell_predecessor(&Message::Reopen);
            }
            Step::End(milliseconds) => {
                self.grace = Duration::from_millis(milliseconds);
                self.leaves_at = Some(now);
            }
        }
    }

    /// Lets go of the link, and says so.
    fn hand_over(&mut self, now: Instant, ends: Ends) {
        let Ok(succession) = &self.take_over.succession else {
            return;
        };
        let given = self.give(ends, succession.is_received_by_one());
        if given.is_ok() {
            // First, so that nobody takes the link back if this process ends once the other has it.
            self.take_over.tell_predecessor(&Message::Relaying);
        }
        let Ok(succession) = &mut self.take_over.succession else {
            return;
        };
        match given {
            // What the workers took counts for nobody.
            Ok(()) => succession.give(Instant::now()),
            Err(error) => {
                let step = succession.give_up(&error.to_string());
                self.take_step(now, step);
            }
        }
    }

    fn on_failure(&mut self, text: &str) {
        let is_leaving = self.leaves_at.is_some();
        let text = match self.take_back() {
            Err(error) => {
                format!("{text}; this process did not get the link back: {error}; restart it")
            }
            Ok(()) if is_leaving => format!("{text}; this process finishes its replies"),
            Ok(()) => format!("{text}; this process serves on, and nothing has changed"),
        };
        if is_leaving {
            warn!("take-over: {text}");
        } else {
            error!("take-over: {text}");
        }
        self.take_over.tell_askers(Err(&text));
    }

    fn on_end_of_successor(&mut self) {
        if self.aborted_at.is_some() {
            return;
        }
        self.take_over.deadline = None;
        let taken = self.take_back();
        let is_leaving = self.leaves_at.is_some();
        if !is_leaving {
            self.monitoring.set_answering(true);
            self.take_over.listen();
        }
        match taken {
            Err(error) => error!(
                "the process that took over has ended, and this one did not get the link back: {error}; restart it"
            ),
            Ok(()) if is_leaving => info!("the process that took over has ended first"),
            Ok(()) => error!("the process that took over has ended: this one serves on"),
        }
    }

    /// This process has the link as before: workers that had stopped begin again.
    fn take_back(&self) -> io::Result<()> {
        // First: should this process end now, its predecessor can take the link back.
        self.take_over.tell_return();
        let forgotten = self.ask_workers(|reply| Command::SetSuccessor(None, reply));
        let receiving = self.set_receiving(true);
        forgotten.and(receiving)
    }

    /// Ends a process that has not taken over yet: this one ends.
    pub(super) fn cancel_take_over(&mut self, now: Instant) {
        if let Ok(succession) = &mut self.take_over.succession
            && succession.is_under_way()
            && !succession.is_done()
        {
            let step = succession.give_up("this process was told to end");
            self.take_step(now, step);
        }
    }

    /// Has the workers answer no SYN any more and, if only one process can, receive no more.
    fn give(&self, ends: Ends, is_received_by_one: bool) -> io::Result<()> {
        let Ends { from, to } = ends;
        let mut from = from.into_iter();
        self.ask_workers(|reply| {
            let from = from.next().expect("invariant: one for each worker");
            Command::SetSuccessor(Some((from, Arc::clone(&to))), reply)
        })?;
        if is_received_by_one {
            self.set_receiving(false)?;
        }
        Ok(())
    }

    fn on_taken(&mut self, now: Instant, pid: Option<u32>) {
        if let Err(error) = self.set_receiving(false) {
            // Both receive: what is ours twice means nothing more than once.
            warn!("take-over: {error}");
        }
        self.monitoring.set_answering(false);
        self.take_over.requests = None;
        self.take_over.deadline = Some(now + self.take_over_time);
        let connections = self.workers.connections();
        let pid = pid.unwrap_or_default();
        if pid > 0 {
            notify::tell_main_process(pid);
        }
        info!(
            connections,
            deadline_seconds = self.take_over_time.as_secs(),
            "process {pid} has taken over: finishing, then ending"
        );
        let text = format!("process {pid} has taken over");
        self.take_over.tell_askers(Ok(&text));
    }

    /// Ends once nothing is left, or the time is over.
    fn leave_in_time(&mut self, now: Instant) {
        if !self.take_over.is_done() || self.aborted_at.is_some() {
            return;
        }
        let connections = self.workers.connections();
        if connections == 0 && self.take_over.predecessor.is_none() {
            self.abort();
        } else if self
            .take_over
            .deadline
            .is_some_and(|deadline| now >= deadline)
        {
            warn!(
                connections,
                "take_over_deadline_seconds is over: resetting them"
            );
            self.abort();
        }
    }

    /// Has the settings used as they are now: in place, or by another process. `is_take_over`: by that in any case.
    /// The asker is told the outcome.
    pub(super) fn reload(&mut self, now: Instant, asker: Option<Asker>, is_take_over: bool) {
        let is_under_way = (self.take_over.succession.as_ref()).is_ok_and(Succession::is_under_way);
        if is_under_way || self.leaves_at.is_some() {
            let why = "another process takes over, or this one ends: nothing has changed";
            warn!("reload: {why}");
            Asker::tell(&mut asker.into_iter().collect(), Err(why));
            return;
        }
        if let Some(asker) = asker {
            asker.keep(&mut self.take_over.askers);
        }
        match &self.take_over.succession {
            // What the other version makes of the settings, it says itself.
            Ok(succession) if is_take_over || succession.has_other_program() => {
                self.begin_take_over(now);
            }
            Err(why) if is_take_over => {
                let why = why.clone();
                self.take_over.tell_askers(Err(&why));
            }
            _ => {
                self.loader.request();
                self.workers.command(|| Command::ReopenDirectory);
            }
        }
    }

    pub(super) fn begin_take_over(&mut self, now: Instant) {
        let Ok(succession) = &mut self.take_over.succession else {
            return;
        };
        match succession.begin(now) {
            Ok(()) => info!("another process starts, to take over"),
            Err(text) => {
                error!("take-over: {text}; nothing has changed");
                self.take_over.tell_askers(Err(&text));
            }
        }
    }
}
