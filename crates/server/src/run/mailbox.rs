//! Messages to a worker: from the supervisor, from those who ask about connections, and segments that
//! reached another worker than has their connection.
//!
//! A worker that has no mail pays for one load of a flag in each round. It refuses to make a worker
//! wait, and whoever sends. Bounds: [`QUESTIONS_MAX`] questions and [`STRAYS_MAX`] strays wait; of
//! commands there are as few as signals and reloads.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use session::Stray;
use sites::Sites;

use crate::observe::connections;
use crate::observe::report::Pair;
use crate::observe::trace::PeerTrace;
use crate::take_over::packets::ToPredecessor;
use worker::FrameWatch;
use worker::requests::{Counted, Missed};
use worker::tls::Loaded;

/// Questions that wait at most: one of each thread that asks, of which there are as many.
pub(crate) const QUESTIONS_MAX: usize = 4;

/// Segments of other workers that wait at most, each of 64 KB at most: some rounds' worth. Beyond that they
/// are lost, as in a router that is too busy.
pub(crate) const STRAYS_MAX: usize = 1024;

/// What those who ask want to know of a worker.
#[derive(Debug)]
pub(crate) enum Question {
    /// A page of its connections.
    Connections(connections::Question),
    /// Names that were asked for and are not there: they are told once.
    Missed(SyncSender<Vec<Missed>>),
    /// How often objects are asked for, from this one on, and from where on there are more.
    Counted(usize, SyncSender<(Vec<Counted>, Option<usize>)>),
}

/// What the supervisor has a worker do.
#[derive(Debug)]
pub(crate) enum Command {
    /// Use these certificates for handshakes that begin from now on.
    SetTls(Loaded),
    /// Answer requests that begin from now on by these.
    SetSites(Arc<Sites>),
    /// Open the served directory again, which may have been replaced.
    ReopenDirectory,
    /// Refuse new connections and requests, and say when no connection is left.
    ShutDown,
    /// Reset every connection there is, and end.
    Abort,
    /// Show frames to this, or to nobody.
    WatchFrames(Option<Box<dyn FrameWatch>>),
    /// Trace connections, those that are there included, or none.
    Trace(Option<Box<PeerTrace>>),
    /// Send all counters here.
    Report(SyncSender<Vec<Pair>>),
    /// Another process takes over: packets cross by these, from it and to it. `None`: it is gone.
    SetSuccessor(Option<(OwnedFd, Arc<OwnedFd>)>, SyncSender<io::Result<()>>),
    /// This process takes over: packets cross by these, to the other and, for one worker, from it.
    SetPredecessor(ToPredecessor, Option<OwnedFd>),
    /// That one has ended.
    ForgetPredecessor,
    /// Whether frames reach the link from now on.
    SetReceiving(bool, SyncSender<io::Result<()>>),
}

/// Ends the sleep of a thread that has the other end.
#[derive(Clone, Debug)]
pub(crate) struct Waker {
    socket: Arc<UnixStream>,
}

/// Readable after a [`Waker::wake`], until [`Sleeper::drain`].
#[derive(Debug)]
pub(crate) struct Sleeper {
    socket: UnixStream,
}

/// The two ends of a socket pair.
///
/// # Errors
/// The kernel's: no descriptors.
pub(crate) fn wake_up() -> io::Result<(Waker, Sleeper)> {
    let (sleeper, waker) = UnixStream::pair()?;
    sleeper.set_nonblocking(true)?;
    waker.set_nonblocking(true)?;
    let waker = Waker {
        socket: Arc::new(waker),
    };
    Ok((waker, Sleeper { socket: sleeper }))
}

impl Waker {
    /// Ends the other end's sleep, or keeps it from the next one.
    pub(crate) fn wake(&self) {
        // A full pipe wakes as well, and a worker that is gone needs no waking.
        let _ = (&*self.socket).write(&[0]);
    }
}

impl Sleeper {
    /// What to wait for.
    #[must_use]
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Forgets what ended the sleep. Called after a sleep and before the mail is read: what comes in
    /// between is read, or ends the next sleep.
    pub(crate) fn drain(&self) {
        let mut bytes = [0_u8; 64];
        while matches!((&self.socket).read(&mut bytes), Ok(count) if count == bytes.len()) {}
    }
}

/// For those who send to one worker. Its clones share the worker's queues.
#[derive(Clone, Debug)]
pub(crate) struct MailSender {
    commands: Sender<Command>,
    questions: SyncSender<Question>,
    strays: SyncSender<Stray>,
    has_mail: Arc<AtomicBool>,
    waker: Waker,
}

/// The worker's end.
#[derive(Debug)]
pub(crate) struct Mailbox {
    commands: Receiver<Command>,
    questions: Receiver<Question>,
    strays: Receiver<Stray>,
    /// Something was sent since it was last cleared.
    has_mail: Arc<AtomicBool>,
    sleeper: Sleeper,
}

/// A worker's mailbox.
///
/// # Errors
/// The kernel's: no descriptors.
pub(crate) fn mailbox() -> io::Result<(MailSender, Mailbox)> {
    let (waker, sleeper) = wake_up()?;
    let (command_sender, commands) = channel();
    let (question_sender, questions) = sync_channel(QUESTIONS_MAX);
    let (stray_sender, strays) = sync_channel(STRAYS_MAX);
    let has_mail = Arc::new(AtomicBool::new(false));
    let sender = MailSender {
        commands: command_sender,
        questions: question_sender,
        strays: stray_sender,
        has_mail: Arc::clone(&has_mail),
        waker,
    };
    let mailbox = Mailbox {
        commands,
        questions,
        strays,
        has_mail,
        sleeper,
    };
    Ok((sender, mailbox))
}

impl MailSender {
    /// Sends a command. A worker that has ended takes none.
    pub(crate) fn command(&self, command: Command) {
        if self.commands.send(command).is_ok() {
            self.announce();
        }
    }

    /// Asks; `false`: too many questions wait, or the worker has ended.
    #[must_use]
    pub(crate) fn ask(&self, question: Question) -> bool {
        let is_sent = self.questions.try_send(question).is_ok();
        if is_sent {
            self.announce();
        }
        is_sent
    }

    /// Passes a stray on without ending the worker's sleep: [`MailSender::announce`] does, once for all
    /// that were passed. `false`: it is lost, because too many wait, or the worker has ended.
    #[must_use]
    pub(crate) fn pass(&self, stray: Stray) -> bool {
        self.strays.try_send(stray).is_ok()
    }

    /// Ends the worker's sleep, and has it look for mail. Comes behind what was sent, so that whoever sees the flag finds it.
    pub(crate) fn announce(&self) {
        self.has_mail.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl Mailbox {
    /// Whether something may have come since this was last called.
    #[must_use]
    pub(crate) fn take_has_mail(&self) -> bool {
        // Looked at in every round, so the common case must not write to it.
        self.has_mail.load(Ordering::Relaxed) && self.has_mail.swap(false, Ordering::Acquire)
    }

    /// The next command.
    #[must_use]
    pub(crate) fn poll_command(&self) -> Option<Command> {
        self.commands.try_recv().ok()
    }

    /// The next question.
    #[must_use]
    pub(crate) fn poll_question(&self) -> Option<Question> {
        self.questions.try_recv().ok()
    }

    /// The next stray.
    #[must_use]
    pub(crate) fn poll_stray(&self) -> Option<Stray> {
        self.strays.try_recv().ok()
    }

    /// What ends the worker's sleep.
    #[must_use]
    pub(crate) const fn sleeper(&self) -> &Sleeper {
        &self.sleeper
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Command, Mailbox, QUESTIONS_MAX, STRAYS_MAX, mailbox};
    use crate::observe::connections::tests::question;
    use crate::run::wait::{Source, wait};

    fn is_awake(mailbox: &Mailbox) -> bool {
        let source = Source::readable(mailbox.sleeper().fd());
        wait(&[source], Some(Duration::ZERO)).unwrap().is_any()
    }

    #[test]
    fn a_command_ends_the_sleep_and_is_taken_once() {
        let (sender, mailbox) = mailbox().unwrap();
        assert!(!is_awake(&mailbox) && !mailbox.take_has_mail());
        sender.command(Command::Abort);
        sender.clone().command(Command::ShutDown);
        assert!(is_awake(&mailbox));
        mailbox.sleeper().drain();
        assert!(!is_awake(&mailbox) && mailbox.take_has_mail());
        assert!(matches!(mailbox.poll_command(), Some(Command::Abort)));
        assert!(matches!(mailbox.poll_command(), Some(Command::ShutDown)));
        assert!(mailbox.poll_command().is_none() && !mailbox.take_has_mail());
    }

    #[test]
    fn a_question_too_many_is_refused_and_the_worker_ends_without_its_senders() {
        let (sender, mailbox) = mailbox().unwrap();
        for _ in 0..QUESTIONS_MAX {
            assert!(sender.ask(question()));
        }
        assert!(!sender.ask(question()));
        assert!(mailbox.take_has_mail() && mailbox.poll_question().is_some());
        assert!(sender.ask(question()));
        drop(mailbox);
        assert!(!sender.ask(question()));
        sender.command(Command::Abort);
    }

    #[test]
    fn a_stray_that_finds_no_room_in_the_mailbox_is_lost() {
        let stray = worker::testing::stray();
        let (sender, mailbox) = mailbox().unwrap();
        for _ in 0..STRAYS_MAX {
            assert!(sender.pass(stray.clone()));
        }
        assert!(!sender.pass(stray.clone()));
        // Whoever passed them announces them, once.
        assert!(!mailbox.take_has_mail());
        sender.announce();
        assert!(mailbox.take_has_mail() && mailbox.poll_stray().is_some());
        assert!(sender.pass(stray.clone()) && !sender.pass(stray.clone()));
        drop(mailbox);
        assert!(!sender.pass(stray), "the worker has ended");
    }
}
