//! The threads that wait for the disk so that the worker need not.
//!
//! Questions wait in a bounded queue, answers in a bounded channel; an `eventfd` wakes the worker,
//! which itself never waits but for the queue's lock, held for the moment of a push or a take.
//! Threads end when the worker drops its side; they are not waited for, since one may be stuck in a
//! disk.
//!
//! Threads often share the worker's core, and there switching to one and back costs more than
//! opening a file. So one is woken only if none is on its way to the queue already, it takes what
//! has gathered there, and it does not preempt the worker (`SCHED_BATCH`, sched(7)). One that is
//! stuck is on its way to nowhere, and another is woken for what comes next.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::Answer;
use crate::directory::Root;
use crate::system;

/// Most questions a thread takes at once. Four paths one after the other on a cold disk still take
/// below a millisecond.
const QUESTIONS_TAKEN_MAX: usize = 4;

#[derive(Debug)]
struct Question {
    token: u64,
    name: String,
}

/// Where threads get their questions.
#[derive(Debug)]
struct Queue {
    state: Mutex<QueueState>,
    has_news: Condvar,
}

#[derive(Debug)]
struct QueueState {
    questions: VecDeque<Question>,
    /// Threads asleep for want of questions.
    asleep: usize,
    /// Of them, those that were woken and have not yet looked.
    coming: usize,
    /// Nobody will ask any more.
    is_closed: bool,
}

impl Queue {
    fn new(capacity: usize) -> Self {
        Self {
            state: Mutex::new(QueueState {
                questions: VecDeque::with_capacity(capacity),
                asleep: 0,
                coming: 0,
                is_closed: false,
            }),
            has_news: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, question: Question) {
        let mut state = self.lock();
        state.questions.push_back(question);
        state.wake_if_due(&self.has_news);
    }

    /// Waits for questions and takes some; `false` once nobody can ask any more.
    fn take(&self, taken: &mut Vec<Question>) -> bool {
        let mut state = self.lock();
        while state.questions.is_empty() {
            if state.is_closed {
                return false;
            }
            state.asleep += 1;
            state = self
                .has_news
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.asleep -= 1;
            state.coming = state.coming.saturating_sub(1);
        }
        let count = state.questions.len().min(QUESTIONS_TAKEN_MAX);
        taken.extend(state.questions.drain(..count));
        state.wake_if_due(&self.has_news);
        true
    }

    fn close(&self) {
        self.lock().is_closed = true;
        self.has_news.notify_all();
    }
}

impl QueueState {
    /// Wakes a thread if questions wait, one sleeps, and none is coming.
    fn wake_if_due(&mut self, has_news: &Condvar) {
        if !self.questions.is_empty() && self.coming == 0 && self.asleep > 0 {
            self.coming = 1;
            has_news.notify_one();
        }
    }
}

#[derive(Debug)]
pub(crate) struct Threads {
    questions: Arc<Queue>,
    answers: Receiver<Answer>,
    /// Counts one for each answer, written after it and those taken with it were sent.
    signal: Arc<File>,
    /// Answers received less signals read. Above zero, a signal is there or about to be; below,
    /// an answer is there.
    signals_due: i64,
    pending_count: usize,
    pending_max: usize,
}

impl Threads {
    pub(crate) fn start(root: &Arc<Root>, count: usize, pending_max: usize) -> io::Result<Self> {
        assert!(
            count > 0 && pending_max > 0,
            "{count} threads for {pending_max} look-ups"
        );
        let questions = Arc::new(Queue::new(pending_max));
        let (answers_in, answers) = sync_channel(pending_max);
        let signal = Arc::new(File::from(system::event_counter()?));
        for index in 0..count {
            let thread = Thread {
                root: Arc::clone(root),
                questions: Arc::clone(&questions),
                answers: answers_in.clone(),
                signal: Arc::clone(&signal),
            };
            let name = format!("atlas-lookup-{index}");
            thread::Builder::new()
                .name(name)
                .spawn(move || thread.run())?;
        }
        Ok(Self {
            questions,
            answers,
            signal,
            signals_due: 0,
            pending_count: 0,
            pending_max,
        })
    }

    /// Whether another question may be submitted.
    pub(crate) fn has_room(&self) -> bool {
        self.pending_count < self.pending_max
    }

    pub(crate) fn submit(&mut self, token: u64, name: &str) {
        assert!(self.has_room(), "more than {} questions", self.pending_max);
        let name = name.to_owned();
        self.questions.push(Question { token, name });
        self.pending_count += 1;
    }

    /// The next answer. Makes no system call unless an answer was received since the last `None`.
    pub(crate) fn poll_answer(&mut self) -> Option<Answer> {
        loop {
            if let Ok(answer) = self.answers.try_recv() {
                self.signals_due += 1;
                self.pending_count -= 1;
                return Some(answer);
            }
            if self.signals_due <= 0 {
                return None;
            }
            // Empty the counter, or the worker would be woken for what it has already seen. An
            // answer sent in between may lose its signal here: then fewer are due than none, and
            // the answer, sent before its signal, is found by another look.
            self.signals_due -= self.read_signals();
            if self.signals_due >= 0 {
                return None;
            }
        }
    }

    pub(crate) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }

    #[cfg(test)]
    pub(crate) fn signals_due(&self) -> i64 {
        self.signals_due
    }

    fn read_signals(&self) -> i64 {
        let mut count = [0; 8];
        match (&*self.signal).read(&mut count) {
            Ok(8) => i64::from_ne_bytes(count),
            // Not signalled yet: the thread is between sending and signalling.
            _ => 0,
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.questions.close();
    }
}

struct Thread {
    root: Arc<Root>,
    questions: Arc<Queue>,
    answers: SyncSender<Answer>,
    signal: Arc<File>,
}

impl Thread {
    fn run(self) {
        system::give_way();
        let mut scratch = Vec::new();
        let mut questions = Vec::with_capacity(QUESTIONS_TAKEN_MAX);
        while self.questions.take(&mut questions) {
            let mut answered: u64 = 0;
            for Question { token, name } in questions.drain(..) {
                let result = self.root.open_object_waiting(&mut scratch, &name);
                let answer = Answer {
                    token,
                    name,
                    result,
                };
                if self.answers.send(answer).is_err() {
                    return;
                }
                answered += 1;
            }
            // It fails only when the counter is full, and then it is readable anyway.
            let _ = (&*self.signal).write(&answered.to_ne_bytes());
        }
    }
}
