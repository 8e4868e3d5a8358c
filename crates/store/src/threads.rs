//! The threads that wait for disks and other machines so that the worker need not: they resolve
//! paths, and close what was open.
//!
//! Jobs wait in bounded queues, answers in a bounded channel; an `eventfd` wakes the worker, which
//! itself never waits but for the queues' lock, held for the moment of a push or a take. Threads
//! end when the worker drops its side; they are not waited for, since one may be stuck in a disk.
//!
//! Each [`Lane`] has queues of its own, and at most its share of the threads at a time: a mount
//! that never answers keeps that share and no more. Within a lane, one thread at most closes files,
//! since the last close of a large deleted file takes as long as freeing its space.
//!
//! Threads often share the worker's core, and there switching to one and back costs more than
//! opening a file. So one is woken only if none is on its way to the queues already, it takes what
//! has gathered there, and it does not preempt the worker (`SCHED_BATCH`, sched(7)). One that is
//! stuck is on its way to nowhere, and another is woken for what comes next. Of those asleep it is
//! the one that slept last, whose stacks are still in the cache: sixteen threads in turn would put
//! out the worker's data instead.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::lookups::lane_share;
use crate::root::{CurrentRoot, Miss, Root, Way};
use crate::{Lane, Opened, StoreError, system};

/// Most look-ups a thread takes at once. Four paths one after the other on a cold disk still take
/// below a millisecond.
const QUESTIONS_TAKEN_MAX: usize = 4;
/// Most descriptors a thread takes at once: nobody waits for them, and each batch wakes the worker.
const CLOSES_TAKEN_MAX: usize = 16;

/// A path to be resolved.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) way: Way,
    pub(crate) root: Arc<Root>,
}

/// What a thread has to say.
#[derive(Debug)]
pub(crate) enum Reply {
    /// To a [`Question`].
    LookUp {
        id: u64,
        name: String,
        result: Result<Opened, Miss>,
    },
    /// So many descriptors of a lane are closed.
    Closed(Lane, usize),
    /// The served directory was opened again, or could not be.
    Root(Result<(), StoreError>),
}

/// Where threads get their jobs.
#[derive(Debug)]
struct Queues {
    state: Mutex<QueueState>,
    /// Threads one lane may keep.
    lane_threads_max: usize,
}

#[derive(Debug)]
struct QueueState {
    /// Lanes with jobs or threads, in the order of their turns.
    lanes: VecDeque<LaneQueue>,
    /// The directory is to be opened again.
    wants_root: bool,
    /// Threads asleep for want of jobs. Whoever wakes one takes it off the end.
    asleep: Vec<thread::Thread>,
    /// One was woken and has not yet looked.
    is_waking: bool,
    /// Nobody will ask any more.
    is_closed: bool,
}

#[derive(Debug)]
struct LaneQueue {
    lane: Lane,
    questions: VecDeque<Question>,
    closes: VecDeque<OwnedFd>,
    /// Threads at work for it.
    threads: usize,
    /// One of them closes files.
    is_closing: bool,
}

/// What a thread takes at once.
#[derive(Debug)]
enum Batch {
    LookUps(Lane),
    Closes(Lane, Vec<OwnedFd>),
    Root,
}

impl Queues {
    fn new(lane_threads_max: usize) -> Self {
        Self {
            state: Mutex::new(QueueState {
                lanes: VecDeque::new(),
                wants_root: false,
                asleep: Vec::new(),
                is_waking: false,
                is_closed: false,
            }),
            lane_threads_max,
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the threads something to do.
    fn add(&self, add: impl FnOnce(&mut QueueState)) {
        let mut state = self.lock();
        add(&mut state);
        self.wake_if_due(&mut state);
    }

    /// Waits for jobs and takes some; `None` once nobody can ask any more.
    fn take(&self, questions: &mut Vec<Question>) -> Option<Batch> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(batch) = state.take(questions, self.lane_threads_max) {
                self.wake_if_due(&mut state);
                return Some(batch);
            }
            state.asleep.push(thread::current());
            let me = thread::current().id();
            while state.asleep.iter().any(|thread| thread.id() == me) {
                drop(state);
                // Returns at once if it was woken in between, and may return for no reason.
                thread::park();
                state = self.lock();
            }
            state.is_waking = false;
        }
    }

    /// A thread is done with what it took.
    fn finish(&self, lane: Lane, was_closing: bool) {
        let mut state = self.lock();
        let found = state.lanes.iter_mut().find(|queue| queue.lane == lane);
        let queue = found.expect("invariant: a lane stays as long as a thread works for it");
        queue.threads -= 1;
        queue.is_closing &= !was_closing;
        state.lanes.retain(|queue| !queue.is_idle());
    }

    /// Takes a question back that no thread has taken yet.
    fn withdraw(&self, lane: Lane, id: u64) -> bool {
        let mut state = self.lock();
        let Some(queue) = state.lanes.iter_mut().find(|queue| queue.lane == lane) else {
            return false;
        };
        let place = queue.questions.iter().position(|known| known.id == id);
        let found = place.and_then(|place| queue.questions.remove(place));
        state.lanes.retain(|queue| !queue.is_idle());
        found.is_some()
    }

    fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.asleep.drain(..).for_each(|thread| thread.unpark());
    }

    /// Wakes a thread if there is a job for one, one sleeps, and none is on its way.
    fn wake_if_due(&self, state: &mut QueueState) {
        if state.is_waking || !state.has_job(self.lane_threads_max) {
            return;
        }
        if let Some(thread) = state.asleep.pop() {
            state.is_waking = true;
            thread.unpark();
        }
    }
}

impl QueueState {
    fn lane(&mut self, lane: Lane) -> &mut LaneQueue {
        let known = self.lanes.iter().position(|queue| queue.lane == lane);
        let place = known.unwrap_or_else(|| {
            self.lanes.push_back(LaneQueue {
                lane,
                questions: VecDeque::new(),
                closes: VecDeque::new(),
                threads: 0,
                is_closing: false,
            });
            self.lanes.len() - 1
        });
        &mut self.lanes[place]
    }

    fn has_job(&self, lane_threads_max: usize) -> bool {
        self.wants_root
            || self
                .lanes
                .iter()
                .any(|queue| queue.has_job(lane_threads_max))
    }

    /// Lanes take turns; within one, look-ups come before files to be closed.
    fn take(&mut self, questions: &mut Vec<Question>, lane_threads_max: usize) -> Option<Batch> {
        if self.wants_root {
            self.wants_root = false;
            // Its path may lead anywhere.
            self.lane(Lane::ELSEWHERE).threads += 1;
            return Some(Batch::Root);
        }
        let has_job = |queue: &LaneQueue| queue.has_job(lane_threads_max);
        let place = self.lanes.iter().position(has_job)?;
        let mut queue = self.lanes.remove(place)?;
        queue.threads += 1;
        let lane = queue.lane;
        let batch = if queue.questions.is_empty() {
            queue.is_closing = true;
            let count = queue.closes.len().min(CLOSES_TAKEN_MAX);
            Batch::Closes(lane, queue.closes.drain(..count).collect())
        } else {
            let count = queue.questions.len().min(QUESTIONS_TAKEN_MAX);
            questions.extend(queue.questions.drain(..count));
            Batch::LookUps(lane)
        };
        self.lanes.push_back(queue);
        Some(batch)
    }
}

impl LaneQueue {
    fn has_job(&self, threads_max: usize) -> bool {
        let has_closes = !self.closes.is_empty() && !self.is_closing;
        self.threads < threads_max && (!self.questions.is_empty() || has_closes)
    }

    fn is_idle(&self) -> bool {
        self.threads == 0 && self.questions.is_empty() && self.closes.is_empty()
    }
}

#[derive(Debug)]
pub(crate) struct Threads {
    queues: Arc<Queues>,
    replies: Receiver<Reply>,
    /// Counts one for each reply, written after it and those taken with it were sent.
    signal: Arc<File>,
    /// Replies received less signals read. Above zero, a signal is there or about to be; below,
    /// a reply is there.
    signals_due: i64,
    is_opening_root: bool,
    /// Ends the watch over the mounts when it is dropped.
    _watch: Watch,
}

impl Threads {
    pub(crate) fn start(
        current: &Arc<CurrentRoot>,
        count: usize,
        pending_max: usize,
    ) -> io::Result<Self> {
        assert!(
            count > 0 && pending_max > 0,
            "{count} threads for {pending_max} look-ups"
        );
        let queues = Arc::new(Queues::new(lane_share(count)));
        // Each look-up has one reply, and each thread one of the other kinds.
        let (replies_in, replies) = sync_channel(pending_max + count);
        let signal = Arc::new(File::from(system::event_counter()?));
        for index in 0..count {
            let thread = Thread {
                current: Arc::clone(current),
                queues: Arc::clone(&queues),
                replies: replies_in.clone(),
                signal: Arc::clone(&signal),
            };
            let name = format!("atlas-lookup-{index}");
            thread::Builder::new()
                .name(name)
                .spawn(move || thread.run())?;
        }
        Ok(Self {
            queues,
            replies,
            signal,
            signals_due: 0,
            is_opening_root: false,
            _watch: Watch::start(current)?,
        })
    }

    pub(crate) fn ask(&mut self, lane: Lane, question: Question) {
        self.queues
            .add(|state| state.lane(lane).questions.push_back(question));
    }

    /// Takes a question back; false if a thread has taken it.
    pub(crate) fn withdraw(&mut self, lane: Lane, id: u64) -> bool {
        self.queues.withdraw(lane, id)
    }

    pub(crate) fn close(&mut self, lane: Lane, descriptor: OwnedFd) {
        self.queues
            .add(|state| state.lane(lane).closes.push_back(descriptor));
    }

    /// Has the directory opened again, unless that is under way.
    pub(crate) fn open_root(&mut self) {
        if !self.is_opening_root {
            self.is_opening_root = true;
            self.queues.add(|state| state.wants_root = true);
        }
    }

    /// The next reply. Makes no system call unless a reply was received since the last `None`.
    pub(crate) fn poll_reply(&mut self) -> Option<Reply> {
        loop {
            if let Ok(reply) = self.replies.try_recv() {
                self.signals_due += 1;
                self.is_opening_root &= !matches!(reply, Reply::Root(_));
                return Some(reply);
            }
            if self.signals_due <= 0 {
                return None;
            }
            // Empty the counter, or the worker would be woken for what it has already seen. A
            // reply sent in between may lose its signal here: then fewer are due than none, and
            // the reply, sent before its signal, is found by another look.
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

    #[cfg(test)]
    pub(crate) fn queued(&self, lane: Lane) -> usize {
        self.queues.lock().lane(lane).questions.len()
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
        self.queues.close();
    }
}

struct Thread {
    current: Arc<CurrentRoot>,
    queues: Arc<Queues>,
    replies: SyncSender<Reply>,
    signal: Arc<File>,
}

impl Thread {
    fn run(self) {
        system::give_way();
        let mut scratch = Vec::new();
        let mut questions = Vec::with_capacity(QUESTIONS_TAKEN_MAX);
        while let Some(batch) = self.queues.take(&mut questions) {
            let mut replied: u64 = 0;
            let mut reply = |reply| {
                replied += 1;
                self.replies.send(reply).is_ok()
            };
            let is_heard = match batch {
                Batch::LookUps(lane) => {
                    let is_heard = questions.drain(..).all(|question| {
                        let result = question.root.open_object_waiting(
                            &mut scratch,
                            &question.name,
                            question.way,
                        );
                        let Question { id, name, .. } = question;
                        reply(Reply::LookUp { id, name, result })
                    });
                    self.queues.finish(lane, false);
                    is_heard
                }
                Batch::Closes(lane, descriptors) => {
                    let count = descriptors.len();
                    drop(descriptors);
                    self.queues.finish(lane, true);
                    reply(Reply::Closed(lane, count))
                }
                Batch::Root => {
                    let opened = self.current.reopen();
                    self.queues.finish(Lane::ELSEWHERE, false);
                    reply(Reply::Root(opened))
                }
            };
            if !is_heard {
                return;
            }
            // It fails only when the counter is full, and then it is readable anyway.
            let _ = (&*self.signal).write(&replied.to_ne_bytes());
        }
    }
}

/// A thread that sleeps until something is mounted or unmounted, and tells the root.
#[derive(Debug)]
struct Watch {
    end: Arc<File>,
}

impl Watch {
    /// Where the kernel shows no list of mounts there is nothing to watch.
    fn start(current: &Arc<CurrentRoot>) -> io::Result<Self> {
        let end = Arc::new(File::from(system::event_counter()?));
        if let Ok(table) = File::open(crate::mounts::MOUNT_TABLE) {
            let (current, end) = (Arc::clone(current), Arc::clone(&end));
            thread::Builder::new()
                .name("atlas-mounts".to_owned())
                .spawn(move || watch(&current, &table, &end))?;
        }
        Ok(Self { end })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = (&*self.end).write(&1u64.to_ne_bytes());
    }
}

fn watch(current: &CurrentRoot, table: &File, end: &File) {
    loop {
        match system::wait_for_mount(table.as_fd(), end.as_fd()) {
            (_, true) => return,
            (true, false) => current.read_mounts(),
            // A signal.
            (false, false) => {}
        }
    }
}
