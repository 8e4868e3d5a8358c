//! The threads that wait for the disk so that the worker need not.
//!
//! Questions and answers go through two bounded channels; an `eventfd` wakes the worker. Nothing
//! here blocks the worker: no more look-ups are under way than either channel holds. Threads end
//! when the worker drops its ends; they are not waited for, since one may be stuck in a disk.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::Answer;
use crate::directory::Root;
use crate::system;

/// Most questions a thread takes at once. Threads share the worker's core more often than not, and
/// a wake-up of thread and worker for each path costs more than opening it. Four paths one after
/// the other on a cold disk still take below a millisecond.
const QUESTIONS_TAKEN_MAX: usize = 4;

struct Question {
    token: u64,
    name: String,
}

#[derive(Debug)]
pub(crate) struct Threads {
    questions: SyncSender<Question>,
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
        let (questions, questions_out) = sync_channel(pending_max);
        let (answers_in, answers) = sync_channel(pending_max);
        let questions_out = Arc::new(Mutex::new(questions_out));
        let signal = Arc::new(File::from(system::event_counter()?));
        for index in 0..count {
            let thread = Thread {
                root: Arc::clone(root),
                questions: Arc::clone(&questions_out),
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

    /// Whether the question was taken: no, if too many are under way.
    pub(crate) fn submit(&mut self, token: u64, name: &str) -> bool {
        if self.pending_count == self.pending_max {
            return false;
        }
        let question = Question {
            token,
            name: name.to_owned(),
        };
        let sent = self.questions.try_send(question);
        assert!(
            sent.is_ok(),
            "the channel holds every question under way, and a thread lives"
        );
        self.pending_count += 1;
        true
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

struct Thread {
    root: Arc<Root>,
    questions: Arc<Mutex<Receiver<Question>>>,
    answers: SyncSender<Answer>,
    signal: Arc<File>,
}

impl Thread {
    fn run(self) {
        let mut scratch = Vec::new();
        let mut questions = Vec::with_capacity(QUESTIONS_TAKEN_MAX);
        while self.take_questions(&mut questions) {
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

    /// Waits its turn, then for a question, and takes a few more that are there already; `false`
    /// once nobody can ask any more.
    fn take_questions(&self, questions: &mut Vec<Question>) -> bool {
        let source = self
            .questions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Ok(first) = source.recv() else {
            return false;
        };
        questions.push(first);
        questions.extend(source.try_iter().take(QUESTIONS_TAKEN_MAX - 1));
        true
    }
}
